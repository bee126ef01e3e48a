//! Owns device attributes: numbers by compute capability from NVIDIA's documentation, and properties from the cluster.

use uniference_abi::gpus::Device;

/// Properties of a compute capability: CUDA C++ Programming Guide 13, "Technical Specifications per Compute
/// Capability".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Architecture {
    /// Resident threads per multiprocessor.
    pub(crate) threads: u32,
    /// Resident blocks per multiprocessor.
    pub(crate) blocks: u32,
    /// Bytes of shared memory per multiprocessor.
    pub(crate) shared: u32,
    /// Bytes of shared memory per block for kernels that opt in.
    pub(crate) shared_of_block: u32,
    /// Bytes of shared memory that the system reserves per block.
    pub(crate) shared_reserved: u32,
    /// 32-bit registers per multiprocessor.
    pub(crate) registers: u32,
    /// Whether kernels can be launched in clusters of blocks.
    pub(crate) has_clusters: bool,
}

/// Bytes of shared memory per block for any kernel.
pub(crate) const SHARED_OF_BLOCK: u32 = 48 << 10;
/// Maximum threads per block.
pub(crate) const THREADS_OF_BLOCK: u32 = 1024;
/// Maximum threads per block in each dimension.
pub(crate) const BLOCK: [u32; 3] = [1024, 1024, 64];
/// Maximum blocks per grid in each dimension.
pub(crate) const GRID: [u32; 3] = [0x7fff_ffff, 65535, 65535];
/// Threads per warp.
pub(crate) const WARP: u32 = 32;

impl Architecture {
    /// Properties of a compute capability, or of the next older known one.
    pub(crate) fn of(capability: [u32; 2]) -> Architecture {
        const KIB: u32 = 1 << 10;
        let (threads, blocks, shared, reserved) = match (capability[0], capability[1]) {
            (..=7, ..=4) => (2048, 32, 96, 0),
            (..=7, _) => (1024, 16, 64, 0),
            (8, 0) => (2048, 32, 164, 1),
            (8, 6) => (1536, 16, 100, 1),
            (8, 7) => (1536, 16, 164, 1),
            (8, _) => (1536, 24, 100, 1),
            (9..=11, _) => (2048, 32, 228, 1),
            _ => (1536, 24, 100, 1),
        };
        Architecture {
            threads,
            blocks,
            shared: shared * KIB,
            shared_of_block: (shared - reserved) * KIB,
            shared_reserved: reserved * KIB,
            registers: 64 * KIB,
            has_clusters: capability[0] >= 9,
        }
    }

    /// Blocks of a kernel that can reside on a multiprocessor: the minimum over threads, registers, shared memory and
    /// block slots (CUDA C++ Best Practices Guide, "Occupancy"; registers are allocated to warps in units of 256).
    pub(crate) fn occupancy(&self, threads: u32, registers: u32, shared: u32) -> u32 {
        if threads == 0 || threads > THREADS_OF_BLOCK || shared > self.shared_of_block {
            return 0;
        }
        let warps = threads.div_ceil(WARP);
        let registers = (registers * WARP).next_multiple_of(256) * warps;
        let by_registers = self.registers.checked_div(registers).unwrap_or(u32::MAX);
        let by_shared =
            self.shared.checked_div((shared + self.shared_reserved).next_multiple_of(128)).unwrap_or(u32::MAX);
        self.blocks.min(self.threads / WARP / warps).min(by_registers).min(by_shared)
    }
}

/// Value of an attribute for `cudaDeviceGetAttribute` and `cuDeviceGetAttribute`; `None`: no such attribute.
///
/// Unknown properties and unsupported features are 0.
pub(crate) fn attribute(device: &Device, number: i32) -> Option<i32> {
    let architecture = Architecture::of(device.capability);
    let [major, minor] = device.capability;
    Some(match number {
        1 => THREADS_OF_BLOCK as i32,
        2..=4 => BLOCK[number as usize - 2] as i32,
        5..=7 => GRID[number as usize - 5] as i32,
        8 => SHARED_OF_BLOCK as i32,
        // Constant memory: the guide's "constant memory size".
        9 => 64 << 10,
        10 => WARP as i32,
        // Maximum pitch of copies, the same on every device.
        11 => i32::MAX,
        12 | 82 => architecture.registers as i32,
        13 => device.clock as i32,
        // Alignment of textures and surfaces.
        14 | 30 => 512,
        51 => 32,
        16 => device.multiprocessors as i32,
        // Supported: overlap of copies and kernels; mapped host memory; concurrent kernels; error correction; unified
        // addressing; stream priorities; caches; managed memory; preemption; cooperative launches; pinning; memory
        // pools.
        15 | 19 | 31 | 32 | 41 | 78 | 79 | 80 | 83 | 89 | 90 | 91 | 95 | 99 | 115 => 1,
        33 => device.pci[1] as i32,
        34 => device.pci[2] as i32,
        50 => device.pci[0] as i32,
        36 => device.memory_clock as i32,
        37 => device.memory_bus as i32,
        38 => device.l2 as i32,
        39 => architecture.threads as i32,
        // Copy engines: one per direction and one within the device.
        40 => 3,
        75 => major as i32,
        76 => minor as i32,
        81 => architecture.shared as i32,
        97 => architecture.shared_of_block as i32,
        // Stream memory operations, and virtual memory management (`cuMemCreate`) with sharing by descriptors.
        94 | 102 | 103 => 1,
        106 => architecture.blocks as i32,
        111 => architecture.shared_reserved as i32,
        120 => i32::from(architecture.has_clusters),
        // Not supported: memory sharing by Windows handles, fabric or multicast.
        104 | 105 | 110 | 116..=119 | 125 | 128 | 132 => 0,
        // Memory synchronisation domains.
        126 => {
            if major >= 9 {
                4
            } else {
                1
            }
        }
        127 => i32::from(major >= 9),
        // NUMA node: none.
        131 | 134 => -1,
        number if (1..=147).contains(&number) => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The minimum of: 2048 / 32 warps / 8 = 8 by threads; 65536 / (32 * 32 * 8) = 8 by registers; 228 KiB / (40 + 1)
    /// KiB = 5 by shared memory.
    #[test]
    fn the_scarcest_resource_decides_how_many_blocks_reside() {
        let hopper = Architecture::of([9, 0]);
        assert_eq!(hopper.occupancy(256, 32, 0), 8);
        assert_eq!(hopper.occupancy(256, 32, 40 << 10), 5);
        assert_eq!(hopper.occupancy(256, 128, 0), 2);
        assert_eq!(hopper.occupancy(32, 16, 0), 32);
        assert_eq!(hopper.occupancy(1025, 16, 0), 0);
        assert_eq!(hopper.occupancy(32, 16, (227 << 10) + 1), 0);
    }
}
