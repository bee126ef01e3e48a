//! Makes the database that comes with the program from a Parquet file of operators: the rows of MIT-licensed sources, thinned to what
//! interpolation needs.
//!
//! `cargo run -p uniference-devices --example shipped -- operators.parquet crates/devices/data/operators.sqlite`

use std::collections::BTreeMap;
use std::path::PathBuf;
use uniference_devices::database::{Database, Repeat, Row};
use uniference_devices::import::import;

/// Cells of an octave: one row of each is kept.
const CELLS: f64 = 4.0;
/// Rows of a series.
const MOST: usize = 800;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [source, target] =
        std::env::args().skip(1).map(PathBuf::from).collect::<Vec<_>>().try_into().map_err(|_| "two paths")?;
    let whole = tempfile::tempdir()?;
    let mut all = Database::create(&whole.path().join("all.sqlite"))?;
    import(&source, &mut all)?;
    let _ = std::fs::remove_file(&target);
    let mut shipped = Database::create(&target)?;
    let notices = all.notices()?;
    let mut kept = 0;
    for series in all.series()? {
        let notice = notices.iter().find(|notice| notice.name == series.source).expect("series have a source");
        if notice.licence == "MIT" {
            kept += shipped.add(&series, notice, &thinned(all.rows(&series)?), Repeat::Replaces)?;
        }
    }
    shipped.compact()?;
    println!("{kept} rows");
    Ok(())
}

/// The middle one of each cell of sizes; of too many cells every so many.
fn thinned(rows: Vec<Row>) -> Vec<Row> {
    let mut cells: BTreeMap<[i64; 5], Vec<Row>> = BTreeMap::new();
    for row in rows {
        let [a, b, c, d] = row.dimensions;
        let cell = [a, b, c, d, row.bytes].map(|size| ((size.max(1) as f64).log2() * CELLS).round() as i64);
        cells.entry(cell).or_default().push(row);
    }
    let middle = cells.into_values().map(|mut rows| {
        rows.sort_by(|a, b| a.microseconds.total_cmp(&b.microseconds));
        rows.swap_remove(rows.len() / 2)
    });
    let rows: Vec<Row> = middle.collect();
    let count = rows.len();
    let keep = |index: usize| count <= MOST || index * MOST / count != (index + 1) * MOST / count;
    rows.into_iter().enumerate().filter(|(index, _)| keep(*index)).map(|(_, row)| row).collect()
}
