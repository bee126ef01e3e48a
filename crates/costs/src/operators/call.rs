//! Owns access to a definition: its arguments by their positions in the schema, and its memory traffic in bytes.

use uniference_formats::operators::{Argument, Definition, Tensor};
use uniference_sim::program::DType;
use uniference_sim::time::Bytes;

/// View of a definition and its arguments.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) definition: &'a Definition,
    /// `add` of `aten::add_.Tensor`.
    pub(super) name: &'a str,
    /// `Tensor` of `aten::add_.Tensor`; empty if there is none.
    pub(super) overload: &'a str,
    /// Whether the operator reads and writes its first argument, or the first list of them.
    pub(super) in_place: bool,
    /// Whether the results are arguments that are written and not read.
    pub(super) out: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(definition: &'a Definition) -> Call<'a> {
        let base = definition.base_name();
        let in_place = base.ends_with('_') && !base.ends_with("__");
        let overload = definition.name.rsplit_once('.').map_or("", |(_, overload)| overload);
        let out = overload == "out" || overload.ends_with("_out") || overload == "grad_input";
        let name = base.strip_suffix('_').filter(|_| in_place).unwrap_or(base);
        Call { definition, name, overload, in_place, out }
    }

    pub(super) fn argument(&self, index: usize) -> Option<&'a Argument> {
        self.definition.arguments.get(index)
    }

    pub(super) fn tensor(&self, index: usize) -> Option<&'a Tensor> {
        match self.argument(index)? {
            Argument::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    pub(super) fn result(&self, index: usize) -> Option<&'a Tensor> {
        match self.definition.results.get(index)? {
            Argument::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    pub(super) fn int(&self, index: usize) -> Option<i64> {
        match self.argument(index)? {
            Argument::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn ints(&self, index: usize) -> Option<&'a [i64]> {
        match self.argument(index)? {
            Argument::Ints(values) => Some(values),
            Argument::Int(value) => Some(std::slice::from_ref(value)),
            _ => None,
        }
    }

    pub(super) fn flag(&self, index: usize) -> bool {
        matches!(self.argument(index), Some(Argument::Bool(true)))
    }

    pub(super) fn arguments(&self) -> impl Iterator<Item = &'a Tensor> {
        self.definition.arguments.iter().flat_map(Argument::tensors)
    }

    pub(super) fn results(&self) -> impl Iterator<Item = &'a Tensor> {
        self.definition.results.iter().flat_map(Argument::tensors)
    }

    /// The tensors that the operator writes. For an operator in place or with an `out`, they are among its arguments,
    /// and its results repeat them.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &'a Tensor> {
        let results = self.results().filter(|_| !self.in_place && !self.out);
        self.arguments().filter(|tensor| tensor.written).chain(results)
    }

    /// Number of all elements that the operator writes.
    pub(super) fn elements(&self) -> u64 {
        self.outputs().map(Tensor::elements).fold(0, u64::saturating_add)
    }

    /// Bytes of all arguments, except those that are only written.
    pub(super) fn read(&self) -> Bytes {
        sum(self.arguments().filter(|tensor| !(self.out && tensor.written)).map(footprint))
    }

    pub(super) fn written(&self) -> Bytes {
        sum(self.outputs().map(footprint))
    }

    /// The type of the computation: that of the first floating-point tensor, else of the first tensor.
    pub(super) fn dtype(&self) -> Option<DType> {
        let types: Vec<DType> =
            self.arguments().chain(self.results()).filter_map(|tensor| tensor.dtype.dtype()).collect();
        types.iter().find(|dtype| is_floating(**dtype)).or(types.first()).copied()
    }
}

/// Bytes of memory behind a tensor: elements that a broadcast repeats (stride 0) count once.
pub(super) fn footprint(tensor: &Tensor) -> Bytes {
    let stored = |(size, stride): (&u64, &i64)| if *stride == 0 { (*size).min(1) } else { *size };
    let elements = tensor.sizes.iter().zip(&tensor.strides).map(stored).fold(1, u64::saturating_mul);
    Bytes(elements.saturating_mul(tensor.dtype.bytes()))
}

pub(super) fn sum(bytes: impl Iterator<Item = Bytes>) -> Bytes {
    Bytes(bytes.fold(0, |sum, Bytes(more)| sum.saturating_add(more)))
}

const fn is_floating(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::Bool
            | DType::UInt8
            | DType::Int8
            | DType::UInt16
            | DType::Int16
            | DType::UInt32
            | DType::Int32
            | DType::UInt64
            | DType::Int64
    )
}

/// A product of sizes; at most `u64::MAX`.
pub(super) fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |product, size| product.saturating_mul(*size))
}
