//! Owns the rank's end: the calls of a live rank as messages to the driver, and its rooms in the arena.
//!
//! What the program is charged is `account`'s. It knows no Python (that is `uniference-py`) and decides nothing about the
//! simulation (that is the engine, behind the driver).

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
pub mod rounds;
mod time;

use super::capture::Capture;
use super::processor::Visit;
use super::rooms::Rooms;
use super::timeline::{Moments, ticks};
pub(super) use account::clock_ns;
use arguments::Membership;
pub use error::ClientError;
use link::{Joint, Link, Meanwhile};
use names::Dictionary;
pub use relay::{Relative, Relay};
use rounds::Rounds;
use rustix::process::Pid;
use rustix::time::ClockId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
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

/// Between two calls so close to each other a rank does not leave the driver's processor: others cannot win what waking one takes.
const SHORT_NS: u64 = 500_000;

type Result<T> = std::result::Result<T, ClientError>;

/// A rank's connection to the driver. Any thread may call; each that does is a task of its own.
pub struct Client {
    id: u64,
    rank: u32,
    /// The rank whose GPU the process uses: another one where ranks lend theirs to one program.
    acts_as: AtomicU32,
    world_size: u32,
    process: Pid,
    compute: Compute,
    /// Who writes down operators, if anybody does.
    capture: OnceLock<Box<dyn Capture>>,
    /// Function that returns the program's line at which the calling thread is, if that line is known.
    line: OnceLock<fn() -> Option<String>>,
    /// What the operators of all threads name by number, as far as the driver has not been told. Held while a thread takes its operators, so that
    /// it is in the order in which it was written.
    dictionary: Mutex<Dictionary>,
    started: AtomicBool,
    /// Process CPU time, in nanoseconds, up to which compute has been charged.
    charged: AtomicU64,
    tasks: AtomicU32,
    /// Ranges that may overlap: how many have begun.
    ranges: AtomicU32,
    /// The main task's wire, on which new tasks are announced. Locked by whoever writes a frame to it.
    main: Mutex<Arc<dyn Wire>>,
    shared: Mutex<Shared>,
    tensors: Box<dyn Tensors>,
    /// Of a process that may be of any rank: the arena, and how it is dealt.
    lent: OnceLock<(SharedArena, Layout)>,
    /// The process is the one program of ranks that lend it their GPUs.
    lends: AtomicBool,
    /// What the driver reads the threads' stacks from, where it can.
    stacks: Option<OwnedFd>,
    /// Where to wait for the driver.
    processor: Option<u32>,
    rounds: Rounds,
    /// Of threads that take turns: what they have said, and nobody has sent.
    /// By the log that they write to; only where something is unsaid, and in the order in which that began.
    joint: OnceLock<Mutex<Vec<(u64, Joint)>>>,
    /// The rank's clock at its last answer, in picoseconds.
    clock: AtomicU64,
    /// The host's at the same moment, in nanoseconds.
    answered_ns: AtomicU64,
    /// Whether somebody profiles, and what is taken down for it.
    profiles: AtomicBool,
    moments: Moments,
    /// Of a process that a rank has started: the name of the relay that asks for it.
    relay: Option<String>,
}

/// How an operation that its caller waited for has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// Its data is there, or with `lacks_values` what there is of it: sizes.
    Delivered {
        /// A sender's values were not computed.
        lacks_values: bool,
    },
    /// The time-out has passed.
    TimedOut,
    /// This rank of the world has closed its end of a connection.
    ClosedBy(u32),
}

/// What came of a complete operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Of a receive: the group rank of the sender.
    pub peer: Option<u32>,
    /// A sender's values were not computed: the output is as it was.
    pub lacks_values: bool,
}

/// An operation that its caller waits for at once.
pub struct Blocking<'a> {
    /// The collective that is called.
    pub op: Collective,
    /// The member's input; `None`: it contributes nothing.
    pub input: Option<&'a [Region]>,
    /// The memory that the output is written to.
    pub output: &'a [Region],
    /// The longest time that it waits.
    pub timeout: Option<SimDuration>,
    /// The user's line.
    pub site: &'a str,
}

/// What the tasks of a rank share.
struct Shared {
    /// Of the rank's part of the arena.
    rooms: Rooms,
    group_counts: BTreeMap<Vec<u32>, u32>,
    groups: BTreeMap<u32, Membership>,
    /// By who writes, and into whose memory.
    written: BTreeMap<[u32; 2], GroupId>,
    next_handle: LocalHandle,
    /// Operations known to be complete, with their data; until released.
    complete: BTreeMap<LocalHandle, Fetched>,
    /// Operations that are over, though no wait has reported them.
    over: BTreeSet<LocalHandle>,
    /// Groups in which an operation has failed, as another rank has closed a connection.
    failed: BTreeSet<u32>,
}

thread_local! {
    static LINKS: RefCell<Vec<Link>> = const { RefCell::new(Vec::new()) };
}

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(0);

impl Client {
    /// Takes over `socket`, the calling thread being the rank's main task, and maps the arena that the driver's welcome brings.
    ///
    /// # Errors
    /// If the driver speaks another version of the protocol, or this process lacks the room for the arena.
    pub fn adopt(socket: UnixStream, rank: u32, world_size: u32) -> Result<Client> {
        let wire = UnixWire::of_rank(socket);
        let (mut frames, welcome) = greet(&wire, Hello::new(true))?;
        let lacks = || io::Error::new(io::ErrorKind::InvalidData, "the welcome has no descriptors");
        let (file, stacks) = frames.take_fd().zip(frames.take_fd()).ok_or_else(lacks)?;
        let tensors = SharedArena::map(lift(file), welcome.arena_bytes)?;
        let client = Client::new(Arc::new(wire), frames, &welcome, Box::new(tensors), (rank, world_size))?;
        Ok(Client { stacks: Some(lift(stacks)), ..client })
    }

    /// The same on any wire, with another way for the data of tensors.
    ///
    /// # Errors
    /// If the driver speaks another version of the protocol.
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
            rounds: Rounds::new(welcome.cores)?,
            joint: OnceLock::new(),
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

    /// Where the duration of the program's compute comes from.
    pub fn compute(&self) -> Compute {
        self.compute
    }

    /// From here on the program's operators are those that `capture` writes down. Whoever was set first stays.
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

    /// From here on threads whose operators stand in one log take turns, one waiting while another goes on, as those of autograd and the one whose backward
    /// pass they carry out: what they say is in the order in which they said it, and of the one that asks next.
    pub fn join_threads(&self) {
        let _ = self.joint.set(Mutex::default());
    }

    /// Address and size of the arena, if it is mapped; it stays so as long as the client lives.
    pub fn arena(&self) -> Option<(*mut u8, usize)> {
        self.tensors().mapped()
    }

    /// What the threads' stacks are to be written to at [`uniference_protocol::STACKS_SIGNAL`], where the driver can read it.
    pub fn stacks(&self) -> Option<BorrowedFd<'_>> {
        self.stacks.as_ref().map(AsFd::as_fd)
    }

    /// Waits for the rank's first turn. From here on compute is measured and charged.
    pub fn start(&self) -> Result<()> {
        self.ask(Op::Start)?;
        self.charged.store(clock_ns(ClockId::ProcessCPUTime), Relaxed);
        self.started.store(true, Relaxed);
        Ok(())
    }

    /// The program has ended. Sends what is outstanding.
    pub fn finish(&self, ok: bool) -> Result<()> {
        let _ours = self.ours();
        self.push(Op::Exit(if ok { Outcome::Ok } else { Outcome::Failed }))?;
        self.started.store(false, Relaxed);
        self.flush()?;
        if self.rounds.threaded() {
            self.rounds.end(self);
        }
        Ok(())
    }

    /// This machine has no memory for a tensor of the program's. The caller, any thread, ends the process.
    pub fn lacks_memory(&self, lack: Lack) {
        self.write_main(&Batch { opens_task: None, ops: vec![Op::LacksMemory(lack)], quiet: None });
    }

    /// Ends the run because of an operator or kernel whose values are not computed. The caller, any thread, ends the
    /// process.
    pub fn lacks_values(&self, text: &str) {
        self.write_main(&Batch { opens_task: None, ops: vec![Op::LacksValues(text.to_owned())], quiet: None });
    }

    /// Tells the user something, though the run goes on.
    pub fn warn(&self, text: &str) {
        self.write_main(&Batch { opens_task: None, ops: vec![Op::Warn(text.to_owned())], quiet: None });
    }

    /// Blocks until all (any) of `handles` are complete; which are, in the order asked for. `None`: the time-out has passed.
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

    /// Operations that are over (complete or failed), as the rank's answers up to now have said, that no wait has reported and that were
    /// not handed out here before. It asks nothing, so that a program may look after each of its waits, however much is outstanding.
    pub fn take_over(&self) -> Vec<LocalHandle> {
        std::mem::take(&mut self.shared().over).into_iter().collect()
    }

    /// Is it complete?
    pub fn poll(&self, handle: LocalHandle) -> Result<bool> {
        Ok(self.wait(&[handle], Some(POLL_COST), false, "")?.is_some())
    }

    /// What the caller has to combine, with kernels of its own, before the data of a complete operation is delivered: (destination,
    /// source, bytes). Handed out once; [`Client::folded`] says that it is done.
    ///
    /// # Panics
    /// If no wait has reported the operation complete, or it was delivered.
    pub fn folds(&self, handle: LocalHandle) -> Vec<(Offset, Offset, u64)> {
        let mut shared = self.shared();
        let known = shared.complete.get_mut(&handle).unwrap_or_else(|| panic!("operation {handle} is not complete"));
        std::mem::take(&mut known.folds)
    }

    /// The folds of a complete operation are done: the other members may read.
    pub fn folded(&self, handle: LocalHandle) -> Result<()> {
        self.send_now(Op::Folded(handle))
    }

    /// Copies the data of a complete operation to `output`, and releases it. Returns from whom a receive has it.
    ///
    /// # Panics
    /// If no wait has reported the operation complete, it was delivered, or `output` has another size.
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

    /// Which rank of the world has closed its end of a connection, so that a complete operation has failed: there is nothing to deliver.
    /// `None`: it has not failed.
    ///
    /// # Panics
    /// If no wait has reported the operation complete, or it was delivered.
    pub fn closed_by(&self, handle: LocalHandle) -> Result<Option<u32>> {
        let known = self.shared().complete.get(&handle).map(|known| known.closed_by);
        let closed_by = known.unwrap_or_else(|| panic!("operation {handle} is not complete"));
        if closed_by.is_some() {
            self.shared().complete.remove(&handle);
            self.with_link(|client, link| link.push(client, Op::Release(handle)))?;
        }
        Ok(closed_by)
    }

    /// Forgets an operation that the program will not learn any more of, whether it is complete or not.
    pub fn release(&self, handle: LocalHandle) -> Result<()> {
        self.shared().complete.remove(&handle);
        self.with_link(|client, link| link.push(client, Op::Release(handle)))
    }

    /// Combines for all members, if this one is to and needs no kernel of the caller's.
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
        // Whoever receives nothing may name a tensor all the same, as the root of a broadcast does.
        if !fetched.pieces.is_empty() {
            self.tensors().read(fetched, output).unwrap_or_else(|error| self.lost(&error));
        }
    }

    /// An operation of the store; `None`: the time-out has passed.
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

    /// Tells the driver at which line the calling thread starts a process. This line applies to waits of the thread
    /// that have no line of their own.
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

    /// Puts `op` into the batch, behind what the program has done so far.
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

    /// Says what needs no answer, and counts from now on: another thread may be waited for next, and this one's batch must not wait for that.
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
            if client.rounds.threaded() {
                client.refuse_in_fork()?;
                client.rounds.ask(client, link.speaker());
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
        if self.rounds.threaded() {
            self.rounds.answered();
        }
        if let Some(before) = before {
            self.moments.asked((before, reply.asked), (ticks(), reply.now));
        }
        Ok(reply)
    }

    /// Whether it was answered a short time ago.
    fn is_hurried(&self) -> bool {
        clock_ns(ClockId::Monotonic) - self.answered_ns.load(Relaxed) < SHORT_NS
    }

    /// Takes from a reply what is not its answer.
    pub(super) fn take_in(&self, reply: &Reply) {
        self.clock.store(reply.now.as_ps(), Relaxed);
        self.answered_ns.store(clock_ns(ClockId::Monotonic), Relaxed);
        // Of a process in whose name others ask, they are that one's.
        if account::relays() && self.rounds.communicates() {
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

    pub(super) fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// Runs `f` with the calling thread's connection, which is opened at its first call.
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
        if self.rounds.threaded() {
            link.opens = Some(opening);
        } else {
            self.announce(opening);
        }
        Ok(link)
    }

    /// Tells the driver of a wire that was opened.
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

    /// The connection is of no use any more, where no error can be returned.
    pub(super) fn lost(&self, error: &io::Error) -> ! {
        if !is_severed(error) {
            never()
        }
        ClientError::Severed { rank: self.rank }.end()
    }

    /// What the rank's threads do cannot be seen any more.
    pub(super) fn blind(&self, source: io::Error) -> ! {
        ClientError::Thread { rank: self.rank, source }.end()
    }

    fn refuse_in_fork(&self) -> Result<()> {
        if rustix::process::getpid() == self.process { Ok(()) } else { Err(ClientError::Forked { rank: self.rank }) }
    }
}

/// Says what this side is, hears what the driver is, and what the rank's run is like.
fn greet(wire: &dyn Wire, ours: Hello) -> io::Result<(FrameBuffer, Welcome)> {
    let (mut frames, mut bytes) = (FrameBuffer::default(), Vec::new());
    frame::encode(&ours, &mut bytes);
    wire.write(&bytes)?;
    ours.hear(&mut frames, wire)?;
    let welcome = frames.read(wire)?;
    Ok((frames, welcome))
}

/// What an input takes that was staged at an offset.
fn size_of_all(memory: &[Region]) -> u64 {
    memory.iter().map(Region::bytes).sum()
}

/// Whether the descriptor is not that of a socket any more.
fn is_severed(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::BADF, Errno::NOTSOCK].map(Errno::raw_os_error).iter().any(|code| error.raw_os_error() == Some(*code))
}

/// The run has ended under a call: the driver is about to end this process, and the program must not see anything odd before.
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
