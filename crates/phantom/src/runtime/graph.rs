//! Owns the runtime's functions for graphs.

use super::runtime;
use super::stream::Handle;
use crate::errors::*;
use crate::exports::{Items, Out, Put};
use crate::streams::{self, HostFunction};
use crate::unimplemented::report;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Mutex, PoisonError};

const LIBRARY: &str = "libcudart";

/// `cudaGraphExecUpdateResultInfo`.
#[repr(C)]
struct UpdateResult {
    result: c_int,
    node: Handle,
    from: Handle,
}

/// An object of the program that lives as long as graphs need it.
struct UserObject {
    object: usize,
    destroy: HostFunction,
    uses: u32,
    /// Graphs that reference the object, and the number of references of each.
    graphs: BTreeMap<usize, u32>,
}

static OBJECTS: Mutex<BTreeMap<usize, UserObject>> = Mutex::new(BTreeMap::new());

fn instantiate(exec: Out<Handle>, graph: Handle) -> Result<(), Status> {
    exec.give(streams::instantiate(graph)?)
}

/// Writes a list of handles; if `list` is null, only their number.
fn list(all: &[Handle], list: Items<Handle>, count: Option<&mut usize>) -> Result<(), Status> {
    let count = count.ok_or(INVALID_VALUE)?;
    if !list.is_null() {
        let room = *count;
        list.write(&all[..all.len().min(room)])?;
        // Surplus entries are null (CUDA Runtime API, `cudaGraphGetNodes`).
        *count = all.len().min(room);
        return Ok(());
    }
    *count = all.len();
    Ok(())
}

/// Applies a change to the object `key`, or to all objects for key 0; objects that then have no references are
/// destroyed by calling the program's function.
fn release(key: usize, mut change: impl FnMut(&mut UserObject)) {
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    objects.iter_mut().filter(|(each, _)| key == 0 || **each == key).for_each(|(_, object)| change(object));
    let unused: Vec<usize> = objects.iter().filter(|(_, object)| object.uses == 0).map(|(key, _)| *key).collect();
    let unused: Vec<UserObject> = unused.iter().filter_map(|key| objects.remove(key)).collect();
    drop(objects);
    unused.iter().for_each(|object| (object.destroy)(object.object as *mut c_void));
}

runtime! {
    fn cudaGraphCreate(graph: Out<Handle>, _flags: c_uint) { graph.give(streams::create_graph()?) }
    fn cudaGraphDestroy(graph: Handle) {
        streams::destroy_graph(graph)?;
        release(0, |object| object.uses -= object.graphs.remove(&(graph as usize)).unwrap_or(0));
        Ok(())
    }
    fn cudaGraphInstantiate(exec: Out<Handle>, graph: Handle, _flags: c_ulonglong) { instantiate(exec, graph) }
    fn cudaGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, _flags: c_ulonglong) { instantiate(exec, graph) }
    fn cudaGraphUpload(_exec: Handle, stream: Handle) { streams::describe(stream).map(drop) }
    fn cudaGraphLaunch(exec: Handle, stream: Handle) { streams::launch_graph(exec, stream)?; streams::wait_for_launch(stream) }
    fn cudaGraphExecDestroy(exec: Handle) { streams::destroy_exec(exec) }
    fn cudaGraphExecUpdate(exec: Handle, graph: Handle, result: Out<UpdateResult>) {
        let done = streams::update_exec(exec, graph);
        // 0: success; 2: the topology has changed.
        let code = if done.is_ok() { 0 } else { 2 };
        result.put(UpdateResult { result: code, node: std::ptr::null_mut(), from: std::ptr::null_mut() });
        done
    }
    fn cudaGraphGetNodes(graph: Handle, nodes: Items<Handle>, count: Option<&mut usize>) { list(&streams::nodes(graph)?, nodes, count) }
    fn cudaGraphGetRootNodes(graph: Handle, nodes: Items<Handle>, count: Option<&mut usize>) {
        let mut roots = streams::nodes(graph)?;
        roots.retain(|node| streams::dependencies(*node).is_ok_and(|before| before.is_empty()));
        list(&roots, nodes, count)
    }
    fn cudaGraphNodeGetType(node: Handle, kind: Out<c_int>) { kind.give(streams::node_kind(node)?) }
    fn cudaGraphNodeGetDependencies(node: Handle, nodes: Items<Handle>, _data: *mut c_void, count: Option<&mut usize>) {
        list(&streams::dependencies(node)?, nodes, count)
    }
    fn cudaGraphAddEmptyNode(node: Out<Handle>, graph: Handle, dependencies: Items<Handle>, count: usize) {
        node.give(streams::add_empty(graph, dependencies.read(count))?)
    }
    fn cudaGraphAddNode(
        node: Out<Handle>, graph: Handle, dependencies: Items<Handle>, _data: *const c_void, count: usize, parameters: Option<&c_int>,
    ) {
        // The first field is the type of node; 5 is an empty node.
        if *parameters.ok_or(INVALID_VALUE)? == 5 { return node.give(streams::add_empty(graph, dependencies.read(count))?); }
        report(LIBRARY, "cudaGraphAddNode for nodes that do something");
        Err(NOT_SUPPORTED)
    }
    fn cudaGraphDebugDotPrint(_graph: Handle, _path: *const c_void, _flags: c_uint) {
        report(LIBRARY, "cudaGraphDebugDotPrint");
        Err(NOT_SUPPORTED)
    }
    fn cudaGraphConditionalHandleCreate(_handle: Out<c_ulonglong>, _graph: Handle, _default: c_uint, _flags: c_uint) {
        report(LIBRARY, "cudaGraphConditionalHandleCreate");
        Err(NOT_SUPPORTED)
    }

    fn cudaUserObjectCreate(handle: Out<Handle>, object: *mut c_void, destroy: HostFunction, uses: c_uint, _flags: c_uint) {
        let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = objects.last_key_value().map_or(1 << 8, |(last, _)| last + 16);
        objects.insert(key, UserObject { object: object as usize, destroy, uses, graphs: BTreeMap::new() });
        handle.give(key as Handle)
    }
    fn cudaUserObjectRetain(handle: Handle, count: c_uint) {
        let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
        objects.get_mut(&(handle as usize)).ok_or(INVALID_VALUE)?.uses += count;
        Ok(())
    }
    fn cudaUserObjectRelease(handle: Handle, count: c_uint) {
        let mut is_known = false;
        release(handle as usize, |object| {
            is_known = object.uses >= count;
            object.uses -= if is_known { count } else { 0 };
        });
        if is_known { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cudaGraphRetainUserObject(graph: Handle, handle: Handle, count: c_uint, flags: c_uint) {
        streams::nodes(graph)?;
        let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
        let object = objects.get_mut(&(handle as usize)).ok_or(INVALID_VALUE)?;
        *object.graphs.entry(graph as usize).or_default() += count;
        // 1 (`cudaGraphUserObjectMove`): the program's references become the graph's.
        if flags & 1 == 0 { object.uses += count; }
        Ok(())
    }
}
