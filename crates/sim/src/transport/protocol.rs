//! Owns the parameters of a protocol: what a communication library, and the hosts and sockets below it, do to a message. The default does
//! nothing, as `ideal`. Which values a library has is the business of its profile, which `uniference-formats` reads.

use crate::time::{Bytes, Rate, SimDuration};

/// What lies between a step of an algorithm and bytes on a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Protocol {
    /// Data waits for its receiver; `None`: it leaves as soon as it is sent (eager).
    pub handshake: Option<Handshake>,
    /// Without a handshake: a longer message between two ranks, of which only so many bytes have room at the receiver, leaves when its receive is posted,
    /// of which the sender knows at once; `None`: there is room for any.
    pub buffer: Option<Bytes>,
    /// How a new connection comes up to speed; `None`: it has no window.
    pub window: Option<Window>,
    /// Each process group has connections of its own; otherwise all messages of a pair of ranks share one, each direction.
    pub connections_per_group: bool,
    /// From the call of an operation until its first message can be sent or received.
    pub call: SimDuration,
    /// From the program's thread to the one that carries a collective out, and from that one back: each way. Messages between two ranks stay
    /// with the program's.
    pub hand_over: SimDuration,
    /// What a rank's thread for input takes for each message that arrives, one after the other.
    pub message: SimDuration,
    /// Until the thread that waits for a message goes on.
    pub wake: SimDuration,
    /// How fast the thread for input takes a message's bytes out of the socket; `None`: at once.
    pub copy: Option<Rate>,
    /// How fast received elements are combined; `None`: at once.
    pub reduce: Option<Rate>,
    /// How fast tensors are brought from the device's memory to the host's before an operation, and back after it; `None`: they are there.
    pub staging: Option<Rate>,
}

/// The receiver says that it is ready, then the data leaves. Without `eager` it says so for every message, as soon as its receive is
/// posted (Gloo); with it, only for longer messages, and once the sender has asked (MPI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Size of a message that says so.
    pub control: Bytes,
    /// What precedes the data in its own message.
    pub preamble: Bytes,
    /// Messages up to this size leave as soon as they are sent.
    pub eager: Option<Bytes>,
}

/// The window of a connection: what may be on its way before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Of a new connection; above zero. It doubles with each round trip that uses it up.
    pub first: Bytes,
    /// It does not grow beyond; at least `first`.
    pub cap: Bytes,
    /// With nothing to send for this long and a round trip it halves, again and again, down to `first`; `None`: it stays.
    pub idle: Option<SimDuration>,
}

/// How long `bytes` take at a rate that may be no limit.
pub(super) fn time_for(rate: Option<Rate>, bytes: Bytes) -> SimDuration {
    rate.map_or(SimDuration::ZERO, |rate| rate.time_for(bytes))
}
