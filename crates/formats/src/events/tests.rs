use super::columns::documentation;
use super::*;
use uniference_sim::event::{MessageWay, StreamTimes, Times, Traffic};
use uniference_sim::ids::{GroupId, GroupRank, Handle, LinkId, MessageId, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{Call, Collective, CollectiveKind, DType, ReduceOp};
use uniference_sim::time::{Bytes, SimDuration};

fn collective(kind: CollectiveKind, reduce: Option<ReduceOp>, shape: Shape) -> Call {
    let collective = Collective { kind, dtype: DType::Float32, reduce, root: None, shape };
    Call { group: GroupId(1), op: CallOp::Collective(collective) }
}

/// The stream of a run with every kind of event, and every kind of call.
fn stream(mut see: impl FnMut(SimTime, &Event<'_>)) {
    let (rank, task, handle, site, peer) = (RankId(3), TaskId(1), Handle(9), Site(2), RankId(4));
    let [start, at] = [5, 90].map(SimTime::from_ps);
    let [exposed, late_peer, no_data] = [30, 20, 10].map(SimDuration::from_ps);
    let why = Why { task, handle, queue: Some(QueueId(7)), site, issued: start, cause: Cause::Task(task) };
    // A simulated one, and one of a real run.
    for why in [why, Why::default()] {
        see(at, &Event::Computed { rank, task, start, base: exposed, origin: Origin::Measured, name: None, why });
    }
    let calls = [
        collective(CollectiveKind::AllReduce, Some(ReduceOp::Sum), Shape::Even(10)),
        collective(CollectiveKind::AllGather, None, Shape::Blocks(vec![1, 2])),
        collective(CollectiveKind::AllToAll, None, Shape::Pairs { send: vec![1, 2], recv: vec![3, 4] }),
        Call { group: GroupId(0), op: CallOp::Send { to: GroupRank(1), tag: 7, bytes: Bytes(13) } },
        Call { group: GroupId(0), op: CallOp::Recv { from: None, tag: 7, bytes: Bytes(13) } },
    ];
    let (bytes, wire_bytes, links) = (Bytes(10), Bytes(12), &[LinkId(1), LinkId(2)]);
    for call in &calls {
        see(at, &Event::Issued { rank, handle, call, bytes, site, task: Some(task) });
    }
    let meetings = [Meeting::Collective { sequence: 4 }, Meeting::Peer(Some((peer, handle))), Meeting::Peer(None)];
    let causes = [Cause::Arrived(MessageId(1 << 40)), Cause::Sent(MessageId(5)), Cause::Unknown];
    for ((meeting, algorithm), cause) in meetings.into_iter().zip([Some("ring"), None, None]).zip(causes) {
        let why =
            Why { queue: None, cause: if cause == Cause::Unknown { cause } else { Cause::Activity(handle) }, ..why };
        let call = &calls[0];
        see(
            at,
            &Event::Completed {
                rank,
                handle,
                call,
                bytes,
                issued: start,
                started: start,
                algorithm,
                meeting,
                why,
                cause,
            },
        );
    }
    see(at, &Event::Failed { rank, handle, call: &calls[3], bytes, issued: start, started: start, peer, why });
    let stored = Cause::Stored(peer, task);
    for (reason, call, cause) in
        [(WaitReason::Communication, Some(&calls[0]), Cause::Time), (WaitReason::Store, None, stored)]
    {
        let handles = &[handle];
        see(at, &Event::Waited { rank, task, start, reason, exposed, late_peer, no_data, handles, call, site, cause });
    }
    see(at, &Event::Marked { rank, mark: &Mark::Begin("a \"step\"".into()), why, spent: None });
    see(at, &Event::Marked { rank, mark: &Mark::End, why, spent: None });
    let group = GroupId(0);
    let (queued, started, sent) = (start, start, at);
    let (id, behind) = (MessageId(8), Some(MessageId(6)));
    let way = MessageWay {
        id,
        operation: handle,
        step: Some(3 << 56 | 12),
        by: peer,
        begun: start,
        cause: Cause::Begun(handle),
        released: start,
        behind,
    };
    let message =
        Event::Message { source: rank, destination: peer, group, bytes, wire_bytes, queued, started, sent, links, way };
    see(at, &message);
    let polled = (Elapsed::Poll, None, Cause::Time);
    let by_activity = Some(Why { cause: Cause::StoredBy(peer, handle), ..why });
    let others = [
        (Elapsed::Sleep, by_activity, Cause::Time),
        (Elapsed::Store, by_activity, Cause::StoredBy(rank, handle)),
        (Elapsed::Nothing, by_activity, Cause::Time),
        (Elapsed::Reach, by_activity, Cause::Time),
        (Elapsed::Finish, by_activity, Cause::Time),
        (Elapsed::Close, by_activity, Cause::Closed(peer)),
    ];
    for (what, why, cause) in [polled].into_iter().chain(others) {
        see(at, &Event::Elapsed { rank, task, what, start, why, cause });
    }
    let times = Times { compute: exposed, exposed, late_peer, no_data, idle: exposed };
    let traffic = Traffic { sent: bytes, received: bytes, wire_sent: wire_bytes };
    let times_of_stream =
        StreamTimes { kernels: exposed, copies: late_peer, communication: no_data, exposed: SimDuration::ZERO };
    see(at, &Event::Used { rank, stream: Some(3), times: times_of_stream });
    see(at, &Event::Finished { rank, outcome: Outcome::Ok, times, traffic, cause: Cause::Crash });
}

#[test]
fn the_stream_is_lines_of_json() {
    let mut writer = EventWriter::new(Vec::new(), ["a -> b"]);
    stream(|at, event| writer.record(at, event));
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    insta::assert_snapshot!(text);
}

#[test]
fn every_value_is_of_its_columns_type() {
    let mut seen = std::collections::BTreeSet::from(["stream"]);
    stream(|_, event| {
        let row = Row::of(event);
        let columns = row.kind().columns;
        assert_eq!(row.cells().len(), columns.len(), "{}", row.kind().name);
        for (column, cell) in columns.iter().zip(row.cells()) {
            let fits = cell.data().map_or(column.nullable, |data| data == column.data);
            assert!(fits, "{}.{}: {cell:?}", row.kind().name, column.name);
        }
        seen.insert(row.kind().name);
    });
    assert_eq!(seen, KINDS.iter().map(|kind| kind.name).collect());
}

#[test]
fn every_cause_is_in_the_table_with_what_it_names() {
    let (rank, task, handle, message) = (RankId(1), TaskId(2), Handle(3), MessageId(4));
    let causes = [
        Cause::Time,
        Cause::Task(task),
        Cause::Activity(handle),
        Cause::Begun(handle),
        Cause::Sent(message),
        Cause::Arrived(message),
        Cause::Stored(rank, task),
        Cause::StoredBy(rank, handle),
        Cause::Closed(rank),
        Cause::Crash,
    ];
    for (cause, (name, of, number, _)) in causes.into_iter().zip(columns::CAUSES) {
        let rank = if of.is_empty() { Cell::Null } else { Cell::U32(1) };
        let id = match number {
            "task" => Cell::U64(2),
            "handle" => Cell::U64(3),
            "message" => Cell::U64(4),
            _ => Cell::Null,
        };
        assert_eq!(caused(cause), [Cell::Text(name), rank, id]);
    }
    assert_eq!(caused(Cause::Unknown), [Cell::Null, Cell::Null, Cell::Null]);
}

#[test]
fn a_name_is_one_column() {
    for kind in &KINDS {
        let names: std::collections::BTreeSet<&str> = COMMON.iter().chain(kind.columns).map(|its| its.name).collect();
        assert_eq!(names.len(), COMMON.len() + kind.columns.len(), "{}", kind.name);
    }
}

/// With UPDATE_DOCUMENTATION set it is brought up to date.
#[test]
fn the_documentation_has_the_table() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/events.md");
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (head, rest) = page.split_once("<!-- columns -->\n").expect("a mark where the table begins");
    let (table, tail) = rest.split_once("<!-- end of columns -->").expect("a mark where the table ends");
    if std::env::var_os("UPDATE_DOCUMENTATION").is_some() {
        let page = format!("{head}<!-- columns -->\n{}<!-- end of columns -->{tail}", documentation());
        std::fs::write(PAGE, page).unwrap();
    } else {
        assert_eq!(table, documentation(), "run the test once more with UPDATE_DOCUMENTATION=1");
    }
}
