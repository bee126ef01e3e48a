//! Owns the shared memory that tensors pass through: one sparse anonymous file for the whole run, and the rooms in a rank's part of it.
//!
//! It does not know what lies in a room. The file has no name, so nothing is left behind however a run ends, and no
//! `/dev/shm` limit applies; only touched pages take memory.

use super::memory::Window;
use memmap2::MmapOptions;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Rooms begin at multiples of this: a cache line, and what torch aligns tensors to.
pub const ALIGNMENT: u64 = 64;

/// Address space of the whole arena, at most: an eighth of what x86-64 gives a process, the rest is the program's.
const LARGEST: u64 = 16 << 40;

/// Address space of one rank's part, at most.
const LARGEST_PART: u64 = 256 << 30;

/// Memory that all ranks together may keep touched but unused, for quick reuse.
const RETAIN: u64 = 1 << 30;

/// How the arena is dealt to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of address space for each rank.
    pub part: u64,
    /// Of the whole.
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

/// The file itself.
pub fn create(layout: Layout) -> io::Result<OwnedFd> {
    let file = memfd_create("uniference-arena", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, layout.total)?;
    Ok(file)
}

/// Maps all of `file`, which is the arena.
pub fn map(file: &OwnedFd, total: u64) -> io::Result<Window> {
    let total = usize::try_from(total).map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
    Ok(Window::new(MmapOptions::new().len(total).map_raw(file)?))
}

/// The arena as one rank sees it: all of it mapped, its own part to allocate from.
pub struct Arena {
    file: OwnedFd,
    window: Window,
    rooms: Rooms,
}

impl Arena {
    /// Maps `total` bytes of `file`; rooms come from the `size` bytes at `start`.
    pub fn map(file: OwnedFd, total: u64, (start, size): (u64, u64), retain: u64) -> io::Result<Arena> {
        let window = map(&file, total)?;
        Ok(Arena { file, window, rooms: Rooms::new(start, size, retain) })
    }

    /// The memory itself.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Reserves a room of `bytes`; `None` if the rank's part of the arena is full.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        self.rooms.allocate(bytes)
    }

    /// Gives the room at `offset` back.
    pub fn free(&mut self, offset: u64) {
        if let Some((start, len)) = self.rooms.free(offset) {
            // A file system that cannot punch holes only keeps the memory longer.
            let _ = fallocate(self.file.as_fd(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, len);
        }
    }
}

/// Which bytes of a range are taken: first fit from the lowest address, so that memory once touched is used again.
struct Rooms {
    /// Free ranges: start to length. Never empty, never adjacent.
    free: BTreeMap<u64, u64>,
    /// Taken ranges: start to length.
    taken: BTreeMap<u64, u64>,
    /// Bytes before this offset may have been touched.
    touched: u64,
    /// The end of the range.
    end: u64,
    retain: u64,
}

impl Rooms {
    fn new(start: u64, size: u64, retain: u64) -> Rooms {
        Rooms {
            free: BTreeMap::from([(start, size)]),
            taken: BTreeMap::new(),
            touched: start,
            end: start + size,
            retain,
        }
    }

    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let len = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let (start, room) = self.free.iter().find(|(_, room)| **room >= len).map(|(start, room)| (*start, *room))?;
        self.free.remove(&start);
        if room > len {
            self.free.insert(start + len, room - len);
        }
        self.taken.insert(start, len);
        self.touched = self.touched.max(start + len);
        Some(start)
    }

    /// Frees the room at `offset`; returns ranges whose pages are to be given back to the host.
    fn free(&mut self, offset: u64) -> Option<(u64, u64)> {
        let len = self.taken.remove(&offset).unwrap_or_else(|| panic!("no room was taken at arena offset {offset}"));
        let (mut start, mut end) = (offset, offset + len);
        if let Some((before, room)) = self.free.range(..start).next_back().map(|(s, l)| (*s, *l))
            && before + room == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(room) = self.free.remove(&end) {
            end += room;
        }
        self.free.insert(start, end - start);
        self.trim(start, end)
    }

    /// The touched tail, when nothing taken lies behind `start` and too much of it would stay.
    fn trim(&mut self, start: u64, end: u64) -> Option<(u64, u64)> {
        let idle = self.touched.saturating_sub(start);
        if end != self.end || idle <= self.retain {
            return None;
        }
        let keep = start + self.retain;
        let hole = (keep, self.touched - keep);
        self.touched = keep;
        Some(hole)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Region;
    use super::super::protocol::Piece;
    use super::*;
    use proptest::prelude::*;

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
        let twin = file.try_clone().unwrap();
        let mut one = Arena::map(file, layout.total, (0, layout.part), 0).unwrap();
        let other = map(&twin, layout.total).unwrap();
        let offset = one.allocate(100).unwrap();
        let (mut sent, mut seen) = ([42_u8; 100], [0_u8; 100]);
        one.window().write(offset, &[region(&mut sent)]);
        other.read(&[Piece { offset, bytes: 100, other: None }], &[region(&mut seen)], None);
        assert_eq!(seen, sent);
    }

    fn region(data: &mut [u8]) -> Region {
        // SAFETY: the data outlives the region.
        #[allow(unsafe_code)]
        unsafe {
            Region::new(data.as_mut_ptr() as usize, data.len())
        }
    }

    #[test]
    fn a_full_part_refuses() {
        let mut rooms = Rooms::new(128, 256, 0);
        assert_eq!(rooms.allocate(200), Some(128));
        assert_eq!(rooms.allocate(1), None);
        assert_eq!(rooms.allocate(u64::MAX), None);
    }

    #[test]
    fn the_idle_tail_is_given_back_beyond_what_may_stay() {
        let mut rooms = Rooms::new(0, 1 << 20, 4096);
        let big = rooms.allocate(64 * 1024).unwrap();
        // 65536 touched, 4096 may stay: 61440 bytes go.
        assert_eq!(rooms.free(big), Some((4096, 61_440)));
        let small = rooms.allocate(64).unwrap();
        assert_eq!(rooms.free(small), None);
    }

    proptest! {
        /// Rooms are aligned, inside the range and disjoint; when all are free again, one free range is left.
        #[test]
        fn rooms_never_overlap(steps in prop::collection::vec((any::<bool>(), 0u64..5000), 1..200)) {
            let mut rooms = Rooms::new(64, 1 << 20, 1 << 16);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (free, size) in steps {
                if free && !taken.is_empty() {
                    let (offset, _) = taken.swap_remove(size as usize % taken.len());
                    rooms.free(offset);
                } else if let Some(offset) = rooms.allocate(size) {
                    prop_assert!(offset.is_multiple_of(ALIGNMENT) && offset >= 64 && offset + size <= 64 + (1 << 20));
                    prop_assert!(taken.iter().all(|(o, s)| offset + size <= *o || o + s <= offset));
                    taken.push((offset, size));
                }
            }
            for (offset, _) in taken {
                rooms.free(offset);
            }
            prop_assert_eq!(rooms.free, BTreeMap::from([(64, 1 << 20)]));
        }
    }
}
