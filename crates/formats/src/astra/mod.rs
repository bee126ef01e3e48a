//! Owns ASTRA-sim's congestion-unaware analytical backend: its input files, its closed form, and its way of running traces. Results
//! equal its own to the nanosecond, so that predictions can be compared; the physics is not ours, and nothing else depends on this.
//!
//! [`inputs`] and the remote [`memory`] are read; [`closed_form`] says how long a collective takes; [`schedule`] runs traces by it, [`timeline`] writes down when.
//! Collectives may be given as traces of their own: [`custom`]. Text workloads of ASTRA-sim and of SimAI become traces: [`layers`].

pub mod closed_form;
pub mod custom;
pub mod inputs;
pub mod layers;
pub mod memory;
pub mod schedule;
pub mod timeline;

#[cfg(test)]
mod tests;
