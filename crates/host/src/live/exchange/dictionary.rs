//! Owns what a rank's operators name by number and no slice was carried out with: definitions and lines, in the order in which they were heard.
//!
//! A slice may wait for its turn while more of the dictionary is heard. It is carried out with what was heard before it, so that it does not
//! matter when its turn comes.

use std::collections::VecDeque;

/// Of one rank.
#[derive(Default)]
pub(super) struct Dictionary {
    heard: u64,
    waiting: VecDeque<Vec<u8>>,
}

impl Dictionary {
    /// Hears the next part.
    pub(super) fn hear(&mut self, part: Vec<u8>) {
        self.heard += 1;
        self.waiting.push_back(part);
    }

    /// How many parts were heard.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    /// What was heard up to so many parts and not taken yet.
    pub(super) fn take(&mut self, parts: u64) -> Vec<u8> {
        let taken = self.heard - self.waiting.len() as u64;
        self.waiting.drain(..parts.saturating_sub(taken) as usize).flatten().collect()
    }
}
