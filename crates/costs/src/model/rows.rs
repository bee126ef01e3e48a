//! Owns the rows that a model has read: for each place, the rows of all databases together, with an index for lookups.

use super::like;
use crate::database::{Databases, Row};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex};
use uniference_sim::device::{Family, Operator};

/// Device, family, variant (`None`: all variants) and element type.
type Place = (String, String, Option<String>, String);

/// Rows by device, family, variant and type, read at their first use.
#[derive(Debug)]
pub(super) struct Rows {
    databases: Arc<Databases>,
    read: Mutex<FxHashMap<Place, Arc<Found>>>,
}

/// The rows of one place.
#[derive(Debug, Default)]
pub(super) struct Found {
    rows: Vec<Row>,
    /// Indices into `rows` by operator key.
    operators: FxHashMap<String, usize>,
    sizes: FxHashMap<([u64; 4], u64, u64), Vec<usize>>,
}

impl Rows {
    pub(super) fn new(databases: Arc<Databases>) -> Rows {
        Rows { databases, read: Mutex::default() }
    }

    pub(super) fn databases(&self) -> &Databases {
        &self.databases
    }

    /// Rows of the kernels that a variant runs, or of all variants that stand for one another. A database that can no
    /// longer be read has no rows: it was checked when it was opened.
    pub(super) fn of(&self, device: &str, family: &str, variant: Option<&str>, dtype: &str) -> Arc<Found> {
        let place = (device.to_owned(), family.to_owned(), variant.map(str::to_owned), dtype.to_owned());
        let mut read = self.read.lock().expect("no estimate panics");
        let find = || {
            let mut found = Found::default();
            for (index, series) in self.databases.series() {
                let is_variant = || match variant {
                    Some(variant) => like::kernels(family, &series.variant) == like::kernels(family, variant),
                    None => !like::stands_apart(family, &series.variant),
                };
                if series.device == device && series.family == family && series.dtype == dtype && is_variant() {
                    let rows = self.databases.rows(*index, series);
                    rows.unwrap_or_else(|error| panic!("{error}")).into_iter().for_each(|row| found.add(row));
                }
            }
            Arc::new(found)
        };
        read.entry(place).or_insert_with(find).clone()
    }
}

impl Found {
    /// Adds a row. A later row of a definition replaces the earlier one.
    fn add(&mut self, row: Row) {
        if !row.operator.is_empty() {
            if let Some(place) = self.operators.get(&row.operator) {
                self.rows[*place] = row;
                return;
            }
            self.operators.insert(row.operator.clone(), self.rows.len());
        } else {
            self.sizes.entry((row.dimensions, row.flops, row.bytes)).or_default().push(self.rows.len());
        }
        self.rows.push(row);
    }

    /// Time and spread of the last row read among those that name no operator.
    pub(super) fn of_any(&self) -> Option<(f64, Option<f64>)> {
        self.rows.iter().rev().find(|row| row.operator.is_empty()).map(|row| (row.microseconds, row.spread))
    }

    /// Median time over all repetitions of the rows that name no operator.
    pub(super) fn typical(&self) -> Option<f64> {
        let unnamed = self.rows.iter().filter(|row| row.operator.is_empty());
        let mut times: Vec<(f64, u64)> = unnamed.map(|row| (row.microseconds, row.repetitions.into())).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let half = times.iter().map(|(_, repetitions)| repetitions).sum::<u64>() / 2;
        let mut so_far = 0;
        let reached = |(_, repetitions): &&(f64, u64)| {
            so_far += repetitions;
            so_far > half
        };
        times.iter().find(reached).map(|(time, _)| *time)
    }

    pub(super) fn all(&self) -> &[Row] {
        &self.rows
    }

    /// Median and spread of the row of a definition.
    pub(super) fn by_operator(&self, key: &str) -> Option<(f64, Option<f64>)> {
        let row = &self.rows[*self.operators.get(key)?];
        Some((row.microseconds, row.spread))
    }

    /// Median and spread of the rows with these sizes and this work; if several collections have such a row, the middle
    /// one counts.
    pub(super) fn by_sizes(&self, dimensions: [u64; 4], operator: &Operator) -> Option<(f64, Option<f64>)> {
        if operator.family == Family::Unspecified {
            return None;
        }
        let places = self.sizes.get(&(dimensions, operator.flops, operator.bytes().0))?;
        let mut rows: Vec<&Row> = places.iter().map(|place| &self.rows[*place]).collect();
        rows.sort_by(|a, b| a.microseconds.total_cmp(&b.microseconds));
        let middle = rows.get(rows.len() / 2)?;
        Some((middle.microseconds, middle.spread))
    }
}
