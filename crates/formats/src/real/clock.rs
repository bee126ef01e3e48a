//! Owns the conversion from a host's clock to the reference clock, the clock of rank 0's host.

use serde::Deserialize;

/// A comparison: at `at_ns` of the host's clock the reference clock showed `offset_ns` more, with an error of at most
/// `error_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Reading {
    /// Nanoseconds of the host's clock.
    pub at_ns: i64,
    /// Difference of the reference clock from the host's clock, in nanoseconds.
    pub offset_ns: i64,
    /// Half of the comparison's round trip, in nanoseconds.
    pub error_ns: i64,
}

/// A host's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(Vec<Reading>);

impl Clock {
    /// A clock with its comparisons: none (the reference clock), one, or one before and one after the run.
    pub fn new(readings: Vec<Reading>) -> Clock {
        Clock(readings)
    }

    /// A time of this clock on the reference clock, both in nanoseconds. The offset is linear through both readings,
    /// also beyond them: clocks drift steadily during a run.
    pub fn reference(&self, at: i64) -> i64 {
        match self.0[..] {
            [] => at,
            [only] => at.saturating_add(only.offset_ns),
            [first, .., last] if first.at_ns == last.at_ns => at.saturating_add(first.offset_ns),
            [first, .., last] => {
                let span = |from: i64, to: i64| to.saturating_sub(from) as f64;
                let drift = span(first.offset_ns, last.offset_ns) / span(first.at_ns, last.at_ns);
                let since = (span(first.at_ns, at) * drift).round() as i64;
                at.saturating_add(first.offset_ns).saturating_add(since)
            }
        }
    }

    /// Maximum error of a time, in nanoseconds.
    pub fn error(&self) -> i64 {
        self.0.iter().map(|reading| reading.error_ns).max().unwrap_or(0)
    }
}
