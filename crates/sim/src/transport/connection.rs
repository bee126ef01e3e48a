//! Owns one direction of a connection: frames in order, and the window that releases them to the network's stream.
//!
//! A new connection may have `first` bytes in flight; each byte that is acknowledged, one round trip after its release,
//! makes room for itself and lets the window grow by as much, up to `cap` (TCP's slow start, RFC 5681; as in Linux the
//! window does not grow beyond twice the bytes in flight). With round trip r, a message of n bytes alone on a new
//! connection has left after
//!
//! ```text
//! k r + (n - first (2^k - 1)) / rate,   k the smallest number with first (2^(k+1) - 1) >= n or first 2^k >= r rate:
//! ```
//!
//! either the rest fits into the window, or the window holds more than the link carries in a round trip. Once the
//! window has grown to `cap`, the stream's own limit of cap / r replaces it.
//!
//! A connection without data to send for a retransmission timeout halves its window for each such time, down to `first`
//! (RFC 2861; Linux, `tcp_cwnd_restart` of net/ipv4/tcp_output.c), and grows again. An open connection is assumed to
//! have had a window of the link's bytes in two round trips: slow start ends between one and two.

use super::protocol::Window;
use crate::ids::{MessageId, RankId, StreamId};
use crate::network::{PacketOverhead, Route};
use crate::time::{Bytes, SimDuration, SimTime};
use std::collections::VecDeque;

/// One direction of a connection between two ranks.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) stream: StreamId,
    pub(super) route: Route,
    overhead: Option<PacketOverhead>,
    pub(super) source: RankId,
    /// Whether one end of the connection is closed: data that is pushed then is lost.
    pub(super) closed: bool,
    growth: Option<Growth>,
    /// The growing window; `None`: all data may leave at once, and no frame waits.
    opening: Option<Box<Opening>>,
    /// Last time at which the connection had data to send.
    used: SimTime,
    /// The last message on this connection.
    pub(super) last: Option<MessageId>,
}

/// Parameters of a connection's window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) window: Window,
    pub(super) round_trip: SimDuration,
    /// Window of an open connection; at most `window.cap`.
    pub(super) warm: Bytes,
}

/// A frame that waits for the window.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: u64,
    tag: u64,
}

/// Bytes that the network may have now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// Bytes may leave; `last`: whether they are the frame's last bytes.
    Bytes { bytes: Bytes, tag: u64, last: bool },
    /// No bytes may leave before this instant.
    Later(SimTime),
    /// No bytes are waiting.
    Nothing,
}

/// A window that still grows.
#[derive(Clone, Debug)]
struct Opening {
    size: u64,
    cap: u64,
    round_trip: SimDuration,
    /// Bytes in flight, with the instants of their acknowledgements.
    unacknowledged: VecDeque<(SimTime, u64)>,
    on_its_way: u64,
    /// Whether a timer is set for the next acknowledgement.
    waits: bool,
    backlog: VecDeque<Frame>,
}

impl Connection {
    pub(super) fn new(
        stream: StreamId,
        route: Route,
        overhead: Option<PacketOverhead>,
        source: RankId,
        growth: Option<Growth>,
    ) -> Connection {
        let growth =
            growth.filter(|growth| growth.window.first < growth.window.cap && growth.round_trip > SimDuration::ZERO);
        let opening = growth.map(|growth| Opening::new(growth, growth.window.first.0));
        Connection { stream, route, overhead, source, closed: false, growth, opening, used: SimTime::ZERO, last: None }
    }

    /// Records that bytes come, or have left. If the connection was idle for long, its window shrinks.
    pub(super) fn is_used(&mut self, now: SimTime) {
        let idle = now.since(self.used);
        self.used = now;
        let Some(Growth { window, round_trip, warm }) = self.growth else { return };
        let Some(halves_after) = window.idle.map(|idle| idle + round_trip) else { return };
        let halvings = idle.as_ps() / halves_after.as_ps();
        let size = match &self.opening {
            Some(opening) if !opening.backlog.is_empty() => return,
            Some(opening) => opening.size,
            None => warm.0,
        };
        if halvings > 0 {
            let size = size.checked_shr(halvings.min(64) as u32).unwrap_or(0).max(window.first.0);
            self.opening = Some(Opening::new(Growth { window, round_trip, warm }, size));
        }
    }

    /// Bytes of a frame on the wire, and the payload that lasts as long.
    pub(super) fn framed(&self, bytes: Bytes) -> (Bytes, Bytes) {
        match self.overhead {
            Some(packet) => (packet.wire_bytes(bytes), packet.payload_room(bytes)),
            None if self.route.links.is_empty() => (Bytes(0), bytes),
            None => (bytes, bytes),
        }
    }

    /// Whether no frame is held back.
    pub(super) fn is_open(&self) -> bool {
        self.opening.is_none()
    }

    /// Puts a frame behind those that wait for the window, on a connection that is not open.
    pub(super) fn push(&mut self, bytes: Bytes, tag: u64) {
        let opening = self.opening.as_mut().expect("an open connection holds nothing back");
        opening.backlog.push_back(Frame { left: bytes.0, tag });
    }

    /// Closes the connection because one of its ends is gone. Adds the tags of waiting frames to `dropped`.
    pub(super) fn close(&mut self, dropped: &mut Vec<u64>) {
        self.closed = true;
        if let Some(opening) = self.opening.take() {
            dropped.extend(opening.backlog.iter().map(|frame| frame.tag));
        }
    }

    /// Handles the instant of a [`Release::Later`].
    pub(super) fn look_again(&mut self) {
        if let Some(opening) = &mut self.opening {
            opening.waits = false;
        }
    }

    /// Data that may leave now. The caller repeats the call until no bytes are returned.
    pub(super) fn release(&mut self, now: SimTime) -> Release {
        let Some(opening) = &mut self.opening else { return Release::Nothing };
        let release = opening.release(now);
        if release == Release::Nothing && opening.backlog.is_empty() && opening.size >= opening.cap {
            self.opening = None;
        }
        release
    }
}

impl Opening {
    fn new(Growth { window, round_trip, .. }: Growth, size: u64) -> Box<Opening> {
        Box::new(Opening {
            size,
            cap: window.cap.0,
            round_trip,
            unacknowledged: VecDeque::new(),
            on_its_way: 0,
            waits: false,
            backlog: VecDeque::new(),
        })
    }

    fn release(&mut self, now: SimTime) -> Release {
        let Some(Frame { left, tag }) = self.backlog.front().copied() else { return Release::Nothing };
        let bytes = self.allow(now, left);
        if bytes == 0 && left > 0 {
            return self.wait();
        }
        let last = bytes == left;
        if last {
            self.backlog.pop_front();
        } else if let Some(frame) = self.backlog.front_mut() {
            frame.left -= bytes;
        }
        Release::Bytes { bytes: Bytes(bytes), tag, last }
    }

    /// Number of the `wanted` bytes that may leave now.
    fn allow(&mut self, now: SimTime, wanted: u64) -> u64 {
        while let Some(&(_, bytes)) = self.unacknowledged.front().filter(|(at, _)| *at <= now) {
            self.unacknowledged.pop_front();
            let grown = (self.size + bytes).min(2 * self.on_its_way);
            self.size = self.size.max(grown).min(self.cap);
            self.on_its_way -= bytes;
        }
        let allowed = if self.size >= self.cap { wanted } else { wanted.min(self.size - self.on_its_way) };
        if allowed > 0 {
            self.unacknowledged.push_back((now.saturating_add(self.round_trip), allowed));
            self.on_its_way += allowed;
        }
        allowed
    }

    fn wait(&mut self) -> Release {
        match self.unacknowledged.front() {
            Some((at, _)) if !std::mem::replace(&mut self.waits, true) => Release::Later(*at),
            _ => Release::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: u64 = 1_000;

    fn connection(first: u64, cap: u64) -> Connection {
        let window = Window { first: Bytes(first), cap: Bytes(cap), idle: Some(SimDuration::from_ps(9 * ROUND_TRIP)) };
        let growth = Growth { window, round_trip: SimDuration::from_ps(ROUND_TRIP), warm: Bytes(cap / 2) };
        Connection::new(StreamId(0), Route::default(), None, RankId(0), Some(growth))
    }

    /// Released bytes, with their times.
    fn bursts(connection: &mut Connection) -> Vec<(u64, u64)> {
        let (mut now, mut bursts) = (SimTime::ZERO, Vec::new());
        loop {
            match connection.release(now) {
                Release::Bytes { bytes, .. } => bursts.push((now.as_ps(), bytes.0)),
                Release::Later(at) => {
                    now = at;
                    connection.look_again();
                }
                Release::Nothing => return bursts,
            }
        }
    }

    #[test]
    fn a_window_doubles_each_round_trip_up_to_its_cap() {
        // The window is 10, 20 and 40 in the first round trips, and reaches the cap of 80 in the fourth, after which
        // all other bytes leave at once.
        let mut connection = connection(10, 80);
        connection.push(Bytes(500), 0);
        let expected = [(0, 10), (ROUND_TRIP, 20), (2 * ROUND_TRIP, 40), (3 * ROUND_TRIP, 430)];
        assert_eq!(bursts(&mut connection), expected);
        assert!(connection.is_open());
    }

    #[test]
    fn what_does_not_use_the_window_up_does_not_widen_it() {
        let mut connection = connection(10, 80);
        for round in 0..5 {
            connection.push(Bytes(4), 0);
            let now = SimTime::from_ps(2 * round * ROUND_TRIP);
            assert!(matches!(connection.release(now), Release::Bytes { bytes: Bytes(4), last: true, .. }));
        }
        connection.push(Bytes(30), 0);
        let now = SimTime::from_ps(100 * ROUND_TRIP);
        assert!(matches!(connection.release(now), Release::Bytes { bytes: Bytes(10), last: false, .. }));
    }

    #[test]
    fn a_window_halves_with_every_time_out_without_use() {
        let mut connection = connection(10, 80);
        connection.push(Bytes(500), 0);
        assert_eq!(bursts(&mut connection).len(), 4);
        connection.is_used(SimTime::from_ps(5 * ROUND_TRIP));
        // An open connection has a window of 40. After a timeout of 9 + 1 round trips it is 20; after two or more
        // timeouts it is the first window, 10; a slightly shorter idle time has no effect.
        for (idle, left) in [(9, None), (10, Some(20)), (20, Some(10)), (1_000, Some(10))] {
            let mut connection = Connection { opening: None, ..connection.clone() };
            connection.is_used(SimTime::from_ps((5 + idle) * ROUND_TRIP));
            assert_eq!(connection.opening.map(|opening| opening.size), left, "after {idle} round trips");
        }
    }

    #[test]
    fn frames_keep_their_order() {
        let mut connection = connection(10, 80);
        connection.push(Bytes(15), 1);
        connection.push(Bytes(0), 2);
        let first = Release::Bytes { bytes: Bytes(10), tag: 1, last: false };
        assert_eq!(connection.release(SimTime::ZERO), first);
        assert_eq!(connection.release(SimTime::ZERO), Release::Later(SimTime::from_ps(ROUND_TRIP)));
        assert_eq!(connection.release(SimTime::ZERO), Release::Nothing);
        let now = SimTime::from_ps(ROUND_TRIP);
        assert_eq!(connection.release(now), Release::Bytes { bytes: Bytes(5), tag: 1, last: true });
        assert_eq!(connection.release(now), Release::Bytes { bytes: Bytes(0), tag: 2, last: true });
        assert_eq!(connection.release(now), Release::Nothing);
    }
}
