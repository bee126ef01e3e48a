//! Owns the check of a trace: ids, dependencies, and required attributes of nodes. Memory grows with the number of
//! nodes and dependencies, not with the file.
//!
//! Deviations with a single possible meaning are tolerated and reported; traces that cannot be run are refused: an id
//! twice, a cycle.

use super::attributes::{COMM_DST, COMM_SIZE, COMM_SRC, COMM_TYPE, NUM_OPS};
use super::groups::process_groups;
use super::own;
use super::read::{ReadError, Reader};
use super::schema::{CommType, Node, NodeType};
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

/// The known versions of the schema; the differences between them have no effect on this project.
pub const VERSIONS: [&str; 3] = ["", "0.0.4", "1.0.0"];
/// Number of examples of each finding that are kept.
const EXAMPLES: usize = 4;

/// Something about a trace that its user may want to know. A replay refuses some communication that is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// The schema's version is none of [`VERSIONS`].
    UnknownVersion,
    /// A message with fields that the schema does not have, or with an unusual encoding: writing it again changes it.
    Lossy,
    /// A dependency on a missing node, which counts as a completed node.
    Dangling,
    /// The same dependency twice, as data and control or in one list.
    Duplicate,
    /// The type is none of the schema's, or "invalid": the node has no duration.
    UnknownType,
    /// A collective without its kind, or a message without its sender or receiver.
    IncompleteCommunication,
    /// A communication node without a size.
    NoSize,
    /// Compute without a duration and without a number of operations: it has no duration.
    NoDuration,
    /// An invalid description of process groups.
    UnreadableGroups,
}

/// All findings of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of findings.
    pub count: u64,
    /// The first few findings.
    pub examples: Vec<String>,
}

/// The result of the check of a valid trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of dependencies, each counted once.
    pub dependencies: u64,
    /// Findings by kind.
    pub findings: BTreeMap<Finding, Found>,
}

/// A trace that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Two nodes have the same id.
    #[error(
        "duplicate node id {id} (second node: `{name}`)\nhint: node ids must be unique in a file; check the program that wrote the trace"
    )]
    TwoOfOneId {
        /// The id of both nodes.
        id: u64,
        /// Name of the second node.
        name: String,
    },
    /// The dependencies of nodes form a cycle.
    #[error(transparent)]
    Cycle(#[from] Cycle),
}

/// A cycle of nodes: each depends on the next, and the last on the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "nodes depend on each other in a cycle: {}\nhint: none of these nodes can start; check the program that wrote the trace",
    described(.0)
)]
pub struct Cycle(pub Vec<u64>);

fn described(ids: &[u64]) -> String {
    let shown: Vec<String> = ids.iter().take(20).map(u64::to_string).collect();
    let rest = if ids.len() > shown.len() { format!(" (and {} more)", ids.len() - shown.len()) } else { String::new() };
    format!("{}{rest} -> {}", shown.join(" -> "), ids[0])
}

/// Reads a trace to its end and checks it.
///
/// # Errors
/// If the trace cannot be read, or could not be run.
pub fn check<R: Read>(mut trace: Reader<R>) -> Result<Checked, CheckError> {
    let mut checked = Checked::default();
    let version = &trace.metadata().version;
    if !VERSIONS.contains(&version.as_str()) {
        checked.note(Finding::UnknownVersion, || format!("`{version}`"));
    }
    let mut graph = Graph::default();
    let mut lossy = trace.lossy();
    if lossy > 0 {
        checked.note(Finding::Lossy, || "the first message".to_owned());
    }
    while let Some(node) = trace.next_node()? {
        checked.nodes += 1;
        for finding in shortcomings(&node) {
            checked.note(finding, || called(&node));
        }
        if let Err(error) = process_groups(&node) {
            checked.note(Finding::UnreadableGroups, || error.problem);
        }
        if trace.lossy() > lossy {
            lossy = trace.lossy();
            checked.note(Finding::Lossy, || called(&node));
        }
        graph.add(&node, &mut checked)?;
    }
    graph.check(&mut checked)?;
    Ok(checked)
}

impl Checked {
    fn note(&mut self, finding: Finding, example: impl FnOnce() -> String) {
        let found = self.findings.entry(finding).or_default();
        found.count += 1;
        if found.examples.len() < EXAMPLES {
            found.examples.push(example());
        }
    }
}

/// The node's missing attributes.
fn shortcomings(node: &Node) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut unless = |said: bool, finding| findings.extend((!said).then_some(finding));
    match NodeType::try_from(node.r#type) {
        Err(_) | Ok(NodeType::Invalid) => unless(false, Finding::UnknownType),
        Ok(NodeType::Comp) => {
            unless(own::duration(node).as_ps() > 0 || node.attribute(NUM_OPS).is_some(), Finding::NoDuration);
        }
        // The host's node of an operation has the accelerator's type, but no attributes.
        Ok(NodeType::CommColl) if !node.is_cpu_op() || node.attribute(COMM_TYPE).is_some() => {
            let kind = node.comm_type();
            unless(kind.is_some(), Finding::IncompleteCommunication);
            unless(kind == Some(CommType::Barrier) || node.unsigned(COMM_SIZE).is_some(), Finding::NoSize);
        }
        Ok(NodeType::CommSend) => {
            unless(node.unsigned(COMM_DST).is_some(), Finding::IncompleteCommunication);
            unless(node.unsigned(COMM_SIZE).is_some(), Finding::NoSize);
        }
        Ok(NodeType::CommRecv) => {
            unless(node.unsigned(COMM_SRC).is_some(), Finding::IncompleteCommunication);
            unless(node.unsigned(COMM_SIZE).is_some(), Finding::NoSize);
        }
        Ok(NodeType::CommColl | NodeType::Metadata | NodeType::MemLoad | NodeType::MemStore) => {}
    }
    findings
}

fn called(node: &Node) -> String {
    format!("node {} `{}`", node.id, node.name)
}

/// Ids and dependencies in the order of the file.
#[derive(Default)]
struct Graph {
    ids: IndexSet<u64, FxBuildHasher>,
    /// Dependencies of all nodes, one after the other.
    dependencies: Vec<u64>,
    /// The end of each node's dependencies in `dependencies`.
    ends: Vec<usize>,
}

impl Graph {
    fn add(&mut self, node: &Node, checked: &mut Checked) -> Result<(), CheckError> {
        if !self.ids.insert(node.id) {
            return Err(CheckError::TwoOfOneId { id: node.id, name: node.name.clone() });
        }
        let start = self.dependencies.len();
        self.dependencies.extend(node.dependencies());
        self.dependencies[start..].sort_unstable();
        let named = self.dependencies.len();
        dedup_from(&mut self.dependencies, start);
        for _ in self.dependencies.len()..named {
            checked.note(Finding::Duplicate, || called(node));
        }
        checked.dependencies += (self.dependencies.len() - start) as u64;
        self.ends.push(self.dependencies.len());
        Ok(())
    }

    fn check(&self, checked: &mut Checked) -> Result<(), CheckError> {
        let mut waits_for = vec![0_u32; self.ids.len()];
        let mut edges = Vec::new();
        for (node, waits_for) in waits_for.iter_mut().enumerate() {
            for dependency in self.dependencies_of(node) {
                match self.ids.get_index_of(&dependency) {
                    Some(on) => {
                        edges.push((on as u32, node as u32));
                        *waits_for += 1;
                    }
                    None => checked.note(Finding::Dangling, || format!("{dependency} of node {}", self.ids[node])),
                }
            }
        }
        edges.sort_unstable();
        let stuck = never_free(&edges, waits_for);
        match stuck.iter().position(|stuck| *stuck) {
            Some(first) => Err(self.cycle(first, &stuck).into()),
            None => Ok(()),
        }
    }

    fn dependencies_of(&self, node: usize) -> impl Iterator<Item = u64> {
        let start = if node == 0 { 0 } else { self.ends[node - 1] };
        self.dependencies[start..self.ends[node]].iter().copied()
    }

    fn cycle(&self, start: usize, stuck: &[bool]) -> Cycle {
        let next = |id: u64| {
            let node = self.ids.get_index_of(&id).expect("only nodes are followed");
            let is_stuck = |on: &u64| self.ids.get_index_of(on).is_some_and(|on| stuck[on]);
            self.dependencies_of(node).find(is_stuck).expect("what is stuck waits for something stuck")
        };
        find_cycle(self.ids[start], next)
    }
}

fn dedup_from(list: &mut Vec<u64>, start: usize) {
    let mut kept = start;
    for index in start..list.len() {
        if index == start || list[index] != list[kept - 1] {
            list[kept] = list[index];
            kept += 1;
        }
    }
    list.truncate(kept);
}

/// For each node, whether it remains after Kahn's algorithm, which repeatedly removes nodes without dependencies.
/// `edges` are (dependency, dependent), sorted.
fn never_free(edges: &[(u32, u32)], mut waits_for: Vec<u32>) -> Vec<bool> {
    let mut free: Vec<u32> = (0..waits_for.len() as u32).filter(|node| waits_for[*node as usize] == 0).collect();
    while let Some(node) = free.pop() {
        let first = edges.partition_point(|(on, _)| *on < node);
        for (_, dependent) in edges[first..].iter().take_while(|(on, _)| *on == node) {
            waits_for[*dependent as usize] -= 1;
            if waits_for[*dependent as usize] == 0 {
                free.push(*dependent);
            }
        }
    }
    waits_for.into_iter().map(|missing| missing > 0).collect()
}

/// Follows `next` from `start` until a node comes again. Each node on the way must have a next one.
pub fn find_cycle(start: u64, next: impl Fn(u64) -> u64) -> Cycle {
    let mut path: IndexSet<u64, FxBuildHasher> = IndexSet::default();
    let mut id = start;
    while path.insert(id) {
        id = next(id);
    }
    let begin = path.get_index_of(&id).expect("it was seen before");
    Cycle(path.into_iter().skip(begin).collect())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Finding::UnknownVersion => "unknown schema version",
            Finding::Lossy => "messages with unknown fields or a non-canonical encoding",
            Finding::Dangling => "dependencies on missing nodes (treated as satisfied)",
            Finding::Duplicate => "duplicate dependencies (counted once)",
            Finding::UnknownType => "nodes of unknown type (simulated as 0 s)",
            Finding::IncompleteCommunication => "communication nodes without type or peer",
            Finding::NoSize => "communication nodes without size",
            Finding::NoDuration => "compute nodes without duration and operation count (simulated as 0 s)",
            Finding::UnreadableGroups => "unreadable descriptions of process groups",
        })
    }
}
