//! Owns the driver's side of a worker: the ends of its ranks' wires and outputs, and the transfer of data between both
//! arenas.
//!
//! `messages` defines the messages, and `uniference-lowering` interprets those of ranks. One thread receives from the
//! worker, another one sends to it, so the driver waits for neither. The driver itself sends only short answers while
//! the queue is empty, because waking the sending thread would need longer.

use super::files::Synced;
use super::inbox::{Inbox, Mailbox, lock};
use super::messages::{self, Down, LONGEST, PART, PULSE, Question, SILENCE, Told, Up, send, send_soon};
use crate::error::HostError;
use crate::live::zygote::News;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use uniference_client::processor::Visit;
use uniference_client::quiescence::Found;
use uniference_link::door::Joined;
use uniference_link::stream::{Receiver, Stream};
use uniference_protocol::memory::Window;
use uniference_protocol::messages::{Answer, Compute, Fetched, LocalHandle, Offset, OutputPart, Reply};
use uniference_protocol::wire::{Opening, Wire};

/// Time limit for an answer to a query about a process.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time limit for a worker to end its ranks.
const FAREWELL: Duration = Duration::from_secs(5);

/// Largest data in bytes of a short answer: fits a TLS record.
const SHORT: u64 = 8 << 10;

/// Alignment of blocks in bytes.
const ALIGNMENT: u64 = 64;

/// A message of a worker.
pub(crate) enum BoardNews {
    /// News of the worker's zygote.
    Zygote(News),
    /// A rank's reduction, carried out in the driver's arena.
    Folded { rank: u32, task: u32, handle: LocalHandle },
    /// The connection is lost; no further news follows.
    Lost(String),
}

/// A rank to be started on the worker.
pub(crate) struct Birth {
    /// The rank's number.
    pub(crate) rank: u32,
    /// Source of the durations of the rank's compute.
    pub(crate) compute: Compute,
    /// Number of the rank's threads that can compute at once.
    pub(crate) cores: u32,
    /// The rank's part of the arena.
    pub(crate) home: (Offset, u64),
    /// The order for the zygote.
    pub(crate) order: Vec<u8>,
    /// The rank's standard output and error.
    pub(crate) outputs: [File; 2],
}

/// A worker, while it participates in a run. Its processes end when this is dropped.
pub(crate) struct RemoteWorker {
    name: String,
    shared: Arc<Shared>,
    orders: Orders,
    threads: Vec<JoinHandle<()>>,
    questions: AtomicU64,
}

/// The queue from the driver's thread to the sending thread.
#[derive(Clone)]
struct Orders {
    queue: mpsc::Sender<Order>,
    shared: Arc<Shared>,
}

/// Items to send, in this order.
enum Order {
    Say(Down, Vec<u8>),
    Files(Vec<std::path::PathBuf>),
    Answer { rank: u32, task: u32, reply: Reply },
    End,
}

struct Shared {
    stream: Arc<Stream>,
    arena: Window,
    news: Inbox<BoardNews>,
    /// Mailboxes by rank and task.
    mailboxes: Mutex<BTreeMap<(u32, u32), Arc<Mailbox>>>,
    /// Outputs by rank, and whether the output is standard error.
    outputs: Mutex<BTreeMap<(u32, bool), File>>,
    told: Mutex<BTreeMap<u64, Told>>,
    tells: Condvar,
    /// Number of orders that are not carried out yet.
    ordered: AtomicUsize,
    /// The CPU to which the driver is bound, if any. The receiving thread is bound to it as well, because waking a
    /// thread on another CPU is slower.
    processor: OnceLock<u32>,
}

impl RemoteWorker {
    /// Prepares a worker for `ranks` ranks.
    pub(crate) fn start(
        joined: Joined,
        arena: Window,
        ranks: u32,
        modules: &[String],
        synced: &Synced,
    ) -> Result<RemoteWorker, HostError> {
        let (queue, ordered) = mpsc::channel();
        let news = Inbox::new().map_err(HostError::system("creating a queue for a worker's messages"))?;
        let Joined { name, stream, receiver, .. } = joined;
        let (mailboxes, outputs, told) = Default::default();
        let (tells, ordered_yet, processor) = Default::default();
        let shared =
            Arc::new(Shared { stream, arena, news, mailboxes, outputs, told, tells, ordered: ordered_yet, processor });
        let hears = thread::spawn({
            let shared = shared.clone();
            move || shared.hear(receiver)
        });
        let speaks = thread::spawn({
            let shared = shared.clone();
            move || shared.speak(&ordered)
        });
        let orders = Orders { queue, shared: shared.clone() };
        let board = RemoteWorker { name, shared, orders, threads: vec![hears, speaks], questions: AtomicU64::new(0) };
        if let Some(files) = &synced.files {
            board.orders.give(Order::Files(files.clone()));
        }
        let folder = synced.folder.as_os_str().as_bytes().to_vec();
        let synced = synced.files.is_some();
        board.orders.give(Order::Say(Down::Start { ranks, modules: modules.to_vec(), folder, synced }, Vec::new()));
        Ok(board)
    }

    /// Binds the receiving thread to the driver's CPU from now on.
    pub(crate) fn stay_on(&self, processor: u32) {
        let _ = self.shared.processor.set(processor);
    }

    /// The worker's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A descriptor that is readable when there is news.
    pub(crate) fn news(&self) -> BorrowedFd<'_> {
        self.shared.news.as_fd()
    }

    /// News since the last call.
    pub(crate) fn hear(&self) -> Vec<BoardNews> {
        self.shared.news.take_all()
    }

    /// Starts a rank; returns the wire of its main task.
    pub(crate) fn fork(&self, birth: Birth) -> Result<Arc<dyn Wire>, HostError> {
        let Birth { rank, compute, cores, home: (home, room), order, outputs } = birth;
        let mailbox = Arc::new(Mailbox::new().map_err(HostError::system("creating a queue for a rank's messages"))?);
        lock(&self.shared.mailboxes).insert((rank, 0), mailbox.clone());
        let [out, err] = outputs;
        lock(&self.shared.outputs).extend([((rank, false), out), ((rank, true), err)]);
        self.orders.give(Order::Say(Down::Fork { rank, compute, cores, home, room }, order));
        Ok(Arc::new(BoardWire { rank, task: 0, mailbox, orders: self.orders.clone() }))
    }

    /// Ends a rank's process.
    pub(crate) fn kill(&self, rank: u32) {
        self.orders.give(Order::Say(Down::Kill { rank }, Vec::new()));
    }

    /// Whether a task's connection was closed because its process ends, as far as known.
    pub(crate) fn is_exiting(&self, rank: u32, task: u32) -> bool {
        lock(&self.shared.mailboxes).get(&(rank, task)).is_none_or(|mailbox| mailbox.is_exiting())
    }

    /// Whether all threads of a rank's process wait, and for what.
    pub(crate) fn waits(&self, rank: u32) -> Found {
        match self.ask(Question::Waits { rank }) {
            Some(Told::WaitsInside) => Found::Inside,
            Some(Told::WaitsOutside) => Found::Outside,
            _ => Found::Running,
        }
    }

    /// Lines at which the threads of a rank's process are.
    pub(crate) fn stands(&self, rank: u32, undisturbed: bool, with_calls: bool) -> Vec<String> {
        match self.ask(Question::Stands { rank, undisturbed, with_calls }) {
            Some(Told::Stands(stands)) => stands,
            _ => Vec::new(),
        }
    }

    fn ask(&self, question: Question) -> Option<Told> {
        let number = self.questions.fetch_add(1, Relaxed);
        self.orders.give(Order::Say(Down::Ask { number, question }, Vec::new()));
        let told = lock(&self.shared.told);
        let wait = self.shared.tells.wait_timeout_while(told, PATIENCE, |told| !told.contains_key(&number));
        wait.ok()?.0.remove(&number)
    }
}

impl Orders {
    fn give(&self, order: Order) {
        self.shared.ordered.fetch_add(1, Relaxed);
        // The send fails only if the worker is lost, which the driver learns from another message.
        let _ = self.queue.send(order);
    }

    /// Answers a task, after all earlier orders.
    fn answer(&self, rank: u32, task: u32, frame: &[u8]) {
        let reply: Reply = postcard::from_bytes(&frame[4..]).expect("the driver writes replies");
        // Only this thread adds orders, so an empty queue stays empty.
        if self.shared.ordered.load(Acquire) > 0 || data_of(&reply) > SHORT {
            return self.give(Order::Answer { rank, task, reply });
        }
        if self.shared.answer(rank, task, reply, &mut Vec::new()).is_err() {
            // The receiving thread reports the reason.
            self.shared.stream.close();
        }
    }
}

/// Upper bound of the bytes of data in an answer.
fn data_of(reply: &Reply) -> u64 {
    let Answer::Complete(complete) = &reply.answer else { return 0 };
    let of = |fetched: &Fetched| {
        let folds: u64 = fetched.folds.iter().map(|(_, _, bytes)| 2 * bytes).sum();
        folds + fetched.pieces.iter().map(|piece| 2 * piece.bytes).sum::<u64>()
    };
    complete.iter().map(|(_, fetched)| of(fetched)).sum()
}

impl Drop for RemoteWorker {
    fn drop(&mut self) {
        self.orders.give(Order::End);
        let deadline = Instant::now() + FAREWELL;
        while self.threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        self.shared.stream.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Receives from the worker until the connection ends.
    fn hear(&self, mut receiver: Receiver) {
        let mut visit = None;
        let ended = loop {
            visit = visit.or_else(|| self.processor.get().map(|processor| Visit::begin(*processor)));
            match receiver.receive(LONGEST, SILENCE) {
                Ok(Some(message)) => {
                    if let Err(error) = messages::parse(message).and_then(|(up, behind)| self.take(up, behind)) {
                        break error.to_string();
                    }
                }
                Ok(None) => break "it has closed the connection".to_owned(),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    break format!("nothing was heard of it for {} s", SILENCE.as_secs());
                }
                Err(error) => break error.to_string(),
            }
        };
        self.stream.close();
        lock(&self.outputs).clear();
        lock(&self.mailboxes).values().for_each(|mailbox| mailbox.close(true));
        self.news.push(BoardNews::Lost(ended));
    }

    fn take(&self, up: Up, behind: &[u8]) -> io::Result<()> {
        match up {
            Up::News => self.news.push(BoardNews::Zygote(messages::read_news(behind)?)),
            Up::Data { at } => {
                let end = at.checked_add(behind.len() as u64);
                if end.is_none_or(|end| end > self.arena.raw().1 as u64) {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "data outside of the arena"));
                }
                self.arena.store(at, behind);
            }
            Up::Frame { rank, task, opens } => {
                let mut mailboxes = lock(&self.mailboxes);
                if let Some(opened) = opens {
                    mailboxes.insert((rank, opened), Arc::new(Mailbox::new()?));
                }
                if let Some(mailbox) = mailboxes.get(&(rank, task)) {
                    mailbox.push(behind);
                }
            }
            Up::Closed { rank, task, exiting } => {
                if let Some(mailbox) = lock(&self.mailboxes).get(&(rank, task)) {
                    mailbox.close(exiting);
                }
            }
            Up::Output { rank, is_error } if behind.is_empty() => {
                drop(lock(&self.outputs).remove(&(rank, is_error)));
            }
            Up::Output { rank, is_error } => {
                let output = lock(&self.outputs).remove(&(rank, is_error));
                if let Some(mut output) = output {
                    // The write fails if the reader of the output no longer exists.
                    let _ = output.write_all(behind);
                    lock(&self.outputs).insert((rank, is_error), output);
                }
            }
            Up::Told { number, told } => {
                lock(&self.told).insert(number, told);
                self.tells.notify_all();
            }
            Up::Pulse => {}
        }
        Ok(())
    }

    /// Sends orders, and a sign of life in between.
    fn speak(&self, ordered: &mpsc::Receiver<Order>) {
        let mut buffer = Vec::new();
        loop {
            let order = ordered.recv_timeout(PULSE);
            let is_pulse = matches!(order, Err(RecvTimeoutError::Timeout));
            let said = match order {
                Err(RecvTimeoutError::Timeout) => send(&self.stream, &Down::Pulse, &[]),
                Ok(Order::Say(down, behind)) => send(&self.stream, &down, &behind),
                Ok(Order::Files(files)) => self.send_files(&files, &mut buffer),
                Ok(Order::Answer { rank, task, reply }) => self.answer(rank, task, reply, &mut buffer),
                Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => {
                    let _ = send(&self.stream, &Down::End, &[]);
                    return self.stream.finish();
                }
            };
            if !is_pulse {
                self.ordered.fetch_sub(1, Release);
            }
            if said.is_err() {
                // The receiving thread reports the reason.
                return self.stream.close();
            }
        }
    }

    fn send_files(&self, files: &[std::path::PathBuf], buffer: &mut Vec<u8>) -> io::Result<()> {
        for path in files {
            // If a file was removed in the meantime, the program itself reports the error.
            let Ok(mut file) = File::open(path) else { continue };
            let name = path.as_os_str().as_bytes();
            loop {
                buffer.clear();
                (&mut file).take(PART).read_to_end(buffer)?;
                send(&self.stream, &Down::File { path: name.to_vec() }, buffer)?;
                if (buffer.len() as u64) < PART {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sends an answer, after the data that it refers to.
    fn answer(&self, rank: u32, task: u32, mut reply: Reply, buffer: &mut Vec<u8>) -> io::Result<()> {
        match &mut reply.answer {
            Answer::Complete(complete) => {
                for (handle, fetched) in complete {
                    self.hand_over((rank, task, *handle), fetched, buffer)?;
                }
            }
            Answer::Ahead(_) => unreachable!("workers ask for no data ahead of an answer"),
            _ => {}
        }
        send(&self.stream, &Down::Reply { rank, task, reply }, &[])
    }

    /// Sends the data of an operation, and changes the offsets of `fetched` to offsets in the operation's block.
    fn hand_over(
        &self,
        (rank, task, handle): (u32, u32, LocalHandle),
        fetched: &mut Fetched,
        buffer: &mut Vec<u8>,
    ) -> io::Result<()> {
        if let (false, Some(kernel)) = (fetched.folds.is_empty(), fetched.kernel()) {
            // Reductions that need no torch kernel are done in the driver, which saves sending the operands.
            self.arena.fold(&std::mem::take(&mut fetched.folds), kernel);
            self.news.push(BoardNews::Folded { rank, task, handle });
        }
        let (parts, bytes, results) = if fetched.folds.is_empty() {
            let bytes = fetched.pieces.iter().map(|piece| piece.bytes).sum();
            let whole = (bytes > 0).then_some(OutputPart { offset: 0, bytes, other: None });
            let pieces = std::mem::replace(&mut fetched.pieces, whole.into_iter().collect());
            let mut at = 0;
            let place = |piece: OutputPart| {
                at += piece.bytes;
                (at - piece.bytes, piece)
            };
            (pieces.into_iter().map(place).collect(), bytes, Vec::new())
        } else {
            relocate(fetched)
        };
        if bytes == 0 {
            return Ok(());
        }
        send_soon(&self.stream, &Down::Landing { rank, handle, bytes, results }, &[])?;
        let mut parts: VecDeque<(u64, OutputPart)> = parts;
        while let Some((at, mut piece)) = parts.pop_front() {
            let part = OutputPart { bytes: piece.bytes.min(PART), ..piece };
            self.arena.load(&[part], fetched.kernel(), buffer);
            send_soon(&self.stream, &Down::Data { at }, buffer)?;
            piece.skip(part.bytes);
            if piece.bytes > 0 {
                parts.push_front((at + part.bytes, piece));
            }
        }
        Ok(())
    }
}

/// Pieces to send with their offsets in a block; the block's size; and the results that belong to the arena after the
/// reduction.
type Moves = (VecDeque<(u64, OutputPart)>, u64, Vec<(u64, Offset, u64)>);

/// Gathers all memory that a rank's reduction accesses, each byte once, and changes the offsets of `fetched`
/// accordingly.
fn relocate(fetched: &mut Fetched) -> Moves {
    let folds = fetched.folds.iter().flat_map(|(into, other, bytes)| [(*into, *bytes), (*other, *bytes)]);
    let pieces = fetched
        .pieces
        .iter()
        .flat_map(|piece| [Some(piece.offset), piece.other].into_iter().flatten().map(|offset| (offset, piece.bytes)));
    let mut ranges: Vec<(Offset, u64)> = folds.chain(pieces).filter(|(_, bytes)| *bytes > 0).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(Offset, Offset)> = Vec::new();
    for (start, bytes) in ranges {
        match merged.last_mut() {
            Some((_, end)) if *end >= start => *end = (*end).max(start + bytes),
            _ => merged.push((start, start + bytes)),
        }
    }
    // Elements keep their alignment.
    let mut size: u64 = 0;
    let mut places = Vec::new();
    for (start, end) in merged {
        let at = size.next_multiple_of(ALIGNMENT) + start % ALIGNMENT;
        places.push((start, end, at));
        size = at + (end - start);
    }
    let place = |offset: Offset| {
        let of = places.iter().find(|(start, end, _)| (*start..*end).contains(&offset));
        of.map_or(0, |(start, _, at)| at + (offset - start))
    };
    let mut results: Vec<(u64, Offset, u64)> =
        fetched.folds.iter().map(|(into, _, bytes)| (place(*into), *into, *bytes)).collect();
    results.sort_unstable();
    results.dedup();
    for (into, other, _) in &mut fetched.folds {
        (*into, *other) = (place(*into), place(*other));
    }
    for piece in &mut fetched.pieces {
        piece.offset = place(piece.offset);
        piece.other = piece.other.map(&place);
    }
    let whole = |(start, end, at): &(Offset, Offset, u64)| {
        (*at, OutputPart { offset: *start, bytes: end - start, other: None })
    };
    (places.iter().map(whole).collect(), size, results)
}

/// The wire of a task on the worker: frames arrive in a mailbox, and answers go through the queue of orders.
struct BoardWire {
    rank: u32,
    task: u32,
    mailbox: Arc<Mailbox>,
    orders: Orders,
}

impl AsFd for BoardWire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mailbox.as_fd()
    }
}

impl Wire for BoardWire {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.orders.answer(self.rank, self.task, bytes);
        Ok(())
    }

    fn read(&self, buffer: &mut [u8], _: &mut VecDeque<OwnedFd>, wait: bool) -> io::Result<usize> {
        self.mailbox.read(buffer, wait)
    }

    fn open(&self) -> io::Result<(Arc<dyn Wire>, Opening)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn announce(&self, frame: &[u8], _: Opening) -> io::Result<()> {
        self.write(frame)
    }

    fn accept(&self, ticket: u64, _: &mut VecDeque<OwnedFd>) -> io::Result<Arc<dyn Wire>> {
        let task = u32::try_from(ticket).map_err(io::Error::other)?;
        let mailbox = lock(&self.orders.shared.mailboxes).get(&(self.rank, task)).cloned();
        let mailbox = mailbox.ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(BoardWire { rank: self.rank, task, mailbox, orders: self.orders.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reduces two adjacent operands of 8 bytes from 68 on and a third one at 200 into the first: both ranges keep
    /// their offset within 64 bytes, and the result goes back to 68.
    #[test]
    fn what_a_rank_combines_is_gathered_once_and_goes_back() {
        let pieces = vec![OutputPart { offset: 68, bytes: 8, other: None }];
        let folds = vec![(68, 76, 8), (68, 200, 8)];
        let mut fetched = Fetched { pieces, folds, ..Fetched::default() };
        let (moves, size, results) = relocate(&mut fetched);
        let piece = |offset, bytes| OutputPart { offset, bytes, other: None };
        assert_eq!(moves, [(4, piece(68, 16)), (72, piece(200, 8))]);
        assert_eq!((size, results), (80, vec![(4, 68, 8)]));
        assert_eq!((fetched.folds, fetched.pieces), (vec![(4, 12, 8), (4, 72, 8)], vec![piece(4, 8)]));
    }
}
