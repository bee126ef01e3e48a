//! Owns costs of copies and of kernels without an operator, which are known by their bytes only.

use super::{Model, ROOFLINE, estimate, shape};
use uniference_formats::devices;
use uniference_formats::operators::CopyKind;
use uniference_sim::device::{Estimate, Origin};
use uniference_sim::time::SimDuration;

/// Fraction of a pinned copy's rate that a copy of pageable memory reaches. It passes through a pinned buffer: less
/// than half on the slower of the two machines of the source (Harris, "How to optimize data transfers in CUDA C/C++",
/// NVIDIA 2012).
const PAGEABLE: f64 = 0.5;

/// Seconds of the shortest copies, and of the shortest kernels, whatever they move. In the profiles of an A100 and of
/// V100s that HolisticTraceAnalysis and param publish for their tests, copies of at most 4 KiB take 1.0 to 1.5 us, and
/// one of 20 kernels at most 2 us.
const SHORTEST_COPY: f64 = 1e-6;
const SHORTEST_KERNEL: f64 = 2e-6;

impl Model {
    /// A copy of so many bytes without contention.
    pub fn copy(&self, kind: CopyKind, bytes: u64) -> Estimate {
        let memory = self.target.rates.memory;
        let known = self.target.name.as_deref().and_then(|name| devices::find(name).ok());
        let host = devices::host_rate(known, memory);
        let rate = match kind {
            CopyKind::PinnedToDevice | CopyKind::DeviceToPinned => host,
            CopyKind::PageableToDevice | CopyKind::DeviceToPageable => PAGEABLE * host,
            // Each byte is read and written.
            CopyKind::Within => shape::STREAM * memory / 2.0,
            CopyKind::Set => shape::STREAM * memory,
            CopyKind::Peer => known.and_then(|device| device.link_gbps).map_or(host, |rate| rate * 1e9).min(memory),
        };
        estimate(self.start(SHORTEST_COPY) + bytes as f64 / rate, ROOFLINE, Origin::Roofline)
    }

    /// A kernel without an operator that reads or writes so many bytes, as far as they are known. Its arithmetic is
    /// unknown.
    pub fn kernel(&self, bytes: u64) -> Estimate {
        let moved = bytes as f64 / self.target.rates.memory / shape::STREAM;
        estimate(self.start(SHORTEST_KERNEL) + moved, ROOFLINE, Origin::Roofline)
    }

    /// A kernel that only occupies the device for so long.
    pub fn spin(&self, lasts: SimDuration) -> Estimate {
        estimate(self.start(SHORTEST_KERNEL) + lasts.as_secs_f64(), 0.0, Origin::Roofline)
    }

    /// Fixed seconds of any work on the device, at least `shortest`.
    fn start(&self, shortest: f64) -> f64 {
        self.target.rates.launch.as_secs_f64().max(shortest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::Databases;
    use crate::model::Target;
    use std::sync::Arc;
    use uniference_sim::device::Rates;

    fn seconds(name: Option<&str>, kind: CopyKind) -> f64 {
        let rates = Rates { launch: SimDuration::from_us(2), ..Rates::uniform(1e12, 1e12) };
        let target = Target { name: name.map(str::to_owned), rates };
        Model::new(target, Arc::new(Databases::default())).copy(kind, 1_000_000_000).duration.as_secs_f64()
    }

    #[test]
    fn a_copy_takes_its_bytes_over_the_slowest_of_its_way() {
        // 10^9 bytes at 0.8 of 64 GB/s, half of that from pageable memory; within the device read and written at 0.9 of
        // 1 TB/s.
        for (name, kind, expected) in [
            (Some("h100-sxm-80gb"), CopyKind::PinnedToDevice, 1e9 / 51.2e9),
            (Some("h100-sxm-80gb"), CopyKind::PageableToDevice, 1e9 / 25.6e9),
            (Some("h100-sxm-80gb"), CopyKind::DeviceToPinned, 1e9 / 51.2e9),
            (Some("h100-sxm-80gb"), CopyKind::Peer, 1e9 / 450e9),
            (Some("h100-sxm-80gb"), CopyKind::Within, 2e-3 / 0.9),
            (Some("h100-sxm-80gb"), CopyKind::Set, 1e-3 / 0.9),
            (Some("jetson-agx-orin-64gb"), CopyKind::PinnedToDevice, 2e-3),
            (None, CopyKind::PinnedToDevice, 1e9 / 25.6e9),
        ] {
            let found = seconds(name, kind);
            assert!((found - expected - 2e-6).abs() < 1e-11, "{name:?} {kind:?}: {found}");
        }
    }

    #[test]
    fn nothing_takes_no_time_on_a_device() {
        let target = Target { name: None, rates: Rates::uniform(1e12, 1e12) };
        let model = Model::new(target, Arc::new(Databases::default()));
        let seconds = |estimate: Estimate| estimate.duration.as_secs_f64();
        assert!((seconds(model.copy(CopyKind::Set, 4)) - SHORTEST_COPY).abs() < 1e-11);
        assert!((seconds(model.kernel(4)) - SHORTEST_KERNEL).abs() < 1e-11);
        assert!((seconds(model.kernel(0)) - SHORTEST_KERNEL).abs() < 1e-11);
    }
}
