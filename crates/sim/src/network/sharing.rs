//! Owns max-min fair sharing: the rate of each flow. The solver knows neither time nor bytes, and keeps no sums over
//! time.
//!
//! # Definition
//!
//! Link `l` has a capacity `C_l` and a *level* `L_l`, which is [`UNBOUNDED`] if it is no flow's bottleneck. The rates
//! `x_f` of flows are max-min fair, and the levels belong to them, when
//!
//! ```text
//! x_f = min { L_l : l on the route of f }                 (f's bottleneck is the link that attains it)
//! sum { x_f : f crosses l } = C_l   where L_l is bounded,   <= C_l   where it is not.
//! ```
//!
//! Such levels exist and the rates are unique (Bertsekas and Gallager, "Data Networks", 6.5.2). Only levels and
//! bottlenecks are stored: a flow's rate is its bottleneck's level, so that a change of a level is one write, however
//! many flows it affects.
//!
//! Rates are whole numbers ([`super::scale`]), so `=` means: to less than one for each flow that stops at the link.
//! That alone would leave open which of two links gives way if both are full within one quantum. In this solver neither
//! waits for the other: water rises in all links, one quantum at a time, and those that have no room for another
//! quantum stop their flows together. With
//!
//! ```text
//! y_f = min { L_k : k on the route of f, k != l }
//! L_l is the smallest w such that   sum { y_f : y_f < w } + (w + 1) * #{ f : y_f >= w }   >   C_l,   f over the flows that cross l,
//! ```
//!
//! a level depends only on lower levels: rates are a function of capacities and routes, independent of the order of
//! events, and equal for equivalent flows. Newton's method ([`fill`]) finds a level in as many steps as there are
//! pieces, mostly two.
//!
//! # Propagation of a change
//!
//! The equation of `L_l` is written `L_l = G_l(levels of others)`. Levels that satisfy all of these equations are *the*
//! levels: among any that do, the lowest depends on no other, the next lowest only on that one, and so on. The method
//! of finding them therefore does not matter. Links where flows have come or gone are *under review*. One after the
//! other, from the lowest level to the highest (those within 1/256 in any order), each gets the level of its equation
//! with the current levels of the others; if that changes a flow's rate, the other links on its route come under
//! review. A link whose equation holds is not reviewed.
//!
//! At each moment, each flow's bottleneck is the lowest link of its route by the current levels:
//!
//! - If a level falls, flows that stopped above it because of other links stop at this link from now on.
//! - If a level rises, flows that stopped at this link, and have a link on their routes that is lower than the new
//!   level, stop at that link, and the level is computed again without them.
//!
//! The procedure ends: once the lowest levels are right, no other level falls below the next one any more, and the link
//! with the next level is right as soon as it is reviewed. Because reviews are in the order of levels, and levels
//! mostly change little, a link whose level changes is reviewed once, seldom twice. In random traffic on an overloaded
//! switch an event changes the levels of a handful of links among thousands. If each host has tens of flows, an event
//! changes most levels above the link where a flow has ended, by ever smaller amounts, which are nevertheless exact.

use super::review::Review;
use super::scale::UNBOUNDED;
use std::iter::Chain;
use std::ops::Range;

/// Levels of links and bottlenecks of flows. Links and flows are numbered from 0 in the order in which they are added.
pub(super) struct Sharing {
    links: Vec<LinkState>,
    /// The level of each link, in quanta.
    level: Vec<u64>,
    flows: Vec<FlowState>,
    /// The routes of all flows, one after the other.
    hops: Vec<Hop>,
    /// Links under review, by the lowest level that they are expected to get.
    review: Review,
    /// Whether a link is in `changed`.
    noted: Vec<bool>,
    /// Number of reviews: the cost of solving.
    #[cfg(test)]
    looks: u64,
    /// Links where flows have come or gone since the last solution.
    touched: Vec<u32>,
    /// Links whose level may have changed since the caller last read them.
    pub(super) changed: Vec<u32>,
    /// Flows whose bottleneck may have changed since the caller last read them.
    pub(super) moved: Vec<u32>,
}

struct LinkState {
    capacity: u64,
    /// Active flows over the link: their bottlenecks (packed, because they are read most), and the hop of each that is
    /// this link.
    bottlenecks: Vec<u32>,
    crossing: Vec<Crossing>,
    sums: Sums,
}

/// A flow on a link, from the link's side.
#[derive(Clone, Copy)]
struct Crossing {
    hop: u32,
    /// The flow's other link, which is looked up most often, if its route has two different links; else [`MANY`].
    peer: u32,
}

/// Marks a flow whose other links must be looked up.
const MANY: u32 = u32::MAX;

/// Sums that determine a link's level unless another level is close to it. They are updated when levels change, and
/// recomputed if flows have come, gone, or moved to another bottleneck since.
struct Sums {
    known: bool,
    /// Number of flows whose bottleneck is this link.
    own: u32,
    /// Upper bound of the rates of flows with another bottleneck.
    ceiling: u64,
    /// Sum of the rates of flows with another bottleneck.
    elsewhere: u128,
}

impl Sums {
    const UNKNOWN: Sums = Sums { known: false, own: 0, ceiling: 0, elsewhere: 0 };

    fn of(link: u32, bottlenecks: &[u32], level: &[u64]) -> Sums {
        let mut sums = Sums { known: true, ..Sums::UNKNOWN };
        for bottleneck in bottlenecks {
            let own = *bottleneck == link;
            let rate = if own { 0 } else { level[*bottleneck as usize] };
            sums.own += u32::from(own);
            sums.ceiling = sums.ceiling.max(rate);
            sums.elsewhere += u128::from(rate);
        }
        sums
    }

    /// Records the new rate of a flow with another bottleneck. Unknown sums stay unknown.
    fn follow(&mut self, before: u64, rate: u64) {
        self.elsewhere = self.elsewhere.wrapping_sub(before.into()).wrapping_add(rate.into());
        self.ceiling = self.ceiling.max(rate);
    }

    /// The level, if the rates of flows that stop at other links are well below it, so that rounding does not matter;
    /// see [`fall`].
    fn level(&self, capacity: u64, flows: u64) -> Option<u64> {
        let left = capacity.checked_sub(u64::try_from(self.elsewhere).ok()?)?;
        match left.checked_div(self.own.into()) {
            None => (left >= flows).then_some(UNBOUNDED),
            Some(share) => (self.ceiling.saturating_add(flows) < share).then_some(share),
        }
    }
}

struct FlowState {
    first_hop: u32,
    /// The lowest link of an active flow's route.
    bottleneck: u32,
    /// Whether the flow crosses a link several times.
    repeats: bool,
}

/// A link on the route of a flow.
struct Hop {
    link: u32,
    /// Index of the flow, if active, in the link's `crossing`.
    slot: u32,
    flow: u32,
    /// Range of all hops of the flow.
    first: u32,
    end: u32,
}

impl Sharing {
    pub(super) fn new() -> Sharing {
        Sharing {
            links: Vec::new(),
            level: Vec::new(),
            flows: Vec::new(),
            hops: Vec::new(),
            review: Review::new(),
            noted: Vec::new(),
            #[cfg(test)]
            looks: 0,
            touched: Vec::new(),
            changed: Vec::new(),
            moved: Vec::new(),
        }
    }

    /// Adds a link; `capacity` is in quanta, and above zero. An [`UNBOUNDED`] link limits no flow; no route begins with
    /// such a link.
    pub(super) fn add_link(&mut self, capacity: u64) -> u32 {
        self.links.push(LinkState { capacity, bottlenecks: Vec::new(), crossing: Vec::new(), sums: Sums::UNKNOWN });
        self.level.push(UNBOUNDED);
        self.review.add();
        self.noted.push(false);
        self.links.len() as u32 - 1
    }

    /// Adds a flow, not active yet. Its route has at least one link. If a link occurs several times, as many equal
    /// flows share it.
    pub(super) fn add_flow(&mut self, route: impl ExactSizeIterator<Item = u32>) -> u32 {
        let (flow, first) = (self.flows.len() as u32, self.hops.len() as u32);
        let end = first + route.len() as u32;
        self.hops.extend(route.map(|link| Hop { link, slot: u32::MAX, flow, first, end }));
        let mut links: Vec<u32> = self.hops[first as usize..].iter().map(|hop| hop.link).collect();
        links.sort_unstable();
        let repeats = links.windows(2).any(|pair| pair[0] == pair[1]);
        self.flows.push(FlowState { first_hop: first, bottleneck: u32::MAX, repeats });
        flow
    }

    /// Changes the capacity of a link, as in [`Sharing::add_link`]; an unbounded capacity only if the link is not full.
    pub(super) fn set_capacity(&mut self, link: u32, capacity: u64) {
        let state = &mut self.links[link as usize];
        state.capacity = capacity;
        if !state.crossing.is_empty() {
            self.touched.push(link);
        }
    }

    /// The link whose level is an active flow's rate; valid once the rates are solved.
    pub(super) fn bottleneck(&self, flow: u32) -> u32 {
        self.flows[flow as usize].bottleneck
    }

    /// First full link of an active flow's route on which no flow is faster; valid once the rates are solved.
    /// [`Self::bottleneck`] names only one link, by chance, if the same flows fill both an uplink and the downlink
    /// behind it.
    pub(super) fn limit(&self, flow: u32) -> u32 {
        let bottleneck = self.bottleneck(flow);
        let rate = self.level(bottleneck);
        let stops = |link: &u32| {
            let LinkState { capacity, crossing, sums, .. } = &self.links[*link as usize];
            // Rounding may have made each flow one quantum too slow.
            let is_full = sums.elsewhere + crossing.len() as u128 > u128::from(*capacity);
            self.level(*link) == rate || (sums.known && sums.own == 0 && sums.ceiling <= rate && is_full)
        };
        self.route(flow).map(|hop| self.hops[hop].link).find(stops).unwrap_or(bottleneck)
    }

    /// The rate of every flow whose bottleneck is `link`, in quanta.
    pub(super) fn level(&self, link: u32) -> u64 {
        self.level[link as usize]
    }

    /// Total rate of the flows that cross a link; valid once the rates are solved.
    pub(super) fn used(&self, link: u32) -> u128 {
        let bottlenecks = self.links[link as usize].bottlenecks.iter();
        bottlenecks.map(|bottleneck| u128::from(self.level[*bottleneck as usize])).sum()
    }

    /// Whether a link is the bottleneck of any flow; valid once the rates are solved.
    pub(super) fn is_full(&self, link: u32) -> bool {
        self.level[link as usize] != UNBOUNDED
    }

    /// Calls `call` for the links of all flows whose rate may have changed since the caller last read the changes,
    /// often more than once.
    pub(super) fn for_changed_routes(&self, mut call: impl FnMut(u32)) {
        let of = |flow: u32| self.route(flow).map(|hop| self.hops[hop].link);
        for &link in &self.changed {
            let LinkState { bottlenecks, crossing, .. } = &self.links[link as usize];
            let stopped = bottlenecks.iter().zip(crossing).filter(|(bottleneck, _)| **bottleneck == link);
            stopped.for_each(|(_, crossing)| of(self.hops[crossing.hop as usize].flow).for_each(&mut call));
        }
        self.moved.iter().for_each(|flow| of(*flow).for_each(&mut call));
    }

    /// Makes a flow active.
    pub(super) fn join(&mut self, flow: u32) {
        let bottleneck = self.first_bottleneck(flow);
        self.flows[flow as usize].bottleneck = bottleneck;
        let two = self.route(flow).len() == 2 && !self.flows[flow as usize].repeats;
        for hop in self.route(flow) {
            let peer = if two { self.others(hop as u32).next().map(|other| self.hops[other].link) } else { None };
            let Hop { link, slot, .. } = &mut self.hops[hop];
            let link = &mut self.links[*link as usize];
            *slot = link.crossing.len() as u32;
            link.crossing.push(Crossing { hop: hop as u32, peer: peer.unwrap_or(MANY) });
            link.bottlenecks.push(bottleneck);
            link.sums.known = false;
        }
    }

    /// The bottleneck of a new flow. If the flow is alone on its route, the bottleneck is the narrowest link, otherwise
    /// reviews of its links determine it.
    fn first_bottleneck(&mut self, flow: u32) -> u32 {
        let hops = &self.hops[self.route(flow)];
        let (links, level) = (&self.links, &self.level);
        let crossed = |hop: &Hop| &links[hop.link as usize];
        if self.flows[flow as usize].repeats || hops.iter().any(|hop| !crossed(hop).crossing.is_empty()) {
            self.touched.extend(hops.iter().map(|hop| hop.link));
            // The first of equal links is chosen: no route begins with an unbounded link.
            return hops.iter().min_by_key(|hop| level[hop.link as usize]).expect("a route has links").link;
        }
        let narrowest = hops.iter().min_by_key(|hop| crossed(hop).capacity);
        let bottleneck = narrowest.expect("a route has links").link;
        let capacity = crossed(narrowest.expect("a route has links")).capacity;
        self.set_level(bottleneck, capacity);
        bottleneck
    }

    /// Makes a flow inactive.
    pub(super) fn leave(&mut self, flow: u32) {
        for hop in self.route(flow) {
            let Hop { link, slot, .. } = self.hops[hop];
            let state = &mut self.links[link as usize];
            state.crossing.swap_remove(slot as usize);
            state.bottlenecks.swap_remove(slot as usize);
            state.sums.known = false;
            if let Some(other) = state.crossing.get(slot as usize) {
                self.hops[other.hop as usize].slot = slot;
            }
            if state.crossing.is_empty() {
                self.level[link as usize] = UNBOUNDED;
            } else if self.level[link as usize] != UNBOUNDED {
                self.touched.push(link);
            }
        }
    }

    /// Finds the levels and bottlenecks for the currently active flows.
    pub(super) fn solve(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for link in touched.drain(..) {
            let LinkState { capacity, crossing, .. } = &self.links[link as usize];
            let share = capacity / (crossing.len() as u64).max(1);
            self.review.lower(link, share.min(self.level[link as usize]));
        }
        self.touched = touched;
        while let Some((water, link)) = self.review.pop() {
            self.look(link, water);
        }
    }

    /// Clears [`Sharing::changed`] and [`Sharing::moved`] after the caller has read them.
    pub(super) fn forget_changes(&mut self) {
        self.changed.drain(..).for_each(|link| self.noted[link as usize] = false);
        self.moved.clear();
    }

    fn set_level(&mut self, link: u32, level: u64) {
        self.level[link as usize] = level;
        if !std::mem::replace(&mut self.noted[link as usize], true) {
            self.changed.push(link);
        }
    }

    /// Reviews a link: sets its level by its equation, and the bottlenecks of its flows.
    fn look(&mut self, link: u32, water: u64) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let before = self.level[link as usize];
        let level = loop {
            // The link's own flows count as stopping at no other link.
            self.level[link as usize] = UNBOUNDED;
            let level = fill(link, &mut self.links[link as usize], &self.level, before);
            if level <= before || !self.let_go(link, before, level, water) {
                break level;
            }
        };
        if level == before {
            self.level[link as usize] = level;
            return;
        }
        self.set_level(link, level);
        let Sums { known, ceiling, .. } = self.links[link as usize].sums;
        let none_comes = known && ceiling <= level;
        for slot in 0..self.links[link as usize].crossing.len() {
            let bottleneck = self.links[link as usize].bottlenecks[slot];
            if bottleneck != link && (none_comes || self.level[bottleneck as usize] <= level) {
                continue;
            }
            let crossing = self.links[link as usize].crossing[slot];
            let rate = if bottleneck == link { before } else { self.level[bottleneck as usize] };
            if bottleneck != link {
                self.move_to(self.hops[crossing.hop as usize].flow, link);
            }
            self.rate_changes(link, crossing, (rate, level), water);
        }
    }

    /// Moves flows that stopped at this link, at level `before`, to a link of their route that is lower than `level`.
    /// Returns whether there are any.
    fn let_go(&mut self, link: u32, before: u64, level: u64, water: u64) -> bool {
        let mut any = false;
        for slot in 0..self.links[link as usize].crossing.len() {
            if self.links[link as usize].bottlenecks[slot] != link {
                continue;
            }
            let crossing = self.links[link as usize].crossing[slot];
            let lowest = match crossing.peer {
                MANY => {
                    let others = self.others(crossing.hop).map(|other| self.hops[other].link);
                    others.filter(|other| *other != link).min_by_key(|other| self.level[*other as usize])
                }
                peer => Some(peer),
            };
            let Some(lowest) = lowest.filter(|lowest| self.level[*lowest as usize] < level) else { continue };
            self.move_to(self.hops[crossing.hop as usize].flow, lowest);
            self.rate_changes(link, crossing, (before, self.level[lowest as usize]), water);
            self.review.lower(lowest, water);
            any = true;
        }
        any
    }

    fn move_to(&mut self, flow: u32, bottleneck: u32) {
        self.flows[flow as usize].bottleneck = bottleneck;
        for hop in self.route(flow) {
            let Hop { link, slot, .. } = self.hops[hop];
            let state = &mut self.links[link as usize];
            state.bottlenecks[slot as usize] = bottleneck;
            state.sums.known = false;
        }
        self.moved.push(flow);
    }

    /// Updates the other links of a flow of the link `this` whose rate has changed.
    fn rate_changes(&mut self, this: u32, crossing: Crossing, rates: (u64, u64), water: u64) {
        if crossing.peer != MANY {
            return self.rate_changes_on(crossing.peer, this, rates, water);
        }
        let repeats = self.flows[self.hops[crossing.hop as usize].flow as usize].repeats;
        for other in self.others(crossing.hop) {
            let other = self.hops[other].link;
            // A flow that crosses a link several times may be reported several times.
            self.links[other as usize].sums.known &= !repeats;
            if other != this {
                self.rate_changes_on(other, this, rates, water);
            }
        }
    }

    /// Reviews a link if a flow's new rate may affect it: a link that was not full stays so with a lower rate, and its
    /// level falls no lower than the flow's former rate.
    fn rate_changes_on(&mut self, other: u32, this: u32, (before, rate): (u64, u64), water: u64) {
        self.links[other as usize].sums.follow(before, rate);
        let level = self.level[other as usize];
        if (rate < before && level == UNBOUNDED) || self.is_ample(other, this) {
            return;
        }
        let expected = match level {
            UNBOUNDED => rate,
            _ if rate < level => level,
            _ => water,
        };
        self.review.lower(other, expected);
    }

    /// Whether a link need never be a bottleneck: it has a single flow, and another link on the flow's route is no
    /// wider.
    fn is_ample(&self, link: u32, other: u32) -> bool {
        let (state, other) = (&self.links[link as usize], &self.links[other as usize]);
        state.crossing.len() == 1 && state.capacity >= other.capacity && self.level[link as usize] == UNBOUNDED
    }

    fn route(&self, flow: u32) -> Range<usize> {
        let Hop { first, end, .. } = self.hops[self.flows[flow as usize].first_hop as usize];
        first as usize..end as usize
    }

    /// All hops of a flow except this one.
    fn others(&self, hop: u32) -> Chain<Range<usize>, Range<usize>> {
        let Hop { first, end, .. } = self.hops[hop as usize];
        (first as usize..hop as usize).chain(hop as usize + 1..end as usize)
    }
}

/// The level of a link, given the bottlenecks of its flows at other links, and a guess.
///
/// Newton's method counts the flows that stop below a guess at their own rates, and shares the rest among the others.
fn fill(id: u32, link: &mut LinkState, level: &[u64], guess: u64) -> u64 {
    let flows = link.crossing.len() as u64;
    if flows == 0 || link.capacity == UNBOUNDED {
        return UNBOUNDED;
    }
    if link.sums.known
        && let Some(level) = link.sums.level(link.capacity, flows)
    {
        return level;
    }
    link.sums = Sums::of(id, &link.bottlenecks, level);
    let level_of_sums = link.sums.level(link.capacity, flows);
    level_of_sums.or_else(|| fall(link, level, guess)).unwrap_or_else(|| climb(link, level))
}

/// Newton's method from the level at which the link was full before, which is mostly near: a step or two. After the
/// first step, which may start anywhere, steps only go up; when the same flows stop below the new level, the link is
/// full at that level. It is the lowest such level if no flow stops so closely below it that rounding matters: `None`
/// if one does.
fn fall(link: &LinkState, level: &[u64], mut guess: u64) -> Option<u64> {
    let flows = link.crossing.len() as u64;
    let even = (link.capacity / flows).max(1);
    loop {
        let below = Below::of(guess, &link.bottlenecks, level);
        let left = link.capacity.saturating_sub(below.used);
        if below.flows == flows && below.used <= link.capacity {
            return (left >= flows).then_some(UNBOUNDED);
        }
        let better = left.checked_div(flows - below.flows).map_or(even, |share| share.max(even));
        if below.highest < better && better <= below.next {
            return (below.highest + flows < better).then_some(better);
        }
        guess = better;
    }
}

/// Newton's method from below: no step exceeds the lowest level at which the link is full.
fn climb(link: &LinkState, level: &[u64]) -> u64 {
    let flows = link.crossing.len() as u64;
    let mut guess = (link.capacity / flows).max(1);
    loop {
        let below = Below::of(guess, &link.bottlenecks, level);
        let left = link.capacity.saturating_sub(below.used);
        let Some(share) = left.checked_div(flows - below.flows) else { return UNBOUNDED };
        let better = share.max(guess);
        if better <= below.next {
            // If all flows stop at this level or below because of other links, this link is not their bottleneck.
            let stop = |bottleneck: &u32| level[*bottleneck as usize] <= better;
            return if link.bottlenecks.iter().all(stop) { UNBOUNDED } else { better };
        }
        guess = better;
    }
}

/// Flows by their bottlenecks' levels, compared with a guessed level.
struct Below {
    /// Number of flows whose bottleneck has a lower level.
    flows: u64,
    /// Sum of the rates of these flows.
    used: u64,
    /// The highest rate of these flows.
    highest: u64,
    /// The lowest level among the other flows' bottlenecks.
    next: u64,
}

impl Below {
    fn of(guess: u64, bottlenecks: &[u32], level: &[u64]) -> Below {
        let mut below = Below { flows: 0, used: 0, highest: 0, next: UNBOUNDED };
        for bottleneck in bottlenecks {
            let limit = level[*bottleneck as usize];
            let stops = limit < guess;
            let (stopped, next) = if stops { (limit, UNBOUNDED) } else { (0, limit) };
            below.flows += u64::from(stops);
            below.used = below.used.saturating_add(stopped);
            below.highest = below.highest.max(stopped);
            below.next = below.next.min(next);
        }
        below
    }
}

#[cfg(test)]
mod tests;
