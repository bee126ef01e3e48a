//! Owns the table at the end of a run, at most 100 columns wide: the ranks' times, and the costs of operations.

use crate::cluster::ClusterFile;
use crate::column::{Cell, CellType, Column, Kind, Place, TableRow};
use crate::report::{
    CriticalPathReport, HOST_MEMORY, Interval, JobReport, MemoryReport, OperationReport, PathPartReport, PhaseReport,
    RankReport, Report, StreamReport,
};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use std::collections::BTreeSet;
use uniference_sim::time::SimDuration;

/// Maximum number of ranks in the table; more are abbreviated.
const MOST_RANKS: usize = 16;
/// Numbers of ranks in an abbreviated table: the first, those that compute longest, the last.
const SHOWN: (usize, usize, usize) = (4, 4, 2);
/// Width of a line in characters.
pub const WIDTH: u16 = 100;
/// Number of columns of figures that fit into [`WIDTH`], and the width of each further column.
const MOST_COLUMNS: usize = 8;
const A_COLUMN: u16 = 14;
/// Number of ranges that are shown.
const MOST_PHASES: usize = 12;
/// Number of kinds of the critical path that are named, and their least fraction of the path.
const MOST_OF_PATH: usize = 4;
const LEAST_OF_PATH: f64 = 0.005;
/// Fraction of the run from which on waits for data get a column.
const NOT_NEGLIGIBLE: f64 = 0.01;

/// Several lines that end with a newline: the ranks, the operations, the memory of the rank that held most, the
/// makespan and the cluster.
pub fn render(report: &Report) -> String {
    let mut parts = vec![ranks(&report.ranks)];
    parts.extend(operations(&report.operations));
    parts.extend(phases(&report.phases));
    parts.extend(streams(&report.streams));
    parts.extend(memory(&report.memory));
    parts.extend(energy(report));
    parts.extend(report.job.as_ref().map(job));
    parts.extend(report.critical_path.as_ref().and_then(critical_path));
    let cluster = ClusterFile::parse("manifest", &report.manifest.cluster, &[]).map(|cluster| cluster.summary());
    let cluster = cluster.map(|summary| format!(" on {summary}")).unwrap_or_default();
    // The interval: ` (95 %: 1.2 ms to 1.4 ms; 20 runs)`.
    let interval = report.interval.as_ref().map(|Interval { level, low_s, high_s, runs, .. }| {
        let seeds = if *runs > 1 { format!("; {runs} runs") } else { String::new() };
        format!(" ({:.0} %: {} to {}{seeds})", level * 100.0, seconds(*low_s), seconds(*high_s))
    });
    let interval = interval.unwrap_or_default();
    let makespan = format!("makespan {}{interval}{cluster}", SimDuration::from_ps(report.makespan_ps));
    let lines = [compute(report), report.headline.clone(), Some(makespan)];
    parts.push(lines.into_iter().flatten().collect::<Vec<_>>().join("\n"));
    let text = parts.join("\n\n");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A table that is [`WIDTH`] columns wide at most; the first `texts` columns are aligned to the left, the others to the
/// right.
pub fn table(header: &[&str], texts: usize) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(header.iter().enumerate().map(|(column, name)| aligned(name, column >= texts)));
    table
}

fn aligned(text: &str, right: bool) -> comfy_table::Cell {
    comfy_table::Cell::new(text).set_alignment(if right { CellAlignment::Right } else { CellAlignment::Left })
}

/// A text in lines of at most [`WIDTH`] columns, as far as its words allow.
pub fn wrapped(text: &str) -> String {
    let options = textwrap::Options::new(WIDTH.into()).break_words(false);
    textwrap::fill(text, options.word_splitter(textwrap::WordSplitter::NoHyphenation))
}

/// A row of a `table`: texts, then numbers.
pub fn row(texts: &[&str], numbers: &[String]) -> Vec<comfy_table::Cell> {
    texts.iter().map(|text| aligned(text, false)).chain(numbers.iter().map(|number| aligned(number, true))).collect()
}

/// The columns of `R` that the terminal shows and that have a value in some row, by their index.
fn known<R: TableRow>(rows: &[Vec<Cell>]) -> Vec<usize> {
    let is_known = |column: usize| rows.iter().any(|cells| cells.get(column).is_some_and(|cell| *cell != Cell::Null));
    (0..R::COLUMNS.len()).filter(|at| R::COLUMNS[*at].is_in(Place::Terminal) && is_known(*at)).collect()
}

/// A table of these columns of `R`. `heading`: title of the first column, if it is not its own. A row without cells is
/// shown as `...`.
fn figures<R: TableRow>(heading: Option<&str>, columns: &[usize], rows: &[Vec<Cell>]) -> Table {
    let kind = |at: usize| R::COLUMNS[at].kind;
    let mut titles: Vec<&str> = columns.iter().map(|at| R::COLUMNS[*at].title).collect();
    if let (Some(first), Some(heading)) = (titles.first_mut(), heading) {
        *first = heading;
    }
    // The first column names the row.
    let texts = 1 + columns.iter().skip(1).take_while(|at| kind(**at).holds() == CellType::Text).count();
    let mut table = table(&titles, texts);
    table.set_width(WIDTH + A_COLUMN * columns.len().saturating_sub(MOST_COLUMNS) as u16);
    for cells in rows {
        let cell = |(place, at): (usize, &usize)| aligned(&shown(kind(*at), &cells[*at]), place >= texts);
        table.add_row(match cells[..] {
            [] => row(&["..."], &[]),
            _ => columns.iter().enumerate().map(cell).collect(),
        });
    }
    table
}

/// A value as people read it; empty if it is unknown.
fn shown(kind: Kind, cell: &Cell) -> String {
    let Some(number) = cell.number() else { return cell.text() };
    match kind {
        Kind::Seconds => seconds(number),
        Kind::Picoseconds => seconds(number / 1e12),
        Kind::Bytes => bytes_of(number),
        Kind::ByteRate => format!("{:.1} GB/s", number / 1e9),
        Kind::Ratio => percent(number),
        Kind::Joules => joules(number),
        _ => short(number),
    }
}

fn ranks(ranks: &[RankReport]) -> String {
    let without_data = ranks.iter().any(|rank| {
        let whole_run = rank.compute_s + rank.exposed_comm_s + rank.idle_s;
        rank.no_data_s >= NOT_NEGLIGIBLE * whole_run && rank.no_data_s > 0.0
    });
    let mut rows = Vec::new();
    let selected = selected(ranks);
    let mut next = 0;
    for &index in &selected {
        if index != next {
            rows.push(Vec::new());
        }
        next = index + 1;
        rows.push(ranks[index].cells());
    }
    let mut columns = known::<RankReport>(&rows);
    columns.retain(|column| without_data || RankReport::COLUMNS[*column].name != "no_data_s");
    let table = figures::<RankReport>(None, &columns, &rows);
    match ranks.len() - selected.len() {
        0 => table.to_string(),
        left_out => format!("{table}\n{left_out} more ranks; the ranks with the longest compute time are shown"),
    }
}

/// Origins of compute: `compute: model (71 % database, 29 % roofline; of unknown cost: 3 kinds)`. `None`: there was no
/// choice.
fn compute(report: &Report) -> Option<String> {
    let chosen = Some(&report.manifest.compute).filter(|chosen| !chosen.is_empty())?;
    let all: f64 = report.compute.iter().map(|row| row.seconds).sum();
    let mut origins: Vec<(&str, f64)> = Vec::new();
    for row in report.compute.iter().filter(|row| row.seconds > 0.0) {
        match origins.iter_mut().find(|(origin, _)| *origin == row.origin) {
            Some((_, sum)) => *sum += row.seconds,
            None => origins.push((&row.origin, row.seconds)),
        }
    }
    if matches!(origins[..], [] | [("measured", _)]) {
        return Some(format!("compute: {chosen}"));
    }
    origins.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let shares: Vec<String> = origins.iter().map(|(origin, sum)| format!("{} {origin}", percent(sum / all))).collect();
    Some(format!("compute: {chosen} ({})", shares.join(", ")))
}

/// A percentage without decimals; a small part is `< 1 %`, a part just below 1 `> 99 %`.
fn percent(part: f64) -> String {
    match 100.0 * part {
        few if few < 0.5 => "< 1 %".to_owned(),
        most if (99.5..100.0).contains(&most) => "> 99 %".to_owned(),
        other => format!("{other:.0} %"),
    }
}

/// Ranks in the table: all, or the first, the slowest and the last.
fn selected(ranks: &[RankReport]) -> Vec<usize> {
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

/// Two tables of operations: operations that block threads, summed over ranks, and operations on CUDA streams, averaged
/// over ranks.
fn operations(all: &[OperationReport]) -> Vec<String> {
    let (on_streams, others): (Vec<_>, Vec<_>) = all.iter().partition(|operation| operation.ranks.is_some());
    let mut tables = Vec::new();
    if !others.is_empty() {
        let rows: Vec<Vec<Cell>> = others.into_iter().map(TableRow::cells).collect();
        tables.push(figures::<OperationReport>(None, &known::<OperationReport>(&rows), &rows).to_string());
    }
    if !on_streams.is_empty() {
        let rows: Vec<Vec<Cell>> = on_streams.into_iter().map(mean_per_rank).collect();
        // The exposed time follows the overlapped time: together they are the whole time, which is left out.
        let mut columns = known::<OperationReport>(&rows);
        columns.retain(|column| OperationReport::COLUMNS[*column].name != "time_s");
        let place = |name| columns.iter().position(|column| OperationReport::COLUMNS[*column].name == name);
        if let (Some(exposed), Some(late_peer)) = (place("exposed_s"), place("late_peer_s")) {
            columns[exposed..late_peer].rotate_left(1);
        }
        let table = figures::<OperationReport>(Some("on CUDA streams"), &columns, &rows);
        tables.push(format!("{table}\nmean per rank; exposed: no kernel ran on any stream of the GPU"));
    }
    tables
}

/// The cells of an operation, with its sums over ranks divided by their number.
fn mean_per_rank(operation: &OperationReport) -> Vec<Cell> {
    let ranks = f64::from(operation.ranks.unwrap_or(1).max(1));
    let mean = |(column, cell): (&Column, Cell)| match (column.kind, cell.number()) {
        (Kind::Count | Kind::Bytes | Kind::Seconds, Some(sum)) => Cell::Float(sum / ranks),
        _ => cell,
    };
    OperationReport::COLUMNS.iter().zip(operation.cells()).map(mean).collect()
}

/// The ranges of each name on the rank with their longest total time; the longest first.
fn phases(rows: &[PhaseReport]) -> Option<String> {
    let by_name = rows.chunk_by(|one, next| one.name == next.name);
    // The first rank of several with equal times.
    let longest = |rows: &[PhaseReport]| rows.iter().rev().max_by(|a, b| a.total_s.total_cmp(&b.total_s)).cloned();
    let mut phases: Vec<PhaseReport> = by_name.filter_map(longest).collect();
    phases.sort_by(|a, b| b.total_s.total_cmp(&a.total_s));
    let more = phases.len().saturating_sub(MOST_PHASES);
    let more = if more > 0 { format!("\n{more} more") } else { String::new() };
    let rows: Vec<Vec<Cell>> = phases.iter().take(MOST_PHASES).map(TableRow::cells).collect();
    (!rows.is_empty()).then(|| format!("{}{more}", figures::<PhaseReport>(None, &known::<PhaseReport>(&rows), &rows)))
}

/// `GPU streams of rank 3: kernels 8.100 s, copies 2.000 ms, communication 2.000 s, of it exposed 310.000 ms`, for the
/// rank with most exposed communication.
fn streams(rows: &[StreamReport]) -> Option<String> {
    // The first rank of several with as much.
    let devices = rows.iter().rev().filter(|row| row.stream.is_none());
    let most = devices.max_by(|a, b| a.exposed_comm_s.total_cmp(&b.exposed_comm_s))?;
    let [kernels, copies, communication, exposed] =
        [most.kernels_s, most.copies_s, most.communication_s, most.exposed_comm_s].map(seconds);
    Some(format!(
        "GPU streams of rank {}: kernels {kernels}, copies {copies}, communication {communication}, of it exposed {exposed}",
        most.rank
    ))
}

/// `critical path: latency 61 %, compute 39 %`, and its two longest parts: `60 % latency of a.0 -> switch in all_reduce
/// at train.py:12`.
fn critical_path(path: &CriticalPathReport) -> Option<String> {
    let kinds = path.kinds.iter().filter(|part| part.share >= LEAST_OF_PATH).take(MOST_OF_PATH);
    let kinds: Vec<String> = kinds.map(|part| format!("{} {}", part.kind, percent(part.share))).collect();
    let part = |part: &PathPartReport| {
        let PathPartReport { kind, rank, link, name, line, .. } = part;
        let place = link.clone().or(rank.map(|rank| format!("rank {rank}"))).map(|place| format!(" of {place}"));
        let name = name.as_ref().filter(|name| *name != kind).map(|name| format!(" in {name}"));
        let line = line.as_deref().map(|line| format!(" at {}", in_folder(line)));
        let words = [place, name, line].map(Option::unwrap_or_default).concat();
        format!("\n  {} {kind}{words}", percent(part.share))
    };
    let longest: String = path.parts.iter().take(2).map(part).collect();
    (!kinds.is_empty()).then(|| format!("critical path: {}{longest}", kinds.join(", ")))
}

/// A line, `path:line`, without the folders of its file.
pub fn in_folder(line: &str) -> &str {
    line.rsplit('/').next().unwrap_or(line)
}

/// `memory: at most 3.00 GiB, on rank 0 (parameters 2.00 GiB, activations 1.00 GiB), at train.py:12 in forward`; for
/// GPUs with host memory: `; on the host at most 1.00 GiB`.
fn memory(rows: &[MemoryReport]) -> Option<String> {
    let of_rank = rows.chunk_by(|one, next| one.rank == next.rank);
    let is_of_device = |row: &&MemoryReport| row.kind != HOST_MEMORY;
    let total = |rows: &&[MemoryReport]| {
        rows.iter().filter(is_of_device).fold(0_u64, |sum, row| sum.saturating_add(row.peak_bytes))
    };
    // The first rank of several with as much.
    let most = of_rank.rev().max_by_key(total)?;
    let first = most.first()?;
    let kinds: Vec<String> = most
        .iter()
        .filter(is_of_device)
        .map(|row| format!("{} {}", kind_of_memory(&row.kind), bytes(row.peak_bytes)))
        .collect();
    let place = place(first.line.as_deref(), first.function.as_deref(), first.backward);
    let place = place.map_or_else(String::new, |place| format!(", {place}"));
    let host = rows.iter().filter(|row| row.kind == HOST_MEMORY).map(|row| row.peak_bytes).max();
    let host = host.map_or_else(String::new, |most| format!("; on the host at most {}", bytes(most)));
    let (total, kinds) = (bytes(total(&most)), kinds.join(", "));
    Some(format!("memory: at most {total}, on rank {} ({kinds}){place}{host}", first.rank))
}

/// `job: 1024 tokens/s (128.00 a device), 430.12 TFLOPS a device, MFU 43 %, pipeline bubble 12 %`.
fn job(job: &JobReport) -> String {
    let JobReport { tokens_per_s, tokens_per_s_per_device, flops_per_s_per_device, mfu, bubble, .. } = job;
    let bubble = bubble.map_or_else(String::new, |bubble| format!(", pipeline bubble {}", percent(bubble)));
    let experts = job.expert_imbalance;
    let experts = experts.map_or_else(String::new, |ratio| format!(", busiest experts {ratio:.2} x the mean"));
    let tflops = flops_per_s_per_device / 1e12;
    format!(
        "job: {tokens_per_s:.0} tokens/s ({tokens_per_s_per_device:.2} a device), {tflops:.2} TFLOPS a device, MFU {}{bubble}{experts}",
        percent(*mfu)
    )
}

/// `energy: 12.40 kJ, price: 0.0172`.
fn energy(report: &Report) -> Option<String> {
    let energy = report.energy_j.map(|energy| format!("energy: {}", joules(energy)));
    let price = report.price.map(|price| format!("price: {price:.4}"));
    let said: Vec<String> = energy.into_iter().chain(price).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// Joules with two decimals in the largest unit that leaves at least 1.
fn joules(joules: f64) -> String {
    let (worth, unit) = match joules {
        less if less < 1e3 => (1.0, "J"),
        less if less < 1e6 => (1e3, "kJ"),
        less if less < 1e9 => (1e6, "MJ"),
        _ => (1e9, "GJ"),
    };
    format!("{:.2} {unit}", joules / worth)
}

/// A kind of memory in its usual spelling.
pub fn kind_of_memory(kind: &str) -> &str {
    if kind == "kv_cache" { "KV cache" } else { kind }
}

/// `at train.py:12 in forward`, `in the backward pass of train.py:12 in forward`.
pub fn place(line: Option<&str>, function: Option<&str>, backward: bool) -> Option<String> {
    let before = if backward { "in the backward pass of" } else { "at" };
    let function = function.filter(|function| *function != "<module>");
    let function = function.map_or_else(String::new, |function| format!(" in {function}"));
    line.map(|line| format!("{before} {line}{function}"))
}

/// Seconds with three decimals in the largest unit that leaves at least 1.
pub fn seconds(seconds: f64) -> String {
    match SimDuration::from_secs_f64(seconds) {
        Some(SimDuration::ZERO) => "0".to_owned(),
        Some(duration) => duration.to_string(),
        None => format!("{seconds} s"),
    }
}

/// A difference of times, with its sign.
pub fn signed(time: f64) -> String {
    let sign = if time < 0.0 { "-" } else { "+" };
    if time == 0.0 { "0".to_owned() } else { format!("{sign}{}", seconds(time.abs())) }
}

/// A relative difference in %, with its sign.
pub fn signed_percent(difference: f64) -> String {
    // Zero has no sign: -0 + 0 is 0.
    format!("{:+.1} %", (1000.0 * difference).round() / 10.0 + 0.0)
}

/// A number without decimals if it is whole, else with one.
fn short(number: f64) -> String {
    format!("{number:.*}", usize::from(number.fract() != 0.0))
}

/// With two decimals in the largest binary unit that leaves at least 1.
pub fn bytes(bytes: u64) -> String {
    bytes_of(bytes as f64)
}

/// As [`bytes()`], for a mean, which need not be whole.
fn bytes_of(bytes: f64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")].map(|(bits, name)| ((1_u64 << bits) as f64, name));
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes / unit),
        None => format!("{} B", short(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ComputeReport;
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
        // One line per rank: no line is wrapped.
        let ranks = text.split("\n\n").next().unwrap();
        assert_eq!(ranks.lines().count(), 2 + report.ranks.len(), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= (WIDTH + A_COLUMN).into()));
    }

    #[test]
    fn the_rank_that_held_most_is_named_with_its_kinds_and_line() {
        let mut report = sample(3);
        let row = |rank, kind: &str, gib: u64| MemoryReport {
            rank,
            kind: kind.to_owned(),
            peak_bytes: gib << 30,
            line: Some("train.py:12".to_owned()),
            function: Some("Block.forward".to_owned()),
            backward: rank == 1,
        };
        report.memory =
            vec![row(0, "parameters", 2), row(1, "parameters", 2), row(1, "kv_cache", 1), row(2, "parameters", 3)];
        let line = |report: &Report| render(report).lines().find(|line| line.starts_with("memory")).unwrap().to_owned();
        let expected = "memory: at most 3.00 GiB, on rank 1 (parameters 2.00 GiB, KV cache 1.00 GiB), in the backward pass of train.py:12 in Block.forward";
        assert_eq!(line(&report), expected);
        report.memory = vec![MemoryReport { line: None, function: None, ..row(0, "activations", 1) }];
        assert_eq!(line(&report), "memory: at most 1.00 GiB, on rank 0 (activations 1.00 GiB)");
        report.memory.clear();
        assert!(!render(&report).contains("memory"));
    }

    #[test]
    fn ranges_are_shown_of_the_rank_that_took_longest_and_the_path_by_its_longest_parts() {
        let mut report = sample(2);
        let phase = |name: &str, rank, total_s, compute_s| PhaseReport {
            name: name.into(),
            rank,
            count: 4,
            total_s,
            p50_s: total_s / 4.0,
            p99_s: total_s / 3.0,
            compute_s,
            exposed_comm_s: compute_s,
            ..PhaseReport::default()
        };
        report.phases = vec![
            phase("decode", 0, 2.0, Some(0.5)),
            phase("decode", 1, 3.0, Some(0.25)),
            phase("prefill", 0, 4.0, None),
        ];
        let part = |kind: &str, rank, link: Option<&str>, share| PathPartReport {
            kind: kind.into(),
            rank,
            link: link.map(str::to_owned),
            name: Some("all_reduce".into()),
            line: Some("/home/me/train.py:7".into()),
            seconds: share,
            share,
        };
        let kinds = vec![part("latency", None, None, 0.75), part("compute", None, None, 0.25)];
        let parts = vec![part("latency", None, Some("a.0 -> switch"), 0.7), part("compute", Some(1), None, 0.25)];
        report.critical_path = Some(CriticalPathReport { rank: 1, kinds, parts });
        let text = render(&report);
        let shown = &text[text.find(" range").unwrap()..text.find("makespan").unwrap()];
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn the_streams_of_the_rank_with_most_exposed_communication_are_said() {
        let mut report = sample(3);
        assert!(!render(&report).contains("streams"));
        let row = |rank, stream, exposed_comm_s| StreamReport {
            rank,
            stream,
            kernels_s: 8.1,
            copies_s: 0.0,
            communication_s: 2.0,
            exposed_comm_s,
        };
        report.streams = vec![row(0, None, 0.1), row(0, Some(1), 0.9), row(1, None, 0.31), row(2, None, 0.31)];
        let expected =
            "\nGPU streams of rank 1: kernels 8.100 s, copies 0, communication 2.000 s, of it exposed 310.000 ms\n";
        let text = render(&report);
        assert!(text.contains(expected), "{text}");
    }

    /// Three sends of two ranks are 1.5 per rank; an older report lacks figures of streams.
    #[test]
    fn operations_on_streams_are_averaged_and_missing_figures_stay_blank() {
        let mut report = sample(2);
        let row = OperationReport {
            operation: "send".to_owned(),
            count: 3,
            bytes: 3 << 9,
            exposed_s: 4e-6,
            ranks: Some(2),
            late_peer_s: Some(0.0),
            ..report.operations[0].clone()
        };
        report.operations = vec![row];
        let text = render(&report);
        let row = text.lines().find(|line| line.trim_start().starts_with("send")).expect("it has a row");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>().join(" "), "send 0 1.5 768 B 2.000 us 0", "{text}");
    }

    #[test]
    fn energy_and_price_are_said_where_they_are_known() {
        let mut report = sample(2);
        assert!(!render(&report).contains("energy"));
        report.energy_j = Some(12_400.0);
        assert!(render(&report).contains("\nenergy: 12.40 kJ\n"));
        report.price = Some(0.017_23);
        assert!(render(&report).contains("\nenergy: 12.40 kJ, price: 0.0172\n"));
        report.energy_j = None;
        assert!(render(&report).contains("\nprice: 0.0172\n"));
    }

    #[test]
    fn a_long_device_name_does_not_widen_the_table() {
        let mut report = sample(2);
        report.ranks[0].device = "a-very-long-device-name-that-somebody-thought-was-a-good-idea.12345".to_owned();
        assert!(render(&report).lines().all(|line| line.chars().count() <= WIDTH.into()));
    }

    /// 71 + 27.7 + 1.3 = 100; less than half a percent is not shown as 0.
    #[test]
    fn where_compute_comes_from_is_one_line() {
        let mut report = sample(2);
        let mut shown = |rows: &[(&str, f64)]| {
            let row = |(origin, seconds): &(&str, f64)| ComputeReport {
                rank: 0,
                origin: (*origin).to_owned(),
                kind: None,
                seconds: *seconds,
            };
            report.compute = rows.iter().map(row).collect();
            render(&report).lines().rev().nth(1).unwrap().to_owned()
        };
        assert_eq!(shown(&[("measured", 3.0)]), "compute: model");
        let rows =
            [("database", 60.0), ("roofline", 1.3), ("interpolated", 27.7), ("database", 11.0), ("unknown", 0.0)];
        assert_eq!(shown(&rows), "compute: model (71 % database, 28 % interpolated, 1 % roofline)");
        let rows = [("database", 0.1), ("roofline", 99.9)];
        assert_eq!(shown(&rows), "compute: model (> 99 % roofline, < 1 % database)");
        report.manifest.compute.clear();
        assert!(!render(&report).contains("compute:"), "nobody chose");
        report.headline = Some("captured on a CPU, costed for a GPU".to_owned());
        assert!(render(&report).contains("\ncaptured on a CPU, costed for a GPU\nmakespan "));
    }
}
