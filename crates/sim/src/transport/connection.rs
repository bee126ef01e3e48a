//! Owns one direction of a connection: frames in order, and the window that lets them onto the network's stream.
//!
//! A new connection may have `first` bytes on their way; each that is acknowledged, one round trip after it was let go, makes room for
//! itself and lets the window grow by as much, up to `cap` (TCP's slow start, RFC 5681; as in Linux the window does not grow beyond twice what was
//! on its way). With round trip r, a message of n bytes alone on a new connection has left after
//!
//! ```text
//! k r + (n - first (2^k - 1)) / rate,   k the smallest number with first (2^(k+1) - 1) >= n or first 2^k >= r rate:
//! ```
//!
//! either the rest fits into the window, or the window holds more than the link carries in a round trip. Once it has grown to `cap`, the
//! stream's own limit of cap / r takes its place.

use super::protocol::Window;
use crate::ids::{RankId, StreamId};
use crate::network::{PacketOverhead, Route};
use crate::time::{Bytes, SimDuration, SimTime};
use std::collections::VecDeque;

/// One direction between two ranks.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: StreamId,
    pub(super) route: Route,
    overhead: Option<PacketOverhead>,
    pub(super) source: RankId,
    /// One of its ends is gone: what is pushed is lost.
    pub(super) closed: bool,
    /// `None`: everything may leave at once, and nothing waits.
    opening: Option<Box<Opening>>,
}

/// Bytes that wait for the window.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: u64,
    tag: u64,
}

/// What the network may have now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// These bytes; the frame's last ones?
    Bytes { bytes: Bytes, tag: u64, last: bool },
    /// Nothing before this instant.
    Later(SimTime),
    /// Nothing waits.
    Nothing,
}

/// A window that still grows.
#[derive(Debug)]
struct Opening {
    size: u64,
    cap: u64,
    round_trip: SimDuration,
    /// What is on its way, and when it is acknowledged.
    unacknowledged: VecDeque<(SimTime, u64)>,
    on_its_way: u64,
    /// Is somebody to look again at the next acknowledgement?
    waits: bool,
    backlog: VecDeque<Frame>,
}

impl Connection {
    pub(super) fn new(
        stream: StreamId,
        route: Route,
        overhead: Option<PacketOverhead>,
        source: RankId,
        window: Option<(Window, SimDuration)>,
    ) -> Connection {
        let opening =
            window.filter(|(window, round_trip)| window.first < window.cap && *round_trip > SimDuration::ZERO);
        let opening = opening.map(|(window, round_trip)| {
            Box::new(Opening {
                size: window.first.0,
                cap: window.cap.0,
                round_trip,
                unacknowledged: VecDeque::new(),
                on_its_way: 0,
                waits: false,
                backlog: VecDeque::new(),
            })
        });
        Connection { stream, route, overhead, source, closed: false, opening }
    }

    /// What a frame puts on the wire, and the payload that takes as long.
    pub(super) fn framed(&self, bytes: Bytes) -> (Bytes, Bytes) {
        match self.overhead {
            Some(packet) => (packet.wire_bytes(bytes), packet.payload_room(bytes)),
            None if self.route.links.is_empty() => (Bytes(0), bytes),
            None => (bytes, bytes),
        }
    }

    /// Nothing holds a frame back.
    pub(super) fn is_open(&self) -> bool {
        self.opening.is_none()
    }

    /// Puts a frame behind those that wait for the window. Only a connection that is not open has any.
    pub(super) fn push(&mut self, bytes: Bytes, tag: u64) {
        let opening = self.opening.as_mut().expect("an open connection holds nothing back");
        opening.backlog.push_back(Frame { left: bytes.0, tag });
    }

    /// One of its ends is gone. Adds the tags of the frames that wait to `dropped`.
    pub(super) fn close(&mut self, dropped: &mut Vec<u64>) {
        self.closed = true;
        if let Some(opening) = self.opening.take() {
            dropped.extend(opening.backlog.iter().map(|frame| frame.tag));
        }
    }

    /// The instant of a [`Release::Later`] has come.
    pub(super) fn look_again(&mut self) {
        if let Some(opening) = &mut self.opening {
            opening.waits = false;
        }
    }

    /// What may leave now. To be asked until it is no more bytes.
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

    /// How many of `wanted` bytes may leave now.
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
        let window = Window { first: Bytes(first), cap: Bytes(cap) };
        let window = Some((window, SimDuration::from_ps(ROUND_TRIP)));
        Connection::new(StreamId(0), Route::default(), None, RankId(0), window)
    }

    /// What is let go, and when.
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
        // 10, 20, 40, and with the fourth the cap of 80 is there: everything else leaves at once.
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
