//! Owns the first message of both sides: their protocol version and their capabilities.
//!
//! The encoding of a [`Hello`] is the same in all versions, so that sides of different versions can detect the
//! difference.

use crate::frame::FrameBuffer;
use crate::wire::Wire;
use serde::{Deserialize, Serialize};
use std::io;

/// The version of everything that follows a [`Hello`]. It grows with every change of a message.
pub const VERSION: u32 = 10;

/// The first frame in each direction of a rank's main wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Protocol version; sides of different versions do not continue.
    pub version: u32,
    /// Capabilities of the side, and its requirements of the other side: a sum of the constants below.
    pub capabilities: u64,
}

/// Capability: the elements of tensors are little endian. Both sides must be equal in it.
pub const LITTLE_ENDIAN: u64 = 1;
/// Capability: tensors can pass through memory that both sides have mapped.
pub const SHARED_MEMORY: u64 = 2;

/// Reason why two sides cannot work together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    /// The sides have different versions.
    #[error(
        "this side speaks version {ours} of the protocol between ranks and driver, the other side version {theirs}\nhint: install the same version of uniference on both sides"
    )]
    Version {
        /// The version of this side.
        ours: u32,
        /// The version of the other side.
        theirs: u32,
    },
    /// The two machines differ in the byte order of tensors' elements.
    #[error(
        "this machine and the other one order the bytes of numbers differently\nhint: choose machines of one byte order"
    )]
    ByteOrder,
    /// The other side cannot share memory, although its wire is on this machine.
    #[error(
        "the other side cannot share memory with this one\nhint: install the same version of uniference on both sides"
    )]
    SharedMemory,
}

impl Hello {
    /// This process's hello, for a wire with or without shared memory for tensors.
    pub fn new(shared_memory: bool) -> Hello {
        let order = if cfg!(target_endian = "little") { LITTLE_ENDIAN } else { 0 };
        Hello { version: VERSION, capabilities: order | if shared_memory { SHARED_MEMORY } else { 0 } }
    }

    /// Checks that a side with the hello `self` can work with one with the hello `other`.
    ///
    /// # Errors
    /// The reason if they cannot work together.
    pub fn check(self, other: Hello) -> Result<(), Disagreement> {
        let differ = |capability: u64| (self.capabilities ^ other.capabilities) & capability != 0;
        if self.version != other.version {
            return Err(Disagreement::Version { ours: self.version, theirs: other.version });
        }
        if differ(LITTLE_ENDIAN) {
            return Err(Disagreement::ByteOrder);
        }
        if self.capabilities & !other.capabilities & SHARED_MEMORY != 0 {
            return Err(Disagreement::SharedMemory);
        }
        Ok(())
    }

    /// Reads and checks the other side's hello.
    ///
    /// # Errors
    /// If no hello comes, or the other side cannot work with this one.
    pub fn hear(self, frames: &mut FrameBuffer, wire: &dyn Wire) -> io::Result<()> {
        let other: Hello = frames.read(wire)?;
        self.check(other).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_of_other_versions_and_machines_are_refused_with_a_hint() {
        let ours = Hello::new(true);
        assert_eq!(ours.check(ours), Ok(()));
        assert_eq!(Hello::new(false).check(ours), Ok(()));
        let refused = [
            (Hello { version: VERSION + 1, capabilities: u64::MAX }, "speaks version 10 of the protocol"),
            (Hello { capabilities: ours.capabilities ^ LITTLE_ENDIAN, ..ours }, "order the bytes"),
            (Hello::new(false), "cannot share memory"),
        ];
        for (theirs, words) in refused {
            let message = ours.check(theirs).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains("\nhint: "), "{message}");
        }
    }

    /// The bytes of a hello are the same in every version.
    #[test]
    fn a_hello_has_the_same_form_for_ever() {
        let mut frame = Vec::new();
        crate::frame::encode(&Hello { version: 300, capabilities: 3 }, &mut frame);
        assert_eq!(frame, [3, 0, 0, 0, 0xac, 0x02, 3]);
    }
}
