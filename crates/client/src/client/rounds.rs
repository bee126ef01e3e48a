//! Owns the order of a process with several threads: what they say is collected and sent to the driver as one round, once all of them
//! wait; and who of them sleeps in a call of the system that virtual time may end.
//!
//! When all threads wait is found by `quiescence`; what they say is `client`'s business.
//!
//! A process runs from an answer of the driver until it is quiet: each thread has asked, or waits for another one, or for something
//! outside. Only then may virtual time pass, and the driver gives the next answer. So threads that sleep side by side do so in virtual
//! time, and what a round holds does not depend on which thread was faster: it is sorted by who has started whom.
//!
//! A thread that asks looks whether all others wait, which they mostly do. For those that fall asleep without asking, one thread of ours,
//! the watch, keeps looking while the process runs.

use super::Client;
use crate::lanes::{Lanes, Used};
use crate::quiescence::{Family, Found, ThreadId, Threads};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::time::{ClockId, Timespec};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use uniference_protocol::descriptors::lift;
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::messages::{Answer, Batch, Op, Quiet, Reply};
use uniference_protocol::wire::{Opening, Wire};

/// How soon the watch looks again, at first and at most; nanoseconds.
const LOOKS: (u64, u64) = (50_000, 1_000_000);

/// How long, in nanoseconds of the host, virtual time does not pass while a thread runs and does not ask, or waits for a child process that is busy:
/// as long as a compiler may take on a busy machine. The thread may spin until another one, which sleeps in virtual time, has done something.
const PATIENCE: u64 = 60_000_000_000;

/// Who started a thread: numbers of children from the main thread on, whose own name is empty.
pub(crate) type Path = Vec<u32>;

thread_local! {
    static PATH: RefCell<Option<Path>> = const { RefCell::new(None) };
    static CHILDREN: Cell<u32> = const { Cell::new(0) };
}

/// How a sleep in a call of the system is ended. Whoever makes the watch ([`Client::watch`]) knows how that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// By a signal to the thread.
    Signal(i32),
    /// By a broadcast to the condition variable at this address.
    Broadcast(usize),
}

/// The rounds of one process.
pub(crate) struct Rounds {
    threaded: AtomicBool,
    /// Threads that are about to say something: they may sleep on our lock, but must not count as waiting.
    arriving: AtomicU32,
    state: Mutex<State>,
    wake: OwnedFd,
    /// CPU time that threads have used for our work, in nanoseconds.
    ours: AtomicU64,
    /// What the program had computed when the process began to run.
    begun: AtomicU64,
    pub(crate) lanes: Lanes,
}

#[derive(Default)]
struct State {
    parts: BTreeMap<Path, Part>,
    /// Threads that wait for an answer.
    asking: BTreeSet<ThreadId>,
    paused: BTreeMap<ThreadId, Pause>,
    watch: Option<ThreadId>,
    /// Since when the process runs; `None`: it is quiet, and the driver knows.
    running: Option<u64>,
    threads: Threads,
    family: Family,
}

/// What a thread has said since the process was quiet last.
struct Part {
    /// `None`: the main task's.
    writer: Option<Arc<dyn Wire>>,
    /// Of a thread that the driver does not know yet.
    opens: Option<Opening>,
    ops: Vec<Op>,
}

/// A thread that sleeps in a call of the system.
struct Pause {
    reader: Arc<dyn Wire>,
    kick: Kick,
    state: Paused,
}

#[derive(Clone, Copy, PartialEq)]
enum Paused {
    Sleeping,
    /// Virtual time has ended it.
    Over,
    /// The thread went on, and the driver has not heard of that.
    Left,
}

/// What a thread needs for its part of a round.
pub(crate) struct Speaker<'a> {
    pub(crate) writer: Option<Arc<dyn Wire>>,
    pub(crate) opens: &'a mut Option<Opening>,
    pub(crate) ops: Vec<Op>,
}

impl Rounds {
    /// `cores`: how many threads compute at once on the rank's device.
    pub(crate) fn new(cores: u32) -> io::Result<Rounds> {
        PATH.set(Some(Path::new()));
        CHILDREN.set(0);
        let wake = lift(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Rounds {
            threaded: AtomicBool::new(false),
            arriving: AtomicU32::new(0),
            state: Mutex::default(),
            wake,
            ours: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            lanes: Lanes::new(cores),
        })
    }

    /// Whether the process has, or has had, more than one thread.
    pub(crate) fn threaded(&self) -> bool {
        self.threaded.load(SeqCst)
    }

    fn enter(&self) -> MutexGuard<'_, State> {
        self.arriving.fetch_add(1, SeqCst);
        let state = self.state.lock().expect("no holder of this lock panics");
        self.arriving.fetch_sub(1, SeqCst);
        state
    }

    /// The thread has said something that needs no answer.
    pub(crate) fn say(&self, speaker: Speaker<'_>) {
        let mut state = self.enter();
        self.run(&mut state);
        state.collect(speaker);
    }

    /// The thread asks, and next waits for the answer.
    pub(crate) fn ask(&self, client: &Client, speaker: Speaker<'_>) {
        let mut state = self.enter();
        self.run(&mut state);
        state.collect(speaker);
        state.asking.insert(this_thread());
        self.try_end(client, &mut state);
    }

    /// The thread has its answer and goes on.
    pub(crate) fn answered(&self) {
        let mut state = self.enter();
        state.asking.remove(&this_thread());
        self.run(&mut state);
    }

    /// The thread is about to sleep in a call of the system, and has said for how long in `speaker`.
    pub(crate) fn pause(&self, speaker: Speaker<'_>, reader: Arc<dyn Wire>, kick: Kick) {
        let mut state = self.enter();
        self.run(&mut state);
        state.collect(speaker);
        state.paused.insert(this_thread(), Pause { reader, kick, state: Paused::Sleeping });
    }

    /// The thread goes on; returns whether that is because its time was up.
    pub(crate) fn end_pause(&self) -> bool {
        let mut state = self.enter();
        self.run(&mut state);
        let withdrawn = state.parts.get_mut(&path()).is_some_and(|part| part.ops.pop_if(|op| op.asks()).is_some());
        let pause = state.paused.get_mut(&this_thread()).expect("it has paused");
        let over = pause.state == Paused::Over;
        if over || withdrawn {
            state.paused.remove(&this_thread());
        } else {
            pause.state = Paused::Left;
        }
        over
    }

    /// Sends what there is, though threads run: the process ends.
    pub(crate) fn end(&self, client: &Client) {
        self.enter().send(client, false);
    }

    /// Leaves CPU time that a thread has used for our work out of the account.
    pub(crate) fn leave_out(&self, ns: u64) {
        self.ours.fetch_add(ns, SeqCst);
    }

    /// How long what the program has computed since `mark`, or since the process began to run if that is later, takes on the rank's
    /// device; nanoseconds. `lanes` is what the threads of pools had used at `mark`.
    pub(crate) fn computed_since(&self, mark: u64, lanes: &Used) -> u64 {
        let total = self.computed().saturating_sub(mark.max(self.begun.load(SeqCst)));
        if self.lanes.matter() { self.lanes.elapsed(total, lanes) } else { total }
    }

    /// What the program has computed, in nanoseconds.
    pub(crate) fn computed(&self) -> u64 {
        super::clock_ns(ClockId::ProcessCPUTime).saturating_sub(self.ours.load(SeqCst))
    }

    fn run(&self, state: &mut State) {
        if state.running.is_none() {
            self.begin();
            state.running = Some(host_ns());
            // It is full only if the watch was woken 2^64 times.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// The process begins to run.
    fn begin(&self) {
        self.lanes.begin();
        self.begun.store(self.computed(), SeqCst);
    }

    /// Ends the round if all threads wait.
    fn try_end(&self, client: &Client, state: &mut State) -> bool {
        let Some(since) = state.running else { return true };
        if self.arriving.load(SeqCst) > 0 {
            return false;
        }
        let found = state.look(client);
        let waited = host_ns().saturating_sub(since);
        let outside = match found {
            Found::Inside => false,
            Found::Outside if !has_children() || waited > PATIENCE || state.family_sleeps(client) => true,
            Found::Running if waited > PATIENCE => true,
            Found::Outside | Found::Running => return false,
        };
        if self.arriving.load(SeqCst) > 0 {
            return false;
        }
        state.send(client, outside);
        true
    }

    /// The watch, on a thread of its own; it never returns.
    pub(crate) fn watch(&self, client: &Client, kick: &dyn Fn(Kick)) -> ! {
        self.enter().watch = Some(this_thread());
        let (mut look, mut used) = (LOOKS.0, 0);
        loop {
            self.listen(client, look);
            let mut state = self.state.lock().expect("no holder of this lock panics");
            state.kicks().for_each(kick);
            let quiet = self.try_end(client, &mut state);
            look = if quiet { LOOKS.0 } else { (2 * look).min(LOOKS.1) };
            drop(state);
            let now = super::clock_ns(ClockId::ThreadCPUTime);
            self.leave_out(now - std::mem::replace(&mut used, now));
        }
    }

    /// Waits: while the process runs `look` nanoseconds, else until it does or a pause is over.
    fn listen(&self, client: &Client, look: u64) {
        let (running, readers) = {
            let state = self.state.lock().expect("no holder of this lock panics");
            (state.running.is_some(), state.readers())
        };
        let mut fds: Vec<PollFd<'_>> =
            readers.iter().map(|(_, reader)| PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)).collect();
        if !running {
            fds.push(PollFd::new(&self.wake, PollFlags::IN));
        }
        let span = Timespec { tv_sec: 0, tv_nsec: look as i64 };
        let _ = rustix::event::poll(&mut fds, running.then_some(&span));
        let ready: Vec<bool> = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN)).collect();
        let _ = rustix::io::read(&self.wake, &mut [0; 8][..]);
        for ((thread, reader), _) in readers.iter().zip(ready).filter(|(_, ready)| *ready) {
            self.hear(client, *thread, reader);
        }
        if !running {
            // Whoever runs now mostly asks soon.
            let _ = rustix::event::poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: LOOKS.0 as i64 }));
        }
    }

    /// The driver has said that the thread's pause is over, unless the thread has taken the message itself.
    fn hear(&self, client: &Client, thread: ThreadId, reader: &Arc<dyn Wire>) {
        let mut state = self.state.lock().expect("no holder of this lock panics");
        let Some(pause) = state.paused.get_mut(&thread).filter(|pause| Arc::ptr_eq(&pause.reader, reader)) else {
            return;
        };
        let reply: Reply = FrameBuffer::default().read(&**reader).unwrap_or_else(|error| client.lost(&error));
        client.take_in(&reply);
        match pause.state {
            Paused::Left => drop(state.paused.remove(&thread)),
            _ => pause.state = Paused::Over,
        }
        if state.running.is_none() {
            self.begin();
        }
        state.running = Some(host_ns());
    }
}

impl State {
    fn collect(&mut self, speaker: Speaker<'_>) {
        let Speaker { writer, opens, ops } = speaker;
        // What the thread says now tells the driver that it went on.
        self.paused.retain(|thread, pause| *thread != this_thread() || pause.state != Paused::Left);
        let part = self.parts.entry(path()).or_insert(Part { writer, opens: None, ops: Vec::new() });
        part.opens = part.opens.take().or(opens.take());
        part.ops.extend(ops);
    }

    fn look(&mut self, client: &Client) -> Found {
        let ours = self.watch.into_iter().chain([this_thread()]);
        let skip = self.asking.iter().copied().chain(ours).collect();
        let kicked = |pause: &Pause| pause.state == Paused::Over && matches!(pause.kick, Kick::Signal(_));
        if self.paused.values().any(kicked) {
            return Found::Running;
        }
        // A child's messages count as coming from outside.
        let inside = if has_children() { BTreeSet::new() } else { self.paused.keys().copied().collect() };
        self.threads.look(&skip, &inside).unwrap_or_else(|error| client.blind(error))
    }

    /// Whether the children, too, only wait: for us, or for each other.
    fn family_sleeps(&mut self, client: &Client) -> bool {
        self.family.look().unwrap_or_else(|error| client.blind(error))
            && self.look(client) == Found::Outside
            && self.family.has_slept().unwrap_or_else(|error| client.blind(error))
    }

    /// Tells the driver what was said, and that nobody runs.
    fn send(&mut self, client: &Client, outside: bool) {
        let dictionary = client.take_dictionary();
        if !dictionary.is_empty() {
            client.write_main(&Batch { ops: vec![Op::Dictionary(dictionary)], ..Batch::default() });
        }
        let mut questions = 0;
        for part in std::mem::take(&mut self.parts).into_values() {
            questions += u32::from(part.ops.last().is_some_and(Op::asks));
            part.send(client);
        }
        let quiet = Some(Quiet { questions, outside });
        client.write_main(&Batch { opens_task: None, ops: Vec::new(), quiet });
        self.running = None;
    }

    fn kicks(&self) -> impl Iterator<Item = Kick> {
        self.paused.values().filter(|pause| pause.state == Paused::Over).map(|pause| pause.kick)
    }

    /// The wires that pauses' ends may come on.
    fn readers(&self) -> Vec<(ThreadId, Arc<dyn Wire>)> {
        let waits = self.paused.iter().filter(|(_, pause)| pause.state != Paused::Over);
        waits.map(|(thread, pause)| (*thread, pause.reader.clone())).collect()
    }
}

impl Part {
    fn send(self, client: &Client) {
        if let Some(opens) = self.opens {
            client.announce(opens);
        }
        // A frame ends with each long piece of operators: it has room for many, but not for any number.
        let mut rest = self.ops;
        while !rest.is_empty() {
            let piece = rest.iter().position(|op| matches!(op, Op::Operators(_)));
            let later = rest.split_off(piece.map_or(rest.len(), |at| at + 1));
            let batch = Batch { opens_task: None, ops: std::mem::replace(&mut rest, later), quiet: None };
            match &self.writer {
                None => client.write_main(&batch),
                Some(wire) => {
                    let mut frame = Vec::new();
                    frame::encode(&batch, &mut frame);
                    wire.write(&frame).unwrap_or_else(|error| client.lost(&error));
                }
            }
        }
    }
}

impl Client {
    /// The calling thread is about to start another one; returns what makes that one known once it runs ([`Client::begin_thread`]).
    pub fn starts_thread(&self) -> Vec<u32> {
        let child = CHILDREN.replace(CHILDREN.get() + 1);
        path().into_iter().chain([child]).collect()
    }

    /// From now on the process may have several threads. Returns whether it had one until now: then a watch must be made.
    pub fn begins_threads(&self) -> bool {
        let rounds = self.rounds();
        let first = !rounds.threaded.swap(true, SeqCst);
        if first {
            rounds.enter().running = Some(host_ns());
            rounds.begun.store(self.charged(), SeqCst);
        }
        first
    }

    /// The calling thread has just started; `path` is what [`Client::starts_thread`] said of it.
    pub fn begin_thread(&self, path: Vec<u32>) {
        PATH.set(Some(path));
        if let Some(capture) = self.capture() {
            capture.thread_started();
        }
    }

    /// Whether it matters which threads are of a library's pool.
    pub fn has_cores(&self) -> bool {
        self.rounds().lanes.matter()
    }

    /// The calling thread is one of a library's pool: it computes beside threads of Python, without the interpreter's lock.
    pub fn joins_pool(&self) {
        self.rounds().lanes.join(this_thread());
    }

    /// Whether the process has, or has had, more than one thread.
    pub fn has_threads(&self) -> bool {
        self.rounds().threaded()
    }

    /// Makes the calling thread the watch; `kick` ends a thread's sleep.
    pub fn watch(&self, kick: &dyn Fn(Kick)) -> ! {
        self.rounds().watch(self, kick)
    }
}

/// Of a thread that nobody was seen to start: its own number, behind all others.
fn path() -> Path {
    PATH.with_borrow_mut(|path| path.get_or_insert_with(|| vec![u32::MAX, this_thread() as u32]).clone())
}

pub(crate) fn this_thread() -> ThreadId {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether the process has children.
pub fn has_children() -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD))
}

fn host_ns() -> u64 {
    super::clock_ns(ClockId::Monotonic)
}

/// Whether an answer is the late end of a pause, which the thread has left long ago.
pub(crate) fn is_stale(answer: &Answer) -> bool {
    matches!(answer, Answer::Over)
}
