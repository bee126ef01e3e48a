//! Owns graphs: what was captured or put together, in an order in which it may happen, and what a launch of it does.

use super::{CopyKind, Handle, Kind, State, lock, tell};
use crate::errors::*;
use crate::exports::exports;
use crate::launches::{Leaf, Moved, Name, Shape};
use crate::{arrivals, memory};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;

/// A function of the host, as C has it.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

/// What operators of a graph compute each time that it is launched, by `cpp/mirror.h`: the library of simulated GPUs only knows when.
#[derive(Debug)]
pub(crate) struct Computation {
    run: extern "C" fn(*mut c_void),
    forget: extern "C" fn(*mut c_void),
    data: usize,
}

impl Drop for Computation {
    fn drop(&mut self) {
        (self.forget)(self.data as *mut c_void);
    }
}

/// Makes calls of communicators, each on a stream of this number.
pub(crate) type MakeCalls = Box<dyn Fn(&[u32]) -> Result<(), Status> + Send + Sync>;

/// Calls of communicators that start together, whenever a graph is launched.
pub(crate) struct Calls {
    /// Where they were captured.
    pub(super) streams: Vec<u32>,
    pub(super) make: MakeCalls,
}

impl fmt::Debug for Calls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Calls").field("streams", &self.streams).finish_non_exhaustive()
    }
}

/// What is known of how long a kernel takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takes {
    /// As long as it takes to read and write what it names; 0: it is not known what.
    Bytes(u64),
    /// So long, whatever it runs on.
    Nanoseconds(u64),
}

/// Among a launch's flags: it takes so many nanoseconds. See `LaunchFlags` of crates/formats/src/operators/decode.rs.
const SPINS: u32 = 4;

/// Something that happens on a stream, or in a graph.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// A launch of a kernel.
    Kernel { name: Arc<Name>, takes: Takes, shape: Shape },
    /// A copy of bytes.
    Copy { moved: Moved, kind: CopyKind },
    /// A value is written.
    Set { at: usize, value: Box<[u8]>, count: usize },
    /// A function of the host is called.
    Host { function: HostFunction, data: usize },
    /// All of another graph, launched on a stream.
    Graph { number: usize, work: Work, stream: u32 },
    /// Calls of communicators.
    Calls(Arc<Calls>),
    /// An event outside of the graph happens.
    Record { event: u32 },
    /// What comes waits for an event outside of the graph.
    Wait { event: u32 },
    /// Nothing: others wait for it.
    Empty,
}

/// What a graph does, in its order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    nodes: Arc<[Node]>,
    /// By what the link knows the nodes; 0: it does not.
    numbers: Arc<[u64]>,
    /// Each with the number of nodes before it.
    computations: Arc<[(usize, Arc<Computation>)]>,
    /// Where its capture began.
    origin: Option<u32>,
}

/// A launch of a graph that is carried out.
struct Launched {
    graph: u32,
    on: u32,
    /// Where calls of communicators were made.
    called: BTreeSet<u32>,
}

impl Launched {
    /// What calls bring is there before somebody looks at it.
    fn settle(&self) {
        if arrivals::any() {
            self.called.iter().for_each(|stream| arrivals::settle_stream(*stream));
        }
    }
}

#[derive(Default)]
pub(super) struct Graph {
    pub(super) exists: bool,
    pub(super) is_invalid: bool,
    pub(super) nodes: Vec<Node>,
    pub(super) numbers: Vec<u64>,
    /// Of each node those that it waits for.
    pub(super) dependencies: Vec<Vec<usize>>,
    pub(super) computations: Vec<(usize, Arc<Computation>)>,
    pub(super) origin: Option<u32>,
}

#[derive(Default)]
pub(super) struct Exec {
    exists: bool,
    graph: usize,
    work: Work,
}

exports! {
    /// Whether a stream is captured into a graph, for `cpp/mirror.h`.
    fn uniference_phantom_is_captured(stream: Handle) -> c_int {
        let mut state = lock();
        c_int::from(state.resolve(stream).is_ok_and(|stream| state.streams[stream as usize].capture.is_some()))
    }

    /// Has the graph that a stream is captured into call `run` after what it has so far, each time that it is launched, until `forget`.
    fn uniference_phantom_compute(
        stream: Handle, run: extern "C" fn(*mut c_void), forget: extern "C" fn(*mut c_void), data: *mut c_void,
    ) {
        let computation = Arc::new(Computation { run, forget, data: data as usize });
        let mut state = lock();
        let captured = state.resolve(stream).ok().and_then(|stream| state.streams[stream as usize].capture.as_ref());
        let Some(graph) = captured.map(|capture| capture.graph) else { return };
        let graph = &mut state.graphs[graph];
        graph.computations.push((graph.nodes.len(), computation));
    }
}

/// A graph with nothing in it.
pub(crate) fn create_graph() -> Result<Handle, Status> {
    let mut state = lock();
    state.prepare()?;
    state.graphs.push(Graph { exists: true, ..Graph::default() });
    Ok(Kind::Graph.handle(state.graphs.len() - 1))
}

/// Adds a node that does nothing, after others.
pub(crate) fn add_empty(graph: Handle, after: &[Handle]) -> Result<Handle, Status> {
    let mut state = lock();
    let number = state.graph(graph)?;
    let after = after.iter().map(|node| state.node(*node)).collect::<Result<Vec<_>, _>>()?;
    if after.iter().any(|(graph, _)| *graph != number) {
        return Err(INVALID_VALUE);
    }
    let graph = &mut state.graphs[number];
    graph.nodes.push(Node::Empty);
    graph.numbers.push(0);
    graph.dependencies.push(after.into_iter().map(|(_, node)| node).collect());
    Ok(node_handle(number, graph.nodes.len() - 1))
}

/// A graph that can be launched.
pub(crate) fn instantiate(graph: Handle) -> Result<Handle, Status> {
    let mut state = lock();
    let number = state.graph(graph)?;
    let work = state.graphs[number].work();
    state.execs.push(Exec { exists: true, graph: number, work });
    Ok(Kind::Exec.handle(state.execs.len() - 1))
}

/// Has a graph that can be launched do what another one does, if that has the same kinds of nodes.
pub(crate) fn update_exec(exec: Handle, graph: Handle) -> Result<(), Status> {
    let mut state = lock();
    let (exec, number) = (state.exec(exec)?, state.graph(graph)?);
    let kinds = |nodes: &[Node]| nodes.iter().map(Node::kind).collect::<Vec<_>>();
    if kinds(&state.execs[exec].work.nodes) != kinds(&state.graphs[number].nodes) {
        return Err(GRAPH_UPDATE_FAILURE);
    }
    let work = state.graphs[number].work();
    let before = std::mem::replace(&mut state.execs[exec], Exec { exists: true, graph: number, work });
    drop(state);
    drop(before);
    Ok(())
}

/// Has all of a graph happen on a stream.
pub(crate) fn launch_graph(exec: Handle, stream: Handle) -> Result<(), Status> {
    if arrivals::any() {
        let number = lock().resolve(stream)?;
        arrivals::settle_stream(number);
    }
    let mut state = lock();
    let (exec, stream) = (state.exec(exec)?, state.resolve(stream)?);
    let Exec { graph, work, .. } = &state.execs[exec];
    let (number, work) = (*graph, work.clone());
    let node = Node::Graph { number, work: work.clone(), stream };
    state.submit(stream, node)?;
    let is_captured = state.streams[stream as usize].capture.is_some();
    drop(state);
    if is_captured {
        return Ok(());
    }
    // Functions of the program's may ask the library for something.
    let mut launched = Launched { graph: number as u32, on: stream, called: BTreeSet::new() };
    work.carry_out(stream, &mut launched)?;
    launched.called.into_iter().for_each(|called| arrivals::stand_behind(stream, called));
    Ok(())
}

/// Ends a graph; what was made of it stays.
pub(crate) fn destroy_graph(graph: Handle) -> Result<(), Status> {
    let mut state = lock();
    let number = state.graph(graph)?;
    let graph = std::mem::take(&mut state.graphs[number]);
    // Operators that it has kept take locks of their own as they go.
    drop(state);
    drop(graph);
    Ok(())
}

/// The same for one that can be launched.
pub(crate) fn destroy_exec(exec: Handle) -> Result<(), Status> {
    let mut state = lock();
    let number = state.exec(exec)?;
    let exec = std::mem::take(&mut state.execs[number]);
    drop(state);
    drop(exec);
    Ok(())
}

/// Handles of a graph's nodes.
pub(crate) fn nodes(graph: Handle) -> Result<Vec<Handle>, Status> {
    let state = lock();
    let number = state.graph(graph)?;
    Ok((0..state.graphs[number].nodes.len()).map(|node| node_handle(number, node)).collect())
}

/// `cudaGraphNodeType` of a node.
pub(crate) fn node_kind(node: Handle) -> Result<c_int, Status> {
    let state = lock();
    let (graph, node) = state.node(node)?;
    Ok(state.graphs[graph].nodes[node].kind())
}

/// What a node waits for.
pub(crate) fn dependencies(node: Handle) -> Result<Vec<Handle>, Status> {
    let state = lock();
    let (graph, node) = state.node(node)?;
    Ok(state.graphs[graph].dependencies[node].iter().map(|before| node_handle(graph, *before)).collect())
}

/// Bits of a node's handle for its number in its graph.
const NODE_BITS: u32 = 18;

/// The graph's number is in the bits above.
pub(super) fn node_handle(graph: usize, node: usize) -> Handle {
    Kind::Node.handle(graph << NODE_BITS | node)
}

impl State {
    pub(super) fn graph(&self, graph: Handle) -> Result<usize, Status> {
        let number = Kind::Graph.number(graph)?;
        self.graphs.get(number).filter(|graph| graph.exists).map(|_| number).ok_or(INVALID_VALUE)
    }

    fn exec(&self, exec: Handle) -> Result<usize, Status> {
        let number = Kind::Exec.number(exec)?;
        self.execs.get(number).filter(|exec| exec.exists).map(|_| number).ok_or(INVALID_VALUE)
    }

    pub(super) fn node(&self, node: Handle) -> Result<(usize, usize), Status> {
        let number = Kind::Node.number(node)?;
        let (graph, node) = (number >> NODE_BITS, number & ((1 << NODE_BITS) - 1));
        self.graphs.get(graph).filter(|graph| node < graph.nodes.len()).map(|_| (graph, node)).ok_or(INVALID_VALUE)
    }
}

impl Node {
    /// `cudaGraphNodeType`.
    fn kind(&self) -> c_int {
        match self {
            Node::Kernel { .. } | Node::Calls(_) => 0,
            Node::Copy { .. } => 1,
            Node::Set { .. } => 2,
            Node::Host { .. } => 3,
            Node::Graph { .. } => 4,
            Node::Empty => 5,
            Node::Wait { .. } => 6,
            Node::Record { .. } => 7,
        }
    }

    /// Writes it down.
    pub(super) fn tell(&self, stream: u32, flags: u32) {
        tell(|link| match self {
            Node::Kernel { name, takes: Takes::Bytes(bytes), .. } => {
                (link.launch)(name.number(link), stream, flags, *bytes);
            }
            Node::Kernel { name, takes: Takes::Nanoseconds(ns), .. } => {
                (link.launch)(name.number(link), stream, flags | SPINS, *ns);
            }
            Node::Copy { moved, kind } => {
                (link.copy)(stream, *kind as u32, (moved.bytes * moved.rows) as u64, flags);
            }
            Node::Set { value, count, .. } => {
                (link.copy)(stream, CopyKind::Set as u32, (value.len() * count) as u64, flags);
            }
            Node::Host { .. } => (link.host_function)(stream),
            Node::Graph { number, .. } => (link.graph_launch)(*number as u32, stream),
            Node::Record { event } => (link.external_record)(*event, stream),
            Node::Wait { event } => (link.external_wait)(stream, *event),
            // Each has a stream of its own: `capture_calls`.
            Node::Calls(_) | Node::Empty => {}
        });
    }

    /// Number of the graph that the node launches (0: none), and the work that profilers show, each item with the
    /// number of its captured node.
    pub(super) fn leaves(&self) -> (u32, Vec<(u64, Leaf<'_>)>) {
        match self {
            Node::Graph { number, work, .. } => (*number as u32, work.leaves()),
            node => (0, node.leaf().map(|leaf| (0, leaf)).into_iter().collect()),
        }
    }

    /// Work that profilers show for a node; `None` for a graph node.
    fn leaf(&self) -> Option<Leaf<'_>> {
        match self {
            Node::Kernel { name, shape, .. } => Some(Leaf::Kernel(name, *shape)),
            Node::Copy { moved, kind } => {
                let device = |at| if let memory::Place::Device { device, .. } = memory::place(at) { device } else { 0 };
                Some(Leaf::Copy(moved, *kind, [device(moved.from), device(moved.to)].map(|device| device as u32)))
            }
            Node::Set { value, count, .. } => {
                let number = value.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
                Some(Leaf::Set { value: number, bytes: (value.len() * count) as u64 })
            }
            // When calls are made, they are shown by themselves.
            Node::Host { .. }
            | Node::Graph { .. }
            | Node::Calls(_)
            | Node::Record { .. }
            | Node::Wait { .. }
            | Node::Empty => None,
        }
    }

    /// What it does to memory. A graph does so once it is submitted: [`Work::carry_out`].
    pub(super) fn move_bytes(&self) -> Result<(), Status> {
        match self {
            Node::Copy { moved, .. } => moved.carry_out(),
            Node::Set { at, value, count } => memory::set(*at, value, *count),
            Node::Kernel { .. }
            | Node::Host { .. }
            | Node::Graph { .. }
            | Node::Calls(_)
            | Node::Record { .. }
            | Node::Wait { .. }
            | Node::Empty => Ok(()),
        }
    }
}

impl Graph {
    fn work(&self) -> Work {
        let numbers = self.numbers.clone().into();
        let computations = self.computations.clone().into();
        Work { nodes: self.nodes.clone().into(), numbers, computations, origin: self.origin }
    }
}

impl Work {
    /// Work of the graph that profilers show, each item with the number of its captured node.
    fn leaves(&self) -> Vec<(u64, Leaf<'_>)> {
        let each = self.nodes.iter().zip(self.numbers.iter());
        each.flat_map(|(node, number)| match node {
            Node::Graph { work, .. } => work.leaves(),
            node => node.leaf().map(|leaf| (*number, leaf)).into_iter().collect(),
        })
        .collect()
    }

    /// What it does to memory, launched on this stream, functions of the host that it calls, and calls that it makes.
    fn carry_out(&self, on: u32, launched: &mut Launched) -> Result<(), Status> {
        let place_of = |captured: u32| if self.origin == Some(captured) { on } else { captured };
        let mut computations = self.computations.iter().peekable();
        for place in 0..=self.nodes.len() {
            while let Some((_, computation)) = computations.next_if(|(before, _)| *before == place) {
                launched.settle();
                (computation.run)(computation.data as *mut c_void);
            }
            match self.nodes.get(place) {
                Some(Node::Host { function, data }) => {
                    launched.settle();
                    function(*data as *mut c_void);
                }
                Some(Node::Graph { work, stream, .. }) => work.carry_out(place_of(*stream), launched)?,
                Some(Node::Calls(calls)) => {
                    launched.settle();
                    let streams: Vec<u32> = calls.streams.iter().map(|stream| place_of(*stream)).collect();
                    (calls.make)(&streams)?;
                    launched.called.extend(streams);
                    tell(|link| (link.graph_resume)(launched.graph, launched.on));
                }
                Some(node @ (Node::Copy { .. } | Node::Set { .. })) => {
                    launched.settle();
                    node.move_bytes()?;
                }
                Some(Node::Record { event }) => {
                    lock().has_recorded(*event);
                    launched.called.iter().for_each(|called| arrivals::stand_behind(on, *called));
                    arrivals::record(*event, on);
                }
                Some(Node::Wait { event }) => arrivals::wait_event(on, *event),
                Some(Node::Kernel { .. } | Node::Empty) | None => {}
            }
        }
        Ok(())
    }
}
