//! Owns a program's NCCL settings of one communicator, as far as the model of NCCL (`collective/nccl.rs`) covers their
//! effects. The notation of these settings in programs (environment variables, `ncclConfig_t`) is read in
//! `uniference_protocol`.

use super::CollectiveKind;
use serde::{Deserialize, Serialize};

/// Settings of a communicator. The default leaves every choice to NCCL.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NcclSettings {
    /// Algorithms that may be used, by kind of collective in the order of [`NcclSettings::KINDS`]: bits such as
    /// [`NcclSettings::RING`].
    pub algorithms: [u8; 5],
    /// Protocols that may be used, by kind of collective: bits such as [`NcclSettings::LL`].
    pub protocols: [u8; 5],
    /// Smallest and largest number of channels.
    pub channels: [u32; 2],
    /// Whether GPUs of a server access each other's memory directly. If not, data passes through the host's memory.
    pub peer_access: bool,
}

impl NcclSettings {
    /// Kinds of collective for which NCCL chooses among algorithms.
    pub const KINDS: [CollectiveKind; 5] = [
        CollectiveKind::Broadcast,
        CollectiveKind::Reduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllReduce,
    ];
    /// Bit of the ring algorithm.
    pub const RING: u8 = 1;
    /// Bit of the tree algorithm.
    pub const TREE: u8 = 2;
    /// Bit of the NVLink SHARP algorithm.
    pub const NVLS: u8 = 4;
    /// Bit of the protocol LL, which sends 8 bytes of flags with every 8 bytes of data.
    pub const LL: u8 = 1;
    /// Bit of the protocol LL128, which sends 8 bytes of flags with every 120 bytes of data.
    pub const LL128: u8 = 2;
    /// Bit of the protocol Simple, which synchronises per chunk of data.
    pub const SIMPLE: u8 = 4;
    /// Bits of all algorithms, or of all protocols.
    pub const ANY: u8 = Self::RING | Self::TREE | Self::NVLS;

    fn of_kind(masks: &[u8; 5], kind: CollectiveKind) -> u8 {
        let place = NcclSettings::KINDS.iter().position(|known| *known == kind);
        place.map_or(NcclSettings::ANY, |place| masks[place])
    }

    /// Algorithms that may be used for a kind of collective, as bits.
    pub(crate) fn algorithms_for(&self, kind: CollectiveKind) -> u8 {
        NcclSettings::of_kind(&self.algorithms, kind)
    }

    /// Protocols that may be used for a kind of collective, as bits.
    pub(crate) fn protocols_for(&self, kind: CollectiveKind) -> u8 {
        NcclSettings::of_kind(&self.protocols, kind)
    }

    /// Whether the program lists protocols for this kind of collective and LL128 is among them. NCCL then also uses
    /// LL128 on links for which NCCL would not choose LL128 by default.
    pub(crate) fn insists_on_ll128(&self, kind: CollectiveKind) -> bool {
        let protocols = self.protocols_for(kind);
        protocols != NcclSettings::ANY && protocols & NcclSettings::LL128 != 0
    }
}

impl Default for NcclSettings {
    fn default() -> NcclSettings {
        let any = [NcclSettings::ANY; 5];
        NcclSettings { algorithms: any, protocols: any, channels: [1, u32::MAX], peer_access: true }
    }
}
