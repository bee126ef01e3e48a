mod odd;

use super::repair::circle_closing;
use super::*;
use crate::chakra::replay::{Replay, Rules};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uniference_formats::chakra::attributes::{COMM_DST, COMM_SIZE, IN_SPLIT, PG_NAME, ROOT_RANK};
use uniference_formats::chakra::check::check;
use uniference_formats::chakra::groups::process_groups;
use uniference_formats::chakra::own::{PART, RECORDED_PS};
use uniference_formats::chakra::read::{Nodes, ReadError, Reader};
use uniference_formats::chakra::schema::{CommType, NodeType};
use uniference_formats::chakra::write::Writer;
use uniference_formats::cluster::{Choices, ClusterFile, Flags};
use uniference_sim::engine::{Engine, RunEnd, drive};
use uniference_sim::ids::RankId;
use uniference_sim::observe::Statistics;
use uniference_sim::program::Program;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/chakra/link/fixtures").join(name)
}

fn read(name: &str) -> Recording {
    Recording::read(std::fs::File::open(fixture(name)).unwrap()).unwrap()
}

fn rank(name: &str, host: Option<&str>) -> RankRecording {
    let Recording::Profile(profile) = read(name) else { panic!("{name} is a profile") };
    let host = host.map(|host| match read(host) {
        Recording::Host(host) => host,
        Recording::Profile(_) => panic!("{host} is a host trace"),
    });
    RankRecording { file: name.to_owned(), named: rank_in_name(name), profile, host }
}

fn dlrm(with_host: bool) -> Vec<RankRecording> {
    let host = |rank: u32| with_host.then(|| format!("dlrm.host.{rank}.json.gz"));
    (0..8).map(|number| rank(&format!("dlrm.profile.{number}.json.gz"), host(number).as_deref())).collect()
}

/// Asserts that every trace can be run: it has no cycle and no duplicate id.
fn checked(job: Job) -> Job {
    for linked in &job.ranks {
        let mut writer = Writer::new(Vec::new(), &linked.metadata).unwrap();
        linked.nodes.iter().for_each(|node| writer.node(node).unwrap());
        check(Reader::open(&writer.finish().unwrap()[..]).unwrap()).unwrap();
    }
    job
}

/// Relative error of the replay on the recorded machine, of the rank with the largest error.
fn error_of(job: &Job) -> f64 {
    let replayed = job.replay_recorded().unwrap();
    let error = |(linked, replayed): (&Linked, u64)| (replayed as f64 / linked.recorded_ns as f64 - 1.0).abs();
    job.ranks.iter().zip(replayed).map(error).fold(0.0, f64::max)
}

struct Listed<'a>(std::slice::Iter<'a, Node>);

impl Nodes for Listed<'_> {
    fn next_node(&mut self) -> Result<Option<Node>, ReadError> {
        Ok(self.0.next().cloned())
    }
}

/// The makespan in milliseconds over links of the given bandwidth.
fn makespan(job: &Job, bandwidth: &str) -> f64 {
    let (ranks, latency) = (job.ranks.len() as u32, Some("1 us".parse().unwrap()));
    let flags = Flags { ranks, bandwidth: Some(bandwidth.parse().unwrap()), latency, slowdown: vec![] };
    let file = ClusterFile::parse("test", &flags.to_toml().unwrap(), &[]).unwrap();
    let choices = Choices { backend: Some("nccl".into()), ..Choices::default() };
    let cluster = file.resolve(&choices).unwrap().cluster;
    let rules = Arc::new(Rules::of((0..ranks).map(RankId).collect()));
    let mut programs: Vec<Box<dyn Program + '_>> = Vec::new();
    for (rank, linked) in job.ranks.iter().enumerate() {
        programs.push(Box::new(Replay::new(RankId::from(rank), Listed(linked.nodes.iter()), rules.clone())));
    }
    let mut statistics = Statistics::default();
    let ended = drive(&mut Engine::new(&cluster), &mut programs, &mut statistics);
    assert!(matches!(ended, RunEnd::Finished), "{ended:?}");
    statistics.makespan().as_secs_f64() * 1e3
}

fn communication(linked: &Linked) -> impl Iterator<Item = &Node> {
    linked.nodes.iter().filter(|node| node.attribute(RECORDED_PS).is_some())
}

#[rstest]
#[case(true)]
#[case(false)]
fn eight_ranks_of_an_older_pytorch_replay_as_recorded(#[case] with_host: bool) {
    let job = checked(link(dlrm(with_host), &Options::default()).unwrap());
    assert_eq!(job.ranks.len(), 8);
    // Rank 1 is the first to start the step, and its ProfilerStep#10 lasts 19,901 us.
    assert!((19.8e6..21e6).contains(&(job.ranks[1].recorded_ns as f64)));
    assert!(error_of(&job) < 0.01, "{}", error_of(&job));
    for linked in &job.ranks {
        let kinds: Vec<Option<CommType>> = communication(linked).map(Node::comm_type).collect();
        let count = |kind| kinds.iter().filter(|found| **found == Some(kind)).count();
        assert_eq!((count(CommType::AllToAll), count(CommType::AllReduce), kinds.len()), (5, 3, 8));
        // 394,241 + 112 + 226,960 floats.
        let reduced = communication(linked).filter(|node| node.comm_type() == Some(CommType::AllReduce));
        assert_eq!(reduced.map(|node| node.unsigned(COMM_SIZE).unwrap()).sum::<u64>(), 4 * (394_241 + 112 + 226_960));
    }
    let first = communication(&job.ranks[0]).next().unwrap();
    // 6,144 floats; the last rank to enter was in the operation for 10 us.
    assert_eq!((first.unsigned(COMM_SIZE), first.unsigned(RECORDED_PS)), (Some(24_576), Some(10_000_000)));
    assert_eq!(first.numbers(IN_SPLIT).is_some(), with_host);
    // No thread works while the backward pass runs on another thread for 3.4 ms.
    let work = |node: &&Node| node.is_cpu_op() && node.text(PART) == Some("side_by_side");
    let longest = job.ranks[0].nodes.iter().filter(work).map(|node| node.duration_micros).max();
    assert!(longest < Some(500), "{longest:?}");
}

#[test]
fn a_tenth_of_the_bandwidth_costs_what_the_bytes_say() {
    let job = checked(link(vec![rank("ddp.profile.0.json.gz", None)], &Options::default()).unwrap());
    assert_eq!((job.ranks.len(), job.ranks[1].like), (2, 0));
    assert!(job.notes.iter().any(|note| note.contains("are assumed to behave like rank 0")), "{:?}", job.notes);
    assert!(error_of(&job) < 0.001, "{}", error_of(&job));
    let groups = job.ranks[0].nodes.iter().find_map(|node| process_groups(node).unwrap()).unwrap();
    assert_eq!((groups[0].name.as_str(), &groups[0].ranks[..]), ("0", &[0, 1][..]));
    // Rings of two: each byte of a tensor crosses each link once. Both rates are low, to expose the all-reduces.
    let bytes: u64 = communication(&job.ranks[0]).map(|node| node.unsigned(COMM_SIZE).unwrap()).sum();
    let expected = bytes as f64 * (1.0 / 0.05e9 - 1.0 / 0.5e9) * 1e3;
    let grown = makespan(&job, "0.05 GB/s") - makespan(&job, "0.5 GB/s");
    assert!((grown / expected - 1.0).abs() < 0.05, "{grown} ms instead of {expected} ms");
}

#[test]
fn files_of_different_runs_are_refused() {
    let pair = || vec![rank("ddp.profile.0.json.gz", Some("dlrm.host.0.json.gz"))];
    let error = link(pair(), &Options::default()).unwrap_err().to_string();
    assert!(
        error.starts_with("rank 0: the host trace and the profile are from different runs: ")
            && error.contains(" %)\nhint: "),
        "{error}"
    );
    let options = Options { allow_mismatch: true, ..Options::default() };
    checked(link(pair(), &options).unwrap());
}

#[test]
fn events_order_kernels_of_different_streams() {
    let job = checked(link(vec![rank("events.profile.json.gz", None)], &Options::default()).unwrap());
    assert!(error_of(&job) < 0.001);
    // In the profile, stream 24 waits for an event of stream 20.
    let on =
        |stream: i128| move |node: &&Node| node.attribute("stream").and_then(|value| value.integer()) == Some(stream);
    let nodes = &job.ranks[0].nodes;
    let before = nodes.iter().rfind(on(20)).unwrap().id;
    let first = nodes.iter().find(on(24)).unwrap();
    let through = |id: &u64| *id == before || nodes[*id as usize].data_deps.contains(&before);
    assert!(first.data_deps.iter().any(through), "{first:?}");
}

// Synthetic recordings

fn span(cat: &str, name: &str, tid: u64, ts: f64, dur: f64, args: Json) -> Json {
    json!({"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": ts, "dur": dur, "args": args})
}

fn operation(name: &str, ts: f64, dur: f64) -> Json {
    span("cpu_op", name, 10, ts, dur, json!({}))
}

fn call(name: &str, ts: f64, dur: f64, correlation: u64) -> Json {
    span("cuda_runtime", name, 10, ts, dur, json!({"correlation": correlation}))
}

fn kernel(name: &str, stream: u64, ts: f64, dur: f64, correlation: u64) -> Json {
    span("kernel", name, 0, ts, dur, json!({"correlation": correlation, "stream": stream}))
}

fn recording(json: &Json) -> Recording {
    Recording::read(json.to_string().as_bytes()).unwrap()
}

fn of_events(events: &[Json], distributed: &Json) -> RankRecording {
    let Recording::Profile(profile) = recording(&json!({"traceEvents": events, "distributedInfo": distributed})) else {
        panic!("it has events");
    };
    RankRecording { file: "profile".into(), named: None, profile, host: None }
}

fn with_host(mut rank: RankRecording, operators: &[Json]) -> RankRecording {
    let Recording::Host(host) = recording(&json!({"schema": "1.1.1-chakra.0.0.4", "nodes": operators})) else {
        panic!("it has nodes");
    };
    rank.host = Some(host);
    rank
}

fn alone(events: &[Json]) -> Linked {
    let mut job = checked(link(vec![of_events(events, &json!({}))], &Options::default()).unwrap());
    assert!(error_of(&job) < 1e-9);
    job.ranks.remove(0)
}

/// An operator of the newer file format.
fn operator(id: u64, name: &str, parent: u64, inputs: Json) -> Json {
    let attrs =
        json!([{"name": "rf_id", "type": "uint64", "value": id}, {"name": "tid", "type": "uint64", "value": 1}]);
    json!({"id": id, "name": name, "ctrl_deps": parent, "inputs": {"values": inputs, "shapes": [], "types": []}, "attrs": attrs})
}

/// Names and durations of work on threads and streams, without items of no duration.
fn work(linked: &Linked) -> Vec<(&str, u64)> {
    let part = |node: &&Node| node.text(PART) == Some("side_by_side");
    linked.nodes.iter().filter(part).map(|node| (node.name.as_str(), node.duration_micros)).collect()
}

#[test]
fn waiting_is_a_dependency_and_time_between_operators_is_work() {
    // A kernel of 90 us; the thread waits for it in a call of 80 us, of which 10 us remain after the kernel's end.
    let linked = alone(&[
        operation("aten::mm", 0.0, 20.0),
        call("cudaLaunchKernel", 10.0, 5.0, 1),
        kernel("gemm", 7, 15.0, 90.0, 1),
        operation("aten::item", 30.0, 90.0),
        call("cudaStreamSynchronize", 35.0, 80.0, 2),
        operation("aten::add", 120.0, 5.0),
    ]);
    let expected = [
        ("aten::mm", 10),
        ("aten::mm", 10),
        ("between operators", 10),
        ("aten::item", 5),
        ("gemm", 90),
        ("aten::item", 15),
        ("aten::add", 5),
    ];
    let mut found = work(&linked);
    found.sort_unstable();
    let mut sorted = expected.to_vec();
    sorted.sort_unstable();
    assert_eq!(found, sorted);
    let id = |name: &str| linked.nodes.iter().rfind(|node| node.name == name).unwrap();
    assert!(id("aten::item").data_deps.contains(&id("gemm").id));
    // The launch is 5 us before the kernel's start.
    let delay = linked.nodes.iter().find(|node| node.name == "delay").unwrap();
    assert_eq!((delay.duration_micros, &id("gemm").data_deps[..]), (5, &[delay.id][..]));
}

#[test]
fn the_main_thread_waits_for_the_backward_pass_on_another_thread() {
    let backward =
        |ts: f64| span("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 11, ts, 400.0, json!({}));
    let linked = alone(&[
        span("user_annotation", "ProfilerStep#1", 10, 0.0, 1_000.0, json!({})),
        operation("aten::mul", 0.0, 100.0),
        backward(150.0),
        backward(555.0),
        operation("aten::add", 970.0, 30.0),
    ]);
    // mul, 50 us until the worker starts, 400 + 5 + 400, 15 us until the main thread continues, add.
    let total: u64 = work(&linked).iter().map(|(_, micros)| micros).sum();
    assert_eq!(total, 100 + 50 + 400 + 5 + 400 + 15 + 30);
}

#[test]
fn gloo_runs_beside_the_thread_that_issues_it() {
    let function = |id: u64| json!({"Record function id": id});
    let tensor = json!([7, 8, 0, 64, 4, "cpu"]);
    let operators = [
        operator(2, "aten::mm", 1, json!([tensor])),
        operator(4, "c10d::allreduce_", 1, json!([[tensor], "<Object>"])),
        operator(5, "gloo:all_reduce", 6, json!([tensor])),
        operator(6, "aten::add", 1, json!([tensor])),
        operator(7, "aten::relu", 1, json!([tensor])),
    ];
    let events = [
        span("cpu_op", "aten::mm", 10, 100.0, 50.0, function(2)),
        span("cpu_op", "c10d::allreduce_", 10, 150.0, 4.0, function(4)),
        span("user_annotation", "gloo:all_reduce", 11, 156.0, 30.0, function(5)),
        span("cpu_op", "aten::add", 10, 157.0, 10.0, function(6)),
        span("cpu_op", "aten::relu", 10, 188.0, 1.0, function(7)),
    ];
    let rank = with_host(of_events(&events, &json!({"rank": 0, "world_size": 1})), &operators);
    let job = checked(link(vec![rank], &Options::default()).unwrap());
    assert!(error_of(&job) < 1e-9);
    let call = communication(&job.ranks[0]).next().unwrap();
    assert_eq!((call.comm_type(), call.unsigned(COMM_SIZE)), (Some(CommType::AllReduce), Some(256)));
    // `add` does not wait for the all-reduce, and the thread idles from 167 to 186 us: mm, issue, 3 us, add, 2 us,
    // relu; on the other thread 2 us.
    let total: u64 = work(&job.ranks[0]).iter().map(|(_, micros)| micros).sum();
    assert_eq!(total, 50 + 4 + 3 + 10 + 2 + 1 + 2);
}

/// An NCCL kernel inside its operator, from a PyTorch version without `Collective name`.
fn nccl(kernel_name: &str, end: f64) -> Vec<Json> {
    vec![
        operation("record_param_comms", 0.0, 20.0),
        call("cudaLaunchKernel", 5.0, 5.0, 1),
        kernel(kernel_name, 9, 10.0, end - 10.0, 1),
    ]
}

#[test]
fn what_communicates_is_known_from_the_kernel_the_host_or_the_profile() {
    let tensor = json!([7, 8, 0, 100, 2, "cuda:0"]);
    let inputs = json!([[tensor], 5, ["3", "tp"], 1, "broadcast", [], [], 0, 1, 2]);
    let groups = json!([{"pg_name": "3", "ranks": [1, 0]}]);
    let profile = |rank: u32| {
        of_events(
            &nccl("ncclDevKernel_Broadcast_RING_LL", 50.0),
            &json!({"rank": rank, "world_size": 2, "pg_config": groups}),
        )
    };
    let host = || [operator(1, "record_param_comms", 0, inputs.clone())];
    let job = checked(
        link(vec![with_host(profile(0), &host()), with_host(profile(1), &host())], &Options::default()).unwrap(),
    );
    let node = communication(&job.ranks[1]).next().unwrap();
    // Group rank 1 is rank 0; 100 elements of 2 bytes; both ranks were in the operation for 40 us.
    assert_eq!(
        (node.comm_type(), node.unsigned(ROOT_RANK), node.unsigned(COMM_SIZE)),
        (Some(CommType::Broadcast), Some(0), Some(200))
    );
    assert_eq!((node.text(PG_NAME), node.unsigned(RECORDED_PS)), (Some("3"), Some(40_000_000)));
    // Without the host trace the size is missing.
    let error = link(vec![profile(0), profile(1)], &Options::default()).unwrap_err().to_string();
    assert!(
        error.starts_with("rank 0: 1 NCCL kernels cannot be identified: the size is unknown")
            && error.contains("hint: "),
        "{error}"
    );
    let options = Options { allow_unknown: true, ..Options::default() };
    let job = checked(link(vec![profile(0), profile(1)], &options).unwrap());
    assert_eq!(communication(&job.ranks[0]).count(), 0);
    assert!(work(&job.ranks[0]).contains(&("ncclDevKernel_Broadcast_RING_LL", 40)));
    // A single SendRecv kernel may be any operation.
    let unknown = of_events(&nccl("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 50.0), &json!({}));
    assert!(matches!(link(vec![unknown], &Options::default()), Err(LinkError::Unknown { .. })));
}

#[test]
fn messages_name_their_peer_and_missing_ranks_are_refused() {
    let message = |name: &str, key: &str, peer: u64, rank: u32| {
        let mut args = json!({"correlation": 1, "stream": 9, "Collective name": name, "In msg nelems": 8, "Out msg nelems": 8,
                              "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"});
        args[key] = json!(peer);
        let events =
            [call("cudaLaunchKernel", 5.0, 5.0, 1), span("kernel", "ncclDevKernel_SendRecv", 0, 10.0, 20.0, args)];
        of_events(&events, &json!({"rank": rank, "world_size": 2}))
    };
    let (send, recv) = (|| message("send", "Dst Rank", 1, 0), || message("recv", "Src Rank", 0, 1));
    let job = checked(link(vec![send(), recv()], &Options::default()).unwrap());
    let node = communication(&job.ranks[0]).next().unwrap();
    assert_eq!(
        (node.r#type(), node.unsigned(COMM_DST), node.unsigned(COMM_SIZE)),
        (NodeType::CommSend, Some(1), Some(32))
    );
    assert!(error_of(&job) < 1e-6);
    assert!(matches!(link(vec![send()], &Options::default()), Err(LinkError::Missing { world: 2, given: 1, .. })));
    assert!(matches!(
        link(vec![send(), message("send", "Dst Rank", 0, 1)], &Options::default()),
        Err(LinkError::Ranks { .. })
    ));
}

#[test]
fn the_middle_iteration_is_linked_and_others_on_request() {
    let step = |number: u64| {
        span("user_annotation", &format!("ProfilerStep#{number}"), 10, 100.0 * number as f64, 100.0, json!({}))
    };
    let work_of = |number: u64| operation(&format!("aten::op{number}"), 100.0 * number as f64, 50.0);
    let events: Vec<Json> = (3..7).flat_map(|number| [step(number), work_of(number)]).collect();
    let linked = |iteration| link(vec![of_events(&events, &json!({}))], &Options { iteration, ..Options::default() });
    let names = |iteration| {
        work(&linked(iteration).unwrap().ranks[0]).iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(Iteration::Middle), ["aten::op5", "ProfilerStep#5"]);
    assert_eq!(names(Iteration::Number(3)), ["aten::op3", "ProfilerStep#3"]);
    assert_eq!(names(Iteration::All).len(), 8);
    let error = linked(Iteration::Number(7)).unwrap_err().to_string();
    assert!(error.starts_with("iteration 7 is not in all recordings; they contain 3 to 6\nhint: "), "{error}");
}

#[test]
fn parents_in_a_circle_are_refused_or_dropped() {
    let operators = [
        operator(2, "a", 4, json!([])),
        operator(3, "b", 2, json!([])),
        operator(4, "c", 3, json!([])),
        operator(5, "d", 4, json!([])),
    ];
    let events: Vec<Json> = (2..6)
        .map(|id| span("cpu_op", ["a", "b", "c", "d"][id - 2], 10, id as f64, 1.0, json!({"Record function id": id})))
        .collect();
    let given = || vec![with_host(of_events(&events, &json!({})), &operators)];
    let error = link(given(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("the parent of 2, 4 `c`, closes a cycle\nhint: --repair"), "{error}");
    let job = link(given(), &Options { repair: true, ..Options::default() }).unwrap();
    let dropped: Vec<&String> = job.notes.iter().filter(|note| note.contains("dropped")).collect();
    assert_eq!(dropped, ["rank 0: dropped to break a cycle of the host trace: the parent of 2 `a` on 4 `c`"]);
}

#[test]
fn what_is_no_recording_is_refused() {
    for text in [
        "{}",
        "[",
        "text",
        r#"{"traceEvents": 3}"#,
        r#"{"schema": "1", "nodes": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}"#,
    ] {
        let error = Recording::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("\nhint: "), "{error}");
    }
    assert!(matches!(link(vec![of_events(&[], &json!({}))], &Options::default()), Err(LinkError::Empty { rank: 0 })));
}

#[rstest]
#[case("worker3_step_12.1694.pt.trace.json", Some(3))]
#[case("trace_rank-11.json.gz", Some(11))]
#[case("dlrm_eg_7.json", Some(7))]
#[case("host.2024.01.json", None)]
#[case("profile.json", None)]
fn ranks_are_read_from_names(#[case] name: &str, #[case] expected: Option<u32>) {
    assert_eq!(rank_in_name(name), expected);
}

/// Any events, on two threads and two streams.
fn any_event() -> impl Strategy<Value = Json> {
    let names = [
        ("cpu_op", "aten::mm"),
        ("cpu_op", "record_param_comms"),
        ("cpu_op", "autograd::engine::evaluate_function: A"),
        ("user_annotation", "ProfilerStep#1"),
        ("user_annotation", "gloo:all_reduce"),
        ("cuda_runtime", "cudaLaunchKernel"),
        ("cuda_runtime", "cudaStreamSynchronize"),
        ("cuda_runtime", "cudaDeviceSynchronize"),
        ("cuda_runtime", "cudaStreamWaitEvent"),
        ("cuda_runtime", "cudaMemcpyAsync"),
        ("kernel", "gemm"),
        ("kernel", "ncclKernel_AllReduce_RING_LL"),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)"),
        ("cuda_sync", "Event Sync"),
    ];
    let times = (0_u32..2_000, 0_u32..300);
    (0..names.len(), times, 0_u64..2, 0_u64..12, 0_u64..2, any::<bool>()).prop_map(
        move |(kind, (start, length), lane, correlation, stream, says)| {
            let mut args = json!({"correlation": correlation, "stream": stream});
            if says {
                args["Collective name"] = json!("allreduce");
                args["In msg nelems"] = json!(8);
                args["dtype"] = json!("Float");
                args["wait_on_stream"] = json!(1 - stream);
                args["wait_on_cuda_event_record_corr_id"] = json!(correlation / 2);
            }
            span(names[kind].0, names[kind].1, lane, start.into(), length.into(), args)
        },
    )
}

proptest! {
    /// Any profile is linked or refused, and linked traces run to their end.
    #[test]
    fn any_profile_is_linked_or_refused(events in proptest::collection::vec(any_event(), 0..60), all: bool) {
        let iteration = if all { Iteration::All } else { Iteration::Middle };
        let options = Options { iteration, allow_unknown: true, repair: true, ..Options::default() };
        if let Ok(job) = link(vec![of_events(&events, &json!({}))], &options) {
            checked(job).replay_recorded().unwrap();
        }
    }

    /// Without the dropped dependencies the graph has no cycle; with any one of them restored it has one.
    #[test]
    fn what_is_dropped_is_enough_and_not_too_much(edges in proptest::collection::vec((0_u32..12, 0_u32..12), 0..60)) {
        let mut deps: Vec<Vec<u32>> = vec![Vec::new(); 12];
        edges.iter().for_each(|(node, on)| deps[*node as usize].push(*on));
        let dropped = circle_closing(&deps);
        let acyclic = |without: &[(u32, usize)]| {
            let kept = |node: u32, place: usize| !without.contains(&(node, place));
            let mut missing: BTreeMap<u32, Vec<u32>> = (0..12)
                .map(|node| (node, deps[node as usize].iter().enumerate().filter(|(place, _)| kept(node, *place)).map(|(_, on)| *on).collect()))
                .collect();
            while let Some(free) = missing.iter().find(|(_, on)| on.is_empty()).map(|(node, _)| *node) {
                missing.remove(&free);
                missing.values_mut().for_each(|on| on.retain(|on| *on != free));
            }
            missing.is_empty()
        };
        prop_assert!(acyclic(&dropped));
        for back in 0..dropped.len() {
            let mut rest = dropped.clone();
            rest.remove(back);
            prop_assert!(!acyclic(&rest));
        }
    }
}

#[test]
fn text_that_does_not_end_is_an_error() {
    let mut endless = Bounded { input: std::io::repeat(b' '), left: 100_000 };
    let error = std::io::copy(&mut endless, &mut std::io::sink()).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::FileTooLarge, "more than 4 GiB of text"));
    let mut whole = Bounded { input: &b"12345"[..], left: 5 };
    assert_eq!(std::io::copy(&mut whole, &mut std::io::sink()).unwrap(), 5);
}

#[test]
fn two_profiles_of_one_rank_are_refused() {
    let profile = || of_events(&[], &json!({"rank": 1, "world_size": 2}));
    let error = link(vec![profile(), profile()], &Options::default()).unwrap_err().to_string();
    assert!(error.starts_with("profile and profile both have rank 1\nhint: give one profile per rank"), "{error}");
}
