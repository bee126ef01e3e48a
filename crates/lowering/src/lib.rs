//! Lowering: what a program did becomes requests of the engine, and the engine's replies become answers. The crate does
//! no I/O and has no clock, so its tests need no processes, and a replay lowers recorded slices as the live run did.
//!
//! [`Conversations`] receives the operations of live ranks as messages (`uniference-protocol`) and submits requests; a
//! [`Recorder`] receives them, too. Compute between two calls is a [`slice::RankSlice`], which [`slice::Costs`] lowers
//! to pieces of work; [`compute`] does so for the sources of compute that the caller chooses. `data` locates the tensors
//! of calls in the arena, where it reduces small collectives, and `absent` restricts calls to the ranks that run in a
//! rehearsal.

mod absent;
pub mod compute;
pub mod conversations;
mod data;
pub mod slice;
#[cfg(test)]
mod testing;

pub use conversations::{Conversations, Recorder};
