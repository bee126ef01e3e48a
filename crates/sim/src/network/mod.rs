//! Owns the network: which links there are, the route between two hosts, and how streams with bytes waiting share links.
//!
//! It does not know ranks, messages' meaning or protocols: streams carry tagged sizes, and what a tag means is the caller's business.

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
    LinkSpec, PacketOverhead, Preset, Route, Topology, TopologyError,
};

use crate::ids::{HostId, LinkId, StreamId};
use crate::time::{Bytes, Rate, SimTime};

/// A network in virtual time. The caller owns the clock: it asks for the next event, and advances to it (or to an earlier instant).
pub trait Network {
    /// Opens a stream between two hosts, which may be the same one. `cap` bounds its rate (a window over a round-trip time).
    fn open(&mut self, from: HostId, to: HostId, cap: Option<Rate>) -> StreamId;

    /// Puts a message at the end of a stream, at the instant that was advanced to last.
    fn push(&mut self, stream: StreamId, bytes: Bytes, tag: u64);

    /// Forgets the messages of a stream that have not left; their tags go into `dropped`, and nothing is reported of them any more.
    fn abandon(&mut self, stream: StreamId, dropped: &mut Vec<u64>);

    /// When something happens next, unless more is pushed before. Pushes of one instant are looked at together, here.
    fn next_event(&mut self) -> Option<SimTime>;

    /// Moves to `to`, which lies at or before [`Network::next_event`], and reports what happens then, in the engine's order.
    fn advance(&mut self, to: SimTime, events: &mut Vec<NetworkEvent>);

    /// A link that has changed at the instant that was advanced to last, if nothing else happened then.
    fn changed_only(&self) -> Option<&str> {
        None
    }
}

/// What a network reports, at the instant it was advanced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkEvent {
    /// The last byte has left the sender.
    Sent {
        /// The message's tag.
        tag: u64,
        /// When its first byte left: when it was pushed, or when the message before it on its stream was sent.
        started: SimTime,
        /// Link of the route that limited the message's rate for most of the time since `started`. `None` if the
        /// stream's cap limited the rate, or if the message has no bytes or crosses no link.
        limit: Option<LinkId>,
    },
    /// The last byte has arrived: one latency of the route after it has left, and what it waited in front of the receiver.
    Delivered {
        /// The message's tag.
        tag: u64,
    },
}
