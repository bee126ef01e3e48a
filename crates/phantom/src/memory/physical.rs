//! Owns the driver's virtual memory management: reserved addresses, physical memory, and its mappings. PyTorch's
//! allocator builds expandable segments from them, and symmetric memory that other processes map, too.

use super::shared::{Part, map_shared};
use super::{Block, GRANULE, Kind, MOVES, Memory, lock, provide, withdraw};
use crate::errors::{INVALID_VALUE, Status};
use crate::unimplemented::report;
use std::ffi::c_int;
use std::sync::PoisonError;

/// Physical memory, which has no address.
#[derive(Debug)]
pub(super) struct Physical {
    device: usize,
    bytes: usize,
    /// Number of handles and mappings that keep the memory.
    uses: usize,
    was_mapped: bool,
    /// Whether the memory may be exported to other processes.
    is_shareable: bool,
    /// The memory's shared file, once the memory was exported.
    part: Option<Part>,
}

/// Creates physical memory of a device: `cuMemCreate`. Shareable memory stays private until it is exported: PyTorch's
/// allocator creates all expandable segments as shareable and exports none.
pub(crate) fn physical(device: usize, bytes: usize, is_shareable: bool) -> Result<u64, Status> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
        return Err(INVALID_VALUE);
    }
    let mut memory = lock();
    let memory = memory.devices()?;
    memory.devices[device].charge(bytes)?;
    Ok(memory.add(Physical { device, bytes, uses: 1, was_mapped: false, is_shareable, part: None }))
}

/// Exports memory as a descriptor: `cuMemExportToShareableHandle`. `rank` owns the GPU of the memory.
pub(crate) fn descriptor(handle: u64, rank: u32) -> Result<c_int, Status> {
    let _nobody_moves = MOVES.write().unwrap_or_else(PoisonError::into_inner);
    let mut memory = lock();
    let memory = memory.devices()?;
    let at = memory.mapped.iter().find(|(_, mapped)| **mapped == handle).map(|(at, _)| *at);
    let physical = memory.physical.get_mut(&handle).filter(|physical| physical.is_shareable).ok_or(INVALID_VALUE)?;
    let part = match physical.part.take() {
        Some(part) => part,
        None => Part::new(rank, physical.device, physical.bytes, at)?,
    };
    physical.part.insert(part).descriptor()
}

/// Imports memory of another process or of this one: `cuMemImportFromShareableHandle`.
pub(crate) fn import(descriptor: c_int) -> Result<u64, Status> {
    let part = Part::of(descriptor)?;
    let (device, bytes) = (part.device(), part.bytes());
    let mut memory = lock();
    let part = Some(part);
    Ok(memory.devices()?.add(Physical { device, bytes, uses: 1, was_mapped: false, is_shareable: true, part }))
}

/// Device of the memory.
pub(crate) fn physical_device(handle: u64) -> Result<usize, Status> {
    let mut memory = lock();
    memory.devices()?.physical.get(&handle).map(|physical| physical.device).ok_or(INVALID_VALUE)
}

/// Handle of the memory that is mapped at an address.
pub(crate) fn mapped_at(at: usize) -> Result<u64, Status> {
    let mut memory = lock();
    let memory = memory.devices()?;
    let (start, handle) = memory.mapped.range(..=at).next_back().ok_or(INVALID_VALUE)?;
    memory.physical.get(handle).filter(|physical| at < start + physical.bytes).map(|_| *handle).ok_or(INVALID_VALUE)
}

/// Adds a reference to the handle.
pub(crate) fn retain(handle: u64) -> Result<(), Status> {
    let mut memory = lock();
    memory.devices()?.physical.get_mut(&handle).ok_or(INVALID_VALUE)?.uses += 1;
    Ok(())
}

/// Drops a reference; the memory is freed with its last reference and last mapping.
pub(crate) fn release(handle: u64) -> Result<(), Status> {
    let mut memory = lock();
    memory.devices()?.release(handle)
}

/// Reserves addresses: from `at` on, if they are free.
pub(crate) fn address_reserve(device: usize, bytes: usize, align: usize, at: usize) -> Result<usize, Status> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULE) || !(align == 0 || align.is_power_of_two()) {
        return Err(INVALID_VALUE);
    }
    let mut memory = lock();
    let memory = memory.devices()?;
    let pool = &mut memory.devices[device];
    let align = align.max(GRANULE);
    let wanted = at != 0 && at.is_multiple_of(align) && pool.is_mapped && pool.ranges.take_at(at, bytes);
    let at = if wanted { at } else { pool.reserve(bytes, align)? };
    memory.blocks.insert(at, Block { device, bytes, kind: Kind::Reserved, is_pooled: false });
    Ok(at)
}

/// Frees a whole reservation, which must have no mappings.
pub(crate) fn address_free(at: usize, bytes: usize) -> Result<(), Status> {
    let mut memory = lock();
    let memory = memory.devices()?;
    let device = memory.blocks.get(&at).ok_or(INVALID_VALUE)?.device;
    memory.holds(at, bytes, Kind::Reserved)?;
    memory.replace(at, bytes, None);
    memory.devices[device].ranges.put(at, bytes);
    Ok(())
}

/// Maps memory into reserved addresses.
pub(crate) fn map(at: usize, bytes: usize, offset: usize, handle: u64) -> Result<(), Status> {
    let mut memory = lock();
    let memory = memory.devices()?;
    let physical = memory.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
    if offset != 0 || bytes != physical.bytes || physical.was_mapped && physical.part.is_none() {
        report("libcuda", "cuMemMap of memory that was mapped already, or of a part of it,");
        return Err(crate::errors::NOT_SUPPORTED);
    }
    memory.holds(at, bytes, Kind::Reserved)?;
    let physical = memory.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
    match &physical.part {
        Some(part) => map_shared(at, bytes, part.file())?,
        None => provide(at, bytes)?,
    }
    (physical.was_mapped, physical.uses) = (true, physical.uses + 1);
    let device = physical.device;
    memory.replace(at, bytes, Some(Block { device, bytes, kind: Kind::Mapped, is_pooled: false }));
    memory.mapped.insert(at, handle);
    Ok(())
}

/// Unmaps one mapping or several adjacent ones.
pub(crate) fn unmap(at: usize, bytes: usize) -> Result<(), Status> {
    let mut memory = lock();
    let memory = memory.devices()?;
    memory.holds(at, bytes, Kind::Mapped)?;
    let device = memory.blocks[&at].device;
    let handles: Vec<u64> = memory.mapped.range(at..at + bytes).map(|(_, handle)| *handle).collect();
    memory.mapped.retain(|mapping, _| !(at..at + bytes).contains(mapping));
    handles.into_iter().try_for_each(|handle| memory.release(handle))?;
    withdraw(at, bytes);
    memory.replace(at, bytes, Some(Block { device, bytes, kind: Kind::Reserved, is_pooled: false }));
    Ok(())
}

/// Checks that a range is mapped. Access rights are not modelled: every device may access it.
pub(crate) fn set_access(at: usize, bytes: usize) -> Result<(), Status> {
    let mut memory = lock();
    memory.devices()?.holds(at, bytes, Kind::Mapped)
}

impl Memory {
    fn add(&mut self, physical: Physical) -> u64 {
        self.last_physical += 1;
        self.physical.insert(self.last_physical, physical);
        self.last_physical
    }

    /// Shareable memory that is mapped at an address, and the address where it starts.
    pub(super) fn part_at(&self, at: usize) -> Option<(usize, &Part)> {
        let (start, handle) = self.mapped.range(..=at).next_back()?;
        let part = self.physical.get(handle)?.part.as_ref()?;
        (at < start + part.bytes()).then_some((*start, part))
    }

    fn release(&mut self, handle: u64) -> Result<(), Status> {
        let physical = self.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
        physical.uses -= 1;
        if physical.uses == 0 {
            // Imported memory is not charged: the process that created it is charged.
            if physical.part.as_ref().is_none_or(Part::is_own) {
                self.devices[physical.device].used.now -= physical.bytes as u64;
            }
            self.physical.remove(&handle);
        }
        Ok(())
    }

    /// # Errors
    /// If the range is not covered by blocks of this kind.
    fn holds(&self, at: usize, bytes: usize, kind: Kind) -> Result<(), Status> {
        let mut next = at;
        while next < at + bytes {
            let (start, block) = self.blocks.range(..=next).next_back().ok_or(INVALID_VALUE)?;
            if block.kind != kind || start + block.bytes <= next {
                return Err(INVALID_VALUE);
            }
            next = start + block.bytes;
        }
        Ok(())
    }

    /// Replaces a range by `new`, or by nothing; parts of old blocks outside of the range stay.
    fn replace(&mut self, at: usize, bytes: usize, new: Option<Block>) {
        let first = self.blocks.range(..=at).next_back().map_or(at, |(start, _)| *start);
        let old: Vec<(usize, Block)> = self.blocks.range(first..at + bytes).map(|(a, b)| (*a, *b)).collect();
        for (start, block) in old.into_iter().filter(|(start, block)| start + block.bytes > at) {
            self.blocks.remove(&start);
            let end = start + block.bytes;
            if start < at {
                self.blocks.insert(start, Block { bytes: at - start, ..block });
            }
            if end > at + bytes {
                self.blocks.insert(at + bytes, Block { bytes: end - at - bytes, ..block });
            }
        }
        if let Some(block) = new {
            self.blocks.insert(at, block);
        }
    }
}
