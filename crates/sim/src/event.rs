//! Owns the events of a run, and the trait of their observers. Observers are in [`crate::observe`] and in other crates;
//! an observer never influences the run.
//!
//! Events come in the engine's order. An event with a duration is reported at its end, with its start.
//!
//! Each event names its causes: of its beginning, and of its end ([`Cause`]). This lets you walk back from the end of a
//! rank's program, event by event, to the beginning of the run. The spans between these causes leave no gap: the events
//! alone show where time was spent. Digests contain neither ids nor causes.

use crate::ids::{GroupId, Handle, LinkId, MessageId, QueueId, RankId, Site, TaskId};
use crate::program::{Call, Mark, Origin, Outcome};
use crate::time::{Bytes, SimDuration, SimTime};
use serde::Serialize;
use std::ops::AddAssign;

/// Receiver of every event of a run.
pub trait Observer {
    /// Records that `event` happened at `at`, or that an event with a duration ended then.
    fn record(&mut self, at: SimTime, event: &Event<'_>);

    /// Whether the observer wants [`Event::Message`]. Messages number in the millions; their events are built only if
    /// an observer wants them.
    fn wants_messages(&self) -> bool {
        false
    }

    /// Called if the only event at `at` was a change of a link: this lets a caller tell a run that makes progress from
    /// one that only processes link changes.
    fn link_changed(&mut self, _at: SimTime, _link: &str) {}
}

/// The observer that ignores every event.
impl Observer for () {
    fn record(&mut self, _: SimTime, _: &Event<'_>) {}
}

/// Both observers receive every event, the first one first.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.0.record(at, event);
        self.1.record(at, event);
    }

    fn wants_messages(&self) -> bool {
        self.0.wants_messages() || self.1.wants_messages()
    }

    fn link_changed(&mut self, at: SimTime, link: &str) {
        self.0.link_changed(at, link);
        self.1.link_changed(at, link);
    }
}

impl<O: Observer + ?Sized> Observer for &mut O {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        (**self).record(at, event);
    }

    fn wants_messages(&self) -> bool {
        (**self).wants_messages()
    }

    fn link_changed(&mut self, at: SimTime, link: &str) {
        (**self).link_changed(at, link);
    }
}

impl<O: Observer> Observer for Option<O> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        if let Some(observer) = self {
            observer.record(at, event);
        }
    }

    fn wants_messages(&self) -> bool {
        self.as_ref().is_some_and(Observer::wants_messages)
    }

    fn link_changed(&mut self, at: SimTime, link: &str) {
        if let Some(observer) = self {
            observer.link_changed(at, link);
        }
    }
}

/// Something that happened in a run. Most events are reported when they end, and carry their start.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// A rank computed from `start` until now.
    Computed {
        /// The rank that computed.
        rank: RankId,
        /// The thread that started the compute.
        task: TaskId,
        /// The virtual time at which the compute started.
        start: SimTime,
        /// Duration of the same work on the reference device.
        base: SimDuration,
        /// Source of that duration.
        origin: Origin,
        /// The name of the work; `None`: unnamed compute.
        name: Option<&'a str>,
        /// The activity, and the cause of its beginning.
        why: Why,
    },
    /// A rank issued an operation.
    Issued {
        /// The rank that issued the operation.
        rank: RankId,
        /// The rank's handle of the operation.
        handle: Handle,
        /// The operation, as the rank called it.
        call: &'a Call,
        /// Size of the operation's tensor: [`CallOp::bytes`](crate::program::CallOp::bytes) in its group.
        bytes: Bytes,
        /// The user's line.
        site: Site,
        /// The task that issued it; `None`: not recorded, as in a real run.
        task: Option<TaskId>,
    },
    /// An operation is complete on this rank.
    Completed {
        /// The rank on which the operation is complete.
        rank: RankId,
        /// The rank's handle of the operation.
        handle: Handle,
        /// The operation, as the rank called it.
        call: &'a Call,
        /// Size of the tensor, as in [`Event::Issued`].
        bytes: Bytes,
        /// The virtual time at which the operation was issued.
        issued: SimTime,
        /// The virtual time at which the operation reached the head of its queue.
        started: SimTime,
        /// The algorithm that carried out a collective.
        algorithm: Option<&'static str>,
        /// The matched operation or collective.
        meeting: Meeting,
        /// Number of the activity's stream of the rank's device, and the split of its time on the stream; `None` if the
        /// activity was on no stream.
        on_stream: Option<(u32, CallTimes)>,
        /// The operation's activity, and the cause of its beginning.
        why: Why,
        /// Cause of the completion.
        cause: Cause,
    },
    /// A task was blocked from `start` until now.
    Waited {
        /// The rank of the task.
        rank: RankId,
        /// The task that was blocked.
        task: TaskId,
        /// The virtual time at which the wait started.
        start: SimTime,
        /// Kind of the wait.
        reason: WaitReason,
        /// The part of the wait that was exposed communication: nothing computed on the rank in that time.
        exposed: SimDuration,
        /// The part of `exposed` before a peer had entered the operation.
        late_peer: SimDuration,
        /// The part of `late_peer` in receives whose sends had not been issued.
        no_data: SimDuration,
        /// The activities that the task waited for.
        handles: &'a [Handle],
        /// The operation that ended the wait by its completion, or that the wait gave up, if the reason is
        /// [`WaitReason::Communication`].
        call: Option<&'a Call>,
        /// The user's line.
        site: Site,
        /// Cause of the end of the wait.
        cause: Cause,
    },
    /// A named range of the user's program begins or ends.
    Marked {
        /// The rank of the program.
        rank: RankId,
        /// Thread of the range: the thread that made the mark, unless the mark names another thread.
        task: TaskId,
        /// The beginning or end of the range.
        mark: &'a Mark,
        /// The activity, and the cause of its beginning.
        why: Why,
        /// Split of the rank's time until then; `None`: unknown, as in a real run.
        spent: Option<Times>,
    },
    /// A message has arrived.
    Message {
        /// The rank that sent the message.
        source: RankId,
        /// The rank that received the message.
        destination: RankId,
        /// The process group of the operation that the message is part of.
        group: GroupId,
        /// Size of the payload in bytes.
        bytes: Bytes,
        /// Size in bytes with headers.
        wire_bytes: Bytes,
        /// Time at which the message was put on its connection stream.
        queued: SimTime,
        /// Time at which the message was at the head of its connection stream.
        started: SimTime,
        /// Time at which the message's last byte had left.
        sent: SimTime,
        /// Links of the message's route.
        links: &'a [LinkId],
        /// The message, and the cause of its departure.
        way: MessageWay,
    },
    /// Busy times of a CUDA stream of the rank's device, up to the end of the rank's program, whose event follows.
    Used {
        /// The rank of the device.
        rank: RankId,
        /// The stream's number; `None`: all streams of the device together.
        stream: Option<u32>,
        /// Busy times by kind of activity.
        times: StreamTimes,
    },
    /// A rank's program has ended.
    Finished {
        /// The rank that has finished.
        rank: RankId,
        /// How the rank's program ended.
        outcome: Outcome,
        /// Split of the rank's time.
        times: Times,
        /// Bytes that the rank has sent and received.
        traffic: Traffic,
        /// Cause of the end: the rank's task 0, an activity that is the program's last, or a crash.
        cause: Cause,
    },
    /// An operation has failed on this rank because its connection to another rank was closed.
    Failed {
        /// The rank on which the operation failed.
        rank: RankId,
        /// The rank's handle of the operation.
        handle: Handle,
        /// The operation, as the rank called it.
        call: &'a Call,
        /// Size of the tensor, as in [`Event::Issued`].
        bytes: Bytes,
        /// The virtual time at which the operation was issued.
        issued: SimTime,
        /// The virtual time at which the operation reached the head of its queue.
        started: SimTime,
        /// The rank that closed the other end of the connection.
        peer: RankId,
        /// The activity, and the cause of its beginning.
        why: Why,
    },
    /// Time passed on a rank without compute or communication. Digests and counts of events ignore this event.
    Elapsed {
        /// The rank on which time passed.
        rank: RankId,
        /// The thread that was busy, or that issued the activity.
        task: TaskId,
        /// The kind of work or wait that took the time.
        what: Elapsed,
        /// The virtual time at which this work or wait started, which may be the time of the event.
        start: SimTime,
        /// The activity, and the cause of its beginning; `None`: the task itself was busy.
        why: Option<Why>,
        /// Cause of the end.
        cause: Cause,
    },
}

/// The activity of an event, and the cause of its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// The task that issued the activity.
    pub task: TaskId,
    /// The rank's handle of the activity.
    pub handle: Handle,
    /// The rank's queue in which the activity was issued; `None`: the activity was in its group's queue, or in no
    /// queue.
    pub queue: Option<QueueId>,
    /// The line that issued the activity.
    pub site: Site,
    /// The virtual time at which the activity was issued.
    pub issued: SimTime,
    /// Cause of the activity's beginning.
    pub cause: Cause,
}

/// Cause of an event at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Not recorded, as in a real run: the other fields of a [`Why`] are unknown then, too.
    #[default]
    Unknown,
    /// A point in time at which a sleep, a timeout or the cost of a poll was over; at the beginning of a run, the run's
    /// first instant.
    Time,
    /// A request of this task of the rank, at this instant.
    Task(TaskId),
    /// The completion of this activity of the rank, at this instant.
    Activity(Handle),
    /// The beginning of the same operation. The time since then is the library's time for a call.
    Begun(Handle),
    /// The departure of a message's last byte, noticed by the waiting thread.
    Sent(MessageId),
    /// The arrival of a message. The time since then is the library's time to deliver its data.
    Arrived(MessageId),
    /// A change of the store by a task of this rank, at this instant.
    Stored(RankId, TaskId),
    /// A change of the store by an activity of this rank, at its beginning.
    StoredBy(RankId, Handle),
    /// The close of a connection by this rank.
    Closed(RankId),
    /// A crash of the rank, as specified for the cluster.
    Crash,
}

/// Use of a rank's time other than compute and communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elapsed {
    /// A sleep.
    Sleep,
    /// A clock read, or a query of the store.
    Poll,
    /// An operation of the store without an answer, as an activity.
    Store,
    /// Compute of zero duration.
    Nothing,
    /// The record of a CUDA event of the rank's device: lasts no time.
    Reach,
    /// The end of a rank's program, as an activity: lasts no time.
    Finish,
    /// The close of a group's connections: lasts no time.
    Close,
    /// The end of outstanding operations in a group: lasts no time.
    Abort,
}

/// The message of an event, and its time before it was at the head of its connection stream: from `begun` to `released`
/// it waited for its receiver, from `released` to its start for the window or for the previous message; after that it
/// was transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageWay {
    /// Number of the message, in the order in which messages are posted.
    pub id: MessageId,
    /// The sender's operation.
    pub operation: Handle,
    /// The sender's step of a collective, its lane in the highest 8 bits.
    pub step: Option<u64>,
    /// The rank that released it: the sender, or the receiver if the message waited for its receive.
    pub by: RankId,
    /// Time at which that rank posted its operation: the send, or the receive.
    pub begun: SimTime,
    /// Cause of the operation that the rank `by` posted.
    pub cause: Cause,
    /// Time at which the sender knew that the message may leave.
    pub released: SimTime,
    /// The previous message on its connection.
    pub behind: Option<MessageId>,
    /// Link that limited the rate of the message for most of the time in which its bytes left; `None` if no link did.
    pub limit: Option<LinkId>,
    /// Part of the time from the message's start, or from its release if that is later, to its last byte in which the
    /// window of the connection limited the rate, not a link.
    pub in_window: SimDuration,
}

/// Operation or collective that an operation was matched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Meeting {
    /// The group's `sequence`-th collective, counted from 0 on every member alike.
    Collective {
        /// The collective's number in its group.
        sequence: u64,
    },
    /// The operation of one peer: for a receive the send, for a send the receive if it has been matched already.
    Peer(Option<(RankId, Handle)>),
}

/// Kind of a task's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum WaitReason {
    /// Operations of process groups.
    Communication,
    /// Compute that the task had started before.
    Compute,
    /// A key of the store.
    Store,
    /// The task's own sleep.
    Sleep,
}

/// Split of a rank's time. Compute, exposed communication, idle time and the time after the rank's finish add up to the
/// makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time in which at least one activity computed, or the rank paid for a clock read. For a rank with streams,
    /// exposed communication is excluded.
    pub compute: SimDuration,
    /// Time blocked in a communication call while nothing computed. A rank with CUDA streams also counts the time in
    /// which an operation was in progress on a stream and no kernel ran on any stream, whatever the launching CPU did:
    /// [`StreamTimes::exposed`].
    pub exposed: SimDuration,
    /// The part of `exposed` before a peer had entered the operation.
    pub late_peer: SimDuration,
    /// The part of `late_peer` in receives: their sends had not been issued.
    pub no_data: SimDuration,
    /// The remaining time: sleep, waits for the store.
    pub idle: SimDuration,
}

/// Busy times of a CUDA stream, or of any of a device's streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTimes {
    /// Time in which a kernel ran.
    pub kernels: SimDuration,
    /// Time in which a copy between memories ran.
    pub copies: SimDuration,
    /// Time of operations of process groups, from the moment when the stream came to them.
    pub communication: SimDuration,
    /// The part of `communication` in which no kernel ran on any stream of the device.
    pub exposed: SimDuration,
}

/// Split of the time of an operation on a stream of a device, from the moment when the stream came to the operation
/// until the operation's end on this rank. If operations overlap, the common time counts in full for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Time since all peers had entered the operation: the part that is due to the network.
    pub kernel: SimDuration,
    /// Part of `kernel` in which a compute kernel ran on a stream of the same device.
    pub overlapped: SimDuration,
    /// Part of the operation's whole time in which no compute kernel ran on the device.
    pub exposed: SimDuration,
    /// Part of `exposed` before all peers had entered the operation.
    pub late_peer: SimDuration,
    /// Bytes that the operation moves over the bus of each member:
    /// [`CallOp::bus_bytes`](crate::program::CallOp::bus_bytes).
    pub bus_bytes: Bytes,
}

impl AddAssign for CallTimes {
    fn add_assign(&mut self, other: CallTimes) {
        let CallTimes { kernel, overlapped, exposed, late_peer, bus_bytes } = other;
        self.kernel += kernel;
        self.overlapped += overlapped;
        self.exposed += exposed;
        self.late_peer += late_peer;
        self.bus_bytes += bus_bytes;
    }
}

/// Bytes that a rank has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Payload sent, algorithm steps included.
    pub sent: Bytes,
    /// Payload received, algorithm steps included.
    pub received: Bytes,
    /// Bytes sent, headers included.
    pub wire_sent: Bytes,
}
