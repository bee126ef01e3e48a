//! Owns what a rank gives this library: its devices and its link to the driver.

use crate::exports::exports;
use std::ffi::c_int;
use std::slice::from_raw_parts;
use std::sync::OnceLock;
use uniference_protocol::phantom::{Attach, Device, Devices, Link, VERSION};

static ATTACHED: OnceLock<Attached> = OnceLock::new();

/// What the process was given.
pub(crate) struct Attached {
    /// The rank's own device.
    pub(crate) own: usize,
    /// The devices of its host.
    pub(crate) devices: Vec<Device>,
    peers: Vec<u8>,
    link: Option<Link>,
}

/// `None`: nothing is attached, so there is no device.
pub(crate) fn attached() -> Option<&'static Attached> {
    ATTACHED.get()
}

/// `None`: nothing is attached, or no link: everything completes at once.
pub(crate) fn link() -> Option<&'static Link> {
    attached().and_then(|attached| attached.link.as_ref())
}

impl Attached {
    /// Whether a device reaches the other one's memory.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        self.peers[from * self.devices.len() + to] != 0
    }
}

const _: Attach = uniference_phantom_attach;

exports! {
    fn uniference_phantom_attach(devices: *const Devices, link: *const Link) -> c_int {
        // SAFETY: the extension passes pointers to its own structures; the version is the first field of both in all versions.
        if unsafe { !has_version(devices.cast()) || !(link.is_null() || has_version(link.cast())) } {
            return 1;
        }
        // SAFETY: the same; they are of this version.
        let (devices, link) = unsafe { (&*devices, link.as_ref()) };
        let count = devices.count as usize;
        // SAFETY: the structure says how many there are.
        let (list, peers) = unsafe { (from_raw_parts(devices.devices, count), from_raw_parts(devices.peers, count * count)) };
        let attached =
            Attached { own: devices.own as usize, devices: list.to_vec(), peers: peers.to_vec(), link: link.copied() };
        if ATTACHED.set(attached).is_ok() { 0 } else { 2 }
    }
}

/// # Safety
/// The pointer is to a structure that starts with a version.
unsafe fn has_version(structure: *const u32) -> bool {
    // SAFETY: the caller's.
    unsafe { *structure == VERSION }
}
