use super::*;
use crate::critical::{Causes, Listed};
use crate::overlap::Chance;
use std::sync::Arc;
use uniference_formats::cluster::{Choices, ClusterFile, Resolved};
use uniference_sim::engine::Engine;
use uniference_sim::ids::{GroupId, Handle, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{Activity, Call, Collective, DType, ReduceOp, Request, Shape};
use uniference_sim::program::{Origin, Outcome as Exited, Work};
use uniference_sim::replay::replay;
use uniference_sim::time::SimDuration;

const BOARDS: &str = r#"
[[device]]
name = "orin"
count = 3
[[device]]
name = "lap.top"
[network]
bandwidth = "1 Gbps"
[network.host."orin.2"]
bandwidth = "100 Mbps"
[[network.background]]
from = "orin.0"
to = "orin.1"
rate = "10 Mbps"
"#;

fn resolve(toml: &str, change: &Change) -> Resolved {
    let choices = Choices {
        free: change.free.clone(),
        algorithms: change.algorithms.iter().map(|choice| choice.parse().unwrap()).collect(),
        ..Choices::default()
    };
    ClusterFile::parse("test", toml, &change.set).unwrap().resolve(&choices).unwrap()
}

/// Compute of 10 ms, then an all-reduce of 1 MB.
fn explanation(cluster: &Cluster) -> Explanation {
    let world: Arc<[RankId]> = (0..4).map(RankId).collect();
    let issue = |activity| Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) };
    let wait = |handle| Request::Wait { handles: vec![Handle(handle)], any: false, timeout: None, site: Site(0) };
    let reduce = Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::UInt8,
        reduce: Some(ReduceOp::Sum),
        root: None,
        shape: Shape::Even(1_000_000),
        kernel: None,
    };
    let script = |_| {
        let requests = vec![
            Request::JoinGroup { ranks: world.clone(), sequence: 0, settings: None, rendezvous: false },
            issue(Activity::Compute(Work::new(SimDuration::from_us(10_000), Origin::Recorded))),
            wait(0),
            issue(Activity::Call(Call { group: GroupId(0), op: CallOp::Collective(reduce.clone()) })),
            wait(1),
            Request::Exit(Exited::Ok),
        ];
        requests.into_iter().map(|request| (TaskId(0), request.into()))
    };
    let mut causes = Causes::new(cluster);
    let _ = replay(&mut Engine::new(cluster), (0..4).map(script).collect(), &mut causes);
    causes.explain(&[], Listed::Nothing).unwrap()
}

#[test]
fn all_that_is_worth_a_try_is_a_cluster() {
    let Resolved { cluster, toml, .. } = resolve(BOARDS, &Change::default());
    let before = explanation(&cluster);
    let chance = |line: &str| Chance { line: line.to_owned(), ..Chance::default() };
    let operations = vec![chance("/a/model.py:4"), chance("/a/loss.py:4"), chance("/b/loss.py:4")];
    let chances = Chances { operations, unexamined: None };
    let changes = candidates(&toml, &cluster, &before, &chances);
    insta::assert_snapshot!(changes.iter().map(|change| change.options().join(" ")).collect::<Vec<_>>().join("\n"));
    // Changes of algorithms are left out, because not every algorithm fits every network.
    for change in changes.iter().filter(|change| change.algorithms.is_empty() && change.overlap.is_empty()) {
        let changed = explanation(&resolve(&toml, change).cluster);
        assert!(changed.makespan_s <= before.makespan_s, "{change:?}");
    }
}

/// A freed operation shortens a run by no more than its part of the path.
#[test]
fn the_gain_is_at_most_the_part_of_the_path() {
    let Resolved { cluster, .. } = resolve(BOARDS, &Change::default());
    let before = explanation(&cluster);
    let change = Change { free: vec!["all_reduce".to_owned()], ..Change::default() };
    let after = explanation(&resolve(BOARDS, &change).cluster);
    let part = before.operations.iter().find(|part| part.name == "all_reduce").unwrap();
    // No other path is as long, so the gain is the operation's whole part of the path.
    assert!((before.makespan_s - after.makespan_s - part.seconds).abs() < 1e-9, "{before:?} {after:?}");
    assert_eq!(after.makespan_s, 0.010);
}

#[test]
fn results_show_the_largest_gain_first_and_losses() {
    let outcome = |option: &str, makespan_s| {
        Outcome::new(option.split(' ').map(str::to_owned).collect(), 2.0, makespan_s, String::new())
    };
    let refused = Refused { options: vec!["--algorithm".into(), "b=c".into()], error: "no\nhint: well".into() };
    let changes = vec![
        outcome("--set a=/2", 1.5),
        outcome("--free x", 2.0),
        outcome("--set c=*2", 2.25),
        outcome("--set d=*2", 0.5),
    ];
    let results =
        WhatIf { makespan_s: 2.0, changes, refused: vec![refused], overlap: None, warnings: Vec::new(), again: None };
    insta::assert_snapshot!(results.sorted().render());
}

/// The changes that are tried for a job of four hosts on this network.
fn tried(network: &str) -> Vec<String> {
    let file = format!("[[device]]\nname = \"n\"\ncount = 4\n[network]\nbandwidth = \"1 Gbps\"\n{network}");
    let Resolved { cluster, toml, .. } = resolve(&file, &Change::default());
    let before = explanation(&cluster);
    let changes = candidates(&toml, &cluster, &before, &Chances { operations: Vec::new(), unexamined: None });
    for change in changes.iter().filter(|change| change.algorithms.is_empty()) {
        let changed = explanation(&resolve(&toml, change).cluster);
        assert!(changed.makespan_s <= before.makespan_s, "{change:?}");
    }
    changes.iter().map(|change| change.options().join(" ")).collect()
}

#[test]
fn uplinks_and_shared_trunks_are_tried() {
    let tree = tried("preset = \"fat_tree\"\nhosts_per_leaf = 2\nspines = 1\noversubscription = 4.0\n");
    assert!(tree.contains(&"--set network.oversubscription=/2".to_owned()), "{tree:?}");
    // The trunk is the slowest link, has the network's default bandwidth, and is the last link in the list.
    let link = |from: &str, to: &str, more: &str| format!("{{ between = [\"{from}\", \"{to}\"]{more} }}");
    let hosts = [("n.0", "a"), ("n.1", "a"), ("n.2", "b"), ("n.3", "b")];
    let hosts = hosts.map(|(host, on)| link(host, on, ", bandwidth = \"2 Gbps\""));
    let links: Vec<String> = hosts.into_iter().chain([link("a", "b", "")]).collect();
    let trunk = tried(&format!("links = [{}]\n", links.join(", ")));
    assert!(trunk.contains(&"--set network.links.4.bandwidth=*2".to_owned()), "{trunk:?}");
}
