//! Owns the replica check of a folded program: each replica (`replica`) must make the same requests as its
//! representative, with its own groups and peers.
//!
//! Requests that may differ are removed before the comparison: requests to the store, because the first rank of a group
//! makes other requests than the rest; clock reads and polls, of which a longer-lived rank makes more, and the
//! divisions of host work that they cause; waits for an operation with a root, because the root does not wait; and the
//! order in which groups are closed, which depends on when Python frees them. A representative may sleep where no
//! replica sleeps, because absent ranks repeat the steps of replicas.

use super::{End, FoldPlan, Moved};
use crate::device::Origin;
use crate::ids::{GroupId, Handle, RankId, Site, TaskId};
use crate::program::{Activity, Call, CallOp, Request};
use crate::replay::RecordedStep;
use crate::time::SimDuration;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Compares the steps of replicas with those of their representatives.
///
/// A differing rank at an end is judged when the ranks at the other ends have made as many steps: among all ends at
/// which ranks differ, the widest one becomes a class of its own.
#[derive(Debug)]
pub struct ReplicaCheck {
    /// For each end of the fold plan, the strides of its axes.
    ends: Vec<End>,
    heard: BTreeMap<RankId, Heard>,
    pairs: Vec<Pair>,
    /// Checksum of the values that a rank contributed to a call, by rank, task and number of the call.
    contributed: BTreeMap<(RankId, TaskId, u64), u64>,
    unlike: Option<Unlike>,
}

/// Ranks that should be equivalent and are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlike {
    /// The assumption that does not hold.
    pub due_to: DueTo,
    /// The difference, as a sentence for the user.
    pub problem: String,
}

/// The assumption of a folded run that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueTo {
    /// Neighbours along this axis of the symmetry differ.
    Axis(usize),
    /// The rank at this end of the fold plan differs.
    End(usize),
    /// A rank just before an end differs: more ranks than the last ones have a smaller part of an uneven division.
    Uneven,
    /// The program needs a rank that does not run.
    Absence,
}

impl fmt::Display for Unlike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl Unlike {
    /// The program needs a rank that does not run.
    pub fn absence(problem: impl Into<String>) -> Unlike {
        Unlike { due_to: DueTo::Absence, problem: problem.into() }
    }
}

/// A replica and its representative.
#[derive(Debug)]
struct Pair {
    representative: RankId,
    replica: RankId,
    due_to: DueTo,
    moved: Moved,
    tasks: BTreeMap<TaskId, Ahead>,
    /// For each task and each sleep of the representative, whether the replica sleeps too.
    sleeps: BTreeMap<TaskId, Vec<bool>>,
    /// Whether `sleeps` has got a new entry since the last check.
    slept: bool,
    /// Number of equal steps so far, by task.
    alike: BTreeMap<TaskId, u64>,
    /// First step that differs, for a rank at an end: its task, the number of equal steps before it, and the
    /// difference.
    differs: Option<(TaskId, u64, String)>,
}

/// Steps that one rank of a pair has made and the other has not made yet.
#[derive(Debug, Default)]
struct Ahead {
    is_replica: bool,
    steps: VecDeque<Significant>,
    /// Host work of the representative before a sleep that the replica does not make.
    host: SimDuration,
}

/// A step that must be equal, and the host work since the previous one.
#[derive(Clone, Debug, PartialEq)]
struct Significant {
    host: SimDuration,
    step: RecordedStep,
}

/// Normalized names of a rank's handles and groups.
#[derive(Debug, Default)]
struct Heard {
    /// For each recorded handle, its number among activities that must be equal; `None`: the activity may differ.
    names: Vec<Option<Handle>>,
    significant: u32,
    groups: BTreeMap<GroupId, GroupId>,
    /// Host compute since the last significant step, by task.
    host: BTreeMap<TaskId, SimDuration>,
}

impl ReplicaCheck {
    /// The check for all ranks that run.
    pub fn new(cast: &FoldPlan) -> ReplicaCheck {
        let pair = |representative: RankId, replica: RankId, due_to: DueTo| Pair {
            representative,
            replica,
            due_to,
            moved: Moved::new(cast, representative, replica),
            tasks: BTreeMap::new(),
            sleeps: BTreeMap::new(),
            slept: false,
            alike: BTreeMap::new(),
            differs: None,
        };
        let representatives = cast.running().filter(|rank| cast.representative(*rank) == *rank);
        let pairs = representatives.flat_map(|representative| {
            let replicas = cast.replicas(representative).into_iter();
            replicas.map(move |(replica, due_to)| pair(representative, replica, due_to))
        });
        let (heard, contributed) = (BTreeMap::new(), BTreeMap::new());
        ReplicaCheck { ends: cast.ends().to_vec(), heard, pairs: pairs.collect(), contributed, unlike: None }
    }

    /// Compares the next step of `task` of `rank`, which is on this line of the program.
    pub fn hear(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str) {
        let Some(significant) = self.heard.entry(rank).or_default().hear(task, step) else { return };
        let (mut unlike, mut slept) = (None, false);
        for pair in &mut self.pairs {
            if (pair.replica != rank && pair.representative != rank) || pair.differs.is_some() {
                continue;
            }
            let heard = pair.hear(rank, task, &significant);
            slept |= std::mem::take(&mut pair.slept);
            if let Some(problem) = heard {
                let at = if line.is_empty() { String::new() } else { format!(" at {line}") };
                unlike = unlike.or(pair.unlike(task, problem + &at));
            }
        }
        self.unlike = self.unlike.take().or(unlike);
        if slept && self.unlike.is_none() {
            self.unlike = self.sleeper(task);
        }
        self.judge(false);
    }

    /// Decides whether ranks at ends differ, once the end ranks of a class have made as many steps as the first one
    /// that differs, or once the run is over.
    fn judge(&mut self, is_over: bool) {
        if self.unlike.is_some() {
            return;
        }
        let first = self.pairs.iter().find_map(|pair| Some((pair.representative, pair.differs.as_ref()?)));
        let Some((representative, (task, alike, _))) = first else { return };
        let at_ends = self.pairs.iter().filter_map(|pair| match pair.due_to {
            DueTo::End(end) if pair.representative == representative => Some((end, pair)),
            _ => None,
        });
        let is_judged = |pair: &Pair| pair.differs.is_some() || pair.alike.get(task).is_some_and(|count| count > alike);
        if !is_over && !at_ends.clone().all(|(_, pair)| is_judged(pair)) {
            return;
        }
        let differ = at_ends.filter_map(|(end, pair)| Some((end, &pair.differs.as_ref()?.2)));
        // A rank at an end of several axes is also at the ends of fewer of these axes.
        let widest = differ.min_by_key(|(end, _)| self.ends[*end].len());
        self.unlike = widest.map(|(end, problem)| Unlike { due_to: DueTo::End(end), problem: problem.clone() });
    }

    /// Ends the check; returns the ranks that are not equivalent.
    pub fn conclude(&mut self) -> Option<&Unlike> {
        self.judge(true);
        self.unlike.as_ref()
    }

    /// A replica that sleeps where another replica of the same representative does not.
    fn sleeper(&self, task: TaskId) -> Option<Unlike> {
        let decided = |pair: &Pair| pair.sleeps.get(&task).cloned().unwrap_or_default();
        let differ = |one: &Pair, other: &Pair| {
            one.representative == other.representative && decided(one).iter().zip(decided(other)).any(|(a, b)| *a != b)
        };
        let pairs = self.pairs.iter().enumerate();
        let mut both = pairs.flat_map(|(place, one)| self.pairs[place + 1..].iter().map(move |other| (one, other)));
        let (one, other) = both.find(|(one, other)| differ(one, other))?;
        let problem = format!("only one of {} and {} sleeps", one.replica, other.replica);
        Some(Unlike { due_to: other.due_to, problem })
    }

    /// Compares the checksum of the values that the `call`-th call of `task` of `rank` contributes.
    pub fn contributes(&mut self, rank: RankId, task: TaskId, call: u64, sum: u64) {
        self.contributed.insert((rank, task, call), sum);
        for pair in &mut self.pairs {
            let (representative, replica) = (pair.representative, pair.replica);
            let other = match rank {
                rank if rank == replica => representative,
                rank if rank == representative => replica,
                _ => continue,
            };
            let theirs = self.contributed.get(&(other, task, call));
            if theirs.is_some_and(|theirs| *theirs != sum) && self.unlike.is_none() && pair.differs.is_none() {
                let problem = format!(
                    "{representative} and {replica} contribute different values to the operation number {} of their {task}",
                    call + 1
                );
                self.unlike = pair.unlike(task, problem);
            }
        }
        self.judge(false);
    }

    /// The first ranks that are not equivalent.
    pub fn unlike(&self) -> Option<&Unlike> {
        self.unlike.as_ref()
    }
}

impl Pair {
    /// Compares the next step of `rank`, one of the two ranks; returns the difference.
    fn hear(&mut self, rank: RankId, task: TaskId, significant: &Significant) -> Option<String> {
        let is_replica = self.replica == rank;
        let ahead = self.tasks.entry(task).or_default();
        let mut mine = significant.clone();
        if !is_replica {
            mine.step = self.moved.step(task, mine.step);
        }
        loop {
            if ahead.steps.is_empty() {
                ahead.is_replica = is_replica;
            }
            if ahead.is_replica == is_replica {
                ahead.steps.push_back(mine);
                return None;
            }
            let theirs = &mut ahead.steps[0];
            let (representatives, replicas) = if is_replica { (theirs, &mut mine) } else { (&mut mine, theirs) };
            if representatives.sleeps() {
                self.sleeps.entry(task).or_default().push(replicas.sleeps());
                self.slept = true;
            }
            let sleeps_alone = representatives.sleeps() && !replicas.sleeps();
            if sleeps_alone {
                ahead.host += representatives.host;
            } else {
                representatives.host += std::mem::take(&mut ahead.host);
            }
            if sleeps_alone && !is_replica {
                return None;
            }
            let theirs = ahead.steps.pop_front().expect("it is ahead");
            if sleeps_alone {
                continue;
            }
            if theirs == mine {
                *self.alike.entry(task).or_default() += 1;
                return None;
            }
            let other = if is_replica { self.representative } else { self.replica };
            return Some(format!("{rank} {} and {other} {}", mine.against(&theirs), theirs.against(&mine)));
        }
    }

    /// Reports a difference of the two ranks, or keeps it for later if the replica is at an end.
    fn unlike(&mut self, task: TaskId, problem: String) -> Option<Unlike> {
        if let DueTo::End(_) = self.due_to {
            let alike = self.alike.get(&task).copied().unwrap_or_default();
            self.differs = Some((task, alike, problem));
            return None;
        }
        Some(Unlike { due_to: self.due_to, problem })
    }
}

impl Heard {
    /// The step under normalized names, which equivalent ranks share; `None`: the step may differ.
    fn hear(&mut self, task: TaskId, step: &RecordedStep) -> Option<Significant> {
        let step = match step {
            RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), queue, .. })
                if queue.stream().is_none() =>
            {
                if work.origin != Origin::Measured {
                    *self.host.entry(task).or_default() += work.duration;
                }
                self.names.push(None);
                return None;
            }
            RecordedStep::Request(Request::Issue { activity: Activity::Close(_), .. }) => {
                self.names.push(None);
                return None;
            }
            RecordedStep::Request(Request::Issue { activity, queue, after, .. }) => {
                let (mut activity, after) = (activity.clone(), self.known(after));
                let name = Handle(self.significant);
                let sleeps = matches!(activity, Activity::Sleep(_));
                self.names.push((!sleeps && !has_root(&activity)).then_some(name));
                self.significant += u32::from(!sleeps);
                match &mut activity {
                    Activity::Call(Call { group, .. }) | Activity::Abort(group) => {
                        *group = self.groups.get(group).copied().unwrap_or(*group);
                    }
                    Activity::Compute(work) if work.origin == Origin::Measured => work.duration = SimDuration::ZERO,
                    _ => {}
                }
                Request::Issue { activity, queue: *queue, after, site: Site(0) }.into()
            }
            RecordedStep::Request(Request::Wait { handles, any, timeout: None, .. }) => {
                let known = self.known(handles);
                if known.is_empty() {
                    return None;
                }
                Request::Wait { handles: known, any: *any, timeout: None, site: Site(0) }.into()
            }
            RecordedStep::Named(group) => {
                let next = GroupId::from(self.groups.len());
                RecordedStep::Named(*self.groups.entry(*group).or_insert(next))
            }
            RecordedStep::Request(Request::Elapsed { from, to, .. }) => {
                Request::Elapsed { from: *from, to: *to, site: Site(0) }.into()
            }
            RecordedStep::Request(Request::JoinGroup { .. } | Request::Exit(_)) => step.clone(),
            RecordedStep::Request(
                Request::Now
                | Request::Look
                | Request::Store { .. }
                | Request::NameGroup { .. }
                | Request::Pause { .. }
                | Request::Wait { timeout: Some(_), .. },
            )
            | RecordedStep::After { .. }
            | RecordedStep::Follows { .. }
            | RecordedStep::Operators { .. }
            | RecordedStep::HandlesInOrder => return None,
        };
        Some(Significant { host: self.host.remove(&task).unwrap_or_default(), step })
    }

    fn known(&self, handles: &[Handle]) -> Vec<Handle> {
        handles.iter().filter_map(|handle| self.names.get(handle.index()).copied().flatten()).collect()
    }
}

fn has_root(activity: &Activity) -> bool {
    matches!(activity, Activity::Call(Call { op: CallOp::Collective(collective), .. }) if collective.root.is_some())
}

impl Significant {
    fn sleeps(&self) -> bool {
        matches!(&self.step, RecordedStep::Request(Request::Issue { activity: Activity::Sleep(_), .. }))
    }

    /// Description of the part of this step that differs from `other`.
    fn against(&self, other: &Significant) -> String {
        if self.step == other.step {
            return format!("computes for {} on the host before it", self.host);
        }
        match &self.step {
            RecordedStep::Request(Request::JoinGroup { ranks, .. }) => {
                let shown: Vec<String> = ranks.iter().take(8).map(|rank| rank.0.to_string()).collect();
                let more = if ranks.len() > shown.len() { ", ..." } else { "" };
                format!("is in a group of {} ranks ({}{more})", ranks.len(), shown.join(", "))
            }
            RecordedStep::Request(Request::Issue { activity, .. }) => match activity {
                Activity::Call(Call { op, group }) => match op {
                    CallOp::Collective(collective) => {
                        let (kind, dtype) = (collective.kind, collective.dtype.name());
                        format!("calls {kind} of {:?} {dtype} in its {group}", collective.shape)
                    }
                    CallOp::Send { to, bytes, .. } => format!("sends {} B to {to} of its {group}", bytes.0),
                    CallOp::Recv { from: Some(from), bytes, .. } => {
                        format!("receives {} B from {from} of its {group}", bytes.0)
                    }
                    CallOp::Recv { from: None, bytes, .. } => format!("receives {} B in its {group}", bytes.0),
                    CallOp::Write { to, bytes } => format!("writes {} B to {to} of its {group}", bytes.0),
                },
                Activity::Compute(work) => {
                    format!("runs {} on its device for {}", work.name.as_deref().unwrap_or("work"), work.duration)
                }
                Activity::Sleep(span) => format!("sleeps for {span}"),
                Activity::Abort(group) => format!("aborts its {group}"),
                _ => "does something else".to_owned(),
            },
            RecordedStep::Request(Request::Wait { .. }) => "waits".to_owned(),
            RecordedStep::Request(Request::Exit(_)) => "ends".to_owned(),
            _ => "does something else".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{axes, ends};
    use super::*;
    use crate::device::Work;
    use crate::ids::{GroupRank, QueueId};
    use crate::program::{Collective, CollectiveKind, DType, Outcome, Shape, StoreOp};
    use crate::symmetry::Symmetry;

    fn check() -> ReplicaCheck {
        ReplicaCheck::new(&FoldPlan::new(Symmetry::new(axes(4, 2), 4).unwrap(), 4, ends(4, 2), Vec::new()))
    }

    fn issue(activity: Activity) -> RecordedStep {
        Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site: Site(9) }.into()
    }

    fn all_reduce(group: u32, elements: u64) -> RecordedStep {
        let kind = CollectiveKind::AllReduce;
        let shape = Shape::Even(elements);
        let collective = Collective { kind, dtype: DType::Float32, reduce: None, root: None, shape, kernel: None };
        issue(Activity::Call(Call { group: GroupId(group), op: CallOp::Collective(collective) }))
    }

    fn host(us: u64) -> RecordedStep {
        issue(Activity::Compute(Work::new(SimDuration::from_us(us), Origin::Roofline)))
    }

    fn wait(handle: u32) -> RecordedStep {
        Request::Wait { handles: vec![Handle(handle)], any: false, timeout: None, site: Site(3) }.into()
    }

    fn join(ranks: [u32; 2]) -> RecordedStep {
        Request::JoinGroup {
            ranks: ranks.map(RankId).into_iter().collect(),
            sequence: 0,
            settings: None,
            rendezvous: false,
        }
        .into()
    }

    fn hear(check: &mut ReplicaCheck, rank: u32, steps: &[RecordedStep]) {
        for step in steps {
            check.hear(RankId(rank), TaskId(0), step, "train.py:7");
        }
    }

    /// Rank 0 uses the store and reads the clock, and its slices are cut at other places; rank 1's group is the other
    /// one of the mesh.
    #[test]
    fn what_only_one_asks_of_the_store_and_the_clock_is_left_out() {
        let mut check = check();
        let set =
            Request::Store { operation: StoreOp::Set { key: vec![], value: vec![] }, timeout: None, site: Site(0) };
        let names = [join([0, 2]), RecordedStep::Named(GroupId(7))];
        hear(&mut check, 0, &names);
        hear(&mut check, 0, &[host(1), wait(0), set.into(), host(2), wait(1), Request::Look.into()]);
        let poll = Request::Wait {
            handles: vec![Handle(2)],
            any: false,
            timeout: Some(SimDuration::from_us(1)),
            site: Site(0),
        };
        hear(&mut check, 0, &[all_reduce(7, 5), poll.into(), wait(2), Request::Exit(Outcome::Ok).into()]);
        hear(&mut check, 1, &[join([1, 3]), RecordedStep::Named(GroupId(1)), host(3), wait(0)]);
        hear(&mut check, 1, &[all_reduce(1, 5), wait(1), Request::Exit(Outcome::Ok).into()]);
        assert_eq!(check.unlike(), None);
    }

    /// Rank 0 has the data that it sends to all; rank 1 waits for it.
    #[test]
    fn the_root_of_an_operation_need_not_wait_for_it() {
        let mut check = check();
        let broadcast = |group| {
            let shape = Shape::Even(8);
            let root = Some(GroupRank(0));
            let collective = Collective {
                kind: CollectiveKind::Broadcast,
                dtype: DType::Float32,
                reduce: None,
                root,
                shape,
                kernel: None,
            };
            issue(Activity::Call(Call { group: GroupId(group), op: CallOp::Collective(collective) }))
        };
        hear(&mut check, 0, &[join([0, 1]), RecordedStep::Named(GroupId(4)), broadcast(4), all_reduce(4, 5)]);
        hear(&mut check, 0, &[wait(1), Request::Exit(Outcome::Ok).into()]);
        hear(&mut check, 1, &[join([0, 1]), RecordedStep::Named(GroupId(4)), broadcast(4), wait(0)]);
        hear(&mut check, 1, &[all_reduce(4, 5), wait(1), Request::Exit(Outcome::Ok).into()]);
        assert_eq!(check.unlike(), None);
    }

    fn sleep(seconds: u64) -> RecordedStep {
        issue(Activity::Sleep(SimDuration::from_us(seconds * 1_000_000)))
    }

    /// Four running ranks, of which those in `sleeps` sleep for two seconds between two of their slices; `first` is the
    /// rank whose steps the check receives first.
    fn heard_sleeping(sleeps: &[u32], first: u32) -> ReplicaCheck {
        let mut check = check();
        let mut ranks: Vec<u32> = (0..4).collect();
        ranks.rotate_left(first as usize);
        for rank in ranks {
            let group =
                [join([rank & !1, rank | 1]), RecordedStep::Named(GroupId(0)), host(1), all_reduce(0, 5), host(2)];
            hear(&mut check, rank, &group);
            let slept = u32::from(sleeps.contains(&rank));
            if slept == 1 {
                hear(&mut check, rank, &[sleep(2), wait(3)]);
            }
            hear(&mut check, rank, &[host(3), all_reduce(0, 6), wait(4 + slept), Request::Exit(Outcome::Ok).into()]);
        }
        check
    }

    #[test]
    fn a_representative_may_sleep_where_no_witness_does() {
        for first in 0..4 {
            assert_eq!(heard_sleeping(&[0], first).unlike(), None, "rank {first} first");
            assert_eq!(heard_sleeping(&[0, 1, 2, 3], first).unlike(), None);
            for sleepers in [&[1][..], &[2], &[0, 1], &[1, 2]] {
                let unlike = heard_sleeping(sleepers, first).unlike().expect("a replica sleeps").to_string();
                assert!(unlike.contains("sleeps"), "{unlike}");
            }
        }
    }

    #[test]
    fn a_witness_that_deviates_names_its_axis() {
        for (steps, expected) in [
            (vec![host(3), all_reduce(1, 6)], "calls all_reduce of Even(6) float32"),
            (vec![host(4), all_reduce(1, 5)], "computes for 4.000 us on the host"),
            (vec![host(3), wait(0), Request::Exit(Outcome::Ok).into()], "ends"),
        ] {
            let mut check = check();
            hear(&mut check, 0, &[join([0, 1]), RecordedStep::Named(GroupId(1)), host(3), all_reduce(1, 5)]);
            hear(&mut check, 2, &[join([2, 3]), RecordedStep::Named(GroupId(1))]);
            assert_eq!(check.unlike(), None);
            hear(&mut check, 2, &steps);
            let unlike = check.unlike().expect("it is not alike");
            assert_eq!(unlike.due_to, DueTo::Axis(1), "{unlike}");
            assert!(unlike.problem.starts_with("rank 2 ") && unlike.problem.ends_with(" at train.py:7"), "{unlike}");
            assert!(unlike.problem.contains(expected), "{unlike}");
        }
    }

    #[test]
    fn groups_that_are_not_each_others_images_are_not_alike() {
        let mut check = check();
        hear(&mut check, 0, &[join([0, 1])]);
        hear(&mut check, 1, &[join([1, 2])]);
        assert_eq!(check.unlike().map(|unlike| unlike.due_to), Some(DueTo::Axis(0)));
    }

    #[test]
    fn contributed_values_must_agree() {
        let mut check = check();
        let task = TaskId(0);
        check.contributes(RankId(0), task, 0, 17);
        check.contributes(RankId(1), task, 1, 4);
        check.contributes(RankId(1), task, 0, 17);
        assert_eq!(check.unlike(), None);
        check.contributes(RankId(0), task, 1, 5);
        let unlike = check.unlike().expect("4 is not 5");
        assert_eq!(unlike.due_to, DueTo::Axis(0));
        assert!(unlike.problem.contains("operation number 2"), "{unlike}");
    }

    /// Ranks 0 and 3 differ along both axes: it is unknown which axis is the cause.
    #[test]
    fn the_farthest_rank_blames_no_axis() {
        let mut check = check();
        check.contributes(RankId(0), TaskId(0), 0, 1);
        check.contributes(RankId(3), TaskId(0), 0, 2);
        assert_eq!(check.unlike().map(|unlike| unlike.due_to), Some(DueTo::End(2)));
    }

    /// 16 ranks, 4 per machine. The check receives the steps of the last rank of all before those of the first rank of
    /// the last machine; rank 3, the last of its machine, equals rank 0 unless it is in `less`.
    fn uneven(less: &[u32]) -> ReplicaCheck {
        let symmetry = Symmetry::new(axes(16, 4), 16).unwrap();
        let mut check = ReplicaCheck::new(&FoldPlan::new(symmetry, 16, ends(16, 4), Vec::new()));
        for rank in [0, 15, 3, 12] {
            assert_eq!(check.unlike(), None, "before rank {rank}");
            let elements = if less.contains(&rank) { 4 } else { 5 };
            let all = (0..16).map(RankId).collect();
            let group = [
                Request::JoinGroup { ranks: all, sequence: 0, settings: None, rendezvous: false }.into(),
                RecordedStep::Named(GroupId(0)),
            ];
            hear(&mut check, rank, &group);
            hear(&mut check, rank, &[all_reduce(0, elements)]);
        }
        check
    }

    #[test]
    fn of_ends_that_differ_the_widest_is_named() {
        for (less, end) in [(&[15, 12][..], 1), (&[15, 3], 0), (&[15], 2)] {
            let unlike = uneven(less).unlike().expect("all have got as far").to_string();
            let due_to = uneven(less).unlike().unwrap().due_to;
            assert_eq!(due_to, DueTo::End(end), "{unlike}");
            assert!(unlike.contains("calls all_reduce of Even(4) float32"), "{unlike}");
        }
        assert_eq!(uneven(&[]).conclude(), None);
    }

    /// The other ranks at ends make fewer steps than rank 15, which differs.
    #[test]
    fn what_was_not_judged_is_judged_when_all_is_over() {
        let symmetry = Symmetry::new(axes(16, 4), 16).unwrap();
        let mut check = ReplicaCheck::new(&FoldPlan::new(symmetry, 16, ends(16, 4), Vec::new()));
        check.contributes(RankId(0), TaskId(0), 0, 1);
        check.contributes(RankId(15), TaskId(0), 0, 2);
        assert_eq!(check.unlike(), None);
        assert_eq!(check.conclude().map(|unlike| unlike.due_to), Some(DueTo::End(2)));
    }
}
