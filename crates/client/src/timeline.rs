//! Owns the conversion of readings of the CPU's cycle counter to the rank's clock: pairs of both values, recorded while
//! a profile is active.
//!
//! PyTorch's profiler gets its times from the counter, which advances while the simulator works and does not advance
//! during jumps of virtual time. The readers of the result and its unit are not known to this module.
//!
//! Both values are known when the rank gets an answer to a request, and when it launches work on a simulated GPU, once
//! the driver has reported the time of the launch. Between two such moments, the clock is interpolated linearly.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uniference_protocol::messages::LaunchTimes;
use uniference_sim::time::SimTime;

/// A reading of the CPU's cycle counter. The counter's frequency is constant and unknown to this module.
pub type Ticks = u64;

/// Reads the CPU's cycle counter: the one that PyTorch's profiler reads (`c10::getApproximateTime`).
#[allow(unsafe_code, reason = "the instruction has no safe form")]
#[inline]
pub fn ticks() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every CPU of this architecture has the instruction, and Linux lets programs use it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the instruction only writes to the register.
    unsafe {
        let value: u64;
        std::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack));
        value
    }
}

/// Readings that a rank records during profiles.
#[derive(Default)]
pub(crate) struct Moments {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of active profiles.
    profiles: u32,
    known: Vec<(Ticks, SimTime)>,
    /// Launches whose times the driver has not reported.
    launched: BTreeMap<u64, Ticks>,
    /// Times that the driver has reported and no call has returned yet.
    times: Vec<LaunchTimes>,
}

impl Moments {
    /// Begins a profile: at reading `at`, the rank's clock was `now`.
    pub(crate) fn begin(&self, at: Ticks, now: SimTime) {
        let mut state = self.state();
        state.profiles += 1;
        state.known.push((at, now));
    }

    /// Ends a profile: returns its timeline, and whether other profiles are active.
    pub(crate) fn end(&self) -> (Timeline, bool) {
        let mut state = self.state();
        let timeline = Timeline::new(state.known.clone());
        state.profiles = state.profiles.saturating_sub(1);
        if state.profiles == 0 {
            (state.known, state.launched) = (Vec::new(), BTreeMap::new());
        }
        (timeline, state.profiles > 0)
    }

    /// Records a request of the rank: counter readings before the request and after its answer, with the rank's clock
    /// at both.
    pub(crate) fn asked(&self, before: (Ticks, SimTime), after: (Ticks, SimTime)) {
        let mut state = self.state();
        if state.profiles > 0 {
            state.known.extend([before, after]);
        }
    }

    /// Records a launch with its number.
    pub(crate) fn launches(&self, number: u64, at: Ticks) {
        let mut state = self.state();
        if state.profiles > 0 {
            state.launched.insert(number, at);
        }
    }

    /// Records the times of launches that the driver has reported.
    pub(crate) fn told(&self, times: Vec<LaunchTimes>) {
        let mut state = self.state();
        for launch in &times {
            if let Some(at) = state.launched.remove(&launch.id.launch) {
                state.known.push((at, launch.launched));
            }
        }
        state.times.extend(times);
    }

    /// Reported times that no call has returned yet.
    pub(crate) fn take_times(&self) -> Vec<LaunchTimes> {
        std::mem::take(&mut self.state().times)
    }

    /// Whether the driver has not reported the times of some recorded launches.
    pub(crate) fn lacks_times(&self) -> bool {
        !self.state().launched.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rank's clock as a function of counter readings.
#[derive(Debug, PartialEq)]
pub struct Timeline {
    /// Readings of the counter, each with the rank's clock at it; neither ever decreases.
    known: Vec<(Ticks, SimTime)>,
}

impl Timeline {
    /// A timeline from readings and the clock at each, in picoseconds.
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

    /// The rank's clock at a reading; before the first and after the last known reading, the clock at that reading.
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

    /// Between (100, 10 ps) and (200, 30 ps) the clock advances by 20 ps in 100 ticks: at 150 it shows 10 + 20 * 50 /
    /// 100.
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
