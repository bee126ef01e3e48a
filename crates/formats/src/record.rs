//! Owns the program record on disk: what each rank asked for, in the order of asking, and what it takes to run it again.
//!
//! A file is a magic text with a version, then frames: length and checksum (32 bits each, little endian), then that many bytes of
//! postcard. The first frame is the header, the last one the end; a record without its end was cut short. How a record is run
//! again is the simulator's business.

use crate::report::Manifest;
use crate::sink::{Sink, WriteError};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::program::{Activity, Request};
use uniference_sim::time::Bytes;

/// What a record starts with; the last byte is the version of the format.
const MAGIC: [u8; 8] = *b"UNIREC\n\x01";
/// No frame is longer: the longest requests list a few numbers for each rank.
const LONGEST_FRAME: u32 = 1 << 28;
/// No world is larger.
const LARGEST_WORLD: u32 = 1 << 20;
/// No call moves more: 1 PiB, as in traces.
const LARGEST_SIZE: Bytes = Bytes(1 << 50);

#[derive(Serialize, Deserialize)]
enum Frame {
    Header(Header),
    Request(RankId, TaskId, Request),
    End { requests: u64, lines: Vec<String> },
}

/// What a record says before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// How many ranks there are.
    pub world_size: u32,
    /// The run that was recorded.
    pub manifest: Manifest,
}

/// Writes a record while the run goes on.
pub struct RecordWriter<W> {
    sink: Sink<W>,
    requests: u64,
}

impl<W: Write> RecordWriter<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W, header: Header) -> RecordWriter<W> {
        let mut writer = RecordWriter { sink: Sink::new("program record", out), requests: 0 };
        writer.sink.write(&MAGIC);
        writer.frame(&Frame::Header(header));
        writer
    }

    /// `task` of `rank` asks for `request`. Errors show in [`RecordWriter::failed`] and [`RecordWriter::finish`].
    pub fn request(&mut self, rank: RankId, task: TaskId, request: &Request) {
        self.requests += 1;
        self.frame(&Frame::Request(rank, task, request.clone()));
    }

    /// Has something been lost?
    pub fn failed(&self) -> bool {
        self.sink.failed()
    }

    /// Writes the end with the table of the program's lines (`path:line` by [`uniference_sim::ids::Site`]); gives back the writer.
    ///
    /// # Errors
    /// The first error of the writer, even if it happened long ago.
    pub fn finish(mut self, lines: Vec<String>) -> Result<W, WriteError> {
        self.frame(&Frame::End { requests: self.requests, lines });
        self.sink.finish()
    }

    fn frame(&mut self, frame: &Frame) {
        let bytes = postcard::to_stdvec(frame).expect("numbers and strings have a postcard form");
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST_FRAME);
        let length = length.unwrap_or_else(|| panic!("a frame of {} bytes", bytes.len()));
        self.sink.write(&length.to_le_bytes());
        self.sink.write(&checksum(&bytes).to_le_bytes());
        self.sink.write(&bytes);
    }
}

/// FNV-1a, 32 bits (Fowler, Noll, Vo).
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A file that is no whole record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is something else.
    #[error("this is not a program record\nhint: `uniference run` writes one into its output folder")]
    NotARecord,
    /// Another version of this program wrote it.
    #[error("this program record has version {0}, not {current}\nhint: replay it with the version of uniference that wrote it", current = MAGIC[7])]
    Version(u8),
    /// It stops before its end.
    #[error(
        "the program record ends after {requests} requests, before the programs do\nhint: the run was cut short, or the disk was full: run it again"
    )]
    CutShort {
        /// How many could be read.
        requests: u64,
    },
    /// Something in it was changed.
    #[error(
        "the program record is damaged after {requests} requests: {problem}\nhint: copy it again from where it came from, or run it again"
    )]
    Damaged {
        /// How many could be read.
        requests: u64,
        /// What does not fit.
        problem: String,
    },
    /// It cannot be read.
    #[error("the program record could not be read: {0}\nhint: check the file and the disk it is on")]
    Io(#[from] io::Error),
}

/// A record that is being read.
pub struct RecordReader<R> {
    input: R,
    header: Header,
    requests: u64,
    /// How many tasks each rank has had.
    tasks: Vec<u32>,
    lines: Option<Vec<String>>,
}

impl<R: Read> RecordReader<R> {
    /// Reads the header. `input` should be buffered.
    ///
    /// # Errors
    /// What is no record of this version.
    pub fn open(mut input: R) -> Result<RecordReader<R>, RecordError> {
        let mut magic = [0; MAGIC.len()];
        input.read_exact(&mut magic).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => RecordError::NotARecord,
            _ => RecordError::Io(error),
        })?;
        match magic {
            MAGIC => {}
            [name @ .., version] if name == MAGIC[..7] => return Err(RecordError::Version(version)),
            _ => return Err(RecordError::NotARecord),
        }
        match read_frame(&mut input, 0)? {
            Frame::Header(header) if header.world_size > LARGEST_WORLD => {
                Err(damaged(0, &format!("it has {} ranks", header.world_size)))
            }
            Frame::Header(header) => Ok(RecordReader { input, header, requests: 0, tasks: Vec::new(), lines: None }),
            _ => Err(damaged(0, "it does not start with a header")),
        }
    }

    /// What was recorded.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next request; `None` at the end.
    ///
    /// # Errors
    /// The record is cut short, damaged, or cannot be read.
    pub fn next_request(&mut self) -> Result<Option<(RankId, TaskId, Request)>, RecordError> {
        if self.lines.is_some() {
            return Ok(None);
        }
        match read_frame(&mut self.input, self.requests)? {
            Frame::Request(rank, task, request) => {
                self.check(rank, task)?;
                self.check_size(&request)?;
                self.requests += 1;
                Ok(Some((rank, task, request)))
            }
            Frame::End { requests, lines } if requests == self.requests => {
                if self.input.by_ref().take(1).read_to_end(&mut Vec::new())? > 0 {
                    return Err(damaged(self.requests, "there are bytes after its end"));
                }
                self.lines = Some(lines);
                Ok(None)
            }
            Frame::End { requests, .. } => Err(damaged(self.requests, &format!("it should have {requests}"))),
            Frame::Header(_) => Err(damaged(self.requests, "there is a second header")),
        }
    }

    /// Ranks are those of the world; a rank's tasks appear in the order of their numbers.
    fn check(&mut self, rank: RankId, task: TaskId) -> Result<(), RecordError> {
        if rank.0 >= self.header.world_size {
            return Err(damaged(self.requests, &format!("{rank} of {} ranks", self.header.world_size)));
        }
        if self.tasks.len() <= rank.index() {
            self.tasks.resize(rank.index() + 1, 1);
        }
        let tasks = &mut self.tasks[rank.index()];
        if task.0 > *tasks {
            return Err(damaged(self.requests, &format!("{rank} starts {task} before task {tasks}")));
        }
        *tasks = (*tasks).max(task.0 + 1);
        Ok(())
    }

    /// No program has moved so much: such sizes would only stop at the largest there is when they are added up.
    fn check_size(&self, request: &Request) -> Result<(), RecordError> {
        match request {
            Request::Issue { activity: Activity::Call(call), .. } if call.op.bytes() > LARGEST_SIZE => {
                Err(damaged(self.requests, &format!("a call of {} bytes", call.op.bytes().0)))
            }
            _ => Ok(()),
        }
    }

    /// A sequence of requests for each rank, as a replay wants them, and what is left when it is over.
    pub fn by_rank(self) -> (Vec<RankRecord<R>>, RestOfRecord<R>) {
        let world = self.header.world_size as usize;
        let shared = Rc::new(RefCell::new(Shared { reader: self, waiting: vec![VecDeque::new(); world], error: None }));
        let ranks = (0..world).map(|rank| RankRecord { rank, shared: Rc::clone(&shared) }).collect();
        (ranks, RestOfRecord { shared })
    }
}

/// One file, read on behalf of all ranks.
struct Shared<R> {
    reader: RecordReader<R>,
    /// Requests of ranks that have not come for them yet.
    waiting: Vec<VecDeque<(TaskId, Request)>>,
    error: Option<RecordError>,
}

impl<R: Read> Shared<R> {
    fn next_of(&mut self, rank: usize) -> Option<(TaskId, Request)> {
        while self.waiting[rank].is_empty() && self.error.is_none() {
            match self.reader.next_request() {
                Ok(Some((owner, task, request))) => self.waiting[owner.index()].push_back((task, request)),
                Ok(None) => break,
                Err(error) => self.error = Some(error),
            }
        }
        self.waiting[rank].pop_front()
    }
}

/// One rank's requests, in the order of asking. It ends early where the record does: [`RestOfRecord::finish`] says why.
pub struct RankRecord<R> {
    rank: usize,
    shared: Rc<RefCell<Shared<R>>>,
}

impl<R: Read> Iterator for RankRecord<R> {
    type Item = (TaskId, Request);

    fn next(&mut self) -> Option<(TaskId, Request)> {
        self.shared.borrow_mut().next_of(self.rank)
    }
}

/// What a replay leaves of a record.
pub struct RestOfRecord<R> {
    shared: Rc<RefCell<Shared<R>>>,
}

impl<R: Read> RestOfRecord<R> {
    /// Reads up to the end, and returns the table of the program's lines.
    ///
    /// # Errors
    /// Whatever kept the ranks' records from being whole.
    pub fn finish(self) -> Result<Vec<String>, RecordError> {
        let mut shared = self.shared.borrow_mut();
        if let Some(error) = shared.error.take() {
            return Err(error);
        }
        while shared.reader.next_request()?.is_some() {}
        Ok(shared.reader.lines.take().unwrap_or_default())
    }
}

fn damaged(requests: u64, problem: &str) -> RecordError {
    RecordError::Damaged { requests, problem: problem.to_owned() }
}

/// One frame; a file that ends before it or inside it was cut short.
fn read_frame(input: &mut impl Read, requests: u64) -> Result<Frame, RecordError> {
    let cut_short = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => RecordError::CutShort { requests },
        _ => RecordError::Io(error),
    };
    let mut word = [0; 4];
    input.read_exact(&mut word).map_err(cut_short)?;
    let length = u32::from_le_bytes(word);
    input.read_exact(&mut word).map_err(cut_short)?;
    let sum = u32::from_le_bytes(word);
    if length > LONGEST_FRAME {
        return Err(damaged(requests, &format!("a frame of {length} bytes")));
    }
    // Not read_exact: a damaged length must not reserve memory for bytes that are not there.
    let mut bytes = Vec::new();
    input.take(length.into()).read_to_end(&mut bytes)?;
    match bytes.len() == length as usize {
        false => Err(RecordError::CutShort { requests }),
        true if checksum(&bytes) != sum => Err(damaged(requests, "a checksum is wrong")),
        true => match postcard::take_from_bytes(&bytes) {
            Ok((frame, [])) => Ok(frame),
            Ok((_, rest)) => Err(damaged(requests, &format!("a frame has {} bytes too many", rest.len()))),
            Err(error) => Err(damaged(requests, &error.to_string())),
        },
    }
}

#[cfg(test)]
mod tests;
