//! Owns kernels that communicate by themselves, through memory of other GPUs that their process has mapped: recognises
//! them by name and turns their launches into calls. The engine carries these calls out like NCCL operations.
//!
//! They are the custom all-reduce kernels of vLLM and SGLang, and PyTorch's symmetric memory kernels. Sources of their
//! arguments: vllm-project/vllm, `csrc/custom_all_reduce.cuh`; pytorch/pytorch,
//! `torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu` and `CUDASymmetricMemory.cu`; and the names of the
//! kernels, which contain the types.

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

/// Bytes that one thread of these kernels moves at once.
const PACK: u64 = 16;

/// `ncclUint32`, `ncclFloat16`, `ncclFloat32`, `ncclBfloat16`.
const UINT32: c_int = 3;
const HALF: c_int = 6;
const FLOAT: c_int = 7;
const BFLOAT16: c_int = 9;

/// Input and output of a barrier, which is an all-reduce of one element: later work waits for the output.
static NOTHING: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// Operation and arguments of a kernel, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    operation: Operation,
    /// Number of stages, as in [`Call::kernel`].
    shots: u32,
    /// `ncclDataType_t`.
    dtype: c_int,
    called: Called,
}

/// Parameters of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    /// `cross_device_reduce_1stage` and similar kernels for this number of members: device address of the addresses of
    /// all members' tensors; a structure with the addresses of all members' flags; this member's flags; output; this
    /// member's number; number of 16-byte packs.
    Custom { members: usize },
    /// `one_shot_all_reduce_kernel`: addresses of all members' buffers; output; source of a copy into this member's
    /// buffer, or null; offset in the buffers, in elements; number of elements; addresses of all members' flags; this
    /// member's number; number of members.
    OneShot,
    /// `two_shot_all_reduce_kernel`: as `OneShot` without the source, plus the size of the last dimension.
    TwoShot,
    /// `two_shot_all_reduce_kernel_inplace`: as `OneShot` without output and source.
    InPlace,
    /// `barrier_kernel`: addresses of all members' flags; channel; this member's number; number of members.
    Barrier,
    /// A kernel that waits for flags, with unknown parameters.
    Unknown,
}

/// Arguments of a launch.
struct Launch {
    /// Addresses of all members' flags.
    flags: Vec<usize>,
    me: usize,
    /// Location of the input's address: see [`Carrier::input`].
    input: Option<(usize, usize)>,
    /// Address of the input, if it is known.
    given: usize,
    output: usize,
    /// Bytes that a member receives; for an all-gather, bytes from each other member.
    bytes: u64,
    /// Copy into this member's buffer before the call.
    own: Option<Moved>,
}

/// Exports an allocation as an IPC handle, with the rank that owns its GPU.
pub(crate) fn export(at: usize) -> Result<MemHandle, Status> {
    let rank = |device: usize| communication().map_or(u32::MAX, |link| (link.rank)(device::number(device) as u32));
    memory::export(at, rank)
}

/// Exports shareable memory as a descriptor for other processes.
pub(crate) fn descriptor(handle: u64) -> Result<c_int, Status> {
    let device = memory::physical_device(handle)?;
    let rank = communication().map_or(u32::MAX, |link| (link.rank)(device::number(device) as u32));
    memory::descriptor(handle, rank)
}

impl Peers {
    /// Recognises a kernel by its mangled C++ name; `None`: another kernel.
    pub(crate) fn of(name: &str) -> Option<Peers> {
        Peers::custom(name).or_else(|| Peers::symmetric(name))
    }

    /// Recognises custom all-reduce kernels: `_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li2EEEv...`.
    fn custom(name: &str) -> Option<Peers> {
        const KERNELS: [(&str, Operation, u32); 4] = [
            ("cross_device_reduce_1stageI", Operation::AllReduce, 1),
            ("cross_device_reduce_2stageI", Operation::AllReduce, 2),
            ("cross_device_reduce_scatterI", Operation::ReduceScatter, 1),
            ("cross_device_all_gatherI", Operation::AllGather, 1),
        ];
        // An all-gather moves bytes without a type; two bytes count as one element.
        const TYPES: [(&str, c_int); 4] = [("6__half", HALF), ("f", FLOAT), ("13__nv_bfloat16", BFLOAT16), ("", HALF)];
        let (operation, shots, rest) = KERNELS
            .iter()
            .find_map(|(kernel, operation, shots)| Some((*operation, *shots, name.split_once(kernel)?.1)))?;
        let (dtype, rest) = typed(rest, &TYPES)?;
        let (members, rest) = rest.strip_prefix("Li")?.split_once("EEEv")?;
        rest.contains("RankSignals").then_some(())?;
        // The structure of flags has space for at least eight members.
        let members = members.parse().ok().filter(|members| (2..=8).contains(members))?;
        Some(Peers { operation, shots, dtype, called: Called::Custom { members } })
    }

    /// Recognises symmetric memory kernels:
    /// `_ZN..._CUDASymmetricMemoryOps_cu_...26one_shot_all_reduce_kernelIN3c108BFloat16ELi16ELi2EEEvPPT_S4_S4_mmPPjmm`,
    /// and `_ZN4c10d16symmetric_memory14barrier_kernelEPPjiiim`. The numbers of a reduction are bytes and members (or
    /// -1); for the two-shot kernel also whether each member keeps only its part, and whether the parts are columns.
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

    /// Launches such a kernel on a stream; `None`: its arguments are not as expected, or the rank has no peers.
    ///
    /// # Safety
    /// `arguments` must be the kernel's arguments.
    pub(crate) unsafe fn launch(
        self,
        name: &Arc<Name>,
        arguments: *const *const c_void,
        stream: Handle,
    ) -> Option<Result<(), Status>> {
        let link = communication()?;
        // SAFETY: `launch` requires that these are the kernel's arguments.
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

    /// Reads the arguments of a launch; `None` if they are not as expected.
    ///
    /// # Safety
    /// `arguments` must be the kernel's arguments.
    unsafe fn read(self, arguments: *const *const c_void) -> Option<Launch> {
        // SAFETY: `launch` passes the kernel's arguments, whose types are those of [`Called`].
        let address = |number: usize| unsafe { *(*arguments.add(number)).cast::<usize>() };
        // SAFETY: `launch` passes the kernel's arguments, whose types are those of [`Called`].
        let number = |place: usize| unsafe { *(*arguments.add(place)).cast::<c_int>() };
        let none = Launch { flags: Vec::new(), me: 0, input: None, given: 0, output: 0, bytes: 0, own: None };
        let launch = match self.called {
            Called::Custom { members } => {
                let me = usize::try_from(number(4)).ok()?;
                // SAFETY: the structure has space for at least eight members, and `members` is at most eight.
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

    /// Bytes per element.
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

/// The type at the start of `name`, and the rest of the name.
fn typed<'a>(name: &'a str, types: &[(&str, c_int)]) -> Option<(c_int, &'a str)> {
    types.iter().find_map(|(text, dtype)| Some((*dtype, name.strip_prefix(text)?)))
}

/// Reads an address per member from device memory.
fn addresses(at: usize, members: usize) -> Option<Vec<usize>> {
    // The number of members is limited: no more GPUs can access each other's memory.
    (members <= 1024).then_some(())?;
    (0..members).map(|member| address_at(at + member * size_of::<usize>()).ok()).collect()
}

/// Group of the ranks that own these flags; it is created at the first launch.
fn group(link: &Communication, flags: &[usize], me: usize) -> Option<u32> {
    static GROUPS: Mutex<BTreeMap<Vec<u32>, u32>> = Mutex::new(BTreeMap::new());
    let rank = |(member, at): (usize, &usize)| if member == me { Some(of_world(link)) } else { memory::rank_of(*at) };
    let ranks = flags.iter().enumerate().map(rank).collect::<Option<Vec<u32>>>()?;
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(group) = groups.get(&ranks) {
        return Some(*group);
    }
    // SAFETY: the pointer and the length are those of `ranks`, which outlives the call; settings may be null.
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
