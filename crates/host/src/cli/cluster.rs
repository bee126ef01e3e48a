//! Owns the options that say what is simulated, shared by all commands that simulate, and `uniference cluster`.
//!
//! What they mean is `uniference-formats`' business.

use crate::error::{Exit, HostError};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use uniference_formats::cluster::{AlgorithmChoice, Choices, ClusterFile, Flags, Resolved};
use uniference_formats::diagnostic::Diagnostic;
use uniference_formats::units::UnitError;

/// What is simulated.
#[derive(clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// The cluster, a TOML file
    #[arg(long, value_name = "FILE")]
    pub(super) cluster: Option<PathBuf>,
    /// In place of a file: so many ranks, each on a host of its own, on one switch
    #[arg(long, value_name = "N", conflicts_with = "cluster")]
    pub(super) ranks: Option<u32>,
    /// Of each host's link, each direction [default: 10 Gbps]
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<String>,
    /// One way between two hosts [default: 10 us]
    #[arg(long, value_name = "TIME")]
    latency: Option<String>,
    /// How many times as long compute takes as here; one for all ranks, or one for each
    #[arg(long, value_name = "F,...", value_delimiter = ',')]
    slowdown: Vec<f64>,
    #[command(flatten)]
    overrides: Overrides,
}

/// What is changed about a cluster.
#[derive(clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct Overrides {
    /// The communication library to simulate: gloo, nccl, mpi or ideal
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The algorithm for one collective, as in all_reduce=ring
    #[arg(long, value_name = "OP=NAME")]
    algorithm: Vec<String>,
    /// Any value of the cluster file, as in network.latency="3 us"
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// `uniference cluster`.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Check a cluster file and show what it describes
    Check {
        /// The cluster file
        file: PathBuf,
        #[command(flatten)]
        overrides: Overrides,
    },
}

/// A cluster, and whether anybody has named its backend.
pub(super) struct Chosen {
    pub(super) resolved: Resolved,
    pub(super) backend_named: bool,
}

impl ClusterArgs {
    /// Whether a cluster is described at all.
    pub(super) fn is_given(&self) -> bool {
        self.cluster.is_some() || self.ranks.is_some()
    }

    /// The cluster that the options describe.
    pub(super) fn resolve(&self) -> Result<Chosen, HostError> {
        self.resolve_with(None)
    }

    /// The same with a backend for where neither the options nor the file name one.
    pub(super) fn resolve_with(&self, fallback: Option<&str>) -> Result<Chosen, HostError> {
        self.check_belonging()?;
        match (&self.cluster, self.ranks) {
            (Some(path), _) => self.overrides.resolve(path, &read(path)?, fallback),
            (None, Some(ranks)) => self.overrides.resolve(Path::new("--ranks"), &self.flags(ranks)?, fallback),
            (None, None) => Err(HostError::Usage(
                "no cluster to run on\nhint: describe one with --cluster FILE, or with --ranks N for N ranks on a switch".into(),
            )),
        }
    }

    /// The cluster of an earlier run, as it was or with changes.
    pub(super) fn resolve_again(&self, origin: &Path, toml: &str) -> Result<Chosen, HostError> {
        self.check_belonging()?;
        if self.is_given() { self.resolve() } else { self.overrides.resolve(origin, toml, None) }
    }

    /// Some options describe the cluster of `--ranks` and no other.
    fn check_belonging(&self) -> Result<(), HostError> {
        let given = [
            ("--bandwidth", self.bandwidth.is_some()),
            ("--latency", self.latency.is_some()),
            ("--slowdown", !self.slowdown.is_empty()),
        ];
        match given.iter().find(|(_, given)| *given && self.ranks.is_none()) {
            Some((option, _)) => Err(HostError::Usage(format!(
                "{option} describes the cluster that --ranks makes\nhint: change a value of a cluster file, or of a run's cluster, with --set, as in --set network.latency='3 us'"
            ))),
            None => Ok(()),
        }
    }

    /// The cluster of an earlier run, as it was.
    pub(super) fn resolve_recorded(origin: &str, toml: &str) -> Result<Resolved, HostError> {
        let file = ClusterFile::parse(origin, toml, &[]).map_err(show)?;
        file.resolve(&Choices::default()).map_err(show)
    }

    fn flags(&self, ranks: u32) -> Result<String, HostError> {
        let flags = Flags {
            ranks,
            bandwidth: self.bandwidth.as_deref().map(|text| value("--bandwidth", text)).transpose()?,
            latency: self.latency.as_deref().map(|text| value("--latency", text)).transpose()?,
            slowdown: self.slowdown.clone(),
        };
        flags.to_toml().map_err(show)
    }
}

impl Overrides {
    /// `origin` is the file that `toml` is from; profiles that it names are beside it.
    fn resolve(&self, origin: &Path, toml: &str, fallback: Option<&str>) -> Result<Chosen, HostError> {
        let algorithms: Result<Vec<AlgorithmChoice>, _> = self.algorithm.iter().map(|choice| choice.parse()).collect();
        let choices = Choices {
            backend: self.backend.clone(),
            fallback_backend: fallback.map(str::to_owned),
            algorithms: algorithms.map_err(show)?,
        };
        let mut file = ClusterFile::parse(&origin.display().to_string(), toml, &self.set).map_err(show)?;
        let folder = origin.parent().unwrap_or(Path::new(""));
        for name in file.files() {
            let text = read(&folder.join(&name))?;
            file.attach(name, text);
        }
        let backend_named = self.backend.is_some() || file.names_backend();
        let resolved = file.resolve(&choices).map_err(show)?;
        Ok(Chosen { resolved, backend_named })
    }
}

/// `uniference cluster check`.
pub(super) fn command(command: &Command) -> Result<Exit, HostError> {
    let Command::Check { file, overrides } = command;
    let chosen = overrides.resolve(file, &read(file)?, None)?;
    super::say(format_args!("{}", chosen.resolved.toml)).map(|()| Exit::Ok)
}

fn read(path: &Path) -> Result<String, HostError> {
    super::input::text(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "a cluster file is TOML text, and the profiles that it names are CSV beside it; docs/cluster-file.md describes them",
    })
}

/// A value with a unit, from an option.
pub(super) fn value<T: FromStr<Err = UnitError>>(option: &str, text: &str) -> Result<T, HostError> {
    let whole = 0..text.len();
    text.parse()
        .map_err(|error: UnitError| show(Diagnostic::new(error.message).at(option, text, whole).hint(error.hint)))
}

pub(super) fn show(diagnostic: Diagnostic) -> HostError {
    HostError::Diagnostic(diagnostic.render(std::io::stderr().is_terminal()))
}
