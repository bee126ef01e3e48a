//! Owns the progress of flows: the next one to finish, and its time. Rates are an input.
//!
//! All flows with one bottleneck have one rate, so they share a clock. The clock of link `l` shows `V_l`, the amount
//! that a flow with this bottleneck has moved since the clock last started from zero, in units of [`super::scale`]; it
//! advances at the link's level `L_l`:
//!
//! ```text
//! V_l(t) = V_l(t0) + L_l * (t - t0)            as long as L_l has not changed since t0
//! a flow that begins at t with r to go ends when V_l shows V_l(t) + r, its target;
//! the next to end is the one with the smallest target T, at t0 + (T - V_l(t0)) / L_l, rounded up to a picosecond.
//! ```
//!
//! Only the end is rounded, so neither the choice of clock nor the times of clock reads matter. Levels are at most a
//! quantum too low: an end within 1/1024 of a picosecond counts as reached.
//!
//! A change of a level therefore costs one update of one clock, however many flows it slows down. A flow that gets
//! another bottleneck transfers its remaining amount, `T - V_l(t)`, to the other clock. A clock is reset to zero
//! whenever its last flow has gone.
//!
//! The end of each clock's first flow is not recomputed at every change either. The stored value is the end at a
//! slightly higher level: the flow does not end sooner until that level is exceeded. The end itself is computed only
//! when this value is the earliest of all.

use super::heap::IndexedHeap;
use super::sharing::Sharing;
use crate::time::{SimDuration, SimTime};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NOWHERE: u32 = u32::MAX;

/// Clocks of links and targets of flows.
pub(super) struct Progress {
    clocks: Vec<Clock>,
    /// The target of each flow, by its number.
    flow_targets: Vec<FlowTarget>,
    /// Links with flows on their clocks, by the end of the first flow, or a lower bound of it if [`Clock::exact`] is
    /// not set.
    ends: IndexedHeap<SimTime>,
    /// Links whose entry in `ends` may be wrong.
    stale: Vec<u32>,
}

/// The flows of one bottleneck.
struct Clock {
    /// The link's level in quanta: the rate at which the clock advances.
    level: u64,
    /// Value of the clock at `since`.
    shown: u128,
    since: SimTime,
    /// The entry in `ends` holds up to this level.
    highest: u64,
    /// Whether the entry is the end itself.
    exact: bool,
    /// Number of flows on this clock.
    flows: u32,
    /// (Target, flow), including flows that have left since.
    targets: BinaryHeap<Reverse<(u128, u32)>>,
}

/// Clock and target of a flow.
#[derive(Clone, Copy)]
struct FlowTarget {
    link: u32,
    target: u128,
}

impl Clock {
    fn at(&self, now: SimTime) -> u128 {
        let moved = u128::from(self.level) * u128::from(now.since(self.since).as_ps());
        self.shown.saturating_add(moved)
    }

    fn when(&self, target: u128) -> SimTime {
        self.when_at(self.level, target)
    }

    /// Time at which the clock would show a target at `level` from `since` on: not later than at this level or a lower
    /// one.
    fn when_at(&self, level: u64, target: u128) -> SimTime {
        let left = target.saturating_sub(self.shown).saturating_sub((level / 1024).into());
        let ps = u64::try_from(left.div_ceil(level.into())).unwrap_or(u64::MAX);
        self.since.saturating_add(SimDuration::from_ps(ps))
    }
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { clocks: Vec::new(), flow_targets: Vec::new(), ends: IndexedHeap::new(), stale: Vec::new() }
    }

    /// Adds a link, with the number that it has in [`Sharing`].
    pub(super) fn add_link(&mut self) {
        let (level, shown, since) = (0, 0, SimTime::ZERO);
        let (highest, exact, flows) = (0, false, 0);
        self.clocks.push(Clock { level, shown, since, highest, exact, flows, targets: BinaryHeap::new() });
    }

    /// Adds a flow, with the number that it has in [`Sharing`].
    pub(super) fn add_flow(&mut self) {
        self.flow_targets.push(FlowTarget { link: NOWHERE, target: 0 });
    }

    /// Stops a flow before its end.
    pub(super) fn abandon(&mut self, flow: u32) {
        let link = self.flow_targets[flow as usize].link;
        if link != NOWHERE {
            self.take_out(flow);
            self.set_exact_end(link);
        }
    }

    /// End of the next flow; [`SimTime::MAX`] if that is past the end of time.
    pub(super) fn next_end(&mut self) -> Option<SimTime> {
        while let Some((at, link)) = self.ends.first() {
            if self.clocks[link as usize].exact {
                return Some(at);
            }
            self.set_exact_end(link);
        }
        None
    }

    /// Removes the flows that end at `now` or earlier, and adds them to `ended`.
    pub(super) fn take_ended(&mut self, now: SimTime, ended: &mut Vec<u32>) {
        while let Some((at, link)) = self.ends.first() {
            if at > now {
                break;
            }
            while let Some((target, flow)) = self.first_target(link) {
                if self.clocks[link as usize].when(target) > now {
                    break;
                }
                self.take_out(flow);
                ended.push(flow);
            }
            self.set_exact_end(link);
        }
    }

    /// Follows `sharing` after its solution at `now`: first new levels and bottlenecks, then the flows that begin, each
    /// with the amount that it has to move.
    pub(super) fn follow(&mut self, now: SimTime, sharing: &Sharing, begin: impl Iterator<Item = (u32, u128)>) {
        for &link in &sharing.changed {
            let clock = &mut self.clocks[link as usize];
            let level = sharing.level(link);
            if clock.level != level {
                (clock.shown, clock.since) = (clock.at(now), now);
                clock.exact = false;
                if level > clock.highest {
                    self.stale.push(link);
                }
            }
        }
        for &flow in &sharing.moved {
            let FlowTarget { link, target } = self.flow_targets[flow as usize];
            if link != NOWHERE && link != sharing.bottleneck(flow) {
                let left = target.saturating_sub(self.clocks[link as usize].at(now));
                self.take_out(flow);
                self.stale.push(link);
                self.put_in(flow, sharing.bottleneck(flow), left, now);
            }
        }
        for (flow, amount) in begin {
            self.put_in(flow, sharing.bottleneck(flow), amount, now);
        }
        for &link in &sharing.changed {
            self.clocks[link as usize].level = sharing.level(link);
        }
        let mut stale = std::mem::take(&mut self.stale);
        stale.drain(..).for_each(|link| self.set_end(link));
        self.stale = stale;
    }

    fn put_in(&mut self, flow: u32, link: u32, amount: u128, now: SimTime) {
        let clock = &mut self.clocks[link as usize];
        if clock.flows == 0 {
            (clock.shown, clock.since, clock.exact) = (0, now, true);
            clock.targets.clear();
        }
        clock.flows += 1;
        let target = clock.at(now).saturating_add(amount);
        clock.targets.push(Reverse((target, flow)));
        self.flow_targets[flow as usize] = FlowTarget { link, target };
        self.stale.push(link);
    }

    fn take_out(&mut self, flow: u32) {
        let link = std::mem::replace(&mut self.flow_targets[flow as usize].link, NOWHERE);
        self.clocks[link as usize].flows -= 1;
    }

    /// The smallest target on a link, after removal of the targets of flows that have left.
    fn first_target(&mut self, link: u32) -> Option<(u128, u32)> {
        let targets = &mut self.clocks[link as usize].targets;
        while let Some(&Reverse((target, flow))) = targets.peek() {
            let place = self.flow_targets[flow as usize];
            if place.link == link && place.target == target {
                return Some((target, flow));
            }
            targets.pop();
        }
        None
    }

    /// Sets the end itself for a clock whose level has not changed since it started: its flows may have the link to
    /// themselves. For other clocks, sets the end at a level that is seldom exceeded soon; the entry comes up when a
    /// sixteenth of the time is left.
    fn set_end(&mut self, link: u32) {
        let Clock { level, exact, .. } = self.clocks[link as usize];
        self.set_end_at(link, if exact { level } else { level.saturating_add(level / 16) });
    }

    fn set_exact_end(&mut self, link: u32) {
        self.set_end_at(link, self.clocks[link as usize].level);
    }

    fn set_end_at(&mut self, link: u32, highest: u64) {
        let first = self.first_target(link);
        let clock = &mut self.clocks[link as usize];
        (clock.highest, clock.exact) = (highest, highest == clock.level);
        match first {
            Some((target, _)) => self.ends.set(link, clock.when_at(highest, target)),
            None => self.ends.remove(link),
        }
    }
}
