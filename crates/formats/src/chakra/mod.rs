//! Owns MLCommons Chakra's execution traces (ETs): the work of each rank of a job as a graph of compute, memory and
//! communication nodes.
//!
//! A file is a sequence of [`frame`]s, each with one message of the [`schema`]; [`read`] and [`mod@write`] stream the
//! frames, so a file may be larger than memory. [`attributes`] interprets nodes, [`groups`] finds the members of
//! process groups, [`check`] finds broken dependencies, and [`refuse`] finds single nodes that cannot be run.
//! [`stats`], [`json`], [`dot`] and [`diff`] show traces to people and to other tools.
//!
//! [`own`] names Uniference's additions to the schema. `uniference-programs` runs traces and makes them.

pub mod attributes;
pub mod check;
pub mod diff;
pub mod dot;
pub mod frame;
pub mod groups;
pub mod json;
pub mod operators;
pub mod own;
pub mod read;
pub mod refuse;
pub mod schema;
pub mod stats;
pub mod write;

use std::io;

/// A trace that could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] read::ReadError),
    /// The output cannot be written.
    #[error("cannot write the output: {0}\nhint: check the destination and the free disk space")]
    Write(#[from] io::Error),
}

#[cfg(test)]
mod tests;
