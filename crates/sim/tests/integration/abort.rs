//! A rank that aborts a group: its outstanding operations end, and other ranks are not notified.

use crate::support::{
    LATENCY_PS, PS_PER_BYTE, WORLD, blocking, collective, compute, issue, recv, run, send, switch, wait,
};
use uniference_sim::engine::{Doing, HaltReason, RunEnd};
use uniference_sim::ids::{GroupId, Handle, QueueId, RankId, Site};
use uniference_sim::program::{Activity, Call, CollectiveKind, Reply, Request};

const MS: u64 = 1_000_000_000;

/// Reply to a rank about its own aborted operation.
fn aborted(handle: u32, rank: u32) -> Reply {
    Reply::Failed { complete: vec![Handle(handle)], failed: vec![(Handle(handle), RankId(rank))] }
}

fn complete(handle: u32) -> Reply {
    Reply::Complete(vec![Handle(handle)])
}

/// The task's own queue comes to the abort after a millisecond of compute: then the collective that no other rank has
/// entered ends, and a later one ends as it starts, with the activities that wait for it.
#[test]
fn what_is_outstanding_ends_with_the_abort_and_what_comes_later_as_it_starts() {
    let behind = Request::Issue {
        activity: Activity::Reach(1),
        queue: QueueId::of_stream(0),
        after: vec![Handle(0)],
        site: Site(0),
    };
    let mut script = vec![collective(CollectiveKind::AllReduce, 8), behind, compute(MS), issue(Activity::Abort(WORLD))];
    script.extend([wait(0), wait(1), collective(CollectiveKind::Barrier, 0), wait(4)]);
    let outcomes = run(&switch(2), vec![script, vec![]]);
    assert!(matches!(outcomes.ended, RunEnd::Finished), "{:?}", outcomes.ended);
    assert_eq!((outcomes.at(0, 4), outcomes.reply(0, 4)), (MS, aborted(0, 0)));
    assert_eq!((outcomes.at(0, 5), outcomes.reply(0, 5)), (MS, complete(1)));
    assert_eq!((outcomes.at(0, 7), outcomes.reply(0, 7)), (MS, aborted(4, 0)));
}

/// A ring needs every member: after rank 0 has aborted, rank 1 waits on, until it aborts as well.
#[test]
fn the_others_wait_until_they_abort_themselves() {
    let script = |aborts_at| {
        let [call, wait] = <[Request; 2]>::try_from(blocking(CollectiveKind::AllReduce, 8 * MS / PS_PER_BYTE)).unwrap();
        vec![call, compute(aborts_at), issue(Activity::Abort(WORLD)), wait]
    };
    let outcomes = run(&switch(2), vec![script(MS), script(3 * MS)]);
    assert!(matches!(outcomes.ended, RunEnd::Finished), "{:?}", outcomes.ended);
    assert_eq!((outcomes.at(0, 3), outcomes.reply(0, 3)), (MS, aborted(0, 0)));
    assert_eq!((outcomes.at(1, 3), outcomes.reply(1, 3)), (3 * MS, aborted(0, 1)));
    let waits = run(&switch(2), vec![script(MS), blocking(CollectiveKind::AllReduce, 8 * MS / PS_PER_BYTE)]);
    assert_eq!(waits.halt().reason, HaltReason::Deadlock);
    assert!(waits.halt().ranks[0].ended.is_some());
}

/// Rank 0 aborts the group and closes its connections, as Gloo does after a timeout. Rank 1, which waits for rank 0, is
/// notified one latency later. Rank 2, which enters an operation with rank 0 later, is notified at once.
#[test]
fn closing_an_aborted_group_fails_who_waits_and_who_comes_later() {
    let closes = vec![
        collective(CollectiveKind::AllReduce, 9),
        compute(MS),
        issue(Activity::Abort(WORLD)),
        issue(Activity::Close(WORLD)),
        wait(0),
    ];
    let late = vec![compute(3 * MS), wait(0), collective(CollectiveKind::AllReduce, 9), wait(1)];
    let outcomes = run(&switch(3), vec![closes, blocking(CollectiveKind::AllReduce, 9), late]);
    assert!(matches!(outcomes.ended, RunEnd::Finished), "{:?}", outcomes.ended);
    let by_0 = |handle| Reply::Failed { complete: vec![Handle(handle)], failed: vec![(Handle(handle), RankId(0))] };
    assert_eq!((outcomes.at(0, 4), outcomes.reply(0, 4)), (MS, by_0(0)));
    assert_eq!((outcomes.at(1, 1), outcomes.reply(1, 1)), (MS + LATENCY_PS, by_0(0)));
    assert_eq!((outcomes.at(2, 3), outcomes.reply(2, 3)), (3 * MS, by_0(1)));
}

/// Messages end in the same way, and those of another group of the same ranks arrive: n bytes need n/r + L.
#[test]
fn other_groups_go_on() {
    let other = |call: Request| {
        let Request::Issue { activity: Activity::Call(Call { op, .. }), queue, after, site } = call else {
            panic!("it is a call")
        };
        Request::Issue { activity: Activity::Call(Call { group: GroupId(1), op }), queue, after, site }
    };
    let join =
        || Request::JoinGroup { ranks: (0..2).map(RankId).collect(), sequence: 1, settings: None, rendezvous: false };
    let receives =
        vec![join(), recv(Some(1), 0, 8), other(recv(Some(1), 0, 8)), issue(Activity::Abort(WORLD)), wait(0), wait(1)];
    let outcomes = run(&switch(2), vec![receives, vec![join(), other(send(0, 0, 8)), wait(0)]]);
    assert!(matches!(outcomes.ended, RunEnd::Finished), "{:?}", outcomes.ended);
    assert_eq!((outcomes.at(0, 4), outcomes.reply(0, 4)), (0, aborted(0, 0)));
    assert_eq!((outcomes.at(0, 5), outcomes.reply(0, 5)), (8 * PS_PER_BYTE + LATENCY_PS, complete(1)));
}

/// Work on a CUDA stream is behind a call that a peer never enters: the report names the call, its line and the absent
/// rank.
#[test]
fn a_deadlock_of_a_stream_names_the_call_that_it_stands_behind() {
    let on_stream = |activity, after| Request::Issue { activity, queue: QueueId::of_stream(0), after, site: Site(0) };
    let script = vec![
        collective(CollectiveKind::AllReduce, 8),
        on_stream(Activity::Reach(1), vec![Handle(0)]),
        on_stream(Activity::Reach(2), vec![]),
        wait(2),
    ];
    let outcomes = run(&switch(2), vec![script, vec![]]);
    let Doing::Waiting(pending) = &outcomes.halt().ranks[0].tasks[0].doing else { panic!("rank 0 waits") };
    let behind: Vec<_> = pending[0].behind.iter().map(|call| (call.handle, call.meeting.clone())).collect();
    assert_eq!(behind, [(Handle(0), Some((WORLD, vec![RankId(1)])))]);
    let text = outcomes.halt().render(&|site| format!("train.py:{}", site.0), &|_| Vec::new());
    let line = "waits for event, at train.py:8; behind all_reduce (8 bytes, group 0), not entered by rank 1, issued at train.py:7";
    assert!(text.contains(line), "{text}");
}
