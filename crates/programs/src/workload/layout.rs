//! Owns the positions of ranks in a job: the parallel degrees, the groups of each rank, and the equivalent ranks. It
//! does not know the work of ranks.
//!
//! Ranks are numbered as in Megatron-LM, with tensor parallelism innermost: `rank = t + T (c + C (e + E (d + D/E p)))`
//! with T tensor-, C context-, E expert-, D data-parallel ranks (which include the expert-parallel ones) and p the
//! pipeline's stage.

use super::Unlike;
use uniference_sim::symmetry::{Axis, Relabeling, Symmetry};

/// Parallel degrees of a job and related options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of ranks that each matrix is sharded over.
    pub tensor: u32,
    /// Number of ranks that each sequence is split over.
    pub context: u32,
    /// Number of ranks that experts are distributed over; they process different data.
    pub expert: u32,
    /// Number of ranks that process different data, at one position along the tensor, context and pipeline axes.
    pub data: u32,
    /// Number of stages that layers are distributed over.
    pub pipeline: u32,
    /// Whether tensor-parallel ranks also split the tokens between matrices (Korthikanti et al., "Reducing activation
    /// recomputation in large transformer models", 2022).
    pub sequence_parallel: bool,
    /// Number of ranks over which ZeRO shards parameters, gradients or optimizer states, if less than all replicas:
    /// neighbours along the context and data axes. Other ranks hold copies of their shards (PyTorch's `HYBRID_SHARD`;
    /// Zhao et al., "PyTorch FSDP", 2023, section 3.2.2).
    pub shard: Option<u32>,
    /// Communication of keys and values among context-parallel ranks.
    pub context_method: ContextMethod,
    /// Distribution of a sequence over context-parallel ranks.
    pub context_order: ContextOrder,
}

/// Communication of keys and values among context-parallel ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextMethod {
    /// Keys and values of all ranks are gathered before attention ("The Llama 3 herd of models", 2024, section 3.3.2).
    #[default]
    AllGather,
    /// Keys and values circulate in a ring, while each rank computes attention to those that it currently holds (Liu et
    /// al., "Ring attention with blockwise transformers for near-infinite context", 2023).
    Ring,
}

/// Distribution of a sequence over context-parallel ranks. A token attends to earlier tokens, so the last part of a
/// sequence needs the most work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextOrder {
    /// The sequence has twice as many parts as there are ranks, and the n-th rank holds the n-th part and the n-th from
    /// the end: all ranks have equal work.
    #[default]
    Zigzag,
    /// The sequence has as many parts as there are ranks, and the n-th rank holds the n-th part.
    Contiguous,
}

/// The position of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPosition {
    /// The rank's number.
    pub rank: u32,
    /// Pipeline stage of the rank.
    pub stage: u32,
    /// Index of the rank among the context-parallel ranks.
    pub context: u32,
    /// Index of the rank among the expert-parallel ranks.
    pub expert: u32,
}

/// A process group of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    Tensor,
    Context,
    Expert,
    /// Ranks with the same parameters except experts: those along the data and context axes. With [`Layout::shard`],
    /// only that many of them.
    Replicas,
    /// Ranks with the same experts; with [`Layout::shard`], groups of only that many of these ranks.
    ExpertReplicas,
    /// Ranks with the same shards; exists only with [`Layout::shard`].
    Copies,
    /// A stage and its mirror image in the pipeline, if both have the same model chunks.
    Opposite,
    /// All stages of the pipeline.
    Pipeline,
    /// The first and the last stage; other stages do not have this group.
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
    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.checked_size().expect("layouts are checked")
    }

    /// Number of ranks; `None`: an axis is empty, or there are more than 2^20 ranks.
    pub(super) fn checked_size(&self) -> Option<u32> {
        let axes = [self.tensor, self.context, self.data, self.pipeline, self.expert];
        let size = axes[..4].iter().try_fold(1_u32, |size, axis| size.checked_mul(*axis));
        size.filter(|size| *size <= 1 << 20 && !axes.contains(&0))
    }

    /// The position of `rank`.
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

    /// The rank at the same position of another stage.
    pub(super) fn at_stage(&self, RankPosition { rank, stage, .. }: RankPosition, other: u32) -> u32 {
        rank - stage * self.stage_size() + other * self.stage_size()
    }

    /// The rank that is `after` positions behind this one in the ring of context-parallel ranks.
    pub(super) fn at_context(&self, RankPosition { rank, context, .. }: RankPosition, after: u32) -> u32 {
        rank - context * self.tensor + (context + after) % self.context * self.tensor
    }

    /// Number of ranks with the same parameters except experts.
    pub fn dense_replicas(&self) -> u32 {
        self.context * self.data
    }

    /// Number of ranks with the same experts.
    pub fn expert_replicas(&self) -> u32 {
        self.context * self.data / self.expert
    }

    /// Number of ranks over which ZeRO shards parameters that are not experts.
    pub(super) fn dense_shards(&self) -> u32 {
        self.shard.unwrap_or(self.dense_replicas())
    }

    /// Number of ranks over which ZeRO shards experts.
    pub(super) fn expert_shards(&self) -> u32 {
        self.shard.unwrap_or(self.expert_replicas())
    }

    pub(super) fn size(&self, group: Group) -> u32 {
        self.axes(group).map(|(_, extent)| extent).product()
    }

    /// The ranks of a group of `rank`, ascending.
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

    /// The axes of a group as stride and extent, the innermost first.
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
            // Only the size of this group is right: `members` computes the group's ranks.
            Group::Opposite => whole(self.stage_size(), self.pipeline.min(2)),
            Group::Pipeline => whole(self.stage_size(), self.pipeline),
            Group::Ends => whole(self.stage_size() * (self.pipeline - 1).max(1), self.pipeline.min(2)),
        }
        .into_iter()
    }

    /// The axes along which ranks are equivalent. Training reduces gradients along data and context together: a shift
    /// along only one of the two axes is no rotation of that group, unless the other axis has one position; a shift
    /// along the outer axis is one. With shards over some of the replicas, shifts move positions within a group of
    /// shards, and whole groups.
    pub(super) fn symmetry(&self, train: bool, unlike: Unlike) -> Symmetry {
        let [tensor, context, expert, replicas] = self.shifted(unlike);
        let context = Some(context).filter(|_| !train || self.data == 1);
        let expert = Some(expert).filter(|_| !train || (self.context == 1 && replicas.extent == 1));
        let axes: Vec<Axis> = [Some(tensor), context, expert, Some(replicas)].into_iter().flatten().collect();
        Symmetry::new(self.cut(&axes), self.world_size()).expect("strides are products of the extents before them")
    }

    /// Splits axes at the ends of groups of [`Layout::shard`].
    pub(super) fn cut(&self, axes: &[Axis]) -> Vec<Axis> {
        let ends: Vec<u32> = self.shard.map(|shard| self.tensor * shard).into_iter().collect();
        axes.iter().flat_map(|axis| parts(*axis, &ends)).collect()
    }

    /// The axes except the pipeline's, along which ranks are equivalent apart from reductions over several axes. An
    /// axis whose ranks differ has extent 1.
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

    /// Symmetries along some of `axes`, or parts of an axis: those with the most ranks per class first, the one along
    /// no axis last. An axis that extends beyond one of `blocks` of consecutive ranks has parts: positions within a
    /// block, and blocks. A group extends along all of an axis or lies at one position of it, so ranks are also
    /// equivalent after a shift along a part.
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

/// Splits an axis at the ends of `blocks` of consecutive ranks, which ascend.
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
