//! Owns which device a thread uses, and what the devices of the rank's host are.

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
use uniference_protocol::phantom::Device;
use uniference_protocol::settings;

/// The version of CUDA that the driver and the runtime say they have: 13.2, as the wheels of PyTorch 2.15.
pub(crate) const VERSION: i32 = 13_020;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Devices on which the process has a context, one bit each.
static USED: AtomicU64 = AtomicU64::new(0);

/// The number in the host of the device that has become the process's own, and 1; 0: none has.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Whether a launch returns only when the launched work has ended (`CUDA_LAUNCH_BLOCKING`).
static LAUNCHES_BLOCK: LazyLock<bool> =
    LazyLock::new(|| settings::is_on(&settings::environment(), "CUDA_LAUNCH_BLOCKING"));

/// Pairs of devices: the first may use the second one's memory.
static PEERS: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());

/// Which of the host's devices the process sees, in the order of its ordinals: those that `CUDA_VISIBLE_DEVICES` names when something of CUDA is
/// asked first.
fn seen() -> &'static [usize] {
    static SEEN: OnceLock<Vec<usize>> = OnceLock::new();
    let Some(attached) = attached() else { return &[] };
    SEEN.get_or_init(|| match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(names) => named(&names, &attached.devices),
        Err(_) => (0..attached.devices.len()).collect(),
    })
}

/// By numbers and beginnings of identifiers, separated by commas. What stands behind the first that names none is not seen; with one named twice no
/// device is (CUDA C++ Programming Guide, "CUDA Environment Variables").
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

/// As NVML and `CUDA_VISIBLE_DEVICES` have it.
pub(crate) fn uuid(device: &Device) -> String {
    let hex: String = device.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Number of devices; 0 where none are attached.
pub(crate) fn count() -> usize {
    seen().len()
}

/// The device of this ordinal.
pub(crate) fn get(ordinal: usize) -> Option<&'static Device> {
    attached()?.devices.get(*seen().get(ordinal)?)
}

/// The number of a device in the host, by its ordinal.
pub(crate) fn number(ordinal: usize) -> usize {
    seen().get(ordinal).copied().unwrap_or(ordinal)
}

/// The ordinal of a device of the host, by its number there; `None`: the process does not see it.
pub(crate) fn ordinal(number: usize) -> Option<usize> {
    seen().iter().position(|seen| *seen == number)
}

/// The same, for an ordinal of C.
pub(crate) fn find(ordinal: i32) -> Result<(usize, &'static Device), Status> {
    if count() == 0 {
        return Err(NO_DEVICE);
    }
    let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
    get(ordinal).map(|device| (ordinal, device)).ok_or(INVALID_DEVICE)
}

/// The device that the calling thread uses: the first one until it chooses.
pub(crate) fn current() -> usize {
    CURRENT.get()
}

/// Has the calling thread use a device. False: there is no such device.
pub(crate) fn choose(ordinal: usize) -> bool {
    let exists = ordinal < count();
    if exists {
        CURRENT.set(ordinal);
    }
    exists
}

/// Has the calling thread use a device during `work`.
pub(crate) fn on<T>(ordinal: usize, work: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(ordinal);
    let result = work();
    CURRENT.set(before);
    result
}

/// Something of the device was used: it has a context.
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
    /// Whether launches block, for `cpp/mirror.h`.
    fn uniference_phantom_launches_block() -> c_int { launches_block().into() }
}

/// The ordinal of the process's own device: the rank's, or the one that it has taken; `None`: the process does not see it.
pub(crate) fn own() -> Option<usize> {
    let own = OWN.load(Relaxed).checked_sub(1).or_else(|| attached().map(|attached| attached.own));
    own.and_then(ordinal)
}

/// Whether the process has a context on the device.
pub(crate) fn is_used(ordinal: usize) -> bool {
    USED.load(Relaxed) & 1 << ordinal != 0
}

/// Whether a device reaches another one's memory.
pub(crate) fn reaches(from: i32, to: i32) -> Result<bool, Status> {
    let ((from, _), (to, _)) = (find(from)?, find(to)?);
    Ok(from != to && attached().is_some_and(|attached| attached.reaches(seen()[from], seen()[to])))
}

/// Whether every device of the host reaches every other one's memory.
pub(crate) fn all_are_linked() -> bool {
    attached().is_some_and(|attached| {
        let all = 0..attached.devices.len();
        all.clone().all(|from| all.clone().all(|to| from == to || attached.reaches(from, to)))
    })
}

/// What distinguishes this host from others, as its devices' identifiers have it.
pub(crate) fn host() -> [u8; 4] {
    let identifier = get(current()).map_or([0; 16], |device| device.uuid);
    identifier[8..12].try_into().expect("four bytes")
}

/// Lets the current device use another one's memory.
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

/// As the driver writes where a device is: `0000:10:00.0`.
pub(crate) fn bus_id(device: &Device) -> String {
    let [domain, bus, slot] = device.pci;
    format!("{domain:04X}:{bus:02X}:{slot:02X}.0")
}

/// The number in the host of the device at a place that is written so, with as many digits of the domain as NVML writes, or with none.
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
