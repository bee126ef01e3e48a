//! Tests of a run from its cluster file to all written files, and back from its record.

use serde_json::Value;
use std::io::Cursor;
use uniference_formats::cluster::{Choices, ClusterFile, Resolved};
use uniference_formats::record::{Header, RecordReader, RecordWriter};
use uniference_formats::report::{Manifest, Report};
use uniference_formats::trace::{Chrome, Lines, TraceWriter};
use uniference_sim::engine::{Engine, RunEnd, drive};
use uniference_sim::ids::{GroupId, Handle, QueueId, RankId, Site, TaskId};
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, DType, Mark, Origin, Outcome, Program, ProgramError, ReduceOp,
    Reply, Request, Shape, Work,
};
use uniference_sim::replay::replay;
use uniference_sim::time::{SimDuration, SimTime};

const CLUSTER: &str = r#"
backend = "ideal"
[[device]]
name = "board"
count = 3
[[device]]
name = "old"
slowdown = 2.0
[network]
bandwidth = "1 GB/s"
latency = "5 us"
"#;
const RANKS: u32 = 4;

/// A program that computes, then reduces a megabyte, twice.
struct Worker {
    requests: std::vec::IntoIter<Request>,
}

impl Program for Worker {
    fn resume(&mut self, _: SimTime, _: TaskId, _: Reply) -> Result<Request, ProgramError> {
        Ok(self.requests.next().unwrap_or(Request::Exit(Outcome::Ok)))
    }
}

fn requests() -> Vec<Request> {
    let issue = |activity| Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) };
    let wait = |handle| Request::Wait { handles: vec![Handle(handle)], any: false, timeout: None, site: Site(1) };
    let work = Work::new(SimDuration::from_us(100), Origin::Measured);
    let all_reduce = CallOp::Collective(Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::Float32,
        reduce: Some(ReduceOp::Sum),
        root: None,
        shape: Shape::Even(250_000),
        kernel: None,
    });
    let mut requests = vec![Request::JoinGroup {
        ranks: (0..RANKS).map(RankId).collect(),
        sequence: 0,
        settings: None,
        rendezvous: false,
    }];
    let mut handle = 0;
    for step in ["first", "second"] {
        requests.push(issue(Activity::Mark(Mark::Begin(step.into()))));
        requests.push(issue(Activity::Compute(work.clone())));
        requests.push(wait(handle + 1));
        requests.push(issue(Activity::Call(Call { group: GroupId(0), op: all_reduce.clone() })));
        requests.push(wait(handle + 2));
        requests.push(issue(Activity::Mark(Mark::End)));
        handle += 4;
    }
    requests
}

/// A worker whose requests are recorded.
struct Recorded<'a> {
    rank: RankId,
    worker: Worker,
    record: &'a std::cell::RefCell<RecordWriter<Vec<u8>>>,
}

impl Program for Recorded<'_> {
    fn resume(&mut self, now: SimTime, task: TaskId, reply: Reply) -> Result<Request, ProgramError> {
        let request = self.worker.resume(now, task, reply)?;
        self.record.borrow_mut().step(self.rank, task, &request.clone().into(), "a.py:1");
        Ok(request)
    }
}

fn resolve() -> Resolved {
    ClusterFile::parse("cluster.toml", CLUSTER, &[]).unwrap().resolve(&Choices::default()).unwrap()
}

/// The bytes of the program record and of the trace, and the report.
fn run() -> (Vec<u8>, Vec<u8>, Report) {
    let resolved = resolve();
    let manifest = Manifest { cluster: resolved.toml.clone(), ..Manifest::default() };
    let header = Header { world_size: RANKS, manifest: manifest.clone() };
    let record = std::cell::RefCell::new(RecordWriter::new(Vec::new(), &header));
    let worker = || Worker { requests: requests().into_iter() };
    let mut programs: Vec<Box<dyn Program + '_>> = (0..RANKS)
        .map(|rank| Box::new(Recorded { rank: RankId(rank), worker: worker(), record: &record }) as Box<dyn Program>)
        .collect();
    let mut trace = TraceWriter::new(Chrome::new(Vec::new()), &resolved.cluster, Lines::default());
    let mut observers = ((Statistics::default(), Digest::default()), &mut trace);
    let ended = drive(&mut Engine::new(&resolved.cluster), &mut programs, &mut observers);
    assert!(matches!(ended, RunEnd::Finished), "{ended:?}");
    let (statistics, digest) = observers.0;
    drop(programs);
    let report = Report::new(&statistics, &resolved.cluster.devices, digest.to_hex(), manifest);
    (record.into_inner().finish().unwrap(), trace.finish().unwrap(), report)
}

#[test]
fn the_record_of_a_run_runs_again_to_the_same_digest() {
    let (record, _, report) = run();
    let reader = RecordReader::open(Cursor::new(&record)).unwrap();
    let cluster = ClusterFile::parse("record", &reader.header().manifest.cluster, &[]).unwrap();
    let resolved = cluster.resolve(&Choices::default()).unwrap();
    let (ranks, rest) = reader.by_rank();
    let mut digest = Digest::default();
    let replayed = replay(&mut Engine::new(&resolved.cluster), ranks, &mut digest);
    assert!(matches!(replayed, RunEnd::Finished), "{replayed:?}");
    rest.finish().unwrap();
    assert_eq!(digest.to_hex(), report.digest);
}

#[test]
fn the_report_adds_up() {
    let (_, _, report) = run();
    // Compute on the slow device, 2 * 100 us, then a ring of 2 (P - 1) steps of a quarter of 1 MB and 5 us each, twice.
    // The slow rank's own last block is on its way while others wait for theirs: the slow rank leaves the first ring
    // two latencies before the last rank.
    let (step, latency) = (250_000_000 + 5_000_000, 5_000_000);
    assert_eq!(report.makespan_ps, 2 * (200_000_000 + 6 * step) - 2 * latency);
    for rank in &report.ranks {
        // A ring sends 2 (P - 1) / P of the tensor: 1.5 MB, twice.
        assert_eq!((rank.bytes_sent, rank.wire_bytes_sent), (3_000_000, 3_000_000));
        let sum = rank.compute_s + rank.exposed_comm_s + rank.idle_s;
        assert!((sum - report.makespan_s).abs() < 1e-12);
    }
    // Rank 0 waits 100 us for the slow rank. Rank 0 leaves the first ring one latency after it, and therefore waits
    // 95 us the second time.
    assert!((report.ranks[0].late_peer_s - 195e-6).abs() < 1e-12, "{}", report.ranks[0].late_peer_s);
    assert_eq!((report.operations[0].count, report.operations[0].bytes), (8, 8_000_000));
}

#[test]
fn the_counters_of_a_trace_add_up_to_the_bytes_on_the_links() {
    let (_, trace, report) = run();
    let document: Value = serde_json::from_slice(&trace).unwrap();
    let mut last: std::collections::BTreeMap<&str, (f64, f64)> = std::collections::BTreeMap::new();
    let mut total = 0.0;
    for entry in document["traceEvents"].as_array().unwrap().iter().filter(|entry| entry["ph"] == "C") {
        let (name, at) = (entry["name"].as_str().unwrap(), entry["ts"].as_f64().unwrap());
        let rate = entry["args"]["bytes/s"].as_f64().unwrap();
        let (since, before) = last.insert(name, (at, rate)).unwrap_or((at, 0.0));
        total += before * (at - since) * 1e-6;
    }
    // Every message crosses two links: up to the switch, and down.
    let sent: u64 = report.ranks.iter().map(|rank| 2 * rank.wire_bytes_sent).sum();
    assert!((total - sent as f64).abs() < 1e-3, "{total} of {sent}");
}

#[test]
fn two_runs_write_the_same_bytes() {
    let (first, second) = (run(), run());
    assert!(first.0 == second.0 && first.1 == second.1 && first.2 == second.2);
}
