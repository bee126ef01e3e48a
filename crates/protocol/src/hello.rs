//! Owns what both sides say first: which protocol they speak, and what they can.
//!
//! Its form never changes, whatever the version, so that sides of different versions understand at least that they are.

use crate::frame::FrameBuffer;
use crate::wire::Wire;
use serde::{Deserialize, Serialize};
use std::io;

/// The version of everything that follows a [`Hello`]. It grows with every change of a message.
pub const VERSION: u32 = 10;

/// The first frame in each direction of a rank's main wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Of the protocol; sides of different versions do not go on.
    pub version: u32,
    /// What the side can, and what it needs of the other; a sum of the numbers below.
    pub capabilities: u64,
}

/// Tensors travel in this order of their elements' bytes. Both sides must have the same.
pub const LITTLE_ENDIAN: u64 = 1;
/// Tensors can pass through memory that both sides have mapped.
pub const SHARED_MEMORY: u64 = 2;

/// Why two sides cannot work together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    /// They are of different versions.
    #[error(
        "this side speaks version {ours} of the protocol between ranks and driver, the other side version {theirs}\nhint: install the same version of uniference on both sides"
    )]
    Version {
        /// The version of this side.
        ours: u32,
        /// The version of the other side.
        theirs: u32,
    },
    /// Elements of tensors have another order of bytes.
    #[error(
        "this machine and the other one order the bytes of numbers differently\nhint: choose machines of one byte order"
    )]
    ByteOrder,
    /// The other side cannot share memory, though its wire is of this machine.
    #[error(
        "the other side cannot share memory with this one\nhint: install the same version of uniference on both sides"
    )]
    SharedMemory,
}

impl Hello {
    /// What this program says of itself on a wire on which tensors pass through shared memory, or not.
    pub fn new(shared_memory: bool) -> Hello {
        let order = if cfg!(target_endian = "little") { LITTLE_ENDIAN } else { 0 };
        Hello { version: VERSION, capabilities: order | if shared_memory { SHARED_MEMORY } else { 0 } }
    }

    /// Whether the side that says `self` can work with the one that says `other`.
    ///
    /// # Errors
    /// If it cannot.
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

    /// Reads what the other side says first, and checks it.
    ///
    /// # Errors
    /// If it says nothing, or cannot work with this side.
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
            (Hello { version: VERSION + 1, capabilities: u64::MAX }, "speaks version 9 of the protocol"),
            (Hello { capabilities: ours.capabilities ^ LITTLE_ENDIAN, ..ours }, "order the bytes"),
            (Hello::new(false), "cannot share memory"),
        ];
        for (theirs, words) in refused {
            let message = ours.check(theirs).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains("\nhint: "), "{message}");
        }
    }

    /// The bytes that every version begins with.
    #[test]
    fn a_hello_has_the_same_form_for_ever() {
        let mut frame = Vec::new();
        crate::frame::encode(&Hello { version: 300, capabilities: 3 }, &mut frame);
        assert_eq!(frame, [3, 0, 0, 0, 0xac, 0x02, 3]);
    }
}
