//! Owns operations on elements: each on all elements of a tensor, without side effects. `None`: the operands do not fit
//! together.

use crate::float::{Math1, Math2, Number};
use crate::program::{Cast, Comparison, IntegerOp, Modification, Nan, Signed};
use crate::value::{Data, Scalar, Type, rounded, signed, unsigned, wrapped, zip, zip3};

pub(crate) fn integers(a: &[i64], b: &[i64], function: IntegerOp, bits: u32) -> Option<Vec<i64>> {
    /// An operation on pairs of integers. Most integers have 32 bits, and their sizes are not checked one by one.
    fn done(a: &[i64], b: &[i64], bits: u32, of: impl Fn(i64, i64) -> i64) -> Option<Vec<i64>> {
        match bits {
            64 => zip(a, b, of),
            32 => zip(a, b, |a, b| i64::from(of(a, b) as i32)),
            _ => zip(a, b, |a, b| wrapped(of(a, b), bits)),
        }
    }
    let own = |number: i64| signed(number, bits);
    let plain = |number: i64| unsigned(number, bits);
    // The result of a division by zero is undefined.
    let by = |number: i64| if number == 0 { 1 } else { number };
    let by_plain = |number: i64| plain(number).max(1);
    match function {
        IntegerOp::Add => done(a, b, bits, i64::wrapping_add),
        IntegerOp::Subtract => done(a, b, bits, i64::wrapping_sub),
        IntegerOp::Multiply => done(a, b, bits, i64::wrapping_mul),
        IntegerOp::Divide => done(a, b, bits, |a, b| own(a).wrapping_div(by(own(b)))),
        IntegerOp::DivideUnsigned => done(a, b, bits, |a, b| (plain(a) / by_plain(b)) as i64),
        IntegerOp::DivideUp => done(a, b, bits, |a, b| {
            let (a, b) = (own(a), by(own(b)));
            let is_cut = a.wrapping_rem(b) != 0 && (a < 0) == (b < 0);
            a.wrapping_div(b) + i64::from(is_cut)
        }),
        IntegerOp::DivideUpUnsigned => done(a, b, bits, |a, b| plain(a).div_ceil(by_plain(b)) as i64),
        IntegerOp::DivideDown => done(a, b, bits, |a, b| {
            let (a, b) = (own(a), by(own(b)));
            let is_cut = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
            a.wrapping_div(b) - i64::from(is_cut)
        }),
        IntegerOp::Remainder => done(a, b, bits, |a, b| own(a).wrapping_rem(by(own(b)))),
        IntegerOp::RemainderUnsigned => done(a, b, bits, |a, b| (plain(a) % by_plain(b)) as i64),
        IntegerOp::And => done(a, b, bits, |a, b| a & b),
        IntegerOp::Or => done(a, b, bits, |a, b| a | b),
        IntegerOp::Xor => done(a, b, bits, |a, b| a ^ b),
        IntegerOp::ShiftLeft => done(a, b, bits, |a, b| if plain(b) < u64::from(bits) { a << plain(b) } else { 0 }),
        IntegerOp::ShiftRight => done(a, b, bits, |a, b| own(a) >> plain(b).min(63)),
        IntegerOp::ShiftRightUnsigned => {
            done(a, b, bits, |a, b| if plain(b) < u64::from(bits) { (plain(a) >> plain(b)) as i64 } else { 0 })
        }
        IntegerOp::Least => done(a, b, bits, |a, b| if own(a) < own(b) { a } else { b }),
        IntegerOp::Most => done(a, b, bits, |a, b| if own(a) > own(b) { a } else { b }),
        IntegerOp::LeastUnsigned => done(a, b, bits, |a, b| if plain(a) < plain(b) { a } else { b }),
        IntegerOp::MostUnsigned => done(a, b, bits, |a, b| if plain(a) > plain(b) { a } else { b }),
        IntegerOp::MultiplyHigh => {
            done(a, b, bits, |a, b| ((u128::from(plain(a)) * u128::from(plain(b))) >> bits) as i64)
        }
    }
}

pub(crate) fn compared_integers(
    a: &[i64],
    b: &[i64],
    comparison: Comparison,
    Signed(has_sign): Signed,
    bits: u32,
) -> Option<Vec<i64>> {
    let of = |with: fn(&i64, &i64) -> bool| {
        // Unsigned order is signed order shifted by half the range.
        let shift =
            |number: i64| if has_sign { signed(number, bits) } else { (unsigned(number, bits) as i64) ^ i64::MIN };
        zip(a, b, move |a, b| i64::from(with(&shift(a), &shift(b))))
    };
    match comparison {
        Comparison::Equal => zip(a, b, |a, b| i64::from(a == b)),
        Comparison::Unequal => zip(a, b, |a, b| i64::from(a != b)),
        Comparison::Less if has_sign && bits > 1 => zip(a, b, |a, b| i64::from(a < b)),
        Comparison::Less => of(i64::lt),
        Comparison::AtMost => of(i64::le),
        Comparison::Greater => of(i64::gt),
        Comparison::AtLeast => of(i64::ge),
        Comparison::Ordered | Comparison::True => None,
    }
}

pub(crate) fn compared<T: Number>(a: &[T], b: &[T], comparison: Comparison, Nan(nan): Nan) -> Option<Vec<i64>> {
    let of =
        |with: fn(&T, &T) -> bool| zip(a, b, move |a, b| i64::from(with(&a, &b) || nan && (a.is_nan() || b.is_nan())));
    match comparison {
        Comparison::Equal => of(|a, b| a == b),
        // NaN is unordered and differs from all numbers, so both operands must be numbers.
        Comparison::Unequal => of(|a, b| a != b && !a.is_nan() && !b.is_nan()),
        Comparison::Less => of(|a, b| a < b),
        Comparison::AtMost => of(|a, b| a <= b),
        Comparison::Greater => of(|a, b| a > b),
        Comparison::AtLeast => of(|a, b| a >= b),
        Comparison::Ordered if nan => of(|a, b| a.is_nan() || b.is_nan()),
        Comparison::Ordered => of(|a, b| !a.is_nan() && !b.is_nan()),
        Comparison::True => zip(a, b, |_, _| i64::from(nan)),
    }
}

pub(crate) fn float<T: Number>(numbers: &[T], function: Math1) -> Vec<T> {
    numbers.iter().map(|number| number.math1(function)).collect()
}

/// Frequent functions are matched once for all elements.
pub(crate) fn floats<T: Number>(a: &[T], b: &[T], function: Math2) -> Option<Vec<T>> {
    match function {
        Math2::Add => zip(a, b, |a, b| a.math2(Math2::Add, b)),
        Math2::Subtract => zip(a, b, |a, b| a.math2(Math2::Subtract, b)),
        Math2::Multiply => zip(a, b, |a, b| a.math2(Math2::Multiply, b)),
        Math2::Divide => zip(a, b, |a, b| a.math2(Math2::Divide, b)),
        Math2::Least => zip(a, b, |a, b| a.math2(Math2::Least, b)),
        Math2::Most => zip(a, b, |a, b| a.math2(Math2::Most, b)),
        other => zip(a, b, |a, b| a.math2(other, b)),
    }
}

/// Numbers clamped to bounds; NaN becomes the lower bound, or stays NaN if `keeps_nan`.
pub(crate) fn clamped<T: Number>(numbers: &[T], from: &[T], to: &[T], keeps_nan: bool) -> Option<Vec<T>> {
    zip3(numbers, from, to, |number, from, to| match keeps_nan && number.is_nan() {
        true => number,
        false => number.math2(Math2::Most, from).math2(Math2::Least, to),
    })
}

pub(crate) fn narrowed(mut numbers: Vec<f32>, to: Scalar) -> Data {
    if to != Scalar::F32 {
        numbers.iter_mut().for_each(|number| *number = rounded(*number, to));
    }
    Data::Single(numbers)
}

pub(crate) fn selected<T: Copy>(mask: &[i64], a: &[T], b: &[T]) -> Option<Vec<T>> {
    zip3(mask, a, b, |mask, a, b| if mask != 0 { a } else { b })
}

pub(crate) fn converted(data: &Data, cast: Cast, from: Scalar, to: Scalar) -> Option<Data> {
    let (source, bits) = (from.bits(), to.bits());
    let to_floats = |numbers: &[i64], has_sign: bool| {
        let double =
            |number: i64| if has_sign { signed(number, source) as f64 } else { unsigned(number, source) as f64 };
        let single =
            |number: i64| if has_sign { signed(number, source) as f32 } else { unsigned(number, source) as f32 };
        match to {
            Scalar::F64 => Data::Double(numbers.iter().map(|number| double(*number)).collect()),
            // A 64-bit integer is converted directly, so that it is rounded only once.
            narrow => narrowed(numbers.iter().map(|number| single(*number)).collect(), narrow),
        }
    };
    Some(match (cast, data) {
        (Cast::Extend, Data::Int(numbers)) => {
            Data::Int(numbers.iter().map(|number| wrapped(signed(*number, source), bits)).collect())
        }
        (Cast::ExtendUnsigned, Data::Int(numbers)) => {
            Data::Int(numbers.iter().map(|number| unsigned(*number, source) as i64).collect())
        }
        (Cast::Truncate, Data::Int(numbers)) => {
            Data::Int(numbers.iter().map(|number| wrapped(*number, bits)).collect())
        }
        (Cast::Float, Data::Single(numbers)) if to == Scalar::F64 => {
            Data::Double(numbers.iter().map(|number| f64::from(*number)).collect())
        }
        (Cast::Float, Data::Single(numbers)) => narrowed(numbers.clone(), to),
        (Cast::Float, Data::Double(numbers)) if to == Scalar::F64 => Data::Double(numbers.clone()),
        (Cast::Float, Data::Double(numbers)) => narrowed(numbers.iter().map(|number| *number as f32).collect(), to),
        (Cast::FromSigned, Data::Int(numbers)) => to_floats(numbers, true),
        (Cast::FromUnsigned, Data::Int(numbers)) => to_floats(numbers, false),
        (Cast::ToSigned, Data::Single(numbers)) => {
            Data::Int(numbers.iter().map(|number| narrowest(*number as i64, bits)).collect())
        }
        (Cast::ToSigned, Data::Double(numbers)) => {
            Data::Int(numbers.iter().map(|number| narrowest(*number as i64, bits)).collect())
        }
        (Cast::ToUnsigned, Data::Single(numbers)) => {
            Data::Int(numbers.iter().map(|number| narrowest_unsigned(*number as u64, bits)).collect())
        }
        (Cast::ToUnsigned, Data::Double(numbers)) => {
            Data::Int(numbers.iter().map(|number| narrowest_unsigned(*number as u64, bits)).collect())
        }
        (Cast::Bits, data) => Data::from_bits((0..data.len()).map(|at| data.bits(at, from)), to),
        _ => return None,
    })
}

/// An integer saturated to `bits` bits, as on the GPU.
fn narrowest(number: i64, bits: u32) -> i64 {
    match bits {
        64 => number,
        1 => number & 1,
        _ => number.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    }
}

fn narrowest_unsigned(number: u64, bits: u32) -> i64 {
    let most = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    wrapped(number.min(most) as i64, bits)
}

/// Distance between neighbouring elements along each dimension.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

pub(crate) fn broadcast(data: &Data, from: &Type, to: &Type) -> Option<Data> {
    let (own, others) = (strides(&from.shape), strides(&to.shape));
    let place = |at: usize| {
        let along =
            |axis: usize| if from.shape[axis] == 1 { 0 } else { at / others[axis] % to.shape[axis] * own[axis] };
        (0..own.len()).map(along).sum()
    };
    Some(data.whole(from)?.picked((0..to.elements()).map(place)))
}

pub(crate) fn transposed(data: &Data, shape: &[usize], order: &[usize]) -> Data {
    let own = strides(shape);
    let result: Vec<usize> = order.iter().map(|axis| shape[*axis]).collect();
    let others = strides(&result);
    let place = |at: usize| (0..order.len()).map(|axis| at / others[axis] % result[axis] * own[order[axis]]).sum();
    data.picked((0..data.len()).map(place))
}

/// The two indices of the last axis, as two tensors.
pub(crate) fn split(data: &Data, from: &Type) -> Option<[Data; 2]> {
    let all = data.whole(from)?;
    Some([0, 1].map(|part| all.picked((0..all.len() / 2).map(|at| 2 * at + part))))
}

pub(crate) fn gathered((source, places): (&Data, &Data), from: &Type, to: &Type, axis: usize) -> Option<Data> {
    let (source, places) = (source.whole(from)?, places.whole(to)?);
    let Data::Int(places) = places else { return None };
    let (own, others) = (strides(&from.shape), strides(&to.shape));
    let fits = own.len() == others.len() && places.iter().all(|place| (0..from.shape[axis] as i64).contains(place));
    let place = |at: usize| {
        let along = |dimension: usize| {
            let index =
                if dimension == axis { places[at] as usize } else { at / others[dimension] % to.shape[dimension] };
            index * own[dimension]
        };
        (0..own.len()).map(along).sum::<usize>()
    };
    let all: Vec<usize> = if fits { (0..to.elements()).map(place).collect() } else { return None };
    all.iter().all(|place| *place < source.len()).then(|| source.picked(all.into_iter()))
}

pub(crate) fn multiplied((a, b, c): (&Data, &Data, &Data), left: &Type, right: &Type, to: &Type) -> Option<Data> {
    let [rows, depth] = left.shape[..] else { return None };
    let sizes = [rows, depth, *right.shape.get(1)?];
    match (a.whole(left)?, b.whole(right)?, c.whole(to)?) {
        (Data::Single(a), Data::Single(b), Data::Single(mut sums)) => {
            add_products(&a, &b, &mut sums, sizes, |sum, a, b| sum + a * b);
            Some(Data::Single(sums))
        }
        (Data::Int(a), Data::Int(b), Data::Int(mut sums)) => {
            let bits = to.scalar.bits();
            add_products(&a, &b, &mut sums, sizes, |sum, a, b| wrapped(sum.wrapping_add(a.wrapping_mul(b)), bits));
            Some(Data::Int(sums))
        }
        _ => None,
    }
}

/// Adds a GEMM to a matrix; `sizes` are the rows of the first factor, its columns, and the columns of the second.
fn add_products<N: Copy>(a: &[N], b: &[N], sums: &mut [N], sizes: [usize; 3], add: impl Fn(N, N, N) -> N) {
    let [rows, depth, columns] = sizes;
    for row in 0..rows {
        for inner in 0..depth {
            let factor = a[row * depth + inner];
            let line = &b[inner * columns..(inner + 1) * columns];
            for (sum, number) in sums[row * columns..(row + 1) * columns].iter_mut().zip(line) {
                *sum = add(*sum, factor, *number);
            }
        }
    }
}

pub(crate) fn modified(modification: Modification, before: &Data, value: Data, scalar: Scalar) -> Option<Data> {
    match (modification, before, &value) {
        (Modification::Replace, ..) => Some(value),
        (Modification::Integers(function), Data::Int(a), Data::Int(b)) => {
            integers(a, b, function, scalar.bits()).map(Data::Int)
        }
        (Modification::AddFloats, Data::Single(a), Data::Single(b)) => {
            floats(a, b, Math2::Add).map(|sum| narrowed(sum, scalar))
        }
        (Modification::AddFloats, Data::Double(a), Data::Double(b)) => floats(a, b, Math2::Add).map(Data::Double),
        _ => None,
    }
}
