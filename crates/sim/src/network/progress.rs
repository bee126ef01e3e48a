//! Owns how far flows have come: which finishes next, and when. Rates are given to it; why they are what they are it does not know.
//!
//! All flows with one bottleneck have one rate, so they share a clock. The clock of link `l` shows `V_l`, the bytes that a flow with this
//! bottleneck has moved since the clock last started from zero; it advances at the link's level `L_l`:
//!
//! ```text
//! V_l(t) = V_l(t0) + L_l * (t - t0)            as long as L_l has not changed since t0
//! a flow that begins at t with r bytes to go ends when V_l shows V_l(t) + r, its target;
//! the next to end is the one with the smallest target T, at t0 + (T - V_l(t0)) / L_l, rounded up to a picosecond.
//! ```
//!
//! So a change of a level costs one update of one clock, however many flows it slows down. A flow that gets another bottleneck takes what
//! it has left, `T - V_l(t)`, over to the other clock. A clock is set back to zero whenever its last flow has gone.

use super::heap::IndexedHeap;
use super::sharing::Sharing;
use crate::time::{PS_PER_SECOND, SimDuration, SimTime};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NOWHERE: u32 = u32::MAX;

/// Clocks of links and targets of flows.
pub(super) struct Progress {
    clocks: Vec<Clock>,
    /// By flow.
    places: Vec<Place>,
    /// Links whose clocks flows go by, by when the first of these ends.
    ends: IndexedHeap<SimTime>,
    /// Links whose entry in `ends` may be wrong.
    stale: Vec<u32>,
}

/// The flows of one bottleneck.
struct Clock {
    /// Bytes per second.
    level: f64,
    /// What the clock showed at `since`.
    shown: f64,
    since: SimTime,
    /// How many flows go by it.
    flows: u32,
    /// (Target, flow), and such as flows that have left since.
    targets: BinaryHeap<Reverse<(u64, u32)>>,
}

/// Where a flow's target counts.
#[derive(Clone, Copy)]
struct Place {
    link: u32,
    target: f64,
}

impl Clock {
    fn at(&self, now: SimTime) -> f64 {
        match now.since(self.since).as_ps() {
            0 => self.shown,
            ps => self.shown + self.level * ps as f64 / PS_PER_SECOND as f64,
        }
    }

    fn when(&self, target: f64) -> SimTime {
        let ps = ((target - self.shown).max(0.0) * PS_PER_SECOND as f64 / self.level).ceil();
        // The conversion saturates, as it should.
        self.since.saturating_add(SimDuration::from_ps(ps as u64))
    }
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { clocks: Vec::new(), places: Vec::new(), ends: IndexedHeap::new(), stale: Vec::new() }
    }

    /// A new link, numbered as in [`Sharing`].
    pub(super) fn add_link(&mut self) {
        let (level, shown, since) = (0.0, 0.0, SimTime::ZERO);
        self.clocks.push(Clock { level, shown, since, flows: 0, targets: BinaryHeap::new() });
    }

    /// A new flow, numbered as in [`Sharing`].
    pub(super) fn add_flow(&mut self) {
        self.places.push(Place { link: NOWHERE, target: 0.0 });
    }

    /// A flow goes no further.
    pub(super) fn abandon(&mut self, flow: u32) {
        let link = self.places[flow as usize].link;
        if link != NOWHERE {
            self.take_out(flow);
            self.set_end(link);
        }
    }

    /// When the next flow ends; [`SimTime::MAX`] if that is past the end of time.
    pub(super) fn next_end(&self) -> Option<SimTime> {
        self.ends.first().map(|(at, _)| at)
    }

    /// Takes out the flows that end by `now`.
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
            self.set_end(link);
        }
    }

    /// Follows `sharing` after it was solved at `now`: first new levels and bottlenecks, then the flows that begin, each with its bytes to go.
    pub(super) fn follow(&mut self, now: SimTime, sharing: &Sharing, begin: impl Iterator<Item = (u32, f64)>) {
        for &link in &sharing.changed {
            let clock = &mut self.clocks[link as usize];
            if clock.level.to_bits() != sharing.level(link).to_bits() {
                (clock.shown, clock.since) = (clock.at(now), now);
                self.stale.push(link);
            }
        }
        for &flow in &sharing.moved {
            let Place { link, target } = self.places[flow as usize];
            if link != NOWHERE && link != sharing.bottleneck(flow) {
                let left = target - self.clocks[link as usize].at(now);
                self.take_out(flow);
                self.stale.push(link);
                self.put_in(flow, sharing.bottleneck(flow), left.max(0.0), now);
            }
        }
        for (flow, bytes) in begin {
            self.put_in(flow, sharing.bottleneck(flow), bytes, now);
        }
        for &link in &sharing.changed {
            self.clocks[link as usize].level = sharing.level(link);
        }
        let mut stale = std::mem::take(&mut self.stale);
        stale.drain(..).for_each(|link| self.set_end(link));
        self.stale = stale;
    }

    fn put_in(&mut self, flow: u32, link: u32, bytes: f64, now: SimTime) {
        let clock = &mut self.clocks[link as usize];
        if clock.flows == 0 {
            (clock.shown, clock.since) = (0.0, now);
            clock.targets.clear();
        }
        clock.flows += 1;
        let target = clock.at(now) + bytes;
        clock.targets.push(Reverse((target.to_bits(), flow)));
        self.places[flow as usize] = Place { link, target };
        self.stale.push(link);
    }

    fn take_out(&mut self, flow: u32) {
        let link = std::mem::replace(&mut self.places[flow as usize].link, NOWHERE);
        self.clocks[link as usize].flows -= 1;
    }

    /// The smallest target on a link, once those of flows that have left are thrown away.
    fn first_target(&mut self, link: u32) -> Option<(f64, u32)> {
        let targets = &mut self.clocks[link as usize].targets;
        while let Some(&Reverse((target, flow))) = targets.peek() {
            let place = self.places[flow as usize];
            if place.link == link && place.target.to_bits() == target {
                return Some((place.target, flow));
            }
            targets.pop();
        }
        None
    }

    fn set_end(&mut self, link: u32) {
        match self.first_target(link) {
            Some((target, _)) => self.ends.set(link, self.clocks[link as usize].when(target)),
            None => self.ends.remove(link),
        }
    }
}
