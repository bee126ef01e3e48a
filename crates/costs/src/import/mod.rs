//! Owns the import of third-party measurements: the files of a source, and the conversion of their rows.
//!
//! A source is an operator database, a Parquet file of operators (`operators.rs` documents its columns), a text file of
//! published attention (`published.rs`), or the folder of an installed `aiconfigurator-core` (`aiconfigurator.rs`).
//! Several rows of the same operator become one, with their median.

mod aiconfigurator;
mod operators;
mod parquet;
mod published;

use crate::database::{Database, DatabaseError, Notice, Repeat, Row, Series};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Number of rows that are new, or have replaced others.
    pub rows: usize,
    /// Number of rows without a known family, or without a time, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// Licence terms of the rows.
    pub notices: Vec<Notice>,
}

/// Reason that nothing can be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The database cannot be read or written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The file does not exist, or cannot be read.
    #[error("cannot read {}: {source}\nhint: give a Parquet file of operators, an operator database, or the folder of an installed aiconfigurator-core", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The content of the file cannot be imported.
    #[error("cannot import {}: {problem}\nhint: give a Parquet file of operators, an operator database, or the folder of an installed aiconfigurator-core", path.display())]
    Source {
        /// The path of the file.
        path: PathBuf,
        /// Defect of the content.
        problem: String,
    },
}

/// Imports all rows of `source` into a database.
///
/// # Errors
/// If the source cannot be read, or the database cannot be written. Rows that were imported before the error stay.
pub fn import(source: &Path, into: &mut Database) -> Result<Imported, ImportError> {
    let metadata =
        std::fs::metadata(source).map_err(|error| ImportError::File { path: source.to_owned(), source: error })?;
    if metadata.is_dir() {
        return aiconfigurator::import(source, into);
    }
    let mut gathered = Gathered::default();
    match source.extension().and_then(std::ffi::OsStr::to_str) {
        Some("parquet") => operators::read(source, &mut gathered)?,
        Some("csv") => published::read(source, &mut gathered)?,
        _ => {
            let other = Database::open(source)?;
            let rows = into.merge(&other)?;
            return Ok(Imported { rows, notices: other.notices()?, ..Imported::default() });
        }
    }
    gathered.write(into)
}

/// A row of a source.
pub(crate) struct Measurement {
    pub(crate) series: Series,
    pub(crate) dimensions: [u64; 4],
    pub(crate) flops: u64,
    pub(crate) bytes: u64,
    pub(crate) microseconds: f64,
}

/// Sizes, operations and bytes of an operator.
type Work = ([u64; 4], u64, u64);

/// The rows of a file, by series and operator.
#[derive(Default)]
struct Gathered {
    series: BTreeMap<Series, BTreeMap<Work, Vec<f64>>>,
    skipped: BTreeMap<String, usize>,
    notices: BTreeMap<String, Notice>,
}

impl Gathered {
    fn add(&mut self, notice: impl FnOnce() -> Notice, measurement: Measurement) {
        let Measurement { series, dimensions, flops, bytes, microseconds } = measurement;
        if !(microseconds.is_finite() && microseconds > 0.0) {
            return self.skip("without a time");
        }
        self.notices.entry(series.source.clone()).or_insert_with(notice);
        self.series.entry(series).or_default().entry((dimensions, flops, bytes)).or_default().push(microseconds);
    }

    fn skip(&mut self, what: &str) {
        self.skip_several(what, 1);
    }

    fn skip_several(&mut self, what: &str, rows: usize) {
        *self.skipped.entry(what.to_owned()).or_default() += rows;
    }

    fn write(self, into: &mut Database) -> Result<Imported, ImportError> {
        let mut imported = Imported { skipped: self.skipped, ..Imported::default() };
        for (series, operators) in self.series {
            let rows: Vec<Row> = operators.into_iter().map(row).collect();
            let notice = &self.notices[&series.source];
            imported.rows += into.add(&series, notice, &rows, Repeat::Replaces)?;
        }
        imported.notices = self.notices.into_values().collect();
        Ok(imported)
    }
}

fn row(((dimensions, flops, bytes), mut times): (Work, Vec<f64>)) -> Row {
    times.sort_by(f64::total_cmp);
    let microseconds = times[times.len() / 2];
    let repetitions = u32::try_from(times.len()).unwrap_or(u32::MAX);
    let square = |time: &f64| libm::log(time / microseconds).powi(2);
    let variance = times.iter().map(square).sum::<f64>() / (times.len().max(2) - 1) as f64;
    let spread = (times.len() > 1).then(|| variance.sqrt());
    Row { operator: String::new(), dimensions, flops, bytes, microseconds, spread, repetitions }
}

impl Imported {
    fn and(&mut self, other: Imported) {
        self.rows += other.rows;
        for (what, count) in other.skipped {
            *self.skipped.entry(what).or_default() += count;
        }
        self.notices.extend(other.notices);
        self.notices.sort_by(|a, b| a.name.cmp(&b.name));
        self.notices.dedup();
    }
}

#[cfg(test)]
mod tests;
