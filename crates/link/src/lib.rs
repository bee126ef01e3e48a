//! Connections between the machines of one run: encrypted, mutually authenticated, with messages of bounded length.
//!
//! To make a connection, a [`door::Door`] listens at the driver, [`join`] connects to it, and both carry out the
//! `handshake`, by which each side proves that it knows the [`token::Token`]. Then a [`stream::Stream`] carries
//! messages; this crate does not know their content. [`clock`] compares the clocks of two machines over a separate
//! connection.

pub mod clock;
pub mod door;
mod handshake;
pub mod join;
pub mod stream;
pub mod token;

pub use handshake::Refusal;
