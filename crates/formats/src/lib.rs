//! What Uniference reads and writes. Text or bytes in, values or errors out; no file is opened here.
//!
//! In the order in which a run needs them: [`units`] and [`diagnostic`] serve the [`cluster`] file, which resolves to what the engine
//! simulates. While the run goes on, the program [`record`], the [`trace`] and the [`events`] are written, each keeping the first
//! error of its writer in its [`sink`]. At the end come the [`report`], with the [`interval`] of its makespan, and its [`table`]. A record is read back to run it again.
//!
//! [`chakra`] traces are what others record or generate; they are read, written, shown and run. [`workload`] generates them, and [`astra`] predicts
//! what ASTRA-sim would.
//!
//! [`real`] reads what ranks on real machines have recorded, [`compare`] holds two runs against each other, and [`calibrate`] makes a cluster file of
//! measurements.

pub mod astra;
pub mod calibrate;
pub mod chakra;
pub mod cluster;
pub mod compare;
pub mod compute;
pub mod diagnostic;
pub mod events;
pub mod hazards;
pub mod interval;
pub mod real;
pub mod record;
pub mod report;
pub mod sink;
mod statistics;
pub mod table;
pub mod trace;
pub mod units;
pub mod workload;
