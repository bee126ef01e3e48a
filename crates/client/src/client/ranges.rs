//! Owns what a client says of the ranges that its program names.

use super::{Client, Op, Relaxed, Result};
use uniference_sim::program::Mark;

impl Client {
    /// A named range begins or ends.
    pub fn mark(&self, mark: Mark) -> Result<()> {
        let _ours = self.ours();
        self.say(Op::Mark(mark))
    }

    /// A named range begins that may overlap others, on any thread; returns its number.
    pub fn open_range(&self, name: &str) -> Result<u32> {
        let range = self.ranges.fetch_add(1, Relaxed);
        self.mark(Mark::Open { range, name: name.into() })?;
        Ok(range)
    }
}
