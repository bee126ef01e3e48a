//! Owns the conversations of live tasks with the engine: operations that tasks send become requests, one after the
//! other, and the engine's replies become answers.
//!
//! In the order of a call: `operations` receives it in the `inbox` of its `task`, and submits requests; the work of a
//! slice of compute is handed over by `slices`, in the order of CUDA `streams`. `recording` keeps the requests for the
//! record. `replies` turns the engine's replies into answers, whose `causes` decide on the `turns` of processes.
//! `processes` has tasks join, leave and move between ranks.
//!
//! The module does no I/O, so tests need no sockets or processes: the driver (`uniference-host`) handles sockets,
//! processes and this machine's time.

mod causes;
mod dictionary;
mod handles;
mod inbox;
mod lines;
mod operations;
mod processes;
mod ranges;
mod recording;
mod replies;
mod slices;
mod streams;
mod task;
mod times;
mod turns;

pub use recording::Recorder;

use crate::absent::AbsentRanks;
use crate::data::DataPlane;
use crate::slice::Costs;
use causes::Cause;
use dictionary::Dictionary;
use handles::Handles;
use lines::Lines;
use processes::Processes;
use ranges::Ranges;
use recording::Recording;
use replies::Outbox;
use std::sync::Arc;
use streams::Streams;
use task::{Asked, State, TaskConversation};
use times::Times;
use turns::Turns;
use uniference_protocol::memory::Window;
use uniference_protocol::messages::Answer;
use uniference_sim::engine::{Engine, Halt, Turn};
use uniference_sim::event::{Event, Observer};
use uniference_sim::fold_plan::{FoldPlan, Unlike};
use uniference_sim::ids::{OfProcess, RankId, Site, TaskId};
use uniference_sim::time::SimTime;

/// The live ranks of a run, and the engine.
pub struct Conversations {
    engine: Engine,
    costs: Box<dyn Costs>,
    data: DataPlane,
    times: Times,
    ranks: Vec<RankConversation>,
    lines: Lines,
    recording: Recording,
    processes: Processes,
    outbox: Outbox,
    /// The engine's last answer to any task.
    latest: Option<Cause>,
    /// Time of the last operation of a program's own thread, or of a library's thread that did more than poll.
    acted_at: SimTime,
    /// The absent ranks of a rehearsal.
    absent: Option<AbsentRanks>,
}

/// An answer for a task.
#[derive(Debug, PartialEq)]
pub struct Ready {
    /// The rank of the task.
    pub rank: RankId,
    /// The task that continues.
    pub task: TaskId,
    /// The answer to the task's question.
    pub answer: Answer,
    /// The number of the answered question, counted from 1.
    pub question: u64,
}

/// Why [`Conversations::advance`] returned.
#[derive(Debug)]
pub enum Progress {
    /// A task must send its next operation first.
    Blocked,
    /// No task has a request, and the engine would advance time to the end of a sleep or timeout: the caller must first
    /// confirm that all processes still wait.
    Idle,
    /// All programs have ended.
    Finished,
    /// The run cannot go on.
    Halted(Box<Halt>),
}

/// One live rank.
struct RankConversation {
    tasks: Vec<TaskConversation>,
    turn: Turns,
    handles: Handles,
    dictionary: Dictionary,
    /// The process that communicates for this rank; `None`: the rank's main process.
    communicates: Option<OfProcess>,
    ranges: Ranges,
    streams: Streams,
}

impl Conversations {
    /// Creates the conversations of `world_size` ranks with `engine`, all at their start. `script` is the text for
    /// operations without a known line.
    pub fn new(mut engine: Engine, world_size: u32, script: &str) -> Conversations {
        engine.asks_before_it_idles();
        let mut lines = Lines::new(world_size);
        let rank = |rank: u32| {
            let line = lines.site(RankId(rank), script);
            RankConversation {
                tasks: vec![TaskConversation::new(State::Asked(Asked::FirstTurn), line)],
                turn: Turns::default(),
                handles: Handles::default(),
                dictionary: Dictionary::default(),
                communicates: None,
                ranges: Ranges::default(),
                streams: Streams::default(),
            }
        };
        Conversations {
            data: DataPlane::of(engine.algorithms().clone()),
            times: Times::new(world_size),
            engine,
            costs: Box::new(()),
            ranks: (0..world_size).map(rank).collect(),
            lines,
            recording: Recording::new(world_size),
            processes: Processes::default(),
            outbox: Outbox::default(),
            latest: None,
            acted_at: SimTime::ZERO,
            absent: None,
        }
    }

    /// The rank's clock; if one program uses all GPUs, the engine's time for all ranks.
    fn clock(&self, rank: RankId) -> SimTime {
        if self.processes.lends() { self.engine.now() } else { self.engine.clock(rank) }
    }

    /// Starts a rehearsal: only ranks that run in `fold_plan` have processes. The other ranks end at once, and
    /// contribute to collectives the data of running ranks of their classes, copied in the arena, of which each rank
    /// has `part` bytes.
    pub fn rehearse(&mut self, fold_plan: &Arc<FoldPlan>, window: Window, part: u64) {
        self.absent = Some(AbsentRanks::new(fold_plan.clone()));
        self.data.rehearse(fold_plan.clone(), window, part);
        (0..self.ranks.len()).map(RankId::from).filter(|rank| !fold_plan.runs(*rank)).for_each(|rank| self.end(rank));
    }

    /// The deviation that ends a rehearsal: ranks that should be equivalent differ.
    pub fn unlike(&self) -> Option<&Unlike> {
        self.absent.as_ref().and_then(AbsentRanks::unlike)
    }

    /// The deviation that a finished rehearsal has found.
    pub fn conclude(&mut self) -> Option<&Unlike> {
        self.absent.as_mut().and_then(AbsentRanks::conclude)
    }

    /// Reduces small collectives in the driver, in the arena, from now on.
    pub fn reduce_in(&mut self, window: Window) {
        self.data.reduce_in(window);
    }

    /// Charges slices the costs of `costs` from now on, instead of measured durations.
    pub fn cost_with(&mut self, costs: Box<dyn Costs>) {
        self.costs = costs;
    }

    /// The engine, read-only.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Warning if members gave one group different NCCL settings.
    pub fn disagreement(&self) -> Option<String> {
        let [first, other] = self.data.disagreement()?;
        Some(format!(
            "ranks {} and {} give one communicator different NCCL settings; the settings of rank {} count",
            first.0, other.0, first.0
        ))
    }

    /// The text of a line: `path:line`.
    pub fn line(&self, site: Site) -> &str {
        self.lines.text(site)
    }

    /// All lines, by [`Site`]; empty for unused sites.
    pub fn lines(&self) -> Vec<String> {
        self.lines.all()
    }

    /// Advances the engine as far as possible. [`Conversations::take_ready`] then returns the answers.
    pub fn advance(&mut self, observer: &mut dyn Observer, recorder: &mut dyn Recorder) -> Progress {
        self.record_past(recorder);
        loop {
            for site in self.lines.take_unreported() {
                recorder.line(site, self.lines.text(site));
            }
            let mut seen = (Seen { data: &mut self.data, times: &mut self.times }, &mut *observer);
            match self.engine.next(&mut seen) {
                Turn::Resume(resumption) => self.resumed(resumption),
                Turn::Blocked if !self.engine.waits_to_idle() => return Progress::Blocked,
                Turn::Blocked if self.is_dead() => self.engine.gives_up(),
                Turn::Blocked if self.wakeable().next().is_none() => self.engine.idle(),
                Turn::Blocked => {
                    return if self.any_speaks() { Progress::Blocked } else { Progress::Idle };
                }
                Turn::Finished => return Progress::Finished,
                Turn::Halted(halt) => return Progress::Halted(halt),
            }
        }
    }

    fn deviates(&mut self, unlike: Unlike) {
        if let Some(absent) = &mut self.absent {
            absent.deviates(unlike);
        }
    }

    fn task(&mut self, rank: RankId, task: TaskId) -> &mut TaskConversation {
        &mut self.ranks[rank.index()].tasks[task.index()]
    }
}

/// Observes the engine's events for the data plane and the times of launches.
struct Seen<'a> {
    data: &'a mut DataPlane,
    times: &'a mut Times,
}

impl Observer for Seen<'_> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.data.observe(event);
        self.times.observe(at, event);
    }
}

#[cfg(test)]
mod tests;
