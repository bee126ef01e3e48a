//! Owns what is told about a run: the events that observers see, and the observers that are built in. It never influences the run.
//!
//! Events come in the engine's order. What lasts is reported when it ends, with the moment at which it began.

mod digest;
mod replay;
mod statistics;

pub use crate::comm::Traffic;
pub use crate::engine::Times;
pub use digest::Digest;
pub use replay::{Listener, Replayed, replay, replay_heard};
pub use statistics::{OperationStatistics, RankStatistics, Statistics};

use crate::ids::{GroupId, Handle, LinkId, RankId, Site, TaskId};
use crate::program::{Call, Mark, Origin, Outcome};
use crate::time::{Bytes, SimDuration, SimTime};
use serde::Serialize;

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

/// Sees nothing.
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

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Event<'a> {
    /// A rank computed from `start` until now.
    Computed {
        /// Who.
        rank: RankId,
        /// Its thread.
        task: TaskId,
        /// Since when.
        start: SimTime,
        /// How long the same work takes on the reference device.
        base: SimDuration,
        /// Where that figure comes from.
        origin: Origin,
    },
    /// A rank asked for an operation.
    Issued {
        /// Who.
        rank: RankId,
        /// How the rank calls the operation from now on.
        handle: Handle,
        /// What.
        call: &'a Call,
        /// The user's line.
        site: Site,
    },
    /// An operation is complete on this rank.
    Completed {
        /// Who.
        rank: RankId,
        /// Which operation.
        handle: Handle,
        /// What it was.
        call: &'a Call,
        /// When it was asked for.
        issued: SimTime,
        /// When its queue came to it.
        started: SimTime,
        /// The algorithm that carried out a collective.
        algorithm: Option<&'static str>,
        /// With whom it met.
        meeting: Meeting,
    },
    /// A task was blocked from `start` until now.
    Waited {
        /// Who.
        rank: RankId,
        /// Its thread.
        task: TaskId,
        /// Since when.
        start: SimTime,
        /// For what.
        reason: WaitReason,
        /// How much of it was exposed communication: nothing computed meanwhile.
        exposed: SimDuration,
        /// How much of that passed before a peer had entered the operation.
        late_peer: SimDuration,
        /// How much of that was in receives whose sends had not been issued. Digests that are kept were made without it.
        #[serde(skip)]
        no_data: SimDuration,
        /// The activities it waited for.
        handles: &'a [Handle],
        /// Where the reason is [`WaitReason::Communication`]: the operation whose completion ended the wait, or that it gave up.
        call: Option<&'a Call>,
        /// The user's line.
        site: Site,
    },
    /// A named range of the user's opens or closes.
    Marked {
        /// Who.
        rank: RankId,
        /// Which.
        mark: &'a Mark,
    },
    /// A message has arrived.
    Message {
        /// From.
        source: RankId,
        /// To.
        destination: RankId,
        /// Of which group's operation.
        group: GroupId,
        /// Its size.
        bytes: Bytes,
        /// The same with headers.
        wire_bytes: Bytes,
        /// When it was put on its stream.
        queued: SimTime,
        /// When it came to the head of its stream.
        started: SimTime,
        /// When its last byte had left.
        sent: SimTime,
        /// The links it used.
        links: &'a [LinkId],
    },
    /// A rank's program has ended.
    Finished {
        /// Who.
        rank: RankId,
        /// How.
        outcome: Outcome,
        /// Where its time went.
        times: Times,
        /// What it has moved.
        traffic: Traffic,
    },
    /// An operation has failed on this rank: its connection to another one was closed.
    Failed {
        /// Who.
        rank: RankId,
        /// Which operation.
        handle: Handle,
        /// What it was.
        call: &'a Call,
        /// When it was asked for.
        issued: SimTime,
        /// When its queue came to it.
        started: SimTime,
        /// Who has closed the other end.
        peer: RankId,
    },
}

/// With whom an operation met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Meeting {
    /// The group's `sequence`-th collective, counted from 0 on every member alike.
    Collective {
        /// Its number.
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
