//! Owns the driver's end of the zygote: its start, requests for ranks, and the exit statuses of ranks.
//! `python/uniference/rank/zygote.py` documents the messages.
//!
//! Messages of running ranks do not pass through the zygote.

use super::phantom::{Gpu, Libraries};
use crate::error::HostError;
use crate::interrupt::shield;
use crate::leaked_resources::{self, Register};
use crate::supervisor::{self, adopt_orphans, end_orphans, supervise};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use signal_hook::low_level::signal_name;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};
use uniference_protocol::leaked_resources::VARIABLE;
use uniference_protocol::wire::write_with_fds;

/// The program of a rank.
#[derive(Clone, Debug)]
pub struct Script {
    /// The script, or with `module` the module's name; then the arguments.
    pub argv: Vec<OsString>,
    /// Runs a module, as `python -m` does.
    pub module: bool,
    /// Variables added to the environment of every rank.
    pub env: BTreeMap<String, String>,
}

/// Placement of a rank, with the numbers that torchrun gives its processes.
#[derive(Clone, Debug)]
pub struct RankPlacement {
    /// The rank's number.
    pub rank: u32,
    /// Number of ranks in the world.
    pub world_size: u32,
    /// The rank's number on its host, and the number of ranks on that host.
    pub local: (u32, u32),
    /// The host's number, and the number of hosts.
    pub group: (u32, u32),
    /// The name of the rank's device.
    pub device: String,
    /// Bytes of the device's memory, if that is known.
    pub memory: Option<u64>,
    /// Number of the device's CPU cores, if known; at least 1.
    pub cores: Option<u32>,
    /// The simulated GPUs of the rank's host, one per rank; empty if GPUs are not simulated by a library.
    pub gpus: Vec<Gpu>,
    /// Whether `gpus` are the GPUs of all ranks, which this rank's program uses.
    pub lends: bool,
}

#[derive(Serialize)]
struct Fork<'a> {
    op: &'static str,
    rank: u32,
    world_size: u32,
    argv: Vec<String>,
    module: bool,
    env: &'a BTreeMap<String, String>,
    local_rank: u32,
    local_world_size: u32,
    group_rank: u32,
    group_world_size: u32,
    device: &'a str,
    memory: Option<u64>,
    cores: Option<u32>,
    gpus: &'a [Gpu],
    lends: bool,
    debug_rank: Option<u32>,
    input: bool,
}

/// The request to the zygote for a rank: a line of JSON. `input`: whether the rank has a standard input.
pub fn fork(script: &Script, place: &RankPlacement, debug_rank: Option<u32>, input: bool) -> Vec<u8> {
    let fork = Fork {
        op: "fork",
        rank: place.rank,
        world_size: place.world_size,
        argv: script.argv.iter().map(|word| byte_by_byte(word)).collect(),
        module: script.module,
        env: &script.env,
        local_rank: place.local.0,
        local_world_size: place.local.1,
        group_rank: place.group.0,
        group_world_size: place.group.1,
        device: &place.device,
        memory: place.memory,
        cores: place.cores,
        gpus: &place.gpus,
        lends: place.lends,
        debug_rank,
        input,
    };
    let mut line = serde_json::to_vec(&fork).expect("plain data has a JSON form");
    line.push(b'\n');
    line
}

/// A message of the zygote.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum News {
    /// Ranks can be forked.
    Ready {
        /// The version of torch.
        torch: String,
    },
    /// Ranks cannot be forked.
    Error {
        /// The error.
        message: String,
        /// The remedy.
        #[serde(default)]
        hint: String,
    },
    /// A rank has been forked.
    Forked {
        /// The rank that was forked.
        rank: u32,
        /// The id of the rank's process.
        pid: i32,
    },
    /// A rank's process has ended.
    Exited {
        /// The rank whose process ended.
        rank: u32,
        /// The id of the rank's process.
        pid: i32,
        /// Exit code, or minus the signal's number.
        status: i32,
    },
}

/// The process from which ranks are forked. The process and all ranks end when this is dropped, or when the current
/// process ends.
pub struct Zygote {
    /// The zygote's supervisor, which ends as the zygote does.
    child: Child,
    socket: Option<UnixStream>,
    heard: Vec<u8>,
    /// Whether the zygote has loaded torch and accepts requests.
    is_ready: bool,
    ranks: BTreeMap<u32, i32>,
    /// Time of the zygote's start.
    since: SystemTime,
    /// The register of shared resources that the ranks' processes create.
    made: Register,
    /// Libraries that the zygote has loaded; their files are removed when it ends.
    _libraries: Option<Libraries>,
}

/// The library that the zygote loads before the C library: the extension, whose time functions replace those of the C
/// library.
static PRELOADED: OnceLock<PathBuf> = OnceLock::new();

/// The environment variable for preloaded libraries of the dynamic linker; `python/uniference/rank/zygote.py` removes
/// it again.
const PRELOAD: &str = "LD_PRELOAD";

/// The environment variable with the seed of Python's string hashes, which decides the order of sets: random if unset.
/// The seed is the same in every run, unless the user sets it.
const HASH_SEED: &str = "PYTHONHASHSEED";

/// Makes every zygote of this process load the library at `path` before the C library.
pub fn preload(path: PathBuf) {
    PRELOADED.get_or_init(|| path);
}

/// The folder of the package that contains the extension.
pub(super) fn package() -> Option<&'static Path> {
    PRELOADED.get().and_then(|extension| extension.parent())
}

/// Time limit for the zygote to end by itself after all ranks have ended.
const GRACE: Duration = Duration::from_secs(2);

impl Zygote {
    /// Starts `python -P -m uniference.rank.zygote`: `-P` keeps files of the current folder from shadowing modules. The
    /// zygote imports `modules` before it is ready; `libraries` are loaded after the extension.
    pub fn start(python: &Path, modules: &[String], libraries: Option<Libraries>) -> Result<Zygote, HostError> {
        let (socket, theirs) = UnixStream::pair().map_err(HostError::system("creating a socket pair"))?;
        inherit(theirs.as_fd()).map_err(HostError::system("making a socket inheritable"))?;
        socket.set_nonblocking(true).map_err(HostError::system("making a socket non-blocking"))?;
        adopt_orphans()?;
        let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(HostError::system("copying standard error"))?;
        let (since, made) = (SystemTime::now(), Register::new()?);
        let mut command = Command::new(python);
        shield(&mut command);
        command
            .args(["-P", "-m", "uniference.rank.zygote", &theirs.as_raw_fd().to_string()])
            .args(modules)
            .envs(preloads(libraries.as_ref()).map(|value| (PRELOAD, value)))
            .envs(libraries.iter().flat_map(Libraries::environment))
            .env(VARIABLE, made.path())
            .env(HASH_SEED, std::env::var_os(HASH_SEED).unwrap_or_else(|| "0".into()))
            .stdin(Stdio::null())
            .stdout(stderr);
        let child = supervise(&mut command).spawn().map_err(|error| not_started(python, &error))?;
        Ok(Zygote {
            child,
            socket: Some(socket),
            heard: Vec::new(),
            is_ready: false,
            ranks: BTreeMap::new(),
            since,
            made,
            _libraries: libraries,
        })
    }

    /// The descriptor to poll for messages.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("open until it is dropped").as_fd()
    }

    /// Requests the rank of an `order` ([`fork`]) with these descriptors: its control socket, standard output and
    /// standard error; for a debugged rank also standard input.
    pub fn fork(&mut self, order: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), HostError> {
        let socket = self.socket.as_ref().expect("open until it is dropped");
        let send = || {
            socket.set_nonblocking(false)?;
            write_with_fds(socket, order, fds)?;
            socket.set_nonblocking(true)
        };
        send().map_err(|_: io::Error| self.lost())
    }

    /// Messages of the zygote since the last call.
    pub fn hear(&mut self) -> Result<Vec<News>, HostError> {
        let mut chunk = [0; 4096];
        let mut socket = self.socket.as_ref().expect("open until it is dropped");
        loop {
            match socket.read(&mut chunk) {
                // Messages from before the end of the zygote come first: they may state the reason.
                Ok(0) if self.heard.contains(&b'\n') => break,
                Ok(0) => return Err(self.lost()),
                Ok(n) => self.heard.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ended(format!("cannot read from the zygote: {error}"))),
            }
        }
        let whole = self.heard.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.heard.drain(..whole).collect();
        let news: Vec<News> = lines.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()).map(understand).collect();
        news.iter().for_each(|news| self.keep_account(news));
        Ok(news)
    }

    fn keep_account(&mut self, news: &News) {
        match news {
            News::Forked { rank, pid } => drop(self.ranks.insert(*rank, *pid)),
            News::Exited { rank, .. } => drop(self.ranks.remove(rank)),
            News::Ready { .. } => self.is_ready = true,
            News::Error { .. } => {}
        }
    }

    /// Whether the zygote ends by itself, as it should if no rank is left.
    fn ends_by_itself(&mut self) -> bool {
        let deadline = Instant::now() + GRACE;
        while self.is_ready && self.ranks.is_empty() && Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    /// The error for a closed connection. If the zygote ended by itself before it was ready, the machine or its
    /// installation is at fault; otherwise the zygote was killed.
    fn lost(&mut self) -> HostError {
        let (how, by_signal) = match self.child.wait() {
            Ok(status) => {
                let signal = status.signal();
                (describe_status(status.code().or(signal.map(|signal| -signal)).unwrap_or_default()), signal.is_some())
            }
            Err(error) => (format!("is lost ({error})"), false),
        };
        if self.is_ready || by_signal {
            let how = if self.is_ready { how } else { format!("{how} during startup") };
            let hint = "the host may have run out of memory (check dmesg), or another process ended it";
            return HostError::ZygoteLost { how, hint };
        }
        ended(format!("the process that ranks are forked from {how}"))
    }
}

/// Ends all processes of the run, including those that ranks have started.
impl Drop for Zygote {
    fn drop(&mut self) {
        let mut left = leaked_resources::shared_by(self.child.id() as i32, self.since);
        for pid in self.ranks.values() {
            kill_group(*pid);
        }
        self.socket = None;
        if !self.ends_by_itself() {
            let _ = supervisor::end(&mut self.child);
        }
        end_orphans();
        left.extend(self.made.left());
        leaked_resources::remove(left);
    }
}

/// The preloaded libraries: the extension first, the user's last.
fn preloads(libraries: Option<&Libraries>) -> Option<OsString> {
    let mut value = PRELOADED.get()?.clone().into_os_string();
    if let Some(libraries) = libraries {
        value.push(":");
        value.push(libraries.preload());
    }
    if let Some(others) = std::env::var_os(PRELOAD) {
        value.push(":");
        value.push(others);
    }
    Some(value)
}

/// Kills a process and its group; processes that no longer exist are no error.
fn kill_group(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn not_started(python: &Path, error: &io::Error) -> HostError {
    let hint = match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => "raise the limit of processes (ulimit -u), or stop some",
        Some(Errno::NOMEM) => "free memory, or raise the memory limit (ulimit -v)",
        _ => "run `uniference doctor` to see what is missing",
    };
    HostError::Zygote { what: format!("cannot start {}: {error}", python.display()), hint: hint.into() }
}

fn inherit(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())
}

/// Encodes each byte as the character of that number: JSON has UTF-8 only.
fn byte_by_byte(word: &OsStr) -> String {
    word.as_bytes().iter().map(|byte| char::from(*byte)).collect()
}

/// # Panics
/// If the line is not a message of the zygote.
fn understand(line: &[u8]) -> News {
    serde_json::from_slice(line).unwrap_or_else(|e| panic!("the zygote said {:?}: {e}", String::from_utf8_lossy(line)))
}

/// "was killed by SIGKILL", "exited with status 7".
pub fn describe_status(status: i32) -> String {
    match signal_name(-status) {
        Some(name) => format!("was killed by {name}"),
        None if status < 0 => format!("was killed by signal {}", -status),
        None => format!("exited with status {status}"),
    }
}

fn ended(what: String) -> HostError {
    HostError::Zygote { what, hint: "see its output above; run `uniference doctor` to see what is missing".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_messages_are_understood() {
        assert_eq!(understand(br#"{"event": "ready", "torch": "2.15.0"}"#), News::Ready { torch: "2.15.0".into() });
        let exited = News::Exited { rank: 0, pid: 4711, status: -9 };
        assert_eq!(understand(br#"{"event": "exited", "rank": 0, "pid": 4711, "status": -9}"#), exited);
    }

    #[test]
    fn a_python_that_is_not_there_is_an_error_with_a_hint() {
        let error = Zygote::start(Path::new("/nowhere/python"), &[], None).err().unwrap().to_string();
        assert!(error.contains("/nowhere/python") && error.contains("hint:"), "{error}");
    }

    #[test]
    fn the_cause_of_a_death_is_named() {
        assert_eq!(describe_status(-9), "was killed by SIGKILL");
        assert_eq!(describe_status(-63), "was killed by signal 63");
        assert_eq!(describe_status(0), "exited with status 0");
    }
}
