//! Owns the order of a process with several threads: what they say is collected and sent to the driver as one round, once all of them
//! wait; and who of them sleeps in a call of the system that virtual time may end.
//!
//! When all threads wait is found by `quiescence`; what they say is `client`'s business.
//!
//! A process runs from an answer of the driver until it is quiet: each thread has asked, or waits for another one, or for something
//! outside. Only then may virtual time pass, and the driver gives the next answer. So threads that sleep side by side do so in virtual
//! time, and what a round holds does not depend on which thread was faster: it is sorted by who has started whom.
//!
//! **Other processes.** Those that the process starts, and those that these start, take part in its rounds: they are asleep when all of their threads
//! are, and what they ask for, threads of ours ask in their name (`relay`). In such a process itself there are no rounds: what a thread says goes to
//! the relay at once, and the watch only ends sleeps.
//!
//! A thread that asks looks whether all others wait, which they mostly do. For those that fall asleep without asking, one thread of ours,
//! the watch, keeps looking while the process runs.

use super::listening::{Listener, Listening};
use super::names::Pieces;
use super::{Client, ClientError};
use crate::lanes::{Lanes, Meter, Used};
use crate::quiescence::{Family, Found, ThreadId, Threads, started_at};
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
use uniference_sim::ids::OfProcess;
use uniference_sim::program::Mark;

/// How soon the watch looks again, at first and at most; nanoseconds.
const LOOKS: (u64, u64) = (50_000, 1_000_000);

/// How often who asks in the name of another process's thread looks, which mostly is about to fall asleep itself.
const LOOKS_OF_AN_ASKER: u32 = 8;

/// How long, in nanoseconds of the host, virtual time does not pass while a thread runs and does not ask. The thread may spin until another one,
/// which sleeps in virtual time, has done something.
const PATIENCE: u64 = 60_000_000_000;

/// The same while another process of the rank's computes: one may load a model, or be compiling.
const FAMILYS_PATIENCE: u64 = 10 * PATIENCE;

/// Who started a thread: numbers of children from the main thread on, whose own name is empty.
pub(crate) type Path = Vec<u32>;

thread_local! {
    static PATH: RefCell<Option<Path>> = const { RefCell::new(None) };
    static CHILDREN: Cell<u32> = const { Cell::new(0) };
    /// The path of the process in whose name the thread asks.
    static PROCESS: RefCell<Option<Path>> = const { RefCell::new(None) };
    /// The rank to which that process has moved, as far as the thread has said so.
    static RANK: Cell<Option<u32>> = const { Cell::new(None) };
    /// The thread makes what it keeps ([`Client::keep_books`]).
    static MAKES_BOOKS: Cell<bool> = const { Cell::new(false) };
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
    /// Other processes take part.
    family: AtomicBool,
    /// This is such a process: what its threads say goes to the relay at once.
    is_relative: bool,
    /// Whether somebody ends the sleeps of its threads.
    is_watched: AtomicBool,
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
    /// Threads of ours that ask in the name of others, or wait for such.
    serving: BTreeMap<ThreadId, Option<Arc<Listener>>>,
    /// Processes that take part, by their numbers: also such that go on as another program, which has not come yet, and of which nobody may be the parent
    /// any more.
    relatives: BTreeMap<i32, Relative>,
    /// What each of them has said of itself, by the path of its first thread.
    said: BTreeMap<Path, Said>,
    /// The paths of threads that are asked for.
    admitted: BTreeSet<Path>,
    /// Of how many a path was taken already.
    doubles: u32,
    /// By rank, which process communicates for it.
    communicate: BTreeMap<u32, Path>,
}

/// A process that takes part.
struct Relative {
    /// When it was started.
    started: u64,
    /// That of its first thread.
    path: Path,
}

/// What a process has said of itself.
#[derive(Default)]
struct Said {
    /// Its number among those of the rank, once it has named something by numbers of its own: in the order of their paths, whoever came first.
    number: Option<OfProcess>,
    /// What its operators name by number, as far as the driver has not been told.
    dictionary: Pieces,
    /// It has named ranges by number.
    has_ranges: bool,
    /// The rank that it has moved to.
    rank: Option<u32>,
}

/// What a thread has said since the process was quiet last.
struct Part {
    /// In whose name: the path of its process.
    process: Option<Path>,
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
            family: AtomicBool::new(false),
            is_relative: false,
            is_watched: AtomicBool::new(false),
        })
    }

    /// Of a process that a rank has started, whose calling thread was started as `path` says.
    pub(crate) fn of_relative(path: Path) -> io::Result<Rounds> {
        let rounds = Rounds::new(1)?;
        is_started(path);
        Ok(Rounds { threaded: AtomicBool::new(true), is_relative: true, ..rounds })
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
    pub(crate) fn say(&self, client: &Client, speaker: Speaker<'_>) {
        let mut state = self.enter();
        self.run(&mut state);
        state.collect(speaker);
        self.pass_on(client, &mut state);
    }

    /// The thread asks, and next waits for the answer.
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

    /// The thread has its answer and goes on.
    pub(crate) fn answered(&self) {
        let mut state = self.enter();
        state.asking.remove(&this_thread());
        state.threads.goes_on(this_thread());
        self.run(&mut state);
    }

    /// The thread is about to sleep in a call of the system, and has said for how long in `speaker`.
    pub(crate) fn pause(&self, client: &Client, speaker: Speaker<'_>, reader: Arc<dyn Wire>, kick: Kick) {
        let mut state = self.enter();
        self.run(&mut state);
        state.collect(speaker);
        state.paused.insert(this_thread(), Pause { reader, kick, state: Paused::Sleeping });
        if self.is_relative {
            self.wake_watch();
            self.pass_on(client, &mut state);
        }
    }

    /// The thread goes on; returns whether that is because its time was up.
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
            if self.is_relative {
                let mut frame = Vec::new();
                frame::encode(&Batch::default(), &mut frame);
                pause.reader.write(&frame).unwrap_or_else(|error| client.lost(&error));
            }
        }
        over
    }

    /// Whether virtual time has ended the pause of the calling thread, which has not left it.
    pub(crate) fn time_is_up(&self) -> bool {
        self.enter().paused.get(&this_thread()).is_some_and(|pause| pause.state == Paused::Over)
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
        let own = super::clock_ns(ClockId::ProcessCPUTime).saturating_sub(self.ours.load(SeqCst));
        if self.family.load(SeqCst) { own + self.lanes.relatives_computed() } else { own }
    }

    fn run(&self, state: &mut State) {
        if state.running.is_none() && !self.is_relative {
            self.begin();
            state.running = Some(host_ns());
            self.wake_watch();
        }
    }

    fn wake_watch(&self) {
        // It is full only if the watch was woken 2^64 times.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Sends what was said, if nobody else is to be waited for.
    fn pass_on(&self, client: &Client, state: &mut State) {
        if self.is_relative {
            state.send_parts(client);
        }
    }

    /// From now on other processes take part.
    pub(crate) fn begins_family(&self, meter: Meter) {
        self.lanes.measure_relatives(meter);
        let mut state = self.enter();
        state.threads.share();
        state.family.measure(meter.process);
        drop(state);
        self.family.store(true, SeqCst);
    }

    /// No round ends while a thread forks, until the copy takes part: both may seem to sleep meanwhile.
    pub(crate) fn holds(&self) {
        self.arriving.fetch_add(1, SeqCst);
    }

    /// The copy takes part, or has ended.
    pub(crate) fn lets_go(&self) {
        self.arriving.fetch_sub(1, SeqCst);
    }

    /// The calling thread is ours, and waits for those of other processes, or asks in the name of one of `process`, which it listens to.
    pub(crate) fn serves(&self, process: Option<(i32, Arc<Listener>)>) {
        let mut state = self.enter();
        state.serving.insert(this_thread(), process.as_ref().map(|(_, listener)| Arc::clone(listener)));
        if let Some((process, started)) = process.and_then(|(process, _)| Some((process, started_at(process)?))) {
            let known = state.relatives.get(&process).filter(|known| known.started == started);
            let first = known.map_or_else(path, |known| known.path.clone());
            state.relatives.insert(process, Relative { started, path: first.clone() });
            PROCESS.set(Some(first));
            self.lanes.meet(process);
        }
    }

    /// What operators of the process, in whose name the calling thread asks, name by number from here on.
    pub(crate) fn names(&self, at: u64, entries: Vec<u8>) {
        let mut state = self.enter();
        if let Some(process) = PROCESS.with_borrow(Clone::clone) {
            state.said.entry(process).or_default().dictionary.insert(at, entries);
        }
    }

    /// The process, in whose name the calling thread asks, moves to another rank.
    pub(crate) fn process_moves(&self, to: u32) {
        let mut state = self.enter();
        if let Some(process) = PROCESS.with_borrow(Clone::clone) {
            state.said.entry(process).or_default().rank = Some(to);
            RANK.set(Some(to));
        }
    }

    /// To which rank its process has moved since the calling thread was asked for this last, if it has.
    pub(crate) fn thread_moves(&self) -> Option<u32> {
        let state = self.enter();
        let to = PROCESS.with_borrow(|process| state.said.get(process.as_ref()?)?.rank);
        if RANK.replace(to) == to { None } else { to }
    }

    /// Whether the process, in whose name the calling thread asks, communicates for its rank, which is `own` unless it has moved. Who does so first
    /// is the only one.
    pub(crate) fn may_communicate(&self, own: u32, own_process_does: bool) -> bool {
        let mut state = self.enter();
        let Some(process) = PROCESS.with_borrow(Clone::clone) else { return false };
        let rank = state.said.get(&process).and_then(|said| said.rank).unwrap_or(own);
        if rank == own && own_process_does {
            return false;
        }
        *state.communicate.entry(rank).or_insert_with(|| process.clone()) == process
    }

    /// Whether the process, in whose name the calling thread asks, communicates for its rank.
    pub(crate) fn communicates(&self) -> bool {
        let state = self.enter();
        PROCESS
            .with_borrow(|process| process.iter().any(|process| state.communicate.values().any(|one| one == process)))
    }

    /// Whether another process communicates for this rank.
    pub(crate) fn another_communicates(&self, rank: u32) -> bool {
        self.threaded() && self.enter().communicate.contains_key(&rank)
    }

    /// The path of a thread that asks in the name of the one that says it is `path`: another one if it is taken, as where the C library has started
    /// the process.
    pub(crate) fn admits(&self, path: Path) -> Path {
        let mut state = self.enter();
        let mut own = path.clone();
        while !state.admitted.insert(own.clone()) {
            state.doubles += 1;
            own = path.iter().copied().chain([u32::MAX, state.doubles]).collect();
        }
        own
    }

    /// The calling thread does not ask in the name of another one any more.
    pub(crate) fn served(&self, path: &Path) {
        let mut state = self.enter();
        state.serving.remove(&this_thread());
        state.admitted.remove(path);
        // Nobody else may look again.
        self.run(&mut state);
    }

    /// The process begins to run.
    fn begin(&self) {
        self.lanes.begin();
        self.begun.store(self.computed(), SeqCst);
    }

    /// Ends the round if all threads wait.
    fn try_end(&self, client: &Client, state: &mut State) -> bool {
        if self.is_relative {
            state.send_parts(client);
            return true;
        }
        let Some(since) = state.running else { return true };
        if self.arriving.load(SeqCst) > 0 {
            return false;
        }
        let waited = host_ns().saturating_sub(since);
        // Mostly whoever ran does so still, and there is nobody else to look at.
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

    /// The watch, on a thread of its own; it never returns.
    pub(crate) fn watch(&self, client: &Client, kick: &dyn Fn(Kick)) -> ! {
        self.enter().watch = Some(this_thread());
        let (mut look, mut used, mut kicked) = (LOOKS.0, 0, 0);
        loop {
            self.listen(client, look);
            let mut state = self.state.lock().expect("no holder of this lock panics");
            if self.is_relative {
                // Signals that follow each other faster than a thread can take them keep it from going on.
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

    /// Waits: while the process runs `look` nanoseconds, else until it does or a pause is over.
    fn listen(&self, client: &Client, look: u64) {
        let (running, readers) = {
            let state = self.state.lock().expect("no holder of this lock panics");
            if self.is_relative && state.kicks().next().is_some() {
                // Whoever looks at the process sees it running until the thread does.
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
        if !running && !self.is_relative {
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
        // The thread may have taken it, gone on and paused again since the watch was told of it: nobody else reads while it pauses.
        if !is_readable(reader) {
            return;
        }
        let reply: Reply = FrameBuffer::default().read(&**reader).unwrap_or_else(|error| client.lost(&error));
        client.take_in(&reply);
        match pause.state {
            Paused::Left => drop(state.paused.remove(&thread)),
            _ => pause.state = Paused::Over,
        }
        if self.is_relative {
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
        // What the thread says now tells the driver that it went on.
        self.paused.retain(|thread, pause| *thread != this_thread() || pause.state != Paused::Left);
        let process = PROCESS.with_borrow(Clone::clone);
        let part = self.parts.entry(path()).or_insert(Part { process, writer, opens: None, ops: Vec::new() });
        part.opens = part.opens.take().or(opens.take());
        part.ops.extend(ops);
    }

    /// Whether another process takes part, or could.
    fn has_family(&mut self) -> bool {
        let is_there = |process: i32, relative: &Relative| {
            self.family.sleeps_on(process) || started_at(process) == Some(relative.started)
        };
        self.relatives.retain(|process, relative| is_there(*process, relative));
        !self.relatives.is_empty() || has_children()
    }

    /// What the threads do; and if the `relatives` are looked at, too, whether they only wait: for us, or for each other.
    fn look(&mut self, client: &Client, family: bool, relatives: bool) -> (Found, bool) {
        let kicked = |pause: &Pause| pause.state == Paused::Over && matches!(pause.kick, Kick::Signal(_));
        if self.paused.values().any(kicked) {
            return (Found::Running, false);
        }
        let listening = Listening::of(&self.serving);
        let ours = self.watch.into_iter().chain([this_thread()]).chain(listening.threads());
        let skip = self.asking.iter().copied().chain(ours).collect();
        // Messages of another process count as coming from outside.
        let paused = self.paused.keys().filter(|_| !family);
        let inside = paused.chain(self.serving.keys()).copied().collect();
        let others: BTreeSet<i32> = self.relatives.keys().copied().collect();
        let first = |all: &BTreeSet<ThreadId>| {
            // Those that serve start no process.
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

    /// Sends what was said, to those who hear it.
    fn send_parts(&mut self, client: &Client) {
        let mut parts = std::mem::take(&mut self.parts);
        if let Some(mut first) = parts.first_entry() {
            first.get_mut().ops.splice(0..0, Some(client.take_dictionary()).filter(Op::says_something));
        }
        parts.into_values().for_each(|part| part.send(client, None));
    }

    /// Tells the driver what was said, and that nobody runs.
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
        // The driver hears the wires in any order, and what parts name must be known once it has heard all.
        let quiet = Some(Quiet { parts: (parts.len() + usize::from(!names.is_empty())) as u32, outside });
        if parts.is_empty() || !names.is_empty() {
            client.write_main(&Batch { opens_task: None, ops: names, quiet });
        }
        parts.into_values().for_each(|part| part.send(client, quiet));
        self.running = None;
    }

    /// Gives a number to each process that now names something by numbers of its own.
    fn number_processes(&mut self, client: &Client) {
        let names_ranges =
            |part: &Part| part.ops.iter().any(|op| matches!(op, Op::Thread(_) | Op::Mark(Mark::Open { .. })));
        for process in self.parts.values().filter(|part| names_ranges(part)).filter_map(|part| part.process.clone()) {
            self.said.entry(process).or_default().has_ranges = true;
        }
        let mut next = self.said.values().filter(|said| said.number.is_some()).count() as u32 + 1;
        for said in self.said.values_mut().filter(|said| said.number.is_none()) {
            if said.has_ranges || !said.dictionary.is_empty() {
                let number = OfProcess::new(next);
                said.number = Some(number.unwrap_or_else(|| ClientError::Processes { rank: client.rank }.end()));
                next += 1;
            }
        }
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
    /// With the last of it goes `quiet`.
    fn send(self, client: &Client, quiet: Option<Quiet>) {
        if let Some(opens) = self.opens {
            client.announce(opens);
        }
        // A frame ends with each long piece of operators: it has room for many, but not for any number.
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

    /// Makes what the calling thread keeps until it ends, and what `others` makes, for which the C library asks the process's `malloc`: later calls, which
    /// may come from a program's own `malloc` that reads a clock, then ask it for nothing.
    pub fn keep_books(&self, others: impl FnOnce()) {
        MAKES_BOOKS.set(true);
        PATH.with(|_| ());
        PROCESS.with(|_| ());
        super::LINKS.with(|_| ());
        super::account::make();
        super::ranges::make();
        others();
        MAKES_BOOKS.set(false);
    }

    /// Whether the calling thread is in [`Client::keep_books`]: who reads the clock there is the process's `malloc`, which gets [`Client::last_now`].
    pub fn makes_books(&self) -> bool {
        MAKES_BOOKS.get()
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

    /// Whether a watch must be made before the first pause: in a process that a rank has started, which mostly needs none.
    pub fn lacks_watch(&self) -> bool {
        self.rounds().is_relative && !self.rounds().is_watched.swap(true, SeqCst)
    }

    /// Makes the calling thread the watch; `kick` ends a thread's sleep.
    pub fn watch(&self, kick: &dyn Fn(Kick)) -> ! {
        self.rounds().watch(self, kick)
    }
}

/// The calling thread was started as `path` says.
pub(crate) fn is_started(path: Path) {
    PATH.set(Some(path));
    CHILDREN.set(0);
}

/// Of a thread that nobody was seen to start: its own number, behind all others.
pub(crate) fn path() -> Path {
    PATH.with_borrow_mut(|path| path.get_or_insert_with(|| vec![u32::MAX, this_thread() as u32]).clone())
}

pub(crate) fn this_thread() -> ThreadId {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether there is something to be read, or never will be.
fn is_readable(reader: &Arc<dyn Wire>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)], Some(&now)) == Ok(1)
}

/// Whether the process has children.
fn has_children() -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_threads_have_one_path() {
        let rounds = Rounds::new(1).unwrap();
        let first = rounds.admits(vec![0, 1]);
        let second = rounds.admits(vec![0, 1]);
        assert_eq!(first, [0, 1]);
        // Behind the first one, and before what that one's process starts next.
        assert!(first < second && second != first && second < vec![0, 2]);
        rounds.serves(None);
        rounds.served(&first);
        assert_eq!(rounds.admits(vec![0, 1]), [0, 1]);
    }
}
