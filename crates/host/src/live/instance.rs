//! Owns one collective of a whole group: what each member staged, and which ranges of that are each member's output.
//!
//! When it happens is the engine's business, when rooms are freed `data`'s.

use super::fold::Plans;
use super::protocol::{Fetched, Offset};
use std::sync::Arc;
use uniference_sim::collective::fold::{Fold, FoldPlan};
use uniference_sim::ids::GroupRank;
use uniference_sim::program::{Collective, CollectiveKind, Shape};

/// One member's call.
pub(super) struct Member {
    pub(super) call: Collective,
    /// Where its input lies; `None` if it contributes nothing.
    pub(super) staged: Option<Offset>,
}

/// How far the reduction is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folding {
    Open,
    /// By this group rank.
    Claimed(usize),
    Done,
}

/// One collective of a whole group.
pub(super) struct Instance {
    members: Vec<Option<Member>>,
    /// The name of the algorithm that carries it out, once the engine has told.
    algorithm: Option<&'static str>,
    released: usize,
    folding: Folding,
    /// Of a reduction, once a member has claimed it.
    plan: Option<Arc<FoldPlan>>,
}

impl Instance {
    pub(super) fn new(size: usize) -> Instance {
        let members = std::iter::repeat_with(|| None).take(size).collect();
        Instance { members, algorithm: None, released: 0, folding: Folding::Open, plan: None }
    }

    pub(super) fn enter(&mut self, me: usize, member: Member) {
        self.members[me] = Some(member);
    }

    pub(super) fn carried_out_by(&mut self, algorithm: Option<&'static str>) {
        self.algorithm = algorithm;
    }

    /// Member `me`, if it receives something, needs its output no more. If it was to fold and has not, another one is.
    pub(super) fn release(&mut self, me: usize) {
        if self.folding == Folding::Claimed(me) {
            self.folding = Folding::Open;
        }
        self.released += usize::from(self.receives(me));
    }

    /// Whether all have entered and all who receive have released.
    pub(super) fn over(&self) -> bool {
        let receivers = (0..self.members.len()).filter(|m| self.receives(*m)).count();
        self.members.iter().all(Option::is_some) && self.released == receivers
    }

    /// Where all inputs lie, by member.
    pub(super) fn rooms(self) -> impl Iterator<Item = Option<Offset>> {
        self.members.into_iter().map(|member| member.and_then(|m| m.staged))
    }

    /// The output of `me`, if it can be had without folding and without waiting.
    pub(super) fn ready(&self, me: usize) -> Option<Fetched> {
        let settled = !self.must_fold(me) || self.folding == Folding::Done;
        settled.then(|| Fetched { pieces: self.pieces(me), ..Fetched::default() })
    }

    /// The output of `me`, who folds if nobody does; `None` while another member folds.
    pub(super) fn claim(&mut self, me: usize, plans: &mut Plans) -> Option<Fetched> {
        if let Some(ready) = self.ready(me) {
            return Some(ready);
        }
        if self.folding == Folding::Open {
            let algorithm = self.algorithm.expect("a complete collective has an algorithm");
            self.plan = Some(plans.get(&self.call(me).call, algorithm, self.members.len() as u32));
            self.folding = Folding::Claimed(me);
        }
        (self.folding == Folding::Claimed(me)).then(|| Fetched {
            pieces: self.pieces(me),
            folds: self.folds(),
            peer: None,
        })
    }

    /// The member that claimed the folds has done them.
    pub(super) fn folded(&mut self) {
        self.folding = Folding::Done;
    }

    fn call(&self, member: usize) -> &Member {
        self.members[member]
            .as_ref()
            .unwrap_or_else(|| panic!("member {member} has not entered, yet its data is asked for"))
    }

    /// Any member's call: all agree but in the blocks of all-to-all.
    fn any_call(&self) -> Option<&Collective> {
        self.members.iter().flatten().map(|member| &member.call).next()
    }

    fn receives(&self, me: usize) -> bool {
        use CollectiveKind::*;
        let Some(call) = self.any_call() else { return false };
        let is_root = call.root.is_some_and(|root| root.index() == me);
        match call.kind {
            AllReduce | AllGather | ReduceScatter | AllToAll | Scatter => true,
            Reduce | Gather => is_root,
            Broadcast => !is_root,
            Barrier => false,
        }
    }

    fn must_fold(&self, me: usize) -> bool {
        use CollectiveKind::*;
        let reduces = self.any_call().is_some_and(|call| matches!(call.kind, AllReduce | Reduce | ReduceScatter));
        reduces && self.members.len() > 1 && self.receives(me)
    }

    fn folds(&self) -> Vec<(Offset, Offset, u64)> {
        let place = |Fold { destination, source, span, .. }: &Fold| {
            let (into, bytes) = self.range(destination.index(), span.start, span.len);
            (into, self.range(source.index(), span.start, span.len).0, bytes)
        };
        let folds = self.plan.iter().flat_map(|plan| &plan.folds);
        folds.filter(|fold| fold.span.len > 0).map(place).collect()
    }

    /// The output of `me`: ranges of the members' inputs, one after the other.
    fn pieces(&self, me: usize) -> Vec<(Offset, u64)> {
        if !self.receives(me) {
            return Vec::new();
        }
        let mut pieces: Vec<(Offset, u64)> = Vec::new();
        for (member, start, len) in self.sources(me).into_iter().filter(|(.., len)| *len > 0) {
            let (offset, bytes) = self.range(member, start, len);
            match pieces.last_mut() {
                Some((before, size)) if *before + *size == offset => *size += bytes,
                _ => pieces.push((offset, bytes)),
            }
        }
        pieces
    }

    /// The output of `me` as (member, first element, elements) of inputs.
    fn sources(&self, me: usize) -> Vec<(usize, u64, u64)> {
        use CollectiveKind::*;
        let call = &self.call(me).call;
        let all = 0..self.members.len();
        let root = || call.root.unwrap_or_else(|| panic!("a {} has no root", call.kind)).index();
        match call.kind {
            Barrier => Vec::new(),
            Broadcast => vec![(root(), 0, block(call, 0))],
            AllGather | Gather => all.map(|from| (from, 0, block(call, from))).collect(),
            Scatter => vec![(root(), start(call, me), block(call, me))],
            AllToAll => all.map(|from| self.sent(from, me)).collect(),
            AllReduce | Reduce | ReduceScatter if self.members.len() > 1 => self.reduced(me),
            AllReduce | Reduce | ReduceScatter => vec![(me, 0, block(call, me))],
        }
    }

    /// What `from` sends to `to` in an all-to-all. Nothing, if nothing is expected: `from` need not even have entered.
    fn sent(&self, from: usize, to: usize) -> (usize, u64, u64) {
        let expected = match &self.call(to).call.shape {
            Shape::Pairs { recv, .. } => recv[from],
            shape => block_of(shape, to),
        };
        let before = |call: &Collective| match &call.shape {
            Shape::Pairs { send, .. } => send[..to].iter().sum(),
            _ => start(call, to),
        };
        if expected == 0 { (from, 0, 0) } else { (from, before(&self.call(from).call), expected) }
    }

    /// Where the reduced output of `me` lies after the folds.
    fn reduced(&self, me: usize) -> Vec<(usize, u64, u64)> {
        let plan = self.plan.as_ref().expect("whoever claimed the folds has made the plan");
        let placements = plan.result(GroupRank::from(me)).iter();
        placements.map(|part| (part.slot.index(), part.span.start, part.span.len)).collect()
    }

    /// Elements of a member's input as bytes of the arena.
    fn range(&self, member: usize, start: u64, len: u64) -> (Offset, u64) {
        let Member { call, staged } = self.call(member);
        let offset = staged.unwrap_or_else(|| panic!("member {member} of a {} has staged nothing", call.kind));
        (offset + start * call.dtype.size(), len * call.dtype.size())
    }
}

/// Elements of the block of `member`.
fn block(call: &Collective, member: usize) -> u64 {
    block_of(&call.shape, member)
}

fn block_of(shape: &Shape, member: usize) -> u64 {
    match shape {
        Shape::Even(count) => *count,
        Shape::Blocks(blocks) => blocks[member],
        Shape::Pairs { .. } => panic!("only all-to-all has unequal pairs"),
    }
}

/// The first element of the block of `member`, where blocks lie one after the other.
fn start(call: &Collective, member: usize) -> u64 {
    (0..member).map(|before| block(call, before)).sum()
}
