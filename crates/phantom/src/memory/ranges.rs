//! Owns the free addresses of a window. It touches no memory.

use std::collections::BTreeMap;

/// Free address ranges in order, none adjacent to another.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Length by start.
    free: BTreeMap<usize, usize>,
}

impl Ranges {
    /// A window whose addresses are all free.
    pub(super) fn new(start: usize, bytes: usize) -> Ranges {
        Ranges { free: BTreeMap::from([(start, bytes)]) }
    }

    /// Reserves the first range that is long enough, at a multiple of `align`.
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let (start, length, at) = self.free.iter().find_map(|(start, length)| {
            let at = start.next_multiple_of(align);
            (at + bytes <= start + length).then_some((*start, *length, at))
        })?;
        self.carve(start, length, at, bytes);
        Some(at)
    }

    /// Reserves these addresses; false if they are not free.
    pub(super) fn take_at(&mut self, at: usize, bytes: usize) -> bool {
        match self.free.range(..=at).next_back() {
            Some((start, length)) if at + bytes <= start + length => {
                let (start, length) = (*start, *length);
                self.carve(start, length, at, bytes);
                true
            }
            _ => false,
        }
    }

    fn carve(&mut self, start: usize, length: usize, at: usize, bytes: usize) {
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + bytes < start + length {
            self.free.insert(at + bytes, start + length - at - bytes);
        }
    }

    /// Frees a reserved range.
    pub(super) fn put(&mut self, at: usize, bytes: usize) {
        let (mut start, mut end) = (at, at + bytes);
        if let Some((before, length)) = self.free.range(..at).next_back().map(|(b, l)| (*b, *l))
            && before + length == at
        {
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }

    /// Whether the free addresses are exactly this range.
    pub(super) fn is_all(&self, start: usize, bytes: usize) -> bool {
        self.free.len() == 1 && self.free.get(&start) == Some(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_is_taken_again_from_the_front() {
        let mut ranges = Ranges::new(0x1000, 0x1000);
        let [a, b, c] = [0x400, 0x400, 0x400].map(|bytes| ranges.take(bytes, 0x100).unwrap());
        assert_eq!([a, b, c], [0x1000, 0x1400, 0x1800]);
        ranges.put(a, 0x400);
        assert_eq!(ranges.take(0x800, 0x100), None, "0x400 at the front, 0x400 at the end");
        ranges.put(b, 0x400);
        assert_eq!(ranges.take(0x800, 0x100), Some(0x1000));
        ranges.put(0x1000, 0x800);
        ranges.put(c, 0x400);
        assert!(ranges.is_all(0x1000, 0x1000));
    }

    #[test]
    fn addresses_are_aligned_and_can_be_chosen() {
        let mut ranges = Ranges::new(0x1100, 0x1000);
        assert_eq!(ranges.take(0x100, 0x400), Some(0x1400));
        assert!(ranges.take_at(0x1100, 0x300) && !ranges.take_at(0x13ff, 2));
        ranges.put(0x1100, 0x300);
        ranges.put(0x1400, 0x100);
        assert!(ranges.is_all(0x1100, 0x1000));
    }
}
