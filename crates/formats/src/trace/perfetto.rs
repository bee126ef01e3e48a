//! Owns Perfetto's own format of traces: packets of protobuf, a third as large as the same trace in JSON. Times are
//! nanoseconds, rounded down, as in the viewer.
//!
//! The messages and field numbers are from <https://github.com/google/perfetto/tree/main/protos/perfetto/trace> (Apache
//! 2.0), restricted to those that are used; they are written by hand, so that no build needs `protoc`.

use super::format::{Args, Counter, Format, Point, Row, Value};
use crate::sink::{Sink, WriteError};
use prost::Message;
use rustc_hash::FxHashMap;
use std::io::Write;
use uniference_sim::time::SimTime;

/// Writes packets as they come. A repeated text is written once, and referred to by number.
pub struct Perfetto<W> {
    sink: Sink<W>,
    packet: Vec<u8>,
    /// Names of slices and arguments, and texts of arguments.
    names: Interned,
    keys: Interned,
    texts: Interned,
    /// The tracks of counters, by process, name and series.
    counters: FxHashMap<(u32, String), u64>,
}

/// Maximum number of numbered texts of a kind: further texts are written in full.
const MOST_INTERNED: usize = 1 << 16;

#[derive(Default)]
struct Interned {
    known: FxHashMap<Box<str>, u64>,
    /// Texts that are written with the next packet.
    new: Vec<Text>,
}

impl Interned {
    fn number(&mut self, text: &str) -> Option<u64> {
        if let Some(known) = self.known.get(text) {
            return Some(*known);
        }
        let number = self.known.len() as u64 + 1;
        (self.known.len() < MOST_INTERNED).then(|| {
            self.known.insert(text.into(), number);
            self.new.push(Text { iid: Some(number), text: Some(text.to_owned()) });
            number
        })
    }
}

/// All packets are of one sequence, which has one table of texts.
const SEQUENCE: u32 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`, of the first packet, and `SEQ_NEEDS_INCREMENTAL_STATE`, of all others.
const BEGINS: u32 = 1;
const GOES_ON: u32 = 2;

/// Types of events: `TYPE_SLICE_BEGIN`, `TYPE_SLICE_END`, `TYPE_COUNTER`.
const BEGIN: i32 = 1;
const END: i32 = 2;
const COUNTER: i32 = 4;

/// The field `packet` of the message `Trace`: a file consists of these fields only.
const FIELD_OF_PACKETS: u8 = 1 << 3 | 2;

impl<W: Write> Perfetto<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W) -> Perfetto<W> {
        let (names, keys, texts) = Default::default();
        let sink = Sink::new("trace", out);
        let mut trace = Perfetto { sink, packet: Vec::new(), names, keys, texts, counters: FxHashMap::default() };
        trace.write(TracePacket { sequence_flags: Some(BEGINS), ..TracePacket::default() });
        trace
    }

    fn write(&mut self, packet: TracePacket) {
        let packet = TracePacket { sequence: Some(SEQUENCE), ..packet };
        self.packet.clear();
        self.packet.push(FIELD_OF_PACKETS);
        packet.encode_length_delimited(&mut self.packet).expect("memory takes all");
        self.sink.write(&self.packet);
    }

    fn track(&mut self, track: TrackDescriptor) {
        self.write(TracePacket { track: Some(track), ..TracePacket::default() });
    }

    fn event(&mut self, at: SimTime, event: TrackEvent) {
        let [names, keys, texts] =
            [&mut self.names, &mut self.keys, &mut self.texts].map(|of| std::mem::take(&mut of.new));
        let is_new = !(names.is_empty() && keys.is_empty() && texts.is_empty());
        let interned = is_new.then_some(InternedData { names, keys, texts });
        let (timestamp, sequence_flags) = (Some(at.as_ps() / 1_000), Some(GOES_ON));
        self.write(TracePacket { timestamp, event: Some(event), interned, sequence_flags, ..TracePacket::default() });
    }

    fn named(&mut self, kind: i32, row: Row, name: &str) -> TrackEvent {
        let name_iid = self.names.number(name);
        let name = name_iid.is_none().then(|| name.to_owned());
        TrackEvent { kind: Some(kind), track: Some(track_of(row)), name_iid, name, ..TrackEvent::default() }
    }

    fn annotation(&mut self, name: &str, value: &Value<'_>) -> DebugAnnotation {
        let name_iid = self.keys.number(name);
        let name = name_iid.is_none().then(|| name.to_owned());
        let mut annotation = DebugAnnotation { name_iid, name, ..DebugAnnotation::default() };
        match value {
            Value::Integer(number) => annotation.uint_value = Some(*number),
            Value::Number(number) => annotation.double_value = Some(*number),
            Value::Text(text) => {
                annotation.string_value_iid = self.texts.number(text);
                annotation.string_value = annotation.string_value_iid.is_none().then(|| (*text).to_owned());
            }
        }
        annotation
    }

    /// The track of a series of a counter.
    fn counter_track(&mut self, counter: &Counter<'_>, series: &str) -> u64 {
        let Counter { pid, name, unit } = *counter;
        let name = if series.is_empty() { name.to_owned() } else { format!("{name}: {series}") };
        let next = COUNTERS + self.counters.len() as u64;
        let track = *self.counters.entry((pid, name.clone())).or_insert(next);
        if track == next {
            let described = CounterDescriptor { unit_name: Some(unit.to_owned()) };
            let parent = Some(process_track(pid));
            self.track(TrackDescriptor {
                uuid: Some(track),
                parent,
                name: Some(name),
                counter: Some(described),
                ..TrackDescriptor::default()
            });
        }
        track
    }
}

/// First number of the tracks of counters; tracks of processes and of rows have lower numbers.
const COUNTERS: u64 = 3 << 32;

fn process_track(pid: u32) -> u64 {
    1 << 32 | u64::from(pid)
}

fn track_of(row: Row) -> u64 {
    2 << 32 | u64::from(row.tid)
}

impl<W: Write> Format for Perfetto<W> {
    type File = W;

    fn process(&mut self, pid: u32, name: &str, place: i32) {
        let (process_name, place) = (Some(name.to_owned()), Some(place));
        let process = ProcessDescriptor { pid: Some(pid.cast_signed()), place, process_name };
        let uuid = Some(process_track(pid));
        self.track(TrackDescriptor { uuid, process: Some(process), ..TrackDescriptor::default() });
    }

    fn row(&mut self, row: Row, name: &str, place: i32) {
        let (pid, tid) = (Some(row.pid.cast_signed()), Some(row.tid.cast_signed()));
        let thread = ThreadDescriptor { pid, tid, place: Some(place), thread_name: Some(name.to_owned()) };
        let (uuid, parent) = (Some(track_of(row)), Some(process_track(row.pid)));
        self.track(TrackDescriptor { uuid, parent, thread: Some(thread), ..TrackDescriptor::default() });
    }

    fn slice(&mut self, row: Row, start: SimTime, end: SimTime, name: &str, args: &Args<'_>) {
        let event = self.named(BEGIN, row, name);
        let annotations = args.iter().map(|(name, value)| self.annotation(name, value)).collect();
        self.event(start, TrackEvent { annotations, ..event });
        self.end(row, end);
    }

    fn begin(&mut self, row: Row, at: SimTime, name: &str) {
        let event = self.named(BEGIN, row, name);
        self.event(at, event);
    }

    fn end(&mut self, row: Row, at: SimTime) {
        self.event(at, TrackEvent { kind: Some(END), track: Some(track_of(row)), ..TrackEvent::default() });
    }

    fn counter(&mut self, counter: &Counter<'_>, at: SimTime, values: &[(&str, Value<'_>)]) {
        for (series, value) in values {
            let track = Some(self.counter_track(counter, series));
            let mut event = TrackEvent { kind: Some(COUNTER), track, ..TrackEvent::default() };
            match value {
                Value::Integer(number) => event.counter_value = Some(number.cast_signed()),
                Value::Number(number) => event.double_counter_value = Some(*number),
                Value::Text(text) => unreachable!("{text} is no value of a counter"),
            }
            self.event(at, event);
        }
    }

    /// The arrow as events of Chrome's format: the format's own arrows belong to the start or the end of a slice, and
    /// must be known at that time.
    fn arrow(&mut self, number: u64, name: &'static str, from: Point, to: Point) {
        for (phase, Point { row, at }) in [('s', from), ('f', to)] {
            let name_iid = self.names.number(name);
            let legacy =
                LegacyEvent { phase: Some(phase as i32), unscoped_id: Some(number), bind_to_enclosing: Some(true) };
            let track = Some(track_of(row));
            let categories = vec![name.to_owned()];
            let event = TrackEvent { track, name_iid, categories, legacy: Some(legacy), ..TrackEvent::default() };
            self.event(at, event);
        }
    }

    fn failed(&self) -> bool {
        self.sink.failed()
    }

    fn finish(self) -> Result<W, WriteError> {
        self.sink.finish()
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    /// Virtual time in nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) sequence: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(super) event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(super) track: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub(super) names: Vec<Text>,
    #[prost(message, repeated, tag = "3")]
    pub(super) keys: Vec<Text>,
    #[prost(message, repeated, tag = "29")]
    pub(super) texts: Vec<Text>,
}

/// `EventName`, `DebugAnnotationName` and, with bytes for the text, `InternedString`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Text {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) text: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    /// `legacy_sort_index`.
    #[prost(int32, optional, tag = "3")]
    pub(super) place: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(super) tid: Option<i32>,
    /// `legacy_sort_index`.
    #[prost(int32, optional, tag = "3")]
    pub(super) place: Option<i32>,
    #[prost(string, optional, tag = "5")]
    pub(super) thread_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    pub(super) unit_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) annotations: Vec<DebugAnnotation>,
    #[prost(message, optional, tag = "6")]
    pub(super) legacy: Option<LegacyEvent>,
    #[prost(int32, optional, tag = "9")]
    pub(super) kind: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    pub(super) categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(super) counter_value: Option<i64>,
    #[prost(double, optional, tag = "44")]
    pub(super) double_counter_value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LegacyEvent {
    #[prost(int32, optional, tag = "2")]
    pub(super) phase: Option<i32>,
    #[prost(uint64, optional, tag = "6")]
    pub(super) unscoped_id: Option<u64>,
    #[prost(bool, optional, tag = "12")]
    pub(super) bind_to_enclosing: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) uint_value: Option<u64>,
    #[prost(double, optional, tag = "5")]
    pub(super) double_value: Option<f64>,
    #[prost(string, optional, tag = "6")]
    pub(super) string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub(super) name: Option<String>,
    #[prost(uint64, optional, tag = "17")]
    pub(super) string_value_iid: Option<u64>,
}
