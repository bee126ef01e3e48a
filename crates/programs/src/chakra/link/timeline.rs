//! Owns the timeline of one rank: its pieces of work, and the dependencies of each.
//!
//! **Threads.** A thread's time from its first span to its last is split into pieces: at changes of the innermost
//! operator, at launches on the accelerator, and at waits. Each piece follows the previous one. Time between operators
//! (Python's own) is work of the thread like any other.
//!
//! **Waits** are dependencies, not work. A thread waits
//! - in synchronisation of a device, a CUDA stream or an event, and in a copy from or to pageable memory, for the
//!   kernels concerned: the rest of the call after their end is work;
//! - for another thread: PyTorch runs the backward pass on its own threads, and no file records their dependencies. A
//!   pause of the main thread in which a worker finished and became idle counts as a wait for that worker, and a pause
//!   of a worker in which the main thread was active counts as a wait for the main thread;
//! - for operations that Gloo executes on its own threads, before the next operator of the issuing thread.
//!
//! **CUDA streams.** A kernel follows the previous kernel of its stream, its launch, and the events that its stream
//! waits for. Newer profiles name the event; in older ones a wait counts for the stream of the thread's next launch,
//! and the stream that it waits for is assumed to be the one whose kernel ended last before the waiting stream's next
//! kernel started. A kernel that starts right after the end of a kernel on another stream, and after a pause, is
//! assumed to have waited for that kernel too.

use super::comm::{self, Comm, Source};
use super::host::HostTrace;
use super::iterations::Window;
use super::matching::Matching;
use super::profile::{Category, Event, Profile};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, VecDeque};

/// Minimum duration of a thread's pause that counts as a wait; shorter pauses are the thread's own work.
const PAUSE_NS: i64 = 20_000;
/// Minimum duration of a pause for threads that are not known to work together.
const LONG_PAUSE_NS: i64 = 100_000;
/// Maximum difference between the clocks of host and accelerator.
const SKEW_NS: i64 = 5_000;
/// Maximum time from the end of a kernel to the start of another one that is assumed to have waited for it.
const RIGHT_AFTER_NS: i64 = 15_000;
/// Number of streams that are searched for the kernel that a kernel or call waited for.
const STREAMS: usize = 64;

/// The thread or CUDA stream of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lane {
    Thread(i64),
    /// Device and stream.
    Stream(i64, i64),
}

/// A piece of work.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) what: ItemKind,
    pub(super) lane: Lane,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    /// Time at which the host launched the item.
    pub(super) issued_ns: i64,
    /// The items that end before this one starts.
    pub(super) deps: Vec<u32>,
}

/// Kind of an item.
#[derive(Debug)]
pub(super) enum ItemKind {
    /// A part of an operator or of an annotation, or time between operators. `first`: this is the first part of its
    /// event.
    Host { event: Option<u32>, first: bool },
    /// A kernel, memory copy or memset.
    Kernel(u32),
    /// A kernel or a mark of Gloo that communicates.
    Communication(u32, Box<Comm>),
    /// A communication whose description is incomplete, and the reason.
    Unknown(u32, &'static str),
}

/// All items of a rank.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) items: Vec<Item>,
    /// Number of kernels and copies, and of those among them with a known launch.
    pub(super) kernels: usize,
    pub(super) launched: usize,
}

/// Recordings of one rank, matched.
#[derive(Clone, Copy)]
pub(super) struct RankFiles<'a> {
    pub(super) profile: &'a Profile,
    pub(super) host: Option<(&'a HostTrace, &'a Matching)>,
    pub(super) window: &'a Window,
}

#[derive(Clone, Copy, Debug)]
enum Dependency {
    Kernel(usize),
    /// The last piece of a thread that ended by a time.
    Thread(i64, i64),
    /// A mark of one of Gloo's operations.
    Mark(u32),
}

#[derive(Debug)]
struct Wait {
    from: i64,
    until: i64,
    deps: Vec<Dependency>,
}

struct Kernel {
    event: u32,
    lane: Lane,
    /// Time of the launch; without a launch, the kernel's own start.
    launched_ns: i64,
}

#[derive(Default)]
struct Thread {
    /// Operators and annotations.
    spans: Vec<u32>,
    calls: Vec<u32>,
    /// Times in which operators or calls run; adjacent ones are merged.
    busy: Vec<(i64, i64)>,
    waits: Vec<Wait>,
    cuts: Vec<i64>,
    backward: bool,
}

struct Builder<'a> {
    recording: RankFiles<'a>,
    threads: BTreeMap<i64, Thread>,
    kernels: Vec<Kernel>,
    /// Kernels of each stream, by their start.
    streams: BTreeMap<Lane, Vec<usize>>,
    by_correlation: FxHashMap<u64, Vec<usize>>,
    /// Synchronisations by correlation, and calls by correlation.
    syncs: FxHashMap<u64, u32>,
    calls: FxHashMap<u64, u32>,
    items: Vec<Item>,
    of_thread: FxHashMap<i64, Vec<u32>>,
    of_mark: FxHashMap<u32, u32>,
    /// For each launching call, the piece before the call, and the communication operators around it.
    launcher: FxHashMap<u32, (u32, Vec<u32>)>,
    late: Vec<(u32, Dependency)>,
    /// For each mark, the operator that issued the operation.
    issuers: FxHashMap<u32, u32>,
}

/// Splits a rank's recording into items.
pub(super) fn take_apart(recording: RankFiles<'_>) -> Timeline {
    let mut builder = Builder {
        recording,
        threads: BTreeMap::new(),
        kernels: Vec::new(),
        streams: BTreeMap::new(),
        by_correlation: FxHashMap::default(),
        syncs: FxHashMap::default(),
        calls: FxHashMap::default(),
        items: Vec::new(),
        of_thread: FxHashMap::default(),
        of_mark: FxHashMap::default(),
        launcher: FxHashMap::default(),
        late: Vec::new(),
        issuers: FxHashMap::default(),
    };
    builder.select();
    builder.wait_for_the_accelerator();
    builder.wait_for_threads();
    builder.wait_for_marks();
    let threads: Vec<i64> = builder.threads.keys().copied().collect();
    threads.into_iter().for_each(|thread| builder.cut(thread));
    builder.add_kernels();
    builder.tidy();
    let launched = builder.kernels.iter().filter(|kernel| builder.call_of(kernel).is_some()).count();
    Timeline { kernels: builder.kernels.len(), launched, items: builder.items }
}

impl<'a> Builder<'a> {
    fn event(&self, index: u32) -> &'a Event {
        &self.recording.profile.events[index as usize]
    }

    fn name(&self, index: u32) -> &'a str {
        self.recording.profile.name(self.event(index))
    }

    fn call_of(&self, kernel: &Kernel) -> Option<u32> {
        self.calls.get(&self.event(kernel.event).correlation?).copied()
    }

    /// Collects the events of the iteration: spans and calls by thread, kernels by stream. A kernel belongs to the
    /// iteration of its launch.
    fn select(&mut self) {
        let RankFiles { profile, window, .. } = self.recording;
        let indexed = || (0_u32..).zip(&profile.events);
        for (index, event) in indexed() {
            match (event.category, event.correlation) {
                (Category::Call, Some(correlation)) => drop(self.calls.insert(correlation, index)),
                (Category::Sync, Some(correlation)) => drop(self.syncs.insert(correlation, index)),
                _ => {}
            }
        }
        for (index, event) in indexed() {
            let thread = || Lane::Thread(event.lane);
            match event.category {
                Category::Operator | Category::Annotation | Category::Call if window.contains(event.start_ns) => {
                    debug_assert!(matches!(thread(), Lane::Thread(_)));
                    let thread = self.threads.entry(event.lane).or_default();
                    match event.category {
                        Category::Call => thread.calls.push(index),
                        _ => thread.spans.push(index),
                    }
                }
                Category::Kernel | Category::Copy => {
                    let call = event.correlation.and_then(|correlation| self.calls.get(&correlation));
                    let launched_ns = call.map_or(event.start_ns, |call| self.event(*call).start_ns);
                    if window.contains(launched_ns) {
                        let lane = Lane::Stream(event.device, event.lane);
                        let kernel = self.kernels.len();
                        self.streams.entry(lane).or_default().push(kernel);
                        if let Some(correlation) = event.correlation {
                            self.by_correlation.entry(correlation).or_default().push(kernel);
                        }
                        self.kernels.push(Kernel { event: index, lane, launched_ns });
                    }
                }
                _ => {}
            }
        }
        let launches = |call: &u32| {
            self.event(*call).correlation.is_some_and(|correlation| self.by_correlation.contains_key(&correlation))
        };
        // Threads without spans and launches, such as NCCL's watchdog, only poll, and are left out.
        let works = |thread: &Thread| !thread.spans.is_empty() || thread.calls.iter().any(launches);
        let idle: Vec<i64> =
            self.threads.iter().filter(|(_, thread)| !works(thread)).map(|(thread, _)| *thread).collect();
        idle.iter().for_each(|thread| drop(self.threads.remove(thread)));
        for thread in self.threads.values_mut() {
            let operators =
                thread.spans.iter().filter(|span| profile.events[**span as usize].category == Category::Operator);
            thread.backward = operators.clone().any(|span| {
                profile.name(&profile.events[*span as usize]).starts_with("autograd::engine::evaluate_function")
            });
            let mut busy: Vec<(i64, i64)> = operators
                .chain(&thread.calls)
                .map(|index| &profile.events[*index as usize])
                .map(|event| (event.start_ns, event.end_ns))
                .collect();
            busy.sort_unstable();
            for (start, end) in busy {
                match thread.busy.last_mut() {
                    Some(last) if start <= last.1 => last.1 = last.1.max(end),
                    _ => thread.busy.push((start, end)),
                }
            }
        }
    }

    /// The last kernel of a stream that was launched before `launched` and ended by `ended`.
    fn last_on(&self, stream: &[usize], launched: i64, ended: i64) -> Option<usize> {
        let before = stream.partition_point(|kernel| self.kernels[*kernel].launched_ns < launched);
        let over = stream.partition_point(|kernel| self.event(self.kernels[*kernel].event).end_ns <= ended);
        stream[..before.min(over)].last().copied()
    }

    fn wait_for_the_accelerator(&mut self) {
        let mut waits: Vec<(i64, Wait)> = Vec::new();
        for (id, thread) in &self.threads {
            let mut last_stream: Option<Lane> = None;
            for call in &thread.calls {
                let Event { start_ns, end_ns, correlation, .. } = *self.event(*call);
                let launched = correlation.and_then(|correlation| self.by_correlation.get(&correlation));
                let kernels = self.awaited(*call, launched.map(Vec::as_slice), last_stream);
                if let Some(first) = launched.and_then(|launched| launched.first()) {
                    last_stream = Some(self.kernels[*first].lane);
                }
                let until = kernels.iter().map(|kernel| self.event(self.kernels[*kernel].event).end_ns).max();
                if let Some(until) = until {
                    let deps = kernels.into_iter().map(Dependency::Kernel).collect();
                    waits.push((*id, Wait { from: start_ns, until: until.clamp(start_ns, end_ns), deps }));
                }
            }
        }
        for (thread, wait) in waits {
            self.threads.get_mut(&thread).expect("it has a call").waits.push(wait);
        }
    }

    /// The kernels whose end a call waits for.
    fn awaited(&self, call: u32, launched: Option<&[usize]>, last_stream: Option<Lane>) -> Vec<usize> {
        let name = self.name(call);
        let Event { start_ns, end_ns, correlation, .. } = *self.event(call);
        let limit = end_ns + SKEW_NS;
        let sync = correlation.and_then(|correlation| self.syncs.get(&correlation)).map(|sync| self.event(*sync));
        let on = |lane: &Lane| self.streams.get(lane).and_then(|stream| self.last_on(stream, start_ns, limit));
        let ended_meanwhile = || {
            let last = self.streams.values().take(STREAMS).filter_map(|stream| self.last_on(stream, start_ns, limit));
            let end = |kernel: &usize| self.event(self.kernels[*kernel].event).end_ns;
            last.filter(|kernel| end(kernel) > start_ns).max_by_key(end)
        };
        if name.contains("DeviceSynchronize") || name.contains("CtxSynchronize") {
            return self.streams.keys().take(STREAMS).filter_map(on).collect();
        }
        if name.contains("StreamSynchronize") {
            let said = sync.map(|sync| Lane::Stream(sync.device, sync.lane));
            // A call without a recorded stream, as in a copy to the host, waits for the stream of the thread's last
            // launch.
            let kernel = said.or(last_stream).as_ref().and_then(on);
            return kernel.or_else(ended_meanwhile).into_iter().collect();
        }
        if name.contains("EventSynchronize") {
            let recorded = sync.and_then(|sync| {
                let (stream, record) = sync.waits_on?;
                let record = self.event(*self.calls.get(&record?)?);
                self.last_on(self.streams.get(&Lane::Stream(sync.device, stream))?, record.start_ns, limit)
            });
            return recorded.or_else(ended_meanwhile).into_iter().collect();
        }
        let copies = name.contains("Memcpy");
        if let Some(launched) = launched.filter(|_| copies) {
            let blocking = |kernel: &usize| {
                let copy = self.kernels[*kernel].event;
                let pageable = !name.contains("Async") || self.name(copy).contains("Pageable");
                pageable && self.event(copy).end_ns <= limit
            };
            return launched.iter().copied().filter(blocking).collect();
        }
        let frees = name.starts_with("cudaFree") || name.starts_with("hipFree");
        ended_meanwhile().filter(|_| frees).into_iter().collect()
    }

    /// The thread that runs the program: the one with marks of iterations, or else the first active one without a
    /// backward pass.
    fn main_thread(&self) -> Option<i64> {
        let marks = |thread: &Thread| {
            let mark = |span: &u32| {
                let name = self.name(*span);
                name.starts_with("ProfilerStep#") || name.starts_with("Optimizer.")
            };
            thread.spans.iter().any(mark)
        };
        let marked = self.threads.iter().find(|(_, thread)| marks(thread)).map(|(id, _)| *id);
        let first = || {
            let forward = self.threads.iter().filter(|(_, thread)| !thread.backward && !thread.busy.is_empty());
            forward.min_by_key(|(_, thread)| thread.busy[0].0).map(|(id, _)| *id)
        };
        marked.or_else(first)
    }

    /// Adds the waits of the main thread and its workers for each other.
    fn wait_for_threads(&mut self) {
        let Some(main) = self.main_thread() else { return };
        let of_main = std::mem::take(&mut self.threads.get_mut(&main).expect("just found").busy);
        // For each pause of the main thread, the latest end of a worker in that pause, and the worker.
        let mut joins: BTreeMap<usize, (i64, i64)> = BTreeMap::new();
        let mut main_cuts = Vec::new();
        for (id, worker) in self.threads.iter_mut().filter(|(id, _)| **id != main) {
            let pause = if worker.backward { PAUSE_NS } else { LONG_PAUSE_NS };
            let mut rests_since = None;
            for at in 0..worker.busy.len() {
                let (start, end) = worker.busy[at];
                let before =
                    of_main.partition_point(|(_, ended)| *ended <= start).checked_sub(1).map(|last| of_main[last].1);
                let rested = rests_since.is_none_or(|since| start - since >= pause);
                if let Some(cause) = before.filter(|cause| rested && rests_since.is_none_or(|since| *cause > since)) {
                    let deps = vec![Dependency::Thread(main, cause)];
                    worker.waits.push(Wait { from: rests_since.unwrap_or(i64::MIN), until: cause, deps });
                    main_cuts.push(cause);
                }
                rests_since = Some(end);
                let next = worker.busy.get(at + 1).map_or(i64::MAX, |next| next.0);
                // The main thread's pause around this end starts at the end of the main thread's last busy time.
                let resumes = of_main.partition_point(|(start, _)| *start < end);
                let (Some(paused), Some(resumed)) = (resumes.checked_sub(1), of_main.get(resumes)) else { continue };
                let from = of_main[paused].1;
                let rests = next >= resumed.0 && next.saturating_sub(end) >= PAUSE_NS;
                // `backward` blocks its thread, but PyTorch may still run single nodes of the graph on that thread
                // while the worker continues.
                let blocked = worker.backward && resumed.0 - from >= LONG_PAUSE_NS;
                let waits = from < end && end <= resumed.0 && resumed.0 - from >= pause && (rests || blocked);
                if waits && joins.get(&paused).is_none_or(|(latest, _)| *latest < end) {
                    joins.insert(paused, (end, *id));
                    worker.cuts.push(end);
                }
            }
        }
        let thread = self.threads.get_mut(&main).expect("just found");
        thread.cuts.extend(main_cuts);
        for (paused, (end, worker)) in joins {
            thread.waits.push(Wait {
                from: of_main[paused].1,
                until: end,
                deps: vec![Dependency::Thread(worker, end)],
            });
        }
        thread.busy = of_main;
    }

    /// Adds waits for Gloo's operations. Operations of a group are executed in the order of issue, so marks of one kind
    /// are in that order too.
    fn wait_for_marks(&mut self) {
        let mut spans: Vec<u32> = self.threads.values().flat_map(|thread| &thread.spans).copied().collect();
        spans.sort_unstable();
        let mut issued: BTreeMap<&str, VecDeque<u32>> = BTreeMap::new();
        let mut waits: Vec<(i64, Wait)> = Vec::new();
        let mut last_of: FxHashMap<i64, i64> = FxHashMap::default();
        for span in spans {
            let name = self.name(span);
            let plain = |kind: Option<comm::CommKind>| match kind {
                Some(comm::CommKind::Collective(kind)) => kind.name(),
                Some(comm::CommKind::Send) => "SEND",
                Some(comm::CommKind::Recv) => "RECV",
                None => "",
            };
            if let Some(operation) = name.strip_prefix("c10d::") {
                issued.entry(plain(comm::kind(operation))).or_default().push_back(span);
            }
            let Some(kind) = name.strip_prefix("gloo:").map(comm::kind) else { continue };
            let Event { lane, start_ns, end_ns, .. } = *self.event(span);
            let Some(issuer) = issued.get_mut(plain(kind)).and_then(VecDeque::pop_front) else { continue };
            self.issuers.insert(span, issuer);
            let from = last_of.insert(lane, end_ns).unwrap_or(i64::MIN);
            let by = self.event(issuer);
            if by.lane == lane {
                continue;
            }
            let handed_over = by.end_ns.min(start_ns);
            let until = handed_over.max(from);
            waits.push((lane, Wait { from, until, deps: vec![Dependency::Thread(by.lane, handed_over)] }));
            let Some(thread) = self.threads.get_mut(&by.lane) else { continue };
            thread.cuts.push(handed_over);
            let next = thread.busy.partition_point(|(start, _)| *start < end_ns);
            if next < thread.busy.len() {
                let paused = next.checked_sub(1).map_or(end_ns, |before| thread.busy[before].1);
                waits.push((
                    by.lane,
                    Wait { from: paused, until: end_ns.max(paused), deps: vec![Dependency::Mark(span)] },
                ));
            }
        }
        for (thread, wait) in waits {
            self.threads.get_mut(&thread).expect("it has a span").waits.push(wait);
        }
    }

    /// Splits a thread's time into pieces.
    fn cut(&mut self, id: i64) {
        let mut thread = self.threads.remove(&id).expect("asked for by its id");
        thread.waits.sort_by_key(|wait| wait.from);
        enum Point {
            Span(u32),
            Cut,
            Wait(Vec<Dependency>, i64),
            Launch(u32),
        }
        let mut points: Vec<(i64, u8, Point)> = Vec::new();
        points.extend(thread.spans.iter().map(|span| (self.event(*span).start_ns, 0, Point::Span(*span))));
        points.extend(thread.cuts.iter().map(|at| (*at, 1, Point::Cut)));
        for call in &thread.calls {
            let Event { start_ns, correlation, .. } = *self.event(*call);
            if correlation.is_some_and(|correlation| self.by_correlation.contains_key(&correlation)) {
                points.push((start_ns, 2, Point::Launch(*call)));
            }
        }
        // The launch of a copy comes before the wait for that copy.
        points.extend(thread.waits.into_iter().map(|wait| (wait.from, 3, Point::Wait(wait.deps, wait.until))));
        points.sort_by_key(|(at, order, _)| (*at, *order));
        let spans = thread.spans.iter().chain(&thread.calls).map(|index| self.event(*index));
        let (first, last) = spans
            .fold((i64::MAX, i64::MIN), |(first, last), event| (first.min(event.start_ns), last.max(event.end_ns)));
        let mut pieces = Pieces {
            builder: self,
            thread: id,
            cursor: first,
            open: Vec::new(),
            begun: FxHashSet::default(),
            pending: Vec::new(),
            broken: true,
            last: None,
        };
        for (at, _, point) in points {
            pieces.advance(at.max(first.min(pieces.cursor)));
            match point {
                Point::Span(span) if pieces.builder.name(span).starts_with("gloo:") => pieces.mark(span),
                Point::Span(span) => pieces.open.push(span),
                Point::Cut => pieces.broken = true,
                Point::Wait(deps, until) => {
                    if at == i64::MIN && pieces.last.is_none() {
                        pieces.cursor = until.min(pieces.cursor);
                    }
                    pieces.cursor = pieces.cursor.max(until);
                    pieces.pending.extend(deps);
                    pieces.broken = true;
                }
                Point::Launch(call) => pieces.launch(call),
            }
        }
        pieces.advance(last);
        if !pieces.pending.is_empty() {
            pieces.emit(pieces.cursor, true);
        }
    }

    fn add_kernels(&mut self) {
        let host_items = self.items.len() as u32;
        let exact = self.syncs.values().any(|sync| self.event(*sync).waits_on.is_some());
        let mut waits = self.stream_waits(exact);
        let mut ends: Vec<(i64, usize)> =
            self.kernels.iter().enumerate().map(|(at, kernel)| (self.event(kernel.event).end_ns, at)).collect();
        ends.sort_unstable();
        let mut before: FxHashMap<usize, usize> = FxHashMap::default();
        for stream in self.streams.values() {
            before.extend(stream.windows(2).map(|pair| (pair[1], pair[0])));
        }
        for at in 0..self.kernels.len() {
            let Kernel { event: index, lane, launched_ns } = self.kernels[at];
            let event = self.event(index);
            let call = self.call_of(&self.kernels[at]);
            let launcher = call.and_then(|call| self.launcher.get(&call));
            let mut deps: Vec<u32> = launcher.map(|(piece, _)| *piece).into_iter().collect();
            deps.extend(before.get(&at).map(|kernel| host_items + *kernel as u32));
            deps.extend(waits.remove(&at).unwrap_or_default().into_iter().map(|kernel| host_items + kernel as u32));
            let end_of = |dep: &u32| match dep.checked_sub(host_items) {
                Some(kernel) => self.event(self.kernels[kernel as usize].event).end_ns,
                None => self.items[*dep as usize].end_ns,
            };
            let ready = deps.iter().map(end_of).max().unwrap_or(i64::MIN);
            if !exact && event.start_ns.saturating_sub(ready) > RIGHT_AFTER_NS {
                let until = ends.partition_point(|(end, _)| *end <= event.start_ns);
                let recent = ends[..until]
                    .iter()
                    .rev()
                    .take(STREAMS)
                    .take_while(|(end, _)| event.start_ns - end <= RIGHT_AFTER_NS);
                let other = |kernel: &&(i64, usize)| {
                    self.kernels[kernel.1].lane != lane && self.kernels[kernel.1].launched_ns < launched_ns
                };
                deps.extend(recent.clone().find(other).map(|(_, kernel)| host_items + *kernel as u32));
            }
            let name = self.recording.profile.name(event);
            let is_kernel = event.category == Category::Kernel;
            let what = match is_kernel
                && (comm::is_nccl(name) || event.comm.as_ref().is_some_and(|comm| comm.collective.is_some()))
            {
                false => ItemKind::Kernel(index),
                true => {
                    let around = launcher.map_or(&[][..], |(_, around)| around);
                    let mut sources = vec![Source { name: "", args: event.comm.as_deref(), host: None }];
                    sources.extend(around.iter().rev().map(|span| self.source(*span)));
                    match comm::describe(&sources, name) {
                        Ok(comm) => ItemKind::Communication(index, Box::new(comm)),
                        Err(problem) => ItemKind::Unknown(index, problem),
                    }
                }
            };
            let Event { start_ns, end_ns, .. } = *event;
            self.items.push(Item { what, lane, start_ns, end_ns, issued_ns: launched_ns, deps });
        }
        for (item, dep) in std::mem::take(&mut self.late) {
            let on = match dep {
                Dependency::Kernel(kernel) => Some(host_items + kernel as u32),
                Dependency::Mark(mark) => self.of_mark.get(&mark).copied(),
                Dependency::Thread(thread, at) => self.of_thread.get(&thread).and_then(|pieces| {
                    let until = pieces.partition_point(|piece| self.items[*piece as usize].end_ns <= at);
                    pieces[..until].last().copied()
                }),
            };
            self.items[item as usize].deps.extend(on);
        }
    }

    /// Descriptions of a span in the profile and the host trace.
    fn source(&self, span: u32) -> Source<'a> {
        let host = self
            .recording
            .host
            .and_then(|(host, matching)| host.operators[*matching.operator.get(&span)? as usize].comm.as_deref());
        Source { name: self.name(span), args: self.event(span).comm.as_deref(), host }
    }

    /// For each kernel, the kernels of other streams that its stream waits for.
    fn stream_waits(&self, exact: bool) -> FxHashMap<usize, Vec<usize>> {
        let mut waits: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        if exact {
            for (correlation, sync) in &self.syncs {
                let sync = self.event(*sync);
                let (Some((on, record)), Some(call)) = (sync.waits_on, self.calls.get(correlation)) else { continue };
                let waiting = self.streams.get(&Lane::Stream(sync.device, sync.lane));
                let awaited = self.streams.get(&Lane::Stream(sync.device, on));
                let record = record.and_then(|record| self.calls.get(&record));
                let (Some(waiting), Some(awaited), Some(record)) = (waiting, awaited, record) else { continue };
                let next =
                    waiting.partition_point(|kernel| self.kernels[*kernel].launched_ns < self.event(*call).start_ns);
                let last = self.last_on(awaited, self.event(*record).start_ns, i64::MAX);
                if let (Some(next), Some(last)) = (waiting.get(next), last) {
                    waits.entry(*next).or_default().push(last);
                }
            }
            waits.values_mut().for_each(|list| list.sort_unstable());
            return waits;
        }
        let mut calls: Vec<u32> = self.calls.values().copied().collect();
        calls.sort_unstable();
        // For each thread, the times at which the thread made a stream wait, and the stream of the thread's last
        // launch.
        let mut told: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        let mut current: FxHashMap<i64, Lane> = FxHashMap::default();
        // For each thread, the end of the communication operator that has just launched its kernel. Later waits within
        // that operator are NCCL's own.
        let mut launched_until: FxHashMap<i64, i64> = FxHashMap::default();
        for call in calls {
            let Event { start_ns, lane: thread, correlation, .. } = *self.event(call);
            if self.name(call).contains("StreamWaitEvent") {
                if launched_until.get(&thread).is_none_or(|until| start_ns >= *until) {
                    told.entry(thread).or_default().push(start_ns);
                }
                continue;
            }
            let Some(kernel) = correlation.and_then(|id| self.by_correlation.get(&id)?.first()) else { continue };
            let lane = self.kernels[*kernel].lane;
            let around = self.launcher.get(&call).map_or(&[][..], |(_, around)| around);
            let span = around.iter().map(|span| self.event(*span)).map(|event| (event.start_ns, event.end_ns));
            match span.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))) {
                // A wait within a collective's operator is for the collective's stream, an earlier wait is not.
                Some((since, until)) => {
                    launched_until.insert(thread, until);
                    let list = told.entry(thread).or_default();
                    let inside = list.split_off(list.partition_point(|at| *at < since));
                    self.wait_on(&inside, lane, &mut waits);
                }
                None => {
                    self.wait_on(&told.remove(&thread).unwrap_or_default(), lane, &mut waits);
                    current.insert(thread, lane);
                }
            }
        }
        for (thread, list) in told {
            if let Some(lane) = current.get(&thread) {
                self.wait_on(&list, *lane, &mut waits);
            }
        }
        waits
    }

    /// Adds the waits of `lane`, which was made to wait for other streams at these times: its next kernel, launched by
    /// any thread, waits for the kernels of other streams that ended last before its start, at most one per time.
    fn wait_on(&self, told: &[i64], lane: Lane, waits: &mut FxHashMap<usize, Vec<usize>>) {
        let (Some(at), Some(stream)) = (told.last(), self.streams.get(&lane)) else { return };
        let next = stream.partition_point(|kernel| self.kernels[*kernel].launched_ns < *at);
        let Some(kernel) = stream.get(next) else { return };
        let starts = self.event(self.kernels[*kernel].event).start_ns;
        let others = self.streams.iter().take(STREAMS).filter(|(other, _)| **other != lane);
        let mut last: Vec<usize> = others.filter_map(|(_, stream)| self.last_on(stream, *at, starts + 1_000)).collect();
        last.sort_by_key(|kernel| std::cmp::Reverse(self.event(self.kernels[*kernel].event).end_ns));
        last.truncate(told.len());
        waits.entry(*kernel).or_default().extend(last);
    }

    /// Drops dependencies of an item on itself and duplicate ones.
    fn tidy(&mut self) {
        for (at, item) in (0_u32..).zip(&mut self.items) {
            item.deps.sort_unstable();
            item.deps.dedup();
            item.deps.retain(|dep| *dep != at);
        }
    }
}

/// State of the split of a thread's time.
struct Pieces<'b, 'a> {
    builder: &'b mut Builder<'a>,
    thread: i64,
    cursor: i64,
    /// Spans around the cursor, the innermost one last.
    open: Vec<u32>,
    /// Spans that have a piece already.
    begun: FxHashSet<u32>,
    pending: Vec<Dependency>,
    /// Whether the next piece must be a new one, even if it belongs to the same span.
    broken: bool,
    last: Option<u32>,
}

impl Pieces<'_, '_> {
    fn advance(&mut self, to: i64) {
        while let Some(end) = self.open.last().map(|span| self.builder.event(*span).end_ns).filter(|end| *end <= to) {
            self.emit(end, false);
            self.open.pop();
        }
        self.emit(to, false);
    }

    /// Adds a piece from the cursor to `until`, an empty one only if it is `wanted`.
    fn emit(&mut self, until: i64, wanted: bool) {
        if until <= self.cursor && !wanted {
            return;
        }
        let until = until.max(self.cursor);
        let event = self.open.last().copied();
        let items = &mut self.builder.items;
        if let Some(last) = self.last.filter(|_| !self.broken && !wanted)
            && let ItemKind::Host { event: before, .. } = items[last as usize].what
            && before == event
        {
            items[last as usize].end_ns = until;
            self.cursor = until;
            return;
        }
        let first = event.is_some_and(|event| self.begun.insert(event));
        self.push(ItemKind::Host { event, first }, until);
    }

    fn push(&mut self, what: ItemKind, until: i64) {
        let item = self.builder.items.len() as u32;
        let deps = self.last.into_iter().collect();
        let start_ns = self.cursor;
        let lane = Lane::Thread(self.thread);
        self.builder.items.push(Item { what, lane, start_ns, end_ns: until, issued_ns: start_ns, deps });
        self.builder.late.extend(self.pending.drain(..).map(|dep| (item, dep)));
        self.builder.of_thread.entry(self.thread).or_default().push(item);
        self.last = Some(item);
        self.cursor = until;
        self.broken = false;
    }

    /// Records a launch: the kernels depend on the pieces before it.
    fn launch(&mut self, call: u32) {
        if self.last.is_none() || !self.pending.is_empty() {
            self.emit(self.cursor, true);
        }
        let around =
            self.open.iter().copied().filter(|span| super::profile::is_communication(self.builder.name(*span)));
        let around: Vec<u32> = around.collect();
        self.builder.launcher.insert(call, (self.last.expect("there is a piece"), around));
        self.broken = true;
    }

    /// Adds communication that runs on this thread itself.
    fn mark(&mut self, span: u32) {
        let mut sources = vec![self.builder.source(span)];
        sources.extend(self.builder.issuers.get(&span).map(|issuer| self.builder.source(*issuer)));
        let what = match comm::describe(&sources, "") {
            Ok(comm) => ItemKind::Communication(span, Box::new(comm)),
            Err(problem) => ItemKind::Unknown(span, problem),
        };
        let end = self.builder.event(span).end_ns.max(self.cursor);
        self.push(what, end);
        self.builder.of_mark.insert(span, self.last.expect("just added"));
        self.broken = true;
    }
}
