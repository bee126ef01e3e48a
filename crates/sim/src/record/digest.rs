//! Owns the digest: one number that two runs share if and only if they were the same, operation by operation.

use super::{Event, Observer};
use crate::time::SimTime;
use sha2::{Digest as _, Sha256};

/// SHA-256 over every event but messages (whose effects are in the operations' times), so that it does not depend on who looks on. An event is
/// its time and itself in postcard's wire format, which is the same on every machine and in every version 1 of it.
#[derive(Clone, Default)]
pub struct Digest {
    hash: Sha256,
    /// Kept for its memory.
    bytes: Vec<u8>,
}

impl Digest {
    /// The digest so far, in hexadecimal.
    pub fn to_hex(&self) -> String {
        self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Observer for Digest {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        if !matches!(event, Event::Message { .. }) {
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.clear();
            self.bytes = postcard::to_extend(&(at, event), bytes).expect("memory takes all that an event is made of");
            self.hash.update(&self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{RankId, TaskId};
    use crate::program::{Mark, Origin, Outcome};
    use crate::record::{Times, Traffic};
    use crate::time::SimDuration;

    #[test]
    fn the_digest_of_these_events_is_the_same_for_ever() {
        // Digests that users have kept must go on to mean what they mean: where this fails, the version of the report is a new one.
        let mut digest = Digest::default();
        let (rank, start) = (RankId(3), SimTime::from_ps(5));
        let base = SimDuration::from_ps(1 << 40);
        let end = SimTime::from_ps(5 + (1 << 40));
        digest.record(end, &Event::Computed { rank, task: TaskId(1), start, base, origin: Origin::Measured });
        digest.record(end, &Event::Marked { rank, mark: &Mark::Begin("step".into()) });
        let (times, traffic) = (Times { compute: base, ..Times::default() }, Traffic::default());
        digest.record(end, &Event::Finished { rank, outcome: Outcome::Ok, times, traffic });
        assert_eq!(digest.to_hex(), "e28b5471a587d620434721e91e23fdcf5565da0132bec818d6e38a57cf1b8f27");
    }
}
