//! Owns the difference between the critical paths of two runs. Each path adds up to the makespan of its run, so the
//! differences add up to the difference of the makespans.

use super::{Contribution, Explanation, Kind, Part};
use serde::Serialize;
use std::collections::BTreeMap;
use uniference_formats::table::{in_folder, row, seconds, signed, table, wrapped};

/// Maximum number of rows of a table. A row must differ by more than the share `LEAST` of the longer makespan.
const MOST: usize = 12;
const LEAST: f64 = 0.001;
/// Share of the difference from which on a part may be named in the sentence.
const LEAST_NAMED: f64 = 0.01;

/// The difference of a second run from a first one. Each list is in descending order of absolute difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The makespan of the first run.
    pub first_s: f64,
    /// The makespan of the second run.
    pub second_s: f64,
    /// Second makespan minus first: negative if the second run is shorter.
    pub difference_s: f64,
    /// The difference in one sentence.
    pub summary: String,
    /// The difference by kind of time.
    pub kinds: Vec<Change<&'static str>>,
    /// The difference by rank.
    pub ranks: Vec<Change<u32>>,
    /// The difference by link.
    pub links: Vec<Change<String>>,
    /// The difference by operation of process groups.
    pub operations: Vec<Change<String>>,
    /// The difference by line of the program, as `model.py:41`; `None` (null): the line is unknown.
    pub lines: Vec<Change<Option<String>>>,
    /// The difference by innermost range; `None` (null): no range was open.
    pub ranges: Vec<Change<Option<String>>>,
    /// The difference by kind of time and by name of the compute or operation.
    pub parts: Vec<PartChange>,
}

/// Times of one kind, rank, link, operation, line or range on both paths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change<K> {
    /// The kind, rank, link, operation, line or range.
    pub name: K,
    /// Seconds of the first path.
    pub first_s: f64,
    /// Seconds of the second path.
    pub second_s: f64,
    /// Second minus first, in seconds.
    pub difference_s: f64,
}

/// Times of one kind in one operation on both paths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartChange {
    /// The kind of time.
    pub kind: &'static str,
    /// Name of the compute or of the operation.
    pub name: Option<String>,
    /// Seconds of the first path.
    pub first_s: f64,
    /// Seconds of the second path.
    pub second_s: f64,
    /// Second minus first, in seconds.
    pub difference_s: f64,
    /// Number of spans of the first path.
    pub first_count: u64,
    /// Number of spans of the second path.
    pub second_count: u64,
}

impl Difference {
    /// The difference between two explanations.
    pub fn of(first: &Explanation, second: &Explanation) -> Difference {
        let by_file = |parts: &[Part<Option<String>>]| -> Vec<Part<Option<String>>> {
            parts
                .iter()
                .map(|part| Part { name: part.name.as_deref().map(|line| in_folder(line).to_owned()), ..part.clone() })
                .collect()
        };
        let difference_s = second.makespan_s - first.makespan_s;
        let parts = part_changes(&first.parts, &second.parts);
        Difference {
            first_s: first.makespan_s,
            second_s: second.makespan_s,
            difference_s,
            summary: summary(first, second, &parts),
            kinds: changes(&first.kinds, &second.kinds),
            ranks: changes(&first.ranks, &second.ranks),
            links: changes(&first.links, &second.links),
            operations: changes(&first.operations, &second.operations),
            lines: changes(&by_file(&first.lines), &by_file(&second.lines)),
            ranges: changes(&first.ranges, &second.ranges),
            parts,
        }
    }

    /// This difference as a JSON object, with a newline.
    ///
    /// # Panics
    /// Never.
    pub fn to_json(&self) -> String {
        format!("{}\n", serde_json::to_string_pretty(self).expect("texts and numbers are JSON"))
    }

    /// Several lines that end with a newline, at most 100 columns wide.
    pub fn render(&self) -> String {
        let least = LEAST * self.first_s.max(self.second_s);
        let or_none = |name: &Option<String>| name.clone().unwrap_or_else(|| "(none)".to_owned());
        let mut texts = vec![wrapped(&self.summary)];
        texts.extend(shown("kind", &self.kinds, least, |name| (*name).to_owned()));
        texts.extend(self.shown_parts(least));
        texts.extend(shown("link", &self.links, least, Clone::clone));
        texts.extend(shown("rank", &self.ranks, least, ToString::to_string));
        texts.extend(shown("line", &self.lines, least, or_none));
        if self.ranges.iter().any(|range| range.name.is_some()) {
            texts.extend(shown("range", &self.ranges, least, or_none));
        }
        let text = texts.join("\n\n");
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn shown_parts(&self, least: f64) -> Option<String> {
        let mut table = table(&["kind", "in", "first", "spans", "second", "spans", "difference"], 2);
        for part in self.parts.iter().filter(|part| part.difference_s.abs() >= least).take(MOST) {
            let PartChange { kind, name, first_s, second_s, difference_s, first_count, second_count } = part;
            let (first, second, difference) = (seconds(*first_s), seconds(*second_s), signed(*difference_s));
            let numbers = [first, first_count.to_string(), second, second_count.to_string(), difference];
            table.add_row(row(&[kind, name.as_deref().unwrap_or_default()], &numbers));
        }
        (table.row_count() > 0).then(|| table.to_string())
    }
}

fn shown<K>(what: &str, changes: &[Change<K>], least: f64, name: impl Fn(&K) -> String) -> Option<String> {
    let mut table = table(&[what, "first", "second", "difference"], 1);
    for change in changes.iter().filter(|change| change.difference_s.abs() >= least).take(MOST) {
        let numbers = [seconds(change.first_s), seconds(change.second_s), signed(change.difference_s)];
        table.add_row(row(&[&name(&change.name)], &numbers));
    }
    (table.row_count() > 0).then(|| table.to_string())
}

fn changes<K: Ord + Clone>(first: &[Part<K>], second: &[Part<K>]) -> Vec<Change<K>> {
    let mut sums: BTreeMap<K, [f64; 2]> = BTreeMap::new();
    for (side, parts) in [first, second].into_iter().enumerate() {
        parts.iter().for_each(|part| sums.entry(part.name.clone()).or_default()[side] += part.seconds);
    }
    let change = |(name, [first_s, second_s]): (K, [f64; 2])| Change {
        name,
        first_s,
        second_s,
        difference_s: second_s - first_s,
    };
    let mut changes: Vec<Change<K>> = sums.into_iter().map(change).collect();
    changes.sort_by(|a, b| b.difference_s.abs().total_cmp(&a.difference_s.abs()));
    changes
}

/// Seconds and number of spans, of the first path and of the second one.
type Sides = [(f64, u64); 2];

fn part_changes(first: &[Contribution], second: &[Contribution]) -> Vec<PartChange> {
    let mut sums: BTreeMap<(&'static str, Option<String>), Sides> = BTreeMap::new();
    for (side, parts) in [first, second].into_iter().enumerate() {
        for part in parts {
            let sum = &mut sums.entry((part.what.kind, part.what.name.clone())).or_default()[side];
            *sum = (sum.0 + part.seconds, sum.1 + part.count);
        }
    }
    let change = |((kind, name), [(first_s, first_count), (second_s, second_count)]): (_, Sides)| PartChange {
        kind,
        name,
        first_s,
        second_s,
        difference_s: second_s - first_s,
        first_count,
        second_count,
    };
    let mut changes: Vec<PartChange> = sums.into_iter().map(change).collect();
    changes.sort_by(|a, b| b.difference_s.abs().total_cmp(&a.difference_s.abs()));
    changes
}

/// `the second run takes 24.300 s more, 13.80 times as long: +21.000 s latency in all_reduce (1660 spans instead of
/// 12), +3.000 s compute`.
fn summary(first: &Explanation, second: &Explanation, parts: &[PartChange]) -> String {
    let (was, is) = (first.makespan_s, second.makespan_s);
    let difference = is - was;
    if difference == 0.0 {
        return format!("both runs take {}", seconds(was));
    }
    let times = if was > 0.0 && is > 0.0 { format!(", {:.2} times as long", is / was) } else { String::new() };
    let direction = if difference > 0.0 { "more" } else { "less" };
    // All parts with the sign of the difference that are large enough.
    let in_direction = parts.iter().filter(|part| part.difference_s / difference >= LEAST_NAMED);
    let part = |part: &PartChange| {
        let name = part.name.as_ref().filter(|_| part.kind != Kind::Compute.name());
        let name = name.map_or_else(String::new, |name| format!(" in {name}"));
        let spans = match (part.first_count, part.second_count) {
            (before, after) if before == after => String::new(),
            (before, after) => format!(" ({after} spans instead of {before})"),
        };
        format!("{} {}{name}{spans}", signed(part.difference_s), part.kind)
    };
    let parts: Vec<String> = in_direction.take(2).map(part).collect();
    let lasts = seconds(difference.abs());
    format!("the second run takes {lasts} {direction}{times}: {}", parts.join(", "))
}
