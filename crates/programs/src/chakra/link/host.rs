//! Owns the reader of a host trace: the JSON of PyTorch's `ExecutionTraceObserver`, in both of its forms: flat (schema
//! 1.0.1) and with attributes in a list (1.0.2 and later, whatever the rest of the label is). Operators are read one by
//! one.

use super::comm::{self, GroupName, HostComm, dtype};
use super::profile::is_communication;
use super::{Edge, LinkError};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use uniference_formats::chakra::groups::{self, PROCESS_GROUP_NODE, ProcessGroup};
use uniference_formats::chakra::schema::{IoInfo, Node, NodeType};
use uniference_sim::program::DType;

/// Operators of a rank.
#[derive(Debug, Default)]
pub struct HostTrace {
    /// The file's schema label, for example `1.1.1-chakra.0.0.4`.
    pub schema: String,
    /// Operators by the id of their record function, which is the order of their starts.
    pub(super) operators: Vec<Operator>,
    /// Process groups that the trace describes.
    pub(super) groups: Vec<ProcessGroup>,
}

/// An operator of the host trace.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) parent: Option<u64>,
    /// The id of the operator's record function, which newer profiles contain too.
    pub(super) function: u64,
    pub(super) thread: u64,
    pub(super) schema: String,
    pub(super) inputs: IoInfo,
    pub(super) outputs: IoInfo,
    /// Description of communication.
    pub(super) comm: Option<Box<HostComm>>,
}

/// Values, shapes and types of the inputs or of the outputs.
#[derive(Debug, Default)]
pub(super) struct Values {
    values: Json,
    shapes: Json,
    types: Json,
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

/// Reader of the list of nodes, which adds them to a host trace one by one.
pub(super) struct Operators<'a>(pub(super) &'a mut HostTrace);

impl<'de> DeserializeSeed<'de> for Operators<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Operators<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of nodes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(raw) = list.next_element()? {
            let operator = Operator::from_raw(raw);
            if operator.name == PROCESS_GROUP_NODE {
                self.0.groups.extend(operator.described_groups());
            }
            self.0.operators.push(operator);
        }
        Ok(())
    }
}

impl HostTrace {
    /// Checks ids and sorts operators, after all of them are read.
    ///
    /// # Errors
    /// An id occurs twice.
    pub(super) fn finish(&mut self) -> Result<(), LinkError> {
        let ids: BTreeSet<u64> = self.operators.iter().map(|operator| operator.id).collect();
        if ids.len() < self.operators.len() {
            return Err(LinkError::host("duplicate id"));
        }
        self.operators.sort_by_key(|operator| (operator.function, operator.id));
        Ok(())
    }

    /// The edges that close cycles of parents, one per cycle. An operator has one parent, so cycles share no edges, and
    /// one edge of each is the smallest set that can be dropped. It is the edge from the operator that started first,
    /// since an operator that started later cannot be its parent.
    pub(super) fn circles(&self) -> Vec<Edge> {
        let place: BTreeMap<u64, usize> =
            self.operators.iter().enumerate().map(|(place, operator)| (operator.id, place)).collect();
        let parent = |at: usize| {
            let operator = &self.operators[at];
            operator.parent.filter(|parent| *parent != operator.id).and_then(|parent| place.get(&parent).copied())
        };
        // The number of the walk that has visited an operator: every operator is visited once.
        let mut walked = vec![usize::MAX; self.operators.len()];
        let mut closing = Vec::new();
        for start in 0..self.operators.len() {
            let mut at = Some(start);
            while let Some(here) = at.filter(|here| walked[*here] == usize::MAX) {
                walked[here] = start;
                at = parent(here);
            }
            let Some(entry) = at.filter(|here| walked[*here] == start) else { continue };
            let circle = std::iter::successors(Some(entry), |here| parent(*here).filter(|next| *next != entry));
            let first = circle.min().expect("a circle has an operator");
            let on = &self.operators[parent(first).expect("it is in a circle")];
            let from = &self.operators[first];
            closing.push(Edge { node: (from.id, from.name.clone()), on: (on.id, on.name.clone()) });
        }
        closing
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
        let inputs = Values::from_raw(raw.inputs, raw.input_shapes, raw.input_types);
        let outputs = Values::from_raw(raw.outputs, raw.output_shapes, raw.output_types);
        Operator {
            id: raw.id,
            parent: raw.ctrl_deps,
            function,
            thread,
            schema: schema.unwrap_or_default(),
            comm: host_comm(&raw.name, &inputs, &outputs).map(Box::new),
            name: raw.name,
            inputs: inputs.to_info(),
            outputs: outputs.to_info(),
        }
    }

    /// Whether the operator runs: roots and descriptions of process groups do not.
    pub(super) fn is_timed(&self) -> bool {
        !self.name.starts_with("[pytorch|profiler|execution_") && self.name != PROCESS_GROUP_NODE
    }

    fn described_groups(&self) -> Vec<ProcessGroup> {
        let inputs = Some(Box::new(self.inputs.clone()));
        let node = Node { name: self.name.clone(), r#type: NodeType::Metadata.into(), inputs, ..Node::default() };
        groups::process_groups(&node).ok().flatten().unwrap_or_default()
    }
}

/// Description of communication by an operator, if it communicates.
fn host_comm(name: &str, inputs: &Values, outputs: &Values) -> Option<HostComm> {
    if !is_communication(name) {
        return None;
    }
    let empty = Vec::new();
    let values = inputs.values.as_array().unwrap_or(&empty);
    let types = inputs.types.as_array().unwrap_or(&empty);
    let (in_elements, bytes) = inputs.tensors();
    let (out_elements, out_bytes) = outputs.tensors();
    let mut comm = HostComm {
        operation: name.to_owned(),
        dtype: types.iter().filter_map(Json::as_str).find_map(tensor_type),
        in_elements,
        out_elements,
        bytes: if bytes > 0 { bytes } else { out_bytes },
        in_split: Vec::new(),
        out_split: Vec::new(),
        group: None,
        numbers: values.iter().filter_map(Json::as_u64).collect(),
    };
    if name != "record_param_comms" {
        return Some(comm);
    }
    // tensors, sequence number, group, rank, operation, split sizes: ParamCommsUtils.hpp. `wait` has no tensors.
    let is_operation = |value: &Json| value.as_str().is_some_and(|name| comm::kind(name).is_some() || name == "wait");
    let at = values.iter().position(is_operation)?;
    comm.operation = values[at].as_str().unwrap_or_default().to_owned();
    let split = |place: usize| -> Vec<u64> {
        values
            .get(place)
            .and_then(Json::as_array)
            .map_or(Vec::new(), |list| list.iter().filter_map(Json::as_u64).collect())
    };
    (comm.in_split, comm.out_split) = (split(at + 1), split(at + 2));
    comm.numbers = values[..at].last().and_then(Json::as_u64).into_iter().collect();
    comm.group = at.checked_sub(2).and_then(|place| match &values[place] {
        Json::Array(names) => Some(GroupName::Text(names.first()?.as_str()?.to_owned())),
        Json::String(name) => Some(GroupName::Text(name.clone())),
        number => number.as_u64().map(GroupName::Address),
    });
    Some(comm)
}

/// `Tensor(float)`, also inside a list: `GenericList[Tensor(float)]`.
fn tensor_type(name: &str) -> Option<DType> {
    let (_, inner) = name.split_once("Tensor(")?;
    dtype(inner.split(')').next()?)
}

impl Values {
    /// Newer files have all three in one object.
    fn from_raw(values: Json, shapes: Json, types: Json) -> Values {
        match values {
            Json::Object(mut parts) => {
                let mut part = |name: &str| parts.get_mut(name).map(Json::take).unwrap_or_default();
                Values { values: part("values"), shapes: part("shapes"), types: part("types") }
            }
            values => Values { values, shapes, types },
        }
    }

    fn to_info(&self) -> IoInfo {
        IoInfo { values: repr(&self.values), shapes: repr(&self.shapes), types: repr(&self.types) }
    }

    /// Number of elements and bytes of all tensors: lists of id, storage, offset, elements, bytes per element and
    /// device.
    pub(super) fn tensors(&self) -> (u64, u64) {
        tensors(&self.values)
    }
}

fn tensors(value: &Json) -> (u64, u64) {
    let Json::Array(items) = value else { return (0, 0) };
    if let [_, _, _, elements, size, Json::String(_)] = &items[..]
        && let (Some(elements), Some(size)) = (elements.as_u64(), size.as_u64())
    {
        return (elements, elements.saturating_mul(size));
    }
    items.iter().map(tensors).fold((0, 0), |sum, each| (sum.0.saturating_add(each.0), sum.1.saturating_add(each.1)))
}

/// The value in Python's notation.
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
