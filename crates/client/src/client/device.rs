//! Owns what a rank asks of the streams of its simulated GPU: to wait for them, whether they are through, how long they took.
//!
//! What is handed to them goes with the operators ([`Capture`](crate::Capture)). Whoever asks is C code that nobody can tell of an error, so one
//! ends the process with its message. Libraries that tidy up as a process exits, when its program is over and what a thread has of its own is gone,
//! are told that everything has ended.

use super::account::is_exiting;
use super::{Answer, Client, Op, Result, unexpected};
use uniference_protocol::messages::DeviceWork;

impl Client {
    /// Returns when the work has ended.
    pub fn synchronize(&self, work: DeviceWork) {
        if is_exiting() {
            return;
        }
        match self.ask_of_device(|site| Op::Synchronize { work, site }) {
            Answer::Go => {}
            other => unexpected("Synchronize", &other),
        }
    }

    /// Whether the work has ended.
    pub fn has_ended(&self, work: DeviceWork) -> bool {
        if is_exiting() {
            return true;
        }
        match self.ask_of_device(|site| Op::Query { work, site }) {
            Answer::Ended(ended) => ended,
            other => unexpected("Query", &other),
        }
    }

    /// Picoseconds from one event to another, as both were recorded last; `None`: one of them has not happened.
    pub fn elapsed(&self, from: u32, to: u32) -> Option<i64> {
        if is_exiting() {
            return None;
        }
        match self.ask_of_device(|site| Op::Elapsed { from, to, site }) {
            Answer::Elapsed(elapsed) => elapsed,
            other => unexpected("Elapsed", &other),
        }
    }

    fn ask_of_device(&self, question: impl FnOnce(uniference_sim::ids::Site) -> Op) -> Answer {
        let _ours = self.ours();
        let asked: Result<Answer> = self.site("").and_then(|site| self.ask(question(site)));
        asked.unwrap_or_else(|error| error.end())
    }
}
