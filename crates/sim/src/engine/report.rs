//! Owns what is said when a run cannot go on: what every rank was doing, and what does not fit.

use crate::comm::{Caller, Disagreement};
use crate::ids::{GroupId, Handle, RankId, Site, TaskId};
use crate::network::Asymmetry;
use crate::program::{CallOp, Outcome};
use crate::time::{Bytes, SimTime};
use std::fmt;

/// Why a run cannot go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Halt {
    /// When.
    pub at: SimTime,
    /// Why.
    pub cause: Cause,
    /// Every rank, as it stood.
    pub ranks: Vec<RankReport>,
}

/// What stopped a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Nothing is left that could end the ranks' waits.
    Deadlock,
    /// Two ranks called what should be one operation in different ways.
    Mismatch {
        /// In which group.
        group: GroupId,
        /// Who called first.
        first: (RankId, Handle),
        /// What.
        first_call: CallOp,
        /// The line it did so.
        first_site: Site,
        /// Who does not agree.
        second: (RankId, Handle),
        /// The line it did so.
        second_site: Site,
        /// About what: "dtype: float32 against float64", the second rank's first.
        what: String,
    },
    /// The run's clock would pass 213 days.
    EndOfTime,
    /// Ranks that were taken to be alike are not: a folded run is of no use then.
    Asymmetry(Asymmetry),
}

/// One rank, when the run stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct RankReport {
    /// Who.
    pub rank: RankId,
    /// Its clock.
    pub clock: SimTime,
    /// Its program has ended, and how.
    pub ended: Option<Outcome>,
    /// Its threads that have not ended.
    pub tasks: Vec<TaskReport>,
}

/// One thread of a rank, when the run stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskReport {
    /// Which.
    pub task: TaskId,
    /// The line it stands on, if it is blocked.
    pub site: Option<Site>,
    /// What it is doing.
    pub doing: Doing,
}

/// What a thread is doing.
#[derive(Clone, Debug, PartialEq)]
pub enum Doing {
    /// It runs.
    Running,
    /// It waits for another thread of its process, where the engine cannot look.
    Inside,
    /// It waits for operations or other activities; those that are not complete.
    Waiting(Vec<Pending>),
    /// It waits for keys of the store.
    Store(Vec<String>),
}

/// An operation that is not complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// How its rank calls it.
    pub handle: Handle,
    /// `all_reduce`, `recv`; `compute` or `sleep`.
    pub operation: &'static str,
    /// Size of the tensor.
    pub bytes: Bytes,
    /// The group, and the members that have not entered.
    pub meeting: Option<(GroupId, Vec<RankId>)>,
    /// The line that issued it.
    pub site: Site,
    /// Of a send or receive: the peer's that would fit, had it the same tag.
    pub near: Option<Near>,
}

/// A send or receive of the peer, to this rank and in the same group, but with another tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near {
    /// The peer.
    pub rank: RankId,
    /// Whether it has sent, or receives.
    pub sends: bool,
    /// Its tag.
    pub tag: u64,
    /// The tag of what waits for it.
    pub wanted: u64,
    /// The peer's line.
    pub site: Site,
}

impl Halt {
    /// The report for people; `site` turns a line's id into `file:line`, and `inside` says where threads of a rank stand that wait for
    /// each other, if that is known.
    pub fn render(&self, site: &dyn Fn(Site) -> String, inside: &dyn Fn(RankId) -> Vec<String>) -> String {
        let mut text = match &self.cause {
            Cause::Deadlock => format!("deadlock at {}: no rank can go on\n", self.at),
            Cause::EndOfTime => format!("virtual time would pass 213 days (at {})\n", self.at),
            Cause::Asymmetry(asymmetry) => format!("ranks are not alike (at {}): {}\n", self.at, asymmetry.problem),
            Cause::Mismatch { group, first, first_call, first_site, second, second_site, what } => format!(
                "mismatch at {}: {} and {} disagree about the same {} of {group}\n  {what}\n  {} called it first, at {}\n  {} called it at {}\n",
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
    /// One line for people, with its end. `threads`: where its threads stand that wait for each other, or, of a rank that runs, where those are.
    pub fn render(&self, site: &dyn Fn(Site) -> String, threads: &[String]) -> String {
        let head = format!("  {}, clock {}: ", self.rank, self.clock);
        match self.ended {
            Some(Outcome::Crashed) => return head + "has crashed, as the cluster wanted\n",
            Some(_) => return head + "has finished\n",
            None => {}
        }
        let runs = self.tasks.iter().any(|task| task.doing == Doing::Running);
        // Of threads that run it is known that they do, or else where they stand.
        let shown = self.tasks.iter().filter(|task| threads.is_empty() || task.doing != Doing::Running);
        let (waiting, others): (Vec<_>, Vec<_>) = shown.partition(|task| task.doing == Doing::Inside);
        let describe = |task: &TaskReport| {
            let place = task.site.map_or(String::new(), |line| format!(" at {}", site(line)));
            format!("{}{place}{}", task.doing, task.doing.near(site))
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
    /// What was sent, or is received, with another tag.
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
                write!(f, ", which {noun} {} did not enter", ranks.join(", "))
            }
            count => write!(f, ", which {count} ranks did not enter, the first of them {}", missing[0]),
        }
    }
}

impl Halt {
    fn hint(&self) -> &'static str {
        let has_crashed = self.ranks.iter().any(|rank| rank.ended == Some(Outcome::Crashed));
        let is_inside = |rank: &RankReport| rank.tasks.iter().any(|task| task.doing == Doing::Inside);
        match self.cause {
            Cause::Deadlock if has_crashed => {
                "default time-outs are no events here: give init_process_group a timeout, or let ranks that hear of the crash close their groups (destroy_process_group)"
            }
            Cause::Deadlock if self.ranks.iter().any(is_inside) => {
                "look whether what threads wait for inside their process, a lock or an item of a queue, can still come"
            }
            _ => self.cause.hint(),
        }
    }
}

impl Cause {
    fn hint(&self) -> &'static str {
        match self {
            Cause::Deadlock => {
                "let every member of a group call the same operations in the same order, and every receive have its send"
            }
            Cause::Mismatch { .. } => {
                "let all members of a group call the same operation with the same sizes, dtype and root"
            }
            Cause::EndOfTime => "look for a sleep, a time-out or a rate that is off by many powers of ten",
            Cause::Asymmetry(asymmetry) => asymmetry.hint,
        }
    }

    /// `site` finds the line of an operation that only its handle is known of.
    pub(crate) fn of(disagreement: Disagreement, site: impl Fn(RankId, Handle) -> Option<Site>) -> Cause {
        let Disagreement { group, first, first_call, second, what } = disagreement;
        let line = |caller: Caller| site(caller.rank, caller.handle).unwrap_or(caller.site);
        Cause::Mismatch {
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
