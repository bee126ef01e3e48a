//! Owns the rank's data for this library: its devices and its link to the driver.

use crate::exports::exports;
use std::ffi::c_int;
use std::slice::from_raw_parts;
use std::sync::OnceLock;
use uniference_abi::VERSION;
use uniference_abi::gpus::{Attach, Communication, Device, Devices, Link};

static ATTACHED: OnceLock<Attached> = OnceLock::new();

/// Devices and links that the process received.
pub(crate) struct Attached {
    /// The rank's own device.
    pub(crate) own: usize,
    /// Devices of the rank's host.
    pub(crate) devices: Vec<Device>,
    peers: Vec<u8>,
    link: Option<Link>,
    communication: Option<Communication>,
}

/// Data that the rank has attached; `None`: nothing is attached, so there is no device.
pub(crate) fn attached() -> Option<&'static Attached> {
    ATTACHED.get()
}

/// Link to the driver; `None`: no link is attached, so all work completes at once.
pub(crate) fn link() -> Option<&'static Link> {
    attached().and_then(|attached| attached.link.as_ref())
}

/// Link for communication; `None`: no link is attached, or the rank has no peers.
pub(crate) fn communication() -> Option<&'static Communication> {
    attached().and_then(|attached| attached.communication.as_ref())
}

impl Attached {
    /// Whether device `from` can access the memory of device `to`.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        self.peers[from * self.devices.len() + to] != 0
    }
}

const _: Attach = uniference_phantom_attach;

exports! {
    fn uniference_phantom_attach(devices: *const Devices, link: *const Link, communication: *const Communication) -> c_int {
        // SAFETY: the extension passes null or pointers to its own structures; the version is the first field in all
        // versions.
        let known = unsafe { [devices.cast(), link.cast(), communication.cast()].into_iter().all(|table| has_version(table)) };
        if devices.is_null() || !known {
            return 1;
        }
        // SAFETY: the extension passes null or pointers to its own structures, which have this version.
        let (devices, link, communication) = unsafe { (&*devices, link.as_ref(), communication.as_ref()) };
        let count = devices.count as usize;
        // SAFETY: the extension's structure states the length of its lists.
        let (list, peers) = unsafe { (from_raw_parts(devices.devices, count), from_raw_parts(devices.peers, count * count)) };
        let attached = Attached {
            own: devices.own as usize,
            devices: list.to_vec(),
            peers: peers.to_vec(),
            link: link.copied(),
            communication: communication.copied(),
        };
        if ATTACHED.set(attached).is_ok() { 0 } else { 2 }
    }
}

/// # Safety
/// The pointer must be null or point to a structure that starts with a version.
unsafe fn has_version(structure: *const u32) -> bool {
    // SAFETY: `uniference_phantom_attach` passes null or a structure that starts with its version.
    structure.is_null() || unsafe { *structure == VERSION }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::ffi::c_void;
    use uniference_abi::gpus::{Recorded, TakeTimes, Times};

    thread_local! {
        static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
        /// Number of the last launch that was numbered for a profile.
        pub(crate) static LAST_NUMBER: Cell<u64> = const { Cell::new(0) };
        /// Times that the test's link returns next.
        pub(crate) static TIMES: RefCell<Vec<Times>> = const { RefCell::new(Vec::new()) };
    }

    /// Messages of the calling thread to the link since the last call.
    pub(crate) fn told() -> Vec<String> {
        TOLD.take()
    }

    pub(crate) fn tell(text: String) {
        TOLD.with_borrow_mut(|told| told.push(text));
    }

    /// Attaches two devices of 64 MiB, with a context of 2 MiB each.
    pub(crate) fn attach() {
        let device = Device {
            name: [b'G' as _; 256],
            capability: [9, 0],
            multiprocessors: 132,
            memory: 64 << 20,
            context: 2 << 20,
            bandwidth: 0,
            clock: 0,
            memory_clock: 0,
            memory_bus: 0,
            l2: 0,
            pci: [0; 3],
            uuid: [0; 16],
        };
        unsafe extern "C" fn kernel(name: *const u8, length: usize) -> u32 {
            // SAFETY: the library passes a name of `length` bytes.
            let name = unsafe { std::slice::from_raw_parts(name, length) };
            tell(format!("kernel {}", String::from_utf8_lossy(name)));
            name[0].into()
        }
        unsafe extern "C" fn warn(_: *const u8, _: usize) {}
        unsafe extern "C" fn launches(_: *const u8, _: usize) -> c_int {
            0
        }
        extern "C" fn stream(_: u32, _: u32, _: i32) {}
        extern "C" fn launch(kernel: u32, stream: u32, _: u32, _: u64) {
            tell(format!("launch {} on {stream}", char::from(kernel as u8)));
        }
        extern "C" fn copy(stream: u32, kind: u32, bytes: u64, _: u32) {
            tell(format!("copy {kind} of {bytes} on {stream}"));
        }
        extern "C" fn pair<const WHAT: char>(one: u32, other: u32) {
            tell(format!("{WHAT} {one} {other}"));
        }
        extern "C" fn host_function(stream: u32) {
            tell(format!("host function on {stream}"));
        }
        extern "C" fn uses(_: u32) -> c_int {
            0
        }
        extern "C" fn synchronize(_: u32) {}
        extern "C" fn synchronize_event(_: u32, _: u32) {}
        extern "C" fn query_event(event: u32, _: u32) -> c_int {
            query(event)
        }
        extern "C" fn query(_: u32) -> c_int {
            1
        }
        extern "C" fn elapsed(_: Recorded, _: Recorded) -> i64 {
            1_500_000
        }
        extern "C" fn number(number: u64) {
            LAST_NUMBER.set(number);
        }
        extern "C" fn times(take: TakeTimes, data: *mut c_void) {
            TIMES.with_borrow_mut(|times| take(data, times.as_ptr(), times.len()));
            TIMES.take();
        }
        let link = Link {
            version: VERSION,
            stream,
            kernel,
            launch,
            copy,
            record: pair::<'r'>,
            wait_event: pair::<'w'>,
            external_record: pair::<'R'>,
            external_wait: pair::<'W'>,
            capture: pair::<'c'>,
            graph_launch: pair::<'g'>,
            captured_call: pair::<'n'>,
            graph_resume: pair::<'m'>,
            host_function,
            uses,
            synchronize_stream: synchronize,
            synchronize_event,
            synchronize_device: synchronize,
            query_stream: query,
            query_event,
            elapsed,
            number,
            times,
            warn,
            launches,
        };
        let attached =
            Attached { own: 0, devices: vec![device; 2], peers: vec![1; 4], link: Some(link), communication: None };
        let _ = ATTACHED.set(attached);
    }
}
