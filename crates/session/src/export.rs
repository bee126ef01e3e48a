//! Owns the writing of a run's execution traces into a folder: their names, and writing with few open files. The format
//! is defined in `uniference-formats`.

use crate::cluster::ClusterOptions;
use crate::folder::{Folder, unwritable};
use crate::input::open_record;
use crate::notices::Notices;
use crate::results::{GROUPS, PREFIX, RECORD};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use uniference_formats::record::RecordReader;
use uniference_formats::units::counted;
use uniference_host::error::HostError;
use uniference_programs::chakra::export::{ExportError, export as export_record};
use uniference_sim::ids::RankId;
use uniference_studies::hazards::Hazards;

/// Number of trace bytes that are written at once.
const CHUNK: usize = 1 << 16;

/// Whether a folder contains traces of a run.
pub fn has_traces(folder: &Path) -> bool {
    trace(folder, RankId(0)).is_file()
}

/// Writes the traces of the run in the run folder `run` into a folder, and warns about information that traces lack.
///
/// # Errors
/// If `run` has no program record, or `folder` cannot be written to.
pub fn export(run: &Path, folder: &Folder, notices: &Notices) -> Result<(), HostError> {
    let out = folder.path();
    let path = run.join(RECORD);
    let (_, rest) = open(&path)?.by_rank();
    let lines = rest.finish()?;
    let record = open(&path)?;
    let manifest = record.header().manifest.clone();
    let ranks = record.header().world_size;
    let mut cluster = ClusterOptions::resolve_recorded(&path.display().to_string(), &manifest.cluster)?.cluster;
    cluster.dynamics.seed = manifest.seed;
    let start = |rank| Ok(BufWriter::with_capacity(CHUNK, Appender::create(trace(out, rank))?));
    let mut hazards = Hazards::default();
    let exported = export_record(record, &cluster, &lines, &mut hazards, start).inspect_err(|_| discard(out, ranks));
    let exported = exported.map_err(failed(out))?;
    let groups = serde_json::to_string(&exported.groups).expect("names and numbers have a JSON form");
    folder.write(GROUPS, groups.as_bytes())?;
    for warning in hazards.warnings(&lines) {
        notices.warn(&warning.to_string());
    }
    let (nodes, prefix) = (exported.nodes, out.join(PREFIX));
    notices.say(&format!(
        "traces: {}.RANK.et ({}, {})",
        prefix.display(),
        counted(ranks, "rank"),
        counted(nodes, "node")
    ));
    Ok(())
}

/// Removes incomplete traces. A trace that cannot be removed stays: the error that caused the removal is reported.
fn discard(folder: &Path, ranks: u32) {
    for rank in (0..ranks).map(RankId) {
        let _ = fs::remove_file(trace(folder, rank));
    }
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

/// A file that is open only while it is written to, because ranks may outnumber the files that a process may open.
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
