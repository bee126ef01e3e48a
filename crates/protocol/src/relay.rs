//! Owns the first messages between a process that a rank has started and the rank's process, which relays its requests.
//!
//! Batches and replies of [`messages`](crate::messages) follow, as between a rank and the driver. Each thread of the
//! started process has its own connection.

use crate::messages::Compute;
use serde::{Deserialize, Serialize};
use uniference_sim::time::SimTime;

/// Environment variable with the name of the socket (abstract Unix namespace) at which the rank's process listens.
pub const SOCKET_VARIABLE: &str = "UNIFERENCE_RELAY";

/// Environment variable with the [`Introduction::path`] of the thread that started the process: numbers, separated by
/// dots.
pub const PATH_VARIABLE: &str = "UNIFERENCE_RELAY_PATH";

/// Environment variable with the path of the rank's Python interpreter: a process that runs this interpreter has the
/// rank's GPUs.
pub const INTERPRETER_VARIABLE: &str = "UNIFERENCE_RELAY_INTERPRETER";

/// Environment variable with the libraries that are preloaded in a process that runs this interpreter, instead of the
/// libraries for other programs: paths, separated by colons.
pub const LIBRARIES_VARIABLE: &str = "UNIFERENCE_RELAY_LIBRARIES";

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Protocol version of the process ([`VERSION`](crate::hello::VERSION)).
    pub version: u32,
    /// Path of the thread in the tree of threads that started each other, from the rank's main thread on; it determines
    /// the order of requests. A process counts as a thread started by the thread that forked it.
    pub path: Vec<u32>,
}

/// The answer to an [`Introduction`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The rank whose process relays.
    pub rank: u32,
    /// Number of ranks in the world.
    pub world_size: u32,
    /// The rank's clock at its last answer.
    pub now: SimTime,
    /// [`Compute::Modelled`] if the process is to report its operators, else [`Compute::None`].
    pub compute: Compute,
}
