//! Owns the execution of all members' steps without time, for their data only. The caller defines the data.

use super::{Action, Beside, GroupRank, Span, Steps};
use std::collections::{BTreeMap, VecDeque};
use std::iter::Peekable;

/// The members' tensors.
pub(super) trait Memory {
    /// Data of a message.
    type Message;

    /// Data that member `rank` sends from `span`, in a lane of its steps.
    fn load(&mut self, rank: GroupRank, lane: usize, span: Span) -> Self::Message;

    /// Stores a message that arrives at `rank`, in a lane of its steps.
    fn store(&mut self, rank: GroupRank, lane: usize, span: Span, combine: bool, message: Self::Message);
}

/// Carries out the lanes of each member in turn. The receives of a lane complete in the order of its steps.
///
/// # Panics
/// If the members' steps do not match: some wait for ever, or messages are left over.
pub(super) fn carry_out<M: Memory>(members: Vec<Vec<Steps>>, memory: &mut M) {
    try_carry_out(members, memory).unwrap_or_else(|unfit| panic!("the steps do not fit together: {unfit:?}"));
}

/// Reason why steps do not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// A member waits for ever for a message.
    Stuck { member: usize, from: GroupRank },
    /// A message is never received.
    LeftOver { member: usize, from: GroupRank },
}

/// Like [`carry_out`], for steps that may not match.
pub(super) fn try_carry_out<M: Memory>(members: Vec<Vec<Steps>>, memory: &mut M) -> Result<(), Unfit> {
    let mut members: Vec<Member<M>> = members.into_iter().map(Member::new).collect();
    let mut ready: VecDeque<usize> = (0..members.len()).collect();
    while let Some(rank) = ready.pop_front() {
        for receiver in advance(&mut members, rank, memory) {
            let awaited = Some(GroupRank::from(rank));
            let state = &mut members[receiver];
            for lane in state.lanes.iter_mut().filter(|lane| lane.awaits == awaited) {
                lane.awaits = None;
                ready.push_back(receiver);
            }
        }
    }
    for (member, state) in members.iter_mut().enumerate() {
        if let Some(from) = state.lanes.iter().find_map(|lane| lane.awaits) {
            return Err(Unfit::Stuck { member, from });
        }
        assert!(
            state.lanes.iter_mut().all(|lane| lane.steps.peek().is_none()),
            "member {member} waits for its own steps"
        );
    }
    let mut left = members.iter().enumerate().flat_map(|(member, state)| {
        let full = state.inbox.iter().filter(|(_, messages)| !messages.is_empty());
        full.map(move |(from, _)| Unfit::LeftOver { member, from: *from })
    });
    left.next().map_or(Ok(()), Err)
}

struct Member<M: Memory> {
    lanes: Vec<Lane>,
    inbox: BTreeMap<GroupRank, VecDeque<M::Message>>,
}

struct Lane {
    steps: Peekable<Steps>,
    started: u64,
    /// Started receives, with their step number.
    pending: VecDeque<(u64, Receive)>,
    /// The member from which the lane awaits a message.
    awaits: Option<GroupRank>,
}

struct Receive {
    from: GroupRank,
    span: Span,
    combine: bool,
}

impl Lane {
    fn new(steps: Steps) -> Lane {
        Lane { steps: steps.peekable(), started: 0, pending: VecDeque::new(), awaits: None }
    }

    /// Number of steps before the first incomplete one.
    fn complete(&self) -> u64 {
        self.pending.front().map_or(self.started, |(number, _)| *number)
    }
}

impl<M: Memory> Member<M> {
    fn new(lanes: Vec<Steps>) -> Member<M> {
        Member { lanes: lanes.into_iter().map(Lane::new).collect(), inbox: BTreeMap::new() }
    }

    /// The next step of a lane, if it may start now.
    fn start(&mut self, lane: usize) -> Option<Action> {
        let step = *self.lanes[lane].steps.peek()?;
        let Beside { lane: other, count } = step.beside;
        let is_free = count == 0 || self.lanes[other as usize].complete() >= u64::from(count);
        let lane = &mut self.lanes[lane];
        if step.after > lane.complete() || !is_free {
            return None;
        }
        lane.steps.next();
        lane.started += 1;
        Some(step.action)
    }

    /// Completes the oldest receive of a lane if its message has arrived.
    fn receive(&mut self, me: GroupRank, number: usize, memory: &mut M) -> bool {
        let lane = &mut self.lanes[number];
        let Some((_, Receive { from, span, combine })) = lane.pending.front() else { return false };
        let Some(message) = self.inbox.get_mut(from).and_then(VecDeque::pop_front) else {
            lane.awaits = Some(*from);
            return false;
        };
        memory.store(me, number, *span, *combine, message);
        lane.pending.pop_front();
        true
    }
}

/// Advances one member as far as possible; returns the members to which it has sent.
fn advance<M: Memory>(members: &mut [Member<M>], rank: usize, memory: &mut M) -> Vec<usize> {
    let me = GroupRank::from(rank);
    let mut receivers = Vec::new();
    loop {
        let mut idle = true;
        for lane in 0..members[rank].lanes.len() {
            while let Some(action) = members[rank].start(lane) {
                idle = false;
                match action {
                    Action::Send { to, span } => {
                        let message = memory.load(me, lane, span);
                        members[to.index()].inbox.entry(me).or_default().push_back(message);
                        receivers.push(to.index());
                    }
                    Action::Recv { from, span, combine } => {
                        let lane = &mut members[rank].lanes[lane];
                        lane.pending.push_back((lane.started - 1, Receive { from, span, combine }));
                    }
                }
            }
            idle &= !members[rank].receive(me, lane, memory);
        }
        if idle {
            return receivers;
        }
    }
}
