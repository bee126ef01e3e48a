//! Owns scheduled actions: earliest first, and within one instant in the order of scheduling.

use crate::time::SimTime;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Scheduled actions.
#[derive(Debug)]
pub(super) struct Timers<T> {
    heap: BinaryHeap<Reverse<(SimTime, u64, T)>>,
    set: u64,
}

impl<T: Ord> Timers<T> {
    pub(super) fn new() -> Timers<T> {
        Timers { heap: BinaryHeap::new(), set: 0 }
    }

    pub(super) fn set(&mut self, at: SimTime, what: T) {
        self.heap.push(Reverse((at, self.set, what)));
        self.set += 1;
    }

    pub(super) fn next(&self) -> Option<SimTime> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next action that is due by `now`, if any.
    pub(super) fn due(&mut self, now: SimTime) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((.., what))| what)
    }
}
