//! `uniference explain` and `uniference whatif`: refused arguments, and that a what-if equals the replay on the changed
//! cluster.

use super::*;
use crate::tests::refused;
use uniference_session::cluster::Overrides;
use uniference_session::whatif::{Changes, compare, table};
use uniference_session::{Ended, Replayed};
use uniference_sim::program::ReduceOp;
use uniference_studies::whatif::WhatIf;

const BOARDS: &str = "[[device]]\nname = \"a\"\ncount = 2\n[[device]]\nname = \"old\"\nslowdown = 4\n\
    [network]\nbandwidth = \"1 Gbps\"\nlatency = \"1 ms\"\n";

/// Three ranks that compute for 2 ms and all-reduce 100 kB, five times.
fn steps() -> tempfile::TempDir {
    let work = || issue(Activity::Compute(Work::new(SimDuration::from_us(2_000), Origin::Recorded)));
    let (kind, dtype, shape) = (CollectiveKind::AllReduce, DType::UInt8, Shape::Even(100_000));
    let reduce = Collective { kind, dtype, reduce: Some(ReduceOp::Sum), root: None, shape, kernel: None };
    let call = || issue(Activity::Call(Call { group: GroupId(0), op: CallOp::Collective(reduce.clone()) }));
    let mut program = vec![Request::JoinGroup {
        ranks: (0..3).map(RankId).collect(),
        sequence: 0,
        settings: None,
        rendezvous: false,
    }];
    for step in 0..5 {
        program.extend([work(), wait(2 * step), call(), wait(2 * step + 1)]);
    }
    record(&[program.clone(), program.clone(), program], BOARDS)
}

fn replayed_run(dir: &tempfile::TempDir) -> Replayed {
    Replayed::Record(Replay {
        run: dir.path().to_owned(),
        cluster: Default::default(),
        compute: Default::default(),
        arrangement: None,
        seed: None,
        repeat: 1,
        command: Vec::new(),
        output: Default::default(),
    })
}

fn finished(tried: Ended<WhatIf>) -> WhatIf {
    match tried {
        Ended::Finished(results) => results,
        Ended::Stopped(stop) => panic!("{}", stop.message),
    }
}

#[test]
fn a_what_if_is_the_replay_on_the_changed_cluster() {
    let dir = steps();
    let cases = [
        ("--set", "network.latency=0"),
        ("--set", "device.old.slowdown=/2"),
        ("--free", "all_reduce"),
        ("--algorithm", "all_reduce=ring"),
    ];
    for (option, value) in cases {
        let text = vec![value.to_owned()];
        let cluster = match option {
            "--set" => Overrides { set: text, ..Overrides::default() },
            "--free" => Overrides { free: text, ..Overrides::default() },
            _ => Overrides { algorithms: text, ..Overrides::default() },
        };
        let results = finished(compare(&replayed_run(&dir), &Changes { cluster, ..Changes::default() }).unwrap());
        let report = replayed(&dir, &[option, value]).1.unwrap();
        let [outcome] = &results.changes[..] else { panic!("{results:?}") };
        assert_eq!((&outcome.digest, outcome.makespan_s), (&report.digest, report.makespan_s), "{option} {value}");
        let sum: f64 = outcome.kinds.iter().map(|kind| kind.after_s).sum();
        assert!((sum - outcome.makespan_s).abs() < 1e-9);
    }
}

#[test]
fn the_table_is_sorted_and_each_of_its_rows_is_a_what_if() {
    let dir = steps();
    let results = finished(table(&replayed_run(&dir)).unwrap());
    assert!(results.changes.is_sorted_by(|a, b| a.gain_s >= b.gain_s));
    for row in results.changes.iter().filter(|row| row.options.len() == 2) {
        let [option, value] = &row.options[..] else { unreachable!("it has two words") };
        assert_eq!(replayed(&dir, &[option, value]).1.unwrap().digest, row.digest, "{option} {value}");
    }
    let names = results.changes.iter().map(|row| row.options.join(" "));
    assert!(names.clone().any(|name| name == "--set device.old.slowdown=/2"), "{:?}", names.collect::<Vec<_>>());
    // The result does not depend on the number of threads.
    let again = finished(table(&replayed_run(&dir)).unwrap());
    assert_eq!(results.to_json(), again.to_json());
}

#[test]
fn a_line_takes_another_time() {
    let dir = steps();
    let changes =
        |factor: &str| Changes { lines: vec![format!("a.py:3={factor}").parse().unwrap()], ..Changes::default() };
    let makespan = |factor| finished(compare(&replayed_run(&dir), &changes(factor)).unwrap()).changes[0].makespan_s;
    // The old board computes for 8 ms before each step.
    let difference = makespan("1") - makespan("0.5");
    assert!((difference - 5.0 * 0.004).abs() < 1e-9, "{difference}");
}

#[test]
fn compute_that_comes_from_elsewhere_is_said() {
    let dir = compute::one_rank(&[1, 1], compute::MODELLED);
    let with = |set: &str, source| {
        let Replayed::Record(mut run) = replayed_run(&dir) else { unreachable!("it is a record") };
        run.compute.source = source;
        let cluster = Overrides { set: vec![set.to_owned()], ..Overrides::default() };
        finished(compare(&Replayed::Record(run), &Changes { cluster, ..Changes::default() }).unwrap())
    };
    let costed = |results: WhatIf| results.warnings.iter().any(|text| text.contains("costed for other devices"));
    assert!(costed(with("device.a.peak_flops=*2", None)));
    assert!(!costed(with("device.a.peak_flops=*2", Some(uniference_session::Compute::Model))));
    let slower = with("device.a.slowdown=*2", None);
    assert_eq!((slower.makespan_s, slower.changes[0].makespan_s), (0.002, 0.004));
    assert!(!costed(slower));
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let dir = steps();
    let source = dir.path().display().to_string();
    let cases: [&[&str]; 11] = [
        &["explain", "/nowhere"],
        &["explain", &source, "--path"],
        &["explain", "job", "--fidelity", "astra", "--astra-system", "s", "--astra-network", "n"],
        &["whatif", "job", "--fidelity", "astra", "--astra-system", "s", "--astra-network", "n"],
        &["whatif", &source, "--free", "all_redcue"],
        &["whatif", &source, "--set", "device.old.slowdwon=/2"],
        &["whatif", &source, "--set", "device.old.cores=*2"],
        &["whatif", &source, "--line", "a.py=2"],
        &["whatif", &source, "--line", "b.py:3=2"],
        &["whatif", &source, "--out", "again"],
        &["whatif", &source, "--algorithm", "all_reduce=rign"],
    ];
    let shown: Vec<String> = cases.iter().map(|words| refused(words).replace(&source, "RUN")).collect();
    insta::assert_snapshot!(shown.join("\n----\n"));
}
