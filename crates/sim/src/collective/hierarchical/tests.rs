//! Grids of any shape: every rank ends with the result of the collective, in whatever order the lanes advance.

use super::*;
use crate::collective::dataflow::{Memory, carry_out};
use crate::collective::fold::ReductionPlan;
use crate::collective::{choose, lanes};
use crate::network::GridDimension;
use crate::program::{DType, ReduceOp};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn call(kind: CollectiveKind, shape: Shape) -> Collective {
    Collective { kind, dtype: DType::Float32, reduce: Some(ReduceOp::Sum), root: None, shape, kernel: None }
}

/// The algorithm for all ranks of a network.
fn on(sizes: &[u32], rows: &[RowAlgorithm], chunks: u32) -> Arc<dyn Algorithm> {
    let grid = Grid { dimensions: sizes.iter().map(|size| GridDimension { size: *size, meshed: false }).collect() };
    let ranks: Vec<RankId> = (0..sizes.iter().product()).map(RankId).collect();
    let table = choose::AlgorithmTable::ideal();
    Hierarchical::new(rows.to_vec(), chunks, table).on_grid(&grid, &ranks).unwrap()
}

/// For each member and element the list of its contributions; a list shows a contribution that is counted twice.
struct Sums(Vec<Vec<Vec<u32>>>);

impl Memory for Sums {
    type Message = Vec<Vec<u32>>;

    fn load(&mut self, rank: GroupRank, _: usize, span: Span) -> Self::Message {
        self.0[rank.index()][span.start as usize..span.end() as usize].to_vec()
    }

    fn store(&mut self, rank: GroupRank, _: usize, span: Span, combine: bool, message: Self::Message) {
        for (here, arrived) in self.0[rank.index()][span.start as usize..].iter_mut().zip(message) {
            if !combine {
                here.clear();
            }
            here.extend(arrived);
            here.sort_unstable();
        }
    }
}

/// A chunk, and coordinates.
type Coordinates = (usize, Vec<u32>);

/// The blocks of an all-to-all, each as (from, to); their order differs from lane to lane.
struct Exchange {
    sizes: Vec<u32>,
    passes_on: Vec<bool>,
    chunk_of: Vec<(u64, u64)>,
    /// Held blocks by member, chunk and coordinates of the place.
    held: Vec<BTreeMap<Coordinates, (u32, u32)>>,
}

impl Exchange {
    fn coordinates(&self, rank: u32) -> Vec<u32> {
        let mut left = rank;
        self.sizes.iter().map(|size| (left % size, left /= size).0).collect()
    }

    /// The places of a lane's span: the lane's dimension first, in the row's order, then all others. If blocks are
    /// forwarded, a row's places are counted from the member itself.
    fn places(&self, me: u32, lane: usize, span: Span) -> Vec<Coordinates> {
        let (ranks, size) = (self.sizes.iter().product::<u32>(), self.sizes[lane]);
        let chunk = self.chunk_of.iter().position(|(start, len)| span.start < start + len).unwrap();
        let piece = self.chunk_of[chunk].1 / u64::from(ranks);
        let (first, end) = (span.start - self.chunk_of[chunk].0, span.end() - self.chunk_of[chunk].0);
        let row = u64::from(ranks / size) * piece;
        assert!(first.is_multiple_of(row) && end.is_multiple_of(row), "whole places of the row");
        let others = |at: u32| (0..ranks).map(|rank| self.coordinates(rank)).filter(move |place| place[lane] == at);
        let at = |place: u64| match self.passes_on[lane] {
            true => (self.coordinates(me)[lane] + place as u32) % size,
            false => place as u32,
        };
        (first / row..end / row).flat_map(|place| others(at(place)).map(move |place| (chunk, place))).collect()
    }
}

impl Memory for Exchange {
    /// Blocks in the order of the sender's places, without the coordinate of the lane.
    type Message = Vec<(u32, u32)>;

    fn load(&mut self, rank: GroupRank, lane: usize, span: Span) -> Self::Message {
        self.places(rank.0, lane, span).iter().map(|place| self.held[rank.index()][place]).collect()
    }

    fn store(&mut self, rank: GroupRank, lane: usize, span: Span, _: bool, message: Self::Message) {
        for (place, block) in self.places(rank.0, lane, span).into_iter().zip(message) {
            self.held[rank.index()].insert(place, block);
        }
    }
}

fn shapes() -> impl Strategy<Value = (Vec<u32>, Vec<RowAlgorithm>)> {
    let rows = prop::sample::select(RowAlgorithm::ALL.map(|(_, row)| row).to_vec());
    prop::collection::vec((1..=5u32, rows), 1..=4)
        .prop_map(|dimensions| dimensions.into_iter().unzip())
        .prop_filter("between 2 and 48 ranks", |(sizes, _): &(Vec<u32>, Vec<RowAlgorithm>)| {
            (2..=48).contains(&sizes.iter().product::<u32>())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_rank_ends_with_all_contributions((sizes, rows) in shapes(), chunks in 1..=5u32, count in 0..40u64, uneven in any::<bool>()) {
        let size: u32 = sizes.iter().product();
        let algorithm = on(&sizes, &rows, chunks);
        let blocks: Vec<u64> = (0..u64::from(size)).map(|rank| (count + rank * 7) % 5).collect();
        for kind in [CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather] {
            let shape = if uneven && kind != CollectiveKind::AllReduce { Shape::Blocks(blocks.clone()) } else { Shape::Even(count) };
            let call = call(kind, shape);
            let (layout, order) = (Layout::of_members(&call, size), super::super::fold::order::Order::of(&*algorithm, &call, size));
            let elements = layout.blocks(0, size).len as usize;
            let own = |rank: u32| {
                let at_start = if kind == CollectiveKind::AllGather { order.counted(layout.block(rank)) } else { vec![Span { start: 0, len: elements as u64 }] };
                let has = move |element: u64| at_start.iter().any(|span| (span.start..span.end()).contains(&element));
                (0..elements as u64).map(|element| if has(element) { vec![rank] } else { vec![] }).collect::<Vec<_>>()
            };
            let mut memory = Sums((0..size).map(own).collect());
            carry_out((0..size).map(|me| lanes(&*algorithm, &call, size, GroupRank(me))).collect(), &mut memory);
            for rank in 0..size {
                let result = if kind == CollectiveKind::ReduceScatter { layout.block(rank) } else { layout.blocks(0, size) };
                for span in order.counted(result) {
                    for element in span.start..span.end() {
                        let held = &memory.0[rank as usize][element as usize];
                        match kind {
                            CollectiveKind::AllGather => prop_assert_eq!(held.len(), 1, "rank {} lacks element {}", rank, element),
                            _ => prop_assert_eq!(held, &(0..size).collect::<Vec<_>>(), "{} at rank {}", kind, rank),
                        }
                    }
                }
            }
            if kind == CollectiveKind::ReduceScatter {
                // The plan of folds uses the tensor's order: each rank's result is its own block.
                let plan = ReductionPlan::derive(&*algorithm, &call, size);
                for rank in 0..size {
                    let placed: Vec<Span> = plan.result(GroupRank(rank)).iter().map(|place| place.span).collect();
                    let (block, total) = (layout.block(rank), placed.iter().map(|span| span.len).sum::<u64>());
                    prop_assert_eq!(total, block.len);
                    prop_assert!(placed.windows(2).all(|pair| pair[0].end() == pair[1].start));
                    prop_assert!(placed.first().is_none_or(|span| span.start == block.start));
                }
            }
        }
    }

    #[test]
    fn every_block_reaches_the_rank_it_is_for((sizes, rows) in shapes(), chunks in 1..=3u32, count in 1..6u64) {
        let size: u32 = sizes.iter().product();
        let algorithm = on(&sizes, &rows, chunks);
        let call = call(CollectiveKind::AllToAll, Shape::Even(count));
        let lines: Vec<(u32, RowAlgorithm)> = sizes.iter().copied().zip(rows).filter(|(size, _)| *size > 1).collect();
        let cut = Layout::split(count, u64::from(chunks).min(count) as u32);
        let piece = |chunk| cut.block(chunk);
        let chunk_of = (0..u64::from(chunks).min(count) as u32).map(|chunk| (piece(chunk).start * u64::from(size), piece(chunk).len * u64::from(size))).collect();
        let passes_on = |(size, row): &(u32, RowAlgorithm)| match row {
            RowAlgorithm::Ring => true,
            RowAlgorithm::HalvingDoubling => !size.is_power_of_two(),
            RowAlgorithm::Direct => false,
        };
        let mut memory = Exchange {
            sizes: lines.iter().map(|line| line.0).collect(),
            passes_on: lines.iter().map(passes_on).collect(),
            chunk_of,
            held: Vec::new(),
        };
        let chunks = memory.chunk_of.len();
        let places = |me: u32| (0..chunks).flat_map(|chunk| (0..size).map(|to| ((chunk, memory.coordinates(to)), (me, to))).collect::<Vec<_>>()).collect();
        memory.held = (0..size).map(places).collect();
        carry_out((0..size).map(|me| lanes(&*algorithm, &call, size, GroupRank(me))).collect(), &mut memory);
        for (me, held) in memory.held.iter().enumerate() {
            let mut from = vec![0; size as usize];
            for (source, to) in held.values() {
                prop_assert_eq!(*to as usize, me, "a block for another rank is left");
                from[*source as usize] += 1;
            }
            prop_assert_eq!(from, vec![chunks; size as usize]);
        }
    }
}

#[test]
fn a_group_is_served_where_it_is_a_part_of_the_grid() {
    let dimension = |size| GridDimension { size, meshed: false };
    let grid = Grid { dimensions: vec![dimension(4), dimension(3)] };
    let part = |ranks: &[u32]| grid.part(&ranks.iter().copied().map(RankId).collect::<Vec<_>>());
    assert_eq!(part(&[0, 1, 2, 3]), Some(vec![4, 1]));
    assert_eq!(part(&[1, 5, 9]), Some(vec![1, 3]));
    assert_eq!(part(&[1, 3, 9, 11]), Some(vec![2, 2]));
    assert_eq!(part(&[1, 2, 9, 11]), None, "not the same coordinates in both rows");
    assert_eq!(part(&[1, 3, 11, 9]), None, "not in the order of the grid");
    assert_eq!(part(&[0, 5]), None);
    // Groups that are not part of the grid use the table's former algorithm.
    let mut table = choose::AlgorithmTable::ideal();
    let before = table.clone();
    table.force(CollectiveKind::AllReduce, Arc::new(Hierarchical::new(Vec::new(), 1, before)));
    table.lay_out(grid, 12);
    let name = |ranks: &[u32]| {
        let ranks: Vec<RankId> = ranks.iter().copied().map(RankId).collect();
        let call = call(CollectiveKind::AllReduce, Shape::Even(1));
        table.for_group(&ranks, None).unwrap().algorithm(&call, ranks.len() as u32).name()
    };
    assert_eq!([name(&[1, 3, 9, 11]), name(&[0, 5])], ["hierarchical", "ring"]);
}
