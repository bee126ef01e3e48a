//! Owns the operators of a model's parts, forward and backward, with their sizes, operations and bytes. A rank's share
//! enters only as divisors, and the costs of operators on a device are not known to this module.
//!
//! A linear layer's backward pass has two GEMMs for each GEMM of the forward pass (Shoeybi et al., "Megatron-LM",
//! 2019). Operators between GEMMs are characterised by the bytes that their kernels move, which depend on the fusion of
//! kernels ([`Fusion`]).

mod latent;

use super::Phase;
use super::model::{Attention, Mlp, Model};
use uniference_sim::device::{Family, FlatKind, Layout, Operator, Pass, Resource, RowKind};
use uniference_sim::program::DType;
use uniference_sim::time::{Bytes, SimDuration};

/// Bytes of a float32.
const FLOAT: u64 = 4;
/// Bytes of an 8-bit element.
pub(super) const FLOAT8: u64 = 1;
/// Bytes of an element of dropout's mask.
const MASK: u64 = 1;
/// Operations of an optimizer step per parameter: Adam's two moments, their correction and the update.
const ADAM_FLOPS: u64 = 12;
/// Bytes that Adam reads per parameter in addition to its gradient, and writes in addition to the parameter: a float32
/// copy and two moments.
const ADAM_BYTES: u64 = 3 * FLOAT;

/// Choice of a job's kernels and data types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Implementation {
    /// Type of activations and weights, which has 16 bits.
    pub dtype: DType,
    /// Linear layers of the transformer are FP8 GEMMs: inputs, weights and gradients are scaled and cast first
    /// (Micikevicius et al., "FP8 formats for deep learning", 2022). The head stays in 16 bits. At inference these
    /// weights are held in 8 bits, as in published FP8 models, and only inputs are cast.
    pub float8: bool,
    /// Whether the KV cache has 8-bit elements. Attention in the decode phase is then computed in 8 bits.
    pub float8_cache: bool,
    /// Fusion of kernels between GEMMs.
    pub fusion: Fusion,
    /// Kernels of attention.
    pub attention: AttentionKernels,
    /// Whether dropout follows the embedding, each block and attention's probabilities, with stored masks.
    pub dropout: bool,
    /// CPU time (Python, autograd, the dispatcher) to launch one operator.
    pub host: SimDuration,
    /// Whether the reduction of gradients overlaps the last backward pass; otherwise it follows.
    pub overlap_gradients: bool,
    /// Number of parts of the tokens whose gathers and scatters among tensor-parallel ranks overlap the GEMMs of other
    /// parts (Transformer Engine's `ub_overlap`); 1: no overlap.
    pub tensor_parts: u64,
}

/// Fusion of the kernels between GEMMs, which determines how often tensors are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fusion {
    /// One kernel per PyTorch operation: a norm casts to float32, squares, averages, scales and casts back; rotary
    /// positions are complex multiplications in float32.
    Eager,
    /// Hand-written kernels for norms, rotary positions, activations and softmax, as in Megatron-LM and Transformer
    /// Engine.
    #[default]
    Fused,
    /// Kernels of a compiler: consecutive operations on the same elements are one kernel, including residual sums.
    Compiled,
}

/// Kernels of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionKernels {
    /// One kernel that never writes scores (Dao et al., "FlashAttention", 2022), and skips masked pairs.
    #[default]
    Flash,
    /// Scores of all pairs are written, and read again by the softmax, dropout and the GEMM with the values.
    Unfused,
}

impl Default for Implementation {
    fn default() -> Implementation {
        Implementation {
            dtype: DType::BFloat16,
            float8: false,
            float8_cache: false,
            fusion: Fusion::default(),
            attention: AttentionKernels::default(),
            dropout: false,
            host: SimDuration::ZERO,
            overlap_gradients: true,
            tensor_parts: 1,
        }
    }
}

/// Direction of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// The heads of attention on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionHeads {
    /// Number of query heads.
    pub(super) count: u64,
    /// Elements of a query, and of a key.
    pub(super) key: u64,
    /// Elements of a value.
    pub(super) value: u64,
    /// Elements of a token's keys and values that are read.
    pub(super) read: u64,
    /// Number of query heads that share their keys and are one head of a kernel.
    pub(super) together: u64,
}

/// Part of a backward pass: all of it, the part that the previous layer waits for, or the gradients of weights in
/// matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BackwardPart {
    #[default]
    All,
    Inputs,
    Weights,
}

/// Operators that run in sequence.
#[derive(Clone, Debug)]
pub(super) struct Operators {
    implementation: Implementation,
    phase: Phase,
    /// The part that is listed; operators of other parts are left out.
    pub(super) part: BackwardPart,
    list: Vec<Operator>,
}

impl Operators {
    pub(super) fn new(implementation: Implementation, phase: Phase) -> Operators {
        Operators { implementation, phase, part: BackwardPart::All, list: Vec::new() }
    }

    pub(super) fn list(&self) -> &[Operator] {
        &self.list
    }

    /// Floating-point operations of all operators.
    pub(super) fn flops(&self) -> u64 {
        self.list.iter().map(|operator| operator.flops).sum()
    }

    /// Bytes that all operators read and write.
    pub(super) fn bytes(&self) -> u64 {
        self.list.iter().map(|operator| operator.bytes().0).sum()
    }

    fn element(&self) -> u64 {
        self.implementation.dtype.size()
    }

    fn eager(&self) -> bool {
        self.implementation.fusion == Fusion::Eager
    }

    fn push(&mut self, family: Family, dtype: DType, flops: u64, read: u64, written: u64) {
        if flops == 0 && read + written == 0 {
            return;
        }
        if self.part == BackwardPart::Weights {
            return;
        }
        let (read, written) = (Bytes(read), Bytes(written));
        let resource = Resource::Accelerator;
        self.list.push(Operator { resource, family, elements: Some(dtype.into()), flops, read, written });
    }

    /// `batch` GEMMs of m x k by k x n matrices.
    fn gemm(&mut self, [batch, m, n, k]: [u64; 4], layout: Layout, dtype: DType) {
        let read = batch * (m * k + k * n) * dtype.size();
        let written = batch * m * n * self.element();
        self.push(Family::Gemm { batch, m, n, k, layout }, dtype, 2 * batch * m * n * k, read, written);
    }

    /// An operation on each of `elements` elements, with the bytes per element that it reads and writes.
    fn flat(&mut self, kind: FlatKind, elements: u64, read: u64, written: u64) {
        let dtype = self.implementation.dtype;
        self.push(Family::Flat { kind, elements }, dtype, 0, elements * read, elements * written);
    }

    fn elementwise(&mut self, elements: u64, read: u64, written: u64) {
        self.flat(FlatKind::Elementwise, elements, read, written);
    }

    /// Adds two tensors of `elements` elements.
    pub(super) fn add(&mut self, elements: u64) {
        let element = self.element();
        self.elementwise(elements, 2 * element, element);
    }

    fn rows(&mut self, kind: RowKind, pass: Pass, [rows, columns]: [u64; 2], read: u64, written: u64) {
        let elements = rows * columns;
        let dtype = self.implementation.dtype;
        self.push(Family::Rows { kind, pass, rows, columns }, dtype, 0, elements * read, elements * written);
    }

    /// `experts` linear layers of k inputs and n outputs for m tokens each; backward, the gradients of inputs and
    /// weights.
    fn linear(&mut self, [experts, m, k, n]: [u64; 4], bias: bool, way: Direction) {
        let (half, element) = (self.implementation.dtype, self.element());
        let dtype = if self.implementation.float8 { DType::Float8E4M3 } else { half };
        // Scaling reads a tensor once for its maximum, and once more for the cast.
        let cast = |operators: &mut Operators, elements: u64| {
            if operators.implementation.float8 {
                operators.rows(RowKind::Reduction, Pass::Forward, [1, elements], element, 0);
                operators.flat(FlatKind::Copy, elements, element, FLOAT8);
            }
        };
        match way {
            Direction::Forward => {
                cast(self, experts * m * k);
                if self.phase == Phase::Train {
                    cast(self, experts * k * n);
                }
                self.gemm([experts, m, n, k], Layout::NT, dtype);
            }
            Direction::Backward => {
                cast(self, experts * m * n);
                self.gemm([experts, m, k, n], Layout::NN, dtype);
                self.of_weights(|operators| {
                    operators.gemm([experts, n, k, m], Layout::TN, dtype);
                    if bias {
                        operators.rows(RowKind::Reduction, Pass::Forward, [n, experts * m], element, 0);
                    }
                });
            }
        }
    }

    /// The linear layer of a head, which stays in 16 bits.
    fn head_product(&mut self, m: u64, k: u64, n: u64, way: Direction) {
        let dtype = self.implementation.dtype;
        match way {
            Direction::Forward => self.gemm([1, m, n, k], Layout::NT, dtype),
            Direction::Backward => {
                self.gemm([1, m, k, n], Layout::NN, dtype);
                self.of_weights(|operators| operators.gemm([1, n, k, m], Layout::TN, dtype));
            }
        }
    }

    /// Lists operators for gradients of weights.
    fn of_weights(&mut self, list: impl FnOnce(&mut Operators)) {
        let part = self.part;
        if part != BackwardPart::Inputs {
            self.part = BackwardPart::All;
            list(self);
            self.part = part;
        }
    }

    /// Dropout: the mask is written in the forward pass and read in the backward pass.
    fn dropout(&mut self, elements: u64, way: Direction) {
        if self.implementation.dropout {
            let element = self.element();
            match way {
                Direction::Forward => self.elementwise(elements, element, element + MASK),
                Direction::Backward => self.elementwise(elements, element + MASK, element),
            }
        }
    }
}

impl Model {
    /// A block's norm before it and the residual sum after it, with dropout between them.
    ///
    /// Eager RMS norms (the operators of `torch.nn.functional.rms_norm` in float32) read and write 36 bytes per 16-bit
    /// element in eight kernels; the backward pass, as autograd differentiates them, moves twice that.
    pub(super) fn norm(&self, operators: &mut Operators, tokens: u64, way: Direction) {
        let (shape, elements, element) = ([tokens, self.hidden], tokens * self.hidden, operators.element());
        let normalization = RowKind::Normalization;
        let dropout = operators.implementation.dropout;
        match (operators.implementation.fusion, way) {
            (Fusion::Compiled, Direction::Forward) => {
                let mask = if dropout { MASK } else { 0 };
                operators.rows(normalization, Pass::Forward, shape, 2 * element, 2 * element + mask);
            }
            (Fusion::Compiled, Direction::Backward) => {
                // Reads the gradients of the output and of the residual stream, and the input; then again the output's
                // gradient and the input for the gradient of the weights.
                let mask = if dropout { MASK } else { 0 };
                operators.rows(normalization, Pass::Backward, shape, 5 * element + mask, element);
            }
            (fusion, Direction::Forward) => {
                if fusion == Fusion::Eager && self.mlp == Mlp::SwiGlu {
                    operators.flat(FlatKind::Copy, elements, element, FLOAT);
                    operators.elementwise(elements, FLOAT, FLOAT);
                    operators.rows(RowKind::Reduction, Pass::Forward, shape, FLOAT, 0);
                    operators.elementwise(elements, FLOAT, FLOAT);
                    operators.flat(FlatKind::Copy, elements, FLOAT, element);
                    operators.elementwise(elements, element, element);
                } else {
                    operators.rows(normalization, Pass::Forward, shape, element, element);
                }
                operators.dropout(elements, way);
                operators.elementwise(elements, 2 * element, element);
            }
            (fusion, Direction::Backward) => {
                operators.elementwise(elements, 2 * element, element);
                operators.dropout(elements, way);
                if fusion == Fusion::Eager && self.mlp == Mlp::SwiGlu {
                    // Gradients of the multiplication by the weights: both factors, one reduced over tokens; of the
                    // cast; of the scaling: both factors, one reduced over columns; of the square; the sum of both
                    // gradients of the input; of the first cast.
                    operators.elementwise(elements, 2 * element, element);
                    operators.elementwise(elements, 2 * element, element);
                    operators.rows(RowKind::Reduction, Pass::Forward, [self.hidden, tokens], element, 0);
                    operators.flat(FlatKind::Copy, elements, element, FLOAT);
                    operators.elementwise(elements, FLOAT, FLOAT);
                    operators.elementwise(elements, 2 * FLOAT, FLOAT);
                    operators.rows(RowKind::Reduction, Pass::Forward, shape, FLOAT, 0);
                    operators.elementwise(elements, FLOAT, FLOAT);
                    operators.elementwise(elements, 2 * FLOAT, FLOAT);
                    operators.flat(FlatKind::Copy, elements, FLOAT, element);
                } else {
                    // Reads the gradient of the output and the input once for the gradient of the input, and once for
                    // that of the weights.
                    operators.rows(normalization, Pass::Backward, shape, 4 * element, element);
                }
            }
        }
    }

    pub(super) fn query_key_value(&self, operators: &mut Operators, tokens: u64, tensor: u64, way: Direction) {
        let width = (self.hidden + 2 * self.kv_width()) / tensor;
        if way == Direction::Backward {
            self.positions(operators, tokens, tensor);
        }
        operators.linear([1, tokens, self.hidden, width], self.mlp == Mlp::Gelu, way);
        if way == Direction::Forward {
            self.positions(operators, tokens, tensor);
        }
    }

    /// Rotates queries and keys (Su et al., "RoFormer", 2021), or their gradients; models with learned positions have
    /// no rotation.
    fn positions(&self, operators: &mut Operators, tokens: u64, tensor: u64) {
        if self.mlp == Mlp::Gelu {
            return;
        }
        let (elements, element) = (tokens * (self.hidden + self.kv_width()) / tensor, operators.element());
        if operators.eager() {
            operators.flat(FlatKind::Copy, elements, element, FLOAT);
            operators.elementwise(elements, FLOAT, FLOAT);
            operators.flat(FlatKind::Copy, elements, FLOAT, element);
        } else {
            operators.elementwise(elements, element, element);
        }
    }

    /// The heads of attention on a rank. In decode from a cache of latent vectors, attention reads the latent vectors
    /// as keys and values: the up projections of keys and values are applied to queries and results instead
    /// (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.2).
    pub(super) fn attention_heads(&self, tensor: u64, decode: bool) -> AttentionHeads {
        let count = self.heads / tensor;
        match self.latent {
            None => {
                let width = self.hidden / self.heads;
                AttentionHeads { count, key: width, value: width, read: 2 * self.kv_width() / tensor, together: 1 }
            }
            Some(latent) if decode => {
                let (key, value) = (latent.cached(), latent.kv_rank);
                AttentionHeads { count, key, value, read: key, together: count }
            }
            Some(latent) => {
                let (key, value) = (latent.key(), latent.value);
                AttentionHeads { count, key, value, read: count * (key + value), together: 1 }
            }
        }
    }

    /// Scores, softmax and values. FlashAttention needs 2 operations per pair and element of a key and of a value in
    /// the forward pass, and 6 and 4 in the backward pass, which recomputes scores; it reads queries, keys and values
    /// and writes the result. Unfused attention needs two GEMMs of all pairs forward and four backward, and the bytes
    /// that the softmax and dropout move.
    pub(super) fn attention(&self, operators: &mut Operators, part: Attention, heads: AttentionHeads, way: Direction) {
        let Attention { sequences, queries, keys, pairs } = part;
        let element = operators.element();
        let dtype = match operators.implementation.float8_cache && operators.phase == Phase::Decode {
            true => DType::Float8E4M3,
            false => operators.implementation.dtype,
        };
        let AttentionHeads { count, key, value, read, together } = heads;
        let (heads, queries, pairs) = (sequences * count / together, queries * together, pairs * together);
        match operators.implementation.attention {
            AttentionKernels::Flash => {
                let causal = pairs < queries * keys;
                let [asked, results] = [key, value].map(|width| heads * queries * width * element);
                let cached = sequences * keys * read * dtype.size();
                let (pairs, width) = (heads * pairs, (key + value) / 2);
                let family = |pass| Family::Attention { pass, heads, queries, keys, width, causal };
                match way {
                    Direction::Forward => {
                        let flops = 2 * pairs * (key + value);
                        operators.push(family(Pass::Forward), dtype, flops, asked + cached, results);
                    }
                    Direction::Backward => {
                        let flops = 2 * pairs * (3 * key + 2 * value);
                        let moved = (asked + 2 * results + cached, asked + cached);
                        operators.push(family(Pass::Backward), dtype, flops, moved.0, moved.1);
                    }
                }
            }
            AttentionKernels::Unfused => {
                let (rows, scores) = ([heads * queries, keys], heads * queries * keys);
                let masks = if operators.eager() { 1 } else { 0 };
                match way {
                    Direction::Forward => {
                        operators.gemm([heads, queries, keys, key], Layout::NT, dtype);
                        (0..masks).for_each(|_| operators.elementwise(scores, element + MASK, element));
                        operators.rows(RowKind::Softmax, Pass::Forward, rows, element, element);
                        operators.dropout(scores, way);
                        operators.gemm([heads, queries, value, keys], Layout::NN, dtype);
                    }
                    Direction::Backward => {
                        operators.gemm([heads, queries, keys, value], Layout::NT, dtype);
                        operators.gemm([heads, keys, value, queries], Layout::TN, dtype);
                        operators.dropout(scores, way);
                        operators.rows(RowKind::Softmax, Pass::Backward, rows, 2 * element, element);
                        (0..masks).for_each(|_| operators.elementwise(scores, element + MASK, element));
                        operators.gemm([heads, queries, key, keys], Layout::NN, dtype);
                        operators.gemm([heads, keys, key, queries], Layout::TN, dtype);
                    }
                }
            }
        }
    }

    pub(super) fn projection(&self, operators: &mut Operators, tokens: u64, tensor: u64, way: Direction) {
        operators.linear([1, tokens, self.result_width() / tensor, self.hidden], self.mlp == Mlp::Gelu, way);
    }

    /// The operators from the residual stream to the activation, of `experts` networks with `tokens` tokens each.
    pub(super) fn feed_forward_in(
        &self,
        operators: &mut Operators,
        [experts, tokens, width]: [u64; 3],
        way: Direction,
    ) {
        let gates = if self.mlp == Mlp::SwiGlu { 2 } else { 1 };
        if way == Direction::Backward {
            self.activation(operators, experts * tokens * width, way);
        }
        operators.linear([experts, tokens, self.hidden, gates * width], self.mlp == Mlp::Gelu, way);
        if way == Direction::Forward {
            self.activation(operators, experts * tokens * width, way);
        }
    }

    pub(super) fn feed_forward_out(
        &self,
        operators: &mut Operators,
        [experts, tokens, width]: [u64; 3],
        way: Direction,
    ) {
        operators.linear([experts, tokens, width, self.hidden], self.mlp == Mlp::Gelu, way);
    }

    /// Reads gate and up, and writes their product; the backward pass computes their gradients. Without a gate, one
    /// tensor replaces both.
    fn activation(&self, operators: &mut Operators, elements: u64, way: Direction) {
        let (element, eager) = (operators.element(), operators.eager());
        match (self.mlp, way) {
            (Mlp::SwiGlu, Direction::Forward) if eager => {
                operators.elementwise(elements, element, element);
                operators.elementwise(elements, 2 * element, element);
            }
            (Mlp::SwiGlu, Direction::Backward) if eager => {
                operators.elementwise(elements, 2 * element, element);
                operators.elementwise(elements, 2 * element, element);
                operators.elementwise(elements, 2 * element, element);
            }
            (Mlp::SwiGlu, Direction::Forward) => operators.elementwise(elements, 2 * element, element),
            (Mlp::SwiGlu, Direction::Backward) => operators.elementwise(elements, 3 * element, 2 * element),
            (Mlp::Gelu, Direction::Forward) => operators.elementwise(elements, element, element),
            (Mlp::Gelu, Direction::Backward) => operators.elementwise(elements, 2 * element, element),
        }
    }

    /// Router: scores of all experts for each token.
    pub(super) fn router(&self, operators: &mut Operators, tokens: u64, way: Direction) {
        let experts = self.experts.map_or(0, |experts| experts.count);
        operators.head_product(tokens, self.hidden, experts, way);
    }

    // Embedding and head

    /// Embedding: reads and writes a row per token; with learned positions it adds another row.
    pub(super) fn embedding(&self, operators: &mut Operators, tokens: u64, way: Direction) {
        let (elements, element) = (tokens * self.hidden, operators.element());
        match way {
            Direction::Forward => {
                operators.flat(FlatKind::Gather, elements, element, element);
                if self.positions > 0 {
                    operators.elementwise(elements, 2 * element, element);
                }
                operators.dropout(elements, way);
            }
            Direction::Backward => {
                operators.dropout(elements, way);
                let tables = if self.positions > 0 { 2 } else { 1 };
                (0..tables).for_each(|_| operators.flat(FlatKind::Scatter, elements, 2 * element, element));
            }
        }
    }

    /// The last GEMM, and in training the loss: scores are cast to float32, their maximum and the sum of their
    /// exponentials are computed, and their gradients are written. Megatron-LM's loss over a sharded vocabulary, and
    /// eager PyTorch's, write the result of each step; a compiler keeps the scores in 16 bits and reads them twice.
    pub(super) fn head(&self, operators: &mut Operators, tokens: u64, tensor: u64, loss: bool, way: Direction) {
        let width = self.vocabulary.div_ceil(tensor);
        let (scores, shape, element) = (tokens * width, [tokens, width], operators.element());
        let fusion = operators.implementation.fusion;
        if way == Direction::Backward {
            if fusion == Fusion::Compiled {
                operators.elementwise(scores, element, element);
            } else {
                operators.elementwise(scores, FLOAT, FLOAT);
                operators.flat(FlatKind::Copy, scores, FLOAT, element);
            }
        }
        operators.head_product(tokens, self.hidden, width, way);
        if way == Direction::Forward && loss {
            match fusion {
                Fusion::Compiled => operators.rows(RowKind::Softmax, Pass::Forward, shape, 2 * element, 0),
                Fusion::Eager => {
                    operators.flat(FlatKind::Copy, scores, element, FLOAT);
                    operators.rows(RowKind::Softmax, Pass::Forward, shape, FLOAT, FLOAT);
                }
                Fusion::Fused => {
                    operators.flat(FlatKind::Copy, scores, element, FLOAT);
                    operators.rows(RowKind::Reduction, Pass::Forward, shape, FLOAT, 0);
                    operators.elementwise(scores, FLOAT, FLOAT);
                    operators.elementwise(scores, FLOAT, FLOAT);
                    operators.rows(RowKind::Reduction, Pass::Forward, shape, FLOAT, 0);
                    operators.elementwise(scores, FLOAT, FLOAT);
                }
            }
        }
    }

    /// The last norm.
    pub(super) fn last_norm(&self, operators: &mut Operators, tokens: u64, way: Direction) {
        let (shape, element) = ([tokens, self.hidden], operators.element());
        match way {
            Direction::Forward => operators.rows(RowKind::Normalization, Pass::Forward, shape, element, element),
            Direction::Backward => operators.rows(RowKind::Normalization, Pass::Backward, shape, 4 * element, element),
        }
    }
}

// Parameters

impl Operators {
    /// Adds the gradients of a micro-batch to those of earlier micro-batches.
    pub(super) fn accumulate(&mut self, parameters: u64, gradient_bytes: u64) {
        let element = self.element();
        self.elementwise(parameters, element + gradient_bytes, gradient_bytes);
    }

    pub(super) fn optimizer(&mut self, parameters: u64, gradient_bytes: u64) {
        let (element, dtype) = (self.element(), self.implementation.dtype);
        let family = Family::Flat { kind: FlatKind::Optimizer, elements: parameters };
        let (read, written) = (ADAM_BYTES + gradient_bytes, ADAM_BYTES + element);
        self.push(family, dtype, parameters * ADAM_FLOPS, parameters * read, parameters * written);
    }

    /// Sums the squares of gradients.
    pub(super) fn squares(&mut self, parameters: u64, gradient_bytes: u64) {
        let family = Family::Rows { kind: RowKind::Reduction, pass: Pass::Forward, rows: 1, columns: parameters };
        self.push(family, DType::Float32, 2 * parameters, parameters * gradient_bytes, 0);
    }

    /// Scales gradients.
    pub(super) fn scale(&mut self, parameters: u64, gradient_bytes: u64) {
        let family = Family::Flat { kind: FlatKind::Elementwise, elements: parameters };
        let bytes = parameters * gradient_bytes;
        self.push(family, DType::Float32, parameters, bytes, bytes);
    }
}
