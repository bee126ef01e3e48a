//! Owns how far the model of Gloo is off, by operation, on a network that is known: what a calibration cannot see of itself.

/// Relative standard errors of operations, 1.96 of which hold 95 of 100 cells of `make accuracy`; docs/accuracy.md, "Intervals". Messages
/// between two ranks are the cells called one_way, two_isends and incast.
pub(super) const GLOO: [(&str, f64); 11] = [
    ("send", 0.087),
    ("recv", 0.087),
    ("all_reduce", 0.357),
    ("reduce", 0.151),
    ("broadcast", 0.073),
    ("all_gather", 0.204),
    ("reduce_scatter", 0.272),
    ("all_to_all", 0.341),
    ("gather", 0.114),
    ("scatter", 0.059),
    ("barrier", 0.081),
];
