//! Owns the driver's management of virtual memory: addresses that are reserved, memory that is created apart from them, and what of it is
//! mapped where. Expandable segments of PyTorch's allocator are made of it, and its symmetric memory, which other processes map as well.

use super::shared::{Part, map_shared};
use super::{Block, GRANULE, Kind, MOVES, Memory, lock, provide, withdraw};
use crate::errors::{INVALID_VALUE, Status};
use crate::unimplemented::report;
use std::ffi::c_int;
use std::sync::PoisonError;

/// Memory without an address.
#[derive(Debug)]
pub(super) struct Physical {
    device: usize,
    bytes: usize,
    /// Handles and mappings that keep it.
    uses: usize,
    was_mapped: bool,
    /// Other processes may be told of it.
    is_shareable: bool,
    /// Once they were.
    part: Option<Part>,
}

/// Creates memory of a device: `cuMemCreate`. What `is_shareable` is private until it is handed out: PyTorch's allocator has all of its expandable
/// segments made so, and hands none out.
pub(crate) fn physical(device: usize, bytes: usize, is_shareable: bool) -> Result<u64, Status> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
        return Err(INVALID_VALUE);
    }
    let mut memory = lock();
    let memory = memory.devices()?;
    memory.devices[device].charge(bytes)?;
    Ok(memory.add(Physical { device, bytes, uses: 1, was_mapped: false, is_shareable, part: None }))
}

/// A descriptor of memory that other processes may map: `cuMemExportToShareableHandle`. `rank` is the one on whose GPU it is.
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

/// Memory that another process has created, or this one: `cuMemImportFromShareableHandle`.
pub(crate) fn import(descriptor: c_int) -> Result<u64, Status> {
    let part = Part::of(descriptor)?;
    let (device, bytes) = (part.device(), part.bytes());
    let mut memory = lock();
    let part = Some(part);
    Ok(memory.devices()?.add(Physical { device, bytes, uses: 1, was_mapped: false, is_shareable: true, part }))
}

/// The device whose memory it is.
pub(crate) fn physical_device(handle: u64) -> Result<usize, Status> {
    let mut memory = lock();
    memory.devices()?.physical.get(&handle).map(|physical| physical.device).ok_or(INVALID_VALUE)
}

/// The handle of what is mapped at an address.
pub(crate) fn mapped_at(at: usize) -> Result<u64, Status> {
    let mut memory = lock();
    let memory = memory.devices()?;
    let (start, handle) = memory.mapped.range(..=at).next_back().ok_or(INVALID_VALUE)?;
    memory.physical.get(handle).filter(|physical| at < start + physical.bytes).map(|_| *handle).ok_or(INVALID_VALUE)
}

/// One more handle of it.
pub(crate) fn retain(handle: u64) -> Result<(), Status> {
    let mut memory = lock();
    memory.devices()?.physical.get_mut(&handle).ok_or(INVALID_VALUE)?.uses += 1;
    Ok(())
}

/// One less; the last one, and the last mapping, free the memory.
pub(crate) fn release(handle: u64) -> Result<(), Status> {
    let mut memory = lock();
    memory.devices()?.release(handle)
}

/// Reserves addresses: at `at`, if that is free.
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

/// Gives reserved addresses back, all at once and with nothing mapped.
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

/// The reverse, for one mapping or several in a row.
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

/// Who may use mapped memory: everybody may here, but there must be some.
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

    /// What is mapped at an address, if other processes may map it too: where it begins.
    pub(super) fn part_at(&self, at: usize) -> Option<(usize, &Part)> {
        let (start, handle) = self.mapped.range(..=at).next_back()?;
        let part = self.physical.get(handle)?.part.as_ref()?;
        (at < start + part.bytes()).then_some((*start, part))
    }

    fn release(&mut self, handle: u64) -> Result<(), Status> {
        let physical = self.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
        physical.uses -= 1;
        if physical.uses == 0 {
            // What another process has created is in its books.
            if physical.part.as_ref().is_none_or(Part::is_own) {
                self.devices[physical.device].used.now -= physical.bytes as u64;
            }
            self.physical.remove(&handle);
        }
        Ok(())
    }

    /// # Errors
    /// If blocks of this kind do not fill the range.
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

    /// Puts a block into a range, or nothing; of the blocks there, what is outside of the range stays.
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
