//! Owns which device a thread uses, and what the devices of the rank's host are.

mod attributes;
pub(crate) mod limits;

use crate::attach::attached;
use crate::errors::{INVALID_DEVICE, NO_DEVICE, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, Status};
use crate::errors::{INVALID_VALUE, PEER_ACCESS_UNSUPPORTED};
pub(crate) use attributes::{Architecture, BLOCK, GRID, SHARED_OF_BLOCK, THREADS_OF_BLOCK, attribute};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use uniference_protocol::phantom::Device;

/// The version of CUDA that the driver and the runtime say they have: 13.2, as the wheels of PyTorch 2.15.
pub(crate) const VERSION: i32 = 13_020;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Devices on which the process has a context, one bit each.
static USED: AtomicU64 = AtomicU64::new(0);

/// Pairs of devices: the first may use the second one's memory.
static PEERS: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());

/// Number of devices; 0 where none are attached.
pub(crate) fn count() -> usize {
    attached().map_or(0, |attached| attached.devices.len())
}

/// The device of this ordinal.
pub(crate) fn get(ordinal: usize) -> Option<&'static Device> {
    attached().and_then(|attached| attached.devices.get(ordinal))
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
    USED.fetch_or(1 << ordinal, Relaxed);
}

/// Whether the process has a context on the device.
pub(crate) fn is_used(ordinal: usize) -> bool {
    USED.load(Relaxed) & 1 << ordinal != 0
}

/// Whether a device reaches another one's memory.
pub(crate) fn reaches(from: i32, to: i32) -> Result<bool, Status> {
    let ((from, _), (to, _)) = (find(from)?, find(to)?);
    Ok(from != to && attached().is_some_and(|attached| attached.reaches(from, to)))
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

/// The reverse.
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

/// The device at a place that is written so, with as many digits of the domain as NVML writes, or with none.
pub(crate) fn at_bus(text: &str) -> Option<usize> {
    let number = |part: &str| u32::from_str_radix(part, 16).ok();
    let (place, _function) = text.rsplit_once('.').unwrap_or((text, ""));
    let mut parts = place.rsplit(':').map(number);
    let (slot, bus, domain) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    (0..count()).find(|ordinal| get(*ordinal).is_some_and(|device| device.pci == [domain, bus, slot]))
}
