//! Owns the run of generated jobs: whether they fit their devices, and which ranks stand for others that are alike.
//!
//! What the jobs are made of is `uniference-formats`' business, which ranks are alike the simulator's.

use crate::cluster::{ClusterOptions, value};
use crate::programs::{Ranks, drive};
use crate::results::RecordLevel;
use crate::session::{Done, End, Ending, Outcome, Output, Session, Source, Stop, Watch};
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_formats::cluster::{Rates, Resolved};
use uniference_formats::table::bytes;
use uniference_formats::units::{Bandwidth, Flops, counted};
use uniference_host::error::{Exit, HostError};
use uniference_programs::chakra::replay::{Replay, Rules};
use uniference_programs::workload::{Memory, Phase, Trace, Workload};
use uniference_sim::cluster::{Cluster, Device};
use uniference_sim::engine::{self, Engine, Halt, HaltReason, Resumption};
use uniference_sim::ids::RankId;
use uniference_sim::network::Asymmetry;
use uniference_sim::program::{Program, ProgramError, Request};
use uniference_sim::symmetry::Symmetry;
use uniference_sim::time::Bytes;

/// The rates of an NVIDIA H100 SXM as in its datasheet (2023): bfloat16 without sparsity, and HBM3.
const H100: [&str; 2] = ["989 TFLOPS", "3.35 TB/s"];

/// So many simulated ranks take long enough that a user wants to know why they are not fewer.
const MANY: u32 = 1024;

/// Whether ranks that are alike are simulated as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fold {
    /// Along all axes of the job for which the cluster and the run turn out to be alike.
    #[default]
    Auto,
    /// Along all axes of the job, or not at all.
    On,
    /// Every rank is simulated.
    Off,
}

/// A generated job to be run.
pub struct Job {
    /// What it does.
    pub workload: Workload,
    /// What it runs on; it must be described.
    pub cluster: ClusterOptions,
    /// Which ranks stand for others.
    pub fold: Fold,
    /// It runs though it needs more memory than devices have.
    pub ignore_memory: bool,
    /// What devices compute at most whose rates the cluster does not have; an H100's if it is not given.
    pub peak: Option<String>,
    /// What they move between memory and processor at most; an H100's if it is not given.
    pub memory_bandwidth: Option<String>,
    /// What the report calls it by.
    pub command: Vec<String>,
    /// Where the results go.
    pub output: Output,
}

/// Runs a job: tries symmetries, the one that saves most first, until one turns out to be exact.
///
/// # Errors
/// If it does not fit the cluster, or ranks that must be alike are not; and where the results cannot be written.
pub fn run(job: &Job) -> Result<Done, HostError> {
    let Job { workload, output, .. } = job;
    let chosen = job.cluster.resolve()?;
    check_ranks(workload, &chosen.resolved)?;
    let ranks = workload.world_size();
    let shortage = Shortage::worst(workload, &chosen.resolved.cluster.devices);
    if let Some(Shortage { problem, hint }) = shortage.as_ref().filter(|_| !job.ignore_memory) {
        return Err(HostError::Usage(format!("{problem}\nhint: {hint}; or add --ignore-memory to simulate it anyway")));
    }
    let assumed = job.assumed_rates(&chosen.resolved);
    let doubts = shortage.map(|shortage| shortage.problem).into_iter().chain(assumed);
    let doubts: Vec<String> = doubts.chain(job.unused_rates(&chosen.resolved)).collect();
    let session = Session::new(chosen, 0, job.command.clone(), output)?;
    let rules = Arc::new(job.rules(&session.resolved().rates)?);
    let mut reason: Option<Asymmetry> = None;
    for symmetry in job.symmetries(&session.resolved().cluster)? {
        let (order, simulated) = (symmetry.order(), ranks / symmetry.order());
        if let Some(Asymmetry { problem, hint }) = reason.as_ref().filter(|_| simulated >= MANY) {
            output.notices.say(&format!("simulating {simulated} of {ranks} ranks, because {problem}\nhint: {hint}"));
        }
        let rates = &session.resolved().rates;
        let mut source =
            Generated { workload, rules: rules.clone(), rates, symmetry: &symmetry, ranks: BTreeMap::new() };
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
                let report = session.report(*figures, doubts);
                return session.finish(report);
            }
            Outcome::Stopped(stop) => return Ok(Done::Stopped(stop)),
            Outcome::Unlike(asymmetry) => reason = Some(asymmetry),
        }
    }
    let asymmetry = reason.expect("without symmetry all ranks are simulated");
    Err(HostError::Usage(format!("ranks are not equivalent: {asymmetry}")))
}

/// Refuses a cluster that has not as many devices as the job has ranks.
pub(crate) fn check_ranks(workload: &Workload, resolved: &Resolved) -> Result<(), HostError> {
    let (ranks, devices) = (workload.world_size(), resolved.cluster.devices.len());
    if ranks as usize == devices {
        return Ok(());
    }
    let hint = "use a cluster with tp x cp x dp x pp devices";
    let (ranks, devices) = (counted(ranks, "rank"), counted(devices, "device"));
    Err(HostError::Usage(format!("the job has {ranks}, but the cluster has {devices}\nhint: {hint}")))
}

/// The ranks that are simulated, made when they first have their turn.
struct Generated<'a> {
    workload: &'a Workload,
    rules: Arc<Rules>,
    rates: &'a [Option<Rates>],
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
        let mut engine = match Engine::folded(cluster, self.symmetry) {
            Ok(engine) => engine,
            Err(asymmetry) => return end(Ending::Unlike(asymmetry)),
        };
        let represents = |rank: usize| self.symmetry.representative(RankId::from(rank)).index();
        if let Some(rank) = (0..self.rates.len()).find(|rank| self.rates[*rank] != self.rates[represents(*rank)]) {
            let problem = format!("the rates of device `{}` differ", cluster.devices[rank].name);
            return end(Ending::Unlike(Asymmetry::new(problem)));
        }
        end(match drive(&mut engine, self, watch) {
            engine::Ending::Finished => Ending::Finished,
            engine::Ending::Halted(halt) => halted(&halt),
            engine::Ending::Failed(failure) => panic!("a generated trace cannot be run: {failure}"),
            engine::Ending::CutShort => unreachable!("nothing is replayed"),
        })
    }
}

fn halted(halt: &Halt) -> Ending {
    match &halt.reason {
        HaltReason::Asymmetry(asymmetry) => Ending::Unlike(asymmetry.clone()),
        _ => {
            let text = halt.render(&|_| "a generated trace".to_owned(), &|_| Vec::new());
            Ending::Stopped(Stop { exit: Exit::Halted, message: format!("error: {text}") })
        }
    }
}

impl Job {
    /// `rates` are those of the ranks' devices, where the cluster file has them.
    fn rules(&self, rates: &[Option<Rates>]) -> Result<Rules, HostError> {
        let given = |rate: &Option<String>, default: &str| rate.clone().unwrap_or_else(|| default.to_owned());
        let peak: Flops = value("--peak", &given(&self.peak, H100[0]))?;
        let memory: Bandwidth = value("--memory-bandwidth", &given(&self.memory_bandwidth, H100[1]))?;
        let all = Rates::uniform(peak.0, memory.0.bytes_per_second());
        let world = (0..rates.len()).map(RankId::from).collect();
        Ok(Rules { rooflines: rates.iter().map(|rates| Some(rates.unwrap_or(all))).collect(), ..Rules::of(world) })
    }

    /// The rates that are assumed because nobody has given them.
    fn assumed_rates(&self, resolved: &Resolved) -> Option<String> {
        let unknown = resolved.rates.iter().filter(|rates| rates.is_none()).count();
        let given = [self.peak.is_some(), self.memory_bandwidth.is_some()];
        let assumed: Vec<&str> =
            H100.into_iter().zip(given).filter(|(_, given)| !given).map(|(rate, _)| rate).collect();
        (unknown > 0 && !assumed.is_empty()).then(|| {
            let (rates, all) = (assumed.join(" and "), resolved.rates.len());
            format!("{unknown} of {all} devices have no rates in the cluster file; assumed those of an H100 ({rates})")
        })
    }

    /// Rates that were given and change nothing.
    fn unused_rates(&self, resolved: &Resolved) -> Option<String> {
        let options = [("--peak", &self.peak), ("--memory-bandwidth", &self.memory_bandwidth)];
        let given: Vec<&str> = options.iter().filter(|(_, rate)| rate.is_some()).map(|(option, _)| *option).collect();
        let unused = !given.is_empty() && resolved.rates.iter().all(Option::is_some);
        unused.then(|| format!("{} not used; the cluster file gives the rates of every device", given.join(" and ")))
    }

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

/// What the job is, and what its ranks need of their devices' memory.
pub fn headline(workload: &Workload) -> String {
    let spec = workload.spec();
    let phase = match spec.phase {
        Phase::Train => "training step",
        Phase::Prefill => "prefill",
        Phase::Decode => "decoding",
    };
    let counted = |count: u64, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
    let most = (0..spec.layout.pipeline).map(|stage| memory_of_stage(workload, stage));
    let most = most.max_by_key(|(_, memory)| memory.total()).expect("a layout has a stage").1;
    format!(
        "{phase} of {:.2} billion parameters on {}; {} of {} on each replica\nmemory of a rank: at most {} ({})",
        spec.model.parameters() as f64 / 1e9,
        counted(workload.world_size().into(), "rank", "ranks"),
        counted(spec.micro_batches(), "micro-batch", "micro-batches"),
        counted(spec.micro_batch, "sequence", "sequences"),
        bytes(most.total()),
        by_kind(&most),
    )
}

/// The first rank of a stage, and what each of its ranks needs.
fn memory_of_stage(workload: &Workload, stage: u32) -> (u32, Memory) {
    let first = workload.world_size() / workload.spec().layout.pipeline * stage;
    (first, workload.memory(first))
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
    /// Described by the rank that lacks most; `None`: every rank fits, as far as the cluster says what devices have.
    fn worst(workload: &Workload, devices: &[Device]) -> Option<Shortage> {
        let stages = workload.spec().layout.pipeline;
        let needs: Vec<Memory> = (0..stages).map(|stage| memory_of_stage(workload, stage).1).collect();
        let need = |rank: usize| &needs[workload.spec().layout.place(rank as u32).stage as usize];
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
