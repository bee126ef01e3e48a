//! Owns the state of one task's conversation: whose turn it is, and what the task has asked.

use super::causes::{Cause, Causes};
use super::inbox::Inbox;
use super::lines::TaskLines;
use crate::slice::LoweredWork;
use std::collections::VecDeque;
use std::sync::Arc;
use uniference_protocol::messages::{LocalHandle, OnStream};
use uniference_sim::ids::{Handle, OfProcess, RankId, Site, TaskId};
use uniference_sim::program::NcclSettings;
use uniference_sim::time::SimTime;

/// One thread of a live rank.
pub(super) struct TaskConversation {
    pub(super) state: State,
    /// The process whose numbering the task uses.
    pub(super) process: OfProcess,
    /// Whether the thread has ended without an exit message: answers to it are discarded.
    pub(super) closed: bool,
    /// Operations received from the task and not yet carried out.
    pub(super) inbox: Inbox,
    /// Work of the current slice.
    pub(super) handover: Handover,
    pub(super) causes: Causes,
    pub(super) lines: TaskLines,
    pub(super) polls: Polls,
    /// Whether the task has been at a line of the program. A task that has not may be a thread of a library.
    pub(super) is_programs: bool,
    /// Whether the task's last question has no timeout.
    pub(super) waits_forever: bool,
    /// Number of the task's questions.
    pub(super) questions: u64,
    /// The rank's clock at the task's last question that was carried out.
    pub(super) asked_at: SimTime,
    /// The rank to which the task moves with its next operation, and the cause of the move.
    pub(super) moves_to: Option<(RankId, Cause)>,
    /// The rank and task by which the driver knows a task that has moved.
    pub(super) driver_id: Option<(RankId, TaskId)>,
}

/// The slice of a task that is handed to the engine.
#[derive(Default)]
pub(super) struct Handover {
    /// Pieces of the slice that have not been handed to the engine.
    pub(super) pieces: VecDeque<LoweredWork>,
    /// Handle of the task's last work on the launching CPU.
    pub(super) host: Option<Handle>,
    /// Activities that the task's next work on the launching CPU waits for.
    pub(super) awaited: Vec<Handle>,
}

/// Polling of one task.
#[derive(Default)]
pub(super) struct Polls {
    /// Time since which the task has only polled whether other tasks have acted.
    pub(super) since: Option<SimTime>,
    /// Number of further polls that the task may make before time passes, although only polling tasks have run.
    pub(super) looks: u8,
}

/// The side that acts next in the conversation of a task.
pub(super) enum State {
    /// The task: the engine has it running.
    Free,
    /// The engine: this request is pending.
    Asked(Asked),
    /// The task has ended.
    Ended,
}

/// The kind of a task's pending request.
pub(super) enum Asked {
    FirstTurn,
    /// One piece of a slice.
    Piece(LoweredWork),
    ComputeEnd,
    Sleep,
    SleepEnd,
    Mark,
    /// Names a process group; the record has no step for this request.
    Name,
    Issue(LocalHandle, Option<OnStream>),
    /// A wait for operations; `ahead`: the task accepts data before the wait is over.
    Wait {
        named: Vec<(LocalHandle, Handle)>,
        ahead: bool,
    },
    Now,
    Pause,
    Yield,
    Group(Arc<[RankId]>, Option<NcclSettings>),
    Store,
    /// A wait for work of the task's device.
    Device(Vec<Handle>, DeviceQuestion),
    Times,
    Elapsed,
}

/// A task's question about work of its device.
#[derive(Clone, Copy)]
pub(super) enum DeviceQuestion {
    /// Block until the work has ended.
    Synchronize,
    /// Ask whether the work has ended.
    Query,
    /// Exit once the work has ended.
    Exit,
}

impl TaskConversation {
    /// A task that is at this line.
    pub(super) fn new(state: State, line: Site) -> TaskConversation {
        TaskConversation {
            state,
            process: OfProcess::default(),
            closed: false,
            inbox: Inbox::default(),
            handover: Handover::default(),
            causes: Causes::default(),
            lines: TaskLines::new(line),
            polls: Polls::default(),
            is_programs: false,
            waits_forever: false,
            questions: 0,
            asked_at: SimTime::ZERO,
            moves_to: None,
            driver_id: None,
        }
    }
}
