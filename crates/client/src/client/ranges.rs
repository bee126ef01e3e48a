//! Owns what a client says of the ranges that its program names, and of its threads' names.

use super::{Client, Op, Relaxed, Result};
use std::cell::RefCell;
use std::sync::Arc;
use uniference_sim::program::Mark;

thread_local! {
    /// What the calling thread is called, if that was not said yet: one that says nothing else needs no connection for it.
    static NAME: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// The calling thread's is there.
pub(super) fn make() {
    NAME.with(|_| ());
}

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

    /// The calling thread is called this from here on, which is said with what it says next.
    pub fn is_called(&self, name: &str) {
        NAME.set(Some(name.into()));
    }
}

/// What the calling thread is called, if that is to be said.
pub(super) fn take_name() -> Option<Op> {
    NAME.take().map(|name| Op::Mark(Mark::Name(name)))
}
