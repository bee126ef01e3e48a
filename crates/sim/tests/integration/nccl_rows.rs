//! Simulated times of NCCL's collectives on one idle server, compared with rows of nccl-tests
//! (`tests/data/nccl/README.md`).

use crate::nccl::{host, issue_of, near, server};
use crate::support::*;
use std::collections::BTreeMap;
use uniference_sim::cluster::Cluster;
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce, AllToAll, ReduceScatter};

const ROWS: &str = include_str!("../data/nccl/nccl_tests.csv");
const KINDS: [(&str, CollectiveKind); 4] =
    [("all_reduce", AllReduce), ("all_gather", AllGather), ("reduce_scatter", ReduceScatter), ("alltoall", AllToAll)];
/// Rate of the links in B/s, by GPU: NCCL's own figures for NVLink, and the payload of PCI Express 4.0 with 16 lanes.
const LINKS: [(&str, f64); 4] = [("a100_sxm", 240e9), ("h100_sxm", 360e9), ("b200_sxm", 720e9), ("l40s", 25e9)];

struct Row {
    gpu: &'static str,
    kind: CollectiveKind,
    ranks: u32,
    bytes: u64,
    microseconds: f64,
}

/// Rows of the versions of NCCL that are modelled: 2.23 is older.
fn rows() -> impl Iterator<Item = Row> {
    let rows = ROWS.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.filter(|row| row[1] != "nccl/2.23").map(|row| Row {
        gpu: row[0],
        kind: KINDS.iter().find(|(name, _)| *name == row[2]).unwrap().1,
        ranks: row[4].parse().unwrap(),
        bytes: row[6].parse().unwrap(),
        microseconds: row[7].parse().unwrap(),
    })
}

/// One server, in which each GPU has a link of its own.
fn cluster(gpu: &str, ranks: u32) -> Cluster {
    server(ranks, rate(gpu))
}

fn rate(gpu: &str) -> f64 {
    LINKS.into_iter().find(|(name, _)| *name == gpu).unwrap().1
}

/// Microseconds of a collective whose blocks are `bytes` together.
fn simulated(cluster: &Cluster, kind: CollectiveKind, bytes: u64) -> f64 {
    let ranks = cluster.devices.len();
    let block = if kind == AllReduce { bytes } else { bytes / ranks as u64 };
    let outcomes = run(cluster, vec![vec![issue_of(kind, block), wait(0)]; ranks]);
    (0..ranks).map(|rank| outcomes.finish(rank)).max().unwrap() as f64 * 1e-6
}

/// Sizes and errors (simulated over measured time, less one) of all rows, by GPU, kind and number of ranks.
type Errors = BTreeMap<(&'static str, CollectiveKind, u32), Vec<(u64, f64)>>;

fn errors() -> Errors {
    let mut errors = Errors::new();
    let mut times = BTreeMap::new();
    for Row { gpu, kind, ranks, bytes, microseconds } in rows() {
        let simulate = || simulated(&cluster(gpu, ranks), kind, bytes);
        let time = times.entry((gpu, kind, ranks, bytes)).or_insert_with(simulate);
        errors.entry((gpu, kind, ranks)).or_default().push((bytes, *time / microseconds - 1.0));
    }
    errors
}

/// The value that a part of the absolute errors does not exceed.
fn quantile(errors: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut all: Vec<f64> = errors.map(f64::abs).collect();
    all.sort_by(f64::total_cmp);
    all[(part * (all.len() - 1) as f64).round() as usize]
}

#[test]
fn rows_of_nccl_tests_are_met() {
    let errors = errors();
    let of = |gpu: &'static str| {
        let matching = errors.iter().filter(move |((name, ..), _)| gpu.is_empty() || *name == gpu);
        matching.flat_map(|(_, rows)| rows.iter().map(|(_, error)| *error))
    };
    assert_eq!(of("").count(), 2772);
    for (gpu, median, most) in [
        ("", 0.06, 0.17),
        ("a100_sxm", 0.08, 0.17),
        ("h100_sxm", 0.06, 0.13),
        ("b200_sxm", 0.06, 0.16),
        ("l40s", 0.1, 0.28),
    ] {
        let found = [quantile(of(gpu), 0.5), quantile(of(gpu), 0.9)];
        println!("{gpu:9} median {:.3}, 90 % within {:.3}", found[0], found[1]);
        assert!(found[0] <= median && found[1] <= most, "{gpu}: median {}, 90 % within {}", found[0], found[1]);
    }
}

/// The mean error of each kind, number of ranks and decade of sizes. The L40S servers are a single machine whose rates
/// through the host's memory differ between runs by a factor of two.
#[test]
fn every_class_of_rows_is_met() {
    for ((gpu, kind, ranks), rows) in errors() {
        let mut decades: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (bytes, error) in rows {
            decades.entry(bytes.ilog10()).or_default().push(error);
        }
        let most = if gpu == "l40s" { 0.4 } else { 0.3 };
        for (decade, errors) in decades {
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            assert!(mean.abs() <= most, "{gpu}, {kind} of {ranks} from 10^{decade} B: {mean}");
        }
    }
}

/// On one idle host, GPUs that share a link have the times of GPUs with links of their own.
#[test]
fn a_shared_link_has_the_times_of_links_of_their_own() {
    for (_, kind) in KINDS {
        for ranks in [2, 4, 8] {
            for bytes in [1 << 10, 1 << 20, 1 << 28] {
                let [own, shared] =
                    [cluster("l40s", ranks), host(ranks, rate("l40s"))].map(|c| simulated(&c, kind, bytes));
                near(shared, own, 0.01);
            }
        }
    }
}

/// A call of twice as many bytes never ends earlier. Between such sizes NCCL leaves `Ll` too late for some calls.
#[test]
fn larger_calls_last_longer() {
    let kinds = || KINDS.iter().flat_map(|(_, kind)| [2, 4, 8].map(|ranks| (*kind, ranks)));
    for (gpu, _) in LINKS {
        for (kind, ranks) in kinds() {
            let cluster = cluster(gpu, ranks);
            let times: Vec<f64> = (9..31).map(|log| simulated(&cluster, kind, 1 << log)).collect();
            // Shares of links are rounded to a thousandth: of the 24 thousandths of eight L40S with `Ll`, to 2 %.
            let rounding = if gpu == "l40s" { 0.98 } else { 0.999 };
            let grows = times.is_sorted_by(|smaller, larger| *larger >= smaller * rounding);
            assert!(grows, "{gpu}, {kind} of {ranks}: {times:?}");
        }
    }
}
