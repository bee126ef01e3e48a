//! Owns kernels that communicate by themselves, through memory of other GPUs that their process has opened: which those are, by name, and the calls
//! that their launches are. The engine carries them out as it does NCCL's.
//!
//! They are the kernels of vLLM's and SGLang's custom all-reduce, and those of PyTorch's symmetric memory. Source of what their arguments are:
//! vllm-project/vllm, `csrc/custom_all_reduce.cuh`; pytorch/pytorch, `torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu` and
//! `CUDASymmetricMemory.cu`; and the names of the kernels, which have the types.

use crate::attach::communication;
use crate::calls::{
    self, Carrier, Finish, Pending, Prepared, REDUCTIONS, Refused, address_at, moves_values, of_world, scalar_type,
};
use crate::device;
use crate::errors::Status;
use crate::launches::{Moved, Name};
use crate::memory::{self, MemHandle};
use crate::streams::Handle;
use crate::unimplemented::warn;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use uniference_abi::calls::{Call, Memory, Operation};
use uniference_abi::gpus::Communication;

/// Bytes that a thread of these kernels moves at once.
const PACK: u64 = 16;

/// `ncclUint32`, `ncclFloat16`, `ncclFloat32`, `ncclBfloat16`.
const UINT32: c_int = 3;
const HALF: c_int = 6;
const FLOAT: c_int = 7;
const BFLOAT16: c_int = 9;

/// What the members of a barrier have and get: what comes behind it waits for that.
static NOTHING: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// What a kernel does, as its name says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    operation: Operation,
    /// As [`Call::kernel`] counts them.
    shots: u32,
    /// `ncclDataType_t`.
    dtype: c_int,
    called: Called,
}

/// How a kernel is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    /// `cross_device_reduce_1stage` and the like, with so many members: the addresses of all members' tensors, in memory of the GPU; a structure with
    /// those of all members' flags; the own flags; where the result goes; the member's number; and how many times 16 bytes.
    Custom { members: usize },
    /// `one_shot_all_reduce_kernel`: the addresses of all members' buffers; where the result goes; what is copied into the own buffer first, or null;
    /// where in the buffers it lies, in elements; how many there are; the addresses of all members' flags; the member's number; how many there are.
    OneShot,
    /// `two_shot_all_reduce_kernel`: the same without the copy, and the size of the last dimension.
    TwoShot,
    /// `two_shot_all_reduce_kernel_inplace`: the same without the result.
    InPlace,
    /// `barrier_kernel`: the addresses of all members' flags; a channel; the member's number; how many there are.
    Barrier,
    /// It waits for flags, and nobody knows which.
    Unknown,
}

/// What a launch communicates.
struct Launch {
    /// Of all members.
    flags: Vec<usize>,
    me: usize,
    /// Where the input is: see [`Carrier::input`].
    input: Option<(usize, usize)>,
    /// The same, where it is known.
    given: usize,
    output: usize,
    /// Bytes that a member receives; of an all-gather from each other one.
    bytes: u64,
    /// What comes first.
    own: Option<Moved>,
}

/// Names an allocation for other processes, with the rank on whose GPU it is.
pub(crate) fn export(at: usize) -> Result<MemHandle, Status> {
    let rank = |device: usize| communication().map_or(u32::MAX, |link| (link.rank)(device::number(device) as u32));
    memory::export(at, rank)
}

/// A descriptor by which other processes can map memory that was created for it.
pub(crate) fn descriptor(handle: u64) -> Result<c_int, Status> {
    let device = memory::physical_device(handle)?;
    let rank = communication().map_or(u32::MAX, |link| (link.rank)(device::number(device) as u32));
    memory::descriptor(handle, rank)
}

impl Peers {
    /// Of a kernel's name as C++ mangles it. `None`: another kernel.
    pub(crate) fn of(name: &str) -> Option<Peers> {
        Peers::custom(name).or_else(|| Peers::symmetric(name))
    }

    /// `_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li2EEEv...`.
    fn custom(name: &str) -> Option<Peers> {
        const KERNELS: [(&str, Operation, u32); 4] = [
            ("cross_device_reduce_1stageI", Operation::AllReduce, 1),
            ("cross_device_reduce_2stageI", Operation::AllReduce, 2),
            ("cross_device_reduce_scatterI", Operation::ReduceScatter, 1),
            ("cross_device_all_gatherI", Operation::AllGather, 1),
        ];
        // An all-gather has no type, and moves bytes, of which we count two as an element.
        const TYPES: [(&str, c_int); 4] = [("6__half", HALF), ("f", FLOAT), ("13__nv_bfloat16", BFLOAT16), ("", HALF)];
        let (operation, shots, rest) = KERNELS
            .iter()
            .find_map(|(kernel, operation, shots)| Some((*operation, *shots, name.split_once(kernel)?.1)))?;
        let (dtype, rest) = typed(rest, &TYPES)?;
        let (members, rest) = rest.strip_prefix("Li")?.split_once("EEEv")?;
        rest.contains("RankSignals").then_some(())?;
        // The structure of the flags has room for eight members, or more.
        let members = members.parse().ok().filter(|members| (2..=8).contains(members))?;
        Some(Peers { operation, shots, dtype, called: Called::Custom { members } })
    }

    /// `_ZN..._CUDASymmetricMemoryOps_cu_...26one_shot_all_reduce_kernelIN3c108BFloat16ELi16ELi2EEEvPPT_S4_S4_mmPPjmm`, and
    /// `_ZN4c10d16symmetric_memory14barrier_kernelEPPjiiim`. The numbers of a reduction are of bytes, of members (or -1), and of the two-shot kernel whether
    /// members keep their parts alone, and whether these are columns.
    fn symmetric(name: &str) -> Option<Peers> {
        const TYPES: [(&str, c_int); 2] = [("f", FLOAT), ("N3c108BFloat16E", BFLOAT16)];
        const KERNELS: [(&str, Called, u32); 3] = [
            ("one_shot_all_reduce_kernelI", Called::OneShot, 1),
            ("two_shot_all_reduce_kernelI", Called::TwoShot, 2),
            ("two_shot_all_reduce_kernel_inplaceI", Called::InPlace, 2),
        ];
        let unknown = Peers { operation: Operation::AllReduce, shots: 1, dtype: UINT32, called: Called::Unknown };
        if let Some((_, kernel)) = name.split_once("16symmetric_memory") {
            return match () {
                () if kernel.contains("14barrier_kernelEPPjiiim") => Some(Peers { called: Called::Barrier, ..unknown }),
                () if kernel.contains("barrier_kernel") || kernel.contains("signal_kernel") => Some(unknown),
                () => None,
            };
        }
        let (_, kernel) = name.split_once("_CUDASymmetricMemoryOps_cu_")?;
        let found =
            KERNELS.iter().find_map(|(text, called, shots)| Some((*called, *shots, kernel.split_once(text)?.1)));
        let known = found.and_then(|(called, shots, rest)| {
            let (dtype, rest) = typed(rest, &TYPES)?;
            let (numbers, arguments) = rest.split_once("EEEv")?;
            let (operation, shots) = match called {
                Called::TwoShot if numbers.ends_with("ELb0ELb0") => (Operation::AllReduce, shots),
                Called::TwoShot if numbers.ends_with("ELb1ELb0") => (Operation::ReduceScatter, 1),
                Called::TwoShot => return None,
                _ => (Operation::AllReduce, shots),
            };
            let expected = match called {
                Called::OneShot => "mmPPjmm",
                Called::TwoShot => "_mmPPjmmm",
                _ => "PPT_mmPPjmm",
            };
            arguments.ends_with(expected).then_some(Peers { operation, shots, dtype, called })
        });
        known.or_else(|| kernel.contains("_kernel").then_some(unknown))
    }

    /// Has such a kernel start on a stream. `None`: it is not called as we know it, or there is nobody to communicate with.
    ///
    /// # Safety
    /// The arguments are those of the kernel.
    pub(crate) unsafe fn launch(
        self,
        name: &Arc<Name>,
        arguments: *const *const c_void,
        stream: Handle,
    ) -> Option<Result<(), Status>> {
        let link = communication()?;
        // SAFETY: the caller's.
        let launch = (!arguments.is_null()).then(|| unsafe { self.read(arguments) }).flatten();
        let group = launch.as_ref().and_then(|launch| group(link, &launch.flags, launch.me));
        let (Some(Launch { flags, me, input, given, output, bytes, own }), Some(group)) = (launch, group) else {
            warn(&format!(
                "a kernel that communicates is taken for one that computes: {}, called in a way that is not known, or through memory that its processes do not share",
                name.text()
            ));
            return None;
        };
        let members = flags.len() as u64;
        let call = self.call(link, group, members, (given, bytes));
        let received = if self.operation == Operation::AllGather { bytes * members } else { bytes };
        let prepared = Prepared {
            call,
            me,
            output: (output, received),
            finish: Finish { dtype: scalar_type(self.dtype), divide: None },
            factor: None,
            own,
            kernel: Some(Carrier { name: Arc::clone(name), input }),
        };
        let issued = calls::issue(vec![Pending { call: prepared, stream, device: device::current() }]);
        Some(issued.map_err(|refused| match refused {
            Refused::Captured(status) | Refused::Called(status) => status,
        }))
    }

    /// What a launch says.
    ///
    /// # Safety
    /// The arguments are those of the kernel.
    unsafe fn read(self, arguments: *const *const c_void) -> Option<Launch> {
        // SAFETY: the caller's; the types are those of [`Called`].
        let address = |number: usize| unsafe { *(*arguments.add(number)).cast::<usize>() };
        // SAFETY: the same.
        let number = |place: usize| unsafe { *(*arguments.add(place)).cast::<c_int>() };
        let none = Launch { flags: Vec::new(), me: 0, input: None, given: 0, output: 0, bytes: 0, own: None };
        let launch = match self.called {
            Called::Custom { members } => {
                let me = usize::try_from(number(4)).ok()?;
                // SAFETY: the structure has room for as many.
                let flags =
                    unsafe { std::slice::from_raw_parts((*arguments.add(1)).cast::<usize>(), members) }.to_vec();
                let input = Some((address(0) + me * size_of::<usize>(), 0));
                Launch { flags, me, input, output: address(3), bytes: u64::try_from(number(5)).ok()? * PACK, ..none }
            }
            Called::OneShot | Called::TwoShot | Called::InPlace => {
                let first = match self.called {
                    Called::OneShot => 3,
                    Called::TwoShot => 2,
                    _ => 1,
                };
                let [offset, count, flags, me, members] = [0, 1, 2, 3, 4].map(|place| address(first + place));
                let size = self.size() as usize;
                let (offset, bytes, pointer) = (offset * size, count * size, address(0) + me * size_of::<usize>());
                let buffer = address_at(pointer).ok()? + offset;
                let output = if self.called == Called::InPlace { buffer } else { address(1) };
                let copied = (self.called == Called::OneShot).then(|| address(2)).filter(|from| *from != 0);
                let own = copied.map(|from| Moved::line(buffer, from, bytes));
                let parts = if self.operation == Operation::ReduceScatter { members.max(1) } else { 1 };
                let (flags, bytes) = (addresses(flags, members)?, (bytes / parts) as u64);
                Launch { flags, me, input: Some((pointer, offset)), output, bytes, own, ..none }
            }
            Called::Barrier => {
                let [me, members] = [2, 3].map(|place| usize::try_from(number(place)));
                let [given, output] = [&NOTHING[0], &NOTHING[1]].map(|at| at.as_ptr() as usize);
                Launch {
                    flags: addresses(address(0), members.ok()?)?,
                    me: me.ok()?,
                    given,
                    output,
                    bytes: self.size(),
                    ..none
                }
            }
            Called::Unknown => return None,
        };
        (launch.me < launch.flags.len()).then_some(launch)
    }

    /// Bytes of an element.
    fn size(self) -> u64 {
        if matches!(self.dtype, FLOAT | UINT32) { 4 } else { 2 }
    }

    fn call(self, link: &Communication, group: u32, members: u64, (input, bytes): (usize, u64)) -> Call {
        let elements = bytes / self.size();
        let sent = if self.operation == Operation::ReduceScatter { bytes * members } else { bytes };
        let dtype = scalar_type(self.dtype);
        Call {
            dtype,
            reduction: REDUCTIONS[0],
            has_values: moves_values(link, elements, dtype).into(),
            kernel: self.shots,
            elements,
            input: Memory { address: input, bytes: sent as usize },
            ..Call::new(self.operation, group)
        }
    }
}

/// The type that a name goes on with, and what follows.
fn typed<'a>(name: &'a str, types: &[(&str, c_int)]) -> Option<(c_int, &'a str)> {
    types.iter().find_map(|(text, dtype)| Some((*dtype, name.strip_prefix(text)?)))
}

/// Addresses of all members, that are in memory of a device.
fn addresses(at: usize, members: usize) -> Option<Vec<usize>> {
    // More GPUs do not see each other's memory.
    (members <= 1024).then_some(())?;
    (0..members).map(|member| address_at(at + member * size_of::<usize>()).ok()).collect()
}

/// The group of the ranks whose flags these are, which is named when the first of their kernels starts.
fn group(link: &Communication, flags: &[usize], me: usize) -> Option<u32> {
    static GROUPS: Mutex<BTreeMap<Vec<u32>, u32>> = Mutex::new(BTreeMap::new());
    let rank = |(member, at): (usize, &usize)| if member == me { Some(of_world(link)) } else { memory::rank_of(*at) };
    let ranks = flags.iter().enumerate().map(rank).collect::<Option<Vec<u32>>>()?;
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(group) = groups.get(&ranks) {
        return Some(*group);
    }
    // SAFETY: the ranks are there during the call.
    let group = unsafe { (link.group)(ranks.as_ptr(), ranks.len(), std::ptr::null()) };
    (group != Communication::REFUSED).then(|| *groups.entry(ranks).or_insert(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_known_by_what_c_plus_plus_calls_them() {
        const ARGUMENTS: &str = "EvPNS_8RankDataENS_11RankSignalsEPNS_6SignalEPT_ii";
        let of = |kernel: &str| Peers::of(&format!("_ZN4vllm{kernel}E{ARGUMENTS}"));
        let known = |operation, shots, dtype, members| {
            Some(Peers { operation, shots, dtype, called: Called::Custom { members } })
        };
        let cases = [
            ("26cross_device_reduce_1stageI13__nv_bfloat16Li2E", known(Operation::AllReduce, 1, 9, 2)),
            ("26cross_device_reduce_2stageI6__halfLi8E", known(Operation::AllReduce, 2, 6, 8)),
            ("26cross_device_reduce_1stageIfLi4E", known(Operation::AllReduce, 1, 7, 4)),
            ("27cross_device_reduce_scatterIfLi6E", known(Operation::ReduceScatter, 1, 7, 6)),
            ("23cross_device_all_gatherILi8E", known(Operation::AllGather, 1, 6, 8)),
            ("23cross_device_all_gatherILi16E", None),
            ("26cross_device_reduce_3stageIfLi4E", None),
            ("26cross_device_reduce_1stageIdLi4E", None),
        ];
        for (kernel, expected) in cases {
            assert_eq!(of(kernel), expected, "{kernel}");
        }
        assert_eq!(Peers::of("_ZN4vllm26cross_device_reduce_1stageIfLi4EEEvPf"), None);
    }

    /// Names of PyTorch 2.14 and 2.15.
    #[test]
    fn kernels_of_symmetric_memory_are_known() {
        let of = |kernel: &str| {
            Peers::of(&format!("_ZN64_GLOBAL__N__4bfe95cf_25_CUDASymmetricMemoryOps_cu_d32bfcb6_38916{kernel}"))
        };
        let known = |operation, shots, dtype, called| Some(Peers { operation, shots, dtype, called });
        let unknown = known(Operation::AllReduce, 1, UINT32, Called::Unknown);
        let (all, parts) = (Operation::AllReduce, Operation::ReduceScatter);
        let cases = [
            (
                "26one_shot_all_reduce_kernelIN3c108BFloat16ELi16ELi2EEEvPPT_S4_S4_mmPPjmm",
                known(all, 1, 9, Called::OneShot),
            ),
            ("26one_shot_all_reduce_kernelIfLi4ELin1EEEvPPT_S2_S2_mmPPjmm", known(all, 1, 7, Called::OneShot)),
            ("26one_shot_all_reduce_kernelIfLi4ELin1EEEvPPT_S2_mmPPj", unknown),
            ("26two_shot_all_reduce_kernelIfLi16ELi2ELb0ELb0EEEvPPT_S2_mmPPjmmm", known(all, 2, 7, Called::TwoShot)),
            ("26two_shot_all_reduce_kernelIfLi16ELi2ELb1ELb0EEEvPPT_S2_mmPPjmmm", known(parts, 1, 7, Called::TwoShot)),
            ("26two_shot_all_reduce_kernelIfLi16ELi2ELb1ELb1EEEvPPT_S2_mmPPjmmm", unknown),
            (
                "34two_shot_all_reduce_kernel_inplaceIN3c108BFloat16ELi16ELi4EEEvPPT_mmPPjmm",
                known(all, 2, 9, Called::InPlace),
            ),
            ("26multimem_all_reduce_kernelIfLi16EEEvPT_mPPjmm", unknown),
            ("19one_shot_all_reduceERKN2at6TensorE", None),
        ];
        for (kernel, expected) in cases {
            assert_eq!(of(kernel), expected, "{kernel}");
        }
        let of = |kernel: &str| Peers::of(&format!("_ZN4c10d16symmetric_memory{kernel}"));
        assert_eq!(of("14barrier_kernelEPPjiiim"), known(all, 1, UINT32, Called::Barrier));
        assert_eq!(of("17put_signal_kernelEPPjiiiim"), unknown);
        assert_eq!(of("23multimem_barrier_kernelEPjS1_iiim"), unknown);
    }
}
