//! Owns the runtime's functions for memory.

use super::runtime;
use crate::device::{self, find};
use crate::errors::*;
use crate::exports::{Items, Out, Put};
use crate::launches::Moved;
use crate::memory::{self, Kind, MemHandle, Place};
use crate::peers;
use crate::streams::{self, Handle, check_unsafe_call};
use crate::unimplemented::report;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

const LIBRARY: &str = "libcudart";

/// `cudaPointerAttributes`.
#[repr(C)]
struct Attributes {
    kind: c_int,
    device: c_int,
    for_device: *mut c_void,
    for_host: *mut c_void,
    reserved: [i64; 8],
}

/// `cudaMemLocation`; type 1 is a device.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `cudaMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Access {
    location: Location,
    flags: c_int,
}

/// `cudaMemPoolProps`.
#[repr(C)]
struct PoolProperties {
    kind: c_int,
    handles: c_int,
    location: Location,
    security: *mut c_void,
    most: usize,
    usage: u16,
    reserved: [u8; 54],
}

type Pointer = *mut c_void;

/// Handles of memory pools: each device has one pool, which all handles of the device refer to.
const POOL: usize = 0x61 << 40;

/// Attributes that programs set on pools, by pool and attribute.
static POOLS: Mutex<BTreeMap<(usize, c_int), u64>> = Mutex::new(BTreeMap::new());

fn pool_device(pool: Handle) -> Result<usize, Status> {
    let ordinal = (pool as usize).checked_sub(POOL).ok_or(INVALID_VALUE)? >> 4;
    if ordinal < device::count() { Ok(ordinal) } else { Err(INVALID_VALUE) }
}

fn pool_of(ordinal: c_int) -> Result<Handle, Status> {
    Ok((POOL | find(ordinal)?.0 << 4) as Handle)
}

fn allocate_on(stream: Handle, bytes: usize) -> Result<Pointer, Status> {
    if streams::capture_info(stream)?.is_some() {
        report(LIBRARY, "cudaMallocAsync while a graph is captured");
        return Err(NOT_SUPPORTED);
    }
    let (device, ..) = streams::describe(stream)?;
    Ok(memory::allocate_pooled(device, bytes)? as Pointer)
}

/// Checks a copy's direction against its `cudaMemcpyKind`; 4, "default", allows any.
fn check_direction(to: Pointer, from: Pointer, kind: c_int) -> Result<(), Status> {
    let is_host = |pointer| matches!(memory::place(pointer as usize), Place::Host | Place::Pinned { .. });
    let is_wrong = match kind {
        0 => !is_host(to) || !is_host(from),
        1 => is_host(to),
        2 => is_host(from),
        3 | 4 => false,
        _ => true,
    };
    if is_wrong { Err(INVALID_VALUE) } else { Ok(()) }
}

/// Copies on the legacy default stream and waits until the copy has ended.
fn copy_now(moved: Moved, kind: c_int) -> Result<(), Status> {
    check_unsafe_call()?;
    check_direction(moved.to as Pointer, moved.from as Pointer, kind)?;
    streams::copy(null_mut(), moved)?;
    streams::synchronize(null_mut())
}

fn plane(
    to: Pointer,
    to_pitch: usize,
    from: Pointer,
    from_pitch: usize,
    bytes: usize,
    rows: usize,
) -> Result<Moved, Status> {
    if bytes > to_pitch || bytes > from_pitch {
        return Err(INVALID_VALUE);
    }
    Ok(Moved { to: to as usize, from: from as usize, bytes, rows, pitches: (to_pitch, from_pitch) })
}

runtime! {
    fn cudaMalloc(pointer: Out<Pointer>, bytes: usize) {
        find(0)?;
        check_unsafe_call()?;
        pointer.give(memory::allocate(device::current(), bytes)? as Pointer)
    }
    fn cudaMallocManaged(pointer: Out<Pointer>, bytes: usize, _flags: c_uint) {
        find(0)?;
        check_unsafe_call()?;
        if bytes == 0 { return Err(INVALID_VALUE); }
        pointer.give(memory::allocate_managed(device::current(), bytes)? as Pointer)
    }
    fn cudaMallocPitch(pointer: Out<Pointer>, pitch: Out<usize>, width: usize, rows: usize) {
        find(0)?;
        let each = width.next_multiple_of(512);
        pitch.give(each)?;
        pointer.give(memory::allocate(device::current(), each * rows)? as Pointer)
    }
    fn cudaFree(pointer: Pointer) {
        find(0)?;
        if pointer.is_null() { return Ok(()); }
        // `cudaFree` waits for the device (CUDA C++ Best Practices Guide, "Memory allocation").
        streams::synchronize_device()?;
        memory::free(pointer as usize)
    }
    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) {
        find(0)?;
        let (left, all) = memory::info(device::current())?;
        free.give(left as usize)?;
        total.give(all as usize)
    }

    fn cudaMallocAsync(pointer: Out<Pointer>, bytes: usize, stream: Handle) { pointer.give(allocate_on(stream, bytes)?) }
    fn cudaMallocFromPoolAsync(pointer: Out<Pointer>, bytes: usize, pool: Handle, stream: Handle) {
        pool_device(pool)?;
        pointer.give(allocate_on(stream, bytes)?)
    }
    fn cudaFreeAsync(pointer: Pointer, stream: Handle) {
        if streams::capture_info(stream)?.is_some() {
            report(LIBRARY, "cudaFreeAsync while a graph is captured");
            return Err(NOT_SUPPORTED);
        }
        memory::free(pointer as usize)
    }
    fn cudaDeviceGetDefaultMemPool(pool: Out<Handle>, ordinal: c_int) { pool.give(pool_of(ordinal)?) }
    fn cudaDeviceGetMemPool(pool: Out<Handle>, ordinal: c_int) { pool.give(pool_of(ordinal)?) }
    fn cudaDeviceSetMemPool(ordinal: c_int, pool: Handle) {
        if pool_of(ordinal)? == pool { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cudaMemPoolCreate(pool: Out<Handle>, properties: Option<&PoolProperties>) {
        let location = properties.ok_or(INVALID_VALUE)?.location;
        if location.kind != 1 { report(LIBRARY, "cudaMemPoolCreate for memory of the host"); return Err(NOT_SUPPORTED); }
        pool.give(pool_of(location.id)?)
    }
    fn cudaMemPoolDestroy(pool: Handle) { pool_device(pool).map(drop) }
    fn cudaMemPoolTrimTo(pool: Handle, _keep: usize) { pool_device(pool).map(drop) }
    fn cudaMemPoolSetAccess(pool: Handle, list: Items<Access>, count: usize) {
        pool_device(pool)?;
        list.read(count).iter().try_for_each(|access| if access.location.kind == 1 { find(access.location.id).map(drop) } else { Ok(()) })
    }
    fn cudaMemPoolSetAttribute(pool: Handle, attribute: c_int, value: Pointer) {
        let device = pool_device(pool)?;
        // 1 to 3 are numbers of 4 bytes, the others of 8; 6 and 8, the high-water marks, can only be reset.
        let value = match attribute {
            // SAFETY: the CUDA Runtime API defines the type of each attribute's value, which the program passes.
            1..=3 => u64::from(unsafe { *value.cast::<u32>() }),
            // SAFETY: the CUDA Runtime API defines the type of each attribute's value, which the program passes.
            4 | 6 | 8 => unsafe { *value.cast::<u64>() },
            _ => return Err(INVALID_VALUE),
        };
        if matches!(attribute, 6 | 8) {
            return if value == 0 { memory::pooled(device, true).map(drop) } else { Err(INVALID_VALUE) };
        }
        POOLS.lock().unwrap_or_else(PoisonError::into_inner).insert((device, attribute), value);
        Ok(())
    }
    fn cudaMemPoolGetAttribute(pool: Handle, attribute: c_int, value: Pointer) {
        let device = pool_device(pool)?;
        let level = memory::pooled(device, false)?;
        let set = POOLS.lock().unwrap_or_else(PoisonError::into_inner).get(&(device, attribute)).copied();
        if value.is_null() { return Err(INVALID_VALUE); }
        // Freed memory is returned at once, so the reserved bytes equal the used bytes.
        // SAFETY: the CUDA Runtime API defines the type of each attribute's value: 1 to 3 are numbers of 4 bytes, on by
        // default; the others of 8 bytes.
        unsafe {
            match attribute {
                1..=3 => *value.cast::<u32>() = set.unwrap_or(1) as u32,
                4 => *value.cast::<u64>() = set.unwrap_or(0),
                5 | 7 => *value.cast::<u64>() = level.now,
                6 | 8 => *value.cast::<u64>() = level.most,
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }
    fn cudaDeviceGetGraphMemAttribute(ordinal: c_int, attribute: c_int, value: Out<u64>) {
        find(ordinal)?;
        // Used and reserved bytes, current and highest: graphs do not allocate memory in simulation.
        if (0..=3).contains(&attribute) { value.give(0) } else { Err(INVALID_VALUE) }
    }
    fn cudaDeviceSetGraphMemAttribute(ordinal: c_int, attribute: c_int, _value: *const u64) {
        find(ordinal)?;
        if attribute == 1 || attribute == 3 { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cudaDeviceGraphMemTrim(ordinal: c_int) { find(ordinal).map(drop) }

    fn cudaHostAlloc(pointer: Out<Pointer>, bytes: usize, _flags: c_uint) {
        find(0)?;
        pointer.give(memory::allocate_pinned(bytes)? as Pointer)
    }
    fn cudaMallocHost(pointer: Out<Pointer>, bytes: usize) { find(0)?; pointer.give(memory::allocate_pinned(bytes)? as Pointer) }
    fn cudaFreeHost(pointer: Pointer) { find(0)?; memory::free_pinned(pointer as usize) }
    fn cudaHostRegister(pointer: Pointer, bytes: usize, _flags: c_uint) { find(0)?; memory::register(pointer as usize, bytes) }
    fn cudaHostUnregister(pointer: Pointer) { find(0)?; memory::unregister(pointer as usize) }
    fn cudaHostGetDevicePointer(for_device: Out<Pointer>, pointer: Pointer, flags: c_uint) {
        match memory::place(pointer as usize) {
            Place::Pinned { .. } if flags == 0 => for_device.give(pointer),
            _ => Err(INVALID_VALUE),
        }
    }
    fn cudaHostGetFlags(flags: Out<c_uint>, pointer: Pointer) {
        match memory::place(pointer as usize) {
            // 2 (`cudaHostAllocMapped`): the devices can address the memory.
            Place::Pinned { .. } => flags.give(2),
            _ => Err(INVALID_VALUE),
        }
    }
    fn cudaPointerGetAttributes(attributes: Out<Attributes>, pointer: Pointer) {
        find(0)?;
        let current = device::current() as c_int;
        let (kind, device, for_device, for_host) = match memory::place(pointer as usize) {
            Place::Device { device, kind: Kind::Managed, .. } => (3, device as c_int, pointer, pointer),
            Place::Device { kind: Kind::Reserved, .. } | Place::Nowhere => return Err(INVALID_VALUE),
            Place::Device { device, .. } => (2, device as c_int, pointer, null_mut()),
            Place::Pinned { .. } => (1, current, pointer, pointer),
            // `cudaInvalidDeviceId` is -2.
            Place::Host => (0, -2, null_mut(), pointer),
        };
        attributes.give(Attributes { kind, device, for_device, for_host, reserved: [0; 8] })
    }

    fn cudaMemcpy(to: Pointer, from: Pointer, bytes: usize, kind: c_int) {
        find(0)?;
        copy_now(Moved::line(to as usize, from as usize, bytes), kind)
    }
    fn cudaMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, kind: c_int, stream: Handle) {
        check_direction(to, from, kind)?;
        streams::copy(stream, Moved::line(to as usize, from as usize, bytes))
    }
    fn cudaMemcpyPeer(to: Pointer, to_device: c_int, from: Pointer, from_device: c_int, bytes: usize) {
        find(to_device)?;
        find(from_device)?;
        copy_now(Moved::line(to as usize, from as usize, bytes), 4)
    }
    fn cudaMemcpyPeerAsync(to: Pointer, to_device: c_int, from: Pointer, from_device: c_int, bytes: usize, stream: Handle) {
        find(to_device)?;
        find(from_device)?;
        streams::copy(stream, Moved::line(to as usize, from as usize, bytes))
    }
    fn cudaMemcpy2D(to: Pointer, to_pitch: usize, from: Pointer, from_pitch: usize, bytes: usize, rows: usize, kind: c_int) {
        find(0)?;
        copy_now(plane(to, to_pitch, from, from_pitch, bytes, rows)?, kind)
    }
    fn cudaMemcpy2DAsync(to: Pointer, to_pitch: usize, from: Pointer, from_pitch: usize, bytes: usize, rows: usize, kind: c_int, stream: Handle) {
        check_direction(to, from, kind)?;
        streams::copy(stream, plane(to, to_pitch, from, from_pitch, bytes, rows)?)
    }
    fn cudaMemset(at: Pointer, value: c_int, bytes: usize) {
        find(0)?;
        check_unsafe_call()?;
        streams::set(null_mut(), at as usize, &[value as u8], bytes)
    }
    fn cudaMemsetAsync(at: Pointer, value: c_int, bytes: usize, stream: Handle) {
        streams::set(stream, at as usize, &[value as u8], bytes)
    }

    fn cudaIpcGetMemHandle(handle: Out<MemHandle>, pointer: Pointer) {
        find(0)?;
        handle.give(peers::export(pointer as usize)?)
    }
    fn cudaIpcOpenMemHandle(pointer: Out<Pointer>, handle: MemHandle, _flags: c_uint) {
        find(0)?;
        pointer.give(memory::open(&handle)? as Pointer)
    }
    fn cudaIpcCloseMemHandle(pointer: Pointer) { find(0)?; memory::close(pointer as usize) }
}
