//! Owns the results of a sweep as a table: one row per trial, as CSV and as Parquet. `uniference-studies` fills the
//! columns.

use crate::column::{Cell, CellType, Kind};
use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type as Schema;
use std::sync::Arc;

/// A column of the results with its cells.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultColumn {
    /// The column's name.
    pub name: String,
    /// Kind of its values.
    pub kind: Kind,
    /// Type of its cells.
    pub holds: CellType,
    /// Its cells, one for each row.
    pub cells: Vec<Cell>,
}

/// A table of results, one row for each trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// The columns, all with the same number of cells.
    pub columns: Vec<ResultColumn>,
}

impl ResultColumn {
    /// A column of no unit, of the narrowest type that holds its cells.
    pub fn of(name: String, cells: Vec<Cell>) -> ResultColumn {
        let all = |fits: fn(&Cell) -> bool| cells.iter().all(|cell| *cell == Cell::Null || fits(cell));
        let holds = if all(|cell| matches!(cell, Cell::Integer(_))) {
            CellType::Integer
        } else if all(|cell| cell.number().is_some()) {
            CellType::Float
        } else if all(|cell| matches!(cell, Cell::Boolean(_))) {
            CellType::Boolean
        } else {
            CellType::Text
        };
        ResultColumn { name, kind: Kind::Number, holds, cells }
    }
}

impl Results {
    /// The column with this name.
    pub fn column(&self, name: &str) -> Option<&ResultColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The table as CSV, with a line of names; unknown values are empty. Numbers read back as the same numbers.
    ///
    /// # Panics
    /// Never.
    pub fn to_csv(&self) -> Vec<u8> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let write =
            |writer: &mut csv::Writer<Vec<u8>>, row: Vec<&str>| writer.write_record(row).expect("memory takes it");
        write(&mut writer, self.columns.iter().map(|column| &*column.name).collect());
        for row in 0..self.rows() {
            let cells: Vec<String> = self.columns.iter().map(|column| column.cells[row].text()).collect();
            write(&mut writer, cells.iter().map(|cell| &**cell).collect());
        }
        writer.into_inner().expect("memory takes it")
    }

    /// The table as a Parquet file.
    ///
    /// # Panics
    /// Never.
    pub fn to_parquet(&self) -> Vec<u8> {
        self.parquet().expect("memory takes it, and cells are of their columns' types")
    }

    fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }

    fn parquet(&self) -> Result<Vec<u8>, ParquetError> {
        let field = |column: &ResultColumn| {
            let (physical, logical) = match column.holds {
                CellType::Integer => (PhysicalType::INT64, None),
                CellType::Float => (PhysicalType::DOUBLE, None),
                CellType::Boolean => (PhysicalType::BOOLEAN, None),
                CellType::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            };
            let field = Schema::primitive_type_builder(&column.name, physical).with_repetition(Repetition::OPTIONAL);
            field.with_logical_type(logical).build().map(Arc::new)
        };
        let fields = self.columns.iter().map(field).collect::<Result<_, _>>()?;
        let schema = Arc::new(Schema::group_type_builder("sweep").with_fields(fields).build()?);
        let properties = Arc::new(WriterProperties::builder().set_compression(Compression::SNAPPY).build());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties)?;
        let mut group = writer.next_row_group()?;
        for column in &self.columns {
            let levels: Vec<i16> = column.cells.iter().map(|cell| i16::from(*cell != Cell::Null)).collect();
            let known = column.cells.iter().filter(|cell| **cell != Cell::Null);
            let mut writer = group.next_column()?.expect("the schema has the same columns");
            match writer.untyped() {
                ColumnWriter::Int64ColumnWriter(writer) => {
                    let values: Vec<i64> = known
                        .map(|cell| match cell {
                            Cell::Integer(number) => *number,
                            other => unreachable!("{other:?} among whole numbers"),
                        })
                        .collect();
                    writer.write_batch(&values, Some(&levels), None)?;
                }
                ColumnWriter::DoubleColumnWriter(writer) => {
                    let values: Vec<f64> = known.map(|cell| cell.number().expect("it is a number")).collect();
                    writer.write_batch(&values, Some(&levels), None)?;
                }
                ColumnWriter::BoolColumnWriter(writer) => {
                    let values: Vec<bool> = known.map(|cell| *cell == Cell::Boolean(true)).collect();
                    writer.write_batch(&values, Some(&levels), None)?;
                }
                ColumnWriter::ByteArrayColumnWriter(writer) => {
                    let values: Vec<ByteArray> = known.map(|cell| ByteArray::from(&*cell.text())).collect();
                    writer.write_batch(&values, Some(&levels), None)?;
                }
                _ => unreachable!("no column has another type"),
            }
            writer.close()?;
        }
        group.close()?;
        writer.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    #[test]
    fn both_formats_say_the_same() {
        let text = |text: &str| Cell::Text(text.to_owned());
        let results = Results {
            columns: vec![
                ResultColumn::of("ranks".into(), vec![Cell::Integer(2), Cell::Integer(4)]),
                ResultColumn::of("rate".into(), vec![text("1 Gbps"), Cell::Integer(3)]),
                ResultColumn::of("s".into(), vec![Cell::Float(0.1), Cell::Null]),
                ResultColumn::of("fast".into(), vec![Cell::Boolean(true), Cell::Null]),
                ResultColumn::of("error".into(), vec![Cell::Null, text("a, \"b\"\nc")]),
            ],
        };
        let csv = String::from_utf8(results.to_csv()).unwrap();
        assert_eq!(csv, "ranks,rate,s,fast,error\n2,1 Gbps,0.1,true,\n4,3,,,\"a, \"\"b\"\"\nc\"\n");
        let reader = SerializedFileReader::new(bytes::Bytes::from(results.to_parquet())).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!((rows[1].get_long(0).unwrap(), rows[0].get_double(2).unwrap()), (4, 0.1));
        assert_eq!((&**rows[1].get_string(1).unwrap(), rows[0].get_bool(3).unwrap()), ("3", true));
        assert!(rows[1].get_double(2).is_err());
        assert_eq!(&**rows[1].get_string(4).unwrap(), "a, \"b\"\nc");
    }
}
