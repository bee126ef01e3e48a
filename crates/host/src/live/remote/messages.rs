//! Owns what driver and worker say to each other: a message is a postcard value, and behind it bytes that it is about.
//!
//! Offsets are those of the driver's arena, where nothing else is said.

use crate::live::zygote::News;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;
use uniference_link::stream::Stream;
use uniference_protocol::messages::{Compute, LocalHandle, Offset, Reply};

/// Longer messages are no messages. Data of tensors and outputs travel in parts; a frame is as long as it is.
pub(super) const LONGEST: usize = (1 << 30) + (64 << 10);

/// Data travels in parts of this size.
pub(super) const PART: u64 = 1 << 20;

/// Each side says something at least so often.
pub(super) const PULSE: Duration = Duration::from_secs(3);

/// A side that says nothing for so long is lost.
pub(super) const SILENCE: Duration = Duration::from_secs(15);

/// What a driver says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Down {
    /// The next part of a file, whose path on the driver's machine this is; the first one makes it.
    File { path: Vec<u8> },
    /// So many ranks will run here, in this folder, with these modules imported before. Without `synced` folder and files must be there.
    Start { ranks: u32, modules: Vec<String>, folder: Vec<u8>, synced: bool },
    /// A rank, which stages its inputs in the room from `home` on. Behind it the zygote's order.
    Fork { rank: u32, compute: Compute, cores: u32, home: Offset, room: u64 },
    /// A room of so many bytes is needed for what an operation has brought. What is combined there belongs to the driver's arena: offset in the
    /// room, offset there, bytes.
    Landing { rank: u32, handle: LocalHandle, bytes: u64, results: Vec<(u64, Offset, u64)> },
    /// Behind it the next bytes for the latest room, at this offset in it.
    Data { at: u64 },
    /// The answer to a task. Where it tells of data, offsets are those in the operation's room.
    Reply { rank: u32, task: u32, reply: Reply },
    /// The rank's process is to end.
    Kill { rank: u32 },
    /// Asks for [`Up::Told`].
    Ask { number: u64, question: Question },
    /// Nothing; but the driver is there.
    Pulse,
    /// The run is over.
    End,
}

/// What the driver wants to know of a rank's process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Question {
    /// What its threads wait for.
    Waits { rank: u32 },
    /// Where they stand; without disturbing it, or also those in calls of ours.
    Stands { rank: u32, undisturbed: bool, with_calls: bool },
}

/// What a worker knows of a rank's process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Told {
    /// Some thread could run.
    Runs,
    /// All wait for others of their process.
    WaitsInside,
    /// All wait, and one for something outside.
    WaitsOutside,
    /// Where threads stand.
    Stands(Vec<String>),
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Up {
    /// Behind it a line of the zygote's, or of the worker's own about why it cannot start one ([`News`]).
    News,
    /// Behind it bytes for the arena.
    Data { at: Offset },
    /// Behind it a frame of a task. It may open another task.
    Frame { rank: u32, task: u32, opens: Option<u32> },
    /// A task has closed its connection, because its process ends or not.
    Closed { rank: u32, task: u32, exiting: bool },
    /// Behind it what a rank has printed, on standard error or output; nothing: it has closed it.
    Output { rank: u32, is_error: bool },
    /// The answer to a question.
    Told { number: u64, told: Told },
    /// Nothing; but the worker is there.
    Pulse,
}

/// Sends a message, and behind it bytes.
pub(super) fn send(stream: &Stream, message: &impl Serialize, behind: &[u8]) -> io::Result<()> {
    stream.send(&[&head(message), behind])
}

/// The same of a message that another one follows at once.
pub(super) fn send_soon(stream: &Stream, message: &impl Serialize, behind: &[u8]) -> io::Result<()> {
    stream.send_soon(&[&head(message), behind])
}

fn head(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("every message has a postcard form")
}

/// A message, and the bytes behind it.
pub(super) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<(T, &'a [u8])> {
    postcard::take_from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The zygote's words, as they lie behind [`Up::News`].
pub(super) fn write_news(news: &News) -> Vec<u8> {
    serde_json::to_vec(news).expect("plain data has a JSON form")
}

/// The same, read.
pub(super) fn read_news(bytes: &[u8]) -> io::Result<News> {
    serde_json::from_slice(bytes).map_err(io::Error::from)
}
