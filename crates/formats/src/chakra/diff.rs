//! Owns the differences between two traces, node by node, by id. Traces with their nodes in nearly the same order are
//! compared in little memory: only nodes that wait for their counterpart are kept.

use super::read::{ReadError, Reader};
use super::schema::{Attribute, IoInfo, Node};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

/// A difference between two traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A difference of the whole file: its subject, the first value, the second value.
    Metadata(String, String, String),
    /// A node that only the first trace has.
    OnlyFirst(u64, String),
    /// A node that only the second trace has.
    OnlySecond(u64, String),
    /// A difference of a node that both traces have: id, its subject, the first value, the second value.
    Node(u64, String, String, String),
}

/// Calls `found` for each difference, nodes in the order in which both have been read; returns the number of
/// differences.
///
/// # Errors
/// If a trace cannot be read.
pub fn diff<A: Read, B: Read>(
    mut first: Reader<A>,
    mut second: Reader<B>,
    found: &mut dyn FnMut(Difference),
) -> Result<u64, ReadError> {
    let mut count = 0;
    let mut found = |difference| {
        count += 1;
        found(difference);
    };
    let (a, b) = (first.metadata(), second.metadata());
    let versions = ("version".to_owned(), a.version.clone(), b.version.clone());
    for (what, a, b) in [versions].into_iter().chain(attributes(&a.attr, &b.attr)) {
        if a != b {
            found(Difference::Metadata(what, a, b));
        }
    }
    let mut waiting = (BTreeMap::new(), BTreeMap::new());
    loop {
        let (a, b) = (first.next_node()?, second.next_node()?);
        if a.is_none() && b.is_none() {
            break;
        }
        if let Some(a) = a {
            meet(a, &mut waiting.1, &mut waiting.0, |a, b| compare(a, b, &mut found));
        }
        if let Some(b) = b {
            meet(b, &mut waiting.0, &mut waiting.1, |b, a| compare(a, b, &mut found));
        }
    }
    waiting.0.into_values().for_each(|node: Node| found(Difference::OnlyFirst(node.id, node.name)));
    waiting.1.into_values().for_each(|node: Node| found(Difference::OnlySecond(node.id, node.name)));
    Ok(count)
}

/// Compares a node with its counterpart, or keeps it until the counterpart is read.
fn meet(
    node: Node,
    theirs: &mut BTreeMap<u64, Node>,
    ours: &mut BTreeMap<u64, Node>,
    compare: impl FnOnce(&Node, &Node),
) {
    match theirs.remove(&node.id) {
        Some(other) => compare(&node, &other),
        None => drop(ours.insert(node.id, node)),
    }
}

fn compare(a: &Node, b: &Node, found: &mut dyn FnMut(Difference)) {
    let mut say = |what: &str, first: String, second: String| {
        if first != second {
            found(Difference::Node(a.id, what.to_owned(), first, second));
        }
    };
    say("name", a.name.clone(), b.name.clone());
    say("type", format!("{:?}", a.r#type()), format!("{:?}", b.r#type()));
    say("ctrl_deps", format!("{:?}", a.ctrl_deps), format!("{:?}", b.ctrl_deps));
    say("data_deps", format!("{:?}", a.data_deps), format!("{:?}", b.data_deps));
    say("start_time_micros", a.start_time_micros.to_string(), b.start_time_micros.to_string());
    say("duration_micros", a.duration_micros.to_string(), b.duration_micros.to_string());
    say("inputs", io_info(a.inputs.as_deref()), io_info(b.inputs.as_deref()));
    say("outputs", io_info(a.outputs.as_deref()), io_info(b.outputs.as_deref()));
    for (name, first, second) in attributes(&a.attr, &b.attr) {
        say(&name, first, second);
    }
}

fn io_info(info: Option<&IoInfo>) -> String {
    info.map_or("none".to_owned(), |info| format!("{} {} {}", info.values, info.shapes, info.types))
}

/// The values of both nodes by name; the order of attributes does not matter.
fn attributes(a: &[Attribute], b: &[Attribute]) -> Vec<(String, String, String)> {
    let mut values: BTreeMap<&str, [Vec<String>; 2]> = BTreeMap::new();
    for (side, list) in [a, b].into_iter().enumerate() {
        for attribute in list {
            let value = attribute.value.as_ref().map_or("none".to_owned(), |value| format!("{value:?}"));
            values.entry(&attribute.name).or_default()[side].push(value);
        }
    }
    let shown = |values: &[String]| if values.is_empty() { "none".to_owned() } else { values.join(", ") };
    values.iter().map(|(name, [a, b])| (format!("attribute {name}"), shown(a), shown(b))).collect()
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Metadata(what, a, b) => write!(f, "{what}: {a} | {b}"),
            Difference::OnlyFirst(id, name) => write!(f, "node {id} `{name}`: only in the first trace"),
            Difference::OnlySecond(id, name) => write!(f, "node {id} `{name}`: only in the second trace"),
            Difference::Node(id, what, a, b) => write!(f, "node {id}, {what}: {a} | {b}"),
        }
    }
}
