//! Owns `report.json`: the figures of a run for other programs. `docs/reference/report.md` describes every field.
//!
//! `columns` declares the tables. The simulator computes the figures; [`crate::table`] shows them on a terminal.

mod columns;

pub use columns::{
    ComputeReport, JobReport, LinkReport, MemoryReport, OperationReport, PathPartReport, PhaseReport, RankReport,
    StreamReport, TABLES,
};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uniference_sim::cluster::Device;
use uniference_sim::event::StreamTimes;
use uniference_sim::ids::{GroupId, RankId};
use uniference_sim::observe::{Digest, OperationStatistics, RankStatistics, Statistics};
use uniference_sim::time::{SimDuration, SimTime};

/// Version of the format. It changes if a field changes its meaning or is removed, not if fields are added.
pub const VERSION: u32 = 2;
/// The oldest version that is read. Reports of version 1 differ only in their digest, which has version 1.
const OLDEST: u32 = 1;

/// The report of a whole run. On every rank `compute_s + exposed_comm_s + idle_s` is the makespan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this format: [`VERSION`].
    pub version: u32,
    /// The reason why the programs did not finish, in the command's words; the figures then cover the time until
    /// the failure. `None` (left out): the programs finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The latest finish of any rank, in seconds of virtual time.
    pub makespan_s: f64,
    /// The latest finish of any rank, in picoseconds of virtual time.
    pub makespan_ps: u64,
    /// Reports of the ranks, in order.
    pub ranks: Vec<RankReport>,
    /// Reports of the operations, by name and group.
    pub operations: Vec<OperationReport>,
    /// The links that have carried anything, in the cluster's order; empty (left out) if messages were not observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkReport>,
    /// Memory that ranks held at their peaks, by rank and kind, for ranks whose allocations are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryReport>,
    /// Energy of all devices together, in joules; `None` (left out): the power of some device is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Price of the run, in the currency of the devices' prices; `None` (left out): some device has no price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Digest of the run, as 64 hexadecimal digits: equal for two runs if and only if they were the same, operation by
    /// operation.
    pub digest: String,
    /// Version of the digest: digests of different versions cannot be compared. Reports of version 1 lack the field,
    /// and mean 1.
    #[serde(default = "first_digest")]
    pub digest_version: u32,
    /// The interval in which the real makespan should lie; `None` (left out): the errors are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// Throughput and utilization of a job that was generated from a language model's description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobReport>,
    /// Origins of the ranks' seconds of compute, in order of rank, the surest origin first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute: Vec<ComputeReport>,
    /// Durations of the program's named ranges, by name and rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseReport>,
    /// Times of the CUDA streams of simulated GPUs, in order of rank; for each rank all streams together come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamReport>,
    /// The critical path; `None` (left out): the causes of events were not kept, or are not all known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critical_path: Option<CriticalPathReport>,
    /// A statement of what the figures describe if the program ran in another way: its operators were captured on a CPU
    /// and costed for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// Warnings about doubtful figures, for people.
    pub warnings: Vec<String>,
    /// The data needed to run the program again.
    pub manifest: Manifest,
    /// Cost of recording a real run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorder: Option<RecorderReport>,
}

/// The interval in which the makespan of a real run should lie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Probability with which the interval should hold the real makespan: 0.95.
    pub level: f64,
    /// Lower end in seconds.
    pub low_s: f64,
    /// Upper end in seconds.
    pub high_s: f64,
    /// Standard error of the makespan in seconds that follows from the model's errors.
    pub model_error_s: f64,
    /// Number of seeds that were simulated, this run's included.
    pub runs: u32,
    /// Quantiles (2.5, 50 and 97.5 %) of the makespans of these runs, in seconds.
    pub runs_s: [f64; 3],
}

/// Cost of recording a real run: it is part of the ranks' times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecorderReport {
    /// Seconds of each rank, in order of rank.
    pub time_s: Vec<f64>,
    /// Number of calls of each rank's recorder.
    pub calls: Vec<u64>,
    /// Maximum error between times of two ranks, in seconds.
    pub clock_error_s: f64,
}

/// The critical path of the run: the end of each span let the next one start, and together the spans are the makespan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CriticalPathReport {
    /// The rank whose program ended last.
    pub rank: u32,
    /// Parts by kind, the longest first.
    pub kinds: Vec<PathPartReport>,
    /// Parts by kind, place, operation and line; the longest ones, at most 10.
    pub parts: Vec<PathPartReport>,
}

/// The kind of host memory, for a rank with a GPU: it is no part of the device's memory.
pub const HOST_MEMORY: &str = "host";

/// The data needed to run a program again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The resolved cluster as a complete cluster file.
    pub cluster: String,
    /// Versions of Uniference and of the packages that the script used, by name.
    pub versions: BTreeMap<String, String>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// The command line, word by word.
    pub command: Vec<String>,
    /// Origin of the duration of compute, as `--compute` has it: `measured`, `model`, `from=RUN`, `none`; for devices
    /// with different origins all of them, separated by commas. Empty (left out): there was no choice, as in traces, or
    /// an earlier version wrote the report.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub compute: String,
    /// Models with which operators were costed, by name: the version of the model, hashes of databases. Left out if
    /// there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, String>,
}

impl Report {
    /// The report of a run on `devices`, one per rank.
    pub fn new(statistics: &Statistics, devices: &[Device], digest: String, manifest: Manifest) -> Report {
        let makespan = statistics.makespan();
        let unfinished = RankStatistics::default();
        let of_rank = |rank: usize| statistics.ranks().get(rank).unwrap_or(&unfinished);
        let ranks: Vec<RankReport> = devices
            .iter()
            .enumerate()
            .map(|(rank, device)| rank_report(rank, device, of_rank(rank), makespan))
            .collect();
        let hours = makespan.as_secs_f64() / 3_600.0;
        let time_of_all = makespan.as_secs_f64() * devices.len() as f64;
        Report {
            version: VERSION,
            failure: None,
            makespan_s: makespan.as_secs_f64(),
            makespan_ps: makespan.as_ps(),
            energy_j: ranks.iter().map(|rank| rank.energy_j).sum::<Option<f64>>().filter(|_| !ranks.is_empty()),
            price: devices
                .iter()
                .map(|device| device.price)
                .sum::<Option<f64>>()
                .filter(|_| !ranks.is_empty())
                .map(|price| price * hours),
            ranks,
            operations: statistics
                .operations()
                .map(|(operation, group, sums)| operation_report(operation, group, sums, time_of_all))
                .collect(),
            links: Vec::new(),
            memory: Vec::new(),
            digest,
            digest_version: Digest::VERSION,
            interval: None,
            job: None,
            compute: Vec::new(),
            streams: statistics.streams().map(stream_report).collect(),
            phases: Vec::new(),
            critical_path: None,
            headline: None,
            warnings: missed_crashes(statistics, devices),
            manifest,
            recorder: None,
        }
    }

    /// Pretty JSON that ends with a newline.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings are JSON") + "\n"
    }

    /// Reads what [`Report::to_json`] wrote, in this version of the format.
    ///
    /// # Errors
    /// If the text is no JSON, lacks a field, or has an unsupported version.
    pub fn from_json(text: &str) -> Result<Report, ReportError> {
        let report: Report = serde_json::from_str(text)?;
        if (OLDEST..=VERSION).contains(&report.version) {
            Ok(report)
        } else {
            Err(ReportError::Version(report.version))
        }
    }
}

fn first_digest() -> u32 {
    1
}

/// Warnings about ranks that ended before their planned crash.
fn missed_crashes(statistics: &Statistics, devices: &[Device]) -> Vec<String> {
    let said = |(rank, (device, figures)): (usize, (&Device, &RankStatistics))| {
        let (planned, end) = device.crash.zip(figures.finish)?;
        Some(format!("rank {rank} finished at {end}, before its planned crash at {planned}"))
    };
    devices.iter().zip(statistics.ranks()).enumerate().filter_map(said).collect()
}

/// A text that is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The text cannot be parsed as a report.
    #[error("this is not a report: {0}\nhint: `uniference run` writes one to its run folder, as report.json")]
    Malformed(#[from] serde_json::Error),
    /// The report has an unsupported version.
    #[error(
        "unsupported report version {0}; the newest supported version is {VERSION}\nhint: read it with the version of Uniference that wrote it"
    )]
    Version(u32),
}

/// The figures of an operation in a run in which all ranks together have this time, in seconds.
fn operation_report(operation: &str, group: GroupId, sums: &OperationStatistics, time_of_all: f64) -> OperationReport {
    let seconds = SimDuration::as_secs_f64;
    let of_streams = sums.on_streams.as_ref();
    let exposed_s = seconds(of_streams.map_or(sums.exposed, |sums| sums.calls.exposed));
    OperationReport {
        operation: operation.to_owned(),
        group: group.0,
        count: sums.count,
        bytes: sums.bytes.0,
        time_s: seconds(of_streams.map_or(sums.time, |sums| sums.time)),
        exposed_s,
        ranks: of_streams.map(|sums| sums.ranks),
        kernel_s: of_streams.map(|sums| seconds(sums.calls.kernel)),
        overlapped_s: of_streams.map(|sums| seconds(sums.calls.overlapped)),
        late_peer_s: of_streams.map(|sums| seconds(sums.calls.late_peer)),
        bus_bandwidth: of_streams
            .map(|sums| sums.calls.bus_bytes.0 as f64 / seconds(sums.calls.kernel))
            .filter(|rate| rate.is_finite()),
        exposed_share: Some(exposed_s / time_of_all).filter(|share| share.is_finite()),
    }
}

fn stream_report((rank, stream, times): (RankId, Option<u32>, &StreamTimes)) -> StreamReport {
    StreamReport {
        rank: rank.0,
        stream,
        kernels_s: times.kernels.as_secs_f64(),
        copies_s: times.copies.as_secs_f64(),
        communication_s: times.communication.as_secs_f64(),
        exposed_comm_s: times.exposed.as_secs_f64(),
    }
}

fn rank_report(rank: usize, device: &Device, statistics: &RankStatistics, makespan: SimTime) -> RankReport {
    let RankStatistics { finish, crash, times, traffic } = statistics;
    let spent = times.compute + times.exposed + times.idle;
    let after = makespan.since(SimTime::ZERO).saturating_sub(spent);
    let seconds = SimDuration::as_secs_f64;
    RankReport {
        rank: u32::try_from(rank).expect("ranks are numbered in 32 bits"),
        device: device.name.clone(),
        finish_ps: finish.map(SimTime::as_ps),
        crash_ps: crash.map(SimTime::as_ps),
        compute_s: seconds(times.compute),
        exposed_comm_s: seconds(times.exposed),
        late_peer_s: seconds(times.late_peer),
        no_data_s: seconds(times.no_data),
        idle_s: seconds(times.idle + after),
        bytes_sent: traffic.sent.0,
        bytes_received: traffic.received.0,
        wire_bytes_sent: traffic.wire_sent.0,
        energy_j: device.power.map(|power| power.energy(makespan.since(SimTime::ZERO), times.compute)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use uniference_sim::device::Power;
    use uniference_sim::event::{Event, Observer, Times, Traffic, WaitReason};
    use uniference_sim::ids::{GroupId, Handle, HostId, RankId, Site};
    use uniference_sim::program::{Call, CallOp, Collective, CollectiveKind, DType, Outcome, Shape};
    use uniference_sim::time::Bytes;

    pub(crate) fn all_reduce(elements: u64) -> Call {
        let collective = Collective {
            kind: CollectiveKind::AllReduce,
            dtype: DType::Float32,
            reduce: None,
            root: None,
            shape: Shape::Even(elements),
            kernel: None,
        };
        Call { group: GroupId(0), op: CallOp::Collective(collective) }
    }

    /// A report of `ranks` ranks, of which rank 1 computes longest.
    pub(crate) fn sample(ranks: u32) -> Report {
        let mut statistics = Statistics::default();
        let us = SimDuration::from_us;
        for rank in 0..ranks {
            let (rank_id, call, bytes) = (RankId(rank), &all_reduce(256 * 1024), Bytes(1 << 20));
            let issued = Event::Issued {
                rank: rank_id,
                handle: Handle(0),
                call,
                bytes,
                site: Site(0),
                task: Default::default(),
            };
            statistics.record(SimTime::ZERO, &issued);
            let compute = us(if rank == 1 { 1_500 } else { 1_000 + u64::from(rank) });
            let times = Times { compute, exposed: us(500), late_peer: us(250), idle: us(1), ..Times::default() };
            let traffic = Traffic { sent: Bytes(1 << 20), received: Bytes(3 << 19), wire_sent: Bytes(1_096_000) };
            let at = SimTime::ZERO + compute + us(501);
            statistics.record(
                at,
                &Event::Finished {
                    rank: RankId(rank),
                    outcome: Outcome::Ok,
                    times,
                    traffic,
                    cause: Default::default(),
                },
            );
        }
        let device = |rank| Device::new(format!("orin.{rank}"), HostId(rank));
        let manifest = Manifest {
            cluster: "name = \"two\"\nbackend = \"gloo\"\n[network]\nlatency = \"10 us\"\n".to_owned(),
            versions: BTreeMap::from([("uniference".to_owned(), "0.1.0".to_owned())]),
            seed: 7,
            command: vec!["uniference".to_owned(), "run".to_owned()],
            compute: "model".to_owned(),
            models: BTreeMap::from([("devices".to_owned(), "1".to_owned())]),
        };
        Report::new(&statistics, &(0..ranks).map(device).collect::<Vec<_>>(), "00ff".to_owned(), manifest)
    }

    #[test]
    fn a_report_is_json_that_reads_back() {
        let report = sample(2);
        insta::assert_snapshot!(report.to_json());
        assert_eq!(Report::from_json(&report.to_json()).unwrap(), report);
    }

    #[test]
    fn compute_exposed_and_idle_add_up_to_the_makespan() {
        let report = sample(5);
        for rank in &report.ranks {
            // compute + exposed + idle = makespan, to the rounding of a float
            let sum = rank.compute_s + rank.exposed_comm_s + rank.idle_s;
            assert!((sum - report.makespan_s).abs() < 1e-15, "rank {}", rank.rank);
        }
        assert_eq!(report.makespan_ps, 2_001_000_000);
    }

    /// Both of two ranks wait 500 us for an operation in a run of 2001 us: 2 * 500 / (2 * 2001).
    #[test]
    fn an_operation_has_its_share_of_the_time_of_all_ranks() {
        let mut statistics = Statistics::default();
        for rank in [RankId(0), RankId(1)] {
            let event = Event::Waited {
                rank,
                task: Default::default(),
                start: SimTime::ZERO,
                reason: WaitReason::Communication,
                exposed: SimDuration::from_us(500),
                late_peer: SimDuration::ZERO,
                no_data: SimDuration::ZERO,
                handles: &[],
                call: Some(&all_reduce(1)),
                site: Site(0),
                cause: Default::default(),
            };
            statistics.record(SimTime::from_ps(500_000_000), &event);
            let (at, times, traffic) = (SimTime::from_ps(2_001_000_000), Times::default(), Traffic::default());
            let cause = Default::default();
            statistics.record(at, &Event::Finished { rank, outcome: Outcome::Ok, times, traffic, cause });
        }
        let devices = [0, 1].map(|rank| Device::new("a", HostId(rank)));
        let report = Report::new(&statistics, &devices, String::new(), Manifest::default());
        assert_eq!(report.operations[0].exposed_share, Some(1e-3 / (2.0 * 2.001e-3)));
    }

    #[test]
    fn a_rank_that_did_not_finish_says_so() {
        let device = Device::new("a", HostId(0));
        let report = Report::new(&Statistics::default(), &[device], String::new(), Manifest::default());
        assert_eq!(report.ranks[0].finish_ps, None);
    }

    #[test]
    fn energy_and_price_are_those_of_all_devices_or_of_none() {
        let power = Some(Power { idle: 50.0, busy: 250.0 });
        let device = Device { power, price: Some(3.6), ..Device::new("a", HostId(0)) };
        let mut statistics = Statistics::default();
        let second = SimTime::from_ps(1_000_000_000_000);
        let times =
            Times { compute: SimDuration::from_us(250_000), idle: SimDuration::from_us(750_000), ..Times::default() };
        for rank in [RankId(0), RankId(1)] {
            let traffic = Traffic::default();
            statistics.record(
                second,
                &Event::Finished { rank, outcome: Outcome::Ok, times, traffic, cause: Default::default() },
            );
        }
        let report = |devices: &[Device]| Report::new(&statistics, devices, String::new(), Manifest::default());
        // A second of 50 W and a quarter of the further 200 W, on each of two devices; an hour of each costs 3.6.
        let known = report(&[device.clone(), device.clone()]);
        assert_eq!((known.ranks[1].energy_j, known.energy_j, known.price), (Some(100.0), Some(200.0), Some(0.002)));
        let mixed = report(&[device, Device::new("b", HostId(0))]);
        assert_eq!((mixed.ranks[0].energy_j, mixed.energy_j, mixed.price), (Some(100.0), None, None));
    }

    #[test]
    fn a_report_of_version_1_is_read() {
        let mut before = serde_json::to_value(sample(2)).unwrap();
        before["version"] = 1.into();
        before.as_object_mut().unwrap().remove("digest_version");
        let read = Report::from_json(&before.to_string()).unwrap();
        assert_eq!(read, Report { version: 1, digest_version: 1, ..sample(2) });
    }

    #[test]
    fn what_is_no_report_of_this_version_is_refused() {
        let newer = sample(1).to_json().replace("\"version\": 2", "\"version\": 9");
        let shown = [Report::from_json(&newer), Report::from_json("{}")].map(|read| read.unwrap_err().to_string());
        insta::assert_snapshot!(shown.join("\n\n"));
    }

    /// The keys of all objects inside a value.
    fn keys(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(entries) => entries.iter().for_each(|(key, value)| {
                found.push(key.clone());
                keys(value, found);
            }),
            serde_json::Value::Array(elements) => elements.iter().for_each(|element| keys(element, found)),
            _ => {}
        }
    }

    /// The tables are generated from the columns.
    #[test]
    fn every_field_is_documented() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/report.md");
        let documentation = std::fs::read_to_string(page).unwrap();
        let mut report = sample(1);
        report.manifest.versions.clear();
        (report.energy_j, report.price, report.headline) = (Some(1.0), Some(1.0), Some(String::new()));
        (report.job, report.phases) = (Some(JobReport::default()), vec![PhaseReport::default()]);
        (report.compute, report.memory) = (vec![ComputeReport::default()], vec![MemoryReport::default()]);
        report.recorder = Some(RecorderReport { time_s: vec![], calls: vec![], clock_error_s: 0.0 });
        let mut fields = Vec::new();
        keys(&serde_json::to_value(report).unwrap(), &mut fields);
        assert!(fields.len() > 20);
        for field in fields {
            assert!(documentation.contains(&format!("`{field}`")), "{field} is not documented");
        }
    }
}
