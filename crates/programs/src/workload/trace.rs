//! Owns the nodes of a rank: the computations and communications of one micro-batch in one model chunk, and their
//! dependencies. Nodes are made one chunk of a micro-batch at a time, on request.
//!
//! A rank's nodes form one chain, as the kernels of one CUDA stream do, except nodes that overlap it: messages between
//! stages, reductions of gradients and gathers of parameters. Those among replicas form a chain per group, as on a
//! communicator's own stream. If the launch of an operator costs CPU time, the launches form a chain of their own on
//! the CPU, and nodes of the device wait for it.

mod context;
mod experts;
mod overlap;

use super::layout::{GROUPS, Group, RankPosition};
use super::load::Routing;
use super::model::{LayerKind, Model};
use super::operators::{BackwardPart, Direction, Operators};
use super::schedule::{Item, Order, Slot, Task};
use super::{ELEMENT, LayerPosition, Phase, Recompute, Schedule, Spec, Unit};
use std::collections::{BTreeMap, VecDeque};
use uniference_formats::chakra::attributes::{
    COMM_DST, COMM_SIZE, COMM_SRC, COMM_TAG, COMM_TYPE, DTYPE, IS_CPU_OP, NUM_OPS, PG_NAME, TENSOR_SIZE,
};
use uniference_formats::chakra::groups::describe;
use uniference_formats::chakra::operators::write as write_operator;
use uniference_formats::chakra::own::{DURATION_PS, OPERATORS};
use uniference_formats::chakra::read::{Nodes, ReadError};
use uniference_formats::chakra::schema::{Attribute, CommType, Node, NodeType, StringList, Value};
use uniference_sim::program::DType;
use uniference_sim::time::SimDuration;

/// Iterator over one rank's nodes, in which each node comes after its dependencies. Ids ascend from 0.
pub struct Trace {
    spec: Spec,
    place: RankPosition,
    /// Remaining slots of a training step.
    order: Order,
    names: BTreeMap<Group, String>,
    ready: VecDeque<Node>,
    next_id: u64,
    stage: Stage,
    /// The end of the chain.
    last: Option<u64>,
    /// End of the chain before the previous item began: the next item's message may be received from then on.
    before: Option<u64>,
    /// New tokens of each sequence before the current item.
    decoded: u64,
    /// Additional dependencies of the next computation.
    awaited: Vec<u64>,
    /// The ends of the chains that overlap the main chain.
    overlapping: BTreeMap<Group, u64>,
    /// The end of the CPU's chain of launches.
    issued: Option<u64>,
    /// Routing of tokens in each layer so far.
    routings: BTreeMap<u32, Option<Routing>>,
    /// Number of messages so far in the ring of context-parallel ranks.
    passed: u64,
    label: String,
    /// The ends of all chains of one slot, after its last computation.
    ends: Vec<u64>,
    /// The current part of a backward pass.
    backward_part: BackwardPart,
}

/// The remaining steps of a micro-batch in one model chunk, and the end of its own chain.
struct Strand {
    item: Item,
    way: Direction,
    chunk: u32,
    /// The model chunk that receives the result.
    to: Option<u32>,
    label: String,
    steps: VecDeque<(Unit, LayerPart)>,
    /// Nodes that gather the parameters of the next unit.
    ahead: Option<Vec<u64>>,
    last: Option<u64>,
    awaited: Vec<u64>,
}

/// Part of a layer in one step: a layer has two parts, attention and the feed-forward network.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerPart {
    Whole,
    First,
    Second,
}

/// Kind of a collective, and for reductions the type of the elements, which libraries consider in their choice of an
/// algorithm.
#[derive(Clone, Copy)]
struct Kind {
    comm: CommType,
    adds: Option<DType>,
}

impl From<CommType> for Kind {
    fn from(comm: CommType) -> Kind {
        Kind { comm, adds: None }
    }
}

impl From<(CommType, DType)> for Kind {
    fn from((comm, dtype): (CommType, DType)) -> Kind {
        Kind { comm, adds: Some(dtype) }
    }
}

/// Progress of a trace.
enum Stage {
    Groups,
    Item(u64),
    End,
}

impl Unit {
    /// The first part of the names of the unit's nodes.
    fn label(self, item: &str) -> String {
        match self {
            Unit::Embedding => format!("{item}embedding."),
            Unit::Layer(layer) => format!("{item}l{}.", layer.within),
            Unit::Head => format!("{item}head."),
        }
    }
}

impl Trace {
    pub(super) fn new(spec: &Spec, rank: u32) -> Trace {
        let layout = spec.layout;
        let stage = layout.place(rank).stage;
        let train = spec.phase == Phase::Train;
        let of_use = |group: &Group| match group {
            Group::Copies => layout.shard.is_some() && train,
            Group::Opposite => spec.schedule == Schedule::DualPipe && train,
            Group::Pipeline => spec.clip_gradients && train,
            Group::Ends => spec.model.tied && train && (stage == 0 || stage + 1 == layout.pipeline),
            _ => true,
        };
        let shared = GROUPS.into_iter().filter(|group| layout.size(*group) > 1).filter(of_use);
        let name = |group: Group| (group, format!("{group:?}.{}", layout.members(group, rank)[0]).to_lowercase());
        Trace {
            spec: spec.clone(),
            place: layout.place(rank),
            order: spec.schedule.order(stage, layout.pipeline, spec.micro_batches()),
            names: shared.map(name).collect(),
            ready: VecDeque::new(),
            next_id: 0,
            stage: Stage::Groups,
            last: None,
            before: None,
            decoded: 0,
            awaited: Vec::new(),
            overlapping: BTreeMap::new(),
            issued: None,
            routings: BTreeMap::new(),
            passed: 0,
            label: String::new(),
            ends: Vec::new(),
            backward_part: BackwardPart::All,
        }
    }

    /// Makes the next few nodes.
    fn go_on(&mut self) {
        match self.stage {
            Stage::Groups => {
                for (group, name) in self.names.clone() {
                    let node = describe(&name, &self.spec.layout.members(group, self.place.rank));
                    self.push(node);
                }
                self.stage = Stage::Item(0);
            }
            Stage::Item(index) => match self.slot(index) {
                Some(slot) => {
                    self.carry_out(slot);
                    self.stage = Stage::Item(index + 1);
                }
                None => {
                    if self.spec.phase == Phase::Train {
                        self.update();
                    }
                    self.stage = Stage::End;
                }
            },
            Stage::End => {}
        }
    }

    fn slot(&mut self, index: u64) -> Option<Slot> {
        let Spec { schedule, layout, phase, .. } = &self.spec;
        let micro_batches = self.spec.micro_batches();
        match phase {
            Phase::Train => self.order.next(),
            Phase::Prefill | Phase::Decode => {
                let each = micro_batches * u64::from(schedule.chunks());
                let item = schedule.infer(index % each, layout.pipeline, micro_batches)?;
                let before = index / each;
                // Micro-batches are numbered across new tokens, so that tags of messages are unique.
                let micro_batch = before * micro_batches + item.micro_batch;
                let item = Item { micro_batch, ..item };
                (before < self.spec.new_tokens).then_some(Slot { item, beside: None })
            }
        }
    }

    // One micro-batch in one model chunk

    /// Makes the nodes of one item, or of two that overlap. The latter are two chains whose nodes are made alternately,
    /// half a layer of each at a time, so that the communication of one chain overlaps the computation of the other.
    fn carry_out(&mut self, Slot { item, beside }: Slot) {
        let began = self.last;
        if self.spec.layout.pipeline > 1 {
            // The CPU waits for the device before it exchanges messages (Megatron-LM, `p2p_communication.py`).
            self.issued = self.issued.and(self.last);
        }
        let awaited = std::mem::take(&mut self.awaited);
        let mut strands: Vec<Strand> = std::iter::once(item)
            .chain(beside)
            .map(|item| self.begin(item, beside.is_some(), awaited.clone()))
            .collect();
        // Overlapping items begin together, and their results are sent together, as in DualPipe's own program.
        if let [first, second] = &mut strands[..] {
            first.awaited.extend(&second.awaited);
            second.awaited.clone_from(&first.awaited);
        }
        while strands.iter().any(|strand| !strand.steps.is_empty()) {
            strands.iter_mut().for_each(|strand| self.within(strand, Trace::next_step));
        }
        self.ends = strands.iter().filter_map(|strand| strand.last).collect();
        strands.iter_mut().for_each(|strand| self.within(strand, Trace::end));
        self.last = strands[0].last;
        let others = self.ends.drain(..).skip(1);
        self.awaited = others.chain(strands.iter().flat_map(|strand| strand.awaited.iter().copied())).collect();
        self.before = began;
    }

    /// Runs `part` with the chain of a strand as the current chain.
    fn within(&mut self, strand: &mut Strand, part: impl FnOnce(&mut Trace, &mut Strand)) {
        let exchange = |trace: &mut Trace, strand: &mut Strand| {
            std::mem::swap(&mut trace.last, &mut strand.last);
            std::mem::swap(&mut trace.awaited, &mut strand.awaited);
        };
        exchange(self, strand);
        self.label.clone_from(&strand.label);
        self.backward_part = match strand.item.task {
            Task::Forward | Task::Backward => BackwardPart::All,
            Task::InputGradients => BackwardPart::Inputs,
            Task::WeightGradients => BackwardPart::Weights,
        };
        part(self, strand);
        self.backward_part = BackwardPart::All;
        exchange(self, strand);
    }

    fn begin(&mut self, item: Item, overlaps: bool, awaited: Vec<u64>) -> Strand {
        let layout = self.spec.layout;
        let chunk = self.spec.schedule.piece(item.chunk, self.place.stage, layout.pipeline);
        self.decoded = if item.task == Task::Forward { item.micro_batch / self.spec.micro_batches() } else { 0 };
        let mut units = self.spec.units(chunk, self.spec.layers(chunk));
        let before = chunk.checked_sub(1);
        let after = Some(chunk + 1).filter(|next| *next < self.spec.chunks());
        let (way, letter, from, to) = match item.task {
            Task::Forward => (Direction::Forward, 'f', before, after),
            Task::Backward | Task::InputGradients => (Direction::Backward, 'b', after, before),
            Task::WeightGradients => (Direction::Backward, 'w', None, None),
        };
        if way == Direction::Backward {
            units.reverse();
        }
        let parts = |unit: Unit| match unit {
            Unit::Layer(_) if overlaps => vec![(unit, LayerPart::First), (unit, LayerPart::Second)],
            _ => vec![(unit, LayerPart::Whole)],
        };
        let (steps, label) = (units.into_iter().flat_map(parts).collect(), format!("{letter}{}.", item.micro_batch));
        let mut strand = Strand { item, way, chunk, to, label, steps, ahead: None, last: self.last, awaited };
        if let Some(other) = from {
            self.within(&mut strand, |trace, _| trace.pass(chunk, other, item, way));
        }
        strand
    }

    fn next_step(&mut self, strand: &mut Strand) {
        let Some((unit, part)) = strand.steps.pop_front() else { return };
        let Strand { item, way, .. } = *strand;
        if self.spec.zero >= 3 && part != LayerPart::Second && item.task != Task::WeightGradients {
            let here = strand.ahead.take().unwrap_or_else(|| self.collect_unit(&strand.label, unit));
            let next = strand.steps.iter().map(|(next, _)| *next).find(|next| *next != unit);
            strand.ahead = next.map(|next| self.collect_unit(&strand.label, next));
            self.awaited.extend(here);
        }
        self.label.clone_from(&strand.label);
        match unit {
            Unit::Embedding => self.embedding(item, way),
            Unit::Layer(layer) => {
                self.label = unit.label(&strand.label);
                match (part, way) {
                    (LayerPart::Whole, _) => self.layer(layer, way),
                    (LayerPart::First, Direction::Forward) | (LayerPart::Second, Direction::Backward) => {
                        self.attention(way);
                    }
                    (LayerPart::Second, Direction::Forward) | (LayerPart::First, Direction::Backward) => {
                        self.feed_forward(layer, way);
                    }
                }
            }
            Unit::Head => self.head(item, way),
        }
        let complete = matches!(item.task, Task::Backward | Task::WeightGradients);
        if complete && part != LayerPart::First {
            self.gradients(item, unit);
        }
    }

    fn end(&mut self, strand: &mut Strand) {
        if let Some(other) = strand.to {
            self.pass(strand.chunk, other, strand.item, strand.way);
        }
    }

    fn embedding(&mut self, item: Item, way: Direction) {
        let tokens = self.spec.tokens();
        if self.decoded > 0 {
            self.next_token(item.micro_batch - self.spec.micro_batches(), true);
        }
        if way == Direction::Backward {
            self.gather_tokens(1);
        }
        self.compute("embedding", |model, operators| model.embedding(operators, tokens, way));
        if way == Direction::Forward {
            self.sum_tokens(1);
        }
    }

    fn head(&mut self, item: Item, way: Direction) {
        // Inference needs the scores of only the last token of a prompt.
        let Spec { phase, micro_batch, .. } = self.spec;
        let tokens = if phase == Phase::Train { self.spec.tokens() } else { micro_batch };
        let (tensor, loss) = (self.tensor(), phase == Phase::Train);
        let share = if self.spec.layout.sequence_parallel { tensor } else { 1 };
        let normalized = tokens.div_ceil(share);
        if way == Direction::Forward {
            self.compute("norm", |model, operators| model.last_norm(operators, normalized, way));
            if loss {
                self.gather_tokens(1);
            }
        }
        self.compute("head", |model, operators| model.head(operators, tokens, tensor, loss, way));
        match (way, phase) {
            // Each rank has a part of the vocabulary: the loss needs three float32 numbers per token, the maximum of
            // the scores, the sum of their exponentials and the score of the right token.
            (Direction::Forward, Phase::Train) => {
                self.collective(Group::Tensor, (CommType::AllReduce, DType::Float32), "loss", 12 * tokens)
            }
            (Direction::Forward, _) if self.decoded + 1 < self.spec.new_tokens => {
                self.next_token(item.micro_batch, false)
            }
            (Direction::Forward, _) => {}
            (Direction::Backward, _) => {
                self.sum_tokens(1);
                self.compute("norm", |model, operators| model.last_norm(operators, normalized, way));
            }
        }
    }

    /// A message with the activations of a micro-batch, or their gradients, between two model chunks.
    fn pass(&mut self, chunk: u32, other: u32, item: Item, way: Direction) {
        let layout = self.spec.layout;
        let receives = (other < chunk) == (way == Direction::Forward);
        let receiver = if receives { chunk } else { other };
        let direction = u64::from(way == Direction::Backward);
        let tag = (item.micro_batch * u64::from(self.spec.chunks()) + u64::from(receiver)) * 2 + direction;
        let share = if layout.sequence_parallel { self.tensor() } else { 1 };
        let bytes = ELEMENT * self.spec.tokens() * self.spec.model.hidden / share;
        let stage = self.spec.schedule.stage_of(other, item.chunk, self.place.stage, layout.pipeline);
        self.message(receives, stage, tag, bytes);
    }

    /// A message from the last stage to the first one with the new tokens of a micro-batch: four bytes per token.
    fn next_token(&mut self, micro_batch: u64, receives: bool) {
        let stages = self.spec.layout.pipeline;
        if stages > 1 {
            // Tags of backward messages are free: inference has no backward pass.
            let tag = micro_batch * u64::from(self.spec.chunks()) * 2 + 1;
            self.message(receives, if receives { stages - 1 } else { 0 }, tag, 4 * self.spec.tokens());
        }
    }

    /// A message to or from the rank of another stage at this rank's position.
    fn message(&mut self, receives: bool, stage: u32, tag: u64, bytes: u64) {
        let peer = self.spec.layout.at_stage(self.place, stage);
        let (kind, what, end, after) = match receives {
            true => (NodeType::CommRecv, "recv", COMM_SRC, self.before.into_iter().collect()),
            false if self.ends.is_empty() => (NodeType::CommSend, "send", COMM_DST, self.last.into_iter().collect()),
            false => (NodeType::CommSend, "send", COMM_DST, self.ends.clone()),
        };
        let attributes = [(end, u64::from(peer)), (COMM_TAG, tag), (COMM_SIZE, bytes)];
        let id = self.node(kind, what, after, &attributes);
        if receives {
            self.awaited.push(id);
        }
    }

    fn layer(&mut self, layer: LayerPosition, way: Direction) {
        match way {
            Direction::Forward => {
                self.attention(way);
                self.feed_forward(layer, way);
            }
            Direction::Backward => {
                if self.spec.recompute == Recompute::Full {
                    self.again(|trace| {
                        trace.attention(Direction::Forward);
                        trace.feed_forward(layer, Direction::Forward);
                    });
                }
                self.feed_forward(layer, way);
                self.attention(way);
            }
        }
    }

    /// Recomputes a part of the forward pass.
    fn again(&mut self, part: impl Fn(&mut Trace)) {
        let label = self.label.clone();
        self.label.push_str("again.");
        part(self);
        self.label = label;
    }

    /// Forward: norm, gather of tokens, attention, reduction. Backward: the same steps in reverse order, with
    /// reductions in place of gathers.
    fn attention(&mut self, way: Direction) {
        let tensor = self.tensor();
        let projection =
            |model: &Model, operators: &mut Operators, tokens| model.projection(operators, tokens, tensor, way);
        match way {
            Direction::Forward => {
                self.norm(way);
                self.queries_and_keys(way);
                self.attend(way, false);
                self.scattered("projection", projection);
            }
            Direction::Backward => {
                self.gathered("projection", projection);
                if self.spec.recompute == Recompute::Selective {
                    self.again(|trace| trace.attend(Direction::Forward, true));
                }
                self.attend(way, false);
                self.queries_and_keys(way);
                self.norm(way);
            }
        }
    }

    fn feed_forward(&mut self, layer: LayerPosition, way: Direction) {
        if way == Direction::Forward {
            self.norm(way);
        }
        match self.spec.model.kind(layer.number) {
            LayerKind::Dense => self.network(LayerKind::Dense, ["ffn.in", "ffn.out"], way),
            LayerKind::Experts => self.experts(layer, way),
        }
        if way == Direction::Backward {
            self.norm(way);
        }
    }

    /// The dense network, which every token passes through.
    fn network(&mut self, kind: LayerKind, [into, out]: [&str; 2], way: Direction) {
        let width = self.spec.model.dense_ffn(kind) / self.tensor();
        let first = |model: &Model, operators: &mut Operators, tokens| {
            model.feed_forward_in(operators, [1, tokens, width], way);
        };
        let second = |model: &Model, operators: &mut Operators, tokens| {
            model.feed_forward_out(operators, [1, tokens, width], way);
        };
        match way {
            Direction::Forward => {
                self.gathered(into, first);
                self.scattered(out, second);
            }
            Direction::Backward => {
                self.gathered(out, second);
                self.scattered(into, first);
            }
        }
    }

    fn norm(&mut self, way: Direction) {
        let share = if self.spec.layout.sequence_parallel { self.tensor() } else { 1 };
        let tokens = self.spec.tokens() / share;
        self.compute("norm", |model, operators| model.norm(operators, tokens, way));
    }

    /// Gathers tokens before matrices that are sharded over tensor-parallel ranks: with sequence parallelism each rank
    /// has a part of the tokens, otherwise all.
    fn gather_tokens(&mut self, copies: u64) {
        if self.spec.layout.sequence_parallel {
            let bytes = self.stream_bytes() * copies / self.tensor();
            self.collective(Group::Tensor, CommType::AllGather, "tokens", bytes);
        }
    }

    /// Reduces the result of such matrices, of which every rank has a summand: an all-reduce for every two matrices,
    /// forward and backward (Shoeybi et al., "Megatron-LM", 2019), or with sequence parallelism a reduce-scatter
    /// (Korthikanti et al., 2022).
    fn sum_tokens(&mut self, copies: u64) {
        let sequence_parallel = self.spec.layout.sequence_parallel;
        let kind = if sequence_parallel { CommType::ReduceScatter } else { CommType::AllReduce };
        self.collective(Group::Tensor, (kind, self.dtype()), "sum", self.stream_bytes() * copies);
    }

    fn stream_bytes(&self) -> u64 {
        ELEMENT * self.spec.tokens() * self.spec.model.hidden
    }

    // Replicas

    /// Reduces gradients over replicas, by all-reduce, or with ZeRO, by reduce-scatter: after the last micro-batch, or
    /// from ZeRO's stage 2 on, after each one (Rajbhandari et al., "ZeRO", 2020, section 7).
    fn gradients(&mut self, item: Item, unit: Unit) {
        let (dense, experts) = self.spec.parameters(unit);
        let Spec { zero, gradient_bytes, .. } = self.spec;
        if self.spec.micro_batches() > 1 && zero < 3 {
            let part = std::mem::take(&mut self.backward_part);
            self.compute("accumulate", |_, operators| operators.accumulate(dense + experts, gradient_bytes));
            self.backward_part = part;
        }
        if zero < 2 && !self.spec.schedule.is_last(item, self.spec.micro_batches()) {
            return;
        }
        if zero < 2 && !self.spec.implementation.overlap_gradients {
            return;
        }
        self.sum_gradients(dense, experts);
    }

    fn sum_gradients(&mut self, dense: u64, experts: u64) {
        let Spec { zero, gradient_bytes, .. } = self.spec;
        let kind = if zero == 0 { CommType::AllReduce } else { CommType::ReduceScatter };
        let (layout, dtype) = (self.spec.layout, self.gradient_dtype());
        let both = (dense + experts) * gradient_bytes;
        let summed = self.beside(Group::Opposite, (CommType::AllReduce, dtype), "opposite gradients", both);
        for (group, what, parameters, shards) in [
            (Group::Replicas, "gradients", dense, layout.dense_shards()),
            (Group::ExpertReplicas, "expert gradients", experts, layout.expert_shards()),
        ] {
            let shard = self.beside_after(group, (kind, dtype), what, parameters * gradient_bytes, summed);
            if layout.shard.is_some() {
                let bytes = parameters.div_ceil(u64::from(shards)) * gradient_bytes;
                let scattered = shard.or(summed);
                let (sum, what) = ((CommType::AllReduce, dtype), format!("copied {what}"));
                self.beside_after(Group::Copies, sum, &what, bytes, scattered);
            }
        }
    }

    /// Gathers the parameters of a unit; returns the nodes that its computations depend on.
    fn collect_unit(&mut self, label: &str, unit: Unit) -> Vec<u64> {
        let (dense, experts) = self.spec.parameters(unit);
        self.label = unit.label(label);
        self.collect(dense, experts)
    }

    fn collect(&mut self, dense: u64, experts: u64) -> Vec<u64> {
        let layout = self.spec.layout;
        let shard = |parameters: u64, ranks: u32| ELEMENT * parameters.div_ceil(u64::from(ranks));
        let dense = shard(dense, layout.dense_shards());
        let experts = shard(experts, layout.expert_shards());
        let ids = [
            self.beside(Group::Replicas, CommType::AllGather, "parameters", dense),
            self.beside(Group::ExpertReplicas, CommType::AllGather, "expert parameters", experts),
        ];
        ids.into_iter().flatten().collect()
    }

    /// Optimizer step after the reduction of all gradients; with sharded optimizer states, a gather of the updated
    /// parameters follows.
    fn update(&mut self) {
        self.label = String::new();
        let Spec { layout, zero, gradient_bytes, .. } = self.spec;
        let (dense, experts) = self.spec.stage_parameters(self.place.stage);
        let own = |parameters: u64, ranks: u32| parameters.div_ceil(if zero > 0 { u64::from(ranks) } else { 1 });
        let updated = own(dense, layout.dense_shards()) + own(experts, layout.expert_shards());
        if zero < 2 && !self.spec.implementation.overlap_gradients {
            self.sum_gradients(dense, experts);
        }
        self.awaited.extend(self.overlapping.values());
        let sum = (CommType::AllReduce, self.gradient_dtype());
        if layout.sequence_parallel {
            // Each tensor-parallel rank has processed different tokens, so its gradients of replicated parameters are
            // summands (Megatron-LM, `finalize_model_grads.py`).
            let replicated = own(self.spec.replicated_parameters(self.place.stage), layout.dense_shards());
            self.collective(Group::Tensor, sum, "replicated gradients", replicated * gradient_bytes);
        }
        let table = self.spec.model.embedding_parameters().div_ceil(self.tensor());
        self.collective(Group::Ends, sum, "tied gradients", table * gradient_bytes);
        if self.spec.clip_gradients {
            self.clip(updated);
        }
        self.compute("optimizer", |_, operators| operators.optimizer(updated, gradient_bytes));
        if matches!(zero, 1 | 2) {
            self.collect(dense, experts);
        }
    }

    /// Sums the squares of this rank's `own` gradients, then those of all ranks with other gradients, one axis after
    /// the other, and scales the gradients (Pascanu et al., "On the difficulty of training recurrent neural networks",
    /// 2013, section 3.2).
    fn clip(&mut self, own: u64) {
        let each = self.spec.gradient_bytes;
        self.compute("squares", |_, operators| operators.squares(own, each));
        let sharded = if self.spec.zero > 0 { Group::Replicas } else { Group::Expert };
        for group in [Group::Tensor, sharded, Group::Pipeline] {
            self.collective(group, (CommType::AllReduce, DType::Float32), "gradient norm", 4);
        }
        self.compute("clip", |_, operators| operators.scale(own, each));
    }

    // Nodes

    fn tensor(&self) -> u64 {
        u64::from(self.spec.layout.tensor)
    }

    /// Adds a node with the operators that `part` lists.
    fn compute(&mut self, what: &str, part: impl FnOnce(&Model, &mut Operators)) {
        let mut operators = Operators::new(self.spec.implementation, self.spec.phase);
        operators.part = self.backward_part;
        part(&self.spec.model, &mut operators);
        if self.backward_part == BackwardPart::Weights && operators.list().is_empty() {
            return;
        }
        self.issue(what, operators.list().len() as u64);
        let dependencies = self.last.into_iter().chain(self.issued).chain(self.awaited.drain(..)).collect();
        let attributes = [(NUM_OPS, operators.flops()), (TENSOR_SIZE, operators.bytes())];
        let id = self.node(NodeType::Comp, what, dependencies, &attributes);
        let values = operators.list().iter().map(write_operator).collect();
        let list = Attribute::new(OPERATORS, Value::StringList(StringList { values }));
        self.ready.back_mut().expect("just made").attr.push(list);
        self.last = Some(id);
    }

    /// Adds the launches of `operators` operators to the CPU's chain.
    fn issue(&mut self, what: &str, operators: u64) {
        let host = self.spec.implementation.host;
        if host == SimDuration::ZERO {
            return;
        }
        let duration = SimDuration::from_ps(host.as_ps().saturating_mul(operators));
        let node = Node {
            name: format!("{}{what}.issue", self.label),
            r#type: NodeType::Comp.into(),
            data_deps: self.issued.into_iter().collect(),
            duration_micros: duration.as_ps() / 1_000_000,
            attr: vec![
                Attribute::new(IS_CPU_OP, Value::Bool(true)),
                Attribute::new(DURATION_PS, Value::Uint64(duration.as_ps())),
            ],
            ..Node::default()
        };
        self.issued = Some(self.push(node));
    }

    /// Adds a collective to the chain. `bytes` as in Chakra: each rank's shard for an all-gather, otherwise all blocks
    /// together, rounded up to equal parts of whole elements.
    fn collective(&mut self, group: Group, kind: impl Into<Kind>, what: &str, bytes: u64) {
        // In a split backward pass, the part that computes gradients of weights needs no collectives.
        if self.backward_part != BackwardPart::Weights && self.meets(group, bytes) {
            self.issue(what, 1);
            let dependencies = self.last.into_iter().chain(self.issued).chain(self.awaited.drain(..)).collect();
            self.last = Some(self.meet(group, kind, what, bytes, dependencies));
        }
    }

    /// Adds a collective that overlaps the chain, after the chain's current end.
    fn beside(&mut self, group: Group, kind: impl Into<Kind>, what: &str, bytes: u64) -> Option<u64> {
        self.beside_after(group, kind, what, bytes, None)
    }

    /// Adds a collective that overlaps the chain, after the chain's current end and after `other`.
    fn beside_after(
        &mut self,
        group: Group,
        kind: impl Into<Kind>,
        what: &str,
        bytes: u64,
        other: Option<u64>,
    ) -> Option<u64> {
        if !self.meets(group, bytes) {
            return None;
        }
        self.issue(what, 1);
        let before = self.overlapping.get(&group).copied();
        let dependencies = self.last.into_iter().chain(self.issued).chain(before).chain(other).collect();
        let id = self.meet(group, kind, what, bytes, dependencies);
        self.overlapping.insert(group, id);
        Some(id)
    }

    /// Whether the group has more than one rank, and there are bytes to communicate.
    fn meets(&self, group: Group, bytes: u64) -> bool {
        bytes > 0 && self.names.contains_key(&group)
    }

    fn meet(&mut self, group: Group, kind: impl Into<Kind>, what: &str, bytes: u64, dependencies: Vec<u64>) -> u64 {
        let Kind { comm, adds } = kind.into();
        assert_eq!(adds.is_some(), matches!(comm, CommType::AllReduce | CommType::ReduceScatter), "{what}");
        let parts = if comm == CommType::AllGather { 1 } else { u64::from(self.spec.layout.size(group)) };
        let equal = parts * adds.map_or(1, DType::size);
        let attributes = [(COMM_TYPE, comm as u64), (COMM_SIZE, bytes.next_multiple_of(equal))];
        let id = self.node(NodeType::CommColl, what, dependencies, &attributes);
        let name = Value::String(self.names[&group].clone());
        let node = self.ready.back_mut().expect("just made");
        node.attr.push(Attribute::new(PG_NAME, name));
        node.attr.extend(adds.map(|dtype| Attribute::new(DTYPE, Value::String(dtype.name().to_owned()))));
        id
    }

    /// Type of the elements of activations.
    fn dtype(&self) -> DType {
        self.spec.implementation.dtype
    }

    fn gradient_dtype(&self) -> DType {
        if self.spec.gradient_bytes == ELEMENT { self.dtype() } else { DType::Float32 }
    }

    fn node(&mut self, kind: NodeType, what: &str, dependencies: Vec<u64>, attributes: &[(&str, u64)]) -> u64 {
        let on_host = Attribute::new(IS_CPU_OP, Value::Bool(false));
        // The integer types are those of Chakra's own generators.
        let number = |(name, value): &(&str, u64)| Attribute::new(name, Value::Int64(*value as i64));
        self.push(Node {
            name: format!("{}{what}", self.label),
            r#type: kind.into(),
            data_deps: dependencies,
            attr: std::iter::once(on_host).chain(attributes.iter().map(number)).collect(),
            ..Node::default()
        })
    }

    fn push(&mut self, node: Node) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.ready.push_back(Node { id, ..node });
        id
    }
}

impl Iterator for Trace {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        while self.ready.is_empty() && !matches!(self.stage, Stage::End) {
            self.go_on();
        }
        self.ready.pop_front()
    }
}

/// Generation never fails.
impl Nodes for Trace {
    fn next_node(&mut self) -> Result<Option<Node>, ReadError> {
        Ok(self.next())
    }
}
