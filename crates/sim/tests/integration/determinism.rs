//! Same programs, same bytes: over two runs, from a record, and whatever the order in which the host lets ranks go on.

use crate::support::*;
use proptest::prelude::*;
use std::sync::Arc;
use uniference_sim::engine::{Engine, Resumption, Turn};
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::program::CollectiveKind::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, Reduce};
use uniference_sim::program::{Outcome, Request};
use uniference_sim::record::{Digest, Replayed, replay};

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
    let join = Request::JoinGroup { ranks: world, sequence: 0 };
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
            let join = Request::JoinGroup { ranks: world.clone(), sequence: 0 };
            let end = Request::Exit(Outcome::Ok);
            std::iter::once(join).chain(script).chain([end]).map(|request| (TaskId(0), request)).collect::<Vec<_>>().into_iter()
        }).collect();
        let mut engine = Engine::new(&cluster);
        let mut digest = Digest::default();
        let ended = replay(&mut engine, records, &mut digest);
        prop_assert!(matches!(ended, Replayed::Finished), "{ended:?}");
        prop_assert_eq!(digest.to_hex(), expected);
    }
}
