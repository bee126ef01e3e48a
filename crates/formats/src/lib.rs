//! File formats that Uniference reads and writes. Text or bytes in, values or errors out; no file is opened in this
//! crate.
//!
//! In the order in which a run needs them: [`units`], [`diagnostic`] and the table of [`devices`] serve the [`cluster`]
//! file, which resolves to the simulated cluster. During the run the program [`record`], the [`trace`] and the
//! [`events`] are written, each with a [`sink`] that keeps the writer's first error. At the end come the [`report`], of
//! declared columns ([`mod@column`]), and its [`table`]. A record is read back to run it again.
//!
//! [`chakra`] has traces that other tools record or generate, [`astra`] ASTRA-sim's input files, [`real`] the
//! recordings of ranks on real machines, and [`operators`] the operators that a rank ran between its calls,
//! [`lines`] the lines that users name.
//! `uniference-programs` makes programs of them, and `uniference-studies` studies runs.

pub mod astra;
pub mod chakra;
pub mod cluster;
pub mod column;
pub mod devices;
pub mod diagnostic;
pub mod events;
#[cfg(test)]
mod generated;
pub mod lines;
pub mod operators;
pub mod real;
pub mod record;
pub mod report;
pub mod sink;
pub mod sweep;
mod syntax;
pub mod table;
pub mod trace;
pub mod units;
