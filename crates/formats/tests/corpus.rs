//! Kept records with the results of their replay when they were made: makespan, digest, and every figure of every rank
//! and operation are still equal to the last bit. `tests/corpus/make.py` made the records. The results on backends `nccl`
//! are those since NCCL's times follow measurements.

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufReader, Cursor, Read as _};
use std::path::{Path, PathBuf};
use uniference_formats::cluster::{Choices, ClusterFile};
use uniference_formats::record::RecordReader;
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{Engine, RunEnd};
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::replay::{OtherGroup, replay};
use uniference_sim::time::SimTime;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/corpus");

/// Number of kept records; an empty folder would prove nothing.
const CASES: usize = 35;

#[test]
fn every_figure_of_a_kept_record_stays_what_it_was() {
    let mut paths: Vec<PathBuf> = fs::read_dir(CORPUS).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    assert_eq!(paths.len(), CASES);
    let wrong: Vec<String> = paths.iter().flat_map(|path| differences(path)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Records of version 1 number groups in the order in which ranks joined them, which differs on a much faster or slower
/// network.
#[test]
fn a_record_whose_groups_are_others_elsewhere_is_refused() {
    for (case, other, on) in [
        ("calls-2", "ddp", "slow"),
        ("layers-2", "ddp", "nccl"),
        ("layers-4", "pairs", "servers"),
        ("layers-4", "pairs", "straggler"),
    ] {
        let path = |case: &str, kind: &str| Path::new(CORPUS).join(case).with_extension(kind);
        let mut record = Vec::new();
        let packed = BufReader::new(File::open(path(case, "record.gz")).unwrap());
        GzDecoder::new(packed).read_to_end(&mut record).unwrap();
        let runs: Vec<Value> = serde_json::from_str(&fs::read_to_string(path(other, "json")).unwrap()).unwrap();
        let run = runs.iter().find(|run| run["name"] == on).expect("a cluster of the corpus");
        let ended = replayed(&record, &cluster(run["cluster"].as_str().unwrap(), 0)).0;
        let RunEnd::Failed(failure) = ended else { panic!("{case} on {on}: {ended:?}") };
        assert!(failure.error.is::<OtherGroup>(), "{case} on {on}: {failure}");
    }
}

/// Differences between the replays of one record and the expected results.
fn differences(expected: &Path) -> Vec<String> {
    let runs: Vec<Value> = serde_json::from_str(&fs::read_to_string(expected).unwrap()).unwrap();
    let mut record = Vec::new();
    let packed = BufReader::new(File::open(expected.with_extension("record.gz")).unwrap());
    GzDecoder::new(packed).read_to_end(&mut record).unwrap();
    let case = expected.file_stem().unwrap().to_string_lossy();
    if runs.is_empty() {
        let recorded = RecordReader::open(Cursor::new(&record)).unwrap().header().manifest.clone();
        let halted = matches!(replayed(&record, &cluster(&recorded.cluster, recorded.seed)).0, RunEnd::Halted(_));
        return if halted { Vec::new() } else { vec![format!("{case} was halted, and is no longer")] };
    }
    let mut wrong = Vec::new();
    for mut run in runs {
        let at = format!("{case} on {}", run["name"].as_str().unwrap());
        let cluster = cluster(run["cluster"].as_str().unwrap(), run["seed"].as_u64().unwrap());
        let (ended, statistics, digest) = replayed(&record, &cluster);
        if !matches!(ended, RunEnd::Finished) {
            wrong.push(format!("{at}: {ended:?}"));
            continue;
        }
        let found = figures(&cluster, &statistics, &digest);
        for (figure, found) in found.as_object().unwrap() {
            let (expected, found) = (comparable(run[figure].take()), &comparable(found.clone()));
            if expected != *found {
                wrong.push(format!("{at}: {figure} was\n{expected}\nand is\n{found}"));
            }
        }
    }
    wrong
}

/// The figures without the one whose meaning has changed: the size of an all-to-all of equal blocks was the size of one
/// block, and is now the total of the sent bytes.
fn comparable(mut figures: Value) -> Value {
    for operation in figures.as_array_mut().into_iter().flatten() {
        if operation["operation"] == "all_to_all" {
            operation["bytes"].take();
        }
    }
    figures
}

fn cluster(toml: &str, seed: u64) -> Cluster {
    let file = ClusterFile::parse("corpus", toml, &[]).unwrap();
    let mut cluster = file.resolve(&Choices::default()).unwrap().cluster;
    cluster.dynamics.seed = seed;
    cluster
}

fn replayed(record: &[u8], cluster: &Cluster) -> (RunEnd, Statistics, Digest) {
    let (ranks, rest) = RecordReader::open(Cursor::new(record)).unwrap().by_rank();
    let mut observer = (Statistics::default(), Digest::version_1());
    let ended = replay(&mut Engine::new(cluster), ranks, &mut observer);
    rest.finish().unwrap();
    (ended, observer.0, observer.1)
}

/// The figures of a report that `make.py` has kept, as integers.
fn figures(cluster: &Cluster, statistics: &Statistics, digest: &Digest) -> Value {
    let makespan = statistics.makespan();
    let ranks = statistics.ranks().iter().zip(&cluster.devices).enumerate().map(|(rank, (figures, device))| {
        let (times, traffic) = (figures.times, figures.traffic);
        let spent = times.compute + times.exposed;
        let mut shown = json!({
            "rank": rank,
            "device": device.name,
            "finish_ps": figures.finish.map(SimTime::as_ps),
            "compute_ps": times.compute.as_ps(),
            "exposed_comm_ps": times.exposed.as_ps(),
            "late_peer_ps": times.late_peer.as_ps(),
            "no_data_ps": times.no_data.as_ps(),
            "idle_ps": makespan.since(SimTime::ZERO).saturating_sub(spent).as_ps(),
            "bytes_sent": traffic.sent.0,
            "bytes_received": traffic.received.0,
            "wire_bytes_sent": traffic.wire_sent.0,
        });
        if let Some(crash) = figures.crash {
            shown["crash_ps"] = json!(crash.as_ps());
        }
        shown
    });
    let operations = statistics.operations().map(|(operation, group, figures)| {
        json!({
            "operation": operation,
            "group": group.0,
            "count": figures.count,
            "bytes": figures.bytes.0,
            "time_ps": figures.time.as_ps(),
            "exposed_ps": figures.exposed.as_ps(),
        })
    });
    json!({
        "makespan_ps": makespan.as_ps(),
        "digest": digest.to_hex(),
        "ranks": ranks.collect::<Vec<_>>(),
        "operations": operations.collect::<Vec<_>>(),
    })
}
