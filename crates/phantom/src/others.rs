//! Owns the few functions of CUPTI, cuFile and NVSHMEM that do not fail as the rest of these libraries does: profiles without activity, versions,
//! texts, and counts where an error's number would look like an answer.

#![allow(non_upper_case_globals, reason = "NVIDIA's name of a variable")]

use crate::exports::{Out, Put, exports};
use crate::unimplemented::{report, warn};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicI32;

/// `CUPTI_ERROR_INVALID_PARAMETER`
const INVALID_PARAMETER: c_int = 1;
/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: there are no more records in a buffer.
const MAX_LIMIT_REACHED: c_int = 12;
/// `CU_FILE_PLATFORM_NOT_SUPPORTED`
const PLATFORM_NOT_SUPPORTED: isize = 5002;

exports! {
    /// `CUPTI_API_VERSION` of CUDA 13.2.
    fn cuptiGetVersion(version: Out<u32>) -> c_int { if version.put(130_202) { 0 } else { INVALID_PARAMETER } }
    fn cuptiGetResultString(result: c_int, text: Out<*const c_char>) -> c_int { put(text, describe_cupti(result)) }
    fn cuptiGetErrorMessage(result: c_int, text: Out<*const c_char>) -> c_int { put(text, describe_cupti(result)) }

    /// Activity is never recorded, which is said once; so no buffer is ever asked for, and every buffer is empty.
    fn cuptiActivityRegisterCallbacks(_request: *const c_void, _complete: *const c_void) -> c_int {
        warn("libcupti: profiles have no activity of simulated GPUs");
        0
    }
    fn cuptiActivityRegisterTimestampCallback(_function: *const c_void) -> c_int { 0 }
    fn cuptiActivityEnable(_kind: c_int) -> c_int { 0 }
    fn cuptiActivityDisable(_kind: c_int) -> c_int { 0 }
    fn cuptiActivityEnableRuntimeApi(_function: u32, _enables: u8) -> c_int { 0 }
    fn cuptiActivityEnableDriverApi(_function: u32, _enables: u8) -> c_int { 0 }
    fn cuptiActivityPushExternalCorrelationId(_kind: c_int, _number: u64) -> c_int { 0 }
    fn cuptiActivityPopExternalCorrelationId(_kind: c_int, number: Out<u64>) -> c_int {
        number.put(0);
        0
    }
    fn cuptiActivityFlushAll(_flags: u32) -> c_int { 0 }
    fn cuptiActivityGetNextRecord(_buffer: *const u8, _size: usize, _record: Out<*const c_void>) -> c_int { MAX_LIMIT_REACHED }
    fn cuptiActivityGetNumDroppedRecords(_context: *const c_void, _stream: u32, dropped: Out<usize>) -> c_int {
        if dropped.put(0) { 0 } else { INVALID_PARAMETER }
    }

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
}

/// Which transport the device uses, for code that looks at it: none.
#[unsafe(no_mangle)]
static nvshmem_selected_device_transport: AtomicI32 = AtomicI32::new(0);

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
        INVALID_PARAMETER => c"CUPTI_ERROR_INVALID_PARAMETER",
        MAX_LIMIT_REACHED => c"CUPTI_ERROR_MAX_LIMIT_REACHED",
        27 => c"CUPTI_ERROR_NOT_SUPPORTED",
        _ => c"CUPTI_ERROR_UNKNOWN",
    }
}
