//! Owns the link of the library of simulated GPUs: addresses by which what it launches is written down (`cpp/launches.h`), and by which it asks
//! this rank's client.

// The functions are called by a library in C's way, which passes addresses.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::slice::from_raw_parts;
use std::sync::{Arc, OnceLock};
use uniference_client::Client;
use uniference_protocol::messages::DeviceWork;
use uniference_protocol::phantom::{Link, VERSION};

/// The rank's.
static CLIENT: OnceLock<Arc<Client>> = OnceLock::new();

/// `Launches` of `cpp/launches.h`.
#[repr(C)]
pub(super) struct Launches {
    kernel: unsafe extern "C" fn(*const u8, usize) -> u32,
    launch: extern "C" fn(u32, u32, u32, u64),
    copy: extern "C" fn(u32, u32, u64, u32),
    record: extern "C" fn(u32, u32),
    wait_event: extern "C" fn(u32, u32),
    capture: extern "C" fn(u32, u32),
    graph_launch: extern "C" fn(u32, u32),
    host_function: extern "C" fn(u32),
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
        capture: launches.capture,
        graph_launch: launches.graph_launch,
        host_function: launches.host_function,
        synchronize_stream,
        synchronize_event,
        synchronize_device,
        query_stream,
        query_event,
        elapsed,
        warn,
    }))
}

fn client() -> &'static Client {
    CLIENT.get().expect("the link was made with it")
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

/// # Safety
/// `text` is one of `length` bytes.
unsafe extern "C" fn warn(text: *const u8, length: usize) {
    // SAFETY: the caller's.
    let text = unsafe { from_raw_parts(text, length) };
    client().warn(&String::from_utf8_lossy(text));
}
