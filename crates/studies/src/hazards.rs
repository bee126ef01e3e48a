//! Owns hazards: events other than data on which a program's control flow depended, such as clocks, timeouts, polls,
//! and the order of operations. It listens to a replay, whose requests are the recorded program's, even if the program
//! would have made other requests on this cluster.
//!
//! `uniference chakra export` and `uniference replay` warn of the hazards.

use std::collections::BTreeMap;
use std::fmt;
use uniference_sim::engine::Resumption;
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::{RankId, Site, TaskId};
use uniference_sim::program::{Activity, Call, CallOp, POLL_COST, Reply, Request, StoreOp, StoreValue};
use uniference_sim::replay::Listener;
use uniference_sim::time::{SimDuration, SimTime};

/// An event on which a program's control flow depended: on another cluster the program might have followed another
/// branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hazard {
    /// The program polled whether an operation was complete.
    Poll,
    /// The program read the clock.
    Clock,
    /// The program read the time between two events of its device.
    EventTime,
    /// A receive accepted any sender's message, whichever was first.
    AnySource,
    /// A timeout passed.
    TimeOut,
    /// The program waited for any of several operations, whichever was first.
    AnyOf,
    /// The program read the store without waiting.
    StoreLook,
    /// The store gave another answer than in another run.
    StoreAnswer,
}

impl Hazard {
    /// Whether a hazard without a line is a library's own: torch's process groups count arrivals in the store, and
    /// torch's allocator and NCCL's watchdog poll.
    fn is_of_libraries(self) -> bool {
        matches!(self, Hazard::Poll | Hazard::StoreLook | Hazard::StoreAnswer)
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hazard::Poll => "polled an operation for completion",
            Hazard::Clock => "read the clock",
            Hazard::EventTime => "read the time between two events of its device",
            Hazard::AnySource => "received from any source",
            Hazard::TimeOut => "reached a timeout",
            Hazard::AnyOf => "waited for any one of several operations",
            Hazard::StoreLook => "read the store without waiting",
            Hazard::StoreAnswer => "got an answer of the store that depends on the order of requests",
        })
    }
}

/// A hazard, and the place of its first occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The kind of hazard.
    pub hazard: Hazard,
    /// Number of occurrences on all ranks together.
    pub count: u64,
    /// The rank of the first occurrence.
    pub rank: RankId,
    /// The line of the program of the first occurrence; empty if it is unknown.
    pub line: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warning { hazard, count, rank, line } = self;
        // A clock read does not say its line: the thread's last known line is of an earlier call.
        let (at, doubt) = match hazard {
            Hazard::Clock => (
                "after",
                "if the program's control flow depends on it, run the program again (libraries read the clock too: DistributedDataParallel times its steps)",
            ),
            _ => ("at", "on another cluster the program could take another path"),
        };
        let place = if line.is_empty() { String::new() } else { format!(" {at} {line}") };
        let more = if *count > 1 { format!(" (and {} times more)", count - 1) } else { String::new() };
        write!(f, "{rank} {hazard}{place}{more}: {doubt}")
    }
}

/// Listens to a replay for hazards.
#[derive(Clone, Debug, Default)]
pub struct Hazards {
    threads: BTreeMap<(RankId, TaskId), Thread>,
    /// Occurrences by hazard and line.
    found: BTreeMap<(Hazard, Option<Site>), Occurrences>,
    /// Whether a thread waited with a timeout that did not pass.
    met_time_outs: bool,
}

/// The number of times that a hazard occurred at a line, and the rank at which it occurred first.
#[derive(Clone, Copy, Debug)]
struct Occurrences {
    count: u64,
    rank: RankId,
    /// The number of pairs of hazard and line that were found before this one.
    order: usize,
}

/// A thread's last request, and the answers that the store has given it.
#[derive(Clone, Debug, Default)]
struct Thread {
    asked: Pending,
    /// The thread's last known line.
    site: Option<Site>,
    told: Vec<(Option<Site>, StoreValue)>,
}

/// The part of a request that its hazards depend on.
#[derive(Clone, Debug, Default)]
enum Pending {
    #[default]
    Nothing,
    Clock,
    EventTime,
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
    /// Hazards of the program, one warning per kind, with the line of the first occurrence.
    pub fn warnings(&self, lines: &[String]) -> Vec<Warning> {
        let mut warnings: BTreeMap<Hazard, (usize, Warning)> = BTreeMap::new();
        for ((hazard, site), found) in &self.found {
            let line = line_of(*site, lines);
            if hazard.is_of_libraries() && line.is_empty() {
                continue;
            }
            let Occurrences { count, rank, order } = *found;
            let met = Warning { hazard: *hazard, count, rank, line };
            match warnings.get_mut(hazard) {
                None => drop(warnings.insert(*hazard, (order, met))),
                Some((first, known)) if order < *first => {
                    let count = known.count + count;
                    (*first, *known) = (order, Warning { count, ..met });
                }
                Some((_, known)) => known.count += count,
            }
        }
        warnings.into_values().map(|(_, warning)| warning).collect()
    }

    /// Whether another replay may give the program, or a library that it uses, other answers.
    pub fn any(&self, lines: &[String]) -> bool {
        self.found.keys().any(|(hazard, site)| *hazard != Hazard::StoreAnswer || !line_of(*site, lines).is_empty())
    }

    /// Whether another replay of the same record, on another cluster, might find more hazards; then [`Hazards::merge`]
    /// that replay's.
    pub fn depend_on_time(&self) -> bool {
        self.met_time_outs || !self.found.is_empty() || self.threads.values().any(|thread| !thread.told.is_empty())
    }

    /// Adds the hazards that another replay of the same record has met more often, and the store's answers that differ
    /// between the two.
    pub fn merge(&mut self, other: &Hazards) {
        for (at, found) in &other.found {
            let order = self.found.len();
            let mine = self.found.entry(*at).or_insert(Occurrences { order, ..*found });
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
        let order = self.found.len();
        self.found.entry((hazard, site)).or_insert(Occurrences { count: 0, rank, order }).count += 1;
    }
}

fn line_of(site: Option<Site>, lines: &[String]) -> String {
    site.and_then(|site| lines.get(site.index()).cloned()).unwrap_or_default()
}

impl Observer for Hazards {
    fn record(&mut self, _: SimTime, _: &Event<'_>) {}
}

impl Listener for Hazards {
    fn asked(&mut self, rank: RankId, task: TaskId, request: &Request) {
        let thread = self.threads.entry((rank, task)).or_default();
        thread.site = request.site().or(thread.site);
        thread.asked = match request {
            Request::Now | Request::Look => Pending::Clock,
            Request::Elapsed { .. } => Pending::EventTime,
            Request::Wait { handles, any, timeout, .. } => {
                Pending::Wait { any: *any && handles.len() > 1, timeout: *timeout }
            }
            Request::Store { operation, timeout, .. } => Pending::Store { looks: looks(operation), timeout: *timeout },
            Request::Issue { activity: Activity::Call(Call { op: CallOp::Recv { from: None, .. }, .. }), .. } => {
                Pending::AnySource
            }
            _ => Pending::Nothing,
        };
    }

    fn resumed(&mut self, Resumption { rank, task, reply, .. }: &Resumption) {
        let Some(thread) = self.threads.get_mut(&(*rank, *task)) else { return };
        let (asked, site) = (std::mem::take(&mut thread.asked), thread.site);
        let found = match (asked, reply) {
            (Pending::Clock, _) => [Some(Hazard::Clock), None],
            (Pending::EventTime, _) => [Some(Hazard::EventTime), None],
            (Pending::AnySource, _) => [Some(Hazard::AnySource), None],
            (Pending::Wait { timeout, .. } | Pending::Store { timeout, .. }, Reply::TimedOut) => {
                [Some(if timeout == Some(POLL_COST) { Hazard::Poll } else { Hazard::TimeOut }), None]
            }
            (Pending::Wait { any, timeout }, _) => {
                let polls = timeout == Some(POLL_COST);
                self.met_time_outs |= timeout.is_some() && !polls;
                [any.then_some(Hazard::AnyOf), polls.then_some(Hazard::Poll)]
            }
            (Pending::Store { looks, timeout }, Reply::Store(value)) => {
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

fn looks(operation: &StoreOp) -> bool {
    use StoreOp::{Check, Count, List, QueueLength, QueuePop};
    matches!(operation, Check { .. } | Count { .. } | List { .. } | QueueLength { .. } | QueuePop { block: false, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use uniference_formats::cluster::{Choices, ClusterFile};
    use uniference_sim::engine::{Engine, RunEnd};
    use uniference_sim::ids::{GroupId, GroupRank, Handle, QueueId};
    use uniference_sim::program::{Origin, Outcome, Work};
    use uniference_sim::replay::replay_heard;
    use uniference_sim::time::Bytes;

    const RANKS: u32 = 4;

    fn issue(activity: Activity, line: u32) -> Request {
        Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(line) }
    }

    fn message(op: CallOp, line: u32) -> Request {
        issue(Activity::Call(Call { group: GroupId(0), op }), line)
    }

    fn wait(handle: u32, timeout: Option<SimDuration>, line: u32) -> Request {
        Request::Wait { handles: vec![Handle(handle)], any: false, timeout, site: Site(line) }
    }

    /// The warnings of a replay of these requests; line `n` of the program is `a.py:n`.
    fn warnings(requests: impl Fn(u32) -> Vec<Request>) -> Vec<String> {
        let toml = "[[device]]\nname = \"a\"\ncount = 4\n[network]\nlatency = \"3 us\"\n";
        let cluster = ClusterFile::parse("test", toml, &[]).unwrap().resolve(&Choices::default()).unwrap().cluster;
        let world: Arc<[RankId]> = (0..RANKS).map(RankId).collect();
        let script = |rank| {
            let join = Request::JoinGroup { ranks: Arc::clone(&world), sequence: 0, settings: None, rendezvous: false };
            let whole = [vec![join], requests(rank), vec![Request::Exit(Outcome::Ok)]].concat();
            whole.into_iter().map(|request| (TaskId(0), request.into()))
        };
        let mut hazards = Hazards::default();
        let replayed = replay_heard(&mut Engine::new(&cluster), (0..RANKS).map(script).collect(), &mut hazards);
        assert!(matches!(replayed, RunEnd::Finished), "{replayed:?}");
        let lines: Vec<String> = (0..4).map(|line| format!("a.py:{line}")).collect();
        hazards.warnings(&lines).iter().map(Warning::to_string).collect()
    }

    #[test]
    fn what_the_program_hung_on_is_named_with_rank_and_line() {
        let found = warnings(|rank| {
            let mut requests = vec![Request::Now, Request::Now];
            match rank {
                2 => requests.extend([
                    message(CallOp::Recv { from: None, tag: 0, bytes: Bytes(8) }, 1),
                    wait(0, Some(SimDuration::from_ps(1_000)), 2),
                    wait(0, None, 3),
                ]),
                3 => requests.extend([
                    issue(Activity::Compute(Work::new(SimDuration::from_us(9), Origin::Recorded)), 0),
                    wait(0, None, 0),
                    message(CallOp::Send { to: GroupRank(2), tag: 0, bytes: Bytes(8) }, 1),
                    wait(1, None, 2),
                ]),
                _ => {}
            }
            requests
        });
        insta::assert_snapshot!(found.join("\n"));
    }

    /// Line 4 is unknown, as for a request of a library.
    #[test]
    fn polls_of_libraries_are_not_told_of_and_yet_say_that_times_matter() {
        let poll = |line| {
            let sleeps = issue(Activity::Sleep(SimDuration::from_us(9)), 1);
            vec![sleeps, wait(0, Some(POLL_COST), line), wait(0, None, 1)]
        };
        assert_eq!(warnings(|rank| if rank == 1 { poll(4) } else { Vec::new() }), Vec::<String>::new());
        let told = warnings(|rank| if rank == 1 { [poll(4), poll(2)].concat() } else { Vec::new() });
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("rank 1 polled an operation for completion at a.py:2: "), "{told:?}");
        let mut hazards = Hazards::default();
        hazards.add(Hazard::Poll, RankId(1), Some(Site(4)));
        assert!(hazards.any(&[]) && hazards.warnings(&[]).is_empty());
        hazards = Hazards::default();
        hazards.add(Hazard::StoreAnswer, RankId(1), Some(Site(4)));
        assert!(!hazards.any(&[]));
    }

    #[test]
    fn a_program_that_its_data_alone_decides_gives_no_warning() {
        let found = warnings(|rank| match rank {
            0 => vec![message(CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(8) }, 1), wait(0, None, 2)],
            1 => vec![message(CallOp::Recv { from: Some(GroupRank(0)), tag: 0, bytes: Bytes(8) }, 1), wait(0, None, 2)],
            _ => Vec::new(),
        });
        assert_eq!(found, Vec::<String>::new());
    }
}
