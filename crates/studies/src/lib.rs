//! Studies of runs, simulated or real. All functions map values to values and text; no file is opened.
//!
//! [`calibrate`] derives a cluster file from measurements, and [`compare`] compares two runs. [`interval`] computes a
//! makespan's uncertainty; [`critical`] explains a run's duration, [`whatif`] finds changes that are worth a try, and
//! [`overlap`] finds compute that could overlap an operation. [`hazards`] and [`compute`] listen to a run and warn of
//! what its figures depend on; [`memory`] follows the ranks' memory, [`links`] the network's load, and [`phases`] the
//! durations of named ranges. [`profile`] has the durations of operators on the machine of a run. [`page`] shows all of
//! these.

pub mod calibrate;
pub mod compare;
pub mod compute;
pub mod critical;
pub mod hazards;
pub mod interval;
pub mod links;
pub mod memory;
pub mod overlap;
pub mod page;
pub mod phases;
pub mod profile;
#[cfg(test)]
mod samples;
mod statistics;
pub mod sweep;
pub mod whatif;
