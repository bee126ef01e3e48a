//! Owns the digest: a number that two runs share if and only if they were equal, operation by operation.
//!
//! The hash covers a projection of the events, listed below field by field, so that events may gain fields on which a
//! digest must not depend: ids, causes, operators. Messages are left out (their effects are in the operations' times),
//! so that a digest does not depend on the observers.
//!
//! # Version 2
//!
//! SHA-256 over the text `uniference digest 2` and then each event's fields in this order:
//!
//! | event | number | fields |
//! |---|---|---|
//! | computed | 0 | at, rank, task, start, base duration, origin |
//! | issued | 1 | at, rank, call |
//! | completed | 2 | at, rank, call, issued, started, algorithm, meeting |
//! | waited | 3 | at, rank, task, start, reason, exposed, late peer, no data, call |
//! | marked | 4 | at, rank, name of the range that opens (none: one closes) |
//! | finished | 5 | at, rank, outcome, compute, exposed, late peer, no data, idle, bytes sent, received, sent with headers |
//! | failed | 6 | at, rank, call, issued, started, peer |
//!
//! A call is its group and its name. For a collective, the type of elements, reduction, root, and the elements' shape
//! follow (0 and a number; 1 and a list of blocks; 2 and the lists sent and received); for a message, the other rank in
//! the group, tag, and bytes. A meeting is 0 and the collective's number, or 1 and the peer's rank. Times are
//! picoseconds.
//!
//! A number is written in groups of 7 bits, the lowest first, all but the last with the highest bit set (LEB128); a
//! text is its length and its UTF-8; a list its length and its elements; an optional value is 0, or 1 and the value.
//! Types, reductions, origins, outcomes and reasons are texts.
//!
//! # Version 1
//!
//! SHA-256 over the time and [`Before`] of each event in postcard's wire format, as in reports of version 1.

use crate::event::{Event, Meeting, Observer, Times, Traffic, WaitReason};
use crate::ids::{GroupId, GroupRank, Handle, RankId, Site, TaskId};
use crate::program::{Call, CallOp, Collective, CollectiveKind, DType, Mark, Origin, Outcome, ReduceOp, Shape};
use crate::time::{Bytes, SimDuration, SimTime};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Hash of a run's events; by default in the newest version.
#[derive(Clone)]
pub struct Digest {
    version: u32,
    hash: Sha256,
    /// Kept to reuse the allocation.
    bytes: Vec<u8>,
}

impl Default for Digest {
    fn default() -> Digest {
        Digest { version: Digest::VERSION, hash: Sha256::new_with_prefix("uniference digest 2"), bytes: Vec::new() }
    }
}

impl Digest {
    /// The newest version.
    pub const VERSION: u32 = 2;

    /// The digest of reports of version 1.
    pub fn version_1() -> Digest {
        Digest { version: 1, hash: Sha256::new(), bytes: Vec::new() }
    }

    /// The digest so far, in hexadecimal.
    pub fn to_hex(&self) -> String {
        self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Observer for Digest {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        if self.version > 1 {
            let mut fields = Fields(bytes);
            fields.event(at, event);
            bytes = fields.0;
        } else if let Some(event) = Before::of(event) {
            bytes = postcard::to_extend(&(at, event), bytes).expect("memory takes all that an event is made of");
        }
        self.hash.update(&bytes);
        self.bytes = bytes;
    }
}

/// Encoded fields of an event in version 2.
struct Fields(Vec<u8>);

impl Fields {
    fn event(&mut self, at: SimTime, event: &Event<'_>) {
        match event {
            Event::Computed { rank, task, start, base, origin, .. } => {
                self.start(0, at, *rank);
                self.number(task.0.into());
                self.number(start.as_ps());
                self.number(base.as_ps());
                self.text(origin.name());
            }
            Event::Issued { rank, call, .. } => {
                self.start(1, at, *rank);
                self.call(call);
            }
            Event::Completed { rank, call, issued, started, algorithm, meeting, .. } => {
                self.start(2, at, *rank);
                self.call(call);
                self.number(issued.as_ps());
                self.number(started.as_ps());
                self.optional(*algorithm, Fields::text);
                match meeting {
                    Meeting::Collective { sequence } => {
                        self.number(0);
                        self.number(*sequence);
                    }
                    Meeting::Peer(peer) => {
                        self.number(1);
                        self.optional(peer.map(|(rank, _)| u64::from(rank.0)), Fields::number);
                    }
                }
            }
            Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, call, .. } => {
                self.start(3, at, *rank);
                self.number(task.0.into());
                self.number(start.as_ps());
                self.text(match reason {
                    WaitReason::Communication => "communication",
                    WaitReason::Compute => "compute",
                    WaitReason::Store => "store",
                    WaitReason::Sleep => "sleep",
                });
                [exposed, late_peer, no_data].into_iter().for_each(|span| self.number(span.as_ps()));
                self.optional(*call, Fields::call);
            }
            Event::Marked { rank, mark, .. } => {
                let (name, range) = match mark {
                    Mark::Begin(name) | Mark::Enter { name, .. } => (Some(&**name), None),
                    Mark::End | Mark::Leave { .. } => (None, None),
                    Mark::Open { range, name } => (Some(&**name), Some(range)),
                    Mark::Close { range } => (None, Some(range)),
                    // Names of threads are not events.
                    Mark::Name(_) => return,
                };
                self.start(4, at, *rank);
                self.optional(name, Fields::text);
                if let Some(range) = range {
                    self.number((*range).into());
                }
            }
            Event::Finished { rank, outcome, times, traffic, .. } => {
                self.start(5, at, *rank);
                self.text(match outcome {
                    Outcome::Ok => "ok",
                    Outcome::Failed => "failed",
                    Outcome::Crashed => "crashed",
                });
                let Times { compute, exposed, late_peer, no_data, idle } = times;
                [compute, exposed, late_peer, no_data, idle].into_iter().for_each(|span| self.number(span.as_ps()));
                let Traffic { sent, received, wire_sent } = traffic;
                [sent, received, wire_sent].into_iter().for_each(|bytes| self.number(bytes.0));
            }
            Event::Failed { rank, call, issued, started, peer, .. } => {
                self.start(6, at, *rank);
                self.call(call);
                self.number(issued.as_ps());
                self.number(started.as_ps());
                self.number(peer.0.into());
            }
            Event::Message { .. } | Event::Elapsed { .. } | Event::Used { .. } => {}
        }
    }

    fn start(&mut self, event: u64, at: SimTime, rank: RankId) {
        self.number(event);
        self.number(at.as_ps());
        self.number(rank.0.into());
    }

    fn call(&mut self, call: &Call) {
        self.number(call.group.0.into());
        self.text(call.op.name());
        match &call.op {
            CallOp::Collective(collective) => {
                self.text(collective.dtype.name());
                self.optional(collective.reduce.map(|reduce| reduce.name()), Fields::text);
                self.optional(collective.root.map(|root| u64::from(root.0)), Fields::number);
                match &collective.shape {
                    Shape::Even(count) => {
                        self.number(0);
                        self.number(*count);
                    }
                    Shape::Blocks(blocks) => {
                        self.number(1);
                        self.list(blocks);
                    }
                    Shape::Pairs { send, recv } => {
                        self.number(2);
                        self.list(send);
                        self.list(recv);
                    }
                }
            }
            CallOp::Send { to, tag, bytes } => {
                [to.0.into(), *tag, bytes.0].into_iter().for_each(|number| self.number(number));
            }
            CallOp::Recv { from, tag, bytes } => {
                self.optional(from.map(|from| u64::from(from.0)), Fields::number);
                self.number(*tag);
                self.number(bytes.0);
            }
            CallOp::Write { to, bytes } => {
                self.number(to.0.into());
                self.number(bytes.0);
            }
        }
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn list(&mut self, numbers: &[u64]) {
        self.number(numbers.len() as u64);
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Fields, T)) {
        self.number(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Fields of an event in version 1: variants and fields in this order. Version 1 has no time of receives without data.
#[derive(Serialize)]
enum Before<'a> {
    Computed {
        rank: RankId,
        task: TaskId,
        start: SimTime,
        base: SimDuration,
        origin: Origin,
    },
    Issued {
        rank: RankId,
        handle: Handle,
        call: CallBefore<'a>,
        site: Site,
    },
    Completed {
        rank: RankId,
        handle: Handle,
        call: CallBefore<'a>,
        issued: SimTime,
        started: SimTime,
        algorithm: Option<&'static str>,
        meeting: Meeting,
    },
    Waited {
        rank: RankId,
        task: TaskId,
        start: SimTime,
        reason: WaitReason,
        exposed: SimDuration,
        late_peer: SimDuration,
        handles: &'a [Handle],
        call: Option<CallBefore<'a>>,
        site: Site,
    },
    Marked {
        rank: RankId,
        mark: &'a Mark,
    },
    /// An unused variant, which is never hashed: without it, the numbers of later variants, and with them the digests,
    /// would change.
    #[allow(dead_code)]
    Message,
    Finished {
        rank: RankId,
        outcome: Outcome,
        times: [SimDuration; 4],
        traffic: Traffic,
    },
    Failed {
        rank: RankId,
        handle: Handle,
        call: CallBefore<'a>,
        issued: SimTime,
        started: SimTime,
        peer: RankId,
    },
}

impl<'a> Before<'a> {
    fn of(event: &Event<'a>) -> Option<Before<'a>> {
        Some(match *event {
            Event::Computed { rank, task, start, base, origin, .. } => {
                // Version 1 counts every origin other than measured as recorded.
                let origin = if origin == Origin::Measured { origin } else { Origin::Recorded };
                Before::Computed { rank, task, start, base, origin }
            }
            Event::Issued { rank, handle, call, site, .. } => {
                Before::Issued { rank, handle, call: CallBefore::of(call), site }
            }
            Event::Completed { rank, handle, call, issued, started, algorithm, meeting, .. } => {
                let call = CallBefore::of(call);
                Before::Completed { rank, handle, call, issued, started, algorithm, meeting }
            }
            Event::Waited { rank, task, start, reason, exposed, late_peer, handles, call, site, .. } => {
                let call = call.map(CallBefore::of);
                Before::Waited { rank, task, start, reason, exposed, late_peer, handles, call, site }
            }
            Event::Marked { rank, mark, .. } => Before::Marked { rank, mark },
            Event::Finished { rank, outcome, times, traffic, .. } => {
                let times = [times.compute, times.exposed, times.late_peer, times.idle];
                Before::Finished { rank, outcome, times, traffic }
            }
            Event::Failed { rank, handle, call, issued, started, peer, .. } => {
                let call = CallBefore::of(call);
                Before::Failed { rank, handle, call, issued, started, peer }
            }
            Event::Message { .. } | Event::Elapsed { .. } | Event::Used { .. } => return None,
        })
    }
}

/// Fields of a call in version 1.
#[derive(Serialize)]
struct CallBefore<'a> {
    group: GroupId,
    op: OpBefore<'a>,
}

#[derive(Serialize)]
enum OpBefore<'a> {
    Collective {
        kind: CollectiveKind,
        dtype: DType,
        reduce: Option<ReduceOp>,
        root: Option<GroupRank>,
        shape: &'a Shape,
    },
    Send {
        to: GroupRank,
        tag: u64,
        bytes: Bytes,
    },
    Recv {
        from: Option<GroupRank>,
        tag: u64,
        bytes: Bytes,
    },
    Write {
        to: GroupRank,
        bytes: Bytes,
    },
}

impl<'a> CallBefore<'a> {
    fn of(call: &'a Call) -> CallBefore<'a> {
        let op = match &call.op {
            CallOp::Collective(Collective { kind, dtype, reduce, root, shape, .. }) => {
                OpBefore::Collective { kind: *kind, dtype: *dtype, reduce: *reduce, root: *root, shape }
            }
            CallOp::Send { to, tag, bytes } => OpBefore::Send { to: *to, tag: *tag, bytes: *bytes },
            CallOp::Recv { from, tag, bytes } => OpBefore::Recv { from: *from, tag: *tag, bytes: *bytes },
            CallOp::Write { to, bytes } => OpBefore::Write { to: *to, bytes: *bytes },
        };
        CallBefore { group: call.group, op }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LinkId;

    fn collective(kind: CollectiveKind, root: Option<u32>, shape: Shape) -> Call {
        let reduce = (kind == CollectiveKind::Reduce).then_some(ReduceOp::Sum);
        let collective =
            Collective { kind, dtype: DType::BFloat16, reduce, root: root.map(GroupRank), shape, kernel: None };
        Call { group: GroupId(300), op: CallOp::Collective(collective) }
    }

    /// The digest of every kind of event, and of every kind of call.
    fn hashed(mut digest: Digest) -> String {
        let (rank, task, handle, site, peer) = (RankId(3), TaskId(1), Handle(9), Site(2), RankId(200));
        let (start, issued, started) = (SimTime::from_ps(5), SimTime::from_ps(6), SimTime::from_ps(1 << 33));
        let [base, exposed, late_peer, no_data] = [1 << 40, 300, 200, 100].map(SimDuration::from_ps);
        let end = SimTime::from_ps(5 + (1 << 40));
        let [bytes, wire_bytes] = [Bytes(1), Bytes(2)];
        digest.record(
            end,
            &Event::Computed { rank, task, start, base, origin: Origin::Measured, name: None, why: Default::default() },
        );
        digest.record(
            end,
            &Event::Marked {
                rank,
                task: TaskId(0),
                mark: &Mark::Begin("step".into()),
                why: Default::default(),
                spent: None,
            },
        );
        let calls = [
            collective(CollectiveKind::Reduce, Some(1), Shape::Even(1 << 20)),
            collective(CollectiveKind::AllGather, None, Shape::Blocks(vec![1, 2, 300])),
            collective(CollectiveKind::AllToAll, None, Shape::Pairs { send: vec![1, 2], recv: vec![3, 4] }),
            Call { group: GroupId(0), op: CallOp::Send { to: GroupRank(1), tag: 7, bytes: Bytes(130) } },
            Call { group: GroupId(0), op: CallOp::Recv { from: Some(GroupRank(1)), tag: 7, bytes: Bytes(130) } },
            Call { group: GroupId(0), op: CallOp::Recv { from: None, tag: 0, bytes: Bytes(0) } },
        ];
        let meetings = [Meeting::Collective { sequence: 4 }, Meeting::Peer(Some((peer, handle))), Meeting::Peer(None)];
        let algorithms = [Some("ring"), None, None];
        for (index, call) in calls.iter().enumerate() {
            let (meeting, algorithm) = (meetings[index % 3], algorithms[index % 3]);
            digest.record(issued, &Event::Issued { rank, handle, call, bytes, site, task: Some(TaskId(0)) });
            digest.record(
                end,
                &Event::Completed {
                    rank,
                    handle,
                    call,
                    bytes,
                    issued,
                    started,
                    algorithm,
                    meeting,
                    on_stream: None,
                    why: Default::default(),
                    cause: Default::default(),
                },
            );
        }
        digest.record(
            end,
            &Event::Failed { rank, handle, call: &calls[0], bytes, issued, started, peer, why: Default::default() },
        );
        let reasons = [WaitReason::Communication, WaitReason::Compute, WaitReason::Store, WaitReason::Sleep];
        for (call, reason) in [Some(&calls[1]), None, None, None].into_iter().zip(reasons) {
            let handles = &[handle, Handle(10)];
            digest.record(
                end,
                &Event::Waited {
                    rank,
                    task,
                    start,
                    reason,
                    exposed,
                    late_peer,
                    no_data,
                    handles,
                    call,
                    site,
                    cause: Default::default(),
                },
            );
        }
        digest.record(
            end,
            &Event::Marked { rank, task: TaskId(0), mark: &Mark::End, why: Default::default(), spent: None },
        );
        let times = Times { compute: base, exposed, late_peer, no_data, idle: base };
        let traffic = Traffic { sent: Bytes(1), received: Bytes(1 << 20), wire_sent: Bytes(3) };
        for outcome in [Outcome::Ok, Outcome::Failed, Outcome::Crashed] {
            digest.record(end, &Event::Finished { rank, outcome, times, traffic, cause: Default::default() });
        }
        let before = digest.to_hex();
        let (source, destination, group, links) = (rank, peer, GroupId(0), &[LinkId(1)]);
        let message = Event::Message {
            source,
            destination,
            group,
            bytes,
            wire_bytes,
            queued: start,
            started,
            sent: end,
            links,
            way: Default::default(),
        };
        digest.record(end, &message);
        assert_eq!(digest.to_hex(), before, "who looks at messages does not change it");
        before
    }

    /// Stored digests of users must stay valid: any change of the hash needs a new version.
    #[test]
    fn the_digest_of_these_events_is_the_same_for_ever() {
        assert_eq!(hashed(Digest::default()), "51db98ad3089376bd2818371308cf2d7a381085dae00a875a2387cd49aa21300");
    }

    #[test]
    fn the_digest_of_version_1_is_the_same_for_ever() {
        assert_eq!(hashed(Digest::version_1()), "b68ed56d141a4cda6e8bb8df75e814fd98cb2b0e16f0277672ba64e4e42a8796");
        let mut digest = Digest::version_1();
        let (rank, start) = (RankId(3), SimTime::from_ps(5));
        let base = SimDuration::from_ps(1 << 40);
        let end = SimTime::from_ps(5 + (1 << 40));
        digest.record(
            end,
            &Event::Computed {
                rank,
                task: TaskId(1),
                start,
                base,
                origin: Origin::Measured,
                name: None,
                why: Default::default(),
            },
        );
        digest.record(
            end,
            &Event::Marked {
                rank,
                task: TaskId(0),
                mark: &Mark::Begin("step".into()),
                why: Default::default(),
                spent: None,
            },
        );
        let (times, traffic) = (Times { compute: base, ..Times::default() }, Traffic::default());
        digest.record(end, &Event::Finished { rank, outcome: Outcome::Ok, times, traffic, cause: Default::default() });
        assert_eq!(digest.to_hex(), "e28b5471a587d620434721e91e23fdcf5565da0132bec818d6e38a57cf1b8f27");
    }

    /// In version 1, every origin other than measured counts as recorded.
    #[test]
    fn version_1_knows_only_what_was_measured_from_the_rest() {
        let of = |mut digest: Digest, origin| {
            let (rank, task, start, base) = (RankId(0), TaskId(0), SimTime::ZERO, SimDuration::from_ps(7));
            let event = Event::Computed { rank, task, start, base, origin, name: None, why: Default::default() };
            digest.record(SimTime::from_ps(7), &event);
            digest.to_hex()
        };
        let [measured, others @ ..] = Origin::ALL.map(|origin| of(Digest::version_1(), origin));
        assert_ne!(measured, others[0]);
        assert!(others.iter().all(|other| *other == others[0]));
        let different: std::collections::BTreeSet<String> =
            Origin::ALL.into_iter().map(|origin| of(Digest::default(), origin)).collect();
        assert_eq!(different.len(), Origin::ALL.len(), "version 2 knows all of them");
    }

    /// A rank's handles, the numbers of lines, and names of threads do not change a digest.
    #[test]
    fn names_do_not_change_a_digest() {
        let of = |handle, site, mark: Option<Mark>| {
            let mut digest = Digest::default();
            if let Some(mark) = mark {
                let (rank, task, why) = (RankId(0), TaskId(0), Default::default());
                digest.record(SimTime::ZERO, &Event::Marked { rank, task, mark: &mark, why, spent: None });
            }
            let call = collective(CollectiveKind::Reduce, Some(1), Shape::Even(1));
            digest.record(
                SimTime::ZERO,
                &Event::Issued { rank: RankId(0), handle, call: &call, bytes: Bytes(2), site, task: Some(TaskId(0)) },
            );
            digest.to_hex()
        };
        let called = |name: &str| Some(Mark::Name(name.into()));
        assert_eq!(of(Handle(1), Site(1), None), of(Handle(2), Site(3), called("loader")));
        assert_ne!(of(Handle(1), Site(1), None), of(Handle(1), Site(1), Some(Mark::End)));
    }
}
