//! Owns how modelled work shares a device: all running work is equally fast, and the device is fully used while any
//! work runs.
//!
//! Processor sharing in whole picoseconds: while `n` pieces of work run, each gets the `n`th part of the device's time,
//! and the pieces that began first get the remainder of the division. The work done in a span therefore equals the
//! span, whatever runs, and nothing depends on the order of floating-point additions. Work that runs alone lasts as
//! long as [`Device::time_for`] says, to the picosecond.
//!
//! While the device's rank communicates, communication occupies a share of the device ([`Device::communication`]): on a
//! GPU its kernels occupy streaming multiprocessors and move data through the same memory.

use super::Device;
use crate::ids::Handle;
use crate::time::{SimDuration, SimTime};

/// Denominator of a device's shares.
const WHOLE: u64 = 1_000_000;

/// The modelled work that runs on one device.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// Running work in the order of its beginnings, with its remaining duration if it ran alone, outside of slow
    /// spells.
    running: Vec<(Handle, SimDuration)>,
    /// Time up to which the remaining durations are computed.
    since: SimTime,
    /// Fraction of a picosecond of compute time, in units of 1/[`WHOLE`], that is left over from the last update.
    remainder: u64,
    /// Number of the rank's operations in progress.
    communicating: u32,
}

impl Sharing {
    /// Begins work that lasts `duration` on the reference device.
    pub fn begin(&mut self, device: &Device, now: SimTime, handle: Handle, duration: SimDuration) {
        self.advance(device, now);
        self.running.push((handle, duration.scaled(device.slowdown)));
    }

    /// Ends work that [`Sharing::next_end`] has named for this moment.
    pub fn end(&mut self, device: &Device, now: SimTime, handle: Handle) {
        self.advance(device, now);
        self.running.retain(|(running, _)| *running != handle);
    }

    /// Begins an operation of the rank.
    pub fn communication_begins(&mut self, device: &Device, now: SimTime) {
        self.advance(device, now);
        self.communicating += 1;
    }

    /// Ends an operation of the rank.
    pub fn communication_ends(&mut self, device: &Device, now: SimTime) {
        self.advance(device, now);
        self.communicating -= 1;
    }

    /// The work that ends next if no other work begins or ends, and its end. Among works that end together, the one
    /// that began first is returned.
    pub fn next_end(&self, device: &Device) -> Option<(Handle, SimTime)> {
        let (handle, left) = self.running.iter().min_by_key(|(_, left)| *left)?;
        let all = u128::from(left.as_ps()) * self.running.len() as u128 * u128::from(WHOLE);
        let given = (all.saturating_sub(u128::from(self.remainder))).div_ceil(u128::from(self.capacity(device)));
        let lasts = device.stretched(self.since, SimDuration::from_ps(given.try_into().unwrap_or(u64::MAX)));
        Some((*handle, self.since.checked_add(lasts).unwrap_or(SimTime::MAX)))
    }

    /// Share of the device that compute gets, in units of 1/[`WHOLE`]; above zero.
    fn capacity(&self, device: &Device) -> u64 {
        let taken = if self.communicating == 0 { 0.0 } else { device.communication };
        (((1.0 - taken) * WHOLE as f64).round() as u64).clamp(1, WHOLE)
    }

    /// Subtracts the work that was done since the last change from the remaining durations.
    fn advance(&mut self, device: &Device, now: SimTime) {
        let since = std::mem::replace(&mut self.since, now);
        if self.running.is_empty() {
            self.remainder = 0;
            return;
        }
        let parts = u128::from(device.unstretched(since, now).as_ps()) * u128::from(self.capacity(device))
            + u128::from(self.remainder);
        self.remainder = (parts % u128::from(WHOLE)) as u64;
        let mut given = u64::try_from(parts / u128::from(WHOLE)).unwrap_or(u64::MAX);
        // Work that needs less than its equal part leaves the remainder to the other work.
        loop {
            let needy = self.running.iter().filter(|(_, left)| left.as_ps() > 0).count() as u64;
            if needy == 0 || given == 0 {
                return;
            }
            let (each, mut first) = (given / needy, given % needy);
            for (_, left) in self.running.iter_mut().filter(|(_, left)| left.as_ps() > 0) {
                let part = (each + u64::from(first > 0)).min(left.as_ps());
                first = first.saturating_sub(1);
                *left = SimDuration::from_ps(left.as_ps() - part);
                given -= part;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SlowSpell;
    use crate::ids::HostId;

    fn device() -> Device {
        Device::new("a", HostId(0))
    }

    fn at(ps: u64) -> SimTime {
        SimTime::from_ps(ps)
    }

    /// End of each piece of work, given as (begin, duration) in the order of their beginnings.
    fn ends(device: &Device, work: &[(u64, u64)], communication: &[(u64, u64)]) -> Vec<u64> {
        let mut sharing = Sharing::default();
        let mut ends = vec![0; work.len()];
        let mut changes: Vec<(u64, Change)> =
            work.iter().enumerate().map(|(i, (from, lasts))| (*from, Change::Begin(i, *lasts))).collect();
        changes.extend(communication.iter().flat_map(|(from, to)| [(*from, Change::Communicate), (*to, Change::Stop)]));
        changes.sort_by_key(|(when, _)| *when);
        let mut changes = changes.into_iter().peekable();
        loop {
            let end = sharing.next_end(device);
            match (changes.peek(), end) {
                (Some((when, _)), end) if end.is_none_or(|(_, end)| at(*when) < end) => {
                    let (when, change) = changes.next().expect("just seen");
                    let now = at(when);
                    match change {
                        Change::Begin(i, lasts) => {
                            sharing.begin(device, now, Handle(i as u32), SimDuration::from_ps(lasts))
                        }
                        Change::Communicate => sharing.communication_begins(device, now),
                        Change::Stop => sharing.communication_ends(device, now),
                    }
                }
                (_, Some((handle, end))) => {
                    ends[handle.0 as usize] = end.as_ps();
                    sharing.end(device, end, handle);
                }
                _ => return ends,
            }
        }
    }

    #[derive(Clone, Copy)]
    enum Change {
        Begin(usize, u64),
        Communicate,
        Stop,
    }

    #[test]
    fn what_runs_together_is_equally_fast() {
        // One piece alone; then two from the same moment: the shorter ends after twice its time, then the rest of the
        // longer runs alone.
        assert_eq!(ends(&device(), &[(5, 10)], &[]), [15]);
        assert_eq!(ends(&device(), &[(0, 4), (0, 6)], &[]), [8, 10]);
        // The second piece begins when 10 of the first are left: both get half until the second's 3 are done, 6 later;
        // then 7 are left.
        assert_eq!(ends(&device(), &[(0, 30), (20, 3)], &[]), [33, 26]);
        // Three equal pieces end together, in the order of their beginnings.
        assert_eq!(ends(&device(), &[(0, 5), (0, 5), (0, 5)], &[]), [15, 15, 15]);
    }

    #[test]
    fn communication_takes_its_share_while_it_goes_on() {
        let device = Device { communication: 0.25, ..device() };
        assert_eq!(ends(&device, &[(0, 30)], &[(0, 1_000)]), [40]);
        // 10 before the operation, 15 during its 20, and 5 after it; a second operation at the same time adds nothing.
        assert_eq!(ends(&device, &[(0, 30)], &[(10, 30)]), [35]);
        assert_eq!(ends(&device, &[(0, 30)], &[(10, 30), (10, 30)]), [35]);
        assert_eq!(ends(&device, &[(0, 3), (0, 6)], &[(0, 1_000)]), [8, 12]);
    }

    #[test]
    fn slow_devices_and_spells_slow_what_is_shared() {
        // The device is twice as slow as the reference, and from 30 to 40 twice as slow again. Without the spell, two
        // pieces of work of 10 would end at 40; 30 of these 40 are over before the spell.
        let spells = vec![SlowSpell { from: at(30), to: at(40), factor: 2.0 }];
        let slow = Device { slowdown: 2.0, spells, ..device() };
        assert_eq!(ends(&slow, &[(0, 10), (0, 10)], &[]), [45, 45]);
    }

    proptest::proptest! {
        #[test]
        fn no_work_is_lost_and_none_is_done_twice(work in proptest::collection::vec((0..50_u64, 1..1_000_u64), 1..8)) {
            let mut work = work;
            work.sort_by_key(|(from, _)| *from);
            // As long as some work runs, the device is busy: the last end is that of serial execution.
            let mut busy = 0;
            for (from, lasts) in &work {
                busy = busy.max(*from) + lasts;
            }
            let ends = ends(&device(), &work, &[]);
            proptest::prop_assert_eq!(ends.iter().copied().max(), Some(busy));
            for ((from, lasts), end) in work.iter().zip(ends) {
                proptest::prop_assert!(end >= from + lasts);
            }
        }
    }
}
