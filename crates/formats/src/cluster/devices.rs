//! Owns the devices of a cluster file: their names, and the hosts they are on.

use super::raw::RawDevice;
use super::source::Source;
use crate::diagnostic::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};
use toml::Spanned;
use uniference_sim::cluster::Device;
use uniference_sim::ids::HostId;

/// So many devices are a mistake in a file rather than a cluster.
const MOST_DEVICES: u64 = 1 << 20;

/// A host, and how many devices are on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) devices: u32,
}

/// Hosts in the order in which the file first names them, and one device for every rank.
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

/// What a device can do in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations; above zero.
    pub flops: f64,
    /// Bytes of its memory; above zero.
    pub memory: f64,
}

/// The rates of every rank's device, where the file names them.
pub(super) fn rates(raw: &[Spanned<RawDevice>]) -> Vec<Option<Rates>> {
    by_rank(raw, |raw| {
        let flops = raw.peak_flops.as_ref().map(|flops| flops.get_ref().0);
        let memory = raw.memory_bandwidth.as_ref().map(|rate| rate.get_ref().0.bytes_per_second());
        flops.zip(memory).map(|(flops, memory)| Rates { flops, memory })
    })
}

/// The number of processor cores of every rank's device, where the file names it.
pub(super) fn cores(raw: &[Spanned<RawDevice>]) -> Vec<Option<u32>> {
    by_rank(raw, |raw| raw.cores.as_ref().map(|cores| *cores.get_ref()))
}

/// What `of` finds in each `[[device]]`, once for each of its devices.
fn by_rank<T: Clone>(raw: &[Spanned<RawDevice>], of: impl Fn(&RawDevice) -> T) -> Vec<T> {
    let count = |raw: &RawDevice| raw.count.as_ref().map_or(1, |count| *count.get_ref() as usize);
    raw.iter().flat_map(|device| std::iter::repeat_n(of(device.get_ref()), count(device.get_ref()))).collect()
}

fn check(device: &Spanned<RawDevice>, source: &Source) -> Result<(), Diagnostic> {
    let raw = device.get_ref();
    if raw.name.get_ref().trim().is_empty() {
        return Err(source.error("a device needs a name", raw.name.span()).hint("for instance name = \"board\""));
    }
    if let Some(count) = raw.count.as_ref().filter(|count| *count.get_ref() == 0) {
        return Err(source.error("0 devices have nothing to run on", count.span()).hint("leave the [[device]] out"));
    }
    if let Some(slowdown) = raw.slowdown.as_ref().filter(|s| !(s.get_ref().is_finite() && *s.get_ref() > 0.0)) {
        let message = format!("a slowdown of {} is not above zero", slowdown.get_ref());
        let hint = "1 is as fast as this machine, 2 takes twice as long";
        return Err(source.error(message, slowdown.span()).hint(hint));
    }
    if let Some(cores) = raw.cores.as_ref().filter(|cores| *cores.get_ref() == 0) {
        let hint = "give the number of cores that a rank's threads may use at once, or leave the key out";
        return Err(source.error("`cores` must be at least 1", cores.span()).hint(hint));
    }
    if let (Some(span), None) | (None, Some(span)) =
        (raw.peak_flops.as_ref().map(Spanned::span), raw.memory_bandwidth.as_ref().map(Spanned::span))
    {
        let hint = "give both peak_flops and memory_bandwidth, or neither";
        return Err(source.error("a roofline has two rates", span).hint(hint));
    }
    match (&raw.per_host, &raw.host) {
        (Some(per_host), None) => {
            let hint = "add for instance host = \"node\": the hosts are then node.0, node.1 and so on";
            Err(source.error("hosts with several devices need a name", per_host.span()).hint(hint))
        }
        (Some(per_host), _) if *per_host.get_ref() == 0 => {
            Err(source.error("a host needs at least one of the devices", per_host.span()).hint("use 1 or more"))
        }
        _ => Ok(()),
    }
}

#[derive(Default)]
struct Devices {
    hosts: Vec<Host>,
    devices: Vec<Device>,
    names: BTreeSet<String>,
    /// The hosts by name.
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
        for index in 0..count {
            let name = match raw.count {
                Some(_) => format!("{}.{index}", raw.name.get_ref()),
                None => raw.name.get_ref().clone(),
            };
            if !self.names.insert(name.clone()) {
                let hint = "every device needs a name of its own; `count` makes several of one name";
                return Err(source.error(format!("there are two devices named `{name}`"), raw.name.span()).hint(hint));
            }
            let host = self.host(raw, index, &name);
            let slowdown = raw.slowdown.as_ref().map_or(1.0, |slowdown| *slowdown.get_ref());
            let memory = raw.memory.map(|memory| memory.0);
            self.devices.push(Device { name, host, slowdown, memory, spells: Vec::new(), crash: None });
        }
        Ok(())
    }

    /// The host of a device: its own, of the same name, unless the file says otherwise.
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
