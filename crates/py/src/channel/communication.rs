//! Owns the functions of the client that the simulated GPU library (`crates/phantom/src/calls.rs`) calls by address, to
//! communicate.

// The functions are called by another library, which passes addresses.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use uniference_abi::VERSION;
use uniference_abi::calls::{Call, Operation};
use uniference_abi::capture::Functions;
use uniference_abi::gpus::Communication;
use uniference_client::{Client, ClientError, ticks};
use uniference_protocol::memory::{Kernel, Region};
use uniference_protocol::messages::OnStream;
use uniference_sim::ids::{GroupId, GroupRank};
use uniference_sim::program::{
    CallOp, Collective, CollectiveKind, DType, NcclSettings, PeerKernel, ReduceOp, Shape, StoreOp, StoreValue,
};
use uniference_sim::time::{Bytes, SimDuration};

/// State of this process's rank.
struct State {
    client: Arc<Client>,
    functions: &'static Functions,
    /// Reductions in progress: by handle, the reduction and the type of elements.
    reductions: Mutex<BTreeMap<u32, (u8, u8)>>,
}

static STATE: OnceLock<State> = OnceLock::new();

/// Table of functions for the simulated GPU library; valid for the process's lifetime.
pub(crate) fn table(client: &Arc<Client>, functions: &'static Functions) -> &'static Communication {
    let state = State { client: client.clone(), functions, reductions: Mutex::default() };
    let _ = STATE.set(state);
    let Functions { scale, is_large, .. } = *functions;
    let table = Communication {
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
    };
    Box::leak(Box::new(table))
}

/// The rank of this process, which uses the device from this call on.
extern "C" fn rank(device: u32) -> u32 {
    let _ours = Ours::new();
    let client = &state().client;
    ended(client.moves(device).map(Some));
    client.rank()
}

fn state() -> &'static State {
    STATE.get().expect("the table is given out once the state is there")
}

/// # Safety
/// Key and value are of these lengths.
unsafe extern "C" fn publish(key: *const u8, key_length: usize, value: *const u8, length: usize) {
    // SAFETY: key and value have these lengths, and live during the call.
    let (key, value) = unsafe { (from_raw_parts(key, key_length).to_vec(), from_raw_parts(value, length).to_vec()) };
    let _ours = Ours::new();
    ended(state().client.store(StoreOp::Set { key, value }, None, ""));
}

/// # Safety
/// The key has this length, and the value has room for `room` bytes.
unsafe extern "C" fn look_up(key: *const u8, key_length: usize, value: *mut u8, room: usize) {
    // SAFETY: the key has its length, and the value room for `room` bytes, which do not overlap.
    let (key, value) = unsafe { (from_raw_parts(key, key_length).to_vec(), from_raw_parts_mut(value, room)) };
    let _ours = Ours::new();
    if let Some(StoreValue::Bytes(bytes)) = ended(state().client.store(StoreOp::Get { key }, None, site())) {
        let length = bytes.len().min(room);
        value[..length].copy_from_slice(&bytes[..length]);
    }
}

/// # Safety
/// `ranks` points to `count` ranks; `settings` points to settings or is null.
unsafe extern "C" fn group(ranks: *const u32, count: usize, settings: *const NcclSettings) -> u32 {
    // SAFETY: there are `count` ranks; settings are null, or live during the call.
    let (ranks, settings) = unsafe { (from_raw_parts(ranks, count).to_vec(), settings.as_ref().copied()) };
    let _ours = Ours::new();
    state().client.group(ranks, settings, false).map_or(Communication::REFUSED, |group| group.0)
}

/// # Safety
/// The memory that the call names is mapped.
unsafe extern "C" fn issue(call: *const Call) -> u32 {
    // SAFETY: the simulated NCCL passes a call that lives until this returns.
    let call = unsafe { &*call };
    let _ours = Ours::new();
    let State { client, reductions, .. } = state();
    // SAFETY: the input is memory of simulated devices, which stays mapped in this process while the call runs.
    let input = [unsafe { Region::new(call.input.address, call.input.bytes) }];
    let input = (call.has_values != 0 && call.input.bytes > 0).then_some(input.as_slice());
    let group = GroupId(call.group);
    let Some(op) = operation(call) else { return Communication::REFUSED };
    // Torch's kernels combine elements that the client cannot combine.
    let reduces = match &op {
        CallOp::Collective(Collective { reduce: Some(reduce), dtype, .. }) => Kernel::of(*reduce, *dtype).is_none(),
        _ => false,
    };
    let number = (call.number > 0).then_some(call.number);
    if let Some(number) = number {
        client.launches(number, ticks());
    }
    let on = OnStream { stream: call.stream, with_previous: call.first == 0, number };
    let Ok(handle) = client.call_on(on, uniference_sim::program::Call { group, op }, input, site()) else {
        return Communication::REFUSED;
    };
    if reduces && call.has_values != 0 {
        lock(reductions).insert(handle, (call.reduction, call.dtype));
    }
    handle
}

extern "C" fn deliver(handle: u32, to: usize, bytes: u64, has_ended: c_int) {
    let _ours = Ours::new();
    let State { client, functions, reductions } = state();
    // The program has polled the operation and found it complete, so it must not wait again, not even in a replay on
    // another cluster.
    let at_once = (has_ended != 0).then_some(SimDuration::ZERO);
    let is_over = at_once.is_some_and(|limit| ended(client.wait(&[handle], Some(limit), false, site())).is_some());
    if !is_over {
        ended(client.wait(&[handle], None, false, site()));
    }
    let reduction = lock(reductions).remove(&handle);
    if ended(client.closed_by(handle).map(Some)).flatten().is_some() {
        return;
    }
    if let (Some((operation, dtype)), Some((arena, _))) = (reduction, client.arena()) {
        let folds = client.folds(handle);
        for (into, from, length) in &folds {
            let at = |offset: u64| arena as usize + offset as usize;
            (functions.combine)(operation.into(), dtype.into(), at(*into), at(*from), *length);
        }
        if !folds.is_empty() {
            ended(client.folded(handle).map(Some));
        }
    }
    // SAFETY: the output is memory of simulated devices, which stays mapped in this process; the program does not
    // access it until the call is over.
    let output = [unsafe { Region::new(to, bytes as usize) }];
    ended(client.deliver(handle, &output).map(Some));
}

extern "C" fn forget(handle: u32) {
    let _ours = Ours::new();
    lock(&state().reductions).remove(&handle);
    ended(state().client.release(handle).map(Some));
}

extern "C" fn has_failed(group: u32) -> c_int {
    state().client.has_failed(GroupId(group)).into()
}

extern "C" fn abort(group: u32) {
    let _ours = Ours::new();
    ended(state().client.abort(GroupId(group)).map(Some));
}

/// Marks this thread's work as the simulator's while the object lives.
struct Ours;

impl Ours {
    fn new() -> Ours {
        state().client.enter();
        Ours
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        state().client.leave();
    }
}

/// Result of a call. Exceptions cannot be raised from calls of NCCL, so an error ends the process; the driver reports
/// this with the rank's last line.
fn ended<T>(result: Result<Option<T>, ClientError>) -> Option<T> {
    result.unwrap_or_else(|error| {
        eprintln!("uniference: a call of NCCL could not be carried out: {error}");
        std::process::abort();
    })
}

fn site() -> &'static str {
    let (mut data, mut length) = (std::ptr::null(), 0);
    // SAFETY: `site` sets both; the text of a line is never freed.
    let bytes = unsafe {
        (state().functions.site)(&mut data, &mut length);
        if length == 0 { &[] } else { from_raw_parts(data, length) }
    };
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// The operation of a call. `None`: the operation or the type of elements is unknown.
fn operation(call: &Call) -> Option<CallOp> {
    let dtype = DType::from_number(call.dtype)?;
    let peer = u32::try_from(call.peer).ok().map(GroupRank);
    let bytes = Bytes(call.elements * dtype.size());
    // NCCL matches messages by their order alone.
    if call.operation == Operation::Send as u8 {
        return Some(CallOp::Send { to: peer?, tag: 0, bytes });
    }
    if call.operation == Operation::Recv as u8 {
        return Some(CallOp::Recv { from: Some(peer?), tag: 0, bytes });
    }
    Some(CallOp::Collective(collective(call)?))
}

/// The collective of a call. `None`: the operation, the type of elements or the reduction is unknown.
pub(super) fn collective(call: &Call) -> Option<Collective> {
    use CollectiveKind::{AllReduce, Reduce, ReduceScatter};
    let kind = CollectiveKind::ALL.get(usize::from(call.operation)).copied()?;
    let reduces = matches!(kind, AllReduce | Reduce | ReduceScatter);
    Some(Collective {
        kind,
        dtype: DType::from_number(call.dtype)?,
        reduce: if reduces { Some(ReduceOp::from_number(call.reduction)?) } else { None },
        root: u32::try_from(call.peer).ok().map(GroupRank),
        shape: Shape::Even(call.elements),
        kernel: match call.kernel {
            0 => None,
            1 => Some(PeerKernel::OneShot),
            _ => Some(PeerKernel::TwoShot),
        },
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
