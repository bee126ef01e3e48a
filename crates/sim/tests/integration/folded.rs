//! Runs in which one rank stands for all that are alike: every rank's figures are those of the run with all of them, to the picosecond,
//! and what is not alike is refused.

use crate::support::{forced, switch};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use uniference_sim::cluster::{Cluster, Device};
use uniference_sim::collective::choose::algorithms_for;
use uniference_sim::engine::{Cause, Ended, Engine, drive};
use uniference_sim::ids::{GroupId, GroupRank, Handle, HostId, QueueId, RankId, Site, TaskId};
use uniference_sim::network::{Dimension, DimensionKind, HostRates, HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce, AllToAll, Barrier, ReduceScatter};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, DType, Origin, Outcome, Program, ReduceOp, Reply, Request, Shape, Work,
};
use uniference_sim::record::{RankStatistics, Statistics};
use uniference_sim::symmetry::{Axis, Relabeling, Symmetry};
use uniference_sim::time::{Bytes, Rate, SimDuration, SimTime};

/// A grid of ranks, the first coordinate moving fastest.
#[derive(Clone, Copy, Debug)]
struct Grid([u32; 3]);

impl Grid {
    fn world(self) -> u32 {
        self.0.iter().product()
    }

    fn stride(self, axis: usize) -> u32 {
        self.0[..axis].iter().product()
    }

    fn at(self, rank: u32, axis: usize) -> u32 {
        rank / self.stride(axis) % self.0[axis]
    }

    /// `rank` moved by `by` along one axis.
    fn moved(self, rank: u32, axis: usize, by: u32) -> u32 {
        let (at, stride) = (self.at(rank, axis), self.stride(axis));
        rank - at * stride + (at + by) % self.0[axis] * stride
    }

    fn line(self, rank: u32, axis: usize) -> Vec<u32> {
        let mut line: Vec<u32> = (0..self.0[axis]).map(|by| self.moved(rank, axis, by)).collect();
        line.sort_unstable();
        line
    }

    fn symmetry(self, axes: &[usize], relabeling: Relabeling) -> Symmetry {
        let axis = |axis: &usize| Axis { stride: self.stride(*axis), extent: self.0[*axis], relabeling };
        Symmetry::new(axes.iter().map(axis).collect(), self.world()).unwrap()
    }
}

/// What all ranks do, each in its own place of the grid.
#[derive(Clone, Debug)]
enum Job {
    /// For so long, times one more than the last coordinate.
    Compute(u64),
    /// Among the ranks along an axis.
    Among(usize, CollectiveKind, u64),
    /// Sends to the rank so far along an axis, and receives.
    Exchange(usize, u32, u64),
    /// Waits for everything issued so far.
    WaitAll,
}

struct Rank {
    requests: VecDeque<Wanted>,
    groups: BTreeMap<Vec<u32>, GroupId>,
    asked: Option<Vec<u32>>,
    open: Vec<Handle>,
}

#[derive(Clone)]
enum Wanted {
    Compute(u64),
    Call(Vec<u32>, CallOp),
    Wait,
}

impl Rank {
    fn new(grid: Grid, me: u32, jobs: &[Job]) -> Rank {
        let world: Vec<u32> = (0..grid.world()).collect();
        let mut requests = VecDeque::new();
        for job in jobs {
            match *job {
                Job::Compute(ps) => requests.push_back(Wanted::Compute(ps * u64::from(grid.at(me, 2) + 1))),
                Job::Among(axis, kind, elements) => {
                    let line = grid.line(me, axis);
                    requests.push_back(Wanted::Call(line, CallOp::Collective(collective(kind, elements))));
                }
                Job::Exchange(axis, by, bytes) => {
                    let (to, back) = (grid.moved(me, axis, by), grid.moved(me, axis, grid.0[axis] - by));
                    let (to, from, bytes) = (GroupRank(to), Some(GroupRank(back)), Bytes(bytes));
                    requests.push_back(Wanted::Call(world.clone(), CallOp::Send { to, tag: 0, bytes }));
                    requests.push_back(Wanted::Call(world.clone(), CallOp::Recv { from, tag: 0, bytes }));
                }
                Job::WaitAll => requests.push_back(Wanted::Wait),
            }
        }
        requests.push_back(Wanted::Wait);
        Rank { requests, groups: BTreeMap::new(), asked: None, open: Vec::new() }
    }
}

fn collective(kind: CollectiveKind, elements: u64) -> Collective {
    let reduce = matches!(kind, AllReduce | ReduceScatter).then_some(ReduceOp::Sum);
    Collective { kind, dtype: DType::UInt8, reduce, root: None, shape: Shape::Even(elements) }
}

impl Program for Rank {
    fn resume(&mut self, _: SimTime, _: TaskId, reply: Reply) -> Request {
        match reply {
            Reply::Issued(handle) => self.open.push(handle),
            Reply::Group(group) => drop(self.groups.insert(self.asked.take().unwrap(), group)),
            _ => {}
        }
        let activity = match self.requests.pop_front() {
            None => return Request::Exit(Outcome::Ok),
            Some(Wanted::Wait) => {
                let handles = std::mem::take(&mut self.open);
                return Request::Wait { handles, any: false, timeout: None, site: Site(0) };
            }
            Some(Wanted::Compute(ps)) => {
                Activity::Compute(Work { duration: SimDuration::from_ps(ps), origin: Origin::Recorded })
            }
            Some(Wanted::Call(ranks, op)) => match self.groups.get(&ranks) {
                Some(group) => Activity::Call(Call { group: *group, op }),
                None => {
                    self.asked = Some(ranks.clone());
                    let named = ranks.iter().copied().map(RankId).collect();
                    self.requests.push_front(Wanted::Call(ranks, op));
                    return Request::JoinGroup { ranks: named, sequence: 0 };
                }
            },
        };
        Request::Issue { activity, queue: QueueId(0), after: vec![], site: Site(0) }
    }
}

fn simulate(mut engine: Engine, grid: Grid, jobs: &[Job]) -> Result<Vec<RankStatistics>, Cause> {
    let mut programs: Vec<Box<dyn Program>> =
        (0..grid.world()).map(|me| Box::new(Rank::new(grid, me, jobs)) as Box<dyn Program>).collect();
    let mut statistics = Statistics::default();
    match drive(&mut engine, &mut programs, &mut statistics) {
        Ended::Finished => Ok(statistics.ranks().to_vec()),
        Ended::Halted(halt) => Err(halt.cause),
    }
}

fn unfolded(cluster: &Cluster, grid: Grid, jobs: &[Job]) -> Vec<RankStatistics> {
    let engine = Engine::new(cluster);
    simulate(engine, grid, jobs).unwrap()
}

fn folded(cluster: &Cluster, grid: Grid, symmetry: &Symmetry, jobs: &[Job]) -> Result<Vec<RankStatistics>, String> {
    let engine = Engine::folded(cluster, symmetry).map_err(|asymmetry| asymmetry.problem)?;
    simulate(engine, grid, jobs).map_err(|cause| match cause {
        Cause::Asymmetry(asymmetry) => asymmetry.problem,
        other => panic!("{other:?}"),
    })
}

fn on(topology: impl FnOnce(&[HostSpec], LinkSpec) -> Preset, hosts: u32) -> Cluster {
    let names = |host| format!("host.{host:04}");
    let specs: Vec<HostSpec> = (0..hosts).map(|host| HostSpec::new(names(host))).collect();
    let link = LinkSpec::new(Rate::new(0.7e9).unwrap(), SimDuration::from_ps(1_234_567));
    let preset = topology(&specs, link);
    // A queue that is full now and then, wherever there may be one.
    let queue = matches!(preset, Preset::Switch | Preset::Rail { .. }).then_some(Bytes(30_000));
    let topology = Topology::preset(&preset, &specs, LinkSpec { queue, ..link }).unwrap();
    let device = |host| Device {
        name: names(host),
        host: HostId(host),
        slowdown: 1.0,
        memory: None,
        spells: Vec::new(),
        crash: None,
    };
    Cluster { devices: (0..hosts).map(device).collect(), topology, ..switch(hosts as usize) }
}

fn preset(index: usize, grid: Grid) -> Cluster {
    let Grid([x, y, z]) = grid;
    let kinds = [DimensionKind::Ring, DimensionKind::FullyConnected, DimensionKind::Switch];
    on(
        |_, link| match index {
            0 => Preset::Switch,
            1 => Preset::FullyConnected,
            2 => Preset::Torus { dims: vec![x, y, z] },
            3 => {
                let fabric = LinkSpec { bandwidth: Rate::new(3e9).unwrap(), ..link };
                Preset::Rail { per_server: x, fabric }
            }
            4 => Preset::Torus { dims: vec![x * y, z] },
            other => {
                let dims = [x, y, z].into_iter().enumerate();
                let kind = |axis: usize| kinds[(axis + other) % 3];
                Preset::Dimensions(dims.map(|(axis, size)| Dimension { kind: kind(axis), size, link }).collect())
            }
        },
        grid.world(),
    )
}

const PRESETS: usize = 8;

/// Each algorithm and kind whose steps stay the same under relabelings, all ranks folded into one.
#[test]
fn one_rank_stands_for_a_whole_collective() {
    let mut folds = 0;
    for kind in CollectiveKind::ALL {
        for algorithm in algorithms_for(kind) {
            for size in [2, 3, 4, 6, 8, 16] {
                let call = collective(kind, u64::from(size) * 1000);
                let Some(relabeling) = algorithm.symmetry(&call, size) else { continue };
                let (grid, cluster) = (Grid([size, 1, 1]), forced(size as usize, kind, algorithm.name()));
                let jobs = [Job::Compute(7_000), Job::Among(0, kind, u64::from(size) * 1000)];
                let one = folded(&cluster, grid, &grid.symmetry(&[0], relabeling), &jobs).unwrap();
                assert_eq!(one, unfolded(&cluster, grid, &jobs), "{kind} by {}, {size} ranks", algorithm.name());
                folds += 1;
            }
        }
    }
    assert!(folds > 40, "{folds}");
}

fn job(grid: Grid) -> impl Strategy<Value = Job> {
    // Sizes of all-reduces are multiples of every extent, so that blocks are equal.
    let kinds = prop::sample::select(vec![AllReduce, AllGather, ReduceScatter, AllToAll, Barrier]);
    prop_oneof![
        (0..2_000_000u64).prop_map(Job::Compute),
        (0..3usize, kinds, 0..50u64).prop_map(|(axis, kind, n)| Job::Among(axis, kind, n * 60)),
        (0..3usize, 1..4u32, 0..9_000u64).prop_map(move |(axis, by, n)| Job::Exchange(axis, by % grid.0[axis], n)),
        Just(Job::WaitAll),
    ]
}

fn case() -> impl Strategy<Value = (Grid, usize, Vec<usize>, Vec<Job>)> {
    [1..5u32, 1..5u32, 1..5u32].prop_flat_map(|sizes| {
        let grid = Grid(sizes);
        let axes = prop::sample::subsequence(vec![0usize, 1, 2], 0..4);
        (Just(grid), 0..PRESETS, axes, prop::collection::vec(job(grid), 1..12))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Over any symmetric cluster, where a fold is accepted every rank's finish, times and bytes are those of the whole run.
    #[test]
    fn random_jobs_take_as_long_folded((grid, index, axes, jobs) in case()) {
        // Messages to oneself and compute that differs along the last axis are no part of what is promised to be alike.
        let axes: Vec<usize> = axes.into_iter().filter(|axis| *axis < 2).collect();
        let (cluster, symmetry) = (preset(index, grid), grid.symmetry(&axes, Relabeling::Rotation));
        let all = unfolded(&cluster, grid, &jobs);
        match folded(&cluster, grid, &symmetry, &jobs) {
            Ok(few) => prop_assert_eq!(few, all),
            // Messages whose order is open; and a torus whose rows are not the grid's.
            Err(problem) => prop_assert!(problem.contains("at one instant") || index == 4 && grid.0[0] > 1, "{}", problem),
        }
    }
}

/// 16 ranks with contention inside: every rank sends to one two steps away on a ring of hosts, so that each link carries several streams.
#[test]
fn flows_that_cross_several_links_of_a_class_share_them() {
    let grid = Grid([8, 2, 1]);
    let cluster = preset(2, grid);
    let (around, across) = (Job::Exchange(0, 3, 70_001), Job::Exchange(1, 1, 9_999));
    let jobs = [Job::Compute(1), around, across, Job::Compute(1_000), Job::WaitAll, Job::Among(0, AllToAll, 5_000)];
    let symmetry = grid.symmetry(&[0, 1], Relabeling::Rotation);
    assert_eq!(symmetry.order(), 16);
    assert_eq!(folded(&cluster, grid, &symmetry, &jobs).unwrap(), unfolded(&cluster, grid, &jobs));
}

/// A message and the first one of an all-gather begin at once, from the same rank to the same other.
#[test]
fn an_order_that_is_open_is_refused() {
    let (grid, cluster) = (Grid([4, 1, 1]), switch(4));
    let symmetry = grid.symmetry(&[0], Relabeling::Rotation);
    let jobs = [Job::Exchange(0, 1, 100), Job::Among(0, AllGather, 4_000)];
    let problem = folded(&cluster, grid, &symmetry, &jobs).unwrap_err();
    assert_eq!(problem, "rank 0 sends rank 1 messages of two operations at one instant, at 0 ps");
    // Where each group has connections of its own, messages of two groups are in nobody's way.
    let mut apart = switch(4);
    apart.backend.protocol.connections_per_group = true;
    let two_groups = [Job::Exchange(0, 1, 100), Job::Among(1, AllGather, 4_000), Job::Among(0, AllGather, 4_000)];
    let tall = Grid([2, 2, 1]);
    let both = tall.symmetry(&[0, 1], Relabeling::Rotation);
    assert_eq!(folded(&apart, tall, &both, &two_groups).unwrap(), unfolded(&apart, tall, &two_groups));
    let later = [Job::Exchange(0, 1, 100), Job::WaitAll, Job::Among(0, AllGather, 4_000)];
    assert_eq!(folded(&cluster, grid, &symmetry, &later).unwrap(), unfolded(&cluster, grid, &later));
}

#[test]
fn what_is_not_alike_is_refused() {
    let grid = Grid([4, 1, 1]);
    let all = grid.symmetry(&[0], Relabeling::Rotation);
    let jobs = [Job::Among(0, AllReduce, 4_000)];
    let problem = |cluster: &Cluster, jobs: &[Job]| folded(cluster, grid, &all, jobs).unwrap_err();
    // One device is slower: its rank is late.
    let mut slow = switch(4);
    slow.devices[2].slowdown = 2.0;
    assert_eq!(problem(&slow, &jobs), "device `host.0002` is unlike `host.0000`");
    // One host's link is slower.
    let mut hosts: Vec<HostSpec> = (0..4).map(|host| HostSpec::new(format!("h{host}"))).collect();
    hosts[1].bandwidth = Rate::new(1e8).map(HostRates::both);
    let link = LinkSpec::new(Rate::new(1e9).unwrap(), SimDuration::ZERO);
    let mut narrow = switch(4);
    narrow.topology = Topology::preset(&Preset::Switch, &hosts, link).unwrap();
    assert_eq!(problem(&narrow, &jobs), "link `h1 -> switch` is unlike the others");
    // Two ranks of a class share a host.
    let mut shared = switch(4);
    shared.devices.iter_mut().for_each(|device| device.host = HostId(0));
    shared.topology = Topology::preset(&Preset::Switch, &hosts[..1], link).unwrap();
    assert_eq!(problem(&shared, &jobs), "ranks of one host would have to be alike");
    // All hosts share a link.
    let mut hub = switch(4);
    hub.topology = Topology::preset(&Preset::Wifi, &hosts, link).unwrap();
    assert!(problem(&hub, &jobs).starts_with("hosts share links inside this network"));
    // 4,001 bytes are not cut evenly; a backend that may serve in an order.
    let uneven = problem(&switch(4), &[Job::Among(0, AllReduce, 4_001)]);
    assert_eq!(uneven, "all_reduce by ring among 4 is not alike for its members");
    let mut gloo = switch(4);
    (gloo.backend.name, gloo.backend.protocol.call) = ("gloo".into(), SimDuration::from_us(1));
    assert_eq!(problem(&gloo, &jobs), "the backend `gloo` may serve ranks in an order");
}

/// Ranks 0 and 1 meet, and 2 and 3: a shift by one would tear the pairs apart, and so would one that moves half a line.
#[test]
fn groups_that_cross_classes_unevenly_are_refused() {
    let pairs = Grid([2, 2, 1]);
    let cluster = switch(4);
    let jobs = [Job::Among(0, AllReduce, 4_000)];
    let ring = Symmetry::new(vec![Axis { stride: 1, extent: 4, relabeling: Relabeling::Rotation }], 4).unwrap();
    let torn = folded(&cluster, pairs, &ring, &jobs).unwrap_err();
    assert_eq!(torn, "ranks that should be alike are in groups that are not");
    // Of the whole world, shifts along the first of two axes move places by no rotation: a ring looks different after them.
    let world = Grid([4, 1, 1]);
    let first = Symmetry::new(vec![Axis { stride: 1, extent: 2, relabeling: Relabeling::Rotation }], 4).unwrap();
    let turned = folded(&cluster, world, &first, &jobs).unwrap_err();
    assert_eq!(turned, "all_reduce by ring among 4 is not alike for its members");
    // Along the second they do.
    let second = Symmetry::new(vec![Axis { stride: 2, extent: 2, relabeling: Relabeling::Rotation }], 4).unwrap();
    assert_eq!(folded(&cluster, world, &second, &jobs).unwrap(), unfolded(&cluster, world, &jobs));
}
