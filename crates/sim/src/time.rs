//! Owns instants, durations, sizes and rates as checked newtypes. Time is in integer picoseconds: 400 Gbit/s is exactly
//! 20 ps per byte.
//!
//! `uniference-formats` reads and prints values with units (`"25 Gbps"`).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// Picoseconds in one second.
pub const PS_PER_SECOND: u64 = 1_000_000_000_000;

/// An instant of virtual time, in picoseconds since the first statement of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SimTime(u64);

/// A length of virtual time, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SimDuration(u64);

/// A size in bytes. Sums saturate: sizes come from files, and data that is never sent within virtual time may have any
/// size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(pub u64);

/// A data rate in bytes per second; finite and above zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Rate(f64);

impl SimTime {
    /// Time zero, at which the programs begin with their first statements.
    pub const ZERO: SimTime = SimTime(0);
    /// An instant later than every event, also used for "never". About 213 days.
    pub const MAX: SimTime = SimTime(u64::MAX);

    /// The instant `ps` picoseconds after time zero.
    pub const fn from_ps(ps: u64) -> SimTime {
        SimTime(ps)
    }

    /// Picoseconds since time zero.
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Seconds since time zero, for people and reports.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / PS_PER_SECOND as f64
    }

    /// The time since `earlier`.
    ///
    /// # Panics
    /// If `earlier` is later than `self`: the engine would have let time run backwards.
    pub fn since(self, earlier: SimTime) -> SimDuration {
        match self.0.checked_sub(earlier.0) {
            Some(ps) => SimDuration(ps),
            None => panic!("{earlier} lies after {self}"),
        }
    }

    /// The instant `span` later, or `None` past 213 days of virtual time.
    pub fn checked_add(self, span: SimDuration) -> Option<SimTime> {
        self.0.checked_add(span.0).filter(|ps| *ps != u64::MAX).map(SimTime)
    }

    /// The instant `span` later, at most [`SimTime::MAX`].
    pub fn saturating_add(self, span: SimDuration) -> SimTime {
        SimTime(self.0.saturating_add(span.0))
    }
}

impl SimDuration {
    /// No time at all.
    pub const ZERO: SimDuration = SimDuration(0);
    /// The longest duration; about 213 days.
    pub const MAX: SimDuration = SimDuration(u64::MAX);

    /// A duration of `ps` picoseconds.
    pub const fn from_ps(ps: u64) -> SimDuration {
        SimDuration(ps)
    }

    /// A duration of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> SimDuration {
        SimDuration(ns * 1_000)
    }

    /// A duration of `us` microseconds.
    pub const fn from_us(us: u64) -> SimDuration {
        SimDuration(us * 1_000_000)
    }

    /// `seconds` rounded up to a picosecond, or `None` if negative, not a number or too long.
    pub fn from_secs_f64(seconds: f64) -> Option<SimDuration> {
        let ps = (seconds * PS_PER_SECOND as f64).ceil();
        (ps >= 0.0 && ps < u64::MAX as f64).then_some(SimDuration(ps as u64))
    }

    /// The duration in picoseconds.
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Seconds, for people and reports.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / PS_PER_SECOND as f64
    }

    /// `self * factor`, rounded up to a picosecond, at most [`SimDuration::MAX`]. `factor` must be finite and not
    /// negative.
    pub fn scaled(self, factor: f64) -> SimDuration {
        assert!(factor.is_finite() && factor >= 0.0, "a duration cannot be scaled by {factor}");
        if factor == 1.0 { self } else { SimDuration((self.0 as f64 * factor).ceil() as u64) }
    }

    /// `self` minus `other`, at least zero.
    pub fn saturating_sub(self, other: SimDuration) -> SimDuration {
        SimDuration(self.0.saturating_sub(other.0))
    }
}

impl Rate {
    /// `bytes_per_second`, or `None` if it is zero, negative or not finite.
    pub fn new(bytes_per_second: f64) -> Option<Rate> {
        (bytes_per_second.is_finite() && bytes_per_second > 0.0).then_some(Rate(bytes_per_second))
    }

    /// A constant rate.
    ///
    /// # Panics
    /// If the rate is not finite or not above zero.
    pub(crate) const fn of_bytes_per_second(bytes_per_second: f64) -> Rate {
        assert!(bytes_per_second > 0.0 && bytes_per_second < f64::INFINITY);
        Rate(bytes_per_second)
    }

    /// A rate from its value in bits per second, the unit of networks.
    pub fn from_bits_per_second(bits: f64) -> Option<Rate> {
        Rate::new(bits / 8.0)
    }

    /// Bytes per second.
    pub const fn bytes_per_second(self) -> f64 {
        self.0
    }

    /// Duration of `bytes` at this rate alone, rounded up to a picosecond.
    pub fn time_for(self, bytes: Bytes) -> SimDuration {
        SimDuration::from_secs_f64(bytes.0 as f64 / self.0).unwrap_or(SimDuration::MAX)
    }
}

impl Add<SimDuration> for SimTime {
    type Output = SimTime;

    /// # Panics
    /// Past 213 days of virtual time. If a user's input can lead there, use [`SimTime::checked_add`].
    fn add(self, span: SimDuration) -> SimTime {
        self.checked_add(span).unwrap_or_else(|| panic!("{self} + {span} is past the end of virtual time"))
    }
}

impl Add for SimDuration {
    type Output = SimDuration;
    fn add(self, other: SimDuration) -> SimDuration {
        SimDuration(self.0.saturating_add(other.0))
    }
}

impl AddAssign for SimDuration {
    fn add_assign(&mut self, other: SimDuration) {
        *self = *self + other;
    }
}

impl Sub for SimDuration {
    type Output = SimDuration;
    fn sub(self, other: SimDuration) -> SimDuration {
        SimDuration(self.0.checked_sub(other.0).unwrap_or_else(|| panic!("{self} - {other} is negative")))
    }
}

impl SubAssign for SimDuration {
    fn sub_assign(&mut self, other: SimDuration) {
        *self = *self - other;
    }
}

impl Sum for SimDuration {
    fn sum<I: Iterator<Item = SimDuration>>(durations: I) -> SimDuration {
        durations.fold(SimDuration::ZERO, Add::add)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        sizes.fold(Bytes(0), Add::add)
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SimDuration(self.0).fmt(f)
    }
}

impl fmt::Display for SimDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ps = self.0;
        let (unit, name) = match ps {
            0..1_000 => return write!(f, "{ps} ps"),
            1_000..1_000_000 => (1_000, "ns"),
            1_000_000..1_000_000_000 => (1_000_000, "us"),
            1_000_000_000..PS_PER_SECOND => (1_000_000_000, "ms"),
            _ => (PS_PER_SECOND, "s"),
        };
        write!(f, "{:.3} {name}", ps as f64 / unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_at_400_gbps_takes_exactly_20_ps() {
        let rate = Rate::from_bits_per_second(400e9).unwrap();
        assert_eq!(rate.time_for(Bytes(1)).as_ps(), 20);
        assert_eq!(rate.time_for(Bytes(1 << 30)).as_ps(), 20 << 30);
    }

    #[test]
    fn a_rate_is_finite_and_above_zero() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Rate::new(bad), None);
        }
    }

    #[test]
    fn time_past_213_days_is_refused() {
        assert_eq!(SimTime::MAX.checked_add(SimDuration::from_ps(1)), None);
        assert_eq!(SimTime::from_ps(u64::MAX - 1).checked_add(SimDuration::from_ps(1)), None);
    }

    #[test]
    fn sums_of_sizes_stop_at_the_largest() {
        let mut most = Bytes(u64::MAX) + Bytes(1);
        most += Bytes(7);
        assert_eq!([most, [most, Bytes(3)].into_iter().sum()], [Bytes(u64::MAX); 2]);
    }

    #[test]
    fn completions_round_up() {
        assert_eq!(Rate::new(3.0).unwrap().time_for(Bytes(1)).as_ps(), 333_333_333_334);
        assert_eq!(SimDuration::from_ps(3).scaled(1.5).as_ps(), 5);
    }
}
