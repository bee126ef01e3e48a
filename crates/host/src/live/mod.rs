//! Owns live ranks: unmodified Python programs, each in a process of its own, as the engine's ranks.
//!
//! In the order in which a call travels, once it has left the rank's process (`uniference-client`) as messages (`uniference-protocol`): the
//! [`driver`] hears all ranks (`sources`) and starts them through the [`zygote`]; [`exchange`] turns their words into the engine's requests and its
//! replies into answers; [`data`] knows where tensors lie in the arena; [`slots`] says who may run at once; [`lookout`] sees ranks that
//! say nothing; [`remote`] has ranks on other machines.

mod absent;
mod connections;
pub mod data;
pub mod driver;
pub mod exchange;
mod fold;
mod instance;
pub mod lookout;
pub mod output;
pub mod phantom;
pub mod remote;
pub mod slots;
mod sources;
pub mod zygote;
