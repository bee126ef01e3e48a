//! Owns the C++ extension that captures operators, as the client sees it: five of its functions, by their addresses.

// The functions are those of a library that Python has loaded.
#![allow(unsafe_code)]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::mem::transmute;
use std::ptr::null;
use std::slice::from_raw_parts;
use uniference_client::Capture;
use uniference_formats::operators::dictionary_length;

/// The functions of `cpp/capture.cpp` that are called between a program's operators.
pub(crate) struct Extension {
    take: Take,
    inside: Inside,
    thread: Thread,
    log: Log,
    compiling: Compiling,
}

/// `uniference_capture_take`
type Take = unsafe extern "C" fn(*mut *const u8, *mut usize) -> u64;
/// `uniference_capture_inside`
type Inside = unsafe extern "C" fn(i32);
/// `uniference_capture_thread`
type Thread = unsafe extern "C" fn();
/// `uniference_capture_log`
type Log = unsafe extern "C" fn(*mut i32) -> u64;
/// `uniference_capture_is_compiling`
type Compiling = unsafe extern "C" fn() -> i32;

impl Extension {
    /// From the functions' addresses, which must be those, in a library that is never unloaded.
    pub(crate) fn at(take: usize, inside: usize, thread: usize, log: usize, compiling: usize) -> PyResult<Extension> {
        if [take, inside, thread, log, compiling].contains(&0) {
            return Err(PyValueError::new_err("the address of a function is 0"));
        }
        // SAFETY: the caller says that these functions are there, as the method's documentation asks it to.
        unsafe {
            let (take, inside) = (transmute::<usize, Take>(take), transmute::<usize, Inside>(inside));
            let (thread, log) = (transmute::<usize, Thread>(thread), transmute::<usize, Log>(log));
            let compiling = transmute::<usize, Compiling>(compiling);
            Ok(Extension { take, inside, thread, log, compiling })
        }
    }
}

impl Capture for Extension {
    fn take(&self, dictionary: &mut Vec<u8>, operators: &mut Vec<u8>) -> u64 {
        let (mut data, mut length) = (null(), 0);
        // SAFETY: both are written to; the bytes stay until this thread calls again.
        let (own_ns, taken) = unsafe {
            let own_ns = (self.take)(&mut data, &mut length);
            (own_ns, if length == 0 { &[] } else { from_raw_parts(data, length) })
        };
        let (names, ran) = split(taken);
        dictionary.extend_from_slice(names);
        operators.extend_from_slice(ran);
        own_ns
    }

    fn log(&self) -> (u64, bool) {
        let mut written = 0;
        // SAFETY: the number is written to.
        let log = unsafe { (self.log)(&mut written) };
        (log, written != 0)
    }

    fn inside(&self, inside: bool) {
        // SAFETY: it takes any number.
        unsafe { (self.inside)(if inside { 1 } else { -1 }) }
    }

    fn thread_started(&self) {
        // SAFETY: it takes nothing.
        unsafe { (self.thread)() }
    }

    fn is_compiling(&self) -> bool {
        // SAFETY: it takes nothing.
        unsafe { (self.compiling)() != 0 }
    }
}

/// Definitions and lines, with which a slice begins, and the rest. What cannot be read is left to whoever reads all of it.
pub(crate) fn split(slice: &[u8]) -> (&[u8], &[u8]) {
    slice.split_at(dictionary_length(slice).unwrap_or(0))
}
