//! Owns the preparation of attention's inputs: queries, keys and values from the residual stream or from latent
//! vectors, and the keys and values of other context-parallel ranks, gathered or passed round a ring.

use super::super::layout::{ContextMethod, ContextOrder, Group};
use super::super::model::{Attention, Latent, Model};
use super::super::operators::{BackwardPart, Direction, Operators};
use super::super::{ELEMENT, Layout, Phase, Spec};
use super::Trace;
use uniference_formats::chakra::attributes::{COMM_DST, COMM_SIZE, COMM_SRC, COMM_TAG, PG_NAME};
use uniference_formats::chakra::schema::{Attribute, CommType, NodeType, Value};

impl Trace {
    /// Queries, keys and values of this rank's tokens; in the backward pass, the gradients of the residual stream.
    pub(super) fn queries_and_keys(&mut self, way: Direction) {
        if let Some(latent) = self.spec.model.latent {
            return self.latent_queries_and_keys(latent, way);
        }
        let tensor = self.tensor();
        let part =
            |model: &Model, operators: &mut Operators, tokens| model.query_key_value(operators, tokens, tensor, way);
        match way {
            Direction::Forward => self.gathered("qkv", part),
            Direction::Backward => self.scattered("qkv", part),
        }
    }

    /// Down projections are replicated on tensor-parallel ranks, and up projections are sharded over them. With
    /// sequence parallelism each rank projects its own tokens down, and latent vectors are gathered instead of the
    /// residual stream, which is gathered too if queries are made of it (Megatron-LM, `multi_latent_attention.py`). The
    /// backward pass reduces the gradients of the same tensors.
    fn latent_queries_and_keys(&mut self, latent: Latent, way: Direction) {
        let (tokens, tensor) = (self.spec.tokens(), self.tensor());
        let sequence_parallel = self.spec.layout.sequence_parallel;
        let decode = self.spec.phase == Phase::Decode;
        let own = tokens / if sequence_parallel { tensor } else { 1 };
        let down = |model: &Model, operators: &mut Operators| model.latent_down(operators, latent, own, way);
        let up = |model: &Model, operators: &mut Operators| {
            model.latent_up(operators, latent, [tokens, tensor], decode, way);
        };
        let narrow = ELEMENT * tokens * latent.narrow();
        match way {
            Direction::Forward => {
                self.compute("latent.down", down);
                if sequence_parallel {
                    self.collective(Group::Tensor, CommType::AllGather, "latent", narrow / tensor);
                }
                if latent.query_rank == 0 {
                    self.gather_tokens(1);
                }
                self.compute("latent.up", up);
            }
            Direction::Backward => {
                self.compute("latent.up", up);
                let kind = if sequence_parallel { CommType::ReduceScatter } else { CommType::AllReduce };
                self.collective(Group::Tensor, (kind, self.dtype()), "latent", narrow);
                if latent.query_rank == 0 {
                    self.sum_tokens(1);
                }
                self.compute("latent.down", down);
            }
        }
    }

    /// Attention of this rank's queries to the keys of all ranks; `again`: to keys that are still in memory from the
    /// forward pass.
    pub(super) fn attend(&mut self, way: Direction, again: bool) {
        if self.backward_part == BackwardPart::Weights {
            return;
        }
        let Spec { sequence, micro_batch, phase, layout, .. } = self.spec;
        let Layout { context, context_method, context_order, .. } = layout;
        if context > 1 && context_method == ContextMethod::Ring {
            return self.attend_round(way);
        }
        let queries = self.spec.tokens() / micro_batch;
        let (keys, pairs) = match (phase, context_order) {
            (Phase::Decode, _) => (sequence + self.decoded, sequence + self.decoded),
            // A token attends to earlier tokens, on average half of all; context-parallel ranks have equal parts of the
            // pairs.
            (_, ContextOrder::Zigzag) => (sequence, sequence * sequence / 2 / u64::from(context)),
            (_, ContextOrder::Contiguous) => {
                let before = u64::from(self.place.context) * queries;
                (before + queries, before * queries + queries * queries / 2)
            }
        };
        let part = Attention { sequences: micro_batch, queries, keys, pairs };
        if way == Direction::Forward && !again {
            self.exchange_keys(way);
        }
        self.attend_part(part, way);
        if way == Direction::Backward {
            self.exchange_keys(way);
        }
    }

    fn attend_part(&mut self, part: Attention, way: Direction) {
        let (tensor, decode) = (self.tensor(), self.spec.phase == Phase::Decode);
        self.compute("attention", |model, operators| {
            model.attention(operators, part, model.attention_heads(tensor, decode), way);
            if let Some(latent) = model.latent.filter(|_| decode) {
                model.latent_values(operators, latent, [part.sequences * part.queries, tensor]);
            }
        });
    }

    /// Bytes of this rank's keys and values.
    fn own_keys(&self) -> u64 {
        ELEMENT * self.spec.tokens() * self.spec.model.keys_and_values() / self.tensor()
    }

    /// All-gather of keys and values among context-parallel ranks ("The Llama 3 herd of models", 2024, section 3.3.2),
    /// or reduce-scatter of their gradients.
    fn exchange_keys(&mut self, way: Direction) {
        let bytes = self.own_keys();
        match way {
            Direction::Forward => self.collective(Group::Context, CommType::AllGather, "keys", bytes),
            Direction::Backward => {
                let all = bytes * u64::from(self.spec.layout.context);
                self.collective(Group::Context, (CommType::ReduceScatter, self.dtype()), "keys", all);
            }
        }
    }

    /// Ring attention (Liu et al. 2023), as implemented in Transformer Engine (`AttnFuncWithCPAndKVP2P`): keys and
    /// values go from rank to rank, (C - 1) times with C ranks; each rank sends them on while it computes the attention
    /// of its queries to them. The rank that receives them last starts the backward pass with them, and they go back;
    /// their gradients go with them, each rank adds its own, and they end at the rank that the keys came from.
    fn attend_round(&mut self, way: Direction) {
        let (place, layout) = (self.place, self.spec.layout);
        let (context, own) = (layout.context, self.place.context);
        let (to, from) = match way {
            Direction::Forward => (layout.at_context(place, 1), layout.at_context(place, context - 1)),
            Direction::Backward => (layout.at_context(place, context - 1), layout.at_context(place, 1)),
        };
        let (bytes, label) = (self.own_keys(), self.label.clone());
        let mut arrived = None;
        let mut looked = false;
        for step in 0..context {
            self.label = format!("{label}ring{step}.");
            // The rank whose keys and values are in memory in this step.
            let owner = match way {
                Direction::Forward => (own + context - step) % context,
                Direction::Backward => (own + 1 + step) % context,
            };
            let more = step + 1 < context;
            let gradients = way == Direction::Backward && step > 0;
            // Gradients can be sent after the previous step's have been added, and keys and values after their arrival.
            let before = self.last.filter(|_| way == Direction::Backward || step == 0);
            let after: Vec<u64> = before.into_iter().chain(arrived).collect();
            let count = u64::from(more) + u64::from(gradients);
            if count > 0 {
                arrived = Some(self.pass_on([to, from], bytes * count, after));
            }
            let part = self.part_of_ring(owner);
            if let Some(part) = part {
                self.attend_part(part, way);
                if looked {
                    // Adds the results of the queries so far, or their gradients, and those of this step.
                    self.merge(part.queries, |model| model.result_width(), |model| model.query_width(), way);
                }
                looked = true;
            }
            self.awaited.extend(arrived.filter(|_| count > 0));
            if let Some(part) = part.filter(|_| gradients) {
                self.merge(part.keys, |model| model.keys_and_values(), |model| model.keys_and_values(), way);
            }
        }
        self.label = label;
    }

    /// The part of this rank's queries and of `owner`'s keys that attend to each other; `None`: no pair is unmasked.
    fn part_of_ring(&self, owner: u32) -> Option<Attention> {
        let Spec { sequence, micro_batch: sequences, layout, .. } = self.spec;
        let own = self.place.context;
        let all = sequence / u64::from(layout.context);
        let (queries, keys, pairs) = match (layout.context_order, owner.cmp(&own)) {
            // The n-th part and the n-th from the end: each attends to itself, the latter to the former.
            (_, std::cmp::Ordering::Equal) => (all, all, all * all / 2),
            (ContextOrder::Contiguous, std::cmp::Ordering::Less) => (all, all, all * all),
            (ContextOrder::Contiguous, std::cmp::Ordering::Greater) => return None,
            // The owner's parts are one before and one after both parts of this rank, so both attend to the earlier
            // one; or vice versa, and the latter part attends to both of the owner's.
            (ContextOrder::Zigzag, std::cmp::Ordering::Less) => (all, all / 2, all * (all / 2)),
            (ContextOrder::Zigzag, std::cmp::Ordering::Greater) => (all / 2, all, all / 2 * all),
        };
        Some(Attention { sequences, queries, keys, pairs })
    }

    /// Adds the results of one step of the ring to those of earlier steps.
    fn merge(
        &mut self,
        positions: u64,
        forward: impl Fn(&Model) -> u64,
        backward: impl Fn(&Model) -> u64,
        way: Direction,
    ) {
        let (sequences, tensor) = (self.spec.micro_batch, self.tensor());
        self.compute("merge", |model, operators| {
            let width = if way == Direction::Forward { forward(model) } else { backward(model) };
            operators.add(sequences * positions * width / tensor);
        });
    }

    /// Adds a message to the next rank of the ring, and one from the previous rank, whose node is returned.
    fn pass_on(&mut self, [to, from]: [u32; 2], bytes: u64, after: Vec<u64>) -> u64 {
        let tag = self.passed;
        self.passed += 1;
        let group = Value::String(self.names[&Group::Context].clone());
        let mut message = |kind, what, end, peer: u32| {
            let attributes = [(end, u64::from(peer)), (COMM_TAG, tag), (COMM_SIZE, bytes)];
            let id = self.node(kind, what, after.clone(), &attributes);
            self.ready.back_mut().expect("just made").attr.push(Attribute::new(PG_NAME, group.clone()));
            id
        };
        message(NodeType::CommSend, "send", COMM_DST, to);
        message(NodeType::CommRecv, "recv", COMM_SRC, from)
    }
}
