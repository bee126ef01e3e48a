//! Writes the initial corpus of fuzzing into `CORPUS/TARGET/`, with the project's own writers.

use std::fs;
use std::path::Path;
use uniference_formats::chakra::groups;
use uniference_formats::chakra::own::Part;
use uniference_formats::chakra::schema::{GlobalMetadata, Node};
use uniference_formats::chakra::write::Writer;
use uniference_formats::cluster::{Choices, ClusterFile, Flags};
use uniference_formats::operators::{Argument, Definition, Encoder, Line, MemoryKind, Place, Tensor};
use uniference_formats::record::{Header, RecordReader, RecordWriter};
use uniference_formats::report::Manifest;
use uniference_programs::chakra::export;
use uniference_sim::ids::{GroupId, GroupRank, QueueId, RankId, Site, TaskId};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, DType, Origin, Outcome, ReduceOp, Request, Shape, StoreOp, Work,
};
use uniference_sim::replay::RecordedStep;
use uniference_sim::time::{Bytes, SimDuration};

fn main() {
    let corpus = std::env::args().nth(1).expect("usage: fuzz_seeds CORPUS");
    let corpus = Path::new(&corpus);
    let toml = cluster();
    save(corpus, "cluster_file", "flags.toml", toml.as_bytes());
    save(corpus, "sweep_file", "example.toml", include_bytes!("../../../../examples/sweep.toml"));
    let record = record(&toml);
    save(corpus, "program_record", "whole", &[&[0], &record[..]].concat());
    save(corpus, "program_record", "framed", &[&[1], &pieces(&record)[..]].concat());
    for (rank, trace) in traces(&record).iter().enumerate() {
        save(corpus, "execution_trace", &format!("exported.{rank}.et"), trace);
    }
    save(corpus, "execution_trace", "gzip.et", &gzip());
    save(corpus, "astra_inputs", "both", ASTRA.as_bytes());
    for (name, text) in TEXT_WORKLOADS {
        save(corpus, "text_workload", name, text.as_bytes());
    }
    for (name, text) in HOST_TRACES {
        save(corpus, "host_trace", name, text.as_bytes());
    }
    save(corpus, "operators", "product", &operators());
    // A thread that launches three kernels, one of them NCCL's, and waits for them.
    let recording = [
        [0, 0, 0, 0, 90, 0, 0, 0],
        [2, 0, 0, 5, 4, 1, 0, 0],
        [3, 0, 32, 9, 30, 1, 0, 0],
        [0, 1, 0, 40, 20, 0, 1, 0],
        [2, 0, 0, 42, 4, 2, 0, 0],
        [3, 1, 64, 50, 30, 2, 1, 0],
        [2, 2, 0, 60, 1, 3, 0, 0],
        [2, 1, 0, 70, 15, 4, 0, 0],
    ];
    save(corpus, "kernel", "slots.ttir", include_bytes!("../../../triton/tests/slots.ttir"));
    save(corpus, "recording", "waits", &[&[0b0010_1001][..], &recording.concat()].concat());
}

const ASTRA: &str = r#"{"endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 4,
 "all-reduce-implementation": ["ring", "halvingDoubling"], "all-gather-implementation": ["ring", "direct"],
 "reduce-scatter-implementation": ["ring", "direct"], "all-to-all-implementation": ["ring", "direct"],
 "collective-optimization": "localBWAware", "local-mem-bw": 50, "peak-perf": 312, "roofline-enabled": 1}
---
topology: [ Ring, Switch ]  # comment
npus_count: [ 4, 2 ]
bandwidth: [ 50.0, 25.0 ]
latency: [ 500.0, 700.0 ]
"#;

const TEXT_WORKLOADS: [(&str, &str); 3] = [
    ("model", "MODEL\n1\na -1 5 ALLGATHER 64 5 ALLREDUCE 64 5 NONE 0 1\n"),
    ("dlrm", "HYBRID_DLRM 0\n2\ne -1 5 ALLTOALL 64 5 ALLTOALL 64 5 NONE 0 1\nt -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 8 1\n"),
    (
        "transformer",
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8 checkpoints: 1 0 checkpoint_initiates: 1 0 pp_comm: 0\n1\na\t-1\t5\tALLGATHER\t64\t5\tALLTOALL_EP\t64\t5\tALLREDUCE_DP_EP\t64\t1\n",
    ),
];

const HOST_TRACES: [(&str, &str); 1] = [("both", include_str!("host_trace.json"))];

fn save(corpus: &Path, target: &str, name: &str, bytes: &[u8]) {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder).expect("the corpus can be written");
    fs::write(folder.join(name), bytes).expect("the corpus can be written");
}

fn cluster() -> String {
    Flags { ranks: 2, bandwidth: None, latency: None, slowdown: vec![1.0, 2.0] }.to_toml().expect("a plain cluster")
}

/// Two ranks that compute, join a group, reduce, write to each other, and use the store.
fn record(toml: &str) -> Vec<u8> {
    let manifest = Manifest { cluster: toml.to_owned(), ..Manifest::default() };
    let mut writer = RecordWriter::new(Vec::new(), &Header { world_size: 2, manifest });
    let issue = |activity| Request::Issue { activity, queue: QueueId(0), after: vec![], site: Site(0) };
    let reduce = CallOp::Collective(Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::Float32,
        reduce: Some(ReduceOp::Sum),
        root: None,
        shape: Shape::Even(1000),
        kernel: None,
    });
    let write = |to| CallOp::Write { to: GroupRank(to), bytes: Bytes(1000) };
    let work = Work::new(SimDuration::from_us(3), Origin::Measured);
    for rank in (0..2).map(RankId) {
        let script = [
            Request::JoinGroup { ranks: (0..2).map(RankId).collect(), sequence: 0, settings: None, rendezvous: false },
            issue(Activity::Compute(work.clone())),
            issue(Activity::Call(Call { group: GroupId(0), op: reduce.clone() })),
            issue(Activity::Call(Call { group: GroupId(0), op: write(1 - rank.0) })),
            Request::Store {
                operation: StoreOp::Set { key: b"k".to_vec(), value: b"v".to_vec() },
                timeout: None,
                site: Site(0),
            },
            Request::Now,
            Request::Exit(Outcome::Ok),
        ];
        script.iter().for_each(|request| writer.step(rank, TaskId(0), &request.clone().into(), "a.py:1"));
        writer.step(rank, TaskId(0), &RecordedStep::Named(GroupId(0)), "");
    }
    writer.finish().expect("memory takes all")
}

/// The frames of a record, each truncated to 255 bytes and after its length in one byte, without the record's magic
/// text and the offset of its end.
fn pieces(record: &[u8]) -> Vec<u8> {
    let mut rest = &record[8..record.len() - 12];
    let mut pieces = Vec::new();
    while let Some((head, tail)) = rest.split_at_checked(8) {
        let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
        let short = length.min(255);
        pieces.push(short as u8);
        pieces.extend_from_slice(&tail[..short]);
        rest = &tail[length..];
    }
    pieces
}

fn traces(record: &[u8]) -> Vec<Vec<u8>> {
    let reader = RecordReader::open(std::io::Cursor::new(record)).expect("its own record");
    let file = ClusterFile::parse("seed", &reader.header().manifest.cluster, &[]).expect("its own cluster");
    let cluster = file.resolve(&Choices::default()).expect("its own cluster").cluster;
    let folder = std::env::temp_dir().join(format!("uniference-seeds-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("there is a temporary folder");
    let open = |rank: RankId| fs::File::create(folder.join(rank.0.to_string()));
    export::export(reader, &cluster, &[], &mut (), open).expect("its own record");
    let traces = (0..2).map(|rank| fs::read(folder.join(rank.to_string())).expect("just written")).collect();
    fs::remove_dir_all(&folder).expect("just made");
    traces
}

/// Two slices of operators: a GEMM is defined, and runs.
fn operators() -> Vec<u8> {
    let tensor = |sizes: [u64; 2]| {
        let strides = vec![sizes[1] as i64, 1];
        let dtype = DType::Float32.into();
        Argument::Tensor(Tensor { dtype, place: Place::CPU, written: false, sizes: sizes.to_vec(), strides })
    };
    let arguments = vec![tensor([2, 3]), tensor([3, 4])];
    let mut encoder = Encoder::default();
    encoder.definition(&Definition { name: "aten::mm".to_owned(), arguments, results: vec![tensor([2, 4])] });
    encoder.site("a.py:1", "f");
    let first = encoder.take();
    encoder.restart();
    encoder.allocated(3, 32);
    encoder.execution(0, Line { site: 1, backward: true }, &[1, 2, 3]);
    encoder.kind(1, MemoryKind::Parameter);
    encoder.freed(3);
    encoder.answered(Line::default(), "aten::item");
    [first, vec![0xff], encoder.take()].concat()
}

fn gzip() -> Vec<u8> {
    let mut writer = Writer::gzip(Vec::new(), &GlobalMetadata::default()).expect("memory takes all");
    let group = Node { id: 1, ..groups::describe("1", &[0, 1]) };
    let compute = Node { id: 2, data_deps: vec![1], ..Part::Compute(SimDuration::from_us(7)).to_node(TaskId(0)) };
    [group, compute].iter().for_each(|node| writer.node(node).expect("memory takes all"));
    writer.finish().expect("memory takes all")
}
