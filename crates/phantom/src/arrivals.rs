//! Owns arrivals, the data that communication calls deliver: where each goes, and which streams and events depend on
//! it. Data is fetched when the program reads results of a dependent stream; the thread then waits for it in virtual
//! time.
//!
//! The launching CPU of a real GPU would not wait. In the simulation it waits, because values are computed at launch:
//! work that needs data in transit cannot be launched earlier. Runs without values do not wait.

use crate::attach::communication;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The output of a pending communication call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) handle: u32,
    /// The communicator's group.
    pub(crate) group: u32,
    pub(crate) to: usize,
    /// 0: no data is delivered.
    pub(crate) bytes: u64,
    /// `ncclDataType_t`.
    pub(crate) dtype: u8,
    /// Divisor of the delivered elements.
    pub(crate) divide: Option<f64>,
}

#[derive(Default)]
struct State {
    next: u64,
    expected: BTreeMap<u64, Arrival>,
    /// Arrivals that a thread is fetching.
    taken: BTreeSet<u64>,
    /// Arrivals that each stream and each event depends on. Some may have been fetched already.
    streams: BTreeMap<u32, BTreeSet<u64>>,
    events: BTreeMap<u32, BTreeSet<u64>>,
}

static STATE: Mutex<State> = Mutex::new(State {
    next: 0,
    expected: BTreeMap::new(),
    taken: BTreeSet::new(),
    streams: BTreeMap::new(),
    events: BTreeMap::new(),
});

/// Signals that an arrival was fetched.
static BROUGHT: Condvar = Condvar::new();

/// Number of expected arrivals.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether any arrival is expected.
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Registers the arrival of a call on a stream.
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

/// Makes an event depend on the arrivals of a stream.
pub(crate) fn record(event: u32, stream: u32) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let mut state = lock();
    let behind = state.behind_stream(stream);
    state.events.insert(event, behind);
}

/// Makes later work on a stream depend on the arrivals of an event.
pub(crate) fn wait_event(stream: u32, event: u32) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let mut state = lock();
    let behind = state.events.get(&event).cloned().unwrap_or_default();
    state.streams.entry(stream).or_default().extend(behind);
}

/// Makes later work on a stream depend on the arrivals of another stream.
pub(crate) fn stand_behind(stream: u32, other: u32) {
    if stream == other || COUNT.load(Relaxed) == 0 {
        return;
    }
    let mut state = lock();
    let behind = state.behind_stream(other);
    state.streams.entry(stream).or_default().extend(behind);
}

/// Drops the arrivals of an aborted group. Threads that are fetching one are told by the link.
pub(crate) fn abort(group: u32) {
    let Some(link) = communication() else { return };
    (link.abort)(group);
    let mut state = lock();
    let of_group = |(number, arrival): (&u64, &Arrival)| (arrival.group == group).then_some((*number, arrival.handle));
    let ended: Vec<(u64, u32)> = state.expected.iter().filter_map(of_group).collect();
    for (number, handle) in ended {
        if !state.taken.contains(&number) {
            (link.forget)(handle);
            state.forget(number);
        }
    }
}

/// Fetches the arrivals that a stream depends on.
pub(crate) fn wait_for_stream(stream: u32) {
    wait_for_data(false, |state| state.behind_stream(stream));
}

/// Fetches the arrivals that the stream must wait for and whose output overlaps one of `places`: pairs of an address and
/// a number of bytes.
pub(crate) fn wait_for_places(stream: u32, places: &[(usize, u64)]) {
    let overlaps = |arrival: &Arrival| {
        let ends_behind = |from: usize, bytes: u64, other: usize| from.saturating_add(bytes as usize) > other;
        places
            .iter()
            .any(|(at, bytes)| ends_behind(*at, *bytes, arrival.to) && ends_behind(arrival.to, arrival.bytes, *at))
    };
    wait_for_data(false, |state| {
        let mut behind = state.behind_stream(stream);
        behind.retain(|number| state.expected.get(number).is_some_and(overlaps));
        behind
    });
}

/// Fetches the arrivals of a stream that was found empty.
pub(crate) fn fetch_of_empty_stream(stream: u32) {
    wait_for_data(true, |state| state.behind_stream(stream));
}

/// Fetches the arrivals that an event depends on.
pub(crate) fn wait_for_event(event: u32) {
    wait_for_data(false, |state| state.behind_event(event));
}

/// Fetches the arrivals of an event that was found to have happened.
pub(crate) fn fetch_of_past_event(event: u32) {
    wait_for_data(true, |state| state.behind_event(event));
}

/// Fetches all expected arrivals.
pub(crate) fn wait_for_all() {
    wait_for_data(false, |state| state.expected.keys().copied().collect());
}

/// Fetches arrivals, and waits for those that another thread is fetching. `has_arrived`: they are known to have
/// arrived.
fn wait_for_data(has_arrived: bool, which: impl FnOnce(&State) -> BTreeSet<u64>) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let mut state = lock();
    let which = which(&state);
    for number in &which {
        let Some(arrival) = state.expected.get(number).copied() else { continue };
        if !state.taken.insert(*number) {
            continue;
        }
        drop(state);
        bring(arrival, has_arrived);
        state = lock();
        state.forget(*number);
        BROUGHT.notify_all();
    }
    while which.iter().any(|number| state.expected.contains_key(number)) {
        state = BROUGHT.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

fn bring(Arrival { handle, to, bytes, dtype, divide, .. }: Arrival, has_arrived: bool) {
    let Some(link) = communication() else { return };
    (link.deliver)(handle, to, bytes, has_arrived.into());
    if let Some(divide) = divide {
        (link.scale)(dtype.into(), to, bytes, 1.0 / divide);
    }
}

impl State {
    fn behind_stream(&self, stream: u32) -> BTreeSet<u64> {
        let named = self.streams.get(&stream).into_iter().flatten();
        named.filter(|number| self.expected.contains_key(number)).copied().collect()
    }

    fn behind_event(&self, event: u32) -> BTreeSet<u64> {
        self.events.get(&event).cloned().unwrap_or_default()
    }

    fn forget(&mut self, number: u64) {
        self.expected.remove(&number);
        self.taken.remove(&number);
        if self.expected.is_empty() {
            self.streams.clear();
            self.events.clear();
        }
        COUNT.store(self.expected.len(), Relaxed);
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serialises tests, which share the state of the process.
    static ALONE: Mutex<()> = Mutex::new(());

    fn expected() -> usize {
        COUNT.load(Relaxed)
    }

    fn arrival(handle: u32) -> Arrival {
        Arrival { handle, group: 0, to: 0, bytes: 4, dtype: 6, divide: None }
    }

    /// An event passes on the arrivals before its record; later arrivals on its stream are not passed on.
    #[test]
    fn events_hand_on_what_they_stand_behind() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        expect(3, arrival(1));
        record(7, 3);
        expect(3, arrival(2));
        wait_event(4, 7);
        wait_for_stream(5);
        assert_eq!(expected(), 2);
        wait_for_stream(4);
        assert_eq!(expected(), 1);
        wait_for_event(7);
        assert_eq!(expected(), 1);
        wait_for_all();
        assert_eq!(expected(), 0);
    }

    /// An arrival of four bytes at 100 and another at 104 are fetched only if a place overlaps their bytes.
    #[test]
    fn what_comes_elsewhere_is_not_fetched() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        expect(3, Arrival { to: 100, ..arrival(1) });
        expect(3, Arrival { to: 104, ..arrival(2) });
        wait_for_places(3, &[(0, 100), (108, 4)]);
        wait_for_places(4, &[(100, 4)]);
        assert_eq!(expected(), 2);
        wait_for_places(3, &[(103, 1)]);
        assert_eq!(expected(), 1);
        wait_for_places(3, &[(96, 9)]);
        assert_eq!(expected(), 0);
    }

    #[test]
    fn what_another_thread_brings_is_waited_for() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        expect(3, arrival(1));
        let number = *lock().expected.keys().next().expect("it was added");
        lock().taken.insert(number);
        let (tell, told) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            wait_for_stream(3);
            tell.send(expected())
        });
        assert!(
            told.recv_timeout(std::time::Duration::from_millis(50)).is_err(),
            "it goes on before the data is there"
        );
        lock().forget(number);
        BROUGHT.notify_all();
        assert_eq!(told.recv(), Ok(0));
        assert!(other.join().is_ok());
    }
}
