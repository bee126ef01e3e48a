//! Runs that cannot continue report it at once, with the waits of all ranks.

use crate::support::*;
use uniference_sim::cluster::{Handshake, Protocol};
use uniference_sim::engine::{Doing, Engine, HaltReason, RunEnd, drive};
use uniference_sim::ids::{Handle, RankId, Site, TaskId};
use uniference_sim::program::CollectiveKind::{AllReduce, Barrier, Broadcast};
use uniference_sim::program::{Activity, Mark, Program, ProgramError, Reply, Request, StoreOp};
use uniference_sim::time::{Bytes, SimDuration, SimTime};

const MINUTE: SimDuration = SimDuration::from_ps(60_000_000_000_000);

#[test]
fn a_collective_that_one_rank_does_not_call_is_a_deadlock() {
    let outcomes = run(&switch(3), vec![blocking(AllReduce, 8), vec![], blocking(AllReduce, 8)]);
    let halt = outcomes.halt();
    assert_eq!(halt.reason, HaltReason::Deadlock);
    assert!(halt.ranks[1].ended.is_some());
    let Doing::Waiting(pending) = &halt.ranks[0].tasks[0].doing else { panic!("rank 0 waits") };
    assert_eq!(pending[0].meeting, Some((WORLD, vec![RankId(1)])));
    assert_eq!((pending[0].site, halt.ranks[0].tasks[0].site), (Site(7), Some(Site(8))));
    let text = halt.render(&|site| format!("train.py:{}", site.0), &|_| Vec::new());
    assert!(
        text.contains(
            "rank 0, clock 0 ps: waits for all_reduce (8 bytes, group 0), not entered by rank 1, at train.py:8"
        ),
        "{text}"
    );
    assert!(text.contains("rank 1, clock 0 ps: has finished"), "{text}");
}

#[test]
fn a_deadlock_is_reported_when_it_happens_and_not_when_time_outs_that_are_over_would_have_been() {
    // Rank 0 waits 1 us for its own compute, with a timeout of a minute; then for a message without a send.
    let patient = Request::Wait { handles: vec![Handle(0)], any: false, timeout: Some(MINUTE), site: Site(0) };
    let script = vec![compute(1_000_000), patient, recv(Some(1), 0, 8), wait(1)];
    let outcomes = run(&switch(2), vec![script, vec![]]);
    assert_eq!((&outcomes.halt().reason, outcomes.halt().at.as_ps()), (&HaltReason::Deadlock, 1_000_000));
}

#[test]
fn a_sleep_that_never_ends_holds_up_nobody_who_does_not_wait_for_it() {
    let sleep = |ps| issue(Activity::Sleep(SimDuration::from_ps(ps)));
    let outcomes = run(&switch(1), vec![vec![compute(5), wait(0), sleep(u64::MAX), compute(6)]]);
    assert!(matches!(outcomes.ended, RunEnd::Finished));
    let outcomes = run(&switch(1), vec![vec![compute(5), wait(0), sleep(u64::MAX), wait(1)]]);
    assert_eq!(outcomes.halt().reason, HaltReason::EndOfTime);
}

#[test]
fn any_number_of_marks_may_stand_behind_an_activity() {
    // All marks pass at the moment when the activity ends, in one loop: recursion would be too deep for the stack.
    let marks = 1_000_000;
    let mut script = vec![compute(7)];
    script.extend((0..marks).map(|_| issue(Activity::Mark(Mark::End))));
    script.push(wait(marks));
    assert_eq!(run(&switch(1), vec![script]).finish(0), 7);
}

#[test]
fn two_receives_that_wait_for_each_other_are_a_deadlock() {
    let outcomes = run(
        &switch(2),
        vec![vec![recv(Some(1), 0, 8), wait(0), send(1, 0, 8)], vec![recv(Some(0), 0, 8), wait(0), send(0, 0, 8)]],
    );
    assert_eq!(outcomes.halt().reason, HaltReason::Deadlock);
}

#[test]
fn a_tag_that_was_sent_with_another_one_is_named() {
    // Without a handshake the message has arrived; with one, the send still waits.
    let mut waits = switch(2);
    let handshake = Some(Handshake { control: Bytes(0), preamble: Bytes(0), eager: None });
    waits.backend.protocol = Protocol { handshake, ..Protocol::default() };
    for cluster in [switch(2), waits] {
        let outcomes = run(&cluster, vec![vec![send(1, 5, 8), wait(0)], vec![recv(Some(0), 6, 8), wait(0)]]);
        let text = outcomes.halt().render(&|site| format!("train.py:{}", site.0), &|_| Vec::new());
        assert!(text.contains("(tag 6; rank 0 has sent with tag 5, at train.py:"), "{text}");
    }
}

#[test]
fn a_key_that_nobody_sets_is_a_deadlock() {
    let get = Request::Store { operation: StoreOp::Get { key: b"ready".to_vec() }, timeout: None, site: Site(3) };
    let outcomes = run(&switch(2), vec![vec![get], vec![]]);
    assert_eq!(outcomes.halt().ranks[0].tasks[0].doing, Doing::Store(vec!["ready".into()]));
}

#[test]
fn different_sizes_kinds_and_sequences_are_mismatches() {
    let cases = [
        (blocking(AllReduce, 8), blocking(AllReduce, 9), "number of elements: 9 against 8"),
        (blocking(AllReduce, 8), blocking(Broadcast, 8), "operation: broadcast against all_reduce"),
        (blocking(Barrier, 0), blocking(AllReduce, 8), "operation: all_reduce against barrier"),
    ];
    for (first, second, expected) in cases {
        let outcomes = run(&switch(2), vec![first, second]);
        let HaltReason::Mismatch { what, first, second, .. } = &outcomes.halt().reason else {
            panic!("{:?}", outcomes.ended)
        };
        assert_eq!(what, expected);
        assert_eq!((first.0, second.0), (RankId(0), RankId(1)));
    }
}

#[test]
fn a_message_of_another_size_than_its_receive_is_a_mismatch() {
    let outcomes = run(&switch(2), vec![vec![send(1, 0, 8), wait(0)], vec![recv(Some(0), 0, 16), wait(0)]]);
    let HaltReason::Mismatch { what, first_site, second_site, .. } = &outcomes.halt().reason else {
        panic!("{:?}", outcomes.ended)
    };
    assert_eq!(what, "size of the message: 8 bytes sent, 16 bytes expected");
    // The sender has completed its wait and continued: its line is still known.
    assert_eq!((*first_site, *second_site), (Site(7), Site(7)));
}

#[test]
fn the_end_of_time_is_an_error_and_no_overflow() {
    let endless = u64::MAX / 2;
    let outcomes = run(&switch(2), vec![vec![send(1, 0, endless), wait(0)], vec![recv(Some(0), 0, endless), wait(0)]]);
    assert_eq!(outcomes.halt().reason, HaltReason::EndOfTime);
    let outcomes = run(&switch(1), vec![vec![compute(u64::MAX - 10), wait(0), compute(100), wait(1)]]);
    assert_eq!(outcomes.halt().reason, HaltReason::EndOfTime);
}

#[test]
fn a_program_that_cannot_go_on_ends_the_run_with_its_error() {
    /// Computes, and then lacks further input.
    struct Fails(std::vec::IntoIter<Request>);
    #[derive(Debug, thiserror::Error, PartialEq)]
    #[error("line {0} is missing")]
    struct Missing(u32);
    impl Program for Fails {
        fn resume(&mut self, _: SimTime, _: TaskId, _: Reply) -> Result<Request, ProgramError> {
            Ok(self.0.next().ok_or(Missing(3))?)
        }
    }
    let script = |ps| Box::new(Fails(vec![compute(ps), wait(0)].into_iter())) as Box<dyn Program>;
    let ended = drive(&mut Engine::new(&switch(2)), &mut [script(9), script(7)], &mut ());
    let RunEnd::Failed(failure) = ended else { panic!("no program fails: {ended:?}") };
    assert_eq!((failure.rank, failure.task, failure.at.as_ps()), (RankId(1), TaskId(0), 7));
    assert_eq!(failure.error.downcast_ref(), Some(&Missing(3)));
    assert_eq!(failure.to_string(), "rank 1, task 0, at 7 ps: line 3 is missing");
}
