//! Several threads of a rank, and the store that all ranks share.

use crate::support::*;
use std::sync::Arc;
use uniference_sim::engine::{Engine, Resumption, Threads, Turn};
use uniference_sim::ids::{Handle, RankId, Site, TaskId};
use uniference_sim::program::CollectiveKind::AllReduce;
use uniference_sim::program::{Activity, LOOK_COST, Outcome, POLL_COST, Reply, Request, StoreOp, StoreValue};
use uniference_sim::time::SimDuration;

fn store(operation: StoreOp) -> Request {
    Request::Store { operation, timeout: None, site: Site(0) }
}

fn set(key: &str) -> Request {
    store(StoreOp::Set { key: key.into(), value: b"1".to_vec() })
}

fn get(key: &str) -> Request {
    store(StoreOp::Get { key: key.into() })
}

fn resumption(turn: Turn) -> Resumption {
    match turn {
        Turn::Resume(resumption) => resumption,
        other => panic!("{other:?} in place of a resumption"),
    }
}

#[test]
fn a_thread_may_wait_while_the_main_one_is_inside_a_call() {
    // As in a backward pass: the main thread is inside `backward()`, another thread all-reduces. No other thread waits.
    let cluster = switch(2);
    let mut engine = Engine::new(&cluster);
    let world: Arc<[RankId]> = [RankId(0), RankId(1)].into();
    for rank in [RankId(0), RankId(1)] {
        assert_eq!(resumption(engine.next(&mut ())).rank, rank);
    }
    let threads = [RankId(0), RankId(1)].map(|rank| (rank, engine.open_task(rank)));
    let requests = [
        Request::JoinGroup { ranks: world, sequence: 0, settings: None, rendezvous: false },
        collective(AllReduce, 1000),
        wait(0),
    ];
    let mut scripts = [requests.clone().into_iter(), requests.into_iter()];
    for (rank, thread) in threads {
        engine.submit(rank, thread, scripts[rank.index()].next().unwrap());
        engine.set_threads(rank, Threads::Wait);
    }
    let mut through = 0;
    while through < 2 {
        let Resumption { rank, task, .. } = resumption(engine.next(&mut ()));
        assert_eq!(task, TaskId(1));
        match scripts[rank.index()].next() {
            Some(request) => engine.submit(rank, task, request),
            None => through += 1,
        }
    }
    // ring of two: 2 (n/2 beta + alpha)
    let through = 1000 * PS_PER_BYTE + 2 * LATENCY_PS;
    assert_eq!(engine.clock(RankId(0)).as_ps(), through);
    // The main thread continues after the all-reduce, not at its own stale clock.
    engine.submit(RankId(0), TaskId(0), Request::Look);
    engine.submit(RankId(1), TaskId(0), Request::Exit(Outcome::Ok));
    assert_eq!(resumption(engine.next(&mut ())).now.as_ps(), through + LOOK_COST.as_ps());
}

#[test]
fn a_thread_may_be_let_go_on_before_the_engine_comes_to_its_pause() {
    let mut engine = Engine::new(&switch(1));
    assert_eq!(resumption(engine.next(&mut ())).task, TaskId(0));
    let thread = engine.open_task(RankId(0));
    engine.submit(RankId(0), thread, Request::Pause { timeout: SimDuration::from_us(5), site: Site(0) });
    engine.submit(RankId(0), thread, Request::Look);
    engine.set_threads(RankId(0), Threads::Wait);
    let Resumption { task, now, reply, .. } = resumption(engine.next(&mut ()));
    assert_eq!((task, now.as_ps(), reply), (thread, LOOK_COST.as_ps(), Reply::Now(now)));
    // The pause does not end a later request of the thread.
    let key = b"never".to_vec();
    let timeout = Some(SimDuration::from_us(9));
    engine.submit(RankId(0), thread, Request::Store { operation: StoreOp::Get { key }, timeout, site: Site(0) });
    engine.set_threads(RankId(0), Threads::Wait);
    let Resumption { now: end, reply, .. } = resumption(engine.next(&mut ()));
    assert_eq!((end.as_ps(), reply), (now.as_ps() + 9_000_000, Reply::TimedOut));
}

#[test]
fn a_loop_that_waits_for_the_clock_looks_at_it_less_often() {
    let looks = |count: usize| vec![Request::Look; count];
    let cheap = 999 * LOOK_COST.as_ps();
    assert_eq!(run(&switch(1), vec![looks(999)]).finish(0), cheap);
    assert_eq!(run(&switch(1), vec![looks(1002)]).finish(0), cheap + 3 * POLL_COST.as_ps());
    // A thread that sleeps between two clock reads does not pay the cost of a busy-wait.
    let sleeps = [issue(Activity::Sleep(SimDuration::from_us(4))), wait(0)];
    let apart = [looks(999), sleeps.to_vec(), looks(999)].concat();
    assert_eq!(run(&switch(1), vec![apart]).finish(0), 2 * cheap + 4_000_000);
}

#[test]
fn a_store_wait_lasts_until_the_key_is_set_and_is_idle() {
    let setter = vec![issue(Activity::Sleep(SimDuration::from_us(4))), wait(0), set("ready")];
    let outcomes = run(&switch(2), vec![vec![get("ready")], setter]);
    assert_eq!(outcomes.at(0, 0), 4_000_000);
    assert_eq!(outcomes.reply(0, 0), Reply::Store(StoreValue::Bytes(b"1".to_vec())));
    assert_eq!(outcomes.statistics.ranks()[0].times.idle, SimDuration::from_us(4));
}

#[test]
fn a_store_wait_gives_up_in_virtual_time() {
    let timeout = Some(SimDuration::from_us(9));
    let hasty = Request::Store { operation: StoreOp::Get { key: b"never".to_vec() }, timeout, site: Site(0) };
    let outcomes = run(&switch(1), vec![vec![hasty, set("never")]]);
    assert_eq!((outcomes.at(0, 0), outcomes.reply(0, 0)), (9_000_000, Reply::TimedOut));
}

#[test]
fn waiting_pops_are_served_in_the_order_they_came() {
    let pop = || store(StoreOp::QueuePop { key: b"q".to_vec(), block: true });
    let push = |value: &[u8]| store(StoreOp::QueuePush { key: b"q".to_vec(), value: value.to_vec() });
    let late = vec![issue(Activity::Sleep(SimDuration::from_us(1))), wait(0), pop()];
    let pusher = vec![issue(Activity::Sleep(SimDuration::from_us(2))), wait(0), push(b"a"), push(b"b")];
    let outcomes = run(&switch(3), vec![late, vec![pop()], pusher]);
    assert_eq!(outcomes.reply(1, 0), Reply::Store(StoreValue::Bytes(b"a".to_vec())));
    assert_eq!(outcomes.reply(0, 2), Reply::Store(StoreValue::Bytes(b"b".to_vec())));
}

#[test]
fn looking_into_the_store_costs_a_poll() {
    let check = || store(StoreOp::Check { keys: vec![b"k".to_vec()] });
    let outcomes = run(&switch(1), vec![vec![check(), set("k"), check()]]);
    assert_eq!(outcomes.reply(0, 0), Reply::Store(StoreValue::Flag(false)));
    assert_eq!(outcomes.reply(0, 2), Reply::Store(StoreValue::Flag(true)));
    assert_eq!(outcomes.finish(0), 2 * POLL_COST.as_ps());
}

#[test]
fn waiting_for_any_returns_the_first_and_the_other_goes_on() {
    let any = Request::Wait { handles: vec![Handle(0), Handle(1)], any: true, timeout: None, site: Site(0) };
    let receiver = vec![recv(Some(0), 0, 1000), recv(Some(1), 0, 10), any, wait(0)];
    let outcomes = run(&switch(3), vec![vec![send(2, 0, 1000)], vec![send(2, 0, 10)], receiver]);
    assert_eq!(outcomes.reply(2, 2), Reply::Complete(vec![Handle(1)]));
    // 10 bytes at half the ingress rate, then the rest of 1000 alone.
    assert_eq!(outcomes.at(2, 2), 20 * PS_PER_BYTE + LATENCY_PS);
    assert_eq!(outcomes.at(2, 3), 1010 * PS_PER_BYTE + LATENCY_PS);
}

#[test]
fn a_store_activity_is_complete_when_it_is_served_and_holds_nothing_up() {
    // Rank 0 sets the key after 3 us; rank 1 computes 1 us while it waits for the key, and then queries the store,
    // which costs 1 us more.
    let key = || b"k".to_vec();
    let store = |operation| issue(Activity::Store(operation));
    let set = vec![compute(3_000_000), wait(0), store(StoreOp::Set { key: key(), value: key() })];
    let get = vec![
        store(StoreOp::Get { key: key() }),
        compute(1_000_000),
        wait(1),
        wait(0),
        store(StoreOp::Check { keys: vec![key()] }),
        wait(2),
    ];
    let outcomes = run(&switch(2), vec![set, get]);
    assert_eq!((outcomes.at(1, 2), outcomes.at(1, 3), outcomes.at(1, 5)), (1_000_000, 3_000_000, 4_000_000));
}

#[test]
fn a_rank_is_finished_where_its_graph_says_so_though_its_task_goes_on() {
    let script = vec![compute(2_000_000), wait(0), issue(Activity::Finish), compute(5_000_000), wait(2)];
    let other = vec![compute(9_000_000), wait(0)];
    let outcomes = run(&switch(2), vec![script, other]);
    assert_eq!((outcomes.finish(0), outcomes.finish(1)), (2_000_000, 9_000_000));
    assert_eq!(outcomes.at(0, 4), 7_000_000);
}

#[test]
fn a_time_out_that_is_over_moves_nobody() {
    // The only thread waits for its own compute, with a timeout of a second; then for something outside, which lasts no
    // time.
    let cluster = switch(1);
    let mut engine = Engine::new(&cluster);
    let rank = RankId(0);
    resumption(engine.next(&mut ()));
    engine.submit(rank, TaskId(0), compute(1_000));
    resumption(engine.next(&mut ()));
    let second = Some(SimDuration::from_ps(1_000_000_000_000));
    engine.submit(
        rank,
        TaskId(0),
        Request::Wait { handles: vec![Handle(0)], any: false, timeout: second, site: Site(0) },
    );
    assert_eq!(resumption(engine.next(&mut ())).now.as_ps(), 1_000);
    engine.set_threads(rank, Threads::WaitOutside);
    assert!(matches!(engine.next(&mut ()), Turn::Blocked));
    assert_eq!(engine.now().as_ps(), 1_000);
}
