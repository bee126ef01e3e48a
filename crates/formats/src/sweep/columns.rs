//! Owns the columns in the results of every sweep, in addition to its parameters, phases and measures.

use crate::column::Kind::{Bytes, Id, Joules, Number, Seconds, Text};
use crate::column::{Column, Place, TableRow};
use crate::report::{JobReport, RankReport};
use std::sync::LazyLock;

/// Columns of the results, in order; parameters follow `trial`, phases and measures are at the end. Selected columns of
/// ranks and of the job are among them.
pub static FIGURES: LazyLock<Vec<Column>> = LazyLock::new(|| {
    let before = [
        Column::new("trial", "trial", Id, "Number of the trial, from 0; the name of its folder."),
        Column::new("status", "status", Text, "`finished` or `failed`."),
        Column::new("error", "error", Text, "Error of a failed trial."),
        Column::new(
            "source",
            "source",
            Text,
            "`run`: the program or job was run; `replay`: the record of another trial was replayed.",
        ),
        Column::new("record", "record", Id, "For a replay: number of the trial whose record was replayed."),
        Column::new("makespan_s", "makespan", Seconds, "Makespan."),
    ];
    let of_devices = [
        Column::new("memory_bytes", "memory", Bytes, "Most memory that a rank held."),
        Column::new("energy_j", "energy", Joules, "Energy that all devices drew."),
        Column::new("price", "price", Number, "Cost of the run, in the currency of the devices' prices."),
    ];
    let after = [
        Column::new("interval_low_s", "lower end", Seconds, "Lower end of the makespan's interval."),
        Column::new("interval_high_s", "upper end", Seconds, "Upper end of the makespan's interval."),
        Column::new("digest", "digest", Text, "Equal for two trials if and only if all their operations are the same."),
        Column::new("command", "command", Text, "The command that runs the trial by itself."),
        Column::new("warnings", "warnings", Text, "Reasons to doubt the figures, one per line."),
    ];
    let of_report = |columns: &'static [Column]| columns.iter().filter(|column| column.is_in(Place::Sweep)).copied();
    let of_ranks = of_report(RankReport::COLUMNS).map(Column::over_ranks);
    let figures = before.into_iter().chain(of_ranks).chain(of_devices);
    figures.chain(of_report(JobReport::COLUMNS)).chain(after).collect()
});
