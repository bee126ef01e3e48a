//! Owns the driver's functions for streams, events and graphs.

use super::{Context, Pointer, context, driver};
use crate::errors::*;
use crate::exports::{Items, Out, Put};
use crate::streams::{self, Handle, HostFunction, Mode, NON_BLOCKING};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

driver! {
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) { stream.give(streams::create(flags, 0)?) }
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) { stream.give(streams::create(flags & NON_BLOCKING, priority)?) }
    fn cuStreamDestroy_v2(stream: Handle) { streams::destroy(stream) }
    fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) { priority.give(streams::describe(stream)?.2) }
    fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) { flags.give(streams::describe(stream)?.1) }
    fn cuStreamGetDevice(stream: Handle, device: Out<c_int>) { device.give(streams::describe(stream)?.0 as c_int) }
    fn cuStreamGetId(stream: Handle, id: Out<c_ulonglong>) { id.give(c_ulonglong::from(streams::describe(stream)?.3)) }
    fn cuStreamGetCtx(stream: Handle, of: Out<Context>) { of.give(context(streams::describe(stream)?.0)) }
    fn cuStreamQuery(stream: Handle) { if streams::query(stream)? { Ok(()) } else { Err(NOT_READY) } }
    fn cuStreamSynchronize(stream: Handle) { streams::synchronize(stream) }
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) { streams::wait_event(stream, event, flags) }
    fn cuLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void) { streams::host_function(stream, function, data) }

    fn cuEventCreate(event: Out<Handle>, flags: c_uint) { event.give(streams::create_event(flags)?) }
    fn cuEventDestroy_v2(event: Handle) { streams::destroy_event(event) }
    fn cuEventRecord(event: Handle, stream: Handle) { streams::record(event, stream, 0) }
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) { streams::record(event, stream, flags) }
    fn cuEventQuery(event: Handle) { if streams::query_event(event)? { Ok(()) } else { Err(NOT_READY) } }
    fn cuEventSynchronize(event: Handle) { streams::synchronize_event(event) }
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) { milliseconds.give(streams::elapsed(start, end)?) }

    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) {
        streams::begin_capture(stream, None, Mode::from_number(mode).ok_or(INVALID_VALUE)?)
    }
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) { graph.give(streams::end_capture(stream)?) }
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) { status.give(streams::capture_info(stream)?.map_or(0, |info| info.status)) }
    fn cuStreamGetCaptureInfo_v3(
        stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, nodes: Out<*const Handle>, data: Out<*const c_void>, count: Out<usize>,
    ) {
        streams::report_capture(stream, status, id, graph, nodes, data, count)
    }
    fn cuStreamUpdateCaptureDependencies_v2(stream: Handle, nodes: Items<Handle>, _data: *const c_void, count: usize, flags: c_uint) {
        if flags > 1 { return Err(INVALID_VALUE); }
        streams::update_dependencies(stream, nodes.read(count), flags == 1)
    }
    fn cuThreadExchangeStreamCaptureMode(number: Option<&mut c_int>) {
        let number = number.ok_or(INVALID_VALUE)?;
        *number = streams::exchange_mode(Mode::from_number(*number).ok_or(INVALID_VALUE)?) as c_int;
        Ok(())
    }
    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, _flags: c_ulonglong) { exec.give(streams::instantiate(graph)?) }
    fn cuGraphLaunch(exec: Handle, stream: Handle) { streams::launch_graph(exec, stream)?; streams::wait_for_launch(stream) }
    fn cuGraphUpload(_exec: Handle, stream: Handle) { streams::describe(stream).map(drop) }
    fn cuGraphDestroy(graph: Handle) { streams::destroy_graph(graph) }
    fn cuGraphExecDestroy(exec: Handle) { streams::destroy_exec(exec) }
    fn cuStreamWriteValue32_v2(stream: Handle, at: Pointer, value: u32, _flags: c_uint) {
        streams::set(stream, at as usize, &value.to_le_bytes(), 1)
    }
}
