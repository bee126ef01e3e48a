//! Owns what a rank does for those who profile it: it takes down readings of the processor's counter, and asks when launches were.
//!
//! What follows from the readings is `timeline`'s business. Nothing is taken down, and nothing asked, of a rank that nobody profiles.

use super::{Answer, Client, Op, Result, unexpected};
use crate::timeline::{Ticks, Timeline, ticks};
use std::sync::atomic::Ordering::Relaxed;
use uniference_protocol::messages::LaunchTimes;

impl Client {
    /// A profile begins, whose readings of the counter are to be times.
    pub fn begin_timeline(&self) -> Result<()> {
        let (now, _) = self.now()?;
        self.moments.begin(ticks(), now);
        self.profiles.store(true, Relaxed);
        Ok(())
    }

    /// It ends: the rank's clock by the readings that were taken since it began.
    pub fn end_timeline(&self) -> Result<Timeline> {
        self.now()?;
        if self.moments.lacks_times() {
            self.ask_for_times()?;
        }
        let (timeline, others) = self.moments.end();
        self.profiles.store(others, Relaxed);
        Ok(timeline)
    }

    /// The program launches, at this reading, what it has given this number.
    pub fn launches(&self, number: u64, at: Ticks) {
        if self.profiles.load(Relaxed) {
            self.moments.launches(number, at);
        }
    }

    /// When the launches were that the program has numbered and that have ended, as far as this was not returned before.
    pub fn take_times(&self) -> Result<Vec<LaunchTimes>> {
        self.ask_for_times()?;
        Ok(self.moments.take_times())
    }

    fn ask_for_times(&self) -> Result<()> {
        loop {
            let _ours = self.ours();
            let (launches, more) = match self.ask(Op::Times)? {
                Answer::Times { launches, more } => (launches, more),
                other => unexpected("Times", &other),
            };
            self.moments.told(launches);
            if !more {
                return Ok(());
            }
        }
    }
}
