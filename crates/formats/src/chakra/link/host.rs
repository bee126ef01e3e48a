//! Owns reading a host trace: the JSON of PyTorch's `ExecutionTraceObserver`, in both of its forms: flat (schema 1.0.1) and with
//! attributes in a list (1.0.2 and later, whatever else the label says).

use super::LinkError;
use crate::chakra::groups::PROCESS_GROUP_NODE;
use crate::chakra::schema::IoInfo;
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::fmt::Write;

/// What a rank ran.
#[derive(Debug)]
pub struct HostTrace {
    /// The file's label: `1.1.1-chakra.0.0.4`.
    pub schema: String,
    /// By id.
    pub(super) operators: Vec<Operator>,
}

/// An operator as the host ran it.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) parent: Option<u64>,
    /// The id of its record function, which the profiler names too.
    pub(super) function: u64,
    pub(super) thread: u64,
    pub(super) schema: String,
    pub(super) inputs: Values,
    pub(super) outputs: Values,
}

/// What went in or came out.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) values: Json,
    shapes: Json,
    types: Json,
}

#[derive(Deserialize)]
struct RawTrace {
    schema: String,
    nodes: Vec<RawNode>,
}

#[derive(Deserialize)]
struct RawNode {
    id: u64,
    name: String,
    #[serde(default, alias = "parent")]
    ctrl_deps: Option<u64>,
    #[serde(default)]
    inputs: Json,
    #[serde(default)]
    input_shapes: Json,
    #[serde(default)]
    input_types: Json,
    #[serde(default)]
    outputs: Json,
    #[serde(default)]
    output_shapes: Json,
    #[serde(default)]
    output_types: Json,
    #[serde(default)]
    attrs: Vec<RawAttribute>,
    #[serde(default)]
    rf_id: Option<u64>,
    #[serde(default)]
    tid: Option<u64>,
    #[serde(default)]
    op_schema: Option<String>,
}

#[derive(Deserialize)]
struct RawAttribute {
    name: String,
    #[serde(default)]
    value: Json,
}

impl HostTrace {
    /// Reads the file's text.
    ///
    /// # Errors
    /// It is no host trace, or an id comes twice.
    pub fn parse(text: &str) -> Result<HostTrace, LinkError> {
        let wrong = |problem: String| LinkError::Input {
            file: "the host trace",
            problem,
            hint: "it is what torch.profiler.ExecutionTraceObserver writes",
        };
        let raw: RawTrace = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let mut operators: Vec<Operator> = raw.nodes.into_iter().map(Operator::from_raw).collect();
        operators.sort_by_key(|operator| operator.id);
        let ids: BTreeSet<u64> = operators.iter().map(|operator| operator.id).collect();
        match ids.len() == operators.len() && ids.last().is_none_or(|id| *id < u64::from(u32::MAX)) {
            true => Ok(HostTrace { schema: raw.schema, operators }),
            false => Err(wrong("an id comes twice, or is no small number".to_owned())),
        }
    }
}

impl Operator {
    fn from_raw(raw: RawNode) -> Operator {
        let attribute =
            |name: &str| raw.attrs.iter().find(|attribute| attribute.name == name).map(|found| &found.value);
        let number = |name| attribute(name).and_then(Json::as_u64);
        let function = raw.rf_id.or(number("rf_id")).unwrap_or(0);
        let thread = raw.tid.or(number("tid")).unwrap_or(0);
        let schema = raw.op_schema.clone().or(attribute("op_schema").and_then(Json::as_str).map(str::to_owned));
        Operator {
            id: raw.id,
            name: raw.name,
            parent: raw.ctrl_deps,
            function,
            thread,
            schema: schema.unwrap_or_default(),
            inputs: Values::from_raw(raw.inputs, raw.input_shapes, raw.input_types),
            outputs: Values::from_raw(raw.outputs, raw.output_shapes, raw.output_types),
        }
    }

    /// Is it something that runs? Not the roots, nor descriptions of process groups.
    pub(super) fn is_timed(&self) -> bool {
        !self.name.starts_with("[pytorch|profiler|execution_trace|") && self.name != PROCESS_GROUP_NODE
    }
}

impl Values {
    /// New files have all three in one object.
    fn from_raw(values: Json, shapes: Json, types: Json) -> Values {
        match values {
            Json::Object(mut parts) => {
                let mut part = |name: &str| parts.get_mut(name).map(Json::take).unwrap_or_default();
                Values { values: part("values"), shapes: part("shapes"), types: part("types") }
            }
            values => Values { values, shapes, types },
        }
    }

    pub(super) fn to_info(&self) -> IoInfo {
        IoInfo { values: repr(&self.values), shapes: repr(&self.shapes), types: repr(&self.types) }
    }

    /// Bytes of all tensors: lists of id, storage, offset, elements, bytes of an element and device.
    pub(super) fn bytes(&self) -> u64 {
        tensor_bytes(&self.values)
    }
}

fn tensor_bytes(value: &Json) -> u64 {
    let Json::Array(items) = value else { return 0 };
    if let [_, _, _, elements, size, Json::String(_)] = &items[..]
        && let (Some(elements), Some(size)) = (elements.as_u64(), size.as_u64())
    {
        return elements.saturating_mul(size);
    }
    items.iter().map(tensor_bytes).fold(0, u64::saturating_add)
}

/// As Python writes it.
fn repr(value: &Json) -> String {
    let mut text = String::new();
    write_repr(value, &mut text);
    text
}

fn write_repr(value: &Json, text: &mut String) {
    match value {
        Json::Null => text.push_str("[]"),
        Json::Bool(true) => text.push_str("True"),
        Json::Bool(false) => text.push_str("False"),
        Json::Number(number) => drop(write!(text, "{number}")),
        Json::String(string) => {
            let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
            text.push(quote);
            for character in string.chars() {
                match character {
                    '\\' => text.push_str("\\\\"),
                    '\n' => text.push_str("\\n"),
                    other if other == quote => text.extend(['\\', other]),
                    other => text.push(other),
                }
            }
            text.push(quote);
        }
        Json::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                write_repr(item, text);
            }
            text.push(']');
        }
        Json::Object(fields) => drop(write!(text, "{}", Json::Object(fields.clone()))),
    }
}
