//! Owns the units in which the network counts rates and amounts.
//!
//! All values are whole numbers, so that results depend neither on the order of additions nor on how often a sum is
//! carried forward: a network of representatives ([`super::FoldedTopology`]) gives the same picoseconds as the whole
//! one. A rate is a number of *quanta*; a quantum is `2^-k` bytes per second, with `k` such that the fastest link has
//! between `2^59` and `2^60` of them. Bytes are counted in quanta times picoseconds, so that the amount moved by a rate
//! in some time is exactly their product.
//!
//! Rates are rounded down to a quantum. The amount that a link of 1 Gbit/s carries in a second, alone or shared, is
//! therefore exact to `1e-17` of it.

use crate::time::{Bytes, PS_PER_SECOND, Rate};

/// A rate without a bound.
pub(super) const UNBOUNDED: u64 = u64::MAX;

/// Upper bound of all rates: more than four times the rate of the fastest link.
const FASTEST: u64 = 1 << 62;

/// Number of quanta per byte per second: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale(u128);

impl Scale {
    /// The finest scale for links up to the rate `fastest`.
    pub(super) fn up_to(fastest: Rate) -> Scale {
        let (_, above) = libm::frexp(fastest.bytes_per_second());
        Scale(1 << (60 - above).clamp(0, 64))
    }

    /// A rate in quanta; at least one, so that every transfer ends.
    pub(super) fn rate(self, bytes_per_second: f64) -> u64 {
        ((bytes_per_second * self.0 as f64) as u64).clamp(1, FASTEST)
    }

    /// An amount in quanta times picoseconds. Amounts that are too large to count would not arrive before the end of
    /// time either.
    pub(super) fn amount(self, Bytes(bytes): Bytes) -> u128 {
        (u128::from(bytes) * u128::from(PS_PER_SECOND)).saturating_mul(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_moves_its_bytes_in_a_second() {
        // r bytes at r bytes per second: 1e12 ps.
        for rate in [1.0, 125e6, 50e9, 3e15] {
            let scale = Scale::up_to(Rate::new(rate).unwrap());
            let quanta = scale.rate(rate);
            assert!((1 << 59..1 << 60).contains(&quanta), "{quanta}");
            assert_eq!(scale.amount(Bytes(rate as u64)), u128::from(quanta) * 1_000_000_000_000);
        }
    }

    #[test]
    fn nothing_is_out_of_range() {
        let (slow, fast) = (Scale::up_to(Rate::new(1e-9).unwrap()), Scale::up_to(Rate::new(1e300).unwrap()));
        assert_eq!((slow.amount(Bytes(u64::MAX)), fast.rate(1e300), fast.rate(1e-300)), (u128::MAX, FASTEST, 1));
    }
}
