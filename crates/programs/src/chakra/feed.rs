//! Owns the order of a trace's nodes during a replay: it finds the nodes that are free to start, and reads only as much
//! of the file as that needs. It knows neither time nor the work of nodes.
//!
//! Nodes are *planned* in sequence: the next one is the node with the lowest id among those whose dependencies are all
//! planned. That order depends on the file alone, so ranks with traces of one shape plan their collectives in the same
//! order, independent of their clocks. A planned node is free once its dependencies are done. At most `WINDOW` nodes
//! are read ahead of the plan, more only if all of them depend on later nodes, and at most `WINDOW` planned nodes are
//! not done; memory therefore does not grow with the file.

use indexmap::{IndexMap, IndexSet};
use rustc_hash::FxBuildHasher;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use uniference_formats::chakra::attributes::COMM_TAG;
use uniference_formats::chakra::check::{CheckError, find_cycle};
use uniference_formats::chakra::groups::{GroupsError, ProcessGroup, process_groups};
use uniference_formats::chakra::read::{Nodes, ReadError};
use uniference_formats::chakra::schema::{Node, NodeType, Value};
use uniference_sim::ids::RankId;

/// Maximum number of nodes that are read ahead of the plan, and of planned nodes that are not done.
const WINDOW: usize = 1 << 16;

/// A trace that cannot be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The trace cannot be read, an id occurs twice, or nodes depend on each other in a cycle.
    #[error(transparent)]
    Trace(#[from] CheckError),
    /// A description of process groups is invalid.
    #[error(transparent)]
    Groups(#[from] GroupsError),
}

impl From<ReadError> for FeedError {
    fn from(error: ReadError) -> FeedError {
        FeedError::Trace(error.into())
    }
}

/// Replaces a node by a graph of nodes.
pub trait Expand: std::fmt::Debug + Send + Sync {
    /// The graph that replaces `node` of `rank`; `None`: the node stays. Its ids and dependencies are local to the
    /// graph.
    fn expand(&self, rank: RankId, node: &Node) -> Option<Vec<Node>>;
}

/// First id of nodes that the expansion of graphs inserts; the ids in traces are smaller.
const EXPANDED: u64 = 1 << 62;

/// The nodes of one trace that have been read and are not done.
pub struct Feed<N> {
    trace: N,
    window: usize,
    ended: bool,
    slots: IndexMap<u64, Slot, FxBuildHasher>,
    /// By dependency, read or not: the dependent nodes.
    dependents: IndexMap<u64, Vec<u64>, FxBuildHasher>,
    plannable: BTreeSet<u64>,
    unplanned: usize,
    done: IdSet,
    groups: Vec<ProcessGroup>,
    expand: Option<(RankId, Arc<dyn Expand>)>,
    /// Nodes of graphs, which come before the next node of the trace.
    expanded: VecDeque<Node>,
    /// Number of graphs so far, and of the nodes in all of them.
    graphs: u64,
    inserted: u64,
    missing: u64,
}

struct Slot {
    /// Boxed because slots are moved when the table grows.
    node: Box<Node>,
    /// Dependencies that are not planned.
    before_plan: u32,
    /// Dependencies that are not done.
    before_start: u32,
    planned: bool,
}

impl<N: Nodes> Feed<N> {
    /// A feed that has read no node yet.
    pub fn new(trace: N) -> Feed<N> {
        Feed::with_window(trace, WINDOW)
    }

    /// A feed that replaces some nodes of this rank by graphs.
    pub fn expanding(trace: N, expand: Option<(RankId, Arc<dyn Expand>)>) -> Feed<N> {
        Feed { expand, ..Feed::new(trace) }
    }

    pub(super) fn with_window(trace: N, window: usize) -> Feed<N> {
        Feed {
            trace,
            window,
            ended: false,
            slots: IndexMap::default(),
            dependents: IndexMap::default(),
            plannable: BTreeSet::new(),
            unplanned: 0,
            done: IdSet::default(),
            groups: Vec::new(),
            expand: None,
            expanded: VecDeque::new(),
            graphs: 0,
            inserted: 0,
            missing: 0,
        }
    }

    /// The next node of the plan, and whether it is free to start; `None`: all nodes are planned, or as many as may be
    /// planned for now.
    ///
    /// # Errors
    /// The trace cannot be run.
    pub fn plan(&mut self) -> Result<Option<(u64, bool)>, FeedError> {
        if self.slots.len() - self.unplanned >= self.window {
            return Ok(None);
        }
        while !self.ended && (self.unplanned < self.window || self.plannable.is_empty()) {
            self.read()?;
        }
        let Some(id) = self.plannable.pop_first() else {
            return if self.unplanned == 0 { Ok(None) } else { Err(self.cycle()) };
        };
        self.unplanned -= 1;
        let slot = self.slots.get_mut(&id).expect("what can be planned is here");
        slot.planned = true;
        let free = slot.before_start == 0;
        for dependent in self.dependents.get(&id).into_iter().flatten() {
            let slot = self.slots.get_mut(dependent).expect("what waits is here");
            slot.before_plan -= 1;
            if slot.before_plan == 0 {
                self.plannable.insert(*dependent);
            }
        }
        Ok(Some((id, free)))
    }

    /// A planned node.
    ///
    /// # Panics
    /// If it is done, or was never planned.
    pub fn node(&self, id: u64) -> &Node {
        match self.slots.get(&id) {
            Some(slot) if slot.planned => &slot.node,
            _ => panic!("node {id} is not to be run"),
        }
    }

    /// Completes a free node and calls `free` with each planned node that becomes free.
    pub fn complete(&mut self, id: u64, free: &mut dyn FnMut(u64)) {
        let slot = self.slots.swap_remove(&id).unwrap_or_else(|| panic!("node {id} is done twice"));
        assert!(slot.planned && slot.before_start == 0, "node {id} is done before it was free");
        self.done.insert(id);
        for dependent in self.dependents.swap_remove(&id).unwrap_or_default() {
            let slot = self.slots.get_mut(&dependent).expect("what waits is here");
            slot.before_start -= 1;
            if slot.before_start == 0 && slot.planned {
                free(dependent);
            }
        }
    }

    /// Nodes that have been read and wait for `id`.
    pub fn waiting_for(&self, id: u64) -> impl Iterator<Item = &Node> {
        self.dependents.get(&id).into_iter().flatten().map(|dependent| &*self.slots[dependent].node)
    }

    /// Whether all nodes are read and done.
    pub fn is_done(&self) -> bool {
        self.ended && self.slots.is_empty()
    }

    /// The process groups described in the part of the trace that was read.
    pub fn groups(&self) -> &[ProcessGroup] {
        &self.groups
    }

    /// Number of dependencies on nodes that the trace does not have. The number is final once the trace has been read
    /// to its end.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    fn read(&mut self) -> Result<(), FeedError> {
        let Some(node) = self.next_node()? else {
            self.ended = true;
            self.forgive();
            return Ok(());
        };
        let id = node.id;
        if self.slots.contains_key(&id) || self.done.contains(id) {
            return Err(CheckError::TwoOfOneId { id, name: node.name }.into());
        }
        self.groups.extend(process_groups(&node)?.into_iter().flatten());
        let mut slot = Slot { node: Box::new(node), before_plan: 0, before_start: 0, planned: false };
        let dependencies: IndexSet<u64, FxBuildHasher> = slot.node.dependencies().collect();
        for dependency in dependencies.into_iter().filter(|dependency| !self.done.contains(*dependency)) {
            self.dependents.entry(dependency).or_default().push(id);
            slot.before_start += 1;
            slot.before_plan += u32::from(!self.slots.get(&dependency).is_some_and(|slot| slot.planned));
        }
        if slot.before_plan == 0 {
            self.plannable.insert(id);
        }
        self.unplanned += 1;
        self.slots.insert(id, slot);
        Ok(())
    }

    fn next_node(&mut self) -> Result<Option<Node>, FeedError> {
        if let Some(node) = self.expanded.pop_front() {
            return Ok(Some(node));
        }
        let Some(node) = self.trace.next_node()? else { return Ok(None) };
        let graph = self.expand.as_ref().and_then(|(rank, expand)| expand.expand(*rank, &node));
        match graph {
            None => Ok(Some(node)),
            Some(graph) => {
                self.insert(node, graph);
                Ok(self.expanded.pop_front())
            }
        }
    }

    /// Queues a graph in place of a node. The graph starts when the node would have started, and the node becomes
    /// metadata that is done when the graph is done. Messages of different graphs have different tags.
    fn insert(&mut self, node: Node, graph: Vec<Node>) {
        let first = EXPANDED + self.inserted;
        let ids: BTreeMap<u64, u64> = graph.iter().zip(first..).map(|(node, id)| (node.id, id)).collect();
        let before: Vec<u64> = node.dependencies().collect();
        self.inserted += graph.len() as u64;
        self.graphs += 1;
        for mut part in graph {
            let inner: Vec<u64> = part.dependencies().filter_map(|id| ids.get(&id).copied()).collect();
            part.id = ids[&part.id];
            part.data_deps = if inner.is_empty() { before.clone() } else { inner };
            part.ctrl_deps.clear();
            let tag = part.unsigned(COMM_TAG).unwrap_or(0);
            part.attr.retain(|attribute| attribute.name != COMM_TAG);
            part.set(COMM_TAG, Value::Uint64(self.graphs << 32 | tag & u64::from(u32::MAX)));
            self.expanded.push_back(part);
        }
        let data_deps = before.into_iter().chain(ids.into_values()).collect();
        let name = node.name;
        let r#type = NodeType::Metadata.into();
        self.expanded.push_back(Node { id: node.id, name, r#type, data_deps, ..Node::default() });
    }

    /// Drops dependencies on nodes that the trace does not have, once it is read to its end.
    fn forgive(&mut self) {
        let slots = &self.slots;
        let dangling: Vec<u64> = self.dependents.keys().copied().filter(|id| !slots.contains_key(id)).collect();
        for id in dangling {
            for dependent in self.dependents.swap_remove(&id).unwrap_or_default() {
                self.missing += 1;
                let slot = self.slots.get_mut(&dependent).expect("what waits is here");
                slot.before_start -= 1;
                slot.before_plan -= 1;
                if slot.before_plan == 0 {
                    self.plannable.insert(dependent);
                }
            }
        }
    }

    fn cycle(&self) -> FeedError {
        let unplanned = |id: &u64| self.slots.get(id).is_some_and(|slot| !slot.planned);
        let start = self.slots.keys().copied().filter(unplanned).min().expect("somebody waits");
        let next = |id: u64| {
            let mut dependencies = self.slots[&id].node.dependencies();
            dependencies.find(unplanned).expect("what cannot be planned waits for another such node")
        };
        CheckError::Cycle(find_cycle(start, next)).into()
    }
}

/// A set of node ids. Ids that lie close together need one bit each.
#[derive(Default)]
pub struct IdSet {
    blocks: IndexMap<u64, u64, FxBuildHasher>,
}

impl IdSet {
    /// Adds an id; false if the set already contains it.
    pub fn insert(&mut self, id: u64) -> bool {
        let block = self.blocks.entry(id / 64).or_default();
        let before = *block;
        *block |= 1 << (id % 64);
        *block != before
    }

    /// Whether the set contains an id.
    pub fn contains(&self, id: u64) -> bool {
        self.blocks.get(&(id / 64)).is_some_and(|block| block >> (id % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests;
