//! Owns the points in virtual time at which a rank's memory changed.
//!
//! Each compute slice is reported twice, in either order: by the rank, with the memory that it held during the slice,
//! and by the engine, with the slice's start and end. A slice consists of segments: from the start of a segment its
//! maximum counts as held memory, from the segment's end the memory that was left.
//!
//! For a rank with a GPU, a compute slice consists of several pieces of CPU work, between which the CPU issues work to
//! CUDA streams. Segments divide the pieces' time in proportion to the segments' weights. Without a GPU, a slice is one
//! segment, since the times of its operators are unknown.

use super::{ByKind, Moment};
use std::collections::{BTreeMap, VecDeque};
use uniference_sim::ids::TaskId;
use uniference_sim::time::{SimDuration, SimTime};

/// Maximum number of points of a timeline. Beyond it two neighbours become one point, at the first one's time and with
/// the larger of their memory.
const MOST_POINTS: usize = 512;

/// The memory that a rank held from this time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The virtual time.
    pub at: SimTime,
    /// Bytes held, by kind.
    pub held: ByKind,
}

/// A part of a compute slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// The segment's share of the slice's time, in any unit.
    pub(super) weight: u64,
    pub(super) most: Moment,
    pub(super) left: Moment,
}

/// The points of one rank.
#[derive(Default)]
pub(super) struct Timeline {
    points: Vec<(SimTime, Moment)>,
    tasks: BTreeMap<TaskId, Slices>,
}

/// Compute slices of one task, in order: slices that take time, and the times at which the engine ran their pieces.
#[derive(Default)]
struct Slices {
    /// The slice to which further pieces may be added.
    open: Option<Slice>,
    said: VecDeque<Slice>,
    computed: VecDeque<(SimTime, SimTime)>,
    /// Slices without a duration since the last slice with a duration, joined into one segment.
    instant: Option<Segment>,
}

struct Slice {
    segments: Vec<Segment>,
    /// Durations of the slice's pieces that take time, on the reference device.
    durations: Vec<SimDuration>,
}

impl Timeline {
    /// Adds a piece of a compute slice, with its duration on the reference device; the first piece of a slice has all
    /// segments of the slice.
    pub(super) fn computes(&mut self, task: TaskId, duration: SimDuration, segments: Vec<Segment>) {
        let slices = self.tasks.entry(task).or_default();
        let slice = slices.open.get_or_insert_with(|| {
            // A slice without a duration causes no event of the engine, so its segment belongs to the next slice.
            Slice { segments: slices.instant.take().into_iter().collect(), durations: Vec::new() }
        });
        slice.segments.extend(segments);
        if duration > SimDuration::ZERO {
            slice.durations.push(duration);
        }
    }

    /// Ends the task's open slice, which gets no further pieces.
    pub(super) fn closes(&mut self, task: TaskId) {
        let Some(slices) = self.tasks.get_mut(&task) else { return };
        let Some(slice) = slices.open.take() else { return };
        if slice.durations.is_empty() {
            slices.instant = slice.segments.into_iter().reduce(joined).map(|all| Segment { weight: 0, ..all });
        } else {
            slices.said.push_back(slice);
            self.pair(task);
        }
    }

    /// Adds the time at which the engine ran a piece of a slice.
    pub(super) fn computed(&mut self, task: TaskId, start: SimTime, end: SimTime) {
        self.tasks.entry(task).or_default().computed.push_back((start, end));
        self.pair(task);
    }

    fn pair(&mut self, task: TaskId) {
        let slices = self.tasks.entry(task).or_default();
        while let Some(slice) = slices.said.front().filter(|slice| slice.durations.len() <= slices.computed.len()) {
            let pieces: Vec<(SimTime, SimTime)> = slices.computed.drain(..slice.durations.len()).collect();
            for (at, moment) in slice.points(&pieces) {
                // Slices of several tasks may overlap.
                let place = self.points.partition_point(|(known, _)| *known <= at);
                self.points.insert(place, (at, moment));
            }
            slices.said.pop_front();
        }
        while self.points.len() > MOST_POINTS {
            let more =
                |[a, b]: [(SimTime, Moment); 2]| (a.0, if b.1.held.weight() > a.1.held.weight() { b.1 } else { a.1 });
            let pairs = self.points.chunks(2).map(|pair| more([pair[0], pair[pair.len() - 1]]));
            self.points = pairs.collect();
        }
    }

    /// All moments that are kept.
    pub(super) fn moments(&mut self) -> impl Iterator<Item = &mut Moment> {
        let waiting = self.tasks.values_mut().flat_map(|Slices { open, said, instant, .. }| {
            open.iter_mut().chain(said).flat_map(|slice| &mut slice.segments).chain(instant)
        });
        let waiting = waiting.flat_map(|Segment { most, left, .. }| [most, left]);
        self.points.iter_mut().map(|(_, moment)| moment).chain(waiting)
    }

    /// The points, without those that change nothing. Segments without a duration at the end of the run come last.
    pub(super) fn finish(mut self) -> Vec<Point> {
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.closes(task));
        let end = self.points.last().map_or(SimTime::ZERO, |(at, _)| *at);
        let last = self.tasks.values().filter_map(|slices| slices.instant).map(|Segment { left, .. }| (end, left));
        let mut points: Vec<Point> = Vec::new();
        for (at, Moment { held, .. }) in self.points.iter().copied().chain(last) {
            if points.last().map_or(ByKind::default(), |point| point.held) != held {
                points.push(Point { at, held });
            }
        }
        points
    }
}

/// Two consecutive segments joined into one.
pub(super) fn joined(first: Segment, second: Segment) -> Segment {
    let most = if second.most.held.weight() > first.most.held.weight() { second.most } else { first.most };
    Segment { weight: first.weight.saturating_add(second.weight), most, left: second.left }
}

impl Slice {
    /// The held memory from each point in time on; `pieces` are the times of the slice's pieces.
    fn points(&self, pieces: &[(SimTime, SimTime)]) -> Vec<(SimTime, Moment)> {
        let weights: u128 = self.segments.iter().map(|segment| u128::from(segment.weight)).sum();
        let duration: u128 = self.durations.iter().map(|lasts| u128::from(lasts.as_ps())).sum();
        let (mut before, mut points) = (0_u128, Vec::new());
        for segment in &self.segments {
            points.push((self.at(pieces, before * duration / weights.max(1)), segment.most));
            before += u128::from(segment.weight);
            points.push((self.at(pieces, before * duration / weights.max(1)), segment.left));
        }
        points
    }

    /// The time at which the slice's pieces have done `worked` picoseconds of work, counted on the reference device.
    fn at(&self, pieces: &[(SimTime, SimTime)], mut worked: u128) -> SimTime {
        for (lasts, (start, end)) in self.durations.iter().zip(pieces) {
            let lasts = u128::from(lasts.as_ps());
            if worked <= lasts {
                let part = worked * u128::from(end.since(*start).as_ps()) / lasts;
                return start.saturating_add(SimDuration::from_ps(part as u64));
            }
            worked -= lasts;
        }
        pieces.last().map_or(SimTime::ZERO, |(_, end)| *end)
    }
}
