//! Owns one database file: how it is opened, checked, written, read and merged.
//!
//! Writers lock the file and wait for one another. The uncommitted changes of a killed writer are undone by the next
//! process that opens the file: SQLite's rollback journal, which leaves one file when no process writes.

use super::{Row, Series};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// "UniD": marks operator databases.
const APPLICATION: i32 = 0x556e_6944;
/// Version of the schema, raised if a reader of the previous version would misread the file.
const VERSION: i32 = 1;
/// Longest wait of one writer for another.
const PATIENCE: Duration = Duration::from_secs(30);

const SCHEMA: &str = "
CREATE TABLE source (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    licence TEXT NOT NULL,
    notice TEXT NOT NULL
);
CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    device TEXT NOT NULL,
    software TEXT NOT NULL,
    family TEXT NOT NULL,
    variant TEXT NOT NULL,
    dtype TEXT NOT NULL,
    source INTEGER NOT NULL REFERENCES source (id),
    UNIQUE (device, software, family, variant, dtype, source)
);
CREATE TABLE measurement (
    series INTEGER NOT NULL REFERENCES series (id),
    operator TEXT NOT NULL,
    d0 INTEGER NOT NULL,
    d1 INTEGER NOT NULL,
    d2 INTEGER NOT NULL,
    d3 INTEGER NOT NULL,
    flops INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    microseconds REAL NOT NULL CHECK (microseconds > 0),
    spread REAL CHECK (spread >= 0),
    repetitions INTEGER NOT NULL CHECK (repetitions > 0),
    PRIMARY KEY (series, operator, d0, d1, d2, d3, flops, bytes)
) WITHOUT ROWID;
";

/// Origin of rows, and the terms of their use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// A repository at a commit, or a name for this machine.
    pub name: String,
    /// SPDX identifier; empty for the user's own measurements.
    pub licence: String,
    /// Text that the licence requires to be kept.
    pub notice: String,
}

impl Notice {
    /// The notice of rows that were measured on this machine.
    pub fn own(name: &str) -> Notice {
        Notice { name: name.to_owned(), licence: String::new(), notice: String::new() }
    }
}

/// Treatment of an existing row with the same series, definition, sizes and amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The new row replaces it.
    Replaces,
    /// The new row replaces it if it was measured more often.
    ReplacesIfSurer,
}

/// Reason that a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The file does not exist, or cannot be read.
    #[error("cannot open the operator database {}: {source}\nhint: give a file that `uniference devices import` or `uniference profile` has written", path.display())]
    File {
        /// The path of the database.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is no operator database.
    #[error("{} is not an operator database\nhint: give a file that `uniference devices import` or `uniference profile` has written", path.display())]
    Foreign {
        /// The path of the database.
        path: PathBuf,
    },
    /// The database has another version of the schema.
    #[error("the operator database {} has version {found} of its schema, but this program reads version {VERSION}\nhint: {}", path.display(), version_hint(*found))]
    Version {
        /// The path of the database.
        path: PathBuf,
        /// The version of its schema.
        found: i32,
    },
    /// The database is truncated or damaged.
    #[error("the operator database {} is damaged: {problem}\nhint: restore it from a copy, or delete it and import or profile again", path.display())]
    Damaged {
        /// The path of the database.
        path: PathBuf,
        /// The defect.
        problem: String,
    },
    /// Another process is writing.
    #[error("the operator database {} is locked by another process\nhint: wait until it has finished writing", path.display())]
    Busy {
        /// The path of the database.
        path: PathBuf,
    },
    /// The database cannot be written.
    #[error("cannot write the operator database {}: {problem}\nhint: check the folder's permissions and the free space of the disk", path.display())]
    Write {
        /// The path of the database.
        path: PathBuf,
        /// SQLite's error message.
        problem: String,
    },
}

fn version_hint(found: i32) -> &'static str {
    if found > VERSION { "update uniference" } else { "import or profile again with this version" }
}

/// An open database.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    path: PathBuf,
}

impl Database {
    /// Opens a file to read it.
    ///
    /// # Errors
    /// If the file does not exist, is no operator database, has another version of the schema, or is truncated or
    /// damaged.
    pub fn open(path: &Path) -> Result<Database, DatabaseError> {
        is_file(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|error| problem(path, error))?;
        let locked = connection.busy_timeout(PATIENCE).and_then(|()| {
            connection.execute_batch("BEGIN")?;
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
        });
        locked.map_err(|error| problem(path, error))?;
        // A read lock keeps writers out.
        check(&connection, path)?;
        connection.execute_batch("COMMIT").map_err(|error| problem(path, error))?;
        let database = Database { connection, path: path.to_owned() };
        database.series()?;
        Ok(database)
    }

    /// Opens a file to write it, and creates it and its folder if it is missing.
    ///
    /// # Errors
    /// As for [`Database::open`], and if it cannot be written.
    pub fn create(path: &Path) -> Result<Database, DatabaseError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let failed = |source| DatabaseError::File { path: path.to_owned(), source };
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        if path.exists() {
            is_file(path)?;
        }
        let mut connection = Connection::open(path).map_err(|error| problem(path, error))?;
        set_up(&mut connection, path)?;
        let database = Database { connection, path: path.to_owned() };
        database.series()?;
        Ok(database)
    }

    /// The database that is shipped with the program.
    ///
    /// # Panics
    /// Never: a test reads it.
    pub(super) fn shipped(bytes: &'static [u8]) -> Database {
        let mut connection = Connection::open_in_memory().expect("memory is there");
        connection.deserialize_read_exact("main", bytes, bytes.len(), true).expect("the shipped database is one");
        Database { connection, path: PathBuf::from("(shipped)") }
    }

    /// The path of the database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A hash of all rows, independent of the order in which they were written.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn hash(&self) -> Result<String, DatabaseError> {
        let mut hash = Sha256::new();
        for series in self.series()? {
            hash.update(format!("{series:?}"));
            self.rows(&series)?.iter().for_each(|row| hash.update(format!("{row:?}")));
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Adds rows of one series, all of them or none. Returns the number of new and replaced rows.
    ///
    /// # Errors
    /// If it cannot be written, or another process keeps it locked for half a minute.
    pub fn add(
        &mut self,
        series: &Series,
        notice: &Notice,
        rows: &[Row],
        repeat: Repeat,
    ) -> Result<usize, DatabaseError> {
        let path = self.path.clone();
        self.add_rows(series, notice, rows, repeat).map_err(|error| problem(&path, error))
    }

    fn add_rows(&mut self, series: &Series, notice: &Notice, rows: &[Row], repeat: Repeat) -> rusqlite::Result<usize> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let Notice { name, licence, notice } = notice;
        transaction.execute(
            "INSERT INTO source (name, licence, notice) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            params![name, licence, notice],
        )?;
        let source: i64 = transaction.query_row("SELECT id FROM source WHERE name = ?", [name], |row| row.get(0))?;
        let Series { device, software, family, variant, dtype, .. } = series;
        let columns = params![device, software, family, variant, dtype, source];
        transaction.execute(
            "INSERT INTO series (device, software, family, variant, dtype, source) VALUES (?, ?, ?, ?, ?, ?) \
             ON CONFLICT DO NOTHING",
            columns,
        )?;
        let id: i64 = transaction.query_row(
            "SELECT id FROM series WHERE device = ? AND software = ? AND family = ? AND variant = ? AND dtype = ? \
             AND source = ?",
            columns,
            |row| row.get(0),
        )?;
        let condition = match repeat {
            Repeat::Replaces => "",
            Repeat::ReplacesIfSurer => " WHERE excluded.repetitions > repetitions",
        };
        let mut added = 0;
        {
            let mut insert = transaction.prepare(&format!(
                "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET \
                 microseconds = excluded.microseconds, spread = excluded.spread, repetitions = excluded.repetitions\
                 {condition}"
            ))?;
            for row in rows {
                let [d0, d1, d2, d3] = row.dimensions.map(stored);
                let Row { operator, microseconds, spread, repetitions, .. } = row;
                let (flops, bytes) = (stored(row.flops), stored(row.bytes));
                added += insert.execute(params![
                    id,
                    operator,
                    d0,
                    d1,
                    d2,
                    d3,
                    flops,
                    bytes,
                    microseconds,
                    spread,
                    repetitions
                ])?;
            }
        }
        transaction.commit()?;
        Ok(added)
    }

    /// Adds all rows of another database, series by series. Returns the number of rows that are new or were measured
    /// more often than the existing ones.
    ///
    /// # Errors
    /// If either cannot be read, or this one not written.
    pub fn merge(&mut self, other: &Database) -> Result<usize, DatabaseError> {
        let notices = other.notices()?;
        let mut merged = 0;
        for series in other.series()? {
            let rows = other.rows(&series)?;
            let notice = notices.iter().find(|notice| notice.name == series.source).expect("series have a source");
            merged += self.add(&series, notice, &rows, Repeat::ReplacesIfSurer)?;
        }
        Ok(merged)
    }

    /// Releases the space of deleted rows.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn compact(&mut self) -> Result<(), DatabaseError> {
        self.connection.execute_batch("VACUUM").map_err(|error| self.problem(error))
    }

    /// All series, in their order.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn series(&self) -> Result<Vec<Series>, DatabaseError> {
        let query = "SELECT device, software, family, variant, dtype, source.name FROM series \
                     JOIN source ON source.id = series.source ORDER BY 1, 3, 4, 5, 2, 6";
        let read = || -> rusqlite::Result<Vec<Series>> {
            let mut statement = self.connection.prepare(query)?;
            let rows = statement.query_map([], |row| {
                Ok(Series {
                    device: row.get(0)?,
                    software: row.get(1)?,
                    family: row.get(2)?,
                    variant: row.get(3)?,
                    dtype: row.get(4)?,
                    source: row.get(5)?,
                })
            })?;
            rows.collect()
        };
        read().map_err(|error| self.problem(error))
    }

    /// All rows of a series, in the order of their definitions and sizes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn rows(&self, series: &Series) -> Result<Vec<Row>, DatabaseError> {
        let read = || -> rusqlite::Result<Vec<Row>> {
            let mut id = self.connection.prepare_cached(
                "SELECT series.id FROM series JOIN source ON source.id = series.source WHERE device = ? AND software = ? \
                 AND family = ? AND variant = ? AND dtype = ? AND source.name = ?",
            )?;
            let Series { device, software, family, variant, dtype, source } = series;
            let key = params![device, software, family, variant, dtype, source];
            let Some(id) = id.query_row(key, |row| row.get::<_, i64>(0)).optional()? else { return Ok(Vec::new()) };
            let mut statement = self.connection.prepare_cached(
                "SELECT operator, d0, d1, d2, d3, flops, bytes, microseconds, spread, repetitions FROM measurement \
                 WHERE series = ? ORDER BY operator, d0, d1, d2, d3, flops, bytes",
            )?;
            let rows = statement.query_map([id], |row| {
                let size = |index: usize| -> rusqlite::Result<u64> { Ok(row.get::<_, i64>(index)?.max(0) as u64) };
                Ok(Row {
                    operator: row.get(0)?,
                    dimensions: [size(1)?, size(2)?, size(3)?, size(4)?],
                    flops: size(5)?,
                    bytes: size(6)?,
                    microseconds: row.get(7)?,
                    spread: row.get(8)?,
                    repetitions: row.get(9)?,
                })
            })?;
            rows.collect()
        };
        read().map_err(|error| self.problem(error))
    }

    /// Origins of the rows.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn notices(&self) -> Result<Vec<Notice>, DatabaseError> {
        let read = || -> rusqlite::Result<Vec<Notice>> {
            let mut statement = self.connection.prepare("SELECT name, licence, notice FROM source ORDER BY name")?;
            let rows = statement
                .query_map([], |row| Ok(Notice { name: row.get(0)?, licence: row.get(1)?, notice: row.get(2)? }))?;
            rows.collect()
        };
        read().map_err(|error| self.problem(error))
    }

    /// Numbers of rows by device and family.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn counts(&self) -> Result<BTreeMap<(String, String), u64>, DatabaseError> {
        let query = "SELECT device, family, count(*) FROM measurement JOIN series ON series.id = measurement.series \
                     GROUP BY device, family";
        let read = || -> rusqlite::Result<BTreeMap<(String, String), u64>> {
            let mut statement = self.connection.prepare(query)?;
            let rows =
                statement.query_map([], |row| Ok(((row.get(0)?, row.get(1)?), row.get::<_, i64>(2)?.max(0) as u64)))?;
            rows.collect()
        };
        read().map_err(|error| self.problem(error))
    }

    fn problem(&self, error: rusqlite::Error) -> DatabaseError {
        problem(&self.path, error)
    }
}

/// A size in SQLite, which has 63 bits for non-negative integers.
fn stored(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Creates the tables, unless another process has.
fn set_up(connection: &mut Connection, path: &Path) -> Result<(), DatabaseError> {
    let failed = |error| problem(path, error);
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // An empty file is new: this transaction writes to it only when it is committed.
    if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return check(&transaction, path);
    }
    let made = || {
        transaction.execute_batch(SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()
    };
    made().map_err(failed)
}

/// # Errors
/// If the file is missing, or is a folder, a device or a pipe.
fn is_file(path: &Path) -> Result<(), DatabaseError> {
    let failed = |source| DatabaseError::File { path: path.to_owned(), source };
    match std::fs::metadata(path).map_err(failed)?.is_file() {
        true => Ok(()),
        false => Err(failed(std::io::Error::other("not a regular file"))),
    }
}

/// Checks the kind of the file, its version, and that it is complete. The file is locked, and must not be opened a
/// second time: closing it would release the process's lock (<https://www.sqlite.org/howtocorrupt.html>, 2.2).
fn check(connection: &Connection, path: &Path) -> Result<(), DatabaseError> {
    let number = |pragma: &str| {
        let value = connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0));
        value.map_err(|error| problem(path, error))
    };
    if number("application_id")? != i64::from(APPLICATION) {
        return Err(DatabaseError::Foreign { path: path.to_owned() });
    }
    let found = number("user_version")? as i32;
    if found != VERSION {
        return Err(DatabaseError::Version { path: path.to_owned(), found });
    }
    let said = number("page_count")? * number("page_size")?;
    let failed = |source| DatabaseError::File { path: path.to_owned(), source };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length < said.max(0) as u64 {
        let problem = format!("it has {length} of {said} bytes");
        return Err(DatabaseError::Damaged { path: path.to_owned(), problem });
    }
    Ok(())
}

fn problem(path: &Path, error: rusqlite::Error) -> DatabaseError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => DatabaseError::Busy { path },
        Some(ErrorCode::NotADatabase) => DatabaseError::Foreign { path },
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::DiskFull
            | ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::SystemIoFailure,
        ) => DatabaseError::Write { path, problem: error.to_string() },
        _ => DatabaseError::Damaged { path, problem: error.to_string() },
    }
}
