//! Owns the order of events. The queue does not know the events' effects.

use crate::ids::{RankId, TaskId};
use crate::time::SimTime;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Position of an event in the total order of a run: by time, then class, then source, then the source's own sequence.
///
/// The order of the fields is load-bearing: `Ord` is derived from it, and every result of a run depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventKey {
    pub(crate) at: SimTime,
    pub(crate) class: Class,
    pub(crate) rank: RankId,
    pub(crate) task: TaskId,
    pub(crate) sequence: u64,
}

/// Order of events within one instant: arrivals, then ends of activities, then timeouts, then requests of ranks, then
/// crashes. A message that arrives at the instant of a timeout is therefore in time, and a request sees all earlier
/// classes of its instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Network,
    ActivityEnd,
    TimeOut,
    Request,
    Crash,
}

/// Pending events, earliest first.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    last: SimTime,
}

#[derive(Debug)]
struct Entry<E> {
    key: EventKey,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> EventQueue<E> {
        EventQueue { heap: BinaryHeap::new(), last: SimTime::ZERO }
    }

    pub(crate) fn push(&mut self, key: EventKey, event: E) {
        self.heap.push(Reverse(Entry { key, event }));
    }

    /// Key of the earliest event that is `alive`. Earlier events are dropped.
    pub(crate) fn next(&mut self, alive: impl Fn(&EventKey, &E) -> bool) -> Option<EventKey> {
        while let Some(Reverse(Entry { key, event })) = self.heap.peek() {
            if alive(key, event) {
                return Some(*key);
            }
            self.heap.pop();
        }
        None
    }

    /// The event that `next` has found.
    pub(crate) fn first(&self) -> Option<(&EventKey, &E)> {
        self.heap.peek().map(|Reverse(Entry { key, event })| (key, event))
    }

    /// All events, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&EventKey, &E)> {
        self.heap.iter().map(|Reverse(Entry { key, event })| (key, event))
    }

    pub(crate) fn pop(&mut self) -> Option<(EventKey, E)> {
        let Reverse(entry) = self.heap.pop()?;
        assert!(entry.key.at >= self.last, "time goes back from {} to {:?}", self.last, entry.key);
        self.last = entry.key.at;
        Some((entry.key, entry.event))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_total_order_whatever_the_order_of_pushes() {
        let key = |at, class, rank| EventKey {
            at: SimTime::from_ps(at),
            class,
            rank: RankId(rank),
            task: TaskId(0),
            sequence: 0,
        };
        let sorted = [
            key(1, Class::Request, 7),
            key(2, Class::Network, 9),
            key(2, Class::ActivityEnd, 0),
            key(2, Class::TimeOut, 0),
            key(2, Class::Request, 0),
            key(2, Class::Request, 1),
            key(2, Class::Crash, 0),
        ];
        for start in 0..sorted.len() {
            let mut queue = EventQueue::new();
            for step in 0..sorted.len() {
                queue.push(sorted[(start + step) % sorted.len()], ());
            }
            let order: Vec<EventKey> = std::iter::from_fn(|| queue.pop().map(|(key, ())| key)).collect();
            assert_eq!(order, sorted);
        }
    }

    #[test]
    #[should_panic(expected = "time goes back")]
    fn an_event_in_the_past_is_a_bug() {
        let at = |ps| EventKey {
            at: SimTime::from_ps(ps),
            class: Class::Request,
            rank: RankId(0),
            task: TaskId(0),
            sequence: 0,
        };
        let mut queue = EventQueue::new();
        queue.push(at(5), ());
        queue.pop();
        queue.push(at(4), ());
        queue.pop();
    }
}
