//! Owns `uniference compare`: two folders of results, read back and held against each other.
//!
//! A simulated run is its program record carried out again, which is the same to the picosecond; a real run is its ranks' files.

use super::launch;
use super::replay::open_record;
use super::results::RECORD;
use crate::error::{Exit, HostError};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use uniference_formats::cluster::{Choices, ClusterFile};
use uniference_formats::compare::{Comparison, Seen, Timeline, render};
use uniference_formats::record::RecordReader;
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::Engine;
use uniference_sim::record::{Replayed, replay};

/// `uniference compare`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The folder of the run that is judged: usually of `uniference run`
    #[arg(value_name = "SIM")]
    first: PathBuf,
    /// The folder of the run that it is judged by: usually of `uniference launch`
    #[arg(value_name = "REAL")]
    second: PathBuf,
    /// End with exit code 1 if the makespan, or the middle of the operations' errors, is off by more than this [default: never]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    threshold: Option<f64>,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
}

/// Compares, and says whether it is near enough.
pub(super) fn compare(args: &Args) -> Result<Exit, HostError> {
    let (first, _) = read(&args.first)?;
    let (second, recorder) = read(&args.second)?;
    let (ranks, others) = (first.world_size(), second.world_size());
    if ranks != others {
        let hint = "compare two runs of the same program with as many ranks";
        return Err(HostError::Usage(format!("the first run has {ranks} ranks, the second {others}\nhint: {hint}")));
    }
    let comparison = Comparison::new(&first, &second, recorder);
    if comparison.overall.count == 0 && comparison.unmatched != (0, 0) {
        let hint = "compare two runs of the same program with as many ranks";
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

/// What a run did, and what recording it cost, in seconds on the slowest rank, if it was a real one.
fn read(folder: &Path) -> Result<(Seen, Option<f64>), HostError> {
    // A real run has a record too, of what a simulation would be asked.
    let real = folder.join("rank-0.jsonl").exists();
    if !real && folder.join(RECORD).exists() {
        return Ok((simulated(folder)?, None));
    }
    if !real {
        let hint = "give the folders of two runs: `uniference run` (not with --record summary) or `uniference launch` write them";
        return Err(HostError::Usage(format!("{} holds no run\nhint: {hint}", folder.display())));
    }
    let merged = launch::read(folder)?;
    let mut timeline = Timeline::default();
    merged.tell(&mut timeline);
    let cost = merged.recorder().map(|(_, time)| time.as_secs_f64()).fold(0.0, f64::max);
    Ok((timeline.finish(|group| merged.members(group), merged.lines().to_vec()), Some(cost)))
}

fn simulated(folder: &Path) -> Result<Seen, HostError> {
    let path = folder.join(RECORD);
    let reader = RecordReader::open(BufReader::new(open_record(&path)?))?;
    let cluster = recorded_cluster(&path, &reader)?;
    let mut engine = Engine::new(&cluster);
    let (ranks, rest) = reader.by_rank();
    let mut timeline = Timeline::default();
    let ended = replay(&mut engine, ranks.into_iter().collect(), &mut timeline);
    let lines = rest.finish()?;
    match ended {
        Replayed::Finished => Ok(timeline.finish(|group| engine.members(group), lines)),
        Replayed::Halted(_) | Replayed::CutShort => Err(HostError::Usage(format!(
            "the run in {} did not come to its end\nhint: run the program again",
            folder.display()
        ))),
    }
}

/// The cluster of the run, with its seed.
fn recorded_cluster(path: &Path, reader: &RecordReader<BufReader<File>>) -> Result<Cluster, HostError> {
    let manifest = &reader.header().manifest;
    let damaged = |error: uniference_formats::diagnostic::Diagnostic| HostError::Diagnostic(error.render(false));
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
        _ => Err("write a percentage, as in 5%".to_owned()),
    }
}
