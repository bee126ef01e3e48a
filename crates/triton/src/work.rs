//! Owns the work of a kernel: its GEMMs, its other floating-point operations, and its memory traffic.
//!
//! Programs are executed without writing, and a value is 0 if neither control flow nor accesses depend on it
//! ([`Needs`]). For a large grid, a sample of programs stands for all.

use crate::float::{Math1, Math2};
use crate::memory::{Span, length};
use crate::needs::Needs;
use crate::program::{Cast as Casting, Function, Instruction, Operation, Precision};
use crate::value::{Data, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};

/// Total work of all programs of a grid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations of GEMMs by type of the factors: 8-bit, 16-bit, 32-bit as TF32, and 32-bit.
    pub products: [u64; 4],
    /// Elementwise operations on numbers of up to 32 bits, and of 64 bits; the unit is the time of a multiplication and
    /// an addition.
    pub operations: [u64; 2],
    /// Bytes read from memory, each counted once.
    pub read: u64,
    /// Bytes written to memory, each counted once.
    pub written: u64,
    /// Memory of the integers that determine the work.
    pub integers: Vec<Span>,
}

/// Binary logarithm of the bytes of a sector, the smallest unit of access to a GPU's memory (NVIDIA, "CUDA C++ Best
/// Practices Guide", coalesced access).
const SECTOR: u32 = 5;

/// Cost of a special function in multiplications: a multiprocessor has 16 special function units, and 128 lanes for
/// multiplication (NVIDIA, "CUDA C++ Programming Guide", arithmetic instructions, compute capability 8.6 to 10).
const SPECIAL: u64 = 8;

/// Smallest number of programs of the grid that are sampled, if the grid has as many.
const LEAST: u64 = 16;

/// Number of computed elements after which the sample is large enough.
const ENOUGH: u64 = 1 << 20;

/// Number of computed elements after which a kernel does not seem to end.
const MOST: u64 = 1 << 29;

/// Accessed sectors, by address.
#[derive(Debug, Default)]
struct Touched(FxHashMap<usize, Programs>);

/// The last program that accessed a sector, and the number of such programs.
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

    /// Bytes that all programs access, estimated from a sample with this share of the programs. `memory` are disjoint,
    /// sorted spans, each of which bounds the bytes inside it.
    fn bytes(&self, share: f64, memory: &[Span]) -> u64 {
        let mut accesses = vec![Accesses::default(); memory.len() + 1];
        for (sector, programs) in &self.0 {
            let piece = memory.partition_point(|piece| (piece.end - 1) >> SECTOR < *sector);
            let is_inside = memory.get(piece).is_some_and(|piece| piece.start >> SECTOR <= *sector);
            accesses[if is_inside { piece } else { memory.len() }].add(*programs);
        }
        let most = memory.iter().map(|piece| piece.len() as u64).chain([u64::MAX]);
        accesses.iter().zip(most).map(|(accesses, most)| accesses.bytes(share).min(most)).fold(0, u64::saturating_add)
    }
}

/// Numbers of accessed sectors in a span: by any program, by exactly one, by exactly two.
#[derive(Clone, Copy, Debug, Default)]
struct Accesses {
    all: u64,
    once: u64,
    twice: u64,
}

impl Accesses {
    fn add(&mut self, programs: Programs) {
        self.all += 1;
        self.once += u64::from(programs.count == 1);
        self.twice += u64::from(programs.count == 2);
    }

    /// Bytes that all programs access, estimated from a sample with this share of the programs.
    ///
    /// The number of unseen sectors follows from the numbers of sectors that one program and two programs accessed (A.
    /// Chao, "Estimating the population size for capture-recapture data with unequal catchability", Biometrics 43,
    /// 1987): sectors that few programs share are rarely seen.
    fn bytes(&self, share: f64) -> u64 {
        let (once, twice) = (self.once as f64, self.twice as f64);
        // If programs share no such sectors, each unseen program has as many as each sampled one.
        let most = once * (1.0 / share - 1.0);
        let unseen = if twice > 0.0 { (once * once / (2.0 * twice)).min(most) } else { most };
        rounded((self.all as f64 + unseen) * f64::from(1 << SECTOR))
    }
}

fn rounded(amount: f64) -> u64 {
    libm::round(amount) as u64
}

/// Counter of work while programs run.
#[derive(Debug)]
pub(crate) struct Counter {
    needs: Needs,
    /// Depth of calls to other functions, all of whose values count as needed.
    pub(crate) called: u32,
    work: Work,
    /// The work is unknown: control flow or an address depends on data that is not evaluated.
    pub(crate) is_unknown: bool,
    /// The sectors of integers that determine the work.
    integers: FxHashSet<usize>,
    read: Touched,
    written: Touched,
    program: u64,
    /// Number of computed elements.
    made: u64,
}

impl Counter {
    pub(crate) fn new(kernel: &Function) -> Counter {
        Counter {
            needs: Needs::of(kernel),
            called: 0,
            work: Work::default(),
            is_unknown: false,
            integers: FxHashSet::default(),
            read: Touched::default(),
            written: Touched::default(),
            program: 0,
            made: 0,
        }
    }

    pub(crate) fn begin(&mut self, program: u64) {
        self.program = program;
    }

    /// Whether this number of programs is enough for the sample.
    pub(crate) fn is_enough(&self, programs: u64) -> bool {
        programs >= LEAST && self.made > ENOUGH
    }

    /// Whether the kernel does not seem to end, or its work is unknown.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.made > MOST || self.is_unknown
    }

    /// Total work of all programs, from `looked_at` sampled ones. `memory` are the spans that the arguments point to.
    pub(crate) fn all(&self, looked_at: u64, programs: u64, memory: &[Span]) -> Work {
        let mut pieces: Vec<Span> = memory.iter().filter(|piece| !piece.is_empty()).cloned().collect();
        pieces.sort_unstable_by_key(|piece| (piece.start, piece.end));
        // Overlapping spans are merged.
        pieces.dedup_by(|next, before| {
            let overlaps = next.start < before.end;
            before.end = if overlaps { before.end.max(next.end) } else { before.end };
            overlaps
        });
        let share = looked_at as f64 / programs as f64;
        let of_all = |count: u64| rounded(count as f64 / share);
        Work {
            products: self.work.products.map(of_all),
            operations: self.work.operations.map(of_all),
            read: self.read.bytes(share, &pieces),
            written: self.written.bytes(share, &pieces),
            integers: spans(&self.integers),
        }
    }

    /// Counts the work of an instruction. Returns stand-ins for its results, if it need not be executed.
    pub(crate) fn counts(&mut self, instruction: &Instruction, operands: &[&Data]) -> Option<Vec<Data>> {
        use Operation::*;
        let is_needed = self.called > 0 || self.needs.any(&instruction.results);
        self.made += operands.iter().map(|data| data.len() as u64).max().unwrap_or(1);
        let of = instruction.to.as_ref();
        let elements = of.map_or(1, |of| of.elements() as u64);
        let is_double = of.is_some_and(|of| of.scalar == Scalar::F64);
        let mut operations = |each: u64| self.work.operations[usize::from(is_double)] += elements * each;
        match &instruction.operation {
            // If addresses are loaded from memory, the memory that they point to is unknown.
            Same if is_needed && *instruction.name == *"tt.int_to_ptr" => {
                self.is_unknown = true;
                None
            }
            If { .. } | For { .. } | While { .. } | Call(_) | Constant(_) | Program(_) | Programs(_) | Same => None,
            Nothing | Assert(_) | Print(_) => Some(Vec::new()),
            Load(scalar) => {
                let places = || places(operands, 1, 1);
                self.read.note(places()?, self.program);
                if !is_needed {
                    return Some(vec![Data::zero(*scalar)]);
                }
                let sectors: FxHashSet<usize> = places()?.map(|address| address >> SECTOR).collect();
                // If the kernel reads memory that it has written itself, the value is unknown, because writes are not
                // carried out.
                self.is_unknown |=
                    scalar.is_float() || sectors.iter().any(|sector| self.written.0.contains_key(sector));
                self.integers.extend(sectors);
                None
            }
            Store(_) => {
                self.written.note(places(operands, 2, operands.get(1)?.len())?, self.program);
                Some(Vec::new())
            }
            Modify(_, scalar) => {
                let places = || places(operands, 2, operands.get(1)?.len());
                self.read.note(places()?, self.program);
                self.written.note(places()?, self.program);
                self.is_unknown |= is_needed;
                Some(instruction.results.iter().map(|_| Data::zero(*scalar)).collect())
            }
            Exchange(_) => {
                let expected = *operands.get(1)?;
                let places = || places(operands, usize::MAX, expected.len());
                self.read.note(places()?, self.program);
                self.written.note(places()?, self.program);
                // An attempt to acquire a lock succeeds.
                Some(instruction.results.iter().map(|_| expected.clone()).collect())
            }
            Dot { inner, precision } => {
                let left = instruction.from.as_ref()?;
                let (class, times) = match (left.scalar, precision) {
                    (Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::Int(8), _) => (0, 1),
                    (Scalar::F16 | Scalar::BF16, _) => (1, 1),
                    (_, Precision::BFloat16(times)) => (1, *times),
                    (_, Precision::Tf32(times)) => (2, *times),
                    (_, Precision::Exact) => (3, 1),
                };
                self.work.products[class] += 2 * left.elements() as u64 * *inner.shape.get(1)? as u64 * times;
                self.is_unknown |= is_needed;
                Some(vec![Data::zero(of?.scalar)])
            }
            Reduce { .. } | Scan { .. } => {
                let is_float = |data: &&&Data| !matches!(data, Data::Int(_));
                if let Some(data) = operands.iter().find(is_float) {
                    let is_double = usize::from(matches!(data, Data::Double(_)));
                    self.work.operations[is_double] += instruction.from.as_ref()?.elements() as u64;
                }
                (!is_needed).then(|| operands.iter().map(|data| data.picked(std::iter::once(0))).collect())
            }
            Split if is_needed => None,
            Split => Some(vec![Data::zero(instruction.from.as_ref()?.scalar); 2]),
            CompareIntegers(..) if is_needed => None,
            CompareIntegers(..) => Some(vec![Data::Int(vec![0])]),
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
                    Cast(Casting::Extend | Casting::ExtendUnsigned | Casting::Truncate | Casting::Bits) => {}
                    Cast(_) => operations(1),
                    _ => {}
                }
                if is_needed { None } else { Some(vec![Data::zero(of?.scalar)]) }
            }
        }
    }
}

/// Address ranges of sectors, with adjacent ones merged.
fn spans(sectors: &FxHashSet<usize>) -> Vec<Span> {
    let mut sorted: Vec<usize> = sectors.iter().copied().collect();
    sorted.sort_unstable();
    let together = sorted.chunk_by(|one, next| one + 1 == *next);
    together.map(|run| run[0] << SECTOR..(run[run.len() - 1] + 1) << SECTOR).collect()
}

/// Accessed addresses under a mask, for at least `least` elements.
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
