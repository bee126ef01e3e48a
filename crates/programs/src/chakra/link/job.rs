//! Owns relations between the ranks of a job: the numbers of ranks, the matching of their operations, the offsets of
//! their clocks, and the replicas that replace unrecorded ranks.

use super::comm::{Comm, CommKind, GroupName};
use super::iterations::{self, Window};
use super::matching::{self, Matching};
use super::nodes::{self, Call, Group};
use super::profile::{Event, Profile};
use super::timeline::{self, ItemKind, RankFiles, Timeline};
use super::{HostTrace, Job, LinkError, Linked, Options, RankRecording};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use uniference_formats::chakra::schema::CommType;
use uniference_formats::units::counted;
use uniference_sim::program::DType;

/// Maximum number of ranks: larger numbers are mistakes.
const MOST_RANKS: u32 = 1 << 17;

struct RankPart {
    rank: u32,
    window: Window,
    profile: Profile,
    host: Option<(HostTrace, Matching)>,
    timeline: Timeline,
    groups: Vec<Group>,
    calls: FxHashMap<u32, Call>,
}

/// Links recordings; see [`super::link`].
pub(super) fn link(ranks: Vec<RankRecording>, options: &Options) -> Result<Job, LinkError> {
    let mut notes = Vec::new();
    let numbered = number(ranks, &mut notes)?;
    let profiles: Vec<&Profile> = numbered.iter().map(|(_, rank)| &rank.profile).collect();
    let windows = iterations::choose(&profiles, options.iteration, &mut notes)?;
    let mut parts = Vec::new();
    for ((rank, given), window) in numbered.into_iter().zip(windows) {
        parts.push(RankPart::new(rank, given, window, options, &mut notes)?);
    }
    let world = world(&mut parts, &mut notes);
    for part in &mut parts {
        part.find_groups(world, options, &mut notes)?;
    }
    check_missing(&mut parts, world, &mut notes)?;
    bring_together(&mut parts, options, &mut notes)?;
    let shifts = align_clocks(&parts, &mut notes);
    let mut dropped = Vec::new();
    let mut linked: BTreeMap<u32, Linked> = BTreeMap::new();
    for (part, shift_ns) in parts.iter().zip(shifts) {
        let (calls, groups) = (&part.calls, &part.groups[..]);
        let rank = nodes::LinkedRank {
            rank: part.rank,
            recording: part.recording(),
            timeline: &part.timeline,
            calls,
            groups,
            shift_ns,
        };
        linked.insert(part.rank, nodes::write(&rank, options.repair, &mut dropped)?);
    }
    notes.extend(dropped.into_iter().map(|edge| format!("dropped to break a cycle: {edge}")));
    let first = parts.first().map_or(0, |part| part.rank);
    let ranks = (0..world).map(|rank| linked.get(&rank).unwrap_or(&linked[&first]).clone()).collect();
    Ok(Job { ranks, notes })
}

/// Numbers the recordings by the ranks in the profiles, else by those in the files' names, else in the given order.
fn number(ranks: Vec<RankRecording>, notes: &mut Vec<String>) -> Result<Vec<(u32, RankRecording)>, LinkError> {
    let distinct = |numbers: &[Option<u32>]| {
        let known: BTreeSet<u32> = numbers.iter().flatten().copied().filter(|rank| *rank < MOST_RANKS).collect();
        known.len() == ranks.len()
    };
    let said: Vec<Option<u32>> = ranks.iter().map(|rank| rank.profile.rank()).collect();
    let named: Vec<Option<u32>> = ranks.iter().map(|rank| rank.named).collect();
    // Recordings of several steps, or files that were given twice, are ambiguous.
    let mut seen: BTreeMap<u32, &str> = BTreeMap::new();
    for (rank, given) in said.iter().zip(&ranks).filter_map(|(said, given)| Some(((*said)?, given))) {
        if let Some(other) = seen.insert(rank, &given.file) {
            let problem = format!("{other} and {} both have rank {rank}", given.file);
            return Err(LinkError::Files { problem });
        }
    }
    let numbers: Vec<u32> = match (distinct(&said), distinct(&named)) {
        _ if ranks.is_empty() => return Err(LinkError::Files { problem: "no profile given".to_owned() }),
        (true, _) => said.into_iter().flatten().collect(),
        (false, _) if ranks.len() == 1 => vec![0],
        (false, true) => {
            notes.push("the profiles contain no ranks; using the ranks in their file names".to_owned());
            named.into_iter().flatten().collect()
        }
        (false, false) => {
            let listed: Vec<String> =
                (0..).zip(&ranks).map(|(rank, given): (u32, _)| format!("{rank}: {}", given.file)).collect();
            notes.push(format!("the files contain no ranks; numbering them in the given order: {}", listed.join(", ")));
            (0..ranks.len() as u32).collect()
        }
    };
    let mut numbered: Vec<(u32, RankRecording)> = numbers.into_iter().zip(ranks).collect();
    numbered.sort_by_key(|(rank, _)| *rank);
    Ok(numbered)
}

/// Number of ranks of the job. Without communication, it is the number of recordings.
fn world(parts: &mut [RankPart], notes: &mut Vec<String>) -> u32 {
    let communicates =
        |part: &RankPart| part.timeline.items.iter().any(|item| matches!(item.what, ItemKind::Communication(..)));
    if !parts.iter().any(communicates) {
        let given: Vec<String> = parts.iter().map(|part| part.rank.to_string()).collect();
        let in_order = (0..).zip(&mut *parts).filter(|(place, part)| part.rank != *place);
        if in_order.map(|(place, part)| part.rank = place).count() > 0 {
            notes.push(format!(
                "the recordings contain no communication; ranks {} are renumbered from 0",
                given.join(", ")
            ));
        }
        return parts.len() as u32;
    }
    let said = parts.iter().filter_map(|part| part.profile.distributed.world_size).max().unwrap_or(0);
    let highest = parts.iter().map(|part| part.rank + 1).max().unwrap_or(1);
    let listed = |part: &RankPart| -> Option<u32> {
        let of_comm = part.timeline.items.iter().filter_map(|item| match &item.what {
            ItemKind::Communication(_, comm) => comm.ranks.as_ref()?.iter().max().copied(),
            _ => None,
        });
        let of_profile = part.profile.distributed.pg_config.iter().flat_map(|group| group.ranks.iter().copied());
        let of_host = part.host.iter().flat_map(|(host, _)| &host.groups).flat_map(|group| group.ranks.iter().copied());
        of_comm.chain(of_profile).chain(of_host).max().map(|rank| rank.saturating_add(1))
    };
    let listed = parts.iter().filter_map(listed).max().unwrap_or(0);
    [said, highest, listed].into_iter().filter(|ranks| *ranks <= MOST_RANKS).max().unwrap_or(1)
}

impl RankPart {
    fn new(
        rank: u32,
        given: RankRecording,
        window: Window,
        options: &Options,
        notes: &mut Vec<String>,
    ) -> Result<RankPart, LinkError> {
        let RankRecording { profile, mut host, .. } = given;
        if let Some(host) = &mut host {
            repair_host(rank, host, options, notes)?;
        }
        let host = host.map(|host| {
            let matching = matching::pair(&host, &profile, &window);
            (host, matching)
        });
        if let Some((_, matching)) = &host {
            let (matched, operators) = (matching.operator.len(), matching.of_host.max(matching.of_profile));
            if matching.share() < 0.9 && !options.allow_mismatch {
                return Err(LinkError::Mismatch { rank, matched, operators });
            }
            let percent = 100.0 * matching.share();
            notes.push(format!(
                "rank {rank}: {matched} of {operators} operators match between profile and host trace ({percent:.1} %)"
            ));
        }
        let recording = RankFiles {
            profile: &profile,
            host: host.as_ref().map(|(host, matching)| (host, matching)),
            window: &window,
        };
        let timeline = timeline::take_apart(recording);
        if timeline.items.is_empty() {
            return Err(LinkError::Empty { rank });
        }
        if profile.paired > 0 {
            notes.push(format!(
                "rank {rank}: {} no `correlation`; paired with the launches of the same operator (`External id`), or in order",
                if profile.paired == 1 { "1 kernel has".to_owned() } else { format!("{} kernels have", profile.paired) }
            ));
        }
        let communicates =
            |item: &timeline::Item| matches!(item.what, ItemKind::Communication(..) | ItemKind::Unknown(..));
        let issues = |event: &&Event| {
            window.contains(event.start_ns)
                && ["c10d::", "nccl:"].iter().any(|prefix| profile.name(event).starts_with(prefix))
        };
        let issued = profile.events.iter().filter(issues).count();
        if issued > 0 && !timeline.items.iter().any(communicates) {
            notes.push(format!(
                "rank {rank}: {} issued communication, but no kernel of NCCL and no span of Gloo carried it out; it is left out (record with ProfilerActivity.CUDA to have the kernels)",
                counted(issued, "`c10d::` or `nccl:` span")
            ));
        }
        let Timeline { kernels, launched, .. } = timeline;
        if launched < kernels {
            notes.push(format!(
                "rank {rank}: {} of {kernels} kernels have no launch in the profile",
                kernels - launched
            ));
        }
        let part = RankPart { rank, window, profile, host, timeline, groups: Vec::new(), calls: FxHashMap::default() };
        part.refuse_unknown(options, notes)?;
        Ok(part)
    }

    fn recording(&self) -> RankFiles<'_> {
        let host = self.host.as_ref().map(|(host, matching)| (host, matching));
        RankFiles { profile: &self.profile, host, window: &self.window }
    }

    fn refuse_unknown(&self, options: &Options, notes: &mut Vec<String>) -> Result<(), LinkError> {
        let unknown = || {
            self.timeline.items.iter().filter_map(|item| match item.what {
                ItemKind::Unknown(event, problem) => Some((event, problem)),
                _ => None,
            })
        };
        let Some((event, problem)) = unknown().next() else { return Ok(()) };
        let (rank, count) = (self.rank, unknown().count());
        if !options.allow_unknown {
            let kernel = self.profile.name(&self.profile.events[event as usize]).to_owned();
            return Err(LinkError::Unknown { rank, count, problem: problem.to_owned(), kernel });
        }
        notes.push(format!(
            "rank {rank}: {count} NCCL kernels are treated as compute of their recorded duration: {problem}"
        ));
        Ok(())
    }

    /// Turns communication into calls in groups with known ranks.
    fn find_groups(&mut self, world: u32, options: &Options, notes: &mut Vec<String>) -> Result<(), LinkError> {
        let addresses: BTreeSet<u64> = self
            .communication()
            .filter_map(|(_, comm)| match comm.group {
                Some(GroupName::Address(address)) => Some(address),
                _ => None,
            })
            .collect();
        let nameless = self.communication().any(|(_, comm)| comm.group.is_none());
        let described = self.host.as_ref().map_or(0, |(host, _)| host.groups.len());
        if nameless && described > 1 {
            let problem = format!("rank {}: the process group of some operations is unknown", self.rank);
            notes.push(format!("{problem}; assuming the group of all ranks"));
        }
        let mut problems: Vec<(u32, String)> = Vec::new();
        let mut calls = FxHashMap::default();
        let mut groups: Vec<Group> = Vec::new();
        for (item, comm) in self.communication() {
            let found = match &comm.group {
                Some(GroupName::Address(_)) if addresses.len() > 1 => {
                    Err("process groups have no names, only addresses".to_owned())
                }
                Some(GroupName::Text(name)) => self.ranks_of(name, comm, world),
                Some(GroupName::Address(_)) | None => Ok(Group { name: None, ranks: (0..world).collect() }),
            };
            let peer = |group: &Group| match comm.kind {
                CommKind::Collective(CommType::Broadcast | CommType::Reduce | CommType::Gather | CommType::Scatter)
                | CommKind::Send
                | CommKind::Recv => {
                    let place = comm.peer.and_then(|peer| usize::try_from(peer).ok());
                    place
                        .map(|place| group.ranks.get(place).copied().ok_or(format!("rank {place} is not in its group")))
                        .transpose()
                }
                CommKind::Collective(_) => Ok(None),
            };
            let found = found.and_then(|group| {
                let peer = peer(&group)?;
                let message = matches!(comm.kind, CommKind::Send | CommKind::Recv);
                if message && peer.is_none() {
                    Err("the peer rank of a message is unknown".to_owned())
                } else {
                    Ok((group, peer))
                }
            });
            match found {
                Err(problem) => problems.push((item, problem)),
                Ok((group, peer)) => {
                    let group = groups.iter().position(|known| *known == group).unwrap_or_else(|| {
                        groups.push(group);
                        groups.len() - 1
                    });
                    let fits = comm.in_split.len() == groups[group].ranks.len();
                    let split = |list: &Vec<u64>| if fits { list.clone() } else { Vec::new() };
                    let (in_split, out_split) = (split(&comm.in_split), split(&comm.out_split));
                    let Comm { kind, bytes, dtype, tag, .. } = *comm;
                    calls.insert(
                        item,
                        Call { kind, group, bytes, dtype, in_split, out_split, peer, tag, recorded_ns: 0 },
                    );
                }
            }
        }
        if let Some((item, problem)) = problems.first() {
            let (rank, count) = (self.rank, problems.len());
            if !options.allow_unknown {
                let kernel = self.name_of(*item);
                return Err(LinkError::Unknown { rank, count, problem: problem.clone(), kernel });
            }
            notes.push(format!(
                "rank {rank}: {count} operations are treated as compute of their recorded duration: {problem}"
            ));
        }
        (self.calls, self.groups) = (calls, groups);
        Ok(())
    }

    fn communication(&self) -> impl Iterator<Item = (u32, &Comm)> {
        (0..).zip(&self.timeline.items).filter_map(|(at, item)| match &item.what {
            ItemKind::Communication(_, comm) => Some((at, &**comm)),
            _ => None,
        })
    }

    fn name_of(&self, item: u32) -> String {
        match self.timeline.items[item as usize].what {
            ItemKind::Communication(event, _) | ItemKind::Kernel(event) | ItemKind::Unknown(event, _) => {
                self.profile.name(&self.profile.events[event as usize]).to_owned()
            }
            ItemKind::Host { .. } => String::new(),
        }
    }

    /// The ranks of a named group: from the operation itself, the profile, or the host trace.
    fn ranks_of(&self, name: &str, comm: &Comm, world: u32) -> Result<Group, String> {
        let config = self.profile.distributed.pg_config.iter().find(|group| group.pg_name.0 == name);
        let described = self.host.as_ref().and_then(|(host, _)| host.groups.iter().find(|group| group.name == name));
        let ranks = comm.ranks.clone().filter(|ranks| !ranks.is_empty());
        let ranks = ranks.or_else(|| config.map(|config| config.ranks.clone()).filter(|ranks| !ranks.is_empty()));
        let ranks = ranks.or_else(|| described.map(|group| group.ranks.clone()));
        let ranks = ranks.ok_or_else(|| format!("the ranks of process group `{name}` are unknown"))?;
        // Host traces leave the list empty if the group has all ranks.
        let ranks = if ranks.is_empty() { (0..world).collect() } else { ranks };
        let distinct: BTreeSet<u32> = ranks.iter().copied().collect();
        let fits =
            distinct.len() == ranks.len() && distinct.contains(&self.rank) && distinct.iter().all(|rank| *rank < world);
        if !fits {
            return Err(format!(
                "process group `{name}` does not contain rank {}, or has ranks outside the job ({})",
                self.rank,
                counted(world, "rank")
            ));
        }
        let plain = |character: char| {
            if character.is_ascii_alphanumeric() || "_-.:".contains(character) { character } else { '_' }
        };
        Ok(Group { name: Some(name.chars().map(plain).collect()), ranks })
    }
}

/// Drops, or refuses, cycles of parents in a host trace.
fn repair_host(rank: u32, host: &mut HostTrace, options: &Options, notes: &mut Vec<String>) -> Result<(), LinkError> {
    for edge in host.circles() {
        if !options.repair {
            let problem = format!("in the host trace, the parent of {}, {} `{}`,", edge.node.0, edge.on.0, edge.on.1);
            return Err(LinkError::Circle { rank, problem });
        }
        let operator = host.operators.iter_mut().find(|operator| operator.id == edge.node.0);
        operator.expect("it is in a circle").parent = None;
        notes.push(format!("rank {rank}: dropped to break a cycle of the host trace: the parent of {edge}"));
    }
    Ok(())
}

/// Checks that unrecorded ranks can be replicas of the first one: this requires that all ranks communicate only in
/// collectives of all ranks.
fn check_missing(parts: &mut [RankPart], world: u32, notes: &mut Vec<String>) -> Result<(), LinkError> {
    let given = parts.len();
    if given == world as usize {
        return Ok(());
    }
    let problem = |part: &RankPart| {
        let call = |call: &Call| {
            let ranks = part.groups[call.group].ranks.len();
            match call.kind {
                CommKind::Send | CommKind::Recv => Some("they communicate point to point".to_owned()),
                CommKind::Collective(_) if ranks < world as usize => {
                    Some("they use process groups of a subset of the ranks".to_owned())
                }
                CommKind::Collective(_) => None,
            }
        };
        // The map has no order: the minimum makes the choice among several problems deterministic.
        part.calls.values().filter_map(call).min()
    };
    if let Some(problem) = parts.iter().find_map(problem) {
        return Err(LinkError::Missing { world, given, problem });
    }
    let mut evened = 0;
    for call in parts.iter_mut().flat_map(|part| part.calls.values_mut()) {
        evened += usize::from(!call.in_split.is_empty());
        (call.in_split, call.out_split) = (Vec::new(), Vec::new());
    }
    let first = parts[0].rank;
    notes.push(format!(
        "the job has {world} ranks; those without a recording ({}) are assumed to behave like rank {first}",
        world as usize - given
    ));
    if evened > 0 {
        notes.push(format!(
            "{evened} all-to-alls with unequal blocks are assumed to have equal blocks, because not all ranks are recorded"
        ));
    }
    Ok(())
}

/// For each part (one recording), the items in the order in which the rank issued them.
type CallOrder = (usize, Vec<u32>);
/// The items that belong to one operation: for each part, its item.
type MatchedCalls = Vec<(usize, u32)>;

/// Matches calls of different ranks that are one operation, and determines the duration of each operation after all
/// ranks had entered it: the shortest recorded duration, which is that of the rank that entered last.
fn bring_together(parts: &mut [RankPart], options: &Options, notes: &mut Vec<String>) -> Result<(), LinkError> {
    let mut strangers: BTreeSet<(usize, u32)> = BTreeSet::new();
    let (mut problem, mut uneven) = (None, 0);
    for (members, lines) in lines(parts) {
        let longest = lines.iter().map(|(_, line)| line.len()).max().unwrap_or(0);
        for at in 0..longest {
            let there: MatchedCalls = lines.iter().filter_map(|(part, line)| Some((*part, *line.get(at)?))).collect();
            let call = |(part, item): &(usize, u32)| &parts[*part].calls[item];
            let said = |part: &(usize, u32)| {
                let call = call(part);
                format!("{:?} of {} bytes on rank {}", call.kind, call.bytes, parts[part.0].rank)
            };
            let odd = there.iter().find(|other| !is_one(call(&there[0]), call(other)));
            if there.len() < lines.len() || odd.is_some() {
                problem.get_or_insert_with(|| match odd {
                    Some(odd) => format!("operation {at} of {members} is {}, but {}", said(&there[0]), said(odd)),
                    None => {
                        format!("operation {at} of {members}, {}, is not recorded on all of its ranks", said(&there[0]))
                    }
                });
                // Operations after a mismatch cannot be matched either.
                strangers.extend(lines.iter().flat_map(|(part, line)| line.iter().skip(at).map(|item| (*part, *item))));
                break;
            }
            let length = |(part, item): &(usize, u32)| {
                let item = &parts[*part].timeline.items[*item as usize];
                (item.end_ns - item.start_ns).max(0) as u64
            };
            let recorded_ns = there.iter().map(length).min().unwrap_or(0);
            let all: Vec<u64> = there.iter().map(|part| call(part).bytes).collect();
            let mean = (all.iter().map(|bytes| u128::from(*bytes)).sum::<u128>() / all.len() as u128) as u64;
            let differ =
                all.iter().any(|bytes| *bytes != all[0]) && there.iter().any(|part| call(part).in_split.is_empty());
            uneven += usize::from(differ);
            let split = there.iter().any(|part| !call(part).in_split.is_empty());
            for (part, item) in there {
                let ranks = parts[part].groups[parts[part].calls[&item].group].ranks.len() as u64;
                let call = parts[part].calls.get_mut(&item).expect("it is a call");
                call.recorded_ns = recorded_ns;
                if differ && call.kind == CommKind::Collective(CommType::AllToAll) {
                    call.bytes = mean;
                    (call.in_split, call.out_split) = (Vec::new(), Vec::new());
                } else if split && call.in_split.is_empty() {
                    // Equal blocks of one rank match the blocks of others only if they are given as splits.
                    let block = call.bytes / call.dtype.map_or(1, DType::size) / ranks.max(1);
                    (call.in_split, call.out_split) = (vec![block; ranks as usize], vec![block; ranks as usize]);
                }
            }
        }
    }
    if let Some(problem) = problem {
        if !options.allow_mismatch {
            return Err(LinkError::Ranks { problem });
        }
        notes.push(format!(
            "{} operations have no counterpart and are treated as compute of their recorded duration: {problem}",
            strangers.len()
        ));
    }
    if uneven > 0 {
        notes.push(format!("{uneven} all-to-alls have different sizes on different ranks and no recorded split sizes; assuming equal blocks"));
    }
    for (part, item) in strangers {
        parts[part].calls.remove(&item);
    }
    Ok(())
}

/// Calls that are matched in order: the collectives of a group, or the messages from one rank to another; for each part
/// in the order in which the rank issued them.
fn lines(parts: &[RankPart]) -> Vec<(String, Vec<CallOrder>)> {
    type Key = (Group, Option<(u32, u32, u64)>);
    let mut lines: BTreeMap<Key, BTreeMap<usize, Vec<u32>>> = BTreeMap::new();
    let given: BTreeMap<u32, usize> = parts.iter().enumerate().map(|(at, part)| (part.rank, at)).collect();
    for (at, part) in parts.iter().enumerate() {
        let mut items: Vec<u32> = part.calls.keys().copied().collect();
        items.sort_unstable_by_key(|item| (part.timeline.items[*item as usize].issued_ns, *item));
        for item in items {
            let call = &part.calls[&item];
            let group = part.groups[call.group].clone();
            let message = match (call.kind, call.peer) {
                (CommKind::Send, Some(to)) => Some((part.rank, to, call.tag)),
                (CommKind::Recv, Some(from)) => Some((from, part.rank, call.tag)),
                _ => None,
            };
            lines.entry((group, message)).or_default().entry(at).or_default().push(item);
        }
    }
    let with_all = |((group, message), mut line): (Key, BTreeMap<usize, Vec<u32>>)| {
        let members: Vec<u32> = message.map_or(group.ranks, |(from, to, _)| vec![from, to]);
        for part in members.iter().filter_map(|rank| given.get(rank)) {
            line.entry(*part).or_default();
        }
        let name = match (message, group.name) {
            (Some((from, to, _)), _) => format!("the messages of rank {from} to rank {to}"),
            (None, Some(name)) => format!("process group `{name}`"),
            (None, None) => "the group of all ranks".to_owned(),
        };
        (name, line.into_iter().collect())
    };
    lines.into_iter().map(with_all).collect()
}

/// Whether two calls can be parts of one operation.
fn is_one(one: &Call, other: &Call) -> bool {
    let size = one.bytes == other.bytes || one.kind == CommKind::Collective(CommType::AllToAll);
    match (one.kind, other.kind) {
        (CommKind::Send, CommKind::Recv) | (CommKind::Recv, CommKind::Send) => size,
        (CommKind::Collective(_), CommKind::Collective(_)) => one.kind == other.kind && size && one.peer == other.peer,
        _ => std::ptr::eq(one, other),
    }
}

/// Offsets that convert each rank's times to times since the start of the first rank. A collective ends on all ranks at
/// about the same time: the median of the differences is the offset between the clocks. Ranks that share no collective
/// are assumed to have started together.
fn align_clocks(parts: &[RankPart], notes: &mut Vec<String>) -> Vec<i128> {
    let at = |part: &RankPart, ns: i64| i128::from(ns) + i128::from(part.profile.base_ns);
    let mut differences: BTreeMap<(usize, usize), Vec<i128>> = BTreeMap::new();
    for (_, line) in lines(parts) {
        let collective = |(part, items): &CallOrder| {
            items.iter().all(|item| matches!(parts[*part].calls[item].kind, CommKind::Collective(_)))
        };
        let Some((first, rest)) = line.split_first().filter(|_| line.iter().all(collective)) else { continue };
        for other in rest {
            let end =
                |(part, _): &CallOrder, item: u32| at(&parts[*part], parts[*part].timeline.items[item as usize].end_ns);
            let pairs = first.1.iter().zip(&other.1).map(|(one, two)| end(other, *two) - end(first, *one));
            differences.entry((first.0, other.0)).or_default().extend(pairs);
        }
    }
    let mut neighbours: BTreeMap<usize, Vec<(usize, i128)>> = BTreeMap::new();
    for ((one, other), mut list) in differences {
        if list.is_empty() {
            continue;
        }
        let middle = list.len() / 2;
        let median = *list.select_nth_unstable(middle).1;
        neighbours.entry(one).or_default().push((other, median));
        neighbours.entry(other).or_default().push((one, -median));
    }
    let starts: Vec<i128> = parts
        .iter()
        .map(|part| at(part, part.timeline.items.iter().map(|item| item.start_ns).min().unwrap_or(0)))
        .collect();
    let mut ahead: Vec<Option<i128>> = vec![None; parts.len()];
    let mut alone = 0;
    for root in 0..parts.len() {
        if ahead[root].is_some() {
            continue;
        }
        alone += usize::from(root > 0);
        ahead[root] = Some(if root == 0 { 0 } else { starts[root] - starts[0] });
        let mut open = vec![root];
        while let Some(one) = open.pop() {
            for (other, difference) in neighbours.get(&one).into_iter().flatten() {
                if ahead[*other].is_none() {
                    ahead[*other] = Some(ahead[one].unwrap_or(0) + difference);
                    open.push(*other);
                }
            }
        }
    }
    if alone > 0 {
        notes.push("some ranks share no collective; assuming that they started at the same time".to_owned());
    }
    let ahead = || ahead.iter().map(|ahead| ahead.unwrap_or(0));
    let begin = starts.iter().zip(ahead()).map(|(start, ahead)| start - ahead).min().unwrap_or(0);
    parts.iter().zip(ahead()).map(|(part, ahead)| i128::from(part.profile.base_ns) - ahead - begin).collect()
}
