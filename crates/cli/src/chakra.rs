//! Owns `uniference chakra`: opening and reading traces, and printing them. The trace format is defined in
//! `uniference-formats`.

use crate::standard::Output;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use uniference_formats::chakra::check::{Checked, check};
use uniference_formats::chakra::diff::diff;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::stats::Stats;
use uniference_formats::chakra::{ShowError, dot, json};
use uniference_formats::diagnostic::escaped;
use uniference_formats::units::counted;
use uniference_session::export;
use uniference_session::folder::Folder;
use uniference_session::input::open_record;
use uniference_session::results::{PREFIX, RECORD};
use uniference_session::traces::{self, in_file, of_rank, prefix_and_rank, text_workload, without_gaps};
use uniference_session::whole;
use uniference_session::{Exit, HostError};

/// `uniference chakra`.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Print statistics: nodes, durations and communication by type
    Stats {
        /// Execution traces, uncompressed or compressed with gzip
        #[arg(required = true, value_name = "TRACE")]
        traces: Vec<PathBuf>,
        /// Print JSON, one line per trace
        #[arg(long)]
        json: bool,
    },
    /// Print a trace as JSON, in the format of Chakra's own tools
    Json {
        /// Execution trace
        trace: PathBuf,
    },
    /// Check whether traces can be replayed: node ids, dependencies, attributes, process groups; exit code 2 if one cannot
    Check {
        /// Execution traces
        #[arg(required = true, value_name = "TRACE")]
        traces: Vec<PathBuf>,
        /// File of process groups, as for `uniference replay`
        #[arg(long, value_name = "FILE")]
        astra_comm_groups: Option<PathBuf>,
        /// Number of ranks of the job [default: number of traces PREFIX.RANK.et next to the trace]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        ranks: Option<u32>,
    },
    /// Print a trace as a graph in the DOT language of Graphviz
    Dot {
        /// Execution trace
        trace: PathBuf,
    },
    /// Print the differences between two traces; exit code 1 if there are any
    Diff {
        /// Execution trace
        first: PathBuf,
        /// Execution trace to compare with
        second: PathBuf,
    },
    /// Create traces from recordings of a real run: one profile per rank, with PyTorch's host traces if available
    Link(super::link::Args),
    /// Create traces from a text workload: the layer files of ASTRA-sim 1.0, Chakra's text converter and SimAI
    Convert {
        /// Text workload; its first word is the parallelization policy
        file: PathBuf,
        /// Prefix of the traces: PREFIX.RANK.et
        #[arg(long, value_name = "PREFIX")]
        out: PathBuf,
        /// Number of ranks [default: the workload's all_gpus]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        ranks: Option<u32>,
        /// Number of passes, forward and backward, over the layers
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        passes: u32,
    },
    /// Write the execution traces of a run: the operations of each rank as a graph
    Export {
        /// Run folder
        run: PathBuf,
        /// Folder for the traces, chakra.RANK.et [default: RUN/chakra]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Runs a command.
pub(super) fn command(command: &Command) -> Result<Exit, HostError> {
    match command {
        Command::Export { run, out } => {
            let out = out.clone().unwrap_or_else(|| run.join(PREFIX));
            // The record is opened before files are created or removed.
            drop(open_record(&run.join(RECORD))?);
            export::export(run, &Folder::prepare_traces(&out, None, &super::notices())?, &super::notices())
                .map(|()| Exit::Ok)
        }
        Command::Link(args) => super::link::link(args).map(|()| Exit::Ok),
        Command::Convert { file, out, ranks, passes } => convert(file, out, *ranks, *passes).map(|()| Exit::Ok),
        other => show(other, Escaping(BufWriter::new(Output))),
    }
}

fn show(command: &Command, mut out: impl Write) -> Result<Exit, HostError> {
    let shown = match command {
        Command::Stats { traces, json } => show_stats(traces, *json, &mut out),
        Command::Json { trace } => show_whole(trace, json::write, &mut out),
        Command::Check { traces, astra_comm_groups, ranks } => {
            check_all(traces, &Job { groups: astra_comm_groups.as_deref(), ranks: *ranks }, &mut out)
        }
        Command::Dot { trace } => show_whole(trace, dot::write, &mut out),
        Command::Diff { first, second } => show_diff(first, second, &mut out),
        Command::Export { .. } | Command::Link(_) | Command::Convert { .. } => unreachable!("they show nothing"),
    };
    match shown.and_then(|exit| Ok(out.flush().map(|()| exit)?)) {
        Ok(exit) => Ok(exit),
        Err(Failed::Output(source)) => Err(HostError::Output { source }),
        Err(Failed::Trace(error)) => Err(error),
    }
}

/// Escapes control characters in names from files. Each write must be complete UTF-8 text.
struct Escaping<W>(W);

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.0.write_all(escaped(&String::from_utf8_lossy(piece)).as_bytes())?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Reason why a command stops.
enum Failed {
    Trace(HostError),
    Output(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Output(error)
    }
}

impl From<HostError> for Failed {
    fn from(error: HostError) -> Failed {
        Failed::Trace(error)
    }
}

fn show_stats(traces: &[PathBuf], json: bool, out: &mut impl Write) -> Result<Exit, Failed> {
    for trace in traces {
        let stats = Stats::of(open(trace)?).map_err(in_file(trace))?;
        match json {
            true => serde_json::to_writer(&mut *out, &stats).map_err(io::Error::from)?,
            false => write!(out, "{}: {stats}", trace.display())?,
        }
        writeln!(out)?;
    }
    Ok(Exit::Ok)
}

/// Parts of a job's description that its traces lack.
struct Job<'a> {
    groups: Option<&'a Path>,
    /// Number of ranks of the job; `None`: the number of traces with this prefix.
    ranks: Option<u32>,
}

impl Job<'_> {
    /// Checks whether a replay would refuse the trace. Returns `false`, unchecked, if the job's number of ranks is
    /// unknown.
    fn rehearse(&self, trace: &Path) -> Result<bool, HostError> {
        let named = prefix_and_rank(trace);
        let ranks = match (self.ranks, &named) {
            (Some(ranks), _) => ranks,
            (None, Some((prefix, _))) => without_gaps(prefix)?.len() as u32,
            (None, None) => return Ok(false),
        };
        let own = match named {
            Some((_, rank)) if rank >= ranks => {
                return Err(HostError::Usage(format!(
                    "{} is the trace of rank {rank}, but the job has {}\nhint: ranks are numbered from 0; give the number of ranks with --ranks",
                    trace.display(),
                    counted(ranks as usize, "rank")
                )));
            }
            Some((_, rank)) => rank..rank + 1,
            // A trace without a rank in its name is replayed by all ranks.
            None => 0..ranks,
        };
        traces::check(trace, own, ranks, self.groups).map(|()| true)
    }
}

/// Checks all traces, even if one is refused.
fn check_all(traces: &[PathBuf], job: &Job<'_>, out: &mut impl Write) -> Result<Exit, Failed> {
    let mut exit = Exit::Ok;
    for trace in traces {
        let refused = match open(trace).and_then(|reader| check(reader).map_err(in_file(trace))) {
            Ok(checked) => {
                show_checked(trace, &checked, out)?;
                match job.rehearse(trace) {
                    Ok(true) => continue,
                    Ok(false) => {
                        writeln!(
                            out,
                            "  ranks and process groups are not checked: give the number of ranks with --ranks"
                        )?;
                        continue;
                    }
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        writeln!(out, "{refused}")?;
        exit = Exit::Usage;
    }
    Ok(exit)
}

fn show_checked(trace: &Path, checked: &Checked, out: &mut impl Write) -> io::Result<()> {
    let Checked { nodes, dependencies, findings } = checked;
    writeln!(out, "{}: {nodes} nodes, {dependencies} dependencies, no cycle", trace.display())?;
    for (finding, found) in findings {
        let more = if found.count > found.examples.len() as u64 { ", ..." } else { "" };
        writeln!(out, "  {}: {finding}: {}{more}", found.count, found.examples.join(", "))?;
    }
    Ok(())
}

fn show_diff(first: &Path, second: &Path, out: &mut impl Write) -> Result<Exit, Failed> {
    let mut failed = None;
    let mut write = |difference| {
        if failed.is_none() {
            failed = writeln!(out, "{difference}").err();
        }
    };
    let both = format!("{} or {}", first.display(), second.display());
    let count = diff(open(first)?, open(second)?, &mut write);
    match failed {
        Some(error) => Err(error.into()),
        None if count.map_err(in_file(Path::new(&both)))? == 0 => Ok(Exit::Ok),
        None => Ok(Exit::ProgramFailed),
    }
}

fn show_whole<W: Write>(
    trace: &Path,
    write: fn(Reader<File>, &mut W) -> Result<(), ShowError>,
    out: &mut W,
) -> Result<Exit, Failed> {
    match write(open(trace)?, out) {
        Ok(()) => Ok(Exit::Ok),
        Err(ShowError::Write(error)) => Err(error.into()),
        Err(ShowError::Read(error)) => Err(in_file(trace)(error).into()),
    }
}

/// Reads a text workload and writes a trace for each rank.
fn convert(file: &Path, out: &Path, ranks: Option<u32>, passes: u32) -> Result<(), HostError> {
    let Some(workload) = text_workload(file)? else {
        let hint = "the first word must be a policy, for example DATA or HYBRID_TRANSFORMER_FWD_IN_BCKWD";
        return Err(HostError::Usage(format!(
            "{} does not exist or is not a text workload\nhint: {hint}",
            file.display()
        )));
    };
    let Some(ranks) = ranks.map(u64::from).or(workload.parallelism.ranks) else {
        let hint = "give it with --ranks N";
        return Err(HostError::Usage(format!("{} does not give the number of ranks\nhint: {hint}", file.display())));
    };
    let made = workload.traces(ranks, passes).map_err(in_file(file))?;
    let body = made.body();
    for rank in 0..ranks {
        let path = of_rank(out, rank);
        whole::write(&path, &[made.head(rank), body.clone()].concat()).map_err(|source| HostError::File {
            action: "write",
            path,
            source,
            hint: "choose another prefix with --out",
        })?;
    }
    made.warnings.iter().for_each(|warning| super::complain(format_args!("warning: {warning}\n")));
    let nodes = made.nodes.len() + made.groups(0).len();
    super::complain(format_args!(
        "traces: {}.0.et to {}.et ({} each)\n",
        out.display(),
        ranks - 1,
        counted(nodes, "node")
    ));
    Ok(())
}

/// Opens a trace and reads its header.
fn open(path: &Path) -> Result<Reader<File>, HostError> {
    let file = uniference_session::input::open(path).map_err(|source| HostError::File {
        action: "read",
        path: path.to_owned(),
        source,
        hint: "execution traces are named PREFIX.RANK.et",
    })?;
    Reader::open(file).map_err(in_file(path))
}

#[cfg(test)]
mod tests;
