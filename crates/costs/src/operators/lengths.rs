//! Owns sequence lengths of attention calls: arguments that give them, keys that a query sees, and groups of sequences.

/// Arguments with the sequence lengths of a call, and its mask.
pub(super) struct Lengths {
    pub(super) queries: Queries,
    /// The cumulative lengths of the keys.
    pub(super) key_borders: Option<usize>,
    /// The number of keys of each sequence.
    pub(super) used_keys: Option<usize>,
    /// Whether the numbers of keys exclude the queries' own keys, which are added.
    pub(super) before_queries: bool,
    /// Whether sequences without keys still cost a kernel.
    pub(super) may_be_empty: bool,
    pub(super) mask: Mask,
    /// The split of the keys; a later kernel reduces the results of the splits.
    pub(super) splits: KvSplits,
}

/// How the keys of a sequence are split (split-KV, flash decoding).
#[derive(Clone, Copy, Debug)]
pub(super) struct KvSplits {
    /// The largest number of splits.
    pub(super) most: MaxSplits,
    /// Every split except the last has a multiple of this many keys.
    pub(super) multiple: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum MaxSplits {
    Number(u64),
    /// The argument with the number for each sequence.
    Argument(usize),
}

impl KvSplits {
    /// The keys are not split.
    pub(super) const ONE: KvSplits = KvSplits { most: MaxSplits::Number(1), multiple: 1 };

    /// Number of splits of `keys` keys.
    pub(super) fn of(keys: u64, most: u64, multiple: u64) -> u64 {
        // Lengths and multiples are clamped to 2^48, so that the next multiple fits into 64 bits.
        let (keys, multiple) = (keys.min(1 << 48), multiple.clamp(1, 1 << 48));
        let each = keys.div_ceil(most.max(1)).next_multiple_of(multiple);
        keys.div_ceil(each.max(1))
    }
}

/// Source of the number of queries of each sequence.
pub(super) enum Queries {
    /// The argument with their cumulative lengths.
    Borders(usize),
    /// Each of `sequences` sequences has `queries` queries.
    Each { queries: u64, sequences: u64 },
}

/// Keys that a query sees, relative to the key it is aligned with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    /// Number of visible keys before the aligned one; `None`: all of them.
    pub(super) before: Option<u64>,
    /// Number of visible keys after the aligned one, 0 if attention is causal; `None`: all of them.
    pub(super) behind: Option<u64>,
    /// Whether the last query is aligned with the last key; otherwise the first query is aligned with the first key.
    pub(super) from_the_last: bool,
}

impl Mask {
    /// The mask of a call with this window; negative sizes are no bound.
    pub(super) fn of(causal: bool, before: Option<i64>, behind: Option<i64>, from_the_last: bool) -> Mask {
        let side = |size: Option<i64>| size.and_then(|size| u64::try_from(size).ok());
        Mask { before: side(before), behind: if causal { Some(0) } else { side(behind) }, from_the_last }
    }

    pub(super) fn is_causal(self) -> bool {
        self.behind == Some(0)
    }

    /// Number of visible pairs of a query and a key.
    pub(super) fn visible(self, queries: u64, keys: u64) -> u64 {
        let (first, queries, keys) = (self.first(queries, keys), place(queries), place(keys));
        // The number of keys before a position, summed over the `queries` positions from `from` on.
        let before = |from: i128| before_all(from + queries, keys) - before_all(from, keys);
        let up_to = self.behind.map_or(queries * keys, |behind| before(first + place(behind) + 1));
        let hidden = self.before.map_or(0, |further| before(first - place(further)));
        u64::try_from(up_to - hidden).unwrap_or(u64::MAX)
    }

    /// Number of keys that at least one query sees.
    fn seen(self, queries: u64, keys: u64) -> u64 {
        let (first, queries, keys) = (self.first(queries, keys), place(queries), place(keys));
        let end = self.behind.map_or(keys, |behind| (first + queries + place(behind)).clamp(0, keys));
        let begin = self.before.map_or(0, |before| (first - place(before)).clamp(0, end));
        u64::try_from(end - begin).unwrap_or_default()
    }

    /// The position of the first query among the keys; negative if it is before all of them.
    fn first(self, queries: u64, keys: u64) -> i128 {
        if self.from_the_last { place(keys) - place(queries) } else { 0 }
    }
}

/// A number as a signed position. Sequence lengths are clamped to 2^48, so that products fit.
fn place(number: u64) -> i128 {
    i128::from(number.min(1 << 48))
}

/// The number of keys, of `keys` in all, before a position, summed over the positions below `end`.
fn before_all(end: i128, keys: i128) -> i128 {
    let among = end.clamp(0, keys);
    among * (among - 1) / 2 + (end - keys).max(0) * keys
}

/// Sequences of an attention call that are costed together. Every field is a sum over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequences {
    /// Number of sequences.
    pub count: u64,
    /// Number of queries.
    pub queries: u64,
    /// Number of keys that at least one query sees.
    pub keys: u64,
    /// Number of visible pairs of a query and a key.
    pub visible: u64,
    /// Sums over the sequences of queries times visible pairs, and of keys times visible pairs.
    pub weighted: (u128, u128),
    /// Sum over the sequences of queries times splits of the keys.
    pub splits: u64,
}

impl Sequences {
    /// `count` sequences of one length.
    pub(super) fn equal(count: u64, queries: u64, keys: u64, mask: Mask, splits: u64) -> Sequences {
        let mut one = Sequences::default();
        one.add(queries, keys, mask, splits);
        let all = |number: u64| number.saturating_mul(count);
        let weighted = (one.weighted.0.saturating_mul(count.into()), one.weighted.1.saturating_mul(count.into()));
        let [queries, keys, visible, splits] = [one.queries, one.keys, one.visible, one.splits].map(all);
        Sequences { count, queries, keys, visible, weighted, splits }
    }

    pub(super) fn add(&mut self, queries: u64, keys: u64, mask: Mask, splits: u64) {
        let (keys, visible) = (mask.seen(queries, keys), mask.visible(queries, keys));
        self.count += 1;
        self.queries = self.queries.saturating_add(queries);
        self.keys = self.keys.saturating_add(keys);
        self.visible = self.visible.saturating_add(visible);
        let weighted = |number: u64| u128::from(number) * u128::from(visible);
        self.weighted.0 = self.weighted.0.saturating_add(weighted(queries));
        self.weighted.1 = self.weighted.1.saturating_add(weighted(keys));
        self.splits = self.splits.saturating_add(queries.saturating_mul(splits));
    }

    /// Equal sequences with as much work: their number, queries and keys. If all sequences have one query, the lengths
    /// are means, as the cost is the memory traffic; else longer sequences weigh more, as their efficiency differs from
    /// that of short ones.
    pub(super) fn alike(&self, mask: Mask) -> (u64, u64, u64) {
        if self.queries <= self.count || self.visible == 0 {
            let count = self.count.max(1);
            return (self.count, self.queries.div_ceil(count), self.keys.div_ceil(count));
        }
        let rounded = |sum: u128, by: u64| {
            let by = u128::from(by.max(1));
            u64::try_from(sum.saturating_add(by / 2) / by).unwrap_or(u64::MAX).max(1)
        };
        let (queries, keys) = (rounded(self.weighted.0, self.visible), rounded(self.weighted.1, self.visible));
        (rounded(self.visible.into(), mask.visible(queries, keys)), queries, keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Comparison with pairs and keys that are counted one by one.
    #[test]
    fn a_query_sees_what_its_window_says() {
        let sides = [None, Some(0), Some(1), Some(3), Some(20)];
        let windows = sides.iter().flat_map(|before| sides.map(|behind| (*before, behind)));
        for ((before, behind), from_the_last) in windows.flat_map(|window| [(window, false), (window, true)]) {
            let mask = Mask::of(false, before, behind, from_the_last);
            for (queries, keys) in (1..8).flat_map(|queries| (0..8).map(move |keys| (queries, keys))) {
                let first = if from_the_last { keys - queries } else { 0 };
                let sees = |query: i64, key: i64| {
                    let ahead = key - query - first;
                    before.is_none_or(|before| -ahead <= before) && behind.is_none_or(|behind| ahead <= behind)
                };
                let pairs = (0..queries).map(|query| (0..keys).filter(|key| sees(query, *key)).count()).sum::<usize>();
                let seen = (0..keys).filter(|key| (0..queries).any(|query| sees(query, *key))).count();
                let found = [mask.visible(queries as u64, keys as u64), mask.seen(queries as u64, keys as u64)];
                assert_eq!(found, [pairs as u64, seen as u64], "{queries} {keys} {mask:?}");
            }
        }
        assert_eq!(Mask::of(true, Some(-1), Some(5), true).visible(3, 5), 3 + 4 + 5);
        assert_eq!(Mask::of(true, Some(0), None, true).visible(u64::MAX, u64::MAX), 1 << 48);
    }

    /// One prompt of 100 tokens and 9 of 10, which are a tenth of its work; 3 sequences in decode, with 10 keys on
    /// average; one sequence whose number of pairs exceeds 64 bits.
    #[test]
    fn prompts_are_as_long_as_those_that_are_most_of_the_work() {
        let causal = Mask::of(true, None, None, true);
        let mut group = Sequences::default();
        group.add(100, 100, causal, 1);
        (0..9).for_each(|_| group.add(10, 10, causal, 1));
        assert_eq!((group.count, group.visible), (10, 5050 + 9 * 55));
        assert_eq!(group.alike(causal), (1, 92, 92));
        let equal = Sequences::equal(7, 33, 50, causal, 1);
        assert_eq!(equal.alike(causal), (7, 33, 50));
        assert_eq!(Sequences::equal(8, 4 << 20, 4 << 20, causal, 1).alike(causal), (8, 4 << 20, 4 << 20));
        let mut generating = Sequences::default();
        [5, 5, 20].into_iter().for_each(|keys| generating.add(1, keys, causal, 1));
        assert_eq!(generating.alike(causal), (3, 1, 10));
    }
}
