use super::*;
use crate::samples::all_reduce;
use proptest::prelude::*;
use uniference_sim::event::{Event, Meeting, Observer, Traffic};
use uniference_sim::ids::{GroupId, GroupRank, Handle, RankId, Site};
use uniference_sim::program::{Call, CallOp, Collective, CollectiveKind, Outcome};
use uniference_sim::time::Bytes;

const WORLD: [RankId; 2] = [RankId(0), RankId(1)];

fn at(us: u64) -> SimTime {
    SimTime::ZERO + SimDuration::from_us(us)
}

/// Two ranks: all-reduces of 1 MiB that both ranks enter at the times `entered`, one after the other, and leave some
/// time later; then a message of 1000 bytes from 0 to 1 that takes 10 us. Rank 1 computes for `compute` before all of
/// it, and finishes 20 us after rank 0.
fn run(compute: u64, all_reduces: &[(u64, u64)]) -> ObservedRun {
    let mut timeline = Timeline::default();
    for (number, &(entered, took)) in (0..).zip(all_reduces) {
        for rank in WORLD {
            let (handle, call) = (Handle(number), &all_reduce(256 * 1024));
            let meeting = Meeting::Collective { sequence: number.into() };
            let (issued, started, algorithm) = (at(entered), at(entered), None);
            timeline.record(
                at(entered + took),
                &Event::Completed {
                    rank,
                    handle,
                    call,
                    bytes: call.op.bytes(2),
                    issued,
                    started,
                    algorithm,
                    meeting,
                    on_stream: None,
                    why: Default::default(),
                    cause: Default::default(),
                },
            );
        }
    }
    let end = all_reduces.last().map_or(0, |(entered, took)| entered + took);
    message(&mut timeline, end);
    for (rank, finish) in [(0, end + 10), (1, end + 30)] {
        let compute = SimDuration::from_us(if rank == 1 { compute } else { 0 });
        let exposed = at(finish).since(SimTime::ZERO) - compute;
        let times = Times { compute, exposed, ..Times::default() };
        let finished = Event::Finished {
            rank: RankId(rank),
            outcome: Outcome::Ok,
            times,
            traffic: Traffic::default(),
            cause: Default::default(),
        };
        timeline.record(at(finish), &finished);
    }
    timeline.finish(|_| &WORLD, Vec::new())
}

fn message(timeline: &mut Timeline, from: u64) {
    let call = |op| Call { group: GroupId(0), op };
    let send = call(CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(1000) });
    let recv = call(CallOp::Recv { from: None, tag: 0, bytes: Bytes(1000) });
    let handle = Handle(9);
    timeline.record(
        at(from),
        &Event::Issued {
            rank: RankId(0),
            handle,
            call: &send,
            bytes: send.op.bytes(2),
            site: Site(0),
            task: Default::default(),
        },
    );
    let meeting = Meeting::Peer(Some((RankId(0), handle)));
    let (issued, started) = (at(0), at(0));
    let event = Event::Completed {
        rank: RankId(1),
        handle,
        call: &recv,
        bytes: recv.op.bytes(2),
        issued,
        started,
        algorithm: None,
        meeting,
        on_stream: None,
        why: Default::default(),
        cause: Default::default(),
    };
    timeline.record(at(from + 10), &event);
}

#[test]
fn a_run_does_not_differ_from_itself() {
    let same = Comparison::new(&run(50, &[(100, 40)]), &run(50, &[(100, 40)]), None);
    assert_eq!(same.makespan.error, Some(0.0));
    assert_eq!((same.overall.count, same.overall.worst, same.unmatched), (2, 0.0, (0, 0)));
    assert!(!same.exceeds(0.0));
}

#[test]
fn errors_are_those_of_the_operations() {
    // all-reduces: 44 against 40, 30 against 40, 40 against 40: errors +10 %, -25 %, 0, of which 1.9 steps of 2 up are
    // 23.5 %; the message: 0
    let first = run(50, &[(100, 44), (200, 30), (300, 40)]);
    let second = run(50, &[(100, 40), (200, 40), (300, 40)]);
    let comparison = Comparison::new(&first, &second, None);
    let all_reduces = &comparison.operations[0];
    assert_eq!((all_reduces.operation, all_reduces.up_to_bytes), ("all_reduce", 1 << 20));
    let Errors { count, median, median_absolute, p95, worst } = all_reduces.errors;
    assert_eq!((count, median), (3, 0.0));
    for (found, expected) in [(median_absolute, 0.1), (p95, 0.235), (worst, -0.25)] {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }
    assert_eq!(comparison.operations[1].operation, "send");
    assert_eq!(comparison.operations[1].errors.worst, 0.0);
}

#[test]
fn the_parts_of_a_difference_add_up_to_it() {
    // rank 1 computes 30 us less and is 20 us earlier: 20 = 30 of compute - 10 of network
    let comparison = Comparison::new(&run(50, &[(100, 60)]), &run(80, &[(120, 60)]), Some(5e-6));
    let last = comparison.last().unwrap();
    assert_eq!(last.rank, 1);
    let difference = last.finish.first_s - last.finish.second_s;
    let parts = last.compute_s + last.network_s + last.late_peer_s + last.idle_s;
    assert!((difference + 20e-6).abs() < 1e-12 && (parts - difference).abs() < 1e-12, "{difference} {parts}");
    assert!((last.compute_s + 30e-6).abs() < 1e-12 && (last.network_s - 10e-6).abs() < 1e-12);
}

#[test]
fn the_threshold_is_of_the_makespan_and_of_the_middle_operation() {
    // makespans 170 and 190 us: error 20 / 190 = 10.5 %
    let comparison = Comparison::new(&run(50, &[(100, 40)]), &run(50, &[(120, 40)]), None);
    assert!(comparison.exceeds(0.10) && !comparison.exceeds(0.11));
    // the same makespan, all three operations except the message 25 % short: the median of 25, 25 and 0
    let comparison = Comparison::new(&run(50, &[(100, 30), (310, 30)]), &run(50, &[(100, 40), (300, 40)]), None);
    assert_eq!(comparison.makespan.error, Some(0.0));
    assert!(comparison.exceeds(0.24) && !comparison.exceeds(0.26));
}

#[test]
fn what_only_one_run_has_is_counted() {
    let comparison = Comparison::new(&run(50, &[(100, 40), (200, 40)]), &run(50, &[(100, 40)]), None);
    assert_eq!(comparison.unmatched, (1, 0));
}

#[test]
fn a_comparison_is_shown_and_written() {
    let comparison = Comparison::new(&run(50, &[(100, 44), (200, 36)]), &run(80, &[(100, 40), (230, 40)]), Some(5e-6));
    let text = render(&comparison, ["simulated", "real"]);
    assert!(
        text.lines().all(|line| line.chars().count() <= 100 || line.starts_with("rank") || line.starts_with("drift"))
    );
    insta::assert_snapshot!(text);
    insta::assert_snapshot!(comparison.to_json());
}

/// A run in which two ranks do these operations one after the other, the n-th of them for n microseconds: name, line.
fn sequence(operations: &[(CollectiveKind, u64, usize)], lines: &[&str]) -> ObservedRun {
    let mut timeline = Timeline::default();
    for (number, (kind, elements, line)) in (0..).zip(operations) {
        let Call { group, op: CallOp::Collective(like) } = all_reduce(*elements) else { unreachable!("it is one") };
        let call = &Call { group, op: CallOp::Collective(Collective { kind: *kind, ..like }) };
        let (handle, issued) = (Handle(number), at(100 * u64::from(number)));
        for rank in WORLD {
            timeline.record(
                issued,
                &Event::Issued {
                    rank,
                    handle,
                    call,
                    bytes: call.op.bytes(2),
                    site: Site::from(*line),
                    task: Default::default(),
                },
            );
            let meeting = Meeting::Collective { sequence: number.into() };
            let (started, algorithm) = (issued, None);
            let bytes = call.op.bytes(2);
            let event = Event::Completed {
                rank,
                handle,
                call,
                bytes,
                issued,
                started,
                algorithm,
                meeting,
                on_stream: None,
                why: Default::default(),
                cause: Default::default(),
            };
            timeline.record(at(100 * u64::from(number) + elements), &event);
        }
    }
    timeline.finish(|_| &WORLD, lines.iter().map(|line| (*line).to_owned()).collect())
}

#[test]
fn operations_of_different_names_are_never_paired() {
    use CollectiveKind::{AllReduce, Barrier};
    let lines = ["a.py:1", "a.py:2", "a.py:3"];
    let step = [(AllReduce, 10, 0), (AllReduce, 20, 1)];
    let plain = sequence(&[step, step, step].concat(), &lines);
    // One run has a barrier more in its middle: every all-reduce keeps its partner of the same length, to the
    // picosecond.
    let more = sequence(&[&step[..], &[(Barrier, 0, 2)], &step, &step].concat(), &lines);
    let comparison = Comparison::new(&more, &plain, None);
    assert_eq!((comparison.overall.count, comparison.overall.worst, comparison.unmatched), (6, 0.0, (1, 0)));
    let only = &comparison.only_first[0];
    assert_eq!((only.operation, only.number, &only.line[..], &only.members[..]), ("barrier", 0, "a.py:3", &[0, 1][..]));
    let text = render(&comparison, ["first", "second"]);
    assert!(text.contains("\n  only in the first: barrier number 0 of 0-1 (0 B), at a.py:3\n"), "{text}");
    let other_way = Comparison::new(&plain, &more, None);
    assert_eq!((other_way.unmatched, other_way.only_second[0].operation), ((0, 1), "barrier"));
}

#[test]
fn an_operation_that_one_run_has_more_moves_no_partners() {
    use CollectiveKind::AllReduce;
    let lines = ["a.py:1", "a.py:2", "a.py:3"];
    let step = [(AllReduce, 10, 0), (AllReduce, 20, 1)];
    let plain = sequence(&[step, step].concat(), &lines);
    // Operations of the same name are paired by line, else by size. If all sizes differ, they are paired by line.
    let by_line = sequence(&[&[(AllReduce, 10, 2)][..], &step, &step].concat(), &lines);
    let by_size = sequence(&[&[(AllReduce, 30, 0)][..], &step, &step].concat(), &["b.py:1", "b.py:2"]);
    for longer in [by_line, by_size] {
        let comparison = Comparison::new(&longer, &plain, None);
        assert_eq!((comparison.overall.count, comparison.overall.worst, comparison.unmatched), (4, 0.0, (1, 0)));
    }
    let double: Vec<_> =
        [step, step].concat().iter().map(|(kind, elements, line)| (*kind, 2 * elements, *line)).collect();
    let doubled = Comparison::new(&sequence(&double, &lines), &plain, None);
    assert_eq!((doubled.overall.count, doubled.overall.median, doubled.unmatched), (4, 1.0, (0, 0)));
}

proptest! {
    #[test]
    fn any_two_runs_are_paired_in_order_and_name_by_name(
        first in prop::collection::vec((0..3_usize, 1..4_u64, 0..3_usize), 0..30),
        second in prop::collection::vec((0..3_usize, 1..4_u64, 0..3_usize), 0..30),
    ) {
        let kinds = [CollectiveKind::AllReduce, CollectiveKind::Barrier, CollectiveKind::Broadcast];
        let run = |list: &[(usize, u64, usize)]| {
            let operations: Vec<_> = list.iter().map(|(kind, elements, line)| (kinds[*kind], *elements, *line)).collect();
            sequence(&operations, &["a.py:1", "a.py:2", "a.py:3"])
        };
        let of = |seen: &ObservedRun| seen.operations.values().next().cloned().unwrap_or_default();
        let (a, b) = (run(&first), run(&second));
        let (in_a, in_b) = (of(&a), of(&b));
        let pairs = align::align((&in_a, &a.lines), (&in_b, &b.lines));
        prop_assert!(pairs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1), "{:?}", pairs);
        prop_assert!(pairs.iter().all(|(x, y)| in_a[*x].operation == in_b[*y].operation));
        // No two operations of one name are left without a partner between the same two pairs.
        let mut bounds = vec![(None, None)];
        bounds.extend(pairs.iter().map(|(x, y)| (Some(*x), Some(*y))));
        bounds.push((Some(in_a.len()), Some(in_b.len())));
        for pair in bounds.windows(2) {
            let after = |at: Option<usize>| at.map_or(0, |at| at + 1);
            let left: Vec<_> = (after(pair[0].0)..pair[1].0.unwrap()).map(|at| in_a[at].operation).collect();
            prop_assert!(!(after(pair[0].1)..pair[1].1.unwrap()).any(|at| left.contains(&in_b[at].operation)));
        }
        let whole = Comparison::new(&a, &b, None);
        prop_assert_eq!(whole.unmatched, (in_a.len() - pairs.len(), in_b.len() - pairs.len()));
        let itself = Comparison::new(&a, &a, None);
        prop_assert_eq!(itself.unmatched, (0, 0));
    }
}
