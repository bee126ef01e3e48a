//! Owns the functions of the C++ library (`cpp/capture.cpp`) that the extension module calls, as one table.

/// Functions by which work on streams of simulated GPUs enters the stream of operators. Streams, events, graphs and
/// kernels are numbers; [`crate::gpus::Link`] documents each function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Launches {
    pub kernel: unsafe extern "C" fn(name: *const u8, length: usize) -> u32,
    pub launch: extern "C" fn(kernel: u32, stream: u32, flags: u32, bytes: u64),
    pub copy: extern "C" fn(stream: u32, kind: u32, bytes: u64, flags: u32),
    pub record: extern "C" fn(event: u32, stream: u32),
    pub wait_event: extern "C" fn(stream: u32, event: u32),
    pub external_record: extern "C" fn(event: u32, stream: u32),
    pub external_wait: extern "C" fn(stream: u32, event: u32),
    pub capture: extern "C" fn(stream: u32, graph: u32),
    pub graph_launch: extern "C" fn(graph: u32, stream: u32),
    pub captured_call: extern "C" fn(stream: u32, with_previous: u32),
    pub graph_resume: extern "C" fn(graph: u32, stream: u32),
    pub host_function: extern "C" fn(stream: u32),
    pub number: extern "C" fn(number: u64),
    /// Number of the operator that this thread runs, from 1; 0 outside of operators.
    pub running_operator: extern "C" fn() -> u64,
    /// Whether no operator launches the kernel: 1, else 0.
    pub launches: unsafe extern "C" fn(name: *const u8, length: usize) -> i32,
}

/// The C++ library's functions. Its exported function `uniference_capture_functions` returns their address, which stays
/// valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    /// [`crate::CAPTURE_VERSION`].
    pub version: u32,
    /// Hands over the entries that this thread and the dictionary have gained since the last call; the bytes stay valid
    /// until the thread's next call. Returns the capture's own time on this thread since then in nanoseconds.
    pub take: unsafe extern "C" fn(data: *mut *const u8, length: *mut usize) -> u64,
    /// Begins (1) or ends (-1) work of the simulator on this thread, which is not captured.
    pub inside: extern "C" fn(change: i32),
    /// Begins the capture on a new thread of the program.
    pub thread: extern "C" fn(),
    /// Number of the log to which this thread writes; `written`: whether the log has entries.
    pub log: unsafe extern "C" fn(written: *mut i32) -> u64,
    /// Whether this thread compiles the program: 1, else 0.
    pub is_compiling: extern "C" fn() -> i32,
    /// Combines `bytes` bytes of elements with others in place, by torch's kernels. `reduction` and `dtype` are numbers of
    /// `c10d::ReduceOp::RedOpType` and `c10::ScalarType`.
    pub combine: extern "C" fn(reduction: u32, dtype: u32, into: usize, from: usize, bytes: u64),
    /// Multiplies elements by a factor in the precision of their type; integers are rounded towards zero.
    pub scale: extern "C" fn(dtype: u32, at: usize, bytes: u64, factor: f64),
    /// Whether communication of `elements` elements of a type moves only their size, and no data: 1, else 0.
    pub is_large: extern "C" fn(elements: u64, dtype: u32) -> i32,
    /// The program's line that this thread executes as UTF-8, which stays valid; empty outside of the program.
    pub site: unsafe extern "C" fn(data: *mut *const u8, length: *mut usize),
    /// Functions for work on streams.
    pub launches: Launches,
}
