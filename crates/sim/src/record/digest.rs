//! Owns the digest: one number that two runs share if and only if they were the same, operation by operation.

use super::{Event, Observer};
use crate::time::SimTime;
use sha2::{Digest as _, Sha256};
use std::hash::{Hash, Hasher};

/// SHA-256 over every event but messages (whose effects are in the operations' times), so that it does not depend on who looks on.
#[derive(Clone, Default)]
pub struct Digest(Sha256);

impl Digest {
    /// The digest so far, in hexadecimal.
    pub fn to_hex(&self) -> String {
        self.0.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Observer for Digest {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        if !matches!(event, Event::Message { .. }) {
            let mut hasher = Portable(&mut self.0);
            at.hash(&mut hasher);
            event.hash(&mut hasher);
        }
    }
}

/// Feeds what `derive(Hash)` yields to SHA-256 in one byte order and one width on every machine.
struct Portable<'a>(&'a mut Sha256);

impl Hasher for Portable<'_> {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn write_u8(&mut self, value: u8) {
        self.write(&[value]);
    }

    fn write_u32(&mut self, value: u32) {
        self.write(&value.to_le_bytes());
    }

    fn write_u64(&mut self, value: u64) {
        self.write(&value.to_le_bytes());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as i64 as u64);
    }

    fn finish(&self) -> u64 {
        unreachable!("the digest is read with to_hex")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RankId;
    use crate::program::Mark;

    fn digest(at: u64, rank: u32) -> String {
        let mut digest = Digest::default();
        digest.record(SimTime::from_ps(at), &Event::Marked { rank: RankId(rank), mark: &Mark::Begin("step".into()) });
        digest.to_hex()
    }

    #[test]
    fn it_tells_events_and_times_apart() {
        assert_eq!(digest(1, 2), digest(1, 2));
        assert_ne!(digest(1, 2), digest(1, 3));
        assert_ne!(digest(1, 2), digest(2, 2));
    }
}
