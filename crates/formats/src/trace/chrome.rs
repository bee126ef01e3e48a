//! Owns the Chrome JSON format of traces
//! (<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>), which Perfetto and
//! chrome://tracing open. Times are microseconds with six decimals, exact to the picosecond.

use super::format::{Args, Counter, Format, Point, Row, Value};
use crate::sink::{Sink, WriteError};
use std::fmt::{self, Display, Formatter};
use std::io::Write;
use uniference_sim::time::SimTime;

/// Writes `{"traceEvents":[...]}`, element by element.
pub struct Chrome<W> {
    sink: Sink<W>,
    /// The element that is being written, with the separator before it.
    entry: Vec<u8>,
    separator: &'static str,
}

impl<W: Write> Chrome<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W) -> Chrome<W> {
        let mut sink = Sink::new("trace", out);
        sink.write(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        Chrome { sink, entry: Vec::new(), separator: "" }
    }

    fn entry(&mut self, text: fmt::Arguments<'_>) {
        self.entry.clear();
        self.entry.extend_from_slice(self.separator.as_bytes());
        self.entry.write_fmt(text).expect("memory takes all");
        self.separator = ",\n";
        self.sink.write(&self.entry);
    }

    fn metadata(&mut self, row: Row, kind: &str, name: &str, place: i32) {
        let (Row { pid, tid }, name) = (row, Text(name));
        self.entry(format_args!(
            "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{kind}_name\",\"args\":{{\"name\":{name}}}}}"
        ));
        self.entry(format_args!(
            "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{kind}_sort_index\",\"args\":{{\"sort_index\":{place}}}}}"
        ));
    }
}

impl<W: Write> Format for Chrome<W> {
    type File = W;

    fn process(&mut self, pid: u32, name: &str, place: i32) {
        self.metadata(Row { pid, tid: 0 }, "process", name, place);
    }

    fn row(&mut self, row: Row, name: &str, place: i32) {
        self.metadata(row, "thread", name, place);
    }

    fn slice(&mut self, Row { pid, tid }: Row, start: SimTime, end: SimTime, name: &str, args: &Args<'_>) {
        let (ts, dur) = (Micros(start.as_ps()), Micros(end.as_ps() - start.as_ps()));
        let (name, args) = (Text(name), Object(args));
        self.entry(format_args!(
            "{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur},\"name\":{name},\"args\":{args}}}"
        ));
    }

    fn begin(&mut self, Row { pid, tid }: Row, at: SimTime, name: &str) {
        let (ts, name) = (Micros(at.as_ps()), Text(name));
        self.entry(format_args!(
            "{{\"ph\":\"B\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"name\":{name},\"args\":{{}}}}"
        ));
    }

    fn end(&mut self, Row { pid, tid }: Row, at: SimTime) {
        let ts = Micros(at.as_ps());
        self.entry(format_args!(
            "{{\"ph\":\"E\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"name\":\"\",\"args\":{{}}}}"
        ));
    }

    fn counter(&mut self, counter: &Counter<'_>, at: SimTime, values: &[(&str, Value<'_>)]) {
        let Counter { pid, name, unit } = *counter;
        let values: Vec<(&str, Value<'_>)> =
            values.iter().map(|(series, value)| (if series.is_empty() { unit } else { series }, *value)).collect();
        let (ts, name, args) = (Micros(at.as_ps()), Text(name), Object(&values));
        self.entry(format_args!(
            "{{\"ph\":\"C\",\"pid\":{pid},\"tid\":0,\"ts\":{ts},\"name\":{name},\"args\":{args}}}"
        ));
    }

    fn arrow(&mut self, number: u64, name: &'static str, from: Point, to: Point) {
        for (ph, more, Point { row: Row { pid, tid }, at }) in [("s", "", from), ("f", ",\"bp\":\"e\"", to)] {
            let ts = Micros(at.as_ps());
            self.entry(format_args!(
                "{{\"ph\":\"{ph}\",\"id\":{number},\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"name\":\"{name}\",\"cat\":\"{name}\"{more}}}"
            ));
        }
    }

    fn failed(&self) -> bool {
        self.sink.failed()
    }

    fn finish(mut self) -> Result<W, WriteError> {
        self.sink.write(b"\n]}\n");
        self.sink.finish()
    }
}

/// Picoseconds, as microseconds.
struct Micros(u64);

impl Display for Micros {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A text in JSON.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        // Nearly all texts need no escapes.
        match self.0.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
            true => f.write_str(&serde_json::to_string(self.0).expect("a text is JSON")),
            false => write!(f, "\"{}\"", self.0),
        }
    }
}

impl Display for Value<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => Text(text).fmt(f),
            Value::Integer(number) => number.fmt(f),
            Value::Number(number) => f.write_str(&serde_json::to_string(number).expect("a number is JSON")),
        }
    }
}

/// An object of values.
struct Object<'a, 'b>(&'a [(&'b str, Value<'b>)]);

impl Display for Object<'_, '_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (number, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{}:{value}", if number == 0 { "{" } else { "," }, Text(name))?;
        }
        f.write_str(if self.0.is_empty() { "{}" } else { "}" })
    }
}
