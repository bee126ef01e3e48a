//! Owns databases of measured operators: one SQLite file each, and those that a run reads together.
//!
//! docs/reference/operator-database.md documents the schema. What is made of the rows is the business of [`crate::model`].

mod file;
mod set;

#[cfg(test)]
mod tests;

pub use file::{Database, DatabaseError, Notice, Repeat};
pub use set::{Databases, user_file};

use uniference_sim::device::Family;

/// Rows that one model of the cost serves: the same computation, on the same device, measured in the same way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    /// The device's name, as [`uniference_formats::devices`] has it where it does.
    pub device: String,
    /// What ran the operators: `torch 2.14.0`.
    pub software: String,
    /// The family of operators, as [`Family::name`] writes it.
    pub family: String,
    /// What the operators compute, as in [`crate::operators::Part::variant`].
    pub variant: String,
    /// Type of the elements, by torch's name.
    pub dtype: String,
    /// Where the rows are from: a source that the database has a notice of.
    pub source: String,
}

/// A measured operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The definition as [`crate::operators::key`] writes it; empty where only the sizes are known.
    pub operator: String,
    /// The sizes of its family in their order; 1 where the family has fewer.
    pub dimensions: [u64; 4],
    /// Number of floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Median duration in microseconds.
    pub microseconds: f64,
    /// Standard deviation of the logarithm of the duration, if it was measured more than once.
    pub spread: Option<f64>,
    /// How often it was measured.
    pub repetitions: u32,
}

/// The sizes of a family as rows have them.
pub fn dimensions(family: &Family) -> [u64; 4] {
    family.dimensions().map(|dimension| dimension.map_or(1, |(_, size)| size))
}
