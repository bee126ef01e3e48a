//! Owns the way from readings of the processor's counter to the rank's clock: while somebody profiles, what both show at the same moments.
//!
//! PyTorch's profiler takes its times from the counter, which runs on while the simulator works and stands still where virtual time leaps. Who reads the
//! result, and in which unit, is not this module's business.
//!
//! Both are known where the rank asks something and has its answer, and where it launches something on a simulated GPU, once the driver has said when that
//! was. Between two such moments the clock follows the counter linearly.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uniference_protocol::messages::LaunchTimes;
use uniference_sim::time::SimTime;

/// A reading of the processor's counter. Its frequency is constant, and known to nobody here.
pub type Ticks = u64;

/// What the processor's counter shows: the one that PyTorch's profiler reads (`c10::getApproximateTime`).
#[allow(unsafe_code, reason = "the instruction has no safe form")]
#[inline]
pub fn ticks() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction, and Linux lets programs use it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the same; it writes to nothing but the register.
    unsafe {
        let value: u64;
        std::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack));
        value
    }
}

/// What a rank takes down while somebody profiles it.
#[derive(Default)]
pub(crate) struct Moments {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many profiles there are.
    profiles: u32,
    known: Vec<(Ticks, SimTime)>,
    /// Launches of which the driver has not said when they were.
    launched: BTreeMap<u64, Ticks>,
    /// What it has said, and nobody has taken.
    times: Vec<LaunchTimes>,
}

impl Moments {
    /// A profile begins: at this reading the rank's clock showed `now`.
    pub(crate) fn begin(&self, at: Ticks, now: SimTime) {
        let mut state = self.state();
        state.profiles += 1;
        state.known.push((at, now));
    }

    /// What the readings of the profile that ends were, and whether others go on.
    pub(crate) fn end(&self) -> (Timeline, bool) {
        let mut state = self.state();
        let timeline = Timeline::new(state.known.clone());
        state.profiles = state.profiles.saturating_sub(1);
        if state.profiles == 0 {
            (state.known, state.launched) = (Vec::new(), BTreeMap::new());
        }
        (timeline, state.profiles > 0)
    }

    /// The rank has asked something, and has its answer: the readings before and after it, and what its clock showed at both.
    pub(crate) fn asked(&self, before: (Ticks, SimTime), after: (Ticks, SimTime)) {
        let mut state = self.state();
        if state.profiles > 0 {
            state.known.extend([before, after]);
        }
    }

    /// It launches what it has given this number.
    pub(crate) fn launches(&self, number: u64, at: Ticks) {
        let mut state = self.state();
        if state.profiles > 0 {
            state.launched.insert(number, at);
        }
    }

    /// The driver has said when launches were.
    pub(crate) fn told(&self, times: Vec<LaunchTimes>) {
        let mut state = self.state();
        for launch in &times {
            if let Some(at) = state.launched.remove(&launch.id.launch) {
                state.known.push((at, launch.launched));
            }
        }
        state.times.extend(times);
    }

    /// All of that which nobody has taken.
    pub(crate) fn take_times(&self) -> Vec<LaunchTimes> {
        std::mem::take(&mut self.state().times)
    }

    /// Whether a launch was taken down of which the driver has not said when it was.
    pub(crate) fn lacks_times(&self) -> bool {
        !self.state().launched.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rank's clock by readings of the counter.
#[derive(Debug, PartialEq)]
pub struct Timeline {
    /// Neither ever goes back.
    known: Vec<(Ticks, SimTime)>,
}

impl Timeline {
    /// From readings and what the clock showed then, in picoseconds.
    pub fn of(known: impl IntoIterator<Item = (Ticks, u64)>) -> Timeline {
        Timeline::new(known.into_iter().map(|(at, now)| (at, SimTime::from_ps(now))).collect())
    }

    fn new(mut known: Vec<(Ticks, SimTime)>) -> Timeline {
        known.sort_unstable();
        let mut latest = SimTime::ZERO;
        for (_, now) in &mut known {
            latest = latest.max(*now);
            *now = latest;
        }
        Timeline { known }
    }

    /// What the rank's clock showed at a reading; at one before the first or after the last that is known, what it showed at those.
    pub fn at(&self, reading: Ticks) -> SimTime {
        let next = self.known.partition_point(|(at, _)| *at <= reading);
        match (next.checked_sub(1).and_then(|last| self.known.get(last)), self.known.get(next)) {
            (Some((from, before)), Some((to, after))) => {
                let share =
                    u128::from(after.since(*before).as_ps()) * u128::from(reading - from) / u128::from(to - from);
                SimTime::from_ps(before.as_ps() + share as u64)
            }
            (Some((_, only)), None) | (None, Some((_, only))) => *only,
            (None, None) => SimTime::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uniference_protocol::messages::LaunchId;

    fn ps(ps: u64) -> SimTime {
        SimTime::from_ps(ps)
    }

    /// Between (100, 10 ps) and (200, 30 ps) the clock advances by 20 ps in 100 ticks: at 150 it shows 10 + 20 * 50 / 100.
    #[test]
    fn between_known_readings_the_clock_follows_the_counter() {
        let timeline = Timeline::of([(200, 30), (100, 10), (300, 30)]);
        assert_eq!([0, 100, 150, 200, 250, 999].map(|at| timeline.at(at)), [10, 10, 20, 30, 30, 30].map(ps));
        assert_eq!(Timeline::of([]).at(7), ps(0));
    }

    #[test]
    fn a_launch_counts_once_the_driver_has_said_when_it_was() {
        let moments = Moments::default();
        moments.launches(1, 5);
        moments.begin(10, ps(0));
        moments.launches(2, 20);
        assert!(moments.lacks_times());
        let launch = |number, at| LaunchTimes {
            id: LaunchId { launch: number, node: 0 },
            launched: ps(at),
            began: ps(at),
            ended: ps(at),
        };
        moments.asked((30, ps(80)), (40, ps(100)));
        moments.told(vec![launch(1, 3), launch(2, 60)]);
        assert!(!moments.lacks_times());
        assert_eq!(moments.take_times().len(), 2);
        assert_eq!(moments.take_times(), []);
        // (10, 0), (20, 60), (30, 80), (40, 100).
        let (timeline, others) = moments.end();
        assert!(!others);
        assert_eq!([15, 20, 25, 35].map(|at| timeline.at(at)), [30, 60, 70, 90].map(ps));
        assert_eq!(moments.end().0, Timeline::of([]));
    }

    proptest! {
        #[test]
        fn the_clock_never_goes_back(
            known in prop::collection::vec((0_u64..1000, 0_u64..1000), 0..20), mut readings in prop::collection::vec(0_u64..1100, 2..20)
        ) {
            let timeline = Timeline::of(known);
            readings.sort_unstable();
            let shown: Vec<SimTime> = readings.into_iter().map(|at| timeline.at(at)).collect();
            prop_assert!(shown.is_sorted());
        }
    }
}
