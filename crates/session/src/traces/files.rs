//! Owns the files of execution traces: their paths, and reading with few open files.

use crate::cluster::show;
use crate::input;
use crate::notices::Notices;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uniference_formats::chakra::read::Reader;
use uniference_formats::units::counted;
use uniference_host::error::HostError;
use uniference_programs::astra::layers::{TextWorkload, is_text_workload};

/// Number of bytes that are read at once.
const CHUNK: u64 = 1 << 16;

/// Suffixes of the names of traces.
const SUFFIXES: [&str; 2] = [".et", ".et.gz"];

/// The placeholder for the rank in a pattern of trace names.
const RANK: &str = "%d";

/// Number of bytes at the start of a file that suffice to tell a text workload from a trace.
const BEGINNING: u64 = 256;

/// Source of the traces.
pub(super) enum Traces<'a> {
    Files {
        prefix: &'a Path,
        /// Paths of the traces by rank; `None`: one trace for all ranks.
        there: Option<Vec<PathBuf>>,
    },
    /// Traces generated from a text workload.
    Text { path: &'a Path, workload: Box<TextWorkload>, passes: u32 },
}

impl<'a> Traces<'a> {
    pub(super) fn find(prefix: &'a Path, passes: u32) -> Result<Traces<'a>, HostError> {
        if let Some(workload) = text_workload(prefix)? {
            return Ok(Traces::Text { path: prefix, workload: Box::new(workload), passes });
        }
        if passes > 1 {
            let hint = "remove --passes, or give a text workload";
            return Err(HostError::Usage(format!("--passes requires a text workload\nhint: {hint}")));
        }
        Ok(Traces::Files { prefix, there: of_all_ranks(prefix)? })
    }

    /// Readers of the traces of `ranks` ranks.
    pub(super) fn open(&self, ranks: usize, notices: &Notices) -> Result<Vec<Reader<Pieces>>, HostError> {
        let (path, made) = match self {
            Traces::Files { prefix, there } => {
                return files(prefix, there.as_deref(), ranks)?.iter().map(|file| open(file)).collect();
            }
            Traces::Text { path, workload, passes } => {
                (path, workload.traces(ranks as u64, *passes).map_err(in_file(path))?)
            }
        };
        made.warnings.iter().for_each(|warning| notices.warn(warning));
        let body: Arc<[u8]> = made.body().into();
        let reader = |rank| Reader::open(Pieces::Memory { head: made.head(rank), body: body.clone(), given: 0 });
        (0..ranks as u64).map(|rank| reader(rank).map_err(in_file(path))).collect()
    }
}

/// The text workload in a file, recognized by its first word or its name.
///
/// # Errors
/// If the file is a text workload that cannot be read.
pub fn text_workload(path: &Path) -> Result<Option<TextWorkload>, HostError> {
    let mut beginning = Vec::new();
    let Ok(file) = input::open(path) else { return Ok(None) };
    if file.take(BEGINNING).read_to_end(&mut beginning).is_err() {
        return Ok(None);
    }
    if !is_text_workload(&beginning) && path.extension().is_none_or(|extension| extension != "txt") {
        return Ok(None);
    }
    let text = input::text(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "a text workload must be text; the name of an execution trace ends in .et",
    })?;
    TextWorkload::parse(&path.display().to_string(), &text).map(Some).map_err(show)
}

/// The trace of each rank; `None` if there is one trace for all ranks.
fn of_all_ranks(prefix: &Path) -> Result<Option<Vec<PathBuf>>, HostError> {
    if prefix.is_file() {
        return Ok(None);
    }
    without_gaps(prefix).map(Some)
}

/// The traces with this prefix, in the order of their ranks.
///
/// # Errors
/// If there are no traces, the trace of a rank is missing, or a rank has two traces.
pub fn without_gaps(prefix: &Path) -> Result<Vec<PathBuf>, HostError> {
    let ranks = ranks_of(prefix)?;
    let Some((last, path)) = ranks.last_key_value() else {
        let first = name_of(prefix, 0);
        return Err(HostError::Usage(format!(
            "neither {} nor {} nor {} exists\nhint: give a run folder, the prefix of traces named PREFIX.RANK.et (or a pattern that has %d for the rank), or one trace for all ranks",
            prefix.display(),
            first.display(),
            with_suffix(&first, ".gz").to_string_lossy(),
        )));
    };
    match (0..*last).find(|rank| !ranks.contains_key(rank)) {
        Some(missing) => Err(HostError::Usage(format!(
            "trace {} is missing, but {} exists\nhint: ranks are numbered from 0 without gaps; add the missing traces, or remove those of another job",
            name_of(prefix, missing).display(),
            path.display(),
        ))),
        None => Ok(ranks.into_values().collect()),
    }
}

/// The traces named PREFIX.RANK.et or PREFIX.RANK.et.gz, by rank; for a pattern with `%d`, the traces with a rank in
/// place of `%d`.
///
/// # Errors
/// If a rank has two traces.
pub fn ranks_of(prefix: &Path) -> Result<BTreeMap<usize, PathBuf>, HostError> {
    let folder = prefix.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = prefix.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (start, ends) = match name.split_once(RANK) {
        Some((start, end)) => (start.to_owned(), vec![end.to_owned()]),
        None => (format!("{name}."), SUFFIXES.map(str::to_owned).to_vec()),
    };
    let rank_of = |name: &str| {
        let rank = ends.iter().find_map(|end| name.strip_prefix(&start)?.strip_suffix(end.as_str()))?;
        rank.parse::<usize>().ok().filter(|number| number.to_string() == rank)
    };
    let mut ranks = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let Some(rank) = rank_of(&entry.file_name().to_string_lossy()).filter(|_| entry.path().is_file()) else {
            continue;
        };
        if let Some(other) = ranks.insert(rank, entry.path()) {
            let mut both = [other.display().to_string(), entry.path().display().to_string()];
            both.sort();
            return Err(HostError::Usage(format!(
                "{} and {} are both traces of rank {rank}\nhint: remove one of them",
                both[0], both[1]
            )));
        }
    }
    Ok(ranks)
}

/// The prefix and the rank in a trace's name; `None` if the name has no rank.
pub fn prefix_and_rank(trace: &Path) -> Option<(PathBuf, u32)> {
    let name = trace.file_name()?.to_str()?;
    let stem = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix))?;
    let (prefix, rank) = stem.rsplit_once('.')?;
    let number = rank.parse::<u32>().ok().filter(|number| number.to_string() == rank)?;
    Some((trace.with_file_name(prefix), number))
}

/// The name of a rank's trace for messages; the prefix may be a pattern.
fn name_of(prefix: &Path, rank: usize) -> PathBuf {
    match prefix.to_string_lossy().split_once(RANK) {
        Some((start, end)) => format!("{start}{rank}{end}").into(),
        None => of_rank(prefix, rank),
    }
}

/// The path of one rank's trace.
pub fn of_rank(prefix: &Path, rank: impl Display) -> PathBuf {
    with_suffix(prefix, &format!(".{rank}.et")).into()
}

pub(super) fn with_suffix(prefix: &Path, suffix: &str) -> OsString {
    let mut name = prefix.as_os_str().to_owned();
    name.push(suffix);
    name
}

/// The trace of each rank.
fn files(prefix: &Path, there: Option<&[PathBuf]>, ranks: usize) -> Result<Vec<PathBuf>, HostError> {
    match there {
        None => Ok(vec![prefix.to_owned(); ranks]),
        Some(files) if files.len() == ranks => Ok(files.to_owned()),
        Some(files) => Err(HostError::Usage(format!(
            "the traces have {}, but the cluster has {}\nhint: use a cluster with one device per rank",
            counted(files.len(), "rank"),
            counted(ranks, "device")
        ))),
    }
}

pub(super) fn open(path: &Path) -> Result<Reader<Pieces>, HostError> {
    let pieces = FilePieces { path: path.to_owned(), offset: 0, piece: Vec::new(), given: 0 };
    Reader::open(Pieces::File(pieces)).map_err(in_file(path))
}

/// The bytes of a trace.
pub(super) enum Pieces {
    File(FilePieces),
    /// Bytes of one rank, followed by bytes that all ranks share.
    Memory {
        head: Vec<u8>,
        body: Arc<[u8]>,
        given: usize,
    },
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Pieces::File(file) => file.read(buffer),
            Pieces::Memory { head, body, given } => {
                let left = head.get(*given..).filter(|left| !left.is_empty());
                let left = left.unwrap_or_else(|| &body[*given - head.len()..]);
                let count = buffer.len().min(left.len());
                buffer[..count].copy_from_slice(&left[..count]);
                *given += count;
                Ok(count)
            }
        }
    }
}

/// A file that is open only while a piece of it is read, because ranks may outnumber the files that a process may open.
pub(super) struct FilePieces {
    path: PathBuf,
    offset: u64,
    piece: Vec<u8>,
    given: usize,
}

impl FilePieces {
    fn next_piece(&mut self) -> io::Result<()> {
        let mut file = input::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        self.piece.clear();
        self.given = 0;
        self.offset += file.take(CHUNK).read_to_end(&mut self.piece)? as u64;
        Ok(())
    }
}

impl Read for FilePieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.piece.len() {
            self.next_piece()?;
        }
        let count = buffer.len().min(self.piece.len() - self.given);
        buffer[..count].copy_from_slice(&self.piece[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

/// Adds the file's path to an error.
pub fn in_file<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> HostError {
    move |error| HostError::Usage(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let contents: Vec<u8> = (0..3 * CHUNK + 5).map(|index| (index % 251) as u8).collect();
        std::fs::write(&path, &contents).unwrap();
        let mut read = Vec::new();
        let mut pieces = FilePieces { path, offset: 0, piece: Vec::new(), given: 0 };
        pieces.read_to_end(&mut read).unwrap();
        assert!(read == contents);
    }
}
