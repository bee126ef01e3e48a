//! Owns CUDA graphs: captured or constructed nodes in a valid execution order, and what a launch does.

use super::{CopyKind, Handle, Kind, State, lock, tell};
use crate::errors::*;
use crate::exports::exports;
use crate::launches::{Leaf, Moved, Name, Shape};
use crate::{arrivals, memory};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;

/// A host function in C.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

/// Computation of a graph's operators, which `cpp/cpu_reference.h` runs at each launch: this library only knows its
/// place in the graph.
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

/// Makes a group of communicator calls, one on each of these streams.
pub(crate) type MakeCalls = Box<dyn Fn(&[u32]) -> Result<(), Status> + Send + Sync>;

/// A group of communicator calls, made at each launch of a graph.
pub(crate) struct Calls {
    /// Streams on which the calls were captured.
    pub(super) streams: Vec<u32>,
    pub(super) make: MakeCalls,
}

impl fmt::Debug for Calls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Calls").field("streams", &self.streams).finish_non_exhaustive()
    }
}

/// Known cost of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takes {
    /// Time to read and write this many bytes; 0: unknown.
    Bytes(u64),
    /// A fixed duration on any device.
    Nanoseconds(u64),
}

/// Launch flag: the argument is a duration in nanoseconds. See `LaunchFlags` of crates/formats/src/operators/decode.rs.
const SPINS: u32 = 4;

/// Work on a stream or in a graph.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// A kernel launch.
    Kernel { name: Arc<Name>, takes: Takes, shape: Shape },
    /// A copy of bytes.
    Copy { moved: Moved, kind: CopyKind },
    /// A memset.
    Set { at: usize, value: Box<[u8]>, count: usize },
    /// A call of a host function.
    Host { function: HostFunction, data: usize },
    /// A launch of another graph on a stream.
    Graph { number: usize, work: Work, stream: u32 },
    /// A group of communicator calls.
    Calls(Arc<Calls>),
    /// A record of an event outside of the graph.
    Record { event: u32 },
    /// A wait for an event outside of the graph.
    Wait { event: u32 },
    /// A node without work, on which other nodes depend.
    Empty,
}

/// The nodes of a graph, in execution order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    nodes: Arc<[Node]>,
    /// Numbers of the nodes in the link; 0: none.
    numbers: Arc<[u64]>,
    /// Computations, each with the number of nodes before it.
    computations: Arc<[(usize, Arc<Computation>)]>,
    /// Stream on which the capture began.
    origin: Option<u32>,
}

/// State of a graph launch in progress.
struct Launched {
    graph: u32,
    on: u32,
    /// Streams on which communicator calls were made.
    called: BTreeSet<u32>,
}

impl Launched {
    /// Waits for the data of the calls made so far, before it is read.
    fn wait_for_data(&self) {
        if arrivals::any() {
            self.called.iter().for_each(|stream| arrivals::wait_for_stream(*stream));
        }
    }
}

#[derive(Default)]
pub(super) struct Graph {
    pub(super) exists: bool,
    pub(super) is_invalid: bool,
    pub(super) nodes: Vec<Node>,
    pub(super) numbers: Vec<u64>,
    /// Nodes that each node waits for.
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
    /// Whether a stream is captured into a graph, for `cpp/cpu_reference.h`.
    fn uniference_phantom_is_captured(stream: Handle) -> c_int {
        let mut state = lock();
        c_int::from(state.resolve(stream).is_ok_and(|stream| state.streams[stream as usize].capture.is_some()))
    }

    /// Appends a computation to the graph that a stream captures: each launch calls `run`. `forget` is called when the
    /// graph and its instances are destroyed.
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

/// Creates an empty graph.
pub(crate) fn create_graph() -> Result<Handle, Status> {
    let mut state = lock();
    state.prepare()?;
    state.graphs.push(Graph { exists: true, ..Graph::default() });
    Ok(Kind::Graph.handle(state.graphs.len() - 1))
}

/// Adds an empty node that depends on the nodes in `after`.
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

/// Instantiates a graph.
pub(crate) fn instantiate(graph: Handle) -> Result<Handle, Status> {
    let mut state = lock();
    let number = state.graph(graph)?;
    let work = state.graphs[number].work();
    state.execs.push(Exec { exists: true, graph: number, work });
    Ok(Kind::Exec.handle(state.execs.len() - 1))
}

/// Updates an instantiated graph to `graph`, if both have nodes of the same kinds.
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

/// Launches a graph on a stream.
pub(crate) fn launch_graph(exec: Handle, stream: Handle) -> Result<(), Status> {
    if arrivals::any() {
        let number = lock().resolve(stream)?;
        arrivals::wait_for_stream(number);
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
    // Host functions of the program may call this library, so the state is unlocked.
    let mut launched = Launched { graph: number as u32, on: stream, called: BTreeSet::new() };
    work.carry_out(stream, &mut launched)?;
    launched.called.into_iter().for_each(|called| arrivals::stand_behind(stream, called));
    Ok(())
}

/// Destroys a graph; its instances stay.
pub(crate) fn destroy_graph(graph: Handle) -> Result<(), Status> {
    let mut state = lock();
    let number = state.graph(graph)?;
    let graph = std::mem::take(&mut state.graphs[number]);
    // The lock is released first, because destructors of the graph's computations acquire other locks.
    drop(state);
    drop(graph);
    Ok(())
}

/// Destroys an instantiated graph.
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

/// Nodes that a node waits for.
pub(crate) fn dependencies(node: Handle) -> Result<Vec<Handle>, Status> {
    let state = lock();
    let (graph, node) = state.node(node)?;
    Ok(state.graphs[graph].dependencies[node].iter().map(|before| node_handle(graph, *before)).collect())
}

/// Bits of a node's handle that hold its number in its graph.
const NODE_BITS: u32 = 18;

/// Handle of a node; the bits above `NODE_BITS` hold the graph's number.
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

    /// Reports the node to the link as work on `stream`.
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
            // `capture_calls` writes a captured call for each stream.
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
            // Communicator calls are recorded when they are made.
            Node::Host { .. }
            | Node::Graph { .. }
            | Node::Calls(_)
            | Node::Record { .. }
            | Node::Wait { .. }
            | Node::Empty => None,
        }
    }

    /// Moves the node's bytes. For a graph, [`Work::carry_out`] does so after its submission.
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

    /// Carries out a launch on stream `on`: moves bytes, calls host functions and computations, and makes communicator
    /// calls.
    fn carry_out(&self, on: u32, launched: &mut Launched) -> Result<(), Status> {
        let place_of = |captured: u32| if self.origin == Some(captured) { on } else { captured };
        let mut computations = self.computations.iter().peekable();
        for place in 0..=self.nodes.len() {
            while let Some((_, computation)) = computations.next_if(|(before, _)| *before == place) {
                launched.wait_for_data();
                (computation.run)(computation.data as *mut c_void);
            }
            match self.nodes.get(place) {
                Some(Node::Host { function, data }) => {
                    launched.wait_for_data();
                    function(*data as *mut c_void);
                }
                Some(Node::Graph { work, stream, .. }) => work.carry_out(place_of(*stream), launched)?,
                Some(Node::Calls(calls)) => {
                    launched.wait_for_data();
                    let streams: Vec<u32> = calls.streams.iter().map(|stream| place_of(*stream)).collect();
                    (calls.make)(&streams)?;
                    launched.called.extend(streams);
                    tell(|link| (link.graph_resume)(launched.graph, launched.on));
                }
                Some(node @ (Node::Copy { .. } | Node::Set { .. })) => {
                    launched.wait_for_data();
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
