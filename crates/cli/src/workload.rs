//! Owns `uniference workload`: generated jobs, written as execution traces or simulated.
//!
//! Jobs are defined in `uniference-formats`, and run by `uniference-session`.

use super::cluster::ClusterArgs;
use super::output::{RecordArg, Showing, conclude};
use super::progress::ProgressArgs;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use uniference_formats::chakra::schema::GlobalMetadata;
use uniference_formats::chakra::write::Writer as TraceWriter;
use uniference_formats::units::{Duration, counted};
use uniference_programs::workload::{
    AttentionKernels, ContextMethod, ContextOrder, ExpertLoad, Experts, Fusion, Implementation, Latent, Layout, Mlp,
    Model, Phase, Recompute, Schedule, Spec, Workload,
};
use uniference_session::cluster::value;
use uniference_session::generated::{self, Job, headline};
use uniference_session::input;
use uniference_session::lock::{Lock, Writer};
use uniference_session::results::command as command_of;
use uniference_session::traces::of_rank;
use uniference_session::whole;
use uniference_session::{ClusterOptions, DatabaseOptions};
use uniference_session::{Ended, Exit, HostError, Notices, RunResults};
use uniference_sim::ids::RankId;
use uniference_sim::program::DType;
use uniference_sim::time::SimDuration;

/// `uniference workload`.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Generate a Llama-like decoder, dense or mixture of experts: one training step, or one inference step
    Llama(Box<Llama>),
}

impl Command {
    /// Options of the cluster.
    pub(super) fn cluster(&self) -> ClusterOptions {
        let Command::Llama(args) = self;
        args.cluster.options()
    }
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

/// `uniference fit workload`: jobs without options of a cluster or an output.
#[derive(clap::Subcommand)]
pub(super) enum FitJob {
    /// Check a Llama-like decoder, dense or mixture of experts: one training step, or one inference step
    Llama(Box<LlamaJob>),
}

/// Options of a job.
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
    /// The job that the options describe.
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
    #[arg(long, value_name = "N", default_value_t = 8, conflicts_with = "kv_lora_rank")]
    kv_heads: u64,
    /// Multi-head latent attention (DeepSeek-V2): width of the vector of which a token's keys and values are made
    #[arg(long, value_name = "N")]
    kv_lora_rank: Option<u64>,
    /// Width of the vector of which queries are made; 0: they are made of the residual stream
    #[arg(long, value_name = "N", default_value_t = 0, requires = "kv_lora_rank")]
    q_lora_rank: u64,
    /// Elements of a head's query and key without rotary positions
    #[arg(long, value_name = "N", default_value_t = 128, requires = "kv_lora_rank")]
    qk_nope_head_dim: u64,
    /// Elements of a head's query with rotary positions, and of the one such key of all heads
    #[arg(long, value_name = "N", default_value_t = 64, requires = "kv_lora_rank")]
    qk_rope_head_dim: u64,
    /// Elements of a head's value
    #[arg(long, value_name = "N", default_value_t = 128, requires = "kv_lora_rank")]
    v_head_dim: u64,
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
    /// Width of each expert [default: that of --ffn]
    #[arg(long, value_name = "N", requires = "experts")]
    expert_ffn: Option<u64>,
    /// Number of shared experts, which process every token; they are one network, as wide as that many experts
    #[arg(long, value_name = "N", default_value_t = 0, requires = "experts")]
    shared_experts: u64,
    /// Number of first layers that have an ordinary feed-forward network in place of experts
    #[arg(long, value_name = "N", default_value_t = 0, requires = "experts")]
    dense_layers: u32,
    /// Width of the network of --dense-layers [default: with --expert-ffn that of --ffn, else that of the experts together that see a token]
    #[arg(long, value_name = "N", requires = "experts")]
    dense_ffn: Option<u64>,
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
    /// Compute the GEMMs of the transformer's linear layers in FP8, with scales for whole tensors; in the prefill and
    /// decode phases their weights are stored in FP8
    #[arg(long)]
    float8: bool,
    /// Type of the KV cache in the prefill and decode phases [default: that of --dtype]
    #[arg(long, value_name = "TYPE", value_enum)]
    kv_cache_dtype: Option<CacheTypeName>,
    /// Kernels between GEMMs
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
    /// Split the tensor-parallel communication of sequence parallelism into N parts that overlap GEMMs
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp_overlap: u64,
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
enum CacheTypeName {
    /// 8 bits; attention of decoded tokens is computed in 8 bits
    Float8,
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
    /// GEMMs, softmax and dropout over all pairs of tokens
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
    /// Exchange of keys and values among context-parallel ranks
    #[arg(long, value_enum, default_value_t = CpMethodName::AllGather)]
    cp_method: CpMethodName,
    /// Which parts of a sequence context-parallel ranks have
    #[arg(long, value_enum, default_value_t = CpOrderName::Zigzag)]
    cp_order: CpOrderName,
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
    /// Clip gradients by their global norm, which requires an all-reduce
    #[arg(long)]
    clip_gradients: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CpMethodName {
    /// All-gather before attention
    AllGather,
    /// Pass them around a ring, overlapped with attention to those received before (ring attention)
    Ring,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CpOrderName {
    /// The n-th and the n-th last of 2 x --cp parts: equally much causal attention for each
    Zigzag,
    /// The n-th of --cp parts: the last rank has most to do
    Contiguous,
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
    /// 1F1B with the gradients of weights computed separately, while stages would idle (ZB-H1)
    ZeroBubble,
    /// Micro-batches from both ends of the pipeline, forward and backward passes overlapped (DeepSeek-V3)
    Dualpipe,
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
    /// Share of the tokens that each expert gets: uniform, zipf or zipf=EXPONENT (Zipf's law; which expert is popular is drawn for each layer), or a
    /// CSV file with the columns expert,share
    #[arg(long, value_name = "uniform|zipf[=S]|FILE", default_value = "uniform")]
    expert_load: String,
    /// Seed of the draws of --expert-load zipf
    #[arg(long, value_name = "N", default_value_t = 0)]
    expert_seed: u64,
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
    /// Prefix of the traces, PREFIX.RANK.et; with --run, the run folder [default: uniference-out/llama-N]
    #[arg(long, value_name = "PREFIX|RUN", required_unless_present = "run")]
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
    /// Database of measured operators, in addition to the shipped one and the user's own
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
    /// Files to write in addition to the report; all values but `summary` require every rank, that is, --fold off
    #[arg(long, value_enum, default_value_t = RecordArg::Summary, requires = "run")]
    record: RecordArg,
    #[command(flatten)]
    progress: ProgressArgs,
}

/// Whether equivalent ranks are simulated as one.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fold {
    /// Along every axis of the job whose ranks the cluster and the run treat alike
    Auto,
    /// Along all axes of the job, or fail
    On,
    /// Simulate every rank
    Off,
}

/// Runs the command.
pub(super) fn command(command: &Command, argv: &[OsString]) -> Result<Exit, HostError> {
    let Command::Llama(args) = command;
    let workload = args.job.short_workload()?;
    let headline = headline(&workload);
    if args.output.run {
        let Output { json, progress, .. } = &args.output;
        let notices = super::notices_with(progress.start(|| None)?);
        let done = run(args, workload, argv, &notices)?;
        drop(notices);
        return conclude(done, Showing::new(*json, progress.quiet), Some(headline));
    }
    args.output.check_rates()?;
    let prefix = args.output.out.as_deref().expect("asked for without --run");
    let _lock = Lock::of_file(&of_rank(prefix, "RANK"), Writer::Alone, &super::notices())?;
    write_traces(&workload, prefix, args.output.representatives)?;
    super::say(format_args!("{headline}\n"))?;
    Ok(Exit::Ok)
}

/// Runs a job in a session.
///
/// # Errors
/// If the command would only write traces, and errors of the job.
pub(super) fn carry_out(
    command: &Command,
    argv: &[OsString],
    notices: &Notices,
) -> Result<Ended<RunResults>, HostError> {
    let Command::Llama(args) = command;
    if !args.output.run {
        let hint = "add --run";
        return Err(HostError::Usage(format!("without --run traces are written and nothing is run\nhint: {hint}")));
    }
    let workload = args.job.short_workload()?;
    run(args, workload, argv, notices)
}

impl LlamaJob {
    /// The job, if its traces are short enough to be generated.
    fn short_workload(&self) -> Result<Workload, HostError> {
        let workload = Workload::new(self.spec()?);
        workload.and_then(|job| job.check_passes().map(|()| job)).map_err(|error| HostError::Usage(error.to_string()))
    }

    fn spec(&self) -> Result<Spec, HostError> {
        let ModelArgs { layers, hidden, heads, kv_heads, vocab, mlp, .. } = self.model;
        let ModelArgs { tied_embeddings, learned_positions, .. } = self.model;
        let (ffn, experts) = self.model.networks();
        let LayoutArgs { tp, cp, ep, dp, pp, sequence_parallel, zero, gradient_bytes, .. } = self.layout;
        let LayoutArgs { recompute, clip_gradients, hsdp, .. } = self.layout;
        let JobArgs { phase, seq, batch, micro_batch, new_tokens, .. } = self.job;
        let spec = Spec {
            model: Model {
                layers,
                hidden,
                heads,
                kv_heads,
                ffn,
                vocabulary: vocab,
                experts,
                latent: self.model.latent(),
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
                context_method: match self.layout.cp_method {
                    CpMethodName::AllGather => ContextMethod::AllGather,
                    CpMethodName::Ring => ContextMethod::Ring,
                },
                context_order: match self.layout.cp_order {
                    CpOrderName::Zigzag => ContextOrder::Zigzag,
                    CpOrderName::Contiguous => ContextOrder::Contiguous,
                },
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
            expert_load: self.job.expert_load(experts)?,
        };
        Ok(Spec { micro_batch: micro_batch.unwrap_or_else(|| spec.default_micro_batch()), ..spec })
    }
}

impl ModelArgs {
    /// Width of the feed-forward network of layers without experts, and the experts.
    fn networks(&self) -> (u64, Option<Experts>) {
        let ModelArgs { ffn, experts, top_k, expert_ffn, shared_experts: shared, dense_layers, dense_ffn, .. } = *self;
        let Some(count) = experts else { return (ffn, None) };
        // As wide as all experts that process one token, as in DeepSeek-V2 and DeepSeek-V3.
        let usual = if expert_ffn.is_some() { ffn } else { ffn.saturating_mul(top_k.saturating_add(shared)) };
        let experts = Experts { count, top_k, ffn: expert_ffn.unwrap_or(ffn), shared, dense_layers };
        (dense_ffn.unwrap_or(usual), Some(experts))
    }

    fn latent(&self) -> Option<Latent> {
        let latent = |kv_rank| Latent {
            query_rank: self.q_lora_rank,
            kv_rank,
            plain: self.qk_nope_head_dim,
            rotary: self.qk_rope_head_dim,
            value: self.v_head_dim,
        };
        self.kv_lora_rank.map(latent)
    }
}

impl JobArgs {
    fn expert_load(&self, experts: Option<Experts>) -> Result<ExpertLoad, HostError> {
        let seed = self.expert_seed;
        let usage = |message: String| HostError::Usage(format!("--expert-load: {message}"));
        match &*self.expert_load {
            "uniform" => Ok(ExpertLoad::Uniform),
            "zipf" => Ok(ExpertLoad::Zipf { exponent: 1.0, seed }),
            other => match other.strip_prefix("zipf=") {
                Some(text) => {
                    let exponent = text.parse().ok();
                    let problem =
                        || usage(format!("`{text}` is not a number\nhint: give the exponent, as in zipf=1.2"));
                    Ok(ExpertLoad::Zipf { exponent: exponent.ok_or_else(problem)?, seed })
                }
                None => {
                    let path = Path::new(other);
                    let hint = "use uniform, zipf, zipf=EXPONENT or a file with the columns expert,share";
                    let failed = |source| HostError::File { action: "read", path: path.to_owned(), source, hint };
                    let text = input::text(path).map_err(failed)?;
                    // Without experts there is no load to divide; the job refuses the option.
                    let Some(Experts { count, .. }) = experts else { return Ok(ExpertLoad::Shares([].into())) };
                    ExpertLoad::parse(&text, count).map_err(|problem| usage(format!("{other}: {problem}")))
                }
            },
        }
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
            float8_cache: self.kv_cache_dtype.is_some(),
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
            tensor_parts: self.tp_overlap,
        })
    }
}

impl LayoutArgs {
    fn schedule(&self) -> Result<Schedule, HostError> {
        match (self.schedule, self.virtual_stages) {
            (None | Some(ScheduleName::OneForwardOneBackward), None) => Ok(Schedule::OneForwardOneBackward),
            (Some(ScheduleName::Gpipe), None) => Ok(Schedule::GPipe),
            (Some(ScheduleName::ZeroBubble), None) => Ok(Schedule::ZeroBubble),
            (Some(ScheduleName::Dualpipe), None) => Ok(Schedule::DualPipe),
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
    /// Refuses rates, which the cluster file gives per device.
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
    let metadata = GlobalMetadata { version: "0.0.4".into(), ..GlobalMetadata::default() };
    let written = whole::write_with(path, |file| {
        let mut writer = TraceWriter::new(file, &metadata)?;
        workload.trace(rank).try_for_each(|node| writer.node(&node))?;
        writer.finish().map(drop)
    });
    written.map_err(failed)
}

// Runs

/// Runs the job, and returns its result.
fn run(args: &Llama, workload: Workload, argv: &[OsString], notices: &Notices) -> Result<Ended<RunResults>, HostError> {
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
        databases: DatabaseOptions {
            own: super::devices::own_file(),
            named: device_db.clone(),
            ..DatabaseOptions::default()
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
mod tests;
