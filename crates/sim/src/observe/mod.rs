//! Owns the observers of this crate: the digest of a run, the figures of its report, and the ranges in which activities
//! were issued, which other observers use. Other crates define their file formats.

mod digest;
mod ranges;
mod statistics;

pub use digest::Digest;
pub use ranges::IssueRanges;
pub use statistics::{OperationStatistics, RankStatistics, Statistics, StreamStatistics};
