//! Owns the options of the run folder, and the output of a report.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::PathBuf;
use uniference_formats::report::Report;
use uniference_formats::table;
use uniference_session::folder::Folder;
use uniference_session::results::RECORD;
use uniference_session::{Ended, Exit, HostError, Notices, Output, RecordLevel, RunResults};

/// Files in addition to the report.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RecordArg {
    /// Write the program record, the trace, the tables of events, messages among them, and the event stream
    Full,
    /// Write the program record, the trace, and the tables of all events but messages
    Ops,
    /// Write only the report; for very large runs
    Summary,
}

impl From<RecordArg> for RecordLevel {
    fn from(record: RecordArg) -> RecordLevel {
        match record {
            RecordArg::Full => RecordLevel::Full,
            RecordArg::Ops => RecordLevel::Ops,
            RecordArg::Summary => RecordLevel::Summary,
        }
    }
}

/// Form in which a report is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Showing {
    /// A table, followed by the paths of other results.
    Table,
    /// JSON.
    Json,
    /// Only the report's warnings.
    Nothing,
}

impl Showing {
    /// The form for the options `--json` and `--quiet`; `--json` has precedence.
    pub(super) fn new(json: bool, quiet: bool) -> Showing {
        match (json, quiet) {
            (true, _) => Showing::Json,
            (false, true) => Showing::Nothing,
            (false, false) => Showing::Table,
        }
    }
}

/// Options of the run folder and its files, for all commands that simulate.
#[derive(clap::Args)]
pub(super) struct OutputArgs {
    /// Run folder [default: the next free uniference-out/NAME-N]
    #[arg(long, value_name = "RUN")]
    pub(super) out: Option<PathBuf>,
    /// Print only the report, as JSON, to standard output
    #[arg(long)]
    pub(super) json: bool,
    /// Files to write in addition to the report: for every event, for every operation (program record and trace), or
    /// none
    #[arg(long, value_enum, default_value_t = RecordArg::Ops)]
    pub(super) record: RecordArg,
}

impl OutputArgs {
    /// The options for a session. A run folder without a given path is named after `name`.
    pub(super) fn output(&self, name: &OsStr, notices: &Notices) -> Output {
        Output { folder: self.out.clone(), name: name.to_owned(), record: self.record.into(), notices: notices.clone() }
    }
}

/// Shows the result of a simulation; `headline` precedes the table.
pub(super) fn conclude(end: Ended<RunResults>, showing: Showing, headline: Option<String>) -> Result<Exit, HostError> {
    match end {
        Ended::Finished(RunResults { report, folder }) => {
            if let Some(headline) = headline.filter(|_| showing == Showing::Table) {
                super::say(format_args!("{headline}\n"))?;
            }
            show(&report, &folder, showing).map(|()| Exit::Ok)
        }
        Ended::Stopped(stop) => Ok(super::stopped(&stop)),
    }
}

/// Shows a report.
pub(super) fn show(report: &Report, folder: &Folder, showing: Showing) -> Result<(), HostError> {
    if showing == Showing::Json {
        return super::say(format_args!("{}", report.to_json()));
    }
    for warning in &report.warnings {
        super::complain(format_args!("warning: {warning}\n"));
    }
    if showing == Showing::Nothing {
        return Ok(());
    }
    super::say(format_args!("{}", table::render(report)))?;
    super::say(format_args!("{}\n", folder.describe()))?;
    let path = folder.path();
    if report.critical_path.is_some() && path.join(RECORD).exists() {
        let path = path.display().to_string();
        // A path without a null character can be quoted.
        let path = shlex::try_quote(&path).unwrap_or(Cow::Borrowed(&path));
        super::say(format_args!(
            "why, and what would change it: uniference explain {path}; uniference whatif {path}\n"
        ))?;
    }
    Ok(())
}
