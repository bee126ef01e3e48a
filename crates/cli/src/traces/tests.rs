use super::*;
use crate::tests::{refused, run};
use std::fs;
use std::path::Path;
use uniference_formats::chakra::attributes::{COMM_DST, COMM_SIZE, COMM_SRC, COMM_TYPE, TENSOR_SIZE};
use uniference_formats::chakra::own;
use uniference_formats::chakra::schema::{Attribute, GlobalMetadata, Node, NodeType, Value};
use uniference_formats::chakra::write::Writer;
use uniference_session::cluster::Overrides;
use uniference_session::results;
use uniference_session::traces::{TraceReplay, replay};
use uniference_session::{ClusterOptions, Ended, Exit, Output};

fn write(path: &Path, nodes: &[Node]) {
    let mut writer = Writer::new(Vec::new(), &GlobalMetadata::default()).unwrap();
    nodes.iter().for_each(|node| writer.node(node).unwrap());
    fs::write(path, writer.finish().unwrap()).unwrap();
}

fn node(id: u64, kind: NodeType, attributes: &[(&str, i64)]) -> Node {
    let attr = attributes.iter().map(|(name, value)| Attribute::new(name, Value::Int64(*value))).collect();
    Node { id, name: format!("n{id}"), r#type: kind.into(), attr, ..Node::default() }
}

#[test]
fn one_trace_serves_all_ranks_and_its_record_replays() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    write(&dir.path().join("a.et"), &[node(1, NodeType::CommColl, &[(COMM_TYPE, 0), (COMM_SIZE, 4_000)])]);
    let (trace, first, second) = (path("a.et"), path("first"), path("second"));
    assert_eq!(run(&["replay", &trace, "--ranks", "4", "--out", &first]).unwrap(), Exit::Ok);
    assert_eq!(run(&["replay", &first, "--out", &second]).unwrap(), Exit::Ok);
    let report = |folder: &str| fs::read_to_string(Path::new(folder).join(results::REPORT)).unwrap();
    assert!(report(&first).contains("\"all_reduce\""));
    assert_eq!(report(&first), report(&second));
}

#[test]
fn a_deadlock_ends_with_its_exit_code_and_the_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("w");
    let recv = node(1, NodeType::CommRecv, &[(COMM_SRC, 1), (COMM_SIZE, 8)]);
    let after = Node { data_deps: vec![1], ..node(2, NodeType::Comp, &[]) };
    write(&dir.path().join("w.0.et"), &[recv, after]);
    write(&dir.path().join("w.1.et"), &[]);
    let out = dir.path().join("out").display().to_string();
    let words = ["replay", &prefix.display().to_string(), "--ranks", "2", "--out", &out];
    assert_eq!(run(&words).unwrap(), Exit::Halted);
    let ended = replay(&TraceReplay {
        prefix,
        cluster: ClusterOptions {
            ranks: Some(2),
            overrides: Overrides { backend: Some("gloo".to_owned()), ..Overrides::default() },
            ..ClusterOptions::default()
        },
        seed: None,
        command: Vec::new(),
        output: Output { folder: Some(out.into()), ..Output::default() },
        meaning: Meaning::default(),
    });
    let Ok(Ended::Stopped(stop)) = ended else { panic!("it is a deadlock") };
    insta::assert_snapshot!(stop.message, @r"
    error: deadlock at 270.092 us: no rank can proceed
      rank 0, clock 0 ps: node 1 `n1`: recv (8 bytes, group 0), not entered by rank 1
        blocked by it: node 2 `n2`
    ");
}

#[test]
fn traces_are_found_compressed_and_by_a_pattern() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    for rank in 0..2 {
        let compute = Node { duration_micros: 5 * (rank + 1), ..node(1, NodeType::Comp, &[]) };
        let mut writer = Writer::gzip(Vec::new(), &GlobalMetadata::default()).unwrap();
        writer.node(&compute).unwrap();
        fs::write(dir.path().join(format!("zip.{rank}.et.gz")), writer.finish().unwrap()).unwrap();
        write(&dir.path().join(format!("rank{rank}-of-2.et")), &[compute]);
    }
    let out = path("out");
    for name in ["zip", "zip.%d.et.gz", "rank%d-of-2.et"] {
        assert_eq!(run(&["replay", &path(name), "--ranks", "2", "--out", &out]).unwrap(), Exit::Ok, "{name}");
        let report = fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap();
        assert!(report.contains("\"makespan_ps\": 10000000,"), "{name}: {report}");
    }
    write(&dir.path().join("zip.1.et"), &[]);
    fs::remove_file(dir.path().join("rank0-of-2.et")).unwrap();
    let shown = ["zip", "rank%d-of-2.et", "none.%d.et"].map(|name| refused(&["replay", &path(name), "--ranks", "2"]));
    insta::assert_snapshot!(shown.join("\n----\n").replace(&dir.path().display().to_string(), "DIR"));
}

#[test]
fn groups_that_no_node_names_and_dependencies_on_missing_nodes_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let collective = Node { data_deps: vec![9], ..node(1, NodeType::CommColl, &[(COMM_TYPE, 0), (COMM_SIZE, 64)]) };
    let mut named = collective.clone();
    named.attr.push(Attribute::new("comm_group", Value::Int32(1)));
    write(&dir.path().join("t.et"), &[collective]);
    write(&dir.path().join("named.et"), &[named]);
    fs::write(path("groups.json"), r#"{"1": [0, 1]}"#).unwrap();
    let (groups, out) = (path("groups.json"), path("out"));
    let report = |trace: &str| {
        let words = ["replay", &path(trace), "--ranks", "2", "--astra-comm-groups", &groups, "--out", &out];
        assert_eq!(run(&words).unwrap(), Exit::Ok);
        fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap()
    };
    let unused = "no node names a process group of --astra-comm-groups (1 process group)";
    assert!(report("t.et").contains(unused) && !report("named.et").contains(unused));
    // Each of the two ranks has one dependency on a missing node.
    assert!(report("t.et").contains("dependencies on missing nodes: 2; treated as satisfied"));
}

#[test]
fn astra_sims_files_give_astra_sims_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (trace, system, network, out) = (path("a.et"), path("s.json"), path("n.yml"), path("out"));
    write(Path::new(&trace), &[node(1, NodeType::CommColl, &[(COMM_TYPE, 2), (COMM_SIZE, 100)])]);
    let lists = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]
        .map(|name| format!("\"{name}-implementation\": [\"ring\"]"));
    fs::write(&system, format!("{{{}}}", lists.join(", "))).unwrap();
    fs::write(&network, "topology: [ Ring ]\nnpus_count: [ 2 ]\nbandwidth: [ 1.0 ]\nlatency: [ 500.0 ]\n").unwrap();
    let astra = ["--fidelity", "astra", "--astra-system", &system, "--astra-network", &network, "--out", &out];
    assert_eq!(run(&[&["replay", &trace], &astra[..]].concat()).unwrap(), Exit::Ok);
    // T + 2e = floor(500 + 100 / 1.073741824) ns + 2 x 10 ns
    let report = fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap();
    assert!(report.contains("\"makespan_ps\": 613000,"), "{report}");
    let timeline = fs::read_to_string(Path::new(&out).join(results::TIMELINE)).unwrap();
    assert_eq!(timeline, "npu,node_id,name,type,issue_ns,callback_ns\n0,1,n1,7,0,613\n1,1,n1,7,0,613\n");
    assert!(refused(&["replay", &trace, "--fidelity", "astra"]).starts_with("exit 2\n"));
    let both = refused(&[&["replay", &trace, "--ranks", "2"], &astra[..]].concat());
    assert!(both.contains("uses the network of --astra-network, not a cluster\nhint: "), "{both}");
    let flow = refused(&["replay", &trace, "--ranks", "2", "--astra-network", &network]);
    assert!(flow.contains("--astra-network has no effect without --fidelity astra\nhint: "), "{flow}");
}

/// The backend of a run, from its report.
fn backend(out: &str) -> String {
    let report = fs::read_to_string(Path::new(out).join(results::REPORT)).unwrap();
    let known = ["gloo", "nccl", "ideal"].into_iter().find(|name| report.contains(&format!("name = \\\"{name}\\\"")));
    known.unwrap_or_else(|| panic!("{report}")).to_owned()
}

#[test]
fn traces_of_accelerators_run_on_nccl_where_nobody_names_a_library() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let collective =
        |id, more: &[(&str, i64)]| node(id, NodeType::CommColl, &[&[(COMM_TYPE, 0), (COMM_SIZE, 64)], more].concat());
    let on_host = |id| collective(id, &[("is_cpu_op", 1)]);
    let kernels = vec![on_host(1), collective(2, &[("is_cpu_op", 0), ("stream", 7)])];
    let (named, out) = (path("named.toml"), path("out"));
    fs::write(&named, "backend = \"gloo\"\n[[device]]\nname = \"a\"\ncount = 2\n[network]\n").unwrap();
    let of = |nodes: &[Node], options: &[&str]| {
        write(&dir.path().join("t.et"), nodes);
        assert_eq!(run(&[&["replay", &path("t.et"), "--out", &out], options].concat()).unwrap(), Exit::Ok);
        backend(&out)
    };
    assert_eq!(of(&[on_host(1)], &["--ranks", "2"]), "gloo");
    assert_eq!(of(&[collective(1, &[])], &["--ranks", "2"]), "nccl");
    assert_eq!(of(&kernels, &["--ranks", "2"]), "nccl");
    assert_eq!(of(&kernels, &["--ranks", "2", "--backend", "ideal"]), "ideal");
    assert_eq!(of(&kernels, &["--cluster", &named]), "gloo");
    // Traces of profiles without kernels name Gloo, and NVIDIA GPUs do not change that to NCCL.
    let metadata = GlobalMetadata {
        attr: vec![Attribute::new(own::LIBRARY, Value::String("gloo".to_owned()))],
        ..GlobalMetadata::default()
    };
    let mut writer = Writer::new(Vec::new(), &metadata).unwrap();
    writer.node(&on_host(1)).unwrap();
    fs::write(path("t.et"), writer.finish().unwrap()).unwrap();
    let nvidia = path("nvidia.toml");
    fs::write(&nvidia, "[[device]]\nname = \"a\"\nmodel = \"h100-sxm\"\ncount = 2\n[network]\n").unwrap();
    let replay = ["replay", &path("t.et"), "--out", &out, "--cluster", &nvidia];
    for (options, expected) in [(&[][..], "gloo"), (&["--backend", "nccl"], "nccl")] {
        assert_eq!(run(&[&replay[..], options].concat()).unwrap(), Exit::Ok);
        assert_eq!(backend(&out), expected);
    }
    // All ranks send to their neighbour before they receive: with Gloo each send waits for its receiver, in ASTRA-sim's
    // ring it does not.
    for (rank, peer) in [(0, 1), (1, 0)] {
        let send = node(1, NodeType::CommSend, &[(COMM_DST, peer), (COMM_SIZE, 64)]);
        let recv = Node { data_deps: vec![1], ..node(2, NodeType::CommRecv, &[(COMM_SRC, peer), (COMM_SIZE, 64)]) };
        write(&dir.path().join(format!("ring.{rank}.et")), &[send, recv]);
    }
    let ring = ["replay", &path("ring"), "--ranks", "2", "--out", &out];
    assert_eq!(run(&ring).unwrap(), Exit::Ok);
    assert_eq!(run(&[&ring[..], &["--backend", "gloo"]].concat()).unwrap(), Exit::Halted);
}

#[test]
fn text_workloads_are_run_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (text, out, prefix) = (path("w.txt"), path("out"), path("made"));
    let header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 all_gpus: 4";
    fs::write(&text, format!("{header}\n1\na -1 2500 ALLREDUCE 1000 0 NONE 0 500 ALLREDUCE 2000 0\n")).unwrap();
    let cluster = ["--ranks", "4", "--backend", "ideal", "--bandwidth", "1 GB/s", "--latency", "10 us", "--out", &out];
    let report = || fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap();
    assert_eq!(run(&[&["replay", &text], &cluster[..]].concat()).unwrap(), Exit::Ok);
    // 2.5 us, 1,000 B over a ring of 2 (2 (500 B / (1 GB/s) + 10 us)), 0.5 us, 2,000 B likewise; twice.
    assert!(report().contains("\"makespan_ps\": 46000000,"), "{}", report());
    assert_eq!(run(&["chakra", "convert", &text, "--out", &prefix]).unwrap(), Exit::Ok);
    assert_eq!(run(&[&["replay", &prefix], &cluster[..]].concat()).unwrap(), Exit::Ok);
    assert!(report().contains("\"makespan_ps\": 46000000,"), "{}", report());
    assert_eq!(run(&[&["replay", &text, "--passes", "2"], &cluster[..]].concat()).unwrap(), Exit::Ok);
    assert!(report().contains("\"makespan_ps\": 92000000,"), "{}", report());
    fs::write(path("bad.txt"), "DATTA\n1\n").unwrap();
    fs::write(path("data.txt"), "DATA\n1\na -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 1\n").unwrap();
    let shown = [
        refused(&["replay", &text, "--ranks", "8"]),
        refused(&["replay", &path("bad.txt"), "--ranks", "8"]),
        refused(&["chakra", "convert", &path("data.txt"), "--out", &prefix]),
        refused(&["chakra", "convert", &path("none"), "--out", &prefix]),
        refused(&["replay", &prefix, "--ranks", "4", "--passes", "2"]),
    ];
    insta::assert_snapshot!(shown.join("\n----\n").replace(&dir.path().display().to_string(), "DIR"));
}

#[test]
fn nodes_without_a_duration_are_counted_and_rates_that_the_roofline_lacks_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (trace, system, network, out) = (path("a.et"), path("s.json"), path("n.yml"), path("out"));
    let operations = [("num_ops", 5_000_000), (TENSOR_SIZE, 1_000)];
    write(Path::new(&trace), &[node(1, NodeType::Comp, &operations), node(2, NodeType::Comp, &operations)]);
    fs::write(&network, "topology: [ Ring ]\nnpus_count: [ 2 ]\nbandwidth: [ 1.0 ]\nlatency: [ 500.0 ]\n").unwrap();
    let astra = ["--fidelity", "astra", "--astra-system", &system, "--astra-network", &network, "--out", &out];
    let words = [&["replay", &trace], &astra[..]].concat();
    fs::write(&system, "{\"roofline-enabled\": 0}").unwrap();
    assert_eq!(run(&words).unwrap(), Exit::Ok);
    let report = || fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap();
    // Two nodes on each of two ranks.
    assert!(report().contains("4 compute nodes give a number of operations"), "{}", report());
    for (keys, missing) in [("\"local-mem-bw\": 50", "peak-perf"), ("\"peak-perf\": 1", "local-mem-bw")] {
        fs::write(&system, format!("{{\"roofline-enabled\": 1, {keys}}}")).unwrap();
        let message = refused(&words);
        let expected = format!("the system does not give `{missing}`\nhint: ");
        assert!(message.starts_with("exit 2\n") && message.contains(&expected), "{message}");
    }
    // 5e6 operations at 1e12 per second, twice.
    fs::write(&system, "{\"roofline-enabled\": 1, \"peak-perf\": 1, \"local-mem-bw\": 50}").unwrap();
    assert_eq!(run(&words).unwrap(), Exit::Ok);
    assert!(
        report().contains("\"makespan_ps\": 10000000,") && !report().contains("compute nodes give"),
        "{}",
        report()
    );
}

#[test]
fn generated_jobs_run_by_astra_sims_closed_form() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (job, system, network, out) = (path("job"), path("s.json"), path("n.yml"), path("out"));
    let model =
        ["--layers", "2", "--hidden", "64", "--heads", "4", "--kv-heads", "2", "--ffn", "128", "--vocab", "256"];
    let layout = ["--tp", "2", "--dp", "2", "--pp", "2", "--batch", "8", "--seq", "64", "--out", &job];
    assert_eq!(run(&[&["workload", "llama"], &model[..], &layout[..]].concat()).unwrap(), Exit::Ok);
    // All-to-alls have no known algorithm, but no collective of the job needs one.
    let lists =
        ["all-reduce", "reduce-scatter", "all-gather"].map(|name| format!("\"{name}-implementation\": [\"ring\"]"));
    let roofline =
        "\"all-to-all-implementation\": [\"other\"], \"roofline-enabled\": 1, \"peak-perf\": 1, \"local-mem-bw\": 50";
    fs::write(&system, format!("{{{}, {roofline}}}", lists.join(", "))).unwrap();
    fs::write(&network, "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n").unwrap();
    let astra = ["--fidelity", "astra", "--astra-system", &system, "--astra-network", &network, "--out", &out];
    assert_eq!(run(&[&["replay", &job], &astra[..]].concat()).unwrap(), Exit::Ok);
    let timeline = fs::read_to_string(Path::new(&out).join(results::TIMELINE)).unwrap();
    assert!((0..8).all(|rank| timeline.lines().any(|line| line.starts_with(&format!("{rank},")))), "{timeline}");
}

#[test]
fn custom_collectives_and_remote_memory_count_on_a_cluster_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    // An all-reduce: 1,000 bytes to the other rank, and 7 us of compute after the peer's data arrive. Then a load of
    // 500 bytes.
    for (rank, peer) in [(0, 1), (1, 0)] {
        let send = node(0, NodeType::CommSend, &[(COMM_DST, peer), (COMM_SIZE, 1_000)]);
        let recv = node(1, NodeType::CommRecv, &[(COMM_SRC, peer), (COMM_SIZE, 1_000)]);
        let reduce = Node { data_deps: vec![1], duration_micros: 7, ..node(2, NodeType::Comp, &[]) };
        write(&dir.path().join(format!("c.{rank}.et")), &[send, recv, reduce]);
    }
    let load = Node { data_deps: vec![1], ..node(2, NodeType::MemLoad, &[(TENSOR_SIZE, 500)]) };
    write(&dir.path().join("a.et"), &[node(1, NodeType::CommColl, &[(COMM_TYPE, 0), (COMM_SIZE, 9)]), load]);
    let (trace, system, memory, out) = (path("a.et"), path("s.json"), path("m.json"), path("out"));
    fs::write(&system, "{\"all-reduce-implementation-custom\": [\"c\"]}").unwrap();
    let shared = "\"memory-type\": \"PER_NPU_MEMORY_EXPANSION\", \"remote-mem-latency\": 100, \"remote-mem-bw\": 5";
    fs::write(&memory, format!("{{{shared}}}")).unwrap();
    let cluster = ["--ranks", "2", "--backend", "ideal", "--bandwidth", "1 GB/s", "--latency", "10 us"];
    let astra = ["--astra-system", &system, "--astra-memory", &memory, "--out", &out];
    assert_eq!(run(&[&["replay", &trace], &cluster[..], &astra[..]].concat()).unwrap(), Exit::Ok);
    // 1,000 B / (1 GB/s) + 10 us + 7 us, and 100 ns + 500 B / (5 GB/s).
    let report = fs::read_to_string(Path::new(&out).join(results::REPORT)).unwrap();
    assert!(report.contains("\"makespan_ps\": 18200000,"), "{report}");
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("w.0.et"), &[]);
    write(&dir.path().join("gap.0.et"), &[]);
    write(&dir.path().join("gap.3.et"), &[]);
    fs::write(dir.path().join("x.et"), "text").unwrap();
    fs::write(dir.path().join("groups.json"), "[1]").unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (one, gap, text, groups) = (path("w"), path("gap"), path("x.et"), path("groups.json"));
    let cases: [&[&str]; 5] = [
        &["replay", &one, "--ranks", "2"],
        &["replay", &gap, "--ranks", "1"],
        &["replay", &text, "--ranks", "1"],
        &["replay", &one, "--ranks", "1", "--astra-comm-groups", &groups],
        &["replay", &one, "--ranks", "1", "--comm-scale=-1"],
    ];
    let shown: Vec<String> = cases.iter().map(|words| refused(words)).collect();
    insta::assert_snapshot!(shown.join("\n----\n").replace(&dir.path().display().to_string(), "DIR"));
}
