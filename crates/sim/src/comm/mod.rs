//! Owns communication between ranks: process groups, the matching of calls, and the running collectives.
//!
//! The module turns calls into messages for `transport` and arrivals into completions for the engine. It knows neither
//! the order of virtual time nor the activities that tasks wait for.

mod closing;
mod group;
mod instance;
mod mailbox;
mod ties;

pub(crate) use closing::Notice;
pub(crate) use group::Groups;
pub use group::{NameClash, NamedBy};
pub(crate) use instance::Caller;

use crate::cluster::Free;
use crate::collective::choose::AlgorithmTable;
use crate::event::{Cause, Meeting, Traffic};
use crate::ids::{GroupId, GroupRank, Handle, MessageId, RankId, Site};
use crate::network::Asymmetry;
use crate::program::{Call, CallOp, Collective, NcclSettings};
use crate::symmetry::Symmetry;
use crate::time::{Bytes, SimDuration, SimTime};
use crate::transport::{Message, ONE_SIDED, PLAIN, Purpose, Slab, TIMELESS, Transport, TransportEvent};
use closing::Closed;
use indexmap::IndexMap;
use instance::{Instance, Post};
use mailbox::{DeliveredMessage, Mailbox, Receive};
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;
use std::sync::Arc;
use ties::Ties;

/// All communication of a run.
pub(crate) struct Comm {
    pub(crate) groups: Groups,
    pub(crate) transport: Transport,
    table: AlgorithmTable,
    free_of_network: Free,
    /// The transport's number for the protocol of messages between two ranks.
    wire_of_messages: u32,
    /// The transport's number for the protocol of writes into another rank's memory.
    wire_of_writes: u32,
    instances: Vec<Option<Instance>>,
    free: Vec<u32>,
    /// The running collectives by group and sequence number.
    running: IndexMap<(GroupId, u64), u32, FxBuildHasher>,
    /// Number of collectives of a group that a rank has called.
    called: IndexMap<(RankId, GroupId), u64, FxBuildHasher>,
    mailboxes: Vec<Mailbox>,
    /// Sends by receiver, group and tag that have not completed with a receive.
    open_sends: IndexMap<(RankId, GroupId, u64), VecDeque<OpenSend>, FxBuildHasher>,
    traffic: Vec<Traffic>,
    completions: Vec<Completion>,
    /// Detection of results that depend on the order of simultaneous events, if the run is folded.
    ties: Option<Ties>,
    closed: Closed,
    /// Scheduled actions, which happen after the time at which they were requested.
    cues: Slab<Cue>,
    /// Transport events of one instant; kept to reuse the allocation.
    progress: Vec<TransportEvent>,
    /// Messages and receives that a member posts at once; kept to reuse the allocation.
    posts: Vec<Post>,
}

/// A send from its issue until its receive is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenSend {
    pub(crate) from: RankId,
    pub(crate) handle: Handle,
    pub(crate) entered: SimTime,
}

/// Action that the transport calls back for.
#[derive(Clone, Copy, Debug)]
enum Cue {
    /// A member of a collective starts its first steps.
    Run { instance: u32, me: GroupRank },
    /// Departure of the part of a message that fits into the buffers of a receiver that has not entered the collective
    /// yet.
    Part { message: u32, id: MessageId, room: Bytes },
    /// Post of a message between two ranks, or of a write from one rank into the memory of the other.
    Send { rank: RankId, handle: Handle, group: GroupId, to: GroupRank, bytes: Bytes, purpose: Purpose, wire: u32 },
    /// Post of the receive of a message.
    Recv { group: GroupId, rank: RankId, tag: u64, receive: Receive },
    /// Delivery of an operation's result to the program.
    Complete(Completion),
    /// Notice of a closed connection at its other end.
    Closed(Notice),
}

/// Completion of an operation on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) rank: RankId,
    pub(crate) handle: Handle,
    pub(crate) meeting: Meeting,
    pub(crate) algorithm: Option<&'static str>,
    /// Time from which on no peer kept the operation waiting by not having entered.
    pub(crate) peers_entered: SimTime,
    /// Rank that closed its end of a connection, if the operation has failed.
    pub(crate) failed: Option<RankId>,
    /// Cause of the completion.
    pub(crate) cause: Cause,
}

/// Two calls that should agree and do not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Disagreement {
    pub(crate) group: GroupId,
    pub(crate) first: Caller,
    pub(crate) first_call: CallOp,
    pub(crate) second: Caller,
    pub(crate) what: String,
}

impl Comm {
    pub(crate) fn new(
        world: usize,
        (table, free_of_network): (AlgorithmTable, Free),
        transport: Transport,
        symmetry: Symmetry,
    ) -> Comm {
        let ties = (!symmetry.is_trivial()).then(|| Ties::new(transport.has_connections_per_group()));
        Comm {
            groups: Groups::new(symmetry),
            transport,
            table,
            wire_of_messages: if free_of_network.operations.contains(CallOp::SEND) { TIMELESS } else { PLAIN },
            wire_of_writes: if free_of_network.operations.contains(CallOp::WRITE) { TIMELESS } else { ONE_SIDED },
            free_of_network,
            instances: Vec::new(),
            free: Vec::new(),
            running: IndexMap::default(),
            called: IndexMap::default(),
            mailboxes: std::iter::repeat_with(Mailbox::default).take(world).collect(),
            open_sends: IndexMap::default(),
            traffic: vec![Traffic::default(); world],
            completions: Vec::new(),
            ties,
            closed: Closed::default(),
            cues: Slab::new(),
            progress: Vec::new(),
            posts: Vec::new(),
        }
    }

    pub(crate) fn algorithms(&self) -> &AlgorithmTable {
        &self.table
    }

    /// Checks that this collective would have the same steps and times on all equivalent ranks.
    pub(crate) fn check_symmetry(&self, group: GroupId, call: &Collective) -> Result<(), Asymmetry> {
        let group = self.groups.get(group);
        let Some(folded) = group.folded().filter(|_| group.size() > 1) else { return Ok(()) };
        let algorithm = group.table(&self.table).algorithm(call, group.size());
        match folded.admits(algorithm.symmetry(call, group.size())) {
            true => Ok(()),
            false => {
                let (kind, name) = (call.kind, algorithm.name());
                Err(Asymmetry::new(format!("{kind} by {name} among {} is not symmetric for its members", group.size())))
            }
        }
    }

    /// Asymmetry that was found since the last call.
    pub(crate) fn take_asymmetry(&mut self) -> Option<Asymmetry> {
        self.ties.as_mut().and_then(Ties::take)
    }

    /// Registers a rank's call of a collective, which may have to wait in the rank's queue. Returns its sequence number
    /// in the group.
    pub(crate) fn announce(
        &mut self,
        caller: Caller,
        group: GroupId,
        call: &Collective,
    ) -> Result<u64, Box<Disagreement>> {
        let me = self.position(caller.rank, group);
        let called = self.called.entry((caller.rank, group)).or_default();
        let sequence = *called;
        *called += 1;
        let index = self.instance_or_new(caller, group, sequence, call);
        let instance = self.instances[index as usize].as_mut().expect("just found");
        if let Some(what) = instance.disagreement(me, call) {
            let first_call = CallOp::Collective(instance.call.clone());
            return Err(Box::new(Disagreement { group, first: instance.first, first_call, second: caller, what }));
        }
        instance.announce(me, caller, call);
        Ok(sequence)
    }

    fn instance_or_new(&mut self, caller: Caller, group: GroupId, sequence: u64, call: &Collective) -> u32 {
        if let Some(index) = self.running.get(&(group, sequence)) {
            return *index;
        }
        let of = self.groups.get(group);
        let (size, players) = (of.size(), of.players());
        let algorithm = (size > 1).then(|| of.table(&self.table).algorithm(call, size));
        let wire = match self.free_of_network.operations.contains(call.kind.name()) {
            true => TIMELESS,
            false => self.transport.wire(algorithm.as_ref().and_then(|algorithm| algorithm.wire())),
        };
        let instance = Instance::new(group, sequence, (size, players), call.clone(), caller, algorithm, wire);
        let index = match self.free.pop() {
            Some(index) => {
                self.instances[index as usize] = Some(instance);
                index
            }
            None => {
                self.instances.push(Some(instance));
                (self.instances.len() - 1) as u32
            }
        };
        self.running.insert((group, sequence), index);
        index
    }

    /// Size of the tensor that a call names, in its group.
    pub(crate) fn bytes(&self, call: &Call) -> Bytes {
        call.op.bytes(self.groups.get(call.group).size())
    }

    /// Bytes of the call that count for the bus bandwidth in its group.
    pub(crate) fn bus_bytes(&self, call: &Call) -> Bytes {
        call.op.bus_bytes(self.groups.get(call.group).size())
    }

    /// The rank enters the collective, which has reached the head of the rank's queue.
    pub(crate) fn enter(&mut self, now: SimTime, rank: RankId, group: GroupId, sequence: u64) {
        let me = self.position(rank, group);
        let index = self.running[&(group, sequence)];
        let instance = self.instances[index as usize].as_mut().expect("it runs");
        instance.enter(me, now);
        let at = match instance.wire {
            TIMELESS => now + self.free_of_network.takes,
            // A kernel of the program carries out the collective, so no library is called: the start time is part of
            // the algorithm.
            _ if instance.is_of_program() => now,
            wire => self.transport.begins(now, instance.call.bytes(instance.size()), wire),
        };
        self.cue(now, at, Cue::Run { instance: index, me }).expect("a collective's steps fit together");
    }

    /// Starts a point-to-point operation.
    pub(crate) fn start(&mut self, now: SimTime, caller: Caller, call: &Call) -> Result<(), Box<Disagreement>> {
        let Caller { rank, handle, site } = caller;
        let group = call.group;
        let cue = match call.op {
            CallOp::Send { to, tag, bytes } => {
                let peer = self.groups.get(group).seen_by(rank)[to.index()];
                let (receiver, from) = self.groups.symmetry().normalised(peer, rank);
                let sends = self.open_sends.entry((receiver, group, tag)).or_default();
                sends.push_back(OpenSend { from, handle, entered: now });
                let purpose = Purpose::Send { handle, tag, site, entered: now };
                let wire = self.wire_of_messages_in(group, bytes);
                Cue::Send { rank, handle, group, to, bytes, purpose, wire }
            }
            CallOp::Recv { from, tag, bytes } => {
                let from = from.map(|from| self.groups.get(group).seen_by(rank)[from.index()]);
                Cue::Recv { group, rank, tag, receive: Receive { from, handle, bytes, entered: now } }
            }
            CallOp::Write { to, bytes } => {
                let takes =
                    if self.wire_of_writes == TIMELESS { self.free_of_network.takes } else { SimDuration::ZERO };
                let (purpose, wire) = (Purpose::Write { handle }, self.wire_of_writes);
                return self.cue(now, now + takes, Cue::Send { rank, handle, group, to, bytes, purpose, wire });
            }
            CallOp::Collective(_) => panic!("{rank} starts a collective as a message"),
        };
        let at = match self.wire_of_messages {
            TIMELESS => now + self.free_of_network.takes,
            wire => self.transport.posted(now, rank, self.bytes(call), wire),
        };
        self.cue(now, at, cue)
    }

    fn wire_of_messages_in(&mut self, group: GroupId, bytes: Bytes) -> u32 {
        if self.wire_of_messages == TIMELESS {
            return TIMELESS;
        }
        self.transport.wire(self.groups.get(group).table(&self.table).wire_of_messages(bytes))
    }

    /// Carries out an action now, or schedules it if its time is later.
    fn cue(&mut self, now: SimTime, at: SimTime, cue: Cue) -> Result<(), Box<Disagreement>> {
        if at > now {
            let number = self.cues.keep(cue);
            self.transport.call_back(at, number);
            return Ok(());
        }
        match cue {
            Cue::Send { rank, group, .. } | Cue::Recv { group, rank, .. } if self.has_aborted(rank, group) => {}
            Cue::Run { instance, me } => {
                let running = self.instances[instance as usize].as_ref().expect("it runs");
                let cause = Cause::Begun(running.caller(me).handle);
                let held = self.instances[instance as usize].as_mut().expect("it runs").begin(me);
                held.into_iter().for_each(|(message, id)| self.transport.let_go(now, message, id, cause));
                self.run_member(now, instance, me, cause);
            }
            Cue::Part { message, id, room } => self.transport.let_part_go(now, message, id, room),
            Cue::Send { rank, handle, group, to, bytes, purpose, wire } => {
                let destination = self.groups.get(group).seen_by(rank)[to.index()];
                if self.closed.is_known(group, rank, destination) {
                    self.fail_message(now, rank, handle, destination);
                    return Ok(());
                }
                if let Some(ties) = &mut self.ties {
                    ties.sends(now, group, (rank, destination), handle, false);
                }
                self.traffic[rank.index()].sent += bytes;
                self.transport.send(now, rank, destination, group, bytes, purpose, wire, Cause::Begun(handle));
            }
            Cue::Recv { group, rank, tag, receive } => match receive.from {
                Some(from) if self.closed.is_known(group, rank, from) => {
                    self.fail_message(now, rank, receive.handle, from);
                }
                _ => return self.post_receive(now, rank, group, tag, receive),
            },
            Cue::Complete(completion) => self.completions.push(completion),
            Cue::Closed(notice) => self.noticed(now, notice),
        }
        Ok(())
    }

    /// Joins the group of these ranks: [`Groups::join`].
    ///
    /// # Errors
    /// The errors of [`Groups::join`].
    pub(crate) fn join(
        &mut self,
        rank: RankId,
        ranks: Arc<[RankId]>,
        sequence: u32,
        settings: Option<NcclSettings>,
        rendezvous: bool,
    ) -> Result<GroupId, Asymmetry> {
        let group = self.groups.join(rank, ranks, sequence, settings)?;
        if rendezvous {
            self.transport.has_rendezvous(group);
        }
        Ok(group)
    }

    /// Whether a message of `bytes` between two ranks waits until its receive is posted.
    pub(crate) fn sends_wait(&self, group: GroupId, bytes: Bytes) -> bool {
        self.transport.waits_for_receive(group, bytes, self.wire_of_messages, false)
    }

    fn post_receive(
        &mut self,
        now: SimTime,
        rank: RankId,
        group: GroupId,
        tag: u64,
        receive: Receive,
    ) -> Result<(), Box<Disagreement>> {
        if self.sends_wait(group, receive.bytes) {
            let Receive { from, handle, bytes, entered } = receive;
            // The pair of ranks is put into the same order as for the send.
            let symmetry = self.groups.symmetry();
            let pair = from.map(|from| symmetry.normalised(from, rank));
            let (from, receiver) = pair.map_or((None, rank), |(from, receiver)| (Some(from), receiver));
            self.transport.receive(now, receiver, from, group, tag, (handle, bytes, entered));
            return Ok(());
        }
        match self.mailboxes[rank.index()].receive(group, tag, receive) {
            Some(delivered) => self.received(now, rank, group, tag, receive, delivered, Cause::Begun(receive.handle)),
            None => Ok(()),
        }
    }

    /// Tag and sender's line of a message that has arrived for `rank` and that no receive has matched.
    pub(crate) fn unclaimed_message(&self, rank: RankId, group: GroupId, from: RankId) -> Option<(u64, Site)> {
        self.mailboxes[rank.index()].unclaimed(group, from)
    }

    /// Ends an operation; its completion follows once its result is in the program's memory.
    fn complete(&mut self, now: SimTime, at: SimTime, completion: Completion) {
        self.cue(now, at, Cue::Complete(completion)).expect("a completion disagrees with nothing");
    }

    pub(crate) fn next_event(&mut self) -> Option<SimTime> {
        self.transport.next_event()
    }

    /// Advances messages to `now`. Each arriving message is passed to `arrived` before it has an effect.
    pub(crate) fn advance(
        &mut self,
        now: SimTime,
        mut arrived: impl FnMut(&Message, &Transport),
    ) -> Result<(), Box<Disagreement>> {
        let mut progress = std::mem::take(&mut self.progress);
        self.transport.advance(now, &mut progress);
        let mut result = Ok(());
        for happened in progress.drain(..) {
            result = result.and(match happened {
                TransportEvent::Sent(tag) => {
                    self.sent(now, tag);
                    Ok(())
                }
                TransportEvent::Arrived(tag) => {
                    let message = self.transport.take(tag);
                    arrived(&message, &self.transport);
                    let receiver = self.groups.symmetry().representative(message.destination);
                    self.traffic[receiver.index()].received += message.bytes;
                    let result = self.arrived(now, &message);
                    self.look_at_held(now);
                    result
                }
                TransportEvent::CallBack(number) => {
                    let cue = self.cues.take(number);
                    self.cue(now, now, cue)
                }
            });
        }
        self.progress = progress;
        result
    }

    fn sent(&mut self, now: SimTime, tag: u32) {
        let message = self.transport.message(tag);
        match message.purpose {
            Purpose::Step { instance, from, step, .. } => {
                self.instances[instance as usize].as_mut().expect("it runs").sent(from, step);
                let cause = Cause::Sent(message.way.id);
                self.run_member(now, instance, from, cause);
            }
            // Nothing happens yet: a write is complete once all of its data has arrived.
            Purpose::Write { .. } => {}
            Purpose::Send { handle, .. } => {
                let peers_entered = self.transport.grant(message).map_or(SimTime::ZERO, |grant| grant.entered);
                let meeting = Meeting::Peer(None);
                let (rank, cause) = (message.source, Cause::Sent(message.way.id));
                self.completions.push(Completion {
                    rank,
                    handle,
                    meeting,
                    algorithm: None,
                    peers_entered,
                    failed: None,
                    cause,
                });
            }
        }
    }

    fn arrived(&mut self, now: SimTime, message: &Message) -> Result<(), Box<Disagreement>> {
        let Message { source, destination, group, bytes, way, .. } = *message;
        let cause = Cause::Arrived(way.id);
        let grant = self.transport.take_grant(message);
        match message.purpose {
            Purpose::Write { handle } => {
                let completion = Completion {
                    rank: source,
                    handle,
                    meeting: Meeting::Peer(None),
                    algorithm: None,
                    peers_entered: SimTime::ZERO,
                    failed: None,
                    cause,
                };
                let at = self.transport.acknowledged(now, message);
                self.complete(now, at, completion);
                Ok(())
            }
            Purpose::Step { instance, from, to, .. } => {
                let (from, to) = self.groups.get(group).folded().map_or((from, to), |folded| folded.arrival(from, to));
                if self.instances[instance as usize].as_mut().expect("it runs").arrived(to, from) {
                    self.run_member(now, instance, to, cause);
                }
                Ok(())
            }
            Purpose::Send { handle, tag, site, entered } => {
                let (to, from) = self.groups.symmetry().normalised(destination, source);
                let delivered = DeliveredMessage { from, handle, site, bytes, entered };
                let granted = grant.and_then(|grant| Some((grant.receive?, grant.entered)));
                let receive = match granted {
                    Some(((handle, bytes), entered)) => Some(Receive { from: Some(from), handle, bytes, entered }),
                    None => self.mailboxes[to.index()].deliver(group, tag, delivered),
                };
                receive.map_or(Ok(()), |receive| self.received(now, to, group, tag, receive, delivered, cause))
            }
        }
    }

    /// Starts the member's next steps; `cause` is the reason why they may start.
    fn run_member(&mut self, now: SimTime, index: u32, me: GroupRank, cause: Cause) {
        let instance = self.instances[index as usize].as_mut().expect("it runs");
        let group = self.groups.get(instance.group);
        let (id, wire, symmetry) = (instance.group, instance.wire, self.groups.symmetry());
        let pair = |peer| symmetry.normalised(group.world_rank(me), group.world_rank(peer));
        let (transport, traffic) = (&mut self.transport, &mut self.traffic[pair(me).0.index()]);
        let (closed, mut failed) = (&self.closed, None);
        let handle = instance.announced(me).map(|caller| caller.handle);
        let mut ties = self.ties.as_mut().zip(handle);
        let room = transport.room(id, wire).filter(|_| !instance.is_of_program());
        let mut posts = std::mem::take(&mut self.posts);
        let through = instance.run(me, |post| posts.push(post));
        let mut parts = Vec::new();
        posts.drain(..).for_each(|post| match post {
            Post::Send { to: peer, .. } | Post::Receive { from: peer, .. }
                if closed.is_known(id, group.world_rank(me), group.world_rank(peer)) =>
            {
                failed = Some(group.world_rank(peer));
            }
            Post::Send { to, bytes, step } => {
                let handle = handle.expect("who has steps has called");
                let purpose = Purpose::Step { instance: index, from: me, to, step, handle };
                let (source, destination) = pair(to);
                if let Some((ties, handle)) = &mut ties {
                    ties.sends(now, id, (source, destination), *handle, true);
                }
                traffic.sent += bytes;
                let (from, receiver) = group.folded().map_or((me, to), |folded| folded.arrival(me, to));
                match room.and_then(|room| instance.lacks_room(receiver, from, bytes, room)) {
                    None => transport.send(now, source, destination, id, bytes, purpose, wire, cause),
                    Some(room) => {
                        let (message, id) = transport.hold(now, source, destination, id, bytes, purpose, wire, cause);
                        instance.hold(receiver, me, message, id);
                        parts.push(Cue::Part { message, id, room });
                    }
                }
            }
            Post::Receive { from, bytes, combine } if transport.waits_for_receive(id, bytes, wire, true) => {
                let (receiver, sender) = pair(from);
                transport.expect(now, receiver, sender, id, (index, combine), cause);
            }
            Post::Receive { .. } => {}
        });
        self.posts = posts;
        // A part leaves a picosecond later, because members that come to the collective in this instant have room for
        // the whole message.
        let soon = now.saturating_add(SimDuration::from_ps(1));
        parts.into_iter().for_each(|part| self.cue(now, soon, part).expect("a part disagrees with nothing"));
        match failed {
            Some(peer) => self.fail_member(now, index, me, peer),
            None if through => self.member_is_through(now, index, me, cause),
            None => {}
        }
    }

    fn member_is_through(&mut self, now: SimTime, index: u32, me: GroupRank, cause: Cause) {
        let instance = self.instances[index as usize].as_ref().expect("it runs");
        let Caller { rank, handle, .. } = instance.caller(me);
        let completion = Completion {
            rank,
            handle,
            meeting: Meeting::Collective { sequence: instance.sequence },
            algorithm: instance.algorithm.as_ref().map(|algorithm| algorithm.name()),
            peers_entered: instance.peers_entered(me),
            failed: None,
            cause,
        };
        let (bytes, wire) = (instance.call.bytes(instance.size()), instance.wire);
        let of_program = instance.is_of_program();
        if instance.is_finished() {
            self.running.swap_remove(&(instance.group, instance.sequence));
            self.instances[index as usize] = None;
            self.free.push(index);
        }
        let at = if of_program { now } else { self.transport.ends(now, bytes, wire) };
        self.complete(now, at, completion);
    }

    #[expect(clippy::too_many_arguments, reason = "a receive, its message, and why they meet")]
    fn received(
        &mut self,
        now: SimTime,
        rank: RankId,
        group: GroupId,
        tag: u64,
        receive: Receive,
        delivered: DeliveredMessage,
        cause: Cause,
    ) -> Result<(), Box<Disagreement>> {
        let peer = delivered.from;
        if receive.bytes != delivered.bytes {
            let to = self.position(rank, group);
            return Err(Box::new(Disagreement {
                group,
                first: Caller { rank: peer, handle: delivered.handle, site: delivered.site },
                first_call: CallOp::Send { to, tag, bytes: delivered.bytes },
                second: Caller { rank, handle: receive.handle, site: Site(0) },
                what: format!(
                    "size of the message: {} bytes sent, {} bytes expected",
                    delivered.bytes.0, receive.bytes.0
                ),
            }));
        }
        if let Some(sends) = self.open_sends.get_mut(&(rank, group, tag)) {
            let taken = sends.iter().position(|send| (send.from, send.handle) == (peer, delivered.handle));
            taken.and_then(|index| sends.remove(index));
            if sends.is_empty() {
                self.open_sends.swap_remove(&(rank, group, tag));
            }
        }
        let meeting = Meeting::Peer(Some((peer, delivered.handle)));
        let handle = receive.handle;
        let peers_entered = delivered.entered;
        let completion = Completion { rank, handle, meeting, algorithm: None, peers_entered, failed: None, cause };
        let at = self.transport.brings(now, delivered.bytes, self.wire_of_messages);
        self.complete(now, at, completion);
        Ok(())
    }

    /// Sends to `receiver` with this tag that have not completed with a receive, in the order in which they were
    /// issued.
    pub(crate) fn open_sends(&self, receiver: RankId, group: GroupId, tag: u64) -> impl Iterator<Item = &OpenSend> {
        self.open_sends.get(&(receiver, group, tag)).into_iter().flatten()
    }

    /// Completions since the last call, in order.
    pub(crate) fn take_completions(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.completions);
    }

    pub(crate) fn traffic(&self, rank: RankId) -> Traffic {
        Traffic { wire_sent: self.transport.wire_sent(rank), ..self.traffic[rank.index()] }
    }

    fn instance(&self, group: GroupId, sequence: u64) -> Option<&Instance> {
        self.instances[*self.running.get(&(group, sequence))? as usize].as_ref()
    }

    /// Members that have not entered an incomplete collective, for reports.
    pub(crate) fn missing(&self, group: GroupId, sequence: u64) -> Vec<RankId> {
        let members = self.groups.get(group);
        self.instance(group, sequence)
            .map(|instance| instance.missing().filter(|member| members.plays(*member)))
            .map_or_else(Vec::new, |missing| missing.map(|member| members.world_rank(member)).collect())
    }

    /// Time from which on no peer kept `rank` waiting in a collective by not having entered; `SimTime::MAX`: a peer
    /// still does.
    pub(crate) fn peers_entered(&self, rank: RankId, group: GroupId, sequence: u64) -> SimTime {
        let me = self.position(rank, group);
        self.instance(group, sequence).map_or(SimTime::ZERO, |instance| instance.peers_entered(me))
    }

    fn position(&self, rank: RankId, group: GroupId) -> GroupRank {
        self.groups
            .get(group)
            .position(rank)
            .unwrap_or_else(|| panic!("{rank} calls an operation of {group}, which it is not in"))
    }
}
