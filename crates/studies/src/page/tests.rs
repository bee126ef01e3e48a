//! Tests of operations with known lower bounds, and of texts on a page.

use super::*;
use std::sync::Arc;
use uniference_formats::cluster::{Choices, ClusterFile};
use uniference_formats::report::Manifest;
use uniference_sim::collective::choose::algorithms_for;
use uniference_sim::engine::{Engine, RunEnd};
use uniference_sim::ids::{GroupId, GroupRank, Handle, QueueId, RankId, Site, TaskId};
use uniference_sim::observe::Statistics;
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, DType, Outcome, ReduceOp, Request, Shape,
};
use uniference_sim::replay::{RecordedStep, replay};
use uniference_sim::time::{Bytes, SimDuration};

fn cluster(toml: &str) -> Cluster {
    ClusterFile::parse("test", toml, &[]).unwrap().resolve(&Choices::default()).unwrap().cluster
}

/// Devices `a.0` and so on, one per host, with this backend and these lines about the network.
fn hosts(count: usize, backend: &str, network: &str) -> Cluster {
    cluster(&format!("backend = \"{backend}\"\n[[device]]\nname = \"a\"\ncount = {count}\n[network]\n{network}"))
}

/// Data of a run in which the ranks sleep for so many microseconds each and then make this call.
fn seen(cluster: &Cluster, sleeps: &[u64], call: impl Fn(u32) -> Option<CallOp>) -> Seen {
    let world: Arc<[RankId]> = (0..sleeps.len() as u32).map(RankId).collect();
    let issue = |activity| Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(0) };
    let script = |(rank, us): (u32, &u64)| {
        let sleep = issue(Activity::Sleep(SimDuration::from_us(*us)));
        let call = call(rank).map(|op| issue(Activity::Call(Call { group: GroupId(0), op })));
        let wait = |handle| Request::Wait { handles: vec![Handle(handle)], any: false, timeout: None, site: Site(0) };
        let waited = call.is_some().then(|| wait(1));
        let join = Request::JoinGroup { ranks: Arc::clone(&world), sequence: 0, settings: None, rendezvous: false };
        let all = [Some(join), Some(sleep), Some(wait(0)), call, waited, Some(Request::Exit(Outcome::Ok))];
        all.into_iter()
            .flatten()
            .map(|request| (TaskId(0), RecordedStep::from(request)))
            .collect::<Vec<_>>()
            .into_iter()
    };
    let ranks = (0..).zip(sleeps).map(script).collect();
    let mut observer = (Watched::simulated(cluster), Statistics::default());
    assert!(matches!(replay(&mut Engine::new(cluster), ranks, &mut observer), RunEnd::Finished));
    observer.0.finish(None, &Held::default())
}

fn collective(kind: CollectiveKind, elements: u64) -> CallOp {
    use CollectiveKind::{AllReduce, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    CallOp::Collective(Collective {
        kind,
        dtype: DType::UInt8,
        reduce: matches!(kind, AllReduce | Reduce | ReduceScatter).then_some(ReduceOp::Sum),
        root: matches!(kind, Broadcast | Gather | Reduce | Scatter).then_some(GroupRank(1)),
        shape: Shape::Even(if kind == CollectiveKind::Barrier { 0 } else { elements }),
        kernel: None,
    })
}

fn only(seen: &Seen) -> &OperationsRow {
    let [row] = &seen.operations[..] else { panic!("one operation: {:?}", seen.operations) };
    row
}

#[test]
fn a_ring_on_a_switch_needs_little_more_than_the_bound() {
    let network = "bandwidth = \"1 GB/s\"\nlatency = \"10 us\"\n";
    let seen =
        seen(&hosts(4, "ideal", network), &[0, 0, 0, 30], |_| Some(collective(CollectiveKind::AllReduce, 4_000_000)));
    let row = only(&seen);
    // 2 (4 - 1) * 4 MB through 4 links of 1 GB/s, and the latency of the last byte; the ring has the latency of 6
    // steps.
    assert_eq!(row.bound_s, Some(6e-3 + 10e-6));
    assert!((row.time_s - (6e-3 + 60e-6 + 30e-6)).abs() < 1e-9, "{row:?}");
    assert_eq!((row.members, row.count, row.bytes, row.late_s), (4, 1, 4e6, 30e-6));
}

/// All bytes share the link of a radio channel: 3 hosts need at least 4 n bytes' time on it to all-reduce `n` bytes.
#[test]
fn a_shared_medium_bounds_all_hosts_together() {
    let network = "preset = \"wifi\"\nbandwidth = \"1 GB/s\"\nlatency = \"0 us\"\n";
    let seen = seen(&hosts(3, "ideal", network), &[0; 3], |_| Some(collective(CollectiveKind::AllReduce, 3_000_000)));
    assert_eq!(only(&seen).bound_s, Some(12e-3));
    assert!(only(&seen).time_s >= 12e-3);
}

#[test]
fn a_message_is_bounded_by_the_slowest_link_of_its_route() {
    let network = "bandwidth = \"1 GB/s\"\nlatency = \"10 us\"\n[network.host.\"a.1\"]\nbandwidth = \"100 MB/s\"\n";
    let call = |rank| match rank {
        0 => Some(CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(1_000_000) }),
        1 => Some(CallOp::Recv { from: Some(GroupRank(0)), tag: 0, bytes: Bytes(1_000_000) }),
        _ => None,
    };
    let seen = seen(&hosts(3, "ideal", network), &[0, 50, 0], call);
    let row = only(&seen);
    // 1 MB at 100 MB/s, and 10 us on the way.
    let bound = row.bound_s.unwrap();
    assert!((bound - 10.01e-3).abs() < 1e-12, "{bound}");
    assert!(row.time_s >= bound, "{row:?}");
    assert_eq!((row.operation, row.late_s), ("send", 50e-6));
}

/// No operation is faster than its bound, for any network, algorithm and late peer.
#[test]
fn no_operation_is_faster_than_its_bound() {
    let link = "bandwidth = \"1 Gbps\"\nlatency = \"20 us\"\n";
    let slow = "[network.host.\"a.2\"]\nbandwidth = \"50 Mbps\"\nlatency = \"1 ms\"\n";
    let changes =
        "[[network.change]]\nlink = \"a.1 -> switch\"\nprofile = [{ at = \"0 s\", bandwidth = \"4 Gbps\" }]\n";
    let networks = [
        (6, link.to_owned()),
        (6, format!("{link}{slow}")),
        (6, format!("{link}{changes}")),
        (5, format!("preset = \"wifi\"\n{link}")),
        (6, format!("preset = \"ring\"\n{link}")),
        (8, format!("preset = \"fat_tree\"\nhosts_per_leaf = 2\nspines = 2\n{link}")),
        (
            8,
            format!(
                "preset = \"rail\"\nper_server = 4\nfabric = {{ bandwidth = \"10 Gbps\", latency = \"2 us\" }}\n{link}"
            ),
        ),
        (4, format!("preset = \"star\"\nbackplane = \"500 Mbps\"\n{link}")),
    ];
    let mut compared = 0;
    for (count, network) in networks {
        for backend in ["ideal", "gloo", "nccl"] {
            for kind in CollectiveKind::ALL {
                for algorithm in algorithms_for(kind) {
                    if algorithm.library().is_some_and(|library| library != backend) {
                        continue;
                    }
                    let choice = format!("[collective]\n{kind} = \"{}\"\n", algorithm.name());
                    let toml = format!(
                        "backend = \"{backend}\"\n[[device]]\nname = \"a\"\ncount = {count}\n[network]\n{network}{choice}"
                    );
                    let Ok(file) = ClusterFile::parse("test", &toml, &[]) else { panic!("{toml}") };
                    let Ok(resolved) = file.resolve(&Choices::default()) else { continue };
                    for (elements, sleeps) in
                        [(100_000, vec![0; count]), (64, (0..count as u64).map(|rank| 100 * rank).collect())]
                    {
                        let seen = seen(&resolved.cluster, &sleeps, |_| Some(collective(kind, elements)));
                        let row = only(&seen);
                        let bound = row.bound_s.expect("hosts differ");
                        assert!(row.time_s >= bound * (1.0 - 1e-9), "{row:?}\n{toml}");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
}

/// A name that would end its element, or begin another one, is text.
#[test]
fn texts_of_a_run_stay_texts() {
    let report =
        Report::new(&Statistics::default(), &[], "</script><script>alert(1)//".to_owned(), Manifest::default());
    let run = RunPage { name: "<!--".to_owned(), report, seen: None, what_if: None, missing: Vec::new() };
    let page = render(&[run]);
    assert!(
        !page.contains("alert(1)//\"") || page.contains("\\u003c/script>\\u003cscript>alert(1)//"),
        "{}",
        page.len()
    );
    assert!(page.contains("\"name\":\"\\u003c!--\""));
    // Data, notice, library, the page's own.
    assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (4, 4));
    for place in ["<!--style-->", "<!--data-->", "<!--notice-->", "<!--library-->", "<!--script-->"] {
        assert!(!page.contains(place), "{place}");
    }
}

/// The scripts name only tables that exist.
#[test]
fn scripts_follow_the_tables_of_reports() {
    let named: Vec<&str> = RUNS.split("columnsOf(\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(named.len() > 4 && named.iter().all(|name| TABLES.iter().any(|(table, _)| table == name)), "{named:?}");
}

/// No file is fetched: the policy forbids it, and no element names another file.
#[test]
fn a_page_needs_no_other_file() {
    let page = render(&[]);
    assert!(page.contains("default-src 'none'"));
    for reference in ["src=", "<link", "@import", "url("] {
        let own = [PAGE, STYLE, SCRIPTS[0], SCRIPTS[1], SCRIPTS[2], RUNS, SWEEP];
        assert!(own.iter().all(|part| !part.contains(reference)), "{reference}");
    }
    assert!(page.contains("version=\"6.1.0\""), "ARCHITECTURE.md and the notice name the version");
    assert!(page.len() < 3 << 20, "{}", page.len());
}
