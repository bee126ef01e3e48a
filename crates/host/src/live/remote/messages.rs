//! Owns the messages between driver and worker: each is a postcard value, followed by the bytes that it describes.
//!
//! Offsets refer to the driver's arena unless stated otherwise.

use crate::live::zygote::News;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;
use uniference_link::stream::Stream;
use uniference_protocol::messages::{Compute, LocalHandle, Offset, Reply};

/// Longest message in bytes; longer ones are rejected. Tensor data and outputs travel in parts, frames as a whole.
pub(super) const LONGEST: usize = (1 << 30) + (64 << 10);

/// Size in bytes of the parts in which data travels.
pub(super) const PART: u64 = 1 << 20;

/// Longest interval between messages of each side.
pub(super) const PULSE: Duration = Duration::from_secs(3);

/// Duration without messages after which a side counts as lost.
pub(super) const SILENCE: Duration = Duration::from_secs(15);

/// A message of the driver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Down {
    /// The next part of the file with this path on the driver's machine; the first part creates the file.
    File { path: Vec<u8> },
    /// Number of ranks that will run on the worker, their folder, and the modules to import before the fork. Without
    /// `synced`, folder and files must exist on the worker.
    Start { ranks: u32, modules: Vec<String>, folder: Vec<u8>, synced: bool },
    /// Starts a rank whose inputs are staged in the block at `home`. The zygote's order follows.
    Fork { rank: u32, compute: Compute, cores: u32, home: Offset, room: u64 },
    /// Requests an arena block of `bytes` bytes for the data of an operation. Results of reductions in that block are
    /// sent back to the driver's arena: offset in the block, offset in the arena, bytes.
    Landing { rank: u32, handle: LocalHandle, bytes: u64, results: Vec<(u64, Offset, u64)> },
    /// The next bytes for the latest block, at this offset in it.
    Data { at: u64 },
    /// The answer to a task. Offsets of data refer to the operation's block.
    Reply { rank: u32, task: u32, reply: Reply },
    /// Ends the rank's process.
    Kill { rank: u32 },
    /// Asks for [`Up::Told`].
    Ask { number: u64, question: Question },
    /// A sign of life.
    Pulse,
    /// The end of the run.
    End,
}

/// A query of the driver about a rank's process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Question {
    /// Query whether all threads wait, and for what.
    Waits { rank: u32 },
    /// Lines at which its threads are; optionally without disturbing the process, or including threads in calls of
    /// Uniference.
    Stands { rank: u32, undisturbed: bool, with_calls: bool },
}

/// A worker's answer about a rank's process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Told {
    /// Some thread could run.
    Runs,
    /// All threads wait for other threads of their process.
    WaitsInside,
    /// All threads wait, and at least one for something outside the process.
    WaitsOutside,
    /// Lines at which the threads are.
    Stands(Vec<String>),
}

/// A message of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Up {
    /// A line of the zygote follows, or a line of the worker about why it cannot start one ([`News`]).
    News,
    /// Bytes for the arena follow.
    Data { at: Offset },
    /// A frame of a task follows; it may open another task.
    Frame { rank: u32, task: u32, opens: Option<u32> },
    /// A task has closed its connection; `exiting`: because its process ends.
    Closed { rank: u32, task: u32, exiting: bool },
    /// Output of a rank follows, of standard error or standard output; empty: the rank has closed that output.
    Output { rank: u32, is_error: bool },
    /// The answer to a [`Question`].
    Told { number: u64, told: Told },
    /// A sign of life.
    Pulse,
}

/// Sends a message, followed by bytes.
pub(super) fn send(stream: &Stream, message: &impl Serialize, behind: &[u8]) -> io::Result<()> {
    stream.send(&[&head(message), behind])
}

/// Sends a message, followed by bytes; another message must follow at once.
pub(super) fn send_soon(stream: &Stream, message: &impl Serialize, behind: &[u8]) -> io::Result<()> {
    stream.send_soon(&[&head(message), behind])
}

fn head(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("every message has a postcard form")
}

/// A message, and the bytes after it.
pub(super) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<(T, &'a [u8])> {
    postcard::take_from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Encodes the zygote's news for [`Up::News`].
pub(super) fn write_news(news: &News) -> Vec<u8> {
    serde_json::to_vec(news).expect("plain data has a JSON form")
}

/// Decodes the zygote's news from [`Up::News`].
pub(super) fn read_news(bytes: &[u8]) -> io::Result<News> {
    serde_json::from_slice(bytes).map_err(io::Error::from)
}
