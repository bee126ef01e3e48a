//! Owns the output for the user during a run: the ranks' lines, warnings, and the progress.

use crate::progress::{Progress, RankLine, RunState, first_ranks};
use crate::standard::Output;
use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;
use uniference_formats::diagnostic::escaped;
use uniference_host::live::driver;
use uniference_host::live::output::Stream;
use uniference_lowering::Conversations;
use uniference_sim::engine::{Doing, RankReport};
use uniference_sim::event::{Event, Observer};
use uniference_sim::time::SimTime;

/// Number of completed process group operations, counted per member.
#[derive(Clone, Default)]
pub(super) struct Counter(Rc<Cell<u64>>);

impl Observer for Counter {
    fn record(&mut self, _: SimTime, event: &Event<'_>) {
        if let Event::Completed { .. } | Event::Failed { .. } = event {
            self.0.set(self.0.get() + 1);
        }
    }
}

/// The user's terminal, or the files and pipes that replace it.
pub(super) struct Console {
    /// Whether the program's output goes to standard error, because standard output is reserved for the report.
    report_only: bool,
    /// Error of the first write to standard output that failed.
    lost: Option<io::Error>,
    /// Whether a rank other than 0 has printed. From then on, each line of other ranks has a prefix; lines without a
    /// prefix are rank 0's.
    several: bool,
    progress: Option<Progress>,
    counter: Counter,
}

impl Console {
    /// A console; `counter` must observe the engine's events.
    pub(super) fn new(report_only: bool, progress: Option<Progress>, counter: Counter) -> Console {
        Console { report_only, lost: None, several: false, progress, counter }
    }

    /// Removes the progress display. Returns the error if output of the program was lost.
    pub(super) fn finish(&mut self) -> Option<io::Error> {
        self.progress = None;
        self.lost.take()
    }

    /// The line with the prefix of its rank.
    fn prefixed(&mut self, rank: u32, line: &[u8]) -> Vec<u8> {
        self.several |= rank != 0;
        let prefix = if self.several { format!("[{rank}] ") } else { String::new() };
        [prefix.as_bytes(), line].concat()
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        // A write error does not end the run, because the log still has the line. After the first error no line is
        // written, so the output has no gaps.
        let Console { report_only, lost, progress, .. } = self;
        let mut write = || match stream {
            Stream::Out if !*report_only && lost.is_none() => *lost = Output.write_all(bytes).err(),
            Stream::Out if !*report_only => {}
            _ => drop(io::stderr().write_all(bytes)),
        };
        match progress {
            Some(progress) => progress.aside(&mut write),
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

    fn tick(&mut self, conversations: &Conversations) {
        let Some(progress) = self.progress.as_mut().filter(|progress| progress.is_due()) else { return };
        let engine = conversations.engine();
        let left: Vec<RankReport> = engine.report().into_iter().filter(|rank| rank.ended.is_none()).collect();
        let Some(running) = left.iter().map(|rank| rank.rank).find(|rank| conversations.is_running(*rank)) else {
            return;
        };
        let (ranks, more) = first_ranks(left, |rank| {
            let has_called =
                !conversations.is_running(rank.rank) && rank.tasks.iter().all(|task| task.doing == Doing::Running);
            let text = match has_called {
                true => format!(
                    "{}, clock {}: waits until {running}, which is running, has come as far",
                    rank.rank, rank.clock
                ),
                false => rank.render(&|site| conversations.line(site).to_owned(), &[]),
            };
            RankLine { rank: rank.rank.0, text: text.trim().to_owned() }
        });
        progress.show(&RunState { at: engine.now(), operations: self.counter.0.get(), ranks, more });
    }

    fn wants_ticks(&self) -> bool {
        self.progress.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_prefix_is_rank_0s() {
        let mut console = Console::new(true, None, Counter::default());
        assert_eq!(console.prefixed(0, b"a\n"), b"a\n");
        assert_eq!(console.prefixed(1, b"b\n"), b"[1] b\n");
        assert_eq!(console.prefixed(0, b"c\n"), b"[0] c\n");
    }
}
