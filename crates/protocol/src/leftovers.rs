//! Owns how a rank's processes tell the run what they have made that stays when they are killed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The environment variable that names the file at whose end they write it.
pub const VARIABLE: &str = "UNIFERENCE_LEFTOVERS";

/// Where shared memory has its names.
pub const SHARED: &str = "/dev/shm/";

/// Which file there was under a name: another one later is somebody else's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Left {
    /// Absolute path of the file.
    pub path: PathBuf,
    device: u64,
    inode: u64,
}

impl Left {
    /// What there is under that name now.
    pub fn there(path: &Path) -> Option<Left> {
        let known = fs::symlink_metadata(path).ok()?;
        Some(Left { path: path.to_owned(), device: known.dev(), inode: known.ino() })
    }

    /// Whether it still is.
    pub fn is_there(&self) -> bool {
        Left::there(&self.path).as_ref() == Some(self)
    }
}

/// What to write when something was made under that name. `None`: it is gone, or no line can say it.
pub fn line(path: &Path) -> Option<Vec<u8>> {
    let Left { path, device, inode } = Left::there(path)?;
    let path = path.as_os_str().as_bytes();
    let numbers = format!("{device} {inode} ");
    (!path.contains(&b'\n')).then(|| [numbers.as_bytes(), path, b"\n"].concat())
}

/// What was written, without lines that nobody has written so.
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
        // The file stays, so that no other one gets its number.
        fs::rename(&path, &kept).unwrap();
        fs::write(&path, "").unwrap();
        assert!(!left[0].is_there());
        assert_eq!(line(&folder.path().join("gone")), None);
    }
}
