//! Owns live ranks.

pub mod arena;
pub mod client;
pub mod data;
mod fold;
mod instance;
pub mod protocol;
pub mod exchange;
pub mod slots;
