//! Owns the transport between a communication step and bytes on connection streams: connections, handshakes, windows,
//! and the threads that move bytes in and out of sockets. The transport thereby defines the delivery of a message.
//!
//! A message is posted by its sender, is expected by its receiver, and passes these stages:
//!
//! 1. [`rendezvous`]: if the protocol has a handshake, data waits until the sender knows that its receiver is ready;
//! 2. [`connection`]: the message is in the one byte stream of its pair and direction, together with control messages,
//!    and passes the window;
//! 3. the network transfers it;
//! 4. [`threads`]: the receiver's input thread reads it, and the waiting thread wakes up.
//!
//! [`closing`] handles the end of a rank.
//!
//! With the default [`Protocol`] these stages last no time, and only the network determines a message's time. `comm`
//! owns algorithms and matching, `network` the sharing of links.

mod closing;
mod connection;
mod held;
mod protocol;
mod rendezvous;
mod slab;
mod threads;
mod timers;

pub use protocol::{Handshake, Protocol, Window};
pub(crate) use rendezvous::{Channel, Grant};
pub(crate) use slab::Slab;

use crate::collective::{Hop, Wire};
use crate::event::{Cause, MessageWay};
use crate::ids::{GroupId, GroupRank, Handle, HostId, LinkId, MessageId, RankId, Site};
use crate::network::{Network, NetworkEvent, Route, Topology};
use crate::time::{Bytes, Rate, SimDuration, SimTime};
use connection::{Connection, Growth, Release};
use indexmap::{IndexMap, IndexSet};
use protocol::time_for;
use rendezvous::Rendezvous;
use rustc_hash::FxBuildHasher;
use std::collections::{BTreeMap, BTreeSet};
use threads::HostThreads;
use timers::Timers;

/// Sends messages between ranks and reports their progress.
pub(crate) struct Transport {
    network: Box<dyn Network>,
    hosts: Vec<HostId>,
    topology: Topology,
    protocol: Protocol,
    /// Whether the reception of a message lasts no time.
    reception_is_free: bool,
    /// Connections by group (if each group has its own), sender and receiver; opened at the first message.
    connections: IndexMap<(Option<GroupId>, RankId, RankId), Connection, FxBuildHasher>,
    /// Messages that wait for their receiver or are in flight, by tag.
    messages: Slab<Message>,
    controls: Slab<Control>,
    grants: Slab<Grant>,
    rendezvous: Rendezvous,
    /// Groups in which each message waits for its receive although the protocol has no handshake.
    waiting_groups: BTreeSet<GroupId>,
    threads: HostThreads,
    timers: Timers<Due>,
    events: Vec<NetworkEvent>,
    wire_sent: Vec<Bytes>,
    /// Effects of algorithms' protocols on messages, by number from 1.
    wires: IndexSet<Wire, FxBuildHasher>,
    /// Messages whose receiver does not have room for all of their bytes yet, by tag, and the bytes of each message
    /// that are on its connection.
    held: BTreeMap<u32, Bytes>,
    /// Ranks whose processes have crashed.
    gone: BTreeSet<RankId>,
    /// The time up to which the network has advanced.
    now: SimTime,
    /// Number of messages that were posted.
    posted: u64,
}

/// A message from its send to its arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) purpose: Purpose,
    pub(crate) source: RankId,
    pub(crate) destination: RankId,
    pub(crate) group: GroupId,
    pub(crate) bytes: Bytes,
    pub(crate) wire_bytes: Bytes,
    pub(crate) queued: SimTime,
    /// Time at which the message reached the head of its connection stream; known once the message is sent.
    pub(crate) started: SimTime,
    pub(crate) sent: SimTime,
    pub(crate) way: MessageWay,
    /// Time for which `way.limit` limited parts of the message, less the time for which other links did: a running
    /// majority vote.
    limited: SimDuration,
    /// Time for which any link limited parts of the message.
    left_over_links: SimDuration,
    connection: u32,
    /// Index in `Transport::grants`, once its receiver is ready and if the protocol has a handshake; else [`NO_GRANT`].
    grant: u32,
    /// Number of the algorithm's protocol in `Transport`'s table of effects.
    wire: u32,
}

impl Message {
    /// Records that a part of the message left in the duration `lasted`, limited by `link` or by no link.
    fn is_limited(&mut self, link: Option<LinkId>, lasted: SimDuration) {
        let Some(link) = link else { return };
        self.left_over_links += lasted;
        if self.way.limit == Some(link) {
            self.limited += lasted;
        } else if lasted > self.limited {
            (self.way.limit, self.limited) = (Some(link), lasted - self.limited);
        } else {
            self.limited -= lasted;
        }
    }
}

/// The operation that a message belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A step of a collective.
    Step {
        /// The index of the instance.
        instance: u32,
        /// The sender's group rank.
        from: GroupRank,
        /// The receiver's group rank.
        to: GroupRank,
        /// The number of the sender's step.
        step: u64,
        /// The sender's operation.
        handle: Handle,
    },
    /// A write into the memory of the destination.
    Write {
        /// The writer's operation.
        handle: Handle,
    },
    /// A point-to-point message.
    Send {
        /// The sender's operation.
        handle: Handle,
        /// The tag that the receive must have.
        tag: u64,
        /// The sender's line.
        site: Site,
        /// Time at which the sender's program entered the operation: the message is posted later, after the cost of the
        /// call.
        entered: SimTime,
    },
}

/// Event of the transport, with the tag of its message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransportEvent {
    /// The message's last byte has left, and its sender has noticed.
    Sent(u32),
    /// The message's last byte has arrived, and its receiver has noticed: the caller must remove it.
    Arrived(u32),
    /// The time of a [`Transport::call_back`] has come.
    CallBack(u32),
}

/// A message without data that announces a receive or a send.
#[derive(Clone, Copy, Debug)]
enum Control {
    /// A receiver is ready for a message, whose data uses the connection `data`.
    RecvReady { data: u32, channel: Channel, grant: Grant },
    /// A send, whose data uses the connection `data`, is posted.
    SendReady { data: u32, channel: Channel },
}

/// Action that is due at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Some bytes of a connection are acknowledged.
    Acknowledged(u32),
    /// A message has arrived, after the protocol's minimum latency beyond the route's.
    Landed(u32),
    /// The input thread has read a control message.
    Control(u32),
    /// The input thread has read a message.
    TakenIn(u32),
    /// The sender of a message wakes up.
    Sent(u32),
    /// The receiver of a message wakes up.
    Arrived(u32),
    CallBack(u32),
}

/// Number of the protocol that has no effect on a message.
pub(crate) const PLAIN: u32 = 0;
/// Number of the protocol by which messages arrive as soon as they are sent, whatever the network.
pub(crate) const TIMELESS: u32 = u32::MAX;
/// Number of the protocol of writes into memory that is known before, by the network alone: without handshake, header
/// and input thread.
pub(crate) const ONE_SIDED: u32 = u32::MAX - 1;

const NO_GRANT: u32 = u32::MAX;
/// Bit of a network tag: the bytes are a part of a message, and not its last one.
const PART: u64 = 1 << 63;
/// Bit of a network tag: the other bits are the number of a control message.
const CONTROL: u64 = 1 << 62;

impl Purpose {
    fn channel(&self, group: GroupId) -> Channel {
        match *self {
            Purpose::Step { instance, .. } => Channel::Instance(instance),
            Purpose::Send { tag, .. } => Channel::Tag(group, tag),
            Purpose::Write { .. } => unreachable!("a write has no handshake"),
        }
    }
}

impl Transport {
    pub(crate) fn new(
        network: Box<dyn Network>,
        hosts: Vec<HostId>,
        topology: Topology,
        protocol: Protocol,
    ) -> Transport {
        let world = hosts.len();
        let Protocol { message, wake, copy, reduce, .. } = protocol;
        Transport {
            network,
            hosts,
            topology,
            protocol,
            reception_is_free: (message, wake, copy, reduce) == Default::default(),
            connections: IndexMap::default(),
            messages: Slab::new(),
            controls: Slab::new(),
            grants: Slab::new(),
            rendezvous: Rendezvous::default(),
            waiting_groups: BTreeSet::new(),
            threads: HostThreads::new(world),
            timers: Timers::new(),
            events: Vec::new(),
            wire_sent: vec![Bytes(0); world],
            wires: IndexSet::default(),
            held: BTreeMap::new(),
            gone: BTreeSet::new(),
            now: SimTime::ZERO,
            posted: 0,
        }
    }

    /// Whether each group has its own connections.
    pub(crate) fn has_connections_per_group(&self) -> bool {
        self.protocol.connections_per_group
    }

    /// From now on, each message of the group leaves only once its receive is posted.
    pub(crate) fn has_rendezvous(&mut self, group: GroupId) {
        self.waiting_groups.insert(group);
    }

    /// Whether a message of `bytes` bytes waits until its receive is posted. A message of a collective's step waits
    /// only for a handshake, or in a group with rendezvous.
    pub(crate) fn waits_for_receive(&self, group: GroupId, bytes: Bytes, wire: u32, is_step: bool) -> bool {
        let waits = |handshake: Handshake| handshake.eager.is_none_or(|eager| bytes > eager);
        let has_room = || is_step || self.protocol.buffer.is_none_or(|buffer| bytes <= buffer);
        !matches!(wire, TIMELESS | ONE_SIDED)
            && self.protocol.handshake.map_or_else(|| self.waiting_groups.contains(&group) || !has_room(), waits)
    }

    /// Room in bytes that a member has for messages from one sender before the member comes to the collective. `None`
    /// if the room is unlimited, or if messages wait for their receives anyway.
    pub(crate) fn room(&self, group: GroupId, wire: u32) -> Option<Bytes> {
        let has_buffer = self.protocol.handshake.is_none()
            && !self.waiting_groups.contains(&group)
            && !matches!(wire, TIMELESS | ONE_SIDED);
        self.protocol.buffer.filter(|_| has_buffer)
    }

    /// Whether a receiver announces that it is ready only after the sender has announced its message (MPI).
    fn asks(&self) -> bool {
        self.protocol.handshake.is_some_and(|handshake| handshake.eager.is_some())
    }

    /// Bytes that a rank has put on the network, with headers and control messages.
    pub(crate) fn wire_sent(&self, rank: RankId) -> Bytes {
        self.wire_sent[rank.index()]
    }

    /// Time at which the first step of a collective of `bytes` that begins now can start.
    pub(crate) fn begins(&self, now: SimTime, bytes: Bytes, wire: u32) -> SimTime {
        let Protocol { call, hand_over, staging, .. } = self.protocol;
        self.passes(now, call + hand_over + time_for(staging, bytes), wire)
    }

    /// Time at which the result of `bytes` of a collective that ends now, on this rank, is in the program's memory.
    pub(crate) fn ends(&self, now: SimTime, bytes: Bytes, wire: u32) -> SimTime {
        self.passes(now, self.protocol.hand_over + time_for(self.protocol.staging, bytes), wire)
    }

    /// Time at which the data of a message between two ranks that ends now is in the program's memory.
    pub(crate) fn brings(&self, now: SimTime, bytes: Bytes, wire: u32) -> SimTime {
        self.passes(now, time_for(self.protocol.staging, bytes), wire)
    }

    /// The instant after `lasts`, or `now` if nothing lasts time with this protocol.
    fn passes(&self, now: SimTime, lasts: SimDuration, wire: u32) -> SimTime {
        if wire == TIMELESS { now } else { now.saturating_add(lasts) }
    }

    /// Time at which a message between two ranks, whose operation the program calls now, is posted. Calls of one rank
    /// are posted in order.
    pub(crate) fn posted(&mut self, now: SimTime, rank: RankId, bytes: Bytes, wire: u32) -> SimTime {
        let work = self.protocol.call + time_for(self.protocol.staging, bytes);
        if self.protocol.calls_overlap {
            return self.passes(now, work, wire);
        }
        if work == SimDuration::ZERO || wire == TIMELESS { now } else { self.threads.post(rank, now, work) }
    }

    /// Schedules a [`TransportEvent::CallBack`] for an instant after now.
    pub(crate) fn call_back(&mut self, at: SimTime, number: u32) {
        self.timers.set(at, Due::CallBack(number));
    }

    /// The number of a protocol, for [`Transport::send`].
    pub(crate) fn wire(&mut self, wire: Option<Wire>) -> u32 {
        let Some(wire) = wire else { return PLAIN };
        let (index, _) = self.wires.insert_full(wire);
        index as u32 + 1
    }

    /// Posts a send, by a protocol as [`Transport::wire`] numbers them.
    #[allow(clippy::too_many_arguments, reason = "what a message is, once")]
    pub(crate) fn send(
        &mut self,
        now: SimTime,
        source: RankId,
        destination: RankId,
        group: GroupId,
        bytes: Bytes,
        purpose: Purpose,
        wire: u32,
        cause: Cause,
    ) {
        let tag = self.post(now, source, destination, group, bytes, purpose, wire, cause);
        if wire == TIMELESS {
            return self.appear(now, tag);
        }
        if !self.waits_for_receive(group, bytes, wire, matches!(purpose, Purpose::Step { .. })) {
            return self.dispatch(now, tag);
        }
        let (connection, channel) = (self.messages.get(tag).connection, purpose.channel(group));
        if self.asks() || matches!(purpose, Purpose::Send { .. }) {
            self.announce(now, Control::SendReady { data: connection, channel }, connection);
        }
        if let Some(grant) = self.rendezvous.send(connection, channel, tag) {
            self.granted(now, tag, grant);
        }
    }

    /// Registers a message and returns its tag.
    #[allow(clippy::too_many_arguments, reason = "what a message is, once")]
    fn post(
        &mut self,
        now: SimTime,
        source: RankId,
        destination: RankId,
        group: GroupId,
        bytes: Bytes,
        purpose: Purpose,
        wire: u32,
        cause: Cause,
    ) -> u32 {
        let connection = self.connection(source, destination, group);
        let (operation, step) = match purpose {
            Purpose::Step { handle, step, .. } => (handle, Some(step)),
            Purpose::Send { handle, .. } | Purpose::Write { handle } => (handle, None),
        };
        let id = MessageId(self.posted);
        self.posted += 1;
        let (begun, released) = (now, now);
        let way = MessageWay { id, operation, step, by: source, begun, cause, released, ..MessageWay::default() };
        self.messages.keep(Message {
            purpose,
            source,
            destination,
            group,
            bytes,
            wire_bytes: Bytes(0),
            queued: now,
            started: SimTime::MAX,
            sent: now,
            way,
            limited: SimDuration::ZERO,
            left_over_links: SimDuration::ZERO,
            connection,
            grant: NO_GRANT,
            wire,
        })
    }

    /// Delivers a message at once.
    fn appear(&mut self, now: SimTime, tag: u32) {
        let message = self.messages.get_mut(tag);
        message.started = now;
        if !self.connections[message.connection as usize].closed {
            self.timers.set(now, Due::Sent(tag));
            self.timers.set(now, Due::Arrived(tag));
        }
    }

    /// A message in the transport.
    pub(crate) fn message(&self, tag: u32) -> &Message {
        self.messages.get(tag)
    }

    /// Removes a message that has arrived.
    pub(crate) fn take(&mut self, tag: u32) -> Message {
        self.messages.take(tag)
    }

    /// Records that the receiver of a message is ready for it.
    fn granted(&mut self, now: SimTime, tag: u32, grant: Grant) {
        let message = self.messages.get_mut(tag);
        message.grant = self.grants.keep(grant);
        message.way.released = now;
        if let Some((begun, cause)) = grant.posted.filter(|_| now > message.queued) {
            message.way = MessageWay { by: message.destination, begun, cause, ..message.way };
        }
        self.dispatch(now, tag);
    }

    /// Grant of a message's receiver; `None` without a handshake.
    pub(crate) fn grant(&self, message: &Message) -> Option<Grant> {
        (message.grant != NO_GRANT).then(|| *self.grants.get(message.grant))
    }

    /// Removes the grant of a message that has arrived.
    pub(crate) fn take_grant(&mut self, message: &Message) -> Option<Grant> {
        (message.grant != NO_GRANT).then(|| self.grants.take(message.grant))
    }

    /// Posts the receive of a collective's step that has a handshake.
    pub(crate) fn expect(
        &mut self,
        now: SimTime,
        receiver: RankId,
        sender: RankId,
        group: GroupId,
        (instance, combine): (u32, bool),
        cause: Cause,
    ) {
        let channel = Channel::Instance(instance);
        let grant = Grant { entered: now, receive: None, combine, posted: Some((now, cause)) };
        let asks = self.asks();
        if !asks || self.rendezvous.receive_when_asked(receiver, Some(sender), channel, grant).is_some() {
            self.invite(now, receiver, sender, group, channel, grant);
        }
    }

    /// Posts a receive between two ranks that has a handshake. `from` is `None`: from any rank of the group.
    pub(crate) fn receive(
        &mut self,
        now: SimTime,
        receiver: RankId,
        from: Option<RankId>,
        group: GroupId,
        tag: u64,
        (handle, bytes, entered): (Handle, Bytes, SimTime),
    ) {
        let posted = Some((now, Cause::Begun(handle)));
        let grant = Grant { entered, receive: Some((handle, bytes)), combine: false, posted };
        let channel = Channel::Tag(group, tag);
        let sender = match self.asks() {
            true => self.rendezvous.receive_when_asked(receiver, from, channel, grant),
            false => self.rendezvous.receive(receiver, from, channel, grant),
        };
        if let Some(sender) = sender {
            self.invite(now, receiver, sender, group, channel, grant);
        }
    }

    /// Announces that a receiver is ready.
    fn invite(
        &mut self,
        now: SimTime,
        receiver: RankId,
        sender: RankId,
        group: GroupId,
        channel: Channel,
        grant: Grant,
    ) {
        let data = self.connection(sender, receiver, group);
        let back = self.connection(receiver, sender, group);
        self.announce(now, Control::RecvReady { data, channel, grant }, back);
    }

    /// Sends a control message; without a handshake both sides see it at once.
    fn announce(&mut self, now: SimTime, control: Control, connection: u32) {
        let control = self.controls.keep(control);
        match self.protocol.handshake {
            Some(handshake) => drop(self.push(now, connection, handshake.control, u64::from(control) | CONTROL)),
            None => self.heed(now, control),
        }
    }

    /// Puts a message's data on its connection.
    fn dispatch(&mut self, now: SimTime, tag: u32) {
        let message = self.messages.get(tag);
        let Message { connection, bytes, wire, .. } = *message;
        let stretched = self.hop(message).map_or(bytes, |hop| hop.stretched(bytes));
        let bytes = Bytes(stretched.0 - self.held.remove(&tag).unwrap_or_default().0);
        let handshake = self.protocol.handshake.filter(|_| wire != ONE_SIDED);
        let preamble = handshake.map_or(Bytes(0), |handshake| handshake.preamble);
        let wire_bytes = self.push(now, connection, bytes + preamble, u64::from(tag));
        let message = self.messages.get_mut(tag);
        message.wire_bytes += wire_bytes;
        message.way.behind = self.connections[connection as usize].last.replace(message.way.id);
    }

    /// Puts bytes on a connection; returns their size on the wire.
    fn push(&mut self, now: SimTime, index: u32, bytes: Bytes, tag: u64) -> Bytes {
        self.catch_up(now);
        let connection = &mut self.connections[index as usize];
        if connection.closed {
            return Bytes(0);
        }
        connection.is_used(now);
        let (wire_bytes, bytes) = connection.framed(bytes);
        self.wire_sent[connection.source.index()] += wire_bytes;
        if connection.is_open() {
            self.network.push(connection.stream, bytes, tag);
        } else {
            connection.push(bytes, tag);
            self.release(now, index);
        }
        wire_bytes
    }

    /// Releases the bytes that the window of a connection allows.
    fn release(&mut self, now: SimTime, index: u32) {
        let connection = &mut self.connections[index as usize];
        loop {
            match connection.release(now) {
                Release::Bytes { bytes, tag, last } => {
                    self.network.push(connection.stream, bytes, if last { tag } else { tag | PART });
                }
                Release::Later(at) => return self.timers.set(at, Due::Acknowledged(index)),
                Release::Nothing => return,
            }
        }
    }

    fn connection(&mut self, source: RankId, destination: RankId, group: GroupId) -> u32 {
        let key = (self.protocol.connections_per_group.then_some(group), source, destination);
        match self.connections.get_index_of(&key) {
            Some(index) => index as u32,
            None => {
                let mut connection = self.connect(source, destination);
                connection.closed = self.gone.contains(&source) || self.gone.contains(&destination);
                self.connections.insert_full(key, connection).0 as u32
            }
        }
    }

    fn connect(&mut self, source: RankId, destination: RankId) -> Connection {
        let (from, to) = (self.hosts[source.index()], self.hosts[destination.index()]);
        let route = self.topology.route(from, to);
        let overhead = self.topology.overhead(&route);
        let Some(window) = self.protocol.window else {
            return Connection::new(self.network.open(from, to, None), route, overhead, source, None);
        };
        let round_trip = route.latency + self.topology.route(to, from).latency;
        let limit = Rate::new(window.cap.0 as f64 / round_trip.as_secs_f64());
        let rates = route.links.iter().map(|id| self.topology.link(*id).payload_rate());
        let narrowest = rates.min_by(|a, b| a.bytes_per_second().total_cmp(&b.bytes_per_second()));
        let binds = limit.filter(|limit| narrowest.is_none_or(|rate| *limit < rate));
        let stream = self.network.open(from, to, binds);
        let carried = narrowest.map_or(0.0, |rate| 2.0 * rate.bytes_per_second() * round_trip.as_secs_f64());
        let warm = Bytes((carried as u64).clamp(window.first.0, window.cap.0));
        Connection::new(stream, route, overhead, source, Some(Growth { window, round_trip, warm }))
    }

    /// Advances the network to an instant before its next event.
    fn catch_up(&mut self, now: SimTime) {
        if self.now < now {
            self.network.advance(now, &mut self.events);
            assert!(self.events.is_empty(), "the network had events before {now}: {:?}", self.events);
            self.now = now;
        }
    }

    pub(crate) fn next_event(&mut self) -> Option<SimTime> {
        self.network.next_event().into_iter().chain(self.timers.next()).min()
    }

    /// A link that has changed at the current instant, if nothing else happened in the network then.
    pub(crate) fn changed_only(&self) -> Option<&str> {
        self.network.changed_only()
    }

    /// Advances to `to`, which is at or before the next event, and reports the events of that instant: first the
    /// network's, in its order, then due actions, in the order in which they were scheduled.
    pub(crate) fn advance(&mut self, to: SimTime, happened: &mut Vec<TransportEvent>) {
        self.now = to;
        let mut events = std::mem::take(&mut self.events);
        self.network.advance(to, &mut events);
        for event in events.drain(..) {
            self.network_event(to, event, happened);
        }
        self.events = events;
        while let Some(due) = self.timers.due(to) {
            self.come_due(to, due, happened);
        }
    }

    fn network_event(&mut self, now: SimTime, event: NetworkEvent, happened: &mut Vec<TransportEvent>) {
        match event {
            NetworkEvent::Sent { tag, .. } if tag & CONTROL != 0 => {}
            NetworkEvent::Sent { tag, started, limit } => {
                let message = self.messages.get_mut(tag as u32);
                message.started = message.started.min(started);
                message.is_limited(limit, now.since(started));
                self.connections[message.connection as usize].is_used(now);
                if tag & PART == 0 {
                    message.sent = now;
                    let lasted = now.since(message.started.max(message.way.released));
                    message.way.in_window = lasted.saturating_sub(message.left_over_links);
                    let wake = if message.wire == ONE_SIDED { SimDuration::ZERO } else { self.protocol.wake };
                    self.after(now, wake, Due::Sent(tag as u32), happened);
                }
            }
            NetworkEvent::Delivered { tag } if tag & PART != 0 => {}
            NetworkEvent::Delivered { tag } if tag & CONTROL != 0 => self.control_arrives(now, tag as u32, happened),
            NetworkEvent::Delivered { tag } => {
                let message = self.messages.get(tag as u32);
                let least = self.hop(message).map_or(SimDuration::ZERO, |hop| hop.latency);
                let left = least.saturating_sub(self.route(message).latency);
                self.after(now, left, Due::Landed(tag as u32), happened);
            }
        }
    }

    /// Effect of a message's protocol on the message.
    fn hop(&self, message: &Message) -> Option<Hop> {
        if matches!(message.wire, PLAIN | ONE_SIDED) {
            return None;
        }
        let Wire { inside, between } = self.wires[message.wire as usize - 1];
        let server = |rank: RankId| self.topology.server(self.hosts[rank.index()]);
        Some(if server(message.source) == server(message.destination) { inside } else { between })
    }

    /// Schedules `due` after `delay`; it happens at once if `delay` is zero.
    fn after(&mut self, now: SimTime, delay: SimDuration, due: Due, happened: &mut Vec<TransportEvent>) {
        self.at(now, now.saturating_add(delay), due, happened);
    }

    fn at(&mut self, now: SimTime, at: SimTime, due: Due, happened: &mut Vec<TransportEvent>) {
        if at > now { self.timers.set(at, due) } else { self.come_due(now, due, happened) }
    }

    fn come_due(&mut self, now: SimTime, due: Due, happened: &mut Vec<TransportEvent>) {
        match due {
            Due::Acknowledged(connection) => {
                self.connections[connection as usize].look_again();
                self.release(now, connection);
            }
            Due::Landed(tag) => self.data_arrives(now, tag, happened),
            Due::Control(control) => self.heed(now, control),
            Due::TakenIn(tag) => self.hand_over(now, tag, happened),
            Due::Sent(tag) => happened.push(TransportEvent::Sent(tag)),
            Due::Arrived(tag) => happened.push(TransportEvent::Arrived(tag)),
            Due::CallBack(number) => happened.push(TransportEvent::CallBack(number)),
        }
    }

    fn control_arrives(&mut self, now: SimTime, control: u32, happened: &mut Vec<TransportEvent>) {
        let at = match *self.controls.get(control) {
            Control::RecvReady { data, .. } => {
                let sender = self.connections[data as usize].source;
                self.threads.take_in(sender, now, self.protocol.message)
            }
            Control::SendReady { .. } => now,
        };
        self.at(now, at, Due::Control(control), happened);
    }

    /// Acts on a control message.
    fn heed(&mut self, now: SimTime, control: u32) {
        match self.controls.take(control) {
            Control::RecvReady { data, channel, grant } => {
                if let Some(tag) = self.rendezvous.ready(data, channel, grant) {
                    self.granted(now, tag, grant);
                }
            }
            Control::SendReady { data, channel } => {
                let (&(of, sender, receiver), _) = self.connections.get_index(data as usize).expect("it carries data");
                let group = match channel {
                    Channel::Tag(group, _) => group,
                    // Connections that belong to no group are shared by all groups.
                    Channel::Instance(_) => of.unwrap_or_default(),
                };
                if let Some(grant) = self.rendezvous.announced(receiver, sender, channel) {
                    let grant = Grant { posted: None, ..grant };
                    self.invite(now, receiver, sender, group, channel, grant);
                }
            }
        }
    }

    fn data_arrives(&mut self, now: SimTime, tag: u32, happened: &mut Vec<TransportEvent>) {
        let Message { destination, bytes, wire, .. } = *self.messages.get(tag);
        if self.reception_is_free || wire == ONE_SIDED {
            return happened.push(TransportEvent::Arrived(tag));
        }
        let work = self.protocol.message + time_for(self.protocol.copy, bytes);
        let at = self.threads.take_in(destination, now, work);
        self.at(now, at, Due::TakenIn(tag), happened);
    }

    /// Wakes the thread that waits for a message.
    fn hand_over(&mut self, now: SimTime, tag: u32, happened: &mut Vec<TransportEvent>) {
        let message = *self.messages.get(tag);
        let Message { purpose, destination, bytes, sent, .. } = message;
        let Protocol { wake, reduce, .. } = self.protocol;
        let at = match purpose {
            Purpose::Step { instance, .. } => {
                let combine = self.grant(&message).is_some_and(|grant| grant.combine);
                let work = if combine { time_for(reduce, bytes) } else { SimDuration::ZERO };
                self.threads.work(destination, instance, now, wake, work)
            }
            Purpose::Send { .. } | Purpose::Write { .. } => now.saturating_add(wake),
        };
        // The wake-up of a busy worker costs nothing, but the message is kept until its sender knows that it has left.
        let at = at.max(sent.saturating_add(wake));
        self.at(now, at, Due::Arrived(tag), happened);
    }

    /// Time at which the sender of a message that arrives now learns of its arrival.
    pub(crate) fn acknowledged(&self, now: SimTime, message: &Message) -> SimTime {
        let [from, to] = [message.destination, message.source].map(|rank| self.hosts[rank.index()]);
        let wait = if message.wire == TIMELESS { SimDuration::ZERO } else { self.topology.route(from, to).latency };
        now.saturating_add(wait)
    }

    /// The route of a message.
    pub(crate) fn route(&self, message: &Message) -> &Route {
        &self.connections[message.connection as usize].route
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of 3, 2, 2, 2 and 2 ps left: link 0 limited the first, 3 ps of 11, and link 1 the others.
    #[test]
    fn the_link_that_limited_most_parts_of_a_message_is_named() {
        let mut message = Message {
            purpose: Purpose::Write { handle: Handle(0) },
            source: RankId(0),
            destination: RankId(1),
            group: GroupId(0),
            bytes: Bytes(0),
            wire_bytes: Bytes(0),
            queued: SimTime::ZERO,
            started: SimTime::ZERO,
            sent: SimTime::ZERO,
            way: MessageWay::default(),
            limited: SimDuration::ZERO,
            left_over_links: SimDuration::ZERO,
            connection: 0,
            grant: NO_GRANT,
            wire: PLAIN,
        };
        for (link, ps) in [(0, 3), (1, 2), (1, 2), (1, 2), (1, 2)] {
            message.is_limited(Some(LinkId(link)), SimDuration::from_ps(ps));
        }
        assert_eq!((message.way.limit, message.left_over_links.as_ps()), (Some(LinkId(1)), 11));
    }
}
