//! Owns the element order of algorithms that count a tensor's elements in another order than the tensor's own, and its
//! inverse.

use super::{Fold, Placement, ReductionPlan};
use crate::collective::{Algorithm, Span};
use crate::program::Collective;
use std::sync::Arc;

/// The pieces of a tensor in the order of the steps.
pub(in crate::collective) struct Order {
    /// For each piece its first element in the order of the steps, and its span in the tensor. `None`: steps use the
    /// tensor's order.
    pieces: Option<Vec<(u64, Span)>>,
}

impl Order {
    pub(in crate::collective) fn of(algorithm: &dyn Algorithm, call: &Collective, size: u32) -> Order {
        let begin = |from: &mut u64, span: Span| {
            let piece = (*from, span);
            *from += span.len;
            Some(piece)
        };
        let pieces = algorithm.order(call, size).map(|spans| spans.into_iter().scan(0, begin).collect());
        Order { pieces }
    }

    /// Spans, in the order of the steps, of the elements `span` of the tensor, in ascending order of the tensor.
    pub(in crate::collective) fn counted(&self, span: Span) -> Vec<Span> {
        let Some(pieces) = &self.pieces else { return vec![span] };
        let inside = |(begin, piece): &(u64, Span)| {
            let start = piece.start.max(span.start);
            let len = piece.end().min(span.end()).saturating_sub(start);
            (len > 0).then_some(Span { start: begin + start.saturating_sub(piece.start), len })
        };
        pieces.iter().filter_map(inside).collect()
    }

    /// Spans in the tensor of the elements that steps count as `span`.
    fn lying<'a>(&self, pieces: &'a [(u64, Span)], span: Span) -> impl Iterator<Item = Span> + use<'a> {
        let first = pieces.partition_point(|(begin, piece)| begin + piece.len <= span.start);
        pieces[first..].iter().take_while(move |(begin, _)| *begin < span.end()).filter_map(move |(begin, piece)| {
            let start = span.start.max(*begin);
            let len = span.end().min(begin + piece.len).saturating_sub(start);
            (len > 0).then_some(Span { start: piece.start + start - begin, len })
        })
    }

    /// Converts a plan from the order of the steps to the tensor's order.
    pub(in crate::collective) fn plan_in_place(&self, plan: ReductionPlan) -> ReductionPlan {
        let Some(pieces) = &self.pieces else { return plan };
        let ReductionPlan { slots, folds, results } = plan;
        let folds =
            folds.into_iter().flat_map(|fold| self.lying(pieces, fold.span).map(move |span| Fold { span, ..fold }));
        let in_place = |placements: &Arc<[Placement]>| -> Arc<[Placement]> {
            let spread = placements
                .iter()
                .flat_map(|place| self.lying(pieces, place.span).map(move |span| Placement { span, slot: place.slot }));
            let mut spread: Vec<Placement> = spread.collect();
            spread.sort_by_key(|place| place.span.start);
            spread.into()
        };
        ReductionPlan { slots, folds: folds.collect(), results: results.iter().map(in_place).collect() }
    }
}
