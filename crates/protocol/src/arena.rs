//! Owns the arena, the shared memory for tensors of ranks on this machine: one sparse anonymous file for the whole run.
//!
//! The arena does not know its contents. The file has no name: nothing is left behind however a run ends, and no
//! `/dev/shm` limit applies. Only touched pages use memory.

use crate::memory::{Region, Tensors, Window};
use crate::messages::{Fetched, Offset};
use memmap2::MmapOptions;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Largest address space of the whole arena: an eighth of an x86-64 process's address space; the rest is the program's.
const LARGEST: u64 = 16 << 40;

/// Largest address space of one rank's part.
const LARGEST_PART: u64 = 256 << 30;

/// Memory that all ranks together may keep touched but unused, for quick reuse.
const RETAIN: u64 = 1 << 30;

/// Division of the arena among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of address space for each rank.
    pub part: u64,
    /// Bytes of address space for all ranks together.
    pub total: u64,
    /// Bytes a rank may keep touched but unused.
    pub retain: u64,
}

impl Layout {
    /// Equal parts for `world_size` ranks, in whole pages of 2 MiB.
    pub fn for_world(world_size: u32) -> Layout {
        let ranks = u64::from(world_size.max(1));
        let part = LARGEST_PART.min(LARGEST / ranks) & !((2 << 20) - 1);
        Layout { part, total: part * ranks, retain: (RETAIN / ranks).max(1 << 20) }
    }
}

/// Creates the arena's file.
pub fn create(layout: Layout) -> io::Result<OwnedFd> {
    let file = memfd_create("uniference-arena", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, layout.total)?;
    Ok(file)
}

/// Maps all of `file`, the arena's file.
pub fn map(file: &OwnedFd, total: u64) -> io::Result<Window> {
    let total = usize::try_from(total).map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
    Ok(Window::new(MmapOptions::new().len(total).map_raw(file)?))
}

/// The arena on the driver's machine, mapped as a whole.
#[derive(Debug)]
pub struct SharedArena {
    file: OwnedFd,
    window: Window,
}

impl SharedArena {
    /// Maps `total` bytes of `file`.
    ///
    /// # Errors
    /// If the address space or the memory is not available.
    pub fn map(file: OwnedFd, total: u64) -> io::Result<SharedArena> {
        let window = map(&file, total)?;
        Ok(SharedArena { file, window })
    }
}

impl Tensors for SharedArena {
    fn write(&self, at: Offset, inputs: &[Region]) -> io::Result<()> {
        self.window.write(at, inputs);
        Ok(())
    }

    fn read(&self, fetched: &Fetched, outputs: &[Region]) -> io::Result<()> {
        self.window.read(&fetched.pieces, outputs, fetched.kernel());
        Ok(())
    }

    fn fold(&self, fetched: &Fetched) -> io::Result<()> {
        self.window.fold(&fetched.folds, fetched.kernel().expect("whoever folds has looked whether it can"));
        Ok(())
    }

    fn forget(&self, at: Offset, bytes: u64) {
        // An error is ignored: if the file system cannot punch holes, the memory is freed later.
        let _ = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, bytes);
    }

    fn mapped(&self) -> Option<(*mut u8, usize)> {
        Some(self.window.raw())
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::OutputPart;

    #[test]
    fn parts_of_the_arena_are_whole_pages_and_fit() {
        for ranks in [1, 2, 3, 1000, 4096, 100_000] {
            let layout = Layout::for_world(ranks);
            assert!(layout.total <= LARGEST && layout.part.is_multiple_of(2 << 20) && layout.part > 0, "{layout:?}");
            assert_eq!(layout.total, layout.part * u64::from(ranks));
        }
    }

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let layout = Layout { part: 1 << 20, total: 2 << 20, retain: 0 };
        let file = create(layout).unwrap();
        let other = SharedArena::map(file.try_clone().unwrap(), layout.total).unwrap();
        let one = SharedArena::map(file, layout.total).unwrap();
        let (mut sent, mut seen) = ([42_u8; 100], [0_u8; 100]);
        one.write(64, &[region(&mut sent)]).unwrap();
        let pieces = vec![OutputPart { offset: 64, bytes: 100, other: None }];
        other.read(&Fetched { pieces, ..Fetched::default() }, &[region(&mut seen)]).unwrap();
        assert_eq!(seen, sent);
    }

    fn region(data: &mut [u8]) -> Region {
        // SAFETY: the tests keep the data as long as the region, and do not access it meanwhile.
        #[allow(unsafe_code)]
        unsafe {
            Region::new(data.as_mut_ptr() as usize, data.len())
        }
    }
}
