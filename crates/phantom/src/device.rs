//! Owns the device that each thread uses, and the devices of the rank's host.

mod attributes;
pub(crate) mod limits;

use crate::attach::{attached, link};
use crate::errors::{INVALID_DEVICE, NO_DEVICE, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, Status};
use crate::errors::{INVALID_VALUE, PEER_ACCESS_UNSUPPORTED};
use crate::exports::exports;
use crate::unimplemented::warn;
pub(crate) use attributes::{Architecture, BLOCK, GRID, SHARED_OF_BLOCK, THREADS_OF_BLOCK, attribute};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, Once, OnceLock, PoisonError};
use uniference_abi::gpus::Device;
use uniference_protocol::settings;

/// CUDA version of the driver and the runtime: 13.2, as in the wheels of PyTorch 2.15.
pub(crate) const VERSION: i32 = 13_020;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Devices on which the process has a context, one bit each.
static USED: AtomicU64 = AtomicU64::new(0);

/// Host number of the device that became the process's own device, plus 1; 0: none.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Whether a launch returns only when the launched work has ended (`CUDA_LAUNCH_BLOCKING`).
static LAUNCHES_BLOCK: LazyLock<bool> =
    LazyLock::new(|| settings::is_on(&settings::environment(), "CUDA_LAUNCH_BLOCKING"));

/// Pairs of devices: the first has access to the second one's memory.
static PEERS: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());

/// Host numbers of the devices that the process sees, by ordinal. `CUDA_VISIBLE_DEVICES` is read at the first use of
/// CUDA.
fn seen() -> &'static [usize] {
    static SEEN: OnceLock<Vec<usize>> = OnceLock::new();
    let Some(attached) = attached() else { return &[] };
    SEEN.get_or_init(|| match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(names) => named(&names, &attached.devices),
        Err(_) => (0..attached.devices.len()).collect(),
    })
}

/// Parses numbers and prefixes of identifiers, separated by commas. The first invalid name ends the list; if a device
/// is named twice, no device is visible (CUDA C++ Programming Guide, "CUDA Environment Variables").
fn named(names: &str, devices: &[Device]) -> Vec<usize> {
    let mut seen = Vec::new();
    for name in names.split(',').map(str::trim) {
        let found = match name.parse() {
            Ok(number) => Some(number).filter(|number| *number < devices.len()),
            Err(_) if name.starts_with("GPU-") => devices.iter().position(|device| uuid(device).starts_with(name)),
            Err(_) => None,
        };
        match found {
            None => break,
            Some(device) if seen.contains(&device) => return Vec::new(),
            Some(device) => seen.push(device),
        }
    }
    seen
}

/// Identifier of a device in NVML and `CUDA_VISIBLE_DEVICES`.
pub(crate) fn uuid(device: &Device) -> String {
    let hex: String = device.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Number of visible devices; 0 if none are attached.
pub(crate) fn count() -> usize {
    seen().len()
}

/// Device by ordinal.
pub(crate) fn get(ordinal: usize) -> Option<&'static Device> {
    attached()?.devices.get(*seen().get(ordinal)?)
}

/// Host number of a device, by its ordinal.
pub(crate) fn number(ordinal: usize) -> usize {
    seen().get(ordinal).copied().unwrap_or(ordinal)
}

/// Ordinal of a device, by its host number; `None`: the process does not see it.
pub(crate) fn ordinal(number: usize) -> Option<usize> {
    seen().iter().position(|seen| *seen == number)
}

/// Device by an ordinal argument of C, and the ordinal.
pub(crate) fn find(ordinal: i32) -> Result<(usize, &'static Device), Status> {
    if count() == 0 {
        return Err(NO_DEVICE);
    }
    let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
    get(ordinal).map(|device| (ordinal, device)).ok_or(INVALID_DEVICE)
}

/// Device of the calling thread: device 0 until the thread sets another.
pub(crate) fn current() -> usize {
    CURRENT.get()
}

/// Sets the calling thread's device; false if it does not exist.
pub(crate) fn choose(ordinal: usize) -> bool {
    let exists = ordinal < count();
    if exists {
        CURRENT.set(ordinal);
    }
    exists
}

/// Calls `work` with another device as the calling thread's device.
pub(crate) fn on<T>(ordinal: usize, work: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(ordinal);
    let result = work();
    CURRENT.set(before);
    result
}

/// Marks that a device has a context, because it was used.
pub(crate) fn mark_used(ordinal: usize) {
    static SETTINGS: Once = Once::new();
    SETTINGS.call_once(|| {
        LazyLock::force(&LAUNCHES_BLOCK);
        settings::of_cuda(&settings::environment()).iter().for_each(|text| warn(text));
    });
    let before = USED.fetch_or(1 << ordinal, Relaxed);
    let number = number(ordinal);
    if before & 1 << ordinal == 0
        && attached().is_some_and(|attached| attached.own != number)
        && link().is_some_and(|link| (link.uses)(number as u32) != 0)
    {
        OWN.store(number + 1, Relaxed);
    }
}

/// Whether launches block, as the environment said when the program first used a device.
pub(crate) fn launches_block() -> bool {
    *LAUNCHES_BLOCK
}

exports! {
    /// Whether launches block, for `cpp/cpu_reference.h`.
    fn uniference_phantom_launches_block() -> c_int { launches_block().into() }
}

/// Ordinal of the process's own device: the rank's, or the device that it has claimed; `None`: the process does not see
/// it.
pub(crate) fn own() -> Option<usize> {
    let own = OWN.load(Relaxed).checked_sub(1).or_else(|| attached().map(|attached| attached.own));
    own.and_then(ordinal)
}

/// Whether the process has a context on the device.
pub(crate) fn is_used(ordinal: usize) -> bool {
    USED.load(Relaxed) & 1 << ordinal != 0
}

/// Whether a device can access another device's memory.
pub(crate) fn reaches(from: i32, to: i32) -> Result<bool, Status> {
    let ((from, _), (to, _)) = (find(from)?, find(to)?);
    Ok(from != to && attached().is_some_and(|attached| attached.reaches(seen()[from], seen()[to])))
}

/// Whether each device of the host can access the memory of all others.
pub(crate) fn all_are_linked() -> bool {
    attached().is_some_and(|attached| {
        let all = 0..attached.devices.len();
        all.clone().all(|from| all.clone().all(|to| from == to || attached.reaches(from, to)))
    })
}

/// Bytes that identify this host, from its devices' identifiers.
pub(crate) fn host() -> [u8; 4] {
    let identifier = get(current()).map_or([0; 16], |device| device.uuid);
    identifier[8..12].try_into().expect("four bytes")
}

/// Enables access of the current device to the memory of `other`.
pub(crate) fn enable_peer(other: i32, flags: u32) -> Result<(), Status> {
    let (to, _) = find(other)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if !reaches(current() as i32, other)? {
        return Err(PEER_ACCESS_UNSUPPORTED);
    }
    let is_new = PEERS.lock().unwrap_or_else(PoisonError::into_inner).insert((current(), to));
    if is_new { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
}

/// Disables access of the current device to the memory of `other`.
pub(crate) fn disable_peer(other: i32) -> Result<(), Status> {
    let (to, _) = find(other)?;
    let was_enabled = PEERS.lock().unwrap_or_else(PoisonError::into_inner).remove(&(current(), to));
    if was_enabled { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
}

/// PCI address of a device as the driver writes it: `0000:10:00.0`.
pub(crate) fn bus_id(device: &Device) -> String {
    let [domain, bus, slot] = device.pci;
    format!("{domain:04X}:{bus:02X}:{slot:02X}.0")
}

/// Host number of the device at a PCI address, which may have any number of domain digits (NVML writes eight) or no
/// domain.
pub(crate) fn at_bus(text: &str) -> Option<usize> {
    let number = |part: &str| u32::from_str_radix(part, 16).ok();
    let (place, _function) = text.rsplit_once('.').unwrap_or((text, ""));
    let mut parts = place.rsplit(':').map(number);
    let (slot, bus, domain) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    attached()?.devices.iter().position(|device| device.pci == [domain, bus, slot])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::tests::attach;

    #[test]
    fn devices_are_seen_by_number_and_identifier_up_to_the_first_that_is_none() {
        attach();
        let mut devices = attached().map_or(Vec::new(), |attached| attached.devices.clone());
        devices[1].uuid = *b"0123456789abcdef";
        let all = "GPU-30313233-3435-3637-3839-616263646566";
        for (names, seen) in [
            ("1", &[1][..]),
            ("1,0", &[1, 0]),
            (" 0 , GPU-3031", &[0, 1]),
            (all, &[1]),
            ("0,2,1", &[0]),
            ("-1", &[]),
            ("", &[]),
            ("0,0", &[]),
            ("30313233", &[]),
        ] {
            assert_eq!(named(names, &devices), seen, "{names}");
        }
    }
}
