//! Owns what lies between a step of a communication and bytes on streams: which stream a message takes, and what its delivery means.
//!
//! Messages are eager here: they leave when they are sent, whether or not the receiver waits for them. It does not know
//! algorithms or matching (`comm`), nor how streams share links (`network`).

use crate::ids::{GroupId, GroupRank, Handle, HostId, RankId, Site, StreamId};
use crate::network::{Network, NetworkEvent, Route, Topology};
use crate::time::{Bytes, SimTime};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Sends messages between ranks and reports how far they are.
pub(crate) struct Transport {
    network: Box<dyn Network>,
    hosts: Vec<HostId>,
    topology: Topology,
    /// One stream a pair and direction, as a TCP connection; opened at the first message.
    streams: IndexMap<(RankId, RankId), Stream, FxBuildHasher>,
    /// Messages on their way, by tag.
    messages: Vec<Message>,
    free: Vec<u32>,
    events: Vec<NetworkEvent>,
    /// Where the network stands.
    now: SimTime,
}

struct Stream {
    id: StreamId,
    route: Route,
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) purpose: Purpose,
    pub(crate) source: RankId,
    pub(crate) destination: RankId,
    pub(crate) group: GroupId,
    pub(crate) bytes: Bytes,
    pub(crate) wire_bytes: Bytes,
    pub(crate) queued: SimTime,
    /// When it came to the head of its stream; known once it is sent.
    pub(crate) started: SimTime,
    pub(crate) sent: SimTime,
    stream: u32,
}

/// What a message belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A step of a collective.
    Step {
        /// The index of the instance.
        instance: u32,
        /// The sender's place in the group.
        from: GroupRank,
        /// The receiver's.
        to: GroupRank,
        /// The number of the sender's step.
        step: u64,
    },
    /// A point-to-point message.
    Send {
        /// The sender's operation.
        handle: Handle,
        /// What the receiver asks for.
        tag: u64,
        /// The sender's line.
        site: Site,
    },
}

/// How far a message is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress {
    /// Its last byte has left.
    Sent,
    /// Its last byte is there.
    Arrived,
}

impl Transport {
    pub(crate) fn new(network: Box<dyn Network>, hosts: Vec<HostId>, topology: Topology) -> Transport {
        Transport {
            network,
            hosts,
            topology,
            streams: IndexMap::default(),
            messages: Vec::new(),
            free: Vec::new(),
            events: Vec::new(),
            now: SimTime::ZERO,
        }
    }

    /// Puts a message on its stream. Returns its size on the wire.
    pub(crate) fn send(
        &mut self,
        now: SimTime,
        source: RankId,
        destination: RankId,
        group: GroupId,
        bytes: Bytes,
        purpose: Purpose,
    ) -> Bytes {
        let stream = self.stream(source, destination);
        let Stream { id, route } = &self.streams[stream];
        let (id, wire_bytes) = (*id, self.topology.wire_bytes(route, bytes));
        let message = Message {
            purpose,
            source,
            destination,
            group,
            bytes,
            wire_bytes,
            queued: now,
            started: now,
            sent: now,
            stream: stream as u32,
        };
        self.catch_up(now);
        let tag = self.keep(message);
        self.network.push(id, bytes, u64::from(tag));
        wire_bytes
    }

    fn stream(&mut self, source: RankId, destination: RankId) -> usize {
        if let Some(index) = self.streams.get_index_of(&(source, destination)) {
            return index;
        }
        let (from, to) = (self.hosts[source.index()], self.hosts[destination.index()]);
        let id = self.network.open(from, to, None);
        let stream = Stream { id, route: self.topology.route(from, to) };
        self.streams.insert_full((source, destination), stream).0
    }

    /// Brings the network to an instant before its next event.
    fn catch_up(&mut self, now: SimTime) {
        if self.now < now {
            self.network.advance(now, &mut self.events);
            assert!(self.events.is_empty(), "the network had events before {now}: {:?}", self.events);
            self.now = now;
        }
    }

    fn keep(&mut self, message: Message) -> u32 {
        match self.free.pop() {
            Some(tag) => {
                self.messages[tag as usize] = message;
                tag
            }
            None => {
                self.messages.push(message);
                (self.messages.len() - 1) as u32
            }
        }
    }

    pub(crate) fn next_event(&mut self) -> Option<SimTime> {
        self.network.next_event()
    }

    /// Moves the network to `to` and reports each message that got further, in the network's order.
    pub(crate) fn advance(&mut self, to: SimTime, progress: &mut Vec<(Progress, Message)>) {
        self.now = to;
        let mut events = std::mem::take(&mut self.events);
        self.network.advance(to, &mut events);
        for event in events.drain(..) {
            match event {
                NetworkEvent::Sent { tag, started } => {
                    let message = &mut self.messages[tag as usize];
                    message.started = started;
                    message.sent = to;
                    progress.push((Progress::Sent, *message));
                }
                NetworkEvent::Delivered { tag } => {
                    progress.push((Progress::Arrived, self.messages[tag as usize]));
                    self.free.push(tag as u32);
                }
            }
        }
        self.events = events;
    }

    /// The way that a message takes.
    pub(crate) fn route(&self, message: &Message) -> &Route {
        &self.streams[message.stream as usize].route
    }
}
