//! Owns what a model is made of: its sizes and its parameters. Which operators its parts consist of is `operators`' business.

/// A decoder: grouped-query attention, and a feed-forward network or experts in each layer.
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
    /// In each layer.
    pub count: u64,
    /// Experts that see each token.
    pub top_k: u64,
}

/// The attention of one layer on one rank.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    /// Sequences.
    pub(super) sequences: u64,
    /// Query positions of a sequence.
    pub(super) queries: u64,
    /// Keys of a sequence that lie in memory.
    pub(super) keys: u64,
    /// Pairs of a query and a key that it looks at, of a sequence.
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
        let tables = if self.tied { 1 } else { 2 };
        let positions = self.positions * self.hidden;
        u64::from(self.layers) * layer + tables * self.embedding_parameters() + positions + self.norm_parameters()
    }

    /// Matrices of a feed-forward network.
    fn matrices(&self) -> u64 {
        match self.mlp {
            Mlp::SwiGlu => 3,
            Mlp::Gelu => 2,
        }
    }

    /// Of one layer, those that tensor-parallel ranks share: projections, and the feed-forward network if there is one.
    pub(super) fn dense_parameters(&self) -> u64 {
        self.dense_matrices() + self.shared_biases()
    }

    /// Of these, those in matrices.
    pub(super) fn dense_matrices(&self) -> u64 {
        let attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width();
        attention + if self.experts.is_none() { self.matrices() * self.hidden * self.ffn } else { 0 }
    }

    /// Of one layer, parameters in matrices that a token meets: of experts those that it is sent to, and the router.
    pub(super) fn active_matrices(&self) -> u64 {
        let experts = self.experts.map_or(0, |Experts { count, top_k }| {
            self.hidden * count + top_k * self.matrices() * self.hidden * self.ffn
        });
        self.dense_matrices() + experts
    }

    /// Biases of queries, keys, values, and of the first matrix of the feed-forward network.
    fn shared_biases(&self) -> u64 {
        let first = if self.experts.is_none() { self.ffn } else { 0 };
        if self.mlp == Mlp::Gelu { self.hidden + 2 * self.kv_width() + first } else { 0 }
    }

    /// Of one layer, all experts.
    pub(super) fn expert_parameters(&self) -> u64 {
        let biases = if self.mlp == Mlp::Gelu { self.ffn + self.hidden } else { 0 };
        self.experts.map_or(0, |experts| (self.matrices() * self.hidden * self.ffn + biases) * experts.count)
    }

    /// Of one layer, those that every tensor-parallel rank has: two norms, the router, biases of the matrices before sums.
    pub(super) fn replicated_parameters(&self) -> u64 {
        let sums = if self.experts.is_none() { 2 } else { 1 };
        let biases = if self.mlp == Mlp::Gelu { sums * self.hidden } else { 0 };
        2 * self.norm_parameters() + biases + self.experts.map_or(0, |experts| self.hidden * experts.count)
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
