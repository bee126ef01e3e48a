//! Owns the folder that a run's results go to: its name, whether it can be written, and writing to it.

use super::results::{EVENTS, RECORD, REPORT, TIMELINE, TRACE};
use crate::error::HostError;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

/// Where results go when nothing is said.
const DEFAULT: &str = "uniference-out";

/// A folder that can be written to.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// `out`, or else the next free `uniference-out/<script>-<n>`. Results of an earlier run in it are removed.
    pub(super) fn prepare(out: Option<&Path>, script: &str) -> Result<Folder, HostError> {
        let folder = match out {
            Some(path) => {
                fs::create_dir_all(path).map_err(|source| unwritable("create", path, source))?;
                Folder(path.to_owned())
            }
            None => Folder(next_free(Path::new(DEFAULT), &stem(script))?),
        };
        folder.remove_old_results()?;
        folder.probe()?;
        Ok(folder)
    }

    /// A folder that results are in.
    pub(super) fn open(path: &Path) -> Folder {
        Folder(path.to_owned())
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a whole file.
    pub(super) fn write(&self, name: &str, contents: &[u8]) -> Result<(), HostError> {
        let path = self.0.join(name);
        fs::write(&path, contents).map_err(|source| unwritable("write", &path, source))
    }

    /// A new file to write to.
    pub(super) fn create(&self, name: &str) -> Result<BufWriter<File>, HostError> {
        let path = self.0.join(name);
        File::create(&path).map(BufWriter::new).map_err(|source| unwritable("create", &path, source))
    }

    /// One line for people: where the results are, and what to do with them.
    pub(super) fn describe(&self) -> String {
        let path = self.0.display();
        match self.0.join(TRACE).exists() {
            true => format!("results: {path} (open {TRACE} at https://ui.perfetto.dev)"),
            false => format!("results: {path}"),
        }
    }

    /// Finds out before the run whether its results can be written.
    fn probe(&self) -> Result<(), HostError> {
        self.write(REPORT, b"")?;
        let path = self.0.join(REPORT);
        fs::remove_file(&path).map_err(|source| unwritable("remove", &path, source))
    }

    fn remove_old_results(&self) -> Result<(), HostError> {
        let entries = fs::read_dir(&self.0).map_err(|source| unwritable("read", &self.0, source))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(is_result) {
                fs::remove_file(entry.path()).map_err(|source| unwritable("replace", &entry.path(), source))?;
            }
        }
        Ok(())
    }
}

fn is_result(name: &str) -> bool {
    let of_rank = |rest: &'_ str| rest.strip_suffix(".log").or(rest.strip_suffix(".jsonl")).map(str::to_owned);
    let rank = name.strip_prefix("rank-").and_then(of_rank);
    rank.is_some_and(|rank| rank.parse::<u32>().is_ok()) || [REPORT, TRACE, RECORD, EVENTS, TIMELINE].contains(&name)
}

fn next_free(parent: &Path, stem: &str) -> Result<PathBuf, HostError> {
    fs::create_dir_all(parent).map_err(|source| unwritable("create", parent, source))?;
    for n in 1.. {
        let path = parent.join(format!("{stem}-{n}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unwritable("create", &path, error)),
        }
    }
    unreachable!("there are more numbers than folders")
}

fn stem(script: &str) -> String {
    Path::new(script).file_stem().map_or_else(|| "run".into(), |stem| stem.to_string_lossy().into_owned())
}

fn unwritable(action: &'static str, path: &Path, source: io::Error) -> HostError {
    let hint = match source.kind() {
        ErrorKind::StorageFull => "make room there, or choose another folder with --out",
        _ => "choose a folder that can be written with --out",
    };
    HostError::File { action, path: path.to_owned(), source, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_results_go_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["rank-3.log", "rank-x.log", "notes.txt", "trace.json"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        Folder::prepare(Some(dir.path()), "a.py").unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["notes.txt", "rank-x.log"]);
    }

    #[test]
    fn default_folders_are_numbered() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<_> = (0..2).map(|_| next_free(dir.path(), "a").unwrap()).collect();
        assert_eq!(names, [dir.path().join("a-1"), dir.path().join("a-2")]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_with_a_hint() {
        let error = Folder::prepare(Some(Path::new("/proc/nowhere/out")), "a.py").err().unwrap().to_string();
        assert!(error.contains("/proc/nowhere/out") && error.contains("--out"), "{error}");
    }
}
