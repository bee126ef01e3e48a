//! Owns the CUDA streams of a rank's device: the dependencies among the work on them. The module decides which
//! activities must be complete before the next one, and does not know the costs of activities.
//!
//! Each CUDA stream is a queue of the engine's, and keeps its own order. A CUDA event is an activity of zero duration,
//! so that waits for it, and queries of its time, have a handle.

use crate::slice::{CopyEngine, Launch, LoweredWork};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use uniference_protocol::messages::{DeviceWork, OnStream};
use uniference_sim::ids::{Handle, OfProcess};

/// Number of incomplete launches per stream above which a launch blocks the host: the depth of the CUDA driver's queue,
/// which CUDA's documentation does not name. Launches without synchronisation run into 1,024 on current devices
/// (NVIDIA's forum for developers, "launch queue depth").
const QUEUE_DEPTH: usize = 1024;

/// The streams of one rank.
#[derive(Default)]
pub(super) struct Streams {
    streams: BTreeMap<u32, Stream>,
    /// Per event: the activity of its latest record, and the number of its records.
    events: BTreeMap<u32, (Handle, u32)>,
    engines: BTreeMap<CopyEngine, Handle>,
}

#[derive(Default)]
struct Stream {
    /// The stream's latest activity.
    last: Option<Handle>,
    /// Further activities that the stream's next activity waits for.
    awaited: Vec<Handle>,
    /// The stream's latest launches, up to the number that may be outstanding.
    launches: VecDeque<Handle>,
    /// Activities that the latest operation of a process group on the stream waited for.
    before_call: Vec<Handle>,
}

impl Stream {
    /// Activities whose completion implies that all work on the stream is complete.
    fn ends(&self) -> impl Iterator<Item = Handle> {
        self.last.into_iter().chain(self.awaited.iter().copied())
    }
}

impl Streams {
    /// Activities that must be complete before the piece starts, in addition to the stream's own order.
    pub(super) fn dependencies(&mut self, piece: &LoweredWork) -> Vec<Handle> {
        match piece {
            LoweredWork::Launch(Launch { stream, engine, .. }) => {
                let mut after = std::mem::take(&mut self.streams.entry(*stream).or_default().awaited);
                after.extend(engine.and_then(|engine| self.engines.get(&engine)));
                after
            }
            LoweredWork::Record { stream, .. } => std::mem::take(&mut self.streams.entry(*stream).or_default().awaited),
            LoweredWork::Host(_) | LoweredWork::Wait { .. } => Vec::new(),
        }
    }

    /// Records the activity of a piece. Returns the activity that the host waits for, if the host must wait.
    pub(super) fn handed(&mut self, piece: &LoweredWork, handle: Handle) -> Option<Handle> {
        match *piece {
            LoweredWork::Launch(Launch { stream, engine, blocks, queued, .. }) => {
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
            LoweredWork::Record { event, stream } => {
                let before = self.events.get(&event).map_or(0, |(_, records)| *records);
                self.events.insert(event, (handle, before + 1));
                self.streams.entry(stream).or_default().last = Some(handle);
                None
            }
            LoweredWork::Host(_) | LoweredWork::Wait { .. } => None,
        }
    }

    /// Makes later work on the stream wait for the event; an event that was never recorded has no effect.
    pub(super) fn wait(&mut self, stream: u32, event: u32) {
        let reached = self.events.get(&event).map(|(handle, _)| *handle);
        self.streams.entry(stream).or_default().awaited.extend(reached);
    }

    /// Activities that must be complete before an operation of a process group on a stream. The operation is not in the
    /// stream's queue.
    pub(super) fn before_call(&mut self, on: OnStream) -> Vec<Handle> {
        let stream = self.streams.entry(on.stream).or_default();
        if !on.with_previous {
            stream.before_call = stream.last.into_iter().chain(stream.awaited.drain(..)).collect();
        }
        stream.before_call.clone()
    }

    /// Records the activity of an operation of a process group: later work on the stream waits for it.
    pub(super) fn called(&mut self, on: OnStream, handle: Handle) {
        self.streams.entry(on.stream).or_default().awaited.push(handle);
    }

    /// Activities whose completion implies that this work, in the numbers of one of the rank's processes, is complete.
    /// A process sees only its own work on the device.
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

    /// Whether all of this work has been handed over, provided that other threads have sent no launches that wait for
    /// their turn.
    pub(super) fn knows(&self, process: OfProcess, work: DeviceWork) -> bool {
        match work {
            DeviceWork::Event { event, records } => process
                .short(event)
                .is_none_or(|event| self.events.get(&event).is_some_and(|(_, known)| *known >= records)),
            DeviceWork::Stream(_) | DeviceWork::Device => false,
        }
    }

    /// Activities whose completion implies that the device is idle.
    pub(super) fn all_ends(&self) -> Vec<Handle> {
        self.ends_of(|_| true)
    }

    fn ends_of(&self, counts: impl Fn(u32) -> bool) -> Vec<Handle> {
        let streams = self.streams.iter().filter(|(number, _)| counts(**number));
        streams.flat_map(|(_, stream)| stream.ends()).collect::<BTreeSet<Handle>>().into_iter().collect()
    }

    /// All activities that later work may wait for.
    pub(super) fn known(&self) -> BTreeSet<Handle> {
        let streams = self.streams.values();
        let of_streams = streams.flat_map(|stream| {
            stream.last.iter().chain(&stream.awaited).chain(&stream.launches).chain(&stream.before_call)
        });
        let of_events = self.events.values().map(|(handle, _)| handle);
        of_streams.chain(of_events).chain(self.engines.values()).copied().collect()
    }
}
