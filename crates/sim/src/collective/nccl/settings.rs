//! Owns what a program tells NCCL about one communicator, as far as [`super`]'s model knows what that changes. How programs write it (environment
//! variables, `ncclConfig_t`) is not known here.

use super::tuning::{Protocol, Shape, Variant};
use crate::program::CollectiveKind;
use serde::{Deserialize, Serialize};

/// Settings of a communicator. The default leaves every choice to NCCL.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NcclSettings {
    /// By kind, in the order of [`NcclSettings::KINDS`]: the algorithms that may be used, of [`NcclSettings::RING`] and so on.
    pub algorithms: [u8; 5],
    /// By kind: the protocols that may be used, of [`NcclSettings::LL`] and so on.
    pub protocols: [u8; 5],
    /// Least and largest number of channels.
    pub channels: [u32; 2],
    /// Whether GPUs of a server reach each other's memory directly; else data passes through the host's memory.
    pub peer_access: bool,
}

impl NcclSettings {
    /// The kinds of collective between whose algorithms NCCL chooses.
    pub const KINDS: [CollectiveKind; 5] = [
        CollectiveKind::Broadcast,
        CollectiveKind::Reduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllReduce,
    ];
    /// Rings.
    pub const RING: u8 = 1 << Shape::Ring as u8;
    /// Trees.
    pub const TREE: u8 = 1 << Shape::Tree as u8;
    /// NVLink SHARP.
    pub const NVLS: u8 = 1 << Shape::Nvls as u8;
    /// 8 bytes with 8 bytes of flags.
    pub const LL: u8 = 1 << Protocol::Ll as u8;
    /// 120 bytes with 8 bytes of flags.
    pub const LL128: u8 = 1 << Protocol::Ll128 as u8;
    /// Whole chunks.
    pub const SIMPLE: u8 = 1 << Protocol::Simple as u8;
    /// All of them.
    pub const ANY: u8 = Self::RING | Self::TREE | Self::NVLS;

    fn of_kind(masks: &[u8; 5], kind: CollectiveKind) -> u8 {
        let place = NcclSettings::KINDS.iter().position(|known| *known == kind);
        place.map_or(NcclSettings::ANY, |place| masks[place])
    }

    pub(super) fn allow(&self, variant: &Variant, kind: CollectiveKind) -> bool {
        let shapes = NcclSettings::of_kind(&self.algorithms, kind);
        let protocols = NcclSettings::of_kind(&self.protocols, kind);
        shapes & 1 << variant.shape as u8 != 0 && protocols & 1 << variant.protocol as u8 != 0
    }

    /// Whether LL128 was asked for by name, which NCCL then uses over links where it would not by itself.
    pub(super) fn insists_on_ll128(&self, kind: CollectiveKind) -> bool {
        let protocols = NcclSettings::of_kind(&self.protocols, kind);
        protocols != NcclSettings::ANY && protocols & NcclSettings::LL128 != 0
    }
}

impl Default for NcclSettings {
    fn default() -> NcclSettings {
        let any = [NcclSettings::ANY; 5];
        NcclSettings { algorithms: any, protocols: any, channels: [1, u32::MAX], peer_access: true }
    }
}
