//! Owns what ranks hold in memory: live bytes by kind over time, and the peak of each rank with the line at which it came.
//!
//! It reads the operators that ranks have captured (`uniference_formats::operators`), as they come and in bounded memory. An allocation may turn out late
//! to be what it is: a gradient is told of at the first step of the optimizer. So a kind that becomes known is counted from the allocation's
//! beginning on, in every moment that is kept: bytes are attributed by what an allocation eventually is.
//!
//! `attention.rs` tells which allocations are a KV cache, `timeline.rs` when a moment was in virtual time.

mod attention;
#[cfg(test)]
mod tests;
mod timeline;

use attention::{Attention, Finding};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
pub use timeline::Point;
use timeline::Timeline;
use uniference_formats::operators::{Decoder, Entry, Invalid, Line, MemoryKind, SourceLine};
use uniference_formats::report::MemoryReport;
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::{QueueId, RankId, TaskId};
use uniference_sim::program::{Activity, Request};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::{SimDuration, SimTime};

/// What an allocation is for.
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
    /// Keys and values that attention reads again and again.
    KvCache,
    /// Everything else: activations, inputs, temporary results, tensors for communication.
    Activations,
}

impl Kind {
    /// In the order of tables.
    pub const ALL: [Kind; 6] =
        [Kind::Parameters, Kind::Gradients, Kind::Optimizer, Kind::Buffers, Kind::KvCache, Kind::Activations];

    /// As `report.json` and the trace have it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Parameters => "parameters",
            Kind::Gradients => "gradients",
            Kind::Optimizer => "optimizer",
            Kind::Buffers => "buffers",
            Kind::KvCache => "kv_cache",
            Kind::Activations => "activations",
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

    /// Bytes of all kinds together; at most `u64::MAX`.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The kinds of which there are any bytes.
    pub fn present(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        Kind::ALL.into_iter().map(|kind| (kind, self.of(kind))).filter(|(_, bytes)| *bytes > 0)
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

/// The most that a rank has held at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// What it held then.
    pub held: ByKind,
    /// The line and the function of the operator during which the peak came; `None`: they are not known.
    pub line: Option<SourceLine>,
    /// That operator ran in the backward pass of the line.
    pub backward: bool,
}

/// What the ranks of a run have held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// By rank; `None`: its allocations are not known.
    pub peaks: Vec<Option<Peak>>,
    /// By rank, in the order of time: what was held from each point on. Empty where no timeline was kept.
    pub timelines: Vec<Vec<Point>>,
}

impl Held {
    /// The rows of `report.json`: for each rank, what it held of each kind at its peak.
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

/// Listens to a run, live or replayed: to the steps of its ranks, and to the engine's events.
pub struct Memory {
    ranks: Vec<RankMemory>,
    /// What tasks have captured and not been heard to compute yet: a slice may come in pieces.
    slices: BTreeMap<(RankId, TaskId), Vec<u8>>,
    invalid: Option<(RankId, Invalid)>,
}

impl Memory {
    /// Of so many ranks. `with_timelines`: what was held when is kept, too.
    pub fn new(ranks: usize, with_timelines: bool) -> Memory {
        let new = || RankMemory { timeline: with_timelines.then(Timeline::default), ..RankMemory::default() };
        Memory { ranks: (0..ranks).map(|_| new()).collect(), slices: BTreeMap::new(), invalid: None }
    }

    /// A rank takes a step; those of each rank come in their order.
    pub fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep) {
        match step {
            RecordedStep::Operators { operators, .. } => {
                self.slices.entry((rank, task)).or_default().extend_from_slice(operators);
            }
            // What runs on a stream does not allocate: the host did, before.
            RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), queue, .. })
                if queue.stream().is_none() =>
            {
                let slice = self.slices.remove(&(rank, task)).unwrap_or_default();
                let state = &mut self.ranks[rank.index()];
                if self.invalid.is_none()
                    && let Err(invalid) = state.read(&slice)
                {
                    self.invalid = Some((rank, invalid));
                }
                state.computes(task, work.duration);
            }
            RecordedStep::Request(_)
            | RecordedStep::After { .. }
            | RecordedStep::Named(_)
            | RecordedStep::HandlesInOrder => {}
        }
    }

    /// What was held.
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

/// What was held at one moment. Moments of a rank are numbered by what was allocated and freed before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moment {
    number: u64,
    held: ByKind,
}

#[derive(Clone, Copy)]
struct Allocation {
    bytes: u64,
    kind: Kind,
    /// The first moment at which it is held.
    since: u64,
}

/// What one rank holds.
#[derive(Default)]
struct RankMemory {
    decoder: Decoder,
    live: FxHashMap<u64, Allocation>,
    /// Freed by one thread before another one has said that it allocated it.
    freed_early: FxHashSet<u64>,
    now: Moment,
    peak: Moment,
    peak_line: Line,
    /// The operator during which the peak came has not been named yet: it is, when it has ended.
    in_peak: bool,
    /// The most that was held since the last slice ended.
    slice_peak: Moment,
    attention: Attention,
    timeline: Option<Timeline>,
}

impl RankMemory {
    /// Reads the next slice of the rank's stream.
    fn read(&mut self, slice: &[u8]) -> Result<(), Invalid> {
        let mut decoder = std::mem::take(&mut self.decoder);
        self.slice_peak = self.now;
        let read = decoder.read(slice, |decoder, entry| self.enter(decoder, entry));
        self.decoder = decoder;
        read
    }

    fn enter(&mut self, decoder: &Decoder, entry: Entry<'_>) {
        match entry {
            Entry::Allocated { allocation, bytes } => self.allocated(allocation, bytes),
            Entry::Freed { allocation } => self.freed(allocation),
            Entry::Kind { allocation, kind } => self.is_of_kind(allocation, Kind::told(kind)),
            Entry::Execution { definition, line, allocations } => {
                if std::mem::take(&mut self.in_peak) {
                    self.peak_line = line;
                }
                let found = self.attention.executed(&decoder.definitions()[definition], definition, line, allocations);
                for finding in found {
                    match finding {
                        Finding::Cache(allocation) => self.is_of_kind(allocation, Kind::KvCache),
                        Finding::NoCache(allocation) => self.is_no_cache(allocation),
                    }
                }
            }
            Entry::Timed { .. } | Entry::Answered { .. } | Entry::Stream(_) => {}
        }
    }

    fn allocated(&mut self, id: u64, bytes: u64) {
        self.now.number += 1;
        if self.freed_early.remove(&id) {
            return;
        }
        self.live.insert(id, Allocation { bytes, kind: Kind::Activations, since: self.now.number });
        self.attention.allocated(id);
        self.now.held.add(Kind::Activations, bytes);
        let total = self.now.held.total();
        if total > self.slice_peak.held.total() {
            self.slice_peak = self.now;
        }
        if total > self.peak.held.total() {
            self.peak = self.now;
            self.peak_line = Line::default();
            self.in_peak = true;
        }
    }

    fn freed(&mut self, id: u64) {
        self.now.number += 1;
        self.attention.freed(id);
        match self.live.remove(&id) {
            Some(Allocation { bytes, kind, .. }) => self.now.held.remove(kind, bytes),
            None => drop(self.freed_early.insert(id)),
        }
    }

    fn is_of_kind(&mut self, id: u64, kind: Kind) {
        let Some(allocation) = self.live.get_mut(&id) else { return };
        let before = allocation.kind;
        let told_less = before == Kind::KvCache && kind == Kind::Buffers;
        let told_more = kind == Kind::KvCache && ![Kind::Activations, Kind::Buffers].contains(&before);
        if before == kind || told_less || told_more {
            return;
        }
        allocation.kind = kind;
        let Allocation { bytes, since, .. } = *allocation;
        let kept = self.timeline.iter_mut().flat_map(Timeline::moments);
        for moment in kept.chain([&mut self.now, &mut self.peak, &mut self.slice_peak]) {
            if moment.number >= since {
                moment.held.remove(before, bytes);
                moment.held.add(kind, bytes);
            }
        }
    }

    /// It was taken for a KV cache, and a backward pass reads it.
    fn is_no_cache(&mut self, id: u64) {
        if self.live.get(&id).is_some_and(|allocation| allocation.kind == Kind::KvCache) {
            self.is_of_kind(id, Kind::Activations);
        }
    }

    /// What was read last is work of this duration.
    fn computes(&mut self, task: TaskId, duration: SimDuration) {
        if let Some(timeline) = &mut self.timeline {
            timeline.computes(task, duration, self.slice_peak, self.now);
        }
    }

    fn peak(&self) -> Option<Peak> {
        let line = self.decoder.source_line(self.peak_line.site).cloned();
        (self.peak.number > 0).then_some(Peak { held: self.peak.held, line, backward: self.peak_line.backward })
    }
}
