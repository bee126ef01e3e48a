//! Owns ranks on other machines. A worker does for the ranks of its machine what the driver does for its own: it has a
//! zygote, and an arena that the ranks map. A `RemoteWorker` is the driver's side of a worker; `messages` defines the
//! messages between them.
//!
//! The ranks' processes see no difference. The worker relays their frames, and the bytes of the arena that frames refer
//! to: the bytes of an input before the frame that reports it as staged, the bytes of an output before the answer with
//! its offsets.

mod files;
mod inbox;
mod messages;
pub(super) mod remote_worker;
pub mod worker;

use crate::error::HostError;
use crate::interrupt::{Interrupt, Interrupts};
pub use files::Synced;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
pub use uniference_link::door::{Door, Joined};

/// Interval at which the driver checks for signals while it waits for workers.
const TICK: Duration = Duration::from_millis(50);

/// Outcome of the wait for workers.
pub enum Gathered {
    /// All workers have joined.
    All(Vec<Joined>),
    /// The user interrupted the wait.
    Interrupted(Interrupt),
}

/// Waits until workers of all `names` have joined.
///
/// # Errors
/// If a worker has not joined within `timeout`.
pub fn gather(
    door: &Door,
    names: &BTreeSet<String>,
    timeout: Duration,
    interrupts: &Interrupts,
    mut tell: impl FnMut(&str),
) -> Result<Gathered, HostError> {
    let deadline = Instant::now() + timeout;
    let mut joined = BTreeMap::new();
    door.expect(names.iter().cloned());
    tell(&format!("waiting for {} on {}", names.iter().cloned().collect::<Vec<_>>().join(", "), door.address()));
    while joined.len() < names.len() {
        if let Some(interrupt) = interrupts.take() {
            return Ok(Gathered::Interrupted(interrupt));
        }
        if Instant::now() > deadline {
            let missing: Vec<&str> =
                names.iter().filter(|name| !joined.contains_key(*name)).map(String::as_str).collect();
            return Err(HostError::Host {
                what: format!("{} did not join within {} s", missing.join(", "), timeout.as_secs()),
                hint: format!(
                    "start it there with `uniference worker --name {} --join HOST:{} --token-file FILE`, or wait longer with --join-timeout",
                    missing[0],
                    door.address().port()
                ),
            });
        }
        if let Some(worker) = door.wait(TICK) {
            tell(&format!("worker {} has joined from {}", worker.name, worker.peer));
            joined.insert(worker.name.clone(), worker);
        }
    }
    Ok(Gathered::All(joined.into_values().collect()))
}
