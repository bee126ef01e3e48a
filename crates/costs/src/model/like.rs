//! Owns the devices and families that stand in for unmeasured ones, and their order.

use crate::operators::{BLOCKS, EXPERTS, ROWS};
use uniference_formats::devices::{self, DeviceKind, KnownDevice};
use uniference_sim::device::{Precision, Rates};

/// Additional distance of a device of another vendor, whose kernels differ.
const FOREIGN: f64 = 3.0;

/// Known devices of the same kind with their distance from the target, nearest first. The distance is the sum of the
/// logarithms of the ratios of both roofline rates, and of the power limit per operation, as a device with a lower
/// limit throttles its clock sooner. Devices of another vendor are [`FOREIGN`] farther.
pub(super) fn alike(name: Option<&str>, rates: &Rates, precision: Precision) -> Vec<(f64, &'static KnownDevice)> {
    let itself = devices::all().iter().find(|device| Some(device.name.as_str()) == name);
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
        let power = itself.and_then(|itself| Some(ratio(itself.cap_w? / peak, device.cap_w? / its_peak)));
        let distance = ratio(peak, its_peak)
            + ratio(rates.memory, known.memory)
            + power.unwrap_or_default()
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

/// Whether rows of this variant predict nothing about other variants of their family. GEMMs with scales per row or per
/// block, and GEMMs of experts, run kernels of their own. FlashAttention 3 (`fwd`) is written for the asynchronous
/// copies and tensor cores of one generation of devices, where it is 1.5 to 2 times as fast as FlashAttention 2 (Shah
/// et al., "FlashAttention-3", 2024).
pub(super) fn stands_apart(variant: &str) -> bool {
    variant == "fwd" || [BLOCKS, ROWS, EXPERTS].iter().any(|end| variant.ends_with(end))
}
