//! Owns the observers that come with the simulation: the digest of a run, and the figures of its report; and the ranges in which activities were
//! issued, which other observers keep. How any of it is written down is the business of other crates.

mod digest;
mod ranges;
mod statistics;

pub use digest::Digest;
pub use ranges::IssueRanges;
pub use statistics::{OperationStatistics, RankStatistics, Statistics, StreamStatistics};
