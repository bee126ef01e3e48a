//! Owns the cost of operators. The engine decides when they run and which of them run concurrently.

use super::operator::Operator;
use super::work::{Origin, Work};
use crate::time::SimDuration;

/// Model of the operators' cost on one device.
pub trait CostModel {
    /// Cost of one operator that has the device for itself. `None`: the model has no estimate; another model may have
    /// one.
    fn estimate(&self, operator: &Operator) -> Option<Estimate>;
}

/// Estimated cost of an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The most likely duration.
    pub duration: SimDuration,
    /// Standard deviation of the logarithm of the real duration, compared with the estimate; `None`: the accuracy of
    /// the estimate is unknown.
    pub spread: Option<f64>,
    /// The source of the estimate.
    pub origin: Origin,
}

impl Estimate {
    /// The estimate of an unknown cost: zero.
    pub const UNKNOWN: Estimate = Estimate { duration: SimDuration::ZERO, spread: None, origin: Origin::None };

    /// The estimate for `factor` times as much time; finite, not negative.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Estimate {
        Estimate { duration: self.duration.scaled(factor), ..self }
    }

    /// Compute work whose duration is the estimate's most likely one.
    pub fn work(self) -> Work {
        Work::new(self.duration, self.origin)
    }
}

/// Memory other than the device's own: the time of an access is its latency, plus its bytes divided by the bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostMemory {
    /// Latency of an access.
    pub latency: SimDuration,
    /// Bandwidth in bytes per second; above zero.
    pub bandwidth: f64,
}

impl CostModel for HostMemory {
    fn estimate(&self, operator: &Operator) -> Option<Estimate> {
        let moving = SimDuration::from_secs_f64(operator.bytes().0 as f64 / self.bandwidth)?;
        let duration = SimDuration::from_ps(self.latency.as_ps().saturating_add(moving.as_ps()));
        Some(Estimate { duration, spread: None, origin: Origin::Roofline })
    }
}

/// Time that the host spends on each call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCosts {
    /// Time to reach an operator, and to launch its first kernel. For an operator without a
    /// kernel, see [`HostCosts::idle`].
    pub operator: SimDuration,
    /// Time to launch another kernel, a copy or a graph.
    pub launch: SimDuration,
    /// Time to record an event, or to make a stream wait for one.
    pub call: SimDuration,
    /// Time to run a Python function, if the program calls more functions than an operator's time accounts for.
    pub python: SimDuration,
}

impl HostCosts {
    /// Time of an operator without a kernel, a view or an allocation: a fifth of [`HostCosts::operator`]. PyTorch 2.15
    /// takes 0.9 to 1.2 us for a view or an allocation, including its call in Python, and 0.6 us more if autograd records
    /// it (view, t, a slice, empty; Intel Xeon, Emerald Rapids, the fastest of 40 loops, 2026-11-30).
    pub fn idle(&self) -> SimDuration {
        SimDuration::from_ps(self.operator.as_ps() / 5)
    }
}

impl Default for HostCosts {
    /// Operator: PyTorch 2.15 with stubs for CUDA's libraries takes 5 to 7 us per operator with a kernel on a server's
    /// CPU, including the Python code of a transformer's forward pass. Launch: if the host is the bottleneck, a loop of short kernels
    /// takes 3.8 us per kernel (Gray, "Getting started with CUDA graphs", NVIDIA 2019). Call: the cost of a poll.
    fn default() -> HostCosts {
        HostCosts {
            operator: SimDuration::from_us(6),
            launch: SimDuration::from_ns(3_800),
            call: SimDuration::from_us(1),
            python: SimDuration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Resource;
    use crate::time::Bytes;

    fn access(bytes: u64) -> Operator {
        Operator::unspecified(Resource::CopyEngine, 0, Bytes(bytes))
    }

    #[test]
    fn an_access_takes_its_latency_and_its_bytes() {
        let memory = HostMemory { latency: SimDuration::from_ps(700), bandwidth: 1e12 };
        assert_eq!(memory.estimate(&access(300)).unwrap().duration.as_ps(), 1_000);
        assert_eq!(memory.estimate(&access(0)).unwrap().duration.as_ps(), 700);
    }

    proptest::proptest! {
        #[test]
        fn time_does_not_fall_when_more_is_moved(bytes: u32, more: u32) {
            let memory = HostMemory { latency: SimDuration::ZERO, bandwidth: 5e9 };
            let duration = |bytes: u64| memory.estimate(&access(bytes)).unwrap().duration;
            proptest::prop_assert!(duration(bytes.into()) <= duration(u64::from(bytes) + u64::from(more)));
        }
    }
}
