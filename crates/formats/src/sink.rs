//! Owns writing during a run, when an error cannot be reported: the first error is kept, and nothing is written after
//! it.
//!
//! The caller decides what is written, and whether the run stops.

use std::io::{self, Write};

/// An error of a file that could not be written to its end. The file is incomplete.
#[derive(Debug, thiserror::Error)]
#[error("the {what} could not be written: {source}\nhint: {}", advice(source))]
pub struct WriteError {
    /// Name of the file's content: `trace`.
    pub what: &'static str,
    /// The operating system's error.
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free disk space, or choose another disk with --out"
        }
        io::ErrorKind::FileTooLarge => "raise the file size limit: ulimit -f unlimited",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "choose another folder with --out",
        io::ErrorKind::Unsupported => "use --record summary",
        _ => "check the run folder, or choose another one with --out",
    }
}

/// A writer that keeps its first error.
pub(crate) struct Sink<W> {
    what: &'static str,
    out: W,
    error: Option<io::Error>,
}

impl<W: Write> Sink<W> {
    pub(crate) fn new(what: &'static str, out: W) -> Sink<W> {
        Sink { what, out, error: None }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.out.write_all(bytes).err();
        }
    }

    /// Whether an error has been kept.
    pub(crate) fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// The writer, flushed, if everything was written.
    pub(crate) fn finish(mut self) -> Result<W, WriteError> {
        let error = self.error.take().or_else(|| self.out.flush().err());
        match error {
            Some(source) => Err(WriteError { what: self.what, source }),
            None => Ok(self.out),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A disk with space for this number of bytes.
    pub(crate) struct SmallDisk(pub(crate) usize);

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            if taken == 0 && !bytes.is_empty() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_an_error_at_the_end_and_nothing_follows_it() {
        let mut sink = Sink::new("trace", SmallDisk(5));
        sink.write(b"abc");
        assert!(!sink.failed());
        sink.write(b"defg");
        assert!(sink.failed());
        sink.write(b"");
        let error = sink.finish().err().unwrap().to_string();
        insta::assert_snapshot!(error, @r"
        the trace could not be written: no storage space
        hint: free disk space, or choose another disk with --out
        ");
    }
}
