//! Owns the CSV files of links' bandwidth and latency over time: `time_s,bandwidth_mbps,latency_ms`.

use super::rates::RawRates;
use super::raw::RawPoint;
use crate::diagnostic::{Diagnostic, suggest};
use crate::units::{Bandwidth, Duration};
use uniference_sim::time::{Rate, SimDuration};

/// The quantity of a column, and the value of its unit in the base unit (seconds, bit/s).
#[derive(Clone, Copy)]
enum Column {
    Time(f64),
    Bandwidth(f64),
    Egress(f64),
    Ingress(f64),
    Latency(f64),
}

const COLUMNS: [(&str, Column); 18] = [
    ("time_s", Column::Time(1.0)),
    ("time_ms", Column::Time(1e-3)),
    ("bandwidth_bps", Column::Bandwidth(1.0)),
    ("bandwidth_kbps", Column::Bandwidth(1e3)),
    ("bandwidth_mbps", Column::Bandwidth(1e6)),
    ("bandwidth_gbps", Column::Bandwidth(1e9)),
    ("egress_bps", Column::Egress(1.0)),
    ("egress_kbps", Column::Egress(1e3)),
    ("egress_mbps", Column::Egress(1e6)),
    ("egress_gbps", Column::Egress(1e9)),
    ("ingress_bps", Column::Ingress(1.0)),
    ("ingress_kbps", Column::Ingress(1e3)),
    ("ingress_mbps", Column::Ingress(1e6)),
    ("ingress_gbps", Column::Ingress(1e9)),
    ("latency_s", Column::Latency(1.0)),
    ("latency_ms", Column::Latency(1e-3)),
    ("latency_us", Column::Latency(1e-6)),
    ("latency_ns", Column::Latency(1e-9)),
];

/// Reads the text of the file `name`. Empty cells keep the link's own value.
///
/// # Errors
/// If the text is no CSV with a header, or has unknown columns, cells that are no numbers, or bandwidths that are not
/// above zero.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<RawPoint>, Diagnostic> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
    let columns = columns(name, reader.headers().map_err(|error| malformed(name, &error.to_string()))?)?;
    let mut points = Vec::new();
    for row in reader.records() {
        let row = row.map_err(|error| malformed(name, &error.to_string()))?;
        let line = row.position().map_or(0, csv::Position::line);
        points.push(point(&columns, &row).map_err(|what| malformed(name, &format!("line {line}: {what}")))?);
    }
    Ok(points)
}

fn columns(name: &str, header: &csv::StringRecord) -> Result<Vec<Column>, Diagnostic> {
    let column = |word: &str| {
        let known = COLUMNS.iter().find(|(column, _)| *column == word).map(|(_, column)| *column);
        known.ok_or_else(|| {
            let hint = suggest(word, "columns", COLUMNS.map(|(column, _)| column));
            Diagnostic::new(format!("{name}: unknown column `{word}`")).hint(hint)
        })
    };
    let columns: Vec<Column> = header.iter().map(column).collect::<Result<_, _>>()?;
    let times = columns.iter().filter(|column| matches!(column, Column::Time(_))).count();
    if times != 1 || columns.len() < 2 {
        return Err(malformed(name, "a profile needs one time column, and bandwidth or latency columns"));
    }
    Ok(columns)
}

fn point(columns: &[Column], row: &csv::StringRecord) -> Result<RawPoint, String> {
    let (mut at, mut egress, mut ingress, mut latency) = (None, None, None, None);
    for (column, cell) in columns.iter().zip(row).filter(|(_, cell)| !cell.is_empty()) {
        let number: f64 = cell.parse().map_err(|_| format!("`{cell}` is not a number"))?;
        let seconds = |unit: f64| {
            SimDuration::from_secs_f64(number * unit).map(Duration).ok_or_else(|| format!("`{cell}` is not a time"))
        };
        let rate = |unit: f64| {
            let rate = Rate::from_bits_per_second(number * unit).map(Bandwidth);
            rate.ok_or_else(|| format!("the bandwidth {cell} must be greater than 0")).map(Some)
        };
        match column {
            Column::Time(unit) => at = Some(seconds(*unit)?),
            Column::Latency(unit) => latency = Some(seconds(*unit)?),
            Column::Egress(unit) => egress = rate(*unit)?,
            Column::Ingress(unit) => ingress = rate(*unit)?,
            Column::Bandwidth(unit) => (egress, ingress) = (rate(*unit)?, rate(*unit)?),
        }
    }
    Ok(RawPoint { at: at.ok_or("the time is missing")?, bandwidth: RawRates::new(egress, ingress), latency })
}

fn malformed(name: &str, what: &str) -> Diagnostic {
    Diagnostic::new(format!("{name}: {what}"))
        .hint("write a header, for example time_s,bandwidth_mbps,latency_ms, followed by rows of numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The units of columns: 0.5 s, 8 Mbit/s = 1e6 B/s, 20 ms = 2e10 ps.
    #[test]
    fn columns_have_units() {
        let points = read("lte.csv", "# measured\ntime_s, bandwidth_mbps, latency_ms\n0.5, 8, 20\n1, , 30\n").unwrap();
        let first = points[0];
        assert_eq!(first.at.0, SimDuration::from_ps(500_000_000_000));
        assert_eq!(first.bandwidth.unwrap().single().unwrap().0.bytes_per_second(), 1e6);
        assert_eq!(first.latency.unwrap().0, SimDuration::from_ps(20_000_000_000));
        assert!(points[1].bandwidth.is_none());
        let points = read("lte.csv", "time_s,egress_mbps,ingress_mbps\n0,8,16\n1,,24\n").unwrap();
        let rates = |rates: RawRates| [rates.egress(), rates.ingress()].map(|rate| Some(rate?.0.bytes_per_second()));
        assert_eq!(
            points.iter().map(|point| rates(point.bandwidth.unwrap())).collect::<Vec<_>>(),
            [[Some(1e6), Some(2e6)], [None, Some(3e6)]]
        );
    }

    #[test]
    fn mistakes_name_file_and_line() {
        let cases = [
            ("time,bandwidth_mbps\n", "unknown column `time`"),
            ("time_s\n1\n", "one time column, and"),
            ("time_s,latency_ms\n1,x\n", "line 2: `x` is not a number"),
            ("time_s,bandwidth_mbps\n0,1\n1,0\n", "line 3: the bandwidth 0 must be greater than 0"),
            ("time_s,latency_ms\n1\n", "CSV error"),
        ];
        for (text, part) in cases {
            let error = read("lte.csv", text).unwrap_err().render(false);
            assert!(error.contains("lte.csv") && error.contains(part), "{error}");
        }
    }
}
