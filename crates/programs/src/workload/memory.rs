//! Owns the bytes of device memory that a rank needs: the memory that it holds all the time, and the maximum of the
//! memory that it holds temporarily. The memory sizes of devices are not known to this module.
//!
//! The sum contains the memory that the generated job cannot do without. It lacks memory that kernels, allocators and
//! communication libraries use for themselves, gradients of activations except in the eager loss, values of a few bytes
//! per token, and scales of 8-bit numbers.

use super::layout::{ContextMethod, RankPosition};
use super::load::Routing;
use super::operators::FLOAT8;
use super::{AttentionKernels, ELEMENT, Fusion, LayerKind, Mlp, Phase, Recompute, Spec, Unit};

/// Bytes of the optimizer's state per parameter: a copy of the parameter and two moments, float32 (Rajbhandari et al.,
/// "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, section 3.1).
const OPTIMIZER: u64 = 12;
/// Bytes of a float32: scores of the vocabulary, statistics of a softmax.
const FLOAT: u64 = 4;
/// Additional bytes per element that an eager RMS norm keeps compared with a fused RMS norm, which keeps its input and
/// its output: the eager norm's input is in float32, and the tensor that its weights scale is kept as well.
const EAGER_NORM: u64 = FLOAT;

/// Bytes that a rank needs of its device's memory, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parameters in 16 bits; at inference with [`Implementation::float8`](super::Implementation::float8) the matrices
    /// of layers in 8 bits. With ZeRO's stage 3, only this rank's shard of the parameters.
    pub weights: u64,
    /// Gradients, only in training; from ZeRO's stage 2 on, only this rank's shard of them.
    pub gradients: u64,
    /// A copy of the parameters and two moments, float32, only in training; from ZeRO's stage 1 on, only this rank's
    /// shard of them.
    pub optimizer: u64,
    /// Other ranks' shards of the parameters of two neighbouring layers, the layer in use and the next one, with ZeRO's
    /// stage 3; and of their gradients until their reduction, from stage 2 on.
    pub gathered: u64,
    /// In training, activations that are kept for the backward passes of all micro-batches in flight; otherwise those
    /// of the widest part of a layer.
    pub activations: u64,
    /// KV cache of all tokens of this rank's sequences; none in training.
    pub cache: u64,
}

impl Memory {
    /// Every kind by name.
    pub fn kinds(&self) -> [(&'static str, u64); 6] {
        let Memory { weights, gradients, optimizer, gathered, activations, cache } = *self;
        [
            ("weights", weights),
            ("gradients", gradients),
            ("optimizer", optimizer),
            ("gathered shards", gathered),
            ("activations", activations),
            ("KV cache", cache),
        ]
    }

    /// Sum of all kinds, at most the largest 64-bit number.
    pub fn total(&self) -> u64 {
        self.kinds().iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// Bytes that a layer keeps for its backward pass of one micro-batch on one rank.
///
/// The terms are those of Korthikanti et al. ("Reducing activation recomputation in large transformer models", 2022,
/// sections 4.1 and 4.2), adapted to this model: grouped keys and values, SwiGLU if it has a gate, and an attention
/// that keeps a number per head and token instead of scores (Dao et al., "FlashAttention", 2022, section 3.1) unless it
/// writes scores. With sequence parallelism each rank keeps only its own part of the tokens that it gathers. A dropout
/// mask has one byte per element.
///
/// Autograd keeps more for eager kernels: the float32 copy of an RMS norm's input, the tensor that the norm's weights
/// scale, and the output of the gate's activation in addition to the gate.
struct Layer {
    /// The layer's input.
    input: u64,
    /// The first norm's input and output; queries, keys, values; the projection's input.
    attention: u64,
    /// Statistics of the softmax; recomputed with [`Recompute::Selective`].
    statistics: u64,
    /// The second norm's input and output; gate, up and their product. Experts keep these three for each routed token,
    /// and the tokens before and after the experts, which the gradient of the router's weights needs.
    network: u64,
}

impl Layer {
    /// `routed`: number of tokens that this rank's experts receive; a token counts once per expert.
    fn new(spec: &Spec, kind: LayerKind, routed: u64) -> Layer {
        let Spec { model, layout, .. } = spec;
        let (tokens, tensor) = (spec.tokens(), u64::from(layout.tensor));
        let each = |width: u64, shared: bool| bytes(tokens, width * ELEMENT, if shared { tensor } else { 1 });
        let input = each(model.hidden, layout.sequence_parallel);
        // The backward pass does not gather keys and values of the other context-parallel ranks again; in a ring they
        // are sent again.
        let contexts = if layout.context_method == ContextMethod::Ring { 1 } else { u64::from(layout.context) };
        let attended = model.query_width() + model.result_width() + model.keys_and_values() * contexts;
        // Latent vectors before and after their norms, and the key that all heads share.
        let narrow = model.latent.map_or(0, |latent| latent.narrow() + latent.query_rank + latent.kv_rank);
        let eager = spec.trains_eagerly();
        // Gate, up and their product, or what the activation reads and what it writes.
        let widths = match model.mlp {
            Mlp::SwiGlu if eager => 4,
            Mlp::SwiGlu => 3,
            Mlp::Gelu => 2,
        };
        // Bytes that a norm keeps for its input in addition to the 2 bytes per element of the input's type.
        let of_norm = if eager && model.mlp == Mlp::SwiGlu { input / ELEMENT * EAGER_NORM } else { 0 };
        let of_narrow_norms =
            if eager { model.latent.map_or(0, |latent| latent.query_rank + latent.kv_rank) } else { 0 };
        let network = each(widths * model.dense_ffn(kind), true);
        let network = match model.experts {
            Some(experts) if kind == LayerKind::Experts => {
                let dealt = bytes(routed, (2 * model.hidden + widths * experts.ffn) * ELEMENT, tensor);
                network.saturating_add(dealt).saturating_add(each(experts.count, true))
            }
            _ => network,
        };
        let mask = if spec.implementation.dropout { input / ELEMENT } else { 0 };
        // Bytes per pair: the softmax's result, and with dropout a mask and the masked result (Korthikanti et al.,
        // 2022, equation 1).
        let statistics = match (spec.implementation.attention, spec.implementation.dropout) {
            (AttentionKernels::Flash, _) => FLOAT,
            (AttentionKernels::Unfused, false) => ELEMENT * spec.sequence,
            (AttentionKernels::Unfused, true) => (2 * ELEMENT + 1) * spec.sequence,
        };
        Layer {
            input,
            attention: (2 * input + mask + of_norm)
                .saturating_add(each(attended, true))
                .saturating_add(each(narrow + of_narrow_norms * EAGER_NORM / ELEMENT, layout.sequence_parallel)),
            statistics: bytes(tokens.saturating_mul(model.heads), statistics, tensor),
            network: (2 * input + mask + of_norm).saturating_add(network),
        }
    }

    fn whole(&self) -> u64 {
        self.attention.saturating_add(self.statistics).saturating_add(self.network)
    }

    /// Bytes that are kept until the backward pass.
    fn kept(&self, recompute: Recompute) -> u64 {
        match recompute {
            Recompute::None => self.whole(),
            Recompute::Selective => self.attention.saturating_add(self.network),
            Recompute::Full => self.input,
        }
    }
}

/// `count` times `each`, divided by `parts`.
fn bytes(count: u64, each: u64, parts: u64) -> u64 {
    count.saturating_mul(each).div_ceil(parts)
}

impl Spec {
    /// Memory of a rank.
    pub(super) fn memory(&self, place: RankPosition) -> Memory {
        let stage = place.stage;
        let (dense, experts) = self.stage_parameters(stage);
        let held = |bytes: u64, sharded: bool| {
            let [dense_shards, expert_shards] = if sharded { self.shards() } else { [1, 1] };
            (dense * bytes).div_ceil(dense_shards) + (experts * bytes).div_ceil(expert_shards)
        };
        let weights = held(ELEMENT, self.zero >= 3) - self.float8_parameters(stage) * (ELEMENT - FLOAT8);
        if self.phase != Phase::Train {
            // Without a backward pass, memory is needed for one part at a time: attention, the feed-forward network, or
            // the head for the last token of each sequence.
            let layers = self.chunks_of(stage).flat_map(|chunk| self.layers_of(chunk, place));
            let widest = layers.map(|(_, layer)| layer.attention.max(layer.network)).max().unwrap_or(0);
            let last = self.chunks_of(stage).any(|chunk| chunk + 1 == self.chunks());
            let head = if last { self.of_head(self.micro_batch) } else { 0 };
            let activations = widest.max(head);
            return Memory { weights, activations, cache: self.cache(stage), ..Memory::default() };
        }
        Memory {
            weights,
            gradients: held(self.gradient_bytes, self.zero >= 2),
            optimizer: held(OPTIMIZER, self.zero >= 1),
            gathered: self.gathered(stage),
            activations: self.kept(place),
            cache: 0,
        }
    }

    /// Whether PyTorch's kernels run one by one and a backward pass follows, so that the inputs of each kernel are
    /// kept.
    fn trains_eagerly(&self) -> bool {
        self.implementation.fusion == Fusion::Eager && self.phase == Phase::Train
    }

    /// Number of a stage's parameters that one rank holds in 8 bits: at inference, the matrices of linear layers.
    /// Published FP8 models leave embedding, head, norms, biases and routers in 16 bits (DeepSeek-AI, "DeepSeek-V3
    /// technical report", 2024, section 3.3.1).
    fn float8_parameters(&self, stage: u32) -> u64 {
        if !self.implementation.float8 || self.phase == Phase::Train {
            return 0;
        }
        let (model, tensor) = (&self.model, u64::from(self.layout.tensor));
        let of_layer = |kind| {
            let shared = model.dense_matrices(kind) / tensor + model.narrow_matrices();
            shared + model.expert_matrices(kind) / (tensor * u64::from(self.layout.expert))
        };
        let kinds = self.chunks_of(stage).flat_map(|chunk| self.layer_kinds(chunk)).filter(|(_, count)| *count > 0);
        kinds.map(|(kind, count)| count * of_layer(kind)).sum()
    }

    /// Number of ranks that parameters other than experts are sharded over, and number that experts are.
    fn shards(&self) -> [u64; 2] {
        [self.layout.dense_shards(), self.layout.expert_shards()].map(u64::from)
    }

    fn gathered(&self, stage: u32) -> u64 {
        let gradients = if self.zero >= 2 { self.gradient_bytes } else { 0 };
        let parameters = if self.zero >= 3 { ELEMENT } else { 0 };
        let others = |parameters: u64, shards: u64| parameters - parameters.div_ceil(shards);
        let [dense_shards, expert_shards] = self.shards();
        let of_neighbours = |units: &[Unit]| {
            let all = units.iter().map(|unit| self.parameters(*unit)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            (parameters + gradients) * (others(all.0, dense_shards) + others(all.1, expert_shards))
        };
        let of_chunk = |chunk: u32| {
            let units = self.units(chunk, self.layers(chunk));
            units.windows(2.min(units.len())).map(of_neighbours).max().unwrap_or(0)
        };
        self.chunks_of(stage).map(of_chunk).max().unwrap_or(0)
    }

    /// The layers of a model chunk: equal layers once, with their number.
    fn layers_of(&self, chunk: u32, place: RankPosition) -> Vec<(u64, Layer)> {
        let Some(experts) = self.model.experts else {
            return vec![(u64::from(self.layers(chunk)), Layer::new(self, LayerKind::Dense, 0))];
        };
        let routed = |routing: Option<Routing>| match routing {
            None => self.tokens() * experts.top_k,
            Some(Routing { sent, .. }) => {
                sent[place.expert as usize] * u64::from(self.layout.expert) * u64::from(self.layout.tensor)
            }
        };
        let [(_, dense), (_, others)] = self.layer_kinds(chunk);
        let first = self.layers_before(chunk) + dense as u32;
        let of_experts: Vec<(u64, Layer)> = if self.unlike().experts {
            let layers = first..first + others as u32;
            layers.map(|layer| (1, Layer::new(self, LayerKind::Experts, routed(self.routing(layer))))).collect()
        } else {
            vec![(others, Layer::new(self, LayerKind::Experts, routed(None)))]
        };
        let dense = (dense, Layer::new(self, LayerKind::Dense, 0));
        std::iter::once(dense).chain(of_experts).filter(|(count, _)| *count > 0).collect()
    }

    /// Bytes of activations that are kept for all micro-batches in flight. A layer that is recomputed is held as a
    /// whole during its backward pass; before the first recomputation, the eager loss holds the gradients of its
    /// scores.
    fn kept(&self, place: RankPosition) -> u64 {
        let (stage, recompute) = (place.stage, self.recompute);
        let of_chunk = |index: u32| {
            let chunk = self.schedule.piece(index, stage, self.layout.pipeline);
            let layers = self.layers_of(chunk, place);
            let sum = |sum: u64, (count, layer): &(u64, Layer)| {
                sum.saturating_add(count.saturating_mul(layer.kept(recompute)))
            };
            let layers = layers.iter().fold(0, sum);
            if chunk + 1 == self.chunks() { layers.saturating_add(self.of_head(self.tokens())) } else { layers }
        };
        let kept = self.schedule.most_kept(stage, self.layout.pipeline, self.micro_batches(), of_chunk);
        let layers = self.chunks_of(stage).flat_map(|chunk| self.layers_of(chunk, place));
        let again = layers.map(|(_, layer)| layer.whole() - layer.kept(recompute)).max().unwrap_or(0);
        let last = self.chunks_of(stage).any(|chunk| chunk + 1 == self.chunks());
        let loss = if last && self.trains_eagerly() { self.of_eager_loss() } else { 0 };
        kept.saturating_add(again.max(loss))
    }

    /// Bytes of the gradients of log-probabilities and of scores in the eager loss, both complete float32 tensors:
    /// `nll_loss` and `log_softmax` are one kernel each.
    fn of_eager_loss(&self) -> u64 {
        bytes(self.tokens(), 2 * FLOAT * self.model.vocabulary, u64::from(self.layout.tensor))
    }

    /// Bytes of the last norm's input and output, and of the vocabulary scores in float32 (Korthikanti et al. 2022,
    /// section 4.3). The last norm is always one kernel, even if norms of layers are not. A compiler keeps scores in 16
    /// bits for the backward pass.
    fn of_head(&self, tokens: u64) -> u64 {
        let tensor = u64::from(self.layout.tensor);
        let share = if self.layout.sequence_parallel { tensor } else { 1 };
        let norm = bytes(tokens, 2 * ELEMENT * self.model.hidden, share);
        let compiled = self.implementation.fusion == Fusion::Compiled && self.phase == Phase::Train;
        let score = if compiled { ELEMENT } else { FLOAT };
        norm.saturating_add(bytes(tokens, score * self.model.vocabulary, tensor))
    }

    /// Bytes of the KV cache, or of the latent vectors that replace it, for every token of this replica's sequences,
    /// including new ones, in the stage's layers.
    fn cache(&self, stage: u32) -> u64 {
        let Spec { model, layout, .. } = self;
        let tokens = match self.phase {
            Phase::Train => 0,
            Phase::Prefill => self.sequence / u64::from(layout.context),
            Phase::Decode => self.sequence + self.new_tokens,
        };
        let layers: u64 = self.chunks_of(stage).map(|chunk| u64::from(self.layers(chunk))).sum();
        let sequences = self.batch / u64::from(layout.data);
        let all = sequences.saturating_mul(tokens).saturating_mul(layers);
        let element = if self.implementation.float8_cache { FLOAT8 } else { ELEMENT };
        match model.latent {
            // Every tensor-parallel rank holds the latent vector of all heads' keys and values, and the key that they
            // share.
            Some(latent) => bytes(all, element * latent.cached(), 1),
            None => bytes(all, 2 * element * model.kv_width(), u64::from(layout.tensor)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::LAYOUT;
    use super::super::{
        ContextMethod, ContextOrder, ExpertLoad, Experts, Implementation, Latent, Layout, Model, Schedule, Workload,
    };
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// Llama 3 8B in one micro-batch of one sequence of 8,192 tokens on one rank.
    fn llama_8b(phase: Phase) -> Spec {
        let model = Model {
            layers: 32,
            hidden: 4096,
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
        Spec {
            model,
            layout: LAYOUT,
            phase,
            sequence: 8192,
            batch: 1,
            micro_batch: 1,
            schedule: Schedule::OneForwardOneBackward,
            zero: 0,
            gradient_bytes: 4,
            recompute: Recompute::None,
            clip_gradients: false,
            new_tokens: 1,
            implementation: Implementation::default(),
            expert_load: ExpertLoad::Uniform,
        }
    }

    fn memory(spec: Spec) -> Memory {
        Workload::new(spec).unwrap().memory(0)
    }

    #[test]
    fn llama_3_8b_needs_what_can_be_counted_by_hand() {
        // 8,030,261,248 parameters: 2, 4 and 12 bytes each. A layer keeps per token 4 times its 4,096 elements of the
        // stream (two norms' inputs and outputs), queries and the projection's input (2 x 4,096), keys and values (2 x
        // 1,024), three times 14,336 of the feed-forward network, 2 bytes each, and 32 float32 of the softmax; the head
        // keeps 2 x 4,096 elements and 128,256 float32.
        let trained = memory(llama_8b(Phase::Train));
        assert_eq!(
            [trained.weights, trained.gradients, trained.optimizer],
            [16_060_522_496, 32_121_044_992, 96_363_134_976]
        );
        let layer = 2 * (4 * 4096 + 2 * 4096 + 2 * 1024 + 3 * 14_336);
        let head = 2 * 2 * 4096 + 4 * 128_256;
        assert_eq!(trained.activations, 8192 * (32 * (layer + 4 * 32) + head));
        assert_eq!((trained.gathered, trained.cache), (0, 0));
        assert_eq!(trained.total(), 185_422_389_248);
        // Selective: the softmax's numbers only of the layer that is recomputed. Full: the layers' inputs, and one
        // whole layer.
        let again = |recompute| memory(Spec { recompute, ..llama_8b(Phase::Train) }).activations;
        assert_eq!(again(Recompute::Selective), 8192 * (32 * layer + 4 * 32 + head));
        assert_eq!(again(Recompute::Full), 8192 * (31 * 2 * 4096 + layer + 4 * 32 + head));
        // Eager kernels keep a norm's input in float32, the tensor that its weights scale, and its output; SiLU's
        // output in addition to the gate; and two float32 gradients per score in the backward pass of the loss. A
        // compiler keeps scores in 16 bits.
        let made = |fusion| {
            let implementation = Implementation { fusion, ..Implementation::default() };
            memory(Spec { implementation, ..llama_8b(Phase::Train) }).activations
        };
        let eager = 2 * (2 * 4 * 4096 + 2 * 4096 + 2 * 1024 + 4 * 14_336);
        assert_eq!(made(Fusion::Eager), 8192 * (32 * (eager + 4 * 32) + head + 8 * 128_256));
        assert_eq!(made(Fusion::Compiled), 8192 * (32 * (layer + 4 * 32) + 2 * 2 * 4096 + 2 * 128_256));
        // A token's keys and values need 2 x 1,024 elements in each of 32 layers: 128 KiB.
        let decoded = memory(Spec { batch: 16, micro_batch: 16, new_tokens: 4, ..llama_8b(Phase::Decode) });
        assert_eq!((decoded.weights, decoded.gradients, decoded.optimizer), (16_060_522_496, 0, 0));
        assert_eq!(decoded.cache, 16 * (8192 + 4) * 131_072);
        // The head's scores (logits) are the largest temporary tensor: 16 tokens of 128,256 float32 each.
        assert_eq!(decoded.activations, 16 * head);
        let prompt = memory(llama_8b(Phase::Prefill));
        assert_eq!(prompt.cache, 8192 * 131_072);
        assert_eq!(prompt.activations, 8192 * 2 * (2 * 4096 + 3 * 14_336));
    }

    #[test]
    fn tensor_and_sequence_parallelism_share_activations_as_published() {
        // Korthikanti et al. 2022, equations 2 and 4, without dropout and scores: a layer keeps s b h (8 + 24 / t) with
        // t tensor-parallel ranks, 32 / t with sequence parallelism, if keys are as wide as queries and the network is
        // 4 h wide. Their network keeps 16 s b h of it, SwiGLU at 8/3 h three times 16/3: as much. Only the softmax's
        // numbers are added, 4 bytes per head.
        let kept = |tensor: u32, sequence_parallel: bool| {
            let model = Model {
                layers: 1,
                hidden: 768,
                heads: 8,
                kv_heads: 8,
                ffn: 2048,
                vocabulary: 8,
                experts: None,
                latent: None,
                mlp: Mlp::SwiGlu,
                positions: 0,
                tied: false,
            };
            let layout = Layout { tensor, sequence_parallel, ..llama_8b(Phase::Train).layout };
            let spec = Spec { model, layout, ..llama_8b(Phase::Train) };
            let (tokens, softmax) = (spec.tokens(), 4 * 8 * spec.tokens() / u64::from(tensor));
            (spec.kept(spec.layout.place(0)) - spec.of_head(tokens) - softmax) as f64 / (tokens * 768) as f64
        };
        assert_eq!([kept(1, false), kept(4, false), kept(4, true)], [32.0, 8.0 + 24.0 / 4.0, 32.0 / 4.0]);
    }

    #[rstest]
    // With 8 micro-batches and 4 stages, GPipe keeps all, 1F1B as many as there are stages from this one on.
    #[case::gpipe(Schedule::GPipe, 8, [8.0, 8.0, 8.0, 8.0])]
    #[case::one_forward_one_backward(Schedule::OneForwardOneBackward, 8, [4.0, 3.0, 2.0, 1.0])]
    #[case::few_micro_batches(Schedule::OneForwardOneBackward, 2, [2.0, 2.0, 2.0, 1.0])]
    // 1 + (p - 1) / (p v) times 1F1B's p micro-batches on the first stage; two chunks less on each later stage.
    #[case::interleaved(Schedule::Interleaved(2), 8, [5.5, 4.5, 3.5, 2.5])]
    // Each stage has p open between its first forward and its weight gradients (Qi et al. 2024, table 2).
    #[case::zero_bubble(Schedule::ZeroBubble, 8, [4.0, 4.0, 4.0, 4.0])]
    #[case::zero_bubble_of_many(Schedule::ZeroBubble, 101, [4.0, 4.0, 4.0, 4.0])]
    // p + 1 (DeepSeek-V3 technical report, table 2).
    #[case::dualpipe(Schedule::DualPipe, 8, [5.0, 5.0, 5.0, 5.0])]
    #[case::dualpipe_of_many(Schedule::DualPipe, 102, [5.0, 5.0, 5.0, 5.0])]
    fn schedules_keep_micro_batches_in_flight(
        #[case] schedule: Schedule,
        #[case] micro_batches: u64,
        #[case] expected: [f64; 4],
    ) {
        let pieces = if schedule == Schedule::DualPipe { 1.0 } else { f64::from(schedule.chunks()) };
        let kept = |stage| schedule.most_kept(stage, 4, micro_batches, |_| 1) as f64 / pieces;
        assert_eq!([0, 1, 2, 3].map(kept), expected);
    }

    #[test]
    fn shards_of_two_layers_are_gathered_at_one_time() {
        // On 4 ranks: three quarters of two neighbours, which in Llama 3 8B are the embedding (or the head, with a
        // norm) and a layer.
        let gathered = |zero| {
            let layout = Layout { data: 4, ..llama_8b(Phase::Train).layout };
            memory(Spec { zero, layout, batch: 4, ..llama_8b(Phase::Train) }).gathered
        };
        let layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14_336) + 2 * 4096;
        let neighbours = 128_256 * 4096 + 4096 + layer;
        let others = neighbours - neighbours / 4;
        assert_eq!([0, 1, 2, 3].map(gathered), [0, 0, 4 * others, 6 * others]);
    }

    #[test]
    fn what_exceeds_64_bits_is_as_much_as_does_not() {
        let schedule = Schedule::GPipe;
        let huge = Spec { batch: 1 << 40, sequence: 1 << 18, schedule, ..llama_8b(Phase::Train) };
        assert_eq!(memory(huge).total(), u64::MAX);
    }

    prop_compose! {
        fn jobs()(
            (tensor, context, data, expert, pipeline) in prop_oneof![
                Just((1, 1, 1, 1, 1)), Just((2, 1, 4, 2, 2)), Just((2, 2, 2, 1, 2)), Just((1, 1, 4, 4, 4)), Just((4, 1, 2, 1, 1))
            ],
            phase in prop_oneof![Just(Phase::Train), Just(Phase::Prefill), Just(Phase::Decode)],
            schedule in prop_oneof![Just(Schedule::GPipe), Just(Schedule::OneForwardOneBackward), Just(Schedule::Interleaved(2))],
            recompute in prop_oneof![Just(Recompute::None), Just(Recompute::Selective), Just(Recompute::Full)],
            layers in 8_u32..20,
            experts: bool,
            (latent, ring, shared, dense_layers) in any::<(bool, bool, bool, bool)>(),
            sequence in 1_u64..40,
            batch in 1_u64..6,
            zero in 0_u8..4,
            gradient_bytes in prop_oneof![Just(2_u64), Just(4)],
        ) -> Spec {
            let context = if phase == Phase::Decode { 1 } else { context };
            let train = phase == Phase::Train;
            let schedule = if pipeline == 1 { Schedule::OneForwardOneBackward } else { schedule };
            let (shared, dense_layers) = (u64::from(shared), u32::from(dense_layers));
            let experts =
                (experts || expert > 1).then_some(Experts { count: 8, top_k: 2, ffn: 96, shared, dense_layers });
            let latent = latent.then_some(Latent { query_rank: 24, kv_rank: 16, plain: 8, rotary: 4, value: 8 });
            let micro_batch = u64::from(tensor);
            Spec {
                model: Model { layers, hidden: 64, heads: 8, kv_heads: 4, ffn: 96, vocabulary: 301, experts, latent, mlp: Mlp::SwiGlu, positions: 0, tied: false },
                layout: Layout {
                    tensor, context, expert, data, pipeline, shard: None,
                    sequence_parallel: tensor > 1,
                    context_method: if ring { ContextMethod::Ring } else { ContextMethod::AllGather },
                    context_order: ContextOrder::Contiguous,
                },
                phase,
                sequence: sequence * u64::from(tensor * context),
                batch: batch * u64::from(data) * micro_batch * u64::from(pipeline),
                micro_batch,
                schedule,
                zero: if train { zero } else { 0 },
                gradient_bytes,
                recompute: if train { recompute } else { Recompute::None },
                clip_gradients: false,
                new_tokens: 1,
                implementation: Implementation::default(),
                expert_load: ExpertLoad::Uniform,
            }
        }
    }

    impl Spec {
        /// Memory of the first rank of a stage.
        fn of_stage(&self, stage: u32) -> u64 {
            self.memory(self.layout.place(self.layout.world_size() / self.layout.pipeline * stage)).total()
        }
    }

    proptest! {
        #[test]
        fn more_work_never_needs_less_memory(spec in jobs()) {
            let Layout { tensor, context, data, pipeline, .. } = spec.layout;
            let pieces = u64::from(tensor * context);
            let replicas = u64::from(data * pipeline) * spec.micro_batch;
            let more = [
                Spec { batch: spec.batch + replicas, ..spec.clone() },
                Spec { sequence: spec.sequence + pieces, ..spec.clone() },
                Spec { model: Model { layers: spec.model.layers + 1, ..spec.model.clone() }, ..spec.clone() },
                Spec { micro_batch: 2 * spec.micro_batch, batch: 2 * spec.batch, ..spec.clone() },
            ];
            for stage in 0..pipeline {
                for larger in &more {
                    prop_assert!(Workload::new(larger.clone()).is_ok());
                    prop_assert!(larger.of_stage(stage) >= spec.of_stage(stage));
                }
            }
        }

        #[test]
        fn more_sharding_and_more_recomputation_never_need_more_memory(spec in jobs()) {
            let spec = Spec { phase: Phase::Train, ..spec };
            for stage in 0..spec.layout.pipeline {
                let sharded = [0, 1, 2, 3].map(|zero| Spec { zero, ..spec.clone() }.of_stage(stage));
                prop_assert!(sharded.is_sorted_by(|less, more| less >= more), "{sharded:?}");
                let again = [Recompute::None, Recompute::Selective, Recompute::Full];
                let kept = again.map(|recompute| Spec { recompute, ..spec.clone() }.of_stage(stage));
                prop_assert!(kept.is_sorted_by(|less, more| less >= more), "{kept:?}");
            }
        }
    }
}
