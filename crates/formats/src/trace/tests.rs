use super::*;
use crate::cluster::{Choices, ClusterFile};
use crate::events::EventWriter;
use crate::report::tests::all_reduce;
use crate::sink::tests::SmallDisk;
use uniference_sim::event::{Times, Traffic};
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

/// Two operations in flight at once on rank 0, with compute beside them, ranges, a message, and an end nobody opened.
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
    observer.record(us(0), &Event::Marked { rank, mark: &Mark::End, why: Default::default(), spent: None });
    observer.record(us(0), &Event::Marked { rank, mark: &begin("step \"1\""), why: Default::default(), spent: None });
    observer.record(us(1), &Event::Marked { rank, mark: &begin("left open"), why: Default::default(), spent: None });
    observer.record(
        us(1),
        &Event::Issued { rank, handle: Handle(0), call, bytes: call.op.bytes(2), site, task: Default::default() },
    );
    observer.record(us(3), &computed);
    observer.record(us(4), &message);
    observer.record(us(5), &completed(0, us(1), 0));
    observer.record(us(5), &waited);
    observer.record(us(6), &completed(1, us(2), 1));
    observer.record(us(8), &completed(2, us(5), 2));
    observer.record(us(9), &finished);
}

fn trace() -> String {
    let mut trace = TraceWriter::new(Vec::new(), &cluster());
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
    let mut trace = TraceWriter::new(SmallDisk(700), &cluster());
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

/// Whichever of the two is complete first.
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
        why: Default::default(),
        cause: Default::default(),
    };
    let sent = |handle, started| completed(0, handle, &send, started, None);
    let received = |handle, started, of| completed(1, handle, &recv, started, Some((RankId(0), Handle(of))));
    let mut trace = TraceWriter::new(Vec::new(), &cluster());
    trace.record(us(3), &sent(0, us(1)));
    trace.record(us(5), &received(0, us(4), 0));
    trace.record(us(8), &received(1, us(6), 1));
    trace.record(us(9), &sent(1, us(7)));
    // Nobody takes this one.
    trace.record(us(11), &sent(2, us(10)));
    trace.critical_path(std::iter::once(PathSpan {
        start: us(0),
        end: us(11),
        name: "latency of a <-> b".into(),
        args: json!({}),
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
