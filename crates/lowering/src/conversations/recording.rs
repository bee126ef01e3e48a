//! Owns the steps for the record: their order, and the record's own handles of activities.

use super::Conversations;
use super::causes::follows_from;
use super::task::TaskConversation;
use std::collections::BTreeMap;
use uniference_sim::ids::{Handle, RankId, Site, TaskId};
use uniference_sim::program::Request;
use uniference_sim::replay::{RecordedStep, handles_mut};
use uniference_sim::time::SimTime;

/// Receives every recorded step: steps of one rank in their order, steps of several ranks in the order of the ranks'
/// clocks.
pub trait Recorder {
    /// The next step of `task` of `rank`; `line` is the text of the step's line, or empty if the step has none.
    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str);

    /// The text of the line `site`; a site may be reported more than once. Each site is reported before any event names
    /// it; the order of sites depends on this machine's scheduling.
    fn line(&mut self, _site: Site, _line: &str) {}
}

impl Recorder for () {
    fn step(&mut self, _: RankId, _: TaskId, _: &RecordedStep, _: &str) {}
}

/// Steps by clock and rank.
type Steps = BTreeMap<(SimTime, RankId), Vec<(TaskId, RecordedStep)>>;

/// The steps of all ranks that the recorder has not received. The order in which ranks report depends on this machine's
/// scheduling, and must not show in the record.
pub(super) struct Recording {
    steps: Steps,
    ranks: Vec<RankRecording>,
}

/// The recorded tasks and activities of one rank.
struct RankRecording {
    tasks: Vec<TaskRecording>,
    /// Number of the rank's recorded activities.
    activities: u32,
    /// The record's handles of activities by engine handle, for ranks with several threads.
    handles: BTreeMap<Handle, Handle>,
}

#[derive(Default)]
struct TaskRecording {
    /// The record's handle of the activity that the task issued last.
    latest: Handle,
    /// Whether the record has a step of the task.
    has_steps: bool,
}

impl Recording {
    /// The record of ranks with one task each.
    pub(super) fn new(world_size: u32) -> Recording {
        let rank = |_| RankRecording { tasks: vec![TaskRecording::default()], activities: 0, handles: BTreeMap::new() };
        Recording { steps: BTreeMap::new(), ranks: (0..world_size).map(rank).collect() }
    }

    pub(super) fn open_task(&mut self, rank: RankId) {
        self.ranks[rank.index()].tasks.push(TaskRecording::default());
    }

    fn has_steps(&self, rank: RankId, task: TaskId) -> bool {
        self.ranks[rank.index()].tasks[task.index()].has_steps
    }

    fn take_before(&mut self, now: SimTime) -> Steps {
        let rest = self.steps.split_off(&(now, RankId(0)));
        std::mem::replace(&mut self.steps, rest)
    }

    fn take(&mut self, at: SimTime, rank: RankId, task: TaskId, mut step: RecordedStep) {
        let RankRecording { tasks, activities, handles: known } = &mut self.ranks[rank.index()];
        let has_threads = tasks.len() > 1;
        let recorded = &mut tasks[task.index()];
        recorded.has_steps = true;
        if let RecordedStep::Request(Request::Issue { .. }) = step {
            recorded.latest = Handle(*activities);
            *activities += 1;
        }
        // A single thread's activities are issued in the order of the record.
        if has_threads
            && let RecordedStep::Request(request) = &mut step
            && let Some(handles) = handles_mut(request)
        {
            handles.iter_mut().for_each(|handle| *handle = known.get(handle).copied().unwrap_or(*handle));
        }
        self.steps.entry((at, rank)).or_default().push((task, step));
    }

    /// Keeps the record's handle of an activity of a rank with several threads, until no task can wait for it.
    pub(super) fn issued(&mut self, rank: RankId, task: TaskId, handle: Handle) {
        let RankRecording { tasks, handles, .. } = &mut self.ranks[rank.index()];
        let latest = tasks[task.index()].latest;
        if tasks.len() > 1 && latest != handle {
            handles.insert(handle, latest);
        }
    }

    /// Drops the record's handle of an activity.
    pub(super) fn forget(&mut self, rank: RankId, handle: Handle) {
        self.ranks[rank.index()].handles.remove(&handle);
    }

    /// Keeps only the record's handles of activities that later operations can wait for, if there are many.
    pub(super) fn forget_all_but<K: Fn(Handle) -> bool>(&mut self, rank: RankId, known: impl FnOnce() -> K) {
        const MANY: usize = 1 << 14;
        let handles = &mut self.ranks[rank.index()].handles;
        if handles.len() > MANY {
            let known = known();
            handles.retain(|handle, _| known(*handle));
        }
    }
}

impl Conversations {
    /// Passes to the recorder the steps before the engine's time, to which none will be added.
    pub(super) fn record_past(&mut self, recorder: &mut dyn Recorder) {
        let past = self.recording.take_before(self.engine.now());
        self.tell(recorder, past);
    }

    /// Passes all remaining steps to the recorder at the end of the run.
    pub fn record_rest(&mut self, recorder: &mut dyn Recorder) {
        let rest = std::mem::take(&mut self.recording.steps);
        self.tell(recorder, rest);
    }

    fn tell(&mut self, recorder: &mut dyn Recorder, steps: Steps) {
        for ((_, rank), steps) in steps {
            for (task, step) in steps {
                let line = step.site().map_or("", |site| self.lines.text(site));
                if let Some(absent) = &mut self.absent {
                    absent.replica_check.hear(rank, task, &step, line);
                }
                recorder.step(rank, task, &step, line);
            }
        }
        if let Some(absent) = &mut self.absent {
            for (rank, task, call, sum) in self.data.take_contributions() {
                absent.replica_check.contributes(rank, task, call, sum);
            }
        }
    }

    /// Stores a step for the recorder.
    pub(super) fn took(&mut self, rank: RankId, task: TaskId, step: RecordedStep) {
        let at = self.engine.clock(rank).max(self.engine.now());
        self.recording.take(at, rank, task, step);
    }

    /// Records that the task's next request follows from the answer to another task, if it does.
    pub(super) fn after_another(&mut self, rank: RankId, task: TaskId) {
        if let Some(cause) = self.task(rank, task).causes.woken_by.take() {
            self.took(rank, task, follows_from(cause));
        }
    }

    /// Records a task whose first request must wait before tasks that were opened later: a record has tasks in their
    /// order.
    pub(super) fn introduce(&mut self, rank: RankId, task: TaskId) {
        let TaskConversation { causes, inbox, .. } = &self.ranks[rank.index()].tasks[task.index()];
        if let Some(cause) = causes.woken_by.or(inbox.next_cause())
            && !self.recording.has_steps(rank, task)
        {
            self.took(rank, task, follows_from(cause));
        }
    }
}
