//! Owns the changes of a network in virtual time: bandwidth and latency over time, outages, jitter, background traffic.
//! The module does not know messages; [`super::flow`] applies a change to the sharing of links.
//!
//! All values are functions of the description, its seed and the instant: no random number depends on an order that
//! could differ from run to run.

use super::Link;
use crate::ids::{HostId, LinkId, StreamId};
use crate::time::{Rate, SimDuration, SimTime};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rate of a link during an outage, in bytes per second: negligible, but still a rate.
const OUT: f64 = 1e-6;

/// All changes of a network during a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dynamics {
    /// Changes by link.
    pub links: BTreeMap<LinkId, LinkDynamics>,
    /// Background traffic.
    pub background: Vec<Background>,
    /// Seed of all random draws.
    pub seed: u64,
}

/// Changes of one link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkDynamics {
    /// Bandwidth and latency over time.
    pub profile: Option<Profile>,
    /// Outages, from start to end: nothing passes; in order, without overlap.
    pub outages: Vec<(SimTime, SimTime)>,
    /// Random addition to the latency of each message; may be negative.
    pub jitter: Option<Jitter>,
}

/// Bandwidth and latency over time: each point applies until the next one; the last one applies for ever, or until the
/// profile starts again.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// At least one point, each at a later instant than the previous one. Before the first point, the link has its own
    /// values.
    pub points: Arc<[ProfilePoint]>,
    /// Period after which the profile starts again; it ends after the last point.
    pub period: Option<SimDuration>,
}

/// The values of a link from `at` on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfilePoint {
    /// The offset from the profile's start.
    pub at: SimDuration,
    /// Raw rate, headers included; `None`: the link's own. A rate of zero is not possible: use an outage.
    pub bandwidth: Option<Rate>,
    /// Latency; `None`: the link's own.
    pub latency: Option<SimDuration>,
}

/// Distribution of the random addition to a link's latency, independent for each message. Latency and jitter together
/// are never below zero, and messages of one stream stay in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Uniform between zero and `max`.
    Uniform {
        /// The largest delay.
        max: SimDuration,
    },
    /// Normal with mean zero: as often negative as positive.
    Normal {
        /// The standard deviation.
        deviation: SimDuration,
    },
    /// Exponential.
    Exponential {
        /// The mean of the delay.
        mean: SimDuration,
    },
    /// Log-normal: rarely very large, as on radio links.
    LogNormal {
        /// The median of the delay.
        median: SimDuration,
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
}

/// Background traffic between two hosts: a connection stream that always has bytes to send, and shares links like any
/// other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Background {
    /// The host that sends.
    pub from: HostId,
    /// The host that receives.
    pub to: HostId,
    /// Maximum rate of the background traffic; `None`: only its share of the links limits it.
    pub rate: Option<Rate>,
    /// The virtual time at which the background traffic starts.
    pub start: SimTime,
    /// The virtual time at which the background traffic ends; `None`: it never ends.
    pub end: Option<SimTime>,
}

impl Dynamics {
    /// Whether the network never changes.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && self.background.is_empty()
    }

    /// Jitter of the `message`-th message of a stream on a link, in picoseconds; may be negative.
    pub(super) fn jitter_ps(&self, link: LinkId, stream: StreamId, message: u64) -> f64 {
        let Some(jitter) = self.links.get(&link).and_then(|link| link.jitter) else { return 0.0 };
        let key = [self.seed, u64::from(link.0), u64::from(stream.0), message];
        jitter.draw(&mut Draws(key.into_iter().fold(0, |state, word| mixed(state ^ mixed(word)))))
    }
}

impl LinkDynamics {
    /// The payload rate at `now`, in bytes per second.
    pub(super) fn payload_rate(&self, link: &Link, now: SimTime) -> f64 {
        if self.outages.iter().any(|(from, to)| (*from..*to).contains(&now)) {
            return OUT;
        }
        let bandwidth = self.point(now).and_then(|point| point.bandwidth).unwrap_or(link.bandwidth);
        Link { bandwidth, ..link.clone() }.payload_rate().bytes_per_second()
    }

    /// The latency at `now`, without jitter.
    pub(super) fn latency(&self, link: &Link, now: SimTime) -> SimDuration {
        self.point(now).and_then(|point| point.latency).unwrap_or(link.latency)
    }

    /// Whether a message's latency depends on the time of its departure.
    pub(super) fn varies_in_latency(&self) -> bool {
        self.jitter.is_some()
            || self.profile.iter().flat_map(|profile| profile.points.iter()).any(|p| p.latency.is_some())
    }

    /// The first instant after `now` at which the link may change.
    pub(super) fn next_change(&self, now: SimTime) -> Option<SimTime> {
        let edges = self.outages.iter().flat_map(|(from, to)| [*from, *to]).filter(|at| *at > now);
        edges.chain(self.profile.as_ref().and_then(|profile| profile.next_change(now))).min()
    }

    fn point(&self, now: SimTime) -> Option<ProfilePoint> {
        self.profile.as_ref()?.point(now)
    }
}

impl Profile {
    /// The offset of `now` in the profile's current period, and the start of that period.
    fn place(&self, now: SimTime) -> (SimDuration, SimTime) {
        let since_zero = now.since(SimTime::ZERO).as_ps();
        let into = self.period.map_or(since_zero, |period| since_zero % period.as_ps());
        (SimDuration::from_ps(into), SimTime::from_ps(since_zero - into))
    }

    fn point(&self, now: SimTime) -> Option<ProfilePoint> {
        let (into, _) = self.place(now);
        let after = self.points.partition_point(|point| point.at <= into);
        match (after.checked_sub(1), self.period) {
            (Some(at), _) => Some(self.points[at]),
            // A repeated profile keeps the values of its last point until its first point comes again.
            (None, Some(period)) if now.since(SimTime::ZERO) >= period => self.points.last().copied(),
            (None, _) => None,
        }
    }

    fn next_change(&self, now: SimTime) -> Option<SimTime> {
        let (into, started) = self.place(now);
        let next = self.points.get(self.points.partition_point(|point| point.at <= into));
        match (next, self.period) {
            (Some(point), _) => started.checked_add(point.at),
            (None, Some(period)) => started.checked_add(period)?.checked_add(self.points[0].at),
            (None, None) => None,
        }
    }
}

impl Jitter {
    fn draw(self, draws: &mut Draws) -> f64 {
        let ps = |span: SimDuration| span.as_ps() as f64;
        match self {
            Jitter::Uniform { max } => draws.uniform() * ps(max),
            Jitter::Normal { deviation } => draws.normal() * ps(deviation),
            Jitter::Exponential { mean } => -libm::log(1.0 - draws.uniform()) * ps(mean),
            Jitter::LogNormal { median, sigma } => ps(median) * libm::exp(sigma * draws.normal()),
        }
    }
}

/// Random numbers from a state: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014).
struct Draws(u64);

impl Draws {
    /// Uniform random number, at least 0 and below 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mixed(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal random number with mean 0 and deviation 1, by the method of Box and Muller (1958).
    fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        radius * libm::cos(2.0 * std::f64::consts::PI * self.uniform())
    }
}

/// The output function of SplitMix64.
fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000_000;

    fn at(ms: u64) -> SimTime {
        SimTime::from_ps(ms * MS)
    }

    fn point(ms: u64, bandwidth: f64) -> ProfilePoint {
        ProfilePoint { at: SimDuration::from_ps(ms * MS), bandwidth: Rate::new(bandwidth), latency: None }
    }

    fn link() -> Link {
        let (name, latency) = ("a".to_owned(), SimDuration::ZERO);
        Link { name, bandwidth: Rate::new(1.0).unwrap(), latency, overhead: None, queue: None }
    }

    /// Points at 10 and 30 ms, repeated every 40 ms: rates over time, and the instants of changes.
    #[test]
    fn a_profile_repeats() {
        let profile =
            Profile { points: [point(10, 2.0), point(30, 3.0)].into(), period: Some(SimDuration::from_ps(40 * MS)) };
        let dynamics = LinkDynamics { profile: Some(profile), ..LinkDynamics::default() };
        let rates: Vec<f64> =
            [0, 10, 29, 30, 39, 40, 50, 70, 90].map(|ms| dynamics.payload_rate(&link(), at(ms))).to_vec();
        assert_eq!(rates, [1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 2.0, 3.0, 2.0]);
        let mut changes = vec![SimTime::ZERO];
        while changes.len() < 5 {
            changes.push(dynamics.next_change(*changes.last().unwrap()).unwrap());
        }
        assert_eq!(changes, [0, 10, 30, 50, 70].map(at));
    }

    /// During an outage nothing passes the link; after the outage's end the link has its rate again, and does not
    /// change any more.
    #[test]
    fn an_outage_ends() {
        let dynamics = LinkDynamics { outages: vec![(at(2), at(5))], ..LinkDynamics::default() };
        let rates = [1, 2, 4, 5].map(|ms| dynamics.payload_rate(&link(), at(ms)));
        assert_eq!(rates, [1.0, OUT, OUT, 1.0]);
        assert_eq!([1, 2, 5].map(|ms| dynamics.next_change(at(ms))), [Some(at(2)), Some(at(5)), None]);
    }

    /// Mean and deviation of 20,000 draws compared with the distribution's own; the error of the mean is deviation /
    /// sqrt(20,000), a 141st.
    #[test]
    fn draws_follow_their_distribution() {
        let span = SimDuration::from_ps(1_000);
        let (sigma, half) = (0.5_f64, 0.125_f64);
        let log_mean = 1_000.0 * half.exp();
        let cases = [
            (Jitter::Uniform { max: span }, 500.0, 1_000.0 / 12.0_f64.sqrt()),
            (Jitter::Normal { deviation: span }, 0.0, 1_000.0),
            (Jitter::Exponential { mean: span }, 1_000.0, 1_000.0),
            (Jitter::LogNormal { median: span, sigma }, log_mean, log_mean * ((sigma * sigma).exp() - 1.0).sqrt()),
        ];
        for (jitter, mean, deviation) in cases {
            let links = BTreeMap::from([(LinkId(0), LinkDynamics { jitter: Some(jitter), ..LinkDynamics::default() })]);
            let dynamics = Dynamics { links, background: Vec::new(), seed: 7 };
            let count = 20_000;
            let drawn: Vec<f64> = (0..count).map(|n| dynamics.jitter_ps(LinkId(0), StreamId(3), n)).collect();
            let seen = drawn.iter().sum::<f64>() / count as f64;
            let spread = (drawn.iter().map(|x| (x - seen).powi(2)).sum::<f64>() / count as f64).sqrt();
            assert!((seen - mean).abs() < 5.0 * deviation / 141.0, "{jitter:?}: mean {seen}, should be {mean}");
            assert!((spread / deviation - 1.0).abs() < 0.05, "{jitter:?}: deviation {spread}, should be {deviation}");
        }
    }
}
