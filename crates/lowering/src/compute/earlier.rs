//! Owns the slices of an earlier run, by rank, line and occurrence; slices of another run get their durations.

use std::collections::{BTreeMap, VecDeque};
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::program::{Activity, Request, Work};
use uniference_sim::replay::RecordedStep;

/// Slices of an earlier run that are not yet paired with a slice of this run.
#[derive(Clone)]
pub struct Earlier {
    /// Slices by rank, thread, and line of the call that ends them, in order of execution.
    slices: BTreeMap<(RankId, TaskId, String), VecDeque<Work>>,
    /// Number of unpaired slices of this run, by line.
    without: BTreeMap<String, u64>,
}

impl Earlier {
    /// The slices of a recorded run: all steps of each rank, with their source lines.
    pub fn new(ranks: impl IntoIterator<Item: Iterator<Item = (TaskId, RecordedStep, String)>>) -> Earlier {
        let mut slices: BTreeMap<(RankId, TaskId, String), VecDeque<Work>> = BTreeMap::new();
        for (rank, steps) in (0..).map(RankId).zip(ranks) {
            // Work of CUDA streams has its own lines; each slice ends with host work, which has the line of the call.
            let mut launched: BTreeMap<TaskId, Vec<Work>> = BTreeMap::new();
            for (task, step, line) in steps {
                let RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), queue, .. }) = &step
                else {
                    continue;
                };
                let works = launched.entry(task).or_default();
                works.push(work.clone());
                if queue.stream().is_none() {
                    slices.entry((rank, task, line)).or_default().extend(works.drain(..));
                }
            }
        }
        Earlier { slices, without: BTreeMap::new() }
    }

    /// The slice paired with the next slice before a call at this line; `None`: no slice is left, which is counted.
    pub(super) fn next(&mut self, rank: RankId, task: TaskId, line: &str) -> Option<Work> {
        let found = self.slices.get_mut(&(rank, task, line.to_owned())).and_then(VecDeque::pop_front);
        if found.is_none() {
            *self.without.entry(line.to_owned()).or_default() += 1;
        }
        found
    }

    /// A warning about unpaired slices of both runs.
    pub(super) fn warning(&self) -> Option<String> {
        const MOST: usize = 8;
        let count: u64 = self.without.values().sum();
        if count == 0 {
            return None;
        }
        let mut lines: Vec<(&String, &u64)> = self.without.iter().collect();
        lines.sort_by_key(|(line, count)| (std::cmp::Reverse(**count), *line));
        let name = |line: &str| if line.is_empty() { "no line".to_owned() } else { line.to_owned() };
        let shown: Vec<String> =
            lines.iter().take(MOST).map(|(line, count)| format!("{} ({count})", name(line))).collect();
        let more = lines.len().saturating_sub(MOST);
        let more = if more > 0 { format!(" and {more} more lines") } else { String::new() };
        Some(format!(
            "{count} slices of compute have no counterpart in the earlier run, and took what was measured: before calls at {}{more}",
            shown.join(", ")
        ))
    }
}
