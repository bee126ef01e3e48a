//! Owns the source of compute durations, by rank: the source of `--compute`, or else of each device's keys.
//!
//! `uniference-lowering` applies the sources to slices; module `nodes` costs nodes of traces and generated jobs.

mod nodes;

pub(crate) use nodes::NodeModels;

use crate::input::open_record;
use crate::overlap::lined;
use crate::results::RECORD;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use uniference_costs::database::Databases;
use uniference_costs::model::{Model, Target};
use uniference_formats::cluster::{KernelCost, Resolved};
use uniference_formats::devices::{self, DeviceKind};
use uniference_formats::lines::LineScale;
use uniference_formats::record::RecordReader;
use uniference_formats::report::Manifest;
use uniference_formats::units::Duration;
use uniference_host::error::HostError;
use uniference_host::live::driver;
use uniference_lowering::compute::{Costing, Earlier, HostCpu, OperatorCosts, RankPlan, Sources, Way};
use uniference_sim::device::{HostCosts, Rates};
use uniference_sim::time::SimDuration;

/// Source of compute durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compute {
    /// The rank's CPU time on this machine.
    Measured,
    /// The cost of its operators on the rank's device.
    Model,
    /// The duration in an earlier run, given by its run folder.
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
            _ => Err("must be measured, model, from=RUN (the run folder of an earlier run) or none".to_owned()),
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

/// Options for the source of compute durations.
#[derive(Clone, Debug, Default)]
pub struct ComputeOptions {
    /// Source of compute; `None`: each device's keys.
    pub source: Option<Compute>,
    /// Databases of measured operators.
    pub databases: DatabaseOptions,
    /// Time of the host that launches work on CUDA streams of simulated GPUs; `None`: [`HostTime::Model`], or the
    /// recorded one in a replay.
    pub host: Option<HostTime>,
    /// Time of the program's Python functions; `None`: [`PythonTime::None`], or the recorded one in a replay.
    pub python: Option<PythonTime>,
    /// For a replay: lines whose compute is scaled.
    pub lines: Vec<LineScale>,
}

/// Options for the databases of measured operators.
#[derive(Clone, Debug, Default)]
pub struct DatabaseOptions {
    /// The user's own database, read if it exists.
    pub own: Option<PathBuf>,
    /// Another database, whose rows have precedence over all others.
    pub named: Option<PathBuf>,
    /// A device model whose rows are ignored in all databases.
    pub left_out: Option<String>,
    /// Device models, shared with later simulations that have the same databases.
    pub models: Models,
}

/// Models of devices, shared by several simulations with the same databases: each device's rows are evaluated once.
/// Sharing does not change the estimates.
#[derive(Clone, Debug, Default)]
pub struct Models(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    databases: Option<Arc<Databases>>,
    models: Vec<(Target, Arc<Model>)>,
}

impl DatabaseOptions {
    /// The databases, opened once for all simulations that share [`DatabaseOptions::models`].
    fn open(&self) -> Result<Arc<Databases>, HostError> {
        let mut known = self.models.0.lock().expect("no holder of this lock panics");
        if let Some(databases) = &known.databases {
            return Ok(Arc::clone(databases));
        }
        let databases = Databases::standard(self.own.as_deref(), self.named.as_deref());
        let databases = databases.map_err(|error| HostError::Usage(error.to_string()))?;
        let without = self.left_out.as_deref().map(|device| left_out(device, &databases)).transpose()?;
        let databases = Arc::new(match without {
            Some(device) => databases.without(device),
            None => databases,
        });
        known.databases = Some(Arc::clone(&databases));
        Ok(databases)
    }
}

impl Models {
    /// The model of a device.
    fn of(&self, target: Target, databases: &Arc<Databases>) -> Arc<Model> {
        let mut known = self.0.lock().expect("no holder of this lock panics");
        if let Some((_, model)) = known.models.iter().find(|(other, _)| *other == target) {
            return Arc::clone(model);
        }
        let model = Arc::new(Model::new(target.clone(), Arc::clone(databases)));
        known.models.push((target, Arc::clone(&model)));
        model
    }
}

/// Source of the time of the host of a simulated GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostTime {
    /// [`HostCosts`], for each operator and launch.
    #[default]
    Model,
    /// [`HostCosts`] with this time per operator.
    Operator(SimDuration),
    /// The rank's CPU time on this machine.
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

/// Source of the time of Python functions that a program calls, without the host time of operators and launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PythonTime {
    /// Python functions have no duration, and are not counted.
    #[default]
    None,
    /// The same duration for each call.
    Call(SimDuration),
}

impl PythonTime {
    /// vLLM 0.33's engine with Python 3.11 takes 0.33 us per call on a server CPU (AMD EPYC, 2026): steps of 8 to 256
    /// requests differ by 27 to 32 us of CPU time and 84 calls per request. Short functions in caches need less, 0.1 to
    /// 0.3 us.
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

/// Sources of the compute of a run, and their description.
#[derive(Clone)]
pub struct Plan {
    sources: Sources,
    /// Source of compute in the manifest.
    name: String,
    models: Vec<(String, String)>,
    /// Time of Python functions.
    python: PythonTime,
}

/// CPU sockets per server, unless the server has more GPUs than [`devices::KnownDevice::gpus_per_cpu`] per socket.
const SOCKETS: u32 = 2;

/// Compute of a recorded run.
pub(crate) struct RecordedCompute<'a> {
    pub(crate) manifest: &'a Manifest,
    /// Whether it is replayed on the recorded cluster.
    pub(crate) at_home: bool,
    /// Whether each rank is replayed on a device of another model or with other rates.
    pub(crate) other_device: Vec<bool>,
    pub(crate) has_operators: bool,
    /// The path of the record.
    pub(crate) path: &'a Path,
}

impl Plan {
    /// The plan of a live run.
    ///
    /// # Errors
    /// If a device that is to be modelled has no rates, or the earlier run cannot be read.
    pub fn live(options: &ComputeOptions, resolved: &Resolved) -> Result<Plan, HostError> {
        let default = |rank: usize| if resolved.rates[rank].is_some() { Way::Modelled } else { Way::Measured };
        Plan::new(options, resolved, default, None)
    }

    /// The plan of a replay.
    ///
    /// # Errors
    /// As [`Plan::live`]; and if the record has no operators to cost, or no measured compute.
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
            let databases = options.databases.open()?;
            models.push(("devices".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
            models.push(("databases".to_owned(), databases.version().to_owned()));
            costs(&ways, resolved, &databases, &options.databases.models)?
        } else if let Some(named) = &options.databases.named {
            return Err(HostError::Usage(format!(
                "--device-db {} has no effect: no device's compute is modelled\nhint: add --compute model",
                named.display()
            )));
        } else if let Some(device) = &options.databases.left_out {
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
            Some(Compute::From(run)) => Some(earlier(run)?),
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
        let host_cpus = host_cpus(&ways, resolved, &options.databases)?;
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
        let sources = Sources { ranks: ranks.collect(), earlier, outdated, host_asked, python_asked, lines };
        Ok(Plan { sources, name, models, python })
    }

    /// Writes the source of compute into the manifest.
    pub fn describe(&self, manifest: &mut Manifest) {
        manifest.compute.clone_from(&self.name);
        manifest.models = self.models.iter().cloned().collect();
    }

    /// Compute mode of each rank of a live run.
    pub(crate) fn of_ranks(&self) -> Vec<driver::Compute> {
        let of = |rank: &RankPlan| match rank.way {
            Way::Measured | Way::From | Way::Recorded => driver::Compute::Measured,
            Way::Modelled if rank.measures_host => driver::Compute::Measured,
            Way::Modelled => driver::Compute::Modelled,
            Way::None => driver::Compute::None,
        };
        self.sources.ranks.iter().map(of).collect()
    }

    /// Costing of one run.
    pub(crate) fn costing(&self) -> Rc<RefCell<Costing>> {
        Costing::new(self.sources.clone())
    }

    /// Whether Python calls are counted.
    pub(crate) fn counts_python(&self) -> bool {
        self.python != PythonTime::None
    }

    /// Whether any rank's compute is measured.
    pub fn measures(&self) -> bool {
        self.of_ranks().contains(&driver::Compute::Measured)
    }
}

/// The slices of the run in a run folder.
fn earlier(run: &Path) -> Result<Earlier, HostError> {
    let file: BufReader<File> = BufReader::new(open_record(&run.join(RECORD))?);
    let (ranks, rest) = RecordReader::open(file)?.by_rank();
    let earlier = Earlier::new(ranks.into_iter().map(lined));
    rest.finish()?;
    Ok(earlier)
}

/// Manifest key of the host time, if it is not modelled.
const HOST_TIME: &str = "host time";
/// Manifest key of the Python time, if it is charged.
const PYTHON_TIME: &str = "python time";

/// The requested host time, or else that of the record.
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

/// The requested time of Python functions, or else that of the record.
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

/// A warning if a run was costed with other databases or another model version than `now`; times that the user chooses
/// are not compared.
fn outdated(manifest: &Manifest, now: &[(String, String)]) -> Option<String> {
    let chosen = |name: &str| [HOST_TIME, PYTHON_TIME].contains(&name);
    let differs = |(name, version): &&(String, String)| {
        !chosen(name) && manifest.models.get(name).is_some_and(|then| then != version)
    };
    now.iter().any(|model| differs(&model)).then(|| {
        "operators are costed with other databases, or another version of the models, than when the record was made: figures may differ from those of its run".to_owned()
    })
}

/// Whether the device model is a GPU, or, if the model is unknown, the backend is NCCL.
fn is_gpu(resolved: &Resolved, rank: usize) -> bool {
    match resolved.models[rank].as_deref().map(devices::find) {
        Some(Ok(device)) => device.kind == DeviceKind::Gpu,
        _ => resolved.cluster.backend.name == "nccl",
    }
}

/// The full name of a device whose rows are ignored.
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
fn host_cpus(
    ways: &[Way],
    resolved: &Resolved,
    databases: &DatabaseOptions,
) -> Result<Vec<Option<HostCpu>>, HostError> {
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
        let costs: Arc<dyn OperatorCosts> = databases.models.of(target, &databases.open()?);
        let ranks = on_host[&resolved.cluster.topology.server(devices[rank].host)];
        let ranks = (f64::from(ranks) / f64::from(SOCKETS)).clamp(1.0, known.gpus_per_cpu().into());
        Ok(Some(HostCpu { costs, ranks }))
    };
    (0..devices.len()).map(host_cpu).collect()
}

/// The device model of each rank with modelled compute; ranks on equal devices share it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::cluster::{Choices, ClusterFile};

    /// Two CPUs per server with x86 CPUs; one Grace per two GPUs, 36 in an NVL72.
    #[test]
    fn ranks_of_a_server_share_its_cpus() {
        let shares = |model: &str, count: u32| {
            let network = format!("preset = \"rail\"\nper_server = {count}\nfabric = \"nvlink4\"");
            let text =
                format!("[[device]]\nname = \"a\"\nmodel = \"{model}\"\ncount = {count}\n[network]\n{network}\n");
            let file = ClusterFile::parse("test", &text, &[]).unwrap();
            let resolved = file.resolve(&Choices::default()).unwrap();
            let ways = vec![Way::Modelled; count as usize];
            let cpus = host_cpus(&ways, &resolved, &DatabaseOptions::default()).unwrap();
            cpus[0].as_ref().unwrap().ranks
        };
        let of = |model| [1, 2, 4, 8, 72].map(|count| shares(model, count));
        assert_eq!((of("b200"), of("gb200")), ([1.0, 1.0, 2.0, 4.0, 4.0], [1.0, 1.0, 2.0, 2.0, 2.0]));
    }

    #[test]
    fn the_times_of_the_host_and_of_python_are_words_or_times() {
        for (text, time) in [
            ("model", HostTime::Model),
            ("measured", HostTime::Measured),
            ("9 us", HostTime::Operator(SimDuration::from_us(9))),
        ] {
            assert_eq!(text.parse(), Ok(time));
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        assert!("fast".parse::<HostTime>().unwrap_err().contains("\"9 us\""));
        for (text, time) in [
            ("none", PythonTime::None),
            ("model", PythonTime::Call(SimDuration::from_ns(350))),
            ("0.5 us", PythonTime::Call(SimDuration::from_ns(500))),
        ] {
            assert_eq!(text.parse(), Ok(time));
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        assert!("fast".parse::<PythonTime>().unwrap_err().contains("\"350 ns\""));
    }
}
