//! Owns a priority queue of small integer ids whose keys can change. The queue does not know the meaning of ids and
//! keys.

/// Ids with keys, the smallest key first; among equal keys the smallest id. Each operation needs time logarithmic in
/// the number of ids, and much less if a key changes little.
pub(super) struct IndexedHeap<K> {
    /// A binary heap.
    entries: Vec<(K, u32)>,
    /// Index of each id in `entries`, or [`ABSENT`].
    places: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl<K: Ord + Copy> IndexedHeap<K> {
    pub(super) fn new() -> IndexedHeap<K> {
        IndexedHeap { entries: Vec::new(), places: Vec::new() }
    }

    /// The id with the smallest key, and this key.
    pub(super) fn first(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.places.get(id as usize).is_some_and(|place| *place != ABSENT)
    }

    /// Sets the key of `id`, and adds `id` if it is absent.
    pub(super) fn set(&mut self, id: u32, key: K) {
        if id as usize >= self.places.len() {
            self.places.resize(id as usize + 1, ABSENT);
        }
        match self.places[id as usize] {
            ABSENT => {
                self.entries.push((key, id));
                self.rise(self.entries.len() - 1);
            }
            place => {
                let place = place as usize;
                let earlier = key < std::mem::replace(&mut self.entries[place].0, key);
                if earlier { self.rise(place) } else { self.sink(place) }
            }
        }
    }

    /// Removes `id`, if it is present.
    pub(super) fn remove(&mut self, id: u32) {
        if !self.contains(id) {
            return;
        }
        let place = std::mem::replace(&mut self.places[id as usize], ABSENT) as usize;
        let last = self.entries.pop().expect("an id that is contained");
        if place < self.entries.len() {
            let earlier = last < self.entries[place];
            self.entries[place] = last;
            if earlier { self.rise(place) } else { self.sink(place) }
        }
    }

    fn rise(&mut self, mut place: usize) {
        let entry = self.entries[place];
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.entries[parent] <= entry {
                break;
            }
            self.put(place, self.entries[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize) {
        let entry = self.entries[place];
        let len = self.entries.len();
        loop {
            let left = 2 * place + 1;
            if left >= len {
                break;
            }
            let right = left + 1;
            let child = if right < len && self.entries[right] < self.entries[left] { right } else { left };
            if entry <= self.entries[child] {
                break;
            }
            self.put(place, self.entries[child]);
            place = child;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (K, u32)) {
        self.entries[place] = entry;
        self.places[entry.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Equal to a sorted map searched from its smallest (key, id).
        #[test]
        fn behaves_as_a_sorted_map(steps in prop::collection::vec((0..20u32, prop::option::of(0..10u64)), 1..200)) {
            let (mut heap, mut model) = (IndexedHeap::new(), BTreeMap::new());
            for (id, key) in steps {
                match key {
                    Some(key) => {
                        heap.set(id, key);
                        model.insert(id, key);
                    }
                    None => {
                        heap.remove(id);
                        model.remove(&id);
                    }
                }
                prop_assert_eq!(heap.first(), model.iter().map(|(id, key)| (*key, *id)).min());
                prop_assert_eq!(heap.contains(id), model.contains_key(&id));
            }
            while let Some((key, id)) = heap.first() {
                heap.remove(id);
                prop_assert_eq!(model.iter().map(|(id, key)| (*key, *id)).min(), Some((key, id)));
                model.remove(&id);
            }
            prop_assert!(model.is_empty());
        }
    }
}
