//! The recordings of the ranks of a real run, and the equivalent events of a simulation.
//!
//! The steps in their order: [`mod@file`] reads the file of one rank, [`clock`] converts its times to rank 0's clock,
//! and [`mod@merge`] matches operations and sends all events to an observer, as the engine does for a simulated run.

pub mod clock;
pub mod file;
pub mod merge;

pub use file::{RankFile, RealError};
pub use merge::{Merged, merge};

#[cfg(test)]
mod tests;
