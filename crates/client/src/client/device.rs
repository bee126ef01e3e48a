//! Owns a rank's requests about the CUDA streams of its simulated GPU: waits for them, whether their work is complete,
//! and times between events.
//!
//! Launches on the streams are reported with the operators ([`Capture`](crate::Capture)). The callers are C code that
//! cannot receive an error, so an error ends the process with its message. Libraries that clean up during process exit,
//! after the program's end and the destruction of thread-local state, are told that all work has ended.

use super::account::is_exiting;
use super::{Answer, Client, Op, Result, unexpected};
use uniference_protocol::messages::DeviceWork;

impl Client {
    /// Waits for the end of the work.
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

    /// Picoseconds from one event to another, by their latest records; `None`: one of them is not complete.
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
