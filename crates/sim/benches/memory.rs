//! Memory of activities that no program ever waits for: the process's resident memory after every million activities.
//! The memory must not grow.

use std::sync::Arc;
use uniference_sim::cluster::{Backend, Cluster, Device};
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::engine::{Engine, Resumption, Turn};
use uniference_sim::ids::{GroupId, GroupRank, Handle, HostId, QueueId, RankId, Site, TaskId};
use uniference_sim::network::{HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::program::{Activity, Call, CallOp, Mark, Origin, Reply, Request, Work};
use uniference_sim::time::{Bytes, Rate, SimDuration};

const ACTIVITIES: u64 = 10_000_000;
/// Growth that allocators and tables may cause in steps.
const SLACK_KB: u64 = 2_048;

fn main() {
    let mut engine = Engine::new(&cluster());
    let world: Arc<[RankId]> = [RankId(0), RankId(1)].into();
    let (mut issued, mut held) = (0, Vec::new());
    println!("{:>12} {:>12}", "activities", "resident kB");
    while issued < ACTIVITIES {
        let Turn::Resume(Resumption { rank, reply, .. }) = engine.next(&mut ()) else { panic!("both ranks go on") };
        let request = match reply {
            Reply::Start => Request::JoinGroup { ranks: world.clone(), sequence: 0, settings: None, rendezvous: false },
            Reply::Issued(Handle(number)) if number % 7 < 6 => issue(rank, number % 7 + 1),
            Reply::Issued(sleep) => Request::Wait { handles: vec![sleep], any: false, timeout: None, site: Site(0) },
            _ => issue(rank, 0),
        };
        if let Request::Issue { .. } = request {
            issued += 1;
            if issued % (ACTIVITIES / 10) == 0 {
                held.push(resident_kb());
                println!("{issued:>12} {:>12}", held[held.len() - 1]);
            }
        }
        engine.submit(rank, TaskId(0), request);
    }
    let (first, last) = (held[0], held[held.len() - 1]);
    assert!(last <= first + SLACK_KB, "memory has grown from {first} kB to {last} kB");
}

/// A rank's `number`-th of seven activities. Only the last one, a sleep, is awaited: all others are complete when it
/// ends.
fn issue(RankId(rank): RankId, number: u32) -> Request {
    let peer = GroupRank(1 - rank);
    let call = |op| Activity::Call(Call { group: GroupId(0), op });
    let activity = match number {
        0 => Activity::Mark(Mark::Begin("step".into())),
        1 | 2 => Activity::Compute(Work::new(SimDuration::from_us(1), Origin::Recorded)),
        3 => call(CallOp::Send { to: peer, tag: 1, bytes: Bytes(8) }),
        4 => call(CallOp::Recv { from: Some(peer), tag: 1, bytes: Bytes(8) }),
        5 => Activity::Mark(Mark::End),
        _ => Activity::Sleep(SimDuration::from_us(50)),
    };
    Request::Issue { activity, queue: QueueId(number % 2), after: vec![], site: Site(0) }
}

/// Resident memory of this process (`VmRSS`).
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says what a process holds");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

/// Two hosts with 1 GB/s and 5 us between them.
fn cluster() -> Cluster {
    let hosts = ["a", "b"].map(HostSpec::new);
    let link = LinkSpec::new(Rate::new(1e9).unwrap(), SimDuration::from_us(5));
    let device = |rank: usize| Device::new(["a", "b"][rank], HostId::from(rank));
    let algorithms = AlgorithmTable::ideal();
    Cluster {
        name: "bench".into(),
        devices: (0..2).map(device).collect(),
        topology: Topology::preset(&Preset::Switch, &hosts, link).unwrap(),
        dynamics: Default::default(),
        backend: Backend {
            name: "ideal".into(),
            algorithms,
            concurrency: 1,
            protocol: Default::default(),
            free: Default::default(),
        },
    }
}
