//! Owns the interface between a rank's process and the library of simulated GPUs (`crates/phantom`): addresses of C
//! functions and plain data.
//!
//! The library is preloaded: the extension finds [`ATTACH`] in the process and calls it once in a rank, after the fork
//! and before the rank's program. The library assigns the numbers of streams, events and graphs, unique in the process
//! and from 1; stream 0 is the legacy default stream of the rank's own device.

use crate::calls::Call;
use std::ffi::{c_char, c_int, c_void};
use uniference_sim::program::NcclSettings;

/// The name of the function of the type [`Attach`].
pub const ATTACH: &str = "uniference_phantom_attach";

/// Environment variable with the number of devices that NVML reports if no rank is attached: in the zygote, in which
/// nothing may be initialised.
pub const DEVICES: &str = "UNIFERENCE_PHANTOM_DEVICES";

/// Environment variable with the path of the preloaded library if GPUs are simulated.
pub const PRELOAD: &str = "UNIFERENCE_PHANTOM_PRELOAD";

/// Offset that marks dates for PyTorch's profiler, which converts readings of the CPU's time-stamp counter: a value of
/// at least this offset is a date, in nanoseconds since 1970 plus the offset. Neither the counter nor dates reach this
/// value.
pub const PROFILER_DATES: u64 = 1 << 62;

/// File name of the library, which is next to the extension, and its name for the dynamic linker.
pub const LIBRARY: &str = "libuniference_phantom.so";

/// Names under which programs load NVIDIA's libraries (CUDA 13); the simulated library replaces all of them.
pub const SONAMES: [&str; 15] = [
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudart.so.13",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcupti.so.13",
    "libcurand.so.10",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvshmem_host.so.3",
];

/// Folder next to the file in [`PRELOAD`] that contains files named as [`SONAMES`], for programs that open NVIDIA's
/// libraries by their paths in packages (`python/uniference/rank/gpus.py`).
pub const NAMED: &str = "named";

/// Gives the process its devices. The data behind the pointers is copied. Without a `link`, all work completes at once;
/// without a `communication`, there are no communicators.
/// 0: done; 1: another version; 2: devices are attached already.
pub type Attach =
    unsafe extern "C" fn(devices: *const Devices, link: *const Link, communication: *const Communication) -> c_int;

/// The devices of a rank's host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Devices {
    /// Version of this interface: [`crate::VERSION`].
    pub version: u32,
    /// Number of devices on the host, one for each of its ranks.
    pub count: u32,
    /// Index of the rank's own device: its `LOCAL_RANK`.
    pub own: u32,
    /// Array of `count` devices.
    pub devices: *const Device,
    /// Matrix of `count * count` bytes, a row for each device: 1 if the device reaches the other one's memory.
    pub peers: *const u8,
}

/// A device, as NVIDIA's libraries describe it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Name of the device in the NVIDIA driver, ended by a zero byte.
    pub name: [c_char; 256],
    /// Compute capability, major and minor.
    pub capability: [u32; 2],
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Total bytes of memory.
    pub memory: u64,
    /// Bytes of memory that a process's context occupies.
    pub context: u64,
    /// Memory bandwidth, in bytes per second.
    pub bandwidth: u64,
    /// Highest clock of the multiprocessors, in kHz.
    pub clock: u32,
    /// Clock of the memory, in kHz.
    pub memory_clock: u32,
    /// Width of the memory's bus, in bits.
    pub memory_bus: u32,
    /// Bytes of the L2 cache.
    pub l2: u64,
    /// PCI domain, bus and device.
    pub pci: [u32; 3],
    /// Identifier, unique in a run.
    pub uuid: [u8; 16],
}

/// Result of [`Link::elapsed`] if one of the events has not happened.
pub const NOT_ELAPSED: i64 = i64::MIN;

/// An event and the number of its records.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// The number of the event in its process.
    pub event: u32,
    /// Number of records, including the last one.
    pub records: u32,
}

/// Functions by which the library reports the program's launches and waits. Any thread may call them; they do not touch
/// Python's GIL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Version of this interface: [`crate::VERSION`].
    pub version: u32,
    /// A new stream: its number, its device and its priority (lower is more urgent).
    pub stream: extern "C" fn(stream: u32, device: u32, priority: i32),
    /// Number of the kernel of this UTF-8 name: the same at each call, from 1.
    pub kernel: unsafe extern "C" fn(name: *const u8, length: usize) -> u32,
    /// A kernel starts on a stream; `bytes`: size of its arguments if known, else 0.
    pub launch: extern "C" fn(kernel: u32, stream: u32, flags: u32, bytes: u64),
    /// A copy ([`crate::entries::CopyKind`]) starts on a stream.
    pub copy: extern "C" fn(stream: u32, kind: u32, bytes: u64, flags: u32),
    /// The event happens when all earlier work on the stream has ended.
    pub record: extern "C" fn(event: u32, stream: u32),
    /// Later work on the stream waits for the event's latest record.
    pub wait_event: extern "C" fn(stream: u32, event: u32),
    /// On a stream in capture: the event, which is outside the graph, happens at each launch of the graph.
    pub external_record: extern "C" fn(event: u32, stream: u32),
    /// On a stream in capture: later work on the stream waits for the event, which is outside the graph, at each launch
    /// of the graph.
    pub external_wait: extern "C" fn(stream: u32, event: u32),
    /// Later work on the stream is captured into the graph; `graph` 0 ends the capture.
    pub capture: extern "C" fn(stream: u32, graph: u32),
    /// The graph starts on a stream, up to its first communicator call ([`Link::captured_call`]) if it has one.
    pub graph_launch: extern "C" fn(graph: u32, stream: u32),
    /// A communicator call on a stream in capture, which the library makes at each launch of the graph.
    /// `with_previous`: 1 if it starts together with the call before it; else 0.
    pub captured_call: extern "C" fn(stream: u32, with_previous: u32),
    /// The next calls of a graph launched on the stream have been made: the nodes behind them start, up to the next
    /// calls.
    pub graph_resume: extern "C" fn(graph: u32, stream: u32),
    /// A function of the host starts on a stream.
    pub host_function: extern "C" fn(stream: u32),
    /// The process uses a device, by its index in [`Devices::devices`], for the first time. 1: it is the process's own
    /// device from now on; else 0.
    pub uses: extern "C" fn(device: u32) -> c_int,
    /// Waits in virtual time until the stream is empty.
    pub synchronize_stream: extern "C" fn(stream: u32),
    /// Waits until the event has happened, counting from its record number `records`.
    pub synchronize_event: extern "C" fn(event: u32, records: u32),
    /// Waits until all streams of the device are empty.
    pub synchronize_device: extern "C" fn(device: u32),
    /// Whether the stream is empty: 1, else 0.
    pub query_stream: extern "C" fn(stream: u32) -> c_int,
    /// Whether the event has happened, counting from its record number `records`: 1, else 0.
    pub query_event: extern "C" fn(event: u32, records: u32) -> c_int,
    /// Nanoseconds between two recorded events; negative if the second one was first, and [`NOT_ELAPSED`] if one of
    /// them has not happened.
    pub elapsed: extern "C" fn(start: Recorded, end: Recorded) -> i64,
    /// Number of this thread's next work on a stream (`launch`, `copy` or `graph_launch`): set for all work that is
    /// captured into a graph, else only if its times are wanted. Numbers start at 1 and are unique in the process.
    pub number: extern "C" fn(number: u64),
    /// Calls `take` any number of times, with `data`, an array of times and its length: the numbered work that has
    /// ended and was not reported before.
    pub times: extern "C" fn(take: TakeTimes, data: *mut c_void),
    /// Warning for the rank's log and the run's warnings, UTF-8. The library sends each text once.
    pub warn: unsafe extern "C" fn(text: *const u8, length: usize),
    /// Announces that this thread is about to launch a kernel that the program or one of its libraries has registered
    /// under this UTF-8 name. Returns 1 if no PyTorch operator launches the kernel, else 0; the output of such a kernel
    /// is not computed.
    pub launches: unsafe extern "C" fn(name: *const u8, length: usize) -> c_int,
}

/// The type of the callback of [`Link::times`].
pub type TakeTimes = extern "C" fn(data: *mut c_void, times: *const Times, count: usize);

/// Times of work on a stream. Dates are nanoseconds since 1970, by the rank's clock.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Number of the launch; for a node of a graph, number of the graph's launch.
    pub launch: u64,
    /// The node's number from its capture; else 0.
    pub node: u64,
    /// Time at which the device began the work.
    pub began: u64,
    /// Time at which the device had completed the work.
    pub ended: u64,
}

/// Functions by which the library communicates. A function blocks in virtual time only if its description says so.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Communication {
    /// Version of this interface: [`crate::VERSION`].
    pub version: u32,
    /// Rank of the world as which the process is a member in communicators of a device (index in [`Devices::devices`]).
    pub rank: extern "C" fn(device: u32) -> u32,
    /// Whether communication of `elements` elements of a type (`c10::ScalarType`) moves only their size, and no
    /// data: 1, else 0. It is a function of the C++ library.
    pub is_large: extern "C" fn(elements: u64, dtype: u32) -> c_int,
    /// Sets a key of the store that all ranks share.
    pub publish: unsafe extern "C" fn(key: *const u8, key_length: usize, value: *const u8, length: usize),
    /// Reads a key, once it exists: as many bytes as the value has, at most `room`.
    pub look_up: unsafe extern "C" fn(key: *const u8, key_length: usize, value: *mut u8, room: usize),
    /// Names a group of ranks of the world, in this order, or returns [`Communication::REFUSED`]. `settings` points to
    /// the NCCL settings that the program makes for the group, or is null if the program makes none.
    pub group: unsafe extern "C" fn(ranks: *const u32, count: usize, settings: *const NcclSettings) -> u32,
    /// Starts a call, whose input is copied. Returns the call's number, or [`Communication::REFUSED`].
    pub issue: unsafe extern "C" fn(call: *const Call) -> u32,
    /// Waits for a call to end, and copies its output, if it has not failed. The call's number is invalid afterwards.
    /// `has_ended`: 1 if the caller knows that the call has ended; else 0.
    pub deliver: extern "C" fn(handle: u32, to: usize, bytes: u64, has_ended: c_int),
    /// Drops a call whose result is no longer needed.
    pub forget: extern "C" fn(handle: u32),
    /// Ends the outstanding calls of a group.
    pub abort: extern "C" fn(group: u32),
    /// Whether a call in the group has failed because another rank has closed its connection: 1, else 0.
    pub has_failed: extern "C" fn(group: u32) -> c_int,
    /// Multiplies elements (`c10::ScalarType`) by a factor, in the precision of their type.
    pub scale: extern "C" fn(dtype: u32, at: usize, bytes: u64, factor: f64),
}

impl Communication {
    /// Number that stands for a refused call.
    pub const REFUSED: u32 = u32::MAX;
}
