//! Owns the conversion of rounds of actions into steps that wait for earlier ones, whatever the actions' purpose.

use super::{Action, Span, Step};
use crate::ids::GroupRank;
use std::collections::VecDeque;

/// Actions of a member in one round: up to two, in this order.
pub(super) type Round = [Option<Action>; 2];

/// A round without actions, which counts as one in flight.
pub(super) const IDLE: Round = [None, None];

/// Steps made of rounds, of which `IN_FLIGHT` may be active at once: a round starts when all earlier rounds except the
/// last `IN_FLIGHT - 1` are complete.
pub(super) struct Rounds<I, const IN_FLIGHT: usize> {
    rounds: I,
    /// Second action of the current round.
    second: Option<Action>,
    /// Number of steps before each of the rounds that may be in flight, oldest first.
    starts: [u64; IN_FLIGHT],
    issued: u64,
}

/// Each round starts when the previous one is complete.
pub(super) fn one_by_one<I: Iterator<Item = Round>>(rounds: I) -> Rounds<I, 1> {
    in_flight(rounds)
}

/// `IN_FLIGHT` rounds may be active at once.
pub(super) fn in_flight<I: Iterator<Item = Round>, const IN_FLIGHT: usize>(rounds: I) -> Rounds<I, IN_FLIGHT> {
    Rounds { rounds, second: None, starts: [0; IN_FLIGHT], issued: 0 }
}

impl<I: Iterator<Item = Round>, const IN_FLIGHT: usize> Rounds<I, IN_FLIGHT> {
    #[inline]
    fn next_round(&mut self) -> Option<Action> {
        loop {
            let [first, second] = self.rounds.next()?;
            self.starts.rotate_left(1);
            self.starts[IN_FLIGHT - 1] = self.issued;
            if let Some(action) = first {
                self.second = second;
                return Some(action);
            }
            if second.is_some() {
                return second;
            }
        }
    }
}

impl<I: Iterator<Item = Round>, const IN_FLIGHT: usize> Iterator for Rounds<I, IN_FLIGHT> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        let action = match self.second.take() {
            Some(action) => action,
            None => self.next_round()?,
        };
        self.issued += 1;
        Some(Step::new(action, self.starts[0]))
    }
}

/// `steps`, followed by all `actions` at once when the steps are complete.
pub(super) fn then_at_once(
    steps: impl Iterator<Item = Step>,
    actions: impl Iterator<Item = Action>,
) -> impl Iterator<Item = Step> {
    let mut steps = steps.fuse();
    let mut actions = actions;
    let mut after = 0;
    std::iter::from_fn(move || match steps.next() {
        Some(step) => {
            after += 1;
            Some(step)
        }
        None => actions.next().map(|action| Step::new(action, after)),
    })
}

/// A round in which the function `rank_of` renumbers the members.
pub(super) fn renumbered(round: Round, rank_of: impl Fn(u32) -> u32) -> Round {
    let rank_of = |GroupRank(number)| GroupRank(rank_of(number));
    round.map(|action| match action? {
        Action::Send { to, span } => Some(Action::Send { to: rank_of(to), span }),
        Action::Recv { from, span, combine } => Some(Action::Recv { from: rank_of(from), span, combine }),
    })
}

pub(super) fn send(to: u32, span: Span) -> Action {
    Action::Send { to: GroupRank(to), span }
}

pub(super) fn recv(from: u32, span: Span) -> Action {
    Action::Recv { from: GroupRank(from), span, combine: false }
}

pub(super) fn recv_combine(from: u32, span: Span) -> Action {
    Action::Recv { from: GroupRank(from), span, combine: true }
}

/// `rank` modulo `size`, where `rank` is below `2 * size`; a division would dominate the cost of a step.
#[inline]
pub(super) fn wrap(rank: u32, size: u32) -> u32 {
    if rank >= size { rank - size } else { rank }
}

/// The rank `distance` places before `rank`; `distance` is at most `size`.
#[inline]
pub(super) fn before(rank: u32, distance: u32, size: u32) -> u32 {
    wrap(rank + size - distance, size)
}

/// Any number of actions at a time; each batch starts when the previous one is complete.
pub(super) fn batches(batches: impl Iterator<Item = Vec<Action>> + Send) -> impl Iterator<Item = Step> + Send {
    batches_in_flight(batches, 1)
}

/// Batches of which `in_flight` may be active at once: a batch starts when all earlier batches except the last
/// `in_flight - 1` are complete.
pub(super) fn batches_in_flight(
    batches: impl Iterator<Item = Vec<Action>> + Send,
    in_flight: u64,
) -> impl Iterator<Item = Step> + Send {
    let mut issued = 0;
    // Number of steps before each of the batches that may be in flight, oldest first.
    let mut starts: VecDeque<u64> = (0..in_flight).map(|_| 0).collect();
    batches.flat_map(move |batch| {
        starts.rotate_left(1);
        *starts.back_mut().expect("a batch is in flight") = issued;
        let after = starts[0];
        issued += batch.len() as u64;
        batch.into_iter().map(move |action| Step::new(action, after))
    })
}
