//! Owns the import from an installed `aiconfigurator-core` (PyPI; NVIDIA, Apache-2.0): GEMMs, attention, and MoE
//! layers.
//!
//! Its tables are `systems/data/<device>/<family>/<framework>/<version>/*.parquet`, with times in milliseconds. Tables
//! of whole modules and of communication hold no operators, and those of MLA's GEMMs lack sizes: their rows are counted
//! by table. The file `systems/silicon_sample.csv` holds end-to-end results to check predictions with: it is not read.

use super::operators::{Work, attention, dtype, product};
use super::{Gathered, ImportError, Imported, Measurement, parquet};
use crate::database::{Database, Notice, Series};
use crate::operators::{BLOCKS, EXPERTS, ROWS};
use std::fs;
use std::path::{Path, PathBuf};
use uniference_sim::device::{Layout, Pass};

/// Its devices, and their names in this project.
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

/// Kernels of 8-bit GEMMs with a scale per row.
const CUTLASS: [&str; 2] = ["sglang_sgl_kernel_fp8_scaled_mm", "CutlassFP8ScaledMMLinearKernel"];

/// The imported tables.
const TABLES: [&str; 5] = [
    "gemm_perf.parquet",
    "moe_perf.parquet",
    "context_attention_perf.parquet",
    "generation_attention_perf.parquet",
    "encoder_attention_perf.parquet",
];

/// Imports the tables below `folder`: the package, or a folder that holds it, such as `site-packages`.
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
            let table = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match TABLES.contains(&table) {
                true => read(&path, table, ours, &mut gathered)?,
                false => gathered.skip_several(&format!("of the table {}", stem(table)), parquet::count(&path)?),
            }
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
            } else if path.extension().is_some_and(|extension| extension == "parquet") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn stem(table: &str) -> &str {
    table.trim_end_matches(".parquet").trim_end_matches("_perf")
}

fn read(path: &Path, table: &str, device: &str, into: &mut Gathered) -> Result<(), ImportError> {
    let columns = [
        "gemm_dtype",
        "moe_dtype",
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "distribution",
        "kernel_source",
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
    parquet::rows(path, &["framework", "version", "latency"], &columns, |row| {
        let text = |name: &str| row.text(name).unwrap_or_default();
        let name = match table {
            "gemm_perf.parquet" => text("gemm_dtype"),
            "moe_perf.parquet" => text("moe_dtype"),
            _ => text("attn_dtype"),
        };
        // Each block of 128 elements of a row, and of 128 x 128 of the weight, has a scale.
        let in_blocks = name == "fp8_block";
        let in_rows = table == "gemm_perf.parquet" && CUTLASS.contains(&text("kernel_source"));
        let Some((dtype, each)) = dtype(if in_blocks { "fp8" } else { name }) else {
            return into.skip(&format!("of type {name}"));
        };
        let works = match table {
            "gemm_perf.parquet" => gemm(row, each, in_blocks).map(|work| vec![(1.0, work)]).ok_or(stem(table)),
            "moe_perf.parquet" => experts(row, each, in_blocks).map(Vec::from),
            _ => heads(row, table, dtype, each).map(|work| vec![(1.0, work)]).ok_or(stem(table)),
        };
        let (works, milliseconds) = match (works, row.number("latency")) {
            (Ok(works), Some(milliseconds)) => (works, milliseconds),
            (Err(what), _) => return into.skip(what),
            (_, None) => return into.skip("without a time"),
        };
        let scales = match (in_blocks, in_rows) {
            (true, _) => BLOCKS,
            (_, true) => ROWS,
            _ => "",
        };
        let of_experts = if table == "moe_perf.parquet" { EXPERTS } else { "" };
        for (share, Work { family, variant, flops, bytes }) in works {
            let series = Series {
                device: device.to_owned(),
                software: format!("{} {}", text("framework").to_lowercase(), text("version")),
                family: family.name().to_owned(),
                variant: format!("{variant}{scales}{of_experts}"),
                dtype: dtype.to_owned(),
                source: "aiconfigurator-core".to_owned(),
            };
            let dimensions = crate::database::dimensions(&family);
            let microseconds = milliseconds * 1e3 * share;
            into.add(notice, Measurement { series, dimensions, flops, bytes, microseconds });
        }
    })
}

fn gemm(row: &parquet::Values<'_>, each: u64, in_blocks: bool) -> Option<Work> {
    Some(linear([1, row.size("m")?, row.size("n")?, row.size("k")?], each, in_blocks))
}

/// Traffic of an 8-bit `torch._scaled_mm`, or of a 16-bit linear layer: results have 16 bits, scales are float32.
fn linear([batch, m, n, k]: [u64; 4], each: u64, in_blocks: bool) -> Work {
    let mut work = product([batch, m, n, k], Layout::NT, each, 0);
    if each == 1 {
        let blocks = k.div_ceil(BLOCK);
        let scales = if in_blocks { blocks * (m + n.div_ceil(BLOCK)) } else { 2 };
        work.bytes += batch * (m * n + 4 * scales);
    }
    work
}

/// Elements of a block with one scale, along a row of an activation, and along both sizes of a weight (DeepSeek-V3's).
const BLOCK: u64 = 128;

/// An MoE layer as two grouped GEMMs, `(tokens, hidden) x (hidden, 2 inter)` and `(tokens, inter) x (inter, hidden)`
/// per expert, each with its share of the layer's time. The first GEMM, of the gate and the gated values, has two
/// thirds of the arithmetic and of the weights, one of which determines its time at any size. The times include the
/// activation between the GEMMs.
///
/// # Errors
/// If the row cannot be split into GEMMs: unequal work of experts, or experts without work; several devices, whose
/// share of the tokens the table omits; no gate.
fn experts(row: &parquet::Values<'_>, each: u64, in_blocks: bool) -> Result<[(f64, Work); 2], &'static str> {
    if row.text("distribution") != Some("balanced") {
        return Err("of experts with unequal work");
    }
    if row.size("moe_ep_size") != Some(1) {
        return Err("of experts on several devices");
    }
    if row.text("kernel_source").is_some_and(|kernel| kernel.contains("nongated")) {
        return Err("of experts without a gate");
    }
    let sizes = || {
        let [tokens, chosen, experts] = [row.size("num_tokens")?, row.size("topk")?, row.size("num_experts")?];
        let inter = row.size("inter_size")? / row.size("moe_tp_size").filter(|ways| *ways > 0)?;
        Some((tokens * chosen, experts.max(1), row.size("hidden_size")?, inter))
    };
    let (rows, experts, hidden, inter) = sizes().ok_or("moe")?;
    if rows < experts {
        return Err("of experts of which some have no token");
    }
    let grouped = |n: u64, k: u64| {
        let work = linear([experts, rows.div_ceil(experts), n, k], each, in_blocks);
        // Equal groups are rounded up; the operations are those of the rows.
        Work { flops: 2 * rows * n * k, ..work }
    };
    Ok([(2.0 / 3.0, grouped(2 * inter, hidden)), (1.0 / 3.0, grouped(hidden, inter))])
}

/// The attention of a row. `None` for windows, beams and caches of another type, which run other kernels, and for a
/// prompt of one token, which runs prefill kernels but has the sizes of decode.
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
    if tokens == 1 && table == "context_attention_perf.parquet" {
        return None;
    }
    let (queries, keys, causal) = match table {
        "generation_attention_perf.parquet" => (1, tokens + before, false),
        "context_attention_perf.parquet" => (tokens, tokens + before, true),
        _ => (tokens, tokens, false),
    };
    let work = attention(Pass::Forward, [batch, heads, key_heads, queries, keys, width], causal, each);
    Some(Work { variant: row.text("kernel_source").and_then(flash_attention).unwrap_or(work.variant), ..work })
}

/// The operator that runs the kernels of a version of FlashAttention; `None` for other kernels, which count as
/// PyTorch's.
fn flash_attention(kernel: &str) -> Option<&'static str> {
    match kernel {
        "fa3" | "vllm_flash_attn_fa3" => Some("fwd"),
        "flash_attention" | "vllm_flash_attn" | "vllm_flash_attn_fa2" => Some("varlen_fwd"),
        _ => None,
    }
}

fn notice() -> Notice {
    Notice {
        name: "aiconfigurator-core".to_owned(),
        licence: "Apache-2.0".to_owned(),
        notice: "aiconfigurator-core, Copyright NVIDIA CORPORATION & AFFILIATES: https://github.com/ai-dynamo/aiconfigurator".to_owned(),
    }
}
