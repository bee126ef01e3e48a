//! Owns max-min fair sharing: which rate each flow gets. It knows neither time nor bytes, and never adds anything up over time.
//!
//! # What is computed
//!
//! Link `l` has capacity `C_l`. A *level* `L_l` belongs to it, [`UNBOUNDED`] where none of its flows stops on its account. The rates `x_f` of
//! flows are max-min fair, and the levels are theirs, when
//!
//! ```text
//! x_f = min { L_l : l on the route of f }                 (f's bottleneck is the link that attains it)
//! sum { x_f : f crosses l } = C_l   where L_l is bounded,   <= C_l   where it is not.
//! ```
//!
//! Such levels exist and the rates are unique (Bertsekas and Gallager, "Data Networks", 6.5.2). Only levels and bottlenecks are stored:
//! a flow's rate is its bottleneck's level, so that a change of a level is one write, however many flows it concerns.
//!
//! Rates are whole numbers ([`super::scale`]), so `=` means: to less than one for each flow that stops there. That alone would leave
//! open which of two links gives way where both are full within one quantum. Here neither waits for the other: water rises in
//! all links, one quantum at a time, and those that have no room for another quantum stop their flows together. With
//!
//! ```text
//! y_f = min { L_k : k on the route of f, k != l }
//! L_l is the smallest w such that   sum { y_f : y_f < w } + (w + 1) * #{ f : y_f >= w }   >   C_l,   f over the flows that cross l,
//! ```
//!
//! a level depends on lower ones alone: rates are a function of capacities and routes, the same in whatever order anything comes, and
//! alike for what is alike. Newton's method ([`fill`]) finds a level in as many steps as there are pieces, mostly two.
//!
//! # How a change spreads
//!
//! The equation of `L_l` is written `L_l = G_l(levels of others)`. Levels that satisfy all of these equations are *the* levels: of any that do, the lowest
//! depends on no other, the next lowest on that one alone, and so on. So it does not matter how they are found. Links where flows have come or
//! gone are *under review*; one after the other, from the lowest level to the highest (those within 1/256 in any order), each gets the level that its equation says with what the others have
//! now, and where that changes a flow's rate, the other links on its route come under review. A link whose equation holds is not looked at.
//!
//! All the while, each flow's bottleneck is the lowest link of its route as levels are now:
//!
//! - Where a level falls, flows that stop above it on account of others stop here from now on.
//! - Where a level rises, flows that stopped here, and have a link on their routes that is lower than the new level, stop there, and the level is
//!   worked out again without them.
//!
//! It comes to an end: once the lowest levels are right, no other falls below the next one any more, and the link that has
//! it is right as soon as it is looked at. As reviews are in the order of levels, and levels mostly change little, a link whose level
//! changes is looked at once, seldom twice. In random traffic on an overloaded switch an event changes the levels of a handful of
//! links among thousands; where each host has tens of flows, those of most links above the one where a flow has ended, by ever
//! smaller amounts, which are exact all the same.

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
    /// Is a link in `changed`?
    noted: Vec<bool>,
    /// How often a link was looked at: what solving costs.
    #[cfg(test)]
    looks: u64,
    /// Links where flows have come or gone since they were last solved for.
    touched: Vec<u32>,
    /// Links whose level may have changed, since the caller last took note.
    pub(super) changed: Vec<u32>,
    /// Flows whose bottleneck may have changed, since the caller last took note.
    pub(super) moved: Vec<u32>,
}

struct LinkState {
    capacity: u64,
    /// The active flows that cross it: their bottlenecks (packed, as this is what is read most), and which of their hops it is.
    bottlenecks: Vec<u32>,
    crossing: Vec<Crossing>,
    sums: Sums,
}

/// A flow on a link, as the link knows it.
#[derive(Clone, Copy)]
struct Crossing {
    hop: u32,
    /// The flow's other link where its route has two that differ, or [`MANY`]: it is what is looked up most.
    peer: u32,
}

/// The flow's other links are to be looked up.
const MANY: u32 = u32::MAX;

/// What a link's level follows from unless another level is close to it. They are carried along where levels change, and added up anew
/// where flows have come, gone, or moved to another bottleneck since.
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

    /// A flow with another bottleneck gets another rate. Unknown sums stay unknown.
    fn follow(&mut self, before: u64, rate: u64) {
        self.elsewhere = self.elsewhere.wrapping_sub(before.into()).wrapping_add(rate.into());
        self.ceiling = self.ceiling.max(rate);
    }

    /// The level, if those of flows that stop elsewhere are so far below it that rounding does not count; see [`fall`].
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
    /// Of an active flow: the lowest link of its route.
    bottleneck: u32,
    /// Does it cross a link several times?
    repeats: bool,
}

/// A flow on a link.
struct Hop {
    link: u32,
    /// Where the flow, if active, is among the link's `crossing`.
    slot: u32,
    flow: u32,
    /// All hops of the flow: from this one to that.
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

    /// A new link; `capacity` is in quanta, and above zero. One that is [`UNBOUNDED`] holds nobody back; no route begins with it.
    pub(super) fn add_link(&mut self, capacity: u64) -> u32 {
        self.links.push(LinkState { capacity, bottlenecks: Vec::new(), crossing: Vec::new(), sums: Sums::UNKNOWN });
        self.level.push(UNBOUNDED);
        self.review.add();
        self.noted.push(false);
        self.links.len() as u32 - 1
    }

    /// A new flow, not active yet. Its route has at least one link. If a link comes several times, as many equal flows share it.
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

    /// Gives a link another capacity, as [`Sharing::add_link`]; an unbounded one only if it is not full.
    pub(super) fn set_capacity(&mut self, link: u32, capacity: u64) {
        let state = &mut self.links[link as usize];
        state.capacity = capacity;
        if !state.crossing.is_empty() {
            self.touched.push(link);
        }
    }

    /// The link that an active flow's rate is the level of, once solved.
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

    /// The rate of every flow whose bottleneck `link` is, in quanta.
    pub(super) fn level(&self, link: u32) -> u64 {
        self.level[link as usize]
    }

    /// What all flows that cross a link use of it, once solved.
    pub(super) fn used(&self, link: u32) -> u128 {
        let bottlenecks = self.links[link as usize].bottlenecks.iter();
        bottlenecks.map(|bottleneck| u128::from(self.level[*bottleneck as usize])).sum()
    }

    /// Is a link somebody's bottleneck, once solved?
    pub(super) fn is_full(&self, link: u32) -> bool {
        self.level[link as usize] != UNBOUNDED
    }

    /// Calls for the links of all flows whose rate may have changed since the caller last took note, often more than once.
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

    /// Alone on its route, a flow is as fast as the narrowest link. Otherwise that is to be found, by reviews of its links.
    fn first_bottleneck(&mut self, flow: u32) -> u32 {
        let hops = &self.hops[self.route(flow)];
        let (links, level) = (&self.links, &self.level);
        let crossed = |hop: &Hop| &links[hop.link as usize];
        if self.flows[flow as usize].repeats || hops.iter().any(|hop| !crossed(hop).crossing.is_empty()) {
            self.touched.extend(hops.iter().map(|hop| hop.link));
            // The first of those that are alike: no route begins with a link that holds nobody back.
            return hops.iter().min_by_key(|hop| level[hop.link as usize]).expect("a route has links").link;
        }
        let narrowest = hops.iter().min_by_key(|hop| crossed(hop).capacity);
        let bottleneck = narrowest.expect("a route has links").link;
        let capacity = crossed(narrowest.expect("a route has links")).capacity;
        self.set_level(bottleneck, capacity);
        bottleneck
    }

    /// Ends a flow's activity.
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

    /// Finds the levels and bottlenecks for the flows that are active now.
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

    /// The caller has taken note of [`Sharing::changed`] and [`Sharing::moved`].
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

    /// Gives a link the level that its equation says, and its flows theirs.
    fn look(&mut self, link: u32, water: u64) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let before = self.level[link as usize];
        let level = loop {
            // Its own flows count as stopping nowhere else.
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

    /// Flows that used to stop here, at `before`, and have a link that is lower than `level`, stop there. Are there any?
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

    /// A flow of `this` link has another rate, which its other links take note of.
    fn rate_changes(&mut self, this: u32, crossing: Crossing, rates: (u64, u64), water: u64) {
        if crossing.peer != MANY {
            return self.rate_changes_on(crossing.peer, this, rates, water);
        }
        let repeats = self.flows[self.hops[crossing.hop as usize].flow as usize].repeats;
        for other in self.others(crossing.hop) {
            let other = self.hops[other].link;
            // A flow that comes several times may be told of several times.
            self.links[other as usize].sums.known &= !repeats;
            if other != this {
                self.rate_changes_on(other, this, rates, water);
            }
        }
    }

    /// Reviews a link if the new rate of a flow may concern it: one that was not full will not be with less, and its level falls no lower
    /// than the rate was.
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

    /// A link that one flow has to itself need never be its bottleneck if another on its route is no wider.
    fn is_ample(&self, link: u32, other: u32) -> bool {
        let (state, other) = (&self.links[link as usize], &self.links[other as usize]);
        state.crossing.len() == 1 && state.capacity >= other.capacity && self.level[link as usize] == UNBOUNDED
    }

    fn route(&self, flow: u32) -> Range<usize> {
        let Hop { first, end, .. } = self.hops[self.flows[flow as usize].first_hop as usize];
        first as usize..end as usize
    }

    /// All hops of a flow but this one.
    fn others(&self, hop: u32) -> Chain<Range<usize>, Range<usize>> {
        let Hop { first, end, .. } = self.hops[hop as usize];
        (first as usize..hop as usize).chain(hop as usize + 1..end as usize)
    }
}

/// The level of a link, given where its flows stop on account of others, and a guess.
///
/// Newton's method counts flows that stop below a guess as they are, and lets the others share what is left.
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

/// From where the link was full before, which is mostly near: a step or two. After the first, which may start anywhere, steps only go up;
/// when the same flows stop below the new level, it is one at which the link is full. It is the lowest of these if no flow stops
/// so closely below it that rounding counts: `None` if one does.
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

/// From below: no step leads past the lowest level at which the link is full.
fn climb(link: &LinkState, level: &[u64]) -> u64 {
    let flows = link.crossing.len() as u64;
    let mut guess = (link.capacity / flows).max(1);
    loop {
        let below = Below::of(guess, &link.bottlenecks, level);
        let left = link.capacity.saturating_sub(below.used);
        let Some(share) = left.checked_div(flows - below.flows) else { return UNBOUNDED };
        let better = share.max(guess);
        if better <= below.next {
            // Where all stop at this level or below on account of others, it is not this link that stops them.
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
    /// Sum of their rates.
    used: u64,
    /// The highest rate among them.
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
