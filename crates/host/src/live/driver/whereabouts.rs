//! Owns how the driver finds out what ranks do that say nothing, on this machine or by their worker.
//!
//! How a process is looked at is `lookout`'s business.

use super::{Driver, LONG_SILENCE, RankConnections, SILENCE};
use crate::live::lookout::Lookout;
use crate::live::remote::board::Board;
use std::collections::BTreeMap;
use uniference_client::quiescence::Found;
use uniference_sim::engine::{Doing, RankReport};
use uniference_sim::ids::RankId;

impl Driver<'_> {
    /// Nobody says anything: a rank whose threads all wait for each other never will.
    pub(super) fn look_out(&mut self) {
        let silent = self.heard.elapsed();
        if silent < SILENCE {
            return;
        }
        for (rank, pid) in self.running() {
            let found = self.board(rank).map_or_else(|| Lookout::waits(pid), |board| board.waits(rank));
            match found {
                Found::Inside => {
                    self.exchange.stuck(RankId(rank));
                    self.slots.blocked(RankId(rank));
                }
                Found::Outside if silent > LONG_SILENCE && self.waiting_outside.insert(rank) => {
                    self.say_outside(rank, pid)
                }
                Found::Outside | Found::Running => {}
            }
        }
        for (rank, pid) in self.processes_where(|rank, _| self.exchange.waits_outside(rank)) {
            if silent > LONG_SILENCE && self.waiting_outside.insert(rank) {
                self.say_outside(rank, pid);
            }
        }
    }

    pub(super) fn anybody_runs(&self) -> bool {
        self.is_there(|rank| self.exchange.runs(rank))
    }

    /// Whether somebody may be heard of who does not wait for the engine alone.
    pub(super) fn anybody_is_out(&self) -> bool {
        self.is_there(|rank| self.exchange.runs(rank) || self.exchange.waits_outside(rank))
    }

    /// Whether there is such a rank whose process has not ended.
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

    /// Ranks whose processes run, but for the one that waits for its user.
    fn running(&self) -> Vec<(u32, i32)> {
        let debugged = self.setup.terminal.as_ref().map(|terminal| terminal.rank);
        self.processes_where(|rank, state| Some(rank.0) != debugged && !state.crashed && self.exchange.runs(rank))
    }

    fn processes_where(&self, wanted: impl Fn(RankId, &RankConnections) -> bool) -> Vec<(u32, i32)> {
        let ranks = (0..).zip(&self.ranks).filter(|(rank, state)| wanted(RankId(*rank), state));
        ranks.filter_map(|(rank, state)| state.process.pid().map(|pid| (rank, pid))).collect()
    }

    /// Where threads stand that wait inside their process, by rank; of so many ranks at most.
    pub fn stands(&self, most: usize) -> BTreeMap<u32, Vec<String>> {
        let report = self.exchange.engine().report();
        let inside = report.iter().filter(|rank| rank.tasks.iter().any(|task| task.doing == Doing::Inside));
        inside.filter_map(|rank| self.stand(rank.rank, false)).take(most).collect()
    }

    /// The same of the first ranks, whatever the engine does not know of them: also where those stand that run, or whose call time has not
    /// come to.
    pub fn whereabouts(&self, most: usize) -> BTreeMap<u32, Vec<String>> {
        let report = self.exchange.engine().report();
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

    /// Where a rank runs, if that is another machine.
    pub(super) fn board(&self, rank: u32) -> Option<&Board> {
        self.board_of[rank as usize].map(|board| &self.boards[board])
    }
}
