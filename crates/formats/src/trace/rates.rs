//! Owns the load of each link over time: bytes in bins, of which there are never more than a few hundred.
//!
//! A message's bytes are spread evenly over the time in which it left. Each byte counts exactly once, for any width of
//! the bins.

use std::collections::BTreeMap;
use uniference_sim::ids::LinkId;
use uniference_sim::time::{Bytes, PS_PER_SECOND, SimTime};

/// Maximum number of bins; a longer run has wider ones.
const BINS: u64 = 512;
/// Initial width of a bin in picoseconds: 1 us.
const NARROWEST: u64 = 1_000_000;

/// Bytes by link and bin.
pub struct LinkRates {
    width: u64,
    bins: BTreeMap<LinkId, Vec<u64>>,
}

impl Default for LinkRates {
    fn default() -> LinkRates {
        LinkRates { width: NARROWEST, bins: BTreeMap::new() }
    }
}

impl LinkRates {
    /// Adds `bytes` that passed over each of `links` from `start` to `end`.
    pub fn add(&mut self, links: &[LinkId], start: SimTime, end: SimTime, bytes: Bytes) {
        let (start, end) = (start.as_ps(), end.as_ps());
        while end / self.width >= BINS {
            self.widen();
        }
        for link in links {
            spread(self.bins.entry(*link).or_default(), self.width, start..end, bytes.0);
        }
    }

    fn widen(&mut self) {
        self.width *= 2;
        for bins in self.bins.values_mut() {
            *bins = bins.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
    }

    /// The width of a bin, in picoseconds.
    pub fn width_ps(&self) -> u64 {
        self.width
    }

    /// The bytes of each used link in each bin, from the first instant on.
    pub fn bytes(&self) -> impl Iterator<Item = (LinkId, &[u64])> {
        self.bins.iter().map(|(link, bins)| (*link, &bins[..]))
    }

    /// The moments at which the rate of each used link changes, and the rate in bytes per second from then on.
    pub(super) fn counters(&self) -> impl Iterator<Item = (LinkId, Vec<(SimTime, f64)>)> + use<> {
        let width = self.width;
        self.bins.clone().into_iter().map(move |(link, bins)| (link, changes(&bins, width)))
    }
}

/// Adds `bytes` to the bins that the span touches, in proportion. The sum at a bin's end is rounded down, and a bin
/// gets the difference of two sums: rounding moves a byte between neighbours and loses none.
fn spread(bins: &mut Vec<u64>, width: u64, span: std::ops::Range<u64>, bytes: u64) {
    let (first, last) = ((span.start / width) as usize, (span.end / width) as usize);
    if bins.len() <= last {
        bins.resize(last + 1, 0);
    }
    let length = u128::from(span.end - span.start);
    let passed = |at: u64| match length {
        0 => bytes,
        _ => (u128::from(bytes) * u128::from(at.clamp(span.start, span.end) - span.start) / length) as u64,
    };
    let mut before = 0;
    for (bin, slot) in bins.iter_mut().enumerate().take(last + 1).skip(first) {
        let now = if bin == last { bytes } else { passed((bin as u64 + 1) * width) };
        *slot += now - before;
        before = now;
    }
}

fn changes(bins: &[u64], width: u64) -> Vec<(SimTime, f64)> {
    let mut points = Vec::new();
    let mut previous = 0;
    for (bin, &bytes) in bins.iter().chain([&0]).enumerate() {
        if bytes != previous {
            let rate = bytes as f64 * (PS_PER_SECOND as f64 / width as f64);
            points.push((SimTime::from_ps(bin as u64 * width), rate));
            previous = bytes;
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ps: u64) -> SimTime {
        SimTime::from_ps(ps)
    }

    #[test]
    fn a_message_is_spread_over_the_time_in_which_it_left() {
        let mut rates = LinkRates::default();
        // 3000 B from 0.5 us to 2 us: 1000 B in the first half microsecond, 2000 B in the next one
        rates.add(&[LinkId(4)], at(500_000), at(2_000_000), Bytes(3_000));
        let counters: Vec<_> = rates.counters().collect();
        assert_eq!(counters, [(LinkId(4), vec![(at(0), 1e9), (at(1_000_000), 2e9), (at(2_000_000), 0.0)])]);
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_or_counted_twice(
            messages in prop::collection::vec((0..1u64 << 40, 0..1u64 << 40, 0..1u64 << 32), 0..30),
        ) {
            let mut rates = LinkRates::default();
            for &(start, length, bytes) in &messages {
                rates.add(&[LinkId(0)], at(start), at(start + length), Bytes(bytes));
            }
            let counted: u64 = rates.bins.values().flatten().sum();
            prop_assert_eq!(counted, messages.iter().map(|(_, _, bytes)| bytes).sum::<u64>());
            prop_assert!(rates.bins.values().all(|bins| bins.len() as u64 <= BINS));
        }
    }
}
