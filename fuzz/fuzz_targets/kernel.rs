//! Texts of Triton's compiler are parsed or refused. They are not run, because a kernel may access any address.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_triton::Kernel;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Kernel::read(text);
    }
});
