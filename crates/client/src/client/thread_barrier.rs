//! Owns the rounds of a process with several threads: operations of all threads are collected and sent to the driver as
//! one round, once all threads wait. Also owns the record of threads that sleep in system calls that virtual time may
//! end.
//!
//! `quiescence` finds out whether all threads wait; `client` produces the operations.
//!
//! A process runs from an answer of the driver until it is quiet: each thread has made a request, or waits for another
//! thread or for an event outside of the process. Only then may virtual time pass, and the driver gives the next
//! answer. As a result, concurrent sleeps overlap in virtual time, and the contents of a round do not depend on which
//! thread was faster: a round is sorted by the tree of thread starts.
//!
//! **Other processes** (`processes`). Child processes, and their children, participate in the rounds: a child process
//! is asleep when all of its threads are, and relay threads of this process make its requests (`relay`). A child
//! process has no rounds of its own: operations of its threads go to the relay at once, and its watch thread only ends
//! sleeps.
//!
//! A thread that makes a request checks whether all other threads wait, which is usually so. Threads may also fall
//! asleep without a request; for these, a thread of the client, the *watch*, keeps checking while the process runs.

mod processes;

use super::Client;
use super::listening::{Listener, Listening};
use crate::lanes::{Lanes, Used};
use crate::quiescence::{Family, Found, ThreadId, Threads};
use processes::{Relative, Said};
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

/// Shortest and longest interval between two checks by the watch thread, in nanoseconds.
const LOOKS: (u64, u64) = (50_000, 1_000_000);

/// Number of checks by a relay thread: the thread for which it makes a request is usually about to fall asleep.
const LOOKS_OF_AN_ASKER: u32 = 8;

/// Real time in nanoseconds for which virtual time waits for a thread that runs without a request. Such a thread may be
/// spinning until another thread, which sleeps in virtual time, has acted.
const PATIENCE: u64 = 60_000_000_000;

/// Real time in nanoseconds for which virtual time waits while another process of the rank computes: such a process may
/// load a model, or compile.
const FAMILYS_PATIENCE: u64 = 10 * PATIENCE;

/// A thread's position in the tree of thread starts: numbers of children from the main thread on, whose path is empty.
pub(crate) type Path = Vec<u32>;

thread_local! {
    static PATH: RefCell<Option<Path>> = const { RefCell::new(None) };
    static CHILDREN: Cell<u32> = const { Cell::new(0) };
    /// Whether the thread allocates its thread-local state ([`Client::keep_books`]).
    static MAKES_BOOKS: Cell<bool> = const { Cell::new(false) };
}

/// The way to end a sleep in a system call. The function passed to [`Client::watch`] carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// A signal to the thread.
    Signal(i32),
    /// A broadcast to the condition variable at this address.
    Broadcast(usize),
}

/// The rounds of one process.
pub(crate) struct ThreadBarrier {
    threaded: AtomicBool,
    /// Number of threads that are about to send operations: they may sleep on the lock of this state, but must not
    /// count as waiting.
    arriving: AtomicU32,
    state: Mutex<State>,
    wake: OwnedFd,
    /// CPU time that threads have used for the client's own work, in nanoseconds.
    ours: AtomicU64,
    /// CPU time of the program when the process began to run, in nanoseconds.
    begun: AtomicU64,
    pub(crate) lanes: Lanes,
    /// Whether other processes participate.
    family: AtomicBool,
    /// Whether this is a child process, whose threads send operations to the relay at once.
    is_child: bool,
    /// Whether a watch ends the sleeps of the process's threads.
    is_watched: AtomicBool,
}

#[derive(Default)]
struct State {
    parts: BTreeMap<Path, Part>,
    /// Threads that wait for an answer.
    asking: BTreeSet<ThreadId>,
    paused: BTreeMap<ThreadId, Pause>,
    watch: Option<ThreadId>,
    /// Time since which the process runs; `None`: the process is quiet, and the driver knows.
    running: Option<u64>,
    threads: Threads,
    family: Family,
    /// Threads of the client that relay requests of other processes, or wait for connections from them.
    serving: BTreeMap<ThreadId, Option<Arc<Listener>>>,
    /// Participating processes, by process id. The map includes processes that are about to continue as another program
    /// by `exec`, and processes whose parent has ended.
    relatives: BTreeMap<i32, Relative>,
    /// State reported by each participating process, by the path of its first thread.
    said: BTreeMap<Path, Said>,
    /// Paths of threads for which relay threads ask.
    admitted: BTreeSet<Path>,
    /// Number of paths that were replaced because they were already in use.
    doubles: u32,
    /// The process that communicates for each rank.
    communicate: BTreeMap<u32, Path>,
}

/// Operations of a thread since the process was last quiet.
struct Part {
    /// The path of the process on whose behalf the thread speaks.
    process: Option<Path>,
    /// The thread's wire; `None`: the main task's.
    writer: Option<Arc<dyn Wire>>,
    /// The opening of a thread that the driver does not know yet.
    opens: Option<Opening>,
    ops: Vec<Op>,
}

/// A thread that sleeps in a system call.
struct Pause {
    reader: Arc<dyn Wire>,
    kick: Kick,
    state: Paused,
}

#[derive(Clone, Copy, PartialEq)]
enum Paused {
    Sleeping,
    /// Virtual time has ended the sleep.
    Over,
    /// The thread has continued, and the driver does not know yet.
    Left,
}

/// A thread's input to its part of a round.
pub(crate) struct Speaker<'a> {
    pub(crate) writer: Option<Arc<dyn Wire>>,
    pub(crate) opens: &'a mut Option<Opening>,
    pub(crate) ops: Vec<Op>,
}

impl ThreadBarrier {
    /// `cores`: number of threads that can compute at once on the rank's device.
    pub(crate) fn new(cores: u32) -> io::Result<ThreadBarrier> {
        PATH.set(Some(Path::new()));
        CHILDREN.set(0);
        let wake = lift(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(ThreadBarrier {
            threaded: AtomicBool::new(false),
            arriving: AtomicU32::new(0),
            state: Mutex::default(),
            wake,
            ours: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            lanes: Lanes::new(cores),
            family: AtomicBool::new(false),
            is_child: false,
            is_watched: AtomicBool::new(false),
        })
    }

    /// The rounds of a child process, whose calling thread has the path `path`.
    pub(crate) fn of_child(path: Path) -> io::Result<ThreadBarrier> {
        let barrier = ThreadBarrier::new(1)?;
        is_started(path);
        Ok(ThreadBarrier { threaded: AtomicBool::new(true), is_child: true, ..barrier })
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

    /// Adds operations of the thread that need no answer.
    pub(crate) fn say(&self, client: &Client, speaker: Speaker<'_>) {
        let mut state = self.enter();
        self.run(&mut state);
        state.collect(speaker);
        self.pass_on(client, &mut state);
    }

    /// Adds a request of the thread, which then waits for the answer.
    pub(crate) fn ask(&self, client: &Client, speaker: Speaker<'_>) {
        let mut state = self.enter();
        self.run(&mut state);
        state.collect(speaker);
        state.asking.insert(this_thread());
        let tries = if self.family.load(SeqCst) { LOOKS_OF_AN_ASKER } else { 1 };
        for _ in 0..tries {
            if self.try_end(client, &mut state) || self.arriving.load(SeqCst) > 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Marks the calling thread as running again, once it has an answer from the driver.
    pub(crate) fn answered(&self) {
        let mut state = self.enter();
        state.asking.remove(&this_thread());
        state.threads.goes_on(this_thread());
        self.run(&mut state);
    }

    /// Marks the thread as about to sleep in a system call; the request in `speaker` states the duration.
    pub(crate) fn pause(&self, client: &Client, speaker: Speaker<'_>, reader: Arc<dyn Wire>, kick: Kick) {
        let mut state = self.enter();
        self.run(&mut state);
        state.collect(speaker);
        state.paused.insert(this_thread(), Pause { reader, kick, state: Paused::Sleeping });
        if self.is_child {
            self.wake_watch();
            self.pass_on(client, &mut state);
        }
    }

    /// Marks the thread as running after a sleep; returns whether virtual time ended the sleep.
    pub(crate) fn end_pause(&self, client: &Client) -> bool {
        let mut state = self.enter();
        state.threads.goes_on(this_thread());
        self.run(&mut state);
        let withdrawn = state.parts.get_mut(&path()).is_some_and(|part| part.ops.pop_if(|op| op.asks()).is_some());
        let pause = state.paused.get_mut(&this_thread()).expect("it has paused");
        let over = pause.state == Paused::Over;
        if over || withdrawn {
            state.paused.remove(&this_thread());
        } else {
            pause.state = Paused::Left;
            if self.is_child {
                let mut frame = Vec::new();
                frame::encode(&Batch::default(), &mut frame);
                pause.reader.write(&frame).unwrap_or_else(|error| client.lost(&error));
            }
        }
        over
    }

    /// Whether virtual time has ended the sleep that the calling thread is still in.
    pub(crate) fn time_is_up(&self) -> bool {
        self.enter().paused.get(&this_thread()).is_some_and(|pause| pause.state == Paused::Over)
    }

    /// Sends all collected operations although threads run, because the process ends.
    pub(crate) fn end(&self, client: &Client) {
        self.enter().send(client, false);
    }

    /// Excludes CPU time of the client's own work from the program's CPU time.
    pub(crate) fn leave_out(&self, ns: u64) {
        self.ours.fetch_add(ns, SeqCst);
    }

    /// Duration on the rank's device of the program's compute since `mark`, or since the process began to run if that
    /// is later; nanoseconds. `lanes`: usage of pool threads at `mark`.
    pub(crate) fn computed_since(&self, mark: u64, lanes: &Used) -> u64 {
        let total = self.computed().saturating_sub(mark.max(self.begun.load(SeqCst)));
        if self.lanes.matter() { self.lanes.elapsed(total, lanes) } else { total }
    }

    /// CPU time of the program, in nanoseconds.
    pub(crate) fn computed(&self) -> u64 {
        let own = super::clock_ns(ClockId::ProcessCPUTime).saturating_sub(self.ours.load(SeqCst));
        if self.family.load(SeqCst) { own + self.lanes.relatives_computed() } else { own }
    }

    fn run(&self, state: &mut State) {
        if state.running.is_none() && !self.is_child {
            self.begin();
            state.running = Some(host_ns());
            self.wake_watch();
        }
    }

    fn wake_watch(&self) {
        // The counter overflows only after 2^64 wake-ups.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// In a child process, sends the collected operations: no other thread must be waited for.
    fn pass_on(&self, client: &Client, state: &mut State) {
        if self.is_child {
            state.send_parts(client);
        }
    }

    /// Marks the start of the process's running time.
    fn begin(&self) {
        self.lanes.begin();
        self.begun.store(self.computed(), SeqCst);
    }

    /// Ends the round if all threads wait.
    fn try_end(&self, client: &Client, state: &mut State) -> bool {
        if self.is_child {
            state.send_parts(client);
            return true;
        }
        let Some(since) = state.running else { return true };
        if self.arriving.load(SeqCst) > 0 {
            return false;
        }
        let waited = host_ns().saturating_sub(since);
        // The thread that the last check found running usually still runs; if so, no other thread needs to be checked.
        if waited <= PATIENCE && (state.threads.still_runs(&state.asking) || state.family.still_runs()) {
            return false;
        }
        let family = state.has_family();
        let (found, family_sleeps) = state.look(client, family, family && waited <= FAMILYS_PATIENCE);
        let outside = match found {
            Found::Running if waited > PATIENCE => true,
            Found::Running => return false,
            _ if !family_sleeps => return false,
            found => found == Found::Outside,
        };
        if self.arriving.load(SeqCst) > 0 {
            return false;
        }
        state.send(client, outside);
        true
    }

    /// Runs the watch, on a thread of its own; never returns.
    pub(crate) fn watch(&self, client: &Client, kick: &dyn Fn(Kick)) -> ! {
        self.enter().watch = Some(this_thread());
        let (mut look, mut used, mut kicked) = (LOOKS.0, 0, 0);
        loop {
            self.listen(client, look);
            let mut state = self.state.lock().expect("no holder of this lock panics");
            if self.is_child {
                // Signals in faster succession than a thread can handle them would keep the thread from continuing.
                let now = host_ns();
                if now.saturating_sub(kicked) >= LOOKS.0 && state.kicks().map(kick).count() > 0 {
                    kicked = now;
                }
                continue;
            }
            state.kicks().for_each(kick);
            let quiet = self.try_end(client, &mut state);
            look = if quiet { LOOKS.0 } else { (2 * look).min(LOOKS.1) };
            drop(state);
            let now = super::clock_ns(ClockId::ThreadCPUTime);
            self.leave_out(now - std::mem::replace(&mut used, now));
        }
    }

    /// Waits `look` nanoseconds while the process runs, otherwise until it runs or a sleep is over.
    fn listen(&self, client: &Client, look: u64) {
        let (running, readers) = {
            let state = self.state.lock().expect("no holder of this lock panics");
            if self.is_child && state.kicks().next().is_some() {
                // Other processes see this process as running until the thread whose sleep was ended really runs.
                drop(state);
                std::thread::yield_now();
                return;
            }
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
        if !running && !self.is_child {
            // A thread that has just started to run usually makes a request soon, so the watch sleeps briefly before it
            // checks.
            let _ = rustix::event::poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: LOOKS.0 as i64 }));
        }
    }

    /// Handles the driver's message that the thread's sleep is over, unless the thread has read the message itself.
    fn hear(&self, client: &Client, thread: ThreadId, reader: &Arc<dyn Wire>) {
        let mut state = self.state.lock().expect("no holder of this lock panics");
        let Some(pause) = state.paused.get_mut(&thread).filter(|pause| Arc::ptr_eq(&pause.reader, reader)) else {
            return;
        };
        // The thread may have read the message, continued and slept again since the watch was woken: only the watch
        // reads while the thread sleeps.
        if !is_readable(reader) {
            return;
        }
        let reply: Reply = FrameBuffer::default().read(&**reader).unwrap_or_else(|error| client.lost(&error));
        client.take_in(&reply);
        match pause.state {
            Paused::Left => drop(state.paused.remove(&thread)),
            _ => pause.state = Paused::Over,
        }
        if self.is_child {
            return;
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
        // The thread's next operations tell the driver that the thread has left the sleep.
        self.paused.retain(|thread, pause| *thread != this_thread() || pause.state != Paused::Left);
        let process = processes::of_this_thread();
        let part = self.parts.entry(path()).or_insert(Part { process, writer, opens: None, ops: Vec::new() });
        part.opens = part.opens.take().or(opens.take());
        part.ops.extend(ops);
    }

    /// State of the threads; and, if `relatives` are checked too, whether those only wait for this process or for each
    /// other.
    fn look(&mut self, client: &Client, family: bool, relatives: bool) -> (Found, bool) {
        let kicked = |pause: &Pause| pause.state == Paused::Over && matches!(pause.kick, Kick::Signal(_));
        if self.paused.values().any(kicked) {
            return (Found::Running, false);
        }
        let listening = Listening::of(&self.serving);
        let ours = self.watch.into_iter().chain([this_thread()]).chain(listening.threads());
        let skip = self.asking.iter().copied().chain(ours).collect();
        // A process with children may get messages from them: its paused threads count as waiting for the outside.
        let paused = self.paused.keys().filter(|_| !family);
        let inside = paused.chain(self.serving.keys()).copied().collect();
        let others: BTreeSet<i32> = self.relatives.keys().copied().collect();
        let first = |all: &BTreeSet<ThreadId>| {
            // Serving threads are left out, because they start no processes.
            let own = all.iter().copied().filter(|thread| !self.serving.contains_key(thread)).collect();
            if relatives { self.family.look(&own, &others) } else { Ok(true) }
        };
        let (mut found, looked) =
            self.threads.look_around(&skip, &inside, first).unwrap_or_else(|error| client.blind(error));
        let mut sleep = looked;
        if relatives && looked && found != Found::Running {
            sleep = self.family.has_slept().unwrap_or_else(|error| client.blind(error));
        }
        if !listening.still_waits() {
            found = Found::Running;
        }
        (found, sleep)
    }

    /// Sends the collected operations to the relays.
    fn send_parts(&mut self, client: &Client) {
        let mut parts = std::mem::take(&mut self.parts);
        if let Some(mut first) = parts.first_entry() {
            first.get_mut().ops.splice(0..0, Some(client.take_dictionary()).filter(Op::says_something));
        }
        parts.into_values().for_each(|part| part.send(client, None));
    }

    /// Sends the collected operations to the driver, and reports that no thread runs.
    fn send(&mut self, client: &Client, outside: bool) {
        self.number_processes(client);
        let mut parts = std::mem::take(&mut self.parts);
        for part in parts.values_mut() {
            let number = part.process.as_ref().and_then(|process| self.said.get(process)?.number);
            part.ops.splice(0..0, number.map(|process| Op::Process(process.number())));
        }
        let others = self.said.values_mut().filter_map(|said| Some(said.dictionary.take(said.number?)));
        let names: Vec<Op> =
            std::iter::once(client.take_dictionary()).chain(others).filter(Op::says_something).collect();
        // The driver reads the wires in any order, and must know the definitions that parts refer to once it has read
        // all.
        let quiet = Some(Quiet { parts: (parts.len() + usize::from(!names.is_empty())) as u32, outside });
        if parts.is_empty() || !names.is_empty() {
            client.write_main(&Batch { opens_task: None, ops: names, quiet });
        }
        parts.into_values().for_each(|part| part.send(client, quiet));
        self.running = None;
    }

    fn kicks(&self) -> impl Iterator<Item = Kick> {
        self.paused.values().filter(|pause| pause.state == Paused::Over).map(|pause| pause.kick)
    }

    /// The wires on which the ends of sleeps may arrive.
    fn readers(&self) -> Vec<(ThreadId, Arc<dyn Wire>)> {
        let waits = self.paused.iter().filter(|(_, pause)| pause.state != Paused::Over);
        waits.map(|(thread, pause)| (*thread, pause.reader.clone())).collect()
    }
}

impl Part {
    /// Sends the part; its last frame carries `quiet`.
    fn send(self, client: &Client, quiet: Option<Quiet>) {
        if let Some(opens) = self.opens {
            client.announce(opens);
        }
        // A frame ends after each long piece of operators, because a frame has space for many operations but not for
        // any number of long pieces.
        let mut rest = self.ops;
        let mut is_last = rest.is_empty() && quiet.is_none();
        while !is_last {
            let piece = rest.iter().position(|op| matches!(op, Op::Operators(_)));
            let later = rest.split_off(piece.map_or(rest.len(), |at| at + 1));
            is_last = later.is_empty();
            let ops = std::mem::replace(&mut rest, later);
            let batch = Batch { opens_task: None, ops, quiet: quiet.filter(|_| is_last) };
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
    /// Notes that the calling thread is about to start another one; returns the new thread's path for
    /// [`Client::begin_thread`].
    pub fn starts_thread(&self) -> Vec<u32> {
        let child = CHILDREN.replace(CHILDREN.get() + 1);
        path().into_iter().chain([child]).collect()
    }

    /// Notes that the process may have several threads from now on. Returns whether it had one until now: if so, a
    /// watch must be created.
    pub fn begins_threads(&self) -> bool {
        let rounds = self.barrier();
        let first = !rounds.threaded.swap(true, SeqCst);
        if first {
            rounds.enter().running = Some(host_ns());
            rounds.begun.store(self.charged(), SeqCst);
        }
        first
    }

    /// Allocates the calling thread's thread-local state, and the state that `others` creates, for which the C library
    /// calls the process's `malloc`. Later calls then allocate nothing; they may come from a program's own `malloc`
    /// that reads a clock.
    pub fn keep_books(&self, others: impl FnOnce()) {
        MAKES_BOOKS.set(true);
        PATH.with(|_| ());
        processes::make();
        super::LINKS.with(|_| ());
        super::account::make();
        super::ranges::make();
        others();
        MAKES_BOOKS.set(false);
    }

    /// Whether the calling thread is in [`Client::keep_books`]. If so, clock reads come from the process's `malloc` and
    /// return [`Client::last_now`].
    pub fn makes_books(&self) -> bool {
        MAKES_BOOKS.get()
    }

    /// Registers the calling thread, which has just started; `path` is the result of [`Client::starts_thread`].
    pub fn begin_thread(&self, path: Vec<u32>) {
        PATH.set(Some(path));
        if let Some(capture) = self.capture() {
            capture.thread_started();
        }
    }

    /// Whether threads of library pools must be known.
    pub fn has_cores(&self) -> bool {
        self.barrier().lanes.matter()
    }

    /// Registers the calling thread as a thread of a library's pool, which computes concurrently with Python threads,
    /// without the interpreter's lock.
    pub fn joins_pool(&self) {
        self.barrier().lanes.join(this_thread());
    }

    /// Whether the process has, or has had, more than one thread.
    pub fn has_threads(&self) -> bool {
        self.barrier().threaded()
    }

    /// Whether a watch must be created before the first sleep: in a child process, which usually needs none.
    pub fn lacks_watch(&self) -> bool {
        self.barrier().is_child && !self.barrier().is_watched.swap(true, SeqCst)
    }

    /// Makes the calling thread the watch; `kick` ends a thread's sleep.
    pub fn watch(&self, kick: &dyn Fn(Kick)) -> ! {
        self.barrier().watch(self, kick)
    }
}

/// Sets the calling thread's path.
pub(crate) fn is_started(path: Path) {
    PATH.set(Some(path));
    CHILDREN.set(0);
}

/// The calling thread's path. A thread whose start was not seen gets a path of its own, after all others.
pub(crate) fn path() -> Path {
    PATH.with_borrow_mut(|path| path.get_or_insert_with(|| vec![u32::MAX, this_thread() as u32]).clone())
}

pub(crate) fn this_thread() -> ThreadId {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether the wire has data, or has been closed.
fn is_readable(reader: &Arc<dyn Wire>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)], Some(&now)) == Ok(1)
}

fn host_ns() -> u64 {
    super::clock_ns(ClockId::Monotonic)
}

/// Whether an answer reports the end of a sleep that the thread has already left.
pub(crate) fn is_stale(answer: &Answer) -> bool {
    matches!(answer, Answer::Over)
}
