//! Owns the operator times that a timed run adds to an operator database, under the name of this machine's CPU.
//!
//! `uniference-studies` evaluates the times; `uniference-costs` defines the database.

use crate::input::open_record;
use crate::results::RECORD;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::BufReader;
use std::path::Path;
use uniference_costs::database::{Database, DatabaseError, Notice, Repeat, Row, Series, dimensions};
use uniference_costs::model::{host_family, is_of_host};
use uniference_costs::operators::{Described, describe, key};
use uniference_formats::operators::{Argument, Decoder, Definition, Tensor};
use uniference_formats::record::RecordReader;
use uniference_host::error::HostError;
use uniference_sim::program::DType;
use uniference_sim::replay::RecordedStep;
use uniference_studies::profile::{Found, Profile, Reached, Timing};

/// Source that the database states for the rows of this command.
const SOURCE: &str = "uniference profile";

/// Duration in us from which an operator's rate counts: the rates of shorter operators depend on their overhead.
const LONG_US: f64 = 1e3;

/// Number of executions after which the host time before an operator is typical: at first, code and memory are in no
/// cache.
const USUAL: u64 = 5;

/// Operators that a profile has added to a database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Number of distinct operators with a duration.
    pub operators: usize,
    /// Number of these operators that were not in the database before, or now have more measurements.
    pub measured: usize,
    /// Highest rates of the device in the database.
    pub reached: Reached,
}

/// Adds the times in the record of a timed run to a profile.
///
/// # Errors
/// If the record cannot be read.
pub fn add_times(run: &Path, profile: &mut Profile) -> Result<(), HostError> {
    let (ranks, rest) = RecordReader::open(BufReader::new(open_record(&run.join(RECORD))?))?.by_rank();
    for steps in ranks {
        let mut decoder = Decoder::default();
        for (_, step) in steps {
            if let RecordedStep::Operators { operators, .. } = step {
                profile.add(&mut decoder, &operators).map_err(|error| HostError::Usage(error.to_string()))?;
            }
        }
    }
    rest.finish()?;
    Ok(())
}

/// Operators and times of a profile.
///
/// # Errors
/// If the profile has no times.
pub fn found(profile: Profile) -> Result<Found, HostError> {
    let found = profile.found();
    if found.operators.is_empty() {
        return Err(HostError::Usage(
            "the program ran no operator that could be timed\nhint: give a program that computes, and whose ranks have Uniference's C++ library: run `uniference doctor`".into(),
        ));
    }
    Ok(found)
}

/// Operators with a duration, by the text of their definition.
pub fn that_take_time(found: &Found) -> BTreeMap<String, Definition> {
    let definitions = found.operators.iter().map(|(definition, _)| definition);
    let definitions = definitions.filter(|definition| !takes_no_time(definition));
    definitions.map(|definition| (key(definition), definition.clone())).collect()
}

/// Whether an operator reads and writes no data.
pub fn takes_no_time(definition: &Definition) -> bool {
    describe(definition).place(definition).is_none()
}

/// Key of a definition in databases.
pub fn text(definition: &Definition) -> String {
    key(definition)
}

/// Keys of the definitions that a database has of a device and software; empty if the database does not exist.
///
/// # Errors
/// If the database cannot be read.
pub fn known(device: &str, software: &str, database: &Path) -> Result<BTreeSet<String>, HostError> {
    if !database.exists() {
        return Ok(BTreeSet::new());
    }
    let rows = rows_of(&Database::open(database).map_err(usage)?, device, software)?;
    Ok(rows.into_iter().flat_map(|(_, rows)| rows).map(|row| row.operator).collect())
}

fn rows_of(database: &Database, device: &str, software: &str) -> Result<Vec<(Series, Vec<Row>)>, HostError> {
    let mut series = database.series().map_err(usage)?;
    series.retain(|series| series.device == device && series.software == software && !is_of_host(&series.family));
    let read = |series: Series| Ok((series.clone(), database.rows(&series)?));
    series.into_iter().map(read).collect::<Result<_, DatabaseError>>().map_err(usage)
}

/// Adds times to a database, which is created if it does not exist. `again`: the new times replace existing ones, even
/// if those were measured more often.
///
/// # Errors
/// If the database cannot be read or written.
pub fn keep(found: &Found, device: &str, software: &str, database: &Path, again: bool) -> Result<Kept, HostError> {
    let mut kept = Kept::default();
    let mut series: BTreeMap<(String, String, String), Vec<Row>> = BTreeMap::new();
    // Nanoseconds and number of all executions.
    let mut views: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    for (definition, timing) in &found.operators {
        let described = describe(definition);
        let Some((family, variant, dtype)) = described.place(definition) else {
            // A view has host time, but no time on the device.
            let (sum, count) = views.entry(&definition.name).or_default();
            *sum += timing.mean_ns * timing.repetitions as f64;
            *count += timing.repetitions;
            continue;
        };
        let row = row(key(definition), &described, definition, timing);
        series.entry((family.to_owned(), variant, dtype)).or_default().push(row);
    }
    for (host, timing) in found.hosts.iter().filter(|(_, timing)| timing.repetitions >= USUAL) {
        // Each execution adds to the program's time, so the mean is used, however much the times vary.
        let view_ns = views.get(host.name.as_str()).map_or(0.0, |(sum, count)| sum / *count as f64);
        let median_ns = timing.mean_ns + view_ns;
        let timing = Timing { median_ns, ..*timing };
        let row = of(host.previous.clone().unwrap_or_default(), &timing);
        let family = host_family(host.autograd).to_owned();
        series.entry((family, host.name.clone(), String::new())).or_default().push(row);
    }
    let repeat = if again { Repeat::Replaces } else { Repeat::ReplacesIfSurer };
    let mut database = Database::create(database).map_err(usage)?;
    for ((family, variant, dtype), rows) in series {
        let (device, software, source) = (device.to_owned(), software.to_owned(), SOURCE.to_owned());
        let series = Series { device, software, family, variant, dtype, source };
        let changed = database.add(&series, &Notice::own(SOURCE), &rows, repeat).map_err(usage)?;
        if !is_of_host(&series.family) {
            kept.operators += rows.len();
            kept.measured += changed;
        }
    }
    for (series, rows) in rows_of(&database, device, software)? {
        rows.iter().for_each(|row| reach(&mut kept.reached, row, &series.dtype));
    }
    Ok(kept)
}

fn reach(reached: &mut Reached, row: &Row, dtype: &str) {
    if row.microseconds < LONG_US {
        return;
    }
    let a_second = |amount: u64| amount as f64 / (row.microseconds * 1e-6);
    // An operator of several parts, or an unknown one, has no element type.
    if !dtype.is_empty() {
        let flops = reached.peak_flops.entry(dtype.to_owned()).or_default();
        *flops = flops.max(a_second(row.flops));
    }
    let bandwidth = reached.memory_bandwidth.get_or_insert_default();
    *bandwidth = bandwidth.max(a_second(row.bytes));
}

/// Operators for `python/uniference/real/alone.py`, one per line.
pub fn to_run_alone<'a>(definitions: impl Iterator<Item = &'a Definition>) -> String {
    let line = |definition: &Definition| {
        let arguments = definition.arguments.iter().filter(|argument| !matches!(argument, Argument::Names(_)));
        let arguments: Vec<Value> = arguments.map(argument).collect();
        format!("{}\n", json!({"name": definition.name, "arguments": arguments}))
    };
    definitions.map(line).collect()
}

fn argument(argument: &Argument) -> Value {
    match argument {
        Argument::None => Value::Null,
        Argument::Bool(flag) => json!(flag),
        Argument::Int(value) => json!(value),
        // The record has no value of the argument.
        Argument::Float => json!({"number": null}),
        Argument::Text(text) => json!(text),
        Argument::Ints(values) => json!(values),
        Argument::Tensor(one) => tensor(one),
        Argument::Tensors(several) => {
            let several: Vec<Value> = several.iter().map(|one| one.as_ref().map_or(Value::Null, tensor)).collect();
            json!({"tensors": several})
        }
        Argument::Other | Argument::Names(_) => json!({"other": null}),
    }
}

fn tensor(tensor: &Tensor) -> Value {
    json!({"dtype": tensor.dtype.dtype().map(DType::name), "sizes": tensor.sizes, "strides": tensor.strides})
}

fn row(operator: String, described: &Described, definition: &Definition, timing: &Timing) -> Row {
    let dimensions = match described {
        Described::Parts(parts) if parts.len() == 1 && parts[0].times == 1 => dimensions(&parts[0].operator.family),
        // Such an operator is found in the database by its definition only.
        _ => [definition.tensors().map(|tensor| tensor.elements()).max().unwrap_or(1), 1, 1, 1],
    };
    let bytes = described.read().0.saturating_add(described.written().0);
    Row { dimensions, flops: described.flops(), bytes, ..of(operator, timing) }
}

fn of(operator: String, timing: &Timing) -> Row {
    Row {
        operator,
        dimensions: [1; 4],
        flops: 0,
        bytes: 0,
        // Clocks have a resolution: a time below one nanosecond is written as one.
        microseconds: timing.median_ns.max(1.0) * 1e-3,
        spread: (timing.repetitions > 1).then_some(timing.spread),
        repetitions: u32::try_from(timing.repetitions).unwrap_or(u32::MAX),
    }
}

/// Name of this machine's CPU in databases: `intel-xeon-platinum-8481c`, with suffix `-x4` if four cores compute at
/// once.
pub fn processor(cores: u32) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |key: &str| {
        let value =
            |line: &str| line.split_once(':').filter(|(name, _)| name.trim() == key).map(|(_, value)| value.to_owned());
        cpuinfo.lines().find_map(value)
    };
    // ARM boards have a model name, and their CPUs have none.
    let board = || fs::read_to_string("/proc/device-tree/model").ok();
    let name = named("model name").or_else(board).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let name = slug(&name);
    if cores > 1 { format!("{name}-x{cores}") } else { name }
}

/// Lower case, with dashes between words, without trademarks and clock rates.
fn slug(name: &str) -> String {
    let name = name.split('@').next().unwrap_or(name).replace("(R)", " ").replace("(TM)", " ").to_lowercase();
    let words =
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !["", "cpu", "processor"].contains(word));
    words.collect::<Vec<_>>().join("-")
}

fn usage(error: DatabaseError) -> HostError {
    HostError::Usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_short_names() {
        for (name, short) in [
            ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c"),
            ("AMD EPYC 9B14", "amd-epyc-9b14"),
            ("Raspberry Pi 5 Model B Rev 1.0\0", "raspberry-pi-5-model-b-rev-1-0"),
        ] {
            assert_eq!(slug(name), short);
        }
        assert!(processor(4).ends_with("-x4"));
    }
}
