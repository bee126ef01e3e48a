//! Owns the table of when each node was issued and when it ended, with the columns of ASTRA-sim's own logs put side by side: rank, node,
//! name, type, two times in ns.

use super::schedule::CompletedNode;
use std::io::{self, Write};
use uniference_formats::sink::WriteError;

/// Writes a row a node, in the order in which they end.
pub struct TimelineWriter<W: Write> {
    rows: csv::Writer<W>,
    /// The first one; nothing is written after it.
    error: Option<csv::Error>,
}

impl<W: Write> TimelineWriter<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> TimelineWriter<W> {
        let mut rows = csv::Writer::from_writer(out);
        let error = rows.write_record(["npu", "node_id", "name", "type", "issue_ns", "callback_ns"]).err();
        TimelineWriter { rows, error }
    }

    /// A node is done.
    pub fn node(&mut self, done: &CompletedNode<'_>) {
        let CompletedNode { rank, node, issued, ended } = done;
        if self.error.is_none() {
            self.error = self.rows.serialize((rank.0, node.id, &node.name, node.r#type, issued, ended)).err();
        }
    }

    /// Flushes the table.
    ///
    /// # Errors
    /// The first error of the writer, even if it happened long ago.
    pub fn finish(mut self) -> Result<(), WriteError> {
        let error = self.error.take().map(io::Error::from).or_else(|| self.rows.flush().err());
        error.map_or(Ok(()), |source| Err(WriteError { what: "timeline", source }))
    }
}
