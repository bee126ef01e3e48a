//! Concurrent activities: queues, dependencies, a backend's width, and exposed communication.

use crate::support::*;
use uniference_sim::device::Resource;
use uniference_sim::ids::{Handle, QueueId, Site};
use uniference_sim::program::{Activity, CollectiveKind::AllReduce, Origin, Request, Work};
use uniference_sim::time::SimDuration;

fn on_queue(queue: u32, ps: u64, after: &[u32]) -> Request {
    let work = Work::new(SimDuration::from_ps(ps), Origin::Recorded);
    let after = after.iter().map(|handle| Handle(*handle)).collect();
    Request::Issue { activity: Activity::Compute(work), queue: QueueId(queue), after, site: Site(0) }
}

fn wait_all(handles: &[u32]) -> Request {
    Request::Wait { handles: handles.iter().map(|h| Handle(*h)).collect(), any: false, timeout: None, site: Site(0) }
}

#[test]
fn a_queue_is_first_in_first_out_and_queues_run_side_by_side() {
    // Recorded work contains the contention of its recording: each queue of one device runs it at full speed.
    // queue 0: 3 + 4; queue 1: 5, then 2 after the first of queue 0 -> max(7, 7)
    let script = vec![
        on_queue(0, 3, &[]),
        on_queue(0, 4, &[]),
        on_queue(1, 5, &[]),
        on_queue(1, 2, &[0]),
        wait_all(&[0]),
        wait_all(&[2]),
        wait_all(&[1, 3]),
    ];
    let outcomes = run(&switch(1), vec![script]);
    assert_eq!([outcomes.at(0, 4), outcomes.at(0, 5), outcomes.at(0, 6)], [3, 5, 7]);
}

#[test]
fn an_activity_starts_when_what_it_comes_after_is_complete() {
    // 10 on queue 0; then 1 on queue 1 after it; the first activity of a queue holds up the later ones.
    let script = vec![on_queue(0, 10, &[]), on_queue(1, 1, &[0]), on_queue(1, 1, &[]), wait_all(&[0, 1, 2])];
    let outcomes = run(&switch(1), vec![script]);
    assert_eq!(outcomes.finish(0), 12);
}

#[test]
fn compute_hides_an_asynchronous_all_reduce() {
    // Two ranks, n bytes, ring: 2 (n/2 beta + alpha) = 11 us behind 8 us of compute: 3 us exposed.
    let script = || vec![collective(AllReduce, 1000), compute(8_000_000), wait_all(&[1]), wait_all(&[0])];
    let outcomes = run(&switch(2), vec![script(), script()]);
    let ring = 1000 * PS_PER_BYTE + 2 * LATENCY_PS;
    assert_eq!(outcomes.finish(0), ring);
    let times = outcomes.statistics.ranks()[0].times;
    assert_eq!(times.compute.as_ps(), 8_000_000);
    assert_eq!(times.exposed.as_ps(), ring - 8_000_000);
}

#[test]
fn the_parts_of_a_ranks_time_add_up_to_its_finish() {
    let script = |work| vec![compute(work), wait(0), Request::Now, collective(AllReduce, 4096), wait(1)];
    let outcomes = run(&switch(3), vec![script(10), script(20_000_000), script(7_000)]);
    for (rank, statistics) in outcomes.statistics.ranks().iter().enumerate() {
        let times = statistics.times;
        assert_eq!((times.compute + times.exposed + times.idle).as_ps(), outcomes.finish(rank));
    }
}

#[test]
fn a_backends_width_bounds_how_many_collectives_of_a_group_run() {
    // Two all-reduces one after the other: 4 (n/2 beta + alpha). Concurrently on one stream per pair, the second one's
    // messages follow the first one's, and its latencies hide behind theirs: 3 n/2 beta + 2 alpha.
    let script = || vec![collective(AllReduce, 1000), collective(AllReduce, 1000), wait_all(&[0, 1])];
    let mut cluster = switch(2);
    assert_eq!(run(&cluster, vec![script(), script()]).finish(0), 2 * (1000 * PS_PER_BYTE + 2 * LATENCY_PS));
    cluster.backend.concurrency = 2;
    assert_eq!(run(&cluster, vec![script(), script()]).finish(0), 3 * 500 * PS_PER_BYTE + 2 * LATENCY_PS);
}

#[test]
fn a_device_takes_its_slowdown_times_as_long() {
    let mut cluster = switch(1);
    cluster.devices[0].slowdown = 2.5;
    assert_eq!(run(&cluster, vec![vec![compute(1000), wait(0)]]).finish(0), 2500);
}

fn modelled(queue: u32, ps: u64, after: &[u32]) -> Request {
    let work = Work::new(SimDuration::from_ps(ps), Origin::Database);
    let after = after.iter().map(|handle| Handle(*handle)).collect();
    Request::Issue { activity: Activity::Compute(work), queue: QueueId(queue), after, site: Site(0) }
}

#[test]
fn modelled_work_shares_the_device_that_recorded_work_has_for_itself() {
    // Two pieces of modelled work, 30 and 10: both at half speed until 20, then the rest of the first alone. Recorded
    // work runs concurrently.
    let script = vec![
        modelled(0, 30, &[]),
        modelled(1, 10, &[]),
        on_queue(2, 25, &[]),
        wait_all(&[1]),
        wait_all(&[2]),
        wait_all(&[0]),
    ];
    let outcomes = run(&switch(1), vec![script]);
    assert_eq!([outcomes.at(0, 3), outcomes.at(0, 4), outcomes.at(0, 5)], [20, 25, 40]);
    // Work in one queue does not share the device with itself; work that begins when the other has ended has the device
    // for itself again.
    let script = vec![modelled(0, 30, &[]), modelled(0, 10, &[]), modelled(1, 7, &[1]), wait_all(&[0, 1, 2])];
    assert_eq!(run(&switch(1), vec![script]).finish(0), 47);
    // Other ranks have devices of their own.
    let scripts = vec![vec![modelled(0, 30, &[]), wait(0)], vec![modelled(0, 10, &[]), wait(0)]];
    let outcomes = run(&switch(2), scripts);
    assert_eq!([outcomes.finish(0), outcomes.finish(1)], [30, 10]);
}

#[test]
fn copies_and_what_keeps_one_multiprocessor_busy_do_not_share_the_device() {
    for part in [Resource::CopyEngine, Resource::Multiprocessor] {
        let activity = Activity::Compute(Work::new(SimDuration::from_ps(25), Origin::Roofline).on(part));
        let beside = Request::Issue { activity, queue: QueueId(1), after: vec![], site: Site(0) };
        let outcomes = run(&switch(1), vec![vec![modelled(0, 30, &[]), beside, wait_all(&[1]), wait_all(&[0])]]);
        assert_eq!([outcomes.at(0, 2), outcomes.at(0, 3)], [25, 30], "{part:?}");
    }
}

#[test]
fn communication_takes_a_share_of_the_device_from_modelled_work() {
    // The all-reduce lasts 11 us and occupies a quarter of the device: 8.25 us of the 20 us of work are done in that
    // time.
    let ring = 1000 * PS_PER_BYTE + 2 * LATENCY_PS;
    let mut cluster = switch(2);
    cluster.devices.iter_mut().for_each(|device| device.communication = 0.25);
    let script = |work| vec![collective(AllReduce, 1000), work, wait_all(&[0]), wait_all(&[1])];
    let outcomes = run(&cluster, vec![script(modelled(0, 20_000_000, &[])), script(modelled(0, 20_000_000, &[]))]);
    assert_eq!([outcomes.at(0, 2), outcomes.finish(0)], [ring, 20_000_000 + ring / 4]);
    // The all-reduce lasts until its slowest member is done, and does not slow down recorded work.
    let outcomes = run(&cluster, vec![script(on_queue(0, 20_000_000, &[])), script(modelled(0, 20_000_000, &[]))]);
    assert_eq!(outcomes.finish(0), 20_000_000);
}
