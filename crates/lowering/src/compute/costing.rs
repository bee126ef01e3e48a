//! Owns the costs of compute slices and their totals: seconds by origin and kind of operator, operators of unknown
//! cost, and doubtful estimates.
//!
//! An operator is estimated once per definition; if the host's time counts, once per definition and preceding operator.
//! Repeated executions look the estimate up in a table.

mod remarks;

pub use remarks::substituted;

use super::expansion::{DevicePart, Expansion, Reads, copy_name, python_time};
use super::{HostCpu, RankPlan, Sources, Way};
use crate::slice::{Costs, Launch, LoweredWork, RankSlice};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use uniference_costs::model::Coming;
use uniference_costs::operators::stacks::is_of_stack;
use uniference_costs::operators::{Sequences, sequences};
use uniference_formats::lines::{LineName, LineScale};
use uniference_formats::operators::{
    Autograd, CopyKind, Decoder, Definition, Entry, Invalid, Line, MemoryKind, Place, Reading, StreamEntry, Tensor,
};
use uniference_formats::report::ComputeReport;
use uniference_sim::device::{Estimate, Resource};
use uniference_sim::ids::{QueueId, RankId, TaskId};
use uniference_sim::program::{Activity, Origin, Request, Work};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::SimDuration;

/// Kind of kernels of which only the memory traffic is known.
const KERNEL: &str = "kernel";

/// Kind of operators on CPU tensors in a program that uses a GPU.
const ON_HOST: &str = "cpu";

/// Costs the slices of all ranks.
pub struct Costing {
    ranks: Vec<RankCosting>,
    earlier: Option<super::Earlier>,
    outdated: Option<String>,
    /// The first slice that could not be read.
    error: Option<(RankId, Invalid)>,
    /// First rank of a replay whose slices expand to other pieces than recorded.
    differs: Option<RankId>,
    /// Whether a host time was requested.
    host_asked: bool,
    /// Whether a Python time was requested.
    python_asked: bool,
    /// Lines whose compute is scaled, and the number of pieces that were scaled.
    lines: Vec<(LineScale, u64)>,
}

struct RankCosting {
    plan: RankPlan,
    decoder: Decoder,
    /// Costs of all operators, kernels and copies in the rank's slices.
    costs: Vec<Cost>,
    /// Index into `costs` for each costed item.
    places: BTreeMap<What, usize>,
    /// Work that the rank launches on CUDA streams.
    expansion: Expansion,
    /// Integer values in the GPU's buffers, by buffer.
    buffers: BTreeMap<u32, Vec<i64>>,
    /// Integer arguments that the next execution reads from buffers.
    readings: Vec<Reading>,
    /// Work of the host of a GPU in all slices.
    host: (SimDuration, Origin),
    /// Number of Python function calls of the program.
    python_calls: u64,
    /// Allocations of parameters.
    parameters: BTreeSet<u64>,
    /// Number of reads of uncomputed values that determined the control flow, by line and operator.
    answered: BTreeMap<(String, String), u64>,
    on_cpu: bool,
    /// Operators on the host CPU whose cost is estimated only from the bytes of their tensors.
    by_bytes: BTreeSet<String>,
    /// The first operator that costs no time because it runs on an unknown host CPU.
    free_on_host: Option<String>,
    single_tensor_optimizer: bool,
    /// First kernel whose formulas cannot be evaluated, and the error.
    wrong: Option<(String, String)>,
}

/// An operator, kernel or copy to cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// An operator's definition after another one; `previous` is 0, or the number of the preceding definition plus 1.
    Definition { number: usize, previous: usize, autograd: Autograd },
    /// Device time of a definition, without its host time.
    OnDevice { number: usize },
    /// Work of an operator's definition on the host CPU of the device.
    OnHost { number: usize },
    /// Device time of attention with these sequence lengths.
    Attention { number: usize, sequences: [Sequences; 2] },
    /// A kernel outside of all operators: its number, and the bytes that it moves.
    Kernel { number: u32, bytes: u64 },
    /// A kernel that only spins for `ns` nanoseconds.
    Spin { number: u32, ns: u64 },
    /// A copy of `bytes` bytes.
    Copy { kind: CopyKind, bytes: u64 },
}

/// Cost of an operator, kernel or copy on any device.
struct Cost {
    what: What,
    /// Name in timelines; `None`: compute.
    name: Option<Arc<str>>,
    estimate: Estimate,
    kind: &'static str,
    executions: u64,
    first: Line,
}

/// Compute of a completed run.
#[derive(Default)]
pub struct Costed {
    /// Seconds of the ranks whose operators were costed.
    pub rows: Vec<ComputeReport>,
    /// For each rank and each definition that ran: its seconds, and the standard deviation of the logarithm of their
    /// error, if it is known.
    pub spreads: Vec<Vec<(f64, Option<f64>)>>,
    /// Whether all compute of a rank is in `rows`.
    pub modelled: Vec<bool>,
    /// Subject of the figures, if that differs from the program that ran.
    pub headline: Option<String>,
    /// Warnings about the costs.
    pub warnings: Vec<String>,
    /// Costed operators and kernels of serving stacks.
    pub of_stacks: BTreeSet<String>,
}

/// Why the compute of a run cannot be costed.
#[derive(Debug, thiserror::Error)]
pub enum CostingError {
    /// A record has other pieces than its operators expand to.
    #[error(
        "what {0} handed to its device's streams was recorded otherwise than this version understands it\nhint: replay the record with the version that wrote it, or run the program again"
    )]
    Differs(RankId),
    /// The operators of a rank are damaged.
    #[error("the operators of {0} cannot be read: {1}")]
    Operators(RankId, Invalid),
    /// The program has no compute at a line that is scaled.
    #[error("the record has no compute at {0}\nhint: `uniference explain` lists lines that take time, as FILE:LINE")]
    NoCompute(LineName),
    /// A formula of the user's cannot be evaluated.
    #[error("[[kernel]] \"{name}\": {error}\nhint: docs/reference/cluster-file.md says what formulas may name")]
    Formula {
        /// The kernel.
        name: String,
        /// The error.
        error: String,
    },
}

impl Costing {
    /// Costing of one run.
    pub fn new(sources: Sources) -> Rc<RefCell<Costing>> {
        let Sources { ranks, earlier, outdated, host_asked, python_asked, lines } = sources;
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

    /// `work` with its duration scaled as requested for this line.
    fn on_line(&mut self, line: &str, work: Work) -> Work {
        let Some((scale, met)) = self.lines.iter_mut().find(|(scale, _)| scale.line.is(line)) else { return work };
        *met += 1;
        Work { duration: work.duration.scaled(scale.factor), ..work }
    }

    /// Pieces of a rank's next slice. `known` is the measured or recorded duration of the whole slice.
    fn lower(&mut self, rank: RankId, task: TaskId, line: &str, known: &Work, operators: &[u8]) -> Vec<LoweredWork> {
        let costing = &mut self.ranks[rank.index()];
        let mut pieces = costing.read(operators, known).unwrap_or_else(|invalid| {
            self.error.get_or_insert((rank, invalid));
            vec![LoweredWork::Host(Work::new(SimDuration::ZERO, Origin::None))]
        });
        for piece in &mut pieces {
            let on_host = matches!(piece, LoweredWork::Host(_));
            let (LoweredWork::Host(work) | LoweredWork::Launch(Launch { work, .. })) = piece else { continue };
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

    /// Totals of the completed run.
    ///
    /// # Errors
    /// If the figures depend on operators that could not be read.
    pub fn finish(&mut self) -> Result<Costed, CostingError> {
        let mut costed = Costed::default();
        if let Some(rank) = self.differs.take() {
            return Err(CostingError::Differs(rank));
        }
        if let Some((rank, invalid)) = self.error.take() {
            let error = CostingError::Operators(rank, invalid);
            if self.ranks[rank.index()].plan.way == Way::Modelled {
                return Err(error);
            }
            costed.warnings.push(error.to_string().replace("\nhint: ", "; "));
        }
        if let Some((LineScale { line, .. }, _)) = self.lines.iter().find(|(_, met)| *met == 0) {
            return Err(CostingError::NoCompute(line.clone()));
        }
        if let Some((name, error)) = self.ranks.iter_mut().find_map(|costing| costing.wrong.take()) {
            return Err(CostingError::Formula { name, error });
        }
        for (rank, costing) in (0..).zip(&self.ranks) {
            costed.modelled.push(costing.plan.way == Way::Modelled);
            costed.rows.extend(costing.rows(rank));
            costed.spreads.push(costing.spreads());
            let names = costing.ran().filter(|_| costing.plan.way == Way::Modelled);
            let names = names.filter_map(|cost| costing.name(cost.what));
            costed.of_stacks.extend(names.filter(|name| is_of_stack(name)).map(str::to_owned));
        }
        costed.warnings.extend(self.outdated.take());
        costed.warnings.extend(self.remarks());
        costed.headline = self.headline();
        Ok(costed)
    }
}

impl RankCosting {
    /// Whether the rank launches its work on CUDA streams of a simulated GPU.
    fn has_streams(&self) -> bool {
        !self.decoder.kernels().is_empty()
    }

    /// Costs a slice's operators: returns one piece of host work, or the launches if the rank uses CUDA streams.
    /// `known`: measured host time, if there is one.
    fn read(&mut self, operators: &[u8], known: &Work) -> Result<Vec<LoweredWork>, Invalid> {
        let mut by_origin = [0_u64; Origin::ALL.len()];
        let depends = self.plan.costs.as_ref().is_some_and(|costs| costs.depend_on_coming());
        // A call or another thread ran before the slice.
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
                        // The operator is costed instead.
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
                        // Otherwise, the measured time between operators includes Python.
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
        // The work has the origin of its largest part; of equal parts, the more reliable one.
        let most = (0..by_origin.len()).rev().max_by_key(|at| by_origin[*at]).filter(|at| by_origin[*at] > 0);
        let origin = most.map_or(Origin::None, |at| Origin::ALL[at]);
        Ok(vec![LoweredWork::Host(Work::new(SimDuration::from_ps(duration), origin))])
    }

    /// Launches of the slice, and the host work between them.
    fn expanded(&mut self, known: &Work) -> Vec<LoweredWork> {
        let measured = self.plan.measures_host || self.plan.way != Way::Modelled;
        let pieces = self.expansion.finish(measured.then(|| known.clone()));
        for costed in &pieces {
            if let Some(place) = costed.cost {
                self.costs[place].executions += 1;
            }
            if let LoweredWork::Host(work) = &costed.piece {
                let (sum, origin) = &mut self.host;
                *sum = SimDuration::from_ps(sum.as_ps().saturating_add(work.duration.as_ps()));
                *origin = work.origin;
            }
        }
        pieces.into_iter().map(|costed| costed.piece).collect()
    }

    /// The device's part of an operator, for the current values of the buffers that it reads.
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

    /// The device's part of one execution of `what`.
    fn part(&mut self, decoder: &Decoder, what: What, line: Line) -> DevicePart {
        let place = self.place(decoder, what, line);
        let Cost { what, estimate, name, .. } = &self.costs[place];
        let work = match what {
            // A spinning kernel has one thread.
            What::Spin { .. } => estimate.work().on(Resource::Multiprocessor),
            _ => estimate.work(),
        };
        DevicePart::new(Work { name: name.clone(), ..work }, Some(place))
    }

    /// Index of the cost of `what`, which is estimated on first use.
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
                    // The operator has launched a kernel; only its memory traffic is known.
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

    /// Costs of the items that ran at least once.
    fn ran(&self) -> impl Iterator<Item = &Cost> {
        self.costs.iter().filter(|cost| cost.executions > 0)
    }

    /// Name of an operator or a kernel.
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

    /// Lower bound of the seconds of operators of unknown cost, from the bytes of their tensors.
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

    /// Seconds on the device, by origin and kind.
    fn rows(&self, rank: u32) -> Vec<ComputeReport> {
        if self.plan.way != Way::Modelled {
            return Vec::new();
        }
        let mut sums: BTreeMap<(Origin, &'static str), f64> = BTreeMap::new();
        let known = |cost: &&Cost| cost.estimate.duration > SimDuration::ZERO || cost.estimate.origin == Origin::None;
        // Operators on the host CPU have separate rows.
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

    /// Seconds of all executions on the rank's device.
    fn seconds(&self, cost: &Cost) -> f64 {
        cost.estimate.duration.as_secs_f64() * cost.executions as f64 * self.plan.slowdown
    }
}

/// Bytes of all tensors that are arguments or results of an operator.
fn traffic(definition: &Definition) -> u64 {
    definition.tensors().map(Tensor::bytes).fold(0, u64::saturating_add)
}

/// Index of an origin in arrays by origin.
fn place_of(origin: Origin) -> usize {
    Origin::ALL.iter().position(|of| *of == origin).unwrap_or_default()
}

/// Name of an origin in reports; "unknown" for an unknown cost.
fn origin_name(origin: Origin) -> &'static str {
    if origin == Origin::None { "unknown" } else { origin.name() }
}

/// Costs the slices of a live run.
pub struct Shared(pub Rc<RefCell<Costing>>);

impl Costs for Shared {
    fn lower(&mut self, RankSlice { rank, task, line, measured, operators }: RankSlice<'_>) -> Vec<LoweredWork> {
        let known = Work::new(measured, Origin::Measured);
        self.0.borrow_mut().lower(rank, task, line, &known, operators)
    }

    fn line(&self, rank: RankId, line: Line) -> String {
        self.0.borrow().ranks[rank.index()].decoder.line_text(line)
    }
}

/// A rank's recorded steps, with the current costs of its slices in place of the recorded ones.
pub struct RankSteps<I> {
    rank: RankId,
    steps: I,
    costing: Rc<RefCell<Costing>>,
    /// Costed slices that are not yet handed on, by thread.
    ahead: BTreeMap<TaskId, Ahead>,
}

/// Compute of a thread's next request.
#[derive(Default)]
struct Ahead {
    /// Operators of the slice, and their measured time.
    operators: Vec<u8>,
    measured: SimDuration,
    /// Costs of the remaining pieces of a slice that has begun.
    works: VecDeque<Work>,
}

impl<I: Iterator<Item = (TaskId, RecordedStep, String)>> RankSteps<I> {
    /// `steps` contain their source lines.
    pub fn new(rank: RankId, steps: I, costing: Rc<RefCell<Costing>>) -> RankSteps<I> {
        RankSteps { rank, steps, costing, ahead: BTreeMap::new() }
    }

    /// Current cost of a piece that was recorded as `work`.
    fn work(&mut self, task: TaskId, line: &str, work: &Work, queue: QueueId) -> Work {
        let ahead = self.ahead.entry(task).or_default();
        let mut costing = self.costing.borrow_mut();
        let way = costing.ranks[self.rank.index()].plan.way;
        if ahead.works.is_empty() {
            // A slice that begins with work of a CUDA stream ends an operator of an earlier slice, so it has operators.
            if queue.stream().is_some() && ahead.operators.is_empty() {
                costing.differs.get_or_insert(self.rank);
                return work.clone();
            }
            let (operators, measured) = (std::mem::take(&mut ahead.operators), std::mem::take(&mut ahead.measured));
            // The measured time is stored with the operators if the run was not charged with it.
            let known = match way {
                Way::Measured if work.origin != Origin::Measured || !operators.is_empty() => {
                    Work::new(measured, Origin::Measured)
                }
                Way::Modelled => Work::new(measured, Origin::Measured),
                _ => work.clone(),
            };
            let pieces = costing.lower(self.rank, task, line, &known, &operators);
            ahead.works = pieces.into_iter().filter_map(LoweredWork::into_work).collect();
        }
        let now = ahead.works.pop_front().expect("each slice has a piece");
        let now = if way == Way::Recorded { Work { name: now.name, ..work.clone() } } else { now };
        costing.on_line(line, now)
    }

    /// Checks that a thread has no piece left before its next request: the pieces follow from the program alone.
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
