//! Owns what a model is made of: its sizes and its parameters. Which operators its parts consist of is `operators`' business.

/// A decoder: attention with grouped queries or through a latent vector, and a feed-forward network or experts in each layer.
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
    /// In place of the feed-forward network, in all layers but the first [`Experts::dense_layers`].
    pub experts: Option<Experts>,
    /// Queries, keys and values are made of latent vectors.
    pub latent: Option<Latent>,
    /// What its layers are like.
    pub mlp: Mlp,
    /// Positions of a learned table that is added to the embedding; 0: positions are rotary.
    pub positions: u64,
    /// The head's matrix is the embedding's. With a pipeline the first and the last stage have one each, and sum their gradients.
    pub tied: bool,
}

/// The kind of a layer's feed-forward network, and what goes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mlp {
    /// As in Llama: three matrices, of which one is a gate (Shazeer, "GLU variants improve transformer", 2020); root-mean-square norms, no
    /// biases.
    #[default]
    SwiGlu,
    /// As in GPT: two matrices (Hendrycks and Gimpel, "Gaussian error linear units", 2016); layer norms with biases, linear layers with
    /// biases.
    Gelu,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Routed experts in each layer that has any.
    pub count: u64,
    /// Routed experts that see each token.
    pub top_k: u64,
    /// Width of each expert's feed-forward network.
    pub ffn: u64,
    /// Experts besides that see every token (Dai et al., "DeepSeekMoE", 2024, section 3.2): one network, so many times as wide.
    pub shared: u64,
    /// First layers that have an ordinary feed-forward network.
    pub dense_layers: u32,
}

/// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1): keys and values of all heads are made of one narrow vector a
/// token, and queries of another one; a part of each key, shared by all heads, and of each query carries rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector of which queries are made; 0: they are made of the residual stream.
    pub query_rank: u64,
    /// Width of the vector of which keys and values are made.
    pub kv_rank: u64,
    /// Elements of a head's query and key without positions.
    pub plain: u64,
    /// Elements of a head's query with rotary positions; a token has one such key for all heads.
    pub rotary: u64,
    /// Elements of a head's value.
    pub value: u64,
}

/// What a layer has behind its attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LayerKind {
    /// One feed-forward network.
    Dense,
    /// Experts, and those that are shared.
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
    /// Number of pairs of a query and a key that it sees, of a sequence.
    pub(super) pairs: u64,
}

impl Latent {
    /// Elements of a head's query, and of its key.
    pub(super) fn key(&self) -> u64 {
        self.plain + self.rotary
    }

    /// Elements of a token from which its keys and values can be made: what a cache holds.
    pub(super) fn cached(&self) -> u64 {
        self.kv_rank + self.rotary
    }

    /// Elements of a token between the projections down and those up.
    pub(super) fn narrow(&self) -> u64 {
        self.query_rank + self.cached()
    }
}

impl Experts {
    /// Width of the network that all shared experts are together.
    pub(super) fn shared_ffn(&self) -> u64 {
        self.shared * self.ffn
    }
}

impl Model {
    /// Width of all key heads, and of all value heads, where they are made of the residual stream.
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

    /// Elements that attention writes for a token.
    pub(super) fn result_width(&self) -> u64 {
        self.latent.map_or(self.hidden, |latent| self.heads * latent.value)
    }

    /// What the `layer`-th layer of the model has behind its attention.
    pub(super) fn kind(&self, layer: u32) -> LayerKind {
        match self.experts {
            Some(experts) if layer >= experts.dense_layers => LayerKind::Experts,
            _ => LayerKind::Dense,
        }
    }

    /// Layers of each kind.
    fn kinds(&self) -> [(LayerKind, u64); 2] {
        let dense = self.experts.map_or(self.layers, |experts| experts.dense_layers.min(self.layers));
        [(LayerKind::Dense, u64::from(dense)), (LayerKind::Experts, u64::from(self.layers - dense))]
    }

    /// A sum over all layers.
    pub(super) fn over_layers(&self, of: impl Fn(LayerKind) -> u64) -> u64 {
        self.kinds().into_iter().filter(|(_, count)| *count > 0).map(|(kind, count)| count * of(kind)).sum()
    }

    /// All of them.
    pub fn parameters(&self) -> u64 {
        let layer =
            |kind| self.dense_parameters(kind) + self.expert_parameters(kind) + self.replicated_parameters(kind);
        let tables = if self.tied { 1 } else { 2 };
        let positions = self.positions * self.hidden;
        self.over_layers(layer) + tables * self.embedding_parameters() + positions + self.norm_parameters()
    }

    /// All but those of routed experts that a token is not sent to. Of the embedding all rows count, as in publications.
    pub fn active_parameters(&self) -> u64 {
        let idle = |kind| match self.experts {
            Some(experts) if kind == LayerKind::Experts => (experts.count - experts.top_k) * self.of_expert(experts),
            _ => 0,
        };
        self.parameters() - self.over_layers(idle)
    }

    /// Matrices of a feed-forward network.
    fn matrices(&self) -> u64 {
        match self.mlp {
            Mlp::SwiGlu => 3,
            Mlp::Gelu => 2,
        }
    }

    /// Width of the network of a layer that sees every token.
    pub(super) fn dense_ffn(&self, kind: LayerKind) -> u64 {
        match (kind, self.experts) {
            (LayerKind::Experts, Some(experts)) => experts.shared_ffn(),
            _ => self.ffn,
        }
    }

    /// Of one layer, those that tensor-parallel ranks share: projections, and the network that sees every token.
    pub(super) fn dense_parameters(&self, kind: LayerKind) -> u64 {
        // Biases of queries, keys, values, and of the first matrix of the network.
        let biases = if self.mlp == Mlp::Gelu { self.hidden + 2 * self.kv_width() + self.dense_ffn(kind) } else { 0 };
        self.dense_matrices(kind) + biases
    }

    /// Of these, those in matrices.
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

    /// Of one layer, parameters in matrices that a token meets: of experts those that it is sent to, and the router.
    pub(super) fn active_matrices(&self, kind: LayerKind) -> u64 {
        let routed = match self.experts {
            Some(experts) if kind == LayerKind::Experts => {
                self.router_parameters(kind) + experts.top_k * self.matrices() * self.hidden * experts.ffn
            }
            _ => 0,
        };
        self.dense_matrices(kind) + self.narrow_matrices() + routed
    }

    /// Of one layer, the projections to latent vectors.
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

    /// Of one layer, all routed experts.
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

    /// Of one layer, those that every tensor-parallel rank has: two norms, the router, projections to latent vectors with their norms, biases
    /// of the matrices before sums.
    pub(super) fn replicated_parameters(&self, kind: LayerKind) -> u64 {
        let sums = if self.dense_ffn(kind) > 0 { 2 } else { 1 };
        let biases = if self.mlp == Mlp::Gelu { sums * self.hidden } else { 0 };
        let narrow = self.latent.map_or(0, |latent| latent.query_rank + latent.kv_rank);
        2 * self.norm_parameters() + biases + self.router_parameters(kind) + self.narrow_matrices() + narrow
    }

    /// Of a norm: a factor for each element, and of layer norms a bias.
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
