//! Messages between a rank's process and the driver, and their transport.
//!
//! Both sides first send their protocol version ([`hello`]). A call then passes through three layers: [`messages`]
//! defines its content, [`frame`] its encoding on a stream of bytes, and a [`wire::Wire`] carries it. Data of tensors
//! is never part of a message: it passes through [`memory::Tensors`], on one machine through the [`arena`], memory that
//! all processes have mapped. A rank on another machine needs only an implementation of these two traits. Processes
//! that a rank has started communicate with the rank's process ([`relay`]).

pub mod arena;
pub mod descriptors;
pub mod frame;
pub mod hello;
pub mod leaked_resources;
pub mod memory;
pub mod messages;
pub mod relay;
pub mod settings;
pub mod wire;

use rustix::process::Signal;

/// Signal by which the driver asks a rank's process for the stacks of its threads. Linux does not send it, and programs
/// rarely use it.
pub const STACKS_SIGNAL: Signal = Signal::STKFLT;
