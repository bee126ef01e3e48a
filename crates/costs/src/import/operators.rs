//! Owns Parquet files of operators: one measured operator per row.
//!
//! Columns: `source` (repository@commit:path), `device`, `framework`, `operator`, `dtype`, `shape` (JSON with named
//! sizes), `forward_us`, `backward_us` (microseconds, either may be missing). Sizes: `linear` m, n, k and bias; `bmm`
//! batch, m, n, k; `conv` batch, channels, kernel, height, width, stride, padding; elementwise, normalization, softmax
//! rows and cols; attention batch, heads, kv_heads, head_dim, seq_q, seq_kv, causal.

use super::{Gathered, ImportError, Measurement, parquet};
use crate::database::{Notice, Series};
use std::path::Path;
use uniference_formats::devices;
use uniference_sim::device::{Family, FlatKind, Layout, Pass, RowKind};

const NEEDED: [&str; 6] = ["source", "device", "operator", "dtype", "shape", "forward_us"];

pub(super) fn read(path: &Path, into: &mut Gathered) -> Result<(), ImportError> {
    parquet::rows(path, &NEEDED, &["framework", "backward_us"], |row| {
        let text = |name: &str| row.text(name).unwrap_or_default();
        let operator = text("operator");
        let (repository, file) = text("source").split_once(':').unwrap_or((text("source"), ""));
        // Layers that this source ran as several kernels are not operators.
        let several = file.starts_with("profiler/v0") && ["rms_norm", "rope", "silu_mul"].contains(&operator);
        // PyTorch gathers rows with another kernel since 2.8, 3 to 4 times as fast (pytorch/pytorch 151490, 151753, and
        // issue 151612).
        let of_old_torch = repository.starts_with("microsoft/vidur@") || file.starts_with("profiler/v0");
        let replaced = operator == "embedding" && of_old_torch;
        let shape: serde_json::Value = serde_json::from_str(text("shape")).unwrap_or_default();
        let size = |name: &str| shape.get(name).and_then(serde_json::Value::as_u64);
        let (pass, microseconds) = match (row.number("forward_us"), row.number("backward_us")) {
            (Some(forward), _) => (Pass::Forward, forward),
            (None, Some(backward)) => (Pass::Backward, backward),
            (None, None) => return into.skip("without a time"),
        };
        let dtype = dtype(text("dtype"));
        // The kernels of sarathi and vLLM are not PyTorch's.
        let of_server = repository.starts_with("microsoft/vidur@") || file.starts_with("profiler/perf");
        let work = dtype.filter(|_| !several && !replaced).and_then(|(_, bytes)| work(operator, pass, bytes, &size));
        let (Some((dtype, _)), Some(Work { family, variant, flops, bytes })) = (dtype, work) else {
            return into.skip(operator);
        };
        let variant = match variant {
            "_fused_rms_norm" if of_server => "rms_norm",
            "gelu" if of_server => "gelu_new",
            variant => variant,
        };
        let series = Series {
            device: device(text("device")),
            software: text("framework").to_owned(),
            family: family.name().to_owned(),
            variant: variant.to_owned(),
            dtype: dtype.to_owned(),
            source: repository.to_owned(),
        };
        let dimensions = crate::database::dimensions(&family);
        into.add(|| notice(repository), Measurement { series, dimensions, flops, bytes, microseconds });
    })
}

/// The full name of a device. If a source omits the form factor, its rates show that it is the SXM module.
fn device(name: &str) -> String {
    match name {
        "h100-80gb" => "h100-sxm-80gb".to_owned(),
        "a100-80gb" => "a100-sxm4-80gb".to_owned(),
        name => devices::find(name).map_or_else(|_| name.to_owned(), |known| known.name.clone()),
    }
}

/// torch's name of a type, and the bytes of an element.
pub(super) fn dtype(name: &str) -> Option<(&'static str, u64)> {
    Some(match name {
        "fp32" | "float32" | "float" => ("float32", 4),
        "fp16" | "float16" | "half" => ("float16", 2),
        "bf16" | "bfloat16" => ("bfloat16", 2),
        "fp8" => ("float8_e4m3fn", 1),
        _ => return None,
    })
}

pub(super) struct Work {
    pub(super) family: Family,
    pub(super) variant: &'static str,
    pub(super) flops: u64,
    pub(super) bytes: u64,
}

/// Work of the operator that a source names, as [`crate::operators`] describes it.
fn work(operator: &str, pass: Pass, each: u64, size: &dyn Fn(&str) -> Option<u64>) -> Option<Work> {
    let tensors = |kind: &str| match operator.strip_prefix("elementwise-").unwrap_or(kind) {
        "add3" => 4,
        kind if kind.ends_with("-scalar") || ["gelu", "relu", "tanh"].contains(&kind) => 2,
        _ => 3,
    };
    match operator {
        "linear" => {
            let (m, n, k) = (size("m")?, size("n")?, size("k")?);
            let bias = if size("bias") == Some(1) { n } else { 0 };
            Some(product([1, m, n, k], Layout::NT, each, bias))
        }
        "bmm" => Some(product([size("batch")?, size("m")?, size("n")?, size("k")?], Layout::NN, each, 0)),
        "conv" => convolution(each, size),
        "softmax" | "layer_norm" | "rms_norm" => {
            let (rows, columns) = (size("rows")?, size("cols")?);
            let (kind, variant) = match operator {
                "softmax" => (RowKind::Softmax, "_softmax"),
                "layer_norm" => (RowKind::Normalization, "native_layer_norm"),
                _ => (RowKind::Normalization, "_fused_rms_norm"),
            };
            let family = Family::Rows { kind, pass, rows, columns };
            Some(Work { family, variant, flops: 0, bytes: 2 * rows * columns * each })
        }
        "embedding" => {
            let (rows, columns) = (size("rows")?, size("cols")?);
            let elements = rows * columns;
            let family = Family::Flat { kind: FlatKind::Gather, elements };
            Some(Work { family, variant: "embedding", flops: 0, bytes: 2 * elements * each + 8 * rows })
        }
        "gelu" | "relu" | "tanh" | "silu_mul" => flat(variant(operator)?, tensors(operator), each, size),
        _ if operator.starts_with("elementwise-") => flat(variant(operator)?, tensors(operator), each, size),
        "attention_prefill" | "attention_decode" => {
            let [batch, heads, key_heads] = [size("batch")?, size("heads")?, size("kv_heads")?];
            let [width, queries, keys] = [size("head_dim")?, size("seq_q")?, size("seq_kv")?];
            let causal = size("causal") == Some(1);
            Some(attention(pass, [batch, heads, key_heads, queries, keys, width], causal, each))
        }
        _ => None,
    }
}

fn variant(operator: &str) -> Option<&'static str> {
    let name = operator.trim_start_matches("elementwise-").trim_end_matches("-scalar");
    if operator == "silu_mul" {
        return Some("silu_and_mul");
    }
    ["add", "add3", "mul", "div", "pow", "gelu", "relu", "tanh"].into_iter().find(|known| *known == name)
}

fn flat(variant: &'static str, tensors: u64, each: u64, size: &dyn Fn(&str) -> Option<u64>) -> Option<Work> {
    let elements = size("rows")? * size("cols")?;
    let family = Family::Flat { kind: FlatKind::Elementwise, elements };
    Some(Work { family, variant, flops: 0, bytes: tensors * elements * each })
}

pub(super) fn product([batch, m, n, k]: [u64; 4], layout: Layout, each: u64, bias: u64) -> Work {
    let bytes = (batch * (m * k + k * n + m * n) + bias) * each;
    Work {
        family: Family::Gemm { batch, m, n, k, layout },
        variant: layout.name(),
        flops: 2 * batch * m * n * k,
        bytes,
    }
}

/// A convolution with square kernels and strides.
fn convolution(each: u64, size: &dyn Fn(&str) -> Option<u64>) -> Option<Work> {
    let [batch, inputs, outputs] = [size("batch")?, size("in_channels")?, size("out_channels")?];
    let [kernel, stride, padding] = [size("kernel")?, size("stride")?, size("padding")?];
    let [height, width] = [size("height")?, size("width")?];
    let side = |length: u64| Some((length + 2 * padding).checked_sub(kernel)? / stride.max(1) + 1);
    let (m, k) = (batch * side(height)? * side(width)?, inputs * kernel * kernel);
    let bytes = (batch * inputs * height * width + outputs * k + m * outputs) * each;
    let family = Family::Convolution { pass: Pass::Forward, groups: 1, m, n: outputs, k };
    Some(Work { family, variant: "convolution", flops: 2 * m * outputs * k, bytes })
}

/// Attention of a prefill chunk, whose queries are aligned with its last keys: with a causal mask they see all keys
/// except later ones.
pub(super) fn attention(
    pass: Pass,
    [batch, heads, key_heads, queries, keys, width]: [u64; 6],
    causal: bool,
    each: u64,
) -> Work {
    let hidden = if causal { queries.min(keys) * queries.min(keys) / 2 } else { 0 };
    let pairs = queries * keys - hidden;
    let heads_of_all = batch * heads;
    let products = if pass == Pass::Forward { 4 } else { 10 };
    let bytes = 2 * batch * width * (heads * queries + key_heads * keys) * each;
    let family = Family::Attention { pass, heads: heads_of_all, queries, keys, width, causal };
    let variant = "_scaled_dot_product_flash_attention";
    Work { family, variant, flops: products * heads_of_all * pairs * width, bytes }
}

/// The licences of known sources.
fn notice(repository: &str) -> Notice {
    let name = repository.split('@').next().unwrap_or_default();
    let (licence, holder) = match name {
        "sitar-lab/NeuSight" => ("MIT", "NeuSight: https://github.com/sitar-lab/NeuSight"),
        "casys-kaist/LLMServingSim" => ("MIT", "LLMServingSim: https://github.com/casys-kaist/LLMServingSim"),
        "microsoft/vidur" => ("MIT", "Vidur: https://github.com/microsoft/vidur"),
        "VIA-Research/vTrain" => ("MIT", "vTrain: https://github.com/VIA-Research/vTrain"),
        _ => ("", ""),
    };
    Notice { name: repository.to_owned(), licence: licence.to_owned(), notice: holder.to_owned() }
}
