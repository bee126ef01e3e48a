//! Owns the runtime's functions for streams, events and stream capture.

use super::runtime;
use crate::errors::*;
use crate::exports::{Items, Out, Put};
use crate::streams::{self, HostFunction, Mode};
use crate::unimplemented::report;
use std::ffi::{c_int, c_uint, c_void};

pub(super) use crate::streams::Handle;

const LIBRARY: &str = "libcudart";

/// `cudaStreamCallback_t`.
type Callback = extern "C" fn(stream: Handle, status: Status, data: *mut c_void);

/// `cudaIpcEventHandle_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u8; 64]);

fn create(stream: Out<Handle>, flags: c_uint, priority: c_int) -> Result<(), Status> {
    stream.give(streams::create(flags, priority)?)
}

/// Capture mode from its number.
pub(super) fn mode(number: c_int) -> Result<Mode, Status> {
    Mode::from_number(number).ok_or(INVALID_VALUE)
}

runtime! {
    fn cudaStreamCreate(stream: Out<Handle>) { create(stream, 0, 0) }
    fn cudaStreamCreateWithFlags(stream: Out<Handle>, flags: c_uint) { create(stream, flags, 0) }
    fn cudaStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) { create(stream, flags, priority) }
    fn cudaStreamDestroy(stream: Handle) { streams::destroy(stream) }
    fn cudaStreamGetPriority(stream: Handle, priority: Out<c_int>) { priority.give(streams::describe(stream)?.2) }
    fn cudaStreamGetFlags(stream: Handle, flags: Out<c_uint>) { flags.give(streams::describe(stream)?.1) }
    fn cudaStreamGetDevice(stream: Handle, device: Out<c_int>) { device.give(streams::describe(stream)?.0 as c_int) }
    fn cudaStreamGetId(stream: Handle, id: Out<u64>) { id.give(u64::from(streams::describe(stream)?.3)) }
    fn cudaStreamQuery(stream: Handle) { if streams::query(stream)? { Ok(()) } else { Err(NOT_READY) } }
    fn cudaStreamSynchronize(stream: Handle) { streams::synchronize(stream) }
    fn cudaStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) { streams::wait_event(stream, event, flags) }
    fn cudaStreamAddCallback(stream: Handle, function: Callback, data: *mut c_void, _flags: c_uint) {
        if streams::capture_info(stream)?.is_some() { return Err(CAPTURE_UNSUPPORTED); }
        let call = Box::new((function, stream, data));
        streams::host_function(stream, call_back, Box::into_raw(call).cast())
    }
    fn cudaLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void) { streams::host_function(stream, function, data) }

    fn cudaEventCreate(event: Out<Handle>) { event.give(streams::create_event(0)?) }
    fn cudaEventCreateWithFlags(event: Out<Handle>, flags: c_uint) { event.give(streams::create_event(flags)?) }
    fn cudaEventDestroy(event: Handle) { streams::destroy_event(event) }
    fn cudaEventRecord(event: Handle, stream: Handle) { streams::record(event, stream, 0) }
    fn cudaEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) { streams::record(event, stream, flags) }
    fn cudaEventQuery(event: Handle) { if streams::query_event(event)? { Ok(()) } else { Err(NOT_READY) } }
    fn cudaEventSynchronize(event: Handle) { streams::synchronize_event(event) }
    fn cudaEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) { milliseconds.give(streams::elapsed(start, end)?) }
    fn cudaIpcGetEventHandle(_handle: Out<IpcHandle>, _event: Handle) { report(LIBRARY, "cudaIpcGetEventHandle"); Err(NOT_SUPPORTED) }
    fn cudaIpcOpenEventHandle(_event: Out<Handle>, _handle: IpcHandle) { report(LIBRARY, "cudaIpcOpenEventHandle"); Err(NOT_SUPPORTED) }

    fn cudaStreamBeginCapture(stream: Handle, number: c_int) { streams::begin_capture(stream, None, mode(number)?) }
    fn cudaStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, _dependencies: Items<Handle>, _data: *const c_void, count: usize, number: c_int,
    ) {
        if count > 0 { report(LIBRARY, "cudaStreamBeginCaptureToGraph with dependencies"); return Err(NOT_SUPPORTED); }
        streams::begin_capture(stream, Some(graph), mode(number)?)
    }
    fn cudaStreamEndCapture(stream: Handle, graph: Out<Handle>) { graph.give(streams::end_capture(stream)?) }
    fn cudaStreamIsCapturing(stream: Handle, status: Out<c_int>) {
        status.give(streams::capture_info(stream)?.map_or(0, |info| info.status))
    }
    fn cudaStreamGetCaptureInfo(
        stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>,
        nodes: Out<*const Handle>, data: Out<*const c_void>, count: Out<usize>,
    ) {
        streams::report_capture(stream, status, id, graph, nodes, data, count)
    }
    fn cudaStreamUpdateCaptureDependencies(stream: Handle, nodes: Items<Handle>, _data: *const c_void, count: usize, flags: c_uint) {
        // 0 adds, 1 replaces.
        if flags > 1 { return Err(INVALID_VALUE); }
        streams::update_dependencies(stream, nodes.read(count), flags == 1)
    }
    fn cudaThreadExchangeStreamCaptureMode(number: Option<&mut c_int>) {
        let number = number.ok_or(INVALID_VALUE)?;
        *number = streams::exchange_mode(mode(*number)?) as c_int;
        Ok(())
    }
}

extern "C" fn call_back(data: *mut c_void) {
    // SAFETY: `cudaStreamAddCallback` leaked this box for exactly one call.
    let call = unsafe { Box::from_raw(data.cast::<(Callback, Handle, *mut c_void)>()) };
    let (function, stream, data) = *call;
    function(stream, SUCCESS, data);
}
