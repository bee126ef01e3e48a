//! Owns the table of an explanation on a terminal, at most 100 columns wide.

use super::{Contribution, Explanation, What};
use uniference_formats::table::{in_folder, row, seconds, table, wrapped};

/// Maximum number of parts in the table. A part must be longer than the share `LEAST` of the makespan.
const MOST: usize = 12;
const LEAST: f64 = 0.001;

/// Several lines that end with a newline.
pub fn render(explanation: &Explanation) -> String {
    let Explanation { makespan_s, rank, kinds, parts, ranges, .. } = explanation;
    let mut texts = vec![format!(
        "the critical path of {} ends with rank {rank}; each span is what the next one had to wait for",
        seconds(*makespan_s)
    )];
    texts.push(shares("kind", kinds.iter().map(|part| (part.name.to_owned(), part.seconds, part.share))));
    if ranges.iter().any(|part| part.name.is_some()) {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "(none)".to_owned());
        texts.push(shares("range", ranges.iter().map(|part| (name(&part.name), part.seconds, part.share))));
    }
    texts.push(contributions(parts));
    texts.push(wrapped(&explanation.summary));
    let text = texts.join("\n\n");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn shares(what: &str, parts: impl Iterator<Item = (String, f64, f64)>) -> String {
    let mut table = table(&[what, "time", "share"], 1);
    let (shown, more): (Vec<_>, Vec<_>) = parts.enumerate().partition(|(number, _)| *number < MOST);
    for (_, (name, time, share)) in shown {
        table.add_row(row(&[&name], &[seconds(time), percent(share)]));
    }
    let others: f64 = more.iter().map(|(_, (_, time, _))| time).sum();
    if more.is_empty() { table.to_string() } else { format!("{table}\n{} more: {}", more.len(), seconds(others)) }
}

fn contributions(parts: &[Contribution]) -> String {
    let mut table = table(&["kind", "of", "in", "line", "time", "share", "count"], 4);
    let shown: Vec<&Contribution> = parts.iter().take_while(|part| part.share >= LEAST).take(MOST).collect();
    for part in &shown {
        let What { kind, name, line, .. } = &part.what;
        let name = name.as_deref().unwrap_or_default();
        let line = line.as_deref().map(in_folder).unwrap_or_default();
        let numbers = [seconds(part.seconds), percent(part.share), part.count.to_string()];
        table.add_row(row(&[kind, &place(&part.what), name, line], &numbers));
    }
    let rest: f64 = parts[shown.len()..].iter().map(|part| part.seconds).sum();
    match parts.len() - shown.len() {
        0 => table.to_string(),
        more => format!("{table}\n{more} more: {}", seconds(rest)),
    }
}

fn place(what: &What) -> String {
    match (&what.link, what.rank) {
        (Some(link), _) => link.clone(),
        (None, Some(rank)) => format!("rank {rank}"),
        (None, None) => String::new(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
