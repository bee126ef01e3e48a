//! One rank that launches work on CUDA streams. Times are in microseconds; the closed form of each test precedes it.

use super::*;
use crate::slice::{CopyEngine, Launch};
use uniference_formats::operators::Line;
use uniference_sim::device::Resource;
use uniference_sim::program::LOOK_COST;

/// Slices of scripted pieces: the operators are one byte, the index of the slice's pieces in the list.
pub(super) struct Scripted(pub Vec<Vec<LoweredWork>>);

impl Costs for Scripted {
    fn lower(&mut self, slice: RankSlice<'_>) -> Vec<LoweredWork> {
        match slice.operators {
            // The index alone, or as captured by another process.
            [at] | [27, _, at, 27, 0] => self.0[usize::from(*at)].clone(),
            _ => vec![host(0)],
        }
    }
}

fn work(us: u64) -> Work {
    Work::new(SimDuration::from_us(us), Origin::Roofline)
}

pub(super) fn host(us: u64) -> LoweredWork {
    LoweredWork::Host(work(us).on(Resource::Host))
}

pub(super) fn kernel(stream: u32, us: u64) -> LoweredWork {
    LoweredWork::Launch(Launch {
        stream,
        work: work(us),
        engine: None,
        blocks: false,
        queued: true,
        ids: Vec::new(),
        line: Line::default(),
    })
}

fn copy(stream: u32, us: u64, engine: CopyEngine, blocks: bool) -> LoweredWork {
    let work = work(us).on(Resource::CopyEngine);
    LoweredWork::Launch(Launch {
        stream,
        work,
        engine: Some(engine),
        blocks,
        queued: true,
        ids: Vec::new(),
        line: Line::default(),
    })
}

fn record(event: u32, stream: u32) -> LoweredWork {
    LoweredWork::Record { event, stream }
}

fn wait_event(stream: u32, event: u32) -> LoweredWork {
    LoweredWork::Wait { stream, event }
}

/// A rank that has sent these slices and then asks the question, with the answers.
fn after(slices: Vec<Vec<LoweredWork>>, question: Op) -> (Conversations, Vec<(u32, Answer)>) {
    let mut conversations = ranks(1);
    let places = 0..slices.len() as u8;
    conversations.cost_with(Box::new(Scripted(slices)));
    let ops: Vec<Op> = places.map(|at| slice(0, &[at])).chain([question]).collect();
    say(&mut conversations, 0, ops);
    let told = heard(&mut conversations);
    (conversations, told)
}

fn synchronize(work: DeviceWork) -> Op {
    Op::Synchronize { work, site: Site(0) }
}

fn query(work: DeviceWork) -> Op {
    Op::Query { work, site: Site(0) }
}

fn elapsed(from: u32, to: u32) -> Op {
    Op::Elapsed { from, to, site: Site(0) }
}

fn now(conversations: &Conversations) -> f64 {
    conversations.engine().clock(RankId(0)).as_ps() as f64 / 1e6
}

/// Time at which all work of the slices on the device is complete, and the host has waited for it.
fn device_ends(slices: Vec<Vec<LoweredWork>>) -> f64 {
    let (conversations, told) = after(slices, synchronize(DeviceWork::Device));
    assert_eq!(told, [(0, Answer::Go)]);
    now(&conversations)
}

/// Time at which the host has finished, before its clock read of 0.05 us.
fn host_ends(slices: Vec<Vec<LoweredWork>>) -> f64 {
    let (conversations, told) = after(slices, Op::Now);
    assert!(matches!(told[..], [(0, Answer::Now(..))]), "{told:?}");
    (conversations.engine().now().as_ps() - LOOK_COST.as_ps()) as f64 / 1e6
}

/// Both kernels begin at 1 with half of the device each: 6 are done at 1 + 2 * 6, and 4 of the other one remain.
#[test]
fn streams_without_a_dependency_share_the_device() {
    assert_eq!(device_ends(vec![vec![host(1), kernel(1, 10), kernel(2, 6), host(0)]]), 17.0);
}

/// Kernels on one stream run one after the other: 1 + 10 + 6.
#[test]
fn a_stream_keeps_its_order() {
    assert_eq!(device_ends(vec![vec![host(1), kernel(1, 10), kernel(1, 6), host(0)]]), 17.0);
    let (conversations, _) =
        after(vec![vec![host(1), kernel(1, 10), kernel(2, 6), host(0)]], synchronize(DeviceWork::Stream(2)));
    assert_eq!(now(&conversations), 13.0);
}

/// 1 + 10 until the event, 5 after it; the earlier work on stream 2 (3, shared until 1 + 6) does not wait.
#[test]
fn a_stream_waits_for_an_event_of_another_one() {
    let across = vec![host(1), kernel(1, 10), record(7, 1), wait_event(2, 7), kernel(2, 5), host(0)];
    assert_eq!(device_ends(vec![across]), 16.0);
    let before = vec![host(1), kernel(2, 3), kernel(1, 10), record(7, 1), wait_event(2, 7), kernel(2, 5), host(0)];
    assert_eq!(device_ends(vec![before]), 19.0);
    // In a later slice; and for an event that was recorded again, the later record counts.
    let slices = vec![
        vec![host(1), kernel(1, 10), record(7, 1), host(0)],
        vec![host(1), kernel(1, 10), record(7, 1), wait_event(2, 7), kernel(2, 5), host(0)],
    ];
    assert_eq!(device_ends(slices), 26.0);
    // A wait for an event that was never recorded has no effect: 5 and 10 share the device from 1 on.
    let never = vec![host(1), kernel(1, 10), wait_event(2, 9), kernel(2, 5), host(0)];
    assert_eq!(after(vec![never], synchronize(DeviceWork::Stream(2))).0.engine().clock(RankId(0)).as_ps(), 11_000_000);
}

/// A stream that waits for an event and has no other work is complete once the event is complete.
#[test]
fn who_synchronises_with_a_stream_waits_for_what_it_waits_for() {
    let slices = vec![vec![host(1), kernel(1, 10), record(7, 1), wait_event(2, 7), host(0)]];
    let (conversations, _) = after(slices, synchronize(DeviceWork::Stream(2)));
    assert_eq!(now(&conversations), 11.0);
}

/// Copies do not slow kernels, and each direction has its own copy engine: two in one direction need 20, both
/// directions at once 10.
#[test]
fn copies_go_beside_kernels_and_one_after_another_on_one_engine() {
    use CopyEngine::{FromDevice, ToDevice};
    let beside = |first: CopyEngine, second: CopyEngine| {
        let pieces = vec![host(1), kernel(1, 10), copy(2, 10, first, false), copy(3, 10, second, false), host(0)];
        device_ends(vec![pieces])
    };
    assert_eq!(beside(ToDevice, FromDevice), 11.0);
    assert_eq!(beside(ToDevice, ToDevice), 21.0);
    // The host waits for a copy of pageable memory, 1 + 10, before its next 2.
    assert_eq!(host_ends(vec![vec![host(1), copy(1, 10, ToDevice, true), host(2)]]), 13.0);
    assert_eq!(host_ends(vec![vec![host(1), copy(1, 10, ToDevice, false), host(2)]]), 3.0);
}

/// 100 launches of 5 each, with kernels of 2: the device waits for the host. N * 5 + 2.
#[test]
fn short_kernels_are_bound_by_their_launches() {
    let slice: Vec<LoweredWork> = (0..100).flat_map(|_| [host(5), kernel(0, 2)]).chain([host(0)]).collect();
    assert_eq!(device_ends(vec![slice]), 502.0);
}

/// Launches of 1, with kernels of 10: the host is done at N * 1, the device at 1 + N * 10.
#[test]
fn the_host_runs_ahead_of_long_kernels() {
    let slice: Vec<LoweredWork> = (0..50).flat_map(|_| [host(1), kernel(0, 10)]).chain([host(0)]).collect();
    assert_eq!(host_ends(vec![slice.clone()]), 50.0);
    assert_eq!(device_ends(vec![slice]), 501.0);
}

/// Kernel k is complete at 1 + 1000 k. Kernel n is launched at n, with at most 1,024 outstanding launches: the host
/// continues once n - 1024 is complete. The last one of 1030 lets the host continue at 1 + 1000 * 6.
#[test]
fn the_host_waits_where_too_many_launches_are_outstanding() {
    let slice = |count: u64| (0..count).flat_map(|_| [host(1), kernel(0, 1000)]).chain([host(0)]).collect();
    assert_eq!(host_ends(vec![slice(1024)]), 1024.0);
    assert_eq!(host_ends(vec![slice(1030)]), 6001.0);
}

/// The events are 10 apart, and the query needs 1; there is no answer before the second event, nor after another record
/// of one of them.
#[test]
fn the_time_between_events_is_known_when_both_have_happened() {
    let timed = vec![host(1), record(1, 0), kernel(0, 10), record(2, 0), host(0)];
    let (mut conversations, told) = after(vec![timed, vec![host(1), record(1, 0), host(0)]], elapsed(1, 2));
    assert_eq!((told, now(&conversations)), (vec![(0, Answer::Elapsed(None))], 3.0));
    let mut ask = |question: Op| {
        say(&mut conversations, 0, vec![question]);
        (heard(&mut conversations), now(&conversations))
    };
    assert_eq!(ask(synchronize(DeviceWork::Event { event: 2, records: 1 })), (vec![(0, Answer::Go)], 11.0));
    // The first event was recorded again after the second one.
    assert_eq!(ask(elapsed(1, 2)), (vec![(0, Answer::Elapsed(Some(0)))], 12.0));

    let timed = vec![host(1), record(1, 0), kernel(0, 10), record(2, 0), host(0)];
    let (mut conversations, _) = after(vec![timed], synchronize(DeviceWork::Device));
    for (from, to, ps) in [(1, 2, Some(10_000_000)), (2, 1, Some(-10_000_000)), (1, 3, None)] {
        say(&mut conversations, 0, vec![elapsed(from, to)]);
        assert_eq!(heard(&mut conversations), [(0, Answer::Elapsed(ps))]);
    }
}

fn numbered(piece: LoweredWork, ids: &[(u64, u64)]) -> LoweredWork {
    let LoweredWork::Launch(launch) = piece else { panic!("{piece:?} is no launch") };
    let ids = ids.iter().map(|(launch, node)| LaunchId { launch: *launch, node: *node }).collect();
    LoweredWork::Launch(Launch { ids, ..launch })
}

/// Times of launches that the rank receives, in microseconds: number, node, launch, start and end.
fn times(told: &[(u32, Answer)]) -> Vec<(u64, u64, [f64; 3])> {
    let [(0, Answer::Times { launches, more: false })] = told else { panic!("{told:?}") };
    let us = |time: SimTime| time.as_ps() as f64 / 1e6;
    let each = launches.iter().map(|launch| (launch.id, [launch.launched, launch.began, launch.ended]));
    each.map(|(id, moments)| (id.launch, id.node, moments.map(us))).collect()
}

/// Launches at 1, 3 and 4: the first begins at once and has a duration of 10, and the second follows it. The third is
/// an operator of two kernels that overlaps both: the kernels share 8, from 4 on with half of the device, 16 in all. A
/// launch of zero duration ends as it begins, and launches without numbers are not reported.
#[test]
fn whoever_numbers_launches_is_told_when_they_were() {
    let slices = vec![vec![
        host(1),
        numbered(kernel(1, 10), &[(1, 0)]),
        kernel(3, 0),
        host(2),
        numbered(copy(1, 5, CopyEngine::ToDevice, false), &[(2, 0)]),
        host(1),
        numbered(kernel(2, 8), &[(7, 3), (7, 4)]),
        numbered(kernel(4, 0), &[(8, 0)]),
        host(0),
    ]];
    // At 4, the first launch has 3 of its 10 done; the other 7 and the 8 share the device until 4 + 14, and then 1 is
    // left.
    let (mut conversations, told) = after(slices, Op::Times);
    assert_eq!(times(&told), [(8, 0, [4.0, 4.0, 4.0])]);
    say(&mut conversations, 0, vec![synchronize(DeviceWork::Device)]);
    assert_eq!(heard(&mut conversations), [(0, Answer::Go)]);
    let mut ask = || {
        say(&mut conversations, 0, vec![Op::Times]);
        times(&heard(&mut conversations))
    };
    let expected =
        [(1, 0, [1.0, 1.0, 18.0]), (7, 3, [4.0, 4.0, 11.5]), (7, 4, [4.0, 11.5, 19.0]), (2, 0, [3.0, 18.0, 23.0])];
    assert_eq!(ask(), expected);
    assert_eq!(ask(), []);
}

/// Two processes of a rank each use stream 7, event 4 and launch 3. Both kernels begin at 1. When the second slice
/// starts at 1 + 1, the first kernel has 9 left: the other's 6 are done at 2 + 2 * 6, the first one's 9 at 2 + 15.
/// Neither process waits for the other's work.
#[test]
fn processes_of_a_rank_have_numbers_of_their_own() {
    let other = OfProcess::new(2).unwrap();
    let launch = |stream, us, id| numbered(kernel(stream, us), &[(id, 0)]);
    let (stream, event) = (other.short(7).unwrap(), other.short(4).unwrap());
    let slices = vec![
        vec![host(1), launch(7, 10, 3), record(4, 7), host(0)],
        vec![host(1), launch(stream, 6, other.long(3)), record(event, stream), host(0)],
    ];
    let mut conversations = ranks(1);
    conversations.cost_with(Box::new(Scripted(slices)));
    let mut ask = |ops: Vec<Op>| {
        say(&mut conversations, 0, ops);
        (heard(&mut conversations), now(&conversations))
    };
    let both = vec![slice(0, &[0]), Op::Process(2), slice(0, &[1]), synchronize(DeviceWork::Device)];
    assert_eq!(ask(both), (vec![(0, Answer::Go)], 14.0));
    for work in [DeviceWork::Stream(7), DeviceWork::Event { event: 4, records: 1 }] {
        assert_eq!(ask(vec![query(work)]), (vec![(0, Answer::Ended(true))], 14.0));
    }
    let (told, _) = ask(vec![Op::Times]);
    assert_eq!(times(&told), [(3, 0, [2.0, 2.0, 14.0])]);
    let (told, at) = ask(vec![Op::Process(0), synchronize(DeviceWork::Event { event: 4, records: 1 })]);
    assert_eq!((told, at), (vec![(0, Answer::Go)], 17.0));
    let (told, _) = ask(vec![Op::Times]);
    assert_eq!(times(&told), [(3, 0, [1.0, 1.0, 17.0])]);
}

/// Both ranks call at 0, and the second rank's stream reaches the call at 10: the first rank's operation begins at 0,
/// and both end together.
#[test]
fn an_operation_on_a_stream_has_times_too() {
    let mut conversations = ranks(2);
    conversations.cost_with(Box::new(Scripted(vec![vec![host(0), kernel(1, 10), host(0)]])));
    join(&mut conversations, 2);
    assert_eq!(heard(&mut conversations), []);
    let all_reduce = || {
        let stream = Some(OnStream { stream: 1, with_previous: false, number: Some(5) });
        let call = issue(0, collective(CollectiveKind::AllReduce, 384, None), None);
        let Op::Issue { handle, call, staged, filled, site, .. } = call else { panic!("it is one") };
        Op::Issue { handle, call, staged, filled, stream, site }
    };
    say(&mut conversations, 1, vec![slice(0, &[0]), all_reduce(), synchronize(DeviceWork::Device)]);
    say(&mut conversations, 0, vec![all_reduce(), synchronize(DeviceWork::Device)]);
    heard(&mut conversations);
    let mut ended = Vec::new();
    for rank in 0..2 {
        say(&mut conversations, rank, vec![Op::Times]);
    }
    let mut told = heard(&mut conversations);
    told.sort_by_key(|(rank, _)| *rank);
    for (began, (_, answer)) in [0.0, 10.0].into_iter().zip(told) {
        let [(5, 0, [launched, begins, ends])] = times(&[(0, answer)])[..] else { panic!("there is one") };
        assert_eq!((launched, begins), (0.0, began));
        ended.push(ends);
    }
    assert!(ended[0] == ended[1] && ended[0] >= 10.0, "{ended:?}");
}

/// A query of incomplete work costs 1, so a loop of queries ends: at 11.
#[test]
fn who_asks_whether_a_stream_is_empty_comes_to_its_end() {
    let slices = vec![vec![host(1), kernel(1, 10), host(0)]];
    let (mut conversations, mut told) = after(slices, query(DeviceWork::Stream(1)));
    let mut looks = 1;
    while told == [(0, Answer::Ended(false))] {
        say(&mut conversations, 0, vec![query(DeviceWork::Stream(1))]);
        told = heard(&mut conversations);
        looks += 1;
    }
    assert_eq!((told, looks, now(&conversations)), (vec![(0, Answer::Ended(true))], 10, 11.0));
    // An unused event has no work left.
    say(&mut conversations, 0, vec![query(DeviceWork::Event { event: 5, records: 1 })]);
    assert_eq!(heard(&mut conversations), [(0, Answer::Ended(true))]);
}

#[test]
fn a_program_ends_when_its_device_has_nothing_left_to_do() {
    let (conversations, _) = after(vec![vec![host(1), kernel(1, 10), host(0)]], Op::Exit(Outcome::Ok));
    assert_eq!(conversations.engine().now().as_ps(), 11_000_000);
}

/// A second thread launches on the same stream, after the first thread's work: 1 + 10 + 5. A replay uses the recorded
/// handles.
#[test]
fn threads_share_the_streams_of_their_rank() {
    let mut conversations = ranks(1);
    let slices = vec![
        vec![host(1), kernel(1, 10), record(3, 1), host(0)],
        vec![host(1), wait_event(2, 3), kernel(2, 5), host(0)],
    ];
    conversations.cost_with(Box::new(Scripted(slices)));
    let other = conversations.open_task(RankId(0));
    conversations.say(RankId(0), other, vec![slice(0, &[1]), synchronize(DeviceWork::Stream(2))], Some(OF_TWO));
    conversations.say(RankId(0), MAIN, vec![slice(0, &[0]), synchronize(DeviceWork::Stream(1))], Some(OF_TWO));
    let mut recorded = Recorded::default();
    conversations.advance(&mut (), &mut recorded);
    let tasks: Vec<TaskId> = std::iter::from_fn(|| conversations.take_ready()).map(|ready| ready.task).collect();
    assert_eq!((tasks, now(&conversations)), (vec![MAIN], 11.0));
}

/// Another thread has sent two slices, and has recorded an event, because it then waits inside the process: the wait
/// needs 1 + 10 and does not end at once.
#[test]
fn who_waits_for_an_event_waits_for_what_other_threads_have_said_before() {
    let slices = || vec![vec![host(1), kernel(1, 10), host(0)], vec![host(2), record(3, 1), host(0)]];
    for question in [synchronize(DeviceWork::Event { event: 3, records: 1 }), synchronize(DeviceWork::Device)] {
        let mut conversations = ranks(1);
        conversations.cost_with(Box::new(Scripted(slices())));
        let other = conversations.open_task(RankId(0));
        conversations.say(RankId(0), MAIN, vec![question], Some(OF_TWO));
        conversations.say(RankId(0), other, vec![slice(0, &[0]), slice(0, &[1])], Some(OF_TWO));
        assert_eq!(heard(&mut conversations), [(0, Answer::Go)]);
        assert_eq!(now(&conversations), 11.0);
    }
}

/// Another thread records an event after 1 + 10, works for 50 and records it again at 1 + 50 + 2: a thread that knows
/// of one record does not wait for the second.
#[test]
fn who_waits_for_an_event_waits_for_as_many_records_as_it_knows_of() {
    for (records, expected) in [(1, 11.0), (2, 53.0)] {
        let mut conversations = ranks(1);
        conversations.cost_with(Box::new(Scripted(vec![
            vec![host(1), kernel(1, 10), record(3, 1), host(0)],
            vec![host(50)],
            vec![host(2), record(3, 1), host(0)],
        ])));
        let other = conversations.open_task(RankId(0));
        let question = synchronize(DeviceWork::Event { event: 3, records });
        conversations.say(RankId(0), MAIN, vec![question], Some(OF_TWO));
        conversations.say(RankId(0), other, (0..3).map(|at| slice(0, &[at])).collect(), Some(OF_TWO));
        assert_eq!(heard(&mut conversations), [(0, Answer::Go)]);
        assert_eq!(now(&conversations), expected, "{records} records");
    }
}
