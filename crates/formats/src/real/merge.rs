//! Owns the merge of all ranks' files: common times and numbers of groups, matching operations, and late peers.
//!
//! Collectives of a group match by their number, messages of a pair by their order: tags are not recorded. A rank's
//! times are the times of its main thread, whose unblocked time counts as compute.

use super::clock::Clock;
use super::file::{RankFile, RealError, Reason, Record};
use std::collections::BTreeMap;
use uniference_sim::event::{Event, Meeting, Observer, Times, Traffic, WaitReason};
use uniference_sim::ids::{GroupId, GroupRank, Handle, RankId, Site, TaskId};
use uniference_sim::program::{Call, CallOp, CollectiveKind, Mark, Origin, Outcome};
use uniference_sim::time::{SimDuration, SimTime};

/// Sends and receives, in order.
type MessageEnds = [Vec<(RankId, Handle)>; 2];

/// All ranks of a real run.
pub struct Merged {
    /// The ranks, in order.
    pub ranks: Vec<RealRank>,
    /// The members of each group, in the group's order.
    pub groups: Vec<Vec<RankId>>,
    lines: Vec<String>,
    /// Collectives by group and number: the latest entry, and the root's entry.
    collectives: BTreeMap<(GroupId, u64), Entries>,
    clock_error: SimDuration,
}

/// The actions of one rank, in the time of rank 0's clock since the first rank started.
pub struct RealRank {
    device: String,
    /// The rank's operations, indexed by handle.
    pub operations: Vec<Operation>,
    /// The rank's waits in order, thread by thread.
    pub waits: Vec<Wait>,
    /// Ranges of the program, in order.
    pub marks: Vec<(SimTime, TaskId, Mark)>,
    /// Time at which the rank's script started.
    pub start: SimTime,
    /// Time at which the rank's script returned.
    pub finish: SimTime,
    /// Result of the rank's script.
    pub outcome: Outcome,
    recorder: (u64, SimDuration),
}

/// A collective or a message, as one rank called it.
pub struct Operation {
    /// The call, with the actual sender of a receive from any rank.
    pub call: Call,
    /// The line of the program.
    pub site: Site,
    /// Time of the call.
    pub issued: SimTime,
    /// Time at which the operation was first known to be complete; `None`: the program never waited for it.
    pub completed: Option<SimTime>,
    /// Number of a collective in its group, or of a message in its pair of ranks.
    sequence: u64,
    peer: Option<(RankId, Handle)>,
}

/// An interval in which a thread of a rank was blocked.
pub struct Wait {
    /// Start of the interval.
    pub start: SimTime,
    /// End of the interval.
    pub end: SimTime,
    task: TaskId,
    /// The reason of the wait.
    pub reason: WaitReason,
    /// The operations for which the thread waited.
    pub handles: Vec<Handle>,
    /// The line of the program.
    pub site: Site,
}

impl Wait {
    /// Whether the main thread was blocked.
    pub fn is_main(&self) -> bool {
        self.task == TaskId(0)
    }
}

#[derive(Default)]
struct Entries {
    count: usize,
    last: SimTime,
    root: Option<SimTime>,
}

/// Merges the files of all ranks, which may come in any order.
///
/// # Errors
/// If the files are not the files of one run, one per rank.
pub fn merge(mut files: Vec<RankFile>) -> Result<Merged, RealError> {
    files.sort_by_key(|file| file.head.rank);
    check(&files)?;
    let clocks: Vec<Clock> = files.iter().map(|file| Clock::new(file.tail.clocks.clone())).collect();
    let starts = files.iter().zip(&clocks).map(|(file, clock)| clock.reference(file.head.start));
    let zero = starts.min().unwrap_or(0);
    let groups = Groups::number(&files, &clocks);
    let error = clocks.iter().map(Clock::error).max().unwrap_or(0);
    let mut lines = Lines::default();
    let ranks = files
        .into_iter()
        .zip(&clocks)
        .enumerate()
        .map(|(rank, (file, clock))| {
            RankReader { zero, clock, groups: &groups.of_rank[rank], lines: &mut lines }.read(file)
        })
        .collect();
    let clock_error = SimDuration::from_ns(error.unsigned_abs());
    let mut merged =
        Merged { ranks, groups: groups.members, lines: lines.texts, collectives: BTreeMap::new(), clock_error };
    merged.meet();
    Ok(merged)
}

fn check(files: &[RankFile]) -> Result<(), RealError> {
    let world = files.first().map_or(0, |file| file.head.world_size as usize);
    let different =
        |what: &str| Err(RealError::NotOneRun(format!("the files differ in {what}, so they belong to different runs")));
    if files.iter().any(|file| file.head.world_size as usize != world) {
        return different("the number of ranks");
    }
    if files.iter().any(|file| file.head.argv != files[0].head.argv) {
        return different("the program");
    }
    match (0..world).find(|rank| files.get(*rank).is_none_or(|file| file.head.rank as usize != *rank)) {
        Some(rank) => Err(RealError::NotOneRun(format!("the file of rank {rank} is missing ({world} ranks in total)"))),
        None if files.len() == world && world > 0 => Ok(()),
        None => Err(RealError::NotOneRun(format!("found {} files for {world} ranks", files.len()))),
    }
}

/// The groups of all ranks under one numbering.
struct Groups {
    members: Vec<Vec<RankId>>,
    /// For each rank, the groups by the rank's numbers.
    of_rank: Vec<BTreeMap<u32, GroupId>>,
}

impl Groups {
    /// Numbers the groups by their first use. A group is identified by its members, and by the number of groups of the
    /// same members before it.
    fn number(files: &[RankFile], clocks: &[Clock]) -> Groups {
        let mut first: BTreeMap<(Vec<RankId>, u32), i64> = BTreeMap::new();
        let mut found = Vec::new();
        for (file, clock) in files.iter().zip(clocks) {
            let mut before: BTreeMap<&Vec<RankId>, u32> = BTreeMap::new();
            let mut own = Vec::new();
            for record in &file.records {
                let Record::Group { at, group, ranks } = record else { continue };
                let count = before.entry(ranks).or_default();
                let key = (ranks.clone(), *count);
                *count += 1;
                let used = first.entry(key.clone()).or_insert(i64::MAX);
                *used = clock.reference(*at).min(*used);
                own.push((*group, key));
            }
            found.push(own);
        }
        let mut order: Vec<_> = first.iter().map(|(key, at)| (*at, key)).collect();
        order.sort();
        let number = |key: &(Vec<RankId>, u32)| {
            GroupId::from(order.iter().position(|(_, other)| *other == key).expect("every group was entered"))
        };
        let of_rank = found.iter().map(|own| own.iter().map(|(group, key)| (*group, number(key))).collect()).collect();
        Groups { members: order.iter().map(|(_, key)| key.0.clone()).collect(), of_rank }
    }
}

/// The lines of the program, of all ranks.
#[derive(Default)]
struct Lines {
    texts: Vec<String>,
    known: BTreeMap<String, Site>,
}

impl Lines {
    fn site(&mut self, line: String) -> Site {
        *self.known.entry(line).or_insert_with_key(|line| {
            self.texts.push(line.clone());
            Site::from(self.texts.len() - 1)
        })
    }
}

/// Converts one rank's file to common times and numbers.
struct RankReader<'a> {
    zero: i64,
    clock: &'a Clock,
    groups: &'a BTreeMap<u32, GroupId>,
    lines: &'a mut Lines,
}

impl RankReader<'_> {
    fn read(mut self, file: RankFile) -> RealRank {
        let mut rank = RealRank {
            device: file.head.device,
            operations: Vec::new(),
            waits: Vec::new(),
            marks: Vec::new(),
            start: self.time(file.head.start),
            finish: self.time(file.tail.finish),
            outcome: if file.tail.ok { Outcome::Ok } else { Outcome::Failed },
            recorder: (file.tail.recorder_calls, SimDuration::from_ns(file.tail.recorder_ns)),
        };
        let sites = self.sites(&file.records);
        let mut sequences = BTreeMap::new();
        // Records are sorted by the recorder's numbers, because the records of two threads may be written in another
        // order.
        let mut handles = BTreeMap::new();
        for record in file.records {
            match record {
                Record::Group { .. } | Record::Site { .. } => {}
                Record::Issued { at, handle, call, site, .. } => {
                    handles.insert(handle, Handle::from(rank.operations.len()));
                    let call = Call { group: self.groups[&call.group.0], op: call.op };
                    let collective = matches!(call.op, CallOp::Collective(_));
                    let next: &mut u64 = sequences.entry(call.group).or_default();
                    let sequence = *next;
                    *next += u64::from(collective);
                    let (site, issued) = (sites[&site], self.time(at));
                    let operation = Operation { call, site, issued, completed: None, sequence, peer: None };
                    rank.operations.push(operation);
                }
                Record::Completed { at, handle, peer } => {
                    let (handle, at) = (handles[&handle], self.time(at));
                    rank.complete(handle, at);
                    if let (Some(peer), CallOp::Recv { from, .. }) =
                        (peer, &mut rank.operations[handle.index()].call.op)
                    {
                        *from = Some(peer);
                    }
                }
                Record::Waited { start, end, task, reason, handles: waited, site } => {
                    let (start, end, task, site) = (self.time(start), self.time(end), TaskId(task), sites[&site]);
                    let handles = waited.iter().map(|handle| handles[handle]).collect();
                    rank.waits.push(Wait { start, end, task, reason: wait_reason(reason), handles, site });
                }
                Record::Marked { at, task, mark } => rank.marks.push((self.time(at), TaskId(task), mark)),
            }
        }
        rank.settle();
        rank
    }

    fn sites(&mut self, records: &[Record]) -> BTreeMap<u32, Site> {
        let mut sites = BTreeMap::new();
        for record in records {
            if let Record::Site { site, line } = record {
                sites.insert(*site, self.lines.site(line.clone()));
            }
        }
        sites
    }

    /// A time in the run; a time before zero, due to errors of the clocks, becomes zero.
    fn time(&self, at: i64) -> SimTime {
        let since = self.clock.reference(at).saturating_sub(self.zero).max(0);
        SimTime::from_ps((since as u64).saturating_mul(1_000))
    }
}

fn wait_reason(reason: Reason) -> WaitReason {
    match reason {
        Reason::Communication => WaitReason::Communication,
        Reason::Store => WaitReason::Store,
        Reason::Sleep => WaitReason::Sleep,
    }
}

impl RealRank {
    fn complete(&mut self, handle: Handle, at: SimTime) {
        let completed = &mut self.operations[handle.index()].completed;
        *completed = Some(completed.map_or(at, |known| known.min(at)));
    }

    /// Shortens waits: each ends no later than the last operation it waited for, and an operation without a recorded
    /// completion completes with its wait. Waits of one thread do not overlap, and none outlasts the program.
    fn settle(&mut self) {
        let mut waits = std::mem::take(&mut self.waits);
        waits.sort_by_key(|wait| (wait.task, wait.start));
        let mut free: BTreeMap<TaskId, SimTime> = BTreeMap::new();
        for wait in &mut waits {
            for handle in &wait.handles {
                if self.operations[handle.index()].completed.is_none_or(|known| known > wait.end) {
                    self.complete(*handle, wait.end);
                }
            }
            if let [_, _, ..] = wait.handles[..] {
                let last = wait.handles.iter().filter_map(|handle| self.operations[handle.index()].completed).max();
                wait.end = last.unwrap_or(wait.end).clamp(wait.start, wait.end);
            }
            let busy = free.entry(wait.task).or_insert(self.start);
            wait.start = wait.start.max(*busy);
            wait.end = wait.end.clamp(wait.start, self.finish.max(wait.start));
            *busy = wait.end;
        }
        waits.retain(|wait| wait.start < wait.end);
        self.waits = waits;
    }
}

impl Merged {
    /// The devices' names, by rank.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.ranks.iter().map(|rank| &rank.device[..])
    }

    /// The members of a group, in the group's order.
    pub fn members(&self, group: GroupId) -> &[RankId] {
        &self.groups[group.index()]
    }

    /// The program's lines, by site.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Maximum error between times of two ranks.
    pub fn clock_error(&self) -> SimDuration {
        self.clock_error
    }

    /// Number of calls and total time of each rank's recorder.
    pub fn recorder(&self) -> impl Iterator<Item = (u64, SimDuration)> {
        self.ranks.iter().map(|rank| rank.recorder)
    }

    /// Number of operations without a known completion: the program never waited for them.
    pub fn unseen(&self) -> usize {
        self.ranks.iter().flat_map(|rank| &rank.operations).filter(|operation| operation.completed.is_none()).count()
    }

    fn meet(&mut self) {
        // Messages by group, sender and receiver.
        let mut messages: BTreeMap<(GroupId, RankId, RankId), MessageEnds> = BTreeMap::new();
        for (me, rank) in (0..).map(RankId).zip(&self.ranks) {
            for (handle, operation) in (0..).map(Handle).zip(&rank.operations) {
                let group = operation.call.group;
                let member = |at: &GroupRank| self.groups[group.index()][at.index()];
                match &operation.call.op {
                    CallOp::Collective(collective) => {
                        let entries = self.collectives.entry((group, operation.sequence)).or_default();
                        entries.count += 1;
                        entries.last = entries.last.max(operation.issued);
                        if collective.root.as_ref().map(member) == Some(me) {
                            entries.root = Some(operation.issued);
                        }
                    }
                    CallOp::Send { to, .. } => {
                        messages.entry((group, me, member(to))).or_default()[0].push((me, handle))
                    }
                    CallOp::Recv { from: Some(from), .. } => {
                        messages.entry((group, member(from), me)).or_default()[1].push((me, handle));
                    }
                    CallOp::Recv { from: None, .. } | CallOp::Write { .. } => {}
                }
            }
        }
        for [sends, receives] in messages.into_values() {
            for (number, (send, receive)) in (0..).zip(sends.into_iter().zip(receives)) {
                for (own, other) in [(send, receive), (receive, send)] {
                    let operation = &mut self.ranks[own.0.index()].operations[own.1.index()];
                    operation.peer = Some(other);
                    operation.sequence = number;
                }
            }
        }
    }

    /// Time until which a rank had to wait for a peer to enter: for a collective as in the simulation, for a message
    /// until the call of its other side.
    fn peers_entered(&self, me: RankId, operation: &Operation) -> SimTime {
        let CallOp::Collective(collective) = &operation.call.op else {
            let peer = operation.peer.map(|(peer, handle)| &self.ranks[peer.index()].operations[handle.index()]);
            return peer.map_or(SimTime::ZERO, |peer| peer.issued);
        };
        let entries = &self.collectives[&(operation.call.group, operation.sequence)];
        let members = self.members(operation.call.group);
        let root = collective.root.map(|root| members[root.index()]) == Some(me);
        match (collective.kind, root) {
            (CollectiveKind::Broadcast | CollectiveKind::Scatter, true)
            | (CollectiveKind::Reduce | CollectiveKind::Gather, false) => SimTime::ZERO,
            (CollectiveKind::Broadcast | CollectiveKind::Scatter, false) => entries.root.unwrap_or(SimTime::ZERO),
            _ => entries.last,
        }
    }

    /// Sends `observer` the run's events in the order of time.
    pub fn tell(&self, observer: &mut dyn Observer) {
        let mut events: Vec<(SimTime, Event<'_>)> = Vec::new();
        for (me, rank) in (0..).map(RankId).zip(&self.ranks) {
            self.tell_operations(me, rank, &mut events);
            let times = self.tell_waits(me, rank, &mut events);
            events.extend(rank.marks.iter().map(|(at, task, mark)| {
                (*at, Event::Marked { rank: me, task: *task, mark, why: Default::default(), spent: None })
            }));
            let traffic = Traffic::default();
            events.push((
                rank.finish,
                Event::Finished { rank: me, outcome: rank.outcome, times, traffic, cause: Default::default() },
            ));
        }
        // The sort is stable: events of one rank at one instant stay in order.
        events.sort_by_key(|(at, _)| *at);
        for (at, event) in &events {
            observer.record(*at, event);
        }
    }

    fn tell_operations<'a>(&'a self, me: RankId, rank: &'a RealRank, events: &mut Vec<(SimTime, Event<'a>)>) {
        for (handle, operation) in (0..).map(Handle).zip(&rank.operations) {
            let Operation { call, site, issued, completed, sequence, peer, .. } = operation;
            let bytes = call.op.bytes(self.members(call.group).len() as u32);
            events.push((*issued, Event::Issued { rank: me, handle, call, bytes, site: *site, task: None }));
            let meeting = match call.op {
                CallOp::Collective(_) => Meeting::Collective { sequence: *sequence },
                _ => Meeting::Peer(*peer),
            };
            if let Some(at) = completed {
                let (issued, started) = (*issued, *issued);
                let event = Event::Completed {
                    rank: me,
                    handle,
                    call,
                    bytes,
                    issued,
                    started,
                    algorithm: None,
                    meeting,
                    on_stream: None,
                    why: Default::default(),
                    cause: Default::default(),
                };
                events.push((*at, event));
            }
        }
    }

    /// Adds the waits, and compute between the waits of the main thread; returns the rank's times.
    fn tell_waits<'a>(&'a self, me: RankId, rank: &'a RealRank, events: &mut Vec<(SimTime, Event<'a>)>) -> Times {
        let mut times = Times { idle: rank.start.since(SimTime::ZERO), ..Times::default() };
        let mut computes = |start: SimTime, end: SimTime| {
            if start < end {
                let base = end.since(start);
                times.compute += base;
                let event = Event::Computed {
                    rank: me,
                    task: TaskId(0),
                    start,
                    base,
                    origin: Origin::Measured,
                    name: None,
                    why: Default::default(),
                };
                events.push((end, event));
            }
        };
        let mut free = rank.start;
        for wait in rank.waits.iter().filter(|wait| wait.is_main()) {
            computes(free, wait.start);
            free = wait.end;
        }
        computes(free, rank.finish);
        for wait in &rank.waits {
            let (event, [exposed, late_peer, no_data]) = self.waited(me, rank, wait);
            if wait.is_main() {
                match wait.reason {
                    WaitReason::Communication => times.exposed += exposed,
                    _ => times.idle += wait.end.since(wait.start),
                }
                times.late_peer += late_peer;
                times.no_data += no_data;
            }
            events.push((wait.end, event));
        }
        times
    }

    /// The event of a wait, and its parts that were exposed, for a late peer, and for a send that had not been issued.
    fn waited<'a>(&'a self, me: RankId, rank: &'a RealRank, wait: &'a Wait) -> (Event<'a>, [SimDuration; 3]) {
        let operations = wait.handles.iter().map(|handle| &rank.operations[handle.index()]);
        let last = operations.clone().max_by_key(|operation| operation.completed);
        let communicates = wait.reason == WaitReason::Communication && wait.is_main();
        let exposed = if communicates { wait.end.since(wait.start) } else { SimDuration::ZERO };
        let (mut any, mut senders) = (wait.start, wait.start);
        for operation in operations {
            let entered = self.peers_entered(me, operation);
            any = any.max(entered);
            if let CallOp::Recv { .. } = operation.call.op {
                senders = senders.max(entered);
            }
        }
        let [late_peer, no_data] = [any, senders].map(|at| at.min(wait.end).since(wait.start).min(exposed));
        let Wait { start, task, reason, handles, site, .. } = wait;
        let (start, task, reason, site) = (*start, *task, *reason, *site);
        let call = last.map(|operation| &operation.call);
        let event = Event::Waited {
            rank: me,
            task,
            start,
            reason,
            exposed,
            late_peer,
            no_data,
            handles,
            call,
            site,
            cause: Default::default(),
        };
        (event, [exposed, late_peer, no_data])
    }
}
