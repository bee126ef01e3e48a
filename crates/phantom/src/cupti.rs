//! Owns CUPTI's activity records, through which profilers see runtime and driver calls, and kernels, copies and NCCL
//! operations on their streams.
//!
//! Only the engine knows when work on a stream ran: each launch during profiling has a number, by which the link
//! returns its times when the profiler asks for records. [`crate::streams`] describes the launches. Without a profiler
//! nothing is recorded.
//!
//! The prototypes are those of `cupti_activity.h`; `records` has the layout of records. Calls have times of the
//! profiler's clock, as in CUPTI ([`cuptiActivityRegisterTimestampCallback`]). The engine's times are dates, marked as
//! such for PyTorch's profiler ([`PROFILER_DATES`]), which converts both when it ends. Stream numbers in records are 7
//! higher than this library's, because CUDA's default stream is 7; each device has one context.

mod calls;
mod records;
#[cfg(test)]
mod tests;

use crate::attach::link;
use crate::errors::Status;
use crate::exports::{Out, Put, exports};
use crate::launches::{Leaf, Moved, Place, Shape, next_number};
use crate::unimplemented::report;
pub(crate) use calls::Domain;
use records::{Call, Copy, External, Kernel, PeerCopy, Record, Recorded, Set, Synchronization, kind};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uniference_abi::entries::CopyKind;
use uniference_abi::gpus::{PROFILER_DATES, Times};

const LIBRARY: &str = "libcupti";

/// `CUPTI_ERROR_INVALID_PARAMETER`
const INVALID_PARAMETER: c_int = 1;
/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: the buffer has no more records.
const MAX_LIMIT_REACHED: c_int = 12;
/// `CUPTI_ERROR_NOT_SUPPORTED`
const NOT_SUPPORTED: c_int = 27;
/// `CUPTI_ERROR_QUEUE_EMPTY`: no external correlation was pushed.
const QUEUE_EMPTY: c_int = 18;
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`
const MULTIPLE_SUBSCRIBERS: c_int = 39;

/// `CUPTI_CB_DOMAIN_RESOURCE`: creation and destruction of contexts and modules.
const RESOURCES: u32 = 3;

/// Number of kinds of external correlation (`CUpti_ExternalCorrelationKind`).
const EXTERNAL_KINDS: usize = 6;

/// Offset of stream numbers in records.
const FIRST_STREAM: u32 = 7;

/// Placeholder for a missing stream or event number: `CUPTI_SYNCHRONIZATION_INVALID_VALUE`.
const NONE: u32 = u32::MAX;

/// Requests an empty buffer, its size and its maximum number of records; 0: as many as fit.
type Request = extern "C" fn(buffer: *mut *mut u8, size: *mut usize, most: *mut usize);

/// Returns a buffer whose first `filled` bytes are records.
type Complete = extern "C" fn(context: *mut c_void, stream: u32, buffer: *mut u8, size: usize, filled: usize);

/// The profiler's clock.
type Clock = extern "C" fn() -> u64;

/// Kinds of activity that are recorded, one bit each; none without a registered buffer callback.
static ENABLED: AtomicU64 = AtomicU64::new(0);

static NEXT_CORRELATION: AtomicU32 = AtomicU32::new(1);

static STATE: Mutex<State> = Mutex::new(State::new());

struct State {
    buffers: Option<(Request, Complete)>,
    clock: Option<Clock>,
    /// A buffer requested in advance, because profilers fetch no records unless a buffer was requested.
    buffer: Option<Buffer>,
    /// Enabled kinds, one bit each.
    kinds: u64,
    /// Functions whose calls are not recorded.
    hidden: BTreeSet<(Domain, u32)>,
    records: Vec<Record>,
    /// Launched work that has not ended, by number.
    launched: BTreeMap<u64, Launched>,
    /// Kernel names as C strings. They are never freed, because records point to them.
    names: BTreeMap<Box<str>, &'static CStr>,
    subscribes: bool,
}

struct Buffer {
    at: usize,
    size: usize,
    /// Maximum number of records; 0: as many as fit.
    most: usize,
}

/// One launch on a stream.
struct Launched {
    correlation: u32,
    place: Place,
    /// Number of the launched graph; 0: none.
    graph: u32,
    /// Work of the launch, each with its node's number; 0 outside of a graph.
    leaves: Vec<(u64, Work)>,
}

/// Contents of a record except its times.
enum Work {
    Kernel { name: &'static CStr, shape: Shape },
    Copy { kind: CopyKind, bytes: u64, ends: [u32; 2] },
    Set { value: u32, bytes: u64 },
}

/// Kind of synchronisation: `CUpti_ActivitySynchronizationType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Waited {
    Event = 1,
    StreamForEvent = 2,
    Stream = 3,
    Device = 4,
}

thread_local! {
    /// Correlation and start time of this thread's current call.
    static CALL: Cell<Option<(u32, u64)>> = const { Cell::new(None) };
    /// External correlations that the profiler has pushed, by kind.
    static EXTERNAL: RefCell<[Vec<u64>; EXTERNAL_KINDS]> = const { RefCell::new([const { Vec::new() }; EXTERNAL_KINDS]) };
}

fn is_enabled(kind: u32) -> bool {
    ENABLED.load(Relaxed) & 1 << kind != 0
}

fn records_kernels() -> bool {
    is_enabled(kind::CONCURRENT_KERNEL) || is_enabled(kind::KERNEL)
}

/// Calls `body` as the named function, which is recorded if a profiler runs. Nested calls are part of the outer call.
#[inline]
pub(crate) fn call<T>(domain: Domain, name: &str, body: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    if ENABLED.load(Relaxed) == 0 || CALL.get().is_some() {
        return body();
    }
    recorded(domain, name, body)
}

fn recorded<T>(domain: Domain, name: &str, body: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    let (correlation, began) = (NEXT_CORRELATION.fetch_add(1, Relaxed), now());
    CALL.set(Some((correlation, began)));
    let result = body();
    CALL.set(None);
    let status = result.as_ref().err().copied().unwrap_or(0) as u32;
    let kind = if domain == Domain::Runtime { kind::RUNTIME } else { kind::DRIVER };
    let ended = now();
    let (mut state, function) = (lock(), domain.number(name));
    if let Some(function) = function.filter(|function| is_enabled(kind) && !state.hidden.contains(&(domain, *function)))
    {
        // SAFETY: both functions only return the caller's identity.
        let (process, thread) = unsafe { (libc::getpid() as u32, libc::pthread_self() as u32) };
        let call = Call { kind, function, began, ended, process, thread, correlation, status };
        state.records.push(Record::Call(call));
    }
    if is_enabled(kind::EXTERNAL_CORRELATION) {
        let pushed = EXTERNAL.with_borrow(|all| all.each_ref().map(|ids| ids.last().copied()));
        let (kind, reserved) = (kind::EXTERNAL_CORRELATION, 0);
        let each = (0..).zip(pushed).filter_map(|(external_kind, id)| Some((external_kind, id?)));
        let record =
            |(external_kind, id)| Record::External(External { kind, external_kind, id, correlation, reserved });
        state.records.extend(each.map(record));
    }
    drop(state);
    ask_for_buffer();
    result
}

/// Number of a launch on `place`, or `None` if no profiler runs. `leaves` returns the number of the launched graph (0:
/// no graph) and the work that the launch starts.
pub(crate) fn launches<'a>(place: Place, leaves: impl FnOnce() -> (u32, Vec<(u64, Leaf<'a>)>)) -> Option<u64> {
    if ENABLED.load(Relaxed) == 0 {
        return None;
    }
    let (graph, leaves) = leaves();
    let mut state = lock();
    let leaves = leaves.into_iter().filter_map(|(number, leaf)| Some((number, state.work(leaf)?))).collect();
    state.launch(place, graph, leaves)
}

/// Number of an NCCL operation's launch, whose kernel is called `name`; `None` if no profiler records kernels.
pub(crate) fn communicates(name: &str, place: Place) -> Option<u64> {
    if !records_kernels() {
        return None;
    }
    let mut state = lock();
    let name = state.name(name);
    state.launch(place, 0, vec![(0, Work::Kernel { name, shape: Shape::default() })])
}

/// Records a synchronisation by this thread's current call, or a stream's wait for an event.
pub(crate) fn waited(what: Waited, device: usize, stream: Option<u32>, event: Option<u32>) {
    if !is_enabled(kind::SYNCHRONIZATION) {
        return;
    }
    let Some((correlation, began)) = CALL.get() else { return };
    let ended = now();
    lock().records.push(Record::Synchronization(Synchronization {
        kind: kind::SYNCHRONIZATION,
        what: what as u32,
        began,
        ended,
        correlation,
        context: context(device),
        stream: stream.map_or(NONE, |stream| stream + FIRST_STREAM),
        event: event.unwrap_or(NONE),
        recording: 0,
        status: 0,
        gap: 0,
    }));
}

/// Records that an event was recorded on a stream.
pub(crate) fn recorded_event(event: u32, device: usize, stream: u32) {
    if !is_enabled(kind::CUDA_EVENT) {
        return;
    }
    let Some((correlation, _)) = CALL.get() else { return };
    lock().records.push(Record::Recorded(Recorded {
        kind: kind::CUDA_EVENT,
        correlation,
        context: context(device),
        stream: stream + FIRST_STREAM,
        event,
        gap: 0,
        device: device as u32,
        other_gap: 0,
        reserved: 0,
        at: 0,
        recording: 0,
    }));
}

fn context(device: usize) -> u32 {
    device as u32 + 1
}

/// Time of the profiler's clock, else the date, in nanoseconds.
fn now() -> u64 {
    if let Some(clock) = lock().clock {
        return clock();
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`, to a variable that outlives it.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn ask_for_buffer() {
    let request = {
        let state = lock();
        state.buffers.filter(|_| state.buffer.is_none()).map(|(request, _)| request)
    };
    // The profiler's callback acquires other locks, so the state must not be locked.
    let buffer = request.and_then(Buffer::ask);
    if let Some(buffer) = buffer {
        lock().buffer = Some(buffer);
    }
}

/// Passes all records of calls and ended work to the profiler.
fn flush() {
    let times = if lock().launched.is_empty() { Vec::new() } else { ask_for_times() };
    let (buffers, buffer, mut records) = {
        let mut state = lock();
        times.iter().for_each(|times| state.ends(times));
        (state.buffers, state.buffer.take(), std::mem::take(&mut state.records))
    };
    let Some((request, complete)) = buffers else { return };
    // Profilers need an activity's external correlation before the activity.
    records.sort_by_key(|record| !matches!(record, Record::External(_)));
    let mut rest = records.as_slice();
    let mut next = buffer.or_else(|| if rest.is_empty() { None } else { Buffer::ask(request) });
    loop {
        let Some(buffer) = next.take() else { return };
        let (filled, taken) = buffer.fill(rest);
        complete(std::ptr::null_mut(), 0, buffer.at as *mut u8, buffer.size, filled);
        rest = &rest[taken..];
        if rest.is_empty() || taken == 0 {
            return;
        }
        next = Buffer::ask(request);
    }
}

fn ask_for_times() -> Vec<Times> {
    extern "C" fn take(all: *mut c_void, times: *const Times, count: usize) {
        // SAFETY: the link passes the pointer of `ask_for_times` back, and `count` times.
        unsafe { (*all.cast::<Vec<Times>>()).extend_from_slice(std::slice::from_raw_parts(times, count)) };
    }
    let mut all: Vec<Times> = Vec::new();
    if let Some(link) = link() {
        (link.times)(take, (&raw mut all).cast());
    }
    all
}

impl State {
    const fn new() -> State {
        State {
            buffers: None,
            clock: None,
            buffer: None,
            kinds: 0,
            hidden: BTreeSet::new(),
            records: Vec::new(),
            launched: BTreeMap::new(),
            names: BTreeMap::new(),
            subscribes: false,
        }
    }

    fn enable(&mut self, kind: u32, enables: bool) -> c_int {
        // Records of CUPTI's own overhead can be enabled, but none are written, because this library has no such
        // overhead.
        if kind == kind::OVERHEAD || records::size(kind).is_none() && !enables {
            return 0;
        }
        if records::size(kind).is_none() {
            report(LIBRARY, &format!("cuptiActivityEnable of kind {kind}"));
            return NOT_SUPPORTED;
        }
        self.kinds = if enables { self.kinds | 1 << kind } else { self.kinds & !(1 << kind) };
        self.publish();
        0
    }

    fn publish(&self) {
        ENABLED.store(if self.buffers.is_some() { self.kinds } else { 0 }, Relaxed);
    }

    fn launch(&mut self, place: Place, graph: u32, leaves: Vec<(u64, Work)>) -> Option<u64> {
        if leaves.is_empty() {
            return None;
        }
        let number = next_number();
        let correlation = CALL.get().map_or(0, |(correlation, _)| correlation);
        self.launched.insert(number, Launched { correlation, place, graph, leaves });
        Some(number)
    }

    /// Contents of a record of `leaf`; `None` if its kind is not enabled.
    fn work(&mut self, leaf: Leaf<'_>) -> Option<Work> {
        match leaf {
            Leaf::Kernel(name, shape) => {
                records_kernels().then(|| Work::Kernel { name: self.name(name.text()), shape })
            }
            Leaf::Copy(Moved { bytes, rows, .. }, kind, ends) => {
                is_enabled(kind::MEMCPY).then_some(Work::Copy { kind, bytes: (bytes * rows) as u64, ends })
            }
            Leaf::Set { value, bytes } => is_enabled(kind::MEMSET).then_some(Work::Set { value, bytes }),
        }
    }

    fn name(&mut self, name: &str) -> &'static CStr {
        if let Some(known) = self.names.get(name) {
            return known;
        }
        let text: &'static CStr = Box::leak(CString::new(name).unwrap_or_default().into_boxed_c_str());
        self.names.insert(name.into(), text);
        text
    }

    /// Records work that has ended.
    fn ends(&mut self, times: &Times) {
        let Some(launched) = self.launched.get_mut(&times.launch) else { return };
        let Some(at) = launched.leaves.iter().position(|(node, _)| *node == times.node) else { return };
        let (node, work) = launched.leaves.remove(at);
        let record = launched.record(
            node,
            &work,
            [times.began, times.ended].map(|date| self.clock.map_or(0, |_| PROFILER_DATES) + date),
        );
        if launched.leaves.is_empty() {
            self.launched.remove(&times.launch);
        }
        self.records.push(record);
    }
}

impl Launched {
    fn record(&self, node: u64, work: &Work, [began, ended]: [u64; 2]) -> Record {
        let Launched { correlation, place: Place { device, stream, priority }, graph, .. } = *self;
        let (context, device, stream) = (context(device), device as u32, stream + FIRST_STREAM);
        match *work {
            Work::Kernel { name, shape } => Record::Kernel(Kernel {
                kind: kind::CONCURRENT_KERNEL,
                caches: [0; 2],
                registers: shape.registers,
                partitioned_caches: [0; 2],
                began,
                ended,
                completed: ended,
                device,
                context,
                stream,
                grid: shape.grid,
                block: shape.block,
                static_shared: shape.shared[0],
                dynamic_shared: shape.shared[1],
                local_memory: [0; 2],
                correlation,
                grid_id: 0,
                name: name.as_ptr(),
                reserved: 0,
                handed: [0; 2],
                launch: [0; 4],
                shared_executed: shape.shared[0] + shape.shared[1],
                node,
                shared_limit: 0,
                graph,
                window: 0,
                channel: NONE,
                channel_kind: 0,
                cluster: [0; 4],
                all_local_memory: 0,
                clusters: [0; 2],
                by_device: [0; 8],
                priority: priority as u32,
                rest: 0,
            }),
            Work::Copy { kind: CopyKind::Peer, bytes, ends: [from, to] } => Record::PeerCopy(PeerCopy {
                kind: kind::MEMCPY2,
                what: what(CopyKind::Peer),
                flags: 0,
                bytes,
                began,
                ended,
                device,
                context,
                stream,
                ends: [from, from + 1, to, to + 1],
                correlation,
                reserved: 0,
                node,
                graph,
                channel: NONE,
                channel_kind: 0,
                end: 0,
            }),
            Work::Copy { kind, bytes, .. } => Record::Copy(Copy {
                kind: kind::MEMCPY,
                what: what(kind),
                // Only copies of pageable memory block the calling thread.
                flags: u8::from(!matches!(kind, CopyKind::PageableToDevice | CopyKind::DeviceToPageable)),
                bytes,
                began,
                ended,
                device,
                context,
                stream,
                correlation,
                runtime_correlation: 0,
                gap: 0,
                reserved: 0,
                node,
                graph,
                channel: NONE,
                channel_kind: 0,
                by_device: [0; 4],
                copies: 1,
            }),
            Work::Set { value, bytes } => Record::Set(Set {
                kind: kind::MEMSET,
                value,
                bytes,
                began,
                ended,
                device,
                context,
                stream,
                correlation,
                flags: 1,
                memory: 3,
                gap: 0,
                reserved: 0,
                node,
                graph,
                channel: NONE,
                channel_kind: 0,
                by_device: [0; 4],
            }),
        }
    }
}

/// `CUpti_ActivityMemcpyKind`, then the `CUpti_ActivityMemoryKind` of source and destination: 1 pageable, 2 pinned, 3
/// device.
fn what(kind: CopyKind) -> [u8; 3] {
    match kind {
        CopyKind::PageableToDevice => [1, 1, 3],
        CopyKind::PinnedToDevice => [1, 2, 3],
        CopyKind::DeviceToPageable => [2, 3, 1],
        CopyKind::DeviceToPinned => [2, 3, 2],
        CopyKind::Within | CopyKind::Set => [8, 3, 3],
        CopyKind::Peer => [10, 3, 3],
    }
}

impl Buffer {
    fn ask(request: Request) -> Option<Buffer> {
        let (mut at, mut size, mut most) = (std::ptr::null_mut(), 0, 0);
        request(&raw mut at, &raw mut size, &raw mut most);
        (!at.is_null()).then_some(Buffer { at: at as usize, size, most })
    }

    /// Writes as many records as fit, and returns the number of bytes and of records written.
    fn fill(&self, records: &[Record]) -> (usize, usize) {
        let (mut filled, mut taken) = (0, 0);
        for record in records.iter().take(if self.most == 0 { usize::MAX } else { self.most }) {
            let bytes = record.bytes();
            if filled + bytes.len() > self.size {
                break;
            }
            // SAFETY: the profiler provided a buffer of this size.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.at + filled) as *mut u8, bytes.len()) };
            filled += bytes.len();
            taken += 1;
        }
        (filled, taken)
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

exports! {
    /// `CUPTI_API_VERSION` of CUDA 13.2.
    fn cuptiGetVersion(version: Out<u32>) -> c_int { if version.put(130_202) { 0 } else { INVALID_PARAMETER } }
    fn cuptiGetResultString(result: c_int, text: Out<*const c_char>) -> c_int { put(text, describe(result)) }
    fn cuptiGetErrorMessage(result: c_int, text: Out<*const c_char>) -> c_int { put(text, describe(result)) }

    /// Subscribers would be notified of created and destroyed contexts, but each device has one context for the whole
    /// run.
    fn cuptiSubscribe(subscriber: Out<usize>, _function: *const c_void, _data: *mut c_void) -> c_int {
        let mut state = lock();
        if std::mem::replace(&mut state.subscribes, true) { return MULTIPLE_SUBSCRIBERS; }
        if subscriber.put(1) { 0 } else { INVALID_PARAMETER }
    }
    fn cuptiUnsubscribe(_subscriber: usize) -> c_int {
        lock().subscribes = false;
        0
    }
    fn cuptiEnableCallback(_enables: u32, _subscriber: usize, domain: u32, _function: u32) -> c_int { enable_callbacks("cuptiEnableCallback", domain) }
    fn cuptiEnableDomain(_enables: u32, _subscriber: usize, domain: u32) -> c_int { enable_callbacks("cuptiEnableDomain", domain) }
    fn cuptiGetCallbackName(domain: u32, function: u32, name: Out<*const c_char>) -> c_int {
        match Domain::from_number(domain).and_then(|domain| domain.name(function)) {
            Some(known) => put(name, known),
            None => INVALID_PARAMETER,
        }
    }
    /// Ends recording and drops records that were not fetched.
    fn cuptiFinalize() -> c_int {
        let mut state = lock();
        (state.kinds, state.buffers) = (0, None);
        state.publish();
        state.records.clear();
        state.launched.clear();
        0
    }

    fn cuptiActivityRegisterCallbacks(request: Option<Request>, complete: Option<Complete>) -> c_int {
        let mut state = lock();
        let Some(buffers) = request.zip(complete) else { return INVALID_PARAMETER };
        state.buffers = Some(buffers);
        state.publish();
        0
    }
    fn cuptiActivityRegisterTimestampCallback(clock: Option<Clock>) -> c_int {
        lock().clock = clock;
        0
    }
    fn cuptiActivityEnable(kind: u32) -> c_int { lock().enable(kind, true) }
    fn cuptiActivityDisable(kind: u32) -> c_int { lock().enable(kind, false) }
    fn cuptiActivityEnableRuntimeApi(function: u32, enables: u8) -> c_int { lock().show(Domain::Runtime, function, enables) }
    fn cuptiActivityEnableDriverApi(function: u32, enables: u8) -> c_int { lock().show(Domain::Driver, function, enables) }
    /// Event records have no timestamps.
    fn cuptiActivityEnableCudaEventDeviceTimestamps(enables: u8) -> c_int {
        if enables == 0 { return 0; }
        report(LIBRARY, "cuptiActivityEnableCudaEventDeviceTimestamps");
        NOT_SUPPORTED
    }
    /// Attributes are accepted without effect: they set sizes of CUPTI's internal buffers, which do not exist in this
    /// library.
    fn cuptiActivitySetAttribute(_attribute: c_int, size: Option<&usize>, value: *const c_void) -> c_int {
        if size.is_none() || value.is_null() { INVALID_PARAMETER } else { 0 }
    }
    fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) -> c_int {
        EXTERNAL.with_borrow_mut(|all| match all.get_mut(kind as usize) {
            Some(ids) => { ids.push(id); 0 }
            None => INVALID_PARAMETER,
        })
    }
    fn cuptiActivityPopExternalCorrelationId(kind: u32, last: Out<u64>) -> c_int {
        EXTERNAL.with_borrow_mut(|all| match all.get_mut(kind as usize).map(Vec::pop) {
            Some(Some(id)) => { last.put(id); 0 }
            Some(None) => QUEUE_EMPTY,
            None => INVALID_PARAMETER,
        })
    }
    fn cuptiActivityFlushAll(_flags: u32) -> c_int { flush(); 0 }
    fn cuptiActivityGetNextRecord(buffer: usize, filled: usize, record: Option<&mut usize>) -> c_int {
        let Some(record) = record else { return INVALID_PARAMETER };
        let next = if *record == 0 {
            buffer
        } else {
            // SAFETY: this function returned `record` before, from a buffer that `flush` has filled.
            match records::size(unsafe { *(*record as *const u32) }) {
                Some(size) => *record + size,
                None => return INVALID_PARAMETER,
            }
        };
        if buffer == 0 || next >= buffer + filled { return MAX_LIMIT_REACHED; }
        *record = next;
        0
    }
    /// Records are never dropped.
    fn cuptiActivityGetNumDroppedRecords(_context: *const c_void, _stream: u32, dropped: Out<usize>) -> c_int {
        if dropped.put(0) { 0 } else { INVALID_PARAMETER }
    }
}

impl State {
    fn show(&mut self, domain: Domain, function: u32, enables: u8) -> c_int {
        if enables == 0 {
            self.hidden.insert((domain, function))
        } else {
            self.hidden.remove(&(domain, function))
        };
        0
    }
}

fn enable_callbacks(name: &str, domain: u32) -> c_int {
    if domain == RESOURCES {
        return 0;
    }
    report(LIBRARY, name);
    NOT_SUPPORTED
}

fn put(place: Out<*const c_char>, text: &'static CStr) -> c_int {
    if place.put(text.as_ptr()) { 0 } else { INVALID_PARAMETER }
}

fn describe(result: c_int) -> &'static CStr {
    match result {
        0 => c"CUPTI_SUCCESS",
        INVALID_PARAMETER => c"CUPTI_ERROR_INVALID_PARAMETER",
        MAX_LIMIT_REACHED => c"CUPTI_ERROR_MAX_LIMIT_REACHED",
        QUEUE_EMPTY => c"CUPTI_ERROR_QUEUE_EMPTY",
        NOT_SUPPORTED => c"CUPTI_ERROR_NOT_SUPPORTED",
        MULTIPLE_SUBSCRIBERS => c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        _ => c"CUPTI_ERROR_UNKNOWN",
    }
}
