//! Owns algorithms that a user gives step by step, for groups of one size: whether their steps do what the collective promises, and how
//! they become steps like any other's. How a user writes them down is `uniference-formats`' business.
//!
//! The tensor is cut into blocks. In an all-reduce, a reduce or a broadcast they are parts of one tensor, as even as can be, larger ones first; in
//! an all-gather or a reduce-scatter each rank's own block is cut into as many parts, and rank r has the r-th of P rows of blocks.
//! Ranks of a collective with a root are counted from the root: rank 0 of the description is the root, whichever that is.

use super::choose::AlgorithmTable;
use super::dataflow::{Memory, Unfit, try_carry_out};
use super::layout::Layout;
use super::{Action, Algorithm, GroupRank, Span, Step, Steps, Surroundings};
use crate::program::{Collective, CollectiveKind, Shape};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The kinds that can be given.
pub static GIVEN_KINDS: [CollectiveKind; 6] = [
    CollectiveKind::AllReduce,
    CollectiveKind::Reduce,
    CollectiveKind::Broadcast,
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::Barrier,
];

/// A user's algorithm.
#[derive(Clone)]
pub struct Given {
    plan: Arc<Plan>,
    /// What carries out the same kind in groups of another size.
    otherwise: AlgorithmTable,
}

/// What a user describes: for each rank its steps, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The name in reports.
    pub name: &'static str,
    /// What it carries out.
    pub kind: CollectiveKind,
    /// Into how many blocks the tensor is cut.
    pub blocks: u32,
    /// By rank.
    pub ranks: Vec<Vec<GivenStep>>,
}

/// One step of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenStep {
    /// Sends, or else receives.
    pub sends: bool,
    /// To whom or from whom.
    pub peer: u32,
    /// The first block.
    pub block: u32,
    /// How many blocks; none is a message without data.
    pub count: u32,
    /// Received elements are combined with those there, rather than put in their place.
    pub combine: bool,
    /// The step starts once this rank's first so many steps are complete.
    pub after: u32,
}

/// Blocks times ranks: what each holds is followed step by step.
const MOST_BLOCKS: u64 = 1 << 22;

/// What is wrong with a user's algorithm. Ranks and steps are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum GivenError {
    #[error(
        "{0} cannot be given as steps\nhint: all_reduce, reduce, broadcast, all_gather, reduce_scatter and barrier can"
    )]
    Kind(CollectiveKind),
    #[error("a group of {0} needs no steps\nhint: describe at least 2 ranks")]
    Alone(usize),
    #[error("{blocks} blocks do not fit {kind} of {ranks} ranks\nhint: {hint}")]
    Blocks { kind: CollectiveKind, blocks: u32, ranks: usize, hint: &'static str },
    #[error("rank {rank}, step {step}: {problem}\nhint: {hint}")]
    Step { rank: usize, step: usize, problem: String, hint: &'static str },
    #[error(
        "rank {rank} waits for ever for a message of rank {from}\nhint: every receive has its send, and no ranks wait for each other in a circle"
    )]
    Stuck { rank: usize, from: usize },
    #[error("rank {to} does not receive all that rank {from} sends\nhint: every send has its receive")]
    LeftOver { from: usize, to: usize },
    #[error(
        "rank {to} receives {expected} where rank {from} sends {sent}\nhint: the n-th receive from a rank takes its n-th send"
    )]
    Blocked { from: usize, to: usize, expected: Blocks, sent: Blocks },
    #[error(
        "rank {rank} combines block {block} with what rank {of} gave already\nhint: every contribution counts once; leave `combine` out to replace"
    )]
    Twice { rank: usize, block: u32, of: u32 },
    #[error("rank {rank} ends with block {block} {holds}\nhint: {promise}")]
    Result { rank: usize, block: u32, holds: String, promise: &'static str },
}

/// Blocks that lie side by side, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks(u64, u64);

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            0 => f.write_str("nothing"),
            1 => write!(f, "block {}", self.0),
            count => write!(f, "blocks {} to {}", self.0, self.0 + count - 1),
        }
    }
}

impl Given {
    /// The algorithm of a plan; `otherwise` serves groups of another size.
    ///
    /// # Errors
    /// What does not carry out the collective: see [`GivenError`].
    pub fn new(plan: Plan, otherwise: AlgorithmTable) -> Result<Given, GivenError> {
        plan.check()?;
        Ok(Given { plan: Arc::new(plan), otherwise })
    }
}

impl Algorithm for Given {
    fn name(&self) -> &'static str {
        self.plan.name
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        let index = GIVEN_KINDS.iter().position(|kind| *kind == self.plan.kind).expect("it was checked");
        &GIVEN_KINDS[index..=index]
    }

    fn steps(&self, call: &Collective, size: u32, me: GroupRank) -> Steps {
        let root = call.root.map_or(0, |GroupRank(root)| root);
        let cut = self.plan.cut(call);
        let plan = self.plan.clone();
        let described = (me.0 + size - root) % size;
        Box::new((0..plan.ranks[described as usize].len()).map(move |index| {
            let step = plan.ranks[described as usize][index];
            let peer = GroupRank((step.peer + root) % size);
            step.with(peer, cut.blocks(step.block, step.block + step.count))
        }))
    }

    fn decide(&self, call: &Collective, size: u32) -> Option<Arc<dyn Algorithm>> {
        (size as usize != self.plan.ranks.len()).then(|| self.otherwise.algorithm(call, size))
    }

    fn adapted(&self, surroundings: Surroundings) -> Option<Arc<dyn Algorithm>> {
        let mut adapted = self.clone();
        adapted.otherwise.adapt(surroundings);
        Some(Arc::new(adapted))
    }
}

impl GivenStep {
    fn with(&self, peer: GroupRank, span: Span) -> Step {
        let action = match self.sends {
            true => Action::Send { to: peer, span },
            false => Action::Recv { from: peer, span, combine: self.combine },
        };
        Step { action, after: self.after.into() }
    }
}

impl Plan {
    /// Where the blocks of a call lie.
    fn cut(&self, call: &Collective) -> Layout {
        let ranks = self.ranks.len() as u32;
        match (call.kind, &call.shape) {
            (CollectiveKind::AllGather | CollectiveKind::ReduceScatter, _) if ranks != self.blocks => {
                Layout::of_members(call, ranks).cut(ranks, self.blocks / ranks)
            }
            (CollectiveKind::AllGather | CollectiveKind::ReduceScatter, _) => Layout::of_members(call, ranks),
            (_, Shape::Even(elements)) => Layout::split(*elements, self.blocks.max(1)),
            (kind, _) => panic!("{kind} has no blocks"),
        }
    }

    fn check(&self) -> Result<(), GivenError> {
        let Plan { kind, blocks, ref ranks, .. } = *self;
        if !GIVEN_KINDS.contains(&kind) {
            return Err(GivenError::Kind(kind));
        }
        if ranks.len() < 2 {
            return Err(GivenError::Alone(ranks.len()));
        }
        let rows = matches!(kind, CollectiveKind::AllGather | CollectiveKind::ReduceScatter);
        let hint = match kind {
            CollectiveKind::Barrier if blocks > 0 => "a barrier has no data: leave `blocks` out, and out of the steps",
            _ if rows && !blocks.is_multiple_of(ranks.len() as u32) => {
                "as many for each rank: a multiple of their number"
            }
            CollectiveKind::Barrier => "",
            _ if blocks == 0 => "cut the tensor into at least one",
            _ if u64::from(blocks) * ranks.len() as u64 > MOST_BLOCKS => "use fewer: at most 4 Mi over all ranks",
            _ => "",
        };
        if !hint.is_empty() {
            return Err(GivenError::Blocks { kind, blocks, ranks: ranks.len(), hint });
        }
        for (rank, steps) in ranks.iter().enumerate() {
            for (index, step) in steps.iter().enumerate() {
                self.check_step(rank, index, step)?;
            }
        }
        self.check_result()
    }

    fn check_step(&self, rank: usize, index: usize, step: &GivenStep) -> Result<(), GivenError> {
        let size = self.ranks.len();
        let wrong = |problem: String, hint| Err(GivenError::Step { rank, step: index, problem, hint });
        if step.peer as usize >= size {
            return wrong(format!("there is no rank {} of {size}", step.peer), "ranks are counted from 0");
        }
        if step.peer as usize == rank {
            return wrong("a rank sends nothing to itself".to_owned(), "leave the step out");
        }
        if u64::from(step.block) + u64::from(step.count) > self.blocks.into() {
            let end = u64::from(step.block) + u64::from(step.count.max(1)) - 1;
            return wrong(format!("there is no block {end} of {}", self.blocks), "blocks are counted from 0");
        }
        if step.after as usize > index {
            let problem = format!("it waits for {} steps, and {index} come before it", step.after);
            return wrong(problem, "a step waits for steps before it");
        }
        let reduces =
            matches!(self.kind, CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::ReduceScatter);
        if step.combine && (step.sends || !reduces) {
            return wrong("nothing is combined here".to_owned(), "only receives of a collective that reduces combine");
        }
        Ok(())
    }

    /// Carries all steps out on sets of contributions, one element a block.
    fn check_result(&self) -> Result<(), GivenError> {
        let mut memory = Contributions::new(self);
        let spelled = |steps: &Vec<GivenStep>| -> Steps {
            let step = |step: GivenStep| {
                step.with(GroupRank(step.peer), Span { start: step.block.into(), len: step.count.into() })
            };
            Box::new(steps.clone().into_iter().map(step))
        };
        let carried = try_carry_out(self.ranks.iter().map(spelled).collect(), &mut memory);
        if let Some(problem) = memory.problem.take() {
            return Err(problem);
        }
        carried.map_err(|unfit| match unfit {
            Unfit::Stuck { member, from } => GivenError::Stuck { rank: member, from: from.index() },
            Unfit::LeftOver { member, from } => GivenError::LeftOver { from: from.index(), to: member },
        })?;
        (0..self.ranks.len()).try_for_each(|rank| self.check_rank(rank, &memory.held[rank]))
    }

    fn check_rank(&self, rank: usize, held: &[BTreeSet<u32>]) -> Result<(), GivenError> {
        let size = self.ranks.len() as u32;
        let row = |block: u32| block / (self.blocks / size).max(1);
        let everyone: BTreeSet<u32> = (0..size).collect();
        for (block, held) in (0..).zip(held) {
            let (wanted, promise) = match self.kind {
                CollectiveKind::AllReduce => (Some(everyone.clone()), "every rank gets every rank's contribution"),
                CollectiveKind::Reduce => {
                    ((rank == 0).then(|| everyone.clone()), "rank 0, the root, gets every rank's contribution")
                }
                CollectiveKind::ReduceScatter => (
                    (row(block) as usize == rank).then(|| everyone.clone()),
                    "every rank gets every rank's contribution to its own blocks",
                ),
                CollectiveKind::Broadcast => (Some(BTreeSet::from([0])), "every rank gets what rank 0, the root, has"),
                CollectiveKind::AllGather => {
                    (Some(BTreeSet::from([row(block)])), "every rank gets every rank's blocks")
                }
                _ => (None, ""),
            };
            if wanted.is_some_and(|wanted| wanted != *held) {
                return Err(GivenError::Result { rank, block, holds: contributions(held), promise });
            }
        }
        Ok(())
    }
}

fn contributions(held: &BTreeSet<u32>) -> String {
    let ranks: Vec<String> = held.iter().map(u32::to_string).collect();
    match ranks.len() {
        0 => "empty".to_owned(),
        1 => format!("of rank {} alone", ranks[0]),
        _ => format!("of ranks {}", ranks.join(", ")),
    }
}

/// By rank and block, whose contributions are there. What a rank never had is empty.
struct Contributions {
    held: Vec<Vec<BTreeSet<u32>>>,
    problem: Option<GivenError>,
}

impl Contributions {
    fn new(plan: &Plan) -> Contributions {
        let size = plan.ranks.len() as u32;
        let row = |block: u32| block / (plan.blocks / size).max(1);
        let has = |rank: u32, block: u32| match plan.kind {
            CollectiveKind::Broadcast => rank == 0,
            CollectiveKind::AllGather => row(block) == rank,
            _ => true,
        };
        let own = |rank: u32, block: u32| if has(rank, block) { BTreeSet::from([rank]) } else { BTreeSet::new() };
        let held = (0..size).map(|rank| (0..plan.blocks).map(|block| own(rank, block)).collect()).collect();
        Contributions { held, problem: None }
    }
}

impl Memory for Contributions {
    type Message = (GroupRank, Span, Vec<BTreeSet<u32>>);

    fn load(&mut self, rank: GroupRank, span: Span) -> Self::Message {
        (rank, span, self.held[rank.index()][span.start as usize..span.end() as usize].to_vec())
    }

    fn store(&mut self, rank: GroupRank, span: Span, combine: bool, (from, sent, message): Self::Message) {
        if self.problem.is_some() {
            return;
        }
        if span != sent {
            let (expected, sent) = (Blocks(span.start, span.len), Blocks(sent.start, sent.len));
            self.problem = Some(GivenError::Blocked { from: from.index(), to: rank.index(), expected, sent });
            return;
        }
        for (block, arrived) in (span.start..).zip(message) {
            let held = &mut self.held[rank.index()][block as usize];
            if !combine {
                *held = arrived;
                continue;
            }
            if let Some(&of) = held.intersection(&arrived).next() {
                self.problem = Some(GivenError::Twice { rank: rank.index(), block: block as u32, of });
                return;
            }
            held.extend(arrived);
        }
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Given").field(&self.plan).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::choose::algorithm_by_name;
    use super::*;
    use crate::program::DType;

    /// What a user could have given in place of `algorithm`, whose steps keep to the edges of `blocks`.
    fn written_down(algorithm: &dyn Algorithm, kind: CollectiveKind, size: u32, blocks: u32) -> Plan {
        let rows = matches!(kind, CollectiveKind::AllGather | CollectiveKind::ReduceScatter);
        let elements = if rows { u64::from(blocks / size) } else { u64::from(blocks) };
        let root = matches!(kind, CollectiveKind::Reduce | CollectiveKind::Broadcast).then_some(GroupRank(0));
        let call = Collective { kind, dtype: DType::UInt8, reduce: None, root, shape: Shape::Even(elements) };
        let given = |Step { action, after }: Step| {
            let (sends, GroupRank(peer), span, combine) = match action {
                Action::Send { to, span } => (true, to, span, false),
                Action::Recv { from, span, combine } => (false, from, span, combine),
            };
            let [block, count, after] = [span.start, span.len, after].map(|number| number as u32);
            GivenStep { sends, peer, block, count, combine, after }
        };
        let ranks = (0..size).map(|me| algorithm.steps(&call, size, GroupRank(me)).map(given).collect()).collect();
        Plan { name: algorithm.name(), kind, blocks, ranks }
    }

    fn plan(kind: CollectiveKind, name: &str, size: u32, blocks: u32) -> Plan {
        written_down(&*algorithm_by_name(kind, name).unwrap(), kind, size, blocks)
    }

    fn call(kind: CollectiveKind, elements: u64) -> Collective {
        let root = matches!(kind, CollectiveKind::Reduce | CollectiveKind::Broadcast).then_some(GroupRank(1));
        Collective { kind, dtype: DType::Float32, reduce: None, root, shape: Shape::Even(elements) }
    }

    /// Algorithms of ours, written down in blocks, do the same steps whatever the size of the tensor.
    #[test]
    fn what_is_written_down_is_the_same_algorithm() {
        use CollectiveKind::*;
        let cases = [
            (AllReduce, "ring", 4, 4),
            (AllReduce, "ring", 5, 5),
            (AllGather, "ring", 4, 4),
            (ReduceScatter, "ring", 3, 3),
            (Reduce, "binomial", 6, 1),
            (Broadcast, "binomial", 7, 1),
            (Barrier, "dissemination", 5, 0),
        ];
        for (kind, name, size, blocks) in cases {
            let ours = algorithm_by_name(kind, name).unwrap();
            let given = Given::new(plan(kind, name, size, blocks), AlgorithmTable::ideal()).unwrap();
            for elements in [0, 1, 3, 1_000, 1_000_003] {
                let call = call(kind, if kind == Barrier { 0 } else { elements });
                for me in (0..size).map(GroupRank) {
                    let (mine, theirs) = (given.steps(&call, size, me), ours.steps(&call, size, me));
                    assert!(mine.eq(theirs), "{kind} {name} of {elements} on {me} of {size}");
                }
            }
        }
    }

    #[test]
    fn groups_of_another_size_are_served_otherwise() {
        let given = Given::new(plan(CollectiveKind::AllReduce, "ring", 4, 4), AlgorithmTable::gloo()).unwrap();
        let call = call(CollectiveKind::AllReduce, 10);
        assert!(given.decide(&call, 4).is_none());
        assert_eq!(given.decide(&call, 3).unwrap().name(), "gloo_ring");
    }

    #[test]
    fn what_does_not_carry_out_the_collective_is_refused() {
        let ring = || plan(CollectiveKind::AllReduce, "ring", 3, 3);
        let changed = |change: &dyn Fn(&mut Plan)| {
            let mut plan = ring();
            change(&mut plan);
            Given::new(plan, AlgorithmTable::ideal()).unwrap_err().to_string()
        };
        let cases = [
            (changed(&|plan| plan.kind = CollectiveKind::AllToAll), "all_to_all cannot be given"),
            (changed(&|plan| plan.ranks.truncate(1)), "a group of 1"),
            (changed(&|plan| plan.blocks = 0), "0 blocks do not fit all_reduce"),
            (changed(&|plan| plan.ranks[1][0].peer = 3), "rank 1, step 0: there is no rank 3 of 3"),
            (changed(&|plan| plan.ranks[1][0].peer = 1), "sends nothing to itself"),
            (changed(&|plan| plan.ranks[1][0].block = 3), "there is no block 3 of 3"),
            (changed(&|plan| plan.ranks[1][0].after = 1), "it waits for 1 steps, and 0 come before it"),
            (changed(&|plan| plan.ranks[1][0].combine = true), "nothing is combined here"),
            (changed(&|plan| plan.ranks[2].truncate(7)), "rank 2 does not receive all that rank 1 sends"),
            (changed(&|plan| plan.ranks[0].truncate(1)), "waits for ever for a message of rank"),
            (changed(&|plan| plan.ranks.iter_mut().for_each(|steps| steps.truncate(4))), "ends with block"),
            (changed(&|plan| plan.ranks[0][0].block = 0), "receives block 2 where rank 0 sends block 0"),
            (changed(&|plan| plan.ranks[2][5].combine = true), "rank 2 combines block 1 with what rank"),
            (changed(&|plan| plan.ranks[2][1].combine = false), "ends with block"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected) && error.contains("hint: "), "{error}\nis not: {expected}");
        }
    }
}
