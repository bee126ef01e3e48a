//! Owns the check whether all other threads of this process (or all threads of another process) wait, and for what,
//! including the processes that it has started. Linux provides the data in `/proc`.
//!
//! `thread_barrier` decides on the consequences.
//!
//! Each thread is examined twice. A thread that sleeps at the second look (`stat`; `syscall` names the system call) and
//! has not been on a CPU since the first look (`schedstat` counts its runs) has slept all the time in between; a thread
//! does not count as asleep from the moment at which another thread wakes it. If that holds for every thread, there was
//! a moment at which all of them slept, and none can wake up by itself.
//!
//! A process has hundreds of threads, of which few have run since the previous check: for a thread that has not run,
//! its system call and its child processes are unchanged.

mod family;
mod thread;

pub(crate) use family::Family;
pub use thread::ThreadId;
pub(crate) use thread::started_at;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use thread::{Sleep, Thread, are_all, changed, list};

/// The state of the examined threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// At least one thread could run.
    Running,
    /// All threads wait for others of their process.
    Inside,
    /// All threads wait, and at least one for something else: a pipe, a socket, a process.
    Outside,
}

/// A check of the threads of a process.
pub struct Threads {
    /// The process's folder name in `/proc`.
    process: String,
    /// All threads at the first look.
    all: BTreeSet<ThreadId>,
    /// The examined threads, some of which may have ended since.
    known: BTreeMap<ThreadId, Thread>,
    /// Whether other processes may share memory with this one: a wait for a shareable futex may then be for another
    /// process.
    shares: bool,
    /// The thread that was last seen running.
    runner: Option<ThreadId>,
}

impl Default for Threads {
    /// A check of the threads of this process.
    fn default() -> Threads {
        let (all, known) = (BTreeSet::new(), BTreeMap::new());
        Threads { process: "self".into(), all, known, shares: false, runner: None }
    }
}

impl Threads {
    /// A check of the threads of another process.
    pub fn of(pid: i32) -> Threads {
        Threads { process: pid.to_string(), ..Threads::default() }
    }

    /// Number of known threads, each with open files.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Makes a futex that can be shared between processes count as outside from now on.
    pub fn share(&mut self) {
        self.shares = true;
    }

    /// Notes that this thread runs from now on.
    pub(crate) fn goes_on(&mut self, thread: ThreadId) {
        self.runner = Some(thread);
    }

    /// Whether the thread that was last seen running still runs, unless it is in `skip`. This examines one thread
    /// instead of all.
    pub(crate) fn still_runs(&self, skip: &BTreeSet<ThreadId>) -> bool {
        let runner = self.runner.filter(|runner| !skip.contains(runner));
        runner.and_then(|runner| self.known.get(&runner)).is_some_and(Thread::runs)
    }

    /// The state of all threads except `skip`; waits of the threads in `inside` are known to be for this process.
    ///
    /// # Errors
    /// If the state cannot be read, because no further file can be opened.
    pub fn look(&mut self, skip: &BTreeSet<ThreadId>, inside: &BTreeSet<ThreadId>) -> io::Result<Found> {
        self.look_around(skip, inside, |_| Ok(())).map(|(found, _)| found)
    }

    /// As [`Threads::look`], and calls `between` with all threads of the process between the two looks: a moment at
    /// which all threads sleep comes after the start of `between`.
    ///
    /// # Errors
    /// As [`Threads::look`], and errors of `between`.
    pub fn look_around<T: Default>(
        &mut self,
        skip: &BTreeSet<ThreadId>,
        inside: &BTreeSet<ThreadId>,
        between: impl FnOnce(&BTreeSet<ThreadId>) -> io::Result<T>,
    ) -> io::Result<(Found, T)> {
        self.runner = None;
        let first = self.first_look(skip);
        let happened = if first.is_ok() { between(&self.all)? } else { T::default() };
        let found = first.and_then(|()| self.second_look(skip, inside));
        let found = found.or_else(|error| {
            self.known.clear();
            self.all.clear();
            changed(error).map(|()| Found::Running)
        })?;
        Ok((found, happened))
    }

    fn first_look(&mut self, skip: &BTreeSet<ThreadId>) -> io::Result<()> {
        if self.all.is_empty() || !are_all(&self.process, self.all.iter().copied())? {
            self.all = list(&self.process)?;
            // Only ended threads are dropped: files of threads in `skip` stay open.
            self.known.retain(|thread, _| self.all.contains(thread));
        }
        for id in self.all.difference(skip) {
            let mut thread = match self.known.remove(id) {
                Some(thread) => thread,
                None => Thread::open(&self.process, *id)?,
            };
            thread.look()?;
            self.known.insert(*id, thread);
        }
        Ok(())
    }

    fn second_look(&mut self, skip: &BTreeSet<ThreadId>, inside: &BTreeSet<ThreadId>) -> io::Result<Found> {
        // The list of threads is compared before the threads are examined: a thread that ends in the meantime may have
        // woken others before.
        if !are_all(&self.process, self.all.iter().copied())? {
            return Ok(Found::Running);
        }
        let mut found = Found::Inside;
        for (id, thread) in self.known.iter_mut().filter(|(id, _)| !skip.contains(id)) {
            let Sleep::In(call) = thread.sleeps()? else {
                self.runner = Some(*id);
                return Ok(Found::Running);
            };
            if !call.is_inside(self.shares) && !inside.contains(id) {
                found = Found::Outside;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::thread::{Call, INSIDE, PRIVATE, SLEEPS};
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    /// Examines only the threads in `at`.
    fn look(threads: &mut Threads, at: &[ThreadId], inside: &[ThreadId]) -> Found {
        let skip = list("self").unwrap().into_iter().filter(|thread| !at.contains(thread)).collect();
        threads.look(&skip, &inside.iter().copied().collect()).unwrap()
    }

    fn comes(threads: &mut Threads, at: &[ThreadId], inside: &[ThreadId], wanted: Found) -> bool {
        (0..100_000).any(|_| {
            thread::yield_now();
            look(threads, at, inside) == wanted
        })
    }

    /// All threads of this process.
    fn own() -> BTreeSet<ThreadId> {
        list("self").unwrap()
    }

    /// CPU time of all threads of a process: the first number of `schedstat`.
    fn used(process: i32) -> Option<u64> {
        let of = |thread: ThreadId| {
            let line = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
            line.split_ascii_whitespace().next()?.parse::<u64>().ok()
        };
        Some(list(&process.to_string()).ok()?.into_iter().filter_map(of).sum())
    }

    /// One family that examines each thread, and one that first compares CPU times.
    fn families() -> [Family; 2] {
        let mut measured = Family::default();
        measured.measure(used);
        [Family::default(), measured]
    }

    /// Starts a thread that reports its id and then runs `work`.
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
        // It is now enough to examine the running thread.
        assert!((0..1000).all(|_| threads.still_runs(&BTreeSet::new())));
        assert!(!threads.still_runs(&BTreeSet::from([spinner])));
        going.store(false, Relaxed);
        assert!((0..100_000).any(|_| {
            thread::yield_now();
            !threads.still_runs(&BTreeSet::new())
        }));
        drop(stop);
    }

    #[test]
    fn a_child_that_waits_for_input_is_told_from_one_that_sleeps_for_a_time() {
        let nobody = BTreeSet::new();
        let slept = |family: &mut Family| family.look(&own(), &nobody).unwrap() && family.has_slept().unwrap();
        for mut family in families() {
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
            sleeper.kill().unwrap();
            // The process has ended, but has not been reaped.
            assert!((0..100_000).any(|_| slept(&mut family)));
            reader.kill().unwrap();
            for child in [&mut reader, &mut sleeper] {
                child.wait().unwrap();
            }
            assert!(slept(&mut family));
        }
    }

    /// A shell waits for a line, then starts a process, and waits for another line: the new process is examined from
    /// then on.
    #[test]
    fn what_a_relative_starts_later_is_looked_at() {
        let nobody = BTreeSet::new();
        let slept = |family: &mut Family| family.look(&own(), &nobody).unwrap() && family.has_slept().unwrap();
        for mut family in families() {
            let mut shell = Command::new("sh")
                .args(["-c", "read line; sleep 60 & echo $!; read line"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = shell.stdin.take().unwrap();
            assert!((0..100_000).any(|_| slept(&mut family)));
            assert!((0..100).all(|_| slept(&mut family)), "nothing has happened since");
            input.write_all(b"\n").unwrap();
            let mut line = String::new();
            BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let started: i32 = line.trim().parse().unwrap();
            // The process starts a sleep, which ends by itself, and the shell waits for its next line.
            assert!((0..1000).all(|_| !slept(&mut family)));
            assert!(family.knows(started));
            let started = rustix::process::Pid::from_raw(started).unwrap();
            rustix::process::kill_process(started, rustix::process::Signal::KILL).unwrap();
            drop(input);
            shell.wait().unwrap();
            assert!((0..100_000).any(|_| slept(&mut family)));
            assert!(family.knows_nobody());
        }
    }

    /// The process reads a line, and then waits for the next one: it has run in between, even if it was not examined in
    /// the meantime.
    #[test]
    fn a_relative_that_goes_on_is_seen_before_it_waits_again() {
        let nobody = BTreeSet::new();
        let slept = |family: &mut Family| family.look(&own(), &nobody).unwrap() && family.has_slept().unwrap();
        for mut family in families() {
            let mut echo = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let (mut input, mut output) = (echo.stdin.take().unwrap(), BufReader::new(echo.stdout.take().unwrap()));
            assert!((0..100_000).any(|_| slept(&mut family)));
            for _ in 0..100 {
                assert!((0..100_000).any(|_| slept(&mut family)));
                assert!(family.look(&own(), &nobody).unwrap());
                input.write_all(b"line\n").unwrap();
                output.read_line(&mut String::new()).unwrap();
                assert!(!family.has_slept().unwrap(), "it has run between the looks");
            }
            drop(input);
            echo.wait().unwrap();
        }
    }

    #[test]
    fn a_futex_that_can_be_shared_counts_as_outside_where_memory_may_be_shared() {
        let call = |number: &str, operation| Call { number: number.into(), second: operation, fourth: 0 };
        // FUTEX_WAIT is 0.
        let (private, shared) = (call(INSIDE[0], PRIVATE), call(INSIDE[0], 0));
        assert!(private.is_inside(true) && private.is_inside(false) && shared.is_inside(false));
        assert!(!shared.is_inside(true) && !call("0", PRIVATE).is_inside(false));
    }

    #[test]
    fn a_process_of_nobody_any_more_is_looked_at_as_long_as_it_is_there() {
        let mut parent = Command::new("sh").args(["-c", "sleep 60 & echo $!"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
        parent.wait().unwrap();
        let left: i32 = line.trim().parse().unwrap();
        let found = |others: &[i32]| {
            let mut family = Family::default();
            assert!(family.look(&own(), &others.iter().copied().collect()).unwrap());
            family.knows(left)
        };
        assert!(!found(&[]) && found(&[left]));
        rustix::process::kill_process(rustix::process::Pid::from_raw(left).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
    }
}
