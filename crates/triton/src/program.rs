//! Owns what a kernel consists of once it is read: functions of blocks of instructions on numbered values.

use crate::float::{Math1, Math2};
use crate::print::Print;
use crate::value::{Data, Scalar, Type};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of a value in its function.
pub(crate) type Slot = usize;

/// A function, of which the kernel is one.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) parameters: Vec<(Slot, String, Type)>,
    pub(crate) body: Region,
    /// How many values it has.
    pub(crate) slots: usize,
}

/// Blocks, of which the first is where it begins.
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

/// Where it goes on behind a block.
#[derive(Debug)]
pub(crate) enum End {
    /// Behind the region, with these values.
    Leave(Vec<Slot>),
    /// Behind a loop, unless the first is true.
    Condition(Slot, Vec<Slot>),
    Branch(Target),
    Either(Slot, Target, Target),
}

/// A block of the same region, and what its parameters are.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) block: usize,
    pub(crate) arguments: Vec<Slot>,
}

#[derive(Debug)]
pub(crate) struct Instruction {
    /// As the text calls it.
    pub(crate) name: Box<str>,
    pub(crate) operation: Operation,
    pub(crate) operands: Vec<Slot>,
    pub(crate) results: Vec<Slot>,
    /// Of its first operand, if the text says it, and of its result; the same for most.
    pub(crate) from: Option<Type>,
    pub(crate) to: Option<Type>,
}

/// What an instruction does with its operands.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Nothing that shows in values.
    Nothing,
    /// All elements are true, or the kernel ends with these words.
    Assert(String),
    Print(Print),
    Constant(Arc<Data>),
    /// Number of the program in the grid, along an axis.
    Program(usize),
    /// Number of programs of the grid, along an axis.
    Programs(usize),
    /// Integers from here on.
    Range(i64),
    /// The elements as they are, in another shape; a scalar stands for all elements.
    Same,
    Integers(IntegerOp),
    Floats(Math2),
    Float(Math1),
    /// `a * b + c`.
    MultiplyAdd,
    /// Between a lower and an upper bound; of what is no number, the lower one or itself.
    Clamp {
        keeps_nan: bool,
    },
    Absolute,
    CompareIntegers(Comparison, Signed),
    CompareFloats(Comparison, Nan),
    Select,
    Cast(Cast),
    /// An address so many elements further, each of so many bytes.
    Advance(usize),
    /// Pointers, and maybe a mask and what stands in for masked elements.
    Load(Scalar),
    /// Pointers and values, and maybe a mask.
    Store(Scalar),
    /// Pointers and values, and maybe a mask; what was there before.
    Modify(Modification, Scalar),
    /// Pointers, what is expected there, and what is to be there; what was there before.
    Exchange(Scalar),
    Broadcast,
    /// Axes of the operand, in the order of the result's.
    Transpose(Vec<usize>),
    /// Two tensors as the last axis of one, and the other way round.
    Join,
    Split,
    /// One tensor behind the other.
    Concatenate,
    /// Elements by their index along an axis.
    Gather(usize),
    /// Products of matrices, added to a third.
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
    /// From, to, step, and what the region goes on with.
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
    /// Whether neither is NaN, and whether one is.
    Ordered,
    True,
}

/// Whether integers have a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signed(pub(crate) bool);

/// What a comparison with NaN says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nan(pub(crate) bool);

/// How a GPU multiplies numbers of single precision: here they are multiplied exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    Exact,
    /// By so many products of TF32.
    Tf32(u64),
    /// By so many products of bfloat16.
    BFloat16(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cast {
    /// Integers, with their sign or without.
    Extend,
    ExtendUnsigned,
    Truncate,
    /// From one floating type to another.
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

/// A kernel that can be carried out.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) entry: String,
    pub(crate) functions: BTreeMap<String, Function>,
}

impl Kernel {
    /// Its parameters in their order, as the text calls them, and the types of their values.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, Scalar)> {
        self.functions[&self.entry].parameters.iter().map(|(_, name, of)| (name.as_str(), of.scalar))
    }
}
