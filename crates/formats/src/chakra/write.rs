//! Owns writing a trace, plain or compressed. Compression is deterministic: no name, no time stamp.

use super::frame;
use super::schema::{GlobalMetadata, Node};
use flate2::write::GzEncoder;
use prost::Message;
use std::io::{self, ErrorKind, Write};

/// A trace that is being written.
pub struct Writer<W: Write> {
    out: Output<W>,
    buffer: Vec<u8>,
}

enum Output<W: Write> {
    Plain(W),
    Gzip(Box<GzEncoder<W>>),
}

impl<W: Write> Writer<W> {
    /// Writes to `out`, which should be buffered.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn new(out: W, metadata: &GlobalMetadata) -> io::Result<Writer<W>> {
        Writer::start(Output::Plain(out), metadata)
    }

    /// Writes compressed to `out`, which should be buffered.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn gzip(out: W, metadata: &GlobalMetadata) -> io::Result<Writer<W>> {
        Writer::start(Output::Gzip(Box::new(GzEncoder::new(out, flate2::Compression::default()))), metadata)
    }

    fn start(out: Output<W>, metadata: &GlobalMetadata) -> io::Result<Writer<W>> {
        let mut writer = Writer { out, buffer: Vec::new() };
        writer.message(metadata)?;
        Ok(writer)
    }

    /// Writes a node.
    ///
    /// # Errors
    /// If the writer fails, or the node is empty: it would read as the end of the trace.
    pub fn node(&mut self, node: &Node) -> io::Result<()> {
        if node.encoded_len() == 0 {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a node must have an id, a name and a type"));
        }
        self.message(node)
    }

    /// Writes the rest, and returns the underlying writer.
    ///
    /// # Errors
    /// If the underlying writer fails.
    pub fn finish(self) -> io::Result<W> {
        let mut out = match self.out {
            Output::Plain(out) => out,
            Output::Gzip(out) => out.finish()?,
        };
        out.flush()?;
        Ok(out)
    }

    fn message(&mut self, message: &impl Message) -> io::Result<()> {
        self.buffer.clear();
        message.encode(&mut self.buffer).expect("a vector grows as it must");
        match &mut self.out {
            Output::Plain(out) => frame::write(out, &self.buffer),
            Output::Gzip(out) => frame::write(out, &self.buffer),
        }
    }
}
