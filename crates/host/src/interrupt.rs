//! Owns the signals that end a command: directly or, while resources must be cleaned up first, through a descriptor
//! that becomes readable when a signal has arrived.

use crate::error::{Exit, HostError};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The signal that ended the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// Ctrl-C (SIGINT).
    Int,
    /// SIGTERM, which `kill` sends.
    Term,
    /// SIGHUP: the terminal was closed.
    Hup,
}

/// Whether signals end the process at once, because no [`Interrupts`] exist.
static UNATTENDED: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Makes the signals that end a program end this one at once from now on, with the documented exit code, except while
/// [`Interrupts`] exist. Python's own handler of Ctrl-C would only note the signal until the command is done.
pub fn exit_at_signals() -> Result<(), HostError> {
    for (signal, exit) in [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated), (SIGHUP, Exit::HungUp)] {
        if signal != SIGHUP || !ignores_hangup() {
            signal_hook::flag::register_conditional_shutdown(signal, exit as i32, UNATTENDED.clone())
                .map_err(HostError::system("installing signal handlers"))?;
        }
    }
    Ok(())
}

/// Makes the process ignore Ctrl-C of the terminal from its first instruction on: this process handles Ctrl-C and ends
/// the processes that it has started.
#[allow(unsafe_code)]
pub fn shield(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec a process may do what signal handlers may; this is one system call.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            Ok(())
        })
    }
}

/// Ends this process silently by SIGPIPE, like a process that writes to a pipe without readers. If the signal is
/// blocked, returns the shell's exit code for it.
#[allow(unsafe_code)]
pub fn end_by_broken_pipe() -> i32 {
    // SAFETY: this replaces no handler of Uniference's: Python ignores the signal.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::raise(libc::SIGPIPE);
    }
    128 + libc::SIGPIPE
}

/// Whether the process was started to outlive its terminal, as `nohup` does.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}

/// While this lives, the signals that end a program only make its descriptor readable.
pub struct Interrupts {
    readable: UnixStream,
    latest: Arc<AtomicUsize>,
    registered: Vec<SigId>,
}

impl Interrupts {
    /// Installs the handlers of the signals.
    pub fn new() -> Result<Interrupts, HostError> {
        let (readable, written) = UnixStream::pair().map_err(HostError::system("creating a socket pair"))?;
        readable.set_nonblocking(true).map_err(HostError::system("making a socket non-blocking"))?;
        let latest = Arc::new(AtomicUsize::new(0));
        // The handlers run in this order: first the number, then the wake-up.
        let number = |signal| signal_hook::flag::register_usize(signal, latest.clone(), signal as usize);
        let wake = |signal| signal_hook::low_level::pipe::register(signal, written.try_clone()?);
        let both = |signal| Ok([number(signal)?, wake(signal)?]);
        let hangup = (!ignores_hangup()).then_some(SIGHUP);
        let registered: std::io::Result<Vec<_>> = [SIGINT, SIGTERM].into_iter().chain(hangup).map(both).collect();
        let registered = registered.map_err(HostError::system("installing signal handlers"))?.into_flattened();
        UNATTENDED.store(false, SeqCst);
        Ok(Interrupts { readable, latest, registered })
    }

    /// Makes the next signal end this process at once, because a signal was repeated.
    pub fn end_at_next(&self) {
        UNATTENDED.store(true, SeqCst);
    }

    /// Returns after `timeout`, or when a signal has arrived.
    pub fn wait(&self, timeout: Duration) {
        let timeout = timeout.try_into().expect("seconds fit");
        // The caller checks which event has occurred.
        let _ = poll(&mut [PollFd::new(&self.readable, PollFlags::IN)], Some(&timeout));
    }

    /// The latest signal that has not been returned yet.
    pub fn take(&self) -> Option<Interrupt> {
        let mut drain = [0; 64];
        while (&self.readable).read(&mut drain).is_ok_and(|count| count > 0) {}
        match self.latest.swap(0, SeqCst) as i32 {
            0 => None,
            SIGTERM => Some(Interrupt::Term),
            SIGHUP => Some(Interrupt::Hup),
            _ => Some(Interrupt::Int),
        }
    }
}

impl AsFd for Interrupts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        UNATTENDED.store(true, SeqCst);
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

impl From<Interrupt> for Exit {
    fn from(interrupt: Interrupt) -> Exit {
        match interrupt {
            Interrupt::Int => Exit::Interrupted,
            Interrupt::Term => Exit::Terminated,
            Interrupt::Hup => Exit::HungUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    /// The body of the process that [`ended_by`] starts.
    #[test]
    fn child() {
        let Ok(how) = std::env::var("UNIFERENCE_TEST_SIGNALS") else { return };
        exit_at_signals().unwrap();
        let interrupts = Interrupts::new().unwrap();
        if how == "afterwards" {
            drop(interrupts);
            println!("\nready");
            std::thread::sleep(Duration::from_secs(60));
            return;
        }
        println!("\nready");
        while interrupts.take().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::process::exit(7);
    }

    /// The exit code of a process that receives the signal, during the life of [`Interrupts`] or afterwards.
    fn ended_by(signal: Signal, how: &str, launcher: &[&str]) -> Option<i32> {
        let test = std::env::current_exe().unwrap().display().to_string();
        let words = [launcher, &[&test, "--exact", "interrupt::tests::child", "--nocapture"]].concat();
        let mut child = Command::new(words[0]);
        child.args(&words[1..]).env("UNIFERENCE_TEST_SIGNALS", how).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line == "ready")));
        kill_process(Pid::from_child(&child), signal).unwrap();
        if !launcher.is_empty() {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
        child.wait().unwrap().code()
    }

    #[test]
    fn signals_end_a_command_that_does_not_wait_for_them() {
        let all = [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)];
        for (signal, exit) in all.into_iter().filter(|(signal, _)| *signal != Signal::HUP || !ignores_hangup()) {
            assert_eq!(ended_by(signal, "afterwards", &[]), Some(exit));
            assert_eq!(ended_by(signal, "meanwhile", &[]), Some(7));
        }
    }

    #[test]
    fn a_command_under_nohup_outlives_its_terminal() {
        assert_eq!(ended_by(Signal::HUP, "afterwards", &["nohup"]), Some(143));
    }
}
