//! The simulation, pure: same requests in, same replies out. No I/O, no threads, no clock but its own.
//!
//! In the order in which a call travels: a rank asks through [`program`]; the [`engine`] orders all requests in virtual time; `comm`
//! matches them; [`collective`] yields the next steps of one rank; `transport` turns a step into messages on streams; [`network`]
//! shares the links among streams; [`record`] sees all of it. [`symmetry`] lets one rank stand for many.

pub mod cluster;
pub mod collective;
mod comm;
pub mod engine;
pub mod ids;
pub mod network;
pub mod program;
pub mod record;
pub mod symmetry;
pub mod time;
mod transport;
