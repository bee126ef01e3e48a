//! Owns writes to the memory of another process without its participation, as RDMA by a NIC does.

// The kernel gets addresses of other processes.
#![allow(unsafe_code)]

use libc::{c_void, iovec};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::io;

/// Allows all processes of the same user, not only its parents, to write to this process's memory.
#[pyfunction]
pub(crate) fn open_memory() {
    // Kernels without this restriction refuse the request; the error is ignored.
    // SAFETY: the call only changes which processes may attach to this one.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Copies pieces of this process's memory to another process. A piece has an address in this process, an address in the
/// other process, and a length. Raises OSError if memory of a piece is not mapped.
#[pyfunction]
pub(crate) fn write_memory(py: Python<'_>, process: i32, pieces: Vec<(usize, usize, usize)>) -> PyResult<()> {
    py.detach(|| pieces.into_iter().try_for_each(|piece| write(process, piece)))
        .map_err(|error| PyOSError::new_err((error.raw_os_error().unwrap_or_default(), error.to_string())))
}

fn write(process: i32, (mut here, mut there, mut bytes): (usize, usize, usize)) -> io::Result<()> {
    while bytes > 0 {
        let [from, to] = [here, there].map(|at| iovec { iov_base: at as *mut c_void, iov_len: bytes });
        // SAFETY: the kernel checks that the memory is mapped, and that it is writable in the other process.
        let written = unsafe { libc::process_vm_writev(process, &raw const from, 1, &raw const to, 1, 0) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => (here, there, bytes) = (here + written, there + written, bytes - written),
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}
