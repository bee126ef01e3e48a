//! Owns the input files of ASTRA-sim's analytical backend: the system and the network ([`inputs`]), and the remote [`memory`].
//!
//! What they mean for a collective or a trace is the business of `uniference-programs`.

pub mod inputs;
pub mod memory;
