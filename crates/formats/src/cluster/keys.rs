//! Owns the look-up of a dotted key in the values of a cluster file.

use toml::Spanned;
use toml::de::{DeArray, DeValue};

/// The value of a key, if the key is present.
pub(super) fn find<'v, 'a>(root: &'v DeValue<'a>, keys: &[&str]) -> Option<&'v DeValue<'a>> {
    keys.iter().try_fold(root, |value, key| match value {
        DeValue::Array(elements) => elements.get(element(elements, key)?).map(Spanned::get_ref),
        _ => value.get(*key).map(Spanned::get_ref),
    })
}

/// The element of an array that a key names, by number or by its `name`.
pub(super) fn element(elements: &DeArray<'_>, key: &str) -> Option<usize> {
    let numbered = key.parse().ok().filter(|index| *index < elements.len());
    numbered.or_else(|| elements.iter().position(|element| named(element.get_ref()).as_deref() == Some(key)))
}

/// The `name` of a table.
pub(super) fn named(value: &DeValue<'_>) -> Option<String> {
    value.as_table()?.get("name")?.get_ref().as_str().map(str::to_owned)
}
