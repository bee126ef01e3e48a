//! Owns the link of the library of simulated GPUs: addresses by which what it launches is written down (`cpp/launches.h`), and by which it asks
//! this rank's client.

// The functions are called by a library in C's way, which passes addresses.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::slice::from_raw_parts;
use std::sync::{Arc, OnceLock};
use uniference_client::{Client, ticks};
use uniference_interpose::EPOCH_S;
use uniference_protocol::messages::DeviceWork;
use uniference_protocol::phantom::{Link, NOT_ELAPSED, Recorded, TakeTimes, Times, VERSION};
use uniference_sim::time::SimTime;

/// The client of this process's rank.
static CLIENT: OnceLock<Arc<Client>> = OnceLock::new();

/// Where numbers are written down.
static NUMBER: OnceLock<extern "C" fn(u64)> = OnceLock::new();
static RUNNING_OPERATOR: OnceLock<extern "C" fn() -> u64> = OnceLock::new();

thread_local! {
    static DENIED: RefCell<BTreeMap<u32, Denied>> = const { RefCell::new(BTreeMap::new()) };
}

/// An event had not happened when this thread asked.
struct Denied {
    /// Within which of its operators.
    by: u64,
    /// How often the answer may be given again.
    left: u64,
}

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
    running_operator: extern "C" fn() -> u64,
    launches: unsafe extern "C" fn(*const u8, usize) -> c_int,
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
    let _ = RUNNING_OPERATOR.set(launches.running_operator);
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
        launches: launches.launches,
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

extern "C" fn synchronize_event(event: u32, records: u32) {
    client().synchronize(DeviceWork::Event { event, records });
}

/// A rank computes on one device.
extern "C" fn synchronize_device(_: u32) {
    client().synchronize(DeviceWork::Device);
}

extern "C" fn query_stream(stream: u32) -> c_int {
    client().has_ended(DeviceWork::Stream(stream)).into()
}

/// PyTorch's allocator asks within an operator, whenever that allocates, whether another stream is through with memory that was freed. That it is not is
/// not asked again for some operators, and not so often: all threads of the rank would have to wait each time, to learn that virtual time may come so far.
extern "C" fn query_event(event: u32, records: u32) -> c_int {
    const OPERATORS: u64 = 16;
    let operator = RUNNING_OPERATOR.get().map_or(0, |running| running());
    let is_known = |denied: &mut BTreeMap<u32, Denied>| match denied.get_mut(&event) {
        Some(Denied { by, left }) if operator > 0 && operator - *by < OPERATORS && *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    };
    if DENIED.with_borrow_mut(is_known) {
        return 0;
    }
    let ended = client().has_ended(DeviceWork::Event { event, records });
    DENIED.with_borrow_mut(|denied| match operator > 0 && !ended {
        true => drop(denied.insert(event, Denied { by: operator, left: OPERATORS })),
        false => drop(denied.remove(&event)),
    });
    ended.into()
}

/// What a compiler measures takes no time, unless its program does the measuring.
extern "C" fn elapsed(start: Recorded, end: Recorded) -> i64 {
    let client = client();
    if client.is_compiling() {
        return 0;
    }
    let has_happened = |of: Recorded| client.has_ended(DeviceWork::Event { event: of.event, records: of.records });
    match has_happened(start) && has_happened(end) {
        true => client.elapsed(start.event, end.event).unwrap_or(0) / 1_000,
        false => NOT_ELAPSED,
    }
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
