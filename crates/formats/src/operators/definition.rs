//! Owns the definition of an operator: its name, and its arguments and results without tensor values. Two executions
//! with equal definitions do the same work.

use uniference_sim::program::DType;

/// An operator with the types of its arguments and results.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Definition {
    /// `aten::add.Tensor`; without an overload `aten::mm`.
    pub name: String,
    /// The arguments, in the order of the operator's schema; [`Argument::Names`] may follow.
    pub arguments: Vec<Argument>,
    /// The results, in the order of the operator's schema: tensors, lists of tensors, or numbers.
    pub results: Vec<Argument>,
}

impl Definition {
    /// Tensors of the arguments in order, lists flattened, then the tensors of the results. An execution has an
    /// allocation for each of them.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.arguments.iter().chain(&self.results).flat_map(Argument::tensors)
    }

    /// Names of the arguments by the operator's schema, in order; `None`: they were not recorded.
    pub fn argument_names(&self) -> Option<impl Iterator<Item = &str>> {
        let Some(Argument::Names(names)) = self.arguments.last() else { return None };
        Some(names.split(',').filter(|name| !name.is_empty()))
    }

    /// The name without namespace and overload: `add` of `aten::add.Tensor`.
    pub fn base_name(&self) -> &str {
        let name = self.name.split_once("::").map_or(&*self.name, |(_, name)| name);
        name.split_once('.').map_or(name, |(name, _)| name)
    }
}

/// An argument or a result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Argument {
    /// `None`, or an optional argument that was left out.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer; of views [`Argument::Other`].
    Int(i64),
    /// A floating-point number, whatever its value.
    Float,
    /// A string.
    Text(String),
    /// A list of integers, or of flags as 0 and 1; of views [`Argument::Other`].
    Ints(Vec<i64>),
    /// A tensor: its type, sizes and place.
    Tensor(Tensor),
    /// A list of tensors, some of which may be missing.
    Tensors(Vec<Option<Tensor>>),
    /// Anything else: a device, a generator, numbers that are no integers.
    Other,
    /// Names of the arguments before it by the operator's schema, separated by commas: the last argument of operators
    /// that are not part of torch. Streams of older versions lack it.
    Names(String),
}

impl Argument {
    /// Tensors of the argument, in order.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let (one, several) = match self {
            Argument::Tensor(tensor) => (Some(tensor), &[][..]),
            Argument::Tensors(tensors) => (None, &tensors[..]),
            _ => (None, &[][..]),
        };
        one.into_iter().chain(several.iter().flatten())
    }
}

/// A tensor without its values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tensor {
    /// The type of the tensor's elements.
    pub dtype: ScalarType,
    /// The memory that contains the tensor.
    pub place: Place,
    /// Whether the operator writes to the tensor.
    pub written: bool,
    /// Elements along each dimension.
    pub sizes: Vec<u64>,
    /// Elements from one index to the next along each dimension.
    pub strides: Vec<i64>,
}

impl Tensor {
    /// Number of elements; at most `u64::MAX`.
    pub fn elements(&self) -> u64 {
        self.sizes.iter().fold(1, |product, size| product.saturating_mul(*size))
    }

    /// Size of all elements in bytes, without gaps between them in memory; at most `u64::MAX`.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.bytes())
    }

    /// Whether its elements lie in memory in the order of their indices, without gaps.
    pub fn is_contiguous(&self) -> bool {
        if self.sizes.contains(&0) {
            return true;
        }
        let mut expected = 1_i64;
        for (size, stride) in self.sizes.iter().zip(&self.strides).rev() {
            if *size > 1 && *stride != expected {
                return false;
            }
            expected = expected.saturating_mul(i64::try_from(*size).unwrap_or(i64::MAX));
        }
        true
    }
}

/// The type of a tensor's elements, by its number in torch (`c10/core/ScalarType.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScalarType(pub u8);

impl ScalarType {
    /// The equivalent type of process groups; `None`: the type is quantised, or its elements have less than a byte.
    pub fn dtype(self) -> Option<DType> {
        DType::from_number(self.0)
    }

    /// Bytes of one element, as in torch's `elementSize`: elements of less than a byte are packed, and torch counts
    /// packages.
    pub fn bytes(self) -> u64 {
        match (self.dtype(), self.0) {
            (Some(dtype), _) => dtype.size(),
            // qint32
            (None, 14) => 4,
            // bits16
            (None, 22) => 2,
            // qint8, quint8, quint4x2, quint2x4, the other bits, int1 to int7 and uint1 to uint7, float8_e8m0fnu, float4_e2m1fn_x2
            (None, _) => 1,
        }
    }
}

impl From<DType> for ScalarType {
    fn from(dtype: DType) -> ScalarType {
        ScalarType(dtype.number())
    }
}

/// Device type of a tensor's memory, by its number in torch (`c10/core/DeviceType.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u8);

impl Place {
    /// The CPU's memory.
    pub const CPU: Place = Place(0);
    /// A GPU's memory.
    pub const CUDA: Place = Place(1);
    /// No memory: a tensor of the meta device.
    pub const META: Place = Place(14);
}
