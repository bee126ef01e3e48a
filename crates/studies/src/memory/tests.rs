//! Tests of the memory of ranks, whose captures are written in the tests.

use super::*;
use uniference_formats::operators::{Argument, Definition, Encoder, Place, ScalarType, Tensor};
use uniference_sim::ids::{QueueId, Site};
use uniference_sim::program::{Origin, Work};

const MAIN: TaskId = TaskId(0);
const F: u64 = 0;

/// A tensor of float32.
fn tensor(sizes: &[u64]) -> Tensor {
    Tensor {
        dtype: ScalarType(6),
        place: Place::CPU,
        written: false,
        sizes: sizes.to_vec(),
        strides: vec![1; sizes.len()],
    }
}

fn definition(name: &str, arguments: &[&[u64]], result: &[u64]) -> Definition {
    let arguments = arguments.iter().map(|sizes| Argument::Tensor(tensor(sizes))).collect();
    Definition { name: format!("aten::{name}"), arguments, results: vec![Argument::Tensor(tensor(result))] }
}

/// The program of one rank, which runs on line 1, in `f`, and may run a backward pass of that line.
struct Rank {
    encoder: Encoder,
    definitions: Vec<Definition>,
    line: Line,
    memory: Memory,
    now: SimTime,
}

impl Rank {
    fn new() -> Rank {
        let mut encoder = Encoder::default();
        encoder.site("a.py:1", "f");
        encoder.site("a.py:2", "g");
        Rank {
            encoder,
            definitions: vec![],
            line: Line { site: 1, backward: false },
            memory: Memory::new(1, true),
            now: SimTime::ZERO,
        }
    }

    /// Runs an operator on these allocations: the arguments' and the result's. Memory for the result is allocated first
    /// if the result needs any.
    fn run(&mut self, name: &str, arguments: &[(u64, &[u64])], (result, sizes): (u64, &[u64])) {
        let of_sizes: Vec<&[u64]> = arguments.iter().map(|(_, sizes)| *sizes).collect();
        let definition = definition(name, &of_sizes, sizes);
        let known = self.definitions.iter().position(|known| *known == definition);
        let number = known.unwrap_or_else(|| {
            self.encoder.definition(&definition);
            self.definitions.push(definition);
            self.definitions.len() - 1
        });
        if arguments.iter().all(|(id, _)| *id != result) {
            self.encoder.allocated(result, 4 * sizes.iter().product::<u64>());
        }
        let ids: Vec<u64> = arguments.iter().map(|(id, _)| *id).chain([result]).collect();
        self.encoder.execution(number, self.line, &ids);
    }

    fn free(&mut self, allocations: &[u64]) {
        allocations.iter().for_each(|id| self.encoder.freed(*id));
    }

    /// Ends the slice, with a duration in microseconds.
    fn computes(&mut self, us: u64) {
        let (operators, duration) = (self.encoder.take(), SimDuration::from_us(us));
        self.memory.step(RankId(0), MAIN, &RecordedStep::Operators { operators, measured: duration });
        let work = Work::new(duration, Origin::Measured);
        let activity = Activity::Compute(work);
        let request = Request::Issue { activity, queue: QueueId(0), after: vec![], site: Site(0) };
        self.memory.step(RankId(0), MAIN, &RecordedStep::Request(request));
        if us > 0 {
            let start = self.now;
            self.now = start + duration;
            let event = Event::Computed {
                rank: RankId(0),
                task: MAIN,
                start,
                base: duration,
                origin: Origin::Measured,
                name: None,
                why: Default::default(),
            };
            self.memory.record(self.now, &event);
        }
    }

    fn finish(mut self) -> (Peak, Vec<Point>) {
        self.computes(1);
        let Held { mut peaks, mut timelines } = self.memory.finish().unwrap();
        (peaks.remove(0).unwrap(), timelines.remove(0))
    }

    /// The bytes of each kind at the peak.
    fn held(self) -> Vec<(Kind, u64)> {
        self.finish().0.held.present().collect()
    }
}

#[test]
fn the_peak_is_where_most_was_held_and_knows_its_operator() {
    let mut rank = Rank::new();
    // 400 B, then 400 + 800; 400 are freed before another 600 come: 1,200 B is the peak, not 1,400.
    rank.run("empty", &[], (1, &[100]));
    rank.line.site = 2;
    rank.run("mm", &[(1, &[100])], (2, &[200]));
    rank.line.site = 1;
    rank.free(&[1]);
    rank.run("mm", &[(2, &[200])], (3, &[100]));
    let (peak, _) = rank.finish();
    assert_eq!(peak.held, [(Kind::Activations, 1200)].into_iter().collect());
    let line = SourceLine { line: "a.py:2".into(), function: "g".into() };
    assert_eq!((peak.line, peak.backward), (Some(line), false));
}

#[test]
fn what_an_operator_takes_for_a_while_counts_on_its_line() {
    let mut rank = Rank::new();
    rank.run("empty", &[], (1, &[10]));
    rank.encoder.allocated(9, 1000);
    rank.free(&[9]);
    rank.line = Line { site: 2, backward: true };
    rank.run("mm", &[(1, &[10])], (2, &[10]));
    let (peak, _) = rank.finish();
    assert_eq!((peak.held.total(), peak.backward), (1040, true));
    assert_eq!(peak.line.unwrap().line, "a.py:2");
}

/// A training step with P bytes of parameters, P bytes of gradients and 2 P of optimizer state: gradients are
/// identified after they were allocated.
#[test]
fn kinds_that_are_told_late_count_from_the_beginning() {
    let mut rank = Rank::new();
    rank.run("empty", &[], (1, &[100]));
    rank.encoder.kind(1, MemoryKind::Parameter);
    rank.run("mm", &[(1, &[100])], (2, &[50]));
    rank.computes(10);
    rank.run("mm", &[(2, &[50])], (3, &[100]));
    rank.computes(10);
    rank.free(&[2]);
    rank.run("zeros", &[], (4, &[200]));
    rank.encoder.kind(3, MemoryKind::Gradient);
    rank.encoder.kind(4, MemoryKind::Optimizer);
    rank.computes(10);
    rank.free(&[3]);
    let (peak, points) = rank.finish();
    let expected = [(Kind::Parameters, 400), (Kind::Gradients, 400), (Kind::Optimizer, 800)];
    assert_eq!(peak.held.present().collect::<Vec<_>>(), expected);
    // The second slice begins at 10 us, with 200 B of activations and the gradient, whose kind became known in the
    // third slice.
    let us = |us: u64| SimTime::ZERO + SimDuration::from_us(us);
    let at = |us_at: u64| points.iter().rfind(|point| point.at <= us(us_at)).unwrap().held;
    let second = [(Kind::Parameters, 400), (Kind::Gradients, 400), (Kind::Activations, 200)];
    assert_eq!(at(10).present().collect::<Vec<_>>(), second);
    assert_eq!(at(25).total(), 1600);
    assert_eq!(at(31).present().collect::<Vec<_>>(), [(Kind::Parameters, 400), (Kind::Optimizer, 800)]);
}

#[test]
fn a_slice_shows_the_most_that_was_held_in_it_and_then_what_was_left() {
    let mut rank = Rank::new();
    rank.run("empty", &[], (1, &[25]));
    rank.run("empty", &[], (2, &[50]));
    rank.free(&[2]);
    rank.computes(5);
    // A slice without a duration has no event: it belongs to the next slice.
    rank.run("empty", &[], (3, &[100]));
    rank.computes(0);
    rank.free(&[3]);
    rank.computes(5);
    let (_, points) = rank.finish();
    let us = |us: u64| SimTime::ZERO + SimDuration::from_us(us);
    let totals: Vec<_> = points.iter().map(|point| (point.at, point.held.total())).collect();
    assert_eq!(totals, [(us(0), 300), (us(5), 100), (us(5), 500), (us(10), 100)]);
}

#[test]
fn a_long_run_keeps_few_points_and_the_highest() {
    let mut rank = Rank::new();
    for at in 0..10_000_u64 {
        rank.run("empty", &[], (at + 1, &[if at == 7_777 { 1_000 } else { at % 10 }]));
        rank.free(&[at + 1]);
        rank.computes(1);
    }
    let (peak, points) = rank.finish();
    assert!(points.len() <= 512 && points.len() > 100, "{}", points.len());
    assert_eq!(points.iter().map(|point| point.held.total()).max(), Some(4_000));
    assert_eq!(peak.held.total(), 4_000);
    assert!(points.is_sorted_by_key(|point| point.at));
}

#[test]
fn what_another_thread_frees_first_is_not_held() {
    let mut rank = Rank::new();
    rank.free(&[1]);
    rank.encoder.restart();
    rank.run("empty", &[], (1, &[100]));
    rank.run("empty", &[], (2, &[10]));
    assert_eq!(rank.held(), [(Kind::Activations, 40)]);
}

#[test]
fn a_rank_whose_allocations_are_not_known_has_no_rows() {
    let mut rank = Rank::new();
    rank.run("add", &[(F, &[10])], (F, &[10]));
    rank.computes(1);
    let held = rank.memory.finish().unwrap();
    assert_eq!((held.peaks.clone(), held.report()), (vec![None], vec![]));
}

#[test]
fn operators_that_cannot_be_read_are_an_error_with_their_rank() {
    let mut memory = Memory::new(2, false);
    let operators = RecordedStep::Operators { operators: vec![15], measured: SimDuration::ZERO };
    memory.step(RankId(1), MAIN, &operators);
    let work = Work::new(SimDuration::ZERO, Origin::Measured);
    let request = Request::Issue { activity: Activity::Compute(work), queue: QueueId(0), after: vec![], site: Site(0) };
    memory.step(RankId(1), MAIN, &RecordedStep::Request(request));
    assert_eq!(memory.finish().unwrap_err().0, RankId(1));
}

#[test]
fn the_report_has_a_row_for_each_kind_that_is_there() {
    let mut rank = Rank::new();
    rank.run("empty", &[], (1, &[100]));
    rank.encoder.kind(1, MemoryKind::Parameter);
    rank.run("mm", &[(1, &[100])], (2, &[50]));
    rank.computes(1);
    let row = |kind: &str, peak_bytes| MemoryReport {
        rank: 0,
        kind: kind.into(),
        peak_bytes,
        line: Some("a.py:1".into()),
        function: Some("f".into()),
        backward: false,
    };
    assert_eq!(rank.memory.finish().unwrap().report(), [row("parameters", 400), row("activations", 200)]);
}

/// A KV cache of 8 tokens in buffers that are allocated once; each step writes a token, and reads all tokens by a view.
#[test]
fn a_cache_is_what_attention_reads_in_more_than_one_call() {
    let (q, cached, row): (&[u64], &[u64], &[u64]) = (&[1, 4, 1, 16], &[1, 4, 8, 16], &[1, 4, 1, 16]);
    let mut rank = Rank::new();
    rank.run("zeros", &[], (1, cached));
    rank.run("zeros", &[], (2, cached));
    for step in 0..2 {
        let id = 10 * (step + 1);
        rank.run("mm", &[], (id, q));
        rank.run("copy_", &[(1, row), (id, q)], (1, row));
        rank.run("_scaled_dot_product_flash_attention_for_cpu", &[(id, q), (1, cached), (2, cached)], (id + 1, q));
        if step == 0 {
            rank.free(&[id, id + 1]);
        }
    }
    assert_eq!(rank.held(), [(Kind::KvCache, 2 * 4 * 512), (Kind::Activations, 2 * 4 * 64)]);
}

#[test]
fn one_allocation_that_one_call_reads_twice_is_no_cache() {
    let (q, scores): (&[u64], &[u64]) = (&[4, 8, 16], &[4, 8, 8]);
    let mut rank = Rank::new();
    // Queries, keys and values of one GEMM: attention by one operator, and by GEMMs and a softmax.
    rank.run("mm", &[], (1, &[8, 192]));
    rank.run("_scaled_dot_product_flash_attention_for_cpu", &[(1, q), (1, q), (1, q)], (2, q));
    rank.run("mm", &[], (3, &[8, 192]));
    rank.run("bmm", &[(3, q), (3, q)], (4, scores));
    rank.run("_softmax", &[(4, scores)], (5, scores));
    rank.run("bmm", &[(5, scores), (3, q)], (6, q));
    assert_eq!(rank.held().iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [Kind::Activations]);
}

/// Two steps of attention that consists of GEMMs, with scaled keys, a mask and a cast of its weights.
#[test]
fn attention_of_several_operators_reads_what_its_copies_are_of() {
    let (q, cached, scores): (&[u64], &[u64], &[u64]) = (&[4, 1, 16], &[4, 8, 16], &[4, 1, 8]);
    let mut rank = Rank::new();
    rank.run("zeros", &[], (1, cached));
    rank.run("zeros", &[], (2, cached));
    for step in 0..2 {
        let id = 10 * (step + 1);
        rank.run("mm", &[], (id, q));
        rank.run("mul", &[(1, cached)], (id + 1, cached));
        rank.run("bmm", &[(id, q), (id + 1, cached)], (id + 2, scores));
        rank.run("add_", &[(id + 2, scores), (F, scores)], (id + 2, scores));
        rank.run("_safe_softmax", &[(id + 2, scores)], (id + 3, scores));
        rank.run("_to_copy", &[(id + 3, scores)], (id + 4, scores));
        rank.run("bmm", &[(id + 4, scores), (2, cached)], (id + 5, q));
        rank.free(&[id, id + 1, id + 2, id + 3, id + 4, id + 5]);
    }
    let cache = rank.held();
    assert_eq!(cache[0], (Kind::KvCache, 2 * 4 * 512));
}

/// `keys = torch.cat([keys, new])`, as in caches that grow; heads are repeated for each call.
#[test]
fn a_cache_may_grow_by_being_joined() {
    let mut rank = Rank::new();
    let tokens = |count: u64| [1, 4, count, 16];
    let repeated = |count: u64| [1, 8, count, 16];
    rank.run("mm", &[], (1, &tokens(8)));
    for step in 0..3_u64 {
        let (keys, new, count) = (10 * step + 1, 10 * step + 5, 8 + step);
        rank.run("clone", &[(keys, &tokens(count))], (10 * step + 2, &repeated(count)));
        let copy = (10 * step + 2, &repeated(count)[..]);
        rank.run(
            "_scaled_dot_product_flash_attention_for_cpu",
            &[(F, &[1, 8, 1, 16]), copy, copy],
            (10 * step + 3, &[1, 8, 1, 16]),
        );
        rank.free(&[10 * step + 2, 10 * step + 3]);
        if step < 2 {
            rank.run("mm", &[], (new, &tokens(1)));
            rank.run("cat", &[(keys, &tokens(count)), (new, &tokens(1))], (keys + 10, &tokens(count + 1)));
            rank.free(&[keys, new]);
        }
    }
    // At the last call: 10 tokens, their copy for twice as many heads, and the result.
    let last = [(Kind::KvCache, 4 * 4 * 10 * 16), (Kind::Activations, 4 * 8 * 10 * 16 + 4 * 8 * 16)];
    assert_eq!(rank.held(), last);
}

#[test]
fn what_a_backward_pass_reads_is_no_cache() {
    let q: &[u64] = &[1, 4, 8, 16];
    let mut rank = Rank::new();
    // Two layers that share their keys, in training.
    rank.run("mm", &[], (1, q));
    for id in [2, 3] {
        rank.run("_scaled_dot_product_flash_attention_for_cpu", &[(F, q), (1, q), (1, q)], (id, q));
    }
    rank.line.backward = true;
    rank.run("_scaled_dot_product_flash_attention_for_cpu_backward", &[(F, q), (1, q), (1, q)], (4, q));
    rank.run("_scaled_dot_product_flash_attention_for_cpu_backward", &[(F, q), (1, q), (1, q)], (5, q));
    assert_eq!(rank.held(), [(Kind::Activations, 5 * 4 * 512)]);
}

#[test]
fn parameters_that_attention_reads_stay_parameters_and_buffers_may_be_caches() {
    let q: &[u64] = &[1, 4, 8, 16];
    let mut rank = Rank::new();
    for (id, kind) in [(1, MemoryKind::Parameter), (2, MemoryKind::Buffer)] {
        rank.run("zeros", &[], (id, q));
        rank.encoder.kind(id, kind);
    }
    for id in [3, 4] {
        rank.run("_scaled_dot_product_flash_attention_for_cpu", &[(F, q), (1, q), (2, q)], (id, q));
    }
    let held = rank.held();
    assert_eq!(held, [(Kind::Parameters, 2048), (Kind::KvCache, 2048), (Kind::Activations, 4096)]);
}

/// 2,000 B reserved, of which 1,200 are allocated at the peak, and a context of 500 B. Memory that the host held before
/// is not included.
#[test]
fn a_gpu_holds_what_is_reserved_and_its_context_and_the_host_is_counted_apart() {
    let mut rank = Rank::new();
    rank.run("empty", &[], (1, &[1000]));
    rank.encoder.kind(1, MemoryKind::Parameter);
    rank.computes(10);
    rank.free(&[1]);
    rank.run("empty", &[], (2, &[100]));
    rank.encoder.level(Level::Reserved, 2000);
    rank.encoder.level(Level::Context, 500);
    rank.encoder.allocated_on_gpu(3, 800);
    rank.encoder.kind(3, MemoryKind::Parameter);
    rank.computes(10);
    rank.encoder.allocated_on_gpu(4, 400);
    rank.free(&[4]);
    let (peak, points) = rank.finish();
    let kinds = [Kind::Parameters, Kind::Activations, Kind::Reserved, Kind::Context, Kind::Host];
    assert_eq!(
        peak.held.present().collect::<Vec<_>>(),
        kinds.into_iter().zip([800, 400, 800, 500, 4000]).collect::<Vec<_>>()
    );
    assert_eq!(peak.held.total(), 2500);
    assert_eq!(points[0].held.present().collect::<Vec<_>>(), [(Kind::Host, 4000)]);
    let last = points.last().unwrap().held;
    assert_eq!((last.of(Kind::Reserved), last.of(Kind::Host)), (1200, 400));
}

/// The launching CPU of a GPU has a compute slice in three pieces, of 6, 6 and 12 us, and the engine runs them with a
/// gap of 10 us before the second piece.
#[test]
fn what_a_program_on_a_gpu_allocates_stands_at_the_time_of_its_host() {
    let mut rank = Rank::new();
    for id in 1..=4 {
        rank.encoder.allocated_on_gpu(id, 100 * id);
        rank.run("relu", &[(id, &[25])], (id, &[25]));
    }
    rank.free(&[4]);
    let us = SimDuration::from_us;
    let at = |time: u64| SimTime::ZERO + us(time);
    let (operators, measured) = (rank.encoder.take(), us(24));
    rank.memory.step(RankId(0), MAIN, &RecordedStep::Operators { operators, measured });
    let pieces = [(0, 6, 6), (16, 22, 6), (22, 34, 12)];
    for (start, end, lasts) in pieces {
        let activity = Activity::Compute(Work::new(us(lasts), Origin::Transferred));
        let request = Request::Issue { activity, queue: QueueId(0), after: vec![], site: Site(0) };
        rank.memory.step(RankId(0), MAIN, &RecordedStep::Request(request));
        let launch = Activity::Compute(Work::new(us(1), Origin::Roofline));
        let launch = Request::Issue { activity: launch, queue: QueueId::of_stream(0), after: vec![], site: Site(0) };
        rank.memory.step(RankId(0), MAIN, &RecordedStep::Request(launch));
        let event = Event::Computed {
            rank: RankId(0),
            task: MAIN,
            start: at(start),
            base: us(lasts),
            origin: Origin::Transferred,
            name: None,
            why: Default::default(),
        };
        rank.memory.record(at(end), &event);
    }
    let Held { timelines, .. } = rank.memory.finish().unwrap();
    // Each of four operators uses 6 of the CPU's 24 us, and its allocation is held from its start on. The memory freed
    // after the last operator is freed at the end of the slice.
    let totals: Vec<_> = timelines[0].iter().map(|point| (point.at, point.held.total())).collect();
    assert_eq!(totals, [(at(0), 100), (at(6), 300), (at(22), 600), (at(28), 1000), (at(34), 600)]);
}

/// The rank allocates 600 bytes, then 400 bytes on line 2, then 40,000 bytes.
#[test]
fn an_allocation_that_exceeds_a_limit_is_named_with_its_line() {
    let held = |limit| {
        let mut rank = Rank::new();
        rank.memory = Memory::within(&[limit]);
        rank.run("empty", &[], (1, &[150]));
        rank.line = Line { site: 2, backward: true };
        rank.run("empty", &[], (2, &[100]));
        rank.line.site = 1;
        rank.run("empty", &[], (3, &[10_000]));
        rank.computes(1);
        (rank.memory.knows_nothing(), rank.memory.excess())
    };
    assert_eq!(held(None), (false, None));
    assert_eq!(held(Some(41_000)), (false, None));
    let (_, excess) = held(Some(999));
    let excess = excess.unwrap();
    assert_eq!((excess.rank, excess.held.total(), excess.limit, excess.backward), (RankId(0), 1000, 999, true));
    assert_eq!(excess.line.unwrap().line, "a.py:2");
    assert!(Memory::within(&[Some(1)]).knows_nothing());
}

/// Before torch's allocator runs out of memory, it frees memory that it has reserved and not used.
#[test]
fn what_is_reserved_on_a_gpu_exceeds_no_limit() {
    let excess = |limit| {
        let mut rank = Rank::new();
        rank.memory = Memory::within(&[Some(limit)]);
        rank.encoder.level(Level::Context, 500);
        rank.encoder.level(Level::Reserved, 2000);
        rank.encoder.allocated_on_gpu(1, 400);
        rank.run("relu", &[(1, &[100])], (1, &[100]));
        rank.computes(1);
        rank.memory.excess().map(|excess| excess.held.total())
    };
    assert_eq!((excess(900), excess(899)), (None, Some(900)));
}
