//! Owns `uniference replay`: the options of a replay, and the choice of its input.

use super::cluster::ClusterArgs;
use super::compute::ComputeArgs;
use super::output::{OutputArgs, Showing, conclude};
use super::progress::{Expected, ProgressArgs};
use super::traces::TraceArgs;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use uniference_session::export::has_traces;
use uniference_session::recorded::Replay;
use uniference_session::results::PREFIX;
use uniference_session::results::{RECORD, command};
use uniference_session::traces::TraceReplay;
use uniference_session::{Ended, Exit, HostError, Notices, Output, Replayed, RunResults};

/// Options for the input of a replay and its cluster.
#[derive(clap::Args)]
pub(super) struct ReplayedArgs {
    /// Run folder, or folder of its traces; or prefix of execution traces PREFIX.RANK.et[.gz] (or a pattern with %d for
    /// the rank); or a single trace for all ranks
    #[arg(value_name = "DIR|PREFIX|FILE")]
    run: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    traces: TraceArgs,
    /// Seed of all random numbers of the simulation [default: the seed of the run, or 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// `uniference replay`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    replayed: ReplayedArgs,
    /// Number of replays, with consecutive seeds; the report then has an interval of the makespan
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    progress: ProgressArgs,
}

impl ReplayedArgs {
    /// The options of a replay on the recorded cluster.
    pub(super) fn plain(run: PathBuf) -> ReplayedArgs {
        #[derive(clap::Parser)]
        struct Plain {
            #[command(flatten)]
            replayed: ReplayedArgs,
        }
        let words = [OsString::from("replay"), "--".into(), run.into_os_string()];
        <Plain as clap::Parser>::parse_from(words).replayed
    }

    /// The first argument; for a program record, the folder that contains it.
    fn folder(&self) -> PathBuf {
        match self.run.parent() {
            Some(folder) if self.run.ends_with(RECORD) && self.run.is_file() => match folder.as_os_str().is_empty() {
                true => PathBuf::from("."),
                false => folder.to_owned(),
            },
            _ => self.run.clone(),
        }
    }

    /// The input that the first argument names.
    pub(super) fn find(&self, argv: &[OsString], output: impl Fn(&OsStr) -> Output) -> Result<Replayed, HostError> {
        let run = self.folder();
        let prefix = match run.is_dir() {
            true if has_traces(&run) && !run.join(RECORD).exists() => run.join(PREFIX),
            true => {
                self.traces.refuse_for_record(&run)?;
                return Ok(Replayed::Record(Replay {
                    run,
                    cluster: self.cluster.options(),
                    compute: self.compute.options(),
                    arrangement: None,
                    seed: self.seed,
                    repeat: 1,
                    command: command(argv),
                    output: output("replay".as_ref()),
                }));
            }
            false => run,
        };
        if self.compute.is_given() {
            return Err(HostError::Usage(format!(
                "--compute and --device-db have no effect on execution traces: {} has no program record\nhint: give a run folder of `uniference run`, or scale the durations of traces with --compute-scale",
                self.run.display()
            )));
        }
        Ok(Replayed::Traces(TraceReplay {
            output: output(prefix.as_os_str()),
            prefix,
            cluster: self.cluster.options(),
            seed: self.seed,
            command: command(argv),
            meaning: self.traces.meaning()?,
        }))
    }
}

impl Args {
    /// Simulates the input that the first argument names.
    pub(super) fn carry_out(&self, argv: &[OsString], notices: &Notices) -> Result<Ended<RunResults>, HostError> {
        let replayed = match self.replayed.find(argv, |name| self.output.output(name, notices))? {
            Replayed::Record(replay) => Replayed::Record(Replay { repeat: self.repeat, ..replay }),
            traces => traces,
        };
        replayed.replay()
    }
}

/// Runs a replay, and shows its report.
pub(super) fn replay(args: &Args, argv: &[OsString]) -> Result<Exit, HostError> {
    let progress = args.progress.start(|| Expected::of_run(&args.replayed.run))?;
    let done = args.carry_out(argv, &super::notices_with(progress))?;
    conclude(done, Showing::new(args.output.json, args.progress.quiet), None)
}

#[cfg(test)]
pub(crate) mod tests;
