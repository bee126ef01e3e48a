//! Owns the rank's end of the conversation: the calls of a live rank as messages to the driver, and the rank's blocks
//! in the arena.
//!
//! `account` measures the program's compute. The module knows no Python (`uniference-py` does) and decides nothing
//! about the simulation (the engine behind the driver does).

mod account;
mod arguments;
mod calls;
mod device;
mod error;
mod groups;
mod link;
mod listening;
mod names;
mod profile;
mod ranges;
mod relay;
pub mod thread_barrier;
mod time;

use super::capture::Capture;
use super::processor::Visit;
use super::rooms::Rooms;
use super::timeline::{Moments, ticks};
pub(super) use account::clock_ns;
use arguments::Membership;
pub use error::ClientError;
use link::{Link, Meanwhile, PendingOps};
use names::Dictionary;
pub use relay::{Relative, Relay};
use rustix::process::Pid;
use rustix::time::ClockId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use thread_barrier::ThreadBarrier;
use uniference_protocol::arena::{Layout, SharedArena};
use uniference_protocol::descriptors::lift;
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::hello::Hello;
use uniference_protocol::memory::{Region, Tensors};
use uniference_protocol::messages::{
    Answer, Batch, Compute, Fetched, Lack, LocalHandle, Offset, Op, Quiet, Reply, Span, Welcome,
};
use uniference_protocol::wire::{Opening, UnixWire, Wire};
use uniference_sim::ids::{GroupId, Site};
use uniference_sim::program::{Collective, Outcome, POLL_COST, StoreOp, StoreValue};
use uniference_sim::time::{SimDuration, SimTime};

/// Longest time between two calls for which a rank stays on the driver's CPU: in a shorter time, other processes would
/// gain less from this CPU than their wake-up costs.
const SHORT_NS: u64 = 500_000;

type Result<T> = std::result::Result<T, ClientError>;

/// A rank's connection to the driver. Any thread may call; each thread that does so is a task of its own.
pub struct Client {
    id: u64,
    rank: u32,
    /// The rank whose GPU the process uses: may be another rank if one program uses the GPUs of all ranks.
    acts_as: AtomicU32,
    world_size: u32,
    process: Pid,
    compute: Compute,
    /// The source of captured operators, if operators are captured.
    capture: OnceLock<Box<dyn Capture>>,
    /// Function that returns the program's line at which the calling thread is, if that line is known.
    line: OnceLock<fn() -> Option<String>>,
    /// Locked while operators of a thread are read, which keeps the definitions in the order of the capture.
    dictionary: Mutex<Dictionary>,
    started: AtomicBool,
    /// Process CPU time, in nanoseconds, up to which compute has been charged.
    charged: AtomicU64,
    tasks: AtomicU32,
    /// Number of ranges begun that may overlap.
    ranges: AtomicU32,
    /// The main task's wire, on which new tasks are announced. Locked during the write of a frame.
    main: Mutex<Arc<dyn Wire>>,
    shared: Mutex<Shared>,
    tensors: Box<dyn Tensors>,
    /// The arena and its layout, in a process that may act as any rank.
    lent: OnceLock<(SharedArena, Layout)>,
    /// Whether the process is the one program that uses the GPUs of all ranks.
    lends: AtomicBool,
    /// The file of the threads' stacks, which the driver reads; `None` if the driver cannot.
    stacks: Option<OwnedFd>,
    /// The CPU on which to wait for the driver.
    processor: Option<u32>,
    barrier: ThreadBarrier,
    /// Operations of threads that share a log and run alternately, which have not been sent. Keyed by log; only logs
    /// with unsent operations are listed, in the order of their first one.
    pending_by_log: OnceLock<Mutex<Vec<(u64, PendingOps)>>>,
    /// The rank's clock at its last answer, in picoseconds.
    clock: AtomicU64,
    /// This machine's clock at the last answer, in nanoseconds.
    answered_ns: AtomicU64,
    /// Whether a profile is active, which `moments` records.
    profiles: AtomicBool,
    moments: Moments,
    /// The name of the relay, in a process that a rank has started.
    relay: Option<String>,
}

/// The outcome of an operation that its caller waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// The data has been delivered; with `lacks_values` only its sizes.
    Delivered {
        /// A sender's values were not computed, so there is no data.
        lacks_values: bool,
    },
    /// The timeout has passed.
    TimedOut,
    /// The rank with this number in the world has closed its end of a connection.
    ClosedBy(u32),
}

/// The outcome of a complete operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// For a receive: the group rank of the sender.
    pub peer: Option<u32>,
    /// A sender's values were not computed: the output is unchanged.
    pub lacks_values: bool,
}

/// An operation whose caller waits for it at once.
pub struct Blocking<'a> {
    /// The collective to call.
    pub op: Collective,
    /// The member's input; `None`: it contributes nothing.
    pub input: Option<&'a [Region]>,
    /// The memory that the output is written to.
    pub output: &'a [Region],
    /// The virtual time after which the wait for the collective gives up; `None`: never.
    pub timeout: Option<SimDuration>,
    /// The user's line.
    pub site: &'a str,
}

/// State that all tasks of a rank share.
struct Shared {
    /// Allocator of blocks in the rank's part of the arena.
    rooms: Rooms,
    group_counts: BTreeMap<Vec<u32>, u32>,
    groups: BTreeMap<u32, Membership>,
    /// Groups of one-sided writes, by writing rank and the rank whose memory it writes to.
    written: BTreeMap<[u32; 2], GroupId>,
    next_handle: LocalHandle,
    /// Operations known to be complete, with their data, until they are released.
    complete: BTreeMap<LocalHandle, Fetched>,
    /// Operations that are complete or have failed and that no wait has reported.
    over: BTreeSet<LocalHandle>,
    /// Groups in which an operation has failed because another rank closed a connection.
    failed: BTreeSet<u32>,
}

thread_local! {
    static LINKS: RefCell<Vec<Link>> = const { RefCell::new(Vec::new()) };
}

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(0);

impl Client {
    /// Takes ownership of `socket`, with the calling thread as the rank's main task, and maps the arena of the driver's
    /// welcome.
    ///
    /// # Errors
    /// If the driver uses another version of the protocol, or this process lacks address space for the arena.
    pub fn adopt(socket: UnixStream, rank: u32, world_size: u32) -> Result<Client> {
        let wire = UnixWire::of_rank(socket);
        let (mut frames, welcome) = greet(&wire, Hello::new(true))?;
        let lacks = || io::Error::new(io::ErrorKind::InvalidData, "the welcome has no descriptors");
        let (file, stacks) = frames.take_fd().zip(frames.take_fd()).ok_or_else(lacks)?;
        let tensors = SharedArena::map(lift(file), welcome.arena_bytes)?;
        let client = Client::new(Arc::new(wire), frames, &welcome, Box::new(tensors), (rank, world_size))?;
        Ok(Client { stacks: Some(lift(stacks)), ..client })
    }

    /// Connects a rank over any wire, with another implementation of `tensors`.
    ///
    /// # Errors
    /// If the driver uses another version of the protocol.
    pub fn join(wire: Arc<dyn Wire>, tensors: Box<dyn Tensors>, rank: u32, world_size: u32) -> Result<Client> {
        let (frames, welcome) = greet(&*wire, Hello::new(false))?;
        Client::new(wire, frames, &welcome, tensors, (rank, world_size))
    }

    fn new(
        wire: Arc<dyn Wire>,
        frames: FrameBuffer,
        welcome: &Welcome,
        tensors: Box<dyn Tensors>,
        (rank, world_size): (u32, u32),
    ) -> Result<Client> {
        let (start, size) = welcome.staging;
        let client = Client {
            id: NEXT_CLIENT.fetch_add(1, Relaxed),
            rank,
            acts_as: AtomicU32::new(rank),
            world_size,
            process: rustix::process::getpid(),
            compute: welcome.compute,
            capture: OnceLock::new(),
            line: OnceLock::new(),
            dictionary: Mutex::default(),
            started: AtomicBool::new(false),
            charged: AtomicU64::new(0),
            tasks: AtomicU32::new(1),
            ranges: AtomicU32::new(0),
            main: Mutex::new(wire.clone()),
            shared: Mutex::new(Shared {
                rooms: Rooms::new(start, size, welcome.retain_bytes),
                group_counts: BTreeMap::new(),
                groups: BTreeMap::new(),
                written: BTreeMap::new(),
                next_handle: 0,
                complete: BTreeMap::new(),
                over: BTreeSet::new(),
                failed: BTreeSet::new(),
            }),
            tensors,
            lent: OnceLock::new(),
            lends: AtomicBool::new(false),
            stacks: None,
            processor: welcome.processor,
            barrier: ThreadBarrier::new(welcome.cores)?,
            pending_by_log: OnceLock::new(),
            clock: AtomicU64::new(0),
            answered_ns: AtomicU64::new(0),
            profiles: AtomicBool::new(false),
            moments: Moments::default(),
            relay: None,
        };
        LINKS.with_borrow_mut(|links| links.push(Link::new(client.id, None, wire, frames)));
        Ok(client)
    }

    /// The number of the rank that this process acts as.
    pub fn rank(&self) -> u32 {
        self.acts_as.load(Relaxed)
    }

    /// Number of ranks in the world.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Source of the duration of the program's compute.
    pub fn compute(&self) -> Compute {
        self.compute
    }

    /// Makes `capture` the capture of the program's operators from now on. Only the first call has an effect.
    pub fn capture_with(&self, capture: Box<dyn Capture>) {
        if self.capture.set(capture).is_ok() && self.is_at_own_work() {
            self.say_inside(true);
        }
    }

    /// Sets `line` as the function that returns the program's line for waits without a line of their own. Only the
    /// first call has an effect.
    pub fn find_lines_with(&self, line: fn() -> Option<String>) {
        let _ = self.line.set(line);
    }

    /// Makes threads whose operators are in one log share their operations from now on. Such threads run alternately,
    /// as autograd threads and the thread whose backward pass they carry out: operations are kept in their order, and
    /// belong to the thread that makes the next request.
    pub fn join_threads(&self) {
        let _ = self.pending_by_log.set(Mutex::default());
    }

    /// Address and size of the arena, if it is mapped; the arena stays mapped as long as the client lives.
    pub fn arena(&self) -> Option<(*mut u8, usize)> {
        self.tensors().mapped()
    }

    /// The file for the threads' stacks at [`uniference_protocol::STACKS_SIGNAL`], if the driver can read it.
    pub fn stacks(&self) -> Option<BorrowedFd<'_>> {
        self.stacks.as_ref().map(AsFd::as_fd)
    }

    /// Waits for the rank's first turn. Compute is measured and charged from now on.
    pub fn start(&self) -> Result<()> {
        self.ask(Op::Start)?;
        self.charged.store(clock_ns(ClockId::ProcessCPUTime), Relaxed);
        self.started.store(true, Relaxed);
        Ok(())
    }

    /// Ends the program, and sends outstanding operations.
    pub fn finish(&self, ok: bool) -> Result<()> {
        let _ours = self.ours();
        self.push(Op::Exit(if ok { Outcome::Ok } else { Outcome::Failed }))?;
        self.started.store(false, Relaxed);
        self.flush()?;
        if self.barrier.threaded() {
            self.barrier.end(self);
        }
        Ok(())
    }

    /// Reports that this machine has no memory for one of the program's tensors. The caller, any thread, ends the
    /// process.
    pub fn lacks_memory(&self, lack: Lack) {
        self.write_main(&Batch { opens_task: None, ops: vec![Op::LacksMemory(lack)], quiet: None });
    }

    /// Ends the run because of an operator or kernel whose values are not computed. The caller, any thread, ends the
    /// process.
    pub fn lacks_values(&self, text: &str) {
        self.write_main(&Batch { opens_task: None, ops: vec![Op::LacksValues(text.to_owned())], quiet: None });
    }

    /// Warns the user; the run continues.
    pub fn warn(&self, text: &str) {
        self.write_main(&Batch { opens_task: None, ops: vec![Op::Warn(text.to_owned())], quiet: None });
    }

    /// Blocks until all (any) of `handles` are complete; returns the complete ones, in the order of `handles`. `None`:
    /// the timeout has passed.
    pub fn wait(
        &self,
        handles: &[LocalHandle],
        timeout: Option<SimDuration>,
        any: bool,
        site: &str,
    ) -> Result<Option<Vec<LocalHandle>>> {
        let (done, open) = self.split_complete(handles);
        if open.is_empty() || (any && !done.is_empty()) {
            return Ok(Some(done));
        }
        let _ours = self.ours();
        let site = self.site(site)?;
        match self.ask(Op::Wait { handles: open, any, timeout, ahead: false, site })? {
            Answer::Complete(complete) => self.shared().complete.extend(complete),
            Answer::TimedOut => return Ok(None),
            other => unexpected("Wait", &other),
        }
        Ok(Some(self.split_complete(handles).0))
    }

    fn split_complete(&self, handles: &[LocalHandle]) -> (Vec<LocalHandle>, Vec<LocalHandle>) {
        let shared = self.shared();
        handles.iter().partition(|handle| shared.complete.contains_key(handle))
    }

    /// Operations that are complete or have failed, according to answers up to now, that no wait has reported and that
    /// no earlier call has returned. This sends no request to the driver, so a program may call it after each wait,
    /// however many operations are outstanding.
    pub fn take_over(&self) -> Vec<LocalHandle> {
        std::mem::take(&mut self.shared().over).into_iter().collect()
    }

    /// Whether the operation is complete.
    pub fn poll(&self, handle: LocalHandle) -> Result<bool> {
        Ok(self.wait(&[handle], Some(POLL_COST), false, "")?.is_some())
    }

    /// Elements that the caller must combine, with kernels of its own, before the data of a complete operation is
    /// delivered: (destination, source, bytes). The elements are returned only once; [`Client::folded`] reports the end
    /// of the reduction.
    ///
    /// # Panics
    /// If no wait has reported the operation as complete, or it was delivered.
    pub fn folds(&self, handle: LocalHandle) -> Vec<(Offset, Offset, u64)> {
        let mut shared = self.shared();
        let known = shared.complete.get_mut(&handle).unwrap_or_else(|| panic!("operation {handle} is not complete"));
        std::mem::take(&mut known.folds)
    }

    /// Reports that the folds of a complete operation are done: the other members may read.
    pub fn folded(&self, handle: LocalHandle) -> Result<()> {
        self.send_now(Op::Folded(handle))
    }

    /// Copies the data of a complete operation to `output`, and releases the operation. The result includes the sender
    /// of a receive.
    ///
    /// # Panics
    /// If no wait has reported the operation as complete, it was delivered, or `output` has another size.
    pub fn deliver(&self, handle: LocalHandle, output: &[Region]) -> Result<Delivered> {
        let known = self.shared().complete.remove(&handle);
        let known = known.unwrap_or_else(|| panic!("operation {handle} is not complete"));
        let (there, room) = (known.pieces.iter().map(|piece| piece.bytes).sum::<u64>(), size_of_all(output));
        let fits = there == 0 || there == room;
        if fits {
            self.fold(handle, &known)?;
            self.read(&known, output);
        }
        self.with_link(|client, link| link.push(client, Op::Release(handle)))?;
        if fits {
            Ok(Delivered { peer: known.peer, lacks_values: known.lacks_values })
        } else {
            Err(arguments::wrong(format!("{there} bytes do not fit into a buffer of {room} bytes")))
        }
    }

    /// The rank of the world that has closed its end of a connection and so made a complete operation fail, which then
    /// has no data. `None`: the operation has not failed.
    ///
    /// # Panics
    /// If no wait has reported the operation as complete, or it was delivered.
    pub fn closed_by(&self, handle: LocalHandle) -> Result<Option<u32>> {
        let known = self.shared().complete.get(&handle).map(|known| known.closed_by);
        let closed_by = known.unwrap_or_else(|| panic!("operation {handle} is not complete"));
        if closed_by.is_some() {
            self.shared().complete.remove(&handle);
            self.with_link(|client, link| link.push(client, Op::Release(handle)))?;
        }
        Ok(closed_by)
    }

    /// Releases an operation, complete or not, in which the program has no further interest.
    pub fn release(&self, handle: LocalHandle) -> Result<()> {
        self.shared().complete.remove(&handle);
        self.with_link(|client, link| link.push(client, Op::Release(handle)))
    }

    /// Reduces elements for all members, if the driver chose this member to reduce and the reduction needs no kernel of
    /// the caller.
    fn fold(&self, handle: LocalHandle, fetched: &Fetched) -> Result<()> {
        match fetched.kernel() {
            Some(_) if !fetched.folds.is_empty() => {
                self.tensors().fold(fetched).unwrap_or_else(|error| self.lost(&error));
                self.folded(handle)
            }
            _ => Ok(()),
        }
    }

    fn read(&self, fetched: &Fetched, output: &[Region]) {
        // A rank without received data may still pass an output tensor, as the root of a broadcast does.
        if !fetched.pieces.is_empty() {
            self.tensors().read(fetched, output).unwrap_or_else(|error| self.lost(&error));
        }
    }

    /// Carries out an operation of the store; `None`: the timeout has passed.
    pub fn store(&self, operation: StoreOp, timeout: Option<SimDuration>, site: &str) -> Result<Option<StoreValue>> {
        let _ours = self.ours();
        let site = self.site(site)?;
        match self.ask(Op::Store { operation, timeout, site })? {
            Answer::Store(value) => Ok(Some(value)),
            Answer::TimedOut => Ok(None),
            other => unexpected("Store", &other),
        }
    }

    pub(super) fn capture(&self) -> Option<&dyn Capture> {
        self.capture.get().map(|capture| &**capture)
    }

    fn tensors(&self) -> &dyn Tensors {
        self.lent.get().map_or(&*self.tensors, |(arena, _)| arena)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no holder of this lock panics")
    }

    /// Number of the line `line`; if `line` is empty, number of the line at which the program is.
    fn site(&self, line: &str) -> Result<Site> {
        let here = if line.is_empty() { self.line.get().and_then(|line| line()) } else { None };
        self.with_link(|_, link| Ok(link.site(here.as_deref().unwrap_or(line))))
    }

    /// Tells the driver at which source line the calling thread starts a process. This line applies to waits of the
    /// thread that have no line of their own.
    pub fn starts_process(&self) -> Result<()> {
        self.refuse_in_fork()?;
        let _ours = self.ours();
        self.stands()?;
        self.flush()
    }

    /// Adds [`Op::At`] with the program's current line to the batch, if that line is known. The line applies to the
    /// thread's next operation without a line of its own, such as a wait in a C library function.
    fn stands(&self) -> Result<()> {
        let Some(here) = self.line.get().and_then(|line| line()) else { return Ok(()) };
        self.with_link(|_, link| {
            let site = link.site(&here);
            link.batch.push(Op::At(site));
            Ok(())
        })
    }

    /// Adds `op` to the batch, after the program's compute up to now.
    fn push(&self, op: Op) -> Result<()> {
        let slice = self.take_slice();
        self.with_link(|client, link| {
            link.batch.extend(ranges::take_name());
            if let Some(slice) = slice {
                link.push_slice(client, slice)?;
            }
            link.push(client, op)
        })
    }

    /// Adds an operation that needs no answer. If the process has several threads, the operation is sent at once: an
    /// unsent batch of this thread must not delay the driver while it waits for another thread.
    fn say(&self, op: Op) -> Result<()> {
        self.push(op)?;
        if self.is_alone() { Ok(()) } else { self.flush() }
    }

    fn flush(&self) -> Result<()> {
        self.with_link(|client, link| link.send(client))
    }

    fn send_now(&self, op: Op) -> Result<()> {
        self.with_link(|client, link| link.push(client, op).and_then(|()| link.send(client)))
    }

    fn ask(&self, question: Op) -> Result<Answer> {
        self.ask_meanwhile(question, Meanwhile::default())
    }

    fn ask_meanwhile(&self, question: Op, meanwhile: Meanwhile<'_>) -> Result<Answer> {
        self.ask_for_reply_meanwhile(question, meanwhile).map(|reply| reply.answer)
    }

    pub(super) fn ask_for_reply(&self, question: Op) -> Result<Reply> {
        self.ask_for_reply_meanwhile(question, Meanwhile::default())
    }

    fn ask_for_reply_meanwhile(&self, question: Op, mut meanwhile: Meanwhile<'_>) -> Result<Reply> {
        time::asks();
        let _ours = self.ours();
        let before = self.profiles.load(Relaxed).then(ticks);
        self.push(question)?;
        self.is_about_to_block();
        let reply = self.with_link(|client, link| {
            if client.barrier.threaded() {
                client.refuse_in_fork()?;
                client.barrier.ask(client, link.speaker());
                return Ok(link.read(client, &mut meanwhile));
            }
            let _there = client.processor.filter(|_| client.is_hurried()).and_then(Visit::begin);
            link.write(client, Some(Quiet { parts: 1, ..Quiet::default() }))?;
            if let Some((input, room)) = meanwhile.fill {
                client.tensors().write(room, input).unwrap_or_else(|error| client.lost(&error));
                link.batch.push(Op::Filled(room));
                link.write(client, None)?;
            }
            Ok(link.read(client, &mut meanwhile))
        })?;
        account::has_settled();
        if self.barrier.threaded() {
            self.barrier.answered();
        }
        if let Some(before) = before {
            self.moments.asked((before, reply.asked), (ticks(), reply.now));
        }
        Ok(reply)
    }

    /// Whether the last answer came a short time ago.
    fn is_hurried(&self) -> bool {
        clock_ns(ClockId::Monotonic) - self.answered_ns.load(Relaxed) < SHORT_NS
    }

    /// Handles the parts of a reply other than its answer.
    pub(super) fn take_in(&self, reply: &Reply) {
        self.clock.store(reply.now.as_ps(), Relaxed);
        self.answered_ns.store(clock_ns(ClockId::Monotonic), Relaxed);
        // In a relay thread, these parts belong to the process on whose behalf the thread makes requests, if that
        // process communicates.
        if account::relays() && self.barrier.communicates() {
            return;
        }
        if !reply.freed.is_empty() || !reply.over.is_empty() || !reply.failed.is_empty() {
            let mut shared = self.shared();
            for (start, bytes) in reply.freed.iter().filter_map(|offset| shared.rooms.free(*offset)) {
                self.tensors().forget(start, bytes);
            }
            shared.over.extend(&reply.over);
            shared.failed.extend(&reply.failed);
            if let Answer::Complete(told) = &reply.answer {
                for (handle, _) in told {
                    shared.over.remove(handle);
                }
            }
        }
    }

    pub(super) fn barrier(&self) -> &ThreadBarrier {
        &self.barrier
    }

    /// Runs `f` with the calling thread's connection, which is opened at the first call.
    fn with_link<T>(&self, f: impl FnOnce(&Client, &mut Link) -> Result<T>) -> Result<T> {
        LINKS.with_borrow_mut(|links| {
            let at = match links.iter().position(|link| link.client == self.id) {
                Some(at) => at,
                None => {
                    links.push(self.open_task()?);
                    links.len() - 1
                }
            };
            f(self, &mut links[at])
        })
    }

    /// Announces the calling thread to the driver.
    fn open_task(&self) -> Result<Link> {
        if let Some(relay) = &self.relay {
            return self.introduce(relay);
        }
        self.refuse_in_fork()?;
        let main = self.main.lock().expect("no holder of this lock panics").clone();
        let (ours, opening) = main.open().map_err(|source| ClientError::Thread { rank: self.rank, source })?;
        self.tasks.fetch_add(1, Relaxed);
        let mut link = Link::new(self.id, Some(ours.clone()), ours, FrameBuffer::default());
        if self.barrier.threaded() {
            link.opens = Some(opening);
        } else {
            self.announce(opening);
        }
        Ok(link)
    }

    /// Announces a new wire to the driver.
    pub(super) fn announce(&self, opening: Opening) {
        let mut frame = Vec::new();
        frame::encode(&Batch { opens_task: Some(opening.ticket), ops: Vec::new(), quiet: None }, &mut frame);
        let main = self.main.lock().expect("no holder of this lock panics");
        main.announce(&frame, opening).unwrap_or_else(|error| self.lost(&error));
    }

    /// Writes to the main task's wire.
    pub(super) fn write_main(&self, batch: &Batch) {
        let mut frame = Vec::new();
        frame::encode(batch, &mut frame);
        let main = self.main.lock().expect("no holder of this lock panics");
        main.write(&frame).unwrap_or_else(|error| self.lost(&error));
    }

    /// Ends the use of a lost connection in functions that cannot return an error.
    pub(super) fn lost(&self, error: &io::Error) -> ! {
        if !is_severed(error) {
            never()
        }
        ClientError::Severed { rank: self.rank }.end()
    }

    /// Ends the process because the states of the rank's threads cannot be read.
    pub(super) fn blind(&self, source: io::Error) -> ! {
        ClientError::Thread { rank: self.rank, source }.end()
    }

    fn refuse_in_fork(&self) -> Result<()> {
        if rustix::process::getpid() == self.process { Ok(()) } else { Err(ClientError::Forked { rank: self.rank }) }
    }
}

/// Exchanges hello messages with the driver, and receives the properties of the rank's run.
fn greet(wire: &dyn Wire, ours: Hello) -> io::Result<(FrameBuffer, Welcome)> {
    let (mut frames, mut bytes) = (FrameBuffer::default(), Vec::new());
    frame::encode(&ours, &mut bytes);
    wire.write(&bytes)?;
    ours.hear(&mut frames, wire)?;
    let welcome = frames.read(wire)?;
    Ok((frames, welcome))
}

/// Total size of memory regions in bytes.
fn size_of_all(memory: &[Region]) -> u64 {
    memory.iter().map(Region::bytes).sum()
}

/// Whether the error means that the descriptor is no longer a socket.
fn is_severed(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::BADF, Errno::NOTSOCK].map(Errno::raw_os_error).iter().any(|code| error.raw_os_error() == Some(*code))
}

/// Blocks forever, because the run has ended during a call: the driver is about to end this process, and the program
/// must not see an error before that.
pub(super) fn never() -> ! {
    loop {
        std::thread::park();
    }
}

fn unexpected(question: &str, answer: &Answer) -> ! {
    panic!("the driver answered {question} with {answer:?}")
}

#[cfg(test)]
mod tests;
