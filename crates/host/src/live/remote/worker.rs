//! Owns a worker's part in a run: it starts ranks as a driver does, and relays their messages, output and staged
//! inputs.
//!
//! The driver interprets the frames; the worker reads only operations with offsets of data. One thread receives from
//! the driver and forwards answers at once, the other one handles all other sources.

use super::files::{as_there, below, localize_word, name_as_there};
use super::inbox::{Inbox, lock};
use super::messages::{self, Down, LONGEST, PART, PULSE, Question, SILENCE, Told, Up, send, send_soon};
use crate::capacity;
use crate::error::HostError;
use crate::interrupt::{Interrupt, Interrupts};
use crate::live::connections::pipe;
use crate::live::process_probe::{ProcessProbe, is_exiting};
use crate::live::zygote::{self, News, Zygote};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Instant;
use tempfile::TempDir;
use uniference_client::processor::Visit;
use uniference_client::quiescence::Found;
use uniference_client::rooms::Rooms;
use uniference_link::stream::{Receiver, Stream};
use uniference_protocol::arena::{self, Layout, SharedArena};
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::hello::Hello;
use uniference_protocol::memory::{Tensors, Window};
use uniference_protocol::messages::{Answer, Batch, Compute, LocalHandle, Offset, Op, OutputPart, Reply, Welcome};
use uniference_protocol::wire::{UnixWire, Wire, write_with_fds};

/// Largest address space of the whole arena: half of a process's address space on CPUs with 39-bit virtual addresses.
const LARGEST: u64 = 256 << 30;

/// Memory in bytes that all ranks together may keep touched but unused.
const RETAIN: u64 = 64 << 20;

/// Number of bytes of an output that are read at once.
const CHUNK: usize = 64 << 10;

/// The outcome of a worker's part in a run.
#[derive(Debug)]
pub enum Served {
    /// The driver has reported the end of the run.
    Over,
    /// The connection was lost before the end of the run.
    Lost(String),
    /// The worker was interrupted.
    Interrupted(Interrupt),
}

/// Participates in a run until its end, with `python` as the interpreter of ranks. Its processes, and the files that it
/// received, are removed before it returns.
///
/// # Errors
/// If this machine lacks a resource for the run; other errors are reported to the driver.
pub fn serve(
    python: &Path,
    stream: Arc<Stream>,
    receiver: Receiver,
    interrupts: &Interrupts,
) -> Result<Served, HostError> {
    let system = HostError::system::<io::Error>;
    let control = Inbox::new().map_err(system("creating a queue for the driver's messages"))?;
    let shared = Arc::new(Shared {
        stream,
        control,
        arena: OnceLock::new(),
        processor: OnceLock::new(),
        ranks: Mutex::default(),
    });
    let hears = thread::spawn({
        let shared = shared.clone();
        move || shared.hear(receiver)
    });
    let lookout = ProcessProbe::new(zygote::package()).map_err(system("creating a file for stack traces"))?;
    let mut worker = Worker {
        python,
        shared: shared.clone(),
        lookout,
        zygote: None,
        stay: None,
        is_ready: false,
        births: Vec::new(),
        processes: BTreeMap::new(),
        root: None,
        folder: PathBuf::new(),
        said: Instant::now(),
    };
    let served = worker.run(interrupts);
    // The ranks end before the driver sees the end of the connection.
    drop(worker);
    shared.stream.finish();
    shared.stream.close();
    let _ = hears.join();
    served
}

/// State that both threads share.
struct Shared {
    stream: Arc<Stream>,
    control: Inbox<Heard>,
    arena: OnceLock<Arena>,
    /// The CPU to which the worker and its ranks are bound: waking a thread on another CPU is slower.
    processor: OnceLock<u32>,
    ranks: Mutex<BTreeMap<u32, Rank>>,
}

/// Messages that the receiving thread leaves to the other thread.
enum Heard {
    Down(Down, Vec<u8>),
    Ended(String),
}

/// The arena of this machine.
struct Arena {
    file: OwnedFd,
    tensors: SharedArena,
    window: Window,
    layout: Layout,
}

/// Memory for the data of a rank.
struct Rank {
    /// Wires of the rank's tasks, by number.
    wires: BTreeMap<u32, Arc<dyn Wire>>,
    /// Offset of the rank's staged inputs in the worker's arena; `home`: in the driver's arena.
    staging: Offset,
    home: Offset,
    /// Blocks for data of operations.
    rooms: Rooms,
    landings: BTreeMap<LocalHandle, Landing>,
    /// Destination of the data that arrives next.
    latest: Offset,
    /// Inputs that are being copied, with their sizes.
    filling: BTreeMap<Offset, u64>,
}

/// The block of an operation's data.
#[derive(Clone)]
struct Landing {
    at: Offset,
    /// Results of the rank's reduction: offset in the block, offset in the driver's arena, bytes.
    results: Vec<(u64, Offset, u64)>,
}

impl Shared {
    fn hear(&self, mut receiver: Receiver) {
        let (mut latest, mut visit) = (None, None);
        let ended = loop {
            visit = visit.or_else(|| self.processor.get().map(|processor| Visit::begin(*processor)));
            let heard = match receiver.receive(LONGEST, SILENCE) {
                Ok(Some(message)) => messages::parse(message).and_then(|(down, behind)| match down {
                    Down::Landing { rank, handle, bytes, results } => {
                        latest = Some(rank);
                        self.make_room(rank, handle, bytes, results)
                    }
                    Down::Data { at } => self.land(latest, at, behind),
                    Down::Reply { rank, task, reply } => {
                        self.answer(rank, task, reply);
                        Ok(())
                    }
                    Down::Pulse => Ok(()),
                    other => {
                        self.control.push(Heard::Down(other, behind.to_vec()));
                        Ok(())
                    }
                }),
                Ok(None) => break "the driver has closed the connection".to_owned(),
                Err(error) => Err(error),
            };
            match heard {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    break format!("nothing was heard of the driver for {} s", SILENCE.as_secs());
                }
                Err(error) => break error.to_string(),
            }
        };
        self.control.push(Heard::Ended(ended));
    }

    fn make_room(
        &self,
        rank: u32,
        handle: LocalHandle,
        bytes: u64,
        results: Vec<(u64, Offset, u64)>,
    ) -> io::Result<()> {
        let mut ranks = lock(&self.ranks);
        let rank = ranks.get_mut(&rank).ok_or_else(invalid)?;
        // An operation that is reported twice keeps its block.
        let at = match rank.landings.get(&handle) {
            Some(landing) => landing.at,
            None => rank.rooms.allocate(bytes).ok_or(io::ErrorKind::OutOfMemory)?,
        };
        rank.landings.insert(handle, Landing { at, results });
        rank.latest = at;
        Ok(())
    }

    fn land(&self, rank: Option<u32>, at: u64, bytes: &[u8]) -> io::Result<()> {
        let start = rank.and_then(|rank| Some(lock(&self.ranks).get(&rank)?.latest)).ok_or_else(invalid)?;
        let window = &self.arena.get().ok_or_else(invalid)?.window;
        let at = start.checked_add(at).ok_or_else(invalid)?;
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > window.raw().1 as u64) {
            return Err(invalid());
        }
        window.store(at, bytes);
        Ok(())
    }

    /// Forwards an answer, with offsets in this machine's arena.
    fn answer(&self, rank: u32, task: u32, mut reply: Reply) {
        let wire = {
            let ranks = lock(&self.ranks);
            let Some(rank) = ranks.get(&rank) else { return };
            for offset in &mut reply.freed {
                *offset = *offset - rank.home + rank.staging;
            }
            if let Answer::Complete(complete) = &mut reply.answer {
                for (handle, fetched) in complete {
                    let Some(Landing { at, .. }) = rank.landings.get(handle) else { continue };
                    for (into, other, _) in &mut fetched.folds {
                        (*into, *other) = (*into + at, *other + at);
                    }
                    for piece in &mut fetched.pieces {
                        piece.offset += at;
                        piece.other = piece.other.map(|other| other + at);
                    }
                }
            }
            rank.wires.get(&task).cloned()
        };
        let mut bytes = Vec::with_capacity(128);
        frame::encode(&reply, &mut bytes);
        // The write fails only if the rank no longer exists; the end of its process is reported separately.
        let _ = wire.map(|wire| wire.write(&bytes));
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the driver's message does not fit what it has said before")
}

/// A rank's process.
struct Process {
    /// The process id, once the process exists.
    pid: Option<i32>,
    tasks: Vec<Task>,
    /// Standard output and error, until they are closed.
    outputs: [Option<File>; 2],
    greeted: bool,
}

/// The worker's connection to a task.
struct Task {
    wire: Option<Arc<dyn Wire>>,
    frames: FrameBuffer,
}

/// A source of messages.
#[derive(Clone, Copy)]
enum Source {
    Signal,
    Driver,
    Zygote,
    Task(u32, usize),
    Output(u32, usize),
}

/// A rank that waits to be forked by the zygote.
struct Birth {
    fds: [OwnedFd; 3],
    order: Vec<u8>,
}

struct Worker<'a> {
    python: &'a Path,
    shared: Arc<Shared>,
    lookout: ProcessProbe,
    zygote: Option<Zygote>,
    stay: Option<Visit>,
    is_ready: bool,
    births: Vec<Birth>,
    processes: BTreeMap<u32, Process>,
    /// The folder that contains the driver's files.
    root: Option<TempDir>,
    /// The folder in which ranks run.
    folder: PathBuf,
    /// Time of the latest message to the driver.
    said: Instant,
}

impl Worker<'_> {
    fn run(&mut self, interrupts: &Interrupts) -> Result<Served, HostError> {
        loop {
            let sources = self.wait(interrupts)?;
            if self.said.elapsed() >= PULSE
                && let Err(error) = self.say(&Up::Pulse, &[])
            {
                return Ok(Served::Lost(error.to_string()));
            }
            for source in sources {
                if let Source::Signal = source {
                    if let Some(interrupt) = interrupts.take() {
                        return Ok(Served::Interrupted(interrupt));
                    }
                    continue;
                }
                match self.hear(source) {
                    Ok(None) => {}
                    Ok(Some(served)) => return Ok(served),
                    // The driver reports the resource that this machine lacks, and ends the run.
                    Err(Trouble::Host(error)) => self.report(&error),
                    Err(Trouble::Link(error)) => return Ok(Served::Lost(error.to_string())),
                }
            }
        }
    }

    fn wait(&self, interrupts: &Interrupts) -> Result<Vec<Source>, HostError> {
        let mut sources = vec![Source::Signal, Source::Driver];
        let mut fds = vec![interrupts.as_fd(), self.shared.control.as_fd()];
        if let Some(zygote) = &self.zygote {
            sources.push(Source::Zygote);
            fds.push(zygote.socket());
        }
        for (rank, process) in &self.processes {
            let tasks =
                process.tasks.iter().enumerate().filter_map(|(task, state)| {
                    state.wire.as_ref().map(|wire| (Source::Task(*rank, task), wire.as_fd()))
                });
            let outputs = process.outputs.iter().enumerate().filter_map(|(which, output)| {
                output.as_ref().map(|output| (Source::Output(*rank, which), output.as_fd()))
            });
            for (source, fd) in tasks.chain(outputs) {
                sources.push(source);
                fds.push(fd);
            }
        }
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|fd: &BorrowedFd<'_>| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let pulse = PULSE.try_into().expect("seconds fit");
        match poll(&mut polled, Some(&pulse)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(HostError::system("waiting for ranks")(error)),
        }
        Ok(sources
            .into_iter()
            .zip(&polled)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(source, _)| source)
            .collect())
    }

    fn hear(&mut self, source: Source) -> Result<Option<Served>, Trouble> {
        match source {
            Source::Signal => {}
            Source::Driver => {
                for heard in self.shared.control.take_all() {
                    match heard {
                        Heard::Ended(why) => return Ok(Some(Served::Lost(why))),
                        Heard::Down(Down::End, _) => return Ok(Some(Served::Over)),
                        Heard::Down(down, behind) => self.obey(down, behind)?,
                    }
                }
            }
            Source::Zygote => self.hear_zygote()?,
            Source::Task(rank, task) => self.hear_task(rank, task)?,
            Source::Output(rank, which) => drop(self.hear_output(rank, which)?),
        }
        Ok(None)
    }

    fn say(&mut self, up: &Up, behind: &[u8]) -> io::Result<()> {
        self.said = Instant::now();
        send(&self.shared.stream, up, behind)
    }

    /// Tells the driver why no ranks can be started.
    fn report(&mut self, error: &HostError) {
        let text = error.to_string();
        let (message, hint) = text.split_once("\nhint: ").unwrap_or((&text, "see the worker's output"));
        let news = News::Error { message: message.to_owned(), hint: hint.to_owned() };
        // A lost driver is detected by the receiving thread.
        let _ = self.say(&Up::News, &messages::write_news(&news));
    }

    fn obey(&mut self, down: Down, behind: Vec<u8>) -> Result<(), Trouble> {
        match down {
            Down::File { path } => self.receive_file(Path::new(OsStr::from_bytes(&path)), &behind)?,
            Down::Start { ranks, modules, folder, synced } => {
                self.prepare(ranks, &modules, Path::new(OsStr::from_bytes(&folder)), synced)?;
            }
            Down::Fork { rank, compute, cores, home, room } => {
                self.bear(rank, (compute, cores), (home, room), behind)?;
            }
            Down::Kill { rank } => {
                let pid = self.processes.get(&rank).and_then(|process| process.pid);
                if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                    // The kill fails if the process has ended on its own in the meantime.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            Down::Ask { number, question } => {
                let told = self.look(question);
                self.say(&Up::Told { number, told }, &[])?;
            }
            // The receiving thread has handled this message.
            Down::Landing { .. } | Down::Data { .. } | Down::Reply { .. } | Down::Pulse | Down::End => {}
        }
        Ok(())
    }

    /// The folder of the driver's files, if any were sent.
    fn root(&self) -> Option<&Path> {
        self.root.as_ref().map(TempDir::path)
    }

    fn make_root(&mut self) -> Result<PathBuf, HostError> {
        if self.root.is_none() {
            // Python names files in that folder by canonical paths.
            let folder = std::env::temp_dir();
            let folder = folder.canonicalize().unwrap_or(folder);
            let root = tempfile::Builder::new()
                .prefix("uniference-worker-")
                .permissions(Permissions::from_mode(0o700))
                .tempdir_in(folder);
            self.root = Some(root.map_err(HostError::system("creating a folder for the driver's files"))?);
        }
        Ok(self.root.as_ref().map(|root| root.path().to_owned()).unwrap_or_default())
    }

    fn receive_file(&mut self, path: &Path, part: &[u8]) -> Result<(), Trouble> {
        let root = self.make_root()?;
        let path = below(&root, path).ok_or_else(|| Trouble::Link(invalid()))?;
        let written = || {
            fs::create_dir_all(path.parent().unwrap_or(&root))?;
            OpenOptions::new().create(true).append(true).open(&path)?.write_all(part)
        };
        Ok(written().map_err(HostError::system::<io::Error>("writing a file of the driver's"))?)
    }

    /// Creates an arena for `ranks` ranks, and the zygote.
    fn prepare(&mut self, ranks: u32, modules: &[String], folder: &Path, synced: bool) -> Result<(), Trouble> {
        capacity::check_memory(ranks)?;
        self.folder = if synced {
            let root = self.make_root()?;
            let here = below(&root, folder).ok_or_else(|| Trouble::Link(invalid()))?;
            fs::create_dir_all(&here).map_err(HostError::system::<io::Error>("creating the program's folder"))?;
            here
        } else if folder.is_dir() {
            folder.to_owned()
        } else {
            return Err(Trouble::Host(HostError::Host {
                what: format!("there is no folder {} on this machine", folder.display()),
                hint: "copy the program there, or let the driver send it: run without --no-sync".to_owned(),
            }));
        };
        // Each rank has one part for its inputs and one for its outputs.
        let parts = 2 * u64::from(ranks.max(1));
        let part = (LARGEST / parts) & !((2 << 20) - 1);
        let layout = Layout { part, total: part * parts, retain: (RETAIN / parts).max(1 << 20) };
        let make = || {
            let file = arena::create(layout)?;
            let window = arena::map(&file, layout.total)?;
            let tensors = SharedArena::map(file.try_clone()?, layout.total)?;
            Ok(Arena { file, tensors, window, layout })
        };
        let arena = make().map_err(HostError::system::<io::Error>("creating the shared arena"))?;
        self.shared.arena.set(arena).map_err(|_| Trouble::Link(invalid()))?;
        self.zygote = Some(Zygote::start(self.python, modules, None)?);
        // Processes that were started earlier run on any CPU.
        self.stay = Visit::here();
        if let Some(stay) = &self.stay {
            let _ = self.shared.processor.set(stay.processor());
        }
        capacity::raise_descriptors()?;
        Ok(())
    }

    /// Prepares a rank's process, which starts once the zygote is ready.
    fn bear(
        &mut self,
        rank: u32,
        (compute, cores): (Compute, u32),
        (home, room): (Offset, u64),
        order: Vec<u8>,
    ) -> Result<(), Trouble> {
        let arena = self.shared.arena.get().ok_or_else(|| Trouble::Link(invalid()))?;
        let Layout { part, total, retain } = arena.layout;
        let staging = 2 * part * self.processes.len() as u64;
        let (socket, theirs) = UnixStream::pair().map_err(HostError::system("creating a rank's socket"))?;
        let welcome = Welcome {
            compute,
            cores,
            arena_bytes: total,
            staging: (staging, part.min(room)),
            retain_bytes: retain,
            processor: self.stay.as_ref().map(Visit::processor),
        };
        let mut bytes = Vec::new();
        frame::encode(&Hello::new(true), &mut bytes);
        frame::encode(&welcome, &mut bytes);
        write_with_fds(&socket, &bytes, &[arena.file.as_fd(), self.lookout.file()])
            .map_err(HostError::system("sending the welcome to a rank"))?;
        let wire: Arc<dyn Wire> = Arc::new(UnixWire::of_driver(socket));
        let known = Rank {
            wires: BTreeMap::from([(0, wire.clone())]),
            staging,
            home,
            rooms: Rooms::new(staging + part, part, retain),
            landings: BTreeMap::new(),
            latest: 0,
            filling: BTreeMap::new(),
        };
        lock(&self.shared.ranks).insert(rank, known);
        let ((out, their_out), (err, their_err)) = (pipe()?, pipe()?);
        let main = Task { wire: Some(wire), frames: FrameBuffer::default() };
        let process = Process { pid: None, tasks: vec![main], outputs: [Some(out), Some(err)], greeted: false };
        self.processes.insert(rank, process);
        let order = self.localize(&order)?;
        self.births.push(Birth { fds: [theirs.into(), their_out.into(), their_err.into()], order });
        self.fork()
    }

    /// The zygote's order with this machine's folder and files.
    fn localize(&self, order: &[u8]) -> Result<Vec<u8>, Trouble> {
        let parse = || {
            let mut order: serde_json::Value = serde_json::from_slice(order)?;
            order["cwd"] = self.folder.to_string_lossy().into();
            if let (Some(root), Some(words)) = (self.root(), order["argv"].as_array_mut()) {
                words.iter_mut().for_each(|word| localize_word(root, word));
            }
            serde_json::to_vec(&order)
        };
        let mut line = parse().map_err(|error| Trouble::Link(error.into()))?;
        line.push(b'\n');
        Ok(line)
    }

    fn fork(&mut self) -> Result<(), Trouble> {
        let Some(zygote) = self.zygote.as_mut().filter(|_| self.is_ready) else { return Ok(()) };
        for Birth { fds, order } in self.births.drain(..) {
            zygote.fork(&order, &[fds[0].as_fd(), fds[1].as_fd(), fds[2].as_fd()])?;
        }
        Ok(())
    }

    fn hear_zygote(&mut self) -> Result<(), Trouble> {
        let Some(zygote) = &mut self.zygote else { return Ok(()) };
        let heard = match zygote.hear() {
            Ok(heard) => heard,
            Err(error) => {
                // The zygote is removed, so that its end is reported only once.
                self.zygote = None;
                return Err(error.into());
            }
        };
        for news in heard {
            match news {
                News::Ready { .. } => {
                    self.is_ready = true;
                    self.fork()?;
                }
                News::Forked { rank, pid } => {
                    if let Some(process) = self.processes.get_mut(&rank) {
                        process.pid = Some(pid);
                    }
                }
                News::Exited { rank, .. } => self.hear_last_words(rank)?,
                News::Error { .. } => {}
            }
            if !matches!(news, News::Ready { .. }) {
                self.say(&Up::News, &messages::write_news(&news))?;
            }
        }
        Ok(())
    }

    /// Relays messages and output of a rank from before the end of its process.
    fn hear_last_words(&mut self, rank: u32) -> Result<(), Trouble> {
        let tasks = self.processes.get(&rank).map_or(0, |process| process.tasks.len());
        for task in 0..tasks {
            while self.processes[&rank].tasks[task].wire.as_ref().is_some_and(|wire| is_readable(wire.as_fd())) {
                self.hear_task(rank, task)?;
            }
        }
        for which in 0..2 {
            // Children of the process may keep the output open indefinitely.
            while self.processes[&rank].outputs[which].as_ref().is_some_and(|output| is_readable(output.as_fd()))
                && self.hear_output(rank, which)?
            {}
        }
        if let Some(process) = self.processes.get_mut(&rank) {
            process.pid = None;
        }
        Ok(())
    }

    /// Relays a rank's output. Returns whether more may follow.
    fn hear_output(&mut self, rank: u32, which: usize) -> Result<bool, Trouble> {
        let Some(process) = self.processes.get_mut(&rank) else { return Ok(false) };
        let Some(output) = &mut process.outputs[which] else { return Ok(false) };
        let mut chunk = vec![0; CHUNK];
        let count = match output.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(_) => 0,
        };
        if count == 0 {
            process.outputs[which] = None;
        }
        self.say(&Up::Output { rank, is_error: which == 1 }, &chunk[..count])?;
        Ok(count > 0)
    }

    fn hear_task(&mut self, rank: u32, task: usize) -> Result<(), Trouble> {
        let Some(process) = self.processes.get_mut(&rank) else { return Ok(()) };
        let Some(wire) = process.tasks[task].wire.clone() else { return Ok(()) };
        match process.tasks[task].frames.fill(&*wire, false) {
            Ok(count) if count > 0 => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            _ => {
                process.tasks[task].wire = None;
                let exiting = process.pid.is_none_or(is_exiting);
                if let Some(known) = lock(&self.shared.ranks).get_mut(&rank) {
                    known.wires.remove(&(task as u32));
                }
                return Ok(self.say(&Up::Closed { rank, task: task as u32, exiting }, &[])?);
            }
        }
        let broken = HostError::system::<io::Error>;
        if task == 0 && !process.greeted {
            let theirs = process.tasks[0].frames.next_frame::<Hello>();
            let Some(theirs) = theirs.map_err(broken("reading a rank's first frame"))? else { return Ok(()) };
            Hello::new(true).check(theirs).map_err(|why| HostError::Disagreement { rank, why })?;
            process.greeted = true;
        }
        while let Some(process) = self.processes.get_mut(&rank)
            && let Some(batch) = process.tasks[task].frames.next_frame().map_err(broken("reading a frame"))?
        {
            self.relay(rank, task, &*wire, batch)?;
        }
        Ok(())
    }

    /// Forwards a frame, after the data that it refers to.
    fn relay(&mut self, rank: u32, task: usize, wire: &dyn Wire, mut batch: Batch) -> Result<(), Trouble> {
        let mut opens = None;
        if let Some(ticket) = batch.opens_task
            && let Some(process) = self.processes.get_mut(&rank)
        {
            let opened = process.tasks[task].frames.accept(wire, ticket);
            let opened = opened.map_err(HostError::system::<io::Error>("taking the socket of a rank's thread"))?;
            let number = process.tasks.len() as u32;
            process.tasks.push(Task { wire: Some(opened.clone()), frames: FrameBuffer::default() });
            if let Some(known) = lock(&self.shared.ranks).get_mut(&rank) {
                known.wires.insert(number, opened);
            }
            opens = Some(number);
            batch.opens_task = Some(number.into());
        }
        name_as_there(self.root(), &mut batch.ops);
        for (at, to, bytes) in self.moves(rank, &mut batch.ops) {
            self.send_data(at, to, bytes)?;
        }
        let mut frame = Vec::with_capacity(128);
        frame::encode(&batch, &mut frame);
        Ok(self.say(&Up::Frame { rank, task: task as u32, opens }, &frame)?)
    }

    /// Data that must be in the driver's arena before `ops` are handled: offset here, offset there, bytes. Offsets in
    /// `ops` are changed to the driver's.
    fn moves(&self, rank: u32, ops: &mut [Op]) -> Vec<(Offset, Offset, u64)> {
        let mut moves = Vec::new();
        let mut ranks = lock(&self.shared.ranks);
        let Some(known) = ranks.get_mut(&rank) else { return moves };
        let (staging, home) = (known.staging, known.home);
        let there = |at: Offset| at - staging + home;
        for op in ops {
            match op {
                Op::Issue { staged: Some(room), filled, .. } => {
                    let at = room.at;
                    room.at = there(at);
                    match filled {
                        true => moves.push((at, room.at, room.bytes)),
                        false => drop(known.filling.insert(at, room.bytes)),
                    }
                }
                Op::Filled(room) => {
                    let at = *room;
                    *room = there(at);
                    moves.extend(known.filling.remove(&at).map(|bytes| (at, *room, bytes)));
                }
                Op::Folded(handle) => {
                    let landing = known.landings.get(handle);
                    let results = landing.iter().flat_map(|Landing { at, results }| {
                        results.iter().map(move |(from, to, bytes)| (at + from, *to, *bytes))
                    });
                    moves.extend(results);
                }
                Op::Release(handle) => {
                    let freed = known.landings.remove(handle).and_then(|landing| known.rooms.free(landing.at));
                    if let (Some((at, bytes)), Some(arena)) = (freed, self.shared.arena.get()) {
                        arena.tensors.forget(at, bytes);
                    }
                }
                // From a worker's view, data arrives with the answer, never ahead of it.
                Op::Wait { ahead, .. } => *ahead = false,
                _ => {}
            }
        }
        moves
    }

    fn send_data(&mut self, at: Offset, to: Offset, bytes: u64) -> Result<(), Trouble> {
        let window = self.shared.arena.get().ok_or_else(|| Trouble::Link(invalid()))?.window.clone();
        let (mut buffer, mut sent) = (Vec::new(), 0);
        while sent < bytes {
            let part = PART.min(bytes - sent);
            window.load(&[OutputPart { offset: at + sent, bytes: part, other: None }], None, &mut buffer);
            // Another message follows: the frame that refers to the data.
            send_soon(&self.shared.stream, &Up::Data { at: to + sent }, &buffer)?;
            sent += part;
        }
        Ok(())
    }

    fn look(&self, question: Question) -> Told {
        let pid = |rank| self.processes.get(&rank).and_then(|process: &Process| process.pid);
        match question {
            Question::Waits { rank } => match pid(rank).map(ProcessProbe::waits) {
                Some(Found::Inside) => Told::WaitsInside,
                Some(Found::Outside) => Told::WaitsOutside,
                Some(Found::Running) | None => Told::Runs,
            },
            Question::Stands { rank, undisturbed, with_calls } => {
                let stands = |pid| match undisturbed {
                    true => self.lookout.stands_undisturbed(pid),
                    false => self.lookout.stands(pid, with_calls),
                };
                let stands = pid(rank).map(stands).unwrap_or_default();
                Told::Stands(stands.iter().map(|stand| as_there(self.root(), stand)).collect())
            }
        }
    }
}

/// The reason why a worker cannot continue.
enum Trouble {
    /// The machine lacks a resource.
    Host(HostError),
    /// The connection to the driver failed.
    Link(io::Error),
}

impl From<HostError> for Trouble {
    fn from(error: HostError) -> Trouble {
        Trouble::Host(error)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Link(error)
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Default::default())).is_ok_and(|count| count > 0)
}
