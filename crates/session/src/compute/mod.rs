//! Owns where the duration of compute comes from, rank by rank: what `--compute` says, or else what each device's keys do.
//!
//! What slices then cost is `costing`'s business, of ranks with simulated GPUs what they come to that of `expansion`, with the slices of an earlier run (`earlier`) where they are asked for; what nodes of traces
//! and generated jobs cost, that of `nodes`.

mod costing;
mod earlier;
mod expansion;
mod nodes;

#[cfg(test)]
mod tests;

pub(crate) use costing::{Costed, Costing, RankSteps, Shared};
pub(crate) use nodes::NodeModels;

use earlier::Earlier;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use uniference_devices::database::Databases;
use uniference_devices::model::{Coming, Model, Target};
use uniference_devices::operators::Sequences;
use uniference_formats::cluster::{KernelCost, Resolved};
use uniference_formats::devices::{self, DeviceKind};
use uniference_formats::operators::{CopyKind, Definition};
use uniference_formats::report::Manifest;
use uniference_formats::units::Duration;
use uniference_host::error::HostError;
use uniference_host::live::driver;
use uniference_sim::device::{Estimate, HostCosts, Rates};
use uniference_sim::time::SimDuration;
use uniference_studies::whatif::LineScale;

/// Where the duration of compute comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compute {
    /// The rank's processor time on this machine.
    Measured,
    /// What its operators cost on the rank's device.
    Model,
    /// What it took in an earlier run: the folder of its results.
    From(PathBuf),
    /// Compute takes no time.
    None,
}

impl FromStr for Compute {
    type Err = String;

    fn from_str(text: &str) -> Result<Compute, String> {
        match (text, text.strip_prefix("from=")) {
            ("measured", _) => Ok(Compute::Measured),
            ("model", _) => Ok(Compute::Model),
            ("none", _) => Ok(Compute::None),
            (_, Some(run)) if !run.is_empty() => Ok(Compute::From(run.into())),
            _ => Err("must be measured, model, from=RUN (the output folder of an earlier run) or none".to_owned()),
        }
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compute::Measured => f.write_str("measured"),
            Compute::Model => f.write_str("model"),
            Compute::From(run) => write!(f, "from={}", run.display()),
            Compute::None => f.write_str("none"),
        }
    }
}

/// The options that choose where the duration of compute comes from.
#[derive(Clone, Debug, Default)]
pub struct ComputeOptions {
    /// `None`: what each device's keys say.
    pub source: Option<Compute>,
    /// The user's own database of measured operators, read if it is there.
    pub own_database: Option<PathBuf>,
    /// Another one, whose rows come before all others.
    pub database: Option<PathBuf>,
    /// A device model whose rows of all databases are not used.
    pub left_out: Option<String>,
    /// What the host takes that hands work to the streams of simulated GPUs; `None`: [`HostTime::Model`], of a replay as it was recorded.
    pub host: Option<HostTime>,
    /// What functions of Python take that the program calls; `None`: [`PythonTime::None`], of a replay as it was recorded.
    pub python: Option<PythonTime>,
    /// Of a replay: lines whose compute takes another time than it would.
    pub lines: Vec<LineScale>,
    /// What was worked out for who asks again.
    pub models: Models,
}

/// Models of devices, for several simulations with the same databases: what one has worked out of a device's rows another does not work out again.
/// It makes no difference to what they say.
#[derive(Clone, Debug, Default)]
pub struct Models(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    databases: Option<Arc<Databases>>,
    models: Vec<(Target, Arc<Model>)>,
}

impl Models {
    /// The databases that the options name, opened once.
    fn databases(&self, options: &ComputeOptions) -> Result<Arc<Databases>, HostError> {
        let mut known = self.0.lock().expect("nobody panics who holds it");
        if let Some(databases) = &known.databases {
            return Ok(Arc::clone(databases));
        }
        let databases = Databases::standard(options.own_database.as_deref(), options.database.as_deref());
        let databases = databases.map_err(|error| HostError::Usage(error.to_string()))?;
        let without = options.left_out.as_deref().map(|device| left_out(device, &databases)).transpose()?;
        let databases = Arc::new(match without {
            Some(device) => databases.without(device),
            None => databases,
        });
        known.databases = Some(Arc::clone(&databases));
        Ok(databases)
    }

    /// The model of a device.
    fn of(&self, target: Target, databases: &Arc<Databases>) -> Arc<Model> {
        let mut known = self.0.lock().expect("nobody panics who holds it");
        if let Some((_, model)) = known.models.iter().find(|(other, _)| *other == target) {
            return Arc::clone(model);
        }
        let model = Arc::new(Model::new(target.clone(), Arc::clone(databases)));
        known.models.push((target, Arc::clone(&model)));
        model
    }
}

/// Where the time comes from that the host takes beside a simulated GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostTime {
    /// [`HostCosts`], for each operator and launch.
    #[default]
    Model,
    /// The same with another time for an operator.
    Operator(SimDuration),
    /// The rank's processor time on this machine.
    Measured,
}

impl FromStr for HostTime {
    type Err = String;

    fn from_str(text: &str) -> Result<HostTime, String> {
        match text {
            "model" => Ok(HostTime::Model),
            "measured" => Ok(HostTime::Measured),
            time => time.parse::<Duration>().map(|time| HostTime::Operator(time.0)).map_err(|_| {
                "must be model, measured, or the time that the host takes for an operator, as in \"9 us\"".to_owned()
            }),
        }
    }
}

impl fmt::Display for HostTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostTime::Model => f.write_str("model"),
            HostTime::Measured => f.write_str("measured"),
            HostTime::Operator(time) => write!(f, "{} ps", time.as_ps()),
        }
    }
}

/// What functions of Python take that a program calls, besides what it asks its device for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PythonTime {
    /// Nothing, and they are not counted.
    #[default]
    None,
    /// Each of them so long.
    Call(SimDuration),
}

impl PythonTime {
    /// vLLM 0.33's engine with Python 3.11 takes 0.33 us a call on a server's processor (AMD EPYC, 2026): steps of 8 to 256 requests differ by 27 to 32 us
    /// of processor time and 84 calls for each request. Short functions in caches take less, 0.1 to 0.3 us.
    const MODEL: PythonTime = PythonTime::Call(SimDuration::from_ns(350));
}

impl FromStr for PythonTime {
    type Err = String;

    fn from_str(text: &str) -> Result<PythonTime, String> {
        match text {
            "none" => Ok(PythonTime::None),
            "model" => Ok(PythonTime::MODEL),
            time => time.parse::<Duration>().map(|time| PythonTime::Call(time.0)).map_err(|_| {
                "must be none, model, or the time that a function of Python takes, as in \"350 ns\"".to_owned()
            }),
        }
    }
}

impl fmt::Display for PythonTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PythonTime::None => f.write_str("none"),
            PythonTime::Call(time) => write!(f, "{} ps", time.as_ps()),
        }
    }
}

impl HostTime {
    fn costs(self, python: PythonTime) -> HostCosts {
        let python = match python {
            PythonTime::None => SimDuration::ZERO,
            PythonTime::Call(time) => time,
        };
        match self {
            HostTime::Model | HostTime::Measured => HostCosts { python, ..HostCosts::default() },
            HostTime::Operator(operator) => HostCosts { operator, python, ..HostCosts::default() },
        }
    }
}

/// Where a rank's compute comes from, once that is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Measured,
    Modelled,
    From,
    None,
    /// Of a replay: as it was recorded.
    Recorded,
}

/// What operators cost on the device of a rank.
trait OperatorCosts: Send + Sync {
    /// The cost of one that has the device for itself, and to which the program comes from there, if that matters ([`OperatorCosts::depend_on_coming`]).
    fn estimate(&self, definition: &Definition, coming: Coming<'_>) -> Estimate;

    /// What the device takes for one, once the host has come to it.
    fn on_device(&self, definition: &Definition) -> Estimate;

    /// What attention with such sequences takes on the device.
    fn attention(&self, definition: &Definition, sequences: &[Sequences]) -> Estimate;

    /// A kernel of which the user says what it costs.
    fn by_formula(&self, cost: &KernelCost, definition: &Definition) -> Result<Estimate, String>;

    /// A kernel of no operator, which names so many bytes; 0: it is not known how many.
    fn kernel(&self, bytes: u64) -> Estimate;

    /// A kernel that does nothing but last for so long.
    fn spin(&self, lasts: SimDuration) -> Estimate;

    /// What a copy of `bytes` bytes takes.
    fn copy(&self, kind: CopyKind, bytes: u64) -> Estimate;

    /// Whether the cost of an operator depends on how the program comes to it.
    fn depend_on_coming(&self) -> bool;

    /// The kind of operator, as reports name it.
    fn kind(&self, definition: &Definition) -> &'static str;

    /// Seconds that one of unknown cost takes at least, as it reads and writes its tensors.
    fn at_least(&self, definition: &Definition) -> f64;

    /// Types of elements for which the device has no rate, and those whose rates served them.
    fn substituted(&self) -> Vec<(&'static str, &'static str)>;
}

impl OperatorCosts for Model {
    fn estimate(&self, definition: &Definition, coming: Coming<'_>) -> Estimate {
        Model::estimate(self, definition, coming)
    }

    fn on_device(&self, definition: &Definition) -> Estimate {
        self.operator(definition)
    }

    fn attention(&self, definition: &Definition, sequences: &[Sequences]) -> Estimate {
        Model::attention(self, definition, sequences)
    }

    fn by_formula(&self, cost: &KernelCost, definition: &Definition) -> Result<Estimate, String> {
        Model::by_formula(self, cost, definition)
    }

    fn kernel(&self, bytes: u64) -> Estimate {
        Model::kernel(self, bytes)
    }

    fn spin(&self, lasts: SimDuration) -> Estimate {
        Model::spin(self, lasts)
    }

    fn copy(&self, kind: CopyKind, bytes: u64) -> Estimate {
        Model::copy(self, kind, bytes)
    }

    fn depend_on_coming(&self) -> bool {
        self.knows_host()
    }

    fn kind(&self, definition: &Definition) -> &'static str {
        Model::kind(definition)
    }

    fn at_least(&self, definition: &Definition) -> f64 {
        Model::at_least(self, definition)
    }

    fn substituted(&self) -> Vec<(&'static str, &'static str)> {
        Model::substituted(self)
    }
}

/// Where the compute of a run comes from.
#[derive(Clone)]
pub struct Plan {
    ranks: Vec<RankPlan>,
    earlier: Option<Earlier>,
    /// The source of compute, as the manifest names it.
    name: String,
    models: Vec<(String, String)>,
    /// Of a replay on its own cluster: it is costed with other rows than its run was.
    outdated: Option<String>,
    /// The host's time beside simulated GPUs was asked for.
    host_asked: bool,
    /// What functions of Python take, and whether that was asked for.
    python: PythonTime,
    python_asked: bool,
    /// Of a replay: lines whose compute takes another time.
    lines: Vec<LineScale>,
}

#[derive(Clone)]
struct RankPlan {
    way: Way,
    /// Of a rank whose operators are costed.
    costs: Option<Arc<dyn OperatorCosts>>,
    /// What the user says that kernels cost.
    kernels: Rc<[KernelCost]>,
    /// Costs of operators on CPU tensors on the host CPU, if the CPU is known.
    host_cpu: Option<HostCpu>,
    /// Whether its device is one beside a processor that runs the program.
    is_gpu: bool,
    slowdown: f64,
    /// What the host takes that hands work to the device's streams, unless that is measured.
    host: HostCosts,
    measures_host: bool,
    /// Compute is measured, or was when it was recorded.
    is_measured: bool,
}

/// The host CPU of a GPU, which runs the rank's program.
#[derive(Clone)]
struct HostCpu {
    costs: Arc<dyn OperatorCosts>,
    /// Number of ranks that share one CPU.
    ranks: f64,
}

/// CPU sockets per server, unless the server has more GPUs than [`devices::KnownDevice::gpus_per_cpu`] per socket.
const SOCKETS: u32 = 2;

/// What a record says of its compute.
pub(crate) struct RecordedCompute<'a> {
    pub(crate) manifest: &'a Manifest,
    /// It is replayed on its own cluster.
    pub(crate) at_home: bool,
    /// By rank, whether it is replayed on a device of another model or other rates.
    pub(crate) other_device: Vec<bool>,
    pub(crate) has_operators: bool,
    /// The path of the record.
    pub(crate) path: &'a Path,
}

impl Plan {
    /// The plan of a live run.
    ///
    /// # Errors
    /// If a device cannot be modelled that is to be, or the earlier run cannot be read.
    pub fn live(options: &ComputeOptions, resolved: &Resolved) -> Result<Plan, HostError> {
        let default = |rank: usize| if resolved.rates[rank].is_some() { Way::Modelled } else { Way::Measured };
        Plan::new(options, resolved, default, None)
    }

    /// The plan of a replay.
    ///
    /// # Errors
    /// As [`Plan::live`]; and if the record has no operators that could be costed, or no measured compute.
    pub(crate) fn replay(
        options: &ComputeOptions,
        resolved: &Resolved,
        recorded: &RecordedCompute<'_>,
    ) -> Result<Plan, HostError> {
        let was_modelled = recorded.manifest.compute.split(", ").any(|way| way == "model");
        let models = |rank: usize| recorded.has_operators && (was_modelled || recorded.other_device[rank]);
        let default =
            |rank: usize| if models(rank) && resolved.rates[rank].is_some() { Way::Modelled } else { Way::Recorded };
        if options.source == Some(Compute::Model) && !recorded.has_operators {
            return Err(HostError::Usage(format!(
                "--compute model: the record {} has no operators\nhint: run the program again: this version captures its operators, unless with --compute none",
                recorded.path.display()
            )));
        }
        let was_measured = recorded.manifest.compute.is_empty()
            || recorded.manifest.compute.split(", ").any(|way| way == "measured" || way.starts_with("from="));
        if options.source == Some(Compute::Measured) && !was_measured {
            return Err(HostError::Usage(format!(
                "--compute measured: the compute of the record {} was not measured (--compute {})\nhint: run the program again with --compute measured",
                recorded.path.display(),
                recorded.manifest.compute
            )));
        }
        Plan::new(options, resolved, default, Some(recorded))
    }

    fn new(
        options: &ComputeOptions,
        resolved: &Resolved,
        default: impl Fn(usize) -> Way,
        recorded: Option<&RecordedCompute<'_>>,
    ) -> Result<Plan, HostError> {
        let ways: Vec<Way> = (0..resolved.cluster.devices.len())
            .map(|rank| match &options.source {
                None => default(rank),
                Some(Compute::Measured) => Way::Measured,
                Some(Compute::Model) => Way::Modelled,
                Some(Compute::From(_)) => Way::From,
                Some(Compute::None) => Way::None,
            })
            .collect();
        let mut models = Vec::new();
        let costs = if ways.contains(&Way::Modelled) {
            let databases = options.models.databases(options)?;
            models.push(("devices".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
            models.push(("databases".to_owned(), databases.version().to_owned()));
            costs(&ways, resolved, &databases, &options.models)?
        } else if let Some(named) = &options.database {
            return Err(HostError::Usage(format!(
                "--device-db {} has no effect: no device's compute is modelled\nhint: add --compute model",
                named.display()
            )));
        } else if let Some(device) = &options.left_out {
            return Err(HostError::Usage(format!(
                "--leave-out {device} has no effect: no device's compute is modelled\nhint: add --compute model"
            )));
        } else {
            vec![None; ways.len()]
        };
        let host = host_time(options, recorded)?;
        if host != HostTime::Model {
            models.push((HOST_TIME.to_owned(), host.to_string()));
        }
        let python = python_time(options, recorded, host)?;
        if python != PythonTime::None {
            models.push((PYTHON_TIME.to_owned(), python.to_string()));
        }
        let earlier = match &options.source {
            Some(Compute::From(run)) => Some(Earlier::read(run)?),
            _ => None,
        };
        let names: BTreeSet<String> = ways
            .iter()
            .map(|way| match (way, &options.source) {
                (Way::Recorded, _) => recorded.map_or_else(String::new, |recorded| recorded.manifest.compute.clone()),
                (_, Some(source)) => source.to_string(),
                (Way::Modelled, None) => Compute::Model.to_string(),
                (_, None) => Compute::Measured.to_string(),
            })
            .filter(|name| !name.is_empty())
            .collect();
        let was_measured = recorded.is_some_and(|recorded| recorded.manifest.compute == "measured");
        let kernels: Rc<[KernelCost]> = resolved.kernels.as_slice().into();
        let host_cpus = host_cpus(&ways, resolved, options)?;
        let ranks =
            ways.into_iter().zip(costs).zip(host_cpus).enumerate().map(|(rank, ((way, costs), host_cpu))| RankPlan {
                way,
                costs,
                host_cpu,
                kernels: Rc::clone(&kernels),
                is_gpu: is_gpu(resolved, rank),
                slowdown: resolved.cluster.devices[rank].slowdown,
                host: host.costs(python),
                measures_host: host == HostTime::Measured,
                is_measured: way == Way::Measured || way == Way::Recorded && was_measured,
            });
        let name = names.into_iter().collect::<Vec<_>>().join(", ");
        let outdated =
            recorded.filter(|recorded| recorded.at_home).and_then(|recorded| outdated(recorded.manifest, &models));
        let python_asked = options.python.is_some_and(|asked| asked != PythonTime::None);
        let (lines, host_asked) = (options.lines.clone(), options.host.is_some());
        let ranks = ranks.collect();
        Ok(Plan { ranks, earlier, name, models, outdated, host_asked, python, python_asked, lines })
    }

    /// Writes down where compute comes from.
    pub fn describe(&self, manifest: &mut Manifest) {
        manifest.compute.clone_from(&self.name);
        manifest.models = self.models.iter().cloned().collect();
    }

    /// What is asked of the ranks of a live run.
    pub(crate) fn of_ranks(&self) -> Vec<driver::Compute> {
        let of = |rank: &RankPlan| match rank.way {
            Way::Measured | Way::From | Way::Recorded => driver::Compute::Measured,
            Way::Modelled if rank.measures_host => driver::Compute::Measured,
            Way::Modelled => driver::Compute::Modelled,
            Way::None => driver::Compute::None,
        };
        self.ranks.iter().map(of).collect()
    }

    /// Whether calls of Python are to be counted.
    pub(crate) fn counts_python(&self) -> bool {
        self.python != PythonTime::None
    }

    /// Whether any rank's compute is measured.
    pub fn measures(&self) -> bool {
        self.of_ranks().contains(&driver::Compute::Measured)
    }
}

/// Under which name manifests say what the host's time is, where it is not modelled.
const HOST_TIME: &str = "host time";
/// The same of Python's time, where it is charged.
const PYTHON_TIME: &str = "python time";

/// The host time that was asked for, or else that of the record.
fn host_time(options: &ComputeOptions, recorded: Option<&RecordedCompute<'_>>) -> Result<HostTime, HostError> {
    let then = recorded.and_then(|recorded| recorded.manifest.models.get(HOST_TIME)?.parse().ok());
    if let Some(recorded) = recorded
        && options.host == Some(HostTime::Measured)
        && then != Some(HostTime::Measured)
        && recorded.manifest.compute.split(", ").all(|way| way == "model" || way == "none")
    {
        return Err(HostError::Usage(format!(
            "--host-time measured: the host's time was not measured when the record {} was made\nhint: run the program again with --host-time measured",
            recorded.path.display()
        )));
    }
    Ok(options.host.or(then).unwrap_or_default())
}

/// The time of Python's functions that was asked for, or else that of the record.
fn python_time(
    options: &ComputeOptions,
    recorded: Option<&RecordedCompute<'_>>,
    host: HostTime,
) -> Result<PythonTime, HostError> {
    let then = recorded.and_then(|recorded| recorded.manifest.models.get(PYTHON_TIME)?.parse().ok());
    let python = options.python.or(then).unwrap_or_default();
    if host == HostTime::Measured && options.python.is_some() && python != PythonTime::None {
        return Err(HostError::Usage(
            "--python-time has no effect with --host-time measured: what is measured is with Python\nhint: leave one of them out"
                .to_owned(),
        ));
    }
    Ok(python)
}

/// Whether a run was costed with other databases or another version of the models than `now`; what the user chooses does not count.
fn outdated(manifest: &Manifest, now: &[(String, String)]) -> Option<String> {
    let chosen = |name: &str| [HOST_TIME, PYTHON_TIME].contains(&name);
    let differs = |(name, version): &&(String, String)| {
        !chosen(name) && manifest.models.get(name).is_some_and(|then| then != version)
    };
    now.iter().any(|model| differs(&model)).then(|| {
        "operators are costed with other databases, or another version of the models, than when the record was made: figures may differ from those of its run".to_owned()
    })
}

/// A device of a model's name, or of a library for such devices.
fn is_gpu(resolved: &Resolved, rank: usize) -> bool {
    match resolved.models[rank].as_deref().map(devices::find) {
        Some(Ok(device)) => device.kind == DeviceKind::Gpu,
        _ => resolved.cluster.backend.name == "nccl",
    }
}

/// The whole name of a device whose rows are to be left out.
fn left_out<'a>(name: &'a str, databases: &Databases) -> Result<&'a str, HostError> {
    let whole = devices::find(name).map_or(name, |device| device.name.as_str());
    if databases.devices().contains(whole) {
        return Ok(whole);
    }
    Err(HostError::Usage(format!(
        "--leave-out {name}: no database has operators measured on it\nhint: `uniference devices list` shows of which devices there are some"
    )))
}

/// The host CPU of each rank's GPU, for ranks with modelled compute and a known host CPU. The ranks of a server share
/// its CPUs equally.
fn host_cpus(ways: &[Way], resolved: &Resolved, options: &ComputeOptions) -> Result<Vec<Option<HostCpu>>, HostError> {
    let devices = &resolved.cluster.devices;
    let mut on_host: BTreeMap<u32, u32> = BTreeMap::new();
    for device in devices {
        *on_host.entry(resolved.cluster.topology.server(device.host)).or_default() += 1;
    }
    let host_cpu = |rank: usize| {
        let known =
            resolved.host_cpus[rank].as_deref().filter(|_| ways[rank] == Way::Modelled && is_gpu(resolved, rank));
        let Some(known) = known.and_then(|name| devices::find(name).ok()) else { return Ok(None) };
        let Some((peaks, memory)) = known.peaks().zip(known.bandwidth()) else { return Ok(None) };
        let rates = Rates { peaks, memory, launch: SimDuration::ZERO };
        let target = Target { name: Some(known.name.clone()), rates };
        let costs: Arc<dyn OperatorCosts> = options.models.of(target, &options.models.databases(options)?);
        let ranks = on_host[&resolved.cluster.topology.server(devices[rank].host)];
        let ranks = (f64::from(ranks) / f64::from(SOCKETS)).clamp(1.0, known.gpus_per_cpu().into());
        Ok(Some(HostCpu { costs, ranks }))
    };
    (0..devices.len()).map(host_cpu).collect()
}

/// The model of each rank's device that is to have one; ranks on like devices share theirs.
fn costs(
    ways: &[Way],
    resolved: &Resolved,
    databases: &Arc<Databases>,
    models: &Models,
) -> Result<Vec<Option<Arc<dyn OperatorCosts>>>, HostError> {
    let mut costs: Vec<Option<Arc<dyn OperatorCosts>>> = Vec::new();
    for (rank, way) in ways.iter().enumerate() {
        if *way != Way::Modelled {
            costs.push(None);
            continue;
        }
        let Some(rates) = resolved.rates[rank] else {
            let device = &resolved.cluster.devices[rank].name;
            return Err(HostError::Usage(format!(
                "--compute model: device `{device}` names neither a `model` nor its rates\nhint: add model = \"NAME\", or peak_flops and memory_bandwidth, to its [[device]] in the cluster file; `uniference devices list` shows the names"
            )));
        };
        let target = Target { name: resolved.models[rank].clone(), rates };
        costs.push(Some(models.of(target, databases)));
    }
    Ok(costs)
}
