//! Owns the warning about a simulation that makes almost no progress in virtual time because links of the cluster
//! change continually. `uniference-sim` simulates the changes, without access to the real clock.

use crate::notices::Notices;
use std::time::{Duration, Instant};
use uniference_sim::event::{Event, Observer};
use uniference_sim::time::SimTime;

/// Real time without other events than link changes after which the user is warned, once.
const LONG: Duration = Duration::from_secs(10);

/// Number of changes of links, without an event between them, after which the real clock is read again.
const CHANGES_A_LOOK: u32 = 1 << 12;

/// Observer of a run.
pub(crate) struct Patience {
    notices: Notices,
    /// Changes of links since the last event.
    changes: u64,
    /// Real and virtual time of the first such change.
    since: Option<(Instant, SimTime)>,
    warned: bool,
}

impl Patience {
    /// Sends warnings to `notices`.
    pub(crate) fn new(notices: Notices) -> Patience {
        Patience { notices, changes: 0, since: None, warned: false }
    }

    /// The warning, if it is due at the real time `now`.
    fn look(&mut self, now: Instant, at: SimTime, link: &str) -> Option<String> {
        let (since, from) = *self.since.get_or_insert((now, at));
        let passed = now.duration_since(since);
        if passed < LONG || self.warned {
            return None;
        }
        self.warned = true;
        let (seconds, changes, span) = (passed.as_secs(), self.changes, at.since(from));
        Some(format!(
            "link \"{link}\" changes too often: {seconds} s of wall time simulated only {span}, with {changes} changes up to {at} \
             and no other event\nhint: use a longer `period`, or longer steps between the points of its profile ([[network.change]] of the cluster file)"
        ))
    }
}

impl Observer for Patience {
    fn record(&mut self, _: SimTime, _: &Event<'_>) {
        (self.changes, self.since) = (0, None);
    }

    fn link_changed(&mut self, at: SimTime, link: &str) {
        self.changes += 1;
        if self.since.is_some() && !self.changes.is_multiple_of(CHANGES_A_LOOK.into()) {
            return;
        }
        if let Some(warning) = self.look(Instant::now(), at, link) {
            self.notices.warn(&warning);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_sim::ids::{RankId, TaskId};
    use uniference_sim::program::Mark;

    #[test]
    fn ten_seconds_of_nothing_but_changes_are_said_once() {
        let (mut patience, start) = (Patience::new(Notices::ignored()), Instant::now());
        let look = |patience: &mut Patience, seconds: u64| {
            patience.changes += 1;
            patience.look(start + Duration::from_secs(seconds), SimTime::from_ps(1_000 + seconds), "a-up")
        };
        assert_eq!(look(&mut patience, 0), None);
        assert_eq!(look(&mut patience, 9), None);
        // Any other event resets the count.
        patience.record(
            SimTime::ZERO,
            &Event::Marked { rank: RankId(0), task: TaskId(0), mark: &Mark::End, why: Default::default(), spent: None },
        );
        assert_eq!(look(&mut patience, 10), None);
        assert_eq!(look(&mut patience, 19), None);
        let warning = look(&mut patience, 20).unwrap();
        assert!(
            warning
                .starts_with("link \"a-up\" changes too often: 10 s of wall time simulated only 10 ps, with 3 changes"),
            "{warning}"
        );
        assert!(warning.contains("\nhint: "), "{warning}");
        assert_eq!(look(&mut patience, 40), None);
    }
}
