//! Owns what slices of compute cost, and the books: seconds by origin and kind of operator, what nobody knows, what deserves doubt.
//!
//! An operator is estimated once for each definition, and where the host's time counts for each that it comes after; that it ran again is a look
//! into a table.

mod remarks;

use super::expansion::{DevicePart, Expansion, Reads, copy_name, python_time};
use super::{HostCpu, Plan, RankPlan, Way};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use uniference_devices::model::Coming;
use uniference_devices::operators::{Sequences, sequences};
use uniference_formats::operators::{
    Autograd, CopyKind, Decoder, Definition, Entry, Invalid, Line, MemoryKind, Place, Reading, StreamEntry, Tensor,
};
use uniference_formats::report::ComputeReport;
use uniference_host::error::HostError;
use uniference_host::live::exchange::{Costs, Launch, Piece, Slice};
use uniference_sim::device::{Estimate, Resource};
use uniference_sim::ids::{QueueId, RankId, TaskId};
use uniference_sim::program::{Activity, Origin, Request, Work};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::SimDuration;
use uniference_studies::whatif::LineScale;

/// The kind of kernels of which only the number of bytes that they move is known.
const KERNEL: &str = "kernel";

/// The kind of operators on CPU tensors of a program that uses a GPU.
const ON_HOST: &str = "cpu";

/// Costs the slices of all ranks.
pub(crate) struct Costing {
    ranks: Vec<RankCosting>,
    earlier: Option<super::Earlier>,
    outdated: Option<String>,
    /// The first slice that could not be read.
    error: Option<(RankId, Invalid)>,
    /// The first rank of a replay whose slices come to other pieces than were recorded.
    differs: Option<RankId>,
    /// The host's time was asked for.
    host_asked: bool,
    /// Python's time was asked for.
    python_asked: bool,
    /// Lines whose compute takes another time, and how often it was met.
    lines: Vec<(LineScale, u64)>,
}

struct RankCosting {
    plan: RankPlan,
    decoder: Decoder,
    /// Costs of everything that the rank's slices name.
    costs: Vec<Cost>,
    /// The place in `costs`, by what is costed.
    places: BTreeMap<What, usize>,
    /// What the rank hands to streams.
    expansion: Expansion,
    /// What lies in buffers of its GPU.
    buffers: BTreeMap<u32, Vec<i64>>,
    /// What the next execution reads there.
    readings: Vec<Reading>,
    /// What the host beside a device has worked, of all slices.
    host: (SimDuration, Origin),
    /// Functions of Python that the program has called.
    python_calls: u64,
    /// Memory that belongs to parameters.
    parameters: BTreeSet<u64>,
    /// Values that were not computed and steered the program: how often, by line and operator.
    answered: BTreeMap<(String, String), u64>,
    on_cpu: bool,
    /// Operators on the host CPU whose cost is estimated only from the bytes of their tensors.
    by_bytes: BTreeSet<String>,
    /// The first operator that costs no time because it runs on an unknown host CPU.
    free_on_host: Option<String>,
    single_tensor_optimizer: bool,
    /// The first kernel whose formulas have no value, and why.
    wrong: Option<(String, String)>,
}

/// Something that is costed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A definition after another: 0, or that one's number and 1.
    Definition { number: usize, previous: usize, autograd: Autograd },
    /// What the device does of a definition, beside the host.
    OnDevice { number: usize },
    /// Work of an operator's definition on the host CPU of the device.
    OnHost { number: usize },
    /// The same of attention with such sequences.
    Attention { number: usize, sequences: [Sequences; 2] },
    /// A kernel of no operator: its number, and the bytes that it names.
    Kernel { number: u32, bytes: u64 },
    /// One that only lasts, for so many nanoseconds.
    Spin { number: u32, ns: u64 },
    /// A copy of so many bytes.
    Copy { kind: CopyKind, bytes: u64 },
}

/// What something costs, wherever it runs.
struct Cost {
    what: What,
    /// What timelines call it; `None`: compute.
    name: Option<Arc<str>>,
    estimate: Estimate,
    kind: &'static str,
    executions: u64,
    first: Line,
}

/// What is known of a run's compute when it is over.
#[derive(Default)]
pub(crate) struct Costed {
    /// Seconds of ranks whose operators were costed.
    pub(crate) rows: Vec<ComputeReport>,
    /// By rank, for each definition that ran: its seconds, and the standard deviation of the logarithm of their error, if it is known.
    pub(crate) spreads: Vec<Vec<(f64, Option<f64>)>>,
    /// Whether a rank's compute is all in `rows`.
    pub(crate) modelled: Vec<bool>,
    /// What the figures are of, where that is not what ran.
    pub(crate) headline: Option<String>,
    pub(crate) warnings: Vec<String>,
}

impl Costing {
    /// For one run.
    pub(crate) fn new(plan: Plan) -> Rc<RefCell<Costing>> {
        let Plan { ranks, earlier, outdated, host_asked, python_asked, lines, .. } = plan;
        let rank = |plan: RankPlan| RankCosting {
            decoder: Decoder::default(),
            costs: Vec::new(),
            places: BTreeMap::new(),
            expansion: Expansion::new(plan.host),
            buffers: BTreeMap::new(),
            readings: Vec::new(),
            plan,
            host: (SimDuration::ZERO, Origin::Transferred),
            python_calls: 0,
            parameters: BTreeSet::new(),
            answered: BTreeMap::new(),
            on_cpu: false,
            by_bytes: BTreeSet::new(),
            free_on_host: None,
            single_tensor_optimizer: false,
            wrong: None,
        };
        let ranks = ranks.into_iter().map(rank).collect();
        let lines = lines.into_iter().map(|line| (line, 0)).collect();
        Rc::new(RefCell::new(Costing {
            ranks,
            earlier,
            outdated,
            error: None,
            differs: None,
            host_asked,
            python_asked,
            lines,
        }))
    }

    /// The same work, as long as it is to take on this line.
    fn on_line(&mut self, line: &str, work: Work) -> Work {
        let Some((scale, met)) = self.lines.iter_mut().find(|(scale, _)| scale.line.is(line)) else { return work };
        *met += 1;
        Work { duration: work.duration.scaled(scale.factor), ..work }
    }

    /// What the next slice of a rank comes to. `known` is what was measured or recorded of all of it.
    fn pieces(&mut self, rank: RankId, task: TaskId, line: &str, known: &Work, operators: &[u8]) -> Vec<Piece> {
        let costing = &mut self.ranks[rank.index()];
        let mut pieces = costing.read(operators, known).unwrap_or_else(|invalid| {
            self.error.get_or_insert((rank, invalid));
            vec![Piece::Host(Work::new(SimDuration::ZERO, Origin::None))]
        });
        for piece in &mut pieces {
            let on_host = matches!(piece, Piece::Host(_));
            let (Piece::Host(work) | Piece::Launch(Launch { work, .. })) = piece else { continue };
            let nothing = || Work { duration: SimDuration::ZERO, origin: Origin::None, ..work.clone() };
            let known = || if costing.has_streams() { work.clone() } else { known.clone() };
            *work = match costing.plan.way {
                Way::Measured | Way::Recorded if on_host => known(),
                Way::Measured | Way::Recorded | Way::None => nothing(),
                Way::Modelled => continue,
                Way::From => match self.earlier.as_mut().and_then(|earlier| earlier.next(rank, task, line)) {
                    Some(Work { duration, origin, .. }) => Work { duration, origin, ..work.clone() },
                    None if on_host => known(),
                    None => nothing(),
                },
            };
        }
        pieces
    }

    /// The books, once nothing runs any more.
    ///
    /// # Errors
    /// If operators could not be read on which the figures depend.
    pub(crate) fn finish(&mut self) -> Result<Costed, HostError> {
        let mut costed = Costed::default();
        if let Some(rank) = self.differs.take() {
            return Err(HostError::Usage(format!(
                "what {rank} handed to its device's streams was recorded otherwise than this version understands it\nhint: replay the record with the version that wrote it, or run the program again"
            )));
        }
        if let Some((rank, invalid)) = self.error.take() {
            let message = format!("the operators of {rank} cannot be read: {invalid}");
            if self.ranks[rank.index()].plan.way == Way::Modelled {
                return Err(HostError::Usage(message));
            }
            costed.warnings.push(message.replace("\nhint: ", "; "));
        }
        if let Some((LineScale { line, .. }, _)) = self.lines.iter().find(|(_, met)| *met == 0) {
            return Err(HostError::Usage(format!(
                "the record has no compute at {line}\nhint: `uniference explain` lists lines that take time, as FILE:LINE"
            )));
        }
        if let Some((name, error)) = self.ranks.iter().find_map(|costing| costing.wrong.as_ref()) {
            return Err(HostError::Usage(format!(
                "[[kernel]] \"{name}\": {error}\nhint: docs/reference/cluster-file.md says what formulas may name"
            )));
        }
        for (rank, costing) in (0..).zip(&self.ranks) {
            costed.modelled.push(costing.plan.way == Way::Modelled);
            costed.rows.extend(costing.rows(rank));
            costed.spreads.push(costing.spreads());
        }
        costed.warnings.extend(self.outdated.take());
        costed.warnings.extend(self.remarks());
        costed.headline = self.headline();
        Ok(costed)
    }
}

impl RankCosting {
    /// Whether what the rank launches is handed to streams of a simulated GPU.
    fn has_streams(&self) -> bool {
        !self.decoder.kernels().is_empty()
    }

    /// Takes note of what a slice's operators did, and says what that comes to: one piece of work, or where the rank has streams what it hands to
    /// them. `known`: how long the host has worked, where that was measured.
    fn read(&mut self, operators: &[u8], known: &Work) -> Result<Vec<Piece>, Invalid> {
        let mut by_origin = [0_u64; Origin::ALL.len()];
        let depends = self.plan.costs.as_ref().is_some_and(|costs| costs.depend_on_coming());
        // What ran before the slice was a call, or another thread's.
        let (mut previous, mut streams) = (0, self.has_streams());
        let mut decoder = std::mem::take(&mut self.decoder);
        let read = decoder.read(operators, |decoder, entry| {
            streams = streams || !decoder.kernels().is_empty();
            match entry {
                Entry::Execution { definition: number, line, .. } if streams => {
                    let reads = Reads { definition: number, readings: std::mem::take(&mut self.readings) };
                    let part = self.expansion.has_launched().then(|| self.operator_part(decoder, reads, line));
                    let on_host = if part.is_none() { self.on_host(decoder, number, line) } else { SimDuration::ZERO };
                    self.expansion.operator(part, on_host, line);
                }
                Entry::Execution { definition: number, line, autograd, allocations } => {
                    let definition = &decoder.definitions()[number];
                    self.on_cpu |= definition.tensors().any(|tensor| tensor.place == Place::CPU);
                    let autograd = if depends { autograd } else { Autograd::default() };
                    let place = self.place(decoder, What::Definition { number, previous, autograd }, line);
                    let cost = &mut self.costs[place];
                    cost.executions += 1;
                    if depends {
                        previous = number + 1;
                    }
                    let sum = &mut by_origin[place_of(cost.estimate.origin)];
                    *sum = sum.saturating_add(cost.estimate.duration.as_ps());
                    if !self.single_tensor_optimizer && !line.backward {
                        let updates = matches!(definition.base_name(), "add_" | "addcdiv_" | "sub_" | "addcmul_");
                        let mut tensors = definition.tensors().zip(allocations);
                        let parameters = &self.parameters;
                        self.single_tensor_optimizer = definition.base_name() == "addcdiv_"
                            || updates && tensors.any(|(tensor, on)| tensor.written && parameters.contains(on));
                    }
                }
                Entry::Stream(entry) => {
                    if let StreamEntry::GraphLaunch { graph, .. } = entry {
                        let reads = self.expansion.reads(graph);
                        let now = |reads| self.operator_part(decoder, reads, Line::default());
                        let parts = reads.into_iter().map(now).collect();
                        self.expansion.refresh(graph, parts);
                    }
                    let part = match entry {
                        // It is the operator's that is costed.
                        StreamEntry::Launch { kernel, flags, .. } if flags.inside => {
                            let nothing = Work::new(SimDuration::ZERO, Origin::None);
                            DevicePart::new(nothing.named(decoder.kernel(kernel).into()), None)
                        }
                        StreamEntry::Launch { kernel: number, flags, bytes, .. } => {
                            let what = match flags.spins {
                                true => What::Spin { number, ns: bytes },
                                false => What::Kernel { number, bytes },
                            };
                            self.part(decoder, what, Line::default())
                        }
                        StreamEntry::Copy { kind, bytes, .. } => {
                            self.part(decoder, What::Copy { kind, bytes }, Line::default())
                        }
                        _ => DevicePart::new(Work::new(SimDuration::ZERO, Origin::None), None),
                    };
                    self.expansion.enter(entry, part);
                }
                Entry::Number(number) => self.expansion.number(number),
                Entry::PythonCalls(calls) => {
                    self.python_calls = self.python_calls.saturating_add(calls);
                    if streams {
                        self.expansion.python(calls);
                    } else if !depends {
                        // Else the time between operators was measured, with what Python takes.
                        let sum = &mut by_origin[place_of(Origin::Transferred)];
                        *sum = sum.saturating_add(python_time(self.plan.host.python, calls).as_ps());
                    }
                }
                Entry::Integers { buffer, values } => drop(self.buffers.insert(buffer, values.to_vec())),
                Entry::Reading(reading) => self.readings.push(reading),
                Entry::Kind { allocation, kind: MemoryKind::Parameter } => drop(self.parameters.insert(allocation)),
                Entry::Freed { allocation } => drop(self.parameters.remove(&allocation)),
                Entry::Answered { line, operator } => {
                    let line = decoder.source_line(line.site).map_or_else(String::new, |site| site.line.clone());
                    *self.answered.entry((line, operator.to_owned())).or_default() += 1;
                }
                Entry::Allocated { .. }
                | Entry::Level { .. }
                | Entry::Timed { .. }
                | Entry::Kind { .. }
                | Entry::Called { .. } => {}
            }
        });
        self.decoder = decoder;
        read?;
        if streams {
            return Ok(self.expanded(known));
        }
        let duration = by_origin.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
        // The work has the origin of most of it; of equal parts, the surer one.
        let most = (0..by_origin.len()).rev().max_by_key(|at| by_origin[*at]).filter(|at| by_origin[*at] > 0);
        let origin = most.map_or(Origin::None, |at| Origin::ALL[at]);
        Ok(vec![Piece::Host(Work::new(SimDuration::from_ps(duration), origin))])
    }

    /// What the slice has handed to streams, and the host's work between.
    fn expanded(&mut self, known: &Work) -> Vec<Piece> {
        let measured = self.plan.measures_host || self.plan.way != Way::Modelled;
        let pieces = self.expansion.finish(measured.then(|| known.clone()));
        for costed in &pieces {
            if let Some(place) = costed.cost {
                self.costs[place].executions += 1;
            }
            if let Piece::Host(work) = &costed.piece {
                let (sum, origin) = &mut self.host;
                *sum = SimDuration::from_ps(sum.as_ps().saturating_add(work.duration.as_ps()));
                *origin = work.origin;
            }
        }
        pieces.into_iter().map(|costed| costed.piece).collect()
    }

    /// The device's part of an operator, by what now lies where it reads.
    fn operator_part(&mut self, decoder: &Decoder, reads: Reads, line: Line) -> DevicePart {
        let number = reads.definition;
        let values = |argument: usize| {
            let reading = reads.readings.iter().find(|reading| reading.argument as usize == argument)?;
            self.buffers.get(&reading.buffer)?.get(..reading.count as usize)
        };
        let what = match sequences(&decoder.definitions()[number], values) {
            Some(sequences) => What::Attention { number, sequences },
            None => What::OnDevice { number },
        };
        let part = self.part(decoder, what, line);
        DevicePart { reads: (!reads.readings.is_empty()).then_some(reads), ..part }
    }

    /// Time of an operator on the host CPU; zero unless all its tensors are CPU tensors and compute is modelled.
    fn on_host(&mut self, decoder: &Decoder, number: usize, line: Line) -> SimDuration {
        let mut tensors = decoder.definitions()[number].tensors().peekable();
        let is_its_own = tensors.peek().is_some() && tensors.all(|tensor| tensor.place == Place::CPU);
        if !is_its_own || self.plan.way != Way::Modelled || self.plan.measures_host {
            return SimDuration::ZERO;
        }
        if self.plan.host_cpu.is_none() {
            self.free_on_host.get_or_insert_with(|| decoder.definitions()[number].name.clone());
            return SimDuration::ZERO;
        }
        let place = self.place(decoder, What::OnHost { number }, line);
        let cost = &mut self.costs[place];
        cost.executions += 1;
        cost.estimate.duration
    }

    /// The device's part of something, once.
    fn part(&mut self, decoder: &Decoder, what: What, line: Line) -> DevicePart {
        let place = self.place(decoder, what, line);
        let Cost { what, estimate, name, .. } = &self.costs[place];
        let work = match what {
            // Of one thread.
            What::Spin { .. } => estimate.work().on(Resource::Multiprocessor),
            _ => estimate.work(),
        };
        DevicePart::new(Work { name: name.clone(), ..work }, Some(place))
    }

    /// Where the cost of something is, which is estimated when it is asked for first.
    fn place(&mut self, decoder: &Decoder, what: What, first: Line) -> usize {
        let RankCosting { plan, costs, places, wrong, by_bytes, .. } = self;
        *places.entry(what).or_insert_with(|| {
            let definitions = decoder.definitions();
            let (estimate, kind) = match (plan.costs.as_deref(), what) {
                (_, What::OnHost { number }) => {
                    let HostCpu { costs, ranks } = plan.host_cpu.as_ref().expect("it was looked at");
                    let definition = &definitions[number];
                    let estimate = match costs.on_device(definition) {
                        Estimate { origin: Origin::None, .. } => {
                            by_bytes.insert(definition.name.clone());
                            let duration =
                                SimDuration::from_secs_f64(costs.at_least(definition)).unwrap_or(SimDuration::MAX);
                            Estimate { duration, origin: Origin::Roofline, spread: None }
                        }
                        known => known,
                    };
                    (Estimate { duration: estimate.duration.scaled(*ranks), ..estimate }, ON_HOST)
                }
                (None, _) => (Estimate::UNKNOWN, ""),
                (
                    Some(costs),
                    What::Definition { number, .. } | What::OnDevice { number } | What::Attention { number, .. },
                ) if let Some(said) = plan.kernels.iter().find(|said| said.is_about(&definitions[number].name)) => {
                    let estimate = costs.by_formula(said, &definitions[number]).unwrap_or_else(|error| {
                        wrong.get_or_insert((said.name.clone(), error));
                        Estimate::UNKNOWN
                    });
                    (estimate, "said")
                }
                (Some(costs), What::Definition { number, previous, autograd }) => {
                    let previous = previous.checked_sub(1).map(|previous| &definitions[previous]);
                    let coming = Coming { previous, autograd };
                    (costs.estimate(&definitions[number], coming), costs.kind(&definitions[number]))
                }
                (Some(costs), What::OnDevice { number }) => match costs.on_device(&definitions[number]) {
                    // It has launched a kernel, of which this much is known.
                    Estimate { origin: Origin::None, .. } => (costs.kernel(traffic(&definitions[number])), KERNEL),
                    known => (known, costs.kind(&definitions[number])),
                },
                (Some(costs), What::Attention { number, ref sequences }) => {
                    (costs.attention(&definitions[number], sequences), costs.kind(&definitions[number]))
                }
                (Some(costs), What::Kernel { bytes, .. }) => (costs.kernel(bytes), KERNEL),
                (Some(costs), What::Spin { ns, .. }) => {
                    (costs.spin(SimDuration::from_ps(ns.saturating_mul(1000))), KERNEL)
                }
                (Some(costs), What::Copy { kind, bytes }) => (costs.copy(kind, bytes), "copy"),
            };
            let name: Option<Arc<str>> = match what {
                What::Definition { .. } => None,
                What::OnDevice { number } | What::OnHost { number } | What::Attention { number, .. } => {
                    Some(definitions[number].name.as_str().into())
                }
                What::Kernel { number, .. } | What::Spin { number, .. } => Some(decoder.kernel(number).into()),
                What::Copy { kind, .. } => Some(copy_name(kind).into()),
            };
            costs.push(Cost { what, name, estimate, kind, executions: 0, first });
            costs.len() - 1
        })
    }

    /// The costs of what has run at least once.
    fn ran(&self) -> impl Iterator<Item = &Cost> {
        self.costs.iter().filter(|cost| cost.executions > 0)
    }

    /// What an operator or a kernel is called.
    fn name(&self, what: What) -> Option<&str> {
        match what {
            What::Definition { number, .. }
            | What::OnDevice { number }
            | What::OnHost { number }
            | What::Attention { number, .. } => Some(&self.decoder.definitions()[number].name),
            What::Kernel { number, .. } | What::Spin { number, .. } => Some(self.decoder.kernel(number)),
            What::Copy { .. } => None,
        }
    }

    /// Seconds of operators that nobody knows the cost of, for the bytes of their tensors alone.
    fn unknown_at_least(&self) -> f64 {
        let Some(costs) = &self.plan.costs else { return 0.0 };
        let seconds = |cost: &Cost| match cost.what {
            What::Definition { number, .. } | What::OnDevice { number } if cost.estimate.origin == Origin::None => {
                costs.at_least(&self.decoder.definitions()[number]) * cost.executions as f64
            }
            _ => 0.0,
        };
        self.ran().map(seconds).sum::<f64>() * self.plan.slowdown
    }

    fn line(&self, line: Line) -> String {
        self.decoder.source_line(line.site).map_or_else(String::new, |site| site.line.clone())
    }

    /// Seconds on the device by origin and kind.
    fn rows(&self, rank: u32) -> Vec<ComputeReport> {
        if self.plan.way != Way::Modelled {
            return Vec::new();
        }
        let mut sums: BTreeMap<(Origin, &'static str), f64> = BTreeMap::new();
        let known = |cost: &&Cost| cost.estimate.duration > SimDuration::ZERO || cost.estimate.origin == Origin::None;
        // Operators on the host CPU have rows of their own.
        let operators = self.ran().filter(|cost| cost.kind == ON_HOST).map(|cost| self.seconds(cost)).sum::<f64>();
        let host = self.host.0.as_secs_f64() * self.plan.slowdown - operators;
        if host > 0.0 {
            sums.insert((self.host.1, "host"), host);
        }
        for cost in self.ran().filter(known) {
            *sums.entry((cost.estimate.origin, cost.kind)).or_default() += self.seconds(cost);
        }
        let row = |((origin, kind), seconds): ((Origin, &'static str), f64)| ComputeReport {
            rank,
            origin: origin_name(origin).to_owned(),
            kind: Some(kind.to_owned()),
            seconds,
        };
        Origin::ALL
            .iter()
            .flat_map(|origin| sums.iter().filter(move |((of, _), _)| of == origin))
            .map(|(key, sum)| row((*key, *sum)))
            .collect()
    }

    fn spreads(&self) -> Vec<(f64, Option<f64>)> {
        if self.plan.way != Way::Modelled {
            return Vec::new();
        }
        self.ran()
            .map(|cost| (self.seconds(cost), cost.estimate.spread))
            .filter(|(seconds, _)| *seconds > 0.0)
            .collect()
    }

    /// All executions, on the rank's device.
    fn seconds(&self, cost: &Cost) -> f64 {
        cost.estimate.duration.as_secs_f64() * cost.executions as f64 * self.plan.slowdown
    }
}

/// Bytes of all tensors that an operator is given or results in.
fn traffic(definition: &Definition) -> u64 {
    definition.tensors().map(Tensor::bytes).fold(0, u64::saturating_add)
}

/// The place of the origin's sum in arrays by origin.
fn place_of(origin: Origin) -> usize {
    Origin::ALL.iter().position(|of| *of == origin).unwrap_or_default()
}

/// The name of an origin in reports; that of an unknown cost is "unknown".
fn origin_name(origin: Origin) -> &'static str {
    if origin == Origin::None { "unknown" } else { origin.name() }
}

/// Costs the slices of a live run.
pub(crate) struct Shared(pub(crate) Rc<RefCell<Costing>>);

impl Costs for Shared {
    fn pieces(&mut self, Slice { rank, task, line, measured, operators }: Slice<'_>) -> Vec<Piece> {
        let known = Work::new(measured, Origin::Measured);
        self.0.borrow_mut().pieces(rank, task, line, &known, operators)
    }

    fn line(&self, rank: RankId, line: Line) -> String {
        self.0.borrow().ranks[rank.index()].decoder.line_text(line)
    }
}

/// A rank's recorded steps, with what its slices cost now in place of what they did.
pub(crate) struct RankSteps<I> {
    rank: RankId,
    steps: I,
    costing: Rc<RefCell<Costing>>,
    /// The slices that are costed and not yet handed on, by thread.
    ahead: BTreeMap<TaskId, Ahead>,
}

/// What is known of the compute that a thread asks for next.
#[derive(Default)]
struct Ahead {
    /// Its operators, and how long they were measured to take.
    operators: Vec<u8>,
    measured: SimDuration,
    /// Of a slice whose first piece was asked for, what the others cost.
    works: VecDeque<Work>,
}

impl<I: Iterator<Item = (TaskId, RecordedStep, String)>> RankSteps<I> {
    /// `steps` come with the texts of their lines.
    pub(crate) fn new(rank: RankId, steps: I, costing: Rc<RefCell<Costing>>) -> RankSteps<I> {
        RankSteps { rank, steps, costing, ahead: BTreeMap::new() }
    }

    /// What a piece that was recorded as `work` costs now.
    fn work(&mut self, task: TaskId, line: &str, work: &Work, queue: QueueId) -> Work {
        let ahead = self.ahead.entry(task).or_default();
        let mut costing = self.costing.borrow_mut();
        let way = costing.ranks[self.rank.index()].plan.way;
        if ahead.works.is_empty() {
            // A slice that begins with work of a stream has handed it over in the time of an operator that an earlier one has begun.
            if queue.stream().is_some() && ahead.operators.is_empty() {
                costing.differs.get_or_insert(self.rank);
                return work.clone();
            }
            let (operators, measured) = (std::mem::take(&mut ahead.operators), std::mem::take(&mut ahead.measured));
            // What was measured is beside the operators where it was not what the run took.
            let known = match way {
                Way::Measured if work.origin != Origin::Measured || !operators.is_empty() => {
                    Work::new(measured, Origin::Measured)
                }
                Way::Modelled => Work::new(measured, Origin::Measured),
                _ => work.clone(),
            };
            let pieces = costing.pieces(self.rank, task, line, &known, &operators);
            ahead.works = pieces.into_iter().filter_map(Piece::into_work).collect();
        }
        let now = ahead.works.pop_front().expect("each slice has a piece");
        let now = if way == Way::Recorded { Work { name: now.name, ..work.clone() } } else { now };
        costing.on_line(line, now)
    }

    /// Nothing may be left of a slice where its thread goes on to something else: what it comes to follows from the program alone.
    fn expect_end(&mut self, task: TaskId) {
        if self.ahead.get(&task).is_some_and(|ahead| !ahead.works.is_empty()) {
            self.costing.borrow_mut().differs.get_or_insert(self.rank);
        }
    }
}

impl<I: Iterator<Item = (TaskId, RecordedStep, String)>> Iterator for RankSteps<I> {
    type Item = (TaskId, RecordedStep, String);

    fn next(&mut self) -> Option<(TaskId, RecordedStep, String)> {
        let (task, mut step, line) = self.steps.next()?;
        match &mut step {
            RecordedStep::Operators { operators, measured } => {
                self.expect_end(task);
                let ahead = self.ahead.entry(task).or_default();
                ahead.operators.extend_from_slice(operators);
                ahead.measured += *measured;
            }
            RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), queue, .. }) => {
                *work = self.work(task, &line, work, *queue);
            }
            RecordedStep::Request(Request::Wait { .. }) => self.expect_end(task),
            _ => {}
        }
        Some((task, step, line))
    }
}
