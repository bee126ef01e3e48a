//! Owns what is taken over from an installed `aiconfigurator-core` (PyPI; NVIDIA, Apache-2.0): products of matrices and attention.
//!
//! Its tables are `systems/data/<device>/<family>/<framework>/<version>/*.parquet`, with times in milliseconds. Tables of whole modules and
//! of communication are no operators. Its `systems/silicon_sample.csv` holds end-to-end results that others check predictions with: it is not read.

use super::operators::{Work, attention, dtype, product};
use super::{Gathered, ImportError, Imported, Measurement, parquet};
use crate::database::{Database, Notice, Series};
use std::fs;
use std::path::{Path, PathBuf};
use uniference_sim::device::{Layout, Pass};

/// Its devices, and what they are called here.
const DEVICES: [(&str, &str); 9] = [
    ("h100_sxm", "h100-sxm-80gb"),
    ("h200_sxm", "h200-sxm-141gb"),
    ("b200_sxm", "b200-sxm-180gb"),
    ("b300_sxm", "b300-sxm"),
    ("gb200", "gb200"),
    ("gb300", "gb300"),
    ("l40s", "l40s"),
    ("rtx_pro_6000_server", "rtx-pro-6000"),
    ("a100_sxm", "a100-sxm4-80gb"),
];

/// The tables that are read.
const TABLES: [&str; 4] = [
    "gemm_perf.parquet",
    "context_attention_perf.parquet",
    "generation_attention_perf.parquet",
    "encoder_attention_perf.parquet",
];

/// `folder` is the package, or one that has it: `site-packages`.
pub(super) fn import(folder: &Path, into: &mut Database) -> Result<Imported, ImportError> {
    let places = ["aiconfigurator_core/systems/data", "systems/data", "data", ""].map(|place| folder.join(place));
    let is_data = |place: &&PathBuf| DEVICES.iter().any(|(device, _)| place.join(device).is_dir());
    let Some(data) = places.iter().find(is_data) else {
        let problem = "the folder has no tables of aiconfigurator-core".to_owned();
        return Err(ImportError::Source { path: folder.to_owned(), problem });
    };
    let mut imported = Imported::default();
    for (theirs, ours) in DEVICES {
        for path in tables(&data.join(theirs))? {
            let mut gathered = Gathered::default();
            read(&path, ours, &mut gathered)?;
            imported.and(gathered.write(into)?);
        }
    }
    Ok(imported)
}

/// The tables below a folder, in the order of their paths.
fn tables(folder: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        let failed = |source| ImportError::File { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| TABLES.iter().any(|table| name == *table)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path, device: &str, into: &mut Gathered) -> Result<(), ImportError> {
    let columns = [
        "gemm_dtype",
        "m",
        "n",
        "k",
        "batch_size",
        "isl",
        "num_heads",
        "num_key_value_heads",
        "head_dim",
        "attn_dtype",
        "kv_cache_dtype",
        "step",
        "window_size",
        "beam_width",
        "op_name",
    ];
    let table = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    parquet::rows(path, &["framework", "version", "latency"], &columns, |row| {
        let text = |name: &str| row.text(name).unwrap_or_default();
        let name = if table.starts_with("gemm") { text("gemm_dtype") } else { text("attn_dtype") };
        let Some((dtype, each)) = dtype(name) else { return into.skip(&format!("of type {name}")) };
        let work = if table.starts_with("gemm") { gemm(row, each) } else { heads(row, &table, dtype, each) };
        let (Some(Work { family, variant, flops, bytes }), Some(milliseconds)) = (work, row.number("latency")) else {
            return into.skip(table.trim_end_matches("_perf.parquet"));
        };
        let series = Series {
            device: device.to_owned(),
            software: format!("{} {}", text("framework").to_lowercase(), text("version")),
            family: family.name().to_owned(),
            variant: variant.to_owned(),
            dtype: dtype.to_owned(),
            source: "aiconfigurator-core".to_owned(),
        };
        let dimensions = crate::database::dimensions(&family);
        into.add(notice, Measurement { series, dimensions, flops, bytes, microseconds: milliseconds * 1e3 });
    })
}

fn gemm(row: &parquet::Values<'_>, each: u64) -> Option<Work> {
    Some(product([1, row.size("m")?, row.size("n")?, row.size("k")?], Layout::NT, each, 0))
}

/// Windows, beams and caches of another type are other kernels.
fn heads(row: &parquet::Values<'_>, table: &str, dtype: &str, each: u64) -> Option<Work> {
    let plain = row.size("window_size").unwrap_or(0) == 0 && row.size("beam_width").unwrap_or(1) == 1;
    let same_cache = row
        .text("kv_cache_dtype")
        .is_none_or(|cache| super::operators::dtype(cache).is_some_and(|(cache, _)| cache == dtype));
    if !plain || !same_cache {
        return None;
    }
    let [batch, tokens, heads, width] =
        [row.size("batch_size")?, row.size("isl")?, row.size("num_heads")?, row.size("head_dim")?];
    let key_heads = row.size("num_key_value_heads").filter(|heads| *heads > 0).unwrap_or(heads);
    let before = row.size("step").unwrap_or(0);
    let (queries, keys, causal) = match table {
        "generation_attention_perf.parquet" => (1, tokens + before, false),
        "context_attention_perf.parquet" => (tokens, tokens + before, true),
        _ => (tokens, tokens, false),
    };
    Some(attention(Pass::Forward, [batch, heads, key_heads, queries, keys, width], causal, each))
}

fn notice() -> Notice {
    Notice {
        name: "aiconfigurator-core".to_owned(),
        licence: "Apache-2.0".to_owned(),
        notice: "aiconfigurator-core, Copyright NVIDIA CORPORATION & AFFILIATES: https://github.com/ai-dynamo/aiconfigurator".to_owned(),
    }
}
