//! Owns the probe's file: one case a line, as `python/uniference/real/probe.py` writes it.

use crate::profile::Reached;
use crate::statistics::Sample;
use serde::{Deserialize, Serialize};

/// What was done among some ranks, and how long each repetition took.
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
    /// Do these ranks share a host?
    #[serde(default)]
    pub local: bool,
    /// Over connections that were made for it?
    #[serde(default)]
    pub cold: bool,
    /// Of a `profile`: the processor, which all of these ranks have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Processor>,
}

/// A processor whose operators were measured.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Processor {
    /// Name under which the database has its operators.
    pub name: String,
    /// Path of the database.
    pub database: String,
    /// The highest rates that were reached.
    #[serde(flatten)]
    pub reached: Reached,
}

/// Measurements that nothing can be fitted to.
#[derive(Debug, thiserror::Error)]
pub enum MeasurementError {
    /// A line cannot be read.
    #[error("line {line} is not a measurement: {source}\nhint: use a file of `uniference calibrate` unchanged")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What serde says of the line.
        source: serde_json::Error,
    },
    /// Too few of them.
    #[error(
        "fitting a network requires ping-pongs of at least two sizes\nhint: measure with at least two ranks on different machines"
    )]
    TooFew,
}

/// Reads a file. A last line that is not complete is left out: measuring was interrupted, and will do that case again.
///
/// # Errors
/// The first line that is no measurement.
pub fn parse(text: &str) -> Result<Vec<Measurement>, MeasurementError> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| MeasurementError::Line { line: index + 1, source })
    };
    complete.lines().enumerate().map(read).collect()
}

/// What was measured between two ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Without the library: over a plain TCP connection.
    pub plain: bool,
    /// On one host, so that no link is between them.
    pub local: bool,
    /// Who began, and the other.
    pub ranks: [u32; 2],
    /// Of the message to the other.
    pub bytes: u64,
    /// Of its answer: as much, or next to nothing where one direction is to be told from the other.
    pub back: u64,
    /// Of each repetition, sorted; for the plain one, the shortest.
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

    /// Does it show one direction?
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
    // What delays a packet is not the network's: the shortest round trips are.
    seconds.truncate(if plain { seconds.len().div_ceil(10) } else { seconds.len() });
    let back = match &*measurement.operation {
        "round_trip" | "pingpong" => measurement.bytes,
        "ping" => PING_BACK.min(measurement.bytes),
        _ => return None,
    };
    let bytes = measurement.bytes;
    (!seconds.is_empty()).then_some(Pair { plain, local: measurement.local, ranks, bytes, back, seconds })
}

/// By rank, the number of its host. Where all measured pairs share one, there is no telling, and each has its own.
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

/// Seconds of a collective of one rank alone, in the middle; `None`: not measured.
pub(super) fn solo(measurements: &[Measurement]) -> Option<f64> {
    let alone = measurements.iter().filter(|case| case.operation == "solo");
    Sample::of(alone.filter_map(middle)).map(|middles| middles.median())
}

fn middle(case: &Measurement) -> Option<f64> {
    Sample::of(case.seconds.iter().copied()).map(|seconds| seconds.median())
}

/// The processor of a rank, where it was profiled: the last time, if more than once.
pub(super) fn processor(measurements: &[Measurement], rank: usize) -> Option<&Measurement> {
    let own = |case: &&Measurement| case.device.is_some() && case.ranks.contains(&(rank as u32));
    measurements.iter().rfind(own)
}

/// How many times as long each rank computes as the fastest, or of ranks whose processor was profiled, as the rank that it was profiled on; 1 where
/// that was not measured.
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
