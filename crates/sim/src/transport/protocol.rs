//! Owns the parameters of a protocol: the effects of a communication library, and of the hosts and sockets below it, on
//! a message. The default, as in `ideal`, has no effect. `uniference-formats` reads the values of a library from its
//! profile.

use crate::time::{Bytes, Rate, SimDuration};

/// Effects between a step of an algorithm and bytes on a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Protocol {
    /// Handshake by which data waits for its receiver; `None`: data leaves as soon as it is sent (eager).
    pub handshake: Option<Handshake>,
    /// Room at the receiver for messages between two ranks without a handshake: a longer message leaves when its
    /// receive is posted, of which the sender knows at once; `None`: there is room for any message.
    pub buffer: Option<Bytes>,
    /// Initial window of a new connection; `None`: connections have no window.
    pub window: Option<Window>,
    /// Whether each process group has its own connections; otherwise all messages of a pair of ranks share one per
    /// direction.
    pub connections_per_group: bool,
    /// Time from the call of an operation until its first message can be sent or received.
    pub call: SimDuration,
    /// Whether calls of messages that a rank makes at one instant overlap, as the messages of a group call, which one
    /// kernel carries out; otherwise they are made by the program's thread, one after the other.
    pub calls_overlap: bool,
    /// Time from the program's thread to the thread that carries a collective out, and the same back. Messages between
    /// two ranks stay on the program's thread.
    pub hand_over: SimDuration,
    /// Time of a rank's input thread for each message that arrives, one after the other.
    pub message: SimDuration,
    /// Time until the thread that waits for a message continues.
    pub wake: SimDuration,
    /// Rate at which the input thread copies a message's bytes from the socket; `None`: at once.
    pub copy: Option<Rate>,
    /// Rate at which received elements are combined; `None`: at once.
    pub reduce: Option<Rate>,
    /// Rate at which tensors are copied from device memory to host memory before an operation, and back after it;
    /// `None`: no copies.
    pub staging: Option<Rate>,
}

/// Handshake in which data leaves after the receiver has said that it is ready. Without `eager` the receiver announces
/// this for every message, as soon as its receive is posted (Gloo); with `eager`, only for messages above that size,
/// and once the sender has announced the message (MPI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Size of a control message.
    pub control: Bytes,
    /// Bytes before the data in its own message.
    pub preamble: Bytes,
    /// Largest size of messages that leave as soon as they are sent.
    pub eager: Option<Bytes>,
}

/// Window of a connection: bytes that may be in flight before they are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Window of a new connection; above zero. It doubles with each round trip that uses it up.
    pub first: Bytes,
    /// Largest window; at least `first`.
    pub cap: Bytes,
    /// Idle time, plus a round trip, after which the window halves, again and again, down to `first`; `None`: it stays.
    pub idle: Option<SimDuration>,
}

/// Duration of `bytes` at a rate; zero without a rate.
pub(super) fn time_for(rate: Option<Rate>, bytes: Bytes) -> SimDuration {
    rate.map_or(SimDuration::ZERO, |rate| rate.time_for(bytes))
}
