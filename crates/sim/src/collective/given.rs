//! Owns algorithms that a user gives step by step, for groups of one size: the check that their steps carry out the
//! collective, and their conversion to steps. `uniference-formats` defines their file format.
//!
//! The tensor is cut into blocks. In an all-reduce, a reduce or a broadcast they are parts of one tensor, as equal as
//! possible, larger ones first. In an all-gather, a reduce-scatter, a gather or a scatter each rank's own block is cut
//! into equally many parts, and rank r has the r-th of P rows of blocks. In an all-to-all each pair's block is cut, and
//! the data of rank s for rank d is the (s P + d)-th of P^2 rows. Ranks of a collective with a root are counted from
//! the root: rank 0 of the description is the root, whichever rank that is, and rows are in that order too.

use super::dataflow::{Memory, Unfit, try_carry_out};
use super::layout::Layout;
use super::table::AlgorithmTable;
use super::{Action, Algorithm, Grid, GroupRank, Span, Step, Steps, Surroundings, root_of};
use crate::ids::RankId;
use crate::program::{Collective, CollectiveKind, Shape};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A user's algorithm.
#[derive(Clone)]
pub struct Given {
    plan: Arc<Plan>,
    /// Whether a rank forwards another rank's data. In an all-to-all with unequal blocks, ranks know only their own
    /// sizes.
    relays: bool,
    /// Algorithms for the calls that the plan cannot carry out.
    otherwise: AlgorithmTable,
}

/// A user's description: the steps of each rank, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The name in reports.
    pub name: &'static str,
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// Number of blocks of the tensor.
    pub blocks: u32,
    /// The steps of each rank, indexed by its rank in the group.
    pub ranks: Vec<Vec<GivenStep>>,
}

/// One step of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenStep {
    /// Whether the step is a send rather than a receive.
    pub sends: bool,
    /// The receiver or sender.
    pub peer: u32,
    /// The first block.
    pub block: u32,
    /// Number of blocks; 0 is a message without data.
    pub count: u32,
    /// Whether received elements are combined with the present ones rather than replacing them.
    pub combine: bool,
    /// Number of the rank's first steps that must be complete before this step starts.
    pub after: u32,
}

/// Limit of blocks times ranks, because the check follows the content of each block of each rank.
const MOST_BLOCKS: u64 = 1 << 22;

/// Fault of a user's algorithm. Ranks and steps are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum GivenError {
    #[error("an algorithm for {0} ranks has no steps\nhint: describe at least 2 ranks")]
    Alone(usize),
    #[error("invalid number of blocks {blocks} for {kind} among {ranks} ranks\nhint: {hint}")]
    Blocks { kind: CollectiveKind, blocks: u32, ranks: usize, hint: &'static str },
    #[error("rank {rank}, step {step}: {problem}\nhint: {hint}")]
    Step { rank: usize, step: usize, problem: String, hint: &'static str },
    #[error(
        "deadlock: rank {rank} never receives a message from rank {from}\nhint: give every receive a matching send, and avoid cyclic waits between ranks"
    )]
    Stuck { rank: usize, from: usize },
    #[error("rank {to} does not receive every message from rank {from}\nhint: give every send a matching receive")]
    LeftOver { from: usize, to: usize },
    #[error(
        "rank {to} expects to receive {expected}, but rank {from} sends {sent}\nhint: the n-th receive from a rank matches its n-th send"
    )]
    Blocked { from: usize, to: usize, expected: Blocks, sent: Blocks },
    #[error(
        "rank {rank} reduces the contribution of rank {of} to block {block} twice\nhint: reduce every contribution once; omit `combine` to overwrite the block"
    )]
    Twice { rank: usize, block: u32, of: u32 },
    #[error("wrong result: at the end, block {block} of rank {rank} {holds}\nhint: {promise}")]
    Result { rank: usize, block: u32, holds: String, promise: &'static str },
}

/// Display of adjacent blocks.
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
    /// The algorithm of a plan; `otherwise` serves groups of another size, and unequal blocks that the plan passes on.
    ///
    /// # Errors
    /// [`GivenError`] if the plan does not carry out the collective.
    pub fn new(plan: Plan, otherwise: AlgorithmTable) -> Result<Given, GivenError> {
        plan.check()?;
        Ok(Given { relays: plan.relays(), plan: Arc::new(plan), otherwise })
    }
}

impl Algorithm for Given {
    fn name(&self) -> &'static str {
        self.plan.name
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        let all: &'static [CollectiveKind] = &CollectiveKind::ALL;
        let index = all.iter().position(|kind| *kind == self.plan.kind).expect("these are all");
        &all[index..=index]
    }

    fn steps(&self, call: &Collective, size: u32, me: GroupRank) -> Steps {
        let root = call.root.map_or(0, |GroupRank(root)| root);
        let cut = self.plan.cut(call, me);
        let plan = self.plan.clone();
        let described = (me.0 + size - root) % size;
        Box::new((0..plan.ranks[described as usize].len()).map(move |index| {
            let step = plan.ranks[described as usize][index];
            let peer = GroupRank((step.peer + root) % size);
            step.with(peer, cut.blocks(step.block, step.block + step.count))
        }))
    }

    fn decide(&self, call: &Collective, size: u32) -> Option<Arc<dyn Algorithm>> {
        let unknown = self.relays && matches!(call.shape, Shape::Pairs { .. });
        (size as usize != self.plan.ranks.len() || unknown).then(|| self.otherwise.algorithm(call, size))
    }

    fn adapted(&self, surroundings: Surroundings) -> Option<Arc<dyn Algorithm>> {
        let mut adapted = self.clone();
        adapted.otherwise.adapt(surroundings);
        Some(Arc::new(adapted))
    }

    fn on_grid(&self, grid: &Grid, ranks: &[RankId]) -> Option<Arc<dyn Algorithm>> {
        let otherwise = self.otherwise.told_of(grid, ranks)?;
        Some(Arc::new(Given { otherwise, ..self.clone() }))
    }
}

impl GivenStep {
    fn with(&self, peer: GroupRank, span: Span) -> Step {
        let action = match self.sends {
            true => Action::Send { to: peer, span },
            false => Action::Recv { from: peer, span, combine: self.combine },
        };
        Step::new(action, self.after.into())
    }
}

impl Plan {
    /// Layout of the blocks of a call of `me`.
    fn cut(&self, call: &Collective, GroupRank(me): GroupRank) -> Layout {
        let ranks = self.ranks.len() as u32;
        let rows = match (call.kind, &call.shape) {
            (CollectiveKind::AllToAll, _) => Layout::of_all_pairs(call, ranks, me),
            (CollectiveKind::AllGather | CollectiveKind::ReduceScatter, _) => Layout::of_members(call, ranks),
            (CollectiveKind::Gather | CollectiveKind::Scatter, _) => {
                Layout::of_members(call, ranks).counted_from(root_of(call).0, ranks)
            }
            (_, Shape::Even(elements)) => return Layout::split(*elements, self.blocks.max(1)),
            (kind, _) => panic!("{kind} has no blocks"),
        };
        let pieces = self.pieces();
        if pieces == 1 { rows } else { rows.cut(self.blocks / pieces, pieces) }
    }

    /// Number of rows of blocks: one for each rank, or for each pair. `None`: the blocks are parts of one tensor.
    fn rows(&self) -> Option<u64> {
        let ranks = self.ranks.len() as u64;
        match self.kind {
            CollectiveKind::AllToAll => Some(ranks * ranks),
            CollectiveKind::AllGather
            | CollectiveKind::ReduceScatter
            | CollectiveKind::Gather
            | CollectiveKind::Scatter => Some(ranks),
            _ => None,
        }
    }

    /// Number of blocks per row; at least 1.
    fn pieces(&self) -> u32 {
        self.rows().map_or(1, |rows| (u64::from(self.blocks) / rows).max(1) as u32)
    }

    /// Owner of a block at the start, and the rank that must have it at the end. `None` at the start: all ranks have
    /// their own contribution; `None` at the end: the block is not for a single rank.
    fn ends(&self, block: u32) -> (Option<u32>, Option<u32>) {
        let (row, ranks) = (block / self.pieces(), self.ranks.len() as u32);
        match self.kind {
            CollectiveKind::Broadcast => (Some(0), None),
            CollectiveKind::AllGather => (Some(row), None),
            CollectiveKind::Gather => (Some(row), Some(0)),
            CollectiveKind::Scatter => (Some(0), Some(row)),
            CollectiveKind::AllToAll => (Some(row / ranks), Some(row % ranks)),
            CollectiveKind::ReduceScatter => (None, Some(row)),
            CollectiveKind::Reduce => (None, Some(0)),
            CollectiveKind::AllReduce | CollectiveKind::Barrier => (None, None),
        }
    }

    fn relays(&self) -> bool {
        let stranger = |rank: usize, step: &GivenStep| {
            let ends = (step.block..step.block + step.count).map(|block| self.ends(block));
            let mut own = ends.map(|(source, target)| if step.sends { source } else { target });
            own.any(|own| own != Some(rank as u32))
        };
        self.ranks.iter().enumerate().any(|(rank, steps)| steps.iter().any(|step| stranger(rank, step)))
    }

    fn check(&self) -> Result<(), GivenError> {
        let Plan { kind, blocks, ref ranks, .. } = *self;
        if ranks.len() < 2 {
            return Err(GivenError::Alone(ranks.len()));
        }
        let uneven = self.rows().is_some_and(|rows| !u64::from(blocks).is_multiple_of(rows));
        let hint = match kind {
            CollectiveKind::Barrier if blocks > 0 => "a barrier has no data; remove `blocks`, also from the steps",
            CollectiveKind::AllToAll if uneven => "use a multiple of the square of the number of ranks",
            _ if uneven => "use a multiple of the number of ranks",
            CollectiveKind::Barrier => "",
            _ if blocks == 0 => "divide the tensor into at least one block",
            _ if u64::from(blocks) * ranks.len() as u64 > MOST_BLOCKS => {
                "use fewer blocks; the maximum is 4 Mi over all ranks"
            }
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
            return wrong(format!("rank {} is out of range for {size} ranks", step.peer), "ranks are numbered from 0");
        }
        if step.peer as usize == rank {
            return wrong("a rank cannot send to or receive from itself".to_owned(), "remove the step");
        }
        if u64::from(step.block) + u64::from(step.count) > self.blocks.into() {
            let end = u64::from(step.block) + u64::from(step.count.max(1)) - 1;
            return wrong(
                format!("block {end} is out of range for {} blocks", self.blocks),
                "blocks are numbered from 0",
            );
        }
        if step.after as usize > index {
            let problem = format!("the step waits for {} steps, but only {index} precede it", step.after);
            return wrong(problem, "a step can wait only for earlier steps");
        }
        let reduces =
            matches!(self.kind, CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::ReduceScatter);
        if step.combine && (step.sends || !reduces) {
            return wrong(
                "`combine` is not allowed here".to_owned(),
                "only a receive of a collective with a reduction can combine",
            );
        }
        Ok(())
    }

    /// Carries out all steps on sets of contributions, one element per block.
    fn check_result(&self) -> Result<(), GivenError> {
        let mut memory = Contributions::new(self);
        let spelled = |steps: &Vec<GivenStep>| -> Steps {
            let step = |step: GivenStep| {
                step.with(GroupRank(step.peer), Span { start: step.block.into(), len: step.count.into() })
            };
            Box::new(steps.clone().into_iter().map(step))
        };
        let carried = try_carry_out(self.ranks.iter().map(|steps| vec![spelled(steps)]).collect(), &mut memory);
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
        let everyone: BTreeSet<u32> = (0..self.ranks.len() as u32).collect();
        let promise = match self.kind {
            CollectiveKind::AllReduce => "every rank must have the contributions of all ranks",
            CollectiveKind::Reduce => "rank 0, the root, must have the contributions of all ranks",
            CollectiveKind::ReduceScatter => "every rank must have the contributions of all ranks to its own blocks",
            CollectiveKind::Broadcast => "every rank must have the data of rank 0, the root",
            CollectiveKind::AllGather => "every rank must have the blocks of all ranks",
            CollectiveKind::Gather => "rank 0, the root, must have the blocks of all ranks",
            CollectiveKind::Scatter => "every rank must have its own blocks of rank 0, the root",
            CollectiveKind::AllToAll => "every rank d must have the blocks (s P + d) of every rank s",
            CollectiveKind::Barrier => return Ok(()),
        };
        for (block, held) in (0..).zip(held) {
            let (source, target) = self.ends(block);
            let wanted = source.map_or_else(|| everyone.clone(), |source| BTreeSet::from([source]));
            if target.is_none_or(|target| target as usize == rank) && wanted != *held {
                return Err(GivenError::Result { rank, block, holds: contributions(held), promise });
            }
        }
        Ok(())
    }
}

fn contributions(held: &BTreeSet<u32>) -> String {
    let ranks: Vec<String> = held.iter().map(u32::to_string).collect();
    match ranks.len() {
        0 => "is empty".to_owned(),
        1 => format!("has only the contribution of rank {}", ranks[0]),
        _ => format!("has only the contributions of ranks {}", ranks.join(", ")),
    }
}

/// For each rank and block, the ranks whose contributions it contains. An empty set: the rank never had the block.
struct Contributions {
    held: Vec<Vec<BTreeSet<u32>>>,
    problem: Option<GivenError>,
}

impl Contributions {
    fn new(plan: &Plan) -> Contributions {
        let size = plan.ranks.len() as u32;
        let has = |rank: u32, block: u32| plan.ends(block).0.is_none_or(|source| source == rank);
        let own = |rank: u32, block: u32| if has(rank, block) { BTreeSet::from([rank]) } else { BTreeSet::new() };
        let held = (0..size).map(|rank| (0..plan.blocks).map(|block| own(rank, block)).collect()).collect();
        Contributions { held, problem: None }
    }
}

impl Memory for Contributions {
    type Message = (GroupRank, Span, Vec<BTreeSet<u32>>);

    fn load(&mut self, rank: GroupRank, _: usize, span: Span) -> Self::Message {
        (rank, span, self.held[rank.index()][span.start as usize..span.end() as usize].to_vec())
    }

    fn store(&mut self, rank: GroupRank, _: usize, span: Span, combine: bool, (from, sent, message): Self::Message) {
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

    /// The plan that a user could write for `algorithm`, whose steps keep to the edges of `blocks`.
    fn written_down(algorithm: &dyn Algorithm, kind: CollectiveKind, size: u32, blocks: u32) -> Plan {
        let rows = Plan { name: "", kind, blocks, ranks: vec![Vec::new(); size as usize] }.rows().unwrap_or(1);
        let elements = u64::from(blocks) / rows;
        let call = Collective {
            kind,
            dtype: DType::UInt8,
            reduce: None,
            root: root(kind, 0),
            shape: Shape::Even(elements),
            kernel: None,
        };
        let given = |me: u32, Step { action, after, .. }: Step| {
            let (sends, GroupRank(peer), span, combine) = match action {
                Action::Send { to, span } => (true, to, span, false),
                Action::Recv { from, span, combine } => (false, from, span, combine),
            };
            let [start, count, after] = [span.start, span.len, after].map(|number| number as u32);
            // Blocks are numbered over all pairs, but steps of a rank only number the rank's own blocks.
            let block = match (kind, sends) {
                (CollectiveKind::AllToAll, true) => me * size + start,
                (CollectiveKind::AllToAll, false) => peer * size + me,
                _ => start,
            };
            GivenStep { sends, peer, block, count, combine, after }
        };
        let steps = |me| algorithm.steps(&call, size, GroupRank(me)).map(|step| given(me, step)).collect();
        let ranks = (0..size).map(steps).collect();
        Plan { name: algorithm.name(), kind, blocks, ranks }
    }

    fn plan(kind: CollectiveKind, name: &str, size: u32, blocks: u32) -> Plan {
        written_down(&*algorithm_by_name(kind, name).unwrap(), kind, size, blocks)
    }

    fn root(kind: CollectiveKind, root: u32) -> Option<GroupRank> {
        use CollectiveKind::{Broadcast, Gather, Reduce, Scatter};
        matches!(kind, Reduce | Broadcast | Gather | Scatter).then_some(GroupRank(root))
    }

    fn call(kind: CollectiveKind, elements: u64) -> Collective {
        Collective {
            kind,
            dtype: DType::Float32,
            reduce: None,
            root: root(kind, 1),
            shape: Shape::Even(elements),
            kernel: None,
        }
    }

    /// For each step whether it sends, its peer, its number of elements, and its `after`.
    fn messages(steps: Steps) -> Vec<(bool, GroupRank, u64, u64)> {
        let message = |Step { action, after, .. }| match action {
            Action::Send { to, span } => (true, to, span.len, after),
            Action::Recv { from, span, .. } => (false, from, span.len, after),
        };
        steps.map(message).collect()
    }

    /// Built-in algorithms, expressed in blocks, have the same steps at any size of the tensor.
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
            (Gather, "linear", 4, 4),
            (Scatter, "linear", 5, 5),
            (AllToAll, "pairwise", 4, 16),
            (AllToAll, "linear", 3, 9),
        ];
        for (kind, name, size, blocks) in cases {
            let ours = algorithm_by_name(kind, name).unwrap();
            let given = Given::new(plan(kind, name, size, blocks), AlgorithmTable::ideal()).unwrap();
            for elements in [0, 1, 3, 1_000, 1_000_003] {
                let call = call(kind, if kind == Barrier { 0 } else { elements });
                for me in (0..size).map(GroupRank) {
                    // Offsets of blocks matter to reductions and copies. For kinds whose rows have another order, only
                    // sizes are compared.
                    let (mine, theirs) = (given.steps(&call, size, me), ours.steps(&call, size, me));
                    match kind {
                        Gather | Scatter | AllToAll => {
                            assert_eq!(messages(mine), messages(theirs), "{kind} {name}, {me}")
                        }
                        _ => assert!(mine.eq(theirs), "{kind} {name} of {elements} on {me} of {size}"),
                    }
                }
            }
        }
    }

    /// A gather from ranks 0 to 3 to rank 2 along a tree: rank 3 sends to its neighbour, which forwards both blocks.
    /// Blocks of 10, 20, 30 and 40 elements.
    #[test]
    fn rows_are_counted_from_the_root_and_may_be_unequal() {
        let step = |sends, peer, block, count, after| GivenStep { sends, peer, block, count, combine: false, after };
        let ranks = vec![
            vec![step(false, 1, 1, 1, 0), step(false, 2, 2, 2, 0)],
            vec![step(true, 0, 1, 1, 0)],
            vec![step(false, 3, 3, 1, 0), step(true, 0, 2, 2, 1)],
            vec![step(true, 2, 3, 1, 0)],
        ];
        let plan = Plan { name: "tree", kind: CollectiveKind::Gather, blocks: 4, ranks };
        let given = Given::new(plan.clone(), AlgorithmTable::ideal()).unwrap();
        let root = Some(GroupRank(2));
        let shape = Shape::Blocks(vec![10, 20, 30, 40]);
        let call = Collective { kind: plan.kind, dtype: DType::Float32, reduce: None, root, shape, kernel: None };
        // The order from rank 2 on is 2, 3, 0, 1 with 30, 40, 10 and 20 elements.
        let received = |me| messages(given.steps(&call, 4, GroupRank(me))).iter().map(|(_, _, len, _)| *len).collect();
        let lengths: Vec<Vec<u64>> = (0..4).map(received).collect();
        assert_eq!(lengths, [vec![20, 30], vec![20], vec![40, 30], vec![40]]);
        let lost = Plan {
            ranks: vec![plan.ranks[0].clone(), plan.ranks[1].clone(), vec![step(true, 0, 2, 2, 0)], vec![]],
            ..plan
        };
        let error = Given::new(lost, AlgorithmTable::ideal()).unwrap_err().to_string();
        assert!(
            error.contains("block 3 of rank 0 is empty") && error.contains("must have the blocks of all ranks"),
            "{error}"
        );
    }

    /// A plan without relays knows all sizes that it needs; a plan with relays lacks some if sizes differ from pair to
    /// pair.
    #[test]
    fn unequal_pairs_are_for_plans_that_send_directly() {
        let direct = Given::new(plan(CollectiveKind::AllToAll, "pairwise", 2, 4), AlgorithmTable::gloo()).unwrap();
        let shape = Shape::Pairs { send: vec![1, 7], recv: vec![1, 9] };
        let call = Collective { shape, ..call(CollectiveKind::AllToAll, 0) };
        assert!(direct.decide(&call, 2).is_none());
        let lengths: Vec<u64> = messages(direct.steps(&call, 2, GroupRank(0))).iter().map(|step| step.2).collect();
        assert_eq!(lengths, [7, 9]);
        let mut round = plan(CollectiveKind::AllToAll, "pairwise", 3, 9);
        // The block from 0 to 2 is forwarded by 1.
        let [there, on] = [(true, 1, 2), (true, 2, 2)].map(|(sends, peer, block)| GivenStep {
            sends,
            peer,
            block,
            count: 1,
            combine: false,
            after: 0,
        });
        round.ranks[0].retain(|step| !(step.sends && step.block == 2));
        round.ranks[0].push(there);
        let before = round.ranks[1].len() as u32;
        round.ranks[1].push(GivenStep { sends: false, peer: 0, ..there });
        round.ranks[1].push(GivenStep { after: before + 1, ..on });
        round.ranks[2].retain(|step| step.block != 2);
        round.ranks[2].push(GivenStep { sends: false, peer: 1, ..on });
        for steps in &mut round.ranks {
            steps.iter_mut().enumerate().for_each(|(index, step)| step.after = step.after.min(index as u32));
        }
        let relayed = Given::new(round, AlgorithmTable::gloo()).unwrap();
        let unequal = Shape::Pairs { send: vec![1; 3], recv: vec![1; 3] };
        assert_eq!(relayed.decide(&Collective { shape: unequal, ..call.clone() }, 3).unwrap().name(), "linear");
        assert!(relayed.decide(&Collective { shape: Shape::Even(5), ..call }, 3).is_none());
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
            (
                changed(&|plan| plan.kind = CollectiveKind::AllToAll),
                "invalid number of blocks 3 for all_to_all among 3 ranks",
            ),
            (changed(&|plan| plan.kind = CollectiveKind::Scatter), "`combine` is not allowed here"),
            (changed(&|plan| plan.ranks.truncate(1)), "an algorithm for 1 ranks"),
            (changed(&|plan| plan.blocks = 0), "invalid number of blocks 0 for all_reduce"),
            (changed(&|plan| plan.ranks[1][0].peer = 3), "rank 1, step 0: rank 3 is out of range for 3 ranks"),
            (changed(&|plan| plan.ranks[1][0].peer = 1), "cannot send to or receive from itself"),
            (changed(&|plan| plan.ranks[1][0].block = 3), "block 3 is out of range for 3 blocks"),
            (changed(&|plan| plan.ranks[1][0].after = 1), "the step waits for 1 steps, but only 0 precede it"),
            (changed(&|plan| plan.ranks[1][0].combine = true), "`combine` is not allowed here"),
            (changed(&|plan| plan.ranks[2].truncate(7)), "rank 2 does not receive every message from rank 1"),
            (changed(&|plan| plan.ranks[0].truncate(1)), "never receives a message from rank"),
            (changed(&|plan| plan.ranks.iter_mut().for_each(|steps| steps.truncate(4))), "at the end, block"),
            (changed(&|plan| plan.ranks[0][0].block = 0), "expects to receive block 2, but rank 0 sends block 0"),
            (changed(&|plan| plan.ranks[2][5].combine = true), "reduces the contribution of rank"),
            (changed(&|plan| plan.ranks[2][1].combine = false), "at the end, block"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected) && error.contains("hint: "), "{error}\nis not: {expected}");
        }
    }
}
