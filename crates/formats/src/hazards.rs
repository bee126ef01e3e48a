//! Owns what a program's way hung on besides its data: clocks, time-outs, polls, whoever was first. It listens to a replay, whose requests are
//! the recorded program's, whatever it would have asked for elsewhere.
//!
//! What is done about it is the listener's caller's business: [`crate::chakra::export`] and `uniference replay` warn.

use std::collections::BTreeMap;
use std::fmt;
use uniference_sim::engine::Resumption;
use uniference_sim::ids::{RankId, Site, TaskId};
use uniference_sim::program::{Activity, Call, CallOp, POLL_COST, Reply, Request, StoreOp, StoreValue};
use uniference_sim::record::{Event, Listener, Observer};
use uniference_sim::time::{SimDuration, SimTime};

/// What a program's way hung on: on another cluster it might have gone another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hazard {
    /// It asked whether an operation was complete.
    Poll,
    /// It read the clock.
    Clock,
    /// A receive took whichever message was first.
    AnySource,
    /// A time-out passed.
    TimeOut,
    /// It waited for whichever operation was first.
    AnyOf,
    /// It looked into the store without waiting.
    StoreLook,
    /// The store answered something else than in another run.
    StoreAnswer,
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hazard::Poll => "asked whether an operation was complete",
            Hazard::Clock => "read the clock",
            Hazard::AnySource => "received from whichever rank was first",
            Hazard::TimeOut => "saw a time-out pass",
            Hazard::AnyOf => "waited for whichever operation was first",
            Hazard::StoreLook => "looked into the store without waiting",
            Hazard::StoreAnswer => "was told by the store what depends on who came first",
        })
    }
}

/// A hazard, and where it was met first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What.
    pub hazard: Hazard,
    /// How often, all ranks together.
    pub count: u64,
    /// By whom first.
    pub rank: RankId,
    /// In which line of the program; empty if that is not known.
    pub line: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warning { hazard, count, rank, line } = self;
        // A clock read does not say its line: the one that was last known is of a call before it.
        let (at, doubt) = match hazard {
            Hazard::Clock => (
                "after",
                "if its way depends on that, run the program again (libraries read the clock too: DistributedDataParallel times its steps)",
            ),
            _ => ("at", "on another cluster its program might have gone another way"),
        };
        let place = if line.is_empty() { String::new() } else { format!(" {at} {line}") };
        let more = if *count > 1 { format!(" (and {} times more)", count - 1) } else { String::new() };
        write!(f, "{rank} {hazard}{place}{more}: {doubt}")
    }
}

/// Listens to a replay for hazards.
#[derive(Debug, Default)]
pub struct Hazards {
    threads: BTreeMap<(RankId, TaskId), Thread>,
    found: BTreeMap<Hazard, Found>,
    /// Somebody waited with a time-out that did not pass.
    met_time_outs: bool,
}

/// Where a hazard was met first, and how often.
#[derive(Clone, Copy, Debug)]
struct Found {
    count: u64,
    rank: RankId,
    site: Option<Site>,
}

/// What a thread has asked for last, and what the store has told it.
#[derive(Debug, Default)]
struct Thread {
    asked: Asked,
    /// The last line that it was seen on.
    site: Option<Site>,
    told: Vec<(Option<Site>, StoreValue)>,
}

/// As much of a request as its hazards need.
#[derive(Debug, Default)]
enum Asked {
    #[default]
    Nothing,
    Clock,
    AnySource,
    Wait {
        any: bool,
        timeout: Option<SimDuration>,
    },
    Store {
        looks: bool,
        timeout: Option<SimDuration>,
    },
}

impl Hazards {
    /// Hazards by kind, with the lines of the program.
    pub fn warnings(&self, lines: &[String]) -> Vec<Warning> {
        let line = |site: Option<Site>| site.and_then(|site| lines.get(site.index()).cloned()).unwrap_or_default();
        let warning = |(hazard, found): (&Hazard, &Found)| {
            let Found { count, rank, site } = *found;
            Warning { hazard: *hazard, count, rank, line: line(site) }
        };
        // Without a line it is a library's own, which counts who has come so far: torch's process groups meet like that.
        let of_the_program = |warning: &Warning| warning.hazard != Hazard::StoreAnswer || !warning.line.is_empty();
        self.found.iter().map(warning).filter(of_the_program).collect()
    }

    /// Might another replay of the same record, on another cluster, know more? Then [`Hazards::merge`] it.
    pub fn depend_on_time(&self) -> bool {
        self.met_time_outs || !self.found.is_empty() || self.threads.values().any(|thread| !thread.told.is_empty())
    }

    /// Adds what another replay of the same record has met more often, and where the store told the two different things.
    pub fn merge(&mut self, other: &Hazards) {
        for (hazard, found) in &other.found {
            let mine = self.found.entry(*hazard).or_insert(*found);
            mine.count = mine.count.max(found.count);
        }
        let mut differences = Vec::new();
        for ((rank, task), thread) in &self.threads {
            let Some(theirs) = other.threads.get(&(*rank, *task)) else { continue };
            let pairs = thread.told.iter().zip(&theirs.told).filter(|((_, mine), (_, their))| mine != their);
            differences.extend(pairs.map(|((site, _), _)| (*rank, *site)));
        }
        differences.into_iter().for_each(|(rank, site)| self.add(Hazard::StoreAnswer, rank, site));
    }

    fn add(&mut self, hazard: Hazard, rank: RankId, site: Option<Site>) {
        self.found.entry(hazard).or_insert(Found { count: 0, rank, site }).count += 1;
    }
}

impl Observer for Hazards {
    fn record(&mut self, _: SimTime, _: &Event<'_>) {}
}

impl Listener for Hazards {
    fn asked(&mut self, rank: RankId, task: TaskId, request: &Request) {
        let thread = self.threads.entry((rank, task)).or_default();
        thread.site = site(request).or(thread.site);
        thread.asked = match request {
            Request::Now => Asked::Clock,
            Request::Wait { handles, any, timeout, .. } => {
                Asked::Wait { any: *any && handles.len() > 1, timeout: *timeout }
            }
            Request::Store { operation, timeout, .. } => Asked::Store { looks: looks(operation), timeout: *timeout },
            Request::Issue { activity: Activity::Call(Call { op: CallOp::Recv { from: None, .. }, .. }), .. } => {
                Asked::AnySource
            }
            _ => Asked::Nothing,
        };
    }

    fn resumed(&mut self, Resumption { rank, task, reply, .. }: &Resumption) {
        let Some(thread) = self.threads.get_mut(&(*rank, *task)) else { return };
        let (asked, site) = (std::mem::take(&mut thread.asked), thread.site);
        let found = match (asked, reply) {
            (Asked::Clock, _) => [Some(Hazard::Clock), None],
            (Asked::AnySource, _) => [Some(Hazard::AnySource), None],
            (Asked::Wait { timeout, .. } | Asked::Store { timeout, .. }, Reply::TimedOut) => {
                [Some(if timeout == Some(POLL_COST) { Hazard::Poll } else { Hazard::TimeOut }), None]
            }
            (Asked::Wait { any, timeout }, _) => {
                let polls = timeout == Some(POLL_COST);
                self.met_time_outs |= timeout.is_some() && !polls;
                [any.then_some(Hazard::AnyOf), polls.then_some(Hazard::Poll)]
            }
            (Asked::Store { looks, timeout }, Reply::Store(value)) => {
                self.met_time_outs |= timeout.is_some();
                thread.told.push((site, value.clone()));
                [looks.then_some(Hazard::StoreLook), None]
            }
            _ => [None, None],
        };
        found.into_iter().flatten().for_each(|hazard| self.add(hazard, *rank, site));
    }

    fn opened(&mut self, _: RankId, _: TaskId, _: TaskId) {}
}

/// The line that a request comes from, if it says so.
pub(crate) fn site(request: &Request) -> Option<Site> {
    match request {
        Request::Issue { site, .. }
        | Request::Wait { site, .. }
        | Request::Store { site, .. }
        | Request::Pause { site, .. } => Some(*site),
        Request::Now | Request::JoinGroup { .. } | Request::Exit(_) | Request::After { .. } => None,
    }
}

fn looks(operation: &StoreOp) -> bool {
    use StoreOp::{Check, Count, List, QueueLength, QueuePop};
    matches!(operation, Check { .. } | Count { .. } | List { .. } | QueueLength { .. } | QueuePop { block: false, .. })
}
