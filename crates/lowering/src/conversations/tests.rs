//! Ranks whose messages are written in the tests: no process, no socket.

mod lent;
mod streams;

use super::*;
use crate::slice::{LoweredWork, RankSlice};
use crate::testing::cluster;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use uniference_protocol::messages::{
    self, ArenaBlock, DeviceWork, Fetched, LaunchId, LocalHandle, OnStream, Op, OutputPart, Quiet, Reply as Frame, Span,
};
use uniference_sim::ids::{GroupId, GroupRank};
use uniference_sim::program::{
    Activity, CallOp, Collective, CollectiveKind, DType, NcclSettings, Origin, Outcome, ReduceOp, Request, Shape,
    StoreOp, Work,
};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::{Bytes, SimDuration};

const MAIN: TaskId = TaskId(0);

/// Ranks that have all asked for their first turn.
fn ranks(count: u32) -> Conversations {
    let mut conversations = Conversations::new(Engine::new(&cluster(count)), count, "script.py");
    for rank in 0..count {
        say(&mut conversations, rank, vec![Op::Start]);
        assert_eq!(heard(&mut conversations), [(rank, Answer::Go)]);
    }
    conversations
}

/// The single running thread has asked.
const ALONE: Quiet = Quiet { parts: 1, outside: false };
const OF_TWO: Quiet = Quiet { parts: 2, outside: false };

fn say(conversations: &mut Conversations, rank: u32, ops: Vec<Op>) {
    let quiet = ops.last().filter(|op| op.asks()).map(|_| ALONE);
    conversations.say(RankId(rank), MAIN, ops, quiet);
}

/// Messages to write to tasks now.
fn frames(conversations: &mut Conversations) -> Vec<(u32, Frame)> {
    conversations.advance(&mut (), &mut ());
    let ready: Vec<Ready> = std::iter::from_fn(|| conversations.take_ready()).collect();
    ready.into_iter().filter_map(|ready| Some((ready.rank.0, conversations.frame(ready)?))).collect()
}

/// Answers that are ready now, except those about groups.
fn heard(conversations: &mut Conversations) -> Vec<(u32, Answer)> {
    let answers = frames(conversations).into_iter().map(|(rank, frame)| (rank, frame.answer));
    answers.filter(|(_, answer)| !matches!(answer, Answer::Group(_))).collect()
}

/// Names the group of all ranks, which becomes group 0.
fn join(conversations: &mut Conversations, count: u32) {
    for rank in 0..count {
        say(
            conversations,
            rank,
            vec![Op::Group { ranks: (0..count).collect(), sequence: 0, settings: None, rendezvous: false }],
        );
    }
}

fn issue(handle: LocalHandle, op: CallOp, staged: Option<u64>) -> Op {
    let call = uniference_sim::program::Call { group: GroupId(0), op };
    let staged = staged.map(|at| ArenaBlock { at, bytes: 4 });
    Op::Issue { handle, call, staged, filled: true, stream: None, site: Site(0) }
}

fn collective(kind: CollectiveKind, elements: u64, root: Option<u32>) -> CallOp {
    let reduce = matches!(kind, CollectiveKind::AllReduce | CollectiveKind::Reduce).then_some(ReduceOp::Sum);
    let root = root.map(GroupRank);
    CallOp::Collective(Collective {
        kind,
        dtype: DType::Float32,
        reduce,
        root,
        shape: Shape::Even(elements),
        kernel: None,
    })
}

fn wait(handle: LocalHandle) -> Op {
    Op::Wait { handles: vec![handle], any: false, timeout: None, ahead: false, site: Site(0) }
}

fn line(text: &str) -> Op {
    Op::Site(text.to_owned())
}

fn data(pieces: &[(u64, u64)]) -> Fetched {
    let pieces = pieces.iter().map(|(offset, bytes)| OutputPart { offset: *offset, bytes: *bytes, other: None });
    Fetched { pieces: pieces.collect(), ..Fetched::default() }
}

/// The answers after all `count` ranks have called an all-reduce of 384 elements and wait.
fn all_reduced(conversations: &mut Conversations, count: u32) -> Vec<(u32, Answer)> {
    join(conversations, count);
    for rank in 0..count {
        let call = issue(0, collective(CollectiveKind::AllReduce, 384, None), Some(u64::from(rank) << 20));
        assert_eq!(heard(conversations), []);
        say(conversations, rank, vec![line("a.py:1"), call, wait(0)]);
    }
    heard(conversations)
}

/// Rank 1 never calls: a wait for the stream continues when the call on it ends, and the call itself ends without data,
/// on the initiative of its own rank.
#[test]
fn a_stream_goes_on_behind_a_call_that_is_aborted() {
    let mut conversations = ranks(2);
    join(&mut conversations, 2);
    assert_eq!(heard(&mut conversations), []);
    let Op::Issue { handle, call, staged, filled, site, .. } =
        issue(0, collective(CollectiveKind::AllReduce, 4, None), None)
    else {
        unreachable!("it is one")
    };
    let stream = Some(OnStream { stream: 1, with_previous: false, number: None });
    let call = Op::Issue { handle, call, staged, filled, stream, site };
    let synchronize = Op::Synchronize { work: DeviceWork::Device, site: Site(0) };
    say(&mut conversations, 1, vec![Op::Exit(Outcome::Ok)]);
    say(&mut conversations, 0, vec![line("a.py:1"), call, Op::Abort(0), synchronize]);
    assert_eq!(heard(&mut conversations), [(0, Answer::Go)]);
    say(&mut conversations, 0, vec![wait(0)]);
    let over = Fetched { closed_by: Some(0), ..Fetched::default() };
    assert_eq!(heard(&mut conversations), [(0, Answer::Complete(vec![(0, over)]))]);
}

/// A rank that has reduced may have computed before it reports the reduction: the other ranks do not wait for the end
/// of that compute, which is later than their answer.
#[test]
fn a_reduction_is_there_before_what_is_said_with_it() {
    let mut conversations = ranks(3);
    let told = all_reduced(&mut conversations, 3);
    let [(first, Answer::Complete(_))] = &told[..] else { panic!("one rank is told") };
    let computed = messages::ComputeSlice { measured: SimDuration::from_us(5), operators: Vec::new() };
    say(&mut conversations, *first, vec![Op::Compute(computed), Op::Folded(0), Op::Release(0), Op::Now]);
    let told = heard(&mut conversations);
    assert!(matches!(told[..], [(_, Answer::Complete(_)), (_, Answer::Complete(_))]), "{told:?}");
}

#[test]
fn a_blocking_all_reduce_is_one_question_and_folded_once() {
    let mut conversations = ranks(3);
    let told = all_reduced(&mut conversations, 3);
    // The first answered rank reduces 2 x 1536 bytes; the other ranks are answered once that is done.
    let [(first, Answer::Complete(told))] = &told[..] else { panic!("one rank is told") };
    let [(0, fetched)] = &told[..] else { panic!("of its operation") };
    assert_eq!(fetched.folds.iter().map(|(.., bytes)| bytes).sum::<u64>(), 2 * 1536);
    assert_eq!(fetched.pieces.iter().map(|piece| piece.bytes).sum::<u64>(), 1536);
    say(&mut conversations, *first, vec![Op::Folded(0)]);
    let pieces = Fetched { pieces: fetched.pieces.clone(), ..Fetched::default() };
    let others = (0..3).filter(|rank| rank != first).map(|rank| (rank, Answer::Complete(vec![(0, pieces.clone())])));
    let mut heard = heard(&mut conversations);
    heard.sort_by_key(|(rank, _)| *rank);
    assert_eq!(heard, others.collect::<Vec<_>>());
}

#[test]
fn of_two_members_each_combines_for_itself() {
    let told = all_reduced(&mut ranks(2), 2);
    assert_eq!(told.len(), 2);
    for (_, answer) in told {
        let Answer::Complete(told) = answer else { panic!("it is complete") };
        // All 1536 bytes of one room, combined with the bytes at the same offset of the other room.
        let pieces = &told[0].1.pieces;
        assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), 1536);
        assert!(pieces.iter().all(|piece| piece.other == Some(piece.offset ^ (1 << 20))), "{pieces:?}");
    }
}

#[test]
fn who_was_to_fold_and_forgets_the_operation_leaves_it_to_the_next() {
    let mut conversations = ranks(3);
    let told = all_reduced(&mut conversations, 3);
    let [(first, Answer::Complete(_))] = told[..] else { panic!("one rank is told") };
    say(&mut conversations, first, vec![Op::Release(0)]);
    let [(second, Answer::Complete(told))] = &heard(&mut conversations)[..] else { panic!("then another") };
    assert_eq!((*second != first, told[0].1.folds.is_empty()), (true, false));
}

#[test]
fn rooms_are_free_when_all_who_receive_have_released() {
    // Rank 0 broadcasts its data, staged at 64: rank 0 receives nothing, the two others do.
    for (releasing, freed) in [(1..2, vec![]), (1..3, vec![64])] {
        let mut conversations = ranks(3);
        join(&mut conversations, 3);
        for rank in 0..3 {
            let call = issue(0, collective(CollectiveKind::Broadcast, 16, Some(0)), (rank == 0).then_some(64));
            let release = releasing.contains(&rank).then_some(Op::Release(0));
            let after = Op::Sleep(Span::For(SimDuration::from_us(1)));
            say(&mut conversations, rank, [call, wait(0)].into_iter().chain(release).chain([after]).collect());
        }
        let told = frames(&mut conversations);
        for (rank, pieces) in [(0, vec![]), (1, vec![(64, 64)]), (2, vec![(64, 64)])] {
            let answer = Answer::Complete(vec![(0, data(&pieces))]);
            assert!(told.iter().any(|(to, frame)| *to == rank && frame.answer == answer), "rank {rank}");
        }
        let to_root = told.iter().filter(|(to, _)| *to == 0).flat_map(|(_, frame)| frame.freed.clone());
        assert_eq!(to_root.collect::<Vec<_>>(), freed);
    }
}

#[test]
fn what_nobody_will_read_is_free_when_its_readers_have_ended() {
    // Rank 0 stages data at 64 for an operation in which rank 1, whose program ends before or after, never
    // participates.
    let send = CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(64) };
    for operation in [collective(CollectiveKind::AllReduce, 16, None), send] {
        for ends_first in [true, false] {
            let mut conversations = ranks(2);
            join(&mut conversations, 2);
            heard(&mut conversations);
            let timeout = Some(SimDuration::from_us(1));
            let wait = Op::Wait { handles: vec![0], any: false, timeout, ahead: false, site: Site(0) };
            let mut freed = Vec::new();
            let mut step = |conversations: &mut Conversations, rank: u32, ops: Vec<Op>| {
                say(conversations, rank, ops);
                freed.extend(frames(conversations).into_iter().flat_map(|(_, frame)| frame.freed));
            };
            let end = || Op::Exit(Outcome::Ok);
            let asks = |at| Op::Sleep(Span::Until(SimTime::ZERO + SimDuration::from_us(at)));
            if ends_first {
                step(&mut conversations, 1, vec![end()]);
            } else {
                step(&mut conversations, 1, vec![asks(5)]);
            }
            step(&mut conversations, 0, vec![line("a.py:1"), issue(0, operation.clone(), Some(64)), wait]);
            step(&mut conversations, 0, vec![Op::Release(0), asks(10)]);
            if !ends_first {
                step(&mut conversations, 1, vec![end()]);
            }
            step(&mut conversations, 0, vec![asks(20)]);
            assert_eq!(freed, [64], "{operation:?} {ends_first}");
        }
    }
}

#[test]
fn a_message_that_has_arrived_before_its_receive_has_its_data_all_the_same() {
    let mut conversations = ranks(2);
    join(&mut conversations, 2);
    let send = CallOp::Send { to: GroupRank(1), tag: 7, bytes: Bytes(20) };
    say(
        &mut conversations,
        0,
        vec![issue(0, send, Some(128)), wait(0), Op::Sleep(Span::For(SimDuration::from_us(2000)))],
    );
    assert_eq!(heard(&mut conversations), []);
    // 20 bytes at 1 GB/s take 20 ns; the receive starts after 1 ms.
    let recv = CallOp::Recv { from: None, tag: 7, bytes: Bytes(20) };
    let slice = messages::ComputeSlice { measured: SimDuration::from_us(1000), operators: Vec::new() };
    say(&mut conversations, 1, vec![Op::Compute(slice), issue(5, recv, None), wait(5)]);
    let received = Fetched { peer: Some(0), ..data(&[(128, 20)]) };
    let answers = heard(&mut conversations);
    assert!(answers.contains(&(1, Answer::Complete(vec![(5, received)]))), "{answers:?}");
    assert_eq!(conversations.engine().clock(RankId(1)).as_ps(), 1_000_000_000);
}

/// A task pauses until 10 us and ends earlier; its rank's main task computes until 20 us and then exits.
#[test]
fn what_a_task_is_told_that_has_ended_keeps_time_from_nobody() {
    let mut conversations = ranks(1);
    let other = conversations.open_task(RankId(0));
    let pause = Op::Pause(Span::For(SimDuration::from_us(10)));
    conversations.say(RankId(0), other, vec![pause], Some(OF_TWO));
    conversations.say(RankId(0), MAIN, vec![slice(20, &[]), Op::Exit(Outcome::Ok)], Some(OF_TWO));
    conversations.close_task(RankId(0), other);
    assert_eq!(heard(&mut conversations), []);
    assert!(matches!(conversations.advance(&mut (), &mut ()), Progress::Finished));
    assert_eq!(conversations.engine().clock(RankId(0)).as_ps(), 20_000_000);
}

/// A thread is woken while its process ends: no report of waiting threads follows.
#[test]
fn a_process_that_is_gone_keeps_time_from_nobody() {
    let mut conversations = ranks(1);
    let other = conversations.open_task(RankId(0));
    let pause = Op::Pause(Span::For(SimDuration::from_us(10)));
    conversations.say(RankId(0), other, vec![pause], Some(OF_TWO));
    conversations.say(RankId(0), MAIN, vec![slice(20, &[]), Op::Exit(Outcome::Ok)], Some(OF_TWO));
    assert_eq!(heard(&mut conversations), [(0, Answer::Over)]);
    conversations.close_task(RankId(0), other);
    assert!(matches!(conversations.advance(&mut (), &mut ()), Progress::Blocked | Progress::Idle));
    conversations.gone(RankId(0), true);
    assert!(matches!(conversations.advance(&mut (), &mut ()), Progress::Finished));
    assert_eq!(conversations.engine().clock(RankId(0)).as_ps(), 20_000_000);
}

/// A process is killed while it runs; the other rank's sleep does not end before that is known.
#[test]
fn a_process_that_is_gone_before_its_program_has_ended_lets_no_time_pass() {
    let mut conversations = ranks(2);
    say(&mut conversations, 1, vec![Op::Sleep(Span::For(SimDuration::from_us(10)))]);
    conversations.gone(RankId(0), false);
    assert_eq!(heard(&mut conversations), []);
    assert_eq!(conversations.engine().clock(RankId(1)).as_ps(), 0);
}

#[test]
fn a_task_may_wait_for_what_another_one_is_just_issuing() {
    let mut conversations = ranks(1);
    join(&mut conversations, 1);
    let second = conversations.open_task(RankId(0));
    conversations.say(RankId(0), second, vec![wait(0)], Some(OF_TWO));
    assert_eq!(heard(&mut conversations), []);
    let ops = vec![issue(0, collective(CollectiveKind::AllReduce, 4, None), Some(0)), Op::Now];
    assert!(conversations.say(RankId(0), MAIN, ops, Some(OF_TWO)));
    let answers = heard(&mut conversations);
    // In a group of one the output is the input.
    assert_eq!(answers[0], (0, Answer::Complete(vec![(0, data(&[(0, 16)]))])));
}

#[test]
fn a_task_may_wait_for_what_another_one_has_just_released() {
    let mut conversations = ranks(1);
    join(&mut conversations, 1);
    let other = conversations.open_task(RankId(0));
    let barrier = |handle| issue(handle, collective(CollectiveKind::Barrier, 0, None), None);
    say(&mut conversations, 0, vec![barrier(0), barrier(1), wait(0)]);
    assert_eq!(heard(&mut conversations), [(0, Answer::Complete(vec![(0, Fetched::default())]))]);
    say(&mut conversations, 0, vec![Op::Release(0)]);
    // The first operation has nothing left to report; the second one still exists.
    conversations.say(RankId(0), other, vec![wait(0)], Some(ALONE));
    assert_eq!(heard(&mut conversations), [(0, Answer::Complete(vec![]))]);
    let both = Op::Wait { handles: vec![0, 1], any: false, timeout: None, ahead: false, site: Site(0) };
    conversations.say(RankId(0), other, vec![both], Some(ALONE));
    assert_eq!(heard(&mut conversations), [(0, Answer::Complete(vec![(1, Fetched::default())]))]);
}

#[test]
fn lines_are_numbered_alike_whichever_rank_is_faster() {
    let table = |order: [u32; 2]| {
        let mut conversations = ranks(2);
        for rank in order {
            say(
                &mut conversations,
                rank,
                vec![line(&format!("a.py:{rank}")), Op::Sleep(Span::For(SimDuration::from_us(1)))],
            );
        }
        conversations.lines()
    };
    assert_eq!(table([0, 1]), table([1, 0]));
    assert_eq!(table([0, 1]), ["script.py", "script.py", "a.py:0", "a.py:1"]);
}

#[test]
fn a_deadlock_names_the_lines_of_all_ranks() {
    let mut conversations = ranks(2);
    join(&mut conversations, 2);
    for (rank, peer) in [(0, 1), (1, 0)] {
        let recv = CallOp::Recv { from: Some(GroupRank(peer)), tag: 0, bytes: Bytes(4) };
        say(&mut conversations, rank, vec![line(&format!("a.py:{}", rank + 5)), issue(0, recv, None), wait(0)]);
    }
    let Progress::Halted(halt) = conversations.advance(&mut (), &mut ()) else { panic!("nobody sends") };
    let text = halt.render(&|site| conversations.line(site).to_owned(), &|_| Vec::new());
    assert!(text.contains("deadlock") && text.contains("a.py:5") && text.contains("a.py:6"), "{text}");
}

/// Rank `rank` issues operation 0 with `room` as its input, and waits for it.
fn enter(conversations: &mut Conversations, rank: u32, room: u64, filled: bool) {
    let call = uniference_sim::program::Call { group: GroupId(0), op: collective(CollectiveKind::AllReduce, 4, None) };
    let staged = Some(ArenaBlock { at: room, bytes: 16 });
    let issue = Op::Issue { handle: 0, call, staged, filled, stream: None, site: Site(0) };
    let wait = Op::Wait { handles: vec![0], any: false, timeout: None, ahead: true, site: Site(0) };
    say(conversations, rank, vec![issue, wait]);
}

#[test]
fn nobody_reads_an_input_before_it_is_there() {
    let mut conversations = ranks(2);
    join(&mut conversations, 2);
    heard(&mut conversations);
    enter(&mut conversations, 0, 0, false);
    enter(&mut conversations, 1, 64, true);
    assert_eq!(heard(&mut conversations), []);
    say(&mut conversations, 0, vec![Op::Filled(0)]);
    assert_eq!(heard(&mut conversations).len(), 2);
}

#[test]
fn who_waits_for_one_collective_may_copy_its_data_as_soon_as_the_first_may() {
    let mut conversations = ranks(2);
    join(&mut conversations, 2);
    heard(&mut conversations);
    enter(&mut conversations, 0, 0, true);
    enter(&mut conversations, 1, 64, true);
    conversations.advance(&mut (), &mut ());
    let (rank, Frame { answer, .. }) = conversations.take_ahead().unwrap();
    let Answer::Ahead(ahead) = answer else { panic!("{answer:?} is no data") };
    // The data equals the answer after the rank's own wait, and comes once.
    assert!(heard(&mut conversations).contains(&(rank.0, Answer::Complete(vec![(0, ahead)]))));
    assert!(conversations.take_ahead().is_none());
}

/// Recorded requests.
#[derive(Default)]
struct Recorded(Vec<(RankId, RecordedStep)>);

impl Recorder for Recorded {
    fn step(&mut self, rank: RankId, _: TaskId, step: &RecordedStep, _: &str) {
        self.0.push((rank, step.clone()));
    }
}

#[test]
fn what_is_recorded_does_not_depend_on_which_rank_the_host_lets_run_first() {
    let record = |order: [u32; 3]| {
        let (mut conversations, mut recorded) = (ranks(3), Recorded::default());
        for us in [3, 1, 2] {
            for rank in order {
                let sleep = Op::Sleep(Span::For(SimDuration::from_us(us * (5 - u64::from(rank)))));
                say(&mut conversations, rank, vec![sleep]);
            }
            // All ranks are asleep: time passes until each is awake again.
            let mut awake = 0;
            while awake < 3 {
                conversations.advance(&mut (), &mut recorded);
                let ready: Vec<Ready> = std::iter::from_fn(|| conversations.take_ready()).collect();
                awake += ready.len();
                let running: Vec<RankId> =
                    ready.into_iter().map(|ready| (ready.rank, conversations.frame(ready)).0).collect();
                running.into_iter().for_each(|rank| conversations.stuck(rank));
            }
        }
        conversations.record_rest(&mut recorded);
        recorded.0
    };
    let expected = record([0, 1, 2]);
    // A sleep is an issue and a wait. The second and third steps of the two ranks that woke first follow from the
    // wake-up of the last rank.
    assert_eq!(expected.len(), 3 * 3 * 2 + 2 * 2);
    for order in [[2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        assert_eq!(record(order), expected);
    }
}

#[test]
fn a_rank_hears_with_its_next_answer_what_else_is_over_and_once() {
    let mut conversations = ranks(2);
    join(&mut conversations, 2);
    heard(&mut conversations);
    let send = |tag| CallOp::Send { to: GroupRank(1), tag, bytes: Bytes(4) };
    let sleep = || Op::Sleep(Span::For(SimDuration::from_us(1)));
    say(&mut conversations, 0, vec![issue(0, send(5), Some(0)), issue(1, send(6), Some(64)), sleep()]);
    let recv = |tag| CallOp::Recv { from: Some(GroupRank(0)), tag, bytes: Bytes(4) };
    say(
        &mut conversations,
        1,
        vec![issue(0, recv(6), None), issue(1, recv(5), None), issue(2, recv(7), None), wait(1)],
    );
    // Finished operations that each rank is told of, in one message or several.
    let over = |conversations: &mut Conversations| {
        let mut over: BTreeMap<u32, Vec<LocalHandle>> = BTreeMap::new();
        frames(conversations).into_iter().for_each(|(rank, frame)| over.entry(rank).or_default().extend(frame.over));
        over
    };
    // The first message has arrived; the running rank keeps time from passing.
    assert_eq!(over(&mut conversations), BTreeMap::from([(1, vec![1])]));
    say(&mut conversations, 1, vec![Op::Release(1), sleep()]);
    // The sends have left, in their order.
    assert_eq!(over(&mut conversations), BTreeMap::from([(0, vec![0, 1])]));
    say(&mut conversations, 0, vec![Op::Release(0), sleep()]);
    assert_eq!(over(&mut conversations), BTreeMap::from([(1, vec![0])]));
    say(&mut conversations, 1, vec![sleep()]);
    assert_eq!(over(&mut conversations), BTreeMap::from([(0, vec![])]));
}

/// Costs of one microsecond per byte of operators; records the slices.
struct ByBytes(Rc<RefCell<Shown>>);

/// Rank, line and operators of each slice.
type Shown = Vec<(u32, String, Vec<u8>)>;

impl Costs for ByBytes {
    fn lower(&mut self, slice: RankSlice<'_>) -> Vec<LoweredWork> {
        self.0.borrow_mut().push((slice.rank.0, slice.line.to_owned(), slice.operators.to_vec()));
        vec![LoweredWork::Host(Work::new(SimDuration::from_us(slice.operators.len() as u64), Origin::Roofline))]
    }
}

fn names(entries: &[u8]) -> Op {
    Op::Dictionary { process: 0, at: 0, entries: entries.to_vec() }
}

fn slice(us: u64, operators: &[u8]) -> Op {
    Op::Compute(messages::ComputeSlice { measured: SimDuration::from_us(us), operators: operators.to_vec() })
}

#[test]
fn slices_cost_what_they_are_said_to_and_are_recorded_before_their_compute() {
    let (mut conversations, shown, mut recorded) = (ranks(1), Rc::default(), Recorded::default());
    conversations.cost_with(Box::new(ByBytes(Rc::clone(&shown))));
    join(&mut conversations, 1);
    heard(&mut conversations);
    conversations.record_rest(&mut ());
    let barrier = |handle| issue(handle, collective(CollectiveKind::Barrier, 0, None), None);
    let ops = vec![line("a.py:1"), Op::Operators(vec![1, 2]), slice(9, &[3]), barrier(0), slice(7, &[]), Op::Now];
    say(&mut conversations, 0, ops);
    heard(&mut conversations);
    conversations.record_rest(&mut recorded);
    // 3 us of compute, and 0.05 us for the clock read.
    assert_eq!(conversations.engine().clock(RankId(0)).as_ps(), 3_050_000);
    let line = || "a.py:1".to_owned();
    assert_eq!(*shown.borrow(), [(0, line(), vec![1, 2, 3]), (0, line(), vec![])]);
    let steps: Vec<RecordedStep> = recorded.0.into_iter().map(|(_, step)| step).collect();
    let operators = |us, operators: &[u8]| RecordedStep::Operators {
        operators: operators.to_vec(),
        measured: SimDuration::from_us(us),
    };
    let computes = |step: &RecordedStep| match step {
        RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), .. }) => Some(work.duration),
        _ => None,
    };
    assert_eq!((&steps[0], computes(&steps[1])), (&operators(9, &[1, 2, 3]), Some(SimDuration::from_us(3))));
    let second = steps.iter().position(|step| *step == operators(7, &[])).unwrap();
    assert_eq!(computes(&steps[second + 1]), Some(SimDuration::ZERO));
}

#[test]
fn what_is_measured_and_has_no_operators_is_recorded_as_ever() {
    let (mut conversations, mut recorded) = (ranks(1), Recorded::default());
    say(&mut conversations, 0, vec![slice(9, &[]), Op::Now]);
    heard(&mut conversations);
    conversations.record_rest(&mut recorded);
    assert_eq!(recorded.0.len(), 3);
    assert!(recorded.0.iter().all(|(_, step)| matches!(step, RecordedStep::Request(_))), "{:?}", recorded.0);
}

#[test]
fn names_that_come_for_all_threads_go_before_the_first_of_their_operators() {
    let (mut conversations, shown) = (ranks(1), Rc::default());
    conversations.cost_with(Box::new(ByBytes(Rc::clone(&shown))));
    let other = conversations.open_task(RankId(0));
    // The other thread's wire may be read first.
    conversations.say(RankId(0), other, vec![slice(0, &[30]), Op::Now], Some(OF_TWO));
    conversations.say(RankId(0), MAIN, vec![names(&[1])], None);
    conversations.say(RankId(0), MAIN, vec![slice(0, &[20]), Op::Now], Some(OF_TWO));
    heard(&mut conversations);
    let operators: Vec<Vec<u8>> = shown.borrow().iter().map(|(_, _, operators)| operators.clone()).collect();
    assert_eq!(operators, [vec![1, 20], vec![30]]);
}

#[test]
fn a_slice_that_waits_for_its_turn_has_the_dictionary_that_came_before_it() {
    let (mut conversations, shown) = (ranks(1), Rc::default());
    conversations.cost_with(Box::new(ByBytes(Rc::clone(&shown))));
    join(&mut conversations, 1);
    heard(&mut conversations);
    // The second slice waits for the first, and does not include later parts of the dictionary.
    conversations.say(RankId(0), MAIN, vec![names(&[1]), slice(0, &[20]), slice(0, &[20])], None);
    conversations.say(RankId(0), MAIN, vec![names(&[2, 2])], None);
    conversations.say(RankId(0), MAIN, vec![slice(0, &[20]), Op::Now], Some(ALONE));
    heard(&mut conversations);
    let operators: Vec<Vec<u8>> = shown.borrow().iter().map(|(_, _, operators)| operators.clone()).collect();
    assert_eq!(operators, [vec![1, 20], vec![20], vec![2, 2, 20]]);
}

/// A task that settles after three operators of one microsecond each continues after three microseconds.
#[test]
fn a_task_that_settles_goes_on_when_its_compute_is_over() {
    let mut conversations = ranks(1);
    conversations.cost_with(Box::new(ByBytes(Rc::default())));
    say(&mut conversations, 0, vec![slice(0, &[1, 2, 3]), Op::Settle]);
    assert_eq!(heard(&mut conversations), [(0, Answer::Go)]);
    assert_eq!(conversations.engine().clock(RankId(0)).as_ps(), 3_000_000);
}

/// The compute before a sleep is attributed to the sleep's line; a thread without a line starts with the line of the
/// main thread.
#[test]
fn a_sleep_is_of_the_line_that_the_task_is_at() {
    let (mut conversations, mut recorded) = (ranks(1), Recorded::default());
    let sleep = |us| Op::Sleep(Span::For(SimDuration::from_us(us)));
    let other = conversations.open_task(RankId(0));
    conversations.say(RankId(0), other, vec![sleep(5)], Some(OF_TWO));
    let ops = vec![line("a.py:1"), line("a.py:2"), slice(1, &[]), Op::At(Site(1)), sleep(1)];
    conversations.say(RankId(0), MAIN, ops, Some(OF_TWO));
    heard(&mut conversations);
    conversations.record_rest(&mut recorded);
    let site = |(_, step): &(RankId, RecordedStep)| match step {
        RecordedStep::Request(Request::Issue { site, .. }) => Some(*site),
        _ => None,
    };
    let lines: Vec<&str> = recorded.0.iter().filter_map(site).map(|site| conversations.line(site)).collect();
    assert_eq!(lines, ["a.py:2"; 3]);
}

/// A main thread waits for a key of the store that no rank sets, while a second thread polls every 10 s. The run is a
/// deadlock if the second thread is a library's, and goes on if it is the program's.
#[test]
fn threads_of_libraries_that_poll_keep_no_run_alive() {
    for (sleeps_at, is_dead) in [(None, true), (Some("a.py:9"), false)] {
        let mut conversations = ranks(1);
        let other = conversations.open_task(RankId(0));
        let get = StoreOp::Get { key: b"never".to_vec() };
        let asks = Op::Store { operation: get, timeout: None, site: Site(0) };
        let at = sleeps_at.map(|at| [line(at), Op::At(Site(0))]).into_iter().flatten();
        let mut polls: Vec<Op> = at.chain([Op::Pause(Span::For(SimDuration::from_us(10_000_000)))]).collect();
        conversations.say(RankId(0), other, polls.clone(), Some(OF_TWO));
        conversations.say(RankId(0), MAIN, vec![line("a.py:1"), asks], Some(OF_TWO));
        polls.retain(Op::asks);
        let mut ended = None;
        for _ in 0..20 {
            match conversations.advance(&mut (), &mut ()) {
                Progress::Halted(halt) => {
                    ended = Some(halt);
                    break;
                }
                Progress::Idle => conversations.still_waits(),
                _ => {}
            }
            while let Some(ready) = conversations.take_ready() {
                conversations.frame(ready);
                conversations.say(RankId(0), other, polls.clone(), Some(ALONE));
            }
        }
        assert_eq!(ended.is_some(), is_dead, "{sleeps_at:?}");
        if let Some(halt) = ended {
            assert_eq!(halt.reason, uniference_sim::engine::HaltReason::Deadlock);
            // The deadlock is found at the first poll after 60 s of patience.
            assert!((60.0..80.0).contains(&halt.at.as_secs_f64()), "{}", halt.at);
        }
    }
}

/// A main thread waits for 80 GB, which a network of 1 GB/s carries for 80 s, while a library's thread polls every 10
/// s. The run goes on, because the network moves bytes.
#[test]
fn a_long_transfer_beside_a_polling_thread_is_no_deadlock() {
    let mut conversations = ranks(2);
    join(&mut conversations, 2);
    heard(&mut conversations);
    let other = conversations.open_task(RankId(1));
    let polls = || vec![Op::Pause(Span::For(SimDuration::from_us(10_000_000)))];
    let bytes = Bytes(80_000_000_000);
    say(&mut conversations, 0, vec![issue(0, CallOp::Send { to: GroupRank(1), tag: 0, bytes }, None), wait(0)]);
    conversations.say(RankId(1), other, polls(), Some(OF_TWO));
    let receive = issue(0, CallOp::Recv { from: Some(GroupRank(0)), tag: 0, bytes }, None);
    conversations.say(RankId(1), MAIN, vec![receive, wait(0)], Some(OF_TWO));
    let mut received = None;
    while received.is_none() {
        match conversations.advance(&mut (), &mut ()) {
            Progress::Halted(halt) => panic!("{:?} at {}", halt.reason, halt.at),
            Progress::Idle => conversations.still_waits(),
            _ => {}
        }
        while let Some(ready) = conversations.take_ready() {
            let (rank, task) = (ready.rank, ready.task);
            let frame = conversations.frame(ready).unwrap();
            match (rank, task) {
                _ if matches!(frame.answer, Answer::Group(_)) => {}
                (RankId(1), MAIN) => received = Some(frame.now),
                (RankId(1), _) => drop(conversations.say(RankId(1), other, polls(), Some(ALONE))),
                _ => drop(conversations.say(rank, task, vec![Op::Exit(Outcome::Ok)], None)),
            }
        }
    }
    let seconds = received.unwrap().as_secs_f64();
    assert!((79.9..81.0).contains(&seconds), "{seconds}");
}

#[test]
fn members_with_different_settings_are_reported() {
    let mut conversations = ranks(3);
    let rings = NcclSettings { algorithms: [NcclSettings::RING; 5], ..NcclSettings::default() };
    let members: Arc<[RankId]> = (0..3).map(RankId).collect();
    for (rank, settings) in [(0, Some(rings)), (1, Some(rings)), (2, None)] {
        assert_eq!(conversations.disagreement(), None);
        conversations.data.join(GroupId(0), RankId(rank), &members, settings).unwrap();
    }
    let text = "ranks 0 and 2 give one communicator different NCCL settings; the settings of rank 0 count";
    assert_eq!(conversations.disagreement().as_deref(), Some(text));
}
