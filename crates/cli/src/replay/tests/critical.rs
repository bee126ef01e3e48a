//! The critical path of a real GPU run, compared with the one that HolisticTraceAnalysis finds.

use super::*;
use crate::{Cli, Command};
use clap::Parser;
use uniference_session::Ended;
use uniference_studies::critical::Step;

/// Operators and kernels of HolisticTraceAnalysis' path: name, CUDA stream (-1: the host), start and duration in
/// microseconds. Runtime calls are separate parts of HolisticTraceAnalysis' path; in Uniference's path they belong to
/// operators.
type Theirs = Vec<(String, i64, u64, u64)>;

/// Tolerance in microseconds: a span of a linked recording may begin or end with a call a few microseconds away.
const NEAR: u64 = 3;

fn is_at(step: &Step, name: &str, start: u64, duration: u64) -> bool {
    let [from, to] = [step.start_ps, step.end_ps].map(|ps| ps / 1_000_000);
    step.what.name.as_deref() == Some(name) && from < start + duration + NEAR && to + NEAR > start
}

#[test]
fn a_linked_profile_has_the_critical_path_that_another_tool_finds() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/src/chakra/link/fixtures");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (profile, prefix) = (fixtures.join("alexnet.profile.0.json.gz").display().to_string(), path("job"));
    run(&["chakra", "link", &profile, "--out", &prefix]).unwrap();
    let cluster = ["--ranks", "1", "--backend", "nccl", "--bandwidth", "100 GB/s"];
    let words = ["uniference", "replay", &prefix].into_iter().chain(cluster);
    let Command::Replay(args) = Cli::try_parse_from(words).unwrap().command else { panic!("it is a replay") };
    let ended = args.replayed.find(&[], |_| Output::default()).unwrap().explain(true).unwrap();
    let Ended::Finished(explanation) = ended else { panic!("it ends") };
    let theirs: Theirs =
        serde_json::from_str(&fs::read_to_string(fixtures.join("alexnet.critical.json")).unwrap()).unwrap();
    assert!(theirs.iter().filter(|(_, stream, ..)| *stream >= 0).count() == 34 && theirs.len() > 34);
    for (name, stream, start, duration) in &theirs {
        // If other operators fill the whole time of an operator, only these have spans.
        let is_found = explanation.path.iter().any(|step| is_at(step, name, *start, *duration));
        assert!(is_found, "{name} on {stream} at {start}");
    }
    // In that time Uniference's path has no other operators; time between operators belongs to the annotation around
    // them.
    let from = theirs.iter().map(|(.., start, _)| *start).min().unwrap();
    let until = theirs.iter().map(|(.., start, duration)| start + duration).max().unwrap();
    let named = explanation.path.iter().filter(|step| step.what.name.is_some());
    let inside = named.filter(|step| step.start_ps / 1_000_000 >= from && step.end_ps / 1_000_000 <= until);
    let other = |step: &&Step| {
        let name = step.what.name.as_deref().unwrap_or_default();
        !name.starts_with('[') && !theirs.iter().any(|(name, _, start, duration)| is_at(step, name, *start, *duration))
    };
    let others: Vec<&Step> = inside.filter(other).collect();
    assert!(others.is_empty(), "{others:?}");
}
