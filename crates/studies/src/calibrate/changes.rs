//! Owns the operations that change their behaviour with size, and the library's parameter that the change shows: MPI's
//! eager limit. [`breakpoints`] finds the sizes.

use super::breakpoints::{self, Breakpoint, Series};
use super::measurement::{Measurement, Pair};
use serde::Serialize;
use std::collections::BTreeSet;

/// A size from which on an operation behaves differently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Name of the operation: `pingpong`, `all_reduce`.
    pub operation: String,
    /// Number of ranks that took part.
    pub ranks: usize,
    /// The sizes between which the operation changes.
    #[serde(flatten)]
    pub at: Breakpoint,
}

/// All changes: of ping-pongs, whose pairs change together, and of each collective that was measured.
pub(super) fn find(measurements: &[Measurement], observed: &[Pair]) -> Vec<Change> {
    let pairs: BTreeSet<[u32; 2]> =
        observed.iter().filter(|pair| !pair.plain && !pair.is_ping()).map(|pair| pair.ranks).collect();
    let pingpongs: Vec<Series> =
        pairs.iter().map(|ranks| breakpoints::series(measurements, "pingpong", ranks)).collect();
    let mut found = changes("pingpong", 2, &pingpongs);
    let own = ["pingpong", "ping", "round_trip", "solo", "compute"];
    let others = measurements.iter().filter(|case| !own.contains(&&*case.operation));
    let cases: BTreeSet<(&str, &[u32])> = others.map(|case| (&*case.operation, &*case.ranks)).collect();
    for (operation, ranks) in cases {
        found.extend(changes(operation, ranks.len(), &[breakpoints::series(measurements, operation, ranks)]));
    }
    found
}

fn changes(operation: &str, ranks: usize, series: &[Series]) -> Vec<Change> {
    let found = breakpoints::find(series).into_iter();
    found.map(|at| Change { operation: operation.to_owned(), ranks, at }).collect()
}

/// The longest message that MPI sends eagerly: the last size before the largest jump of ping-pongs; without a jump, the
/// longest measured message.
pub(super) fn eager(library: &str, changes: &[Change], observed: &[Pair]) -> Option<u64> {
    let jumps = changes.iter().filter(|change| change.operation == "pingpong" && change.at.jump > 1.0);
    let highest = jumps.max_by(|a, b| a.at.jump.total_cmp(&b.at.jump)).map(|change| change.at.last);
    let longest = observed.iter().map(|pair| pair.bytes).max();
    highest.or(longest).filter(|_| library == "mpi")
}
