//! Owns one question: do all other threads of this process wait, and for what? Linux answers it in `/proc/self/task`.
//!
//! What follows from the answer is `rounds`' business.
//!
//! A thread is looked at twice. If it slept at the second look (`stat`; `syscall` says in which call) and has not been on the processor
//! since the first (`schedstat` counts how often), it has slept all the time in between; and a thread that another one wakes does not
//! count as asleep from that moment on. So if that holds for every thread, there was a moment at which all of them slept, and none can
//! wake up by itself.

use rustix::fs::{Dir, Mode, OFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;

/// A thread, as the kernel numbers it.
pub(crate) type ThreadId = i32;

/// What the threads that were looked at do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// At least one could run.
    Running,
    /// All wait for others of their process.
    Inside,
    /// All wait, and at least one for something else: a pipe, a socket, a process.
    Outside,
}

/// A look at the threads of this process.
#[derive(Default)]
pub(crate) struct Threads {
    known: BTreeMap<ThreadId, Thread>,
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

/// As much of the files as matters.
const LINE: usize = 256;

impl Threads {
    /// What all threads do but those to `skip`; what those `inside` wait for is known to be of this process.
    pub(crate) fn look(&mut self, skip: &BTreeSet<ThreadId>, inside: &BTreeSet<ThreadId>) -> Found {
        self.first_look(skip).and_then(|list| self.second_look(&list, skip, inside)).unwrap_or(Found::Running)
    }

    fn first_look(&mut self, skip: &BTreeSet<ThreadId>) -> io::Result<BTreeSet<ThreadId>> {
        let list = list(skip)?;
        self.known.retain(|thread, _| list.contains(thread));
        for id in &list {
            let thread = match self.known.remove(id) {
                Some(thread) => thread,
                None => Thread::open(*id)?,
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
        if list(skip)? != *list_before {
            return Ok(Found::Running);
        }
        let mut found = Found::Inside;
        for (id, thread) in &self.known {
            // Anything but "S": it runs, could run, or comes from a disk soon.
            if state(&read(&thread.state)?) != Some("S") {
                return Ok(Found::Running);
            }
            let line = read(&thread.call)?;
            let call = line.split_ascii_whitespace().next().unwrap_or_default();
            // "-1": it was interrupted outside any call, as by a page that comes from a disk.
            if matches!(call, "running" | "-1") || thread.turns()? != thread.before {
                return Ok(Found::Running);
            }
            if !INSIDE.contains(&call) && !inside.contains(id) {
                found = Found::Outside;
            }
        }
        Ok(found)
    }
}

impl Thread {
    fn open(id: ThreadId) -> io::Result<Thread> {
        let open = |name: &str| {
            let path = format!("/proc/self/task/{id}/{name}");
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        };
        // Kernels without CONFIG_SCHED_INFO have no `schedstat`: the look is then a little less sharp.
        Ok(Thread {
            state: open("stat")?,
            call: open("syscall")?,
            turns: open("schedstat").ok(),
            before: String::new(),
        })
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

fn list(skip: &BTreeSet<ThreadId>) -> io::Result<BTreeSet<ThreadId>> {
    let folder = rustix::fs::open("/proc/self/task", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
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
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Arc, mpsc};
    use std::thread;

    /// Looks only at those.
    fn look(threads: &mut Threads, at: &[ThreadId], inside: &[ThreadId]) -> Found {
        let skip = list(&BTreeSet::new()).unwrap().into_iter().filter(|thread| !at.contains(thread)).collect();
        threads.look(&skip, &inside.iter().copied().collect())
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
}
