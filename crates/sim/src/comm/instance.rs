//! Owns one running collective: its members' entries, their steps, and messages that have arrived before their receive.

use crate::collective::{Action, Algorithm, Beside, Step, Steps};
use crate::ids::{GroupId, GroupRank, Handle, MessageId, RankId, Site};
use crate::program::{Collective, CollectiveKind, PeerKernel, Shape};
use crate::time::{Bytes, SimTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The `sequence`-th collective of a group.
pub(crate) struct Instance {
    pub(crate) group: GroupId,
    pub(crate) sequence: u64,
    /// The call of the first member; all others must agree.
    pub(crate) call: Collective,
    pub(crate) first: Caller,
    /// `None` in a group of one.
    pub(crate) algorithm: Option<Arc<dyn Algorithm>>,
    /// The transport's number for the effect of the algorithm's protocol on messages.
    pub(crate) wire: u32,
    members: Vec<Option<Box<Member>>>,
    /// Number of simulated members.
    players: u32,
    entered: u32,
    finished: u32,
    last_entry: SimTime,
    root_entry: SimTime,
}

/// Rank, handle and line of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) rank: RankId,
    pub(crate) handle: Handle,
    pub(crate) site: Site,
}

/// One member of a running collective.
#[derive(Default)]
struct Member {
    /// The member's call; `None`: the member has not called yet, but messages for it have arrived.
    caller: Option<Caller>,
    /// The shape of this member's call in an all-to-all, in which members' shapes may differ.
    shape: Option<Shape>,
    entered: Option<SimTime>,
    /// Lane of the algorithm's steps; `others` are the lanes that run concurrently with it.
    lane: Lane,
    others: Vec<Lane>,
    /// Receives that have started: their sender, and their step.
    expected: BTreeSet<(GroupRank, u64)>,
    /// Number of messages by sender that have arrived before their receive.
    early: BTreeMap<GroupRank, u32>,
    /// Whether the member has left the collective.
    failed: bool,
    /// Whether the member has come to the collective, so that its first steps may start.
    has_begun: bool,
    /// Bytes that each peer has sent to this member before the member's first step.
    early_bytes: BTreeMap<GroupRank, Bytes>,
    /// Messages for this member that are held, each with its sender and its tag.
    held: Vec<(GroupRank, u32, MessageId)>,
    /// Number of this member's messages for which the receivers have no room, and the last time at which such a message
    /// got room.
    without_room: u32,
    had_room: SimTime,
}

/// Steps of a member that start in order.
#[derive(Default)]
struct Lane {
    steps: Option<std::iter::Peekable<Steps>>,
    /// For each step from the first incomplete one on, whether it is complete.
    window: VecDeque<bool>,
    /// Number of steps before the first incomplete one, which is the window's first.
    complete: u64,
}

impl Lane {
    fn of(steps: Steps) -> Lane {
        Lane { steps: Some(steps.peekable()), ..Lane::default() }
    }
}

/// A step of a member is identified by its lane, in the highest bits, and its number in the lane.
const LANE_BITS: u32 = 8;

fn step_of(lane: usize, number: u64) -> u64 {
    (lane as u64) << (u64::BITS - LANE_BITS) | number
}

fn lane_of(step: u64) -> (usize, u64) {
    ((step >> (u64::BITS - LANE_BITS)) as usize, step & (u64::MAX >> LANE_BITS))
}

/// Message or receive that a member posts.
pub(crate) enum Post {
    Send { to: GroupRank, bytes: Bytes, step: u64 },
    Receive { from: GroupRank, bytes: Bytes, combine: bool },
}

impl Instance {
    pub(crate) fn new(
        group: GroupId,
        sequence: u64,
        (size, players): (u32, u32),
        call: Collective,
        first: Caller,
        algorithm: Option<Arc<dyn Algorithm>>,
        wire: u32,
    ) -> Instance {
        let members = std::iter::repeat_with(|| None).take(size as usize).collect();
        let (last_entry, root_entry) = (SimTime::ZERO, SimTime::MAX);
        let (entered, finished) = (0, 0);
        Instance {
            group,
            sequence,
            call,
            first,
            algorithm,
            wire,
            members,
            players,
            entered,
            finished,
            last_entry,
            root_entry,
        }
    }

    pub(super) fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// Registers a member's call. The call may have to wait in its queue before it enters.
    pub(crate) fn announce(&mut self, me: GroupRank, caller: Caller, call: &Collective) {
        let member = self.member_or_new(me);
        member.caller = Some(caller);
        if call.kind == CollectiveKind::AllToAll {
            member.shape = Some(call.shape.clone());
        }
    }

    /// Whether a kernel of the program carries out the collective.
    pub(crate) fn is_of_program(&self) -> bool {
        self.algorithm.as_ref().is_some_and(|algorithm| algorithm.is_of_program())
    }

    fn member_or_new(&mut self, me: GroupRank) -> &mut Member {
        self.members[me.index()].get_or_insert_default()
    }

    /// Description of the first property in which a call differs from earlier ones; `None` if it agrees with all of
    /// them.
    pub(crate) fn disagreement(&self, me: GroupRank, call: &Collective) -> Option<String> {
        let theirs = &self.call;
        let differ = |what: &str, mine: &dyn std::fmt::Display, theirs: &dyn std::fmt::Display| {
            Some(format!("{what}: {mine} against {theirs}"))
        };
        if call.kind != theirs.kind {
            return differ("operation", &call.kind, &theirs.kind);
        }
        if call.dtype != theirs.dtype {
            return differ("dtype", &call.dtype.name(), &theirs.dtype.name());
        }
        if call.reduce != theirs.reduce {
            return differ("reduce operation", &OrNone(call.reduce), &OrNone(theirs.reduce));
        }
        if call.root != theirs.root {
            return differ("root", &OrNone(call.root.map(|root| root.0)), &OrNone(theirs.root.map(|root| root.0)));
        }
        if call.kernel != theirs.kernel {
            let name = |call: &Collective| OrNone(call.kernel.map(PeerKernel::name));
            return differ("kernel", &name(call), &name(theirs));
        }
        self.shape_disagreement(me, call)
    }

    fn shape_disagreement(&self, me: GroupRank, call: &Collective) -> Option<String> {
        if call.kind != CollectiveKind::AllToAll {
            let agrees = call.shape == self.call.shape;
            return (!agrees).then(|| {
                format!("number of elements: {} against {}", Elements(&call.shape), Elements(&self.call.shape))
            });
        }
        // Each block is named by two calls: its size in the sender's call must equal its size in the receiver's call.
        for (index, member) in self.members.iter().enumerate() {
            let peer = GroupRank::from(index);
            let Some(Member { caller: Some(caller), shape: Some(shape), .. }) = member.as_deref() else { continue };
            let pairs = [
                (block(&call.shape, peer, Side::Send), block(shape, me, Side::Recv), "sends", "expects"),
                (block(&call.shape, peer, Side::Recv), block(shape, me, Side::Send), "expects", "sends"),
            ];
            for (mine, theirs, i, they) in pairs {
                if mine != theirs {
                    let them = caller.rank;
                    return Some(format!("number of elements: one side {i} {mine}, {them} {they} {theirs}"));
                }
            }
        }
        None
    }

    /// The member enters: this collective has reached the head of the member's queue.
    pub(crate) fn enter(&mut self, me: GroupRank, now: SimTime) {
        self.last_entry = self.last_entry.max(now);
        if self.call.root == Some(me) {
            self.root_entry = now;
        }
        let size = self.size();
        let algorithm = self.algorithm.clone();
        let member = self.members[me.index()].as_mut().expect("a member announces before it enters");
        assert!(member.entered.is_none(), "{me} enters {} twice", self.group);
        member.entered = Some(now);
        self.entered += 1;
        let call =
            Collective { shape: member.shape.clone().unwrap_or_else(|| self.call.shape.clone()), ..self.call.clone() };
        if let Some(algorithm) = algorithm {
            member.lane = Lane::of(algorithm.steps(&call, size, me));
            member.others = algorithm.other_lanes(&call, size, me).into_iter().map(Lane::of).collect();
            assert!(member.others.len() < 1 << LANE_BITS, "{} has too many lanes", algorithm.name());
        }
    }

    /// Counts a message of `bytes` bytes from `from` to the member `me`. If `me` has not come to the collective and
    /// does not have room for the whole message, returns how many of the bytes fit. Each sender has `room` bytes of
    /// room at `me`.
    pub(crate) fn lacks_room(&mut self, me: GroupRank, from: GroupRank, bytes: Bytes, room: Bytes) -> Option<Bytes> {
        let member = self.member_or_new(me);
        if member.has_begun {
            return None;
        }
        let early = member.early_bytes.entry(from).or_default();
        let left = Bytes(room.0.saturating_sub(early.0));
        *early += bytes;
        (bytes > left).then_some(left)
    }

    /// Holds a message of `sender` that lacks room until the member `me` comes to the collective.
    pub(crate) fn hold(&mut self, me: GroupRank, sender: GroupRank, message: u32, id: MessageId) {
        self.member_or_new(me).held.push((sender, message, id));
        self.member_or_new(sender).without_room += 1;
    }

    /// Records that the member has come to the collective, and returns the messages that were held for the member.
    pub(crate) fn begin(&mut self, me: GroupRank) -> Vec<(u32, MessageId)> {
        let member = self.member_or_new(me);
        member.has_begun = true;
        member.early_bytes.clear();
        let held = std::mem::take(&mut member.held);
        let entered = member.entered.expect("it comes by entering");
        for (sender, ..) in &held {
            let sender = self.member_or_new(*sender);
            sender.without_room -= 1;
            // The time that the call itself needs before its first step does not count as lateness.
            sender.had_room = sender.had_room.max(entered);
        }
        held.into_iter().map(|(_, message, id)| (message, id)).collect()
    }

    /// Starts every step that may start now and passes it to `post`. Returns true once the member has finished.
    pub(crate) fn run(&mut self, me: GroupRank, mut post: impl FnMut(Post)) -> bool {
        let element = self.call.dtype.size();
        let member = self.members[me.index()].as_mut().expect("only members run");
        if member.entered.is_none() || member.failed {
            return false;
        }
        while let Some((lane, index, step)) = member.next_step() {
            let number = step_of(lane, index);
            member.lane(lane).window.push_back(false);
            match step.action {
                Action::Send { to, span } => {
                    post(Post::Send { to, bytes: Bytes(span.len * element), step: number });
                }
                Action::Recv { from, span, combine } => {
                    member.start_receive(from, number);
                    post(Post::Receive { from, bytes: Bytes(span.len * element), combine });
                }
            }
        }
        let through = member.is_through();
        if through {
            self.finished += 1;
        }
        through
    }

    /// Completes a send of this member: its last byte has left.
    pub(crate) fn sent(&mut self, me: GroupRank, step: u64) {
        self.members[me.index()].as_mut().expect("only members send").finish(step);
    }

    /// Registers the arrival of a message of `from`. False if `me` has not started to receive it yet.
    pub(crate) fn arrived(&mut self, me: GroupRank, from: GroupRank) -> bool {
        let member = self.member_or_new(me);
        let oldest = member.expected.range((from, 0)..=(from, u64::MAX)).next().copied();
        match oldest {
            Some(receive) => {
                member.expected.remove(&receive);
                member.finish(receive.1);
                true
            }
            None => {
                *member.early.entry(from).or_default() += 1;
                false
            }
        }
    }

    /// The member leaves the collective. The instance is never removed then, because messages for the member may still
    /// be in flight.
    pub(crate) fn fail(&mut self, me: GroupRank) {
        self.member_or_new(me).failed = true;
    }

    /// Whether the member has a running step that needs `peer`. The steps are generated from the algorithm again, so
    /// that they need not be stored.
    pub(crate) fn waits_for(&self, me: GroupRank, peer: GroupRank) -> bool {
        let Some(member) = self.members[me.index()].as_deref().filter(|member| member.lane.steps.is_some()) else {
            return false;
        };
        let algorithm = self.algorithm.as_ref().expect("who has steps has an algorithm");
        let (call, size) = (self.call_of(member), self.size());
        let lanes = std::iter::once(algorithm.steps(&call, size, me)).chain(algorithm.other_lanes(&call, size, me));
        let with_peer = |step: Step| match step.action {
            Action::Send { to, .. } => to == peer,
            Action::Recv { from, .. } => from == peer,
        };
        let waits = |(steps, lane): (Steps, &Lane)| {
            let running = steps.skip(lane.complete as usize).zip(&lane.window);
            running.into_iter().any(|(step, complete)| !complete && with_peer(step))
        };
        !member.failed && lanes.zip(member.lanes()).any(waits)
    }

    fn call_of(&self, member: &Member) -> Collective {
        let shape = member.shape.clone().unwrap_or_else(|| self.call.shape.clone());
        Collective { shape, ..self.call.clone() }
    }

    /// Whether all members have finished, so that the instance can be dropped.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished == self.players
    }

    pub(crate) fn caller(&self, me: GroupRank) -> Caller {
        self.announced(me).expect("only members that have called run")
    }

    /// The member's call; `None`: the member has not called.
    pub(crate) fn announced(&self, me: GroupRank) -> Option<Caller> {
        self.members[me.index()].as_ref().and_then(|member| member.caller)
    }

    /// Time until which a member of this collective had to wait for a peer to enter, as far as is known now.
    /// `SimTime::MAX`: it still waits.
    pub(crate) fn peers_entered(&self, me: GroupRank) -> SimTime {
        let all = || if self.entered == self.players { self.last_entry } else { SimTime::MAX };
        let by_kind = match (self.call.kind, self.call.root == Some(me)) {
            (CollectiveKind::Broadcast | CollectiveKind::Scatter, true) => SimTime::ZERO,
            (CollectiveKind::Broadcast | CollectiveKind::Scatter, false) => self.root_entry,
            (CollectiveKind::Reduce | CollectiveKind::Gather, false) => SimTime::ZERO,
            _ => all(),
        };
        let for_room = self.members[me.index()].as_ref().map_or(SimTime::ZERO, |member| match member.without_room {
            0 => member.had_room,
            _ => SimTime::MAX,
        });
        by_kind.max(for_room)
    }

    /// Members that have not entered.
    pub(crate) fn missing(&self) -> impl Iterator<Item = GroupRank> {
        let absent = |member: &Option<Box<Member>>| member.as_ref().is_none_or(|member| member.entered.is_none());
        self.members
            .iter()
            .enumerate()
            .filter(move |(_, member)| absent(member))
            .map(|(index, _)| GroupRank::from(index))
    }
}

impl Member {
    fn lane(&mut self, number: usize) -> &mut Lane {
        if number == 0 { &mut self.lane } else { &mut self.others[number - 1] }
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&self.lane).chain(&self.others)
    }

    /// The next step that may start now, with its lane and its number in the lane; the first lane with such a step
    /// wins.
    fn next_step(&mut self) -> Option<(usize, u64, Step)> {
        (0..=self.others.len()).find_map(|lane| self.next_of(lane).map(|(index, step)| (lane, index, step)))
    }

    fn next_of(&mut self, number: usize) -> Option<(u64, Step)> {
        let Lane { steps, window, complete } = self.lane(number);
        let (index, complete) = (*complete + window.len() as u64, *complete);
        let step = *steps.as_mut()?.peek().filter(|step| step.after <= complete)?;
        assert!(step.after <= index, "step {index} of {:?} waits for itself", self.caller);
        let Beside { lane, count } = step.beside;
        if count > 0 && self.lane(lane as usize).complete < u64::from(count) {
            return None;
        }
        self.lane(number).steps.as_mut()?.next();
        Some((index, step))
    }

    fn start_receive(&mut self, from: GroupRank, index: u64) {
        match self.early.get_mut(&from) {
            Some(count) => {
                *count -= 1;
                if *count == 0 {
                    self.early.remove(&from);
                }
                self.finish(index);
            }
            None => drop(self.expected.insert((from, index))),
        }
    }

    fn finish(&mut self, step: u64) {
        let (lane, number) = lane_of(step);
        let Lane { window, complete, .. } = self.lane(lane);
        window[(number - *complete) as usize] = true;
        while window.front() == Some(&true) {
            window.pop_front();
            *complete += 1;
        }
    }

    fn is_through(&mut self) -> bool {
        let is_over =
            |lane: &mut Lane| lane.window.is_empty() && lane.steps.as_mut().is_none_or(|steps| steps.peek().is_none());
        self.entered.is_some() && is_over(&mut self.lane) && self.others.iter_mut().all(is_over)
    }
}

enum Side {
    Send,
    Recv,
}

/// Elements of the block between the caller and `peer` in an all-to-all.
fn block(shape: &Shape, peer: GroupRank, side: Side) -> u64 {
    match (shape, side) {
        (Shape::Even(count), _) => *count,
        (Shape::Blocks(blocks), _) => blocks[peer.index()],
        (Shape::Pairs { send, .. }, Side::Send) => send[peer.index()],
        (Shape::Pairs { recv, .. }, Side::Recv) => recv[peer.index()],
    }
}

struct OrNone<T>(Option<T>);

impl<T: std::fmt::Debug> std::fmt::Display for OrNone<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(value) => write!(f, "{value:?}"),
            None => f.write_str("none"),
        }
    }
}

struct Elements<'a>(&'a Shape);

impl std::fmt::Display for Elements<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Shape::Even(count) => write!(f, "{count}"),
            Shape::Blocks(blocks) => write!(f, "{blocks:?}"),
            Shape::Pairs { send, recv } => write!(f, "send {send:?}, receive {recv:?}"),
        }
    }
}
