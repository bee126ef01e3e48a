//! Owns one collective of a whole group: the staged inputs of its members, and the ranges of those inputs that form
//! each member's output.
//!
//! The engine decides the time of the collective, and `data` frees the blocks.

use super::reduction_plans::{Group, ReductionPlans};
use std::sync::Arc;
use uniference_protocol::memory::{Kernel, Window};
use uniference_protocol::messages::{Fetched, Offset, OutputPart};
use uniference_sim::collective::fold::{Fold, ReductionPlan};
use uniference_sim::ids::{GroupRank, Handle};
use uniference_sim::program::{CallOp, Collective, CollectiveKind, DType, ReduceOp, Shape};

/// Largest total size in bytes of reductions that the driver carries out itself, which is faster than letting a member
/// do so.
const FOLDED_HERE: u64 = 256 << 10;

/// One member's call of the collective.
pub(super) struct Member {
    pub(super) handle: Handle,
    pub(super) call: Collective,
    /// Offset of the member's input; `None` if it contributes nothing, or a tensor whose values were not computed.
    pub(super) staged: Option<Offset>,
    /// Whether the member has released its output.
    pub(super) released: bool,
}

/// Progress of the reduction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folding {
    Open,
    /// The member with this group rank has claimed the reduction.
    Claimed(usize),
    Done,
}

/// One collective of a whole group.
pub(super) struct Instance {
    members: Vec<Option<Member>>,
    /// The name of the collective's algorithm, once the engine has reported it.
    algorithm: Option<&'static str>,
    folding: Folding,
    /// The plan of a reduction, once a member has claimed it.
    plan: Option<Arc<ReductionPlan>>,
}

impl Instance {
    pub(super) fn new(size: usize) -> Instance {
        let members = std::iter::repeat_with(|| None).take(size).collect();
        Instance { members, algorithm: None, folding: Folding::Open, plan: None }
    }

    pub(super) fn enter(&mut self, me: usize, member: Member) {
        self.members[me] = Some(member);
    }

    pub(super) fn carried_out_by(&mut self, algorithm: Option<&'static str>) {
        self.algorithm = algorithm;
    }

    /// Releases the output of member `me`. If the member had claimed the reduction and not finished it, another member
    /// may claim it.
    pub(super) fn release(&mut self, me: usize) {
        if self.folding == Folding::Claimed(me) {
            self.folding = Folding::Open;
        }
        self.members[me].as_mut().expect("whoever releases has entered").released = true;
    }

    /// Whether all members have entered and all receivers have released, not counting members that are `gone`.
    pub(super) fn over(&self, gone: impl Fn(usize) -> bool) -> bool {
        let done = |member: &Member, me| member.released || !self.receives(me);
        let each = |(me, member): (usize, &Option<Member>)| member.as_ref().is_some_and(|m| done(m, me)) || gone(me);
        self.members.iter().enumerate().all(each)
    }

    /// Offsets of all inputs, by member.
    pub(super) fn rooms(&self) -> impl Iterator<Item = Option<Offset>> {
        self.members.iter().map(|member| member.as_ref().and_then(|m| m.staged))
    }

    /// Each member's handle of the collective, once all have entered.
    pub(super) fn handles(&self) -> Option<Vec<Handle>> {
        self.members.iter().map(|member| member.as_ref().map(|m| m.handle)).collect()
    }

    /// The output of `me`, if it is available without a reduction and without waiting.
    pub(super) fn ready(&self, me: usize) -> Option<Fetched> {
        if self.lacks_values() {
            return Some(Fetched { lacks_values: self.receives(me), ..Fetched::default() });
        }
        let settled = !self.must_fold(me) || self.folding == Folding::Done;
        settled.then(|| Fetched { pieces: self.pieces(me), ..Fetched::default() })
    }

    /// The output of `me` in `group`; `me` must reduce if no member has claimed the reduction. `None` while another
    /// member reduces. With `here`, small reductions are done in the driver.
    pub(super) fn claim(
        &mut self,
        me: usize,
        group: &Group,
        plans: &mut ReductionPlans,
        here: Option<&Window>,
    ) -> Option<Fetched> {
        if let Some(ready) = self.ready(me) {
            return Some(ready);
        }
        if self.folding == Folding::Open {
            let algorithm = self.algorithm.expect("a complete collective has an algorithm");
            self.plan = Some(plans.get(&self.call(me).call, algorithm, group));
            if let Some(sums) = self.sums(me) {
                return Some(sums);
            }
            self.folding = Folding::Claimed(me);
            self.fold_small(here);
        }
        self.ready(me).or_else(|| {
            (self.folding == Folding::Claimed(me)).then(|| Fetched {
                pieces: self.pieces(me),
                folds: self.folds(),
                kernel: self.kernel(me),
                ..Fetched::default()
            })
        })
    }

    /// The output of one of two members, as sums of both staged inputs: neither needs to reduce for the other.
    fn sums(&self, me: usize) -> Option<Fetched> {
        if self.members.len() > 2 {
            return None;
        }
        let kernel = self.kernel(me)?;
        let folds = self.folds();
        let other = |piece: OutputPart| {
            let within = |(into, _, bytes): &&(Offset, Offset, u64)| (*into..into + bytes).contains(&piece.offset);
            let (into, source, bytes) = folds.iter().find(within)?;
            let fits = piece.offset + piece.bytes <= into + bytes;
            fits.then(|| OutputPart { other: Some(source + (piece.offset - into)), ..piece })
        };
        let pieces = self.placed(me).into_iter().map(other).collect::<Option<Vec<_>>>()?;
        Some(Fetched { pieces: joined(pieces), kernel: Some(kernel), ..Fetched::default() })
    }

    fn fold_small(&mut self, here: Option<&Window>) {
        let Folding::Claimed(me) = self.folding else { return };
        let kernel = self.kernel(me).and_then(|(op, dtype)| Kernel::of(op, dtype));
        let (Some(window), Some(kernel)) = (here, kernel) else { return };
        let folds = self.folds();
        if folds.iter().map(|(.., bytes)| bytes).sum::<u64>() <= FOLDED_HERE {
            window.fold(&folds, kernel);
            self.folded();
        }
    }

    /// The reduction and data type, if a kernel other than torch's exists for them.
    fn kernel(&self, me: usize) -> Option<(ReduceOp, DType)> {
        let call = &self.call(me).call;
        let op = call.reduce?;
        Kernel::of(op, call.dtype).map(|_| (op, call.dtype))
    }

    /// Marks the reduction as done by the member that claimed it.
    pub(super) fn folded(&mut self) {
        self.folding = Folding::Done;
    }

    /// The call of a member, if it has entered.
    pub(super) fn called_by(&self, member: usize) -> Option<&Collective> {
        self.members[member].as_ref().map(|member| &member.call)
    }

    fn call(&self, member: usize) -> &Member {
        self.members[member]
            .as_ref()
            .unwrap_or_else(|| panic!("member {member} has not entered, yet its data is asked for"))
    }

    /// Any member's call: all calls are equal except for the blocks of an all-to-all.
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

    /// Whether a member's contribution has no values: if so, the whole operation moves sizes and no data.
    fn lacks_values(&self) -> bool {
        let contributes = |me: usize, call: &Collective| match call.kind {
            CollectiveKind::Broadcast | CollectiveKind::Scatter => call.root.is_some_and(|root| root.index() == me),
            CollectiveKind::Barrier => false,
            _ => true,
        };
        let lacks = |(me, member): (usize, &Option<Member>)| {
            member.as_ref().is_some_and(|member| member.staged.is_none() && contributes(me, &member.call))
        };
        self.members.iter().enumerate().any(lacks)
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

    /// The output of `me`: ranges of the members' inputs, in order.
    fn pieces(&self, me: usize) -> Vec<OutputPart> {
        if self.receives(me) { joined(self.placed(me)) } else { Vec::new() }
    }

    fn placed(&self, me: usize) -> Vec<OutputPart> {
        let sources = self.sources(me).into_iter().filter(|(.., len)| *len > 0);
        let place = |(member, start, len)| {
            let (offset, bytes) = self.range(member, start, len);
            OutputPart { offset, bytes, other: None }
        };
        sources.map(place).collect()
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

    /// The elements that `from` sends to `to` in an all-to-all; none if `to` expects none, in which case `from` need
    /// not have entered.
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

    /// Parts of the inputs that contain the reduced output of `me` after the reduction.
    fn reduced(&self, me: usize) -> Vec<(usize, u64, u64)> {
        let plan = self.plan.as_ref().expect("whoever claimed the folds has made the plan");
        let placements = plan.result(GroupRank::from(me)).iter();
        placements.map(|part| (part.slot.index(), part.span.start, part.span.len)).collect()
    }

    /// Elements of a member's input as bytes of the arena.
    fn range(&self, member: usize, start: u64, len: u64) -> (Offset, u64) {
        let Member { call, staged, .. } = self.call(member);
        let offset = staged.unwrap_or_else(|| panic!("member {member} of a {} has staged nothing", call.kind));
        (offset + start * call.dtype.size(), len * call.dtype.size())
    }
}

/// Merges adjacent pieces.
fn joined(pieces: Vec<OutputPart>) -> Vec<OutputPart> {
    let mut joined: Vec<OutputPart> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.joins(&piece) => last.bytes += piece.bytes,
            _ => joined.push(piece),
        }
    }
    joined
}

/// Bytes that member `me` of `size` contributes to an operation.
pub(super) fn contribution(op: &CallOp, size: usize, me: usize) -> u64 {
    use CollectiveKind::*;
    let call = match op {
        CallOp::Collective(call) => call,
        CallOp::Send { bytes, .. } => return bytes.0,
        CallOp::Recv { .. } | CallOp::Write { .. } => return 0,
    };
    let is_root = call.root.is_some_and(|root| root.index() == me);
    let elements = match (call.kind, &call.shape) {
        (Barrier, _) => 0,
        (Broadcast | Scatter, _) if !is_root => 0,
        (AllToAll, Shape::Pairs { send, .. }) => send.iter().sum(),
        (AllReduce | Reduce | Broadcast | AllGather | Gather, _) => block(call, me),
        (ReduceScatter | Scatter | AllToAll, _) => start(call, size),
    };
    elements * call.dtype.size()
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

/// The first element of the block of `member`, for blocks in consecutive order.
fn start(call: &Collective, member: usize) -> u64 {
    (0..member).map(|before| block(call, before)).sum()
}
