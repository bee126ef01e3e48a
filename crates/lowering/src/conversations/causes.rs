//! Owns the causes of tasks' progress: the answer of the engine that let a task continue, itself or by another task.

use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::replay::RecordedStep;

/// An answer of the engine: its rank and task, and its number among the answers to that task, counted from 1.
pub(super) type Cause = (RankId, TaskId, u64);

/// An answer that a task was given.
#[derive(Clone, Copy)]
pub(super) struct Answered {
    pub(super) whose: (RankId, TaskId),
    /// Cause of the task's progress: the engine's answer to the task, or the answer to another task that has woken it
    /// since.
    pub(super) from: Cause,
}

/// Causes of one task's progress.
#[derive(Default)]
pub(super) struct Causes {
    /// Number of the engine's answers to the task, plus its pauses that were ended early.
    pub(super) resumptions: u64,
    /// Cause of the task's next request, if an answer to another task woke it.
    pub(super) woken_by: Option<Cause>,
    /// Cause of the task's progress since the engine's last answer to it, if an answer to another task woke it.
    pub(super) woken_by_other: Option<Cause>,
}

impl Causes {
    /// Cause of the progress of this task, which is `task` of `rank`.
    pub(super) fn latest(&self, (rank, task): (RankId, TaskId)) -> Cause {
        self.woken_by_other.unwrap_or((rank, task, self.resumptions))
    }
}

/// The recorded form of a cause.
pub(super) fn follows_from((rank, task, resumption): Cause) -> RecordedStep {
    RecordedStep::Follows { rank, task, resumption }
}
