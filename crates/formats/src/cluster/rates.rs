//! Owns the notation of the rates of a host's links in a cluster file: one rate for both directions, or one out and one
//! in.
//!
//! The network, and the changes of links, decide which links belong to the host.

use crate::units::Bandwidth;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer, MapAccess};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use uniference_sim::network::HostRates;

/// `"1 Gbps"`, or `{ egress = RATE, ingress = RATE }`; one direction may be missing if there is a default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RawRates {
    egress: Option<Bandwidth>,
    ingress: Option<Bandwidth>,
}

impl RawRates {
    /// The rate `rate` in both directions.
    pub(super) fn both(rate: Bandwidth) -> RawRates {
        RawRates { egress: Some(rate), ingress: Some(rate) }
    }

    /// The rates of the given directions; `None` if there are none.
    pub(super) fn new(egress: Option<Bandwidth>, ingress: Option<Bandwidth>) -> Option<RawRates> {
        (egress.is_some() || ingress.is_some()).then_some(RawRates { egress, ingress })
    }

    /// The rate out, if it is given.
    pub(super) fn egress(self) -> Option<Bandwidth> {
        self.egress
    }

    /// The rate in, if it is given.
    pub(super) fn ingress(self) -> Option<Bandwidth> {
        self.ingress
    }

    /// The rate of both directions, if one is given.
    pub(super) fn single(self) -> Option<Bandwidth> {
        self.egress.filter(|_| self.egress == self.ingress)
    }

    /// These rates, with the rate of `others` for a missing direction.
    pub(super) fn or(self, others: RawRates) -> RawRates {
        RawRates { egress: self.egress.or(others.egress), ingress: self.ingress.or(others.ingress) }
    }

    /// The rates in the simulator's form; both directions are given.
    pub(super) fn resolved(self) -> HostRates {
        let known = |rate: Option<Bandwidth>| rate.expect("defaults are filled in").0;
        HostRates { egress: known(self.egress), ingress: known(self.ingress) }
    }
}

impl fmt::Display for RawRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directions = [("out", self.egress), ("in", self.ingress)];
        let given = directions.into_iter().filter_map(|(direction, rate)| Some(format!("{} {direction}", rate?)));
        match self.single() {
            Some(rate) => rate.fmt(f),
            None => f.write_str(&given.collect::<Vec<_>>().join(" and ")),
        }
    }
}

impl Serialize for RawRates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(rate) = self.single() {
            return rate.serialize(serializer);
        }
        let mut table = serializer.serialize_map(None)?;
        for (key, rate) in [("egress", self.egress), ("ingress", self.ingress)] {
            if let Some(rate) = rate {
                table.serialize_entry(key, &rate)?;
            }
        }
        table.end()
    }
}

impl<'de> Deserialize<'de> for RawRates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawRates, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, expecting = "a table")]
        struct Directions {
            egress: Option<Bandwidth>,
            ingress: Option<Bandwidth>,
        }
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = RawRates;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a bandwidth with a unit, for example \"25 Gbps\", or { egress = RATE, ingress = RATE }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawRates, E> {
                Bandwidth::deserialize(text.into_deserializer()).map(RawRates::both)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<RawRates, E> {
                Bandwidth::deserialize(number.into_deserializer()).map(RawRates::both)
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<RawRates, E> {
                Bandwidth::deserialize(number.into_deserializer()).map(RawRates::both)
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RawRates, M::Error> {
                let Directions { egress, ingress } = Directions::deserialize(MapAccessDeserializer::new(map))?;
                RawRates::new(egress, ingress).ok_or_else(|| {
                    let hint = "give both, or the one that differs, for example { egress = \"20 Mbps\" }";
                    de::Error::custom(format!("missing key `egress` or `ingress`\nhint: {hint}"))
                })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
