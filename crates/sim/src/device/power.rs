//! Owns what a device draws from the mains, and how much slower it is where it may not draw all that it would.

use crate::time::SimDuration;

/// What a device draws, in watts: at least 0, and busy no less than idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// While it waits.
    pub idle: f64,
    /// While it computes.
    pub busy: f64,
}

impl Power {
    /// Joules of a run that lasts so long, in which the device computes for a part of it.
    pub fn energy(&self, run: SimDuration, computing: SimDuration) -> f64 {
        self.idle * run.as_secs_f64() + (self.busy - self.idle) * computing.as_secs_f64()
    }

    /// The part of its clock that is left to a device that may draw no more than `cap`, which is more than it draws idle. Dynamic power is
    /// proportional to frequency and to the square of the voltage (Burd and Brodersen, "Energy efficient CMOS microprocessor design", 1995), and the
    /// voltage is lowered in proportion to the frequency: so power falls with the cube of the clock.
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
        // 10 s of 60 W, and 3 s of the 640 W more.
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
