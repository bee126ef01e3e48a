//! Owns the folded run of a program: a rehearsal runs only some ranks as processes, and all ranks are simulated from
//! its record.
//!
//! The choice of running ranks and the replica check are defined in [`uniference_sim::fold_plan`].

use super::{Live, Ran};
use crate::folder::unwritable;
use crate::programs::halted;
use crate::recorded::{LinedSteps, boxed, play};
use crate::session::{End, SimulationEnd, Stop, Watch};
use std::fs::{File, OpenOptions, remove_file};
use std::io::{BufReader, BufWriter, Seek, SeekFrom};
use std::sync::Arc;
use uniference_formats::record::{Header, RecordReader, RecordWriter};
use uniference_formats::report::Manifest;
use uniference_host::capacity;
use uniference_host::error::{Exit, HostError};
use uniference_lowering::Recorder;
use uniference_sim::cluster::{Cluster, Free};
use uniference_sim::engine;
use uniference_sim::fold_plan::{self, DueTo, FoldPlan, Moved, Unlike, axes, ends, rest};
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::program::{CallOp, CollectiveKind};
use uniference_sim::replay::RecordedStep;
use uniference_sim::symmetry::{Axis, Symmetry};
use uniference_sim::time::SimDuration;

/// File of the rehearsal's record; it is unlinked as soon as it is open.
const REHEARSAL: &str = "rehearsal.tmp";

/// Duration of each operation in a rehearsal. It is not zero, because libraries that find an operation complete do not
/// make a CUDA stream wait for it, and on no network is an operation complete at once. It is as short as NCCL's fastest
/// operation, so periodic work of threads occurs at most as often as in a run of all ranks.
const REHEARSED: SimDuration = SimDuration::from_us(10);

/// Maximum number of ends that become separate classes: with more, the program does not divide work in such a way that
/// only the last ranks have less.
const MOST_APART: usize = 4;

/// Environment variable with the running ranks (`python/uniference/rank/rehearsal.py`).
const RUNNING: &str = "UNIFERENCE_RUNNING";

/// Rehearses the program with one representative per class of equivalent ranks, and replicas, then simulates all ranks.
pub(super) fn drive(live: &mut Live<'_>, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError> {
    let world = cluster.devices.len() as u32;
    let Some(per_machine) = ranks_of_a_machine(live) else {
        return run_all(live, cluster, watch, &Unlike::absence("machines have different numbers of ranks"));
    };
    let mut left = match alike(live, cluster, axes(world, per_machine)) {
        Ok(axes) => axes,
        Err(unlike) => return run_all(live, cluster, watch, &unlike),
    };
    let mut reason: Option<Unlike> = None;
    let mut largest = 0;
    let mut looks_at_ends = true;
    let mut apart: Vec<fold_plan::End> = Vec::new();
    let (fold_plan, rehearsed) = loop {
        let symmetry = Symmetry::new(left.clone(), world).expect("some factors of a number are a grid");
        let looked_at = match looks_at_ends {
            true => [ends(world, per_machine), rest(world, per_machine, &apart)].concat(),
            false => Vec::new(),
        };
        let fold_plan = Arc::new(FoldPlan::new(symmetry, world, looked_at, apart.clone()));
        let running = fold_plan.running().count() as u32;
        if let Some(unlike) = &reason {
            capacity::check_processes(running, largest, &unlike.problem)?;
        }
        if running == world {
            let unlike =
                reason.unwrap_or_else(|| Unlike::absence(format!("{world} ranks are too few for others to stand for")));
            return run_all(live, cluster, watch, &unlike);
        }
        live.notices.say(&format!("{running} of {world} ranks run"));
        let unlike = match rehearse(live, cluster, &fold_plan, &mut largest)? {
            Rehearsed::Stopped(stop) => return Ok(End::new(SimulationEnd::Stopped(stop), Vec::new())),
            Rehearsed::Unlike(unlike) => unlike,
            Rehearsed::Finished(rehearsed) => break (fold_plan, *rehearsed),
        };
        match unlike.due_to {
            DueTo::Axis(axis) => {
                let Axis { stride, extent, .. } = left.remove(axis);
                live.notices.say(&format!("ranks {stride} apart (every {extent}) do not fold: {unlike}"));
            }
            DueTo::End(end) if apart.len() < MOST_APART => {
                let end = fold_plan.ends()[end].clone();
                live.notices.say(&format!("the last ranks fold by themselves: {unlike}"));
                // More ranks than assumed have less work: this wider end replaces the ends that it contains.
                apart.retain(|other| !other.is_superset(&end));
                apart.push(end);
            }
            // In some groups, the only running rank is one of the last ranks.
            DueTo::Absence if std::mem::take(&mut looks_at_ends) => {
                live.notices.say(&format!("the last ranks do not run beside the others: {unlike}"));
                apart.clear();
            }
            DueTo::Absence | DueTo::End(_) | DueTo::Uneven => left.clear(),
        }
        reason = Some(unlike);
    };
    live.interrupts = None;
    simulate(live, cluster, &fold_plan, rehearsed, watch)
}

fn run_all(live: &mut Live<'_>, cluster: &Cluster, watch: Watch<'_>, unlike: &Unlike) -> Result<End, HostError> {
    let reason = format!("all ranks run, because {unlike}");
    live.notices.say(&reason);
    let mut end = live.run_all(cluster, watch)?;
    end.costed.warnings.push(format!("--fold auto: {reason}"));
    Ok(end)
}

/// Number of consecutive ranks on each machine; `None`: machines have different numbers.
fn ranks_of_a_machine(live: &Live<'_>) -> Option<u32> {
    let places = &live.setup.places;
    let (_, count) = places.first()?.local;
    let is_regular =
        places.iter().all(|place| place.local == (place.rank % count, count) && place.group.0 == place.rank / count);
    is_regular.then_some(count)
}

/// Axes along which all device properties that programs can query are equal.
fn alike(live: &Live<'_>, cluster: &Cluster, axes: Vec<Axis>) -> Result<Vec<Axis>, Unlike> {
    if let Some(device) = cluster.devices.iter().find(|device| device.crash.is_some()) {
        return Err(Unlike::absence(format!("device `{}` crashes, and programs may notice", device.name)));
    }
    let places = &live.setup.places;
    let seen = |rank: RankId| {
        let place = &places[rank.index()];
        let gpus = place.gpus.iter().map(|gpu| (&gpu.name, gpu.capability, gpu.memory)).collect::<Vec<_>>();
        (place.memory, place.cores, gpus, live.setup.compute[rank.index()])
    };
    let world = places.len() as u32;
    let keeps = |axis: &Axis| {
        let symmetry = Symmetry::new(vec![*axis], world).expect("one axis is a grid");
        let step = symmetry.generators().next().expect("its extent is more than 1");
        (0..world).map(RankId).all(|rank| seen(rank) == seen(symmetry.apply(step, rank)))
    };
    Ok(axes.into_iter().filter(keeps).collect())
}

/// Result of a rehearsal.
enum Rehearsed {
    Finished(Box<Rehearsal>),
    Stopped(Stop),
    Unlike(Unlike),
}

/// Record of the ranks that ran.
struct Rehearsal {
    record: RecordReader<BufReader<File>>,
    warnings: Vec<String>,
}

/// Runs the ranks of a fold plan that have processes; each communication has the duration [`REHEARSED`]. `largest` is
/// the memory of the largest process so far.
fn rehearse(
    live: &mut Live<'_>,
    cluster: &Cluster,
    fold_plan: &Arc<FoldPlan>,
    largest: &mut u64,
) -> Result<Rehearsed, HostError> {
    let mut stage = cluster.clone();
    let kinds = CollectiveKind::ALL.map(CollectiveKind::name);
    stage.backend.free =
        Free { operations: kinds.into_iter().chain([CallOp::SEND, "recv"]).collect(), takes: REHEARSED };
    let path = live.folder.expect("who folds keeps results").join(REHEARSAL);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.and_then(|file| remove_file(&path).map(|()| file)).map_err(|e| unwritable("write", &path, e))?;
    let header = Header { world_size: cluster.devices.len() as u32, manifest: Manifest::default() };
    let mut kept = Kept { fold_plan, writer: RecordWriter::new(BufWriter::new(file), &header) };
    let watch = Watch { observer: &mut (), recorder: &mut kept };
    live.setup.script.env.insert(RUNNING.to_owned(), numbers(fold_plan).join(","));
    let ran = live.run(&stage, Some(fold_plan.clone()), watch);
    live.setup.script.env.remove(RUNNING);
    let Ran { ending, warnings, largest: taken, .. } = ran?;
    *largest = taken.max(*largest);
    match ending {
        Err(unlike) => return Ok(Rehearsed::Unlike(unlike)),
        // A rank that waits forever may be waiting for an absent rank, so a deadlock is no error of the program.
        Ok(SimulationEnd::Stopped(Stop { exit: Exit::Halted, message })) => {
            let said =
                message.lines().take(2).map(|line| line.trim_start_matches("error: ").trim()).collect::<Vec<_>>();
            let problem = format!("the ranks that ran came to a halt: {}", said.join("; "));
            return Ok(Rehearsed::Unlike(Unlike::absence(problem)));
        }
        Ok(SimulationEnd::Stopped(stop)) => {
            let hint = "hint: ranks that did not run contributed what others did (--fold auto): if it failed on that, run it with --fold off\n";
            let hint = if stop.exit == Exit::ProgramFailed { hint } else { "" };
            return Ok(Rehearsed::Stopped(Stop { message: stop.message + hint, ..stop }));
        }
        Ok(SimulationEnd::Finished) => {}
        Ok(SimulationEnd::Unlike(_)) => unreachable!("every rank is simulated"),
    }
    let lost = |source| unwritable("write", &path, source);
    let mut file = kept.writer.finish()?.into_inner().map_err(|error| lost(error.into_error()))?;
    file.seek(SeekFrom::Start(0)).map_err(lost)?;
    let record = RecordReader::open(BufReader::new(file))?;
    Ok(Rehearsed::Finished(Box::new(Rehearsal { record, warnings })))
}

/// Simulates all ranks: running ranks from their own record, absent ranks from that of their representative.
fn simulate(
    live: &Live<'_>,
    cluster: &Cluster,
    fold_plan: &FoldPlan,
    Rehearsal { record, warnings }: Rehearsal,
    watch: Watch<'_>,
) -> Result<End, HostError> {
    let ranks: Vec<RankId> = (0..cluster.devices.len()).map(RankId::from).collect();
    let models: Vec<usize> = ranks.iter().map(|rank| fold_plan.model(*rank).index()).collect();
    let (records, rest) = record.by_rank_of(&models);
    let costing = live.plan.costing();
    let steps = ranks.iter().zip(records).map(|(rank, record)| {
        let (model, steps) = (fold_plan.model(*rank), boxed(record));
        if model == *rank {
            return steps;
        }
        let mut moved = Moved::new(fold_plan, model, *rank);
        Box::new(steps.map(move |(task, step, line)| (task, moved.step(task, step), line))) as LinedSteps<'_>
    });
    let (ended, hazards) = play(cluster, steps.collect(), &costing, None, watch);
    let lines = rest.finish()?;
    let mut costed = costing.borrow_mut().finish()?;
    costed.warnings.extend(warnings);
    costed.warnings.push(summary(fold_plan, &ranks));
    costed.warnings.extend(hazards.warnings(&lines).iter().map(ToString::to_string));
    let ending = match ended {
        engine::RunEnd::Finished => SimulationEnd::Finished,
        engine::RunEnd::Halted(halt) => halted(&halt, &lines),
        engine::RunEnd::Failed(failure) => {
            return Err(HostError::Usage(format!(
                "ranks that did not run cannot do as those that did: {failure}\nhint: run every rank with --fold off"
            )));
        }
        engine::RunEnd::CutShort => SimulationEnd::Stopped(Stop {
            exit: Exit::Halted,
            message: "error: a rank that did not run waits for what its model did not\nhint: run every rank with --fold off\n".to_owned(),
        }),
    };
    Ok(End { ending, lines, costed })
}

/// Summary of the fold for the report.
fn summary(fold_plan: &FoldPlan, ranks: &[RankId]) -> String {
    let running = numbers(fold_plan);
    format!(
        "--fold auto: {} of {} ranks ran ({}), and the others are taken to do as their neighbours among them; output is of the ranks that ran, and times that the program read are those of a run in which every operation takes {REHEARSED}",
        running.len(),
        ranks.len(),
        running.join(", ")
    )
}

/// Numbers of the running ranks.
fn numbers(fold_plan: &FoldPlan) -> Vec<String> {
    fold_plan.running().map(|rank| rank.0.to_string()).collect()
}

/// Record of the running ranks.
struct Kept<'a> {
    fold_plan: &'a FoldPlan,
    writer: RecordWriter<BufWriter<File>>,
}

impl Recorder for Kept<'_> {
    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str) {
        if self.fold_plan.runs(rank) {
            self.writer.step(rank, task, step, line);
        }
    }
}
