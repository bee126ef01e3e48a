//! Owns the conversion of a rank's timeline to nodes: their ids, in an order in which every node comes after its
//! dependencies, the delays between dependencies and the start of their dependents, and attributes.

use super::comm::CommKind;
use super::repair::circle_closing;
use super::timeline::{Item, ItemKind, Lane, RankFiles, Timeline};
use super::{Edge, LinkError, Linked};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use uniference_formats::chakra::attributes::{
    COMM_DST, COMM_SIZE, COMM_SRC, COMM_TAG, COMM_TYPE, DTYPE, IN_SPLIT, IS_CPU_OP, OUT_SPLIT, PG_NAME, ROOT_RANK, TID,
};
use uniference_formats::chakra::groups::describe;
use uniference_formats::chakra::own::{DURATION_PS, LIBRARY, PART, RECORDED_PS};
use uniference_formats::chakra::schema::{Attribute, CommType, GlobalMetadata, Node, NodeType, Uint64List, Value};
use uniference_sim::program::DType;

/// A process group. Communication without a group in the files is of all ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    /// Name; `None`: the group of all ranks of the job.
    pub(super) name: Option<String>,
    /// Ranks in the group's own order.
    pub(super) ranks: Vec<u32>,
}

/// One rank's part in an operation.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) kind: CommKind,
    /// Index of the group in the rank's groups.
    pub(super) group: usize,
    pub(super) bytes: u64,
    pub(super) dtype: Option<DType>,
    pub(super) in_split: Vec<u64>,
    pub(super) out_split: Vec<u64>,
    /// The peer or the root, as a rank of the job.
    pub(super) peer: Option<u32>,
    pub(super) tag: u64,
    /// Duration from the time at which the last rank entered the operation.
    pub(super) recorded_ns: u64,
}

/// Input of one rank's graph.
pub(super) struct LinkedRank<'a> {
    pub(super) rank: u32,
    pub(super) recording: RankFiles<'a>,
    pub(super) timeline: &'a Timeline,
    /// Calls of process groups, by item of the timeline.
    pub(super) calls: &'a FxHashMap<u32, Call>,
    pub(super) groups: &'a [Group],
    /// Offset that converts times of this rank's clock to nanoseconds since the first rank's start.
    pub(super) shift_ns: i128,
}

/// Writes a rank's graph; dependencies that are dropped to break cycles are added to `dropped`.
///
/// # Errors
/// The graph has a cycle, and `repair` is false.
pub(super) fn write(rank: &LinkedRank<'_>, repair: bool, dropped: &mut Vec<String>) -> Result<Linked, LinkError> {
    let items = &rank.timeline.items;
    let mut deps: Vec<Vec<u32>> = items.iter().map(|item| item.deps.clone()).collect();
    let order = match topological(items, &deps) {
        Some(order) => order,
        None => {
            let closing = circle_closing(&deps);
            let edge = |node: u32, place: usize| {
                let on = deps[node as usize][place];
                let named = |item: u32| (u64::from(item), rank.name(&items[item as usize]));
                Edge { node: named(node), on: named(on) }
            };
            if !repair {
                let (node, place) = closing[0];
                return Err(LinkError::Circle { rank: rank.rank, problem: edge(node, place).to_string() });
            }
            dropped.extend(closing.iter().map(|(node, place)| format!("rank {}: {}", rank.rank, edge(*node, *place))));
            for (node, place) in closing.iter().rev() {
                deps[*node as usize].remove(*place);
            }
            topological(items, &deps).expect("what closed circles is dropped")
        }
    };
    let mut nodes: Vec<Node> = rank.groups.iter().filter(|group| group.is_described()).map(Group::describe).collect();
    (0_u64..).zip(&mut nodes).for_each(|(id, node)| node.id = id);
    let mut ids = vec![0; items.len()];
    let mut end = 0;
    for item in order {
        let deps = &deps[item as usize];
        let item_at = &items[item as usize];
        let (start, until) = (rank.since_start(item_at.start_ns), rank.since_start(item_at.end_ns));
        end = end.max(until);
        // The dependency that ended last determines the start.
        let binding = deps.iter().copied().max_by_key(|dep| (items[*dep as usize].end_ns, *dep));
        let ready = binding.map_or(0, |dep| rank.since_start(items[dep as usize].end_ns));
        let mut node = rank.node(item, start, until);
        node.data_deps =
            deps.iter().filter(|dep| Some(**dep) != binding || ready >= start).map(|dep| ids[*dep as usize]).collect();
        if ready < start {
            let delay = delay(nodes.len() as u64, ready, start, binding.map(|dep| ids[dep as usize]));
            node.data_deps.push(delay.id);
            nodes.push(delay);
        }
        node.data_deps.sort_unstable();
        node.id = nodes.len() as u64;
        ids[item as usize] = node.id;
        nodes.push(node);
    }
    let mut attr = vec![Attribute::new("writer", Value::String("uniference chakra link".to_owned()))];
    if let Some((host, _)) = rank.recording.host {
        attr.push(Attribute::new("schema", Value::String(host.schema.clone())));
    }
    // All communication on threads comes from Gloo's marks, so the library is Gloo.
    let on_thread = |item: &Item| matches!(item.lane, Lane::Thread(_));
    let mut communication = items.iter().filter(|item| matches!(item.what, ItemKind::Communication(..))).peekable();
    if communication.peek().is_some() && communication.all(on_thread) {
        attr.push(Attribute::new(LIBRARY, Value::String("gloo".to_owned())));
    }
    let metadata = GlobalMetadata { version: "1.0.0".to_owned(), attr };
    Ok(Linked { metadata, nodes: Arc::new(nodes), recorded_ns: end, like: rank.rank })
}

/// Topological order; independent items are in the order in which the host issued them. `None`: there is a cycle.
fn topological(items: &[Item], deps: &[Vec<u32>]) -> Option<Vec<u32>> {
    let mut dependents: Vec<Vec<u32>> = vec![Vec::new(); items.len()];
    let mut missing: Vec<usize> = deps.iter().map(Vec::len).collect();
    for (item, deps) in (0_u32..).zip(deps) {
        deps.iter().for_each(|dep| dependents[*dep as usize].push(item));
    }
    let key = |item: u32| Reverse((items[item as usize].issued_ns, item));
    let mut free: BinaryHeap<_> =
        (0..items.len() as u32).filter(|item| missing[*item as usize] == 0).map(key).collect();
    let mut order = Vec::with_capacity(items.len());
    while let Some(Reverse((_, item))) = free.pop() {
        order.push(item);
        for dependent in &dependents[item as usize] {
            missing[*dependent as usize] -= 1;
            if missing[*dependent as usize] == 0 {
                free.push(key(*dependent));
            }
        }
    }
    (order.len() == items.len()).then_some(order)
}

/// A node of time in which nothing works for the node that depends on it.
fn delay(id: u64, from_ns: u64, to_ns: u64, after: Option<u64>) -> Node {
    let mut node = Node { id, name: "delay".to_owned(), r#type: NodeType::Comp.into(), ..Node::default() };
    node.data_deps = after.into_iter().collect();
    node.set(IS_CPU_OP, Value::Bool(true));
    node.set(PART, Value::String("delay".to_owned()));
    set_times(&mut node, from_ns, to_ns);
    node
}

/// Sets times in whole microseconds, rounded such that errors do not accumulate along a thread or stream, and the exact
/// duration.
fn set_times(node: &mut Node, from_ns: u64, to_ns: u64) {
    node.start_time_micros = from_ns / 1_000;
    node.duration_micros = (to_ns / 1_000).saturating_sub(from_ns / 1_000);
    node.set(DURATION_PS, Value::Uint64(to_ns.saturating_sub(from_ns).saturating_mul(1_000)));
}

impl LinkedRank<'_> {
    /// Nanoseconds since the first rank's start.
    fn since_start(&self, at_ns: i64) -> u64 {
        u64::try_from(i128::from(at_ns) + self.shift_ns).unwrap_or(0)
    }

    fn name(&self, item: &Item) -> String {
        let profile = self.recording.profile;
        let event = match &item.what {
            ItemKind::Host { event: None, .. } => return "between operators".to_owned(),
            ItemKind::Host { event: Some(event), .. } => event,
            ItemKind::Kernel(event) | ItemKind::Communication(event, _) | ItemKind::Unknown(event, _) => event,
        };
        profile.name(&profile.events[*event as usize]).to_owned()
    }

    /// The node of an item, without id and dependencies.
    fn node(&self, item: u32, start_ns: u64, end_ns: u64) -> Node {
        let at = &self.timeline.items[item as usize];
        let mut node = Node { name: self.name(at), r#type: NodeType::Comp.into(), ..Node::default() };
        match at.lane {
            Lane::Thread(thread) => node.set(TID, Value::Int64(thread)),
            Lane::Stream(device, stream) => {
                node.set("device", Value::Int64(device));
                node.set("stream", Value::Int64(stream));
            }
        }
        if let Some(call) = self.calls.get(&item) {
            node.set(IS_CPU_OP, Value::Bool(false));
            self.communicate(&mut node, call);
            set_times(&mut node, start_ns, end_ns);
            return node;
        }
        node.set(IS_CPU_OP, Value::Bool(matches!(at.lane, Lane::Thread(_))));
        if let ItemKind::Host { event: Some(event), first: true } = at.what {
            self.describe_operator(event, &mut node);
        }
        // An item without duration becomes a metadata node, because it is no work.
        if end_ns == start_ns {
            node.r#type = NodeType::Metadata.into();
            node.start_time_micros = start_ns / 1_000;
            return node;
        }
        node.set(PART, Value::String("side_by_side".to_owned()));
        set_times(&mut node, start_ns, end_ns);
        node
    }

    /// Adds the host trace's description of an operator.
    fn describe_operator(&self, event: u32, node: &mut Node) {
        let Some((host, matching)) = self.recording.host else { return };
        let Some(operator) = matching.operator.get(&event).map(|place| &host.operators[*place as usize]) else {
            return;
        };
        node.inputs = Some(Box::new(operator.inputs.clone()));
        node.outputs = Some(Box::new(operator.outputs.clone()));
        node.set("rf_id", Value::Uint64(operator.function));
        node.set("op_schema", Value::String(operator.schema.clone()));
    }

    fn communicate(&self, node: &mut Node, call: &Call) {
        let group = &self.groups[call.group];
        if group.is_described() {
            node.set(PG_NAME, Value::String(group.name.clone().unwrap_or_default()));
        }
        node.set(COMM_SIZE, Value::Uint64(call.bytes));
        if let Some(dtype) = call.dtype {
            node.set(DTYPE, Value::String(dtype.name().to_owned()));
        }
        node.set(RECORDED_PS, Value::Uint64(call.recorded_ns.saturating_mul(1_000)));
        let peer = Value::Uint64(call.peer.unwrap_or(0).into());
        match call.kind {
            CommKind::Collective(kind) => {
                node.r#type = NodeType::CommColl.into();
                node.set(COMM_TYPE, Value::Int64(kind as i64));
                if matches!(kind, CommType::Broadcast | CommType::Reduce | CommType::Gather | CommType::Scatter)
                    && call.peer.is_some()
                {
                    node.set(ROOT_RANK, peer);
                }
                if !call.in_split.is_empty() {
                    let list = |values: &[u64]| Value::Uint64List(Uint64List { values: values.to_vec() });
                    node.set(IN_SPLIT, list(&call.in_split));
                    node.set(OUT_SPLIT, list(&call.out_split));
                }
            }
            CommKind::Send | CommKind::Recv => {
                let (kind, attribute) = match call.kind {
                    CommKind::Send => (NodeType::CommSend, COMM_DST),
                    _ => (NodeType::CommRecv, COMM_SRC),
                };
                node.r#type = kind.into();
                node.set(attribute, peer);
                node.set(COMM_TAG, Value::Uint64(call.tag));
            }
        }
    }
}

impl Group {
    /// Whether the group needs a description: an unnamed group of all ranks does not.
    fn is_described(&self) -> bool {
        self.name.is_some()
    }

    fn describe(&self) -> Node {
        describe(self.name.as_deref().unwrap_or_default(), &self.ranks)
    }
}
