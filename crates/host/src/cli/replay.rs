//! Owns `uniference replay`: the record of a run, carried out again without the program. Execution traces are [`super::traces`]'
//! business.

use super::cluster::{Chosen, ClusterArgs};
use super::console::Counter;
use super::export;
use super::folder::Folder;
use super::results::{self, Beside, OutputArgs, RECORD, Recording};
use super::traces::{self, TraceArgs, Wanted};
use crate::error::{Exit, HostError};
use crate::live::exchange::Recorder;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use uniference_formats::cluster::Resolved;
use uniference_formats::hazards::Hazards;
use uniference_formats::record::{RankRecord, RecordReader};
use uniference_formats::report::Manifest;
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::Engine;
use uniference_sim::ids::{RankId, Site, TaskId};
use uniference_sim::program::Request;
use uniference_sim::record::{Digest, Listener, Replayed, Statistics, replay_heard};

/// `uniference replay`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The folder with the results of a run, or with the traces of one; or the prefix of execution traces called PREFIX.RANK.et, or one trace for all ranks
    #[arg(value_name = "DIR|PREFIX|FILE")]
    run: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    traces: TraceArgs,
    /// The seed of everything random in the simulation [default: the run's own, or 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With so many seeds, from that one on: the report then says how far the makespan varies
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs what the first argument names.
pub(super) fn replay(args: &Args, argv: &[OsString]) -> Result<Exit, HostError> {
    let Args { run, cluster, traces, seed, output, .. } = args;
    let OutputArgs { out, json, record } = output;
    let wanted = Wanted { argv, cluster, seed: *seed, out: out.as_deref(), json: *json, record: *record };
    match run.is_dir() {
        true if export::has_traces(run) && !run.join(RECORD).exists() => {
            traces::replay(&run.join(export::PREFIX), traces, &wanted)
        }
        true => replay_run(args, argv),
        false => traces::replay(run, traces, &wanted),
    }
}

/// Runs a record again. On the cluster it comes from, report, trace and digest are the run's, byte for byte.
fn replay_run(args: &Args, argv: &[OsString]) -> Result<Exit, HostError> {
    let path = args.run.join(RECORD);
    let reader = RecordReader::open(BufReader::new(open_record(&path)?))?;
    let recorded = reader.header().manifest.clone();
    let mut chosen = args.cluster.resolve_again(&path, &recorded.cluster)?;
    let seed = args.seed.unwrap_or(recorded.seed);
    chosen.resolved.cluster.dynamics.seed = seed;
    check_ranks(&chosen, reader.header().world_size)?;
    check_repeat(args, &chosen)?;
    let elsewhere = recorded.cluster != chosen.resolved.toml || recorded.seed != seed;
    let manifest = manifest(recorded.clone(), &chosen, seed, argv);
    let folder = folder(args)?;
    let mut recording = Recording::start(args.output.record, &chosen.resolved, &manifest, &folder, Counter::default())?;
    let cluster = &chosen.resolved.cluster;
    let mut engine = Engine::new(cluster);
    let (ranks, rest) = reader.by_rank();
    let (ended, hazards) = {
        let (observer, recorder) = recording.watchers();
        let recorder = std::cell::RefCell::new(recorder);
        let copied =
            (0..).map(RankId).zip(ranks).map(|(rank, requests)| Copied { rank, requests, recorder: &recorder });
        let mut heard = (observer, Hazards::default());
        (replay_heard(&mut engine, copied.collect(), &mut heard), heard.1)
    };
    let lines = rest.finish()?;
    let figures = recording.finish(lines.clone())?;
    match ended {
        Replayed::Finished => {
            let mut beside = other_seeds(args, &chosen, &path)?;
            if elsewhere || args.repeat > 1 {
                let digest = (args.repeat == 1).then(|| figures.digest.to_hex());
                beside.warnings.extend(other_ways(hazards, digest, &recorded, &path, &lines)?);
            }
            let home = recorded_cluster(&recorded, &path);
            if home.is_some_and(|home| home.rates != chosen.resolved.rates) && !figures.computes.measured() {
                beside.warnings.push("`peak_flops` and `memory_bandwidth` have no effect: the record holds durations that were computed with the rates of its own cluster".to_owned());
            }
            results::report(figures, &chosen.resolved, beside, manifest, &folder, args.output.json)?;
            Ok(Exit::Ok)
        }
        Replayed::Halted(halt) => {
            super::complain(format_args!(
                "error: {}",
                halt.render(&|site| lines.get(site.index()).cloned().unwrap_or_default(), &|_| Vec::new())
            ));
            Ok(Exit::Halted)
        }
        Replayed::CutShort => Err(cut_short(&path)),
    }
}

fn check_repeat(args: &Args, chosen: &Chosen) -> Result<(), HostError> {
    let random = chosen.resolved.cluster.dynamics.links.values().any(|link| link.jitter.is_some());
    if args.repeat == 1 || random {
        return Ok(());
    }
    Err(HostError::Usage(
        "--repeat draws again, but nothing on this cluster is random\nhint: give a link jitter, in a [[network.change]]"
            .into(),
    ))
}

/// The makespans with the seeds after the first one, and which of these did not come to their end.
fn other_seeds(args: &Args, chosen: &Chosen, path: &Path) -> Result<Beside, HostError> {
    let mut cluster = chosen.resolved.cluster.clone();
    let (mut others, mut halted) = (Vec::new(), Vec::new());
    for _ in 1..args.repeat {
        cluster.dynamics.seed = cluster.dynamics.seed.wrapping_add(1);
        let mut statistics = Statistics::default();
        let (ended, lines) = again(&cluster, path, &mut (&mut statistics, Hazards::default()))?;
        match ended {
            Replayed::Finished => others.push(statistics.makespan().as_secs_f64()),
            Replayed::Halted(halt) => halted.push((cluster.dynamics.seed, halt, lines)),
            Replayed::CutShort => return Err(cut_short(path)),
        }
    }
    let warnings = halted.first().map(|(seed, halt, lines)| {
        let site = |site: Site| lines.get(site.index()).cloned().unwrap_or_default();
        let text = halt.render(&site, &|_| Vec::new());
        let why = text.lines().next().unwrap_or_default();
        let (count, all) = (halted.len(), args.repeat);
        format!(
            "{count} of {all} seeds did not come to their end, seed {seed} by a {why}: the interval is of the other {}",
            1 + others.len()
        )
    });
    Ok(Beside { others, warnings: warnings.into_iter().collect() })
}

/// Where the program might have gone another way than it was recorded. `digest` is of the run on the new cluster: where the record's own
/// cluster gives the same, nothing took another time. Where it is not given, there are several runs.
fn other_ways(
    mut hazards: Hazards,
    digest: Option<String>,
    recorded: &Manifest,
    path: &Path,
    lines: &[String],
) -> Result<Vec<String>, HostError> {
    if !hazards.depend_on_time() {
        return Ok(Vec::new());
    }
    if let Some(home) = recorded_cluster(recorded, path) {
        let mut at_home = (Digest::default(), Hazards::default());
        let (ended, _) = again(&home.cluster, path, &mut at_home)?;
        if !matches!(ended, Replayed::Finished) {
            return Err(cut_short(path));
        }
        if digest.is_some_and(|digest| digest == at_home.0.to_hex()) {
            return Ok(Vec::new());
        }
        hazards.merge(&at_home.1);
    }
    Ok(hazards.warnings(lines).iter().map(ToString::to_string).collect())
}

/// The cluster of the run that was recorded, with its seed; `None` where there is none: that of a real run has no devices.
fn recorded_cluster(recorded: &Manifest, path: &Path) -> Option<Resolved> {
    let mut resolved = ClusterArgs::resolve_recorded(&path.display().to_string(), &recorded.cluster).ok()?;
    resolved.cluster.dynamics.seed = recorded.seed;
    Some(resolved)
}

/// Runs the record on a cluster, and returns how that ended, and the program's lines.
fn again(cluster: &Cluster, path: &Path, listener: &mut dyn Listener) -> Result<(Replayed, Vec<String>), HostError> {
    let (ranks, rest) = RecordReader::open(BufReader::new(open_record(path)?))?.by_rank();
    let ended = replay_heard(&mut Engine::new(cluster), ranks, listener);
    Ok((ended, rest.finish()?))
}

fn cut_short(path: &Path) -> HostError {
    let hint = "the run did not come to its end; run the program again";
    HostError::Usage(format!("the record {} ends before the programs do\nhint: {hint}", path.display()))
}

/// A rank's requests, recorded again as they are read.
struct Copied<'a, 'b> {
    rank: RankId,
    requests: RankRecord<BufReader<File>>,
    recorder: &'a std::cell::RefCell<&'b mut dyn Recorder>,
}

impl Iterator for Copied<'_, '_> {
    type Item = (TaskId, Request);

    fn next(&mut self) -> Option<(TaskId, Request)> {
        let (task, request) = self.requests.next()?;
        self.recorder.borrow_mut().request(self.rank, task, &request);
        Some((task, request))
    }
}

/// Opens the record of a run.
pub(super) fn open_record(path: &Path) -> Result<File, HostError> {
    super::input::open(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "give the folder that `uniference run` has written, without --record summary",
    })
}

fn check_ranks(chosen: &Chosen, recorded: u32) -> Result<(), HostError> {
    let devices = chosen.resolved.cluster.devices.len();
    if devices == recorded as usize {
        return Ok(());
    }
    Err(HostError::Usage(format!(
        "the record is of {recorded} ranks, the cluster has {devices} devices\nhint: a record runs on clusters with as many devices as it has ranks"
    )))
}

/// The run's own, unless this is another run: on another cluster, or with another seed.
fn manifest(recorded: Manifest, chosen: &Chosen, seed: u64, argv: &[OsString]) -> Manifest {
    if recorded.cluster == chosen.resolved.toml && recorded.seed == seed {
        return recorded;
    }
    Manifest { cluster: chosen.resolved.toml.clone(), command: results::command(argv), seed, ..recorded }
}

fn folder(args: &Args) -> Result<Folder, HostError> {
    let same =
        |out: &PathBuf| out.canonicalize().ok().is_some_and(|out| args.run.canonicalize().is_ok_and(|run| run == out));
    if args.output.out.as_ref().is_some_and(same) {
        let hint = "choose another folder with --out";
        return Err(HostError::Usage(format!("the results would replace the run that is read\nhint: {hint}")));
    }
    Folder::prepare(args.output.out.as_deref(), "replay".as_ref())
}

#[cfg(test)]
mod tests;
