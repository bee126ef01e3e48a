//! Owns the elements of a trace in any file format: rows with slices, counters, and arrows.
//!
//! [`super::TraceWriter`] decides what they show; [`super::Chrome`] and [`super::Perfetto`] write them.

use crate::sink::WriteError;
use uniference_sim::time::SimTime;

/// A row of timeline slices: in viewers' terms a thread of a process. Numbers start with 1: viewers regard thread and
/// process 0 as the idle one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of the process.
    pub pid: u32,
    /// Number of the thread, unique among all processes.
    pub tid: u32,
}

/// A moment on a row. An arrow is bound to the row's innermost slice at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The row of the moment.
    pub row: Row,
    /// The virtual time.
    pub at: SimTime,
}

/// A value that is shown with a slice or a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    Text(&'a str),
    Integer(u64),
    Number(f64),
}

/// Arguments of a slice, by name.
pub(super) type Args<'a> = [(&'static str, Value<'a>)];

/// A counter of a process: one series of values, or several.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'a> {
    /// Number of the process.
    pub pid: u32,
    /// Name of the counter.
    pub name: &'a str,
    /// Unit of the counter's values.
    pub unit: &'static str,
}

/// A file format of traces. Processes and rows are named before their first element; slices of a row come in the order
/// of their ends, and are nested or disjoint.
pub trait Format {
    /// The file that remains when the trace is complete.
    type File;

    /// Names a process, and sets its place among processes.
    fn process(&mut self, pid: u32, name: &str, place: i32);

    /// Names a row, and sets its place among the rows of its process.
    fn row(&mut self, row: Row, name: &str, place: i32);

    /// Adds a slice of a row.
    fn slice(&mut self, row: Row, start: SimTime, end: SimTime, name: &str, args: &Args<'_>);

    /// Starts a slice with an unknown end.
    fn begin(&mut self, row: Row, at: SimTime, name: &str);

    /// Ends the innermost slice that has started and not ended.
    fn end(&mut self, row: Row, at: SimTime);

    /// Sets a counter to these values from now on, by the name of the series; the name of a single series is empty.
    fn counter(&mut self, counter: &Counter<'_>, at: SimTime, values: &[(&str, Value<'_>)]);

    /// Adds an arrow with a unique number.
    fn arrow(&mut self, number: u64, name: &'static str, from: Point, to: Point);

    /// Whether an error has occurred, which [`Format::finish`] will return.
    fn failed(&self) -> bool;

    /// Completes the file.
    ///
    /// # Errors
    /// The first error of the writer, even if it happened long ago.
    fn finish(self) -> Result<Self::File, WriteError>;
}

/// Writes both formats at once.
impl<A: Format, B: Format> Format for (A, B) {
    type File = (A::File, B::File);

    fn process(&mut self, pid: u32, name: &str, place: i32) {
        self.0.process(pid, name, place);
        self.1.process(pid, name, place);
    }

    fn row(&mut self, row: Row, name: &str, place: i32) {
        self.0.row(row, name, place);
        self.1.row(row, name, place);
    }

    fn slice(&mut self, row: Row, start: SimTime, end: SimTime, name: &str, args: &Args<'_>) {
        self.0.slice(row, start, end, name, args);
        self.1.slice(row, start, end, name, args);
    }

    fn begin(&mut self, row: Row, at: SimTime, name: &str) {
        self.0.begin(row, at, name);
        self.1.begin(row, at, name);
    }

    fn end(&mut self, row: Row, at: SimTime) {
        self.0.end(row, at);
        self.1.end(row, at);
    }

    fn counter(&mut self, counter: &Counter<'_>, at: SimTime, values: &[(&str, Value<'_>)]) {
        self.0.counter(counter, at, values);
        self.1.counter(counter, at, values);
    }

    fn arrow(&mut self, number: u64, name: &'static str, from: Point, to: Point) {
        self.0.arrow(number, name, from, to);
        self.1.arrow(number, name, from, to);
    }

    fn failed(&self) -> bool {
        self.0.failed() || self.1.failed()
    }

    fn finish(self) -> Result<Self::File, WriteError> {
        Ok((self.0.finish()?, self.1.finish()?))
    }
}
