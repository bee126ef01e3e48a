//! Owns the participation of other processes in the rounds: which processes of the rank there are, what relay threads
//! report about them, and which of them communicate.
//!
//! `relay` makes the requests of these processes; `quiescence` finds out whether their threads wait.

use super::{Part, Path, State, ThreadBarrier, path, this_thread};
use crate::client::listening::Listener;
use crate::client::names::Pieces;
use crate::client::{Client, ClientError};
use crate::lanes::Meter;
use crate::quiescence::started_at;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use uniference_protocol::messages::Op;
use uniference_sim::ids::OfProcess;
use uniference_sim::program::Mark;

thread_local! {
    /// The path of the process for which this relay thread makes requests.
    static PROCESS: RefCell<Option<Path>> = const { RefCell::new(None) };
    /// The rank to which that process has moved, as last returned to this relay thread.
    static RANK: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A participating process.
pub(super) struct Relative {
    /// Time of the process's start.
    started: u64,
    /// The path of the process's first thread.
    path: Path,
}

/// State that a process has reported.
#[derive(Default)]
pub(super) struct Said {
    /// The process's number within the rank, once the process has used ids of its own. Numbers follow the order of
    /// paths, not of arrival.
    pub(super) number: Option<OfProcess>,
    /// Definitions of ids in the process's captured operators that the driver has not received.
    pub(super) dictionary: Pieces,
    /// Whether the process has numbered ranges.
    has_ranges: bool,
    /// The rank to which the process has moved.
    rank: Option<u32>,
}

impl ThreadBarrier {
    /// Makes other processes participate from now on.
    pub(crate) fn begins_family(&self, meter: Meter) {
        self.lanes.measure_relatives(meter);
        let mut state = self.enter();
        state.threads.share();
        state.family.measure(meter.process);
        drop(state);
        self.family.store(true, SeqCst);
    }

    /// Keeps rounds from ending while a thread forks, until the child process participates: until then, both processes
    /// may seem to sleep although the child runs.
    pub(crate) fn holds(&self) {
        self.arriving.fetch_add(1, SeqCst);
    }

    /// Allows rounds to end again: the child process participates, or has ended.
    pub(crate) fn lets_go(&self) {
        self.arriving.fetch_sub(1, SeqCst);
    }

    /// Marks the calling thread as a thread of the client: it waits for connections of other processes, or relays
    /// requests of a thread of `process`.
    pub(crate) fn serves(&self, process: Option<(i32, Arc<Listener>)>) {
        let mut state = self.enter();
        state.serving.insert(this_thread(), process.as_ref().map(|(_, listener)| Arc::clone(listener)));
        if let Some((process, started)) = process.and_then(|(process, _)| Some((process, started_at(process)?))) {
            let known = state.relatives.get(&process).filter(|known| known.started == started);
            let first = known.map_or_else(path, |known| known.path.clone());
            state.relatives.insert(process, Relative { started, path: first.clone() });
            PROCESS.set(Some(first));
            self.lanes.meet(process);
        }
    }

    /// Adds definitions of ids in captured operators of the process for which the calling thread makes requests.
    pub(crate) fn names(&self, at: u64, entries: Vec<u8>) {
        let mut state = self.enter();
        if let Some(process) = of_this_thread() {
            state.said.entry(process).or_default().dictionary.insert(at, entries);
        }
    }

    /// Moves the process for which the calling thread makes requests to another rank.
    pub(crate) fn process_moves(&self, to: u32) {
        let mut state = self.enter();
        if let Some(process) = of_this_thread() {
            state.said.entry(process).or_default().rank = Some(to);
            RANK.set(Some(to));
        }
    }

    /// The rank to which the thread's process has moved since the calling thread's previous call; `None`: it has not
    /// moved.
    pub(crate) fn thread_moves(&self) -> Option<u32> {
        let state = self.enter();
        let to = PROCESS.with_borrow(|process| state.said.get(process.as_ref()?)?.rank);
        if RANK.replace(to) == to { None } else { to }
    }

    /// Whether the process for which the calling thread makes requests communicates for its rank, which is `own` unless
    /// the process has moved. Only the first process that communicates may do so.
    pub(crate) fn may_communicate(&self, own: u32, own_process_does: bool) -> bool {
        let mut state = self.enter();
        let Some(process) = of_this_thread() else { return false };
        let rank = state.said.get(&process).and_then(|said| said.rank).unwrap_or(own);
        if rank == own && own_process_does {
            return false;
        }
        *state.communicate.entry(rank).or_insert_with(|| process.clone()) == process
    }

    /// Whether the process for which the calling thread makes requests communicates for its rank.
    pub(crate) fn communicates(&self) -> bool {
        let state = self.enter();
        PROCESS
            .with_borrow(|process| process.iter().any(|process| state.communicate.values().any(|one| one == process)))
    }

    /// Whether another process communicates for this rank.
    pub(crate) fn another_communicates(&self, rank: u32) -> bool {
        self.threaded() && self.enter().communicate.contains_key(&rank)
    }

    /// The path under which a relay thread makes requests for the thread that reported `path`. The result differs from
    /// `path` if that path is in use, for example if the C library started the process.
    pub(crate) fn admits(&self, path: Path) -> Path {
        let mut state = self.enter();
        let mut own = path.clone();
        while !state.admitted.insert(own.clone()) {
            state.doubles += 1;
            own = path.iter().copied().chain([u32::MAX, state.doubles]).collect();
        }
        own
    }

    /// Ends the calling thread's work on behalf of another thread.
    pub(crate) fn served(&self, path: &Path) {
        let mut state = self.enter();
        state.serving.remove(&this_thread());
        state.admitted.remove(path);
        // The check runs here because possibly no other thread is left to run it.
        self.run(&mut state);
    }
}

impl State {
    /// Whether another process participates in the rounds, or could.
    pub(super) fn has_family(&mut self) -> bool {
        let is_there = |process: i32, relative: &Relative| {
            self.family.sleeps_on(process) || started_at(process) == Some(relative.started)
        };
        self.relatives.retain(|process, relative| is_there(*process, relative));
        !self.relatives.is_empty() || has_children()
    }

    /// Numbers each process that now uses ids of its own.
    pub(super) fn number_processes(&mut self, client: &Client) {
        let names_ranges =
            |part: &Part| part.ops.iter().any(|op| matches!(op, Op::Thread(_) | Op::Mark(Mark::Open { .. })));
        for process in self.parts.values().filter(|part| names_ranges(part)).filter_map(|part| part.process.clone()) {
            self.said.entry(process).or_default().has_ranges = true;
        }
        let mut next = self.said.values().filter(|said| said.number.is_some()).count() as u32 + 1;
        for said in self.said.values_mut().filter(|said| said.number.is_none()) {
            if said.has_ranges || !said.dictionary.is_empty() {
                let number = OfProcess::new(next);
                said.number = Some(number.unwrap_or_else(|| ClientError::Processes { rank: client.rank }.end()));
                next += 1;
            }
        }
    }
}

/// The path of the process for which the calling relay thread makes requests.
pub(super) fn of_this_thread() -> Option<Path> {
    PROCESS.with_borrow(Clone::clone)
}

/// Allocates the calling thread's state of this module.
pub(super) fn make() {
    PROCESS.with(|_| ());
}

/// Whether the process has children.
fn has_children() -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_threads_have_one_path() {
        let rounds = ThreadBarrier::new(1).unwrap();
        let first = rounds.admits(vec![0, 1]);
        let second = rounds.admits(vec![0, 1]);
        assert_eq!(first, [0, 1]);
        // The replaced path sorts after the original one, and before later children of the same parent.
        assert!(first < second && second != first && second < vec![0, 2]);
        rounds.serves(None);
        rounds.served(&first);
        assert_eq!(rounds.admits(vec![0, 1]), [0, 1]);
    }
}
