//! Owns the way from PyTorch's own traces to one execution trace: the host trace (`ExecutionTraceObserver`) says which operators a
//! rank ran and with which tensors, the profiler's trace (Kineto) when they ran and what they started on the accelerator.
//!
//! Operators are told apart by the id of their record function, which both files name; older files by the order of their names.
//! A node's duration is its operator's own time, without that of the operators inside it.
//!
//! What the files do not say is concluded from time. An operator follows the one before it in its thread, a kernel the one before it
//! in its stream and the operator that launched it. Who starts after a pause can have waited for what ended meanwhile elsewhere, and
//! depends on what of that ended last. And the first operator of a thread that starts after the end of communication which the
//! thread has issued depends on it: no file says where a program waited.

mod comm;
mod device;
mod host;

pub use device::DeviceTrace;
pub use host::HostTrace;

use super::attributes::{IS_CPU_OP, TID};
use super::groups::PROCESS_GROUP_NODE;
use super::schema::{Attribute, GlobalMetadata, Node, NodeType, Value};
use comm::Communication;
use device::{Event, Row};
use flate2::read::MultiGzDecoder;
use host::Operator;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;

/// A pair of files that cannot be linked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// One is not what it should be.
    #[error("{file} cannot be understood: {problem}\nhint: {hint}")]
    Input {
        /// `the host trace`, `the profiler's trace`.
        file: &'static str,
        /// What does not fit.
        problem: String,
        /// What to do.
        hint: &'static str,
    },
    /// They are not of one run.
    #[error(
        "no operator of the host trace is in the profiler's trace\nhint: give the two files of one rank, recorded at the same time"
    )]
    Strangers,
}

/// An execution trace, and what is doubtful about it.
#[derive(Debug)]
pub struct Linked {
    /// What it says about itself.
    pub metadata: GlobalMetadata,
    /// Its nodes, in the order of time.
    pub nodes: Vec<Node>,
    /// For the user.
    pub warnings: Vec<String>,
}

/// The text of a file, which may be compressed with gzip, as the profiler's often are.
///
/// # Errors
/// It is damaged, or no text.
pub fn text(bytes: Vec<u8>) -> Result<String, LinkError> {
    let plain = match bytes.starts_with(&[0x1f, 0x8b]) {
        true => {
            let mut plain = Vec::new();
            MultiGzDecoder::new(&bytes[..]).read_to_end(&mut plain).map(|_| plain).map_err(|error| error.to_string())
        }
        false => Ok(bytes),
    };
    plain.and_then(|plain| String::from_utf8(plain).map_err(|error| error.to_string())).map_err(|problem| {
        LinkError::Input { file: "the file", problem, hint: "give JSON as PyTorch writes it, plain or compressed" }
    })
}

/// A span of the profiler's, and the node that it becomes.
struct Span {
    node: u64,
    event: Event,
    /// Its own time, without that of spans inside it, in nanoseconds.
    own_ns: i64,
    communication: bool,
    /// On a thread: the span that it is inside of.
    around: Option<usize>,
}

/// A thread, or a stream of an accelerator.
type Lane = (Row, u64);

/// Makes one trace of a pair.
///
/// # Errors
/// The two have nothing in common.
pub fn link(host: &HostTrace, device: &DeviceTrace) -> Result<Linked, LinkError> {
    let mut linker = Linker::new(host, device);
    linker.match_operators();
    if linker.spans.is_empty() {
        return Err(LinkError::Strangers);
    }
    linker.add_kernels();
    linker.measure();
    linker.depend();
    Ok(linker.finish())
}

struct Linker<'a> {
    host: &'a HostTrace,
    device: &'a DeviceTrace,
    nodes: BTreeMap<u64, Node>,
    spans: Vec<Span>,
    /// By the id of the record function: the node.
    by_function: BTreeMap<u64, u64>,
    communication: Communication,
    warnings: Vec<String>,
}

impl<'a> Linker<'a> {
    fn new(host: &'a HostTrace, device: &'a DeviceTrace) -> Linker<'a> {
        let nodes = host.operators.iter().map(|operator| (operator.id, operator_node(operator))).collect();
        let by_function = host.operators.iter().map(|operator| (operator.function, operator.id)).collect();
        let communication = Communication::new(host);
        Linker { host, device, nodes, spans: Vec::new(), by_function, communication, warnings: Vec::new() }
    }

    /// Finds each operator's time.
    fn match_operators(&mut self) {
        let mut left: BTreeMap<&str, VecDeque<&Event>> = BTreeMap::new();
        for event in self.device.events.iter().filter(|event| event.row == Row::Thread) {
            match event.function.and_then(|function| self.by_function.get(&function)) {
                Some(node) if self.nodes[node].name == event.name => self.place(*node, event),
                _ => left.entry(&event.name).or_default().push_back(event),
            }
        }
        let placed: BTreeSet<u64> = self.spans.iter().map(|span| span.node).collect();
        let missing =
            self.host.operators.iter().filter(|operator| !placed.contains(&operator.id) && operator.is_timed());
        let mut unknown = 0;
        for operator in missing {
            match left.get_mut(operator.name.as_str()).and_then(VecDeque::pop_front) {
                Some(event) => self.place(operator.id, event),
                None => unknown += 1,
            }
        }
        if unknown > 0 {
            self.warnings.push(format!("{unknown} operators are not in the profiler's trace: they take no time"));
        }
    }

    fn place(&mut self, node: u64, event: &Event) {
        let communication = self.communication.of_operator(node).is_some();
        self.spans.push(Span { node, event: event.clone(), own_ns: 0, communication, around: None });
    }

    /// What ran on the accelerator becomes nodes of its own, in the order of their launch.
    fn add_kernels(&mut self) {
        let first = self.nodes.keys().next_back().map_or(1, |id| id + 1);
        let kernels = self.device.events.iter().filter(|event| event.row == Row::Stream);
        for (id, event) in (first..).zip(kernels) {
            let mut node = Node { id, name: event.name.clone(), r#type: NodeType::Comp.into(), ..Node::default() };
            node.set(IS_CPU_OP, Value::Bool(false));
            node.set("stream", Value::Int64(event.lane as i64));
            let communication = self.communication.describe_kernel(event, &mut node);
            self.nodes.insert(id, node);
            self.spans.push(Span { node: id, event: event.clone(), own_ns: 0, communication, around: None });
        }
    }

    /// Own times, and from them each node's start and duration.
    fn measure(&mut self) {
        self.spans.sort_by_key(|span| (span.event.start_ns, span.node));
        let mut open: BTreeMap<Lane, Vec<usize>> = BTreeMap::new();
        for index in 0..self.spans.len() {
            let Event { start_ns, row, lane, .. } = self.spans[index].event;
            let length = self.spans[index].event.length_ns();
            self.spans[index].own_ns = length;
            let stack = open.entry((row, lane)).or_default();
            while stack.last().is_some_and(|last| self.spans[*last].event.end_ns <= start_ns) {
                stack.pop();
            }
            let around = stack.last().copied().filter(|_| row == Row::Thread);
            if let Some(around) = around {
                self.spans[around].own_ns -= length;
            }
            self.spans[index].around = around;
            stack.push(index);
        }
        let base = self.spans.first().map_or(0, |span| span.event.start_ns);
        let mut left_over: BTreeMap<Lane, i64> = BTreeMap::new();
        for span in &self.spans {
            let node = self.nodes.get_mut(&span.node).expect("every span has a node");
            // Communication takes as long as it took; of the rest, what is rounded away is not lost.
            let over = left_over.entry((span.event.row, span.event.lane)).or_default();
            let exact = span.own_ns.max(0) + *over;
            let micros = ((exact + 500).div_euclid(1_000)).max(0);
            *over = exact - micros * 1_000;
            node.start_time_micros = ((span.event.start_ns - base) / 1_000) as u64;
            node.duration_micros = micros as u64;
        }
    }

    fn depend(&mut self) {
        let mut before: BTreeMap<Lane, Before> = BTreeMap::new();
        let (lanes, ends) = (self.lanes(), self.ends());
        let mut pending: Vec<usize> = Vec::new();
        for index in 0..self.spans.len() {
            let span = &self.spans[index];
            let (start, lane) = (span.event.start_ns, (span.event.row, span.event.lane));
            let mut deps = BTreeSet::new();
            let last = before.get(&lane).copied();
            deps.extend(last.map(|last| last.node));
            let idle_since = last.map_or(i64::MIN, |last| last.end_ns);
            // Who is inside another span of its lane has not been idle.
            if idle_since < start {
                deps.extend(latest_end(&ends, idle_since, start, lane));
            }
            deps.extend(self.launcher(span, &lanes));
            if span.event.row == Row::Thread && !span.communication {
                pending.retain(|waiting| {
                    let over = self.spans[*waiting].event.end_ns <= start;
                    if over {
                        deps.insert(self.spans[*waiting].node);
                    }
                    !over
                });
            }
            if span.communication && span.event.row == Row::Thread {
                pending.push(index);
                // It runs beside its thread: what it depends on is who issued it.
                if let Some(issuer) = self.communication.issuer(span.node) {
                    deps = BTreeSet::from([issuer]);
                }
            } else {
                let end_ns = last.map_or(span.event.end_ns, |last| last.end_ns.max(span.event.end_ns));
                before.insert(lane, Before { node: span.node, end_ns });
            }
            let node = self.nodes.get_mut(&span.node).expect("every span has a node");
            deps.remove(&node.id);
            node.data_deps = deps.into_iter().collect();
        }
    }

    /// The operator that launched a kernel.
    fn launcher(&self, span: &Span, lanes: &BTreeMap<Lane, Vec<usize>>) -> Option<u64> {
        let correlation = span.event.correlation.filter(|_| span.event.row == Row::Stream)?;
        let launch = self.device.launches.get(&correlation)?;
        let thread = lanes.get(&(Row::Thread, launch.thread))?;
        // Of those around the launch, the one that started last is the innermost.
        let until = thread.partition_point(|index| self.spans[*index].event.start_ns <= launch.start_ns);
        let last = thread[..until].last().copied();
        let mut candidates = std::iter::successors(last, |index| self.spans[*index].around);
        let around = candidates.find(|index| launch.start_ns < self.spans[*index].event.end_ns)?;
        Some(self.spans[around].node)
    }

    /// The spans of each lane, by their start.
    fn lanes(&self) -> BTreeMap<Lane, Vec<usize>> {
        let mut lanes: BTreeMap<Lane, Vec<usize>> = BTreeMap::new();
        for (index, Span { event, .. }) in self.spans.iter().enumerate() {
            lanes.entry((event.row, event.lane)).or_default().push(index);
        }
        lanes
    }

    /// The ends on each lane in order: when, of which node.
    fn ends(&self) -> BTreeMap<Lane, Vec<(i64, u64)>> {
        let mut ends: BTreeMap<Lane, Vec<(i64, u64)>> = BTreeMap::new();
        for Span { event, node, communication, .. } in &self.spans {
            if !(*communication && event.row == Row::Thread) {
                ends.entry((event.row, event.lane)).or_default().push((event.end_ns, *node));
            }
        }
        ends.values_mut().for_each(|ends| ends.sort_unstable());
        ends
    }

    fn finish(mut self) -> Linked {
        let mut order: Vec<u64> = self.spans.iter().map(|span| span.node).collect();
        let placed: BTreeSet<u64> = order.iter().copied().collect();
        let others: Vec<u64> = self.nodes.keys().copied().filter(|id| !placed.contains(id)).collect();
        self.communication.describe_operators(&mut self.nodes, &mut self.warnings);
        order.splice(0..0, others);
        let position: BTreeMap<u64, usize> = order.iter().zip(0..).map(|(id, place)| (*id, place)).collect();
        // A parent that starts after its child, as annotations of other threads have, is none.
        for node in self.nodes.values_mut() {
            let place = position[&node.id];
            node.ctrl_deps.retain(|parent| position.get(parent).is_some_and(|parent| *parent < place));
            node.data_deps.retain(|other| position.get(other).is_some_and(|other| *other < place));
        }
        let nodes = order.iter().filter_map(|id| self.nodes.remove(id)).collect();
        Linked { metadata: metadata(self.host), nodes, warnings: self.warnings }
    }
}

/// What stands last in a lane: the node, and until when the lane is busy.
#[derive(Clone, Copy)]
struct Before {
    node: u64,
    end_ns: i64,
}

/// What ended last, after `from` and not after `to`, on another lane.
fn latest_end(ends: &BTreeMap<Lane, Vec<(i64, u64)>>, from: i64, to: i64, lane: Lane) -> Option<u64> {
    let last = |(other, ends): (&Lane, &Vec<(i64, u64)>)| {
        let (at, node) = *ends[..ends.partition_point(|(at, _)| *at <= to)].last()?;
        Some((at, *other, node))
    };
    let recent = ends.iter().filter(|(other, _)| **other != lane).filter_map(last).filter(|(at, ..)| *at > from);
    recent.max().map(|(.., node)| node)
}

fn metadata(host: &HostTrace) -> GlobalMetadata {
    let schema = Attribute::new("schema", Value::String(host.schema.clone()));
    GlobalMetadata { version: "1.0.0".to_owned(), attr: vec![schema] }
}

/// Without times and dependencies but its parent.
fn operator_node(operator: &Operator) -> Node {
    let kind = if operator.is_timed() { NodeType::Comp } else { NodeType::Metadata };
    let mut node = Node { id: operator.id, name: operator.name.clone(), r#type: kind.into(), ..Node::default() };
    node.ctrl_deps = operator.parent.into_iter().filter(|parent| *parent != operator.id).collect();
    node.inputs = Some(Box::new(operator.inputs.to_info()));
    node.outputs = Some(Box::new(operator.outputs.to_info()));
    node.set("rf_id", Value::Int64(operator.function as i64));
    node.set(TID, Value::Int64(operator.thread as i64));
    node.set("op_schema", Value::String(operator.schema.clone()));
    node.set(IS_CPU_OP, Value::Bool(true));
    debug_assert!(kind == NodeType::Metadata || node.name != PROCESS_GROUP_NODE, "descriptions take no time");
    node
}

#[cfg(test)]
mod tests;
