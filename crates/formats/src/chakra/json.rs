//! Owns the form of a trace in JSON: protobuf's canonical mapping, one object after the other, indented by two spaces.
//! `chakra_jsonizer` writes the same form.
//!
//! In JSON 64-bit integers are strings, bytes are base 64, and default values are left out.

use super::ShowError;
use super::read::Reader;
use super::schema::{Attribute, GlobalMetadata, IoInfo, Node, NodeType, Value};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::ser::PrettyFormatter;
use std::io::{Read, Write};

/// Writes a whole trace.
///
/// # Errors
/// If the trace cannot be read, or the text cannot be written.
pub fn write<R: Read>(mut trace: Reader<R>, out: &mut impl Write) -> Result<(), ShowError> {
    write_object(&MetadataJson(trace.metadata()), out)?;
    while let Some(node) = trace.next_node()? {
        write_object(&NodeJson(&node), out)?;
    }
    Ok(())
}

fn write_object(object: &impl Serialize, out: &mut impl Write) -> std::io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(out, PrettyFormatter::with_indent(b"  "));
    object.serialize(&mut serializer).map_err(std::io::Error::from)
}

struct MetadataJson<'a>(&'a GlobalMetadata);
struct NodeJson<'a>(&'a Node);
struct IoJson<'a>(&'a IoInfo);
struct AttributeJson<'a>(&'a Attribute);
struct ListJson<T>(Vec<T>);

/// A 64-bit number, as a string: JSON's numbers are too small.
struct Long<T>(T);
/// A floating-point number, as a string if it is not finite: JSON has only finite numbers.
struct Real<T>(T);
struct Base64<'a>(&'a [u8]);

impl Serialize for MetadataJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        text(&mut map, "version", &self.0.version)?;
        list(&mut map, "attr", self.0.attr.iter().map(AttributeJson))?;
        map.end()
    }
}

impl Serialize for NodeJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let node = self.0;
        let mut map = serializer.serialize_map(None)?;
        long(&mut map, "id", node.id)?;
        text(&mut map, "name", &node.name)?;
        match NodeType::try_from(node.r#type) {
            Ok(NodeType::Invalid) => {}
            Ok(kind) => map.serialize_entry("type", kind.name())?,
            Err(_) => map.serialize_entry("type", &node.r#type)?,
        }
        list(&mut map, "ctrlDeps", node.ctrl_deps.iter().copied().map(Long))?;
        list(&mut map, "dataDeps", node.data_deps.iter().copied().map(Long))?;
        long(&mut map, "startTimeMicros", node.start_time_micros)?;
        long(&mut map, "durationMicros", node.duration_micros)?;
        if let Some(inputs) = &node.inputs {
            map.serialize_entry("inputs", &IoJson(inputs))?;
        }
        if let Some(outputs) = &node.outputs {
            map.serialize_entry("outputs", &IoJson(outputs))?;
        }
        list(&mut map, "attr", node.attr.iter().map(AttributeJson))?;
        map.end()
    }
}

impl Serialize for IoJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        text(&mut map, "values", &self.0.values)?;
        text(&mut map, "shapes", &self.0.shapes)?;
        text(&mut map, "types", &self.0.types)?;
        map.end()
    }
}

impl Serialize for AttributeJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        text(&mut map, "name", &self.0.name)?;
        text(&mut map, "docString", &self.0.doc_string)?;
        if let Some(value) = &self.0.value {
            write_value(&mut map, value)?;
        }
        map.end()
    }
}

fn write_value<M: SerializeMap>(map: &mut M, value: &Value) -> Result<(), M::Error> {
    fn longs<T: Copy>(values: &[T]) -> ListJson<Long<T>> {
        ListJson(values.iter().copied().map(Long).collect())
    }
    fn reals<T: Copy>(values: &[T]) -> ListJson<Real<T>> {
        ListJson(values.iter().copied().map(Real).collect())
    }
    fn plain<T: Clone>(values: &[T]) -> ListJson<T> {
        ListJson(values.to_vec())
    }
    let key = match value.type_name().strip_suffix("_list") {
        Some(element) => format!("{element}List"),
        None => format!("{}Val", value.type_name()),
    };
    let key = key.as_str();
    match value {
        Value::Double(number) => map.serialize_entry(key, &Real(*number)),
        Value::DoubleList(list) => map.serialize_entry(key, &reals(&list.values)),
        Value::Float(number) => map.serialize_entry(key, &Real(*number)),
        Value::FloatList(list) => map.serialize_entry(key, &reals(&list.values)),
        Value::Int32(number) | Value::Sint32(number) | Value::Sfixed32(number) => map.serialize_entry(key, number),
        Value::Int32List(list) => map.serialize_entry(key, &plain(&list.values)),
        Value::Sint32List(list) => map.serialize_entry(key, &plain(&list.values)),
        Value::Sfixed32List(list) => map.serialize_entry(key, &plain(&list.values)),
        Value::Uint32(number) | Value::Fixed32(number) => map.serialize_entry(key, number),
        Value::Uint32List(list) => map.serialize_entry(key, &plain(&list.values)),
        Value::Fixed32List(list) => map.serialize_entry(key, &plain(&list.values)),
        Value::Int64(number) | Value::Sint64(number) | Value::Sfixed64(number) => {
            map.serialize_entry(key, &Long(*number))
        }
        Value::Int64List(list) => map.serialize_entry(key, &longs(&list.values)),
        Value::Sint64List(list) => map.serialize_entry(key, &longs(&list.values)),
        Value::Sfixed64List(list) => map.serialize_entry(key, &longs(&list.values)),
        Value::Uint64(number) | Value::Fixed64(number) => map.serialize_entry(key, &Long(*number)),
        Value::Uint64List(list) => map.serialize_entry(key, &longs(&list.values)),
        Value::Fixed64List(list) => map.serialize_entry(key, &longs(&list.values)),
        Value::Bool(flag) => map.serialize_entry(key, flag),
        Value::BoolList(list) => map.serialize_entry(key, &plain(&list.values)),
        Value::String(text) => map.serialize_entry(key, text),
        Value::StringList(list) => map.serialize_entry(key, &plain(&list.values)),
        Value::Bytes(bytes) => map.serialize_entry(key, &Base64(bytes)),
        Value::BytesList(list) => {
            map.serialize_entry(key, &ListJson(list.values.iter().map(|bytes| Base64(bytes)).collect()))
        }
    }
}

fn text<M: SerializeMap>(map: &mut M, key: &str, value: &str) -> Result<(), M::Error> {
    if value.is_empty() { Ok(()) } else { map.serialize_entry(key, value) }
}

fn long<M: SerializeMap>(map: &mut M, key: &str, value: u64) -> Result<(), M::Error> {
    if value == 0 { Ok(()) } else { map.serialize_entry(key, &Long(value)) }
}

fn list<M: SerializeMap, T: Serialize>(
    map: &mut M,
    key: &str,
    items: impl ExactSizeIterator<Item = T>,
) -> Result<(), M::Error> {
    if items.len() == 0 { Ok(()) } else { map.serialize_entry(key, &items.collect::<Vec<T>>()) }
}

impl<T: Serialize> Serialize for ListJson<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        list(&mut map, "values", self.0.iter())?;
        map.end()
    }
}

impl<T: ToString> Serialize for Long<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_string())
    }
}

impl<T: Copy + Into<f64> + Serialize> Serialize for Real<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number: f64 = self.0.into();
        match number {
            number if number.is_nan() => serializer.serialize_str("NaN"),
            f64::INFINITY => serializer.serialize_str("Infinity"),
            f64::NEG_INFINITY => serializer.serialize_str("-Infinity"),
            _ => self.0.serialize(serializer),
        }
    }
}

impl Serialize for Base64<'_> {
    /// Base 64 as in RFC 4648, with padding.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::with_capacity(self.0.len().div_ceil(3) * 4);
        for chunk in self.0.chunks(3) {
            let bits = (0..3).fold(0_u32, |bits, index| bits << 8 | u32::from(*chunk.get(index).unwrap_or(&0)));
            for index in 0..4 {
                let letter = ALPHABET[(bits >> (18 - 6 * index)) as usize & 63];
                text.push(if index <= chunk.len() { char::from(letter) } else { '=' });
            }
        }
        serializer.serialize_str(&text)
    }
}
