//! Owns ASTRA-sim's congestion-unaware analytical backend: its closed form and its way of running traces. Results
//! equal its own to the nanosecond, so that predictions can be compared; the physics is not ours, and nothing else depends on this.
//!
//! [`closed_form`] says how long a collective takes; [`schedule`] runs traces by it, [`timeline`] writes down when.
//! Collectives may be given as traces of their own: [`custom`]. Text workloads of ASTRA-sim and of SimAI become traces: [`layers`].
//! The input files are read by [`uniference_formats::astra`].

pub mod closed_form;
pub mod custom;
pub mod layers;
pub mod schedule;
pub mod timeline;

#[cfg(test)]
mod tests;
