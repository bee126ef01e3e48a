//! Owns values: their types, and their elements, which are integers and addresses, or numbers of single or double
//! precision.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use std::sync::Arc;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// An integer of so many bits, at most 64.
    Int(u32),
    /// FP8 with four exponent bits; there is no infinity.
    F8E4M3,
    /// FP8 with five exponent bits.
    F8E5M2,
    /// IEEE half precision.
    F16,
    /// Brain floating point: the upper half of single precision.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// An address of memory.
    Pointer,
}

impl Scalar {
    /// Size in memory, in bytes.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Scalar::Int(bits) => bits.div_ceil(8) as usize,
            Scalar::F8E4M3 | Scalar::F8E5M2 => 1,
            Scalar::F16 | Scalar::BF16 => 2,
            Scalar::F32 => 4,
            Scalar::F64 | Scalar::Pointer => 8,
        }
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Scalar::Int(bits) => bits,
            other => 8 * other.bytes() as u32,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        !matches!(self, Scalar::Int(_) | Scalar::Pointer)
    }
}

/// The type of a value: a scalar has no dimensions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Type {
    pub(crate) scalar: Scalar,
    /// Element type behind a pointer.
    pub(crate) pointee: Option<Scalar>,
    pub(crate) shape: Arc<[usize]>,
}

impl Type {
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Elements of a value in row-major order; a single element stands for all.
///
/// Integers are kept with their sign, but truth values as 0 and 1; 8-bit and 16-bit floating-point numbers are kept in
/// single precision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Int(Vec<i64>),
    Single(Vec<f32>),
    Double(Vec<f64>),
}

/// Calls one of three functions, by the type in which elements are kept.
macro_rules! each {
    ($data:expr, $elements:ident => $done:expr) => {
        match $data {
            Data::Int($elements) => Data::Int($done),
            Data::Single($elements) => Data::Single($done),
            Data::Double($elements) => Data::Double($done),
        }
    };
}

impl Data {
    pub(crate) fn zero(scalar: Scalar) -> Data {
        match scalar {
            Scalar::Int(_) | Scalar::Pointer => Data::Int(vec![0]),
            Scalar::F64 => Data::Double(vec![0.0]),
            _ => Data::Single(vec![0.0]),
        }
    }

    /// Data from numbers in MLIR's syntax: a float may be written as its bits in hexadecimal.
    pub(crate) fn from_words(words: &[&str], scalar: Scalar) -> Option<Data> {
        let bits = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        match scalar {
            Scalar::Int(width) => {
                let number = |word: &&str| match *word {
                    "true" => Some(1),
                    "false" => Some(0),
                    _ => word.parse().ok().map(|number| wrapped(number, width)),
                };
                words.iter().map(number).collect::<Option<_>>().map(Data::Int)
            }
            Scalar::Pointer => None,
            Scalar::F64 => {
                let number = |word: &&str| bits(word).map(f64::from_bits).or_else(|| word.parse().ok());
                words.iter().map(number).collect::<Option<_>>().map(Data::Double)
            }
            narrow => {
                let number = |word: &&str| match bits(word) {
                    Some(bits) => Some(single(bits, narrow)),
                    None => word.parse().ok().map(|number| rounded(number, narrow)),
                };
                words.iter().map(number).collect::<Option<_>>().map(Data::Single)
            }
        }
    }

    /// Data from all bytes in hexadecimal, as MLIR writes large constants.
    pub(crate) fn from_hex(digits: &str, scalar: Scalar) -> Option<Data> {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Vec<u8> = digits.as_bytes().chunks(2).map(byte).collect::<Option<_>>()?;
        let is_whole = bytes.len().is_multiple_of(scalar.bytes()) && scalar != Scalar::Int(1);
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        is_whole.then(|| Data::from_bits(bytes.chunks(scalar.bytes()).map(word), scalar))
    }

    /// Data from the bits of elements in memory.
    pub(crate) fn from_bits(bits: impl Iterator<Item = u64>, scalar: Scalar) -> Data {
        match scalar {
            Scalar::Int(width) => Data::Int(bits.map(|bits| wrapped(bits as i64, width)).collect()),
            Scalar::Pointer => Data::Int(bits.map(|bits| bits as i64).collect()),
            Scalar::F64 => Data::Double(bits.map(f64::from_bits).collect()),
            narrow => Data::Single(bits.map(|bits| single(bits, narrow)).collect()),
        }
    }

    /// The bits of an element in memory.
    #[inline]
    pub(crate) fn bits(&self, at: usize, scalar: Scalar) -> u64 {
        match self {
            Data::Int(elements) => elements[at] as u64,
            Data::Single(elements) => match scalar {
                Scalar::F8E4M3 => u64::from(F8E4M3::from_f32(elements[at]).to_bits()),
                Scalar::F8E5M2 => u64::from(F8E5M2::from_f32(elements[at]).to_bits()),
                Scalar::F16 => u64::from(f16::from_f32(elements[at]).to_bits()),
                Scalar::BF16 => u64::from(bf16::from_f32(elements[at]).to_bits()),
                _ => u64::from(elements[at].to_bits()),
            },
            Data::Double(elements) => elements[at].to_bits(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Data::Int(elements) => elements.len(),
            Data::Single(elements) => elements.len(),
            Data::Double(elements) => elements.len(),
        }
    }

    /// Data with every element stored; `None`: the number of elements differs from the type's.
    pub(crate) fn whole(&self, of: &Type) -> Option<Data> {
        let elements = of.elements();
        match self.len() {
            1 => Some(each!(self, data => vec![data[0]; elements])),
            length => (length == elements).then(|| self.clone()),
        }
    }

    /// The elements at these indices, in this order.
    pub(crate) fn picked(&self, places: impl Iterator<Item = usize>) -> Data {
        each!(self, data => places.map(|place| data[place]).collect())
    }

    /// The elements followed by those of `by`, which must have the same kind.
    pub(crate) fn followed(mut self, by: &Data) -> Option<Data> {
        match (&mut self, by) {
            (Data::Int(own), Data::Int(others)) => own.extend(others),
            (Data::Single(own), Data::Single(others)) => own.extend(others),
            (Data::Double(own), Data::Double(others)) => own.extend(others),
            _ => return None,
        }
        Some(self)
    }
}

/// An integer wrapped to a number of bits.
#[inline]
pub(crate) fn wrapped(number: i64, bits: u32) -> i64 {
    match bits {
        64.. => number,
        1 => number & 1,
        _ => number << (64 - bits) >> (64 - bits),
    }
}

/// The same bits as an unsigned integer.
#[inline]
pub(crate) fn unsigned(number: i64, bits: u32) -> u64 {
    if bits >= 64 { number as u64 } else { number as u64 & ((1 << bits) - 1) }
}

/// The same bits as a signed integer: a truth value has a sign, too.
#[inline]
pub(crate) fn signed(number: i64, bits: u32) -> i64 {
    if bits == 1 { -number } else { number }
}

/// A single-precision number rounded to a narrower type. A number too large for 8 bits becomes the largest (PTX,
/// `cvt.satfinite`).
#[inline]
pub(crate) fn rounded(number: f32, to: Scalar) -> f32 {
    match to {
        Scalar::F8E4M3 => F8E4M3::from_f32(number).to_f32(),
        Scalar::F8E5M2 => F8E5M2::from_f32(number).to_f32(),
        Scalar::F16 => f16::from_f32(number).to_f32(),
        Scalar::BF16 => bf16::from_f32(number).to_f32(),
        _ => number,
    }
}

fn single(bits: u64, scalar: Scalar) -> f32 {
    match scalar {
        Scalar::F8E4M3 => F8E4M3::from_bits(bits as u8).to_f32(),
        Scalar::F8E5M2 => F8E5M2::from_bits(bits as u8).to_f32(),
        Scalar::F16 => f16::from_bits(bits as u16).to_f32(),
        Scalar::BF16 => bf16::from_bits(bits as u16).to_f32(),
        _ => f32::from_bits(bits as u32),
    }
}

/// A function of each pair of elements; `None`: the numbers of elements differ.
#[inline]
pub(crate) fn zip<A: Copy, B: Copy, R>(a: &[A], b: &[B], of: impl Fn(A, B) -> R) -> Option<Vec<R>> {
    Some(match (a, b) {
        (a, &[b]) => a.iter().map(|a| of(*a, b)).collect(),
        (&[a], b) => b.iter().map(|b| of(a, *b)).collect(),
        _ if a.len() == b.len() => a.iter().zip(b).map(|(a, b)| of(*a, *b)).collect(),
        _ => return None,
    })
}

/// A function of each triple of elements.
#[inline]
pub(crate) fn zip3<A: Copy, B: Copy, C: Copy, R>(
    a: &[A],
    b: &[B],
    c: &[C],
    of: impl Fn(A, B, C) -> R,
) -> Option<Vec<R>> {
    let length = a.len().max(b.len()).max(c.len());
    let fits = |other: usize| other == 1 || other == length;
    if length == 0 || !(fits(a.len()) && fits(b.len()) && fits(c.len())) {
        return None;
    }
    let at = |length: usize, place: usize| if length == 1 { 0 } else { place };
    let one = |place| of(a[at(a.len(), place)], b[at(b.len(), place)], c[at(c.len(), place)]);
    Some((0..length).map(one).collect())
}
