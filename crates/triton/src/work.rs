//! Owns how much a kernel does: its products of matrices, its other operations on numbers of floating point, and what it reads and writes.
//!
//! Programs run as always, but nothing is written, and what decides neither which way they go nor what they access ([`Needs`]) is 0. Of a large grid
//! some programs stand for all.

use crate::float::{Math1, Math2};
use crate::memory::length;
use crate::needs::Needs;
use crate::program::{Cast as CastKind, Function, Instruction, Operation};
use crate::value::{Data, Scalar};
use rustc_hash::FxHashMap;

/// What all programs of a grid do together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations of products of matrices, by what these are of: numbers of 8 bits, of 16, of 32 by the tensor cores' 19 (TF32), and of
    /// 32 and 64.
    pub products: [u64; 4],
    /// Operations on single numbers of floating point, in those that a multiplication with an addition takes as long as.
    pub operations: u64,
    /// Bytes that it reads from memory, each once.
    pub read: u64,
    /// Bytes that it writes to memory, each once.
    pub written: u64,
    /// Whether integers in memory decide how much it is.
    pub is_by_integers: bool,
}

/// A GPU's memory is accessed by so many bytes at least (NVIDIA, "CUDA C++ Best Practices Guide", coalesced access): as a power of 2.
const SECTOR: u32 = 5;

/// A function of the GPU's special function units takes as long as so many multiplications: they are 16 in a multiprocessor whose lanes for
/// multiplication are 128 (NVIDIA, "CUDA C++ Programming Guide", arithmetic instructions, compute capability 8.6 to 10).
const SPECIAL: u64 = 8;

/// So many programs of a grid are looked at at least, if it has as many.
const LEAST: u64 = 16;

/// Where these are not all, it ends behind so many elements of values.
const ENOUGH: u64 = 1 << 20;

/// A kernel that makes more does not seem to end.
const MOST: u64 = 1 << 29;

/// Which parts of memory were accessed, each of so many bytes.
#[derive(Debug, Default)]
struct Touched(FxHashMap<usize, Programs>);

/// The last one, and how many.
#[derive(Clone, Copy, Debug)]
struct Programs {
    last: u64,
    count: u32,
}

impl Touched {
    fn note(&mut self, addresses: impl Iterator<Item = usize>, program: u64) {
        let mut before = usize::MAX;
        for sector in addresses.map(|address| address >> SECTOR) {
            if sector != before {
                let known = self.0.entry(sector).or_insert(Programs { last: program, count: 1 });
                if known.last != program {
                    *known = Programs { last: program, count: known.count.saturating_add(1) };
                }
            }
            before = sector;
        }
    }

    /// Bytes that all programs access, of which a share was looked at.
    ///
    /// How many parts none of these has accessed follows from how many were accessed by one and by two (A. Chao, "Estimating the population size for
    /// capture-recapture data with unequal catchability", Biometrics 43, 1987): parts that few programs share are seen seldom.
    fn bytes(&self, share: f64) -> u64 {
        let accessed_by = |count: u32| self.0.values().filter(|programs| programs.count == count).count() as f64;
        let (once, twice) = (accessed_by(1), accessed_by(2));
        // If no programs share these parts, each has as many as those that were looked at.
        let most = once * (1.0 / share - 1.0);
        let unseen = if twice > 0.0 { (once * once / (2.0 * twice)).min(most) } else { most };
        rounded((self.0.len() as f64 + unseen) * f64::from(1 << SECTOR))
    }
}

fn rounded(amount: f64) -> u64 {
    libm::round(amount) as u64
}

/// Counts while programs run.
#[derive(Debug)]
pub(crate) struct Counter {
    needs: Needs,
    /// How many functions that the kernel calls it is in, one inside the other: all that they compute is taken to matter.
    pub(crate) called: u32,
    work: Work,
    /// Numbers of floating point decide how much it is, so that nobody knows it.
    pub(crate) is_by_floats: bool,
    read: Touched,
    written: Touched,
    program: u64,
    /// Elements of values that were made.
    made: u64,
}

impl Counter {
    pub(crate) fn new(kernel: &Function) -> Counter {
        Counter {
            needs: Needs::of(kernel),
            called: 0,
            work: Work::default(),
            is_by_floats: false,
            read: Touched::default(),
            written: Touched::default(),
            program: 0,
            made: 0,
        }
    }

    pub(crate) fn begin(&mut self, program: u64) {
        self.program = program;
    }

    /// Whether so many programs are enough.
    pub(crate) fn is_enough(&self, programs: u64) -> bool {
        programs >= LEAST && self.made > ENOUGH
    }

    /// Whether the kernel does not seem to end, or nobody knows what it does.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.made > MOST || self.is_by_floats
    }

    /// What all programs do, of which so many were looked at.
    pub(crate) fn all(&self, looked_at: u64, programs: u64) -> Work {
        let share = looked_at as f64 / programs as f64;
        let of_all = |count: u64| rounded(count as f64 / share);
        Work {
            products: self.work.products.map(of_all),
            operations: of_all(self.work.operations),
            read: self.read.bytes(share),
            written: self.written.bytes(share),
            is_by_integers: self.work.is_by_integers,
        }
    }

    /// Counts what an instruction does. Returns what stands for its results, if it is not to be carried out.
    pub(crate) fn counts(&mut self, instruction: &Instruction, operands: &[&Data]) -> Option<Vec<Data>> {
        use Operation::*;
        let is_needed = self.called > 0 || self.needs.any(&instruction.results);
        self.made += operands.iter().map(|data| data.len() as u64).max().unwrap_or(1);
        let of = instruction.to.as_ref();
        let elements = of.map_or(1, |of| of.elements() as u64);
        let mut operations = |each: u64| self.work.operations += elements * each;
        match &instruction.operation {
            If { .. } | For { .. } | While { .. } | Call(_) | Constant(_) | Program(_) | Programs(_) | Same => None,
            Nothing | Assert(_) => Some(Vec::new()),
            Load(scalar) => {
                let places = places(operands, 1, 1)?;
                self.read.note(places, self.program);
                self.work.is_by_integers |= is_needed;
                self.is_by_floats |= is_needed && scalar.is_float();
                (!is_needed).then(|| vec![Data::zero(*scalar)])
            }
            Store(_) => {
                self.written.note(places(operands, 2, operands.get(1)?.len())?, self.program);
                Some(Vec::new())
            }
            // Whoever waits for a lock has it.
            Modify(_, scalar) | Exchange(scalar) => {
                let mask = if let Modify(..) = instruction.operation { 2 } else { usize::MAX };
                self.read.note(places(operands, mask, operands.get(1)?.len())?, self.program);
                self.written.note(places(operands, mask, operands.get(1)?.len())?, self.program);
                self.work.is_by_integers |= is_needed;
                let before = if let Exchange(_) = instruction.operation {
                    (*operands.get(1)?).clone()
                } else {
                    Data::zero(*scalar)
                };
                Some(if instruction.results.is_empty() { Vec::new() } else { vec![before] })
            }
            Dot { inner, exact } => {
                let left = instruction.from.as_ref()?;
                let class = match left.scalar {
                    Scalar::F8E4M3 | Scalar::F8E5M2 => 0,
                    Scalar::F16 | Scalar::BF16 => 1,
                    Scalar::F32 if !exact => 2,
                    _ => 3,
                };
                self.work.products[class] += 2 * left.elements() as u64 * *inner.shape.get(1)? as u64;
                self.is_by_floats |= is_needed;
                Some(vec![Data::zero(of?.scalar)])
            }
            Reduce { .. } | Scan { .. } => {
                let is_float = operands.iter().any(|data| !matches!(data, Data::Int(_)));
                if is_float {
                    self.work.operations += instruction.from.as_ref()?.elements() as u64;
                }
                (!is_needed).then(|| operands.iter().map(|data| data.picked(std::iter::once(0))).collect())
            }
            Split => (!is_needed)
                .then(|| vec![Data::zero(instruction.from.as_ref().map_or(Scalar::F32, |from| from.scalar)); 2]),
            CompareIntegers(..) => (!is_needed).then(|| vec![Data::Int(vec![0])]),
            CompareFloats(..) => {
                operations(1);
                (!is_needed).then(|| vec![Data::Int(vec![0])])
            }
            operation => {
                match operation {
                    Floats(Math2::Divide | Math2::Remainder | Math2::Power | Math2::Arctangent) => operations(SPECIAL),
                    Float(Math1::Negate | Math1::Absolute) => operations(1),
                    Float(_) => operations(SPECIAL),
                    Floats(_) | MultiplyAdd | Clamp { .. } => operations(1),
                    Cast(cast)
                        if !matches!(
                            cast,
                            CastKind::Extend | CastKind::ExtendUnsigned | CastKind::Truncate | CastKind::Bits
                        ) =>
                    {
                        operations(1);
                    }
                    _ => {}
                }
                (!is_needed).then_some(())?;
                Some(vec![Data::zero(of?.scalar)])
            }
        }
    }
}

/// Addresses that are accessed, where the mask says so; at least so many elements.
fn places<'a>(operands: &[&'a Data], mask: usize, least: usize) -> Option<impl Iterator<Item = usize> + 'a> {
    let numbers = |at: usize| match operands.get(at) {
        Some(Data::Int(numbers)) => Some(numbers.as_slice()),
        _ => None,
    };
    let (pointers, mask) = (numbers(0)?, numbers(mask));
    let length = length(&[Some(pointers.len()), mask.map(<[i64]>::len), Some(least)])?;
    let of = |length: usize, at: usize| if length == 1 { 0 } else { at };
    let is_on = move |at: &usize| mask.is_none_or(|mask| mask[of(mask.len(), *at)] != 0);
    Some((0..length).filter(is_on).map(move |at| pointers[of(pointers.len(), at)] as usize))
}
