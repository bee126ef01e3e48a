//! Owns definitions of ids in a rank's captured operators (definitions and lines), in order of arrival, until a slice
//! is carried out with them.
//!
//! A slice may wait for its turn while further parts of the dictionary arrive. The slice uses the parts that arrived
//! before it, so its turn does not matter.

use std::collections::VecDeque;
use uniference_formats::operators::of_process;
use uniference_sim::ids::OfProcess;

/// The dictionary of one rank.
#[derive(Default)]
pub(super) struct Dictionary {
    heard: u64,
    waiting: VecDeque<Vec<u8>>,
}

impl Dictionary {
    /// Adds the next part.
    pub(super) fn hear(&mut self, part: Vec<u8>) {
        self.heard += 1;
        self.waiting.push_back(part);
    }

    /// Number of parts that have arrived.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    /// Removes and returns the parts among the first `parts` that remain.
    pub(super) fn take(&mut self, parts: u64) -> Vec<u8> {
        let taken = self.heard - self.waiting.len() as u64;
        self.waiting.drain(..parts.saturating_sub(taken) as usize).flatten().collect()
    }
}

/// Operators that one of a rank's processes has captured, as a part of the rank's stream of operators.
pub(super) fn written_by(of: Option<OfProcess>, operators: Vec<u8>) -> Vec<u8> {
    match process(of).number() {
        0 => operators,
        _ if operators.is_empty() => operators,
        other => of_process(other, &operators),
    }
}

/// The client gives valid numbers only.
pub(super) fn process(of: Option<OfProcess>) -> OfProcess {
    of.expect("a rank has no more processes")
}
