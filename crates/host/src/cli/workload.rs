//! Owns `uniference workload`: generated jobs, written as execution traces or run at once.
//!
//! What the jobs are made of is `uniference-formats`' business, which ranks are alike the simulator's.

use super::cluster::{Chosen, ClusterArgs, value};
use super::console::Counter;
use super::folder::Folder;
use super::lock::{Lock, Writer};
use super::results::{self, RecordLevel, Recording};
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
use uniference_formats::cluster::Rates;
use uniference_formats::units::{Bandwidth, Flops};
use uniference_formats::workload::{Experts, Layout, Model, Phase, Recompute, Schedule, Spec, Trace, Workload};
use uniference_sim::engine::{Cause, Engine, Halt, Resumption, Turn};
use uniference_sim::ids::RankId;
use uniference_sim::network::Asymmetry;
use uniference_sim::program::Program;
use uniference_sim::record::Observer;
use uniference_sim::symmetry::Symmetry;

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
    /// How many there are
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
    /// Sequences of a micro-batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    micro_batch: u64,
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
    /// What devices compute at most whose rates the cluster file does not have; the default is an H100's in bfloat16
    #[arg(long, value_name = "RATE", default_value = "989 TFLOPS")]
    peak: String,
    /// What they move between memory and processor at most
    #[arg(long, value_name = "RATE", default_value = "3.35 TB/s")]
    memory_bandwidth: String,
    /// Print the report as JSON, and nothing else, on standard output
    #[arg(long, requires = "run")]
    json: bool,
    /// What is kept besides the report; more than `summary` needs every rank, and so --fold off
    #[arg(long, value_enum, default_value_t = RecordLevel::Summary, requires = "run")]
    record: RecordLevel,
}

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
    Ok(Exit::Ok)
}

impl Llama {
    fn spec(&self) -> Result<Spec, HostError> {
        let ModelArgs { layers, hidden, heads, kv_heads, ffn, vocab, experts, top_k } = self.model;
        let experts = experts.map(|count| Experts { count, top_k });
        let LayoutArgs { tp, cp, ep, dp, pp, sequence_parallel, zero, gradient_bytes, .. } = self.layout;
        let LayoutArgs { recompute, clip_gradients, .. } = self.layout;
        let JobArgs { phase, seq, batch, micro_batch, new_tokens } = self.job;
        Ok(Spec {
            model: Model { layers, hidden, heads, kv_heads, ffn, vocabulary: vocab, experts },
            layout: Layout { tensor: tp, context: cp, expert: ep, data: dp, pipeline: pp, sequence_parallel },
            phase: match phase {
                PhaseName::Train => Phase::Train,
                PhaseName::Prefill => Phase::Prefill,
                PhaseName::Decode => Phase::Decode,
            },
            sequence: seq,
            batch,
            micro_batch,
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
        })
    }

    /// `rates` are those of the ranks' devices, where the cluster file has them.
    fn rules(&self, rates: &[Option<Rates>]) -> Result<Rules, HostError> {
        let memory: Bandwidth = value("--memory-bandwidth", &self.output.memory_bandwidth)?;
        let peak: Flops = value("--peak", &self.output.peak)?;
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
    let folder = Folder::prepare(args.output.out.as_deref(), "llama".as_ref())?;
    let mut reason: Option<Asymmetry> = None;
    for symmetry in args.output.symmetries(workload)? {
        let simulated = ranks / symmetry.order();
        if let Some(Asymmetry { problem, hint }) = reason.as_ref().filter(|_| simulated >= MANY) {
            super::complain(format_args!("simulating {simulated} of {ranks} ranks, as {problem}\nhint: {hint}\n"));
        }
        match attempt(args, workload, &chosen, &symmetry, &folder, argv)? {
            Ended::Reported => return Ok(Exit::Ok),
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

impl Output {
    fn symmetries(&self, workload: &Workload) -> Result<Vec<Symmetry>, HostError> {
        if self.record != RecordLevel::Summary && self.fold == Fold::On {
            let hint = "use --record summary, or --fold off";
            return Err(HostError::Usage(format!("what all ranks did cannot be kept of a few\nhint: {hint}")));
        }
        let all = workload.symmetry();
        Ok(match self.fold {
            Fold::On => vec![all],
            Fold::Auto if self.record == RecordLevel::Summary => along_fewer_axes(&all, workload.world_size()),
            Fold::Auto | Fold::Off => vec![Symmetry::default()],
        })
    }
}

/// The symmetry along any of its axes, those of most ranks a class first, the last one along none.
fn along_fewer_axes(symmetry: &Symmetry, world_size: u32) -> Vec<Symmetry> {
    let axes = symmetry.axes();
    let chosen = |set: u32| {
        let kept = axes.iter().enumerate().filter(|(axis, _)| set >> axis & 1 == 1).map(|(_, axis)| *axis);
        Symmetry::new(kept.collect(), world_size).expect("axes of a grid make a grid")
    };
    let mut symmetries: Vec<Symmetry> = (0..1 << axes.len()).map(chosen).collect();
    symmetries.sort_by_key(|symmetry| std::cmp::Reverse(symmetry.order()));
    symmetries
}

enum Ended {
    Reported,
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
    let (mut statistics, digest) = recording.finish(Vec::new())?;
    match halt {
        Some(halt) => Ok(match &halt.cause {
            Cause::Asymmetry(asymmetry) => Ended::Unlike(asymmetry.clone()),
            _ => Ended::Halted(halt.render(&|_| "a generated trace".to_owned(), &|_| Vec::new())),
        }),
        None => {
            statistics.stand_for(symmetry.order());
            if !symmetry.is_trivial() {
                let (all, order) = (workload.world_size(), symmetry.order());
                super::complain(format_args!("simulated {} of {all} ranks, each for {order} alike\n", all / order));
            }
            results::report((statistics, digest), &chosen.resolved, &[], manifest, folder, args.output.json)?;
            Ok(Ended::Reported)
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
