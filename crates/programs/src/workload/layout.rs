//! Owns where ranks stand in a job: how many of them share what, which groups they form, and which of them are alike. It does not
//! know what any of them does.
//!
//! Ranks are numbered as in Megatron-LM, tensor first: `rank = t + T (c + C (e + E (d + D/E p)))` with T tensor-, C context-, E expert-,
//! D data-parallel ranks (expert-parallel ones among them) and p the pipeline's stage.

use super::Unlike;
use uniference_sim::symmetry::{Axis, Relabeling, Symmetry};

/// How many ranks share a model in which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Ranks that share each matrix.
    pub tensor: u32,
    /// Ranks that share each sequence.
    pub context: u32,
    /// Ranks that share experts; they see different data.
    pub expert: u32,
    /// Ranks that see different data, at one place of tensor, context and pipeline.
    pub data: u32,
    /// Stages that share the layers.
    pub pipeline: u32,
    /// Do tensor-parallel ranks share what lies between matrices, too? (Korthikanti et al., "Reducing activation recomputation in large
    /// transformer models", 2022.)
    pub sequence_parallel: bool,
    /// Ranks over which replicas shard what ZeRO shards, where these are not all of them: neighbours along the context and data axes. Other
    /// ranks hold copies of their shards (PyTorch's `HYBRID_SHARD`; Zhao et al., "PyTorch FSDP", 2023, section 3.2.2).
    pub shard: Option<u32>,
    /// How context-parallel ranks come by the keys and values of all.
    pub context_method: ContextMethod,
    /// Which parts of a sequence they have.
    pub context_order: ContextOrder,
}

/// How context-parallel ranks come by keys and values that others have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextMethod {
    /// All of them are gathered before attention ("The Llama 3 herd of models", 2024, section 3.3.2).
    #[default]
    AllGather,
    /// Each rank's go round in a ring, while attention to those at hand is computed (Liu et al., "Ring attention with blockwise transformers
    /// for near-infinite context", 2023).
    Ring,
}

/// Which parts of a sequence context-parallel ranks have. A token looks at those before it, so the last part takes most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextOrder {
    /// Of twice as many parts as there are ranks, each has the n-th and the n-th from the end: all have equally much to do.
    #[default]
    Zigzag,
    /// The n-th rank has the n-th part.
    Contiguous,
}

/// Where a rank stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPosition {
    /// The rank's number.
    pub rank: u32,
    /// Its pipeline stage.
    pub stage: u32,
    /// Its place among the ranks that share sequences.
    pub context: u32,
    /// Its place among the ranks that share experts.
    pub expert: u32,
}

/// A process group of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    Tensor,
    Context,
    Expert,
    /// Ranks with the same parameters but experts: those along the data and context axes. With [`Layout::shard`], as many of them.
    Replicas,
    /// Ranks with the same experts. With [`Layout::shard`], as many of them.
    ExpertReplicas,
    /// Ranks with the same shards; with [`Layout::shard`].
    Copies,
    /// A stage and the one as far from the other end of the pipeline, where both have the same pieces.
    Opposite,
    /// All stages of the pipeline.
    Pipeline,
    /// The first and the last stage; only they have it.
    Ends,
}

/// Every kind of group.
pub(super) const GROUPS: [Group; 9] = [
    Group::Tensor,
    Group::Context,
    Group::Expert,
    Group::Replicas,
    Group::ExpertReplicas,
    Group::Copies,
    Group::Opposite,
    Group::Pipeline,
    Group::Ends,
];

impl Layout {
    /// How many ranks there are.
    pub fn world_size(&self) -> u32 {
        self.checked_size().expect("layouts are checked")
    }

    /// `None`: an axis is empty, or there are more than 2^20 ranks.
    pub(super) fn checked_size(&self) -> Option<u32> {
        let axes = [self.tensor, self.context, self.data, self.pipeline, self.expert];
        let size = axes[..4].iter().try_fold(1_u32, |size, axis| size.checked_mul(*axis));
        size.filter(|size| *size <= 1 << 20 && !axes.contains(&0))
    }

    /// Where `rank` stands.
    pub fn place(&self, rank: u32) -> RankPosition {
        RankPosition {
            rank,
            stage: rank / self.stage_size(),
            context: rank / self.tensor % self.context,
            expert: rank / (self.tensor * self.context) % self.expert,
        }
    }

    fn stage_size(&self) -> u32 {
        self.tensor * self.context * self.data
    }

    /// The rank at the same place of another stage.
    pub(super) fn at_stage(&self, RankPosition { rank, stage, .. }: RankPosition, other: u32) -> u32 {
        rank - stage * self.stage_size() + other * self.stage_size()
    }

    /// The rank that is so many places after this one among those that share sequences, in a circle.
    pub(super) fn at_context(&self, RankPosition { rank, context, .. }: RankPosition, after: u32) -> u32 {
        rank - context * self.tensor + (context + after) % self.context * self.tensor
    }

    /// Ranks with the same parameters but experts.
    pub fn dense_replicas(&self) -> u32 {
        self.context * self.data
    }

    /// Ranks with the same experts.
    pub fn expert_replicas(&self) -> u32 {
        self.context * self.data / self.expert
    }

    /// Ranks that share what ZeRO shards of parameters that are not experts.
    pub(super) fn dense_shards(&self) -> u32 {
        self.shard.unwrap_or(self.dense_replicas())
    }

    /// The same of experts.
    pub(super) fn expert_shards(&self) -> u32 {
        self.shard.unwrap_or(self.expert_replicas())
    }

    pub(super) fn size(&self, group: Group) -> u32 {
        self.axes(group).map(|(_, extent)| extent).product()
    }

    /// The ranks of a group of `rank`, rising.
    pub(super) fn members(&self, group: Group, rank: u32) -> Vec<u32> {
        if group == Group::Opposite {
            let RankPosition { stage, .. } = self.place(rank);
            let opposite = self.at_stage(self.place(rank), self.pipeline - 1 - stage);
            return vec![rank.min(opposite), rank.max(opposite)];
        }
        let axes: Vec<(u32, u32)> = self.axes(group).collect();
        let first = axes.iter().fold(rank, |first, (stride, extent)| first - rank / stride % extent * stride);
        let mut members = vec![first];
        for (stride, extent) in axes {
            let steps = (0..extent).map(|step| step * stride);
            members = steps.flat_map(|step| members.iter().map(move |member| member + step)).collect();
        }
        members
    }

    /// The axes that a group lies along, the first moving fastest, as stride and extent.
    fn axes(&self, group: Group) -> impl Iterator<Item = (u32, u32)> {
        let context = self.tensor;
        let expert = context * self.context;
        let replica = expert * self.expert;
        let whole = |stride, extent| [(stride, extent), (1, 1)];
        match group {
            Group::Tensor => whole(1, self.tensor),
            Group::Context => whole(context, self.context),
            Group::Expert => whole(expert, self.expert),
            Group::Replicas => whole(context, self.dense_shards()),
            Group::ExpertReplicas if self.shard.is_some() => whole(context, self.dense_shards()),
            Group::Copies => whole(context * self.dense_shards(), self.dense_replicas() / self.dense_shards()),
            Group::ExpertReplicas => [(context, self.context), (replica, self.data / self.expert)],
            // As many; which they are, `members` knows.
            Group::Opposite => whole(self.stage_size(), self.pipeline.min(2)),
            Group::Pipeline => whole(self.stage_size(), self.pipeline),
            Group::Ends => whole(self.stage_size() * (self.pipeline - 1).max(1), self.pipeline.min(2)),
        }
        .into_iter()
    }

    /// The axes along which ranks do the same. Training sums gradients along data and context together: a shift along just one of the
    /// two moves the members of that group by no rotation, unless the other has one place; a shift along the outer one does. Where replicas
    /// have shards of some, shifts move places among these, and all of these.
    pub(super) fn symmetry(&self, train: bool, unlike: Unlike) -> Symmetry {
        let [tensor, context, expert, replicas] = self.shifted(unlike);
        let context = Some(context).filter(|_| !train || self.data == 1);
        let expert = Some(expert).filter(|_| !train || (self.context == 1 && replicas.extent == 1));
        let axes: Vec<Axis> = [Some(tensor), context, expert, Some(replicas)].into_iter().flatten().collect();
        Symmetry::new(self.cut(&axes), self.world_size()).expect("strides are products of the extents before them")
    }

    /// Axes cut where groups of [`Layout::shard`] end.
    pub(super) fn cut(&self, axes: &[Axis]) -> Vec<Axis> {
        let ends: Vec<u32> = self.shard.map(|shard| self.tensor * shard).into_iter().collect();
        axes.iter().flat_map(|axis| parts(*axis, &ends)).collect()
    }

    /// The axes but the pipeline's, along which ranks do the same apart from sums over several of them. An axis whose ranks are unlike has
    /// extent 1.
    pub(super) fn shifted(&self, unlike: Unlike) -> [Axis; 4] {
        let stride = self.tensor * self.context;
        let if_alike = |unlike: bool, extent: u32| if unlike { 1 } else { extent };
        [
            rotation(1, self.tensor),
            rotation(self.tensor, if_alike(unlike.contexts, self.context)),
            rotation(stride, if_alike(unlike.experts, self.expert)),
            rotation(stride * self.expert, self.data / self.expert),
        ]
    }

    /// Symmetries along some of `axes`, or parts of an axis, those of most ranks a class first, the last one along none. An axis has parts where it goes
    /// beyond one of `blocks` of consecutive ranks: places inside a block, and blocks. As a group lies along all of an axis or at one place of it, ranks do the
    /// same after any such shift, too.
    pub(super) fn symmetries(&self, axes: &[Axis], blocks: &[u32]) -> Vec<Symmetry> {
        let mut sets: Vec<Vec<Axis>> = vec![Vec::new()];
        for axis in axes.iter().filter(|axis| axis.extent > 1) {
            let parts = parts(*axis, blocks);
            let mut choices = vec![vec![*axis]];
            let some = |set: u32| {
                parts.iter().enumerate().filter(move |(part, _)| set >> part & 1 == 1).map(|(_, part)| *part)
            };
            let all = (1 << parts.len()) - 1;
            choices.extend((0..=all).rev().skip(usize::from(parts.len() == 1)).map(|set| some(set).collect()));
            let longer = |set: &Vec<Axis>| choices.iter().map(|choice| [&set[..], choice].concat()).collect::<Vec<_>>();
            sets = sets.iter().flat_map(longer).collect();
        }
        let symmetry = |axes| Symmetry::new(axes, self.world_size()).expect("parts of a grid's axes make a grid");
        let mut symmetries: Vec<Symmetry> = sets.into_iter().map(symmetry).collect();
        symmetries.sort_by_key(|symmetry| std::cmp::Reverse(symmetry.order()));
        symmetries
    }
}

fn rotation(stride: u32, extent: u32) -> Axis {
    Axis { stride, extent, relabeling: Relabeling::Rotation }
}

/// An axis cut at the ends of `blocks` of consecutive ranks, which rise.
fn parts(axis: Axis, blocks: &[u32]) -> Vec<Axis> {
    let (mut stride, end) = (axis.stride, axis.stride * axis.extent);
    let mut parts = Vec::new();
    for &block in blocks {
        if block > stride && block < end && block.is_multiple_of(stride) && end.is_multiple_of(block) {
            parts.push(rotation(stride, block / stride));
            stride = block;
        }
    }
    parts.push(rotation(stride, end / stride));
    parts
}
