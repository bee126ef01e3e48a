use super::*;

mod compute;
mod critical;
mod damaged;
mod whatif;

use crate::tests::run;
use std::fs;
use std::fs::File;
use std::path::Path;
use uniference_formats::cluster::{Choices, ClusterFile, Flags};
use uniference_formats::record::{Header, RecordWriter};
use uniference_formats::report::Manifest;
use uniference_formats::report::Report;
use uniference_session::cluster::{ClusterOptions, Overrides};
use uniference_session::compute::ComputeOptions;
use uniference_session::results::REPORT;
use uniference_sim::ids::{GroupId, GroupRank, Handle, QueueId};
use uniference_sim::ids::{RankId, Site, TaskId};
use uniference_sim::program::Request;
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, DType, Origin, Outcome, Shape, Work,
};
use uniference_sim::time::{Bytes, SimDuration};

pub(crate) fn issue(activity: Activity) -> Request {
    Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) }
}

pub(crate) fn wait(handle: u32) -> Request {
    Request::Wait { handles: vec![Handle(handle)], any: false, timeout: None, site: Site(0) }
}

/// A folder with a record of ranks that made these requests and returned. Site `n` is line `n + 3` of the program.
pub(crate) fn record(programs: &[Vec<Request>], toml: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let cluster = ClusterFile::parse("test", toml, &[]).unwrap().resolve(&Choices::default()).unwrap().toml;
    let manifest = Manifest { cluster, ..Manifest::default() };
    let header = Header { world_size: programs.len() as u32, manifest };
    let mut writer = RecordWriter::new(File::create(dir.path().join(RECORD)).unwrap(), &header);
    for (rank, program) in (0..).map(RankId).zip(programs) {
        let all = program.iter().chain([&Request::Exit(Outcome::Ok)]);
        for request in all {
            let line = request.site().map_or(3, |site| 3 + site.index());
            writer.step(rank, TaskId(0), &request.clone().into(), &format!("a.py:{line}"));
        }
    }
    writer.finish().unwrap();
    dir
}

/// Exit code of the folder's replay, and its report.
fn replayed(dir: &tempfile::TempDir, options: &[&str]) -> (Exit, Option<Report>) {
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (source, out) = (path(""), path("again"));
    let exit = run(&[&["replay", &source, "--out", &out], options].concat()).unwrap();
    let text = fs::read_to_string(Path::new(&out).join(REPORT));
    (exit, text.ok().map(|text| Report::from_json(&text).unwrap()))
}

#[test]
fn a_program_that_read_the_clock_might_have_gone_another_way_elsewhere() {
    let work = Work::new(SimDuration::from_us(1_000), Origin::Measured);
    let program = vec![issue(Activity::Compute(work)), wait(0), Request::Now];
    let toml = Flags { ranks: 1, bandwidth: None, latency: None, slowdown: vec![] }.to_toml().unwrap();
    let dir = record(&[program], &toml);
    let warnings = |options: &[&str]| replayed(&dir, options).1.unwrap().warnings;
    let hazard = |text: &String| text.contains("rank 0 read the clock after a.py:3: if the program's control flow");
    assert!(!warnings(&[]).iter().any(hazard));
    // On this other cluster, the compute has the same duration.
    assert!(!warnings(&["--ranks", "1", "--bandwidth", "1 Gbps"]).iter().any(hazard));
    assert!(warnings(&["--ranks", "1", "--slowdown", "2"]).iter().any(hazard));
}

#[test]
fn options_of_execution_traces_are_refused_for_a_record() {
    let toml = Flags { ranks: 1, bandwidth: None, latency: None, slowdown: vec![] }.to_toml().unwrap();
    let dir = record(&[vec![Request::Now]], &toml);
    let source = dir.path().display().to_string();
    for options in [&["--compute-scale", "2"][..], &["--passes", "3"], &["--astra-queues-per-dim", "2"]] {
        let error = run(&[&["replay", &source], options].concat()).unwrap_err().to_string();
        assert!(error.contains(&format!("options for execution traces only: {};", options[0])), "{error}");
    }
}

/// A record of two ranks, of which the second one receives a message of 1 MB and then makes these requests.
fn received(requests: Vec<Request>, toml: &str) -> tempfile::TempDir {
    let join =
        || Request::JoinGroup { ranks: (0..2).map(RankId).collect(), sequence: 0, settings: None, rendezvous: false };
    let call = |op| issue(Activity::Call(Call { group: GroupId(0), op }));
    let bytes = Bytes(1_000_000);
    let send = call(CallOp::Send { to: GroupRank(1), tag: 0, bytes });
    let recv = call(CallOp::Recv { from: Some(GroupRank(0)), tag: 0, bytes });
    record(&[vec![join(), send, wait(0)], [vec![join(), recv], requests].concat()], toml)
}

fn wait_for(us: u64, site: u32) -> Request {
    let timeout = Some(SimDuration::from_us(us));
    Request::Wait { handles: vec![Handle(0)], any: false, timeout, site: Site(site) }
}

fn two_ranks() -> String {
    Flags { ranks: 2, bandwidth: None, latency: None, slowdown: vec![] }.to_toml().unwrap()
}

/// The message takes about 1.4 ms at 10 Gbps and 2.3 ms at 5 Gbps.
#[test]
fn polls_that_are_not_successful_elsewhere_are_no_timeouts() {
    let sleep = issue(Activity::Sleep(SimDuration::from_us(1_800)));
    let dir = received(vec![sleep, wait(1), wait_for(1, 1), wait_for(10_000, 2)], &two_ranks());
    let (exit, report) = replayed(&dir, &["--set", "network.bandwidth=\"5 Gbps\""]);
    let warnings = report.unwrap().warnings;
    assert_eq!(exit, Exit::Ok);
    assert!(warnings.iter().any(|text| text.contains("polled an operation for completion")), "{warnings:?}");
}

#[test]
fn the_timeout_that_passes_only_elsewhere_is_named() {
    let dir = received(vec![wait_for(100, 1), wait_for(1_800, 2), wait(0)], &two_ranks());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let stopped = |bandwidth: &str| {
        let (record, out) = (path(""), Some(path("again").into()));
        let set = vec![format!("network.bandwidth=\"{bandwidth}\"")];
        let done = uniference_session::recorded::replay(&uniference_session::recorded::Replay {
            run: record.into(),
            cluster: ClusterOptions {
                overrides: Overrides { set, ..Overrides::default() },
                ..ClusterOptions::default()
            },
            seed: None,
            repeat: 1,
            command: Vec::new(),
            compute: ComputeOptions::default(),
            arrangement: None,
            output: Output { folder: out, ..Output::default() },
        });
        match done.unwrap() {
            Ended::Stopped(stop) => Some(stop.message),
            Ended::Finished(_) => None,
        }
    };
    assert_eq!(stopped("9 Gbps"), None);
    let message = stopped("5 Gbps").expect("it does not arrive in time");
    assert!(
        message.starts_with("error: rank 1 reaches its timeout in recv at a.py:5 after 1.800 ms, which"),
        "{message}"
    );
}

#[test]
fn a_record_without_allocations_is_checked_for_no_memory_unless_there_is_less() {
    let model = "[[device]]\nname = \"gpu\"\nmodel = \"l4\"\n[network]\n";
    let (work, dir) = (Work::new(SimDuration::from_us(1_000), Origin::Measured), tempfile::tempdir().unwrap());
    let cluster = dir.path().join("c.toml").display().to_string();
    fs::write(&cluster, model).unwrap();
    let program = || vec![issue(Activity::Compute(work.clone())), wait(0)];
    let unknown = Flags { ranks: 1, bandwidth: None, latency: None, slowdown: vec![] }.to_toml().unwrap();
    let (exit, report) = replayed(&record(&[program()], &unknown), &["--cluster", &cluster]);
    let warnings = report.unwrap().warnings;
    assert_eq!(exit, Exit::Ok);
    assert!(warnings.iter().any(|text| text.starts_with("the record does not contain allocations;")), "{warnings:?}");
    let known = record(&[program()], model);
    assert_eq!(replayed(&known, &[]).0, Exit::Ok);
    let source = known.path().display().to_string();
    let less = crate::tests::refused(&["replay", &source, "--set", "device.gpu.memory=\"1 GiB\""]);
    assert!(less.contains("`memory` cannot be less than in the recorded run\nhint: "), "{less}");
}

#[test]
fn properties_that_a_program_could_notice_are_named() {
    let device = "[[device]]\nname = \"a\"\ncores = 2\n[network]\n";
    let dir = record(&[vec![issue(Activity::Sleep(SimDuration::from_us(1))), wait(0)]], device);
    let cluster = dir.path().join("c.toml").display().to_string();
    fs::write(&cluster, format!("{device}[[crash]]\nrank = 0\nat = \"1 s\"\n")).unwrap();
    for (options, expected) in [
        (
            ["--set", "device.a.cores=4"],
            "rank 0 would start another number of threads: `cores` of device `a` differs from the recorded run; ",
        ),
        (["--cluster", &cluster], "device `a` (rank 0) crashes at another time than in the recorded run; "),
    ] {
        let warnings = replayed(&dir, &options).1.unwrap().warnings;
        assert!(warnings.iter().any(|text| text.starts_with(expected)), "{warnings:?}");
    }
}

#[test]
fn a_run_may_be_named_by_its_record() {
    let toml = Flags { ranks: 1, bandwidth: None, latency: None, slowdown: vec![] }.to_toml().unwrap();
    let dir = record(&[vec![]], &toml);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let exit = run(&["replay", &path(RECORD), "--out", &path("again")]).unwrap();
    assert_eq!((exit, Path::new(&path("again")).join(REPORT).exists()), (Exit::Ok, true));
}

#[test]
fn rates_without_an_effect_are_said() {
    let work = |origin| Work::new(SimDuration::from_us(1_000), origin);
    let toml = "[[device]]\nname = \"orin\"\npeak_flops = \"1 TFLOPS\"\nmemory_bandwidth = \"1 GB/s\"\n[network]\n";
    let of = |origin, options: &[&str]| {
        let dir = record(&[vec![issue(Activity::Compute(work(origin))), wait(0)]], toml);
        replayed(&dir, options).1.unwrap().warnings.join("\n")
    };
    let measured = of(Origin::Measured, &[]);
    assert!(measured.contains("`peak_flops` and `memory_bandwidth` of device `orin` have no effect"), "{measured}");
    assert!(!of(Origin::Recorded, &[]).contains("no effect"));
    let elsewhere = of(Origin::Recorded, &["--set", "device.orin.peak_flops=2 TFLOPS"]);
    assert!(elsewhere.contains("the rates of the recorded cluster"), "{elsewhere}");
}

/// Ranks 0 and 2 send 8 and 16 bytes to any receive of rank 1: if the second message arrives first, the sizes do not
/// match.
#[test]
fn seeds_that_halt_are_counted_and_left_out() {
    let join =
        || Request::JoinGroup { ranks: (0..3).map(RankId).collect(), sequence: 0, settings: None, rendezvous: false };
    let call = |op| issue(Activity::Call(Call { group: GroupId(0), op }));
    let send = |bytes| call(CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(bytes) });
    let recv = |bytes| call(CallOp::Recv { from: None, tag: 0, bytes: Bytes(bytes) });
    let late = issue(Activity::Sleep(SimDuration::from_us(5_000)));
    let programs = [
        vec![join(), send(8), wait(0)],
        vec![join(), recv(8), wait(0), recv(16), wait(1)],
        vec![join(), late, wait(0), send(16), wait(1)],
    ];
    let toml = "backend = \"ideal\"\n[[device]]\nname = \"a\"\ncount = 3\n[network]\n[[network.change]]\n\
        jitter = { distribution = \"uniform\", max = \"10 ms\" }\n";
    let dir = record(&programs, toml);
    let fits = |seed: &u32| replayed(&dir, &["--seed", &seed.to_string()]).0 == Exit::Ok;
    let seed = (0..20).find(fits).expect("most seeds fit").to_string();
    let (_, report) = replayed(&dir, &["--seed", &seed, "--repeat", "40"]);
    let Report { interval, warnings, .. } = report.unwrap();
    let said = warnings.iter().find(|text| text.contains("of 40 replays did not finish")).expect("some halt");
    let halted: u32 = said.split(' ').next().unwrap().parse().unwrap();
    assert_eq!((interval.unwrap().runs + halted, halted > 0), (40, true), "{said}");
    assert!(said.contains(": mismatch at "), "{said}");
    assert!(warnings.iter().any(|text| text.contains("received from any source")), "{warnings:?}");
}

/// A record without groups, like those of version 1: each rank's group has the number that it had in the recorded run,
/// in which rank 0's group was the first.
#[test]
fn a_record_whose_groups_are_others_on_the_cluster_is_refused() {
    let work = |us| Work::new(SimDuration::from_us(us), Origin::Recorded);
    let program = |rank: u32| {
        let join = Request::JoinGroup { ranks: [RankId(rank)].into(), sequence: 0, settings: None, rendezvous: false };
        let (kind, dtype, shape) = (CollectiveKind::Barrier, DType::UInt8, Shape::Even(0));
        let op = CallOp::Collective(Collective { kind, dtype, reduce: None, root: None, shape, kernel: None });
        let call = issue(Activity::Call(Call { group: GroupId(rank), op }));
        vec![issue(Activity::Compute(work(1 + u64::from(rank)))), wait(0), join, call, wait(1)]
    };
    let toml = Flags { ranks: 2, bandwidth: None, latency: None, slowdown: vec![] }.to_toml().unwrap();
    let dir = record(&[program(0), program(1)], &toml);
    assert_eq!(replayed(&dir, &[]).0, Exit::Ok);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let elsewhere = ["replay", &path(""), "--out", &path("other"), "--ranks", "2", "--slowdown", "5,1"];
    let error = run(&elsewhere).unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
    let text = error.to_string();
    assert!(
        text.contains(
            "rank 1, task 0, at 2.000 us: the record calls an operation of group 1, which is another one here"
        ),
        "{text}"
    );
    assert!(text.contains("\nhint: "), "{text}");
}
