use super::*;
use crate::cluster::{Choices, ClusterFile};
use crate::events::EventWriter;
use crate::report::tests::all_reduce;
use crate::sink::tests::SmallDisk;
use serde_json::json;
use uniference_sim::event::{Times, Traffic, Why};
use uniference_sim::ids::{GroupRank, Handle, LinkId, Site};
use uniference_sim::program::{Origin, Outcome};
use uniference_sim::time::{Bytes, SimDuration};

fn cluster() -> Cluster {
    let text = "[[device]]\nname = \"orin\"\ncount = 2\n[network]\n";
    ClusterFile::parse("c", text, &[]).unwrap().resolve(&Choices::default()).unwrap().cluster
}

fn us(us: u64) -> SimTime {
    SimTime::from_ps(us * 1_000_000)
}

fn mark(observer: &mut impl Observer, at: u64, task: u32, mark: &Mark) {
    let (rank, task) = (RankId(0), TaskId(task));
    observer.record(us(at), &Event::Marked { rank, task, mark, why: Default::default(), spent: None });
}

/// Two concurrent operations on rank 0 that overlap compute, ranges, a message, and an end of a range that was never
/// opened.
fn feed(observer: &mut impl Observer) {
    let (rank, task, site) = (RankId(0), TaskId(0), Site(0));
    let call = &all_reduce(256);
    let begin = |name: &str| Mark::Begin(name.into());
    let completed = |handle, started, sequence| Event::Completed {
        rank,
        handle: Handle(handle),
        call,
        bytes: call.op.bytes(2),
        issued: us(1),
        started,
        algorithm: Some("ring"),
        meeting: Meeting::Collective { sequence },
        on_stream: None,
        why: Default::default(),
        cause: Default::default(),
    };
    let computed = Event::Computed {
        rank,
        task,
        start: us(1),
        base: SimDuration::from_ps(1),
        origin: Origin::Measured,
        name: None,
        why: Default::default(),
    };
    let waited = Event::Waited {
        rank,
        task,
        start: us(2),
        reason: WaitReason::Communication,
        exposed: SimDuration::from_us(3),
        late_peer: SimDuration::from_us(1),
        no_data: SimDuration::ZERO,
        handles: &[Handle(0)],
        call: Some(call),
        site,
        cause: Default::default(),
    };
    let (source, destination, group, links) = (rank, RankId(1), GroupId(0), &[LinkId(0), LinkId(3)][..]);
    let message = Event::Message {
        source,
        destination,
        group,
        bytes: Bytes(1448),
        wire_bytes: Bytes(1514),
        queued: us(2),
        started: us(2),
        sent: SimTime::from_ps(3_500_001),
        links,
        way: Default::default(),
    };
    let finished = Event::Finished {
        rank,
        outcome: Outcome::Ok,
        times: Times::default(),
        traffic: Traffic::default(),
        cause: Default::default(),
    };
    mark(observer, 0, 0, &Mark::End);
    mark(observer, 0, 0, &begin("step \"1\""));
    mark(observer, 1, 0, &begin("left open"));
    mark(observer, 1, 1, &begin("of a thread"));
    mark(observer, 1, 0, &Mark::Open { range: 0, name: "request".into() });
    mark(observer, 1, 1, &Mark::Open { range: 1, name: "left open, too".into() });
    mark(observer, 1, 0, &Mark::Close { range: 7 });
    observer.record(
        us(1),
        &Event::Issued { rank, handle: Handle(0), call, bytes: call.op.bytes(2), site, task: Default::default() },
    );
    observer.record(us(3), &computed);
    observer.record(us(4), &message);
    mark(observer, 4, 1, &Mark::End);
    mark(observer, 4, 1, &Mark::Close { range: 0 });
    mark(observer, 4, 0, &Mark::Open { range: 2, name: "another request".into() });
    mark(observer, 5, 0, &Mark::Close { range: 2 });
    observer.record(us(5), &completed(0, us(1), 0));
    observer.record(us(5), &waited);
    observer.record(us(6), &completed(1, us(2), 1));
    observer.record(us(8), &completed(2, us(5), 2));
    observer.record(us(9), &finished);
}

fn trace() -> String {
    let lines = Lines::new(RefCell::new(vec!["model.py:41".to_owned()]));
    let mut trace = TraceWriter::new(Chrome::new(Vec::new()), &cluster(), lines);
    feed(&mut trace);
    String::from_utf8(trace.finish().unwrap()).unwrap()
}

fn entries() -> Vec<serde_json::Value> {
    let document: serde_json::Value = serde_json::from_str(&trace()).unwrap();
    document["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn a_trace_names_its_rows_and_gives_overlapping_slices_rows_of_their_own() {
    insta::assert_snapshot!(trace());
    assert_eq!(trace(), trace());
}

#[test]
fn every_entry_has_what_the_viewers_need() {
    for entry in entries() {
        let phase = entry["ph"].as_str().unwrap();
        assert!(entry["pid"].is_u64() && entry["tid"].is_u64() && entry["name"].is_string(), "{entry}");
        assert_eq!(phase == "M", entry["ts"].is_null(), "{entry}");
        assert_eq!(phase == "X", entry["dur"].is_number(), "{entry}");
    }
}

#[test]
fn slices_of_one_row_never_overlap_and_ranges_close_as_often_as_they_open() {
    let mut busy_until = BTreeMap::new();
    let mut open = 0;
    for entry in entries() {
        let row = (entry["pid"].as_u64(), entry["tid"].as_u64());
        match entry["ph"].as_str().unwrap() {
            "X" => {
                let start = entry["ts"].as_f64().unwrap();
                let end = busy_until.insert(row, start + entry["dur"].as_f64().unwrap());
                assert!(end.is_none_or(|end| end <= start), "{entry}");
            }
            "B" => open += 1,
            "E" => open -= 1,
            _ => {}
        }
        assert!(open >= 0);
    }
    assert_eq!(open, 0);
}

#[test]
fn a_full_disk_is_an_error() {
    let mut trace = TraceWriter::new(Chrome::new(SmallDisk(700)), &cluster(), Lines::default());
    feed(&mut trace);
    assert!(trace.failed());
    assert!(trace.finish().is_err());
}

#[test]
fn the_event_stream_has_a_line_of_json_for_each_event() {
    let mut events = EventWriter::new(Vec::new(), []);
    feed(&mut events);
    let text = String::from_utf8(events.finish().unwrap()).unwrap();
    insta::assert_snapshot!(text);
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
}

/// The send or the receive may be complete first.
#[test]
fn an_arrow_leads_from_each_send_to_its_receive() {
    let call = |op| Call { group: GroupId(0), op };
    let send = call(CallOp::Send { to: GroupRank(1), tag: 0, bytes: Bytes(8) });
    let recv = call(CallOp::Recv { from: Some(GroupRank(0)), tag: 0, bytes: Bytes(8) });
    let completed = |rank: u32, handle, call, started, meeting| Event::Completed {
        rank: RankId(rank),
        handle: Handle(handle),
        call,
        bytes: Bytes(8),
        issued: started,
        started,
        algorithm: None,
        meeting: Meeting::Peer(meeting),
        on_stream: None,
        why: Default::default(),
        cause: Default::default(),
    };
    let sent = |handle, started| completed(0, handle, &send, started, None);
    let received = |handle, started, of| completed(1, handle, &recv, started, Some((RankId(0), Handle(of))));
    let mut trace = TraceWriter::new(Chrome::new(Vec::new()), &cluster(), Lines::default());
    trace.record(us(3), &sent(0, us(1)));
    trace.record(us(5), &received(0, us(4), 0));
    trace.record(us(8), &received(1, us(6), 1));
    trace.record(us(9), &sent(1, us(7)));
    // This message is never received.
    trace.record(us(11), &sent(2, us(10)));
    trace.critical_path(std::iter::once(PathSpan {
        start: us(0),
        end: us(11),
        name: "latency of a <-> b".into(),
        rank: None,
        line: Some("a.py:1".into()),
        range: None,
    }));
    let text = String::from_utf8(trace.finish().unwrap()).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let entries = document["traceEvents"].as_array().unwrap();
    let ends = entries.iter().filter(|entry| entry["cat"] == "message");
    let ends =
        ends.map(|entry| (&entry["ph"], entry["id"].as_u64().unwrap(), &entry["pid"], entry["ts"].as_f64().unwrap()));
    let shown: Vec<String> = ends.map(|(ph, id, pid, at)| format!("{ph} {id} {pid} {at}")).collect();
    assert_eq!(
        shown,
        ["\"s\" 1 1 1.0", "\"f\" 1 2 4.999", "\"s\" 2 1 7.0", "\"f\" 2 2 7.999"].map(|end| end.replace(".0", ""))
    );
    let path = entries.iter().find(|entry| entry["name"] == "latency of a <-> b").unwrap();
    assert_eq!((&path["pid"], &path["ts"], &path["dur"]), (&json!(4), &json!(0.0), &json!(11.0)));
}

/// Content of a native trace: row, nanoseconds and name of each slice in the order of their ends, and values of
/// counters.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    slices: Vec<(String, u64, u64, String)>,
    counters: Vec<(String, u64, f64)>,
    arrows: Vec<(char, u64, String, u64)>,
}

/// Reads packets like the viewer: each refers only to earlier definitions.
fn shown(file: &[u8]) -> Shown {
    use super::perfetto::{TracePacket, TrackEvent};
    use prost::Message;
    let (mut rest, mut shown) = (file, Shown::default());
    let (mut tracks, mut names, mut open) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::<u64, Vec<_>>::new());
    while let Some((10, after)) = rest.split_first() {
        let mut after = after;
        let length = prost::decode_length_delimiter(&mut after).unwrap();
        let (packet, next) = after.split_at(length);
        let packet = TracePacket::decode(packet).unwrap();
        rest = next;
        assert_eq!(packet.sequence, Some(1));
        if let Some(track) = packet.track {
            let name =
                [track.name, track.process.and_then(|it| it.process_name), track.thread.and_then(|it| it.thread_name)];
            assert!(track.parent.is_none_or(|parent| tracks.contains_key(&parent)));
            assert_eq!(tracks.insert(track.uuid.unwrap(), name.into_iter().flatten().collect::<String>()), None);
        }
        for text in packet.interned.into_iter().flat_map(|interned| interned.names) {
            assert_eq!(names.insert(text.iid.unwrap(), text.text.unwrap()), None);
        }
        let Some(event) = packet.event else { continue };
        let TrackEvent { kind, track, name, name_iid, counter_value, double_counter_value, legacy, .. } = event;
        let (at, track) = (packet.timestamp.unwrap(), track.unwrap());
        let (row, name) = (tracks[&track].clone(), name.or_else(|| name_iid.map(|iid| names[&iid].clone())));
        match (kind, legacy) {
            (Some(1), None) => open.entry(track).or_default().push((at, name.unwrap())),
            (Some(2), None) => {
                let (start, name) = open.get_mut(&track).unwrap().pop().unwrap();
                shown.slices.push((row, start, at, name));
            }
            (Some(4), None) => {
                let value = double_counter_value.or(counter_value.map(|value| value as f64));
                shown.counters.push((row, at, value.unwrap()));
            }
            (None, Some(legacy)) => {
                let phase = char::from(legacy.phase.unwrap() as u8);
                shown.arrows.push((phase, legacy.unscoped_id.unwrap(), row, at));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(rest.is_empty() && open.values().all(Vec::is_empty));
    shown
}

#[test]
fn both_formats_show_the_same() {
    let devices = [("orin.0", Some(Power { idle: 10.0, busy: 60.0 })), ("orin.1", None)];
    let links = cluster().topology.links().iter().map(|link| link.name.clone()).collect();
    let formats = (Chrome::new(Vec::new()), Perfetto::new(Vec::new()));
    let mut trace = TraceWriter::with_rows(formats, devices.into_iter(), links, Lines::default());
    feed(&mut trace);
    trace.memory(RankId(1), [(us(0), vec![("parameters", 3), ("other", 4)])].into_iter());
    trace.release(&release(2, 5, "waits for rank 1, which sleeps"));
    trace.critical_path(std::iter::once(PathSpan {
        start: us(0),
        end: us(9),
        name: "compute of rank 0".into(),
        rank: Some(0),
        line: None,
        range: Some("step".into()),
    }));
    let (chrome, perfetto) = trace.finish().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&chrome).unwrap();
    let (mut expected, mut rows, mut open) = (Shown::default(), BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
    let ns = |entry: &serde_json::Value, key: &str| (entry[key].as_f64().unwrap() * 1e3).round() as u64;
    for entry in document["traceEvents"].as_array().unwrap() {
        let (phase, name) = (entry["ph"].as_str().unwrap(), entry["name"].as_str().unwrap().to_owned());
        let row = (entry["pid"].as_u64().unwrap(), entry["tid"].as_u64().unwrap());
        let row_name = || -> String { String::clone(&rows[&row]) };
        match phase {
            "M" if name.ends_with("_name") => {
                rows.insert(row, entry["args"]["name"].as_str().unwrap().to_owned());
            }
            "M" => {}
            "X" => {
                let start = ns(entry, "ts");
                expected.slices.push((row_name(), start, start + ns(entry, "dur"), name));
            }
            "B" => open.entry(row).or_default().push((ns(entry, "ts"), name)),
            "E" => {
                let (start, name) = open.get_mut(&row).unwrap().pop().unwrap();
                expected.slices.push((row_name(), start, ns(entry, "ts"), name));
            }
            "C" => {
                for (series, value) in entry["args"].as_object().unwrap() {
                    let name = if name == "memory" { format!("{name}: {series}") } else { name.clone() };
                    expected.counters.push((name, ns(entry, "ts"), value.as_f64().unwrap()));
                }
            }
            "s" | "f" => {
                let phase = phase.chars().next().unwrap();
                expected.arrows.push((phase, entry["id"].as_u64().unwrap(), row_name(), ns(entry, "ts")));
            }
            other => panic!("{other}"),
        }
    }
    let mut found = shown(&perfetto);
    for all in [&mut expected, &mut found] {
        all.counters.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    }
    assert_eq!(found, expected);
    let power: Vec<_> = found.counters.iter().filter(|counter| counter.0 == "power").map(|it| (it.1, it.2)).collect();
    assert_eq!(power, [(0, 10.0), (1_000, 60.0), (3_000, 10.0)]);
    assert!(perfetto.len() < chrome.len() / 2, "{} of {}", perfetto.len(), chrome.len());
}

/// The reason of the only wait of `feed`, which lasts from 2 to 5 us.
fn release(start: u64, end: u64, words: &str) -> Release {
    let from = Source { rank: RankId(0), activity: Some(Handle(0)), span: us(1)..us(3) };
    Release { rank: RankId(0), task: TaskId(0), waited: us(start)..us(end), words: words.into(), from }
}

#[test]
fn a_wait_says_for_whom_it_was_within_its_slice() {
    let mut trace = TraceWriter::new(Chrome::new(Vec::new()), &cluster(), Lines::default());
    feed(&mut trace);
    trace.release(&release(2, 5, "waits for rank 1, which sleeps"));
    // No wait of this trace ends at this time.
    trace.release(&release(2, 4, "nothing"));
    let text = String::from_utf8(trace.finish().unwrap()).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let entries = document["traceEvents"].as_array().unwrap();
    let named = |name: &str| entries.iter().find(|entry| entry["name"] == name).unwrap();
    let (outer, inner) = (named("wait: all_reduce"), named("waits for rank 1, which sleeps"));
    let end = |entry: &serde_json::Value| entry["ts"].as_f64().unwrap() + entry["dur"].as_f64().unwrap();
    assert_eq!((&outer["pid"], &outer["tid"]), (&inner["pid"], &inner["tid"]));
    assert!(outer["ts"].as_f64() < inner["ts"].as_f64() && end(inner) < end(outer));
    let arrow: Vec<_> = entries.iter().filter(|entry| entry["cat"] == "release").collect();
    // The arrow leads from the row that shows activity 0, at the activity's end, to the end of the wait.
    let compute = named("compute");
    let rows = [&arrow[0]["tid"], &arrow[1]["tid"]];
    assert_eq!(rows, [&named("all_reduce")["tid"], &inner["tid"]]);
    assert_ne!(compute["tid"], arrow[0]["tid"]);
    assert_eq!([&arrow[0]["ts"], &arrow[1]["ts"]], [&json!(2.999), &json!(4.998)]);
    assert!(!text.contains("nothing"));
}

#[test]
fn compute_says_where_it_was() {
    let entries = entries();
    let args = |name: &str| &entries.iter().find(|entry| entry["name"] == name).unwrap()["args"];
    assert_eq!(args("compute"), &json!({"reference_us": 1e-6, "line": "model.py:41", "range": "left open"}));
}

#[test]
fn work_of_a_stream_is_in_the_range_of_its_launch() {
    let (rank, task, base, origin) = (RankId(0), TaskId(0), SimDuration::from_ps(1), Origin::Roofline);
    let mut trace = TraceWriter::new(Chrome::new(Vec::new()), &cluster(), Lines::default());
    let why = |handle, stream: Option<u32>| Why {
        handle: Handle(handle),
        queue: stream.map(QueueId::of_stream),
        ..Why::default()
    };
    for (handle, mark) in [(0, Mark::Begin("forward".into())), (2, Mark::End), (3, Mark::Begin("wait".into()))] {
        trace.record(us(0), &Event::Marked { rank, task, mark: &mark, why: why(handle, None), spent: None });
    }
    for (name, why) in [("kernel", why(1, Some(7))), ("host", why(4, None))] {
        trace.record(us(2), &Event::Computed { rank, task, start: us(1), base, origin, name: Some(name), why });
    }
    let document: serde_json::Value = serde_json::from_slice(&trace.finish().unwrap()).unwrap();
    let entries = document["traceEvents"].as_array().unwrap();
    let range = |name: &str| &entries.iter().find(|entry| entry["name"] == name).unwrap()["args"]["range"];
    assert_eq!((range("kernel"), range("host")), (&json!("forward"), &json!("wait")));
}

/// Slices of one row nest: the inner range, which ends later, is cut in two.
#[test]
fn a_range_that_outlives_the_one_around_it_starts_again() {
    let mut trace = TraceWriter::new(Chrome::new(Vec::new()), &cluster(), Lines::default());
    let thread = TaskId(0);
    let enter = |range, name: &str| Mark::Enter { range, thread, name: name.into() };
    let leave = |range| Mark::Leave { range, thread };
    for (at, its) in [(1, enter(0, "a")), (2, enter(1, "b")), (3, leave(0)), (4, leave(1))] {
        mark(&mut trace, at, 0, &its);
    }
    let document: serde_json::Value = serde_json::from_slice(&trace.finish().unwrap()).unwrap();
    let entries = document["traceEvents"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let slices: Vec<(f64, String, String)> = entries
        .map(|entry| (entry["ts"].as_f64().unwrap_or_default(), text(&entry["ph"]), text(&entry["name"])))
        .filter(|(_, phase, _)| phase == "B" || phase == "E")
        .collect();
    let expected = [(1.0, "B", "a"), (2.0, "B", "b"), (3.0, "E", ""), (3.0, "E", ""), (3.0, "B", "b"), (4.0, "E", "")];
    assert_eq!(slices, expected.map(|(at, phase, name)| (at, phase.to_owned(), name.to_owned())));
}

#[test]
fn rows_have_the_names_that_threads_and_processes_were_given() {
    let (rank, base, origin) = (RankId(0), SimDuration::from_ps(1), Origin::Measured);
    let of_process = OfProcess::new(1).unwrap().short(0).unwrap();
    let mut trace = TraceWriter::new(Chrome::new(Vec::new()), &cluster(), Lines::default());
    let computes = |trace: &mut TraceWriter<_>, task, stream: Option<u32>| {
        let why = Why { queue: stream.map(QueueId::of_stream), ..Why::default() };
        trace.record(us(2), &Event::Computed { rank, task: TaskId(task), start: us(1), base, origin, name: None, why });
    };
    mark(&mut trace, 0, 1, &Mark::Name("loader".into()));
    for (task, stream) in [(0, None), (1, None), (2, None), (2, Some(of_process)), (1, Some(7))] {
        computes(&mut trace, task, stream);
    }
    mark(&mut trace, 2, 2, &Mark::Name("multiprocessing".into()));
    mark(&mut trace, 3, 2, &Mark::Name("engine".into()));
    let document: serde_json::Value = serde_json::from_slice(&trace.finish().unwrap()).unwrap();
    let mut names = BTreeMap::new();
    for entry in document["traceEvents"].as_array().unwrap().iter().filter(|entry| entry["name"] == "thread_name") {
        names.insert(entry["tid"].as_u64(), entry["args"]["name"].as_str().unwrap().to_owned());
    }
    let names: Vec<&str> = names.values().map(String::as_str).collect();
    let [main, loader, engine] =
        ["", " loader (task 1)", " engine (task 2)"].map(|name| format!("rank 0 (orin.0){name}"));
    assert_eq!(names, [&*main, &loader, &engine, "stream 0 of process 1 (engine)", "stream 7"]);
}
