//! Owns the figures of one trace: nodes, durations and communication by kind. Memory does not grow with the trace.

use super::attributes::COMM_SIZE;
use super::groups::process_groups;
use super::read::{ReadError, Reader};
use super::schema::{CommType, Node, NodeType};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

/// Numbers of a trace's nodes, dependencies and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// The version of the schema in the file.
    pub version: String,
    /// Number of nodes.
    pub nodes: u64,
    /// Data and control dependencies.
    pub dependencies: u64,
    /// Nodes by type; compute on the host's CPU counts separately.
    pub types: BTreeMap<String, Total>,
    /// Communication by collective, `SEND` and `RECV`.
    pub communication: BTreeMap<String, Transfer>,
    /// Number of communication nodes by process group; the empty name stands for all ranks.
    pub groups: BTreeMap<String, u64>,
    /// Process groups that metadata nodes describe.
    pub described_groups: u64,
    /// The earliest start and the latest end in microseconds, if any node has a start.
    pub span_us: Option<(u64, u64)>,
    /// Number of nodes' attributes, by name and type: writers do not agree about them.
    pub attributes: BTreeMap<String, u64>,
}

/// Nodes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Number of nodes.
    pub count: u64,
    /// Sum of their durations in microseconds.
    pub duration_us: u64,
}

/// Communication of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Transfer {
    /// Number of operations.
    pub count: u64,
    /// Sum of their sizes in bytes.
    pub bytes: u64,
}

impl Stats {
    /// Reads a trace to its end.
    ///
    /// # Errors
    /// If the trace cannot be read.
    pub fn of<R: Read>(mut trace: Reader<R>) -> Result<Stats, ReadError> {
        let mut stats = Stats { version: trace.metadata().version.clone(), ..Stats::default() };
        while let Some(node) = trace.next_node()? {
            stats.add(&node);
        }
        Ok(stats)
    }

    fn add(&mut self, node: &Node) {
        self.nodes += 1;
        self.dependencies += node.dependencies().count() as u64;
        let r#type = match NodeType::try_from(node.r#type) {
            Ok(NodeType::Comp) if node.is_cpu_op() => "COMP_NODE (host)".to_owned(),
            Ok(kind) => kind.name().to_owned(),
            Err(_) => format!("type {}", node.r#type),
        };
        let total = self.types.entry(r#type).or_default();
        total.count += 1;
        total.duration_us = total.duration_us.saturating_add(node.duration_micros);
        if let Some(kind) = communication(node) {
            let transfer = self.communication.entry(kind.to_owned()).or_default();
            transfer.count += 1;
            transfer.bytes = transfer.bytes.saturating_add(node.unsigned(COMM_SIZE).unwrap_or(0));
            *self.groups.entry(node.process_group().unwrap_or_default()).or_default() += 1;
        }
        self.described_groups += process_groups(node).ok().flatten().map_or(0, |groups| groups.len() as u64);
        if node.start_time_micros > 0 {
            let end = node.start_time_micros.saturating_add(node.duration_micros);
            let (first, last) = self.span_us.unwrap_or((u64::MAX, 0));
            self.span_us = Some((first.min(node.start_time_micros), last.max(end)));
        }
        for attribute in &node.attr {
            let kind = attribute.value.as_ref().map_or("none", |value| value.type_name());
            *self.attributes.entry(format!("{}: {kind}", attribute.name)).or_default() += 1;
        }
    }
}

fn communication(node: &Node) -> Option<&'static str> {
    match node.r#type() {
        NodeType::CommColl => Some(node.comm_type().map_or("unspecified", CommType::name)),
        NodeType::CommSend => Some("SEND"),
        NodeType::CommRecv => Some("RECV"),
        _ => None,
    }
}

impl fmt::Display for Stats {
    /// Several lines without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.version.is_empty() { "none" } else { &self.version };
        write!(f, "{} nodes, {} dependencies, schema version {version}", self.nodes, self.dependencies)?;
        if let Some((first, last)) = self.span_us {
            write!(f, ", from {first} us to {last} us")?;
        }
        for (kind, total) in &self.types {
            write!(f, "\n  {kind:<18} {:>10} nodes {:>16} us", total.count, total.duration_us)?;
        }
        for (kind, transfer) in &self.communication {
            write!(f, "\n  {kind:<18} {:>10} calls {:>16} bytes", transfer.count, transfer.bytes)?;
        }
        for (group, count) in &self.groups {
            let group = if group.is_empty() { "all ranks".to_owned() } else { format!("group {group}") };
            write!(f, "\n  {group:<18} {count:>10} calls")?;
        }
        for (attribute, count) in &self.attributes {
            write!(f, "\n  attribute {attribute:<28} {count:>10} nodes")?;
        }
        Ok(())
    }
}
