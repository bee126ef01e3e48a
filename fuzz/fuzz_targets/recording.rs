//! Complete recordings made of bytes: a profile for each of up to three ranks, whose events overlap, launch, wait and
//! communicate as the bytes determine, and a host trace for the first rank. They are linked or refused; a linked
//! recording can be checked and replayed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::fmt::Write;
use uniference_formats::chakra::check::check;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::write::Writer;
use uniference_programs::chakra::link::{Iteration, Options, RankRecording, Recording, link};

const NAMES: [[&str; 4]; 5] = [
    ["aten::mm", "record_param_comms", "autograd::engine::evaluate_function: A", "c10d::allreduce_"],
    ["ProfilerStep#1", "Optimizer.step#SGD.step", "gloo:all_reduce", "nccl:all_to_all"],
    ["cudaLaunchKernel", "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaMemcpyAsync"],
    ["gemm", "ncclKernel_AllReduce_RING", "ncclDevKernel_SendRecv", "ncclDevKernel_AllGather"],
    ["Memcpy DtoH (Device -> Pageable)", "Memset", "Stream Wait Event", "Event Sync"],
];
const CATEGORIES: [&str; 5] = ["cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy"];

fuzz_target!(|bytes: &[u8]| {
    let Some((options, bytes)) = bytes.split_first() else { return };
    let flag = |bit: u8| options >> bit & 1 == 1;
    let count = 1 + usize::from(options >> 6) % 3;
    let mut events = vec![String::new(); count];
    let mut host = String::new();
    for (index, event) in bytes.chunks_exact(8).enumerate() {
        let [kind, name, lane, start, length, correlation, more, rank] = *event else { unreachable!("eight bytes") };
        let kind = usize::from(kind) % CATEGORIES.len();
        let (category, name) = (CATEGORIES[kind], NAMES[kind][usize::from(name) % 4]);
        let category = if kind == 4 && name.contains("Event") { "cuda_sync" } else { category };
        let said = match more & 3 {
            1 => ",\"Collective name\":\"allreduce\",\"In msg nelems\":64,\"dtype\":\"Float\"".to_owned(),
            2 => format!(
                ",\"Collective name\":\"all_to_allv\",\"In msg nelems\":{more},\"dtype\":\"Int\",\"In split size\":\"[1,{more}]\",\"Out split size\":\"[{more},1]\""
            ),
            3 => format!(
                ",\"Collective name\":\"send\",\"In msg nelems\":4,\"dtype\":\"Half\",\"Dst Rank\":{},\"Process Group Name\":\"0\",\"Process Group Ranks\":\"[0, 1]\"",
                more >> 2
            ),
            _ => format!(",\"wait_on_stream\":{},\"wait_on_cuda_event_record_corr_id\":{more}", more >> 4),
        };
        let event = &mut events[usize::from(rank) % count];
        let comma = if event.is_empty() { "" } else { "," };
        let _ = write!(
            event,
            "{comma}{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"tid\":{},\"ts\":{start},\"dur\":{length},\"args\":{{\"correlation\":{correlation},\"stream\":{},\"Record function id\":{index}{said}}}}}",
            lane % 4,
            lane >> 5,
        );
        let comma = if host.is_empty() { "" } else { "," };
        let _ = write!(
            host,
            "{comma}{{\"id\":{index},\"name\":\"{name}\",\"parent\":{more},\"rf_id\":{index},\"tid\":{}}}",
            lane % 4
        );
    }
    let mut ranks = Vec::new();
    for (number, events) in events.iter().enumerate() {
        let text = format!(
            "{{\"traceEvents\":[{events}],\"distributedInfo\":{{\"rank\":{number},\"world_size\":{}}}}}",
            options & 3
        );
        let Ok(Recording::Profile(profile)) = Recording::read(text.as_bytes()) else {
            panic!("it is a profile: {text}")
        };
        ranks.push(RankRecording { file: String::new(), named: None, profile, host: None });
    }
    if flag(2) {
        let text = format!("{{\"schema\":\"1.0.1\",\"nodes\":[{host}]}}");
        let Ok(Recording::Host(host)) = Recording::read(text.as_bytes()) else { panic!("it is a host trace: {text}") };
        ranks[0].host = Some(host);
    }
    let iteration = if flag(3) { Iteration::All } else { Iteration::Middle };
    let options = Options { iteration, allow_mismatch: flag(4), allow_unknown: flag(5), repair: flag(4) };
    let Ok(job) = link(ranks, &options) else { return };
    for linked in &job.ranks {
        let mut writer = Writer::new(Vec::new(), &linked.metadata).expect("memory takes all");
        linked.nodes.iter().for_each(|node| writer.node(node).expect("memory takes all"));
        let bytes = writer.finish().expect("memory takes all");
        check(Reader::open(&bytes[..]).expect("just written")).expect("it can be run");
    }
    // Ranks that wait for each other's messages in another order may deadlock, which is reported.
    let _ = job.replay_recorded();
});
