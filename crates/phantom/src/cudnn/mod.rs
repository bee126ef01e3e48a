//! Owns cuDNN: handles and versions; [`backend`] has operation graphs and their plans, [`operators`] the functions with
//! descriptors, [`rnn`] recurrent networks. The headers of cuDNN 9 have the prototypes and numbers. Results are not
//! computed.

mod backend;
mod operators;
mod rnn;

use crate::exports::{Out, Put, exports};
use crate::streams::Handle;
use std::ffi::{CStr, c_char, c_int, c_void};

/// `cudnnStatus_t`.
type Status = c_int;
const SUCCESS: Status = 0;
const BAD_PARAM: Status = 2000;
const NULL_POINTER: Status = 2002;
const NOT_SUPPORTED: Status = 3000;
type Pointer = *const c_void;

/// cuDNN 9.26.0, the version of the package from which the name table was made.
const VERSION: usize = 92_600;
/// CUDA 13.2, with which this package was built.
const CUDART_VERSION: usize = 13_020;

/// `cudnnHandle_t`.
struct Library {
    stream: Handle,
}

exports! {
    fn cudnnCreate(handle: Out<*mut Library>) -> Status { create(handle, Library { stream: std::ptr::null_mut() }) }
    fn cudnnDestroy(handle: *mut Library) -> Status { destroy(handle) }
    fn cudnnSetStream(handle: Option<&mut Library>, stream: Handle) -> Status {
        handle.map_or(NULL_POINTER, |library| { library.stream = stream; SUCCESS })
    }
    fn cudnnGetStream(handle: Option<&Library>, stream: Out<Handle>) -> Status {
        handle.map_or(NULL_POINTER, |library| wrote(stream.put(library.stream)))
    }
    fn cudnnGetVersion() -> usize { VERSION }
    fn cudnnGetCudartVersion() -> usize { CUDART_VERSION }
    fn cudnnGetMaxDeviceVersion() -> usize { 1210 }
    fn cudnnGetProperty(kind: c_int, value: Out<c_int>) -> Status {
        let version = VERSION as c_int;
        match kind {
            0 => wrote(value.put(version / 10_000)),
            1 => wrote(value.put(version / 100 % 100)),
            2 => wrote(value.put(version % 100)),
            _ => BAD_PARAM,
        }
    }
    /// All parts of the library have the same version.
    fn cudnnGraphVersionCheck() -> Status { SUCCESS }
    fn cudnnOpsVersionCheck() -> Status { SUCCESS }
    fn cudnnCnnVersionCheck() -> Status { SUCCESS }
    fn cudnnAdvVersionCheck() -> Status { SUCCESS }
    fn cudnnGetErrorString(status: Status) -> *const c_char { describe(status).as_ptr() }
    /// Returns an empty text: the rank's log names functions that are not implemented.
    fn cudnnGetLastErrorString(text: *mut c_char, size: usize) {
        if !text.is_null() && size > 0 {
            // SAFETY: cuDNN requires that `text` has space for `size` characters, and `size` is not 0.
            unsafe { text.write(0) };
        }
    }
}

fn wrote(written: bool) -> Status {
    if written { SUCCESS } else { NULL_POINTER }
}

/// Gives the program a value that [`destroy`] frees.
fn create<T>(place: Out<*mut T>, value: T) -> Status {
    match place {
        Some(place) => {
            place.write(Box::into_raw(Box::new(value)));
            SUCCESS
        }
        None => NULL_POINTER,
    }
}

fn destroy<T>(value: *mut T) -> Status {
    if !value.is_null() {
        // SAFETY: the pointer comes from `create`, and cuDNN forbids programs to use it after its destruction.
        drop(unsafe { Box::from_raw(value) });
    }
    SUCCESS
}

/// Sizes as part of a kernel's name: `8x3x224x224`.
fn sizes(dimensions: &[i64]) -> String {
    dimensions.iter().map(i64::to_string).collect::<Vec<_>>().join("x")
}

fn elements(dimensions: &[i64]) -> u64 {
    dimensions.iter().map(|&size| u64::try_from(size).unwrap_or(0)).product()
}

fn describe(status: Status) -> &'static CStr {
    match status {
        0 => c"CUDNN_STATUS_SUCCESS",
        2000 => c"CUDNN_STATUS_BAD_PARAM",
        2002 => c"CUDNN_STATUS_BAD_PARAM_NULL_POINTER",
        3000 => c"CUDNN_STATUS_NOT_SUPPORTED",
        _ => c"CUDNN_UNKNOWN_STATUS",
    }
}
