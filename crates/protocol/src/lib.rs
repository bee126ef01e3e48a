//! What a rank's process and the driver say to each other, and what they say it through.
//!
//! Both sides first say which protocol they speak ([`hello`]). Then, in the order in which a call travels: [`messages`] are what is said,
//! [`frame`] is how that lies on a stream of bytes, and a [`wire::Wire`] carries it. Data of tensors never travels with it, but by
//! [`memory::Tensors`]: on one machine through the [`arena`], which is memory that all have mapped. A rank on another machine needs an
//! implementation of these two traits, and nothing else. Processes that a rank has started speak with the rank's process ([`relay`]).

pub mod arena;
pub mod descriptors;
pub mod frame;
pub mod hello;
pub mod leftovers;
pub mod memory;
pub mod messages;
pub mod relay;
pub mod settings;
pub mod wire;

use rustix::process::Signal;

/// What the driver asks a rank's process with for the stacks of its threads. Linux itself does not send it, and programs hardly know it.
pub const STACKS_SIGNAL: Signal = Signal::STKFLT;
