//! Owns the event stream as Parquet tables, one for each kind of event: gathering values, their encoding, and the
//! division of a table into parts.
//!
//! The caller decides where parts are stored ([`Parts`]), and when they are closed early.

use super::columns::{COMMON, Column, KINDS, Kind, Name, Type, Unit, VERSION};
use super::rows::{Cell, cells_of, kind_of};
use crate::sink::WriteError;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as PhysicalType};
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type as Schema, TypePtr};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use uniference_sim::event::{Event, Observer};
use uniference_sim::ids::Site;
use uniference_sim::time::SimTime;

/// Number of rows that are gathered before they are encoded: for a kind with twenty columns they need some 8 MB.
const ROWS: usize = 1 << 16;
/// Maximum number of events in a part of all tables together.
const MOST_IN_PART: usize = 1_000_000;
/// The latest time that a table can hold: columns of times are signed, so that differences may be negative.
const LATEST: u64 = i64::MAX as u64;
/// The key of the stream's version in a file's metadata.
const VERSION_KEY: &str = "uniference.events";

/// Storage of the parts of tables.
pub trait Parts {
    /// A part that is being written.
    type File: Write + Send;

    /// Starts a part of the table of a kind.
    ///
    /// # Errors
    /// If the part cannot be created.
    fn begin(&mut self, kind: &'static str) -> io::Result<Self::File>;

    /// Stores a complete part with this number in its table: from 0, without gaps.
    ///
    /// # Errors
    /// If the part cannot be stored.
    fn close(&mut self, kind: &'static str, number: u32, file: Self::File) -> io::Result<()>;
}

/// Gathers the events of a run, and writes them as tables. The first error is kept, and nothing is written after it.
pub struct TableWriter<P: Parts> {
    parts: P,
    /// Tables by [`Name`]; `None`: events of this kind are not written.
    tables: Vec<Option<Table<P::File>>>,
    /// Lines of the program that are not in their table yet, sorted: the order of their first use may depend on the
    /// host.
    lines: BTreeMap<Site, Box<str>>,
    /// Number of events since parts were closed.
    events: usize,
    error: Option<io::Error>,
}

/// The table of one kind of events.
struct Table<F: Write> {
    kind: &'static Kind,
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    columns: Vec<Values>,
    /// Number of rows that are gathered and not encoded yet.
    rows: usize,
    /// The open part of the table; `None`: no rows since the last part.
    part: Option<SerializedFileWriter<Noted<F>>>,
    /// The reason why a part could not be written.
    failure: Arc<OnceLock<Failure>>,
    /// Number of closed parts.
    closed: u32,
}

/// Gathered values of a column.
struct Values {
    data: Data,
    /// Parquet's definition levels, for a column whose values may be missing or are lists. A column of lists has one
    /// level for each element, and one for an empty list.
    levels: Vec<i16>,
    /// Parquet's repetition levels, for a column of lists: 0 at the start of a list.
    repeats: Vec<i16>,
    nullable: bool,
}

/// Values by type. Parquet's unsigned integers have the bits of signed ones.
enum Data {
    U32(Vec<i32>),
    U64(Vec<i64>),
    /// Texts, and the set of all different texts: there are few of them.
    Text(Vec<ByteArray>, FxHashMap<Box<str>, ByteArray>),
    U32s(Vec<i32>),
    U64s(Vec<i64>),
}

impl<P: Parts> TableWriter<P> {
    /// A writer of all kinds of events, of messages only if `messages` is set. `links` are the names of the network's
    /// links, by id.
    pub fn new<'a>(parts: P, messages: bool, links: impl IntoIterator<Item = &'a str>) -> TableWriter<P> {
        let table = |kind: &'static Kind| {
            // The stream's version is in the metadata of every file.
            let left_out =
                kind.name == Name::Stream.kind().name || (kind.name == Name::Message.kind().name && !messages);
            (!left_out).then(|| Table::new(kind))
        };
        let tables = KINDS.iter().map(table).collect();
        let mut writer = TableWriter { parts, tables, lines: BTreeMap::new(), events: 0, error: None };
        for (link, name) in (0..).zip(links) {
            writer.row(SimTime::ZERO, Name::Link, |put| [Cell::U32(link), Cell::Text(name)].into_iter().for_each(put));
        }
        writer
    }

    /// Names a line of the program.
    pub fn line(&mut self, site: Site, line: &str) {
        self.lines.insert(site, line.into());
    }

    /// Closes all parts that have rows.
    pub fn close_parts(&mut self) {
        for (site, line) in std::mem::take(&mut self.lines) {
            self.row(SimTime::ZERO, Name::Line, |put| [Cell::U32(site.0), Cell::Text(&line)].into_iter().for_each(put));
        }
        self.events = 0;
        for table in self.tables.iter_mut().flatten() {
            if self.error.is_none() && (table.rows > 0 || table.part.is_some()) {
                self.error = table.close(&mut self.parts).err();
            }
        }
    }

    /// Closes all parts. Kinds without events get a part without rows, so every table can be read.
    ///
    /// # Errors
    /// The first error of any part, even if it happened long ago.
    pub fn finish(&mut self) -> Result<(), WriteError> {
        self.close_parts();
        for table in self.tables.iter_mut().flatten() {
            if self.error.is_none() && table.closed == 0 {
                self.error = table.close(&mut self.parts).err();
            }
        }
        self.error.take().map_or(Ok(()), |source| Err(WriteError { what: "event tables", source }))
    }

    fn row(&mut self, at: SimTime, name: Name, cells: impl FnOnce(&mut dyn FnMut(Cell<'_>))) {
        let Some(table) = &mut self.tables[name as usize] else { return };
        if self.error.is_some() {
            return;
        }
        let mut columns = table.columns.iter_mut();
        let mut put = |cell: Cell<'_>| columns.next().expect("a kind has a column for each value").push(cell);
        put(Cell::U64(at.as_ps()));
        cells(&mut put);
        table.rows += 1;
        self.events += 1;
        if table.rows == ROWS {
            self.error = table.encode(&mut self.parts).err();
        }
    }
}

impl<P: Parts> Observer for TableWriter<P> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        if at.as_ps() > LATEST && self.error.is_none() {
            let problem = "virtual time has passed 2^63 ps (106 days), the largest number of the tables";
            self.error = Some(io::Error::new(io::ErrorKind::Unsupported, problem));
        }
        self.row(at, kind_of(event), |mut put| cells_of(event, &mut put));
        if self.events >= MOST_IN_PART {
            self.close_parts();
        }
    }

    fn wants_messages(&self) -> bool {
        self.tables[Name::Message as usize].is_some()
    }
}

impl<F: Write + Send> Table<F> {
    fn new(kind: &'static Kind) -> Table<F> {
        let columns = || columns_of(kind);
        let fields =
            columns().map(|column| Arc::new(field(column).expect("the table of columns is a schema"))).collect();
        let schema = Schema::group_type_builder(kind.name).with_fields(fields).build().expect("names differ");
        let version = KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_string());
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_key_value_metadata(Some(vec![version]));
        for column in columns().filter(|column| grows(column)) {
            let path = match column.data {
                Type::U32s | Type::U64s => {
                    ColumnPath::from([column.name, "list", "element"].map(str::to_owned).to_vec())
                }
                Type::U32 | Type::U64 | Type::Text => ColumnPath::from(column.name),
            };
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
        let columns = columns().map(Values::new).collect();
        let (schema, properties) = (Arc::new(schema), Arc::new(properties.build()));
        Table { kind, schema, properties, columns, rows: 0, part: None, failure: Arc::default(), closed: 0 }
    }

    /// Writes the gathered rows to the part.
    fn encode(&mut self, parts: &mut impl Parts<File = F>) -> io::Result<()> {
        let failure = Arc::clone(&self.failure);
        let disk = |error| disk(error, &failure);
        let part = match &mut self.part {
            Some(part) => part,
            none => {
                let file = Noted { file: parts.begin(self.kind.name)?, failure: Arc::clone(&self.failure) };
                let part = SerializedFileWriter::new(file, Arc::clone(&self.schema), Arc::clone(&self.properties));
                none.insert(part.map_err(disk)?)
            }
        };
        if std::mem::take(&mut self.rows) > 0 {
            let mut group = part.next_row_group().map_err(disk)?;
            for values in &mut self.columns {
                let mut column = group.next_column().map_err(disk)?.expect("the schema has the same columns");
                values.write(column.untyped()).and_then(|()| column.close()).map_err(disk)?;
            }
            group.close().map_err(disk)?;
        }
        Ok(())
    }

    /// Writes the gathered rows, and closes the part.
    fn close(&mut self, parts: &mut impl Parts<File = F>) -> io::Result<()> {
        self.encode(parts)?;
        let part = self.part.take().expect("it was just begun");
        let Noted { file, .. } = part.into_inner().map_err(|error| disk(error, &self.failure))?;
        parts.close(self.kind.name, self.closed, file)?;
        self.closed += 1;
        Ok(())
    }
}

/// The columns of a kind's table, without the column `event`.
fn columns_of(kind: &'static Kind) -> impl Iterator<Item = &'static Column> {
    COMMON.iter().take(1).chain(kind.columns)
}

/// Whether a column's values mostly differ little from the values before them, like times and counters. Other columns
/// have few different values, which are stored in a dictionary.
fn grows(column: &Column) -> bool {
    let counted = column.data == Type::U64 && column.unit == Unit::None;
    column.unit == Unit::Picoseconds || counted || matches!(column.name, "handle" | "handles")
}

/// The column in Parquet's schema. Columns whose values may be subtracted are signed: times, sizes.
fn field(column: &Column) -> Result<Schema, ParquetError> {
    let (physical, logical) = match column.data {
        Type::U32 | Type::U32s => (PhysicalType::INT32, Some(LogicalType::integer(32, false))),
        Type::U64 | Type::U64s => (PhysicalType::INT64, Some(LogicalType::integer(64, true))),
        Type::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let value = |name: &str, repetition: Repetition| {
        Schema::primitive_type_builder(name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical.clone())
            .build()
    };
    let repetition = if column.nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    if !matches!(column.data, Type::U32s | Type::U64s) {
        return value(column.name, repetition);
    }
    // The three levels of Parquet's specification of lists.
    let list = Schema::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(value("element", Repetition::REQUIRED)?)])
        .build()?;
    Schema::group_type_builder(column.name)
        .with_repetition(repetition)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list)])
        .build()
}

impl Values {
    fn new(column: &Column) -> Values {
        let data = match column.data {
            Type::U32 => Data::U32(Vec::new()),
            Type::U64 => Data::U64(Vec::new()),
            Type::Text => Data::Text(Vec::new(), FxHashMap::default()),
            Type::U32s => Data::U32s(Vec::new()),
            Type::U64s => Data::U64s(Vec::new()),
        };
        Values { data, levels: Vec::new(), repeats: Vec::new(), nullable: column.nullable }
    }

    fn push(&mut self, cell: Cell<'_>) {
        if let Cell::Null = cell {
            self.levels.push(0);
            if self.is_list() {
                self.repeats.push(0);
            }
            return;
        }
        let is_there = i16::from(self.nullable);
        match (&mut self.data, cell) {
            (Data::U32(values), Cell::U32(value)) => values.push(value.cast_signed()),
            (Data::U64(values), Cell::U64(value)) => values.push(value.cast_signed()),
            (Data::Text(values, _), Cell::Name(text)) => values.push(bytes::Bytes::from_static(text.as_bytes()).into()),
            (Data::Text(values, known), Cell::Text(text)) => match known.get(text) {
                Some(value) => values.push(value.clone()),
                None => {
                    let value = ByteArray::from(text);
                    known.insert(text.into(), value.clone());
                    values.push(value);
                }
            },
            (Data::U32s(values), Cell::U32s(list)) => {
                values.extend(list.iter().map(|value| value.cast_signed()));
                return self.push_list(list.len(), is_there);
            }
            (Data::U64s(values), Cell::U64s(list)) => {
                values.extend(list.iter().map(|value| value.cast_signed()));
                return self.push_list(list.len(), is_there);
            }
            (_, cell) => unreachable!("{cell:?} is of another type than its column"),
        }
        if self.nullable {
            self.levels.push(is_there);
        }
    }

    /// Adds the levels of a list that is not missing.
    fn push_list(&mut self, length: usize, is_there: i16) {
        self.repeats.push(0);
        self.levels.push(if length == 0 { is_there } else { is_there + 1 });
        for _ in 1..length {
            self.repeats.push(1);
            self.levels.push(is_there + 1);
        }
    }

    fn is_list(&self) -> bool {
        matches!(self.data, Data::U32s(_) | Data::U64s(_))
    }

    /// Writes all gathered values, and starts anew.
    fn write(&mut self, writer: &mut ColumnWriter<'_>) -> Result<(), ParquetError> {
        let is_list = self.is_list();
        let levels = (self.nullable || is_list).then_some(&*self.levels);
        let repeats = is_list.then_some(&*self.repeats);
        match (&mut self.data, writer) {
            (Data::U32(values) | Data::U32s(values), ColumnWriter::Int32ColumnWriter(writer)) => {
                batch::<Int32Type>(writer, values, levels, repeats)?;
            }
            (Data::U64(values) | Data::U64s(values), ColumnWriter::Int64ColumnWriter(writer)) => {
                batch::<Int64Type>(writer, values, levels, repeats)?;
            }
            (Data::Text(values, known), ColumnWriter::ByteArrayColumnWriter(writer)) => {
                known.clear();
                batch::<ByteArrayType>(writer, values, levels, repeats)?;
            }
            _ => unreachable!("the schema has the columns' types"),
        }
        self.levels.clear();
        self.repeats.clear();
        Ok(())
    }
}

fn batch<T: DataType>(
    writer: &mut ColumnWriterImpl<'_, T>,
    values: &mut Vec<T::T>,
    levels: Option<&[i16]>,
    repeats: Option<&[i16]>,
) -> Result<(), ParquetError> {
    writer.write_batch(values, levels, repeats)?;
    values.clear();
    Ok(())
}

/// An error of the operating system: its number, if it has one, and its kind.
type Failure = (Option<i32>, io::ErrorKind);

/// A file whose first error is kept: `parquet` returns some errors only as text.
struct Noted<F> {
    file: F,
    failure: Arc<OnceLock<Failure>>,
}

impl<F> Noted<F> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            self.failure.get_or_init(|| (error.raw_os_error(), error.kind()));
        })
    }
}

impl<F: Write> Write for Noted<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.note(flushed)
    }
}

/// The operating system's error, if there is one.
fn disk(error: ParquetError, failure: &OnceLock<Failure>) -> io::Error {
    match failure.get() {
        Some((Some(number), _)) => io::Error::from_raw_os_error(*number),
        Some((None, kind)) => (*kind).into(),
        None => io::Error::other(error),
    }
}
