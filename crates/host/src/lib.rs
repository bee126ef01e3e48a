//! Live ranks and the command line.

pub mod live;
