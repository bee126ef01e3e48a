//! Benchmark of large jobs: CPU seconds and peak memory of each case, in a process of its own on one core, next to
//! ASTRA-sim's figures and the targets. `cargo bench -p uniference-programs --bench scale [-- WORD...]` runs the cases
//! whose names contain one of the words.
//!
//! ASTRA-sim 2.0's figures (user CPU, peak memory) were measured on two shared cores of a virtual machine, 2026-11-21.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::schema::GlobalMetadata;
use uniference_formats::chakra::write::Writer;
use uniference_formats::cluster::{Choices, ClusterFile};
use uniference_programs::chakra::replay::{Replay, Rules};
use uniference_programs::workload::{
    ContextMethod, ContextOrder, ExpertLoad, Implementation, Layout, Mlp, Model, Phase, Recompute, Schedule, Spec,
    Workload,
};
use uniference_sim::cluster::{Backend, Cluster, Device};
use uniference_sim::collective::choose::{AlgorithmTable, algorithm_by_name};
use uniference_sim::device::Rates;
use uniference_sim::engine::{Engine, HaltReason, Resumption, Turn};
use uniference_sim::ids::{HostId, QueueId, RankId, Site, TaskId};
use uniference_sim::network::{Asymmetry, Dimension, DimensionKind, Dynamics, HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::observe::Statistics;
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce, AllToAll, ReduceScatter};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, DType, Outcome, Program, ProgramError, ReduceOp, Reply, Request, Shape,
};
use uniference_sim::symmetry::{Axis, Relabeling, Symmetry};
use uniference_sim::time::{Rate, SimDuration, SimTime};

/// Bytes of each collective, as in ASTRA-sim's runs.
const BYTES: u64 = 64 << 20;

struct Case {
    name: &'static str,
    astra: &'static str,
    target: &'static str,
    /// Simulates the case and returns its makespan; `true`: every rank, not only representatives.
    run: fn(whole: bool) -> SimTime,
    /// Whether a simulation of every rank is feasible.
    whole: bool,
}

const CASES: [Case; 11] = [
    Case {
        name: "all-reduce, switch, 1,024",
        astra: "1.4 s 357 MB",
        target: "0.05 s 40 MB",
        run: |whole| all_reduce_on_a_switch(1024, whole),
        whole: true,
    },
    Case {
        name: "all-reduce, switch, 4,096",
        astra: "19.2 s 5.5 GB",
        target: "0.3 s 200 MB",
        run: |whole| all_reduce_on_a_switch(4096, whole),
        whole: true,
    },
    Case {
        name: "all-to-all, switch, 1,024",
        astra: "85.7 s 1.2 GB",
        target: "2 s 300 MB",
        run: all_to_all,
        whole: true,
    },
    Case {
        name: "all-reduce, 3-D torus, 4,096",
        astra: "14.8 s 197 MB",
        target: "0.5 s",
        run: |whole| in_dimensions([(DimensionKind::Ring, 16, 100, 500); 3], whole),
        whole: true,
    },
    Case {
        name: "all-reduce, ring x mesh x switch, 16,384",
        astra: "76 s 1.3 GB",
        target: "1 s 300 MB",
        run: |whole| {
            use DimensionKind::{FullyConnected, Ring, Switch};
            in_dimensions([(Ring, 16, 200, 50), (FullyConnected, 32, 100, 500), (Switch, 32, 50, 2_000)], whole)
        },
        whole: true,
    },
    Case {
        name: "GPT, 24 layers, TP 8 x DP 8 (traces)",
        astra: "3.3 s 107 MB",
        target: "0.3 s",
        run: |_| traces(24, 2_048, 8),
        whole: false,
    },
    Case {
        name: "Llama, 32 layers, TP 8 x DP 32 (traces)",
        astra: "34 s 483 MB",
        target: "2 s",
        run: |_| traces(32, 4_096, 32),
        whole: false,
    },
    Case {
        name: "Llama 3 405B, one step, 16,384",
        astra: "not possible",
        target: "60 s 8 GB",
        run: |_| llama_405b(128),
        whole: false,
    },
    Case {
        name: "Llama 3 405B, one step, 131,072",
        astra: "-",
        target: "600 s 16 GB",
        run: |_| llama_405b(1024),
        whole: false,
    },
    Case {
        name: "Llama 3 8B, one step, NCCL, 1,024",
        astra: "-",
        target: "-",
        run: |whole| llama_8b(0, whole),
        whole: true,
    },
    Case {
        name: "Llama 3 8B, one step, NCCL, ZeRO 1, 1,024",
        astra: "-",
        target: "-",
        run: |whole| llama_8b(1, whole),
        whole: true,
    },
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [flag, index, whole] = &words[..]
        && flag == "--case"
    {
        return measure(&CASES[index.parse::<usize>().unwrap()], whole == "whole");
    }
    println!(
        "{:<42} {:>15} {:>14} {:>19}   {:>19}",
        "case", "ASTRA-sim 2.0", "to reach", "ours", "every rank simulated"
    );
    for (index, case) in CASES.iter().enumerate() {
        if words.is_empty() || words.iter().any(|word| case.name.contains(word.as_str())) {
            let (ours, makespan) = in_a_process(index, "folded");
            let mut whole = "-".to_owned();
            if case.whole {
                let (cost, of_all) = in_a_process(index, "whole");
                assert_eq!(makespan, of_all, "{} takes another time with every rank simulated", case.name);
                whole = cost;
            }
            println!("{:<42} {:>15} {:>14} {ours:>19}   {whole:>19}", case.name, case.astra, case.target);
        }
    }
}

/// CPU seconds and peak memory of a case, and its makespan.
fn in_a_process(index: usize, mode: &str) -> (String, String) {
    let itself = std::env::current_exe().unwrap();
    let output = Command::new(itself).args(["--case", &index.to_string(), mode]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let (cost, makespan) = lines.split_once('\n').unwrap();
    (cost.to_owned(), makespan.to_owned())
}

fn measure(case: &Case, whole: bool) {
    let makespan = (case.run)(whole);
    assert!(makespan > SimTime::ZERO);
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or(" 0 kB");
    let megabytes: u64 = peak.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) / 1000;
    print!("{:.2} s {megabytes} MB\n{makespan}", time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9);
}

// Clusters

fn link(gigabytes: u64, latency_ns: u64) -> LinkSpec {
    LinkSpec::new(Rate::new(gigabytes as f64 * 1e9).unwrap(), SimDuration::from_ns(latency_ns))
}

fn cluster(ranks: u32, preset: &Preset, link: LinkSpec, algorithms: AlgorithmTable) -> Cluster {
    let names = |rank| format!("npu.{rank}");
    let hosts: Vec<HostSpec> = (0..ranks).map(|rank| HostSpec::new(names(rank))).collect();
    let device = |rank| Device::new(names(rank), HostId(rank));
    Cluster {
        name: "bench".into(),
        devices: (0..ranks).map(device).collect(),
        topology: Topology::preset(preset, &hosts, link).unwrap(),
        dynamics: Dynamics::default(),
        backend: Backend {
            name: "ideal".into(),
            algorithms,
            concurrency: 1,
            protocol: Default::default(),
            free: Default::default(),
        },
    }
}

/// The makespan of ranks that are equivalent under `symmetry`.
fn simulate<P: Program>(cluster: &Cluster, symmetry: &Symmetry, program: impl Fn(RankId) -> P) -> SimTime {
    attempt(cluster, symmetry, program).unwrap()
}

/// The makespan, or `Err` if ranks are not equivalent.
fn attempt<P: Program>(
    cluster: &Cluster,
    symmetry: &Symmetry,
    program: impl Fn(RankId) -> P,
) -> Result<SimTime, Asymmetry> {
    let mut engine = Engine::folded(cluster, symmetry)?;
    let mut programs: BTreeMap<RankId, P> = BTreeMap::new();
    let mut statistics = Statistics::default();
    loop {
        match engine.next(&mut statistics) {
            Turn::Resume(Resumption { rank, task, now, reply }) => {
                let request = programs.entry(rank).or_insert_with(|| program(rank)).resume(now, task, reply).unwrap();
                engine.submit(rank, task, request);
            }
            Turn::Finished => return Ok(statistics.makespan()),
            Turn::Halted(halt) => match halt.reason {
                HaltReason::Asymmetry(asymmetry) => return Err(asymmetry),
                _ => panic!("{}", halt.render(&|site| site.to_string(), &|_| Vec::new())),
            },
            Turn::Blocked => panic!("every program answers at once"),
        }
    }
}

// Collectives

/// Collectives in sequence, each in a group of its own.
struct Calls {
    calls: std::vec::IntoIter<(Arc<[RankId]>, Collective)>,
    next: Option<Collective>,
}

impl Calls {
    fn new(calls: Vec<(Arc<[RankId]>, CollectiveKind, u64)>) -> Calls {
        let collective = |kind, count| Collective {
            kind,
            dtype: DType::UInt8,
            reduce: matches!(kind, AllReduce | ReduceScatter).then_some(ReduceOp::Sum),
            root: None,
            shape: Shape::Even(count),
            kernel: None,
        };
        let calls: Vec<_> = calls.into_iter().map(|(ranks, kind, count)| (ranks, collective(kind, count))).collect();
        Calls { calls: calls.into_iter(), next: None }
    }
}

impl Program for Calls {
    fn resume(&mut self, _: SimTime, _: TaskId, reply: Reply) -> Result<Request, ProgramError> {
        Ok(match (reply, self.next.take()) {
            (Reply::Group(group), Some(collective)) => Request::Issue {
                activity: Activity::Call(Call { group, op: CallOp::Collective(collective) }),
                queue: QueueId(0),
                after: vec![],
                site: Site(0),
            },
            (Reply::Issued(handle), _) => {
                Request::Wait { handles: vec![handle], any: false, timeout: None, site: Site(0) }
            }
            _ => match self.calls.next() {
                Some((ranks, collective)) => {
                    self.next = Some(collective);
                    Request::JoinGroup { ranks, sequence: 0, settings: None, rendezvous: false }
                }
                None => Request::Exit(Outcome::Ok),
            },
        })
    }
}

fn one_axis(ranks: u32, relabeling: Relabeling, whole: bool) -> Symmetry {
    let axes = if whole { vec![] } else { vec![Axis { stride: 1, extent: ranks, relabeling }] };
    Symmetry::new(axes, ranks).unwrap()
}

fn on_a_switch(ranks: u32, kind: CollectiveKind, algorithm: &str, count: u64, symmetry: &Symmetry) -> SimTime {
    let mut algorithms = AlgorithmTable::ideal();
    algorithms.force(kind, algorithm_by_name(kind, algorithm).unwrap());
    let cluster = cluster(ranks, &Preset::Switch, link(50, 500), algorithms);
    let world: Arc<[RankId]> = (0..ranks).map(RankId).collect();
    simulate(&cluster, symmetry, |_| Calls::new(vec![(world.clone(), kind, count)]))
}

fn all_reduce_on_a_switch(ranks: u32, whole: bool) -> SimTime {
    on_a_switch(ranks, AllReduce, "halving_doubling", BYTES, &one_axis(ranks, Relabeling::Flip, whole))
}

fn all_to_all(whole: bool) -> SimTime {
    on_a_switch(1024, AllToAll, "linear", BYTES / 1024, &one_axis(1024, Relabeling::Rotation, whole))
}

/// An all-reduce as in ASTRA-sim on several dimensions: reduce-scatters on the first dimensions, an all-reduce on the
/// last one, all-gathers in reverse order.
fn in_dimensions(dims: [(DimensionKind, u32, u64, u64); 3], whole: bool) -> SimTime {
    let dimension = |(kind, size, gigabytes, ns)| Dimension { kind, size, link: link(gigabytes, ns) };
    let ranks = dims.iter().map(|dim| dim.1).product();
    let preset = Preset::Dimensions(dims.map(dimension).to_vec());
    let cluster = cluster(ranks, &preset, link(1, 0), AlgorithmTable::ideal());
    let strides = [1, dims[0].1, dims[0].1 * dims[1].1];
    let axis = |dim: usize| Axis { stride: strides[dim], extent: dims[dim].1, relabeling: Relabeling::Rotation };
    let axes = if whole { vec![] } else { (0..3).map(axis).collect() };
    let line = |RankId(rank): RankId, dim: usize| -> Arc<[RankId]> {
        let (stride, size) = (strides[dim], dims[dim].1);
        let first = rank - rank / stride % size * stride;
        (0..size).map(|place| RankId(first + place * stride)).collect()
    };
    let sizes = dims.map(|dim| u64::from(dim.1));
    let blocks = [BYTES / sizes[0], BYTES / sizes[0] / sizes[1]];
    simulate(&cluster, &Symmetry::new(axes, ranks).unwrap(), |rank| {
        Calls::new(vec![
            (line(rank, 0), ReduceScatter, blocks[0]),
            (line(rank, 1), ReduceScatter, blocks[1]),
            (line(rank, 2), AllReduce, blocks[1]),
            (line(rank, 1), AllGather, blocks[1]),
            (line(rank, 0), AllGather, blocks[0]),
        ])
    })
}

// Jobs

fn rules(ranks: u32) -> Arc<Rules> {
    let rooflines = vec![Some(Rates::uniform(989e12, 3.35e12)); ranks as usize];
    Arc::new(Rules { rooflines, ..Rules::of((0..ranks).map(RankId).collect()) })
}

/// Servers of eight GPUs, 450 GB/s inside servers and 50 GB/s between them.
fn servers(ranks: u32) -> Cluster {
    let rail = Preset::Rail { per_server: 8, fabric: link(450, 1_000) };
    cluster(ranks, &rail, link(50, 3_000), AlgorithmTable::ideal())
}

fn spec(model: Model, data: u32, pipeline: u32, sequence: u64, batch: u64) -> Spec {
    let layout = Layout {
        tensor: 8,
        context: 1,
        expert: 1,
        data,
        pipeline,
        sequence_parallel: pipeline > 1,
        context_method: ContextMethod::default(),
        context_order: ContextOrder::default(),
        shard: None,
    };
    let schedule = Schedule::OneForwardOneBackward;
    Spec {
        model,
        layout,
        phase: Phase::Train,
        sequence,
        batch,
        micro_batch: 1,
        schedule,
        zero: 1,
        gradient_bytes: 4,
        recompute: Recompute::None,
        clip_gradients: false,
        new_tokens: 1,
        implementation: Implementation::default(),
        expert_load: ExpertLoad::Uniform,
    }
}

/// A step of one micro-batch per replica: traces of all ranks, written to memory, read again and run with every rank.
fn traces(layers: u32, hidden: u64, data: u32) -> SimTime {
    let model = Model {
        layers,
        hidden,
        heads: 32,
        kv_heads: 8,
        ffn: 3 * hidden,
        vocabulary: 32_000,
        experts: None,
        latent: None,
        mlp: Mlp::SwiGlu,
        positions: 0,
        tied: false,
    };
    let workload = Workload::new(spec(model, data, 1, 2_048, data.into())).unwrap();
    let ranks = workload.world_size();
    let file = |rank| {
        let mut writer = Writer::new(Vec::new(), &GlobalMetadata::default()).unwrap();
        workload.trace(rank).for_each(|node| writer.node(&node).unwrap());
        writer.finish().unwrap()
    };
    let files: Vec<Vec<u8>> = (0..ranks).map(file).collect();
    let rules = rules(ranks);
    simulate(&servers(ranks), &Symmetry::default(), |rank| {
        Replay::new(rank, Reader::open(&files[rank.index()][..]).unwrap(), rules.clone())
    })
}

/// Llama 3 405B as trained by Meta ("The Llama 3 herd of models", 2024, table 4) but without context parallelism: 16
/// micro-batches of 8,192 tokens.
fn llama_405b(data: u32) -> SimTime {
    let (layers, hidden, heads, ffn) = (126, 16_384, 128, 53_248);
    let model = Model {
        layers,
        hidden,
        heads,
        kv_heads: 8,
        ffn,
        vocabulary: 128_256,
        experts: None,
        latent: None,
        mlp: Mlp::SwiGlu,
        positions: 0,
        tied: false,
    };
    let workload = Workload::new(spec(model, data, 16, 8_192, 16 * u64::from(data))).unwrap();
    let ranks = workload.world_size();
    let rules = rules(ranks);
    simulate(&servers(ranks), &workload.symmetry(), |rank| Replay::new(rank, workload.trace(rank.0), rules.clone()))
}

/// Llama 3 8B on 128 servers of eight H100, a replica on each, two sequences of 4,096 tokens per replica, on NCCL: as
/// `uniference workload` runs it, folded by the exact symmetry with the fewest simulated ranks.
fn llama_8b(zero: u8, whole: bool) -> SimTime {
    let text = "backend = \"nccl\"\n[[device]]\nname = \"gpu\"\ncount = 1024\n[network]\npreset = \"rail\"\nper_server = 8\n\
        fabric = \"nvlink4\"\nlink = \"infiniband_ndr\"\n";
    let cluster = ClusterFile::parse("servers.toml", text, &[]).unwrap().resolve(&Choices::default()).unwrap().cluster;
    let model = Model {
        layers: 32,
        hidden: 4_096,
        heads: 32,
        kv_heads: 8,
        ffn: 14_336,
        vocabulary: 128_256,
        experts: None,
        latent: None,
        mlp: Mlp::SwiGlu,
        positions: 0,
        tied: false,
    };
    let workload = Workload::new(Spec { zero, ..spec(model, 128, 1, 4_096, 256) }).unwrap();
    let rules = rules(workload.world_size());
    let symmetries = if whole {
        vec![Symmetry::default()]
    } else {
        workload.symmetries(&cluster.blocks(), cluster.backend.protocol.connections_per_group)
    };
    let replay = |rank: RankId| Replay::new(rank, workload.trace(rank.0), rules.clone());
    let exact = symmetries.iter().find_map(|symmetry| {
        let makespan = attempt(&cluster, symmetry, replay).ok()?;
        eprintln!("{} of {} ranks simulated", workload.world_size() / symmetry.order(), workload.world_size());
        Some(makespan)
    });
    exact.expect("every rank can be simulated")
}
