//! Owns `uniference explain`: the critical path of a run, and its output.

use super::replay::ReplayedArgs;
use std::ffi::OsString;
use uniference_session::{Ended, Exit, HostError, Output};
use uniference_studies::critical::render;

/// `uniference explain`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    replayed: ReplayedArgs,
    /// With --json, list all spans of the path, too
    #[arg(long, requires = "json")]
    path: bool,
    /// Print the explanation as JSON
    #[arg(long)]
    json: bool,
}

/// Replays the input that the first argument names, and shows its critical path.
pub(super) fn explain(args: &Args, argv: &[OsString]) -> Result<Exit, HostError> {
    let output = |_: &_| Output { notices: super::notices(), ..Output::default() };
    match args.replayed.find(argv, output)?.explain(args.path)? {
        Ended::Finished(explanation) if args.json => super::say(format_args!("{}", explanation.to_json()))?,
        Ended::Finished(explanation) => super::say(format_args!("{}", render(&explanation)))?,
        Ended::Stopped(stop) => return Ok(super::stopped(&stop)),
    }
    Ok(Exit::Ok)
}
