//! Owns the run folder: its name, a check that it is writable, and writing to it.

use crate::lock::{LOCK, Lock, Writer};
use crate::names::{EVENTS, GROUPS, NATIVE_TRACE, PREFIX, RECORD, REPEATED, REPORT, TABLES, TIMELINE, TRACE};
use crate::notices::Notices;
use crate::whole;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use uniference_formats::events::columns::KINDS;
use uniference_host::error::{HostError, file_hint};

/// Parent of run folders without a given path.
const DEFAULT: &str = "uniference-out";

/// A writable folder; no other command writes to it while this exists.
pub struct Folder {
    path: PathBuf,
    _lock: Option<Lock>,
}

/// Purpose of a folder. Earlier results of the same kind are removed; any other file means that the folder is not a run
/// folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Results,
    Traces,
}

impl Folder {
    /// Creates `out`, or else the next free `uniference-out/<script>-<n>`. Results of an earlier run in `out` are
    /// removed.
    ///
    /// # Errors
    /// If another command writes to the folder, it has files that are not results, or it is not writable.
    pub fn prepare(out: Option<&Path>, script: &OsStr, notices: &Notices) -> Result<Folder, HostError> {
        Folder::prepare_for(out, script, Writer::Alone, notices)
    }

    /// As [`Folder::prepare`], for writers that may share the folder.
    ///
    /// # Errors
    /// As [`Folder::prepare`].
    pub fn prepare_for(
        out: Option<&Path>,
        script: &OsStr,
        writer: Writer<'_>,
        notices: &Notices,
    ) -> Result<Folder, HostError> {
        let path = match out {
            Some(path) => path.to_owned(),
            None => next_default(&stem(script))?,
        };
        let folder = Folder::claim(path, Kind::Results, writer, notices)?;
        folder.probe()?;
        Ok(folder)
    }

    /// A folder for execution traces. It may be the run folder itself, whose lock is already held.
    ///
    /// # Errors
    /// As [`Folder::prepare`].
    pub fn prepare_traces(out: &Path, run: Option<&Folder>, notices: &Notices) -> Result<Folder, HostError> {
        let same =
            |run: &Folder| run.path.canonicalize().is_ok_and(|run| out.canonicalize().is_ok_and(|out| out == run));
        if run.is_some_and(same) {
            return Ok(Folder { path: out.to_owned(), _lock: None });
        }
        Folder::claim(out.to_owned(), Kind::Traces, Writer::Alone, notices)
    }

    /// Opens an existing run folder to add files.
    ///
    /// # Errors
    /// If another command writes to the folder, or it is not writable.
    pub fn open(path: &Path, notices: &Notices) -> Result<Folder, HostError> {
        let lock = Lock::of_folder(path, Writer::Alone, notices)?;
        Ok(Folder { path: path.to_owned(), _lock: lock })
    }

    fn claim(path: PathBuf, kind: Kind, writer: Writer<'_>, notices: &Notices) -> Result<Folder, HostError> {
        let is_new = !path.exists();
        fs::create_dir_all(&path).map_err(|source| unwritable("create", &path, source))?;
        // Checks before the first write, and again for files that were created until the lock was held.
        check_foreign(&path)?;
        let lock = Lock::of_folder(&path, writer, notices)?;
        if !is_new && lock.as_ref().is_none_or(Lock::is_first) {
            check_foreign(&path)?;
            remove_old(&path, kind)?;
        }
        Ok(Folder { path, _lock: lock })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<(), HostError> {
        let path = self.path.join(name);
        whole::write(&path, contents).map_err(|source| unwritable("write", &path, source))
    }

    /// Takes all results of another folder except `without`: both folders then have them, as hard links if possible.
    ///
    /// # Errors
    /// If files cannot be read or written.
    pub(crate) fn take_over(&self, other: &Folder, without: &[&str]) -> Result<(), HostError> {
        for name in names(&other.path)? {
            let is_taken = |name: &str| (is_result(name) || name == TABLES) && !without.contains(&name);
            if !name.to_str().is_some_and(is_taken) {
                continue;
            }
            let (from, to) = (other.path.join(&name), self.path.join(&name));
            link(&from, &to).map_err(|source| unwritable("write", &to, source))?;
        }
        Ok(())
    }

    /// Creates a file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(&self, name: &str) -> Result<BufWriter<File>, HostError> {
        let path = self.path.join(name);
        File::create(&path).map(BufWriter::new).map_err(|source| unwritable("create", &path, source))
    }

    /// One line for the user: the path of the results, and what to do with them.
    pub fn describe(&self) -> String {
        let path = self.path.display();
        match self.path.join(TRACE).exists() {
            true => {
                format!("results: {path} (open {NATIVE_TRACE} at https://ui.perfetto.dev, or: uniference view {path})")
            }
            false => format!("results: {path}"),
        }
    }

    /// Checks before the run that its results can be written.
    fn probe(&self) -> Result<(), HostError> {
        self.write(REPORT, b"")?;
        let path = self.path.join(REPORT);
        fs::remove_file(&path).map_err(|source| unwritable("remove", &path, source))
    }
}

/// Links a file, or a folder with its contents, to another path; copies files that cannot be linked.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(|_| ()));
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        link(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

/// Refuses a folder with files that no command of Uniference writes.
fn check_foreign(folder: &Path) -> Result<(), HostError> {
    let mut names = names(folder)?;
    names.sort();
    for name in names {
        let found = match name.to_str() {
            Some(TABLES) => foreign_in_tables(&folder.join(TABLES))?,
            Some(known) if is_result(known) || is_trace(known) || is_ours(known) => None,
            _ => Some(folder.join(name)),
        };
        if let Some(foreign) = found {
            return Err(HostError::Usage(format!(
                "{} is not a run folder: it contains {}\nhint: choose a new or empty folder with --out",
                folder.display(),
                foreign.strip_prefix(folder).unwrap_or(&foreign).display()
            )));
        }
    }
    Ok(())
}

/// A path in the folder of event tables that is no event table; the folder's own path if it is not a folder.
fn foreign_in_tables(tables: &Path) -> Result<Option<PathBuf>, HostError> {
    let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    let is_kind = |name: &str| KINDS.iter().any(|kind| kind.name == name);
    if !is_folder(tables) {
        return Ok(Some(tables.to_owned()));
    }
    for name in names(tables)? {
        let path = tables.join(&name);
        let table = name.to_str().filter(|name| is_kind(name) && is_folder(&path));
        let unfinished = name.to_str().and_then(|name| name.strip_suffix(".part"));
        if table.is_none() && !unfinished.is_some_and(is_kind) {
            return Ok(Some(path));
        }
        for part in if table.is_some() { names(&path)? } else { Vec::new() } {
            let number = part.to_str().and_then(|part| part.strip_suffix(".parquet")?.parse::<u32>().ok());
            if number.is_none() {
                return Ok(Some(path.join(part)));
            }
        }
    }
    Ok(None)
}

fn remove_old(folder: &Path, kind: Kind) -> Result<(), HostError> {
    for name in names(folder)? {
        if kind == Kind::Results && name.to_str().is_some_and(is_repeated) {
            let run = folder.join(&name);
            remove_old(&run, kind)?;
            // A folder with files of the user stays.
            let _ = fs::remove_file(run.join(LOCK));
            let _ = fs::remove_dir(&run);
            continue;
        }
        let old = name.to_str().is_some_and(if kind == Kind::Results { is_result } else { is_trace });
        let path = folder.join(&name);
        let removed = match () {
            () if old => fs::remove_file(&path),
            () if kind == Kind::Results && name == TABLES && foreign_in_tables(&path)?.is_none() => {
                fs::remove_dir_all(&path)
            }
            () => Ok(()),
        };
        removed.map_err(|source| unwritable("replace", &path, source))?;
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<OsString>, HostError> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    entries.map_err(|source| unwritable("read", folder, source))
}

/// Whether a file is a run's result: report, timeline, records, logs of ranks and files of real ranks.
fn is_result(name: &str) -> bool {
    let of_rank = |rest: &'_ str| {
        let suffixes = [".log", ".jsonl", ".part"];
        suffixes.iter().find_map(|suffix| rest.strip_suffix(suffix)).map(str::to_owned)
    };
    let rank = name.strip_prefix("rank-").and_then(of_rank);
    rank.is_some_and(|rank| rank.parse::<u32>().is_ok())
        || [REPORT, TRACE, NATIVE_TRACE, RECORD, EVENTS, TIMELINE].contains(&name)
        || whole::unfinished(name).is_some_and(is_result)
}

/// Whether a file is an execution trace of a run, `chakra.RANK.et`, or the traces' groups.
fn is_trace(name: &str) -> bool {
    let rank = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".et"));
    rank.is_some_and(|rank| rank.parse::<u32>().is_ok()) || name == GROUPS
}

/// Whether a name belongs to the lock, to the folder that `uniference chakra export` makes next to the results, or to a
/// repeated run's folder.
fn is_ours(name: &str) -> bool {
    name == LOCK || name == PREFIX || is_repeated(name)
}

/// Whether a folder belongs to one of several runs.
fn is_repeated(name: &str) -> bool {
    name.strip_prefix(REPEATED).is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Creates the next free `uniference-out/NAME-N`.
pub(crate) fn next_default(name: &OsStr) -> Result<PathBuf, HostError> {
    next_free(Path::new(DEFAULT), name)
}

fn next_free(parent: &Path, stem: &OsStr) -> Result<PathBuf, HostError> {
    fs::create_dir_all(parent).map_err(|source| unwritable("create", parent, source))?;
    for n in 1.. {
        let mut name = stem.to_owned();
        name.push(format!("-{n}"));
        let path = parent.join(name);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unwritable("create", &path, error)),
        }
    }
    unreachable!("there are more numbers than folders")
}

fn stem(script: &OsStr) -> OsString {
    Path::new(script).file_stem().unwrap_or(OsStr::new("run")).to_owned()
}

/// Error for results that cannot be written.
pub(crate) fn unwritable(action: &'static str, path: &Path, source: io::Error) -> HostError {
    let hint = file_hint(&source);
    HostError::File { action, path: path.to_owned(), source, hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uniference_host::error::Exit;

    fn names_in(dir: &Path) -> Vec<OsString> {
        let mut left = names(dir).unwrap();
        left.sort();
        left
    }

    #[test]
    fn old_results_go_and_a_folder_with_other_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(dir.path().join(name), "x").unwrap();
        for name in ["rank-3.log", "rank-1.jsonl", "trace.json", "chakra.0.et", "comm_groups.json", LOCK] {
            write(name);
        }
        fs::create_dir(dir.path().join(PREFIX)).unwrap();
        let folder = Folder::prepare(Some(dir.path()), "a.py".as_ref(), &Notices::ignored()).unwrap();
        assert_eq!(names_in(dir.path()), [LOCK, "chakra", "chakra.0.et", "comm_groups.json"]);
        let error = Folder::prepare(Some(dir.path()), "a.py".as_ref(), &Notices::ignored()).err().unwrap().to_string();
        assert!(error.contains("another command is writing to"), "{error}");
        drop(folder);
        assert_eq!(names_in(dir.path()), ["chakra", "chakra.0.et", "comm_groups.json"]);
        for name in ["rank-x.log", "notes.txt", "train.py", "chakra.pt.et"] {
            write("report.json");
            write(name);
            for error in [
                Folder::prepare(Some(dir.path()), "a.py".as_ref(), &Notices::ignored()).err().unwrap(),
                Folder::prepare_traces(dir.path(), None, &Notices::ignored()).err().unwrap(),
            ] {
                assert!(error.exit() == Exit::Usage && error.to_string().contains(name), "{error}");
            }
            assert!(dir.path().join("report.json").exists());
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        // Event tables belong to a run; any other file among them is the user's.
        let tables = dir.path().join(TABLES);
        fs::create_dir_all(tables.join("waited")).unwrap();
        for name in ["waited/notes.txt", "waited/x.parquet", "notes", "others.part"] {
            fs::write(tables.join(name), "x").unwrap();
            let error =
                Folder::prepare(Some(dir.path()), "a.py".as_ref(), &Notices::ignored()).err().unwrap().to_string();
            assert!(error.contains(&format!("it contains events/{name}\n")), "{error}");
            fs::remove_file(tables.join(name)).unwrap();
        }
        fs::write(tables.join("waited/00001.parquet"), "x").unwrap();
        fs::write(tables.join("message.part"), "x").unwrap();
        drop(Folder::prepare(Some(dir.path()), "a.py".as_ref(), &Notices::ignored()).unwrap());
        assert!(!tables.exists());
        fs::write(&tables, "x").unwrap();
        assert!(Folder::prepare(Some(dir.path()), "a.py".as_ref(), &Notices::ignored()).is_err());
        fs::remove_file(&tables).unwrap();
        // Traces are written into the folder of an active run: its results stay.
        let run = Folder::prepare(Some(dir.path()), "a.py".as_ref(), &Notices::ignored()).unwrap();
        write("report.json");
        drop(Folder::prepare_traces(&dir.path().join("."), Some(&run), &Notices::ignored()).unwrap());
        assert_eq!(names_in(dir.path()), [LOCK, "chakra", "chakra.0.et", "comm_groups.json", "report.json"]);
    }

    #[test]
    fn default_folders_are_numbered() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<_> = (0..2).map(|_| next_free(dir.path(), "a".as_ref()).unwrap()).collect();
        assert_eq!(names, [dir.path().join("a-1"), dir.path().join("a-2")]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_with_a_hint() {
        let error = Folder::prepare(Some(Path::new("/proc/nowhere/out")), "a.py".as_ref(), &Notices::ignored())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("/proc/nowhere/out") && error.contains("--out"), "{error}");
    }
}
