//! Owns MLCommons Chakra's execution traces (ETs): what each rank of a job did, as a graph of compute, memory and communication nodes.
//!
//! A file is a [`frame`] after the other, each a message of the [`schema`]; [`read`] and [`mod@write`] stream them, so a file may be
//! larger than memory. [`attributes`] say what a node means, [`groups`] who its process group is, [`check`] whether its
//! dependencies hold together. [`stats`], [`json`], [`dot`] and [`diff`] show traces to people and to other tools.
//!
//! To run traces, a [`feed`] gives each rank's nodes in order, and a [`replay`] of them is a program of the simulator. The way back,
//! from the record of a program to traces, is [`export`]'s; [`own`] says there what the schema has no words for.

pub mod attributes;
pub mod check;
pub mod diff;
pub mod dot;
pub mod export;
pub mod feed;
pub mod frame;
pub mod groups;
pub mod json;
pub mod link;
pub mod own;
pub mod read;
pub mod replay;
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
    #[error("the output could not be written: {0}\nhint: check where it goes to, and whether there is room")]
    Write(#[from] io::Error),
}

#[cfg(test)]
mod tests;
