//! Owns the network: its links, the route between two hosts, and the sharing of links among connection streams with
//! bytes waiting.
//!
//! The network does not know ranks, protocols or the meaning of messages: streams carry tagged sizes.

mod dynamics;
mod flow;
mod heap;
mod ingress;
mod limits;
#[cfg(test)]
mod oracle;
mod progress;
mod review;
mod scale;
mod sharing;
mod topology;

pub use dynamics::{Background, Dynamics, Jitter, LinkDynamics, Profile, ProfilePoint};
pub use flow::FlowNetwork;
pub use topology::{
    Asymmetry, Dimension, DimensionKind, Duplex, FoldedTopology, GraphLink, GridDimension, HostRates, HostSpec, Link,
    LinkSpec, PacketOverhead, Preset, Route, Servers, Spines, Topology, TopologyError,
};

use crate::ids::{HostId, LinkId, StreamId};
use crate::time::{Bytes, Rate, SimTime};

/// A network in virtual time. The caller owns the clock: it reads the time of the next event, and advances to it (or to
/// an earlier instant).
pub trait Network {
    /// Opens a connection stream between two hosts, which may be the same one. `cap` bounds its rate (a window over a
    /// round-trip time).
    fn open(&mut self, from: HostId, to: HostId, cap: Option<Rate>) -> StreamId;

    /// Puts a message at the end of a stream, at the current instant.
    fn push(&mut self, stream: StreamId, bytes: Bytes, tag: u64);

    /// Drops the messages of a stream that have not left: their tags are added to `dropped`, and no event of them
    /// follows.
    fn abandon(&mut self, stream: StreamId, dropped: &mut Vec<u64>);

    /// Time of the next event, unless a message is pushed before it. Pushes of one instant are processed together, in
    /// this function.
    fn next_event(&mut self) -> Option<SimTime>;

    /// Advances to `to`, which is at or before [`Network::next_event`], and reports the events of that instant, in the
    /// engine's order.
    fn advance(&mut self, to: SimTime, events: &mut Vec<NetworkEvent>);

    /// A link that has changed at the current instant, if nothing else happened then.
    fn changed_only(&self) -> Option<&str> {
        None
    }
}

/// Event of a network, at the instant to which it was advanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkEvent {
    /// The last byte has left the sender.
    Sent {
        /// The message's tag.
        tag: u64,
        /// Departure of the first byte: when the message was pushed, or when the previous message on its stream was
        /// sent.
        started: SimTime,
        /// Link of the route that limited the message's rate for most of the time since `started`. `None` if the
        /// stream's cap limited the rate, or if the message has no bytes or crosses no link.
        limit: Option<LinkId>,
    },
    /// The last byte has arrived: one latency of the route after its departure, plus its time in the receiver's queue.
    Delivered {
        /// The message's tag.
        tag: u64,
    },
}
