//! Owns one question: do all other threads of this process (or all of another one) wait, and for what? And those of the processes that it
//! has started? Linux answers it in `/proc`.
//!
//! What follows from the answer is `rounds`' business.
//!
//! A thread is looked at twice. If it slept at the second look (`stat`; `syscall` says in which call) and has not been on the processor
//! since the first (`schedstat` counts how often), it has slept all the time in between; and a thread that another one wakes does not
//! count as asleep from that moment on. So if that holds for every thread, there was a moment at which all of them slept, and none can
//! wake up by itself.

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use uniference_protocol::descriptors::lift;

/// A thread, as the kernel numbers it.
pub type ThreadId = i32;

/// What the threads that were looked at do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// At least one could run.
    Running,
    /// All wait for others of their process.
    Inside,
    /// All wait, and at least one for something else: a pipe, a socket, a process.
    Outside,
}

/// A look at the threads of a process.
pub struct Threads {
    /// Its folder's name in `/proc`.
    process: String,
    known: BTreeMap<ThreadId, Thread>,
}

impl Default for Threads {
    /// Those of this process.
    fn default() -> Threads {
        Threads { process: "self".into(), known: BTreeMap::new() }
    }
}

/// Where the kernel tells of one thread.
struct Thread {
    state: OwnedFd,
    call: OwnedFd,
    turns: Option<OwnedFd>,
    /// `schedstat` at the first look.
    before: String,
}

/// System calls in which a thread waits for one of its own process: `futex`, `futex_waitv`, `futex_wait`.
#[cfg(target_arch = "x86_64")]
const INSIDE: [&str; 3] = ["202", "449", "455"];
#[cfg(not(target_arch = "x86_64"))]
const INSIDE: [&str; 3] = ["98", "449", "455"];

/// System calls that end by themselves: `nanosleep`, `clock_nanosleep`.
#[cfg(target_arch = "x86_64")]
const SLEEPS: [&str; 2] = ["35", "230"];
#[cfg(not(target_arch = "x86_64"))]
const SLEEPS: [&str; 2] = ["101", "115"];

/// As much of the files as matters.
const LINE: usize = 256;

impl Threads {
    /// Those of another process.
    pub fn of(pid: i32) -> Threads {
        Threads { process: pid.to_string(), ..Threads::default() }
    }

    /// What all threads do but those to `skip`; what those `inside` wait for is known to be of this process.
    ///
    /// # Errors
    /// If that cannot be seen: there is no room for another file.
    pub fn look(&mut self, skip: &BTreeSet<ThreadId>, inside: &BTreeSet<ThreadId>) -> io::Result<Found> {
        let found = self.first_look(skip).and_then(|list| self.second_look(&list, skip, inside));
        found.or_else(|error| {
            self.known.clear();
            changed(error).map(|()| Found::Running)
        })
    }

    fn first_look(&mut self, skip: &BTreeSet<ThreadId>) -> io::Result<BTreeSet<ThreadId>> {
        let list = list(&self.process, skip)?;
        self.known.retain(|thread, _| list.contains(thread));
        for id in &list {
            let thread = match self.known.remove(id) {
                Some(thread) => thread,
                None => Thread::open(&self.process, *id)?,
            };
            let before = thread.turns()?;
            self.known.insert(*id, Thread { before, ..thread });
        }
        Ok(list)
    }

    fn second_look(
        &self,
        list_before: &BTreeSet<ThreadId>,
        skip: &BTreeSet<ThreadId>,
        inside: &BTreeSet<ThreadId>,
    ) -> io::Result<Found> {
        if list(&self.process, skip)? != *list_before {
            return Ok(Found::Running);
        }
        let mut found = Found::Inside;
        for (id, thread) in &self.known {
            let Some(call) = thread.waits_in()? else { return Ok(Found::Running) };
            if !INSIDE.contains(&call.as_str()) && !inside.contains(id) {
                found = Found::Outside;
            }
        }
        Ok(found)
    }
}

/// Whether a look failed because of what it saw: a thread has just ended, or the program has closed what is not its own, and the files
/// must be opened again.
fn changed(error: io::Error) -> io::Result<()> {
    let expected = [Errno::NOENT, Errno::SRCH, Errno::BADF];
    let is_expected = expected.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()));
    if is_expected { Ok(()) } else { Err(error) }
}

/// A look at the processes that this one has started, and at those that these have.
#[derive(Default)]
pub(crate) struct Family {
    known: BTreeMap<(String, ThreadId), Thread>,
}

impl Family {
    /// The first look; whether it was one.
    pub(crate) fn look(&mut self) -> io::Result<bool> {
        let looked = self.first_look().map(|()| true);
        looked.or_else(|error| changed(error).map(|()| false))
    }

    /// The second one: whether all have slept since, and none can wake up by itself.
    pub(crate) fn has_slept(&mut self) -> io::Result<bool> {
        self.second_look().or_else(|error| {
            // One has ended, and another may get its number.
            self.known.clear();
            changed(error).map(|()| false)
        })
    }

    fn first_look(&mut self) -> io::Result<()> {
        let list = family()?;
        self.known.retain(|id, _| list.contains(id));
        for id in list {
            let thread = match self.known.remove(&id) {
                Some(thread) => thread,
                None => Thread::open(&id.0, id.1)?,
            };
            let before = thread.turns()?;
            self.known.insert(id, Thread { before, ..thread });
        }
        Ok(())
    }

    fn second_look(&self) -> io::Result<bool> {
        for thread in self.known.values() {
            if thread.waits_in()?.is_none_or(|call| SLEEPS.contains(&call.as_str())) {
                return Ok(false);
            }
        }
        Ok(family()?.iter().eq(self.known.keys()))
    }
}

/// The threads of all descendants, by process.
fn family() -> io::Result<BTreeSet<(String, ThreadId)>> {
    let mut threads = BTreeSet::new();
    let mut processes = vec!["self".to_owned()];
    while let Some(process) = processes.pop() {
        for thread in list(&process, &BTreeSet::new())? {
            let children = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/children"))?;
            processes.extend(children.split_ascii_whitespace().map(str::to_owned));
            if process != "self" {
                threads.insert((process.clone(), thread));
            }
        }
    }
    Ok(threads)
}

impl Thread {
    fn open(process: &str, id: ThreadId) -> io::Result<Thread> {
        let open = |name: &str| {
            let path = format!("/proc/{process}/task/{id}/{name}");
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(lift)
        };
        // Kernels without CONFIG_SCHED_INFO have no `schedstat`: the look is then a little less sharp.
        Ok(Thread {
            state: open("stat")?,
            call: open("syscall")?,
            turns: open("schedstat").ok(),
            before: String::new(),
        })
    }

    /// The second look: the number of the system call in which the thread has slept since the first. `None`: it has run.
    fn waits_in(&self) -> io::Result<Option<String>> {
        // Anything but "S": it runs, could run, or comes from a disk soon.
        if state(&read(&self.state)?) != Some("S") {
            return Ok(None);
        }
        let line = read(&self.call)?;
        let call = line.split_ascii_whitespace().next().unwrap_or_default();
        // "-1": it was interrupted outside any call, as by a page that comes from a disk.
        let ran = matches!(call, "running" | "-1") || self.turns()? != self.before;
        Ok((!ran).then(|| call.to_owned()))
    }

    fn turns(&self) -> io::Result<String> {
        self.turns.as_ref().map_or(Ok(String::new()), read)
    }
}

fn read(file: &OwnedFd) -> io::Result<String> {
    let mut line = [0; LINE];
    let length = rustix::io::pread(file, &mut line, 0)?;
    Ok(String::from_utf8_lossy(&line[..length]).into_owned())
}

/// The state in a line of `stat`: behind the name, which stands in brackets and may hold any.
fn state(line: &str) -> Option<&str> {
    line.rsplit_once(')')?.1.split_ascii_whitespace().next()
}

fn list(process: &str, skip: &BTreeSet<ThreadId>) -> io::Result<BTreeSet<ThreadId>> {
    let path = format!("/proc/{process}/task");
    let folder = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut threads = BTreeSet::new();
    for entry in Dir::new(folder)? {
        let thread = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        threads.extend(thread.filter(|thread| !skip.contains(thread)));
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    /// Looks only at those.
    fn look(threads: &mut Threads, at: &[ThreadId], inside: &[ThreadId]) -> Found {
        let skip = list("self", &BTreeSet::new()).unwrap().into_iter().filter(|thread| !at.contains(thread)).collect();
        threads.look(&skip, &inside.iter().copied().collect()).unwrap()
    }

    fn comes(threads: &mut Threads, at: &[ThreadId], inside: &[ThreadId], wanted: Found) -> bool {
        (0..100_000).any(|_| {
            thread::yield_now();
            look(threads, at, inside) == wanted
        })
    }

    /// A thread that tells its number and then does as it likes.
    fn start(work: impl FnOnce() + Send + 'static) -> ThreadId {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            work();
        });
        told.recv().unwrap()
    }

    #[test]
    fn a_thread_that_waits_for_another_is_told_from_one_that_reads_a_pipe_and_one_that_runs() {
        let (stop, stopped) = mpsc::channel::<()>();
        let waiter = start(move || assert!(stopped.recv().is_err()));
        let (pipe, _keep) = rustix::pipe::pipe().unwrap();
        let reader = start(move || assert_eq!(rustix::io::read(&pipe, &mut [0; 1][..]), Ok(0)));
        let going = Arc::new(AtomicBool::new(true));
        let spins = going.clone();
        let spinner = start(move || while spins.load(Relaxed) {});
        let mut threads = Threads::default();
        assert!(comes(&mut threads, &[waiter], &[], Found::Inside));
        assert!(comes(&mut threads, &[waiter, reader], &[], Found::Outside));
        assert!(comes(&mut threads, &[waiter, reader], &[reader], Found::Inside));
        assert!((0..1000).all(|_| look(&mut threads, &[waiter, spinner], &[]) == Found::Running));
        going.store(false, Relaxed);
        drop(stop);
    }

    #[test]
    fn a_child_that_waits_for_input_is_told_from_one_that_sleeps_for_a_time() {
        let slept = |family: &mut Family| family.look().unwrap() && family.has_slept().unwrap();
        let mut family = Family::default();
        assert!(slept(&mut family), "there is none");
        let start = |command: &str, argument: Option<&str>| {
            let mut command = Command::new(command);
            command.args(argument).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
        };
        let mut reader = start("cat", None);
        assert!((0..100_000).any(|_| slept(&mut family)));
        let mut sleeper = start("sleep", Some("60"));
        let call = || std::fs::read_to_string(format!("/proc/{}/syscall", sleeper.id())).unwrap_or_default();
        assert!((0..100_000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            SLEEPS.contains(&call().split_ascii_whitespace().next().unwrap_or_default())
        }));
        assert!((0..1000).all(|_| !slept(&mut family)));
        for child in [&mut reader, &mut sleeper] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(slept(&mut family));
    }
}
