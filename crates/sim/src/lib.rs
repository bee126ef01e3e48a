//! The simulation, pure: same requests in, same replies out. No I/O, no threads, no clock but its own.
//!
//! In the order in which a call travels: a rank asks through [`program`]; the [`engine`] orders all requests in virtual time; [`device`] says
//! what compute is and costs; `comm`
//! matches them; [`collective`] yields the next steps of one rank; `transport` turns a step into messages on streams; [`network`]
//! shares the links among streams; [`event`] says what happened, [`observe`] sums it up.
//! [`replay`] carries out recorded requests. [`symmetry`] lets one rank stand for many, [`cast`] a few ranks of a program.

pub mod cast;
pub mod cluster;
pub mod collective;
mod comm;
pub mod device;
mod dtype;
pub mod engine;
pub mod event;
pub mod ids;
pub mod network;
pub mod observe;
pub mod program;
pub mod replay;
mod store;
pub mod symmetry;
pub mod time;
mod transport;
