//! Owns `uniference workload`: generated jobs, written as execution traces or run at once.
//!
//! What the jobs are made of is `uniference-formats`' business, which ranks are alike the simulator's.

use super::cluster::{Chosen, ClusterArgs, value};
use super::console::Counter;
use super::folder::Folder;
use super::lock::{Lock, Writer};
use super::results::{self, Beside, RecordLevel, Recording};
use super::traces::of_rank;
use crate::error::{Exit, HostError};
use crate::live::exchange::Recorder;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uniference_formats::chakra::replay::{Replay, Roofline, Rules};
use uniference_formats::chakra::schema::GlobalMetadata;
use uniference_formats::chakra::write::Writer as TraceWriter;
use uniference_formats::cluster::{Rates, Resolved};
use uniference_formats::report::Report;
use uniference_formats::table::bytes;
use uniference_formats::units::{Bandwidth, Flops};
use uniference_formats::workload::{Experts, Layout, Memory, Model, Phase, Recompute, Schedule, Spec, Trace, Workload};
use uniference_sim::cluster::{Cluster, Device};
use uniference_sim::engine::{Cause, Engine, Halt, Resumption, Turn};
use uniference_sim::ids::RankId;
use uniference_sim::network::Asymmetry;
use uniference_sim::program::Program;
use uniference_sim::record::Observer;
use uniference_sim::symmetry::Symmetry;
use uniference_sim::time::Bytes;

/// `uniference workload`.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// A decoder like Llama's, dense or a mixture of experts: one step of training, or of inference
    Llama(Box<Llama>),
}

/// `uniference workload llama`.
#[derive(clap::Args)]
pub(super) struct Llama {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Model")]
struct ModelArgs {
    /// Number of transformer layers
    #[arg(long, value_name = "N", default_value_t = 80)]
    layers: u32,
    /// Width of the residual stream
    #[arg(long, value_name = "N", default_value_t = 8192)]
    hidden: u64,
    /// Query heads
    #[arg(long, value_name = "N", default_value_t = 64)]
    heads: u64,
    /// Key and value heads
    #[arg(long, value_name = "N", default_value_t = 8)]
    kv_heads: u64,
    /// Width of the feed-forward network, or of each expert
    #[arg(long, value_name = "N", default_value_t = 28_672)]
    ffn: u64,
    /// Different tokens
    #[arg(long, value_name = "N", default_value_t = 128_256)]
    vocab: u64,
    /// In each layer, in place of its feed-forward network
    #[arg(long, value_name = "N")]
    experts: Option<u64>,
    /// Experts that see each token
    #[arg(long, value_name = "N", default_value_t = 2, requires = "experts")]
    top_k: u64,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Parallelism")]
struct LayoutArgs {
    /// Ranks that share each matrix
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: u32,
    /// Ranks that share each sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    cp: u32,
    /// Ranks with different experts, out of the data-parallel ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    ep: u32,
    /// Ranks that see different data
    #[arg(long, value_name = "N", default_value_t = 1)]
    dp: u32,
    /// Pipeline stages
    #[arg(long, value_name = "N", default_value_t = 1)]
    pp: u32,
    /// Tensor-parallel ranks share what lies between matrices too
    #[arg(long)]
    sequence_parallel: bool,
    /// Order of micro-batches when training [default: 1f1b, or interleaved with --virtual-stages]
    #[arg(long, value_enum)]
    schedule: Option<ScheduleName>,
    /// Pieces of the model on each pipeline stage, interleaved
    #[arg(long, value_name = "N")]
    virtual_stages: Option<u32>,
    /// Sharded over data-parallel ranks: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too
    #[arg(long, value_name = "STAGE", default_value_t = 0)]
    zero: u8,
    /// Bytes of an element of a gradient, where it is summed
    #[arg(long, value_name = "N", default_value_t = 4)]
    gradient_bytes: u64,
    /// What is computed again before it is needed backwards, rather than kept
    #[arg(long, value_enum, default_value_t = RecomputeName::None)]
    recompute: RecomputeName,
    /// Bound the norm of all gradients, which all ranks must first add up
    #[arg(long)]
    clip_gradients: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RecomputeName {
    /// Every activation is kept
    None,
    /// Scores and values of attention
    Selective,
    /// Every layer, from its input
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScheduleName {
    /// All forwards, then all backwards
    Gpipe,
    /// One forward, one backward
    #[value(name = "1f1b")]
    OneForwardOneBackward,
    /// The same with several pieces a stage
    Interleaved,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Job")]
struct JobArgs {
    /// What is done once
    #[arg(long, value_enum, default_value_t = PhaseName::Train)]
    phase: PhaseName,
    /// Tokens of a sequence; when decoding, those before the new one
    #[arg(long, value_name = "N", default_value_t = 4096)]
    seq: u64,
    /// Sequences, over all ranks
    #[arg(long, value_name = "N")]
    batch: u64,
    /// Sequences of a micro-batch [default: 1; when decoding all of a replica, in at most as many parts as there are stages]
    #[arg(long, value_name = "N")]
    micro_batch: Option<u64>,
    /// Tokens that each sequence gets when decoding, one after the other
    #[arg(long, value_name = "N", default_value_t = 1)]
    new_tokens: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PhaseName {
    /// One step: forwards, backwards, gradients summed, parameters updated
    Train,
    /// Every sequence forwards
    Prefill,
    /// New tokens for every sequence
    Decode,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
struct Output {
    /// Run the job on a cluster, in place of writing its traces
    #[arg(long)]
    run: bool,
    /// The traces' prefix, PREFIX.RANK.et; with --run, the folder for results [default: uniference-out/llama-N]
    #[arg(long, value_name = "PREFIX|DIR", required_unless_present = "run")]
    out: Option<PathBuf>,
    /// Write only traces of ranks that stand for all that are alike
    #[arg(long, conflicts_with = "run")]
    representatives: bool,
    /// Let one rank stand for all that are alike: where that is known to be exact, always, or never
    #[arg(long, value_enum, default_value_t = Fold::Auto, requires = "run")]
    fold: Fold,
    /// Run a job that needs more memory than devices have
    #[arg(long, requires = "run")]
    ignore_memory: bool,
    /// What devices compute at most whose rates the cluster file does not have [default: 989 TFLOPS, an H100's in bfloat16]
    #[arg(long, value_name = "RATE")]
    peak: Option<String>,
    /// What they move between memory and processor at most [default: 3.35 TB/s, an H100's]
    #[arg(long, value_name = "RATE")]
    memory_bandwidth: Option<String>,
    /// Print the report as JSON, and nothing else, on standard output
    #[arg(long, requires = "run")]
    json: bool,
    /// What is kept besides the report; more than `summary` needs every rank, and so --fold off
    #[arg(long, value_enum, default_value_t = RecordLevel::Summary, requires = "run")]
    record: RecordLevel,
}

/// The rates of an NVIDIA H100 SXM as in its datasheet (2023): bfloat16 without sparsity, and HBM3.
const H100: [&str; 2] = ["989 TFLOPS", "3.35 TB/s"];

/// So many simulated ranks take long enough that a user wants to know why they are not fewer.
const MANY: u32 = 1024;

/// Whether ranks that are alike are simulated as one.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fold {
    /// Along all axes of the job for which the cluster and the run turn out to be alike
    Auto,
    /// Along all axes of the job, or not at all
    On,
    /// Every rank is simulated
    Off,
}

/// Carries the command out.
pub(super) fn command(command: &Command, argv: &[OsString]) -> Result<Exit, HostError> {
    let Command::Llama(args) = command;
    let workload = Workload::new(args.spec()?).map_err(|error| HostError::Usage(error.to_string()))?;
    if args.output.run {
        return run(args, &workload, argv);
    }
    let prefix = args.output.out.as_deref().expect("asked for without --run");
    let _lock = Lock::of_file(&of_rank(prefix, "RANK"), Writer::Alone)?;
    write_traces(&workload, prefix, args.output.representatives)?;
    super::say(format_args!("{}\n", headline(&workload)))?;
    Ok(Exit::Ok)
}

impl Llama {
    fn spec(&self) -> Result<Spec, HostError> {
        let ModelArgs { layers, hidden, heads, kv_heads, ffn, vocab, experts, top_k } = self.model;
        let experts = experts.map(|count| Experts { count, top_k });
        let LayoutArgs { tp, cp, ep, dp, pp, sequence_parallel, zero, gradient_bytes, .. } = self.layout;
        let LayoutArgs { recompute, clip_gradients, .. } = self.layout;
        let JobArgs { phase, seq, batch, micro_batch, new_tokens } = self.job;
        let spec = Spec {
            model: Model { layers, hidden, heads, kv_heads, ffn, vocabulary: vocab, experts },
            layout: Layout { tensor: tp, context: cp, expert: ep, data: dp, pipeline: pp, sequence_parallel },
            phase: match phase {
                PhaseName::Train => Phase::Train,
                PhaseName::Prefill => Phase::Prefill,
                PhaseName::Decode => Phase::Decode,
            },
            sequence: seq,
            batch,
            micro_batch: 1,
            schedule: self.layout.schedule()?,
            zero,
            gradient_bytes,
            recompute: match recompute {
                RecomputeName::None => Recompute::None,
                RecomputeName::Selective => Recompute::Selective,
                RecomputeName::Full => Recompute::Full,
            },
            clip_gradients,
            new_tokens,
        };
        Ok(Spec { micro_batch: micro_batch.unwrap_or_else(|| spec.default_micro_batch()), ..spec })
    }

    /// `rates` are those of the ranks' devices, where the cluster file has them.
    fn rules(&self, rates: &[Option<Rates>]) -> Result<Rules, HostError> {
        let given = |rate: &Option<String>, default: &str| rate.clone().unwrap_or_else(|| default.to_owned());
        let peak: Flops = value("--peak", &given(&self.output.peak, H100[0]))?;
        let memory: Bandwidth = value("--memory-bandwidth", &given(&self.output.memory_bandwidth, H100[1]))?;
        let all = Roofline { peak: peak.0, memory: memory.0.bytes_per_second() };
        let own =
            |rates: &Option<Rates>| rates.map_or(all, |rates| Roofline { peak: rates.flops, memory: rates.memory });
        let world = (0..rates.len()).map(RankId::from).collect();
        Ok(Rules { rooflines: rates.iter().map(|rates| Some(own(rates))).collect(), ..Rules::of(world) })
    }
}

impl LayoutArgs {
    fn schedule(&self) -> Result<Schedule, HostError> {
        match (self.schedule, self.virtual_stages) {
            (None | Some(ScheduleName::OneForwardOneBackward), None) => Ok(Schedule::OneForwardOneBackward),
            (Some(ScheduleName::Gpipe), None) => Ok(Schedule::GPipe),
            (None | Some(ScheduleName::Interleaved), Some(pieces)) => Ok(Schedule::Interleaved(pieces)),
            (Some(ScheduleName::Interleaved), None) => {
                let hint = "say how many pieces each stage has: --virtual-stages N";
                Err(HostError::Usage(format!("there is nothing to interleave\nhint: {hint}")))
            }
            (Some(_), Some(_)) => {
                let hint = "leave out --virtual-stages, or use --schedule interleaved";
                Err(HostError::Usage(format!("only the interleaved schedule has virtual stages\nhint: {hint}")))
            }
        }
    }
}

// Traces

fn write_traces(workload: &Workload, prefix: &Path, representatives: bool) -> Result<(), HostError> {
    let symmetry = workload.symmetry();
    let mut count = 0_u32;
    for rank in (0..workload.world_size()).map(RankId) {
        if !representatives || symmetry.is_representative(rank) {
            write_trace(workload, rank, &of_rank(prefix, rank.0))?;
            count += 1;
        }
    }
    let each = if representatives { symmetry.order() } else { 1 };
    let shared = if each > 1 { format!(", each for {each} ranks") } else { String::new() };
    super::say(format_args!("{count} traces: {}.RANK.et{shared}\n", prefix.display()))
}

fn write_trace(workload: &Workload, RankId(rank): RankId, path: &Path) -> Result<(), HostError> {
    let hint = "give a prefix in a folder that exists and can be written to";
    let failed = |source| HostError::File { action: "write", path: path.to_owned(), source, hint };
    let file = BufWriter::new(File::create(path).map_err(failed)?);
    let metadata = GlobalMetadata { version: "0.0.4".into(), ..GlobalMetadata::default() };
    let mut writer = TraceWriter::new(file, &metadata).map_err(failed)?;
    workload.trace(rank).try_for_each(|node| writer.node(&node)).map_err(failed)?;
    writer.finish().and_then(|file| file.into_inner().map_err(std::io::Error::from)).map_err(failed)?;
    Ok(())
}

// Runs

/// Tries symmetries, the one that saves most first, until one turns out to be exact.
fn run(args: &Llama, workload: &Workload, argv: &[OsString]) -> Result<Exit, HostError> {
    let chosen = args.cluster.resolve()?;
    let (ranks, devices) = (workload.world_size(), chosen.resolved.cluster.devices.len());
    if ranks as usize != devices {
        let hint = "give a cluster with as many devices as tp x cp x dp x pp";
        return Err(HostError::Usage(format!(
            "the job has {ranks} ranks, the cluster {devices} devices\nhint: {hint}"
        )));
    }
    let shortage = Shortage::worst(workload, &chosen.resolved.cluster.devices);
    if let Some(Shortage { problem, hint }) = shortage.as_ref().filter(|_| !args.output.ignore_memory) {
        return Err(HostError::Usage(format!("{problem}\nhint: {hint}; or --ignore-memory to run it all the same")));
    }
    let assumed = args.output.assumed_rates(&chosen.resolved);
    let doubts: Vec<String> = shortage.map(|shortage| shortage.problem).into_iter().chain(assumed).collect();
    let folder = Folder::prepare(args.output.out.as_deref(), "llama".as_ref())?;
    let mut reason: Option<Asymmetry> = None;
    for symmetry in args.output.symmetries(workload, &chosen.resolved.cluster)? {
        let simulated = ranks / symmetry.order();
        if let Some(Asymmetry { problem, hint }) = reason.as_ref().filter(|_| simulated >= MANY) {
            super::complain(format_args!("simulating {simulated} of {ranks} ranks, as {problem}\nhint: {hint}\n"));
        }
        match attempt(args, workload, &chosen, &symmetry, &folder, argv)? {
            Ended::Finished(mut report) => {
                let order = symmetry.order();
                let fewer = reason.filter(|_| order < workload.symmetry().order());
                let fewer = fewer.map_or_else(String::new, |reason| format!("; not fewer, as {}", reason.problem));
                if order > 1 {
                    super::complain(format_args!(
                        "simulated {simulated} of {ranks} ranks, each for {order} alike{fewer}\n"
                    ));
                }
                if !args.output.json {
                    super::say(format_args!("{}\n", headline(workload)))?;
                }
                // They are shown before the table.
                report.warnings.extend(doubts.into_iter().chain(args.output.unused_rates(&chosen.resolved)));
                results::show(&report, &folder, args.output.json)?;
                return Ok(Exit::Ok);
            }
            Ended::Halted(text) => {
                super::complain(format_args!("error: {text}"));
                return Ok(Exit::Halted);
            }
            Ended::Unlike(asymmetry) => reason = Some(asymmetry),
        }
    }
    let asymmetry = reason.expect("without symmetry all ranks are simulated");
    Err(HostError::Usage(format!("ranks are not alike: {asymmetry}")))
}

/// What the job is, and what its ranks need of their devices' memory.
fn headline(workload: &Workload) -> String {
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

impl Output {
    /// The rates that are assumed because nobody has given them.
    fn assumed_rates(&self, resolved: &Resolved) -> Option<String> {
        let unknown = resolved.rates.iter().filter(|rates| rates.is_none()).count();
        let given = [self.peak.is_some(), self.memory_bandwidth.is_some()];
        let assumed: Vec<&str> =
            H100.into_iter().zip(given).filter(|(_, given)| !given).map(|(rate, _)| rate).collect();
        (unknown > 0 && !assumed.is_empty()).then(|| {
            let (rates, all) = (assumed.join(" and "), resolved.rates.len());
            format!(
                "compute is assumed to be an H100's ({rates}) on {unknown} of {all} devices: the cluster gives no rates"
            )
        })
    }

    /// Rates that were given and change nothing.
    fn unused_rates(&self, resolved: &Resolved) -> Option<String> {
        let options = [("--peak", &self.peak), ("--memory-bandwidth", &self.memory_bandwidth)];
        let given: Vec<&str> = options.iter().filter(|(_, rate)| rate.is_some()).map(|(option, _)| *option).collect();
        let unused = !given.is_empty() && resolved.rates.iter().all(Option::is_some);
        unused.then(|| format!("{} not used: the cluster gives the rates of every device", given.join(" and ")))
    }

    fn symmetries(&self, workload: &Workload, cluster: &Cluster) -> Result<Vec<Symmetry>, HostError> {
        if self.record != RecordLevel::Summary && self.fold == Fold::On {
            let hint = "use --record summary, or --fold off";
            return Err(HostError::Usage(format!("what all ranks did cannot be kept of a few\nhint: {hint}")));
        }
        let own_connections = cluster.backend.protocol.connections_per_group;
        let (all, mut symmetries) =
            (workload.symmetry().order(), workload.symmetries(&cluster.blocks(), own_connections));
        Ok(match self.fold {
            Fold::On => {
                symmetries.retain(|symmetry| symmetry.order() == all);
                symmetries
            }
            Fold::Auto if self.record == RecordLevel::Summary => symmetries,
            Fold::Auto | Fold::Off => vec![Symmetry::default()],
        })
    }
}

enum Ended {
    Finished(Box<Report>),
    Halted(String),
    /// Ranks that should be alike are not, because of this.
    Unlike(Asymmetry),
}

fn attempt(
    args: &Llama,
    workload: &Workload,
    chosen: &Chosen,
    symmetry: &Symmetry,
    folder: &Folder,
    argv: &[OsString],
) -> Result<Ended, HostError> {
    let cluster = &chosen.resolved.cluster;
    let mut engine = match Engine::folded(cluster, symmetry) {
        Ok(engine) => engine,
        Err(asymmetry) => return Ok(Ended::Unlike(asymmetry)),
    };
    let rates = &chosen.resolved.rates;
    let unlike =
        (0..rates.len()).find(|rank| rates[*rank] != rates[symmetry.representative(RankId::from(*rank)).index()]);
    if let Some(rank) = unlike {
        let problem = format!("device `{}` computes at other rates", cluster.devices[rank].name);
        return Ok(Ended::Unlike(Asymmetry::new(problem)));
    }
    let manifest = results::manifest(argv, 0, &chosen.resolved);
    let mut recording = Recording::start(args.output.record, &chosen.resolved, &manifest, folder, Counter::default())?;
    let mut programs = Programs { workload, rules: Arc::new(args.rules(rates)?), ranks: BTreeMap::new() };
    let (observer, recorder) = recording.watchers();
    let halt = programs.drive(&mut engine, observer, recorder);
    let mut figures = recording.finish(Vec::new())?;
    match halt {
        Some(halt) => Ok(match &halt.cause {
            Cause::Asymmetry(asymmetry) => Ended::Unlike(asymmetry.clone()),
            _ => Ended::Halted(halt.render(&|_| "a generated trace".to_owned(), &|_| Vec::new())),
        }),
        None => {
            figures.statistics.stand_for(symmetry.order());
            let report = results::of_run(figures, &chosen.resolved, Beside::default(), manifest);
            Ok(Ended::Finished(Box::new(report)))
        }
    }
}

/// The ranks that are simulated, made when they first have their turn.
struct Programs<'a> {
    workload: &'a Workload,
    rules: Arc<Rules>,
    ranks: BTreeMap<RankId, Replay<Trace>>,
}

impl Programs<'_> {
    fn drive(
        &mut self,
        engine: &mut Engine,
        observer: &mut dyn Observer,
        recorder: &mut dyn Recorder,
    ) -> Option<Box<Halt>> {
        loop {
            match engine.next(observer) {
                Turn::Resume(Resumption { rank, task, now, reply }) => {
                    let (workload, rules) = (self.workload, &self.rules);
                    let new = || Replay::new(rank, workload.trace(rank.0), rules.clone());
                    let replay = self.ranks.entry(rank).or_insert_with(new);
                    let request = replay.resume(now, task, reply);
                    if let Some(error) = replay.take_error() {
                        panic!("the generated trace of {rank}: {error}");
                    }
                    recorder.request(rank, task, &request);
                    engine.submit(rank, task, request);
                }
                Turn::Finished => return None,
                Turn::Halted(halt) => return Some(halt),
                Turn::Blocked => panic!("every trace answers at once"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::tests::{refused, run};
    use crate::error::Exit;
    use std::fs;
    use std::path::Path;

    const MODEL: [&str; 16] = [
        "--layers",
        "4",
        "--hidden",
        "64",
        "--heads",
        "8",
        "--kv-heads",
        "4",
        "--ffn",
        "160",
        "--vocab",
        "512",
        "--seq",
        "64",
        "--batch",
        "8",
    ];

    fn words<'a>(more: &[&'a str]) -> Vec<&'a str> {
        ["workload", "llama"].into_iter().chain(MODEL).chain(more.iter().copied()).collect()
    }

    fn report(dir: &Path) -> serde_json::Value {
        let mut report: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.join("report.json")).unwrap()).unwrap();
        // A digest is of what was simulated, the manifest has the command.
        report.as_object_mut().unwrap().retain(|key, _| key != "digest" && key != "manifest");
        report
    }

    #[test]
    fn a_job_takes_as_long_run_at_once_folded_or_not_and_as_traces() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (folded, whole, traces, replayed) = (path("folded"), path("whole"), path("llama"), path("replayed"));
        let layout = ["--tp", "2", "--dp", "2", "--pp", "2", "--memory-bandwidth", "1 GB/s"];
        let run_it = |more: &[&str]| {
            let words = words(&[&layout[..], &["--ranks", "8", "--backend", "ideal"], more].concat());
            assert_eq!(run(&words).unwrap() as i32, Exit::Ok as i32);
        };
        run_it(&["--run", "--fold", "on", "--out", &folded]);
        run_it(&["--run", "--fold", "off", "--out", &whole]);
        run_it(&["--run", "--out", &path("auto"), "--json"]);
        // Groups that are alike are one in a folded run, so operations are counted by other numbers.
        for key in ["makespan_ps", "ranks"] {
            assert_eq!(report(folded.as_ref())[key], report(whole.as_ref())[key]);
        }
        assert_eq!(report(folded.as_ref()), report(path("auto").as_ref()));
        run_it(&["--out", &traces]);
        let system = path("system.json");
        let rates =
            "{\"roofline-enabled\": 1, \"peak-perf\": 989, \"local-mem-bw\": 1, \"preferred-dataset-splits\": 1}";
        fs::write(&system, rates).unwrap();
        let replay =
            ["replay", &traces, "--ranks", "8", "--backend", "ideal", "--astra-system", &system, "--out", &replayed];
        assert_eq!(run(&replay).unwrap() as i32, Exit::Ok as i32);
        assert_eq!(report(replayed.as_ref())["ranks"], report(whole.as_ref())["ranks"]);
        run_it(&["--out", &path("few"), "--representatives"]);
        let written = |rank: u32| Path::new(&path(&format!("few.{rank}.et"))).exists();
        assert_eq!((0..8).filter(|rank| written(*rank)).collect::<Vec<_>>(), [0, 4]);
    }

    fn cluster(folder: &Path, devices: &str) -> String {
        let file = folder.join("cluster.toml").display().to_string();
        fs::write(&file, format!("{devices}[network]\n")).unwrap();
        file
    }

    fn warnings(report: &serde_json::Value) -> Vec<&str> {
        report["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap()).collect()
    }

    #[test]
    fn a_job_that_does_not_fit_is_refused_unless_the_user_insists() {
        // Two stages of two layers on three kinds of device, in file order: the second stage's second device lacks most.
        let dir = tempfile::tempdir().unwrap();
        let device = |name: &str, memory: &str| format!("[[device]]\nname = \"{name}\"\n{memory}\n");
        let devices = ["memory = \"8 MiB\"", "memory = \"8 MiB\"", "", "memory = \"300 KiB\""];
        let named: String =
            ["a", "b", "c", "d"].iter().zip(devices).map(|(name, memory)| device(name, memory)).collect();
        let file = cluster(dir.path(), &named);
        let out = dir.path().join("out").display().to_string();
        let job = ["--run", "--dp", "2", "--pp", "2", "--cluster", &file, "--backend", "ideal", "--out", &out];
        let message = refused(&words(&job));
        assert!(message.starts_with("exit 2\nerror: rank 3 needs "), "{message}");
        for part in ["weights ", "gradients ", "optimizer ", "device `d` has 300.00 KiB", "1 of 4 ranks", "hint: "] {
            assert!(message.contains(part), "{part} in {message}");
        }
        assert!(!dir.path().join("out").exists());
        assert_eq!(run(&words(&[&job[..], &["--ignore-memory"]].concat())).unwrap() as i32, Exit::Ok as i32);
        let report = report(dir.path().join("out").as_ref());
        assert!(
            warnings(&report)[0].starts_with("rank 3 needs ") && warnings(&report)[1].contains("an H100's"),
            "{report}"
        );
    }

    #[test]
    fn rates_that_nobody_has_given_are_said_to_be_assumed() {
        let dir = tempfile::tempdir().unwrap();
        let rates = "peak_flops = \"1 TFLOPS\"\nmemory_bandwidth = \"1 TB/s\"\n";
        let known = format!("[[device]]\nname = \"a\"\n{rates}");
        let half = format!("{known}[[device]]\nname = \"b\"\n");
        let all = format!("{known}count = 2\n");
        let cases: [(&str, &[&str], &[&str]); 4] = [
            (&half, &[], &["compute is assumed to be an H100's (989 TFLOPS and 3.35 TB/s) on 1 of 2 devices"]),
            (&half, &["--peak", "1 TFLOPS"], &["compute is assumed to be an H100's (3.35 TB/s) on 1 of 2 devices"]),
            (&half, &["--peak", "1 TFLOPS", "--memory-bandwidth", "1 TB/s"], &[]),
            (&all, &["--peak", "1 TFLOPS"], &["--peak not used"]),
        ];
        for (number, (devices, more, expected)) in cases.into_iter().enumerate() {
            let file = cluster(dir.path(), devices);
            let out = dir.path().join(number.to_string()).display().to_string();
            let job = ["--run", "--dp", "2", "--cluster", &file, "--backend", "ideal", "--out", &out];
            assert_eq!(run(&words(&[&job[..], more].concat())).unwrap() as i32, Exit::Ok as i32);
            let report = report(out.as_ref());
            let found = warnings(&report);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            assert!(found.iter().zip(expected).all(|(found, start)| found.starts_with(start)), "{found:?}");
        }
    }

    #[test]
    fn sequences_are_decoded_together() {
        // All 8 as one batch, unless a smaller one is asked for: then the weights are read twice. Of two stages each has half of the batch.
        let dir = tempfile::tempdir().unwrap();
        let makespan = |more: &[&str]| {
            let out = dir.path().join(format!("of{}", more.join(""))).display().to_string();
            let ranks = if more.contains(&"--pp") { "2" } else { "1" };
            let job = ["--run", "--phase", "decode", "--ranks", ranks, "--backend", "ideal", "--out", &out];
            assert_eq!(run(&words(&[&job[..], more].concat())).unwrap() as i32, Exit::Ok as i32);
            report(out.as_ref())["makespan_ps"].as_u64().unwrap()
        };
        assert_eq!(makespan(&[]), makespan(&["--micro-batch", "8"]));
        assert!(makespan(&["--micro-batch", "1"]) > 3 * makespan(&[]));
        assert_eq!(makespan(&["--pp", "2"]), makespan(&["--pp", "2", "--micro-batch", "4"]));
    }

    #[test]
    fn what_cannot_be_generated_or_folded_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().display().to_string();
        let unlike = ["--run", "--fold", "on", "--dp", "2", "--ranks", "2", "--slowdown", "1,2", "--backend", "ideal"];
        let cases: [(&[&str], &str); 5] = [
            (&["--tp", "3"], "heads (8) cannot be cut into 3 parts"),
            (&["--run", "--ranks", "2"], "the job has 1 ranks, the cluster 2 devices"),
            (&["--schedule", "interleaved"], "there is nothing to interleave"),
            (&["--run", "--peak", "400", "--ranks", "1"], "--peak"),
            (&unlike, "ranks are not alike: device"),
        ];
        for (case, expected) in cases {
            let message = refused(&words(&[case, &["--out", &out]].concat()));
            assert!(message.starts_with("exit 2\n") && message.contains(expected), "{message}");
            assert!(message.contains("hint"), "{message}");
        }
    }
}
