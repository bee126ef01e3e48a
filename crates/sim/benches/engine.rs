//! Simulation speed of whole collectives, from the ranks' calls to the last delivery: CPU seconds of this process, one
//! line per case.
//!
//! Criterion is not used: a case runs for a second, and the output is its median over a few runs next to a target.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use uniference_sim::cluster::{Backend, Cluster, Device};
use uniference_sim::collective::choose::{AlgorithmTable, algorithm_by_name};
use uniference_sim::engine::{Engine, RunEnd, drive};
use uniference_sim::ids::{GroupId, Handle, HostId, QueueId, RankId, Site, TaskId};
use uniference_sim::network::{HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::program::CollectiveKind::{self, AllReduce, AllToAll, ReduceScatter};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, DType, Outcome, Program, ProgramError, ReduceOp, Reply, Request, Shape,
};
use uniference_sim::time::{Rate, SimDuration, SimTime};

const RUNS: usize = 5;

struct Case {
    name: &'static str,
    ranks: usize,
    kind: CollectiveKind,
    algorithm: &'static str,
    elements: u64,
    target: Option<f64>,
}

const CASES: [Case; 4] = [
    Case {
        name: "ring all-reduce, 1,024 ranks, 2.1 million messages",
        ranks: 1024,
        kind: AllReduce,
        algorithm: "ring",
        elements: 1 << 20,
        target: Some(1.0),
    },
    Case {
        name: "halving-doubling all-reduce, 1,024 ranks",
        ranks: 1024,
        kind: AllReduce,
        algorithm: "halving_doubling",
        elements: 1 << 20,
        target: None,
    },
    Case {
        name: "ring reduce-scatter, 512 ranks",
        ranks: 512,
        kind: ReduceScatter,
        algorithm: "ring",
        elements: 1 << 12,
        target: None,
    },
    Case {
        name: "direct all-to-all, 256 ranks",
        ranks: 256,
        kind: AllToAll,
        algorithm: "linear",
        elements: 1 << 12,
        target: Some(0.2),
    },
];

fn main() {
    println!("{:<55} {:>10} {:>10} {:>8}", "case", "CPU s", "simulated", "target");
    for case in &CASES {
        let mut seconds: Vec<f64> = Vec::new();
        let mut makespan = SimTime::ZERO;
        for _ in 0..RUNS {
            let before = cpu_seconds();
            makespan = simulate(case);
            seconds.push(cpu_seconds() - before);
        }
        seconds.sort_by(f64::total_cmp);
        let target = case.target.map_or("-".into(), |target| format!("{target} s"));
        println!("{:<55} {:>10.3} {:>10} {:>8}", case.name, seconds[RUNS / 2], makespan.to_string(), target);
    }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn simulate(case: &Case) -> SimTime {
    let cluster = cluster(case);
    let mut engine = Engine::new(&cluster);
    let world: Arc<[RankId]> = (0..case.ranks).map(RankId::from).collect();
    let mut programs: Vec<Box<dyn Program>> = (0..case.ranks).map(|_| program(case, &world)).collect();
    let mut observer = (Statistics::default(), Digest::default());
    match drive(&mut engine, &mut programs, &mut observer) {
        RunEnd::Finished => observer.0.makespan(),
        RunEnd::Halted(halt) => panic!("{}", halt.render(&|site| site.to_string(), &|_| Vec::new())),
        other => panic!("{other:?}"),
    }
}

/// 10 Gbit/s and 2 us between any two hosts, no headers.
fn cluster(case: &Case) -> Cluster {
    let names = (0..case.ranks).map(|rank| format!("host.{rank}"));
    let hosts: Vec<HostSpec> = names.clone().map(HostSpec::new).collect();
    let link = LinkSpec::new(Rate::from_bits_per_second(10e9).unwrap(), SimDuration::from_us(2));
    let device = |(rank, name)| Device::new(name, HostId::from(rank));
    let mut algorithms = AlgorithmTable::ideal();
    algorithms.force(case.kind, algorithm_by_name(case.kind, case.algorithm).unwrap());
    Cluster {
        name: "bench".into(),
        devices: names.enumerate().map(device).collect(),
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

/// Names the world's group, carries out one collective, and exits.
fn program(case: &Case, world: &Arc<[RankId]>) -> Box<dyn Program> {
    let collective = Collective {
        kind: case.kind,
        dtype: DType::Float32,
        reduce: (case.kind != AllToAll).then_some(ReduceOp::Sum),
        root: None,
        shape: Shape::Even(case.elements),
        kernel: None,
    };
    let call = Activity::Call(Call { group: GroupId(0), op: CallOp::Collective(collective) });
    let requests = [
        Request::JoinGroup { ranks: world.clone(), sequence: 0, settings: None, rendezvous: false },
        Request::Issue { activity: call, queue: QueueId(0), after: vec![], site: Site(0) },
        Request::Wait { handles: vec![Handle(0)], any: false, timeout: None, site: Site(0) },
        Request::Exit(Outcome::Ok),
    ];
    struct Requests(std::array::IntoIter<Request, 4>);
    impl Program for Requests {
        fn resume(&mut self, _: SimTime, _: TaskId, _: Reply) -> Result<Request, ProgramError> {
            Ok(self.0.next().expect("the last request ends the task"))
        }
    }
    Box::new(Requests(requests.into_iter()))
}
