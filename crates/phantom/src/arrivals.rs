//! Owns data that communication brings: where it goes, and which streams and events stand behind it. It is fetched when somebody looks at what
//! such a stream has done, and the caller then waits for it in virtual time.
//!
//! A GPU's host would not wait there. It does here, as values are computed when they are launched: what needs data that is on its way cannot be
//! launched before. Without values nobody waits.

use crate::attach::communication;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The output of a call that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) handle: u32,
    pub(crate) to: usize,
    /// 0: no data comes.
    pub(crate) bytes: u64,
    /// `ncclDataType_t`.
    pub(crate) dtype: u32,
    /// Elements are divided by this once they are there.
    pub(crate) divide: Option<f64>,
}

#[derive(Default)]
struct State {
    next: u64,
    expected: BTreeMap<u64, Arrival>,
    /// What is behind, by stream and by event. What has arrived may still be named.
    streams: BTreeMap<u32, BTreeSet<u64>>,
    events: BTreeMap<u32, BTreeSet<u64>>,
}

static STATE: Mutex<State> =
    Mutex::new(State { next: 0, expected: BTreeMap::new(), streams: BTreeMap::new(), events: BTreeMap::new() });

/// How many are expected.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether data is on its way.
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) > 0
}

/// The call is on a stream.
pub(crate) fn expect(stream: u32, arrival: Arrival) {
    if arrival.bytes == 0 {
        if let Some(link) = communication() {
            (link.forget)(arrival.handle);
        }
        return;
    }
    let mut state = lock();
    let number = state.next;
    state.next += 1;
    state.expected.insert(number, arrival);
    state.streams.entry(stream).or_default().insert(number);
    COUNT.fetch_add(1, Relaxed);
}

/// The event stands behind what is on the stream.
pub(crate) fn record(event: u32, stream: u32) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let mut state = lock();
    let behind = state.behind_stream(stream);
    state.events.insert(event, behind);
}

/// What comes on the stream stands behind the event.
pub(crate) fn wait_event(stream: u32, event: u32) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let mut state = lock();
    let behind = state.events.get(&event).cloned().unwrap_or_default();
    state.streams.entry(stream).or_default().extend(behind);
}

/// Fetches what a stream stands behind.
pub(crate) fn settle_stream(stream: u32) {
    settle(|state| state.behind_stream(stream));
}

/// Fetches what an event stands behind.
pub(crate) fn settle_event(event: u32) {
    settle(|state| state.events.get(&event).cloned().unwrap_or_default());
}

/// Fetches all.
pub(crate) fn settle_all() {
    settle(|state| state.expected.keys().copied().collect());
}

fn settle(which: impl FnOnce(&State) -> BTreeSet<u64>) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let arrivals: Vec<Arrival> = {
        let mut state = lock();
        let which = which(&state);
        let arrivals = which.iter().filter_map(|number| state.expected.remove(number)).collect();
        if state.expected.is_empty() {
            state.streams.clear();
            state.events.clear();
        }
        COUNT.store(state.expected.len(), Relaxed);
        arrivals
    };
    let Some(link) = communication() else { return };
    for Arrival { handle, to, bytes, dtype, divide } in arrivals {
        (link.deliver)(handle, to, bytes);
        if let Some(divide) = divide {
            (link.scale)(dtype, to, bytes, 1.0 / divide);
        }
    }
}

impl State {
    fn behind_stream(&self, stream: u32) -> BTreeSet<u64> {
        let named = self.streams.get(&stream).into_iter().flatten();
        named.filter(|number| self.expected.contains_key(number)).copied().collect()
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> usize {
        COUNT.load(Relaxed)
    }

    /// What an event stands behind is handed on by it; what comes on its stream afterwards is not.
    #[test]
    fn events_hand_on_what_they_stand_behind() {
        let arrival = |handle| Arrival { handle, to: 0, bytes: 4, dtype: 7, divide: None };
        expect(3, arrival(1));
        record(7, 3);
        expect(3, arrival(2));
        wait_event(4, 7);
        settle_stream(5);
        assert_eq!(expected(), 2);
        settle_stream(4);
        assert_eq!(expected(), 1);
        settle_event(7);
        assert_eq!(expected(), 1);
        settle_all();
        assert_eq!(expected(), 0);
    }
}
