//! Owns the streams of a rank's device: what waits for what, of all that the rank hands to them. It says which activities must be complete before the
//! next one; what an activity costs is not its business.
//!
//! Each stream is a queue of the engine's, and keeps its own order. An event is an activity that takes no time, so that what waits for it, and
//! who asks when it was, has a handle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use uniference_formats::operators::Line;
use uniference_protocol::messages::{DeviceWork, LaunchId, OnStream};
use uniference_sim::ids::{Handle, OfProcess};
use uniference_sim::program::Work;

/// The host waits where a stream has more launches than this that are not complete: the depth of the driver's queue, which CUDA's documentation does
/// not name. 1,024 is what launches without synchronisation run into on current devices (NVIDIA's forum for developers, "launch queue depth").
const QUEUE_DEPTH: usize = 1024;

/// A part of what a slice of a program comes to, in the order in which the program did it.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// The task works, before it hands anything else to a stream. The last piece of a slice is one of these.
    Host(Work),
    /// The task has handed work to a stream of the device.
    Launch(Launch),
    /// The event happens when all that was handed to the stream before is complete.
    Record {
        /// Which, by the rank's own number.
        event: u32,
        /// On which stream.
        stream: u32,
    },
    /// What is handed to the stream from here on waits for the event, as it was recorded last.
    Wait {
        /// The stream that waits.
        stream: u32,
        /// The event that it waits for.
        event: u32,
    },
}

impl Piece {
    /// What it is that takes time.
    pub fn into_work(self) -> Option<Work> {
        match self {
            Piece::Host(work) | Piece::Launch(Launch { work, .. }) => Some(work),
            Piece::Record { .. } | Piece::Wait { .. } => None,
        }
    }
}

/// Work on a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The stream's number.
    pub stream: u32,
    /// The work, as the engine takes it.
    pub work: Work,
    /// The engine that carries out a copy, one at a time; `None`: it is no copy.
    pub engine: Option<CopyEngine>,
    /// The host waits until it is complete.
    pub blocks: bool,
    /// It takes a place among the launches that a stream may have outstanding.
    pub queued: bool,
    /// By what the rank asks for its times: none, or one for each kernel of an operator.
    pub ids: Vec<LaunchId>,
    /// The captured line of the operator that has launched it, in a graph that of its capture; not known where no operator has.
    pub line: Line,
}

/// What carries out copies beside the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyEngine {
    /// From the host.
    ToDevice,
    /// To the host.
    FromDevice,
    /// To other devices.
    Peer,
}

/// The streams of one rank.
#[derive(Default)]
pub(super) struct Streams {
    streams: BTreeMap<u32, Stream>,
    /// By number, what reaches the event as it was recorded last, and how often it was.
    events: BTreeMap<u32, (Handle, u32)>,
    engines: BTreeMap<CopyEngine, Handle>,
}

#[derive(Default)]
struct Stream {
    /// The activity that was handed to it last.
    last: Option<Handle>,
    /// What the next one waits for besides.
    awaited: Vec<Handle>,
    /// Of its launches the last ones, as many as may be outstanding.
    launches: VecDeque<Handle>,
    /// What the operation of a process group waited for that was on it last.
    before_call: Vec<Handle>,
}

impl Stream {
    /// What is complete when all that was handed to it is.
    fn ends(&self) -> impl Iterator<Item = Handle> {
        self.last.into_iter().chain(self.awaited.iter().copied())
    }
}

impl Streams {
    /// What must be complete before what the piece hands to a stream, besides what the stream has.
    pub(super) fn dependencies(&mut self, piece: &Piece) -> Vec<Handle> {
        match piece {
            Piece::Launch(Launch { stream, engine, .. }) => {
                let mut after = std::mem::take(&mut self.streams.entry(*stream).or_default().awaited);
                after.extend(engine.and_then(|engine| self.engines.get(&engine)));
                after
            }
            Piece::Record { stream, .. } => std::mem::take(&mut self.streams.entry(*stream).or_default().awaited),
            Piece::Host(_) | Piece::Wait { .. } => Vec::new(),
        }
    }

    /// The piece was handed to its stream as this activity. Returns what the host waits for before it goes on, if it has to.
    pub(super) fn handed(&mut self, piece: &Piece, handle: Handle) -> Option<Handle> {
        match *piece {
            Piece::Launch(Launch { stream, engine, blocks, queued, .. }) => {
                self.engines.extend(engine.map(|engine| (engine, handle)));
                let stream = self.streams.entry(stream).or_default();
                stream.last = Some(handle);
                if queued {
                    stream.launches.push_back(handle);
                }
                let full = stream.launches.len() > QUEUE_DEPTH;
                let oldest = if full { stream.launches.pop_front() } else { None };
                if blocks { Some(handle) } else { oldest }
            }
            Piece::Record { event, stream } => {
                let before = self.events.get(&event).map_or(0, |(_, records)| *records);
                self.events.insert(event, (handle, before + 1));
                self.streams.entry(stream).or_default().last = Some(handle);
                None
            }
            Piece::Host(_) | Piece::Wait { .. } => None,
        }
    }

    /// What is handed to the stream next waits for the event; one that was never recorded has no effect.
    pub(super) fn wait(&mut self, stream: u32, event: u32) {
        let reached = self.events.get(&event).map(|(handle, _)| *handle);
        self.streams.entry(stream).or_default().awaited.extend(reached);
    }

    /// What must be complete before an operation of a process group that is on a stream. It stands in no queue of the stream's.
    pub(super) fn before_call(&mut self, on: OnStream) -> Vec<Handle> {
        let stream = self.streams.entry(on.stream).or_default();
        if !on.with_previous {
            stream.before_call = stream.last.into_iter().chain(stream.awaited.drain(..)).collect();
        }
        stream.before_call.clone()
    }

    /// The operation was issued as this activity: what comes on the stream waits for it.
    pub(super) fn called(&mut self, on: OnStream, handle: Handle) {
        self.streams.entry(on.stream).or_default().awaited.push(handle);
    }

    /// What is complete when this work is, in the numbers of one of the rank's processes. To a process the device is what it has handed to it itself.
    pub(super) fn ends(&self, process: OfProcess, work: DeviceWork) -> Vec<Handle> {
        let own = |number| process.short(number);
        match work {
            DeviceWork::Stream(stream) => own(stream)
                .and_then(|stream| self.streams.get(&stream))
                .map_or_else(Vec::new, |stream| stream.ends().collect()),
            DeviceWork::Event { event, .. } => {
                own(event).and_then(|event| self.events.get(&event)).map(|(handle, _)| *handle).into_iter().collect()
            }
            DeviceWork::Device => self.ends_of(|stream| process.has_given(stream)),
        }
    }

    /// Whether all of this work was handed over that there is, if other threads have nothing to hand over that they have said.
    pub(super) fn knows(&self, process: OfProcess, work: DeviceWork) -> bool {
        match work {
            DeviceWork::Event { event, records } => process
                .short(event)
                .is_none_or(|event| self.events.get(&event).is_some_and(|(_, known)| *known >= records)),
            DeviceWork::Stream(_) | DeviceWork::Device => false,
        }
    }

    /// What is complete when nothing is left to do.
    pub(super) fn all_ends(&self) -> Vec<Handle> {
        self.ends_of(|_| true)
    }

    fn ends_of(&self, counts: impl Fn(u32) -> bool) -> Vec<Handle> {
        let streams = self.streams.iter().filter(|(number, _)| counts(**number));
        streams.flat_map(|(_, stream)| stream.ends()).collect::<BTreeSet<Handle>>().into_iter().collect()
    }

    /// Every activity that something may still be made to wait for.
    pub(super) fn known(&self) -> BTreeSet<Handle> {
        let streams = self.streams.values();
        let of_streams = streams.flat_map(|stream| {
            stream.last.iter().chain(&stream.awaited).chain(&stream.launches).chain(&stream.before_call)
        });
        let of_events = self.events.values().map(|(handle, _)| handle);
        of_streams.chain(of_events).chain(self.engines.values()).copied().collect()
    }
}
