//! Owns the program record on disk: the steps of each rank, and the data that a replay needs.
//!
//! A file is a magic text with a version, then frames: length and checksum (32 bits each, little endian), then that
//! many bytes of postcard. The first frame is the header. It is followed by blocks in the order of the run, each with
//! steps of one rank. The last frame is the end, with an index of the blocks; the file's last bytes are the offset of
//! this frame. Each rank's steps are therefore read independently, one block at a time, however far the ranks are
//! apart. A record without its end was cut short; its blocks are then found one after the other. Each rank's steps name
//! the program's lines before they use them.
//!
//! `schema` has the contents of frames, `write` and `index` the file's layout, and `version1` the layout of older
//! records. Replays belong to the simulator.

mod index;
mod schema;
mod version1;
mod write;

pub use write::RecordWriter;

use crate::operators::VERSION_11;
use crate::report::Manifest;
use std::cell::{Ref, RefCell};
use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;
use uniference_sim::ids::TaskId;
use uniference_sim::replay::RecordedStep;

/// First bytes of a record; a byte with the version of the format follows.
const MAGIC: [u8; 7] = *b"UNIREC\n";
/// The version that is written. Older versions are read, too.
const VERSION: u8 = 13;
/// The newest version of records whose operator streams have the older format.
const OLD_OPERATORS: u8 = 11;
/// Maximum length of a frame: the longest steps list a few numbers for each rank.
const LONGEST_FRAME: u32 = 1 << 28;
/// Length and checksum of a frame.
const FRAME_HEAD: u64 = 8;
/// Maximum number of ranks.
const LARGEST_WORLD: u32 = 1 << 20;
/// Maximum number of a program's lines that communicate, for all ranks together.
const MOST_LINES: u32 = 1 << 22;

/// The beginning of a record, before the first step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of ranks.
    pub world_size: u32,
    /// The run that was recorded.
    pub manifest: Manifest,
}

/// FNV-1a, 32 bits (Fowler, Noll, Vo).
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The error of a file that is not a complete record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file is no program record.
    #[error("this is not a program record\nhint: `uniference run` writes one to its run folder")]
    NotARecord,
    /// Another version of Uniference wrote the record.
    #[error("unsupported program record version {0}; the newest supported version is {current}\nhint: replay it with the version of Uniference that wrote it", current = VERSION)]
    Version(u8),
    /// The record ends before its last frame.
    #[error(
        "the program record is truncated after {steps} steps\nhint: the run was interrupted, or the disk was full; run the program again"
    )]
    CutShort {
        /// Number of steps that could be read.
        steps: u64,
    },
    /// Bytes of the record were changed.
    #[error(
        "the program record is damaged after {steps} steps: {problem}\nhint: copy it again from its source, or run the program again"
    )]
    Damaged {
        /// Number of steps that could be read.
        steps: u64,
        /// The inconsistency that was found.
        problem: String,
    },
    /// The file cannot be read.
    #[error("the program record could not be read: {0}\nhint: check the file and its disk")]
    Io(#[from] io::Error),
}

/// A record that is being read.
pub struct RecordReader<R> {
    input: R,
    header: Header,
    contents: Contents,
    has_old_operators: bool,
}

/// Extents of each rank's steps, and the end of the file.
struct Contents {
    version: Version,
    ranks: Vec<VecDeque<Extent>>,
    /// Lines of the program; version 1 has all of them at its end.
    lines: Vec<String>,
    ending: FileEnd,
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    One,
    /// Versions 2 and later, which share a layout and differ in their steps.
    Indexed,
}

/// A piece of the file with only steps of one rank: in newer versions one frame, in version 1 one or more.
#[derive(Clone, Copy)]
struct Extent {
    offset: u64,
    length: u32,
}

/// How a file ends.
enum FileEnd {
    /// The record is complete; the writer has counted its steps.
    Whole { steps: u64 },
    /// The file ends before its last step, as after a crash of its writer.
    CutShort,
    /// An inconsistency.
    Damaged(String),
}

impl<R: Read + Seek> RecordReader<R> {
    /// Reads the header, and finds the extents of each rank's steps.
    ///
    /// # Errors
    /// If the file is not a record of a supported version.
    pub fn open(mut input: R) -> Result<RecordReader<R>, RecordError> {
        let mut magic = [0; MAGIC.len() + 1];
        input.read_exact(&mut magic).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => RecordError::NotARecord,
            _ => RecordError::Io(error),
        })?;
        let version = match magic {
            [name @ .., 1] if name == MAGIC => Version::One,
            [name @ .., 2..=VERSION] if name == MAGIC => Version::Indexed,
            [name @ .., version] if name == MAGIC => return Err(RecordError::Version(version)),
            _ => return Err(RecordError::NotARecord),
        };
        let start = magic.len() as u64;
        let header = match read_frame(&mut input)? {
            Ok(bytes) => match version {
                Version::One => version1::header(&bytes).map(schema::Header::read),
                Version::Indexed => index::header(&bytes, magic[MAGIC.len()]),
            },
            Err(ending) => return Err(ending.error(0)),
        };
        let header = header.map_err(|problem| damaged(0, problem))?;
        if header.world_size > LARGEST_WORLD {
            return Err(damaged(0, format!("unexpected number of ranks: {}", header.world_size)));
        }
        let start = input.stream_position()?.max(start);
        let contents = match version {
            Version::One => version1::contents(&mut input, start, header.world_size)?,
            Version::Indexed => index::contents(&mut input, start, header.world_size)?,
        };
        Ok(RecordReader { input, header, contents, has_old_operators: magic[MAGIC.len()] <= OLD_OPERATORS })
    }

    /// The header: the recorded run, and its program.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A sequence of steps for each rank, and the rest of the record, to be read after the replay.
    pub fn by_rank(self) -> (Vec<RankRecord<R>>, RestOfRecord<R>) {
        let ranks: Vec<usize> = (0..self.contents.ranks.len()).collect();
        self.by_rank_of(&ranks)
    }

    /// Like [`RecordReader::by_rank`], for ranks that use steps of other ranks: the n-th sequence has the recorded
    /// steps of rank `ranks[n]`. Each rank with recorded steps also has its own sequence, at its own index.
    ///
    /// # Panics
    /// If a rank is not in the record.
    pub fn by_rank_of(self, ranks: &[usize]) -> (Vec<RankRecord<R>>, RestOfRecord<R>) {
        let Contents { version, ranks: extents, lines, ending } = self.contents;
        let frames =
            |of: &usize| RankFrames { extents: extents[*of].clone(), of: *of, tasks: 1, ..RankFrames::default() };
        let ranks: Vec<RankFrames> = ranks.iter().map(frames).collect();
        let (count, world) = (ranks.len(), self.header.world_size);
        let has_old_operators = self.has_old_operators;
        let shared = Shared {
            input: self.input,
            version,
            has_old_operators,
            world,
            ranks,
            lines,
            steps: 0,
            ending,
            error: None,
        };
        let shared = Rc::new(RefCell::new(shared));
        let ranks = (0..count).map(|rank| RankRecord { rank, shared: Rc::clone(&shared) }).collect();
        (ranks, RestOfRecord { shared })
    }
}

/// One file, read on behalf of all ranks.
struct Shared<R> {
    input: R,
    version: Version,
    /// Whether the ranks' operators are in the format of version 11.
    has_old_operators: bool,
    /// The number of recorded ranks.
    world: u32,
    ranks: Vec<RankFrames>,
    /// Lines of the program by number, as far as they have been named.
    lines: Vec<String>,
    steps: u64,
    ending: FileEnd,
    error: Option<RecordError>,
}

/// Progress of the reader in one rank's steps.
#[derive(Default)]
struct RankFrames {
    /// The recorded rank of the steps.
    of: usize,
    /// Extents that have not been read yet.
    extents: VecDeque<Extent>,
    /// The extent that was read last; `at` is the offset of its next step.
    bytes: Vec<u8>,
    at: usize,
    /// Number of tasks that the rank has started.
    tasks: u32,
    /// Whether operators have been read.
    has_operators: bool,
}

impl<R: Read + Seek> Shared<R> {
    fn next_of(&mut self, rank: usize) -> Option<(TaskId, RecordedStep)> {
        if self.error.is_some() {
            return None;
        }
        self.read_step(rank).unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }

    fn read_step(&mut self, rank: usize) -> Result<Option<(TaskId, RecordedStep)>, RecordError> {
        loop {
            let frames = &mut self.ranks[rank];
            let of = frames.of;
            if frames.at == frames.bytes.len() {
                let Some(extent) = frames.extents.pop_front() else { return Ok(None) };
                self.load(rank, extent)?;
                continue;
            }
            let steps = self.steps;
            let rest = &frames.bytes[frames.at..];
            let before = rest.len();
            let damage = |problem: String| damaged(steps, problem);
            let (task, step, rest) = match self.version {
                Version::One => version1::step(rest),
                Version::Indexed => index::step(rest),
            }
            .map_err(damage)?;
            frames.at += before - rest.len();
            match step.read().map_err(damage)? {
                schema::Read::Line(site, text) => {
                    if site.0 >= MOST_LINES {
                        return Err(damage(format!("unexpected call site {}", site.0)));
                    }
                    if self.lines.len() <= site.index() {
                        self.lines.resize(site.index() + 1, String::new());
                    }
                    self.lines[site.index()] = text;
                }
                schema::Read::Step(mut step) => {
                    if task > frames.tasks {
                        return Err(damage(format!("rank {of} starts task {task} before task {}", frames.tasks)));
                    }
                    if let RecordedStep::Request(request) = &step {
                        request.check(self.world).map_err(|problem| damage(format!("rank {of} asks for {problem}")))?;
                    }
                    frames.tasks = frames.tasks.max(task + 1);
                    if let RecordedStep::Operators { operators, .. } = &mut step
                        && self.has_old_operators
                        && !std::mem::replace(&mut frames.has_operators, true)
                    {
                        operators.splice(..0, VERSION_11);
                    }
                    self.steps += u64::from(of == rank);
                    return Ok(Some((TaskId(task), step)));
                }
            }
        }
    }

    /// Reads the next piece of a rank's steps.
    fn load(&mut self, rank: usize, extent: Extent) -> Result<(), RecordError> {
        self.input.seek(SeekFrom::Start(extent.offset))?;
        let frames = &mut self.ranks[rank];
        frames.at = 0;
        frames.bytes.clear();
        self.input.by_ref().take(extent.length.into()).read_to_end(&mut frames.bytes)?;
        if frames.bytes.len() < extent.length as usize {
            return Err(RecordError::CutShort { steps: self.steps });
        }
        if self.version == Version::Indexed {
            frames.at =
                index::start_of_steps(&frames.bytes, frames.of).map_err(|problem| damaged(self.steps, problem))?;
        }
        Ok(())
    }
}

/// One rank's steps, in its order. The sequence ends early if the record does: [`RestOfRecord::finish`] returns the
/// error.
pub struct RankRecord<R> {
    rank: usize,
    shared: Rc<RefCell<Shared<R>>>,
}

impl<R: Read + Seek> Iterator for RankRecord<R> {
    type Item = (TaskId, RecordedStep);

    fn next(&mut self) -> Option<(TaskId, RecordedStep)> {
        self.shared.borrow_mut().next_of(self.rank)
    }
}

impl<R> RankRecord<R> {
    /// The text of a line that a step of this rank has named, `path:line`; empty if it is not known.
    pub fn line(&self, step: &RecordedStep) -> Ref<'_, str> {
        Ref::map(self.shared.borrow(), |shared| {
            step.site().and_then(|site| shared.lines.get(site.index())).map_or("", String::as_str)
        })
    }
}

/// Rest of a record after a replay.
pub struct RestOfRecord<R> {
    shared: Rc<RefCell<Shared<R>>>,
}

impl<R: Read + Seek> RestOfRecord<R> {
    /// Reads up to the end, and returns the table of the program's lines.
    ///
    /// # Errors
    /// The error that ended the ranks' records early.
    pub fn finish(self) -> Result<Vec<String>, RecordError> {
        let mut shared = self.shared.borrow_mut();
        for rank in 0..shared.ranks.len() {
            while shared.next_of(rank).is_some() {}
        }
        if let Some(error) = shared.error.take() {
            return Err(error);
        }
        match std::mem::replace(&mut shared.ending, FileEnd::CutShort) {
            FileEnd::Whole { steps } if steps == shared.steps => Ok(std::mem::take(&mut shared.lines)),
            FileEnd::Whole { steps } => Err(damaged(shared.steps, format!("expected {steps} steps"))),
            ending => Err(ending.error(shared.steps)),
        }
    }
}

impl FileEnd {
    /// The error of a record without a regular end, after `steps` steps.
    fn error(self, steps: u64) -> RecordError {
        match self {
            FileEnd::Damaged(problem) => damaged(steps, problem),
            FileEnd::CutShort | FileEnd::Whole { .. } => RecordError::CutShort { steps },
        }
    }
}

fn damaged(steps: u64, problem: impl Into<String>) -> RecordError {
    RecordError::Damaged { steps, problem: problem.into() }
}

/// The bytes of one frame. If the file ends before the frame or inside it, the record was cut short.
fn read_frame(input: &mut impl Read) -> io::Result<Result<Vec<u8>, FileEnd>> {
    let mut head = [0; FRAME_HEAD as usize];
    match input.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Err(FileEnd::CutShort)),
        read => read?,
    }
    let (length, sum) = frame_head(head);
    if length > LONGEST_FRAME {
        return Ok(Err(FileEnd::Damaged(format!("invalid frame length {length}"))));
    }
    // `read_exact` would reserve memory first, and a damaged length must not reserve memory for missing bytes.
    let mut bytes = Vec::new();
    input.take(length.into()).read_to_end(&mut bytes)?;
    Ok(match bytes.len() == length as usize {
        false => Err(FileEnd::CutShort),
        true if checksum(&bytes) != sum => Err(FileEnd::Damaged("checksum mismatch".to_owned())),
        true => Ok(bytes),
    })
}

fn frame_head(head: [u8; FRAME_HEAD as usize]) -> (u32, u32) {
    let [l0, l1, l2, l3, s0, s1, s2, s3] = head;
    (u32::from_le_bytes([l0, l1, l2, l3]), u32::from_le_bytes([s0, s1, s2, s3]))
}

/// Decodes a whole frame.
fn decode<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("a frame has {} extra bytes", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
