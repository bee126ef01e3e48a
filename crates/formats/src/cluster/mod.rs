//! Owns the cluster file: devices, hosts, network and backend in a user's notation, and their resolution to the
//! simulated cluster.
//!
//! Text in, values or a [`Diagnostic`] out. `docs/reference/cluster-file.md` describes every key; the simulator has the
//! networks and the algorithms.

mod backend;
mod crashes;
mod devices;
mod dynamics;
mod flags;
mod hardware;
mod hierarchy;
mod kernels;
mod keys;
pub mod named;
mod network;
mod parameters;
mod peaks;
mod profile;
mod rates;
mod raw;
mod relative;
mod source;
mod speeds;
mod spelling;
mod steps;

pub use devices::is_worker_name;
pub use flags::Flags;
pub use hardware::{KnownLink, known_links};
pub use kernels::{Formula, KernelCost};
pub use speeds::{Speed, SpeedKey, bandwidth_of_host, bandwidth_of_link, speed_keys};
pub use spelling::in_units_of;

pub use uniference_sim::device::Rates;

use crate::diagnostic::{Diagnostic, suggest};
use crate::units::counted;
use raw::RawCluster;
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use toml::Spanned;
use uniference_sim::cluster::Cluster;
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::program::{CallOp, CollectiveKind};

/// Default bandwidth of a link.
pub const DEFAULT_BANDWIDTH: &str = "10 Gbps";
/// Default latency between two hosts.
pub const DEFAULT_LATENCY: &str = "10 us";

/// A cluster file with valid syntax; its values are checked when it is resolved.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    source: Source,
    raw: RawCluster,
    attached: dynamics::Attachments,
}

/// The caller's choices, which override the cluster file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// The backend, in place of the file's.
    pub backend: Option<String>,
    /// The backend that the script passed, used if neither the file nor the caller names one. Without any of the three,
    /// the backend is `nccl` if all devices are GPU models that use NCCL, else `gloo`.
    pub fallback_backend: Option<String>,
    /// Algorithms, in place of the file's and the backend's.
    pub algorithms: Vec<AlgorithmChoice>,
    /// Operations without a duration, in addition to the file's.
    pub free: Vec<String>,
}

/// `OP=NAME`: an algorithm for every size of one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmChoice {
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// The name of the algorithm.
    pub name: String,
}

/// A cluster, ready to be simulated.
#[derive(Clone)]
pub struct Resolved {
    /// The cluster in the engine's form.
    pub cluster: Cluster,
    /// Rates of each rank's device, by rank, if the file gives them.
    pub rates: Vec<Option<Rates>>,
    /// Full name of the model of each rank's device, by rank, if the file names one. The model's rates are then known.
    pub models: Vec<Option<String>>,
    /// Number of CPU cores of each rank's device, by rank, if the file gives it; at least 1.
    pub cores: Vec<Option<u32>>,
    /// Full name of the host CPU of each rank's device, by rank, if it is known.
    pub host_cpus: Vec<Option<String>>,
    /// Worker that runs each rank, by rank, if the file names one.
    pub workers: Vec<Option<String>>,
    /// A cluster file with all values, defaults and choices included. It resolves to the same cluster.
    pub toml: String,
    /// Costs of kernels from the file; the first that matches a kernel counts.
    pub kernels: Vec<KernelCost>,
    /// Known errors of the model on this cluster.
    pub uncertainty: Option<Uncertainty>,
    /// The network is a graph of links, and the file does not say which hosts are GPUs of one server.
    pub lacks_servers: bool,
    /// Values that the file does not give and that change times, for people.
    pub assumed: Vec<String>,
}

/// Known errors of the model: relative standard errors, at least zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Uncertainty {
    /// Error of the duration of compute.
    pub compute: f64,
    /// Error of the duration of operations that `operations` does not name.
    pub communication: f64,
    /// Errors of the duration of operations by their names in a report.
    pub operations: BTreeMap<String, f64>,
}

impl ClusterFile {
    /// Reads the text of a cluster file that came from `origin` (its path), then the `KEY=VALUE` assignments that
    /// override it.
    ///
    /// # Errors
    /// If the text is no TOML, has an unknown key, or a value of the wrong type or without its unit, or if an
    /// assignment fits no key.
    pub fn parse(origin: &str, text: &str, assignments: &[String]) -> Result<ClusterFile, Diagnostic> {
        let source = Source::new(origin, text, assignments)?;
        let raw = source.read()?;
        Ok(ClusterFile { source, raw, attached: dynamics::Attachments::new() })
    }

    /// The files that the cluster file names, by paths relative to it. [`ClusterFile::attach`] adds their texts.
    pub fn files(&self) -> Vec<String> {
        dynamics::files(&self.raw).into_iter().chain(steps::files(&self.raw.collective)).collect()
    }

    /// Adds the text of a file that the cluster file names.
    pub fn attach(&mut self, name: String, text: String) {
        self.attached.insert(name, text);
    }

    /// The name of the backend, if the file names one.
    pub fn backend(&self) -> Option<&str> {
        self.raw.backend.as_ref().map(|backend| backend.get_ref().0.name.get_ref().as_str())
    }

    /// Whether all devices are GPU models that use NCCL, so that the default backend is NCCL.
    pub fn implies_nccl(&self) -> bool {
        devices::all_use_nccl(&self.raw.device)
    }

    /// A line for people with the values in the file: `boards (switch, 1 Gbps, 200 us, gloo)`. For [`Resolved::toml`]
    /// the line is complete.
    pub fn summary(&self) -> String {
        let network = self.raw.network.as_ref().map(|network| network.get_ref());
        let links = |network: &raw::RawNetwork| Some(format!("{} links", network.links.as_ref()?.get_ref().len()));
        let hosts = devices::resolve(&self.raw.device, &self.source).map_or(usize::MAX, |(hosts, _)| hosts.len());
        let (bandwidth, latency) = network.map_or((None, None), |network| network::headline(network, hosts));
        let parts = [
            network.and_then(|network| links(network).or_else(|| Some(network.preset.as_ref()?.get_ref().clone()))),
            bandwidth,
            latency,
            self.backend().map(str::to_owned),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let name = self.raw.name.as_deref().unwrap_or("cluster");
        if parts.is_empty() { name.to_owned() } else { format!("{name} ({})", parts.join(", ")) }
    }

    /// The cluster that the file describes, with `choices` in place of the file's values.
    ///
    /// # Errors
    /// If the file is inconsistent: it has no devices, repeated or unknown names, a shape that does not fit the hosts,
    /// hosts without a route, or an unknown backend or algorithm.
    pub fn resolve(&self, choices: &Choices) -> Result<Resolved, Diagnostic> {
        let (hosts, mut devices) = devices::resolve(&self.raw.device, &self.source)?;
        let rates = devices.iter().map(|device| device.rates).collect();
        let models = devices::models(&self.raw.device, &self.source)?;
        let cores = devices::cores(&self.raw.device);
        let host_cpus = devices::host_cpus(&self.raw.device, &self.source)?;
        let workers = devices::workers(&self.raw.device);
        dynamics::slow_down(&self.raw.straggler, &mut devices, &self.source)?;
        let (mut backend, packet, tuning) = backend::resolve(&self.raw, choices, &self.attached, &self.source)?;
        let said = self.raw.network.as_ref().map(Spanned::get_ref);
        let lacks_servers = said.is_some_and(|network| network.links.is_some() && network.per_server.is_none());
        let mut assumed = network::assumed(self.raw.network.as_ref().map(Spanned::get_ref), &hosts);
        assumed.extend(devices::assumed(&self.raw.device));
        let (topology, network) = network::resolve(self.raw.network.as_ref(), &hosts, packet, &self.source)?;
        crashes::resolve(&self.raw.crash, &mut devices, &topology, &self.source)?;
        backend::adapt(&mut backend.algorithms, tuning, &topology, &devices, &models);
        let free = self.free(choices)?;
        backend.free.operations = free.iter().copied().collect();
        hierarchy::lay_out(&mut backend.algorithms, &self.raw, choices, (&topology, &devices), &self.source)?;
        let dynamics = dynamics::resolve(&self.raw, &topology, &self.attached, &self.source)?;
        let name = self.raw.name.clone().unwrap_or_else(|| counted(devices.len(), "device"));
        let mut raw = RawCluster {
            name: Some(name.clone()),
            backend: Some(backend::canonical(&backend, packet, tuning)),
            device: self.raw.device.clone(),
            network: Some(network),
            straggler: self.raw.straggler.clone(),
            crash: self.raw.crash.clone(),
            kernel: self.raw.kernel.clone(),
            uncertainty: self.raw.uncertainty.clone(),
            collective: self.canonical_rules(&backend.algorithms, choices),
            free: free.into_iter().map(|name| Spanned::new(0..0, name.to_owned())).collect(),
        };
        let kernels = kernels::resolve(&self.raw.kernel, &self.source)?;
        dynamics::inline(&mut raw, &self.attached, &self.source)?;
        let cluster = Cluster { name, devices, topology, dynamics, backend };
        Ok(Resolved {
            cluster,
            rates,
            models,
            cores,
            host_cpus,
            workers,
            toml: to_toml(&raw),
            kernels,
            uncertainty: self.uncertainty()?,
            lacks_servers,
            assumed,
        })
    }
}

impl ClusterFile {
    /// The operations without a duration, among all operations that can be named.
    fn free(&self, choices: &Choices) -> Result<BTreeSet<&'static str>, Diagnostic> {
        let names = || CollectiveKind::ALL.map(CollectiveKind::name).into_iter().chain([CallOp::SEND, CallOp::WRITE]);
        let known = |given: &str, error: &dyn Fn(String) -> Diagnostic| {
            let unknown = || error(format!("unknown operation `{given}`")).hint(suggest(given, "operations", names()));
            names().find(|name| *name == given).ok_or_else(unknown)
        };
        let of_file =
            self.raw.free.iter().map(|name| known(name.get_ref(), &|text| self.source.error(text, name.span())));
        let chosen = choices.free.iter();
        let chosen = chosen.map(|name| known(name, &|text| Diagnostic::new(text).at("--free", name, 0..name.len())));
        of_file.chain(chosen).collect()
    }
}

impl ClusterFile {
    /// The complete rules for algorithms, without references to other files.
    fn canonical_rules(
        &self,
        table: &AlgorithmTable,
        choices: &Choices,
    ) -> BTreeMap<Spanned<String>, Spanned<raw::RawRules>> {
        let mut rules = backend::canonical_rules(table);
        for (name, said) in &self.raw.collective {
            let is_forced = choices.algorithms.iter().any(|choice| choice.kind.name() == name.get_ref());
            let says_more =
                |rule: &raw::RawRule| rule.steps.is_some() || rule.chunks.is_some() || rule.dimensions.is_some();
            if !is_forced && said.get_ref().0.iter().any(says_more) {
                rules.insert(name.clone(), flags::here(steps::inline(said.get_ref(), &self.attached)));
            }
        }
        rules
    }

    fn uncertainty(&self) -> Result<Option<Uncertainty>, Diagnostic> {
        let mut found = Uncertainty::default();
        for (name, error) in &self.raw.uncertainty {
            let value = *error.get_ref();
            if !(value.is_finite() && value >= 0.0) {
                let hint = "an error is a fraction of the duration: 0.05 is 5 %";
                return Err(self
                    .source
                    .error(format!("an error must not be negative, not {value}"), error.span())
                    .hint(hint));
            }
            let message = || format!("unknown operation `{}`", name.get_ref());
            match name.get_ref().as_str() {
                "compute" => found.compute = value,
                "communication" => found.communication = value,
                operation if OPERATIONS.contains(&operation) || kind_by_name(operation).is_some() => {
                    found.operations.insert(operation.to_owned(), value);
                }
                other => {
                    let known = CollectiveKind::ALL.map(CollectiveKind::name);
                    let known = OPERATIONS.into_iter().chain(known).chain(["compute", "communication"]);
                    return Err(self.source.error(message(), name.span()).hint(suggest(other, "operations", known)));
                }
            }
        }
        Ok((!self.raw.uncertainty.is_empty()).then_some(found))
    }
}

/// Operations that are not collectives.
const OPERATIONS: [&str; 3] = [CallOp::SEND, "recv", CallOp::WRITE];

fn to_toml(raw: &RawCluster) -> String {
    toml::to_string(raw).expect("names and values with units are TOML")
}

impl FromStr for AlgorithmChoice {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<AlgorithmChoice, Diagnostic> {
        let Some((kind, name)) = text.split_once('=') else {
            let hint = "write OP=NAME, for example all_reduce=ring";
            return Err(Diagnostic::new(format!("`{text}` is not of the form OP=NAME")).hint(hint));
        };
        match kind_by_name(kind) {
            Some(kind) => Ok(AlgorithmChoice { kind, name: name.to_owned() }),
            None => Err(Diagnostic::new(format!("unknown collective `{kind}`")).hint(suggest_kind(kind))),
        }
    }
}

fn kind_by_name(name: &str) -> Option<CollectiveKind> {
    CollectiveKind::ALL.into_iter().find(|kind| kind.name() == name)
}

fn suggest_kind(word: &str) -> String {
    suggest(word, "collectives", CollectiveKind::ALL.map(CollectiveKind::name))
}

#[cfg(test)]
mod tests;
