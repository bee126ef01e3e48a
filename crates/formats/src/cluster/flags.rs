//! Owns the cluster that a few options describe: one rank per host, each with one full-duplex link to an ideal switch.

use super::rates::RawRates;
use super::raw::{RawCluster, RawDevice, RawNetwork};
use super::{DEFAULT_BANDWIDTH, DEFAULT_LATENCY, to_toml};
use crate::diagnostic::Diagnostic;
use crate::units::{Bandwidth, Duration, counted};
use toml::Spanned;

/// `--ranks N [--bandwidth R] [--latency T] [--slowdown F,...]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Flags {
    /// Number of ranks; at least 1.
    pub ranks: u32,
    /// Rate of each host's link in each direction; default 10 Gbps.
    pub bandwidth: Option<Bandwidth>,
    /// Latency between two hosts; default 10 us.
    pub latency: Option<Duration>,
    /// Slowdown of each rank, or a single slowdown for all; if empty, 1.
    pub slowdown: Vec<f64>,
}

impl Flags {
    /// The equivalent cluster file.
    ///
    /// # Errors
    /// If there are no ranks, a slowdown is not above zero, or the number of slowdowns is neither 1 nor the number of
    /// ranks.
    pub fn to_toml(&self) -> Result<String, Diagnostic> {
        self.check()?;
        let same = self.slowdown.windows(2).all(|pair| pair[0] == pair[1]);
        let slowdown = |rank: usize| self.slowdown.get(rank).copied().filter(|factor| *factor != 1.0);
        let device = if same {
            vec![device("device", Some(self.ranks), slowdown(0))]
        } else {
            (0..self.ranks as usize).map(|rank| device(&format!("device.{rank}"), None, slowdown(rank))).collect()
        };
        let network = RawNetwork {
            preset: Some(here("switch".to_owned())),
            bandwidth: Some(here(RawRates::both(
                self.bandwidth.unwrap_or_else(|| DEFAULT_BANDWIDTH.parse().expect("a bandwidth")),
            ))),
            latency: Some(self.latency.unwrap_or_else(|| DEFAULT_LATENCY.parse().expect("a time"))),
            ..RawNetwork::default()
        };
        let name = format!("{} on a switch", counted(self.ranks, "rank"));
        Ok(to_toml(&RawCluster { name: Some(name), device, network: Some(here(network)), ..RawCluster::default() }))
    }

    fn check(&self) -> Result<(), Diagnostic> {
        let (ranks, given) = (self.ranks as usize, self.slowdown.len());
        if ranks == 0 {
            return Err(Diagnostic::new("`--ranks` must be at least 1").hint("give the number of ranks"));
        }
        if given > 1 && given != ranks {
            let message =
                format!("--slowdown has {}, but the run has {}", counted(given, "factor"), counted(ranks, "rank"));
            return Err(Diagnostic::new(message).hint("give one factor per rank, or one factor for all ranks"));
        }
        match self.slowdown.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
            Some(factor) => {
                let message = format!("a slowdown must be greater than 0, not {factor}");
                Err(Diagnostic::new(message).hint("1 is the speed of this machine, 2 is half that speed"))
            }
            None => Ok(()),
        }
    }
}

fn device(name: &str, count: Option<u32>, slowdown: Option<f64>) -> Spanned<RawDevice> {
    here(RawDevice {
        name: here(name.to_owned()),
        at: None,
        count: count.map(here),
        slowdown: slowdown.map(here),
        memory: None,
        cores: None,
        host_cpu: None,
        host: None,
        per_host: None,
        peak_flops: None,
        memory_bandwidth: None,
        launch: None,
        model: None,
        communication_share: None,
        price: None,
        power: None,
    })
}

/// A value without a place in a text.
pub(super) fn here<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}
