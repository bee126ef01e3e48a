//! Owns what a timed run puts into an operator database: how long each of its operators took, under the name of this machine's processor.
//!
//! What the times come to is `uniference-studies`' business, and how a database keeps them that of `uniference-devices`.

use crate::input::open_record;
use crate::results::RECORD;
use std::collections::BTreeMap;
use std::fs;
use std::io::BufReader;
use std::path::Path;
use uniference_devices::database::{Database, DatabaseError, Notice, Repeat, Row, Series, dimensions};
use uniference_devices::model::HOST;
use uniference_devices::operators::{Described, describe, key};
use uniference_formats::operators::{Decoder, Definition};
use uniference_formats::record::RecordReader;
use uniference_host::error::HostError;
use uniference_sim::replay::RecordedStep;
use uniference_studies::profile::{Found, Profile, Reached, Timing};

/// Where the rows are from, in the database.
const SOURCE: &str = "uniference profile";

/// Rates are those of operators that take at least so long: shorter ones say more of their beginning than of the device.
const LONG_NS: f64 = 1e6;

/// What a profile has added to a database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Distinct operators that took time.
    pub operators: usize,
    /// Of these, how many the database did not have.
    pub new: usize,
    /// How many it had, and were measured more often now.
    pub surer: usize,
    /// The highest rates that were reached.
    pub reached: Reached,
}

/// The times in the record of a run whose operators were timed.
///
/// # Errors
/// If the record cannot be read, or has no times.
pub fn times(run: &Path) -> Result<Found, HostError> {
    let (ranks, rest) = RecordReader::open(BufReader::new(open_record(&run.join(RECORD))?))?.by_rank();
    let mut profile = Profile::default();
    for steps in ranks {
        let mut decoder = Decoder::default();
        for (_, step) in steps {
            if let RecordedStep::Operators { operators, .. } = step {
                profile.add(&mut decoder, &operators).map_err(|error| HostError::Usage(error.to_string()))?;
            }
        }
    }
    rest.finish()?;
    let found = profile.found();
    if found.operators.is_empty() {
        return Err(HostError::Usage(
            "the program ran no operator that could be timed\nhint: give a program that computes, and whose ranks have Uniference's C++ library: run `uniference doctor`".into(),
        ));
    }
    Ok(found)
}

/// Puts them into a database, which is made if it is not there.
///
/// # Errors
/// If the database cannot be read or written.
pub fn keep(found: &Found, device: &str, software: &str, database: &Path) -> Result<Kept, HostError> {
    let mut kept = Kept::default();
    let mut series: BTreeMap<(String, String, String), Vec<Row>> = BTreeMap::new();
    let mut views: BTreeMap<&str, f64> = BTreeMap::new();
    for (definition, timing) in &found.operators {
        let described = describe(definition);
        let Some((family, variant, dtype)) = described.place(definition) else {
            // A view is the host's work alone.
            let longest = views.entry(&definition.name).or_default();
            *longest = longest.max(timing.median_ns);
            continue;
        };
        let row = row(key(definition), &described, definition, timing);
        kept.reached(&row, &dtype, timing);
        series.entry((family.to_owned(), variant, dtype)).or_default().push(row);
    }
    for (name, timing) in &found.hosts {
        let median_ns = timing.median_ns + views.get(name.as_str()).copied().unwrap_or_default();
        let row = Row { dimensions: [1; 4], flops: 0, bytes: 0, ..of(String::new(), &Timing { median_ns, ..*timing }) };
        series.insert((HOST.to_owned(), name.clone(), String::new()), vec![row]);
    }
    let mut database = Database::create(database).map_err(usage)?;
    for ((family, variant, dtype), rows) in series {
        let (device, software, source) = (device.to_owned(), software.to_owned(), SOURCE.to_owned());
        let series = Series { device, software, family, variant, dtype, source };
        let before = database.rows(&series).map_err(usage)?;
        let new = rows.iter().filter(|row| before.iter().all(|known| known.operator != row.operator)).count();
        let changed = database.add(&series, &Notice::own(SOURCE), &rows, Repeat::ReplacesIfSurer).map_err(usage)?;
        if series.family != HOST {
            kept.operators += rows.len();
            kept.new += new;
            kept.surer += changed - new;
        }
    }
    Ok(kept)
}

impl Kept {
    fn reached(&mut self, row: &Row, dtype: &str, timing: &Timing) {
        if timing.median_ns < LONG_NS {
            return;
        }
        let a_second = |amount: u64| amount as f64 / (timing.median_ns * 1e-9);
        // An operator of several parts, or an unknown one, has no type of its own.
        if !dtype.is_empty() {
            let flops = self.reached.peak_flops.entry(dtype.to_owned()).or_default();
            *flops = flops.max(a_second(row.flops));
        }
        let bandwidth = self.reached.memory_bandwidth.get_or_insert_default();
        *bandwidth = bandwidth.max(a_second(row.bytes));
    }
}

fn row(operator: String, described: &Described, definition: &Definition, timing: &Timing) -> Row {
    let dimensions = match described {
        Described::Parts(parts) if parts.len() == 1 && parts[0].times == 1 => dimensions(&parts[0].operator.family),
        // Found by its definition only.
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
        // Clocks tick: what takes less than a nanosecond is written as one.
        microseconds: timing.median_ns.max(1.0) * 1e-3,
        spread: (timing.repetitions > 1).then_some(timing.spread),
        repetitions: u32::try_from(timing.repetitions).unwrap_or(u32::MAX),
    }
}

/// What this machine's processor is called in databases: `intel-xeon-platinum-8481c`, with `-x4` where four cores compute at once.
pub fn processor(cores: u32) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |key: &str| {
        let value =
            |line: &str| line.split_once(':').filter(|(name, _)| name.trim() == key).map(|(_, value)| value.to_owned());
        cpuinfo.lines().find_map(value)
    };
    // Boards say what they are, and their processors do not.
    let board = || fs::read_to_string("/proc/device-tree/model").ok();
    let name = named("model name").or_else(board).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let name = slug(&name);
    if cores > 1 { format!("{name}-x{cores}") } else { name }
}

/// Lower case, with dashes between words; trademarks and clock rates left out.
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
