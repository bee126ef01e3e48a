//! Owns the slices of compute between two calls of a program, and the pieces of work that a slice is lowered to. The
//! module knows neither the costs of pieces nor the engine that carries them out.

use uniference_formats::operators::Line;
pub use uniference_protocol::messages::LaunchId;
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::program::{Origin, Work};
use uniference_sim::time::SimDuration;

/// Compute of a rank's program between two calls.
#[derive(Clone, Copy, Debug)]
pub struct RankSlice<'a> {
    /// The rank that computed.
    pub rank: RankId,
    /// The thread that ran.
    pub task: TaskId,
    /// The line of the call that ended the slice; empty if unknown.
    pub line: &'a str,
    /// Compute time measured by the rank; 0 if the rank did not measure.
    pub measured: SimDuration,
    /// The operators of the slice, in the format of `uniference_formats::operators`; empty if they were not captured.
    /// The slices of a rank form one stream, in the order of calls to [`Costs::lower`].
    pub operators: &'a [u8],
}

/// Assigns costs to slices. Each slice is passed once, and slices of a rank in the order of its calls.
pub trait Costs {
    /// The pieces of a slice's work: work on the launching CPU, and work handed to CUDA streams. The last piece is work
    /// on the launching CPU.
    fn lower(&mut self, slice: RankSlice<'_>) -> Vec<LoweredWork>;

    /// The text of a captured line of one of the rank's pieces; empty if unknown.
    fn line(&self, _rank: RankId, _line: Line) -> String {
        String::new()
    }
}

/// Charges each slice its measured duration.
impl Costs for () {
    fn lower(&mut self, slice: RankSlice<'_>) -> Vec<LoweredWork> {
        vec![LoweredWork::Host(Work::new(slice.measured, Origin::Measured))]
    }
}

/// A part of a slice's work, in program order.
#[derive(Clone, Debug, PartialEq)]
pub enum LoweredWork {
    /// Work on the launching CPU, before the next launch. The last piece of a slice is of this kind.
    Host(Work),
    /// Work that the task has launched on a stream of the device.
    Launch(Launch),
    /// A recorded event, complete when all earlier work on the stream is complete.
    Record {
        /// The event, by the rank's own number.
        event: u32,
        /// The stream on which the event is recorded.
        stream: u32,
    },
    /// Later work on the stream waits for the event's latest record.
    Wait {
        /// The stream that waits.
        stream: u32,
        /// The event that it waits for.
        event: u32,
    },
}

impl LoweredWork {
    /// The work of the piece, if the piece has a duration.
    pub fn into_work(self) -> Option<Work> {
        match self {
            LoweredWork::Host(work) | LoweredWork::Launch(Launch { work, .. }) => Some(work),
            LoweredWork::Record { .. } | LoweredWork::Wait { .. } => None,
        }
    }
}

/// Work on a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The stream's number.
    pub stream: u32,
    /// The work, in the engine's form.
    pub work: Work,
    /// The copy engine that carries out a copy; `None`: the work is no copy. Each copy engine carries out one copy at a
    /// time.
    pub engine: Option<CopyEngine>,
    /// Whether the host waits until the work is complete.
    pub blocks: bool,
    /// Whether the work counts towards the stream's limit of outstanding launches.
    pub queued: bool,
    /// Ids by which the rank asks for times: none, or one per kernel of an operator.
    pub ids: Vec<LaunchId>,
    /// The captured line of the operator that launched the work; for a CUDA graph, the line of its capture; unknown if
    /// no operator launched it.
    pub line: Line,
}

/// The engines that carry out copies concurrently with kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyEngine {
    /// Copies from the host.
    ToDevice,
    /// Copies to the host.
    FromDevice,
    /// Copies to other devices.
    Peer,
}
