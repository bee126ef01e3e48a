//! Owns `uniference compare`: the comparison of two run folders.
//!
//! The program record of a simulated run is simulated again, with times equal to the picosecond; a real run is read
//! from its ranks' files.

use super::launch;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use uniference_formats::cluster::{Choices, ClusterFile};
use uniference_formats::record::RecordReader;
use uniference_formats::units::counted;
use uniference_session::input::open_record;
use uniference_session::results::RECORD;
use uniference_session::{Exit, HostError};
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{Engine, RunEnd};
use uniference_sim::replay::replay;
use uniference_studies::compare::{Comparison, ObservedRun, Timeline, render};

/// `uniference compare`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Run folder to evaluate, usually of `uniference run`
    #[arg(value_name = "SIM")]
    first: PathBuf,
    /// Run folder of the reference, usually of `uniference launch`
    #[arg(value_name = "REAL")]
    second: PathBuf,
    /// Exit with code 1 if the error of the makespan, or the median error of the operations, exceeds this percentage [default: never]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    threshold: Option<f64>,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
}

/// Compares two runs; the exit code says whether the error is below the threshold.
pub(super) fn compare(args: &Args) -> Result<Exit, HostError> {
    let (first, _) = read(&args.first)?;
    let (second, recorder) = read(&args.second)?;
    let (ranks, others) = (first.world_size(), second.world_size());
    if ranks != others {
        let hint = "compare two runs of the same program with the same number of ranks";
        return Err(HostError::Usage(format!(
            "the first run has {}, the second {others}\nhint: {hint}",
            counted(ranks, "rank")
        )));
    }
    let comparison = Comparison::new(&first, &second, recorder);
    if comparison.overall.count == 0 && comparison.unmatched != (0, 0) {
        let hint = "compare two runs of the same program with the same number of ranks";
        return Err(HostError::Usage(format!("the two runs have no operation in common\nhint: {hint}")));
    }
    match args.json {
        true => super::say(format_args!("{}", comparison.to_json()))?,
        false => super::say(format_args!("{}", render(&comparison, ["first", "second"])))?,
    }
    match args.threshold {
        Some(threshold) if comparison.exceeds(threshold) => Ok(Exit::ProgramFailed),
        _ => Ok(Exit::Ok),
    }
}

/// Operations of a run, and for a real run the time that recording cost, in seconds on the slowest rank.
fn read(folder: &Path) -> Result<(ObservedRun, Option<f64>), HostError> {
    // A real run has a program record, too, which serves simulations of its requests, and not this comparison.
    let real = folder.join("rank-0.jsonl").exists();
    if !real && folder.join(RECORD).exists() {
        return Ok((simulated(folder)?, None));
    }
    if !real {
        let hint = "give two run folders of `uniference run` (without --record summary) or `uniference launch`";
        return Err(HostError::Usage(format!("{} is not a run folder\nhint: {hint}", folder.display())));
    }
    let merged = launch::read(folder)?;
    let mut timeline = Timeline::default();
    merged.tell(&mut timeline);
    let cost = merged.recorder().map(|(_, time)| time.as_secs_f64()).fold(0.0, f64::max);
    Ok((timeline.finish(|group| merged.members(group), merged.lines().to_vec()), Some(cost)))
}

fn simulated(folder: &Path) -> Result<ObservedRun, HostError> {
    let path = folder.join(RECORD);
    let reader = RecordReader::open(BufReader::new(open_record(&path)?))?;
    let cluster = recorded_cluster(&path, &reader)?;
    let mut engine = Engine::new(&cluster);
    let (ranks, rest) = reader.by_rank();
    let mut timeline = Timeline::default();
    let ended = replay(&mut engine, ranks.into_iter().collect(), &mut timeline);
    let lines = rest.finish()?;
    match ended {
        RunEnd::Finished => Ok(timeline.finish(|group| engine.members(group), lines)),
        RunEnd::Halted(_) | RunEnd::Failed(_) | RunEnd::CutShort => Err(HostError::Usage(format!(
            "the run in {} did not finish\nhint: run the program again",
            folder.display()
        ))),
    }
}

/// The cluster of the run, with its seed.
fn recorded_cluster(path: &Path, reader: &RecordReader<BufReader<File>>) -> Result<Cluster, HostError> {
    let manifest = &reader.header().manifest;
    let damaged = |error: uniference_formats::diagnostic::Diagnostic| HostError::Diagnostic(Box::new(error));
    let file = ClusterFile::parse(&path.display().to_string(), &manifest.cluster, &[]).map_err(damaged)?;
    let mut cluster = file.resolve(&Choices::default()).map_err(damaged)?.cluster;
    cluster.dynamics.seed = manifest.seed;
    Ok(cluster)
}

/// `5%` or `5`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    match number {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent / 100.0),
        _ => Err("must be a percentage, for example 5%".to_owned()),
    }
}
