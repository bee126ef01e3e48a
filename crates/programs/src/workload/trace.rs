//! Owns a rank's nodes: which computations and communications one micro-batch through one piece of the model is made of, and how they
//! depend on each other. Nodes are made one such piece at a time, when they are asked for.
//!
//! A rank's nodes form one chain, as the kernels of one stream do, but for what overlaps it: messages between stages, and, of replicas,
//! sums of gradients and collections of parameters. These form a chain for each group, as on a communicator's own stream. Where issuing an
//! operator takes the host time, that is a chain of its own on the host's processor, which nodes of the device wait for.

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

/// One rank's nodes, in an order in which each comes after those it depends on. Ids rise from 0.
pub struct Trace {
    spec: Spec,
    place: RankPosition,
    /// What is left of a training step.
    order: Order,
    names: BTreeMap<Group, String>,
    ready: VecDeque<Node>,
    next_id: u64,
    stage: Stage,
    /// The end of the chain.
    last: Option<u64>,
    /// Where the item before the present one began: when its successor's message may be awaited.
    before: Option<u64>,
    /// Tokens that each sequence has got before the present item.
    decoded: u64,
    /// What the next computation waits for besides.
    awaited: Vec<u64>,
    /// The ends of the chains that overlap.
    overlapping: BTreeMap<Group, u64>,
    /// The end of the host's chain.
    issued: Option<u64>,
    /// Where tokens go in each layer that came up so far.
    routings: BTreeMap<u32, Option<Routing>>,
    /// Messages round the ring of context-parallel ranks so far.
    passed: u64,
    label: String,
    /// The ends of the chains of one slot, once they are made.
    ends: Vec<u64>,
    /// What of a backward pass is computed at present.
    backward_part: BackwardPart,
}

/// A micro-batch's way through a piece, as far as it is not made, and its own end of the chain.
struct Strand {
    item: Item,
    way: Direction,
    chunk: u32,
    /// The piece that it goes to.
    to: Option<u32>,
    label: String,
    steps: VecDeque<(Unit, LayerPart)>,
    /// Parameters of the next unit, that are on their way.
    ahead: Option<Vec<u64>>,
    last: Option<u64>,
    awaited: Vec<u64>,
}

/// What of a layer is made at once: attention and the feed-forward network are a part each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerPart {
    Whole,
    First,
    Second,
}

/// What a collective does, and the type of the elements that it adds up: libraries choose their algorithms by it. What is only moved has none.
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

/// How far a trace is.
enum Stage {
    Groups,
    Item(u64),
    End,
}

impl Unit {
    /// How its nodes' names begin.
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
                // Micro-batches are numbered on, so that no two messages have one tag.
                let micro_batch = before * micro_batches + item.micro_batch;
                let item = Item { micro_batch, ..item };
                (before < self.spec.new_tokens).then_some(Slot { item, beside: None })
            }
        }
    }

    // One micro-batch through one piece

    /// Alone, or two that overlap: these are two chains from one node to the next, made half a layer of each in turn, so that the communication
    /// of one has the computation of the other beside it.
    fn carry_out(&mut self, Slot { item, beside }: Slot) {
        let began = self.last;
        if self.spec.layout.pipeline > 1 {
            // The host waits for the device before it exchanges messages (Megatron-LM, `p2p_communication.py`).
            self.issued = self.issued.and(self.last);
        }
        let awaited = std::mem::take(&mut self.awaited);
        let mut strands: Vec<Strand> = std::iter::once(item)
            .chain(beside)
            .map(|item| self.begin(item, beside.is_some(), awaited.clone()))
            .collect();
        // What overlaps begins and is passed on together, as in DualPipe's own program.
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

    /// `part` on the chain of a strand.
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
        // Of a prompt only the last token's successor is asked for.
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
            // Each rank has a part of the vocabulary: the largest score, the sum of all and the right one's are three numbers a token.
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

    /// The stream of a micro-batch, or its gradient, goes from one piece to the next.
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

    /// The last stage tells the first which tokens a micro-batch has got: four bytes each.
    fn next_token(&mut self, micro_batch: u64, receives: bool) {
        let stages = self.spec.layout.pipeline;
        if stages > 1 {
            // No piece receives anything backwards here.
            let tag = micro_batch * u64::from(self.spec.chunks()) * 2 + 1;
            self.message(receives, if receives { stages - 1 } else { 0 }, tag, 4 * self.spec.tokens());
        }
    }

    /// To or from the rank at this one's place of another stage.
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

    /// What was carried out forwards, and not kept.
    fn again(&mut self, part: impl Fn(&mut Trace)) {
        let label = self.label.clone();
        self.label.push_str("again.");
        part(self);
        self.label = label;
    }

    /// Forward: normalise, collect tokens, attend, sum. Backward: the same from its end, where what was collected is summed.
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

    /// The network that sees every token.
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

    /// Before matrices that tensor-parallel ranks share: with sequence parallelism each has a part of the tokens, otherwise all.
    fn gather_tokens(&mut self, copies: u64) {
        if self.spec.layout.sequence_parallel {
            let bytes = self.stream_bytes() * copies / self.tensor();
            self.collective(Group::Tensor, CommType::AllGather, "tokens", bytes);
        }
    }

    /// After them: every rank has a summand. An all-reduce for each two matrices, forwards and backwards (Shoeybi et al., "Megatron-LM",
    /// 2019), or the same as two halves (Korthikanti et al., 2022).
    fn sum_tokens(&mut self, copies: u64) {
        let sequence_parallel = self.spec.layout.sequence_parallel;
        let kind = if sequence_parallel { CommType::ReduceScatter } else { CommType::AllReduce };
        self.collective(Group::Tensor, (kind, self.dtype()), "sum", self.stream_bytes() * copies);
    }

    fn stream_bytes(&self) -> u64 {
        ELEMENT * self.spec.tokens() * self.spec.model.hidden
    }

    // Replicas

    /// Sums gradients over replicas: all-reduced, or each rank's shard of them; of the last micro-batch, or where gradients are sharded,
    /// of each (Rajbhandari et al., "ZeRO", 2020, section 7).
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

    /// Collects the parameters of a part of the model; what its computations must wait for.
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

    /// Once all gradients are there: the optimizer, and with sharded states the new parameters of the others.
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
            // Each tensor-parallel rank has seen other tokens, so its gradients of what all of them have are summands (Megatron-LM,
            // `finalize_model_grads.py`).
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

    /// Squares of this rank's `own` gradients are added up, then those of all ranks that have others, one axis after the other, and
    /// gradients are scaled (Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, section 3.2).
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

    /// Runs the operators that `part` lists.
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

    /// The host comes to so many operators, one after the other.
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

    /// In the chain. `bytes` as Chakra counts them: of an all-gather each rank's shard, otherwise the whole, which is filled up to equal
    /// parts of whole elements.
    fn collective(&mut self, group: Group, kind: impl Into<Kind>, what: &str, bytes: u64) {
        // Gradients of weights need nothing of other ranks.
        if self.backward_part != BackwardPart::Weights && self.meets(group, bytes) {
            self.issue(what, 1);
            let dependencies = self.last.into_iter().chain(self.issued).chain(self.awaited.drain(..)).collect();
            self.last = Some(self.meet(group, kind, what, bytes, dependencies));
        }
    }

    /// Beside the chain, after what is in it so far.
    fn beside(&mut self, group: Group, kind: impl Into<Kind>, what: &str, bytes: u64) -> Option<u64> {
        self.beside_after(group, kind, what, bytes, None)
    }

    /// The same, after `other`, too.
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

    /// Is there anybody to meet, and anything to say?
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
        // As Chakra's own generators write them.
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

/// Nothing can go wrong.
impl Nodes for Trace {
    fn next_node(&mut self) -> Result<Option<Node>, ReadError> {
        Ok(self.next())
    }
}
