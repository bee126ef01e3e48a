//! Owns streams: which there are, and what is launched on them. How long it takes is the driver's business.

use crate::attach::link;
use std::ffi::c_void;

/// `cudaStream_t`, `CUstream`: 0 and 1 are the legacy default stream of the thread's device, 2 is the thread's own default stream there.
pub(crate) type Handle = *mut c_void;

/// Has a kernel start on a stream. `bytes` of its arguments if known, else 0.
pub(crate) fn launch(stream: Handle, name: &str, bytes: u64) {
    if let Some(link) = link() {
        // SAFETY: the name is there during the call.
        let kernel = unsafe { (link.kernel)(name.as_ptr(), name.len()) };
        (link.launch)(kernel, number(stream), 0, bytes);
    }
}

fn number(stream: Handle) -> u32 {
    if (stream as usize) <= 2 { 0 } else { (stream as usize >> 4) as u32 }
}
