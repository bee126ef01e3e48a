//! Owns the check whether the descendant processes of this one wait.
//!
//! Most of these processes have not run since the previous check, which one number shows: the CPU time of all their
//! threads. The kernel updates it when a thread leaves a CPU (`thread_group_cputime`), so it says nothing about a
//! thread on a CPU. Such a thread must have been woken from outside its process. It is therefore enough to check that
//! each thread that can be woken from outside sleeps, and afterwards that the number is unchanged: a thread that
//! another thread of the process has woken was woken by a running thread, which is visible, or by one that has run,
//! which has been counted.

use super::thread::{Sleep, Thread, ThreadId, are_all, changed, list, open};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;

/// A check of the descendant processes of this process.
#[derive(Default)]
pub(crate) struct Family {
    known: BTreeMap<i32, Process>,
    /// The kernel's list of child processes, per thread of this process.
    own: BTreeMap<ThreadId, OwnedFd>,
    /// The thread that the last check found running.
    runner: Option<(i32, ThreadId)>,
    /// Measures a process's CPU time, in nanoseconds; `None`: the process no longer exists.
    used: Option<fn(i32) -> Option<u64>>,
}

/// Another process of the rank.
#[derive(Default)]
struct Process {
    threads: BTreeMap<ThreadId, Relative>,
    /// The process's CPU time at the first look.
    used: Option<u64>,
    /// Whether all threads of the process slept at that time.
    slept: bool,
}

/// A thread of another process.
struct Relative {
    thread: Thread,
    /// The kernel's list of the thread's child processes.
    children: OwnedFd,
    /// The child processes; `None`: the thread may have run since the list was read.
    started: Option<Vec<i32>>,
}

/// The reason why a process does not sleep.
enum Awake {
    /// The thread with this id runs.
    Thread(ThreadId),
    /// A thread has run, or is new.
    Somebody,
}

impl Family {
    /// Measures processes with `used` from now on: a process whose CPU time is unchanged since its threads were found
    /// asleep gets a cheaper check.
    pub(crate) fn measure(&mut self, used: fn(i32) -> Option<u64>) {
        self.used = Some(used);
    }

    /// Takes the first look. `own`: threads of this process that may have started others; `others`: further processes,
    /// whose parents may have ended. Returns whether the look succeeded.
    pub(crate) fn look(&mut self, own: &BTreeSet<ThreadId>, others: &BTreeSet<i32>) -> io::Result<bool> {
        let looked = self.first_look(own, others).map(|()| true);
        looked.or_else(|error| {
            self.forget();
            changed(error).map(|()| false)
        })
    }

    /// Takes the second look: whether all threads have slept since the first one, and none can wake up by itself.
    pub(crate) fn has_slept(&mut self) -> io::Result<bool> {
        self.second_look().or_else(|error| {
            // A process has ended, and another one may get its number.
            self.forget();
            changed(error).map(|()| false)
        })
    }

    /// Whether the thread that the last check found running still runs.
    pub(crate) fn still_runs(&self) -> bool {
        let known = |(process, thread): &(i32, ThreadId)| self.known.get(process)?.threads.get(thread);
        self.runner.as_ref().and_then(known).is_some_and(|relative| relative.thread.runs())
    }

    /// Whether a process has not run since all of its threads slept, which implies that it still exists.
    pub(crate) fn sleeps_on(&self, process: i32) -> bool {
        self.known.get(&process).is_some_and(|known| known.slept && known.used == self.used_by(process))
    }

    #[cfg(test)]
    pub(super) fn knows(&self, process: i32) -> bool {
        self.known.contains_key(&process)
    }

    #[cfg(test)]
    pub(super) fn knows_nobody(&self) -> bool {
        self.known.is_empty()
    }

    fn used_by(&self, process: i32) -> Option<u64> {
        self.used.and_then(|used| used(process))
    }

    fn forget(&mut self) {
        self.known.clear();
        self.own.clear();
    }

    fn first_look(&mut self, own: &BTreeSet<ThreadId>, others: &BTreeSet<i32>) -> io::Result<()> {
        let is_there = |pid: &i32| self.sleeps_on(*pid) || std::fs::exists(format!("/proc/{pid}")).unwrap_or(false);
        let mut processes: Vec<i32> = others.iter().copied().filter(is_there).collect();
        processes.extend(self.own_children(own)?);
        let mut before = std::mem::take(&mut self.known);
        while let Some(pid) = processes.pop() {
            if self.known.contains_key(&pid) {
                continue;
            }
            let mut process = before.remove(&pid).unwrap_or_default();
            process.look(pid, self.used_by(pid))?;
            processes.extend(process.started());
            self.known.insert(pid, process);
        }
        Ok(())
    }

    fn second_look(&mut self) -> io::Result<bool> {
        self.runner = None;
        for (pid, process) in &mut self.known {
            if let Err(awake) = process.has_slept(*pid, self.used)? {
                process.slept = false;
                if let Awake::Thread(thread) = awake {
                    self.runner = Some((*pid, thread));
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The child processes of this process.
    fn own_children(&mut self, own: &BTreeSet<ThreadId>) -> io::Result<Vec<i32>> {
        let (mut children, mut before) = (Vec::new(), std::mem::take(&mut self.own));
        for thread in own {
            let file = match before.remove(thread) {
                Some(file) => file,
                None => open(&format!("/proc/self/task/{thread}"), "children")?,
            };
            children.extend(numbers(&file)?);
            self.own.insert(*thread, file);
        }
        Ok(children)
    }
}

impl Process {
    /// Takes the first look: for each thread first its number of runs, and then its child processes. If the thread
    /// starts a process afterwards, the second look sees that it has run.
    fn look(&mut self, pid: i32, used: Option<u64>) -> io::Result<()> {
        self.slept &= used.is_some() && used == self.used;
        self.used = used;
        if self.slept {
            return Ok(());
        }
        let pid = pid.to_string();
        if !are_all(&pid, self.threads.keys().copied())? {
            // The child processes of a thread that has ended move to another thread, which need not have run.
            self.threads.values_mut().for_each(|relative| relative.started = None);
            let mut before = std::mem::take(&mut self.threads);
            for thread in list(&pid)? {
                let known = before.remove(&thread);
                self.threads.insert(thread, known.map_or_else(|| Relative::open(&pid, thread), Ok)?);
            }
        }
        self.threads.values_mut().try_for_each(Relative::look)
    }

    /// The child processes of all threads.
    fn started(&self) -> impl Iterator<Item = i32> {
        self.threads.values().flat_map(|relative| relative.started.iter().flatten().copied())
    }

    /// Takes the second look.
    fn has_slept(&mut self, pid: i32, used: Option<fn(i32) -> Option<u64>>) -> io::Result<Result<(), Awake>> {
        // The list of threads is compared before the threads are examined: a thread that ends in the meantime may have
        // woken others before.
        if !self.slept && !are_all(&pid.to_string(), self.threads.keys().copied())? {
            return Ok(Err(Awake::Somebody));
        }
        for (id, Relative { thread, .. }) in &mut self.threads {
            let is_awake = match thread.waits() {
                // Signals from other processes go to the first thread, unless it blocks them.
                Some(call) if self.slept && call.waits_for_its_process() && *id != pid => false,
                Some(_) if self.slept => thread.is_awake()?,
                _ => match thread.sleeps()? {
                    Sleep::Over => false,
                    Sleep::In(call) => call.is_sleep(),
                    Sleep::Not => true,
                },
            };
            if is_awake {
                return Ok(Err(Awake::Thread(*id)));
            }
        }
        let unchanged = self.used.is_some() && used.and_then(|used| used(pid)) == self.used;
        if self.slept && !unchanged {
            return Ok(Err(Awake::Somebody));
        }
        self.slept = unchanged;
        Ok(Ok(()))
    }
}

impl Relative {
    fn open(process: &str, id: ThreadId) -> io::Result<Relative> {
        let children = open(&format!("/proc/{process}/task/{id}"), "children")?;
        Ok(Relative { thread: Thread::open(process, id)?, children, started: None })
    }

    /// Takes the first look at the thread's child processes.
    fn look(&mut self) -> io::Result<()> {
        let has_run = self.thread.look()?;
        if has_run || self.started.is_none() {
            self.started = Some(numbers(&self.children)?);
        }
        Ok(())
    }
}

/// The process ids in a file of the kernel.
fn numbers(file: &OwnedFd) -> io::Result<Vec<i32>> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 256]);
    while bytes.len() % piece.len() == 0 {
        let length = rustix::io::pread(file, &mut piece, bytes.len() as u64)?;
        bytes.extend_from_slice(&piece[..length]);
        if length == 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect())
}
