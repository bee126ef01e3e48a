//! Owns the driver's checks of ranks without messages, on this machine or through their worker.
//!
//! `process_probe` inspects the processes.

use super::{Driver, LONG_SILENCE, RankConnections, SILENCE, TICK};
use crate::error::HostError;
use crate::live::process_probe::{ProcessProbe, is_stopped};
use crate::live::remote::remote_worker::RemoteWorker;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};
use uniference_client::quiescence::{Found, Threads};
use uniference_lowering::conversations::Progress;
use uniference_sim::engine::{Doing, RankReport};
use uniference_sim::ids::RankId;

/// Delay before the next check of a process that was woken from outside the simulation.
pub(super) const AGAIN: Duration = Duration::from_millis(1);

/// Number of consecutive checks that find a process running after which time passes without waiting for the process.
const MOST_AGAIN: u32 = 10_000;

/// Number of threads whose files stay open from one check to the next; each thread has three files.
const MOST_OPEN: usize = 1000;

/// Checks of processes that have reported that they wait.
#[derive(Default)]
pub(super) struct Looks {
    /// The kernel's files on the threads of each process.
    threads: BTreeMap<i32, Threads>,
    /// Number of checks in a row that have found a process running.
    in_vain: u32,
}

/// Whether all processes slept at one moment: the checks of each process enclose the checks of the processes after it.
fn sleep_at_once(processes: &mut [&mut Threads]) -> io::Result<bool> {
    let everyone = BTreeSet::new();
    let Some((first, rest)) = processes.split_first_mut() else { return Ok(true) };
    let (found, others_sleep) = first.look_around(&everyone, &everyone, |_| sleep_at_once(rest))?;
    Ok(found != Found::Running && others_sleep)
}

impl Driver<'_> {
    /// The longest time to wait for messages.
    pub(super) fn next_timeout(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let expiry = self.slots.expire(now).map(|at| at.saturating_duration_since(now) + Duration::from_millis(1));
        let tick = self.watch.console.wants_ticks().then_some(TICK);
        let silence = self.anybody_is_out().then_some(SILENCE);
        let end =
            self.setup.timeout.map(|timeout| timeout.saturating_sub(self.started.elapsed()) + Duration::from_millis(1));
        let again = self.idles.then_some(AGAIN);
        [expiry, tick, silence, end, again].into_iter().flatten().min()
    }

    /// Advances the run as far as possible without reading new messages, including the passage of time while no task
    /// has a request.
    pub(super) fn go_on_when_idle(&mut self) -> Result<Progress, HostError> {
        let mut standing = self.go_on();
        while matches!(standing, Progress::Idle) && self.still_waits()? {
            self.conversations.still_waits();
            standing = self.go_on();
        }
        self.idles = matches!(standing, Progress::Idle);
        Ok(standing)
    }

    /// Whether all processes that could be woken from outside still wait, and have sent no message since they reported
    /// it. A process that is still asleep was not woken by anything that other processes have done so far.
    pub(super) fn still_waits(&mut self) -> Result<bool, HostError> {
        let wakeable: BTreeSet<u32> = self.conversations.wakeable().map(|rank| rank.0).collect();
        // Only ranks on this machine are checked: a rank on another machine could only be woken over the network.
        let is_here = |rank: RankId| self.board(rank.0).is_none();
        let mut processes =
            self.processes_where(|rank, state| !state.crashed && is_here(rank) && wakeable.contains(&rank.0));
        // A stopped process needs a signal to continue, which has not been sent yet.
        processes.retain(|(_, pid)| !is_stopped(*pid));
        let mut looks = std::mem::take(&mut self.looks);
        looks.threads.retain(|pid, _| processes.iter().any(|(_, process)| process == pid));
        for (_, pid) in processes {
            looks.threads.entry(pid).or_insert_with(|| Threads::of(pid));
        }
        let waits = sleep_at_once(&mut looks.threads.values_mut().collect::<Vec<_>>()).unwrap_or_else(|_| {
            // Processes that cannot be inspected count as waiting, as they have reported; other parts of the run need
            // the descriptors.
            looks.threads.clear();
            true
        });
        if looks.threads.values().map(Threads::count).sum::<usize>() > MOST_OPEN {
            looks.threads.clear();
        }
        let waits = waits && self.sources.wait(Some(Duration::ZERO))?.is_empty();
        looks.in_vain = if waits { 0 } else { looks.in_vain + 1 };
        let gives_up = looks.in_vain > MOST_AGAIN;
        self.looks = looks;
        Ok(waits || gives_up)
    }

    /// Handles a period without messages: a rank whose threads all wait for each other is marked as quiet.
    pub(super) fn look_out(&mut self) {
        let silent = self.heard.elapsed();
        if silent < SILENCE {
            return;
        }
        for (rank, pid) in self.running() {
            let found = self.board(rank).map_or_else(|| ProcessProbe::waits(pid), |board| board.waits(rank));
            match found {
                Found::Inside => {
                    self.conversations.stuck(RankId(rank));
                    self.slots.blocked(RankId(rank));
                }
                Found::Outside if silent > LONG_SILENCE && self.waiting_outside.insert(rank) => {
                    self.say_outside(rank, pid)
                }
                Found::Outside | Found::Running => {}
            }
        }
        for (rank, pid) in self.processes_where(|rank, _| self.conversations.waits_outside(rank)) {
            if silent > LONG_SILENCE && self.waiting_outside.insert(rank) {
                self.say_outside(rank, pid);
            }
        }
    }

    pub(super) fn anybody_runs(&self) -> bool {
        self.is_there(|rank| self.conversations.runs(rank))
    }

    /// Whether any rank may send a message that does not depend on the engine alone.
    pub(super) fn anybody_is_out(&self) -> bool {
        self.is_there(|rank| self.conversations.runs(rank) || self.conversations.waits_outside(rank))
    }

    /// Whether any rank that satisfies `such` has a process that has not ended.
    fn is_there(&self, such: impl Fn(RankId) -> bool) -> bool {
        (0..).map(RankId).zip(&self.ranks).any(|(rank, state)| state.process.status().is_none() && such(rank))
    }

    fn say_outside(&mut self, rank: u32, pid: i32) {
        let stands = self.board(rank).map(|board| board.stands(rank, true, false));
        let stands = stands.unwrap_or_else(|| self.lookout.stands_undisturbed(pid)).join("; ");
        let place = if stands.is_empty() { stands } else { format!(" ({stands})") };
        let seconds = LONG_SILENCE.as_secs();
        self.watch.console.warn(&format!(
            "rank {rank} has been blocked on external I/O for {seconds} s; virtual time cannot advance{place}"
        ));
    }

    /// Ranks whose processes run, except the debugged rank, which waits for its user.
    fn running(&self) -> Vec<(u32, i32)> {
        let debugged = self.setup.terminal.as_ref().map(|terminal| terminal.rank);
        self.processes_where(|rank, state| Some(rank.0) != debugged && !state.crashed && self.conversations.runs(rank))
    }

    fn processes_where(&self, wanted: impl Fn(RankId, &RankConnections) -> bool) -> Vec<(u32, i32)> {
        let ranks = (0..).zip(&self.ranks).filter(|(rank, state)| wanted(RankId(*rank), state));
        ranks.filter_map(|(rank, state)| state.process.pid().map(|pid| (rank, pid))).collect()
    }

    /// Lines at which threads wait inside their process, by rank; at most `most` ranks.
    pub fn stands(&self, most: usize) -> BTreeMap<u32, Vec<String>> {
        let report = self.conversations.engine().report();
        let inside = report.iter().filter(|rank| rank.tasks.iter().any(|task| task.doing == Doing::Inside));
        inside.filter_map(|rank| self.stand(rank.rank, false)).take(most).collect()
    }

    /// Lines of the threads of the first `most` ranks that the engine does not know: threads that run, wait inside
    /// their process, or have called at a time that virtual time has not reached.
    pub fn whereabouts(&self, most: usize) -> BTreeMap<u32, Vec<String>> {
        let report = self.conversations.engine().report();
        let all = |rank: &RankReport, doing: Doing| rank.tasks.iter().all(|task| task.doing == doing);
        let known = |rank: &&RankReport| {
            rank.ended.is_some() || rank.tasks.iter().all(|task| !matches!(task.doing, Doing::Running | Doing::Inside))
        };
        let unknown = report.iter().take(most).filter(|rank| !known(rank));
        unknown.filter_map(|rank| self.stand(rank.rank, all(rank, Doing::Running))).collect()
    }

    fn stand(&self, rank: RankId, with_calls: bool) -> Option<(u32, Vec<String>)> {
        let pid = self.ranks.get(rank.index())?.process.pid()?;
        let stands = self.board(rank.0).map(|board| board.stands(rank.0, false, with_calls));
        Some((rank.0, stands.unwrap_or_else(|| self.lookout.stands(pid, with_calls))))
    }

    /// The worker of a rank on another machine.
    pub(super) fn board(&self, rank: u32) -> Option<&RemoteWorker> {
        self.board_of[rank as usize].map(|board| &self.boards[board])
    }
}
