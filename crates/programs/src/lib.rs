//! Sources of programs for the simulator. The crate makes programs and does not run them: it neither calls the
//! operating system nor opens files.
//!
//! [`workload`] generates the execution traces of training and inference jobs from a model's dimensions, and [`astra`]
//! reads ASTRA-sim's text workloads. [`chakra`] replays execution traces, exports them from program records, and links
//! recordings of profilers to traces. [`real`] makes programs from recordings of real runs. [`astra`] also predicts, in
//! closed form, the results of ASTRA-sim's analytical backend.

pub mod astra;
pub mod chakra;
pub mod real;
pub mod workload;
