//! Owns the replay of execution traces: which files, how they are read, and what is said when they cannot go on.
//!
//! What nodes mean and when they start is `uniference-formats`' business.

use super::cluster::{Chosen, ClusterArgs};
use super::console::Counter;
use super::folder::Folder;
use super::results::{self, Beside, RecordLevel, Recording};
use crate::error::{Exit, HostError};
use crate::live::exchange::Recorder;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::{Display, Write};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uniference_formats::astra::closed_form::Model;
use uniference_formats::astra::custom::Custom;
use uniference_formats::astra::inputs::{Network, System};
use uniference_formats::astra::layers::{TextWorkload, is_text_workload};
use uniference_formats::astra::memory::{RemoteMemory, Sharing};
use uniference_formats::astra::schedule::{self, Done, Machine, Scales, ScheduleError};
use uniference_formats::astra::timeline::TimelineWriter;
use uniference_formats::chakra::feed::Expand;
use uniference_formats::chakra::groups::ProcessGroup;
use uniference_formats::chakra::own::{CLUSTER, SEED};
use uniference_formats::chakra::read::{ReadError, Reader};
use uniference_formats::chakra::replay::{Memory, Replay, Roofline, Rules};
use uniference_formats::chakra::schema::NodeType;
use uniference_formats::cluster::Rates;
use uniference_sim::engine::{Cause, Doing, Engine, Halt, Resumption, Turn};
use uniference_sim::ids::{Handle, RankId};
use uniference_sim::program::Program;
use uniference_sim::record::{Digest, Observer, Statistics};
use uniference_sim::time::SimDuration;

/// So much of a file is read at once.
const CHUNK: u64 = 1 << 16;

/// Bytes that tell a text workload from a trace.
const BEGINNING: u64 = 256;

/// So many nodes say where a trace comes from.
const LOOKED_AT: usize = 1 << 16;

/// How execution traces are to be understood.
#[derive(clap::Args)]
#[command(next_help_heading = "Execution traces")]
pub(super) struct TraceArgs {
    /// Compute and memory nodes take so many times as long as they say
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    compute_scale: f64,
    /// Communication moves so many times as many bytes as it says
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    comm_scale: f64,
    /// The process groups: a JSON object of lists of ranks by name, as ASTRA-sim reads it
    #[arg(long, value_name = "FILE")]
    astra_comm_groups: Option<PathBuf>,
    /// Whose physics: ours, or ASTRA-sim's congestion-unaware backend, which replaces the cluster
    #[arg(long, value_enum, default_value_t = Fidelity::Flow, requires_if("astra", "astra_system"), requires_if("astra", "astra_network"))]
    fidelity: Fidelity,
    /// ASTRA-sim's system: algorithms and chunks for --fidelity astra, and the roofline of nodes without a duration
    #[arg(long, value_name = "FILE")]
    astra_system: Option<PathBuf>,
    /// ASTRA-sim's network, for --fidelity astra
    #[arg(long, value_name = "FILE")]
    astra_network: Option<PathBuf>,
    /// ASTRA-sim's remote memory: what memory nodes cost
    #[arg(long, value_name = "FILE")]
    astra_memory: Option<PathBuf>,
    /// How many times a text workload's layers are done, forwards and backwards
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// How many queues share a dimension's active chunks, for --fidelity astra
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    astra_queues_per_dim: u32,
}

/// What time follows from.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fidelity {
    /// Flows share the links of the cluster
    Flow,
    /// ASTRA-sim's congestion-unaware closed form
    Astra,
}

/// What a replay is asked for, whatever it replays.
pub(super) struct Wanted<'a> {
    pub(super) argv: &'a [OsString],
    pub(super) cluster: &'a ClusterArgs,
    /// `None`: that of the recorded run, or 0.
    pub(super) seed: Option<u64>,
    pub(super) out: Option<&'a Path>,
    pub(super) json: bool,
    pub(super) record: RecordLevel,
}

type Ranks = Vec<Replay<Reader<Pieces>>>;

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if factor.is_finite() && factor >= 0.0 { Ok(factor) } else { Err("it must be finite and not negative".to_owned()) }
}

/// Runs the traces `prefix.RANK.et`, or one file for all ranks.
pub(super) fn replay(prefix: &Path, args: &TraceArgs, wanted: &Wanted<'_>) -> Result<Exit, HostError> {
    if args.fidelity == Fidelity::Astra {
        return replay_astra(prefix, args, wanted);
    }
    let traces = Traces::find(prefix, args.passes)?;
    let (mut chosen, seed) = cluster(&traces, wanted)?;
    chosen.resolved.cluster.dynamics.seed = seed;
    let cluster = &chosen.resolved.cluster;
    let rules = Arc::new(args.rules(&chosen.resolved.rates)?);
    let mut ranks: Ranks = (0..)
        .zip(traces.open(cluster.devices.len())?)
        .map(|(rank, trace)| Replay::new(RankId(rank), trace, rules.clone()))
        .collect();
    let folder = Folder::prepare(wanted.out, &with_suffix(prefix, ".et"))?;
    let manifest = results::manifest(wanted.argv, seed, &chosen.resolved);
    let mut recording = Recording::start(wanted.record, &chosen.resolved, &manifest, &folder, Counter::default())?;
    let mut engine = Engine::new(cluster);
    let (observer, recorder) = recording.watchers();
    let halt = drive(&mut engine, &mut ranks, observer, recorder)?;
    let figures = recording.finish(Vec::new())?;
    if let Some(halt) = halt {
        super::complain(format_args!("error: {}", describe(&halt, &ranks)));
        return Ok(Exit::Halted);
    }
    let beside = Beside { warnings: doubts(&ranks, &chosen), ..Beside::default() };
    results::report(figures, &chosen.resolved, beside, manifest, &folder, wanted.json)?;
    Ok(Exit::Ok)
}

/// The cluster that the options describe, or else the one that the traces were recorded on, if they say so; the seed likewise. Where nobody
/// names a backend, traces of accelerators run on NCCL.
fn cluster(traces: &Traces<'_>, wanted: &Wanted<'_>) -> Result<(Chosen, u64), HostError> {
    let (first, mut reader) = match traces {
        Traces::Files { prefix, there } => {
            let first = there.map_or_else(|| (*prefix).to_owned(), |_| of_rank(prefix, 0));
            let reader = open(&first)?;
            (first, reader)
        }
        // All of its computing is the accelerators'.
        Traces::Text { .. } => return Ok((on_accelerators(wanted)?, wanted.seed.unwrap_or_default())),
    };
    let metadata = reader.metadata().clone();
    let seed = wanted.seed.or(metadata.unsigned(SEED)).unwrap_or_default();
    let chosen = match metadata.text(CLUSTER) {
        Some(toml) if !wanted.cluster.is_given() => wanted.cluster.resolve_again(&first, toml)?,
        // Our own records are of programs whose library is the cluster's, whatever they computed on.
        Some(_) => wanted.cluster.resolve()?,
        None => match runs_on_accelerator(&mut reader).map_err(in_file(&first))? {
            true => on_accelerators(wanted)?,
            false => wanted.cluster.resolve()?,
        },
    };
    Ok((chosen, seed))
}

/// The cluster that the options describe, with the library of accelerators where nobody names one.
fn on_accelerators(wanted: &Wanted<'_>) -> Result<Chosen, HostError> {
    let chosen = wanted.cluster.resolve_with(Some("nccl"))?;
    if !chosen.backend_named {
        super::complain(format_args!(
            "note: the traces are of accelerators: backend nccl, as nobody names one (--backend does)\n"
        ));
    }
    Ok(chosen)
}

/// Does a node compute or communicate on an accelerator? Those do that do not say that they are the host's (`is_cpu_op`), as a trace's kernels and
/// all that ASTRA-sim's tools write. Only the first nodes are looked at.
fn runs_on_accelerator(reader: &mut Reader<Pieces>) -> Result<bool, ReadError> {
    for _ in 0..LOOKED_AT {
        let Some(node) = reader.next_node()? else { return Ok(false) };
        if !matches!(node.r#type(), NodeType::Metadata | NodeType::Invalid) && !node.is_cpu_op() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The same by the closed form. There is no cluster, and nothing to record but when nodes and ranks end.
fn replay_astra(prefix: &Path, args: &TraceArgs, wanted: &Wanted<'_>) -> Result<Exit, HostError> {
    if wanted.cluster.is_given() {
        let hint = "leave out --cluster and --ranks, or --fidelity astra";
        return Err(HostError::Usage(format!("--fidelity astra takes its ranks from --astra-network\nhint: {hint}")));
    }
    let (Some(system_file), Some(network_file)) = (&args.astra_system, &args.astra_network) else {
        let hint = "give both of ASTRA-sim's files";
        return Err(HostError::Usage(format!(
            "--fidelity astra needs --astra-system and --astra-network\nhint: {hint}"
        )));
    };
    let network = Network::parse(&text(network_file)?).map_err(in_file(network_file))?;
    let system = system(system_file)?;
    let expand = custom(system_file, &system)?;
    let memory = args.astra_memory.as_deref().map(memory).transpose()?;
    let model = Model::new(system, network, args.astra_queues_per_dim);
    let traces = Traces::find(prefix, args.passes)?.open(model.ranks() as usize)?;
    let groups = args.astra_comm_groups.as_deref().map_or(Ok(Vec::new()), groups)?;
    let scales = Scales { compute: args.compute_scale, communication: args.comm_scale };
    let folder = Folder::prepare(wanted.out, &with_suffix(prefix, ".et"))?;
    let mut figures = (Statistics::default(), Digest::default());
    let machine = Machine { model: &model, memory, expand };
    let mut timeline = match wanted.record {
        RecordLevel::Summary => None,
        RecordLevel::Ops | RecordLevel::Full => Some(TimelineWriter::new(folder.create(results::TIMELINE)?)),
    };
    let mut note = |done: &Done<'_>| timeline.iter_mut().for_each(|timeline| timeline.node(done));
    match schedule::run(&machine, &groups, scales, traces, &mut figures, &mut note) {
        Ok(()) => {
            timeline.map(TimelineWriter::finish).transpose()?;
            let inputs = format!("{}\n{}", text(network_file)?, text(system_file)?);
            results::report_astra(figures, inputs, wanted.argv, &folder, wanted.json).map(|()| Exit::Ok)
        }
        Err(error @ ScheduleError::Deadlock(_)) => {
            super::complain(format_args!("error: {error}\n"));
            Ok(Exit::Halted)
        }
        Err(error) => Err(HostError::Usage(error.to_string())),
    }
}

fn memory(path: &Path) -> Result<RemoteMemory, HostError> {
    RemoteMemory::parse(&text(path)?).map_err(in_file(path))
}

/// Of a memory that is there. Who shares it is ASTRA-sim's business: here each rank has it to itself.
fn rates_of(memory: RemoteMemory) -> Option<Memory> {
    let latency = SimDuration::from_secs_f64(memory.remote_mem_latency / 1e9)?;
    let there = memory.memory_type != Sharing::NoMemoryExpansion;
    there.then_some(Memory { latency, bandwidth: memory.remote_mem_bw * 1e9 })
}

/// The collectives that the system file gives as traces: where it says, or beside it.
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

/// If the system enables it and names its rates.
fn roofline(system: System) -> Option<Roofline> {
    let (peak, memory) = (system.peak_perf * 1e12, system.local_mem_bw * 1e9);
    (system.roofline_enabled != 0 && peak > 0.0 && memory > 0.0).then_some(Roofline { peak, memory })
}

fn text(path: &Path) -> Result<String, HostError> {
    super::input::text(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "give a file of ASTRA-sim's",
    })
}

pub(super) fn in_file<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> HostError {
    move |error| HostError::Usage(format!("{}: {error}", path.display()))
}

/// To the end, or to where it cannot go on.
fn drive(
    engine: &mut Engine,
    ranks: &mut Ranks,
    observer: &mut dyn Observer,
    recorder: &mut dyn Recorder,
) -> Result<Option<Box<Halt>>, HostError> {
    loop {
        match engine.next(observer) {
            Turn::Resume(Resumption { rank, task, now, reply }) => {
                let replay = &mut ranks[rank.index()];
                let request = replay.resume(now, task, reply);
                if let Some(error) = replay.take_error() {
                    return Err(HostError::Usage(format!("the trace of {rank}: {error}")));
                }
                recorder.request(rank, task, &request);
                engine.submit(rank, task, request);
            }
            Turn::Finished => return Ok(None),
            Turn::Halted(halt) => return Ok(Some(halt)),
            Turn::Blocked => panic!("every trace answers at once"),
        }
    }
}

/// Where the durations of nodes deserve doubt.
fn doubts(ranks: &Ranks, chosen: &Chosen) -> Vec<String> {
    let untimed: u64 = ranks.iter().map(Replay::untimed).sum();
    let derived: u64 = ranks.iter().map(Replay::by_roofline).sum();
    let rates = chosen.resolved.rates.iter().position(Option::is_some).filter(|_| derived == 0);
    let untimed = (untimed > 0).then(|| format!("{untimed} nodes do not say how long they take: they took no time"));
    let unused = rates.map(|rank| {
        let name = &chosen.resolved.cluster.devices[rank].name;
        format!(
            "`peak_flops` and `memory_bandwidth` of device `{name}` have no effect: no node leaves its duration to them"
        )
    });
    untimed.into_iter().chain(unused).collect()
}

// Files

/// Where the traces come from.
enum Traces<'a> {
    Files {
        prefix: &'a Path,
        /// `None`: one trace for all ranks.
        there: Option<usize>,
    },
    /// They are made of a text workload.
    Text { path: &'a Path, workload: Box<TextWorkload>, passes: u32 },
}

impl<'a> Traces<'a> {
    fn find(prefix: &'a Path, passes: u32) -> Result<Traces<'a>, HostError> {
        if let Some(workload) = text_workload(prefix)? {
            return Ok(Traces::Text { path: prefix, workload: Box::new(workload), passes });
        }
        if passes > 1 {
            let hint = "leave --passes out, or give a text workload";
            return Err(HostError::Usage(format!("--passes repeats the layers of a text workload\nhint: {hint}")));
        }
        Ok(Traces::Files { prefix, there: count(prefix)? })
    }

    /// One for each of `ranks` ranks.
    fn open(&self, ranks: usize) -> Result<Vec<Reader<Pieces>>, HostError> {
        let (path, made) = match self {
            Traces::Files { prefix, there } => {
                return files(prefix, *there, ranks)?.iter().map(|file| open(file)).collect();
            }
            Traces::Text { path, workload, passes } => {
                (path, workload.traces(ranks as u64, *passes).map_err(in_file(path))?)
            }
        };
        made.warnings.iter().for_each(|warning| super::complain(format_args!("warning: {warning}\n")));
        let body: Arc<[u8]> = made.body().into();
        let reader = |rank| Reader::open(Pieces::Memory { head: made.head(rank), body: body.clone(), given: 0 });
        (0..ranks as u64).map(|rank| reader(rank).map_err(in_file(path))).collect()
    }
}

/// The text workload in a file, if it is one by its first word or its name.
pub(super) fn text_workload(path: &Path) -> Result<Option<TextWorkload>, HostError> {
    let mut beginning = Vec::new();
    let Ok(file) = super::input::open(path) else { return Ok(None) };
    if file.take(BEGINNING).read_to_end(&mut beginning).is_err() {
        return Ok(None);
    }
    if !is_text_workload(&beginning) && path.extension().is_none_or(|extension| extension != "txt") {
        return Ok(None);
    }
    let text = super::input::text(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "a text workload is text; an execution trace is called .et",
    })?;
    TextWorkload::parse(&path.display().to_string(), &text).map(Some).map_err(super::cluster::show)
}

/// How many ranks there are traces of; `None`: there is one trace for all.
fn count(prefix: &Path) -> Result<Option<usize>, HostError> {
    if prefix.is_file() {
        return Ok(None);
    }
    match (0..).take_while(|rank| of_rank(prefix, *rank).is_file()).count() {
        0 => Err(HostError::Usage(format!(
            "there is no folder and no trace {0}, and no trace {0}.0.et\nhint: give the folder of a run, the prefix of traces called PREFIX.RANK.et, or one trace for all ranks",
            prefix.display()
        ))),
        count => Ok(Some(count)),
    }
}

pub(super) fn of_rank(prefix: &Path, rank: impl Display) -> PathBuf {
    with_suffix(prefix, &format!(".{rank}.et")).into()
}

fn with_suffix(prefix: &Path, suffix: &str) -> OsString {
    let mut name = prefix.as_os_str().to_owned();
    name.push(suffix);
    name
}

/// One for each rank.
fn files(prefix: &Path, there: Option<usize>, ranks: usize) -> Result<Vec<PathBuf>, HostError> {
    match there {
        None => Ok(vec![prefix.to_owned(); ranks]),
        Some(count) if count == ranks => Ok((0..ranks).map(|rank| of_rank(prefix, rank)).collect()),
        Some(count) => Err(HostError::Usage(format!(
            "there are traces of {count} ranks, the cluster has {ranks} devices\nhint: traces run on clusters with as many devices as there are ranks"
        ))),
    }
}

fn open(path: &Path) -> Result<Reader<Pieces>, HostError> {
    let pieces = FilePieces { path: path.to_owned(), offset: 0, piece: Vec::new(), given: 0 };
    Reader::open(Pieces::File(pieces)).map_err(in_file(path))
}

/// The bytes of a trace.
enum Pieces {
    File(FilePieces),
    /// What is one rank's, and then what is the same for all.
    Memory {
        head: Vec<u8>,
        body: Arc<[u8]>,
        given: usize,
    },
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Pieces::File(file) => file.read(buffer),
            Pieces::Memory { head, body, given } => {
                let left = head.get(*given..).filter(|left| !left.is_empty());
                let left = left.unwrap_or_else(|| &body[*given - head.len()..]);
                let count = buffer.len().min(left.len());
                buffer[..count].copy_from_slice(&left[..count]);
                *given += count;
                Ok(count)
            }
        }
    }
}

/// A file that is open only while a piece of it is read: there may be more ranks than a process may have files.
struct FilePieces {
    path: PathBuf,
    offset: u64,
    piece: Vec<u8>,
    given: usize,
}

impl FilePieces {
    fn next_piece(&mut self) -> io::Result<()> {
        let mut file = super::input::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        self.piece.clear();
        self.given = 0;
        self.offset += file.take(CHUNK).read_to_end(&mut self.piece)? as u64;
        Ok(())
    }
}

impl Read for FilePieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.piece.len() {
            self.next_piece()?;
        }
        let count = buffer.len().min(self.piece.len() - self.given);
        buffer[..count].copy_from_slice(&self.piece[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

impl TraceArgs {
    /// `rates` are those of the ranks' devices.
    fn rules(&self, rates: &[Option<Rates>]) -> Result<Rules, HostError> {
        let system = self.astra_system.as_deref().map(system).transpose()?;
        let expand = match (&self.astra_system, &system) {
            (Some(path), Some(system)) => custom(path, system)?,
            _ => None,
        };
        let all = system.and_then(roofline);
        let own = |rates: &Option<Rates>| rates.map(|rates| Roofline { peak: rates.flops, memory: rates.memory });
        Ok(Rules {
            world: (0..rates.len()).map(RankId::from).collect(),
            compute_scale: self.compute_scale,
            comm_scale: self.comm_scale,
            rooflines: rates.iter().map(|rates| own(rates).or(all)).collect(),
            memory: self.astra_memory.as_deref().map(memory).transpose()?.and_then(rates_of),
            expand,
            groups: self.astra_comm_groups.as_deref().map_or(Ok(Vec::new()), groups)?,
            recorded: false,
        })
    }
}

fn groups(path: &Path) -> Result<Vec<ProcessGroup>, HostError> {
    let text = super::input::text(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "it is a JSON object: {\"1\": [0, 1], \"2\": [2, 3]}",
    })?;
    let groups: BTreeMap<String, Vec<u32>> = serde_json::from_str(&text).map_err(|error| {
        let hint = "it is a JSON object of lists of ranks: {\"1\": [0, 1], \"2\": [2, 3]}";
        HostError::Usage(format!("{} does not describe process groups: {error}\nhint: {hint}", path.display()))
    })?;
    Ok(groups.into_iter().map(|(name, ranks)| ProcessGroup { name, description: None, ranks }).collect())
}

// Reports

/// Why traces cannot go on, by the names of their nodes.
fn describe(halt: &Halt, ranks: &Ranks) -> String {
    let node = |rank: RankId, handle: Handle| match ranks[rank.index()].behind(handle) {
        Some((node, _)) => format!("node {} `{}`", node.id, node.name),
        None => "a node that is done".to_owned(),
    };
    let mut text = match &halt.cause {
        Cause::Deadlock => format!("deadlock at {}: no rank can go on\n", halt.at),
        Cause::EndOfTime => format!("virtual time would pass 213 days (at {})\n", halt.at),
        Cause::Asymmetry(asymmetry) => format!("ranks are not alike: {asymmetry}\n"),
        Cause::Mismatch { first, second, what, .. } => format!(
            "mismatch at {}: {} and {} disagree about what should be one operation\n  {what}\n  {}: {}\n  {}: {}\n",
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
                text += &waiting(&ranks[report.rank.index()], pending.handle);
            }
        }
    }
    text
}

/// The first few nodes that wait for a node.
fn waiting(rank: &Replay<Reader<Pieces>>, handle: Handle) -> String {
    let Some((_, waiting)) = rank.behind(handle).filter(|(_, waiting)| !waiting.is_empty()) else {
        return String::new();
    };
    let names: Vec<String> = waiting.iter().take(4).map(|node| format!("node {} `{}`", node.id, node.name)).collect();
    let more = if waiting.len() > names.len() { ", ..." } else { "" };
    format!("    waits for it: {}{more}\n", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::{refused, run};
    use std::fs;
    use uniference_formats::chakra::attributes::{COMM_DST, COMM_SIZE, COMM_SRC, COMM_TYPE, TENSOR_SIZE};
    use uniference_formats::chakra::schema::{Attribute, GlobalMetadata, Node, NodeType, Value};
    use uniference_formats::chakra::write::Writer;

    fn write(path: &Path, nodes: &[Node]) {
        let mut writer = Writer::new(Vec::new(), &GlobalMetadata::default()).unwrap();
        nodes.iter().for_each(|node| writer.node(node).unwrap());
        fs::write(path, writer.finish().unwrap()).unwrap();
    }

    fn node(id: u64, kind: NodeType, attributes: &[(&str, i64)]) -> Node {
        let attr = attributes.iter().map(|(name, value)| Attribute::new(name, Value::Int64(*value))).collect();
        Node { id, name: format!("n{id}"), r#type: kind.into(), attr, ..Node::default() }
    }

    #[test]
    fn pieces_are_the_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let contents: Vec<u8> = (0..3 * CHUNK + 5).map(|index| (index % 251) as u8).collect();
        fs::write(&path, &contents).unwrap();
        let mut read = Vec::new();
        let mut pieces = FilePieces { path, offset: 0, piece: Vec::new(), given: 0 };
        pieces.read_to_end(&mut read).unwrap();
        assert!(read == contents);
    }

    #[test]
    fn one_trace_serves_all_ranks_and_its_record_replays() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        write(&dir.path().join("a.et"), &[node(1, NodeType::CommColl, &[(COMM_TYPE, 0), (COMM_SIZE, 4_000)])]);
        let (trace, first, second) = (path("a.et"), path("first"), path("second"));
        assert_eq!(run(&["replay", &trace, "--ranks", "4", "--out", &first]).unwrap(), Exit::Ok);
        assert_eq!(run(&["replay", &first, "--out", &second]).unwrap(), Exit::Ok);
        let report = |folder: &str| fs::read_to_string(Path::new(folder).join(results::REPORT)).unwrap();
        assert!(report(&first).contains("\"all_reduce\""));
        assert_eq!(report(&first), report(&second));
    }

    #[test]
    fn a_deadlock_ends_with_its_exit_code_and_the_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("w");
        let recv = node(1, NodeType::CommRecv, &[(COMM_SRC, 1), (COMM_SIZE, 8)]);
        let after = Node { data_deps: vec![1], ..node(2, NodeType::Comp, &[]) };
        write(&dir.path().join("w.0.et"), &[recv, after]);
        write(&dir.path().join("w.1.et"), &[]);
        let out = dir.path().join("out").display().to_string();
        let words = ["replay", &prefix.display().to_string(), "--ranks", "2", "--out", &out];
        assert_eq!(run(&words).unwrap(), Exit::Halted);
        let world = (0..2).map(RankId).collect();
        let rules = Arc::new(Rules::of(world));
        let files = files(&prefix, count(&prefix).unwrap(), 2).unwrap();
        let mut ranks: Ranks = files
            .iter()
            .zip(0..)
            .map(|(file, rank)| Replay::new(RankId(rank), open(file).unwrap(), rules.clone()))
            .collect();
        let toml = uniference_formats::cluster::Flags { ranks: 2, bandwidth: None, latency: None, slowdown: vec![] }
            .to_toml()
            .unwrap();
        let file = uniference_formats::cluster::ClusterFile::parse("test", &toml, &[]).unwrap();
        let cluster = file.resolve(&Default::default()).unwrap().cluster;
        let mut engine = Engine::new(&cluster);
        let halt = drive(&mut engine, &mut ranks, &mut (), &mut ()).unwrap().expect("a deadlock");
        insta::assert_snapshot!(describe(&halt, &ranks), @r"
        deadlock at 270.092 us: no rank can go on
          rank 0, clock 0 ps: node 1 `n1`: recv (8 bytes, group 0), which rank 1 did not enter
            waits for it: node 2 `n2`
        ");
    }

    #[test]
    fn astra_sims_files_give_astra_sims_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (trace, system, network, out) = (path("a.et"), path("s.json"), path("n.yml"), path("out"));
        write(Path::new(&trace), &[node(1, NodeType::CommColl, &[(COMM_TYPE, 2), (COMM_SIZE, 100)])]);
        let lists = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]
            .map(|name| format!("\"{name}-implementation\": [\"ring\"]"));
        fs::write(&system, format!("{{{}}}", lists.join(", "))).unwrap();
        fs::write(&network, "topology: [ Ring ]\nnpus_count: [ 2 ]\nbandwidth: [ 1.0 ]\nlatency: [ 500.0 ]\n").unwrap();
        let astra = ["--fidelity", "astra", "--astra-system", &system, "--astra-network", &network, "--out", &out];
        assert_eq!(run(&[&["replay", &trace], &astra[..]].concat()).unwrap(), Exit::Ok);
        // T + 2e = floor(500 + 100 / 1.073741824) ns + 2 x 10 ns
        let report = fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap();
        assert!(report.contains("\"makespan_ps\": 613000,"), "{report}");
        let timeline = fs::read_to_string(Path::new(&out).join(results::TIMELINE)).unwrap();
        assert_eq!(timeline, "npu,node_id,name,type,issue_ns,callback_ns\n0,1,n1,7,0,613\n1,1,n1,7,0,613\n");
        assert!(refused(&["replay", &trace, "--fidelity", "astra"]).starts_with("exit 2\n"));
        let both = refused(&[&["replay", &trace, "--ranks", "2"], &astra[..]].concat());
        assert!(both.contains("takes its ranks from --astra-network\nhint: "), "{both}");
    }

    /// The backend of a run, from its report.
    fn backend(out: &str) -> String {
        let report = fs::read_to_string(Path::new(out).join(results::REPORT)).unwrap();
        let known =
            ["gloo", "nccl", "ideal"].into_iter().find(|name| report.contains(&format!("name = \\\"{name}\\\"")));
        known.unwrap_or_else(|| panic!("{report}")).to_owned()
    }

    #[test]
    fn traces_of_accelerators_run_on_nccl_where_nobody_names_a_library() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let collective = |id, more: &[(&str, i64)]| {
            node(id, NodeType::CommColl, &[&[(COMM_TYPE, 0), (COMM_SIZE, 64)], more].concat())
        };
        let on_host = |id| collective(id, &[("is_cpu_op", 1)]);
        let kernels = vec![on_host(1), collective(2, &[("is_cpu_op", 0), ("stream", 7)])];
        let (named, out) = (path("named.toml"), path("out"));
        fs::write(&named, "backend = \"gloo\"\n[[device]]\nname = \"a\"\ncount = 2\n[network]\n").unwrap();
        let of = |nodes: &[Node], options: &[&str]| {
            write(&dir.path().join("t.et"), nodes);
            assert_eq!(run(&[&["replay", &path("t.et"), "--out", &out], options].concat()).unwrap(), Exit::Ok);
            backend(&out)
        };
        assert_eq!(of(&[on_host(1)], &["--ranks", "2"]), "gloo");
        assert_eq!(of(&[collective(1, &[])], &["--ranks", "2"]), "nccl");
        assert_eq!(of(&kernels, &["--ranks", "2"]), "nccl");
        assert_eq!(of(&kernels, &["--ranks", "2", "--backend", "ideal"]), "ideal");
        assert_eq!(of(&kernels, &["--cluster", &named]), "gloo");
        // All send to their neighbour before they receive: with Gloo each send waits for its receiver, as in ASTRA-sim's ring it does not.
        for (rank, peer) in [(0, 1), (1, 0)] {
            let send = node(1, NodeType::CommSend, &[(COMM_DST, peer), (COMM_SIZE, 64)]);
            let recv = Node { data_deps: vec![1], ..node(2, NodeType::CommRecv, &[(COMM_SRC, peer), (COMM_SIZE, 64)]) };
            write(&dir.path().join(format!("ring.{rank}.et")), &[send, recv]);
        }
        let ring = ["replay", &path("ring"), "--ranks", "2", "--out", &out];
        assert_eq!(run(&ring).unwrap(), Exit::Ok);
        assert_eq!(run(&[&ring[..], &["--backend", "gloo"]].concat()).unwrap(), Exit::Halted);
    }

    #[test]
    fn text_workloads_are_run_and_converted() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (text, out, prefix) = (path("w.txt"), path("out"), path("made"));
        let header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 all_gpus: 4";
        fs::write(&text, format!("{header}\n1\na -1 2500 ALLREDUCE 1000 0 NONE 0 500 ALLREDUCE 2000 0\n")).unwrap();
        let cluster =
            ["--ranks", "4", "--backend", "ideal", "--bandwidth", "1 GB/s", "--latency", "10 us", "--out", &out];
        let report = || fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap();
        assert_eq!(run(&[&["replay", &text], &cluster[..]].concat()).unwrap(), Exit::Ok);
        // 2.5 us, 1,000 B over a ring of 2 (2 (500 B / (1 GB/s) + 10 us)), 0.5 us, 2,000 B likewise; twice.
        assert!(report().contains("\"makespan_ps\": 46000000,"), "{}", report());
        assert_eq!(run(&["chakra", "convert", &text, "--out", &prefix]).unwrap(), Exit::Ok);
        assert_eq!(run(&[&["replay", &prefix], &cluster[..]].concat()).unwrap(), Exit::Ok);
        assert!(report().contains("\"makespan_ps\": 46000000,"), "{}", report());
        assert_eq!(run(&[&["replay", &text, "--passes", "2"], &cluster[..]].concat()).unwrap(), Exit::Ok);
        assert!(report().contains("\"makespan_ps\": 92000000,"), "{}", report());
        fs::write(path("bad.txt"), "DATTA\n1\n").unwrap();
        fs::write(path("data.txt"), "DATA\n1\na -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 1\n").unwrap();
        let shown = [
            refused(&["replay", &text, "--ranks", "8"]),
            refused(&["replay", &path("bad.txt"), "--ranks", "8"]),
            refused(&["chakra", "convert", &path("data.txt"), "--out", &prefix]),
            refused(&["chakra", "convert", &path("none"), "--out", &prefix]),
            refused(&["replay", &prefix, "--ranks", "4", "--passes", "2"]),
        ];
        insta::assert_snapshot!(shown.join("\n----\n").replace(&dir.path().display().to_string(), "DIR"));
    }

    #[test]
    fn generated_jobs_run_by_astra_sims_closed_form() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (job, system, network, out) = (path("job"), path("s.json"), path("n.yml"), path("out"));
        let model =
            ["--layers", "2", "--hidden", "64", "--heads", "4", "--kv-heads", "2", "--ffn", "128", "--vocab", "256"];
        let layout = ["--tp", "2", "--dp", "2", "--pp", "2", "--batch", "8", "--seq", "64", "--out", &job];
        assert_eq!(run(&[&["workload", "llama"], &model[..], &layout[..]].concat()).unwrap(), Exit::Ok);
        // All-to-alls have no algorithm that is known: no collective of the job needs one.
        let lists =
            ["all-reduce", "reduce-scatter", "all-gather"].map(|name| format!("\"{name}-implementation\": [\"ring\"]"));
        let roofline = "\"all-to-all-implementation\": [\"other\"], \"roofline-enabled\": 1, \"peak-perf\": 1, \"local-mem-bw\": 50";
        fs::write(&system, format!("{{{}, {roofline}}}", lists.join(", "))).unwrap();
        fs::write(&network, "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n")
            .unwrap();
        let astra = ["--fidelity", "astra", "--astra-system", &system, "--astra-network", &network, "--out", &out];
        assert_eq!(run(&[&["replay", &job], &astra[..]].concat()).unwrap(), Exit::Ok);
        let timeline = fs::read_to_string(Path::new(&out).join(results::TIMELINE)).unwrap();
        assert!((0..8).all(|rank| timeline.lines().any(|line| line.starts_with(&format!("{rank},")))), "{timeline}");
    }

    #[test]
    fn custom_collectives_and_remote_memory_count_on_a_cluster_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        // An all-reduce: 1,000 bytes to the other, and 7 us of compute on what comes back. Then a load of 500 bytes.
        for (rank, peer) in [(0, 1), (1, 0)] {
            let send = node(0, NodeType::CommSend, &[(COMM_DST, peer), (COMM_SIZE, 1_000)]);
            let recv = node(1, NodeType::CommRecv, &[(COMM_SRC, peer), (COMM_SIZE, 1_000)]);
            let reduce = Node { data_deps: vec![1], duration_micros: 7, ..node(2, NodeType::Comp, &[]) };
            write(&dir.path().join(format!("c.{rank}.et")), &[send, recv, reduce]);
        }
        let load = Node { data_deps: vec![1], ..node(2, NodeType::MemLoad, &[(TENSOR_SIZE, 500)]) };
        write(&dir.path().join("a.et"), &[node(1, NodeType::CommColl, &[(COMM_TYPE, 0), (COMM_SIZE, 9)]), load]);
        let (trace, system, memory, out) = (path("a.et"), path("s.json"), path("m.json"), path("out"));
        fs::write(&system, "{\"all-reduce-implementation-custom\": [\"c\"]}").unwrap();
        let shared = "\"memory-type\": \"PER_NPU_MEMORY_EXPANSION\", \"remote-mem-latency\": 100, \"remote-mem-bw\": 5";
        fs::write(&memory, format!("{{{shared}}}")).unwrap();
        let cluster = ["--ranks", "2", "--backend", "ideal", "--bandwidth", "1 GB/s", "--latency", "10 us"];
        let astra = ["--astra-system", &system, "--astra-memory", &memory, "--out", &out];
        assert_eq!(run(&[&["replay", &trace], &cluster[..], &astra[..]].concat()).unwrap(), Exit::Ok);
        // 1,000 B / (1 GB/s) + 10 us + 7 us, and 100 ns + 500 B / (5 GB/s).
        let report = fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap();
        assert!(report.contains("\"makespan_ps\": 18200000,"), "{report}");
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("w.0.et"), &[]);
        fs::write(dir.path().join("x.et"), "text").unwrap();
        fs::write(dir.path().join("groups.json"), "[1]").unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (one, text, groups) = (path("w"), path("x.et"), path("groups.json"));
        let cases: [&[&str]; 4] = [
            &["replay", &one, "--ranks", "2"],
            &["replay", &text, "--ranks", "1"],
            &["replay", &one, "--ranks", "1", "--astra-comm-groups", &groups],
            &["replay", &one, "--ranks", "1", "--comm-scale=-1"],
        ];
        let shown: Vec<String> = cases.iter().map(|words| refused(words)).collect();
        insta::assert_snapshot!(shown.join("\n----\n").replace(&dir.path().display().to_string(), "DIR"));
    }
}
