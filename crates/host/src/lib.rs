//! Everything that touches the operating system: live ranks, real processes, the testbed.
//!
//! In the order of a run: [`capacity`] forecasts whether the host has room for it, [`live`] starts the ranks and carries their calls to the
//! simulation until they end or [`interrupt`] does, under the eyes of a [`supervisor`]; every bad end is an [`error`] with an exit code. [`symbols`]
//! checks whether simulated GPUs have what PyTorch binds.

pub mod capacity;
pub mod error;
pub mod interrupt;
pub mod leftovers;
pub mod live;
pub mod supervisor;
pub mod symbols;
pub mod testbed;
