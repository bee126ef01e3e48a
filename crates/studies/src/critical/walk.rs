//! Owns the walk from the end of a run back to its first instant, along the cause of each event.

use super::causes::{Activity, Causes, Doing, Message, NOWHERE, Name, Turn, Waited};
use std::collections::BTreeMap;
use uniference_sim::event::Cause;
use uniference_sim::ids::{Handle, LinkId, MessageId, RankId, Site, TaskId};
use uniference_sim::time::SimTime;

/// A span of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: SimTime,
    pub(super) end: SimTime,
    /// The rank whose time the span is: for a message its sender, or its receiver while the sender waits for the
    /// receiver.
    pub(super) rank: RankId,
    pub(super) kind: Kind,
    /// The link of a span on the network: the link that held the message back for longest; if no link did, the slowest
    /// link of its route.
    pub(super) link: Option<LinkId>,
    /// Name of the compute or of the operation.
    pub(super) name: Option<Name>,
    pub(super) site: Site,
    /// The rank's activity to which the span belongs.
    pub(super) activity: Option<Handle>,
}

/// The kind of time of a span of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A rank's device computes.
    Compute,
    /// Bytes leave at the rate of the slowest link of their route.
    Bandwidth,
    /// Bytes leave more slowly than at the rate of the slowest link: a link is shared with other messages, or changed
    /// by the cluster file.
    Contention,
    /// A message's last byte has left its sender and has not arrived.
    Latency,
    /// A message, or the rest of a message, waits for the window of its connection.
    Queueing,
    /// A message waits for its receiver to say that it is ready.
    Handshake,
    /// The communication library works: calls, messages' processing, copies, reductions.
    Library,
    /// The program sleeps.
    Sleep,
    /// The program waits until a timeout.
    TimeOut,
    /// The program reads a clock, or polls.
    Poll,
    /// Unknown: an activity was never completed, or a rank crashed.
    Unknown,
}

/// The path, the last span first. Each span begins where the next one ends.
pub(super) struct Path {
    /// The rank whose program ends the run.
    pub(super) rank: RankId,
    pub(super) finish: SimTime,
    pub(super) spans: Vec<Span>,
}

/// An event whose cause is searched.
#[derive(Clone, Copy)]
enum At {
    /// A task ran.
    Ran(RankId, TaskId),
    /// An activity was complete.
    Complete(RankId, Handle),
    /// An activity began.
    Began(RankId, Handle),
    /// A cause, and the rank on which it had its effect.
    Caused(RankId, Cause),
}

/// Walks back from the end of the program that ended last; if several ended last, from the program of the first rank.
/// `None`: no program has ended.
pub(super) fn walk(causes: &Causes) -> Option<Path> {
    let ended = |(rank, of): (usize, &super::causes::RankCauses)| Some((RankId::from(rank), of.finish?));
    let last = |a: &(RankId, (SimTime, Cause)), b: &(RankId, (SimTime, Cause))| a.1.0.cmp(&b.1.0).then(b.0.cmp(&a.0));
    let (rank, (finish, cause)) = causes.ranks.iter().enumerate().filter_map(ended).max_by(last)?;
    let mut walk = Walk { causes, now: finish, spans: Vec::new(), turns: BTreeMap::new() };
    let mut at = Some(At::Caused(rank, cause));
    while let Some(what) = at.filter(|_| walk.now > SimTime::ZERO) {
        at = walk.step(what);
    }
    // The chain of causes ends here: the time before is unknown.
    walk.pass(SimTime::ZERO, Span::of(rank, Kind::Unknown));
    Some(Path { rank, finish, spans: walk.spans })
}

/// Walks back from the end of a task's wait, the end of the task's turn `number`, to the wait's beginning, or for at
/// most `most` steps. Returns the spans, the last one first; the span found last may have begun before the wait.
pub(super) fn before(causes: &Causes, rank: RankId, task: TaskId, number: usize, most: usize) -> Vec<Span> {
    let turn = causes.turns(rank, task)[number];
    let turns = BTreeMap::from([((rank, task), number)]);
    let mut walk = Walk { causes, now: turn.end, spans: Vec::new(), turns };
    let mut at = Some(At::Caused(rank, turn.cause));
    for _ in 0..most {
        let Some(what) = at.filter(|_| walk.now > turn.start) else { break };
        at = walk.step(what);
    }
    walk.spans
}

struct Walk<'a> {
    causes: &'a Causes,
    /// Start of the part of the path that is already known.
    now: SimTime,
    spans: Vec<Span>,
    /// The earliest turn of each task on the path: several turns may end at one instant.
    turns: BTreeMap<(RankId, TaskId), usize>,
}

impl Walk<'_> {
    /// Finds the cause of `at` and returns the next event whose cause is searched. `None`: the cause is unknown.
    fn step(&mut self, at: At) -> Option<At> {
        Some(match at {
            At::Ran(rank, task) => {
                let (task, number, turn) = self.last_turn(rank, task)?;
                self.turns.insert((rank, task), number);
                self.turn(rank, task, turn)
            }
            At::Complete(rank, handle) => {
                let activity = *self.causes.activity(rank, handle)?;
                match activity.ended_by {
                    Cause::Time => {
                        self.pass(activity.start, of_activity(rank, handle, &activity));
                        At::Began(rank, handle)
                    }
                    cause => At::Caused(rank, cause),
                }
            }
            At::Began(rank, handle) => At::Caused(rank, self.causes.activity(rank, handle)?.begun_by),
            At::Caused(rank, cause) => match cause {
                Cause::Task(task) => At::Ran(rank, task),
                Cause::Activity(handle) => At::Complete(rank, handle),
                Cause::Begun(handle) => {
                    let activity = *self.causes.activity(rank, handle)?;
                    self.pass(activity.start, Span { kind: Kind::Library, ..of_activity(rank, handle, &activity) });
                    At::Began(rank, handle)
                }
                Cause::Sent(id) | Cause::Arrived(id) => self.message(rank, id, matches!(cause, Cause::Arrived(_)))?,
                Cause::Stored(by, task) => At::Ran(by, task),
                Cause::StoredBy(by, handle) => At::Began(by, handle),
                Cause::Unknown | Cause::Time | Cause::Closed(_) | Cause::Crash => return None,
            },
        })
    }

    /// The turn by which a task was running at this time. A task that did not wait before was started, or allowed to
    /// continue, by another task of the same rank that continued at this time.
    fn last_turn(&self, rank: RankId, task: TaskId) -> Option<(TaskId, usize, Turn)> {
        let of = |task: TaskId| {
            let before = self.turns.get(&(rank, task)).copied().unwrap_or(usize::MAX);
            let (number, turn) = self.causes.turn(rank, task, self.now, before)?;
            Some((task, number, *turn))
        };
        of(task).or_else(|| self.causes.tasks(rank).find_map(of))
    }

    fn turn(&mut self, rank: RankId, task: TaskId, turn: Turn) -> At {
        let Cause::Time = turn.cause else { return At::Caused(rank, turn.cause) };
        let kind = match turn.waited {
            Waited::Poll => Kind::Poll,
            Waited::Sleep => Kind::Sleep,
            Waited::Compute | Waited::Other => Kind::TimeOut,
        };
        self.pass(turn.start, Span { site: turn.site, ..Span::of(rank, kind) });
        At::Ran(rank, task)
    }

    /// Follows a message from its effect on a rank back to the cause of the message's start.
    fn message(&mut self, rank: RankId, id: MessageId, arrived: bool) -> Option<At> {
        let message = *self.causes.message(id)?;
        let Message { begun, released, started, sent, arrived: at, alone, in_window, source, by, link, .. } = message;
        // Bytes that left before the release, for which the receiver had room, delayed nothing.
        let started = started.max(released);
        let sender = self.causes.activity(source, message.operation);
        let of_sender =
            sender.map_or(Span::of(source, Kind::Library), |activity| of_activity(source, message.operation, activity));
        let on_link = |kind| Span { kind, link, ..of_sender };
        let here = of_sender.activity.filter(|_| rank == source);
        // The writer learns over the network that its write has arrived.
        let kind = if arrived && rank == source { Kind::Latency } else { Kind::Library };
        self.pass(if arrived { at } else { sent }, Span { rank, kind, activity: here, ..of_sender });
        self.pass(sent, on_link(Kind::Latency));
        // Times with a full window are moved to the end of this span: only their sum matters.
        let alone = started.saturating_add(alone).min(sent);
        let over_links = started.saturating_add(sent.since(started).saturating_sub(in_window));
        self.pass(over_links.max(alone), on_link(Kind::Queueing));
        self.pass(alone, on_link(Kind::Contention));
        self.pass(started, on_link(Kind::Bandwidth));
        // A message that left as soon as the message before it had left waited for nothing else.
        let before = message.behind.filter(|_| released < started);
        if let Some(before) = before.filter(|before| self.causes.message(*before).is_some_and(|it| it.sent == started))
        {
            return self.message(source, before, false);
        }
        self.pass(released, on_link(Kind::Queueing));
        let waited_for = of_sender.activity.filter(|_| by == source);
        self.pass(begun, Span { rank: by, activity: waited_for, ..on_link(Kind::Handshake) });
        Some(At::Caused(by, message.cause))
    }

    /// Adds a span like `what` from `start` up to the start of the known part of the path.
    fn pass(&mut self, start: SimTime, what: Span) {
        if start < self.now {
            self.spans.push(Span { start, end: self.now, ..what });
            self.now = start;
        }
    }
}

impl Span {
    fn of(rank: RankId, kind: Kind) -> Span {
        let (start, end) = (SimTime::ZERO, SimTime::ZERO);
        Span { start, end, rank, kind, link: None, name: None, site: NOWHERE, activity: None }
    }

    /// The operation of a process group to which the span belongs.
    pub(super) fn operation(&self) -> Option<Name> {
        self.name.filter(|_| self.kind != Kind::Compute)
    }
}

fn of_activity(rank: RankId, handle: Handle, activity: &Activity) -> Span {
    let (kind, name) = match activity.what {
        Doing::Compute(name) => (Kind::Compute, Some(name)),
        Doing::Call(name) => (Kind::Library, Some(name)),
        Doing::Sleep => (Kind::Sleep, None),
        Doing::Other => (Kind::Poll, None),
    };
    Span { name, site: activity.site, activity: Some(handle), ..Span::of(rank, kind) }
}

impl Kind {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Compute => "compute",
            Kind::Bandwidth => "bandwidth",
            Kind::Contention => "contention",
            Kind::Latency => "latency",
            Kind::Queueing => "queueing",
            Kind::Handshake => "handshake",
            Kind::Library => "library",
            Kind::Sleep => "sleep",
            Kind::TimeOut => "time-out",
            Kind::Poll => "poll",
            Kind::Unknown => "unknown",
        }
    }

    /// Whether the kind's time passes on a link.
    pub(super) const fn is_of_link(self) -> bool {
        matches!(self, Kind::Bandwidth | Kind::Contention | Kind::Latency | Kind::Queueing | Kind::Handshake)
    }
}
