//! Everything that uses the operating system: live ranks, real processes, the testbed.
//!
//! In the order of a run: [`capacity`] forecasts whether this machine has the resources for it; [`live`] starts the
//! ranks and carries their calls to the simulation until the ranks end or a signal arrives ([`interrupt`]), while a
//! [`supervisor`] watches the processes; each failure is an [`error`] with an exit code. [`symbols`] checks whether
//! simulated GPUs have all functions that PyTorch binds.

pub mod capacity;
pub mod error;
pub mod interrupt;
pub mod leaked_resources;
pub mod live;
pub mod supervisor;
pub mod symbols;
pub mod testbed;
