//! Owns the table of a comparison on a terminal, at most 100 columns wide.

use super::{Comparison, Pair, RankDifference, Unmatched};
use uniference_formats::table::{bytes, row, seconds, signed, signed_percent, table};

/// Several lines that end with a newline. `names` are the names of the two runs.
pub fn render(comparison: &Comparison, names: [&str; 2]) -> String {
    let mut parts = vec![
        format!("error = ({} - {}) / {}", names[0], names[1], names[1]),
        ranks(&comparison.ranks),
        operations(comparison),
        drift(&comparison.drift),
    ];
    parts.extend(comparison.last().map(|last| explain(last, comparison.recorder_s)));
    let Comparison { makespan, overall, unmatched, .. } = comparison;
    parts.push(format!(
        "makespan {} vs. {}: {}",
        seconds(makespan.first_s),
        seconds(makespan.second_s),
        error(makespan)
    ));
    parts.push(format!(
        "{} operations: median error {}, median absolute error {}, p95 {}, worst {}",
        overall.count,
        signed_percent(overall.median),
        unsigned(overall.median_absolute),
        unsigned(overall.p95),
        signed_percent(overall.worst)
    ));
    if *unmatched != (0, 0) {
        let all = format!("unmatched operations: {} of the first run, {} of the second", unmatched.0, unmatched.1);
        let first = comparison.only_first.iter().map(|only| alone("first", only));
        let second = comparison.only_second.iter().map(|only| alone("second", only));
        parts.push(std::iter::once(all).chain(first).chain(second).collect::<Vec<_>>().join("\n"));
    }
    let text = parts.join("\n\n");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// An operation that only one run has.
fn alone(run: &str, only: &Unmatched) -> String {
    let Unmatched { operation, members: ranks, number, bytes: size, line } = only;
    let place = if line.is_empty() { String::new() } else { format!(", at {line}") };
    format!("  only in the {run}: {operation} number {number} of {} ({}){place}", members(ranks), bytes(*size))
}

/// Maximum number of ranks in the table.
const MOST_RANKS: usize = 16;

fn ranks(ranks: &[RankDifference]) -> String {
    let mut table = table(&["rank", "first", "second", "error", "compute", "network", "late peer", "idle"], 1);
    for rank in ranks.iter().take(MOST_RANKS) {
        let parts = [rank.compute_s, rank.network_s, rank.late_peer_s, rank.idle_s].map(signed);
        let finish = [seconds(rank.finish.first_s), seconds(rank.finish.second_s), error(&rank.finish)];
        table.add_row(row(&[&rank.rank.to_string()], &[&finish[..], &parts[..]].concat()));
    }
    match ranks.len().saturating_sub(MOST_RANKS) {
        0 => table.to_string(),
        more => format!("{table}\n{more} more ranks"),
    }
}

fn operations(comparison: &Comparison) -> String {
    let header = ["operation", "members", "up to", "count", "first", "second", "median", "p95", "worst"];
    let mut table = table(&header, 2);
    for kind in &comparison.operations {
        let numbers = [
            bytes(kind.up_to_bytes),
            kind.errors.count.to_string(),
            seconds(kind.time.first_s),
            seconds(kind.time.second_s),
            signed_percent(kind.errors.median),
            unsigned(kind.errors.p95),
            signed_percent(kind.errors.worst),
        ];
        table.add_row(row(&[kind.operation, &members(&kind.members)], &numbers));
    }
    table.to_string()
}

fn drift(moments: &[Pair]) -> String {
    let shown: Vec<String> =
        moments.iter().map(|at| format!("{} at {}", signed(at.first_s - at.second_s), seconds(at.second_s))).collect();
    format!("drift of the first run relative to the second, from the first to the last operation: {}", shown.join(", "))
}

/// The parts of the difference, the largest first.
fn explain(last: &RankDifference, recorder_s: Option<f64>) -> String {
    let mut parts = [
        ("compute", last.compute_s),
        ("network", last.network_s),
        ("late peers", last.late_peer_s),
        ("idle", last.idle_s),
    ];
    parts.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let parts = parts.map(|(name, part)| format!("{name} {}", signed(part))).join(", ");
    let difference = signed(last.finish.first_s - last.finish.second_s);
    let recorder =
        recorder_s.map(|cost| format!("; recording accounts for {} of the compute", seconds(cost))).unwrap_or_default();
    format!("rank {} finished last; its difference of {difference} consists of {parts}{recorder}", last.rank)
}

fn members(ranks: &[u32]) -> String {
    match ranks {
        [first, .., last] if ranks.windows(2).all(|pair| pair[0] + 1 == pair[1]) => format!("{first}-{last}"),
        [first, .., last] if ranks.len() > 4 => format!("{first}..{last} ({})", ranks.len()),
        few => few.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    }
}

fn error(pair: &Pair) -> String {
    pair.error.map_or_else(|| "-".to_owned(), signed_percent)
}

fn unsigned(error: f64) -> String {
    format!("{:.1} %", 100.0 * error)
}
