use super::*;
use std::fs;
use std::io::ErrorKind;
use tempfile::TempDir;
use uniference_formats::chakra::schema::{GlobalMetadata, Node, NodeType};
use uniference_formats::chakra::write::Writer as TraceWriter;

/// A folder with `a.0.et` and `b.0.et`: two nodes each, the second of which depends on the first and has another
/// duration in `b.0.et`.
fn traces() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, duration_micros) in [("a.0.et", 5), ("b.0.et", 6)] {
        let mut writer = TraceWriter::new(Vec::new(), &GlobalMetadata::default()).unwrap();
        let node = |id, data_deps, duration_micros| Node {
            id,
            name: "matmul".into(),
            r#type: NodeType::Comp.into(),
            data_deps,
            duration_micros,
            ..Node::default()
        };
        writer.node(&node(1, vec![], 5)).unwrap();
        writer.node(&node(2, vec![1, 7], duration_micros)).unwrap();
        fs::write(dir.path().join(name), writer.finish().unwrap()).unwrap();
    }
    dir
}

fn check_of(traces: Vec<PathBuf>) -> Command {
    Command::Check { traces, astra_comm_groups: None, ranks: None }
}

/// Result and output of a command, without the folder's name.
fn shown(dir: &TempDir, command: Command) -> (Result<Exit, String>, String) {
    let mut out = Vec::new();
    let exit = show(&command, &mut out);
    let folder = format!("{}/", dir.path().display());
    let without = |text: String| text.replace(&folder, "");
    (exit.map_err(|error| without(error.to_string())), without(String::from_utf8(out).unwrap()))
}

#[test]
fn each_command_shows_its_view() {
    let dir = traces();
    let (a, b) = (dir.path().join("a.0.et"), dir.path().join("b.0.et"));
    let (exit, text) = shown(&dir, check_of(vec![a.clone(), b.clone()]));
    assert_eq!(exit, Ok(Exit::Ok));
    insta::assert_snapshot!(text, @r"
    a.0.et: 2 nodes, 2 dependencies, no cycle
      1: dependencies on missing nodes (treated as satisfied): 7 of node 2
    b.0.et: 2 nodes, 2 dependencies, no cycle
      1: dependencies on missing nodes (treated as satisfied): 7 of node 2
    ");
    let (exit, text) = shown(&dir, Command::Stats { traces: vec![a.clone()], json: false });
    assert_eq!(exit, Ok(Exit::Ok));
    assert!(text.starts_with("a.0.et: 2 nodes, 2 dependencies, schema version none\n"), "{text}");
    let (_, text) = shown(&dir, Command::Stats { traces: vec![a.clone()], json: true });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["types"]["COMP_NODE"]["duration_us"], 10);
    let (exit, text) = shown(&dir, Command::Json { trace: a.clone() });
    assert_eq!((exit, text.lines().next()), (Ok(Exit::Ok), Some("{}{")));
    let (exit, text) = shown(&dir, Command::Dot { trace: a.clone() });
    assert_eq!((exit, text.lines().next()), (Ok(Exit::Ok), Some("digraph trace {")));
    let diff = shown(&dir, Command::Diff { first: a.clone(), second: b });
    assert_eq!(diff, (Ok(Exit::ProgramFailed), "node 2, duration_micros: 5 | 6\n".to_owned()));
    assert_eq!(shown(&dir, Command::Diff { first: a.clone(), second: a }), (Ok(Exit::Ok), String::new()));
}

#[test]
fn what_cannot_be_read_is_named() {
    let dir = traces();
    let (exit, text) = shown(&dir, check_of(vec![dir.path().join("c.0.et"), dir.path().join("a.0.et")]));
    assert_eq!(exit, Ok(Exit::Usage));
    assert!(text.starts_with("cannot read c.0.et: ") && text.contains("\na.0.et: 2 nodes"), "{text}");
    fs::write(dir.path().join("x.et"), "{}").unwrap();
    let (exit, _) = shown(&dir, Command::Json { trace: dir.path().join("x.et") });
    let message = exit.unwrap_err();
    assert!(
        message.starts_with("x.et: this is not a Chakra execution trace") && message.contains("hint: "),
        "{message}"
    );
}

#[test]
fn check_refuses_what_replay_refuses() {
    use uniference_formats::chakra::schema::{Attribute, Value};
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, kind: NodeType, attributes: &[(&str, i64)]| {
        let attr = attributes.iter().map(|(name, value)| Attribute::new(name, Value::Int64(*value))).collect();
        let mut writer = TraceWriter::new(Vec::new(), &GlobalMetadata::default()).unwrap();
        writer.node(&Node { id: 1, name: "n".into(), r#type: kind.into(), attr, ..Node::default() }).unwrap();
        fs::write(path(name), writer.finish().unwrap()).unwrap();
    };
    write("group.0.et", NodeType::CommColl, &[("comm_type", 0), ("comm_size", 8), ("comm_group", 1)]);
    write("kind.0.et", NodeType::CommColl, &[("comm_type", 42), ("comm_size", 8)]);
    write("src.0.et", NodeType::CommSend, &[("comm_src", 1), ("comm_dst", 0), ("comm_size", 8)]);
    write("src.1.et", NodeType::CommRecv, &[("comm_src", 1), ("comm_size", 8)]);
    write("all.et", NodeType::CommSend, &[("comm_dst", 1), ("comm_size", 8)]);
    fs::write(path("groups.json"), r#"{"1": [0]}"#).unwrap();
    let all = ["group.0.et", "kind.0.et", "src.0.et", "src.1.et", "all.et"].map(path).to_vec();
    let (exit, text) = shown(&dir, check_of(all));
    assert_eq!(exit, Ok(Exit::Usage));
    insta::assert_snapshot!(text);
    let groups = Some(path("groups.json"));
    let with = |traces, ranks| shown(&dir, Command::Check { traces, astra_comm_groups: groups.clone(), ranks });
    assert_eq!(with(vec![path("group.0.et")], None).0, Ok(Exit::Ok));
    assert_eq!(with(vec![path("all.et")], Some(2)).0, Ok(Exit::Ok));
    let (exit, text) = with(vec![path("all.et")], Some(1));
    assert_eq!(exit, Ok(Exit::Usage));
    assert!(text.contains("has peer rank 1, which is out of range for 1 ranks"), "{text}");
    // The number of ranks of a job is the number of its traces, which are numbered without gaps.
    write("gap.4294967295.et", NodeType::Comp, &[]);
    let gap = path("gap.4294967295.et");
    let (exit, text) = with(vec![gap.clone()], None);
    assert_eq!(exit, Ok(Exit::Usage));
    assert!(text.contains("trace gap.0.et is missing, but gap.4294967295.et exists\nhint: "), "{text}");
    let (exit, text) = with(vec![gap], Some(8));
    assert_eq!(exit, Ok(Exit::Usage));
    assert!(
        text.contains("gap.4294967295.et is the trace of rank 4294967295, but the job has 8 ranks\nhint: "),
        "{text}"
    );
}

/// A writer whose reader has exited, or whose disk is full.
struct Gone(ErrorKind);

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn output_that_is_lost_is_an_error_of_its_own() {
    let dir = traces();
    let trace = || dir.path().join("a.0.et");
    for command in [Command::Json { trace: trace() }, Command::Stats { traces: vec![trace()], json: true }] {
        for kind in [ErrorKind::BrokenPipe, ErrorKind::StorageFull] {
            let error = show(&command, Gone(kind)).err().unwrap();
            assert_eq!(error.exit(), Exit::Usage);
            assert!(error.to_string().starts_with("cannot write standard output: "), "{error}");
            assert!(matches!(error, HostError::Output { source } if source.kind() == kind));
        }
    }
}
