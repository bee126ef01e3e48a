//! Owns the driver's memory functions.

use super::{LIBRARY, Pointer, context, driver};
use crate::device::{self, find};
use crate::errors::*;
use crate::exports::{Items, Out, Put};
use crate::launches::Moved;
use crate::memory::{self, GRANULE, Kind, MemHandle, Place};
use crate::peers;
use crate::streams::{self, Handle, check_unsafe_call};
use crate::unimplemented::report;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::ptr::null_mut;

/// `CUmemLocation`; type 1 is a device.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: c_int,
    handles: c_int,
    location: Location,
    security: Pointer,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Access {
    location: Location,
    flags: c_int,
}

fn copy_now(to: usize, from: usize, bytes: usize) -> Result<(), Status> {
    check_unsafe_call()?;
    streams::copy(null_mut(), Moved::line(to, from, bytes))?;
    streams::synchronize(null_mut())
}

fn copy(to: usize, from: usize, bytes: usize, stream: Handle) -> Result<(), Status> {
    streams::copy(stream, Moved::line(to, from, bytes))
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: memory that can be exported by a file descriptor.
const DESCRIPTOR: c_int = 1;

fn check_kind(kind: c_int) -> Result<(), Status> {
    if kind == DESCRIPTOR {
        return Ok(());
    }
    report(LIBRARY, &format!("shared memory by handles of kind {kind}"));
    Err(NOT_SUPPORTED)
}

/// Device of the requested memory.
fn device_of(properties: Option<&Properties>) -> Result<usize, Status> {
    let location = properties.ok_or(INVALID_VALUE)?.location;
    if location.kind != 1 {
        report(LIBRARY, "cuMemCreate for memory of the host");
        return Err(NOT_SUPPORTED);
    }
    Ok(find(location.id)?.0)
}

/// Writes the value of an attribute for `cuPointerGetAttribute`.
fn pointer_attribute(data: Pointer, number: c_int, at: usize) -> Result<(), Status> {
    find(0)?;
    let place = memory::place(at);
    let (device, start, bytes, is_device) = match place {
        Place::Device { kind: Kind::Reserved, .. } | Place::Nowhere | Place::Host => return Err(INVALID_VALUE),
        Place::Device { device, start, bytes, .. } => (device, start, bytes, true),
        Place::Pinned { start, bytes } => (device::current(), start, bytes, false),
    };
    let is_managed = matches!(place, Place::Device { kind: Kind::Managed, .. });
    if data.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the attribute determines what the program's buffer holds: pointers and sizes of 8 bytes, numbers of 4,
    // booleans of 1 (CUDA Driver API).
    unsafe {
        match number {
            1 => *data.cast::<Pointer>() = context(device),
            2 => *data.cast::<c_uint>() = if is_device { 2 } else { 1 },
            3 => *data.cast::<usize>() = at,
            4 if is_device && !is_managed => return Err(INVALID_VALUE),
            4 => *data.cast::<usize>() = at,
            6 | 8 => *data.cast::<c_uint>() = c_uint::from(number == 8 && is_managed),
            7 => *data.cast::<u64>() = start as u64,
            9 => *data.cast::<c_int>() = device as c_int,
            10 | 15 => *data.cast::<c_uint>() = 0,
            11 => *data.cast::<usize>() = start,
            12 => *data.cast::<usize>() = bytes,
            13 => *data.cast::<c_uint>() = 1,
            14 => *data.cast::<u64>() = 0,
            // Read and write.
            16 => *data.cast::<c_uint>() = 3,
            17 => *data.cast::<Pointer>() = null_mut(),
            _ => {
                report(LIBRARY, &format!("cuPointerGetAttribute of attribute {number}"));
                return Err(NOT_SUPPORTED);
            }
        }
    }
    Ok(())
}

driver! {
    fn cuMemAlloc_v2(at: Out<usize>, bytes: usize) {
        find(0)?;
        if bytes == 0 { return Err(INVALID_VALUE); }
        check_unsafe_call()?;
        at.give(memory::allocate(device::current(), bytes)?)
    }
    fn cuMemAllocManaged(at: Out<usize>, bytes: usize, _flags: c_uint) {
        find(0)?;
        if bytes == 0 { return Err(INVALID_VALUE); }
        at.give(memory::allocate_managed(device::current(), bytes)?)
    }
    fn cuMemFree_v2(at: usize) { find(0)?; streams::synchronize_device()?; memory::free(at) }
    fn cuMemAllocAsync(at: Out<usize>, bytes: usize, stream: Handle) {
        let (device, ..) = streams::describe(stream)?;
        if streams::capture_info(stream)?.is_some() { report(LIBRARY, "cuMemAllocAsync while a graph is captured"); return Err(NOT_SUPPORTED); }
        at.give(memory::allocate_pooled(device, bytes)?)
    }
    fn cuMemFreeAsync(at: usize, stream: Handle) { streams::describe(stream)?; memory::free(at) }
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        find(0)?;
        let (left, all) = memory::info(device::current())?;
        free.give(left as usize)?;
        total.give(all as usize)
    }
    fn cuMemGetAddressRange_v2(start: Out<usize>, bytes: Out<usize>, at: usize) {
        match memory::place(at) {
            Place::Device { kind: Kind::Reserved, .. } => Err(NOT_FOUND),
            Place::Device { start: from, bytes: size, .. } | Place::Pinned { start: from, bytes: size } => {
                start.put(from);
                bytes.put(size);
                Ok(())
            }
            Place::Host | Place::Nowhere => Err(NOT_FOUND),
        }
    }
    fn cuPointerGetAttribute(data: Pointer, number: c_int, at: usize) { pointer_attribute(data, number, at) }
    fn cuPointerGetAttributes(count: c_uint, numbers: Items<c_int>, data: Items<Pointer>, at: usize) {
        let count = count as usize;
        numbers.read(count).iter().zip(data.read(count)).for_each(|(number, data)| {
            // Attributes that an address lacks are written as 0 without an error; the smallest such value has 4 bytes.
            if pointer_attribute(*data, *number, at).is_err() && !data.is_null() {
                // SAFETY: the driver API requires that each entry of `data` points to space for its attribute.
                unsafe { *(*data).cast::<u32>() = 0 };
            }
        });
        Ok(())
    }
    fn cuMemHostAlloc(at: Out<Pointer>, bytes: usize, _flags: c_uint) { find(0)?; at.give(memory::allocate_pinned(bytes)? as Pointer) }
    fn cuMemAllocHost_v2(at: Out<Pointer>, bytes: usize) { find(0)?; at.give(memory::allocate_pinned(bytes)? as Pointer) }
    fn cuMemFreeHost(at: Pointer) { find(0)?; memory::free_pinned(at as usize) }
    fn cuMemHostRegister_v2(at: Pointer, bytes: usize, _flags: c_uint) { find(0)?; memory::register(at as usize, bytes) }
    fn cuMemHostUnregister(at: Pointer) { find(0)?; memory::unregister(at as usize) }
    fn cuMemHostGetDevicePointer_v2(for_device: Out<usize>, at: Pointer, _flags: c_uint) {
        match memory::place(at as usize) {
            Place::Pinned { .. } => for_device.give(at as usize),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuIpcGetMemHandle(handle: Out<MemHandle>, at: usize) { find(0)?; handle.give(peers::export(at)?) }
    fn cuIpcOpenMemHandle_v2(at: Out<usize>, handle: MemHandle, _flags: c_uint) { find(0)?; at.give(memory::open(&handle)?) }
    fn cuIpcCloseMemHandle(at: usize) { find(0)?; memory::close(at) }

    fn cuMemcpyHtoD_v2(to: usize, from: usize, bytes: usize) { copy_now(to, from, bytes) }
    fn cuMemcpyDtoH_v2(to: usize, from: usize, bytes: usize) { copy_now(to, from, bytes) }
    fn cuMemcpyDtoD_v2(to: usize, from: usize, bytes: usize) { copy_now(to, from, bytes) }
    fn cuMemcpy(to: usize, from: usize, bytes: usize) { copy_now(to, from, bytes) }
    fn cuMemcpyAsync(to: usize, from: usize, bytes: usize, stream: Handle) { copy(to, from, bytes, stream) }
    fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) { copy(to, from, bytes, stream) }
    fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) { copy(to, from, bytes, stream) }
    fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) { copy(to, from, bytes, stream) }
    fn cuMemsetD8_v2(at: usize, value: u8, count: usize) { check_unsafe_call()?; streams::set(null_mut(), at, &[value], count) }
    fn cuMemsetD32_v2(at: usize, value: u32, count: usize) { check_unsafe_call()?; streams::set(null_mut(), at, &value.to_le_bytes(), count) }
    fn cuMemsetD8Async(at: usize, value: u8, count: usize, stream: Handle) { streams::set(stream, at, &[value], count) }
    fn cuMemsetD16Async(at: usize, value: u16, count: usize, stream: Handle) { streams::set(stream, at, &value.to_le_bytes(), count) }
    fn cuMemsetD32Async(at: usize, value: u32, count: usize, stream: Handle) { streams::set(stream, at, &value.to_le_bytes(), count) }

    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: Option<&Properties>, _option: c_int) {
        device_of(properties)?;
        bytes.give(GRANULE)
    }
    fn cuMemAddressReserve(at: Out<usize>, bytes: usize, align: usize, wanted: usize, _flags: c_ulonglong) {
        find(0)?;
        at.give(memory::address_reserve(device::current(), bytes, align, wanted)?)
    }
    fn cuMemAddressFree(at: usize, bytes: usize) { find(0)?; memory::address_free(at, bytes) }
    fn cuMemCreate(handle: Out<u64>, bytes: usize, properties: Option<&Properties>, _flags: c_ulonglong) {
        let is_shared = properties.is_some_and(|properties| properties.handles & DESCRIPTOR != 0);
        handle.give(memory::physical(device_of(properties)?, bytes, is_shared)?)
    }
    fn cuMemExportToShareableHandle(descriptor: Out<c_int>, handle: u64, kind: c_int, _flags: c_ulonglong) {
        check_kind(kind)?;
        descriptor.give(peers::descriptor(handle)?)
    }
    fn cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: Pointer, kind: c_int) {
        check_kind(kind)?;
        handle.give(memory::import(descriptor as usize as c_int)?)
    }
    fn cuMemRelease(handle: u64) { memory::release(handle) }
    fn cuMemRetainAllocationHandle(handle: Out<u64>, at: usize) {
        let found = memory::mapped_at(at)?;
        memory::retain(found)?;
        handle.give(found)
    }
    fn cuMemMap(at: usize, bytes: usize, offset: usize, handle: u64, _flags: c_ulonglong) { memory::map(at, bytes, offset, handle) }
    fn cuMemUnmap(at: usize, bytes: usize) { memory::unmap(at, bytes) }
    fn cuMemSetAccess(at: usize, bytes: usize, list: Items<Access>, count: usize) {
        for access in list.read(count).iter().filter(|access| access.location.kind == 1) { find(access.location.id)?; }
        memory::set_access(at, bytes)
    }
    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: u64) {
        let location = Location { kind: 1, id: memory::physical_device(handle)? as c_int };
        // Kind 1 (`CU_MEM_ALLOCATION_TYPE_PINNED`): memory that is pinned to its device.
        properties.give(Properties { kind: 1, handles: 0, location, security: null_mut(), flags: [0; 8] })
    }
}
