//! Owns the run of generated jobs: the check that they fit their devices, and the fold of equivalent ranks.
//!
//! Jobs are defined in `uniference-formats`, and the simulator determines which ranks are equivalent.

use crate::cluster::ClusterOptions;
use crate::compute::{DatabaseOptions, NodeModels};
use crate::programs::{Ranks, drive};
use crate::results::RecordLevel;
use crate::session::{End, Ended, Outcome, Output, RunResults, Session, SimulationEnd, Source, Stop, Watch};
use crate::tight::tightness;
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_costs::model::Target;
use uniference_formats::cluster::Resolved;
use uniference_formats::devices;
use uniference_formats::report::{JobReport, OperationReport, Report};
use uniference_formats::table::bytes;
use uniference_formats::units::counted;
use uniference_host::error::{Exit, HostError};
use uniference_programs::chakra::replay::{Replay, Rules};
use uniference_programs::workload::{Memory, Phase, Trace, Workload};
use uniference_sim::cluster::{Cluster, Device};
use uniference_sim::device::Precision;
use uniference_sim::engine::{self, Engine, Halt, HaltReason, Resumption};
use uniference_sim::ids::{GroupId, RankId};
use uniference_sim::network::Asymmetry;
use uniference_sim::program::{Program, ProgramError, Request};
use uniference_sim::symmetry::Symmetry;
use uniference_sim::time::Bytes;

/// Device model that is assumed if the cluster has none.
const ASSUMED: &str = "h100-sxm-80gb";

/// Number of simulated ranks from which the user is told why they are not folded.
const MANY: u32 = 1024;

/// Whether equivalent ranks are simulated as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fold {
    /// Folds along all axes of the job for which cluster and run are symmetric.
    #[default]
    Auto,
    /// Folds along all axes of the job, or fails.
    On,
    /// Simulates each rank.
    Off,
}

/// Options of a generated job's run.
pub struct Job {
    /// The job's program.
    pub workload: Workload,
    /// Cluster; it must be described.
    pub cluster: ClusterOptions,
    /// Fold of equivalent ranks.
    pub fold: Fold,
    /// Whether the job runs even if it needs more memory than devices have.
    pub ignore_memory: bool,
    /// Databases of measured operators.
    pub databases: DatabaseOptions,
    /// Command in the report.
    pub command: Vec<String>,
    /// The run folder, and the files in it.
    pub output: Output,
}

/// Runs a job: tries symmetries, beginning with the one that saves most, until one is exact.
///
/// # Errors
/// If the job does not fit the cluster, ranks that must be equivalent are not, or the results cannot be written.
pub fn run(job: &Job) -> Result<Ended<RunResults>, HostError> {
    let Job { workload, output, .. } = job;
    let chosen = job.cluster.resolve()?;
    check_ranks(workload, &chosen.resolved)?;
    let ranks = workload.world_size();
    let shortage = Shortage::worst(workload, &chosen.resolved.cluster.devices);
    if let Some(Shortage { problem, hint }) = shortage.as_ref().filter(|_| !job.ignore_memory) {
        return Err(HostError::Usage(format!("{problem}\nhint: {hint}; or add --ignore-memory to simulate it anyway")));
    }
    let assumed = assumed_devices(&chosen.resolved);
    let needs = needs(workload);
    let total = |rank: usize| needs.get(&workload.memory_class(rank as u32)).map(Memory::total);
    let tight = tightness(&chosen.resolved.cluster.devices, total);
    let shortage = shortage.map(|shortage| shortage.problem);
    let doubts: Vec<String> = shortage.into_iter().chain(tight).chain(assumed).collect();
    let targets = targets(&chosen.resolved);
    let models = NodeModels::new(&job.databases, targets.iter().cloned().map(Some).collect())?;
    let world = (0..ranks).map(RankId).collect();
    let rules = Arc::new(Rules { models: models.of_ranks(), ..Rules::of(world) });
    let mut session = Session::new(chosen, 0, job.command.clone(), output)?;
    session.models(&models);
    let mut reason: Option<Asymmetry> = None;
    for symmetry in job.symmetries(&session.resolved().cluster)? {
        let (order, simulated) = (symmetry.order(), ranks / symmetry.order());
        if let Some(Asymmetry { problem, hint }) = reason.as_ref().filter(|_| simulated >= MANY) {
            output.notices.say(&format!("simulating {simulated} of {ranks} ranks, because {problem}\nhint: {hint}"));
        }
        let mut source = Generated {
            workload,
            rules: rules.clone(),
            models: &models,
            targets: &targets,
            symmetry: &symmetry,
            ranks: BTreeMap::new(),
        };
        match session.carry_out(&mut source)? {
            Outcome::Finished(mut figures) => {
                figures.statistics.stand_for(order);
                let fewer = reason.filter(|_| order < workload.symmetry().order());
                let fewer = fewer.map_or_else(String::new, |reason| format!("; not fewer, because {}", reason.problem));
                if order > 1 {
                    output
                        .notices
                        .say(&format!("simulated {simulated} of {ranks} ranks, each representing {order}{fewer}"));
                }
                let mut report = session.report(*figures, doubts);
                let world = source.ranks.values().find_map(Replay::world_group);
                report.job = Some(came_to(workload, &targets, &report, world));
                return session.finish(report);
            }
            Outcome::Stopped(stop) => return Ok(Ended::Stopped(stop)),
            Outcome::Unlike(asymmetry) => reason = Some(asymmetry),
        }
    }
    let asymmetry = reason.expect("without symmetry all ranks are simulated");
    Err(HostError::Usage(format!("ranks are not equivalent: {asymmetry}")))
}

/// Refuses a cluster whose number of devices differs from the number of ranks.
pub(crate) fn check_ranks(workload: &Workload, resolved: &Resolved) -> Result<(), HostError> {
    let (ranks, devices) = (workload.world_size(), resolved.cluster.devices.len());
    if ranks as usize == devices {
        return Ok(());
    }
    let hint = "use a cluster with tp x cp x dp x pp devices";
    let (ranks, devices) = (counted(ranks, "rank"), counted(devices, "device"));
    Err(HostError::Usage(format!("the job has {ranks}, but the cluster has {devices}\nhint: {hint}")))
}

/// The simulated ranks, created when they first run.
struct Generated<'a> {
    workload: &'a Workload,
    rules: Arc<Rules>,
    models: &'a NodeModels,
    targets: &'a [Target],
    symmetry: &'a Symmetry,
    ranks: BTreeMap<RankId, Replay<Trace>>,
}

impl Ranks for Generated<'_> {
    fn resume(&mut self, Resumption { rank, task, now, reply }: Resumption) -> Result<Request, ProgramError> {
        let new = || Replay::new(rank, self.workload.trace(rank.0), self.rules.clone());
        self.ranks.entry(rank).or_insert_with(new).resume(now, task, reply)
    }
}

impl Source for Generated<'_> {
    fn drive(&mut self, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError> {
        let end = |ending| Ok(End::new(ending, Vec::new()));
        let targets = self.targets;
        let mut engine = match Engine::folded(cluster, self.symmetry) {
            Ok(engine) => engine,
            Err(asymmetry) => return end(SimulationEnd::Unlike(asymmetry)),
        };
        let represents = |rank: usize| self.symmetry.representative(RankId::from(rank)).index();
        if let Some(rank) = (0..targets.len()).find(|rank| targets[*rank] != targets[represents(*rank)]) {
            let problem = format!("the model or the rates of device `{}` differ", cluster.devices[rank].name);
            return end(SimulationEnd::Unlike(Asymmetry::new(problem)));
        }
        let ending = match drive(&mut engine, self, watch) {
            engine::RunEnd::Finished => SimulationEnd::Finished,
            engine::RunEnd::Halted(halt) => halted(&halt),
            engine::RunEnd::Failed(failure) => panic!("a generated trace cannot be run: {failure}"),
            engine::RunEnd::CutShort => unreachable!("nothing is replayed"),
        };
        let costed = self.models.costed(self.ranks.iter().map(|(rank, replay)| {
            let slowdown = cluster.devices[rank.index()].slowdown;
            (rank.index(), slowdown, Box::new(replay.operators()) as Box<dyn Iterator<Item = _>>)
        }));
        Ok(End { ending, lines: Vec::new(), costed })
    }
}

/// Figures of the job from the report of its run. Pipeline stages send their messages in the group of all ranks,
/// `world`.
fn came_to(workload: &Workload, targets: &[Target], report: &Report, world: Option<GroupId>) -> JobReport {
    let devices = targets.len() as f64;
    let (tokens, flops) = (workload.tokens(), workload.model_flops());
    let peak: f64 = targets.iter().map(|target| target.rates.peaks.serving(Precision::BFloat16).0).sum();
    let per_s = |amount: f64| if report.makespan_s > 0.0 { amount / report.makespan_s } else { 0.0 };
    let stages = workload.spec().layout.pipeline;
    let of_stages = |operation: &&OperationReport| {
        matches!(&*operation.operation, "send" | "recv") && Some(GroupId(operation.group)) == world
    };
    let messages = report.operations.iter().filter(of_stages);
    let waiting = messages.map(|operation| operation.exposed_s).sum::<f64>();
    let left = report.ranks.iter().map(|rank| rank.idle_s).sum::<f64>();
    JobReport {
        tokens,
        tokens_per_s: per_s(tokens as f64),
        tokens_per_s_per_device: per_s(tokens as f64) / devices,
        model_flops: flops,
        flops_per_s_per_device: per_s(flops) / devices,
        mfu: per_s(flops) / peak,
        bubble: (stages > 1).then(|| per_s(waiting + left) / devices),
        memory_bytes: needs(workload).into_values().map(|memory| memory.total()).max().unwrap_or(0),
        expert_imbalance: workload.expert_imbalance(),
    }
}

fn halted(halt: &Halt) -> SimulationEnd {
    match &halt.reason {
        HaltReason::Asymmetry(asymmetry) => SimulationEnd::Unlike(asymmetry.clone()),
        _ => {
            let text = halt.render(&|_| "a generated trace".to_owned(), &|_| Vec::new());
            SimulationEnd::Stopped(Stop { exit: Exit::Halted, message: format!("error: {text}") })
        }
    }
}

impl Job {
    fn symmetries(&self, cluster: &Cluster) -> Result<Vec<Symmetry>, HostError> {
        if self.output.record != RecordLevel::Summary && self.fold == Fold::On {
            let hint = "use --record summary or --fold off";
            return Err(HostError::Usage(format!(
                "a record of all ranks requires that every rank is simulated\nhint: {hint}"
            )));
        }
        let own_connections = cluster.backend.protocol.connections_per_group;
        let (all, mut symmetries) =
            (self.workload.symmetry().order(), self.workload.symmetries(&cluster.blocks(), own_connections));
        Ok(match self.fold {
            Fold::On => {
                symmetries.retain(|symmetry| symmetry.order() == all);
                symmetries
            }
            Fold::Auto if self.output.record == RecordLevel::Summary => symmetries,
            Fold::Auto | Fold::Off => vec![Symmetry::default()],
        })
    }
}

/// The device of each rank, for which operators are costed.
fn targets(resolved: &Resolved) -> Vec<Target> {
    let assumed = devices::find(ASSUMED).expect("the table has it");
    let assumed = Target { name: Some(assumed.name.clone()), rates: assumed.rates().expect("its rates are known") };
    let target = |(rates, name): (&Option<_>, &Option<String>)| match rates {
        Some(rates) => Target { name: name.clone(), rates: *rates },
        None => assumed.clone(),
    };
    resolved.rates.iter().zip(&resolved.models).map(target).collect()
}

/// A warning about devices without a model, for which one is assumed.
fn assumed_devices(resolved: &Resolved) -> Option<String> {
    let unknown = resolved.rates.iter().filter(|rates| rates.is_none()).count();
    let all = resolved.rates.len();
    (unknown > 0).then(|| {
        format!(
            "{unknown} of {all} devices name neither a `model` nor their rates in the cluster file; each is taken to be {ASSUMED}"
        )
    })
}

/// Description of the job, and the memory that its ranks need.
pub fn headline(workload: &Workload) -> String {
    let spec = workload.spec();
    let phase = match spec.phase {
        Phase::Train => "training step",
        Phase::Prefill => "prefill",
        Phase::Decode => "decoding",
    };
    let counted = |count: u64, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
    let most = needs(workload).into_values().max_by_key(Memory::total).expect("a layout has a stage");
    let (all, active) = (spec.model.parameters(), spec.model.active_parameters());
    let active = if active < all { format!(" ({:.2} active)", active as f64 / 1e9) } else { String::new() };
    format!(
        "{phase} of {:.2} billion parameters{active} on {}; {} of {} on each replica\nmemory of a rank: at most {} ({})",
        all as f64 / 1e9,
        counted(workload.world_size().into(), "rank", "ranks"),
        counted(spec.micro_batches(), "micro-batch", "micro-batches"),
        counted(spec.micro_batch, "sequence", "sequences"),
        bytes(most.total()),
        by_kind(&most),
    )
}

/// Memory of ranks, by the first rank of each class with equal needs.
fn needs(workload: &Workload) -> BTreeMap<u32, Memory> {
    workload.memory_classes().into_iter().map(|rank| (rank, workload.memory(rank))).collect()
}

/// `weights 14.96 GiB, activations 2.00 GiB`.
fn by_kind(memory: &Memory) -> String {
    let kinds = memory.kinds();
    let shown = kinds.iter().filter(|(_, size)| *size > 0).map(|(name, size)| format!("{name} {}", bytes(*size)));
    shown.collect::<Vec<_>>().join(", ")
}

/// Ranks that need more memory than their devices have.
struct Shortage {
    problem: String,
    hint: &'static str,
}

impl Shortage {
    /// The shortage of the rank that lacks most; `None`: each rank fits, as far as device memory is known.
    fn worst(workload: &Workload, devices: &[Device]) -> Option<Shortage> {
        let needs = needs(workload);
        let need = |rank: usize| &needs[&workload.memory_class(rank as u32)];
        let lacking = devices.iter().enumerate().filter_map(|(rank, device)| {
            let Bytes(available) = device.memory?;
            Some((need(rank).total().checked_sub(available).filter(|lack| *lack > 0)?, rank))
        });
        let lacking: Vec<(u64, usize)> = lacking.collect();
        let (_, rank) = *lacking.iter().max_by_key(|(lack, rank)| (*lack, std::cmp::Reverse(*rank)))?;
        let (memory, Device { name, memory: available, .. }) = (need(rank), &devices[rank]);
        let kinds = memory.kinds();
        let (largest, _) = kinds.iter().max_by_key(|(_, size)| *size).expect("there are kinds");
        let hint = match *largest {
            "activations" if workload.spec().phase == Phase::Train => {
                "use --recompute full, a smaller --micro-batch, more --cp, or more --tp with --sequence-parallel"
            }
            "activations" => "use a smaller --micro-batch or more --tp",
            "KV cache" => "use a smaller --batch or --seq, or more --tp, --pp or --dp",
            _ if workload.spec().phase == Phase::Train => "use more --tp or --pp, or --zero with --dp",
            _ => "use more --tp or --pp",
        };
        let problem = format!(
            "rank {rank} needs {} of memory ({}), but device `{name}` has {}; {} of {} ranks do not fit",
            bytes(memory.total()),
            by_kind(memory),
            available.map_or_else(String::new, |Bytes(available)| bytes(available)),
            lacking.len(),
            devices.len(),
        );
        Some(Shortage { problem, hint })
    }
}
