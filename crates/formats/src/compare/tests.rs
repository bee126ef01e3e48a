use super::*;
use crate::report::tests::all_reduce;
use uniference_sim::ids::{GroupId, GroupRank, Handle, RankId, Site};
use uniference_sim::program::{Call, CallOp, Outcome};
use uniference_sim::record::{Event, Meeting, Observer, Traffic};
use uniference_sim::time::Bytes;

const WORLD: [RankId; 2] = [RankId(0), RankId(1)];

fn at(us: u64) -> SimTime {
    SimTime::ZERO + SimDuration::from_us(us)
}

/// Two ranks: all-reduces of 1 MiB that both enter at `entered`, one after the other, and are through a while later; then a message of 1000 bytes
/// from 0 to 1 that takes 10 us. Rank 1 computes for `compute` before all of it and finishes 20 us after rank 0.
fn run(compute: u64, all_reduces: &[(u64, u64)]) -> Seen {
    let mut timeline = Timeline::default();
    for (number, &(entered, took)) in (0..).zip(all_reduces) {
        for rank in WORLD {
            let (handle, call) = (Handle(number), &all_reduce(256 * 1024));
            let meeting = Meeting::Collective { sequence: number.into() };
            let (issued, started, algorithm) = (at(entered), at(entered), None);
            timeline.record(
                at(entered + took),
                &Event::Completed { rank, handle, call, issued, started, algorithm, meeting },
            );
        }
    }
    let end = all_reduces.last().map_or(0, |(entered, took)| entered + took);
    message(&mut timeline, end);
    for (rank, finish) in [(0, end + 10), (1, end + 30)] {
        let compute = SimDuration::from_us(if rank == 1 { compute } else { 0 });
        let exposed = at(finish).since(SimTime::ZERO) - compute;
        let times = Times { compute, exposed, ..Times::default() };
        let finished = Event::Finished { rank: RankId(rank), outcome: Outcome::Ok, times, traffic: Traffic::default() };
        timeline.record(at(finish), &finished);
    }
    timeline.finish(|_| &WORLD)
}

fn message(timeline: &mut Timeline, from: u64) {
    let call = |op| Call { group: GroupId(0), op };
    let send = call(CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(1000) });
    let recv = call(CallOp::Recv { from: None, tag: 0, bytes: Bytes(1000) });
    let handle = Handle(9);
    timeline.record(at(from), &Event::Issued { rank: RankId(0), handle, call: &send, site: Site(0) });
    let meeting = Meeting::Peer(Some((RankId(0), handle)));
    let (issued, started) = (at(0), at(0));
    let event = Event::Completed { rank: RankId(1), handle, call: &recv, issued, started, algorithm: None, meeting };
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
    // all-reduces: 44 against 40, 30 against 40, 40 against 40: errors +10 %, -25 %, 0, of which 1.9 steps of 2 up are 23.5 %; the message: 0
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
    // the same makespan, all three operations but the message 25 % short: the middle of 25, 25 and 0
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
