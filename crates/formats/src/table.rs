//! Owns the table at the end of a run, at most 100 columns wide: where the ranks' time went, and what the operations cost.

use crate::calibrate::{Calibration, Change};
use crate::cluster::ClusterFile;
use crate::interval::Interval;
use crate::report::{OperationReport, RankReport, Report};
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use std::collections::BTreeSet;
use uniference_sim::time::SimDuration;

/// More ranks than this are abbreviated.
const MOST_RANKS: usize = 16;
/// Of each kind that an abbreviated table shows: the first, the ones that compute longest, the last.
const SHOWN: (usize, usize, usize) = (4, 4, 2);
const WIDTH: u16 = 100;
/// What a further column of times takes.
const A_COLUMN: u16 = 14;
/// A rank that waits for data for less than this part of the run is not worth a column.
const NOT_NEGLIGIBLE: f64 = 0.01;

/// Several lines that end with a newline: the ranks, the operations, the makespan and the cluster.
pub fn render(report: &Report) -> String {
    let mut parts = vec![ranks(&report.ranks)];
    if !report.operations.is_empty() {
        parts.push(operations(&report.operations));
    }
    let cluster = ClusterFile::parse("manifest", &report.manifest.cluster, &[]).map(|cluster| cluster.summary());
    let cluster = cluster.map(|summary| format!(" on {summary}")).unwrap_or_default();
    let interval = report.interval.as_ref().map(between).unwrap_or_default();
    parts.push(format!("makespan {}{interval}{cluster}", SimDuration::from_ps(report.makespan_ps)));
    let text = parts.join("\n\n");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// ` (95 %: 1.2 ms to 1.4 ms; 20 seeds)`.
fn between(interval: &Interval) -> String {
    let Interval { level, low_s, high_s, runs, .. } = interval;
    let seeds = if *runs > 1 { format!("; {runs} seeds") } else { String::new() };
    format!(" ({:.0} %: {} to {}{seeds})", level * 100.0, seconds(*low_s), seconds(*high_s))
}

/// What was fitted to measurements, and how well; ends with a newline.
pub fn fitted(calibration: &Calibration) -> String {
    let mut values = table(&["parameter", "value", "95 % from", "to"], 1);
    for parameter in &calibration.parameters {
        let numbers = [&parameter.value, &parameter.low, &parameter.high].map(String::clone);
        values.add_row(row(&[&parameter.name], &numbers));
    }
    let mut cases = table(&["measured", "ranks", "size", "median", "fit's error"], 2);
    for case in &calibration.errors {
        let ranks = case.ranks.iter().map(u32::to_string).collect::<Vec<_>>().join("-");
        let numbers = [bytes(case.bytes), seconds(case.measured_s), format!("{:+.1} %", 100.0 * case.error)];
        cases.add_row(row(&[&case.operation, &ranks], &numbers));
    }
    let mut changes = table(&["changes with size", "ranks", "up to", "95 % from", "to", "jump"], 1);
    for Change { operation, ranks, at } in &calibration.changes {
        let jump = format!("{:+.0} %", 100.0 * (at.jump - 1.0));
        let numbers = [ranks.to_string(), bytes(at.last), bytes(at.low), bytes(at.high), jump];
        changes.add_row(row(&[operation], &numbers));
    }
    let changes = match calibration.changes.is_empty() {
        true => "no operation that was measured behaves differently from some size on".to_owned(),
        false => changes.to_string(),
    };
    let Calibration { median_error, worst_error, floor, .. } = calibration;
    let [median, worst, floor] = [median_error, worst_error, floor].map(|part| format!("{:.1} %", 100.0 * part));
    let summary = format!("median error {median}, worst {worst}; the measurements themselves scatter by {floor}");
    let text = [values.to_string(), cases.to_string(), changes, summary].join("\n\n");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

pub(crate) fn table(header: &[&str], texts: usize) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(header.iter().enumerate().map(|(column, name)| aligned(name, column >= texts)));
    table
}

fn aligned(text: &str, right: bool) -> Cell {
    Cell::new(text).set_alignment(if right { CellAlignment::Right } else { CellAlignment::Left })
}

pub(crate) fn row(texts: &[&str], numbers: &[String]) -> Vec<Cell> {
    texts.iter().map(|text| aligned(text, false)).chain(numbers.iter().map(|number| aligned(number, true))).collect()
}

fn ranks(ranks: &[RankReport]) -> String {
    let without_data = ranks.iter().any(|rank| rank.no_data_s >= NOT_NEGLIGIBLE * spent(rank) && rank.no_data_s > 0.0);
    let times = ["compute", "exposed comm.", "(late peer)"].into_iter().chain(without_data.then_some("(no data)"));
    let header: Vec<&str> = ["rank", "device"].into_iter().chain(times).chain(["idle", "sent", "received"]).collect();
    let mut table = table(&header, 2);
    if without_data {
        table.set_width(WIDTH + A_COLUMN);
    }
    let shown = shown(ranks);
    let mut previous = None;
    for &index in &shown {
        if previous.map_or(0, |previous| previous + 1) != index {
            table.add_row(row(&["..."], &[]));
        }
        previous = Some(index);
        table.add_row(rank_row(&ranks[index], without_data));
    }
    let left_out = ranks.len() - shown.len();
    match left_out {
        0 => table.to_string(),
        _ => format!("{table}\n{left_out} more ranks; the ones that compute longest are shown"),
    }
}

/// All of the run, in seconds.
fn spent(rank: &RankReport) -> f64 {
    rank.compute_s + rank.exposed_comm_s + rank.idle_s
}

fn rank_row(rank: &RankReport, without_data: bool) -> Vec<Cell> {
    let times = [rank.compute_s, rank.exposed_comm_s, rank.late_peer_s].into_iter();
    let times = times.chain(without_data.then_some(rank.no_data_s)).chain([rank.idle_s]).map(seconds);
    let numbers: Vec<String> = times.chain([rank.bytes_sent, rank.bytes_received].map(bytes)).collect();
    let crashed = if rank.crash_ps.is_some() { " (crashed)" } else { "" };
    row(&[&rank.rank.to_string(), &format!("{}{crashed}", rank.device)], &numbers)
}

/// All ranks, or the first, the slowest and the last.
fn shown(ranks: &[RankReport]) -> Vec<usize> {
    if ranks.len() <= MOST_RANKS {
        return (0..ranks.len()).collect();
    }
    let (first, slowest, last) = SHOWN;
    let mut by_compute: Vec<usize> = (0..ranks.len()).collect();
    by_compute.sort_by(|a, b| ranks[*b].compute_s.total_cmp(&ranks[*a].compute_s));
    let chosen: BTreeSet<usize> =
        (0..first).chain(by_compute.into_iter().take(slowest)).chain(ranks.len() - last..ranks.len()).collect();
    chosen.into_iter().collect()
}

fn operations(operations: &[OperationReport]) -> String {
    let mut table = table(&["operation", "group", "calls", "bytes", "time", "exposed"], 1);
    for operation in operations {
        let numbers = [
            operation.group.to_string(),
            operation.count.to_string(),
            bytes(operation.bytes),
            seconds(operation.time_s),
            seconds(operation.exposed_s),
        ];
        table.add_row(row(&[&operation.operation], &numbers));
    }
    table.to_string()
}

/// With three decimals in the largest unit that leaves at least 1.
pub(crate) fn seconds(seconds: f64) -> String {
    match SimDuration::from_secs_f64(seconds) {
        Some(SimDuration::ZERO) => "0".to_owned(),
        Some(duration) => duration.to_string(),
        None => format!("{seconds} s"),
    }
}

/// With two decimals in the largest binary unit that leaves at least 1.
pub fn bytes(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1_024 => return format!("{bytes} B"),
        1_024..1_048_576 => (1_u64 << 10, "KiB"),
        1_048_576..1_073_741_824 => (1 << 20, "MiB"),
        1_073_741_824..1_099_511_627_776 => (1 << 30, "GiB"),
        _ => (1 << 40, "TiB"),
    };
    format!("{:.2} {name}", bytes as f64 / unit as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn a_few_ranks_are_all_shown() {
        insta::assert_snapshot!(render(&sample(3)));
    }

    #[test]
    fn hundreds_of_ranks_are_abbreviated_and_the_slowest_named() {
        let text = render(&sample(300));
        insta::assert_snapshot!(text);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH.into()));
    }

    #[test]
    fn waits_for_data_have_a_column_where_they_are_not_negligible() {
        let mut report = sample(2);
        report.ranks[1].no_data_s = 0.009 * report.makespan_s;
        assert!(!render(&report).contains("no data"));
        report.ranks[1].no_data_s = 220e-6;
        let text = render(&report);
        assert!(text.contains("(no data)"), "{text}");
        assert!(text.contains("220.000 us"), "{text}");
        // A line a rank: nothing is wrapped.
        let ranks = text.split("\n\n").next().unwrap();
        assert_eq!(ranks.lines().count(), 2 + report.ranks.len(), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= (WIDTH + A_COLUMN).into()));
    }

    #[test]
    fn a_long_device_name_does_not_widen_the_table() {
        let mut report = sample(2);
        report.ranks[0].device = "a-very-long-device-name-that-somebody-thought-was-a-good-idea.12345".to_owned();
        assert!(render(&report).lines().all(|line| line.chars().count() <= WIDTH.into()));
    }
}
