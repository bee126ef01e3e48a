//! Owns the parsed form of a kernel: functions of blocks of instructions on numbered values.

use crate::float::{Math1, Math2};
use crate::print::Print;
use crate::value::{Data, Scalar, Type};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of a value in its function.
pub(crate) type Slot = usize;

/// A function. The kernel is a function, too.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) parameters: Vec<(Slot, String, Type)>,
    pub(crate) body: Region,
    /// Number of values in the function.
    pub(crate) slots: usize,
}

/// Blocks; execution begins with the first.
#[derive(Debug, Default)]
pub(crate) struct Region {
    pub(crate) blocks: Vec<Block>,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) parameters: Vec<Slot>,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) end: End,
}

/// Successor of a block.
#[derive(Debug)]
pub(crate) enum End {
    /// The region ends with these values.
    Leave(Vec<Slot>),
    /// The loop ends with these values, unless the first slot is true.
    Condition(Slot, Vec<Slot>),
    Branch(Target),
    Either(Slot, Target, Target),
}

/// A block of the same region, and the arguments for its parameters.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) block: usize,
    pub(crate) arguments: Vec<Slot>,
}

#[derive(Debug)]
pub(crate) struct Instruction {
    /// The name in the text.
    pub(crate) name: Box<str>,
    pub(crate) operation: Operation,
    pub(crate) operands: Vec<Slot>,
    pub(crate) results: Vec<Slot>,
    /// Type of the first operand, if the text gives it; `to` is the result's type. Most operations have one type for
    /// both.
    pub(crate) from: Option<Type>,
    pub(crate) to: Option<Type>,
}

/// Operation of an instruction on its operands.
#[derive(Debug)]
pub(crate) enum Operation {
    /// No effect on values.
    Nothing,
    /// The kernel fails with this message unless all elements are true.
    Assert(String),
    Print(Print),
    Constant(Arc<Data>),
    /// Number of the program in the grid, along an axis.
    Program(usize),
    /// Number of programs of the grid, along an axis.
    Programs(usize),
    /// Consecutive integers from this one.
    Range(i64),
    /// The same elements in another shape; a scalar stands for all elements.
    Same,
    Integers(IntegerOp),
    Floats(Math2),
    Float(Math1),
    /// `a * b + c`.
    MultiplyAdd,
    /// Clamps to a lower and an upper bound; NaN becomes the lower bound, or stays NaN.
    Clamp {
        keeps_nan: bool,
    },
    Absolute,
    CompareIntegers(Comparison, Signed),
    CompareFloats(Comparison, Nan),
    Select,
    Cast(Cast),
    /// An address advanced by a number of elements of this many bytes.
    Advance(usize),
    /// Operands: pointers, optionally a mask and values for masked elements.
    Load(Scalar),
    /// Operands: pointers and values, optionally a mask.
    Store(Scalar),
    /// Operands: pointers and values, optionally a mask; returns the previous values.
    Modify(Modification, Scalar),
    /// Operands: pointers, expected values and new values; returns the previous values.
    Exchange(Scalar),
    Broadcast,
    /// Axes of the operand, in the order of the result's axes.
    Transpose(Vec<usize>),
    /// Joins two tensors along a new last axis; `Split` is the inverse.
    Join,
    Split,
    /// Concatenates two tensors.
    Concatenate,
    /// Gathers elements by their index along an axis.
    Gather(usize),
    /// A GEMM that is added to a third matrix.
    Dot {
        inner: Type,
        precision: Precision,
    },
    /// The region combines two values of each operand.
    Reduce {
        axis: usize,
        region: Region,
    },
    Scan {
        axis: usize,
        reverse: bool,
        region: Region,
    },
    If {
        then: Region,
        otherwise: Region,
    },
    /// Operands: first index, end, step, and the region's initial values.
    For {
        body: Region,
        is_unsigned: bool,
        bits: u32,
    },
    While {
        before: Region,
        after: Region,
    },
    Call(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntegerOp {
    Add,
    Subtract,
    Multiply,
    Divide,
    DivideUnsigned,
    DivideUp,
    DivideUpUnsigned,
    DivideDown,
    Remainder,
    RemainderUnsigned,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    ShiftRightUnsigned,
    Least,
    LeastUnsigned,
    Most,
    MostUnsigned,
    /// The upper half of the product.
    MultiplyHigh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
    /// Whether neither operand is NaN or, with `Nan(true)`, whether one is.
    Ordered,
    True,
}

/// Whether integers are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signed(pub(crate) bool);

/// Result of a comparison with NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nan(pub(crate) bool);

/// Precision of a GPU's single-precision GEMM: the interpreter multiplies exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    Exact,
    /// Number of TF32 GEMMs that a GEMM in this precision consists of.
    Tf32(u64),
    /// Number of bfloat16 GEMMs that a GEMM in this precision consists of.
    BFloat16(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cast {
    /// Sign extension of integers.
    Extend,
    ExtendUnsigned,
    Truncate,
    /// Conversion between floating-point types.
    Float,
    FromSigned,
    FromUnsigned,
    ToSigned,
    ToUnsigned,
    Bits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Modification {
    Integers(IntegerOp),
    AddFloats,
    Replace,
}

/// A kernel that can be executed.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) entry: String,
    pub(crate) functions: BTreeMap<String, Function>,
}

impl Kernel {
    /// Names and element types of the parameters, in order.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, Scalar)> {
        self.functions[&self.entry].parameters.iter().map(|(_, name, of)| (name.as_str(), of.scalar))
    }
}
