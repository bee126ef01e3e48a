//! Owns the question whether the processes that this one has started wait, and those that these have.
//!
//! Most of them have not run since they were looked at last, which one number tells: what their threads together have used of the processor. It is counted
//! when a thread goes off the processor (the kernel's `thread_group_cputime`), so it says nothing of one that is on it. But of such a process somebody
//! outside must have woken a thread, and then it is enough to see that each thread that can be woken from outside sleeps, and after that that the number is
//! still the same: a thread of it that another one has woken would have been woken by one that runs, which is seen, or one that has run, which has been
//! counted.

use super::thread::{Sleep, Thread, ThreadId, are_all, changed, list, open};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;

/// A look at the processes that this one has started, and at those that these have.
#[derive(Default)]
pub(crate) struct Family {
    known: BTreeMap<i32, Process>,
    /// Where the kernel tells of each thread of this process which processes it has started.
    own: BTreeMap<ThreadId, OwnedFd>,
    /// Which thread the last look has found running.
    runner: Option<(i32, ThreadId)>,
    /// What a process has used of the processor, in nanoseconds; `None`: it is gone.
    used: Option<fn(i32) -> Option<u64>>,
}

/// Another process of the rank's family.
#[derive(Default)]
struct Process {
    threads: BTreeMap<ThreadId, Relative>,
    /// What it had used of the processor at the first look.
    used: Option<u64>,
    /// Then all of its threads slept.
    slept: bool,
}

/// A thread of another process.
struct Relative {
    thread: Thread,
    /// Where the kernel tells which processes it has started.
    children: OwnedFd,
    /// These; `None`: it may have run since they were read.
    started: Option<Vec<i32>>,
}

/// Why a process does not sleep.
enum Awake {
    /// This thread runs.
    Thread(ThreadId),
    /// One has run, or is new.
    Somebody,
}

impl Family {
    /// From now on a process that has not `used` the processor, in nanoseconds, since its threads were found asleep is looked at less closely.
    pub(crate) fn measure(&mut self, used: fn(i32) -> Option<u64>) {
        self.used = Some(used);
    }

    /// The first look, where `own` are the threads of this process that may have started others; also at the processes `others`, which may belong to nobody
    /// any more. Whether it was one.
    pub(crate) fn look(&mut self, own: &BTreeSet<ThreadId>, others: &BTreeSet<i32>) -> io::Result<bool> {
        let looked = self.first_look(own, others).map(|()| true);
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
        let known = |(process, thread): &(i32, ThreadId)| self.known.get(process)?.threads.get(thread);
        self.runner.as_ref().and_then(known).is_some_and(|relative| relative.thread.runs())
    }

    /// Whether a process has not run since all of its threads slept: so it is there.
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

    /// The processes that this one has started.
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
    /// The first look: of each thread first how often it has run, and then which processes it has started. If it starts one later, the second look sees that
    /// it has run.
    fn look(&mut self, pid: i32, used: Option<u64>) -> io::Result<()> {
        self.slept &= used.is_some() && used == self.used;
        self.used = used;
        if self.slept {
            return Ok(());
        }
        let pid = pid.to_string();
        if !are_all(&pid, self.threads.keys().copied())? {
            // The children of a thread that has ended are those of another one from then on, which need not have run.
            self.threads.values_mut().for_each(|relative| relative.started = None);
            let mut before = std::mem::take(&mut self.threads);
            for thread in list(&pid)? {
                let known = before.remove(&thread);
                self.threads.insert(thread, known.map_or_else(|| Relative::open(&pid, thread), Ok)?);
            }
        }
        self.threads.values_mut().try_for_each(Relative::look)
    }

    /// The processes that its threads have started.
    fn started(&self) -> impl Iterator<Item = i32> {
        self.threads.values().flat_map(|relative| relative.started.iter().flatten().copied())
    }

    /// The second look.
    fn has_slept(&mut self, pid: i32, used: Option<fn(i32) -> Option<u64>>) -> io::Result<Result<(), Awake>> {
        // First: one that ends meanwhile may have woken others before.
        if !self.slept && !are_all(&pid.to_string(), self.threads.keys().copied())? {
            return Ok(Err(Awake::Somebody));
        }
        for (id, Relative { thread, .. }) in &mut self.threads {
            let is_awake = match thread.waits() {
                // Signals, by which others wake it, come to the first thread, if that lets them.
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

    /// The first look: which processes it has started.
    fn look(&mut self) -> io::Result<()> {
        let has_run = self.thread.look()?;
        if has_run || self.started.is_none() {
            self.started = Some(numbers(&self.children)?);
        }
        Ok(())
    }
}

/// The processes that a file of the kernel's lists.
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
