//! Owns `uniference calibrate`: measurements of a real network or of the testbed's, and the cluster file fitted to
//! them.
//!
//! `python/uniference/real/probe.py` measures; `uniference-formats` fits.

use super::launch::{Start, absolute};
use super::testbed::Output;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use uniference_session::lock::{Lock, Writer};
use uniference_session::{Exit, HostError, profile, whole};
use uniference_studies::calibrate::fitted;
use uniference_studies::calibrate::{Calibration, calibrate as fit, measurement};

/// `uniference calibrate`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    start: Start,
    /// Operations to measure: only those that the fit needs, or all
    #[arg(long, value_enum, default_value_t = Probe::Pingpong)]
    probe: Probe,
    /// Message sizes of the other operations, in bytes [default: 8 B to 4 MiB]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    sizes: Vec<u64>,
    /// Communication library to measure
    #[arg(long, value_name = "NAME", default_value = "gloo", value_parser = ["gloo", "nccl", "mpi"])]
    library: String,
    /// Profile the CPU of each machine, too: its rates go into the cluster file, its operators into the database of
    /// machine 0
    #[arg(long, conflicts_with = "fit")]
    compute: bool,
    /// Name of this machine's CPU in the database [default: as the system calls it]
    #[arg(long, value_name = "NAME", requires = "compute")]
    device: Option<String>,
    /// Database to write operators to [default: the user's own, $XDG_DATA_HOME/uniference/operators.sqlite]
    #[arg(long, value_name = "FILE", requires = "compute")]
    device_db: Option<PathBuf>,
    /// Cluster file to write; measurements are kept next to it and reused
    #[arg(long, value_name = "FILE", default_value = "cluster.toml")]
    out: PathBuf,
    /// Fit the measurements of this file instead of measuring
    #[arg(long, value_name = "FILE")]
    fit: Option<PathBuf>,
    /// Seed of the bootstrap
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print the fit as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Probe {
    /// Ping-pongs between every pair of ranks, and compute
    Pingpong,
    /// Also every operation, to compare predictions with
    Full,
}

/// Measures the missing data, fits, and writes the cluster file.
pub(super) fn calibrate(args: &Args, python: &Path) -> Result<Exit, HostError> {
    if args.compute && args.library == "nccl" {
        let hint = "remove --compute, and add the GPUs' `model` to each [[device]] of the cluster file; `uniference devices list` shows the names";
        return Err(HostError::Usage(format!(
            "--compute profiles processors, but with --library nccl ranks compute on GPUs\nhint: {hint}"
        )));
    }
    let run = args.start.name();
    let writer = run.as_deref().map_or(Writer::Alone, Writer::Together);
    let _lock = Lock::of_file(&args.out, writer, &super::notices())?;
    let measurements = args.fit.clone().unwrap_or_else(|| args.out.with_extension("measurements.jsonl"));
    if args.fit.is_none() {
        let exit = args.start.run(python, &words(args, &measurements)?, &[], Output::beside(args.json))?;
        // Only the machine of rank 0 has measurements to fit.
        if exit != Exit::Ok || !measurements.exists() {
            return Ok(exit);
        }
    }
    let text = uniference_session::input::text(&measurements).map_err(|source| HostError::File {
        action: "read",
        path: measurements.clone(),
        source,
        hint: "give a file of measurements written by `uniference calibrate`",
    })?;
    let wrong = |error: &dyn std::error::Error| HostError::Usage(format!("{}: {error}", measurements.display()));
    let cases = measurement::parse(&text).map_err(|error| wrong(&error))?;
    let calibration = fit(&cases, &args.library, args.seed).map_err(|error| wrong(&error))?;
    whole::write(&args.out, calibration.toml.as_bytes()).map_err(|source| HostError::File {
        action: "write",
        path: args.out.clone(),
        source,
        hint: "choose another file with --out",
    })?;
    show(args, &calibration)?;
    Ok(Exit::Ok)
}

/// Command line of the probe.
fn words(args: &Args, measurements: &Path) -> Result<Vec<OsString>, HostError> {
    let probe = if args.probe == Probe::Full { "full" } else { "pingpong" };
    let out = absolute(measurements)?;
    let fixed = ["uniference.real.probe", "--plain", "--probe", probe, "--backend", &args.library, "--out"];
    let mut words = fixed.map(OsString::from).to_vec();
    words.push(out);
    if args.compute {
        let name = args.device.clone().unwrap_or_else(|| profile::processor(1));
        let database = super::devices::database(args.device_db.as_deref())?;
        words.extend(["--profile".into(), name.into(), "--device-db".into(), absolute(&database)?]);
    }
    if !args.sizes.is_empty() {
        words.push("--sizes".into());
        words.extend(args.sizes.iter().map(|size| size.to_string().into()));
    }
    Ok(words)
}

fn show(args: &Args, calibration: &Calibration) -> Result<(), HostError> {
    if args.json {
        let text = serde_json::to_string_pretty(calibration).expect("numbers and strings are JSON");
        return super::say(format_args!("{text}\n"));
    }
    super::say(format_args!("{}", fitted(calibration)))?;
    super::say(format_args!("cluster file: {}\n", args.out.display()))
}
