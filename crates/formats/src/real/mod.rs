//! What the ranks of a real run have recorded, and the simulation's events that it becomes.
//!
//! In the order of its way: [`mod@file`] reads the file of one rank, [`clock`] brings its times to those of rank 0, and [`mod@merge`] finds out who met
//! whom and tells an observer of it all, as the engine would of a simulated run.

pub mod clock;
pub mod file;
pub mod merge;

pub use file::{RankFile, RealError};
pub use merge::{Merged, merge};

#[cfg(test)]
mod tests;
