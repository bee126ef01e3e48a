//! Owns what a process that a rank has started says first to the rank's process, which relays its requests, and how it finds that one.
//!
//! What follows are batches and replies of [`messages`](crate::messages), as between a rank and the driver. Each thread of such a process has a
//! connection of its own.

use crate::messages::Compute;
use serde::{Deserialize, Serialize};
use uniference_sim::time::SimTime;

/// The environment variable that names the socket, in the abstract namespace of Unix sockets, at which the rank's process listens.
pub const SOCKET_VARIABLE: &str = "UNIFERENCE_RELAY";

/// The environment variable that says who started the process: the numbers of an [`Introduction`], separated by dots.
pub const PATH_VARIABLE: &str = "UNIFERENCE_RELAY_PATH";

/// The environment variable that names the Python interpreter of the rank: where that is started, the rank's GPUs are there as well.
pub const INTERPRETER_VARIABLE: &str = "UNIFERENCE_RELAY_INTERPRETER";

/// The environment variable that says what is preloaded there, in place of what is preloaded to other programs: paths, separated by colons.
pub const LIBRARIES_VARIABLE: &str = "UNIFERENCE_RELAY_LIBRARIES";

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Of which version of the protocol the process is ([`VERSION`](crate::hello::VERSION)).
    pub version: u32,
    /// By which thread the thread was started, from the rank's main thread on: the order of requests goes by it. A process counts as a thread that
    /// the thread has started which forked it.
    pub path: Vec<u32>,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The rank whose process relays.
    pub rank: u32,
    /// Number of ranks in the world.
    pub world_size: u32,
    /// The rank's clock at its last answer.
    pub now: SimTime,
    /// [`Compute::Modelled`] if the process is to say which operators it runs, else [`Compute::None`].
    pub compute: Compute,
}
