//! Owns samples for the tests of several modules: a call, and the report of a small run.

use uniference_formats::report::{Manifest, Report};
use uniference_sim::cluster::Device;
use uniference_sim::event::{Event, Observer, Times, Traffic};
use uniference_sim::ids::{GroupId, Handle, HostId, RankId, Site};
use uniference_sim::observe::Statistics;
use uniference_sim::program::{Call, CallOp, Collective, CollectiveKind, DType, Outcome, Shape};
use uniference_sim::time::{Bytes, SimDuration, SimTime};

/// An all-reduce of the world.
pub(crate) fn all_reduce(elements: u64) -> Call {
    let collective = Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::Float32,
        reduce: None,
        root: None,
        shape: Shape::Even(elements),
        kernel: None,
    };
    Call { group: GroupId(0), op: CallOp::Collective(collective) }
}

/// The report of two ranks that reduce a megabyte, the second of which computes longest.
pub(crate) fn report() -> Report {
    let mut statistics = Statistics::default();
    let us = SimDuration::from_us;
    for (rank, compute) in [(RankId(0), us(1_000)), (RankId(1), us(1_500))] {
        let (call, bytes) = (&all_reduce(256 * 1024), Bytes(1 << 20));
        let issued = Event::Issued { rank, handle: Handle(0), call, bytes, site: Site(0), task: Default::default() };
        statistics.record(SimTime::ZERO, &issued);
        let times = Times { compute, exposed: us(500), ..Times::default() };
        let finished = Event::Finished {
            rank,
            outcome: Outcome::Ok,
            times,
            traffic: Traffic::default(),
            cause: Default::default(),
        };
        statistics.record(SimTime::ZERO + compute + us(500), &finished);
    }
    let device = |rank| Device::new(format!("orin.{rank}"), HostId(rank));
    let manifest = Manifest::default();
    Report::new(&statistics, &[device(0), device(1)], "00ff".to_owned(), manifest)
}
