//! Owns the file in which a rank's processes record resources that outlive them if they are killed (sockets, shared
//! memory).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Environment variable with the path of the file to which processes append their shared resources.
pub const VARIABLE: &str = "UNIFERENCE_LEFTOVERS";

/// Folder of named shared memory.
pub const SHARED: &str = "/dev/shm/";

/// A file by path and inode: a later file of the same path is another program's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Left {
    /// Absolute path of the file.
    pub path: PathBuf,
    device: u64,
    inode: u64,
}

impl Left {
    /// The file that has this path now.
    pub fn there(path: &Path) -> Option<Left> {
        let known = fs::symlink_metadata(path).ok()?;
        Some(Left { path: path.to_owned(), device: known.dev(), inode: known.ino() })
    }

    /// Whether the path still belongs to this file.
    pub fn is_there(&self) -> bool {
        Left::there(&self.path).as_ref() == Some(self)
    }
}

/// Line to append after the file `path` was made. `None`: the file is gone, or its name contains a line break.
pub fn line(path: &Path) -> Option<Vec<u8>> {
    let Left { path, device, inode } = Left::there(path)?;
    let path = path.as_os_str().as_bytes();
    let numbers = format!("{device} {inode} ");
    (!path.contains(&b'\n')).then(|| [numbers.as_bytes(), path, b"\n"].concat())
}

/// The recorded files, without malformed lines.
pub fn read(lines: &[u8]) -> impl Iterator<Item = Left> {
    lines.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let (device, inode) = (number()?, number()?);
        let path = Path::new(OsStr::from_bytes(words.next()?));
        path.is_absolute().then(|| Left { path: path.to_owned(), device, inode })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_known_and_what_comes_after_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (path, kept) = (folder.path().join("a name"), folder.path().join("kept"));
        fs::write(&path, "").unwrap();
        let written = [line(&path).unwrap(), b"7 x /nowhere\n8 9 here\nnonsense".to_vec()].concat();
        let left: Vec<Left> = read(&written).collect();
        assert_eq!(left, [Left::there(&path).unwrap()]);
        assert!(left[0].is_there());
        // The file is kept under another name, so that no other file gets its inode.
        fs::rename(&path, &kept).unwrap();
        fs::write(&path, "").unwrap();
        assert!(!left[0].is_there());
        assert_eq!(line(&folder.path().join("gone")), None);
    }
}
