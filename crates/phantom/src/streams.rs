//! Owns CUDA streams, events and graphs: which exist, which work is launched on them, and which of it is captured.
//! Durations are the driver's task: all work is written to the link. Bytes are moved at once, in the order of the
//! calls, which is a valid order for any set of streams.

mod capture;
mod graphs;
#[cfg(test)]
pub(crate) mod tests;

use crate::attach::{attached, link};
use crate::errors::*;
use crate::exports::exports;
use crate::launches::{Moved, Name, Place, Shape};
use crate::unimplemented::warn;
use crate::{arrivals, cupti, device, memory, reads};
pub(crate) use capture::{
    Mode, begin_capture, capture_calls, capture_info, check_unsafe_call, end_capture, exchange_mode, report_capture,
    update_dependencies,
};
pub(crate) use graphs::{
    HostFunction, Node, Takes, add_empty, create_graph, dependencies, destroy_exec, destroy_graph, instantiate,
    launch_graph, node_kind, nodes, update_exec,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use uniference_abi::entries::CopyKind;
use uniference_abi::gpus::{Link, NOT_ELAPSED, Recorded};

/// `cudaStream_t`, `CUstream`: 0 and 1 are the legacy default stream of the thread's device, 2 is the per-thread
/// default stream.
pub(crate) type Handle = *mut c_void;

/// Stream flag: the stream and the legacy default stream do not wait for each other.
pub(crate) const NON_BLOCKING: u32 = 1;

/// Event flag: the event has no timestamps.
pub(crate) const NO_TIMING: u32 = 2;

/// Least and greatest priority of streams (`cudaDeviceGetStreamPriorityRange` on devices of compute capability 7 and
/// later).
pub(crate) const PRIORITIES: (c_int, c_int) = (0, -5);

thread_local! {
    /// The per-thread default streams, by device.
    static PER_THREAD: RefCell<BTreeMap<usize, u32>> = const { RefCell::new(BTreeMap::new()) };
}

static STATE: Mutex<State> = Mutex::new(State::new());

struct State {
    /// Streams by number; empty until the first use.
    streams: Vec<Stream>,
    /// Numbers of the legacy default streams, by device.
    legacy: BTreeMap<usize, u32>,
    /// Events by number; number 0 is no event.
    events: Vec<Event>,
    /// Graphs by number; number 0 is no graph.
    graphs: Vec<graphs::Graph>,
    execs: Vec<graphs::Exec>,
    captures: u64,
    /// Number of launches on the legacy default stream, by device.
    epochs: BTreeMap<usize, u64>,
    /// Names of library kernels that were launched.
    names: BTreeMap<Box<str>, Arc<Name>>,
}

struct Stream {
    device: usize,
    priority: c_int,
    flags: u32,
    is_legacy: bool,
    exists: bool,
    capture: Option<capture::Capture>,
    /// Whether the stream has work that the legacy default stream has not waited for.
    is_dirty: bool,
    /// Number of launches on the legacy default stream up to which this stream has waited for it.
    epoch: u64,
    /// Event by which this stream and the legacy default stream wait for each other.
    fence: Option<u32>,
}

struct Event {
    device: usize,
    flags: u32,
    exists: bool,
    /// Number of records; a record that a graph captured counts when the graph is launched.
    records: u32,
    /// If it was last recorded during a capture: the graph and the nodes before it.
    captured: Option<(usize, Vec<usize>)>,
}

/// Kind of object that a handle names: the handle's upper bits.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Kind {
    Stream = 0x51,
    Event = 0x52,
    Graph = 0x53,
    Exec = 0x54,
    Node = 0x55,
}

impl Kind {
    fn handle(self, number: usize) -> Handle {
        ((self as usize) << 40 | number << 4) as Handle
    }

    fn number(self, handle: Handle) -> Result<usize, Status> {
        let number = (handle as usize & ((1 << 40) - 1)) >> 4;
        if handle as usize >> 40 == self as usize { Ok(number) } else { Err(INVALID_HANDLE) }
    }
}

/// Launches a library's kernel on a stream. `bytes`: size of its arguments in memory; 0 if unknown.
pub(crate) fn launch(stream: Handle, name: &str, bytes: u64) -> Status {
    let kernel = {
        let mut state = lock();
        match state.names.get(name) {
            Some(kernel) => kernel.clone(),
            None => state.names.entry(name.into()).or_insert(Arc::new(Name::new(name))).clone(),
        }
    };
    // NVIDIA's libraries launch their kernels through the runtime.
    let launched = cupti::call(cupti::Domain::Runtime, "cudaLaunchKernel", || {
        launch_named(stream, &kernel, Takes::Bytes(bytes), Shape::default())
    });
    launched.err().unwrap_or(SUCCESS)
}

exports! {
    /// Waits for the data of communication that work on a stream depends on, because `cpp/cpu_reference.h` is about to
    /// read its values.
    fn uniference_phantom_wait_for_data(stream: Handle) {
        if arrivals::any() && let Ok(number) = begin(stream) {
            arrivals::wait_for_stream(number);
        }
    }

    /// Launches a kernel on a stream, for `cpp/cpu_reference.h`; the name has `length` bytes.
    fn uniference_phantom_launch(name: *const u8, length: usize, stream: Handle) {
        // SAFETY: `cpp/cpu_reference.h` passes a name of `length` bytes.
        let name = unsafe { std::slice::from_raw_parts(name, length) };
        let _ = std::str::from_utf8(name).map(|name| launch(stream, name, 0));
    }
}

/// Launches a kernel whose name is already stored.
pub(crate) fn launch_named(stream: Handle, name: &Arc<Name>, takes: Takes, shape: Shape) -> Result<(), Status> {
    let mut state = lock();
    let stream = state.on_current(stream)?;
    state.submit(stream, Node::Kernel { name: name.clone(), takes, shape })
}

/// Number of a stream that is not captured, for work other than kernels and copies that starts on it.
pub(crate) fn begin(stream: Handle) -> Result<u32, Status> {
    let mut state = lock();
    let number = state.uncaptured(stream)?;
    state.check_priority(number);
    state.order(number);
    Ok(number)
}

/// Device and priority of a stream.
pub(crate) fn place(stream: u32) -> Place {
    lock().place(stream)
}

/// Copies bytes on a stream. Its cost depends on the kinds of memory.
pub(crate) fn copy(stream: Handle, moved: Moved) -> Result<(), Status> {
    let kind = copy_kind(memory::place(moved.to), memory::place(moved.from));
    let any = moved.bytes * moved.rows > 0;
    if any && matches!(kind, Some(CopyKind::DeviceToPinned | CopyKind::DeviceToPageable)) {
        reads::check()?;
    }
    if kind.is_some() && arrivals::any() {
        let number = lock().resolve(stream)?;
        arrivals::wait_for_stream(number);
    }
    let mut state = lock();
    let stream = state.resolve(stream)?;
    if moved.bytes * moved.rows == 0 {
        return Ok(());
    }
    match kind {
        // Copies from host to host involve no device.
        None => moved.carry_out(),
        Some(kind) => {
            let is_captured = state.streams[stream as usize].capture.is_some();
            state.submit(stream, Node::Copy { moved, kind })?;
            drop(state);
            // A copy to pageable memory has ended when the call returns (CUDA Runtime API, "API synchronization behavior").
            if kind == CopyKind::DeviceToPageable && !is_captured {
                wait(|link| (link.synchronize_stream)(stream));
            }
            Ok(())
        }
    }
}

/// Writes a value of 1, 2 or 4 bytes `count` times, on a stream.
pub(crate) fn set(stream: Handle, at: usize, value: &[u8], count: usize) -> Result<(), Status> {
    let mut state = lock();
    let stream = state.resolve(stream)?;
    if count == 0 { Ok(()) } else { state.submit(stream, Node::Set { at, value: value.into(), count }) }
}

/// Launches a host function on a stream: it is called immediately.
pub(crate) fn host_function(stream: Handle, function: HostFunction, data: *mut c_void) -> Result<(), Status> {
    let mut state = lock();
    let stream = state.resolve(stream)?;
    let is_captured = state.streams[stream as usize].capture.is_some();
    state.submit(stream, Node::Host { function, data: data as usize })?;
    drop(state);
    if !is_captured {
        function(data);
    }
    Ok(())
}

/// Kind of a copy by its memory; `None`: from host to host.
fn copy_kind(to: memory::Place, from: memory::Place) -> Option<CopyKind> {
    use memory::Place::{Device, Pinned};
    Some(match (to, from) {
        (Device { device: to, .. }, Device { device: from, .. }) if to != from => CopyKind::Peer,
        (Device { .. }, Device { .. }) => CopyKind::Within,
        (Device { .. }, Pinned { .. }) => CopyKind::PinnedToDevice,
        (Device { .. }, _) => CopyKind::PageableToDevice,
        (Pinned { .. }, Device { .. }) => CopyKind::DeviceToPinned,
        (_, Device { .. }) => CopyKind::DeviceToPageable,
        _ => return None,
    })
}

/// Creates a stream on the thread's device.
pub(crate) fn create(flags: u32, priority: c_int) -> Result<Handle, Status> {
    let mut state = lock();
    state.prepare()?;
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let number = state.add_stream(device::current(), flags, priority, false);
    Ok(Kind::Stream.handle(number as usize))
}

/// Destroys a stream; its launched work still completes.
pub(crate) fn destroy(stream: Handle) -> Result<(), Status> {
    let mut state = lock();
    let number = state.resolve(stream)?;
    let stream = &mut state.streams[number as usize];
    if stream.is_legacy {
        return Err(INVALID_HANDLE);
    }
    stream.exists = false;
    Ok(())
}

/// Device, flags, priority and number of a stream.
pub(crate) fn describe(stream: Handle) -> Result<(usize, u32, c_int, u32), Status> {
    let mut state = lock();
    let number = state.resolve(stream)?;
    let stream = &state.streams[number as usize];
    Ok((stream.device, stream.flags, stream.priority, number))
}

/// Waits until a stream is empty.
pub(crate) fn synchronize(stream: Handle) -> Result<(), Status> {
    let number = lock().uncaptured(stream)?;
    wait(|link| (link.synchronize_stream)(number));
    cupti::waited(cupti::Waited::Stream, place(number).device, Some(number), None);
    arrivals::wait_for_stream(number);
    Ok(())
}

/// Waits for a launch if launches block and the stream is not in capture. For kernels and copies of operators,
/// `cpp/capture.cpp` waits once the operator is recorded.
pub(crate) fn wait_for_launch(stream: Handle) -> Result<(), Status> {
    if !device::launches_block() || capture_info(stream)?.is_some() {
        return Ok(());
    }
    synchronize(stream)
}

/// Waits until all streams of the thread's device are empty.
pub(crate) fn synchronize_device() -> Result<(), Status> {
    lock().prepare()?;
    check_unsafe_call()?;
    wait(|link| (link.synchronize_device)(device::current() as u32));
    cupti::waited(cupti::Waited::Device, device::current(), None, None);
    arrivals::wait_for_all();
    Ok(())
}

/// Whether a stream is empty. If so, communication on it has delivered its data.
pub(crate) fn query(stream: Handle) -> Result<bool, Status> {
    let number = lock().uncaptured(stream)?;
    let is_empty = ask(|link| (link.query_stream)(number));
    if is_empty {
        arrivals::fetch_of_empty_stream(number);
    }
    Ok(is_empty)
}

/// Creates an event on the thread's device.
pub(crate) fn create_event(flags: u32) -> Result<Handle, Status> {
    let mut state = lock();
    state.prepare()?;
    Ok(Kind::Event.handle(state.add_event(device::current(), flags)))
}

/// Destroys an event; work that waits for it still waits.
pub(crate) fn destroy_event(event: Handle) -> Result<(), Status> {
    let mut state = lock();
    let number = state.event(event)?;
    state.events[number].exists = false;
    Ok(())
}

/// `cudaEventRecordExternal` and `cudaEventWaitExternal`: in a captured stream, the event is outside of the graph.
const EXTERNAL: u32 = 1;

/// Records an event behind the work on a stream. On a captured stream, an `EXTERNAL` event is recorded at each launch
/// of the graph.
pub(crate) fn record(event: Handle, stream: Handle, flags: u32) -> Result<(), Status> {
    let mut state = lock();
    let (number, stream) = (state.event(event)?, state.resolve(stream)?);
    if state.events[number].device != state.streams[stream as usize].device {
        return Err(INVALID_HANDLE);
    }
    if flags & EXTERNAL != 0 && state.streams[stream as usize].capture.is_some() {
        return state.submit(stream, Node::Record { event: number as u32 });
    }
    state.order(stream);
    cupti::recorded_event(number as u32, state.place(stream).device, stream);
    state.record(number, stream)
}

/// Makes later work on a stream wait for an event. On a captured stream, the wait for an `EXTERNAL` event happens at
/// each launch of the graph.
pub(crate) fn wait_event(stream: Handle, event: Handle, flags: u32) -> Result<(), Status> {
    let mut state = lock();
    let (stream, number) = (state.resolve(stream)?, state.event(event)?);
    if flags & EXTERNAL != 0 && state.streams[stream as usize].capture.is_some() {
        return state.submit(stream, Node::Wait { event: number as u32 });
    }
    state.join(stream, number)?;
    if state.events[number].records > 0 || state.events[number].captured.is_some() {
        state.order(stream);
        arrivals::wait_event(stream, number as u32);
        tell(|link| (link.wait_event)(stream, number as u32));
        let device = state.place(stream).device;
        cupti::waited(cupti::Waited::StreamForEvent, device, Some(stream), Some(number as u32));
    }
    Ok(())
}

/// Waits for an event.
pub(crate) fn synchronize_event(event: Handle) -> Result<(), Status> {
    match lock().recorded(event)? {
        None => Ok(()),
        Some((number, records)) => {
            wait(|link| (link.synchronize_event)(number, records));
            cupti::waited(cupti::Waited::Event, device::current(), None, Some(number));
            arrivals::wait_for_event(number);
            Ok(())
        }
    }
}

/// Whether an event has happened; true if it was never recorded.
pub(crate) fn query_event(event: Handle) -> Result<bool, Status> {
    let Some((number, records)) = lock().recorded(event)? else { return Ok(true) };
    let has_happened = ask(|link| (link.query_event)(number, records));
    // Data that the event depends on is fetched now, because the program may use it without making a stream wait for
    // the event.
    if has_happened {
        arrivals::fetch_of_past_event(number);
    }
    Ok(has_happened)
}

/// Milliseconds from `start` to `end`.
pub(crate) fn elapsed(start: Handle, end: Handle) -> Result<f32, Status> {
    let (start, end) = {
        let state = lock();
        let timed = |event| {
            let number = state.event(event)?;
            if state.events[number].flags & NO_TIMING != 0 {
                Err(INVALID_HANDLE)
            } else {
                let (event, records) = state.recorded(event)?.ok_or(INVALID_HANDLE)?;
                Ok(Recorded { event, records })
            }
        };
        (timed(start)?, timed(end)?)
    };
    match link().map_or(0, |link| (link.elapsed)(start, end)) {
        NOT_ELAPSED => Err(NOT_READY),
        nanoseconds => Ok((nanoseconds as f64 / 1e6) as f32),
    }
}

fn tell(say: impl FnOnce(&Link)) {
    if let Some(link) = link() {
        say(link);
    }
}

/// Waits in virtual time. Callers must not hold the lock of the state.
fn wait(until: impl FnOnce(&Link)) {
    tell(until);
}

fn ask(question: impl FnOnce(&Link) -> c_int) -> bool {
    link().is_none_or(|link| question(link) != 0)
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    const fn new() -> State {
        State {
            streams: Vec::new(),
            legacy: BTreeMap::new(),
            events: Vec::new(),
            graphs: Vec::new(),
            execs: Vec::new(),
            captures: 0,
            epochs: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    /// Creates object 0 of each kind: the legacy default stream of the rank's own device, and placeholders for no event
    /// and no graph.
    fn prepare(&mut self) -> Result<(), Status> {
        attached().ok_or(NO_DEVICE)?;
        device::mark_used(device::current());
        if self.streams.is_empty() {
            let own = device::own().unwrap_or(0);
            self.streams.push(Stream::new(own, 0, 0, true));
            self.legacy.insert(own, 0);
            self.events.push(Event { device: 0, flags: 0, exists: false, records: 0, captured: None });
            self.graphs.push(graphs::Graph::default());
            self.execs.push(graphs::Exec::default());
        }
        Ok(())
    }

    fn add_stream(&mut self, device: usize, flags: u32, priority: c_int, is_legacy: bool) -> u32 {
        let number = self.streams.len() as u32;
        self.streams.push(Stream::new(device, flags, priority, is_legacy));
        tell(|link| (link.stream)(number, device as u32, priority));
        number
    }

    fn add_event(&mut self, device: usize, flags: u32) -> usize {
        self.events.push(Event { device, flags, exists: true, records: 0, captured: None });
        self.events.len() - 1
    }

    /// The number of a stream.
    fn resolve(&mut self, stream: Handle) -> Result<u32, Status> {
        self.prepare()?;
        let device = device::current();
        match stream as usize {
            0 | 1 => match self.legacy.get(&device) {
                Some(number) => Ok(*number),
                None => {
                    let number = self.add_stream(device, 0, 0, true);
                    self.legacy.insert(device, number);
                    Ok(number)
                }
            },
            2 => PER_THREAD
                .with_borrow_mut(|own| Ok(*own.entry(device).or_insert_with(|| self.add_stream(device, 0, 0, false)))),
            _ => {
                let number = Kind::Stream.number(stream)?;
                self.streams.get(number).filter(|stream| stream.exists).ok_or(INVALID_HANDLE)?;
                Ok(number as u32)
            }
        }
    }

    /// Number of a stream, which must be on the thread's device.
    fn on_current(&mut self, stream: Handle) -> Result<u32, Status> {
        let number = self.resolve(stream)?;
        if self.streams[number as usize].device == device::current() { Ok(number) } else { Err(INVALID_HANDLE) }
    }

    fn event(&self, event: Handle) -> Result<usize, Status> {
        let number = Kind::Event.number(event)?;
        self.events.get(number).filter(|event| event.exists).map(|_| number).ok_or(INVALID_HANDLE)
    }

    /// Number and record count of an event that may be queried; `None` if it was never recorded.
    fn recorded(&self, event: Handle) -> Result<Option<(u32, u32)>, Status> {
        let number = self.event(event)?;
        match &self.events[number] {
            Event { captured: Some(_), .. } => Err(CAPTURED_EVENT),
            event => Ok((event.records > 0).then_some((number as u32, event.records))),
        }
    }

    /// Number of a stream that may be queried; a query during a capture invalidates the capture.
    fn uncaptured(&mut self, stream: Handle) -> Result<u32, Status> {
        let number = self.resolve(stream)?;
        match &mut self.streams[number as usize].capture {
            Some(capture) => {
                let graph = capture.graph;
                self.graphs[graph].is_invalid = true;
                Err(CAPTURE_UNSUPPORTED)
            }
            None => Ok(number),
        }
    }

    /// Starts work on a stream, or adds it to the graph that the stream captures.
    fn submit(&mut self, stream: u32, node: Node) -> Result<(), Status> {
        self.check_priority(stream);
        let captured = self.capture_node(stream, &node)?;
        if captured.is_none() {
            self.order(stream);
            node.move_bytes()?;
        }
        if let Some(number) = captured.or_else(|| cupti::launches(self.place(stream), || node.leaves())) {
            tell(|link| (link.number)(number));
        }
        node.tell(stream, 0);
        Ok(())
    }

    /// Warns once that work is launched on a stream with a priority.
    fn check_priority(&self, stream: u32) {
        static WARNING: Once = Once::new();
        if self.streams[stream as usize].priority != PRIORITIES.0 {
            WARNING.call_once(|| {
                warn("priorities of CUDA streams are not modelled: kernels of all streams share a GPU equally")
            });
        }
    }

    fn place(&self, stream: u32) -> Place {
        let Stream { device, priority, .. } = self.streams[stream as usize];
        Place { device, stream, priority }
    }

    /// Counts a record of an event outside of a graph, at the graph's launch.
    fn has_recorded(&mut self, event: u32) {
        let event = &mut self.events[event as usize];
        (event.records, event.captured) = (event.records + 1, None);
    }

    fn record(&mut self, event: usize, stream: u32) -> Result<(), Status> {
        let captured = self.streams[stream as usize].capture.as_ref().map(|c| (c.graph, c.frontier.clone()));
        let event_state = &mut self.events[event];
        event_state.records += u32::from(captured.is_none());
        event_state.captured = captured;
        arrivals::record(event as u32, stream);
        tell(|link| (link.record)(event as u32, stream));
        Ok(())
    }

    /// Applies implicit synchronisation before work starts on a stream: the legacy default stream of a device and all
    /// its streams that are not `NON_BLOCKING` wait for each other (CUDA Runtime API, "Stream synchronization
    /// behavior"). It uses internal events.
    fn order(&mut self, stream: u32) {
        let (device, flags, is_legacy) = {
            let stream = &self.streams[stream as usize];
            if stream.capture.is_some() {
                return;
            }
            (stream.device, stream.flags, stream.is_legacy)
        };
        let Some(legacy) = self.legacy.get(&device).copied() else {
            self.streams[stream as usize].is_dirty = true;
            return;
        };
        if is_legacy {
            *self.epochs.entry(device).or_default() += 1;
            for other in 0..self.streams.len() as u32 {
                let each = &self.streams[other as usize];
                if each.device == device && each.is_dirty && !each.is_legacy && each.flags & NON_BLOCKING == 0 {
                    self.fence(other, stream);
                    self.streams[other as usize].is_dirty = false;
                }
            }
        } else if flags & NON_BLOCKING == 0 {
            let epoch = self.epochs.get(&device).copied().unwrap_or(0);
            if self.streams[stream as usize].epoch < epoch {
                self.fence(legacy, stream);
                self.streams[stream as usize].epoch = epoch;
            }
            self.streams[stream as usize].is_dirty = true;
        }
    }

    /// Makes later work on `then` wait for the work on `first`.
    fn fence(&mut self, first: u32, then: u32) {
        let event = match self.streams[first as usize].fence {
            Some(event) => event,
            None => {
                let event = self.add_event(self.streams[first as usize].device, NO_TIMING) as u32;
                self.streams[first as usize].fence = Some(event);
                event
            }
        };
        arrivals::record(event, first);
        arrivals::wait_event(then, event);
        tell(|link| {
            (link.record)(event, first);
            (link.wait_event)(then, event);
        });
    }
}

impl Stream {
    fn new(device: usize, flags: u32, priority: c_int, is_legacy: bool) -> Stream {
        let (exists, capture, is_dirty, epoch, fence) = (true, None, false, 0, None);
        Stream { device, priority, flags, is_legacy, exists, capture, is_dirty, epoch, fence }
    }
}
