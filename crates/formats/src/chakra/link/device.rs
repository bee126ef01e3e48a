//! Owns reading the profiler's trace: Chrome's JSON as Kineto writes it. Only spans on host threads and on the accelerator's streams
//! are kept, and which call launched what.

use super::LinkError;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// When things ran.
#[derive(Debug)]
pub struct DeviceTrace {
    /// In the order of the file.
    pub(super) events: Vec<Event>,
    /// Calls of the accelerator's runtime, by correlation.
    pub(super) launches: BTreeMap<u64, Launch>,
}

/// A span.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) row: Row,
    /// The thread's or the stream's number.
    pub(super) lane: u64,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    /// The id of its record function.
    pub(super) function: Option<u64>,
    pub(super) correlation: Option<u64>,
    pub(super) arguments: Map<String, Json>,
}

/// A call that started something on the accelerator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) thread: u64,
    pub(super) start_ns: i64,
}

/// What a span stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Row {
    Thread,
    Stream,
}

#[derive(Deserialize)]
struct RawTrace {
    #[serde(rename = "traceEvents")]
    events: Vec<RawEvent>,
}

#[derive(Deserialize)]
struct RawEvent {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    ts: Json,
    #[serde(default)]
    dur: Json,
    #[serde(default)]
    tid: Json,
    #[serde(default)]
    args: Map<String, Json>,
}

impl DeviceTrace {
    /// Reads the file's text.
    ///
    /// # Errors
    /// It is no trace of a profiler.
    pub fn parse(text: &str) -> Result<DeviceTrace, LinkError> {
        let raw: RawTrace = serde_json::from_str(text).map_err(|error| LinkError::Input {
            file: "the profiler's trace",
            problem: error.to_string(),
            hint: "it is what torch.profiler.profile.export_chrome_trace writes",
        })?;
        let mut trace = DeviceTrace { events: Vec::new(), launches: BTreeMap::new() };
        raw.events.into_iter().filter(|event| event.ph == "X").for_each(|event| trace.add(event));
        trace.events.sort_by_key(|event| (event.start_ns, -event.length_ns()));
        Ok(trace)
    }

    fn add(&mut self, raw: RawEvent) {
        let number = |name: &str| raw.args.get(name).and_then(Json::as_u64);
        let (Some(start_ns), Some(length)) = (nanoseconds(&raw.ts), nanoseconds(&raw.dur)) else { return };
        let Some(thread) = lane(&raw.tid) else { return };
        let correlation = number("correlation");
        let row = match raw.cat.as_str() {
            "cpu_op" | "user_annotation" => Row::Thread,
            "kernel" | "gpu_memcpy" | "gpu_memset" => Row::Stream,
            "cuda_runtime" | "cuda_driver" => {
                if let Some(correlation) = correlation {
                    self.launches.insert(correlation, Launch { thread, start_ns });
                }
                return;
            }
            _ => return,
        };
        self.events.push(Event {
            name: raw.name,
            row,
            lane: if row == Row::Stream { number("stream").unwrap_or(thread) } else { thread },
            start_ns,
            end_ns: start_ns.saturating_add(length.max(0)),
            function: raw.args.get("Record function id").or(raw.args.get("External id")).and_then(Json::as_u64),
            correlation,
            arguments: raw.args,
        });
    }
}

impl Event {
    pub(super) fn length_ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }
}

/// From microseconds; some files have them as text. `None` where no trace could have them.
fn nanoseconds(value: &Json) -> Option<i64> {
    let micros = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
    (micros.abs() < 4e15).then_some((micros * 1e3).round() as i64)
}

/// Threads have numbers; the profiler's own rows have names.
fn lane(tid: &Json) -> Option<u64> {
    tid.as_u64().or_else(|| tid.as_str()?.parse().ok())
}
