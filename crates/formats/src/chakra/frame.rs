//! Owns framing: the length of a message as a varint of 32 bits, then the message. It does not read messages.

use std::io::{self, ErrorKind, Read, Write};

/// The position of a message in the (uncompressed) file, and its number, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Number of messages before this position.
    pub message: u64,
    /// Number of bytes before this position.
    pub offset: u64,
}

/// A file that is no sequence of messages, or an incomplete one.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The file ends inside a message.
    #[error("it ends inside message {} (which starts at byte {})", at.message, at.offset)]
    Truncated {
        /// The position of the incomplete message.
        at: Position,
    },
    /// The length of a message is invalid.
    #[error("the length of message {} (at byte {}) is not a 32-bit number", at.message, at.offset)]
    Length {
        /// The position of the message in the file.
        at: Position,
    },
    /// Bytes follow an empty message, which is an end mark.
    #[error("trailing bytes after the end mark at byte {}", at.offset)]
    AfterEnd {
        /// The end mark.
        at: Position,
    },
    /// The compressed data is invalid.
    #[error("invalid compressed data ({problem})")]
    Compression {
        /// The position of the message that cannot be read.
        at: Position,
        /// The decompressor's error.
        problem: String,
    },
    /// The file cannot be read.
    #[error("{0}")]
    Io(io::Error),
}

/// Reads messages in their order.
pub(super) struct FrameReader<R> {
    input: R,
    next: Position,
    buffer: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    pub(super) fn new(input: R) -> FrameReader<R> {
        FrameReader { input, next: Position::default(), buffer: Vec::new() }
    }

    /// The position of the next message.
    pub(super) fn position(&self) -> Position {
        self.next
    }

    /// The next message; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let at = self.next;
        let Some((length, prefix)) = self.length()? else { return Ok(None) };
        self.buffer.clear();
        // A damaged length must not reserve memory for missing bytes.
        (&mut self.input).take(length.into()).read_to_end(&mut self.buffer).map_err(|error| failed(error, at))?;
        if self.buffer.len() < length as usize {
            return Err(FrameError::Truncated { at });
        }
        self.next = Position { message: at.message + 1, offset: at.offset + prefix + u64::from(length) };
        Ok(Some(&self.buffer))
    }

    /// Fails if anything follows an empty message at `mark`, which marks the end.
    pub(super) fn expect_end(&mut self, mark: Position) -> Result<(), FrameError> {
        match self.byte()? {
            Some(_) => Err(FrameError::AfterEnd { at: mark }),
            None => Ok(()),
        }
    }

    /// A varint, and the number of its bytes.
    fn length(&mut self) -> Result<Option<(u32, u64)>, FrameError> {
        let at = self.next;
        let mut length = 0_u64;
        for index in 0..5 {
            let byte = match self.byte()? {
                Some(byte) => byte,
                None if index == 0 => return Ok(None),
                None => return Err(FrameError::Truncated { at }),
            };
            length |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                let length = u32::try_from(length).map_err(|_| FrameError::Length { at })?;
                return Ok(Some((length, index + 1)));
            }
        }
        Err(FrameError::Length { at })
    }

    fn byte(&mut self) -> Result<Option<u8>, FrameError> {
        let mut byte = [0];
        loop {
            match self.input.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(byte[0])),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error, self.next)),
            }
        }
    }
}

/// The error of a read: the decompressor reports invalid data and an early end as errors of the reader.
fn failed(error: io::Error, at: Position) -> FrameError {
    match error.kind() {
        ErrorKind::UnexpectedEof => FrameError::Truncated { at },
        ErrorKind::InvalidInput | ErrorKind::InvalidData => FrameError::Compression { at, problem: error.to_string() },
        _ => FrameError::Io(error),
    }
}

/// Writes one message.
pub(super) fn write(out: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let too_long = |_| io::Error::new(ErrorKind::InvalidInput, "a message of 4 GiB");
    let mut length = u32::try_from(message.len()).map_err(too_long)?;
    let mut prefix = Vec::with_capacity(5);
    while length >= 0x80 {
        prefix.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    prefix.push(length as u8);
    out.write_all(&prefix)?;
    out.write_all(message)
}
