//! Owns `uniference workload`: generated jobs, written as execution traces or run at once.
//!
//! What the jobs are made of is `uniference-formats`' business, how they are run `uniference-session`'s.

use super::cluster::ClusterArgs;
use super::output::{RecordArg, conclude};
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use uniference_formats::chakra::schema::GlobalMetadata;
use uniference_formats::chakra::write::Writer as TraceWriter;
use uniference_formats::units::{Duration, counted};
use uniference_programs::workload::{
    AttentionKernels, Experts, Fusion, Implementation, Layout, Mlp, Model, Phase, Recompute, Schedule, Spec, Workload,
};
use uniference_session::ComputeOptions;
use uniference_session::cluster::value;
use uniference_session::generated::{self, Job, headline};
use uniference_session::lock::{Lock, Writer};
use uniference_session::results::command as command_of;
use uniference_session::traces::of_rank;
use uniference_session::{Done, Exit, HostError, Notices};
use uniference_sim::ids::RankId;
use uniference_sim::program::DType;
use uniference_sim::time::SimDuration;

/// `uniference workload`.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Generate a Llama-like decoder, dense or mixture of experts: one training step, or one inference step
    Llama(Box<Llama>),
}

/// `uniference workload llama`.
#[derive(clap::Args)]
pub(super) struct Llama {
    #[command(flatten)]
    job: LlamaJob,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// `uniference fit workload`: jobs without what they are run on or written to.
#[derive(clap::Subcommand)]
pub(super) enum FitJob {
    /// Check a Llama-like decoder, dense or mixture of experts: one training step, or one inference step
    Llama(Box<LlamaJob>),
}

/// What a job is.
#[derive(clap::Args)]
pub(super) struct LlamaJob {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    implementation: ImplementationArgs,
    #[command(flatten)]
    job: JobArgs,
}

impl FitJob {
    /// The job.
    pub(super) fn workload(&self) -> Result<Workload, HostError> {
        let FitJob::Llama(job) = self;
        Workload::new(job.spec()?).map_err(|error| HostError::Usage(error.to_string()))
    }
}

#[derive(clap::Args)]
#[command(next_help_heading = "Model")]
struct ModelArgs {
    /// Number of transformer layers
    #[arg(long, value_name = "N", default_value_t = 80)]
    layers: u32,
    /// Hidden size (width of the residual stream)
    #[arg(long, value_name = "N", default_value_t = 8192)]
    hidden: u64,
    /// Number of query heads
    #[arg(long, value_name = "N", default_value_t = 64)]
    heads: u64,
    /// Number of key and value heads
    #[arg(long, value_name = "N", default_value_t = 8)]
    kv_heads: u64,
    /// Width of the feed-forward network, or of each expert's
    #[arg(long, value_name = "N", default_value_t = 28_672)]
    ffn: u64,
    /// Vocabulary size
    #[arg(long, value_name = "N", default_value_t = 128_256)]
    vocab: u64,
    /// Number of experts per layer; they replace its feed-forward network
    #[arg(long, value_name = "N")]
    experts: Option<u64>,
    /// Number of experts that each token is routed to
    #[arg(long, value_name = "N", default_value_t = 2, requires = "experts")]
    top_k: u64,
    /// Feed-forward network, with the norms and biases that go with it
    #[arg(long, value_enum, default_value_t = MlpName::Swiglu)]
    mlp: MlpName,
    /// Use the embedding's matrix as the head's
    #[arg(long)]
    tied_embeddings: bool,
    /// Number of learned positions, added to the embedding in place of rotary ones (GPT); only with --mlp gelu
    #[arg(long, value_name = "N", default_value_t = 0)]
    learned_positions: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum MlpName {
    /// Llama: gate, up and down matrices, root-mean-square norms, no biases
    Swiglu,
    /// GPT: two matrices, layer norms, biases
    Gelu,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Implementation")]
struct ImplementationArgs {
    /// Type of activations and weights
    #[arg(long, value_enum, default_value_t = DtypeName::Bfloat16)]
    dtype: DtypeName,
    /// Multiply the linear layers of the transformer in 8 bits, with scales for whole tensors
    #[arg(long)]
    float8: bool,
    /// Kernels between matrix products
    #[arg(long, value_enum, default_value_t = KernelsName::Fused)]
    kernels: KernelsName,
    /// Kernels of attention
    #[arg(long, value_enum, default_value_t = AttentionName::Flash)]
    attention: AttentionName,
    /// Dropout after the embedding and each block, and of attention's probabilities if it is unfused
    #[arg(long)]
    dropout: bool,
    /// Time that the host needs to issue one operator, as in "6 us" [default: 0, as with CUDA graphs]
    #[arg(long, value_name = "TIME")]
    host_time: Option<String>,
    /// Reduce gradients after the last backward pass instead of during it (--zero 0 and 1)
    #[arg(long)]
    no_gradient_overlap: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DtypeName {
    Bfloat16,
    Float16,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum KernelsName {
    /// One kernel per operation of PyTorch
    Eager,
    /// Handwritten kernels for norms, rotary positions, activations, softmax (Megatron-LM, Transformer Engine)
    Fused,
    /// Kernels of a compiler (torch.compile)
    Compiled,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AttentionName {
    /// One kernel that does not write the scores (FlashAttention)
    Flash,
    /// Matrix products, softmax and dropout over all pairs of tokens
    Unfused,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Parallelism")]
struct LayoutArgs {
    /// Tensor-parallel degree: ranks that share each weight matrix
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: u32,
    /// Context-parallel degree: ranks that share each sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    cp: u32,
    /// Expert-parallel degree: data-parallel ranks that hold different experts
    #[arg(long, value_name = "N", default_value_t = 1)]
    ep: u32,
    /// Data-parallel degree: replicas of the model
    #[arg(long, value_name = "N", default_value_t = 1)]
    dp: u32,
    /// Pipeline-parallel degree: number of pipeline stages
    #[arg(long, value_name = "N", default_value_t = 1)]
    pp: u32,
    /// Use sequence parallelism: split the activations between matrices among tensor-parallel ranks too
    #[arg(long)]
    sequence_parallel: bool,
    /// Pipeline schedule of training [default: 1f1b, or interleaved with --virtual-stages]
    #[arg(long, value_enum)]
    schedule: Option<ScheduleName>,
    /// Number of model chunks per pipeline stage, for the interleaved schedule
    #[arg(long, value_name = "N")]
    virtual_stages: Option<u32>,
    /// ZeRO stage: what data-parallel ranks shard (0: nothing, 1: optimizer states, 2: also gradients, 3: also parameters)
    #[arg(long, value_name = "STAGE", default_value_t = 0)]
    zero: u8,
    /// Shard within groups of N replicas, and copy the shards over the groups (hybrid sharding, HSDP; with --zero 1 to 3)
    #[arg(long, value_name = "N")]
    hsdp: Option<u32>,
    /// Bytes per gradient element in reductions
    #[arg(long, value_name = "N", default_value_t = 4)]
    gradient_bytes: u64,
    /// Which activations the backward pass recomputes instead of keeping them
    #[arg(long, value_enum, default_value_t = RecomputeName::None)]
    recompute: RecomputeName,
    /// Clip gradients by their global norm, which takes an all-reduce
    #[arg(long)]
    clip_gradients: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RecomputeName {
    /// Keep every activation
    None,
    /// Recompute the attention scores and values
    Selective,
    /// Recompute every layer from its input
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScheduleName {
    /// GPipe: all forward passes, then all backward passes
    Gpipe,
    /// One forward pass, one backward pass
    #[value(name = "1f1b")]
    OneForwardOneBackward,
    /// 1F1B with several model chunks per stage
    Interleaved,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Job")]
struct JobArgs {
    /// Phase to generate: one training step, prefill, or decode
    #[arg(long, value_enum, default_value_t = PhaseName::Train)]
    phase: PhaseName,
    /// Sequence length in tokens; in the decode phase, the context length before the new token
    #[arg(long, value_name = "N", default_value_t = 4096)]
    seq: u64,
    /// Global batch size, in sequences
    #[arg(long, value_name = "N")]
    batch: u64,
    /// Micro-batch size, in sequences [default: 1; in the decode phase, a replica's batch divided among at most as many parts as there are stages]
    #[arg(long, value_name = "N")]
    micro_batch: Option<u64>,
    /// Number of tokens to decode for each sequence, one after the other
    #[arg(long, value_name = "N", default_value_t = 1)]
    new_tokens: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PhaseName {
    /// One training step: forward, backward, gradient reduction, optimizer update
    Train,
    /// One forward pass over every sequence
    Prefill,
    /// New tokens for every sequence
    Decode,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
struct Output {
    /// Simulate the job on a cluster instead of writing traces
    #[arg(long)]
    run: bool,
    /// Prefix of the traces, PREFIX.RANK.et; with --run, the output folder [default: uniference-out/llama-N]
    #[arg(long, value_name = "PREFIX|DIR", required_unless_present = "run")]
    out: Option<PathBuf>,
    /// Write only one trace for each set of equivalent ranks
    #[arg(long, conflicts_with = "run")]
    representatives: bool,
    /// Simulate one rank for each set of equivalent ranks: where this is known to be exact, always, or never
    #[arg(long, value_enum, default_value_t = Fold::Auto, requires = "run")]
    fold: Fold,
    /// Simulate the job even if it needs more memory than the devices have
    #[arg(long, requires = "run")]
    ignore_memory: bool,
    /// Database of measured operators, beside the shipped one and the user's own
    #[arg(long, value_name = "FILE", requires = "run")]
    device_db: Option<PathBuf>,
    /// The cluster file says it.
    #[arg(long, value_name = "RATE", hide = true)]
    peak: Option<String>,
    /// The same.
    #[arg(long, value_name = "RATE", hide = true)]
    memory_bandwidth: Option<String>,
    /// Print only the report, as JSON, to standard output
    #[arg(long, requires = "run")]
    json: bool,
    /// What to write besides the report; anything but `summary` needs every rank, that is, --fold off
    #[arg(long, value_enum, default_value_t = RecordArg::Summary, requires = "run")]
    record: RecordArg,
}

/// Whether ranks that are alike are simulated as one.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fold {
    /// Along every axis of the job whose ranks the cluster and the run treat alike
    Auto,
    /// Along all axes of the job, or fail
    On,
    /// Simulate every rank
    Off,
}

/// Carries the command out.
pub(super) fn command(command: &Command, argv: &[OsString]) -> Result<Exit, HostError> {
    let Command::Llama(args) = command;
    let workload = Workload::new(args.job.spec()?).map_err(|error| HostError::Usage(error.to_string()))?;
    let headline = headline(&workload);
    if args.output.run {
        return conclude(run(args, workload, argv, &super::notices())?, args.output.json, Some(headline));
    }
    args.output.check_rates()?;
    let prefix = args.output.out.as_deref().expect("asked for without --run");
    let _lock = Lock::of_file(&of_rank(prefix, "RANK"), Writer::Alone, &super::notices())?;
    write_traces(&workload, prefix, args.output.representatives)?;
    super::say(format_args!("{headline}\n"))?;
    Ok(Exit::Ok)
}

/// Runs a job, as a session does it.
///
/// # Errors
/// If the command would only write traces, and the job's own.
pub(super) fn carry_out(command: &Command, argv: &[OsString], notices: &Notices) -> Result<Done, HostError> {
    let Command::Llama(args) = command;
    if !args.output.run {
        let hint = "add --run";
        return Err(HostError::Usage(format!("without --run traces are written and nothing is run\nhint: {hint}")));
    }
    let workload = Workload::new(args.job.spec()?).map_err(|error| HostError::Usage(error.to_string()))?;
    run(args, workload, argv, notices)
}

impl LlamaJob {
    fn spec(&self) -> Result<Spec, HostError> {
        let ModelArgs { layers, hidden, heads, kv_heads, ffn, vocab, experts, top_k, mlp, .. } = self.model;
        let ModelArgs { tied_embeddings, learned_positions, .. } = self.model;
        let experts = experts.map(|count| Experts { count, top_k });
        let LayoutArgs { tp, cp, ep, dp, pp, sequence_parallel, zero, gradient_bytes, .. } = self.layout;
        let LayoutArgs { recompute, clip_gradients, hsdp, .. } = self.layout;
        let JobArgs { phase, seq, batch, micro_batch, new_tokens } = self.job;
        let spec = Spec {
            model: Model {
                layers,
                hidden,
                heads,
                kv_heads,
                ffn,
                vocabulary: vocab,
                experts,
                mlp: match mlp {
                    MlpName::Swiglu => Mlp::SwiGlu,
                    MlpName::Gelu => Mlp::Gelu,
                },
                positions: learned_positions,
                tied: tied_embeddings,
            },
            layout: Layout {
                tensor: tp,
                context: cp,
                expert: ep,
                data: dp,
                pipeline: pp,
                sequence_parallel,
                shard: hsdp,
            },
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
            implementation: self.implementation.resolve()?,
        };
        Ok(Spec { micro_batch: micro_batch.unwrap_or_else(|| spec.default_micro_batch()), ..spec })
    }
}

impl ImplementationArgs {
    fn resolve(&self) -> Result<Implementation, HostError> {
        Ok(Implementation {
            dtype: match self.dtype {
                DtypeName::Bfloat16 => DType::BFloat16,
                DtypeName::Float16 => DType::Float16,
            },
            float8: self.float8,
            fusion: match self.kernels {
                KernelsName::Eager => Fusion::Eager,
                KernelsName::Fused => Fusion::Fused,
                KernelsName::Compiled => Fusion::Compiled,
            },
            attention: match self.attention {
                AttentionName::Flash => AttentionKernels::Flash,
                AttentionName::Unfused => AttentionKernels::Unfused,
            },
            dropout: self.dropout,
            host: match &self.host_time {
                Some(text) => value::<Duration>("--host-time", text)?.0,
                None => SimDuration::ZERO,
            },
            overlap_gradients: !self.no_gradient_overlap,
        })
    }
}

impl LayoutArgs {
    fn schedule(&self) -> Result<Schedule, HostError> {
        match (self.schedule, self.virtual_stages) {
            (None | Some(ScheduleName::OneForwardOneBackward), None) => Ok(Schedule::OneForwardOneBackward),
            (Some(ScheduleName::Gpipe), None) => Ok(Schedule::GPipe),
            (None | Some(ScheduleName::Interleaved), Some(pieces)) => Ok(Schedule::Interleaved(pieces)),
            (Some(ScheduleName::Interleaved), None) => {
                let hint = "give the number of model chunks per stage: --virtual-stages N";
                Err(HostError::Usage(format!("the interleaved schedule needs virtual stages\nhint: {hint}")))
            }
            (Some(_), Some(_)) => {
                let hint = "remove --virtual-stages, or use --schedule interleaved";
                Err(HostError::Usage(format!("--virtual-stages requires the interleaved schedule\nhint: {hint}")))
            }
        }
    }
}

impl Output {
    /// Rates belong to devices.
    fn check_rates(&self) -> Result<(), HostError> {
        let given =
            [("--peak", &self.peak, "peak_flops"), ("--memory-bandwidth", &self.memory_bandwidth, "memory_bandwidth")];
        match given.into_iter().find(|(_, rate, _)| rate.is_some()) {
            None => Ok(()),
            Some((option, _, key)) => Err(HostError::Usage(format!(
                "{option} is not supported: what operators cost follows from the cluster's devices\nhint: add model = \"NAME\", or {key}, to the [[device]] in the cluster file; `uniference devices list` shows the names"
            ))),
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
    let shared = if each > 1 { format!(", each representing {each} ranks") } else { String::new() };
    super::say(format_args!("{}: {}.RANK.et{shared}\n", counted(count, "trace"), prefix.display()))
}

fn write_trace(workload: &Workload, RankId(rank): RankId, path: &Path) -> Result<(), HostError> {
    let hint = "give a prefix in an existing, writable folder";
    let failed = |source| HostError::File { action: "write", path: path.to_owned(), source, hint };
    let file = BufWriter::new(File::create(path).map_err(failed)?);
    let metadata = GlobalMetadata { version: "0.0.4".into(), ..GlobalMetadata::default() };
    let mut writer = TraceWriter::new(file, &metadata).map_err(failed)?;
    workload.trace(rank).try_for_each(|node| writer.node(&node)).map_err(failed)?;
    writer.finish().and_then(|file| file.into_inner().map_err(std::io::Error::from)).map_err(failed)?;
    Ok(())
}

// Runs

/// Runs the job, and says how that ended.
fn run(args: &Llama, workload: Workload, argv: &[OsString], notices: &Notices) -> Result<Done, HostError> {
    let Output { out, fold, ignore_memory, device_db, record, .. } = &args.output;
    args.output.check_rates()?;
    generated::run(&Job {
        workload,
        cluster: args.cluster.options(),
        fold: match fold {
            Fold::Auto => generated::Fold::Auto,
            Fold::On => generated::Fold::On,
            Fold::Off => generated::Fold::Off,
        },
        ignore_memory: *ignore_memory,
        compute: ComputeOptions {
            source: None,
            own_database: super::devices::own_file(),
            database: device_db.clone(),
            left_out: None,
        },
        command: command_of(argv),
        output: uniference_session::Output {
            folder: out.clone(),
            name: "llama".into(),
            record: (*record).into(),
            notices: notices.clone(),
        },
    })
}

#[cfg(test)]
mod tests {
    use crate::tests::{refused, run};
    use std::fs;
    use std::path::Path;
    use uniference_host::error::Exit;

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
        let rates = "peak_flops = \"989 TFLOPS\"\nmemory_bandwidth = \"1 GB/s\"";
        let file = cluster(dir.path(), &format!("[[device]]\nname = \"gpu\"\ncount = 8\n{rates}\n"));
        let layout = ["--tp", "2", "--dp", "2", "--pp", "2"];
        let run_it = |more: &[&str]| {
            let words = words(&[&layout[..], &["--cluster", &file, "--backend", "ideal"], more].concat());
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
        let replay = ["replay", &traces, "--cluster", &file, "--backend", "ideal", "--out", &replayed];
        assert_eq!(run(&replay).unwrap() as i32, Exit::Ok as i32);
        for key in ["ranks", "compute"] {
            assert_eq!(report(replayed.as_ref())[key], report(whole.as_ref())[key]);
        }
        // Of each rank the kinds of its operators, and what they come from.
        let rows = report(whole.as_ref())["compute"].as_array().unwrap().clone();
        let of =
            |kind: &str| rows.iter().find(|row| row["kind"] == kind && row["rank"] == 7).unwrap()["origin"].clone();
        assert_eq!(["gemm", "attention", "optimizer"].map(of), ["transferred", "transferred", "transferred"]);
        assert!(report(whole.as_ref())["interval"]["high_s"].as_f64() > report(whole.as_ref())["makespan_s"].as_f64());
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
            warnings(&report)[0].starts_with("rank 3 needs ") && warnings(&report)[1].contains("h100-sxm"),
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
        let named = "[[device]]\nname = \"a\"\nmodel = \"a100-sxm-80gb\"\ncount = 2\n".to_owned();
        let cases: [(&str, &[&str], &[&str]); 3] = [
            (
                &half,
                &[],
                &[
                    "1 of 2 devices name neither a `model` nor their rates in the cluster file; each is taken to be h100-sxm-80gb",
                ],
            ),
            (&all, &[], &[]),
            (&named, &[], &[]),
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
        let cases: [(&[&str], &str); 8] = [
            (&["--tp", "3"], "heads (8) cannot be divided into 3 parts"),
            (&["--run", "--ranks", "2"], "the job has 1 rank, but the cluster has 2 devices"),
            (&["--schedule", "interleaved"], "the interleaved schedule needs virtual stages"),
            (&["--run", "--peak", "400 TFLOPS", "--ranks", "1"], "--peak is not supported"),
            (&["--memory-bandwidth", "1 TB/s"], "--memory-bandwidth is not supported"),
            (&["--host-time", "6"], "--host-time"),
            (&["--learned-positions", "64"], "learned positions require a GPT-like model"),
            (&unlike, "ranks are not equivalent: device"),
        ];
        for (case, expected) in cases {
            let message = refused(&words(&[case, &["--out", &out]].concat()));
            assert!(message.starts_with("exit 2\n") && message.contains(expected), "{message}");
            assert!(message.contains("hint"), "{message}");
        }
    }
}
