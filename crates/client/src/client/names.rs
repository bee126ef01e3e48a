//! Owns definitions of ids in captured operators: those of this process, with the part already sent, and those received
//! from other processes.

use super::Client;
use std::collections::BTreeMap;
use std::sync::MutexGuard;
use uniference_protocol::messages::Op;
use uniference_sim::ids::OfProcess;

/// Definitions of ids in the captured operators of all threads.
#[derive(Default)]
pub(super) struct Dictionary {
    /// Definitions that have not been sent.
    pub(super) new: Vec<u8>,
    /// Number of bytes that have been sent.
    told: u64,
}

/// Definitions of ids in another process's captured operators. They arrive on several wires, in any order; when a round
/// ends because all threads wait, all of them have arrived.
#[derive(Default)]
pub(super) struct Pieces {
    /// Pieces by their offset.
    pieces: BTreeMap<u64, Vec<u8>>,
}

impl Pieces {
    pub(super) fn insert(&mut self, at: u64, piece: Vec<u8>) {
        self.pieces.insert(at, piece);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Removes all pieces received, as an operation of the process with this number.
    pub(super) fn take(&mut self, process: OfProcess) -> Op {
        let pieces = std::mem::take(&mut self.pieces);
        let at = pieces.first_key_value().map_or(0, |(at, _)| *at);
        Op::Dictionary { process: process.number(), at, entries: pieces.into_values().flatten().collect() }
    }
}

impl Client {
    pub(super) fn dictionary(&self) -> MutexGuard<'_, Dictionary> {
        self.dictionary.lock().expect("no holder of this lock panics")
    }

    /// Definitions of ids in the captured operators of all threads that the driver has not received.
    pub(super) fn take_dictionary(&self) -> Op {
        let mut dictionary = self.dictionary();
        let entries = std::mem::take(&mut dictionary.new);
        let at = dictionary.told;
        dictionary.told += entries.len() as u64;
        Op::Dictionary { process: 0, at, entries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_put_in_the_order_in_which_they_were_written() {
        let mut pieces = Pieces::default();
        pieces.insert(2, vec![3]);
        pieces.insert(0, vec![1, 2]);
        let process = OfProcess::new(5).unwrap();
        assert_eq!(pieces.take(process), Op::Dictionary { process: 5, at: 0, entries: vec![1, 2, 3] });
        assert!(pieces.is_empty());
        pieces.insert(3, vec![4]);
        assert_eq!(pieces.take(process), Op::Dictionary { process: 5, at: 3, entries: vec![4] });
    }
}
