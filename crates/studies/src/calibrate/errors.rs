//! Owns the errors of the model of Gloo by operation, on a known network: a calibration cannot see them in its own
//! measurements.

/// Relative standard errors of operations, 1.96 of which hold 95 of 100 cells of `make accuracy`;
/// docs/explanation/accuracy.md, "Intervals". The error of messages between two ranks is the largest among the cells
/// called one_way, two_isends and incast. For lists and tensors it is the larger of both errors.
pub(super) const GLOO: [(&str, f64); 11] = [
    ("send", 0.039),
    ("recv", 0.039),
    ("all_reduce", 0.057),
    ("reduce", 0.022),
    ("broadcast", 0.029),
    ("all_gather", 0.078),
    ("reduce_scatter", 0.057),
    ("all_to_all", 0.088),
    ("gather", 0.058),
    ("scatter", 0.039),
    ("barrier", 0.044),
];
