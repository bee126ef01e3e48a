//! What Uniference reads and writes. Text or bytes in, values or errors out; no file is opened here.
//!
//! In the order in which a run needs them: [`units`], [`diagnostic`] and the table of [`devices`] serve the [`cluster`] file, which resolves to what the engine
//! simulates. While the run goes on, the program [`record`], the [`trace`] and the [`events`] are written, each keeping the first
//! error of its writer in its [`sink`]. At the end come the [`report`] and its [`table`]. A record is read back to run it again.
//!
//! [`chakra`] traces are what others record or generate, [`astra`] are ASTRA-sim's input files, and [`real`] reads what ranks on real machines
//! have recorded; [`operators`] is what a rank ran between its calls. `uniference-programs` makes programs of them, and `uniference-studies` studies runs.

pub mod astra;
pub mod chakra;
pub mod cluster;
pub mod devices;
pub mod diagnostic;
pub mod events;
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
