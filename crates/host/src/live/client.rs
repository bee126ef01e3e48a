//! Owns the rank's end: the calls of a live rank as messages to the driver, its rooms in the arena, and the measuring of its compute.
//!
//! It knows no Python (that is `uniference-py`) and decides nothing about the simulation (that is the engine, behind the driver).
//!
//! **What is charged.** Between `leave` and the next outermost `enter` the program computes, and the process's CPU time that passed
//! is charged to the task that enters; intra-operation threads count, host waits do not. Threads of one process take turns at the
//! interpreter's lock, so each is charged all that the process has used since it left, or since the process began to run if that is later:
//! what another thread computed meanwhile has kept it waiting. What any of them used for our work is left out.
//!
//! The CPU clock is a system call, and a blocking call enters and leaves twice. So within some microseconds of one reading the next is
//! taken from the monotonic clock, which is none: the thread has run all the time, as it has not blocked in a call of ours.

use super::arena::Arena;
use super::descriptors::lift;
use super::memory::{Kernel, Region, Window};
use super::processor::Visit;
use super::protocol::{self, Answer, Batch, Fetched, FrameBuffer, Hello, LocalHandle, Offset, Op, Quiet, Reply, Span};
use super::rounds::{self, Kick, Rounds, Speaker};
use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use uniference_sim::ids::{GroupId, GroupRank, Site};
use uniference_sim::program::{Call, CallOp, Collective, Mark, Outcome, POLL_COST, StoreOp, StoreValue};
use uniference_sim::time::{Bytes, SimDuration, SimTime};

/// A batch this long travels without a question, so that it does not grow without bound.
const LONGEST_BATCH: usize = 256;

/// For so long after a reading of the CPU clock the monotonic clock tells how it has gone on. A thread that the host takes off its
/// processor just then is charged wrongly by no more than this.
const TRUSTED_NS: u64 = 50_000;

/// What can go wrong for the program that calls.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The rank's part of the arena is taken.
    #[error(
        "rank {rank} cannot stage {bytes} bytes more: its part of the shared arena is full\nhint: wait for outstanding operations before issuing more"
    )]
    ArenaFull {
        /// Who.
        rank: u32,
        /// What was asked for.
        bytes: u64,
    },
    /// A child of the rank's process called.
    #[error(
        "a process that rank {rank} forked made a call of torch.distributed\nhint: only the rank's own process may communicate"
    )]
    Forked {
        /// Whose child.
        rank: u32,
    },
    /// The program has closed what it has not opened.
    #[error(
        "the program has closed the descriptors through which rank {rank} takes part in the run\nhint: close only what the program has opened itself, not every number, as os.closerange() does"
    )]
    Severed {
        /// Whose.
        rank: u32,
    },
    /// The first exchange failed.
    #[error("the rank cannot join the run: {0}")]
    Adopt(#[from] io::Error),
}

type Result<T> = std::result::Result<T, ClientError>;

/// A rank's connection to the driver. Any thread may call; each that does is a task of its own.
pub struct Client {
    id: u64,
    rank: u32,
    world_size: u32,
    process: Pid,
    measure: bool,
    started: AtomicBool,
    /// Process CPU time, in nanoseconds, up to which compute has been charged.
    charged: AtomicU64,
    tasks: AtomicU32,
    /// The main task's socket, on which new tasks are announced. Locked by whoever writes a frame to it.
    main: Mutex<UnixStream>,
    shared: Mutex<Shared>,
    window: Window,
    /// What `lookout` reads the threads' stacks from.
    stacks: OwnedFd,
    /// Where to wait for the driver.
    processor: Option<u32>,
    rounds: Rounds,
    /// The rank's clock at its last answer, in picoseconds.
    clock: AtomicU64,
}

/// What the tasks of a rank share.
struct Shared {
    arena: Arena,
    group_counts: BTreeMap<Vec<u32>, u32>,
    next_handle: LocalHandle,
    /// Operations known to be complete, with their data; until released.
    complete: BTreeMap<LocalHandle, Fetched>,
}

/// One thread's connection.
struct Link {
    client: u64,
    /// `None` on the main task: it writes to `Client::main`, under its lock.
    socket: Option<Arc<UnixStream>>,
    reader: Arc<UnixStream>,
    /// The driver's end, until the driver has been told of the task.
    opens: Option<UnixStream>,
    frames: FrameBuffer,
    batch: Vec<Op>,
    sites: BTreeMap<String, Site>,
    buffer: Vec<u8>,
}

/// What a thread has computed, and how deep it is in our work.
#[derive(Default)]
struct Account {
    client: u64,
    depth: u32,
    owed_ns: u64,
    /// The thread's own CPU time at the outermost `enter`, of several.
    entered_ns: u64,
    /// What `Rounds::computed` said at the outermost `leave`, of several.
    left_ns: u64,
    /// The last reading of the process's CPU clock, and of the monotonic one, if the thread has not blocked since.
    reading: Option<(u64, u64)>,
}

impl Account {
    /// The process's CPU time, in nanoseconds, where this thread is `alone` in it.
    fn process_cpu(&mut self, alone: bool) -> u64 {
        let now = clock_ns(ClockId::Monotonic);
        match self.reading {
            Some((cpu, at)) if alone && now.saturating_sub(at) < TRUSTED_NS => cpu + (now - at),
            _ => {
                let cpu = clock_ns(ClockId::ProcessCPUTime);
                self.reading = Some((cpu, now));
                cpu
            }
        }
    }
}

thread_local! {
    static LINKS: RefCell<Vec<Link>> = const { RefCell::new(Vec::new()) };
    static ACCOUNTS: RefCell<Vec<Account>> = const { RefCell::new(Vec::new()) };
}

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(0);

impl Client {
    /// Takes over `socket`, the calling thread being the rank's main task, and maps the arena that the driver's greeting brings.
    pub fn adopt(socket: UnixStream, rank: u32, world_size: u32) -> Result<Client> {
        let socket = UnixStream::from(lift(socket.into()));
        let mut frames = FrameBuffer::default();
        let mut fds = Vec::new();
        let hello: Hello = frames.read(&socket, &mut fds)?;
        let [file, stacks] = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
            let what = format!("the greeting came with {} descriptors", fds.len());
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        let arena = Arena::map(lift(file), hello.arena_bytes, hello.staging, hello.retain_bytes)?;
        let window = arena.window().clone();
        let client = Client {
            id: NEXT_CLIENT.fetch_add(1, Relaxed),
            rank,
            world_size,
            process: rustix::process::getpid(),
            measure: hello.measure,
            started: AtomicBool::new(false),
            charged: AtomicU64::new(0),
            tasks: AtomicU32::new(1),
            main: Mutex::new(lift(socket.as_fd().try_clone_to_owned()?).into()),
            shared: Mutex::new(Shared {
                arena,
                group_counts: BTreeMap::new(),
                next_handle: 0,
                complete: BTreeMap::new(),
            }),
            window,
            stacks: lift(stacks),
            processor: hello.processor,
            rounds: Rounds::new()?,
            clock: AtomicU64::new(0),
        };
        LINKS.with_borrow_mut(|links| links.push(Link::new(client.id, None, Arc::new(socket), frames)));
        Ok(client)
    }

    /// Which rank this is.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many there are.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Address and size of the mapped arena; it stays mapped as long as the client lives.
    pub fn arena(&self) -> (*mut u8, usize) {
        self.window.raw()
    }

    /// What the threads' stacks are to be written to at [`super::lookout::SIGNAL`].
    pub fn stacks(&self) -> BorrowedFd<'_> {
        self.stacks.as_fd()
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

    /// From here to the matching `leave` this thread does our work. Nests.
    pub fn enter(&self) {
        self.with_account(|account| {
            account.depth += 1;
            if account.depth == 1 && self.measures() {
                if self.rounds.threaded() {
                    account.owed_ns += self.rounds.computed_since(account.left_ns);
                    account.entered_ns = clock_ns(ClockId::ThreadCPUTime);
                    return;
                }
                let now = account.process_cpu(self.is_alone());
                account.owed_ns += now.saturating_sub(self.charged.fetch_max(now, Relaxed));
            }
        });
    }

    /// The program goes on.
    pub fn leave(&self) {
        self.with_account(|account| {
            account.depth = account.depth.checked_sub(1).expect("`leave` without `enter`");
            if account.depth == 0 && self.measures() {
                self.skip_own_work(account);
            }
        });
    }

    /// Leaves out of the account what this thread used since it entered (alone in the process: all that was used since).
    fn skip_own_work(&self, account: &mut Account) {
        if self.rounds.threaded() {
            if account.entered_ns > 0 {
                self.rounds.leave_out(clock_ns(ClockId::ThreadCPUTime).saturating_sub(account.entered_ns));
            }
            account.left_ns = self.rounds.computed();
        } else {
            self.charged.store(account.process_cpu(self.is_alone()), Relaxed);
        }
    }

    /// Process CPU time up to which compute has been charged, while the process has one thread.
    pub(super) fn charged(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// Whether the process has one thread only.
    fn is_alone(&self) -> bool {
        self.tasks.load(Relaxed) == 1 && !self.rounds.threaded()
    }

    fn measures(&self) -> bool {
        self.measure && self.started.load(Relaxed)
    }

    /// The rank's clock, and for how long it has computed.
    pub fn now(&self) -> Result<(SimTime, SimDuration)> {
        match self.ask(Op::Now)? {
            Answer::Now(now, computed) => Ok((now, computed)),
            other => unexpected("Now", &other),
        }
    }

    /// The rank's clock at its last answer, which costs nothing.
    pub fn last_now(&self) -> SimTime {
        SimTime::from_ps(self.clock.load(Relaxed))
    }

    /// Whether the calling thread is between `enter` and `leave`, or is about to end: then the program sees no call of the clock.
    pub fn is_inside(&self) -> bool {
        let depth = |accounts: &RefCell<Vec<Account>>| {
            let accounts = accounts.try_borrow().ok()?;
            Some(accounts.iter().any(|account| account.client == self.id && account.depth > 0))
        };
        !self.started.load(Relaxed) || ACCOUNTS.try_with(depth).ok().flatten().unwrap_or(true)
    }

    /// The calling thread, of several, sleeps until `asleep` returns, which `kick` makes it do when `span` of virtual time is over. Returns
    /// what `asleep` has returned, and whether the time was up.
    pub fn pause<T>(&self, span: Span, kick: Kick, asleep: impl FnOnce() -> T) -> Result<(T, bool)> {
        {
            let _ours = self.ours();
            self.push(Op::Pause(span))?;
            self.with_link(|client, link| {
                let reader = link.reader.clone();
                client.rounds.pause(link.speaker(), reader, kick);
                Ok(())
            })?;
        }
        let result = asleep();
        Ok((result, self.rounds.end_pause()))
    }

    /// Sleeps in virtual time.
    pub fn sleep(&self, span: Span) -> Result<()> {
        self.ask(Op::Sleep(span)).map(drop)
    }

    /// Opens or closes a named range.
    pub fn mark(&self, mark: Mark) -> Result<()> {
        let _ours = self.ours();
        self.push(Op::Mark(mark))
    }

    /// The number of the process group of these ranks, in this order; each call names a new group.
    pub fn group(&self, ranks: Vec<u32>) -> Result<GroupId> {
        let sequence = {
            let mut shared = self.shared();
            let count = shared.group_counts.entry(ranks.clone()).or_default();
            std::mem::replace(count, *count + 1)
        };
        match self.ask(Op::Group { ranks, sequence })? {
            Answer::Group(group) => Ok(GroupId(group)),
            other => unexpected("Group", &other),
        }
    }

    /// Copies an input into fresh room; returns its offset in the arena.
    fn stage(&self, input: &[Region]) -> Result<Offset> {
        let bytes = input.iter().map(Region::bytes).sum();
        let offset = self.shared().arena.allocate(bytes).ok_or(ClientError::ArenaFull { rank: self.rank, bytes })?;
        self.window.write(offset, input);
        Ok(offset)
    }

    /// Issues a collective with its input, if it contributes one.
    pub fn collective(
        &self,
        group: GroupId,
        op: Collective,
        input: Option<&[Region]>,
        site: &str,
    ) -> Result<LocalHandle> {
        self.issue(Call { group, op: CallOp::Collective(op) }, input, site)
    }

    /// Issues a send of `input`.
    pub fn send(&self, group: GroupId, to: GroupRank, tag: u64, input: &[Region], site: &str) -> Result<LocalHandle> {
        let bytes = Bytes(input.iter().map(Region::bytes).sum());
        self.issue(Call { group, op: CallOp::Send { to, tag, bytes } }, Some(input), site)
    }

    /// Issues a receive.
    pub fn recv(
        &self,
        group: GroupId,
        from: Option<GroupRank>,
        tag: u64,
        bytes: Bytes,
        site: &str,
    ) -> Result<LocalHandle> {
        self.issue(Call { group, op: CallOp::Recv { from, tag, bytes } }, None, site)
    }

    fn issue(&self, call: Call, input: Option<&[Region]>, site: &str) -> Result<LocalHandle> {
        let _ours = self.ours();
        let staged = input.map(|input| self.stage(input)).transpose()?;
        let handle = {
            let mut shared = self.shared();
            let next = shared.next_handle.checked_add(1).expect("more than 2^32 operations of one rank");
            std::mem::replace(&mut shared.next_handle, next)
        };
        let site = self.site(site)?;
        self.push(Op::Issue { handle, call, staged, site })?;
        // Another thread may wait for this one next: it must not wait in this thread's batch.
        if !self.is_alone() { self.flush().map(|()| handle) } else { Ok(handle) }
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
        match self.ask(Op::Wait { handles: open, any, timeout, site })? {
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
    pub fn deliver(&self, handle: LocalHandle, output: &[Region]) -> Result<Option<u32>> {
        let known = self.shared().complete.remove(&handle);
        let known = known.unwrap_or_else(|| panic!("operation {handle} is not complete"));
        let kernel = known.kernel.and_then(|(op, dtype)| Kernel::of(op, dtype));
        if let Some(kernel) = kernel.filter(|_| !known.folds.is_empty()) {
            self.window.fold(&known.folds, kernel);
            self.folded(handle)?;
        }
        // Whoever receives nothing may name a tensor all the same, as the root of a broadcast does.
        if !known.pieces.is_empty() {
            self.window.read(&known.pieces, output, kernel);
        }
        self.with_link(|client, link| link.push(client, Op::Release(handle)))?;
        Ok(known.peer)
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

    /// Closes the connections of a group, as far as others are concerned.
    pub fn close(&self, group: GroupId) -> Result<()> {
        let _ours = self.ours();
        self.push(Op::Close(group.0))
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

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no holder of this lock panics")
    }

    fn ours(&self) -> Ours<'_> {
        self.enter();
        Ours(self)
    }

    fn site(&self, line: &str) -> Result<Site> {
        self.with_link(|_, link| Ok(link.site(line)))
    }

    /// Puts `op` into the batch, behind what the program has computed so far.
    fn push(&self, op: Op) -> Result<()> {
        let owed = self.with_account(|account| std::mem::take(&mut account.owed_ns));
        self.with_link(|client, link| {
            if owed > 0 {
                link.push(client, Op::Compute(SimDuration::from_ns(owed)))?;
            }
            link.push(client, op)
        })
    }

    fn flush(&self) -> Result<()> {
        self.with_link(|client, link| link.send(client))
    }

    fn send_now(&self, op: Op) -> Result<()> {
        self.with_link(|client, link| link.push(client, op).and_then(|()| link.send(client)))
    }

    fn ask(&self, question: Op) -> Result<Answer> {
        let _ours = self.ours();
        self.push(question)?;
        self.with_account(|account| account.reading = None);
        let reply = self.with_link(|client, link| {
            if client.rounds.threaded() {
                client.refuse_in_fork()?;
                client.rounds.ask(client, link.speaker());
                return Ok(link.read(client));
            }
            let _there = client.processor.and_then(Visit::begin);
            link.write(client, Some(Quiet { questions: 1, outside: false }))?;
            Ok(link.read(client))
        })?;
        if self.rounds.threaded() {
            self.rounds.answered();
        }
        Ok(reply.answer)
    }

    /// Takes from a reply what is not its answer.
    pub(super) fn take_in(&self, reply: &Reply) {
        self.clock.store(reply.now.as_ps(), Relaxed);
        if !reply.freed.is_empty() {
            let mut shared = self.shared();
            reply.freed.iter().for_each(|offset| shared.arena.free(*offset));
        }
    }

    pub(super) fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    fn with_account<T>(&self, f: impl FnOnce(&mut Account) -> T) -> T {
        ACCOUNTS.with_borrow_mut(|accounts| {
            let at = accounts.iter().position(|account| account.client == self.id).unwrap_or_else(|| {
                accounts.push(Account { client: self.id, ..Account::default() });
                accounts.len() - 1
            });
            f(&mut accounts[at])
        })
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
        self.refuse_in_fork()?;
        let (ours, theirs) = UnixStream::pair()?;
        self.tasks.fetch_add(1, Relaxed);
        let ours = Arc::new(UnixStream::from(lift(ours.into())));
        let mut link = Link::new(self.id, Some(ours.clone()), ours, FrameBuffer::default());
        if self.rounds.threaded() {
            link.opens = Some(theirs);
        } else {
            self.write_main(&Batch { opens_task: true, ops: Vec::new(), quiet: None }, Some(theirs.as_fd()));
        }
        Ok(link)
    }

    /// Writes to the main task's socket.
    pub(super) fn write_main(&self, batch: &Batch, fd: Option<BorrowedFd<'_>>) {
        let mut frame = Vec::new();
        protocol::encode(batch, &mut frame);
        let main = self.main.lock().expect("no holder of this lock panics");
        protocol::write_with_fds(&main, &frame, fd.as_slice()).unwrap_or_else(|error| self.lost(&error));
    }

    /// The connection is of no use any more, where no error can be returned.
    pub(super) fn lost(&self, error: &io::Error) -> ! {
        if !is_severed(error) {
            never()
        }
        eprintln!("{}", ClientError::Severed { rank: self.rank });
        std::process::abort()
    }

    fn refuse_in_fork(&self) -> Result<()> {
        if rustix::process::getpid() == self.process { Ok(()) } else { Err(ClientError::Forked { rank: self.rank }) }
    }
}

impl Link {
    fn new(client: u64, socket: Option<Arc<UnixStream>>, reader: Arc<UnixStream>, frames: FrameBuffer) -> Link {
        let (batch, sites, buffer) = (Vec::new(), BTreeMap::new(), Vec::new());
        Link { client, socket, reader, opens: None, frames, batch, sites, buffer }
    }

    fn speaker(&mut self) -> Speaker<'_> {
        Speaker { socket: self.socket.clone(), opens: &mut self.opens, ops: std::mem::take(&mut self.batch) }
    }

    fn site(&mut self, line: &str) -> Site {
        if let Some(site) = self.sites.get(line) {
            return *site;
        }
        let site = Site::from(self.sites.len());
        self.sites.insert(line.to_owned(), site);
        self.batch.push(Op::Site(line.to_owned()));
        site
    }

    fn push(&mut self, client: &Client, op: Op) -> Result<()> {
        self.batch.push(op);
        if self.batch.len() < LONGEST_BATCH { Ok(()) } else { self.send(client) }
    }

    /// Sends what needs no answer.
    fn send(&mut self, client: &Client) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        if client.rounds.threaded() {
            client.refuse_in_fork()?;
            client.rounds.say(self.speaker());
            return Ok(());
        }
        self.write(client, None)
    }

    fn write(&mut self, client: &Client, quiet: Option<Quiet>) -> Result<()> {
        client.refuse_in_fork()?;
        let batch = Batch { opens_task: false, ops: std::mem::take(&mut self.batch), quiet };
        self.buffer.clear();
        protocol::encode(&batch, &mut self.buffer);
        self.batch = batch.ops;
        self.batch.clear();
        let sent = match &self.socket {
            Some(socket) => protocol::write(socket, &self.buffer),
            None => protocol::write(&client.main.lock().expect("no holder of this lock panics"), &self.buffer),
        };
        match sent {
            Err(error) if is_severed(&error) => Err(ClientError::Severed { rank: client.rank }),
            Err(_) => never(),
            Ok(()) => Ok(()),
        }
    }

    fn read(&mut self, client: &Client) -> Reply {
        loop {
            let reply: Reply =
                self.frames.read(&self.reader, &mut Vec::new()).unwrap_or_else(|error| client.lost(&error));
            client.take_in(&reply);
            if !rounds::is_stale(&reply.answer) {
                return reply;
            }
        }
    }
}

/// While it lives, the thread does our work.
struct Ours<'a>(&'a Client);

impl Drop for Ours<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
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

pub(super) fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::super::arena::{self, Layout};
    use super::*;
    use std::thread;

    const LAYOUT: Layout = Layout { part: 1 << 20, total: 1 << 20, retain: 0 };

    /// A rank, and the driver's end of its socket.
    fn rank() -> (Client, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let file = arena::create(LAYOUT).unwrap();
        let hello = Hello {
            measure: true,
            arena_bytes: LAYOUT.total,
            staging: (0, LAYOUT.part),
            retain_bytes: 0,
            processor: None,
        };
        let mut frame = Vec::new();
        protocol::encode(&hello, &mut frame);
        protocol::write_with_fds(&ours, &frame, &[file.as_fd(), file.as_fd()]).unwrap();
        (Client::adopt(theirs, 0, 2).unwrap(), ours)
    }

    /// Answers each batch that asks with the next of `replies`; returns all that was said.
    fn driver(socket: UnixStream, replies: Vec<Reply>) -> thread::JoinHandle<Vec<Op>> {
        thread::spawn(move || {
            let (mut frames, mut said) = (FrameBuffer::default(), Vec::new());
            let mut replies = replies.into_iter();
            while let Ok(Batch { ops, .. }) = frames.read(&socket, &mut Vec::new()) {
                let asks = ops.last().is_some_and(Op::asks);
                said.extend(ops);
                if asks {
                    let mut frame = Vec::new();
                    protocol::encode(&replies.next().expect("as many replies as questions"), &mut frame);
                    protocol::write(&socket, &frame).unwrap();
                }
            }
            said
        })
    }

    fn reply(answer: Answer) -> Reply {
        Reply { now: SimTime::ZERO, freed: Vec::new(), answer }
    }

    fn now(ps: u64) -> Answer {
        Answer::Now(SimTime::from_ps(ps), SimDuration::ZERO)
    }

    fn barrier() -> Collective {
        let kind = uniference_sim::program::CollectiveKind::Barrier;
        let dtype = uniference_sim::program::DType::UInt8;
        Collective { kind, dtype, reduce: None, root: None, shape: uniference_sim::program::Shape::Even(0) }
    }

    fn end(client: Client) {
        LINKS.with_borrow_mut(|links| links.retain(|link| link.client != client.id));
    }

    #[test]
    fn an_asynchronous_operation_travels_with_the_next_question() {
        let (client, socket) = rank();
        let driver =
            driver(socket, vec![reply(Answer::Complete(vec![(0, Fetched::default()), (1, Fetched::default())]))]);
        let first = client.collective(GroupId(0), barrier(), None, "a.py:1").unwrap();
        let second = client.collective(GroupId(0), barrier(), None, "a.py:1").unwrap();
        assert_eq!(client.wait(&[first, second], None, false, "a.py:2").unwrap(), Some(vec![0, 1]));
        // What is known to be complete is not asked for again.
        assert_eq!(client.wait(&[second], None, false, "a.py:3").unwrap(), Some(vec![1]));
        end(client);
        let said = driver.join().unwrap();
        let issued = said.iter().filter(|op| matches!(op, Op::Issue { .. })).count();
        let lines: Vec<_> = said.iter().filter(|op| matches!(op, Op::Site(_))).collect();
        assert_eq!((issued, lines.len()), (2, 2));
    }

    #[test]
    fn only_the_programs_compute_is_charged() {
        let (client, socket) = rank();
        let driver = driver(socket, vec![reply(Answer::Go), reply(now(0)), reply(now(0))]);
        let spin = |ns: u64| {
            let until = clock_ns(ClockId::ThreadCPUTime) + ns;
            while clock_ns(ClockId::ThreadCPUTime) < until {}
        };
        spin(20_000_000);
        client.start().unwrap();
        spin(30_000_000);
        client.now().unwrap();
        client.enter();
        spin(40_000_000);
        client.leave();
        client.now().unwrap();
        end(client);
        let said = driver.join().unwrap();
        let computed =
            said.iter().filter_map(|op| if let Op::Compute(span) = op { Some(span.as_ps() / 1000) } else { None });
        let pieces: Vec<u64> = computed.collect();
        // 30 ms of the program, and what the other tests of this process use meanwhile; 20 ms before and 40 ms of ours are not in it.
        assert!(pieces[0] >= 30_000_000, "{pieces:?}");
    }

    #[test]
    fn a_full_arena_is_an_error_and_freed_rooms_come_back() {
        let (client, socket) = rank();
        let freed = Reply { freed: vec![0], ..reply(Answer::Go) };
        let driver = driver(socket, vec![freed]);
        let mut data = vec![0_u8; 1 << 20];
        // SAFETY: the data outlives both regions.
        #[allow(unsafe_code)]
        let (all, one) = unsafe {
            let address = data.as_mut_ptr() as usize;
            (Region::new(address, data.len()), Region::new(address, 1))
        };
        assert_eq!(client.stage(&[all]).unwrap(), 0);
        assert!(matches!(client.stage(&[one]), Err(ClientError::ArenaFull { rank: 0, bytes: 1 })));
        client.sleep(Span::For(SimDuration::from_us(1))).unwrap();
        assert_eq!(client.stage(&[all]).unwrap(), 0);
        end(client);
        driver.join().unwrap();
    }

    #[test]
    fn each_thread_is_a_task_of_its_own() {
        let (client, socket) = rank();
        let opened = thread::scope(|scope| {
            let opened = scope.spawn(move || {
                let (mut frames, mut fds) = (FrameBuffer::default(), Vec::new());
                let batch: Batch = frames.read(&socket, &mut fds).unwrap();
                assert!(batch.opens_task);
                let task = UnixStream::from(fds.pop().unwrap());
                let asked: Batch = FrameBuffer::default().read(&task, &mut Vec::new()).unwrap();
                let mut frame = Vec::new();
                protocol::encode(&reply(now(9)), &mut frame);
                protocol::write(&task, &frame).unwrap();
                asked.ops
            });
            assert_eq!(scope.spawn(|| client.now().unwrap().0.as_ps()).join().unwrap(), 9);
            opened.join().unwrap()
        });
        assert_eq!(opened, [Op::Now]);
    }
}
