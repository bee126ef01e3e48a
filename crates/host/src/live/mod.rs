//! Owns live ranks: unmodified Python programs, each in a process of its own, as the engine's ranks.
//!
//! In the order of a call that has left the rank's process (`uniference-client`) as messages (`uniference-protocol`):
//! the [`driver`] reads messages of all ranks (`sources`), passes them to `uniference-lowering`, which asks the engine,
//! and starts ranks through the [`zygote`]; [`slots`] limits the ranks that run at once; [`process_probe`] inspects
//! ranks without messages; [`remote`] has ranks on other machines.

mod connections;
pub mod driver;
pub mod output;
pub mod phantom;
pub mod process_probe;
pub mod remote;
pub mod slots;
mod sources;
pub mod zygote;
