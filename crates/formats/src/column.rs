//! Owns the declaration of a column of figures, and the values in it. [`crate::report`] and [`crate::sweep`] have the
//! columns; their files, the tables of the terminal, the pages, the documentation and Python's attributes follow from
//! the declarations.

use serde::Serialize;

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name in files and in Python, with the unit if there is one: `compute_s`, `bytes_sent`.
    pub name: &'static str,
    /// Heading in tables for people.
    pub title: &'static str,
    /// Kind of the values, which decides their unit and how they are shown.
    pub kind: Kind,
    /// Places that show the column, in addition to the page and Python, which show all columns of a report.
    pub places: &'static [Place],
    /// Sentence in front of the description; may be empty.
    summary: &'static str,
    /// Lines that describe the column, as in a doc comment.
    lines: &'static str,
}

/// Kind of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // `unit` describes them
pub enum Kind {
    /// A number that names something: a rank, a process group.
    Id,
    Text,
    /// A line of a program, as `path:line`.
    Line,
    Flag,
    Count,
    Bytes,
    /// Bytes per second.
    ByteRate,
    Seconds,
    Picoseconds,
    Joules,
    /// Floating-point operations.
    Flops,
    FlopRate,
    TokenRate,
    /// A fraction, which is shown as a percentage.
    Ratio,
    /// Any other number.
    Number,
}

/// A place that shows selected columns of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Tables at the end of a run.
    Terminal,
    /// Results of sweeps: of ranks the mean of times and the sum of bytes, of ranges the largest value of any rank.
    Sweep,
}

/// A value in a column.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// No value: it is unknown.
    Null,
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// A string.
    Text(String),
}

/// Type of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellType {
    /// Integers.
    Integer,
    /// Floating-point numbers.
    Float,
    /// True or false.
    Boolean,
    /// Strings.
    Text,
}

/// A row of a table whose columns are declared with `rows!`.
pub trait TableRow {
    /// Name of the table in files.
    const TABLE: &'static str;
    /// The table's columns, in order.
    const COLUMNS: &'static [Column];

    /// The values of the columns, in order.
    fn cells(&self) -> Vec<Cell>;
}

/// A value of a row's field.
pub(crate) trait Value {
    /// The value as a cell.
    fn cell(&self) -> Cell;
}

/// Declares rows of tables: structures whose fields are the columns. `#[column(KIND, TITLE, PLACE...)]` follows the doc
/// comment that describes the column.
macro_rules! rows {
    ($(
        $(#[doc = $about:literal])+
        pub struct $row:ident in $table:literal { $(
            $(#[doc = $line:literal])+
            #[column($kind:ident, $title:literal $(, $place:ident)*)]
            $(#[$more:meta])*
            pub $name:ident: $type:ty,
        )+ }
    )+) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
            pub struct $row { $(
                $(#[doc = $line])+
                $(#[$more])*
                pub $name: $type,
            )+ }

            impl $crate::column::TableRow for $row {
                const TABLE: &'static str = $table;
                const COLUMNS: &'static [$crate::column::Column] = &[$(
                    $crate::column::Column::new(
                        stringify!($name),
                        $title,
                        $crate::column::Kind::$kind,
                        concat!($($line, "\n"),+),
                    )
                    .shown_in(&[$($crate::column::Place::$place),*]),
                )+];

                fn cells(&self) -> Vec<$crate::column::Cell> {
                    vec![$($crate::column::Value::cell(&self.$name)),+]
                }
            }
        )+

        /// All tables: the name and the columns.
        pub const TABLES: &[(&str, &[$crate::column::Column])] =
            &[$(($table, <$row as $crate::column::TableRow>::COLUMNS)),+];
    };
}
pub(crate) use rows;

impl Column {
    /// A column that no table of the terminal has, nor the results of sweeps.
    pub(crate) const fn new(name: &'static str, title: &'static str, kind: Kind, lines: &'static str) -> Column {
        Column { name, title, kind, places: &[], summary: "", lines }
    }

    /// The column in a table with one value for all ranks: the sum of whole numbers, the mean of others.
    pub(crate) fn over_ranks(self) -> Column {
        let is_sum = self.kind.holds() == CellType::Integer;
        Column { summary: if is_sum { "Sum over the ranks." } else { "Mean over the ranks." }, ..self }
    }

    pub(crate) const fn shown_in(self, places: &'static [Place]) -> Column {
        Column { places, ..self }
    }

    /// Meaning of the column, as whole sentences.
    pub fn meaning(&self) -> String {
        self.summary.split_whitespace().chain(self.lines.split_whitespace()).collect::<Vec<_>>().join(" ")
    }

    /// Whether the place shows the column.
    pub fn is_in(&self, place: Place) -> bool {
        self.places.contains(&place)
    }
}

impl Kind {
    /// Unit of the values in files; empty if they have none.
    pub fn unit(self) -> &'static str {
        match self {
            Kind::Id | Kind::Text | Kind::Line | Kind::Flag | Kind::Count | Kind::Ratio | Kind::Number => "",
            Kind::Bytes => "B",
            Kind::ByteRate => "B/s",
            Kind::Seconds => "s",
            Kind::Picoseconds => "ps",
            Kind::Joules => "J",
            Kind::Flops => "FLOP",
            Kind::FlopRate => "FLOP/s",
            Kind::TokenRate => "tokens/s",
        }
    }

    /// Type of the cells.
    pub fn holds(self) -> CellType {
        match self {
            Kind::Id | Kind::Count | Kind::Bytes | Kind::Picoseconds => CellType::Integer,
            Kind::Text | Kind::Line => CellType::Text,
            Kind::Flag => CellType::Boolean,
            _ => CellType::Float,
        }
    }

    /// Kind of a column of floating-point numbers that a user has named: by the unit in the name, as columns of reports
    /// have it.
    pub fn of_name(name: &str) -> Kind {
        match name {
            _ if name.ends_with("per_s") => Kind::Number,
            _ if name.ends_with("_s") => Kind::Seconds,
            _ if name.ends_with("_j") => Kind::Joules,
            _ if name.contains("bytes") => Kind::Bytes,
            _ => Kind::Number,
        }
    }
}

impl Cell {
    /// The cell as a number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Cell::Integer(number) => Some(*number as f64),
            Cell::Float(number) => Some(*number),
            Cell::Null | Cell::Boolean(_) | Cell::Text(_) => None,
        }
    }

    /// The cell in CSV: an unknown value is empty.
    pub fn text(&self) -> String {
        match self {
            Cell::Null => String::new(),
            Cell::Integer(number) => number.to_string(),
            Cell::Float(number) => number.to_string(),
            Cell::Boolean(value) => value.to_string(),
            Cell::Text(text) => text.clone(),
        }
    }
}

impl Value for u32 {
    fn cell(&self) -> Cell {
        Cell::Integer((*self).into())
    }
}

impl Value for u64 {
    fn cell(&self) -> Cell {
        Cell::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl Value for f64 {
    fn cell(&self) -> Cell {
        Cell::Float(*self)
    }
}

impl Value for bool {
    fn cell(&self) -> Cell {
        Cell::Boolean(*self)
    }
}

impl Value for String {
    fn cell(&self) -> Cell {
        Cell::Text(self.clone())
    }
}

impl<T: Value> Value for Option<T> {
    fn cell(&self) -> Cell {
        self.as_ref().map_or(Cell::Null, Value::cell)
    }
}
