//! Owns compute and its cost: devices, the work of ranks on them, and the duration of operators on each device.
//!
//! To add a cost model, implement [`CostModel`] in a file of its own next to `cost`. The content of a device's memory
//! belongs to a module of this one. The engine decides when work runs.
//!
//! Measured and recorded durations contain the contention with work that ran at the same time; two queues of one device
//! therefore run such work concurrently, each at full speed. Modelled work shares the device ([`Sharing`],
//! [`Work::shares`]).

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

/// Device that a rank computes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Name, as `orin.0`.
    pub name: String,
    /// Host that the device is part of.
    pub host: HostId,
    /// Factor of the duration of compute compared with the reference device; finite, above zero.
    pub slowdown: f64,
    /// Share of the device that its rank's communication occupies while it is in progress, at the expense of modelled
    /// compute; from 0 to less than 1.
    pub communication: f64,
    /// Size of the device's memory, if known.
    pub memory: Option<Bytes>,
    /// Power draw, if known.
    pub power: Option<Power>,
    /// Price per hour, in any currency, if known.
    pub price: Option<f64>,
    /// Peak rates, if known: the base of operators' cost.
    pub rates: Option<Rates>,
    /// Time intervals in which the device is slower than `slowdown` says: in order, without overlap.
    pub spells: Vec<SlowSpell>,
    /// Time at which the device's rank crashes, unless it has ended before: its process is gone, and its connections
    /// are closed.
    pub crash: Option<SimTime>,
}

/// Time interval in which a device is slower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowSpell {
    /// The instant at which the device slows down.
    pub from: SimTime,
    /// The instant at which the device has its usual speed again.
    pub to: SimTime,
    /// Factor on the duration of compute; finite, above zero.
    pub factor: f64,
}

impl Device {
    /// A device as fast as the reference device, with no other property known.
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

    /// Duration of work that begins at `start` and whose duration on the reference device is `base`.
    pub fn time_for(&self, start: SimTime, base: SimDuration) -> SimDuration {
        self.stretched(start, base.scaled(self.slowdown))
    }

    /// Duration of work that begins at `start` and lasts `left` outside of slow spells.
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

    /// Amount of work, as its duration outside of slow spells, that is done in a span of time: the inverse of
    /// [`Device::stretched`], except for rounding.
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

    /// Twice as slow as the reference, and from second 3 to 5 four times as slow again. Work of `base` seconds that
    /// begins at `start` ends at start + 2 base before the spell; in the spell, each second of the base lasts 8
    /// seconds; after the spell, 2 seconds again.
    #[test]
    fn a_spell_slows_what_falls_into_it() {
        let second = |s: f64| SimTime::from_ps((s * PS_PER_SECOND as f64) as u64);
        let spells = vec![SlowSpell { from: second(3.0), to: second(5.0), factor: 4.0 }];
        let device = Device { slowdown: 2.0, spells, ..Device::new("a", HostId(0)) };
        let cases = [
            (0.0, 1.0, 2.0),
            (0.0, 1.5, 3.0),
            // 1 s of work lasts 2 s before the spell, and the other 0.125 s of work last 8 * 0.125 s in the spell.
            (1.0, 1.125, 4.0),
            // From the beginning of the spell: its 2 s do 0.25 s of work, the other 0.75 s last 1.5 s.
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
        /// For spells of any factor, one after the other, `Device::worked` inverts `Device::stretched`, except for a
        /// picosecond at each border of a spell.
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
            // In a spell of factor 0.05, 20 ps of work are done in a picosecond.
            proptest::prop_assert!(done.as_ps().abs_diff(work) <= 21 * 5, "{} of {work} in {}", done.as_ps(), lasts.as_ps());
        }
    }
}
