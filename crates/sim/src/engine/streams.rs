//! Owns the accounts of the CUDA streams of a rank's device: their busy time by kind of activity, and the communication
//! that no kernel hides. The queue of an activity determines its stream; dependencies between activities are outside
//! this module.

use crate::event::{CallTimes, StreamTimes};
use crate::time::{SimDuration, SimTime};
use std::collections::BTreeMap;

/// Kind of activity that keeps a stream busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    Kernel,
    Copy,
    Communication,
}

/// Account of one stream, or of all streams of a device: running activities, and total times.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    kernels: u32,
    copies: u32,
    calls: u32,
    times: StreamTimes,
}

/// The accounts of one rank's device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    settled: SimTime,
    device: Account,
    streams: BTreeMap<u32, Account>,
    bare: Bare,
    /// Start times of the operations under way, each with the number of operations.
    calls: BTreeMap<SimTime, u32>,
    /// Disjoint intervals, in order, that are already booked as waits for late peers. Intervals before all operations
    /// under way are dropped.
    booked: Vec<(SimTime, SimTime)>,
}

/// Total time in which no kernel ran on the device. The total is known for each moment since the start of the earliest
/// operation that is still under way, and for the present.
#[derive(Clone, Debug, Default)]
struct Bare {
    /// Changes in order: the moment, the total time without a kernel until then, and whether kernels run from then on.
    changes: Vec<(SimTime, SimDuration, bool)>,
}

impl Bare {
    fn until(&self, at: SimTime) -> SimDuration {
        let after = self.changes.partition_point(|(since, ..)| *since <= at);
        match after.checked_sub(1).map(|last| self.changes[last]) {
            None => at.since(SimTime::ZERO),
            Some((_, total, true)) => total,
            Some((since, total, false)) => total + at.since(since),
        }
    }

    fn between(&self, start: SimTime, end: SimTime) -> SimDuration {
        self.until(end).saturating_sub(self.until(start))
    }

    /// Records that kernels run from now on, or that none does. `earliest` is the start of the earliest operation under
    /// way. Totals before `earliest` are not needed any more, so all changes before the last one until then are dropped.
    fn change(&mut self, now: SimTime, kernels: bool, earliest: SimTime) {
        let total = self.until(now);
        self.changes.push((now, total, kernels));
        let after = self.changes.partition_point(|(since, ..)| *since <= earliest);
        self.changes.drain(..after.saturating_sub(1));
    }
}

impl Streams {
    /// Starts an activity.
    pub(crate) fn begin(&mut self, now: SimTime, (stream, busy): (u32, Busy)) {
        self.settle(now);
        *self.device.running(busy) += 1;
        *self.streams.entry(stream).or_default().running(busy) += 1;
        if busy == Busy::Kernel && self.device.kernels == 1 {
            self.bare.change(now, true, self.earliest(now));
        }
        if busy == Busy::Communication {
            *self.calls.entry(now).or_default() += 1;
        }
    }

    /// Start of the earliest operation under way, or `now` if there is none.
    fn earliest(&self, now: SimTime) -> SimTime {
        self.calls.first_key_value().map_or(now, |(started, _)| *started)
    }

    /// The activity, which began at `started`, is complete.
    pub(crate) fn end(&mut self, now: SimTime, started: SimTime, (stream, busy): (u32, Busy)) {
        self.settle(now);
        *self.device.running(busy) -= 1;
        *self.streams.entry(stream).or_default().running(busy) -= 1;
        if busy == Busy::Kernel && self.device.kernels == 0 {
            self.bare.change(now, false, self.earliest(now));
        }
        if busy == Busy::Communication {
            let calls = self.calls.get_mut(&started).expect("it has begun");
            *calls -= 1;
            if *calls == 0 {
                self.calls.remove(&started);
            }
            let earliest = self.earliest(now);
            self.booked.retain(|(_, to)| *to > earliest);
        }
    }

    /// Split of the time of an operation that is about to end. The stream came to the operation at `started`, and all
    /// peers had entered the operation at `entered`. The field for the size is left at its default.
    pub(crate) fn call(&self, started: SimTime, entered: SimTime, now: SimTime) -> CallTimes {
        let entered = entered.clamp(started, now);
        let (kernel, late_peer) = (now.since(entered), self.bare.between(started, entered));
        let exposed = self.bare.between(entered, now);
        let overlapped = kernel.saturating_sub(exposed);
        CallTimes { kernel, overlapped, exposed: exposed + late_peer, late_peer, ..CallTimes::default() }
    }

    /// Time in which communication was exposed before an operation's peers had entered the operation. Time that was
    /// returned for an overlapping operation is not returned again.
    pub(crate) fn late(&mut self, started: SimTime, entered: SimTime, now: SimTime) -> SimDuration {
        let entered = entered.clamp(started, now);
        let (mut from, mut late) = (started, SimDuration::ZERO);
        let (mut start, mut end) = (started, entered);
        // Intervals that overlap or touch the new one become one interval with it.
        self.booked.retain(|(booked_from, booked_to)| {
            if *booked_to < started || entered < *booked_from {
                return true;
            }
            late += self.bare.between(from, (*booked_from).max(from));
            from = from.max(*booked_to);
            (start, end) = (start.min(*booked_from), end.max(*booked_to));
            false
        });
        late += self.bare.between(from, entered);
        self.booked.insert(self.booked.partition_point(|(booked_from, _)| *booked_from < start), (start, end));
        late
    }

    /// Times up to now, of the device (without a number) and of each stream; empty if no activity was on any stream.
    pub(crate) fn times(&mut self, now: SimTime) -> impl Iterator<Item = (Option<u32>, StreamTimes)> {
        self.settle(now);
        let device = (!self.streams.is_empty()).then_some((None, self.device.times));
        device.into_iter().chain(self.streams.iter().map(|(stream, account)| (Some(*stream), account.times)))
    }

    /// Books the time since the last change.
    fn settle(&mut self, now: SimTime) {
        let span = now.since(std::mem::replace(&mut self.settled, now));
        let hidden = self.device.kernels > 0;
        for account in self.streams.values_mut().chain([&mut self.device]) {
            let Account { kernels, copies, calls, times } = account;
            let is_exposed = *calls > 0 && !hidden;
            let runs = [*kernels > 0, *copies > 0, *calls > 0, is_exposed];
            let sums = [&mut times.kernels, &mut times.copies, &mut times.communication, &mut times.exposed];
            runs.into_iter().zip(sums).filter(|(runs, _)| *runs).for_each(|(_, sum)| *sum += span);
        }
    }
}

impl Account {
    fn running(&mut self, busy: Busy) -> &mut u32 {
        match busy {
            Busy::Kernel => &mut self.kernels,
            Busy::Copy => &mut self.copies,
            Busy::Communication => &mut self.calls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SimDuration;

    /// Times of the device, then of each stream, for busy intervals given as start, end, stream and kind.
    fn times(stretches: &[(u64, u64, u32, Busy)]) -> Vec<[u64; 4]> {
        let mut changes: Vec<(u64, Option<u64>, (u32, Busy))> = stretches
            .iter()
            .flat_map(|&(from, to, stream, busy)| [(from, None, (stream, busy)), (to, Some(from), (stream, busy))])
            .collect();
        changes.sort_by_key(|(at, ..)| *at);
        let mut streams = Streams::default();
        for (at, ends, busy) in changes {
            let at = SimTime::from_ps(at);
            match ends {
                None => streams.begin(at, busy),
                Some(from) => streams.end(at, SimTime::from_ps(from), busy),
            }
        }
        let all = streams.times(SimTime::from_ps(1_000));
        let spans = |times: StreamTimes| [times.kernels, times.copies, times.communication, times.exposed];
        all.map(|(_, times)| spans(times).map(SimDuration::as_ps)).collect()
    }

    #[test]
    fn communication_is_exposed_while_no_kernel_runs_on_any_stream() {
        use Busy::{Communication, Copy, Kernel};
        let hidden = times(&[(0, 100, 1, Kernel), (20, 60, 2, Communication)]);
        assert_eq!(hidden, [[100, 0, 40, 0], [100, 0, 0, 0], [0, 0, 40, 0]]);
        let alone = times(&[(0, 50, 1, Kernel), (50, 90, 2, Communication)]);
        assert_eq!(alone, [[50, 0, 40, 40], [50, 0, 0, 0], [0, 0, 40, 40]]);
        // Kernels of two streams, which overlap for a while, hide half of the communication; a copy hides no
        // communication.
        let stretches =
            [(0, 10, 1, Kernel), (5, 20, 3, Kernel), (0, 40, 2, Communication), (20, 30, 4, Copy), (50, 60, 1, Kernel)];
        assert_eq!(times(&stretches), [[30, 10, 40, 20], [20, 0, 0, 0], [0, 0, 40, 20], [15, 0, 0, 0], [0, 10, 0, 0]]);
    }

    #[test]
    fn operations_beside_each_other_count_once_for_the_device() {
        use Busy::Communication;
        let two = times(&[(0, 30, 1, Communication), (20, 50, 2, Communication)]);
        assert_eq!(two, [[0, 0, 50, 50], [0, 0, 30, 30], [0, 0, 30, 30]]);
        let of_one_stream = times(&[(0, 30, 1, Communication), (0, 10, 1, Communication)]);
        assert_eq!(of_one_stream, [[0, 0, 30, 30]; 2]);
    }

    #[test]
    fn an_operation_says_what_hides_it_and_how_long_it_waited_for_peers() {
        use Busy::{Communication, Kernel};
        let (at, ps) = (SimTime::from_ps, SimDuration::from_ps);
        let mut streams = Streams::default();
        // Timeline: kernels 0..30 and 50..60; operations 10..100 (last peer at 40) and 35..100 (last peer at 45).
        for (now, stream, busy) in [(0, 1, Kernel), (10, 2, Communication)] {
            streams.begin(at(now), (stream, busy));
        }
        streams.end(at(30), at(0), (1, Kernel));
        streams.begin(at(35), (3, Communication));
        streams.begin(at(50), (1, Kernel));
        streams.end(at(60), at(50), (1, Kernel));
        let parts = |times: CallTimes| [times.kernel, times.overlapped, times.exposed, times.late_peer];
        // The first operation is exposed for (100 - 10) - 20 - 10, of which 40 - 30 are due to a late peer.
        assert_eq!(parts(streams.call(at(10), at(40), at(100))), [60, 10, 60, 10].map(ps));
        assert_eq!(parts(streams.call(at(35), at(45), at(100))), [55, 10, 55, 10].map(ps));
        // The rank waits for late peers during 30..45.
        let late = [(10, 40), (35, 45)].map(|(started, entered)| (at(started), at(entered)));
        for order in [late, [late[1], late[0]]] {
            let mut streams = streams.clone();
            let [first, second] = order.map(|(started, entered)| streams.late(started, entered, at(100)));
            assert_eq!(first + second, ps(15));
        }
        // A peer that never came was late all the time.
        assert_eq!(parts(streams.call(at(90), SimTime::MAX, at(100))), [0, 0, 10, 10].map(ps));
    }

    /// A 0..100 with the last peer at 90, B 50..60 with the last peer at 55: the rank waits for peers during 0..90, whichever
    /// operation is complete first.
    #[test]
    fn an_operation_within_another_does_not_hide_how_late_peers_were() {
        let (at, ps) = (SimTime::from_ps, SimDuration::from_ps);
        let mut streams = Streams::default();
        streams.begin(at(0), (1, Busy::Communication));
        streams.begin(at(50), (2, Busy::Communication));
        assert_eq!(streams.late(at(50), at(55), at(60)), ps(5));
        streams.end(at(60), at(50), (2, Busy::Communication));
        assert_eq!(streams.late(at(0), at(90), at(100)), ps(85));
    }

    /// Each operation begins before the previous one ends, and a kernel runs during each. The account keeps only the
    /// changes since the start of the earliest operation under way.
    #[test]
    fn operations_that_always_overlap_keep_no_history() {
        let at = |step: u64| SimTime::from_ps(10 * step);
        let mut streams = Streams::default();
        streams.begin(at(0), (0, Busy::Communication));
        for step in 1..1000 {
            streams.begin(at(step), (step as u32 % 2, Busy::Communication));
            streams.begin(at(step), (2, Busy::Kernel));
            streams.late(at(step - 1), at(step), at(step));
            streams.end(at(step), at(step - 1), ((step - 1) as u32 % 2, Busy::Communication));
            streams.end(at(step) + SimDuration::from_ps(5), at(step), (2, Busy::Kernel));
        }
        assert!(streams.bare.changes.len() <= 4 && streams.booked.len() <= 1);
    }

    #[test]
    fn a_rank_without_streams_says_nothing_of_them() {
        assert!(times(&[]).is_empty());
    }
}
