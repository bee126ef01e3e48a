//! Owns the devices of a cluster file: their names, and their hosts.

use super::raw::{RawDevice, RawPower};
use super::source::Source;
use crate::devices::{self as table, KnownDevice};
use crate::diagnostic::Diagnostic;
use crate::units::Watts;
use std::collections::{BTreeMap, BTreeSet};
use toml::Spanned;
use uniference_sim::cluster::Device;
use uniference_sim::device::{Power, Rates};
use uniference_sim::ids::HostId;
use uniference_sim::time::{Bytes, SimDuration};

/// Maximum number of devices; a larger number is regarded as a mistake in the file.
pub(super) const MOST_DEVICES: u64 = 1 << 20;

/// A host, and the number of its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) devices: u32,
}

/// Hosts in the order in which the file first names them, and one device per rank.
pub(super) fn resolve(raw: &[Spanned<RawDevice>], source: &Source) -> Result<(Vec<Host>, Vec<Device>), Diagnostic> {
    if raw.is_empty() {
        let hint = "add a [[device]] with a name";
        return Err(source.error("the cluster has no devices", 0..0).hint(hint));
    }
    let mut cluster = Devices::default();
    for device in raw {
        check(device, source)?;
        cluster.add(device, source)?;
    }
    Ok((cluster.hosts, cluster.devices))
}

/// The properties of a `[[device]]`: its keys, and the table's figures for missing keys.
struct Hardware {
    rates: Option<Rates>,
    memory: Option<Bytes>,
    /// The name of the device's operators in a database.
    model: Option<String>,
    power: Option<Power>,
}

/// The properties of a `[[device]]`.
///
/// # Errors
/// If the model is not in the table, and the file gives no rates. With rates in the file, the model's name is the name
/// of its operators in the user's database.
fn hardware(raw: &RawDevice, source: &Source) -> Result<Hardware, Diagnostic> {
    let peaks = raw.peak_flops.as_ref().map(|peaks| peaks.get_ref().resolved());
    let bandwidth = raw.memory_bandwidth.as_ref().map(|rate| rate.get_ref().0.bytes_per_second());
    let known = match &raw.model {
        Some(model) => match table::find(model.get_ref()) {
            Ok(known) => Some(known),
            Err(_) if peaks.is_some() && bandwidth.is_some() && !model.get_ref().trim().is_empty() => None,
            Err(error) => {
                let end = if error.hint.ends_with('?') { "" } else { "." };
                let hint = format!(
                    "{}{end} For a device that is not in the table also give its rates: `peak_flops` and `memory_bandwidth`",
                    error.hint
                );
                return Err(source.error(error.message, model.span()).hint(hint));
            }
        },
        None => None,
    };
    let rates = peaks.or(known.and_then(KnownDevice::peaks)).zip(bandwidth.or(known.and_then(KnownDevice::bandwidth)));
    if let (Some(model), None) = (&raw.model, rates) {
        let name = &known.expect("others have rates").name;
        let hint = "give `peak_flops` and `memory_bandwidth`; `uniference devices show` says what is known";
        return Err(source.error(format!("the rates of `{name}` are not all known"), model.span()).hint(hint));
    }
    let launch = raw.launch.as_ref().map(|launch| launch.get_ref().0).or(known.and_then(KnownDevice::launch));
    let launch = launch.unwrap_or(SimDuration::ZERO);
    let (power, clock) = power(raw, known, source)?;
    if let Some(given) = raw.power.as_ref().filter(|power| power.get_ref().cap.is_some() && rates.is_none()) {
        let hint = "give `peak_flops` and `memory_bandwidth` too, or the `model` of the device; or remove `cap`";
        return Err(source.error("a `cap` slows arithmetic, whose rate is not known", given.span()).hint(hint));
    }
    Ok(Hardware {
        rates: rates.map(|(peaks, memory)| Rates { peaks: peaks.scaled(clock), memory, launch }),
        power,
        memory: raw.memory.map(|memory| memory.0).or(known.and_then(KnownDevice::memory)),
        model: known.map(|known| known.name.clone()).or(raw.model.as_ref().map(|model| model.get_ref().clone())),
    })
}

/// The power of a device, and the fraction of its clock under its power cap. The power of a busy device is its maximum,
/// unless another value is known.
///
/// # Errors
/// If figures contradict each other, or if a device has a cap and its power is unknown.
fn power(raw: &RawDevice, known: Option<&KnownDevice>, source: &Source) -> Result<(Option<Power>, f64), Diagnostic> {
    let watts = |of: fn(&RawPower) -> Option<Watts>| {
        raw.power.as_ref().and_then(|power| of(power.get_ref())).map(|watts| watts.0)
    };
    let (idle, busy, cap) = (watts(|power| power.idle), watts(|power| power.busy), watts(|power| power.cap));
    let of_table = |of: fn(&KnownDevice) -> Option<f64>| known.and_then(of);
    let idle = idle.or(of_table(|known| known.idle_w));
    let busy = busy.or(of_table(|known| known.busy_w)).or(of_table(|known| known.cap_w));
    let refused = |message: String, hint: &str| {
        let span = raw.power.as_ref().map_or(0..0, Spanned::span);
        Err(source.error(message, span).hint(hint))
    };
    match (idle, busy, cap) {
        (Some(idle), Some(busy), _) if idle > busy => refused(
            format!("a device draws no less when it is busy ({busy} W) than idle ({idle} W)"),
            "correct `idle` or `busy`",
        ),
        (Some(idle), Some(busy), Some(cap)) if cap > idle => {
            let power = Power { idle, busy };
            Ok((Some(Power { idle, busy: busy.min(cap) }), power.clock_under(cap)))
        }
        (Some(idle), Some(_), Some(cap)) => {
            let message = format!("a `cap` of {cap} W leaves nothing to compute with: the device draws {idle} W idle");
            refused(message, "give a cap above what it draws idle")
        }
        (Some(idle), Some(busy), None) => Ok((Some(Power { idle, busy }), 1.0)),
        (_, _, Some(_)) => refused(
            "what a `cap` leaves is not known".to_owned(),
            "give `idle` and `busy` too; `uniference devices show` says what is known of a model",
        ),
        _ => Ok((None, 1.0)),
    }
}

/// The full name of the model of each rank's device, if the file names one.
pub(super) fn models(raw: &[Spanned<RawDevice>], source: &Source) -> Result<Vec<Option<String>>, Diagnostic> {
    let models = raw.iter().map(|raw| Ok(hardware(raw.get_ref(), source)?.model)).collect::<Result<Vec<_>, _>>()?;
    let mut models = models.into_iter();
    Ok(by_rank(raw, |_| models.next().expect("one for each")))
}

/// Values of devices that the file leaves open, for people.
pub(super) fn assumed(raw: &[Spanned<RawDevice>]) -> Vec<String> {
    let of_device = |raw: &Spanned<RawDevice>| {
        let raw = raw.get_ref();
        let known = raw.model.as_ref().and_then(|model| table::find(model.get_ref()).ok());
        let name = raw.name.get_ref();
        let without_rates = raw.model.is_none() && raw.peak_flops.is_none() && raw.slowdown.is_none();
        let without_memory = raw.memory.is_none() && known.and_then(KnownDevice::memory).is_none();
        [
            without_rates
                .then(|| format!("device `{name}` computes as fast as this machine (no `model`, `slowdown` or rates)")),
            without_memory.then(|| format!("device `{name}` has memory without limit (no `memory`)")),
        ]
    };
    raw.iter().flat_map(of_device).flatten().collect()
}

/// Whether all devices are models whose programs communicate by NCCL.
pub(super) fn all_use_nccl(raw: &[Spanned<RawDevice>]) -> bool {
    let uses_nccl = |model: &Spanned<String>| table::find(model.get_ref()).is_ok_and(KnownDevice::uses_nccl);
    !raw.is_empty() && raw.iter().all(|device| device.get_ref().model.as_ref().is_some_and(uses_nccl))
}

/// The number of CPU cores of each rank's device, if the file gives it.
pub(super) fn cores(raw: &[Spanned<RawDevice>]) -> Vec<Option<u32>> {
    by_rank(raw, |raw| raw.cores.as_ref().map(|cores| *cores.get_ref()))
}

/// Full name of the host CPU of each rank's device, by rank: the CPU in the file, or else the CPU that servers with
/// this device usually have.
///
/// # Errors
/// If the table of devices does not have a CPU of the name in the file, or the device is a CPU itself.
pub(super) fn host_cpus(raw: &[Spanned<RawDevice>], source: &Source) -> Result<Vec<Option<String>>, Diagnostic> {
    let host_cpu = |raw: &RawDevice| {
        let model = raw.model.as_ref().and_then(|model| table::find(model.get_ref()).ok());
        let Some(said) = &raw.host_cpu else {
            return Ok(model.and_then(KnownDevice::host_cpu).map(str::to_owned));
        };
        if model.is_some_and(|model| model.kind == table::DeviceKind::Cpu) {
            let hint = "remove the key; it names the CPU of a GPU's server";
            return Err(source.error("a CPU has no `host_cpu`", said.span()).hint(hint));
        }
        if said.get_ref() == "none" {
            return Ok(None);
        }
        match table::find(said.get_ref()) {
            Ok(known) if known.kind == table::DeviceKind::Cpu => Ok(Some(known.name.clone())),
            Ok(known) => {
                let hint = "name a CPU, or \"none\"; `uniference devices list` shows CPUs with the kind cpu";
                Err(source.error(format!("`{}` is not a CPU", known.name), said.span()).hint(hint))
            }
            Err(error) => Err(source.error(error.message, said.span()).hint(error.hint)),
        }
    };
    let found = raw.iter().map(|raw| host_cpu(raw.get_ref())).collect::<Result<Vec<_>, _>>()?;
    let mut found = found.into_iter();
    Ok(by_rank(raw, |_| found.next().expect("one for each")))
}

/// The worker that runs each rank, if the file names one.
pub(super) fn workers(raw: &[Spanned<RawDevice>]) -> Vec<Option<String>> {
    by_rank(raw, |raw| raw.at.as_ref().map(|at| at.get_ref().clone()))
}

/// The result of `of` for each `[[device]]` table, repeated for each device of the table.
fn by_rank<T: Clone>(raw: &[Spanned<RawDevice>], mut of: impl FnMut(&RawDevice) -> T) -> Vec<T> {
    let count = |raw: &RawDevice| raw.count.as_ref().map_or(1, |count| *count.get_ref() as usize);
    raw.iter().flat_map(|device| std::iter::repeat_n(of(device.get_ref()), count(device.get_ref()))).collect()
}

fn check(device: &Spanned<RawDevice>, source: &Source) -> Result<(), Diagnostic> {
    let raw = device.get_ref();
    if raw.name.get_ref().trim().is_empty() {
        return Err(source
            .error("the name of a device must not be empty", raw.name.span())
            .hint("give it a name, for example name = \"board\""));
    }
    if let Some(at) = raw.at.as_ref().filter(|at| !is_worker_name(at.get_ref())) {
        let hint = "give the --name of a worker, for example at = \"worker-a\"";
        let message = "`at` must be 1 to 64 letters, digits, `-`, `_` or `.`";
        return Err(source.error(message, at.span()).hint(hint));
    }
    if let (Some(_), Some(slowdown)) = (&raw.at, raw.slowdown.as_ref().filter(|slowdown| *slowdown.get_ref() != 1.0)) {
        let hint = "remove `slowdown`: what the worker's machine takes is what the device takes; or remove `at`";
        return Err(source.error("a device `at` a worker has no `slowdown`", slowdown.span()).hint(hint));
    }
    if let Some(count) = raw.count.as_ref().filter(|count| *count.get_ref() == 0) {
        return Err(source
            .error("`count` must be at least 1", count.span())
            .hint("remove the [[device]] if it is not needed"));
    }
    if let Some(slowdown) = raw.slowdown.as_ref().filter(|s| !(s.get_ref().is_finite() && *s.get_ref() > 0.0)) {
        let message = format!("`slowdown` must be greater than 0, not {}", slowdown.get_ref());
        let hint = "1 is the speed of this machine, 2 is half that speed";
        return Err(source.error(message, slowdown.span()).hint(hint));
    }
    if let Some(share) = raw.communication_share.as_ref().filter(|share| !(0.0..1.0).contains(share.get_ref())) {
        let message = format!("`communication_share` must be at least 0 and less than 1, not {}", share.get_ref());
        let hint = "0.1 takes a tenth of the device while its rank communicates";
        return Err(source.error(message, share.span()).hint(hint));
    }
    if let Some(price) = raw.price.as_ref().filter(|p| !(p.get_ref().is_finite() && *p.get_ref() >= 0.0)) {
        let message = format!("`price` must not be negative, and is {}", price.get_ref());
        return Err(source.error(message, price.span()).hint("give what the device costs an hour, for example 2.5"));
    }
    if let Some(cores) = raw.cores.as_ref().filter(|cores| *cores.get_ref() == 0) {
        let hint = "give the number of cores that the threads of a rank may use at once, or remove the key";
        return Err(source.error("`cores` must be at least 1", cores.span()).hint(hint));
    }
    if let (None, (Some(span), None) | (None, Some(span))) =
        (&raw.model, (raw.peak_flops.as_ref().map(Spanned::span), raw.memory_bandwidth.as_ref().map(Spanned::span)))
    {
        let hint = "give both, or neither, or the `model` of the device";
        return Err(source.error("`peak_flops` and `memory_bandwidth` must be given together", span).hint(hint));
    }
    if let Some(launch) = raw.launch.as_ref().filter(|_| raw.model.is_none() && raw.peak_flops.is_none()) {
        let hint = "give `peak_flops` and `memory_bandwidth` too, or the `model` of the device";
        return Err(source.error("`launch` requires the rates of the device", launch.span()).hint(hint));
    }
    match (&raw.per_host, &raw.host) {
        (Some(per_host), None) => {
            let hint = "add a host name, for example host = \"node\"; the hosts are then node.0, node.1 and so on";
            Err(source.error("`per_host` requires `host`", per_host.span()).hint(hint))
        }
        (Some(per_host), _) if *per_host.get_ref() == 0 => Err(source
            .error("`per_host` must be at least 1", per_host.span())
            .hint("give the number of devices on each host")),
        _ => Ok(()),
    }
}

/// Whether a worker can have this name.
pub fn is_worker_name(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=64).contains(&name.len()) && name.chars().all(fits)
}

#[derive(Default)]
struct Devices {
    hosts: Vec<Host>,
    devices: Vec<Device>,
    names: BTreeSet<String>,
    /// Hosts by name.
    places: BTreeMap<String, HostId>,
}

impl Devices {
    fn add(&mut self, device: &Spanned<RawDevice>, source: &Source) -> Result<(), Diagnostic> {
        let raw = device.get_ref();
        let count = raw.count.as_ref().map_or(1, |count| *count.get_ref());
        if self.devices.len() as u64 + u64::from(count) > MOST_DEVICES {
            let span = raw.count.as_ref().map_or(device.span(), Spanned::span);
            return Err(source.error(format!("more than {MOST_DEVICES} devices"), span));
        }
        let hardware = hardware(raw, source)?;
        for index in 0..count {
            let name = match raw.count {
                Some(_) => format!("{}.{index}", raw.name.get_ref()),
                None => raw.name.get_ref().clone(),
            };
            if !self.names.insert(name.clone()) {
                let hint = "give every device a unique name; `count` creates several devices";
                return Err(source.error(format!("duplicate device name `{name}`"), raw.name.span()).hint(hint));
            }
            let host = self.host(raw, index, &name);
            let slowdown = raw.slowdown.as_ref().map_or(1.0, |slowdown| *slowdown.get_ref());
            self.devices.push(Device {
                slowdown,
                communication: raw.communication_share.as_ref().map_or(0.0, |share| *share.get_ref()),
                power: hardware.power,
                price: raw.price.as_ref().map(|price| *price.get_ref()),
                memory: hardware.memory,
                rates: hardware.rates,
                ..Device::new(name, host)
            });
        }
        Ok(())
    }

    /// The host of a device: a host of the device's own name, unless the file names one.
    fn host(&mut self, raw: &RawDevice, index: u32, device: &str) -> HostId {
        let name = match (&raw.host, &raw.per_host) {
            (Some(host), Some(per_host)) => format!("{}.{}", host.get_ref(), index / per_host.get_ref()),
            (Some(host), None) => host.get_ref().clone(),
            (None, _) => device.to_owned(),
        };
        let next = HostId::from(self.hosts.len());
        let id = *self.places.entry(name.clone()).or_insert(next);
        if id == next {
            self.hosts.push(Host { name, devices: 0 });
        }
        self.hosts[id.index()].devices += 1;
        id
    }
}
