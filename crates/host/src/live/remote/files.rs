//! Owns the choice of files on the driver's machine that are sent to a worker (the Python files beneath the script's
//! folder and the files that its arguments name), and the translation of paths between both machines.

use crate::error::HostError;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uniference_formats::operators::with_lines;
use uniference_protocol::messages::Op;

/// Maximum number of files; a larger number suggests that the script lies in an unrelated folder.
const MOST_FILES: usize = 4096;

/// Maximum total size of the files, in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// The driver's files for a worker.
#[derive(Clone, Debug)]
pub struct Synced {
    /// The folder in which the command runs.
    pub(super) folder: PathBuf,
    /// Absolute paths; `None`: the worker already has the files and the folder.
    pub(super) files: Option<Vec<PathBuf>>,
}

impl Synced {
    /// Sends nothing: folder and files must exist on the workers under the same paths.
    ///
    /// # Errors
    /// If the current folder no longer exists.
    pub fn nothing() -> Result<Synced, HostError> {
        Ok(Synced { folder: here()?, files: None })
    }

    /// Collects the files for `words`, a script (or with `module` a module's name) and its arguments: all `*.py` in the
    /// script's folder and below (for a module, in the current folder), and each file that an argument names as `FILE`
    /// or as `--option=FILE`.
    ///
    /// If there are too many files, or they are too large.
    pub fn of(words: &[OsString], module: bool) -> Result<Synced, HostError> {
        let folder = here()?;
        let mut files = Vec::new();
        let top = match module {
            true => folder.clone(),
            false => {
                let script = folder.join(&words[0]);
                if script.is_dir() {
                    script
                } else {
                    files.push(script.clone());
                    script.parent().unwrap_or(&folder).to_owned()
                }
            }
        };
        python_files(&top, &mut files)?;
        for word in &words[1..] {
            let bytes = word.as_bytes();
            let value = bytes.iter().position(|byte| *byte == b'=').map_or(&bytes[..0], |at| &bytes[at + 1..]);
            let named = [bytes, value].map(|name| folder.join(OsStr::from_bytes(name)));
            files.extend(named.into_iter().filter(|path| path.is_file()));
        }
        let mut files: Vec<PathBuf> = files.iter().map(|path| plain(path)).collect();
        files.sort();
        files.dedup();
        let bytes: u64 = files.iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len()).sum();
        if bytes > MOST_BYTES {
            return Err(too_much(format!("{} MiB", bytes >> 20), &top));
        }
        Ok(Synced { folder, files: Some(files) })
    }
}

fn here() -> Result<PathBuf, HostError> {
    std::env::current_dir().map_err(HostError::system("finding the current folder"))
}

/// Python files below `folder`, except in virtual environments and hidden folders.
fn python_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), HostError> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        if ["pyvenv.cfg", "conda-meta"].iter().any(|name| folder.join(name).exists()) {
            continue;
        }
        // The script cannot import from folders that cannot be read either.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let hidden = name.as_bytes().starts_with(b".") || name == "__pycache__" || name == "site-packages";
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !hidden => folders.push(path),
                Ok(kind) if !kind.is_dir() && path.extension().is_some_and(|ext| ext == "py") && path.is_file() => {
                    files.push(path);
                }
                _ => {}
            }
        }
        if files.len() > MOST_FILES {
            return Err(too_much(format!("more than {MOST_FILES} Python files"), &folder));
        }
    }
    Ok(())
}

fn too_much(what: String, folder: &Path) -> HostError {
    HostError::Host {
        what: format!("{what} in and below {} would be sent to the workers", folder.display()),
        hint: "move the script to a folder of its own, or copy its files to the workers yourself and add --no-sync"
            .into(),
    }
}

/// Removes `.` and `..` from a path textually, so that the path is the same on both machines.
fn plain(path: &Path) -> PathBuf {
    use std::path::Component::{CurDir, ParentDir};
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            CurDir => {}
            ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

/// The path below `root` of a file of the driver's machine; `None`: the path would leave `root`.
pub(super) fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    use std::path::Component::{Normal, RootDir};
    let mut parts = path.components();
    let is_absolute = parts.next() == Some(RootDir);
    (is_absolute && parts.clone().all(|part| matches!(part, Normal(_)))).then(|| root.join(parts.as_path()))
}

/// Translates a path that the driver has sent, or `--option=` and such a path, to the path on this machine.
pub(super) fn localize_word(root: &Path, word: &mut serde_json::Value) {
    // Each byte is encoded as the character of that number.
    let Some(bytes) = word.as_str().map(|text| text.chars().map(|byte| byte as u8).collect::<Vec<u8>>()) else {
        return;
    };
    let value = bytes.iter().position(|byte| *byte == b'=').map_or(bytes.len(), |at| at + 1);
    for start in [0, value] {
        let here = below(root, Path::new(OsStr::from_bytes(&bytes[start..])));
        if let Some(here) = here.filter(|here| here.exists()) {
            let here = [&bytes[..start], here.as_os_str().as_bytes()].concat();
            *word = here.into_iter().map(char::from).collect::<String>().into();
            return;
        }
    }
}

/// Translates paths in operations to those of the driver's machine.
pub(super) fn name_as_there(root: Option<&Path>, ops: &mut [Op]) {
    for op in ops {
        match op {
            Op::Site(text) | Op::Warn(text) | Op::LacksValues(text) => *text = as_there(root, text),
            Op::LacksMemory(lack) => lack.line = as_there(root, &lack.line),
            Op::Dictionary { entries, .. } => *entries = with_lines(entries, |line| as_there(root, line)),
            _ => {}
        }
    }
}

/// Translates paths below `root` in a text to those of the driver's machine.
pub(super) fn as_there(root: Option<&Path>, text: &str) -> String {
    match root.and_then(Path::to_str) {
        Some(root) => text.replace(root, ""),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_files_beside_the_script_and_files_of_arguments_are_sent() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("p/.venv")).unwrap();
        fs::create_dir_all(path("p/pkg")).unwrap();
        for name in ["p/a.py", "p/pkg/b.py", "p/.venv/c.py", "p/notes.txt", "data.bin", "other.bin"] {
            fs::write(path(name), name).unwrap();
        }
        let data = format!("--data={}", path("p/../data.bin").display());
        let words = [path("p/a.py").into(), OsString::from("--steps=3"), data.into(), path("p").into()];
        let files = Synced::of(&words, false).unwrap().files.unwrap();
        assert_eq!(files, [path("data.bin"), path("p/a.py"), path("p/pkg/b.py")]);
    }

    #[test]
    fn a_file_never_lies_outside_of_the_root() {
        let below = |path: &str| below(Path::new("/mirror"), Path::new(path));
        assert_eq!(below("/home/a.py"), Some(PathBuf::from("/mirror/home/a.py")));
        assert_eq!((below("/home/../../a.py"), below("a.py")), (None, None));
    }

    /// Checks the translation of an argument for the worker, and of a line in that file for the driver.
    #[test]
    fn a_path_goes_to_the_worker_and_comes_back() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("home")).unwrap();
        fs::write(root.path().join("home/a.py"), "").unwrap();
        let there = |word: &str| {
            let mut word = word.into();
            localize_word(root.path(), &mut word);
            word.as_str().unwrap().to_owned()
        };
        let here = format!("{}/home/a.py", root.path().display());
        assert_eq!(there("/home/a.py"), here);
        assert_eq!(there("--data=/home/a.py"), format!("--data={here}"));
        assert_eq!(there("/home/b.py"), "/home/b.py");
        let mut ops = [Op::Site(format!("{here}:3")), Op::Site("a.py:3".to_owned()), Op::Now];
        name_as_there(Some(root.path()), &mut ops);
        assert_eq!(ops, [Op::Site("/home/a.py:3".to_owned()), Op::Site("a.py:3".to_owned()), Op::Now]);
        assert_eq!(as_there(None, &here), here);
    }
}
