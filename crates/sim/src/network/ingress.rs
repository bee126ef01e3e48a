//! Owns the queues in front of hosts: messages that a switch has accepted for a host and not delivered yet, first come,
//! first served. [`super::sharing`] determines the senders' rates; this module tells it which links limit streams.
//!
//! A link with a queue accepts all bytes as long as the queue has room: it limits no stream, and is *open*. Streams
//! that together send `a` over a link of capacity `C` fill the queue, and messages leave it in the order in which their
//! last bytes have arrived:
//!
//! ```text
//! b(t) = b(t0) + (a - C) (t - t0)      queued bytes, between 0 and the queue's size
//! a message whose last byte arrives at b queued bytes leaves once the link has carried b more: after b / C at constant C
//! ```
//!
//! Once the queue is full, the link is *closed*: it limits streams like a link without a queue, and the queue's content
//! stays constant. (A real queue drops packets then, and TCP finds its share of the link by that; losses and
//! retransmissions are not modelled.) The link opens as soon as it is no flow's bottleneck. All values are in quanta
//! and picoseconds ([`super::scale`]), and exact.
//!
//! A message waits in the last queue on its route: in an explicit graph, a host that forwards messages for others does
//! not delay them. Bytes in flight between a sender and a queue count as queued: latencies are added behind the queue.

use super::heap::IndexedHeap;
use super::scale::{Scale, UNBOUNDED};
use super::sharing::Sharing;
use super::topology::Link;
use crate::ids::StreamId;
use crate::time::{Bytes, SimDuration, SimTime};
use std::collections::VecDeque;

/// The queues of a network, and the messages in them.
pub(super) struct Ingress {
    /// The queue of each link of the topology, if it has one.
    of_link: Vec<Option<u32>>,
    queues: Vec<Queue>,
    /// Times at which queues will be full, if nothing changes.
    fills: IndexedHeap<SimTime>,
    /// Times at which the first message of each queue leaves, if the link's rate does not change.
    departures: IndexedHeap<SimTime>,
    /// Queues whose streams may have other rates than before.
    stale: Vec<u32>,
}

/// One queue. Amounts are in quanta times picoseconds, rates in quanta.
struct Queue {
    link: u32,
    size: u128,
    capacity: u64,
    open: bool,
    /// The rate at which bytes arrive.
    inflow: u128,
    /// Queued bytes, and all bytes that the link had carried, at `since`.
    waiting: u128,
    carried: u128,
    since: SimTime,
    /// Total of the link's bytes at a message's departure, and the message.
    messages: VecDeque<(u128, StreamId, u64)>,
    /// Whether the queue is in `Ingress::stale`.
    stale: bool,
}

impl Queue {
    /// Advances the queue to `now`.
    fn advance(&mut self, now: SimTime) {
        let span = u128::from(now.since(self.since).as_ps());
        let came = self.waiting.saturating_add(self.inflow.saturating_mul(span));
        let carried = came.min(u128::from(self.capacity) * span);
        self.carried = self.carried.saturating_add(carried);
        self.waiting = (came - carried).min(self.size);
        self.since = now;
    }

    fn after(&self, amount: u128, rate: u128) -> SimTime {
        let ps = u64::try_from(amount.div_ceil(rate)).unwrap_or(u64::MAX);
        self.since.saturating_add(SimDuration::from_ps(ps))
    }

    /// Time at which the queue is full; `None`: not at the current rates.
    fn fills_at(&self) -> Option<SimTime> {
        let surplus = self.inflow.saturating_sub(self.capacity.into());
        (self.open && surplus > 0).then(|| self.after(self.size - self.waiting, surplus))
    }

    fn departs_at(&self) -> Option<SimTime> {
        let (mark, ..) = self.messages.front()?;
        Some(self.after(mark.saturating_sub(self.carried), self.capacity.into()))
    }
}

impl Ingress {
    pub(super) fn new() -> Ingress {
        let (fills, departures) = (IndexedHeap::new(), IndexedHeap::new());
        Ingress { of_link: Vec::new(), queues: Vec::new(), fills, departures, stale: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Adds the next link, in the order of the topology. Returns its capacity for [`Sharing`].
    pub(super) fn add_link(&mut self, link: &Link, scale: Scale) -> u64 {
        let capacity = scale.rate(link.payload_rate().bytes_per_second());
        let Some(Bytes(bytes)) = link.queue else {
            self.of_link.push(None);
            return capacity;
        };
        let payload = link
            .overhead
            .map_or(bytes, |packet| (u128::from(bytes) * u128::from(packet.payload) / u128::from(packet.wire)) as u64);
        self.of_link.push(Some(self.queues.len() as u32));
        self.queues.push(Queue {
            link: self.of_link.len() as u32 - 1,
            size: scale.amount(Bytes(payload)),
            capacity,
            open: true,
            inflow: 0,
            waiting: 0,
            carried: 0,
            since: SimTime::ZERO,
            messages: VecDeque::new(),
            stale: false,
        });
        UNBOUNDED
    }

    /// The queue in front of a link, if it has one.
    pub(super) fn of_link(&self, link: u32) -> Option<u32> {
        self.of_link.get(link as usize).copied().flatten()
    }

    /// Changes a link's capacity from now on. Returns its capacity for [`Sharing`].
    pub(super) fn set_capacity(&mut self, link: u32, capacity: u64, now: SimTime) -> u64 {
        let Some(at) = self.of_link(link) else { return capacity };
        let queue = &mut self.queues[at as usize];
        queue.advance(now);
        queue.capacity = capacity;
        let known = if queue.open { UNBOUNDED } else { capacity };
        self.touch(at);
        known
    }

    /// Marks a queue: the streams over its link, or their rates, may have changed.
    pub(super) fn touch(&mut self, queue: u32) {
        if !std::mem::replace(&mut self.queues[queue as usize].stale, true) {
            self.stale.push(queue);
        }
    }

    /// Handles the changes since the last solution of sharing, and opens and closes links. Returns whether a link
    /// limits streams from now on, so that sharing must be solved again.
    pub(super) fn follow(&mut self, now: SimTime, sharing: &mut Sharing) -> bool {
        sharing.for_changed_routes(|link| {
            if let Some(queue) = self.of_link(link) {
                self.touch(queue);
            }
        });
        let mut stale = std::mem::take(&mut self.stale);
        let mut closed = false;
        for at in stale.drain(..) {
            let queue = &mut self.queues[at as usize];
            queue.stale = false;
            queue.advance(now);
            queue.inflow = sharing.used(queue.link);
            let overflows = queue.waiting >= queue.size && queue.inflow > queue.capacity.into();
            if queue.open && overflows {
                queue.open = false;
                closed = true;
                sharing.set_capacity(queue.link, queue.capacity);
            } else if !queue.open && !sharing.is_full(queue.link) {
                queue.open = true;
                sharing.set_capacity(queue.link, UNBOUNDED);
            }
            self.reckon(at);
        }
        self.stale = stale;
        closed
    }

    /// A message's last byte arrives at a queue.
    pub(super) fn enter(&mut self, queue: u32, now: SimTime, stream: StreamId, tag: u64) {
        let of = &mut self.queues[queue as usize];
        of.advance(now);
        of.messages.push_back((of.carried.saturating_add(of.waiting), stream, tag));
        self.reckon(queue);
    }

    /// Next time at which a queue is full.
    pub(super) fn next_fill(&self) -> Option<SimTime> {
        self.fills.first().map(|(at, _)| at)
    }

    /// Next time at which a message leaves a queue.
    pub(super) fn next_departure(&self) -> Option<SimTime> {
        self.departures.first().map(|(at, _)| at)
    }

    /// Marks the queues that are full by `now`. Returns whether there are any.
    pub(super) fn fill(&mut self, now: SimTime) -> bool {
        let mut any = false;
        while let Some((_, queue)) = self.fills.first().filter(|(at, _)| *at <= now) {
            self.fills.remove(queue);
            self.touch(queue);
            any = true;
        }
        any
    }

    /// Removes a message that has left by `now`.
    pub(super) fn take_departed(&mut self, now: SimTime) -> Option<(StreamId, u64)> {
        let (_, queue) = self.departures.first().filter(|(at, _)| *at <= now)?;
        let (_, stream, tag) = self.queues[queue as usize].messages.pop_front().expect("a message leaves");
        self.reckon(queue);
        Some((stream, tag))
    }

    /// Recomputes when a queue is full, and when its first message leaves.
    fn reckon(&mut self, at: u32) {
        let queue = &self.queues[at as usize];
        match queue.fills_at() {
            Some(when) => self.fills.set(at, when),
            None => self.fills.remove(at),
        }
        match queue.departs_at() {
            Some(when) => self.departures.set(at, when),
            None => self.departures.remove(at),
        }
    }
}

#[cfg(test)]
mod tests;
