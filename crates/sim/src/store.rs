//! Owns the key-value store that all ranks share (torch's `Store`). The store costs no network time, but a rank's wait
//! for another rank lasts time.

use crate::program::{StoreOp, StoreValue};
use std::collections::{BTreeMap, VecDeque};

/// Keys and values, and queues of values.
#[derive(Debug, Default)]
pub(crate) struct Store {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
}

impl Store {
    /// Carries out an operation; `None`: it must wait until the store has changed.
    pub(crate) fn apply(&mut self, operation: &StoreOp) -> Option<StoreValue> {
        Some(match operation {
            StoreOp::Set { key, value } => {
                self.values.insert(key.clone(), value.clone());
                StoreValue::Done
            }
            StoreOp::Get { key } => StoreValue::Bytes(self.values.get(key)?.clone()),
            StoreOp::Add { key, amount } => self.add(key, *amount),
            StoreOp::Append { key, value } => {
                self.values.entry(key.clone()).or_default().extend_from_slice(value);
                StoreValue::Done
            }
            StoreOp::CompareSet { key, expected, desired } => {
                StoreValue::Bytes(self.compare_set(key, expected, desired))
            }
            StoreOp::Wait { keys } => {
                if !self.has_all(keys) {
                    return None;
                }
                StoreValue::Done
            }
            StoreOp::Check { keys } => StoreValue::Flag(self.has_all(keys)),
            StoreOp::Delete { key } => {
                StoreValue::Flag(self.values.remove(key).is_some() | self.queues.remove(key).is_some())
            }
            StoreOp::Count { prefix } => StoreValue::Number(self.starting_with(prefix).count() as i64),
            StoreOp::List { prefix } => StoreValue::Keys(self.starting_with(prefix).cloned().collect()),
            StoreOp::QueuePush { key, value } => {
                self.queues.entry(key.clone()).or_default().push_back(value.clone());
                StoreValue::Done
            }
            StoreOp::QueuePop { key, block } => match self.queues.get_mut(key).and_then(VecDeque::pop_front) {
                Some(value) => StoreValue::Bytes(value),
                None if *block => return None,
                None => StoreValue::Absent,
            },
            StoreOp::QueueLength { key } => StoreValue::Number(self.queues.get(key).map_or(0, VecDeque::len) as i64),
        })
    }

    fn add(&mut self, key: &[u8], amount: i64) -> StoreValue {
        let held = self.values.get(key).map_or(Some(0), |value| std::str::from_utf8(value).ok()?.parse().ok());
        match held.and_then(|held: i64| held.checked_add(amount)) {
            Some(sum) => {
                self.values.insert(key.to_vec(), sum.to_string().into_bytes());
                StoreValue::Number(sum)
            }
            None => StoreValue::NotANumber,
        }
    }

    /// Sets a key like torch's `HashStore`: an absent key is set if no value was expected, and otherwise the expected
    /// value is returned.
    fn compare_set(&mut self, key: &[u8], expected: &[u8], desired: &[u8]) -> Vec<u8> {
        let matches = match self.values.get(key) {
            Some(held) => held == expected,
            None => expected.is_empty(),
        };
        if matches {
            self.values.insert(key.to_vec(), desired.to_vec());
        }
        self.values.get(key).map_or_else(|| expected.to_vec(), Clone::clone)
    }

    fn has_all(&self, keys: &[Vec<u8>]) -> bool {
        keys.iter()
            .all(|key| self.values.contains_key(key) || self.queues.get(key).is_some_and(|queue| !queue.is_empty()))
    }

    fn starting_with<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = &'a Vec<u8>> {
        self.values.range(prefix.to_vec()..).map(|(key, _)| key).take_while(move |key| key.starts_with(prefix))
    }
}

/// Keys of an operation as text, for reports.
pub(crate) fn keys(operation: &StoreOp) -> Vec<String> {
    let text = |key: &Vec<u8>| String::from_utf8_lossy(key).into_owned();
    match operation {
        StoreOp::Set { key, .. }
        | StoreOp::Get { key }
        | StoreOp::Add { key, .. }
        | StoreOp::Append { key, .. }
        | StoreOp::CompareSet { key, .. }
        | StoreOp::Delete { key }
        | StoreOp::QueuePush { key, .. }
        | StoreOp::QueuePop { key, .. }
        | StoreOp::QueueLength { key }
        | StoreOp::Count { prefix: key }
        | StoreOp::List { prefix: key } => vec![text(key)],
        StoreOp::Wait { keys } | StoreOp::Check { keys } => keys.iter().map(text).collect(),
    }
}

/// Whether an operation only reads. Such an operation costs as much as a poll; a rank that waits or writes cannot spin.
pub(crate) fn looks(operation: &StoreOp) -> bool {
    matches!(
        operation,
        StoreOp::Check { .. }
            | StoreOp::Count { .. }
            | StoreOp::List { .. }
            | StoreOp::QueueLength { .. }
            | StoreOp::QueuePop { block: false, .. }
    )
}

/// Whether an operation changes the store, so that it can end the wait of another operation.
pub(crate) fn changes(operation: &StoreOp) -> bool {
    match operation {
        StoreOp::Set { .. }
        | StoreOp::Add { .. }
        | StoreOp::Append { .. }
        | StoreOp::CompareSet { .. }
        | StoreOp::QueuePush { .. } => true,
        StoreOp::Get { .. }
        | StoreOp::Wait { .. }
        | StoreOp::Check { .. }
        | StoreOp::Delete { .. }
        | StoreOp::Count { .. }
        | StoreOp::List { .. }
        | StoreOp::QueuePop { .. }
        | StoreOp::QueueLength { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Vec<u8> {
        name.as_bytes().to_vec()
    }

    #[test]
    fn a_get_waits_until_the_key_is_set() {
        let mut store = Store::default();
        let get = StoreOp::Get { key: key("a") };
        assert_eq!(store.apply(&get), None);
        store.apply(&StoreOp::Set { key: key("a"), value: key("1") });
        assert_eq!(store.apply(&get), Some(StoreValue::Bytes(key("1"))));
    }

    #[test]
    fn add_counts_in_decimal_text_as_torch_does() {
        let mut store = Store::default();
        assert_eq!(store.apply(&StoreOp::Add { key: key("n"), amount: 3 }), Some(StoreValue::Number(3)));
        assert_eq!(store.apply(&StoreOp::Add { key: key("n"), amount: -5 }), Some(StoreValue::Number(-2)));
        assert_eq!(store.apply(&StoreOp::Get { key: key("n") }), Some(StoreValue::Bytes(key("-2"))));
        store.apply(&StoreOp::Set { key: key("n"), value: key("x") });
        assert_eq!(store.apply(&StoreOp::Add { key: key("n"), amount: 1 }), Some(StoreValue::NotANumber));
    }

    #[test]
    fn compare_set_changes_only_what_was_expected() {
        let mut store = Store::default();
        let set = |expected: &str, desired: &str| StoreOp::CompareSet {
            key: key("k"),
            expected: key(expected),
            desired: key(desired),
        };
        assert_eq!(store.apply(&set("old", "new")), Some(StoreValue::Bytes(key("old"))));
        assert_eq!(store.apply(&set("", "first")), Some(StoreValue::Bytes(key("first"))));
        assert_eq!(store.apply(&set("other", "new")), Some(StoreValue::Bytes(key("first"))));
        assert_eq!(store.apply(&set("first", "new")), Some(StoreValue::Bytes(key("new"))));
    }

    #[test]
    fn queues_are_first_in_first_out() {
        let mut store = Store::default();
        let pop = |block| StoreOp::QueuePop { key: key("q"), block };
        assert_eq!(store.apply(&pop(true)), None);
        assert_eq!(store.apply(&pop(false)), Some(StoreValue::Absent));
        for value in ["1", "2"] {
            store.apply(&StoreOp::QueuePush { key: key("q"), value: key(value) });
        }
        assert_eq!(store.apply(&pop(true)), Some(StoreValue::Bytes(key("1"))));
        assert_eq!(store.apply(&StoreOp::QueueLength { key: key("q") }), Some(StoreValue::Number(1)));
    }

    #[test]
    fn keys_are_listed_by_prefix_in_order() {
        let mut store = Store::default();
        for name in ["b/2", "a/1", "b/1", "c"] {
            store.apply(&StoreOp::Set { key: key(name), value: vec![] });
        }
        assert_eq!(
            store.apply(&StoreOp::List { prefix: key("b/") }),
            Some(StoreValue::Keys(vec![key("b/1"), key("b/2")]))
        );
        assert_eq!(store.apply(&StoreOp::Count { prefix: vec![] }), Some(StoreValue::Number(4)));
    }
}
