//! Owns the report of a run that cannot continue: the state of every rank, the activities that it waits for, absent
//! members, and near matches.

use super::Engine;
use super::rank::{RankState, TaskState, Threads};
use crate::comm::{Caller, Disagreement, NameClash, NamedBy};
use crate::ids::{GroupId, GroupRank, Handle, RankId, Site, TaskId};
use crate::network::Asymmetry;
use crate::program::{Activity, Call, CallOp, Outcome};
use crate::store;
use crate::time::{Bytes, SimDuration, SimTime};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Reason and state of a run that cannot continue.
#[derive(Clone, Debug, PartialEq)]
pub struct Halt {
    /// The virtual time at which the run stopped.
    pub at: SimTime,
    /// Reason of the halt.
    pub reason: HaltReason,
    /// State of every rank.
    pub ranks: Vec<RankReport>,
}

/// Reason why a run halted.
#[derive(Clone, Debug, PartialEq)]
pub enum HaltReason {
    /// No event is left that could end the ranks' waits.
    Deadlock,
    /// Two ranks called one operation in different ways.
    Mismatch {
        /// The process group of the operation.
        group: GroupId,
        /// The rank that called first, and its handle of the operation.
        first: (RankId, Handle),
        /// The operation as the first rank called it.
        first_call: CallOp,
        /// The line of the first rank's call.
        first_site: Site,
        /// The rank that disagrees, and its handle of the operation.
        second: (RankId, Handle),
        /// The line of the second rank's call.
        second_site: Site,
        /// The property that differs, and its values, the second rank's first: "dtype: float32 against float64".
        what: String,
    },
    /// Two ranks create different process groups under one name.
    Groups(NameClash),
    /// The run's clock would pass 213 days.
    EndOfTime,
    /// Ranks that were assumed equivalent differ, so the results of the folded run are not valid.
    Asymmetry(Asymmetry),
}

/// State of one rank when the run stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct RankReport {
    /// The rank.
    pub rank: RankId,
    /// The rank's clock.
    pub clock: SimTime,
    /// Outcome of the program; `None`: it has not ended.
    pub ended: Option<Outcome>,
    /// Threads of the rank that have not ended.
    pub tasks: Vec<TaskReport>,
}

/// State of one thread of a rank when the run stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskReport {
    /// The thread.
    pub task: TaskId,
    /// The line on which it is blocked; `None`: it is not blocked in the engine.
    pub site: Option<Site>,
    /// Activity of the thread.
    pub doing: Doing,
}

/// Activity of a thread.
#[derive(Clone, Debug, PartialEq)]
pub enum Doing {
    /// The thread runs, or has just made a request to the engine.
    Running,
    /// The thread waits for another thread of its process, which the engine cannot observe.
    Inside,
    /// The thread waits for operations or other activities: those that are not complete.
    Waiting(Vec<Pending>),
    /// The thread waits for keys of the store.
    Store(Vec<String>),
}

/// An operation that is not complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// The rank's handle of the operation.
    pub handle: Handle,
    /// Name, as `all_reduce`, `recv`, `compute` or `sleep`.
    pub operation: &'static str,
    /// Size of the tensor.
    pub bytes: Bytes,
    /// The group, and the members that have not entered.
    pub meeting: Option<(GroupId, Vec<RankId>)>,
    /// The line that issued the operation.
    pub site: Site,
    /// For a send or receive, the peer's operation that would match except for its tag.
    pub near: Option<Near>,
    /// For an activity that has not started, the operations of process groups that it waits for, as work on a CUDA
    /// stream does.
    pub behind: Vec<Pending>,
}

/// A send or receive of the peer, to this rank and in the same group, but with another tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near {
    /// The rank of the peer.
    pub rank: RankId,
    /// Whether the peer sends; otherwise it receives.
    pub sends: bool,
    /// The tag of the peer's operation.
    pub tag: u64,
    /// The tag of this rank's operation.
    pub wanted: u64,
    /// The line of the peer's call.
    pub site: Site,
}

impl Engine {
    /// State of every rank, for a progress display or a report.
    pub fn report(&self) -> Vec<RankReport> {
        self.simulated().map(|rank| self.rank_report(rank)).collect()
    }

    /// Operations of process groups that a rank has entered and others have not, in the order of their handles, with
    /// the time that the rank has waited for them, by its clock.
    pub fn unmet(&self, rank: RankId) -> Vec<(Pending, SimDuration)> {
        let state = &self.ranks[rank.index()];
        let begun = state.activities.open().filter_map(|(handle, open)| Some((handle, open.started?)));
        let unmet = begun.map(|(handle, since)| (self.pending(state, handle), state.clock.max(since).since(since)));
        unmet.filter(|(call, _)| call.meeting.as_ref().is_some_and(|(_, missing)| !missing.is_empty())).collect()
    }

    fn rank_report(&self, rank: &RankState) -> RankReport {
        let tasks = rank.tasks.iter().enumerate();
        RankReport {
            rank: rank.id,
            clock: rank.clock,
            ended: rank.outcome,
            tasks: tasks.filter_map(|(index, task)| self.task_report(rank, TaskId::from(index), &task.state)).collect(),
        }
    }

    fn task_report(&self, rank: &RankState, task: TaskId, state: &TaskState) -> Option<TaskReport> {
        let (site, doing) = match state {
            TaskState::Ended => return None,
            TaskState::Running if rank.threads != Threads::Run => (None, Doing::Inside),
            TaskState::Running | TaskState::Asking { .. } | TaskState::Polling { .. } => (None, Doing::Running),
            TaskState::Paused { site, .. } => (Some(*site), Doing::Inside),
            TaskState::Storing { operation, site, .. } => (Some(*site), Doing::Store(store::keys(operation))),
            TaskState::Waiting(wait) => {
                let missing = wait.handles.iter().filter(|handle| !rank.activities.is_complete(**handle));
                (Some(wait.site), Doing::Waiting(missing.map(|handle| self.pending(rank, *handle)).collect()))
            }
        };
        Some(TaskReport { task, site, doing })
    }

    fn pending(&self, rank: &RankState, handle: Handle) -> Pending {
        let activity = rank.activities.get(handle).expect("what is not complete is not forgotten");
        let (operation, bytes, meeting) = match &activity.activity {
            Activity::Compute(_) => ("compute", Bytes(0), None),
            Activity::Sleep(_) => ("sleep", Bytes(0), None),
            Activity::Mark(_) => ("mark", Bytes(0), None),
            Activity::Store(_) => ("store", Bytes(0), None),
            Activity::Finish => ("finish", Bytes(0), None),
            Activity::Reach(_) => ("event", Bytes(0), None),
            Activity::Close(_) => ("close", Bytes(0), None),
            Activity::Abort(_) => ("abort", Bytes(0), None),
            Activity::Call(call) => {
                (call.op.name(), self.comm.bytes(call), Some((call.group, self.absent(call, activity.sequence))))
            }
        };
        let near = match &activity.activity {
            Activity::Call(call) => self.near(rank.id, call),
            _ => None,
        };
        let behind = match activity.started {
            Some(_) => Vec::new(),
            None => calls_before(rank, handle).into_iter().map(|call| self.pending(rank, call)).collect(),
        };
        Pending { handle, operation, bytes, meeting, site: activity.site, near, behind }
    }

    /// Operation of the peer that would match a send or receive if it had the same tag.
    fn near(&self, me: RankId, call: &Call) -> Option<Near> {
        let (peer, wanted) = match call.op {
            CallOp::Send { to, tag, .. } => (to, tag),
            CallOp::Recv { from: Some(from), tag, .. } => (from, tag),
            CallOp::Recv { from: None, .. } | CallOp::Collective(_) | CallOp::Write { .. } => return None,
        };
        let rank = self.members(call.group)[peer.index()];
        let to_me = |group_rank: GroupRank| self.members(call.group)[group_rank.index()] == me;
        let fits = |site: Site, other: &Call| match (&call.op, &other.op) {
            (CallOp::Recv { .. }, CallOp::Send { to, tag, .. }) if to_me(*to) => {
                Some(Near { rank, sends: true, tag: *tag, wanted, site })
            }
            (CallOp::Send { .. }, CallOp::Recv { from, tag, .. }) if from.is_none_or(to_me) => {
                Some(Near { rank, sends: false, tag: *tag, wanted, site })
            }
            _ => None,
        };
        let open = self.ranks[rank.index()].activities.open().filter_map(|(_, other)| match &other.activity {
            Activity::Call(call_of_peer) if call_of_peer.group == call.group => fits(other.site, call_of_peer),
            _ => None,
        });
        // A send that does not wait for its receive is already complete, so its message is looked up in the mailbox.
        let unclaimed =
            matches!(call.op, CallOp::Recv { .. }).then(|| self.comm.unclaimed_message(me, call.group, rank)).flatten();
        let arrived = unclaimed.map(|(tag, site)| Near { rank, sends: true, tag, wanted, site });
        open.chain(arrived).find(|near| near.tag != wanted)
    }

    /// Ranks for which an incomplete operation still waits.
    fn absent(&self, call: &Call, sequence: u64) -> Vec<RankId> {
        match &call.op {
            CallOp::Collective(_) => self.comm.missing(call.group, sequence),
            CallOp::Recv { from: Some(from), .. } => vec![self.members(call.group)[from.index()]],
            CallOp::Send { to, bytes, .. } if self.comm.sends_wait(call.group, *bytes) => {
                vec![self.members(call.group)[to.index()]]
            }
            CallOp::Recv { from: None, .. } | CallOp::Send { .. } | CallOp::Write { .. } => Vec::new(),
        }
    }
}

/// Operations of process groups that have started, are not complete, and keep the activity from starting.
fn calls_before(rank: &RankState, handle: Handle) -> BTreeSet<Handle> {
    let mut before: BTreeMap<Handle, Vec<Handle>> = BTreeMap::new();
    let mut last = BTreeMap::new();
    for (open, state) in rank.activities.open() {
        if let Some(previous) = state.queue.and_then(|queue| last.insert(queue, open)) {
            before.entry(open).or_default().push(previous);
        }
        state.dependents.iter().for_each(|dependent| before.entry(*dependent).or_default().push(open));
    }
    let (mut calls, mut seen, mut left) = (BTreeSet::new(), BTreeSet::new(), vec![handle]);
    while let Some(next) = left.pop() {
        if !seen.insert(next) {
            continue;
        }
        let runs = rank.activities.get(next).is_some_and(|state| state.started.is_some());
        if runs && rank.call(next).is_some() {
            calls.insert(next);
        } else {
            left.extend(before.remove(&next).unwrap_or_default());
        }
    }
    calls
}

impl Halt {
    /// The report for the user; `site` turns a line's id into `file:line`, and `inside` returns the positions of
    /// threads of a rank that wait for each other, if known.
    pub fn render(&self, site: &dyn Fn(Site) -> String, inside: &dyn Fn(RankId) -> Vec<String>) -> String {
        let mut text = match &self.reason {
            HaltReason::Deadlock => format!("deadlock at {}: no rank can proceed\n", self.at),
            HaltReason::EndOfTime => format!("virtual time exceeds its limit of 213 days (at {})\n", self.at),
            HaltReason::Asymmetry(asymmetry) => {
                format!("ranks are not equivalent (at {}): {}\n", self.at, asymmetry.problem)
            }
            HaltReason::Groups(NameClash { first, second }) => {
                let line = |by: &NamedBy| format!("  {} called {}, at {}\n", by.rank, by.call, site(by.site));
                format!(
                    "mismatch at {}: {} and {} create different process groups under one name\n{}{}",
                    self.at,
                    second.rank,
                    first.rank,
                    line(first),
                    line(second),
                )
            }
            HaltReason::Mismatch { group, first, first_call, first_site, second, second_site, what } => format!(
                "mismatch at {}: {} and {} made different calls for the same {} of {group}\n  {what}\n  {} called it first, at {}\n  {} called it at {}\n",
                self.at,
                second.0,
                first.0,
                first_call.name(),
                first.0,
                site(*first_site),
                second.0,
                site(*second_site),
            ),
        };
        for rank in &self.ranks {
            text += &rank.render(site, &inside(rank.rank));
        }
        text + "hint: " + self.hint() + "\n"
    }
}

impl RankReport {
    /// One line for the user, with its line end. `threads`: the positions of threads that wait for each other, or of
    /// the threads of a rank that runs.
    pub fn render(&self, site: &dyn Fn(Site) -> String, threads: &[String]) -> String {
        let head = format!("  {}, clock {}: ", self.rank, self.clock);
        match self.ended {
            Some(Outcome::Crashed) => return head + "has crashed, as the cluster file specifies\n",
            Some(_) => return head + "has finished\n",
            None => {}
        }
        let runs = self.tasks.iter().any(|task| task.doing == Doing::Running);
        // For running threads, the line shows their positions if these are known, and otherwise only that they run.
        let shown = self.tasks.iter().filter(|task| threads.is_empty() || task.doing != Doing::Running);
        let (waiting, others): (Vec<_>, Vec<_>) = shown.partition(|task| task.doing == Doing::Inside);
        let describe = |task: &TaskReport| {
            // A thread that waits for a device may be at no known line.
            let line = task.site.map(site).filter(|line| !line.is_empty());
            let place = line.map_or(String::new(), |line| format!(", at {line}"));
            format!("{}{place}{}{}", task.doing, task.doing.near(site), task.doing.behind(site))
        };
        let mut lines: Vec<String> = others.into_iter().map(describe).collect();
        match threads {
            [] => lines.extend(waiting.first().map(|task| task.doing.to_string())),
            known if runs => lines.push(format!("is running: {}", known.join("; "))),
            known => lines.push(format!("waits inside its process: {}", known.join("; "))),
        }
        format!("{head}{}\n", lines.join("; "))
    }
}

impl Doing {
    /// Operations that work on the device waits for, with their lines.
    fn behind(&self, site: &dyn Fn(Site) -> String) -> String {
        let Doing::Waiting(pending) = self else { return String::new() };
        let calls: BTreeMap<Handle, &Pending> =
            pending.iter().flat_map(|pending| &pending.behind).map(|call| (call.handle, call)).collect();
        calls.values().map(|call| format!("; behind {call}, issued at {}", site(call.site))).collect()
    }

    /// Sends and receives of the peer with another tag.
    fn near(&self, site: &dyn Fn(Site) -> String) -> String {
        let Doing::Waiting(pending) = self else { return String::new() };
        let near = pending.iter().filter_map(|pending| pending.near);
        near.map(|Near { rank, sends, tag, wanted, site: line }| {
            let does = if sends { "has sent" } else { "receives" };
            format!(" (tag {wanted}; {rank} {does} with tag {tag}, at {})", site(line))
        })
        .collect()
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doing::Running => f.write_str("is running"),
            Doing::Inside => f.write_str("waits inside its process"),
            Doing::Store(keys) => write!(f, "waits for {} in the store", keys.join(", ")),
            Doing::Waiting(pending) => {
                let parts: Vec<String> = pending.iter().map(Pending::to_string).collect();
                write!(f, "waits for {}", parts.join(", "))
            }
        }
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        let Some((group, missing)) = &self.meeting else { return Ok(()) };
        write!(f, " ({} bytes, {group})", self.bytes.0)?;
        match missing.len() {
            0 => Ok(()),
            1..=8 => {
                let ranks: Vec<String> = missing.iter().map(|rank| rank.0.to_string()).collect();
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                write!(f, ", not entered by {noun} {}", ranks.join(", "))
            }
            count => write!(f, ", not entered by {count} ranks, the first of which is {}", missing[0]),
        }
    }
}

impl Halt {
    fn hint(&self) -> &'static str {
        let has_crashed = self.ranks.iter().any(|rank| rank.ended == Some(Outcome::Crashed));
        // If a thread of a rank waits for another rank, the other threads of the rank wait for this thread, not for a
        // lock or queue.
        let is_inside = |rank: &RankReport| {
            !rank.tasks.is_empty() && rank.ended.is_none() && rank.tasks.iter().all(|task| task.doing == Doing::Inside)
        };
        match self.reason {
            HaltReason::Deadlock if has_crashed => {
                "default timeouts are not simulated; pass a timeout to init_process_group, or call destroy_process_group on ranks that detect the crash"
            }
            HaltReason::Deadlock if self.ranks.iter().any(is_inside) => {
                "check that the locks and queues on which the threads of a process wait can still be released or filled"
            }
            _ => self.reason.hint(),
        }
    }
}

impl HaltReason {
    /// Advice for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            HaltReason::Deadlock => {
                "call the same operations in the same order on every member of a group, and give every receive a matching send"
            }
            HaltReason::Mismatch { .. } => {
                "call the same operation with the same sizes, dtype and root on every member of the group"
            }
            HaltReason::Groups(_) => {
                "call new_group on every rank for every group, in the same order and with the same ranks; or pass use_local_synchronization=True, with which only the members call it"
            }
            HaltReason::EndOfTime => "check for a sleep, a timeout or a rate that is wrong by orders of magnitude",
            HaltReason::Asymmetry(asymmetry) => asymmetry.hint,
        }
    }

    /// `site` finds the line of an operation whose handle alone is known.
    pub(crate) fn of(disagreement: Disagreement, site: impl Fn(RankId, Handle) -> Option<Site>) -> HaltReason {
        let Disagreement { group, first, first_call, second, what } = disagreement;
        let line = |caller: Caller| site(caller.rank, caller.handle).unwrap_or(caller.site);
        HaltReason::Mismatch {
            group,
            first: (first.rank, first.handle),
            first_call,
            first_site: line(first),
            second: (second.rank, second.handle),
            second_site: line(second),
            what,
        }
    }
}
