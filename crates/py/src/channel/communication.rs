//! Owns communication that the library of simulated GPUs asks for (`crates/phantom/src/calls.rs`): its view of the client, by addresses of functions.

// The functions are called by another library, which passes addresses.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use uniference_client::{Client, ClientError, ticks};
use uniference_protocol::memory::{Kernel, Region};
use uniference_protocol::messages::OnStream;
use uniference_protocol::phantom::{Call, Communication, Operation, VERSION};
use uniference_sim::ids::{GroupId, GroupRank};
use uniference_sim::program::{
    CallOp, Collective, CollectiveKind, DType, NcclSettings, PeerKernel, ReduceOp, Shape, StoreOp, StoreValue,
};
use uniference_sim::time::{Bytes, SimDuration};

/// What this module needs of the C++ library (`cpp/capture.cpp`).
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) combine: extern "C" fn(operation: u32, dtype: u32, into: usize, from: usize, bytes: u64),
    pub(crate) scale: extern "C" fn(dtype: u32, at: usize, bytes: u64, factor: f64),
    pub(crate) site: extern "C" fn(data: &mut *const u8, length: &mut usize),
    pub(crate) is_large: extern "C" fn(elements: u64, dtype: u32) -> c_int,
}

impl Functions {
    /// # Safety
    /// These are addresses of the functions of a library that is never unloaded.
    pub(crate) unsafe fn at(combine: usize, scale: usize, site: usize, is_large: usize) -> Functions {
        // SAFETY: the caller's.
        unsafe {
            Functions {
                combine: std::mem::transmute::<usize, extern "C" fn(u32, u32, usize, usize, u64)>(combine),
                scale: std::mem::transmute::<usize, extern "C" fn(u32, usize, u64, f64)>(scale),
                site: std::mem::transmute::<usize, extern "C" fn(&mut *const u8, &mut usize)>(site),
                is_large: std::mem::transmute::<usize, extern "C" fn(u64, u32) -> c_int>(is_large),
            }
        }
    }
}

/// Of the rank that this process is.
struct State {
    client: Arc<Client>,
    functions: Functions,
    /// Reductions that go on: by handle, operation and type in NCCL's numbers.
    reductions: Mutex<BTreeMap<u32, (u32, u32)>>,
}

static STATE: OnceLock<State> = OnceLock::new();

/// What the library of simulated GPUs is given, which stays.
pub(crate) fn table(client: &Arc<Client>, functions: Functions) -> &'static Communication {
    let state = State { client: client.clone(), functions, reductions: Mutex::default() };
    let _ = STATE.set(state);
    let Functions { scale, is_large, .. } = functions;
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

/// Whoever has not used the device yet does now.
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
    // SAFETY: the caller's.
    let (key, value) = unsafe { (from_raw_parts(key, key_length).to_vec(), from_raw_parts(value, length).to_vec()) };
    let _ours = Ours::new();
    ended(state().client.store(StoreOp::Set { key, value }, None, ""));
}

/// # Safety
/// The key is of this length, and the value has so much room.
unsafe extern "C" fn look_up(key: *const u8, key_length: usize, value: *mut u8, room: usize) {
    // SAFETY: the caller's.
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
    // SAFETY: the caller's.
    let (ranks, settings) = unsafe { (from_raw_parts(ranks, count).to_vec(), settings.as_ref().copied()) };
    let _ours = Ours::new();
    state().client.group(ranks, settings, false).map_or(Communication::REFUSED, |group| group.0)
}

/// # Safety
/// What the call names is there.
unsafe extern "C" fn issue(call: *const Call) -> u32 {
    // SAFETY: the caller's.
    let call = unsafe { &*call };
    let _ours = Ours::new();
    let State { client, reductions, .. } = state();
    // SAFETY: the caller's.
    let input = [unsafe { Region::new(call.input, call.input_bytes as usize) }];
    let input = (call.has_values != 0 && call.input_bytes > 0).then_some(input.as_slice());
    let group = GroupId(call.group);
    let Some(op) = operation(call) else { return Communication::REFUSED };
    // What the client cannot combine is combined by torch's kernels.
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
    // Who has looked and found that it has ended does not wait for it, in a replay on another cluster neither.
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
            (functions.combine)(operation, dtype, at(*into), at(*from), *length);
        }
        if !folds.is_empty() {
            ended(client.folded(handle).map(Some));
        }
    }
    // SAFETY: the caller names memory of the program's.
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

/// The simulator's own work on this thread.
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

/// Nobody here can raise an exception: what cannot be done any more ends the process, which the driver reports with the rank's last line.
fn ended<T>(result: Result<Option<T>, ClientError>) -> Option<T> {
    result.unwrap_or_else(|error| {
        eprintln!("uniference: a call of NCCL could not be carried out: {error}");
        std::process::abort();
    })
}

fn site() -> &'static str {
    let (mut data, mut length) = (std::ptr::null(), 0);
    (state().functions.site)(&mut data, &mut length);
    // SAFETY: lines stay.
    let bytes = if length == 0 { &[] } else { unsafe { from_raw_parts(data, length) } };
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// What is called. `None`: no such operation or type.
fn operation(call: &Call) -> Option<CallOp> {
    use CollectiveKind::*;
    let dtype = dtype(call.dtype)?;
    let peer = u32::try_from(call.peer).ok().map(GroupRank);
    let is = |operation: Operation| call.operation == operation as u32;
    let bytes = Bytes(call.elements * dtype.size());
    // NCCL matches messages by their order alone.
    if is(Operation::Send) {
        return Some(CallOp::Send { to: peer?, tag: 0, bytes });
    }
    if is(Operation::Recv) {
        return Some(CallOp::Recv { from: Some(peer?), tag: 0, bytes });
    }
    let collectives = [
        (Operation::AllReduce, AllReduce),
        (Operation::Reduce, Reduce),
        (Operation::Broadcast, Broadcast),
        (Operation::AllGather, AllGather),
        (Operation::ReduceScatter, ReduceScatter),
        (Operation::AllToAll, AllToAll),
        (Operation::Gather, Gather),
        (Operation::Scatter, Scatter),
    ];
    let kind = collectives.into_iter().find(|(operation, _)| is(*operation))?.1;
    let reduce = matches!(kind, AllReduce | Reduce | ReduceScatter).then(|| reduction(call.reduction));
    let kernel = match call.kernel {
        0 => None,
        1 => Some(PeerKernel::OneShot),
        _ => Some(PeerKernel::TwoShot),
    };
    let shape = Shape::Even(call.elements);
    Some(CallOp::Collective(Collective { kind, dtype, reduce, root: peer, shape, kernel }))
}

fn dtype(number: u32) -> Option<DType> {
    use DType::*;
    let types =
        [Int8, UInt8, Int32, UInt32, Int64, UInt64, Float16, Float32, Float64, BFloat16, Float8E4M3, Float8E5M2];
    types.get(number as usize).copied()
}

fn reduction(number: u32) -> ReduceOp {
    [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min]
        .get(number as usize)
        .copied()
        .unwrap_or(ReduceOp::Sum)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
