//! Owns communication of simulated GPUs in a child process of a rank, which communicates only with itself: the output
//! of a group of one is its input. Its table replaces that of `communication`, which ranks have.

// The functions are called by another library, which passes addresses.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use uniference_abi::VERSION;
use uniference_abi::calls::Call;
use uniference_abi::capture::Functions;
use uniference_abi::gpus::Communication;
use uniference_client::Client;
use uniference_sim::program::NcclSettings;

struct State {
    said: BTreeMap<Vec<u8>, Vec<u8>>,
    groups: u32,
    calls: u32,
    /// Data of sent messages with values, by handle.
    data: BTreeMap<u32, Vec<u8>>,
}

static CLIENT: OnceLock<Arc<Client>> = OnceLock::new();
static STATE: Mutex<State> = Mutex::new(State { said: BTreeMap::new(), groups: 0, calls: 0, data: BTreeMap::new() });

/// Table of functions for the simulated GPU library; valid for the process's lifetime.
pub(super) fn table(client: &Arc<Client>, functions: &Functions) -> &'static Communication {
    let Functions { scale, is_large, .. } = *functions;
    let _ = CLIENT.set(client.clone());
    Box::leak(Box::new(Communication {
        version: VERSION,
        rank,
        is_large,
        publish,
        look_up,
        group,
        issue,
        deliver,
        forget,
        abort,
        has_failed,
        scale,
    }))
}

extern "C" fn rank(_: u32) -> u32 {
    CLIENT.get().map_or(0, |client| client.rank())
}

/// # Safety
/// Key and value are of these lengths.
unsafe extern "C" fn publish(key: *const u8, key_length: usize, value: *const u8, length: usize) {
    // SAFETY: key and value have these lengths, and live during the call.
    let (key, value) = unsafe { (from_raw_parts(key, key_length).to_vec(), from_raw_parts(value, length).to_vec()) };
    state().said.insert(key, value);
}

/// Copies the value of a key, which only this process can have published.
///
/// # Safety
/// The key has this length, and the value has room for `room` bytes.
unsafe extern "C" fn look_up(key: *const u8, key_length: usize, value: *mut u8, room: usize) {
    // SAFETY: the key has its length, and the value room for `room` bytes, which do not overlap.
    let (key, value) = unsafe { (from_raw_parts(key, key_length), from_raw_parts_mut(value, room)) };
    if let Some(said) = state().said.get(key) {
        let length = said.len().min(room);
        value[..length].copy_from_slice(&said[..length]);
    }
}

unsafe extern "C" fn group(_: *const u32, count: usize, _: *const NcclSettings) -> u32 {
    if count > 1 {
        if let Some(client) = CLIENT.get() {
            client.warn(&format!(
                "a process that the program has started on rank {} makes an NCCL communicator of {count} processes, which is refused: such a process communicates with itself alone\nhint: start a rank for each GPU: uniference run --ranks N",
                client.rank()
            ));
        }
        return Communication::REFUSED;
    }
    let groups = &mut state().groups;
    *groups += 1;
    *groups - 1
}

/// # Safety
/// The memory that the call names is mapped.
unsafe extern "C" fn issue(call: *const Call) -> u32 {
    // SAFETY: the simulated NCCL passes a call that lives until this returns.
    let call = unsafe { &*call };
    let mut state = state();
    let handle = state.calls;
    state.calls = handle.wrapping_add(1) % Communication::REFUSED;
    if call.has_values != 0 && call.input.bytes > 0 {
        // SAFETY: the input is memory of simulated devices, which is mapped in this process.
        let input = unsafe { from_raw_parts(call.input.address as *const u8, call.input.bytes) };
        state.data.insert(handle, input.to_vec());
    }
    handle
}

extern "C" fn deliver(handle: u32, to: usize, bytes: u64, _has_ended: c_int) {
    let data = state().data.remove(&handle);
    if let Some(data) = data.filter(|data| !data.is_empty() && bytes > 0) {
        // SAFETY: the output is memory of simulated devices, which is mapped in this process; the program does not
        // access it until the call is over.
        let output = unsafe { from_raw_parts_mut(to as *mut u8, bytes as usize) };
        let length = data.len().min(output.len());
        output[..length].copy_from_slice(&data[..length]);
    }
}

extern "C" fn forget(handle: u32) {
    state().data.remove(&handle);
}

extern "C" fn has_failed(_: u32) -> c_int {
    0
}

extern "C" fn abort(_: u32) {}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
