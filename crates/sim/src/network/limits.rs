//! Owns which link held a message back for how long, while its bytes left. Why it did is [`super::sharing`]'s business.

use crate::time::{SimDuration, SimTime};

/// The links that have held back the message at the head of a stream.
#[derive(Default)]
pub(super) struct Limits {
    /// The link that does so now.
    link: Option<u32>,
    since: SimTime,
    /// Those that did before, in order.
    before: Vec<(u32, SimDuration)>,
}

impl Limits {
    /// From `now` on it is this link; the message has begun to leave at `started`.
    pub(super) fn set(&mut self, link: u32, started: SimTime, now: SimTime) {
        if self.link != Some(link) {
            self.note(started, now);
            self.link = Some(link);
        }
    }

    /// The link that held the message back for longest, of several the first one; the message after it begins anew. `None`: the message left
    /// at once.
    pub(super) fn take_longest(&mut self, started: SimTime, now: SimTime) -> Option<u32> {
        self.note(started, now);
        let all = |link: u32| {
            let of_link = self.before.iter().filter(|(other, _)| *other == link);
            of_link.fold(SimDuration::ZERO, |sum, (_, lasts)| sum + *lasts)
        };
        let links = self.before.iter().map(|(link, _)| (all(*link), *link));
        let longest = links.reduce(|most, next| if next.0 > most.0 { next } else { most });
        self.before.clear();
        longest.map(|(_, link)| link)
    }

    fn note(&mut self, started: SimTime, now: SimTime) {
        let lasted = now.since(self.since.max(started));
        if let Some(link) = self.link.filter(|_| lasted > SimDuration::ZERO) {
            self.before.push((link, lasted));
        }
        self.since = now;
    }
}
