//! Owns what slices of compute cost, and the books: seconds by origin and kind of operator, what nobody knows, what deserves doubt.
//!
//! An operator is estimated once for each definition, and where the host's time counts for each that it comes after; that it ran again is a look
//! into a table.

use super::{Plan, RankPlan, Way};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use uniference_formats::operators::{Decoder, Entry, Invalid, Line, MemoryKind, Place};
use uniference_formats::report::ComputeReport;
use uniference_host::error::HostError;
use uniference_host::live::exchange::{Costs, Slice};
use uniference_sim::device::Estimate;
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::program::{Activity, Origin, Request, Work};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::SimDuration;

/// So many names or lines are listed.
const MOST: usize = 8;

/// With more of the compute of unknown cost, in %, the headline says so.
const UNKNOWN: f64 = 5.0;
/// With more of the compute from other devices or operators, in %, the headline says so.
const TRANSFERRED: f64 = 30.0;

/// Costs the slices of all ranks.
pub(crate) struct Costing {
    ranks: Vec<RankCosting>,
    earlier: Option<super::Earlier>,
    outdated: Option<String>,
    /// The first slice that could not be read.
    error: Option<(RankId, Invalid)>,
}

struct RankCosting {
    plan: RankPlan,
    decoder: Decoder,
    /// Of definitions that have run.
    costs: Vec<DefinitionCost>,
    /// Where in `costs` a definition is that comes after another: 0, or that one's number and 1.
    places: BTreeMap<(usize, usize), usize>,
    /// Memory that belongs to parameters.
    parameters: BTreeSet<u64>,
    /// Values that were not computed and steered the program: how often, by line and operator.
    answered: BTreeMap<(String, String), u64>,
    on_cpu: bool,
    single_tensor_optimizer: bool,
}

/// What one definition costs, wherever it runs or after a certain other.
struct DefinitionCost {
    /// Of the definition.
    number: usize,
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
        let Plan { ranks, earlier, outdated, .. } = plan;
        let rank = |plan| RankCosting {
            plan,
            decoder: Decoder::default(),
            costs: Vec::new(),
            places: BTreeMap::new(),
            parameters: BTreeSet::new(),
            answered: BTreeMap::new(),
            on_cpu: false,
            single_tensor_optimizer: false,
        };
        let ranks = ranks.into_iter().map(rank).collect();
        Rc::new(RefCell::new(Costing { ranks, earlier, outdated, error: None }))
    }

    /// The work of the next slice of a rank. `known` is what was measured or recorded.
    fn work(&mut self, rank: RankId, task: TaskId, line: &str, known: Work, operators: &[u8]) -> Work {
        let costing = &mut self.ranks[rank.index()];
        let modelled = match costing.read(operators) {
            Ok(work) => work,
            Err(invalid) => {
                self.error.get_or_insert((rank, invalid));
                Work::new(SimDuration::ZERO, Origin::None)
            }
        };
        match costing.plan.way {
            Way::Measured | Way::Recorded => known,
            Way::Modelled => modelled,
            Way::None => Work::new(SimDuration::ZERO, Origin::None),
            Way::From => self.earlier.as_mut().and_then(|earlier| earlier.next(rank, task, line)).unwrap_or(known),
        }
    }

    /// The books, once nothing runs any more.
    ///
    /// # Errors
    /// If operators could not be read on which the figures depend.
    pub(crate) fn finish(&mut self) -> Result<Costed, HostError> {
        let mut costed = Costed::default();
        if let Some((rank, invalid)) = self.error.take() {
            let message = format!("the operators of {rank} cannot be read: {invalid}");
            if self.ranks[rank.index()].plan.way == Way::Modelled {
                return Err(HostError::Usage(message));
            }
            costed.warnings.push(message.replace("\nhint: ", "; "));
        }
        for (rank, costing) in (0..).zip(&self.ranks) {
            costed.modelled.push(costing.plan.way == Way::Modelled);
            costed.rows.extend(costing.rows(rank));
            costed.spreads.push(costing.spreads());
        }
        costed.warnings.extend(self.outdated.take());
        costed.warnings.extend(self.unknown());
        costed.warnings.extend(self.substituted());
        costed.warnings.extend(self.answered());
        costed.warnings.extend(self.earlier.as_ref().and_then(super::Earlier::warning));
        costed.headline = self.headline();
        Ok(costed)
    }

    /// Operators that nobody knows the cost of.
    fn unknown(&self) -> Option<String> {
        let mut found: BTreeMap<&str, (u64, String)> = BTreeMap::new();
        for costing in self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled) {
            for (number, cost) in costing.ran().filter(|(_, cost)| cost.estimate.origin == Origin::None) {
                let name = costing.decoder.definitions()[number].name.as_str();
                let (count, _) = found.entry(name).or_insert_with(|| (0, costing.line(cost.first)));
                *count += cost.executions;
            }
        }
        let shown = |(name, (count, line)): (&&str, &(u64, String))| match line.is_empty() {
            true => format!("{name} ({count} times)"),
            false => format!("{name} ({count} times, first at {line})"),
        };
        let what =
            if found.len() == 1 { "an operator of unknown cost counts" } else { "operators of unknown cost count" };
        (!found.is_empty()).then(|| format!("{what} as 0 s: {}", listed(found.iter().map(shown))))
    }

    /// Types of elements that were computed at the rate of another.
    fn substituted(&self) -> Option<String> {
        let costs = self.ranks.iter().filter_map(|costing| costing.plan.costs.as_ref());
        let found: BTreeSet<_> = costs.flat_map(|costs| costs.substituted()).collect();
        let shown = found.iter().map(|(asked, served)| format!("{asked} (as {served})"));
        (!found.is_empty()).then(|| format!("`peak_flops` has no rate for {}", listed(shown)))
    }

    /// Values that were not computed and steered the program.
    fn answered(&self) -> Option<String> {
        let mut found: BTreeMap<&(String, String), u64> = BTreeMap::new();
        for (at, count) in self.ranks.iter().flat_map(|costing| &costing.answered) {
            *found.entry(at).or_default() += count;
        }
        let shown = |((line, operator), count): (&&(String, String), &u64)| {
            let place = if line.is_empty() { "an unknown line" } else { line };
            format!("{place} ({operator}, {count} times)")
        };
        (!found.is_empty()).then(|| {
            format!(
                "the program read values that were not computed (--values), and was told zeros: at {}",
                listed(found.iter().map(shown))
            )
        })
    }

    /// What the figures are of, where that is not what ran, and how much of them is no measurement of the device.
    fn headline(&self) -> Option<String> {
        let said: Vec<String> = self.elsewhere().into_iter().chain(self.unsure()).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// How much of the compute is of unknown cost, or other devices', where that is much.
    fn unsure(&self) -> Vec<String> {
        let modelled = || self.ranks.iter().filter(|costing| costing.plan.way == Way::Modelled);
        let of = |origin: Origin| -> f64 {
            let costs = modelled().flat_map(|costing| costing.ran().map(move |(_, cost)| (costing, cost)));
            costs.filter(|(_, cost)| cost.estimate.origin == origin).map(|(costing, cost)| costing.seconds(cost)).sum()
        };
        let unknown: f64 = modelled().map(RankCosting::unknown_at_least).sum();
        let known: f64 = Origin::ALL.iter().map(|origin| of(*origin)).sum();
        let share = |seconds: f64, all: f64| if all > 0.0 { 100.0 * seconds / all } else { 0.0 };
        let mut said = Vec::new();
        let unknown = share(unknown, known + unknown);
        if unknown > UNKNOWN {
            said.push(format!("at least {unknown:.0} % of the compute is of unknown cost and counts as 0 s"));
        }
        let transferred = share(of(Origin::Transferred), known);
        if transferred > TRANSFERRED {
            said.push(format!(
                "{transferred:.0} % of the compute is transferred from measurements of other devices or operators"
            ));
        }
        said
    }

    /// What the program chose because it ran on a processor, where its operators are costed for a GPU.
    fn elsewhere(&self) -> Option<String> {
        let elsewhere: Vec<&RankCosting> = self
            .ranks
            .iter()
            .filter(|costing| costing.plan.way == Way::Modelled && costing.plan.is_gpu && costing.on_cpu)
            .collect();
        if elsewhere.is_empty() {
            return None;
        }
        let mut chosen: BTreeSet<String> = BTreeSet::new();
        for costing in &elsewhere {
            let names = costing.ran().map(|(number, _)| &costing.decoder.definitions()[number].name);
            chosen.extend(names.filter(|name| name.contains("_for_cpu")).cloned());
            if costing.single_tensor_optimizer {
                chosen.insert("an optimizer without foreach".to_owned());
            }
        }
        let chosen = match chosen.is_empty() {
            true => String::new(),
            false => format!("; a GPU would run other operators in place of {}", listed(chosen.into_iter())),
        };
        Some(format!("captured on a CPU, costed for a GPU{chosen}"))
    }
}

impl RankCosting {
    /// Takes note of what a slice's operators did, and adds up what they cost.
    fn read(&mut self, operators: &[u8]) -> Result<Work, Invalid> {
        let RankCosting { plan, decoder, costs, places, parameters, answered, on_cpu, single_tensor_optimizer } = self;
        let mut by_origin = [0_u64; Origin::ALL.len()];
        let after_another = plan.costs.as_ref().is_some_and(|costs| costs.depend_on_previous());
        // What ran before the slice was a call, or another thread's.
        let mut previous = 0;
        decoder.read(operators, |decoder, entry| match entry {
            Entry::Execution { definition: number, line, allocations } => {
                let place = *places.entry((number, previous)).or_insert_with(|| {
                    let definition = &decoder.definitions()[number];
                    *on_cpu |= definition.tensors().any(|tensor| tensor.place == Place::CPU);
                    let previous = previous.checked_sub(1).map(|previous| &decoder.definitions()[previous]);
                    let (estimate, kind) = plan.costs.as_deref().map_or((Estimate::UNKNOWN, ""), |costs| {
                        (costs.estimate(definition, previous), costs.kind(definition))
                    });
                    costs.push(DefinitionCost { number, estimate, kind, executions: 0, first: line });
                    costs.len() - 1
                });
                let cost = &mut costs[place];
                cost.executions += 1;
                if after_another {
                    previous = number + 1;
                }
                let at = Origin::ALL.iter().position(|origin| *origin == cost.estimate.origin).unwrap_or_default();
                by_origin[at] = by_origin[at].saturating_add(cost.estimate.duration.as_ps());
                if !*single_tensor_optimizer && !line.backward {
                    let definition = &decoder.definitions()[number];
                    let updates = matches!(definition.base_name(), "add_" | "addcdiv_" | "sub_" | "addcmul_");
                    let mut tensors = definition.tensors().zip(allocations);
                    *single_tensor_optimizer = definition.base_name() == "addcdiv_"
                        || updates && tensors.any(|(tensor, on)| tensor.written && parameters.contains(on));
                }
            }
            Entry::Kind { allocation, kind: MemoryKind::Parameter } => drop(parameters.insert(allocation)),
            Entry::Freed { allocation } => drop(parameters.remove(&allocation)),
            Entry::Answered { line, operator } => {
                let line = decoder.source_line(line.site).map_or_else(String::new, |site| site.line.clone());
                *answered.entry((line, operator.to_owned())).or_default() += 1;
            }
            Entry::Allocated { .. } | Entry::Timed { .. } | Entry::Kind { .. } => {}
        })?;
        let duration = by_origin.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
        // The work has the origin of most of it; of equal parts, the surer one.
        let most = (0..by_origin.len()).rev().max_by_key(|at| by_origin[*at]).filter(|at| by_origin[*at] > 0);
        Ok(Work::new(SimDuration::from_ps(duration), most.map_or(Origin::None, |at| Origin::ALL[at])))
    }

    /// Definitions that have run, with their numbers.
    fn ran(&self) -> impl Iterator<Item = (usize, &DefinitionCost)> {
        self.costs.iter().map(|cost| (cost.number, cost))
    }

    /// Seconds of operators that nobody knows the cost of, for the bytes of their tensors alone.
    fn unknown_at_least(&self) -> f64 {
        let Some(costs) = &self.plan.costs else { return 0.0 };
        let unknown = self.ran().filter(|(_, cost)| cost.estimate.origin == Origin::None);
        let seconds = |(number, cost): (usize, &DefinitionCost)| {
            costs.at_least(&self.decoder.definitions()[number]) * cost.executions as f64
        };
        unknown.map(seconds).sum::<f64>() * self.plan.slowdown
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
        for (_, cost) in self
            .ran()
            .filter(|(_, cost)| cost.estimate.duration > SimDuration::ZERO || cost.estimate.origin == Origin::None)
        {
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
            .map(|(_, cost)| (self.seconds(cost), cost.estimate.spread))
            .filter(|(seconds, _)| *seconds > 0.0)
            .collect()
    }

    /// All executions of a definition, on the rank's device.
    fn seconds(&self, cost: &DefinitionCost) -> f64 {
        cost.estimate.duration.as_secs_f64() * cost.executions as f64 * self.plan.slowdown
    }
}

/// What is nobody's figure is called so in reports.
fn origin_name(origin: Origin) -> &'static str {
    if origin == Origin::None { "unknown" } else { origin.name() }
}

/// The first of them, and how many more there are.
fn listed(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", all[..all.len().min(MOST)].join(", "))
}

/// Costs the slices of a live run.
pub(crate) struct Shared(pub(crate) Rc<RefCell<Costing>>);

impl Costs for Shared {
    fn work(&mut self, Slice { rank, task, line, measured, operators }: Slice<'_>) -> Work {
        let known = Work::new(measured, Origin::Measured);
        self.0.borrow_mut().work(rank, task, line, known, operators)
    }
}

/// A rank's recorded steps, with what its slices cost now in place of what they did.
pub(crate) struct RankSteps<I> {
    rank: RankId,
    steps: I,
    costing: Rc<RefCell<Costing>>,
    /// By thread, the operators of the compute that it asks for next, and how long they were measured to take.
    ahead: BTreeMap<TaskId, (Vec<u8>, SimDuration)>,
}

impl<I: Iterator<Item = (TaskId, RecordedStep, String)>> RankSteps<I> {
    /// `steps` come with the texts of their lines.
    pub(crate) fn new(rank: RankId, steps: I, costing: Rc<RefCell<Costing>>) -> RankSteps<I> {
        RankSteps { rank, steps, costing, ahead: BTreeMap::new() }
    }
}

impl<I: Iterator<Item = (TaskId, RecordedStep, String)>> Iterator for RankSteps<I> {
    type Item = (TaskId, RecordedStep, String);

    fn next(&mut self) -> Option<(TaskId, RecordedStep, String)> {
        let (task, mut step, line) = self.steps.next()?;
        match &mut step {
            RecordedStep::Operators { operators, measured } => {
                let (ahead, sum) = self.ahead.entry(task).or_default();
                ahead.extend_from_slice(operators);
                *sum += *measured;
            }
            RecordedStep::Request(Request::Issue { activity: Activity::Compute(work), .. }) => {
                let (operators, measured) = self.ahead.remove(&task).unwrap_or_default();
                let mut costing = self.costing.borrow_mut();
                // What was measured is beside the operators where it was not what the run took.
                let way = costing.ranks[self.rank.index()].plan.way;
                let known = match way {
                    Way::Measured if work.origin != Origin::Measured => Work::new(measured, Origin::Measured),
                    _ => work.clone(),
                };
                *work = costing.work(self.rank, task, &line, known, &operators);
            }
            _ => {}
        }
        Some((task, step, line))
    }
}
