//! Internal state of the engine that no request can query.

use super::{Engine, Resumption, Turn};
use crate::cluster::{Backend, Cluster, Device};
use crate::collective::choose::AlgorithmTable;
use crate::ids::{GroupId, GroupRank, Handle, HostId, QueueId, RankId, Site, TaskId};
use crate::network::{HostSpec, LinkSpec, Preset, Topology};
use crate::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, DType, Mark, Origin, Outcome, Reply, Request, Shape, StoreOp,
    Work,
};
use crate::time::{Bytes, Rate, SimDuration};
use std::sync::Arc;

/// Two ranks, 1 GB/s and 5 us apart.
fn pair() -> Cluster {
    let hosts: Vec<HostSpec> = ["a", "b"].map(HostSpec::new).into();
    let link = LinkSpec::new(Rate::new(1e9).unwrap(), SimDuration::from_us(5));
    let device = |rank: usize| Device::new(hosts[rank].name.clone(), HostId::from(rank));
    Cluster {
        name: "pair".into(),
        devices: vec![device(0), device(1)],
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

fn issue(activity: Activity, queue: u32, after: Vec<Handle>) -> Request {
    Request::Issue { activity, queue: QueueId(queue), after, site: Site(0) }
}

fn call(op: CallOp) -> Activity {
    Activity::Call(Call { group: GroupId(0), op })
}

fn compute(ps: u64) -> Activity {
    Activity::Compute(Work::new(SimDuration::from_ps(ps), Origin::Recorded))
}

fn wait(handles: Vec<Handle>, timeout: Option<u64>) -> Request {
    Request::Wait { handles, any: false, timeout: timeout.map(SimDuration::from_ps), site: Site(0) }
}

/// Submits one request of the rank's task and runs until it is answered.
fn ask(engine: &mut Engine, rank: u32, request: Request) -> Reply {
    engine.submit(RankId(rank), TaskId(0), request);
    match engine.next(&mut ()) {
        Turn::Resume(Resumption { rank: answered, reply, .. }) if answered == RankId(rank) => reply,
        other => panic!("{other:?}"),
    }
}

/// Two started ranks, the second of which has ended.
fn alone(cluster: &Cluster) -> Engine {
    let mut engine = Engine::new(cluster);
    for _ in 0..2 {
        assert!(matches!(engine.next(&mut ()), Turn::Resume(Resumption { reply: Reply::Start, .. })));
    }
    engine.submit(RankId(1), TaskId(0), Request::Exit(Outcome::Ok));
    engine
}

#[test]
fn what_is_never_awaited_is_forgotten_when_it_is_complete() {
    let mut engine = Engine::new(&pair());
    let world: Arc<[RankId]> = [RankId(0), RankId(1)].into();
    let all_reduce = Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::UInt8,
        reduce: Some(crate::program::ReduceOp::Sum),
        root: None,
        shape: Shape::Even(4),
        kernel: None,
    };
    let key = || b"k".to_vec();
    let (mut most, mut requests, mut issued) = (0, [0_u64; 2], [0; 2]);
    while requests[0] < 9 * 14_000 {
        let Turn::Resume(Resumption { rank, reply, .. }) = engine.next(&mut ()) else { panic!("both ranks go on") };
        let names = matches!(reply, Reply::Start | Reply::Group(_));
        if let Reply::Issued(handle) = reply {
            issued[rank.index()] = handle.0;
        }
        let (peer, last) = (GroupRank(1 - rank.0), Handle(issued[rank.index()]));
        let request = match (reply, requests[rank.index()] % 9) {
            (Reply::Start, _) => {
                Request::JoinGroup { ranks: world.clone(), sequence: 0, settings: None, rendezvous: false }
            }
            // A receive that nothing is ever sent for stays at the head of the table.
            (Reply::Group(_), _) => issue(call(CallOp::Recv { from: Some(peer), tag: 9, bytes: Bytes(1) }), 0, vec![]),
            (_, 0) => issue(Activity::Mark(Mark::Begin("step".into())), 0, vec![]),
            (_, 1) => issue(compute(1_000), 1, vec![last]),
            (_, 2) => issue(call(CallOp::Send { to: peer, tag: 1, bytes: Bytes(8) }), 0, vec![last]),
            (_, 3) => issue(call(CallOp::Recv { from: Some(peer), tag: 1, bytes: Bytes(8) }), 0, vec![]),
            (_, 4) => issue(call(CallOp::Collective(all_reduce.clone())), 0, vec![]),
            (_, 5) => issue(Activity::Store(StoreOp::Set { key: key(), value: key() }), 0, vec![]),
            (_, 6) => issue(Activity::Mark(Mark::End), 0, vec![]),
            // Only the sleep is awaited: when the sleep ends, all earlier activities are complete.
            (_, 7) => issue(Activity::Sleep(SimDuration::from_us(50)), 2, vec![]),
            (_, _) => wait(vec![last], None),
        };
        requests[rank.index()] += u64::from(!names);
        engine.submit(rank, TaskId(0), request);
        most = most.max(engine.ranks.iter().map(|rank| rank.activities.len()).max().unwrap());
    }
    assert!(engine.ranks[0].activities.next_handle().0 > 100_000);
    // The allowed size of the table covers the receive, and the activities of two rounds in flight.
    assert!(most <= 16, "{most} activities were kept at once");
}

#[test]
fn a_handle_that_is_forgotten_is_complete_to_whoever_names_it() {
    let mut engine = alone(&pair());
    let Reply::Issued(first) = ask(&mut engine, 0, issue(compute(1_000), 0, vec![])) else { panic!() };
    let Reply::Issued(second) = ask(&mut engine, 0, issue(compute(5_000), 0, vec![])) else { panic!() };
    assert_eq!(ask(&mut engine, 0, wait(vec![second], None)), Reply::Complete(vec![second]));
    assert_eq!(engine.ranks[0].activities.len(), 0);
    let at = engine.clock(RankId(0));
    assert_eq!(at.as_ps(), 6_000);
    for _ in 0..2 {
        assert_eq!(ask(&mut engine, 0, wait(vec![first, second], None)), Reply::Complete(vec![first, second]));
    }
    let Reply::Issued(third) = ask(&mut engine, 0, issue(compute(1), 0, vec![first, second])) else { panic!() };
    assert_eq!(engine.clock(RankId(0)), at);
    assert_eq!(ask(&mut engine, 0, wait(vec![third], None)), Reply::Complete(vec![third]));
    assert_eq!(engine.clock(RankId(0)).as_ps(), 6_001);
}

#[test]
fn what_a_wait_gave_up_on_is_forgotten_when_it_is_complete() {
    let mut engine = alone(&pair());
    let Reply::Issued(short) = ask(&mut engine, 0, issue(compute(1_000), 0, vec![])) else { panic!() };
    let Reply::Issued(long) = ask(&mut engine, 0, issue(compute(9_000), 1, vec![])) else { panic!() };
    assert_eq!(ask(&mut engine, 0, wait(vec![short, long], Some(5_000))), Reply::TimedOut);
    assert_eq!(engine.ranks[0].activities.open().map(|(handle, _)| handle).collect::<Vec<_>>(), [long]);
    assert_eq!(engine.ranks[0].activities.len(), 1);
    assert_eq!(
        ask(&mut engine, 0, issue(Activity::Sleep(SimDuration::from_ps(9_000)), 0, vec![])),
        Reply::Issued(Handle(2))
    );
    assert_eq!(ask(&mut engine, 0, wait(vec![Handle(2)], None)), Reply::Complete(vec![Handle(2)]));
    assert_eq!(engine.ranks[0].activities.len(), 0);
}
