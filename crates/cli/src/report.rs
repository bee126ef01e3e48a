//! Owns `uniference report`: the runs on a page, the data of each run, and the page's path. The page is defined in
//! `uniference_studies::page`, pictures of its charts in [`figures`].

mod figures;

use super::launch;
use super::replay::ReplayedArgs;
use figures::Browser;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use uniference_formats::report::Report;
use uniference_formats::table;
use uniference_formats::units::counted;
use uniference_session::export::has_traces;
use uniference_session::input;
use uniference_session::results::{RECORD, REPORT, TRACE};
use uniference_session::whole;
use uniference_session::{Ended, Exit, HostError, Output};
use uniference_studies::memory::Held;
use uniference_studies::page::{RunPage, Watched, render};

/// Maximum number of runs on a page.
const MOST_RUNS: usize = 8;

/// `uniference report`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Run folders, simulated or real; at most 8, shown side by side
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Write the page to this file, whose name ends in .html
    #[arg(long, value_name = "FILE.html")]
    out: PathBuf,
    /// Write each chart to this folder as SVG and PNG, too; requires Chromium or Chrome in PATH
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
}

/// Writes one HTML file that shows the runs.
pub(super) fn report(args: &Args, argv: &[OsString]) -> Result<Exit, HostError> {
    check(args)?;
    let browser = args.figures.as_ref().map(|_| Browser::find()).transpose()?;
    let mut pages = Vec::new();
    for (folder, name) in args.runs.iter().zip(names(&args.runs)) {
        match page(folder, name, argv)? {
            Ended::Finished(page) => pages.push(page),
            Ended::Stopped(stop) => return Ok(super::stopped(&stop)),
        }
    }
    let html = render(&pages);
    whole::write(&args.out, html.as_bytes()).map_err(|source| HostError::File {
        action: "write",
        path: args.out.clone(),
        source,
        hint: "choose a file in a writable folder with --out",
    })?;
    let (size, runs) = (table::bytes(html.len() as u64), counted(pages.len(), "run"));
    super::say(format_args!("page: {} ({runs}, {size})\n", args.out.display()))?;
    if let (Some(folder), Some(browser)) = (&args.figures, &browser) {
        let count = browser.take_pictures(&args.out, folder)?;
        super::say(format_args!("figures: {} ({}, each as SVG and PNG)\n", folder.display(), counted(count, "chart")))?;
    }
    Ok(Exit::Ok)
}

/// Checks the arguments before any run is simulated.
fn check(args: &Args) -> Result<(), HostError> {
    if args.runs.len() > MOST_RUNS {
        return Err(HostError::Usage(format!(
            "{} do not fit side by side on a page; at most {MOST_RUNS} do\nhint: write several pages",
            counted(args.runs.len(), "run")
        )));
    }
    // No file in a run folder has this extension, so none is overwritten.
    if args.out.extension().is_none_or(|ending| ending != "html") {
        return Err(HostError::Usage(format!(
            "the page is an HTML file, but the name {} does not end in .html\nhint: for example --out report.html",
            args.out.display()
        )));
    }
    Ok(())
}

/// Names of the runs on the page: their folders' names, or whole paths if folders have the same name.
fn names(runs: &[PathBuf]) -> Vec<String> {
    let last = |run: &PathBuf| run.canonicalize().ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let short: Vec<Option<String>> = runs.iter().map(last).collect();
    let name = |(run, name): (&PathBuf, &Option<String>)| match name {
        Some(name) if short.iter().filter(|other| other.as_ref() == Some(name)).count() == 1 => name.clone(),
        _ => run.display().to_string(),
    };
    runs.iter().zip(&short).map(name).collect()
}

/// A run with all data that are available in its folder.
fn page(folder: &Path, name: String, argv: &[OsString]) -> Result<Ended<RunPage>, HostError> {
    let path = folder.join(REPORT);
    let text = input::text(&path).map_err(|source| HostError::File {
        action: "read",
        path: path.clone(),
        source,
        hint: "give run folders of `uniference run`, `replay`, `workload --run` or `launch`",
    })?;
    let report = Report::from_json(&text).map_err(|error| HostError::Usage(format!("{}: {error}", path.display())))?;
    if let Some(failure) = &report.failure {
        let why = failure.lines().next().unwrap_or_default();
        let why = why.strip_prefix("error: ").unwrap_or(why);
        return Err(HostError::Usage(format!(
            "the run in {} did not finish ({why}): there is no page of it\nhint: {REPORT} and {TRACE} there show what happened until then",
            folder.display()
        )));
    }
    let mut page = RunPage { name, report, seen: None, what_if: None, missing: Vec::new() };
    // A real run has a program record, too, which serves simulations of its requests, and not its page.
    if folder.join("rank-0.jsonl").exists() {
        let merged = launch::read(folder)?;
        let mut watched = Watched::real(merged.devices().count());
        merged.tell(&mut watched);
        page.seen = Some(watched.finish(None, &Held::default()));
        page.missing.push("This is a real run: how busy its links were, what its operations need at least, its critical path and what changes would gain are not known.".to_owned());
    } else if folder.join(RECORD).exists() || has_traces(folder) {
        let output = |_: &_| Output { notices: super::notices(), ..Output::default() };
        let again = match ReplayedArgs::plain(folder.to_owned()).find(argv, output)?.seen()? {
            Ended::Finished(again) => again,
            Ended::Stopped(stop) => return Ok(Ended::Stopped(stop)),
        };
        if again.seen.makespan_ps != page.report.makespan_ps {
            page.missing.push(format!(
                "Simulated again from its record, the run takes {}, and its report says {}: timeline, links and what-if are those of the record.",
                table::seconds(again.seen.makespan_ps as f64 / 1e12),
                table::seconds(page.report.makespan_s)
            ));
        }
        page.seen = Some(again.seen);
        match again.what_if {
            Ok(what_if) => page.what_if = Some(what_if),
            Err(why) => page.missing.push(why),
        }
    } else {
        page.missing.push("The run's folder has no program record (--record summary, or ranks that stand for others): timeline, links, operations by size, memory over time and what-if are not known.".to_owned());
    }
    Ok(Ended::Finished(page))
}

#[cfg(test)]
mod tests;
