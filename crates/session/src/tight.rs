//! Owns when memory that suffices is called tight, and what is said then.

use uniference_formats::table::bytes;
use uniference_sim::cluster::Device;

/// At this percentage of a device's memory and above a job that fits is called tight: fragmentation, and what kernels and libraries allocate
/// for themselves, may need what is left.
const TIGHT_PERCENT: u128 = 98;

/// Whether so many bytes leave almost nothing of a device's memory, but do not exceed it.
pub(crate) fn is_tight(held: u64, available: u64) -> bool {
    held <= available && 100 * u128::from(held) >= TIGHT_PERCENT * u128::from(available)
}

/// What to say of the rank that leaves least of its device's memory, if it leaves almost nothing; `needs` are its bytes for each device.
pub(crate) fn tightness(devices: &[Device], needs: impl Fn(usize) -> Option<u64>) -> Option<String> {
    let tight = devices.iter().enumerate().filter_map(|(rank, device)| {
        let (held, available) = (needs(rank)?, device.memory?.0);
        is_tight(held, available).then_some((available - held, rank, available))
    });
    let tight: Vec<(u64, usize, u64)> = tight.collect();
    let (spare, rank, available) = tight.iter().min()?;
    Some(format!(
        "memory is tight: rank {rank} leaves {} of the {} of device `{}`; {} of {} ranks leave less than {} %\nhint: real kernels, libraries and fragmentation may need more; leave more, to be sure that it runs",
        bytes(*spare),
        bytes(*available),
        devices[*rank].name,
        tight.len(),
        devices.len(),
        100 - TIGHT_PERCENT,
    ))
}
