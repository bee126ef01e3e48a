//! Owns a rank's part in profiling: it records readings of the CPU's cycle counter, and queries the times of launches.
//!
//! `timeline` evaluates the readings. A rank without a profile records and queries nothing.

use super::{Answer, Client, Op, Result, unexpected};
use crate::timeline::{Ticks, Timeline, ticks};
use std::sync::atomic::Ordering::Relaxed;
use uniference_protocol::messages::LaunchTimes;

impl Client {
    /// Begins a profile, whose counter readings are to be converted to times.
    pub fn begin_timeline(&self) -> Result<()> {
        let (now, _) = self.now()?;
        self.moments.begin(ticks(), now);
        self.profiles.store(true, Relaxed);
        Ok(())
    }

    /// Ends a profile: returns the rank's clock as a function of the readings since its start.
    pub fn end_timeline(&self) -> Result<Timeline> {
        self.now()?;
        if self.moments.lacks_times() {
            self.ask_for_times()?;
        }
        let (timeline, others) = self.moments.end();
        self.profiles.store(others, Relaxed);
        Ok(timeline)
    }

    /// Records that the program launches the work with this number, at this reading.
    pub fn launches(&self, number: u64, at: Ticks) {
        if self.profiles.load(Relaxed) {
            self.moments.launches(number, at);
        }
    }

    /// Times of numbered launches that have ended and that no earlier call has returned.
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
