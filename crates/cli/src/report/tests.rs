use crate::replay::tests::{issue, record, wait};
use crate::tests::{refused, run};
use serde_json::Value;
use std::fs;
use std::path::Path;
use uniference_session::results::RECORD;
use uniference_session::{Exit, HostError};
use uniference_sim::ids::{GroupId, RankId};
use uniference_sim::program::{
    Activity, Call, CallOp, Collective, CollectiveKind, DType, Mark, Origin, ReduceOp, Request, Shape, Work,
};
use uniference_sim::time::SimDuration;

const CLUSTER: &str = "backend = \"ideal\"\n[[device]]\nname = \"a\"\ncount = 2\npower = { idle = \"1 W\", busy = \"5 W\" }\n\
    [network]\nbandwidth = \"1 GB/s\"\nlatency = \"10 us\"\n";

/// A run folder of two ranks: rank 1 computes longer than rank 0 before both all-reduce a megabyte, inside a range.
fn folder() -> tempfile::TempDir {
    let all_reduce = Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::UInt8,
        reduce: Some(ReduceOp::Sum),
        root: None,
        shape: Shape::Even(1_000_000),
        kernel: None,
    };
    let program = |us| {
        let work = Work::new(SimDuration::from_us(us), Origin::Recorded);
        let join =
            Request::JoinGroup { ranks: (0..2).map(RankId).collect(), sequence: 0, settings: None, rendezvous: false };
        let call = Call { group: GroupId(0), op: CallOp::Collective(all_reduce.clone()) };
        let [begin, end] = [Mark::Begin("step".into()), Mark::End].map(|mark| issue(Activity::Mark(mark)));
        vec![join, begin, issue(Activity::Compute(work)), wait(1), issue(Activity::Call(call)), wait(2), end]
    };
    let dir = record(&[program(500), program(2_000)], CLUSTER);
    let path = |name: &str| dir.path().join(name).display().to_string();
    assert_eq!(run(&["replay", &path(""), "--out", &path("run")]).unwrap(), Exit::Ok);
    dir
}

fn page(dir: &Path, words: &[&str]) -> Result<String, HostError> {
    let out = dir.join("page.html").display().to_string();
    run(&[&["report", "--out", &out], words].concat())?;
    Ok(fs::read_to_string(out).unwrap())
}

/// The runs in the data of a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let mut data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    data["runs"].take()
}

#[test]
fn the_data_of_a_small_run() {
    let dir = folder();
    let run = dir.path().join("run").display().to_string();
    let text = page(dir.path(), &[&run]).unwrap();
    let all = data(&text);
    let shown = &all[0];
    assert_eq!((shown["name"].as_str(), &shown["missing"]), (Some("run"), &Value::Array(Vec::new())));
    // Rank 1 computes for 2 ms, then each rank of the ring sends half a megabyte twice: 2 (500 us + 10 us).
    assert_eq!(shown["report"]["makespan_ps"], 3_020_000_000_u64);
    assert_eq!(shown["seen"]["makespan_ps"], shown["report"]["makespan_ps"]);
    assert!(shown["what_if"]["changes"].as_array().is_some_and(|changes| changes.len() > 3));
    insta::assert_snapshot!(serde_json::to_string_pretty(&shown["seen"]).unwrap());
    assert_eq!(page(dir.path(), &[&run]).unwrap(), text, "the same runs give the same bytes");
}

#[test]
fn runs_of_which_less_is_known_stand_beside_others() {
    let dir = folder();
    let [run, summary] = ["run", "summary"].map(|name| dir.path().join(name));
    fs::create_dir(&summary).unwrap();
    fs::copy(run.join("report.json"), summary.join("report.json")).unwrap();
    let words = [&run, &summary].map(|path| path.display().to_string());
    let all = data(&page(dir.path(), &[&words[0], &words[1]]).unwrap());
    assert!(all[0]["seen"].is_object() && all[1]["seen"].is_null() && all[1]["what_if"].is_null());
    assert!(all[1]["missing"][0].as_str().unwrap().contains("no program record"));
    assert_eq!(all[0]["report"]["digest"], all[1]["report"]["digest"]);
}

/// The page warns about a record whose replay differs from the report in the same folder.
#[test]
fn a_record_of_another_run_is_noticed() {
    let dir = folder();
    let run = dir.path().join("run");
    let text = fs::read_to_string(run.join("report.json")).unwrap().replace("3020000000", "3020000001");
    fs::write(run.join("report.json"), text).unwrap();
    let all = data(&page(dir.path(), &[&run.display().to_string()]).unwrap());
    assert!(all[0]["missing"][0].as_str().unwrap().starts_with("Simulated again from its record, the run takes"));
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let dir = folder();
    let run = dir.path().join("run").display().to_string();
    let eight = [&*run; 8];
    let report = dir.path().join("run/report.json").display().to_string();
    let html = dir.path().join("page.html").display().to_string();
    let cases: [&[&str]; 5] = [
        &["report", &run],
        &["report", &run, "--out", &report],
        &[&["report", "--out", &html, &run][..], &eight[..]].concat(),
        &["report", "/nowhere", "--out", &html],
        &["report", &run, "--out", "/nowhere/page.html"],
    ];
    let shown = cases.map(|words| refused(words).replace(&dir.path().display().to_string(), "DIR"));
    insta::assert_snapshot!(shown.join("\n----\n"));
    fs::write(dir.path().join("run/report.json"), "{}").unwrap();
    let text = refused(&["report", &run, "--out", &html]);
    assert!(text.contains("run/report.json: this is not a report") && text.contains("\nhint: "), "{text}");
    assert!(!Path::new(&html).exists());
}

/// The record exists, but cannot be read.
#[test]
fn a_damaged_record_is_refused() {
    let dir = folder();
    let run = dir.path().join("run");
    fs::write(run.join(RECORD), "no record").unwrap();
    let error = page(dir.path(), &[&run.display().to_string()]).unwrap_err();
    assert!(error.to_string().contains("not a program record"), "{error}");
}
