//! Owns when a rank's moments of memory were in virtual time.
//!
//! A slice of compute is told of twice: by the rank, with what it held meanwhile, and by the engine, with when it began and ended. Either may come first.
//! From its beginning on the most that was held in it counts, from its end on what was left.

use super::{ByKind, Moment};
use std::collections::{BTreeMap, VecDeque};
use uniference_sim::ids::TaskId;
use uniference_sim::time::{SimDuration, SimTime};

/// A timeline has no more points. Where there would be more, two neighbours become one, at the first one's time and with the more that was held.
const MOST_POINTS: usize = 512;

/// What a rank held from this time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The virtual time.
    pub at: SimTime,
    /// Bytes held, by kind.
    pub held: ByKind,
}

/// The points of one rank.
#[derive(Default)]
pub(super) struct Timeline {
    points: Vec<(SimTime, Moment)>,
    tasks: BTreeMap<TaskId, Slices>,
}

/// Of one task, in order: slices that take time, and when the engine has carried them out.
#[derive(Default)]
struct Slices {
    said: VecDeque<Slice>,
    computed: VecDeque<(SimTime, SimTime)>,
    /// Of slices that took no time since the last one that did.
    instant: Option<Slice>,
}

#[derive(Clone, Copy)]
struct Slice {
    most: Moment,
    left: Moment,
}

impl Timeline {
    /// A task computes for so long on the reference device, and has held `most` and `left` something meanwhile.
    pub(super) fn computes(&mut self, task: TaskId, duration: SimDuration, most: Moment, left: Moment) {
        let slices = self.tasks.entry(task).or_default();
        let most = match slices.instant.take() {
            Some(before) if before.most.held.weight() > most.held.weight() => before.most,
            _ => most,
        };
        // What takes no time is no event, so it belongs to the next slice.
        if duration == SimDuration::ZERO {
            slices.instant = Some(Slice { most, left });
        } else {
            slices.said.push_back(Slice { most, left });
            self.pair(task);
        }
    }

    /// The engine has carried out a slice.
    pub(super) fn computed(&mut self, task: TaskId, start: SimTime, end: SimTime) {
        self.tasks.entry(task).or_default().computed.push_back((start, end));
        self.pair(task);
    }

    fn pair(&mut self, task: TaskId) {
        let slices = self.tasks.entry(task).or_default();
        while let (Some(slice), Some((start, end))) = (slices.said.front(), slices.computed.front()) {
            let points = [(*start, slice.most), (*end, slice.left)];
            slices.said.pop_front();
            slices.computed.pop_front();
            for (at, moment) in points {
                // Slices of several tasks may overlap.
                let place = self.points.partition_point(|(known, _)| *known <= at);
                self.points.insert(place, (at, moment));
            }
        }
        if self.points.len() > MOST_POINTS {
            let more =
                |[a, b]: [(SimTime, Moment); 2]| (a.0, if b.1.held.weight() > a.1.held.weight() { b.1 } else { a.1 });
            let pairs = self.points.chunks(2).map(|pair| more([pair[0], pair[pair.len() - 1]]));
            self.points = pairs.collect();
        }
    }

    /// Every moment that is kept.
    pub(super) fn moments(&mut self) -> impl Iterator<Item = &mut Moment> {
        let waiting = self.tasks.values_mut().flat_map(|slices| slices.said.iter_mut().chain(&mut slices.instant));
        let waiting = waiting.flat_map(|Slice { most, left }| [most, left]);
        self.points.iter_mut().map(|(_, moment)| moment).chain(waiting)
    }

    /// The points, without those that change nothing. What took no time to the end comes last.
    pub(super) fn finish(self) -> Vec<Point> {
        let end = self.points.last().map_or(SimTime::ZERO, |(at, _)| *at);
        let last = self.tasks.values().filter_map(|slices| slices.instant).map(|Slice { left, .. }| (end, left));
        let mut points: Vec<Point> = Vec::new();
        for (at, Moment { held, .. }) in self.points.iter().copied().chain(last) {
            if points.last().map_or(ByKind::default(), |point| point.held) != held {
                points.push(Point { at, held });
            }
        }
        points
    }
}
