//! Owns the databases that a run reads together: the shipped one, the user's own, and a named one.

use super::{Database, DatabaseError, Row, Series};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

static SHIPPED: &[u8] = include_bytes!("../../data/operators.sqlite");

/// Databases in the order in which they were added. The rows of all databases count; for the same operator, the last
/// database's row.
#[derive(Debug, Default)]
pub struct Databases {
    /// SQLite connections, each of which serves one thread at a time.
    files: Mutex<Vec<Database>>,
    series: Vec<(usize, Series)>,
    /// Devices whose rows are not used.
    left_out: Vec<String>,
    /// Hash of all rows, computed at its first use.
    version: OnceLock<String>,
}

impl Databases {
    /// No databases: estimates come from the rates of the device alone.
    pub fn none() -> Databases {
        Databases::default()
    }

    /// The shipped database, then the user's own if there is one, then `named`.
    ///
    /// # Errors
    /// If the user's own or the named one cannot be read.
    pub fn standard(user: Option<&Path>, named: Option<&Path>) -> Result<Databases, DatabaseError> {
        let mut files = vec![Database::shipped(SHIPPED)];
        if let Some(user) = user.filter(|user| user.exists()) {
            files.push(Database::open(user)?);
        }
        if let Some(named) = named {
            files.push(Database::open(named)?);
        }
        Databases::of(files)
    }

    /// A set of the given databases.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn of(files: Vec<Database>) -> Result<Databases, DatabaseError> {
        let mut series = Vec::new();
        for (index, file) in files.iter().enumerate() {
            series.extend(file.series()?.into_iter().map(|series| (index, series)));
        }
        Ok(Databases { files: Mutex::new(files), series, left_out: Vec::new(), version: OnceLock::new() })
    }

    /// Hashes of all databases for manifests, in their order; `none` for an empty set. Computing them reads all rows.
    ///
    /// # Panics
    /// If a database can no longer be read: it was checked when it was opened.
    pub fn version(&self) -> &str {
        self.version.get_or_init(|| {
            let hashes = self.each(|file| file.hash().unwrap_or_else(|error| panic!("{error}")));
            let version = if hashes.is_empty() { "none".to_owned() } else { hashes.join("+") };
            self.left_out.iter().fold(version, |version, device| format!("{version} without {device}"))
        })
    }

    /// These databases without the rows that were measured on `device`.
    #[must_use]
    pub fn without(mut self, device: &str) -> Databases {
        self.series.retain(|(_, series)| series.device != device);
        self.left_out.push(device.to_owned());
        self.version = OnceLock::new();
        self
    }

    /// The devices on which operators were measured.
    pub fn devices(&self) -> BTreeSet<&str> {
        self.series.iter().map(|(_, series)| series.device.as_str()).collect()
    }

    /// All series, each with the index of its database.
    pub(crate) fn series(&self) -> &[(usize, Series)] {
        &self.series
    }

    /// The rows of a series of database `index`.
    ///
    /// # Errors
    /// If it cannot be read any more.
    pub(crate) fn rows(&self, index: usize, series: &Series) -> Result<Vec<Row>, DatabaseError> {
        self.files.lock().expect("no reader panics")[index].rows(series)
    }

    /// Results of `of` for each database in turn; the path of a database is that of a file, or `(shipped)`.
    pub fn each<T>(&self, of: impl FnMut(&Database) -> T) -> Vec<T> {
        self.files.lock().expect("no reader panics").iter().map(of).collect()
    }
}

/// `$XDG_DATA_HOME/uniference/operators.sqlite`, by the values of `XDG_DATA_HOME` and `HOME`; `None`: neither is set.
pub fn user_file(xdg_data_home: Option<&Path>, home: Option<&Path>) -> Option<PathBuf> {
    // The specification ignores paths that are not absolute.
    let data = xdg_data_home.filter(|path| path.is_absolute()).map(Path::to_owned);
    let data = data.or_else(|| home.map(|home| home.join(".local/share")))?;
    Some(data.join("uniference/operators.sqlite"))
}
