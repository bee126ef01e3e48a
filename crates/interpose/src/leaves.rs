//! Owns the functions that create resources which outlive a killed program: sockets with a name in the file system,
//! shared memory and semaphores. The run records each of them, and removes those that remain when all of its processes
//! have ended.

use crate::{rank, real};
use libc::{AF_UNIX, O_CREAT, c_char, c_int, c_uint, mode_t, sem_t, sockaddr, sockaddr_un, socklen_t};
use std::ffi::{CStr, OsStr};
use std::fs::OpenOptions;
use std::io::Write;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf, absolute};
use uniference_protocol::leaked_resources::{SHARED, VARIABLE, line};

/// Replaces the C library's `bind`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: `bind` gets the arguments that its replacement got, under the same contract.
    let result = unsafe { real::bind()(socket, address, length) };
    if result == 0 && rank().is_some() {
        // SAFETY: the kernel has read the same number of bytes.
        unsafe { path_of(address, length) }.inspect(|path| note(path));
    }
    result
}

/// Replaces the C library's `shm_open`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: `shm_open` requires that `name` is a C string.
    let made = unsafe { about_to_make(b"", name, flags) };
    // SAFETY: `shm_open` gets the arguments that its replacement got, under the same contract.
    let result = unsafe { real::shm_open()(name, flags, mode) };
    if result >= 0 {
        made.inspect(|path| note(path));
    }
    result
}

/// Replaces the C library's `sem_open`. The last two arguments exist only if `flags` allow the creation of a semaphore.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_open(name: *const c_char, flags: c_int, mode: mode_t, value: c_uint) -> *mut sem_t {
    // SAFETY: `sem_open` requires that `name` is a C string.
    let made = unsafe { about_to_make(b"sem.", name, flags) };
    // SAFETY: `sem_open` gets the arguments that its replacement got, under the same contract.
    let result = unsafe { real::sem_open()(name, flags, mode, value) };
    if result != libc::SEM_FAILED {
        made.inspect(|path| note(path));
    }
    result
}

/// The file that a call creates for shared memory or, with the prefix `before`, for a semaphore. `None`: the call
/// creates no file, because the flags do not allow it, or because the file already exists.
///
/// # Safety
/// The name is null or ends with a zero.
unsafe fn about_to_make(before: &[u8], name: *const c_char, flags: c_int) -> Option<PathBuf> {
    if flags & O_CREAT == 0 || name.is_null() || rank().is_none() {
        return None;
    }
    // SAFETY: the name is not null, so it ends with a zero.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    // The C library also skips leading slashes.
    let begin = name.iter().position(|byte| *byte != b'/')?;
    let path = Path::new(SHARED).join(OsStr::from_bytes(&[before, &name[begin..]].concat()));
    path.symlink_metadata().is_err().then_some(path)
}

/// The path of a socket's file; `None`: the socket has none.
///
/// # Safety
/// `address` has `length` bytes.
unsafe fn path_of(address: *const sockaddr, length: socklen_t) -> Option<PathBuf> {
    let length = (length as usize).checked_sub(offset_of!(sockaddr_un, sun_path))?;
    // SAFETY: the address has `length` bytes, of which the family is the first part and the path the rest.
    let bytes = unsafe {
        if c_int::from((*address).sa_family) != AF_UNIX {
            return None;
        }
        let path = address.byte_add(offset_of!(sockaddr_un, sun_path)).cast::<u8>();
        std::slice::from_raw_parts(path, length)
    };
    let path = bytes.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())?;
    absolute(OsStr::from_bytes(path)).ok()
}

/// Records a path in the run's list of leaked resources. If the list cannot be opened, the run is over.
fn note(path: &Path) {
    let Some(list) = std::env::var_os(VARIABLE) else { return };
    let Some(line) = line(path) else { return };
    if let Ok(mut list) = OpenOptions::new().append(true).open(list) {
        // The path is written by a single call, so that writes of other processes do not interleave with it.
        let _ = list.write_all(&line);
    }
}
