//! Owns how the engine numbers the ranges of a rank that may overlap: in the order in which the engine hears of them, whichever of the rank's threads
//! was the first to take a number.

use std::collections::BTreeMap;
use uniference_sim::ids::OfProcess;
use uniference_sim::program::Mark;

/// Of one rank.
#[derive(Default)]
pub(super) struct Ranges {
    begun: u32,
    /// By the process and its number, the engine's.
    numbers: BTreeMap<(u32, u32), u32>,
}

impl Ranges {
    /// The mark with the engine's number in place of the process's. What ends a range that has not begun keeps none.
    pub(super) fn renumber(&mut self, process: OfProcess, mark: Mark) -> Mark {
        let process = process.number();
        match mark {
            Mark::Open { range, name } => {
                let number = self.begun;
                self.begun += 1;
                self.numbers.insert((process, range), number);
                Mark::Open { range: number, name }
            }
            Mark::Close { range } => Mark::Close { range: self.numbers.remove(&(process, range)).unwrap_or(u32::MAX) },
            Mark::Begin(_) | Mark::End | Mark::Name(_) => mark,
        }
    }
}
