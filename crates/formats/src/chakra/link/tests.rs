use super::*;
use crate::chakra::attributes::{COMM_DST, COMM_SIZE, COMM_TAG, PG_NAME};
use crate::chakra::check::check;
use crate::chakra::read::Reader;
use crate::chakra::schema::CommType;
use crate::chakra::write::Writer;
use serde_json::json;

/// An operator of the newer files, its record function numbered like itself.
fn operator(id: u64, name: &str, parent: u64, inputs: serde_json::Value) -> serde_json::Value {
    let attrs =
        json!([{"name": "rf_id", "type": "uint64", "value": id}, {"name": "tid", "type": "uint64", "value": 1}]);
    json!({"id": id, "name": name, "ctrl_deps": parent, "inputs": {"values": inputs, "shapes": [], "types": []}, "attrs": attrs})
}

fn span(cat: &str, name: &str, tid: u64, ts: f64, dur: f64, args: serde_json::Value) -> serde_json::Value {
    json!({"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": ts, "dur": dur, "args": args})
}

fn function(id: u64) -> serde_json::Value {
    json!({"Record function id": id})
}

fn linked(schema: &str, operators: &[serde_json::Value], events: &[serde_json::Value]) -> Linked {
    let host = HostTrace::parse(&json!({"schema": schema, "nodes": operators}).to_string()).unwrap();
    let device = DeviceTrace::parse(&json!({"traceEvents": events}).to_string()).unwrap();
    let linked = link(&host, &device).unwrap();
    let mut writer = Writer::new(Vec::new(), &linked.metadata).unwrap();
    linked.nodes.iter().for_each(|node| writer.node(node).unwrap());
    check(Reader::open(&writer.finish().unwrap()[..]).unwrap()).unwrap();
    linked
}

fn dependencies(linked: &Linked) -> Vec<(u64, u64, &[u64])> {
    linked.nodes.iter().map(|node| (node.id, node.duration_micros, &node.data_deps[..])).collect()
}

/// 64 floats.
fn tensor() -> serde_json::Value {
    json!([7, 8, 0, 64, 4, "cpu"])
}

/// `mm` (2) with `copy_` (3) inside; an all-reduce (4) whose work (5) runs beside `add` (6); `relu` (7) after it.
fn gloo() -> (Vec<serde_json::Value>, Vec<serde_json::Value>) {
    let operators = vec![
        operator(2, "aten::mm", 1, json!([tensor()])),
        operator(3, "aten::copy_", 2, json!([tensor()])),
        operator(4, "c10d::allreduce_", 1, json!([[tensor()], "<Object>"])),
        operator(5, "gloo:all_reduce", 6, json!([tensor()])),
        operator(6, "aten::add", 1, json!([tensor()])),
        operator(7, "aten::relu", 1, json!([tensor()])),
    ];
    let events = vec![
        span("cpu_op", "aten::mm", 10, 100.0, 50.0, function(2)),
        span("cpu_op", "aten::copy_", 10, 110.0, 20.0, function(3)),
        span("cpu_op", "c10d::allreduce_", 10, 151.0, 4.0, function(4)),
        span("user_annotation", "gloo:all_reduce", 11, 156.0, 30.0, function(5)),
        span("cpu_op", "aten::add", 10, 157.0, 10.0, function(6)),
        span("cpu_op", "aten::relu", 10, 188.0, 1.0, function(7)),
    ];
    (operators, events)
}

#[test]
fn own_times_threads_and_what_is_waited_for() {
    let (operators, events) = gloo();
    let linked = linked("1.1.1-chakra.0.0.4", &operators, &events);
    // mm's own time is 50 - 20; the all-reduce depends on its issue alone, `add` does not depend on it, `relu` does.
    let expected: [(u64, u64, &[u64]); 6] =
        [(2, 30, &[]), (3, 20, &[2]), (4, 4, &[3]), (5, 30, &[4]), (6, 10, &[4]), (7, 1, &[5, 6])];
    assert_eq!(dependencies(&linked), expected);
    let call = &linked.nodes[3];
    assert_eq!((call.r#type(), call.comm_type()), (NodeType::CommColl, Some(CommType::AllReduce)));
    assert_eq!((call.unsigned(COMM_SIZE), call.is_cpu_op()), (Some(256), false));
    assert_eq!(linked.nodes[0].inputs.as_ref().unwrap().values, "[[7, 8, 0, 64, 4, 'cpu']]");
    assert_eq!(linked.warnings, Vec::<String>::new());
}

#[test]
fn every_label_is_read_alike() {
    let (operators, events) = gloo();
    let newest = linked("1.1.1-chakra.1.0.0", &operators, &events);
    for label in ["1.0.2-chakra.0.0.4", "1.0.3-chakra.0.0.4", "1.1.0-chakra.0.0.4"] {
        assert_eq!(linked(label, &operators, &events).nodes, newest.nodes);
    }
    // The flat form of 1.0.1, whose profiler knows no record functions but the order of names.
    let flat = |node: &serde_json::Value| {
        let (id, parent) = (node["id"].clone(), node["ctrl_deps"].clone());
        json!({"id": id, "name": node["name"], "parent": parent, "rf_id": id, "tid": 1, "op_schema": "",
               "inputs": node["inputs"]["values"], "input_shapes": [], "input_types": []})
    };
    let flat: Vec<_> = operators.iter().map(flat).collect();
    let without: Vec<_> = events
        .iter()
        .map(|event| {
            let mut event = event.clone();
            event["args"] = json!({});
            event
        })
        .collect();
    assert_eq!(dependencies(&linked("1.0.1", &flat, &without)), dependencies(&newest));
}

#[test]
fn messages_name_their_peer_and_groups_their_name() {
    let description = r#"[{"pg_name": "0", "ranks": [0, 1]}]"#;
    let operators = [
        operator(1, PROCESS_GROUP_NODE, 0, json!([description])),
        operator(2, "c10d::send", 1, json!([[tensor()], "<Object>", 3, 9])),
        operator(4, "gloo:send", 2, json!([tensor()])),
    ];
    let events = [
        span("cpu_op", "c10d::send", 10, 0.0, 2.0, function(2)),
        span("user_annotation", "gloo:send", 10, 1.0, 4.0, function(4)),
    ];
    let linked = linked("1.1.1-chakra.0.0.4", &operators, &events);
    let send = linked.nodes.iter().find(|node| node.r#type() == NodeType::CommSend).unwrap();
    assert_eq!((send.unsigned(COMM_DST), send.unsigned(COMM_TAG)), (Some(3), Some(9)));
    assert_eq!((send.text(PG_NAME), send.unsigned(COMM_SIZE)), (Some("0"), Some(256)));
}

#[test]
fn kernels_follow_their_stream_and_their_launch_and_nccl_says_what_it_does() {
    let operators = [operator(2, "aten::mm", 1, json!([])), operator(3, "record_param_comms", 1, json!([]))];
    let nccl = json!({"correlation": 2, "stream": 20, "Collective name": "_allgather_base", "In msg nelems": 100,
                      "dtype": "BFloat16", "Process Group Name": "1"});
    let events = [
        span("cpu_op", "aten::mm", 10, 0.0, 9.0, function(2)),
        span("cuda_runtime", "cudaLaunchKernel", 10, 2.0, 1.0, json!({"correlation": 1})),
        span("cpu_op", "record_param_comms", 10, 10.0, 9.0, function(3)),
        span("cuda_runtime", "cudaLaunchKernelExC", 10, 12.0, 1.0, json!({"correlation": 2})),
        span("kernel", "gemm", 7, 5.0, 40.0, json!({"correlation": 1, "stream": 7})),
        span("kernel", "ncclDevKernel_AllGather", 20, 46.0, 30.0, nccl),
    ];
    let linked = linked("1.1.1-chakra.0.0.4", &operators, &events);
    // The gather (5) started after the product (4) had ended on the other stream: it can have waited for it.
    let expected: [(u64, u64, &[u64]); 4] = [(2, 9, &[]), (4, 40, &[2]), (3, 9, &[2]), (5, 30, &[3, 4])];
    assert_eq!(dependencies(&linked), expected);
    let gather = &linked.nodes[3];
    assert_eq!((gather.comm_type(), gather.unsigned(COMM_SIZE)), (Some(CommType::AllGather), Some(200)));
    assert_eq!(gather.text(PG_NAME), Some("1"));
}

#[test]
fn a_kernel_belongs_to_whoever_launched_it_however_much_was_done_before() {
    // The operator has done 5,000 others by the time of its launch.
    let mut operators = vec![operator(2, "layer", 1, json!([]))];
    let mut events = vec![span("cpu_op", "layer", 10, 0.0, 20_000.0, function(2))];
    for other in 0..5_000 {
        operators.push(operator(3 + other, "aten::add", 2, json!([])));
        events.push(span("cpu_op", "aten::add", 10, 2.0 * other as f64, 1.0, function(3 + other)));
    }
    events.push(span("cuda_runtime", "cudaLaunchKernel", 10, 15_000.0, 1.0, json!({"correlation": 1})));
    events.push(span("kernel", "gemm", 7, 15_010.0, 40.0, json!({"correlation": 1, "stream": 7})));
    let linked = linked("1.1.1-chakra.0.0.4", &operators, &events);
    let kernel = linked.nodes.iter().find(|node| node.name == "gemm").unwrap();
    assert!(kernel.data_deps.contains(&2), "{:?}", kernel.data_deps);
}

#[test]
fn files_that_are_something_else_are_refused() {
    let host = HostTrace::parse("{}").unwrap_err().to_string();
    assert!(
        host.contains("the host trace cannot be understood: missing field `schema`") && host.contains("hint: "),
        "{host}"
    );
    let device = DeviceTrace::parse("[]").unwrap_err().to_string();
    assert!(device.contains("export_chrome_trace"), "{device}");
    let (operators, _) = gloo();
    let host = HostTrace::parse(&json!({"schema": "", "nodes": operators}).to_string()).unwrap();
    let strange = DeviceTrace::parse(r#"{"traceEvents": []}"#).unwrap();
    assert!(matches!(link(&host, &strange), Err(LinkError::Strangers)));
    let twice = json!({"schema": "", "nodes": [operators[0], operators[0]]}).to_string();
    assert!(HostTrace::parse(&twice).unwrap_err().to_string().contains("an id comes twice"));
}
