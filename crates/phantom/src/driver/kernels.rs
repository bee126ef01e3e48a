//! Owns the driver's functions for modules and kernels.

use super::{LIBRARY, Pointer, driver};
use crate::device::{self, find};
use crate::errors::*;
use crate::exports::{Items, Out, Put, Text};
use crate::kernels::{self, Arguments, Dim3};
use crate::streams::Handle;
use crate::unimplemented::report;
use std::ffi::{c_char, c_int, c_uint};

/// `CUlaunchConfig`.
#[repr(C)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: c_uint,
    stream: Handle,
    attributes: *const Attribute,
    count: c_uint,
}

/// `CUlaunchAttribute`, which is not read.
#[repr(C, align(8))]
struct Attribute([u8; 72]);

/// `CUtensorMap`, which is opaque to programs.
#[repr(C, align(64))]
struct TensorMap([u64; 16]);

fn launch(
    function: Pointer,
    grid: Dim3,
    block: Dim3,
    shared: c_uint,
    stream: Handle,
    arguments: Arguments,
) -> Result<(), Status> {
    find(0)?;
    kernels::launch(function as usize, grid, block, shared as usize, stream, arguments).map_err(driver_error)
}

/// Error of the driver for an error of the runtime: unknown kernels and invalid configurations have other numbers.
fn driver_error(status: Status) -> Status {
    match status {
        INVALID_DEVICE_FUNCTION => INVALID_HANDLE,
        INVALID_CONFIGURATION => INVALID_VALUE,
        other => other,
    }
}

fn attribute(function: Pointer, number: c_int) -> Result<c_int, Status> {
    let kernel = kernels::find(function as usize).map_err(driver_error)?;
    let [major, minor] = find(device::current() as c_int)?.1.capability;
    Ok(match number {
        0 => kernel.needs.threads as c_int,
        1 => kernel.needs.shared as c_int,
        3 => kernel.needs.local as c_int,
        4 => kernel.needs.registers as c_int,
        5 | 6 => (major * 10 + minor) as c_int,
        8 => kernel.dynamic_limit() as c_int,
        9 => -1,
        2 | 7 | 10..=15 => 0,
        _ => return Err(INVALID_VALUE),
    })
}

fn set_attribute(function: Pointer, number: c_int, value: c_int) -> Result<(), Status> {
    let kernel = kernels::find(function as usize).map_err(driver_error)?;
    match number {
        8 => kernel.set_dynamic_limit(value),
        9..=15 => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

fn function(handle: Out<Pointer>, module: Pointer, name: Text) -> Result<(), Status> {
    handle.give(kernels::function(module as usize, name.bytes().ok_or(INVALID_VALUE)?)? as Pointer)
}

fn load(module: Out<Pointer>, image: *const u8) -> Result<(), Status> {
    find(0)?;
    module.give(kernels::load(image)? as Pointer)
}

driver! {
    fn cuModuleLoadData(module: Out<Pointer>, image: *const u8) { load(module, image) }
    fn cuModuleLoadDataEx(module: Out<Pointer>, image: *const u8, _count: c_uint, _options: Pointer, _values: Pointer) { load(module, image) }
    fn cuModuleLoadFatBinary(module: Out<Pointer>, image: *const u8) { load(module, image) }
    fn cuModuleLoad(module: Out<Pointer>, path: Text) {
        let path = path.get().ok_or(INVALID_VALUE)?;
        // 301: file not found.
        let image = std::fs::read(path).map_err(|_| 301)?;
        load(module, image.as_ptr())
    }
    fn cuModuleUnload(module: Pointer) { kernels::unload(module as usize) }
    fn cuModuleGetFunction(handle: Out<Pointer>, module: Pointer, name: Text) { function(handle, module, name) }
    fn cuModuleGetFunctionCount(count: Out<c_uint>, module: Pointer) { count.give(kernels::names(module as usize)?.len() as c_uint) }
    fn cuModuleEnumerateFunctions(handles: Items<Pointer>, count: c_uint, module: Pointer) {
        let names = kernels::names(module as usize)?;
        let found = names.iter().take(count as usize).map(|name| Ok(kernels::function(module as usize, name)? as Pointer));
        handles.write(&found.collect::<Result<Vec<_>, Status>>()?)
    }
    fn cuModuleGetGlobal_v2(at: Out<usize>, bytes: Out<usize>, module: Pointer, name: Text) {
        let (start, size) = kernels::variable(module as usize, name.get().ok_or(INVALID_VALUE)?, device::current())?;
        bytes.put(size);
        at.give(start)
    }
    fn cuLibraryLoadData(
        library: Out<Pointer>, image: *const u8, _jit: Pointer, _jit_values: Pointer, _jit_count: c_uint, _options: Pointer, _values: Pointer, _count: c_uint,
    ) {
        load(library, image)
    }
    fn cuLibraryUnload(library: Pointer) { kernels::unload(library as usize) }
    fn cuLibraryGetKernel(handle: Out<Pointer>, library: Pointer, name: Text) { function(handle, library, name) }
    fn cuLibraryGetKernelCount(count: Out<c_uint>, library: Pointer) { count.give(kernels::names(library as usize)?.len() as c_uint) }
    fn cuLibraryGetModule(module: Out<Pointer>, library: Pointer) { module.give(library) }
    fn cuKernelGetFunction(handle: Out<Pointer>, kernel: Pointer) { handle.give(kernel) }
    fn cuKernelGetAttribute(value: Out<c_int>, number: c_int, kernel: Pointer, _device: c_int) { value.give(attribute(kernel, number)?) }
    fn cuKernelSetAttribute(number: c_int, value: c_int, kernel: Pointer, _device: c_int) { set_attribute(kernel, number, value) }
    fn cuFuncGetAttribute(value: Out<c_int>, number: c_int, handle: Pointer) { value.give(attribute(handle, number)?) }
    fn cuFuncSetAttribute(handle: Pointer, number: c_int, value: c_int) { set_attribute(handle, number, value) }
    fn cuFuncSetCacheConfig(handle: Pointer, _preference: c_int) { kernels::find(handle as usize).map(drop).map_err(driver_error) }
    fn cuFuncGetName(name: Out<*const c_char>, handle: Pointer) {
        // Kernels and their names are never freed.
        name.give(kernels::find(handle as usize).map_err(driver_error)?.text.as_ptr())
    }
    fn cuFuncGetModule(_module: Out<Pointer>, _handle: Pointer) { report(LIBRARY, "cuFuncGetModule"); Err(NOT_SUPPORTED) }

    fn cuLaunchKernel(
        handle: Pointer, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        parameters: Arguments, _extra: Pointer,
    ) {
        launch(handle, Dim3 { x: gx, y: gy, z: gz }, Dim3 { x: bx, y: by, z: bz }, shared, stream, parameters)
    }
    fn cuLaunchCooperativeKernel(
        handle: Pointer, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: Arguments,
    ) {
        launch(handle, Dim3 { x: gx, y: gy, z: gz }, Dim3 { x: bx, y: by, z: bz }, shared, stream, parameters)
    }
    fn cuLaunchKernelEx(configuration: Option<&Configuration>, handle: Pointer, parameters: Arguments, _extra: Pointer) {
        let Configuration { grid, block, shared, stream, .. } = configuration.ok_or(INVALID_VALUE)?;
        launch(handle, *grid, *block, *shared, *stream, parameters)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<c_int>, handle: Pointer, threads: c_int, dynamic: usize) {
        blocks.give(kernels::find(handle as usize).map_err(driver_error)?.occupancy(threads, dynamic)?)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<c_int>, handle: Pointer, threads: c_int, dynamic: usize, _flags: c_uint) {
        blocks.give(kernels::find(handle as usize).map_err(driver_error)?.occupancy(threads, dynamic)?)
    }
    fn cuOccupancyMaxActiveClusters(_clusters: Out<c_int>, _handle: Pointer, _configuration: Option<&Configuration>) {
        report(LIBRARY, "cuOccupancyMaxActiveClusters");
        Err(NOT_SUPPORTED)
    }
    // A tensor description that kernels read; since kernels compute nothing, it holds only the address.
    fn cuTensorMapEncodeTiled(
        map: Out<TensorMap>, _kind: c_int, rank: c_uint, at: usize, _sizes: *const u64, _strides: *const u64, _box: *const u32, _elements: *const u32,
        _interleave: c_int, _swizzle: c_int, _promotion: c_int, _fill: c_int,
    ) {
        if !(1..=5).contains(&rank) || !at.is_multiple_of(16) { return Err(INVALID_VALUE); }
        let mut words = [0; 16];
        words[0] = at as u64;
        map.give(TensorMap(words))
    }
}
