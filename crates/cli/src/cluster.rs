//! Owns `uniference cluster`, and the options of the simulated cluster, which all commands that simulate share.

use std::path::{Path, PathBuf};
use uniference_formats::cluster::{in_units_of, named};
use uniference_formats::table;
use uniference_session::cluster::{Chosen, ClusterOptions, Overrides, text};
use uniference_session::doubts::of_network;
use uniference_session::{Exit, HostError, overview};

/// Options of the simulated cluster.
#[derive(clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// Cluster file (TOML), or a named cluster, as in dgx-h100:8 for 8 servers (`uniference cluster list`)
    #[arg(long, value_name = "FILE|NAME")]
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
    /// Check a cluster file and print a summary of the cluster, with everything that the file leaves to defaults
    Check {
        /// Cluster file, or a named cluster
        #[arg(value_name = "FILE|NAME")]
        file: PathBuf,
        /// Print the cluster file with all values, defaults included, in the file's units, in place of the summary
        #[arg(long)]
        toml: bool,
        #[command(flatten)]
        overrides: OverrideArgs,
    },
    /// List the named clusters
    List,
    /// Print the cluster file of a named cluster, to copy and edit
    Show {
        /// Name, with the number of servers, GPUs or boards, as in dgx-h100:8
        name: String,
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

/// `uniference cluster`.
pub(super) fn command(command: &Command) -> Result<Exit, HostError> {
    match command {
        Command::Check { file, toml, overrides } => check(file, *toml, overrides)?,
        Command::List => list()?,
        Command::Show { name } => {
            let text = named::text(name).map_err(|error| HostError::Diagnostic(Box::new(error)))?;
            super::say(format_args!("{text}"))?;
        }
    }
    Ok(Exit::Ok)
}

fn check(file: &Path, toml: bool, overrides: &OverrideArgs) -> Result<(), HostError> {
    let text = text(file)?;
    let chosen = overrides.options().resolve(file, &text, None)?;
    if let Some(note) = chosen.note() {
        super::complain(format_args!("{note}\n"));
    }
    for doubt in of_network(&chosen.resolved) {
        super::complain(format_args!("warning: {doubt}\n"));
    }
    if toml {
        return super::say(format_args!("{}", in_units_of(&chosen.resolved.toml, &text)));
    }
    super::say(format_args!("ok: {}\n{}", chosen.resolved.cluster.name, overview::of(&chosen)))
}

fn list() -> Result<(), HostError> {
    let mut shown = table::table(&["cluster", "number counts", "hardware"], 3);
    for cluster in named::all() {
        let counted = format!("{}s", cluster.unit.noun());
        shown.add_row(table::row(&[cluster.name, &counted, cluster.about()], &[]));
    }
    super::say(format_args!(
        "{shown}\nuse them as in --cluster dgx-h100:8; `uniference cluster show NAME` prints the file\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{refused, run};
    use uniference_session::Exit;

    #[test]
    fn named_clusters_are_listed_shown_and_checked() {
        for words in [
            &["cluster", "list"][..],
            &["cluster", "show", "dgx-h100:8"],
            &["cluster", "check", "dgx-h100:8", "--set", "network.latency=3 us"],
            &["cluster", "check", "l40s-pcie:8", "--toml"],
        ] {
            assert_eq!(run(words).unwrap_or_else(|error| panic!("{error}")), Exit::Ok);
        }
        for (words, message, hint) in [
            (&["cluster", "show", "dgx-h10"][..], "no cluster named `dgx-h10`", "did you mean `dgx-h100`?"),
            (&["cluster", "check", "dgx-h100:0"], "number of servers must be at least 1", "dgx-h100:1"),
            (&["run", "--cluster", "dgx-h100:1e9", "SCRIPT"], "`1e9` is not a number of servers", "dgx-h100:1"),
            (&["cluster", "check", "l40s:8"], "no cluster named `l40s`", "`uniference cluster list` shows all names"),
        ] {
            let shown = refused(words);
            assert!(shown.starts_with("exit 2\nerror: ") && shown.contains(message), "{shown}");
            assert!(shown.split_once("hint: ").is_some_and(|(_, text)| text.contains(hint)), "{shown}");
        }
    }
}
