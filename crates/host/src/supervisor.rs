//! Owns that what a command has started ends with it: between the command and a program that it starts stands a process of its own, the
//! program's supervisor. It ends all that the program has started, and what that has, once the program or the command has ended, `kill -9` included.
//!
//! Who is started, and what its end means, is the caller's business.
//!
//! Processes that detach themselves (a second fork, `setsid`) become children of their next ancestor that asks for them
//! (`PR_SET_CHILD_SUBREAPER`): the supervisor, and should somebody kill that one, the command. The supervisor is in a session of its own, so
//! what kills the command's process group leaves it alive. It is a copy of the command that never executes a program: it may only do what
//! signal handlers may, for other threads of the command may have held any lock when it was made.

// Processes and signals by the C library's own functions, in a copy of a process that had several threads.
#![allow(unsafe_code)]

use crate::error::HostError;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::ptr::null_mut;

/// Sent to the supervisor by [`end`], and by the kernel when the thread that has started it ends.
const ABANDONED: libc::c_int = libc::SIGUSR1;

/// Gives what `command` starts a supervisor, which looks like the program from outside: it ends as the program does, with its exit code or by
/// its signal, and hands SIGTERM on to it. Whatever else the command does between fork and exec stands before this.
pub fn supervise(command: &mut Command) -> &mut Command {
    // SAFETY: what runs there uses system calls only, and neither memory of the heap nor locks.
    unsafe { command.pre_exec(divide) }
}

/// Ends what was started with a supervisor, and returns when nothing of it is left. Its supervisor does that: it goes on when this process
/// is itself ended meanwhile. To kill the supervisor instead would leave its children to nobody then.
///
/// # Errors
/// Those of waiting for a child.
pub fn end(child: &mut Child) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    let supervisor = Pid::from_child(child);
    let _ = kill_process(supervisor, Signal::USR1);
    // Somebody may have stopped it.
    let _ = kill_process(supervisor, Signal::CONT);
    child.wait()
}

/// What programs leave behind that the supervisors do not see becomes this process's, for [`end_orphans`].
///
/// # Errors
/// Those of a kernel that does not know this.
pub fn adopt_orphans() -> Result<(), HostError> {
    set_child_subreaper(Some(getpid())).map_err(HostError::system("becoming a child subreaper"))
}

/// Ends all children of this process, and theirs, which then are its own.
pub fn end_orphans() {
    while let Some(pid) = children().into_iter().find_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
        let _ = waitpid(Some(pid), WaitOptions::empty());
    }
}

fn children() -> Vec<i32> {
    children_of(Path::new("/proc/self"))
}

/// The children of a process, by its folder in `/proc`.
pub(crate) fn children_of(process: &Path) -> Vec<i32> {
    let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Between fork and exec: makes two processes of one. The first never returns.
fn divide() -> io::Result<()> {
    // SAFETY: system calls, with pointers to variables of this function that live until they return; a signal set of zeros is an empty one.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        // Before there is a program: the supervisor must not miss its end. Signals are taken when it asks for them.
        libc::sigprocmask(libc::SIG_SETMASK, &all, &mut before);
        // Nor what the program has left behind before this process goes on. Its children do not inherit it.
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

/// The supervisor. `command` is its parent, `program` its child; the signals of `all` are blocked.
fn watch(command: libc::pid_t, program: libc::pid_t, all: &libc::sigset_t) -> ! {
    // SAFETY: system calls, with pointers to constants and to what is lent.
    unsafe {
        // Descriptors that are held here would keep their other ends from seeing the end, the one by which `spawn` hears of exec included.
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for stream in 0..3 {
            libc::dup2(nowhere, stream);
        }
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) != 0 {
            // Linux before 5.9
            for fd in 3..libc::sysconf(libc::_SC_OPEN_MAX) as libc::c_int {
                libc::close(fd);
            }
        }
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"supervisor".as_ptr());
        // Its core would be a copy of the command's.
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

/// Takes note of children that have ended; the status of `program`, if it is among them.
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

/// Kills all descendants, which come here one generation after the other.
unsafe fn end_all(program: libc::pid_t, status: &mut Option<libc::c_int>) {
    loop {
        // SAFETY: system calls, with pointers to variables of this function.
        unsafe {
            let seen = kill_children();
            if !seen && status.is_none() {
                // A kernel that does not list children.
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

/// Kills this process's children, as many as fit into a page of the kernel's list; whether there were any.
unsafe fn kill_children() -> bool {
    let mut list = [0_u8; 4096];
    // SAFETY: system calls, with pointers to a constant and to a variable of this function of the length that is said.
    let length = unsafe {
        let file = libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY);
        let length = libc::read(file, list.as_mut_ptr().cast(), list.len());
        libc::close(file);
        length.max(0) as usize
    };
    let (mut pid, mut seen) = (0, false);
    // The kernel ends each number by a space; one that the page has cut off comes next time.
    for byte in &list[..length] {
        match byte {
            b'0'..=b'9' => pid = pid * 10 + libc::pid_t::from(byte - b'0'),
            _ => {
                // SAFETY: a system call without pointers.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                (pid, seen) = (0, true);
            }
        }
    }
    seen
}

/// Ends this process as a wait status says.
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
        // The program and what it has detached hold the pipe, and neither hears SIGTERM.
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

    /// What a process does that the next test starts.
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
            // All who could write have ended.
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
        // The pipe ends with the last process that holds it.
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
}
