//! Owns the layout of CUPTI's activity records. `cupti` fills them.
//!
//! The fields are those of `cupti_activity.h` of CUDA 13.2, in the same order: the header packs them without gaps, and
//! the size of a record is a multiple of 8. Earlier versions of a record are prefixes of later versions.

use std::ffi::c_char;
use std::mem::size_of;

/// `CUpti_ActivityKind`.
pub(super) mod kind {
    pub(crate) const MEMCPY: u32 = 1;
    pub(crate) const MEMSET: u32 = 2;
    pub(crate) const KERNEL: u32 = 3;
    pub(crate) const DRIVER: u32 = 4;
    pub(crate) const RUNTIME: u32 = 5;
    pub(crate) const CONCURRENT_KERNEL: u32 = 10;
    pub(crate) const OVERHEAD: u32 = 17;
    pub(crate) const MEMCPY2: u32 = 22;
    pub(crate) const CUDA_EVENT: u32 = 36;
    pub(crate) const SYNCHRONIZATION: u32 = 38;
    pub(crate) const EXTERNAL_CORRELATION: u32 = 39;
}

/// A call of a runtime or driver function: `CUpti_ActivityAPI`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) kind: u32,
    pub(super) function: u32,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) process: u32,
    pub(super) thread: u32,
    pub(super) correlation: u32,
    pub(super) status: u32,
}

/// `CUpti_ActivityExternalCorrelation`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct External {
    pub(super) kind: u32,
    pub(super) external_kind: u32,
    pub(super) id: u64,
    pub(super) correlation: u32,
    pub(super) reserved: u32,
}

/// `CUpti_ActivityKernel11`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) kind: u32,
    pub(super) caches: [u8; 2],
    pub(super) registers: u16,
    pub(super) partitioned_caches: [u32; 2],
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) completed: u64,
    pub(super) device: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) static_shared: u32,
    pub(super) dynamic_shared: u32,
    pub(super) local_memory: [u32; 2],
    pub(super) correlation: u32,
    pub(super) grid_id: u64,
    pub(super) name: *const c_char,
    pub(super) reserved: u64,
    /// Times at which the kernel was queued and submitted; 0: unknown.
    pub(super) handed: [u64; 2],
    pub(super) launch: [u8; 4],
    pub(super) shared_executed: u32,
    pub(super) node: u64,
    pub(super) shared_limit: u32,
    pub(super) graph: u32,
    pub(super) window: u64,
    pub(super) channel: u32,
    pub(super) channel_kind: u32,
    pub(super) cluster: [u32; 4],
    pub(super) all_local_memory: u64,
    pub(super) clusters: [u32; 2],
    pub(super) by_device: [u8; 8],
    pub(super) priority: u32,
    pub(super) rest: u32,
}

// SAFETY: `name` points to a kernel name that is never freed or changed.
#[allow(unsafe_code)]
unsafe impl Send for Kernel {}

/// `CUpti_ActivityMemcpy6`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) kind: u32,
    /// Kind of copy, and kinds of memory of source and destination.
    pub(super) what: [u8; 3],
    /// 1: the copy does not block the calling thread.
    pub(super) flags: u8,
    pub(super) bytes: u64,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) device: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) correlation: u32,
    pub(super) runtime_correlation: u32,
    pub(super) gap: u32,
    pub(super) reserved: u64,
    pub(super) node: u64,
    pub(super) graph: u32,
    pub(super) channel: u32,
    pub(super) channel_kind: u32,
    pub(super) by_device: [u8; 4],
    pub(super) copies: u64,
}

/// A copy between devices: `CUpti_ActivityMemcpyPtoP4`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerCopy {
    pub(super) kind: u32,
    pub(super) what: [u8; 3],
    pub(super) flags: u8,
    pub(super) bytes: u64,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) device: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    /// Device and context of the source, then of the destination.
    pub(super) ends: [u32; 4],
    pub(super) correlation: u32,
    pub(super) reserved: u64,
    pub(super) node: u64,
    pub(super) graph: u32,
    pub(super) channel: u32,
    pub(super) channel_kind: u32,
    /// Padding to a multiple of 8.
    pub(super) end: u32,
}

/// `CUpti_ActivityMemset4`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) kind: u32,
    pub(super) value: u32,
    pub(super) bytes: u64,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) device: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) correlation: u32,
    pub(super) flags: u16,
    pub(super) memory: u16,
    pub(super) gap: u32,
    pub(super) reserved: u64,
    pub(super) node: u64,
    pub(super) graph: u32,
    pub(super) channel: u32,
    pub(super) channel_kind: u32,
    pub(super) by_device: [u8; 4],
}

/// `CUpti_ActivitySynchronization2`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Synchronization {
    pub(super) kind: u32,
    pub(super) what: u32,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) correlation: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) event: u32,
    pub(super) recording: u64,
    pub(super) status: u32,
    pub(super) gap: u32,
}

/// A record of an event: `CUpti_ActivityCudaEvent2`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) kind: u32,
    pub(super) correlation: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) event: u32,
    pub(super) gap: u32,
    pub(super) device: u32,
    pub(super) other_gap: u32,
    pub(super) reserved: u64,
    pub(super) at: u64,
    pub(super) recording: u64,
}

/// One record of any kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Record {
    Call(Call),
    External(External),
    Kernel(Kernel),
    Copy(Copy),
    PeerCopy(PeerCopy),
    Set(Set),
    Synchronization(Synchronization),
    Recorded(Recorded),
}

impl Record {
    /// Bytes of the record in a buffer.
    #[allow(unsafe_code)]
    pub(super) fn bytes(&self) -> &[u8] {
        fn of<T>(record: &T) -> &[u8] {
            // SAFETY: records are packed, so all of their bytes have values.
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
        }
        match self {
            Record::Call(record) => of(record),
            Record::External(record) => of(record),
            Record::Kernel(record) => of(record),
            Record::Copy(record) => of(record),
            Record::PeerCopy(record) => of(record),
            Record::Set(record) => of(record),
            Record::Synchronization(record) => of(record),
            Record::Recorded(record) => of(record),
        }
    }
}

/// Size of a record of a kind; `None` for unknown kinds.
pub(super) fn size(of: u32) -> Option<usize> {
    Some(match of {
        kind::DRIVER | kind::RUNTIME => size_of::<Call>(),
        kind::EXTERNAL_CORRELATION => size_of::<External>(),
        kind::KERNEL | kind::CONCURRENT_KERNEL => size_of::<Kernel>(),
        kind::MEMCPY => size_of::<Copy>(),
        kind::MEMCPY2 => size_of::<PeerCopy>(),
        kind::MEMSET => size_of::<Set>(),
        kind::SYNCHRONIZATION => size_of::<Synchronization>(),
        kind::CUDA_EVENT => size_of::<Recorded>(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Sizes and offsets of a C compiler's layout of `cupti_activity.h`.
    #[test]
    fn records_are_laid_out_as_in_c() {
        let sizes = [
            size_of::<Call>(),
            size_of::<External>(),
            size_of::<Kernel>(),
            size_of::<Copy>(),
            size_of::<PeerCopy>(),
            size_of::<Set>(),
            size_of::<Synchronization>(),
            size_of::<Recorded>(),
        ];
        assert_eq!(sizes, [40, 24, 224, 96, 96, 88, 56, 56]);
        let places = [
            offset_of!(Kernel, name),
            offset_of!(Kernel, node),
            offset_of!(Kernel, priority),
            offset_of!(Copy, correlation),
            offset_of!(PeerCopy, correlation),
            offset_of!(Set, correlation),
            offset_of!(Synchronization, status),
            offset_of!(Recorded, at),
        ];
        assert_eq!(places, [104, 144, 216, 44, 60, 44, 48, 40]);
    }
}
