//! Owns the data of `/proc` on one thread: whether it sleeps, in which system call, and whether it has run since the
//! previous look.

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use uniference_protocol::descriptors::lift;

/// The kernel's id of a thread.
pub type ThreadId = i32;

/// System calls in which a thread waits for another thread of its process: `futex`, `futex_waitv`, `futex_wait`.
#[cfg(target_arch = "x86_64")]
pub(super) const INSIDE: [&str; 3] = ["202", "449", "455"];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const INSIDE: [&str; 3] = ["98", "449", "455"];

/// `FUTEX_PRIVATE_FLAG` (linux/futex.h): no thread of another process can wake the waiting thread.
pub(super) const PRIVATE: u64 = 128;

/// System calls that end by themselves: `nanosleep`, `clock_nanosleep`.
#[cfg(target_arch = "x86_64")]
pub(super) const SLEEPS: [&str; 2] = ["35", "230"];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const SLEEPS: [&str; 2] = ["101", "115"];

/// Number of bytes that are read of each of the kernel's files on a thread.
const LINE: usize = 256;

/// The kernel's files on one thread.
pub(super) struct Thread {
    /// The thread's folder in `/proc`.
    folder: String,
    state: OwnedFd,
    turns: Option<OwnedFd>,
    /// `wchan`, which is several times as fast as `state`; `None`: the kernel does not provide it.
    place: Option<OwnedFd>,
    /// `schedstat` at the first look.
    before: String,
    /// The system call in which the thread was found waiting, if it has not run since.
    waits: Option<Call>,
}

/// The result of the second look.
pub(super) enum Sleep {
    /// The thread runs, could run, or has run since the first look.
    Not,
    /// The thread has slept in this system call.
    In(Call),
    /// The thread has ended and was not reaped, or was stopped: only another process can make it continue.
    Over,
}

/// The system call in which a thread waits.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) number: String,
    /// The second argument: for a futex, the operation.
    pub(super) second: u64,
    /// The fourth argument: for a futex, the address of the timeout, if there is one.
    pub(super) fourth: u64,
}

impl Call {
    /// Whether only a thread of the same process can end the wait. If the process `shares` memory with others, this
    /// must be certain from the call itself.
    pub(super) fn is_inside(&self, shares: bool) -> bool {
        let is_private = self.number != INSIDE[0] || self.second & PRIVATE != 0;
        INSIDE.contains(&self.number.as_str()) && (!shares || is_private)
    }

    /// Whether only another thread of the process, or a signal, can end the wait.
    pub(super) fn waits_for_its_process(&self) -> bool {
        self.is_inside(true) && self.fourth == 0
    }

    /// Whether the call ends by itself.
    pub(super) fn is_sleep(&self) -> bool {
        SLEEPS.contains(&self.number.as_str())
    }
}

impl Thread {
    pub(super) fn open(process: &str, id: ThreadId) -> io::Result<Thread> {
        let folder = format!("/proc/{process}/task/{id}");
        // Kernels without CONFIG_SCHED_INFO have no `schedstat`, which makes the check less precise.
        Ok(Thread {
            state: open(&folder, "stat")?,
            turns: open(&folder, "schedstat").ok(),
            place: open(&folder, "wchan").ok(),
            before: String::new(),
            waits: None,
            folder,
        })
    }

    /// Whether the thread runs or could run.
    pub(super) fn runs(&self) -> bool {
        open(&self.folder, "syscall")
            .is_ok_and(|call| read(&call).is_ok_and(|line| line.as_str().trim_end() == "running"))
    }

    /// Takes the first look. Returns whether the thread may have run since it was found waiting.
    pub(super) fn look(&mut self) -> io::Result<bool> {
        let turns = self.turns()?;
        // Without the kernel's counter, any thread may have run.
        let has_run = self.turns.is_none() || turns.as_str() != self.before;
        if has_run {
            (self.before, self.waits) = (turns.as_str().to_owned(), None);
        }
        Ok(has_run)
    }

    /// Takes the second look.
    pub(super) fn sleeps(&mut self) -> io::Result<Sleep> {
        let known = self.waits.take();
        let call = match known {
            Some(_) if self.is_awake()? => return Ok(Sleep::Not),
            Some(call) => call,
            None => match state(&read(&self.state)?) {
                Some(b'S') => match self.call()? {
                    Some(call) => call,
                    None => return Ok(Sleep::Not),
                },
                Some(b'Z' | b'X' | b'T' | b't') => return Ok(Sleep::Over),
                // The thread runs, could run, or waits for a disk.
                _ => return Ok(Sleep::Not),
            },
        };
        if self.turns()?.as_str() != self.before {
            return Ok(Sleep::Not);
        }
        self.waits = Some(call.clone());
        Ok(Sleep::In(call))
    }

    /// The system call in which the thread was found waiting, if it has not run since as far as known.
    pub(super) fn waits(&self) -> Option<&Call> {
        self.waits.as_ref()
    }

    /// Whether a thread that was found waiting now runs or could run. The kernel reports the place in the kernel at
    /// which a thread sleeps that can be woken and was not (proc(5), `wchan`; the kernel's `get_wchan`); for other
    /// threads, and for all threads that this process may not inspect, the file contains 0.
    pub(super) fn is_awake(&self) -> io::Result<bool> {
        if let Some(place) = &self.place
            && !matches!(read(place)?.as_str(), "0" | "")
        {
            return Ok(false);
        }
        Ok(state(&read(&self.state)?) != Some(b'S'))
    }

    /// The system call in which the thread waits now; `None`: it runs.
    fn call(&self) -> io::Result<Option<Call>> {
        let file = open(&self.folder, "syscall").map_err(io::Error::from);
        let line = match file.and_then(|file| read(&file)) {
            // The process belongs to another user.
            Err(error) if is_secret(&error) => Line::default(),
            line => line?,
        };
        let mut words = line.as_str().split_ascii_whitespace();
        let number = words.next().unwrap_or_default().to_owned();
        let mut argument = |place| {
            let word: Option<&str> = words.nth(place);
            word.and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()).unwrap_or_default()
        };
        let (second, fourth) = (argument(1), argument(1));
        // "-1": the thread was interrupted outside of any call, for example by a page fault that reads from a disk.
        let runs = matches!(number.as_str(), "running" | "-1");
        Ok((!runs).then_some(Call { number, second, fourth }))
    }

    fn turns(&self) -> io::Result<Line> {
        self.turns.as_ref().map_or(Ok(Line::default()), read)
    }
}

/// Handles errors that a change of the examined threads explains: a thread has just ended, or the program has closed
/// descriptors that are not its own, and the files must be opened again.
pub(super) fn changed(error: io::Error) -> io::Result<()> {
    let expected = [Errno::NOENT, Errno::SRCH, Errno::BADF];
    let is_expected = expected.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()));
    if is_expected { Ok(()) } else { Err(error) }
}

/// Whether the kernel refuses to reveal another process's state.
fn is_secret(error: &io::Error) -> bool {
    [Errno::ACCESS, Errno::PERM].iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

/// Opens a file of the kernel on a thread.
pub(super) fn open(folder: &str, name: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(format!("{folder}/{name}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(lift)
}

/// The beginning of a file.
pub(super) struct Line {
    bytes: [u8; LINE],
    length: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line { bytes: [0; LINE], length: 0 }
    }
}

impl Line {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The text; empty if the bytes are not UTF-8.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(self.bytes()).unwrap_or_default()
    }
}

pub(super) fn read(file: &OwnedFd) -> io::Result<Line> {
    let mut line = Line::default();
    line.length = rustix::io::pread(file, &mut line.bytes, 0)?;
    Ok(line)
}

/// A process's start time in the kernel's units; `None`: the process no longer exists, or has ended and was not reaped.
pub(crate) fn started_at(process: i32) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Fields after the name: the state is the first, and the start time the 20th (man 5 proc).
    let mut words = line.rsplit_once(')')?.1.split_ascii_whitespace();
    (words.next() != Some("Z")).then(|| words.nth(18)?.parse().ok()).flatten()
}

/// The state in a line of `stat`: follows the name, which is in parentheses and may contain any bytes.
fn state(line: &Line) -> Option<u8> {
    let bytes = line.bytes();
    let behind = bytes.iter().rposition(|byte| *byte == b')')?;
    bytes.get(behind + 2).copied()
}

/// The threads of a process.
pub(super) fn list(process: &str) -> io::Result<BTreeSet<ThreadId>> {
    let path = format!("/proc/{process}/task");
    let folder = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut threads = BTreeSet::new();
    for entry in Dir::new(folder)? {
        threads.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<ThreadId>().ok()));
    }
    Ok(threads)
}

/// Whether `known` are all threads of a process, provided that none of them has ended. The number of links of the
/// process's task folder is the number of its threads plus two.
pub(super) fn are_all(process: &str, known: impl ExactSizeIterator<Item = ThreadId>) -> io::Result<bool> {
    let links = rustix::fs::stat(format!("/proc/{process}/task"))?.st_nlink;
    // Systems that emulate Linux may count links differently: the threads are then listed.
    Ok(links as u64 == known.len() as u64 + 2 || list(process)?.into_iter().eq(known))
}
