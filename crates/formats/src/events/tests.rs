use super::columns::{KINDS, documentation};
use super::rows::caused;
use super::*;
use crate::sink::tests::SmallDisk;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use std::collections::BTreeMap;
use uniference_sim::event::{Cause, Elapsed, Meeting, MessageWay, StreamTimes, Times, Traffic, WaitReason, Why};
use uniference_sim::ids::{GroupId, GroupRank, Handle, LinkId, MessageId, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{
    Call, CallOp, Collective, CollectiveKind, DType, Mark, Origin, Outcome, ReduceOp, Shape,
};
use uniference_sim::time::{Bytes, SimDuration};

fn collective(kind: CollectiveKind, reduce: Option<ReduceOp>, shape: Shape) -> Call {
    let collective = Collective { kind, dtype: DType::Float32, reduce, root: None, shape, kernel: None };
    Call { group: GroupId(1), op: CallOp::Collective(collective) }
}

/// The stream of a run with every kind of event, and every kind of call.
fn stream(mut see: impl FnMut(SimTime, &Event<'_>)) {
    let (rank, task, handle, site, peer) = (RankId(3), TaskId(1), Handle(9), Site(2), RankId(4));
    let [start, at] = [5, 90].map(SimTime::from_ps);
    let [exposed, late_peer, no_data] = [30, 20, 10].map(SimDuration::from_ps);
    let why = Why { task, handle, queue: Some(QueueId(7)), site, issued: start, cause: Cause::Task(task) };
    // An event of a simulated run, and one of a real run.
    for (why, name) in [(why, Some("gemm")), (Why::default(), None)] {
        see(at, &Event::Computed { rank, task, start, base: exposed, origin: Origin::Measured, name, why });
    }
    let calls = [
        collective(CollectiveKind::AllReduce, Some(ReduceOp::Sum), Shape::Even(10)),
        collective(CollectiveKind::AllGather, None, Shape::Blocks(vec![1, 2])),
        collective(CollectiveKind::AllToAll, None, Shape::Pairs { send: vec![1, 2], recv: vec![3, 4] }),
        Call { group: GroupId(0), op: CallOp::Send { to: GroupRank(1), tag: 7, bytes: Bytes(13) } },
        Call { group: GroupId(0), op: CallOp::Recv { from: None, tag: 7, bytes: Bytes(13) } },
        Call { group: GroupId(0), op: CallOp::Write { to: GroupRank(1), bytes: Bytes(13) } },
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
                on_stream: None,
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
    let range = 5;
    let overlapping =
        [Mark::Open { range, name: "request".into() }, Mark::Close { range }, Mark::Name("loader".into())];
    for mark in [Mark::Begin("a \"step\"".into()), Mark::End].iter().chain(&overlapping) {
        see(at, &Event::Marked { rank, task, mark, why, spent: None });
    }
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
        ..MessageWay::default()
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
    writer.lines(&["", "", "model.py:41"].map(str::to_owned));
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    insta::assert_snapshot!(text);
}

#[test]
fn every_value_is_of_its_columns_type() {
    let mut seen = std::collections::BTreeSet::from(["stream", "link", "line"]);
    stream(|_, event| {
        let kind = kind_of(event).kind();
        let mut columns = kind.columns.iter();
        cells_of(event, &mut |cell| {
            let column = columns.next().expect("no more values than columns");
            let fits = cell.data().map_or(column.nullable, |data| data == column.data);
            assert!(fits, "{}.{}: {cell:?}", kind.name, column.name);
        });
        assert_eq!(columns.next(), None, "{}", kind.name);
        seen.insert(kind.name);
    });
    assert_eq!(seen, KINDS.iter().map(|kind| kind.name).collect());
}

#[test]
fn names_are_in_the_order_of_kinds() {
    use Name::*;
    let names =
        [Stream, Link, Line, Computed, Issued, Completed, Failed, Waited, Marked, Message, Elapsed, Used, Finished];
    for (name, kind) in names.into_iter().zip(&KINDS) {
        assert_eq!(format!("{name:?}").to_lowercase(), kind.name);
        assert_eq!(name.kind().name, kind.name);
    }
    assert_eq!(names.len(), KINDS.len());
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
        assert_eq!(caused(cause), [Cell::Name(name), rank, id]);
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

#[test]
fn the_documentation_has_the_table() {
    let marks = ["<!-- columns -->", "<!-- end of columns -->"];
    crate::generated::keep("docs/reference/events.md", marks, &documentation());
}

/// Parts in memory: by kind and number.
#[derive(Default)]
struct Memory(BTreeMap<(&'static str, u32), Vec<u8>>);

impl Parts for &mut Memory {
    type File = Vec<u8>;

    fn begin(&mut self, _: &'static str) -> std::io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn close(&mut self, kind: &'static str, number: u32, file: Vec<u8>) -> std::io::Result<()> {
        assert!(self.0.insert((kind, number), file).is_none(), "{kind} has two parts {number}");
        Ok(())
    }
}

fn read(part: &[u8]) -> SerializedFileReader<bytes::Bytes> {
    let reader = SerializedFileReader::new(bytes::Bytes::copy_from_slice(part)).unwrap();
    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    assert!(metadata.iter().any(|pair| pair.key == "uniference.events" && pair.value == Some(VERSION.to_string())));
    reader
}

/// The rows of a part, as the stream's JSON.
fn rows_of(part: &[u8]) -> Vec<serde_json::Value> {
    fn value(field: &Field) -> serde_json::Value {
        match field {
            Field::Null => serde_json::Value::Null,
            Field::UInt(number) => (*number).into(),
            Field::Long(number) => (*number).into(),
            Field::Str(text) => text.clone().into(),
            Field::ListInternal(list) => list.elements().iter().map(value).collect(),
            other => panic!("no column is of this type: {other:?}"),
        }
    }
    let row = |row: Row| row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect();
    read(part).get_row_iter(None).unwrap().map(|each| row(each.unwrap())).collect()
}

/// All parts of a run with every kind of event, closed once in its middle.
fn tables(messages: bool) -> Memory {
    let mut parts = Memory::default();
    let mut writer = TableWriter::new(&mut parts, messages, ["a -> b"]);
    writer.line(Site(2), "model.py:41");
    stream(|at, event| {
        writer.record(at, event);
        if matches!(event, Event::Waited { reason: WaitReason::Communication, .. }) {
            writer.close_parts();
        }
    });
    writer.finish().unwrap();
    drop(writer);
    parts
}

#[test]
fn tables_have_the_values_of_the_stream() {
    let mut writer = EventWriter::new(Vec::new(), ["a -> b"]);
    stream(|at, event| writer.record(at, event));
    writer.lines(&["", "", "model.py:41"].map(str::to_owned));
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    let mut expected = BTreeMap::<String, Vec<serde_json::Value>>::new();
    for line in text.lines().skip(1) {
        let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
        let kind = row.as_object_mut().unwrap().remove("event").unwrap();
        expected.entry(kind.as_str().unwrap().to_owned()).or_default().push(row);
    }
    let mut found = BTreeMap::<String, Vec<serde_json::Value>>::new();
    for ((kind, _), part) in &tables(true).0 {
        found.entry((*kind).to_owned()).or_default().extend(rows_of(part));
    }
    assert_eq!(found, expected);
}

#[test]
fn closed_parts_are_numbered_and_messages_are_left_out_unless_they_are_wanted() {
    let parts = tables(false).0;
    let waited: Vec<_> = parts.keys().filter(|(kind, _)| *kind == "waited").collect();
    assert_eq!(waited, [&("waited", 0), &("waited", 1)]);
    assert!(parts.keys().all(|(kind, _)| *kind != "message" && *kind != "stream"));
    // Every other kind has a part, even without rows.
    let mut parts = Memory::default();
    TableWriter::new(&mut parts, true, []).finish().unwrap();
    let kinds: Vec<&str> = parts.0.keys().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds.len(), KINDS.len() - 1);
    assert!(parts.0.values().all(|part| rows_of(part).is_empty()));
}

#[test]
fn a_part_has_a_million_events_at_most() {
    let mut parts = Memory::default();
    let mut writer = TableWriter::new(&mut parts, false, []);
    let mark = Event::Marked { rank: RankId(0), task: TaskId(0), mark: &Mark::End, why: Why::default(), spent: None };
    for at in 0..1_000_001 {
        writer.record(SimTime::from_ps(at), &mark);
    }
    writer.finish().unwrap();
    drop(writer);
    let rows = |number| read(&parts.0[&("marked", number)]).metadata().file_metadata().num_rows();
    assert_eq!([rows(0), rows(1)], [1_000_000, 1]);
}

/// Gathered events need little memory: see docs/explanation/performance.md.
#[test]
fn an_event_takes_few_bytes() {
    let mut parts = Memory::default();
    let mut writer = TableWriter::new(&mut parts, false, []);
    let (call, bytes) =
        (&collective(CollectiveKind::AllReduce, Some(ReduceOp::Sum), Shape::Even(1 << 20)), Bytes(1 << 22));
    let count = 20_000;
    for number in 0..count {
        let (rank, handle) = (RankId(number % 8), Handle(number / 8));
        let at = SimTime::from_ps(u64::from(number) * 1_234_567 + u64::from(number).pow(3) % 999_983);
        let cause = Cause::Arrived(MessageId(u64::from(number) * 14));
        let why = Why { cause: Cause::Task(TaskId(0)), handle, issued: at, site: Site(number % 8), ..Why::default() };
        let meeting = Meeting::Collective { sequence: u64::from(handle.0) };
        let (issued, started, algorithm) = (at, at, Some("ring"));
        writer.record(
            at,
            &Event::Completed {
                rank,
                handle,
                call,
                bytes,
                issued,
                started,
                algorithm,
                meeting,
                on_stream: None,
                why,
                cause,
            },
        );
    }
    writer.finish().unwrap();
    drop(writer);
    let bytes: usize = parts.0.values().map(Vec::len).sum();
    assert!(bytes < 20 * count as usize, "{bytes} bytes for {count} events");
}

#[test]
fn a_disk_that_is_full_fails_the_tables_once() {
    struct Full;
    impl Parts for Full {
        type File = SmallDisk;

        fn begin(&mut self, _: &'static str) -> std::io::Result<Self::File> {
            Ok(SmallDisk(100))
        }

        fn close(&mut self, _: &'static str, _: u32, _: Self::File) -> std::io::Result<()> {
            unreachable!("no part was written to its end")
        }
    }
    let mut writer = TableWriter::new(Full, true, ["a -> b"]);
    stream(|at, event| writer.record(at, event));
    let error = writer.finish().unwrap_err().to_string();
    insta::assert_snapshot!(error, @r"
    the event tables could not be written: no storage space
    hint: free disk space, or choose another disk with --out
    ");
}
