//! Owns the semantics of PyTorch's operators: the family of each, its sizes, its floating-point operations, and the
//! bytes that it reads and writes.
//!
//! Floating-point operations are counted as `torch.utils.flop_counter` does: for GEMMs, convolutions and attention, two
//! per multiplication with its addition; other operators are described by their bytes. The count differs from torch's
//! in three cases: causal attention counts half, as kernels skip masked pairs; a convolution's weight gradient accounts
//! for the groups; and complex GEMMs count the operations of their parts. [`crate::model`] computes the cost of an
//! operator.

mod attention;
mod call;
mod composite;
mod convolution;
mod factorization;
mod flat;
mod gemm;
mod kernel;
mod key;
mod lengths;
mod nothing;
mod rows;
mod sequences;
mod serving;
mod torch;

#[cfg(test)]
mod tests;

pub use factorization::is_rough;
pub(crate) use gemm::{BLOCKS, EXPERTS, ROWS};
pub use kernel::values;
pub use key::key;
pub use lengths::Sequences;
pub use sequences::{lengths_are_values, sequences, with_sequences};
pub use serving::{missing_argument, stacks};

use call::Call;
use uniference_formats::operators::{Argument, Definition};
use uniference_sim::device::{Elements, Family, Operator, Resource};
use uniference_sim::program::DType;
use uniference_sim::time::Bytes;

/// The argument after the schema's if tensor cores multiply 32-bit numbers, by the program's settings
/// (`cpp/definitions.h`).
const TENSOR_CORES: &str = "tf32";

/// Work of an operator.
#[derive(Clone, Debug, PartialEq)]
pub enum Described {
    /// No data is touched: a view, memory without contents, a query of a tensor.
    Nothing,
    /// The operator runs for an unknown time.
    Unknown,
    /// One computation, or several that are one operator to PyTorch.
    Parts(Vec<Part>),
}

/// A computation that is an operator, or part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The sizes and work that determine the cost.
    pub operator: Operator,
    /// Variant of the family: the operator's name without namespace, overload and the underscore of in-place operators.
    /// For GEMMs the layout, with the suffix `_block` if blocks of the factors' rows have scales, and `_experts` if
    /// experts compute them.
    pub variant: String,
    /// Number of repetitions, in sequence.
    pub times: u64,
    /// Whether the kernel of an earlier part performs this part concurrently with that one: several such parts follow
    /// one another.
    pub is_beside: bool,
}

impl Part {
    /// A part with the call's whole memory traffic.
    fn of(call: Call<'_>, family: Family, flops: u64) -> Part {
        let operator = Operator {
            resource: Resource::Accelerator,
            family,
            elements: call.dtype().map(Elements::Of),
            flops,
            read: call.read(),
            written: call.written(),
        };
        let variant = match family {
            Family::Gemm { layout, .. } => layout.name(),
            _ => call.name,
        };
        Part { operator, variant: variant.to_owned(), times: 1, is_beside: false }
    }

    /// A part of an operator whose other parts read and write other memory.
    fn inside(family: Family, dtype: Option<DType>, flops: u64, read: Bytes, written: Bytes, variant: &str) -> Part {
        let elements = dtype.map(Elements::Of);
        let operator = Operator { resource: Resource::Accelerator, family, elements, flops, read, written };
        Part { operator, variant: variant.to_owned(), times: 1, is_beside: false }
    }

    /// A kernel without work, such as attention without sequences.
    fn idle(call: Call<'_>) -> Part {
        let nothing = Family::Flat { kind: uniference_sim::device::FlatKind::Copy, elements: 0 };
        Part::inside(nothing, None, 0, Bytes(0), Bytes(0), call.name)
    }

    /// A complex multiplication is four multiplications of real parts, and an addition is two.
    fn multiply_complex_numbers(&mut self) {
        let of_complex = [DType::Complex32, DType::Complex64, DType::Complex128].map(|dtype| Some(Elements::Of(dtype)));
        if of_complex.contains(&self.operator.elements) {
            self.operator.flops = self.operator.flops.saturating_mul(4);
        }
    }

    /// Turns GEMMs of 32-bit numbers into TF32 GEMMs.
    fn multiply_in_tensor_cores(&mut self) {
        let is_product = matches!(self.operator.family, Family::Gemm { .. } | Family::Convolution { .. });
        if is_product && self.operator.elements == Some(Elements::Of(DType::Float32)) {
            self.operator.elements = Some(Elements::Tf32);
        }
    }

    fn repeated(self, times: u64) -> Part {
        Part { times: self.times.saturating_mul(times), ..self }
    }
}

impl Described {
    /// Floating-point operations of all parts.
    pub fn flops(&self) -> u64 {
        self.total(|operator| operator.flops)
    }

    /// Bytes that all parts read.
    pub fn read(&self) -> Bytes {
        Bytes(self.total(|operator| operator.read.0))
    }

    /// Bytes that all parts write.
    pub fn written(&self) -> Bytes {
        Bytes(self.total(|operator| operator.written.0))
    }

    fn total(&self, of: impl Fn(&Operator) -> u64) -> u64 {
        let parts = if let Described::Parts(parts) = self { &parts[..] } else { &[] };
        parts.iter().fold(0, |sum, part| sum.saturating_add(of(&part.operator).saturating_mul(part.times)))
    }

    /// The name in reports: the family of the part with the most work, `view` without work, or `unknown`.
    pub fn kind(&self) -> &'static str {
        match self {
            Described::Nothing => "view",
            Described::Unknown => "unknown",
            Described::Parts(parts) => {
                let work = |part: &&Part| {
                    let of = |amount: u64| amount.saturating_mul(part.times);
                    (of(part.operator.flops), of(part.operator.bytes().0))
                };
                parts.iter().max_by_key(work).map_or("unknown", |part| part.operator.family.name())
            }
        }
    }
}

/// Work of an operator with these arguments. An operator whose arguments do not fit its schema is unknown.
pub fn describe(definition: &Definition) -> Described {
    let call = Call::new(definition);
    let is_of = |namespaces: &[&str]| namespaces.iter().any(|namespace| definition.name.starts_with(namespace));
    // Marks of the profiler, and communication, which is simulated at its call.
    if is_of(&["profiler::", "c10d::", "_c10d_functional::"]) {
        return Described::Nothing;
    }
    if is_of(&["inductor::"]) {
        return Described::Parts(vec![kernel::describe(call)]);
    }
    if is_of(&["triton::"]) {
        let named = serving::describe_kernel(call).map(|part| vec![part]);
        return named.or_else(|| kernel::describe_work(call)).map_or(Described::Unknown, Described::Parts);
    }
    if serving::stacks::is_of_stack(&definition.name) {
        return serving::describe(call).map_or(Described::Unknown, Described::Parts);
    }
    if !is_of(&["aten::", "fsdp::", "prims::"]) {
        return Described::Unknown;
    }
    if nothing::is_nothing(call.name) {
        return Described::Nothing;
    }
    let found = gemm::describe(call)
        .or_else(|| attention::describe(call))
        .or_else(|| rows::describe(call))
        .or_else(|| flat::describe(call))
        .or_else(|| convolution::describe(call))
        .or_else(|| composite::describe(call))
        .or_else(|| factorization::describe(call));
    let Some(mut parts) = found else { return Described::Unknown };
    parts.iter_mut().for_each(Part::multiply_complex_numbers);
    if definition.arguments.last().is_some_and(|last| *last == Argument::Text(TENSOR_CORES.to_owned())) {
        parts.iter_mut().for_each(Part::multiply_in_tensor_cores);
    }
    Described::Parts(parts)
}

/// A product; at most `u64::MAX`.
fn flops(factors: &[u64]) -> u64 {
    call::product(factors)
}
