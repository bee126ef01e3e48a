//! Text workloads of ASTRA-sim and SimAI are accepted or refused; an accepted workload converts to traces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_programs::astra::layers::TextWorkload;

fuzz_target!(|text: &str| {
    if let Ok(workload) = TextWorkload::parse("workload.txt", text) {
        let _ = workload.traces(workload.parallelism.ranks.unwrap_or(8), 1).map(|traces| traces.groups(0).len());
    }
});
