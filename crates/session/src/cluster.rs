//! Owns the choice of a cluster: a file, a named cluster, a number of ranks on one switch, or the cluster of an earlier
//! run, with changes.
//!
//! The keys of a cluster file are defined in `uniference-formats`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use uniference_formats::cluster::{AlgorithmChoice, Choices, ClusterFile, Flags, Resolved, named};
use uniference_formats::diagnostic::Diagnostic;
use uniference_formats::units::UnitError;
use uniference_host::error::HostError;

/// Options that choose the simulated cluster. Values are texts with units, as in a cluster file.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// The cluster file, or a named cluster with a number, as in `dgx-h100:8`.
    pub file: Option<PathBuf>,
    /// In place of a file: the number of ranks, each on its own host, on one switch.
    pub ranks: Option<u32>,
    /// With `ranks`: bandwidth of each host's link in each direction; default 10 Gbps.
    pub bandwidth: Option<String>,
    /// With `ranks`: one-way latency between two hosts; default 10 us.
    pub latency: Option<String>,
    /// With `ranks`: factor of compute durations relative to this machine; one for all ranks, or one per rank.
    pub slowdown: Vec<f64>,
    /// Changes to the cluster, whatever its source.
    pub overrides: Overrides,
}

/// Changes to a cluster.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The communication library: `gloo`, `nccl`, `mpi` or `ideal`.
    pub backend: Option<String>,
    /// Algorithms of collectives: `all_reduce=ring`.
    pub algorithms: Vec<String>,
    /// Values of cluster file keys: `network.latency="3 us"`; `*2` and `/2` multiply them.
    pub set: Vec<String>,
    /// Operations without a duration.
    pub free: Vec<String>,
}

/// The cluster that options describe.
#[derive(Clone)]
pub struct Chosen {
    /// The cluster, with names and units resolved.
    pub resolved: Resolved,
    /// Whether the options or the file name its backend.
    pub backend_named: bool,
    /// Whether NCCL is the backend because neither the file nor an option names a backend and all devices are GPU
    /// models that use NCCL.
    pub implied: bool,
    /// Further reasons to doubt a simulation on this cluster, for its report.
    pub doubts: Vec<String>,
}

impl Chosen {
    /// Text that is shown when a simulation on this cluster starts.
    pub fn note(&self) -> Option<&'static str> {
        self.implied.then_some(
            "note: the devices are NVIDIA GPUs; using backend nccl (change it with --backend, or `backend` in the cluster file)",
        )
    }

    /// Whether the simulation depends on random numbers.
    pub fn is_random(&self) -> bool {
        self.resolved.cluster.dynamics.links.values().any(|link| link.jitter.is_some())
    }
}

impl ClusterOptions {
    /// Whether the options describe a cluster.
    pub fn is_given(&self) -> bool {
        self.file.is_some() || self.ranks.is_some()
    }

    /// The cluster that the options describe.
    ///
    /// # Errors
    /// If there is no such cluster, or the options do not fit together.
    pub fn resolve(&self) -> Result<Chosen, HostError> {
        self.resolve_with(None)
    }

    /// The cluster that the options describe. If neither the options nor the file name a backend, `fallback` is the
    /// backend, whatever the devices imply.
    ///
    /// # Errors
    /// As [`ClusterOptions::resolve`].
    pub fn resolve_with(&self, fallback: Option<&str>) -> Result<Chosen, HostError> {
        self.check_belonging()?;
        match (&self.file, self.ranks) {
            (Some(path), _) => self.overrides.resolve(path, &text(path)?, fallback),
            (None, Some(ranks)) => self.overrides.resolve(Path::new("--ranks"), &self.flags(ranks)?, fallback),
            (None, None) => Err(HostError::Usage(
                "no cluster given\nhint: use --cluster FILE, --cluster NAME for a named cluster (`uniference cluster list`), or --ranks N for N ranks connected by a switch".into(),
            )),
        }
    }

    /// The cluster of an earlier run, unchanged or with changes. `origin` names the source of `toml`. If the options
    /// give another cluster that names no backend, its backend is the recorded run's, since the program was recorded
    /// with that backend.
    ///
    /// # Errors
    /// As [`ClusterOptions::resolve`].
    pub fn resolve_again(&self, origin: &Path, toml: &str) -> Result<Chosen, HostError> {
        self.check_belonging()?;
        if !self.is_given() {
            return self.overrides.resolve(origin, toml, None);
        }
        let recorded = ClusterFile::parse(&origin.display().to_string(), toml, &[]).ok();
        self.resolve_with(recorded.as_ref().and_then(ClusterFile::backend))
    }

    /// Refuses options that apply to the cluster of `--ranks` only.
    fn check_belonging(&self) -> Result<(), HostError> {
        let given = [
            ("--bandwidth", self.bandwidth.is_some()),
            ("--latency", self.latency.is_some()),
            ("--slowdown", !self.slowdown.is_empty()),
        ];
        match given.iter().find(|(_, given)| *given && self.ranks.is_none()) {
            Some((option, _)) => Err(HostError::Usage(format!(
                "{option} requires --ranks\nhint: change a value of a cluster file, or of a run's cluster, with --set, for example --set network.latency='3 us'"
            ))),
            None => Ok(()),
        }
    }

    /// The unchanged cluster of an earlier run.
    ///
    /// # Errors
    /// If it is the cluster of a real run, or of a later version of this program.
    pub fn resolve_recorded(origin: &str, toml: &str) -> Result<Resolved, HostError> {
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
    /// The changed cluster. `origin` is the file that contains `toml`; relative paths of profiles start at its folder.
    ///
    /// # Errors
    /// If the changes describe no cluster.
    pub fn resolve(&self, origin: &Path, toml: &str, fallback: Option<&str>) -> Result<Chosen, HostError> {
        let algorithms: Result<Vec<AlgorithmChoice>, _> = self.algorithms.iter().map(|choice| choice.parse()).collect();
        let choices = Choices {
            backend: self.backend.clone(),
            fallback_backend: fallback.map(str::to_owned),
            algorithms: algorithms.map_err(show)?,
            free: self.free.clone(),
        };
        let mut file = ClusterFile::parse(&origin.display().to_string(), toml, &self.set).map_err(show)?;
        let folder = origin.parent().unwrap_or(Path::new(""));
        for name in file.files() {
            let text = read(&folder.join(&name))?;
            file.attach(name, text);
        }
        let backend_named = self.backend.is_some() || file.backend().is_some();
        let implied = !backend_named && fallback.is_none() && file.implies_nccl();
        let resolved = file.resolve(&choices).map_err(show)?;
        Ok(Chosen { resolved, backend_named, implied, doubts: Vec::new() })
    }
}

/// The text of a named cluster's file, or of the file at a path.
///
/// # Errors
/// If there is no such file or named cluster, or the number of the named cluster does not fit it.
pub fn text(cluster: &Path) -> Result<String, HostError> {
    let spec = cluster.to_str().unwrap_or_default();
    if named::is_name(spec) {
        return named::text(spec).map_err(show);
    }
    match read(cluster) {
        Err(HostError::File { source, .. }) if source.kind() == ErrorKind::NotFound && may_be_name(spec) => {
            Err(show(named::unknown(spec)))
        }
        read => read,
    }
}

/// Whether a word could be meant as the name of a cluster and not as a path.
fn may_be_name(spec: &str) -> bool {
    !spec.is_empty() && !spec.contains('/') && !spec.ends_with(".toml")
}

/// Reads a file of a cluster.
fn read(path: &Path) -> Result<String, HostError> {
    crate::input::text(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "a cluster file is TOML text, and the profiles that it names are CSV files beside it; see \"Cluster file\" in the documentation",
    })
}

/// A value with a unit, from an option.
///
/// # Errors
/// If the text is not such a value.
pub fn value<T: FromStr<Err = UnitError>>(option: &str, text: &str) -> Result<T, HostError> {
    let whole = 0..text.len();
    text.parse()
        .map_err(|error: UnitError| show(Diagnostic::new(error.message).at(option, text, whole).hint(error.hint)))
}

pub(crate) fn show(diagnostic: Diagnostic) -> HostError {
    HostError::Diagnostic(Box::new(diagnostic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(cluster: &str, set: &[&str]) -> Result<Chosen, HostError> {
        let mut options = ClusterOptions { file: Some(PathBuf::from(cluster)), ..ClusterOptions::default() };
        options.overrides.set = set.iter().map(|set| (*set).to_owned()).collect();
        options.resolve()
    }

    fn refused(cluster: &str) -> String {
        resolve(cluster, &[]).err().expect("a mistake").to_string()
    }

    #[test]
    fn a_named_cluster_can_be_changed() {
        let chosen = resolve("dgx-h100:2", &["network.bandwidth=100 Gbps"]).unwrap();
        assert_eq!((chosen.resolved.cluster.devices.len(), chosen.implied), (16, true));
        let slow = chosen.resolved.cluster.topology.links().iter().find(|link| link.name == "gpu.0 -> rail.0").unwrap();
        assert_eq!(slow.bandwidth.bytes_per_second(), 12.5e9);
    }

    #[test]
    fn unknown_names_and_missing_files_are_told_apart() {
        let near = refused("dgx-h10:8");
        assert!(near.contains("no cluster named `dgx-h10`") && near.contains("did you mean `dgx-h100`?"), "{near}");
        for path in ["./dgx-h10", "none.toml", "folder/dgx-h100:8"] {
            let missing = refused(path);
            assert!(missing.contains("read") && !missing.contains("named"), "{missing}");
        }
        assert!(refused("dgx-h100:0").contains("the number of servers must be at least 1"));
    }
}
