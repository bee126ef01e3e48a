//! Generated workloads: the computation and communication of each rank in the training or inference of a large language
//! model, as execution traces without a recording.
//!
//! Modules, in the order in which they contribute to a trace: [`Model`] describes the layers, `operators` their
//! operators, [`Layout`] the position of a rank in the job, `schedule` the order of its micro-batches, and [`Trace`]
//! makes nodes of these, one model chunk of a micro-batch at a time; [`Memory`] is the memory that a rank needs. Memory
//! use of the modules grows neither with the number of ranks nor with that of micro-batches, and they read and write no
//! files. The replay decides when nodes run.
//!
//! Formulas and their sources are in the comments of the code that uses them; `docs/reference/workloads.md` collects
//! them.

mod layout;
mod load;
mod memory;
mod model;
mod operators;
mod schedule;
mod trace;

pub use layout::{ContextMethod, ContextOrder, Layout, RankPosition};
pub use load::ExpertLoad;
pub use memory::Memory;
use model::LayerKind;
pub use model::{Experts, Latent, Mlp, Model};
pub use operators::{AttentionKernels, Fusion, Implementation};
pub use schedule::Schedule;
pub use trace::Trace;

use uniference_sim::symmetry::Symmetry;

/// Bytes per element of an activation or a weight: bfloat16.
pub(crate) const ELEMENT: u64 = 2;

/// A job: model, parallel layout and phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The model that is trained or served.
    pub model: Model,
    /// The parallel layout.
    pub layout: Layout,
    /// Training, prefill or decode.
    pub phase: Phase,
    /// Tokens of a sequence; in the decode phase, the tokens before the new one.
    pub sequence: u64,
    /// Sequences, over all ranks.
    pub batch: u64,
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// The order of micro-batches.
    pub schedule: Schedule,
    /// ZeRO stage. Sharded over data-parallel ranks are: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters
    /// too.
    pub zero: u8,
    /// Bytes per element of a gradient, in its accumulation and its reduction.
    pub gradient_bytes: u64,
    /// Activations that training recomputes instead of keeping them.
    pub recompute: Recompute,
    /// Whether gradients are scaled so that their global norm does not exceed a bound.
    pub clip_gradients: bool,
    /// New tokens of each sequence in the decode phase, one after the other; 1 in other phases.
    pub new_tokens: u64,
    /// Choice of kernels.
    pub implementation: Implementation,
    /// Distribution of tokens over experts.
    pub expert_load: ExpertLoad,
}

/// Activations that are recomputed just before the backward pass that needs them (Korthikanti et al., "Reducing
/// activation recomputation in large transformer models", 2022, sections 3 and 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// All activations are kept.
    #[default]
    None,
    /// Attention's scores and values are recomputed.
    Selective,
    /// Only the input of each layer is kept: the whole layer runs again, including its communication.
    Full,
}

/// Phase of a model's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// One training step: forward and backward pass of each micro-batch, reduction of gradients, and optimizer step.
    Train,
    /// One forward pass of each micro-batch.
    Prefill,
    /// Generation of new tokens for each sequence, one after the other.
    Decode,
}

/// A job that can be generated: a [`Spec`] whose parts fit together.
#[derive(Clone, Debug)]
pub struct Workload {
    spec: Spec,
}

/// Parts of a job that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\nhint: {hint}")]
pub struct WorkloadError {
    /// The problem.
    pub problem: String,
    /// The user's remedy.
    pub hint: &'static str,
}

/// A part of the model whose parameters are gathered, and whose gradients are summed, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Embedding,
    Layer(LayerPosition),
    /// The last norm and the output layer.
    Head,
}

/// Differences between ranks of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unlike {
    /// Ranks with different experts receive different numbers of tokens.
    experts: bool,
    /// Ranks with different parts of a sequence run different kernels.
    contexts: bool,
}

/// Position of a layer in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LayerPosition {
    /// Index of the layer within its model chunk.
    within: u32,
    /// Index within the whole model.
    number: u32,
}

impl Workload {
    /// Checks a specification.
    ///
    /// # Errors
    /// Sizes that are not multiples of each other as required, or options that exclude each other.
    pub fn new(spec: Spec) -> Result<Workload, WorkloadError> {
        spec.check()?;
        Ok(Workload { spec })
    }

    /// Checks that the job's traces are short enough to be generated.
    ///
    /// # Errors
    /// If a rank's micro-batches pass through more than `MOST_PASSES` layers.
    pub fn check_passes(&self) -> Result<(), WorkloadError> {
        let Spec { model, layout, new_tokens, .. } = &self.spec;
        let layers = model.layers.div_ceil(layout.pipeline);
        let passes = u128::from(self.spec.micro_batches()) * u128::from(layers) * u128::from(*new_tokens);
        if passes <= MOST_PASSES {
            return Ok(());
        }
        refuse(
            format!("{passes} passes of a rank through a layer are more than the {MOST_PASSES} that can be simulated"),
            "choose a smaller --batch, a larger --micro-batch, or fewer --layers or --new-tokens",
        )
    }

    /// The specification of the job.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.spec.layout.world_size()
    }

    /// The symmetry of the traces, which holds by construction: a trace depends on a rank's stage, on its experts if
    /// these receive different numbers of tokens, and on its part of a sequence if that determines its kernels.
    /// Otherwise a trace contains only groups and peers, which are equivalent for equivalent ranks.
    pub fn symmetry(&self) -> Symmetry {
        self.spec.layout.symmetry(self.spec.phase == Phase::Train, self.spec.unlike())
    }

    /// Symmetries that a run may turn out to have: first those with the most ranks per class, last the trivial one. The
    /// engine checks during the run whether the run has one. `blocks`: ascending numbers of consecutive ranks, at whose
    /// ends axes may be split, as from [`uniference_sim::cluster::Cluster::blocks`]. `own_connections`: each group has
    /// its own connections; without these, sums over several axes cannot be equivalent for ranks along each of the
    /// axes.
    pub fn symmetries(&self, blocks: &[u32], own_connections: bool) -> Vec<Symmetry> {
        let layout = self.spec.layout;
        match own_connections {
            true => layout.symmetries(&layout.cut(&layout.shifted(self.spec.unlike())), blocks),
            false => layout.symmetries(self.symmetry().axes(), blocks),
        }
    }

    /// The trace of `rank`.
    pub fn trace(&self, rank: u32) -> Trace {
        Trace::new(&self.spec, rank)
    }

    /// Device memory that `rank` needs. It is the same for all ranks of a pipeline stage that have the same experts, or
    /// experts that receive equal numbers of tokens.
    pub fn memory(&self, rank: u32) -> Memory {
        self.spec.memory(self.spec.layout.place(rank))
    }

    /// One rank of each class of ranks with the same memory, ascending.
    pub fn memory_classes(&self) -> Vec<u32> {
        let Layout { tensor, context, expert, pipeline, .. } = self.spec.layout;
        let experts = if self.spec.unlike().experts { expert } else { 1 };
        let of_stage = self.world_size() / pipeline;
        let first = |stage| (0..experts).map(move |expert| stage * of_stage + expert * tensor * context);
        (0..pipeline).flat_map(first).collect()
    }

    /// The rank in [`Workload::memory_classes`] that represents `rank`.
    pub fn memory_class(&self, rank: u32) -> u32 {
        let Layout { tensor, context, pipeline, .. } = self.spec.layout;
        let place = self.spec.layout.place(rank);
        let expert = if self.spec.unlike().experts { place.expert } else { 0 };
        place.stage * (self.world_size() / pipeline) + expert * tensor * context
    }

    /// Ratio of the tokens of the rank with the most tokens to the mean, averaged over layers; `None` if experts
    /// receive equal numbers of tokens.
    pub fn expert_imbalance(&self) -> Option<f64> {
        self.spec.expert_imbalance()
    }

    /// Tokens of all ranks together: input tokens in training and prefill, new tokens in decode.
    pub fn tokens(&self) -> u64 {
        let each = if self.spec.phase == Phase::Decode { self.spec.new_tokens } else { self.spec.sequence };
        self.spec.batch.saturating_mul(each)
    }

    /// Floating-point operations of the model for all tokens, on all ranks together: in a forward pass two per token
    /// and parameter of a matrix, and two per pair of tokens and element of a query and of a value; training adds twice
    /// as many for the backward pass. Recomputation is not counted, and causal attention counts only the pairs that are
    /// not masked (Chowdhery et al., "PaLM", 2022, appendix B, counts all pairs).
    pub fn model_flops(&self) -> f64 {
        let Spec { model, phase, sequence, batch, new_tokens, .. } = &self.spec;
        let (sequence, batch, new) = (*sequence as f64, *batch as f64, *new_tokens as f64);
        // The head computes scores for every token in training, else for the newest token of a sequence.
        let (pairs, scored) = match phase {
            Phase::Train => (sequence * (sequence + 1.0) / 2.0, sequence),
            Phase::Prefill => (sequence * (sequence + 1.0) / 2.0, 1.0),
            Phase::Decode => (new * sequence + new * (new + 1.0) / 2.0, new),
        };
        let matrices = self.tokens() as f64 * model.over_layers(|kind| model.active_matrices(kind)) as f64;
        let head = batch * scored * model.embedding_parameters() as f64;
        let heads = model.attention_heads(1, *phase == Phase::Decode);
        let of_pair = 2.0 * (heads.count * (heads.key + heads.value)) as f64;
        let attention = batch * pairs * of_pair * f64::from(model.layers);
        let forward = 2.0 * (matrices + head) + attention;
        if *phase == Phase::Train { 3.0 * forward } else { forward }
    }

    /// Parameters of `rank`'s stage, sharded or not: parameters shared along the data axis, and experts' parameters.
    pub fn parameters(&self, rank: u32) -> (u64, u64) {
        self.spec.stage_parameters(self.spec.layout.place(rank).stage)
    }
}

/// The maximum of a rank's micro-batches times its layers times new tokens. Measured: decode of 61 layers without
/// parallelism needs 145 us of CPU time per pass, so this many passes take 11 hours per simulated rank.
const MOST_PASSES: u128 = 1 << 28;
/// The maximum of a model's layers, which are listed one by one.
const MOST_LAYERS: u32 = 1 << 20;

impl Spec {
    /// Number of micro-batches of each pipeline.
    pub fn micro_batches(&self) -> u64 {
        self.batch / (u64::from(self.layout.data) * self.micro_batch)
    }

    /// The default size of micro-batches. In training and prefill it is 1: a sequence has enough tokens to keep a
    /// device busy, and many micro-batches keep a pipeline full. In decode, a sequence has one token, and each
    /// micro-batch reads all weights: a micro-batch therefore holds all sequences of a replica, or with a pipeline, the
    /// sequences are split into at most as many micro-batches as there are stages, with which no stage waits.
    pub fn default_micro_batch(&self) -> u64 {
        if self.phase != Phase::Decode || self.layout.checked_size().is_none() {
            return 1;
        }
        let Layout { data, pipeline, tensor, sequence_parallel, .. } = self.layout;
        let sequences = (self.batch / u64::from(data)).max(1);
        let shares = if sequence_parallel { u64::from(tensor) } else { 1 };
        let fitting = |parts: &u64| {
            let whole = sequences.is_multiple_of(parts * shares);
            whole && self.schedule.check(pipeline, *parts).is_ok()
        };
        sequences / (1..=u64::from(pipeline)).rev().find(fitting).unwrap_or(1)
    }

    /// Tokens of a micro-batch on one rank.
    fn tokens(&self) -> u64 {
        match self.phase {
            Phase::Decode => self.micro_batch,
            Phase::Train | Phase::Prefill => self.micro_batch * self.sequence / u64::from(self.layout.context),
        }
    }

    /// The model chunks of a stage, in order.
    fn chunks_of(&self, stage: u32) -> impl Iterator<Item = u32> + use<> {
        let (schedule, stages) = (self.schedule, self.layout.pipeline);
        (0..schedule.chunks()).map(move |chunk| schedule.piece(chunk, stage, stages))
    }

    /// Number of model chunks.
    fn chunks(&self) -> u32 {
        self.schedule.pieces(self.layout.pipeline)
    }

    /// Number of layers of a model chunk: layers are spread evenly, and the first and the last chunk, which have the
    /// embedding and the head, are the last to receive one more (as in "The Llama 3 herd of models", 2024, section
    /// 3.3.2).
    fn layers(&self, chunk: u32) -> u32 {
        let (chunks, layers) = (self.chunks(), self.model.layers);
        let more = layers % chunks;
        let place = if chunk == 0 { chunks - 1 } else { chunk - 1 };
        layers / chunks + u32::from(place < more)
    }

    /// Number of layers in earlier model chunks.
    fn layers_before(&self, chunk: u32) -> u32 {
        let (chunks, layers) = (self.chunks(), self.model.layers);
        let Some(pieces) = chunk.checked_sub(1) else { return 0 };
        self.layers(0) + pieces * (layers / chunks) + pieces.min(layers % chunks)
    }

    /// Number of layers of each kind in a model chunk.
    fn layer_kinds(&self, chunk: u32) -> [(LayerKind, u64); 2] {
        let (before, layers) = (self.layers_before(chunk), self.layers(chunk));
        let dense =
            self.model.experts.map_or(layers, |experts| experts.dense_layers.saturating_sub(before).min(layers));
        [(LayerKind::Dense, u64::from(dense)), (LayerKind::Experts, u64::from(layers - dense))]
    }

    /// Units of a model chunk with `layers` of its layers, in the order of the forward pass.
    fn units(&self, chunk: u32, layers: u32) -> Vec<Unit> {
        let before = self.layers_before(chunk);
        let layer = |within| Unit::Layer(LayerPosition { within, number: before + within });
        let embedding = (chunk == 0).then_some(Unit::Embedding);
        let head = (chunk + 1 == self.chunks()).then_some(Unit::Head);
        embedding.into_iter().chain((0..layers).map(layer)).chain(head).collect()
    }

    /// Number of parameters of a stage on one rank: shared along the data axis, and experts'.
    fn stage_parameters(&self, stage: u32) -> (u64, u64) {
        let of_ends = self.chunks_of(stage).flat_map(|chunk| self.units(chunk, 0)).map(|end| (1, self.parameters(end)));
        let kinds = self.chunks_of(stage).flat_map(|chunk| self.layer_kinds(chunk)).filter(|(_, count)| *count > 0);
        let of_layers = kinds.map(|(kind, count)| (count, self.layer_parameters(kind)));
        let all = of_ends.chain(of_layers);
        all.fold((0, 0), |sum, (count, (dense, experts))| (sum.0 + count * dense, sum.1 + count * experts))
    }

    /// Number of parameters of one unit on one rank: shared along the data axis, and experts'.
    fn parameters(&self, unit: Unit) -> (u64, u64) {
        let (model, tensor) = (&self.model, u64::from(self.layout.tensor));
        let rows = model.embedding_parameters().div_ceil(tensor);
        match unit {
            Unit::Embedding => (rows + model.positions * model.hidden, 0),
            // A tied head on the stage of the embedding is counted with the embedding.
            Unit::Head if model.tied && self.layout.pipeline == 1 => (model.norm_parameters(), 0),
            Unit::Head => (rows + model.norm_parameters(), 0),
            Unit::Layer(layer) => self.layer_parameters(model.kind(layer.number)),
        }
    }

    /// Number of parameters of a layer on one rank: the parameters that replicas along the data axis share, and those
    /// of experts.
    fn layer_parameters(&self, kind: LayerKind) -> (u64, u64) {
        let (model, tensor) = (&self.model, u64::from(self.layout.tensor));
        (
            model.dense_parameters(kind).div_ceil(tensor) + model.replicated_parameters(kind),
            model.expert_parameters(kind).div_ceil(tensor * u64::from(self.layout.expert)),
        )
    }

    /// Number of parameters of a stage that every tensor-parallel rank holds.
    fn replicated_parameters(&self, stage: u32) -> u64 {
        let of_chunk = |chunk: u32| {
            let head = if chunk + 1 == self.chunks() { self.model.norm_parameters() } else { 0 };
            let positions = if chunk == 0 { self.model.positions * self.model.hidden } else { 0 };
            let kinds = self.layer_kinds(chunk).into_iter().filter(|(_, count)| *count > 0);
            kinds.map(|(kind, count)| count * self.model.replicated_parameters(kind)).sum::<u64>() + head + positions
        };
        self.chunks_of(stage).map(of_chunk).sum()
    }

    /// Differences between ranks of one stage.
    fn unlike(&self) -> Unlike {
        Unlike {
            experts: self.model.experts.is_some() && !self.expert_load.is_uniform(),
            contexts: self.layout.context_order == ContextOrder::Contiguous
                || self.layout.context_method == ContextMethod::Ring,
        }
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let Spec { model, layout, .. } = self;
        self.check_sizes()?;
        self.check_model()?;
        let tensor = u64::from(layout.tensor);
        let dense = model.experts.is_none_or(|experts| experts.dense_layers > 0).then_some(model.ffn);
        let cut = [
            ("heads", Some(model.heads)),
            ("KV heads", model.latent.is_none().then_some(model.kv_heads)),
            ("the feed-forward width", dense),
            ("the width of an expert", model.experts.map(|experts| experts.ffn)),
        ];
        for (what, size) in cut.into_iter().filter_map(|(what, size)| Some((what, size?))) {
            fits(
                size,
                tensor,
                || format!("{what} ({size}) cannot be divided into {tensor} parts"),
                "choose another --tp",
            )?;
        }
        let pieces = u64::from(layout.context) * if layout.sequence_parallel { tensor } else { 1 };
        let split = if layout.sequence_parallel { tensor } else { 1 };
        if self.phase == Phase::Decode {
            if layout.context > 1 {
                return refuse("context parallelism is not supported in the decode phase".into(), "remove --cp");
            }
            let problem = || format!("{} new tokens cannot be divided into {split} parts", self.micro_batch);
            fits(self.micro_batch, split, problem, "choose another --micro-batch or --tp, or no --sequence-parallel")?;
        } else {
            let problem = || format!("a sequence of {} tokens cannot be divided into {pieces} parts", self.sequence);
            fits(self.sequence, pieces, problem, "choose another --seq, --cp or --tp")?;
            self.check_context()?;
        }
        let replicas = u64::from(layout.data) * self.micro_batch;
        let problem = || format!("the batch size {} must be a multiple of dp x micro-batch = {replicas}", self.batch);
        fits(self.batch, replicas, problem, "choose another --batch")?;
        self.check_experts()?;
        self.check_shards()?;
        self.check_tensor_parts()?;
        self.schedule.check(layout.pipeline, self.micro_batches())?;
        if self.schedule.splits_backward() && (self.phase != Phase::Train || self.recompute == Recompute::Full) {
            return refuse(
                "schedules that split the backward pass require training without full recomputation".into(),
                "use another --schedule, or --recompute selective",
            );
        }
        if self.schedule == Schedule::DualPipe && model.tied {
            return refuse(
                "tied embeddings are not supported with the dualpipe schedule".into(),
                "remove --tied-embeddings, or use --schedule zero-bubble",
            );
        }
        let problem =
            || format!("{} layers are too few for {} pipeline stages or model chunks", model.layers, self.chunks());
        if model.layers < self.chunks() { refuse(problem(), "choose a smaller --pp") } else { Ok(()) }
    }

    /// Whether the parts of the model fit together.
    fn check_model(&self) -> Result<(), WorkloadError> {
        let Spec { model, .. } = self;
        if model.latent.is_none() {
            fits(
                model.hidden,
                model.heads,
                || "the hidden size must be a multiple of the number of heads".into(),
                "choose other --heads",
            )?;
            let problem = || format!("{} KV heads do not divide {} heads", model.kv_heads, model.heads);
            fits(
                model.heads,
                model.kv_heads,
                problem,
                "choose another --kv-heads; every KV head serves the same number of query heads",
            )?;
        } else if model.mlp == Mlp::Gelu {
            return refuse(
                "multi-head latent attention requires rotary positions".into(),
                "remove --mlp gelu, or --kv-lora-rank",
            );
        }
        if model.positions > 0 && model.mlp == Mlp::SwiGlu {
            return refuse(
                "learned positions require a GPT-like model".into(),
                "add --mlp gelu, or remove --learned-positions",
            );
        }
        if model.positions > 0 && model.positions < self.sequence + self.new_tokens - 1 {
            let problem = format!("{} learned positions are fewer than {} tokens", model.positions, self.sequence);
            return refuse(problem, "choose more --learned-positions or a smaller --seq");
        }
        Ok(())
    }

    /// Checks that the method and order of context parallelism support the sequence and the attention kernels.
    fn check_context(&self) -> Result<(), WorkloadError> {
        let Layout { context, context_method, context_order, .. } = self.layout;
        if context == 1 {
            return Ok(());
        }
        if context_method == ContextMethod::Ring && self.implementation.attention == AttentionKernels::Unfused {
            return refuse(
                "ring attention adds up the results of kernels that do not write scores".into(),
                "use --attention flash, or --cp-method all-gather",
            );
        }
        if context_method == ContextMethod::Ring && context_order == ContextOrder::Zigzag {
            let parts = 2 * u64::from(context);
            let problem = || format!("a sequence of {} tokens cannot be divided into {parts} parts", self.sequence);
            fits(self.sequence, parts, problem, "choose another --seq or --cp, or --cp-order contiguous")?;
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), WorkloadError> {
        let Spec { model, layout, .. } = self;
        let Model { layers, hidden, heads, kv_heads, ffn, vocabulary, .. } = *model;
        let sizes = [u64::from(layers), hidden, heads, kv_heads, ffn, vocabulary, self.sequence, self.batch];
        let of_experts = model.experts.map_or([1; 2], |experts| [experts.count, experts.ffn]);
        let of_latent =
            model.latent.map_or([1; 4], |latent| [latent.kv_rank, latent.plain, latent.rotary, latent.value]);
        if [&sizes[..], &of_experts, &of_latent, &[self.micro_batch, self.new_tokens]].concat().contains(&0) {
            return refuse("a size is 0".into(), "every size must be at least 1");
        }
        // Counts of a model chunk's operations and bytes must fit 64 bits with ample margin.
        let shared = model.experts.map_or(0, |experts| experts.shared);
        let query_rank = model.latent.map_or(0, |latent| latent.query_rank);
        let all = [&sizes[..], &of_experts, &of_latent, &[shared, query_rank]].concat();
        let [sequence, micro_batch] = [self.sequence + self.new_tokens, self.micro_batch].map(|size| size as f64);
        let [hidden, heads, ffn, vocabulary] = [hidden, heads, ffn, vocabulary].map(|size| size as f64);
        let [count, expert] = of_experts.map(|size| size as f64);
        let [kv_rank, plain, rotary, value] = of_latent.map(|size| size as f64);
        let query_rank = query_rank as f64;
        let copies = model.experts.map_or(1.0, |experts| (experts.top_k.max(1) + experts.shared) as f64);
        let stream =
            if model.latent.is_some() { hidden.max(heads * (plain + rotary + value + kv_rank)) } else { hidden };
        let inner = sequence.max(ffn).max(expert * copies).max(vocabulary).max(query_rank + kv_rank + rotary);
        let work = micro_batch * sequence * stream * 8.0 * inner;
        let held = stream * (ffn.max(hidden) + expert * (count + copies) + query_rank + kv_rank + rotary + vocabulary);
        let too_large = layers > MOST_LAYERS || all.iter().any(|size| *size > 1 << 40);
        if too_large || work > 1e18 || f64::from(layers) * held > 1e16 {
            return refuse("sizes are out of range".into(), "check for a size that is wrong by orders of magnitude");
        }
        if layout.checked_size().is_none() {
            return refuse(
                "a parallel degree is 0, or there are too many ranks".into(),
                "every degree must be at least 1, and their product at most 2^20",
            );
        }
        if self.new_tokens > 1 && self.phase != Phase::Decode || self.new_tokens > 1 << 32 {
            return refuse(
                format!("{} new tokens are not possible in this phase", self.new_tokens),
                "--new-tokens above 1 requires --phase decode",
            );
        }
        if self.zero > 3 || !matches!(self.gradient_bytes, 2 | 4) {
            return refuse(
                "the ZeRO stage must be 0 to 3, and gradients 2 or 4 bytes".into(),
                "change --zero or --gradient-bytes",
            );
        }
        if self.phase != Phase::Train && (self.zero > 0 || self.recompute != Recompute::None || self.clip_gradients) {
            return refuse(
                "ZeRO, recomputation and gradient clipping require the training phase".into(),
                "remove --zero, --recompute and --clip-gradients, or use --phase train",
            );
        }
        let Implementation { float8_cache, attention, .. } = self.implementation;
        if float8_cache && self.phase == Phase::Train {
            return refuse(
                "training has no KV cache".into(),
                "remove --kv-cache-dtype, or use --phase prefill or decode",
            );
        }
        if float8_cache && attention == AttentionKernels::Unfused {
            return refuse(
                "unfused attention does not read a KV cache in 8 bits".into(),
                "use --attention flash, or remove --kv-cache-dtype",
            );
        }
        Ok(())
    }

    fn check_tensor_parts(&self) -> Result<(), WorkloadError> {
        let (layout, parts) = (self.layout, self.implementation.tensor_parts);
        if parts == 1 {
            return Ok(());
        }
        if !layout.sequence_parallel || layout.tensor == 1 {
            return refuse(
                "tensor-parallel communication that overlaps products requires sequence parallelism".into(),
                "add --sequence-parallel and a --tp of at least 2, or remove --tp-overlap",
            );
        }
        let tokens = self.tokens();
        let problem = || format!("{tokens} tokens on {} ranks cannot be cut into {parts} parts", layout.tensor);
        fits(tokens, u64::from(layout.tensor).saturating_mul(parts), problem, "choose another --tp-overlap")
    }

    fn check_shards(&self) -> Result<(), WorkloadError> {
        let Layout { shard: Some(shard), expert, .. } = self.layout else { return Ok(()) };
        if self.zero == 0 {
            return refuse(
                "a group of ranks that share shards requires ZeRO".into(),
                "add --zero 1, 2 or 3 (3 is FSDP), or remove --hsdp",
            );
        }
        if expert > 1 {
            return refuse(
                "shards within groups of replicas are not supported with expert parallelism".into(),
                "remove --hsdp or --ep",
            );
        }
        let replicas = u64::from(self.layout.dense_replicas());
        let problem = || format!("{replicas} replicas cannot be divided into groups of {shard}");
        fits(replicas, u64::from(shard), problem, "choose an --hsdp that divides dp x cp")?;
        let context = self.layout.context;
        if shard.is_multiple_of(context) || context.is_multiple_of(shard) {
            return Ok(());
        }
        refuse(
            format!("groups of {shard} replicas end within a sequence of {context} context-parallel ranks"),
            "choose an --hsdp that divides --cp, or a multiple of it",
        )
    }

    fn check_experts(&self) -> Result<(), WorkloadError> {
        let Layout { expert, data, tensor, sequence_parallel, .. } = self.layout;
        let count = self.model.experts.map_or(1, |experts| experts.count);
        let problem = || format!("{count} experts cannot be divided among {expert} ranks");
        fits(count, u64::from(expert), problem, "choose another --ep")?;
        let problem = || format!("the expert-parallel degree {expert} does not divide the data-parallel degree {data}");
        fits(u64::from(data), u64::from(expert), problem, "choose an --ep that divides --dp")?;
        match self.model.experts {
            Some(Experts { count, top_k, .. }) if top_k == 0 || top_k > count => {
                refuse(format!("--top-k {top_k} is out of range for {count} experts"), "choose another --top-k")
            }
            Some(Experts { dense_layers, .. }) if dense_layers >= self.model.layers => refuse(
                format!("{dense_layers} dense layers leave none of {} for experts", self.model.layers),
                "choose fewer --dense-layers, or remove --experts",
            ),
            Some(_) if tensor > 1 && !sequence_parallel => refuse(
                "mixture of experts with tensor parallelism requires sequence parallelism".into(),
                "add --sequence-parallel; Megatron-LM has the same requirement",
            ),
            experts => self.expert_load.check(experts),
        }
    }
}

fn fits(size: u64, by: u64, problem: impl Fn() -> String, hint: &'static str) -> Result<(), WorkloadError> {
    if by > 0 && size.is_multiple_of(by) { Ok(()) } else { refuse(problem(), hint) }
}

fn refuse(problem: String, hint: &'static str) -> Result<(), WorkloadError> {
    Err(WorkloadError { problem, hint })
}

#[cfg(test)]
mod tests;
