//! Owns connection streams: their messages, in order, and the times of these. [`super::sharing`] divides links among
//! streams, and [`super::progress`] computes when the message at a stream's head has left.
//!
//! The links that kept a message from leaving faster are recorded in [`super::limits`].
//!
//! A stream with bytes waiting is one flow over all links of its route. Its last byte arrives one latency of the route
//! after it has left (cut-through), and later if it has to wait in front of the receiver ([`super::ingress`]). Messages
//! without bytes wait for earlier messages and then leave at once, as do all messages on a route without links.
//!
//! Changes of links ([`super::dynamics`]) are events too, as long as a stream has bytes that move or wait.

use super::dynamics::{Dynamics, LinkDynamics};
use super::heap::IndexedHeap;
use super::ingress::Ingress;
use super::limits::Limits;
use super::progress::Progress;
use super::scale::Scale;
use super::sharing::Sharing;
use super::{FoldedTopology, Network, NetworkEvent, Route, Topology};
use crate::ids::{HostId, LinkId, StreamId};
use crate::time::{Bytes, Rate, SimDuration, SimTime};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A network whose streams share links max-min fairly.
///
/// Within one instant, [`NetworkEvent::Sent`] events come first, then [`NetworkEvent::Delivered`], each in the order of
/// the streams. If the next event would be past the end of virtual time, [`Network::next_event`] is [`SimTime::MAX`].
pub struct FlowNetwork {
    topology: Topology,
    folded: Option<FoldedTopology>,
    now: SimTime,
    scale: Scale,
    sharing: Sharing,
    progress: Progress,
    ingress: Ingress,
    streams: Vec<Stream>,
    /// Stream of each flow, by the flow's number in `sharing`.
    stream_of: Vec<StreamId>,
    /// Streams whose head has begun, or whose last message has left, since the last solution of sharing.
    pending: Vec<StreamId>,
    /// Streams whose head leaves at once.
    instant: Vec<StreamId>,
    /// Messages in flight, by latency. All messages of one latency arrive in the order in which they have left.
    flights: Vec<Flight>,
    flight_of: BTreeMap<SimDuration, u32>,
    arrivals: IndexedHeap<SimTime>,
    /// Messages in flight over links whose latency changes: arrival, stream, position in the order of departures, tag.
    stragglers: BinaryHeap<Reverse<(SimTime, StreamId, u64, u64)>>,
    dynamics: Dynamics,
    /// The links that change, in order.
    changing: Vec<LinkId>,
    /// Next change of each link, and next start or end of background traffic: by link, then by number of the traffic.
    changes: IndexedHeap<SimTime>,
    /// Whether capacities have changed since the last solution of sharing.
    changed: bool,
    /// The link that has changed at the current instant, if nothing else happened then.
    changed_only: Option<LinkId>,
    /// Number of moving flows that are not background traffic.
    busy: u32,
    /// Kept to reuse the allocation.
    ended: Vec<u32>,
    reports: Vec<(StreamId, NetworkEvent)>,
}

struct Stream {
    /// Number in `sharing`; `None` for a route without links.
    flow: Option<u32>,
    /// Whether the stream's flow is active in `sharing`.
    active: bool,
    /// Whether the stream is in `FlowNetwork::pending`.
    pending: bool,
    /// The queue in front of the flow's receiver.
    queue: Option<u32>,
    flight: u32,
    head: Option<Message>,
    waiting: VecDeque<Message>,
    /// Time at which the message at the head began to leave.
    started: SimTime,
    /// Links that limit the message at the head of the stream.
    limits: Limits,
    /// Set if the latency depends on the time of departure.
    varying: Option<Box<Varying>>,
    /// Whether the stream is background traffic.
    background: bool,
}

/// State of messages over links whose latency changes.
struct Varying {
    route: Route,
    /// Arrival of the last message so far.
    last: SimTime,
    /// Number of messages that have left.
    count: u64,
}

#[derive(Clone, Copy)]
struct Message {
    bytes: Bytes,
    tag: u64,
}

/// Messages in flight over routes of one latency.
struct Flight {
    latency: SimDuration,
    messages: VecDeque<(SimTime, StreamId, u64)>,
}

impl FlowNetwork {
    /// The network of `topology`, at time zero, without streams and changes.
    pub fn new(topology: Topology) -> FlowNetwork {
        FlowNetwork::over(topology, None, Dynamics::default())
    }

    /// A network with links that change and with background traffic, which has the first stream numbers.
    pub fn changing(topology: Topology, dynamics: Dynamics) -> FlowNetwork {
        FlowNetwork::over(topology, None, dynamics)
    }

    /// The network of symmetric ranks: one stream stands for all equivalent ones.
    pub fn folded(topology: FoldedTopology) -> FlowNetwork {
        FlowNetwork::over(topology.topology().clone(), Some(topology), Dynamics::default())
    }

    fn over(topology: Topology, folded: Option<FoldedTopology>, dynamics: Dynamics) -> FlowNetwork {
        let scale = Scale::up_to(fastest(&topology, &dynamics));
        let mut network = FlowNetwork {
            topology,
            folded,
            now: SimTime::ZERO,
            scale,
            sharing: Sharing::new(),
            progress: Progress::new(),
            ingress: Ingress::new(),
            streams: Vec::new(),
            stream_of: Vec::new(),
            pending: Vec::new(),
            instant: Vec::new(),
            flights: Vec::new(),
            flight_of: BTreeMap::new(),
            arrivals: IndexedHeap::new(),
            stragglers: BinaryHeap::new(),
            changing: dynamics.links.keys().copied().collect(),
            dynamics,
            changes: IndexedHeap::new(),
            changed: false,
            changed_only: None,
            busy: 0,
            ended: Vec::new(),
            reports: Vec::new(),
        };
        for index in 0..network.topology.links().len() {
            let link = &network.topology.links()[index];
            let capacity = network.ingress.add_link(link, scale);
            network.add_link(capacity);
        }
        for other in network.dynamics.background.clone() {
            let stream = network.open(other.from, other.to, other.rate);
            network.streams[stream.index()].background = true;
        }
        (0..network.changing_parts()).for_each(|part| network.change(part));
        network
    }

    /// Opens a stream along the given route. A link that occurs twice represents two equivalent links of the route.
    pub fn open_along(&mut self, route: Route, cap: Option<Rate>) -> StreamId {
        let id = StreamId::from(self.streams.len());
        let flow = self.add_flow(id, &route, cap);
        let flight = self.flight(route.latency);
        let queue = route.links.iter().rev().find_map(|link| self.ingress.of_link(link.0));
        let varies = |link| self.dynamics.links.get(link).is_some_and(LinkDynamics::varies_in_latency);
        let varies = route.links.iter().any(varies);
        let varying = varies.then(|| Box::new(Varying { route, last: SimTime::ZERO, count: 0 }));
        self.streams.push(Stream {
            flow,
            active: false,
            pending: false,
            queue,
            flight,
            head: None,
            waiting: VecDeque::new(),
            started: SimTime::ZERO,
            limits: Limits::default(),
            varying,
            background: false,
        });
        id
    }

    /// Latency of a stream's messages if links do not change.
    pub fn latency(&self, stream: StreamId) -> SimDuration {
        self.flights[self.streams[stream.index()].flight as usize].latency
    }

    fn add_link(&mut self, capacity: u64) -> u32 {
        self.progress.add_link();
        self.sharing.add_link(capacity)
    }

    /// Adds a flow over the links of a route and, if it has a cap, one more link of its own.
    fn add_flow(&mut self, stream: StreamId, route: &Route, cap: Option<Rate>) -> Option<u32> {
        if route.links.is_empty() {
            return None;
        }
        let mut links: Vec<u32> = route.links.iter().map(|link| link.0).collect();
        links.extend(cap.map(|rate| self.add_link(self.scale.rate(rate.bytes_per_second()))));
        self.progress.add_flow();
        self.stream_of.push(stream);
        Some(self.sharing.add_flow(links.into_iter()))
    }

    fn flight(&mut self, latency: SimDuration) -> u32 {
        let flights = &mut self.flights;
        *self.flight_of.entry(latency).or_insert_with(|| {
            flights.push(Flight { latency, messages: VecDeque::new() });
            flights.len() as u32 - 1
        })
    }

    /// Starts the message at the head of `id`.
    fn begin(&mut self, id: StreamId) {
        let now = self.now;
        let stream = &mut self.streams[id.index()];
        stream.started = now;
        if stream.has_bytes_to_share_for() { self.mark_pending(id) } else { self.instant.push(id) }
    }

    fn mark_pending(&mut self, id: StreamId) {
        if !std::mem::replace(&mut self.streams[id.index()].pending, true) {
            self.pending.push(id);
        }
    }

    /// Shares links again after the events of this instant.
    fn settle(&mut self) {
        if self.pending.is_empty() && !self.changed {
            return;
        }
        for id in &self.pending {
            let stream = &mut self.streams[id.index()];
            if stream.active && !stream.has_bytes_to_share_for() {
                stream.active = false;
                self.busy -= u32::from(!stream.background);
                self.sharing.leave(stream.flow.expect("an active stream's"));
            }
        }
        for id in &self.pending {
            let stream = &mut self.streams[id.index()];
            stream.pending = false;
            if !stream.active && stream.has_bytes_to_share_for() {
                stream.active = true;
                self.busy += u32::from(!stream.background);
                self.sharing.join(stream.flow.expect("a stream with links"));
            }
        }
        self.sharing.solve();
        self.settle_queues();
        let begun = self.pending.iter().map(|id| &self.streams[id.index()]).filter(|stream| stream.active);
        let begun = begun.filter_map(|stream| Some((stream.flow?, stream.to_go(self.scale)?)));
        self.progress.follow(self.now, &self.sharing, begun);
        self.note_limits();
        self.sharing.forget_changes();
        self.pending.clear();
        self.changed = false;
    }

    /// Records the limiting link of each stream that begins to move at this instant or has moved to another bottleneck.
    fn note_limits(&mut self) {
        let FlowNetwork { pending, sharing, stream_of, streams, now, .. } = self;
        let moved = sharing.moved.iter().map(|flow| stream_of[*flow as usize]);
        for id in moved.chain(pending.iter().copied()) {
            let stream = &mut streams[id.index()];
            if let Some(flow) = stream.flow.filter(|_| stream.active) {
                stream.limits.set(sharing.limit(flow), stream.started, *now);
            }
        }
    }

    /// Closes links whose queues are full, and opens those that are no flow's bottleneck.
    fn settle_queues(&mut self) {
        if self.ingress.is_empty() {
            return;
        }
        let queues = self.pending.iter().filter_map(|id| self.streams[id.index()].queue);
        queues.for_each(|queue| self.ingress.touch(queue));
        while self.ingress.follow(self.now, &mut self.sharing) {
            self.sharing.solve();
        }
    }

    /// Ends the head of `id`, and all messages behind it that leave at once.
    fn finish_head(&mut self, id: StreamId) {
        while let Some(Message { tag, .. }) = self.streams[id.index()].head {
            let stream = &mut self.streams[id.index()];
            let (started, queue) = (stream.started, stream.queue);
            // Link numbers above those of the topology's links belong to rate caps of streams.
            let limit = stream.limits.take_longest(started, self.now).map(LinkId);
            let limit = limit.filter(|link| link.index() < self.topology.links().len());
            self.reports.push((id, NetworkEvent::Sent { tag, started, limit }));
            match queue {
                Some(queue) => self.ingress.enter(queue, self.now, id, tag),
                None => self.fly(id, tag),
            }
            let stream = &mut self.streams[id.index()];
            stream.head = stream.waiting.pop_front();
            stream.started = self.now;
            if stream.has_bytes_to_share_for() {
                break;
            }
        }
        if self.streams[id.index()].flow.is_some() {
            self.mark_pending(id);
        }
    }

    /// Delivers a message after its latency. If messages have different latencies, none overtakes the previous one.
    fn fly(&mut self, id: StreamId, tag: u64) {
        let FlowNetwork { topology, dynamics, streams, flights, arrivals, stragglers, now, .. } = self;
        let Stream { flight, varying, .. } = &mut streams[id.index()];
        if let Some(varying) = varying {
            let takes = flight_time(topology, dynamics, &varying.route, (id, varying.count), *now);
            varying.last = varying.last.max(now.saturating_add(takes));
            stragglers.push(Reverse((varying.last, id, varying.count, tag)));
            varying.count += 1;
            return;
        }
        let Flight { latency, messages } = &mut flights[*flight as usize];
        let arrival = now.saturating_add(*latency);
        if messages.is_empty() {
            arrivals.set(*flight, arrival);
        }
        messages.push_back((arrival, id, tag));
    }

    /// Number of changing parts: links that change, then streams of background traffic.
    fn changing_parts(&self) -> u32 {
        (self.dynamics.links.len() + self.dynamics.background.len()) as u32
    }

    /// Updates one changing link or background stream to the current instant, and schedules its next change.
    fn change(&mut self, part: u32) {
        let links = self.changing.len();
        let next = match (part as usize).checked_sub(links) {
            None => self.change_link(part),
            Some(number) => self.change_background(number),
        };
        match next {
            Some(at) => self.changes.set(part, at),
            None => self.changes.remove(part),
        }
    }

    fn change_link(&mut self, part: u32) -> Option<SimTime> {
        let id = self.changing[part as usize];
        let link = &self.dynamics.links[&id];
        let rate = self.scale.rate(link.payload_rate(self.topology.link(id), self.now));
        self.sharing.set_capacity(id.0, self.ingress.set_capacity(id.0, rate, self.now));
        self.changed = true;
        link.next_change(self.now)
    }

    fn change_background(&mut self, number: usize) -> Option<SimTime> {
        let traffic = self.dynamics.background[number];
        let id = StreamId::from(number);
        let goes = traffic.start <= self.now && traffic.end.is_none_or(|end| self.now < end);
        let stream = &mut self.streams[id.index()];
        let (bytes, tag) = (Bytes(u64::MAX), u64::MAX);
        stream.head = goes.then_some(Message { bytes, tag });
        if let Some(flow) = stream.flow {
            if !goes {
                self.progress.abandon(flow);
            }
            self.mark_pending(id);
        }
        [Some(traffic.start), traffic.end].into_iter().flatten().find(|at| *at > self.now)
    }

    /// Handles the messages that have arrived by now.
    fn land(&mut self) {
        while let Some(&Reverse((_, id, _, tag))) = self.stragglers.peek().filter(|late| late.0.0 <= self.now) {
            self.stragglers.pop();
            self.reports.push((id, NetworkEvent::Delivered { tag }));
        }
        while let Some((_, flight)) = self.arrivals.first().filter(|(at, _)| *at <= self.now) {
            let messages = &mut self.flights[flight as usize].messages;
            while let Some(&(_, id, tag)) = messages.front().filter(|(at, ..)| *at <= self.now) {
                messages.pop_front();
                self.reports.push((id, NetworkEvent::Delivered { tag }));
            }
            match messages.front() {
                Some((at, ..)) => self.arrivals.set(flight, *at),
                None => self.arrivals.remove(flight),
            }
        }
    }

    /// Reports the collected events, stream by stream.
    fn report(&mut self, events: &mut Vec<NetworkEvent>) {
        self.reports.sort_by_key(|(id, _)| *id);
        events.extend(self.reports.drain(..).map(|(_, event)| event));
    }
}

impl Stream {
    fn has_bytes_to_share_for(&self) -> bool {
        self.flow.is_some() && self.head.is_some_and(|message| message.bytes.0 > 0)
    }

    /// Remaining amount of the head; background traffic never ends by itself.
    fn to_go(&self, scale: Scale) -> Option<u128> {
        Some(if self.background { u128::MAX } else { scale.amount(self.head?.bytes) })
    }
}

/// The highest rate that any link ever has.
fn fastest(topology: &Topology, dynamics: &Dynamics) -> Rate {
    let profiles = dynamics.links.values().flat_map(|link| &link.profile);
    let changed = profiles.flat_map(|profile| profile.points.iter()).filter_map(|point| point.bandwidth);
    let rates = topology.links().iter().map(|link| link.bandwidth).chain(changed);
    let highest = rates.max_by(|a, b| a.bytes_per_second().total_cmp(&b.bytes_per_second()));
    highest.unwrap_or(Rate::of_bytes_per_second(1.0))
}

/// Latency of a stream's `message`-th message that leaves `now`.
fn flight_time(
    topology: &Topology,
    dynamics: &Dynamics,
    route: &Route,
    (stream, message): (StreamId, u64),
    now: SimTime,
) -> SimDuration {
    let over = |id: &LinkId| {
        let link = topology.link(*id);
        let latency = dynamics.links.get(id).map_or(link.latency, |changing| changing.latency(link, now));
        // A negative sum becomes zero, and one that is too large the largest value.
        SimDuration::from_ps((latency.as_ps() as f64 + dynamics.jitter_ps(*id, stream, message)).round() as u64)
    };
    let total = route.links.iter().map(over).fold(0_u64, |sum, span| sum.saturating_add(span.as_ps()));
    SimDuration::from_ps(total)
}

impl Network for FlowNetwork {
    fn open(&mut self, from: HostId, to: HostId, cap: Option<Rate>) -> StreamId {
        let route = match &self.folded {
            Some(folded) => folded.route(from, to),
            None => self.topology.route(from, to),
        };
        self.open_along(route, cap)
    }

    fn push(&mut self, stream: StreamId, bytes: Bytes, tag: u64) {
        let Stream { head, waiting, .. } = &mut self.streams[stream.index()];
        let message = Message { bytes, tag };
        if head.is_some() {
            waiting.push_back(message);
        } else {
            *head = Some(message);
            self.begin(stream);
        }
    }

    fn abandon(&mut self, id: StreamId, dropped: &mut Vec<u64>) {
        let stream = &mut self.streams[id.index()];
        let Some(head) = stream.head.take() else { return };
        dropped.extend(std::iter::once(head).chain(stream.waiting.drain(..)).map(|message| message.tag));
        self.instant.retain(|other| *other != id);
        if let Some(flow) = stream.flow {
            self.progress.abandon(flow);
            self.mark_pending(id);
        }
    }

    fn next_event(&mut self) -> Option<SimTime> {
        self.settle();
        if !self.instant.is_empty() {
            return Some(self.now);
        }
        let arrival = self.arrivals.first().map(|(at, _)| at);
        let straggler = self.stragglers.peek().map(|Reverse((at, ..))| *at);
        // An end that was rounded by a fraction of a picosecond may be earlier than now.
        let end = self.progress.next_end().map(|at| at.max(self.now));
        let (fill, departure) = (self.ingress.next_fill(), self.ingress.next_departure());
        let change = self.changes.first().map(|(at, _)| at);
        // Changes of background traffic alone are no event until a flow of the run shares its links.
        let concerns = self.busy > 0 || departure.is_some();
        let moves = end.into_iter().chain(change).chain(fill).filter(|_| concerns);
        moves.chain(departure).chain(arrival).chain(straggler).min()
    }

    fn advance(&mut self, to: SimTime, events: &mut Vec<NetworkEvent>) {
        let next = self.next_event();
        assert!(to >= self.now, "the network is at {} and cannot go back to {to}", self.now);
        assert!(next.is_none_or(|next| to <= next), "the network cannot skip what happens at {next:?} to be at {to}");
        self.now = to;
        for id in std::mem::take(&mut self.instant) {
            self.finish_head(id);
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.progress.take_ended(to, &mut ended);
        for flow in ended.drain(..) {
            self.finish_head(self.stream_of[flow as usize]);
        }
        self.ended = ended;
        self.changed_only = None;
        while let Some((_, part)) = self.changes.first().filter(|(at, _)| *at <= to) {
            self.changed_only = self.changing.get(part as usize).copied();
            self.change(part);
        }
        self.changed |= self.ingress.fill(to);
        self.report(events);
        while let Some((id, tag)) = self.ingress.take_departed(to) {
            self.fly(id, tag);
        }
        self.land();
        self.report(events);
        if !events.is_empty() {
            self.changed_only = None;
        }
    }

    fn changed_only(&self) -> Option<&str> {
        self.changed_only.map(|link| self.topology.link(link).name.as_str())
    }
}

#[cfg(test)]
pub(super) mod tests;
