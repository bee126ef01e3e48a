//! Owns the calibration of a network: the cluster file that predicts its measurements best, the errors, and each
//! number's interval.
//!
//! The steps in their order: [`measurement`] reads the file of `python/uniference/real/probe.py`, [`model`] simulates
//! ping-pongs for given numbers, [`fit`] finds the numbers, [`breakpoints`] finds sizes from which on operations behave
//! differently, `changes` derives a library's parameters from these sizes, and `errors` has the model's errors for
//! other operations.

pub mod breakpoints;
mod changes;
mod errors;
pub mod fit;
pub mod measurement;
pub mod model;
mod table;

pub use changes::Change;
pub use measurement::{Measurement, MeasurementError, Processor};
pub use table::fitted;

use crate::statistics::Sample;
use fit::{Fit, Observation};
use model::{Form, Links, Model, Network, Placement, Setting};
use serde::Serialize;
use uniference_formats::units::{Bandwidth, Duration};
use uniference_sim::time::{Rate, SimDuration};

/// A network as its measurements show it.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    /// The parameters that were fitted.
    pub parameters: Vec<Parameter>,
    /// Errors of the fit by measurement: (predicted - measured) / measured.
    pub errors: Vec<CaseError>,
    /// Median of the absolute errors, a fraction.
    pub median_error: f64,
    /// The largest absolute error, a fraction.
    pub worst_error: f64,
    /// Median scatter of the measurements: half of the distance between the quartiles, over the median.
    pub floor: f64,
    /// Standard deviation of the errors without outliers: the cluster file's uncertainty of communication.
    pub spread: f64,
    /// Sizes from which on an operation behaves differently.
    pub changes: Vec<Change>,
    /// Devices that were profiled.
    pub processors: Vec<Profiled>,
    /// The cluster file.
    #[serde(skip)]
    pub toml: String,
}

/// One number of the cluster file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Name of the parameter: `latency`, `host 2 bandwidth`.
    pub name: String,
    /// The value in the cluster file's notation.
    pub value: String,
    /// Lower end of the value's 95 % interval, from the bootstrap.
    pub low: String,
    /// Upper end of the value's 95 % interval, from the bootstrap.
    pub high: String,
}

/// A device that was profiled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profiled {
    /// The ranks that have the device.
    pub ranks: Vec<u32>,
    /// The device, and the highest rates that its operators reached.
    #[serde(flatten)]
    pub processor: Processor,
}

/// Error of the fit for one measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseError {
    /// Name of the operation: `pingpong`, `ping` or `round_trip`.
    pub operation: String,
    /// The ranks that took part.
    pub ranks: Vec<u32>,
    /// Size of the message in bytes.
    pub bytes: u64,
    /// The measured duration in seconds.
    pub measured_s: f64,
    /// Relative error: (predicted - measured) / measured.
    pub error: f64,
}

/// Error of a pair from which on each host gets its own parameters, instead of parameters that all hosts share.
const EQUAL: f64 = 0.05;

/// Fits a network; `backend` is the measured library, `seed` the seed of the bootstrap.
///
/// # Errors
/// If no ping-pongs of two sizes were measured.
pub fn calibrate(measurements: &[Measurement], backend: &str, seed: u64) -> Result<Calibration, MeasurementError> {
    let observed = measurement::of_pairs(measurements)?;
    let world = observed.iter().flat_map(|case| case.ranks).max().map_or(0, |rank| rank as usize + 1);
    let observations: Vec<Observation> = observed.iter().map(Observation::new).collect();
    let placement = Placement(measurement::hosts(&observed, world));
    let changes = changes::find(measurements, &observed);
    let setting = Setting { library: backend, eager: changes::eager(backend, &changes, &observed) };
    let fitted = |form: Form| {
        let model = Model { setting: &setting, cases: &observed, placement: &placement };
        let start = Network::guess(&observed, &placement, form);
        fit::fit(&observations, &start.logarithms(), &|point| model.predict(&Network::at(point, form)), seed)
    };
    let mut form = Form { shared: placement.is_shared(), ..Form::default() };
    let mut fit = fitted(form);
    if directions_differ(&observed, &fit) {
        form.links = Links::Directed;
        fit = fitted(form);
    } else if placement.hosts() > 2 && worst_pair(&observed, &fit) > EQUAL {
        form.links = Links::Apart;
        fit = fitted(form);
    }
    let devices: Vec<String> = measurement::slowdowns(measurements, world)
        .iter()
        .enumerate()
        .map(|(rank, slowdown)| modelled(measurements, rank) + &format!("slowdown = {slowdown:.2}\n"))
        .collect();
    let network = Network { solo: measurement::solo(measurements), ..Network::at(&fit.point, form) };
    let toml = network.to_toml(&setting, &placement, &devices, fit.spread());
    let processors = processors(measurements, world);
    Ok(Calibration { changes, processors, ..describe(&observed, &fit, &network, toml) })
}

/// The keys that model a rank's compute, if its device was profiled and has shown its rates.
fn modelled(measurements: &[Measurement], rank: usize) -> String {
    let processor = measurement::processor(measurements, rank).and_then(|case| case.device.as_ref());
    let keys = |processor: &Processor| {
        // A string in JSON is a string in TOML.
        Some(format!("model = {}\n{}", serde_json::Value::from(&*processor.name), processor.reached.keys()?))
    };
    processor.and_then(keys).unwrap_or_default()
}

/// The devices of all ranks, in the order of the first rank that has each.
fn processors(measurements: &[Measurement], world: usize) -> Vec<Profiled> {
    let mut found: Vec<Profiled> = Vec::new();
    for rank in 0..world {
        let Some(processor) = measurement::processor(measurements, rank).and_then(|case| case.device.clone()) else {
            continue;
        };
        match found.iter_mut().find(|known| known.processor == processor) {
            Some(known) => known.ranks.push(rank as u32),
            None => found.push(Profiled { ranks: vec![rank as u32], processor }),
        }
    }
    found
}

/// Whether some pair's message is faster in one direction than in the other.
fn directions_differ(observed: &[measurement::Pair], fit: &Fit) -> bool {
    let pings = || observed.iter().zip(&fit.residuals).filter(|(case, _)| case.is_ping());
    pings().any(|(case, error)| {
        let [first, second] = case.ranks;
        let mut back = pings().filter(|(other, _)| other.ranks == [second, first]);
        back.any(|(_, other)| (error - other).abs() > 2.0 * EQUAL)
    })
}

/// The largest mean error of a pair without the pair's worst measurement: a single outlier makes no host different.
fn worst_pair(observed: &[measurement::Pair], fit: &Fit) -> f64 {
    let pairs: std::collections::BTreeSet<[u32; 2]> = observed.iter().map(|case| case.ranks).collect();
    let mean = |pair: [u32; 2]| {
        let mut own: Vec<f64> = observed
            .iter()
            .zip(&fit.residuals)
            .filter(|(case, _)| case.ranks == pair)
            .map(|(_, error)| *error)
            .collect();
        own.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
        own.truncate((own.len() - 1).max(1));
        (own.iter().sum::<f64>() / own.len() as f64).abs()
    };
    pairs.into_iter().map(mean).fold(0.0, f64::max)
}

fn describe(observed: &[measurement::Pair], fit: &Fit, network: &Network, toml: String) -> Calibration {
    let errors: Vec<CaseError> = observed
        .iter()
        .zip(&fit.residuals)
        .map(|(case, residual)| CaseError {
            operation: case.operation().to_owned(),
            ranks: case.ranks.to_vec(),
            bytes: case.bytes,
            measured_s: case.median(),
            error: residual.exp_m1(),
        })
        .collect();
    let parameter = |((name, at), (low, high)): ((String, &f64), (&f64, &f64))| {
        let shown = |logarithm: f64| match name.ends_with("bandwidth") {
            true => bandwidth(logarithm.exp()).to_string(),
            false => duration(logarithm.exp()).to_string(),
        };
        Parameter { value: shown(*at), low: shown(*low), high: shown(*high), name }
    };
    let ends = fit.low.iter().zip(&fit.high);
    let middle = |values: &mut dyn Iterator<Item = f64>| Sample::of(values).expect("pairs were measured").median();
    let median_error = middle(&mut errors.iter().map(|case| case.error.abs()));
    Calibration {
        parameters: network.names().into_iter().zip(&fit.point).zip(ends).map(parameter).collect(),
        median_error,
        worst_error: errors.iter().map(|case| case.error.abs()).fold(0.0, f64::max),
        floor: middle(&mut observed.iter().map(measurement::Pair::scatter)),
        spread: fit.spread(),
        changes: Vec::new(),
        processors: Vec::new(),
        toml,
        errors,
    }
}

/// Seconds, rounded to nanoseconds.
fn duration(seconds: f64) -> Duration {
    Duration(SimDuration::from_ns((seconds * 1e9).round().max(0.0) as u64))
}

/// Bytes per second, rounded to 10 kbit/s. A link that is never the narrowest shows no rate of its own: at most 1
/// Pbit/s.
fn bandwidth(bytes_per_second: f64) -> Bandwidth {
    let bits = ((bytes_per_second * 8.0 / 1e4).round() * 1e4).clamp(1e4, 1e15);
    Bandwidth(Rate::from_bits_per_second(bits).expect("a rate above zero"))
}

#[cfg(test)]
mod tests;
