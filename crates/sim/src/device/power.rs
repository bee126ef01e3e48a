//! Owns the power draw of a device, and its slowdown under a power cap.

use crate::time::SimDuration;

/// Power draw of a device, in watts: at least 0, and busy at least as much as idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// Power while the device waits.
    pub idle: f64,
    /// Power while the device computes.
    pub busy: f64,
}

impl Power {
    /// Energy in joules of a run of duration `run`, in which the device computes for the time `computing`.
    pub fn energy(&self, run: SimDuration, computing: SimDuration) -> f64 {
        self.idle * run.as_secs_f64() + (self.busy - self.idle) * computing.as_secs_f64()
    }

    /// Fraction of its clock that a device reaches if its power is capped at `cap`, which is more than its idle power.
    /// Dynamic power is proportional to frequency and to the square of the voltage (Burd and Brodersen, "Energy
    /// efficient CMOS microprocessor design", 1995), and the voltage is lowered in proportion to the frequency. Power
    /// therefore falls with the cube of the clock.
    pub fn clock_under(&self, cap: f64) -> f64 {
        if cap >= self.busy { 1.0 } else { ((cap - self.idle) / (self.busy - self.idle)).cbrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_all_the_time_and_busy_while_it_computes() {
        let power = Power { idle: 60.0, busy: 700.0 };
        // 10 s of 60 W, plus 3 s of 640 W.
        assert_eq!(power.energy(SimDuration::from_us(10_000_000), SimDuration::from_us(3_000_000)), 2_520.0);
    }

    #[test]
    fn an_eighth_of_the_power_is_half_of_the_clock() {
        let power = Power { idle: 60.0, busy: 700.0 };
        assert_eq!(power.clock_under(140.0), 0.5);
        assert_eq!(power.clock_under(700.0), 1.0);
        assert_eq!(power.clock_under(900.0), 1.0);
    }
}
