//! Owns the record of the links that held a message back while its bytes left, with durations. [`super::sharing`]
//! determines which link limits a message.

use crate::time::{SimDuration, SimTime};

/// Links that have held back the message at the head of a stream.
#[derive(Default)]
pub(super) struct Limits {
    /// Link that holds the message back now.
    link: Option<u32>,
    since: SimTime,
    /// Links that held the message back before, in the order of their first times, each with its total duration.
    before: Vec<(u32, SimDuration)>,
}

impl Limits {
    /// Records that `link` holds the message back from `now` on; the message began to leave at `started`.
    pub(super) fn set(&mut self, link: u32, started: SimTime, now: SimTime) {
        if self.link != Some(link) {
            self.note(started, now);
            self.link = Some(link);
        }
    }

    /// Link that held the message back for longest; the first link if several did equally long. `None` if the message
    /// left at once. The record is cleared for the next message.
    pub(super) fn take_longest(&mut self, started: SimTime, now: SimTime) -> Option<u32> {
        self.note(started, now);
        let longest = self.before.drain(..).reduce(|most, next| if next.1 > most.1 { next } else { most });
        longest.map(|(link, _)| link)
    }

    fn note(&mut self, started: SimTime, now: SimTime) {
        let lasted = now.since(self.since.max(started));
        if let Some(link) = self.link.filter(|_| lasted > SimDuration::ZERO) {
            match self.before.iter_mut().find(|(before, _)| *before == link) {
                Some((_, sum)) => *sum += lasted,
                None => self.before.push((link, lasted)),
            }
        }
        self.since = now;
    }
}
