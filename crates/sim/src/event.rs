//! Owns what is told about a run: its events, and the trait of whoever observes them. Which observers there are is the business of [`crate::observe`]
//! and of other crates. An observer never influences the run.
//!
//! Events come in the engine's order. What lasts is reported when it ends, with the moment at which it began.
//!
//! Each says why: what let it begin, and what ended it ([`Cause`]). From the end of a rank's program one can so walk back, event by event, to the
//! beginning of the run, and the spans on that way leave no gap: where time was spent is in the stream alone. Digests know nothing of ids and causes.

use crate::ids::{GroupId, Handle, LinkId, MessageId, QueueId, RankId, Site, TaskId};
use crate::program::{Call, Mark, Origin, Outcome};
use crate::time::{Bytes, SimDuration, SimTime};
use serde::Serialize;
use std::ops::AddAssign;

/// Sees every event of a run.
pub trait Observer {
    /// `event` happened, or came to its end, at `at`.
    fn record(&mut self, at: SimTime, event: &Event<'_>);

    /// Does it look at [`Event::Message`]? There are millions of them; nobody builds them unless somebody looks.
    fn wants_messages(&self) -> bool {
        false
    }

    /// Nothing happened at `at` but a change of a link: so a caller can tell a run that goes on from one that only counts changes.
    fn link_changed(&mut self, _at: SimTime, _link: &str) {}
}

/// The observer that ignores every event.
impl Observer for () {
    fn record(&mut self, _: SimTime, _: &Event<'_>) {}
}

/// Both see everything, the first one first.
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
        /// How long the same work takes on the reference device.
        base: SimDuration,
        /// Where that figure comes from.
        origin: Origin,
        /// The name of the work; `None`: unnamed compute.
        name: Option<&'a str>,
        /// Which activity it was, and why it began.
        why: Why,
    },
    /// A rank asked for an operation.
    Issued {
        /// The rank that asked.
        rank: RankId,
        /// The rank's handle of the operation.
        handle: Handle,
        /// The operation, as the rank called it.
        call: &'a Call,
        /// Size of the tensor that it names: [`CallOp::bytes`](crate::program::CallOp::bytes) in its group.
        bytes: Bytes,
        /// The user's line.
        site: Site,
        /// The task that asked; `None`: it was not recorded, as in a real run.
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
        /// The virtual time at which it was issued.
        issued: SimTime,
        /// The virtual time at which its queue came to it.
        started: SimTime,
        /// The algorithm that carried out a collective.
        algorithm: Option<&'static str>,
        /// With whom it met.
        meeting: Meeting,
        /// Number of the activity's stream of the rank's device, and the split of its time on the stream; `None` if the
        /// activity was on no stream.
        on_stream: Option<(u32, CallTimes)>,
        /// Which activity it was, and why it began.
        why: Why,
        /// What completed it.
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
        /// What kind of thing the task waited for.
        reason: WaitReason,
        /// The part of the wait that was exposed communication: nothing computed on the rank meanwhile.
        exposed: SimDuration,
        /// The part of `exposed` before a peer had entered the operation.
        late_peer: SimDuration,
        /// The part of `late_peer` in receives whose sends had not been issued.
        no_data: SimDuration,
        /// The activities it waited for.
        handles: &'a [Handle],
        /// Where the reason is [`WaitReason::Communication`]: the operation whose completion ended the wait, or that it gave up.
        call: Option<&'a Call>,
        /// The user's line.
        site: Site,
        /// What let the task go on.
        cause: Cause,
    },
    /// A named range of the user's begins or ends.
    Marked {
        /// The rank whose program marked it.
        rank: RankId,
        /// Thread of the range: the thread that made the mark, unless the mark names another thread.
        task: TaskId,
        /// The beginning or end of the range.
        mark: &'a Mark,
        /// Which activity it was, and why it began.
        why: Why,
        /// Where the rank's time has gone until then; `None`: it is not known, as in a real run.
        spent: Option<Times>,
    },
    /// A message has arrived.
    Message {
        /// The rank that sent it.
        source: RankId,
        /// The rank that received it.
        destination: RankId,
        /// The process group of the operation that the message is part of.
        group: GroupId,
        /// Size of the payload in bytes.
        bytes: Bytes,
        /// Size in bytes with headers.
        wire_bytes: Bytes,
        /// When it was put on its stream.
        queued: SimTime,
        /// When it came to the head of its stream.
        started: SimTime,
        /// When its last byte had left.
        sent: SimTime,
        /// The links it used.
        links: &'a [LinkId],
        /// Which message it was, and why it left when it did.
        way: MessageWay,
    },
    /// What a stream of the rank's device was busy with, up to the end of the rank's program, which comes next.
    Used {
        /// The rank of the device.
        rank: RankId,
        /// The stream's number; `None`: all streams of the device together.
        stream: Option<u32>,
        /// How long it was busy, by what.
        times: StreamTimes,
    },
    /// A rank's program has ended.
    Finished {
        /// The rank that has finished.
        rank: RankId,
        /// How its program ended.
        outcome: Outcome,
        /// Where its time went.
        times: Times,
        /// What it has moved.
        traffic: Traffic,
        /// What ended it: its task 0, an activity that is the program's last, or its crash.
        cause: Cause,
    },
    /// An operation has failed on this rank: its connection to another one was closed.
    Failed {
        /// The rank on which the operation failed.
        rank: RankId,
        /// The rank's handle of the operation.
        handle: Handle,
        /// The operation, as the rank called it.
        call: &'a Call,
        /// Size of the tensor, as in [`Event::Issued`].
        bytes: Bytes,
        /// The virtual time at which it was issued.
        issued: SimTime,
        /// The virtual time at which its queue came to it.
        started: SimTime,
        /// The rank that closed the other end of the connection.
        peer: RankId,
        /// Which activity it was, and why it began.
        why: Why,
    },
    /// Time went by on a rank without compute or communication. Neither digests nor counts of events know of it.
    Elapsed {
        /// The rank on which time went by.
        rank: RankId,
        /// The thread that was busy, or that issued the activity.
        task: TaskId,
        /// What the time was spent on.
        what: Elapsed,
        /// The virtual time at which it started, which may be the time of the event.
        start: SimTime,
        /// Which activity it was, and why it began; `None`: the task itself was busy.
        why: Option<Why>,
        /// What ended it.
        cause: Cause,
    },
}

/// Which activity of its rank an event is about, and why it began when it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// The task that issued the activity.
    pub task: TaskId,
    /// The rank's handle of the activity.
    pub handle: Handle,
    /// The queue of the rank that it stood in; `None`: its group's queue, or none.
    pub queue: Option<QueueId>,
    /// The line that issued the activity.
    pub site: Site,
    /// The virtual time at which the activity was issued.
    pub issued: SimTime,
    /// What let the activity begin.
    pub cause: Cause,
}

/// What let something happen at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Not recorded, as in a real run: then the other fields of a [`Why`] are unknown, too.
    #[default]
    Unknown,
    /// The time had come: a sleep or a time-out was over, a poll was paid for; at the beginning of a run, its first instant.
    Time,
    /// This task of the rank asked for it, at this instant.
    Task(TaskId),
    /// This activity of the rank was complete, at this instant.
    Activity(Handle),
    /// The beginning of the same operation. The time since then is what the library takes for a call.
    Begun(Handle),
    /// The last byte of a message had left, and the thread that waits for that had noticed.
    Sent(MessageId),
    /// The arrival of a message. The time since then is what the library takes to hand its data over.
    Arrived(MessageId),
    /// A task of this rank changed the store, at this instant.
    Stored(RankId, TaskId),
    /// An activity of this rank changed the store, as it began.
    StoredBy(RankId, Handle),
    /// This rank had closed its end of a connection.
    Closed(RankId),
    /// The rank crashed, as the cluster wanted.
    Crash,
}

/// What a rank's time went by with, besides compute and communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elapsed {
    /// A sleep.
    Sleep,
    /// A read of the clock, or a look into the store.
    Poll,
    /// An operation of the store that nobody looks at.
    Store,
    /// Compute that takes no time.
    Nothing,
    /// An event of the rank's device, which is reached: takes no time.
    Reach,
    /// The end of a rank's program, as an activity: takes no time.
    Finish,
    /// The close of a group's connections: takes no time.
    Close,
    /// The end of what was outstanding in a group: takes no time.
    Abort,
}

/// Which message an event is about, and where its time went before it was at the head of its stream: from `begun` to `released` it
/// waited for its receiver, from `released` to its start for the window or for the message before it, and then it was on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageWay {
    /// Its number, in the order in which messages are posted.
    pub id: MessageId,
    /// The sender's operation.
    pub operation: Handle,
    /// Of a collective: the sender's step, its lane in the highest 8 bits.
    pub step: Option<u64>,
    /// The rank that let it leave: the sender, or the receiver where the message waited for it.
    pub by: RankId,
    /// When that rank posted its operation: the send, or the receive.
    pub begun: SimTime,
    /// What let `by` post its operation.
    pub cause: Cause,
    /// When its sender knew that it may leave.
    pub released: SimTime,
    /// The message before it on its connection.
    pub behind: Option<MessageId>,
    /// Link that limited the rate of the message for most of the time in which its bytes left; `None` if no link did.
    pub limit: Option<LinkId>,
    /// Part of the time from the message's start, or from its release if that is later, to its last byte in which the
    /// window of the connection limited the rate, not a link.
    pub in_window: SimDuration,
}

/// With whom an operation met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Meeting {
    /// The group's `sequence`-th collective, counted from 0 on every member alike.
    Collective {
        /// The collective's number in its group.
        sequence: u64,
    },
    /// The operation of one peer: of a receive the send, of a send the receive if there is one yet.
    Peer(Option<(RankId, Handle)>),
}

/// What a task waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum WaitReason {
    /// Operations of process groups.
    Communication,
    /// Compute that it had started before.
    Compute,
    /// A key of the store.
    Store,
    /// Its own sleep.
    Sleep,
}

/// Where a rank's time went. The three parts and the time after its finish add up to the makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time in which at least one activity computed, or the rank paid for a clock read. For a rank with streams,
    /// exposed communication is excluded.
    pub compute: SimDuration,
    /// Time blocked in a communication call while nothing computed. A rank with streams also counts the time in which
    /// an operation was under way on a stream and no kernel ran on any stream, whatever the launching CPU did:
    /// [`StreamTimes::exposed`].
    pub exposed: SimDuration,
    /// The part of `exposed` before a peer had entered the operation.
    pub late_peer: SimDuration,
    /// The part of `late_peer` in receives: their sends had not been issued.
    pub no_data: SimDuration,
    /// The remaining time: sleep, waits for the store.
    pub idle: SimDuration,
}

/// How long a stream of a device, or any of its streams, was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTimes {
    /// A kernel ran.
    pub kernels: SimDuration,
    /// A copy between memories.
    pub copies: SimDuration,
    /// An operation of a process group, from when the stream came to it.
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
    /// Bytes that the operation moves over the bus of each member: [`CallOp::bus_bytes`](crate::program::CallOp::bus_bytes).
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
