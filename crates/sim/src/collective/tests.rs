//! Properties of every algorithm: steps match, results are complete, and costs are the closed forms of the modules.

use super::chain::Chain;
use super::choose::{algorithm_by_name, algorithms_for};
use super::dataflow::{Memory, carry_out};
use super::double_tree::{DoubleTree, Servers};
use super::fold::ReductionPlan;
use super::fold::order::Order;
use super::layout::Layout;
use super::nvls_tree::NvlsTree;
use super::peers::Peers;
use super::rails::Rails;
use super::{Action, Algorithm, GroupRank, Span, Step, Steps, lanes};
use crate::program::CollectiveKind::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use crate::program::{Collective, DType, PeerKernel, ReduceOp, Shape};
use crate::time::Rate;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn call(kind: CollectiveKind, root: u32, shape: Shape) -> Collective {
    Collective {
        kind,
        dtype: DType::Float32,
        reduce: Some(ReduceOp::Sum),
        root: Some(GroupRank(root)),
        shape,
        kernel: None,
    }
}

fn nvlink() -> Rate {
    Rate::new(360e9).unwrap()
}

/// Every algorithm for every kind.
fn everything() -> Vec<(CollectiveKind, Arc<dyn Algorithm>)> {
    let pairs = CollectiveKind::ALL.into_iter().map(|kind| (kind, algorithms_for(kind)));
    let chosen = pairs.flat_map(|(kind, found)| found.into_iter().map(move |algorithm| (kind, algorithm)));
    let of_programs = [PeerKernel::OneShot, PeerKernel::TwoShot].into_iter().flat_map(|kernel| {
        let algorithm = move || -> Arc<dyn Algorithm> { Arc::new(Peers::new(kernel, 4, nvlink())) };
        kernel.kinds().iter().map(move |kind| (*kind, algorithm()))
    });
    chosen.chain(of_programs).collect()
}

/// The members' calls and the algorithm of one collective.
struct Case {
    algorithm: Arc<dyn Algorithm>,
    calls: Vec<Collective>,
}

impl Case {
    fn even(kind: CollectiveKind, algorithm: Arc<dyn Algorithm>, size: u32, count: u64) -> Case {
        Case { algorithm, calls: vec![call(kind, 0, Shape::Even(count)); size as usize] }
    }

    fn named(kind: CollectiveKind, name: &str, size: u32, count: u64) -> Case {
        Case::even(kind, algorithm_by_name(kind, name).unwrap(), size, count)
    }

    fn with_root(mut self, root: u32) -> Case {
        self.calls.iter_mut().for_each(|call| call.root = Some(GroupRank(root)));
        self
    }

    fn kind(&self) -> CollectiveKind {
        self.calls[0].kind
    }

    fn size(&self) -> u32 {
        self.calls.len() as u32
    }

    fn ranks(&self) -> impl Iterator<Item = GroupRank> + use<> {
        (0..self.size()).map(GroupRank)
    }

    fn root(&self) -> GroupRank {
        self.calls[0].root.unwrap()
    }

    fn label(&self) -> String {
        format!("{} {} of {}: {:?}", self.algorithm.name(), self.kind(), self.size(), self.calls[0])
    }

    /// The generators of all lanes, by member.
    fn generators(&self) -> Vec<Vec<Steps>> {
        self.ranks().map(|me| lanes(&*self.algorithm, &self.calls[me.index()], self.size(), me)).collect()
    }

    /// The steps of all lanes, by member.
    fn steps(&self) -> Vec<Vec<Step>> {
        self.generators().into_iter().map(|lanes| lanes.into_iter().flatten().collect()).collect()
    }

    fn has_lanes(&self) -> bool {
        self.generators().iter().any(|lanes| lanes.len() > 1)
    }

    /// Elements sent by each member.
    fn sent(&self) -> Vec<u64> {
        let sent = |step: &Step| match step.action {
            Action::Send { span, .. } => span.len,
            Action::Recv { .. } => 0,
        };
        self.steps().iter().map(|steps| steps.iter().map(sent).sum()).collect()
    }

    fn layout(&self) -> Layout {
        Layout::of_members(&self.calls[0], self.size())
    }

    /// Elements of `span`, in the tensor's order, from a tensor in the order of the steps.
    fn within<T: Clone>(&self, tensor: &[T], span: Span) -> Vec<T> {
        let counted = Order::of(&*self.algorithm, &self.calls[0], self.size()).counted(span);
        counted.into_iter().flat_map(|span| within(tensor, span).to_vec()).collect()
    }

    /// Result of a member of a reducing collective.
    fn result(&self, rank: GroupRank) -> Span {
        match self.kind() {
            Reduce if rank != self.root() => Span::EMPTY,
            ReduceScatter => self.layout().block(rank.0),
            _ => self.layout().blocks(0, self.size()),
        }
    }

    fn check(&self) {
        self.check_fit();
        if !self.has_lanes() {
            self.check_races();
            self.rounds();
        }
        match self.kind() {
            AllReduce | Reduce | ReduceScatter => self.check_reduction(),
            AllToAll => self.check_all_to_all(),
            Barrier => self.check_barrier(),
            AllGather | Gather | Scatter | Broadcast => self.check_delivery(),
        }
    }

    /// The n-th send from a to b matches the n-th receive of b from a: equal numbers of messages, of equal lengths.
    fn check_fit(&self) {
        let mut sends: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        let mut receives = sends.clone();
        for (me, lanes) in self.generators().into_iter().enumerate() {
            for (index, step) in lanes.into_iter().flat_map(|lane| lane.enumerate()) {
                assert!(step.after <= index as u64, "{}: step {index} of {me} waits for itself", self.label());
                let (messages, pair, len) = match step.action {
                    Action::Send { to, span } => (&mut sends, (me as u32, to.0), span.len),
                    Action::Recv { from, span, .. } => (&mut receives, (from.0, me as u32), span.len),
                };
                assert!(pair.0 != pair.1 && pair.0.max(pair.1) < self.size(), "{}: {pair:?}", self.label());
                messages.entry(pair).or_default().push(len);
            }
        }
        assert_eq!(sends, receives, "{}", self.label());
    }

    /// Elements of a send or receive are not the target of another active receive, but several receives may be combined
    /// at one place.
    fn check_races(&self) {
        for steps in self.steps() {
            for (index, step) in steps.iter().enumerate() {
                let races = |earlier: &Step| match (earlier.action, step.action) {
                    (Action::Recv { combine: true, .. }, Action::Recv { combine: true, .. }) => false,
                    (Action::Recv { span: arriving, .. }, Action::Recv { span, .. }) => overlap(arriving, span),
                    (Action::Recv { span: arriving, .. }, Action::Send { span, .. }) => {
                        self.kind() != AllToAll && overlap(arriving, span)
                    }
                    (Action::Send { .. }, _) => false,
                };
                assert!(!steps[step.after as usize..index].iter().any(races), "{}: step {index}", self.label());
            }
        }
    }

    /// Number of rounds of the collective if every message lasts one round, from the start of both its steps to the end
    /// of both.
    fn rounds(&self) -> u64 {
        let steps = self.steps();
        let mut ends: Vec<Vec<u64>> = vec![Vec::new(); steps.len()];
        // Start times of the n-th message from a to b: of its send and of its receive.
        let mut starts: BTreeMap<(usize, usize), [Vec<u64>; 2]> = BTreeMap::new();
        let mut waiting: usize = steps.iter().map(Vec::len).sum();
        let mut begun = vec![0; steps.len()];
        while waiting > 0 {
            let before = (waiting, begun.clone());
            for me in 0..steps.len() {
                while let Some(step) = steps[me].get(begun[me]).filter(|step| step.after <= ends[me].len() as u64) {
                    let start = ends[me][..step.after as usize].iter().copied().max().unwrap_or(0);
                    let (pair, side) = sides(me, step);
                    starts.entry(pair).or_default()[side].push(start);
                    begun[me] += 1;
                }
                while let Some(end) =
                    steps[me].get(ends[me].len()).and_then(|step| end_of(&steps[me], &ends[me], me, step, &starts))
                {
                    ends[me].push(end);
                    waiting -= 1;
                }
            }
            assert_ne!(before, (waiting, begun.clone()), "{} is deadlocked", self.label());
        }
        ends.iter().flatten().copied().max().unwrap_or(0)
    }

    /// Every member's input is combined exactly once into every element, and the fold plan gives the same expression as
    /// the steps.
    fn check_reduction(&self) {
        let everything = self.layout().blocks(0, self.size());
        // One digit of seven bits per member: the sum of all inputs has 1 in each digit, and no other sum does.
        let digit = |rank: GroupRank| 1u128 << (7 * rank.0);
        let sums = self.run_reduction(|rank| vec![digit(rank); everything.len as usize], u128::wrapping_add);
        let all: u128 = self.ranks().map(digit).sum();
        for rank in self.ranks() {
            assert!(
                self.within(&sums[rank.index()], self.result(rank)).iter().all(|sum| *sum == all),
                "{}: {sums:x?}",
                self.label()
            );
        }
        let value = |rank: GroupRank| u128::from(rank.0) + 1;
        let values = if self.algorithm.combines_in_order() {
            let in_order = self.ranks().map(value).reduce(tangle).expect("there are members");
            vec![vec![in_order; everything.len as usize]; self.size() as usize]
        } else {
            self.run_reduction(|rank| vec![value(rank); everything.len as usize], tangle)
        };
        let plan = ReductionPlan::derive(&*self.algorithm, &self.calls[0], self.size());
        let slots = self.run_plan(&plan, everything.len as usize);
        for rank in self.ranks() {
            let parts =
                plan.result(rank).iter().flat_map(|place| within(&slots[place.slot.index()], place.span).to_vec());
            assert_eq!(
                parts.collect::<Vec<_>>(),
                self.within(&values[rank.index()], self.result(rank)),
                "{}: {plan:?}",
                self.label()
            );
        }
    }

    fn run_reduction(&self, input: impl Fn(GroupRank) -> Vec<u128>, op: fn(u128, u128) -> u128) -> Vec<Vec<u128>> {
        let mut memory = Reducing { tensors: self.ranks().map(input).collect(), op };
        carry_out(self.generators(), &mut memory);
        memory.tensors
    }

    fn run_plan(&self, plan: &ReductionPlan, elements: usize) -> Vec<Vec<u128>> {
        let mut slots: Vec<Vec<u128>> = (0..plan.slots).map(|slot| vec![u128::from(slot) + 1; elements]).collect();
        for fold in &plan.folds {
            assert_ne!(fold.destination, fold.source);
            let source = within(&slots[fold.source.index()], fold.span).to_vec();
            let here = &mut slots[fold.destination.index()][fold.span.start as usize..fold.span.end() as usize];
            for (here, source) in here.iter_mut().zip(source) {
                *here = if fold.combine { tangle(*here, source) } else { source };
            }
        }
        slots
    }

    /// The blocks that members have at the start are delivered to the members that the kind prescribes.
    fn check_delivery(&self) {
        let layout = self.layout();
        let everything = layout.blocks(0, self.size());
        let at_start = |rank: GroupRank| match self.kind() {
            AllGather | Gather => layout.block(rank.0),
            _ if rank == self.root() => everything,
            _ => Span::EMPTY,
        };
        let at_end = |rank: GroupRank| match self.kind() {
            AllGather | Broadcast => everything,
            Gather if rank == self.root() => everything,
            Scatter => layout.block(rank.0),
            _ => Span::EMPTY,
        };
        // Elements by location, in the order of the steps.
        let order = Order::of(&*self.algorithm, &self.calls[0], self.size());
        let held = |span: Span| {
            let counted = order.counted(span);
            (0..everything.len).map(move |element| {
                counted.iter().any(|span| (span.start..span.end()).contains(&element)).then_some(element)
            })
        };
        let mut memory = Copying { tensors: self.ranks().map(|rank| held(at_start(rank)).collect()).collect() };
        carry_out(self.generators(), &mut memory);
        for rank in self.ranks() {
            let wanted: Vec<_> = held(everything).collect();
            assert_eq!(
                self.within(&memory.tensors[rank.index()], at_end(rank)),
                self.within(&wanted, at_end(rank)),
                "{}",
                self.label()
            );
        }
    }

    /// Block b of the data that a sends is block a of the data that b receives.
    fn check_all_to_all(&self) {
        if self.algorithm.name() == "hierarchical" {
            // Blocks are forwarded: the algorithm's own tests follow them.
            return;
        }
        let layouts: Vec<(Layout, Layout)> = self.calls.iter().map(Layout::of_pairs).collect();
        let outputs = layouts.iter().map(|(_, incoming)| vec![None; incoming.blocks(0, self.size()).len as usize]);
        let mut memory = Exchanging { outputs: outputs.collect() };
        carry_out(self.generators(), &mut memory);
        for to in self.ranks() {
            for from in self.ranks().filter(|from| *from != to) {
                let arrived = within(&memory.outputs[to.index()], layouts[to.index()].1.block(from.0));
                let sent = layouts[from.index()].0.block(to.0);
                let wanted: Vec<_> = (sent.start..sent.end()).map(|element| Some((from, element))).collect();
                assert_eq!(arrived, wanted, "{}", self.label());
            }
        }
    }

    /// No member leaves before every other has entered: all members' signals reach it.
    fn check_barrier(&self) {
        let mut memory = Signals { heard: self.ranks().map(|rank| 1 << rank.0).collect() };
        carry_out(self.generators(), &mut memory);
        assert!(memory.heard.iter().all(|heard| *heard == (1 << self.size()) - 1), "{}", self.label());
    }
}

fn sides(me: usize, step: &Step) -> ((usize, usize), usize) {
    match step.action {
        Action::Send { to, .. } => ((me, to.index()), 0),
        Action::Recv { from, .. } => ((from.index(), me), 1),
    }
}

/// End of `step`, the first of `steps` whose end is unknown: one round after both sides have started.
fn end_of(
    steps: &[Step],
    ends: &[u64],
    me: usize,
    step: &Step,
    starts: &BTreeMap<(usize, usize), [Vec<u64>; 2]>,
) -> Option<u64> {
    let (pair, side) = sides(me, step);
    let number = steps[..ends.len()].iter().filter(|earlier| sides(me, earlier) == (pair, side)).count();
    let [sends, receives] = starts.get(&pair)?;
    let sent = *sends.get(number)?;
    // A send needs no receive: the cost of a rendezvous is modelled in the transport.
    if side == 0 { Some(sent + 1) } else { Some(sent.max(*receives.get(number)?) + 1) }
}

fn overlap(a: Span, b: Span) -> bool {
    a.start.max(b.start) < a.end().min(b.end())
}

fn within<T>(tensor: &[T], span: Span) -> &[T] {
    &tensor[span.start as usize..span.end() as usize]
}

/// A combination that is commutative and not associative.
fn tangle(a: u128, b: u128) -> u128 {
    let sum = a.wrapping_add(b).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    sum ^ (sum >> 61)
}

struct Reducing {
    tensors: Vec<Vec<u128>>,
    op: fn(u128, u128) -> u128,
}

impl Memory for Reducing {
    type Message = Vec<u128>;

    fn load(&mut self, rank: GroupRank, _: usize, span: Span) -> Vec<u128> {
        within(&self.tensors[rank.index()], span).to_vec()
    }

    fn store(&mut self, rank: GroupRank, _: usize, span: Span, combine: bool, message: Vec<u128>) {
        let here = &mut self.tensors[rank.index()][span.start as usize..span.end() as usize];
        for (here, arrived) in here.iter_mut().zip(message) {
            *here = if combine { (self.op)(*here, arrived) } else { arrived };
        }
    }
}

struct Copying {
    tensors: Vec<Vec<Option<u64>>>,
}

impl Memory for Copying {
    type Message = Vec<Option<u64>>;

    fn load(&mut self, rank: GroupRank, _: usize, span: Span) -> Vec<Option<u64>> {
        let elements = within(&self.tensors[rank.index()], span).to_vec();
        assert!(!elements.contains(&None), "{rank} sends {span:?} before it has it");
        elements
    }

    fn store(&mut self, rank: GroupRank, _: usize, span: Span, combine: bool, message: Vec<Option<u64>>) {
        assert!(!combine);
        self.tensors[rank.index()][span.start as usize..span.end() as usize].copy_from_slice(&message);
    }
}

type Element = Option<(GroupRank, u64)>;

struct Exchanging {
    outputs: Vec<Vec<Element>>,
}

impl Memory for Exchanging {
    type Message = Vec<Element>;

    fn load(&mut self, rank: GroupRank, _: usize, span: Span) -> Vec<Element> {
        (span.start..span.end()).map(|element| Some((rank, element))).collect()
    }

    fn store(&mut self, rank: GroupRank, _: usize, span: Span, combine: bool, message: Vec<Element>) {
        assert!(!combine);
        self.outputs[rank.index()][span.start as usize..span.end() as usize].copy_from_slice(&message);
    }
}

/// For each member, the set of members whose entry it knows of.
struct Signals {
    heard: Vec<u32>,
}

impl Memory for Signals {
    type Message = u32;

    fn load(&mut self, rank: GroupRank, _: usize, _: Span) -> u32 {
        self.heard[rank.index()]
    }

    fn store(&mut self, rank: GroupRank, _: usize, _: Span, _: bool, heard: u32) {
        self.heard[rank.index()] |= heard;
    }
}

#[test]
fn every_algorithm_is_right_at_every_size() {
    for (kind, algorithm) in everything() {
        for size in 2..=17 {
            for count in [0, 1, 2, u64::from(size) - 1, u64::from(size), u64::from(size) + 1, 100] {
                Case::even(kind, algorithm.clone(), size, count).with_root(size / 3).check();
            }
        }
    }
}

#[test]
fn tensors_of_many_segments_are_right() {
    // 1 MiB is 262,144 elements: three and more segments per chunk.
    for (kind, size, count) in [(AllReduce, 3, 2_000_003), (Reduce, 2, 1_800_001), (ReduceScatter, 2, 1_000_000)] {
        Case::named(kind, "gloo_ring", size, count).with_root(1).check();
    }
}

fn blocks(size: usize) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![Just(0u64), 0..40u64], size)
}

proptest! {
    #[test]
    fn unequal_blocks_are_right((lengths, root) in (2..=17usize).prop_flat_map(|size| (blocks(size), 0..size as u32))) {
        for (kind, algorithm) in everything() {
            if matches!(kind, AllGather | ReduceScatter | Gather | Scatter) {
                let calls = vec![call(kind, root, Shape::Blocks(lengths.clone())); lengths.len()];
                Case { algorithm, calls }.check();
            }
        }
    }

    #[test]
    fn any_count_and_root_is_right((size, root, count) in (2..=17u32).prop_flat_map(|size| (Just(size), 0..size, 0..300u64))) {
        for (kind, algorithm) in everything() {
            Case::even(kind, algorithm, size, count).with_root(root).check();
        }
    }

    #[test]
    fn unequal_pairs_are_right(table in (2..=9usize).prop_flat_map(|size| prop::collection::vec(blocks(size), size))) {
        for algorithm in algorithms_for(AllToAll) {
            let recv = |me: usize| table.iter().map(|row| row[me]).collect();
            let shape = |me: usize| Shape::Pairs { send: table[me].clone(), recv: recv(me) };
            let calls: Vec<Collective> = (0..table.len()).map(|me| call(AllToAll, 0, shape(me))).collect();
            let algorithm = algorithm.decide(&calls[0], table.len() as u32).unwrap_or(algorithm);
            Case { algorithm, calls }.check();
        }
    }
}

/// floor(log2 P) and ceil(log2 P).
fn logs(size: u32) -> (u64, u64) {
    (u64::from(size.ilog2()), u64::from(u32::BITS - (size - 1).leading_zeros()))
}

#[test]
fn rounds_are_the_closed_forms() {
    for size in 2..=17u32 {
        let (p, (low, high)) = (u64::from(size), logs(size));
        let fold = if low == high { 0 } else { 2 };
        // A member's path from the root has one message for each set bit of its number.
        let most_bits = u64::from((0..size).map(u32::count_ones).max().unwrap());
        let expected = [
            (AllReduce, "ring", 2 * (p - 1)),
            (AllGather, "ring", p - 1),
            (ReduceScatter, "ring", p - 1),
            (Broadcast, "binomial", high),
            (Reduce, "binomial", high),
            (AllReduce, "recursive_doubling", low + fold),
            (AllGather, "recursive_doubling", low + fold),
            (AllReduce, "halving_doubling", 2 * low + fold),
            (ReduceScatter, "halving_doubling", low + fold),
            (AllToAll, "pairwise", p - 1),
            (AllToAll, "linear", 1),
            (AllGather, "linear", 1),
            (Gather, "linear", 1),
            (Scatter, "linear", 1),
            (Broadcast, "linear", 1),
            (Reduce, "linear", 1),
            (Barrier, "dissemination", high),
            (AllReduce, "gloo_ring", 2 * (p - 1)),
            (Reduce, "gloo_ring", p),
            (ReduceScatter, "gloo_ring", 2 * (p - 1)),
            (AllGather, "gloo_ring", p - 1),
            (Broadcast, "gloo_binomial", most_bits),
            (AllGather, "bruck", high),
            (Broadcast, "chain", p - 1),
            (Reduce, "chain", p - 1),
            (Broadcast, "scatter_allgather", high + p - 1),
        ];
        // A double tree's depth differs from member to member; a choice among algorithms has their rounds. Kernels of
        // programs follow below.
        let others = everything().into_iter().filter(|(_, algorithm)| {
            is_choice(algorithm.name()) || algorithm.name() == "double_tree" || algorithm.is_of_program()
        });
        assert_eq!(expected.len() + others.count(), everything().len());
        for (kind, name, rounds) in expected {
            assert_eq!(Case::named(kind, name, size, 4 * p).rounds(), rounds, "{name} {kind} of {size}");
        }
        for (kernel, rounds) in [(PeerKernel::OneShot, 1), (PeerKernel::TwoShot, 2)] {
            let case = Case::even(AllReduce, Arc::new(Peers::new(kernel, size, nvlink())), size, 4 * p);
            assert_eq!(case.rounds(), rounds, "{}", case.label());
        }
    }
}

/// Algorithms that use the steps of others: Open MPI's and NCCL's choices, NCCL's variants, and hierarchical ones,
/// whose rounds are the sum over all dimensions.
fn is_choice(name: &str) -> bool {
    ["hierarchical", "nccl", "nvls", "nvls_tree", "open_mpi"].contains(&name)
        || ["_ll", "_ll128", "_simple"].iter().any(|end| name.ends_with(end))
}

/// Rings through every NIC of two or more servers deliver all data, also with fewer NICs than GPUs per server. A round
/// of these rings is one step of a single ring.
#[test]
fn rings_through_all_cards_deliver_everything() {
    for (per_server, nics, size) in
        [(2, 2, 4), (2, 2, 6), (4, 4, 8), (3, 3, 9), (4, 2, 8), (6, 2, 12), (6, 3, 18), (8, 4, 16)]
    {
        for (kind, count) in [(AllReduce, 31), (AllGather, 7), (ReduceScatter, 7)] {
            let case = Case::even(kind, Arc::new(Rails { per_server, nics }), size, count);
            case.check();
            let rounds = u64::from(size - 1) * if kind == AllReduce { 2 } else { 1 };
            assert_eq!(case.rounds(), rounds, "{}", case.label());
        }
    }
}

/// NVLink SHARP's trees deliver all data, in two rounds inside servers and two across.
#[test]
fn trees_of_switches_deliver_everything() {
    for (per_server, size) in [(2, 4), (3, 9), (4, 8), (4, 12)] {
        let case = Case::even(AllReduce, Arc::new(NvlsTree { per_server }), size, 31);
        case.check();
        assert_eq!(case.rounds(), 4, "{}", case.label());
    }
}

/// Trees and chains through the NICs deliver all data, also with fewer NICs than GPUs per server. A tree's chunk passes
/// 2 (G - 1 + log2 M) hops, and a chain's M G - 1; on each hop, four chunks are in flight.
#[test]
fn trees_and_chains_through_all_cards_deliver_everything() {
    for (gpus, cards, size) in [(2, 2, 4), (2, 1, 6), (4, 4, 8), (4, 2, 12), (3, 3, 9), (8, 8, 16), (6, 4, 18)] {
        let servers = Servers { gpus, cards };
        for (chunk, count) in [(1 << 20, 31), (64, 1000), (4, 1)] {
            Case::even(AllReduce, Arc::new(DoubleTree { chunk, servers }), size, count).check();
            for root in [0, 1, size - 1] {
                for kind in [Broadcast, Reduce] {
                    let case = Case::even(kind, Arc::new(Chain { chunk, servers }), size, count).with_root(root);
                    case.check();
                }
            }
        }
    }
}

#[test]
fn every_member_of_a_ring_sends_its_share() {
    for size in 2..=17u32 {
        let p = u64::from(size);
        // n = 4 P elements: 2 (P-1)/P n for all-reduce, (P-1)/P n for its halves, whose blocks are n/P.
        for (kind, name, count, sent) in [
            (AllReduce, "ring", 4 * p, 2 * (p - 1) * 4),
            (ReduceScatter, "ring", 4, (p - 1) * 4),
            (AllGather, "ring", 4, (p - 1) * 4),
            (AllReduce, "gloo_ring", 4 * p, 2 * (p - 1) * 4),
            (ReduceScatter, "gloo_ring", 4, 2 * (p - 1) * 4),
            (AllGather, "gloo_ring", 4, (p - 1) * 4),
            (AllToAll, "pairwise", 4, (p - 1) * 4),
            (AllToAll, "linear", 4, (p - 1) * 4),
            (AllGather, "linear", 4, (p - 1) * 4),
        ] {
            assert_eq!(
                Case::named(kind, name, size, count).sent(),
                vec![sent; size as usize],
                "{name} {kind} of {size}"
            );
        }
    }
}

#[test]
fn every_member_of_a_power_of_two_sends_its_share() {
    for size in [2u32, 4, 8, 16] {
        let (p, (k, _)) = (u64::from(size), logs(size));
        // P = 2^k, n = 4 P: k n for doubling of the whole tensor; (P-1)/P n for each halving or doubling of blocks.
        for (kind, name, count, sent) in [
            (AllReduce, "recursive_doubling", 4 * p, k * 4 * p),
            (AllGather, "recursive_doubling", 4, (p - 1) * 4),
            (AllReduce, "halving_doubling", 4 * p, 2 * (p - 1) * 4),
            (ReduceScatter, "halving_doubling", 4, (p - 1) * 4),
        ] {
            assert_eq!(
                Case::named(kind, name, size, count).sent(),
                vec![sent; size as usize],
                "{name} {kind} of {size}"
            );
        }
    }
}

#[test]
fn trees_and_stars_move_every_block_or_tensor_once() {
    for size in 2..=17u32 {
        // All members together send (P-1) n, where n is the tensor or one block.
        for (kind, name) in [
            (Broadcast, "binomial"),
            (Reduce, "binomial"),
            (Broadcast, "gloo_binomial"),
            (Broadcast, "linear"),
            (Reduce, "linear"),
            (Gather, "linear"),
            (Scatter, "linear"),
        ] {
            let sent: u64 = Case::named(kind, name, size, 10).with_root(size - 1).sent().iter().sum();
            assert_eq!(sent, u64::from(size - 1) * 10, "{name} {kind} of {size}");
        }
    }
}

#[test]
fn a_ring_of_131072_members_is_generated_step_by_step() {
    let case = call(AllReduce, 0, Shape::Even(1 << 20));
    let ring = algorithm_by_name(AllReduce, "ring").unwrap();
    // 2 (P-1) rounds of a send and a receive.
    assert_eq!(ring.steps(&case, 131_072, GroupRank(77)).count(), 4 * 131_071);
}

#[test]
fn gloo_gathers_a_block_in_two_halves() {
    let steps = Case::named(AllGather, "gloo_ring", 3, 5).steps();
    let send = |start, len| Action::Send { to: GroupRank(2), span: Span { start, len } };
    let sends: Vec<_> = steps[1].iter().filter(|step| matches!(step.action, Action::Send { .. })).collect();
    // Blocks of 5 elements: the member's own, 5..7 and 7..10, then the block received from the previous member.
    assert_eq!(
        sends.iter().map(|step| step.action).collect::<Vec<_>>(),
        [send(5, 2), send(7, 3), send(0, 2), send(2, 3)]
    );
    // Two pieces in flight in each direction: the third waits for the first.
    assert_eq!(sends.iter().map(|step| step.after).collect::<Vec<_>>(), [0, 0, 2, 4]);
}

#[test]
fn gloo_starts_the_second_phase_of_an_all_reduce_after_the_first() {
    let steps = Case::named(AllReduce, "gloo_ring", 2, 12).steps();
    // P = 2: two segments per chunk, both in flight in each phase, a receive and a send each.
    assert_eq!(steps[0].iter().map(|step| step.after).collect::<Vec<_>>(), [0, 0, 0, 0, 4, 4, 4, 4]);
    // P = 3: a phase has four rounds; the third waits for the first, the fourth for the second.
    let steps = Case::named(AllReduce, "gloo_ring", 3, 12).steps();
    let phases = [0, 0, 0, 0, 2, 2, 4, 4].into_iter().chain([8, 8, 8, 8, 10, 10, 12, 12]);
    assert_eq!(steps[0].iter().map(|step| step.after).collect::<Vec<_>>(), phases.collect::<Vec<_>>());
}

#[test]
fn gloo_reduces_a_list_two_blocks_at_a_time() {
    let calls = vec![call(ReduceScatter, 0, Shape::Blocks(vec![12; 3])); 3];
    let steps = Case { algorithm: algorithm_by_name(ReduceScatter, "gloo_ring").unwrap(), calls }.steps();
    // An all-reduce of P = 3 has 8 rounds of a receive and a send: 16 steps. The third block waits for both earlier
    // ones.
    assert_eq!(steps[0].len(), 3 * 16);
    assert_eq!(steps[0][..8].iter().map(|step| step.after).max(), Some(0));
    assert_eq!(steps[0][32..36].iter().map(|step| step.after).collect::<Vec<_>>(), [32; 4]);
}

/// p(steps(m)) = steps(p(m)) for every declared p: the same relabelled peers, as many elements, the same waits.
#[test]
fn declared_relabelings_leave_the_steps_as_they_are() {
    let mut declared = Vec::new();
    for (kind, algorithm) in everything() {
        for size in 2..=17 {
            // In a group of 16, rings of two servers through eight NICs each have a part of every block.
            let call = call(kind, 0, Shape::Even(u64::from(size) * 24));
            let Some(relabeling) = algorithm.symmetry(&call, size) else { continue };
            declared.push((kind, algorithm.name()));
            for by in 1..size {
                let relabel = |GroupRank(member)| GroupRank(relabeling.moved(member, by, size));
                for me in (0..size).map(GroupRank) {
                    let expected = algorithm.steps(&call, size, me).map(|step| outline(&step, relabel));
                    let steps = algorithm.steps(&call, size, relabel(me)).map(|step| outline(&step, |member| member));
                    assert!(expected.eq(steps), "{} {kind} of {size}, {me} moved by {by}", algorithm.name());
                }
            }
        }
    }
    declared.dedup();
    assert_eq!(declared.len(), 32, "{declared:?}");
}

/// Peer, whether the step sends to it, number of elements, and number of steps to wait for.
fn outline(step: &Step, relabel: impl Fn(GroupRank) -> GroupRank) -> (GroupRank, bool, u64, u64) {
    match step.action {
        Action::Send { to, span } => (relabel(to), true, span.len, step.after),
        Action::Recv { from, span, .. } => (relabel(from), false, span.len, step.after),
    }
}
