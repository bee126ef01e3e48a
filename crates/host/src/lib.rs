//! Live ranks and the command line.

pub mod cli;
pub mod error;
pub mod live;
