//! Owns the notation of a device's arithmetic in a cluster file: one rate, or a table by the type of the elements.

use crate::diagnostic::suggest;
use crate::units::Flops;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer, MapAccess};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use uniference_sim::device::{Peaks, Precision};

/// `peak_flops = "312 TFLOPS"`, or `{ bfloat16 = "312 TFLOPS", float32 = "19.5 TFLOPS" }`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RawPeaks {
    All(Flops),
    Table(Vec<(Precision, Flops)>),
}

impl RawPeaks {
    pub(super) fn resolved(&self) -> Peaks {
        match self {
            RawPeaks::All(flops) => Peaks::all(flops.0),
            RawPeaks::Table(table) => {
                Peaks::table(table.iter().map(|(precision, flops)| (*precision, flops.0))).expect("tables name a type")
            }
        }
    }
}

impl Serialize for RawPeaks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            RawPeaks::All(flops) => flops.serialize(serializer),
            RawPeaks::Table(table) => {
                let mut map = serializer.serialize_map(Some(table.len()))?;
                for (precision, flops) in table {
                    map.serialize_entry(precision.name(), flops)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for RawPeaks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawPeaks, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = RawPeaks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a rate of arithmetic with a unit, for example \"312 TFLOPS\", or a table of rates by dtype",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawPeaks, E> {
                Flops::deserialize(text.into_deserializer()).map(RawPeaks::All)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<RawPeaks, E> {
                Flops::deserialize(number.into_deserializer()).map(RawPeaks::All)
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<RawPeaks, E> {
                Flops::deserialize(number.into_deserializer()).map(RawPeaks::All)
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RawPeaks, M::Error> {
                let table = BTreeMap::<String, Flops>::deserialize(MapAccessDeserializer::new(map))?;
                let precision = |(name, flops): (String, Flops)| {
                    let known = Precision::ALL.into_iter().find(|precision| precision.name() == name);
                    let hint = || suggest(&name, "dtypes", Precision::ALL.map(Precision::name));
                    known
                        .map(|precision| (precision, flops))
                        .ok_or_else(|| de::Error::custom(format!("unknown dtype `{name}`\nhint: {}", hint())))
                };
                let mut table = table.into_iter().map(precision).collect::<Result<Vec<_>, M::Error>>()?;
                table.sort_by_key(|(precision, _)| *precision);
                if table.is_empty() {
                    let hint = "give the rate of one dtype at least, for example { float32 = \"19.5 TFLOPS\" }";
                    return Err(de::Error::custom(format!("the table of rates is empty\nhint: {hint}")));
                }
                Ok(RawPeaks::Table(table))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
