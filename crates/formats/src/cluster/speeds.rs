//! Owns the keys of a cluster that determine speeds, so that each can be changed by itself.

use toml::{Table, Value};

/// A key that determines a speed, as `--set` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeedKey {
    /// The path of the key: `network.host."orin.2".bandwidth`.
    pub key: String,
    /// The value of the key.
    pub speed: Speed,
}

/// The quantity of a key that determines a speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// Factor on the duration of a device's compute.
    Slowdown,
    /// Rate of a link in bytes per second.
    Bandwidth,
    /// The ratio of the hosts' bandwidth at a switch to the bandwidth of the switch's uplinks.
    Oversubscription,
    /// Latency of a link.
    Latency,
    /// A list of temporary slowdowns.
    Disturbance,
}

/// The speed keys of a whole cluster, as in [`Resolved::toml`](super::Resolved::toml), in the order of the text.
///
/// # Panics
/// If `cluster` is no resolved cluster.
pub fn speed_keys(cluster: &str) -> Vec<SpeedKey> {
    let root: Table = cluster.parse().expect("a cluster that was resolved is TOML");
    let mut keys = Vec::new();
    for (number, device) in root.get("device").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let name = device.get("name").and_then(Value::as_str).map_or_else(|| number.to_string(), quoted);
        keys.push(SpeedKey { key: format!("device.{name}.slowdown"), speed: Speed::Slowdown });
    }
    if let Some(network) = root.get("network") {
        within("network", network, &mut keys);
    }
    if root.contains_key("straggler") {
        keys.push(SpeedKey { key: "straggler".into(), speed: Speed::Disturbance });
    }
    keys
}

fn within(path: &str, value: &Value, keys: &mut Vec<SpeedKey>) {
    let entries: Vec<(String, &Value)> = match value {
        Value::Table(table) => table.iter().map(|(key, value)| (quoted(key), value)).collect(),
        Value::Array(elements) => {
            (0..).zip(elements).map(|(number, value): (u32, _)| (number.to_string(), value)).collect()
        }
        _ => return,
    };
    for (name, value) in entries {
        let key = format!("{path}.{name}");
        match &*name {
            "bandwidth" | "backplane" => keys.push(SpeedKey { key, speed: Speed::Bandwidth }),
            "oversubscription" => keys.push(SpeedKey { key, speed: Speed::Oversubscription }),
            "latency" => keys.push(SpeedKey { key, speed: Speed::Latency }),
            "change" | "background" if path == "network" => keys.push(SpeedKey { key, speed: Speed::Disturbance }),
            _ => within(&key, value, keys),
        }
    }
}

/// The key of a host's own bandwidth; `None`: hosts have none on this network.
///
/// # Panics
/// As in [`speed_keys`].
pub fn bandwidth_of_host(cluster: &str, host: &str) -> Option<String> {
    let root: Table = cluster.parse().expect("a cluster that was resolved is TOML");
    let network = root.get("network")?;
    // GPUs that share NICs have no bandwidth of their own.
    let shares_nics = network.get("nics").is_some_and(|nics| Some(nics) != network.get("per_server"));
    let has_hosts = ["links", "dimensions"].iter().all(|key| network.get(key).is_none());
    (has_hosts && !shares_nics).then(|| format!("network.host.{}.bandwidth", quoted(host)))
}

/// The TOML key of the bandwidth of the link between the named `ends` in a cluster that lists links; `None` if the
/// cluster lists no such link.
///
/// # Panics
/// If the cluster is not valid TOML.
pub fn bandwidth_of_link(cluster: &str, ends: [&str; 2]) -> Option<String> {
    let root: Table = cluster.parse().expect("a cluster that was resolved is TOML");
    let links = root.get("network")?.get("links")?.as_array()?;
    let joins = |link: &Value| {
        let between = link.get("between").and_then(Value::as_array);
        between.is_some_and(|names| ends.iter().all(|end| names.iter().any(|name| name.as_str() == Some(end))))
    };
    links.iter().position(joins).map(|number| format!("network.links.{number}.bandwidth"))
}

/// A part of a key, quoted if necessary.
fn quoted(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { format!("{name:?}") }
}
