//! Owns the results of a run: the observers while it runs, and the files that are written when it ends.
//!
//! The formats of the files are defined in `uniference-formats`.

use crate::doubts::of_network;
use crate::folder::Folder;
pub use crate::names::{EVENTS, GROUPS, NATIVE_TRACE, PREFIX, RECORD, REPORT, TABLES, TIMELINE, TRACE};
use crate::notices::Notices;
use crate::patience::Patience;
use crate::progress::Progress;
use crate::tables::{self, Tables};
use crate::tight::tightness;
use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::rc::Rc;
use uniference_costs::operators::stacks::unchecked;
use uniference_formats::cluster::Resolved;
use uniference_formats::events::EventWriter;
use uniference_formats::record::{Header, RecordWriter};
use uniference_formats::report::{ComputeReport, CriticalPathReport, Manifest, Report};
use uniference_formats::trace::{Chrome, Lines, PathSpan, Perfetto, TraceWriter};
use uniference_host::error::HostError;
use uniference_lowering::Recorder;
use uniference_lowering::compute::Costed;
use uniference_sim::cluster::Device;
use uniference_sim::device::Origin;
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::{HostId, RankId, Site, TaskId};
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::{SimDuration, SimTime};
use uniference_studies::compute::Computes;
use uniference_studies::critical::{Causes, Explanation, Listed, Step};
use uniference_studies::interval::interval;
use uniference_studies::links::Links;
use uniference_studies::memory::{Held, Kind, Memory, Point};
use uniference_studies::phases::Phases;

/// Files in addition to the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordLevel {
    /// Program record, timeline, tables of events, and all events as text; tables and text include messages.
    Full,
    /// Program record, timeline, and tables of all events except messages.
    #[default]
    Ops,
    /// No other file: for very large runs.
    Summary,
}

/// Number of events above which the report has no critical path; `uniference explain` shows it.
const MOST_CAUSES: u64 = 10_000_000;
/// Maximum number of spans of the critical path in a timeline.
const MOST_IN_TRACE: u64 = 10_000;

/// All observers of a run.
pub(crate) struct Recording {
    observers: (Counted, Shown),
    record: Record,
}

/// Figures of a run.
pub struct Figures {
    /// Times and bytes of every rank, operation and link.
    pub statistics: Statistics,
    /// Digest of the run's events.
    pub digest: Digest,
    /// Traffic of links, if messages were observed.
    pub(crate) links: Option<Links>,
    /// Durations of compute between the ranks' operations.
    pub computes: Computes,
    /// Durations of named ranges.
    pub phases: Phases,
    /// Memory of the ranks over time.
    pub held: Held,
    /// The critical path, if the causes of events were kept.
    pub critical_path: Option<CriticalPathReport>,
    /// Source lines of the program, by site.
    pub lines: Vec<String>,
    /// Costs of operators, if they were costed.
    pub(crate) costed: Costed,
}

/// Information about a run in addition to its own figures.
#[derive(Default)]
pub(crate) struct Beside {
    /// Makespans of the same run with other seeds, in seconds.
    pub(crate) others: Vec<f64>,
    pub(crate) warnings: Vec<String>,
}

/// Observers for the report.
type Counted = (((Statistics, Digest), Option<Links>), ((Computes, Phases), Listened));
/// Observers that show or write the run's progress and events.
type Shown = (((Patience, Progress), Option<Causes>), (Trace, (Events, Option<Tables>)));
type Trace = Option<TraceWriter<(Chrome<BufWriter<File>>, Perfetto<BufWriter<File>>)>>;
type Events = Option<EventWriter<BufWriter<File>>>;

/// The memory account, which observes events and steps.
#[derive(Clone)]
pub(crate) struct Listened(Rc<RefCell<Memory>>);

impl Listened {
    pub(crate) fn new(memory: Memory) -> Listened {
        Listened(Rc::new(RefCell::new(memory)))
    }

    /// Memory of the ranks, once no other reference to the account is left.
    ///
    /// # Errors
    /// If a rank's operators could not be read.
    ///
    /// # Panics
    /// If another reference is left.
    pub(crate) fn finish(self) -> Result<Held, HostError> {
        let memory = Rc::into_inner(self.0).expect("nobody else listens").into_inner();
        memory.finish().map_err(|(rank, invalid)| HostError::Usage(format!("{rank}: {invalid}")))
    }
}

impl Observer for Listened {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.0.borrow_mut().record(at, event);
    }
}

impl Recorder for Listened {
    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, _: &str) {
        self.0.borrow_mut().step(rank, task, step);
    }
}

/// The program record, if one is kept, the memory account, the program's lines, and the tables that receive the lines.
struct Record {
    writer: Option<RecordWriter<BufWriter<File>>>,
    memory: Listened,
    lines: Lines,
    tables: Option<tables::Handle>,
}

impl Recorder for Record {
    fn line(&mut self, site: Site, line: &str) {
        let mut lines = self.lines.borrow_mut();
        if lines.len() <= site.index() {
            lines.resize_with(site.index() + 1, String::new);
        }
        if lines[site.index()].is_empty() && !line.is_empty() {
            line.clone_into(&mut lines[site.index()]);
            self.tables.iter().for_each(|tables| tables.line(site, line));
        }
    }

    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str) {
        if let Some(site) = step.site() {
            self.line(site, line);
        }
        if let Some(writer) = &mut self.writer {
            writer.step(rank, task, step, line);
        }
        self.memory.step(rank, task, step, line);
    }
}

/// The manifest of a run, for its report and its record.
pub fn manifest(command: Vec<String>, seed: u64, resolved: &Resolved) -> Manifest {
    Manifest { cluster: resolved.toml.clone(), seed, command, ..versions() }
}

/// The words of a command for reports; bytes that are not UTF-8 are replaced.
pub fn command(argv: &[OsString]) -> Vec<String> {
    argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// A manifest with only this program's version.
pub fn versions() -> Manifest {
    let version = ("uniference".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Manifest { versions: [version].into_iter().collect(), ..Manifest::default() }
}

impl Recording {
    /// Opens the files of `level`.
    pub(crate) fn start(
        level: RecordLevel,
        resolved: &Resolved,
        manifest: &Manifest,
        folder: &Folder,
        notices: &Notices,
    ) -> Result<Recording, HostError> {
        let wanted =
            |least: &[RecordLevel], name: &str| least.contains(&level).then(|| folder.create(name)).transpose();
        let ops = [RecordLevel::Full, RecordLevel::Ops];
        let program_lines = Lines::default();
        let traces = wanted(&ops, TRACE)?.zip(wanted(&ops, NATIVE_TRACE)?);
        let trace = traces.map(|(chrome, native)| {
            let formats = (Chrome::new(chrome), Perfetto::new(native));
            TraceWriter::new(formats, &resolved.cluster, Lines::clone(&program_lines))
        });
        let links = || resolved.cluster.topology.links().iter().map(|link| &*link.name);
        let events = wanted(&[RecordLevel::Full], EVENTS)?.map(|file| EventWriter::new(file, links()));
        let messages = level == RecordLevel::Full;
        let tables = ops.contains(&level).then(|| Tables::create(folder, messages, links())).transpose()?;
        let header = Header { world_size: resolved.cluster.devices.len() as u32, manifest: manifest.clone() };
        let memory = Listened::new(Memory::new(resolved.cluster.devices.len(), trace.is_some()));
        let writer = wanted(&ops, RECORD)?.map(|file| RecordWriter::new(file, &header));
        let handle = tables.as_ref().map(Tables::handle);
        let record = Record { writer, memory: memory.clone(), lines: program_lines, tables: handle };
        let programs = (Computes::default(), Phases::default());
        let carried = ops.contains(&level).then(Links::default);
        let statistics = (((Statistics::default(), Digest::default()), carried), (programs, memory));
        let causes = ops.contains(&level).then(|| Causes::new(&resolved.cluster).of_at_most(MOST_CAUSES));
        Ok(Recording {
            observers: (
                statistics,
                (((Patience::new(notices.clone()), Progress::new(notices.clone())), causes), (trace, (events, tables))),
            ),
            record,
        })
    }

    /// The observers and the recorder of the run.
    pub(crate) fn watchers(&mut self) -> (&mut dyn Observer, &mut dyn Recorder) {
        (&mut self.observers, &mut self.record)
    }

    /// Completes the files of a run that finished or stopped; `lines` are the program's source lines.
    pub(crate) fn finish(self, lines: Vec<String>, costed: Costed) -> Result<Figures, HostError> {
        let (counted, ((_, causes), (mut trace, (mut events, tables)))) = self.observers;
        let (((statistics, digest), links), ((computes, phases), memory)) = counted;
        let explanation = causes.as_ref().and_then(|causes| causes.explain(&lines, Listed::AtMost(MOST_IN_TRACE)));
        let critical_path = explanation.as_ref().and_then(Explanation::report);
        if let Some((trace, explanation)) = trace.as_mut().zip(explanation.filter(|_| critical_path.is_some())) {
            trace.critical_path(explanation.path.into_iter().map(span));
        }
        if let Some((trace, causes)) = trace.as_mut().zip(causes) {
            causes.releases(&lines).for_each(|release| trace.release(&release));
        }
        let Record { writer, memory: also, .. } = self.record;
        drop(also);
        // If operators cannot be read, `costed` has a warning, or an error if figures depend on them; the memory of the
        // ranks is then unknown.
        let held = memory.finish().unwrap_or_default();
        for (rank, points) in (0..).map(RankId).zip(&held.timelines) {
            trace.iter_mut().for_each(|trace| trace.memory(rank, counter(points)));
        }
        trace.map(TraceWriter::finish).transpose()?;
        events.iter_mut().for_each(|events| events.lines(&lines));
        events.map(EventWriter::finish).transpose()?;
        tables.map(Tables::finish).transpose()?;
        writer.map(RecordWriter::finish).transpose()?;
        Ok(Figures { statistics, digest, links, computes, phases, held, critical_path, lines, costed })
    }
}

/// A span of the critical path in a timeline.
fn span(step: Step) -> PathSpan {
    let Step { start_ps, end_ps, what, range } = step;
    let place = what.link.clone().or(what.rank.map(|rank| format!("rank {rank}")));
    let name = what.name.as_deref().filter(|name| *name != what.kind).map(|name| format!(" in {name}"));
    let words = [place.map(|place| format!(" of {place}")), name].map(Option::unwrap_or_default).concat();
    let [start, end] = [start_ps, end_ps].map(SimTime::from_ps);
    PathSpan { start, end, name: format!("{}{words}", what.kind), rank: what.rank, line: what.line, range }
}

/// Memory over time in a timeline, with the kinds that the rank ever uses.
fn counter(points: &[Point]) -> impl Iterator<Item = (SimTime, Vec<(&'static str, u64)>)> + '_ {
    let ever = Kind::ALL.into_iter().filter(|kind| points.iter().any(|point| point.held.of(*kind) > 0));
    let ever: Vec<Kind> = ever.collect();
    points.iter().map(move |Point { at, held }| (*at, ever.iter().map(|kind| (kind.name(), held.of(*kind))).collect()))
}

/// The report of a finished run.
pub(crate) fn of_run(figures: Figures, resolved: &Resolved, beside: Beside, manifest: Manifest) -> Report {
    let Figures { statistics, digest, links, computes, phases, held, critical_path, lines, costed } = figures;
    let Beside { others, warnings } = beside;
    let mut report = Report::new(&statistics, &resolved.cluster.devices, digest.to_hex(), manifest);
    if statistics.operations().next().is_none() {
        report.warnings.push("the program never communicated; only its compute was simulated".to_owned());
    }
    report.links = links.map_or_else(Vec::new, |links| links.report(&resolved.cluster, statistics.makespan()));
    report.memory = held.report();
    // Reserved memory without allocations is not counted: torch's allocator frees it before an allocation fails.
    let peak = |rank: usize| {
        let held = held.peaks.get(rank)?.as_ref()?.held;
        Some(held.total() - held.of(Kind::Reserved))
    };
    report.warnings.extend(tightness(&resolved.cluster.devices, peak));
    report.warnings.extend(left_open(&phases));
    report.phases = phases.report();
    report.critical_path = critical_path;
    let Costed { rows, spreads, modelled, headline, warnings: of_operators, of_stacks } = costed;
    report.warnings.extend(of_network(resolved));
    report.warnings.extend(without_effect(resolved, &computes, &modelled));
    report.warnings.extend(computes.spread(&lines));
    report.warnings.extend(of_operators);
    report.warnings.extend(unchecked(&of_stacks, &report.manifest.versions));
    report.warnings.extend(warnings);
    report.headline = headline;
    report.compute = compute(&computes, rows, &modelled, report.ranks.len() as u32);
    let has_spread = spreads.iter().flatten().any(|(_, spread)| spread.is_some());
    if resolved.uncertainty.is_some() || !others.is_empty() || has_spread {
        let uncertainty = resolved.uncertainty.clone().unwrap_or_default();
        report.interval = Some(interval(&report, &uncertainty, &others, &spreads));
    }
    report
}

/// A warning about ranges without a duration, which were still open when their rank ended.
fn left_open(phases: &Phases) -> Option<String> {
    const MOST_NAMED: usize = 4;
    let open = phases.left_open();
    let named: Vec<String> =
        open.iter().take(MOST_NAMED).map(|(name, rank)| format!("`{name}` of rank {}", rank.0)).collect();
    let more = open.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| {
        format!(
            "ranges were still open at the end of their ranks, and are not counted in `phases`: {}{more}\nhint: end them, for example with `with record_function(...)`",
            named.join(", ")
        )
    })
}

/// Seconds of compute by rank: of operators if they were costed, else of the ranks' compute requests.
fn compute(computes: &Computes, rows: Vec<ComputeReport>, modelled: &[bool], ranks: u32) -> Vec<ComputeReport> {
    let mut rows = rows.into_iter().peekable();
    let mut all = Vec::new();
    for rank in 0..ranks {
        if modelled.get(rank as usize).copied().unwrap_or(false) {
            // Nodes of an execution trace may state a duration in addition to listing operators.
            let known = computes.by_origin(RankId(rank)).filter(|(origin, _)| *origin == Origin::Recorded);
            all.extend(known.map(of_origin(rank)));
            all.extend(std::iter::from_fn(|| rows.next_if(|row| row.rank == rank)));
            continue;
        }
        all.extend(computes.by_origin(RankId(rank)).map(of_origin(rank)));
    }
    all
}

fn of_origin(rank: u32) -> impl Fn((Origin, SimDuration)) -> ComputeReport {
    move |(origin, duration)| ComputeReport {
        rank,
        origin: origin.name().to_owned(),
        kind: None,
        seconds: duration.as_secs_f64(),
    }
}

/// Warnings about device keys in the cluster file that had no effect. `memory` is not checked:
/// docs/reference/cluster-file.md lists its uses.
fn without_effect(resolved: &Resolved, computes: &Computes, modelled: &[bool]) -> Vec<String> {
    let mut warnings = Vec::new();
    if computes.measured()
        && let Some(rank) = (0..resolved.rates.len())
            .find(|rank| resolved.rates[*rank].is_some() && !modelled.get(*rank).copied().unwrap_or(false))
    {
        let device = &resolved.cluster.devices[rank];
        warnings.push(format!(
            "`peak_flops` and `memory_bandwidth` of device `{}` have no effect: compute was measured on this machine and multiplied by `slowdown` ({}); --compute model costs operators by them",
            device.name, device.slowdown
        ));
    }
    let modelled = |rank: u32| computes.by_origin(RankId(rank)).any(|(origin, _)| origin.is_modelled());
    if let Some(device) = resolved.cluster.devices.iter().find(|device| device.communication > 0.0)
        && !(0..resolved.cluster.devices.len() as u32).any(modelled)
    {
        let name = &device.name;
        warnings.push(format!("`communication_share` of device `{name}` has no effect: no compute is modelled"));
    }
    let slower = |device: &&Device| device.slowdown != 1.0 || !device.spells.is_empty();
    if let Some(device) = resolved.cluster.devices.iter().find(slower).filter(|_| !computes.any()) {
        let name = &device.name;
        warnings.push(format!(
            "`slowdown` and [[straggler]] of device `{name}` have no effect: the compute time of every rank is 0 s"
        ));
    }
    warnings
}

/// The report of an ASTRA-sim run, which has no cluster; `inputs` describe the system instead.
pub(crate) fn of_astra((statistics, digest): &(Statistics, Digest), inputs: String, command: Vec<String>) -> Report {
    let devices: Vec<Device> = (0..statistics.ranks().len()).map(|rank| device(format!("npu.{rank}"))).collect();
    let manifest = Manifest { cluster: inputs, command, ..versions() };
    Report::new(statistics, &devices, digest.to_hex(), manifest)
}

/// A device of which only the name is known, for reports of ranks without a cluster.
pub fn device(name: String) -> Device {
    Device::new(name, HostId(0))
}
