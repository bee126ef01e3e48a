//! Owns the few functions of CUPTI, cuFile, NVSHMEM and NCCL that must not fail as the rest of these libraries does: versions, texts, and counts
//! where an error's number would look like an answer.

use crate::exports::{Out, Put, exports};
use crate::unimplemented::report;
use std::ffi::{CStr, c_char, c_int, c_void};

/// `CUPTI_ERROR_INVALID_PARAMETER`
const INVALID_PARAMETER: c_int = 1;
/// `CU_FILE_PLATFORM_NOT_SUPPORTED`
const PLATFORM_NOT_SUPPORTED: isize = 5002;

exports! {
    /// `CUPTI_API_VERSION` of CUDA 13.2.
    fn cuptiGetVersion(version: Out<u32>) -> c_int { if version.put(130_202) { 0 } else { INVALID_PARAMETER } }
    fn cuptiGetResultString(result: c_int, text: Out<*const c_char>) -> c_int { put(text, describe_cupti(result)) }
    fn cuptiGetErrorMessage(result: c_int, text: Out<*const c_char>) -> c_int { put(text, describe_cupti(result)) }

    /// Bytes, or an error below zero.
    fn cuFileRead(_file: *mut c_void, _buffer: *mut c_void, _size: usize, _offset: i64, _buffer_offset: i64) -> isize {
        report("libcufile", "cuFileRead");
        -PLATFORM_NOT_SUPPORTED
    }
    fn cuFileWrite(_file: *mut c_void, _buffer: *const c_void, _size: usize, _offset: i64, _buffer_offset: i64) -> isize {
        report("libcufile", "cuFileWrite");
        -PLATFORM_NOT_SUPPORTED
    }
    fn cuFileUseCount() -> i64 { 0 }

    /// `NVSHMEM_STATUS_NOT_INITIALIZED`
    fn nvshmemid_init_status() -> c_int { 0 }
    /// There is no processing element, no team and no context.
    fn nvshmem_my_pe() -> c_int { no_element("nvshmem_my_pe") }
    fn nvshmem_n_pes() -> c_int { no_element("nvshmem_n_pes") }
    fn nvshmem_team_my_pe(_team: c_int) -> c_int { no_element("nvshmem_team_my_pe") }
    fn nvshmem_team_n_pes(_team: c_int) -> c_int { no_element("nvshmem_team_n_pes") }
    fn nvshmem_team_translate_pe(_team: c_int, _element: c_int, _to: c_int) -> c_int { no_element("nvshmem_team_translate_pe") }
    /// NVSHMEM's specification, as of the package that the table of names was made from.
    fn nvshmem_info_get_version(major: Out<c_int>, minor: Out<c_int>) {
        major.put(1);
        minor.put(3);
    }

    fn ncclGetErrorString(result: c_int) -> *const c_char { describe_nccl(result).as_ptr() }
    fn ncclGetLastError(_communicator: *const c_void) -> *const c_char { c"".as_ptr() }
    fn ncclGetVersion(version: Out<c_int>) -> c_int { if version.put(23_007) { 0 } else { 4 } }
}

fn put(place: Out<*const c_char>, text: &'static CStr) -> c_int {
    if place.put(text.as_ptr()) { 0 } else { INVALID_PARAMETER }
}

fn no_element(name: &str) -> c_int {
    report("libnvshmem_host", name);
    -1
}

fn describe_cupti(result: c_int) -> &'static CStr {
    match result {
        0 => c"CUPTI_SUCCESS",
        1 => c"CUPTI_ERROR_INVALID_PARAMETER",
        27 => c"CUPTI_ERROR_NOT_SUPPORTED",
        _ => c"CUPTI_ERROR_UNKNOWN",
    }
}

fn describe_nccl(result: c_int) -> &'static CStr {
    match result {
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
