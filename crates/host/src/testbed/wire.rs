//! Owns the effects of emulated links on packets: the time at which each packet leaves the last link of its route, or
//! its loss.
//!
//! A link sends packets one after the other at its bandwidth, has a finite queue, and adds its latency. Links are
//! cut-through: a packet enters the next link one latency after its first byte has left, not its last, so a path of
//! equal links costs one transmission. On its own host's link, a small packet overtakes packets that wait for other
//! receivers: hosts' queues alternate between receivers, and flows with little data are served first (as in Linux'
//! fq_codel). Switches' queues are first come, first served. The module knows neither devices nor the wall clock: times
//! are nanoseconds that the caller counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use uniference_sim::cluster::Cluster;
use uniference_sim::ids::{HostId, LinkId};
use uniference_sim::network::Topology;

/// Size of the Ethernet header of an IP packet: destination, source, type. Preamble, checksum and gap are left out, as
/// in `uniference_sim`'s 1,514 bytes for 1,448 bytes of payload.
pub(super) const ETHERNET_HEADER: u64 = 14;

/// Largest size on the wire of a small packet: acknowledgements, and messages that a receiver is ready.
const SMALL: u64 = 256;

/// One direction of a link, or a medium that both directions share.
struct Lane {
    bytes_per_ns: f64,
    latency_ns: u64,
    queue_bytes: u64,
    /// Time at which the last queued packet will have left.
    free_at: u64,
    /// Time at which the last queued packet for each receiver will have left, on links whose receivers alternate.
    of_receiver: BTreeMap<u32, u64>,
}

/// Packets under way, and the links they are on. The caller gets its `T` back with each packet.
pub(super) struct Wire<T> {
    topology: Topology,
    lanes: Vec<Lane>,
    /// Packets by the time at which the first byte reaches the next link, or the last byte the receiver; ties in order
    /// of arrival.
    moves: BinaryHeap<Reverse<(u64, u64, usize)>>,
    sequence: u64,
    /// Packets in `moves`; free entries are reused.
    packets: Vec<Option<Packet<T>>>,
    free: Vec<usize>,
    dropped: u64,
}

struct Packet<T> {
    load: T,
    receiver: u32,
    wire_bytes: u64,
    route: Vec<LinkId>,
    /// The number of links passed.
    hop: usize,
    /// Time at which the packet's last byte reaches the next link.
    tail_at: u64,
}

impl<T> Wire<T> {
    /// The links of `cluster`, each with a queue of `queue_bytes` unless the link defines its own.
    pub(super) fn new(cluster: &Cluster, queue_bytes: u64) -> Wire<T> {
        let lane = |link: &uniference_sim::network::Link| Lane {
            bytes_per_ns: link.bandwidth.bytes_per_second() / 1e9,
            latency_ns: link.latency.as_ps() / 1_000,
            queue_bytes: link.queue.map_or(queue_bytes, |queue| queue.0),
            free_at: 0,
            of_receiver: BTreeMap::new(),
        };
        Wire {
            topology: cluster.topology.clone(),
            lanes: cluster.topology.links().iter().map(lane).collect(),
            moves: BinaryHeap::new(),
            sequence: 0,
            packets: Vec::new(),
            free: Vec::new(),
            dropped: 0,
        }
    }

    /// Sends a packet, or several consecutive ones, of `wire_bytes` including headers at `now`.
    pub(super) fn send(&mut self, now: u64, (from, to): (u32, u32), wire_bytes: u64, load: T) {
        let route = self.topology.route(HostId(from), HostId(to)).links;
        let packet = Packet { load, receiver: to, wire_bytes, route, hop: 0, tail_at: now };
        let place = self.free.pop().unwrap_or_else(|| {
            self.packets.push(None);
            self.packets.len() - 1
        });
        self.packets[place] = Some(packet);
        self.schedule(now, place);
    }

    /// Time of the next move.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.moves.peek().map(|Reverse((at, ..))| *at)
    }

    /// Moves packets up to `now`; returns the next packet that has arrived by then, if any.
    pub(super) fn arrived(&mut self, now: u64) -> Option<T> {
        while let Some(&Reverse((at, _, place))) = self.moves.peek().filter(|Reverse((at, ..))| *at <= now) {
            self.moves.pop();
            let packet = self.packets[place].as_ref().expect("a packet that moves is there");
            if packet.hop == packet.route.len() {
                return Some(self.take(place));
            }
            self.enter_link(at, place);
        }
        None
    }

    /// Number of packets that were dropped at a full queue.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn enter_link(&mut self, at: u64, place: usize) {
        let packet = self.packets[place].as_mut().expect("a packet that moves is there");
        let lane = &mut self.lanes[packet.route[packet.hop].index()];
        let of_receiver = lane.of_receiver.entry(packet.receiver).or_default();
        let ahead = packet.hop == 0 && packet.wire_bytes <= SMALL;
        let start = if ahead { *of_receiver } else { lane.free_at }.max(at);
        if (start - at) as f64 * lane.bytes_per_ns > lane.queue_bytes as f64 {
            self.dropped += 1;
            self.take(place);
            return;
        }
        let transmission = (packet.wire_bytes as f64 / lane.bytes_per_ns) as u64;
        // A packet's last byte cannot leave a link before it has arrived from the previous link.
        let end = (start + transmission).max(packet.tail_at);
        // A packet that is sent ahead of waiting packets delays them.
        lane.free_at = if ahead { lane.free_at.max(at) + transmission } else { end };
        *of_receiver = end;
        packet.tail_at = end + lane.latency_ns;
        packet.hop += 1;
        let last = packet.hop == packet.route.len();
        let next = if last { packet.tail_at } else { start + lane.latency_ns };
        self.schedule(next, place);
    }

    fn schedule(&mut self, at: u64, place: usize) {
        self.moves.push(Reverse((at, self.sequence, place)));
        self.sequence += 1;
    }

    fn take(&mut self, place: usize) -> T {
        self.free.push(place);
        self.packets[place].take().expect("a packet that moves is there").load
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::cluster::{Choices, ClusterFile};

    /// Hosts on a switch: 1 Gbit/s, that is 8 ns per byte, and 100 us one way, half of it on each of the two links.
    fn wire(queue_bytes: u64) -> Wire<u32> {
        let text = "[[device]]\nname = \"a\"\ncount = 3\n[network]\npreset = \"switch\"\nbandwidth = \"1 Gbps\"\nlatency = \"100 us\"\n";
        let file = ClusterFile::parse("test", text, &[]).unwrap();
        Wire::new(&file.resolve(&Choices::default()).unwrap().cluster, queue_bytes)
    }

    /// All arrivals, as (time, load).
    fn arrivals(wire: &mut Wire<u32>) -> Vec<(u64, u32)> {
        let mut seen = Vec::new();
        while let Some(now) = wire.next_at() {
            while let Some(load) = wire.arrived(now) {
                seen.push((now, load));
            }
        }
        seen
    }

    /// latency + wire bytes / rate = 100,000 + 1,514 * 8 ns: equal links in a row cost one transmission.
    #[test]
    fn a_packet_takes_one_latency_and_one_transmission() {
        let mut wire = wire(u64::MAX);
        wire.send(0, (0, 1), 1_514, 7);
        assert_eq!(arrivals(&mut wire), [(100_000 + 1_514 * 8, 7)]);
    }

    /// The n-th packet of a burst arrives at latency + n * transmission.
    #[test]
    fn a_burst_leaves_at_the_rate() {
        let mut wire = wire(u64::MAX);
        (0..10).for_each(|load| wire.send(0, (0, 1), 1_514, load));
        let expected: Vec<_> = (0..10).map(|n| (100_000 + (u64::from(n) + 1) * 1_514 * 8, n)).collect();
        assert_eq!(arrivals(&mut wire), expected);
    }

    /// Two senders at full rate share the receiver's link: twice the packets need twice as long, first come, first
    /// served.
    #[test]
    fn an_incast_queues_at_the_receivers_link() {
        let mut wire = wire(u64::MAX);
        for load in 0..10 {
            wire.send(0, (0, 2), 1_514, load);
            wire.send(0, (1, 2), 1_514, 100 + load);
        }
        let seen = arrivals(&mut wire);
        assert_eq!(seen.last().unwrap().0, 100_000 + 20 * 1_514 * 8);
        assert_eq!(seen.iter().map(|(_, load)| *load).take(4).collect::<Vec<_>>(), [0, 100, 1, 101]);
    }

    /// A small packet for another receiver leaves at once and delays the rest by its transmission; a small packet for
    /// the same receiver keeps its place.
    #[test]
    fn a_small_packet_does_not_wait_for_other_receivers() {
        let mut wire = wire(u64::MAX);
        (0..10).for_each(|load| wire.send(0, (0, 1), 1_514, load));
        wire.send(0, (0, 2), 114, 20);
        wire.send(0, (0, 1), 1_514, 10);
        wire.send(0, (0, 1), 114, 21);
        let seen = arrivals(&mut wire);
        assert_eq!(seen[0], (100_000 + 114 * 8, 20));
        assert_eq!(
            seen[11..],
            [(100_000 + (11 * 1_514 + 114) * 8, 10), (100_000 + (11 * 1_514 + 114) * 8 + 114 * 8, 21)]
        );
    }

    /// A queue of 5 packets and the packet in transmission: of 20 simultaneous packets, 6 arrive and 14 are counted as
    /// dropped.
    #[test]
    fn a_full_queue_drops_what_comes_last() {
        let mut wire = wire(5 * 1_514);
        (0..20).for_each(|load| wire.send(0, (0, 1), 1_514, load));
        let loads: Vec<u32> = arrivals(&mut wire).into_iter().map(|(_, load)| load).collect();
        assert_eq!((loads, wire.dropped()), ((0..6).collect(), 14));
    }
}
