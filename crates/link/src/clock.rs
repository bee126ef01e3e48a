//! Owns the clock offset between two hosts, found by many small exchanges over a connection.
//!
//! The exchange with the shortest round trip is the most accurate: the other clock was read between its two ends, so
//! the middle is wrong by at most half the round trip (Cristian 1989, Probabilistic clock synchronization). A
//! difference in clock speed shows when the comparison is repeated.

use crate::door::{Door, Joined};
use crate::join::{JoinError, join};
use crate::token::Token;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Message that requests the time of the other end's clock.
const ASK: &[u8] = b"?";
/// Notice that the host has made all its readings.
const ENOUGH: &[u8] = b".";

/// Time limit for the next message of the other end.
const SILENCE: Duration = Duration::from_secs(10);

/// Interval at which a thread that waits for hosts checks whether the server is closed.
const TICK: Duration = Duration::from_millis(50);

/// Result of the comparison of two clocks, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Time of the reading by this host's clock.
    pub at: i64,
    /// The other clock's time minus this host's.
    pub offset: i64,
    /// Largest error of `offset`, in either direction.
    pub error: i64,
}

/// Nanoseconds of this host's clock (`CLOCK_MONOTONIC`).
pub fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Server that tells the time to hosts that know a token, until it is dropped.
pub struct ClockServer {
    doors: Vec<Arc<Door>>,
    served: Mutex<mpsc::Receiver<String>>,
    is_closed: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl ClockServer {
    /// Listens at a free port of each of these addresses of this machine, and serves the time of `clock`, in
    /// nanoseconds.
    ///
    /// # Errors
    /// The address at which it cannot listen, and why.
    pub fn open(
        addresses: &[String],
        token: &Token,
        clock: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Result<ClockServer, (String, io::Error)> {
        // Connections of peers that do not know the token are refused without a message.
        let open = |address: &String| Door::open((address.as_str(), 0), token.clone(), |_| {});
        let opened = addresses.iter().map(|address| open(address).map(Arc::new).map_err(|why| (address.clone(), why)));
        let doors = opened.collect::<Result<Vec<_>, _>>()?;
        let (tells, served) = mpsc::channel();
        let (clock, is_closed) = (Arc::new(clock), Arc::new(AtomicBool::new(false)));
        let threads = doors.iter().map(|door| {
            let (door, clock, tells, is_closed) = (door.clone(), clock.clone(), tells.clone(), is_closed.clone());
            thread::spawn(move || receive(&door, &clock, &tells, &is_closed))
        });
        Ok(ClockServer { threads: threads.collect(), doors, served: Mutex::new(served), is_closed })
    }

    /// Addresses at which the server listens, one for each address passed to `open`.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.doors.iter().map(|door| door.address()).collect()
    }

    /// Allows hosts of these names to read the clock from now on, each of them once.
    pub fn expect(&self, names: &[String]) {
        self.doors.iter().for_each(|door| door.expect(names.iter().cloned()));
    }

    /// Name of the next host that completes its readings within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<String> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(timeout).ok()
    }
}

impl Drop for ClockServer {
    fn drop(&mut self) {
        self.is_closed.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Accepts the hosts that connect to a door. Each has a thread, which outlives the server by [`SILENCE`] at most.
fn receive(
    door: &Arc<Door>,
    clock: &Arc<impl Fn() -> i64 + Send + Sync + 'static>,
    tells: &mpsc::Sender<String>,
    is_closed: &AtomicBool,
) {
    while !is_closed.load(Relaxed) {
        let Some(mut joined) = door.wait(TICK) else { continue };
        let (door, clock, tells) = (Arc::downgrade(door), clock.clone(), tells.clone());
        thread::spawn(move || {
            if let Ok(true) = serve_clock(&mut joined, &*clock) {
                // The send fails only if the server is gone.
                let _ = tells.send(joined.name);
            } else if let Some(door) = door.upgrade() {
                door.forget(&joined.name);
            }
        });
    }
}

/// Answers time requests of a host until its last one; returns whether the host ended with [`ENOUGH`].
fn serve_clock(joined: &mut Joined, clock: impl Fn() -> i64) -> io::Result<bool> {
    while let Some(word) = joined.receiver.receive(1, SILENCE)? {
        if word != ASK {
            return Ok(word == ENOUGH);
        }
        joined.stream.send(&[&clock().to_le_bytes()])?;
    }
    Ok(false)
}

/// Compares `clock` with the clock served at `address` (`HOST:PORT`), by `rounds` exchanges; the shortest one counts.
///
/// # Errors
/// The errors of [`join`]; also `Unavailable` if the connection is lost during the exchanges.
///
/// # Panics
/// If `rounds` is 0.
pub fn read(
    address: &str,
    token: &Token,
    name: &str,
    rounds: u32,
    clock: impl Fn() -> i64,
) -> Result<Reading, JoinError> {
    let (stream, mut receiver) = join(address, token, name)?;
    let mut exchange = || {
        let sent = clock();
        stream.send(&[ASK])?;
        let told = receiver.receive(8, SILENCE)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let told = told.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        let received = clock();
        let at = sent + (received - sent) / 2;
        let error = (received - sent + 1) / 2;
        Ok(Reading { at, offset: i64::from_le_bytes(told) - at, error })
    };
    let readings = (0..rounds).map(|_| exchange()).collect::<io::Result<Vec<_>>>();
    let readings = readings.and_then(|readings| stream.send(&[ENOUGH]).map(|()| readings));
    let best = readings.map_err(JoinError::Unavailable)?.into_iter().min_by_key(|reading| reading.error);
    Ok(best.expect("there is a round"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Refusal;
    use std::time::Instant;

    const SHIFT: i64 = 5_000_000_000;
    const SOON: Duration = Duration::from_secs(20);

    fn token() -> Token {
        Token::new(b"a token of the tests")
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_offset_of_a_clock_is_found_to_half_a_round_trip() {
        let server = ClockServer::open(&names(&["127.0.0.1", "127.0.0.2"]), &token(), || now() + SHIFT).unwrap();
        server.expect(&names(&["a", "b"]));
        for (name, address) in ["a", "b"].into_iter().zip(server.addresses()) {
            let before = now();
            let Reading { at, offset, error } = read(&address.to_string(), &token(), name, 50, now).unwrap();
            assert!((before..now()).contains(&at));
            assert!(error > 0 && (offset - SHIFT).abs() <= error, "{offset} within {error}");
            assert_eq!(server.wait(SOON).as_deref(), Some(name));
        }
        assert_eq!(server.wait(Duration::ZERO), None);
    }

    #[test]
    fn who_has_not_read_enough_may_come_again_and_who_does_not_know_the_token_hears_no_time() {
        let server = ClockServer::open(&names(&["127.0.0.1"]), &token(), now).unwrap();
        server.expect(&names(&["a"]));
        let address = server.addresses()[0].to_string();
        let stranger = read(&address, &Token::new(b"another token"), "a", 1, now).unwrap_err();
        assert!(matches!(stranger, JoinError::Refused { why: Refusal::Token, .. }), "{stranger:?}");
        let (stream, receiver) = join(&address, &token(), "a").unwrap();
        stream.send(&[ASK]).unwrap();
        drop((stream, receiver));
        let deadline = Instant::now() + SOON;
        while let Err(error) = read(&address, &token(), "a", 1, now) {
            assert!(matches!(error, JoinError::Refused { why: Refusal::Taken, .. }), "{error:?}");
            assert!(Instant::now() < deadline, "the server has not noticed that its first client has gone");
        }
        assert_eq!(server.wait(SOON).as_deref(), Some("a"));
        drop(server);
        assert!(matches!(read(&address, &token(), "a", 1, now).unwrap_err(), JoinError::Unavailable(_)));
    }

    #[test]
    fn an_address_of_another_machine_is_named() {
        let (address, error) = ClockServer::open(&names(&["192.0.2.1"]), &token(), now).map(drop).unwrap_err();
        assert_eq!((address.as_str(), error.kind()), ("192.0.2.1", io::ErrorKind::AddrNotAvailable));
    }
}
