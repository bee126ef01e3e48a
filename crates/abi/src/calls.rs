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

/// A call of a process group, as one member makes it.
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
    /// The carrier of a call on a stream: 0 NCCL; 1 a kernel of the program that reads other GPUs' memory in one shot; 2 one
    /// that does so in two.
    pub kernel: u32,
    /// Number of elements that each member sends to each other member (all-gather, gather, all-to-all), or that each member
    /// receives (other operations).
    pub elements: u64,
    /// Data that this member sends.
    pub input: Memory,
    /// Memory for data that this member receives; empty for calls on streams, whose output is copied by
    /// [`crate::gpus::Communication::deliver`].
    pub output: Memory,
    /// The program's line of a call that its caller waits for; empty for calls on streams.
    pub site: Text,
    /// Timeout in picoseconds of a call that its caller waits for, or [`NO_TIMEOUT`].
    pub timeout: u64,
    /// Number of the stream of a call on a stream.
    pub stream: u32,
    /// 0: the call starts with the previous call on its stream, as both belong to one group of calls; else 1.
    pub first: u32,
    /// The launch's number, as in [`crate::gpus::Link::number`]; 0: its times are not needed.
    pub number: u64,
}

impl Call {
    /// A call of a group without data.
    pub const fn new(operation: Operation, group: u32) -> Call {
        const NOTHING: Memory = Memory { address: 0, bytes: 0 };
        Call {
            operation: operation as u8,
            dtype: 0,
            reduction: NO_REDUCTION,
            has_values: 0,
            group,
            peer: -1,
            kernel: 0,
            elements: 0,
            input: NOTHING,
            output: NOTHING,
            site: Text { data: std::ptr::null(), length: 0 },
            timeout: NO_TIMEOUT,
            stream: 0,
            first: 1,
            number: 0,
        }
    }
}

// SAFETY: the pointers of a call are to memory of the process, which any thread may read.
#[allow(unsafe_code)]
unsafe impl Send for Call {}
// SAFETY: the same; nothing is changed through them.
#[allow(unsafe_code)]
unsafe impl Sync for Call {}

/// The result of a collective that its caller waits for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The collective is complete, and its data has been delivered.
    Complete = 0,
    /// The collective has ended otherwise; the Python backend reports how.
    Report = 1,
    /// Nothing has happened; the Python backend carries the collective out.
    Decline = 2,
}
