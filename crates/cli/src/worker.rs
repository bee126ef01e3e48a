//! Owns `uniference worker`, and the options of a run with workers.
//!
//! `uniference-host` defines a worker's part in a run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uniference_formats::cluster::is_worker_name;
use uniference_host::interrupt::Interrupts;
use uniference_host::live::remote::worker::{Served, serve};
use uniference_link::join::{JoinError, join};
use uniference_link::token::Token;
use uniference_session::live::{Door, Synced, Workers};
use uniference_session::{Exit, HostError};

/// Time between two attempts of a worker to join.
const AGAIN: Duration = Duration::from_secs(1);

/// `uniference worker`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Name of this worker, as the cluster file has it: at = "NAME"
    #[arg(long, value_parser = name)]
    name: String,
    /// Address at which the driver listens
    #[arg(long, value_name = "HOST:PORT")]
    join: String,
    /// File that contains the token, the same as the driver's
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// End after one run, instead of waiting for the next one
    #[arg(long)]
    once: bool,
}

/// Options of workers on other machines.
#[derive(clap::Args)]
pub(super) struct WorkerArgs {
    /// Listen at this address for the workers that the cluster file's devices name
    #[arg(long, value_name = "ADDRESS:PORT", requires = "token_file", help_heading = "Workers")]
    listen: Option<String>,
    /// File that contains the token, the same as the workers'
    #[arg(long, value_name = "FILE", requires = "listen", help_heading = "Workers")]
    token_file: Option<PathBuf>,
    /// Time to wait for all workers, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, requires = "listen", help_heading = "Workers")]
    join_timeout: u64,
    /// Do not send the script and its files to the workers, which have them under the same paths
    #[arg(long, requires = "listen", help_heading = "Workers")]
    no_sync: bool,
}

fn name(text: &str) -> Result<String, String> {
    if is_worker_name(text) {
        Ok(text.to_owned())
    } else {
        Err("expected 1 to 64 letters, digits, -, _ or .".to_owned())
    }
}

impl WorkerArgs {
    /// Listens for workers, if `--listen` is given. `script` is the ranks' script with its arguments; or a module.
    pub(super) fn open(&self, script: &[OsString], module: bool) -> Result<Option<Workers>, HostError> {
        let Some((address, file)) = self.listen.as_ref().zip(self.token_file.as_ref()) else { return Ok(None) };
        let token = token(file)?;
        let synced = if self.no_sync { Synced::nothing()? } else { Synced::of(script, module)? };
        let log = |line: &str| super::complain(format_args!("{line}\n"));
        let door = Door::open(address, token, log).map_err(|error| HostError::Host {
            what: format!("cannot listen at {address}: {error}"),
            hint: "give an address of this machine and a free port, for example 0.0.0.0:7070".to_owned(),
        })?;
        Ok(Some(Workers { door: Arc::new(door), timeout: Duration::from_secs(self.join_timeout), synced }))
    }
}

fn token(file: &Path) -> Result<Token, HostError> {
    Token::read(file).map_err(|error| HostError::Usage(error.to_string()))
}

/// Runs ranks for one driver after another.
pub(super) fn worker(args: &Args, python: &Path) -> Result<Exit, HostError> {
    let interrupts = Interrupts::new()?;
    let token = token(&args.token_file)?;
    let mut said = String::new();
    loop {
        if let Some(interrupt) = interrupts.take() {
            return Ok(interrupt.into());
        }
        match join(&args.join, &token, &args.name) {
            Ok((stream, receiver)) => {
                said.clear();
                tell(args, "has joined a run");
                match serve(python, stream, receiver, &interrupts)? {
                    Served::Over => tell(args, "the run is over"),
                    Served::Lost(why) => tell(args, &format!("the run is lost: {why}")),
                    Served::Interrupted(interrupt) => return Ok(interrupt.into()),
                }
                if args.once {
                    return Ok(Exit::Ok);
                }
            }
            Err(error @ (JoinError::Unavailable(_) | JoinError::Unwanted(_))) => {
                let why = format!("waits for a run at {}: {error}", args.join);
                if why != said {
                    tell(args, &why);
                    said = why;
                }
            }
            Err(refused) => return Err(HostError::Usage(refused.to_string())),
        }
        interrupts.wait(AGAIN);
    }
}

fn tell(args: &Args, what: &str) {
    super::complain(format_args!("worker {}: {what}\n", args.name));
}
