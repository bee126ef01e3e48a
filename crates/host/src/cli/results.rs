//! Owns what is kept of a run: who looks on while it goes on, and what is written and shown when it ends.
//!
//! How each file looks is `uniference-formats`' business.

use super::console::Counter;
use super::folder::Folder;
use super::patience::Patience;
use crate::error::HostError;
use crate::live::exchange::Recorder;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use uniference_formats::cluster::Resolved;
use uniference_formats::compute::Computes;
use uniference_formats::events::EventWriter;
use uniference_formats::interval::interval;
use uniference_formats::record::{Header, RecordWriter};
use uniference_formats::report::{Manifest, Report};
use uniference_formats::table;
use uniference_formats::trace::TraceWriter;
use uniference_sim::cluster::Device;
use uniference_sim::ids::{HostId, RankId, TaskId};
use uniference_sim::program::Request;
use uniference_sim::record::{Digest, Observer, Statistics};

/// The names of the files in a run's folder. The ranks' logs are beside them.
pub(super) const REPORT: &str = "report.json";
pub(super) const TRACE: &str = "trace.json";
pub(super) const RECORD: &str = "program.record";
pub(super) const EVENTS: &str = "events.jsonl";
/// When nodes start and end, where that is all there is.
pub(super) const TIMELINE: &str = "timeline.csv";

/// What is kept besides the report.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RecordLevel {
    /// Program record, trace and every event
    Full,
    /// Program record and trace
    Ops,
    /// Nothing: for very large runs
    Summary,
}

/// Where the results go, and how much of them: the same options for all commands that simulate.
#[derive(clap::Args)]
pub(super) struct OutputArgs {
    /// Where the results go [default: the next free uniference-out/NAME-N]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Print the report as JSON, and nothing else, on standard output
    #[arg(long)]
    pub(super) json: bool,
    /// What is kept besides the report: all events, all operations (program record and trace), or nothing
    #[arg(long, value_enum, default_value_t = RecordLevel::Ops)]
    pub(super) record: RecordLevel,
}

/// Everything that looks on while a run goes on.
pub(super) struct Recording {
    observers: (Counted, Shown),
    record: Record,
}

/// What a run has come to.
pub(super) struct Figures {
    pub(super) statistics: Statistics,
    pub(super) digest: Digest,
    pub(super) computes: Computes,
    /// The program's lines, by site.
    pub(super) lines: Vec<String>,
}

/// What else is known of a run than its own figures.
#[derive(Default)]
pub(super) struct Beside {
    /// Makespans of the same run with other seeds, in seconds.
    pub(super) others: Vec<f64>,
    pub(super) warnings: Vec<String>,
}

/// What the report is made from.
type Counted = ((Statistics, Digest), Computes);
/// What is shown or written while the run goes on.
type Shown = ((Counter, Patience), (Trace, Events));
type Trace = Option<TraceWriter<BufWriter<File>>>;
type Events = Option<EventWriter<BufWriter<File>>>;

/// The program record, if one is kept.
struct Record(Option<RecordWriter<BufWriter<File>>>);

impl Recorder for Record {
    fn request(&mut self, rank: RankId, task: TaskId, request: &Request) {
        if let Some(writer) = &mut self.0 {
            writer.request(rank, task, request);
        }
    }
}

/// What a run is known by, in its report and its record.
pub(super) fn manifest(argv: &[OsString], seed: u64, resolved: &Resolved) -> Manifest {
    Manifest { cluster: resolved.toml.clone(), seed, command: command(argv), ..versions() }
}

/// A command's words as a report shows them: what is not UTF-8 in them is not.
pub(super) fn command(argv: &[OsString]) -> Vec<String> {
    argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// A manifest that says nothing but this program's version.
pub(super) fn versions() -> Manifest {
    let version = ("uniference".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Manifest { versions: [version].into_iter().collect(), ..Manifest::default() }
}

impl Recording {
    /// Opens the files that `level` wants.
    pub(super) fn start(
        level: RecordLevel,
        resolved: &Resolved,
        manifest: &Manifest,
        folder: &Folder,
        counter: Counter,
    ) -> Result<Recording, HostError> {
        let wanted =
            |least: &[RecordLevel], name: &str| least.contains(&level).then(|| folder.create(name)).transpose();
        let ops = [RecordLevel::Full, RecordLevel::Ops];
        let trace = wanted(&ops, TRACE)?.map(|file| TraceWriter::new(file, &resolved.cluster));
        let events = wanted(&[RecordLevel::Full], EVENTS)?.map(EventWriter::new);
        let header = Header { world_size: resolved.cluster.devices.len() as u32, manifest: manifest.clone() };
        let record = Record(wanted(&ops, RECORD)?.map(|file| RecordWriter::new(file, header)));
        let statistics = ((Statistics::default(), Digest::default()), Computes::default());
        Ok(Recording { observers: (statistics, ((counter, Patience::default()), (trace, events))), record })
    }

    /// Those who look on.
    pub(super) fn watchers(&mut self) -> (&mut dyn Observer, &mut dyn Recorder) {
        (&mut self.observers, &mut self.record)
    }

    /// Completes the files of a run that has come to an end of its own, good or bad; `lines` are those of the program.
    pub(super) fn finish(self, lines: Vec<String>) -> Result<Figures, HostError> {
        let (((statistics, digest), computes), (_, (trace, events))) = self.observers;
        trace.map(TraceWriter::finish).transpose()?;
        events.map(EventWriter::finish).transpose()?;
        self.record.0.map(|record| record.finish(lines.clone())).transpose()?;
        Ok(Figures { statistics, digest, computes, lines })
    }
}

/// Writes the report into the folder, and shows it: as JSON, or as a table with a word on where the rest is.
pub(super) fn report(
    figures: Figures,
    resolved: &Resolved,
    beside: Beside,
    manifest: Manifest,
    folder: &Folder,
    json: bool,
) -> Result<(), HostError> {
    show(&of_run(figures, resolved, beside, manifest), folder, json)
}

/// The report that [`report`] writes.
pub(super) fn of_run(figures: Figures, resolved: &Resolved, beside: Beside, manifest: Manifest) -> Report {
    let Figures { statistics, digest, computes, lines } = figures;
    let Beside { others, warnings } = beside;
    let mut report = Report::new(&statistics, &resolved.cluster.devices, digest.to_hex(), manifest);
    if statistics.operations().next().is_none() {
        report.warnings.push("the program never communicated: nothing was simulated but its compute".to_owned());
    }
    report.warnings.extend(without_effect(resolved, &computes));
    report.warnings.extend(computes.spread(&lines));
    report.warnings.extend(warnings);
    if resolved.uncertainty.is_some() || !others.is_empty() {
        let uncertainty = resolved.uncertainty.clone().unwrap_or_default();
        report.interval = Some(interval(&report, &uncertainty, &others));
    }
    report
}

/// Keys of devices in the cluster file that had nothing to act upon. `memory` is no such key: docs/cluster-file.md says who looks at it.
fn without_effect(resolved: &Resolved, computes: &Computes) -> Vec<String> {
    let mut warnings = Vec::new();
    if computes.measured()
        && let Some(rank) = resolved.rates.iter().position(Option::is_some)
    {
        let device = &resolved.cluster.devices[rank];
        warnings.push(format!(
            "`peak_flops` and `memory_bandwidth` of device `{}` have no effect: compute was measured on this machine, and takes its time here times `slowdown` ({}); rates are for execution traces and generated jobs",
            device.name, device.slowdown
        ));
    }
    let slower = |device: &&Device| device.slowdown != 1.0 || !device.spells.is_empty();
    if let Some(device) = resolved.cluster.devices.iter().find(slower).filter(|_| !computes.any()) {
        let name = &device.name;
        warnings.push(format!(
            "`slowdown` and [[straggler]] of device `{name}` have no effect: no rank computed for any time"
        ));
    }
    warnings
}

/// The same for ranks that have no cluster: `inputs` say what they ran on.
pub(super) fn report_astra(
    (statistics, digest): (Statistics, Digest),
    inputs: String,
    argv: &[OsString],
    folder: &Folder,
    json: bool,
) -> Result<(), HostError> {
    let devices: Vec<Device> = (0..statistics.ranks().len()).map(|rank| device(format!("npu.{rank}"))).collect();
    let manifest = Manifest { cluster: inputs, command: command(argv), ..versions() };
    show(&Report::new(&statistics, &devices, digest.to_hex(), manifest), folder, json)
}

/// A device of which only the name is known, for the reports of ranks that have no cluster.
pub(super) fn device(name: String) -> Device {
    Device { name, host: HostId(0), slowdown: 1.0, spells: Vec::new(), memory: None, crash: None }
}

/// Writes a report into the folder and shows it.
pub(super) fn show(report: &Report, folder: &Folder, json: bool) -> Result<(), HostError> {
    let text = report.to_json();
    folder.write(REPORT, text.as_bytes())?;
    if json {
        return super::say(format_args!("{text}"));
    }
    for warning in &report.warnings {
        super::complain(format_args!("warning: {warning}\n"));
    }
    super::say(format_args!("{}", table::render(report)))?;
    super::say(format_args!("{}\n", folder.describe()))
}
