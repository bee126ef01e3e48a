//! Owns how far the model of Gloo is off, by operation, on a network that is known: what a calibration cannot see of itself.

/// Relative standard errors of operations, 1.96 of which hold 95 of 100 cells of `make accuracy`; docs/accuracy.md, "Intervals". Messages
/// between two ranks are the cells called one_way, two_isends and incast: the largest of the three.
pub(super) const GLOO: [(&str, f64); 11] = [
    ("send", 0.039),
    ("recv", 0.039),
    ("all_reduce", 0.056),
    ("reduce", 0.031),
    ("broadcast", 0.043),
    ("all_gather", 0.094),
    ("reduce_scatter", 0.051),
    ("all_to_all", 0.065),
    ("gather", 0.044),
    ("scatter", 0.039),
    ("barrier", 0.025),
];
