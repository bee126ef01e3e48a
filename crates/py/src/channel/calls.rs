//! Owns the functions of the client that the C++ backend (`cpp/backend.h`) calls by address, for collectives without
//! Python.
//!
//! Python reports the errors of these calls: the outcome of a failed call is kept until Python asks the channel for the
//! same call on the same thread.

// The functions are called by a library in C++, which passes addresses.
#![allow(unsafe_code)]

use super::communication;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uniference_abi::calls::{Call, CallOutcome, Memory, NO_TIMEOUT};
use uniference_client::{Blocking, Client, Ran};
use uniference_protocol::memory::{Kernel, Region};
use uniference_sim::ids::GroupId;
use uniference_sim::program::Collective;
use uniference_sim::time::SimDuration;

/// Whether Python has operations in flight, which it checks at the end of each call.
pub(crate) static IN_FLIGHT: AtomicBool = AtomicBool::new(false);

thread_local! {
    static ENDED: Cell<Option<Ran>> = const { Cell::new(None) };
}

/// Outcome of a failed call that the C++ backend has already carried out, for Python's repetition of the same call.
pub(crate) fn ended() -> Option<Ran> {
    ENDED.take()
}

/// Addresses of the client, which is never freed, and of [`enter`], [`leave`] and [`run`].
pub(crate) fn addresses(client: &Arc<Client>) -> (usize, usize, usize, usize) {
    let client = Arc::into_raw(client.clone());
    (client as usize, enter as *const () as usize, leave as *const () as usize, run as *const () as usize)
}

/// # Safety
/// The client is that of [`addresses`].
unsafe extern "C" fn enter(client: *const Client) {
    // SAFETY: the client is that of `addresses`, which is never freed.
    unsafe { &*client }.enter();
}

/// # Safety
/// The client is that of [`addresses`].
unsafe extern "C" fn leave(client: *const Client) {
    ENDED.set(None);
    // SAFETY: the client is that of `addresses`, which is never freed.
    unsafe { &*client }.leave();
}

/// Carries a collective out. The caller does not hold the interpreter's lock.
///
/// # Safety
/// The client is that of [`addresses`], and what the call names stays until this returns.
unsafe extern "C" fn run(client: *const Client, call: *const Call) -> CallOutcome {
    // SAFETY: the client is that of `addresses`, which is never freed; the call lives until this returns.
    let (client, call) = unsafe { (&*client, &*call) };
    let group = GroupId(call.group);
    let Some(op) = collective(call).filter(|_| !client.has_closed(group)) else { return CallOutcome::Decline };
    // SAFETY: the backend keeps the tensors, whose memory the call names, until this returns.
    let (input, output) = unsafe { (region(call.input), region(call.output)) };
    let blocking = Blocking {
        op,
        input: (call.has_values != 0).then_some(input.as_slice()),
        output: if call.output.bytes == 0 { &[] } else { &output },
        timeout: (call.timeout < NO_TIMEOUT).then(|| SimDuration::from_ps(call.timeout)),
        // SAFETY: the backend keeps the text of the line until this returns.
        site: unsafe { call.site.get() }.expect("lines come from Python as UTF-8"),
    };
    match client.run(group, blocking) {
        Ok(Ran::Delivered { lacks_values: false }) if !IN_FLIGHT.load(Relaxed) => CallOutcome::Complete,
        Ok(ran) => {
            ENDED.set(Some(ran));
            CallOutcome::Report
        }
        // The call is refused before anything is sent, so its repetition by Python fails in the same way.
        Err(_) => CallOutcome::Decline,
    }
}

/// The collective of a call. `None`: the client does not combine such elements.
fn collective(call: &Call) -> Option<Collective> {
    let collective = communication::collective(call)?;
    collective.reduce.map_or(Some(()), |reduce| Kernel::of(reduce, collective.dtype).map(drop))?;
    Some(collective)
}

/// # Safety
/// As [`Region::new`].
unsafe fn region(Memory { address, bytes }: Memory) -> [Region; 1] {
    // SAFETY: the memory meets the contract of `Region::new`, which is this function's.
    [unsafe { Region::new(address, bytes) }]
}
