//! Owns where the data of each operation lies: which member staged what, what a member may read, and when a room is free again.
//!
//! It moves no bytes but those of small reductions and of members that do not run (ranks do, through the arena) and knows no time (the engine
//! does): it only looks at what was issued and met.

mod copies;

use super::fold::Plans;
use super::instance::{Instance, Member};
use copies::Copies;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uniference_protocol::memory::Window;
use uniference_protocol::messages::{Fetched, Offset, Piece};
use uniference_sim::cast::Cast;
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::event::{Event, Meeting};
use uniference_sim::ids::{GroupId, Handle, RankId, TaskId};
use uniference_sim::program::{Call, CallOp, Collective, NcclSettings};

/// Where all data lies.
#[derive(Default)]
pub struct DataPlane {
    groups: BTreeMap<GroupId, Group>,
    /// First two ranks that gave one group different NCCL settings.
    disagreement: Option<[RankId; 2]>,
    /// Calls that the engine has not begun with.
    announced: BTreeMap<RankId, Vec<Announced>>,
    /// How many collectives of a group a rank has issued.
    counts: BTreeMap<(RankId, GroupId), u64>,
    collectives: BTreeMap<Key, Instance>,
    plans: Plans,
    /// The arena, if small reductions are to be done here.
    window: Option<Window>,
    /// Operations that were not released yet.
    held: BTreeMap<(RankId, Handle), Held>,
    /// Inputs of sends and their receivers, until those have released them.
    sends: BTreeMap<(RankId, Handle), (Offset, RankId)>,
    /// Rooms of inputs that are still being copied.
    filling: BTreeSet<Offset>,
    /// Rooms that their owner has not yet been told are free.
    freed: BTreeMap<RankId, Vec<Offset>>,
    /// Operations that are complete or have failed, which their owner has not yet been told.
    over: BTreeMap<RankId, Vec<Handle>>,
    /// Groups in which a peer has let operations fail, by rank, since the last time.
    failed: BTreeMap<RankId, BTreeSet<GroupId>>,
    /// Ranks whose programs have ended: nobody waits for them to read.
    gone: BTreeSet<RankId>,
    /// Of a rehearsal.
    copies: Option<Copies>,
}

/// A process group.
pub(super) struct Group {
    pub(super) ranks: Arc<[RankId]>,
    /// Rank that joined first.
    pub(super) first: RankId,
    /// NCCL settings of the rank that joined first; `None` if it made none.
    pub(super) settings: Option<NcclSettings>,
}

/// A call that the engine will begin with.
struct Announced {
    /// As the engine has heard it.
    heard: Call,
    /// The same in the whole group.
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

/// What a rank that wants its data is told.
#[derive(Debug, PartialEq)]
pub enum Access {
    /// Here it is.
    Ready(Fetched),
    /// A member reduces, or copies its input: ask again once it has.
    Busy,
}

impl DataPlane {
    /// For collectives that these algorithms carry out.
    pub fn of(algorithms: AlgorithmTable) -> DataPlane {
        DataPlane { plans: Plans::of(algorithms), ..DataPlane::default() }
    }

    /// Does small reductions itself from here on, rather than let a member.
    pub fn reduce_in(&mut self, window: Window) {
        self.window = Some(window);
    }

    /// Ranks of the cast that do not run contribute copies from here on, made in `window`, of which each rank has a part of so many bytes.
    pub fn rehearse(&mut self, cast: Arc<Cast>, window: Window, part: u64) {
        self.copies = Some(Copies::new(cast, window, part));
    }

    /// Records that `rank` joins `group` of `ranks` with these NCCL settings. The settings of the first member count.
    ///
    /// # Errors
    /// A member that does not run, and nobody stands in for.
    pub fn join(
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
    pub fn disagreement(&self) -> Option<[RankId; 2]> {
        self.disagreement
    }

    /// A task is about to issue `call`, of which the engine hears as `heard`, with its input at `staged`.
    pub fn announce(&mut self, (rank, task): (RankId, TaskId), heard: Call, call: Call, staged: Option<Offset>) {
        if let Some(copies) = &mut self.copies {
            let ranks = &self.groups[&call.group].ranks;
            let me = ranks.iter().position(|member| *member == rank).expect("who calls is a member");
            let there = staged.filter(|room| !self.filling.contains(room));
            copies.contributes((rank, task), (&call.op, ranks.len(), me), staged, there.is_some());
        }
        self.announced.entry(rank).or_default().push(Announced { heard, call, staged });
    }

    /// Of a rehearsal: what was contributed since the last time, as the rank's task, the number of its call, and a checksum.
    pub fn take_contributions(&mut self) -> Vec<(RankId, TaskId, u64, u64)> {
        self.copies.as_mut().map(Copies::take_contributions).unwrap_or_default()
    }

    /// The input in this room is yet to come.
    pub fn filling(&mut self, room: Offset) {
        self.filling.insert(room);
    }

    /// The input in this room is there.
    pub fn filled(&mut self, room: Offset) {
        self.filling.remove(&room);
        if let Some(copies) = &mut self.copies {
            copies.filled(room);
        }
    }

    /// The engine has begun with a call. Where threads of a rank have announced calls alike, which is which is theirs to order.
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
            // Its input is not staged: nobody fetches it.
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

    /// Sees the engine's events. An operation may be complete before its rank is told how it is called.
    pub fn observe(&mut self, event: &Event<'_>) {
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

    /// `rank` enters and reads nothing any more: what only waits for that is free.
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

    /// With which send a receive has met, and which algorithm has carried out a collective.
    fn completed(&mut self, of: (RankId, Handle), call: &Call, algorithm: Option<&'static str>, meeting: Meeting) {
        match (self.held.get_mut(&of), meeting) {
            (Some(Held::Collective { key, me }), _) => {
                if let Some(instance) = self.collectives.get_mut(key) {
                    // That of the members that run is not the whole group's.
                    let is_whole = self.copies.as_ref().is_none_or(|copies| copies.all_run(key.0));
                    let of_whole = || instance.called_by(*me).map(|call| self.plans.choice(call, &self.groups[&key.0]));
                    let algorithm = if is_whole { algorithm } else { of_whole() };
                    instance.carried_out_by(algorithm);
                }
            }
            (Some(Held::Recv { from, .. }), Meeting::Peer(peer)) => *from = peer,
            // Released before it was complete: nobody will read the message.
            (None, Meeting::Peer(Some(peer))) if matches!(call.op, CallOp::Recv { .. }) => self.free_send(peer),
            _ => {}
        }
    }

    /// The data of a complete operation, if it can be had without folding and without waiting.
    fn peek(&self, rank: RankId, handle: Handle) -> Option<Fetched> {
        match self.held.get(&(rank, handle))? {
            // An instance that is over has nothing for those who still hold it: they receive nothing.
            Held::Collective { key, me } => {
                self.collectives.get(key).map_or(Some(Fetched::default()), |instance| instance.ready(*me))
            }
            Held::Send => Some(Fetched::default()),
            Held::Recv { group, bytes, from } => from.map(|peer| self.message(*group, *bytes, peer)),
        }
    }

    fn message(&self, group: GroupId, bytes: u64, peer: (RankId, Handle)) -> Fetched {
        let pieces = self.sends.get(&peer).filter(|_| bytes > 0).map(|(offset, _)| Piece {
            offset: *offset,
            bytes,
            other: None,
        });
        let pieces: Vec<Piece> = pieces.into_iter().collect();
        let lacks_values = bytes > 0 && pieces.is_empty();
        Fetched { pieces, peer: Some(self.group_rank(group, peer.0) as u32), lacks_values, ..Fetched::default() }
    }

    /// The data of a complete operation. Whoever is first to ask for a reduction is picked to fold.
    ///
    /// # Panics
    /// If the operation is not complete, or was released.
    pub fn fetch(&mut self, rank: RankId, handle: Handle) -> Access {
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

    /// Whether an input of the operation is yet to come.
    fn is_filling(&self, rank: RankId, handle: Handle) -> bool {
        let instance = match self.held.get(&(rank, handle)) {
            Some(Held::Collective { key, .. }) => self.collectives.get(key),
            _ => None,
        };
        instance.is_some_and(|instance| instance.rooms().flatten().any(|room| self.filling.contains(&room)))
    }

    /// All members' names for the collective of which `handle` is one, if all have entered it.
    pub fn members(&self, rank: RankId, handle: Handle) -> Vec<(RankId, Handle)> {
        let Some(Held::Collective { key, .. }) = self.held.get(&(rank, handle)) else { return Vec::new() };
        let handles = self.collectives.get(key).and_then(Instance::handles);
        handles.map_or(Vec::new(), |handles| self.groups[&key.0].ranks.iter().copied().zip(handles).collect())
    }

    /// `rank` has folded the collective that it was picked for.
    pub fn folded(&mut self, rank: RankId, handle: Handle) {
        if let Some(Held::Collective { key, .. }) = self.held.get(&(rank, handle)) {
            self.collectives.get_mut(key).expect("whoever folds has not released it").folded();
        }
    }

    /// `rank` needs the data of `handle` no more.
    pub fn release(&mut self, rank: RankId, handle: Handle) {
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

    /// The rooms of `rank` that became free since the last time.
    pub fn take_freed(&mut self, rank: RankId) -> Vec<Offset> {
        self.freed.remove(&rank).unwrap_or_default()
    }

    /// The operations of `rank` that are over since the last time.
    pub fn take_over(&mut self, rank: RankId) -> Vec<Handle> {
        self.over.remove(&rank).unwrap_or_default()
    }

    /// The groups in which operations of `rank` have failed by others since the last time.
    pub fn take_failed(&mut self, rank: RankId) -> Vec<u32> {
        self.failed.remove(&rank).unwrap_or_default().into_iter().map(|group| group.0).collect()
    }

    /// These are to be taken again.
    pub fn keep_over(&mut self, rank: RankId, handles: Vec<Handle>) {
        if !handles.is_empty() {
            self.over.entry(rank).or_default().extend(handles);
        }
    }

    fn free_send(&mut self, (rank, handle): (RankId, Handle)) {
        let room = self.sends.remove(&(rank, handle));
        self.freed.entry(rank).or_default().extend(room.map(|(offset, _)| offset));
    }

    /// Frees the rooms of a collective that all members have entered and all who receive have released, as far as they are still there.
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
