//! Owns the functions of the CUDA runtime (libcudart): parameters and results. [`crate::memory`], [`crate::streams`],
//! [`crate::kernels`] and [`crate::device`] implement them.

mod devices;
mod graph;
mod kernel;
mod memories;
mod stream;

use crate::errors::{self, NOT_READY, Status};
use crate::exports::exports;
use std::cell::Cell;
use std::ffi::{CStr, c_char};

thread_local! {
    static LAST: Cell<Status> = const { Cell::new(0) };
}

/// Declares runtime functions: the body returns `Result<(), Status>`, whose error becomes the thread's last error.
macro_rules! runtime {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> $crate::errors::Status {
                fn body($($argument: $type),*) -> Result<(), $crate::errors::Status> $body
                $crate::runtime::finish($crate::cupti::call(
                    $crate::cupti::Domain::Runtime,
                    stringify!($name),
                    || body($($argument),*),
                ))
            }
        )*
    };
}
pub(crate) use runtime;

/// Keeps an error for `cudaGetLastError`, except `NOT_READY`.
pub(crate) fn finish(result: Result<(), Status>) -> Status {
    let status = result.err().unwrap_or(0);
    if status != 0 && status != NOT_READY {
        LAST.set(status);
    }
    status
}

fn text_of(status: Status, text: impl Fn(&'static errors::Error) -> &'static CStr) -> *const c_char {
    errors::find(status).map_or(c"unrecognized error code", text).as_ptr()
}

exports! {
    fn cudaGetLastError() -> Status { LAST.take() }
    fn cudaPeekAtLastError() -> Status { LAST.get() }
    fn cudaGetErrorName(status: Status) -> *const c_char { text_of(status, |error| error.runtime) }
    fn cudaGetErrorString(status: Status) -> *const c_char { text_of(status, |error| error.text) }
}
