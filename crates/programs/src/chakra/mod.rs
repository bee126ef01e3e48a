//! Owns what runs and makes execution traces (MLCommons Chakra): a [`feed`] gives each rank's nodes in the order in which they may start,
//! and a [`replay`] of them is a program of the simulator.
//!
//! [`mod@export`] goes the other way, from the record of a program to traces; [`mod@link`] makes traces of the files that profilers record. The files
//! themselves are read and written by [`uniference_formats::chakra`].

pub mod export;
pub mod feed;
pub mod link;
pub mod replay;
