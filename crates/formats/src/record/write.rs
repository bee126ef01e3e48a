//! Owns the writing of a program record during the run.

use super::index::{Start, trailer};
use super::{FRAME_HEAD, Header, LONGEST_FRAME, MAGIC, VERSION, checksum, schema};
use crate::sink::{Sink, WriteError};
use rustc_hash::FxHashSet;
use std::io::Write;
use uniference_sim::ids::{RankId, Site, TaskId};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::SimDuration;

/// Maximum number of bytes of a piece of a slice's operators, so that frames stay short.
const LONGEST_PIECE: usize = 1 << 20;
/// Number of buffered bytes of a rank's steps at which the rank's steps are written to the file.
const BLOCK: usize = 1 << 14;
/// Number of buffered bytes of all ranks' steps, in total and per rank, at which all steps are written: a run that is
/// killed loses no more than this.
const UNWRITTEN: usize = 1 << 18;
const UNWRITTEN_OF_RANK: usize = 64;

/// Writes a record during the run.
pub struct RecordWriter<W: Write> {
    /// `None` once the record is finished.
    sink: Option<Sink<W>>,
    offset: u64,
    ranks: Vec<Unwritten>,
    unwritten: usize,
    steps: u64,
    blocks: Vec<(u32, u32)>,
}

/// Steps of one rank that are not written yet.
#[derive(Default)]
struct Unwritten {
    /// The block's bytes so far.
    bytes: Vec<u8>,
    /// The lines that the rank has named.
    named: FxHashSet<Site>,
}

impl<W: Write> RecordWriter<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W, header: &Header) -> RecordWriter<W> {
        let mut ranks = Vec::new();
        ranks.resize_with(header.world_size as usize, Unwritten::default);
        let sink = Some(Sink::new("program record", out));
        let mut writer = RecordWriter { sink, offset: 0, ranks, unwritten: 0, steps: 0, blocks: Vec::new() };
        writer.write(&MAGIC);
        writer.write(&[VERSION]);
        writer.frame(&encode(&Start::FullHeader(schema::FullHeader::of(header))));
        writer
    }

    /// Adds the next step of `task` of `rank`; `line` is the text of the step's line (`path:line`), or empty if there
    /// is none. [`RecordWriter::failed`] and [`RecordWriter::finish`] report errors.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str) {
        let RecordedStep::Operators { operators, measured } = step else {
            return self.one_step(rank, task, step, line);
        };
        let mut rest = operators.chunks(LONGEST_PIECE);
        let piece = |piece: &[u8], measured| RecordedStep::Operators { operators: piece.to_vec(), measured };
        self.one_step(rank, task, &piece(rest.next().unwrap_or_default(), *measured), line);
        rest.for_each(|next| self.one_step(rank, task, &piece(next, SimDuration::ZERO), line));
    }

    fn one_step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str) {
        self.steps += 1;
        let of_rank = &mut self.ranks[rank.index()];
        let before = of_rank.bytes.len();
        if before == 0 {
            of_rank.bytes = encode(&Start::Block { rank: rank.0 });
        }
        if let Some(site) = step.site()
            && !line.is_empty()
            && of_rank.named.insert(site)
        {
            of_rank.add(task, &schema::Step::Line { site: site.0, text: line.to_owned() });
        }
        of_rank.add(task, &schema::Step::of(step));
        let after = of_rank.bytes.len();
        self.unwritten += after - before;
        if after >= BLOCK {
            self.block(rank);
        }
        if self.unwritten >= UNWRITTEN.max(self.ranks.len() * UNWRITTEN_OF_RANK) {
            self.write_rest();
        }
    }

    /// Whether an error has occurred.
    pub fn failed(&self) -> bool {
        self.sink.as_ref().is_some_and(Sink::failed)
    }

    /// Writes the end, and returns the writer.
    ///
    /// # Errors
    /// The first error of the writer, even if it happened long ago.
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.write_rest();
        let end = self.offset;
        let blocks = std::mem::take(&mut self.blocks);
        self.frame(&encode(&Start::End { steps: self.steps, blocks }));
        self.write(&trailer(end));
        self.sink.take().expect("it is finished once").finish()
    }

    fn write_rest(&mut self) {
        (0..self.ranks.len()).map(RankId::from).for_each(|rank| self.block(rank));
    }

    /// Writes the rank's steps so far.
    fn block(&mut self, rank: RankId) {
        let bytes = std::mem::take(&mut self.ranks[rank.index()].bytes);
        if !bytes.is_empty() {
            self.unwritten -= bytes.len();
            self.blocks.push((rank.0, FRAME_HEAD as u32 + bytes.len() as u32));
            self.frame(&bytes);
        }
    }

    fn frame(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST_FRAME);
        let length = length.unwrap_or_else(|| panic!("a frame of {} bytes", bytes.len()));
        self.write(&length.to_le_bytes());
        self.write(&checksum(bytes).to_le_bytes());
        self.write(bytes);
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(sink) = &mut self.sink {
            sink.write(bytes);
            self.offset += bytes.len() as u64;
        }
    }
}

impl Unwritten {
    fn add(&mut self, task: TaskId, step: &schema::Step) {
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(&(task.0, step), bytes).expect("memory takes all that a step is made of");
    }
}

/// A run that ends without [`RecordWriter::finish`] leaves a truncated record.
impl<W: Write> Drop for RecordWriter<W> {
    fn drop(&mut self) {
        if self.sink.is_some() {
            self.write_rest();
        }
    }
}

fn encode(start: &Start) -> Vec<u8> {
    postcard::to_stdvec(start).expect("numbers and strings have a postcard form")
}
