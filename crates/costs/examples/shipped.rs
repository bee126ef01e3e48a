//! Makes the database that is shipped with the program from a Parquet file of operators, an installed
//! aiconfigurator-core and published measurements of attention: the rows of sources whose licences allow it, thinned to
//! the needs of interpolation.
//!
//! `cargo run --release -p uniference-costs --example shipped -- operators.parquet site-packages/aiconfigurator_core crates/costs/data/attention.csv crates/costs/data/operators.sqlite`

use std::collections::BTreeMap;
use std::path::PathBuf;
use uniference_costs::database::{Database, Repeat, Row, Series};
use uniference_costs::import::import;

/// Cells per octave: one row of each is kept.
const CELLS: f64 = 4.0;
/// Largest number of rows per series.
const MOST: usize = 800;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [sources @ .., target] = &std::env::args().skip(1).map(PathBuf::from).collect::<Vec<_>>()[..] else {
        return Err("sources and a target, please".into());
    };
    let whole = tempfile::tempdir()?;
    let mut all = Database::create(&whole.path().join("all.sqlite"))?;
    for source in sources {
        import(source, &mut all)?;
    }
    let _ = std::fs::remove_file(target);
    let mut shipped = Database::create(target)?;
    let notices = all.notices()?;
    let mut kept = 0;
    for series in &chosen(all.series()?) {
        let notice = notices.iter().find(|notice| notice.name == series.source).expect("series have a source");
        if !notice.licence.is_empty() {
            kept += shipped.add(series, notice, &thinned(all.rows(series)?), Repeat::Replaces)?;
        }
    }
    shipped.compact()?;
    println!("{kept} rows");
    Ok(())
}

/// All series of the Parquet file, and a choice of aiconfigurator-core's. It measures in several frameworks: for each
/// kind of GEMM and for FlashAttention, one series counts, the newest of SGLang's, else of vLLM's. SGLang's times are
/// those of kernels alone. vLLM's include host overhead, and the kernels that quantize the input or write to the cache.
fn chosen(all: Vec<Series>) -> Vec<Series> {
    let (measured, mut chosen): (Vec<Series>, Vec<Series>) =
        all.into_iter().partition(|series| series.source == "aiconfigurator-core");
    let mut best: BTreeMap<[String; 4], Series> = BTreeMap::new();
    for series in measured {
        let known = match (series.variant.as_str(), series.dtype.as_str()) {
            // The kernels are not those of GEMMs with a single scale, and the rows do not name them.
            ("nt" | "nt_experts", "float8_e4m3fn") => false,
            (variant, _) => series.family == "gemm" || ["fwd", "varlen_fwd"].contains(&variant),
        };
        let Some(rank) = rank(&series.software).filter(|_| known) else { continue };
        let kind = [&series.device, &series.family, &series.variant, &series.dtype].map(String::clone);
        if best.get(&kind).is_none_or(|other| self::rank(&other.software).as_ref() < Some(&rank)) {
            best.insert(kind, series);
        }
    }
    chosen.extend(best.into_values());
    chosen
}

/// Rank of a series; higher is better, `None` excludes it. Versions are compared by their numbers: `0.5.14` is newer
/// than `0.5.6.post2`.
fn rank(software: &str) -> Option<(bool, Vec<u64>)> {
    let (framework, version) = software.split_once(' ')?;
    let numbers = version.split(|sign: char| !sign.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
    ["vllm", "sglang"].contains(&framework).then_some((framework == "sglang", numbers))
}

/// The median row of each cell of sizes; if there are too many cells, evenly chosen ones.
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
