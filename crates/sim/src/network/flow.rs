//! Owns streams: their messages, in order, and what happens to these when. How streams share links is [`super::sharing`]'s business, when
//! the message at a stream's head has left is [`super::progress`]'s.
//!
//! A stream with bytes waiting is one flow over all links of its route. Its last byte arrives one latency of the route after it has left
//! (cut-through). Messages without bytes wait their turn and then leave at once; so does everything on a route without links.

use super::heap::IndexedHeap;
use super::progress::Progress;
use super::sharing::Sharing;
use super::{FoldedTopology, Network, NetworkEvent, Route, Topology};
use crate::ids::{HostId, StreamId};
use crate::time::{Bytes, Rate, SimDuration, SimTime};
use std::collections::{BTreeMap, VecDeque};

/// A network whose streams share links max-min fairly.
///
/// Of what happens at one instant, [`NetworkEvent::Sent`] comes first, then [`NetworkEvent::Delivered`], each in the order of the streams.
/// Where something would happen past the end of virtual time, [`Network::next_event`] is [`SimTime::MAX`].
pub struct FlowNetwork {
    topology: Topology,
    folded: Option<FoldedTopology>,
    now: SimTime,
    sharing: Sharing,
    progress: Progress,
    streams: Vec<Stream>,
    /// By the flow's number in `sharing`.
    stream_of: Vec<StreamId>,
    /// Streams whose head has begun, or whose last message has left, since sharing was last solved.
    pending: Vec<StreamId>,
    /// Streams whose head leaves at once.
    instant: Vec<StreamId>,
    /// Messages on their way. All that take equally long arrive in the order in which they have left.
    flights: Vec<Flight>,
    flight_of: BTreeMap<SimDuration, u32>,
    arrivals: IndexedHeap<SimTime>,
    /// Kept for their memory.
    ended: Vec<u32>,
    reports: Vec<(StreamId, NetworkEvent)>,
}

struct Stream {
    route: Route,
    /// Its number in `sharing`; `None` without links.
    flow: Option<u32>,
    /// Does it take part in `sharing`?
    active: bool,
    /// Is it in `FlowNetwork::pending`?
    pending: bool,
    flight: u32,
    head: Option<Message>,
    waiting: VecDeque<Message>,
    /// When the head began.
    started: SimTime,
}

#[derive(Clone, Copy)]
struct Message {
    bytes: Bytes,
    tag: u64,
}

/// All messages whose route has one latency.
struct Flight {
    latency: SimDuration,
    messages: VecDeque<(SimTime, StreamId, u64)>,
}

impl FlowNetwork {
    /// The network of `topology`, at time zero, without streams.
    pub fn new(topology: Topology) -> FlowNetwork {
        FlowNetwork::over(topology, None)
    }

    /// The network of symmetric ranks: one stream stands for all that are alike.
    pub fn folded(topology: FoldedTopology) -> FlowNetwork {
        FlowNetwork::over(topology.topology().clone(), Some(topology))
    }

    fn over(topology: Topology, folded: Option<FoldedTopology>) -> FlowNetwork {
        let mut network = FlowNetwork {
            topology,
            folded,
            now: SimTime::ZERO,
            sharing: Sharing::new(),
            progress: Progress::new(),
            streams: Vec::new(),
            stream_of: Vec::new(),
            pending: Vec::new(),
            instant: Vec::new(),
            flights: Vec::new(),
            flight_of: BTreeMap::new(),
            arrivals: IndexedHeap::new(),
            ended: Vec::new(),
            reports: Vec::new(),
        };
        for index in 0..network.topology.links().len() {
            network.add_link(network.topology.links()[index].payload_rate());
        }
        network
    }

    /// Opens a stream along a route of the caller's. A link that comes twice is one that stands for two which are crossed alike.
    pub fn open_along(&mut self, route: Route, cap: Option<Rate>) -> StreamId {
        let id = StreamId::from(self.streams.len());
        let flow = self.add_flow(id, &route, cap);
        let flight = self.flight(route.latency);
        let (head, waiting, started) = (None, VecDeque::new(), SimTime::ZERO);
        self.streams.push(Stream { route, flow, active: false, pending: false, flight, head, waiting, started });
        id
    }

    /// The route of a stream.
    pub fn route(&self, stream: StreamId) -> &Route {
        &self.streams[stream.index()].route
    }

    fn add_link(&mut self, rate: Rate) -> u32 {
        self.progress.add_link();
        self.sharing.add_link(rate.bytes_per_second())
    }

    /// A flow over the links of a route and, if it has a cap, one more link that is its own.
    fn add_flow(&mut self, stream: StreamId, route: &Route, cap: Option<Rate>) -> Option<u32> {
        if route.links.is_empty() {
            return None;
        }
        let mut links: Vec<u32> = route.links.iter().map(|link| link.0).collect();
        links.extend(cap.map(|rate| self.add_link(rate)));
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

    /// The message at the head of `id` may go.
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

    /// Shares links anew after what happened at this instant.
    fn settle(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        for id in &self.pending {
            let stream = &mut self.streams[id.index()];
            if stream.active && !stream.has_bytes_to_share_for() {
                stream.active = false;
                self.sharing.leave(stream.flow.expect("an active stream's"));
            }
        }
        for id in &self.pending {
            let stream = &mut self.streams[id.index()];
            stream.pending = false;
            if !stream.active && stream.has_bytes_to_share_for() {
                stream.active = true;
                self.sharing.join(stream.flow.expect("a stream with links"));
            }
        }
        self.sharing.solve();
        let begun = self.pending.iter().map(|id| &self.streams[id.index()]).filter(|stream| stream.active);
        let begun = begun.filter_map(|stream| Some((stream.flow?, stream.head?.bytes.0 as f64)));
        self.progress.follow(self.now, &self.sharing, begun);
        self.sharing.forget_changes();
        self.pending.clear();
    }

    /// The head of `id` has left, and with it all after it that leave at once.
    fn finish_head(&mut self, id: StreamId) {
        let stream = &mut self.streams[id.index()];
        let Flight { latency, messages } = &mut self.flights[stream.flight as usize];
        let arrival = self.now.saturating_add(*latency);
        while let Some(Message { tag, .. }) = stream.head {
            self.reports.push((id, NetworkEvent::Sent { tag, started: stream.started }));
            if messages.is_empty() {
                self.arrivals.set(stream.flight, arrival);
            }
            messages.push_back((arrival, id, tag));
            stream.head = stream.waiting.pop_front();
            stream.started = self.now;
            if stream.has_bytes_to_share_for() {
                break;
            }
        }
        if stream.flow.is_some() {
            self.mark_pending(id);
        }
    }

    /// Takes in what has arrived by now.
    fn land(&mut self) {
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

    /// Hands over what has been gathered, stream by stream.
    fn report(&mut self, events: &mut Vec<NetworkEvent>) {
        self.reports.sort_by_key(|(id, _)| *id);
        events.extend(self.reports.drain(..).map(|(_, event)| event));
    }
}

impl Stream {
    fn has_bytes_to_share_for(&self) -> bool {
        self.flow.is_some() && self.head.is_some_and(|message| message.bytes.0 > 0)
    }
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

    fn next_event(&mut self) -> Option<SimTime> {
        self.settle();
        if !self.instant.is_empty() {
            return Some(self.now);
        }
        let arrival = self.arrivals.first().map(|(at, _)| at);
        // A flow's end may lie a rounding error before now.
        let end = self.progress.next_end().map(|at| at.max(self.now));
        end.into_iter().chain(arrival).min()
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
        self.report(events);
        self.land();
        self.report(events);
    }
}

#[cfg(test)]
mod tests;
