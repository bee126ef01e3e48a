//! Owns the participation of processes that a rank starts in the rank's time: the client of such a process, and the
//! relay of its requests in the rank's process.
//!
//! Each thread of such a process has a connection to a relay thread in the rank's process, which makes requests for the
//! thread. The driver sees these threads as threads of the rank; `thread_barrier` finds out whether all of them wait.
//! The caller of [`Client::relays`] creates the relay threads.

use super::listening::Listener;
use super::thread_barrier::{Kick, this_thread};
use super::{Client, Compute, Link, Result, Rooms, ThreadBarrier};
use crate::lanes::Meter;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use uniference_protocol::arena::{Layout, SharedArena};
use uniference_protocol::descriptors::lift;
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::hello::VERSION;
use uniference_protocol::memory::{Region, Tensors};
use uniference_protocol::messages::{Answer, Batch, Fetched, Offset, Op, Reply, Welcome};
use uniference_protocol::relay::{Admission, Introduction};
use uniference_protocol::wire::{UnixWire, Wire};
use uniference_sim::time::SimDuration;

/// The socket at which a rank's processes connect to the rank.
pub struct Relay {
    listener: UnixListener,
    name: String,
}

/// A thread of another process that has connected to the relay.
pub struct Relative {
    wire: UnixWire,
    frames: FrameBuffer,
    path: Vec<u32>,
    process: i32,
}

impl Relay {
    /// Creates the relay of this process. Its name has not been used since the machine booted.
    ///
    /// # Errors
    /// If no further socket is available.
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

    /// The next thread that connects, with its first message; `None`: the connection is not from a process of this
    /// rank.
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
    /// The client of a process that a rank has started, whose calling thread has the path `path`; `name`: the relay's
    /// name.
    ///
    /// # Errors
    /// If the rank's process has ended.
    pub fn of_child(name: &str, path: Vec<u32>) -> Result<Client> {
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
        let tensors = Box::new(NoTensors);
        let client = Client::new(wire.clone(), FrameBuffer::default(), &nothing, tensors, place)?;
        super::LINKS.with_borrow_mut(|links| {
            // Connections inherited by a fork would keep the parent's relay from noticing their end.
            links.clear();
            links.push(Link::new(client.id, Some(wire.clone()), wire, frames));
        });
        client.clock.store(admission.now.as_ps(), Relaxed);
        client.started.store(true, Relaxed);
        Ok(Client { relay: Some(name.to_owned()), barrier: ThreadBarrier::of_child(path)?, ..client })
    }

    /// The name of the relay, in a process that a rank has started.
    pub fn relay(&self) -> Option<&str> {
        self.relay.as_deref()
    }

    /// Declares that this process is the one program that uses the GPUs of all ranks, as do the processes that it
    /// starts.
    pub fn lends(&self) {
        self.lends.store(true, Relaxed);
    }

    /// The descriptor of the file with the data of all ranks, through which a process that this one starts can open the
    /// file.
    pub fn arena_descriptor(&self) -> Option<i32> {
        self.tensors.file().map(|file| file.as_raw_fd())
    }

    /// Declares that this process was started by the one program that uses the GPUs of all ranks, so it may act as any
    /// rank. `arena`: the file with the ranks' data.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn borrows(&self, arena: &Path) -> io::Result<()> {
        let layout = Layout::for_world(self.world_size);
        let file = File::options().read(true).write(true).open(arena)?;
        // Only the first call sets the arena; later calls have no effect.
        let _ = self.lent.set((SharedArena::map(file.into(), layout.total)?, layout));
        self.take_rooms();
        Ok(())
    }

    /// Whether the process may act as any rank.
    pub fn borrows_gpus(&self) -> bool {
        self.lent.get().is_some()
    }

    /// Moves the process to the rank whose GPU it uses, if allowed. Returns whether the process acts as that rank.
    ///
    /// # Errors
    /// If the rank's process has ended.
    pub fn moves(&self, rank: u32) -> Result<bool> {
        if self.rank() == rank {
            return Ok(true);
        }
        let has_moved = self.rank() != self.rank;
        if self.lends.load(Relaxed) || (self.borrows_gpus() && has_moved) {
            let own = self.rank();
            self.warn(&format!(
                "a process uses the GPUs {own} and {rank}: its work counts as that of GPU {own}\nhint: use each GPU in a process of its own that the program starts"
            ));
        }
        if !self.borrows_gpus() || has_moved {
            return Ok(false);
        }
        match self.ask(Op::Moves(rank))? {
            Answer::Moved => self.acts_as.store(rank, Relaxed),
            other => super::unexpected("Moves", &other),
        }
        self.take_rooms();
        Ok(true)
    }

    /// From now on, inputs are staged in the arena part of the rank that this process acts as.
    fn take_rooms(&self) {
        if let Some((_, Layout { part, retain, .. })) = self.lent.get() {
            self.shared().rooms = Rooms::new(part * u64::from(self.rank()), *part, *retain);
        }
    }

    /// The calling thread's connection to the relay.
    pub(super) fn introduce(&self, name: &str) -> Result<Link> {
        self.refuse_in_fork()?;
        let (wire, frames, _) = introduce(name, super::thread_barrier::path())?;
        let wire: Arc<dyn Wire> = Arc::new(wire);
        Ok(Link::new(self.id, Some(wire.clone()), wire, frames))
    }

    /// Makes other processes participate in the time of this one, a rank's process, from now on; `meter` measures their
    /// compute.
    ///
    /// # Errors
    /// If no further socket is available.
    pub fn begins_family(&self, meter: Meter) -> io::Result<Relay> {
        let relay = Relay::new()?;
        self.barrier.begins_family(meter);
        Ok(relay)
    }

    /// Stops virtual time, as a thread is about to fork.
    pub fn begins_fork(&self) {
        self.barrier.holds();
    }

    /// Lets virtual time pass again.
    pub fn ends_fork(&self) {
        self.barrier.lets_go();
    }

    /// Makes the calling thread accept connections of other processes' threads. For each, `start` must start a thread
    /// that calls [`Client::relay_for`]. Never returns.
    pub fn relays(&self, relay: &Relay, start: &dyn Fn(Relative)) -> ! {
        self.barrier.serves(None);
        loop {
            match relay.accept() {
                Ok(Some(relative)) => start(relative),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => self.blind(error),
            }
        }
    }

    /// Makes the calling thread a relay: it makes requests for another process's thread until that thread has ended.
    pub fn relay_for(&self, relative: Relative) {
        let Relative { wire, mut frames, path, process } = relative;
        let path = self.barrier.admits(path);
        super::thread_barrier::is_started(path.clone());
        super::account::begins_to_relay();
        let listener = Arc::new(Listener::new(wire));
        let wire = &listener.wire;
        self.barrier.serves(Some((process, Arc::clone(&listener))));
        let compute = self.compute_of_children();
        let admission = Admission { rank: self.rank, world_size: self.world_size, now: self.last_now(), compute };
        let mut frame = Vec::new();
        frame::encode(&admission, &mut frame);
        let mut goes_on = wire.write(&frame).is_ok();
        while goes_on {
            // Further frames may have arrived with the previous read. A signal that interrupts this wait was meant for
            // an earlier pause, and arrived too late.
            while frames.is_empty() && listener.wait().is_err() {}
            goes_on = frames.read(wire).is_ok_and(|batch| self.relay_batch(&listener, &frames, batch).is_ok());
        }
        self.barrier.served(&path);
    }

    /// The source of compute of descendant processes: their operators are captured if this process's are costed; this
    /// process measures their CPU time.
    fn compute_of_children(&self) -> Compute {
        match self.compute {
            Compute::None => Compute::None,
            Compute::Measured if self.pending_by_log.get().is_none() => Compute::None,
            Compute::Measured | Compute::Modelled => Compute::Modelled,
        }
    }

    fn relay_batch(&self, listener: &Listener, frames: &FrameBuffer, batch: Batch) -> Result<()> {
        let (wire, mut ops) = (&listener.wire, batch.ops);
        // Operations of other threads of that process may already use these definitions, so they are added before this
        // thread waits for anything.
        ops.retain_mut(|op| match op {
            Op::Dictionary { at, entries, .. } => {
                self.barrier.names(*at, std::mem::take(entries));
                false
            }
            _ => true,
        });
        let question = ops.pop_if(|op| op.asks());
        if let (Some(Op::Look), false) = (&question, self.compute == Compute::Measured) {
            // The answer is the time of the last answer to any thread, because virtual time does not advance while a
            // thread runs. The cost of the clock read is not charged.
            if !ops.is_empty() {
                self.relay_ops(ops)?;
                self.flush()?;
            }
            return Self::tell(wire, &self.told(Answer::Now(self.last_now(), SimDuration::ZERO)));
        }
        // A process moves with all of its threads.
        if let Some(rank) = self.barrier.thread_moves() {
            self.ask_for_reply(Op::Moves(rank))?;
        }
        self.relay_ops(ops)?;
        let mut reply = match question {
            // Without a request, the thread has only left a pause.
            None => return self.flush(),
            Some(Op::Pause(span)) => {
                let listen = || self.listen_to_paused(listener, frames);
                let ((), is_over) = self.pause(span, Kick::Signal(this_thread()), listen)?;
                if !is_over {
                    return Ok(());
                }
                self.told(Answer::Over)
            }
            Some(Op::Moves(rank)) => {
                self.barrier.process_moves(rank);
                self.ask_for_reply(Op::Moves(rank))?
            }
            Some(Op::Look) => self.ask_for_reply(Op::Now)?,
            Some(Op::Group { .. }) if !self.may_communicate() => self.told(Answer::Group(Answer::NO_GROUP)),
            Some(question) => self.ask_for_reply(question)?,
        };
        // If the process behind the relay does not communicate, this process communicates for the rank, and has already
        // handled these parts of the reply.
        if !self.barrier.communicates() {
            (reply.freed, reply.over, reply.failed) = Default::default();
        }
        Self::tell(wire, &reply)
    }

    /// Carries out operations that need no answer.
    fn relay_ops(&self, ops: Vec<Op>) -> Result<()> {
        for op in ops {
            match op {
                Op::Warn(text) => self.warn(&text),
                Op::LacksMemory(lack) => self.lacks_memory(lack),
                Op::LacksValues(text) => self.lacks_values(&text),
                Op::Operators(operators) => self.ran(&[], &operators),
                Op::Compute(slice) => {
                    self.ran(&[], &slice.operators);
                    // This ends the slice of compute.
                    drop(self.ours());
                }
                other => self.push(other)?,
            }
        }
        Ok(())
    }

    fn tell(wire: &UnixWire, reply: &Reply) -> Result<()> {
        let mut frame = Vec::new();
        frame::encode(reply, &mut frame);
        Ok(wire.write(&frame)?)
    }

    /// Whether the process for which this thread makes requests communicates for its rank from now on, as the only
    /// process.
    fn may_communicate(&self) -> bool {
        let own_process_does = {
            let shared = self.shared();
            !(shared.group_counts.is_empty() && shared.written.is_empty())
        };
        self.barrier.may_communicate(self.rank, own_process_does)
    }

    /// Returns once the paused thread has continued, or its pause is over.
    pub(super) fn listen_to_paused(&self, listener: &Listener, frames: &FrameBuffer) {
        // The thread may have continued right after the pause: its message was then received together with the pause.
        while frames.is_empty() {
            if listener.wait().is_ok() || self.barrier.time_is_up() {
                return;
            }
        }
    }

    /// The reply to a relayed request that this process answers without the driver.
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

/// Tensors of a process without a part of the arena.
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
