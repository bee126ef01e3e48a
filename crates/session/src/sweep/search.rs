//! Owns the course of a search: points are asked for, simulated, and reported back with their results, until the
//! requested number of trials is complete. The [`Asker`] chooses the points.

use super::pool::{Carrier, Halted, Watch, carry_out};
use super::{SweepFolder, Trial, TrialReady, Undertaking};
use std::collections::BTreeSet;
use uniference_formats::sweep::{Results, Search, Value};
use uniference_host::error::HostError;
use uniference_host::interrupt::Interrupts;
use uniference_studies::sweep::{feasible, holds, untried};

/// Number of consecutive answers with known points only, after which a new point is drawn at random.
const PATIENCE: usize = 8;

/// Chooses the points of a search.
pub trait Asker {
    /// Asks for `count` points. A point has for each parameter a position from 0 to 1 in the parameter's values.
    ///
    /// # Errors
    /// If there is no answer.
    fn ask(&mut self, count: usize) -> Result<Vec<Vec<f64>>, HostError>;

    /// Reports the results of the last answer's points.
    ///
    /// # Errors
    /// If the results cannot be sent.
    fn tell(&mut self, told: &[Told]) -> Result<(), HostError>;

    /// Tells the asker which point to propose next.
    ///
    /// # Errors
    /// If the point cannot be sent.
    fn enqueue(&mut self, point: &[f64]) -> Result<(), HostError>;
}

/// Result of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Values by objective; `None`: the point failed.
    pub values: Option<Vec<f64>>,
    /// Violation of each constraint, 0 if it holds. The first constraint is that the point can be simulated.
    pub violations: Vec<f64>,
}

/// Starts or continues a search: completed trials are reported again instead of being run again. `prepare` makes a
/// trial of a point.
///
/// # Errors
/// Errors of the journal and of the asker.
pub fn search(
    undertaking: &mut Undertaking<'_>,
    search: &Search,
    prepare: &dyn Fn(&[Value]) -> TrialReady,
    asker: &mut dyn Asker,
    folder: &mut SweepFolder,
    (carrier, watch, interrupts): (&dyn Carrier, &mut dyn Watch, &Interrupts),
) -> Result<Halted, HostError> {
    let sweep = undertaking.sweep;
    let mut known: BTreeSet<Vec<String>> = BTreeSet::new();
    let name = |point: &[Value]| point.iter().map(Value::toml).collect::<Vec<_>>();
    let mut repeated = 0;
    while undertaking.trials.len() < search.trials {
        let wanted = search.at_once.min(search.trials - undertaking.trials.len());
        let shares = asker.ask(wanted)?;
        let at = |shares: &Vec<f64>| -> Vec<Value> {
            sweep.parameters.iter().zip(shares).map(|(parameter, share)| parameter.domain.at(*share)).collect()
        };
        let points: Vec<Vec<Value>> = shares.iter().map(at).collect();
        let before = undertaking.trials.len();
        for point in &points {
            if holds(sweep, point) && known.insert(name(point)) {
                undertaking.add(prepare(point));
            }
        }
        if undertaking.trials.len() > before {
            repeated = 0;
            match carry_out(undertaking, folder, carrier, watch, interrupts)? {
                Halted::No => {}
                halted => return Ok(halted),
            }
        } else {
            repeated += 1;
        }
        let table = folder.table(undertaking);
        let told: Vec<Told> = points.iter().map(|point| told(undertaking, search, &table, point)).collect();
        asker.tell(&told)?;
        if repeated == PATIENCE {
            repeated = 0;
            let seed = search.seed.wrapping_add(known.len() as u64);
            match untried(sweep, seed, |point| known.contains(&name(point))) {
                Some(point) => asker.enqueue(&point)?,
                // No untried point is left.
                None => return Ok(Halted::No),
            }
        }
    }
    Ok(Halted::No)
}

fn told(undertaking: &Undertaking<'_>, search: &Search, table: &Results, point: &[Value]) -> Told {
    let is_it = |(trial, _): &(Trial, _)| trial.settings == point;
    let row = undertaking.trials.iter().position(is_it);
    let cell = |row: usize, name: &str| table.column(name).and_then(|column| column.cells[row].number());
    let values = row.and_then(|row| search.objectives.iter().map(|objective| cell(row, &objective.column)).collect());
    let Some((row, values)) = row.zip::<Vec<f64>>(values) else {
        return Told { values: None, violations: vec![1.0; 1 + search.constraints.len()] };
    };
    let holds = feasible(search, table, row);
    let violations = [true].into_iter().chain(holds).map(|holds| if holds { 0.0 } else { 1.0 });
    Told { values: Some(values), violations: violations.collect() }
}
