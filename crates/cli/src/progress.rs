//! Owns the display of a simulation's progress: redrawn lines on a terminal, otherwise a few plain lines, and on
//! request a file for other programs.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uniference_formats::report::Report;
use uniference_formats::table::seconds;
use uniference_session::HostError;
use uniference_session::results::REPORT;
use uniference_sim::time::SimTime;

/// Maximum number of ranks with a line.
const MOST_RANKS: usize = 16;
/// Interval between updates of a terminal or a file.
const PERIOD: Duration = Duration::from_millis(200);
/// Time before the first plain line; the time doubles for each further line, up to `MOST_PATIENCE`.
const PATIENCE: Duration = Duration::from_secs(10);
const MOST_PATIENCE: Duration = Duration::from_secs(160);

/// Options of the progress display.
#[derive(clap::Args)]
pub(super) struct ProgressArgs {
    /// Show neither progress nor the table at the end: only what the program prints, warnings and errors
    #[arg(long)]
    pub(super) quiet: bool,
    /// Write the progress of the simulation to this file, five times per second, one JSON object per line
    #[arg(long, value_name = "FILE")]
    progress_to: Option<PathBuf>,
}

impl ProgressArgs {
    /// Starts the display, unless it is turned off. `expected` finds the number of operations of a similar earlier run.
    pub(super) fn start(&self, expected: impl FnOnce() -> Option<Expected>) -> Result<Option<Progress>, HostError> {
        let shown = match &self.progress_to {
            Some(path) => Shown::File(File::create(path).map_err(|source| HostError::File {
                action: "write",
                path: path.clone(),
                source,
                hint: "choose a writable file with --progress-to",
            })?),
            None if self.quiet => return Ok(None),
            None if io::stderr().is_terminal() => Shown::Terminal(Bars::new()),
            None => Shown::Lines(Pace::begin()),
        };
        let now = Instant::now();
        Ok(Some(Progress { shown, begun: now, last: now, first: None, expected: expected() }))
    }

    /// The default display, for commands without these options.
    pub(super) fn by_default() -> Option<Progress> {
        let plain = ProgressArgs { quiet: false, progress_to: None };
        plain.start(|| None).expect("no file is written")
    }
}

/// Number of operations of a similar earlier run.
pub(super) struct Expected {
    /// Process group operations, counted per member.
    operations: u64,
    /// Name of the run.
    run: String,
}

impl Expected {
    /// The number from the run in this folder, if it has a report.
    pub(super) fn of_run(folder: &Path) -> Option<Expected> {
        let report = Report::from_json(&fs::read_to_string(folder.join(REPORT)).ok()?).ok()?;
        let operations = report.operations.iter().map(|operation| operation.count).sum();
        let run = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        (operations > 0).then_some(Expected { operations, run })
    }

    /// The number from the latest run in `uniference-out` of the same program, with the same arguments and number of
    /// ranks.
    pub(super) fn of_earlier(name: &OsStr, script: &[OsString], ranks: usize) -> Option<Expected> {
        let prefix = format!("{}-", Path::new(name).file_stem()?.to_str()?);
        let number = |folder: &Path| folder.file_name()?.to_str()?.strip_prefix(&prefix)?.parse::<u64>().ok();
        let folders = fs::read_dir("uniference-out").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut runs: Vec<(u64, PathBuf)> = folders.filter_map(|folder| Some((number(&folder)?, folder))).collect();
        runs.sort();
        let words: Vec<String> = script.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let alike = |folder: &PathBuf| {
            let report = Report::from_json(&fs::read_to_string(folder.join(REPORT)).ok()?).ok()?;
            let has_ended = report.failure.is_none();
            (has_ended && report.manifest.command.ends_with(&words) && report.ranks.len() == ranks).then_some(())
        };
        // Runs that are still in progress are skipped: their run folders have no report.
        let latest = runs.iter().rev().map(|(_, folder)| folder).take(4).find(|folder| alike(folder).is_some())?;
        Expected::of_run(latest)
    }
}

/// State of one rank.
pub(super) struct RankLine {
    /// The rank's number.
    pub(super) rank: u32,
    /// `rank 1, clock 2.5 ms: waits for all_reduce (4 bytes, group 0), not entered by rank 0, at train.py:12`.
    pub(super) text: String,
}

/// State of a simulation.
pub(super) struct RunState {
    /// Virtual time.
    pub(super) at: SimTime,
    /// Completed operations, counted per member.
    pub(super) operations: u64,
    /// The first of the active ranks; empty if ranks cannot be queried.
    pub(super) ranks: Vec<RankLine>,
    /// Number of further active ranks.
    pub(super) more: usize,
}

/// The progress display.
pub(super) struct Progress {
    shown: Shown,
    begun: Instant,
    last: Instant,
    /// Time and number of operations when the first completed operations were observed.
    first: Option<(Instant, u64)>,
    expected: Option<Expected>,
}

enum Shown {
    Terminal(Bars),
    Lines(Pace),
    File(File),
}

/// Schedule of plain lines: after ten seconds, and then each time after twice as long, up to a limit.
pub(super) struct Pace {
    last: Instant,
    after: Duration,
}

impl Pace {
    /// A schedule that starts now.
    pub(super) fn begin() -> Pace {
        Pace { last: Instant::now(), after: PATIENCE }
    }

    /// Whether a line is due.
    pub(super) fn is_due(&self) -> bool {
        self.last.elapsed() >= self.after
    }

    /// Notes that a line was written.
    pub(super) fn told(&mut self) {
        *self = Pace { last: Instant::now(), after: (2 * self.after).min(MOST_PATIENCE) };
    }
}

/// Lines on a terminal: one for the run, then one per rank.
struct Bars {
    all: MultiProgress,
    head: ProgressBar,
    ranks: Vec<ProgressBar>,
}

impl Progress {
    /// Whether an update is due.
    pub(super) fn is_due(&self) -> bool {
        match &self.shown {
            Shown::Lines(pace) => pace.is_due(),
            Shown::Terminal(_) | Shown::File(_) => self.last.elapsed() >= PERIOD,
        }
    }

    /// Redraws the display.
    pub(super) fn show(&mut self, standing: &RunState) {
        self.last = Instant::now();
        if self.first.is_none() && standing.operations > 0 {
            self.first = Some((self.last, standing.operations));
        }
        let (host, left) = (self.begun.elapsed(), self.left(standing.operations));
        let head = self.head(standing, host, left);
        match &mut self.shown {
            Shown::Terminal(bars) => bars.draw(&head, standing),
            Shown::Lines(pace) => {
                pace.told();
                super::complain(format_args!("progress: {head}\n"));
                for line in texts(standing) {
                    super::complain(format_args!("  {line}\n"));
                }
            }
            Shown::File(file) => {
                let ranks = standing.ranks.iter().map(|line| json!({ "rank": line.rank, "text": line.text }));
                let told = json!({
                    "virtual_s": standing.at.as_secs_f64(),
                    "host_s": host.as_secs_f64(),
                    "operations": standing.operations,
                    "expected_operations": self.expected.as_ref().map(|expected| expected.operations),
                    "left_s": left.map(|left| left.as_secs_f64()),
                    "head": head,
                    "ranks": ranks.collect::<Vec<_>>(),
                    "more_ranks": standing.more,
                });
                // Write errors do not end the run.
                let _ = writeln!(file, "{told}");
            }
        }
    }

    /// Writes other output above the display.
    pub(super) fn aside(&self, write: impl FnOnce()) {
        match &self.shown {
            Shown::Terminal(bars) => bars.all.suspend(write),
            Shown::Lines(_) | Shown::File(_) => write(),
        }
    }

    /// Remaining real time, if operations continue at the same rate, up to the number of the earlier run.
    fn left(&self, operations: u64) -> Option<Duration> {
        let (since, first) = self.first?;
        let left = self.expected.as_ref()?.operations.checked_sub(operations)?;
        let done = operations.checked_sub(first).filter(|done| *done > 0)?;
        Some(since.elapsed().mul_f64(left as f64 / done as f64))
    }

    /// `1.5 s simulated in 30 s, 0.05 s a second; about 10 s left, by train-2`.
    fn head(&self, standing: &RunState, host: Duration, left: Option<Duration>) -> String {
        let rate = seconds(standing.at.as_secs_f64() / host.as_secs_f64().max(1e-9));
        let left = left
            .zip(self.expected.as_ref())
            .map(|(left, expected)| format!("; about {} left, by {}", coarse(left), expected.run));
        format!("{} simulated in {}, {rate} a second{}", standing.at, coarse(host), left.unwrap_or_default())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Terminal(bars) = &self.shown {
            // If the terminal is gone, no lines need to be cleared.
            let _ = bars.all.clear();
        }
    }
}

impl Bars {
    fn new() -> Bars {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let head = all.add(ProgressBar::no_length().with_style(style("{spinner} {wide_msg}")));
        head.set_message("starting Python and torch");
        head.tick();
        Bars { all, head, ranks: Vec::new() }
    }

    fn draw(&mut self, head: &str, standing: &RunState) {
        let lines: Vec<String> = texts(standing).collect();
        while self.ranks.len() < lines.len() {
            self.ranks.push(self.all.add(ProgressBar::no_length().with_style(style("  {wide_msg}"))));
        }
        for bar in self.ranks.drain(lines.len()..) {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
        self.head.set_message(head.to_owned());
        self.head.tick();
        for (bar, line) in self.ranks.iter().zip(lines) {
            bar.set_message(line);
            bar.tick();
        }
    }
}

/// One line per rank, and one for the number of further ranks.
fn texts(standing: &RunState) -> impl Iterator<Item = String> + '_ {
    let more = (standing.more > 0).then(|| format!("and {} more ranks", standing.more));
    let escaped = |line: &RankLine| uniference_formats::diagnostic::escaped(&line.text).into_owned();
    standing.ranks.iter().map(escaped).chain(more)
}

/// Lines of the first ranks, and the number of further ranks.
pub(super) fn first_ranks<T>(ranks: Vec<T>, line: impl Fn(T) -> RankLine) -> (Vec<RankLine>, usize) {
    let more = ranks.len().saturating_sub(MOST_RANKS);
    (ranks.into_iter().take(MOST_RANKS).map(line).collect(), more)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a template without errors")
}

/// `4 s`, `2 min`: a rounded duration.
pub(super) fn coarse(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds @ ..10.0 => format!("{seconds:.1} s"),
        seconds @ ..120.0 => format!("{seconds:.0} s"),
        seconds @ ..7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(expected: Option<u64>, begun: Duration, first: Option<(Duration, u64)>) -> Progress {
        let ago = |passed: Duration| Instant::now().checked_sub(passed).unwrap();
        Progress {
            shown: Shown::Lines(Pace::begin()),
            begun: ago(begun),
            last: ago(begun),
            first: first.map(|(passed, operations)| (ago(passed), operations)),
            expected: expected.map(|operations| Expected { operations, run: "train-2".to_owned() }),
        }
    }

    fn head(progress: &Progress, operations: u64) -> String {
        let standing = RunState { at: SimTime::from_ps(2_000_000_000_000), operations, ranks: Vec::new(), more: 0 };
        progress.head(&standing, Duration::from_secs(40), progress.left(operations))
    }

    #[test]
    fn what_is_left_follows_from_an_earlier_run() {
        let seconds = Duration::from_secs;
        // 300 of 400 operations took 30 s.
        let known = progress(Some(500), seconds(40), Some((seconds(30), 100)));
        assert_eq!(head(&known, 400), "2.000 s simulated in 40 s, 50.000 ms a second; about 10 s left, by train-2");
        let unknown = [
            (progress(None, seconds(40), Some((seconds(30), 100))), 400),
            (progress(Some(500), seconds(40), None), 0),
            // The run has more operations than the earlier one.
            (progress(Some(300), seconds(40), Some((seconds(30), 100))), 400),
        ];
        for (progress, operations) in unknown {
            assert_eq!(head(&progress, operations), "2.000 s simulated in 40 s, 50.000 ms a second");
        }
    }

    #[test]
    fn plain_lines_become_rare() {
        let mut progress = progress(None, Duration::ZERO, None);
        let pace = |progress: &mut Progress, passed: Duration| {
            let Shown::Lines(pace) = &mut progress.shown else { unreachable!("nothing else was chosen") };
            pace.last -= passed;
            pace.after
        };
        pace(&mut progress, PATIENCE - Duration::from_secs(1));
        assert!(!progress.is_due());
        pace(&mut progress, Duration::from_secs(2));
        assert!(progress.is_due());
        progress.show(&RunState { at: SimTime::ZERO, operations: 0, ranks: Vec::new(), more: 0 });
        assert_eq!(pace(&mut progress, Duration::ZERO), 2 * PATIENCE);
    }

    #[test]
    fn ranks_beyond_sixteen_are_counted() {
        let line = |rank| RankLine { rank, text: String::new() };
        let (ranks, more) = first_ranks((0..20).collect(), line);
        assert_eq!((ranks.len(), more), (16, 4));
    }
}
