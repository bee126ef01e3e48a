//! Owns ASTRA-sim's congestion-unaware analytical backend: its input files, its closed form, and its way of running traces. Results
//! equal its own to the nanosecond, so that predictions can be compared; the physics is not ours, and nothing else depends on this.
//!
//! [`inputs`] are read; [`closed_form`] says how long a collective takes; [`schedule`] runs traces by it.

pub mod closed_form;
pub mod inputs;
pub mod schedule;

#[cfg(test)]
mod tests;
