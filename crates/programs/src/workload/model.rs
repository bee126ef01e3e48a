//! Owns what a model is made of and what its parts cost. It knows one rank's share only as numbers to divide by.
//!
//! A multiplication of an m x k by a k x n matrix takes 2 m k n operations and moves 2 (m k + k n + m n) bytes, each element of bfloat16
//! once. A backward pass does two such multiplications for each of the forward pass (Shoeybi et al., "Megatron-LM", 2019; Narayanan et
//! al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021, appendix).

use super::ELEMENT;

/// A decoder like Llama's: grouped-query attention, SwiGLU feed-forward network or experts, embedding and head not tied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// How many layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Width of the feed-forward network, or of each expert.
    pub ffn: u64,
    /// Tokens that there are.
    pub vocabulary: u64,
    /// In place of each layer's one feed-forward network.
    pub experts: Option<Experts>,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// In each layer.
    pub count: u64,
    /// Experts that see each token.
    pub top_k: u64,
}

/// What a piece of compute takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes moved between memory and processor.
    pub bytes: u64,
}

impl Cost {
    /// Of an m x k by k x n multiplication.
    pub(super) fn multiply(m: u64, k: u64, n: u64) -> Cost {
        Cost { flops: 2 * m * k * n, bytes: ELEMENT * (m * k + k * n + m * n) }
    }

    /// Of work that only reads and writes so many elements.
    pub(super) fn elements(count: u64) -> Cost {
        Cost { flops: 0, bytes: ELEMENT * count }
    }

    pub(super) fn and(self, other: Cost) -> Cost {
        Cost { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }

    pub(super) fn times(self, count: u64) -> Cost {
        Cost { flops: self.flops * count, bytes: self.bytes * count }
    }
}

/// The attention of one layer on one rank.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    /// Query positions.
    pub(super) queries: u64,
    /// Keys that lie in memory.
    pub(super) keys: u64,
    /// Pairs of a query and a key that it looks at.
    pub(super) pairs: u64,
}

impl Model {
    /// Width of all key heads, and of all value heads.
    pub fn kv_width(&self) -> u64 {
        self.hidden / self.heads * self.kv_heads
    }

    /// All of them.
    pub fn parameters(&self) -> u64 {
        let layer = self.dense_parameters() + self.expert_parameters() + self.replicated_parameters();
        u64::from(self.layers) * layer + 2 * self.embedding_parameters() + self.hidden
    }

    /// Of one layer, those that tensor-parallel ranks share: projections, and the feed-forward network if there is one.
    pub(super) fn dense_parameters(&self) -> u64 {
        let attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width();
        attention + if self.experts.is_none() { 3 * self.hidden * self.ffn } else { 0 }
    }

    /// Of one layer, all experts.
    pub(super) fn expert_parameters(&self) -> u64 {
        self.experts.map_or(0, |experts| 3 * self.hidden * self.ffn * experts.count)
    }

    /// Of one layer, those that every tensor-parallel rank has: two norms and the router.
    pub(super) fn replicated_parameters(&self) -> u64 {
        2 * self.hidden + self.experts.map_or(0, |experts| self.hidden * experts.count)
    }

    pub(super) fn embedding_parameters(&self) -> u64 {
        self.vocabulary * self.hidden
    }

    // Of one layer on one of `tensor` ranks, forward, for so many tokens

    /// Normalisation and residual sum: the stream is read twice and written twice, and what the block gives is read.
    pub(super) fn norm(&self, tokens: u64) -> Cost {
        Cost::elements(5 * tokens * self.hidden)
    }

    pub(super) fn query_key_value(&self, tokens: u64, tensor: u64) -> Cost {
        Cost::multiply(tokens, self.hidden, (self.hidden + 2 * self.kv_width()) / tensor)
    }

    /// Scores and values in one pass that never writes scores (Dao et al., "FlashAttention", 2022): 4 operations a pair and element;
    /// queries, keys and values are read and the result is written.
    pub(super) fn attention(&self, attention: Attention, tensor: u64) -> Cost {
        let Attention { queries, keys, pairs } = attention;
        let moved = (2 * queries * self.hidden + 2 * keys * self.kv_width()) / tensor;
        Cost { flops: 4 * pairs * self.hidden / tensor, bytes: ELEMENT * moved }
    }

    pub(super) fn projection(&self, tokens: u64, tensor: u64) -> Cost {
        Cost::multiply(tokens, self.hidden / tensor, self.hidden)
    }

    /// Gate and up.
    pub(super) fn feed_forward_in(&self, tokens: u64, tensor: u64) -> Cost {
        Cost::multiply(tokens, self.hidden, 2 * self.ffn / tensor).and(self.activation(tokens, tensor))
    }

    pub(super) fn feed_forward_out(&self, tokens: u64, tensor: u64) -> Cost {
        Cost::multiply(tokens, self.ffn / tensor, self.hidden)
    }

    /// Gate and up are read, their product is written.
    fn activation(&self, tokens: u64, tensor: u64) -> Cost {
        Cost::elements(3 * tokens * self.ffn / tensor)
    }

    /// The whole network of each of `local` experts, which see the same number of tokens each.
    pub(super) fn expert_networks(&self, tokens: u64, local: u64, tensor: u64) -> Cost {
        let each = tokens.div_ceil(local);
        self.feed_forward_in(each, tensor).and(self.feed_forward_out(each, tensor)).times(local)
    }

    /// Every token's scores of all experts.
    pub(super) fn router(&self, tokens: u64) -> Cost {
        Cost::multiply(tokens, self.hidden, self.experts.map_or(0, |experts| experts.count))
    }

    // The ends

    /// A row is read and written for each token.
    pub(super) fn embedding(&self, tokens: u64) -> Cost {
        Cost::elements(2 * tokens * self.hidden)
    }

    pub(super) fn head(&self, tokens: u64, tensor: u64) -> Cost {
        Cost::multiply(tokens, self.hidden, self.vocabulary.div_ceil(tensor))
    }
}
