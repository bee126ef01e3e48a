//! Owns `uniference view`: the choice of the timeline to show. The viewer and its server are in Python
//! (`python/uniference/program/viewer.py`).

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use uniference_session::results::{NATIVE_TRACE, TRACE};
use uniference_session::{Exit, HostError};

/// Python code of the viewer; its docstring describes the arguments.
const VIEWER: &str = include_str!("../../../python/uniference/program/viewer.py");

/// `uniference view`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Run folder
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Print the address, and open no browser
    #[arg(long)]
    no_browser: bool,
}

/// Replaces this process by the viewer's server, which ends with Ctrl-C.
pub(super) fn view(args: &Args, python: &Path) -> Result<Exit, HostError> {
    let run = &args.run;
    let trace = [NATIVE_TRACE, TRACE].map(|name| run.join(name)).into_iter().find(|trace| trace.is_file());
    let trace = trace.ok_or_else(|| {
        let hint = "give the folder of a run that was not made with --record summary";
        HostError::Usage(format!("{} contains no trace\nhint: {hint}", run.display()))
    })?;
    let name = run.canonicalize().ok().and_then(|run| Some(run.file_name()?.to_string_lossy().into_owned()));
    let suffix = trace.extension().unwrap_or_default().to_string_lossy();
    let name = format!("{}.{suffix}", name.as_deref().unwrap_or("trace"));
    let how = if args.no_browser { "address" } else { "browser" };
    // -P excludes the current folder, whose files must not shadow modules.
    let source = Command::new(python).args(["-P", "-c", VIEWER]).arg(trace).args([&*name, how]).exec();
    Err(HostError::Host {
        what: format!("cannot start {}: {source}", python.display()),
        hint: "install Python again, or open the trace at https://ui.perfetto.dev".to_owned(),
    })
}
