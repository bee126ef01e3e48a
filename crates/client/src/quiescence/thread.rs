//! Owns what `/proc` tells of one thread: whether it sleeps, in which call, and whether it has run since it was looked at last.

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use uniference_protocol::descriptors::lift;

/// A thread, as the kernel numbers it.
pub type ThreadId = i32;

/// System calls in which a thread waits for one of its own process: `futex`, `futex_waitv`, `futex_wait`.
#[cfg(target_arch = "x86_64")]
pub(super) const INSIDE: [&str; 3] = ["202", "449", "455"];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const INSIDE: [&str; 3] = ["98", "449", "455"];

/// `FUTEX_PRIVATE_FLAG` (linux/futex.h): no thread of another process can wake the one that waits.
pub(super) const PRIVATE: u64 = 128;

/// System calls that end by themselves: `nanosleep`, `clock_nanosleep`.
#[cfg(target_arch = "x86_64")]
pub(super) const SLEEPS: [&str; 2] = ["35", "230"];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const SLEEPS: [&str; 2] = ["101", "115"];

/// As much of the files as matters.
const LINE: usize = 256;

/// Where the kernel tells of one thread.
pub(super) struct Thread {
    /// Its folder in `/proc`.
    folder: String,
    state: OwnedFd,
    turns: Option<OwnedFd>,
    /// `wchan`, which is several times as fast as `state`; `None`: the kernel has none.
    place: Option<OwnedFd>,
    /// `schedstat` at the first look.
    before: String,
    /// In which call it has been found waiting, and has not run since.
    waits: Option<Call>,
}

/// Whether a thread has slept since the first look.
pub(super) enum Sleep {
    /// It runs, could run, or has run.
    Not,
    /// In this call.
    In(Call),
    /// It has ended and nobody has asked how, or was stopped: only another process lets it go on.
    Over,
}

/// The system call in which a thread waits.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) number: String,
    /// Its second argument: of a futex, the operation.
    pub(super) second: u64,
    /// Its fourth argument: of a futex, where the time-out is, if there is one.
    pub(super) fourth: u64,
}

impl Call {
    /// Whether only a thread of the same process can end the wait, or, unless it `shares` memory with others, that of one which can be seen as such.
    pub(super) fn is_inside(&self, shares: bool) -> bool {
        let is_private = self.number != INSIDE[0] || self.second & PRIVATE != 0;
        INSIDE.contains(&self.number.as_str()) && (!shares || is_private)
    }

    /// Whether only another thread of its process ends it, unless a signal does.
    pub(super) fn waits_for_its_process(&self) -> bool {
        self.is_inside(true) && self.fourth == 0
    }

    /// Whether it ends by itself.
    pub(super) fn is_sleep(&self) -> bool {
        SLEEPS.contains(&self.number.as_str())
    }
}

impl Thread {
    pub(super) fn open(process: &str, id: ThreadId) -> io::Result<Thread> {
        let folder = format!("/proc/{process}/task/{id}");
        // Kernels without CONFIG_SCHED_INFO have no `schedstat`: the look is then a little less sharp.
        Ok(Thread {
            state: open(&folder, "stat")?,
            turns: open(&folder, "schedstat").ok(),
            place: open(&folder, "wchan").ok(),
            before: String::new(),
            waits: None,
            folder,
        })
    }

    /// Whether it runs or could.
    pub(super) fn runs(&self) -> bool {
        open(&self.folder, "syscall")
            .is_ok_and(|call| read(&call).is_ok_and(|line| line.as_str().trim_end() == "running"))
    }

    /// The first look. Whether it may have run since it was found waiting.
    pub(super) fn look(&mut self) -> io::Result<bool> {
        let turns = self.turns()?;
        // Where the kernel does not count, everybody may have run.
        let has_run = self.turns.is_none() || turns.as_str() != self.before;
        if has_run {
            (self.before, self.waits) = (turns.as_str().to_owned(), None);
        }
        Ok(has_run)
    }

    /// The second one.
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
                // It runs, could run, or comes from a disk soon.
                _ => return Ok(Sleep::Not),
            },
        };
        if self.turns()?.as_str() != self.before {
            return Ok(Sleep::Not);
        }
        self.waits = Some(call.clone());
        Ok(Sleep::In(call))
    }

    /// The call in which it has been found waiting, if it has not run since as far as is known.
    pub(super) fn waits(&self) -> Option<&Call> {
        self.waits.as_ref()
    }

    /// Whether it runs or could, that was found waiting. A thread that can be woken and was not has a place in the kernel where it sleeps (proc(5),
    /// `wchan`; the kernel's `get_wchan`); of others the file says 0, and so it does of all where this process may not know.
    pub(super) fn is_awake(&self) -> io::Result<bool> {
        if let Some(place) = &self.place
            && !matches!(read(place)?.as_str(), "0" | "")
        {
            return Ok(false);
        }
        Ok(state(&read(&self.state)?) != Some(b'S'))
    }

    /// The call in which it waits now; `None`: it runs.
    fn call(&self) -> io::Result<Option<Call>> {
        let file = open(&self.folder, "syscall").map_err(io::Error::from);
        let line = match file.and_then(|file| read(&file)) {
            // As of a process of another user.
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
        // "-1": it was interrupted outside any call, as by a page that comes from a disk.
        let runs = matches!(number.as_str(), "running" | "-1");
        Ok((!runs).then_some(Call { number, second, fourth }))
    }

    fn turns(&self) -> io::Result<Line> {
        self.turns.as_ref().map_or(Ok(Line::default()), read)
    }
}

/// Whether a look failed because of what it saw: a thread has just ended, or the program has closed what is not its own, and the files
/// must be opened again.
pub(super) fn changed(error: io::Error) -> io::Result<()> {
    let expected = [Errno::NOENT, Errno::SRCH, Errno::BADF];
    let is_expected = expected.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()));
    if is_expected { Ok(()) } else { Err(error) }
}

/// Whether the kernel does not tell this process what another one does.
fn is_secret(error: &io::Error) -> bool {
    [Errno::ACCESS, Errno::PERM].iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

/// A file in which the kernel tells of a thread.
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

    /// Of a file that is no text, nothing.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(self.bytes()).unwrap_or_default()
    }
}

pub(super) fn read(file: &OwnedFd) -> io::Result<Line> {
    let mut line = Line::default();
    line.length = rustix::io::pread(file, &mut line.bytes, 0)?;
    Ok(line)
}

/// When a process was started, as the kernel counts; `None`: it is gone, or has ended and nobody has asked how.
pub(crate) fn started_at(process: i32) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name: the state is the first word, and this the 20th (man 5 proc).
    let mut words = line.rsplit_once(')')?.1.split_ascii_whitespace();
    (words.next() != Some("Z")).then(|| words.nth(18)?.parse().ok()).flatten()
}

/// The state in a line of `stat`: behind the name, which stands in brackets and may hold any bytes.
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

/// Whether these are all threads of a process, if none of them has ended: as many as it has. Their folder has a link for each, and two of its own.
pub(super) fn are_all(process: &str, known: impl ExactSizeIterator<Item = ThreadId>) -> io::Result<bool> {
    let links = rustix::fs::stat(format!("/proc/{process}/task"))?.st_nlink;
    // Systems that are only like Linux may count otherwise.
    Ok(links as u64 == known.len() as u64 + 2 || list(process)?.into_iter().eq(known))
}
