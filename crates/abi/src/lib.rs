//! Owns numbers and structures that cross between Rust, C++ and Python in a rank's process.
//!
//! This crate is their only source. `cpp/abi.h` is generated from it by the test `tests/header.rs`, with assertions of
//! each layout; after a change, write the header again: `UNIFERENCE_WRITE=1 cargo test -p uniference-abi`. Numbers that
//! Python needs are attributes of the extension module (`crates/py`).
//!
//! | module | owns | between |
//! |---|---|---|
//! | [`entries`] | numbers in the stream of captured operators | the C++ library, `uniference-formats` |
//! | [`capture`] | the functions of the C++ library | the C++ library, the extension module |
//! | [`calls`] | a call of a process group, as one member makes it | both libraries, the extension module |
//! | [`gpus`] | simulated devices, and the functions by which they reach the rank | the library of simulated GPUs, the extension module |

pub mod calls;
pub mod capture;
pub mod entries;
pub mod gpus;

/// The generated header: the C++ half of this interface.
const HEADER: &[u8] = include_bytes!("../../../cpp/abi.h");

/// Version of this interface: the CRC-32 of `cpp/abi.h` and of the source of [`gpus`]. Libraries compare it when they are
/// loaded and refuse a library of another version.
pub const VERSION: u32 = crc32(HEADER) ^ crc32(include_bytes!("gpus.rs"));

/// Version of the C++ half: the CRC-32 of `cpp/abi.h`, which `scripts/build-capture.sh` computes, too.
pub const CAPTURE_VERSION: u32 = crc32(HEADER);

/// CRC-32 (ISO 3309, as in zlib).
const fn crc32(bytes: &[u8]) -> u32 {
    let (mut sum, mut at) = (u32::MAX, 0);
    while at < bytes.len() {
        sum ^= bytes[at] as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        at += 1;
    }
    !sum
}

#[cfg(test)]
mod tests {
    #[test]
    fn checksum_is_zlibs() {
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
    }
}
