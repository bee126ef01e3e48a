//! Owns what a slice of a program with simulated GPUs comes to: work of the host, and what it hands to streams meanwhile.
//!
//! What there is, and in which order, follows from the program's entries alone, never from what anything costs: a replay on another device
//! finds the same pieces, with other durations.
//!
//! The host comes to an operator, and then hands over what that launches; the device's part of an operator is handed over at its first launch. While
//! a stream is in capture nothing is handed over: it is kept with its graph, and handed over, without any work of the host, whenever the graph is
//! launched. Of a graph, the stream where the capture began is the one on which it is launched; others that have joined it are branches of
//! its own, and events that it records are its own, too, but for those that are said to be outside of it.
//!
//! The rank itself makes a graph's calls of process groups, as it makes others: a launch goes up to the first of them, and each resumption from
//! behind one up to the next. A call that was captured on a branch is made on the stream that the branch was, and events tie the two together.

use std::collections::{BTreeMap, VecDeque};
use std::mem::take;
use uniference_formats::operators::{CopyKind, LaunchFlags, Line, Reading, StreamEntry};
use uniference_host::live::exchange::{CopyEngine, Launch, LaunchId, Piece};
use uniference_sim::device::{HostCosts, Resource, Work};
use uniference_sim::program::Origin;
use uniference_sim::time::SimDuration;

/// Streams and events of programs have numbers below this; graphs' own branches and events follow.
const OF_GRAPHS: u32 = 1 << 31;
/// In a graph: the stream on which it is launched.
const ORIGIN: u32 = u32::MAX;

/// A piece, and which figure its duration is.
pub(super) struct CostedPiece {
    pub(super) piece: Piece,
    /// As it was given with the work; `None`: the host's, or nothing that takes time.
    pub(super) cost: Option<usize>,
}

/// An operator whose cost depends on integers, and where it reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reads {
    /// The operator's place among the definitions.
    pub(super) definition: usize,
    pub(super) readings: Vec<Reading>,
}

/// What a piece of work on the device takes, and which figure that is.
pub(super) struct DevicePart {
    pub(super) work: Work,
    pub(super) cost: Option<usize>,
    /// The numbers by which the rank asks for its times.
    pub(super) numbers: Vec<u64>,
    /// What it depends on, and will again where it is captured.
    pub(super) reads: Option<Reads>,
    /// The line of the operator that has launched it; known when that has run.
    pub(super) line: Line,
}

impl DevicePart {
    /// Without numbers, until it is entered.
    pub(super) fn new(work: Work, cost: Option<usize>) -> DevicePart {
        DevicePart { work, cost, numbers: Vec::new(), reads: None, line: Line::default() }
    }
}

/// The expansion of a rank's slices.
#[derive(Default)]
pub(super) struct Expansion {
    host: HostCosts,
    /// What the host has done since its last piece; `None`: nothing.
    worked: Option<SimDuration>,
    /// What Python has taken since the last operator or piece.
    python: SimDuration,
    pieces: Vec<CostedPiece>,
    /// What the operator that runs has handed over so far, each with its own part.
    inside: Vec<(StreamEntry, DevicePart)>,
    /// Of an operator that runs, the stream of the first kernel, where a slice has ended inside of it.
    interrupted: Option<u32>,
    /// The numbers of its kernels.
    unanswered: Vec<u64>,
    /// The number of what is handed over next.
    next_number: Option<u64>,
    graphs: BTreeMap<u32, Graph>,
    /// Graphs that were launched, up to a call.
    suspended: BTreeMap<u32, Suspended>,
    /// Streams in capture, each with its graph and what it is called there.
    capturing: BTreeMap<u32, (u32, u32)>,
    /// Events that were recorded on them, each with its graph and what it is called there.
    captured: BTreeMap<u32, (u32, u32)>,
    /// The next numbers of graphs' branches, and events.
    branches: u32,
    events: u32,
}

/// What is kept of a graph.
#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
}

#[derive(Clone)]
enum Node {
    Piece {
        piece: Piece,
        cost: Option<usize>,
        reads: Option<Reads>,
    },
    /// A call of a process group.
    Call {
        /// The call's own number in the graph.
        own: u32,
        /// The stream that the rank makes it on.
        stream: u32,
        with_previous: bool,
        /// Of a branch: what is before the call on it, and what is behind the call where it is made.
        events: [u32; 2],
    },
}

impl Node {
    /// Puts it where the graph is launched, if it is where its capture began: on the stream `on`, which is called `own` there.
    fn launch_on(&mut self, own: u32, on: u32) {
        match self {
            Node::Piece { piece, .. } => {
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

/// The rest of a graph that was launched.
struct Suspended {
    nodes: VecDeque<Node>,
    /// What follows the calls that the rank makes now.
    ties: Vec<[Piece; 2]>,
}

fn stream_of(piece: &mut Piece) -> Option<&mut u32> {
    match piece {
        Piece::Launch(Launch { stream, .. }) | Piece::Record { stream, .. } | Piece::Wait { stream, .. } => {
            Some(stream)
        }
        Piece::Host(_) => None,
    }
}

impl Expansion {
    pub(super) fn new(host: HostCosts) -> Expansion {
        Expansion { host, ..Expansion::default() }
    }

    /// Whether the operator that runs has launched a kernel.
    pub(super) fn has_launched(&self) -> bool {
        let launches = |(entry, _): &(StreamEntry, DevicePart)| matches!(entry, StreamEntry::Launch { .. });
        self.interrupted.is_some() || self.inside.iter().any(launches)
    }

    /// The rank asks for the times of what it hands over next by this number.
    pub(super) fn number(&mut self, number: u64) {
        self.next_number = Some(number);
    }

    /// The program has called so many functions of Python. That the host has done something does not depend on what they take.
    pub(super) fn python(&mut self, calls: u64) {
        self.python = sum(self.python, python_time(self.host.python, calls));
        self.worked.get_or_insert_default();
    }

    /// The program hands something to a stream; `part` is what that takes by itself, should it be work.
    pub(super) fn enter(&mut self, entry: StreamEntry, mut part: DevicePart) {
        part.numbers.extend(self.next_number.take());
        match entry {
            StreamEntry::Launch { flags: LaunchFlags { inside: true, .. }, .. }
            | StreamEntry::Copy { flags: LaunchFlags { inside: true, .. }, .. } => self.inside.push((entry, part)),
            // Between launches of an operator it keeps its place among them.
            _ if !self.inside.is_empty() => self.inside.push((entry, part)),
            _ => self.hand(entry, part),
        }
    }

    /// Adds an operator that ran at this line. `part` is its work on the device, if it launched a kernel, and `on_host`
    /// its compute time on the host CPU.
    pub(super) fn operator(&mut self, part: Option<DevicePart>, on_host: SimDuration, line: Line) {
        // What Python takes to come to an operator is in the operator's figure.
        let python = take(&mut self.python);
        self.works(sum(self.host.operator.max(python), on_host));
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

    /// What the slice has come to. `known`: how long the host has worked, if that is known of all of it.
    pub(super) fn finish(&mut self, known: Option<Work>) -> Vec<CostedPiece> {
        // The program asks for something in the middle of an operator, which waits for what that has launched.
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
        self.pieces.push(CostedPiece { piece: Piece::Host(work), cost: None });
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
                self.push_piece(Piece::Record { event, stream });
            }
            StreamEntry::Wait { stream, event } => {
                self.works(self.host.call);
                if let Some((graph, _)) = self.captured.get(&event) {
                    self.join(stream, *graph);
                }
                self.push_piece(Piece::Wait { stream, event });
            }
            StreamEntry::ExternalRecord { event, stream } => {
                self.works(self.host.call);
                self.keep_external(stream, |stream| Piece::Record { event, stream });
            }
            StreamEntry::ExternalWait { stream, event } => {
                self.works(self.host.call);
                self.keep_external(stream, |stream| Piece::Wait { stream, event });
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
        // What is inside of an operator is launched in the operator's time.
        if !flags.free && !flags.inside {
            self.works(self.host.launch);
        }
    }

    fn new_event(&mut self) -> u32 {
        self.events += 1;
        OF_GRAPHS + self.events - 1
    }

    /// The stream is a branch of the graph that is captured, if it was none.
    fn join(&mut self, stream: u32, graph: u32) {
        if !self.capturing.contains_key(&stream) {
            self.capturing.insert(stream, (graph, OF_GRAPHS + self.branches));
            self.branches += 1;
        }
    }

    fn push_piece(&mut self, piece: Piece) {
        self.push(Node::Piece { piece, cost: None, reads: None });
    }

    /// Hands a piece over once the host has come to it, or keeps it with the graph that captures its stream.
    fn push(&mut self, mut node: Node) {
        let stream = match &mut node {
            Node::Piece { piece, .. } => stream_of(piece).expect("work of the host is handed to no stream"),
            Node::Call { own, .. } => own,
        };
        let Some((graph, own)) = self.capturing.get(stream).copied() else {
            return self.hand_over(node);
        };
        *stream = own;
        if let Node::Piece { piece: Piece::Record { event, .. } | Piece::Wait { event, .. }, .. } = &mut node {
            // What was recorded outside is over when the graph is launched.
            let Some((_, own)) = self.captured.get(event).filter(|(of, _)| *of == graph) else { return };
            *event = *own;
        }
        self.keep(graph, node);
    }

    /// Keeps what concerns an event outside of the graph with the graph that captures the stream.
    fn keep_external(&mut self, stream: u32, piece: impl FnOnce(u32) -> Piece) {
        if let Some((graph, own)) = self.capturing.get(&stream).copied() {
            self.keep(graph, Node::Piece { piece: piece(own), cost: None, reads: None });
        }
    }

    /// The node is one of a graph, where it stands on streams and waits for events of the graph's own.
    fn keep(&mut self, graph: u32, mut node: Node) {
        if let Node::Piece { piece: Piece::Launch(launch), .. } = &mut node {
            (launch.queued, launch.blocks) = (false, false);
            // What the rank numbered when it was captured is a node of each launch of the graph.
            launch.ids.iter_mut().for_each(|id| *id = LaunchId { launch: 0, node: id.leaf() });
        }
        self.graphs.entry(graph).or_default().nodes.push(node);
    }

    fn hand_over(&mut self, node: Node) {
        // The rank makes the call itself.
        let Node::Piece { piece, cost, .. } = node else { return };
        if self.worked.is_some() && !matches!(piece, Piece::Wait { .. }) {
            self.end_host_piece();
        }
        self.pieces.push(CostedPiece { piece, cost });
    }

    /// What operators of a graph read whenever it is launched, in its order.
    pub(super) fn reads(&self, graph: u32) -> Vec<Reads> {
        let nodes = self.graphs.get(&graph).map_or(&[][..], |graph| &graph.nodes);
        let reads = |node: &Node| if let Node::Piece { reads, .. } = node { reads.clone() } else { None };
        nodes.iter().filter_map(reads).collect()
    }

    /// What these operators take from here on.
    pub(super) fn refresh(&mut self, graph: u32, parts: Vec<DevicePart>) {
        let mut parts = parts.into_iter();
        let nodes = self.graphs.get_mut(&graph).map_or(&mut [][..], |graph| &mut graph.nodes);
        for node in nodes {
            if let Node::Piece { piece: Piece::Launch(launch), cost, reads: Some(_) } = node
                && let Some(part) = parts.next()
            {
                (launch.work, *cost) = (part.work, part.cost);
            }
        }
    }

    /// Hands over all of a graph, up to the first call; that one was captured is the caller's business. All of it takes one place among the
    /// stream's launches.
    fn launch_graph(&mut self, graph: u32, on: u32, number: Option<u64>) {
        let mut nodes = self.graphs.get(&graph).map(|graph| graph.nodes.clone()).unwrap_or_default();
        let captured = self.capturing.get(&on).copied();
        let on_origin =
            |node: &Node| matches!(node, Node::Piece { piece: Piece::Launch(launch), .. } if launch.stream == ORIGIN);
        let last = nodes.iter().rposition(on_origin);
        for (at, node) in nodes.iter_mut().enumerate() {
            if let Node::Piece { piece: Piece::Launch(launch), .. } = node {
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

    /// Hands over what of a launched graph comes before its next calls.
    fn go_on(&mut self, graph: u32, mut nodes: VecDeque<Node>) {
        let mut ties = Vec::new();
        let mut at_calls = false;
        while let Some(node) = nodes.front() {
            match *node {
                Node::Piece { .. } if at_calls => break,
                Node::Call { with_previous: false, .. } if at_calls => break,
                Node::Call { own, stream, events: [before, behind], .. } => {
                    at_calls = true;
                    if own != stream {
                        self.push_piece(Piece::Record { event: before, stream: own });
                        self.push_piece(Piece::Wait { stream, event: before });
                        ties.push([
                            Piece::Record { event: behind, stream },
                            Piece::Wait { stream: own, event: behind },
                        ]);
                    }
                    nodes.pop_front();
                }
                Node::Piece { .. } => {
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
    // The runtime returns when pageable memory has been read, or written (CUDA, "API synchronization behavior").
    let blocks = matches!(copy, Some(CopyKind::PageableToDevice | CopyKind::DeviceToPageable));
    let work = if engine.is_some() { part.work.on(Resource::CopyEngine) } else { part.work };
    let ids = part.numbers.into_iter().map(|launch| LaunchId { launch, node: 0 }).collect();
    let piece = Piece::Launch(Launch { stream, work, engine, blocks, queued, ids, line: part.line });
    Node::Piece { piece, cost: part.cost, reads: part.reads }
}

/// What timelines call a copy.
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

/// What so many functions of Python take.
pub(super) fn python_time(call: SimDuration, calls: u64) -> SimDuration {
    SimDuration::from_ps(call.as_ps().saturating_mul(calls))
}

fn sum(a: SimDuration, b: SimDuration) -> SimDuration {
    SimDuration::from_ps(a.as_ps().saturating_add(b.as_ps()))
}

/// Deals out what the host has worked in all among its pieces, in proportion to what they would take; where none would take any time, to the last.
fn shares(pieces: &mut [CostedPiece], known: &Work) {
    let host =
        |piece: &CostedPiece| if let Piece::Host(work) = &piece.piece { Some(work.duration.as_ps()) } else { None };
    let all: u128 = pieces.iter().filter_map(host).map(u128::from).sum();
    let total = u128::from(known.duration.as_ps());
    let (mut before, mut dealt) = (0_u128, 0_u128);
    let last = pieces.len() - 1;
    for (at, piece) in pieces.iter_mut().enumerate() {
        let Piece::Host(work) = &mut piece.piece else { continue };
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
