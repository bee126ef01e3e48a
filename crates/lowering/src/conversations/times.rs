//! Owns the times at which ranks' numbered launches were launched, began and ended, until the rank asks for them. The
//! rank decides which launches have numbers.
//!
//! A rank without numbered launches needs no memory. Activities of zero duration may end before the engine has named
//! them, so all ends of a rank with a pending request are kept until the engine has answered.

use std::collections::{BTreeMap, BTreeSet};
use uniference_protocol::messages::{LaunchId, LaunchTimes, OnStream};
use uniference_sim::event::{Elapsed, Event};
use uniference_sim::ids::{Handle, OfProcess, RankId};
use uniference_sim::time::{SimDuration, SimTime};

/// Maximum number of launches per answer.
const MOST: usize = 1 << 16;

/// The times of all ranks.
pub(super) struct Times {
    ranks: Vec<RankTimes>,
}

#[derive(Default)]
struct RankTimes {
    /// Whether an issue of one of the rank's tasks has no handle of the engine yet.
    issuing: bool,
    /// Activities that ended during a pending issue: times of issue, start and end.
    unnamed: BTreeMap<Handle, [SimTime; 3]>,
    /// Numbered launches that are under way.
    expected: BTreeMap<Handle, Expected>,
    /// Preceding work on the launching CPU, with its time of end.
    hosts: BTreeMap<Handle, Option<SimTime>>,
    ended: Vec<LaunchTimes>,
}

struct Expected {
    ids: Vec<LaunchId>,
    /// The work on the launching CPU whose end is the time of launch; `None`: the time of issue.
    host: Option<Handle>,
}

impl Times {
    pub(super) fn new(world_size: u32) -> Times {
        Times { ranks: (0..world_size).map(|_| RankTimes::default()).collect() }
    }

    /// Notes that the rank is about to issue an activity with these ids.
    pub(super) fn issues(&mut self, rank: RankId, ids: &[LaunchId]) {
        if !ids.is_empty() {
            self.ranks[rank.index()].issuing = true;
        }
    }

    /// Records the engine's handle of the activity. Its time of launch is the end of `host`.
    pub(super) fn issued(&mut self, rank: RankId, ids: &[LaunchId], handle: Handle, host: Option<Handle>) {
        if ids.is_empty() {
            return;
        }
        let times = &mut self.ranks[rank.index()];
        times.issuing = false;
        if let Some(host) = host {
            times.hosts.entry(host).or_default();
        }
        let expected = Expected { ids: ids.to_vec(), host };
        match std::mem::take(&mut times.unnamed).remove(&handle) {
            Some(moments) => times.ends(expected, moments),
            None => drop(times.expected.insert(handle, expected)),
        }
    }

    pub(super) fn observe(&mut self, at: SimTime, event: &Event<'_>) {
        let (rank, handle, issued, began) = match event {
            Event::Computed { rank, start, why, .. } => (*rank, why.handle, why.issued, *start),
            Event::Elapsed { rank, what: Elapsed::Nothing, start, why: Some(why), .. } => {
                (*rank, why.handle, why.issued, *start)
            }
            Event::Completed { rank, handle, issued, started, .. }
            | Event::Failed { rank, handle, issued, started, .. } => (*rank, *handle, *issued, *started),
            _ => return,
        };
        let times = &mut self.ranks[rank.index()];
        if let Some(host) = times.hosts.get_mut(&handle) {
            *host = Some(at);
        }
        if let Some(expected) = times.expected.remove(&handle) {
            times.ends(expected, [issued, began, at]);
        } else if times.issuing {
            times.unnamed.insert(handle, [issued, began, at]);
        }
    }

    /// Launches of one of the rank's processes that have ended since its last question, in its own numbers; and whether
    /// more remain.
    pub(super) fn take(&mut self, rank: RankId, process: OfProcess) -> (Vec<LaunchTimes>, bool) {
        let RankTimes { expected, hosts, ended, .. } = &mut self.ranks[rank.index()];
        let (mut own, others): (Vec<LaunchTimes>, _) =
            std::mem::take(ended).into_iter().partition(|launch| process.own(launch.id.leaf()).is_some());
        let rest = own.split_off(own.len().min(MOST));
        let more = !rest.is_empty();
        ended.extend(others.into_iter().chain(rest));
        let number = |number: u64| process.own(number).unwrap_or(number);
        let taken = own.into_iter().map(|launch| {
            let id = LaunchId { launch: number(launch.id.launch), node: number(launch.id.node) };
            LaunchTimes { id, ..launch }
        });
        let needed: BTreeSet<Handle> = expected.values().filter_map(|expected| expected.host).collect();
        hosts.retain(|host, _| needed.contains(host));
        (taken.collect(), more)
    }
}

impl RankTimes {
    /// Divides the duration of an operator equally among its kernels, which run one after the other: the engine sees
    /// all kernels of an operator as one activity.
    fn ends(&mut self, Expected { ids, host }: Expected, [issued, began, ended]: [SimTime; 3]) {
        let launched = host.and_then(|host| self.hosts.get(&host).copied().flatten()).unwrap_or(issued);
        let (lasted, count) = (u128::from(ended.since(began).as_ps()), ids.len() as u128);
        let at = |kernel: u128| began + SimDuration::from_ps((lasted * kernel / count) as u64);
        let each = ids.into_iter().zip(0_u128..);
        self.ended.extend(each.map(|(id, kernel)| LaunchTimes {
            id,
            launched,
            began: at(kernel),
            ended: at(kernel + 1),
        }));
    }
}

/// The id by which the rank asks for the times of an operation on a stream.
pub(super) fn launch_ids(on: Option<OnStream>) -> Vec<LaunchId> {
    on.and_then(|on| on.number).map(|launch| LaunchId { launch, node: 0 }).into_iter().collect()
}
