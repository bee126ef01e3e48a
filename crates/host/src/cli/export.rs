//! Owns the folder that a run's execution traces go to: their names, old ones removed, few files open. What is in them is
//! `uniference-formats`' business.

use super::cluster::ClusterArgs;
use super::replay::open_record;
use super::results::RECORD;
use crate::error::HostError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use uniference_formats::chakra::export::{ExportError, Exported, export as export_record};
use uniference_formats::record::RecordReader;
use uniference_sim::ids::RankId;

/// Traces are called `chakra.RANK.et`.
pub(super) const PREFIX: &str = "chakra";
/// The process groups, as ASTRA-sim reads them.
const GROUPS: &str = "comm_groups.json";
/// So much of a trace is written at once.
const CHUNK: usize = 1 << 16;

/// Are there traces of a run in this folder?
pub(super) fn has_traces(folder: &Path) -> bool {
    trace(folder, RankId(0)).is_file()
}

/// Writes the traces of the run whose results are in `run` into `out`, and says what they do not know.
pub(super) fn export(run: &Path, out: &Path) -> Result<(), HostError> {
    let path = run.join(RECORD);
    let (_, rest) = open(&path)?.by_rank();
    let lines = rest.finish()?;
    let record = open(&path)?;
    let manifest = record.header().manifest.clone();
    let ranks = record.header().world_size;
    let mut cluster = ClusterArgs::resolve_recorded(&path.display().to_string(), &manifest.cluster)?.cluster;
    cluster.dynamics.seed = manifest.seed;
    clear(out)?;
    let start = |rank| Ok(BufWriter::with_capacity(CHUNK, Appender::create(trace(out, rank))?));
    let exported = export_record(record, &cluster, &lines, start).map_err(failed(out))?;
    let groups = serde_json::to_string(&exported.groups).expect("names and numbers have a JSON form");
    fs::write(out.join(GROUPS), groups).map_err(|source| unwritable(&out.join(GROUPS), source))?;
    tell(&exported, ranks, out);
    Ok(())
}

fn tell(exported: &Exported, ranks: u32, out: &Path) {
    for warning in &exported.warnings {
        super::complain(format_args!("warning: {warning}\n"));
    }
    let (nodes, prefix) = (exported.nodes, out.join(PREFIX));
    super::complain(format_args!("traces: {}.RANK.et ({ranks} ranks, {nodes} nodes)\n", prefix.display()));
}

fn trace(folder: &Path, rank: RankId) -> PathBuf {
    folder.join(format!("{PREFIX}.{}.et", rank.0))
}

fn open(path: &Path) -> Result<RecordReader<BufReader<File>>, HostError> {
    Ok(RecordReader::open(BufReader::new(open_record(path)?))?)
}

/// Makes the folder. A smaller run must not leave ranks of a larger one behind.
fn clear(out: &Path) -> Result<(), HostError> {
    fs::create_dir_all(out).map_err(|source| unwritable(out, source))?;
    for entry in fs::read_dir(out).map_err(|source| unwritable(out, source))?.flatten() {
        let name = entry.file_name();
        let rank = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_prefix('.')?.strip_suffix(".et"));
        if rank.is_some_and(|rank| rank.parse::<u32>().is_ok()) {
            fs::remove_file(entry.path()).map_err(|source| unwritable(&entry.path(), source))?;
        }
    }
    Ok(())
}

fn unwritable(path: &Path, source: io::Error) -> HostError {
    let hint = "choose a folder that can be written";
    HostError::File { action: "write", path: path.to_owned(), source, hint }
}

fn failed(out: &Path) -> impl Fn(ExportError) -> HostError {
    move |error| match error {
        ExportError::Record(error) => error.into(),
        ExportError::Io(source) => unwritable(out, source),
        other => HostError::Usage(other.to_string()),
    }
}

/// A file that is open only while it is written to: there may be more ranks than a process may have files.
struct Appender(PathBuf);

impl Appender {
    fn create(path: PathBuf) -> io::Result<Appender> {
        File::create(&path)?;
        Ok(Appender(path))
    }
}

impl Write for Appender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        OpenOptions::new().append(true).open(&self.0)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
