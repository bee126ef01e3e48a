use super::closed_form::AnalyticalModel;
use super::custom::Custom;
use super::schedule::{Machine, Scales, run};
use crate::chakra::replay::Oddities;
use uniference_formats::astra::inputs::{AstraCollective, Network, System};
use uniference_formats::astra::memory::RemoteMemory;
use uniference_formats::chakra::attributes::{COMM_DST, COMM_SIZE, COMM_SRC, COMM_TYPE, NUM_OPS, PG_NAME, TENSOR_SIZE};
use uniference_formats::chakra::groups::ProcessGroup;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::schema::{Attribute, GlobalMetadata, Node, NodeType, Value};
use uniference_formats::chakra::write::Writer;
use uniference_sim::observe::Statistics;

/// 1e9 bytes per second in the unit of the network file, 2^30 bytes per second.
const ONE_GB: f64 = 1e9 / (1_u64 << 30) as f64;

fn system(algorithms: &[&str], more: &str) -> System {
    let list = serde_json::to_string(algorithms).unwrap();
    let names = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"];
    let lists: Vec<String> = names
        .iter()
        .filter(|name| !(algorithms.contains(&"halvingDoubling") && **name == "all-to-all"))
        .map(|name| format!("\"{name}-implementation\": {list}"))
        .collect();
    let direct = serde_json::to_string(&vec!["direct"; algorithms.len()]).unwrap();
    let rest = if lists.len() < 4 { format!(", \"all-to-all-implementation\": {direct}") } else { String::new() };
    System::parse(&format!("{{\"local-mem-bw\": 100, \"boost-mode\": 0, {}{rest}, {more}}}", lists.join(", "))).unwrap()
}

/// A network of dimensions with a bandwidth of one byte per ns.
fn network(dimensions: &[(&str, u64, u64)]) -> Network {
    let column = |name: &str, item: &dyn Fn(&(&str, u64, u64)) -> String| {
        format!(
            "{name}: [ {} ]  # as ASTRA-sim writes it\n",
            dimensions.iter().map(item).collect::<Vec<_>>().join(", ")
        )
    };
    let text = [
        column("topology", &|dimension| dimension.0.to_owned()),
        column("npus_count", &|dimension| dimension.1.to_string()),
        column("bandwidth", &|_| ONE_GB.to_string()),
        column("latency", &|dimension| dimension.2.to_string()),
    ];
    Network::parse(&text.concat()).unwrap()
}

fn model(algorithm: &str, topology: &str) -> AnalyticalModel {
    AnalyticalModel::new(system(&[algorithm], "\"endpoint-delay\": 7"), network(&[(topology, 4, 100)]), 1)
}

fn times(model: &AnalyticalModel, bytes: u64) -> [u64; 4] {
    let members: Vec<u64> = (0..model.ranks()).collect();
    [AstraCollective::ReduceScatter, AstraCollective::AllGather, AstraCollective::AllReduce, AstraCollective::AllToAll]
        .map(|kind| model.collective(kind, bytes, &members).unwrap())
}

#[test]
fn one_dimension_has_its_closed_form() {
    // k = 4, S = 4,000 bytes in one chunk, e = 7, P(m) = 3 floor(m / 100); T(m) = h x 100 + m. All-gather: m = S,
    // otherwise m = S / 4 = 1,000.
    // Ring, h = 1: T = 1,100, P = 30. RS 3T + 4e + 3P, AG 3 x 4,100 + 4e, AR 6T + 7e + 3P, A2A 6T + 7e.
    assert_eq!(times(&model("ring", "Ring"), 4_000), [3_418, 12_328, 6_739, 6_649]);
    // Direct on a ring, h = 4 / 2: T = 1,200. RS T + 2e + P, AG 4,200 + 2e, AR 2T + 3e + P, A2A T + 2e.
    assert_eq!(times(&model("direct", "Ring"), 4_000), [1_244, 4_214, 2_451, 1_214]);
    // Direct, fully connected, h = 1.
    assert_eq!(times(&model("direct", "FullyConnected"), 4_000), [1_144, 4_114, 2_251, 1_114]);
    // Halving and doubling on a switch, h = 2: RS T(2,000) + T(1,000) + 3e + P(1,000); AG T(4,000) + T(8,000) + 3e; AR
    // twice the halving, 5e and P(1,000).
    assert_eq!(times(&model("halvingDoubling", "Switch"), 4_000)[..3], [3_451, 12_421, 6_865]);
}

#[test]
fn chunks_share_dimensions() {
    let parse = |more: &str, queues| {
        let system = system(&["ring", "direct"], &format!("\"endpoint-delay\": 0, {more}"));
        AnalyticalModel::new(system, network(&[("Ring", 2, 10), ("FullyConnected", 2, 20)]), queues)
    };
    let all: Vec<u64> = (0..4).collect();
    // A chunk of 400 bytes, with a memory bandwidth of 100 bytes per ns: P(200) = 6, P(100) = 3.
    // RS on the ring: T(200) + P = 216, then 200 bytes on the second: T(100) + P = 123.
    let two = parse("\"preferred-dataset-splits\": 2", 1);
    // If each dimension serves one chunk at a time, the second of two chunks ends 216 ns later than the first.
    assert_eq!(two.collective(AstraCollective::ReduceScatter, 800, &all).unwrap(), 216 + 216 + 123);
    // If both chunks are served at once, they last as long as a single chunk.
    let both = parse("\"preferred-dataset-splits\": 2, \"active-chunks-per-dimension\": 2", 1);
    assert_eq!(both.collective(AstraCollective::ReduceScatter, 800, &all).unwrap(), 216 + 123);
    // An all-reduce on each dimension in turn: 2 T(200) + P and 2 T(200) + P.
    let baseline = parse("\"collective-optimization\": \"baseline\"", 1);
    assert_eq!(baseline.collective(AstraCollective::AllReduce, 400, &all).unwrap(), 2 * 210 + 6 + 2 * 220 + 6);
    // Reduce-scatter up (216), all-reduce of 200 bytes (2 T(100) + P = 243), all-gather down (T(200) = 210).
    let aware = parse("\"collective-optimization\": \"localBWAware\"", 1);
    assert_eq!(aware.collective(AstraCollective::AllReduce, 400, &all).unwrap(), 216 + 243 + 210);
    // With two queues, each queue has one of the two active chunks, and all last all-reduces use the same queue.
    let queues = parse("\"preferred-dataset-splits\": 2, \"active-chunks-per-dimension\": 2", 2);
    assert_eq!(queues.collective(AstraCollective::ReduceScatter, 800, &all).unwrap(), 216 + 123);
    assert_eq!(queues.collective(AstraCollective::AllReduce, 800, &all).unwrap(), 426 + 446 + 446);
}

#[test]
fn what_chunks_do_not_divide_is_one_more_chunk() {
    // 4,002 bytes in two chunks of 2,001, and 4,003 in two chunks of 2,001 and a third one of the same size: ring, T =
    // 100 + 500, P = 3 floor(500 / 100).
    let model = |splits: u32| {
        let more = format!("\"endpoint-delay\": 7, \"preferred-dataset-splits\": {splits}");
        AnalyticalModel::new(system(&["ring"], &more), network(&[("Ring", 4, 100)]), 1)
    };
    let each = 6 * 600 + 7 * 7 + 3 * 15;
    assert_eq!([4_002, 4_003].map(|bytes| times(&model(2), bytes)[2]), [2 * each, 3 * each]);
    // Sizes below one byte per member and chunk are rounded up, except for all-gathers: the number of chunks stays.
    assert_eq!(times(&model(2), 7)[2..], times(&model(2), 8)[2..]);
}

#[test]
fn a_group_is_one_line_with_the_hops_between_its_members() {
    let model = AnalyticalModel::new(
        system(&["ring", "direct"], "\"endpoint-delay\": 3"),
        network(&[("Switch", 2, 10), ("Switch", 2, 500)]),
        1,
    );
    // Two ranks, all-gather of 100 bytes by the first dimension's algorithm: T + 2e, with e = 10 instead of the
    // system's delay; h = 2.
    assert_eq!(model.collective(AstraCollective::AllGather, 100, &[0, 1]).unwrap(), 120 + 20);
    assert_eq!(model.collective(AstraCollective::AllGather, 100, &[1, 3]).unwrap(), 1_100 + 20);
    assert_eq!(model.message(0, 3, 100), 120);
    assert_eq!(model.collective(AstraCollective::AllReduce, 100, &[2]).unwrap(), 0);
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let refused = |algorithms: &[&str], dimensions: &[(&str, u64, u64)]| {
        let model = AnalyticalModel::new(system(algorithms, "\"roofline-enabled\": 0"), network(dimensions), 1);
        let members: Vec<u64> = (0..model.ranks()).collect();
        model.collective(AstraCollective::AllReduce, 64, &members).unwrap_err().to_string()
    };
    let network = |text: &str| Network::parse(text).unwrap_err().to_string();
    let system = |text: &str| System::parse(text).unwrap_err().to_string();
    let messages = [
        refused(&["ring"], &[("Ring", 2, 1), ("Ring", 2, 1)]),
        refused(&["halvingDoubling"], &[("Switch", 6, 1)]),
        network("topology: [ Ring ]\nnpus_count: [ 4 ]\nlatency: [ 1 ]"),
        network("topology: [ Torus ]\nnpus_count: [ 4 ]\nbandwidth: [ 1 ]\nlatency: [ 1 ]"),
        network("topology: [ Ring ]\nnpus_count: [ 4, 4 ]\nbandwidth: [ 1 ]\nlatency: [ 1 ]"),
        network("topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ fast ]\nlatency: [ 1 ]"),
        network("topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 0 ]\nlatency: [ 1 ]"),
        network("topology: [ Ring, Ring ]\nnpus_count: [ 2048, 1024 ]\nbandwidth: [ 1, 1 ]\nlatency: [ 1, 1 ]"),
        refused(&["doubleBinaryTree"], &[("Switch", 4, 1)]),
        system("{\"preferred-dataset-splits\": 0}"),
    ];
    insta::assert_snapshot!(messages.join("\n"));
}

// Traces

fn node(id: u64, kind: NodeType, data_deps: &[u64], attributes: &[(&str, u64)]) -> Node {
    let attr = attributes.iter().map(|(name, value)| Attribute::new(name, Value::Uint64(*value))).collect();
    Node { id, name: format!("n{id}"), r#type: kind.into(), data_deps: data_deps.to_vec(), attr, ..Node::default() }
}

fn finishes(model: &AnalyticalModel, traces: &[Vec<Node>]) -> Result<Vec<(u64, u64)>, String> {
    finishes_on(&Machine { model, memory: None, expand: None }, traces)
}

fn finishes_on(machine: &Machine<'_>, traces: &[Vec<Node>]) -> Result<Vec<(u64, u64)>, String> {
    let files: Vec<Vec<u8>> = traces
        .iter()
        .map(|nodes| {
            let mut writer = Writer::new(Vec::new(), &GlobalMetadata::default()).unwrap();
            nodes.iter().for_each(|node| writer.node(node).unwrap());
            writer.finish().unwrap()
        })
        .collect();
    let traces = files.iter().map(|file| Reader::open(&file[..]).unwrap()).collect();
    let groups = [ProcessGroup { name: "1".into(), description: None, ranks: vec![0, 1] }];
    let mut statistics = Statistics::default();
    let scales = Scales { compute: 1.0, communication: 1.0 };
    run(machine, &groups, scales, traces, &mut statistics, &mut |_| {}).map_err(|error| error.to_string())?;
    let ns = |rank: &uniference_sim::observe::RankStatistics| {
        (rank.finish.unwrap().as_ps() / 1_000, rank.times.exposed.as_ps() / 1_000)
    };
    Ok(statistics.ranks().iter().map(ns).collect())
}

#[test]
fn traces_run_one_node_of_a_kind_at_a_time() {
    let roofline = "\"endpoint-delay\": 0, \"roofline-enabled\": 1, \"peak-perf\": 0.001";
    let model = AnalyticalModel::new(system(&["ring"], roofline), network(&[("Ring", 2, 10)]), 1);
    let gather = |id, deps: &[u64]| node(id, NodeType::CommColl, deps, &[(COMM_TYPE, 2), (COMM_SIZE, 90)]);
    let nodes = vec![
        // 5,000 operations at 1e9 per second: 5,000 ns; memory at 100e9 bytes per second takes 10 ns.
        node(1, NodeType::Comp, &[], &[(NUM_OPS, 5_000), (TENSOR_SIZE, 1_000)]),
        // 100 operations: 100 ns; memory takes 1,000 ns.
        node(2, NodeType::Comp, &[], &[(NUM_OPS, 100), (TENSOR_SIZE, 100_000)]),
        // T(90) = 100 each, one after the other, overlapping the compute.
        gather(3, &[]),
        gather(4, &[]),
        Node { duration_micros: 2, ..node(5, NodeType::Comp, &[2, 4], &[]) },
        gather(6, &[5]),
    ];
    // 5,000 + 1,000 + 2,000 of compute, and the last all-gather is exposed.
    assert_eq!(finishes(&model, &[nodes.clone(), nodes]).unwrap(), [(8_100, 100); 2]);
}

#[test]
fn a_ring_with_one_slow_hop_is_held_up_one_member_at_a_time() {
    // Four consecutive ranks of a ring of eight: three hops, and back over three. m = 65,536 bytes, T = 500 + 1,220,
    // 1,000 more on the way back; e = 10, P = 3 floor(65,536 / 2,000) = 96. Four chunks of 6T + 7e + 3P each; every
    // fourth of the 24 steps of a chain goes back.
    let text = "{\"preferred-dataset-splits\": 4, \"local-mem-bw\": 2000, \"all-reduce-implementation\": [\"ring\"]}";
    let ring = "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]";
    let model = AnalyticalModel::new(System::parse(text).unwrap(), Network::parse(ring).unwrap(), 1);
    let lasts = model.collective(AstraCollective::AllReduce, 1 << 20, &[0, 1, 2, 3]).unwrap();
    assert_eq!(lasts, 4 * (6 * 1_720 + 7 * 10 + 3 * 96) + 6 * 1_000);
    let missing = model.collective(AstraCollective::AllGather, 8, &[0, 1, 2, 3]).unwrap_err().to_string();
    assert!(
        missing.starts_with("all-gather-implementation is missing, and a trace has an all-gather\nhint: "),
        "{missing}"
    );
}

/// A system file may have lists that no trace uses, and traces may describe their groups themselves.
#[test]
fn only_what_is_used_must_fit() {
    let text = "{\"all-reduce-implementation\": [\"ring\", \"ring\"], \"all-gather-implementation\": [\"ring\"],
        \"all-to-all-implementation\": [\"halvingDoubling\", \"oneDirect\"], \"collective-optimization\": \"localBWAware\"}";
    let model = AnalyticalModel::new(System::parse(text).unwrap(), network(&[("Ring", 2, 10), ("Ring", 2, 10)]), 1);
    // All phases of an all-reduce use its own list: RS of T(40) + 2e, AR of 2 T(20) + 3e, AG of T(40) + 2e; T(m) = 10 +
    // m, e = 10.
    assert_eq!(model.collective(AstraCollective::AllReduce, 80, &[0, 1, 2, 3]).unwrap(), 2 * (50 + 20) + 2 * 30 + 30);
    let missed = [AstraCollective::AllGather, AstraCollective::ReduceScatter, AstraCollective::AllToAll]
        .map(|kind| model.collective(kind, 80, &[0, 1, 2, 3]).unwrap_err().message);
    assert_eq!(
        missed,
        [
            "all-gather-implementation lists 1 algorithms, and a trace has an all-gather",
            "reduce-scatter-implementation is missing, and a trace has a reduce-scatter",
            "all-to-all does not support halvingDoubling, and a trace has an all-to-all",
        ]
    );
    let all_reduce = |id, group: &str| {
        let mut node = node(id, NodeType::CommColl, &[], &[(COMM_TYPE, 0), (COMM_SIZE, 20)]);
        node.attr.push(Attribute::new(PG_NAME, Value::String(group.into())));
        node
    };
    // Each rank names its own pair "tp": two groups with one name. The group `dp` is described in no trace.
    let trace = |members: [u32; 2], group: &str| {
        let described = Node { id: 1, ..uniference_formats::chakra::groups::describe("tp", &members) };
        vec![described, all_reduce(2, group)]
    };
    let pairs = [trace([0, 1], "tp"), trace([0, 1], "tp"), trace([2, 3], "tp"), trace([2, 3], "tp")];
    // 20 bytes in a pair on the first dimension: 2 T(10) + 3e.
    assert_eq!(finishes(&model, &pairs).unwrap(), [(70, 70); 4]);
    let unknown = finishes(&model, &[0; 4].map(|_| trace([0, 1], "dp"))).unwrap_err();
    assert!(unknown.contains("uses process group `dp`, which is not defined"), "{unknown}");
}

fn reader(nodes: &[Node]) -> Reader<std::io::Cursor<Vec<u8>>> {
    let mut writer = Writer::new(Vec::new(), &GlobalMetadata::default()).unwrap();
    nodes.iter().for_each(|node| writer.node(node).unwrap());
    Reader::open(std::io::Cursor::new(writer.finish().unwrap())).unwrap()
}

#[test]
fn parts_that_are_not_simulated_as_written_are_counted() {
    let mut prioritized = node(1, NodeType::CommColl, &[99], &[(COMM_TYPE, 0), (COMM_SIZE, 20), ("comm_priority", 1)]);
    let unknown = Node { r#type: 77, ..node(2, NodeType::Comp, &[1], &[]) };
    let traces = vec![reader(&[prioritized.clone(), unknown]), {
        prioritized.data_deps.clear();
        reader(&[prioritized])
    }];
    let model = AnalyticalModel::new(system(&["ring"], "\"endpoint-delay\": 0"), network(&[("Ring", 2, 10)]), 1);
    let machine = Machine { model: &model, memory: None, expand: None };
    let scales = Scales { compute: 1.0, communication: 1.0 };
    let doubts = run(&machine, &[], scales, traces, &mut Statistics::default(), &mut |_| {}).unwrap();
    let ignored = [("comm_priority".to_owned(), 2)].into();
    assert_eq!(doubts.oddities, Oddities { unknown_types: 1, missing_dependencies: 1, ignored });
}

#[test]
fn a_collective_given_as_traces_takes_what_they_take() {
    // Each rank sends 50 bytes to the other (T = 10 + 50), and computes 7 us after its receive; twice, for two
    // all-reduces.
    let model = AnalyticalModel::new(system(&["ring"], "\"endpoint-delay\": 0"), network(&[("Ring", 2, 10)]), 1);
    let graph = |peer: u64| {
        vec![
            node(0, NodeType::CommSend, &[], &[(COMM_DST, peer), (COMM_SIZE, 50)]),
            node(1, NodeType::CommRecv, &[0], &[(COMM_SRC, peer), (COMM_SIZE, 50)]),
            Node { duration_micros: 7, ..node(2, NodeType::Comp, &[1], &[]) },
        ]
    };
    let mut custom = Custom::default();
    custom.add(AstraCollective::AllReduce, vec![reader(&graph(1)), reader(&graph(0))]).unwrap();
    let all_reduce = |id, deps: &[u64]| node(id, NodeType::CommColl, deps, &[(COMM_TYPE, 0), (COMM_SIZE, 9)]);
    let trace = vec![all_reduce(1, &[]), all_reduce(2, &[1])];
    let machine = Machine { model: &model, memory: None, expand: Some(std::sync::Arc::new(custom)) };
    // Computation of the replaced collectives is communication: all of it is exposed.
    assert_eq!(finishes_on(&machine, &[trace.clone(), trace]).unwrap(), [(2 * 7_060, 2 * 7_060); 2]);
    let refused =
        Custom::default().add(AstraCollective::AllReduce, vec![reader(&[all_reduce(1, &[])])]).unwrap_err().to_string();
    assert!(refused.contains("node 1 is a COMM_COLL_NODE\nhint: "), "{refused}");
}

#[test]
fn remote_memory_serves_those_who_share_it_one_after_the_other() {
    let model = AnalyticalModel::new(system(&["ring"], "\"endpoint-delay\": 0"), network(&[("Ring", 4, 10)]), 1);
    let load = vec![node(1, NodeType::MemLoad, &[], &[(TENSOR_SIZE, 500)])];
    let traces = [load.clone(), load.clone(), load.clone(), load];
    let with = |sharing: &str| {
        let text = format!(
            "{{\"memory-type\": \"{sharing}\", \"remote-mem-latency\": 100, \"remote-mem-bw\": 5, \"num-npus-per-node\": 2}}"
        );
        let memory = Some(RemoteMemory::parse(&text).unwrap());
        let finishes = finishes_on(&Machine { model: &model, memory, expand: None }, &traces);
        finishes.map(|finishes| finishes.into_iter().map(|(finish, _)| finish).collect::<Vec<u64>>())
    };
    // An access lasts 100 + 500 / 5 ns.
    assert_eq!(with("PER_NPU_MEMORY_EXPANSION").unwrap(), [200, 200, 200, 200]);
    assert_eq!(with("PER_NODE_MEMORY_EXPANSION").unwrap(), [200, 400, 200, 400]);
    assert_eq!(with("MEMORY_POOL").unwrap(), [200, 400, 600, 800]);
    let none = with("NO_MEMORY_EXPANSION").unwrap_err();
    assert!(none.contains("uses remote memory, which is not configured\nhint: "), "{none}");
}

#[test]
fn messages_groups_and_deadlocks() {
    let model = model("ring", "Ring");
    let all_reduce = |id, group: &str| {
        let mut node = node(id, NodeType::CommColl, &[], &[(COMM_TYPE, 0), (COMM_SIZE, 20)]);
        node.attr.push(Attribute::new(PG_NAME, Value::String(group.into())));
        node
    };
    let send = node(2, NodeType::CommSend, &[], &[(COMM_DST, 3), (COMM_SIZE, 50)]);
    let recv = node(1, NodeType::CommRecv, &[], &[(COMM_SRC, 1), (COMM_SIZE, 50)]);
    // The pair's all-reduce: m = 10, 2T + 3e + P with T = 110 and e = 10; then the message over two hops: 250.
    let traces = [vec![all_reduce(1, "1")], vec![all_reduce(1, "1"), send], vec![], vec![recv.clone()]];
    assert_eq!(finishes(&model, &traces).unwrap(), [(250, 250), (500, 500), (0, 0), (500, 500)]);
    let stuck = finishes(&model, &[vec![], vec![], vec![], vec![recv]]).unwrap_err();
    assert_eq!(stuck, "deadlock: no rank can proceed\n  rank 3: node 1 `n1`");
    let stranger = finishes(&model, &[vec![], vec![], vec![all_reduce(1, "1")], vec![]]).unwrap_err();
    assert!(stranger.starts_with("node 1 `n1` of rank 2 uses process group `1`, which"), "{stranger}");
    let long = Node { duration_micros: u64::MAX, ..node(1, NodeType::Comp, &[], &[]) };
    let late = finishes(&model, &[vec![long], vec![], vec![], vec![]]).unwrap_err();
    assert!(late.starts_with("virtual time exceeds its limit of 213 days\nhint: "), "{late}");
    let broadcast = node(1, NodeType::CommColl, &[], &[(COMM_TYPE, 5), (COMM_SIZE, 1)]);
    let refused = finishes(&model, &[vec![broadcast], vec![], vec![], vec![]]).unwrap_err();
    assert!(refused.contains("is a collective that ASTRA-sim does not support (BROADCAST)\nhint: "), "{refused}");
}
