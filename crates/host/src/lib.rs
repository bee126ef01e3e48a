//! Everything that touches the operating system: the command line and the live ranks.
//!
//! In the order of a run: [`cli`] reads what is wanted, [`capacity`] forecasts whether the host has room for it, [`live`] starts the
//! ranks and carries their calls to the simulation until they end or [`interrupt`] does, under the eyes of a [`supervisor`]; what is told
//! goes to [`standard`] output, and every bad end is an [`error`] with an exit code.

pub mod capacity;
pub mod cli;
pub mod error;
pub mod interrupt;
pub mod live;
pub mod standard;
pub mod supervisor;
pub mod testbed;
