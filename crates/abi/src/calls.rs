//! Owns a call of a process group, as one member makes it. Types of elements are numbers of `c10::ScalarType`, reductions
//! of `c10d::ReduceOp::RedOpType`.

use std::slice::from_raw_parts;
use std::str::Utf8Error;

/// The operation of a call. Collectives have the numbers of `uniference_sim::program::CollectiveKind`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // torch's and NCCL's names
pub enum Operation {
    AllReduce = 0,
    Reduce = 1,
    Broadcast = 2,
    AllGather = 3,
    ReduceScatter = 4,
    AllToAll = 5,
    Gather = 6,
    Scatter = 7,
    Barrier = 8,
    Send = 9,
    Recv = 10,
}

/// [`Call::reduction`] of an operation that does not reduce.
pub const NO_REDUCTION: u8 = 255;

/// [`Call::timeout`] of a call without a timeout.
pub const NO_TIMEOUT: u64 = u64::MAX;

/// UTF-8 text that the caller owns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// Address of the first byte.
    pub data: *const u8,
    /// Number of bytes.
    pub length: usize,
}

impl Text {
    /// The text.
    ///
    /// # Errors
    /// If the bytes are not UTF-8.
    ///
    /// # Safety
    /// `data` points to `length` bytes that stay unchanged for `'a`, or `length` is 0.
    #[allow(unsafe_code)]
    pub unsafe fn get<'a>(self) -> Result<&'a str, Utf8Error> {
        // SAFETY: the caller promises that `data` points to `length` unchanged bytes.
        std::str::from_utf8(if self.length == 0 { &[] } else { unsafe { from_raw_parts(self.data, self.length) } })
    }
}

/// Memory of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Address of the first byte.
    pub address: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// A call of a process group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Number of the operation: [`Operation`].
    pub operation: u8,
    /// Type of an element.
    pub dtype: u8,
    /// The reduction, or [`NO_REDUCTION`].
    pub reduction: u8,
    /// Whether this member's input moves data (1) or only its size (0).
    pub has_values: u8,
    /// Number of the group.
    pub group: u32,
    /// The root, or the peer of a message, as a member of the group; -1 if the operation has none.
    pub peer: i32,
    /// Number of elements that each member sends to each other member (all-gather, gather, all-to-all), or that each member
    /// receives (other operations).
    pub elements: u64,
    /// Data that this member sends.
    pub input: Memory,
    /// Memory for data that this member receives.
    pub output: Memory,
}

/// A collective for which its caller waits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlockingCall {
    /// The collective.
    pub call: Call,
    /// The program's line.
    pub site: Text,
    /// Timeout in picoseconds, or [`NO_TIMEOUT`].
    pub timeout: u64,
}

/// The result of a [`BlockingCall`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The collective is complete, and its data has been delivered.
    Complete = 0,
    /// The collective has ended otherwise; the Python backend reports how.
    Report = 1,
    /// Nothing has happened; the Python backend carries the collective out.
    Decline = 2,
}
