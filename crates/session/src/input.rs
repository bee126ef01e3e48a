//! Owns the opening of input files: regular files only, and texts of bounded size.
//!
//! Pipes and devices are refused, because they may never end: `/dev/zero` fills memory, and a FIFO without a writer
//! hangs. The formats are defined in `uniference-formats`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use uniference_host::error::HostError;

/// Maximum size in bytes of texts that are read as a whole: cluster files, profiles, measurements, ASTRA-sim's inputs.
const LONGEST_TEXT: u64 = 64 << 20;

/// Opens a regular file. Symbolic links are followed.
///
/// # Errors
/// If the file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Without NONBLOCK, opening a FIFO without a writer would block before its type can be checked.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file; write the output of a pipe or a device to a file first")),
    }
}

/// Opens the program record of a run.
///
/// # Errors
/// If the run has no record, or the record cannot be opened.
pub fn open_record(path: &Path) -> Result<File, HostError> {
    open(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "give a run folder of `uniference run` without --record summary",
    })
}

/// Reads a text file.
///
/// # Errors
/// As [`open`], and if the text is longer than 64 MiB or not UTF-8.
pub fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(path)?.take(LONGEST_TEXT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_TEXT {
        return Err(io::Error::other(format!("longer than {} MiB", LONGEST_TEXT >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text"))
}

/// Reads a text file without a size limit: a recorded rank's file is as long as its run.
///
/// # Errors
/// As [`open`], and if the text is not UTF-8.
pub fn long_text(path: &Path) -> io::Result<String> {
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
