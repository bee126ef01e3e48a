//! Owns the way back from a program record: ranks that ask again for just what they asked for before, in the same order.
//!
//! Reading a record from disk is `uniference-formats`' business.

use crate::engine::{Ending, Engine, Failure, Resumption, Threads, Turn};
use crate::event::{Event, Observer};
use crate::ids::{GroupId, Handle, RankId, Site, TaskId};
use crate::program::{Activity, Call, CallOp, Collective, ProgramError, Reply, Request, Shape};
use crate::time::{SimDuration, SimTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter::Peekable;

/// What a task of a recorded rank did next.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordedStep {
    /// It asked the engine for something.
    Request(Request),
    /// Its next request followed not from an answer to itself but from the `resumption`-th answer to `task` of `rank`, which then started it or let it go
    /// on, maybe from a pause. Of one program with processes of several ranks that may be another rank than its own.
    Follows {
        /// The rank of the task that was answered.
        rank: RankId,
        /// The task that was answered.
        task: TaskId,
        /// Counted from 1. A pause that was ended before its time counts as answered.
        resumption: u64,
    },
    /// As records before version 8 say it: of the same rank, and a pause that was ended before its time does not count. Some of these had happened before
    /// the pause that they follow was asked for; that pause ended by itself.
    After {
        /// Who let it go on.
        task: TaskId,
        /// Counted from 1.
        resumption: u64,
    },
    /// The operators that the task ran in the compute that it asks for next, as its capture has written them down; of several in a row, one after the
    /// other. It asks the engine for nothing.
    Operators {
        /// `uniference-formats` reads them.
        operators: Vec<u8>,
        /// How long the rank has measured that they took; 0 if it did not measure.
        measured: SimDuration,
    },
    /// From here on handles in the rank's requests are counted as its activities are recorded: the n-th of the rank is `Handle(n - 1)`. The engine
    /// counts them as it comes to them, and of several threads which is first depends on how long each computes. A rank whose record does not
    /// say it has the engine's numbers.
    HandlesInOrder,
    /// The group that it has joined last has this number in what the rank does from here on. The engine numbers groups as they are joined, so elsewhere
    /// a group may have another number; a record that does not say it has the numbers that groups get as they are joined here.
    Named(GroupId),
}

impl RecordedStep {
    /// The user's line, where the step has one.
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

/// A call that a record cannot make on this cluster.
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

/// Hears what ranks and engine say to each other, besides seeing every event.
pub trait Listener: Observer {
    /// A task asks for something; it is looked at when virtual time has come to it.
    fn asked(&mut self, rank: RankId, task: TaskId, request: &Request);

    /// A task goes on, with the answer to what it asked for last.
    fn resumed(&mut self, resumption: &Resumption);

    /// `task` is heard of for the first time, just when `opener` has gone on.
    fn opened(&mut self, rank: RankId, task: TaskId, opener: TaskId);
}

/// The listener that ignores everything.
impl Listener for () {
    fn asked(&mut self, _: RankId, _: TaskId, _: &Request) {}
    fn resumed(&mut self, _: &Resumption) {}
    fn opened(&mut self, _: RankId, _: TaskId, _: TaskId) {}
}

/// The second one hears, too.
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

/// Runs a program record again: for each rank the steps of its tasks, in the order in which they were taken.
///
/// # Panics
/// If there are not as many records as ranks.
pub fn replay<I>(engine: &mut Engine, records: Vec<I>, observer: &mut dyn Observer) -> Ending
where
    I: Iterator<Item = (TaskId, RecordedStep)>,
{
    replay_heard(engine, records, &mut Deaf(observer))
}

/// The same with somebody who listens.
///
/// # Panics
/// If there are not as many records as ranks.
pub fn replay_heard<I>(engine: &mut Engine, records: Vec<I>, listener: &mut dyn Listener) -> Ending
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
                    return Ending::Failed(failure);
                }
            }
            Turn::Finished => return Ending::Finished,
            Turn::Halted(halt) => return Ending::Halted(halt),
            Turn::Blocked => return Ending::CutShort,
        }
    }
}

/// Submits what followed from a resumption: the task's next request, and those of tasks that it let go on, which may let others go on from their pauses.
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

/// A moment of a replay.
struct Moment<'a> {
    engine: &'a mut Engine,
    told: &'a mut Told,
    now: SimTime,
    listener: &'a mut dyn Listener,
}

/// The number of replies that each task of each rank has had.
struct Told(Vec<Vec<Count>>);

#[derive(Clone, Default)]
struct Count {
    /// Answers of the engine.
    answers: u64,
    /// Pauses that were ended before their time.
    releases: u64,
}

impl Told {
    fn of(&mut self, rank: RankId, task: TaskId) -> &mut Count {
        let (tasks, at) = (&mut self.0[rank.index()], task.index());
        tasks.resize(tasks.len().max(at + 1), Count::default());
        &mut tasks[at]
    }

    /// Whether what a step of the rank follows from has happened, if it follows from something.
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

/// Whether a step says what the next one follows from.
fn follows(step: &RecordedStep) -> bool {
    matches!(step, RecordedStep::Follows { .. } | RecordedStep::After { .. })
}

/// Sees events and hears nothing.
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

/// One rank's record, read as far as its tasks need it.
struct RecordedRank<I: Iterator<Item = (TaskId, RecordedStep)>> {
    id: RankId,
    steps: Peekable<I>,
    tasks: Vec<RecordedTask>,
    /// The engine's number of each group, by the record's, where it is another one.
    groups: BTreeMap<GroupId, GroupId>,
    /// The groups that the rank has joined, by the engine's numbers.
    joined: BTreeSet<GroupId>,
    /// How many activities have been read.
    activities: u32,
    /// Of a rank whose handles are counted as they are recorded: the engine's numbers.
    handles: Option<Handles>,
    /// Some of its steps follow from what other ranks were told.
    follows_others: bool,
}

/// The engine's numbers of recorded activities.
struct Handles {
    /// Below this, both are the same.
    first: u32,
    /// Of those from `first` on; `None`: it was not issued yet.
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
    /// What it does next, as far as it was read.
    ahead: VecDeque<RecordedStep>,
    /// Which activities of the rank those are that it issues next, in order.
    issues: VecDeque<u32>,
    /// The group that it has joined last.
    joined: Option<GroupId>,
    /// It has asked for its pause since the rank was resumed last. Where [`RecordedStep::After`] says what it follows from, that has not ended the pause.
    has_just_paused: bool,
}

/// What a recorded task does.
#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    /// It is blocked in the engine.
    Blocked,
    /// Blocked in the engine, but its own process may let it go on.
    Paused,
    /// It may ask, once what it followed from has happened.
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

    /// Submits what followed from this resumption: the task's next request, and those of the rank's tasks that it let go on.
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

    /// Submits the next requests of all tasks that may ask. Returns whether there may be more to read: one has ended a pause.
    fn ask_all(&mut self, at: &mut Moment<'_>) -> Result<bool, Failure> {
        let (rank, now) = (self.id, at.now);
        let mut released = false;
        for task in (0..self.tasks.len()).map(TaskId::from) {
            // What lets it go on from a pause may have happened before it asks for that.
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

    /// Reads up to the next request of a task that was resumed, and further as long as requests follow from what has happened.
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
                    // Of another rank's task, it can only be said that the rank was there.
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

    /// Ends the task's pause before its time if what does so has happened. Returns whether it does.
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

    /// Submits the task's next request, if it may ask. Returns whether it does.
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

    /// Takes note of what the record calls the group that the task has joined.
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

/// The activities that a request names.
pub fn handles_mut(request: &mut Request) -> Option<&mut Vec<Handle>> {
    match request {
        Request::Wait { handles, .. } | Request::Issue { after: handles, .. } => Some(handles),
        _ => None,
    }
}

/// Does a group of so many members have all those that the call names?
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
