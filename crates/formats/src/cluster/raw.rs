//! Owns the cluster file in its notation: its keys and their types, and the place of each value in the text.
//!
//! The resolution checks whether the values are consistent.

use super::hardware;
use super::parameters::Parameters;
use super::peaks::RawPeaks;
use super::rates::RawRates;
use crate::units::{Bandwidth, Duration, Size, Watts};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, SeqAccess};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use toml::Spanned;

/// A cluster file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawCluster {
    /// The cluster's name in reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// Parameters of the communication library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backend: Option<Spanned<RawBackend>>,
    /// The devices; ranks are assigned in this order.
    #[serde(default)]
    pub(super) device: Vec<Spanned<RawDevice>>,
    /// The network that joins the hosts.
    pub(super) network: Option<Spanned<RawNetwork>>,
    /// Devices that are slower for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) straggler: Vec<Spanned<RawStraggler>>,
    /// Ranks that crash, and when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) crash: Vec<Spanned<RawCrash>>,
    /// Costs of kernels, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) kernel: Vec<Spanned<RawKernel>>,
    /// Relative standard errors of compute, of communication, and of operations by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) uncertainty: BTreeMap<Spanned<String>, Spanned<f64>>,
    /// Algorithms in place of the backend's own, by collective.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) collective: BTreeMap<Spanned<String>, Spanned<RawRules>>,
    /// Operations without a duration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) free: Vec<Spanned<String>>,
}

/// `backend = "gloo"`, or a table.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(super) struct RawBackend(pub(super) Parameters);

/// Costs of a kernel, as formulas.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawKernel {
    pub(super) name: Spanned<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) flops: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) microseconds: Option<Spanned<String>>,
}

/// One or more equal devices.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawDevice {
    pub(super) name: Spanned<String>,
    /// The worker that runs the device's ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) slowdown: Option<Spanned<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cores: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) per_host: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peak_flops: Option<Spanned<RawPeaks>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_bandwidth: Option<Spanned<Bandwidth>>,
    /// Least duration of an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) launch: Option<Spanned<Duration>>,
    /// Name of the device in the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<Spanned<String>>,
    /// Host CPU of the device, by its name in the table of devices, which runs the program's operators on CPU tensors;
    /// or `"none"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host_cpu: Option<Spanned<String>>,
    /// Fraction of the device that communication occupies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) communication_share: Option<Spanned<f64>>,
    /// Price per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) price: Option<Spanned<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) power: Option<Spanned<RawPower>>,
}

/// Power that a device draws.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table, for example { idle = \"60 W\", busy = \"700 W\" }")]
pub(super) struct RawPower {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle: Option<Watts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) busy: Option<Watts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cap: Option<Watts>,
}

/// An interval in which a device is slower.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawStraggler {
    pub(super) device: Spanned<String>,
    pub(super) from: Duration,
    pub(super) to: Spanned<Duration>,
    pub(super) factor: Spanned<f64>,
}

/// The crash of a rank, of a device's rank, or of all ranks of a host.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawCrash {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rank: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<Spanned<String>>,
    pub(super) at: Duration,
}

/// The network that joins the hosts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawNetwork {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) preset: Option<Spanned<String>>,
    /// Values for `bandwidth` and `latency` if they are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<RawLinkSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<Spanned<RawRates>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Duration>,
    /// Bytes that a switch can queue for each host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) queue: Option<Spanned<Size>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backplane: Option<Spanned<Bandwidth>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dims: Option<Spanned<Vec<u32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dimensions: Option<Spanned<Vec<RawDimension>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hosts_per_leaf: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spines: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) oversubscription: Option<Spanned<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) per_server: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fabric: Option<Spanned<RawLinkSpec>>,
    /// Link of a GPU to NICs, and to other GPUs without `fabric`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pcie: Option<Spanned<RawLinkSpec>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nics: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rails: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) servers_per_leaf: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) links: Option<Spanned<Vec<Spanned<RawLink>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) local: Option<RawLinkSpec>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) host: BTreeMap<Spanned<String>, RawHost>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) change: Vec<Spanned<RawChange>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) background: Vec<Spanned<RawBackground>>,
}

/// Changes of links over time.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawChange {
    /// `orin.0`: all links that end at the host; `a <-> b`: both directions; `a -> b`: one direction. `None`: all
    /// links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) jitter: Option<Spanned<RawJitter>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) outages: Vec<Spanned<RawWindow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) profile: Option<Spanned<RawProfile>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) period: Option<Spanned<Duration>>,
}

/// A distribution of delays that are added to a latency.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(tag = "distribution", rename_all = "snake_case", deny_unknown_fields, expecting = "a table")]
pub(super) enum RawJitter {
    Uniform { max: Duration },
    Normal { deviation: Duration },
    Exponential { mean: Duration },
    LogNormal { median: Duration, sigma: f64 },
}

/// A span of virtual time.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawWindow {
    pub(super) from: Duration,
    pub(super) to: Duration,
}

/// The name of a CSV file, or its points.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "the path of a CSV file, or a list of { at = TIME, bandwidth = RATE, latency = TIME }")]
pub(super) enum RawProfile {
    File(String),
    Points(Vec<RawPoint>),
}

/// The values of a link from `at` on.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawPoint {
    pub(super) at: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<RawRates>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Duration>,
}

/// Background traffic.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawBackground {
    pub(super) from: Spanned<String>,
    pub(super) to: Spanned<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rate: Option<Bandwidth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<Spanned<Duration>>,
}

/// Rate and latency of one link, or the name of usual hardware.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RawLinkSpec {
    pub(super) bandwidth: Bandwidth,
    pub(super) latency: Duration,
}

/// One dimension of a grid of hosts.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawDimension {
    pub(super) kind: RawDimensionKind,
    pub(super) size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<Bandwidth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Duration>,
}

/// Connection of the hosts along a dimension.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawDimensionKind {
    Ring,
    FullyConnected,
    Switch,
}

/// A link of an explicit graph.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLink {
    pub(super) between: Vec<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<Spanned<RawRates>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) queue: Option<Spanned<Size>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duplex: Option<RawDuplex>,
}

/// Whether the directions of a link share its rate.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawDuplex {
    Full,
    Half,
}

/// A host's exceptions.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawHost {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<Spanned<RawRates>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Spanned<Duration>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) queue: Option<Spanned<Size>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) local: Option<RawLinkSpec>,
}

/// `"ring"`, which is a list of one, or a list by size.
#[derive(Clone, Debug)]
pub(super) struct RawRules(pub(super) Vec<RawRule>);

/// An algorithm, and the largest size for which it is used.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) up_to: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) algorithm: Option<Spanned<String>>,
    /// Number of chunks of a collective in a hierarchical algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chunks: Option<Spanned<u32>>,
    /// Algorithm in each dimension of the network, in a hierarchical algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dimensions: Option<Spanned<Vec<Spanned<String>>>>,
    /// The user's own algorithm, in place of a named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) steps: Option<Spanned<RawSteps>>,
}

/// The name of a file with steps, or its content.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "the path of a TOML file, or a table with `collective`, `blocks` and [[rank]]")]
pub(super) enum RawSteps {
    File(String),
    Plan(RawPlan),
}

/// A complete algorithm, step by step.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawPlan {
    pub(super) collective: String,
    /// Name in reports; by default the file's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) blocks: u32,
    pub(super) rank: Vec<RawRank>,
}

/// The steps of one rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRank {
    pub(super) steps: Vec<RawStep>,
}

/// One send or receive.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawStep {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) send: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recv: Option<u32>,
    /// The block of the message; `None`: the message is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) block: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) combine: bool,
    /// Number of the rank's first steps that must be complete; `None`: all earlier steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<u32>,
}

impl<'de> Deserialize<'de> for RawBackend {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawBackend, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = RawBackend;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a backend, or a table with a name")
            }

            /// The place of the name is then the place of the backend.
            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawBackend, E> {
                Ok(RawBackend(Parameters::named(Spanned::new(0..0, name.to_owned()))))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RawBackend, M::Error> {
                Parameters::deserialize(MapAccessDeserializer::new(map)).map(RawBackend)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for RawLinkSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawLinkSpec, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, expecting = "a table")]
        struct Figures {
            bandwidth: Bandwidth,
            latency: Duration,
        }
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = RawLinkSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a link type, or { bandwidth = RATE, latency = TIME }")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawLinkSpec, E> {
                let (bandwidth, latency) = hardware::link(name).map_err(E::custom)?;
                Ok(RawLinkSpec { bandwidth, latency })
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RawLinkSpec, M::Error> {
                let Figures { bandwidth, latency } = Figures::deserialize(MapAccessDeserializer::new(map))?;
                Ok(RawLinkSpec { bandwidth, latency })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Serialize for RawRules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [RawRule { up_to: None, algorithm: Some(algorithm), chunks: None, dimensions: None, .. }] => {
                algorithm.serialize(serializer)
            }
            rules => rules.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RawRules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawRules, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Vec<RawRule>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "the name of an algorithm, { steps = FILE }, or a list of { up_to = SIZE, algorithm = NAME }",
                )
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Vec<RawRule>, E> {
                let algorithm = Some(Spanned::new(0..0, name.to_owned()));
                Ok(vec![RawRule { up_to: None, algorithm, chunks: None, dimensions: None, steps: None }])
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Vec<RawRule>, M::Error> {
                RawRule::deserialize(MapAccessDeserializer::new(map)).map(|rule| vec![rule])
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Vec<RawRule>, S::Error> {
                let mut rules = Vec::new();
                while let Some(rule) = list.next_element()? {
                    rules.push(rule);
                }
                Ok(rules)
            }
        }
        deserializer.deserialize_any(Visitor).map(RawRules)
    }
}
