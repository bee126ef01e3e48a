//! Owns how processes that a rank starts take part in its time: the client of such a process, and what relays its requests in the process of the
//! rank.
//!
//! Each thread of such a process has a connection to the rank's process, and behind it a thread there, which asks in its name as if it were
//! that thread. So to the driver they are threads of the rank; when all of them wait is `rounds`' business. Whoever makes threads that relay
//! ([`Client::relays`]) knows how that is done.

use super::rounds::{Kick, this_thread};
use super::{Client, Compute, Link, Result, Rounds};
use crate::lanes::Meter;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use uniference_protocol::descriptors::lift;
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::hello::VERSION;
use uniference_protocol::memory::{Region, Tensors};
use uniference_protocol::messages::{Answer, Batch, Fetched, Offset, Op, Reply, Welcome};
use uniference_protocol::relay::{Admission, Introduction};
use uniference_protocol::wire::{UnixWire, Wire};

/// Where processes of a rank find it.
pub struct Relay {
    listener: UnixListener,
    name: String,
}

/// A thread of another process, which has come to the relay.
pub struct Relative {
    wire: UnixWire,
    frames: FrameBuffer,
    path: Vec<u32>,
    process: i32,
}

impl Relay {
    /// Of this process. Its name has not been used before, as long as the machine runs.
    ///
    /// # Errors
    /// If there is no room for another socket.
    fn new() -> io::Result<Relay> {
        let now = super::clock_ns(rustix::time::ClockId::Boottime);
        let name = format!("uniference-{}-{now}", rustix::process::getpid().as_raw_nonzero());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok(Relay { listener: lift(listener.into()).into(), name })
    }

    /// The name of the socket.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next thread that comes, with what it says first; `None`: it is not one of ours.
    fn accept(&self) -> io::Result<Option<Relative>> {
        let (socket, _) = self.listener.accept()?;
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        let (wire, mut frames) = (UnixWire::of_rank(socket), FrameBuffer::default());
        if peer.uid != rustix::process::geteuid() {
            return Ok(None);
        }
        let first: io::Result<Introduction> = frames.read(&wire);
        let ours = first.ok().filter(|first| first.version == VERSION);
        let process = peer.pid.as_raw_nonzero().get();
        Ok(ours.map(|Introduction { path, .. }| Relative { wire, frames, path, process }))
    }
}

impl Client {
    /// The client of a process that a rank has started, whose calling thread was started as `path` says; `name` is the relay's.
    ///
    /// # Errors
    /// If the rank's process is gone.
    pub fn of_relative(name: &str, path: Vec<u32>) -> Result<Client> {
        let (wire, frames, admission) = introduce(name, path.clone())?;
        let nothing = Welcome {
            compute: admission.compute,
            cores: 1,
            arena_bytes: 0,
            staging: (0, 0),
            retain_bytes: 0,
            processor: None,
        };
        let wire: Arc<dyn Wire> = Arc::new(wire);
        let place = (admission.rank, admission.world_size);
        let client = Client::new(wire.clone(), FrameBuffer::default(), &nothing, Box::new(NoTensors), place)?;
        super::LINKS.with_borrow_mut(|links| {
            // Those of the process that has forked this one would keep it from being missed there.
            links.clear();
            links.push(Link::new(client.id, Some(wire.clone()), wire, frames));
        });
        client.clock.store(admission.now.as_ps(), Relaxed);
        client.started.store(true, Relaxed);
        Ok(Client { relay: Some(name.to_owned()), rounds: Rounds::of_relative(path)?, ..client })
    }

    /// The name of the relay, if this is the client of a process that a rank has started.
    pub fn relay(&self) -> Option<&str> {
        self.relay.as_deref()
    }

    /// The calling thread's connection to the relay.
    pub(super) fn introduce(&self, name: &str) -> Result<Link> {
        self.refuse_in_fork()?;
        let (wire, frames, _) = introduce(name, super::rounds::path())?;
        let wire: Arc<dyn Wire> = Arc::new(wire);
        Ok(Link::new(self.id, Some(wire.clone()), wire, frames))
    }

    /// From now on other processes take part in the time of this one, which is a rank's; what they compute is as `meter` tells.
    ///
    /// # Errors
    /// If there is no room for another socket.
    pub fn begins_family(&self, meter: Meter) -> io::Result<Relay> {
        let relay = Relay::new()?;
        self.rounds.begins_family(meter);
        Ok(relay)
    }

    /// Virtual time stands still from here on, as a thread is about to fork.
    pub fn begins_fork(&self) {
        self.rounds.holds();
    }

    /// Virtual time may pass again.
    pub fn ends_fork(&self) {
        self.rounds.lets_go();
    }

    /// Makes the calling thread the one that hears of threads of other processes, each of which it has `start` start a thread for that calls
    /// [`Client::relay_for`]. It never returns.
    pub fn relays(&self, relay: &Relay, start: &dyn Fn(Relative)) -> ! {
        self.rounds.serves(None);
        loop {
            match relay.accept() {
                Ok(Some(relative)) => start(relative),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => self.blind(error),
            }
        }
    }

    /// Makes the calling thread ask in the name of another one, until that has ended.
    pub fn relay_for(&self, relative: Relative) {
        let Relative { wire, mut frames, path, process } = relative;
        let path = self.rounds.admits(path);
        super::rounds::is_started(path.clone());
        super::account::begins_to_relay();
        self.rounds.serves(Some(process));
        let compute = self.compute_of_relatives();
        let admission = Admission { rank: self.rank, world_size: self.world_size, now: self.last_now(), compute };
        let mut frame = Vec::new();
        frame::encode(&admission, &mut frame);
        let mut goes_on = wire.write(&frame).is_ok();
        while goes_on && let Ok(batch) = frames.read::<Batch>(&wire) {
            goes_on = self.relay_batch(&wire, &frames, batch).is_ok();
        }
        self.rounds.served(&path);
    }

    /// Operators of other processes are written down where those of this one are costed; what they take of the processor is measured here.
    fn compute_of_relatives(&self) -> Compute {
        match self.compute {
            Compute::None => Compute::None,
            Compute::Measured if self.joint.get().is_none() => Compute::None,
            Compute::Measured | Compute::Modelled => Compute::Modelled,
        }
    }

    fn relay_batch(&self, wire: &UnixWire, frames: &FrameBuffer, batch: Batch) -> Result<()> {
        let mut ops = batch.ops;
        let question = ops.pop_if(|op| op.asks());
        for op in ops {
            match op {
                Op::Dictionary { entries, .. } => self.rounds.names(&entries),
                Op::Warn(text) => self.warn(&text),
                Op::LacksMemory(lack) => self.lacks_memory(lack),
                Op::Operators(operators) => self.ran(&[], &operators),
                Op::Compute(slice) => {
                    self.ran(&[], &slice.operators);
                    // A slice ends here.
                    drop(self.ours());
                }
                other => self.push(other)?,
            }
        }
        let reply = match question {
            // It has left a pause.
            None => return self.flush(),
            Some(Op::Pause(span)) => {
                let listen = || self.listen_to_paused(wire, frames);
                let ((), is_over) = self.pause(span, Kick::Signal(this_thread()), listen)?;
                if !is_over {
                    return Ok(());
                }
                self.told(Answer::Over)
            }
            Some(question) => self.ask_for_reply(question)?,
        };
        let mut frame = Vec::new();
        frame::encode(&reply, &mut frame);
        Ok(wire.write(&frame)?)
    }

    /// Returns once the thread that pauses has said that it goes on, or its time is up.
    pub(super) fn listen_to_paused(&self, wire: &UnixWire, frames: &FrameBuffer) {
        // It may have said so right behind the pause: then its word was received with that.
        while frames.is_empty() {
            let interrupted = rustix::event::poll(&mut [PollFd::new(wire, PollFlags::IN)], None).is_err();
            if !interrupted || self.rounds.time_is_up() {
                return;
            }
        }
    }

    /// An answer that the thread itself has taken.
    fn told(&self, answer: Answer) -> Reply {
        let now = self.last_now();
        Reply { now, asked: now, freed: Vec::new(), over: Vec::new(), failed: Vec::new(), answer }
    }
}

fn introduce(name: &str, path: Vec<u32>) -> Result<(UnixWire, FrameBuffer, Admission)> {
    let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    let (wire, mut frames, mut frame) = (UnixWire::of_rank(socket), FrameBuffer::default(), Vec::new());
    frame::encode(&Introduction { version: VERSION, path }, &mut frame);
    wire.write(&frame)?;
    let admission = frames.read(&wire)?;
    Ok((wire, frames, admission))
}

/// The process has no part of the arena.
struct NoTensors;

impl Tensors for NoTensors {
    fn write(&self, _: Offset, _: &[Region]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read(&self, _: &Fetched, _: &[Region]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn fold(&self, _: &Fetched) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn forget(&self, _: Offset, _: u64) {}

    fn mapped(&self) -> Option<(*mut u8, usize)> {
        None
    }
}
