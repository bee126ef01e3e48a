//! Owns MLCommons Chakra's execution traces (ETs): what each rank of a job did, as a graph of compute, memory and communication nodes.
//!
//! A file is a [`frame`] after the other, each a message of the [`schema`]; [`read`] and [`mod@write`] stream them, so a file may be
//! larger than memory. [`attributes`] say what a node means, [`groups`] who its process group is, [`check`] whether its
//! dependencies hold together, [`refuse`] which single nodes cannot be run. [`stats`], [`json`], [`dot`] and [`diff`] show traces to people and to other tools.
//!
//! [`own`] says what the schema has no words for, in traces of Uniference's own. Running traces, and making them, is the business of
//! `uniference-programs`.

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
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] read::ReadError),
    /// What shows it cannot be written.
    #[error("cannot write the output: {0}\nhint: check the destination and the free disk space")]
    Write(#[from] io::Error),
}

#[cfg(test)]
mod tests;
