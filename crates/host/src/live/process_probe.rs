//! Owns the inspection of a rank's process from outside, for ranks without messages: whether its threads wait for each
//! other, and the lines of the program at which they are.
//!
//! The driver decides on the consequences.
//!
//! Lines come from Python's `faulthandler`, which each rank registers for [`STACKS_SIGNAL`]: the handler writes all
//! threads' stacks into one memory file of the run, even of threads that wait in C and hold the interpreter's lock.

use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, fstat, ftruncate, memfd_create};
use rustix::process::{Pid, kill_process};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use uniference_client::quiescence::{Found, Threads};
use uniference_protocol::STACKS_SIGNAL;

/// Duration without new data after which a process has finished writing its stacks.
const SETTLED: Duration = Duration::from_millis(10);

/// Maximum number of times that the probe waits for a process to write more of its stacks.
const MOST_LOOKS: usize = 50;

/// Maximum number of child processes of a rank whose stacks are requested: each request needs a moment.
const MOST_RELATIVES: usize = 8;

/// Inspects ranks' processes.
pub(crate) struct ProcessProbe {
    stacks: File,
    /// The common prefix of the names of Uniference's own Python files.
    ours: String,
}

/// A Python thread of the program, as shown by `faulthandler`.
#[derive(Debug, PartialEq)]
struct Stack {
    is_main: bool,
    /// The frames, innermost first.
    frames: Vec<Frame>,
}

#[derive(Debug, PartialEq)]
struct Frame {
    file: String,
    line: u32,
    function: String,
}

impl ProcessProbe {
    /// `ours`: the folder of this package, if it exists.
    pub(crate) fn new(ours: Option<&Path>) -> io::Result<ProcessProbe> {
        let file: OwnedFd = memfd_create("uniference-stacks", MemfdFlags::CLOEXEC)?;
        // Ranks share the file's position, and each rank starts to write at the end of the truncated file.
        fcntl_setfl(&file, OFlags::APPEND)?;
        let ours = ours.map_or(String::new(), |folder| format!("{}/", folder.display()));
        Ok(ProcessProbe { stacks: file.into(), ours })
    }

    /// The file to which ranks write their stacks.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.stacks.as_fd()
    }

    /// Whether all threads of a process wait, and for what. A stopped process waits for a signal from outside.
    pub(crate) fn waits(pid: i32) -> Found {
        if is_stopped(pid) {
            return Found::Outside;
        }
        let everyone = BTreeSet::new();
        match Threads::of(pid).look(&everyone, &everyone) {
            Ok(Found::Inside) if has_children(pid) => Found::Outside,
            // The result is only a hint, so a process that cannot be inspected counts as running.
            found => found.unwrap_or(Found::Running),
        }
    }

    /// The lines of [`ProcessProbe::stands`] for a process that may continue; empty for a process that waits for a
    /// signal, because the signal that requests stacks would end that wait.
    pub(crate) fn stands_undisturbed(&self, pid: i32) -> Vec<String> {
        if waits_for_signals(pid) { Vec::new() } else { self.stands(pid, false) }
    }

    /// Lines at which the threads of a process are; threads in calls of Uniference are included only `with_calls`:
    /// "main thread at a.py:3, in queue.get". Includes child processes that can report their stacks.
    pub(crate) fn stands(&self, pid: i32, with_calls: bool) -> Vec<String> {
        let mut all = self.threads_stand(pid, with_calls);
        for relative in relatives(pid).into_iter().filter(|pid| writes_stacks(*pid)).take(MOST_RELATIVES) {
            let stands = self.threads_stand(relative, with_calls);
            all.extend(stands.into_iter().map(|stand| format!("process {relative}: {stand}")));
        }
        all
    }

    fn threads_stand(&self, pid: i32, with_calls: bool) -> Vec<String> {
        // An error yields no lines: the process has ended, or has closed the file. A stopped process cannot answer.
        let text = if is_stopped(pid) { String::new() } else { self.ask(pid).unwrap_or_default() };
        stacks(&text).iter().filter_map(|stack| stack.stand(&self.ours, with_calls)).collect()
    }

    fn ask(&self, pid: i32) -> io::Result<String> {
        ftruncate(&self.stacks, 0)?;
        kill_process(Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?, STACKS_SIGNAL)?;
        let mut written = 0;
        for _ in 0..MOST_LOOKS {
            std::thread::sleep(SETTLED);
            let before = std::mem::replace(&mut written, fstat(&self.stacks)?.st_size as usize);
            if written > 0 && written == before {
                break;
            }
        }
        let mut bytes = vec![0; written];
        self.stacks.read_exact_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Whether a process is about to end, during which the kernel closes its descriptors (`PF_EXITING` of the kernel's
/// sched.h).
pub(crate) fn is_exiting(pid: i32) -> bool {
    const EXITING: u64 = 4;
    // Fields after the name, which may contain any characters: state, parent, group, session, terminal, its group,
    // flags (man 5 proc).
    let flags = fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|line| line.rsplit_once(')')?.1.split_ascii_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0)
}

/// Whether a signal has stopped the process, which needs another signal to continue.
pub(super) fn is_stopped(pid: i32) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    line.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
}

/// Whether the main thread is in `pause`, `rt_sigsuspend` or `rt_sigtimedwait`.
fn waits_for_signals(pid: i32) -> bool {
    #[cfg(target_arch = "x86_64")]
    const CALLS: [&str; 3] = ["34", "130", "128"];
    #[cfg(not(target_arch = "x86_64"))]
    const CALLS: [&str; 2] = ["133", "137"];
    let line = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    line.split_ascii_whitespace().next().is_some_and(|call| CALLS.contains(&call))
}

fn has_children(pid: i32) -> bool {
    !children(pid).is_empty()
}

fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// All descendants of a process.
fn relatives(pid: i32) -> Vec<i32> {
    let mut found = children(pid);
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(children(pid));
        next += 1;
    }
    found
}

/// Whether the process handles [`STACKS_SIGNAL`]: a forked copy of a rank's process, which has registered Python's
/// `faulthandler`.
fn writes_stacks(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.is_some_and(|caught| caught & (1 << (STACKS_SIGNAL.as_raw() - 1)) != 0)
}

/// Parses the output of `faulthandler` (CPython's traceback.c, `_Py_DumpTracebackThreads`).
fn stacks(text: &str) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    for line in text.lines() {
        if line.ends_with("(most recent call first):") {
            // A signal to the process runs its handler on the main thread.
            stacks.push(Stack { is_main: line.starts_with("Current"), frames: Vec::new() });
        } else if let (Some(stack), Some(frame)) = (stacks.last_mut(), frame(line)) {
            stack.frames.push(frame);
        }
    }
    stacks
}

/// `  File "a.py", line 3 in work`
fn frame(line: &str) -> Option<Frame> {
    let (file, rest) = line.strip_prefix("  File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some(Frame { file: file.to_owned(), line: line.parse().ok()?, function: function.to_owned() })
}

impl Stack {
    /// `None` for a thread in a call of Uniference, which the engine knows, unless `with_calls`. The names of
    /// Uniference's files start with `ours`.
    fn stand(&self, ours: &str, with_calls: bool) -> Option<String> {
        let innermost = self.frames.iter().find(|frame| !frame.is_in(ours))?;
        if !with_calls && !std::ptr::eq(innermost, &self.frames[0]) {
            return None;
        }
        let user = self.frames.iter().position(|frame| !frame.is_library() && !frame.is_in(ours));
        let at = user.map_or(innermost, |user| &self.frames[user]);
        let called = user.and_then(|user| self.frames[..user].iter().rev().find(|frame| !frame.is_in(ours)));
        let within = called.map_or(String::new(), |frame| format!(", in {}", frame.name()));
        let who = if self.is_main { "main thread" } else { "a thread" };
        Some(format!("{who} at {}:{}{within}", at.file, at.line))
    }
}

impl Frame {
    /// Whether the frame is in a file whose name starts with `package`.
    fn is_in(&self, package: &str) -> bool {
        !package.is_empty() && self.file.starts_with(package)
    }

    /// Whether the frame is in Python's library or an installed package instead of the user's program.
    fn is_library(&self) -> bool {
        self.file.contains("/lib/python3.") || self.file.starts_with('<')
    }

    /// `queue.get`
    fn name(&self) -> String {
        let module = Path::new(&self.file).file_stem().unwrap_or_default().to_string_lossy();
        format!("{module}.{}", self.function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_line_is_found_below_the_librarys() {
        let text = "Thread 0x00007f01 (most recent call first):\n  File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n  \
                    File \"/usr/lib/python3.11/queue.py\", line 171 in get\n  File \"/home/a b.py\", line 9 in work\n\n\
                    Thread 0x00007f02 (most recent call first):\n  File \"/x/uniference/backends/base.py\", line 30 in wait\n  \
                    File \"/home/a b.py\", line 4 in f\n\n\
                    Thread 0x00007f04 (most recent call first):\n  File \"/home/uniference/b.py\", line 2 in g\n\nCurrent thread 0x00007f03 (most recent call first):\n  \
                    File \"/home/a b.py\", line 12 in <module>\n";
        let stands = |with_calls| -> Vec<String> {
            stacks(text).iter().filter_map(|stack| stack.stand("/x/uniference/", with_calls)).collect()
        };
        let expected = ["a thread at /home/a b.py:9, in queue.get", "a thread at /home/uniference/b.py:2"];
        assert_eq!(stands(false), [&expected[..], &["main thread at /home/a b.py:12"]].concat());
        let all = [expected[0], "a thread at /home/a b.py:4", expected[1], "main thread at /home/a b.py:12"];
        assert_eq!(stands(true), all);
    }

    #[test]
    fn a_process_that_runs_is_not_exiting_and_one_that_is_gone_is() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_exiting(child.id() as i32) && !has_children(child.id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_exiting(child.id() as i32));
    }
}
