//! Owns the durations of collectives on ASTRA-sim's congestion-unaware backend, in ns, when all members enter at once.
//! Formulas are checked against ASTRA-sim 518bd513 with astra-network-analytical 599a0473.
//!
//! A message of m bytes over h hops lasts T(m) = floor(h latency + m / bandwidth), independent of other traffic. A
//! collective is split into chunks; a chunk passes through a phase on each dimension, and a dimension serves a few
//! chunks at a time, first come, first served.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::Saturating;
use std::ops::Add;
use uniference_formats::astra::inputs::{
    AstraCollective, Dimension, Implementation, InputError, Network, Optimization, System, TopologyKind,
};

/// The endpoint delay in ns of groups smaller than the world, instead of the system's: ASTRA-sim's own constant.
const GROUP_DELAY: u64 = 10;

/// A machine in ASTRA-sim's closed form.
#[derive(Clone, Debug)]
pub struct AnalyticalModel {
    /// By [`AstraCollective`], one algorithm per dimension of the network.
    algorithms: [Result<Vec<Implementation>, InputError>; 4],
    system: System,
    network: Network,
    /// Number of queues that share a dimension's active chunks.
    queues: u32,
}

/// Algorithms of a collective, by dimension.
fn implementations(
    kind: AstraCollective,
    system: &System,
    dimensions: &[Dimension],
) -> Result<Vec<Implementation>, InputError> {
    let named = match kind {
        AstraCollective::AllReduce => &system.all_reduce_implementation,
        AstraCollective::ReduceScatter => &system.reduce_scatter_implementation,
        AstraCollective::AllGather => &system.all_gather_implementation,
        AstraCollective::AllToAll => &system.all_to_all_implementation,
    };
    let name = kind.name();
    let asked = format!("and a trace has {} {name}", if kind == AstraCollective::ReduceScatter { "a" } else { "an" });
    if named.is_empty() {
        let message = format!("{name}-implementation is missing, {asked}");
        return Err(InputError::new(message, "give one algorithm per dimension of the network"));
    }
    if named.len() < dimensions.len() {
        let message = format!("{name}-implementation lists {} algorithms, {asked}", named.len());
        return Err(InputError::new(
            message,
            format!("give one algorithm for each of the {} dimensions of the network", dimensions.len()),
        ));
    }
    let known = |(algorithm, dimension): (&String, &Dimension)| match Implementation::by_name(algorithm) {
        None => {
            let message = format!("{name}-implementation: unknown algorithm `{algorithm}`, {asked}");
            Err(InputError::new(message, "the algorithms are: ring, direct, halvingDoubling"))
        }
        Some(Implementation::HalvingDoubling) if kind == AstraCollective::AllToAll => {
            let message = format!("all-to-all does not support halvingDoubling, {asked}");
            Err(InputError::new(message, "use ring or direct"))
        }
        Some(Implementation::HalvingDoubling) if !dimension.members.is_power_of_two() => {
            let message = format!("{name}: halvingDoubling does not support {} members", dimension.members);
            Err(InputError::new(message, "it requires a power of two; use ring or direct"))
        }
        Some(found) => Ok(found),
    };
    named.iter().zip(dimensions).map(known).collect()
}

/// Members of one dimension or of a group, as one phase uses them.
struct DimensionGroup {
    members: u64,
    /// Latency in ns and bytes per ns of the slowest hop between neighbours, and of the slowest one between any two
    /// members.
    near: (f64, f64),
    far: (f64, f64),
    endpoint_delay: u64,
    memory: f64,
}

/// The phase of one chunk on one dimension.
struct Phase {
    dimension: usize,
    lasts: u64,
}

impl AnalyticalModel {
    /// The model of a machine. Invalid lists of algorithms are errors only when a collective uses them.
    pub fn new(system: System, network: Network, queues: u32) -> AnalyticalModel {
        let algorithms = AstraCollective::ALL.map(|kind| implementations(kind, &system, &network.dimensions));
        AnalyticalModel { algorithms, system, network, queues: queues.max(1) }
    }

    /// The description of the system.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.network.ranks()
    }

    /// Duration of a message between two ranks, in ns.
    pub fn message(&self, from: u64, to: u64, bytes: u64) -> u64 {
        time(self.hop(from, to), bytes)
    }

    /// Duration of a collective, in ns. `bytes` as in a trace: each rank's shard for an all-gather.
    ///
    /// # Errors
    /// An algorithm of a dimension is missing or unknown, or does not support the number of members.
    pub fn collective(&self, kind: AstraCollective, bytes: u64, members: &[u64]) -> Result<u64, InputError> {
        let algorithms = self.algorithms[kind as usize].as_ref().map_err(InputError::clone)?;
        let whole = members.len() as u64 == self.ranks();
        let count = members.len() as u64;
        let (chunk, chunks) = self.chunks(kind, bytes, count);
        if !whole {
            let algorithm = algorithms[0];
            if algorithm == Implementation::HalvingDoubling && !count.is_power_of_two() {
                let message = format!("halvingDoubling does not support a group of {count} ranks");
                return Err(InputError::new(message, "it requires a power of two; use ring or direct"));
            }
            if algorithm == Implementation::Ring {
                return Ok(self.ring(members, kind, chunk, chunks));
            }
            let (lasts, _) = phase(&self.group_line(members), algorithm, kind, chunk);
            return Ok(self.scheduler(&[Phase { dimension: 0, lasts }], kind, 1, chunks));
        }
        let mut size = chunk;
        let mut phases = Vec::new();
        for (kind, dimension) in self.order(kind) {
            let line = self.dimension_line(&self.network.dimensions[dimension]);
            // As in ASTRA-sim, all phases of a collective use the list of algorithms of the whole collective.
            let (lasts, next) = phase(&line, algorithms[dimension], kind, size);
            size = next;
            phases.push(Phase { dimension, lasts });
        }
        Ok(self.scheduler(&phases, kind, self.network.dimensions.len(), chunks))
    }

    /// The size of a chunk, and the number of chunks; a remainder is one more chunk of the full size.
    fn chunks(&self, kind: AstraCollective, bytes: u64, members: u64) -> (u64, u64) {
        let splits = u64::from(self.system.preferred_dataset_splits);
        match (kind, bytes / splits) {
            (AstraCollective::AllGather, 0) => (0, splits),
            (AstraCollective::AllGather, chunk) => (chunk, bytes.div_ceil(chunk)),
            (_, chunk) if chunk < members => (members, splits),
            (_, chunk) => (chunk, bytes.div_ceil(chunk)),
        }
    }

    /// Duration of a ring of members with unequal hops, for example four consecutive ranks of a ring of eight: each
    /// member continues when its predecessor's message has arrived, so a slow hop delays one member at a time. With
    /// equal hops this is [`phase`]'s formula.
    fn ring(&self, members: &[u64], kind: AstraCollective, chunk: u64, chunks: u64) -> u64 {
        let (k, e, memory) = (members.len() as u64, GROUP_DELAY, self.system.local_mem_bw);
        if k == 1 {
            return 0;
        }
        let m = if kind == AstraCollective::AllGather { chunk } else { chunk / k };
        let (steps, reducing) = match kind {
            AstraCollective::ReduceScatter => (k - 1, k - 1),
            AstraCollective::AllGather => (k - 1, 0),
            AstraCollective::AllReduce => (2 * (k - 1), k - 1),
            AstraCollective::AllToAll => (k * (k - 1) / 2, 0),
        };
        let next = members.iter().cycle().skip(1);
        let hops: Vec<u64> = members.iter().zip(next).map(|(from, to)| self.message(*from, *to, m)).collect();
        // Number of chunks that are served one after the other.
        let rounds = self.scheduler(&[Phase { dimension: 0, lasts: 1 }], kind, 1, chunks);
        let mut clocks = vec![0; members.len()];
        for _ in 0..rounds {
            clocks.iter_mut().for_each(|clock: &mut u64| *clock = clock.saturating_add(e));
            for step in 0..steps {
                let price = e.saturating_add(if step < reducing { reduction(memory, m) } else { 0 });
                for (clock, hop) in clocks.iter_mut().zip(&hops) {
                    *clock = clock.saturating_add(hop.saturating_add(price));
                }
                clocks.rotate_right(1);
            }
        }
        clocks.into_iter().max().unwrap_or(0)
    }

    /// The phases of a chunk, one per dimension; a bandwidth-aware all-reduce has two on each dimension except the
    /// last.
    fn order(&self, kind: AstraCollective) -> Vec<(AstraCollective, usize)> {
        let used = |dimension: &usize| self.network.dimensions[*dimension].members > 1;
        let all: Vec<usize> = (0..self.network.dimensions.len()).collect();
        let on = |kind, dimension| (kind, dimension);
        let order: Vec<(AstraCollective, usize)> = match (kind, self.system.collective_optimization) {
            (AstraCollective::AllReduce, Optimization::LocalBwAware) => {
                let (last, others) = all.split_last().expect("a network has a dimension");
                let up = others.iter().map(|dimension| on(AstraCollective::ReduceScatter, *dimension));
                let down = others.iter().rev().map(|dimension| on(AstraCollective::AllGather, *dimension));
                up.chain([on(AstraCollective::AllReduce, *last)]).chain(down).collect()
            }
            (AstraCollective::AllGather, _) => all.into_iter().rev().map(|dimension| on(kind, dimension)).collect(),
            _ => all.into_iter().map(|dimension| on(kind, dimension)).collect(),
        };
        order.into_iter().filter(|(_, dimension)| used(dimension)).collect()
    }

    fn dimension_line(&self, dimension: &Dimension) -> DimensionGroup {
        let far = match dimension.topology {
            TopologyKind::Ring => dimension.members / 2,
            _ => 1,
        };
        DimensionGroup {
            members: dimension.members,
            near: hops(dimension, 1),
            far: hops(dimension, far),
            endpoint_delay: self.system.endpoint_delay,
            memory: self.system.local_mem_bw,
        }
    }

    /// The members of a group smaller than the world, which has a single phase for all dimensions that it spans.
    fn group_line(&self, members: &[u64]) -> DimensionGroup {
        let neighbours = members.iter().zip(members.iter().cycle().skip(1));
        let near = neighbours.map(|(a, b)| self.hop(*a, *b)).reduce(slower).unwrap_or((0.0, 1.0));
        let pairs = members.iter().flat_map(|a| members.iter().map(move |b| (a, b))).filter(|(a, b)| a != b);
        let far = pairs.map(|(a, b)| self.hop(*a, *b)).reduce(slower).unwrap_or(near);
        let memory = self.system.local_mem_bw;
        DimensionGroup { members: members.len() as u64, near, far, endpoint_delay: GROUP_DELAY, memory }
    }

    /// The hops between two ranks: those of the first dimension in which the ranks differ.
    fn hop(&self, from: u64, to: u64) -> (f64, f64) {
        let (mut from, mut to) = (from, to);
        for dimension in &self.network.dimensions {
            let (a, b) = (from % dimension.members, to % dimension.members);
            if a != b {
                let distance = a.abs_diff(b);
                return match dimension.topology {
                    TopologyKind::Ring => hops(dimension, distance.min(dimension.members - distance)),
                    _ => hops(dimension, 1),
                };
            }
            from /= dimension.members;
            to /= dimension.members;
        }
        (0.0, f64::INFINITY)
    }

    /// Schedules the phases of all chunks; returns the end of the last one. Each dimension's active chunks are divided
    /// among its queues; chunks use the queues round robin, and an all-reduce advances the round robin by two on its
    /// last dimension.
    fn scheduler(&self, phases: &[Phase], kind: AstraCollective, dimensions: usize, chunks: u64) -> u64 {
        let width = self.system.active_chunks_per_dimension.div_ceil(self.queues);
        let queues = self.queues as usize;
        let mut turns = vec![0; dimensions];
        let mut plan = Vec::new();
        for _ in 0..chunks {
            let queue_of = |phase: &Phase| {
                let turn = turns[phase.dimension];
                turns[phase.dimension] +=
                    if kind == AstraCollective::AllReduce && phase.dimension + 1 == dimensions { 2 } else { 1 };
                phase.dimension * queues + turn % queues
            };
            plan.push(phases.iter().map(queue_of).collect::<Vec<usize>>());
        }
        let mut scheduler = ChunkScheduler {
            now: 0,
            started: 0,
            width,
            lines: vec![(VecDeque::new(), 0); dimensions * queues],
            events: BinaryHeap::new(),
        };
        scheduler.run(phases, &plan)
    }
}

/// Schedule of chunks that wait for dimensions.
struct ChunkScheduler {
    now: u64,
    started: u64,
    width: u32,
    /// By queue: the waiting chunks with the number of their phase, and the number of chunks in service.
    lines: Vec<(VecDeque<(usize, usize)>, u32)>,
    /// Ends of phases: the time, the order of starting, the chunk, its phase.
    events: BinaryHeap<Reverse<(u64, u64, usize, usize)>>,
}

impl ChunkScheduler {
    fn run(&mut self, phases: &[Phase], plan: &[Vec<usize>]) -> u64 {
        if phases.is_empty() {
            return 0;
        }
        for (chunk, queues) in plan.iter().enumerate() {
            self.lines[queues[0]].0.push_back((chunk, 0));
        }
        for queue in 0..self.lines.len() {
            self.serve(queue, phases);
        }
        while let Some(Reverse((at, _, chunk, phase))) = self.events.pop() {
            self.now = at;
            let queue = plan[chunk][phase];
            self.lines[queue].1 -= 1;
            if let Some(next) = plan[chunk].get(phase + 1) {
                self.lines[*next].0.push_back((chunk, phase + 1));
                self.serve(*next, phases);
            }
            self.serve(queue, phases);
        }
        self.now
    }

    fn serve(&mut self, queue: usize, phases: &[Phase]) {
        while self.lines[queue].1 < self.width {
            let Some((chunk, phase)) = self.lines[queue].0.pop_front() else { return };
            self.lines[queue].1 += 1;
            self.started += 1;
            self.events.push(Reverse((self.now.saturating_add(phases[phase].lasts), self.started, chunk, phase)));
        }
    }
}

/// Latency in ns and bytes per ns over `count` hops; a switch counts as two hops.
fn hops(dimension: &Dimension, count: u64) -> (f64, f64) {
    let count = if dimension.topology == TopologyKind::Switch { 2 } else { count };
    (count as f64 * dimension.latency, dimension.bandwidth * (1_u64 << 30) as f64 / 1e9)
}

fn slower(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    (a.0.max(b.0), a.1.min(b.1))
}

/// The duration T(m) of a message of m bytes, in ns.
fn time((latency, bandwidth): (f64, f64), bytes: u64) -> u64 {
    (latency + bytes as f64 / bandwidth).floor() as u64
}

/// The duration P(m) of the reduction of m bytes, in ns.
fn reduction(memory: f64, bytes: u64) -> u64 {
    if memory > 0.0 { ((bytes as f64 / memory).floor() as u64).saturating_mul(3) } else { 0 }
}

/// Duration of one chunk of `size` bytes among k members, and its size afterwards. With m = size / k (all-gather: m =
/// size), e the endpoint delay and P(m) = 3 floor(m / memory) the duration of a reduction:
///
/// | | reduce-scatter | all-gather | all-reduce | all-to-all |
/// |---|---|---|---|---|
/// | ring | (k-1)T + ke + (k-1)P | (k-1)T + ke | 2(k-1)T + (2k-1)e + (k-1)P | k(k-1)/2 T + (k(k-1)/2 + 1)e |
/// | direct | T + 2e + P | T + 2e | 2T + 3e + P | T + 2e |
///
/// Halving and doubling sends size / 2, size / 4, ... and adds P from the second message on; it adds e for each
/// message, and one more.
///
/// Durations saturate at the largest number, which no run reaches.
fn phase(line: &DimensionGroup, algorithm: Implementation, kind: AstraCollective, size: u64) -> (u64, u64) {
    let k = line.members;
    let m = if kind == AstraCollective::AllGather { size } else { size / k };
    let after = match kind {
        AstraCollective::ReduceScatter => size / k,
        AstraCollective::AllGather => size.saturating_mul(k),
        AstraCollective::AllReduce | AstraCollective::AllToAll => size,
    };
    if k == 1 {
        return (0, after);
    }
    let time = |hops, m| Saturating(time(hops, m));
    let reduce = |m: u64| Saturating(reduction(line.memory, m));
    let total = |times: &mut dyn Iterator<Item = Saturating<u64>>| times.fold(Saturating(0), Add::add);
    let (k, e, two) = (Saturating(k), Saturating(line.endpoint_delay), Saturating(2));
    let one = Saturating(1);
    let Saturating(lasts) = match algorithm {
        Implementation::Ring => {
            let (t, p) = (time(line.near, m), reduce(m));
            match kind {
                AstraCollective::ReduceScatter => (k - one) * t + k * e + (k - one) * p,
                AstraCollective::AllGather => (k - one) * t + k * e,
                AstraCollective::AllReduce => two * (k - one) * t + (two * k - one) * e + (k - one) * p,
                AstraCollective::AllToAll => k * (k - one) / two * t + (k * (k - one) / two + one) * e,
            }
        }
        Implementation::Direct => {
            let (t, p) = (time(line.far, m), reduce(m));
            match kind {
                AstraCollective::ReduceScatter => t + two * e + p,
                AstraCollective::AllGather | AstraCollective::AllToAll => t + two * e,
                AstraCollective::AllReduce => two * t + Saturating(3) * e + p,
            }
        }
        Implementation::HalvingDoubling => {
            let steps = line.members.ilog2();
            let halves = || (1..=steps).map(|step| size >> step);
            let halving = total(&mut halves().map(|m| time(line.far, m)));
            let price = total(&mut halves().skip(1).map(reduce));
            let doubling = total(&mut (0..steps).map(|step| time(line.far, size.saturating_mul(1 << step))));
            let steps = Saturating(u64::from(steps));
            match kind {
                AstraCollective::ReduceScatter => halving + (steps + one) * e + price,
                AstraCollective::AllGather => doubling + (steps + one) * e,
                AstraCollective::AllReduce => two * halving + (two * steps + one) * e + price,
                AstraCollective::AllToAll => panic!("an all-to-all by halving and doubling was accepted"),
            }
        }
    };
    (lasts, after)
}
