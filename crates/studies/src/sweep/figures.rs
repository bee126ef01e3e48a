//! Owns the figures of a trial's report in the table of results, and the table's columns.

use std::collections::BTreeMap;
use uniference_formats::column::{Cell, CellType, Column, Kind, Place, TableRow};
use uniference_formats::report::{HOST_MEMORY, Report};
use uniference_formats::sweep::{FIGURES, ResultColumn, Results, Sweep, Value};

/// The source of a trial's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The program or the job was run.
    Run,
    /// The record of this trial was replayed.
    Replay(usize),
}

/// A trial that has been carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The trial's number.
    pub trial: usize,
    /// The value of each parameter.
    pub settings: Vec<Value>,
    /// The command that runs the trial by itself.
    pub command: String,
    /// The trial's result: [`figures`] of its report and their source, or the reason why there are none.
    pub outcome: Result<(Source, BTreeMap<String, Cell>), String>,
}

/// The figures of a run, by column. Unknown figures are left out.
pub fn figures(report: &Report) -> BTreeMap<String, Cell> {
    let mut figures = BTreeMap::new();
    let mut put = |name: &str, cell: Cell| {
        if cell != Cell::Null && cell.number().is_none_or(f64::is_finite) {
            figures.insert(name.to_owned(), cell);
        }
    };
    let float = |value: Option<f64>| value.map_or(Cell::Null, Cell::Float);
    put("makespan_s", Cell::Float(report.makespan_s));
    for (column, cells) in selected(&report.ranks) {
        let integers = cells.iter().map(|cell| if let Cell::Integer(number) = cell { *number } else { 0 });
        let mean = cells.iter().filter_map(Cell::number).sum::<f64>() / cells.len() as f64;
        let is_sum = column.kind.holds() == CellType::Integer;
        put(column.name, if is_sum { Cell::Integer(integers.fold(0, i64::saturating_add)) } else { Cell::Float(mean) });
    }
    put("energy_j", float(report.energy_j));
    put("price", float(report.price));
    for (column, cells) in selected(report.job.as_slice()) {
        cells.into_iter().for_each(|cell| put(column.name, cell));
    }
    put("interval_low_s", float(report.interval.as_ref().map(|interval| interval.low_s)));
    put("interval_high_s", float(report.interval.as_ref().map(|interval| interval.high_s)));
    // A range counts with its duration on the rank that is slowest in it.
    for phases in report.phases.chunk_by(|one, next| one.name == next.name) {
        for (column, cells) in selected(phases) {
            let longest = cells.iter().filter_map(Cell::number).max_by(f64::total_cmp);
            put(&format!("{}.{}", phases[0].name, column.name), float(longest));
        }
    }
    let integer = |value: u64| Cell::Integer(i64::try_from(value).unwrap_or(i64::MAX));
    let mut held: BTreeMap<u32, u64> = BTreeMap::new();
    for memory in report.memory.iter().filter(|memory| memory.kind != HOST_MEMORY) {
        *held.entry(memory.rank).or_default() += memory.peak_bytes;
    }
    let most = held.into_values().max().or(report.job.as_ref().map(|job| job.memory_bytes));
    put("memory_bytes", most.map_or(Cell::Null, integer));
    put("digest", Cell::Text(report.digest.clone()));
    if !report.warnings.is_empty() {
        put("warnings", Cell::Text(report.warnings.join("\n")));
    }
    figures
}

/// The columns of these rows that the results of sweeps have, each with its cells.
fn selected<R: TableRow>(rows: &[R]) -> impl Iterator<Item = (&'static Column, Vec<Cell>)> {
    let rows: Vec<Vec<Cell>> = rows.iter().map(TableRow::cells).collect();
    let columns = R::COLUMNS.iter().enumerate().filter(|(_, column)| column.is_in(Place::Sweep));
    columns.map(move |(at, column)| (column, rows.iter().map(|cells| cells[at].clone()).collect()))
}

/// The table of trials that have been carried out. Figures that no trial has are left out, except the makespan.
pub fn results(sweep: &Sweep, rows: &[Row]) -> Results {
    let mut columns: Vec<ResultColumn> = Vec::new();
    for figure in FIGURES.iter() {
        let cells: Vec<Cell> = rows.iter().map(|row| fixed(row, figure.name)).collect();
        let always = ["trial", "status", "error", "source", "makespan_s"].contains(&figure.name);
        if always || cells.iter().any(|cell| *cell != Cell::Null) {
            let (name, kind) = (figure.name.to_owned(), figure.kind);
            columns.push(ResultColumn { name, kind, holds: kind.holds(), cells });
        }
        if figure.name == "trial" {
            let of = |number: usize| rows.iter().map(|row| cell(&row.settings[number])).collect();
            let parameters = sweep.parameters.iter().enumerate();
            columns.extend(parameters.map(|(number, parameter)| ResultColumn::of(parameter.name.clone(), of(number))));
        }
    }
    let known = |name: &String| columns.iter().any(|column| column.name == *name);
    let finished = rows.iter().filter_map(|row| row.outcome.as_ref().ok());
    let mut phases: Vec<&String> =
        finished.flat_map(|(_, figures)| figures.keys()).filter(|name| name.contains('.') && !known(name)).collect();
    phases.sort();
    phases.dedup();
    let float = |name: &str, cells| {
        let (name, kind) = (name.to_owned(), Kind::of_name(name));
        ResultColumn { name, kind, holds: CellType::Float, cells }
    };
    let phases: Vec<ResultColumn> =
        phases.into_iter().map(|name| float(name, rows.iter().map(|row| fixed(row, name)).collect())).collect();
    columns.extend(phases);
    for measure in &sweep.measures {
        let cells = (0..rows.len()).map(|row| {
            let of = |name: &str| columns.iter().find(|column| column.name == name)?.cells[row].number();
            measure.formula.value(of).map_or(Cell::Null, Cell::Float)
        });
        columns.push(float(&measure.name, cells.collect()));
    }
    Results { columns }
}

fn fixed(row: &Row, name: &str) -> Cell {
    let text = |text: &str| Cell::Text(text.to_owned());
    match (name, &row.outcome) {
        ("trial", _) => Cell::Integer(row.trial as i64),
        ("command", _) => text(&row.command),
        ("status", Ok(_)) => text("finished"),
        ("status", Err(_)) => text("failed"),
        ("error", Err(message)) => text(message),
        ("source", Ok((Source::Run, _))) => text("run"),
        ("source", Ok((Source::Replay(_), _))) => text("replay"),
        ("record", Ok((Source::Replay(of), _))) => Cell::Integer(*of as i64),
        (_, Ok((_, figures))) => figures.get(name).cloned().unwrap_or(Cell::Null),
        (_, Err(_)) => Cell::Null,
    }
}

fn cell(value: &Value) -> Cell {
    match value {
        Value::Integer(number) => Cell::Integer(*number),
        Value::Float(number) => Cell::Float(*number),
        Value::Boolean(value) => Cell::Boolean(*value),
        Value::Text(text) | Value::Toml(text) => Cell::Text(text.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::report::{JobReport, Manifest, MemoryReport, PhaseReport};
    use uniference_sim::cluster::Device;
    use uniference_sim::ids::HostId;
    use uniference_sim::observe::Statistics;

    fn report() -> Report {
        let devices = [Device::new("a", HostId(0)), Device::new("b", HostId(1))];
        let mut report = Report::new(&Statistics::default(), &devices, "00ff".into(), Manifest::default());
        (report.ranks[0].compute_s, report.ranks[1].compute_s, report.makespan_s) = (1.0, 2.0, 3.0);
        let memory: [(u32, &str, u64); 4] =
            [(0, "parameters", 5), (0, "activations", 6), (1, "parameters", 10), (1, HOST_MEMORY, 99)];
        let kind = |(rank, kind, peak_bytes): (u32, &str, u64)| MemoryReport {
            rank,
            kind: kind.to_owned(),
            peak_bytes,
            ..Default::default()
        };
        report.memory = memory.into_iter().map(kind).collect();
        report.phases = [(0, 0.5), (1, 0.75)]
            .map(|(rank, total_s)| PhaseReport {
                name: "decode".into(),
                rank,
                count: 1,
                total_s,
                p50_s: total_s,
                ..Default::default()
            })
            .into();
        report
    }

    #[test]
    fn figures_are_means_sums_and_the_slowest_rank() {
        let figures = figures(&report());
        // (1 + 2) / 2; 5 + 6 on rank 0, 10 on rank 1, and host memory does not count; the slower of 0.5 and 0.75
        assert_eq!(figures["compute_s"], Cell::Float(1.5));
        assert_eq!(figures["memory_bytes"], Cell::Integer(11));
        assert_eq!(figures["decode.p50_s"], Cell::Float(0.75));
        assert!(!figures.contains_key("price") && !figures.contains_key("warnings"));
        let job = Some(JobReport { tokens_per_s: 7.0, memory_bytes: 12, ..Default::default() });
        let figures = super::figures(&Report { memory: Vec::new(), job, ..report() });
        assert_eq!((&figures["memory_bytes"], &figures["tokens_per_s"]), (&Cell::Integer(12), &Cell::Float(7.0)));
    }

    #[test]
    fn a_row_has_parameters_figures_phases_and_measures() {
        let text = "[program]\nscript = \"a.py\"\n[arguments]\nprompt = [64, 128]\n\
                    [measures]\nrate = \"prompt / {decode.total_s}\"\nunknown = \"price * 2\"\n";
        let sweep = Sweep::parse("s.toml", text).unwrap();
        let row = |trial: usize, outcome| Row {
            trial,
            settings: vec![Value::Integer(64 << trial)],
            command: String::new(),
            outcome,
        };
        let rows = [row(0, Ok((Source::Replay(1), figures(&report())))), row(1, Err("error: x".into()))];
        let results = results(&sweep, &rows);
        let names: Vec<&str> = results.columns.iter().map(|column| &*column.name).collect();
        assert_eq!(names[..6], ["trial", "prompt", "status", "error", "source", "record"]);
        let cells = |name: &str| results.column(name).unwrap().cells.clone();
        // 64 / 0.75
        assert_eq!(cells("rate"), [Cell::Float(64.0 / 0.75), Cell::Null]);
        assert_eq!(cells("unknown"), [Cell::Null, Cell::Null]);
        assert_eq!(cells("record"), [Cell::Integer(1), Cell::Null]);
        assert_eq!(cells("error"), [Cell::Null, Cell::Text("error: x".into())]);
        assert!(results.column("price").is_none());
    }
}
