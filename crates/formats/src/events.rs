//! Owns the event stream on disk: one event a line, as JSON, in the engine's order. Times are integer picoseconds, sizes bytes.

use crate::sink::{Sink, WriteError};
use serde::Serialize;
use std::io::Write;
use uniference_sim::program::{Call, Mark, Origin, Outcome};
use uniference_sim::record::{Event, Meeting, Observer, WaitReason};
use uniference_sim::time::SimTime;

/// Writes every event of a run, messages included.
pub struct EventWriter<W> {
    sink: Sink<W>,
    line: Vec<u8>,
}

impl<W: Write> EventWriter<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W) -> EventWriter<W> {
        EventWriter { sink: Sink::new("event stream", out), line: Vec::new() }
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
}

impl<W: Write> Observer for EventWriter<W> {
    fn record(&mut self, at: SimTime, event: &Event<'_>) {
        self.line.clear();
        serde_json::to_writer(&mut self.line, &Line { at_ps: at.as_ps(), event: Shown::from(event) })
            .expect("numbers and strings are JSON");
        self.line.push(b'\n');
        self.sink.write(&self.line);
    }

    fn wants_messages(&self) -> bool {
        true
    }
}

#[derive(Serialize)]
struct Line<'a> {
    at_ps: u64,
    #[serde(flatten)]
    event: Shown<'a>,
}

/// An event with its fields as the file has them.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Shown<'a> {
    Computed {
        rank: u32,
        task: u32,
        start_ps: u64,
        base_ps: u64,
        origin: Origin,
    },
    Issued {
        rank: u32,
        handle: u32,
        call: &'a Call,
        site: u32,
    },
    Completed {
        rank: u32,
        handle: u32,
        operation: &'static str,
        group: u32,
        issued_ps: u64,
        started_ps: u64,
        algorithm: Option<&'static str>,
        sequence: Option<u64>,
        peer: Option<(u32, u32)>,
    },
    Failed {
        rank: u32,
        handle: u32,
        operation: &'static str,
        group: u32,
        issued_ps: u64,
        started_ps: u64,
        peer: u32,
    },
    Waited {
        rank: u32,
        task: u32,
        start_ps: u64,
        reason: &'static str,
        exposed_ps: u64,
        late_peer_ps: u64,
        no_data_ps: u64,
        handles: Vec<u32>,
        operation: Option<&'static str>,
        site: u32,
    },
    Marked {
        rank: u32,
        begin: Option<&'a str>,
    },
    Message {
        source: u32,
        destination: u32,
        group: u32,
        bytes: u64,
        wire_bytes: u64,
        queued_ps: u64,
        started_ps: u64,
        sent_ps: u64,
        links: Vec<u32>,
    },
    Finished {
        rank: u32,
        outcome: Outcome,
        compute_ps: u64,
        exposed_ps: u64,
        late_peer_ps: u64,
        no_data_ps: u64,
        idle_ps: u64,
        bytes_sent: u64,
        bytes_received: u64,
        wire_bytes_sent: u64,
    },
}

impl<'a> From<&Event<'a>> for Shown<'a> {
    fn from(event: &Event<'a>) -> Shown<'a> {
        match *event {
            Event::Computed { rank, task, start, base, origin } => {
                Shown::Computed { rank: rank.0, task: task.0, start_ps: start.as_ps(), base_ps: base.as_ps(), origin }
            }
            Event::Issued { rank, handle, call, site } => {
                Shown::Issued { rank: rank.0, handle: handle.0, call, site: site.0 }
            }
            Event::Completed { rank, handle, call, issued, started, algorithm, meeting } => {
                let (sequence, peer) = match meeting {
                    Meeting::Collective { sequence } => (Some(sequence), None),
                    Meeting::Peer(peer) => (None, peer.map(|(rank, handle)| (rank.0, handle.0))),
                };
                Shown::Completed {
                    rank: rank.0,
                    handle: handle.0,
                    operation: call.op.name(),
                    group: call.group.0,
                    issued_ps: issued.as_ps(),
                    started_ps: started.as_ps(),
                    algorithm,
                    sequence,
                    peer,
                }
            }
            Event::Failed { rank, handle, call, issued, started, peer } => Shown::Failed {
                rank: rank.0,
                handle: handle.0,
                operation: call.op.name(),
                group: call.group.0,
                issued_ps: issued.as_ps(),
                started_ps: started.as_ps(),
                peer: peer.0,
            },
            Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, handles, call, site } => {
                Shown::Waited {
                    rank: rank.0,
                    task: task.0,
                    start_ps: start.as_ps(),
                    reason: reason_name(reason),
                    exposed_ps: exposed.as_ps(),
                    late_peer_ps: late_peer.as_ps(),
                    no_data_ps: no_data.as_ps(),
                    handles: handles.iter().map(|handle| handle.0).collect(),
                    operation: call.map(|call| call.op.name()),
                    site: site.0,
                }
            }
            Event::Marked { rank, mark } => {
                let begin = match mark {
                    Mark::Begin(name) => Some(&**name),
                    Mark::End => None,
                };
                Shown::Marked { rank: rank.0, begin }
            }
            Event::Message { source, destination, group, bytes, wire_bytes, queued, started, sent, links } => {
                Shown::Message {
                    source: source.0,
                    destination: destination.0,
                    group: group.0,
                    bytes: bytes.0,
                    wire_bytes: wire_bytes.0,
                    queued_ps: queued.as_ps(),
                    started_ps: started.as_ps(),
                    sent_ps: sent.as_ps(),
                    links: links.iter().map(|link| link.0).collect(),
                }
            }
            Event::Finished { rank, outcome, times, traffic } => Shown::Finished {
                rank: rank.0,
                outcome,
                compute_ps: times.compute.as_ps(),
                exposed_ps: times.exposed.as_ps(),
                late_peer_ps: times.late_peer.as_ps(),
                no_data_ps: times.no_data.as_ps(),
                idle_ps: times.idle.as_ps(),
                bytes_sent: traffic.sent.0,
                bytes_received: traffic.received.0,
                wire_bytes_sent: traffic.wire_sent.0,
            },
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
