//! Owns the tables of a calibration on a terminal.

use super::{Calibration, Change, Profiled};
use uniference_formats::table::{bytes, row, seconds, table};

/// The fitted parameters and the errors of the fit; ends with a newline.
pub fn fitted(calibration: &Calibration) -> String {
    let mut values = table(&["parameter", "value", "95 % from", "to"], 1);
    for parameter in &calibration.parameters {
        let numbers = [&parameter.value, &parameter.low, &parameter.high].map(String::clone);
        values.add_row(row(&[&parameter.name], &numbers));
    }
    let mut cases = table(&["measured", "ranks", "size", "median", "fit error"], 2);
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
        true => "no measured operation changes its behavior with size".to_owned(),
        false => changes.to_string(),
    };
    let Calibration { median_error, worst_error, floor, .. } = calibration;
    let [median, worst, floor] = [median_error, worst_error, floor].map(|part| format!("{:.1} %", 100.0 * part));
    let summary = format!("median absolute error {median}, worst {worst}; scatter of the measurements {floor}");
    let processors = calibration.processors.iter().map(|Profiled { ranks, processor }| {
        let noun = if ranks.len() > 1 { "ranks" } else { "rank" };
        let ranks = ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let rates = processor.reached.keys().map_or_else(
            || "no operator took long enough to tell its rates".to_owned(),
            |keys| keys.trim_end().replace('\n', ", "),
        );
        format!("processor {} of {noun} {ranks}: {rates}; operators in {}", processor.name, processor.database)
    });
    let processors = processors.collect::<Vec<_>>().join("\n");
    let parts = [values.to_string(), cases.to_string(), changes, summary, processors];
    let text = parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("\n\n");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
