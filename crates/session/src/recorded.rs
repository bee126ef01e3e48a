//! Owns the replay of a record: the requests of a recorded run are simulated again without the program. Execution
//! traces are handled by [`crate::traces`].

use crate::cluster::{Chosen, ClusterOptions};
use crate::compute::{ComputeOptions, Plan, RecordedCompute};
use crate::elsewhere::{Limited, TimedOut, limits, noticed, out_of_memory, unknown_allocations};
use crate::input::open_record;
use crate::overlap::{Arrangement, Examined, Lined, Moves, Overlapped, examine, lined};
use crate::programs::halted;
use crate::results::{Beside, Figures, RECORD, REPORT};
use crate::session::{End, Ended, Outcome, Output, RunResults, Session, SimulationEnd, Source, Watch};
use crate::simulated::{Look, Simulated};
use std::cell::RefCell;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use uniference_costs::operators::stacks::unchecked;
use uniference_formats::cluster::Resolved;
use uniference_formats::record::{RankRecord, RecordReader};
use uniference_formats::report::Manifest;
use uniference_formats::units::counted;
use uniference_host::error::HostError;
use uniference_lowering::Recorder;
use uniference_lowering::compute::{Costing, RankSteps};
use uniference_programs::chakra::link::is_recording;
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{self, Engine, Failure};
use uniference_sim::ids::{RankId, Site, TaskId};
use uniference_sim::observe::{Digest, Statistics};
use uniference_sim::program::Request;
use uniference_sim::replay::{Listener, RecordedStep, replay_heard};
use uniference_studies::hazards::Hazards;
use uniference_studies::memory::Memory;

/// Options of a replay.
#[derive(Clone)]
pub struct Replay {
    /// The run folder.
    pub run: PathBuf,
    /// Another cluster, or changes of the recorded one.
    pub cluster: ClusterOptions,
    /// Seed; `None`: the seed of the recorded run.
    pub seed: Option<u64>,
    /// Number of seeds to simulate, from `seed` on; at least 1. With several seeds the report states the variation of
    /// the makespan.
    pub repeat: u32,
    /// Command in the report, if the replay differs from the recorded run.
    pub command: Vec<String>,
    /// Source of compute durations.
    pub compute: ComputeOptions,
    /// Calls that compute is moved to overlap, if any.
    pub arrangement: Option<Arc<Arrangement>>,
    /// The run folder to write, and the files in it.
    pub output: Output,
}

/// Replays a record. On the recorded cluster, report, trace and digest equal those of the recorded run, byte for byte.
///
/// # Errors
/// If the record cannot be read or does not fit the cluster, or the results cannot be written.
pub fn replay(args: &Replay) -> Result<Ended<RunResults>, HostError> {
    replay_told(args).map(|told| told.end)
}

/// Result of a replay, and whether the program could have diverged from the record.
pub(crate) struct Told {
    pub(crate) end: Ended<RunResults>,
    pub(crate) depends_on_time: bool,
}

/// Replays a record, and returns whether the program could have diverged from it.
pub(crate) fn replay_told(args: &Replay) -> Result<Told, HostError> {
    let Prepared { chosen, seed, reader, steps, plan } = prepare(args)?;
    check_repeat(args, &chosen)?;
    let recorded = &steps.recorded;
    let mut manifest = manifest(recorded.clone(), &chosen, seed, &args.command);
    plan.describe(&mut manifest);
    if manifest.compute != recorded.compute || manifest.models != recorded.models {
        manifest.command.clone_from(&args.command);
    }
    check_folder(args)?;
    let session = Session::with_manifest(chosen, manifest, &args.output)?;
    let mut source = Recorded::new(&steps, reader, plan);
    let figures = match session.carry_out(&mut source)? {
        Outcome::Finished(figures) => *figures,
        Outcome::Stopped(stop) => return Ok(Told { end: Ended::Stopped(stop), depends_on_time: true }),
        Outcome::Unlike(_) => unreachable!("every rank is replayed"),
    };
    let (beside, depends_on_time) = doubts(args, &session, &figures, source.hazards, &steps)?;
    let report = session.report_of_several(figures, beside);
    Ok(Told { end: session.finish(report)?, depends_on_time })
}

/// Name of the backend of the run in a run folder.
pub(crate) fn backend(run: &Path) -> Result<String, HostError> {
    let path = run.join(RECORD);
    let reader = RecordReader::open(BufReader::new(open_record(&path)?))?;
    let cluster = &reader.header().manifest.cluster;
    Ok(ClusterOptions::resolve_recorded(&path.display().to_string(), cluster)?.cluster.backend.name)
}

/// The cluster that a record is replayed on, and the command of its program.
pub(crate) fn origin(args: &Replay) -> Result<(Resolved, Vec<String>), HostError> {
    let Prepared { chosen, steps, .. } = prepare(args)?;
    Ok((chosen.resolved, steps.recorded.command))
}

/// Opens a record, resolves the cluster of its replay, and passes both to a function that drives the simulation.
pub(crate) fn driven<T>(
    args: &Replay,
    with: impl FnOnce(&Cluster, &mut dyn Source) -> Result<T, HostError>,
) -> Result<T, HostError> {
    let Prepared { mut chosen, seed, reader, steps, plan } = prepare(args)?;
    chosen.resolved.cluster.dynamics.seed = seed;
    with(&chosen.resolved.cluster, &mut Recorded::new(&steps, reader, plan))
}

/// Compute that could overlap the operations of a record.
pub(crate) fn examined(args: &Replay) -> Result<Examined, HostError> {
    examine(&args.run.join(RECORD))
}

/// Simulates a record without writing a run folder.
pub(crate) fn simulate(args: &Replay, look: Look) -> Result<Ended<Simulated>, HostError> {
    let Prepared { mut chosen, seed, reader, steps, plan } = prepare(args)?;
    chosen.resolved.cluster.dynamics.seed = seed;
    let mut source = Recorded::new(&steps, reader, plan);
    Ok(match Simulated::of(&chosen.resolved.cluster, &mut source, look)? {
        Ended::Finished(simulated) => {
            Ended::Finished(Simulated { hazards: source.hazards, noticed: steps.noticed.clone(), ..simulated })
        }
        stopped => stopped,
    })
}

/// An open record, and the cluster of its replay.
struct Prepared {
    chosen: Chosen,
    seed: u64,
    reader: RecordReader<BufReader<File>>,
    steps: Steps,
    plan: Plan,
}

fn prepare(args: &Replay) -> Result<Prepared, HostError> {
    let path = args.run.join(RECORD);
    let entries = std::fs::read_dir(&args.run).into_iter().flatten().filter_map(Result::ok);
    let mut names = entries.map(|entry| entry.file_name());
    if !path.exists() && !args.run.join(REPORT).exists() && names.any(|name| is_recording(&name.to_string_lossy())) {
        let run = args.run.display();
        return Err(HostError::Usage(format!(
            "{run} contains no program record, but recordings of a profiler (*.json)\nhint: create traces from them with `uniference chakra link {run} --out PREFIX`, then replay PREFIX"
        )));
    }
    let reader = RecordReader::open(BufReader::new(open_record(&path)?))?;
    let recorded = reader.header().manifest.clone();
    let chosen = args.cluster.resolve_again(&path, &recorded.cluster)?;
    let seed = args.seed.unwrap_or(recorded.seed);
    check_ranks(&chosen, reader.header().world_size)?;
    let at_home = recorded.cluster == chosen.resolved.toml && recorded.seed == seed;
    let (options, arrangement) = (args.compute.clone(), args.arrangement.clone());
    let home = recorded_cluster(&recorded, &path);
    let mut limits = home.as_ref().map_or_else(Vec::new, |home| limits(home, &chosen.resolved));
    let on_gpus = || runs_on_gpus(&path).unwrap_or(false);
    let mut noticed = home.as_ref().map_or_else(Vec::new, |home| noticed(home, &chosen.resolved, on_gpus));
    if let Some(home) = home.filter(|_| limits.iter().any(Option::is_some))
        && !has_allocations(&path)?
    {
        noticed.push(unknown_allocations(&home, &limits)?);
        limits.clear();
    }
    let steps = Steps { path, arrangement, options, recorded, at_home, limits, noticed };
    let plan = steps.plan(&chosen.resolved)?;
    Ok(Prepared { chosen, seed, reader, steps, plan })
}

/// Warnings about the figures of a replay: other seeds, other paths of the program, keys without an effect. The returned
/// flag says whether other paths are possible.
fn doubts(
    args: &Replay,
    session: &Session,
    figures: &Figures,
    hazards: Hazards,
    steps: &Steps,
) -> Result<(Beside, bool), HostError> {
    let Steps { path, recorded, at_home, noticed, .. } = steps;
    let mut beside = other_seeds(args, session.resolved(), steps)?;
    beside.warnings.extend_from_slice(noticed);
    beside.warnings.extend(unchecked(&figures.costed.of_stacks, &recorded.versions));
    let mut depends_on_time = false;
    let recosted = session.manifest().compute != recorded.compute || session.manifest().models != recorded.models;
    if !at_home || recosted || args.repeat > 1 {
        let digest = (args.repeat == 1).then(|| figures.digest.to_hex());
        let (ways, any) = other_ways(hazards, digest, recorded, path, &figures.lines)?;
        depends_on_time = any;
        beside.warnings.extend(ways);
    }
    let home = recorded_cluster(recorded, path);
    let costed = figures.costed.modelled.contains(&true);
    if home.is_some_and(|home| home.rates != session.resolved().rates) && !figures.computes.measured() && !costed {
        beside.warnings.push("`peak_flops` and `memory_bandwidth` have no effect: the durations in the record were computed with the rates of the recorded cluster".to_owned());
    }
    Ok((beside, depends_on_time))
}

/// The steps of a record.
struct Recorded<'a> {
    steps: &'a Steps,
    /// Reader of the record; `None` once the record is driven.
    reader: Option<RecordReader<BufReader<File>>>,
    costing: Rc<RefCell<Costing>>,
    /// Points at which the program could have diverged from the record.
    hazards: Hazards,
}

impl<'a> Recorded<'a> {
    fn new(steps: &'a Steps, reader: RecordReader<BufReader<File>>, plan: Plan) -> Recorded<'a> {
        Recorded { steps, reader: Some(reader), costing: plan.costing(), hazards: Hazards::default() }
    }
}

impl Source for Recorded<'_> {
    fn drive(&mut self, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError> {
        let reader = self.reader.take().expect("a record is driven once");
        let (ranks, rest) = reader.by_rank();
        let ranks = ranks.into_iter().map(boxed).collect();
        let Steps { path, recorded, arrangement, at_home, limits, .. } = self.steps;
        let memory = limits.iter().any(Option::is_some).then(|| Memory::within(limits));
        let mut limited = Limited { memory, recorder: watch.recorder };
        let mut observer = (watch.observer, TimedOut::default());
        let heard = Watch { observer: &mut observer, recorder: &mut limited };
        let (ended, hazards) = play(cluster, ranks, &self.costing, arrangement.as_ref(), heard);
        self.hazards = hazards;
        let lines = rest.finish()?;
        if let Some(excess) = limited.memory.and_then(|memory| memory.excess()) {
            return Ok(End::new(SimulationEnd::Stopped(out_of_memory(&excess, &cluster.devices)), lines));
        }
        let timed_out = observer.1;
        if !timed_out.is_empty()
            && !at_home
            && let Some(at_home) = timeouts_at_home(recorded, path)?
            && let Some(stop) = timed_out.stop(&at_home, &lines)
        {
            return Ok(End::new(SimulationEnd::Stopped(stop), lines));
        }
        let costed = self.costing.borrow_mut().finish()?;
        let ending = match ended {
            engine::RunEnd::Finished => SimulationEnd::Finished,
            engine::RunEnd::Halted(halt) => halted(&halt, &lines),
            engine::RunEnd::Failed(failure) => return Err(refused(&self.steps.path, &failure)),
            engine::RunEnd::CutShort => return Err(cut_short(&self.steps.path)),
        };
        Ok(End { ending, lines, costed })
    }
}

/// Simulates the ranks' steps with their current costs, and reports which steps depended on time.
pub(crate) fn play<'a>(
    cluster: &Cluster,
    ranks: Vec<LinedSteps<'a>>,
    costing: &'a Rc<RefCell<Costing>>,
    arrangement: Option<&'a Arc<Arrangement>>,
    watch: Watch<'_>,
) -> (engine::RunEnd, Hazards) {
    let recorder = RefCell::new(watch.recorder);
    let copied = costed(ranks, costing, arrangement).map(|(rank, steps)| Copied { rank, steps, recorder: &recorder });
    let mut heard = (watch.observer, Hazards::default());
    let ended = replay_heard(&mut Engine::new(cluster), copied.collect(), &mut heard);
    (ended, heard.1)
}

fn check_repeat(args: &Replay, chosen: &Chosen) -> Result<(), HostError> {
    if args.repeat == 1 || chosen.is_random() {
        return Ok(());
    }
    Err(HostError::Usage(
        "--repeat has no effect: nothing on this cluster is random\nhint: give a link jitter in a [[network.change]]"
            .into(),
    ))
}

/// Makespans of the seeds after the first one, and the seeds whose run did not complete.
fn other_seeds(args: &Replay, resolved: &Resolved, steps: &Steps) -> Result<Beside, HostError> {
    let (path, mut cluster) = (&steps.path, resolved.cluster.clone());
    let (mut others, mut halted) = (Vec::new(), Vec::new());
    for _ in 1..args.repeat {
        cluster.dynamics.seed = cluster.dynamics.seed.wrapping_add(1);
        let mut statistics = Statistics::default();
        let costing = steps.plan(resolved)?.costing();
        let (ended, lines) = again(
            &cluster,
            path,
            Some(&costing),
            steps.arrangement.as_ref(),
            &mut (&mut statistics, Hazards::default()),
        )?;
        match ended {
            engine::RunEnd::Finished => others.push(statistics.makespan().as_secs_f64()),
            engine::RunEnd::Halted(halt) => halted.push((cluster.dynamics.seed, halt, lines)),
            engine::RunEnd::Failed(failure) => return Err(refused(path, &failure)),
            engine::RunEnd::CutShort => return Err(cut_short(path)),
        }
    }
    let warnings = halted.first().map(|(seed, halt, lines)| {
        let site = |site: Site| lines.get(site.index()).cloned().unwrap_or_default();
        let text = halt.render(&site, &|_| Vec::new());
        let why = text.lines().next().unwrap_or_default();
        let (count, all) = (halted.len(), args.repeat);
        format!(
            "{count} of {all} replays did not finish (seed {seed}: {why}); the interval covers the other {}",
            1 + others.len()
        )
    });
    Ok(Beside { others, warnings: warnings.into_iter().collect() })
}

/// Warnings about points at which the program could have diverged from the record, and whether the program or a library
/// that it uses could have diverged. `digest` is the digest of the replay on the new cluster; `None` for several seeds.
/// If a replay on the record's own cluster has the same digest, all times are equal and no control flow can differ.
fn other_ways(
    mut hazards: Hazards,
    digest: Option<String>,
    recorded: &Manifest,
    path: &Path,
    lines: &[String],
) -> Result<(Vec<String>, bool), HostError> {
    if !hazards.depend_on_time() {
        return Ok((Vec::new(), false));
    }
    if let Some(home) = recorded_cluster(recorded, path) {
        let mut at_home = (Digest::default(), Hazards::default());
        let (ended, _) = again(&home.cluster, path, None, None, &mut at_home)?;
        if !matches!(ended, engine::RunEnd::Finished) {
            return Err(cut_short(path));
        }
        if digest.is_some_and(|digest| digest == at_home.0.to_hex()) {
            return Ok((Vec::new(), false));
        }
        hazards.merge(&at_home.1);
    }
    let told = hazards.warnings(lines).iter().map(ToString::to_string).collect();
    Ok((told, hazards.any(lines)))
}

/// Waits for communication that ended with a timeout in the recorded run; `None` if its cluster is unknown.
fn timeouts_at_home(recorded: &Manifest, path: &Path) -> Result<Option<TimedOut>, HostError> {
    let Some(home) = recorded_cluster(recorded, path) else { return Ok(None) };
    let mut heard = (TimedOut::default(), ());
    let _ = again(&home.cluster, path, None, None, &mut heard)?;
    Ok(Some(heard.0))
}

/// The cluster and seed of the recorded run; `None` for a real run, whose cluster has no devices.
fn recorded_cluster(recorded: &Manifest, path: &Path) -> Option<Resolved> {
    let mut resolved = ClusterOptions::resolve_recorded(&path.display().to_string(), &recorded.cluster).ok()?;
    resolved.cluster.dynamics.seed = recorded.seed;
    Some(resolved)
}

/// Simulates the record on a cluster; returns how the run ended, and the program's lines. Without `costing`, compute
/// has its recorded duration.
fn again(
    cluster: &Cluster,
    path: &Path,
    costing: Option<&Rc<RefCell<Costing>>>,
    arrangement: Option<&Arc<Arrangement>>,
    listener: &mut dyn Listener,
) -> Result<(engine::RunEnd, Vec<String>), HostError> {
    let (ranks, rest) = RecordReader::open(BufReader::new(open_record(path)?))?.by_rank();
    let ended = match costing {
        None => replay_heard(&mut Engine::new(cluster), ranks, listener),
        Some(costing) => {
            let ranks = ranks.into_iter().map(boxed).collect();
            let steps = costed(ranks, costing, arrangement).map(|(_, steps)| steps.map(|(task, step, _)| (task, step)));
            replay_heard(&mut Engine::new(cluster), steps.collect(), listener)
        }
    };
    Ok((ended, rest.finish()?))
}

/// A rank's steps with their source lines.
pub(crate) type LinedSteps<'a> = Box<dyn Iterator<Item = Lined> + 'a>;

/// The steps of a record with their source lines.
pub(crate) fn boxed<'a>(record: RankRecord<BufReader<File>>) -> LinedSteps<'a> {
    Box::new(lined(record))
}

/// The ranks' steps with the current costs of their slices, and with compute moved as `arrangement` says.
fn costed<'a>(
    ranks: Vec<LinedSteps<'a>>,
    costing: &'a Rc<RefCell<Costing>>,
    arrangement: Option<&'a Arc<Arrangement>>,
) -> impl Iterator<Item = (RankId, RankSteps<LinedSteps<'a>>)> {
    (0..).map(RankId).zip(ranks).map(move |(rank, steps)| {
        let steps: LinedSteps<'a> = match arrangement.filter(|arrangement| arrangement.moves(rank.index())) {
            Some(arrangement) => Box::new(Overlapped::new(steps, Moves::Arranged(Arc::clone(arrangement)))),
            None => steps,
        };
        (rank, RankSteps::new(rank, steps, Rc::clone(costing)))
    })
}

/// A record to replay, and the sources of its compute costs.
struct Steps {
    path: PathBuf,
    arrangement: Option<Arc<Arrangement>>,
    options: ComputeOptions,
    recorded: Manifest,
    at_home: bool,
    /// Memory of each rank's device in bytes, if it is less than in the recorded run.
    limits: Vec<Option<u64>>,
    /// Warnings about device properties that the program can query and that differ from the recorded run.
    noticed: Vec<String>,
}

impl Steps {
    fn plan(&self, resolved: &Resolved) -> Result<Plan, HostError> {
        let Steps { path, options, recorded: manifest, at_home, .. } = self;
        let has_operators = has_operators(path)?;
        let home = recorded_cluster(manifest, path);
        let device = |of: &Resolved, rank: usize| (of.rates[rank], of.models[rank].clone());
        let is_other = |rank| home.as_ref().is_none_or(|home| device(home, rank) != device(resolved, rank));
        let other_device = (0..resolved.rates.len()).map(is_other).collect();
        Plan::replay(
            options,
            resolved,
            &RecordedCompute { manifest, at_home: *at_home, other_device, has_operators, path },
        )
    }
}

/// Whether the operators of any rank were captured.
fn has_operators(path: &Path) -> Result<bool, HostError> {
    let (ranks, _rest) = RecordReader::open(BufReader::new(open_record(path)?))?.by_rank();
    let captured = |(_, step)| matches!(step, RecordedStep::Operators { operators, .. } if !operators.is_empty());
    Ok(ranks.into_iter().any(|mut steps| steps.any(captured)))
}

/// Whether any rank's allocations were captured.
fn has_allocations(path: &Path) -> Result<bool, HostError> {
    let (ranks, _rest) = RecordReader::open(BufReader::new(open_record(path)?))?.by_rank();
    let mut memory = Memory::within(&vec![None; ranks.len()]);
    for (rank, steps) in (0..).map(RankId).zip(ranks) {
        for (task, step) in steps {
            memory.step(rank, task, &step);
            if !memory.knows_nothing() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether any rank has issued work to a CUDA stream.
fn runs_on_gpus(path: &Path) -> Result<bool, HostError> {
    let (ranks, _rest) = RecordReader::open(BufReader::new(open_record(path)?))?.by_rank();
    let of_stream = |step: &RecordedStep| match step {
        RecordedStep::Request(Request::Issue { queue, .. }) => queue.stream().is_some(),
        _ => false,
    };
    Ok(ranks.into_iter().any(|mut steps| steps.any(|(_, step)| of_stream(&step))))
}

fn refused(path: &Path, failure: &Failure) -> HostError {
    HostError::Usage(format!("the record {} cannot be replayed on this cluster: {failure}", path.display()))
}

fn cut_short(path: &Path) -> HostError {
    let hint = "the run did not finish; run the program again";
    HostError::Usage(format!("the program record {} is incomplete\nhint: {hint}", path.display()))
}

/// A rank's steps, recorded again while they are read.
struct Copied<'a, 'b> {
    rank: RankId,
    steps: RankSteps<LinedSteps<'a>>,
    recorder: &'a RefCell<&'b mut dyn Recorder>,
}

impl Iterator for Copied<'_, '_> {
    type Item = (TaskId, RecordedStep);

    fn next(&mut self) -> Option<(TaskId, RecordedStep)> {
        let (task, step, line) = self.steps.next()?;
        self.recorder.borrow_mut().step(self.rank, task, &step, &line);
        Some((task, step))
    }
}

fn check_ranks(chosen: &Chosen, recorded: u32) -> Result<(), HostError> {
    let devices = chosen.resolved.cluster.devices.len();
    if devices == recorded as usize {
        return Ok(());
    }
    Err(HostError::Usage(format!(
        "the record has {}, but the cluster has {}\nhint: use a cluster with one device per rank",
        counted(recorded, "rank"),
        counted(devices, "device")
    )))
}

/// The recorded manifest, or a changed one if the cluster or the seed differs.
fn manifest(recorded: Manifest, chosen: &Chosen, seed: u64, command: &[String]) -> Manifest {
    if recorded.cluster == chosen.resolved.toml && recorded.seed == seed {
        return recorded;
    }
    Manifest { cluster: chosen.resolved.toml.clone(), command: command.to_vec(), seed, ..recorded }
}

fn check_folder(args: &Replay) -> Result<(), HostError> {
    let same =
        |out: &PathBuf| out.canonicalize().ok().is_some_and(|out| args.run.canonicalize().is_ok_and(|run| run == out));
    if args.output.folder.as_ref().is_some_and(same) {
        let hint = "choose another folder with --out";
        return Err(HostError::Usage(format!("the results would overwrite the run that is replayed\nhint: {hint}")));
    }
    Ok(())
}
