//! Owns the event stream on disk, with the columns of [`columns`], in two formats: one event per line, as JSON, in the
//! engine's order ([`EventWriter`]), and a Parquet table for each kind of event ([`TableWriter`]). Times are integer
//! picoseconds, sizes bytes.
//!
//! [`rows`] has the values of an event; the caller opens and names files.

pub mod columns;
pub mod rows;
mod tables;

pub use tables::{Parts, TableWriter};

use crate::sink::{Sink, WriteError};
use columns::{COMMON, Name, VERSION};
use rows::{Cell, cells_of, kind_of};
use std::io::Write;
use uniference_sim::event::{Event, Observer};
use uniference_sim::time::SimTime;

/// Writes every event of a run as JSON, messages included.
pub struct EventWriter<W> {
    sink: Sink<W>,
    line: Vec<u8>,
}

impl<W: Write> EventWriter<W> {
    /// Writes to `out`, which should be buffered. `links` are the names of the network's links, by id.
    pub fn new<'a>(out: W, links: impl IntoIterator<Item = &'a str>) -> EventWriter<W> {
        let mut writer = EventWriter { sink: Sink::new("event stream", out), line: Vec::new() };
        writer.write(SimTime::ZERO, Name::Stream, |put| put(Cell::U32(VERSION)));
        for (link, name) in (0..).zip(links) {
            writer
                .write(SimTime::ZERO, Name::Link, |put| [Cell::U32(link), Cell::Text(name)].into_iter().for_each(put));
        }
        writer
    }

    /// Names the lines of the program, by [`Site`](uniference_sim::ids::Site), at the end of the run: the order of
    /// their first use may depend on the host.
    pub fn lines(&mut self, lines: &[String]) {
        for (site, line) in (0..).zip(lines).filter(|(_, line)| !line.is_empty()) {
            self.write(SimTime::ZERO, Name::Line, |put| [Cell::U32(site), Cell::Text(line)].into_iter().for_each(put));
        }
    }

    /// Whether an error has occurred, which [`EventWriter::finish`] will return.
    pub fn failed(&self) -> bool {
        self.sink.failed()
    }

    /// Flushes and returns the writer.
    ///
    /// # Errors
    /// The first error of the writer, even if it happened long ago.
    pub fn finish(self) -> Result<W, WriteError> {
        self.sink.finish()
    }

    fn write(&mut self, at: SimTime, name: Name, cells: impl FnOnce(&mut dyn FnMut(Cell<'_>))) {
        let line = &mut self.line;
        line.clear();
        line.push(b'{');
        let mut columns = COMMON.iter().chain(name.kind().columns);
        let mut put = |cell: Cell<'_>| {
            let column = columns.next().expect("a kind has a column for each value");
            serde_json::to_writer(&mut *line, column.name).expect("a text is JSON");
            line.push(b':');
            serde_json::to_writer(&mut *line, &cell).expect("numbers and texts are JSON");
            line.push(b',');
        };
        put(Cell::U64(at.as_ps()));
        put(Cell::Name(name.kind().name));
        cells(&mut put);
        line.pop();
        line.extend_from_slice(b"}\n");
        self.sink.write(&self.line);
    }
}

impl<W: Write> Observer for EventWriter<W> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.write(at, kind_of(event), |mut put| cells_of(event, &mut put));
    }

    fn wants_messages(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
