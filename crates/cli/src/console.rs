//! Owns what a user sees while a run goes on: the ranks' lines, warnings, and on a terminal a line of progress.

use crate::standard::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};
use uniference_formats::diagnostic::escaped;
use uniference_host::live::driver;
use uniference_host::live::output::Stream;
use uniference_sim::engine::{Doing, Engine};
use uniference_sim::event::{Event, Observer};
use uniference_sim::time::SimTime;

/// Progress is drawn so often.
const PERIOD: Duration = Duration::from_millis(100);

/// Counts the engine's events.
#[derive(Clone, Default)]
pub(super) struct Counter(Rc<Cell<u64>>);

impl Observer for Counter {
    fn record(&mut self, _: SimTime, _: &Event<'_>) {
        self.0.set(self.0.get() + 1);
    }
}

/// The user's terminal, or the files and pipes in its place.
pub(super) struct Console {
    /// The program's output goes to standard error: standard output is for the report alone.
    report_only: bool,
    /// Why not all of the program's output has reached standard output.
    lost: Option<io::Error>,
    /// A rank other than 0 has printed: from then on every line says whose it is. What has no prefix is rank 0's.
    several: bool,
    progress: Option<Progress>,
}

/// The line of progress.
struct Progress {
    bar: ProgressBar,
    drawn: Instant,
    counter: Counter,
    counted: u64,
}

impl Console {
    /// Progress is shown if it may be, and standard error is a terminal.
    pub(super) fn new(report_only: bool, may_show_progress: bool, counter: Counter) -> Console {
        let progress = (may_show_progress && io::stderr().is_terminal()).then(|| Progress::new(counter));
        Console { report_only, lost: None, several: false, progress }
    }

    /// Takes the line of progress away. Returns why not all of the program's output has reached standard output, if so.
    pub(super) fn finish(&mut self) -> Option<io::Error> {
        if let Some(progress) = self.progress.take() {
            progress.bar.finish_and_clear();
        }
        self.lost.take()
    }

    /// The line as it is shown.
    fn prefixed(&mut self, rank: u32, line: &[u8]) -> Vec<u8> {
        self.several |= rank != 0;
        let prefix = if self.several { format!("[{rank}] ") } else { String::new() };
        [prefix.as_bytes(), line].concat()
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        // What cannot be written does not end the run: the log still has it. After the first loss nothing is written, so no line is missing.
        let Console { report_only, lost, progress, .. } = self;
        let mut write = || match stream {
            Stream::Out if !*report_only && lost.is_none() => *lost = Output.write_all(bytes).err(),
            Stream::Out if !*report_only => {}
            _ => drop(io::stderr().write_all(bytes)),
        };
        match progress {
            Some(progress) => progress.bar.suspend(&mut write),
            None => write(),
        }
    }
}

impl driver::Console for Console {
    fn line(&mut self, rank: u32, stream: Stream, line: &[u8]) {
        let bytes = self.prefixed(rank, line);
        self.write(stream, &bytes);
    }

    fn warn(&mut self, message: &str) {
        self.write(Stream::Err, escaped(&format!("warning: {message}\n")).as_bytes());
    }

    fn tick(&mut self, engine: &Engine) {
        if let Some(progress) = &mut self.progress {
            progress.draw(engine);
        }
    }

    fn wants_ticks(&self) -> bool {
        self.progress.is_some()
    }
}

impl Progress {
    fn new(counter: Counter) -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("a template without errors"));
        bar.set_message("starting Python and torch");
        Progress { bar, drawn: Instant::now(), counter, counted: 0 }
    }

    fn draw(&mut self, engine: &Engine) {
        let passed = self.drawn.elapsed();
        if passed < PERIOD {
            return;
        }
        let counted = self.counter.0.get();
        let rate = (counted - self.counted) as f64 / passed.as_secs_f64();
        (self.drawn, self.counted) = (Instant::now(), counted);
        self.bar.set_message(format!("{} virtual, {rate:.0} events/s, {}", engine.now(), waiting(engine)));
        self.bar.tick();
    }
}

/// "running: 0; waiting: 1, 2 and 5 more".
fn waiting(engine: &Engine) -> String {
    let waits = |doing: &Doing| !matches!(doing, Doing::Running);
    let ranks = engine.report();
    let unfinished = ranks.iter().filter(|rank| rank.ended.is_none());
    let (waiting, running): (Vec<_>, Vec<_>) =
        unfinished.partition(|rank| rank.tasks.iter().all(|task| waits(&task.doing)));
    let list = |ranks: Vec<&uniference_sim::engine::RankReport>| match ranks.len() {
        0 => "none".to_owned(),
        count => {
            let shown: Vec<String> = ranks.iter().take(4).map(|rank| rank.rank.0.to_string()).collect();
            let more = if count > 4 { format!(" and {} more", count - 4) } else { String::new() };
            shown.join(", ") + &more
        }
    };
    format!("ranks running: {}; waiting: {}", list(running), list(waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_prefix_is_rank_0s() {
        let mut console = Console::new(true, false, Counter::default());
        assert_eq!(console.prefixed(0, b"a\n"), b"a\n");
        assert_eq!(console.prefixed(1, b"b\n"), b"[1] b\n");
        assert_eq!(console.prefixed(0, b"c\n"), b"[0] c\n");
    }
}
