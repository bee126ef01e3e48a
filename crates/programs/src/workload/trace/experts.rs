//! Owns the nodes of an MoE layer on a rank: tokens go to the ranks of their experts and come back, in equal numbers or
//! as routed.

use super::super::layout::Group;
use super::super::load::Routing;
use super::super::model::{Experts, LayerKind, Model};
use super::super::operators::{BackwardPart, Direction, Operators};
use super::super::{ELEMENT, LayerPosition};
use super::Trace;
use uniference_formats::chakra::attributes::{IN_SPLIT, OUT_SPLIT};
use uniference_formats::chakra::schema::{Attribute, CommType, Uint64List, Value};

/// Direction of an exchange of tokens: to their experts, or back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exchange {
    Dispatch,
    Combine,
}

impl Trace {
    /// Tokens, or their gradients, go to the ranks of their experts and come back (Lepikhin et al., "GShard", 2020).
    /// The shared experts run before that in the forward pass, and after it in the backward pass.
    pub(super) fn experts(&mut self, layer: LayerPosition, way: Direction) {
        let (tensor, kind) = (self.tensor(), LayerKind::Experts);
        let Experts { count, top_k, ffn, shared, .. } = self.spec.model.experts.expect("the layer has experts");
        let own = self.spec.tokens() / tensor;
        let router = |model: &Model, operators: &mut Operators| model.router(operators, own, way);
        if way == Direction::Forward {
            self.compute("router", router);
            if shared > 0 {
                self.network(kind, ["shared.in", "shared.out"], way);
            }
        }
        // A rank holds a shard of each expert's network, and needs the tokens of all tensor-parallel ranks for it.
        let (spec, expert) = (&self.spec, self.place.expert);
        let ranks = u64::from(spec.layout.expert);
        let (received, busy) = match self.routings.entry(layer.number).or_insert_with(|| spec.routing(layer.number)) {
            None => (own * tensor * top_k, count / ranks),
            Some(Routing { sent, busy }) => (sent[expert as usize] * ranks * tensor, busy[expert as usize]),
        };
        self.exchange(layer, Exchange::Dispatch);
        let bytes = ELEMENT * received * self.spec.model.hidden;
        if tensor > 1 {
            self.collective(Group::Tensor, CommType::AllGather, "tokens", bytes / tensor);
        }
        if received > 0 {
            let sizes = [busy, received.div_ceil(busy), ffn / tensor];
            self.compute("experts", |model, operators| match way {
                Direction::Forward => {
                    model.feed_forward_in(operators, sizes, way);
                    model.feed_forward_out(operators, sizes, way);
                }
                Direction::Backward => {
                    model.feed_forward_out(operators, sizes, way);
                    model.feed_forward_in(operators, sizes, way);
                }
            });
        }
        self.collective(Group::Tensor, (CommType::ReduceScatter, self.dtype()), "sum", bytes);
        self.exchange(layer, Exchange::Combine);
        if way == Direction::Backward {
            if shared > 0 {
                self.network(kind, ["shared.in", "shared.out"], way);
            }
            self.compute("router", router);
        }
    }

    /// An all-to-all among expert-parallel ranks, with individual block sizes if experts receive different numbers of
    /// tokens: a rank sends to each other rank the tokens of that rank's experts, and receives from each the tokens of
    /// its own experts.
    fn exchange(&mut self, layer: LayerPosition, exchange: Exchange) {
        if self.backward_part == BackwardPart::Weights {
            return;
        }
        let what = if exchange == Exchange::Dispatch { "dispatch" } else { "combine" };
        let token = ELEMENT * self.spec.model.hidden;
        let top_k = self.spec.model.experts.map_or(0, |experts| experts.top_k);
        let all = self.spec.tokens() / self.tensor() * top_k * token;
        self.collective(Group::Expert, CommType::AllToAll, what, all);
        let routing = self.routings[&layer.number].as_ref().filter(|_| self.names.contains_key(&Group::Expert));
        if let Some(Routing { sent, .. }) = routing {
            let to: Vec<u64> = sent.iter().map(|tokens| tokens * token).collect();
            let from = vec![to[self.place.expert as usize]; to.len()];
            let (sends, receives) = if exchange == Exchange::Dispatch { (to, from) } else { (from, to) };
            let list = |name, values| Attribute::new(name, Value::Uint64List(Uint64List { values }));
            let node = self.ready.back_mut().expect("just made");
            node.attr.extend([list(IN_SPLIT, sends), list(OUT_SPLIT, receives)]);
        }
    }
}
