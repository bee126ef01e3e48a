//! Owns the memory that ranks hold: live bytes by kind over time, and each rank's peak with the line at which it
//! occurred.
//!
//! Its input is the operators that ranks have captured (`uniference_formats::operators`), read as they come and in
//! bounded memory. The kind of an allocation may become known late: a gradient is identified at the first step of the
//! optimizer. The new kind then counts from the allocation's beginning on, in every moment that is kept: bytes are
//! attributed to the last known kind of their allocation.
//!
//! The memory of a rank that has allocated on its GPU is that GPU's memory; the rank's memory on the host is counted
//! separately, without kinds. GPU memory includes memory that torch's allocator has reserved for later, and memory of
//! the context and of libraries.
//!
//! `attention.rs` finds allocations that are a KV cache, `timeline.rs` dates moments in virtual time.

mod attention;
#[cfg(test)]
mod tests;
mod timeline;

use attention::{Attention, Finding};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
pub use timeline::Point;
use timeline::{Segment, Timeline, joined};
use uniference_formats::operators::{Decoder, Entry, Invalid, Level, Line, MemoryKind, SourceLine, StreamEntry};
use uniference_formats::report::{HOST_MEMORY, MemoryReport};
use uniference_sim::device::HostCosts;
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::{QueueId, RankId, TaskId};
use uniference_sim::program::{Activity, Request};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::{SimDuration, SimTime};

/// The purpose of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A parameter of a module or an optimizer, or a leaf that requires a gradient.
    Parameters,
    /// A gradient that an optimizer has used.
    Gradients,
    /// State of an optimizer.
    Optimizer,
    /// A buffer of a module.
    Buffers,
    /// The KV cache of attention.
    KvCache,
    /// All other allocations: activations, inputs, temporary results, tensors for communication.
    Activations,
    /// GPU memory that torch's allocator has reserved and not allocated.
    Reserved,
    /// GPU memory of the context and of libraries, outside of torch's allocator.
    Context,
    /// Host memory of a rank that has a GPU: no part of its device's memory.
    Host,
}

impl Kind {
    /// All kinds, in the order of tables.
    pub const ALL: [Kind; 9] = [
        Kind::Parameters,
        Kind::Gradients,
        Kind::Optimizer,
        Kind::Buffers,
        Kind::KvCache,
        Kind::Activations,
        Kind::Reserved,
        Kind::Context,
        Kind::Host,
    ];

    /// The name in `report.json` and in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Parameters => "parameters",
            Kind::Gradients => "gradients",
            Kind::Optimizer => "optimizer",
            Kind::Buffers => "buffers",
            Kind::KvCache => "kv_cache",
            Kind::Activations => "activations",
            Kind::Reserved => "reserved",
            Kind::Context => "context",
            Kind::Host => HOST_MEMORY,
        }
    }

    fn told(kind: MemoryKind) -> Kind {
        match kind {
            MemoryKind::Parameter => Kind::Parameters,
            MemoryKind::Gradient => Kind::Gradients,
            MemoryKind::Optimizer => Kind::Optimizer,
            MemoryKind::Buffer => Kind::Buffers,
        }
    }
}

/// Bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByKind([u64; Kind::ALL.len()]);

impl ByKind {
    /// Bytes of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize]
    }

    /// Bytes of all kinds of the device's memory together; at most `u64::MAX`.
    pub fn total(&self) -> u64 {
        let of_device = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Host);
        of_device.fold(0, |sum, kind| sum.saturating_add(self.of(kind)))
    }

    /// The total bytes counted as host memory, for a rank that turns out to have a GPU.
    fn on_host(&self) -> ByKind {
        ByKind::from_iter([(Kind::Host, self.total())])
    }

    /// The key by which the larger of two peaks is chosen: total bytes, then bytes without reserved ones.
    fn weight(&self) -> (u64, u64) {
        (self.total(), self.total() - self.of(Kind::Reserved))
    }

    /// The kinds with at least one byte.
    pub fn present(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        Kind::ALL.into_iter().map(|kind| (kind, self.of(kind))).filter(|(_, bytes)| *bytes > 0)
    }

    fn set(&mut self, kind: Kind, bytes: u64) {
        self.0[kind as usize] = bytes;
    }

    fn add(&mut self, kind: Kind, bytes: u64) {
        self.0[kind as usize] = self.of(kind).saturating_add(bytes);
    }

    fn remove(&mut self, kind: Kind, bytes: u64) {
        self.0[kind as usize] = self.of(kind).saturating_sub(bytes);
    }
}

impl FromIterator<(Kind, u64)> for ByKind {
    fn from_iter<I: IntoIterator<Item = (Kind, u64)>>(bytes: I) -> ByKind {
        let mut sums = ByKind::default();
        bytes.into_iter().for_each(|(kind, bytes)| sums.add(kind, bytes));
        sums
    }
}

/// The largest memory that a rank has held at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// Bytes held at the peak; host memory of a rank with a GPU is the most that was held at any time.
    pub held: ByKind,
    /// The line and the function of the operator during which the peak occurred; `None` if they are unknown.
    pub line: Option<SourceLine>,
    /// Whether that operator ran in the backward pass of the line.
    pub backward: bool,
}

/// The memory that the ranks of a run have held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The peaks by rank; `None` if the rank's allocations are unknown.
    pub peaks: Vec<Option<Peak>>,
    /// The timelines by rank: memory held from each point on, in the order of time; empty if no timeline was kept.
    pub timelines: Vec<Vec<Point>>,
}

impl Held {
    /// The rows of `report.json`: the bytes of each kind that each rank held at its peak.
    pub fn report(&self) -> Vec<MemoryReport> {
        let of_rank = |(rank, peak): (u32, &Peak)| {
            let line = peak.line.as_ref();
            let row = |(kind, peak_bytes): (Kind, u64)| MemoryReport {
                rank,
                kind: kind.name().to_owned(),
                peak_bytes,
                line: line.map(|line| line.line.clone()),
                function: line.map(|line| line.function.clone()).filter(|function| !function.is_empty()),
                backward: peak.backward,
            };
            peak.held.present().map(row).collect::<Vec<_>>()
        };
        let known = (0..).zip(&self.peaks).filter_map(|(rank, peak)| Some((rank, peak.as_ref()?)));
        known.flat_map(of_rank).collect()
    }
}

/// An allocation that exceeds the memory of a rank's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The rank that makes the allocation.
    pub rank: RankId,
    /// Bytes that the rank holds including the allocation, without memory that torch's allocator has reserved but not
    /// used, which it would free.
    pub held: ByKind,
    /// Memory of the device in bytes.
    pub limit: u64,
    /// The line of the operator that makes the allocation; `None` if the line is unknown.
    pub line: Option<SourceLine>,
    /// Whether the operator runs in the backward pass of `line`.
    pub backward: bool,
}

/// Listens to the steps of the ranks of a live or replayed run, and to the engine's events.
pub struct Memory {
    ranks: Vec<RankMemory>,
    /// Ranks that have exceeded their limits, in the order in which the excess was found.
    exceeding: Vec<RankId>,
    /// Captured operators of tasks whose compute request has not been read yet: a slice may come in pieces.
    slices: BTreeMap<(RankId, TaskId), Vec<u8>>,
    invalid: Option<(RankId, Invalid)>,
}

impl Memory {
    /// A `Memory` of `ranks` ranks. `with_timelines` keeps the memory held over time as well.
    pub fn new(ranks: usize, with_timelines: bool) -> Memory {
        let new = || RankMemory { timeline: with_timelines.then(Timeline::default), ..RankMemory::default() };
        let ranks = (0..ranks).map(|_| new()).collect();
        Memory { ranks, exceeding: Vec::new(), slices: BTreeMap::new(), invalid: None }
    }

    /// A `Memory` with the device memory of each rank as its limit, if known: [`Memory::excess`] returns the first
    /// allocation that exceeds a limit.
    pub fn within(limits: &[Option<u64>]) -> Memory {
        let mut memory = Memory::new(limits.len(), false);
        memory.ranks.iter_mut().zip(limits).for_each(|(rank, limit)| rank.limit = *limit);
        memory
    }

    /// The first allocation that exceeds its rank's limit; if several ranks exceed theirs, the allocation that was
    /// found first.
    pub fn excess(&self) -> Option<Excess> {
        self.exceeding.iter().find_map(|rank| {
            let state = &self.ranks[rank.index()];
            let (mut held, line) = state.excess?;
            held.set(Kind::Reserved, 0);
            let source = state.decoder.source_line(line.site).cloned();
            Some(Excess { rank: *rank, held, limit: state.limit?, line: source, backward: line.backward })
        })
    }

    /// Whether the allocations of all ranks are unknown.
    pub fn knows_nothing(&self) -> bool {
        self.ranks.iter().all(|rank| rank.peak.number == 0)
    }

    /// Adds a step of a rank; steps of one rank come in their order.
    pub fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep) {
        match step {
            RecordedStep::Operators { operators, .. } => {
                self.slices.entry((rank, task)).or_default().extend_from_slice(operators);
                self.ranks[rank.index()].timeline.iter_mut().for_each(|timeline| timeline.closes(task));
            }
            // Work on a CUDA stream does not allocate: the host allocated before.
            RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), queue, .. })
                if queue.stream().is_none() =>
            {
                let slice = self.slices.remove(&(rank, task));
                let state = &mut self.ranks[rank.index()];
                if self.invalid.is_none()
                    && let Some(slice) = slice
                    && let Err(invalid) = state.read(&slice)
                {
                    self.invalid = Some((rank, invalid));
                }
                state.computes(task, work.duration);
                if state.excess.is_some() && !self.exceeding.contains(&rank) {
                    self.exceeding.push(rank);
                }
            }
            // Work issued to CUDA streams between pieces of the CPU's work does not end a compute slice.
            RecordedStep::Request(Request::Issue { queue, .. }) if queue.stream().is_some() => {}
            RecordedStep::Request(_) => {
                self.ranks[rank.index()].timeline.iter_mut().for_each(|timeline| timeline.closes(task));
            }
            RecordedStep::After { .. }
            | RecordedStep::Follows { .. }
            | RecordedStep::Named(_)
            | RecordedStep::HandlesInOrder => {}
        }
    }

    /// The memory that ranks have held.
    ///
    /// # Errors
    /// If a rank's operators could not be read to their end.
    pub fn finish(self) -> Result<Held, (RankId, Invalid)> {
        self.invalid.map_or(Ok(()), Err)?;
        let mut held = Held::default();
        for rank in self.ranks {
            held.peaks.push(rank.peak());
            held.timelines.push(rank.timeline.map(Timeline::finish).unwrap_or_default());
        }
        Ok(held)
    }
}

impl Observer for Memory {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        if let Event::Computed { rank, task, start, why, .. } = event
            && why.queue.and_then(QueueId::stream).is_none()
            && let Some(timeline) = &mut self.ranks[rank.index()].timeline
        {
            timeline.computed(*task, *start, at);
        }
    }
}

/// The memory held at one moment. A rank's moments are numbered by the allocations and frees before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moment {
    number: u64,
    held: ByKind,
}

#[derive(Clone, Copy)]
struct Allocation {
    bytes: u64,
    kind: Kind,
    on_gpu: bool,
    /// The first moment at which the allocation is held.
    since: u64,
}

/// The memory that one rank holds.
#[derive(Default)]
struct RankMemory {
    decoder: Decoder,
    live: FxHashMap<u64, Allocation>,
    /// Whether the rank has a GPU: then its GPU memory counts.
    has_gpu: bool,
    /// Bytes that torch's allocator has reserved on the GPU, and the allocated part of them.
    reserved: u64,
    allocated_on_gpu: u64,
    most_on_host: u64,
    /// Allocations that one thread freed before the allocating thread's capture was read.
    freed_early: FxHashSet<u64>,
    now: Moment,
    peak: Moment,
    peak_line: Line,
    /// Whether the operator during which the peak occurred has not been named yet: it is named when it has ended.
    in_peak: bool,
    /// Memory of the rank's device in bytes, if allocations are checked against it.
    limit: Option<u64>,
    /// Bytes that the rank held when it first exceeded `limit`, and the line of that allocation.
    excess: Option<(ByKind, Line)>,
    /// Whether the operator that exceeded `limit` has not been named yet.
    in_excess: bool,
    /// The maximum memory that was held since the end of the last segment of a compute slice.
    slice_peak: Moment,
    /// Segments of the compute slice that is being read, if a timeline is kept.
    segments: Vec<Segment>,
    /// Number of kernels that the running operator has launched.
    kernels: u64,
    attention: Attention,
    timeline: Option<Timeline>,
}

impl RankMemory {
    /// Reads the next slice of the rank's stream.
    fn read(&mut self, slice: &[u8]) -> Result<(), Invalid> {
        let mut decoder = std::mem::take(&mut self.decoder);
        self.slice_peak = self.now;
        let read = decoder.read(slice, |decoder, entry| {
            let weight = self.host_time(&entry);
            self.enter(decoder, entry);
            if weight > 0 && self.timeline.is_some() {
                self.end_segment(weight);
            }
        });
        self.decoder = decoder;
        self.end_segment(0);
        read
    }

    /// Launching CPU's time for an entry in nanoseconds, by the defaults of [`HostCosts`]. These times only
    /// determine the entries' shares of their slice's time. An operator's time includes the launch of its first kernel;
    /// each further kernel adds a launch.
    fn host_time(&mut self, entry: &Entry<'_>) -> u64 {
        let costs = HostCosts::default();
        let HostCosts { operator, launch, call, .. } = costs;
        let [operator, idle, launch, call] = [operator, costs.idle(), launch, call].map(|cost| cost.as_ps() / 1000);
        match entry {
            Entry::Execution { .. } => match std::mem::take(&mut self.kernels) {
                0 => idle,
                kernels => operator + launch * (kernels - 1),
            },
            Entry::Stream(StreamEntry::Launch { flags, .. }) if flags.inside => {
                self.kernels += 1;
                0
            }
            Entry::Stream(StreamEntry::Launch { flags, .. } | StreamEntry::Copy { flags, .. }) => {
                if flags.inside || flags.free { 0 } else { launch }
            }
            Entry::Stream(StreamEntry::GraphLaunch { .. } | StreamEntry::HostFunction { .. }) => launch,
            Entry::Stream(StreamEntry::Call { .. } | StreamEntry::Resumption { .. }) => 0,
            Entry::Stream(_) => call,
            _ => 0,
        }
    }

    fn end_segment(&mut self, weight: u64) {
        if self.timeline.is_some() {
            self.segments.push(Segment { weight, most: self.slice_peak, left: self.now });
            self.slice_peak = self.now;
        }
    }

    fn enter(&mut self, decoder: &Decoder, entry: Entry<'_>) {
        match entry {
            Entry::Allocated { allocation, bytes, on_gpu } => self.allocated(allocation, bytes, on_gpu),
            Entry::Level { level, bytes } => self.level(level, bytes),
            Entry::Freed { allocation } => self.freed(allocation),
            Entry::Kind { allocation, kind } => self.is_of_kind(allocation, Kind::told(kind)),
            Entry::Execution { definition, line, allocations, .. } => {
                if std::mem::take(&mut self.in_peak) {
                    self.peak_line = line;
                }
                if std::mem::take(&mut self.in_excess) {
                    self.excess = self.excess.map(|(held, _)| (held, line));
                }
                let found = self.attention.executed(&decoder.definitions()[definition], definition, line, allocations);
                for finding in found {
                    match finding {
                        Finding::Cache(allocation) => self.is_of_kind(allocation, Kind::KvCache),
                        Finding::NoCache(allocation) => self.is_no_cache(allocation),
                    }
                }
            }
            Entry::Timed { .. }
            | Entry::Answered { .. }
            | Entry::Called { .. }
            | Entry::Stream(_)
            | Entry::Integers { .. }
            | Entry::Reading(_)
            | Entry::Number(_)
            | Entry::PythonCalls(_) => {}
        }
    }

    fn allocated(&mut self, id: u64, bytes: u64, on_gpu: bool) {
        if on_gpu {
            self.gets_gpu();
        }
        self.now.number += 1;
        if self.freed_early.remove(&id) {
            return;
        }
        let kind = if self.has_gpu && !on_gpu { Kind::Host } else { Kind::Activations };
        self.live.insert(id, Allocation { bytes, kind, on_gpu, since: self.now.number });
        self.attention.allocated(id);
        self.now.held.add(kind, bytes);
        if on_gpu {
            self.allocated_on_gpu += bytes;
        }
        self.grown();
    }

    fn freed(&mut self, id: u64) {
        self.now.number += 1;
        self.attention.freed(id);
        match self.live.remove(&id) {
            Some(Allocation { bytes, kind, on_gpu, .. }) => {
                self.now.held.remove(kind, bytes);
                if on_gpu {
                    self.allocated_on_gpu -= bytes;
                    self.now.held.set(Kind::Reserved, self.reserved.saturating_sub(self.allocated_on_gpu));
                }
            }
            None => drop(self.freed_early.insert(id)),
        }
    }

    fn level(&mut self, level: Level, bytes: u64) {
        self.gets_gpu();
        self.now.number += 1;
        match level {
            Level::Reserved => self.reserved = bytes,
            Level::Context => self.now.held.set(Kind::Context, bytes),
        }
        self.grown();
    }

    /// Updates the peaks after memory may have grown.
    fn grown(&mut self) {
        self.now.held.set(Kind::Reserved, self.reserved.saturating_sub(self.allocated_on_gpu));
        self.most_on_host = self.most_on_host.max(self.now.held.of(Kind::Host));
        let weight = self.now.held.weight();
        if self.excess.is_none() && self.limit.is_some_and(|limit| weight.1 > limit) {
            self.excess = Some((self.now.held, Line::default()));
            self.in_excess = true;
        }
        if weight > self.slice_peak.held.weight() {
            self.slice_peak = self.now;
        }
        if weight > self.peak.held.weight() {
            self.peak = self.now;
            self.peak_line = Line::default();
            self.in_peak = true;
        }
    }

    /// Counts the rank's GPU memory from now on; its memory so far is host memory.
    fn gets_gpu(&mut self) {
        if std::mem::replace(&mut self.has_gpu, true) {
            return;
        }
        self.most_on_host = self.peak.held.total();
        self.live.values_mut().for_each(|allocation| allocation.kind = Kind::Host);
        let kept = self.timeline.iter_mut().flat_map(Timeline::moments);
        let segments = self.segments.iter_mut().flat_map(|segment| [&mut segment.most, &mut segment.left]);
        for moment in kept.chain(segments).chain([&mut self.now, &mut self.slice_peak]) {
            moment.held = moment.held.on_host();
        }
        self.peak = Moment::default();
        self.in_peak = false;
        (self.excess, self.in_excess) = (None, false);
    }

    fn is_of_kind(&mut self, id: u64, kind: Kind) {
        let Some(allocation) = self.live.get_mut(&id) else { return };
        let before = allocation.kind;
        if before == Kind::Host {
            return;
        }
        let told_less = before == Kind::KvCache && kind == Kind::Buffers;
        let told_more = kind == Kind::KvCache && ![Kind::Activations, Kind::Buffers].contains(&before);
        if before == kind || told_less || told_more {
            return;
        }
        allocation.kind = kind;
        let Allocation { bytes, since, .. } = *allocation;
        let kept = self.timeline.iter_mut().flat_map(Timeline::moments);
        let segments = self.segments.iter_mut().flat_map(|segment| [&mut segment.most, &mut segment.left]);
        for moment in kept.chain(segments).chain([&mut self.now, &mut self.peak, &mut self.slice_peak]) {
            if moment.number >= since {
                moment.held.remove(before, bytes);
                moment.held.add(kind, bytes);
            }
        }
    }

    /// Reclassifies a KV cache that a backward pass reads as activations.
    fn is_no_cache(&mut self, id: u64) {
        if self.live.get(&id).is_some_and(|allocation| allocation.kind == Kind::KvCache) {
            self.is_of_kind(id, Kind::Activations);
        }
    }

    /// Gives the segments that were read last to compute of this duration.
    fn computes(&mut self, task: TaskId, duration: SimDuration) {
        let segments = std::mem::take(&mut self.segments);
        if let Some(timeline) = &mut self.timeline {
            // Operators have durations of their own only on the launching CPU of a GPU.
            let all = segments.iter().copied().reduce(joined);
            let segments =
                if self.has_gpu { segments } else { all.map(|all| Segment { weight: 1, ..all }).into_iter().collect() };
            timeline.computes(task, duration, segments);
        }
    }

    fn peak(&self) -> Option<Peak> {
        let line = self.decoder.source_line(self.peak_line.site).cloned();
        let mut held = self.peak.held;
        held.set(Kind::Host, self.most_on_host);
        (self.peak.number > 0).then_some(Peak { held, line, backward: self.peak_line.backward })
    }
}
