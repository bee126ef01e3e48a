//! Owns the operators of multi-head latent attention around attention itself: queries, keys and values are made of narrow vectors.
//!
//! DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1. As in Megatron-LM's `multi_latent_attention.py`, tensor-parallel ranks share the projections
//! up, and each has those down.

use super::super::model::{Latent, Model};
use super::{Direction, FLOAT, FlatKind, Operators, Pass, RowKind};

impl Model {
    /// From the stream to the latent vectors, for `tokens` of them, with the norms of these.
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

    /// From the latent vectors to queries, keys and values with positions. Tokens that are decoded from a cache of latent vectors get
    /// queries that look at these.
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

    /// What attention to latent vectors yields is made what attention to values yields.
    pub(in super::super) fn latent_values(
        &self,
        operators: &mut Operators,
        latent: Latent,
        [tokens, tensor]: [u64; 2],
    ) {
        operators.linear([self.heads / tensor, tokens, latent.kv_rank, latent.value], false, Direction::Forward);
    }

    /// Rotates a part of each query and the key that all heads share, and puts both parts of each key side by side; or the gradients. Eager
    /// PyTorch does so for queries too, and rotates in float32. A cache keeps the parts of keys apart.
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
