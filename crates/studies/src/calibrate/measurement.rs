//! Owns the probe's file: one case per line, as `python/uniference/real/probe.py` writes it.

use crate::profile::Reached;
use crate::statistics::Sample;
use serde::{Deserialize, Serialize};

/// An operation measured among some ranks, with the durations of its repetitions.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Measurement {
    /// Name of the operation: `pingpong`, `ping`, `round_trip`, `all_reduce`.
    pub operation: String,
    /// The ranks that took part.
    pub ranks: Vec<u32>,
    /// Size of the tensor or message in bytes.
    pub bytes: u64,
    /// Duration of each repetition in seconds.
    pub seconds: Vec<f64>,
    /// Whether these ranks share a host.
    #[serde(default)]
    pub local: bool,
    /// Whether the operation ran over new connections.
    #[serde(default)]
    pub cold: bool,
    /// The device of a `profile`, which all of these ranks have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Processor>,
}

/// A device whose operators were measured.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Processor {
    /// Name of the device's operators in the database.
    pub name: String,
    /// Path of the database.
    pub database: String,
    /// The highest rates that the operators reached.
    #[serde(flatten)]
    pub reached: Reached,
}

/// An error in measurements, or too few of them.
#[derive(Debug, thiserror::Error)]
pub enum MeasurementError {
    /// A line cannot be read.
    #[error("line {line} is not a measurement: {source}\nhint: use a file of `uniference calibrate` unchanged")]
    Line {
        /// Number of the line, counted from 1.
        line: usize,
        /// The error that serde reports for the line.
        source: serde_json::Error,
    },
    /// There are too few measurements.
    #[error(
        "fitting a network requires ping-pongs of at least two sizes\nhint: measure with at least two ranks on different machines"
    )]
    TooFew,
}

/// Reads a file. An incomplete last line is left out: measuring was interrupted, and will repeat that case.
///
/// # Errors
/// If a line is no measurement: the first such line.
pub fn parse(text: &str) -> Result<Vec<Measurement>, MeasurementError> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| MeasurementError::Line { line: index + 1, source })
    };
    complete.lines().enumerate().map(read).collect()
}

/// A measurement between two ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Whether a plain TCP connection was measured instead of the library.
    pub plain: bool,
    /// Whether both ranks are on one host, without a link between them.
    pub local: bool,
    /// The rank that began, and the other rank.
    pub ranks: [u32; 2],
    /// Bytes of the message to the other rank.
    pub bytes: u64,
    /// Bytes of the answer: as many as in the message, or nearly none, which shows each direction by itself.
    pub back: u64,
    /// Durations of the repetitions in seconds, sorted; for a plain connection only the shortest.
    pub seconds: Vec<f64>,
}

impl Pair {
    /// The name of the case.
    pub fn operation(&self) -> &'static str {
        match self.plain {
            true => "round_trip",
            false if self.is_ping() => "ping",
            false => "pingpong",
        }
    }

    /// Whether the measurement shows a single direction.
    pub fn is_ping(&self) -> bool {
        self.back < self.bytes
    }

    /// The median duration in seconds.
    pub fn median(&self) -> f64 {
        self.sample().median()
    }

    /// Half of the distance between the quartiles, over the median.
    pub fn scatter(&self) -> f64 {
        self.sample().scatter()
    }

    fn sample(&self) -> Sample {
        Sample::of(self.seconds.iter().copied()).expect("a pair was measured")
    }
}

/// Bytes of the answer to a `ping`, as the probe sends it.
const PING_BACK: u64 = 1;

/// The measurements between two ranks.
pub(super) fn of_pairs(measurements: &[Measurement]) -> Result<Vec<Pair>, MeasurementError> {
    let pairs: Vec<Pair> = measurements.iter().filter_map(pair).collect();
    let mut sizes: Vec<u64> =
        pairs.iter().filter(|pair| !pair.plain && !pair.is_ping()).map(|pair| pair.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 2 { Err(MeasurementError::TooFew) } else { Ok(pairs) }
}

fn pair(measurement: &Measurement) -> Option<Pair> {
    let plain = measurement.operation == "round_trip";
    let ranks = <[u32; 2]>::try_from(measurement.ranks.clone()).ok()?;
    let mut seconds = measurement.seconds.clone();
    seconds.retain(|time| *time > 0.0);
    seconds.sort_by(f64::total_cmp);
    // Delays of single packets do not belong to the network, so the shortest round trips are used.
    seconds.truncate(if plain { seconds.len().div_ceil(10) } else { seconds.len() });
    let back = match &*measurement.operation {
        "round_trip" | "pingpong" => measurement.bytes,
        "ping" => PING_BACK.min(measurement.bytes),
        _ => return None,
    };
    let bytes = measurement.bytes;
    (!seconds.is_empty()).then_some(Pair { plain, local: measurement.local, ranks, bytes, back, seconds })
}

/// The number of each rank's host. If all measured pairs are on one host, hosts cannot be told apart, and each rank has
/// its own.
pub(super) fn hosts(observed: &[Pair], world: usize) -> Vec<usize> {
    let mut first: Vec<usize> = (0..world).collect();
    if observed.iter().any(|pair| !pair.local) {
        for pair in observed.iter().filter(|pair| pair.local) {
            let [one, other] = pair.ranks.map(|rank| first[rank as usize]);
            first.iter_mut().filter(|host| **host == one.max(other)).for_each(|host| *host = one.min(other));
        }
    }
    let known: std::collections::BTreeSet<usize> = first.iter().copied().collect();
    first.iter().map(|host| known.range(..host).count()).collect()
}

/// Median duration in seconds of a collective of a single rank; `None` if it was not measured.
pub(super) fn solo(measurements: &[Measurement]) -> Option<f64> {
    let alone = measurements.iter().filter(|case| case.operation == "solo");
    Sample::of(alone.filter_map(middle)).map(|middles| middles.median())
}

fn middle(case: &Measurement) -> Option<f64> {
    Sample::of(case.seconds.iter().copied()).map(|seconds| seconds.median())
}

/// The last profile of a rank's device, if it was profiled.
pub(super) fn processor(measurements: &[Measurement], rank: usize) -> Option<&Measurement> {
    let own = |case: &&Measurement| case.device.is_some() && case.ranks.contains(&(rank as u32));
    measurements.iter().rfind(own)
}

/// Compute time of each rank relative to the fastest rank, or relative to the rank on which its device was profiled; 1
/// if it was not measured.
pub(super) fn slowdowns(measurements: &[Measurement], world: usize) -> Vec<f64> {
    let of_rank = |rank: usize| {
        let own = |case: &&Measurement| case.operation == "compute" && case.ranks == [rank as u32];
        measurements.iter().find(own).and_then(middle)
    };
    let times: Vec<Option<f64>> = (0..world).map(of_rank).collect();
    let fastest = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let reference = |rank: usize| match processor(measurements, rank) {
        Some(case) => times.get(case.ranks[0] as usize).copied().flatten(),
        None => Some(fastest),
    };
    let of = |(rank, time): (usize, &Option<f64>)| Some((*time)? / reference(rank)?);
    times.iter().enumerate().map(|rank| of(rank).unwrap_or(1.0)).collect()
}
