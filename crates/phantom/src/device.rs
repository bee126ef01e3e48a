//! Owns which device a thread uses, and what the devices of the rank's host are.

use crate::attach::attached;
use std::cell::Cell;
use uniference_protocol::phantom::Device;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Number of devices; 0 where none are attached.
pub(crate) fn count() -> usize {
    attached().map_or(0, |attached| attached.devices.len())
}

/// The device of this ordinal.
pub(crate) fn get(ordinal: usize) -> Option<&'static Device> {
    attached().and_then(|attached| attached.devices.get(ordinal))
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
