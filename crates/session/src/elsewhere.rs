//! Owns the differences that a recorded program would have met on the cluster of its replay: too little memory, expired
//! timeouts, and other device properties that the program can query. A replay repeats the recorded requests, whatever
//! the program would have done.

use crate::places::{gpu, places};
use crate::session::Stop;
use std::collections::BTreeMap;
use uniference_formats::cluster::Resolved;
use uniference_formats::table::{bytes, kind_of_memory, place};
use uniference_host::error::{Exit, HostError};
use uniference_host::live::zygote::RankPlacement;
use uniference_lowering::Recorder;
use uniference_sim::cluster::Device;
use uniference_sim::event::{Cause, Event, Observer, WaitReason};
use uniference_sim::ids::{RankId, Site, TaskId};
use uniference_sim::program::POLL_COST;
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::{SimDuration, SimTime};
use uniference_studies::memory::{Excess, Memory};

const HINT: &str = "run the program again on this cluster, to see what it does there";

/// Memory of each rank's device in bytes, if it is less than in the recorded run or unknown there; `None` otherwise.
pub(crate) fn limits(home: &Resolved, here: &Resolved) -> Vec<Option<u64>> {
    let had = home.cluster.devices.iter().map(|device| device.memory.map_or(u64::MAX, |memory| memory.0));
    let has = here.cluster.devices.iter().map(|device| device.memory.map(|memory| memory.0));
    had.zip(has).map(|(had, has)| has.filter(|has| *has < had)).collect()
}

/// The warning of a replay whose record contains no allocations.
///
/// # Errors
/// If a device has less memory than the recorded run is known to have had.
pub(crate) fn unknown_allocations(home: &Resolved, limits: &[Option<u64>]) -> Result<String, HostError> {
    let mut devices = home.cluster.devices.iter().zip(limits);
    if devices.any(|(device, limit)| limit.is_some() && device.memory.is_some()) {
        return Err(HostError::Usage(
            "the record does not contain allocations, so `memory` cannot be less than in the recorded run\nhint: run the program again on this cluster".into(),
        ));
    }
    Ok("the record does not contain allocations; whether the program fits the memory of the devices is not checked\nhint: run the program again on this cluster".into())
}

/// Tracks ranks' allocations and passes each recorded step on to another recorder.
pub(crate) struct Limited<'a> {
    pub(crate) memory: Option<Memory>,
    pub(crate) recorder: &'a mut dyn Recorder,
}

impl Recorder for Limited<'_> {
    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, line: &str) {
        self.memory.iter_mut().for_each(|memory| memory.step(rank, task, step));
        self.recorder.step(rank, task, step, line);
    }

    fn line(&mut self, site: Site, line: &str) {
        self.recorder.line(site, line);
    }
}

/// The end of a run that exceeds a device's memory.
pub(crate) fn out_of_memory(excess: &Excess, devices: &[Device]) -> Stop {
    let Excess { rank, held, limit, line, backward } = excess;
    let function = line.as_ref().map(|line| &*line.function).filter(|function| !function.is_empty());
    let at = place(line.as_ref().map(|line| &*line.line), function, *backward);
    let kinds: Vec<String> = held
        .present()
        .map(|(kind, size)| format!("{} {}", kind_of_memory(kind.name()).replace('_', " "), bytes(size)))
        .collect();
    let message = format!(
        "error: {rank} runs out of memory{}: it needs {} ({}), and device `{}` has {}\nhint: the program would get torch.OutOfMemoryError there; {HINT}, or `uniference fit` for what every rank needs\n",
        at.map_or_else(String::new, |at| format!(" {at}")),
        bytes(held.total()),
        kinds.join(", "),
        devices[rank.index()].name,
        bytes(*limit),
    );
    Stop { exit: Exit::ProgramFailed, message }
}

/// Waits for communication that ended with a timeout, which is an error in the program, in order of time. Unsuccessful
/// polls are not among them.
#[derive(Default)]
pub(crate) struct TimedOut(Vec<Expired>);

struct Expired {
    rank: RankId,
    site: Site,
    operation: &'static str,
    lasted: SimDuration,
}

impl Observer for TimedOut {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        if let Event::Waited { rank, start, reason: WaitReason::Communication, call, site, cause: Cause::Time, .. } =
            event
            && at.since(*start) != POLL_COST
        {
            let operation = call.map_or("an operation", |call| call.op.name());
            self.0.push(Expired { rank: *rank, site: *site, operation, lasted: at.since(*start) });
        }
    }
}

impl TimedOut {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The end of a run in which a rank reaches a timeout at a line more often than at `home`, the recorded run; `None`
    /// if no rank does.
    pub(crate) fn stop(&self, home: &TimedOut, lines: &[String]) -> Option<Stop> {
        let mut expected: BTreeMap<(RankId, Site), u64> = BTreeMap::new();
        home.0.iter().for_each(|expired| *expected.entry((expired.rank, expired.site)).or_default() += 1);
        let is_new = |expired: &&Expired| match expected.get_mut(&(expired.rank, expired.site)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        };
        let Expired { rank, site, operation, lasted } = self.0.iter().find(is_new)?;
        let line = lines.get(site.index()).filter(|line| !line.is_empty());
        let message = format!(
            "error: {rank} reaches its timeout in {operation}{} after {lasted}, which it did not in the recorded run\nhint: the program would get an error there; {HINT}, or give it a longer timeout\n",
            line.map_or_else(String::new, |line| format!(" at {line}")),
        );
        Some(Stop { exit: Exit::ProgramFailed, message })
    }
}

/// Device properties that the program can query and that differ between the two clusters, each as a warning. `on_gpus`
/// says whether the program ran on simulated GPUs, whose driver reveals more properties.
pub(crate) fn noticed(home: &Resolved, here: &Resolved, on_gpus: impl FnOnce() -> bool) -> Vec<String> {
    let of = |resolved: &Resolved| places(&resolved.cluster, &resolved.cores);
    let (before, after) = (of(home), of(here));
    let differs = |is_other: &dyn Fn(&RankPlacement, &RankPlacement) -> bool| {
        let mut pairs = before.iter().zip(&after);
        pairs.find(|(before, after)| is_other(before, after)).map(|(_, after)| after.rank as usize)
    };
    let crashes = |resolved: &Resolved, rank: usize| resolved.cluster.devices[rank].crash;
    let crashing = (0..after.len().min(before.len())).find(|rank| crashes(home, *rank) != crashes(here, *rank));
    let gpus = (0..after.len().min(before.len())).find(|rank| {
        let gpu = |place: &RankPlacement, of: &Resolved| {
            let known = gpu(place, of.models[*rank].as_deref()).ok();
            known.map(|gpu| (gpu.name, gpu.memory, gpu.capability, gpu.multiprocessors))
        };
        gpu(&before[*rank], home) != gpu(&after[*rank], here)
    });
    let device = |rank: usize| format!("device `{}`", here.cluster.devices[rank].name);
    let known = [
        gpus.filter(|_| on_gpus()).map(|rank| {
            let device = device(rank);
            format!("rank {rank} would see another GPU model or memory size on {device} than in the recorded run")
        }),
        differs(&|before, after| before.cores != after.cores).map(|rank| {
            let device = device(rank);
            format!(
                "rank {rank} would start another number of threads: `cores` of {device} differs from the recorded run"
            )
        }),
        differs(&|before, after| (before.local, before.group) != (after.local, after.group)).map(|rank| {
            let device = device(rank);
            format!("rank {rank} would find other ranks on the host of {device} than in the recorded run")
        }),
        crashing.map(|rank| {
            let device = device(rank);
            format!("{device} (rank {rank}) crashes at another time than in the recorded run")
        }),
    ];
    let warn = |what: String| format!("{what}; a replay does what was recorded\nhint: {HINT}");
    known.into_iter().flatten().map(warn).collect()
}
