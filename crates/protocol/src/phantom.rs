//! Owns what a rank's process and the library of simulated GPUs (`crates/phantom`) say to each other: addresses of C functions and plain data.
//!
//! The library is preloaded, so the extension finds [`ATTACH`] in the process and calls it once in a rank, after the fork and before the
//! rank's program. Streams, events and graphs are numbers that the library gives, unique in the process and from 1; stream 0 is the legacy
//! default stream of the rank's own device.

use std::ffi::{c_char, c_int};

/// Of this interface. Both sides refuse another one.
pub const VERSION: u32 = 1;

/// The name of the function of the type [`Attach`].
pub const ATTACH: &str = "uniference_phantom_attach";

/// The variable that says how many devices NVML counts where no rank is attached: in the zygote, in which nothing may be initialised.
pub const DEVICES: &str = "UNIFERENCE_PHANTOM_DEVICES";

/// The library's file, beside the extension, and its name for the dynamic linker.
pub const LIBRARY: &str = "libuniference_phantom.so";

/// Names under which programs ask the dynamic linker for NVIDIA's libraries, CUDA 13's: the library stands for all of them.
pub const SONAMES: [&str; 14] = [
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudart.so.13",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcupti.so.13",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvshmem_host.so.3",
];

/// Gives the process its devices. What `devices` and `link` point to is copied; `link` may be null: then everything completes at once.
/// 0: done; 1: of another version; 2: devices are attached already.
pub type Attach = unsafe extern "C" fn(devices: *const Devices, link: *const Link) -> c_int;

/// The devices of a rank's host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Devices {
    /// [`VERSION`].
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

/// One device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// As the driver names it, ended by a zero byte.
    pub name: [c_char; 256],
    /// Compute capability, major and minor.
    pub capability: [u32; 2],
    /// Streaming multiprocessors.
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

/// What a copy moves.
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

/// Where the library writes down what the program launches, and whom it asks to wait. Functions may be called by any thread, and do not touch
/// the interpreter's lock.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// [`VERSION`].
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
    /// What comes on the stream belongs to the graph; with `graph` 0 no longer.
    pub capture: extern "C" fn(stream: u32, graph: u32),
    /// All of the graph starts on a stream.
    pub graph_launch: extern "C" fn(graph: u32, stream: u32),
    /// A function of the host starts on a stream.
    pub host_function: extern "C" fn(stream: u32),
    /// Returns in virtual time when the stream is empty.
    pub synchronize_stream: extern "C" fn(stream: u32),
    /// Returns when the event, as recorded last, has happened.
    pub synchronize_event: extern "C" fn(event: u32),
    /// Returns when all streams of the device are empty.
    pub synchronize_device: extern "C" fn(device: u32),
    /// Whether the stream is empty: 1, else 0.
    pub query_stream: extern "C" fn(stream: u32) -> c_int,
    /// Whether the event has happened: 1, else 0.
    pub query_event: extern "C" fn(event: u32) -> c_int,
    /// Nanoseconds between two events that have happened; negative if the second one was first.
    pub elapsed: extern "C" fn(start: u32, end: u32) -> i64,
    /// A message for the rank's log and the run's warnings, UTF-8. The library says each once.
    pub warn: unsafe extern "C" fn(text: *const u8, length: usize),
}
