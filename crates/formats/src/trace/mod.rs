//! Owns the trace: what happened when, as a file that opens in Perfetto and in chrome://tracing (the Chrome JSON format).
//!
//! Each rank is a process with a row for each task (compute, waiting), for its named ranges, for each stream of its device, and for the operations of each group;
//! what overlaps within a row goes on a second row of the same name. An arrow leads from each send to its receive. Each link that was used is a counter of
//! bytes per second, and what each rank held in memory one of bytes by kind. The critical path is a process of its own, above all others.
//! Times are microseconds with six decimals, which is to the picosecond.

mod rates;

use crate::events::reason_name;
use crate::sink::{Sink, WriteError};
pub use rates::LinkRates;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use uniference_sim::cluster::Cluster;
use uniference_sim::event::{Event, Meeting, Observer, WaitReason};
use uniference_sim::ids::{GroupId, Handle, QueueId, RankId, TaskId};
use uniference_sim::program::{Call, CallOp, Mark};
use uniference_sim::time::{Bytes, SimTime};

/// Writes a trace while the run goes on.
pub struct TraceWriter<W> {
    out: Document<W>,
    ranks: Vec<RankRows>,
    /// How many rows there are. Their numbers begin with 1: viewers take thread and process 0 for the idle one.
    rows: u32,
    rates: LinkRates,
    links: Vec<String>,
    /// Sends and receives of which the other one is not complete, by the send.
    halves: BTreeMap<(RankId, Handle), Half>,
    /// How many arrows there are.
    arrows: u64,
}

/// One end of an arrow: a moment on a row.
#[derive(Clone, Copy)]
struct Half {
    pid: u32,
    tid: u32,
    at: SimTime,
}

/// A span of the critical path, as the trace shows it.
pub struct PathSpan {
    /// When it begins.
    pub start: SimTime,
    /// When it ends.
    pub end: SimTime,
    /// `latency of a.0 -> switch`.
    pub name: String,
    /// What else is known of it.
    pub args: serde_json::Value,
}

/// The rows of one rank, in the order in which they were first needed.
struct RankRows {
    /// `rank 0 (orin.0)`.
    name: String,
    rows: BTreeMap<Row, Vec<Lane>>,
    open_ranges: u32,
}

/// What a row shows; the order in which rows stand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Ranges,
    Task(TaskId),
    Stream(u32),
    Group(GroupId),
}

/// A row as the viewer sees it: slices on it never overlap.
struct Lane {
    id: u32,
    busy_until: SimTime,
}

impl<W: Write> TraceWriter<W> {
    /// A trace of a run on `cluster`. `out` should be buffered.
    pub fn new(out: W, cluster: &Cluster) -> TraceWriter<W> {
        let links = cluster.topology.links().iter().map(|link| link.name.clone()).collect();
        TraceWriter::with_rows(out, cluster.devices.iter().map(|device| &device.name[..]), links)
    }

    /// A trace of a run on devices of these names, and links.
    pub fn with_rows<'a>(out: W, devices: impl Iterator<Item = &'a str>, links: Vec<String>) -> TraceWriter<W> {
        let (rates, halves) = (LinkRates::default(), BTreeMap::new());
        let mut trace =
            TraceWriter { out: Document::new(out), ranks: Vec::new(), rows: 0, rates, links, halves, arrows: 0 };
        for (rank, device) in devices.enumerate() {
            let name = format!("rank {rank} ({device})");
            trace.out.name("process", pid(RankId::from(rank)), 0, &name, rank as i64);
            trace.ranks.push(RankRows { name, rows: BTreeMap::new(), open_ranges: 0 });
        }
        let last = pid(RankId::from(trace.ranks.len()));
        trace.out.name("process", last, 0, "links", last.into());
        trace
    }

    /// Has something been lost? Then [`TraceWriter::finish`] will say why.
    pub fn failed(&self) -> bool {
        self.out.sink.failed()
    }

    /// Writes what a rank held in memory: by time, bytes of each kind from then on. All points name the same kinds.
    pub fn memory<'a>(&mut self, rank: RankId, points: impl Iterator<Item = (SimTime, Vec<(&'a str, u64)>)>) {
        for (at, held) in points {
            let args = serde_json::Value::Object(
                held.into_iter().map(|(kind, bytes)| (kind.to_owned(), bytes.into())).collect(),
            );
            self.out.entry(&Entry { ph: 'C', pid: pid(rank), tid: 0, start: at, end: None, name: "memory", args });
        }
    }

    /// Writes what the run had to wait for until it ended, span by span.
    pub fn critical_path(&mut self, spans: impl Iterator<Item = PathSpan>) {
        let pid = pid(RankId::from(self.ranks.len() + 1));
        self.rows += 1;
        let tid = self.rows;
        self.out.name("process", pid, 0, "critical path", -1);
        self.out.name("thread", pid, tid, "critical path", 0);
        for PathSpan { start, end, name, args } in spans {
            self.out.entry(&Entry { ph: 'X', pid, tid, start, end: Some(end), name: &name, args });
        }
    }

    /// Writes the links' counters and what closes the file; gives back the writer.
    ///
    /// # Errors
    /// The first error of the writer, even if it happened long ago.
    pub fn finish(mut self) -> Result<W, WriteError> {
        let pid = pid(RankId::from(self.ranks.len()));
        for (link, points) in self.rates.counters() {
            let name = &self.links[link.index()];
            for (at, rate) in points {
                let args = json!({"bytes/s": rate});
                self.out.entry(&Entry { ph: 'C', pid, tid: 0, start: at, end: None, name, args });
            }
        }
        self.out.finish()
    }

    /// A slice on the first row of its kind that is free. Returns the row's number.
    fn slice(
        &mut self,
        rank: RankId,
        row: Row,
        start: SimTime,
        end: SimTime,
        name: &str,
        args: serde_json::Value,
    ) -> u32 {
        let lane = self.lane(rank, row, start);
        lane.busy_until = end;
        let tid = lane.id;
        self.out.entry(&Entry { ph: 'X', pid: pid(rank), tid, start, end: Some(end), name, args });
        tid
    }

    /// One end of a message's arrow is known: at the beginning of the send, or at the end of the receive. With the other one it is written.
    fn end_of_arrow(&mut self, send: (RankId, Handle), half: Half) {
        let Some(other) = self.halves.remove(&send) else {
            self.halves.insert(send, half);
            return;
        };
        // The sender's is the one that is earlier.
        let (from, to) = if other.at <= half.at { (other, half) } else { (half, other) };
        self.arrows += 1;
        for (ph, more, Half { pid, tid, at }) in [("s", "", from), ("f", ",\"bp\":\"e\"", to)] {
            let (id, at) = (self.arrows, micros(at.as_ps()));
            self.out.push(&format!(
                "{{\"ph\":\"{ph}\",\"id\":{id},\"pid\":{pid},\"tid\":{tid},\"ts\":{at},\"name\":\"message\",\"cat\":\"message\"{more}}}"
            ));
        }
    }

    fn lane(&mut self, rank: RankId, row: Row, start: SimTime) -> &mut Lane {
        let rows = &mut self.ranks[rank.index()];
        let lanes = rows.rows.entry(row).or_default();
        let free = lanes.iter().position(|lane| lane.busy_until <= start);
        let index = free.unwrap_or(lanes.len());
        if free.is_none() {
            self.rows += 1;
            let id = self.rows;
            lanes.push(Lane { id, busy_until: SimTime::ZERO });
            name_row(&mut self.out, rank, &rows.name, row, id);
        }
        &mut self.ranks[rank.index()].rows.get_mut(&row).expect("it was just entered")[index]
    }

    fn mark(&mut self, at: SimTime, rank: RankId, mark: &Mark) {
        let tid = self.lane(rank, Row::Ranges, at).id;
        let open = &mut self.ranks[rank.index()].open_ranges;
        let (ph, name) = match mark {
            Mark::Begin(name) => {
                *open += 1;
                ('B', &**name)
            }
            // What was never opened has nothing to close.
            Mark::End if *open == 0 => return,
            Mark::End => {
                *open -= 1;
                ('E', "")
            }
        };
        self.out.entry(&Entry { ph, pid: pid(rank), tid, start: at, end: None, name, args: json!({}) });
    }

    fn close_ranges(&mut self, at: SimTime, rank: RankId) {
        while self.ranks[rank.index()].open_ranges > 0 {
            self.mark(at, rank, &Mark::End);
        }
    }
}

fn name_row<W: Write>(out: &mut Document<W>, rank: RankId, rank_name: &str, row: Row, tid: u32) {
    let (name, sort) = match row {
        Row::Ranges => ("ranges".to_owned(), 0),
        Row::Task(TaskId(0)) => (rank_name.to_owned(), 1),
        Row::Task(task) => (format!("{rank_name} {task}"), 1 + i64::from(task.0)),
        // Branches of graphs are numbered on where programs' own streams end.
        Row::Stream(stream @ 0x8000_0000..) => {
            (format!("branch {} of graphs", stream - 0x8000_0000), (1 << 32) + i64::from(stream))
        }
        Row::Stream(stream) => (format!("stream {stream}"), (1 << 32) + i64::from(stream)),
        Row::Group(group) => (format!("operations of {group}"), (1 << 20) + i64::from(group.0)),
    };
    out.name("thread", pid(rank), tid, &name, sort);
}

/// The process that stands for a rank.
fn pid(rank: RankId) -> u32 {
    rank.0 + 1
}

fn describe(
    call: &Call,
    bytes: Bytes,
    issued: SimTime,
    algorithm: Option<&str>,
    meeting: Meeting,
) -> serde_json::Value {
    let mut args = json!({"bytes": bytes.0, "issued_us": in_micros(issued.as_ps())});
    if let CallOp::Collective(collective) = &call.op {
        args["dtype"] = collective.dtype.name().into();
    }
    if let Some(algorithm) = algorithm {
        args["algorithm"] = algorithm.into();
    }
    match meeting {
        Meeting::Collective { sequence } => args["sequence"] = sequence.into(),
        Meeting::Peer(Some((peer, _))) => args["peer"] = peer.0.into(),
        Meeting::Peer(None) => {}
    }
    args
}

impl<W: Write> Observer for TraceWriter<W> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        match *event {
            Event::Computed { rank, task, start, base, name, why, .. } => {
                let args = json!({"reference_us": in_micros(base.as_ps())});
                let row = why.queue.and_then(QueueId::stream).map_or(Row::Task(task), Row::Stream);
                self.slice(rank, row, start, at, name.unwrap_or("compute"), args);
            }
            // Its compute is shown itself.
            Event::Waited { reason: WaitReason::Compute, .. } => {}
            Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, call, .. } => {
                let name = call.map_or_else(|| reason_name(reason), |call| call.op.name());
                let [exposed, late, no_data] = [exposed, late_peer, no_data].map(|span| in_micros(span.as_ps()));
                let args = json!({"exposed_us": exposed, "late_peer_us": late, "no_data_us": no_data});
                self.slice(rank, Row::Task(task), start, at, &format!("wait: {name}"), args);
            }
            Event::Completed { rank, handle, call, bytes, issued, started, algorithm, meeting, .. } => {
                let args = describe(call, bytes, issued, algorithm, meeting);
                let tid = self.slice(rank, Row::Group(call.group), started, at, call.op.name(), args);
                let half = |at| Half { pid: pid(rank), tid, at };
                match (&call.op, meeting) {
                    (CallOp::Send { .. }, _) => self.end_of_arrow((rank, handle), half(started)),
                    // Viewers bind an arrow to the slice around its end, and count in nanoseconds.
                    (CallOp::Recv { .. }, Meeting::Peer(Some(send))) => {
                        let inside = SimTime::from_ps(at.as_ps().saturating_sub(1_000)).max(started);
                        self.end_of_arrow(send, half(inside));
                    }
                    _ => {}
                }
            }
            Event::Failed { rank, call, bytes, issued, started, peer, .. } => {
                let args = describe(call, bytes, issued, None, Meeting::Peer(None));
                let name = match peer == rank {
                    true => format!("{}: aborted", call.op.name()),
                    false => format!("{}: rank {} has closed the connection", call.op.name(), peer.0),
                };
                self.slice(rank, Row::Group(call.group), started, at, &name, args);
            }
            Event::Marked { rank, mark, .. } => self.mark(at, rank, mark),
            Event::Message { wire_bytes, started, sent, links, .. } => self.rates.add(links, started, sent, wire_bytes),
            Event::Finished { rank, .. } => self.close_ranges(at, rank),
            Event::Issued { .. } | Event::Elapsed { .. } | Event::Used { .. } => {}
        }
    }

    fn wants_messages(&self) -> bool {
        true
    }
}

/// An entry of the trace.
struct Entry<'a> {
    ph: char,
    pid: u32,
    tid: u32,
    start: SimTime,
    end: Option<SimTime>,
    name: &'a str,
    args: serde_json::Value,
}

/// `{"traceEvents":[...]}`, written element by element.
struct Document<W> {
    sink: Sink<W>,
    empty: bool,
}

impl<W: Write> Document<W> {
    fn new(out: W) -> Document<W> {
        let mut sink = Sink::new("trace", out);
        sink.write(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        Document { sink, empty: true }
    }

    fn push(&mut self, entry: &str) {
        if !std::mem::take(&mut self.empty) {
            self.sink.write(b",\n");
        }
        self.sink.write(entry.as_bytes());
    }

    fn entry(&mut self, entry: &Entry<'_>) {
        let Entry { ph, pid, tid, start, end, name, args } = entry;
        let (name, start) = (serde_json::Value::from(*name), micros(start.as_ps()));
        let duration =
            end.map(|end| format!(",\"dur\":{}", micros(end.as_ps() - entry.start.as_ps()))).unwrap_or_default();
        self.push(&format!(
            "{{\"ph\":\"{ph}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{start}{duration},\"name\":{name},\"args\":{args}}}"
        ));
    }

    /// A process or a row, and its place among its like.
    fn name(&mut self, kind: &str, pid: u32, tid: u32, name: &str, place: i64) {
        let name = serde_json::Value::from(name);
        self.push(&format!(
            "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{kind}_name\",\"args\":{{\"name\":{name}}}}}"
        ));
        self.push(&format!(
            "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{kind}_sort_index\",\"args\":{{\"sort_index\":{place}}}}}"
        ));
    }

    fn finish(mut self) -> Result<W, WriteError> {
        self.sink.write(b"\n]}\n");
        self.sink.finish()
    }
}

/// Microseconds for people.
fn in_micros(ps: u64) -> f64 {
    ps as f64 / 1e6
}

/// Microseconds, to the picosecond.
fn micros(ps: u64) -> String {
    format!("{}.{:06}", ps / 1_000_000, ps % 1_000_000)
}

#[cfg(test)]
mod tests;
