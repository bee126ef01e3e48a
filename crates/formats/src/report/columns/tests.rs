//! Generates the parts of the documentation and of Python that describe the columns, and compares the files with them.

use super::*;
use crate::column::{Cell, CellType, Column, TableRow};
use crate::generated::keep;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;

/// Width of a docstring's line in `results.py`, without the indentation and the quotation marks.
const DOCSTRING: usize = 120 - 4 - 6;

#[test]
fn the_documentation_has_the_tables() {
    for (table, columns) in TABLES {
        let row = |column: &Column| format!("| `{}` | {} | {} |\n", column.name, column.kind.unit(), column.meaning());
        let rows: String = columns.iter().map(row).collect();
        let begin = format!("<!-- columns of {table} -->");
        let text = format!("\n| field | unit | meaning |\n|---|---|---|\n{rows}\n");
        keep("docs/reference/report.md", [&begin, "<!-- end of columns -->"], &text);
    }
}

#[test]
fn python_has_the_attributes() {
    let tables = [
        attributes::<RankReport>(),
        attributes::<OperationReport>(),
        attributes::<PhaseReport>(),
        attributes::<LinkReport>(),
        attributes::<PathPartReport>(),
    ];
    for (table, text) in tables {
        let begin = format!("    # Columns of {table}, generated.");
        keep("python/uniference/results.py", [&begin, "    # End of columns."], &text);
    }
}

/// The name of a table, and its columns as attributes of a Python class with their docstrings. Columns that a report
/// may lack have the default with which Rust reads such a report.
fn attributes<R: TableRow + Default + Serialize + DeserializeOwned>() -> (&'static str, String) {
    let whole = serde_json::to_value(R::default()).unwrap();
    let attribute = |(at, column): (usize, &Column)| {
        let mut without = whole.clone();
        without.as_object_mut().unwrap().remove(column.name);
        let default = match serde_json::from_value::<R>(without).map(|row| row.cells()[at].clone()) {
            Err(_) => String::new(),
            Ok(Cell::Null) => " | None = None".to_owned(),
            Ok(Cell::Float(number)) => format!(" = {number:?}"),
            Ok(Cell::Boolean(false)) => " = False".to_owned(),
            Ok(other) => unreachable!("no column has the default {other:?}"),
        };
        let data = match column.kind.holds() {
            CellType::Integer => "int",
            CellType::Float => "float",
            CellType::Boolean => "bool",
            CellType::Text => "str",
        };
        let unit = Some(column.kind.unit()).filter(|unit| !unit.is_empty());
        let unit = unit.map_or_else(String::new, |unit| format!(" Unit:\u{a0}{unit}."));
        let words = format!("{}{unit}", column.meaning());
        let docstring = textwrap::fill(&words, textwrap::Options::new(DOCSTRING).break_words(false));
        format!(
            "    {}: {data}{default}\n    \"\"\"{}\"\"\"\n",
            column.name,
            docstring.replace('\u{a0}', " ").replace('\n', "\n    ")
        )
    };
    (R::TABLE, R::COLUMNS.iter().enumerate().map(attribute).collect())
}

#[test]
fn a_name_is_one_column_and_a_meaning_is_a_sentence() {
    for (table, columns) in TABLES {
        let names: BTreeSet<&str> = columns.iter().map(|column| column.name).collect();
        assert_eq!(names.len(), columns.len(), "{table}");
        for column in *columns {
            assert!(column.meaning().ends_with('.'), "{table}: {}", column.name);
        }
    }
}

/// The bytes of `report.json` follow from the declared order: cells and JSON have the same values under the same names.
#[test]
fn cells_are_the_fields_of_the_json() {
    let row = RankReport { rank: 3, device: "a".to_owned(), crash_ps: Some(7), no_data_s: 0.5, ..Default::default() };
    let serde_json::Value::Object(json) = serde_json::to_value(&row).unwrap() else { panic!("a row is an object") };
    for (column, cell) in RankReport::COLUMNS.iter().zip(row.cells()) {
        let field = json.get(column.name).cloned().unwrap_or_default();
        assert_eq!(serde_json::to_value(cell).unwrap(), field, "{}", column.name);
    }
}
