//! Owns one question: do all other threads of this process (or all of another one) wait, and for what? And those of the processes that it
//! has started? Linux answers it in `/proc`.
//!
//! What follows from the answer is `rounds`' business.
//!
//! A thread is looked at twice. If it slept at the second look (`stat`; `syscall` says in which call) and has not been on the processor
//! since the first (`schedstat` counts how often), it has slept all the time in between; and a thread that another one wakes does not
//! count as asleep from that moment on. So if that holds for every thread, there was a moment at which all of them slept, and none can
//! wake up by itself.
//!
//! A process has hundreds of threads, of which few have run since they were looked at last: of one that has not, it is still true in which
//! call it waits, and which processes it has started.

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
    /// Other processes may share memory with this one: who waits for a futex that can be shared may wait for one of them.
    shares: bool,
    /// Which thread was seen running last.
    runner: Option<ThreadId>,
}

impl Default for Threads {
    /// Those of this process.
    fn default() -> Threads {
        Threads { process: "self".into(), known: BTreeMap::new(), shares: false, runner: None }
    }
}

/// Where the kernel tells of one thread.
struct Thread {
    state: OwnedFd,
    /// `None`: the kernel does not tell, as of a process of another user.
    call: Option<OwnedFd>,
    turns: Option<OwnedFd>,
    /// `schedstat` at the first look.
    before: String,
    /// In which call it has been found waiting, and has not run since.
    waits: Option<Call>,
}

/// System calls in which a thread waits for one of its own process: `futex`, `futex_waitv`, `futex_wait`.
#[cfg(target_arch = "x86_64")]
const INSIDE: [&str; 3] = ["202", "449", "455"];
#[cfg(not(target_arch = "x86_64"))]
const INSIDE: [&str; 3] = ["98", "449", "455"];

/// `FUTEX_PRIVATE_FLAG` (linux/futex.h): no thread of another process can wake the one that waits.
const PRIVATE: u64 = 128;

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

    /// How many threads are known, each with files that are open.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// From now on a futex that can be shared between processes counts as outside.
    pub fn share(&mut self) {
        self.shares = true;
    }

    /// This thread runs from now on.
    pub(crate) fn goes_on(&mut self, thread: ThreadId) {
        self.runner = Some(thread);
    }

    /// Whether the thread that was seen running last does so still, unless it is one to `skip`. This asks for one thread instead of all.
    pub(crate) fn still_runs(&self, skip: &BTreeSet<ThreadId>) -> bool {
        let runner = self.runner.filter(|runner| !skip.contains(runner));
        runner.and_then(|runner| self.known.get(&runner)).is_some_and(Thread::runs)
    }

    /// What all threads do but those to `skip`; what those `inside` wait for is known to be of this process.
    ///
    /// # Errors
    /// If that cannot be seen: there is no room for another file.
    pub fn look(&mut self, skip: &BTreeSet<ThreadId>, inside: &BTreeSet<ThreadId>) -> io::Result<Found> {
        self.look_around(skip, inside, || Ok(())).map(|(found, _)| found)
    }

    /// The same, and what happens between the two looks: a moment at which all of them sleep comes after that has begun.
    ///
    /// # Errors
    /// The same, and those of what happens.
    pub fn look_around<T: Default>(
        &mut self,
        skip: &BTreeSet<ThreadId>,
        inside: &BTreeSet<ThreadId>,
        between: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(Found, T)> {
        self.runner = None;
        let first = self.first_look(skip);
        let happened = if first.is_ok() { between()? } else { T::default() };
        let found = first.and_then(|list| self.second_look(&list, skip, inside));
        let found = found.or_else(|error| {
            self.known.clear();
            changed(error).map(|()| Found::Running)
        })?;
        Ok((found, happened))
    }

    fn first_look(&mut self, skip: &BTreeSet<ThreadId>) -> io::Result<BTreeSet<ThreadId>> {
        let list = list(&self.process, skip)?;
        // Of those to skip, too, the files stay open.
        self.known.retain(|thread, _| list.contains(thread) || skip.contains(thread));
        for id in &list {
            let mut thread = match self.known.remove(id) {
                Some(thread) => thread,
                None => Thread::open(&self.process, *id)?,
            };
            thread.look()?;
            self.known.insert(*id, thread);
        }
        Ok(list)
    }

    fn second_look(
        &mut self,
        list_before: &BTreeSet<ThreadId>,
        skip: &BTreeSet<ThreadId>,
        inside: &BTreeSet<ThreadId>,
    ) -> io::Result<Found> {
        if list(&self.process, skip)? != *list_before {
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

/// Whether a look failed because of what it saw: a thread has just ended, or the program has closed what is not its own, and the files
/// must be opened again.
fn changed(error: io::Error) -> io::Result<()> {
    let expected = [Errno::NOENT, Errno::SRCH, Errno::BADF];
    let is_expected = expected.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()));
    if is_expected { Ok(()) } else { Err(error) }
}

/// Whether the kernel does not tell this process what another one does.
fn is_secret(error: &io::Error) -> bool {
    [Errno::ACCESS, Errno::PERM].iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

/// A look at the processes that this one has started, and at those that these have.
#[derive(Default)]
pub(crate) struct Family {
    /// Their threads, by process.
    known: BTreeMap<String, BTreeMap<ThreadId, Relative>>,
    /// Where the kernel tells of each thread of this process which processes it has started.
    own: BTreeMap<ThreadId, OwnedFd>,
    /// Which thread the last look has found running.
    runner: Option<(String, ThreadId)>,
}

/// A thread of another process.
struct Relative {
    thread: Thread,
    /// Where the kernel tells which processes it has started.
    children: OwnedFd,
    /// These; `None`: it may have run since they were read.
    started: Option<Vec<String>>,
}

impl Family {
    /// The first look, also at the processes `others`, which may belong to nobody any more; whether it was one.
    pub(crate) fn look(&mut self, others: &BTreeSet<i32>) -> io::Result<bool> {
        let looked = self.first_look(others).map(|()| true);
        looked.or_else(|error| {
            self.forget();
            changed(error).map(|()| false)
        })
    }

    /// The second one: whether all have slept since, and none can wake up by itself.
    pub(crate) fn has_slept(&mut self) -> io::Result<bool> {
        self.second_look().or_else(|error| {
            // One has ended, and another may get its number.
            self.forget();
            changed(error).map(|()| false)
        })
    }

    /// Whether the thread that the last look has found running does so still.
    pub(crate) fn still_runs(&self) -> bool {
        let known = |(process, thread): &(String, ThreadId)| self.known.get(process)?.get(thread);
        self.runner.as_ref().and_then(known).is_some_and(|relative| relative.thread.runs())
    }

    fn forget(&mut self) {
        self.known.clear();
        self.own.clear();
    }

    /// Of each thread first how often it has run, and then which processes it has started: if it starts one later, the second look sees that it has run.
    fn first_look(&mut self, others: &BTreeSet<i32>) -> io::Result<()> {
        let is_there = |pid: &String| std::fs::exists(format!("/proc/{pid}")).unwrap_or(false);
        let mut processes: Vec<String> = others.iter().map(i32::to_string).filter(is_there).collect();
        processes.extend(self.own_children()?);
        let mut before = std::mem::take(&mut self.known);
        while let Some(process) = processes.pop() {
            if self.known.contains_key(&process) {
                continue;
            }
            let list = list(&process, &BTreeSet::new())?;
            let mut threads = before.remove(&process).unwrap_or_default();
            if !list.iter().eq(threads.keys()) {
                // The children of a thread that has ended are those of another one from then on, which need not have run.
                threads.values_mut().for_each(|relative| relative.started = None);
                threads.retain(|thread, _| list.contains(thread));
            }
            for thread in list {
                let relative = match threads.remove(&thread) {
                    Some(relative) => relative,
                    None => Relative::open(&process, thread)?,
                };
                let relative = threads.entry(thread).or_insert(relative);
                processes.extend(relative.look()?.iter().cloned());
            }
            self.known.insert(process, threads);
        }
        Ok(())
    }

    fn second_look(&mut self) -> io::Result<bool> {
        self.runner = None;
        for (process, threads) in &mut self.known {
            for (id, Relative { thread, .. }) in threads.iter_mut() {
                match thread.sleeps()? {
                    Sleep::Over => {}
                    Sleep::In(call) if !SLEEPS.contains(&call.number.as_str()) => {}
                    Sleep::In(_) | Sleep::Not => {
                        self.runner = Some((process.clone(), *id));
                        return Ok(false);
                    }
                }
            }
        }
        for (process, threads) in &self.known {
            if !list(process, &BTreeSet::new())?.iter().eq(threads.keys()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The processes that this one has started.
    fn own_children(&mut self) -> io::Result<Vec<String>> {
        let (mut children, mut before) = (Vec::new(), std::mem::take(&mut self.own));
        for thread in list("self", &BTreeSet::new())? {
            let file = match before.remove(&thread) {
                Some(file) => file,
                None => open("self", thread, "children")?,
            };
            children.extend(read(&file)?.split_ascii_whitespace().map(str::to_owned));
            self.own.insert(thread, file);
        }
        Ok(children)
    }
}

impl Relative {
    fn open(process: &str, thread: ThreadId) -> io::Result<Relative> {
        let children = open(process, thread, "children")?;
        Ok(Relative { thread: Thread::open(process, thread)?, children, started: None })
    }

    /// The first look: which processes it has started.
    fn look(&mut self) -> io::Result<&[String]> {
        let has_run = self.thread.look()?;
        let known = self.started.take().filter(|_| !has_run);
        let started = match known {
            Some(started) => started,
            None => read(&self.children)?.split_ascii_whitespace().map(str::to_owned).collect(),
        };
        Ok(self.started.insert(started))
    }
}

/// A file in which the kernel tells of a thread.
fn open(process: &str, thread: ThreadId, name: &str) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/{process}/task/{thread}/{name}");
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(lift)
}

/// Whether a thread has slept since the first look.
enum Sleep {
    /// It runs, could run, or has run.
    Not,
    /// In this call.
    In(Call),
    /// It has ended and nobody has asked how, or was stopped: only another process lets it go on.
    Over,
}

/// The system call in which a thread waits.
#[derive(Clone)]
struct Call {
    number: String,
    /// Its second argument: of a futex, the operation.
    second: u64,
}

impl Call {
    /// Whether only a thread of the same process can end the wait, or, unless it `shares` memory with others, that of one which can be seen as such.
    fn is_inside(&self, shares: bool) -> bool {
        let is_private = self.number != INSIDE[0] || self.second & PRIVATE != 0;
        INSIDE.contains(&self.number.as_str()) && (!shares || is_private)
    }
}

impl Thread {
    fn open(process: &str, id: ThreadId) -> io::Result<Thread> {
        let open = |name: &str| open(process, id, name);
        // Kernels without CONFIG_SCHED_INFO have no `schedstat`: the look is then a little less sharp.
        Ok(Thread {
            state: open("stat")?,
            call: match open("syscall") {
                Err(Errno::ACCESS | Errno::PERM) => None,
                file => Some(file?),
            },
            turns: open("schedstat").ok(),
            before: String::new(),
            waits: None,
        })
    }

    /// Whether it runs or could.
    fn runs(&self) -> bool {
        self.call.as_ref().is_some_and(|call| read(call).is_ok_and(|line| line.trim_end() == "running"))
    }

    /// The first look. Whether it may have run since it was found waiting.
    fn look(&mut self) -> io::Result<bool> {
        let turns = self.turns()?;
        // Where the kernel does not count, everybody may have run.
        let has_run = self.turns.is_none() || turns != self.before;
        if has_run {
            (self.before, self.waits) = (turns, None);
        }
        Ok(has_run)
    }

    /// The second one.
    fn sleeps(&mut self) -> io::Result<Sleep> {
        match state(&read(&self.state)?) {
            Some("S") => {}
            Some("Z" | "X" | "T" | "t") => return Ok(Sleep::Over),
            // It runs, could run, or comes from a disk soon.
            _ => return Ok(Sleep::Not),
        }
        let call = match self.waits.take() {
            Some(call) => call,
            None => match self.call()? {
                Some(call) => call,
                None => return Ok(Sleep::Not),
            },
        };
        if self.turns()? != self.before {
            return Ok(Sleep::Not);
        }
        self.waits = Some(call.clone());
        Ok(Sleep::In(call))
    }

    /// The call in which it waits now; `None`: it runs.
    fn call(&self) -> io::Result<Option<Call>> {
        let line = match self.call.as_ref().map_or(Ok(String::new()), read) {
            Err(error) if is_secret(&error) => String::new(),
            line => line?,
        };
        let mut words = line.split_ascii_whitespace();
        let number = words.next().unwrap_or_default().to_owned();
        let second = words.nth(1).and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        // "-1": it was interrupted outside any call, as by a page that comes from a disk.
        let runs = matches!(number.as_str(), "running" | "-1");
        Ok((!runs).then(|| Call { number, second: second.unwrap_or_default() }))
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

/// When a process was started, as the kernel counts; `None`: it is gone, or has ended and nobody has asked how.
pub(crate) fn started_at(process: i32) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name: the state is the first word, and this the 20th (man 5 proc).
    let mut words = line.rsplit_once(')')?.1.split_ascii_whitespace();
    (words.next() != Some("Z")).then(|| words.nth(18)?.parse().ok()).flatten()
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
    use std::io::{BufRead, BufReader, Write};
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
        // From here on it is enough to ask for the one that runs.
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
        let slept = |family: &mut Family| family.look(&nobody).unwrap() && family.has_slept().unwrap();
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
        sleeper.kill().unwrap();
        // It has ended, and nobody has asked how.
        assert!((0..100_000).any(|_| slept(&mut family)));
        reader.kill().unwrap();
        for child in [&mut reader, &mut sleeper] {
            child.wait().unwrap();
        }
        assert!(slept(&mut family));
    }

    /// A shell waits for a line, then starts a process, and waits for another line: that process, too, is looked at from then on.
    #[test]
    fn what_a_relative_starts_later_is_looked_at() {
        let nobody = BTreeSet::new();
        let slept = |family: &mut Family| family.look(&nobody).unwrap() && family.has_slept().unwrap();
        let mut family = Family::default();
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
        // It comes to its sleep, which ends by itself, and the shell to its next line.
        assert!((0..1000).all(|_| !slept(&mut family)));
        assert!(family.known.contains_key(&started.to_string()));
        let started = rustix::process::Pid::from_raw(started).unwrap();
        rustix::process::kill_process(started, rustix::process::Signal::KILL).unwrap();
        drop(input);
        shell.wait().unwrap();
        assert!((0..100_000).any(|_| slept(&mut family)));
        assert!(family.known.is_empty());
    }

    #[test]
    fn a_futex_that_can_be_shared_counts_as_outside_where_memory_may_be_shared() {
        let call = |number: &str, operation| Call { number: number.into(), second: operation };
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
            assert!(family.look(&others.iter().copied().collect()).unwrap());
            family.known.get(&left.to_string()).is_some_and(|threads| threads.contains_key(&left))
        };
        assert!(!found(&[]) && found(&[left]));
        rustix::process::kill_process(rustix::process::Pid::from_raw(left).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
    }
}
