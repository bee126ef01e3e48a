//! Owns the best trials of a search: trials that no other trial beats in all objectives, among those for which the
//! constraints hold.

use uniference_formats::sweep::{Results, Search};

/// Whether each constraint holds for a row of the results. A constraint with an unknown column does not hold.
pub fn feasible(search: &Search, results: &Results, row: usize) -> Vec<bool> {
    let cell = |name: &str| results.column(name)?.cells[row].number();
    search.constraints.iter().map(|constraint| constraint.value(cell).is_some_and(|holds| holds != 0.0)).collect()
}

/// The rows that no other row beats: a row beats another if it is as good in all objectives and better in one. Among
/// equal rows the first counts; the best row by the first objective comes first.
pub fn best(search: &Search, results: &Results) -> Vec<usize> {
    let rows = results.columns.first().map_or(0, |column| column.cells.len());
    let goals = |row: usize| -> Option<Vec<f64>> {
        let goal = |objective: &uniference_formats::sweep::Objective| {
            let number = results.column(&objective.column)?.cells[row].number()?;
            Some(if objective.maximize { -number } else { number })
        };
        search.objectives.iter().map(goal).collect()
    };
    let known = (0..rows).filter(|row| feasible(search, results, *row).iter().all(|holds| *holds));
    let known: Vec<(usize, Vec<f64>)> = known.filter_map(|row| Some((row, goals(row)?))).collect();
    let beats = |(other_row, other): &(usize, Vec<f64>), (row, goals): &(usize, Vec<f64>)| {
        let no_worse = other.iter().zip(goals).all(|(other, goal)| other <= goal);
        no_worse && (other != goals || other_row < row)
    };
    let mut best: Vec<&(usize, Vec<f64>)> =
        known.iter().filter(|row| !known.iter().any(|other| beats(other, row))).collect();
    best.sort_by(|(a_row, a), (b_row, b)| a[0].total_cmp(&b[0]).then(a_row.cmp(b_row)));
    best.into_iter().map(|(row, _)| *row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_formats::column::Cell;
    use uniference_formats::sweep::{ResultColumn, Sweep};

    #[test]
    fn nobody_beats_the_best() {
        let text = "[program]\nscript = \"a.py\"\n[arguments]\nn = [1, 2]\n\
                    [search]\nminimize = \"makespan_s\"\nmaximize = \"mfu\"\nconstraints = \"memory_bytes <= 8\"\n";
        let search = Sweep::parse("s.toml", text).unwrap().search.unwrap();
        let float = |name: &str, numbers: [f64; 6]| {
            let cell = |number: f64| if number.is_nan() { Cell::Null } else { Cell::Float(number) };
            ResultColumn::of(name.into(), numbers.map(cell).into())
        };
        let columns = vec![
            float("makespan_s", [3.0, 1.0, 2.0, 3.0, 0.5, 0.1]),
            float("mfu", [0.5, 0.2, 0.4, 0.5, 0.9, f64::NAN]),
            float("memory_bytes", [1.0, 1.0, 1.0, 1.0, 9.0, 1.0]),
        ];
        // The fifth has too much memory, the last has no figure, and the fourth equals the first.
        assert_eq!(best(&search, &Results { columns }), [1, 2, 0]);
    }
}
