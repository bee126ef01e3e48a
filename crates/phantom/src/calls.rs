//! Owns calls that the engine carries out: NCCL's, and those of kernels that communicate by themselves. They are made at once, or whenever the graph
//! is launched into which they were captured.

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
use uniference_protocol::phantom::{Call, Communication, Operation};

thread_local! {
    /// How deep the thread is in communication that moves sizes and no data, of whatever type.
    static WITHHELD: Cell<c_int> = const { Cell::new(0) };
}

exports! {
    /// What this thread communicates moves no data until it says -1: `cpp/mirror.h` knows types that NCCL does not tell apart.
    fn uniference_phantom_withhold(change: c_int) { WITHHELD.set(WITHHELD.get() + change); }
}

/// Whether data of so many elements (`ncclDataType_t`) moves in this thread's calls.
pub(crate) fn moves_values(link: &Communication, elements: u64, dtype: c_int) -> bool {
    (link.is_large)(elements, dtype as u32) == 0 && WITHHELD.get() == 0
}

/// Which rank the calling thread is in communicators.
pub(crate) fn of_world(link: &Communication) -> u32 {
    (link.rank)(device::number(device::current()) as u32)
}

/// A call on a stream of its caller's.
pub(crate) struct Pending {
    pub(crate) call: Prepared,
    pub(crate) stream: Handle,
    /// The device whose default streams are meant.
    pub(crate) device: usize,
}

/// A call that can be made, once or whenever a graph is launched.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(crate) call: Call,
    /// Where it goes, and its bytes.
    pub(crate) output: (usize, u64),
    pub(crate) finish: Finish,
    /// Elements of the input are multiplied by this first.
    pub(crate) factor: Option<f64>,
    /// The root of a broadcast out of place has its own data.
    pub(crate) own: Option<Moved>,
    /// The kernel of the program's that carries it out; `None`: NCCL does.
    pub(crate) kernel: Option<Carrier>,
}

/// A kernel that carries a call out.
#[derive(Clone)]
pub(crate) struct Carrier {
    pub(crate) name: Arc<Name>,
    /// Where it finds the address of what its input is in, and how far behind that it lies; `None`: the call says where it lies.
    pub(crate) input: Option<(usize, usize)>,
}

/// What is done with an output once it is there.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub(crate) dtype: u32,
    /// Elements are divided by this.
    pub(crate) divide: Option<f64>,
}

/// Why a call was not made.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Its stream is in a capture that it cannot belong to.
    Captured(Status),
    /// The call itself cannot be made.
    Called(Status),
}

/// Hands calls over that start together: now, or whenever the graph is launched into which their streams are captured.
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

/// Makes calls that start together, each on a stream of this number.
fn make(calls: &[Prepared], streams: &[u32]) -> Result<(), Status> {
    let Some(link) = communication() else { return Err(INVALID_VALUE) };
    // The streams' earlier arrivals are fetched, as they are the input. A call does not wait for arrivals at other
    // addresses, because these may depend on other calls of the program.
    let is_told_where =
        calls.iter().any(|prepared| prepared.kernel.as_ref().is_some_and(|kernel| kernel.input.is_some()));
    let touched: Vec<(usize, u64)> =
        calls.iter().filter(|prepared| prepared.call.has_values != 0).flat_map(places).collect();
    for stream in streams {
        if is_told_where { arrivals::settle_stream(*stream) } else { arrivals::settle_places(*stream, &touched) }
    }
    let mut begun = BTreeSet::new();
    for (Prepared { mut call, output, finish, factor, own, kernel: carrier }, stream) in to_others(calls, streams) {
        if let Some((at, offset)) = carrier.as_ref().and_then(|carrier| carrier.input) {
            call.input = tensor_at(at, call.has_values != 0)? + offset;
        }
        // Without values there may be nothing where it comes from.
        if let Some(own) = own.filter(|_| call.has_values != 0) {
            let _ = own.carry_out();
        }
        let scaled = factor.map(|factor| scaled(link, &call, factor));
        if let Some(input) = &scaled {
            call.input = input.as_ptr() as usize;
        }
        call.stream = stream;
        call.first = u32::from(begun.insert(stream));
        let handle = cupti::call(cupti::Domain::Runtime, "cudaLaunchKernelExC", || {
            let of_nccl = || kernel(&call, finish);
            let name = carrier.as_ref().map_or_else(of_nccl, |carrier| carrier.name.text().to_owned());
            call.number = cupti::communicates(&name, streams::place(stream)).unwrap_or(0);
            // SAFETY: what the call names is there.
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
    [(call.input, call.input_bytes), *output]
}

/// An address that is in memory of a device.
pub(crate) fn address_at(at: usize) -> Result<usize, Status> {
    let mut bytes = [0; size_of::<usize>()];
    memory::copy(bytes.as_mut_ptr() as usize, at, bytes.len())?;
    Ok(usize::from_ne_bytes(bytes))
}

/// Where a tensor lies whose address is in memory of a device.
fn tensor_at(at: usize, is_read: bool) -> Result<usize, Status> {
    let tensor = address_at(at)?;
    let is_there = matches!(memory::place(tensor), memory::Place::Device { .. });
    if is_there || !is_read { Ok(tensor) } else { Err(ILLEGAL_ADDRESS) }
}

/// What profiles call an operation: as NCCL calls its kernels, without the algorithm and the protocol, which are the engine's choice.
fn kernel(call: &Call, finish: Finish) -> String {
    const REDUCTIONS: [&str; 4] = ["Sum", "Prod", "Max", "Min"];
    const TYPES: [&str; 12] = ["i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"];
    let is = |operation: Operation| call.operation == operation as u32;
    let name = match () {
        () if is(Operation::AllReduce) => "AllReduce",
        () if is(Operation::Reduce) => "Reduce",
        () if is(Operation::ReduceScatter) => "ReduceScatter",
        () if is(Operation::Broadcast) => return "ncclDevKernel_Broadcast".to_owned(),
        () if is(Operation::AllGather) => return "ncclDevKernel_AllGather".to_owned(),
        // All others are messages.
        () => return "ncclDevKernel_SendRecv".to_owned(),
    };
    let reduction = if finish.divide.is_some() { "SumPostDiv" } else { REDUCTIONS[call.reduction as usize] };
    format!("ncclDevKernel_{name}_{reduction}_{}", TYPES[call.dtype as usize])
}

/// Without messages of ranks to themselves, which are moved: the n-th that is sent to the n-th that is received. Each with its stream.
fn to_others(calls: &[Prepared], streams: &[u32]) -> Vec<(Prepared, u32)> {
    let own = |(prepared, _): &(Prepared, u32), operation: Operation| {
        prepared.call.operation == operation as u32 && prepared.call.peer == prepared.call.me
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
                let _ = memory::copy(to, call.input, call.input_bytes.min(room) as usize);
            }
        }
    }
    rest
}

/// A call's input, each element times a factor.
fn scaled(link: &Communication, call: &Call, factor: f64) -> Vec<u8> {
    let mut copy = vec![0; call.input_bytes as usize];
    let _ = memory::copy(copy.as_mut_ptr() as usize, call.input, copy.len());
    (link.scale)(call.dtype, copy.as_mut_ptr() as usize, copy.len() as u64, factor);
    copy
}
