//! Slices of ranks with CUDA streams, from their bytes to the clock. Times are in microseconds, and a kernel lasts 1 us
//! per byte; each test's comment derives the expected time.

mod graphs;
mod lines;

use super::*;
use crate::slice::{Costs, LoweredWork, RankSlice};
use crate::testing::cluster;
use crate::{Conversations, Recorder};
use std::cell::RefCell;
use std::io::Cursor;
use uniference_costs::operators::Sequences;
use uniference_formats::operators::{Encoder, LaunchFlags, Line, Reading, StreamEntry};
use uniference_formats::record::{Header, RecordReader, RecordWriter};
use uniference_formats::report::Manifest;
use uniference_protocol::messages::{Answer, ComputeSlice, DeviceWork, Op, Quiet};
use uniference_sim::device::Origin;
use uniference_sim::engine::{Engine, RunEnd};
use uniference_sim::ids::{RankId, Site, TaskId};
use uniference_sim::observe::Digest;
use uniference_sim::program::{Activity, Outcome, Request};
use uniference_sim::replay::{RecordedStep, replay};

const HOST: HostCosts = HostCosts {
    operator: SimDuration::from_us(6),
    launch: SimDuration::from_us(4),
    call: SimDuration::from_us(1),
    python: SimDuration::ZERO,
};

/// Costs of 20 us on the device per operator, and of 1 us per byte for kernels and copies; all multiplied by `factor`.
struct Fixed {
    factor: u64,
}

impl Fixed {
    fn takes(&self, us: u64) -> Estimate {
        let duration = SimDuration::from_us(us * self.factor);
        Estimate { duration, spread: Some(0.1), origin: Origin::Roofline }
    }
}

impl OperatorCosts for Fixed {
    fn estimate(&self, _: &Definition, _: Coming<'_>) -> Estimate {
        self.takes(30)
    }

    fn on_device(&self, _: &Definition) -> Estimate {
        self.takes(20)
    }

    /// Attention lasts a microsecond per key.
    fn attention(&self, _: &Definition, sequences: &[Sequences]) -> Estimate {
        self.takes(sequences.iter().map(|group| group.keys).sum())
    }

    fn by_formula(&self, _: &KernelCost, _: &Definition) -> Result<Estimate, String> {
        Ok(Estimate::UNKNOWN)
    }

    fn kernel(&self, bytes: u64) -> Estimate {
        self.takes(bytes)
    }

    fn spin(&self, lasts: SimDuration) -> Estimate {
        self.takes((lasts.as_secs_f64() * 1e6) as u64)
    }

    fn copy(&self, _: CopyKind, bytes: u64) -> Estimate {
        self.takes(bytes)
    }

    fn depend_on_coming(&self) -> bool {
        false
    }

    fn kind(&self, _: &Definition) -> &'static str {
        "gemm"
    }

    fn at_least(&self, _: &Definition) -> f64 {
        0.0
    }

    fn substituted(&self) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }
}

fn plan(ranks: usize, way: Way, factor: u64, measures_host: bool) -> Sources {
    let costs: Arc<dyn OperatorCosts> = Arc::new(Fixed { factor });
    let rank = || RankPlan {
        kernels: Rc::from([]),
        way,
        costs: Some(Arc::clone(&costs)),
        host_cpu: None,
        is_gpu: true,
        slowdown: 1.0,
        host: HOST,
        measures_host,
        is_measured: way == Way::Measured,
    };
    let ranks = (0..ranks).map(|_| rank()).collect();
    let lines = Vec::new();
    Sources { ranks, earlier: None, outdated: None, host_asked: false, python_asked: false, lines }
}

/// An action of a program.
enum Doing {
    /// The program has run these operators, in the encoding of a capture.
    Ran(Vec<u8>),
    /// The program sends a request without an answer.
    Says(Op),
    /// The program sends a request, and continues when it is answered.
    Asks(Op),
}

use Doing::{Asks, Ran, Says};

fn synchronizes() -> Doing {
    Asks(Op::Synchronize { work: DeviceWork::Device, site: Site(0) })
}

/// The record of a run, and its result.
struct Done {
    record: Vec<u8>,
    digest: String,
    /// Time at which the run ended.
    end: f64,
    answers: Vec<Answer>,
    costed: Costed,
}

struct Writes(RecordWriter<Vec<u8>>);

impl Recorder for Writes {
    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str) {
        self.0.step(rank, task, step, line);
    }
}

/// Simulates live ranks with these actions; `order` is the order in which simultaneous requests of ranks are read.
fn run(plan: Sources, programs: Vec<Vec<Doing>>, order: &[u32]) -> Done {
    let world = programs.len() as u32;
    let costing = Costing::new(plan);
    let mut conversations = Conversations::new(Engine::new(&cluster(world)), world, "a.py");
    conversations.cost_with(Box::new(Shared(Rc::clone(&costing))));
    let mut recorder =
        Writes(RecordWriter::new(Vec::new(), &Header { world_size: world, manifest: Manifest::default() }));
    let (mut digest, mut answers) = (Digest::default(), Vec::new());
    let mut programs: Vec<_> = programs.into_iter().map(Vec::into_iter).collect();
    let mut speaks: Vec<bool> = vec![true; world as usize];
    let mut first = vec![true; world as usize];
    loop {
        for rank in order.iter().copied() {
            let at = rank as usize;
            if !std::mem::take(&mut speaks[at]) {
                continue;
            }
            let mut ops = Vec::new();
            if std::mem::take(&mut first[at]) {
                ops.push(Op::Start);
            } else {
                loop {
                    match programs[at].next() {
                        Some(Ran(operators)) => {
                            ops.push(Op::Compute(ComputeSlice { measured: SimDuration::from_us(100), operators }));
                        }
                        Some(Says(op)) => ops.push(op),
                        Some(Asks(op)) => {
                            ops.push(op);
                            break;
                        }
                        None => {
                            ops.push(Op::Exit(Outcome::Ok));
                            break;
                        }
                    }
                }
            }
            let quiet = ops.last().filter(|op| op.asks()).map(|_| Quiet { parts: 1, outside: false });
            conversations.say(RankId(rank), TaskId(0), ops, quiet);
        }
        conversations.advance(&mut digest, &mut recorder);
        let ready: Vec<_> = std::iter::from_fn(|| conversations.take_ready()).collect();
        if ready.is_empty() {
            break;
        }
        for ready in ready {
            let rank = ready.rank;
            speaks[rank.index()] = true;
            answers.extend(conversations.frame(ready).map(|frame| frame.answer).filter(|answer| *answer != Answer::Go));
        }
    }
    conversations.record_rest(&mut recorder);
    let record = recorder.0.finish().unwrap();
    let end = conversations.engine().now().as_ps() as f64 / 1e6;
    let costed = costing.borrow_mut().finish().unwrap();
    Done { record, digest: digest.to_hex(), end, answers, costed }
}

/// Replays a record: returns its digest, and the compute totals.
fn again(record: &[u8], plan: Sources) -> (String, Result<Costed, CostingError>) {
    let costing = Costing::new(plan);
    let reader = RecordReader::open(Cursor::new(record.to_vec())).unwrap();
    let (ranks, rest) = reader.by_rank();
    let world = ranks.len() as u32;
    let steps = ranks.into_iter().enumerate().map(|(rank, steps)| {
        let lined = steps.map(|(task, step)| (task, step, String::new()));
        let steps = RankSteps::new(RankId(rank as u32), lined, Rc::clone(&costing));
        steps.map(|(task, step, _)| (task, step))
    });
    let mut digest = Digest::default();
    let ended = replay(&mut Engine::new(&cluster(world)), steps.collect(), &mut digest);
    assert!(matches!(ended, RunEnd::Finished), "{ended:?}");
    rest.finish().unwrap();
    let costed = costing.borrow_mut().finish();
    (digest.to_hex(), costed)
}

/// Encodes slices of a rank; the first slice names the kernel.
#[derive(Default)]
struct Program {
    encoder: Encoder,
    named: bool,
    /// Name of its operator; `None`: a GEMM.
    operator: Option<&'static str>,
}

impl Program {
    fn slice(&mut self, write: impl FnOnce(&mut Encoder)) -> Doing {
        if !std::mem::replace(&mut self.named, true) {
            self.encoder.kernel("k");
            let tensors = Vec::new();
            self.encoder.definition(&Definition {
                name: self.operator.unwrap_or("aten::mm").into(),
                arguments: tensors.clone(),
                results: tensors,
            });
        }
        self.encoder.restart();
        write(&mut self.encoder);
        Ran(self.encoder.take())
    }
}

const INSIDE: LaunchFlags = LaunchFlags { inside: true, free: false, spins: false };
const OWN: LaunchFlags = LaunchFlags { inside: false, free: false, spins: false };

fn kernel(encoder: &mut Encoder, stream: u32, us: u64) {
    encoder.stream(StreamEntry::Launch { kernel: 1, stream, flags: OWN, bytes: us });
}

/// Encodes an operator that launches `launches` kernels on the default stream.
fn operator(encoder: &mut Encoder, launches: usize) {
    for _ in 0..launches {
        encoder.stream(StreamEntry::Launch { kernel: 1, stream: 0, flags: INSIDE, bytes: 0 });
    }
    encoder.execution(0, Line::default(), &[]);
}

fn model(way: Way) -> Sources {
    plan(1, way, 1, false)
}

fn ends(slices: Vec<Doing>) -> f64 {
    run(model(Way::Modelled), vec![slices], &[0]).end
}

/// The host needs 6 to reach an operator, whose device part lasts 20. The host launches each further kernel of the
/// operator in 4, which overlaps the device part: with eight kernels, the host is done at 6 + 7 * 4. An operator
/// without a kernel has only host time, 6 / 5.
#[test]
fn an_operator_is_worked_for_by_the_host_and_runs_where_it_was_launched() {
    let mut program = Program::default();
    assert_eq!(ends(vec![program.slice(|encoder| operator(encoder, 1)), synchronizes()]), 26.0);
    let mut program = Program::default();
    assert_eq!(ends(vec![program.slice(|encoder| operator(encoder, 8)), synchronizes()]), 34.0);
    let mut program = Program::default();
    assert_eq!(ends(vec![program.slice(|encoder| operator(encoder, 0)), synchronizes()]), 1.2);
    // Ten operators: each adds 20 on the device, so they end at 6 + 10 * 20.
    let mut program = Program::default();
    let ten = program.slice(|encoder| (0..10).for_each(|_| operator(encoder, 1)));
    assert_eq!(ends(vec![ten, synchronizes()]), 206.0);
}

/// Spins of 30 and 50 on two streams, launched in 4 each, overlap fully. Other kernels share the device; such kernels
/// last 1 per byte.
#[test]
fn a_kernel_that_only_lasts_does_so_for_as_long_as_it_says_whatever_runs_beside_it() {
    for (flags, end) in [(LaunchFlags { spins: true, ..OWN }, 58.0), (OWN, 80_004.0)] {
        let launch = |(stream, bytes)| StreamEntry::Launch { kernel: 1, stream, flags, bytes };
        let all = [(1, 30_000), (2, 50_000)].map(launch);
        let two = Program::default().slice(|encoder| all.into_iter().for_each(|each| encoder.stream(each)));
        assert_eq!(ends(vec![two, synchronizes()]), end);
    }
}

/// A Python function call lasts 1. Up to six calls before an operator are included in its 6; ten calls need 10. Calls
/// before other launches are added: three before a launch of 4, and two at the end. A replay with another figure equals
/// a run with that figure.
#[test]
fn functions_of_python_take_time_beyond_an_operators() {
    let with = |us: u64| {
        let mut plan = model(Way::Modelled);
        plan.ranks[0].host.python = SimDuration::from_us(us);
        plan
    };
    let calls = |before: u64| {
        let mut program = Program::default();
        program.slice(|encoder| {
            encoder.python_calls(before);
            operator(encoder, 1);
        })
    };
    let end = |slice| run(with(1), vec![vec![slice, synchronizes()]], &[0]).end;
    assert_eq!(end(calls(4)), 26.0);
    assert_eq!(end(calls(10)), 30.0);
    let whole = || {
        let mut program = Program::default();
        let first = program.slice(|encoder| {
            encoder.python_calls(3);
            kernel(encoder, 1, 10);
        });
        vec![first, synchronizes(), program.slice(|encoder| encoder.python_calls(2))]
    };
    let [free, once, twice] = [0, 1, 2].map(|us| run(with(us), vec![whole()], &[0]));
    assert_eq!((once.end - free.end, twice.end - free.end), (5.0, 10.0));
    assert_eq!(again(&free.record, with(2)).0, twice.digest);
    assert_eq!(again(&twice.record, with(1)).0, once.digest);
}

/// A copy inside an operator lasts 7 and is not a kernel: 6 + 7. The program waits for the copy inside the operator,
/// whose host time then follows the copy: 7 + 6.
#[test]
fn a_copy_in_an_operator_is_no_kernel() {
    let copy = StreamEntry::Copy { stream: 0, kind: CopyKind::DeviceToPinned, bytes: 7, flags: INSIDE };
    let mut program = Program::default();
    let whole = program.slice(|encoder| {
        encoder.stream(copy);
        encoder.execution(0, Line::default(), &[]);
    });
    assert_eq!(ends(vec![whole, synchronizes()]), 13.0);
    let mut program = Program::default();
    let before = program.slice(|encoder| encoder.stream(copy));
    let after = program.slice(|encoder| encoder.execution(0, Line::default(), &[]));
    assert_eq!(ends(vec![before, synchronizes(), after]), 13.0);
}

/// An operator waits for its own kernel's result: its 20 on the device still count, after the wait.
#[test]
fn the_device_carries_out_an_operator_that_was_interrupted() {
    let mut program = Program::default();
    let before = program.slice(|encoder| {
        encoder.stream(StreamEntry::Launch { kernel: 1, stream: 0, flags: INSIDE, bytes: 0 });
    });
    let after = program.slice(|encoder| encoder.execution(0, Line::default(), &[]));
    assert_eq!(ends(vec![before, synchronizes(), after, synchronizes()]), 26.0);
}

/// Attention of unknown lengths is costed with the longest possible sequences: twice in a graph, and once outside.
#[test]
fn attention_of_unknown_lengths_is_warned_of() {
    let warned = |operator| {
        let mut program = Program { operator: Some(operator), ..Program::default() };
        let all = program.slice(|encoder| {
            encoder.stream(StreamEntry::Capture { stream: 0, graph: Some(1) });
            self::operator(encoder, 1);
            encoder.stream(StreamEntry::Capture { stream: 0, graph: None });
            (0..2).for_each(|_| encoder.stream(StreamEntry::GraphLaunch { graph: 1, stream: 0 }));
            self::operator(encoder, 1);
        });
        let warnings = run(model(Way::Modelled), vec![vec![all, synchronizes()]], &[0]).costed.warnings;
        warnings.into_iter().find(|warning| warning.contains("lengths that are not known"))
    };
    let warning = warned("_vllm_fa3_C::fwd").expect("its lengths are values");
    assert!(warning.ends_with(": _vllm_fa3_C::fwd (3 times)"), "{warning}");
    assert_eq!(warned("aten::mm"), None);
}

/// Attention of two sequences with one query each lasts as long as their keys: 80 after the host's 6. In a graph, the
/// lengths at the capture do not count; each launch, of 4 for the host, reads the current lengths: 4 + 80, and 4 + 20,
/// the second one launched while the first one runs.
#[test]
fn attention_takes_as_long_as_its_sequences() {
    let attends = |encoder: &mut Encoder, keys: &[i64]| {
        encoder.integers(1, &[0, 1, 2]);
        encoder.integers(2, keys);
        encoder.reading(Reading { argument: 7, buffer: 1, count: 3 });
        encoder.reading(Reading { argument: 11, buffer: 2, count: 2 });
        operator(encoder, 1);
    };
    let program = || Program { operator: Some("_vllm_fa3_C::fwd"), ..Program::default() };
    assert_eq!(ends(vec![program().slice(|encoder| attends(encoder, &[30, 50])), synchronizes()]), 86.0);
    let mut program = program();
    let captured = program.slice(|encoder| {
        encoder.stream(StreamEntry::Capture { stream: 0, graph: Some(1) });
        attends(encoder, &[400, 400]);
        encoder.stream(StreamEntry::Capture { stream: 0, graph: None });
    });
    let launched = program.slice(|encoder| {
        for keys in [[30, 50], [10, 10]] {
            encoder.integers(2, &keys);
            encoder.stream(StreamEntry::GraphLaunch { graph: 1, stream: 0 });
        }
    });
    // Begin and end of the capture, and the operator: 8.
    let done = run(model(Way::Modelled), vec![vec![captured, synchronizes(), launched, synchronizes()]], &[0]);
    assert_eq!(done.end, 8.0 + 4.0 + 80.0 + 20.0);
    assert!(done.costed.warnings.is_empty(), "{:?}", done.costed.warnings);
    assert_eq!(again(&done.record, model(Way::Modelled)).0, done.digest);
}

/// An operator's kernels have the numbers 1 and 2, and its copy 3; a graph's nodes have 4 and 5, and node 4 is captured
/// in an inner graph. A launch is identified by its number; a node of a graph by the number of the graph launch and its
/// own, and by no number if the graph launch has none.
#[test]
fn what_the_rank_numbers_it_asks_for() {
    let numbered = |encoder: &mut Encoder, number: u64, entry: StreamEntry| {
        encoder.launch_number(number);
        encoder.stream(entry);
    };
    let inside = StreamEntry::Launch { kernel: 1, stream: 0, flags: INSIDE, bytes: 0 };
    let copy = StreamEntry::Copy { stream: 0, kind: CopyKind::Within, bytes: 1, flags: INSIDE };
    let on = |stream| StreamEntry::Launch { kernel: 1, stream, flags: OWN, bytes: 1 };
    let capture = |stream, graph| StreamEntry::Capture { stream, graph };
    let mut program = Program::default();
    let Ran(operators) = program.slice(|encoder| {
        numbered(encoder, 1, inside);
        numbered(encoder, 3, copy);
        numbered(encoder, 2, inside);
        encoder.execution(0, Line::default(), &[]);
        encoder.stream(capture(1, Some(1)));
        numbered(encoder, 4, on(1));
        encoder.stream(capture(1, None));
        encoder.stream(capture(1, Some(2)));
        numbered(encoder, 6, StreamEntry::GraphLaunch { graph: 1, stream: 1 });
        numbered(encoder, 5, on(1));
        encoder.stream(capture(1, None));
        numbered(encoder, 7, StreamEntry::GraphLaunch { graph: 2, stream: 1 });
        encoder.stream(StreamEntry::GraphLaunch { graph: 2, stream: 1 });
        // The slice ends inside the operator, whose device part follows in the next slice.
        numbered(encoder, 8, inside);
    }) else {
        panic!("it is a slice")
    };
    let Ran(rest) = program.slice(|encoder| encoder.execution(0, Line::default(), &[])) else {
        panic!("it is a slice")
    };
    let costing = Costing::new(model(Way::Modelled));
    let ids = |operators: &[u8]| -> Vec<Vec<(u64, u64)>> {
        let (rank, task, measured) = (RankId(0), TaskId(0), SimDuration::ZERO);
        let slice = RankSlice { rank, task, line: "", measured, operators };
        let pieces = Shared(Rc::clone(&costing)).lower(slice);
        let launches =
            pieces.iter().filter_map(|piece| if let LoweredWork::Launch(launch) = piece { Some(launch) } else { None });
        launches.map(|launch| launch.ids.iter().map(|id| (id.launch, id.node)).collect()).collect()
    };
    let expected = [vec![(1, 0), (2, 0)], vec![(3, 0)], vec![(7, 4)], vec![(7, 5)], vec![], vec![], vec![]];
    assert_eq!(ids(&operators), expected);
    assert_eq!(ids(&rest), [vec![(8, 0)]]);
}

/// A program with all kinds of entries. The first event completes after the copy, 4 + 9, and the host's call, at 14.
/// The host reaches an operator without kernels, which lasts 1.2, and operators at 21.2 and 27.2, which last 20 each.
/// After the second kernel of the latter, an empty kernel, and a wait (6 + 4 + 4 + 1 + 4 more), the host launches a
/// kernel of 5 at 40.2. The kernel shares the device with the rest of the first operator, 1, until 42.2, and with the
/// second one until 50.2, when the second event completes: 36.2 after the first one.
fn whole() -> Vec<Doing> {
    let mut program = Program::default();
    let first = program.slice(|encoder| {
        encoder.stream(StreamEntry::Copy { stream: 3, kind: CopyKind::PageableToDevice, bytes: 9, flags: OWN });
        encoder.stream(StreamEntry::Record { event: 1, stream: 0 });
        (0..3).for_each(|launches| operator(encoder, launches));
        kernel(encoder, 2, 0);
        encoder.stream(StreamEntry::Wait { stream: 2, event: 1 });
        kernel(encoder, 2, 5);
        encoder.stream(StreamEntry::Record { event: 2, stream: 2 });
        encoder.stream(StreamEntry::HostFunction { stream: 2 });
    });
    let second = program.slice(|encoder| operator(encoder, 1));
    let elapsed = Asks(Op::Elapsed { from: 1, to: 2, site: Site(0) });
    let looks = Asks(Op::Query { work: DeviceWork::Stream(0), site: Site(0) });
    vec![first, synchronizes(), elapsed, second, looks, Asks(Op::Now)]
}

#[test]
fn a_replay_is_its_run() {
    let done = run(model(Way::Modelled), vec![whole()], &[0]);
    assert!(done.answers.contains(&Answer::Elapsed(Some(36_200_000))), "{:?}", done.answers);
    for way in [Way::Modelled, Way::Recorded] {
        let (digest, costed) = again(&done.record, model(way));
        assert_eq!(digest, done.digest, "{way:?}");
        assert_eq!(costed.unwrap().rows, if way == Way::Modelled { done.costed.rows.clone() } else { Vec::new() });
    }
    // A kernel outside of all operators, whose memory traffic is unknown, is named.
    let unknown = "kernels that no operator has launched take the shortest time of a kernel: k (1 times)";
    assert!(done.costed.warnings.iter().any(|warning| warning == unknown), "{:?}", done.costed.warnings);
}

/// Ten launches of 10: 4 + 10 * 10. With kernels that last twice as long: 4 + 10 * 20.
#[test]
fn a_replay_on_another_device_is_costed_anew() {
    let program = || {
        let mut program = Program::default();
        let slice = program.slice(|encoder| (0..10).for_each(|_| kernel(encoder, 1, 10)));
        vec![slice, synchronizes()]
    };
    let on = |factor| run(plan(1, Way::Modelled, factor, false), vec![program()], &[0]);
    let (once, twice) = (on(1), on(2));
    assert_eq!((once.end, twice.end), (104.0, 204.0));
    assert_eq!(again(&once.record, plan(1, Way::Modelled, 2, false)).0, twice.digest);
}

/// The measured host time of 100 is divided in proportion: two operators have 50 each, so the second one is launched at
/// 100 and ends at 120.
#[test]
fn measured_time_of_the_host_is_dealt_out() {
    let mut program = Program::default();
    let slice = program.slice(|encoder| (0..2).for_each(|_| operator(encoder, 1)));
    let done = run(plan(1, Way::Modelled, 1, true), vec![vec![slice, synchronizes()]], &[0]);
    assert_eq!(done.end, 120.0);
    let host: Vec<_> = done.costed.rows.iter().filter(|row| row.kind.as_deref() == Some("host")).collect();
    assert!(matches!(host[..], [row] if row.origin == "measured" && (row.seconds - 100e-6).abs() < 1e-12), "{host:?}");
    assert_eq!(again(&done.record, plan(1, Way::Modelled, 1, true)).0, done.digest);
}

/// With measured compute, all compute is the host's: 100 for each of two slices. The warning about missing device time
/// mentions only kernels that the CPU does not compute.
#[test]
fn what_cannot_be_measured_is_said() {
    let mut program = Program::default();
    let slices = [1, 2].map(|launches| program.slice(|encoder| operator(encoder, launches)));
    let done = run(model(Way::Measured), vec![slices.into_iter().chain([synchronizes()]).collect()], &[0]);
    assert_eq!(done.end, 200.0);
    assert_eq!(done.costed.warnings, Vec::<String>::new());

    let mut program = Program::default();
    let slice = program.slice(|encoder| kernel(encoder, 1, 10));
    let done = run(model(Way::Measured), vec![vec![slice, synchronizes()]], &[0]);
    assert_eq!(done.end, 100.0);
    let [warning] = &done.costed.warnings[..] else { panic!("{:?}", done.costed.warnings) };
    assert!(warning.contains("kernels of no operator took no time"), "{warning}");
}

/// Without compute only queries have a duration: 1 for the time between events and 0.05 for the clock.
#[test]
fn without_compute_streams_take_no_time() {
    assert_eq!(run(model(Way::None), vec![whole()], &[0]).end, 1.05);
}

#[test]
fn it_does_not_matter_which_rank_the_host_lets_run_first() {
    let of = |order: &[u32]| {
        let done = run(plan(3, Way::Modelled, 1, false), vec![whole(), whole(), whole()], order);
        (done.digest, done.record)
    };
    let expected = of(&[0, 1, 2]);
    for order in [[2, 1, 0], [1, 2, 0]] {
        assert_eq!(of(&order), expected);
    }
}

/// Two threads that each wait for an event of the other: the record numbers activities in its own order, and a replay
/// on a device of half the speed must resolve the same dependencies. The first thread's kernel ends at 4 + 10, the
/// second thread's kernel 10 later, and the first thread's second kernel another 10 later.
#[test]
fn a_replay_of_threads_finds_what_waits_for_what() {
    let slices = || {
        let mut program = Program::default();
        let of = |doing: Doing| if let Ran(operators) = doing { operators } else { unreachable!() };
        let first = of(program.slice(|encoder| {
            kernel(encoder, 1, 10);
            encoder.stream(StreamEntry::Record { event: 1, stream: 1 });
        }));
        let second = of(program.slice(|encoder| {
            encoder.stream(StreamEntry::Wait { stream: 2, event: 1 });
            kernel(encoder, 2, 10);
            encoder.stream(StreamEntry::Record { event: 2, stream: 2 });
        }));
        let third = of(program.slice(|encoder| {
            encoder.stream(StreamEntry::Wait { stream: 1, event: 2 });
            kernel(encoder, 1, 10);
        }));
        [first, second, third]
    };
    let live = |factor: u64| {
        let [first, second, third] = slices();
        let costing = Costing::new(plan(1, Way::Modelled, factor, false));
        let mut conversations = Conversations::new(Engine::new(&cluster(1)), 1, "a.py");
        conversations.cost_with(Box::new(Shared(costing)));
        let mut recorder =
            Writes(RecordWriter::new(Vec::new(), &Header { world_size: 1, manifest: Manifest::default() }));
        let mut digest = Digest::default();
        let mut told = |conversations: &mut Conversations, recorder: &mut Writes| -> Vec<(TaskId, f64)> {
            let mut told = Vec::new();
            conversations.advance(&mut digest, recorder);
            while let Some(ready) = conversations.take_ready() {
                told.push((ready.task, conversations.engine().clock(RankId(0)).as_ps() as f64 / 1e6));
                conversations.frame(ready);
            }
            told
        };
        let (main, other) = (TaskId(0), TaskId(1));
        let slice = |operators| Op::Compute(ComputeSlice { measured: SimDuration::ZERO, operators });
        let stream = |stream| Op::Synchronize { work: DeviceWork::Stream(stream), site: Site(0) };
        let quiet = |parts| Some(Quiet { parts, outside: false });
        conversations.say(RankId(0), main, vec![Op::Start], quiet(1));
        assert_eq!(told(&mut conversations, &mut recorder), [(main, 0.0)]);
        assert_eq!(conversations.open_task(RankId(0)), other);
        conversations.say(RankId(0), other, vec![slice(second), stream(2)], quiet(2));
        conversations.say(RankId(0), main, vec![slice(first), stream(1)], quiet(2));
        let mut when = told(&mut conversations, &mut recorder);
        conversations.say(RankId(0), main, vec![slice(third), stream(1)], quiet(1));
        when.extend(told(&mut conversations, &mut recorder));
        conversations.say(RankId(0), other, vec![Op::Exit(Outcome::Ok)], quiet(1));
        when.extend(told(&mut conversations, &mut recorder));
        conversations.say(RankId(0), main, vec![Op::Exit(Outcome::Ok)], quiet(1));
        when.extend(told(&mut conversations, &mut recorder));
        conversations.record_rest(&mut recorder);
        (recorder.0.finish().unwrap(), digest.to_hex(), when)
    };
    let (record, digest, when) = live(1);
    assert_eq!(when, [(TaskId(0), 14.0), (TaskId(1), 24.0), (TaskId(0), 34.0)]);
    assert_eq!(again(&record, plan(1, Way::Modelled, 1, false)).0, digest);
    assert_eq!(again(&record, plan(1, Way::Recorded, 1, false)).0, digest);
    assert_eq!(again(&record, plan(1, Way::Modelled, 2, false)).0, live(2).1);
}

/// A record whose slices expand to other pieces is refused: it has the requests of one program and the operators of
/// another.
#[test]
fn a_record_of_other_pieces_is_refused() {
    let mut program = Program::default();
    let one = vec![program.slice(|encoder| kernel(encoder, 1, 10)), synchronizes()];
    let done = run(model(Way::Modelled), vec![one], &[0]);
    let reader = RecordReader::open(Cursor::new(done.record)).unwrap();
    let mut writer = RecordWriter::new(Vec::new(), &Header { world_size: 1, manifest: Manifest::default() });
    let other = RefCell::new(Program::default());
    for (task, step) in reader.by_rank().0.remove(0) {
        let step = match step {
            RecordedStep::Operators { measured, .. } => {
                let Ran(operators) = other.borrow_mut().slice(|encoder| (0..2).for_each(|_| kernel(encoder, 1, 10)))
                else {
                    unreachable!()
                };
                RecordedStep::Operators { operators, measured }
            }
            other => other,
        };
        writer.step(RankId(0), task, &step, "");
    }
    let costed = again(&writer.finish().unwrap(), model(Way::Modelled)).1;
    assert!(matches!(costed, Err(error) if error.to_string().contains("was recorded otherwise")));
}
