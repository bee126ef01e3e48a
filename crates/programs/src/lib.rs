//! What makes programs for the simulator, other than running them: nothing here touches the operating system, and no file is opened.
//!
//! [`workload`] generates the execution traces of training and inference jobs from a model's dimensions, and [`astra`] reads text workloads.
//! [`chakra`] runs execution traces, makes them of program records, and links those that profilers record. [`real`] makes programs of recorded
//! real runs. [`astra`] also predicts what ASTRA-sim's analytical backend would, by its closed form.

pub mod astra;
pub mod chakra;
pub mod real;
pub mod workload;
