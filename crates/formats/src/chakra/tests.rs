use super::attributes::{COMM_SIZE, COMM_TYPE, IS_CPU_OP, PG_NAME};
use super::check::{CheckError, Checked, Cycle, Finding, check};
use super::diff::{Difference, diff};
use super::read::{ReadError, Reader};
use super::schema::*;
use super::stats::{Stats, Total, Transfer};
use super::write::Writer;
use super::{dot, json};
use proptest::prelude::*;
use std::io::Read;

fn node(id: u64, name: &str, kind: NodeType, data_deps: &[u64]) -> Node {
    Node { id, name: name.into(), r#type: kind.into(), data_deps: data_deps.to_vec(), ..Node::default() }
}

fn compute(id: u64, data_deps: &[u64]) -> Node {
    Node { duration_micros: 5, ..node(id, "matmul", NodeType::Comp, data_deps) }
}

fn all_reduce(id: u64, size: Value) -> Node {
    let attr = vec![
        Attribute::new(IS_CPU_OP, Value::Bool(false)),
        Attribute::new(COMM_TYPE, Value::Int64(CommType::AllReduce as i64)),
        Attribute::new(COMM_SIZE, size),
    ];
    Node { attr, ..node(id, "all \"reduce\"", NodeType::CommColl, &[1]) }
}

fn metadata(version: &str) -> GlobalMetadata {
    GlobalMetadata { version: version.into(), attr: vec![Attribute::new("schema", Value::String("mine".into()))] }
}

fn sample() -> Vec<Node> {
    vec![compute(1, &[]), all_reduce(2, Value::Uint64(1 << 40)), compute(3, &[2])]
}

fn written(nodes: &[Node]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &metadata("0.0.4")).unwrap();
    nodes.iter().for_each(|node| writer.node(node).unwrap());
    writer.finish().unwrap()
}

fn compressed(nodes: &[Node]) -> Vec<u8> {
    let mut writer = Writer::gzip(Vec::new(), &metadata("0.0.4")).unwrap();
    nodes.iter().for_each(|node| writer.node(node).unwrap());
    writer.finish().unwrap()
}

fn open(bytes: &[u8]) -> Reader<&[u8]> {
    Reader::open(bytes).unwrap()
}

fn read(bytes: &[u8]) -> Result<Vec<Node>, ReadError> {
    Reader::open(bytes)?.collect()
}

#[test]
fn what_is_written_is_read_plain_and_compressed() {
    for version in ["", "0.0.4", "1.0.0"] {
        let mut writer = Writer::new(Vec::new(), &metadata(version)).unwrap();
        sample().iter().for_each(|node| writer.node(node).unwrap());
        let bytes = writer.finish().unwrap();
        assert_eq!(open(&bytes).metadata(), &metadata(version));
        assert_eq!(read(&bytes).unwrap(), sample());
    }
    assert_eq!(read(&compressed(&sample())).unwrap(), sample());
}

#[test]
fn the_bytes_are_those_of_the_schema() {
    // Written by hand in protobuf's encoding: tag = field << 3 | wire type, then the value; each message after its
    // length.
    let metadata = [7, 0x0a, 5, b'1', b'.', b'0', b'.', b'0'];
    let node = [13, 0x08, 12, 0x12, 1, b'A', 0x18, 4, 0x2a, 2, 3, 4, 0x38, 5];
    let bytes = [&metadata[..], &node[..]].concat();
    let expected = Node { duration_micros: 5, ..self::node(12, "A", NodeType::Comp, &[3, 4]) };
    assert_eq!(read(&bytes).unwrap(), std::slice::from_ref(&expected));
    let metadata = GlobalMetadata { version: "1.0.0".into(), attr: vec![] };
    let mut writer = Writer::new(Vec::new(), &metadata).unwrap();
    writer.node(&expected).unwrap();
    assert_eq!(writer.finish().unwrap(), bytes);
}

#[test]
fn an_empty_message_ends_a_trace_and_nothing_may_follow_it() {
    let mut bytes = written(&sample());
    bytes.push(0);
    assert_eq!(read(&bytes).unwrap(), sample());
    bytes.push(1);
    assert!(matches!(read(&bytes), Err(ReadError::Damaged { .. })));
    let error = Writer::new(Vec::new(), &metadata("")).unwrap().node(&Node::default()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn metadata_may_be_empty() {
    let mut writer = Writer::new(Vec::new(), &GlobalMetadata::default()).unwrap();
    writer.node(&compute(1, &[])).unwrap();
    assert_eq!(read(&writer.finish().unwrap()).unwrap(), [compute(1, &[])]);
}

#[test]
fn integers_are_read_whatever_their_type() {
    let types = [
        Value::Int32(7),
        Value::Int64(7),
        Value::Uint32(7),
        Value::Uint64(7),
        Value::Sint32(7),
        Value::Sint64(7),
        Value::Fixed32(7),
        Value::Fixed64(7),
        Value::Sfixed32(7),
        Value::Sfixed64(7),
    ];
    for value in types {
        let read = read(&written(&[all_reduce(2, value)])).unwrap();
        assert_eq!(read[0].unsigned(COMM_SIZE), Some(7));
    }
    assert_eq!(all_reduce(2, Value::Int64(-1)).unsigned(COMM_SIZE), None);
    assert_eq!(all_reduce(2, Value::Double(7.0)).unsigned(COMM_SIZE), None);
    let flag = |value| Node { attr: vec![Attribute::new(IS_CPU_OP, value)], ..Node::default() }.is_cpu_op();
    assert_eq!([flag(Value::Int32(1)), flag(Value::Bool(true)), flag(Value::Int32(0))], [true, true, false]);
    let group = |value| Node { attr: vec![Attribute::new(PG_NAME, value)], ..Node::default() }.process_group();
    assert_eq!(group(Value::Int32(3)), group(Value::String("3".into())));
    assert_eq!(group(Value::String(String::new())), None);
}

#[test]
fn what_is_no_trace_is_refused_with_a_hint() {
    let message = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    insta::assert_snapshot!(message(b""), @r"
    this is not a Chakra execution trace: the file is empty
    hint: a trace is a binary file, PREFIX.RANK.et; convert PyTorch's recordings (JSON) with `uniference chakra link`
    ");
    insta::assert_snapshot!(message(b"{\"schema\": \"1.0.2\"}"), @r"
    this is not a Chakra execution trace: it ends inside message 0 (which starts at byte 0)
    hint: a trace is a binary file, PREFIX.RANK.et; convert PyTorch's recordings (JSON) with `uniference chakra link`
    ");
    let bytes = written(&sample());
    insta::assert_snapshot!(message(&bytes[..bytes.len() - 1]), @r"
    the trace is truncated: it ends inside message 3 (which starts at byte 113)
    hint: copy it again from its source, or write it again
    ");
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() = 0xff;
    assert!(message(&damaged).starts_with("the trace is damaged: message 3 (at byte 113): "), "{}", message(&damaged));
    let length = [&[0; 1][..], &[0xff; 9]].concat();
    assert!(message(&length).contains("the length of message 1 (at byte 1) is not a 32-bit number"));
}

#[test]
fn a_compressed_trace_that_is_cut_is_never_taken_for_a_whole_one() {
    let whole = compressed(&sample());
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
    }
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    assert!(read(&damaged).is_err());
}

/// A reader that returns nodes without end.
struct Endless {
    ready: Vec<u8>,
    given: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        for byte in buffer.iter_mut() {
            *byte = self.ready[self.given];
            self.given = if self.given + 1 == self.ready.len() { 1 } else { self.given + 1 };
        }
        Ok(buffer.len())
    }
}

#[test]
fn reading_streams() {
    // The nodes of an endless input are readable. A zero comes first: empty metadata.
    let node = compute(1, &[]);
    let mut ready = written(&[]);
    let empty = ready.len();
    ready.extend(&written(std::slice::from_ref(&node))[empty..]);
    ready.splice(..empty, [0]);
    let mut reader = Reader::open(Endless { ready, given: 0 }).unwrap();
    for _ in 0..10_000 {
        assert_eq!(reader.next_node().unwrap().as_ref(), Some(&node));
    }
}

// Checks

fn checked(nodes: &[Node]) -> Result<Checked, CheckError> {
    check(open(&written(nodes)))
}

#[test]
fn harmless_oddities_are_reported() {
    let mut twice = compute(5, &[1, 1]);
    twice.ctrl_deps = vec![1, 99];
    let nodes = [
        compute(1, &[]),
        twice,
        node(6, "?", NodeType::Invalid, &[7]),
        node(7, "free", NodeType::Comp, &[]),
        node(8, "c", NodeType::CommColl, &[]),
    ];
    let checked = checked(&nodes).unwrap();
    let counts: Vec<(Finding, u64)> = checked.findings.iter().map(|(finding, found)| (*finding, found.count)).collect();
    let expected = [
        (Finding::Dangling, 1),
        (Finding::Duplicate, 2),
        (Finding::UnknownType, 1),
        (Finding::IncompleteCommunication, 1),
        (Finding::NoSize, 1),
        (Finding::NoDuration, 1),
    ];
    assert_eq!(counts, expected);
    assert_eq!(checked.findings[&Finding::Dangling].examples, ["99 of node 5"]);
    // 1 and 99 of node 5, 7 of node 6
    assert_eq!((checked.nodes, checked.dependencies), (5, 3));
}

#[test]
fn a_cycle_is_refused_and_named() {
    let nodes = [compute(1, &[]), compute(2, &[1, 4]), compute(3, &[2]), compute(4, &[3]), compute(5, &[4])];
    let error = checked(&nodes).unwrap_err();
    assert!(matches!(&error, CheckError::Cycle(Cycle(ids)) if *ids == [2, 4, 3]), "{error:?}");
    insta::assert_snapshot!(error, @r"
    nodes depend on each other in a cycle: 2 -> 4 -> 3 -> 2
    hint: none of these nodes can start; check the program that wrote the trace
    ");
    let own = checked(&[compute(7, &[7])]).unwrap_err().to_string();
    assert!(own.starts_with("nodes depend on each other in a cycle: 7 -> 7\n"), "{own}");
}

#[test]
fn an_id_twice_is_refused() {
    let error = checked(&[compute(1, &[]), compute(1, &[])]).unwrap_err().to_string();
    assert!(error.starts_with("duplicate node id 1 (second node: `matmul`)\nhint: "), "{error}");
}

#[test]
fn fields_that_would_be_lost_are_noticed() {
    let mut bytes = written(&sample());
    // Node { id: 9 } and an unknown field 100 (tag 100 << 3 = 800 as a varint) with the value 1.
    bytes.extend([5, 0x08, 9, 0xa0, 0x06, 1]);
    let checked = check(open(&bytes)).unwrap();
    assert_eq!(checked.findings[&Finding::Lossy].examples, ["node 9 ``"]);
    assert!(!checked.findings.contains_key(&Finding::UnknownVersion));
}

// Shows

#[test]
fn figures_add_up() {
    let stats = Stats::of(open(&written(&sample()))).unwrap();
    assert_eq!((stats.nodes, stats.dependencies, stats.version.as_str()), (3, 2, "0.0.4"));
    // two of 5 us each
    assert_eq!(stats.types["COMP_NODE"], Total { count: 2, duration_us: 10 });
    assert_eq!(stats.communication["ALL_REDUCE"], Transfer { count: 1, bytes: 1 << 40 });
    assert_eq!(stats.groups[""], 1);
    insta::assert_snapshot!(stats, @r"
    3 nodes, 2 dependencies, schema version 0.0.4
      COMM_COLL_NODE              1 nodes                0 us
      COMP_NODE                   2 nodes               10 us
      ALL_REDUCE                  1 calls    1099511627776 bytes
      all ranks                   1 calls
      attribute comm_size: uint64                     1 nodes
      attribute comm_type: int64                      1 nodes
      attribute is_cpu_op: bool                       1 nodes
    ");
}

#[test]
fn json_is_protobufs_own() {
    let attr = vec![
        Attribute::new("f", Value::Float(1.2345)),
        Attribute::new("d", Value::DoubleList(DoubleList { values: vec![f64::NAN, 2.0] })),
        Attribute::new("l", Value::Int64List(Int64List { values: vec![-1] })),
        Attribute::new("e", Value::Int32List(Int32List::default())),
        Attribute::new("b", Value::Bytes(b"1234".to_vec())),
        Attribute { value: None, ..Attribute::new("n", Value::Bool(true)) },
    ];
    let node = Node { ctrl_deps: vec![3], attr, ..node(1 << 60, "ü", NodeType::Comp, &[]) };
    let mut out = Vec::new();
    json::write(open(&written(&[node])), &mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap());
}

#[test]
fn a_graph_has_every_node_and_dependency() {
    let mut out = Vec::new();
    dot::write(
        open(&written(&[all_reduce(2, Value::Int64(1)), Node { ctrl_deps: vec![2], ..compute(3, &[]) }])),
        &mut out,
    )
    .unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r#"
    digraph trace {
      rankdir=TB;
      node [style=filled];
      n2 [label="2: all \"reduce\"", shape=ellipse, fillcolor=lightsalmon];
      n1 -> n2;
      n3 [label="3: matmul", shape=box, fillcolor=lightblue];
      n2 -> n3 [style=dashed];
    }
    "#);
}

#[test]
fn differences_are_found_whatever_the_order() {
    let mut other = vec![compute(4, &[]), compute(3, &[2]), all_reduce(2, Value::Uint64(8))];
    other[1].duration_micros = 6;
    let mut found = Vec::new();
    let count = diff(open(&written(&sample())), open(&written(&other)), &mut |it| found.push(it.to_string())).unwrap();
    let expected = [
        "node 2, attribute comm_size: Uint64(1099511627776) | Uint64(8)",
        "node 3, duration_micros: 5 | 6",
        "node 1 `matmul`: only in the first trace",
        "node 4 `matmul`: only in the second trace",
    ];
    found.sort_by_key(|line| expected.iter().position(|expected| expected == line));
    assert_eq!(found, expected);
    assert_eq!(count, 4);
    let same = diff(open(&written(&sample())), open(&compressed(&sample())), &mut |it: Difference| panic!("{it}"));
    assert_eq!(same.unwrap(), 0);
}

// Anything

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<f64>().prop_filter("equal to itself", |n| !n.is_nan()).prop_map(Value::Double),
        any::<f32>().prop_filter("equal to itself", |n| !n.is_nan()).prop_map(Value::Float),
        any::<i32>().prop_map(Value::Sint32),
        any::<i64>().prop_map(Value::Int64),
        any::<u64>().prop_map(Value::Fixed64),
        any::<bool>().prop_map(Value::Bool),
        ".{0,8}".prop_map(Value::String),
        proptest::collection::vec(any::<u8>(), 0..8).prop_map(Value::Bytes),
        proptest::collection::vec(any::<i64>(), 0..4).prop_map(|values| Value::Sint64List(Sint64List { values })),
        proptest::collection::vec(".{0,4}", 0..4).prop_map(|values| Value::StringList(StringList { values })),
    ]
}

fn any_attribute() -> impl Strategy<Value = Attribute> {
    (".{0,8}", ".{0,4}", proptest::option::of(any_value())).prop_map(|(name, doc_string, value)| Attribute {
        name,
        doc_string,
        value,
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    let io = || {
        proptest::option::of((".{0,8}", ".{0,8}", ".{0,8}").prop_map(|(values, shapes, types)| IoInfo {
            values,
            shapes,
            types,
        }))
    };
    let ids = || proptest::collection::vec(any::<u64>(), 0..4);
    let attributes = proptest::collection::vec(any_attribute(), 0..4);
    let times = (any::<u64>(), any::<u64>());
    (1_u64.., ".{0,8}", any::<i32>(), ids(), ids(), times, io(), io(), attributes).prop_map(
        |(id, name, r#type, ctrl_deps, data_deps, times, inputs, outputs, attr)| Node {
            id,
            name,
            r#type,
            ctrl_deps,
            data_deps,
            start_time_micros: times.0,
            duration_micros: times.1,
            inputs: inputs.map(Box::new),
            outputs: outputs.map(Box::new),
            attr,
        },
    )
}

/// All uses of a trace; none may panic.
fn use_up(bytes: &[u8]) {
    let again = || Reader::open(bytes);
    if again().is_err() {
        return;
    }
    let _ = check(again().unwrap());
    let _ = Stats::of(again().unwrap()).map(|stats| stats.to_string());
    let _ = json::write(again().unwrap(), &mut Vec::new());
    let _ = dot::write(again().unwrap(), &mut Vec::new());
    let _ = diff(again().unwrap(), again().unwrap(), &mut |_| ());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_nodes_come_back_as_they_were(nodes in proptest::collection::vec(any_node(), 0..6)) {
        let bytes = written(&nodes);
        let mut reader = open(&bytes);
        let read: Vec<Node> = reader.by_ref().map(Result::unwrap).collect();
        prop_assert_eq!(&read, &nodes);
        prop_assert_eq!(reader.lossy(), 0);
        prop_assert_eq!(written(&read), bytes);
        use_up(&compressed(&nodes));
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        use_up(&bytes);
        // The bytes as nodes of a trace with a valid start, and as the content of a compressed file.
        use_up(&[written(&[]), bytes.clone()].concat());
        use_up(&[compressed(&[])[..10].to_vec(), bytes].concat());
    }

    #[test]
    fn a_cut_trace_is_refused_or_ends_between_nodes(nodes in proptest::collection::vec(any_node(), 1..4), cut in any::<prop::sample::Index>()) {
        let whole = written(&nodes);
        let cut = &whole[..cut.index(whole.len())];
        use_up(cut);
        if let Ok(read) = read(cut) {
            prop_assert_eq!(&nodes[..read.len()], &read[..]);
        }
    }

    #[test]
    fn a_changed_byte_never_panics(nodes in proptest::collection::vec(any_node(), 1..4), place in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = written(&nodes);
        let place = place.index(bytes.len());
        bytes[place] = byte;
        use_up(&bytes);
    }
}
