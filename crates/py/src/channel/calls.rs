//! Owns the collectives that the C++ backend (`cpp/backend.h`) asks for without Python: its view of the client, by addresses of functions.
//!
//! What did not end well is Python's to say: it is kept until the channel is asked for the same call, on the same thread.

// The functions are called by a library in C++, which passes addresses.
#![allow(unsafe_code)]

use super::{dtype_named, kind_named, reduce_named};
use std::cell::Cell;
use std::slice::from_raw_parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uniference_client::{Blocking, Client, Ran};
use uniference_protocol::memory::{Kernel, Region};
use uniference_sim::ids::{GroupId, GroupRank};
use uniference_sim::program::{Collective, Shape};
use uniference_sim::time::SimDuration;

/// Whether Python has operations in flight, which it looks after at the end of each call.
pub(crate) static IN_FLIGHT: AtomicBool = AtomicBool::new(false);

thread_local! {
    static ENDED: Cell<Option<Ran>> = const { Cell::new(None) };
}

/// How the call has ended that Python is now asked to carry out: it has been, by the C++ backend.
pub(crate) fn ended() -> Option<Ran> {
    ENDED.take()
}

/// Addresses of the client, which stays, and of [`enter`], [`leave`] and [`run`].
pub(crate) fn addresses(client: &Arc<Client>) -> (usize, usize, usize, usize) {
    let client = Arc::into_raw(client.clone());
    (client as usize, enter as *const () as usize, leave as *const () as usize, run as *const () as usize)
}

/// `Text` of `cpp/backend.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Text {
    data: *const u8,
    length: usize,
}

/// `Memory` of `cpp/backend.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Memory {
    address: usize,
    bytes: usize,
}

/// `Call` of `cpp/backend.h`.
#[repr(C)]
struct Call {
    kind: Text,
    dtype: Text,
    reduction: Text,
    site: Text,
    elements: u64,
    timeout: u64,
    input: Memory,
    output: Memory,
    group: u32,
    root: i32,
    contributes: u32,
}

/// `Ending` of `cpp/backend.h`.
#[repr(u32)]
enum Ending {
    Done = 0,
    Tell = 1,
    Ask = 2,
}

/// # Safety
/// The client is that of [`addresses`].
unsafe extern "C" fn enter(client: *const Client) {
    // SAFETY: the caller's.
    unsafe { &*client }.enter();
}

/// # Safety
/// The client is that of [`addresses`].
unsafe extern "C" fn leave(client: *const Client) {
    ENDED.set(None);
    // SAFETY: the caller's.
    unsafe { &*client }.leave();
}

/// Carries a collective out. The caller does not hold the interpreter's lock.
///
/// # Safety
/// The client is that of [`addresses`], and what the call names stays until this returns.
unsafe extern "C" fn run(client: *const Client, call: *const Call) -> Ending {
    // SAFETY: the caller's.
    let (client, call) = unsafe { (&*client, &*call) };
    let group = GroupId(call.group);
    let Some(op) = call.collective().filter(|_| !client.has_closed(group)) else { return Ending::Ask };
    // SAFETY: the caller's.
    let (input, output) = unsafe { (call.input.region(), call.output.region()) };
    let blocking = Blocking {
        op,
        input: (call.contributes != 0).then_some(input.as_slice()),
        output: if call.output.bytes == 0 { &[] } else { &output },
        timeout: (call.timeout < u64::MAX).then(|| SimDuration::from_ps(call.timeout)),
        site: call.site.get(),
    };
    match client.run(group, blocking) {
        Ok(Ran::Delivered { lacks_values: false }) if !IN_FLIGHT.load(Relaxed) => Ending::Done,
        Ok(ran) => {
            ENDED.set(Some(ran));
            Ending::Tell
        }
        // Nothing was sent: the same call from Python fails in the same way.
        Err(_) => Ending::Ask,
    }
}

impl Call {
    /// `None`: torch's kernels combine such elements.
    fn collective(&self) -> Option<Collective> {
        let dtype = dtype_named(self.dtype.get()).ok()?;
        let reduce = match self.reduction.get() {
            "" => None,
            name => Some(reduce_named(name).ok()?),
        };
        reduce.map_or(Some(()), |reduce| Kernel::of(reduce, dtype).map(drop))?;
        Some(Collective {
            kind: kind_named(self.kind.get()).ok()?,
            dtype,
            reduce,
            root: u32::try_from(self.root).ok().map(GroupRank),
            shape: Shape::Even(self.elements),
            kernel: None,
        })
    }
}

impl Text {
    fn get(&self) -> &str {
        // SAFETY: `data` is that of a string of `length` bytes, or nothing; the call holds it.
        let bytes = if self.length == 0 { &[] } else { unsafe { from_raw_parts(self.data, self.length) } };
        std::str::from_utf8(bytes).expect("names and lines come from Python as UTF-8")
    }
}

impl Memory {
    /// # Safety
    /// As [`Region::new`].
    unsafe fn region(self) -> [Region; 1] {
        // SAFETY: the caller's.
        [unsafe { Region::new(self.address, self.bytes) }]
    }
}
