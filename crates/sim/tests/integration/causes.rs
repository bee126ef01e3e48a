//! Causes of events: from the end of each rank's program, causes lead back to the beginning, and the spans between them
//! leave no gap.

use crate::support::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_sim::cluster::{Cluster, Handshake, Protocol};
use uniference_sim::collective::choose::algorithm_by_name;
use uniference_sim::engine::{Engine, RunEnd, drive};
use uniference_sim::event::{Cause, Elapsed, Event, MessageWay, Observer, Why};
use uniference_sim::ids::{Handle, MessageId, QueueId, RankId, Site, TaskId};
use uniference_sim::program::CollectiveKind::{self, AllGather, AllReduce, Barrier, Broadcast};
use uniference_sim::program::{Activity, Mark, Origin, Outcome, Program, ProgramError, Reply, Request, StoreOp, Work};
use uniference_sim::time::{Bytes, SimDuration, SimTime};

/// A completed activity.
struct Activities {
    why: Why,
    start: SimTime,
    end: SimTime,
    ended_by: Cause,
}

/// A message that has arrived.
struct Arrival {
    way: MessageWay,
    queued: SimTime,
    started: SimTime,
    sent: SimTime,
    at: SimTime,
}

/// Events with their causes.
#[derive(Default)]
struct Causes {
    activities: BTreeMap<(RankId, Handle), Activities>,
    messages: BTreeMap<MessageId, Arrival>,
    /// Waits of tasks by their end: start, and cause of the end.
    blocked: BTreeMap<(RankId, TaskId, SimTime), (SimTime, Cause)>,
    finishes: Vec<(RankId, SimTime, Cause)>,
}

impl Observer for Causes {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        let mut activity = |rank: RankId, why: Why, start: SimTime, ended_by: Cause| {
            let before = self.activities.insert((rank, why.handle), Activities { why, start, end: at, ended_by });
            assert!(before.is_none(), "{rank}: {} ends twice", why.handle);
        };
        match *event {
            Event::Computed { rank, start, why, .. } => activity(rank, why, start, Cause::Time),
            Event::Marked { rank, why, .. } => activity(rank, why, at, Cause::Time),
            Event::Completed { rank, started, why, cause, .. } => activity(rank, why, started, cause),
            Event::Elapsed { rank, start, why: Some(why), cause, .. } => activity(rank, why, start, cause),
            Event::Elapsed { rank, task, start, why: None, what, cause } => {
                assert_eq!(what, Elapsed::Poll);
                self.blocked.insert((rank, task, at), (start, cause));
            }
            Event::Waited { rank, task, start, cause, .. } => {
                self.blocked.insert((rank, task, at), (start, cause));
            }
            Event::Message { way, queued, started, sent, .. } => {
                self.messages.insert(way.id, Arrival { way, queued, started, sent, at });
            }
            Event::Finished { rank, cause, .. } => self.finishes.push((rank, at, cause)),
            Event::Issued { .. } | Event::Failed { .. } | Event::Used { .. } => {}
        }
    }

    fn wants_messages(&self) -> bool {
        true
    }
}

/// Moment whose cause is to be found.
#[derive(Clone, Copy, Debug)]
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

impl Causes {
    /// The spans from the end of a rank's program back to the beginning, the last first. Each span ends where the later
    /// one begins, which is asserted at each step.
    fn walk(&self, rank: RankId, finish: SimTime, cause: Cause) -> Vec<(SimTime, SimTime)> {
        let (mut now, mut at, mut spans) = (finish, At::Caused(rank, cause), Vec::new());
        for _ in 0..1_000_000 {
            let from = |start: SimTime, spans: &mut Vec<(SimTime, SimTime)>| {
                assert!(start <= now, "{at:?}: {start} is after {now}");
                if start < now {
                    spans.push((start, now));
                }
                start
            };
            (now, at) = match at {
                At::Ran(..) if now == SimTime::ZERO => return spans,
                At::Ran(rank, task) => {
                    let Some((start, cause)) = self.blocked.get(&(rank, task, now)) else {
                        panic!("{rank} {task}: nobody knows why it runs at {now}")
                    };
                    match cause {
                        Cause::Time => (from(*start, &mut spans), At::Ran(rank, task)),
                        cause => (now, At::Caused(rank, *cause)),
                    }
                }
                At::Complete(rank, handle) => {
                    let activity = &self.activities[&(rank, handle)];
                    assert_eq!(activity.end, now, "{rank}: {handle}");
                    match activity.ended_by {
                        Cause::Time => (from(activity.start, &mut spans), At::Began(rank, handle)),
                        cause => (now, At::Caused(rank, cause)),
                    }
                }
                At::Began(rank, handle) => {
                    let Activities { why, start, .. } = &self.activities[&(rank, handle)];
                    assert_eq!(*start, now, "{rank}: {handle}");
                    (now, At::Caused(rank, why.cause))
                }
                At::Caused(rank, cause) => match cause {
                    Cause::Task(task) => (now, At::Ran(rank, task)),
                    Cause::Activity(handle) => (now, At::Complete(rank, handle)),
                    Cause::Begun(handle) => {
                        (from(self.activities[&(rank, handle)].start, &mut spans), At::Began(rank, handle))
                    }
                    Cause::Sent(id) => (from(self.messages[&id].sent, &mut spans), At::Caused(rank, Cause::Sent(id))),
                    Cause::Arrived(id) => {
                        (from(self.messages[&id].at, &mut spans), At::Caused(rank, Cause::Arrived(id)))
                    }
                    Cause::Stored(by, task) => (now, At::Ran(by, task)),
                    Cause::StoredBy(by, handle) => (now, At::Began(by, handle)),
                    Cause::Unknown | Cause::Time | Cause::Closed(_) | Cause::Crash => {
                        panic!("{rank}: {cause:?} explains nothing at {now}")
                    }
                },
            };
            // For a message, the walk goes from its arrival, or from the departure of its last byte, back to the cause
            // of its departure.
            if let At::Caused(_, Cause::Sent(id) | Cause::Arrived(id)) = at {
                let Arrival { way, queued, started, sent, .. } = &self.messages[&id];
                for start in [*sent, *started, way.released, way.begun] {
                    assert!(start <= now, "{id}: {start} is after {now}");
                    if start < now {
                        spans.push((start, now));
                    }
                    now = start;
                }
                assert!(way.released >= *queued);
                if let Some(behind) = way.behind.filter(|_| *started > way.released) {
                    assert!(self.messages[&behind].sent <= *started, "{id} overtakes {behind}");
                }
                at = At::Caused(way.by, way.cause);
            }
        }
        panic!("{rank}: causes go round in a circle");
    }
}

/// Steps of all ranks of a random job, one after the other in this order, so that no rank waits for ever.
#[derive(Clone, Debug)]
enum Part {
    Compute { rank: u32, queue: u32, ps: u64, waits: bool },
    Sleep { rank: u32, ps: u64 },
    Mark { rank: u32 },
    Reach { rank: u32, queue: u32, waits: bool },
    Poll { rank: u32 },
    TimeOut { rank: u32, ps: u64 },
    Collective { kind: CollectiveKind, elements: u64, waits: bool },
    Message { from: u32, to: u32, bytes: u64, waits: bool },
    Store { from: u32, to: u32, activity: bool },
    WaitAll,
}

const RANKS: u32 = 3;

fn part() -> impl Strategy<Value = Part> {
    let (rank, ps) = (0..RANKS, prop_oneof![1 => Just(0), 6 => 0..20_000_000_u64]);
    let kind = prop::sample::select(vec![AllReduce, AllGather, Broadcast, Barrier]);
    let pair = (0..RANKS, 1..RANKS).prop_map(|(from, by)| (from, (from + by) % RANKS));
    prop_oneof![
        3 => (rank.clone(), 0..3_u32, ps.clone(), any::<bool>())
            .prop_map(|(rank, queue, ps, waits)| Part::Compute { rank, queue, ps, waits }),
        1 => (rank.clone(), ps.clone()).prop_map(|(rank, ps)| Part::Sleep { rank, ps }),
        1 => rank.clone().prop_map(|rank| Part::Mark { rank }),
        1 => (rank.clone(), 0..3_u32, any::<bool>())
            .prop_map(|(rank, queue, waits)| Part::Reach { rank, queue, waits }),
        1 => rank.clone().prop_map(|rank| Part::Poll { rank }),
        1 => (rank, 1..9_000_000_u64).prop_map(|(rank, ps)| Part::TimeOut { rank, ps }),
        4 => (kind, 0..3_000_u64, any::<bool>())
            .prop_map(|(kind, elements, waits)| Part::Collective { kind, elements, waits }),
        4 => (pair.clone(), 0..5_000_u64, any::<bool>())
            .prop_map(|((from, to), bytes, waits)| Part::Message { from, to, bytes, waits }),
        1 => (pair, any::<bool>()).prop_map(|((from, to), activity)| Part::Store { from, to, activity }),
        1 => Just(Part::WaitAll),
    ]
}

/// The requests of each rank.
fn scripts(parts: &[Part]) -> Vec<Vec<Request>> {
    let mut scripts: Vec<Vec<Request>> = vec![Vec::new(); RANKS as usize];
    let mut handles: Vec<u32> = vec![0; RANKS as usize];
    let mut open: Vec<Vec<Handle>> = vec![Vec::new(); RANKS as usize];
    let wait_for = |handles: Vec<Handle>, timeout| Request::Wait { handles, any: false, timeout, site: Site(0) };
    let mut ask =
        |scripts: &mut Vec<Vec<Request>>, open: &mut Vec<Vec<Handle>>, rank: u32, request: Request, waits: bool| {
            let handle = Handle(handles[rank as usize]);
            handles[rank as usize] += 1;
            scripts[rank as usize].push(request);
            match waits {
                true => scripts[rank as usize].push(wait_for(vec![handle], None)),
                false => open[rank as usize].push(handle),
            }
        };
    let all_ranks = || 0..RANKS;
    for (number, part) in parts.iter().enumerate() {
        let key = number.to_string().into_bytes();
        match part.clone() {
            Part::Compute { rank, queue, ps, waits } => {
                let work = Work::new(SimDuration::from_ps(ps), Origin::Recorded);
                let after = open[rank as usize].last().copied().into_iter().collect();
                let activity = Activity::Compute(work);
                let request = Request::Issue { activity, queue: QueueId(queue), after, site: Site(1) };
                ask(&mut scripts, &mut open, rank, request, waits);
            }
            Part::Sleep { rank, ps } => {
                ask(&mut scripts, &mut open, rank, issue(Activity::Sleep(SimDuration::from_ps(ps))), true);
            }
            Part::Mark { rank } => ask(&mut scripts, &mut open, rank, issue(Activity::Mark(Mark::End)), false),
            Part::Reach { rank, queue, waits } => {
                let after = open[rank as usize].last().copied().into_iter().collect();
                let activity = Activity::Reach(0);
                let request = Request::Issue { activity, queue: QueueId(queue), after, site: Site(1) };
                ask(&mut scripts, &mut open, rank, request, waits);
            }
            Part::Poll { rank } => scripts[rank as usize].push(Request::Look),
            Part::TimeOut { rank, ps } => {
                let timeout = Some(SimDuration::from_ps(ps));
                scripts[rank as usize].push(wait_for(open[rank as usize].clone(), timeout));
            }
            Part::Collective { kind, elements, waits } => {
                all_ranks().for_each(|rank| ask(&mut scripts, &mut open, rank, collective(kind, elements), waits));
            }
            Part::Message { from, to, bytes, waits } => {
                ask(&mut scripts, &mut open, from, send(to, 0, bytes), waits);
                ask(&mut scripts, &mut open, to, recv(Some(from), 0, bytes), waits);
            }
            Part::Store { from, to, activity } => {
                let (set, get) = (StoreOp::Set { key: key.clone(), value: vec![] }, StoreOp::Get { key });
                let request = |operation| Request::Store { operation, timeout: None, site: Site(0) };
                match activity {
                    true => {
                        ask(&mut scripts, &mut open, from, issue(Activity::Store(set)), false);
                        ask(&mut scripts, &mut open, to, issue(Activity::Store(get)), true);
                    }
                    false => {
                        scripts[from as usize].push(request(set));
                        scripts[to as usize].push(request(get));
                    }
                }
            }
            Part::WaitAll => {
                for rank in all_ranks() {
                    scripts[rank as usize].push(wait_for(open[rank as usize].clone(), None));
                }
            }
        }
    }
    for (script, open) in scripts.iter_mut().zip(open) {
        script.push(wait_for(open, None));
    }
    scripts
}

/// Libraries of all kinds: without a protocol, without a handshake, with a handshake by the receiver, and with one that
/// the sender starts.
fn protocols() -> [Protocol; 4] {
    let busy = busy();
    let handshake = |eager| Some(Handshake { control: Bytes(16), preamble: Bytes(40), eager });
    [
        Protocol::default(),
        busy.clone(),
        Protocol { handshake: handshake(None), connections_per_group: true, ..busy.clone() },
        Protocol { handshake: handshake(Some(Bytes(800))), ..busy },
    ]
}

fn observed(cluster: &Cluster, scripts: Vec<Vec<Request>>) -> Causes {
    struct Requests(std::vec::IntoIter<Request>);
    impl Program for Requests {
        fn resume(&mut self, _: SimTime, _: TaskId, _: Reply) -> Result<Request, ProgramError> {
            Ok(self.0.next().unwrap_or(Request::Exit(Outcome::Ok)))
        }
    }
    let world: Arc<[RankId]> = (0..scripts.len()).map(RankId::from).collect();
    let mut programs: Vec<Box<dyn Program>> = Vec::new();
    for script in scripts {
        let mut requests =
            vec![Request::JoinGroup { ranks: world.clone(), sequence: 0, settings: None, rendezvous: false }];
        requests.extend(script);
        programs.push(Box::new(Requests(requests.into_iter())));
    }
    let mut causes = Causes::default();
    let ended = drive(&mut Engine::new(cluster), &mut programs, &mut causes);
    assert!(matches!(ended, RunEnd::Finished), "{ended:?}");
    causes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn causes_lead_from_every_finish_to_the_beginning_without_a_gap(
        parts in prop::collection::vec(part(), 1..40),
        protocol in 0..4_usize,
        algorithm in prop::sample::select(vec!["ring", "recursive_doubling", "gloo_ring", "hierarchical"]),
        concurrency in 1..3_u32,
        free in prop::collection::btree_set(prop::sample::select(vec!["all_reduce", "broadcast", "send"]), 0..3),
    ) {
        let mut cluster = switch(RANKS as usize);
        cluster.backend.free.operations = free;
        cluster.backend.protocol = protocols()[protocol].clone();
        cluster.backend.concurrency = concurrency;
        cluster.backend.algorithms.force(AllReduce, algorithm_by_name(AllReduce, algorithm).unwrap());
        let causes = observed(&cluster, scripts(&parts));
        prop_assert_eq!(causes.finishes.len(), RANKS as usize);
        for (rank, finish, cause) in &causes.finishes {
            let spans = causes.walk(*rank, *finish, *cause);
            // The spans tile [0, finish]: each ends where the previously found one begins.
            let ends = std::iter::once(*finish).chain(spans.iter().map(|(start, _)| *start));
            prop_assert!(spans.iter().map(|(_, end)| *end).eq(ends.clone().take(spans.len())));
            prop_assert_eq!(ends.last(), Some(SimTime::ZERO));
        }
    }
}

#[test]
fn a_message_behind_another_one_says_so() {
    // Two messages on one stream, 1 us and 2 us long: the second one leaves once the first one has left.
    let cluster = switch(2);
    let sender = vec![send(1, 0, 1_000), send(1, 0, 2_000), wait(1)];
    let receiver = vec![recv(Some(0), 0, 1_000), recv(Some(0), 0, 2_000), wait(1)];
    let causes = observed(&cluster, vec![sender, receiver]);
    let [first, second] = [0, 1].map(|id| &causes.messages[&MessageId(id)]);
    assert_eq!((second.way.behind, second.way.operation, second.way.step), (Some(MessageId(0)), Handle(1), None));
    assert_eq!((second.started, second.way.released), (first.sent, SimTime::ZERO));
    assert_eq!(causes.activities[&(RankId(1), Handle(1))].ended_by, Cause::Arrived(MessageId(1)));
    assert_eq!(causes.activities[&(RankId(0), Handle(1))].ended_by, Cause::Sent(MessageId(1)));
}
