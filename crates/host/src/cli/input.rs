//! Owns how files that a command reads are opened: regular files only, and texts of bounded size.
//!
//! A pipe or a device has no end that could be trusted: `/dev/zero` fills memory, and a FIFO without a writer hangs. What a file holds is
//! `uniference-formats`' business.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// No text that is read as a whole is longer, in bytes: cluster files, profiles, measurements, ASTRA-sim's inputs.
const LONGEST_TEXT: u64 = 64 << 20;
/// A profiler's trace is read as a whole, too.
const LONGEST_TRACE: u64 = 4 << 30;

/// Opens a regular file. Symbolic links are followed.
///
/// # Errors
/// Where it cannot be opened, or is something else.
pub(super) fn open(path: &Path) -> io::Result<File> {
    // A FIFO that nobody writes to would else block before it could be looked at.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(
            "it is not a regular file: write what comes from a pipe or a device into a file first",
        )),
    }
}

/// Reads all of a regular file that is not longer than `longest` bytes.
fn bounded(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(longest + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > longest {
        true => Err(io::Error::other(format!("it is longer than {} MiB", longest >> 20))),
        false => Ok(bytes),
    }
}

/// Reads a trace of a profiler's, which may be long.
///
/// # Errors
/// As [`open`], and where it is longer than 4 GiB.
pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    bounded(path, LONGEST_TRACE)
}

/// Reads a text.
///
/// # Errors
/// As [`open`], and where it is longer than 64 MiB or no UTF-8.
pub(super) fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(bounded(path, LONGEST_TEXT)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads a file whose size is bounded elsewhere: a recorded rank's, as long as its run.
///
/// # Errors
/// As [`open`], and where it is no UTF-8.
pub(super) fn long_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let [fifo, long, plain] = ["fifo", "long", "plain"].map(|name| dir.path().join(name));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        File::create(&long).unwrap().set_len(LONGEST_TEXT + 1).unwrap();
        std::fs::write(&plain, "text").unwrap();
        assert_eq!(text(&plain).unwrap(), "text");
        for path in [&fifo, dir.path(), Path::new("/dev/zero")] {
            let error = text(path).unwrap_err().to_string();
            assert!(error.contains("not a regular file") || error.contains("directory"), "{}: {error}", path.display());
        }
        assert!(text(&long).unwrap_err().to_string().contains("64 MiB"));
        assert!(open(&long).is_ok());
    }
}
