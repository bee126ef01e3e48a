//! Owns what a rank's process and the library of simulated GPUs (`crates/phantom`) say to each other: addresses of C functions and plain data.
//!
//! The library is preloaded, so the extension finds [`ATTACH`] in the process and calls it once in a rank, after the fork and before the
//! rank's program. Streams, events and graphs are numbers that the library gives, unique in the process and from 1; stream 0 is the legacy
//! default stream of the rank's own device.

use std::ffi::{c_char, c_int, c_void};
use uniference_sim::program::NcclSettings;

/// Of this interface. Both sides refuse another one.
pub const VERSION: u32 = 12;

/// The name of the function of the type [`Attach`].
pub const ATTACH: &str = "uniference_phantom_attach";

/// The variable that says how many devices NVML counts where no rank is attached: in the zygote, in which nothing may be initialised.
pub const DEVICES: &str = "UNIFERENCE_PHANTOM_DEVICES";

/// The variable that says what is preloaded where GPUs are simulated.
pub const PRELOAD: &str = "UNIFERENCE_PHANTOM_PRELOAD";

/// To PyTorch's profiler, which converts readings of the processor's counter, what is not less than this is a date: nanoseconds since 1970 and this. The counter
/// does not come so far, nor do dates.
pub const PROFILER_DATES: u64 = 1 << 62;

/// The library's file, beside the extension, and its name for the dynamic linker.
pub const LIBRARY: &str = "libuniference_phantom.so";

/// Names under which programs ask the dynamic linker for NVIDIA's libraries, CUDA 13's: the library stands for all of them.
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

/// The folder, beside what [`PRELOAD`] names, in which the libraries have [`SONAMES`] as files: for programs that open NVIDIA's libraries by the
/// paths that packages have them under (`python/uniference/rank/gpus.py`).
pub const NAMED: &str = "named";

/// Gives the process its devices. What the pointers point to is copied. Without a `link` everything completes at once, without a
/// `communication` there are no communicators.
/// 0: done; 1: of another version; 2: devices are attached already.
pub type Attach =
    unsafe extern "C" fn(devices: *const Devices, link: *const Link, communication: *const Communication) -> c_int;

/// The devices of a rank's host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Devices {
    /// Version of this interface: [`VERSION`].
    pub version: u32,
    /// Number of devices on the host, one for each of its ranks.
    pub count: u32,
    /// The rank's own: its `LOCAL_RANK`.
    pub own: u32,
    /// `count` of them.
    pub devices: *const Device,
    /// `count * count` bytes, a row for each device: 1 where it reaches the other one's memory.
    pub peers: *const u8,
}

/// A device, as NVIDIA's libraries describe it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// As the driver names it, ended by a zero byte.
    pub name: [c_char; 256],
    /// Compute capability, major and minor.
    pub capability: [u32; 2],
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory in all.
    pub memory: u64,
    /// Bytes of memory that a process's context takes.
    pub context: u64,
    /// Bytes per second of its memory.
    pub bandwidth: u64,
    /// Highest clock of the multiprocessors, in kHz.
    pub clock: u32,
    /// Clock of the memory, in kHz.
    pub memory_clock: u32,
    /// Width of the memory's bus, in bits.
    pub memory_bus: u32,
    /// Bytes of the second-level cache.
    pub l2: u64,
    /// PCI domain, bus and device.
    pub pci: [u32; 3],
    /// Identifier, unique in a run.
    pub uuid: [u8; 16],
}

/// What a launch is, besides its kernel: bits of `flags`.
pub mod flags {
    /// Inside of an operator. The library does not know: the log adds it.
    pub const INSIDE: u32 = 1;
    /// Costs the host no time, as a node of a graph.
    pub const FREE: u32 = 2;
}

/// The memories that a copy is from and to.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// From pageable memory of the host to the device.
    PageableToDevice = 0,
    /// From pinned memory of the host to the device.
    PinnedToDevice = 1,
    /// From the device to pageable memory of the host.
    DeviceToPageable = 2,
    /// From the device to pinned memory of the host.
    DeviceToPinned = 3,
    /// Within a device.
    Within = 4,
    /// Between two devices.
    Peer = 5,
    /// A value into memory of the device.
    Set = 6,
}

/// What [`Link::elapsed`] returns where there is no such time.
pub const NOT_ELAPSED: i64 = i64::MIN;

/// An event, and how often it was recorded.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// The number of the event in its process.
    pub event: u32,
    /// How often it was recorded, the last time included.
    pub records: u32,
}

/// Where the library writes down what the program launches, and whom it asks to wait. Functions may be called by any thread, and do not touch
/// the interpreter's lock.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Version of this interface: [`VERSION`].
    pub version: u32,
    /// A new stream: its number, its device and its priority (lower is more urgent).
    pub stream: extern "C" fn(stream: u32, device: u32, priority: i32),
    /// The number of the kernel of this name, UTF-8: always the same, from 1.
    pub kernel: unsafe extern "C" fn(name: *const u8, length: usize) -> u32,
    /// A kernel starts on a stream; `bytes` of its arguments if known, else 0.
    pub launch: extern "C" fn(kernel: u32, stream: u32, flags: u32, bytes: u64),
    /// A copy ([`CopyKind`]) starts on a stream.
    pub copy: extern "C" fn(stream: u32, kind: u32, bytes: u64, flags: u32),
    /// The event happens when what is on the stream so far has ended.
    pub record: extern "C" fn(event: u32, stream: u32),
    /// What comes on the stream waits for the event, as recorded last.
    pub wait_event: extern "C" fn(stream: u32, event: u32),
    /// On a stream that is captured: the event, which is outside of the graph, happens whenever the graph is launched.
    pub external_record: extern "C" fn(event: u32, stream: u32),
    /// On a stream that is captured: what comes on it waits for the event, which is outside of the graph, whenever the graph is launched.
    pub external_wait: extern "C" fn(stream: u32, event: u32),
    /// What comes on the stream belongs to the graph; with `graph` 0 no longer.
    pub capture: extern "C" fn(stream: u32, graph: u32),
    /// All of the graph starts on a stream; if there are calls in it ([`Link::captured_call`]), up to the first.
    pub graph_launch: extern "C" fn(graph: u32, stream: u32),
    /// A call of a communicator on a stream that is captured, which the library makes whenever the graph is launched. `with_previous`: 1 if it starts
    /// with the one before it; else 0.
    pub captured_call: extern "C" fn(stream: u32, with_previous: u32),
    /// The next calls of a graph that was launched on the stream have been made: what is behind them starts, up to the next ones.
    pub graph_resume: extern "C" fn(graph: u32, stream: u32),
    /// A function of the host starts on a stream.
    pub host_function: extern "C" fn(stream: u32),
    /// The process uses a device, by its number among [`Devices::devices`], for the first time. 1: it is the process's own from here on; else 0.
    pub uses: extern "C" fn(device: u32) -> c_int,
    /// Returns in virtual time when the stream is empty.
    pub synchronize_stream: extern "C" fn(stream: u32),
    /// Returns when the event, as recorded last, has happened; it was recorded so many times.
    pub synchronize_event: extern "C" fn(event: u32, records: u32),
    /// Returns when all streams of the device are empty.
    pub synchronize_device: extern "C" fn(device: u32),
    /// Whether the stream is empty: 1, else 0.
    pub query_stream: extern "C" fn(stream: u32) -> c_int,
    /// Whether the event has happened, as recorded last of so many times: 1, else 0.
    pub query_event: extern "C" fn(event: u32, records: u32) -> c_int,
    /// Nanoseconds between two events, as recorded last of so many times; negative if the second one was first, and [`NOT_ELAPSED`] if not both have
    /// happened.
    pub elapsed: extern "C" fn(start: Recorded, end: Recorded) -> i64,
    /// What this thread hands to a stream next, by `launch`, `copy` or `graph_launch`, has this number: of what is captured into a graph always, of the rest
    /// where somebody wants to know when it was. Numbers are from 1, unique in the process.
    pub number: extern "C" fn(number: u64),
    /// Calls `take` with times of what has numbers, `data` and how many there are, some times or never: of what has ended, and was not told before.
    pub times: extern "C" fn(take: TakeTimes, data: *mut c_void),
    /// A message for the rank's log and the run's warnings, UTF-8. The library says each once.
    pub warn: unsafe extern "C" fn(text: *const u8, length: usize),
    /// Announces that this thread is about to launch a kernel that the program or one of its libraries has registered
    /// under this UTF-8 name. Returns 1 if no PyTorch operator launches the kernel, else 0; the output of such a kernel
    /// is not computed.
    pub launches: unsafe extern "C" fn(name: *const u8, length: usize) -> c_int,
}

/// The type of the callback of [`Link::times`].
pub type TakeTimes = extern "C" fn(data: *mut c_void, times: *const Times, count: usize);

/// When something on a stream was. Dates are nanoseconds since 1970, as the rank's clock shows them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Number of the launch; of a node of a graph, that of the graph's launch.
    pub launch: u64,
    /// The node's number, as it was captured; else 0.
    pub node: u64,
    /// When the device began it.
    pub began: u64,
    /// When the device had completed it.
    pub ended: u64,
}

/// An operation of a communicator.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // NCCL's names
pub enum Operation {
    AllReduce = 0,
    Reduce = 1,
    Broadcast = 2,
    AllGather = 3,
    ReduceScatter = 4,
    AllToAll = 5,
    Gather = 6,
    Scatter = 7,
    Send = 8,
    Recv = 9,
}

/// A call of a communicator, as one member makes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Number of the operation, as in [`Operation`].
    pub operation: u32,
    /// The group, as [`Communication::group`] has named it.
    pub group: u32,
    /// `ncclDataType_t`.
    pub dtype: u32,
    /// `ncclRedOp_t`: sum, product, maximum or minimum; what has a factor is a sum.
    pub reduction: u32,
    /// The root, or whom a message is for or from; -1: there is none.
    pub peer: i32,
    /// The calling member's place in the group.
    pub me: i32,
    /// 1: data moves; 0: only its size does.
    pub has_values: u32,
    /// Elements as NCCL counts them: of an all-gather, gather and all-to-all what each member sends another, else what it receives.
    pub elements: u64,
    /// Where what is sent lies, and how long it is.
    pub input: usize,
    /// Size of the input in bytes.
    pub input_bytes: u64,
    /// The stream that the call is on.
    pub stream: u32,
    /// 0: it starts with the call before it on the stream, being of the same group of calls.
    pub first: u32,
    /// As of [`Link::number`]; 0: nobody wants to know when it was.
    pub number: u64,
    /// What carries it out: 0 is NCCL, 1 a kernel of the program's that reads other GPUs' memory in one shot, 2 one that does so in two.
    pub kernel: u32,
}

/// How the library communicates. Functions block in virtual time where they say so.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Communication {
    /// Version of this interface: [`VERSION`].
    pub version: u32,
    /// The rank, of the world, whose member the process is in communicators of a device, by its number among [`Devices::devices`].
    pub rank: extern "C" fn(device: u32) -> u32,
    /// Whether communication of `elements` elements of the type `dtype` (`ncclDataType_t`) moves only their size, and no
    /// data: 1, else 0. It is `uniference_capture_is_large` of `cpp/capture.cpp`.
    pub is_large: extern "C" fn(elements: u64, dtype: u32) -> c_int,
    /// Sets a key of the store that all ranks share.
    pub publish: unsafe extern "C" fn(key: *const u8, key_length: usize, value: *const u8, length: usize),
    /// Reads a key, once it is there: as many bytes as the value has, or there is room for.
    pub look_up: unsafe extern "C" fn(key: *const u8, key_length: usize, value: *mut u8, room: usize),
    /// Names a group of ranks of the world, in this order, or returns [`Communication::REFUSED`]. `settings` points to
    /// the NCCL settings that the program makes for the group, or is null if the program makes none.
    pub group: unsafe extern "C" fn(ranks: *const u32, count: usize, settings: *const NcclSettings) -> u32,
    /// Starts a call, whose input is copied, and names it, or says [`Communication::REFUSED`].
    pub issue: unsafe extern "C" fn(call: *const Call) -> u32,
    /// Waits for a call to end, and copies its output, if it has not failed. Nobody asks for it again. `has_ended`: 1 if the caller knows that
    /// it has ended; else 0.
    pub deliver: extern "C" fn(handle: u32, to: usize, bytes: u64, has_ended: c_int),
    /// Nobody asks for a call any more.
    pub forget: extern "C" fn(handle: u32),
    /// Ends what is outstanding in a group.
    pub abort: extern "C" fn(group: u32),
    /// Whether a call in the group has failed, as another rank has closed its connection: 1, else 0.
    pub has_failed: extern "C" fn(group: u32) -> c_int,
    /// Multiplies elements (`ncclDataType_t`) by a factor, in the precision of their type.
    pub scale: extern "C" fn(dtype: u32, at: usize, bytes: u64, factor: f64),
}

impl Communication {
    /// The name that stands for a refused call.
    pub const REFUSED: u32 = u32::MAX;
}
