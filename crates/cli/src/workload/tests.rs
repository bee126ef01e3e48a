//! Generated jobs from the command line: runs, folds, traces, and refused jobs.

use crate::tests::{refused, run};
use clap::Parser as _;
use std::fs;
use std::path::Path;
use uniference_host::error::Exit;

const MODEL: [&str; 16] = [
    "--layers",
    "4",
    "--hidden",
    "64",
    "--heads",
    "8",
    "--kv-heads",
    "4",
    "--ffn",
    "160",
    "--vocab",
    "512",
    "--seq",
    "64",
    "--batch",
    "8",
];

fn words<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["workload", "llama"].into_iter().chain(MODEL).chain(more.iter().copied()).collect()
}

fn report(dir: &Path) -> serde_json::Value {
    let mut report: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("report.json")).unwrap()).unwrap();
    // The digest depends on which ranks were simulated, and the manifest contains the command.
    report.as_object_mut().unwrap().retain(|key, _| key != "digest" && key != "manifest");
    report
}

#[test]
fn a_job_takes_as_long_run_at_once_folded_or_not_and_as_traces() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (folded, whole, traces, replayed) = (path("folded"), path("whole"), path("llama"), path("replayed"));
    let rates = "peak_flops = \"989 TFLOPS\"\nmemory_bandwidth = \"1 GB/s\"";
    let file = cluster(dir.path(), &format!("[[device]]\nname = \"gpu\"\ncount = 8\n{rates}\n"));
    let layout = ["--tp", "2", "--dp", "2", "--pp", "2"];
    let run_it = |more: &[&str]| {
        let words = words(&[&layout[..], &["--cluster", &file, "--backend", "ideal"], more].concat());
        assert_eq!(run(&words).unwrap() as i32, Exit::Ok as i32);
    };
    run_it(&["--run", "--fold", "on", "--out", &folded]);
    run_it(&["--run", "--fold", "off", "--out", &whole]);
    run_it(&["--run", "--out", &path("auto"), "--json"]);
    // A folded run has one group per class of equivalent groups, so its group numbers differ.
    for key in ["makespan_ps", "ranks"] {
        assert_eq!(report(folded.as_ref())[key], report(whole.as_ref())[key]);
    }
    assert_eq!(report(folded.as_ref()), report(path("auto").as_ref()));
    run_it(&["--out", &traces]);
    let replay = ["replay", &traces, "--cluster", &file, "--backend", "ideal", "--out", &replayed];
    assert_eq!(run(&replay).unwrap() as i32, Exit::Ok as i32);
    for key in ["ranks", "compute"] {
        assert_eq!(report(replayed.as_ref())[key], report(whole.as_ref())[key]);
    }
    // Rows of each rank: kinds of operators, and their origins.
    let rows = report(whole.as_ref())["compute"].as_array().unwrap().clone();
    let of = |kind: &str| rows.iter().find(|row| row["kind"] == kind && row["rank"] == 7).unwrap()["origin"].clone();
    assert_eq!(["gemm", "attention", "optimizer"].map(of), ["transferred", "transferred", "transferred"]);
    assert!(report(whole.as_ref())["interval"]["high_s"].as_f64() > report(whole.as_ref())["makespan_s"].as_f64());
    run_it(&["--out", &path("few"), "--representatives"]);
    let written = |rank: u32| Path::new(&path(&format!("few.{rank}.et"))).exists();
    assert_eq!((0..8).filter(|rank| written(*rank)).collect::<Vec<_>>(), [0, 4]);
}

fn cluster(folder: &Path, devices: &str) -> String {
    let file = folder.join("cluster.toml").display().to_string();
    fs::write(&file, format!("{devices}[network]\n")).unwrap();
    file
}

fn warnings(report: &serde_json::Value) -> Vec<&str> {
    report["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap()).collect()
}

#[test]
fn a_job_that_does_not_fit_is_refused_unless_the_user_insists() {
    // Two stages of two layers on three kinds of devices, in file order: the second stage's second device lacks most.
    let dir = tempfile::tempdir().unwrap();
    let device = |name: &str, memory: &str| format!("[[device]]\nname = \"{name}\"\n{memory}\n");
    let devices = ["memory = \"8 MiB\"", "memory = \"8 MiB\"", "", "memory = \"300 KiB\""];
    let named: String = ["a", "b", "c", "d"].iter().zip(devices).map(|(name, memory)| device(name, memory)).collect();
    let file = cluster(dir.path(), &named);
    let out = dir.path().join("out").display().to_string();
    let job = ["--run", "--dp", "2", "--pp", "2", "--cluster", &file, "--backend", "ideal", "--out", &out];
    let message = refused(&words(&job));
    assert!(message.starts_with("exit 2\nerror: rank 3 needs "), "{message}");
    for part in ["weights ", "gradients ", "optimizer ", "device `d` has 300.00 KiB", "1 of 4 ranks", "hint: "] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(!dir.path().join("out").exists());
    assert_eq!(run(&words(&[&job[..], &["--ignore-memory"]].concat())).unwrap() as i32, Exit::Ok as i32);
    let report = report(dir.path().join("out").as_ref());
    assert!(warnings(&report)[0].starts_with("rank 3 needs ") && warnings(&report)[1].contains("h100-sxm"), "{report}");
}

#[test]
fn rates_that_nobody_has_given_are_said_to_be_assumed() {
    let dir = tempfile::tempdir().unwrap();
    let rates = "peak_flops = \"1 TFLOPS\"\nmemory_bandwidth = \"1 TB/s\"\n";
    let known = format!("[[device]]\nname = \"a\"\n{rates}");
    let half = format!("{known}[[device]]\nname = \"b\"\n");
    let all = format!("{known}count = 2\n");
    let named = "[[device]]\nname = \"a\"\nmodel = \"a100-sxm-80gb\"\ncount = 2\n".to_owned();
    let cases: [(&str, &[&str], &[&str]); 3] = [
        (
            &half,
            &[],
            &[
                "1 of 2 devices name neither a `model` nor their rates in the cluster file; each is taken to be h100-sxm-80gb",
            ],
        ),
        (&all, &[], &[]),
        (&named, &[], &[]),
    ];
    for (number, (devices, more, expected)) in cases.into_iter().enumerate() {
        let file = cluster(dir.path(), devices);
        let out = dir.path().join(number.to_string()).display().to_string();
        let job = ["--run", "--dp", "2", "--cluster", &file, "--backend", "ideal", "--out", &out];
        assert_eq!(run(&words(&[&job[..], more].concat())).unwrap() as i32, Exit::Ok as i32);
        let report = report(out.as_ref());
        let found = warnings(&report);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(found, start)| found.starts_with(start)), "{found:?}");
    }
}

#[test]
fn sequences_are_decoded_together() {
    // All 8 sequences are one batch, unless a smaller one is requested: the weights are then read twice. With two
    // stages, each has half of the batch.
    let dir = tempfile::tempdir().unwrap();
    let makespan = |more: &[&str]| {
        let out = dir.path().join(format!("of{}", more.join(""))).display().to_string();
        let ranks = if more.contains(&"--pp") { "2" } else { "1" };
        let job = ["--run", "--phase", "decode", "--ranks", ranks, "--backend", "ideal", "--out", &out];
        assert_eq!(run(&words(&[&job[..], more].concat())).unwrap() as i32, Exit::Ok as i32);
        report(out.as_ref())["makespan_ps"].as_u64().unwrap()
    };
    assert_eq!(makespan(&[]), makespan(&["--micro-batch", "8"]));
    assert!(makespan(&["--micro-batch", "1"]) > 3 * makespan(&[]));
    assert_eq!(makespan(&["--pp", "2"]), makespan(&["--pp", "2", "--micro-batch", "4"]));
}

#[test]
fn experts_get_what_a_file_says_folded_or_not_and_as_traces() {
    // The first two of four experts, which are on the first rank, get 3/8 of the tokens each: together 3/4, 1.5 times
    // the mean of two ranks.
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("load.csv"), "expert,share\n0,3\n1,3\n2,1\n3,1\n").unwrap();
    let rates = "peak_flops = \"989 TFLOPS\"\nmemory_bandwidth = \"1 TB/s\"";
    let file = cluster(dir.path(), &format!("[[device]]\nname = \"gpu\"\ncount = 4\n{rates}\n"));
    let experts = ["--experts", "4", "--top-k", "1", "--ep", "2", "--dp", "4", "--cluster", &file];
    let run_it = |more: &[&str]| {
        let backend = ["--backend", "ideal", "--set", "backend.connections=group"];
        let words = words(&[&experts[..], &backend[..2], more].concat());
        assert_eq!(run(&words).unwrap() as i32, Exit::Ok as i32);
    };
    let loads = [("uniform", None), (&*path("load.csv"), Some(1.5))];
    for (number, (load, ratio)) in loads.into_iter().enumerate() {
        let [folded, whole, traces, replayed] =
            ["folded", "whole", "traces", "replayed"].map(|name| path(&format!("{name}{number}")));
        run_it(&["--expert-load", load, "--run", "--out", &folded]);
        run_it(&["--expert-load", load, "--run", "--fold", "off", "--out", &whole]);
        run_it(&["--expert-load", load, "--out", &traces]);
        let replay = ["replay", &traces, "--cluster", &file, "--backend", "ideal", "--out", &replayed];
        assert_eq!(run(&replay).unwrap() as i32, Exit::Ok as i32);
        for key in ["makespan_ps", "ranks"] {
            assert_eq!(report(folded.as_ref())[key], report(whole.as_ref())[key]);
            assert_eq!(report(replayed.as_ref())[key], report(whole.as_ref())[key]);
        }
        assert_eq!(report(whole.as_ref())["job"]["expert_imbalance"].as_f64(), ratio);
    }
}

#[derive(clap::Parser)]
struct OnlyModel {
    #[command(flatten)]
    model: super::ModelArgs,
}

#[test]
fn networks_without_experts_are_as_wide_as_the_experts_that_a_token_sees() {
    let widths = |words: &str| {
        let words = ["model", "--experts", "256", "--top-k", "8", "--shared-experts", "1", "--dense-layers", "3"]
            .into_iter()
            .chain(words.split(' '));
        let (dense, experts) = OnlyModel::parse_from(words).model.networks();
        (dense, experts.unwrap().ffn)
    };
    // As in DeepSeek-V3: 18,432 = (8 + 1) x 2,048.
    assert_eq!(widths("--ffn 2048"), (18_432, 2048));
    assert_eq!(widths("--ffn 16384 --expert-ffn 2048"), (16_384, 2048));
    assert_eq!(widths("--ffn 2048 --dense-ffn 4096"), (4096, 2048));
    assert_eq!(widths("--ffn 16384 --expert-ffn 2048 --dense-ffn 4096"), (4096, 2048));
}

#[test]
fn what_cannot_be_generated_or_folded_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").display().to_string();
    let unlike = ["--run", "--fold", "on", "--dp", "2", "--ranks", "2", "--slowdown", "1,2", "--backend", "ideal"];
    let bad = dir.path().join("bad.csv").display().to_string();
    fs::write(&bad, "expert,share\n0,many\n").unwrap();
    let cases: [(&[&str], &str); 14] = [
        (&["--expert-load", "zipf"], "there are no experts to which tokens could be sent"),
        (&["--expert-load", &bad], "there are no experts to which tokens could be sent"),
        (&["--experts", "4", "--expert-load", &bad], "bad.csv: line 2: `many` is not a share"),
        (&["--experts", "4", "--expert-load", "zipf=a"], "--expert-load: `a` is not a number"),
        (&["--experts", "4", "--expert-load", "zipff"], "cannot read zipff"),
        (&["--cp", "4", "--cp-method", "ring", "--attention", "unfused"], "ring attention adds up"),
        (&["--tp", "3"], "heads (8) cannot be divided into 3 parts"),
        (&["--run", "--ranks", "2"], "the job has 1 rank, but the cluster has 2 devices"),
        (&["--schedule", "interleaved"], "the interleaved schedule needs virtual stages"),
        (&["--run", "--peak", "400 TFLOPS", "--ranks", "1"], "--peak is not supported"),
        (&["--memory-bandwidth", "1 TB/s"], "--memory-bandwidth is not supported"),
        (&["--host-time", "6"], "--host-time"),
        (&["--learned-positions", "64"], "learned positions require a GPT-like model"),
        (&unlike, "ranks are not equivalent: device"),
    ];
    for (case, expected) in cases {
        let message = refused(&words(&[case, &["--out", &out]].concat()));
        assert!(message.starts_with("exit 2\n") && message.contains(expected), "{message}");
        assert!(message.contains("hint"), "{message}");
    }
}
