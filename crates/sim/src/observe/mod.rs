//! Owns the observers that come with the simulation: the digest of a run, and the figures of its report. How any of it is written down is the business
//! of other crates.

mod digest;
mod statistics;

pub use digest::Digest;
pub use statistics::{OperationStatistics, RankStatistics, Statistics};
