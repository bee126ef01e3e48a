//! Owns the times in which a device computed: intervals that are added in the order of their ends, and may overlap.

use uniference_sim::time::SimTime;

/// The union of intervals.
#[derive(Default)]
pub(super) struct Busy {
    /// The intervals in order, with time between them.
    intervals: Vec<(SimTime, SimTime)>,
}

impl Busy {
    /// Adds an interval that ends no earlier than those before it.
    pub(super) fn add(&mut self, start: SimTime, end: SimTime) {
        let mut start = start;
        while let Some((from, _)) = self.intervals.pop_if(|(_, to)| *to >= start) {
            start = start.min(from);
        }
        self.intervals.push((start, end));
    }

    /// The times from which on the device is busy (true) or idle (false), starting with time zero.
    pub(super) fn changes(&self) -> impl Iterator<Item = (SimTime, bool)> + '_ {
        let is_idle = self.intervals.first().is_none_or(|(start, _)| *start > SimTime::ZERO);
        let changes = self.intervals.iter().flat_map(|(start, end)| [(*start, true), (*end, false)]);
        is_idle.then_some((SimTime::ZERO, false)).into_iter().chain(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_or_touches_is_one_interval() {
        let at = SimTime::from_ps;
        let mut busy = Busy::default();
        for (start, end) in [(2, 4), (3, 5), (8, 9), (7, 9), (9, 10), (20, 30), (12, 31)] {
            busy.add(at(start), at(end));
        }
        let changes: Vec<_> = busy.changes().map(|(at, busy)| (at.as_ps(), busy)).collect();
        assert_eq!(changes, [(0, false), (2, true), (5, false), (7, true), (10, false), (12, true), (31, false)]);
        busy = Busy::default();
        assert_eq!(busy.changes().count(), 1);
        busy.add(at(0), at(1));
        assert_eq!(busy.changes().collect::<Vec<_>>(), [(at(0), true), (at(1), false)]);
    }
}
