//! Owns the columns in the results of every sweep, in addition to its parameters, phases and measures.

use super::CellType;
use super::CellType::{Float, Integer, Text};

/// A column of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The column's name.
    pub name: &'static str,
    /// Type of the column's values.
    pub holds: CellType,
    /// Meaning and unit of the values.
    pub meaning: &'static str,
}

const fn figure(name: &'static str, holds: CellType, meaning: &'static str) -> Figure {
    Figure { name, holds, meaning }
}

/// Names and meanings of the columns, in the order of the results; parameters follow `trial`, phases and measures are
/// at the end.
pub const FIGURES: [Figure; 22] = [
    figure("trial", Integer, "Number of the trial, from 0; the name of its folder"),
    figure("status", Text, "`finished` or `failed`"),
    figure("error", Text, "Error of a failed trial"),
    figure("source", Text, "`run`: the program or job was run; `replay`: the record of another trial was replayed"),
    figure("record", Integer, "For a replay: number of the trial whose record was replayed"),
    figure("makespan_s", Float, "Makespan, in seconds"),
    figure("compute_s", Float, "Compute, mean over ranks, in seconds"),
    figure("exposed_comm_s", Float, "Exposed communication, mean over ranks, in seconds"),
    figure("late_peer_s", Float, "Exposed communication before a late peer has entered, mean over ranks, in seconds"),
    figure("idle_s", Float, "Idle time, mean over ranks, in seconds"),
    figure("bytes_sent", Integer, "Payload that all ranks sent together, in bytes"),
    figure("memory_bytes", Integer, "Most memory that a rank held, in bytes"),
    figure("energy_j", Float, "Energy that all devices drew, in joules"),
    figure("price", Float, "Cost of the run, in the currency of the devices' prices"),
    figure("tokens_per_s", Float, "For a generated job: tokens per second, all ranks together"),
    figure("mfu", Float, "For a generated job: model FLOPs utilization, as a fraction"),
    figure("bubble", Float, "For a generated job: fraction of the ranks' time spent waiting for another stage"),
    figure("interval_low_s", Float, "Lower end of the makespan's interval, in seconds"),
    figure("interval_high_s", Float, "Upper end of the makespan's interval, in seconds"),
    figure("digest", Text, "Equal for two trials if and only if all their operations are the same"),
    figure("command", Text, "The command that runs the trial by itself"),
    figure("warnings", Text, "Reasons to doubt the figures, one per line"),
];
