//! Owns what the lengths of a call's sequences are: where arguments say them, which keys a query sees, and sequences of several lengths together.

/// Where a call says how long its sequences are, and what their queries see.
pub(super) struct Lengths {
    pub(super) queries: Queries,
    /// The argument with the sequences' borders in the keys.
    pub(super) key_borders: Option<usize>,
    /// The argument that says how many keys each has.
    pub(super) used_keys: Option<usize>,
    pub(super) sight: Sight,
}

/// How many queries sequences have.
pub(super) enum Queries {
    /// The argument with their borders.
    Borders(usize),
    /// All equally many.
    Each(u64),
}

/// Which keys a query sees, counted from the one that it stands at: the last query stands at the last key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    /// At most so many before it.
    pub(super) before: Option<u64>,
    /// At most so many behind it; none, if attention is causal.
    pub(super) behind: Option<u64>,
}

impl Sight {
    /// By whether a call is causal, and the sides of its window, of which negative ones have no end.
    pub(super) fn of(causal: bool, before: Option<i64>, behind: Option<i64>) -> Sight {
        let side = |size: Option<i64>| size.and_then(|size| u64::try_from(size).ok());
        Sight { before: side(before), behind: if causal { Some(0) } else { side(behind) } }
    }

    pub(super) fn is_causal(self) -> bool {
        self.behind == Some(0)
    }

    /// Pairs of a query and a key that it sees.
    pub(super) fn visible(self, queries: u64, keys: u64) -> u64 {
        // Queries that stand before the first key see none.
        let queries = if self.behind.is_some() { queries.min(keys) } else { queries };
        // The last query has no key behind it, the one before it one, and so on, of which it does not see those beyond its window.
        let behind = self.behind.map_or(0, |behind| triangle(queries.saturating_sub(1).saturating_sub(behind)));
        // The first key is the more places before a query the later that is.
        let before = self.before.map_or(0, |before| {
            let last = keys.saturating_sub(1).saturating_sub(before);
            triangle(last).saturating_sub(triangle(last.saturating_sub(queries)))
        });
        queries.saturating_mul(keys).saturating_sub(behind).saturating_sub(before)
    }

    /// How many keys any of the queries sees: the last ones.
    fn seen(self, queries: u64, keys: u64) -> u64 {
        self.before.map_or(keys, |before| keys.min(queries.saturating_add(before)))
    }
}

/// The sum of all numbers up to this one.
fn triangle(number: u64) -> u64 {
    number.saturating_mul(number.saturating_add(1)) / 2
}

/// Sequences of a call of attention that are computed alike: all numbers are sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequences {
    /// How many there are.
    pub count: u64,
    /// Their queries.
    pub queries: u64,
    /// Their keys, as far as queries see them.
    pub keys: u64,
    /// Pairs of a query and a key that it sees.
    pub visible: u64,
    /// Their queries, and their keys, each times the pairs of its sequence.
    pub weighted: (u64, u64),
}

impl Sequences {
    /// So many of one length.
    pub(super) fn equal(count: u64, queries: u64, keys: u64, sight: Sight) -> Sequences {
        let mut one = Sequences::default();
        one.add(queries, keys, sight);
        let all = |number: u64| number.saturating_mul(count);
        let weighted = (all(one.weighted.0), all(one.weighted.1));
        Sequences { count, queries: all(one.queries), keys: all(one.keys), visible: all(one.visible), weighted }
    }

    pub(super) fn add(&mut self, queries: u64, keys: u64, sight: Sight) {
        let (keys, visible) = (sight.seen(queries, keys), sight.visible(queries, keys));
        self.count += 1;
        self.queries = self.queries.saturating_add(queries);
        self.keys = self.keys.saturating_add(keys);
        self.visible = self.visible.saturating_add(visible);
        self.weighted.0 = self.weighted.0.saturating_add(queries.saturating_mul(visible));
        self.weighted.1 = self.weighted.1.saturating_add(keys.saturating_mul(visible));
    }

    /// Sequences of one length that are as much work: how many, their queries and their keys. Where all have one query that is the mean, as they differ
    /// in what they read; else the longer ones count more, as long ones are computed with other efficiency than short ones.
    pub(super) fn alike(&self, sight: Sight) -> (u64, u64, u64) {
        if self.queries <= self.count || self.visible == 0 {
            return (self.count, self.queries.div_ceil(self.count), self.keys.div_ceil(self.count));
        }
        let rounded = |sum: u64, by: u64| (sum.saturating_add(by / 2) / by).max(1);
        let (queries, keys) = (rounded(self.weighted.0, self.visible), rounded(self.weighted.1, self.visible));
        (rounded(self.visible, sight.visible(queries, keys).max(1)), queries, keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the pairs counted one by one.
    #[test]
    fn a_query_sees_what_its_window_says() {
        let sides = [None, Some(0), Some(1), Some(3), Some(20)];
        for (queries, keys) in [(1, 1), (1, 9), (4, 9), (9, 9), (7, 4)] {
            for (before, behind) in sides.iter().flat_map(|before| sides.map(|behind| (*before, behind))) {
                let sees = |query: i64, key: i64| {
                    let ahead = key - (query + keys - queries);
                    before.is_none_or(|before| -ahead <= before) && behind.is_none_or(|behind| ahead <= behind)
                };
                let seen = |query: i64| (0..keys).filter(|key| sees(query, *key)).count() as u64;
                let expected: u64 = (0..queries).map(seen).sum();
                let sight = Sight::of(false, before, behind);
                // With more queries than keys, some stand before the first: what these see is said for causal attention.
                if queries <= keys || (behind == Some(0) && before.is_none()) {
                    assert_eq!(sight.visible(queries as u64, keys as u64), expected, "{queries} {keys} {sight:?}");
                }
            }
        }
        assert_eq!(Sight::of(true, Some(-1), Some(5)).visible(3, 5), 3 + 4 + 5);
        assert_eq!(Sight::of(true, Some(2), None).seen(3, 50), 5);
    }

    /// One prompt of 100 tokens beside 9 of 10, which are a tenth of its work; 3 that generate, with 10 keys in the mean.
    #[test]
    fn prompts_are_as_long_as_those_that_are_most_of_the_work() {
        let causal = Sight::of(true, None, None);
        let mut group = Sequences::default();
        group.add(100, 100, causal);
        (0..9).for_each(|_| group.add(10, 10, causal));
        assert_eq!((group.count, group.visible), (10, 5050 + 9 * 55));
        assert_eq!(group.alike(causal), (1, 92, 92));
        let equal = Sequences::equal(7, 33, 50, causal);
        assert_eq!(equal.alike(causal), (7, 33, 50));
        let mut generating = Sequences::default();
        [5, 5, 20].into_iter().for_each(|keys| generating.add(1, keys, causal));
        assert_eq!(generating.alike(causal), (3, 1, 10));
    }
}
