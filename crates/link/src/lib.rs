//! Connections between the machines of one run: encrypted, mutually authenticated, of bounded messages.
//!
//! In the order in which a connection is made: a [`door::Door`] listens at the driver, [`join`] connects to it, both carry out the `handshake`,
//! by which each side proves that it knows the [`token::Token`], and have a [`stream::Stream`] of messages. What the messages of a run say is not known here. By a connection of
//! its own, [`clock`] compares the clocks of two machines.

pub mod clock;
pub mod door;
mod handshake;
pub mod join;
pub mod stream;
pub mod token;

pub use handshake::Refusal;
