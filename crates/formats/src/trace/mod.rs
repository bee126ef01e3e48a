//! Owns the trace: a run's events over time, for the viewers of Perfetto and Chrome.
//!
//! Each rank is a process with a row for each task (compute, waits) and for its named ranges, for the rank's ranges
//! that may overlap, for each CUDA stream of its device, and for the operations of each group; slices that overlap
//! within a row go on a second row of the same name. Arrows lead from each send to its receive, and from the reason of
//! a wait to the wait's end. Each used link has a counter of bytes per second, each rank's memory a counter of bytes by
//! kind, and each device of known power a counter of watts. The critical path is a process of its own, above all
//! others.
//!
//! The [`Format`]s write the trace; [`Chrome`] is exact to the picosecond.

mod busy;
mod chrome;
mod format;
mod perfetto;
mod rates;

pub use chrome::Chrome;
pub use format::Format;
pub use perfetto::Perfetto;
pub use rates::LinkRates;

use crate::events::rows::reason_name;
use crate::sink::WriteError;
use busy::Busy;
use format::{Counter, Point, Row, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use uniference_sim::cluster::Cluster;
use uniference_sim::device::Power;
use uniference_sim::event::{Event, Meeting, Observer, WaitReason};
use uniference_sim::ids::{GroupId, Handle, OfProcess, QueueId, RankId, TaskId, stream_name};
use uniference_sim::observe::IssueRanges;
use uniference_sim::program::{Call, CallOp, Mark};
use uniference_sim::time::{Bytes, SimTime};

/// The lines of a program, by [`Site`](uniference_sim::ids::Site), as they become known; empty if unknown.
pub type Lines = Rc<RefCell<Vec<String>>>;

/// The resolution of viewers' times, in picoseconds.
const NANOSECOND: u64 = 1_000;

/// Writes a trace during the run.
pub struct TraceWriter<F> {
    out: F,
    ranks: Vec<RankRows>,
    /// Number of rows.
    rows: u32,
    rates: LinkRates,
    links: Vec<String>,
    lines: Lines,
    /// Sends and receives whose other end is not complete, by the send.
    halves: BTreeMap<(RankId, Handle), Point>,
    /// Number of arrows.
    arrows: u64,
}

/// A span of the critical path in the trace.
pub struct PathSpan {
    /// Virtual time of the start.
    pub start: SimTime,
    /// Virtual time of the end.
    pub end: SimTime,
    /// The label of the span: `latency of a.0 -> switch`.
    pub name: String,
    /// The rank whose time it is.
    pub rank: Option<u32>,
    /// The line of the program.
    pub line: Option<String>,
    /// The innermost range that was open on the rank.
    pub range: Option<String>,
}

/// The end of a wait, and the reason of the wait.
pub struct Release {
    /// The rank of the task.
    pub rank: RankId,
    /// The task that waited.
    pub task: TaskId,
    /// The wait's interval of virtual time.
    pub waited: Range<SimTime>,
    /// The label of the arrow: `waits for rank 2, which computes in layers.7`.
    pub words: String,
    /// The activity for which the task waited.
    pub from: Source,
}

/// The reason of a wait: an activity, and the moment from which on it no longer blocked the task.
pub struct Source {
    /// The rank of the activity.
    pub rank: RankId,
    /// The activity; `None`, or an activity without a row: the rank's main thread.
    pub activity: Option<Handle>,
    /// The interval from the start of the activity to that moment.
    pub span: Range<SimTime>,
}

/// The rows of one rank, in the order in which they were first needed.
struct RankRows {
    /// `rank 0 (orin.0)`.
    name: String,
    rows: BTreeMap<What, Vec<Lane>>,
    /// Open ranges of the rank's threads, in the order of their start: thread, name, and number if the range has one.
    ranges: Vec<(TaskId, String, Option<u32>)>,
    /// The ranges in which the rank's threads issued activities.
    issues: IssueRanges<Arc<str>>,
    /// The row of each open range that may overlap others, by number.
    overlapping: BTreeMap<u32, usize>,
    /// The row that shows each activity, by handle; 0: no row.
    shown: Vec<u32>,
    /// Ends of waits and their rows, by task.
    waits: BTreeMap<TaskId, Vec<(SimTime, u32)>>,
    /// All rows, with their names when they were made.
    made: Vec<(u32, What, String)>,
    /// Names that the program gave its threads.
    called: BTreeMap<TaskId, String>,
    /// The thread whose work on a CUDA stream was shown first, by stream.
    users: BTreeMap<u32, TaskId>,
    /// Power of the rank's device and its busy times, if the power is known.
    power: Option<(Power, Busy)>,
}

/// The content of a row; rows are in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Overlapping,
    Ranges(TaskId),
    Task(TaskId),
    Stream(u32),
    Group(GroupId),
}

/// A row in the viewer: its slices never overlap.
struct Lane {
    id: u32,
    busy_until: SimTime,
}

impl<F: Format> TraceWriter<F> {
    /// A trace of a run on `cluster`, whose program has these lines.
    pub fn new(out: F, cluster: &Cluster, lines: Lines) -> TraceWriter<F> {
        let links = cluster.topology.links().iter().map(|link| link.name.clone()).collect();
        let devices = cluster.devices.iter().map(|device| (&*device.name, device.power));
        TraceWriter::with_rows(out, devices, links, lines)
    }

    /// A trace of a run on devices of these names and, if known, power; and of links.
    pub fn with_rows<'a>(
        out: F,
        devices: impl Iterator<Item = (&'a str, Option<Power>)>,
        links: Vec<String>,
        lines: Lines,
    ) -> TraceWriter<F> {
        let (rates, halves) = (LinkRates::default(), BTreeMap::new());
        let mut trace = TraceWriter { out, ranks: Vec::new(), rows: 0, rates, links, lines, halves, arrows: 0 };
        for (rank, (device, power)) in devices.enumerate() {
            let name = format!("rank {rank} ({device})");
            trace.out.process(pid(RankId::from(rank)), &name, rank as i32);
            let (rows, waits, shown) = Default::default();
            let (ranges, issues, overlapping) = Default::default();
            let (made, called, users) = Default::default();
            let power = power.map(|power| (power, Busy::default()));
            let rows = RankRows { name, rows, ranges, issues, overlapping, shown, waits, made, called, users, power };
            trace.ranks.push(rows);
        }
        let last = pid(RankId::from(trace.ranks.len()));
        trace.out.process(last, "links", last as i32);
        trace
    }

    /// Whether an error has occurred, which [`TraceWriter::finish`] will return.
    pub fn failed(&self) -> bool {
        self.out.failed()
    }

    /// Writes a rank's memory: bytes of each kind from each time on. All points have the same kinds.
    pub fn memory<'a>(&mut self, rank: RankId, points: impl Iterator<Item = (SimTime, Vec<(&'a str, u64)>)>) {
        let counter = Counter { pid: pid(rank), name: "memory", unit: "bytes" };
        for (at, held) in points {
            let values: Vec<_> = held.into_iter().map(|(kind, bytes)| (kind, Value::Integer(bytes))).collect();
            self.out.counter(&counter, at, &values);
        }
    }

    /// Writes the critical path, span by span.
    pub fn critical_path(&mut self, spans: impl Iterator<Item = PathSpan>) {
        let pid = pid(RankId::from(self.ranks.len() + 1));
        self.rows += 1;
        let row = Row { pid, tid: self.rows };
        self.out.process(pid, "critical path", -1);
        self.out.row(row, "critical path", 0);
        for PathSpan { start, end, name, rank, line, range } in spans {
            let rank = rank.map(|rank| ("rank", Value::Integer(rank.into())));
            let [line, range] = [("line", &line), ("range", &range)]
                .map(|(name, text)| text.as_deref().map(|text| (name, Value::Text(text))));
            let args: Vec<_> = [rank, line, range].into_iter().flatten().collect();
            self.out.slice(row, start, end, &name, &args);
        }
    }

    /// Writes the reason of a task's wait: within the slice of the wait, and as an arrow. Waits that viewers cannot
    /// show are left out.
    pub fn release(&mut self, release: &Release) {
        let Release { rank, task, waited, words, from } = release;
        let Some(tid) = self.ranks[rank.index()].wait(*task, waited.end) else { return };
        let row = Row { pid: pid(*rank), tid };
        let moved = |at: SimTime, by: i64| SimTime::from_ps(at.as_ps().saturating_add_signed(by * NANOSECOND as i64));
        // The slice is strictly within the wait, so it is nested in the wait in either order of the two.
        let (start, end) = (moved(waited.start, 1), moved(waited.end, -1));
        if moved(start, 2) > end {
            return;
        }
        self.out.slice(row, start, end, words, &[]);
        let Some(shown) = self.ranks[from.rank.index()].shown(from.activity) else { return };
        let left = moved(from.span.end, -1).max(from.span.start).min(moved(end, -1));
        let from = Point { row: Row { pid: pid(from.rank), tid: shown }, at: left };
        self.arrow("release", from, Point { row, at: moved(end, -1) });
    }

    /// Writes late names, counters and the end of the file; returns what remains of the file.
    ///
    /// # Errors
    /// The first error of the writer, even if it happened long ago.
    pub fn finish(mut self) -> Result<F::File, WriteError> {
        for (rank, rows) in self.ranks.iter().enumerate() {
            for (tid, what, before) in &rows.made {
                // A thread may have got its name after its rows were made.
                let (name, place) = rows.name_of(*what);
                if name != *before {
                    self.out.row(Row { pid: pid(RankId::from(rank)), tid: *tid }, &name, place);
                }
            }
        }
        for (rank, rows) in self.ranks.iter().enumerate() {
            let Some((Power { idle, busy }, when)) = &rows.power else { continue };
            let counter = Counter { pid: pid(RankId::from(rank)), name: "power", unit: "W" };
            for (at, is_busy) in when.changes() {
                let watts = if is_busy { *busy } else { *idle };
                self.out.counter(&counter, at, &[("", Value::Number(watts))]);
            }
        }
        let pid = pid(RankId::from(self.ranks.len()));
        for (link, points) in self.rates.counters() {
            let counter = Counter { pid, name: &self.links[link.index()], unit: "bytes/s" };
            for (at, rate) in points {
                self.out.counter(&counter, at, &[("", Value::Number(rate))]);
            }
        }
        self.out.finish()
    }

    /// The first free row of this kind; the slice then occupies the row.
    fn row_for(&mut self, rank: RankId, what: What, start: SimTime, end: SimTime) -> Row {
        let lane = self.lane(rank, what, start);
        lane.busy_until = end;
        Row { pid: pid(rank), tid: lane.id }
    }

    /// Notes one end of a message's arrow, at the start of the send or at the end of the receive, and writes the arrow
    /// once both are known.
    fn end_of_arrow(&mut self, send: (RankId, Handle), half: Point) {
        let Some(other) = self.halves.remove(&send) else {
            self.halves.insert(send, half);
            return;
        };
        // The end with the earlier time belongs to the sender.
        let (from, to) = if other.at <= half.at { (other, half) } else { (half, other) };
        self.arrow("message", from, to);
    }

    fn arrow(&mut self, name: &'static str, from: Point, to: Point) {
        self.arrows += 1;
        self.out.arrow(self.arrows, name, from, to);
    }

    fn lane(&mut self, rank: RankId, what: What, start: SimTime) -> &mut Lane {
        let index = self.free_lane(rank, what, start);
        self.lane_at(rank, what, index)
    }

    fn lane_at(&mut self, rank: RankId, what: What, index: usize) -> &mut Lane {
        &mut self.ranks[rank.index()].rows.get_mut(&what).expect("its lanes were made")[index]
    }

    /// Number of the first free lane of this kind from `start` on.
    fn free_lane(&mut self, rank: RankId, what: What, start: SimTime) -> usize {
        let rows = &mut self.ranks[rank.index()];
        let lanes = rows.rows.entry(what).or_default();
        let free = lanes.iter().position(|lane| lane.busy_until <= start);
        let index = free.unwrap_or(lanes.len());
        if free.is_none() {
            self.rows += 1;
            let id = self.rows;
            lanes.push(Lane { id, busy_until: SimTime::ZERO });
            let (name, place) = rows.name_of(what);
            self.out.row(Row { pid: pid(rank), tid: id }, &name, place);
            rows.made.push((id, what, name));
        }
        index
    }

    fn mark(&mut self, at: SimTime, rank: RankId, task: TaskId, mark: &Mark) {
        let pid = pid(rank);
        match mark {
            Mark::Begin(name) | Mark::Enter { name, .. } => {
                let tid = self.lane(rank, What::Ranges(task), at).id;
                self.ranks[rank.index()].ranges.push((task, name.as_ref().to_owned(), mark.number()));
                self.out.begin(Row { pid, tid }, at, name);
            }
            Mark::End | Mark::Leave { .. } => {
                // Ranges that were never opened are ignored.
                let open = &mut self.ranks[rank.index()].ranges;
                let ends = |(by, _, its): &(TaskId, String, Option<u32>)| *by == task && *its == mark.number();
                let Some(at_place) = open.iter().rposition(ends) else { return };
                open.remove(at_place);
                let inside: Vec<String> =
                    open[at_place..].iter().filter(|(by, ..)| *by == task).map(|(_, name, _)| name.clone()).collect();
                let tid = self.lane(rank, What::Ranges(task), at).id;
                // Timeline slices of one row must nest: slices that started inside the ended slice end with it and
                // start again.
                (0..=inside.len()).for_each(|_| self.out.end(Row { pid, tid }, at));
                inside.iter().for_each(|name| self.out.begin(Row { pid, tid }, at, name));
            }
            Mark::Open { range, name } => {
                self.mark(at, rank, task, &Mark::Close { range: *range });
                let index = self.free_lane(rank, What::Overlapping, at);
                let lane = self.lane_at(rank, What::Overlapping, index);
                lane.busy_until = SimTime::MAX;
                let tid = lane.id;
                self.ranks[rank.index()].overlapping.insert(*range, index);
                self.out.begin(Row { pid, tid }, at, name);
            }
            Mark::Close { range } => {
                let Some(index) = self.ranks[rank.index()].overlapping.remove(range) else { return };
                let lane = self.lane_at(rank, What::Overlapping, index);
                lane.busy_until = at;
                let tid = lane.id;
                self.out.end(Row { pid, tid }, at);
            }
            Mark::Name(name) => drop(self.ranks[rank.index()].called.insert(task, name.as_ref().to_owned())),
        }
    }

    fn close_ranges(&mut self, at: SimTime, rank: RankId) {
        while let Some((task, _, number)) = self.ranks[rank.index()].ranges.last() {
            let thread = *task;
            let mark = Mark::end_of(*number, thread);
            self.mark(at, rank, thread, &mark);
        }
        while let Some((range, _)) = self.ranks[rank.index()].overlapping.first_key_value() {
            self.mark(at, rank, TaskId(0), &Mark::Close { range: *range });
        }
    }
}

impl RankRows {
    /// The innermost range of a thread, or else the range that was opened last.
    fn range(&self, task: TaskId) -> Option<&str> {
        let own = self.ranges.iter().rfind(|(by, ..)| *by == task);
        own.or(self.ranges.last()).map(|(_, name, _)| &**name)
    }

    /// The row that shows the task's wait that ends at `end`.
    fn wait(&self, task: TaskId, end: SimTime) -> Option<u32> {
        let waits = self.waits.get(&task)?;
        let at = waits.partition_point(|(other, _)| *other < end);
        waits.get(at).filter(|(other, _)| *other == end).map(|(_, row)| *row)
    }

    /// The row of an activity, or else the first row of the main thread.
    fn shown(&self, activity: Option<Handle>) -> Option<u32> {
        let shown = activity.and_then(|handle| self.shown.get(handle.index()).copied());
        let main = || Some(self.rows.get(&What::Task(TaskId(0)))?.first()?.id);
        shown.filter(|row| *row != 0).or_else(main)
    }

    /// The name of a row, and its place among the rows of its process.
    fn name_of(&self, what: What) -> (String, i32) {
        const GROUPS: u32 = 1 << 20;
        const STREAMS: u32 = 1 << 28;
        // Branches of CUDA graphs have numbers after those of programs' own streams.
        const BRANCHES: u32 = 1 << 31;
        let (name, place) = match what {
            What::Overlapping => ("overlapping ranges".to_owned(), 0),
            What::Ranges(TaskId(0)) => ("ranges".to_owned(), 1),
            What::Ranges(task) => (format!("ranges of {}", self.thread(task)), 1 + 2 * task.0),
            What::Task(TaskId(0)) => (self.name.clone(), 2),
            What::Task(task) => (format!("{} {}", self.name, self.thread(task)), 2 + 2 * task.0),
            What::Stream(stream @ BRANCHES..) => (stream_name(stream), 2 * STREAMS + (stream - BRANCHES).min(STREAMS)),
            What::Stream(stream) => (self.stream(stream), STREAMS + stream.min(STREAMS - 1)),
            What::Group(group) => (format!("operations of {group}"), GROUPS + group.0.min(STREAMS - GROUPS - 1)),
        };
        (name, place as i32)
    }

    /// `task 3`, or `VLLM::EngineCore (task 3)`.
    fn thread(&self, task: TaskId) -> String {
        self.called.get(&task).map_or_else(|| task.to_string(), |name| format!("{name} ({task})"))
    }

    /// `stream 7`; for a stream of another process than the rank's own, with the name of the first thread that used it.
    fn stream(&self, stream: u32) -> String {
        let name = stream_name(stream);
        let user = self.users.get(&stream).and_then(|task| self.called.get(task));
        user.filter(|_| !OfProcess::default().has_given(stream))
            .map_or_else(|| name.clone(), |user| format!("{name} ({user})"))
    }

    fn shows(&mut self, activity: Handle, row: Row) {
        if self.shown.len() <= activity.index() {
            self.shown.resize(activity.index() + 1, 0);
        }
        self.shown[activity.index()] = row.tid;
    }
}

/// The number of a rank's process.
fn pid(rank: RankId) -> u32 {
    rank.0 + 1
}

/// The arguments of an operation's slice.
fn describe<'a>(call: &Call, bytes: Bytes, issued: SimTime) -> Vec<(&'static str, Value<'a>)> {
    let mut args = vec![("bytes", Value::Integer(bytes.0)), ("issued_us", micros(issued.as_ps()))];
    if let CallOp::Collective(collective) = &call.op {
        args.push(("dtype", Value::Text(collective.dtype.name())));
    }
    args
}

impl<F: Format> Observer for TraceWriter<F> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        match *event {
            Event::Computed { rank, task, start, base, name, why, .. } => {
                let what = why.queue.and_then(QueueId::stream).map_or(What::Task(task), What::Stream);
                let row = self.row_for(rank, what, start, at);
                let rows = &mut self.ranks[rank.index()];
                rows.shows(why.handle, row);
                if let What::Stream(stream) = what {
                    rows.users.entry(stream).or_insert(task);
                }
                let lines = self.lines.borrow();
                let line = lines.get(why.site.index()).filter(|line| !line.is_empty());
                let mut args = vec![("reference_us", micros(base.as_ps()))];
                args.extend(line.map(|line| ("line", Value::Text(line))));
                let range = match what {
                    What::Stream(_) => rows.issues.at(why.task, why.handle).map(|range| &**range),
                    _ => rows.range(task),
                };
                args.extend(range.map(|range| ("range", Value::Text(range))));
                self.out.slice(row, start, at, name.unwrap_or("compute"), &args);
                if let Some((_, busy)) = &mut rows.power {
                    busy.add(start, at);
                }
            }
            // The compute has a slice of its own, so the wait for it is not shown.
            Event::Waited { reason: WaitReason::Compute, .. } => {}
            Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, call, .. } => {
                let name = call.map_or_else(|| reason_name(reason), |call| call.op.name());
                let [exposed, late, no_data] = [exposed, late_peer, no_data].map(|span| micros(span.as_ps()));
                let args = [("exposed_us", exposed), ("late_peer_us", late), ("no_data_us", no_data)];
                let row = self.row_for(rank, What::Task(task), start, at);
                self.out.slice(row, start, at, &format!("wait: {name}"), &args);
                self.ranks[rank.index()].waits.entry(task).or_default().push((at, row.tid));
            }
            Event::Completed { rank, handle, call, bytes, issued, started, algorithm, meeting, .. } => {
                let mut args = describe(call, bytes, issued);
                args.extend(algorithm.map(|algorithm| ("algorithm", Value::Text(algorithm))));
                match meeting {
                    Meeting::Collective { sequence } => args.push(("sequence", Value::Integer(sequence))),
                    Meeting::Peer(Some((peer, _))) => args.push(("peer", Value::Integer(peer.0.into()))),
                    Meeting::Peer(None) => {}
                }
                let row = self.row_for(rank, What::Group(call.group), started, at);
                self.out.slice(row, started, at, call.op.name(), &args);
                self.ranks[rank.index()].shows(handle, row);
                match (&call.op, meeting) {
                    (CallOp::Send { .. }, _) => self.end_of_arrow((rank, handle), Point { row, at: started }),
                    (CallOp::Recv { .. }, Meeting::Peer(Some(send))) => {
                        let inside = SimTime::from_ps(at.as_ps().saturating_sub(NANOSECOND)).max(started);
                        self.end_of_arrow(send, Point { row, at: inside });
                    }
                    _ => {}
                }
            }
            Event::Failed { rank, call, bytes, issued, started, peer, .. } => {
                let name = match peer == rank {
                    true => format!("{}: aborted", call.op.name()),
                    false => format!("{}: rank {} has closed the connection", call.op.name(), peer.0),
                };
                let row = self.row_for(rank, What::Group(call.group), started, at);
                self.out.slice(row, started, at, &name, &describe(call, bytes, issued));
            }
            Event::Marked { rank, task, mark, why, .. } => {
                self.ranks[rank.index()].issues.mark(task, &why, mark, |name| Arc::from(name));
                self.mark(at, rank, task, mark);
            }
            Event::Message { wire_bytes, started, sent, links, .. } => self.rates.add(links, started, sent, wire_bytes),
            Event::Finished { rank, .. } => self.close_ranges(at, rank),
            Event::Issued { .. } | Event::Elapsed { .. } | Event::Used { .. } => {}
        }
    }

    fn wants_messages(&self) -> bool {
        true
    }
}

/// Picoseconds as microseconds, for people.
fn micros(ps: u64) -> Value<'static> {
    Value::Number(ps as f64 / 1e6)
}

#[cfg(test)]
mod tests;
