//! Owns the few functions of cuFile and NVSHMEM that cannot report an error like the other functions of these
//! libraries: versions, and counts whose error number would look like a result.

#![allow(non_upper_case_globals, reason = "NVIDIA's name of a variable")]

use crate::exports::{Out, Put, exports};
use crate::unimplemented::report;
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicI32;

/// `CU_FILE_PLATFORM_NOT_SUPPORTED`
const PLATFORM_NOT_SUPPORTED: isize = 5002;

exports! {
    /// Returns a number of bytes, or a negative error.
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
    /// NVSHMEM is not initialised, so it has no processing element, team or context.
    fn nvshmem_my_pe() -> c_int { no_element("nvshmem_my_pe") }
    fn nvshmem_n_pes() -> c_int { no_element("nvshmem_n_pes") }
    fn nvshmem_team_my_pe(_team: c_int) -> c_int { no_element("nvshmem_team_my_pe") }
    fn nvshmem_team_n_pes(_team: c_int) -> c_int { no_element("nvshmem_team_n_pes") }
    fn nvshmem_team_translate_pe(_team: c_int, _element: c_int, _to: c_int) -> c_int { no_element("nvshmem_team_translate_pe") }
    /// Version of NVSHMEM's specification, from the package from which the name table was made.
    fn nvshmem_info_get_version(major: Out<c_int>, minor: Out<c_int>) {
        major.put(1);
        minor.put(3);
    }
}

/// NVSHMEM's transport of the device: none.
#[unsafe(no_mangle)]
static nvshmem_selected_device_transport: AtomicI32 = AtomicI32::new(0);

fn no_element(name: &str) -> c_int {
    report("libnvshmem_host", name);
    -1
}
