//! Owns reading a trace from its start to its end, plain or compressed, one node in memory at a time. Dependencies are
//! not checked.

use super::frame::{FrameError, FrameReader, Position};
use super::schema::{GlobalMetadata, Node};
use flate2::bufread::MultiGzDecoder;
use prost::Message;
use std::io::{self, BufRead, BufReader, Read};

/// The first bytes of a compressed file (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file that is no trace, or an incomplete one.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The first message is not a trace's metadata.
    #[error(
        "this is not a Chakra execution trace: {problem}\nhint: a trace is a binary file, PREFIX.RANK.et; convert PyTorch's recordings (JSON) with `uniference chakra link`"
    )]
    NotATrace {
        /// The invalid part.
        problem: String,
    },
    /// The file ends inside a message.
    #[error("the trace is truncated: it ends inside message {} (which starts at byte {})\nhint: copy it again from its source, or write it again", at.message, at.offset)]
    Truncated {
        /// The position of that message.
        at: Position,
    },
    /// A message cannot be decoded.
    #[error("the trace is damaged: message {} (at byte {}): {problem}\nhint: copy it again from its source, or write it again", at.message, at.offset)]
    Damaged {
        /// The position of the message in the file.
        at: Position,
        /// The invalid part.
        problem: String,
    },
    /// The file cannot be read.
    #[error("the trace could not be read: {0}\nhint: check the file and its disk")]
    Io(#[from] io::Error),
}

/// A trace that is being read.
pub struct Reader<R> {
    frames: FrameReader<Input<R>>,
    metadata: GlobalMetadata,
    ended: bool,
    lossy: u64,
    /// Number of the last node's attributes: the next node mostly has as many.
    attributes: usize,
}

enum Input<R> {
    Plain(BufReader<R>),
    Gzip(Box<BufReader<MultiGzDecoder<BufReader<R>>>>),
}

impl<R: Read> Reader<R> {
    /// Reads the metadata before the first node. `input` need not be buffered.
    ///
    /// # Errors
    /// If `input` is no trace.
    pub fn open(input: R) -> Result<Reader<R>, ReadError> {
        let mut frames = FrameReader::new(Input::open(input)?);
        let at = frames.position();
        let first = match frames.next() {
            Ok(Some(bytes)) => GlobalMetadata::decode(bytes).map_err(|error| not_a_trace(&error))?,
            Ok(None) => return Err(not_a_trace(&"the file is empty")),
            Err(FrameError::Io(error)) => return Err(error.into()),
            Err(error) => return Err(not_a_trace(&error)),
        };
        let lossy = u64::from(first.encoded_len() as u64 != content(at, frames.position()));
        Ok(Reader { frames, metadata: first, ended: false, lossy, attributes: 0 })
    }

    /// The writer's metadata of the whole trace.
    pub fn metadata(&self) -> &GlobalMetadata {
        &self.metadata
    }

    /// Number of messages so far whose length would change if they were written again: they hold fields that the schema
    /// does not have, or their writer encodes differently.
    pub fn lossy(&self) -> u64 {
        self.lossy
    }

    /// The next node in the order of the file; `None` at the end.
    ///
    /// # Errors
    /// If the trace is truncated, damaged, or cannot be read.
    pub fn next_node(&mut self) -> Result<Option<Node>, ReadError> {
        if self.ended {
            return Ok(None);
        }
        let at = self.frames.position();
        let node = match self.frames.next()? {
            None => None,
            Some([]) => {
                self.frames.expect_end(at)?;
                None
            }
            Some(bytes) => {
                let mut node = Node { attr: Vec::with_capacity(self.attributes), ..Node::default() };
                node.merge(bytes).map_err(|error| damaged(at, &error))?;
                Some(node)
            }
        };
        match &node {
            None => self.ended = true,
            Some(node) => {
                self.lossy += u64::from(node.encoded_len() as u64 != content(at, self.frames.position()));
                self.attributes = node.attr.len();
            }
        }
        Ok(node)
    }
}

/// A source of a trace's nodes in their order: a file, or the generator that would have written it.
pub trait Nodes {
    /// The next node; `None` at the end.
    ///
    /// # Errors
    /// If the next node cannot be read.
    fn next_node(&mut self) -> Result<Option<Node>, ReadError>;
}

impl<R: Read> Nodes for Reader<R> {
    fn next_node(&mut self) -> Result<Option<Node>, ReadError> {
        Reader::next_node(self)
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Node, ReadError>;

    /// The next node; the iterator ends after the first error.
    fn next(&mut self) -> Option<Result<Node, ReadError>> {
        let next = self.next_node().transpose();
        self.ended |= matches!(next, Some(Err(_)));
        next
    }
}

impl<R: Read> Input<R> {
    fn open(input: R) -> io::Result<Input<R>> {
        let mut input = BufReader::new(input);
        let compressed = input.fill_buf()?.starts_with(&GZIP);
        Ok(match compressed {
            true => Input::Gzip(Box::new(BufReader::new(MultiGzDecoder::new(input)))),
            false => Input::Plain(input),
        })
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::Plain(input) => input.read(buffer),
            Input::Gzip(input) => input.read(buffer),
        }
    }
}

impl From<FrameError> for ReadError {
    fn from(error: FrameError) -> ReadError {
        match error {
            FrameError::Truncated { at } => ReadError::Truncated { at },
            FrameError::Length { at } | FrameError::AfterEnd { at } | FrameError::Compression { at, .. } => {
                damaged(at, &error)
            }
            FrameError::Io(error) => ReadError::Io(error),
        }
    }
}

fn not_a_trace(problem: &dyn ToString) -> ReadError {
    ReadError::NotATrace { problem: problem.to_string() }
}

fn damaged(at: Position, problem: &dyn ToString) -> ReadError {
    ReadError::Damaged { at, problem: problem.to_string() }
}

/// The bytes of the message between two positions, without its length.
fn content(at: Position, end: Position) -> u64 {
    let whole = end.offset - at.offset;
    let prefix = (1..=5).find(|prefix| whole.saturating_sub(*prefix) < 1 << (7 * prefix)).unwrap_or(5);
    whole - prefix
}
