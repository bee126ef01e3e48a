//! Owns the link of the simulated GPU library: addresses of the functions that record its launches (`cpp/launches.h`),
//! and of the functions that send requests to this rank's client.

// A library calls the functions by C's convention, and passes addresses.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::slice::from_raw_parts;
use std::sync::{Arc, OnceLock};
use uniference_abi::VERSION;
use uniference_abi::capture::Launches;
use uniference_abi::gpus::{Link, NOT_ELAPSED, Recorded, TakeTimes, Times};
use uniference_client::{Client, ticks};
use uniference_interpose::EPOCH_S;
use uniference_protocol::messages::DeviceWork;
use uniference_sim::time::SimTime;

/// The client of this process's rank.
static CLIENT: OnceLock<Arc<Client>> = OnceLock::new();

/// The function that records launch numbers.
static NUMBER: OnceLock<extern "C" fn(u64)> = OnceLock::new();
static RUNNING_OPERATOR: OnceLock<extern "C" fn() -> u64> = OnceLock::new();

thread_local! {
    static DENIED: RefCell<BTreeMap<u32, Denied>> = const { RefCell::new(BTreeMap::new()) };
}

/// A thread's last query of an event with a negative answer.
struct Denied {
    /// Number of the thread's operator that made the query.
    by: u64,
    /// Number of times that the same answer may be repeated.
    left: u64,
}

/// The link of this process; valid for its lifetime.
pub(super) fn link(client: &Arc<Client>, launches: &Launches) -> &'static Link {
    // The first client remains: a process is one rank.
    let _ = CLIENT.set(client.clone());
    let _ = NUMBER.set(launches.number);
    let _ = RUNNING_OPERATOR.set(launches.running_operator);
    let name = "memory";
    // The first kernel marks the rank as one with streams.
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

/// Makes this thread's process act as the rank of the device: if one program has the GPUs of all ranks, the devices are
/// numbered as the ranks.
extern "C" fn uses(device: u32) -> c_int {
    let client = client();
    client.enter();
    let moved = client.moves(device).unwrap_or_else(|error| error.end());
    client.leave();
    moved.into()
}

/// Creation of a stream. The first work on a stream creates it, so nothing is done.
extern "C" fn stream(_: u32, _: u32, _: i32) {}

extern "C" fn synchronize_stream(stream: u32) {
    client().synchronize(DeviceWork::Stream(stream));
}

extern "C" fn synchronize_event(event: u32, records: u32) {
    client().synchronize(DeviceWork::Event { event, records });
}

/// Synchronizes the rank's device, of which each rank has one.
extern "C" fn synchronize_device(_: u32) {
    client().synchronize(DeviceWork::Device);
}

extern "C" fn query_stream(stream: u32) -> c_int {
    client().has_ended(DeviceWork::Stream(stream)).into()
}

/// Whether an event has happened. When an operator allocates, PyTorch's allocator queries whether another stream has
/// finished with freed memory. A negative answer is repeated within 16 operators for up to 16 queries,
/// because each query of the client makes all threads of the rank wait until virtual time may advance to the event.
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

/// Time between two events. A compiler's own measurements take no time.
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

/// Records a launch's number among the operators, and its time for profilers.
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
    // SAFETY: the text has `length` bytes, and lives during the call.
    let text = unsafe { from_raw_parts(text, length) };
    client().warn(&String::from_utf8_lossy(text));
}
