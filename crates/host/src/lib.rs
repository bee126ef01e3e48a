//! Live ranks and the command line.

pub mod capacity;
pub mod cli;
pub mod error;
pub mod interrupt;
pub mod live;
