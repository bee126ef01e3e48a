//! Owns the location of each operation's data: the staged inputs of members, the ranges that a member may read, and the
//! times at which blocks become free.
//!
//! The module moves no bytes, except for small reductions and contributions of absent ranks (ranks move data through
//! the arena), and knows no time (the engine does). It only observes issued and matched operations.

mod copies;
mod instance;
mod reduction_plans;

use copies::Copies;
use instance::{Instance, Member};
use reduction_plans::{Group, ReductionPlans};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uniference_protocol::memory::Window;
use uniference_protocol::messages::{Fetched, Offset, OutputPart};
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::event::{Event, Meeting};
use uniference_sim::fold_plan::FoldPlan;
use uniference_sim::ids::{GroupId, Handle, RankId, TaskId};
use uniference_sim::program::{Call, CallOp, Collective, NcclSettings};

/// The data of all operations.
#[derive(Default)]
pub(crate) struct DataPlane {
    groups: BTreeMap<GroupId, Group>,
    /// First two ranks that gave one group different NCCL settings.
    disagreement: Option<[RankId; 2]>,
    /// Calls that the engine has not issued yet.
    announced: BTreeMap<RankId, Vec<Announced>>,
    /// Number of collectives of a group that a rank has issued.
    counts: BTreeMap<(RankId, GroupId), u64>,
    collectives: BTreeMap<Key, Instance>,
    plans: ReductionPlans,
    /// The arena, if small reductions are done in the driver.
    window: Option<Window>,
    /// Operations that have not been released.
    held: BTreeMap<(RankId, Handle), Held>,
    /// Inputs of sends with their receivers, until the receivers have released them.
    sends: BTreeMap<(RankId, Handle), (Offset, RankId)>,
    /// Blocks of inputs that are still being copied.
    filling: BTreeSet<Offset>,
    /// Free blocks that have not been reported to their owner yet.
    freed: BTreeMap<RankId, Vec<Offset>>,
    /// Complete and failed operations that have not been reported to their owner yet.
    over: BTreeMap<RankId, Vec<Handle>>,
    /// By rank, groups in which a peer caused operations to fail since the last report.
    failed: BTreeMap<RankId, BTreeSet<GroupId>>,
    /// Ranks whose programs have ended: their data need not be kept for reading.
    gone: BTreeSet<RankId>,
    /// Copies for the absent ranks of a rehearsal.
    copies: Option<Copies>,
}

/// A call that the engine will issue.
struct Announced {
    /// The call in the form that the engine receives.
    heard: Call,
    /// The call as it applies to the whole group.
    call: Call,
    staged: Option<Offset>,
}

/// The n-th collective of a group.
type Key = (GroupId, u64);

/// An operation of one rank.
enum Held {
    Collective { key: Key, me: usize },
    Send,
    Recv { group: GroupId, bytes: u64, from: Option<(RankId, Handle)> },
}

/// The result of a rank's request for its data.
#[derive(Debug, PartialEq)]
pub(crate) enum Access {
    /// The data is available.
    Ready(Fetched),
    /// A member is still reducing the data or copying its input: the caller must try again afterwards.
    Busy,
}

impl DataPlane {
    /// A data plane for collectives of these algorithms.
    pub(crate) fn of(algorithms: AlgorithmTable) -> DataPlane {
        DataPlane { plans: ReductionPlans::of(algorithms), ..DataPlane::default() }
    }

    /// From now on, the driver itself carries out small reductions.
    pub(crate) fn reduce_in(&mut self, window: Window) {
        self.window = Some(window);
    }

    /// From now on, ranks of the fold plan without processes contribute copies of other ranks' data. The copies are in
    /// `window`, of which each rank has `part` bytes.
    pub(crate) fn rehearse(&mut self, fold_plan: Arc<FoldPlan>, window: Window, part: u64) {
        self.copies = Some(Copies::new(fold_plan, window, part));
    }

    /// Records that `rank` joins `group` of `ranks` with these NCCL settings. The settings of the first member count.
    ///
    /// # Errors
    /// The first absent member whose class has no running rank in the group.
    pub(crate) fn join(
        &mut self,
        group: GroupId,
        rank: RankId,
        ranks: &Arc<[RankId]>,
        settings: Option<NcclSettings>,
    ) -> Result<(), RankId> {
        let known = self.groups.entry(group).or_insert_with(|| Group { ranks: ranks.clone(), first: rank, settings });
        if known.settings != settings {
            self.disagreement.get_or_insert([known.first, rank]);
        }
        self.copies.as_mut().map_or(Ok(()), |copies| copies.join(group, ranks))
    }

    /// First two ranks that gave one group different NCCL settings.
    pub(crate) fn disagreement(&self) -> Option<[RankId; 2]> {
        self.disagreement
    }

    /// Records that a task is about to issue `call`, which the engine receives as `heard`; the call's input is at
    /// `staged`.
    pub(crate) fn announce(&mut self, (rank, task): (RankId, TaskId), heard: Call, call: Call, staged: Option<Offset>) {
        if let Some(copies) = &mut self.copies {
            let ranks = &self.groups[&call.group].ranks;
            let me = ranks.iter().position(|member| *member == rank).expect("who calls is a member");
            let there = staged.filter(|room| !self.filling.contains(room));
            copies.contributes((rank, task), (&call.op, ranks.len(), me), staged, there.is_some());
        }
        self.announced.entry(rank).or_default().push(Announced { heard, call, staged });
    }

    /// Contributions since the last call, in a rehearsal: the rank's task, the number of its call, and a checksum.
    pub(crate) fn take_contributions(&mut self) -> Vec<(RankId, TaskId, u64, u64)> {
        self.copies.as_mut().map(Copies::take_contributions).unwrap_or_default()
    }

    /// Marks the input in this block as not yet copied.
    pub(crate) fn filling(&mut self, room: Offset) {
        self.filling.insert(room);
    }

    /// Marks the input in this block as copied.
    pub(crate) fn filled(&mut self, room: Offset) {
        self.filling.remove(&room);
        if let Some(copies) = &mut self.copies {
            copies.filled(room);
        }
    }

    /// Handles the engine's issue of a call. If threads of a rank have announced equal calls, their order does not
    /// matter.
    fn issued(&mut self, rank: RankId, handle: Handle, call: &Call) {
        let announced = self.announced.entry(rank).or_default();
        let at = announced.iter().position(|known| known.heard == *call);
        let at = at.unwrap_or_else(|| panic!("{rank} issues {handle} unannounced"));
        let Announced { ref call, staged, .. } = announced.remove(at);
        let held = match &call.op {
            CallOp::Collective(collective) => self.enter((rank, handle), call.group, collective, staged),
            CallOp::Send { to, .. } => {
                let receiver = self.groups[&call.group].ranks[to.index()];
                self.sends.extend(staged.map(|offset| ((rank, handle), (offset, receiver))));
                if self.gone.contains(&receiver) {
                    self.free_send((rank, handle));
                }
                Held::Send
            }
            // The input of a write is not staged: no rank fetches it.
            CallOp::Write { .. } => Held::Send,
            CallOp::Recv { bytes, .. } => Held::Recv { group: call.group, bytes: bytes.0, from: None },
        };
        self.held.insert((rank, handle), held);
    }

    fn enter(
        &mut self,
        (rank, handle): (RankId, Handle),
        group: GroupId,
        collective: &Collective,
        staged: Option<Offset>,
    ) -> Held {
        let me = self.group_rank(group, rank);
        let count = self.counts.entry((rank, group)).or_default();
        let key = (group, std::mem::replace(count, *count + 1));
        let size = self.groups[&group].ranks.len();
        let instance = self.collectives.entry(key).or_insert_with(|| Instance::new(size));
        instance.enter(me, Member { handle, call: collective.clone(), staged, released: false });
        if let Some(copies) = &mut self.copies {
            let ranks = &self.groups[&group].ranks;
            let is_filling = staged.is_some_and(|room| self.filling.contains(&room));
            for (member, staged) in copies.of(group, ranks, me, collective, staged, is_filling) {
                instance.enter(member, Member { handle, call: collective.clone(), staged, released: true });
            }
        }
        self.settle(key);
        Held::Collective { key, me }
    }

    fn group_rank(&self, group: GroupId, rank: RankId) -> usize {
        let Group { ranks, .. } = self.groups.get(&group).unwrap_or_else(|| panic!("{group} was never named"));
        ranks.iter().position(|r| *r == rank).unwrap_or_else(|| panic!("{rank} is not in {group}"))
    }

    /// Observes the engine's events. An operation may be complete before its rank knows the handle.
    pub(crate) fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Issued { rank, handle, call, .. } => self.issued(*rank, *handle, call),
            Event::Completed { rank, handle, call, algorithm, meeting, .. } => {
                self.over.entry(*rank).or_default().push(*handle);
                self.completed((*rank, *handle), call, *algorithm, *meeting);
            }
            Event::Failed { rank, handle, call, peer, .. } => {
                self.over.entry(*rank).or_default().push(*handle);
                if peer != rank {
                    self.failed.entry(*rank).or_default().insert(call.group);
                }
            }
            Event::Finished { rank, .. } => self.leave(*rank),
            _ => {}
        }
    }

    /// Records that `rank` has ended and reads no more data: blocks that waited only for this rank become free.
    fn leave(&mut self, rank: RankId) {
        self.gone.insert(rank);
        let unread = self.sends.iter().filter(|(_, (_, receiver))| *receiver == rank).map(|(send, _)| *send);
        for send in unread.collect::<Vec<_>>() {
            self.free_send(send);
        }
        for key in
            self.collectives.keys().filter(|key| self.groups[&key.0].ranks.contains(&rank)).copied().collect::<Vec<_>>()
        {
            self.settle(key);
        }
    }

    /// Records the send that a receive has matched, and the algorithm of a collective.
    fn completed(&mut self, of: (RankId, Handle), call: &Call, algorithm: Option<&'static str>, meeting: Meeting) {
        match (self.held.get_mut(&of), meeting) {
            (Some(Held::Collective { key, me }), _) => {
                if let Some(instance) = self.collectives.get_mut(key) {
                    // The algorithm for the members that run may differ from the algorithm for the whole group.
                    let is_whole = self.copies.as_ref().is_none_or(|copies| copies.all_run(key.0));
                    let of_whole = || instance.called_by(*me).map(|call| self.plans.choice(call, &self.groups[&key.0]));
                    let algorithm = if is_whole { algorithm } else { of_whole() };
                    instance.carried_out_by(algorithm);
                }
            }
            (Some(Held::Recv { from, .. }), Meeting::Peer(peer)) => *from = peer,
            // If a receive was released before its completion, its message will not be read.
            (None, Meeting::Peer(Some(peer))) if matches!(call.op, CallOp::Recv { .. }) => self.free_send(peer),
            _ => {}
        }
    }

    /// The data of a complete operation, if it is available without a reduction and without waiting.
    fn peek(&self, rank: RankId, handle: Handle) -> Option<Fetched> {
        match self.held.get(&(rank, handle))? {
            // Once all receivers of a collective have released it, the remaining members have no output, so there is no
            // data for them.
            Held::Collective { key, me } => {
                self.collectives.get(key).map_or(Some(Fetched::default()), |instance| instance.ready(*me))
            }
            Held::Send => Some(Fetched::default()),
            Held::Recv { group, bytes, from } => from.map(|peer| self.message(*group, *bytes, peer)),
        }
    }

    fn message(&self, group: GroupId, bytes: u64, peer: (RankId, Handle)) -> Fetched {
        let pieces = self.sends.get(&peer).filter(|_| bytes > 0).map(|(offset, _)| OutputPart {
            offset: *offset,
            bytes,
            other: None,
        });
        let pieces: Vec<OutputPart> = pieces.into_iter().collect();
        let lacks_values = bytes > 0 && pieces.is_empty();
        Fetched { pieces, peer: Some(self.group_rank(group, peer.0) as u32), lacks_values, ..Fetched::default() }
    }

    /// The data of a complete operation. If the operation is a reduction, the first member that requests its data is
    /// chosen to reduce.
    ///
    /// # Panics
    /// If the operation is not complete, or was released.
    pub(crate) fn fetch(&mut self, rank: RankId, handle: Handle) -> Access {
        if !self.filling.is_empty() && self.is_filling(rank, handle) {
            return Access::Busy;
        }
        match (self.peek(rank, handle), self.held.get(&(rank, handle))) {
            (Some(ready), _) => Access::Ready(ready),
            (None, Some(Held::Collective { key, me })) => {
                let me = *me;
                self.collectives
                    .get_mut(key)
                    .expect("kept while held")
                    .claim(me, &self.groups[&key.0], &mut self.plans, self.window.as_ref())
                    .map_or(Access::Busy, Access::Ready)
            }
            _ => panic!("{rank} fetches {handle}, which is not complete"),
        }
    }

    /// Whether an input of the operation has not been copied yet.
    fn is_filling(&self, rank: RankId, handle: Handle) -> bool {
        let instance = match self.held.get(&(rank, handle)) {
            Some(Held::Collective { key, .. }) => self.collectives.get(key),
            _ => None,
        };
        instance.is_some_and(|instance| instance.rooms().flatten().any(|room| self.filling.contains(&room)))
    }

    /// All members' handles of the collective that `handle` belongs to, if all have entered it.
    pub(crate) fn members(&self, rank: RankId, handle: Handle) -> Vec<(RankId, Handle)> {
        let Some(Held::Collective { key, .. }) = self.held.get(&(rank, handle)) else { return Vec::new() };
        let handles = self.collectives.get(key).and_then(Instance::handles);
        handles.map_or(Vec::new(), |handles| self.groups[&key.0].ranks.iter().copied().zip(handles).collect())
    }

    /// Marks the reduction that `rank` was chosen for as done.
    pub(crate) fn folded(&mut self, rank: RankId, handle: Handle) {
        if let Some(Held::Collective { key, .. }) = self.held.get(&(rank, handle)) {
            self.collectives.get_mut(key).expect("whoever folds has not released it").folded();
        }
    }

    /// Releases the data of `handle` for `rank`.
    pub(crate) fn release(&mut self, rank: RankId, handle: Handle) {
        match self.held.remove(&(rank, handle)) {
            Some(Held::Collective { key, me }) => {
                if let Some(instance) = self.collectives.get_mut(&key) {
                    instance.release(me);
                    self.settle(key);
                }
            }
            Some(Held::Recv { from: Some(peer), .. }) => self.free_send(peer),
            _ => {}
        }
    }

    /// The blocks of `rank` that became free since the last call.
    pub(crate) fn take_freed(&mut self, rank: RankId) -> Vec<Offset> {
        self.freed.remove(&rank).unwrap_or_default()
    }

    /// The operations of `rank` that completed or failed since the last call.
    pub(crate) fn take_over(&mut self, rank: RankId) -> Vec<Handle> {
        self.over.remove(&rank).unwrap_or_default()
    }

    /// The groups in which other ranks caused operations of `rank` to fail since the last call.
    pub(crate) fn take_failed(&mut self, rank: RankId) -> Vec<u32> {
        self.failed.remove(&rank).unwrap_or_default().into_iter().map(|group| group.0).collect()
    }

    /// Returns operations to the list of [`DataPlane::take_over`].
    pub(crate) fn keep_over(&mut self, rank: RankId, handles: Vec<Handle>) {
        if !handles.is_empty() {
            self.over.entry(rank).or_default().extend(handles);
        }
    }

    fn free_send(&mut self, (rank, handle): (RankId, Handle)) {
        let room = self.sends.remove(&(rank, handle));
        self.freed.entry(rank).or_default().extend(room.map(|(offset, _)| offset));
    }

    /// Frees the remaining blocks of a collective that all members have entered and all receivers have released.
    fn settle(&mut self, key: Key) {
        let ranks = &self.groups[&key.0].ranks;
        if !self.collectives[&key].over(|me| !self.gone.is_empty() && self.gone.contains(&ranks[me])) {
            return;
        }
        let instance = self.collectives.remove(&key).expect("it was there");
        for (rank, room) in self.groups[&key.0].ranks.iter().zip(instance.rooms()) {
            match &mut self.copies {
                Some(copies) if !copies.runs(*rank) => copies.free(*rank, room),
                _ => self.freed.entry(*rank).or_default().extend(room),
            }
        }
    }
}
