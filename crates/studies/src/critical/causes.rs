//! Owns the causes of a run's events, kept until the run ends: why each activity, message and task continued.

use std::collections::BTreeMap;
use uniference_sim::cluster::Cluster;
use uniference_sim::event::{Cause, Elapsed, Event, Observer, WaitReason, Why};
use uniference_sim::ids::{Handle, LinkId, MessageId, QueueId, RankId, Site, TaskId};
use uniference_sim::network::Topology;
use uniference_sim::observe::IssueRanges;
use uniference_sim::program::Mark;
use uniference_sim::time::{SimDuration, SimTime};

/// Observes a run and keeps the causes of its events.
pub struct Causes {
    topology: Topology,
    /// The first link with each link's name, indexed by link: the devices of one host have links of one name.
    first_of_name: Vec<LinkId>,
    pub(super) devices: Vec<String>,
    pub(super) ranks: Vec<RankCauses>,
    /// Messages by number; `None` if the message never arrived.
    messages: Vec<Option<Message>>,
    names: BTreeMap<String, Name>,
    /// Number of further events that may be kept; `None` if the limit was exceeded: then no event is kept.
    room: Option<u64>,
}

/// Number of the name of a compute activity, an operation or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name(pub(super) u32);

/// Causes kept for one rank.
#[derive(Default)]
pub(super) struct RankCauses {
    /// The rank's activities, indexed by handle.
    activities: Vec<Option<Activity>>,
    /// Causes by which each task continued, in order.
    turns: Vec<Vec<Turn>>,
    /// The rank's innermost range from each moment on, in order; `None` if no range was open.
    pub(super) ranges: Vec<(SimTime, Option<Name>)>,
    /// The ranges in which the rank's threads issued activities.
    issues: IssueRanges<Name>,
    pub(super) finish: Option<(SimTime, Cause)>,
}

/// An activity that has ended.
#[derive(Clone, Copy)]
pub(super) struct Activity {
    pub(super) start: SimTime,
    /// Cause of the activity's start.
    pub(super) begun_by: Cause,
    pub(super) ended_by: Cause,
    pub(super) site: Site,
    pub(super) what: Doing,
    /// The innermost range when work on a CUDA stream was launched, if a range was open; the outer `None`: work of the
    /// host.
    pub(super) launched_in: Option<Option<Name>>,
}

/// The kind of an activity.
#[derive(Clone, Copy)]
pub(super) enum Doing {
    Compute(Name),
    Call(Name),
    Sleep,
    Other,
}

/// An event by which a task continued.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) start: SimTime,
    pub(super) end: SimTime,
    pub(super) cause: Cause,
    pub(super) site: Site,
    /// The reason of the task's wait.
    pub(super) waited: Waited,
}

/// The reason of a task's wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Poll,
    Sleep,
    /// Compute. As with the other reasons, the wait was a timeout if it was ended by time.
    Compute,
    Other,
}

/// A message that has arrived. From `begun` to `released` the message waited for its receiver, until `started` for
/// earlier messages, until `sent` its bytes left (for `in_window` of this time held back by the full window of its
/// connection), and until `arrived` its last byte was in transit.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) begun: SimTime,
    pub(super) released: SimTime,
    pub(super) started: SimTime,
    pub(super) sent: SimTime,
    pub(super) arrived: SimTime,
    /// Duration of the message's bytes on the slowest link of its route alone.
    pub(super) alone: SimDuration,
    pub(super) cause: Cause,
    pub(super) by: RankId,
    pub(super) source: RankId,
    /// The sender's operation.
    pub(super) operation: Handle,
    /// The part of the time from `started` to `sent` in which the window of the connection was full.
    pub(super) in_window: SimDuration,
    /// The link that held the message back for longest while it left; if no link did, the slowest link of its route.
    pub(super) link: Option<LinkId>,
    /// The message before this one on the same connection.
    pub(super) behind: Option<MessageId>,
}

impl Causes {
    /// The `Causes` of a run on `cluster`.
    pub fn new(cluster: &Cluster) -> Causes {
        let ranks = std::iter::repeat_with(RankCauses::default).take(cluster.devices.len()).collect();
        let devices = cluster.devices.iter().map(|device| device.name.clone()).collect();
        let (topology, room) = (cluster.topology.clone(), Some(u64::MAX));
        let mut first = BTreeMap::new();
        let links = topology.links().iter().enumerate();
        let first_of_name = links.map(|(id, link)| *first.entry(&link.name).or_insert(LinkId::from(id))).collect();
        Causes { first_of_name, topology, devices, ranks, messages: Vec::new(), names: BTreeMap::new(), room }
    }

    /// Limits the events that are kept, as each needs some 100 bytes: of a run with more than `events` events nothing
    /// is kept.
    #[must_use]
    pub fn of_at_most(self, events: u64) -> Causes {
        Causes { room: Some(events), ..self }
    }

    /// Whether an event is to be kept; counts the event.
    fn has_room(&mut self) -> bool {
        self.room = self.room.and_then(|room| room.checked_sub(1));
        if self.room.is_none() {
            self.messages = Vec::new();
            self.ranks.iter_mut().for_each(|rank| *rank = RankCauses::default());
        }
        self.room.is_some()
    }

    pub(super) fn activity(&self, rank: RankId, handle: Handle) -> Option<&Activity> {
        self.ranks[rank.index()].activities.get(handle.index())?.as_ref()
    }

    pub(super) fn message(&self, id: MessageId) -> Option<&Message> {
        self.messages.get(usize::try_from(id.0).ok()?)?.as_ref()
    }

    /// The last turn of a task that ended at or before `at`, among the first `before` turns; and its number.
    pub(super) fn turn(&self, rank: RankId, task: TaskId, at: SimTime, before: usize) -> Option<(usize, &Turn)> {
        let turns = self.ranks[rank.index()].turns.get(task.index())?;
        let turns = &turns[..before.min(turns.len())];
        let number = turns.partition_point(|turn| turn.end <= at).checked_sub(1)?;
        Some((number, &turns[number])).filter(|(_, turn)| turn.end == at)
    }

    /// The innermost range of a rank from this moment on.
    pub(super) fn range(&self, rank: RankId, at: SimTime) -> Option<Name> {
        let ranges = &self.ranks[rank.index()].ranges;
        ranges.partition_point(|(since, _)| *since <= at).checked_sub(1).and_then(|before| ranges[before].1)
    }

    /// Causes by which a task continued, in order.
    pub(super) fn turns(&self, rank: RankId, task: TaskId) -> &[Turn] {
        &self.ranks[rank.index()].turns[task.index()]
    }

    /// The tasks of a rank that have ever waited.
    pub(super) fn tasks(&self, rank: RankId) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.ranks[rank.index()].turns.len()).map(TaskId::from)
    }

    pub(super) fn link(&self, link: LinkId) -> &str {
        &self.topology.link(link).name
    }

    /// The texts of all names.
    pub(super) fn texts(&self) -> Vec<&str> {
        let mut texts = vec![""; self.names.len()];
        self.names.iter().for_each(|(text, name)| texts[name.0 as usize] = text);
        texts
    }

    fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return *name;
        }
        let name = Name(self.names.len() as u32);
        self.names.insert(text.to_owned(), name);
        name
    }

    fn add(&mut self, rank: RankId, why: &Why, start: SimTime, ended_by: Cause, what: Doing) {
        let of_rank = &mut self.ranks[rank.index()];
        let is_launched = why.queue.and_then(QueueId::stream).is_some();
        let launched_in = is_launched.then(|| of_rank.issues.at(why.task, why.handle).copied());
        let activities = &mut of_rank.activities;
        if activities.len() <= why.handle.index() {
            activities.resize(why.handle.index() + 1, None);
        }
        let activity = Activity { start, begun_by: why.cause, ended_by, site: why.site, what, launched_in };
        activities[why.handle.index()] = Some(activity);
    }

    fn goes_on(&mut self, rank: RankId, task: TaskId, turn: Turn) {
        let turns = &mut self.ranks[rank.index()].turns;
        if turns.len() <= task.index() {
            turns.resize_with(task.index() + 1, Vec::new);
        }
        turns[task.index()].push(turn);
    }

    fn mark(&mut self, rank: RankId, task: TaskId, at: SimTime, why: &Why, mark: &Mark) {
        let name = match mark {
            Mark::Begin(name) | Mark::Enter { name, .. } => Some(self.name(name)),
            Mark::End | Mark::Leave { .. } => None,
            // If several ranges may overlap, none is the innermost.
            Mark::Open { .. } | Mark::Close { .. } | Mark::Name(_) => return,
        };
        let RankCauses { ranges, issues, .. } = &mut self.ranks[rank.index()];
        issues.mark(task, why, mark, |_| name.expect("what begins has a name"));
        ranges.push((at, issues.last().copied()));
    }
}

impl Observer for Causes {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        if !self.has_room() {
            return;
        }
        match event {
            Event::Computed { rank, start, name, why, .. } => {
                let name = self.name(name.unwrap_or(super::COMPUTE));
                self.add(*rank, why, *start, Cause::Time, Doing::Compute(name));
            }
            Event::Completed { rank, started, call, why, cause, .. } => {
                let name = self.name(call.op.name());
                self.add(*rank, why, *started, *cause, Doing::Call(name));
            }
            Event::Failed { rank, started, call, why, peer, .. } => {
                let name = self.name(call.op.name());
                self.add(*rank, why, *started, Cause::Closed(*peer), Doing::Call(name));
            }
            Event::Marked { rank, task, mark, why, .. } => {
                self.add(*rank, why, at, Cause::Time, Doing::Other);
                self.mark(*rank, *task, at, why, mark);
            }
            Event::Elapsed { rank, start, why: Some(why), cause, what, .. } => {
                let what = if *what == Elapsed::Sleep { Doing::Sleep } else { Doing::Other };
                self.add(*rank, why, *start, *cause, what);
            }
            Event::Elapsed { rank, task, start, why: None, cause, .. } => {
                let turn = Turn { start: *start, end: at, cause: *cause, site: NOWHERE, waited: Waited::Poll };
                self.goes_on(*rank, *task, turn);
            }
            Event::Waited { rank, task, start, cause, site, reason, .. } => {
                let waited = match reason {
                    WaitReason::Sleep => Waited::Sleep,
                    WaitReason::Compute => Waited::Compute,
                    WaitReason::Communication | WaitReason::Store => Waited::Other,
                };
                self.goes_on(*rank, *task, Turn { start: *start, end: at, cause: *cause, site: *site, waited });
            }
            Event::Message { source, wire_bytes, started, sent, links, way, .. } => {
                let slowest = links.iter().copied().min_by(|a, b| {
                    let rate = |link: &LinkId| self.topology.link(*link).payload_rate().bytes_per_second();
                    rate(a).total_cmp(&rate(b))
                });
                let alone =
                    slowest.map_or(SimDuration::ZERO, |link| self.topology.link(link).bandwidth.time_for(*wire_bytes));
                let message = Message {
                    begun: way.begun,
                    released: way.released,
                    started: *started,
                    sent: *sent,
                    arrived: at,
                    alone,
                    cause: way.cause,
                    by: way.by,
                    source: *source,
                    operation: way.operation,
                    in_window: way.in_window,
                    link: way.limit.or(slowest).map(|link| self.first_of_name[link.index()]),
                    behind: way.behind,
                };
                let number = way.id.0 as usize;
                if self.messages.len() <= number {
                    self.messages.resize(number + 1, None);
                }
                self.messages[number] = Some(message);
            }
            Event::Finished { rank, cause, .. } => self.ranks[rank.index()].finish = Some((at, *cause)),
            Event::Issued { .. } | Event::Used { .. } => {}
        }
    }

    fn wants_messages(&self) -> bool {
        true
    }
}

/// The site that stands for an unknown line of the program.
pub(super) const NOWHERE: Site = Site(u32::MAX);
