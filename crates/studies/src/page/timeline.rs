//! Owns the rows of a page's timeline and their marks. [`super::marks`] keeps each row small.

use super::marks::{Mark, MarkKind, Row};
use crate::critical::{Kind, Step};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use uniference_sim::event::{Event, Observer, WaitReason};
use uniference_sim::ids::{QueueId, RankId, TaskId, stream_name};
use uniference_sim::program::Mark as RangeMark;
use uniference_sim::time::SimTime;

/// Number of ranks with rows: the first ones.
const MOST_RANKS: usize = 128;
/// Maximum number of marks of a row.
const MOST_IN_ROW: usize = 2_000;
/// Approximate number of marks of all rows together while a run is observed.
const MOST_KEPT: usize = 1 << 18;
/// Approximate number of marks of all rows of a page; each row has at least [`LEAST_IN_ROW`].
const MOST_ON_PAGE: usize = 20_000;
const LEAST_IN_ROW: usize = 32;
/// Number of levels of nested ranges that have a row.
const DEEPEST: usize = 3;
/// Number of rows for overlapping ranges.
const MOST_OVERLAPPING: usize = 32;

/// Observes a run for its ranks' activities over time.
pub(super) struct Timeline {
    rows: BTreeMap<(RankId, Part), Row>,
    most: usize,
    names: Names,
    /// Open ranges of each thread, in the order of their start.
    open: BTreeMap<(RankId, TaskId), Vec<OpenRange>>,
    /// Open ranges that may overlap, by number: row, name and start.
    overlapping: BTreeMap<(RankId, u32), (usize, u32, SimTime)>,
    /// Names that the program gave its threads.
    called: BTreeMap<(RankId, TaskId), String>,
}

/// A row of a rank; rows are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Task(TaskId),
    Stream(u32),
    Operations,
    /// Ranges of a thread within so many other ranges.
    Ranges(TaskId, usize),
    Overlapping(usize),
}

/// A range of a thread that has not ended.
#[derive(Clone, Copy)]
struct OpenRange {
    /// The range's number; `None` for a range that ends as its thread's innermost range without a number.
    number: Option<u32>,
    /// Index of the range's row among the rows of its thread.
    depth: usize,
    name: u32,
    since: SimTime,
}

/// Names by number.
#[derive(Default)]
struct Names {
    numbers: BTreeMap<String, u32>,
    texts: Vec<String>,
}

/// The page's data of a run's timeline. Times are picoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineChart {
    /// The rows, from top to bottom.
    pub rows: Vec<TimelineRow>,
    /// Names of the marks, by number.
    pub names: Vec<String>,
    /// Number of spans that the marks show.
    pub spans: u64,
    /// Number of ranks without rows.
    pub ranks_left_out: usize,
}

/// A row of the timeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineRow {
    /// The row's rank; `None` (null) for the critical path.
    pub rank: Option<u32>,
    /// `main thread`, `stream 7`.
    pub label: String,
    /// The marks in order of their starts.
    pub marks: Vec<Mark>,
}

impl Timeline {
    /// The timeline of `ranks` ranks.
    pub(super) fn new(ranks: usize) -> Timeline {
        let most = (MOST_KEPT / ranks.clamp(1, MOST_RANKS)).clamp(LEAST_IN_ROW, MOST_IN_ROW);
        let (open, overlapping, called) = Default::default();
        Timeline { rows: BTreeMap::new(), most, names: Names::default(), open, overlapping, called }
    }

    /// The rows, with the spans of the critical path above all others.
    pub(super) fn finish(mut self, ranks: usize, path: &[Step]) -> TimelineChart {
        let mut critical = Row::new(MOST_IN_ROW);
        for Step { start_ps, end_ps, what, .. } in path {
            let kind = match what.kind {
                kind if kind == Kind::Compute.name() => MarkKind::Compute,
                kind if [Kind::Sleep, Kind::TimeOut, Kind::Poll].map(Kind::name).contains(&kind) => MarkKind::Idle,
                _ => MarkKind::Network,
            };
            let place = what.link.clone().or(what.rank.map(|rank| format!("rank {rank}")));
            let name = what.name.as_ref().filter(|name| *name != what.kind).map(|name| format!(" in {name}"));
            let place = place.map(|place| format!(" of {place}"));
            let words = format!("{}{}{}", what.kind, place.unwrap_or_default(), name.unwrap_or_default());
            critical.add(Mark::new(*start_ps, *end_ps, kind, self.names.number(&words)));
        }
        let most = (MOST_ON_PAGE / (self.rows.len() + 1)).max(LEAST_IN_ROW);
        let mut spans = 0;
        let mut row = |rank: Option<RankId>, label: String, row: Row| {
            let (marks, count) = row.finish(most);
            spans += count;
            TimelineRow { rank: rank.map(|rank| rank.0), label, marks }
        };
        let critical = (!path.is_empty()).then(|| row(None, "critical path".to_owned(), critical));
        let called = &self.called;
        let label = |rank, part: Part| part.label(|task| called.get(&(rank, task)).map(String::as_str));
        let of_ranks = self.rows.into_iter().map(|((rank, part), marks)| row(Some(rank), label(rank, part), marks));
        let rows: Vec<TimelineRow> = critical.into_iter().chain(of_ranks).filter(|row| !row.marks.is_empty()).collect();
        TimelineChart { rows, names: self.names.texts, spans, ranks_left_out: ranks.saturating_sub(MOST_RANKS) }
    }

    fn mark(&mut self, rank: RankId, part: Part, start: SimTime, end: SimTime, kind: MarkKind, name: &str) {
        let mark = Mark::new(start.as_ps(), end.as_ps(), kind, self.names.number(name));
        let most = self.most;
        self.rows.entry((rank, part)).or_insert_with(|| Row::new(most)).add(mark);
    }

    fn range(&mut self, rank: RankId, task: TaskId, at: SimTime, mark: &RangeMark) {
        match mark {
            RangeMark::Begin(name) | RangeMark::Enter { name, .. } => {
                let name = self.names.number(name);
                let open = self.open.entry((rank, task)).or_default();
                let depth = (0..).find(|depth| open.iter().all(|its| its.depth != *depth)).expect("few are open");
                open.push(OpenRange { number: mark.number(), depth, name, since: at });
            }
            RangeMark::End | RangeMark::Leave { .. } => {
                let Some(open) = self.open.get_mut(&(rank, task)) else { return };
                let Some(ended) = open.iter().rposition(|its| its.number == mark.number()) else { return };
                let OpenRange { depth, name, since, .. } = open.remove(ended);
                self.show_range(rank, Part::Ranges(task, depth), name, since, at);
            }
            RangeMark::Open { range, name } => {
                self.range(rank, task, at, &RangeMark::Close { range: *range });
                let its = self.overlapping.range((rank, 0)..=(rank, u32::MAX));
                let taken: BTreeSet<usize> = its.map(|(_, (row, ..))| *row).collect();
                let row = (0..).find(|row| !taken.contains(row)).expect("there are more rows than ranges");
                let name = self.names.number(name);
                self.overlapping.insert((rank, *range), (row, name, at));
            }
            RangeMark::Close { range } => {
                if let Some((row, name, since)) = self.overlapping.remove(&(rank, *range)) {
                    self.show_range(rank, Part::Overlapping(row), name, since, at);
                }
            }
            RangeMark::Name(name) => drop(self.called.insert((rank, task), name.as_ref().to_owned())),
        }
    }

    fn show_range(&mut self, rank: RankId, part: Part, name: u32, since: SimTime, at: SimTime) {
        let has_row = match part {
            Part::Ranges(_, depth) => depth < DEEPEST,
            Part::Overlapping(row) => row < MOST_OVERLAPPING,
            _ => true,
        };
        if has_row {
            let name = self.names.texts[name as usize].clone();
            self.mark(rank, part, since, at, MarkKind::Range, &name);
        }
    }

    fn close_ranges(&mut self, rank: RankId, at: SimTime) {
        let nested = self.open.range((rank, TaskId(0))..=(rank, TaskId(u32::MAX)));
        let nested: Vec<(TaskId, Option<u32>)> =
            nested.flat_map(|((_, task), open)| open.iter().rev().map(|its| (*task, its.number))).collect();
        for (thread, number) in nested {
            let mark = RangeMark::end_of(number, thread);
            self.range(rank, thread, at, &mark);
        }
        let overlapping = self.overlapping.range((rank, 0)..=(rank, u32::MAX));
        let overlapping: Vec<u32> = overlapping.map(|((_, range), _)| *range).collect();
        overlapping.into_iter().for_each(|range| self.range(rank, TaskId(0), at, &RangeMark::Close { range }));
    }
}

impl Observer for Timeline {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        match *event {
            Event::Computed { rank, task, start, name, why, .. } if rank.index() < MOST_RANKS => {
                let part = why.queue.and_then(QueueId::stream).map_or(Part::Task(task), Part::Stream);
                self.mark(rank, part, start, at, MarkKind::Compute, name.unwrap_or("compute"));
            }
            Event::Waited { rank, task, start, reason, late_peer, call, .. } if rank.index() < MOST_RANKS => {
                let part = Part::Task(task);
                match reason {
                    // A wait for compute is not marked, because the compute has its own mark.
                    WaitReason::Compute => {}
                    WaitReason::Store => self.mark(rank, part, start, at, MarkKind::Idle, "wait for the store"),
                    WaitReason::Sleep => self.mark(rank, part, start, at, MarkKind::Idle, "sleep"),
                    WaitReason::Communication => {
                        let name = call.map_or("communication", |call| call.op.name());
                        let entered = (start + late_peer).min(at);
                        self.mark(rank, part, start, entered, MarkKind::LatePeer, name);
                        self.mark(rank, part, entered, at, MarkKind::Network, name);
                    }
                }
            }
            Event::Completed { rank, call, started, .. } | Event::Failed { rank, call, started, .. }
                if rank.index() < MOST_RANKS =>
            {
                self.mark(rank, Part::Operations, started, at, MarkKind::Operation, call.op.name());
            }
            Event::Marked { rank, task, mark, .. } if rank.index() < MOST_RANKS => self.range(rank, task, at, mark),
            Event::Finished { rank, .. } => self.close_ranges(rank, at),
            _ => {}
        }
    }
}

impl Part {
    fn label<'a>(self, called: impl Fn(TaskId) -> Option<&'a str>) -> String {
        let thread = |task: TaskId| {
            let number = format!("thread {}", task.0);
            called(task).map_or_else(|| number.clone(), |name| format!("{number}, {name}"))
        };
        match self {
            Part::Task(TaskId(0)) => "main thread".to_owned(),
            Part::Task(task) => thread(task),
            Part::Stream(stream) => stream_name(stream),
            Part::Operations => "operations".to_owned(),
            Part::Ranges(TaskId(0), 0) => "ranges".to_owned(),
            Part::Ranges(TaskId(0), depth) => format!("ranges, level {}", depth + 1),
            Part::Ranges(task, depth) => format!("ranges of {}, level {}", thread(task), depth + 1),
            Part::Overlapping(row) => format!("overlapping ranges {}", row + 1),
        }
    }
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.numbers.insert(name.to_owned(), number);
        self.texts.push(name.to_owned());
        number
    }
}
