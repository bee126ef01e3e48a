//! Owns values of options that are relative to the cluster file's values: `slowdown=/2`, `bandwidth=*10`.

use super::keys::find;
use toml::Spanned;
use toml::de::{DeString, DeValue};

/// A factor on a value; finite, not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factor(f64);

impl Factor {
    /// Reads `*2` or `/2`. `None`: the text is a plain value.
    pub(super) fn parse(text: &str) -> Option<Factor> {
        let (divides, number) = match text.split_at_checked(1)? {
            ("*", number) => (false, number),
            ("/", number) => (true, number),
            _ => return None,
        };
        let number: f64 = number.trim().parse().ok()?;
        let factor = if divides { 1.0 / number } else { number };
        (factor.is_finite() && factor >= 0.0).then_some(Factor(factor))
    }

    /// A number, a quantity with its unit, or a table of these, times the factor, as TOML. `None`: the value is none of
    /// these.
    pub(super) fn times(self, value: &DeValue<'_>) -> Option<String> {
        match value {
            // A whole result stays an integer, as a `count` is.
            DeValue::Integer(integer) => self.number(integer.as_str()).map(|number| match number.strip_suffix(".0") {
                Some(whole) => whole.to_owned(),
                None => number,
            }),
            DeValue::Float(float) => self.number(float.as_str()),
            DeValue::String(text) => {
                let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_'))).unwrap_or(text.len());
                let (number, unit) = text.split_at(end);
                let number: f64 = number.replace('_', "").parse().ok()?;
                Some(format!("\"{}{unit}\"", number * self.0))
            }
            DeValue::Table(table) => {
                let scaled = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
                    Some(format!("{} = {}", key.get_ref(), self.times(value.get_ref())?))
                };
                let entries: Option<Vec<String>> = table.iter().map(scaled).collect();
                entries.filter(|entries| !entries.is_empty()).map(|entries| format!("{{ {} }}", entries.join(", ")))
            }
            _ => None,
        }
    }

    fn number(self, text: &str) -> Option<String> {
        let number: f64 = text.replace('_', "").parse().ok()?;
        Some(format!("{:?}", number * self.0))
    }
}

/// A key's value times `factor`, as TOML. If the file lacks the key, the base is the network's value for a host or a
/// link, and 1 for a slowdown. `None`: there is no number.
pub(super) fn scaled(root: &DeValue<'_>, keys: &[&str], factor: Factor) -> Option<String> {
    let usual = match keys {
        ["network", "host" | "links", _, key] => find(root, &["network", key]),
        _ => None,
    };
    match find(root, keys).or(usual) {
        Some(value) => factor.times(value),
        None if matches!(keys, ["device", _, "slowdown"]) => factor.number("1"),
        None => None,
    }
}
