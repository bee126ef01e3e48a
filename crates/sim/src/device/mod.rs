//! Owns what compute is and what it costs: devices, the work that ranks do on them, and how long an operator takes on which.
//!
//! Where a new thing goes: another way to say what an operator costs is a [`CostModel`], in a file of its own beside `cost`; what a device holds in
//! memory is a module of this one. When work runs is the engine's business.
//!
//! Work that was measured or recorded has run beside whatever else ran then: its duration contains the contention, so two queues of one
//! device carry such work out side by side, each at full speed. Modelled work shares the device ([`Sharing`], [`Work::shares`]).

mod cost;
mod operator;
mod power;
mod rates;
mod sharing;
mod work;

pub use cost::{CostModel, Estimate, HostCosts, HostMemory};
pub use operator::{Dimensions, Elements, Family, FlatKind, Layout, Operator, Pass, Resource, RowKind};
pub use power::Power;
pub use rates::{Peaks, Precision, Rates};
pub use sharing::Sharing;
pub use work::{Origin, Work};

use crate::ids::HostId;
use crate::time::{Bytes, SimDuration, SimTime};

/// What a rank computes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// `orin.0`.
    pub name: String,
    /// The host that it is part of.
    pub host: HostId,
    /// Compute takes this many times as long as on the reference device; finite, above zero.
    pub slowdown: f64,
    /// The share of it that communication of its rank takes from modelled compute while it goes on; from 0 to less than 1.
    pub communication: f64,
    /// How much it has, if that is known.
    pub memory: Option<Bytes>,
    /// What it draws, if that is known.
    pub power: Option<Power>,
    /// What an hour of it costs, in whatever currency, if that is known.
    pub price: Option<f64>,
    /// What it can do at most, if that is known: what operators cost on it.
    pub rates: Option<Rates>,
    /// When it is slower than that: in order, none overlapping another.
    pub spells: Vec<SlowSpell>,
    /// When its rank crashes, unless it has ended before: its process is gone, and its connections are closed.
    pub crash: Option<SimTime>,
}

/// A time in which a device takes longer still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowSpell {
    /// The instant at which the device slows down.
    pub from: SimTime,
    /// The instant at which the slow spell is over.
    pub to: SimTime,
    /// Factor on the duration of compute; finite, above zero.
    pub factor: f64,
}

impl Device {
    /// As fast as the reference device, and nothing else is known of it.
    pub fn new(name: impl Into<String>, host: HostId) -> Device {
        Device {
            name: name.into(),
            host,
            slowdown: 1.0,
            communication: 0.0,
            memory: None,
            power: None,
            price: None,
            rates: None,
            spells: Vec::new(),
            crash: None,
        }
    }

    /// How long work takes that begins at `start` and takes `base` on the reference device.
    pub fn time_for(&self, start: SimTime, base: SimDuration) -> SimDuration {
        self.stretched(start, base.scaled(self.slowdown))
    }

    /// How long work takes that begins at `start` and takes `left` outside of slow spells.
    fn stretched(&self, start: SimTime, left: SimDuration) -> SimDuration {
        let mut left = left;
        let mut now = start;
        for spell in self.spells.iter().filter(|spell| spell.to > start) {
            let before = spell.from.as_ps().saturating_sub(now.as_ps());
            if left.as_ps() <= before {
                break;
            }
            left = SimDuration::from_ps(left.as_ps() - before);
            now = now.max(spell.from);
            let (during, length) = (left.scaled(spell.factor), spell.to.since(now));
            if during <= length {
                return SimDuration::from_ps(now.since(start).as_ps().saturating_add(during.as_ps()));
            }
            left = left.saturating_sub(length.scaled(1.0 / spell.factor));
            now = spell.to;
        }
        SimDuration::from_ps(now.since(start).as_ps().saturating_add(left.as_ps()))
    }

    /// How much of what takes that long outside of slow spells is done in a span of time: what [`Device::stretched`] undoes, but for rounding.
    fn unstretched(&self, from: SimTime, to: SimTime) -> SimDuration {
        let mut done = to.since(from);
        for spell in &self.spells {
            let (begin, end) = (spell.from.max(from), spell.to.min(to));
            if begin < end {
                let length = end.since(begin);
                let outside = done.saturating_sub(length);
                done = SimDuration::from_ps(outside.as_ps().saturating_add(length.scaled(1.0 / spell.factor).as_ps()));
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::PS_PER_SECOND;

    /// Twice as slow as the reference, and from second 3 to 5 four times as slow again. Work of `base` seconds that begins at `start` ends:
    /// before the spell, start + 2 base; in the spell, 8 seconds go by for each of the base; what is left after it, 2 again.
    #[test]
    fn a_spell_slows_what_falls_into_it() {
        let second = |s: f64| SimTime::from_ps((s * PS_PER_SECOND as f64) as u64);
        let spells = vec![SlowSpell { from: second(3.0), to: second(5.0), factor: 4.0 }];
        let device = Device { slowdown: 2.0, spells, ..Device::new("a", HostId(0)) };
        let cases = [
            (0.0, 1.0, 2.0),
            (0.0, 1.5, 3.0),
            // 2 s before it, in which 1 s of work is done, and 0.125 * 8 s in it.
            (1.0, 1.125, 4.0),
            // From its beginning: 2 s do 0.25 s of work, the other 0.75 take 1.5 s.
            (3.0, 1.0, 6.5),
            (4.0, 0.125, 5.0),
            (5.0, 1.0, 7.0),
        ];
        for (start, base, end) in cases {
            let lasts = device.time_for(second(start), second(base).since(SimTime::ZERO));
            assert_eq!(second(start) + lasts, second(end), "{base} s of work from {start} s on");
        }
    }

    proptest::proptest! {
        /// Spells of any factor, one behind the other: what is done while stretched work takes its time is that work, but for a picosecond at each border.
        #[test]
        fn what_is_done_in_a_span_is_what_takes_as_long(
            spells in proptest::collection::vec((0_u64..1_000_000, 1_u64..1_000_000, 0.05_f64..20.0), 0..5),
            start in 0_u64..3_000_000,
            work in 0_u64..3_000_000,
        ) {
            let mut end = 0;
            let spells = spells.into_iter().map(|(gap, length, factor)| {
                let from = end + gap;
                end = from + length;
                SlowSpell { from: SimTime::from_ps(from), to: SimTime::from_ps(end), factor }
            });
            let device = Device { spells: spells.collect(), ..Device::new("a", HostId(0)) };
            let start = SimTime::from_ps(start);
            let lasts = device.stretched(start, SimDuration::from_ps(work));
            let done = device.unstretched(start, start + lasts);
            // A picosecond of a spell of factor 0.05 is 20 of work.
            proptest::prop_assert!(done.as_ps().abs_diff(work) <= 21 * 5, "{} of {work} in {}", done.as_ps(), lasts.as_ps());
        }
    }
}
