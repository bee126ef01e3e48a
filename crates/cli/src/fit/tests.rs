//! Generated jobs are checked without an interpreter; `tests/python/test_memory.py` checks programs.

use super::*;
use crate::tests::{refused, run};

/// Options of Llama 3 8B on two devices of the given memory, with tensor parallelism.
fn job(memory: &[&str], more: &[&str]) -> (tempfile::TempDir, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let devices: String = (0..)
        .zip(memory)
        .map(|(rank, memory)| {
            let memory = if memory.is_empty() { String::new() } else { format!("memory = \"{memory}\"\n") };
            format!("[[device]]\nname = \"gpu.{rank}\"\n{memory}")
        })
        .collect();
    let file = dir.path().join("cluster.toml");
    std::fs::write(&file, format!("{devices}[network]\n")).unwrap();
    let job = ["workload", "llama", "--layers", "32", "--hidden", "4096", "--heads", "32", "--ffn", "14336"];
    let job = [&job[..], &["--phase", "decode", "--seq", "8192", "--batch", "1", "--tp", "2"], more].concat();
    let words = ["fit", "--cluster", &file.display().to_string()].into_iter().chain(job).map(str::to_owned).collect();
    (dir, words)
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// 8,030,261,248 parameters of 2 bytes are sharded over 2 ranks, except the norms, which each rank has: 7.48 GiB, and a
/// KV cache of 8,193 tokens, 0.5 GiB.
#[test]
fn a_job_fits_or_not_to_the_byte() {
    let (_dir, fits) = job(&["9 GiB", "9 GiB"], &[]);
    assert_eq!(run(&words(&fits)).unwrap() as i32, 0);
    let (_dir, exceeds) = job(&["9 GiB", "7 GiB"], &[]);
    assert_eq!(run(&words(&exceeds)).unwrap() as i32, 1);
    let (_dir, unknown) = job(&["9 GiB", ""], &[]);
    let message = refused(&words(&unknown));
    assert!(
        message.starts_with("exit 2\nerror: cannot say whether it fits: the memory of device `gpu.1`"),
        "{message}"
    );
    assert!(message.contains("hint: "), "{message}");
    let (_dir, three) = job(&["9 GiB", "9 GiB", "9 GiB"], &[]);
    assert!(refused(&words(&three)).contains("the job has 2 ranks, but the cluster has 3 devices"));
}

fn need(rank: u32, device: &str, gib: u64) -> Need {
    Need {
        rank,
        device: device.to_owned(),
        available: Some(8 << 30),
        kinds: Some(vec![("parameters".to_owned(), 2 << 30), ("kv_cache".to_owned(), gib << 30)]),
        line: Some("train.py:12".to_owned()),
        function: Some("Block.forward".to_owned()),
        backward: false,
    }
}

fn shown(needs: Vec<Need>) -> String {
    let fit = Fit { needs, stopped: None };
    in_words(&fit, &fit.verdict())
}

#[test]
fn equal_ranks_are_one_line_and_the_answer_says_by_how_much_and_why() {
    let needs = [(0, "gpu.0", 4), (1, "gpu.1", 4), (2, "gpu.2", 7), (3, "gpu.3", 4), (4, "laptop", 4)];
    let needs: Vec<Need> = needs.into_iter().map(|(rank, device, gib)| need(rank, device, gib)).collect();
    insta::assert_snapshot!(shown(needs[..2].to_vec()) + "----\n" + &shown(needs));
}

#[test]
fn the_answer_in_json_has_what_every_rank_needs() {
    let fit = Fit { needs: vec![need(0, "gpu", 7)], stopped: None };
    let json = in_json(&fit, &fit.verdict());
    assert_eq!(json["fits"], false);
    assert_eq!(json["ranks"][0]["peak_bytes"], 9_u64 << 30);
    assert_eq!(json["ranks"][0]["memory_bytes"], 8_u64 << 30);
    assert_eq!(json["ranks"][0]["kinds"]["kv_cache"], 7_u64 << 30);
    assert_eq!(json["ranks"][0]["line"], "train.py:12");
}

#[test]
fn a_program_that_is_not_there_is_refused() {
    let message = refused(&["fit", "--ranks", "2", "missing.py"]);
    assert!(message.starts_with("exit 2\nerror: script missing.py does not exist"), "{message}");
    assert!(refused(&["fit", "--ranks", "2"]).starts_with("exit 2\n"));
}
