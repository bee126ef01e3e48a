//! Owns the check whether a job fits its devices: each rank's peak memory, compared with the memory of its device.
//!
//! The memory of a program is counted while it runs, without virtual time and without a limit, so the result states the
//! missing bytes. The memory of a generated job is computed (`uniference-programs`).

use crate::cluster::ClusterOptions;
use crate::folder::unwritable;
use crate::generated;
use crate::live::{Live, Program};
use crate::notices::Notices;
use crate::results::{Listened, RecordLevel};
use crate::session::{Output, Session, SimulationEnd, Source, Stop, Watch};
use crate::tight::is_tight;
pub use crate::tight::leave_little;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uniference_formats::cluster::Resolved;
use uniference_formats::report::HOST_MEMORY;
use uniference_host::error::{Exit, HostError};
use uniference_host::interrupt::Interrupts;
use uniference_host::live::driver::Console;
use uniference_programs::workload::Workload;
use uniference_sim::cluster::Device;
use uniference_sim::event::Observer;
use uniference_studies::memory::{Held, Memory, Peak};

/// Memory that a rank needs on its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Rank in the world.
    pub rank: u32,
    /// Name of the rank's device.
    pub device: String,
    /// Bytes of the device; `None`: the cluster file has no figure.
    pub available: Option<u64>,
    /// Bytes by kind at the rank's peak; `None`: unknown.
    pub kinds: Option<Vec<(String, u64)>>,
    /// `path:line` of the operator at the peak.
    pub line: Option<String>,
    /// Qualified name of the line's function.
    pub function: Option<String>,
    /// Whether the operator ran in the backward pass of the line.
    pub backward: bool,
}

impl Need {
    /// Sum of all kinds in the device's memory.
    pub fn bytes(&self) -> Option<u64> {
        let of_device = |(kind, bytes): &(String, u64)| if kind == HOST_MEMORY { 0 } else { *bytes };
        self.kinds.as_ref().map(|kinds| kinds.iter().map(of_device).fold(0_u64, u64::saturating_add))
    }

    /// Bytes that the device lacks, if that is known and positive.
    pub fn lacks(&self) -> Option<u64> {
        self.bytes()?.checked_sub(self.available?).filter(|lacking| *lacking > 0)
    }

    /// Whether the device's memory suffices with almost nothing to spare.
    pub fn is_tight(&self) -> bool {
        self.bytes().zip(self.available).is_some_and(|(bytes, available)| is_tight(bytes, available))
    }

    /// Bytes that the device has left, if that is known and it lacks none.
    pub fn spare(&self) -> Option<u64> {
        self.available?.checked_sub(self.bytes()?)
    }
}

/// Memory that the ranks of a job need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The memory that each rank needs, indexed by rank.
    pub needs: Vec<Need>,
    /// Reason why the program stopped early; `needs` then cover the time up to the stop.
    pub stopped: Option<Stop>,
}

/// Whether the job fits its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Each rank fits its device.
    Fits,
    /// At least one rank does not fit; the rank at this index of [`Fit::needs`] lacks most.
    Exceeds(usize),
    /// Unknown, with the reason and a hint.
    Unknown(String),
}

impl Fit {
    /// Whether the job fits. A job that exceeded a device's memory before the program failed does not fit.
    pub fn verdict(&self) -> Verdict {
        let lacking = self.needs.iter().enumerate().filter_map(|(at, need)| Some((need.lacks()?, at)));
        if let Some((_, at)) = lacking.max_by_key(|(lack, at)| (*lack, std::cmp::Reverse(*at))) {
            return Verdict::Exceeds(at);
        }
        if self.stopped.is_some() {
            let hint = "up to there every device had enough memory";
            return Verdict::Unknown(format!("the program did not come to its end\nhint: {hint}"));
        }
        if let Some(need) = self.needs.iter().find(|need| need.available.is_none()) {
            let hint = "add it to the [[device]] in the cluster file: memory = \"80 GB\"";
            return Verdict::Unknown(format!("the memory of device `{}` is not known\nhint: {hint}", need.device));
        }
        if let Some(need) = self.needs.iter().find(|need| need.kinds.is_none()) {
            let hint =
                "install g++ and run `make setup` again, or install a wheel that was built for this version of torch";
            return Verdict::Unknown(format!(
                "what rank {} allocates is not known: Uniference's C++ library was not built\nhint: {hint}",
                need.rank
            ));
        }
        Verdict::Fits
    }
}

/// Memory that a generated job needs on a cluster.
///
/// # Errors
/// If the cluster cannot be resolved, or its number of devices differs from the number of ranks.
pub fn of_job(workload: &Workload, cluster: &ClusterOptions) -> Result<Fit, HostError> {
    let chosen = cluster.resolve()?;
    generated::check_ranks(workload, &chosen.resolved)?;
    let need = |(rank, device): (u32, &Device)| {
        let kinds = workload.memory(rank).kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
        let kinds = kinds.map(|(kind, bytes)| (kind.to_lowercase().replace(' ', "_"), bytes)).collect();
        Need { kinds: Some(kinds), ..Need::of(rank, device) }
    };
    let needs = (0..).zip(&chosen.resolved.cluster.devices).map(need).collect();
    Ok(Fit { needs, stopped: None })
}

/// Runs a program for at most `timeout` of real time, and counts its memory. No results are kept.
///
/// # Errors
/// If the program cannot be run.
pub fn of_program(
    program: Program,
    session: &Session,
    timeout: Duration,
    console: &mut dyn Console,
    observer: &mut dyn Observer,
    interrupts: Interrupts,
) -> Result<Fit, HostError> {
    let Resolved { cluster, .. } = session.resolved();
    let (mut seen, mut told) = {
        let listened = Listened::new(Memory::new(cluster.devices.len(), false));
        (listened.clone(), listened)
    };
    let mut live = Live::new(program, session, console, observer, interrupts).only_for_memory(timeout);
    let ended = live.drive(cluster, Watch { observer: &mut seen, recorder: &mut told })?;
    drop(seen);
    let Held { peaks, .. } = told.finish()?;
    let need = |((rank, device), peak): ((u32, &Device), _)| match peak {
        None => Need::of(rank, device),
        Some(Peak { held, line, backward }) => Need {
            kinds: Some(held.present().map(|(kind, bytes)| (kind.name().to_owned(), bytes)).collect()),
            function: line.as_ref().map(|line| line.function.clone()).filter(|function| !function.is_empty()),
            line: line.map(|line| line.line),
            backward,
            ..Need::of(rank, device)
        },
    };
    let needs = (0..).zip(&cluster.devices).zip(peaks).map(need).collect();
    let stopped = match ended.ending {
        SimulationEnd::Finished => None,
        SimulationEnd::Stopped(stop) => Some(stop),
        SimulationEnd::Unlike(_) => unreachable!("every rank is simulated"),
    };
    Ok(Fit { needs, stopped })
}

impl Need {
    /// A rank whose memory is unknown.
    fn of(rank: u32, device: &Device) -> Need {
        let (device, available) = (device.name.clone(), device.memory.map(|bytes| bytes.0));
        Need { rank, device, available, kinds: None, line: None, function: None, backward: false }
    }
}

/// Whether the program was ended by a signal to this command.
pub fn is_interrupted(stop: &Stop) -> bool {
    [Exit::Interrupted, Exit::Terminated, Exit::HungUp].contains(&stop.exit)
}

/// A temporary folder, which is removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new folder.
    ///
    /// # Errors
    /// If no folder can be created.
    pub fn new() -> Result<Scratch, HostError> {
        let folder = std::env::temp_dir();
        let mut names = (0_u64..).map(|number| folder.join(format!("uniference-fit-{}-{number}", std::process::id())));
        loop {
            let path = names.next().expect("there are numbers enough");
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(unwritable("create", &path, error)),
            }
        }
    }

    /// Output options that make a session write to this folder.
    pub fn output(&self, notices: &Notices) -> Output {
        let folder = Some(self.path().to_owned());
        Output { folder, record: RecordLevel::Summary, notices: notices.clone(), ..Output::default() }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(rank: u32, available: Option<u64>, bytes: Option<u64>) -> Need {
        let kinds = bytes
            .map(|bytes| vec![("parameters".to_owned(), bytes / 2), ("activations".to_owned(), bytes - bytes / 2)]);
        let device = format!("gpu.{rank}");
        Need { rank, device, available, kinds, line: None, function: None, backward: false }
    }

    fn verdict(needs: Vec<Need>, stopped: Option<Exit>) -> Verdict {
        let stopped = stopped.map(|exit| Stop { exit, message: String::new() });
        Fit { needs, stopped }.verdict()
    }

    #[test]
    fn a_job_fits_if_every_rank_does() {
        let fits = vec![need(0, Some(10), Some(10)), need(1, Some(12), Some(5))];
        assert_eq!((fits[0].spare(), fits[0].lacks(), fits[1].spare()), (Some(0), None, Some(7)));
        assert_eq!(verdict(fits, None), Verdict::Fits);
    }

    #[test]
    fn a_rank_is_tight_from_98_percent_on_up_to_all_of_the_memory() {
        let tight = |bytes| need(0, Some(1000), Some(bytes)).is_tight();
        assert_eq!([979, 980, 1000, 1001].map(tight), [false, true, true, false]);
        assert!(!need(0, None, Some(1000)).is_tight());
    }

    #[test]
    fn the_rank_that_lacks_most_is_named_even_where_others_are_not_known_or_the_program_failed() {
        let needs = vec![
            need(0, None, Some(99)),
            need(1, Some(10), Some(11)),
            need(2, Some(10), Some(13)),
            need(3, Some(10), Some(13)),
        ];
        assert_eq!(needs[2].lacks(), Some(3));
        assert_eq!(verdict(needs.clone(), None), Verdict::Exceeds(2));
        assert_eq!(verdict(needs, Some(Exit::ProgramFailed)), Verdict::Exceeds(2));
    }

    #[test]
    fn what_is_not_known_is_said_with_a_hint() {
        let cases = [
            (vec![need(0, None, Some(1))], None, "the memory of device `gpu.0` is not known"),
            (vec![need(0, Some(1), None)], None, "what rank 0 allocates is not known"),
            (vec![need(0, Some(1), Some(1))], Some(Exit::ProgramFailed), "did not come to its end"),
        ];
        for (needs, stopped, expected) in cases {
            let Verdict::Unknown(reason) = verdict(needs, stopped) else { panic!("it is known") };
            assert!(reason.starts_with(expected) || reason.contains(expected), "{reason}");
            assert!(reason.contains("\nhint: "), "{reason}");
        }
    }

    #[test]
    fn a_folder_for_what_is_not_kept_goes_away() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        fs::write(path.join("file"), "").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
