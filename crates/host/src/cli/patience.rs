//! Owns the warning that virtual time hardly passes because links of the cluster change all the time. When they change is the business
//! of `uniference-sim`, which has no clock of the host.

use std::time::{Duration, Instant};
use uniference_sim::record::{Event, Observer};
use uniference_sim::time::SimTime;

/// After so long without anything but changes of links the user is told, once.
const LONG: Duration = Duration::from_secs(10);

/// The host's clock is read once in so many changes.
const CHANGES_A_LOOK: u32 = 1 << 12;

/// Looks on while a run goes on.
#[derive(Default)]
pub(super) struct Patience {
    /// Changes of links since the last event.
    changes: u64,
    /// When the first of them was seen: on the host, and in virtual time.
    since: Option<(Instant, SimTime)>,
    warned: bool,
}

impl Patience {
    /// The warning, if `now` on the host it is due.
    fn look(&mut self, now: Instant, at: SimTime, link: &str) -> Option<String> {
        let (since, from) = *self.since.get_or_insert((now, at));
        let passed = now.duration_since(since);
        if passed < LONG || self.warned {
            return None;
        }
        self.warned = true;
        let (seconds, changes, span) = (passed.as_secs(), self.changes, at.since(from));
        Some(format!(
            "link \"{link}\" changes so often that {seconds} s have simulated no more than {span}: {changes} changes up to {at}, \
             and nothing else\nhint: give its `period` or the times of its profile ([[network.change]] of the cluster file) a longer step"
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
            super::complain(format_args!("warning: {warning}\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_sim::ids::RankId;
    use uniference_sim::program::Mark;

    #[test]
    fn ten_seconds_of_nothing_but_changes_are_said_once() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let look = |patience: &mut Patience, seconds: u64| {
            patience.changes += 1;
            patience.look(start + Duration::from_secs(seconds), SimTime::from_ps(1_000 + seconds), "a-up")
        };
        assert_eq!(look(&mut patience, 0), None);
        assert_eq!(look(&mut patience, 9), None);
        // Something has happened: what was before does not count.
        patience.record(SimTime::ZERO, &Event::Marked { rank: RankId(0), mark: &Mark::End });
        assert_eq!(look(&mut patience, 10), None);
        assert_eq!(look(&mut patience, 19), None);
        let warning = look(&mut patience, 20).unwrap();
        assert!(
            warning
                .starts_with("link \"a-up\" changes so often that 10 s have simulated no more than 10 ps: 3 changes"),
            "{warning}"
        );
        assert!(warning.contains("\nhint: "), "{warning}");
        assert_eq!(look(&mut patience, 40), None);
    }
}
