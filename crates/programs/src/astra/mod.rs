//! Owns ASTRA-sim's congestion-unaware analytical backend: its closed form and its execution of traces. Results equal
//! ASTRA-sim's own to the nanosecond, to allow comparisons of predictions; the model is ASTRA-sim's, and no other part
//! of Uniference depends on it.
//!
//! [`closed_form`] computes durations of collectives; [`schedule`] runs traces with it, [`timeline`] writes the times
//! of nodes. [`custom`] replaces collectives by traces of their own. [`layers`] makes traces of text workloads of
//! ASTRA-sim and of SimAI. [`uniference_formats::astra`] reads the input files.

pub mod closed_form;
pub mod custom;
pub mod layers;
pub mod schedule;
pub mod timeline;

#[cfg(test)]
mod tests;
