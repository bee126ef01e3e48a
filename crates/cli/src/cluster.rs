//! Owns `uniference cluster`, and the options of the simulated cluster, which all commands that simulate share.

use std::path::PathBuf;
use uniference_session::cluster::{Chosen, ClusterOptions, Overrides, read};
use uniference_session::doubts::of_network;
use uniference_session::{Exit, HostError};

/// Options of the simulated cluster.
#[derive(clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// Cluster file (TOML)
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Number of ranks, each on its own host, connected by one switch; replaces --cluster
    #[arg(long, value_name = "N", conflicts_with = "cluster")]
    pub(super) ranks: Option<u32>,
    /// Bandwidth of each host's link, per direction [default: 10 Gbps]
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<String>,
    /// One-way latency between two hosts [default: 10 us]
    #[arg(long, value_name = "TIME")]
    latency: Option<String>,
    /// Compute slowdown relative to this machine: one factor for all ranks, or one per rank
    #[arg(long, value_name = "F,...", value_delimiter = ',')]
    slowdown: Vec<f64>,
    #[command(flatten)]
    overrides: OverrideArgs,
}

/// Changes to a cluster.
#[derive(clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct OverrideArgs {
    /// Communication library to simulate: gloo, nccl, mpi or ideal
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Algorithm of one collective, for example all_reduce=ring
    #[arg(long, value_name = "OP=NAME")]
    algorithm: Vec<String>,
    /// Override a value of the cluster file, for example network.latency="3 us"; *2 and /2 multiply it
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Let an operation take no time, for example all_gather or send; receivers still wait for senders
    #[arg(long, value_name = "OP")]
    free: Vec<String>,
}

/// `uniference cluster`.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Check a cluster file and print a summary of the cluster
    Check {
        /// Cluster file
        file: PathBuf,
        #[command(flatten)]
        overrides: OverrideArgs,
    },
}

impl ClusterArgs {
    /// The options for a session.
    pub(super) fn options(&self) -> ClusterOptions {
        ClusterOptions {
            file: self.cluster.clone(),
            ranks: self.ranks,
            bandwidth: self.bandwidth.clone(),
            latency: self.latency.clone(),
            slowdown: self.slowdown.clone(),
            overrides: self.overrides.options(),
        }
    }

    /// Whether the options describe a cluster.
    pub(super) fn is_given(&self) -> bool {
        self.options().is_given()
    }

    /// The cluster that the options describe.
    pub(super) fn resolve(&self) -> Result<Chosen, HostError> {
        self.options().resolve()
    }

    /// The cluster of the options, with `fallback` as its backend if neither the options nor the file name a backend.
    /// The backend that the devices imply is ignored.
    pub(super) fn resolve_with(&self, fallback: &str) -> Result<Chosen, HostError> {
        self.options().resolve_with(Some(fallback))
    }
}

impl OverrideArgs {
    fn options(&self) -> Overrides {
        let OverrideArgs { backend, algorithm, set, free } = self;
        Overrides { backend: backend.clone(), algorithms: algorithm.clone(), set: set.clone(), free: free.clone() }
    }
}

/// `uniference cluster check`.
pub(super) fn command(command: &Command) -> Result<Exit, HostError> {
    let Command::Check { file, overrides } = command;
    let chosen = overrides.options().resolve(file, &read(file)?, None)?;
    if let Some(note) = chosen.note() {
        super::complain(format_args!("{note}\n"));
    }
    for doubt in of_network(&chosen.resolved) {
        super::complain(format_args!("warning: {doubt}\n"));
    }
    super::say(format_args!("{}", chosen.resolved.toml)).map(|()| Exit::Ok)
}
