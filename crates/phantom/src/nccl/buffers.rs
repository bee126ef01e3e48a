//! Owns NCCL's use of device memory: the buffers of a communicator's connections.
//!
//! In each channel, a connection over NVLink or PCIe has a receive buffer of 10 MiB, for the protocols LL (512 KiB),
//! LL128 (4,915,200 bytes) and Simple (4 MiB), and a send buffer of 2 MiB. These two sizes, and 32 channels for each
//! pair that exchanges messages, are from NCCL's log on 8 H100 (NVIDIA/nccl issue 1685). Connections are made on first
//! use. With 24 channels, a ring and a tree of A100 occupy 480 to 664 MiB by this model without send buffers;
//! NVIDIA/nccl issue 964 reports 544 MiB (2 GPUs) and 688 MiB (more). Buffers of NVLink SHARP, and shared buffers of
//! messages between hosts, are not counted.

use crate::errors::Status;
use crate::memory;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Bytes of the receive buffer and of the send buffer of one channel.
const ARRIVES: usize = 10 << 20;
const LEAVES: usize = 2 << 20;

/// Channels of collectives between GPUs connected by NVLink: "24 coll channels" in NCCL's log on a host of A100 or
/// H100.
const CHANNELS: usize = 24;
/// Channels of collectives between GPUs without NVLink or on different hosts.
const FEW_CHANNELS: usize = 2;
/// Channels of messages between two GPUs of a host.
const CHANNELS_OF_MESSAGES: usize = 32;

/// Buffers of one communicator.
pub(super) struct Buffers {
    device: usize,
    channels: usize,
    members: usize,
    taken: Cell<usize>,
    has_ring: Cell<bool>,
    has_tree: Cell<bool>,
    /// Members to which messages were sent, and from which messages were received.
    sent: RefCell<BTreeSet<usize>>,
    received: RefCell<BTreeSet<usize>>,
}

impl Buffers {
    /// Buffers of a communicator on `device`. `is_linked` says whether the members' devices reach each other's memory;
    /// `least` and `most` bound the number of channels.
    pub(super) fn new(device: usize, members: usize, is_linked: bool, [least, most]: [u32; 2]) -> Buffers {
        let channels = if is_linked { CHANNELS } else { FEW_CHANNELS }.max(least as usize).min(most as usize);
        let (sent, received) = (RefCell::default(), RefCell::default());
        Buffers {
            device,
            channels,
            members,
            taken: Cell::new(0),
            has_ring: Cell::new(false),
            has_tree: Cell::new(false),
            sent,
            received,
        }
    }

    /// Connects all members in a ring for collectives, and in a tree, too, if `as_tree`.
    ///
    /// # Errors
    /// If the device has too little free memory.
    pub(super) fn connect_all(&self, as_tree: bool) -> Result<(), Status> {
        if self.members == 1 {
            return Ok(());
        }
        let ring = if self.has_ring.replace(true) { 0 } else { self.channels * (ARRIVES + LEAVES) };
        self.take(ring + if as_tree { self.tree() } else { 0 })
    }

    /// Makes connections for messages to members `to` and from members `from` on the same host.
    ///
    /// # Errors
    /// If the device has too little free memory.
    pub(super) fn connect_pairs(&self, to: &[usize], from: &[usize]) -> Result<(), Status> {
        let (mut sent, mut received) = (self.sent.borrow_mut(), self.received.borrow_mut());
        let new_to = to.iter().filter(|member| sent.insert(**member)).count();
        let new_from = from.iter().filter(|member| received.insert(**member)).count();
        self.take(CHANNELS_OF_MESSAGES * (new_to * LEAVES + new_from * ARRIVES))
    }

    fn take(&self, bytes: usize) -> Result<(), Status> {
        memory::take_for_library(self.device, bytes)?;
        self.taken.set(self.taken.get() + bytes);
        Ok(())
    }

    /// Memory of the tree, which is a chain within a host: all members but two have two neighbours, and each channel
    /// starts at another member.
    fn tree(&self) -> usize {
        if self.has_tree.replace(true) {
            return 0;
        }
        self.channels * 2 * (self.members - 1) / self.members * (ARRIVES + LEAVES)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        memory::give_back_of_library(self.device, self.taken.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::tests::attach;
    use crate::errors::OUT_OF_MEMORY;

    const MIB: usize = 1 << 20;
    const ANY: [u32; 2] = [1, u32::MAX];

    /// Compared with NVIDIA/nccl issue 964 for A100, where only receive buffers occupied separate memory: 544 MiB for a
    /// pair, 688 MiB for four GPUs.
    #[test]
    fn connections_take_memory_once() {
        attach();
        memory::lend();
        let pair = Buffers::new(0, 2, true, ANY);
        pair.connect_all(false).unwrap();
        pair.connect_all(false).unwrap();
        assert_eq!(pair.taken.get(), 288 * MIB);
        pair.connect_all(true).unwrap();
        assert_eq!(pair.taken.get(), 576 * MIB);
        pair.connect_pairs(&[1], &[1]).unwrap();
        pair.connect_pairs(&[1], &[1]).unwrap();
        assert_eq!(pair.taken.get(), (576 + 32 * 12) * MIB);
        let four = Buffers::new(0, 4, true, ANY);
        four.connect_all(true).unwrap();
        assert_eq!(four.taken.get(), (288 + 432) * MIB);
        let few = Buffers::new(0, 2, true, [1, 4]);
        few.connect_all(false).unwrap();
        assert_eq!(few.taken.get(), 48 * MIB);
        let alone = Buffers::new(0, 1, true, ANY);
        alone.connect_all(true).unwrap();
        assert_eq!(alone.taken.get(), 0);
    }

    /// Two channels without NVLink occupy 24 of 62 MiB.
    #[test]
    fn what_a_device_has_no_memory_for_is_an_error_and_comes_back() {
        attach();
        let free = || memory::info(0).expect("it is attached").0 as usize;
        let before = free();
        let pair = Buffers::new(0, 2, false, ANY);
        assert_eq!(pair.connect_all(false), Ok(()));
        assert_eq!(before - free(), 24 * MIB);
        assert_eq!(pair.connect_pairs(&[1], &[1]), Err(OUT_OF_MEMORY));
        assert_eq!(before - free(), 24 * MIB);
        drop(pair);
        assert_eq!(free(), before);
    }
}
