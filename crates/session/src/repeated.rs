//! Owns several runs of one program: a folder with the results of the median run, and the folders of all runs in it.

use crate::folder::Folder;
use crate::names::{REPEATED, REPORT};
use crate::results::Figures;
use crate::session::Session;
use std::path::PathBuf;
use uniference_formats::report::Report;
use uniference_formats::table::seconds;
use uniference_host::error::HostError;
use uniference_studies::interval::{OperatorSeconds, interval};

/// The finished runs of one program.
pub struct Repeated<'a> {
    folder: &'a Folder,
    runs: Vec<Run>,
}

struct Run {
    session: Session,
    report: Report,
    spreads: Vec<Vec<OperatorSeconds>>,
}

impl<'a> Repeated<'a> {
    /// No runs yet. `folder` gets the results, and a folder for each run.
    pub fn new(folder: &'a Folder) -> Repeated<'a> {
        Repeated { folder, runs: Vec::new() }
    }

    /// The folder of the next run.
    pub fn next(&self) -> PathBuf {
        self.folder.path().join(format!("{REPEATED}{}", self.runs.len() + 1))
    }

    /// Adds a finished run, and writes its report. Returns its makespan in seconds.
    ///
    /// # Errors
    /// If the report cannot be written.
    pub fn finished(&mut self, session: Session, figures: Figures) -> Result<f64, HostError> {
        let spreads = figures.costed.spreads.clone();
        let report = session.report(figures, Vec::new());
        session.write(&report)?;
        let makespan_s = report.makespan_s;
        self.runs.push(Run { session, report, spreads });
        Ok(makespan_s)
    }

    /// Ends the runs: the folder gets the files of the run with the median makespan (the lower one of two), and its
    /// report states the variation of the makespans.
    ///
    /// # Errors
    /// If a file cannot be written.
    ///
    /// # Panics
    /// If there was no run.
    pub fn conclude(mut self) -> Result<Report, HostError> {
        let makespans: Vec<f64> = self.runs.iter().map(|run| run.report.makespan_s).collect();
        let mut order: Vec<usize> = (0..makespans.len()).collect();
        order.sort_by(|a, b| makespans[*a].total_cmp(&makespans[*b]));
        let median = order[(order.len() - 1) / 2];
        let Run { session, mut report, spreads } = self.runs.swap_remove(median);
        let others: Vec<f64> = (0..makespans.len()).filter(|run| *run != median).map(|run| makespans[run]).collect();
        let uncertainty = session.resolved().uncertainty.clone().unwrap_or_default();
        report.interval = Some(interval(&report, &uncertainty, &others, &spreads));
        let [least, most] = [order[0], order[order.len() - 1]].map(|run| seconds(makespans[run]));
        let several = format!("the median of {} runs, of {least} to {most}", makespans.len());
        report.headline =
            Some(report.headline.take().map_or(several.clone(), |headline| format!("{several}; {headline}")));
        self.folder.take_over(session.folder(), &[REPORT])?;
        self.folder.write(REPORT, report.to_json().as_bytes())?;
        Ok(report)
    }
}
