//! Owns when what ranks have numbered was launched, began and ended, until they ask for it. What is numbered, and why, is the rank's business.
//!
//! Nothing is kept of a rank that numbers nothing. What takes no time may end before the engine has named it, so of a rank whose request is under way
//! everything that ends is kept until the engine has answered.

use std::collections::{BTreeMap, BTreeSet};
use uniference_protocol::messages::{LaunchId, LaunchTimes};
use uniference_sim::event::{Elapsed, Event};
use uniference_sim::ids::{Handle, OfProcess, RankId};
use uniference_sim::time::{SimDuration, SimTime};

/// An answer lists so many launches at most.
const MOST: usize = 1 << 16;

/// Of all ranks.
pub(super) struct Times {
    ranks: Vec<RankTimes>,
}

#[derive(Default)]
struct RankTimes {
    /// The engine has not named yet what a task of the rank has issued.
    issuing: bool,
    /// What has ended meanwhile: when it was issued, began and ended.
    unnamed: BTreeMap<Handle, [SimTime; 3]>,
    /// What is under way.
    expected: BTreeMap<Handle, Expected>,
    /// The host's work before it, and when that has ended.
    hosts: BTreeMap<Handle, Option<SimTime>>,
    ended: Vec<LaunchTimes>,
}

struct Expected {
    ids: Vec<LaunchId>,
    /// It is launched when this work of the host has ended; `None`: when it was issued.
    host: Option<Handle>,
}

impl Times {
    pub(super) fn new(world_size: u32) -> Times {
        Times { ranks: (0..world_size).map(|_| RankTimes::default()).collect() }
    }

    /// The rank is about to issue what has these numbers.
    pub(super) fn issues(&mut self, rank: RankId, ids: &[LaunchId]) {
        if !ids.is_empty() {
            self.ranks[rank.index()].issuing = true;
        }
    }

    /// The engine has named it. The host comes to it when `host` has ended.
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

    /// What one of the rank's processes has launched and has ended since it asked last, by its own numbers; and whether there is more than that.
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
    /// Kernels of one operator follow one another, and share its time equally: the engine knows of all of them together.
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
