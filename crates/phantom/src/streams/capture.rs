//! Owns stream capture: which streams belong to which capture, what the next node on each stream depends on, and which
//! calls are forbidden during a capture.

use super::graphs::{Calls, Graph, MakeCalls, node_handle};
use super::{Handle, Kind, Node, State, lock, tell};
use crate::errors::*;
use crate::exports::{Out, Put};
use crate::launches::next_number;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::thread::ThreadId;

/// Calls that are forbidden while a thread captures: `cudaStreamCaptureMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No thread may make unsafe calls, which do not belong to a stream.
    Global,
    /// The capturing thread may make no unsafe calls.
    ThreadLocal,
    /// All threads may make unsafe calls.
    Relaxed,
}

impl Mode {
    pub(crate) fn from_number(number: i32) -> Option<Mode> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed].get(number as usize).copied()
    }
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// A stream's part in a capture.
#[derive(Clone)]
pub(super) struct Capture {
    pub(super) graph: usize,
    id: u64,
    mode: Mode,
    thread: ThreadId,
    is_origin: bool,
    /// Nodes that the next node on the stream waits for.
    pub(super) frontier: Vec<usize>,
}

/// The state of a stream's capture.
pub(crate) struct Info {
    /// `cudaStreamCaptureStatus`: 1 active, 2 invalidated.
    pub(crate) status: i32,
    pub(crate) id: u64,
    pub(crate) graph: Handle,
    pub(crate) dependencies: Vec<Handle>,
}

/// Results of `cudaStreamGetCaptureInfo` and of its driver counterpart. The list of nodes is valid until the thread's
/// next call.
pub(crate) fn report_capture(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<*const Handle>,
    data: Out<*const c_void>,
    count: Out<usize>,
) -> Result<(), Status> {
    thread_local! {
        static NODES: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    }
    let Some(info) = capture_info(stream)? else { return status.give(0) };
    status.give(info.status)?;
    id.put(info.id);
    graph.put(info.graph);
    data.put(std::ptr::null());
    count.put(info.dependencies.len());
    NODES.with_borrow_mut(|kept| {
        *kept = info.dependencies;
        nodes.put(kept.as_ptr());
    });
    Ok(())
}

/// Begins a capture on a stream, into a new graph or the given one.
pub(crate) fn begin_capture(stream: Handle, graph: Option<Handle>, mode: Mode) -> Result<(), Status> {
    let mut state = lock();
    let number = state.resolve(stream)? as usize;
    if state.streams[number].is_legacy {
        return Err(CAPTURE_UNSUPPORTED);
    }
    if state.streams[number].capture.is_some() {
        return Err(ILLEGAL_STATE);
    }
    let graph = match graph {
        Some(graph) => state.graph(graph)?,
        None => {
            state.graphs.push(Graph { exists: true, ..Graph::default() });
            state.graphs.len() - 1
        }
    };
    state.graphs[graph].origin = Some(number as u32);
    state.captures += 1;
    let (id, thread) = (state.captures, std::thread::current().id());
    state.streams[number].capture = Some(Capture { graph, id, mode, thread, is_origin: true, frontier: Vec::new() });
    tell(|link| (link.capture)(number as u32, graph as u32));
    Ok(())
}

/// Ends a capture on the stream where it began.
pub(crate) fn end_capture(stream: Handle) -> Result<Handle, Status> {
    let mut state = lock();
    let number = state.resolve(stream)? as usize;
    let capture = state.streams[number].capture.clone().ok_or(ILLEGAL_STATE)?;
    if !capture.is_origin {
        return Err(CAPTURE_UNMATCHED);
    }
    if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
        return Err(CAPTURE_WRONG_THREAD);
    }
    let mut unjoined = false;
    for other in 0..state.streams.len() {
        if let Some(each) = state.streams[other].capture.take_if(|each| each.id == capture.id) {
            unjoined |= !state.graphs[capture.graph].reaches(&capture.frontier, &each.frontier);
            tell(|link| (link.capture)(other as u32, 0));
        }
    }
    let invalid = state.graphs[capture.graph].is_invalid;
    if invalid || unjoined {
        state.graphs[capture.graph] = Graph::default();
        return Err(if invalid { CAPTURE_INVALIDATED } else { CAPTURE_UNJOINED });
    }
    Ok(Kind::Graph.handle(capture.graph))
}

/// Capture of a stream; `None` if it is not captured.
pub(crate) fn capture_info(stream: Handle) -> Result<Option<Info>, Status> {
    let mut state = lock();
    let number = state.resolve(stream)? as usize;
    Ok(state.streams[number].capture.as_ref().map(|capture| Info {
        status: if state.graphs[capture.graph].is_invalid { 2 } else { 1 },
        id: capture.id,
        graph: Kind::Graph.handle(capture.graph),
        dependencies: capture.frontier.iter().map(|node| node_handle(capture.graph, *node)).collect(),
    }))
}

/// Adds a group of communicator calls, one per stream, to the graph that the streams capture: each launch of the graph
/// calls the result of `make`. `None`: none of the streams is captured.
pub(crate) fn capture_calls(streams: &[Handle], make: impl FnOnce() -> MakeCalls) -> Result<Option<()>, Status> {
    let mut state = lock();
    let numbers = streams.iter().map(|stream| state.resolve(*stream)).collect::<Result<Vec<u32>, Status>>()?;
    let graph_of = |number: &u32| state.streams[*number as usize].capture.as_ref().map(|capture| capture.graph);
    let graphs: BTreeSet<Option<usize>> = numbers.iter().map(graph_of).collect();
    let graph = match Vec::from_iter(&graphs)[..] {
        [] | [None] => return Ok(None),
        [Some(graph)] => *graph,
        // The calls of a group start together, but only some of their streams are captured, or the streams are captured
        // into different graphs.
        _ => return Err(CAPTURE_ISOLATION),
    };
    if state.graphs[graph].is_invalid {
        return Err(CAPTURE_INVALIDATED);
    }
    let (mut before, node) = (Vec::new(), state.graphs[graph].nodes.len());
    for number in &numbers {
        let capture = state.streams[*number as usize].capture.as_mut().expect("it is in capture");
        let frontier = std::mem::replace(&mut capture.frontier, vec![node]);
        frontier.into_iter().filter(|other| *other != node).for_each(|other| add(&mut before, other));
    }
    let captured = &mut state.graphs[graph];
    captured.nodes.push(Node::Calls(Arc::new(Calls { streams: numbers.clone(), make: make() })));
    captured.numbers.push(next_number());
    captured.dependencies.push(before);
    for (place, number) in numbers.into_iter().enumerate() {
        tell(|link| (link.captured_call)(number, u32::from(place > 0)));
    }
    Ok(Some(()))
}

/// Adds to the nodes that the next node on a captured stream waits for, or `replaces` them.
pub(crate) fn update_dependencies(stream: Handle, nodes: &[Handle], replaces: bool) -> Result<(), Status> {
    let mut state = lock();
    let number = state.resolve(stream)? as usize;
    let nodes = nodes.iter().map(|node| state.node(*node)).collect::<Result<Vec<_>, _>>()?;
    let capture = state.streams[number].capture.as_mut().ok_or(ILLEGAL_STATE)?;
    if nodes.iter().any(|(graph, _)| *graph != capture.graph) {
        return Err(INVALID_VALUE);
    }
    if replaces {
        capture.frontier.clear();
    }
    nodes.iter().for_each(|(_, node)| add(&mut capture.frontier, *node));
    Ok(())
}

/// Sets the thread's capture mode and returns the former one.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

/// Checks a call that does not belong to a stream: other captures may forbid it, and are then invalidated.
pub(crate) fn check_unsafe_call() -> Result<(), Status> {
    let (mode, thread) = (MODE.get(), std::thread::current().id());
    if mode == Mode::Relaxed {
        return Ok(());
    }
    let mut state = lock();
    let forbids = |capture: &&Capture| match capture.mode {
        Mode::Global => mode == Mode::Global || capture.thread == thread,
        Mode::ThreadLocal => capture.thread == thread,
        Mode::Relaxed => false,
    };
    let graphs: Vec<usize> =
        state.streams.iter().filter_map(|stream| stream.capture.as_ref()).filter(forbids).map(|c| c.graph).collect();
    graphs.iter().for_each(|graph| state.graphs[*graph].is_invalid = true);
    if graphs.is_empty() { Ok(()) } else { Err(CAPTURE_UNSUPPORTED) }
}

impl State {
    /// Adds a node to the graph that a stream captures, and returns the node's number; `None` if the stream is not
    /// captured.
    pub(super) fn capture_node(&mut self, stream: u32, node: &Node) -> Result<Option<u64>, Status> {
        let Some(capture) = &mut self.streams[stream as usize].capture else { return Ok(None) };
        let graph = &mut self.graphs[capture.graph];
        if graph.is_invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        let number = next_number();
        graph.nodes.push(node.clone());
        graph.numbers.push(number);
        graph.dependencies.push(std::mem::take(&mut capture.frontier));
        capture.frontier.push(graph.nodes.len() - 1);
        Ok(Some(number))
    }

    /// Handles a stream's wait for an event: the stream joins the capture in which the event was recorded.
    pub(super) fn join(&mut self, stream: u32, event: usize) -> Result<(), Status> {
        let captured = self.events[event].captured.clone();
        let current = self.streams[stream as usize].capture.as_ref().map(|capture| capture.graph);
        match (captured, current) {
            (None, Some(graph)) if self.events[event].records > 0 => {
                self.graphs[graph].is_invalid = true;
                Err(CAPTURE_ISOLATION)
            }
            (None, _) => Ok(()),
            (Some((graph, nodes)), None) => {
                let origin = self.streams.iter().find_map(|each| each.capture.as_ref().filter(|c| c.graph == graph));
                let capture = origin.cloned().ok_or(CAPTURED_EVENT)?;
                if self.streams[stream as usize].is_legacy {
                    return Err(CAPTURE_UNSUPPORTED);
                }
                self.streams[stream as usize].capture = Some(Capture { is_origin: false, frontier: nodes, ..capture });
                tell(|link| (link.capture)(stream, graph as u32));
                Ok(())
            }
            (Some((graph, _)), Some(current)) if graph != current => {
                self.graphs[graph].is_invalid = true;
                self.graphs[current].is_invalid = true;
                Err(CAPTURE_MERGE)
            }
            (Some((_, nodes)), Some(_)) => {
                let capture = self.streams[stream as usize].capture.as_mut().expect("it is in a capture");
                nodes.into_iter().for_each(|node| add(&mut capture.frontier, node));
                Ok(())
            }
        }
    }
}

impl Graph {
    /// Whether all of `targets` are in `from` or are ancestors of `from`.
    fn reaches(&self, from: &[usize], targets: &[usize]) -> bool {
        let mut is_before = vec![false; self.nodes.len()];
        let mut next = from.to_vec();
        while let Some(node) = next.pop() {
            if !std::mem::replace(&mut is_before[node], true) {
                next.extend(&self.dependencies[node]);
            }
        }
        targets.iter().all(|node| is_before[*node])
    }
}

fn add(frontier: &mut Vec<usize>, node: usize) {
    if !frontier.contains(&node) {
        frontier.push(node);
    }
}
