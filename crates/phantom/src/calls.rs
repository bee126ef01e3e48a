//! Owns communication calls that the engine carries out: NCCL calls, and calls of kernels that communicate by
//! themselves. A call is made at once, or at each launch of the graph that captured it.

use crate::arrivals::{self, Arrival};
use crate::attach::communication;
use crate::errors::{ILLEGAL_ADDRESS, INVALID_VALUE, Status};
use crate::exports::exports;
use crate::launches::{Moved, Name};
use crate::streams::{self, Handle};
use crate::{cupti, device, memory};
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;
use uniference_abi::calls::{Call, Memory, Operation};
use uniference_abi::gpus::Communication;

thread_local! {
    /// Nesting depth of the thread's communication that moves sizes but no data.
    static WITHHELD: Cell<c_int> = const { Cell::new(0) };
}

exports! {
    /// Adds `change` to the thread's nesting depth of communication without data: `cpp/cpu_reference.h` distinguishes
    /// types that are the same to NCCL.
    fn uniference_phantom_withhold(change: c_int) { WITHHELD.set(WITHHELD.get() + change); }
}

/// Number in `c10::ScalarType` of each `ncclDataType_t`: the interface to the rank uses torch's numbers.
const SCALAR_TYPES: [u8; 12] = [1, 0, 3, 28, 4, 29, 5, 6, 7, 15, 24, 23];

/// Number in `c10::ScalarType` of an `ncclDataType_t`.
pub(crate) fn scalar_type(dtype: c_int) -> u8 {
    SCALAR_TYPES[dtype as usize]
}

/// Numbers in `c10d::ReduceOp::RedOpType` of NCCL's sum, product, maximum and minimum (`ncclRedOp_t`).
pub(crate) const REDUCTIONS: [u8; 4] = [0, 2, 4, 3];

/// Whether a call of this thread moves data, by number of elements and `c10::ScalarType`.
pub(crate) fn moves_values(link: &Communication, elements: u64, dtype: u8) -> bool {
    (link.is_large)(elements, dtype.into()) == 0 && WITHHELD.get() == 0
}

/// Rank of the calling thread's device in the world.
pub(crate) fn of_world(link: &Communication) -> u32 {
    (link.rank)(device::number(device::current()) as u32)
}

/// A call on a stream.
pub(crate) struct Pending {
    pub(crate) call: Prepared,
    pub(crate) stream: Handle,
    /// Device of the default streams.
    pub(crate) device: usize,
}

/// A call that can be made repeatedly, at each launch of a graph.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(crate) call: Call,
    /// The calling member's place in the group.
    pub(crate) me: usize,
    /// Address and bytes of the output.
    pub(crate) output: (usize, u64),
    pub(crate) finish: Finish,
    /// Factor of the input's elements.
    pub(crate) factor: Option<f64>,
    /// Copy of the root's own data, in a broadcast that is not in place.
    pub(crate) own: Option<Moved>,
    /// The program's kernel that makes the call; `None`: NCCL.
    pub(crate) kernel: Option<Carrier>,
}

/// A program's kernel that makes a communication call.
#[derive(Clone)]
pub(crate) struct Carrier {
    pub(crate) name: Arc<Name>,
    /// Device address of the pointer to the input's tensor, and the input's offset in the tensor; `None`: the call has
    /// the input's address.
    pub(crate) input: Option<(usize, usize)>,
}

/// Processing of an output after its arrival.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub(crate) dtype: u8,
    /// Divisor of the elements.
    pub(crate) divide: Option<f64>,
}

/// Reasons for which a call was not made.
#[derive(Debug)]
pub(crate) enum Refused {
    /// One of the call's streams is in a capture that forbids the call.
    Captured(Status),
    /// The call itself failed.
    Called(Status),
}

/// Makes a group of calls, at once or at each launch of the graph that captures their streams.
pub(crate) fn issue(calls: Vec<Pending>) -> Result<(), Refused> {
    let Some(device) = calls.first().map(|pending| pending.device) else { return Ok(()) };
    let streams: Vec<Handle> = calls.iter().map(|pending| pending.stream).collect();
    let prepared = || calls.iter().map(|pending| pending.call.clone()).collect::<Vec<_>>();
    let captured = device::on(device, || {
        streams::capture_calls(&streams, || {
            let prepared = prepared();
            Box::new(move |streams| make(&prepared, streams))
        })
    });
    if captured.map_err(Refused::Captured)?.is_some() {
        return Ok(());
    }
    let begin = |pending: &Pending| device::on(pending.device, || streams::begin(pending.stream));
    let made = calls.iter().map(begin).collect::<Result<Vec<u32>, _>>().and_then(|on| make(&prepared(), &on));
    made.map_err(Refused::Called)
}

/// Makes a group of calls, one on each of these streams.
fn make(calls: &[Prepared], streams: &[u32]) -> Result<(), Status> {
    let Some(link) = communication() else { return Err(INVALID_VALUE) };
    // The streams' earlier arrivals are fetched, as they are the input. A call does not wait for arrivals at other
    // addresses, because these may depend on other calls of the program.
    let is_told_where =
        calls.iter().any(|prepared| prepared.kernel.as_ref().is_some_and(|kernel| kernel.input.is_some()));
    let touched: Vec<(usize, u64)> =
        calls.iter().filter(|prepared| prepared.call.has_values != 0).flat_map(places).collect();
    for stream in streams {
        if is_told_where { arrivals::wait_for_stream(*stream) } else { arrivals::wait_for_places(*stream, &touched) }
    }
    let mut begun = BTreeSet::new();
    for (Prepared { mut call, output, finish, factor, own, kernel: carrier, .. }, stream) in to_others(calls, streams) {
        if let Some((at, offset)) = carrier.as_ref().and_then(|carrier| carrier.input) {
            call.input.address = tensor_at(at, call.has_values != 0)? + offset;
        }
        // A call without values copies nothing, because its source may be unmapped.
        if let Some(own) = own.filter(|_| call.has_values != 0) {
            let _ = own.carry_out();
        }
        let scaled = factor.map(|factor| scaled(link, &call, factor));
        if let Some(input) = &scaled {
            call.input.address = input.as_ptr() as usize;
        }
        call.stream = stream;
        call.first = u32::from(begun.insert(stream));
        let handle = cupti::call(cupti::Domain::Runtime, "cudaLaunchKernelExC", || {
            let of_nccl = || kernel(&call, finish);
            let name = carrier.as_ref().map_or_else(of_nccl, |carrier| carrier.name.text().to_owned());
            call.number = cupti::communicates(&name, streams::place(stream)).unwrap_or(0);
            // SAFETY: the program keeps the memory that the call names valid, as NCCL requires.
            Ok(unsafe { (link.issue)(&call) })
        })?;
        drop(scaled);
        if handle == Communication::REFUSED {
            return Err(INVALID_VALUE);
        }
        let (to, bytes) = if call.has_values == 0 { (0, 0) } else { output };
        let arrival = Arrival { handle, group: call.group, to, bytes, dtype: finish.dtype, divide: finish.divide };
        arrivals::expect(stream, arrival);
    }
    Ok(())
}

/// Address and bytes of a call's input and of its output.
fn places(Prepared { call, output, .. }: &Prepared) -> [(usize, u64); 2] {
    [(call.input.address, call.input.bytes as u64), *output]
}

/// Reads an address from device memory.
pub(crate) fn address_at(at: usize) -> Result<usize, Status> {
    let mut bytes = [0; size_of::<usize>()];
    memory::copy(bytes.as_mut_ptr() as usize, at, bytes.len())?;
    Ok(usize::from_ne_bytes(bytes))
}

/// Address of a tensor, read from device memory.
fn tensor_at(at: usize, is_read: bool) -> Result<usize, Status> {
    let tensor = address_at(at)?;
    let is_there = matches!(memory::place(tensor), memory::Place::Device { .. });
    if is_there || !is_read { Ok(tensor) } else { Err(ILLEGAL_ADDRESS) }
}

/// Name of a call's kernel in profiles: NCCL's kernel name without algorithm and protocol, which the engine chooses.
fn kernel(call: &Call, finish: Finish) -> String {
    const NAMES: [&str; 4] = ["Sum", "Prod", "Max", "Min"];
    const TYPES: [&str; 12] = ["i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"];
    let place = |numbers: &[u8], of: u8| numbers.iter().position(|number| *number == of);
    let is = |operation: Operation| call.operation == operation as u8;
    let name = match () {
        () if is(Operation::AllReduce) => "AllReduce",
        () if is(Operation::Reduce) => "Reduce",
        () if is(Operation::ReduceScatter) => "ReduceScatter",
        () if is(Operation::Broadcast) => return "ncclDevKernel_Broadcast".to_owned(),
        () if is(Operation::AllGather) => return "ncclDevKernel_AllGather".to_owned(),
        // All other operations consist of messages, which NCCL carries out by its send-and-receive kernel.
        () => return "ncclDevKernel_SendRecv".to_owned(),
    };
    let reduction = match finish.divide {
        Some(_) => "SumPostDiv",
        None => place(&REDUCTIONS, call.reduction).map_or("Sum", |at| NAMES[at]),
    };
    format!("ncclDevKernel_{name}_{reduction}_{}", place(&SCALAR_TYPES, call.dtype).map_or("u8", |at| TYPES[at]))
}

/// Carries out messages of a rank to itself as copies, the n-th send to the n-th receive, and returns the other calls
/// with their streams.
fn to_others(calls: &[Prepared], streams: &[u32]) -> Vec<(Prepared, u32)> {
    let own = |(prepared, _): &(Prepared, u32), operation: Operation| {
        prepared.call.operation == operation as u8 && prepared.call.peer == prepared.me as i32
    };
    let mut rest = Vec::new();
    let all = calls.iter().cloned().zip(streams.iter().copied());
    let (sends, others): (Vec<_>, Vec<_>) = all.partition(|call| own(call, Operation::Send));
    let mut sent: VecDeque<(Prepared, u32)> = sends.into();
    for received in others {
        if !own(&received, Operation::Recv) {
            rest.push(received);
        } else if let Some((Prepared { call, .. }, _)) = sent.pop_front() {
            let (to, room) = received.0.output;
            if received.0.call.has_values != 0 {
                let _ = memory::copy(to, call.input.address, (call.input.bytes as u64).min(room) as usize);
            }
        }
    }
    rest
}

/// The call's input with each element multiplied by a factor.
fn scaled(link: &Communication, call: &Call, factor: f64) -> Vec<u8> {
    let Memory { address, bytes } = call.input;
    let mut copy = vec![0; bytes];
    let _ = memory::copy(copy.as_mut_ptr() as usize, address, bytes);
    (link.scale)(call.dtype.into(), copy.as_mut_ptr() as usize, copy.len() as u64, factor);
    copy
}
