//! Owns the course of a search: points are asked for, carried out and told what they came to, until as many trials are done as are wanted. Where to look next is
//! the business of whoever is asked ([`Asker`]).

use super::pool::{Carrier, Halted, Watch, carry_out};
use super::{SweepFolder, Trial, TrialReady, Undertaking};
use std::collections::BTreeSet;
use uniference_formats::sweep::{Results, Search, Value};
use uniference_host::error::HostError;
use uniference_host::interrupt::Interrupts;
use uniference_studies::sweep::{feasible, holds, untried};

/// After so many answers in a row that are known already, a point is drawn that is not.
const PATIENCE: usize = 8;

/// Says where to look next.
pub trait Asker {
    /// Asks for `count` points. A point has a share from 0 to 1 for each parameter, of its values.
    ///
    /// # Errors
    /// If there is no answer.
    fn ask(&mut self, count: usize) -> Result<Vec<Vec<f64>>, HostError>;

    /// What the points of the last answer came to.
    ///
    /// # Errors
    /// If nobody hears it.
    fn tell(&mut self, told: &[Told]) -> Result<(), HostError>;

    /// The point that is to be asked for next.
    ///
    /// # Errors
    /// If nobody hears it.
    fn enqueue(&mut self, point: &[f64]) -> Result<(), HostError>;
}

/// What a point came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// By objective; `None`: it could not be carried out.
    pub values: Option<Vec<f64>>,
    /// By constraint, 0 where it holds. The first one is that the point can be carried out.
    pub violations: Vec<f64>,
}

/// Carries a search out, or goes on with it: what is done is told again and not carried out. `prepare` makes a trial of a point.
///
/// # Errors
/// The journal's, and the asker's.
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
                // There is nothing else.
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
