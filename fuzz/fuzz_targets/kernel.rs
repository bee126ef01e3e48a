//! TTIR texts are parsed or refused. No kernel is run: its accesses could be anywhere in memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_triton::Kernel;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Kernel::read(text);
    }
});
