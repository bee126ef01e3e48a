use crate::tests::{refused, run};
use std::fs;
use std::path::Path;
use uniference_session::{Exit, HostError};

/// A sweep of small jobs over tensor parallelism and bandwidth, with further keys before its tables.
fn jobs(keys: &str, more: &str) -> String {
    format!(
        "{keys}\n[program]\nworkload = \"llama\"\narguments = [\"--layers=2\", \"--hidden=512\", \"--heads=8\"]\n\
         [arguments]\nffn = 1024\nvocab = 1024\nseq = 128\nbatch = 8\ntp = [1, 2, 3]\n\
         [options]\nranks = 2\n[cluster]\nnetwork.bandwidth = [\"1 Gbps\", \"10 Gbps\"]\n{more}"
    )
}

fn sweep(file: &Path, out: &Path, further: &[&str]) -> Result<Exit, HostError> {
    let (file, out) = (file.display().to_string(), out.display().to_string());
    run(&[&["sweep", &file, "--out", &out], further].concat())
}

/// A column of the results.
fn column(out: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(out.join("results.csv")).unwrap();
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let at = rows.headers().unwrap().iter().position(|header| header == name).unwrap_or_else(|| panic!("{text}"));
    rows.records().map(|row| row.unwrap()[at].to_owned()).collect()
}

#[test]
fn a_failed_trial_ends_no_sweep_and_what_is_done_is_not_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("jobs.toml"), dir.path().join("out"));
    // Two ranks are divisible by tp = 1 only with dp = 2, and by 3 not at all.
    fs::write(&file, jobs("", "[measures]\ntokens = \"makespan_s * tokens_per_s\"\n")).unwrap();
    assert_eq!(sweep(&file, &out, &[]).unwrap(), Exit::Ok);
    assert_eq!(column(&out, "tp"), ["1", "1", "2", "2", "3", "3"]);
    assert_eq!(column(&out, "status"), ["failed", "failed", "finished", "finished", "failed", "failed"]);
    assert!(column(&out, "error")[0].contains("the job has 1 rank, but the cluster has 2 devices"));
    // 8 sequences of 128 tokens
    let tokens: Vec<f64> = column(&out, "tokens")[2..4].iter().map(|tokens| tokens.parse().unwrap()).collect();
    assert!(tokens.iter().all(|tokens| (tokens - 1_024.0).abs() < 1e-9), "{tokens:?}");
    let makespans: Vec<f64> =
        column(&out, "makespan_s")[2..4].iter().map(|makespan| makespan.parse().unwrap()).collect();
    assert!(makespans[0] > makespans[1], "{makespans:?}");

    let bytes = |name: &str| fs::read(out.join(name)).unwrap();
    let files = ["results.csv", "results.parquet", "sweep.html"];
    let before = files.map(bytes);
    // A trial that ran again would create its folder again.
    fs::remove_dir_all(out.join("trials/2")).unwrap();
    assert_eq!(sweep(&file, &out, &["--jobs=1"]).unwrap(), Exit::Ok);
    assert!(files.map(bytes) == before && !out.join("trials/2").exists());
    // A sweep in another folder with all trials at once has the same results.
    let other = dir.path().join("other");
    sweep(&file, &other, &["--jobs=8"]).unwrap();
    assert!(fs::read(other.join("results.parquet")).unwrap() == before[1]);

    // A sweep is refused in the folder of another sweep.
    fs::write(&file, jobs("replays = \"never\"", "")).unwrap();
    let error = sweep(&file, &out, &[]).unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
    assert!(error.to_string().contains("the results of another sweep"), "{error}");
}

#[test]
fn a_sweep_of_which_nothing_finishes_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("jobs.toml"), dir.path().join("out"));
    fs::write(&file, jobs("where = \"tp != 2\"", "")).unwrap();
    assert_eq!(sweep(&file, &out, &[]).unwrap(), Exit::ProgramFailed);
    assert_eq!(column(&out, "status"), ["failed"; 4]);
}

#[test]
fn nothing_is_begun_in_a_folder_of_somebody_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.toml");
    fs::write(&file, jobs("", "")).unwrap();
    let error = sweep(&file, dir.path(), &[]).unwrap_err().to_string();
    assert!(error.contains("contains jobs.toml") && error.contains("--out"), "{error}");
}

#[test]
fn a_dry_run_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("jobs.toml"), dir.path().join("out"));
    fs::write(&file, jobs("", "")).unwrap();
    assert_eq!(sweep(&file, &out, &["--dry-run"]).unwrap(), Exit::Ok);
    assert!(!out.exists());
}

#[test]
fn mistakes_are_refused_at_their_place_before_anything_starts() {
    let program = "[program]\nscript = \"cluster.toml\"\n";
    let ranks = "[options]\nranks = [2, 4]\n";
    let cases = [
        // An invalid value of a parameter, an invalid fixed value, an unknown option and an unknown key.
        (
            format!("{program}{ranks}[cluster]\nnetwork.bandwidth = [\"1 Gbps\", \"10 Gpbs\"]\n"),
            ["\"Gpbs\" is not a unit of bandwidth", "cluster.toml:6:32", "the units are"],
        ),
        (
            format!("{program}{ranks}compute = \"modle\"\n"),
            ["invalid value 'modle' for '--compute", "cluster.toml:5:1", "hint: "],
        ),
        (
            format!("{program}{ranks}bandwith = [\"1 Gbps\", \"2 Gbps\"]\n"),
            ["`uniference run` has no option `bandwith`", "cluster.toml:5:13", "did you mean `bandwidth`?"],
        ),
        (
            format!("{program}[options]\nranks = [2, 0]\n"),
            ["`--ranks` must be at least 1", "cluster.toml:4:13", "hint: "],
        ),
        (
            format!("{program}{ranks}[cluster]\nnetwork.bandwith = [\"1 Gbps\", \"2 Gbps\"]\n"),
            ["unknown key `bandwith`", "cluster.toml:6:21", "did you mean `bandwidth`?"],
        ),
        (
            format!("{program}[arguments]\nprompt = [1, 2]\n"),
            ["no cluster given", "hint: use --cluster FILE", "--ranks N"],
        ),
        (
            format!("[program]\nscript = \"missing.py\"\n{ranks}"),
            ["script DIR/missing.py does not exist", "hint: ", "exit 2"],
        ),
        (
            format!("where = \"ranks > 9\"\n{program}{ranks}"),
            ["the sweep has no points", "hint: let `where` hold", "exit 2"],
        ),
        (
            jobs("", "").replace("tp = [1, 2, 3]", "tp = [1, 2]\nbatchs = 3"),
            ["unexpected argument '--batchs' found", "batchs = 3", "hint: "],
        ),
    ];
    for (text, parts) in cases {
        let message = refused(&["sweep", &text]);
        assert!(message.starts_with("exit 2\n"), "{text}: {message}");
        for part in parts {
            assert!(message.contains(part), "{part} is not in {message}");
        }
    }
    let measured = format!("{program}{ranks}compute = \"measured\"\n");
    let message = refused(&["sweep", &measured, "--jobs", "2"]);
    assert!(message.contains("compute is measured") && message.contains("hint: leave --jobs out"), "{message}");
}
