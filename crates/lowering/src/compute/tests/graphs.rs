//! Graphs: launched as a whole, with events outside of them, and with calls in them.

use super::*;

/// In the graph, A (10) is followed by B and C, which overlap (10 each, sharing the device: 20), and both by D (10):
/// 40. The capture costs the host 1 for its begin and end each, 4 for each of four launches and 1 for each of two
/// records and waits: 22. Each graph launch costs 4 and nothing more; the second one is launched while the first one
/// runs: 22 + 4 + 40 + 40.
#[test]
fn a_graph_is_launched_as_a_whole() {
    let mut program = Program::default();
    let captured = program.slice(|encoder| {
        encoder.stream(StreamEntry::Capture { stream: 1, graph: Some(1) });
        kernel(encoder, 1, 10);
        encoder.stream(StreamEntry::Record { event: 1, stream: 1 });
        encoder.stream(StreamEntry::Wait { stream: 2, event: 1 });
        kernel(encoder, 2, 10);
        kernel(encoder, 1, 10);
        encoder.stream(StreamEntry::Record { event: 2, stream: 2 });
        encoder.stream(StreamEntry::Wait { stream: 1, event: 2 });
        kernel(encoder, 1, 10);
        encoder.stream(StreamEntry::Capture { stream: 1, graph: None });
    });
    let launched = program.slice(|encoder| {
        (0..2).for_each(|_| encoder.stream(StreamEntry::GraphLaunch { graph: 1, stream: 5 }));
    });
    let done = run(model(Way::Modelled), vec![vec![captured, synchronizes(), launched, synchronizes()]], &[0]);
    assert_eq!(done.end, 106.0);
    // Captured work has not run; launched work has run twice.
    let seconds: f64 =
        done.costed.rows.iter().filter(|row| row.kind.as_deref() == Some("kernel")).map(|row| row.seconds).sum();
    assert!((seconds - 80e-6).abs() < 1e-12, "{seconds}");
    assert_eq!(again(&done.record, model(Way::Modelled)).0, done.digest);
}

/// A graph with kernels of 10 and 30 records an external event between them. The capture costs the host 11: its begin
/// and end, two launches of 4 and the record. A rank that waits for the event continues 10 after the graph launch of 4,
/// and then works for 60, while the rest of the graph runs.
#[test]
fn an_event_outside_of_a_graph_happens_where_the_graph_records_it() {
    let mut program = Program::default();
    let captured = program.slice(|encoder| {
        encoder.stream(StreamEntry::Capture { stream: 1, graph: Some(1) });
        kernel(encoder, 1, 10);
        encoder.stream(StreamEntry::ExternalRecord { event: 9, stream: 1 });
        kernel(encoder, 1, 30);
        encoder.stream(StreamEntry::Capture { stream: 1, graph: None });
    });
    let launched = program.slice(|encoder| encoder.stream(StreamEntry::GraphLaunch { graph: 1, stream: 5 }));
    let waits = Asks(Op::Synchronize { work: DeviceWork::Event { event: 9, records: 1 }, site: Site(0) });
    let works = program.slice(|encoder| (0..50).for_each(|_| operator(encoder, 0)));
    let end = ends(vec![captured, synchronizes(), launched, waits, works, synchronizes()]);
    assert_eq!(end, 11.0 + 4.0 + 10.0 + 60.0);
}

/// A graph that was captured behind an external event waits for it in each launch: 20 of another stream, then its own
/// 10.
#[test]
fn a_graph_waits_for_an_event_outside_of_it() {
    let mut program = Program::default();
    let captured = program.slice(|encoder| {
        encoder.stream(StreamEntry::Capture { stream: 1, graph: Some(1) });
        encoder.stream(StreamEntry::ExternalWait { stream: 1, event: 9 });
        kernel(encoder, 1, 10);
        encoder.stream(StreamEntry::Capture { stream: 1, graph: None });
    });
    let launched = program.slice(|encoder| {
        kernel(encoder, 2, 20);
        encoder.stream(StreamEntry::Record { event: 9, stream: 2 });
        encoder.stream(StreamEntry::GraphLaunch { graph: 1, stream: 5 });
    });
    // Host time: 1 + 1 + 4 + 1 for the capture, and 4 before the kernel starts.
    assert_eq!(ends(vec![captured, synchronizes(), launched, synchronizes()]), 7.0 + 4.0 + 20.0 + 10.0);
}

/// A graph with a call on the stream where its capture began, and one on a branch: a launch runs up to the first call,
/// and each resumption up to the next one. The call of the branch is made on the stream of its capture, which waits for
/// the branch, and the branch waits for the call.
#[test]
fn a_graph_goes_on_when_its_calls_are_made() {
    let mut program = Program::default();
    let call = |stream| StreamEntry::Call { stream, with_previous: false };
    let Ran(captured) = program.slice(|encoder| {
        encoder.stream(StreamEntry::Capture { stream: 1, graph: Some(1) });
        kernel(encoder, 1, 10);
        encoder.stream(call(1));
        kernel(encoder, 1, 10);
        encoder.stream(StreamEntry::Record { event: 1, stream: 1 });
        encoder.stream(StreamEntry::Capture { stream: 2, graph: Some(1) });
        encoder.stream(StreamEntry::Wait { stream: 2, event: 1 });
        encoder.stream(call(2));
        encoder.stream(StreamEntry::Record { event: 2, stream: 2 });
        encoder.stream(StreamEntry::Wait { stream: 1, event: 2 });
        kernel(encoder, 1, 10);
        encoder.stream(StreamEntry::Capture { stream: 1, graph: None });
    }) else {
        panic!("it is a slice")
    };
    let costing = Costing::new(model(Way::Modelled));
    let mut events = Vec::new();
    let mut pieces = |operators: &[u8]| -> Vec<String> {
        let (rank, task, measured) = (RankId(0), TaskId(0), SimDuration::ZERO);
        let slice = RankSlice { rank, task, line: "", measured, operators };
        let mut event = |event| {
            if !events.contains(&event) {
                events.push(event);
            }
            events.iter().position(|known| *known == event).unwrap()
        };
        let stream = |stream| if stream < 10 { format!("{stream}") } else { "branch".to_owned() };
        let mut shown = |piece: LoweredWork| match piece {
            LoweredWork::Host(_) => "host".to_owned(),
            LoweredWork::Launch(launch) => format!("launch {}", stream(launch.stream)),
            LoweredWork::Record { event: of, stream: on } => format!("record {} {}", event(of), stream(on)),
            LoweredWork::Wait { event: of, stream: on } => format!("wait {} {}", event(of), stream(on)),
        };
        Shared(Rc::clone(&costing)).lower(slice).into_iter().map(&mut shown).collect()
    };
    assert_eq!(pieces(&captured), ["host"]);
    let mut part = |entry| {
        let Ran(operators) = program.slice(|encoder| encoder.stream(entry)) else { panic!("it is a slice") };
        pieces(&operators)
    };
    let resumption = StreamEntry::Resumption { graph: 1, stream: 5 };
    for _ in 0..2 {
        assert_eq!(part(StreamEntry::GraphLaunch { graph: 1, stream: 5 }), ["host", "launch 5", "host"]);
        let up_to_the_second = ["launch 5", "record 0 5", "wait 0 branch", "record 1 branch", "wait 1 2", "host"];
        assert_eq!(part(resumption), up_to_the_second);
        assert_eq!(
            part(resumption),
            ["record 2 2", "wait 2 branch", "record 3 branch", "wait 3 5", "launch 5", "host"]
        );
    }
}
