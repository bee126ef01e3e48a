use super::*;
use uniference_formats::chakra::attributes::{COMM_TYPE, IS_CPU_OP, OUT_SPLIT, PG_NAME};
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::schema::{Attribute, GlobalMetadata, Uint64List, Value};
use uniference_formats::chakra::write::Writer;
use uniference_sim::cluster::{Backend, Cluster, Device};
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::device::Origin;
use uniference_sim::engine::{Engine, Halt, RunEnd, drive};
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::HostId;
use uniference_sim::network::{HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::observe::Statistics;
use uniference_sim::time::Rate;

/// Latency of the test's network, whose bandwidth is one byte per ns.
const LATENCY_US: u64 = 5;

fn switch(ranks: usize) -> Cluster {
    let hosts: Vec<HostSpec> = (0..ranks).map(|rank| HostSpec::new(format!("host.{rank}"))).collect();
    let link = LinkSpec::new(Rate::new(1e9).unwrap(), SimDuration::from_us(LATENCY_US));
    let device = |rank| Device::new(format!("{rank}"), HostId::from(rank));
    Cluster {
        name: "test".into(),
        devices: (0..ranks).map(device).collect(),
        topology: Topology::preset(&Preset::Switch, &hosts, link).unwrap(),
        dynamics: Default::default(),
        backend: Backend {
            name: "ideal".into(),
            algorithms: AlgorithmTable::ideal(),
            concurrency: 1,
            protocol: Default::default(),
            free: Default::default(),
        },
    }
}

fn rules(ranks: u32) -> Rules {
    let world = (0..ranks).map(RankId).collect();
    Rules::of(world)
}

fn group(name: &str, ranks: &[u32]) -> ProcessGroup {
    ProcessGroup { name: name.into(), description: None, ranks: ranks.to_vec() }
}

fn node(id: u64, kind: NodeType, data_deps: &[u64], attributes: &[(&str, u64)]) -> Node {
    let attr = attributes.iter().map(|(name, value)| Attribute::new(name, Value::Uint64(*value))).collect();
    let data_deps = data_deps.to_vec();
    Node { id, name: format!("n{id}"), r#type: kind.into(), data_deps, attr, ..Node::default() }
}

fn compute(id: u64, data_deps: &[u64], micros: u64) -> Node {
    Node { duration_micros: micros, ..node(id, NodeType::Comp, data_deps, &[]) }
}

fn collective(id: u64, data_deps: &[u64], kind: CommType, size: u64) -> Node {
    node(id, NodeType::CommColl, data_deps, &[(COMM_TYPE, kind as u64), (COMM_SIZE, size)])
}

fn in_group(mut node: Node, name: &str) -> Node {
    node.attr.push(Attribute::new(PG_NAME, Value::String(name.into())));
    node
}

fn message(id: u64, kind: NodeType, peer: u64, size: u64) -> Node {
    let peer_attribute = if kind == NodeType::CommSend { COMM_DST } else { COMM_SRC };
    node(id, kind, &[], &[(peer_attribute, peer), (COMM_SIZE, size), (COMM_TAG, 3)])
}

fn bytes(nodes: &[Node]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &GlobalMetadata::default()).unwrap();
    nodes.iter().for_each(|node| writer.node(node).unwrap());
    writer.finish().unwrap()
}

struct Outcomes {
    ended: RunEnd,
    statistics: Statistics,
    /// For each rank, the node of handle 0 and the nodes that wait for it.
    behind: Vec<Option<(String, Vec<String>)>>,
    untimed: u64,
    origins: Vec<Origin>,
}

/// Origins of durations, in the order in which work ends.
struct Origins(Vec<Origin>);

impl Observer for Origins {
    fn record(&mut self, _: SimTime, event: &Event<'_>) {
        if let Event::Computed { origin, .. } = event {
            self.0.push(*origin);
        }
    }
}

impl Outcomes {
    /// End of each rank, in microseconds.
    fn finishes(&self) -> Vec<f64> {
        assert!(matches!(self.ended, RunEnd::Finished), "{:?}", self.ended);
        self.statistics.ranks().iter().map(|rank| rank.finish.unwrap().as_ps() as f64 / 1e6).collect()
    }

    fn halt(&self) -> &Halt {
        match &self.ended {
            RunEnd::Halted(halt) => halt,
            other => panic!("the run was not halted: {other:?}"),
        }
    }
}

fn run(rules: Rules, traces: &[Vec<Node>]) -> Outcomes {
    let cluster = switch(traces.len());
    let files: Vec<Vec<u8>> = traces.iter().map(|nodes| bytes(nodes)).collect();
    let rules = Arc::new(rules);
    let open = |(rank, file): (usize, &'_ Vec<u8>)| {
        let file = std::io::Cursor::new(file.clone());
        Replay::new(RankId::from(rank), Reader::open(file).unwrap(), rules.clone())
    };
    let mut ranks: Vec<_> = files.iter().enumerate().map(open).collect();
    let mut engine = Engine::new(&cluster);
    let mut observer = (Statistics::default(), Origins(Vec::new()));
    let mut programs: Vec<Box<dyn Program + '_>> = Vec::new();
    for rank in &mut ranks {
        programs.push(Box::new(Borrowed(rank)));
    }
    let ended = drive(&mut engine, &mut programs, &mut observer);
    drop(programs);
    let names = |(node, waiting): (&Node, Vec<&Node>)| {
        (node.name.clone(), waiting.into_iter().map(|node| node.name.clone()).collect())
    };
    Outcomes {
        ended,
        statistics: observer.0,
        origins: observer.1.0,
        behind: ranks.iter().map(|rank| rank.behind(Handle(0)).map(names)).collect(),
        untimed: ranks.iter().map(Replay::untimed).sum(),
    }
}

struct Borrowed<'a, R>(&'a mut Replay<R>);

impl<R: Nodes> Program for Borrowed<'_, R> {
    fn resume(&mut self, now: SimTime, task: TaskId, reply: Reply) -> Result<Request, ProgramError> {
        self.0.resume(now, task, reply)
    }
}

#[test]
fn a_unit_runs_one_node_at_a_time_and_units_run_side_by_side() {
    let host = |mut node: Node| {
        node.attr.push(Attribute::new(IS_CPU_OP, Value::Bool(true)));
        node
    };
    let memory = Node { duration_micros: 4, ..node(5, NodeType::MemLoad, &[], &[]) };
    let nodes =
        vec![compute(1, &[], 10), compute(2, &[], 20), host(compute(3, &[], 7)), host(compute(4, &[3], 8)), memory];
    // accelerator 10 + 20, CPU 7 + 8, memory 4: max = 30
    assert_eq!(run(rules(1), &[nodes]).finishes(), [30.0]);
}

#[test]
fn dependencies_hold_and_communication_hides_behind_compute() {
    // The all-reduce follows node 1 and overlaps node 2; node 4 follows both. Ring on 2 ranks, 10,000 bytes: 2 steps of
    // 5,000 B at 1 ns per byte and 5 us each: 20 us. finish = 10 + max(20, 5) + 3.
    let nodes = vec![
        compute(1, &[], 10),
        compute(2, &[1], 5),
        collective(3, &[1], CommType::AllReduce, 10_000),
        compute(4, &[2, 3], 3),
    ];
    let outcomes = run(rules(2), &[nodes.clone(), nodes]);
    assert_eq!(outcomes.finishes(), [33.0; 2]);
    // Exposed: 20 - 5 on each rank.
    assert_eq!(outcomes.statistics.ranks()[1].times.exposed, SimDuration::from_us(15));
}

#[test]
fn sizes_are_those_of_the_schema() {
    // Ideal algorithms on 2 ranks, S = 10,000 bytes as in a trace, T(b) = 5 us + b ns: all-gather T(S); reduce-scatter
    // and all-to-all T(S / 2); broadcast, reduce T(S); gather T(S); scatter T(S / 2).
    let cases = [
        (CommType::AllGather, 15.0, 10_000),
        (CommType::ReduceScatter, 10.0, 5_000),
        (CommType::ReduceScatterBlock, 10.0, 5_000),
        (CommType::AllToAll, 10.0, 10_000),
        (CommType::Broadcast, 15.0, 10_000),
        (CommType::Reduce, 15.0, 10_000),
        (CommType::Gather, 15.0, 10_000),
        (CommType::Scatter, 10.0, 5_000),
        (CommType::Barrier, 5.0, 0),
    ];
    for (kind, expected, named) in cases {
        let nodes = vec![collective(1, &[], kind, 10_000)];
        let outcomes = run(rules(2), &[nodes.clone(), nodes]);
        assert_eq!(outcomes.finishes().into_iter().fold(0.0, f64::max), expected, "{kind:?}");
        // The tensor that a call of torch.distributed names, of both ranks: one block for a reduce-scatter and a
        // scatter, all blocks for an all-to-all.
        let bytes: Vec<u64> = outcomes.statistics.operations().map(|(.., operation)| operation.bytes.0).collect();
        assert_eq!(bytes, [2 * named], "{kind:?}");
    }
}

#[test]
fn compute_and_communication_are_scaled() {
    let nodes = vec![compute(1, &[], 10), collective(2, &[1], CommType::AllGather, 10_000)];
    // 10 us x 0.5 + (5 us + 10,000 ns x 3)
    let rules = Rules { compute_scale: 0.5, comm_scale: 3.0, ..rules(2) };
    assert_eq!(run(rules, &[nodes.clone(), nodes]).finishes(), [40.0; 2]);
}

#[test]
fn a_roofline_gives_durations_to_those_who_have_none() {
    let nodes = vec![
        // 4e6 operations at 1e12 per second: 4 us; 8,000 bytes at 1e9 per second: 8 us. The slower one counts.
        node(1, NodeType::Comp, &[], &[(NUM_OPS, 4_000_000), (TENSOR_SIZE, 8_000)]),
        // 20 us of arithmetic, and 8 us of memory traffic.
        node(2, NodeType::Comp, &[1], &[(NUM_OPS, 20_000_000), (TENSOR_SIZE, 8_000)]),
        compute(3, &[2], 1),
    ];
    let rooflines = vec![Some(Rates::uniform(1e12, 1e9))];
    let outcomes = run(Rules { rooflines, ..rules(1) }, std::slice::from_ref(&nodes));
    assert_eq!((outcomes.finishes(), outcomes.untimed), (vec![29.0], 0));
    assert_eq!(outcomes.origins, [Origin::Roofline, Origin::Roofline, Origin::Recorded]);
    let outcomes = run(rules(1), &[nodes]);
    assert_eq!((outcomes.finishes(), outcomes.untimed), (vec![1.0], 2));
    // Work without a duration is no event.
    assert_eq!(outcomes.origins, [Origin::Recorded]);
}

#[test]
fn groups_run_side_by_side_and_their_collectives_in_the_order_of_the_plan() {
    // Node 3 is free at once on both ranks and still waits for node 2 in its group; node 4's group does not. A shard
    // takes 10 us to leave and 5 us of latency. Rank 0 enters node 2 at 50 and is done when its own shard has left, at
    // 60 (rank 1's arrived earlier); its next shard is at rank 1 at 60 + 15. Rank 1 has the first shard at 50 + 15, and
    // its next one is at rank 0 at 65 + 15.
    let nodes = |micros, pair: &str| {
        vec![
            compute(1, &[], micros),
            in_group(collective(2, &[1], CommType::AllGather, 10_000), "all"),
            in_group(collective(3, &[], CommType::AllGather, 10_000), "all"),
            in_group(collective(4, &[], CommType::AllGather, 20_000), pair),
        ]
    };
    let groups = vec![group("all", &[0, 1]), group("left", &[0]), group("right", &[1])];
    let outcomes = run(Rules { groups, ..rules(2) }, &[nodes(50, "left"), nodes(1, "right")]);
    assert_eq!(outcomes.finishes(), [80.0, 75.0]);
}

#[test]
fn messages_go_to_ranks_of_the_world() {
    // T(10,000) = 15 us; the sender is done when the last byte has left.
    let outcomes = run(
        rules(3),
        &[vec![message(1, NodeType::CommSend, 2, 10_000)], vec![], vec![message(7, NodeType::CommRecv, 0, 10_000)]],
    );
    assert_eq!(outcomes.finishes(), [10.0, 0.0, 15.0]);
}

#[test]
fn a_deadlock_names_the_nodes() {
    let stuck = vec![message(5, NodeType::CommRecv, 1, 10), compute(6, &[5], 1), compute(8, &[5], 1)];
    let outcomes = run(rules(2), &[stuck, vec![]]);
    assert_eq!(outcomes.halt().reason, uniference_sim::engine::HaltReason::Deadlock);
    let expected = ("n5".to_owned(), vec!["n6".to_owned(), "n8".to_owned()]);
    assert_eq!(outcomes.behind, [Some(expected), None]);
}

#[test]
fn ranks_that_disagree_are_named_by_their_nodes() {
    let outcomes = run(
        rules(2),
        &[vec![collective(3, &[], CommType::AllReduce, 8)], vec![collective(4, &[], CommType::AllReduce, 9)]],
    );
    assert!(matches!(outcomes.halt().reason, uniference_sim::engine::HaltReason::Mismatch { .. }));
    let names: Vec<_> = outcomes.behind.into_iter().map(|behind| behind.unwrap().0).collect();
    assert_eq!(names, ["n3", "n4"]);
}

#[test]
fn what_a_node_says_wrongly_is_an_error() {
    let first = |rules: Rules, nodes: Vec<Node>| {
        let mut traces = vec![vec![]; rules.world.len()];
        traces[0] = nodes;
        let outcomes = run(rules, &traces);
        let RunEnd::Failed(failure) = outcomes.ended else { panic!("it is refused") };
        let error: Box<ReplayError> = failure.error.downcast().expect("the trace's error reaches whoever runs it");
        error.to_string()
    };
    let with = |groups| Rules { groups, ..rules(1) };
    let all_reduce = || collective(1, &[], CommType::AllReduce, 8);
    let rooted =
        node(1, NodeType::CommColl, &[], &[(COMM_TYPE, CommType::Reduce as u64), (COMM_SIZE, 1), (ROOT_RANK, 7)]);
    let with_blocks = |kind| {
        let mut node = collective(1, &[], kind, 8);
        node.set(OUT_SPLIT, Value::Uint64List(Uint64List { values: vec![8] }));
        node
    };
    let cases = [
        (rules(1), with_blocks(CommType::AllReduce)),
        (rules(1), with_blocks(CommType::AllToAll)),
        (with(vec![group("tp", &[0, 0])]), in_group(all_reduce(), "tp")),
        (rules(1), in_group(all_reduce(), "tp")),
        (with(vec![group("tp", &[3])]), in_group(all_reduce(), "tp")),
        (with(vec![group("tp", &[])]), rooted),
        (rules(1), message(1, NodeType::CommSend, 1, 8)),
        (rules(1), node(1, NodeType::CommSend, &[], &[(COMM_SIZE, 8)])),
        (rules(1), node(1, NodeType::CommColl, &[], &[(COMM_TYPE, 0)])),
        (rules(1), collective(1, &[], CommType::AllReduce, u64::MAX)),
        (rules(1), node(1, NodeType::CommColl, &[], &[(COMM_TYPE, 42), (COMM_SIZE, 8)])),
        (rules(1), node(1, NodeType::CommColl, &[], &[(COMM_SIZE, 8)])),
        (rules(2), node(1, NodeType::CommSend, &[], &[(COMM_SRC, 1), (COMM_DST, 0), (COMM_SIZE, 8)])),
        (rules(2), node(1, NodeType::CommRecv, &[], &[(COMM_SRC, 1), (COMM_DST, 1), (COMM_SIZE, 8)])),
    ];
    let messages: Vec<String> = cases
        .into_iter()
        .map(|(rules, node)| {
            // A check of the trace alone reports the same error as a replay.
            let trace = Reader::open(std::io::Cursor::new(bytes(std::slice::from_ref(&node)))).unwrap();
            let rehearsed = rehearse(RankId(0), trace, Arc::new(rules.clone())).unwrap_err().to_string();
            let replayed = first(rules, vec![node]);
            assert_eq!(rehearsed, replayed);
            replayed
        })
        .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn a_legacy_attribute_names_the_group_of_a_collective() {
    // There are two groups of two ranks. A ring of 2 ranks has 2 algorithm steps, each of which takes 5 us for its
    // 5,000 bytes at 1 ns per byte and 5 us of latency; a ring of all four ranks would have 6 steps of 2,500 bytes.
    let nodes = |group: u64| {
        let mut node = collective(1, &[], CommType::AllReduce, 10_000);
        node.set("comm_group", Value::Int32(group as i32));
        vec![node]
    };
    let groups = vec![group("1", &[0, 1]), group("2", &[2, 3])];
    let outcomes = run(Rules { groups, ..rules(4) }, &[nodes(1), nodes(1), nodes(2), nodes(2)]);
    assert_eq!(outcomes.finishes(), [20.0; 4]);
}

#[test]
fn what_is_not_simulated_as_it_is_written_is_counted() {
    let mut prioritized = collective(3, &[99], CommType::AllReduce, 8);
    prioritized.set("comm_priority", Value::Int64(1));
    let mut unknown = compute(4, &[99, 3], 1);
    unknown.r#type = 77;
    let trace = bytes(&[compute(1, &[], 1), prioritized, unknown]);
    let rehearse = |rules| rehearse(RankId(0), Reader::open(&trace[..]).unwrap(), Arc::new(rules)).unwrap();
    let ignored = BTreeMap::from([("comm_priority".to_owned(), 1)]);
    assert_eq!(rehearse(rules(2)), Oddities { unknown_types: 1, missing_dependencies: 2, ignored });
}

#[test]
fn a_duration_past_the_end_of_time_stops_the_run() {
    let outcomes = run(rules(1), &[vec![compute(1, &[], 1), compute(2, &[1], u64::MAX)]]);
    assert_eq!(outcomes.halt().reason, uniference_sim::engine::HaltReason::EndOfTime);
}

#[test]
fn groups_of_the_same_ranks_are_kept_apart() {
    // On rank 0 group `b` is free first, on rank 1 group `a`: if they were one group, sizes would not match.
    let nodes = |first: &str, second: &str| {
        let size = |name: &str| if name == "a" { 1_000 } else { 2_000 };
        vec![
            in_group(collective(1, &[], CommType::AllReduce, size(first)), first),
            in_group(collective(2, &[], CommType::AllReduce, size(second)), second),
        ]
    };
    let groups = vec![group("a", &[0, 1]), group("b", &[0, 1])];
    let outcomes = run(Rules { groups, ..rules(2) }, &[nodes("b", "a"), nodes("a", "b")]);
    assert_eq!(outcomes.finishes().len(), 2);
}

#[test]
fn work_side_by_side_waits_for_nothing_but_its_dependencies() {
    let part = |id, deps: &[u64], part: &str, micros| {
        let mut node = compute(id, deps, micros);
        node.set(IS_CPU_OP, Value::Bool(true));
        node.set(uniference_formats::chakra::own::PART, Value::String(part.into()));
        node
    };
    // max(30, 20 + 5 + 7 scaled); a delay is not scaled: two threads, and a delay on one of them.
    let nodes = vec![
        part(1, &[], "side_by_side", 30),
        part(2, &[], "side_by_side", 20),
        part(3, &[2], "delay", 5),
        part(4, &[3], "side_by_side", 7),
    ];
    let finish = |scale| run(Rules { compute_scale: scale, ..rules(1) }, std::slice::from_ref(&nodes)).finishes();
    assert_eq!((finish(1.0), finish(10.0)), (vec![32.0], vec![300.0]));
    assert_eq!(finish(2.0), vec![60.0]);
}

#[test]
fn recorded_communication_takes_its_time_from_when_the_last_rank_comes() {
    let recorded = |mut node: Node, micros: u64| {
        node.set(uniference_formats::chakra::own::RECORDED_PS, Value::Uint64(micros * 1_000_000));
        node
    };
    let call = |deps: &[u64]| recorded(collective(2, deps, CommType::AllReduce, 1 << 30), 40);
    let traces = [vec![compute(1, &[], 100), call(&[1])], vec![call(&[])]];
    // 100 + 40 us, and the ranks' meeting on a network of 5 us.
    let finishes = run(Rules { recorded: true, ..rules(2) }, &traces).finishes();
    assert!(finishes.iter().all(|finish| (140.0..=150.0).contains(finish)), "{finishes:?}");
    // Messages have their recorded durations too: their bytes do not count.
    let pair = [
        vec![recorded(message(1, NodeType::CommSend, 1, 1 << 30), 40)],
        vec![recorded(message(1, NodeType::CommRecv, 0, 1 << 30), 40)],
    ];
    let finishes = run(Rules { recorded: true, ..rules(2) }, &pair).finishes();
    assert!(finishes.iter().all(|finish| (40.0..=60.0).contains(finish)), "{finishes:?}");
}
