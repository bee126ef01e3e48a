//! Owns databases of measured operators: one SQLite file each, and the set that a run reads together.
//!
//! docs/reference/operator-database.md documents the schema. [`crate::model`] uses the rows.

mod file;
mod set;

#[cfg(test)]
mod tests;

pub use file::{Database, DatabaseError, Notice, Repeat};
pub use set::{Databases, user_file};

use uniference_sim::device::Family;

/// Rows of one cost model: the same computation, on the same device, measured in the same way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    /// Name of the device, as [`uniference_formats::devices`] lists it if the device is known.
    pub device: String,
    /// Software that ran the operators: `torch 2.14.0`.
    pub software: String,
    /// The family of operators, as [`Family::name`] writes it.
    pub family: String,
    /// Variant of the family, as in [`crate::operators::Part::variant`].
    pub variant: String,
    /// Type of the elements, by torch's name.
    pub dtype: String,
    /// Origin of the rows: the name of a notice in the database.
    pub source: String,
}

/// A measured operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The definition as [`crate::operators::key`] writes it; empty if only the sizes are known.
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
    /// Number of measurements.
    pub repetitions: u32,
}

/// The sizes of a family in the format of rows.
pub fn dimensions(family: &Family) -> [u64; 4] {
    family.dimensions().map(|dimension| dimension.map_or(1, |(_, size)| size))
}
