//! Owns how far the model of Gloo is off, by operation, on a network that is known: what a calibration cannot see of itself.

/// Relative standard errors of operations, 1.96 of which hold 95 of 100 cells of `make accuracy`; docs/accuracy.md, "Intervals". Messages
/// between two ranks are the cells called one_way, two_isends and incast.
pub(super) const GLOO: [(&str, f64); 11] = [
    ("send", 0.03),
    ("recv", 0.03),
    ("all_reduce", 0.05),
    ("reduce", 0.05),
    ("broadcast", 0.05),
    ("all_gather", 0.05),
    ("reduce_scatter", 0.05),
    ("all_to_all", 0.05),
    ("gather", 0.05),
    ("scatter", 0.05),
    ("barrier", 0.05),
];
