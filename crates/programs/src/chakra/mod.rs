//! Owns the replay and the production of execution traces (MLCommons Chakra): a [`feed`] gives each rank's nodes in the
//! order in which they may start, and a [`replay`] of them is a program of the simulator.
//!
//! [`mod@export`] writes program records as traces; [`mod@link`] makes traces from recordings of profilers.
//! [`uniference_formats::chakra`] reads and writes the files.

pub mod export;
pub mod feed;
pub mod link;
pub mod replay;
