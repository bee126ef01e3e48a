//! Owns the durations of programs' named ranges, their compute and exposed communication, and the durations of the
//! kernels that were launched in the ranges.

use crate::statistics::Sample;
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_formats::report::PhaseReport;
use uniference_sim::event::{Event, Observer, Times, Why};
use uniference_sim::ids::{QueueId, RankId, TaskId};
use uniference_sim::observe::IssueRanges;
use uniference_sim::program::Mark;
use uniference_sim::time::{SimDuration, SimTime};

/// Listens to a run for ranges that open and close.
#[derive(Default)]
pub struct Phases {
    /// Open ranges of each thread, the outermost first.
    nested: BTreeMap<(RankId, TaskId), Vec<Open>>,
    /// Open ranges that have numbers.
    free: BTreeMap<(RankId, u32), Open>,
    closed: BTreeMap<(Arc<str>, RankId), Closed>,
    /// The ranges in which each rank issued work to CUDA streams, as indices of `launched`.
    issues: BTreeMap<RankId, IssueRanges<usize>>,
    /// Work that was launched in each range, with the range's name; `None`: the range has launched none.
    launched: Vec<(Arc<str>, Option<Launched>)>,
}

/// Durations of work on CUDA streams that was launched in a range, or in the ranges of one name on one rank.
#[derive(Clone, Copy, Default)]
struct Launched {
    kernels: SimDuration,
    communication: SimDuration,
}

struct Open {
    name: Arc<str>,
    since: SimTime,
    spent: Option<Times>,
}

/// All ranges of one name on one rank.
#[derive(Default)]
struct Closed {
    lasted: Vec<SimDuration>,
    compute: Option<SimDuration>,
    exposed: Option<SimDuration>,
}

impl Phases {
    /// The reports by name, then by rank, without ranges that are still open.
    pub fn report(self) -> Vec<PhaseReport> {
        let Phases { closed, issues, launched, .. } = self;
        let mut sums: BTreeMap<(Arc<str>, RankId), Launched> = BTreeMap::new();
        for (rank, range) in issues.iter().flat_map(|(rank, ranges)| ranges.ended().map(|range| (*rank, *range))) {
            let (name, Some(launched)) = &launched[range] else { continue };
            let sum = sums.entry((name.clone(), rank)).or_default();
            sum.kernels += launched.kernels;
            sum.communication += launched.communication;
        }
        let report = |((name, rank), closed): ((Arc<str>, RankId), Closed)| {
            let launched = sums.get(&(name.clone(), rank)).copied();
            closed.report(&name, rank, launched)
        };
        closed.into_iter().filter_map(report).collect()
    }

    /// Names of ranges that started and did not end, each with the rank of its first such range.
    pub fn left_open(&self) -> BTreeMap<Arc<str>, RankId> {
        let nested = self.nested.iter().flat_map(|((rank, _), open)| open.iter().map(|range| (range, *rank)));
        let free = self.free.iter().map(|((rank, _), range)| (range, *rank));
        let mut open = BTreeMap::new();
        for (Open { name, .. }, rank) in nested.chain(free) {
            let first = open.entry(name.clone()).or_insert(rank);
            *first = rank.min(*first);
        }
        open
    }

    /// Calls `count` for each range in which the activity `why` was launched, if the activity runs on a CUDA stream.
    fn launched(&mut self, rank: RankId, why: &Why, count: impl Fn(&mut Launched)) {
        let is_launched = why.queue.and_then(QueueId::stream).is_some();
        let Some(issues) = self.issues.get(&rank).filter(|_| is_launched) else { return };
        for range in issues.all_at(why.task, why.handle) {
            count(self.launched[*range].1.get_or_insert_default());
        }
    }

    fn close(&mut self, rank: RankId, at: SimTime, open: Option<Open>, now: Option<&Times>) {
        // A program may close a range that it has not opened.
        let Some(Open { name, since, spent }) = open else { return };
        let closed = self.closed.entry((name, rank)).or_default();
        closed.lasted.push(at.since(since));
        if let Some((before, now)) = spent.as_ref().zip(now) {
            *closed.compute.get_or_insert_default() += now.compute.saturating_sub(before.compute);
            *closed.exposed.get_or_insert_default() += now.exposed.saturating_sub(before.exposed);
        }
    }
}

impl Closed {
    fn report(self, name: &str, rank: RankId, launched: Option<Launched>) -> Option<PhaseReport> {
        let total: SimDuration = self.lasted.iter().fold(SimDuration::ZERO, |sum, lasted| sum + *lasted);
        let sample = Sample::of(self.lasted.iter().map(|lasted| lasted.as_secs_f64()))?;
        Some(PhaseReport {
            name: name.to_owned(),
            rank: rank.0,
            count: sample.len() as u64,
            total_s: total.as_secs_f64(),
            p50_s: sample.quantile(0.5),
            p90_s: sample.quantile(0.9),
            p99_s: sample.quantile(0.99),
            compute_s: self.compute.map(SimDuration::as_secs_f64),
            exposed_comm_s: self.exposed.map(SimDuration::as_secs_f64),
            kernels_s: launched.map(|launched| launched.kernels.as_secs_f64()),
            communication_s: launched.map(|launched| launched.communication.as_secs_f64()),
        })
    }
}

impl Observer for Phases {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        let (rank, task, mark, why, spent) = match event {
            Event::Marked { rank, task, mark, why, spent } => (rank, task, mark, why, spent),
            Event::Computed { rank, start, why, .. } => {
                let took = at.since(*start);
                return self.launched(*rank, why, |launched| launched.kernels += took);
            }
            Event::Completed { rank, on_stream: Some((stream, times)), why, .. } => {
                // The completion of an operation names its group's queue, so the queue of the CUDA stream is used.
                let why = Why { queue: Some(QueueId::of_stream(*stream)), ..*why };
                return self.launched(*rank, &why, |launched| launched.communication += times.kernel);
            }
            _ => return,
        };
        self.issues.entry(*rank).or_default().mark(*task, why, mark, |name| {
            self.launched.push((Arc::from(name), None));
            self.launched.len() - 1
        });
        let open = |name: &Arc<str>| Open { name: name.clone(), since: at, spent: *spent };
        match mark {
            Mark::Begin(name) => self.nested.entry((*rank, *task)).or_default().push(open(name)),
            Mark::End => {
                let innermost = self.nested.get_mut(&(*rank, *task)).and_then(Vec::pop);
                self.close(*rank, at, innermost, spent.as_ref());
            }
            Mark::Open { range, name } | Mark::Enter { range, name, .. } => {
                drop(self.free.insert((*rank, *range), open(name)));
            }
            Mark::Close { range } | Mark::Leave { range, .. } => {
                let range = self.free.remove(&(*rank, *range));
                self.close(*rank, at, range, spent.as_ref());
            }
            Mark::Name(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_sim::ids::Handle;
    use uniference_sim::program::Origin;

    fn us(us: u64) -> SimDuration {
        SimDuration::from_us(us)
    }

    /// Adds a mark at this moment, up to which the thread had so much compute and exposed communication.
    fn mark(phases: &mut Phases, rank: u32, at: u64, mark: &Mark, spent: Option<[u64; 2]>) {
        mark_by(phases, (rank, 0), at, mark, spent);
    }

    /// Adds a mark of a thread of the rank.
    fn mark_by(phases: &mut Phases, (rank, task): (u32, u32), at: u64, mark: &Mark, spent: Option<[u64; 2]>) {
        let times =
            |[compute, exposed]: [u64; 2]| Times { compute: us(compute), exposed: us(exposed), ..Times::default() };
        let (rank, task, why, spent) = (RankId(rank), TaskId(task), Default::default(), spent.map(times));
        phases.record(SimTime::ZERO.saturating_add(us(at)), &Event::Marked { rank, task, mark, why, spent });
    }

    #[test]
    fn ranges_of_one_name_are_added_up_by_rank() {
        let (mut phases, decode) = (Phases::default(), Mark::Begin("decode".into()));
        for (begin, end) in [(0, 10), (10, 30), (50, 90)] {
            mark(&mut phases, 0, begin, &decode, Some([begin / 2, begin / 4]));
            mark(&mut phases, 0, end, &Mark::End, Some([end / 2, end / 4]));
        }
        mark(&mut phases, 1, 0, &decode, None);
        mark(&mut phases, 1, 5, &Mark::End, None);
        let [first, second] = &phases.report()[..] else { panic!("two ranks") };
        assert_eq!((&*first.name, first.rank, first.count), ("decode", 0, 3));
        let microseconds = |seconds: f64| (seconds * 1e6).round() as u64;
        assert_eq!([first.total_s, first.p50_s, first.p90_s].map(microseconds), [70, 20, 36]);
        // 5 + 10 + 20; and quarters that are rounded down: 2 + 5 + 10.
        assert_eq!([first.compute_s, first.exposed_comm_s].map(Option::unwrap).map(microseconds), [35, 17]);
        assert_eq!((second.rank, second.count, second.compute_s), (1, 1, None));
    }

    #[test]
    fn ranges_lie_in_each_other_and_may_be_left_open() {
        let mut phases = Phases::default();
        mark(&mut phases, 0, 0, &Mark::End, None);
        mark(&mut phases, 0, 1, &Mark::Begin("step".into()), None);
        mark(&mut phases, 0, 2, &Mark::Begin("layer".into()), None);
        mark(&mut phases, 0, 4, &Mark::End, None);
        mark(&mut phases, 0, 7, &Mark::End, None);
        mark(&mut phases, 0, 8, &Mark::Begin("open".into()), None);
        let report = phases.report();
        let rows: Vec<(&str, f64)> = report.iter().map(|row| (&*row.name, row.total_s)).collect();
        assert_eq!(rows, [("layer", 2e-6), ("step", 6e-6)]);
    }

    #[test]
    fn ranges_of_two_threads_do_not_end_each_other() {
        let mut phases = Phases::default();
        mark_by(&mut phases, (0, 0), 1, &Mark::Begin("main".into()), None);
        mark_by(&mut phases, (0, 1), 2, &Mark::Begin("loader".into()), None);
        mark_by(&mut phases, (0, 0), 4, &Mark::End, None);
        mark_by(&mut phases, (0, 1), 9, &Mark::End, None);
        let report = phases.report();
        let rows: Vec<(&str, f64)> = report.iter().map(|row| (&*row.name, row.total_s)).collect();
        assert_eq!(rows, [("loader", 7e-6), ("main", 3e-6)]);
    }

    #[test]
    fn ranges_with_numbers_overlap() {
        let mut phases = Phases::default();
        let open = |range| Mark::Open { range, name: "request".into() };
        mark(&mut phases, 0, 1, &open(0), Some([0, 0]));
        mark(&mut phases, 0, 2, &open(1), Some([1, 0]));
        mark_by(&mut phases, (0, 3), 6, &Mark::Close { range: 0 }, Some([4, 1]));
        mark(&mut phases, 0, 9, &Mark::Close { range: 1 }, Some([5, 1]));
        mark(&mut phases, 0, 9, &Mark::Close { range: 1 }, Some([5, 1]));
        let [requests] = &phases.report()[..] else { panic!("one name") };
        assert_eq!((requests.count, requests.total_s), (2, 12e-6));
        assert_eq!((requests.compute_s, requests.exposed_comm_s), (Some(8e-6), Some(2e-6)));
    }

    #[test]
    fn kernels_belong_to_the_ranges_in_which_they_were_launched() {
        let (mut phases, rank, task) = (Phases::default(), RankId(0), TaskId(0));
        let at = |at| SimTime::ZERO.saturating_add(us(at));
        let why = |handle, stream: Option<u32>| Why {
            handle: Handle(handle),
            queue: stream.map(QueueId::of_stream),
            ..Why::default()
        };
        let mut mark = |when, handle, mark: Mark| {
            let event = Event::Marked { rank, task, mark: &mark, why: why(handle, None), spent: None };
            phases.record(at(when), &event);
        };
        let enter = |range, name: &str| Mark::Enter { range, thread: task, name: name.into() };
        let leave = |range| Mark::Leave { range, thread: task };
        mark(0, 0, enter(0, "step"));
        mark(1, 10, enter(1, "layer"));
        mark(2, 20, leave(1));
        mark(3, 30, enter(2, "layer"));
        // The second range `layer` is still open: it has no duration, and the kernels that it launched are not shown.
        mark(4, 40, leave(0));
        let mut kernel = |start, end, handle, stream| {
            let (start, base, origin, name) = (at(start), us(1), Origin::Roofline, None);
            let event = Event::Computed { rank, task, start, base, origin, name, why: why(handle, stream) };
            phases.record(at(end), &event);
        };
        kernel(10, 13, 5, Some(7));
        kernel(13, 18, 15, Some(7));
        kernel(18, 25, 25, Some(7));
        kernel(25, 29, 35, Some(7));
        // The launching CPU computes, so no range gets this time as kernel time.
        kernel(1, 2, 15, None);
        assert_eq!(
            phases.left_open().into_iter().map(|(name, rank)| (name.to_string(), rank)).collect::<Vec<_>>(),
            [("layer".to_owned(), rank)]
        );
        let report = phases.report();
        let rows: Vec<_> = report.iter().map(|row| (&*row.name, row.count, row.total_s, row.kernels_s)).collect();
        assert_eq!(rows, [("layer", 1, 1e-6, Some(5e-6)), ("step", 1, 4e-6, Some(19e-6))]);
    }
}
