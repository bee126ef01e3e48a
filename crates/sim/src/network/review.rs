//! Owns the set of links to review, lowest first, independent of the purpose of the review.

/// Ids with keys. Each operation needs constant time. Ids come out in the order of their keys' [`bucket`]s, the last
/// one added first.
pub(super) struct Review {
    /// Key of each id in the set.
    keys: Vec<u64>,
    /// Neighbours of each id in its bucket, or [`NONE`]. An id outside the set is its own predecessor.
    neighbours: Vec<(u32, u32)>,
    /// First id of each bucket, or [`NONE`].
    heads: Vec<u32>,
    /// Bits of the buckets that have ids, and bits of the nonzero words among these.
    occupied: [u64; BUCKETS / 64],
    words: [u64; BUCKETS / 64 / 64],
}

const NONE: u32 = u32::MAX;

/// Keys of one bucket have their highest bit in common and as many after it: they differ by less than 1/256.
const BITS: u32 = 8;
const BUCKETS: usize = 64 << BITS;

fn bucket(key: u64) -> usize {
    let highest = (key | 1).ilog2();
    let rest = ((key << (63 - highest)) << 1) >> (64 - BITS);
    (highest as usize) << BITS | rest as usize
}

impl Review {
    pub(super) fn new() -> Review {
        Review {
            keys: Vec::new(),
            neighbours: Vec::new(),
            heads: vec![NONE; BUCKETS],
            occupied: [0; BUCKETS / 64],
            words: [0; BUCKETS / 64 / 64],
        }
    }

    /// Adds an id: the number of existing ones.
    pub(super) fn add(&mut self) {
        self.neighbours.push((self.keys.len() as u32, NONE));
        self.keys.push(0);
    }

    /// Adds `id`, or lowers its key if it has a larger one.
    pub(super) fn lower(&mut self, id: u32, key: u64) {
        if self.neighbours[id as usize].0 != id {
            if self.keys[id as usize] <= key {
                return;
            }
            self.take_out(id);
        }
        self.keys[id as usize] = key;
        let bucket = bucket(key);
        let next = std::mem::replace(&mut self.heads[bucket], id);
        self.neighbours[id as usize] = (NONE, next);
        if next != NONE {
            self.neighbours[next as usize].0 = id;
        }
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
        self.words[bucket / 64 / 64] |= 1 << (bucket / 64 % 64);
    }

    /// Removes an id of the lowest bucket, and returns it with its key.
    pub(super) fn pop(&mut self) -> Option<(u64, u32)> {
        let block = self.words.iter().position(|words| *words != 0)?;
        let word = block * 64 + self.words[block].trailing_zeros() as usize;
        let id = self.heads[word * 64 + self.occupied[word].trailing_zeros() as usize];
        self.take_out(id);
        Some((self.keys[id as usize], id))
    }

    fn take_out(&mut self, id: u32) {
        let (before, next) = std::mem::replace(&mut self.neighbours[id as usize], (id, NONE));
        if next != NONE {
            self.neighbours[next as usize].0 = before;
        }
        if before != NONE {
            self.neighbours[before as usize].1 = next;
            return;
        }
        let bucket = bucket(self.keys[id as usize]);
        self.heads[bucket] = next;
        if next == NONE {
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
            if self.occupied[bucket / 64] == 0 {
                self.words[bucket / 64 / 64] &= !(1 << (bucket / 64 % 64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn buckets_are_in_the_order_of_keys_and_narrow() {
        assert_eq!((bucket(0), bucket(1), bucket(u64::MAX)), (0, 0, BUCKETS - 1));
        for key in (0..62).flat_map(|bit| [1_u64 << bit, (1 << bit) + (1 << bit) / 3, (2 << bit) - 1]) {
            assert!(bucket(key) <= bucket(key + 1), "{key}");
            assert!(bucket(key) < bucket(key + key / 256 + 1), "{key}");
        }
    }

    proptest! {
        /// Each removed id is in the lowest bucket of a map's ids, and has the lowest key that it was given.
        #[test]
        fn behaves_as_a_map(steps in prop::collection::vec((0..20u32, prop::option::of((0..64u32, any::<u64>()))), 1..200)) {
            let (mut review, mut model) = (Review::new(), BTreeMap::<u32, u64>::new());
            (0..20).for_each(|_| review.add());
            let pops = std::iter::repeat_n((0, None), 21);
            for (id, key) in steps.into_iter().chain(pops) {
                if let Some((shift, key)) = key {
                    let key = key >> shift;
                    review.lower(id, key);
                    let known = model.entry(id).or_insert(key);
                    *known = key.min(*known);
                    continue;
                }
                let Some((key, id)) = review.pop() else {
                    prop_assert!(model.is_empty());
                    continue;
                };
                prop_assert_eq!(model.values().map(|key| bucket(*key)).min(), Some(bucket(key)));
                prop_assert_eq!(model.remove(&id), Some(key));
            }
            prop_assert!(model.is_empty());
        }
    }
}
