//! Tests of the link messages of streams, events and graphs.

use super::graphs::MakeCalls;
use super::*;
use crate::attach::tests::{attach, told};
use std::ptr::null_mut;

/// Serialises tests, which share the state of the process.
pub(crate) fn begin() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    attach();
    guard
}

fn stream() -> (Handle, u32) {
    let stream = create(NON_BLOCKING, 0).unwrap();
    (stream, describe(stream).unwrap().3)
}

fn event() -> (Handle, u32) {
    let event = create_event(0).unwrap();
    (event, Kind::Event.number(event).unwrap() as u32)
}

#[test]
fn an_event_joins_two_streams() {
    let _one = begin();
    let ((a, first), (b, second), (e, number)) = (stream(), stream(), event());
    told();
    assert_eq!(wait_event(b, e, 0), Ok(()), "an event that was never recorded has no effect");
    assert_eq!(launch(a, "add", 0), SUCCESS);
    record(e, a, 0).unwrap();
    wait_event(b, e, 0).unwrap();
    assert_eq!(launch(b, "mul", 0), SUCCESS);
    let expected = [
        "kernel add".to_owned(),
        format!("launch a on {first}"),
        format!("r {number} {first}"),
        format!("w {second} {number}"),
        "kernel mul".to_owned(),
        format!("launch m on {second}"),
    ];
    assert_eq!(told(), expected);
    assert_eq!((query_event(e), elapsed(e, e)), (Ok(true), Ok(1.5)));
    destroy(a).unwrap();
    assert_eq!(launch(a, "add", 0), INVALID_HANDLE);
}

/// The legacy default stream, 0, and blocking streams wait for each other; a `NON_BLOCKING` stream neither waits nor is
/// waited for.
#[test]
fn the_default_stream_and_blocking_streams_wait_for_each_other() {
    let _one = begin();
    let (blocking, _) = (create(0, 0).unwrap(), stream());
    let number = describe(blocking).unwrap().3;
    launch(null_mut(), "zero", 0);
    launch(blocking, "block", 0);
    told();
    launch(null_mut(), "zero", 0);
    launch(null_mut(), "zero", 0);
    launch(blocking, "block", 0);
    launch(blocking, "block", 0);
    let all = told();
    let shown: Vec<&str> = all.iter().map(|text| text.split(' ').next().unwrap()).collect();
    assert_eq!(shown, ["r", "w", "launch", "launch", "r", "w", "launch", "launch"], "{all:?}");
    assert!(all[0].ends_with(&format!(" {number}")) && all[1].starts_with("w 0 "), "{all:?}");
    assert!(all[4].ends_with(" 0") && all[5].starts_with(&format!("w {number} ")), "{all:?}");
}

/// A graph of two branches: the second stream joins the capture by an event of the first, and must be joined again.
#[test]
fn streams_join_a_capture_and_must_come_back() {
    let _one = begin();
    let ((a, first), (b, second), (fork, _), (join, _)) = (stream(), stream(), event(), event());
    begin_capture(a, None, Mode::Relaxed).unwrap();
    launch(a, "one", 0);
    record(fork, a, 0).unwrap();
    wait_event(b, fork, 0).unwrap();
    launch(b, "two", 0);
    record(join, b, 0).unwrap();
    assert_eq!((query_event(fork), synchronize(b)), (Err(CAPTURED_EVENT), Err(CAPTURE_UNSUPPORTED)));
    assert_eq!(end_capture(b), Err(CAPTURE_UNMATCHED));
    assert_eq!(end_capture(a), Err(CAPTURE_INVALIDATED), "the synchronisation above ended it");

    begin_capture(a, None, Mode::Relaxed).unwrap();
    launch(a, "one", 0);
    record(fork, a, 0).unwrap();
    wait_event(b, fork, 0).unwrap();
    launch(b, "two", 0);
    assert_eq!(end_capture(a), Err(CAPTURE_UNJOINED));

    told();
    begin_capture(a, None, Mode::Relaxed).unwrap();
    launch(a, "one", 0);
    record(fork, a, 0).unwrap();
    wait_event(b, fork, 0).unwrap();
    launch(b, "two", 0);
    record(join, b, 0).unwrap();
    wait_event(a, join, 0).unwrap();
    launch(a, "three", 0);
    let graph = end_capture(a).unwrap();
    let number = Kind::Graph.number(graph).unwrap();
    let captures: Vec<String> = told().into_iter().filter(|text| text.starts_with('c')).collect();
    let expected = [(first, number), (second, number), (first, 0), (second, 0)].map(|(s, g)| format!("c {s} {g}"));
    assert_eq!(captures, expected);
    let all = nodes(graph).unwrap();
    assert_eq!(all.len(), 3);
    assert_eq!(dependencies(all[2]), Ok(vec![all[0], all[1]]));
    let exec = instantiate(graph).unwrap();
    destroy_graph(graph).unwrap();
    launch_graph(exec, b).unwrap();
    assert_eq!(told(), [format!("g {number} {second}")]);
}

/// An event outside of a graph is recorded at each launch of the graph, and only then. Another stream can wait for it
/// afterwards, and the graph can wait for an event that was recorded before.
#[test]
fn a_graph_records_events_outside_of_it() {
    let _one = begin();
    let ((a, first), (b, second), (marker, number), (before, other)) = (stream(), stream(), event(), event());
    begin_capture(a, None, Mode::Relaxed).unwrap();
    wait_event(a, before, EXTERNAL).unwrap();
    launch(a, "one", 0);
    record(marker, a, EXTERNAL).unwrap();
    launch(a, "two", 0);
    assert_eq!(query_event(marker), Ok(true), "it was never recorded");
    let graph = end_capture(a).unwrap();
    let all = told();
    assert!(all.contains(&format!("W {first} {other}")) && all.contains(&format!("R {number} {first}")), "{all:?}");
    let kinds: Vec<_> = nodes(graph).unwrap().into_iter().map(|node| node_kind(node).unwrap()).collect();
    assert_eq!(kinds, [6, 0, 7, 0]);
    wait_event(b, marker, 0).unwrap();
    assert_eq!(told(), Vec::<String>::new(), "there is nothing to wait for yet");
    let exec = instantiate(graph).unwrap();
    launch_graph(exec, a).unwrap();
    wait_event(b, marker, 0).unwrap();
    record(marker, b, EXTERNAL).unwrap();
    let graph = Kind::Graph.number(graph).unwrap();
    assert_eq!(told(), [format!("g {graph} {first}"), format!("w {second} {number}"), format!("r {number} {second}")]);
}

/// Calls that were captured on the graph's origin stream are made on the launch stream, calls of another branch on the
/// stream that captured them. The graph resumes behind each call. Copies before a call have moved their bytes when it
/// is made.
#[test]
fn a_graph_makes_its_calls_whenever_it_is_launched() {
    let _one = begin();
    let ((a, first), (b, second), (c, third)) = (stream(), stream(), stream());
    let ((fork, fork_number), (join, join_number)) = (event(), event());
    let made = |name: char| -> MakeCalls {
        Box::new(move |streams| {
            crate::attach::tests::tell(format!("{name} on {streams:?}"));
            Ok(())
        })
    };
    assert_eq!(capture_calls(&[a], || made('x')), Ok(None), "nothing is captured");
    begin_capture(a, None, Mode::Relaxed).unwrap();
    assert_eq!(capture_calls(&[a, c], || made('x')), Err(CAPTURE_ISOLATION), "one of them would start now");
    launch(a, "one", 0);
    capture_calls(&[a], || made('x')).unwrap();
    record(fork, a, 0).unwrap();
    wait_event(b, fork, 0).unwrap();
    capture_calls(&[b], || made('y')).unwrap();
    record(join, b, 0).unwrap();
    wait_event(a, join, 0).unwrap();
    let graph = end_capture(a).unwrap();
    let number = Kind::Graph.number(graph).unwrap();
    let all = told();
    let expected = [format!("n {first} 0"), format!("r {fork_number} {first}")];
    assert!(all.windows(2).any(|pair| pair == expected), "{all:?}");
    let expected = [format!("n {second} 0"), format!("r {join_number} {second}")];
    assert!(all.windows(2).any(|pair| pair == expected), "{all:?}");
    let nodes = nodes(graph).unwrap();
    assert_eq!(dependencies(nodes[2]), Ok(vec![nodes[1]]));

    let launched = |on: u32| {
        [
            format!("g {number} {on}"),
            format!("x on [{on}]"),
            format!("m {number} {on}"),
            format!("y on [{second}]"),
            format!("m {number} {on}"),
        ]
    };
    let exec = instantiate(graph).unwrap();
    launch_graph(exec, c).unwrap();
    assert_eq!(told(), launched(third));

    // As a child of another graph captured on `c`, the graph makes its calls on the stream where that graph is
    // launched.
    begin_capture(c, None, Mode::Relaxed).unwrap();
    launch_graph(exec, c).unwrap();
    let outer = end_capture(c).unwrap();
    let number = Kind::Graph.number(outer).unwrap();
    let exec = instantiate(outer).unwrap();
    told();
    launch_graph(exec, a).unwrap();
    let expected = [
        format!("g {number} {first}"),
        format!("x on [{first}]"),
        format!("m {number} {first}"),
        format!("y on [{second}]"),
        format!("m {number} {first}"),
    ];
    assert_eq!(told(), expected);
}

/// A captured copy moves bytes at each launch of the graph, not at capture.
#[test]
fn a_graph_moves_bytes_when_it_is_launched() {
    let _one = begin();
    let (a, _) = stream();
    let at = memory::allocate(0, 4096).unwrap();
    let (from, mut to) = ([3u8; 8], [0u8; 8]);
    begin_capture(a, None, Mode::Relaxed).unwrap();
    copy(a, Moved::line(at, from.as_ptr() as usize, 8)).unwrap();
    let exec = instantiate(end_capture(a).unwrap()).unwrap();
    copy(a, Moved::line(to.as_mut_ptr() as usize, at, 8)).unwrap();
    assert_eq!(to, [0; 8]);
    launch_graph(exec, a).unwrap();
    told();
    copy(a, Moved::line(to.as_mut_ptr() as usize, at, 8)).unwrap();
    assert_eq!(to, [3; 8]);
    assert_eq!(told().len(), 1);
    memory::free(at).unwrap();
}
