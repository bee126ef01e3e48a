//! Owns the journal of a sweep: completed trials and their results, in one SQLite file. Recorded trials survive
//! `kill -9`; trials that are not recorded run again.

use rusqlite::types::Value as Stored;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uniference_formats::column::Cell;
use uniference_host::error::HostError;
use uniference_studies::sweep::Source;

/// Format version; raised if a reader of the previous version would misread the journal.
const VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE sweep (version INTEGER NOT NULL, identity TEXT NOT NULL);
CREATE TABLE trial (
    number INTEGER PRIMARY KEY,
    identity TEXT NOT NULL,
    record INTEGER,
    error TEXT,
    seconds REAL NOT NULL
);
CREATE TABLE figure (
    trial INTEGER NOT NULL REFERENCES trial (number) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value NOT NULL,
    PRIMARY KEY (trial, name)
) WITHOUT ROWID;
";

/// A completed trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Done {
    /// Identity of the trial.
    pub(super) identity: String,
    /// Duration on this machine, in seconds.
    pub(super) seconds: f64,
    /// Result of the trial, or the error if it failed.
    pub(super) outcome: Result<(Source, BTreeMap<String, Cell>), String>,
}

pub(super) struct Journal {
    connection: Connection,
    path: PathBuf,
}

impl Journal {
    /// Opens the journal of the sweep with this identity, or creates it.
    pub(super) fn open(path: &Path, identity: &str) -> Result<Journal, HostError> {
        let connection = Connection::open(path).map_err(|error| problem(path, &error))?;
        let journal = Journal { connection, path: path.to_owned() };
        let failed = |error: rusqlite::Error| problem(path, &error);
        journal.connection.execute_batch("PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL;").map_err(failed)?;
        let is_there = "SELECT 1 FROM sqlite_schema WHERE name = 'sweep'";
        let is_there = journal.connection.query_row(is_there, [], |_| Ok(())).optional().map_err(failed)?.is_some();
        if !is_there {
            let transaction = journal.connection.unchecked_transaction().map_err(failed)?;
            transaction.execute_batch(SCHEMA).map_err(failed)?;
            transaction.execute("INSERT INTO sweep VALUES (?1, ?2)", params![VERSION, identity]).map_err(failed)?;
            transaction.commit().map_err(failed)?;
            return Ok(journal);
        }
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
        let (version, found) =
            journal.connection.query_row("SELECT version, identity FROM sweep", [], read).map_err(failed)?;
        if version != VERSION || found != identity { Err(other(path)) } else { Ok(journal) }
    }

    /// Completed trials, by number.
    pub(super) fn done(&self) -> Result<BTreeMap<usize, Done>, HostError> {
        let read = || -> rusqlite::Result<BTreeMap<usize, Done>> {
            let mut figures: BTreeMap<i64, BTreeMap<String, Cell>> = BTreeMap::new();
            let mut statement = self.connection.prepare("SELECT trial, name, value FROM figure")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let cell = match row.get(2)? {
                    Stored::Integer(number) => Cell::Integer(number),
                    Stored::Real(number) => Cell::Float(number),
                    Stored::Text(text) => Cell::Text(text),
                    Stored::Null | Stored::Blob(_) => Cell::Null,
                };
                figures.entry(row.get(0)?).or_default().insert(row.get(1)?, cell);
            }
            let mut done = BTreeMap::new();
            let mut statement =
                self.connection.prepare("SELECT number, identity, record, error, seconds FROM trial")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let number: i64 = row.get(0)?;
                let record: Option<i64> = row.get(2)?;
                let source = record.map_or(Source::Run, |record| Source::Replay(record as usize));
                let outcome = match row.get::<_, Option<String>>(3)? {
                    Some(error) => Err(error),
                    None => Ok((source, figures.remove(&number).unwrap_or_default())),
                };
                done.insert(number as usize, Done { identity: row.get(1)?, seconds: row.get(4)?, outcome });
            }
            Ok(done)
        };
        read().map_err(|error| problem(&self.path, &error))
    }

    /// Adds a completed trial in one transaction.
    pub(super) fn add(&mut self, number: usize, done: &Done) -> Result<(), HostError> {
        let add = |connection: &mut Connection| -> rusqlite::Result<()> {
            let transaction = connection.transaction()?;
            let (record, error) = match &done.outcome {
                Ok((Source::Run, _)) => (None, None),
                Ok((Source::Replay(of), _)) => (Some(*of as i64), None),
                Err(error) => (None, Some(error)),
            };
            let row = params![number as i64, done.identity, record, error, done.seconds];
            transaction.execute("INSERT INTO trial VALUES (?1, ?2, ?3, ?4, ?5)", row)?;
            for (name, cell) in done.outcome.iter().flat_map(|(_, figures)| figures) {
                let value = match cell {
                    Cell::Null => continue,
                    Cell::Integer(number) => Stored::Integer(*number),
                    Cell::Float(number) => Stored::Real(*number),
                    Cell::Boolean(value) => Stored::Integer((*value).into()),
                    Cell::Text(text) => Stored::Text(text.clone()),
                };
                let row = params![number as i64, name, value];
                transaction.execute("INSERT INTO figure VALUES (?1, ?2, ?3)", row)?;
            }
            transaction.commit()
        };
        add(&mut self.connection).map_err(|error| problem(&self.path, &error))
    }

    /// Removes failed trials, so that they run again.
    pub(super) fn forget_failed(&mut self) -> Result<(), HostError> {
        let forgotten = self.connection.execute("DELETE FROM trial WHERE error IS NOT NULL", []);
        forgotten.map(|_| ()).map_err(|error| problem(&self.path, &error))
    }
}

/// Error for the journal of another sweep.
pub(super) fn other(path: &Path) -> HostError {
    HostError::Usage(format!(
        "{} has the results of another sweep: the file, its cluster, the program or this version of Uniference was another one\nhint: choose another folder with --out",
        path.parent().unwrap_or(path).display()
    ))
}

fn problem(path: &Path, error: &rusqlite::Error) -> HostError {
    HostError::Host {
        what: format!("cannot use the journal {}: {error}", path.display()),
        hint: "check the folder's permissions and the free space of the disk, or choose another folder with --out"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_reads_back_exactly() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.sqlite");
        let figures = BTreeMap::from([
            ("makespan_s".to_owned(), Cell::Float(0.1 + 0.2)),
            ("idle_s".to_owned(), Cell::Float(0.0)),
            ("bytes_sent".to_owned(), Cell::Integer(1 << 60)),
            ("digest".to_owned(), Cell::Text("00".to_owned())),
        ]);
        let done = |seconds, outcome| Done { identity: "i".to_owned(), seconds, outcome };
        let done = [
            (0, done(5.0, Ok((Source::Run, figures.clone())))),
            (3, done(0.25, Ok((Source::Replay(0), figures)))),
            (7, done(1.0, Err("error: x\nhint: y".to_owned()))),
        ];
        let mut journal = Journal::open(&path, "one").unwrap();
        done.iter().for_each(|(number, done)| journal.add(*number, done).unwrap());
        drop(journal);
        let mut again = Journal::open(&path, "one").unwrap();
        assert_eq!(again.done().unwrap(), BTreeMap::from(done.clone()));
        again.forget_failed().unwrap();
        assert_eq!(again.done().unwrap().into_keys().collect::<Vec<_>>(), [0, 3]);
        let other = Journal::open(&path, "two").err().unwrap().to_string();
        assert!(other.contains("another sweep") && other.contains("hint:"), "{other}");
    }
}
