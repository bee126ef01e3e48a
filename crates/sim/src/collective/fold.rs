//! Owns the order in which a reducing collective combines its members' elements, derived from the steps of its
//! algorithm.
//!
//! Floating-point addition is commutative but not associative: the order of combination determines the last bits of the
//! result. All steps are carried out on expressions in place of values; the outcome is the expression of every part of
//! the result. Gloo's minimum and maximum are not commutative: for zeros of different sign, and for NaN, the result is
//! the first operand.

pub(super) mod order;

use super::dataflow::{Memory, carry_out};
use super::layout::Layout;
use super::{Algorithm, GroupRank, Span, lanes, root_of};
use crate::program::{Collective, CollectiveKind, ReduceOp};
use indexmap::IndexSet;
use order::Order;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Instructions that turn copies of all members' inputs into the algorithm's result, bit for bit.
///
/// There are [`ReductionPlan::slots`] tensors, "slots", of the size of the input. Slot r is a copy of member r's input.
/// Slots from the size of the group on have arbitrary contents at the start; only algorithms that give different
/// members differently combined results need them. After the folds, in their order, every part of a member's result is
/// in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReductionPlan {
    /// Number of slots; at least the size of the group.
    pub slots: u32,
    /// The combinations and copies, in order.
    pub folds: Vec<Fold>,
    pub(super) results: Vec<Arc<[Placement]>>,
}

/// `slot[destination][span] = slot[destination][span] op slot[source][span]`, or without the `op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The slot that changes.
    pub destination: GroupRank,
    /// The slot that is read, which is not `destination`.
    pub source: GroupRank,
    /// Elements, counted in the input tensor (reduce-scatter: all blocks one after the other).
    pub span: Span,
    /// Whether the source is combined with the destination rather than replacing it.
    pub combine: bool,
}

/// Location of a part of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The slot that holds it.
    pub slot: GroupRank,
    /// Elements, counted in the input tensor.
    pub span: Span,
}

impl ReductionPlan {
    /// The plan of one collective in a group of `size`, which is at least 2. Every member's call is the same.
    ///
    /// # Panics
    /// If `call.kind` does not reduce, or `algorithm` cannot carry it out.
    pub fn derive(algorithm: &dyn Algorithm, call: &Collective, size: u32) -> ReductionPlan {
        if algorithm.combines_in_order() {
            return ReductionPlan::in_order(call, size);
        }
        let expressions = Expressions::of_results(algorithm, call, size);
        let mut planner = Planner::new(expressions.nodes, size, keeps_first(algorithm, call));
        for (span, wanted) in alike(&expressions.results) {
            planner.plan(span, &wanted);
        }
        let plan = planner.finish(&expressions.results);
        Order::of(algorithm, call, size).plan_in_place(plan)
    }

    /// Combines all elements in the order of ranks, equally for all members.
    fn in_order(call: &Collective, size: u32) -> ReductionPlan {
        let (first, layout) = (GroupRank(0), Layout::of_members(call, size));
        let span = layout.blocks(0, size);
        let fold = |source| Fold { destination: first, source: GroupRank(source), span, combine: true };
        let result = |rank| match call.kind {
            CollectiveKind::ReduceScatter => layout.block(rank),
            _ => span,
        };
        let placed = |span: Span| -> Arc<[Placement]> {
            if span.len == 0 { Arc::new([]) } else { Arc::new([Placement { slot: first, span }]) }
        };
        let results = (0..size).map(|rank| placed(result(rank))).collect();
        ReductionPlan { slots: size, folds: (1..size).map(fold).collect(), results }
    }

    /// Parts of a member's result, in ascending order of elements. The list is empty if the member gets none, as all
    /// members but the root in a reduce.
    pub fn result(&self, GroupRank(member): GroupRank) -> &[Placement] {
        &self.results[member as usize]
    }
}

/// An expression: a member's input, or, from the size of the group on, two expressions combined. Operands have smaller
/// numbers.
type Expression = u32;

/// Consecutive elements that hold the same expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    span: Span,
    expression: Expression,
}

/// All members' tensors during the execution of the steps.
struct Expressions {
    size: u32,
    /// Operands of each combined expression, each listed once, whichever members combine it. The smaller operand comes
    /// first, except with `keeps_first`: then the combining member's own operand comes first.
    nodes: IndexSet<(Expression, Expression)>,
    keeps_first: bool,
    tensors: Vec<Tensor>,
}

/// The symbolic result of each member.
struct Results {
    nodes: IndexSet<(Expression, Expression)>,
    results: Vec<Vec<Piece>>,
}

impl Expressions {
    fn of_results(algorithm: &dyn Algorithm, call: &Collective, size: u32) -> Results {
        let ranks = || (0..size).map(GroupRank);
        let layout = Layout::of_members(call, size);
        let everything = layout.blocks(0, size);
        let order = Order::of(algorithm, call, size);
        let result = |GroupRank(rank)| match call.kind {
            CollectiveKind::AllReduce => everything,
            CollectiveKind::Reduce if root_of(call) == GroupRank(rank) => everything,
            CollectiveKind::Reduce => Span::EMPTY,
            CollectiveKind::ReduceScatter => layout.block(rank),
            kind => panic!("{kind} combines nothing"),
        };
        let tensors = (0..size).map(|rank| Tensor::filled(everything, rank)).collect();
        let mut memory =
            Expressions { size, nodes: IndexSet::new(), keeps_first: keeps_first(algorithm, call), tensors };
        carry_out(ranks().map(|me| lanes(algorithm, call, size, me)).collect(), &mut memory);
        let read = |me: GroupRank| {
            let tensor = &memory.tensors[me.index()];
            order.counted(result(me)).into_iter().flat_map(|span| tensor.read(span)).collect()
        };
        let results = ranks().map(read).collect();
        Results { nodes: memory.nodes, results }
    }

    fn combine(&mut self, a: Expression, b: Expression) -> Expression {
        let operands = if self.keeps_first { (a, b) } else { (a.min(b), a.max(b)) };
        let (index, _) = self.nodes.insert_full(operands);
        self.size + index as u32
    }
}

impl Memory for Expressions {
    type Message = Vec<Piece>;

    fn load(&mut self, rank: GroupRank, _: usize, span: Span) -> Vec<Piece> {
        self.tensors[rank.index()].read(span)
    }

    fn store(&mut self, rank: GroupRank, _: usize, span: Span, combine: bool, message: Vec<Piece>) {
        if !combine {
            return self.tensors[rank.index()].write(&message);
        }
        let here = self.tensors[rank.index()].read(span);
        let combined: Vec<Piece> = overlaps(&here, &message)
            .into_iter()
            .map(|(span, a, b)| Piece { span, expression: self.combine(a, b) })
            .collect();
        self.tensors[rank.index()].write(&combined);
    }
}

/// Whether the order of a reduction's two operands matters.
fn keeps_first(algorithm: &dyn Algorithm, call: &Collective) -> bool {
    algorithm.keeps_first() && matches!(call.reduce, Some(ReduceOp::Min | ReduceOp::Max))
}

/// Common parts of two lists that cover the same elements, with the expression of each list.
fn overlaps(a: &[Piece], b: &[Piece]) -> Vec<(Span, Expression, Expression)> {
    let (mut i, mut j) = (0, 0);
    let mut parts = Vec::with_capacity(a.len() + b.len());
    while let (Some(left), Some(right)) = (a.get(i), b.get(j)) {
        let start = left.span.start.max(right.span.start);
        let end = left.span.end().min(right.span.end());
        parts.push((Span { start, len: end - start }, left.expression, right.expression));
        i += usize::from(left.span.end() == end);
        j += usize::from(right.span.end() == end);
    }
    parts
}

/// One member's tensor: consecutive pieces, neighbours different.
struct Tensor(Vec<Piece>);

impl Tensor {
    fn filled(span: Span, expression: Expression) -> Tensor {
        Tensor(if span.len == 0 { Vec::new() } else { vec![Piece { span, expression }] })
    }

    /// The pieces that a range touches.
    fn touched(&self, span: Span) -> std::ops::Range<usize> {
        let first = self.0.partition_point(|piece| piece.span.end() <= span.start);
        let count = self.0[first..].partition_point(|piece| piece.span.start < span.end());
        first..if span.len == 0 { first } else { first + count }
    }

    fn read(&self, span: Span) -> Vec<Piece> {
        self.0[self.touched(span)]
            .iter()
            .map(|piece| Piece { span: intersection(piece.span, span), ..*piece })
            .collect()
    }

    /// Replaces the elements that the consecutive `pieces` cover.
    fn write(&mut self, pieces: &[Piece]) {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return };
        let (start, end) = (first.span.start, last.span.end());
        // The range includes one piece more at each end, so that equal neighbours become one piece.
        let touched = self.touched(Span { start, len: end - start });
        let around = touched.start.saturating_sub(1)..(touched.end + 1).min(self.0.len());
        let mut merged: Vec<Piece> = Vec::with_capacity(pieces.len() + 4);
        let old = &self.0[around.clone()];
        for piece in old.iter().filter_map(|piece| part(*piece, 0, start)) {
            push_merged(&mut merged, piece);
        }
        pieces.iter().for_each(|piece| push_merged(&mut merged, *piece));
        for piece in old.iter().filter_map(|piece| part(*piece, end, u64::MAX)) {
            push_merged(&mut merged, piece);
        }
        self.0.splice(around, merged);
    }
}

fn intersection(a: Span, b: Span) -> Span {
    let start = a.start.max(b.start);
    Span { start, len: a.end().min(b.end()).saturating_sub(start) }
}

/// Part of `piece` from `start` to `end`, exclusive.
fn part(piece: Piece, start: u64, end: u64) -> Option<Piece> {
    let span = intersection(piece.span, Span { start, len: end - start });
    (span.len > 0).then_some(Piece { span, ..piece })
}

fn push_merged(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.expression == piece.expression && last.span.end() == piece.span.start => {
            last.span.len += piece.span.len;
        }
        _ => pieces.push(piece),
    }
}

/// Maximal ranges on which the same set of expressions is wanted, and that set.
fn alike(results: &[Vec<Piece>]) -> Vec<(Span, Vec<Expression>)> {
    let pieces: BTreeSet<Piece> = results.iter().flatten().copied().collect();
    let bounds: BTreeSet<u64> = pieces.iter().flat_map(|piece| [piece.span.start, piece.span.end()]).collect();
    let mut starting = pieces.iter().peekable();
    let mut open: Vec<Piece> = Vec::new();
    let mut ranges: Vec<(Span, Vec<Expression>)> = Vec::new();
    for (&start, &end) in bounds.iter().zip(bounds.iter().skip(1)) {
        open.retain(|piece| piece.span.end() > start);
        while let Some(piece) = starting.next_if(|piece| piece.span.start == start) {
            open.push(*piece);
        }
        let wanted: BTreeSet<Expression> = open.iter().map(|piece| piece.expression).collect();
        let wanted: Vec<Expression> = wanted.into_iter().collect();
        match ranges.last_mut() {
            Some((span, before)) if span.end() == start && *before == wanted => span.len += end - start,
            _ if wanted.is_empty() => {}
            _ => ranges.push((Span { start, len: end - start }, wanted)),
        }
    }
    ranges
}

/// Assigns slots to expressions and lists the folds, range by range.
struct Planner {
    size: u32,
    /// Whether a result is stored in the slot of its first operand, never in that of its second operand.
    keeps_first: bool,
    nodes: IndexSet<(Expression, Expression)>,
    slots: u32,
    folds: Vec<Fold>,
    /// Slots of the wanted expressions, by range, in ascending order of both.
    places: Vec<(Span, Vec<(Expression, GroupRank)>)>,
    /// For each expression on the current range: its number of remaining uses, and its slot.
    needed: Vec<u32>,
    slot: Vec<GroupRank>,
    /// Slots whose content on the current range is not needed any more.
    free: Vec<GroupRank>,
}

impl Planner {
    fn new(nodes: IndexSet<(Expression, Expression)>, size: u32, keeps_first: bool) -> Planner {
        let expressions = size as usize + nodes.len();
        let slot = (0..expressions).map(GroupRank::from).collect();
        let needed = vec![0; expressions];
        let (folds, places, free) = (Vec::new(), Vec::new(), Vec::new());
        Planner { size, keeps_first, nodes, slots: size, folds, places, needed, slot, free }
    }

    fn operands(&self, expression: Expression) -> Option<(Expression, Expression)> {
        self.nodes.get_index(expression.checked_sub(self.size)? as usize).copied()
    }

    /// Computes the expressions in `wanted` on `span`.
    fn plan(&mut self, span: Span, wanted: &[Expression]) {
        let used = self.count_uses(wanted);
        self.free = (0..self.size).filter(|leaf| self.needed[*leaf as usize] == 0).map(GroupRank).collect();
        self.free.extend((self.size..self.slots).map(GroupRank));
        for &expression in &used {
            if let Some((a, b)) = self.operands(expression) {
                let slot = self.combine(span, a, b);
                self.slot[expression as usize] = slot;
            }
        }
        let places = wanted.iter().map(|&expression| (expression, self.slot[expression as usize])).collect();
        self.places.push((span, places));
        for expression in used {
            self.needed[expression as usize] = 0;
        }
    }

    /// Counts the uses of every expression for `wanted`; returns the used ones, operands first.
    fn count_uses(&mut self, wanted: &[Expression]) -> Vec<Expression> {
        let mut used = Vec::new();
        let mut open = wanted.to_vec();
        while let Some(expression) = open.pop() {
            self.needed[expression as usize] += 1;
            if self.needed[expression as usize] == 1 {
                used.push(expression);
                open.extend(self.operands(expression).into_iter().flat_map(|(a, b)| [a, b]));
            }
        }
        used.sort_unstable();
        used
    }

    /// Combines two expressions and returns the slot of the result: the slot of an operand that is not needed again, or
    /// another one.
    fn combine(&mut self, span: Span, a: Expression, b: Expression) -> GroupRank {
        assert_ne!(a, b, "an algorithm combines an expression with itself");
        let last = |planner: &mut Planner, expression: Expression| {
            planner.needed[expression as usize] -= 1;
            planner.needed[expression as usize] == 0
        };
        let (a_free, b_free) = (last(self, a), last(self, b));
        let (a, b) = (self.slot[a as usize], self.slot[b as usize]);
        let (destination, source) = match (a_free, b_free) {
            (true, _) => (a, b),
            (false, true) if !self.keeps_first => (b, a),
            (false, _) => (self.copy(span, a), b),
        };
        if source == b && b_free {
            self.free.push(source);
        }
        self.folds.push(Fold { destination, source, span, combine: true });
        destination
    }

    /// Copies a slot to a free one.
    fn copy(&mut self, span: Span, source: GroupRank) -> GroupRank {
        let destination = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            GroupRank(self.slots - 1)
        });
        self.folds.push(Fold { destination, source, span, combine: false });
        destination
    }

    fn finish(self, results: &[Vec<Piece>]) -> ReductionPlan {
        let mut placed: Vec<Arc<[Placement]>> = Vec::with_capacity(results.len());
        for (rank, pieces) in results.iter().enumerate() {
            // In an all-reduce all members share one list.
            let same = rank.checked_sub(1).filter(|before| results[*before] == *pieces);
            placed.push(same.map_or_else(|| self.placements(pieces), |before| placed[before].clone()));
        }
        ReductionPlan { slots: self.slots, folds: self.folds, results: placed }
    }

    fn placements(&self, pieces: &[Piece]) -> Arc<[Placement]> {
        let mut placements: Vec<Placement> = Vec::new();
        for piece in pieces {
            let first = self.places.partition_point(|(span, _)| span.end() <= piece.span.start);
            for (span, places) in self.places[first..].iter().take_while(|(span, _)| span.start < piece.span.end()) {
                let (_, slot) =
                    places[places.binary_search_by_key(&piece.expression, |place| place.0).expect("was wanted")];
                let span = intersection(*span, piece.span);
                match placements.last_mut() {
                    Some(last) if last.slot == slot && last.span.end() == span.start => last.span.len += span.len,
                    _ => placements.push(Placement { slot, span }),
                }
            }
        }
        placements.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::choose::algorithm_by_name;
    use crate::collective::peers::Peers;
    use crate::collective::{Action, Step, Steps};
    use crate::program::{DType, PeerKernel, Shape};
    use crate::time::Rate;

    fn call(kind: CollectiveKind, count: u64) -> Collective {
        let (reduce, root) = (Some(ReduceOp::Sum), Some(GroupRank(0)));
        Collective { kind, dtype: DType::Float32, reduce, root, shape: Shape::Even(count), kernel: None }
    }

    fn plan(kind: CollectiveKind, name: &str, size: u32, count: u64) -> ReductionPlan {
        ReductionPlan::derive(&*algorithm_by_name(kind, name).unwrap(), &call(kind, count), size)
    }

    /// The expression of `member` for the element at `index`, with operands in ascending order.
    fn expression(plan: &ReductionPlan, member: u32, index: u64) -> String {
        let mut slots: Vec<String> = (0..plan.slots).map(|slot| slot.to_string()).collect();
        let covers = |span: Span| (span.start..span.end()).contains(&index);
        for fold in plan.folds.iter().filter(|fold| covers(fold.span)) {
            let (here, source) = (&slots[fold.destination.index()], &slots[fold.source.index()]);
            let mut operands = [here.clone(), source.clone()];
            operands.sort();
            let combined = format!("({} {})", operands[0], operands[1]);
            slots[fold.destination.index()] = if fold.combine { combined } else { source.clone() };
        }
        let placement = plan.result(GroupRank(member)).iter().find(|placement| covers(placement.span));
        slots[placement.unwrap().slot.index()].clone()
    }

    #[test]
    fn a_ring_starts_after_the_owner_of_a_block() {
        // Block j is ((x[j+1] + x[j+2]) + x[j+3]) + x[j]; 8 elements in 4 blocks.
        let plan = plan(CollectiveKind::AllReduce, "ring", 4, 8);
        for member in 0..4 {
            assert_eq!(expression(&plan, member, 0), "(((1 2) 3) 0)");
            assert_eq!(expression(&plan, member, 3), "(((2 3) 0) 1)");
            assert_eq!(expression(&plan, member, 7), "(((0 1) 2) 3)");
        }
    }

    /// A member combines its own elements, as the first operand, with the received ones; the order matters for zeros of
    /// different sign and for NaN. Chunk c is max(x[c], max(x[c-3], max(x[c-2], x[c-1]))), so that a fold's destination
    /// is the member's own element.
    #[test]
    fn gloos_maximum_keeps_what_the_member_had_itself() {
        for kind in [CollectiveKind::AllReduce, CollectiveKind::Reduce, CollectiveKind::ReduceScatter] {
            let call = Collective { reduce: Some(ReduceOp::Max), ..call(kind, 16) };
            let plan = ReductionPlan::derive(&*algorithm_by_name(kind, "gloo_ring").unwrap(), &call, 4);
            let of_first = plan.folds.iter().filter(|fold| fold.span.start == 0);
            let folds: Vec<(u32, u32)> = of_first.map(|fold| (fold.destination.0, fold.source.0)).collect();
            assert_eq!(folds, [(2, 3), (1, 2), (0, 1)], "{kind}");
            assert_eq!(plan.slots, 4);
        }
    }

    #[test]
    fn gloo_goes_round_the_other_way() {
        // Chunk c is ((x[c-1] + x[c-2]) + x[c-3]) + x[c]. 10 elements are 8 segments of 2, two per chunk: 4, 4, 2 and 0
        // elements.
        let plan = plan(CollectiveKind::AllReduce, "gloo_ring", 4, 10);
        assert_eq!(expression(&plan, 1, 3), "(((2 3) 1) 0)");
        assert_eq!(expression(&plan, 2, 4), "(((0 3) 2) 1)");
        assert_eq!(expression(&plan, 3, 9), "(((0 1) 3) 2)");
        assert_eq!(plan.folds.len(), 3 * 3);
    }

    /// A one-shot kernel combines in the order of ranks; in a two-shot one a block's owner begins with its own elements
    /// and continues upwards. 42 elements of 4 bytes have ten whole packs of 16 bytes, two for each block; the last
    /// block also gets the rest.
    #[test]
    fn kernels_of_programs_combine_alike_for_all() {
        let inside = Rate::new(360e9).unwrap();
        let plan = |kernel, kind| ReductionPlan::derive(&Peers::new(kernel, 4, inside), &call(kind, 42), 4);
        let one = plan(PeerKernel::OneShot, CollectiveKind::AllReduce);
        let two = plan(PeerKernel::TwoShot, CollectiveKind::AllReduce);
        for member in 0..4 {
            assert_eq!([0, 41].map(|index| expression(&one, member, index)), ["(((0 1) 2) 3)"; 2]);
            assert_eq!([0, 7].map(|index| expression(&two, member, index)), ["(((0 1) 2) 3)"; 2]);
            assert_eq!([16, 23].map(|index| expression(&two, member, index)), ["(((2 3) 0) 1)"; 2]);
            assert_eq!([24, 41].map(|index| expression(&two, member, index)), ["(((0 3) 1) 2)"; 2]);
        }
        // Blocks of 42 elements.
        let parts = plan(PeerKernel::OneShot, CollectiveKind::ReduceScatter);
        assert_eq!(expression(&parts, 2, 85), "(((0 1) 2) 3)");
        assert_eq!(parts.result(GroupRank(2)), [Placement { slot: GroupRank(0), span: Span { start: 84, len: 42 } }]);
    }

    #[test]
    fn folds_are_few() {
        // Rings: P - 1 folds for each of P blocks. If all elements are combined alike: P - 1 folds in total.
        for (kind, name, folds) in [
            (CollectiveKind::AllReduce, "ring", 16 * 15),
            (CollectiveKind::AllReduce, "gloo_ring", 16 * 15),
            (CollectiveKind::AllReduce, "recursive_doubling", 15),
            (CollectiveKind::AllReduce, "halving_doubling", 15),
            (CollectiveKind::ReduceScatter, "ring", 16 * 15),
            (CollectiveKind::ReduceScatter, "halving_doubling", 15),
            (CollectiveKind::Reduce, "gloo_ring", 16 * 15),
            (CollectiveKind::Reduce, "binomial", 15),
            (CollectiveKind::Reduce, "linear", 15),
        ] {
            let plan = plan(kind, name, 16, 1600);
            assert_eq!((plan.folds.len(), plan.slots), (folds, 16), "{name} {kind}");
        }
    }

    #[test]
    fn only_the_root_of_a_reduce_gets_a_result() {
        let plan = plan(CollectiveKind::Reduce, "binomial", 3, 5);
        let lengths = |member| plan.result(GroupRank(member)).iter().map(|placement| placement.span.len).sum::<u64>();
        assert_eq!([0, 1, 2].map(lengths), [5, 0, 0]);
    }

    /// Every member sends its input to all, and adds the received inputs to its own, the next rank's first.
    struct EachInItsOwnOrder;

    impl Algorithm for EachInItsOwnOrder {
        fn name(&self) -> &'static str {
            "each_in_its_own_order"
        }

        fn kinds(&self) -> &'static [CollectiveKind] {
            &[CollectiveKind::AllReduce]
        }

        fn steps(&self, _: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
            let span = Span { start: 0, len: 1 };
            let peers = move || (1..size).map(move |distance| GroupRank((me + distance) % size));
            let sends = peers().map(move |to| Action::Send { to, span });
            let receives = peers().map(move |from| Action::Recv { from, span, combine: true });
            Box::new(sends.chain(receives).map(|action| Step::new(action, 0)))
        }
    }

    #[test]
    fn members_may_combine_differently() {
        let plan = ReductionPlan::derive(&EachInItsOwnOrder, &call(CollectiveKind::AllReduce, 1), 4);
        assert_eq!(expression(&plan, 0, 0), "(((0 1) 2) 3)");
        assert_eq!(expression(&plan, 1, 0), "(((1 2) 3) 0)");
        assert_eq!(expression(&plan, 2, 0), "(((2 3) 0) 1)");
        assert_eq!(expression(&plan, 3, 0), "(((0 3) 1) 2)");
        assert!(plan.slots > 4, "four results and inputs that are needed again do not fit into four slots: {plan:?}");
    }
}
