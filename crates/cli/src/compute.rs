//! Owns the options for the source of compute durations.

use std::path::{Path, PathBuf};
use uniference_session::{Compute, ComputeOptions, DatabaseOptions, HostTime, PythonTime};

/// Options of live runs and replays.
#[derive(clap::Args)]
pub(super) struct ComputeArgs {
    /// Duration of compute: CPU time on this machine (measured) or what its operators cost on the device (model), both times the device's
    /// `slowdown`; that of an earlier run by rank, line and occurrence (from=RUN); or zero (none) [default: model where the device names a
    /// `model` or its rates, otherwise measured; of a replay, as recorded, but model on devices whose model or rates have changed]
    #[arg(long, value_name = "measured|model|from=RUN|none")]
    compute: Option<Compute>,
    /// Database of measured operators, in addition to the shipped one and the user's own
    #[arg(long, value_name = "FILE")]
    device_db: Option<PathBuf>,
    /// Ignore all measurements of this device model, to test how well other devices predict it
    #[arg(long, value_name = "MODEL")]
    leave_out: Option<String>,
    /// Time of the CPU that launches work on simulated GPUs: fixed times per operator and launch (model), 6 us per
    /// operator, a fifth without a kernel; another TIME per operator, as in "9 us"; or CPU time on this machine
    /// (measured) [default: model; of a replay, as recorded]
    #[arg(long, value_name = "measured|model|TIME")]
    host_time: Option<HostTime>,
    /// Time of each Python function that the program calls, in addition to operators: 350 ns (model), another TIME, as
    /// in "0.5 us", or nothing (none) [default: none; of a replay, as recorded]
    #[arg(long, value_name = "none|model|TIME")]
    python_time: Option<PythonTime>,
}

impl ComputeArgs {
    /// Whether any of the options is given.
    pub(super) fn is_given(&self) -> bool {
        self.compute.is_some()
            || self.device_db.is_some()
            || self.leave_out.is_some()
            || self.host_time.is_some()
            || self.python_time.is_some()
    }

    /// The earlier run whose compute durations are used, if any.
    pub(super) fn earlier(&self) -> Option<&Path> {
        match &self.compute {
            Some(Compute::From(run)) => Some(run),
            _ => None,
        }
    }

    /// The options for a session.
    pub(super) fn options(&self) -> ComputeOptions {
        ComputeOptions {
            source: self.compute.clone(),
            databases: DatabaseOptions {
                own: super::devices::own_file(),
                named: self.device_db.clone(),
                left_out: self.leave_out.clone(),
                ..DatabaseOptions::default()
            },
            host: self.host_time,
            python: self.python_time,
            ..ComputeOptions::default()
        }
    }
}
