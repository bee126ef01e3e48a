//! Owns how modelled work shares a device: all that runs is equally fast, and none of the device is idle while any runs.
//!
//! Processor sharing in whole picoseconds: of the time that a device gives while `n` pieces of work run, each gets the `n`th part, and those that
//! began first get what the division leaves. So the work that is done in a span is the span, whatever runs, and nothing depends on the order in which
//! floating-point numbers are added. Work that is alone takes as long as [`Device::time_for`] says, to the picosecond.
//!
//! While the device's rank communicates, communication takes a share of it ([`Device::communication`]): on a GPU its kernels occupy streaming multiprocessors
//! and move data through the same memory.

use super::Device;
use crate::ids::Handle;
use crate::time::{SimDuration, SimTime};

/// Parts in which shares of a device are counted.
const WHOLE: u64 = 1_000_000;

/// The modelled work that runs on one device.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// In the order in which it began, with what is left of it: the time that it would take alone, outside of slow spells.
    running: Vec<(Handle, SimDuration)>,
    /// Up to when what is left has been worked out.
    since: SimTime,
    /// Of a picosecond, in parts of [`WHOLE`], that was given and is not yet used.
    remainder: u64,
    /// Operations of the rank that are under way.
    communicating: u32,
}

impl Sharing {
    /// Work begins, which would take `duration` on the reference device.
    pub fn begin(&mut self, device: &Device, now: SimTime, handle: Handle, duration: SimDuration) {
        self.advance(device, now);
        self.running.push((handle, duration.scaled(device.slowdown)));
    }

    /// Work ends that [`Sharing::next_end`] has named for this moment.
    pub fn end(&mut self, device: &Device, now: SimTime, handle: Handle) {
        self.advance(device, now);
        self.running.retain(|(running, _)| *running != handle);
    }

    /// An operation of the rank begins.
    pub fn communication_begins(&mut self, device: &Device, now: SimTime) {
        self.advance(device, now);
        self.communicating += 1;
    }

    /// An operation of the rank ends.
    pub fn communication_ends(&mut self, device: &Device, now: SimTime) {
        self.advance(device, now);
        self.communicating -= 1;
    }

    /// Which work ends next if nothing else begins or ends, and when: of those that end first the one that began first.
    pub fn next_end(&self, device: &Device) -> Option<(Handle, SimTime)> {
        let (handle, left) = self.running.iter().min_by_key(|(_, left)| *left)?;
        let all = u128::from(left.as_ps()) * self.running.len() as u128 * u128::from(WHOLE);
        let given = (all.saturating_sub(u128::from(self.remainder))).div_ceil(u128::from(self.capacity(device)));
        let lasts = device.stretched(self.since, SimDuration::from_ps(given.try_into().unwrap_or(u64::MAX)));
        Some((*handle, self.since.checked_add(lasts).unwrap_or(SimTime::MAX)))
    }

    /// What the device gives to compute, in parts of [`WHOLE`]; above zero.
    fn capacity(&self, device: &Device) -> u64 {
        let taken = if self.communicating == 0 { 0.0 } else { device.communication };
        (((1.0 - taken) * WHOLE as f64).round() as u64).clamp(1, WHOLE)
    }

    /// Takes what has been done since the last change off what is left.
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
        // Whoever needs less than its part leaves the rest to the others.
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

    /// When each piece of work ends that begins at such moments and takes so long: (begin, duration), in the order of their beginnings.
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
        // Alone; two from the same moment: the shorter after twice its time, then the rest of the longer alone.
        assert_eq!(ends(&device(), &[(5, 10)], &[]), [15]);
        assert_eq!(ends(&device(), &[(0, 4), (0, 6)], &[]), [8, 10]);
        // The second comes when 10 of the first are left: both get half until the second's 3 are done, 6 later; then 7 are left.
        assert_eq!(ends(&device(), &[(0, 30), (20, 3)], &[]), [33, 26]);
        // Three alike end together, in the order of their beginnings.
        assert_eq!(ends(&device(), &[(0, 5), (0, 5), (0, 5)], &[]), [15, 15, 15]);
    }

    #[test]
    fn communication_takes_its_share_while_it_goes_on() {
        let device = Device { communication: 0.25, ..device() };
        assert_eq!(ends(&device, &[(0, 30)], &[(0, 1_000)]), [40]);
        // 10 before it, 15 in its 20, and 5 after it; a second operation at the same time takes no more.
        assert_eq!(ends(&device, &[(0, 30)], &[(10, 30)]), [35]);
        assert_eq!(ends(&device, &[(0, 30)], &[(10, 30), (10, 30)]), [35]);
        assert_eq!(ends(&device, &[(0, 3), (0, 6)], &[(0, 1_000)]), [8, 12]);
    }

    #[test]
    fn slow_devices_and_spells_slow_what_is_shared() {
        // Twice as slow, and from 30 to 40 twice as slow again: two pieces of 10 take 40 alone, of which 30 are done before the spell.
        let spells = vec![SlowSpell { from: at(30), to: at(40), factor: 2.0 }];
        let slow = Device { slowdown: 2.0, spells, ..device() };
        assert_eq!(ends(&slow, &[(0, 10), (0, 10)], &[]), [45, 45]);
    }

    proptest::proptest! {
        #[test]
        fn no_work_is_lost_and_none_is_done_twice(work in proptest::collection::vec((0..50_u64, 1..1_000_u64), 1..8)) {
            let mut work = work;
            work.sort_by_key(|(from, _)| *from);
            // As long as something runs, the device is busy: it ends when work one after the other would.
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
