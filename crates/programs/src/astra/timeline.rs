//! Owns the table of the start and end of each node, with the columns of ASTRA-sim's own logs joined: rank, node, name,
//! type, two times in ns.

use super::schedule::CompletedNode;
use std::io::{self, Write};
use uniference_formats::sink::WriteError;

/// Writes one row per node, in the order in which they end.
pub struct TimelineWriter<W: Write> {
    rows: csv::Writer<W>,
    /// The first error; no row is written after it.
    error: Option<csv::Error>,
}

impl<W: Write> TimelineWriter<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> TimelineWriter<W> {
        let mut rows = csv::Writer::from_writer(out);
        let error = rows.write_record(["npu", "node_id", "name", "type", "issue_ns", "callback_ns"]).err();
        TimelineWriter { rows, error }
    }

    /// Writes the row of a node that is complete.
    pub fn node(&mut self, done: &CompletedNode<'_>) {
        let CompletedNode { rank, node, issued, ended } = done;
        if self.error.is_none() {
            self.error = self.rows.serialize((rank.0, node.id, &node.name, node.r#type, issued, ended)).err();
        }
    }

    /// Flushes the table.
    ///
    /// # Errors
    /// The first error of the writer, which may have occurred at any earlier row.
    pub fn finish(mut self) -> Result<(), WriteError> {
        let error = self.error.take().map(io::Error::from).or_else(|| self.rows.flush().err());
        error.map_or(Ok(()), |source| Err(WriteError { what: "timeline", source }))
    }
}
