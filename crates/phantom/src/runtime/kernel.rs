//! Owns the runtime's functions for kernels: registration by libraries that nvcc compiled, launches, attributes, and
//! device variables.

use super::runtime;
use super::stream::Handle;
use crate::device::{self, Architecture, THREADS_OF_BLOCK, find};
use crate::errors::*;
use crate::exports::{Out, Put, Text, exports};
use crate::kernels::{self, Arguments, Dim3, Kernel};
use crate::launches::Moved;
use crate::memory;
use crate::streams;
use crate::unimplemented::report;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Arc, Mutex, PoisonError};

const LIBRARY: &str = "libcudart";

type Pointer = *mut c_void;

/// `cudaFuncAttributes`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    shared: usize,
    constant: usize,
    local: usize,
    threads: c_int,
    registers: c_int,
    ptx: c_int,
    binary: c_int,
    caches: c_int,
    dynamic_shared: c_int,
    carveout: c_int,
    needs_cluster: c_int,
    cluster: [c_int; 3],
    cluster_policy: c_int,
    larger_clusters: c_int,
    reserved: [c_int; 16],
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
    attributes: *const c_void,
    count: c_uint,
}

/// A device variable: its size, and its address by device, once it was requested.
struct Variable {
    bytes: usize,
    places: BTreeMap<usize, usize>,
}

thread_local! {
    /// Launch configurations that `kernel<<<...>>>` has pushed and the launched function has not popped yet.
    static CONFIGURATIONS: RefCell<Vec<(Dim3, Dim3, usize, usize)>> = const { RefCell::new(Vec::new()) };
}

static VARIABLES: Mutex<BTreeMap<usize, Variable>> = Mutex::new(BTreeMap::new());

fn launch(
    function: Pointer,
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
    arguments: Arguments,
) -> Result<(), Status> {
    find(0)?;
    kernels::launch(function as usize, grid, block, shared, stream, arguments)
}

fn kernel(function: Pointer) -> Result<Arc<Kernel>, Status> {
    find(0)?;
    kernels::find(function as usize)
}

fn occupancy(blocks: Out<c_int>, function: Pointer, threads: c_int, dynamic: usize) -> Result<(), Status> {
    blocks.give(kernel(function)?.occupancy(threads, dynamic)?)
}

/// Address and size of a variable on the current device.
fn variable(symbol: Pointer) -> Result<(usize, usize), Status> {
    find(0)?;
    let mut variables = VARIABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let variable = variables.get_mut(&(symbol as usize)).ok_or(INVALID_SYMBOL)?;
    let device = device::current();
    let at = match variable.places.get(&device) {
        Some(at) => *at,
        None => *variable.places.entry(device).or_insert(memory::allocate(device, variable.bytes)?),
    };
    Ok((at, variable.bytes))
}

/// Address of the part of a variable that is copied.
fn part(symbol: Pointer, offset: usize, bytes: usize) -> Result<usize, Status> {
    let (at, all) = variable(symbol)?;
    if offset.checked_add(bytes).is_some_and(|end| end <= all) { Ok(at + offset) } else { Err(INVALID_VALUE) }
}

fn set_attribute(function: Pointer, attribute: c_int, value: c_int) -> Result<(), Status> {
    let kernel = kernel(function)?;
    match attribute {
        8 => kernel.set_dynamic_limit(value),
        // Cache preferences and clusters have no effect.
        9..=15 => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

exports! {
    /// Registers a library's kernels, with an image per architecture. The handle identifies the library in the
    /// following calls.
    fn __cudaRegisterFatBinary(image: Pointer) -> *mut Pointer { Box::into_raw(Box::new(image)) }
    fn __cudaRegisterFatBinaryEnd(_handle: *mut Pointer) {}
    fn __cudaUnregisterFatBinary(_handle: *mut Pointer) {}
    fn __cudaRegisterFunction(
        _handle: *mut Pointer, function: Pointer, _device_function: *mut c_char, name: *const c_char, _limit: c_int,
        _thread: Pointer, _block: Pointer, _block_dim: Pointer, _grid_dim: Pointer, _warp: Pointer,
    ) {
        kernels::register(function as usize, name);
    }
    fn __cudaRegisterVar(
        _handle: *mut Pointer, symbol: Pointer, _address: Pointer, _name: *const c_char, _external: c_int, bytes: usize, _constant: c_int, _global: c_int,
    ) {
        let variable = Variable { bytes, places: BTreeMap::new() };
        VARIABLES.lock().unwrap_or_else(PoisonError::into_inner).insert(symbol as usize, variable);
    }
    fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared: usize, stream: Handle) -> c_uint {
        CONFIGURATIONS.with_borrow_mut(|all| all.push((grid, block, shared, stream as usize)));
        0
    }
    fn __cudaPopCallConfiguration(grid: Out<Dim3>, block: Out<Dim3>, shared: Out<usize>, stream: Out<Handle>) -> Status {
        let Some(top) = CONFIGURATIONS.with_borrow_mut(Vec::pop) else { return 52 };
        grid.put(top.0);
        block.put(top.1);
        shared.put(top.2);
        stream.put(top.3 as Handle);
        SUCCESS
    }
}

runtime! {
    fn cudaLaunchKernel(function: Pointer, grid: Dim3, block: Dim3, arguments: Arguments, shared: usize, stream: Handle) {
        launch(function, grid, block, shared, stream, arguments)
    }
    fn __cudaLaunchKernel(function: Pointer, grid: Dim3, block: Dim3, arguments: Arguments, shared: usize, stream: Handle) {
        launch(function, grid, block, shared, stream, arguments)
    }
    fn cudaLaunchCooperativeKernel(function: Pointer, grid: Dim3, block: Dim3, arguments: Arguments, shared: usize, stream: Handle) {
        launch(function, grid, block, shared, stream, arguments)
    }
    fn cudaLaunchKernelExC(configuration: Option<&Configuration>, function: Pointer, arguments: Arguments) {
        let Configuration { grid, block, shared, stream, .. } = configuration.ok_or(INVALID_VALUE)?;
        launch(function, *grid, *block, *shared, *stream, arguments)
    }
    fn __cudaGetKernel(handle: Out<Pointer>, function: Pointer) { kernels::find(function as usize)?; handle.give(function) }
    fn cudaGetKernel(handle: Out<Pointer>, function: Pointer) { kernel(function)?; handle.give(function) }
    fn cudaGetFuncBySymbol(handle: Out<Pointer>, function: Pointer) { kernel(function)?; handle.give(function) }
    fn cudaFuncGetName(name: Out<*const c_char>, function: Pointer) {
        // Kernels and their names are never freed.
        name.give(kernel(function)?.text.as_ptr())
    }
    fn cudaFuncGetAttributes(attributes: Out<Attributes>, function: Pointer) {
        let kernel = kernel(function)?;
        let [major, minor] = find(device::current() as c_int)?.1.capability;
        let version = (major * 10 + minor) as c_int;
        attributes.give(Attributes {
            shared: kernel.needs.shared as usize,
            local: kernel.needs.local as usize,
            threads: kernel.needs.threads as c_int,
            registers: kernel.needs.registers as c_int,
            ptx: version,
            binary: version,
            dynamic_shared: kernel.dynamic_limit() as c_int,
            carveout: -1,
            ..Attributes::default()
        })
    }
    fn cudaFuncSetAttribute(function: Pointer, attribute: c_int, value: c_int) { set_attribute(function, attribute, value) }
    fn cudaKernelSetAttributeForDevice(function: Pointer, attribute: c_int, value: c_int, ordinal: c_int) {
        find(ordinal)?;
        set_attribute(function, attribute, value)
    }
    fn cudaFuncSetCacheConfig(function: Pointer, _preference: c_int) { kernel(function).map(drop) }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<c_int>, function: Pointer, threads: c_int, dynamic: usize) {
        occupancy(blocks, function, threads, dynamic)
    }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<c_int>, function: Pointer, threads: c_int, dynamic: usize, _flags: c_uint) {
        occupancy(blocks, function, threads, dynamic)
    }
    fn cudaOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Pointer, blocks: c_int, threads: c_int) {
        let kernel = kernel(function)?;
        let architecture = Architecture::of(find(device::current() as c_int)?.1.capability);
        if blocks <= 0 || threads <= 0 || threads as u32 > THREADS_OF_BLOCK { return Err(INVALID_VALUE); }
        let each = architecture.shared / blocks as u32;
        bytes.give(each.saturating_sub(architecture.shared_reserved + kernel.needs.shared).min(architecture.shared_of_block) as usize)
    }
    fn cudaOccupancyMaxActiveClusters(_clusters: Out<c_int>, _function: Pointer, _configuration: Option<&Configuration>) {
        report(LIBRARY, "cudaOccupancyMaxActiveClusters");
        Err(NOT_SUPPORTED)
    }

    fn cudaGetSymbolAddress(pointer: Out<Pointer>, symbol: Pointer) { pointer.give(variable(symbol)?.0 as Pointer) }
    fn cudaGetSymbolSize(bytes: Out<usize>, symbol: Pointer) { bytes.give(variable(symbol)?.1) }
    fn cudaMemcpyToSymbol(symbol: Pointer, from: Pointer, bytes: usize, offset: usize, _kind: c_int) {
        let to = part(symbol, offset, bytes)?;
        streams::copy(std::ptr::null_mut(), Moved::line(to, from as usize, bytes))?;
        streams::synchronize(std::ptr::null_mut())
    }
    fn cudaMemcpyToSymbolAsync(symbol: Pointer, from: Pointer, bytes: usize, offset: usize, _kind: c_int, stream: Handle) {
        streams::copy(stream, Moved::line(part(symbol, offset, bytes)?, from as usize, bytes))
    }
    fn cudaMemcpyFromSymbol(to: Pointer, symbol: Pointer, bytes: usize, offset: usize, _kind: c_int) {
        let from = part(symbol, offset, bytes)?;
        streams::copy(std::ptr::null_mut(), Moved::line(to as usize, from, bytes))?;
        streams::synchronize(std::ptr::null_mut())
    }
    fn cudaMemcpyFromSymbolAsync(to: Pointer, symbol: Pointer, bytes: usize, offset: usize, _kind: c_int, stream: Handle) {
        streams::copy(stream, Moved::line(to as usize, part(symbol, offset, bytes)?, bytes))
    }

    fn cudaLibraryLoadData(
        library: Out<Pointer>, code: *const u8, _jit: Pointer, _jit_values: Pointer, _jit_count: c_uint, _options: Pointer, _values: Pointer, _count: c_uint,
    ) {
        library.give(kernels::load(code)? as Pointer)
    }
    fn cudaLibraryLoadFromFile(
        _library: Out<Pointer>, _path: Text, _jit: Pointer, _jit_values: Pointer, _jit_count: c_uint, _options: Pointer, _values: Pointer, _count: c_uint,
    ) {
        report(LIBRARY, "cudaLibraryLoadFromFile");
        Err(NOT_SUPPORTED)
    }
    fn cudaLibraryUnload(library: Pointer) { kernels::unload(library as usize) }
    fn cudaLibraryGetKernel(handle: Out<Pointer>, library: Pointer, name: Text) {
        handle.give(kernels::function(library as usize, name.bytes().ok_or(INVALID_VALUE)?)? as Pointer)
    }
    fn cudaLibraryGetKernelCount(count: Out<c_uint>, library: Pointer) { count.give(kernels::names(library as usize)?.len() as c_uint) }
    fn cudaLibraryGetGlobal(pointer: Out<Pointer>, bytes: Out<usize>, library: Pointer, name: Text) {
        let (at, size) = kernels::variable(library as usize, name.get().ok_or(INVALID_VALUE)?, device::current())?;
        bytes.put(size);
        pointer.give(at as Pointer)
    }
    fn cudaLibraryGetManaged(_pointer: Out<Pointer>, _bytes: Out<usize>, _library: Pointer, _name: Text) {
        report(LIBRARY, "cudaLibraryGetManaged");
        Err(NOT_SUPPORTED)
    }
    fn cudaLibraryGetUnifiedFunction(_pointer: Out<Pointer>, _library: Pointer, _name: Text) {
        report(LIBRARY, "cudaLibraryGetUnifiedFunction");
        Err(NOT_SUPPORTED)
    }
    fn cudaGetDriverEntryPointByVersion(symbol: Text, function: Out<Pointer>, _version: c_uint, _flags: c_ulonglong, result: Out<c_int>) {
        crate::driver::entry_point(symbol, function, result)
    }
    fn cudaGetDriverEntryPoint(symbol: Text, function: Out<Pointer>, _flags: c_ulonglong, result: Out<c_int>) {
        crate::driver::entry_point(symbol, function, result)
    }
    fn cudaGetExportTable(_table: Out<Pointer>, _id: *const [u8; 16]) { report(LIBRARY, "cudaGetExportTable"); Err(NOT_SUPPORTED) }
}
