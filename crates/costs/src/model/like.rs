//! Owns the devices, families and kernels that stand in for unmeasured ones, and their order.

use crate::operators::{BLOCKS, EXPERTS, ROWS};
use uniference_formats::devices::{self, DeviceKind, KnownDevice};
use uniference_sim::device::{Precision, Rates};

/// Additional distance of a device of another vendor, whose kernels differ.
const FOREIGN: f64 = 3.0;
/// Additional distance of a device of another compute capability (its first number): its tensor cores have other
/// instructions, so other kernels run on it.
const GENERATION: f64 = 1.0;

/// Known devices of the same kind with their distance from the target, nearest first. The distance is the sum of the
/// logarithms of the ratios of both roofline rates, and of the power limit per operation, as a device with a lower
/// limit throttles its clock sooner. Devices of another generation are [`GENERATION`] farther, devices of another
/// vendor [`FOREIGN`].
pub(super) fn alike(name: Option<&str>, rates: &Rates, precision: Precision) -> Vec<(f64, &'static KnownDevice)> {
    let itself = devices::all().iter().find(|device| Some(device.name.as_str()) == name);
    let generation = |device: &KnownDevice| device.compute_capability().map(|(major, _)| major);
    let mut found: Vec<(f64, &KnownDevice)> = Vec::new();
    for device in devices::all() {
        let Some(known) = device.rates() else { continue };
        // The kind of an unknown device follows from its memory bandwidth.
        let kind = itself.map_or(if rates.memory > 5e11 { DeviceKind::Gpu } else { device.kind }, |itself| itself.kind);
        if Some(device.name.as_str()) == name || device.kind != kind {
            continue;
        }
        let ratio = |a: f64, b: f64| libm::log(a / b).abs();
        let (peak, its_peak) = (rates.peaks.serving(precision).0, known.peaks.serving(precision).0);
        let foreign = itself.is_some_and(|itself| itself.vendor != device.vendor);
        let other = itself.is_some_and(|itself| generation(itself) != generation(device));
        let power = itself.and_then(|itself| Some(ratio(itself.cap_w? / peak, device.cap_w? / its_peak)));
        let distance = ratio(peak, its_peak)
            + ratio(rates.memory, known.memory)
            + power.unwrap_or_default()
            + if other { GENERATION } else { 0.0 }
            + if foreign { FOREIGN } else { 0.0 };
        found.push((distance, device));
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)));
    found
}

/// Families whose efficiency is the best guess for another family's, nearest first.
pub(super) fn kin(family: &str) -> &'static [&'static str] {
    match family {
        "convolution_backward" => &["convolution", "gemm"],
        "convolution_weights" => &["convolution_backward", "convolution", "gemm"],
        "convolution" => &["gemm"],
        "attention_backward" => &["attention"],
        "normalization_backward" => &["normalization", "softmax"],
        "normalization" | "reduction" | "scan" => &["softmax", "normalization"],
        "softmax_backward" => &["softmax", "normalization"],
        "softmax" => &["normalization"],
        "reduction_backward" | "scan_backward" => &["reduction", "softmax"],
        "scatter" => &["gather", "copy", "elementwise"],
        "gather" => &["copy", "elementwise"],
        "copy" | "random" | "optimizer" => &["elementwise"],
        "elementwise" => &["copy"],
        _ => &[],
    }
}

/// cuDNN's attention, which PyTorch prefers on GPUs of compute capability 9 and 10.
const CUDNN: &str = "cudnn";
/// FlashAttention 2, which stands in for kernels without rows.
const FLASH_2: &str = "flash_2";
/// FlashAttention 3, written for the asynchronous copies and tensor cores of one generation of devices.
const FLASH_3: &str = "flash_3";
/// Memory-efficient attention, written with CUTLASS.
const EFFICIENT: &str = "efficient";
/// Attention as GEMMs and a softmax.
const MATH: &str = "math";
/// Normalization kernels of vLLM and SGLang.
const SERVED_NORM: &str = "served_norm";
/// Activations of vLLM and SGLang.
const SERVED_ACTIVATION: &str = "served_activation";

/// Additions of three tensors, which are two kernels.
const SEVERAL: &str = "add3";

/// Name of the kernels that a variant of a family runs: operators of the same kernels share their rows. A variant with
/// kernels of its own is its name.
pub(super) fn kernels<'a>(family: &str, variant: &'a str) -> &'a str {
    let has = |part: &str| variant.contains(part);
    match family {
        "attention" | "attention_backward" => match variant {
            "fwd" => FLASH_3,
            "varlen_fwd" => FLASH_2,
            "scaled_dot_product_attention" => MATH,
            _ if has("flash_attention") => FLASH_2,
            _ if has("cudnn_attention") => CUDNN,
            _ if has("efficient_attention") => EFFICIENT,
            _ if has("attention_math") => MATH,
            _ => variant,
        },
        "normalization" => match variant {
            "rms_norm" | "rmsnorm" | "gemma_rmsnorm" => SERVED_NORM,
            _ if variant.starts_with("fused_add_rms") => SERVED_NORM,
            _ => variant,
        },
        "elementwise" => match variant {
            "gelu_fast" | "gelu_new" | "gelu_quick" => SERVED_ACTIVATION,
            _ if variant.ends_with("_and_mul") => SERVED_ACTIVATION,
            _ => variant,
        },
        _ => variant,
    }
}

/// The variant of attention that a framework runs on a device for many queries at once: PyTorch (`sdp_utils.cpp`) and
/// Transformer Engine prefer cuDNN's kernels on GPUs of compute capability 9 and 10. `None`: FlashAttention 2.
pub(super) fn preferred_attention(name: Option<&str>) -> Option<&'static str> {
    let device = devices::find(name?).ok()?;
    matches!(device.compute_capability()?.0, 9 | 10).then_some("_scaled_dot_product_cudnn_attention")
}

/// Whether rows of this variant predict nothing about other variants of their family, nor other rows about it. GEMMs
/// with scales per row or per block, and GEMMs of experts, run kernels of their own. So do attention operators, except
/// that FlashAttention 2 stands in for unmeasured ones: on an H100, FlashAttention 3 and cuDNN are 1.5 to 2 times as
/// fast as FlashAttention 2 (Shah et al., "FlashAttention-3", 2024). Norms and activations of vLLM and SGLang are other
/// kernels than PyTorch's.
pub(super) fn stands_apart(family: &str, variant: &str) -> bool {
    let kernels = kernels(family, variant);
    match family {
        "attention" | "attention_backward" => kernels != FLASH_2,
        "normalization" => kernels == SERVED_NORM,
        "elementwise" => kernels == SERVED_ACTIVATION || kernels == SEVERAL,
        "gemm" => [BLOCKS, ROWS, EXPERTS].iter().any(|end| variant.ends_with(end)),
        _ => false,
    }
}

/// Time of a variant's kernels in units of the time of the kernels that stand in for them. FlashAttention 2 is about
/// twice as fast as the memory-efficient attention of xformers, which PyTorch has adopted (Dao, "FlashAttention-2",
/// 2023, section 4.1).
pub(super) fn slowdown(family: &str, variant: &str) -> f64 {
    if kernels(family, variant) == EFFICIENT { 2.0 } else { 1.0 }
}

/// Time per operation of a family in units of its kin's. Attention's backward pass reaches 0.87 of the forward pass's
/// rate in the shipped rows with both (cuDNN, FlashAttention 2 and 3 on an H100, widths 64 and 128, 16,384 tokens: 0.87
/// to 1.05, 0.87 for width 128).
pub(super) fn slower_than_kin(family: &str, kin: &str) -> f64 {
    if (family, kin) == ("attention_backward", "attention") { 1.0 / 0.87 } else { 1.0 }
}
