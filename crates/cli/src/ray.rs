//! Owns the trials of a sweep that run on a Ray cluster: the process that talks to Ray (`python/uniference/on_ray.py`),
//! and the threads that wait for trials. Replays run on this machine, because sending the record to another node takes
//! longer than the replay.

use super::devices::own_file;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use uniference_formats::sweep::Sweep;
use uniference_host::error::HostError;
use uniference_host::interrupt::shield;
use uniference_host::supervisor::supervise;
use uniference_session::sweep::{Carrier, Trial};

/// Interval between checks whether the sweep must end.
const PERIOD: Duration = Duration::from_millis(50);
/// Packages that each node must have in the same version as this machine.
const PACKAGES: [&str; 2] = ["uniference", "torch"];
/// Python code that writes the versions of the named packages as JSON.
const VERSIONS: &str = "import importlib.metadata, json, sys; print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))";

/// Machines that trials run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Place {
    /// On this machine
    #[default]
    Here,
    /// On the Ray cluster that RAY_ADDRESS names, or that this machine is a node of
    Ray,
}

/// Channels to the threads that wait for a trial, by its number.
type Waiting = Mutex<BTreeMap<u64, Sender<Result<(), String>>>>;

/// Runs programs and jobs as Ray tasks, which end when this is dropped.
pub(super) struct OnRay<'s> {
    sweep: &'s Sweep,
    /// Number of CPUs of the cluster.
    processors: usize,
    child: Child,
    input: Mutex<Option<ChildStdin>>,
    waiting: Arc<Waiting>,
    next: AtomicU64,
    lost: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

/// First message of the process.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Processors { processors: usize },
    Error { error: String },
}

#[derive(Deserialize)]
struct Ended {
    ended: u64,
    /// Exit code of the command; `None`: it did not run, for the reason in `said`.
    status: Option<i32>,
    said: String,
}

impl<'s> OnRay<'s> {
    /// Connects to the cluster. Each node gets a copy of `folder`, the sweep file's folder, without `results`.
    pub(super) fn start(
        python: &Path,
        sweep: &'s Sweep,
        folder: &Path,
        results: Option<&Path>,
    ) -> Result<OnRay<'s>, HostError> {
        let versions = shield(Command::new(python).args(["-P", "-c", VERSIONS]).args(PACKAGES).arg("ray")).output();
        let versions = versions.ok().filter(|output| output.status.success());
        let Some(versions) = versions else {
            return Err(HostError::Host {
                what: "`--on ray` requires Ray".to_owned(),
                hint: "pip install \"uniference[ray]\"".to_owned(),
            });
        };
        let mut versions: BTreeMap<String, String> = serde_json::from_slice(&versions.stdout).map_err(|_| ended())?;
        // Ray itself refuses nodes with another Ray version.
        versions.remove("ray");
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let folder = folder.canonicalize().map_err(HostError::system("finding the folder of the sweep file"))?;
        let results = results.and_then(|results| std::path::absolute(results).ok());
        let left_out: Option<&Path> = results.as_ref().and_then(|results| results.strip_prefix(&folder).ok());
        let mut command = Command::new(python);
        command.args(["-P", "-m", "uniference.on_ray"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = supervise(shield(&mut command)).spawn().map_err(HostError::system("starting Ray's driver"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        let mut ray = OnRay {
            sweep,
            processors: 0,
            child,
            input: Mutex::new(input),
            waiting: Arc::default(),
            next: AtomicU64::new(0),
            lost: Arc::default(),
            listener: None,
        };
        let database = own_file().filter(|file| file.exists());
        let left_out: Vec<&Path> = left_out.into_iter().collect();
        ray.send(&json!({ "versions": versions, "folder": folder, "left_out": left_out, "database": database }))?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).map_err(|_| ended())?;
        match serde_json::from_str(&line).map_err(|_| ended())? {
            Answer::Processors { processors } => ray.processors = processors,
            Answer::Error { error } => {
                return Err(HostError::Host {
                    what: format!("there is no Ray cluster: {}", error.trim_end()),
                    hint: "start one with `ray start --head`, or name one: RAY_ADDRESS=ADDRESS:6379".to_owned(),
                });
            }
        }
        let (waiting, lost) = (ray.waiting.clone(), ray.lost.clone());
        ray.listener = Some(std::thread::spawn(move || listen(output, &waiting, &lost)));
        Ok(ray)
    }

    /// Number of trials that run at once.
    pub(super) fn processors(&self) -> usize {
        self.processors.max(1)
    }

    fn send(&self, message: &serde_json::Value) -> Result<(), HostError> {
        let mut input = self.input.lock().expect("nobody panics who holds it");
        let input = input.as_mut().expect("it is open until the end");
        writeln!(input, "{message}").and_then(|()| input.flush()).map_err(|_| ended())
    }
}

/// Passes the results of trials to the waiting threads.
fn listen(output: BufReader<ChildStdout>, waiting: &Waiting, lost: &AtomicBool) {
    for line in output.lines().map_while(Result::ok) {
        let Ok(Ended { ended, status, said }) = serde_json::from_str(&line) else { break };
        let outcome = match status {
            Some(0) => Ok(()),
            Some(status) => Err(super::reason(&said, &format!("exit code {status}"))),
            None => Err(said),
        };
        let sender = waiting.lock().expect("nobody panics who holds it").remove(&ended);
        // An abandoned trial has no waiting thread.
        let _ = sender.map(|sender| sender.send(outcome));
    }
    lost.store(true, Relaxed);
    // Closing the channels tells the waiting threads that no result will arrive.
    waiting.lock().expect("nobody panics who holds it").clear();
}

/// Error for the ended process, which has written its reason to standard error.
fn ended() -> HostError {
    HostError::Host {
        what: "the process that talks to Ray has ended; what it said is above".to_owned(),
        hint: "look at the cluster with `ray status`; the same command with --out goes on".to_owned(),
    }
}

impl Carrier for OnRay<'_> {
    fn run(&self, trial: &Trial, folder: &Path, keeps_record: bool, stop: &AtomicBool) -> Result<(), String> {
        // Paths are relative to the node's copy of the sweep file's folder.
        let words = self.sweep.words(&trial.settings, Path::new(""));
        let options = trial.options(keeps_record);
        let command: Vec<String> =
            [words.command, words.cluster, words.options, options].into_iter().flatten().collect();
        let number = self.next.fetch_add(1, Relaxed);
        let (sender, receiver) = channel();
        self.waiting.lock().expect("nobody panics who holds it").insert(number, sender);
        let gone = || super::with_prefix(&ended());
        self.send(&json!({ "run": number, "words": command, "program": words.program, "folder": folder }))
            .map_err(|_| gone())?;
        loop {
            match receiver.recv_timeout(PERIOD) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if self.lost.load(Relaxed) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if stop.load(Relaxed) => {
                    let _ = self.send(&json!({ "cancel": number }));
                    return Err("error: interrupted".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn lost(&self) -> Option<HostError> {
        self.lost.load(Relaxed).then(ended)
    }
}

impl Drop for OnRay<'_> {
    fn drop(&mut self) {
        // The process and its running tasks end when its input ends.
        *self.input.lock().expect("nobody panics who holds it") = None;
        let _ = self.child.wait();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}
