//! Owns the replay of a program record: ranks that make the recorded requests again, in the same order.
//!
//! `uniference-formats` reads records from disk.

use crate::engine::{Engine, Failure, Resumption, RunEnd, Threads, Turn};
use crate::event::{Event, Observer};
use crate::ids::{GroupId, Handle, RankId, Site, TaskId};
use crate::program::{Activity, Call, CallOp, Collective, ProgramError, Reply, Request, Shape};
use crate::time::{SimDuration, SimTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter::Peekable;

/// Step of a task of a recorded rank.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordedStep {
    /// A request to the engine.
    Request(Request),
    /// Cause of the task's next request, if it is not an answer to the task itself: the `resumption`-th answer to
    /// `task` of `rank`, which then started the task or resumed it, maybe from a pause. In one program with processes
    /// of several ranks that may be another rank than its own.
    Follows {
        /// The rank of the task that was answered.
        rank: RankId,
        /// The task that was answered.
        task: TaskId,
        /// Number of the answer, from 1. A pause that ended early counts as answered.
        resumption: u64,
    },
    /// The cause in records before version 8: a task of the same rank, and a pause that ended early does not count.
    /// Some of these causes had happened before the request of the pause that they follow; such a pause ended by
    /// itself.
    After {
        /// The task that resumed this task.
        task: TaskId,
        /// Number of the answer, from 1.
        resumption: u64,
    },
    /// The operators of the task's next compute, as written by its capture; several such steps in a row are
    /// concatenated. The step is no request to the engine.
    Operators {
        /// Encoded operators, which `uniference-formats` decodes.
        operators: Vec<u8>,
        /// Measured duration of the operators; 0 if the rank did not measure.
        measured: SimDuration,
    },
    /// From now on handles in the rank's requests are numbered in the order of recorded activities: the n-th activity
    /// of the rank is `Handle(n - 1)`. The engine numbers activities as it handles them, and with several threads the
    /// order depends on the durations of their compute. A rank whose record lacks this step uses the engine's numbers.
    HandlesInOrder,
    /// Number of the rank's last joined group in its later steps. The engine numbers groups as they are joined, so a
    /// group may have another number elsewhere. A record without this step uses the numbers that groups get as they are
    /// joined in the replay.
    Named(GroupId),
}

impl RecordedStep {
    /// The user's line, if the step has one.
    pub fn site(&self) -> Option<Site> {
        match self {
            RecordedStep::Request(request) => request.site(),
            RecordedStep::Follows { .. }
            | RecordedStep::After { .. }
            | RecordedStep::Operators { .. }
            | RecordedStep::HandlesInOrder
            | RecordedStep::Named(_) => None,
        }
    }
}

impl From<Request> for RecordedStep {
    fn from(request: Request) -> RecordedStep {
        RecordedStep::Request(request)
    }
}

/// A call of the recorded program that does not fit this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the record calls an operation of {group}, which is another one here: ranks join groups in another order than where it was recorded, and \
     the record knows groups only by that order\nhint: replay it on its own cluster, or run the program again: newer records do not depend on \
     that order"
)]
pub struct OtherGroup {
    /// The group's number in the record.
    pub group: GroupId,
}

/// Error for an operation that a record waits for, or that another operation follows, but that no earlier step has
/// issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the record refers to {handle}, which no step before it has issued\nhint: the record is damaged; copy it again from its source, or run the \
     program again"
)]
pub struct NeverIssued {
    /// Handle of the operation.
    pub handle: Handle,
}

/// Observer that also receives the requests of ranks and the replies of the engine.
pub trait Listener: Observer {
    /// A task makes a request; the engine handles it when virtual time has reached it.
    fn asked(&mut self, rank: RankId, task: TaskId, request: &Request);

    /// A task continues, with the answer to its last request.
    fn resumed(&mut self, resumption: &Resumption);

    /// `task` appears for the first time, just after `opener` has continued.
    fn opened(&mut self, rank: RankId, task: TaskId, opener: TaskId);
}

/// The listener that ignores everything.
impl Listener for () {
    fn asked(&mut self, _: RankId, _: TaskId, _: &Request) {}
    fn resumed(&mut self, _: &Resumption) {}
    fn opened(&mut self, _: RankId, _: TaskId, _: TaskId) {}
}

/// The second one is the listener.
impl<A: Observer, B: Listener> Listener for (A, B) {
    fn asked(&mut self, rank: RankId, task: TaskId, request: &Request) {
        self.1.asked(rank, task, request);
    }

    fn resumed(&mut self, resumption: &Resumption) {
        self.1.resumed(resumption);
    }

    fn opened(&mut self, rank: RankId, task: TaskId, opener: TaskId) {
        self.1.opened(rank, task, opener);
    }
}

/// Runs a program record again: for each rank the steps of its tasks, in the recorded order.
///
/// # Panics
/// If the numbers of records and ranks differ.
pub fn replay<I>(engine: &mut Engine, records: Vec<I>, observer: &mut dyn Observer) -> RunEnd
where
    I: Iterator<Item = (TaskId, RecordedStep)>,
{
    replay_heard(engine, records, &mut Deaf(observer))
}

/// Like [`replay`], with a listener.
///
/// # Panics
/// If the numbers of records and ranks differ.
pub fn replay_heard<I>(engine: &mut Engine, records: Vec<I>, listener: &mut dyn Listener) -> RunEnd
where
    I: Iterator<Item = (TaskId, RecordedStep)>,
{
    assert_eq!(records.len(), engine.world_size(), "one record a rank");
    let mut ranks: Vec<RecordedRank<I>> = (0..).map(RankId).zip(records).map(RecordedRank::of).collect();
    let mut told = Told(vec![Vec::new(); ranks.len()]);
    loop {
        match engine.next(listener) {
            Turn::Resume(resumption) => {
                listener.resumed(&resumption);
                told.of(resumption.rank, resumption.task).answers += 1;
                if let Err(failure) = go_on(engine, &mut ranks, &mut told, &resumption, listener) {
                    return RunEnd::Failed(failure);
                }
            }
            Turn::Finished => return RunEnd::Finished,
            Turn::Halted(halt) => return RunEnd::Halted(halt),
            Turn::Blocked => return RunEnd::CutShort,
        }
    }
}

/// Submits the requests that follow a resumption: the task's next request, and those of tasks that it resumed, which
/// may resume others from their pauses.
fn go_on<I>(
    engine: &mut Engine,
    ranks: &mut [RecordedRank<I>],
    told: &mut Told,
    resumption: &Resumption,
    listener: &mut dyn Listener,
) -> Result<(), Failure>
where
    I: Iterator<Item = (TaskId, RecordedStep)>,
{
    let mut at = Moment { engine, told, now: resumption.now, listener };
    ranks[resumption.rank.index()].go_on(&mut at, resumption)?;
    let mut goes_on = true;
    while std::mem::take(&mut goes_on) {
        for rank in ranks.iter_mut().filter(|rank| rank.follows_others) {
            rank.read_on(&mut at, None);
            goes_on |= rank.ask_all(&mut at)?;
        }
    }
    Ok(())
}

/// State of a replay at one moment.
struct Moment<'a> {
    engine: &'a mut Engine,
    told: &'a mut Told,
    now: SimTime,
    listener: &'a mut dyn Listener,
}

/// Number of replies to each task of each rank.
struct Told(Vec<Vec<Count>>);

#[derive(Clone, Default)]
struct Count {
    /// Answers of the engine.
    answers: u64,
    /// Pauses that ended early.
    releases: u64,
}

impl Told {
    fn of(&mut self, rank: RankId, task: TaskId) -> &mut Count {
        let (tasks, at) = (&mut self.0[rank.index()], task.index());
        tasks.resize(tasks.len().max(at + 1), Count::default());
        &mut tasks[at]
    }

    /// Whether the cause of a step of the rank has happened, if the step has one.
    fn has_happened(&self, of: RankId, step: &RecordedStep) -> bool {
        let count = |rank: RankId, task: TaskId| {
            self.0.get(rank.index()).and_then(|tasks| tasks.get(task.index())).cloned().unwrap_or_default()
        };
        match *step {
            RecordedStep::Follows { rank, task, resumption } => {
                let Count { answers, releases } = count(rank, task);
                answers + releases >= resumption
            }
            RecordedStep::After { task, resumption } => count(of, task).answers >= resumption,
            _ => true,
        }
    }
}

/// Whether a step names the cause of the next one.
fn follows(step: &RecordedStep) -> bool {
    matches!(step, RecordedStep::Follows { .. } | RecordedStep::After { .. })
}

/// A listener that passes events on to an observer, and ignores requests and replies.
struct Deaf<'a>(&'a mut dyn Observer);

impl Observer for Deaf<'_> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.0.record(at, event);
    }

    fn wants_messages(&self) -> bool {
        self.0.wants_messages()
    }

    fn link_changed(&mut self, at: SimTime, link: &str) {
        self.0.link_changed(at, link);
    }
}

impl Listener for Deaf<'_> {
    fn asked(&mut self, _: RankId, _: TaskId, _: &Request) {}
    fn resumed(&mut self, _: &Resumption) {}
    fn opened(&mut self, _: RankId, _: TaskId, _: TaskId) {}
}

/// Record of one rank, read as far as its tasks need it.
struct RecordedRank<I: Iterator<Item = (TaskId, RecordedStep)>> {
    id: RankId,
    steps: Peekable<I>,
    tasks: Vec<RecordedTask>,
    /// The engine's number of each group, by its number in the record, if they differ.
    groups: BTreeMap<GroupId, GroupId>,
    /// The groups that the rank has joined, by the engine's numbers.
    joined: BTreeSet<GroupId>,
    /// Number of activities read so far.
    activities: u32,
    /// The engine's handles, for a rank whose handles are numbered in recorded order.
    handles: Option<Handles>,
    /// Whether some of the rank's recorded steps were caused by answers to other ranks.
    follows_others: bool,
}

/// The engine's numbers of recorded activities.
struct Handles {
    /// Recorded handles below this number equal the engine's handles.
    first: u32,
    /// Handles of the activities from `first` on; `None`: not issued yet.
    engine: Vec<Option<Handle>>,
}

impl Handles {
    fn of_engine(&self, recorded: Handle) -> Option<Handle> {
        match recorded.0.checked_sub(self.first) {
            None => Some(recorded),
            Some(at) => self.engine.get(at as usize).copied().flatten(),
        }
    }

    fn issued(&mut self, activity: u32, handle: Handle) {
        if let Some(at) = activity.checked_sub(self.first) {
            let at = at as usize;
            self.engine.resize(self.engine.len().max(at + 1), None);
            self.engine[at] = Some(handle);
        }
    }
}

/// A task of a recorded rank.
#[derive(Default)]
struct RecordedTask {
    state: State,
    /// The task's next steps, as far as they were read.
    ahead: VecDeque<RecordedStep>,
    /// Numbers of the rank's activities that the task issues next, in order.
    issues: VecDeque<u32>,
    /// The group that the task has joined last.
    joined: Option<GroupId>,
    /// Whether the task has requested its pause since the rank was last resumed. A cause by [`RecordedStep::After`] has
    /// not ended such a pause.
    has_just_paused: bool,
}

/// State of a recorded task.
#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    /// The task is blocked in the engine.
    Blocked,
    /// The task is blocked in the engine, but its own process may resume it.
    Paused,
    /// The task may make a request, once its cause has happened.
    #[default]
    Free,
}

impl<I: Iterator<Item = (TaskId, RecordedStep)>> RecordedRank<I> {
    fn of((id, steps): (RankId, I)) -> RecordedRank<I> {
        RecordedRank {
            id,
            steps: steps.peekable(),
            tasks: vec![RecordedTask::default()],
            groups: BTreeMap::new(),
            joined: BTreeSet::new(),
            activities: 0,
            handles: None,
            follows_others: false,
        }
    }

    /// Submits the requests that follow this resumption: the task's next request, and those of the rank's tasks that it
    /// resumed.
    fn go_on(&mut self, at: &mut Moment<'_>, resumption: &Resumption) -> Result<(), Failure> {
        let Resumption { task, reply, .. } = resumption;
        let resumed = &mut self.tasks[task.index()];
        resumed.state = State::Free;
        if let Reply::Group(group) = reply {
            resumed.joined = Some(*group);
            self.joined.insert(*group);
        }
        if let Reply::Issued(handle) = reply
            && let Some(activity) = resumed.issues.pop_front()
            && let Some(handles) = &mut self.handles
        {
            handles.issued(activity, *handle);
        }
        for task in &mut self.tasks {
            task.has_just_paused = false;
        }
        self.read_on(at, Some(*task));
        while self.ask_all(at)? {
            self.read_on(at, None);
        }
        Ok(())
    }

    /// Submits the next request of each task that may make one. Returns whether a pause has ended, because more steps
    /// of the record must be read then.
    fn ask_all(&mut self, at: &mut Moment<'_>) -> Result<bool, Failure> {
        let (rank, now) = (self.id, at.now);
        let mut released = false;
        for task in (0..self.tasks.len()).map(TaskId::from) {
            // An answer that ends a pause may have been given before the pause is requested: the pause then ends at
            // once.
            let mut goes_on = true;
            while goes_on {
                let is_released = self.release(at, task);
                released |= is_released;
                let asks = self.ask(at, task);
                goes_on = asks.map_err(|error| Failure { rank, task, at: now, error })?;
            }
        }
        if self.tasks.len() > 1 || self.follows_others {
            at.engine.set_threads(rank, Threads::Wait);
        }
        Ok(released)
    }

    /// Reads up to the next request of a resumed task, and further as long as the causes of requests have happened.
    fn read_on(&mut self, at: &mut Moment<'_>, resumed: Option<TaskId>) {
        let rank = self.id;
        loop {
            let asks = |task: TaskId| {
                self.tasks[task.index()].ahead.iter().any(|step| matches!(step, RecordedStep::Request(_)))
            };
            let found = resumed.is_none_or(asks);
            let next = self.steps.peek();
            self.follows_others |=
                matches!(next, Some((_, RecordedStep::Follows { rank: other, .. })) if *other != rank);
            let tasks = &self.tasks;
            let goes_on = |(owner, next): &(TaskId, RecordedStep)| match follows(next) {
                true => at.told.has_happened(rank, next),
                false => tasks.get(owner.index()).and_then(|task| task.ahead.back()).is_some_and(follows),
            };
            if found && !next.is_some_and(goes_on) {
                return;
            }
            let Some((owner, step)) = self.steps.next() else { return };
            if let RecordedStep::Operators { .. } = step {
                continue;
            }
            if let RecordedStep::HandlesInOrder = step {
                self.handles = Some(Handles { first: self.activities, engine: Vec::new() });
                continue;
            }
            while self.tasks.len() <= owner.index() {
                let opener = match step {
                    RecordedStep::Follows { rank: of, task, .. } if of == rank => task,
                    RecordedStep::After { task, .. } => task,
                    // If the cause is an answer to another rank's task, the opener is the resumed task, or else task 0.
                    _ => resumed.unwrap_or(TaskId(0)),
                };
                at.listener.opened(rank, at.engine.open_task(rank), opener);
                self.tasks.push(RecordedTask::default());
            }
            if let RecordedStep::Request(Request::Issue { .. }) = step {
                self.tasks[owner.index()].issues.push_back(self.activities);
                self.activities += 1;
            }
            self.tasks[owner.index()].ahead.push_back(step);
        }
    }

    /// Ends the task's pause early if the cause of its end has happened. Returns whether it does.
    fn release(&mut self, at: &mut Moment<'_>, task: TaskId) -> bool {
        let rank = self.id;
        let RecordedTask { state, ahead, has_just_paused, .. } = &mut self.tasks[task.index()];
        let ends = |step: &RecordedStep| match step {
            RecordedStep::Follows { .. } => at.told.has_happened(rank, step),
            RecordedStep::After { .. } => !*has_just_paused && at.told.has_happened(rank, step),
            _ => false,
        };
        let is_over = *state == State::Paused && ahead.front().is_some_and(ends);
        if is_over {
            at.engine.release(rank, task);
            at.told.of(rank, task).releases += 1;
            *state = State::Free;
        }
        is_over
    }

    /// Submits the task's next request, if the task may make one. Returns whether it does.
    fn ask(&mut self, at: &mut Moment<'_>, task: TaskId) -> Result<bool, ProgramError> {
        self.name_group(task);
        let rank = self.id;
        let is_alone = self.tasks.len() == 1;
        let asking = &mut self.tasks[task.index()];
        if asking.state != State::Free {
            return Ok(false);
        }
        let ahead = &mut asking.ahead;
        let causes = ahead.iter().take_while(|step| follows(step)).count();
        let Some(next) = ahead.get(causes) else { return Ok(false) };
        let has_happened = |step: &RecordedStep| at.told.has_happened(rank, step);
        let is_issued = |handle: &Handle| match &self.handles {
            Some(handles) => handles.of_engine(*handle).is_some(),
            None => at.engine.has_issued(rank, *handle),
        };
        if !ahead.iter().take(causes).all(has_happened) {
            return Ok(false);
        }
        if let Some(handle) = named(next).iter().find(|handle| !is_issued(handle)) {
            // Another thread may issue the operation later than in the recorded run.
            return if is_alone { Err(NeverIssued { handle: *handle }.into()) } else { Ok(false) };
        }
        ahead.drain(..causes);
        let Some(RecordedStep::Request(mut request)) = ahead.pop_front() else { return Ok(false) };
        if let Some(named) = handles_mut(&mut request)
            && let Some(handles) = &self.handles
        {
            named.iter_mut().for_each(|handle| *handle = handles.of_engine(*handle).expect("just looked"));
        }
        asking.has_just_paused = matches!(request, Request::Pause { .. });
        asking.state = if asking.has_just_paused { State::Paused } else { State::Blocked };
        if let Request::Issue { activity, .. } = &mut request
            && let Activity::Call(Call { group, .. }) | Activity::Close(group) | Activity::Abort(group) = activity
        {
            let recorded = *group;
            *group = self.groups.get(group).copied().unwrap_or(recorded);
            let known = self.joined.contains(group);
            let is_member = known && at.engine.is_member(rank, *group);
            let fits = match activity {
                Activity::Call(call) => is_member && fits(call, at.engine.members(call.group).len()),
                Activity::Abort(_) => is_member,
                // A close has an effect only if a rank crashes, or after this rank's abort, which requires membership.
                _ => is_member || !at.engine.may_crash(),
            };
            if !fits {
                return Err(OtherGroup { group: recorded }.into());
            }
        }
        at.listener.asked(rank, task, &request);
        at.engine.submit(rank, task, request);
        Ok(true)
    }

    /// Stores the number that the record gives to the group that the task has joined last.
    fn name_group(&mut self, task: TaskId) {
        let RecordedTask { state, ahead, joined, .. } = &mut self.tasks[task.index()];
        if *state == State::Free
            && let Some(RecordedStep::Named(recorded)) = ahead.front()
        {
            if let Some(group) = joined {
                self.groups.insert(*recorded, *group);
            }
            ahead.pop_front();
        }
    }
}

/// Operations that the next request waits for or follows.
fn named(next: &RecordedStep) -> &[Handle] {
    match next {
        RecordedStep::Request(Request::Wait { handles: named, .. } | Request::Issue { after: named, .. }) => named,
        _ => &[],
    }
}

/// Handles in a request.
pub fn handles_mut(request: &mut Request) -> Option<&mut Vec<Handle>> {
    match request {
        Request::Wait { handles, .. } | Request::Issue { after: handles, .. } => Some(handles),
        _ => None,
    }
}

/// Whether a group of `members` members has all members that the call names.
fn fits(call: &Call, members: usize) -> bool {
    match &call.op {
        CallOp::Send { to, .. } | CallOp::Write { to, .. } => to.index() < members,
        CallOp::Recv { from, .. } => from.is_none_or(|from| from.index() < members),
        CallOp::Collective(Collective { root, shape, .. }) => {
            root.is_none_or(|root| root.index() < members)
                && match shape {
                    Shape::Even(_) => true,
                    Shape::Blocks(blocks) => blocks.len() == members,
                    Shape::Pairs { send, recv } => send.len() == members && recv.len() == members,
                }
        }
    }
}
