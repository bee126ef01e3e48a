//! Owns what a rank's process and the driver say to each other, and how it lies on a socket.
//!
//! What the words lead to is `client`'s and `driver`'s business; tensors never travel here, only where they lie in the arena.
//!
//! Each task (thread) of a rank has a stream socket of its own. A task writes batches of [`Op`]s; only the last of a batch may ask
//! for an answer ([`Op::asks`]), and the task then reads exactly one [`Answer`]. So a blocking collective is one round trip, and an
//! asynchronous one is none: it travels with the next question. A frame is its length (u32, little endian) and a postcard value.

use super::memory::Kernel;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use uniference_sim::ids::Site;
use uniference_sim::program::{Call, DType, Mark, Outcome, ReduceOp, StoreOp, StoreValue};
use uniference_sim::time::{SimDuration, SimTime};

/// The name a rank itself gives to an operation, before the engine has numbered it.
pub type LocalHandle = u32;

/// An offset in the arena, in bytes.
pub type Offset = u64;

/// What a task says. Durations are virtual time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// The next line of this rank's table of lines: the n-th of these is `Site(n)`.
    Site(String),
    /// The program has computed for so long, as measured here.
    Compute(SimDuration),
    /// An operation of a process group starts.
    Issue {
        /// How the rank calls it.
        handle: LocalHandle,
        /// What.
        call: Call,
        /// Where its input was staged.
        staged: Option<Offset>,
        /// The input is there; else [`Op::Filled`] follows.
        filled: bool,
        /// The user's line.
        site: Site,
    },
    /// A named range opens or closes.
    Mark(Mark),
    /// The input that was announced to be staged there now is. It counts at once, also from a task that waits.
    Filled(Offset),
    /// The data of an operation was fetched, or is not wanted.
    Release(LocalHandle),
    /// The folds of an operation, which this rank was picked for, are done.
    Folded(LocalHandle),
    /// The rank closes its connections of a group.
    Close(u32),
    /// The program has ended.
    Exit(Outcome),
    /// Asks for the first turn: [`Answer::Go`].
    Start,
    /// Asks to sleep: [`Answer::Go`].
    Sleep(Span),
    /// Asks for the clock: [`Answer::Now`].
    Now,
    /// Asks for [`Answer::Over`] after this long; another thread may let this one go on before.
    Pause(Span),
    /// Asks for a group's number: [`Answer::Group`].
    Group {
        /// Its members, in order.
        ranks: Vec<u32>,
        /// How many groups of just these this rank has named before.
        sequence: u32,
    },
    /// Asks which are complete, once all or any are: [`Answer::Complete`] or [`Answer::TimedOut`].
    Wait {
        /// Which.
        handles: Vec<LocalHandle>,
        /// Any of them will do.
        any: bool,
        /// At most so long.
        timeout: Option<SimDuration>,
        /// The data of the one operation may come before the answer: [`Answer::Ahead`].
        ahead: bool,
        /// The user's line.
        site: Site,
    },
    /// Asks the store: [`Answer::Store`] or [`Answer::TimedOut`].
    Store {
        /// What.
        operation: StoreOp,
        /// At most so long.
        timeout: Option<SimDuration>,
        /// The user's line.
        site: Site,
    },
}

impl Op {
    /// Whether the task now waits for an [`Answer`].
    pub fn asks(&self) -> bool {
        use Op::*;
        matches!(self, Start | Sleep(_) | Now | Pause(_) | Group { .. } | Wait { .. } | Store { .. })
    }
}

/// How long a task sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Span {
    /// So long.
    For(SimDuration),
    /// Until the rank's clock shows this.
    Until(SimTime),
}

impl Span {
    /// How long that is for a rank whose clock shows `now`.
    pub fn from(self, now: SimTime) -> SimDuration {
        match self {
            Span::For(span) => span,
            Span::Until(then) => then.max(now).since(now),
        }
    }
}

/// What a task writes at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// A new thread of the rank has come: its socket is attached to this frame (only on the main task's socket).
    pub opens_task: bool,
    /// In order.
    pub ops: Vec<Op>,
    /// No thread of the rank's process runs any more. Of a process with one thread that goes with each question; with several
    /// threads it comes by itself, on the main task's socket.
    pub quiet: Option<Quiet>,
}

/// All threads of a rank's process wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiet {
    /// How many questions they have asked since they were quiet last; some may still be on their way, on other sockets.
    pub questions: u32,
    /// A thread waits for something that does not come from the process itself.
    pub outside: bool,
}

/// What a task reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The rank's clock.
    pub now: SimTime,
    /// Staged regions of this rank that nobody needs any more.
    pub freed: Vec<Offset>,
    /// Communication of this rank that is complete or has failed, in the order in which it was, as far as no reply has said so before.
    pub over: Vec<LocalHandle>,
    /// The answer to the task's question.
    pub answer: Answer,
}

/// The answer to a question of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the questions say it
pub enum Answer {
    Go,
    /// The clock, and how long the rank has computed.
    Now(SimTime, SimDuration),
    /// A pause is over.
    Over,
    Group(u32),
    /// The complete ones in the order asked for, each with its data. A task that is told of folds does them before it asks for anything else.
    Complete(Vec<(LocalHandle, Fetched)>),
    /// No answer yet, but the data of the operation that the task waits for. It is told again with the answer.
    Ahead(Fetched),
    TimedOut,
    Store(StoreValue),
}

/// Where the data of a complete operation lies, for one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fetched {
    /// The output is these, one after the other.
    pub pieces: Vec<Piece>,
    /// (destination, source, bytes): what to combine, in this order, before the pieces are right.
    pub folds: Vec<(Offset, Offset, u64)>,
    /// How elements are combined, if [`Kernel`] can.
    pub kernel: Option<(ReduceOp, DType)>,
    /// Of a receive: the group rank of the sender.
    pub peer: Option<u32>,
    /// There is no data: this rank of the world has closed its end of a connection.
    pub closed_by: Option<u32>,
}

impl Fetched {
    /// The loop that combines its elements, if there is one.
    pub fn kernel(&self) -> Option<Kernel> {
        self.kernel.and_then(|(op, dtype)| Kernel::of(op, dtype))
    }
}

/// A part of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Where it lies.
    pub offset: Offset,
    /// How long it is.
    pub bytes: u64,
    /// It is what lies there combined with what lies here.
    pub other: Option<Offset>,
}

impl Piece {
    /// Leaves out its first `bytes`.
    pub fn skip(&mut self, bytes: u64) {
        self.offset += bytes;
        self.bytes -= bytes;
        self.other = self.other.map(|other| other + bytes);
    }

    /// Whether `next` continues it.
    pub fn joins(&self, next: &Piece) -> bool {
        let ends = |offset: Offset| offset + self.bytes;
        ends(self.offset) == next.offset && self.other.map(ends) == next.other
    }
}

/// The first frame on a rank's main socket, from the driver; the arena's descriptor is attached to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Whether the program's compute is measured and sent.
    pub measure: bool,
    /// How many of its threads compute at once on the rank's device; at least 1.
    pub cores: u32,
    /// Size of the whole arena.
    pub arena_bytes: u64,
    /// The part of it that this rank stages its inputs in: offset and size.
    pub staging: (Offset, u64),
    /// Of the staging part, how much may stay touched but unused before its pages are given back.
    pub retain_bytes: u64,
    /// The driver's processor, if it stays on one.
    pub processor: Option<u32>,
}

/// Longer frames are a bug, not data: tensors do not travel here.
const LONGEST_FRAME: usize = 1 << 30;

/// Appends `value` as a frame to `buffer`.
///
/// # Panics
/// If it is longer than 1 GiB.
pub fn encode(value: &impl Serialize, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    let filled = postcard::to_extend(value, std::mem::take(buffer)).expect("every protocol type has a postcard form");
    *buffer = filled;
    let len = buffer.len() - start - 4;
    assert!(len <= LONGEST_FRAME, "a frame of {len} bytes");
    buffer[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
}

/// What is read at once, at most.
const CHUNK: usize = 16 * 1024;

/// Bytes received, cut into frames, and the descriptors that came with them.
#[derive(Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    taken: usize,
    /// They come with the first byte of what they were sent with, whose frame may not be whole yet.
    fds: VecDeque<OwnedFd>,
    /// Kept, as clearing as much at every read takes longer than reading a frame.
    chunk: Vec<u8>,
}

impl FrameBuffer {
    /// The next whole frame, if it is there.
    pub fn next_frame<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let rest = &self.bytes[self.taken..];
        let Some((header, body)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*header) as usize;
        if len > LONGEST_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {len} bytes")));
        }
        let Some(body) = body.get(..len) else { return Ok(None) };
        let value = postcard::from_bytes(body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        self.taken += 4 + len;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        }
        Ok(Some(value))
    }

    /// The next descriptor that came along.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Reads what the socket has; also the descriptors that came along. Returns how many bytes; 0: the other end is closed.
    ///
    /// # Errors
    /// `EMFILE` if this process cannot have a descriptor that came along: it is lost.
    pub fn fill(&mut self, socket: &UnixStream, wait: bool) -> io::Result<usize> {
        self.chunk.resize(CHUNK, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut self.chunk)], &mut ancillary, flags)
        })?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                self.fds.extend(received);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(rustix::io::Errno::MFILE.into());
        }
        self.bytes.extend_from_slice(&self.chunk[..received.bytes]);
        Ok(received.bytes)
    }

    /// Blocks until a whole frame is there.
    pub fn read<T: DeserializeOwned>(&mut self, socket: &UnixStream) -> io::Result<T> {
        loop {
            if let Some(value) = self.next_frame()? {
                return Ok(value);
            }
            if self.fill(socket, true)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Writes all of `bytes`, with `fds` attached to the first of them.
pub fn write_with_fds(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "{} descriptors at once", fds.len());
    }
    let mut sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    while sent < bytes.len() {
        sent += rustix::io::retry_on_intr(|| rustix::net::send(socket, &bytes[sent..], SendFlags::NOSIGNAL))?;
    }
    Ok(())
}

/// Writes all of `bytes`.
pub fn write(socket: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += rustix::io::retry_on_intr(|| rustix::net::send(socket, &bytes[sent..], SendFlags::NOSIGNAL))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::thread;

    fn batch(ops: Vec<Op>) -> Batch {
        Batch { opens_task: false, ops, quiet: None }
    }

    #[test]
    fn frames_survive_any_cut() {
        let batches = [batch(vec![Op::Now]), batch(vec![]), batch(vec![Op::Site("a.py:1".into()), Op::Release(3)])];
        let mut bytes = Vec::new();
        batches.iter().for_each(|b| encode(b, &mut bytes));
        for chunk in 1..bytes.len() {
            let mut buffer = FrameBuffer::default();
            let mut seen = Vec::new();
            for part in bytes.chunks(chunk) {
                buffer.bytes.extend_from_slice(part);
                while let Some(b) = buffer.next_frame::<Batch>().unwrap() {
                    seen.push(b);
                }
            }
            assert_eq!(seen, batches);
        }
    }

    #[test]
    fn an_absurd_length_is_an_error_and_not_an_allocation() {
        let mut buffer = FrameBuffer { bytes: vec![0xff; 8], ..FrameBuffer::default() };
        assert_eq!(buffer.next_frame::<Batch>().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_frame_larger_than_the_socket_buffer_passes_with_its_descriptor() {
        let (here, there) = UnixStream::pair().unwrap();
        let sent = batch(vec![Op::Site("x".repeat(1 << 20))]);
        let mut bytes = Vec::new();
        encode(&sent, &mut bytes);
        let writer = thread::spawn(move || write_with_fds(&here, &bytes, &[here.as_fd()]).unwrap());
        let mut frames = FrameBuffer::default();
        let received: Batch = frames.read(&there).unwrap();
        writer.join().unwrap();
        assert_eq!((received, frames.take_fd().is_some(), frames.take_fd().is_some()), (sent, true, false));
    }

    #[test]
    fn a_descriptor_waits_for_its_frame() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut long, mut short) = (Vec::new(), Vec::new());
        encode(&batch(vec![Op::Site("x".repeat(CHUNK - 14))]), &mut long);
        encode(&Batch { opens_task: true, ops: Vec::new(), quiet: None }, &mut short);
        write(&here, &long).unwrap();
        write_with_fds(&here, &short, &[here.as_fd()]).unwrap();
        // One read ends inside the second frame.
        assert!(long.len() < CHUNK && CHUNK < long.len() + short.len());
        let mut frames = FrameBuffer::default();
        let opens: Vec<bool> = (0..2).map(|_| frames.read::<Batch>(&there).unwrap().opens_task).collect();
        assert_eq!((opens, frames.take_fd().is_some()), (vec![false, true], true));
    }

    #[test]
    fn a_closed_socket_is_the_end_of_file() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        let error = FrameBuffer::default().read::<Batch>(&there).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn only_questions_are_answered() {
        assert!(Op::Now.asks() && Op::Start.asks());
        assert!(!Op::Release(0).asks() && !Op::Exit(Outcome::Ok).asks());
    }
}
