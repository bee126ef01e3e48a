//! Owns how data gets into the memory of another process, which takes no part: what a network card does for RDMA.

// The kernel is told addresses of other processes.
#![allow(unsafe_code)]

use libc::{c_void, iovec};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::io;

/// From here on processes of the same user may write into this one's memory, though it has not started them.
#[pyfunction]
pub(crate) fn open_memory() {
    // Where the kernel restricts nothing, it does not know the request.
    // SAFETY: it changes who may attach to this process, and nothing else.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Copies pieces of this process's memory into that of another one: of each where it lies here and there, and its length. A piece may lie in memory that is
/// not there: OSError.
#[pyfunction]
pub(crate) fn write_memory(py: Python<'_>, process: i32, pieces: Vec<(usize, usize, usize)>) -> PyResult<()> {
    py.detach(|| pieces.into_iter().try_for_each(|piece| write(process, piece)))
        .map_err(|error| PyOSError::new_err((error.raw_os_error().unwrap_or_default(), error.to_string())))
}

fn write(process: i32, (mut here, mut there, mut bytes): (usize, usize, usize)) -> io::Result<()> {
    while bytes > 0 {
        let [from, to] = [here, there].map(|at| iovec { iov_base: at as *mut c_void, iov_len: bytes });
        // SAFETY: the kernel looks whether the memory is there, and in the other process may be written.
        let written = unsafe { libc::process_vm_writev(process, &raw const from, 1, &raw const to, 1, 0) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => (here, there, bytes) = (here + written, there + written, bytes - written),
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}
