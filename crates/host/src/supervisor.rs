//! Owns the end of a command's processes together with the command: each program that a command starts has a process of
//! its own between command and program, the supervisor. The supervisor ends the program and all its descendants once
//! the program or the command has ended, `kill -9` included.
//!
//! The caller starts the program and interprets its exit status.
//!
//! Processes that detach themselves (a second fork, `setsid`) become children of their next ancestor with
//! `PR_SET_CHILD_SUBREAPER`: the supervisor or, if the supervisor is killed, the command. The supervisor is in a
//! session of its own, so a signal that kills the command's process group leaves it alive. The supervisor is a copy of
//! the command that never executes a program: it may only make calls that are allowed in signal handlers, because other
//! threads of the command may have held locks at the time of the fork.

// Processes and signals use the C library's functions, in a copy of a process that had several threads.
#![allow(unsafe_code)]

use crate::error::HostError;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::ptr::null_mut;

/// The signal to the supervisor from [`end`], and from the kernel when the thread that started the supervisor ends.
const ABANDONED: libc::c_int = libc::SIGUSR1;

/// Gives the program of `command` a supervisor, which looks like the program from outside: it ends with the program's
/// exit code or signal, and forwards SIGTERM to the program. Other actions of the command between fork and exec must be
/// registered earlier.
pub fn supervise(command: &mut Command) -> &mut Command {
    // SAFETY: the closure uses system calls only, and neither heap memory nor locks.
    unsafe { command.pre_exec(divide) }
}

/// Ends a program that was started with a supervisor, and returns when no process of it is left. The supervisor kills
/// the processes, and continues if this process is killed in the meantime. Killing the supervisor instead would leave
/// its children without a parent that ends them.
///
/// # Errors
/// Errors of waiting for a child.
pub fn end(child: &mut Child) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    let supervisor = Pid::from_child(child);
    let _ = kill_process(supervisor, Signal::USR1);
    // A stopped supervisor must be continued before it can end.
    let _ = kill_process(supervisor, Signal::CONT);
    child.wait()
}

/// Makes this process the parent of processes that outlive their supervisors, for [`end_orphans`].
///
/// # Errors
/// If the kernel does not support this.
pub fn adopt_orphans() -> Result<(), HostError> {
    set_child_subreaper(Some(getpid())).map_err(HostError::system("becoming a child subreaper"))
}

/// Ends all children of this process, and their children, which then become its own.
pub fn end_orphans() {
    while let Some(pid) = children().into_iter().find_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
        let _ = waitpid(Some(pid), WaitOptions::empty());
    }
}

fn children() -> Vec<i32> {
    children_of(Path::new("/proc/self"))
}

/// The children of a process, given its folder in `/proc`.
pub(crate) fn children_of(process: &Path) -> Vec<i32> {
    let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Runs between fork and exec: splits the process into supervisor and program. The supervisor never returns.
fn divide() -> io::Result<()> {
    // SAFETY: system calls, with pointers to variables of this function that live until they return; a zeroed signal
    // set is empty.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        // Signals are blocked before the program exists, because the supervisor must not miss its end. The supervisor
        // receives signals only while it waits for them.
        libc::sigprocmask(libc::SIG_SETMASK, &all, &mut before);
        // Orphans of the program must also be adopted before this process continues. The program's children do not
        // inherit this setting.
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        let command = libc::getppid();
        match libc::fork() {
            0 => {
                libc::sigprocmask(libc::SIG_SETMASK, &before, null_mut());
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            }
            -1 => Err(io::Error::last_os_error()),
            program => watch(command, program, &all),
        }
    }
}

/// Runs the supervisor. `command` is its parent, `program` its child; the signals of `all` are blocked.
fn watch(command: libc::pid_t, program: libc::pid_t, all: &libc::sigset_t) -> ! {
    // SAFETY: system calls, with pointers to constants and to borrowed memory.
    unsafe {
        // Descriptors are closed, because an open pipe end in the supervisor would hide the end of the program from
        // readers; `spawn` waits on such a pipe for exec.
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for stream in 0..3 {
            libc::dup2(nowhere, stream);
        }
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) != 0 {
            // Fallback for Linux before 5.9.
            for fd in 3..libc::sysconf(libc::_SC_OPEN_MAX) as libc::c_int {
                libc::close(fd);
            }
        }
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"supervisor".as_ptr());
        // A core dump of the supervisor would be a copy of the command's memory.
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        libc::prctl(libc::PR_SET_PDEATHSIG, ABANDONED);
        let mut status = None;
        let mut abandoned = libc::getppid() != command;
        while status.is_none() && !abandoned {
            match libc::sigwaitinfo(all, null_mut()) {
                libc::SIGCHLD => status = reap(program),
                libc::SIGTERM => {
                    libc::kill(program, libc::SIGTERM);
                }
                ABANDONED => abandoned = true,
                _ => {}
            }
        }
        end_all(program, &mut status);
        end_as(status.unwrap_or_default())
    }
}

/// Reaps children that have ended; returns the status of `program`, if it is among them.
unsafe fn reap(program: libc::pid_t) -> Option<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: a pointer to a variable of this function.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            pid if pid == program => return Some(status),
            pid if pid <= 0 => return None,
            _ => {}
        }
    }
}

/// Kills all descendants, which become children of this process one generation after the other.
unsafe fn end_all(program: libc::pid_t, status: &mut Option<libc::c_int>) {
    loop {
        // SAFETY: system calls, with pointers to variables of this function.
        unsafe {
            let seen = kill_children();
            if !seen && status.is_none() {
                // Fallback for a kernel that does not list children.
                libc::kill(program, libc::SIGKILL);
            }
            let mut ended = 0;
            let pid = libc::waitpid(-1, &mut ended, if seen || status.is_none() { 0 } else { libc::WNOHANG });
            if pid == program {
                *status = Some(ended);
            } else if pid <= 0 {
                return;
            }
        }
    }
}

/// Kills this process's children, as many as fit into one page of the kernel's list. Returns whether there were any.
unsafe fn kill_children() -> bool {
    let mut list = [0_u8; 4096];
    // SAFETY: system calls, with pointers to a constant and to a variable of this function of the given length.
    let length = unsafe {
        let file = libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY);
        let length = libc::read(file, list.as_mut_ptr().cast(), list.len());
        libc::close(file);
        length.max(0) as usize
    };
    let (mut pid, mut seen) = (0, false);
    // The kernel ends each number with a space; a number that the page cuts off comes in the next call.
    for byte in &list[..length] {
        match byte {
            b'0'..=b'9' => pid = pid * 10 + libc::pid_t::from(byte - b'0'),
            _ => {
                // SAFETY: `kill` accepts any numbers, and accesses no memory of the process.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                (pid, seen) = (0, true);
            }
        }
    }
    seen
}

/// Ends this process with the given wait status.
unsafe fn end_as(status: libc::c_int) -> ! {
    // SAFETY: system calls, with a pointer to a variable of this function.
    unsafe {
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            let mut one = std::mem::zeroed();
            libc::sigemptyset(&mut one);
            libc::sigaddset(&mut one, signal);
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(libc::getpid(), signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &one, null_mut());
            libc::_exit(128 + signal);
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        supervise(&mut command);
        command
    }

    #[test]
    fn it_ends_as_its_program_does() {
        assert_eq!(shell("exit 7").status().unwrap().code(), Some(7));
        assert_eq!(shell("kill -KILL $$").status().unwrap().signal(), Some(9));
        let mut missing = Command::new("/nowhere/program");
        assert_eq!(supervise(&mut missing).spawn().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn it_is_ended_with_all_that_it_has_started() {
        // The program and its detached child hold the pipe, and both ignore SIGTERM.
        let mut child =
            shell("trap '' TERM; (setsid sleep 600 &); echo; while :; do sleep 0.01; done").spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        assert_eq!(end(&mut child).unwrap().signal(), Some(9));
        out.read_to_end(&mut Vec::new()).unwrap();
    }

    #[test]
    fn sigterm_is_handed_on() {
        let mut child = shell("trap 'exit 9' TERM; echo; while :; do sleep 0.01; done").spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }

    /// The body of the process that the next test starts.
    #[test]
    fn command() {
        if std::env::var_os("UNIFERENCE_TEST_SUPERVISOR").is_some() {
            let detached = "(setsid sh -c 'sleep 600 & echo $! $$; exec sleep 600' &); ";
            let mut child = shell(&format!("{detached} sleep 600")).stdout(Stdio::inherit()).spawn().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_has_detached_itself_ends_with_the_command() {
        for signal in [Signal::KILL, Signal::TERM] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "supervisor::tests::command", "--nocapture"]).stdout(Stdio::piped());
            let mut command = command.env("UNIFERENCE_TEST_SUPERVISOR", "").spawn().unwrap();
            let mut out = BufReader::new(command.stdout.take().unwrap());
            let mut line = String::new();
            let numbers =
                |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<i32>>>();
            let pids = loop {
                line.clear();
                out.read_line(&mut line).unwrap();
                match numbers(&line) {
                    Some(pids) if pids.len() == 2 => break pids,
                    _ => {}
                }
            };
            kill_process(Pid::from_child(&command), signal).unwrap();
            command.wait().unwrap();
            // All processes that could write have ended.
            out.read_to_end(&mut Vec::new()).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            let lives = |pid: &i32| std::path::Path::new(&format!("/proc/{pid}")).exists();
            while pids.iter().any(lives) {
                assert!(Instant::now() < deadline, "{pids:?} have outlived the command");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn what_a_program_leaves_behind_ends_with_it() {
        let mut child = shell("(setsid sleep 600 &); exit 3").spawn().unwrap();
        // The pipe ends when the last process that holds it has ended.
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
}
