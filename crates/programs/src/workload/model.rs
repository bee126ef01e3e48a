//! Owns the structure of a model: its sizes and numbers of parameters. `operators` knows the operators of its parts.

/// A decoder-only transformer: each layer has grouped-query or multi-head latent attention, and a feed-forward network
/// or experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Number of transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Number of query heads.
    pub heads: u64,
    /// Number of key and value heads; with [`Latent`] it equals that of query heads.
    pub kv_heads: u64,
    /// Width of the feed-forward network of layers without experts.
    pub ffn: u64,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
    /// Experts, which replace the feed-forward network in all layers except the first [`Experts::dense_layers`].
    pub experts: Option<Experts>,
    /// Latent vectors of which queries, keys and values are made.
    pub latent: Option<Latent>,
    /// Kind of the feed-forward networks, and of norms and biases.
    pub mlp: Mlp,
    /// Number of learned positions, whose table is added to the embedding; 0: positions are rotary.
    pub positions: u64,
    /// Whether the head uses the embedding's matrix. With a pipeline the first and the last stage have a copy each, and
    /// all-reduce their gradients.
    pub tied: bool,
}

/// The kind of a layer's feed-forward network, norms and biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mlp {
    /// As in Llama: three matrices, of which one is a gate (Shazeer, "GLU variants improve transformer", 2020);
    /// root-mean-square norms, no biases.
    #[default]
    SwiGlu,
    /// As in GPT: two matrices (Hendrycks and Gimpel, "Gaussian error linear units", 2016); layer norms with biases,
    /// linear layers with biases.
    Gelu,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of routed experts in each MoE layer.
    pub count: u64,
    /// Routed experts that see each token.
    pub top_k: u64,
    /// Width of each expert's feed-forward network.
    pub ffn: u64,
    /// Number of shared experts, which every token passes through (Dai et al., "DeepSeekMoE", 2024, section 3.2);
    /// together they are one network that is this many times as wide as an expert.
    pub shared: u64,
    /// Number of layers at the start that have an ordinary feed-forward network.
    pub dense_layers: u32,
}

/// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1): keys and values of all heads are made
/// of one narrow vector per token, and queries of another one; a part of each key, shared by all heads, and of each
/// query carries rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the latent vector of queries; 0: queries are made of the residual stream.
    pub query_rank: u64,
    /// Width of the latent vector of keys and values.
    pub kv_rank: u64,
    /// Elements of a head's query and key without positions.
    pub plain: u64,
    /// Elements of a head's query with rotary positions; a token has one key with such elements for all heads.
    pub rotary: u64,
    /// Elements of a head's value.
    pub value: u64,
}

/// Kind of the part of a layer after attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LayerKind {
    /// One feed-forward network.
    Dense,
    /// Routed and shared experts.
    Experts,
}

/// The attention of one layer on one rank.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    /// Number of sequences.
    pub(super) sequences: u64,
    /// Number of query positions of a sequence.
    pub(super) queries: u64,
    /// Number of keys of a sequence that lie in memory.
    pub(super) keys: u64,
    /// Number of unmasked pairs of a query and a key of a sequence.
    pub(super) pairs: u64,
}

impl Latent {
    /// Elements of a head's query, which equal those of its key.
    pub(super) fn key(&self) -> u64 {
        self.plain + self.rotary
    }

    /// Elements of a token in a KV cache of latent vectors.
    pub(super) fn cached(&self) -> u64 {
        self.kv_rank + self.rotary
    }

    /// Elements of a token's latent vectors, between the down and the up projections.
    pub(super) fn narrow(&self) -> u64 {
        self.query_rank + self.cached()
    }
}

impl Experts {
    /// Width of the one network of all shared experts.
    pub(super) fn shared_ffn(&self) -> u64 {
        self.shared * self.ffn
    }
}

impl Model {
    /// Width of all key heads, which equals that of all value heads, in models without latent vectors.
    pub fn kv_width(&self) -> u64 {
        self.hidden / self.heads * self.kv_heads
    }

    /// Elements of all queries of a token.
    pub(super) fn query_width(&self) -> u64 {
        self.latent.map_or(self.hidden, |latent| self.heads * latent.key())
    }

    /// Elements of a token's keys and values as attention reads them.
    pub(super) fn keys_and_values(&self) -> u64 {
        self.latent.map_or(2 * self.kv_width(), |latent| self.heads * (latent.key() + latent.value))
    }

    /// Elements of a token in attention's output.
    pub(super) fn result_width(&self) -> u64 {
        self.latent.map_or(self.hidden, |latent| self.heads * latent.value)
    }

    /// The kind of the `layer`-th layer of the model.
    pub(super) fn kind(&self, layer: u32) -> LayerKind {
        match self.experts {
            Some(experts) if layer >= experts.dense_layers => LayerKind::Experts,
            _ => LayerKind::Dense,
        }
    }

    /// Number of layers of each kind.
    fn kinds(&self) -> [(LayerKind, u64); 2] {
        let dense = self.experts.map_or(self.layers, |experts| experts.dense_layers.min(self.layers));
        [(LayerKind::Dense, u64::from(dense)), (LayerKind::Experts, u64::from(self.layers - dense))]
    }

    /// The sum, over all layers, of a number that depends on the layer's kind.
    pub(super) fn over_layers(&self, of: impl Fn(LayerKind) -> u64) -> u64 {
        self.kinds().into_iter().filter(|(_, count)| *count > 0).map(|(kind, count)| count * of(kind)).sum()
    }

    /// Number of all parameters.
    pub fn parameters(&self) -> u64 {
        let layer =
            |kind| self.dense_parameters(kind) + self.expert_parameters(kind) + self.replicated_parameters(kind);
        let tables = if self.tied { 1 } else { 2 };
        let positions = self.positions * self.hidden;
        self.over_layers(layer) + tables * self.embedding_parameters() + positions + self.norm_parameters()
    }

    /// Number of all parameters except those of routed experts that a token does not pass through. All rows of the
    /// embedding count, as in publications.
    pub fn active_parameters(&self) -> u64 {
        let idle = |kind| match self.experts {
            Some(experts) if kind == LayerKind::Experts => (experts.count - experts.top_k) * self.of_expert(experts),
            _ => 0,
        };
        self.parameters() - self.over_layers(idle)
    }

    /// Number of matrices of a feed-forward network.
    fn matrices(&self) -> u64 {
        match self.mlp {
            Mlp::SwiGlu => 3,
            Mlp::Gelu => 2,
        }
    }

    /// Width of a layer's dense network, which every token passes through.
    pub(super) fn dense_ffn(&self, kind: LayerKind) -> u64 {
        match (kind, self.experts) {
            (LayerKind::Experts, Some(experts)) => experts.shared_ffn(),
            _ => self.ffn,
        }
    }

    /// Number of a layer's parameters that are sharded over tensor-parallel ranks: projections, and the dense network.
    pub(super) fn dense_parameters(&self, kind: LayerKind) -> u64 {
        // Biases of queries, keys, values, and of the network's first matrix.
        let biases = if self.mlp == Mlp::Gelu { self.hidden + 2 * self.kv_width() + self.dense_ffn(kind) } else { 0 };
        self.dense_matrices(kind) + biases
    }

    /// Number of a layer's sharded parameters that are in matrices.
    pub(super) fn dense_matrices(&self, kind: LayerKind) -> u64 {
        let attention = match self.latent {
            None => 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width(),
            Some(latent) => {
                let queries = if latent.query_rank > 0 { latent.query_rank } else { self.hidden };
                let keys_and_values = latent.kv_rank * self.heads * (latent.plain + latent.value);
                queries * self.query_width() + keys_and_values + self.result_width() * self.hidden
            }
        };
        attention + self.matrices() * self.hidden * self.dense_ffn(kind)
    }

    /// Number of a layer's matrix parameters that a token is multiplied with: only its own experts count, and the
    /// router does.
    pub(super) fn active_matrices(&self, kind: LayerKind) -> u64 {
        let routed = match self.experts {
            Some(experts) if kind == LayerKind::Experts => {
                self.router_parameters(kind) + experts.top_k * self.matrices() * self.hidden * experts.ffn
            }
            _ => 0,
        };
        self.dense_matrices(kind) + self.narrow_matrices() + routed
    }

    /// Number of parameters of a layer's projections to latent vectors.
    pub(super) fn narrow_matrices(&self) -> u64 {
        self.latent.map_or(0, |latent| self.hidden * latent.narrow())
    }

    fn router_parameters(&self, kind: LayerKind) -> u64 {
        match self.experts {
            Some(experts) if kind == LayerKind::Experts => self.hidden * experts.count,
            _ => 0,
        }
    }

    fn of_expert(&self, experts: Experts) -> u64 {
        let biases = if self.mlp == Mlp::Gelu { experts.ffn + self.hidden } else { 0 };
        self.matrices() * self.hidden * experts.ffn + biases
    }

    /// Number of parameters of all routed experts of a layer.
    pub(super) fn expert_parameters(&self, kind: LayerKind) -> u64 {
        match self.experts {
            Some(experts) if kind == LayerKind::Experts => self.of_expert(experts) * experts.count,
            _ => 0,
        }
    }

    /// Number of the parameters of one layer's routed experts that are in matrices.
    pub(super) fn expert_matrices(&self, kind: LayerKind) -> u64 {
        match self.experts {
            Some(experts) if kind == LayerKind::Experts => self.matrices() * self.hidden * experts.ffn * experts.count,
            _ => 0,
        }
    }

    /// Number of a layer's parameters that every tensor-parallel rank holds: two norms, the router, projections to
    /// latent vectors with their norms, biases of the matrices before reductions.
    pub(super) fn replicated_parameters(&self, kind: LayerKind) -> u64 {
        let sums = if self.dense_ffn(kind) > 0 { 2 } else { 1 };
        let biases = if self.mlp == Mlp::Gelu { sums * self.hidden } else { 0 };
        let narrow = self.latent.map_or(0, |latent| latent.query_rank + latent.kv_rank);
        2 * self.norm_parameters() + biases + self.router_parameters(kind) + self.narrow_matrices() + narrow
    }

    /// Number of parameters of a norm: a factor per element, and for layer norms a bias per element.
    pub(super) fn norm_parameters(&self) -> u64 {
        match self.mlp {
            Mlp::SwiGlu => self.hidden,
            Mlp::Gelu => 2 * self.hidden,
        }
    }

    pub(super) fn embedding_parameters(&self) -> u64 {
        self.vocabulary * self.hidden
    }
}
