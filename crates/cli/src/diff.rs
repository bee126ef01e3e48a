//! Owns `uniference diff`: the choice of two runs, and the output of their difference.

use super::replay::ReplayedArgs;
use std::ffi::OsString;
use std::path::PathBuf;
use uniference_session::{Ended, Exit, HostError, Output};
use uniference_studies::critical::Difference;

/// `uniference diff`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// First run folder, or execution traces, as for `uniference replay`
    #[arg(value_name = "FIRST")]
    first: PathBuf,
    /// Second run folder, or execution traces
    #[arg(value_name = "SECOND")]
    second: PathBuf,
    /// Print the difference as JSON
    #[arg(long)]
    json: bool,
}

/// Explains both runs, each on its own cluster, and shows their difference.
pub(super) fn diff(args: &Args, argv: &[OsString]) -> Result<Exit, HostError> {
    let output = |_: &_| Output { notices: super::notices(), ..Output::default() };
    let mut explanations = Vec::new();
    for run in [&args.first, &args.second] {
        match ReplayedArgs::plain(run.clone()).find(argv, output)?.explain(false)? {
            Ended::Finished(explanation) => explanations.push(explanation),
            Ended::Stopped(stop) => return Ok(super::stopped(&stop)),
        }
    }
    let [first, second] = &explanations[..] else { unreachable!("two runs were explained") };
    let difference = Difference::of(first, second);
    let text = if args.json { difference.to_json() } else { difference.render() };
    super::say(format_args!("{text}"))?;
    Ok(Exit::Ok)
}
