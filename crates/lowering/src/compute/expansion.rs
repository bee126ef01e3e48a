//! Owns the expansion of a slice of a program with simulated GPUs into host work and launches on CUDA streams.
//!
//! The pieces and their order follow from the program's entries alone, never from costs: a replay on another device has
//! the same pieces, with other durations.
//!
//! The host reaches an operator, and then launches its work; the device's part of an operator is launched with its
//! first kernel. Work on a stream in capture is not launched: the graph keeps it, and each launch of the graph launches
//! it without host work. In a graph, the stream where the capture began stands for the stream of the graph launch;
//! streams that joined the capture become branches of the graph, and events recorded during the capture become events
//! of the graph, except external ones.
//!
//! The rank itself makes a graph's process group calls, as it makes other calls: a launch runs up to the first call,
//! and each resumption runs from behind one call to the next. A call captured on a branch is made on the stream of that
//! branch, and events order the two.

use crate::slice::{CopyEngine, Launch, LaunchId, LoweredWork};
use std::collections::{BTreeMap, VecDeque};
use std::mem::take;
use uniference_formats::operators::{CopyKind, LaunchFlags, Line, Reading, StreamEntry};
use uniference_sim::device::{HostCosts, Resource, Work};
use uniference_sim::program::Origin;
use uniference_sim::time::SimDuration;

/// Streams and events of programs have numbers below this; branches and events of graphs have numbers from here on.
const OF_GRAPHS: u32 = 1 << 31;
/// In a graph: the stream of the graph launch.
const ORIGIN: u32 = u32::MAX;

/// A piece, and the index of its cost.
pub(super) struct CostedPiece {
    pub(super) piece: LoweredWork,
    /// Index that was given with the work; `None`: host work, or a piece without duration.
    pub(super) cost: Option<usize>,
}

/// An operator whose cost depends on integers, and the buffers that contain them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reads {
    /// Index of the operator's definition.
    pub(super) definition: usize,
    pub(super) readings: Vec<Reading>,
}

/// Work on the device, and the index of its cost.
pub(super) struct DevicePart {
    pub(super) work: Work,
    pub(super) cost: Option<usize>,
    /// Numbers by which the rank asks for the times of the work.
    pub(super) numbers: Vec<u64>,
    /// Integers that the cost depends on; a captured operator reads them again in each graph launch.
    pub(super) reads: Option<Reads>,
    /// Line of the operator that launched the work; known when the operator has run.
    pub(super) line: Line,
}

impl DevicePart {
    /// A part without numbers, which are added in [`Expansion::enter`].
    pub(super) fn new(work: Work, cost: Option<usize>) -> DevicePart {
        DevicePart { work, cost, numbers: Vec::new(), reads: None, line: Line::default() }
    }
}

/// The expansion of a rank's slices.
#[derive(Default)]
pub(super) struct Expansion {
    host: HostCosts,
    /// Host work since the last piece; `None`: no work.
    worked: Option<SimDuration>,
    /// Python time since the last operator or piece.
    python: SimDuration,
    pieces: Vec<CostedPiece>,
    /// Launches of the running operator so far, each with its device part.
    inside: Vec<(StreamEntry, DevicePart)>,
    /// For an operator that was running when the slice ended: the stream of its first kernel.
    interrupted: Option<u32>,
    /// Whether an operator that was running when the slice ended had entries.
    entered: bool,
    /// Numbers of the operator's kernels that have no piece yet.
    unanswered: Vec<u64>,
    /// Number of the next launch.
    next_number: Option<u64>,
    graphs: BTreeMap<u32, Graph>,
    /// Launched graphs that stopped at a process group call.
    suspended: BTreeMap<u32, Suspended>,
    /// Streams in capture, each with its graph and its number in the graph.
    capturing: BTreeMap<u32, (u32, u32)>,
    /// Events recorded during a capture, each with its graph and its number in the graph.
    captured: BTreeMap<u32, (u32, u32)>,
    /// Counters of branches and events of graphs.
    branches: u32,
    events: u32,
}

/// Nodes of a captured graph.
#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
}

#[derive(Clone)]
enum Node {
    LoweredWork {
        piece: LoweredWork,
        cost: Option<usize>,
        reads: Option<Reads>,
    },
    /// A process group call.
    Call {
        /// Number of the captured stream in the graph.
        own: u32,
        /// Stream on which the rank makes the call.
        stream: u32,
        with_previous: bool,
        /// For a call on a branch: the event before the call, and the event behind it.
        events: [u32; 2],
    },
}

impl Node {
    /// Replaces the capture's origin by the stream of the graph launch: stream `on`, whose number in an enclosing graph
    /// is `own`.
    fn launch_on(&mut self, own: u32, on: u32) {
        match self {
            Node::LoweredWork { piece, .. } => {
                if let Some(stream) = stream_of(piece)
                    && *stream == ORIGIN
                {
                    *stream = own;
                }
            }
            Node::Call { own: there, stream, .. } if *there == ORIGIN => (*there, *stream) = (own, on),
            Node::Call { .. } => {}
        }
    }
}

/// The remaining nodes of a launched graph.
struct Suspended {
    nodes: VecDeque<Node>,
    /// Events behind the calls that the rank makes now.
    ties: Vec<[LoweredWork; 2]>,
}

fn stream_of(piece: &mut LoweredWork) -> Option<&mut u32> {
    match piece {
        LoweredWork::Launch(Launch { stream, .. })
        | LoweredWork::Record { stream, .. }
        | LoweredWork::Wait { stream, .. } => Some(stream),
        LoweredWork::Host(_) => None,
    }
}

impl Expansion {
    pub(super) fn new(host: HostCosts) -> Expansion {
        Expansion { host, ..Expansion::default() }
    }

    /// Whether the running operator has launched a kernel.
    pub(super) fn has_launched(&self) -> bool {
        let launches = |(entry, _): &(StreamEntry, DevicePart)| matches!(entry, StreamEntry::Launch { .. });
        self.interrupted.is_some() || self.inside.iter().any(launches)
    }

    /// Sets the number by which the rank asks for the times of the next launch.
    pub(super) fn number(&mut self, number: u64) {
        self.next_number = Some(number);
    }

    /// Adds Python calls of the program. Pieces do not depend on the time of the calls.
    pub(super) fn python(&mut self, calls: u64) {
        self.python = sum(self.python, python_time(self.host.python, calls));
        self.worked.get_or_insert_default();
    }

    /// Adds an entry of a CUDA stream; `part` is its work on the device, if it has any.
    pub(super) fn enter(&mut self, entry: StreamEntry, mut part: DevicePart) {
        part.numbers.extend(self.next_number.take());
        match entry {
            StreamEntry::Launch { flags: LaunchFlags { inside: true, .. }, .. }
            | StreamEntry::Copy { flags: LaunchFlags { inside: true, .. }, .. } => self.inside.push((entry, part)),
            // An entry between two launches of an operator keeps its position.
            _ if !self.inside.is_empty() => self.inside.push((entry, part)),
            _ => self.hand(entry, part),
        }
    }

    /// Adds an operator that ran at this line. `part` is its work on the device, if it launched a kernel, and `on_host`
    /// its compute time on the host CPU.
    pub(super) fn operator(&mut self, part: Option<DevicePart>, on_host: SimDuration, line: Line) {
        // The operator's host time includes the Python time before it.
        let python = take(&mut self.python);
        let entered = take(&mut self.entered) || !self.inside.is_empty();
        let is_idle = part.is_none() && !entered && on_host == SimDuration::ZERO;
        let own = if is_idle { self.host.idle() } else { self.host.operator };
        self.works(sum(own.max(python), on_host));
        let inside = take(&mut self.inside);
        let kernels = inside.iter().filter(|(entry, _)| matches!(entry, StreamEntry::Launch { .. }));
        self.unanswered.extend(kernels.flat_map(|(_, own)| &own.numbers));
        // All kernels of an operator are one piece.
        let numbers = take(&mut self.unanswered);
        let mut part = part.map(|part| DevicePart { numbers, line, ..part });
        if let Some(stream) = self.interrupted.take()
            && let Some(part) = part.take()
        {
            self.push(launch(stream, part, None, false));
        }
        let mut first = true;
        for (entry, own) in inside {
            match entry {
                StreamEntry::Launch { stream, .. } => {
                    if !take(&mut first) {
                        self.works(self.host.launch);
                    }
                    if let Some(part) = part.take() {
                        self.push(launch(stream, part, None, true));
                    }
                }
                other => self.hand(other, DevicePart { line, ..own }),
            }
        }
    }

    /// Pieces of the slice. `known`: host time of the whole slice, if it is known.
    pub(super) fn finish(&mut self, known: Option<Work>) -> Vec<CostedPiece> {
        // The program makes a request inside an operator that waits for its own launches.
        self.entered |= !self.inside.is_empty();
        for (entry, mut part) in take(&mut self.inside) {
            if let StreamEntry::Launch { stream, .. } = entry {
                self.interrupted.get_or_insert(stream);
                self.unanswered.append(&mut part.numbers);
            }
            self.hand(entry, part);
        }
        self.end_host_piece();
        let mut pieces = take(&mut self.pieces);
        if let Some(known) = known {
            shares(&mut pieces, &known);
        }
        pieces
    }

    fn works(&mut self, lasts: SimDuration) {
        self.worked = Some(sum(self.worked.unwrap_or_default(), lasts));
    }

    fn end_host_piece(&mut self) {
        let worked = sum(self.worked.take().unwrap_or_default(), take(&mut self.python));
        let work = Work::new(worked, Origin::Transferred).on(Resource::Host);
        self.pieces.push(CostedPiece { piece: LoweredWork::Host(work), cost: None });
    }

    fn hand(&mut self, entry: StreamEntry, part: DevicePart) {
        match entry {
            StreamEntry::Launch { stream, flags, .. } => {
                self.launches(flags);
                self.push(launch(stream, part, None, true));
            }
            StreamEntry::Copy { stream, kind, flags, .. } => {
                self.launches(flags);
                self.push(launch(stream, part, Some(kind), true));
            }
            StreamEntry::Record { event, stream } => {
                self.works(self.host.call);
                match self.capturing.get(&stream) {
                    Some((graph, _)) => {
                        let graph = *graph;
                        let own = self.new_event();
                        self.captured.insert(event, (graph, own));
                    }
                    None => drop(self.captured.remove(&event)),
                }
                self.push_piece(LoweredWork::Record { event, stream });
            }
            StreamEntry::Wait { stream, event } => {
                self.works(self.host.call);
                if let Some((graph, _)) = self.captured.get(&event) {
                    self.join(stream, *graph);
                }
                self.push_piece(LoweredWork::Wait { stream, event });
            }
            StreamEntry::ExternalRecord { event, stream } => {
                self.works(self.host.call);
                self.keep_external(stream, |stream| LoweredWork::Record { event, stream });
            }
            StreamEntry::ExternalWait { stream, event } => {
                self.works(self.host.call);
                self.keep_external(stream, |stream| LoweredWork::Wait { stream, event });
            }
            StreamEntry::Capture { stream, graph: Some(graph) } => {
                self.works(self.host.call);
                if self.capturing.values().any(|(other, _)| *other == graph) {
                    self.join(stream, graph);
                } else {
                    self.graphs.insert(graph, Graph::default());
                    self.capturing.insert(stream, (graph, ORIGIN));
                }
            }
            StreamEntry::Capture { stream, graph: None } => {
                self.works(self.host.call);
                if let Some((graph, _)) = self.capturing.get(&stream).copied() {
                    self.capturing.retain(|_, (of, _)| *of != graph);
                    self.captured.retain(|_, (of, _)| *of != graph);
                }
            }
            StreamEntry::GraphLaunch { graph, stream } => {
                self.works(self.host.launch);
                self.launch_graph(graph, stream, part.numbers.first().copied());
            }
            StreamEntry::Call { stream, with_previous } => {
                let events = [self.new_event(), self.new_event()];
                self.push(Node::Call { own: stream, stream, with_previous, events });
            }
            StreamEntry::Resumption { graph, .. } => {
                if let Some(Suspended { nodes, ties }) = self.suspended.remove(&graph) {
                    ties.into_iter().flatten().for_each(|piece| self.push_piece(piece));
                    self.go_on(graph, nodes);
                }
            }
            StreamEntry::HostFunction { stream } => {
                self.works(self.host.launch);
                self.push(launch(stream, part, None, false));
            }
        }
    }

    fn launches(&mut self, flags: LaunchFlags) {
        // Launches inside an operator are in the operator's host time.
        if !flags.free && !flags.inside {
            self.works(self.host.launch);
        }
    }

    fn new_event(&mut self) -> u32 {
        self.events += 1;
        OF_GRAPHS + self.events - 1
    }

    /// Makes the stream a branch of the captured graph, unless it already belongs to it.
    fn join(&mut self, stream: u32, graph: u32) {
        if !self.capturing.contains_key(&stream) {
            self.capturing.insert(stream, (graph, OF_GRAPHS + self.branches));
            self.branches += 1;
        }
    }

    fn push_piece(&mut self, piece: LoweredWork) {
        self.push(Node::LoweredWork { piece, cost: None, reads: None });
    }

    /// Ends the host work and adds a piece, or keeps the piece with the graph that captures its stream.
    fn push(&mut self, mut node: Node) {
        let stream = match &mut node {
            Node::LoweredWork { piece, .. } => stream_of(piece).expect("work of the host is handed to no stream"),
            Node::Call { own, .. } => own,
        };
        let Some((graph, own)) = self.capturing.get(stream).copied() else {
            return self.hand_over(node);
        };
        *stream = own;
        if let Node::LoweredWork {
            piece: LoweredWork::Record { event, .. } | LoweredWork::Wait { event, .. }, ..
        } = &mut node
        {
            // An event recorded outside the graph is complete when the graph is launched.
            let Some((_, own)) = self.captured.get(event).filter(|(of, _)| *of == graph) else { return };
            *event = *own;
        }
        self.keep(graph, node);
    }

    /// Keeps a record of or a wait for an external event with the graph that captures the stream.
    fn keep_external(&mut self, stream: u32, piece: impl FnOnce(u32) -> LoweredWork) {
        if let Some((graph, own)) = self.capturing.get(&stream).copied() {
            self.keep(graph, Node::LoweredWork { piece: piece(own), cost: None, reads: None });
        }
    }

    /// Adds a node, with streams and events in the graph's numbers, to a graph.
    fn keep(&mut self, graph: u32, mut node: Node) {
        if let Node::LoweredWork { piece: LoweredWork::Launch(launch), .. } = &mut node {
            (launch.queued, launch.blocks) = (false, false);
            // A launch that the rank numbered during the capture becomes a node of each launch of the graph.
            launch.ids.iter_mut().for_each(|id| *id = LaunchId { launch: 0, node: id.leaf() });
        }
        self.graphs.entry(graph).or_default().nodes.push(node);
    }

    fn hand_over(&mut self, node: Node) {
        // The rank makes the call itself.
        let Node::LoweredWork { piece, cost, .. } = node else { return };
        if self.worked.is_some() && !matches!(piece, LoweredWork::Wait { .. }) {
            self.end_host_piece();
        }
        self.pieces.push(CostedPiece { piece, cost });
    }

    /// Operators of a graph that read integers in each launch, in the graph's order.
    pub(super) fn reads(&self, graph: u32) -> Vec<Reads> {
        let nodes = self.graphs.get(&graph).map_or(&[][..], |graph| &graph.nodes);
        let reads = |node: &Node| if let Node::LoweredWork { reads, .. } = node { reads.clone() } else { None };
        nodes.iter().filter_map(reads).collect()
    }

    /// Replaces the device parts of these operators in later launches of the graph.
    pub(super) fn refresh(&mut self, graph: u32, parts: Vec<DevicePart>) {
        let mut parts = parts.into_iter();
        let nodes = self.graphs.get_mut(&graph).map_or(&mut [][..], |graph| &mut graph.nodes);
        for node in nodes {
            if let Node::LoweredWork { piece: LoweredWork::Launch(launch), cost, reads: Some(_) } = node
                && let Some(part) = parts.next()
            {
                (launch.work, *cost) = (part.work, part.cost);
            }
        }
    }

    /// Launches a graph up to its first call; the caller ensures that the graph was captured. The whole graph counts as
    /// one launch of the stream.
    fn launch_graph(&mut self, graph: u32, on: u32, number: Option<u64>) {
        let mut nodes = self.graphs.get(&graph).map(|graph| graph.nodes.clone()).unwrap_or_default();
        let captured = self.capturing.get(&on).copied();
        let on_origin = |node: &Node| matches!(node, Node::LoweredWork { piece: LoweredWork::Launch(launch), .. } if launch.stream == ORIGIN);
        let last = nodes.iter().rposition(on_origin);
        for (at, node) in nodes.iter_mut().enumerate() {
            if let Node::LoweredWork { piece: LoweredWork::Launch(launch), .. } = node {
                launch.queued = Some(at) == last;
                match number {
                    Some(number) => launch.ids.iter_mut().for_each(|id| id.launch = number),
                    None => launch.ids.clear(),
                }
            }
            node.launch_on(captured.map_or(on, |(_, own)| own), on);
        }
        match captured {
            Some((outer, _)) => nodes.into_iter().for_each(|node| self.keep(outer, node)),
            None => self.go_on(graph, nodes.into()),
        }
    }

    /// Launches the nodes of a graph up to its next calls.
    fn go_on(&mut self, graph: u32, mut nodes: VecDeque<Node>) {
        let mut ties = Vec::new();
        let mut at_calls = false;
        while let Some(node) = nodes.front() {
            match *node {
                Node::LoweredWork { .. } if at_calls => break,
                Node::Call { with_previous: false, .. } if at_calls => break,
                Node::Call { own, stream, events: [before, behind], .. } => {
                    at_calls = true;
                    if own != stream {
                        self.push_piece(LoweredWork::Record { event: before, stream: own });
                        self.push_piece(LoweredWork::Wait { stream, event: before });
                        ties.push([
                            LoweredWork::Record { event: behind, stream },
                            LoweredWork::Wait { stream: own, event: behind },
                        ]);
                    }
                    nodes.pop_front();
                }
                Node::LoweredWork { .. } => {
                    let node = nodes.pop_front().expect("it is the first");
                    self.push(node);
                }
            }
        }
        if at_calls {
            self.suspended.insert(graph, Suspended { nodes, ties });
        }
    }
}

fn launch(stream: u32, part: DevicePart, copy: Option<CopyKind>, queued: bool) -> Node {
    let engine = match copy {
        Some(CopyKind::PageableToDevice | CopyKind::PinnedToDevice) => Some(CopyEngine::ToDevice),
        Some(CopyKind::DeviceToPageable | CopyKind::DeviceToPinned) => Some(CopyEngine::FromDevice),
        Some(CopyKind::Peer) => Some(CopyEngine::Peer),
        Some(CopyKind::Within | CopyKind::Set) | None => None,
    };
    // The runtime returns after pageable memory has been read or written (CUDA, "API synchronization behavior").
    let blocks = matches!(copy, Some(CopyKind::PageableToDevice | CopyKind::DeviceToPageable));
    let work = if engine.is_some() { part.work.on(Resource::CopyEngine) } else { part.work };
    let ids = part.numbers.into_iter().map(|launch| LaunchId { launch, node: 0 }).collect();
    let piece = LoweredWork::Launch(Launch { stream, work, engine, blocks, queued, ids, line: part.line });
    Node::LoweredWork { piece, cost: part.cost, reads: part.reads }
}

/// Name of a copy in timelines.
pub(super) fn copy_name(kind: CopyKind) -> &'static str {
    match kind {
        CopyKind::PageableToDevice => "copy to the device (pageable)",
        CopyKind::PinnedToDevice => "copy to the device",
        CopyKind::DeviceToPageable => "copy to the host (pageable)",
        CopyKind::DeviceToPinned => "copy to the host",
        CopyKind::Within => "copy",
        CopyKind::Peer => "copy to another device",
        CopyKind::Set => "set memory",
    }
}

/// Duration of `calls` Python calls.
pub(super) fn python_time(call: SimDuration, calls: u64) -> SimDuration {
    SimDuration::from_ps(call.as_ps().saturating_mul(calls))
}

fn sum(a: SimDuration, b: SimDuration) -> SimDuration {
    SimDuration::from_ps(a.as_ps().saturating_add(b.as_ps()))
}

/// Divides the measured host time among the host pieces in proportion to their modelled durations, or assigns all of it
/// to the last piece if no piece has a duration.
fn shares(pieces: &mut [CostedPiece], known: &Work) {
    let host = |piece: &CostedPiece| {
        if let LoweredWork::Host(work) = &piece.piece { Some(work.duration.as_ps()) } else { None }
    };
    let all: u128 = pieces.iter().filter_map(host).map(u128::from).sum();
    let total = u128::from(known.duration.as_ps());
    let (mut before, mut dealt) = (0_u128, 0_u128);
    let last = pieces.len() - 1;
    for (at, piece) in pieces.iter_mut().enumerate() {
        let LoweredWork::Host(work) = &mut piece.piece else { continue };
        before += u128::from(work.duration.as_ps());
        let up_to = match all {
            0 if at < last => 0,
            0 => total,
            _ => total * before / all,
        };
        let duration = SimDuration::from_ps((up_to - dealt) as u64);
        *work = Work::new(duration, known.origin).on(Resource::Host);
        dealt = up_to;
    }
}
