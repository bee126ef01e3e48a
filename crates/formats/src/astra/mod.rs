//! Owns the input files of ASTRA-sim's analytical backend: the system and the network ([`inputs`]), and the remote
//! [`memory`].
//!
//! `uniference-programs` computes collectives and traces from them.

pub mod inputs;
pub mod memory;
