//! Owns the rows of events: the kind of each event, and the values of the kind's columns in their order.
//! [`super::EventWriter`] and [`super::TableWriter`] write them.

use super::columns::{Name, Type};
use serde::Serialize;
use uniference_sim::event::{CallTimes, Cause, Elapsed, Event, Meeting, WaitReason, Why};
use uniference_sim::ids::GroupRank;
use uniference_sim::program::{CallOp, Mark, Origin, Outcome, Shape};
use uniference_sim::time::{SimDuration, SimTime};

/// The value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // as the types of columns
pub enum Cell<'a> {
    U32(u32),
    U64(u64),
    Text(&'a str),
    /// A text of the simulator, of which there are few.
    Name(&'static str),
    U32s(&'a [u32]),
    U64s(&'a [u64]),
    Null,
}

impl Cell<'_> {
    /// Type of the value; `None`: a missing value.
    pub fn data(&self) -> Option<Type> {
        match self {
            Cell::U32(_) => Some(Type::U32),
            Cell::U64(_) => Some(Type::U64),
            Cell::Text(_) | Cell::Name(_) => Some(Type::Text),
            Cell::U32s(_) => Some(Type::U32s),
            Cell::U64s(_) => Some(Type::U64s),
            Cell::Null => None,
        }
    }
}

/// The kind of an event.
pub fn kind_of(event: &Event<'_>) -> Name {
    match event {
        Event::Computed { .. } => Name::Computed,
        Event::Issued { .. } => Name::Issued,
        Event::Completed { .. } => Name::Completed,
        Event::Failed { .. } => Name::Failed,
        Event::Waited { .. } => Name::Waited,
        Event::Marked { .. } => Name::Marked,
        Event::Message { .. } => Name::Message,
        Event::Elapsed { .. } => Name::Elapsed,
        Event::Used { .. } => Name::Used,
        Event::Finished { .. } => Name::Finished,
    }
}

/// Calls `put` with the values of all columns of the event's kind, in order.
pub fn cells_of(event: &Event<'_>, put: &mut impl FnMut(Cell<'_>)) {
    match *event {
        Event::Computed { rank, task, start, base, origin, name, why } => {
            [Cell::U32(rank.0), Cell::U32(task.0), time(start), span(base), Cell::Name(origin_name(origin))]
                .into_iter()
                .for_each(&mut *put);
            put(name.map_or(Cell::Null, Cell::Text));
            let why = known(why);
            activity(why).into_iter().for_each(&mut *put);
            begun(why).into_iter().for_each(put);
        }
        Event::Issued { rank, handle, call, bytes, site, task } => {
            [Cell::U32(rank.0), Cell::U32(handle.0), Cell::Name(call.op.name())].into_iter().for_each(&mut *put);
            [Cell::U32(call.group.0), Cell::U64(bytes.0)].into_iter().for_each(&mut *put);
            arguments(&call.op).into_iter().for_each(&mut *put);
            [Cell::U32(site.0), task.map_or(Cell::Null, |task| Cell::U32(task.0))].into_iter().for_each(put);
        }
        Event::Completed { rank, handle, call, issued, started, algorithm, meeting, on_stream, why, cause, .. } => {
            [Cell::U32(rank.0), Cell::U32(handle.0), Cell::Name(call.op.name())].into_iter().for_each(&mut *put);
            [Cell::U32(call.group.0), time(issued), time(started)].into_iter().for_each(&mut *put);
            put(algorithm.map_or(Cell::Null, Cell::Name));
            match meeting {
                Meeting::Collective { sequence } => [Cell::U64(sequence), Cell::Null].into_iter().for_each(&mut *put),
                Meeting::Peer(None) => [Cell::Null, Cell::Null].into_iter().for_each(&mut *put),
                Meeting::Peer(Some((rank, handle))) => {
                    [Cell::Null, Cell::U32s(&[rank.0, handle.0])].into_iter().for_each(&mut *put);
                }
            }
            let why = known(why);
            put(issuer(why));
            begun(why).into_iter().for_each(&mut *put);
            caused(cause).into_iter().for_each(&mut *put);
            match on_stream {
                None => [Cell::Null; 6].into_iter().for_each(put),
                Some((stream, CallTimes { kernel, overlapped, exposed, late_peer, bus_bytes })) => {
                    put(Cell::U32(stream));
                    [kernel, overlapped, exposed, late_peer].into_iter().for_each(|lasts| put(span(lasts)));
                    put(Cell::U64(bus_bytes.0));
                }
            }
        }
        Event::Failed { rank, handle, call, issued, started, peer, why, .. } => {
            [Cell::U32(rank.0), Cell::U32(handle.0), Cell::Name(call.op.name())].into_iter().for_each(&mut *put);
            [Cell::U32(call.group.0), time(issued), time(started), Cell::U32(peer.0)].into_iter().for_each(&mut *put);
            let why = known(why);
            put(issuer(why));
            begun(why).into_iter().for_each(put);
        }
        Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, handles, call, site, cause } => {
            [Cell::U32(rank.0), Cell::U32(task.0), time(start), Cell::Name(reason_name(reason))]
                .into_iter()
                .for_each(&mut *put);
            [exposed, late_peer, no_data].into_iter().for_each(|lasts| put(span(lasts)));
            put(Cell::U32s(&handles.iter().map(|handle| handle.0).collect::<Vec<u32>>()));
            put(call.map_or(Cell::Null, |call| Cell::Name(call.op.name())));
            put(Cell::U32(site.0));
            caused(cause).into_iter().for_each(put);
        }
        Event::Marked { rank, task, mark, why, .. } => {
            put(Cell::U32(rank.0));
            let (name, range, called) = match mark {
                Mark::Begin(name) => (Cell::Text(name), Cell::Null, Cell::Null),
                Mark::End => (Cell::Null, Cell::Null, Cell::Null),
                Mark::Open { range, name } => (Cell::Text(name), Cell::U32(*range), Cell::Null),
                Mark::Close { range } => (Cell::Null, Cell::U32(*range), Cell::Null),
                Mark::Name(name) => (Cell::Null, Cell::Null, Cell::Text(name)),
                Mark::Enter { range, name, .. } => (Cell::Text(name), Cell::U32(*range), Cell::Null),
                Mark::Leave { range, .. } => (Cell::Null, Cell::U32(*range), Cell::Null),
            };
            put(name);
            let why = known(why);
            put(if why.is_some() || mark.thread().is_some() { Cell::U32(task.0) } else { Cell::Null });
            activity(why).into_iter().for_each(&mut *put);
            begun(why).into_iter().for_each(&mut *put);
            put(range);
            put(called);
        }
        Event::Message { source, destination, group, bytes, wire_bytes, queued, started, sent, links, way } => {
            [Cell::U32(source.0), Cell::U32(destination.0), Cell::U32(group.0)].into_iter().for_each(&mut *put);
            [Cell::U64(bytes.0), Cell::U64(wire_bytes.0), time(queued), time(started), time(sent)]
                .into_iter()
                .for_each(&mut *put);
            put(Cell::U32s(&links.iter().map(|link| link.0).collect::<Vec<u32>>()));
            // As in the simulator's numbers, the lane is in the highest 8 bits.
            let (lane, step) = way.step.map_or((Cell::Null, Cell::Null), |step| {
                (Cell::U32((step >> 56) as u32), Cell::U64(step & (u64::MAX >> 8)))
            });
            [Cell::U64(way.id.0), Cell::U32(way.operation.0), lane, step].into_iter().for_each(&mut *put);
            [Cell::U32(way.by.0), time(way.begun)].into_iter().for_each(&mut *put);
            caused(way.cause).into_iter().for_each(&mut *put);
            [time(way.released), way.behind.map_or(Cell::Null, |before| Cell::U64(before.0))].into_iter().for_each(put);
        }
        Event::Elapsed { rank, task, what, start, why, cause } => {
            [Cell::U32(rank.0), Cell::U32(task.0), Cell::Name(elapsed_name(what)), time(start)]
                .into_iter()
                .for_each(&mut *put);
            activity(why).into_iter().for_each(&mut *put);
            begun(why).into_iter().for_each(&mut *put);
            caused(cause).into_iter().for_each(put);
        }
        Event::Used { rank, stream, times } => {
            [Cell::U32(rank.0), stream.map_or(Cell::Null, Cell::U32)].into_iter().for_each(&mut *put);
            [times.kernels, times.copies, times.communication, times.exposed]
                .into_iter()
                .for_each(|lasts| put(span(lasts)));
        }
        Event::Finished { rank, outcome, times, traffic, cause } => {
            let outcome = match outcome {
                Outcome::Ok => "Ok",
                Outcome::Failed => "Failed",
                Outcome::Crashed => "Crashed",
            };
            [Cell::U32(rank.0), Cell::Name(outcome)].into_iter().for_each(&mut *put);
            [times.compute, times.exposed, times.late_peer, times.no_data, times.idle]
                .into_iter()
                .for_each(|lasts| put(span(lasts)));
            [traffic.sent, traffic.received, traffic.wire_sent].into_iter().for_each(|bytes| put(Cell::U64(bytes.0)));
            caused(cause).into_iter().for_each(put);
        }
    }
}

fn time(at: SimTime) -> Cell<'static> {
    Cell::U64(at.as_ps())
}

fn span(lasts: SimDuration) -> Cell<'static> {
    Cell::U64(lasts.as_ps())
}

/// `why`, if it is known; it is unknown in real runs.
fn known(why: Why) -> Option<Why> {
    (why.cause != Cause::Unknown).then_some(why)
}

/// The column `task` of an event about an activity.
fn issuer(why: Option<Why>) -> Cell<'static> {
    why.map_or(Cell::Null, |why| Cell::U32(why.task.0))
}

/// The columns `handle` and `issued_ps`.
fn activity(why: Option<Why>) -> [Cell<'static>; 2] {
    why.map_or([Cell::Null, Cell::Null], |why| [Cell::U32(why.handle.0), time(why.issued)])
}

/// The columns from `queue` to `begin_cause_id`.
fn begun(why: Option<Why>) -> [Cell<'static>; 5] {
    let queue = why.and_then(|why| why.queue).map_or(Cell::Null, |queue| Cell::U32(queue.0));
    let site = why.map_or(Cell::Null, |why| Cell::U32(why.site.0));
    let [cause, rank, id] = caused(why.map_or(Cause::Unknown, |why| why.cause));
    [queue, site, cause, rank, id]
}

/// The name of a cause, its rank, and its task, handle or message.
pub(super) fn caused(cause: Cause) -> [Cell<'static>; 3] {
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
    [Cell::Name(name), rank.map_or(Cell::Null, |rank| Cell::U32(rank.0)), id.map_or(Cell::Null, Cell::U64)]
}

/// The columns from `dtype` to `tag`.
fn arguments(op: &CallOp) -> [Cell<'_>; 8] {
    let place = |place: Option<GroupRank>| place.map_or(Cell::Null, |rank| Cell::U32(rank.0));
    let null = Cell::Null;
    match op {
        CallOp::Collective(collective) => {
            let (elements, blocks, received) = match &collective.shape {
                Shape::Even(count) => (Cell::U64(*count), null, null),
                Shape::Blocks(blocks) => (null, Cell::U64s(blocks), null),
                Shape::Pairs { send, recv } => (null, Cell::U64s(send), Cell::U64s(recv)),
            };
            let reduce = collective.reduce.map_or(null, |reduce| Cell::Name(reduce.name()));
            let dtype = Cell::Name(collective.dtype.name());
            [dtype, reduce, place(collective.root), elements, blocks, received, null, null]
        }
        CallOp::Send { to, tag, .. } => [null, null, null, null, null, null, place(Some(*to)), Cell::U64(*tag)],
        CallOp::Recv { from, tag, .. } => [null, null, null, null, null, null, place(*from), Cell::U64(*tag)],
        CallOp::Write { to, .. } => [null, null, null, null, null, null, place(Some(*to)), null],
    }
}

fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "Measured",
        Origin::Recorded => "Recorded",
        Origin::None => "None",
        Origin::Roofline => "Roofline",
        Origin::Database => "Database",
        Origin::Interpolated => "Interpolated",
        Origin::Transferred => "Transferred",
        Origin::Extrapolated => "Extrapolated",
    }
}

fn elapsed_name(what: Elapsed) -> &'static str {
    match what {
        Elapsed::Sleep => "sleep",
        Elapsed::Poll => "poll",
        Elapsed::Store => "store",
        Elapsed::Nothing => "nothing",
        Elapsed::Reach => "reach",
        Elapsed::Finish => "finish",
        Elapsed::Close => "close",
        Elapsed::Abort => "abort",
    }
}

/// The reason of a task's wait, in one word.
pub(crate) fn reason_name(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Communication => "communication",
        WaitReason::Compute => "compute",
        WaitReason::Store => "store",
        WaitReason::Sleep => "sleep",
    }
}
