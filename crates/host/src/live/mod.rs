//! Owns live ranks: unmodified Python programs, each in a process of its own, as the engine's ranks.
//!
//! In the order in which a call travels: [`client`] (in the rank's process; [`rounds`] where that has several threads) speaks the
//! [`protocol`] with the [`driver`], which hears all ranks and starts them through the [`zygote`]; [`exchange`] turns their words
//! into the engine's requests and its replies into answers; [`data`] knows where tensors lie in the [`arena`]; [`memory`] copies and
//! combines them; [`slots`] says who may run at once; [`lookout`] sees ranks that say nothing.

pub mod arena;
pub mod client;
pub mod data;
mod descriptors;
pub mod driver;
pub mod exchange;
mod fold;
mod instance;
mod lanes;
pub mod lookout;
pub mod memory;
pub mod output;
mod processor;
pub mod protocol;
mod quiescence;
pub mod rounds;
pub mod slots;
pub mod zygote;
