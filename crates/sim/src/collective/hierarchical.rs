//! Owns the hierarchical algorithms: a collective on a grid of ranks is carried out along one dimension of the network
//! after the other, in chunks that are in flight in all dimensions at once.
//!
//! Sources: Cho, Finkler, Serrano, Kung and Hunter, "BlueConnect: Decomposing all-reduce for deep learning on
//! heterogeneous network hierarchy", MLSys 2019 (reduce-scatter up the dimensions, all-gather down, on smaller and
//! smaller parts); ASTRA-sim 2.0, which cuts collectives into chunks that queue for each dimension. With k_d members
//! along dimension d, n bytes in all blocks together, one chunk, rings, latency a_d and b_d seconds per byte:
//! - reduce-scatter, all-gather: the sum over d of (k_d - 1) (a_d + n / (k_0 ... k_d) b_d)
//! - all-reduce: twice that
//! - all-to-all, direct along a dimension on one link per member: the sum over d of a_d + (k_d - 1) n / (P k_d) x P b_d
//!
//! where n is P blocks; for an all-to-all n is the data that a member sends, its own block included. Each of C chunks
//! lasts this long with n / C, and each dimension serves one chunk at a time: the reduce-scatters in their order, then
//! the all-gathers. The slowest dimension is therefore busy all the time, and the others overlap with it.
//!
//! A member with the coordinates (x_0, x_1, ...) is number x_0 + k_0 (x_1 + k_1 (...)). Steps order blocks by the
//! coordinates of their ranks, the first dimension first, so that the data of a row's exchange is contiguous. In an
//! all-to-all, whose blocks travel between two coordinates, each lane orders them by its own dimension first.

use super::halving_doubling::halve;
use super::layout::{Layout, whole};
use super::linear::Linear;
use super::power_of_two::Core;
use super::recursive_doubling::double;
use super::ring::{self, Ring};
use super::rounds::{Round, before, recv, recv_combine, renumbered, send, wrap};
use super::table::AlgorithmTable;
use super::{Action, Algorithm, Beside, Grid, GroupRank, Span, Step, Steps, Surroundings};
use crate::ids::RankId;
use crate::program::{Collective, CollectiveKind, Shape};
use crate::symmetry::Relabeling;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Algorithm of a row of ranks along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAlgorithm {
    /// One block per round to the next rank of the row; the blocks of an all-to-all are forwarded from rank to rank.
    Ring,
    /// Each block directly to its destination, all at once.
    Direct,
    /// Recursive halving and doubling if the row's size is a power of two; otherwise a ring. An all-to-all is direct.
    HalvingDoubling,
}

impl RowAlgorithm {
    /// All row algorithms, with their names in cluster files.
    pub const ALL: [(&'static str, RowAlgorithm); 3] = [
        ("ring", RowAlgorithm::Ring),
        ("direct", RowAlgorithm::Direct),
        ("halving_doubling", RowAlgorithm::HalvingDoubling),
    ];
}

/// Number of chunks of a collective if the cluster file does not set it.
pub const DEFAULT_CHUNKS: u32 = 4;

/// See the module.
#[derive(Clone)]
pub struct Hierarchical {
    /// Algorithm of each dimension of the network; empty: the default for each dimension.
    rows: Vec<RowAlgorithm>,
    /// Number of chunks of a collective; at least 1.
    chunks: u32,
    /// Dimensions of the group in which it has several ranks. `None`: not known yet, or the group is not part of the
    /// grid.
    place: Option<Vec<Line>>,
    told: bool,
    /// Algorithms for groups that are not part of the grid, and for all-to-alls of unequal blocks. `None`: a ring, and
    /// for all-to-alls a direct exchange.
    otherwise: Option<AlgorithmTable>,
}

/// One dimension of a group.
#[derive(Clone, Copy)]
struct Line {
    size: u32,
    row: RowAlgorithm,
    /// The algorithm of an all-to-all.
    exchange: RowAlgorithm,
}

impl Hierarchical {
    /// An algorithm for each dimension of the network (empty: rings, and direct exchange if a dimension is fully
    /// connected or each rank has other blocks); `chunks` is at least 1. `otherwise` serves groups that are not part of
    /// a grid.
    pub fn new(rows: Vec<RowAlgorithm>, chunks: u32, otherwise: AlgorithmTable) -> Hierarchical {
        assert!(chunks > 0, "no chunks carry nothing");
        Hierarchical { rows, chunks, place: None, told: false, otherwise: Some(otherwise) }
    }

    /// Number of chunks of this call: each chunk has an element of each block.
    fn chunks(&self, call: &Collective) -> u32 {
        let most = match &call.shape {
            Shape::Even(count) => *count,
            Shape::Blocks(blocks) => blocks.iter().copied().max().unwrap_or(0),
            Shape::Pairs { .. } => 1,
        };
        u64::from(self.chunks).min(most).max(1) as u32
    }

    /// The group's dimensions. Before the network's are known: the two factors that are nearest to each other.
    fn lines(&self, size: u32) -> Vec<Line> {
        if let Some(place) = &self.place {
            return place.clone();
        }
        let root = (1..=size).take_while(|factor| u64::from(*factor).pow(2) <= size.into());
        let factor = root.filter(|factor| size.is_multiple_of(*factor)).last().expect("1 divides everything");
        let line = |(index, size)| self.line(index, size, false);
        [size / factor, factor].into_iter().enumerate().map(line).filter(|line| line.size > 1).collect()
    }

    /// The algorithms of `size` ranks along a dimension of the network.
    fn line(&self, dimension: usize, size: u32, meshed: bool) -> Line {
        let said = self.rows.get(dimension).copied();
        let row = match said.unwrap_or(if meshed { RowAlgorithm::Direct } else { RowAlgorithm::Ring }) {
            RowAlgorithm::HalvingDoubling if !size.is_power_of_two() => RowAlgorithm::Ring,
            chosen => chosen,
        };
        let passes_on = said.is_some() && row == RowAlgorithm::Ring;
        Line { size, row, exchange: if passes_on { RowAlgorithm::Ring } else { RowAlgorithm::Direct } }
    }

    fn plan(&self, call: &Collective, size: u32, me: u32) -> Plan {
        let (chunks, lines) = (self.chunks(call), self.lines(size).into());
        let pieces = match (call.kind, &call.shape) {
            (CollectiveKind::AllReduce, _) => Pieces::Tensor { len: whole(call).len, chunks, size },
            (_, Shape::Even(len)) => Pieces::Blocks { len: *len, chunks, size },
            (kind, Shape::Pairs { .. }) => panic!("hierarchical cannot carry out {kind} of unequal pairs"),
            (_, Shape::Blocks(_)) => {
                let ends = self.order(call, size).into_iter().flatten().scan(0, |end, piece| {
                    *end += piece.len;
                    Some(*end)
                });
                Pieces::Listed { starts: std::iter::once(0).chain(ends).collect(), size }
            }
        };
        Plan { kind: call.kind, pieces, lines, chunks, size, me }
    }
}

impl Default for Hierarchical {
    fn default() -> Hierarchical {
        Hierarchical { rows: Vec::new(), chunks: DEFAULT_CHUNKS, place: None, told: false, otherwise: None }
    }
}

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn kinds(&self) -> &'static [CollectiveKind] {
        use CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
        &[AllReduce, AllGather, ReduceScatter, AllToAll]
    }

    fn steps(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Steps {
        self.plan(call, size, me).lane(0)
    }

    fn other_lanes(&self, call: &Collective, size: u32, GroupRank(me): GroupRank) -> Vec<Steps> {
        let plan = self.plan(call, size, me);
        (1..plan.lines.len()).map(|dimension| plan.lane(dimension)).collect()
    }

    fn order(&self, call: &Collective, size: u32) -> Option<Vec<Span>> {
        if !matches!(call.kind, CollectiveKind::ReduceScatter | CollectiveKind::AllGather) {
            return None;
        }
        let (layout, chunks) = (Layout::of_members(call, size), self.chunks(call));
        let order = by_first_dimension(&self.lines(size), size);
        let piece = |chunk: u32, rank: u32| {
            let block = layout.block(rank);
            let Span { start, len } = Layout::split(block.len, chunks).block(chunk);
            Span { start: block.start + start, len }
        };
        Some((0..chunks).flat_map(|chunk| order.iter().map(move |rank| piece(chunk, *rank))).collect())
    }

    fn decide(&self, call: &Collective, size: u32) -> Option<Arc<dyn Algorithm>> {
        let is_grid = !self.told || self.place.is_some();
        if is_grid && !matches!(call.shape, Shape::Pairs { .. }) {
            return None;
        }
        Some(match &self.otherwise {
            Some(table) => table.algorithm(call, size),
            None if call.kind == CollectiveKind::AllToAll => Arc::new(Linear),
            None => Arc::new(Ring),
        })
    }

    /// The symmetry of a group along one dimension. In a grid the rotations of a dimension also leave the steps
    /// unchanged, but they do not rotate the list of members as a whole.
    fn symmetry(&self, call: &Collective, size: u32) -> Option<Relabeling> {
        let (lines, chunks) = (self.lines(size), u64::from(self.chunks(call)));
        let even = match (call.kind, &call.shape) {
            (CollectiveKind::AllReduce, Shape::Even(count)) => count.is_multiple_of(chunks * u64::from(size)),
            (_, shape) => matches!(shape, Shape::Even(_)),
        };
        let [line] = lines[..] else { return None };
        let row = if call.kind == CollectiveKind::AllToAll { line.exchange } else { line.row };
        even.then_some(match row {
            RowAlgorithm::HalvingDoubling => Relabeling::Flip,
            RowAlgorithm::Ring | RowAlgorithm::Direct => Relabeling::Rotation,
        })
    }

    fn adapted(&self, surroundings: Surroundings) -> Option<Arc<dyn Algorithm>> {
        let mut adapted = self.clone();
        adapted.otherwise.as_mut()?.adapt(surroundings);
        Some(Arc::new(adapted))
    }

    fn on_grid(&self, grid: &Grid, ranks: &[RankId]) -> Option<Arc<dyn Algorithm>> {
        let line = |(index, size)| self.line(index, size, grid.dimensions[index].meshed);
        let place = grid.part(ranks).map(|sizes| sizes.into_iter().enumerate().map(line));
        let place = place.map(|lines| lines.filter(|line| line.size > 1).collect());
        let otherwise = self.otherwise.as_ref().map(|table| {
            let table = table.for_group(ranks, None).unwrap_or_else(|| table.clone());
            table.told_of(grid, ranks).unwrap_or(table)
        });
        Some(Arc::new(Hierarchical { place, told: true, otherwise, ..self.clone() }))
    }
}

impl Grid {
    /// Number of the group's ranks in each dimension; `None` if the group is not part of the grid. A part of the grid
    /// consists of all ranks whose coordinates are in given sets, one set per dimension, in the order of the grid.
    fn part(&self, ranks: &[RankId]) -> Option<Vec<u32>> {
        let mut stride = 1;
        let mut there: Vec<(u32, BTreeSet<u32>)> = Vec::new();
        for dimension in &self.dimensions {
            there.push((stride, ranks.iter().map(|rank| rank.0 / stride % dimension.size).collect()));
            stride *= dimension.size;
        }
        let sizes: Vec<u32> = there.iter().map(|(_, coordinates)| coordinates.len() as u32).collect();
        let whole =
            sizes.iter().try_fold(1_u32, |product, size| product.checked_mul(*size)) == Some(ranks.len() as u32);
        let is_placed = |(number, rank): (usize, &RankId)| {
            let mut number = number as u32;
            let coordinate = there.iter().map(|(stride, coordinates)| {
                let at = number % coordinates.len() as u32;
                number /= coordinates.len() as u32;
                coordinates.iter().nth(at as usize).expect("within") * stride
            });
            coordinate.sum::<u32>() == rank.0
        };
        (whole && ranks.iter().enumerate().all(is_placed)).then_some(sizes)
    }
}

/// The ranks sorted by their first coordinate, then by their second, and so on.
fn by_first_dimension(lines: &[Line], size: u32) -> Vec<u32> {
    let rank_of = |mut place: u32| {
        let (mut rank, mut stride) = (0, size);
        for line in lines.iter().rev() {
            stride /= line.size;
            rank += place % line.size * stride;
            place /= line.size;
        }
        rank
    };
    (0..size).map(rank_of).collect()
}

/// Spans of the pieces of chunks, in the order of the steps: the first chunk's pieces of all blocks, then the second's.
#[derive(Clone)]
enum Pieces {
    /// The whole tensor is cut into chunks, and each of them into blocks.
    Tensor { len: u64, chunks: u32, size: u32 },
    /// Each of `size` blocks of `len` elements is cut into chunks.
    Blocks { len: u64, chunks: u32, size: u32 },
    /// Each of `size` unequal blocks is cut into chunks: first element of each piece, and end of the last one.
    Listed { starts: Arc<[u64]>, size: u32 },
}

impl Pieces {
    /// The pieces `first` up to `end` of a chunk.
    fn span(&self, chunk: u32, first: u32, end: u32) -> Span {
        match self {
            Pieces::Tensor { len, chunks, size } => {
                let whole = Layout::split(*len, *chunks).block(chunk);
                let Span { start, len } = Layout::split(whole.len, *size).blocks(first, end);
                Span { start: whole.start + start, len }
            }
            Pieces::Blocks { len, chunks, size } => {
                let piece = Layout::split(*len, *chunks).block(chunk);
                let start = piece.start * u64::from(*size) + u64::from(first) * piece.len;
                Span { start, len: u64::from(end - first) * piece.len }
            }
            Pieces::Listed { starts, size } => {
                let (first, end) = (chunk * size + first, chunk * size + end);
                let start = starts[first as usize];
                Span { start, len: starts[end as usize] - start }
            }
        }
    }
}

/// The steps of one member.
#[derive(Clone)]
struct Plan {
    kind: CollectiveKind,
    pieces: Pieces,
    lines: Arc<[Line]>,
    chunks: u32,
    size: u32,
    me: u32,
}

/// Work of one chunk in one dimension.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    ReduceScatter,
    AllGather,
    AllToAll,
}

/// Batches of actions; a batch starts once the earlier ones are complete.
type Batches = Box<dyn Iterator<Item = Vec<Action>> + Send>;

impl Plan {
    /// All steps in one dimension.
    fn lane(&self, dimension: usize) -> Steps {
        let plan = self.clone();
        let mut issued = 0;
        Box::new(self.phases(dimension).into_iter().flat_map(move |(phase, chunk)| {
            let beside = plan.waits(dimension, phase, chunk);
            let batches = plan.batches(dimension, phase, chunk);
            let steps = batches.scan(issued, move |issued, batch| {
                let after = *issued;
                *issued += batch.len() as u64;
                Some(batch.into_iter().map(move |action| Step { action, after, beside }))
            });
            issued += u64::from(plan.length(dimension, phase));
            steps.flatten()
        }))
    }

    /// Phases and chunks in the order in which a dimension serves them.
    fn phases(&self, dimension: usize) -> Vec<(Phase, u32)> {
        let of = |phase| (0..self.chunks).map(move |chunk| (phase, chunk));
        let last = dimension + 1 == self.lines.len();
        match self.kind {
            CollectiveKind::AllGather => of(Phase::AllGather).collect(),
            CollectiveKind::AllToAll => of(Phase::AllToAll).collect(),
            CollectiveKind::ReduceScatter => of(Phase::ReduceScatter).collect(),
            // The last dimension carries out an all-reduce of the remaining part.
            _ if last => {
                (0..self.chunks).flat_map(|chunk| [(Phase::ReduceScatter, chunk), (Phase::AllGather, chunk)]).collect()
            }
            _ => of(Phase::ReduceScatter).chain(of(Phase::AllGather)).collect(),
        }
    }

    /// The steps of the previous or next dimension that end with the same chunk.
    fn waits(&self, dimension: usize, phase: Phase, chunk: u32) -> Beside {
        let last = dimension + 1 == self.lines.len();
        let lane = match phase {
            Phase::AllGather if last => return Beside::NOTHING,
            Phase::AllGather => dimension + 1,
            Phase::ReduceScatter | Phase::AllToAll if dimension == 0 => return Beside::NOTHING,
            Phase::ReduceScatter | Phase::AllToAll => dimension - 1,
        };
        let phases = self.phases(lane);
        let end = phases.iter().position(|other| *other == (phase, chunk)).expect("a dimension serves every chunk");
        let count = phases[..=end].iter().map(|(phase, _)| self.length(lane, *phase)).sum();
        Beside { lane: lane as u32, count }
    }

    fn row(&self, dimension: usize, phase: Phase) -> RowAlgorithm {
        let line = self.lines[dimension];
        if phase == Phase::AllToAll { line.exchange } else { line.row }
    }

    /// Number of steps of a phase: sends and receives.
    fn length(&self, dimension: usize, phase: Phase) -> u32 {
        let size = self.lines[dimension].size;
        match self.row(dimension, phase) {
            RowAlgorithm::Ring | RowAlgorithm::Direct => 2 * (size - 1),
            RowAlgorithm::HalvingDoubling => 2 * size.ilog2(),
        }
    }

    fn batches(&self, dimension: usize, phase: Phase, chunk: u32) -> Batches {
        let size = self.lines[dimension].size;
        let stride: u32 = self.lines[..dimension].iter().map(|line| line.size).product();
        let me = self.me / stride % size;
        let first = self.me - me * stride;
        let span = self.spans(dimension, phase, chunk);
        let rank = move |place: u32| first + place * stride;
        let one = move |span: &dyn Fn(u32, u32) -> Span, place: u32| span(place, place + 1);
        let rounds: Box<dyn Iterator<Item = Round> + Send> = match (self.row(dimension, phase), phase) {
            (RowAlgorithm::Direct, _) => {
                let exchange = (1..size).flat_map(move |distance| {
                    let (to, from) = (wrap(me + distance, size), before(me, distance, size));
                    match phase {
                        Phase::ReduceScatter => {
                            [send(rank(to), one(&span, to)), recv_combine(rank(from), one(&span, me))]
                        }
                        Phase::AllGather => [send(rank(to), one(&span, me)), recv(rank(from), one(&span, from))],
                        Phase::AllToAll => [send(rank(to), one(&span, to)), recv(rank(from), one(&span, from))],
                    }
                });
                return Box::new(std::iter::once(exchange.collect()));
            }
            (RowAlgorithm::Ring, Phase::ReduceScatter) => {
                Box::new(ring::reduce_scatter(move |place| one(&span, place), size, me))
            }
            (RowAlgorithm::Ring, Phase::AllGather) => {
                Box::new(ring::all_gather(move |place| one(&span, place), size, me))
            }
            // Place d holds the data for the member d places further, and at the end the data from the member d places
            // before.
            (RowAlgorithm::Ring, Phase::AllToAll) => Box::new((1..size).map(move |round| {
                let left = span(round, size);
                [Some(send(wrap(me + 1, size), left)), Some(recv(before(me, 1, size), left))]
            })),
            (RowAlgorithm::HalvingDoubling, Phase::ReduceScatter) => Box::new(halve(Core::of(size), me, span)),
            (RowAlgorithm::HalvingDoubling, _) => Box::new(double(Core::of(size), me, span)),
        };
        Box::new(rounds.map(move |round| renumbered(round, rank).into_iter().flatten().collect()))
    }

    /// The elements of a row's places `first` up to `end`; each place stands for as many blocks as there
    /// are combinations of the remaining coordinates.
    fn spans(&self, dimension: usize, phase: Phase, chunk: u32) -> impl Fn(u32, u32) -> Span + Send + use<> {
        let pieces = self.pieces.clone();
        let (mut begin, mut blocks, mut left) = (0, self.size, self.me);
        let before = if phase == Phase::AllToAll { 0 } else { dimension };
        for line in &self.lines[..before] {
            blocks /= line.size;
            begin += left % line.size * blocks;
            left /= line.size;
        }
        blocks /= self.lines[dimension].size;
        move |first, end| pieces.span(chunk, begin + first * blocks, begin + end * blocks)
    }
}

#[cfg(test)]
mod tests;
