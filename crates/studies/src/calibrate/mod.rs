//! Owns what follows from measurements of a network: the cluster file that predicts them best, how well, and how sure each number is.
//!
//! In the order of its way: [`measurement`] reads what `python/uniference/real/probe.py` has written, [`model`] says what the simulator makes of a
//! ping-pong for given numbers, [`fit`] finds the numbers; [`breakpoints`] finds sizes from which on operations behave differently, `changes` says what
//! those mean to a library; `errors` knows how far the model is off on other operations. Taking measurements is the probe's business.

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
    /// What was fitted.
    pub parameters: Vec<Parameter>,
    /// Of the fit: (predicted - measured) / measured, by measurement.
    pub errors: Vec<CaseError>,
    /// The middle of the errors without their sign, a fraction.
    pub median_error: f64,
    /// The largest of them without its sign.
    pub worst_error: f64,
    /// The middle of what the measurements themselves scatter: half of the quartiles' distance, over the median.
    pub floor: f64,
    /// The standard deviation of the errors, outliers left out: what the cluster file says of the uncertainty of communication.
    pub spread: f64,
    /// Sizes from which on an operation behaves differently.
    pub changes: Vec<Change>,
    /// Processors that were profiled.
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
    /// The value, as the cluster file has it.
    pub value: String,
    /// Lower end of its 95 % interval, from the bootstrap.
    pub low: String,
    /// Upper end of its 95 % interval, from the bootstrap.
    pub high: String,
}

/// A processor that was profiled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profiled {
    /// The ranks that have it.
    pub ranks: Vec<u32>,
    /// The processor, and the highest rates that it reached.
    #[serde(flatten)]
    pub processor: Processor,
}

/// How far the fit is from one measurement.
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

/// Hosts are told apart where one number for all leaves some pair this far off.
const EQUAL: f64 = 0.05;

/// Fits a network, `backend` being the library that was measured. `seed` is the bootstrap's.
///
/// # Errors
/// Where no ping-pong of two sizes was measured.
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

/// The keys by which a rank's compute is modelled, if its processor was profiled and has shown its rates.
fn modelled(measurements: &[Measurement], rank: usize) -> String {
    let processor = measurement::processor(measurements, rank).and_then(|case| case.device.as_ref());
    let keys = |processor: &Processor| {
        // A text of JSON is one of TOML.
        Some(format!("model = {}\n{}", serde_json::Value::from(&*processor.name), processor.reached.keys()?))
    };
    processor.and_then(keys).unwrap_or_default()
}

/// The processors of all ranks, in the order of the first rank that has each.
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

/// Is some pair's message faster one way than the other?
fn directions_differ(observed: &[measurement::Pair], fit: &Fit) -> bool {
    let pings = || observed.iter().zip(&fit.residuals).filter(|(case, _)| case.is_ping());
    pings().any(|(case, error)| {
        let [first, second] = case.ranks;
        let mut back = pings().filter(|(other, _)| other.ranks == [second, first]);
        back.any(|(_, other)| (error - other).abs() > 2.0 * EQUAL)
    })
}

/// How far off the pair is on average that is farthest, its worst measurement left out: one outlier makes no host different.
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

/// Seconds, to the nanosecond.
fn duration(seconds: f64) -> Duration {
    Duration(SimDuration::from_ns((seconds * 1e9).round().max(0.0) as u64))
}

/// Bytes per second, to 10 kbit/s. A link that never is the narrowest shows no rate of its own: no more than 1 Pbit/s.
fn bandwidth(bytes_per_second: f64) -> Bandwidth {
    let bits = ((bytes_per_second * 8.0 / 1e4).round() * 1e4).clamp(1e4, 1e15);
    Bandwidth(Rate::from_bits_per_second(bits).expect("a rate above zero"))
}

#[cfg(test)]
mod tests;
