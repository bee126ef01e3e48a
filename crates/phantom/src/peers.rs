//! Owns kernels that communicate by themselves, through memory of other GPUs that their process has opened: which those are, by name, and the calls
//! that their launches are. The engine carries them out as it does NCCL's.
//!
//! They are the kernels of vLLM's and SGLang's custom all-reduce. Source of what their arguments are: vllm-project/vllm, `csrc/custom_all_reduce.cuh`,
//! and the names of the kernels, which have the types: the addresses of all members' tensors, in memory of the GPU; a structure with those of
//! all members' flags; the own flags; where the result goes; the member's number; and how many times 16 bytes.

use crate::attach::communication;
use crate::calls::{self, Finish, Pending, Prepared, Refused, moves_values, of_world};
use crate::device;
use crate::errors::Status;
use crate::memory::{self, MemHandle};
use crate::streams::{Handle, Name};
use crate::unimplemented::warn;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use uniference_protocol::phantom::{Call, Communication, Operation};

/// Bytes that a thread of these kernels moves at once.
const PACK: u64 = 16;

/// What a kernel does, as its name says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    operation: Operation,
    /// As [`Call::kernel`] counts them.
    shots: u32,
    /// `ncclDataType_t`.
    dtype: c_int,
    members: usize,
}

/// Names an allocation for other processes, with the rank on whose GPU it is.
pub(crate) fn export(at: usize) -> Result<MemHandle, Status> {
    let rank = |device: usize| communication().map_or(u32::MAX, |link| (link.rank)(device::number(device) as u32));
    memory::export(at, rank)
}

impl Peers {
    /// Of a kernel's name as C++ mangles it: `_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li2EEEv...`. `None`: another kernel.
    pub(crate) fn of(name: &str) -> Option<Peers> {
        const KERNELS: [(&str, Operation, u32); 4] = [
            ("cross_device_reduce_1stageI", Operation::AllReduce, 1),
            ("cross_device_reduce_2stageI", Operation::AllReduce, 2),
            ("cross_device_reduce_scatterI", Operation::ReduceScatter, 1),
            ("cross_device_all_gatherI", Operation::AllGather, 1),
        ];
        // Numbers of NCCL's types. An all-gather has none, and moves bytes, of which we count two as an element.
        const TYPES: [(&str, c_int); 4] = [("6__half", 6), ("f", 7), ("13__nv_bfloat16", 9), ("", 6)];
        let (operation, shots, rest) = KERNELS
            .iter()
            .find_map(|(kernel, operation, shots)| Some((*operation, *shots, name.split_once(kernel)?.1)))?;
        let (dtype, rest) = TYPES.iter().find_map(|(text, dtype)| Some((*dtype, rest.strip_prefix(text)?)))?;
        let (members, rest) = rest.strip_prefix("Li")?.split_once("EEEv")?;
        rest.contains("RankSignals").then_some(())?;
        // The structure of the flags has room for eight members, or more.
        let members = members.parse().ok().filter(|members| (2..=8).contains(members))?;
        Some(Peers { operation, shots, dtype, members })
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
        if arguments.is_null() {
            return None;
        }
        // SAFETY: the caller's; the types are those of the module's description.
        let (tensors, flags, result, me, packs) = unsafe {
            let argument = |number: usize| *arguments.add(number);
            (
                *argument(0).cast::<usize>(),
                std::slice::from_raw_parts(argument(1).cast::<usize>(), self.members),
                *argument(3).cast::<usize>(),
                *argument(4).cast::<c_int>(),
                *argument(5).cast::<c_int>(),
            )
        };
        let me = usize::try_from(me).ok().filter(|me| *me < self.members)?;
        let group = group(link, flags, me)?;
        let bytes = u64::try_from(packs).ok()? * PACK;
        let call = self.call(link, group, me, bytes);
        let received = if self.operation == Operation::AllGather { bytes * self.members as u64 } else { bytes };
        let finish = Finish { dtype: self.dtype as u32, divide: None };
        let peers = Some((name.clone(), tensors + me * size_of::<usize>()));
        let prepared = Prepared { call, output: (result, received), finish, factor: None, own: None, peers };
        let issued = calls::issue(vec![Pending { call: prepared, stream, device: device::current() }]);
        Some(issued.map_err(|refused| match refused {
            Refused::Captured(status) | Refused::Called(status) => status,
        }))
    }

    /// `bytes` is how much a member receives; of an all-gather from each other one.
    fn call(self, link: &Communication, group: u32, me: usize, bytes: u64) -> Call {
        let elements = bytes / if self.dtype == 7 { 4 } else { 2 };
        let sent = if self.operation == Operation::ReduceScatter { bytes * self.members as u64 } else { bytes };
        Call {
            operation: self.operation as u32,
            group,
            dtype: self.dtype as u32,
            reduction: 0,
            peer: -1,
            me: me as i32,
            has_values: u32::from(moves_values(link, elements, self.dtype)),
            elements,
            input: 0,
            input_bytes: sent,
            stream: 0,
            first: 1,
            number: 0,
            kernel: self.shots,
        }
    }
}

/// The group of the ranks whose flags these are, which is named when the first of their kernels starts.
fn group(link: &Communication, flags: &[usize], me: usize) -> Option<u32> {
    static GROUPS: Mutex<BTreeMap<Vec<u32>, u32>> = Mutex::new(BTreeMap::new());
    let rank = |(member, at): (usize, &usize)| if member == me { Some(of_world(link)) } else { memory::rank_of(*at) };
    let Some(ranks) = flags.iter().enumerate().map(rank).collect::<Option<Vec<u32>>>() else {
        warn(
            "a kernel communicates through memory that was not opened by CUDA's IPC: it is taken for one that computes",
        );
        return None;
    };
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(group) = groups.get(&ranks) {
        return Some(*group);
    }
    // SAFETY: the ranks are there during the call.
    let group = unsafe { (link.group)(ranks.as_ptr(), ranks.len()) };
    (group != Communication::REFUSED).then(|| *groups.entry(ranks).or_insert(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_known_by_what_c_plus_plus_calls_them() {
        const ARGUMENTS: &str = "EvPNS_8RankDataENS_11RankSignalsEPNS_6SignalEPT_ii";
        let of = |kernel: &str| Peers::of(&format!("_ZN4vllm{kernel}E{ARGUMENTS}"));
        let known = |operation, shots, dtype, members| Some(Peers { operation, shots, dtype, members });
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
}
