//! Owns what is due at later instants: earliest first, and of one instant what was set first.

use crate::time::SimTime;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Things to do later.
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

    /// What is due by `now`, if there is more of it.
    pub(super) fn due(&mut self, now: SimTime) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((.., what))| what)
    }
}
