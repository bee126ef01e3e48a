//! What studies runs, simulated or real. Values in, values and text out; no file is opened here.
//!
//! [`calibrate`] makes a cluster file of measurements, and [`compare`] compares two runs. The [`interval`] of a makespan says how far it may be off;
//! [`hazards`] and [`compute`] listen to a run and say what its figures depend on, [`memory`] what its ranks held. A [`profile`] is how long operators take
//! where they ran.

pub mod calibrate;
pub mod compare;
pub mod compute;
pub mod hazards;
pub mod interval;
pub mod memory;
pub mod profile;
#[cfg(test)]
mod samples;
mod statistics;
