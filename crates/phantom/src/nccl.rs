//! Owns NCCL: communicators, and collectives and messages on streams. `nccl.h` of NCCL 2.30 has the prototypes.
//!
//! The engine carries the operations out in virtual time. With values, an operation reads its input when the call is
//! made, and its output is written before the program reads results of the stream ([`crate::arrivals`]).

mod buffers;
mod configuration;

use crate::attach::communication;
use crate::calls::{self, Finish, Pending, Prepared, Refused, moves_values, of_world, scalar_type};
use crate::exports::{Items, Out, Put, exports};
use crate::launches::Moved;
use crate::streams::Handle;
use crate::unimplemented::warn;
use crate::{arrivals, device, streams};
use buffers::Buffers;
use configuration::{Configuration, read};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use uniference_abi::calls::{Call, Memory, Operation};
use uniference_abi::gpus::Communication;
use uniference_protocol::settings;

/// `ncclResult_t`.
type Status = c_int;
pub(crate) const SUCCESS: Status = 0;
const UNHANDLED_CUDA_ERROR: Status = 1;
const INVALID_ARGUMENT: Status = 4;
const INVALID_USAGE: Status = 5;
const REMOTE_ERROR: Status = 6;

/// NCCL 2.30.7, the version of the package from which the name table was made.
const VERSION: c_int = 23_007;

/// Whether an allocation of communicator buffers has failed.
static LACKS_MEMORY: AtomicBool = AtomicBool::new(false);

/// `NCCL_SPLIT_NOCOLOR`: the rank joins none of the new communicators.
const NO_COLOR: c_int = -1;

/// `NCCL_SHRINK_ABORT`: outstanding operations of the parent are aborted first.
const SHRINK_ABORT: c_int = 1;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// In a folded run: the members of the next split communicator, as ranks of the world, and the ranks that run.
struct Expected {
    ranks: Vec<u32>,
    running: Vec<u32>,
}

thread_local! {
    static EXPECTED: RefCell<Option<Rc<Expected>>> = const { RefCell::new(None) };
}

exports! {
    /// Sets the ranks of the communicators that this thread splits off from now on, and the ranks that run among their
    /// parents' members. With null, NCCL's rule applies: the members are known when all ranks have called the split.
    /// `python/uniference/rank/rehearsal.py` knows the program's groups.
    fn uniference_phantom_expect(ranks: Items<u32>, count: usize, running: Items<u32>, running_count: usize) {
        let expected = Expected { ranks: ranks.read(count).to_vec(), running: running.read(running_count).to_vec() };
        EXPECTED.set((!ranks.is_null()).then(|| Rc::new(expected)));
    }
}

fn expected() -> Option<Rc<Expected>> {
    EXPECTED.with_borrow(Clone::clone)
}

/// The object that `ncclComm_t` points to.
pub(crate) struct Communicator {
    /// Name by which the members find each other.
    name: String,
    /// Members in the communicator's order.
    members: Vec<Member>,
    me: usize,
    group: u32,
    device: usize,
    /// Number of times that the communicator was split or shrunk.
    splits: Cell<u32>,
    /// Factors of the reductions that the program created, by their number minus [`MADE`].
    factors: RefCell<Vec<f64>>,
    buffers: Buffers,
    configuration: Configuration,
}

#[derive(Clone, Copy)]
struct Member {
    /// Rank in the world.
    rank: u32,
    host: [u8; 4],
}

/// Number of the first reduction that a program creates: `ncclNumOps`.
const MADE: c_int = 5;

/// A communicator argument; `None`: a null pointer.
type Of<'a> = Option<&'a Communicator>;

thread_local! {
    /// The thread's nesting depth of NCCL groups, and the calls of the outermost group.
    static GROUP: RefCell<(u32, Vec<Pending>)> = const { RefCell::new((0, Vec::new())) };
}

exports! {
    fn ncclGetVersion(version: Out<c_int>) -> Status { wrote(version.put(VERSION)) }
    fn ncclGetErrorString(status: Status) -> *const c_char { describe(status).as_ptr() }
    fn ncclGetLastError(_communicator: Of) -> *const c_char {
        if LACKS_MEMORY.load(Relaxed) { c"Cuda failure 2 'out of memory', for the buffers of connections".as_ptr() } else { c"".as_ptr() }
    }

    fn ncclGetUniqueId(id: Out<UniqueId>) -> Status {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(link) = communication() else { return INVALID_USAGE };
        let mut bytes = [0; 128];
        bytes[..8].copy_from_slice(b"uniferen");
        bytes[8..12].copy_from_slice(&of_world(link).to_le_bytes());
        bytes[12..20].copy_from_slice(&NEXT.fetch_add(1, Relaxed).to_le_bytes());
        wrote(id.put(UniqueId(bytes)))
    }
    fn ncclCommInitRank(to: Out<*mut Communicator>, size: c_int, id: UniqueId, rank: c_int) -> Status {
        meet(to, &name_of(&[id]), size, rank, Vec::new())
    }
    fn ncclCommInitRankConfig(to: Out<*mut Communicator>, size: c_int, id: UniqueId, rank: c_int, config: *const c_void) -> Status {
        meet(to, &name_of(&[id]), size, rank, read(config))
    }
    fn ncclCommInitRankScalable(to: Out<*mut Communicator>, size: c_int, rank: c_int, count: c_int, ids: *const UniqueId, config: *const c_void) -> Status {
        if ids.is_null() || count < 1 {
            return INVALID_ARGUMENT;
        }
        // SAFETY: NCCL requires that the program passes `count` identifiers.
        let ids = unsafe { std::slice::from_raw_parts(ids, count as usize) };
        meet(to, &name_of(ids), size, rank, read(config))
    }
    fn ncclCommSplit(communicator: Of, color: c_int, key: c_int, to: Out<*mut Communicator>, config: *const c_void) -> Status {
        let Some(communicator) = communicator else { return INVALID_ARGUMENT };
        communicator.split(color, key, to, config)
    }
    fn ncclCommFinalize(_communicator: Of) -> Status { SUCCESS }
    fn ncclCommDestroy(communicator: *mut Communicator) -> Status { Communicator::close(communicator) }
    fn ncclCommAbort(communicator: *mut Communicator) -> Status {
        // SAFETY: the program passes null or a communicator from `join`.
        if let Some(communicator) = unsafe { communicator.as_ref() } {
            arrivals::abort(communicator.group);
        }
        Communicator::close(communicator)
    }
    fn ncclCommRevoke(communicator: Of, flags: c_int) -> Status {
        let Some(communicator) = communicator.filter(|_| flags == 0) else { return INVALID_ARGUMENT };
        arrivals::abort(communicator.group);
        SUCCESS
    }
    fn ncclCommShrink(communicator: Of, excluded: Items<c_int>, count: c_int, to: Out<*mut Communicator>, config: *const c_void, flags: c_int) -> Status {
        let (Some(communicator), Ok(count)) = (communicator, usize::try_from(count)) else { return INVALID_ARGUMENT };
        if flags & SHRINK_ABORT != 0 {
            arrivals::abort(communicator.group);
        }
        communicator.shrink(excluded.read(count), to, config)
    }
    fn ncclCommGetAsyncError(communicator: Of, status: Out<Status>) -> Status {
        let Some(communicator) = communicator else { return INVALID_ARGUMENT };
        let failed = communication().is_some_and(|link| (link.has_failed)(communicator.group) != 0);
        wrote(status.put(if failed { REMOTE_ERROR } else { SUCCESS }))
    }
    fn ncclCommCount(communicator: Of, count: Out<c_int>) -> Status {
        communicator.map_or(INVALID_ARGUMENT, |known| wrote(count.put(known.members.len() as c_int)))
    }
    fn ncclCommCuDevice(communicator: Of, device: Out<c_int>) -> Status {
        communicator.map_or(INVALID_ARGUMENT, |known| wrote(device.put(known.device as c_int)))
    }
    fn ncclCommUserRank(communicator: Of, rank: Out<c_int>) -> Status {
        communicator.map_or(INVALID_ARGUMENT, |known| wrote(rank.put(known.me as c_int)))
    }
    /// Registered buffers need no handle; `ncclCommDeregister` accepts the null handle.
    fn ncclCommRegister(communicator: Of, _buffer: *const c_void, _size: usize, handle: Out<*const c_void>) -> Status {
        if communicator.is_none() {
            return INVALID_ARGUMENT;
        }
        wrote(handle.put(std::ptr::null()))
    }
    fn ncclCommDeregister(_communicator: Of, _handle: *const c_void) -> Status { SUCCESS }

    fn ncclRedOpCreatePreMulSum(op: Out<c_int>, scalar: *const c_void, dtype: c_int, residence: c_int, communicator: Of) -> Status {
        let Some(communicator) = communicator else { return INVALID_ARGUMENT };
        if residence == 0 {
            // `ncclScalarDevice`: NCCL reads the factor when the reduction runs.
            warn("NCCL: factors of reductions are read when they are made, also from memory of the GPU");
        }
        // SAFETY: NCCL requires that `scalar` points to an element of this type; memory of simulated devices is mapped
        // in this process.
        let Some(factor) = (unsafe { element(scalar, dtype) }) else { return INVALID_ARGUMENT };
        let mut factors = communicator.factors.borrow_mut();
        factors.push(factor);
        wrote(op.put(MADE + factors.len() as c_int - 1))
    }
    fn ncclRedOpDestroy(_op: c_int, communicator: Of) -> Status { if communicator.is_some() { SUCCESS } else { INVALID_ARGUMENT } }

    fn ncclGroupStart() -> Status { GROUP.with_borrow_mut(|(depth, _)| *depth += 1); SUCCESS }
    fn ncclGroupEnd() -> Status {
        let calls = GROUP.with_borrow_mut(|(depth, calls)| {
            if *depth == 0 {
                return None;
            }
            *depth -= 1;
            Some(if *depth == 0 { std::mem::take(calls) } else { Vec::new() })
        });
        calls.map_or(INVALID_USAGE, hand_over)
    }

    fn ncclAllReduce(from: usize, to: usize, count: usize, dtype: c_int, op: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::AllReduce, from, to, count, dtype, op: Some(op), peer: None, parts: [1, 1] }.add(communicator, stream)
    }
    fn ncclReduce(from: usize, to: usize, count: usize, dtype: c_int, op: c_int, root: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::Reduce, from, to, count, dtype, op: Some(op), peer: Some(root), parts: [1, 1] }.add(communicator, stream)
    }
    fn ncclBroadcast(from: usize, to: usize, count: usize, dtype: c_int, root: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::Broadcast, from, to, count, dtype, op: None, peer: Some(root), parts: [1, 1] }.add(communicator, stream)
    }
    fn ncclBcast(buffer: usize, count: usize, dtype: c_int, root: c_int, communicator: Of, stream: Handle) -> Status {
        ncclBroadcast(buffer, buffer, count, dtype, root, communicator, stream)
    }
    fn ncclAllGather(from: usize, to: usize, count: usize, dtype: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::AllGather, from, to, count, dtype, op: None, peer: None, parts: [1, 0] }.add(communicator, stream)
    }
    fn ncclReduceScatter(from: usize, to: usize, count: usize, dtype: c_int, op: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::ReduceScatter, from, to, count, dtype, op: Some(op), peer: None, parts: [0, 1] }.add(communicator, stream)
    }
    fn ncclAlltoAll(from: usize, to: usize, count: usize, dtype: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::AllToAll, from, to, count, dtype, op: None, peer: None, parts: [0, 0] }.add(communicator, stream)
    }
    fn ncclGather(from: usize, to: usize, count: usize, dtype: c_int, root: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::Gather, from, to, count, dtype, op: None, peer: Some(root), parts: [1, 0] }.add(communicator, stream)
    }
    fn ncclScatter(from: usize, to: usize, count: usize, dtype: c_int, root: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::Scatter, from, to, count, dtype, op: None, peer: Some(root), parts: [0, 1] }.add(communicator, stream)
    }
    fn ncclSend(from: usize, count: usize, dtype: c_int, peer: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::Send, from, to: 0, count, dtype, op: None, peer: Some(peer), parts: [1, 1] }.add(communicator, stream)
    }
    fn ncclRecv(to: usize, count: usize, dtype: c_int, peer: c_int, communicator: Of, stream: Handle) -> Status {
        Asked { operation: Operation::Recv, from: 0, to, count, dtype, op: None, peer: Some(peer), parts: [1, 1] }.add(communicator, stream)
    }
}

/// Arguments of a call.
struct Asked {
    operation: Operation,
    from: usize,
    to: usize,
    count: usize,
    dtype: c_int,
    op: Option<c_int>,
    peer: Option<c_int>,
    /// Multiples of `count` elements that are sent and received; 0: `count` elements per member.
    parts: [usize; 2],
}

impl Asked {
    fn add(self, communicator: Of, stream: Handle) -> Status {
        let (Some(communicator), Some(link)) = (communicator, communication()) else { return INVALID_ARGUMENT };
        let Some(size) = size_of(self.dtype) else { return INVALID_ARGUMENT };
        let members = communicator.members.len();
        if self.peer.is_some_and(|peer| peer < 0 || peer as usize >= members) {
            return INVALID_ARGUMENT;
        }
        let bytes = |parts: usize| (self.count * size * if parts == 0 { members } else { parts }) as u64;
        let is_root = self.peer == Some(communicator.me as c_int);
        use Operation::{
            AllGather, AllReduce, AllToAll, Broadcast, Gather, Recv, Reduce, ReduceScatter, Scatter, Send,
        };
        let (sends, receives) = match self.operation {
            AllReduce | AllGather | ReduceScatter | AllToAll => (true, true),
            Reduce | Gather => (true, is_root),
            Broadcast | Scatter => (is_root, self.operation == Scatter || !is_root),
            Send => (true, false),
            Recv => (false, true),
            Operation::Barrier => unreachable!("NCCL has no barrier"),
        };
        let (reduction, factor) = match self.op {
            None => (0, None),
            // Sum, product, maximum, minimum. An average is a sum that is divided afterwards; for floats, each input is
            // divided first (NCCL, `hostToDevRedOp`).
            Some(op @ 0..=3) => (op, None),
            Some(4) if is_float(self.dtype) => (0, Some(1.0 / members as f64)),
            Some(4) => (0, None),
            Some(op) => match communicator.factors.borrow().get((op - MADE) as usize) {
                Some(factor) => (0, Some(*factor)),
                None => return INVALID_ARGUMENT,
            },
        };
        if communicator.connect(self.operation, self.peer.map(|peer| peer as usize)).is_err() {
            LACKS_MEMORY.store(true, Relaxed);
            return UNHANDLED_CUDA_ERROR;
        }
        let dtype = scalar_type(self.dtype);
        let has_values = moves_values(link, self.count as u64, dtype);
        let input = Memory { address: self.from, bytes: bytes(self.parts[0]) as usize };
        let call = Call {
            dtype,
            reduction: calls::REDUCTIONS[reduction as usize],
            peer: self.peer.unwrap_or(-1),
            has_values: has_values.into(),
            elements: self.count as u64,
            input: if sends { input } else { Memory::default() },
            ..Call::new(self.operation, communicator.group)
        };
        let copies = has_values && self.operation == Broadcast && is_root && self.from != self.to;
        let own = copies.then(|| Moved::line(self.to, self.from, call.input.bytes));
        let output = if receives { (self.to, bytes(self.parts[1])) } else { (0, 0) };
        let finish = Finish { dtype, divide: (self.op == Some(4) && !is_float(self.dtype)).then_some(members as f64) };
        let call = Prepared {
            call,
            me: communicator.me,
            output,
            finish,
            factor: factor.filter(|_| has_values),
            own,
            kernel: None,
        };
        let pending = Pending { call, stream, device: communicator.device };
        let alone = GROUP.with_borrow_mut(|(depth, calls)| {
            if *depth > 0 {
                calls.push(pending);
                return None;
            }
            Some(pending)
        });
        alone.map_or(SUCCESS, |pending| hand_over(vec![pending]))
    }
}

fn hand_over(calls: Vec<Pending>) -> Status {
    let blocking = calls.iter().filter(|_| device::launches_block());
    let streams: BTreeSet<(usize, Handle)> = blocking.map(|call| (call.device, call.stream)).collect();
    match calls::issue(calls) {
        Ok(()) => {
            for (of, stream) in streams {
                // The calls were issued, so a stream that another thread has destroyed meanwhile is no error.
                let _ = device::on(of, || streams::wait_for_launch(stream));
            }
            SUCCESS
        }
        Err(Refused::Captured(_)) => INVALID_USAGE,
        Err(Refused::Called(_)) => INVALID_ARGUMENT,
    }
}

impl Communicator {
    fn split(&self, color: c_int, key: c_int, to: Out<*mut Communicator>, config: *const c_void) -> Status {
        let Some(link) = communication() else { return INVALID_USAGE };
        self.splits.set(self.splits.get() + 1);
        let name = format!("{}/{}", self.name, self.splits.get());
        let mut mine = color.to_le_bytes().to_vec();
        mine.extend(key.to_le_bytes());
        let expected = expected();
        // For members that do not run, the exchange returns this member's own values.
        let asked = |member: usize| match &expected {
            Some(expected) if !expected.running.contains(&self.members[member].rank) => self.me,
            _ => member,
        };
        let all = exchange(link, &name, self.me, (0..self.members.len()).map(asked), &mine);
        let number = |bytes: &[u8]| c_int::from_le_bytes(bytes.try_into().expect("four bytes"));
        if color == NO_COLOR {
            return wrote(to.put(std::ptr::null_mut()));
        }
        let place = |rank: &u32| self.members.iter().position(|member| member.rank == *rank);
        let members: Vec<usize> = match &expected {
            Some(expected) => expected.ranks.iter().filter_map(place).collect(),
            None => {
                let mut colored: Vec<usize> =
                    (0..all.len()).filter(|member| number(&all[*member][..4]) == color).collect();
                colored.sort_by_key(|member| number(&all[*member][4..8]));
                colored
            }
        };
        let Some(me) = members.iter().position(|member| *member == self.me) else { return INVALID_ARGUMENT };
        let members = members.into_iter().map(|member| self.members[member]).collect();
        join(to, link, format!("{name}/{color}"), members, me, self.inherited(config))
    }

    /// Creates a communicator of all members except the excluded ones. These members all call this function, so no
    /// exchange is needed.
    fn shrink(&self, excluded: &[c_int], to: Out<*mut Communicator>, config: *const c_void) -> Status {
        let Some(link) = communication() else { return INVALID_USAGE };
        let is_member = |number: &c_int| usize::try_from(*number).is_ok_and(|number| number < self.members.len());
        let stays = |member: usize| !excluded.contains(&(member as c_int));
        if excluded.is_empty() || !excluded.iter().all(is_member) || !stays(self.me) {
            return INVALID_ARGUMENT;
        }
        self.splits.set(self.splits.get() + 1);
        let staying: Vec<usize> = (0..self.members.len()).filter(|member| stays(*member)).collect();
        let me = staying.iter().position(|member| *member == self.me).expect("it stays");
        let members = staying.into_iter().map(|member| self.members[member]).collect();
        join(to, link, format!("{}/{}", self.name, self.splits.get()), members, me, self.inherited(config))
    }

    /// Configuration of a communicator that is made from this communicator: `config`, or this communicator's
    /// configuration if `config` is null.
    fn inherited(&self, config: *const c_void) -> Configuration {
        if config.is_null() { self.configuration.clone() } else { read(config) }
    }

    /// Allocates buffers of the connections that a call needs; some operations are messages between members. `peer` is
    /// the root, or the other side of a message.
    fn connect(&self, operation: Operation, peer: Option<usize>) -> Result<(), crate::errors::Status> {
        let on_host = |member: &usize| *member != self.me && self.members[*member].host == self.members[self.me].host;
        let others = || (0..self.members.len()).filter(on_host);
        let is_root = peer == Some(self.me);
        use Operation::{AllToAll, Gather, Recv, Scatter, Send};
        let (sends, receives): (Vec<usize>, Vec<usize>) = match operation {
            Send => (peer.into_iter().filter(on_host).collect(), Vec::new()),
            Recv => (Vec::new(), peer.into_iter().filter(on_host).collect()),
            AllToAll => (others().collect(), others().collect()),
            Gather if is_root => (Vec::new(), others().collect()),
            Scatter if is_root => (others().collect(), Vec::new()),
            Gather => (peer.into_iter().filter(on_host).collect(), Vec::new()),
            Scatter => (Vec::new(), peer.into_iter().filter(on_host).collect()),
            _ => return self.buffers.connect_all(operation == Operation::AllReduce),
        };
        self.buffers.connect_pairs(&sends, &receives)
    }

    fn close(communicator: *mut Communicator) -> Status {
        if communicator.is_null() {
            return INVALID_ARGUMENT;
        }
        // SAFETY: the pointer comes from `join`, and NCCL forbids programs to use a destroyed communicator.
        drop(unsafe { Box::from_raw(communicator) });
        SUCCESS
    }
}

/// Exchanges the members' ranks in the world, for a new communicator.
fn meet(to: Out<*mut Communicator>, name: &str, size: c_int, rank: c_int, configuration: Configuration) -> Status {
    let Some(link) = communication() else { return INVALID_USAGE };
    if size < 1 || !(0..size).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    let mut mine = of_world(link).to_le_bytes().to_vec();
    mine.extend(device::host());
    let word = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).expect("four bytes");
    let all = exchange(link, name, rank as usize, 0..size as usize, &mine);
    let members = all.iter().map(|said| Member { rank: u32::from_le_bytes(word(&said[..4])), host: word(&said[4..8]) });
    join(to, link, name.to_owned(), members.collect(), rank as usize, configuration)
}

fn join(
    to: Out<*mut Communicator>,
    link: &Communication,
    name: String,
    members: Vec<Member>,
    me: usize,
    configuration: Configuration,
) -> Status {
    let is_here = |member: &Member| member.host == members[me].host;
    let spans_servers = !members.iter().all(is_here);
    let said = match settings::of_communicator(&settings::environment(), &configuration, spans_servers) {
        Ok(said) => said,
        Err(refused) => {
            warn(&format!("NCCL refuses a communicator: {refused}"));
            return INVALID_ARGUMENT;
        }
    };
    if members.len() > 1 {
        said.warnings.iter().for_each(|text| warn(text));
    }
    let to_engine = said.settings.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let ranks: Vec<u32> = members.iter().map(|member| member.rank).collect();
    // SAFETY: `ranks` and the settings outlive the call.
    let group = unsafe { (link.group)(ranks.as_ptr(), ranks.len(), to_engine) };
    if group == Communication::REFUSED {
        return INVALID_USAGE;
    }
    let device = device::current();
    let (splits, factors) = (Cell::new(0), RefCell::new(Vec::new()));
    let settings = said.settings.unwrap_or_default();
    let is_linked = !spans_servers && settings.peer_access && device::all_are_linked();
    let buffers = Buffers::new(device, members.len(), is_linked, settings.channels);
    let communicator = Communicator { name, members, me, group, device, splits, factors, buffers, configuration };
    wrote(to.put(Box::into_raw(Box::new(communicator))))
}

/// Publishes this member's value and returns the values of `members`, by the ranks' key-value store.
fn exchange(
    link: &Communication,
    name: &str,
    me: usize,
    members: impl Iterator<Item = usize>,
    mine: &[u8],
) -> Vec<Vec<u8>> {
    let key = |member: usize| format!("uniference/nccl/{name}/{member}");
    let own = key(me);
    // SAFETY: pointers and lengths are those of the key and of `mine`, which outlive the call.
    unsafe { (link.publish)(own.as_ptr(), own.len(), mine.as_ptr(), mine.len()) };
    members
        .map(|member| {
            let (key, mut value) = (key(member), vec![0; mine.len()]);
            // SAFETY: key and value outlive the call; `value` has the passed length.
            unsafe { (link.look_up)(key.as_ptr(), key.len(), value.as_mut_ptr(), value.len()) };
            value
        })
        .collect()
}

fn name_of(ids: &[UniqueId]) -> String {
    static KNOWN: Mutex<BTreeMap<Vec<u8>, u32>> = Mutex::new(BTreeMap::new());
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.0[8..20].iter().copied()).collect();
    // An identifier can be reused once its communicator is destroyed.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let again = known.entry(bytes.clone()).and_modify(|count| *count += 1).or_insert(0);
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}.{again}")
}

/// Whether an `ncclDataType_t` is a floating-point type.
fn is_float(dtype: c_int) -> bool {
    dtype >= 6
}

/// Bytes per element of an `ncclDataType_t`.
fn size_of(dtype: c_int) -> Option<usize> {
    Some(match dtype {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

/// # Safety
/// `at` must point to an element of the type.
unsafe fn element(at: *const c_void, dtype: c_int) -> Option<f64> {
    let narrow = |bits: u16, exponent: u32| {
        let (fraction, sign) = (15 - exponent, if bits >> 15 == 0 { 1.0 } else { -1.0 });
        let field = i32::from((bits >> fraction) & ((1 << exponent) - 1));
        let mantissa = f64::from(bits & ((1 << fraction) - 1)) / f64::from(1_u32 << fraction);
        let bias = (1 << (exponent - 1)) - 1;
        sign * if field == 0 { mantissa * 2_f64.powi(1 - bias) } else { (1.0 + mantissa) * 2_f64.powi(field - bias) }
    };
    // SAFETY: `ncclRedOpCreatePreMulSum` passes a pointer to an element of this type.
    unsafe {
        Some(match dtype {
            6 => narrow(at.cast::<u16>().read_unaligned(), 5),
            7 => f64::from(at.cast::<f32>().read_unaligned()),
            8 => at.cast::<f64>().read_unaligned(),
            9 => narrow(at.cast::<u16>().read_unaligned(), 8),
            _ => return None,
        })
    }
}

fn wrote(done: bool) -> Status {
    if done { SUCCESS } else { INVALID_ARGUMENT }
}

/// NCCL's text of a status.
fn describe(status: Status) -> &'static CStr {
    match status {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"operation timed out",
        _ => c"unknown result code",
    }
}
