//! Owns the door: the driver's listening socket, which admits workers and refuses strangers.
//!
//! The door does not know the purpose of workers. Each connection has its own thread for the handshake, for at most ten
//! seconds. If too many connections are in their handshake, the oldest one is closed: slow or silent clients cannot
//! keep a worker out.

use crate::handshake::{self, Failure, Identity, Refusal};
use crate::stream::{Receiver, Stream};
use crate::token::Token;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use uniference_protocol::hello::Hello;

/// Most connections that may be in their handshake at once.
const MOST_PENDING: usize = 64;

/// The number of refused connections that are logged one by one; later refused connections are logged if their number
/// is a power of two.
const LISTED: u64 = 20;

/// Interval at which the listening thread checks whether the door is closed.
const TICK: Duration = Duration::from_millis(100);

const NOBODY_PANICS: &str = "no holder of this lock panics";

/// A worker that has joined.
pub struct Joined {
    /// The worker's name.
    pub name: String,
    /// The worker's address.
    pub peer: SocketAddr,
    /// The side of the connection to send by.
    pub stream: Arc<Stream>,
    /// The side of the connection to receive by.
    pub receiver: Receiver,
}

/// Listening socket that admits workers until it is dropped.
pub struct Door {
    address: SocketAddr,
    shared: Arc<Shared>,
    joined: Mutex<mpsc::Receiver<Joined>>,
    listens: Option<JoinHandle<()>>,
}

struct Shared {
    identity: Identity,
    token: Token,
    ours: Hello,
    guests: Mutex<Guests>,
    /// Connections in their handshake, oldest first.
    pending: Mutex<VecDeque<(u64, TcpStream)>>,
    joins: mpsc::Sender<Joined>,
    refusals: Refusals,
    is_closed: AtomicBool,
}

/// Logs refused connections, with a number of lines that stays small under a flood of connections.
struct Refusals {
    log: Box<dyn Fn(&str) + Send + Sync>,
    count: AtomicU64,
}

impl Refusals {
    fn note(&self, who: &str, why: &dyn std::fmt::Display) {
        let count = self.count.fetch_add(1, Relaxed) + 1;
        match count {
            ..=LISTED => (self.log)(&format!("refused {who}: {why}")),
            _ if count.is_power_of_two() => {
                (self.log)(&format!("refused {who}: {why} ({count} connections refused so far, not all are listed)"));
            }
            _ => {}
        }
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        let count = *self.count.get_mut();
        if count > LISTED {
            (self.log)(&format!("refused {count} connections in all, not all are listed"));
        }
    }
}

/// Names of the workers that a run expects, and of those that have joined.
#[derive(Default)]
struct Guests {
    expected: BTreeSet<String>,
    present: BTreeSet<String>,
}

impl Door {
    /// Listens at `address`. `log` receives a line per refused connection, up to a limit, and at the end the number of
    /// refused connections.
    ///
    /// # Errors
    /// If `address` is not an address of this machine, or is already in use.
    pub fn open(
        address: impl ToSocketAddrs,
        token: Token,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Door> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (joins, joined) = mpsc::channel();
        let shared = Arc::new(Shared {
            identity: Identity::new(),
            token,
            ours: Hello::new(false),
            guests: Mutex::default(),
            pending: Mutex::default(),
            joins,
            refusals: Refusals { log: Box::new(log), count: AtomicU64::new(0) },
            is_closed: AtomicBool::new(false),
        });
        let listens = thread::spawn({
            let shared = shared.clone();
            move || listen(&listener, &shared)
        });
        Ok(Door { address, shared, joined: Mutex::new(joined), listens: Some(listens) })
    }

    /// Address at which the door listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Admits workers of these names from now on, one of each name, and no others.
    pub fn expect(&self, names: impl IntoIterator<Item = String>) {
        let mut guests = self.shared.guests.lock().expect(NOBODY_PANICS);
        *guests = Guests { expected: names.into_iter().collect(), present: BTreeSet::new() };
    }

    /// Lets a lost worker of this name join again.
    pub fn forget(&self, name: &str) {
        self.shared.guests.lock().expect(NOBODY_PANICS).leave(name);
    }

    /// Ends the admission for a run: workers are refused until the next one begins.
    pub fn dismiss(&self) {
        self.expect([]);
    }

    /// The next worker that joins, within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Joined> {
        self.joined.lock().expect(NOBODY_PANICS).recv_timeout(timeout).ok()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Relaxed);
        if let Some(listens) = self.listens.take() {
            let _ = listens.join();
        }
        for (_, socket) in self.shared.pending.lock().expect(NOBODY_PANICS).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>) {
    let tick = TICK.try_into().expect("it fits");
    let mut numbers = 0..;
    while !shared.is_closed.load(Relaxed) {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        if !poll(&mut fds, Some(&tick)).is_ok_and(|ready| ready > 0) {
            continue;
        }
        match listener.accept() {
            Ok((socket, peer)) => {
                let number = numbers.next().expect("they do not end");
                look_at(socket, peer, number, shared);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The likely cause is a lack of file descriptors, which handshakes give back when they end.
            Err(_) => thread::sleep(TICK),
        }
    }
}

/// Starts the handshake with a new connection.
fn look_at(socket: TcpStream, peer: SocketAddr, number: u64, shared: &Arc<Shared>) {
    let Ok(copy) = socket.set_nonblocking(false).and_then(|()| socket.try_clone()) else { return };
    let mut pending = shared.pending.lock().expect(NOBODY_PANICS);
    if pending.len() >= MOST_PENDING
        && let Some((_, oldest)) = pending.pop_front()
    {
        let _ = oldest.shutdown(Shutdown::Both);
    }
    pending.push_back((number, copy));
    drop(pending);
    let admitting = shared.clone();
    let started = thread::Builder::new().spawn(move || {
        let admitted = handshake::admit(socket, &admitting.identity, &admitting.token, admitting.ours, |name| {
            admitting.guests.lock().expect(NOBODY_PANICS).admit(name)
        });
        admitting.pending.lock().expect(NOBODY_PANICS).retain(|(known, _)| *known != number);
        match admitted {
            Ok((name, stream, receiver)) => {
                // The send fails only if the door is closed.
                let _ = admitting.joins.send(Joined { name, peer, stream, receiver });
            }
            Err((name, why)) => {
                if let (Some(name), false) = (&name, matches!(why, Failure::Refused(_))) {
                    admitting.guests.lock().expect(NOBODY_PANICS).leave(name);
                }
                let who = name.map_or_else(|| peer.to_string(), |name| format!("worker {name} at {peer}"));
                admitting.refusals.note(&who, &why);
            }
        }
    });
    if started.is_err() {
        shared.pending.lock().expect(NOBODY_PANICS).retain(|(known, _)| *known != number);
    }
}

impl Guests {
    fn admit(&mut self, name: &str) -> Result<(), Refusal> {
        if self.present.contains(name) {
            return Err(Refusal::Taken);
        }
        if !self.expected.contains(name) {
            return Err(Refusal::Unknown);
        }
        self.present.insert(name.to_owned());
        Ok(())
    }

    /// Removes a lost worker.
    fn leave(&mut self, name: &str) {
        self.present.remove(name);
    }
}

#[cfg(test)]
mod tests;
