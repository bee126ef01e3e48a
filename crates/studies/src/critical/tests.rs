//! Closed forms: on these clusters the critical path is known by hand.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use uniference_formats::cluster::{Choices, ClusterFile};
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{Engine, RunEnd};
use uniference_sim::ids::{GroupId, GroupRank, Handle, QueueId, TaskId};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, DType, Mark, Origin, Outcome, ReduceOp, Request, Shape, Work,
};
use uniference_sim::replay::{RecordedStep, replay};
use uniference_sim::time::Bytes;

/// Hosts on a switch: a byte needs 1 ns, and every message 10 us more. Libraries need no time.
fn cluster(ranks: usize, more: &str) -> Cluster {
    let toml = format!(
        "backend = \"ideal\"\n[[device]]\nname = \"a\"\ncount = {ranks}\n[network]\nbandwidth = \"1 GB/s\"\nlatency = \"10 us\"\n{more}"
    );
    ClusterFile::parse("test", &toml, &[]).unwrap().resolve(&Choices::default()).unwrap().cluster
}

fn on_queue(queue: u32, activity: Activity, line: u32) -> Request {
    Request::Issue { activity, queue: QueueId(queue), after: Vec::new(), site: Site(line) }
}

fn compute(us: u64, line: u32) -> Request {
    on_queue(0, Activity::Compute(Work::new(SimDuration::from_us(us), Origin::Recorded)), line)
}

fn call(op: CallOp, line: u32) -> Request {
    on_queue(0, Activity::Call(Call { group: GroupId(0), op }), line)
}

fn send(to: u32, bytes: u64, line: u32) -> Request {
    call(CallOp::Send { to: GroupRank(to), tag: 0, bytes: Bytes(bytes) }, line)
}

fn receive(from: u32, bytes: u64, line: u32) -> Request {
    call(CallOp::Recv { from: Some(GroupRank(from)), tag: 0, bytes: Bytes(bytes) }, line)
}

fn wait(handles: &[u32], line: u32) -> Request {
    let handles = handles.iter().copied().map(Handle).collect();
    Request::Wait { handles, any: false, timeout: None, site: Site(line) }
}

/// The explanation of a run of these requests; line `n` of the program is `a.py:n`.
fn explain(cluster: &Cluster, requests: impl Fn(u32) -> Vec<Request>) -> Explanation {
    explain_steps(cluster, steps(cluster, requests))
}

fn steps(cluster: &Cluster, requests: impl Fn(u32) -> Vec<Request>) -> Vec<Vec<(TaskId, RecordedStep)>> {
    let ranks = cluster.devices.len() as u32;
    let world: Arc<[RankId]> = (0..ranks).map(RankId).collect();
    let script = |rank| {
        let join = Request::JoinGroup { ranks: Arc::clone(&world), sequence: 0, settings: None, rendezvous: false };
        let whole = [vec![join], requests(rank), vec![Request::Exit(Outcome::Ok)]].concat();
        whole.into_iter().map(|request| (TaskId(0), request.into())).collect()
    };
    (0..ranks).map(script).collect()
}

/// The explanation of a run of these steps. The path has no gap, and adds up to the makespan.
fn explain_steps(cluster: &Cluster, ranks: Vec<Vec<(TaskId, RecordedStep)>>) -> Explanation {
    let explanation = causes_of(cluster, ranks).explain(&lines(), Listed::All).unwrap();
    let spans = explanation.path.iter();
    assert!(spans.clone().zip(spans.clone().skip(1)).all(|(span, next)| span.end_ps == next.start_ps), "a gap");
    let sum: u64 = spans.map(|span| span.end_ps - span.start_ps).sum();
    assert_eq!(SimDuration::from_ps(sum).as_secs_f64(), explanation.makespan_s);
    assert!(explanation.path.first().is_none_or(|span| span.start_ps == 0));
    explanation
}

fn causes_of(cluster: &Cluster, ranks: Vec<Vec<(TaskId, RecordedStep)>>) -> Causes {
    let mut causes = Causes::new(cluster);
    let ranks = ranks.into_iter().map(Vec::into_iter).collect();
    let replayed = replay(&mut Engine::new(cluster), ranks, &mut causes);
    assert!(matches!(replayed, RunEnd::Finished), "{replayed:?}");
    causes
}

fn lines() -> Vec<String> {
    (0..20).map(|line| format!("a.py:{line}")).collect()
}

/// Microseconds by name.
fn us<K: Clone>(parts: &[Part<K>]) -> Vec<(K, u64)> {
    parts.iter().map(|part| (part.name.clone(), (part.seconds * 1e6).round() as u64)).collect()
}

#[test]
fn a_picture_of_a_long_path_has_few_spans_and_no_gap() {
    // 100 times 3 us, of which 1 us computes and 2 us are a message's bytes and latency.
    let cluster = cluster(2, "");
    let requests = |rank| {
        (0..100).flat_map(move |round| match rank {
            0 => [compute(1, 1), wait(&[2 * round], 1), send(1, 1_000, 2), wait(&[2 * round + 1], 2)].to_vec(),
            _ => [receive(0, 1_000, 4), wait(&[round], 4)].to_vec(),
        })
    };
    let causes = causes_of(&cluster, steps(&cluster, |rank| requests(rank).collect()));
    let [all, few] = [Listed::All, Listed::AtMost(10)].map(|listed| causes.explain(&lines(), listed).unwrap());
    assert!(all.path.len() > 100 && few.path.len() <= 10, "{} and {}", all.path.len(), few.path.len());
    assert!(few.path.windows(2).all(|pair| pair[0].end_ps == pair[1].start_ps));
    let ends = |explanation: &Explanation| {
        (explanation.path[0].start_ps, explanation.path.last().map(|span| span.end_ps), explanation.kinds.clone())
    };
    assert_eq!(ends(&few), ends(&all));
}

#[test]
fn a_chain_is_compute_bandwidth_and_latency_one_after_the_other() {
    // 100 us, then 50,000 bytes, then 30 us. Rank 1's compute before it receives is hidden.
    let explanation = explain(&cluster(2, ""), |rank| match rank {
        0 => vec![compute(100, 1), wait(&[0], 1), send(1, 50_000, 2), wait(&[1], 2)],
        _ => vec![compute(20, 3), wait(&[0], 3), receive(0, 50_000, 4), wait(&[1], 4), compute(30, 5), wait(&[2], 5)],
    });
    assert_eq!((explanation.makespan_s, explanation.rank), (190e-6, 1));
    assert_eq!(us(&explanation.kinds), [("compute", 130), ("bandwidth", 50), ("latency", 10)]);
    assert_eq!(us(&explanation.ranks), [(0, 160), (1, 30)]);
    assert_eq!(us(&explanation.links), [("a.0 -> switch".to_owned(), 60)]);
    assert_eq!(us(&explanation.operations), [("send".to_owned(), 60)]);
    let line = |number: u32| Some(format!("a.py:{number}"));
    assert_eq!(us(&explanation.lines), [(line(1), 100), (line(2), 60), (line(5), 30)]);
    insta::assert_snapshot!(render(&explanation));
}

#[test]
fn a_write_is_its_bytes_and_the_way_there_and_back() {
    let write = call(CallOp::Write { to: GroupRank(1), bytes: Bytes(50_000) }, 2);
    let explanation = explain(&cluster(2, ""), |rank| match rank {
        0 => vec![compute(100, 1), wait(&[0], 1), write.clone(), wait(&[1], 2)],
        _ => vec![],
    });
    assert_eq!((explanation.makespan_s, explanation.rank), (170e-6, 0));
    assert_eq!(us(&explanation.kinds), [("compute", 100), ("bandwidth", 50), ("latency", 20)]);
    assert_eq!(us(&explanation.operations), [("write".to_owned(), 70)]);
}

#[test]
fn a_ring_is_its_steps() {
    // 2 (n - 1) steps of a quarter each: 25,000 bytes and 10 us.
    let reduce = Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::UInt8,
        reduce: Some(ReduceOp::Sum),
        root: None,
        shape: Shape::Even(100_000),
        kernel: None,
    };
    let ring = cluster(4, "[collective]\nall_reduce = \"ring\"\n");
    let explanation = explain(&ring, |_| vec![call(CallOp::Collective(reduce.clone()), 1), wait(&[0], 2)]);
    assert_eq!(us(&explanation.kinds), [("bandwidth", 150), ("latency", 60)]);
    assert_eq!(us(&explanation.operations), [("all_reduce".to_owned(), 210)]);
    assert_eq!(us(&explanation.lines), [(Some("a.py:1".to_owned()), 210)]);
}

#[test]
fn a_message_behind_another_one_waits_for_that() {
    // 20,000 and 30,000 bytes at once on one connection, after 10 us; the sender waits for the second message.
    let explanation = explain(&cluster(2, ""), |rank| match rank {
        0 => vec![compute(10, 1), wait(&[0], 1), send(1, 20_000, 2), send(1, 30_000, 3), wait(&[1, 2], 4)],
        _ => vec![receive(0, 20_000, 5), receive(0, 30_000, 6), wait(&[0, 1], 6)],
    });
    assert_eq!(us(&explanation.kinds), [("bandwidth", 50), ("compute", 10), ("latency", 10)]);
    let line = |number: u32| Some(format!("a.py:{number}"));
    assert_eq!(us(&explanation.lines), [(line(3), 40), (line(2), 20), (line(1), 10)]);
}

#[test]
fn an_incast_is_contention_for_what_its_messages_share() {
    // Three senders share the receiver's link: each message needs three times as long as alone.
    let explanation = explain(&cluster(4, ""), |rank| match rank {
        0 => (1..4).map(|from| receive(from, 100_000, 1)).chain([wait(&[0, 1, 2], 2)]).collect(),
        _ => vec![send(0, 100_000, 3), wait(&[0], 3)],
    });
    assert_eq!(us(&explanation.kinds), [("contention", 200), ("bandwidth", 100), ("latency", 10)]);
}

#[test]
fn a_pipeline_is_its_slowest_stage_and_the_ends_of_the_others() {
    // Stages of 10, 40 and 20 us, 5 microbatches of 1,000 bytes: the first, 10 + 11 us; then the second stage's, 5 x
    // 40; then 11 + 20 us.
    let stages = [10, 40, 20];
    let explanation = explain(&cluster(3, ""), |rank| {
        let mut requests = Vec::new();
        let mut issued = 0;
        let mut then = |request| {
            requests.extend([request, wait(&[issued], rank)]);
            issued += 1;
        };
        for _ in 0..5 {
            if rank > 0 {
                then(receive(rank - 1, 1_000, 10 + rank));
            }
            then(compute(stages[rank as usize], rank));
            if rank < 2 {
                then(send(rank + 1, 1_000, 10 + rank));
            }
        }
        requests
    });
    // Each rank waits for 1 us until its message has left, before it continues.
    let bubbles = [("compute", 10 + 5 * 40 + 20), ("latency", 2 * 10), ("bandwidth", 2 + 4)];
    assert_eq!(us(&explanation.kinds), bubbles);
    assert_eq!(us(&explanation.ranks), [(1, 5 * 40 + 4 + 11), (0, 10 + 11), (2, 20)]);
}

/// The root of a broadcast of 50,000 bytes sends the 1,000 bytes for which the other rank has room, and the rest once
/// that rank has computed for 100 us.
#[test]
fn the_path_of_a_held_message_goes_through_the_late_receiver() {
    let mut cluster = cluster(2, "");
    cluster.backend.protocol.buffer = Some(Bytes(1_000));
    let broadcast = |line| {
        let (kind, dtype, root) = (CollectiveKind::Broadcast, DType::UInt8, Some(GroupRank(0)));
        let shape = Shape::Even(50_000);
        call(CallOp::Collective(Collective { kind, dtype, reduce: None, root, shape, kernel: None }), line)
    };
    let explanation = explain(&cluster, |rank| match rank {
        0 => vec![broadcast(1), wait(&[0], 1)],
        _ => vec![compute(100, 2), wait(&[0], 2), broadcast(3), wait(&[1], 3)],
    });
    assert_eq!(us(&explanation.kinds), [("compute", 100), ("bandwidth", 49), ("latency", 10)]);
    let line = |number: u32| Some(format!("a.py:{number}"));
    assert_eq!(us(&explanation.lines), [(line(2), 100), (line(1), 59)]);
}

#[test]
fn of_two_streams_the_longer_one_is_the_path() {
    let stream = |queue, us, line| {
        on_queue(queue, Activity::Compute(Work::new(SimDuration::from_us(us), Origin::Recorded)), line)
    };
    let explanation = explain(&cluster(1, ""), |_| {
        vec![
            stream(1, 30, 1),
            stream(2, 20, 2),
            stream(1, 40, 3),
            stream(2, 15, 4),
            wait(&[0, 1, 2, 3], 5),
            compute(5, 6),
            wait(&[4], 6),
        ]
    });
    let line = |number: u32| Some(format!("a.py:{number}"));
    assert_eq!(us(&explanation.lines), [(line(3), 40), (line(1), 30), (line(6), 5)]);
    assert_eq!(explanation.makespan_s, 75e-6);
}

#[test]
fn the_path_goes_from_thread_to_thread() {
    // The first thread computes for 10 us and starts a second one, which computes for 20 us; then the first one goes
    // on, and computes for 5 us.
    let on = |queue: u32, us, line| {
        on_queue(queue, Activity::Compute(Work::new(SimDuration::from_us(us), Origin::Recorded)), line).into()
    };
    let after = |task, resumption| RecordedStep::After { task: TaskId(task), resumption };
    let exit = || Request::Exit(Outcome::Ok).into();
    let steps = vec![
        (0, on(0, 10, 1)),
        (0, wait(&[0], 1).into()),
        (1, after(0, 3)),
        (1, on(1, 20, 2)),
        (1, wait(&[1], 2).into()),
        (0, after(1, 2)),
        (0, on(0, 5, 3)),
        (0, wait(&[2], 3).into()),
        (1, exit()),
        (0, exit()),
    ];
    let steps = steps.into_iter().map(|(task, step): (u32, RecordedStep)| (TaskId(task), step)).collect();
    let explanation = explain_steps(&cluster(1, ""), vec![steps]);
    let line = |number: u32| Some(format!("a.py:{number}"));
    assert_eq!(us(&explanation.lines), [(line(2), 20), (line(1), 10), (line(3), 5)]);
}

#[test]
fn ranges_have_the_time_of_the_innermost() {
    let mark = |mark| on_queue(0, Activity::Mark(mark), 0);
    let explanation = explain(&cluster(1, ""), |_| {
        vec![
            mark(Mark::Begin("step".into())),
            compute(10, 1),
            mark(Mark::Begin("layer".into())),
            compute(20, 2),
            mark(Mark::End),
            compute(5, 3),
            mark(Mark::End),
            compute(3, 4),
            wait(&[7], 5),
        ]
    });
    let range = |name: &str| Some(name.to_owned());
    assert_eq!(us(&explanation.ranges), [(range("layer"), 20), (range("step"), 15), (None, 3)]);
}

/// A kernel of 30 us is launched in `forward`, a kernel of 20 us by another thread that has no range, while `forward`
/// of the first thread is open, and a kernel of 10 us in `step`; then the host waits in `wait`. Nothing else has a
/// duration: starts and ends are at one instant.
#[test]
fn what_is_launched_on_a_stream_is_in_the_range_of_its_launch() {
    let mark = |mark| on_queue(0, Activity::Mark(mark), 0).into();
    let launch = |us, line| {
        let activity = Activity::Compute(Work::new(SimDuration::from_us(us), Origin::Recorded));
        on_queue(QueueId::of_stream(7).0, activity, line).into()
    };
    let begin = |name: &str| mark(Mark::Begin(name.into()));
    let exit = || Request::Exit(Outcome::Ok).into();
    let steps = vec![
        (0, begin("step")),
        (0, begin("forward")),
        (0, launch(30, 1)),
        (1, RecordedStep::Follows { rank: RankId(0), task: TaskId(0), resumption: 4 }),
        (1, launch(20, 2)),
        (1, exit()),
        (0, RecordedStep::Follows { rank: RankId(0), task: TaskId(1), resumption: 1 }),
        (0, mark(Mark::End)),
        (0, launch(10, 3)),
        (0, begin("wait")),
        (0, wait(&[2, 3, 5], 4).into()),
        (0, mark(Mark::End)),
        (0, mark(Mark::End)),
        (0, exit()),
    ];
    let steps = steps.into_iter().map(|(task, step): (u32, RecordedStep)| (TaskId(task), step)).collect();
    let explanation = explain_steps(&cluster(1, ""), vec![steps]);
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(us(&explanation.ranges), [(name("forward"), 50), (name("step"), 10)]);
    assert_eq!(us(&explanation.lines), [(name("a.py:1"), 30), (name("a.py:2"), 20), (name("a.py:3"), 10)]);
}

#[test]
fn two_runs_differ_by_what_their_paths_are_made_of() {
    let run = |bytes, us| {
        explain(&cluster(2, ""), |rank| match rank {
            0 => vec![compute(us, 1), wait(&[0], 1), send(1, bytes, 2), send(1, bytes, 3), wait(&[1, 2], 4)],
            _ => vec![receive(0, bytes, 5), receive(0, bytes, 6), wait(&[0, 1], 6)],
        })
    };
    let difference = Difference::of(&run(20_000, 100), &run(50_000, 70));
    let sums = difference.kinds.iter().map(|kind| (kind.name, (kind.difference_s * 1e6).round() as i64));
    assert_eq!(sums.collect::<Vec<_>>(), [("bandwidth", 60), ("compute", -30), ("latency", 0)]);
    for list in [
        difference.ranks.iter().map(|change| change.difference_s).sum::<f64>(),
        difference.lines.iter().map(|change| change.difference_s).sum(),
        difference.parts.iter().map(|change| change.difference_s).sum(),
    ] {
        assert!((list - difference.difference_s).abs() < 1e-12);
    }
    insta::assert_snapshot!(difference.render());
    assert_eq!(Difference::of(&run(1, 1), &run(1, 1)).summary, "both runs take 11.002 us");
}

#[test]
fn of_a_run_that_is_too_long_nothing_is_kept() {
    let cluster = cluster(1, "");
    let explained = |most| {
        let steps = [compute(10, 1), wait(&[0], 1), Request::Exit(Outcome::Ok)];
        let steps: Vec<(TaskId, RecordedStep)> = steps.map(|request| (TaskId(0), request.into())).into();
        let mut causes = Causes::new(&cluster).of_at_most(most);
        let replayed = replay(&mut Engine::new(&cluster), vec![steps.into_iter()], &mut causes);
        assert!(matches!(replayed, RunEnd::Finished), "{replayed:?}");
        causes.explain(&[], Listed::Nothing).is_some()
    };
    let least = (0..10).find(|most| explained(*most)).expect("it has few events");
    assert!(least > 1 && explained(least + 1) && !explained(least - 1));
}

#[test]
fn what_takes_no_time_says_so() {
    let explanation = explain(&cluster(2, ""), |_| Vec::new());
    assert_eq!((explanation.makespan_s, explanation.kinds.len()), (0.0, 0));
    assert_eq!(explanation.summary, "the run takes no time");
}

/// Rank, microseconds of the wait, words, and the rank that was waited for with the end of its work.
type Waited = (u32, [u64; 2], String, (u32, u64));

fn releases(cluster: &Cluster, requests: impl Fn(u32) -> Vec<Request>) -> Vec<Waited> {
    let us = |at: SimTime| at.as_ps() / 1_000_000;
    let (causes, lines) = (causes_of(cluster, steps(cluster, requests)), lines());
    let releases = causes.releases(&lines).map(|release| {
        let waited = [us(release.waited.start), us(release.waited.end)];
        (release.rank.0, waited, release.words, (release.from.rank.0, us(release.from.span.end)))
    });
    releases.collect()
}

fn all_reduce(bytes: u64, line: u32) -> Request {
    let (kind, reduce) = (CollectiveKind::AllReduce, Some(ReduceOp::Sum));
    call(
        CallOp::Collective(Collective {
            kind,
            dtype: DType::UInt8,
            reduce,
            root: None,
            shape: Shape::Even(bytes),
            kernel: None,
        }),
        line,
    )
}

#[test]
fn a_wait_is_for_the_last_rank_that_enters_a_collective_and_says_what_that_one_does() {
    let mark = |name: &str| on_queue(0, Activity::Mark(Mark::Begin(name.into())), 1);
    let found = releases(&cluster(3, "[collective]\nall_reduce = \"ring\"\n"), |rank| match rank {
        2 => vec![mark("layers.7"), compute(400, 3), wait(&[1], 3), all_reduce(3, 4), wait(&[2], 4)],
        1 => vec![compute(300, 5), wait(&[0], 5), all_reduce(3, 4), wait(&[1], 4)],
        _ => vec![all_reduce(3, 4), wait(&[0], 4)],
    });
    let of_rank = |rank: u32| {
        let of_rank: Vec<_> = found.iter().filter(|release| release.0 == rank).collect();
        let [(_, [start, _], words, from)] = of_rank[..] else { panic!("one wait: {found:?}") };
        (*start, &**words, *from)
    };
    assert_eq!(of_rank(0), (0, "waits for rank 2, which computes in layers.7", (2, 400)));
    assert_eq!(of_rank(1), (300, "waits for rank 2, which computes in layers.7", (2, 400)));
    // Rank 2 itself is the last: the rest is the network.
    let (start, words, _) = of_rank(2);
    assert!(
        start == 400 && words.starts_with("waits for data of rank ") && words.contains(": latency of a."),
        "{words}"
    );
}

#[test]
fn a_wait_may_be_for_a_sleep_a_line_or_a_link() {
    let found = releases(&cluster(2, ""), |rank| match rank {
        0 => vec![
            on_queue(0, Activity::Sleep(SimDuration::from_us(50)), 1),
            wait(&[0], 1),
            send(1, 1_000, 2),
            compute(70, 3),
            wait(&[2], 3),
            send(1, 90_000, 4),
            wait(&[1, 3], 5),
        ],
        _ => vec![receive(0, 1_000, 6), wait(&[0], 6), receive(0, 90_000, 7), wait(&[1], 7)],
    });
    let of_receiver: Vec<_> = found.into_iter().filter(|release| release.0 == 1).collect();
    // 50 us of sleep, then 70 us of compute that overlaps the first message's 1 us; then 90 us. A message needs 10 us
    // more to arrive.
    let expected = [
        (1, [0, 61], "waits for rank 0, which sleeps at a.py:1".to_owned(), (0, 50)),
        (1, [61, 220], "waits for data of rank 0: bandwidth of a.0 -> switch".to_owned(), (0, 120)),
    ];
    assert_eq!(of_receiver, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any actions of ranks, `explain` finds a path without a gap that adds up to the makespan (`explain_steps`
    /// asserts it), and each wait is for an event before the wait's end.
    #[test]
    fn the_path_adds_up_to_the_makespan(
        rounds in prop::collection::vec((prop::collection::vec(0u64..200, 3), 0u64..100_000, any::<bool>()), 1..8),
    ) {
        let cluster = cluster(3, "[collective]\nall_reduce = \"ring\"\n");
        let requests = |rank: u32| {
            let (mut requests, mut handles) = (Vec::new(), 0..);
            let mut next = |requests: &mut Vec<Request>, request: Request| {
                requests.push(request);
                handles.next().expect("there are many numbers")
            };
            for (line, (us, bytes, reduces)) in (1..).zip(&rounds) {
                next(&mut requests, compute(us[rank as usize], line));
                let waited = match reduces {
                    true => vec![next(&mut requests, all_reduce(*bytes, line))],
                    false => {
                        let sent = next(&mut requests, send((rank + 1) % 3, *bytes, line));
                        vec![sent, next(&mut requests, on_queue(1, Activity::Call(Call {
                            group: GroupId(0),
                            op: CallOp::Recv { from: Some(GroupRank((rank + 2) % 3)), tag: 0, bytes: Bytes(*bytes) },
                        }), line))]
                    }
                };
                requests.push(wait(&waited, line));
            }
            requests
        };
        explain(&cluster, requests);
        for (_, [start, end], words, (_, until)) in releases(&cluster, requests) {
            prop_assert!(start <= end && until <= end && words.starts_with("waits for "), "{words}");
        }
    }
}

/// Four hosts of a leaf send at once: the leaf's uplink, as fast as each host's link, gives each message a fourth of
/// its rate.
#[test]
fn the_link_that_is_full_is_named_and_not_the_first_of_those_that_are_as_fast() {
    let tree = cluster(8, "preset = \"fat_tree\"\nhosts_per_leaf = 4\nspines = 1\noversubscription = 4.0\n");
    let explanation = explain(&tree, |rank| match rank {
        0..4 => vec![send(rank + 4, 100_000, 1), wait(&[0], 1)],
        _ => vec![receive(rank - 4, 100_000, 2), wait(&[0], 2)],
    });
    // Each message takes 100 us alone and 400 us when four share the uplink, plus two latencies.
    assert_eq!(us(&explanation.kinds), [("contention", 300), ("bandwidth", 100), ("latency", 20)]);
    assert_eq!(us(&explanation.links), [("leaf.0 -> spine.0".to_owned(), 420)]);
    assert!(explanation.summary.contains("contention of leaf.0 -> spine.0"), "{}", explanation.summary);
    assert_eq!(explanation.parts[0].what.link.as_deref(), Some("leaf.0 -> spine.0"));
}

/// A window of 10,000 bytes per round trip of 20 us limits a connection to 0.5 GB/s on links of 1 GB/s.
#[test]
fn what_a_window_holds_back_is_no_contention_of_a_link() {
    let file = "backend = { name = \"ideal\", window = { first = \"10 kB\", cap = \"10 kB\" } }\n[[device]]\nname = \"a\"\ncount = 2\n[network]\nbandwidth = \"1 GB/s\"\nlatency = \"10 us\"\n";
    let cluster = ClusterFile::parse("test", file, &[]).unwrap().resolve(&Choices::default()).unwrap().cluster;
    let explanation = explain(&cluster, |rank| match rank {
        0 => vec![send(1, 100_000, 1), wait(&[0], 1)],
        _ => vec![receive(0, 100_000, 2), wait(&[0], 2)],
    });
    let kinds = us(&explanation.kinds);
    assert!(kinds.iter().all(|(kind, _)| *kind != "contention"), "{kinds:?}");
    assert_eq!(kinds.iter().find(|(kind, _)| *kind == "bandwidth"), Some(&("bandwidth", 100)), "{kinds:?}");
    assert_eq!(kinds.iter().find(|(kind, _)| *kind == "queueing"), Some(&("queueing", 100)), "{kinds:?}");
}
