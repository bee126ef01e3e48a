//! Owns the runtime's functions for devices.

use super::runtime;
use crate::device::{
    self, Architecture, BLOCK, GRID, SHARED_OF_BLOCK, THREADS_OF_BLOCK, attribute, bus_id, find, limits,
};
use crate::errors::*;
use crate::exports::{Items, Out, Put, Text};
use crate::streams::{self, PRIORITIES};
use std::ffi::{c_char, c_int, c_uint};
use uniference_abi::gpus::Device;

/// `cudaDeviceProp` of CUDA 13: known fields at their offsets; other fields are 0.
#[repr(C)]
struct Properties {
    name: [c_char; 256],
    uuid: [u8; 16],
    luid: [c_char; 8],
    luid_mask: c_uint,
    memory: usize,
    shared_of_block: usize,
    registers_of_block: c_int,
    warp: c_int,
    pitch: usize,
    threads_of_block: c_int,
    block: [c_int; 3],
    grid: [c_int; 3],
    constant: usize,
    major: c_int,
    minor: c_int,
    texture_alignment: usize,
    texture_pitch_alignment: usize,
    multiprocessors: c_int,
    integrated: c_int,
    maps_host: c_int,
    textures: [c_int; 25],
    surfaces: [c_int; 14],
    surface_alignment: usize,
    concurrent_kernels: c_int,
    error_correction: c_int,
    pci: [c_int; 3],
    tcc: c_int,
    copy_engines: c_int,
    unified_addressing: c_int,
    bus_width: c_int,
    l2: c_int,
    l2_persisting: c_int,
    threads: c_int,
    priorities: c_int,
    caches_global: c_int,
    caches_local: c_int,
    shared: usize,
    registers: c_int,
    managed: c_int,
    board: [c_int; 2],
    host_atomics: c_int,
    pageable: c_int,
    concurrent_managed: c_int,
    preemption: c_int,
    host_pointers: c_int,
    cooperative: c_int,
    shared_optin: usize,
    page_tables: c_int,
    managed_from_host: c_int,
    blocks: c_int,
    window: c_int,
    shared_reserved: usize,
    pins_host: c_int,
    sparse: c_int,
    pins_read_only: c_int,
    semaphores: c_int,
    pools: c_int,
    rdma: c_int,
    rdma_flush: c_uint,
    rdma_order: c_int,
    pool_handles: c_uint,
    deferred: c_int,
    events_of_processes: c_int,
    clusters: c_int,
    function_pointers: c_int,
    numa: [c_int; 2],
    mps: c_int,
    host_numa: c_int,
    pci_ids: [c_uint; 2],
    multinode: c_int,
    reserved: [c_int; 56],
}

impl Properties {
    fn of(device: &Device) -> Properties {
        let ask = |number| attribute(device, number).expect("these attributes exist");
        let architecture = Architecture::of(device.capability);
        // SAFETY: all fields are numbers and arrays of numbers, for which zeros are valid.
        let mut all: Properties = unsafe { std::mem::zeroed() };
        (all.name, all.uuid, all.memory) = (device.name, device.uuid, device.memory as usize);
        (all.shared_of_block, all.registers_of_block) = (SHARED_OF_BLOCK as usize, ask(12));
        (all.warp, all.pitch, all.threads_of_block) = (ask(10), ask(11) as usize, THREADS_OF_BLOCK as c_int);
        (all.block, all.grid) = (BLOCK.map(|n| n as c_int), GRID.map(|n| n as c_int));
        (all.constant, all.major, all.minor) = (ask(9) as usize, ask(75), ask(76));
        (all.texture_alignment, all.texture_pitch_alignment, all.surface_alignment) =
            (ask(14) as usize, ask(51) as usize, ask(30) as usize);
        (all.multiprocessors, all.maps_host, all.concurrent_kernels) = (ask(16), ask(19), ask(31));
        (all.error_correction, all.pci) = (ask(32), [ask(33), ask(34), ask(50)]);
        (all.copy_engines, all.unified_addressing, all.bus_width, all.l2) = (ask(40), ask(41), ask(37), ask(38));
        (all.threads, all.priorities, all.caches_global, all.caches_local) = (ask(39), ask(78), ask(79), ask(80));
        (all.shared, all.registers, all.managed) = (architecture.shared as usize, ask(82), ask(83));
        (all.concurrent_managed, all.preemption, all.host_pointers, all.cooperative) =
            (ask(89), ask(90), ask(91), ask(95));
        (all.shared_optin, all.blocks, all.shared_reserved) = (ask(97) as usize, ask(106), ask(111) as usize);
        (all.pins_host, all.pools, all.clusters) = (ask(99), ask(115), ask(120));
        (all.numa, all.host_numa) = ([ask(130), ask(131)], ask(134));
        all
    }
}

runtime! {
    fn cudaGetDeviceCount(count: Out<c_int>) {
        count.give(device::count() as c_int)?;
        if device::count() == 0 { Err(NO_DEVICE) } else { Ok(()) }
    }
    fn cudaGetDevice(ordinal: Out<c_int>) { find(0)?; ordinal.give(device::current() as c_int) }
    fn cudaSetDevice(ordinal: c_int) { find(ordinal)?; device::choose(ordinal as usize); device::mark_used(ordinal as usize); Ok(()) }
    fn cudaInitDevice(ordinal: c_int, _device_flags: c_uint, _flags: c_uint) { find(ordinal).map(drop) }
    fn cudaGetDeviceProperties(all: Out<Properties>, ordinal: c_int) { all.give(Properties::of(find(ordinal)?.1)) }
    fn cudaDeviceGetAttribute(value: Out<c_int>, number: c_int, ordinal: c_int) {
        value.give(attribute(find(ordinal)?.1, number).ok_or(INVALID_VALUE)?)
    }
    fn cudaDeviceGetPCIBusId(text: Items<c_char>, length: c_int, ordinal: c_int) {
        text.write_text(&bus_id(find(ordinal)?.1), length as usize)
    }
    fn cudaDeviceGetByPCIBusId(ordinal: Out<c_int>, text: Text) {
        let found = device::at_bus(text.get().ok_or(INVALID_VALUE)?).and_then(device::ordinal).ok_or(INVALID_DEVICE)?;
        ordinal.give(found as c_int)
    }
    fn cudaDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        find(0)?;
        least.put(PRIORITIES.0);
        greatest.put(PRIORITIES.1);
        Ok(())
    }
    fn cudaDeviceCanAccessPeer(can: Out<c_int>, from: c_int, to: c_int) { can.give(c_int::from(device::reaches(from, to)?)) }
    fn cudaDeviceEnablePeerAccess(other: c_int, flags: c_uint) { device::enable_peer(other, flags) }
    fn cudaDeviceDisablePeerAccess(other: c_int) { device::disable_peer(other) }
    fn cudaDeviceGetP2PAttribute(value: Out<c_int>, number: c_int, from: c_int, to: c_int) {
        // 1: performance rank; 2: access; 3: native atomics; 4: arrays. The last two are supported with access.
        let reaches = c_int::from(device::reaches(from, to)?);
        value.give(match number { 1 => 0, 2..=4 => reaches, _ => return Err(INVALID_VALUE) })
    }
    fn cudaDeviceSynchronize() { streams::synchronize_device() }
    fn cudaDeviceGetLimit(value: Out<usize>, limit: c_int) { value.give(limits::get(limit)?) }
    fn cudaDeviceSetLimit(limit: c_int, value: usize) { limits::set(limit, value) }
    fn cudaGetDeviceFlags(flags: Out<c_uint>) { find(0)?; flags.give(0) }
    fn cudaSetDeviceFlags(_flags: c_uint) { find(0).map(drop) }
    fn cudaDriverGetVersion(version: Out<c_int>) { version.give(if device::count() == 0 { 0 } else { device::VERSION }) }
    fn cudaRuntimeGetVersion(version: Out<c_int>) { version.give(device::VERSION) }
    fn cudaProfilerStart() { Ok(()) }
    fn cudaProfilerStop() { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// Offsets of fields for programs that were compiled against CUDA 13.2: `tests/python/test_phantom.py` compares the
    /// fields that torch reads.
    #[test]
    fn properties_lie_where_programs_look_for_them() {
        assert_eq!(offset_of!(Properties, memory), 288);
        assert_eq!(offset_of!(Properties, major), 360);
        assert_eq!(offset_of!(Properties, multiprocessors), 384);
        assert_eq!(offset_of!(Properties, l2), 596);
        assert_eq!(offset_of!(Properties, clusters), 748);
        assert_eq!(size_of::<Properties>(), 1008);
    }
}
