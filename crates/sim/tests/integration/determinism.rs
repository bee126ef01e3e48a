//! Equal programs give equal bytes: in two runs, from a record, and whatever the order in which the host resumes ranks.

use crate::support::*;
use proptest::prelude::*;
use std::sync::Arc;
use uniference_sim::engine::{Engine, Resumption, RunEnd, Turn};
use uniference_sim::ids::{GroupId, QueueId, RankId, TaskId};
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::program::CollectiveKind::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, Reduce};
use uniference_sim::program::{Activity, Call, CallOp, Outcome, Request};
use uniference_sim::replay::{OtherGroup, RecordedStep, replay};

const RANKS: usize = 4;

/// Collectives with compute of different lengths before each, then a ring of messages.
fn scripts(seed: &[u64]) -> Vec<Vec<Request>> {
    let kinds = [AllReduce, Broadcast, AllGather, Barrier, AllToAll, Reduce];
    (0..RANKS)
        .map(|rank| {
            let mut script = Vec::new();
            let mut handle = 0;
            for (step, value) in seed.iter().enumerate() {
                let kind = kinds[(*value as usize + step) % kinds.len()];
                let work = (value * (rank as u64 * 7919 + 13)) % 20_000_000;
                script.extend([
                    compute(work),
                    wait(handle),
                    collective(kind, value % 3000),
                    wait(handle + 1),
                    Request::Now,
                ]);
                handle += 2;
            }
            let (next, previous) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
            script.extend([
                send(next as u32, 1, 500),
                recv(Some(previous as u32), 1, 500),
                wait(handle + 1),
                wait(handle),
            ]);
            script
        })
        .collect()
}

/// Lets running ranks answer in the order that `choices` picks, as a host with several cores might.
fn run_shuffled(scripts: Vec<Vec<Request>>, choices: &[usize]) -> String {
    let cluster = switch(RANKS);
    let world: Arc<[RankId]> = (0..RANKS).map(RankId::from).collect();
    let join = Request::JoinGroup { ranks: world, sequence: 0, settings: None, rendezvous: false };
    let mut scripts: Vec<_> = scripts
        .into_iter()
        .map(|script| std::iter::once(join.clone()).chain(script).collect::<Vec<_>>().into_iter())
        .collect();
    let mut engine = Engine::new(&cluster);
    let mut digest = Digest::default();
    let mut running: Vec<RankId> = Vec::new();
    let mut choices = choices.iter().cycle();
    loop {
        match engine.next(&mut digest) {
            Turn::Resume(Resumption { rank, .. }) => running.push(rank),
            Turn::Blocked => {
                let rank = running.swap_remove(choices.next().unwrap() % running.len());
                let request = scripts[rank.index()].next().unwrap_or(Request::Exit(Outcome::Ok));
                engine.submit(rank, TaskId(0), request);
            }
            Turn::Finished => return digest.to_hex(),
            Turn::Halted(halt) => panic!("{}", halt.render(&|site| site.to_string(), &|_| Vec::new())),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn who_is_faster_on_the_host_does_not_matter(
        seed in prop::collection::vec(1u64..1_000_000, 1..8),
        choices in prop::collection::vec(0usize..RANKS, 1..64),
    ) {
        let one_job = run(&switch(RANKS), scripts(&seed)).digest;
        prop_assert_eq!(run(&switch(RANKS), scripts(&seed)).digest, one_job.clone());
        prop_assert_eq!(run_shuffled(scripts(&seed), &choices), one_job);
    }

    #[test]
    fn a_record_replays_to_the_same_digest(seed in prop::collection::vec(1u64..1_000_000, 1..8)) {
        let cluster = switch(RANKS);
        let expected = run(&cluster, scripts(&seed)).digest;
        let world: Arc<[RankId]> = (0..RANKS).map(RankId::from).collect();
        let records = scripts(&seed).into_iter().map(|script| {
            let join = Request::JoinGroup { ranks: world.clone(), sequence: 0, settings: None, rendezvous: false };
            let end = Request::Exit(Outcome::Ok);
            std::iter::once(join).chain(script).chain([end]).map(|request| (TaskId(0), request.into())).collect::<Vec<_>>().into_iter()
        }).collect();
        let mut engine = Engine::new(&cluster);
        let mut digest = Digest::default();
        let ended = replay(&mut engine, records, &mut digest);
        prop_assert!(matches!(ended, RunEnd::Finished), "{ended:?}");
        prop_assert_eq!(digest.to_hex(), expected);
    }
}

/// Two pairs of ranks, each with a group of its own that it joins after some compute and in which it reduces. The
/// record numbers groups as on a cluster of equal devices; with `named`, the record contains these numbers. In the
/// replay ranks 0 and 1 are `slow` times as slow.
fn pairs(slow: f64, named: bool) -> (RunEnd, Statistics) {
    let mut cluster = switch(RANKS);
    cluster.devices[..2].iter_mut().for_each(|device| device.slowdown = slow);
    let record = |rank: usize| {
        // On a cluster of equal devices ranks 0 and 1 are first: their group is number 0, the others' number 1.
        let (pair, before) = if rank < 2 { (0, 1_000) } else { (1, 2_000) };
        let group = GroupId(pair);
        let Request::Issue { activity: Activity::Call(Call { op, .. }), queue, after, site } =
            collective(AllReduce, 1_000 * (u64::from(pair) + 1))
        else {
            unreachable!("a collective is a call")
        };
        let all_reduce =
            |op: CallOp| Request::Issue { activity: Activity::Call(Call { group, op }), queue, after, site };
        let join = Request::JoinGroup {
            ranks: [2 * pair, 2 * pair + 1].map(RankId).into(),
            sequence: 0,
            settings: None,
            rendezvous: false,
        };
        let mut steps: Vec<RecordedStep> = vec![compute(before).into(), wait(0).into(), join.into()];
        steps.extend(named.then_some(RecordedStep::Named(group)));
        steps.extend([all_reduce(op), wait(1), Request::Exit(Outcome::Ok)].map(RecordedStep::from));
        steps.into_iter().map(|step| (TaskId(0), step)).collect::<Vec<_>>().into_iter()
    };
    let mut statistics = Statistics::default();
    let ended = replay(&mut Engine::new(&cluster), (0..RANKS).map(record).collect(), &mut statistics);
    (ended, statistics)
}

/// Time of a rank's compute, and of two hops of half of an all-reduce's bytes over a link with 1,000 ps per byte and
/// 5,000,000 ps of latency.
fn pairs_end_at(before: u64, elements: u64) -> u64 {
    before + 2 * (LATENCY_PS + elements / 2 * PS_PER_BYTE)
}

#[test]
fn a_record_that_names_groups_replays_where_they_are_joined_in_another_order() {
    for (slow, first) in [(1.0, 1_000), (5.0, 5_000)] {
        let (ended, statistics) = pairs(slow, true);
        assert!(matches!(ended, RunEnd::Finished), "{ended:?}");
        let finishes: Vec<u64> = statistics.ranks().iter().map(|rank| rank.finish.unwrap().as_ps()).collect();
        let [of_first, of_second] = [pairs_end_at(first, 1_000), pairs_end_at(2_000, 2_000)];
        assert_eq!(finishes, [of_first, of_first, of_second, of_second], "ranks 0 and 1 are {slow} times as slow");
    }
}

#[test]
fn a_record_that_does_not_name_groups_is_refused_where_they_are_joined_in_another_order() {
    let (at_home, _) = pairs(1.0, false);
    assert!(matches!(at_home, RunEnd::Finished), "{at_home:?}");
    let (elsewhere, _) = pairs(5.0, false);
    let RunEnd::Failed(failure) = elsewhere else { panic!("it is not refused: {elsewhere:?}") };
    // In this run the group of ranks 2 and 3 is number 0, and they call number 1, which no rank has joined yet.
    assert_eq!((failure.rank, failure.task, failure.at.as_ps()), (RankId(2), TaskId(0), 2_000));
    assert_eq!(failure.error.downcast_ref::<OtherGroup>(), Some(&OtherGroup { group: GroupId(1) }));
    assert!(failure.to_string().contains("\nhint: "), "{failure}");
}

/// Compute of zero duration is no event, and does not change the order of events.
#[test]
fn compute_that_takes_no_time_leaves_no_trace() {
    let script = |rank: u64, with_nothing: bool| {
        let mut requests = Vec::new();
        let mut handle = 0;
        let mut step = |request: Request, requests: &mut Vec<Request>| {
            requests.extend([request, wait(handle)]);
            handle += 1;
        };
        for turn in 0..4 {
            if with_nothing {
                step(compute(0), &mut requests);
            }
            step(compute(1_000 * (rank % 2)), &mut requests);
            let call = if turn % 2 == 0 { collective(AllReduce, 1000) } else { collective(AllGather, 50) };
            step(call, &mut requests);
        }
        requests
    };
    let digest = |with: fn(u64) -> bool| {
        let outcomes = run(&switch(4), (0..4).map(|rank| script(rank, with(rank))).collect());
        assert!(matches!(outcomes.ended, RunEnd::Finished));
        outcomes.digest
    };
    let without = digest(|_| false);
    assert_eq!(digest(|_| true), without);
    assert_eq!(digest(|rank| rank == 2), without);
}

/// One thread computes `a` and then `b`, another `c` and then `d`, recorded with a < c. If a > c, the second thread
/// issues its second compute first: the engine then has other numbers for both, and each thread still waits for its own
/// compute, until max(a + b, c + d).
#[test]
fn threads_wait_for_what_they_have_issued_though_another_is_first() {
    let at = |queue: u32, request: Request| match request {
        Request::Issue { activity, after, site, .. } => Request::Issue { activity, queue: QueueId(queue), after, site },
        other => other,
    };
    let record = |[a, b, c, d]: [u64; 4]| {
        let steps = [
            (0, at(0, compute(a)).into()),
            (0, RecordedStep::HandlesInOrder),
            (1, RecordedStep::After { task: TaskId(0), resumption: 1 }),
            (1, at(1, compute(c)).into()),
            (0, wait(0).into()),
            (1, wait(1).into()),
            (0, at(0, compute(b)).into()),
            (0, wait(2).into()),
            (1, at(1, compute(d)).into()),
            (1, wait(3).into()),
            (1, Request::Exit(Outcome::Ok).into()),
            // The main thread waits for the other thread's last compute.
            (0, wait(3).into()),
            (0, Request::Exit(Outcome::Ok).into()),
        ];
        steps.map(|(task, step): (u32, RecordedStep)| (TaskId(task), step)).into_iter()
    };
    for durations in [[1, 9, 5, 2], [5, 2, 1, 9], [8, 1, 2, 3], [3, 3, 3, 3]] {
        let [a, b, c, d] = durations;
        let mut statistics = Statistics::default();
        let ended = replay(&mut Engine::new(&switch(1)), vec![record(durations)], &mut statistics);
        assert!(matches!(ended, RunEnd::Finished), "{durations:?}: {ended:?}");
        assert_eq!(statistics.makespan().as_ps(), (a + b).max(c + d), "{durations:?}");
    }
}
