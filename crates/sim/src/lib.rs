//! The pure simulation: equal requests lead to equal replies. It has no I/O, no threads, and no clock except virtual
//! time.
//!
//! A call passes through these modules: a rank makes requests through [`program`]; the [`engine`] orders all requests
//! in virtual time; [`device`] determines the cost of compute; `comm` matches calls; [`collective`] yields the next
//! steps of one rank; `transport` turns a step into messages on connection streams; [`network`] shares the links among
//! streams; [`event`] defines the events, and [`observe`] summarises them. [`replay`] carries out recorded requests.
//! [`symmetry`] lets one rank stand for many, and [`fold_plan`] a few ranks of a program for all.

pub mod cluster;
pub mod collective;
mod comm;
pub mod device;
mod dtype;
pub mod engine;
pub mod event;
pub mod fold_plan;
pub mod ids;
pub mod network;
pub mod observe;
pub mod program;
pub mod replay;
mod store;
pub mod symmetry;
pub mod time;
mod transport;
