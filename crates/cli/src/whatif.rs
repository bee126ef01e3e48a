//! Owns `uniference whatif`: the changes to a run, and the output of their gains.

use super::replay::ReplayedArgs;
use std::ffi::OsString;
use std::path::PathBuf;
use uniference_formats::lines::{LineName, LineScale};
use uniference_session::whatif::{Changes, compare, table};
use uniference_session::{Ended, Exit, HostError, Output, RunResults};

/// `uniference whatif`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    replayed: ReplayedArgs,
    /// Multiply the duration of compute at a line of the program by a factor, for example model.py:41=0.5
    #[arg(long, value_name = "FILE:LINE=FACTOR")]
    line: Vec<LineScale>,
    /// Overlap the operation called at a line with compute that neither produces its input nor needs its result
    #[arg(long, value_name = "FILE:LINE")]
    overlap: Vec<LineName>,
    /// Run folder of the changed run, which is otherwise not written
    #[arg(long, value_name = "RUN")]
    out: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// Simulates the requested changes, or a table of many changes.
pub(super) fn whatif(args: &Args, argv: &[OsString]) -> Result<Exit, HostError> {
    let output = |_: &_| Output { folder: args.out.clone(), notices: super::notices(), ..Output::default() };
    let (run, cluster) = args.replayed.find(argv, output)?.apart();
    let changes = Changes { cluster, lines: args.line.clone(), overlap: args.overlap.clone() };
    if changes.is_empty() && args.out.is_some() {
        let hint = "say what is to be otherwise, for example --set network.latency=0";
        return Err(HostError::Usage(format!("--out has no effect without a change\nhint: {hint}")));
    }
    let tried = if changes.is_empty() { table(&run)? } else { compare(&run, &changes)? };
    let results = match tried {
        Ended::Finished(results) => results,
        Ended::Stopped(stop) => return Ok(super::stopped(&stop)),
    };
    let written = args.out.as_ref().map(|_| changes.of(&run)?.replay()).transpose()?;
    if args.json {
        super::say(format_args!("{}", results.to_json()))?;
        return Ok(Exit::Ok);
    }
    for warning in &results.warnings {
        super::complain(format_args!("warning: {warning}\n"));
    }
    super::say(format_args!("{}", results.render()))?;
    if let Some(again) = &results.again {
        super::say(format_args!("to run the program itself with the change: {again}\n"))?;
    }
    match written {
        Some(Ended::Finished(RunResults { folder, .. })) => super::say(format_args!("{}\n", folder.describe()))?,
        Some(Ended::Stopped(stop)) => return Ok(super::stopped(&stop)),
        None => {}
    }
    Ok(Exit::Ok)
}
