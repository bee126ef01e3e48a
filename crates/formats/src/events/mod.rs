//! Owns the event stream on disk: one event a line, as JSON, in the engine's order, with the columns of [`columns`]. Times are integer picoseconds, sizes bytes.

pub mod columns;

use crate::sink::{Sink, WriteError};
use columns::{COMMON, KINDS, Kind, Type, VERSION};
use serde::Serialize;
use std::io::Write;
use uniference_sim::event::{Cause, Elapsed, Event, Meeting, Observer, WaitReason, Why};
use uniference_sim::program::{CallOp, Mark, Origin, Outcome, Shape};
use uniference_sim::time::SimTime;

/// Writes every event of a run, messages included.
pub struct EventWriter<W> {
    sink: Sink<W>,
    line: Vec<u8>,
}

impl<W: Write> EventWriter<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W) -> EventWriter<W> {
        let mut writer = EventWriter { sink: Sink::new("event stream", out), line: Vec::new() };
        writer.write(SimTime::ZERO, &Row { kind: "stream", cells: vec![Cell::U32(VERSION)] });
        writer
    }

    /// Has something been lost? Then [`EventWriter::finish`] will say why.
    pub fn failed(&self) -> bool {
        self.sink.failed()
    }

    /// Flushes and gives back the writer.
    ///
    /// # Errors
    /// The first error of the writer, even if it happened long ago.
    pub fn finish(self) -> Result<W, WriteError> {
        self.sink.finish()
    }

    fn write(&mut self, at: SimTime, row: &Row<'_>) {
        self.line.clear();
        let common = [Cell::U64(at.as_ps()), Cell::Text(row.kind)];
        let named = COMMON.iter().zip(&common).chain(row.kind().columns.iter().zip(&row.cells));
        for (index, (column, cell)) in named.enumerate() {
            self.line.push(if index == 0 { b'{' } else { b',' });
            for part in [serde_json::to_writer(&mut self.line, column.name), {
                self.line.push(b':');
                serde_json::to_writer(&mut self.line, cell)
            }] {
                part.expect("numbers and strings are JSON");
            }
        }
        self.line.extend_from_slice(b"}\n");
        self.sink.write(&self.line);
    }
}

impl<W: Write> Observer for EventWriter<W> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.write(at, &Row::of(event));
    }

    fn wants_messages(&self) -> bool {
        true
    }
}

/// What is said of one event.
pub struct Row<'a> {
    /// The name of its [`Kind`].
    kind: &'static str,
    /// By column.
    cells: Vec<Cell<'a>>,
}

/// The value of a column.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // as the types of columns
pub enum Cell<'a> {
    U32(u32),
    U64(u64),
    Text(&'a str),
    U32s(Vec<u32>),
    U64s(&'a [u64]),
    Null,
}

impl Cell<'_> {
    /// Of which type it is; `None`: of any that may be missing.
    pub fn data(&self) -> Option<Type> {
        match self {
            Cell::U32(_) => Some(Type::U32),
            Cell::U64(_) => Some(Type::U64),
            Cell::Text(_) => Some(Type::Text),
            Cell::U32s(_) => Some(Type::U32s),
            Cell::U64s(_) => Some(Type::U64s),
            Cell::Null => None,
        }
    }
}

impl<'a> Row<'a> {
    /// Its columns.
    ///
    /// # Panics
    /// Never: each row is of a kind in the table.
    pub fn kind(&self) -> &'static Kind {
        KINDS.iter().find(|kind| kind.name == self.kind).expect("the table has all kinds")
    }

    /// In the order of its kind's columns.
    pub fn cells(&self) -> &[Cell<'a>] {
        &self.cells
    }

    /// What is said of an event.
    pub fn of(event: &Event<'a>) -> Row<'a> {
        let ps = |at: SimTime| Cell::U64(at.as_ps());
        let (kind, cells) = match *event {
            Event::Computed { rank, task, start, base, origin, why, .. } => {
                let origin = match origin {
                    Origin::Measured => "Measured",
                    Origin::Recorded => "Recorded",
                    Origin::None => "None",
                    Origin::Roofline => "Roofline",
                    Origin::Database => "Database",
                    Origin::Interpolated => "Interpolated",
                    Origin::Transferred => "Transferred",
                };
                let mut cells =
                    vec![Cell::U32(rank.0), Cell::U32(task.0), ps(start), Cell::U64(base.as_ps()), Cell::Text(origin)];
                cells.extend(activity(known(why)).into_iter().chain(begun(known(why))));
                ("computed", cells)
            }
            Event::Issued { rank, handle, call, bytes, site, task } => {
                let mut cells = vec![
                    Cell::U32(rank.0),
                    Cell::U32(handle.0),
                    Cell::Text(call.op.name()),
                    Cell::U32(call.group.0),
                    Cell::U64(bytes.0),
                ];
                cells.extend(arguments(&call.op));
                cells.extend([Cell::U32(site.0), task.map_or(Cell::Null, |task| Cell::U32(task.0))]);
                ("issued", cells)
            }
            Event::Completed { rank, handle, call, issued, started, algorithm, meeting, why, cause, .. } => {
                let (sequence, peer) = match meeting {
                    Meeting::Collective { sequence } => (Cell::U64(sequence), Cell::Null),
                    Meeting::Peer(None) => (Cell::Null, Cell::Null),
                    Meeting::Peer(Some((rank, handle))) => (Cell::Null, Cell::U32s(vec![rank.0, handle.0])),
                };
                let (operation, group) = (Cell::Text(call.op.name()), Cell::U32(call.group.0));
                let algorithm = algorithm.map_or(Cell::Null, Cell::Text);
                let (rank, handle) = (Cell::U32(rank.0), Cell::U32(handle.0));
                let (issued, started) = (ps(issued), ps(started));
                let mut cells = vec![rank, handle, operation, group, issued, started, algorithm, sequence, peer];
                cells.push(issuer(known(why)));
                cells.extend(begun(known(why)).into_iter().chain(caused(cause)));
                ("completed", cells)
            }
            Event::Failed { rank, handle, call, issued, started, peer, why, .. } => {
                let (operation, group) = (Cell::Text(call.op.name()), Cell::U32(call.group.0));
                let (rank, handle, peer) = (Cell::U32(rank.0), Cell::U32(handle.0), Cell::U32(peer.0));
                let mut cells = vec![rank, handle, operation, group, ps(issued), ps(started), peer];
                cells.push(issuer(known(why)));
                cells.extend(begun(known(why)));
                ("failed", cells)
            }
            Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, handles, call, site, cause } => {
                let mut cells = vec![Cell::U32(rank.0), Cell::U32(task.0), ps(start), Cell::Text(reason_name(reason))];
                cells.extend([exposed, late_peer, no_data].map(|span| Cell::U64(span.as_ps())));
                cells.push(Cell::U32s(handles.iter().map(|handle| handle.0).collect()));
                cells.push(call.map_or(Cell::Null, |call| Cell::Text(call.op.name())));
                cells.push(Cell::U32(site.0));
                cells.extend(caused(cause));
                ("waited", cells)
            }
            Event::Marked { rank, mark, why, .. } => {
                let begin = if let Mark::Begin(name) = mark { Cell::Text(name) } else { Cell::Null };
                let mut cells = vec![Cell::U32(rank.0), begin, issuer(known(why))];
                cells.extend(activity(known(why)).into_iter().chain(begun(known(why))));
                ("marked", cells)
            }
            Event::Message { source, destination, group, bytes, wire_bytes, queued, started, sent, links, way } => {
                let mut cells = vec![Cell::U32(source.0), Cell::U32(destination.0), Cell::U32(group.0)];
                cells.extend([Cell::U64(bytes.0), Cell::U64(wire_bytes.0), ps(queued), ps(started), ps(sent)]);
                cells.push(Cell::U32s(links.iter().map(|link| link.0).collect()));
                // As the simulator numbers them: the lane is in the highest 8 bits.
                let (lane, step) = way.step.map_or((Cell::Null, Cell::Null), |step| {
                    (Cell::U32((step >> 56) as u32), Cell::U64(step & (u64::MAX >> 8)))
                });
                cells.extend([Cell::U64(way.id.0), Cell::U32(way.operation.0), lane, step]);
                cells.extend([Cell::U32(way.by.0), ps(way.begun)].into_iter().chain(caused(way.cause)));
                cells.extend([ps(way.released), way.behind.map_or(Cell::Null, |before| Cell::U64(before.0))]);
                ("message", cells)
            }
            Event::Elapsed { rank, task, what, start, why, cause } => {
                let what = match what {
                    Elapsed::Sleep => "sleep",
                    Elapsed::Poll => "poll",
                    Elapsed::Store => "store",
                    Elapsed::Nothing => "nothing",
                    Elapsed::Reach => "reach",
                    Elapsed::Finish => "finish",
                    Elapsed::Close => "close",
                    Elapsed::Abort => "abort",
                };
                let mut cells = vec![Cell::U32(rank.0), Cell::U32(task.0), Cell::Text(what), ps(start)];
                cells.extend(activity(why).into_iter().chain(begun(why)).chain(caused(cause)));
                ("elapsed", cells)
            }
            Event::Used { rank, stream, times } => {
                let mut cells = vec![Cell::U32(rank.0), stream.map_or(Cell::Null, Cell::U32)];
                let spans = [times.kernels, times.copies, times.communication, times.exposed];
                cells.extend(spans.map(|span| Cell::U64(span.as_ps())));
                ("used", cells)
            }
            Event::Finished { rank, outcome, times, traffic, cause } => {
                let outcome = match outcome {
                    Outcome::Ok => "Ok",
                    Outcome::Failed => "Failed",
                    Outcome::Crashed => "Crashed",
                };
                let spans = [times.compute, times.exposed, times.late_peer, times.no_data, times.idle];
                let mut cells = vec![Cell::U32(rank.0), Cell::Text(outcome)];
                cells.extend(spans.map(|span| Cell::U64(span.as_ps())));
                cells.extend([traffic.sent, traffic.received, traffic.wire_sent].map(|bytes| Cell::U64(bytes.0)));
                cells.extend(caused(cause));
                ("finished", cells)
            }
        };
        Row { kind, cells }
    }
}

/// Real runs do not say it.
fn known(why: Why) -> Option<Why> {
    (why.cause != Cause::Unknown).then_some(why)
}

/// `task` of an event about an activity.
fn issuer(why: Option<Why>) -> Cell<'static> {
    why.map_or(Cell::Null, |why| Cell::U32(why.task.0))
}

/// `handle` and `issued_ps`.
fn activity(why: Option<Why>) -> [Cell<'static>; 2] {
    why.map_or([Cell::Null, Cell::Null], |why| [Cell::U32(why.handle.0), Cell::U64(why.issued.as_ps())])
}

/// From `queue` to `begin_cause_id`.
fn begun(why: Option<Why>) -> [Cell<'static>; 5] {
    let queue = why.and_then(|why| why.queue).map_or(Cell::Null, |queue| Cell::U32(queue.0));
    let site = why.map_or(Cell::Null, |why| Cell::U32(why.site.0));
    let [cause, rank, id] = caused(why.map_or(Cause::Unknown, |why| why.cause));
    [queue, site, cause, rank, id]
}

/// A cause's name, the rank that it names, and the task, handle or message.
fn caused(cause: Cause) -> [Cell<'static>; 3] {
    let (name, rank, id) = match cause {
        Cause::Unknown => return [Cell::Null, Cell::Null, Cell::Null],
        Cause::Time => ("time", None, None),
        Cause::Task(task) => ("task", None, Some(task.0.into())),
        Cause::Activity(handle) => ("activity", None, Some(handle.0.into())),
        Cause::Begun(handle) => ("begun", None, Some(handle.0.into())),
        Cause::Sent(message) => ("sent", None, Some(message.0)),
        Cause::Arrived(message) => ("arrived", None, Some(message.0)),
        Cause::Stored(rank, task) => ("stored", Some(rank), Some(task.0.into())),
        Cause::StoredBy(rank, handle) => ("stored_by", Some(rank), Some(handle.0.into())),
        Cause::Closed(rank) => ("closed", Some(rank), None),
        Cause::Crash => ("crash", None, None),
    };
    [Cell::Text(name), rank.map_or(Cell::Null, |rank| Cell::U32(rank.0)), id.map_or(Cell::Null, Cell::U64)]
}

/// From `dtype` to `tag`.
fn arguments(op: &CallOp) -> [Cell<'_>; 8] {
    let place = |place: Option<uniference_sim::ids::GroupRank>| place.map_or(Cell::Null, |rank| Cell::U32(rank.0));
    let null = || Cell::Null;
    match op {
        CallOp::Collective(collective) => {
            let (elements, blocks, received) = match &collective.shape {
                Shape::Even(count) => (Cell::U64(*count), null(), null()),
                Shape::Blocks(blocks) => (null(), Cell::U64s(blocks), null()),
                Shape::Pairs { send, recv } => (null(), Cell::U64s(send), Cell::U64s(recv)),
            };
            let reduce = collective.reduce.map_or(Cell::Null, |reduce| Cell::Text(reduce.name()));
            let dtype = Cell::Text(collective.dtype.name());
            [dtype, reduce, place(collective.root), elements, blocks, received, null(), null()]
        }
        CallOp::Send { to, tag, .. } => {
            [null(), null(), null(), null(), null(), null(), place(Some(*to)), Cell::U64(*tag)]
        }
        CallOp::Recv { from, tag, .. } => {
            [null(), null(), null(), null(), null(), null(), place(*from), Cell::U64(*tag)]
        }
    }
}

/// What a task waited for, in one word.
pub(crate) fn reason_name(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Communication => "communication",
        WaitReason::Compute => "compute",
        WaitReason::Store => "store",
        WaitReason::Sleep => "sleep",
    }
}

#[cfg(test)]
mod tests;
