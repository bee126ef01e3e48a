//! Owns frames, the encoding of messages on a socket: a frame is its length (u32, little endian) and a postcard value.
//!
//! The content of messages is defined in `messages`.

use crate::wire::Wire;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Longest frame, in bytes. A longer one is a bug: frames carry no tensors.
const LONGEST_FRAME: usize = 1 << 30;

/// Appends `value` as a frame to `buffer`.
///
/// # Panics
/// If the frame is longer than 1 GiB.
pub fn encode(value: &impl Serialize, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    let filled = postcard::to_extend(value, std::mem::take(buffer)).expect("every protocol type has a postcard form");
    *buffer = filled;
    let len = buffer.len() - start - 4;
    assert!(len <= LONGEST_FRAME, "a frame of {len} bytes");
    buffer[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
}

/// Most bytes of one read.
const CHUNK: usize = 16 * 1024;

/// Received bytes, split into frames, and the descriptors that came with them.
#[derive(Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    taken: usize,
    /// Received descriptors. They arrive with the first byte of the bytes that they were sent with, whose frame may not
    /// be complete yet.
    fds: VecDeque<OwnedFd>,
    /// Buffer of reads, kept between them: clearing a new one takes longer than reading a frame.
    chunk: Vec<u8>,
}

impl FrameBuffer {
    /// The next whole frame, if it has arrived.
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

    /// Whether all received frames have been consumed.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next received descriptor.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Reads the bytes that the wire has, and the descriptors that came with them. Returns the number of bytes; 0: the
    /// other end is closed.
    ///
    /// # Errors
    /// The errors of [`Wire::read`].
    pub fn fill(&mut self, wire: &dyn Wire, wait: bool) -> io::Result<usize> {
        self.chunk.resize(CHUNK, 0);
        let count = wire.read(&mut self.chunk, &mut self.fds, wait)?;
        self.bytes.extend_from_slice(&self.chunk[..count]);
        Ok(count)
    }

    /// The driver's end of a wire whose opening a frame of `wire` has announced.
    ///
    /// # Errors
    /// The errors of [`Wire::accept`].
    pub fn accept(&mut self, wire: &dyn Wire, ticket: u64) -> io::Result<Arc<dyn Wire>> {
        wire.accept(ticket, &mut self.fds)
    }

    /// Blocks until a whole frame has arrived.
    pub fn read<T: DeserializeOwned>(&mut self, wire: &dyn Wire) -> io::Result<T> {
        loop {
            if let Some(value) = self.next_frame()? {
                return Ok(value);
            }
            if self.fill(wire, true)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Batch, Op};
    use crate::wire::{UnixWire, write_with_fds};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn batch(ops: Vec<Op>) -> Batch {
        Batch { opens_task: None, ops, quiet: None }
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
        let received: Batch = frames.read(&UnixWire::of_driver(there)).unwrap();
        writer.join().unwrap();
        assert_eq!((received, frames.take_fd().is_some(), frames.take_fd().is_some()), (sent, true, false));
    }

    #[test]
    fn a_descriptor_waits_for_its_frame() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut long, mut short) = (Vec::new(), Vec::new());
        encode(&batch(vec![Op::Site("x".repeat(CHUNK - 14))]), &mut long);
        encode(&Batch { opens_task: Some(0), ops: Vec::new(), quiet: None }, &mut short);
        write_with_fds(&here, &long, &[]).unwrap();
        write_with_fds(&here, &short, &[here.as_fd()]).unwrap();
        // One read ends inside the second frame.
        assert!(long.len() < CHUNK && CHUNK < long.len() + short.len());
        let mut frames = FrameBuffer::default();
        let there = UnixWire::of_driver(there);
        let opens: Vec<bool> = (0..2).map(|_| frames.read::<Batch>(&there).unwrap().opens_task.is_some()).collect();
        assert_eq!((opens, frames.take_fd().is_some()), (vec![false, true], true));
    }

    #[test]
    fn a_closed_socket_is_the_end_of_file() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        let error = FrameBuffer::default().read::<Batch>(&UnixWire::of_driver(there)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
