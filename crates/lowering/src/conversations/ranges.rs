//! Owns the engine's numbers of a rank's ranges. Ranges are numbered in the order in which the engine hears of them,
//! because the order in which threads draw their processes' numbers depends on the host. A range belongs to its thread,
//! whichever thread reports its beginning or end.

use std::collections::BTreeMap;
use uniference_sim::ids::{OfProcess, TaskId};
use uniference_sim::program::Mark;

/// The ranges of one rank.
#[derive(Default)]
pub(super) struct Ranges {
    begun: u32,
    /// Open ranges: from the process and its range number to the engine's number and the range's thread.
    open: BTreeMap<(u32, u32), (u32, TaskId)>,
    /// Tasks by process and by the process's number of the thread.
    threads: BTreeMap<(u32, u32), TaskId>,
}

impl Ranges {
    /// Records that `task` is the thread that `process` numbers `thread`.
    pub(super) fn is_thread(&mut self, process: OfProcess, thread: u32, task: TaskId) {
        self.threads.insert((process.number(), thread), task);
    }

    /// Replaces the process's numbers in a task's mark by the engine's numbers. The end of a range that has not begun
    /// gets the number `u32::MAX`.
    pub(super) fn renumber(&mut self, process: OfProcess, task: TaskId, mark: Mark) -> Mark {
        let process = process.number();
        match mark {
            Mark::Open { range, name } => Mark::Open { range: self.begin(process, range, task), name },
            Mark::Close { range } => Mark::Close { range: self.end(process, range, task).0 },
            Mark::Enter { range, thread, name } => {
                let thread = self.threads.get(&(process, thread.0)).copied().unwrap_or(task);
                Mark::Enter { range: self.begin(process, range, thread), thread, name }
            }
            Mark::Leave { range, .. } => {
                let (range, thread) = self.end(process, range, task);
                Mark::Leave { range, thread }
            }
            Mark::Begin(_) | Mark::End | Mark::Name(_) => mark,
        }
    }

    fn begin(&mut self, process: u32, range: u32, thread: TaskId) -> u32 {
        let number = self.begun;
        self.begun += 1;
        self.open.insert((process, range), (number, thread));
        number
    }

    fn end(&mut self, process: u32, range: u32, task: TaskId) -> (u32, TaskId) {
        self.open.remove(&(process, range)).unwrap_or((u32::MAX, task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_keeps_its_thread_whoever_says_that_it_begins_and_ends() {
        let (mut ranges, process) = (Ranges::default(), OfProcess::default());
        let (main, autograd) = (TaskId(0), TaskId(3));
        ranges.is_thread(process, 7, main);
        ranges.is_thread(process, 8, autograd);
        let enter = |range, thread| Mark::Enter { range, thread: TaskId(thread), name: "forward".into() };
        let leave = |range| Mark::Leave { range, thread: TaskId(0) };
        let entered =
            [(40, 7), (41, 8)].map(|(range, thread)| ranges.renumber(process, autograd, enter(range, thread)));
        let named = |range, thread| Mark::Enter { range, thread, name: "forward".into() };
        assert_eq!(entered, [named(0, main), named(1, autograd)]);
        assert_eq!(ranges.renumber(process, autograd, leave(40)), Mark::Leave { range: 0, thread: main });
        assert_eq!(ranges.renumber(process, main, leave(41)), Mark::Leave { range: 1, thread: autograd });
        assert_eq!(ranges.renumber(process, main, leave(41)), Mark::Leave { range: u32::MAX, thread: main });
    }
}
