//! Owns the operators of multi-head latent attention (MLA) around attention itself: projections of the residual stream
//! to latent vectors, and of these to queries, keys and values.
//!
//! DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1. As in Megatron-LM's `multi_latent_attention.py`, up projections are
//! sharded over tensor-parallel ranks, and down projections are replicated.

use super::super::model::{Latent, Model};
use super::{Direction, FLOAT, FlatKind, Operators, Pass, RowKind};

impl Model {
    /// Down projections of `tokens` tokens from the residual stream to latent vectors, with the norms of these.
    pub(in super::super) fn latent_down(&self, operators: &mut Operators, latent: Latent, tokens: u64, way: Direction) {
        let Latent { query_rank, kv_rank, .. } = latent;
        let down = [query_rank, latent.cached()].into_iter().filter(|width| *width > 0);
        let normed = [query_rank, kv_rank].into_iter().filter(|width| *width > 0);
        let element = operators.element();
        match way {
            Direction::Forward => {
                down.for_each(|width| operators.linear([1, tokens, self.hidden, width], false, way));
                normed.for_each(|width| {
                    operators.rows(RowKind::Normalization, Pass::Forward, [tokens, width], element, element);
                });
            }
            Direction::Backward => {
                normed.for_each(|width| {
                    operators.rows(RowKind::Normalization, Pass::Backward, [tokens, width], 4 * element, element);
                });
                down.for_each(|width| operators.linear([1, tokens, self.hidden, width], false, way));
            }
        }
    }

    /// Up projections from latent vectors to queries, keys and values with positions. In decode from a cache of latent
    /// vectors, queries are projected to the space of these vectors instead.
    pub(in super::super) fn latent_up(
        &self,
        operators: &mut Operators,
        latent: Latent,
        [tokens, tensor]: [u64; 2],
        decode: bool,
        way: Direction,
    ) {
        let heads = self.heads / tensor;
        let from = if latent.query_rank > 0 { latent.query_rank } else { self.hidden };
        let queries = [1, tokens, from, heads * latent.key()];
        let keys_and_values = [1, tokens, latent.kv_rank, heads * (latent.plain + latent.value)];
        match way {
            Direction::Forward => {
                operators.linear(queries, false, way);
                if decode {
                    operators.linear([heads, tokens, latent.plain, latent.kv_rank], false, way);
                } else {
                    operators.linear(keys_and_values, false, way);
                }
                self.latent_positions(operators, latent, [tokens, heads], decode);
            }
            Direction::Backward => {
                self.latent_positions(operators, latent, [tokens, heads], decode);
                operators.linear(keys_and_values, false, way);
                operators.linear(queries, false, way);
            }
        }
    }

    /// Projects attention's results from latent vectors to values.
    pub(in super::super) fn latent_values(
        &self,
        operators: &mut Operators,
        latent: Latent,
        [tokens, tensor]: [u64; 2],
    ) {
        operators.linear([self.heads / tensor, tokens, latent.kv_rank, latent.value], false, Direction::Forward);
    }

    /// Rotates a part of each query and the key that all heads share, and concatenates both parts of each key; or the
    /// same for gradients. Eager PyTorch concatenates queries too, and rotates in float32. A cache keeps the parts of
    /// keys separately.
    fn latent_positions(&self, operators: &mut Operators, latent: Latent, [tokens, heads]: [u64; 2], decode: bool) {
        let (rotated, element) = (tokens * (heads + 1) * latent.rotary, operators.element());
        let keys = if decode { 0 } else { tokens * heads * latent.key() };
        if operators.eager() {
            operators.flat(FlatKind::Copy, rotated, element, FLOAT);
            operators.elementwise(rotated, FLOAT, FLOAT);
            operators.flat(FlatKind::Copy, rotated, FLOAT, element);
            operators.flat(FlatKind::Copy, tokens * heads * latent.key(), element, element);
        } else {
            operators.elementwise(rotated, element, element);
        }
        operators.flat(FlatKind::Copy, keys, element, element);
    }
}
