//! Owns writing a run's execution traces into a folder: their names, and that few files are open. What is in them is
//! `uniference-formats`' business.

use super::cluster::ClusterArgs;
use super::folder::{Folder, unwritable};
use super::replay::open_record;
use super::results::RECORD;
use crate::error::HostError;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use uniference_formats::chakra::export::{ExportError, Exported, export as export_record};
use uniference_formats::record::RecordReader;
use uniference_sim::ids::RankId;

/// Traces are called `chakra.RANK.et`.
pub(super) const PREFIX: &str = "chakra";
/// The process groups, as ASTRA-sim reads them.
pub(super) const GROUPS: &str = "comm_groups.json";
/// So much of a trace is written at once.
const CHUNK: usize = 1 << 16;

/// Are there traces of a run in this folder?
pub(super) fn has_traces(folder: &Path) -> bool {
    trace(folder, RankId(0)).is_file()
}

/// Writes the traces of the run whose results are in `run` into a folder, and says what they do not know.
pub(super) fn export(run: &Path, folder: &Folder) -> Result<(), HostError> {
    let out = folder.path();
    let path = run.join(RECORD);
    let (_, rest) = open(&path)?.by_rank();
    let lines = rest.finish()?;
    let record = open(&path)?;
    let manifest = record.header().manifest.clone();
    let ranks = record.header().world_size;
    let mut cluster = ClusterArgs::resolve_recorded(&path.display().to_string(), &manifest.cluster)?.cluster;
    cluster.dynamics.seed = manifest.seed;
    let start = |rank| Ok(BufWriter::with_capacity(CHUNK, Appender::create(trace(out, rank))?));
    let exported = export_record(record, &cluster, &lines, start).map_err(failed(out))?;
    let groups = serde_json::to_string(&exported.groups).expect("names and numbers have a JSON form");
    folder.write(GROUPS, groups.as_bytes())?;
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

fn failed(out: &Path) -> impl Fn(ExportError) -> HostError {
    move |error| match error {
        ExportError::Record(error) => error.into(),
        ExportError::Io(source) => unwritable("write", out, source),
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
