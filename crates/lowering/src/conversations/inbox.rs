//! Owns the operations that a task has sent and that are not carried out yet.

use super::causes::Cause;
use std::collections::VecDeque;
use uniference_protocol::messages::Op;

/// The operations of one task, in order.
#[derive(Default)]
pub(super) struct Inbox {
    ops: VecDeque<Op>,
    /// Number of operations carried out.
    carried_out: u64,
    /// Index, counted from 0, of the first operation that the task has sent since its process was last quiet; `None`:
    /// the task has sent none.
    spoken_from: Option<u64>,
    /// Indices of operations that follow from an answer to another task, with that answer.
    causes: VecDeque<(u64, Cause)>,
    /// Operators of a slice whose end has not been received.
    operators: Vec<u8>,
    /// For each slice received and not yet carried out: number of dictionary parts received before it.
    slices: VecDeque<u64>,
}

impl Inbox {
    pub(super) fn hear(&mut self, ops: impl IntoIterator<Item = Op>) {
        let first = self.carried_out + self.ops.len() as u64;
        self.ops.extend(ops);
        if self.carried_out + self.ops.len() as u64 > first {
            self.spoken_from.get_or_insert(first);
        }
    }

    /// Notes that a slice was received after this number of dictionary parts.
    pub(super) fn hear_slice(&mut self, parts: u64) {
        self.slices.push_back(parts);
    }

    /// The next operations.
    pub(super) fn ops(&self) -> &VecDeque<Op> {
        &self.ops
    }

    /// Whether no operation was carried out.
    pub(super) fn is_at_start(&self) -> bool {
        self.carried_out == 0
    }

    /// Whether the next operation was there when the task's process was last quiet.
    pub(super) fn is_due(&self) -> bool {
        !self.ops.is_empty() && self.spoken_from.is_none_or(|from| from > self.carried_out)
    }

    /// Begins a new turn of the process: the index of the first operation that the task has sent in the last turn.
    pub(super) fn next_turn(&mut self) -> Option<u64> {
        self.spoken_from.take().filter(|_| !self.ops.is_empty())
    }

    /// Notes that operations from an index on follow from an answer to another task.
    pub(super) fn follows(&mut self, from: u64, cause: Cause) {
        self.causes.push_back((from, cause));
    }

    /// The answer to another task that the next operations follow from.
    pub(super) fn next_cause(&self) -> Option<Cause> {
        self.causes.front().map(|(_, cause)| *cause)
    }

    /// Removes the next operation, with the answer to another task that it follows from.
    pub(super) fn take(&mut self) -> Option<(Op, Option<Cause>)> {
        let op = self.ops.pop_front()?;
        let mut latest = None;
        while self.causes.front().is_some_and(|(from, _)| *from <= self.carried_out) {
            latest = self.causes.pop_front().map(|(_, cause)| cause);
        }
        self.carried_out += 1;
        Some((op, latest))
    }

    /// Adds operators to the slice that is being carried out.
    pub(super) fn add_operators(&mut self, operators: Vec<u8>) {
        self.operators.extend(operators);
    }

    /// Ends a slice with its `last` operators: all of its operators, and the number of dictionary parts received before
    /// it.
    pub(super) fn take_slice(&mut self, last: Vec<u8>) -> (Vec<u8>, u64) {
        let mut operators = std::mem::take(&mut self.operators);
        operators.extend(last);
        (operators, self.slices.pop_front().expect("it was numbered when it was heard"))
    }
}
