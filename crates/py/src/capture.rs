//! Owns the C++ library that captures operators, as the client sees it.

// The functions are those of a library that Python has loaded.
#![allow(unsafe_code)]

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::ptr::null;
use std::slice::from_raw_parts;
use uniference_abi::CAPTURE_VERSION;
use uniference_abi::capture::Functions;
use uniference_client::Capture;
use uniference_formats::operators::dictionary_length;

/// The C++ library's functions from their address, as `uniference_capture_functions` returns it, in a library that is never
/// unloaded.
///
/// # Errors
/// If the library was built for another version of this extension.
pub(crate) fn functions_at(address: usize) -> PyResult<&'static Functions> {
    if address == 0 {
        return Err(PyValueError::new_err("the address of the functions is 0"));
    }
    // SAFETY: the caller passes the address of a structure that stays; its first field is the version in every version.
    let version = unsafe { *(address as *const u32) };
    if version != CAPTURE_VERSION {
        return Err(PyRuntimeError::new_err(
            "Uniference's C++ library was built from other sources than its extension module\nhint: run `make setup` again with a C++ compiler, or install a wheel that was built for this version of torch",
        ));
    }
    // SAFETY: the structure stays, and has this version's layout.
    Ok(unsafe { &*(address as *const Functions) })
}

/// Checks that the C++ library whose functions are at `address` fits this extension.
#[pyfunction]
pub(crate) fn check_capture(address: usize) -> PyResult<()> {
    functions_at(address).map(drop)
}

/// The functions of the C++ library that are called between a program's operators.
pub(crate) struct Extension(pub(crate) &'static Functions);

impl Capture for Extension {
    fn take(&self, dictionary: &mut Vec<u8>, operators: &mut Vec<u8>) -> u64 {
        let (mut data, mut length) = (null(), 0);
        // SAFETY: the function writes to both pointers; the bytes stay valid until this thread's next call.
        let (own_ns, taken) = unsafe {
            let own_ns = (self.0.take)(&mut data, &mut length);
            (own_ns, if length == 0 { &[] } else { from_raw_parts(data, length) })
        };
        let (names, ran) = split(taken);
        dictionary.extend_from_slice(names);
        operators.extend_from_slice(ran);
        own_ns
    }

    fn log(&self) -> (u64, bool) {
        let mut written = 0;
        // SAFETY: `log` only writes to the number.
        let log = unsafe { (self.0.log)(&mut written) };
        (log, written != 0)
    }

    fn inside(&self, inside: bool) {
        (self.0.inside)(if inside { 1 } else { -1 });
    }

    fn thread_started(&self) {
        (self.0.thread)();
    }

    fn is_compiling(&self) -> bool {
        (self.0.is_compiling)() != 0
    }
}

/// Splits a slice behind the definitions and lines at its beginning. An invalid slice is not split; its decoder reports
/// the error.
pub(crate) fn split(slice: &[u8]) -> (&[u8], &[u8]) {
    slice.split_at(dictionary_length(slice).unwrap_or(0))
}
