//! Owns the output of ranks: whole lines from pipes, written to each rank's log and to the console.
//!
//! The console decides on the format of lines.

use crate::error::{HostError, file_hint};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// An output of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Longest line in bytes that is passed on as a whole: a rank that never ends its line must not fill the driver's
/// memory.
const LONGEST_LINE: usize = 64 << 20;

/// Number of bytes that are read at once.
const CHUNK: usize = 16 * 1024;

/// A pipe for one output of a rank.
pub struct Pipe {
    source: File,
    partial: Vec<u8>,
}

impl Pipe {
    /// Takes ownership of the read end.
    pub fn new(source: File) -> Pipe {
        Pipe { source, partial: Vec::new() }
    }

    /// The read end.
    pub fn source(&self) -> &File {
        &self.source
    }

    /// Reads once and passes whole lines, with their ends, to `line`. Returns false at the end of the pipe.
    pub fn read<E>(&mut self, line: impl FnMut(&[u8]) -> Result<(), E>) -> Result<bool, E> {
        let mut chunk = [0; CHUNK];
        let count = match self.source.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(true);
            }
            Err(_) => 0,
        };
        if count == 0 {
            self.end_line(line)?;
            return Ok(false);
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(&chunk[..count]);
        let whole = match chunk[..count].iter().rposition(|byte| *byte == b'\n') {
            Some(at) => before + at + 1,
            None if self.partial.len() > LONGEST_LINE => self.partial.len(),
            None => 0,
        };
        let lines: Vec<u8> = self.partial.drain(..whole).collect();
        lines.split_inclusive(|byte| *byte == b'\n').try_for_each(line)?;
        Ok(true)
    }
}

impl Pipe {
    /// Passes the current contents of the pipe to `line`, as [`Pipe::read`] does, including an unfinished line. Other
    /// processes that hold the write end may write more, which is not waited for.
    pub fn drain<E>(&mut self, mut line: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut left = rustix::io::ioctl_fionread(&self.source).unwrap_or_default();
        while left > 0 && self.read(&mut line)? {
            left = left.saturating_sub(CHUNK as u64);
        }
        self.end_line(line)
    }

    /// Ends a last line without a newline.
    fn end_line<E>(&mut self, mut line: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if self.partial.is_empty() {
            return Ok(());
        }
        self.partial.push(b'\n');
        line(&std::mem::take(&mut self.partial))
    }
}

/// The ranks' logs, `rank-N.log` in one folder; a rank without output has no log.
pub struct Logs {
    folder: PathBuf,
    files: Vec<Option<File>>,
}

impl Logs {
    /// Logs of `world_size` ranks.
    pub fn new(folder: &Path, world_size: u32) -> Logs {
        Logs { folder: folder.to_owned(), files: (0..world_size).map(|_| None).collect() }
    }

    /// Appends a line to a rank's log.
    pub fn append(&mut self, rank: u32, line: &[u8]) -> Result<(), HostError> {
        let path = || self.folder.join(format!("rank-{rank}.log"));
        let failed = |source| {
            let hint = file_hint(&source);
            HostError::File { action: "write", path: path(), source, hint }
        };
        let file = match &mut self.files[rank as usize] {
            Some(file) => file,
            none => none.insert(File::create(path()).map_err(failed)?),
        };
        file.write_all(line).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that are passed on if these parts are written one after the other.
    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let (source, sink) = rustix::pipe::pipe().unwrap();
        let (mut pipe, mut sink) = (Pipe::new(File::from(source)), File::from(sink));
        let mut seen = Vec::new();
        let mut read = |pipe: &mut Pipe| {
            pipe.read(|line| {
                seen.push(String::from_utf8_lossy(line).into_owned());
                Ok::<_, io::Error>(())
            })
        };
        for part in parts {
            sink.write_all(part).unwrap();
            assert!(read(&mut pipe).unwrap());
        }
        drop(sink);
        assert!(!read(&mut pipe).unwrap());
        seen
    }

    #[test]
    fn lines_come_out_whole_and_the_last_one_is_ended() {
        assert_eq!(lines(&[b"a\nb", b"c\n\nd"]), ["a\n", "bc\n", "\n", "d\n"]);
    }

    #[test]
    fn a_long_line_comes_out_whole() {
        let part = [b'x'; 16 * 1024];
        let out = lines(&[&part, &part, &part, &part, &part, b"\ny\n"]);
        assert_eq!(out, ["x".repeat(5 * part.len()) + "\n", "y\n".to_owned()]);
    }

    #[test]
    fn a_line_without_an_end_is_passed_on_in_parts() {
        let (source, sink) = rustix::pipe::pipe().unwrap();
        File::from(sink).write_all(b"x").unwrap();
        let mut pipe = Pipe { source: File::from(source), partial: vec![b'x'; LONGEST_LINE] };
        let mut seen = Vec::new();
        let open = pipe.read(|line| {
            seen.push(line.len());
            Ok::<_, io::Error>(())
        });
        assert_eq!((open.unwrap(), seen), (true, vec![LONGEST_LINE + 1]));
    }

    #[test]
    fn what_is_in_a_pipe_that_others_hold_open_comes_out() {
        let (source, sink) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&source, true).unwrap();
        let mut pipe = Pipe::new(File::from(source));
        let mut sink = File::from(sink);
        sink.write_all(&[b'x'; 3 * CHUNK]).unwrap();
        sink.write_all(b"\nlast").unwrap();
        let mut seen = Vec::new();
        let mut line = |line: &[u8]| {
            seen.push(line.len());
            Ok::<_, io::Error>(())
        };
        pipe.drain(&mut line).unwrap();
        pipe.drain(&mut line).unwrap();
        assert_eq!(seen, [3 * CHUNK + 1, 5]);
    }

    #[test]
    fn a_log_that_cannot_be_written_names_its_path() {
        let error = Logs::new(Path::new("/proc/nowhere"), 1).append(0, b"x\n").unwrap_err().to_string();
        assert!(error.contains("/proc/nowhere/rank-0.log") && error.contains("--out"), "{error}");
    }
}
