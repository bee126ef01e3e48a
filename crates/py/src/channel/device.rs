//! Owns the link of the library of simulated GPUs: addresses by which what it launches is written down (`cpp/launches.h`), and by which it asks
//! this rank's client.

// The functions are called by a library in C's way, which passes addresses.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::slice::from_raw_parts;
use std::sync::{Arc, OnceLock};
use uniference_client::{Client, ticks};
use uniference_interpose::EPOCH_S;
use uniference_protocol::messages::DeviceWork;
use uniference_protocol::phantom::{Link, TakeTimes, Times, VERSION};
use uniference_sim::time::SimTime;

/// The rank's.
static CLIENT: OnceLock<Arc<Client>> = OnceLock::new();

/// Where numbers are written down.
static NUMBER: OnceLock<extern "C" fn(u64)> = OnceLock::new();

/// `Launches` of `cpp/launches.h`.
#[repr(C)]
pub(super) struct Launches {
    kernel: unsafe extern "C" fn(*const u8, usize) -> u32,
    launch: extern "C" fn(u32, u32, u32, u64),
    copy: extern "C" fn(u32, u32, u64, u32),
    record: extern "C" fn(u32, u32),
    wait_event: extern "C" fn(u32, u32),
    external_record: extern "C" fn(u32, u32),
    external_wait: extern "C" fn(u32, u32),
    capture: extern "C" fn(u32, u32),
    graph_launch: extern "C" fn(u32, u32),
    captured_call: extern "C" fn(u32, u32),
    graph_resume: extern "C" fn(u32, u32),
    host_function: extern "C" fn(u32),
    number: extern "C" fn(u64),
}

/// The link of this process, which stays.
///
/// # Safety
/// `launches` is what `uniference_capture_launches` has returned, in a library that is never unloaded.
pub(super) unsafe fn link(client: &Arc<Client>, launches: *const Launches) -> &'static Link {
    // Whoever was first stays: a process is one rank.
    let _ = CLIENT.set(client.clone());
    // SAFETY: the caller's.
    let launches = unsafe { &*launches };
    let _ = NUMBER.set(launches.number);
    let name = "memory";
    // A rank that has streams says so with its first kernel.
    // SAFETY: the name is a text of that length.
    unsafe { (launches.kernel)(name.as_ptr(), name.len()) };
    Box::leak(Box::new(Link {
        version: VERSION,
        stream,
        kernel: launches.kernel,
        launch: launches.launch,
        copy: launches.copy,
        record: launches.record,
        wait_event: launches.wait_event,
        external_record: launches.external_record,
        external_wait: launches.external_wait,
        capture: launches.capture,
        graph_launch: launches.graph_launch,
        captured_call: launches.captured_call,
        graph_resume: launches.graph_resume,
        host_function: launches.host_function,
        uses,
        synchronize_stream,
        synchronize_event,
        synchronize_device,
        query_stream,
        query_event,
        elapsed,
        number,
        times,
        warn,
    }))
}

fn client() -> &'static Client {
    CLIENT.get().expect("the link was made with it")
}

/// Ranks that lend their GPUs to one program have them in the order of the ranks.
extern "C" fn uses(device: u32) -> c_int {
    let client = client();
    client.enter();
    let moved = client.moves(device).unwrap_or_else(|error| error.end());
    client.leave();
    moved.into()
}

/// A stream is there as soon as something is handed to it.
extern "C" fn stream(_: u32, _: u32, _: i32) {}

extern "C" fn synchronize_stream(stream: u32) {
    client().synchronize(DeviceWork::Stream(stream));
}

extern "C" fn synchronize_event(event: u32) {
    client().synchronize(DeviceWork::Event(event));
}

/// A rank computes on one device.
extern "C" fn synchronize_device(_: u32) {
    client().synchronize(DeviceWork::Device);
}

extern "C" fn query_stream(stream: u32) -> c_int {
    client().has_ended(DeviceWork::Stream(stream)).into()
}

extern "C" fn query_event(event: u32) -> c_int {
    client().has_ended(DeviceWork::Event(event)).into()
}

/// Nothing lies between events that have not both happened: the library asks for that first.
extern "C" fn elapsed(start: u32, end: u32) -> i64 {
    client().elapsed(start, end).unwrap_or(0) / 1_000
}

/// The number goes with the operators; when the program came to it is for those who profile.
extern "C" fn number(number: u64) {
    client().launches(number, ticks());
    if let Some(write) = NUMBER.get() {
        write(number);
    }
}

extern "C" fn times(take: TakeTimes, data: *mut c_void) {
    let date = |time: SimTime| EPOCH_S as u64 * 1_000_000_000 + time.as_ps() / 1_000;
    let times = client().take_times().unwrap_or_else(|error| error.end());
    let times: Vec<Times> = times
        .into_iter()
        .map(|launch| Times {
            launch: launch.id.launch,
            node: launch.id.node,
            began: date(launch.began),
            ended: date(launch.ended),
        })
        .collect();
    take(data, times.as_ptr(), times.len());
}

/// # Safety
/// `text` is one of `length` bytes.
unsafe extern "C" fn warn(text: *const u8, length: usize) {
    // SAFETY: the caller's.
    let text = unsafe { from_raw_parts(text, length) };
    client().warn(&String::from_utf8_lossy(text));
}
