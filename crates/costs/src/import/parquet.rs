//! Owns reading rows of Parquet files.

use super::ImportError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Calls `each` with every row: the values of those of `columns` that the file has, in this order.
///
/// # Errors
/// If it is no Parquet file, is damaged, or lacks one of the `needed` columns, which come first.
pub(super) fn rows(
    path: &Path,
    needed: &[&str],
    others: &[&str],
    mut each: impl FnMut(&Values<'_>),
) -> Result<(), ImportError> {
    let wrong = |problem: String| ImportError::Source { path: path.to_owned(), problem };
    let reader = open(path)?;
    let schema = reader.metadata().file_metadata().schema();
    let fields: Vec<Arc<Type>> = schema.get_fields().to_vec();
    if let Some(missing) = needed.iter().find(|name| fields.iter().all(|field| field.name() != **name)) {
        return Err(wrong(format!("it has no column `{missing}`")));
    }
    let wanted = |field: &Arc<Type>| needed.contains(&field.name()) || others.contains(&field.name());
    let fields = fields.into_iter().filter(wanted).collect();
    let projection = Type::group_type_builder(schema.name()).with_fields(fields).build();
    let projection = projection.map_err(|error| wrong(error.to_string()))?;
    for row in reader.get_row_iter(Some(projection)).map_err(|error| wrong(error.to_string()))? {
        let row = row.map_err(|error| wrong(error.to_string()))?;
        each(&Values(row.get_column_iter().map(|(name, field)| (name.as_str(), field)).collect()));
    }
    Ok(())
}

/// The number of rows of a file.
///
/// # Errors
/// If it is no Parquet file.
pub(super) fn count(path: &Path) -> Result<usize, ImportError> {
    let rows = open(path)?.metadata().file_metadata().num_rows();
    Ok(usize::try_from(rows).unwrap_or_default())
}

fn open(path: &Path) -> Result<SerializedFileReader<File>, ImportError> {
    let file = File::open(path).map_err(|source| ImportError::File { path: path.to_owned(), source })?;
    let wrong = |error: parquet::errors::ParquetError| ImportError::Source {
        path: path.to_owned(),
        problem: error.to_string(),
    };
    SerializedFileReader::new(file).map_err(wrong)
}

/// A row: names of columns and their values.
pub(super) struct Values<'a>(Vec<(&'a str, &'a Field)>);

impl Values<'_> {
    fn field(&self, name: &str) -> Option<&Field> {
        self.0.iter().find(|(column, _)| *column == name).map(|(_, field)| *field)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.field(name)? {
            Field::Str(text) => Some(text),
            _ => None,
        }
    }

    /// A non-negative integer.
    pub(super) fn size(&self, name: &str) -> Option<u64> {
        match self.field(name)? {
            Field::Long(value) => u64::try_from(*value).ok(),
            Field::Int(value) => u64::try_from(*value).ok(),
            Field::Double(value) if value.fract() == 0.0 && *value >= 0.0 => Some(*value as u64),
            _ => None,
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        match self.field(name)? {
            Field::Double(value) => Some(*value),
            Field::Float(value) => Some(f64::from(*value)),
            Field::Long(value) => Some(*value as f64),
            _ => None,
        }
    }
}
