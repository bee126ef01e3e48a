//! Owns the replay of execution traces: their cluster, how they are driven, and the message when they halt.
//!
//! The meaning and the start times of nodes are defined in `uniference-formats`.

mod files;

use crate::cluster::{Chosen, ClusterOptions};
use crate::compute::{DatabaseOptions, NodeModels};
use crate::programs::{Ranks, drive};
use crate::results::{self, RecordLevel, TIMELINE};
use crate::session::{End, Ended, Outcome, Output, RunResults, Session, SimulationEnd, Source, Stop, Watch};
use crate::simulated::{Look, Simulated};
use crate::{folder::Folder, input};
use files::{Pieces, Traces, open, with_suffix};
pub use files::{in_file, of_rank, prefix_and_rank, ranks_of, text_workload, without_gaps};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uniference_costs::model::Target;
use uniference_formats::astra::inputs::{Network, System};
use uniference_formats::astra::memory::{RemoteMemory, Sharing};
use uniference_formats::chakra::groups::ProcessGroup;
use uniference_formats::chakra::own::{CLUSTER, LIBRARY, SEED};
use uniference_formats::chakra::read::{ReadError, Reader};
use uniference_formats::chakra::schema::NodeType;
use uniference_formats::cluster::{Rates, Resolved};
use uniference_formats::units::counted;
use uniference_host::error::{Exit, HostError};
use uniference_programs::astra::closed_form::AnalyticalModel;
use uniference_programs::astra::custom::Custom;
use uniference_programs::astra::schedule::{self, Doubts, Machine, Scales, ScheduleError};
use uniference_programs::astra::timeline::TimelineWriter;
use uniference_programs::chakra::feed::Expand;
use uniference_programs::chakra::replay::{Oddities, Replay, Rules, rehearse};
use uniference_sim::cluster::Cluster;
use uniference_sim::device::HostMemory;
use uniference_sim::engine::{self, Doing, Engine, Failure, Halt, HaltReason, Resumption};
use uniference_sim::ids::{Handle, RankId};
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::program::{Program, ProgramError, Request};
use uniference_sim::time::SimDuration;

/// Number of nodes that are examined to find the origin of a trace.
const LOOKED_AT: usize = 1 << 16;

/// Options of a replay of execution traces.
#[derive(Clone)]
pub struct TraceReplay {
    /// The prefix of traces named `PREFIX.RANK.et` or `PREFIX.RANK.et.gz`, a pattern with `%d` for the rank, one trace
    /// for all ranks, or a text workload.
    pub prefix: PathBuf,
    /// Cluster; if the options describe none, the cluster that the traces were recorded on.
    pub cluster: ClusterOptions,
    /// Seed; `None`: the seed of the recorded run, or 0.
    pub seed: Option<u64>,
    /// Command in the report.
    pub command: Vec<String>,
    /// The run folder, and the files in it.
    pub output: Output,
    /// Interpretation of the traces.
    pub meaning: Meaning,
}

/// Interpretation of execution traces.
#[derive(Clone)]
pub struct Meaning {
    /// Factor for the durations of compute and memory nodes; finite, not negative.
    pub compute_scale: f64,
    /// Factor for the bytes of communication; finite, not negative.
    pub comm_scale: f64,
    /// A file of process groups: a JSON object of lists of ranks by name.
    pub groups: Option<PathBuf>,
    /// ASTRA-sim's congestion-unaware closed form, in place of a simulated cluster.
    pub closed_form: Option<ClosedForm>,
    /// ASTRA-sim's system file: the roofline of nodes without a duration, collectives given as traces, and algorithms
    /// of the closed form.
    pub system: Option<PathBuf>,
    /// ASTRA-sim's remote memory file: costs of memory nodes.
    pub memory: Option<PathBuf>,
    /// Number of passes over a text workload's layers; at least 1.
    pub passes: u32,
    /// The user's own database of measured operators, for operators that nodes list.
    pub own_database: Option<PathBuf>,
}

impl Default for Meaning {
    fn default() -> Meaning {
        Meaning {
            compute_scale: 1.0,
            comm_scale: 1.0,
            groups: None,
            closed_form: None,
            system: None,
            memory: None,
            passes: 1,
            own_database: None,
        }
    }
}

/// The machine of ASTRA-sim's closed form, in addition to [`Meaning::system`].
#[derive(Clone)]
pub struct ClosedForm {
    /// The network file (`--astra-network`).
    pub network: Option<PathBuf>,
    /// Number of queues that share a dimension's active chunks; at least 1.
    pub queues_per_dim: u32,
}

/// Replays traces on a cluster, or by ASTRA-sim's closed form.
///
/// # Errors
/// If the traces cannot be read or do not fit the cluster, or the results cannot be written.
pub fn replay(args: &TraceReplay) -> Result<Ended<RunResults>, HostError> {
    if let Some(closed_form) = &args.meaning.closed_form {
        return replay_astra(args, closed_form);
    }
    let (chosen, seed, mut source) = prepare(args)?;
    let session = Session::new(chosen, seed, args.command.clone(), &named(args))?;
    let figures = match session.carry_out(&mut source)? {
        Outcome::Finished(figures) => *figures,
        Outcome::Stopped(stop) => return Ok(Ended::Stopped(stop)),
        Outcome::Unlike(_) => unreachable!("every rank is replayed"),
    };
    let report = session.report(figures, source.doubts(session.resolved()));
    session.finish(report)
}

/// The cluster that traces are replayed on.
pub(crate) fn origin(args: &TraceReplay) -> Result<Resolved, HostError> {
    prepare(args).map(|(chosen, ..)| chosen.resolved)
}

/// Passes traces and the cluster of their replay to a function that drives the simulation.
pub(crate) fn driven<T>(
    args: &TraceReplay,
    with: impl FnOnce(&Cluster, &mut dyn Source) -> Result<T, HostError>,
) -> Result<T, HostError> {
    let (mut chosen, seed, mut source) = prepare(args)?;
    chosen.resolved.cluster.dynamics.seed = seed;
    with(&chosen.resolved.cluster, &mut source)
}

/// Simulates traces on a cluster without writing a run folder.
///
/// # Errors
/// As [`replay`]; and if the traces are to be run by ASTRA-sim's closed form, which has no events.
pub(crate) fn simulate(args: &TraceReplay, look: Look) -> Result<Ended<Simulated>, HostError> {
    if args.meaning.closed_form.is_some() {
        let hint = "remove --fidelity astra";
        return Err(HostError::Usage(format!("--fidelity astra gives no causes to explain or change\nhint: {hint}")));
    }
    let (mut chosen, seed, mut source) = prepare(args)?;
    chosen.resolved.cluster.dynamics.seed = seed;
    Simulated::of(&chosen.resolved.cluster, &mut source, look)
}

/// The cluster that traces are replayed on, the seed, and the traces.
fn prepare(args: &TraceReplay) -> Result<(Chosen, u64, Traced), HostError> {
    let notices = &args.output.notices;
    let traces = Traces::find(&args.prefix, args.meaning.passes)?;
    let (chosen, seed) = cluster(&traces, args)?;
    let databases = DatabaseOptions { own: args.meaning.own_database.clone(), ..DatabaseOptions::default() };
    let targets = chosen.resolved.rates.iter().zip(&chosen.resolved.models);
    let targets = targets.map(|(rates, name)| rates.map(|rates| Target { name: name.clone(), rates }));
    let models = NodeModels::new(&databases, targets.collect())?;
    let rules = args.meaning.rules(&chosen.resolved.rates)?;
    let rules = Arc::new(Rules { models: models.of_ranks(), ..rules });
    let traces = traces.open(chosen.resolved.cluster.devices.len(), notices)?;
    let replays = (0..).zip(traces).map(|(rank, trace)| Replay::new(RankId(rank), trace, rules.clone()));
    let source = Traced(replays.collect(), models);
    Ok((chosen, seed, source))
}

/// The output; a run folder without a given name is named after the traces.
fn named(args: &TraceReplay) -> Output {
    Output { name: with_suffix(&args.prefix, ".et"), ..args.output.clone() }
}

/// Replays of each rank's trace.
struct Traced(Vec<Replay<Reader<Pieces>>>, NodeModels);

impl Ranks for Traced {
    fn resume(&mut self, Resumption { rank, task, now, reply }: Resumption) -> Result<Request, ProgramError> {
        self.0[rank.index()].resume(now, task, reply)
    }
}

impl Source for Traced {
    fn drive(&mut self, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError> {
        let ending = match drive(&mut Engine::new(cluster), self, watch) {
            engine::RunEnd::Finished => SimulationEnd::Finished,
            engine::RunEnd::Halted(halt) => {
                SimulationEnd::Stopped(Stop { exit: Exit::Halted, message: format!("error: {}", self.describe(&halt)) })
            }
            engine::RunEnd::Failed(Failure { rank, error, .. }) => {
                return Err(HostError::Usage(format!("the trace of {rank}: {error}")));
            }
            engine::RunEnd::CutShort => unreachable!("traces say how their ranks end"),
        };
        let costed = self.1.costed(self.0.iter().enumerate().map(|(rank, replay)| {
            (rank, cluster.devices[rank].slowdown, Box::new(replay.operators()) as Box<dyn Iterator<Item = _>>)
        }));
        Ok(End { ending, lines: Vec::new(), costed })
    }
}

/// The cluster and the seed from the options, or else those that the traces were recorded with. If no backend is named,
/// traces of accelerators run on NCCL.
fn cluster(traces: &Traces<'_>, args: &TraceReplay) -> Result<(Chosen, u64), HostError> {
    let (first, mut reader) = match traces {
        Traces::Files { prefix, there } => {
            let first = there.as_ref().map_or_else(|| (*prefix).to_owned(), |files| files[0].clone());
            let reader = open(&first)?;
            (first, reader)
        }
        // All compute of a text workload runs on accelerators.
        Traces::Text { .. } => return Ok((on_accelerators(args)?, args.seed.unwrap_or_default())),
    };
    let metadata = reader.metadata().clone();
    let seed = args.seed.or(metadata.unsigned(SEED)).unwrap_or_default();
    let chosen = match metadata.text(CLUSTER) {
        // In traces of this program the library is the cluster's, whatever device they computed on.
        Some(toml) => args.cluster.resolve_again(&first, toml)?,
        None if metadata.text(LIBRARY) == Some("gloo") => args.cluster.resolve_with(Some("gloo"))?,
        None => match runs_on_accelerator(&mut reader).map_err(in_file(&first))? {
            true => on_accelerators(args)?,
            false => args.cluster.resolve()?,
        },
    };
    Ok((chosen, seed))
}

/// The cluster that the options describe; if no backend is named, it is NCCL.
fn on_accelerators(args: &TraceReplay) -> Result<Chosen, HostError> {
    let chosen = args.cluster.resolve_with(Some("nccl"))?;
    if !chosen.backend_named {
        let note = "note: the traces were recorded on accelerators; using backend nccl (change it with --backend)";
        args.output.notices.say_once(note);
    }
    Ok(chosen)
}

/// Whether a node computes or communicates on an accelerator: each node that is not marked as the host's (`is_cpu_op`),
/// such as a trace's kernels and all nodes of ASTRA-sim's tools. Only the first nodes are examined.
fn runs_on_accelerator(reader: &mut Reader<Pieces>) -> Result<bool, ReadError> {
    for _ in 0..LOOKED_AT {
        let Some(node) = reader.next_node()? else { return Ok(false) };
        if !matches!(node.r#type(), NodeType::Metadata | NodeType::Invalid) && !node.is_cpu_op() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Replays traces by the closed form. It has no cluster, and records only when nodes and ranks end.
fn replay_astra(args: &TraceReplay, closed_form: &ClosedForm) -> Result<Ended<RunResults>, HostError> {
    if args.cluster.is_given() {
        let hint = "remove --cluster and --ranks, or remove --fidelity astra";
        return Err(HostError::Usage(format!(
            "--fidelity astra uses the network of --astra-network, not a cluster\nhint: {hint}"
        )));
    }
    let Meaning { compute_scale, comm_scale, passes, .. } = args.meaning;
    let (Some(system_file), Some(network_file)) = (&args.meaning.system, &closed_form.network) else {
        let hint = "give both files of ASTRA-sim";
        return Err(HostError::Usage(format!(
            "--fidelity astra needs --astra-system and --astra-network\nhint: {hint}"
        )));
    };
    let notices = &args.output.notices;
    let network = Network::parse(&text(network_file)?).map_err(in_file(network_file))?;
    let system = system(system_file)?;
    let expand = custom(system_file, &system)?;
    let memory = args.meaning.memory.as_deref().map(memory).transpose()?;
    let model = AnalyticalModel::new(system, network, closed_form.queues_per_dim);
    let traces = Traces::find(&args.prefix, passes)?.open(model.ranks() as usize, notices)?;
    let groups = args.meaning.groups.as_deref().map_or(Ok(Vec::new()), groups)?;
    let scales = Scales { compute: compute_scale, communication: comm_scale };
    let Output { folder, name, record, .. } = named(args);
    let folder = Folder::prepare(folder.as_deref(), &name, notices)?;
    let mut figures = (Statistics::default(), Digest::default());
    let machine = Machine { model: &model, memory, expand };
    let mut timeline = match record {
        RecordLevel::Summary => None,
        RecordLevel::Ops | RecordLevel::Full => Some(TimelineWriter::new(folder.create(TIMELINE)?)),
    };
    let mut note = |done: &schedule::CompletedNode<'_>| timeline.iter_mut().for_each(|timeline| timeline.node(done));
    match schedule::run(&machine, &groups, scales, traces, &mut figures, &mut note) {
        Ok(Doubts { untimed, uses_given_groups, oddities: odd }) => {
            timeline.map(TimelineWriter::finish).transpose()?;
            let inputs = format!("{}\n{}", text(network_file)?, text(system_file)?);
            let mut report = results::of_astra(&figures, inputs, args.command.clone());
            report.warnings.extend(unused_groups(&groups, uses_given_groups));
            report.warnings.extend((untimed > 0).then(|| {
                format!(
                    "{untimed} compute nodes give a number of operations (`num_ops`) and no duration; simulated as 1 ns each\nhint: set \"roofline-enabled\" to 1 in the system file, with `peak-perf` and `local-mem-bw`"
                )
            }));
            report.warnings.extend(oddities(std::iter::once(odd)));
            folder.write(results::REPORT, report.to_json().as_bytes())?;
            Ok(Ended::Finished(RunResults { report: Box::new(report), folder }))
        }
        Err(error @ ScheduleError::Deadlock(_)) => {
            Ok(Ended::Stopped(Stop { exit: Exit::Halted, message: format!("error: {error}\n") }))
        }
        Err(error) => Err(HostError::Usage(error.to_string())),
    }
}

fn memory(path: &Path) -> Result<RemoteMemory, HostError> {
    RemoteMemory::parse(&text(path)?).map_err(in_file(path))
}

/// Rates of the remote memory, if there is one. ASTRA-sim models sharing of the memory; in this replay each rank has
/// the whole bandwidth.
fn rates_of(memory: RemoteMemory) -> Option<HostMemory> {
    let latency = SimDuration::from_secs_f64(memory.remote_mem_latency / 1e9)?;
    let there = memory.memory_type != Sharing::NoMemoryExpansion;
    there.then_some(HostMemory { latency, bandwidth: memory.remote_mem_bw * 1e9 })
}

/// The collectives that the system file gives as traces: at the given path, or else next to the system file.
fn custom(path: &Path, system: &System) -> Result<Option<Arc<dyn Expand>>, HostError> {
    let mut custom = Custom::default();
    for (kind, prefix) in system.custom() {
        let given = PathBuf::from(prefix);
        let beside = path.with_file_name(given.file_name().unwrap_or_default());
        let prefix = if of_rank(&given, 0).is_file() { given } else { beside };
        let files = (0..).map(|rank| of_rank(&prefix, rank)).take_while(|file| file.is_file());
        let traces = files.map(|file| open(&file)).collect::<Result<Vec<_>, _>>()?;
        custom.add(kind, traces).map_err(in_file(&prefix))?;
    }
    Ok(if custom.is_empty() { None } else { Some(Arc::new(custom)) })
}

fn system(path: &Path) -> Result<System, HostError> {
    System::parse(&text(path)?).map_err(in_file(path))
}

/// The system's roofline, if it is enabled and has rates.
fn roofline(system: System) -> Option<Rates> {
    let (flops, memory) = (system.peak_perf * 1e12, system.local_mem_bw * 1e9);
    (system.roofline_enabled != 0 && flops > 0.0 && memory > 0.0).then(|| Rates::uniform(flops, memory))
}

fn text(path: &Path) -> Result<String, HostError> {
    input::text(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "give a file in ASTRA-sim's format",
    })
}

impl Meaning {
    /// Rules for nodes; `rates` are the rates of the ranks' devices.
    fn rules(&self, rates: &[Option<Rates>]) -> Result<Rules, HostError> {
        let system = self.system.as_deref().map(system).transpose()?;
        let expand = match (&self.system, &system) {
            (Some(path), Some(system)) => custom(path, system)?,
            _ => None,
        };
        let all = system.and_then(roofline);
        Ok(Rules {
            world: (0..rates.len()).map(RankId::from).collect(),
            compute_scale: self.compute_scale,
            comm_scale: self.comm_scale,
            rooflines: rates.iter().map(|rates| rates.or(all)).collect(),
            memory: self.memory.as_deref().map(memory).transpose()?.and_then(rates_of),
            expand,
            groups: self.groups.as_deref().map_or(Ok(Vec::new()), groups)?,
            ..Rules::of(Arc::new([]))
        })
    }
}

fn groups(path: &Path) -> Result<Vec<ProcessGroup>, HostError> {
    let text = input::text(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "the file must contain a JSON object: {\"1\": [0, 1], \"2\": [2, 3]}",
    })?;
    let groups: BTreeMap<String, Vec<u32>> = serde_json::from_str(&text).map_err(|error| {
        let hint =
            "the file must contain a JSON object that maps names to lists of ranks: {\"1\": [0, 1], \"2\": [2, 3]}";
        HostError::Usage(format!("{} does not describe process groups: {error}\nhint: {hint}", path.display()))
    })?;
    Ok(groups.into_iter().map(|(name, ranks)| ProcessGroup { name, description: None, ranks }).collect())
}

/// A warning about process groups that were given and that no node names.
fn unused_groups(given: &[ProcessGroup], used: bool) -> Option<String> {
    (!used && !given.is_empty()).then(|| {
        format!(
            "no node names a process group of --astra-comm-groups ({}); communication that names no process group is among all ranks\nhint: nodes name their process group in the attribute `pg_name`; `uniference chakra stats` lists the attributes of a trace",
            counted(given.len(), "process group")
        )
    })
}

/// Warnings about parts of traces that are not simulated as written.
fn oddities(ranks: impl Iterator<Item = Oddities>) -> Vec<String> {
    let mut all = Oddities::default();
    for rank in ranks {
        all.unknown_types += rank.unknown_types;
        all.missing_dependencies += rank.missing_dependencies;
        for (attribute, nodes) in rank.ignored {
            *all.ignored.entry(attribute).or_default() += nodes;
        }
    }
    let types = (all.unknown_types > 0)
        .then(|| format!("{} of unknown type; simulated as 0 s", counted(all.unknown_types, "node")));
    let missing = (all.missing_dependencies > 0)
        .then(|| format!("dependencies on missing nodes: {}; treated as satisfied", all.missing_dependencies));
    let ignored = all.ignored.into_iter().map(|(attribute, nodes)| {
        format!("attribute `{attribute}` of {} is not supported; ignored", counted(nodes, "communication node"))
    });
    types.into_iter().chain(missing).chain(ignored).collect()
}

/// Checks a trace as the trace of each of `own` ranks of a job, without the traces of other ranks, and fails if a
/// replay would refuse it.
///
/// # Errors
/// If the trace alone cannot be replayed.
pub fn check(trace: &Path, own: Range<u32>, ranks: u32, groups_file: Option<&Path>) -> Result<(), HostError> {
    let groups = groups_file.map_or(Ok(Vec::new()), groups)?;
    let rules = Arc::new(Rules { groups, ..Rules::of((0..ranks).map(RankId).collect()) });
    for rank in own {
        rehearse(RankId(rank), open(trace)?, Arc::clone(&rules)).map_err(in_file(trace))?;
    }
    Ok(())
}

impl Traced {
    /// Warnings about doubtful durations of nodes.
    fn doubts(&self, resolved: &Resolved) -> Vec<String> {
        let untimed: u64 = self.0.iter().map(Replay::untimed).sum();
        let derived: u64 = self.0.iter().map(Replay::by_roofline).sum();
        let rates = resolved.rates.iter().position(Option::is_some).filter(|_| derived == 0);
        let untimed =
            (untimed > 0).then(|| format!("{} without a duration; simulated as 0 s", counted(untimed, "node")));
        let unused = rates.map(|rank| {
            let name = &resolved.cluster.devices[rank].name;
            format!("`peak_flops` and `memory_bandwidth` of device `{name}` have no effect: every node has a duration")
        });
        let given = self.0.first().map_or(&[][..], |replay| replay.given_groups());
        let unused_groups = unused_groups(given, self.0.iter().any(Replay::uses_given_groups));
        let oddities = oddities(self.0.iter().map(Replay::oddities));
        untimed.into_iter().chain(unused).chain(unused_groups).chain(oddities).collect()
    }

    /// Describes why traces cannot continue, by the names of their nodes.
    fn describe(&self, halt: &Halt) -> String {
        let node = |rank: RankId, handle: Handle| match self.0[rank.index()].behind(handle) {
            Some((node, _)) => format!("node {} `{}`", node.id, node.name),
            None => "a completed node".to_owned(),
        };
        let mut text = match &halt.reason {
            HaltReason::Deadlock => format!("deadlock at {}: no rank can proceed\n", halt.at),
            HaltReason::EndOfTime => format!("virtual time exceeds its limit of 213 days (at {})\n", halt.at),
            HaltReason::Asymmetry(asymmetry) => format!("ranks are not equivalent: {asymmetry}\n"),
            HaltReason::Groups(clash) => panic!("traces name no groups: {clash:?}"),
            HaltReason::Mismatch { first, second, what, .. } => format!(
                "mismatch at {}: {} and {} called different operations that should match\n  {what}\n  {}: {}\n  {}: {}\n",
                halt.at,
                second.0,
                first.0,
                first.0,
                node(first.0, first.1),
                second.0,
                node(second.0, second.1),
            ),
        };
        for report in halt.ranks.iter().filter(|report| report.ended.is_none()) {
            for task in &report.tasks {
                let Doing::Waiting(pending) = &task.doing else { continue };
                for pending in pending {
                    let name = node(report.rank, pending.handle);
                    let _ = writeln!(text, "  {}, clock {}: {name}: {pending}", report.rank, report.clock);
                    text += &waiting(&self.0[report.rank.index()], pending.handle);
                }
            }
        }
        text
    }
}

/// Names of the first few nodes that wait for a node.
fn waiting(rank: &Replay<Reader<Pieces>>, handle: Handle) -> String {
    let Some((_, waiting)) = rank.behind(handle).filter(|(_, waiting)| !waiting.is_empty()) else {
        return String::new();
    };
    let names: Vec<String> = waiting.iter().take(4).map(|node| format!("node {} `{}`", node.id, node.name)).collect();
    let more = if waiting.len() > names.len() { ", ..." } else { "" };
    format!("    blocked by it: {}{more}\n", names.join(", "))
}
