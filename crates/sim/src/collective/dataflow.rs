//! Owns carrying out the steps of all members at once where only data matters, not time. What data is, is the caller's business.

use super::{Action, GroupRank, Span, Steps};
use std::collections::{BTreeMap, VecDeque};
use std::iter::Peekable;

/// The members' tensors.
pub(super) trait Memory {
    /// What a message carries.
    type Message;

    /// What member `rank` sends from `span`.
    fn load(&mut self, rank: GroupRank, span: Span) -> Self::Message;

    /// A message arrives at `rank`.
    fn store(&mut self, rank: GroupRank, span: Span, combine: bool, message: Self::Message);
}

/// Carries out the steps of each member in turn. Every member's receives complete in the order of its steps.
///
/// # Panics
/// If the members' steps do not fit together: some wait for ever, or messages are left over.
pub(super) fn carry_out<M: Memory>(members: Vec<Steps>, memory: &mut M) {
    try_carry_out(members, memory).unwrap_or_else(|unfit| panic!("the steps do not fit together: {unfit:?}"));
}

/// Why steps do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// A member waits for ever for a message.
    Stuck { member: usize, from: GroupRank },
    /// A message is never received.
    LeftOver { member: usize, from: GroupRank },
}

/// The same for steps that may not fit together.
pub(super) fn try_carry_out<M: Memory>(members: Vec<Steps>, memory: &mut M) -> Result<(), Unfit> {
    let mut members: Vec<Member<M>> = members.into_iter().map(Member::new).collect();
    let mut ready: VecDeque<usize> = (0..members.len()).collect();
    while let Some(rank) = ready.pop_front() {
        for receiver in advance(&mut members, rank, memory) {
            if members[receiver].awaits == Some(GroupRank::from(rank)) {
                members[receiver].awaits = None;
                ready.push_back(receiver);
            }
        }
    }
    for (member, state) in members.iter_mut().enumerate() {
        if let Some(from) = state.awaits {
            return Err(Unfit::Stuck { member, from });
        }
        assert!(state.steps.peek().is_none(), "member {member} waits for its own steps");
    }
    let mut left = members.iter().enumerate().flat_map(|(member, state)| {
        let full = state.inbox.iter().filter(|(_, messages)| !messages.is_empty());
        full.map(move |(from, _)| Unfit::LeftOver { member, from: *from })
    });
    left.next().map_or(Ok(()), Err)
}

struct Member<M: Memory> {
    steps: Peekable<Steps>,
    started: u64,
    /// Receives that have started, with the number of their step.
    pending: VecDeque<(u64, Receive)>,
    /// The member whose message is awaited.
    awaits: Option<GroupRank>,
    inbox: BTreeMap<GroupRank, VecDeque<M::Message>>,
}

struct Receive {
    from: GroupRank,
    span: Span,
    combine: bool,
}

impl<M: Memory> Member<M> {
    fn new(steps: Steps) -> Member<M> {
        let (pending, inbox) = (VecDeque::new(), BTreeMap::new());
        Member { steps: steps.peekable(), started: 0, pending, awaits: None, inbox }
    }

    /// The next step, if it may start now.
    fn start(&mut self) -> Option<Action> {
        let complete = self.pending.front().map_or(self.started, |(number, _)| *number);
        let step = self.steps.next_if(|step| step.after <= complete)?;
        self.started += 1;
        Some(step.action)
    }

    /// Completes the oldest receive if its message is there.
    fn receive(&mut self, me: GroupRank, memory: &mut M) -> bool {
        let Some((_, Receive { from, span, combine })) = self.pending.front() else { return false };
        let Some(message) = self.inbox.get_mut(from).and_then(VecDeque::pop_front) else {
            self.awaits = Some(*from);
            return false;
        };
        memory.store(me, *span, *combine, message);
        self.pending.pop_front();
        true
    }
}

/// Goes on with one member as far as it can; returns to whom it has sent.
fn advance<M: Memory>(members: &mut [Member<M>], rank: usize, memory: &mut M) -> Vec<usize> {
    let me = GroupRank::from(rank);
    let mut receivers = Vec::new();
    loop {
        match members[rank].start() {
            Some(Action::Send { to, span }) => {
                let message = memory.load(me, span);
                members[to.index()].inbox.entry(me).or_default().push_back(message);
                receivers.push(to.index());
            }
            Some(Action::Recv { from, span, combine }) => {
                let member = &mut members[rank];
                member.pending.push_back((member.started - 1, Receive { from, span, combine }));
            }
            None if members[rank].receive(me, memory) => {}
            None => return receivers,
        }
    }
}
