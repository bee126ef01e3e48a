//! Owns the allocation of blocks in a rank's part of the shared arena.
//!
//! The module does not know the contents of blocks.

use std::collections::BTreeMap;

/// Alignment of blocks in bytes: a cache line, and torch's alignment of tensors.
const ALIGNMENT: u64 = 64;

/// The allocator of a range's blocks: first fit from the lowest address, which reuses touched memory.
pub struct Rooms {
    /// Free ranges: start to length. Never empty, never adjacent.
    free: BTreeMap<u64, u64>,
    /// Allocated ranges: start to length.
    taken: BTreeMap<u64, u64>,
    /// Bytes before this offset may have been touched.
    touched: u64,
    /// The end of the range.
    end: u64,
    retain: u64,
}

impl Rooms {
    /// An allocator for `size` bytes from `start` on; up to `retain` unused bytes need not be returned to the operating
    /// system.
    pub fn new(start: u64, size: u64, retain: u64) -> Rooms {
        Rooms {
            free: BTreeMap::from([(start, size)]),
            taken: BTreeMap::new(),
            touched: start,
            end: start + size,
            retain,
        }
    }

    /// Allocates a block of `bytes` bytes; returns its offset, or `None` if there is no space.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
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

    /// Frees the block at `offset`; returns a range (offset, bytes) whose pages are to be returned to the operating
    /// system.
    ///
    /// # Panics
    /// If no block was allocated at `offset`.
    pub fn free(&mut self, offset: u64) -> Option<(u64, u64)> {
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

    /// The touched bytes from `start` on, if no block is allocated there and they are more than `retain`.
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
    use super::*;
    use proptest::prelude::*;

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
        // 65536 bytes are touched and 4096 may stay: 61440 bytes are returned.
        assert_eq!(rooms.free(big), Some((4096, 61_440)));
        let small = rooms.allocate(64).unwrap();
        assert_eq!(rooms.free(small), None);
    }

    proptest! {
        /// Blocks are aligned, inside the range and disjoint; once all are free, one free range is left.
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
