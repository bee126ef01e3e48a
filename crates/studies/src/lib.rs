//! What studies runs, simulated or real. Values in, values and text out; no file is opened here.
//!
//! [`calibrate`] makes a cluster file of measurements, and [`compare`] compares two runs. The [`interval`] of a makespan says how far it may be off;
//! [`critical`] says why a run takes as long as it does, [`whatif`] which changes are worth a try, and [`overlap`] what could run beside an operation. [`hazards`] and [`compute`] listen to a run and say
//! what its figures depend on, [`memory`] what its ranks held, [`links`] what the network carried, and [`phases`] how long its named ranges took. A [`profile`] is how long operators take where they ran. A
//! [`page`] shows all of it.

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
