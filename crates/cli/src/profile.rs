//! Owns `uniference profile`: a program runs here, and how long each of its operators takes goes into an operator database.

use super::cluster::ClusterArgs;
use super::console::{Console, Counter};
use super::doctor;
use super::output::OutputArgs;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use uniference_host::capacity;
use uniference_host::interrupt::Interrupts;
use uniference_session::compute::{Compute, ComputeOptions, Plan};
use uniference_session::live::{Live, Program};
use uniference_session::profile::Kept;
use uniference_session::results::command;
use uniference_session::{Exit, HostError, Outcome, Session, profile};

/// The program that is run where none is given.
const SHAPES: &str = "uniference.real.shapes";

/// `uniference profile`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Name of this machine's processor in the database [default: as the system calls it]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Database to write [default: the user's own, $XDG_DATA_HOME/uniference/operators.sqlite]
    #[arg(long, value_name = "FILE")]
    device_db: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    /// Run a module, like python -m
    #[arg(short = 'm', long, requires = "script")]
    module: bool,
    /// Program and its arguments [default: operators of many shapes]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SCRIPT")]
    script: Vec<OsString>,
}

/// Runs the program with its operators timed, and keeps the times.
pub(super) fn run(args: &Args, argv: &[OsString], python: &Path) -> Result<Exit, HostError> {
    let interrupts = Interrupts::new()?;
    let database = super::devices::database(args.device_db.as_deref())?;
    let mut cluster = args.cluster.options();
    if !cluster.is_given() {
        cluster.ranks = Some(1);
    }
    let chosen = cluster.resolve()?;
    let ranks = chosen.resolved.cluster.devices.len() as u32;
    let (backend_named, cores) = (chosen.backend_named, chosen.resolved.cores[0].unwrap_or(1));
    let versions = doctor::versions(python)?;
    let software = format!("torch {}", versions[1].1);
    capacity::check_descriptors(ranks)?;
    let plan =
        Plan::live(&ComputeOptions { source: Some(Compute::Measured), ..ComputeOptions::default() }, &chosen.resolved)?;
    let output = args.output.output("profile".as_ref(), &super::notices());
    let mut session = Session::new(chosen, 0, command(argv), &output)?;
    session.add_versions(versions);
    session.plan(&plan);
    let given = !args.script.is_empty();
    let mut counter = Counter::default();
    let mut console = Console::new(args.output.json, true, counter.clone());
    let program = Program {
        python: python.to_owned(),
        argv: if given { args.script.clone() } else { vec![SHAPES.into()] },
        module: args.module || !given,
        plan,
        // One at a time: what ranks do to each other's caches is not the operators' own.
        jobs: Some(1),
        cuda: Some(false),
        backend_named,
        terminal: None,
        values: None,
        timed: true,
    };
    let mut live = Live::new(program, &session, &mut console, &mut counter, interrupts);
    let outcome = session.carry_out(&mut live);
    let lost = console.finish();
    match outcome? {
        Outcome::Finished(figures) => {
            session.write(&session.report(*figures, Vec::new()))?;
            let device = args.device.clone().unwrap_or_else(|| profile::processor(cores));
            let found = profile::times(session.folder().path())?;
            let kept = profile::keep(&found, &device, &software, &database)?;
            let said = if args.output.json { json(&device, &database, &kept) } else { text(&device, &database, &kept) };
            super::say(format_args!("{said}"))?;
            lost.map_or(Ok(Exit::Ok), |lost| Err(HostError::Output { source: lost }))
        }
        Outcome::Stopped(stop) => Ok(super::stopped(&stop)),
        Outcome::Unlike(_) => unreachable!("every rank is simulated"),
    }
}

/// What was added, and the device as a cluster file would have it.
fn text(device: &str, database: &Path, kept: &Kept) -> String {
    let Kept { operators, new, surer, reached } = kept;
    let reused = operators - new;
    let mut text = format!(
        "{operators} distinct operators on {device}: {new} new, {reused} known before, {surer} of these measured more often now\ndatabase: {}\n",
        database.display()
    );
    if let Some(keys) = reached.keys() {
        text += &format!(
            "\n# The device in a cluster file, with the highest rates that were reached:\n[[device]]\nname = \"board\"\nmodel = \"{device}\"\n{keys}"
        );
    }
    text
}

fn json(device: &str, database: &Path, kept: &Kept) -> String {
    let Kept { operators, new, surer, reached } = kept;
    let value = serde_json::json!({
        "device": device, "database": database.display().to_string(), "operators": operators, "new": new,
        "known": operators - new, "surer": surer, "peak_flops": reached.peak_flops,
        "memory_bandwidth": reached.memory_bandwidth,
    });
    format!("{value:#}\n")
}
