//! Owns CUPTI's activity records, by which profilers see calls of the runtime and the driver, and kernels, copies and operations of NCCL on their streams.
//!
//! When something on a stream was, only the engine knows: what is launched while somebody profiles has a number, by which the link is asked for its times when the
//! profiler asks for its records. What is launched and by whom is the business of [`crate::streams`]; nothing is kept where nobody profiles.
//!
//! The prototypes are those of `cupti_activity.h`; where a record lies and how large it is, `records` knows. Calls have the times that the profiler's own
//! clock shows, as CUPTI has them ([`cuptiActivityRegisterTimestampCallback`]). What the engine says are dates, and marked as such for PyTorch's profiler
//! ([`PROFILER_DATES`]), which converts both when it has ended. Streams have 7 more than their own number, as CUDA's default stream is 7, and devices one context
//! each.

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
/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: there are no more records in a buffer.
const MAX_LIMIT_REACHED: c_int = 12;
/// `CUPTI_ERROR_NOT_SUPPORTED`
const NOT_SUPPORTED: c_int = 27;
/// `CUPTI_ERROR_QUEUE_EMPTY`: no external correlation was pushed.
const QUEUE_EMPTY: c_int = 18;
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`
const MULTIPLE_SUBSCRIBERS: c_int = 39;

/// `CUPTI_CB_DOMAIN_RESOURCE`: contexts and modules come and go.
const RESOURCES: u32 = 3;

/// Kinds of external correlation: `CUpti_ExternalCorrelationKind` up to here.
const EXTERNAL_KINDS: usize = 6;

/// Number of a stream in records, less its own.
const FIRST_STREAM: u32 = 7;

/// Where a number of a stream or an event would be and there is none: `CUPTI_SYNCHRONIZATION_INVALID_VALUE`.
const NONE: u32 = u32::MAX;

/// Asks for an empty buffer, its size, and how many records may be in it; 0: as many as fit.
type Request = extern "C" fn(buffer: *mut *mut u8, size: *mut usize, most: *mut usize);

/// Hands a buffer over, of which so many bytes are filled.
type Complete = extern "C" fn(context: *mut c_void, stream: u32, buffer: *mut u8, size: usize, filled: usize);

/// The profiler's clock.
type Clock = extern "C" fn() -> u64;

/// Kinds of activity that are recorded, a bit for each; none as long as nobody takes records.
static ENABLED: AtomicU64 = AtomicU64::new(0);

static NEXT_CORRELATION: AtomicU32 = AtomicU32::new(1);

static STATE: Mutex<State> = Mutex::new(State::new());

struct State {
    buffers: Option<(Request, Complete)>,
    clock: Option<Clock>,
    /// Asked for ahead, as profilers do not ask for records where no buffer was asked for.
    buffer: Option<Buffer>,
    /// Kinds as they were enabled.
    kinds: u64,
    /// Functions whose calls are not recorded.
    hidden: BTreeSet<(Domain, u32)>,
    records: Vec<Record>,
    /// What was launched and has not ended, by number.
    launched: BTreeMap<u64, Launched>,
    /// Names of kernels for C. They stay, as records point to them.
    names: BTreeMap<Box<str>, &'static CStr>,
    subscribes: bool,
}

struct Buffer {
    at: usize,
    size: usize,
    /// Records that may be in it; 0: as many as fit.
    most: usize,
}

/// Something on a stream.
struct Launched {
    correlation: u32,
    place: Place,
    /// The graph that it launches.
    graph: u32,
    /// Each with its number as a node, 0 without a graph.
    leaves: Vec<(u64, Work)>,
}

/// What a record is made of, besides times.
enum Work {
    Kernel { name: &'static CStr, shape: Shape },
    Copy { kind: CopyKind, bytes: u64, ends: [u32; 2] },
    Set { value: u32, bytes: u64 },
}

/// What a thread waited for: `CUpti_ActivitySynchronizationType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Waited {
    Event = 1,
    StreamForEvent = 2,
    Stream = 3,
    Device = 4,
}

thread_local! {
    /// Of the call that this thread makes: its correlation, and when it began.
    static CALL: Cell<Option<(u32, u64)>> = const { Cell::new(None) };
    /// Correlations that profilers have pushed, by kind.
    static EXTERNAL: RefCell<[Vec<u64>; EXTERNAL_KINDS]> = const { RefCell::new([const { Vec::new() }; EXTERNAL_KINDS]) };
}

fn is_enabled(kind: u32) -> bool {
    ENABLED.load(Relaxed) & 1 << kind != 0
}

fn records_kernels() -> bool {
    is_enabled(kind::CONCURRENT_KERNEL) || is_enabled(kind::KERNEL)
}

/// Makes a call of a function of this name, which is recorded if somebody profiles. Within another one it is part of that.
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
        // SAFETY: both only ask who the caller is.
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

/// The same for an operation of NCCL, whose kernel has this name.
pub(crate) fn communicates(name: &str, place: Place) -> Option<u64> {
    if !records_kernels() {
        return None;
    }
    let mut state = lock();
    let name = state.name(name);
    state.launch(place, 0, vec![(0, Work::Kernel { name, shape: Shape::default() })])
}

/// This thread has waited in its call, or has a stream wait.
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

/// An event was recorded on a stream.
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

/// What the profiler's clock shows, else the date.
fn now() -> u64 {
    if let Some(clock) = lock().clock {
        return clock();
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is there during the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn ask_for_buffer() {
    let request = {
        let state = lock();
        state.buffers.filter(|_| state.buffer.is_none()).map(|(request, _)| request)
    };
    // The profiler takes locks of its own.
    let buffer = request.and_then(Buffer::ask);
    if let Some(buffer) = buffer {
        lock().buffer = Some(buffer);
    }
}

/// Hands over all records of what has ended.
fn flush() {
    let times = if lock().launched.is_empty() { Vec::new() } else { ask_for_times() };
    let (buffers, buffer, mut records) = {
        let mut state = lock();
        times.iter().for_each(|times| state.ends(times));
        (state.buffers, state.buffer.take(), std::mem::take(&mut state.records))
    };
    let Some((request, complete)) = buffers else { return };
    // Whose activity something is must be known before it.
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
        // SAFETY: the link passes on what `ask_for_times` has given it, and as many times as it says.
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
        // What CUPTI itself takes: nothing.
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

    /// What is recorded of something, if it is.
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

    /// Something has ended: it is recorded.
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
                // The host waits for pageable memory alone.
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

/// `CUpti_ActivityMemcpyKind`, and of source and destination `CUpti_ActivityMemoryKind`: 1 pageable, 2 pinned, 3 of a device.
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

    /// Writes records, as many as fit. Returns how many bytes these are, and how many records.
    fn fill(&self, records: &[Record]) -> (usize, usize) {
        let (mut filled, mut taken) = (0, 0);
        for record in records.iter().take(if self.most == 0 { usize::MAX } else { self.most }) {
            let bytes = record.bytes();
            if filled + bytes.len() > self.size {
                break;
            }
            // SAFETY: the profiler has handed over a buffer of this size.
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

    /// Whoever subscribes is told when contexts are created and destroyed: never, as each device has one from the start to the end.
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
    /// Ends recording; what was not asked for is gone.
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
    /// When events happened is not in their records.
    fn cuptiActivityEnableCudaEventDeviceTimestamps(enables: u8) -> c_int {
        if enables == 0 { return 0; }
        report(LIBRARY, "cuptiActivityEnableCudaEventDeviceTimestamps");
        NOT_SUPPORTED
    }
    /// Sizes of CUPTI's own buffers: there are none.
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
            // SAFETY: the record is one that this function has returned, in a buffer that `flush` has filled.
            match records::size(unsafe { *(*record as *const u32) }) {
                Some(size) => *record + size,
                None => return INVALID_PARAMETER,
            }
        };
        if buffer == 0 || next >= buffer + filled { return MAX_LIMIT_REACHED; }
        *record = next;
        0
    }
    /// None is ever dropped.
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
