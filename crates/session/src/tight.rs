//! Owns the definition of tight memory, which suffices with almost nothing to spare, and the warning about it.

use uniference_formats::table::bytes;
use uniference_sim::cluster::Device;

/// Percentage of a device's memory from which a fitting job is called tight: fragmentation, and allocations of kernels
/// and libraries, may need the rest.
const TIGHT_PERCENT: u128 = 98;

/// Whether `held` bytes fit into a device's `available` memory with almost nothing to spare.
pub(crate) fn is_tight(held: u64, available: u64) -> bool {
    held <= available && 100 * u128::from(held) >= TIGHT_PERCENT * u128::from(available)
}

/// A sentence with the number of ranks whose memory is tight.
pub fn leave_little(tight: usize, ranks: usize) -> String {
    format!(
        "{tight} of {ranks} ranks leave at most {} % of their device's memory; real kernels, libraries and fragmentation may need more",
        100 - TIGHT_PERCENT
    )
}

/// The warning about the rank that leaves the least of its device's memory, if memory is tight; `needs` gives a rank's
/// bytes.
pub(crate) fn tightness(devices: &[Device], needs: impl Fn(usize) -> Option<u64>) -> Option<String> {
    let tight = devices.iter().enumerate().filter_map(|(rank, device)| {
        let (held, available) = (needs(rank)?, device.memory?.0);
        is_tight(held, available).then(|| (available - held, rank, available))
    });
    let tight: Vec<(u64, usize, u64)> = tight.collect();
    let (spare, rank, available) = tight.iter().min()?;
    Some(format!(
        "memory is tight: rank {rank} leaves {} of the {} of device `{}`; {}\nhint: leave more, to be sure that it runs",
        bytes(*spare),
        bytes(*available),
        devices[*rank].name,
        leave_little(tight.len(), devices.len()),
    ))
}
