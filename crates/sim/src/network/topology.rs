//! Owns hosts, links and routes. It does not know what flows over them.

use crate::ids::LinkId;
use crate::time::{Rate, SimDuration};

/// A link: one direction of a cable, or a medium that all who use it share.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// `orin.0 -> sw`.
    pub name: String,
    /// Raw rate, headers included.
    pub bandwidth: Rate,
    /// Time of flight.
    pub latency: SimDuration,
    /// What headers take of the rate; `None`: nothing.
    pub overhead: Option<PacketOverhead>,
}

/// Every `payload` bytes travel in a packet of `wire` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOverhead {
    /// At most, of the message.
    pub payload: u32,
    /// On the link when the packet is full.
    pub wire: u32,
}

/// The way from one host to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// In order; a message occupies all of them at once.
    pub links: Vec<LinkId>,
    /// The sum of the links'.
    pub latency: SimDuration,
}

/// Hosts, links, and the route between any two hosts.
#[derive(Clone, Debug)]
pub struct Topology {}
