//! Sources of the compute of a replay: records with encoded operators.

use super::*;
use std::collections::BTreeMap;
use uniference_formats::operators::{
    Argument, Definition, Encoder, Level, Line, MemoryKind, Place, ScalarType, Tensor,
};
use uniference_formats::report::ComputeReport;
use uniference_sim::replay::RecordedStep;

/// A slice of a rank: line of the call that ends it, measured duration in microseconds, and operators.
struct Slice(&'static str, u64, Vec<u8>);

pub(super) const MODELLED: &str =
    "[[device]]\nname = \"a\"\npeak_flops = \"1 TFLOPS\"\nmemory_bandwidth = \"1 GB/s\"\n[network]\n";
const PLAIN: &str = "[[device]]\nname = \"a\"\n[network]\n";

fn tensor(sizes: [u64; 2]) -> Argument {
    let strides = vec![sizes[1] as i64, 1];
    let (dtype, place) = (ScalarType::from(DType::Float32), Place::CPU);
    Argument::Tensor(Tensor { dtype, place, written: false, sizes: sizes.to_vec(), strides })
}

fn definition(name: &str) -> Definition {
    let arguments = vec![tensor([64, 128]), tensor([128, 256])];
    Definition { name: name.to_owned(), arguments, results: vec![tensor([64, 256])] }
}

/// Encodes `times` executions of one operator.
fn operators(encoder: &mut Encoder, number: usize, times: u32) -> Vec<u8> {
    encoder.restart();
    for _ in 0..times {
        encoder.execution(number, Line { site: 1, backward: false }, &[1, 2, 3]);
    }
    encoder.take()
}

/// Slices with the given numbers of GEMMs.
fn products(times: &[u32]) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::default();
    encoder.definition(&definition("aten::mm"));
    encoder.site("model.py:5", "forward");
    let dictionary = encoder.take();
    let slices = times.iter().map(|times| operators(&mut encoder, 0, *times));
    slices.enumerate().map(|(at, slice)| if at == 0 { [&dictionary[..], &slice].concat() } else { slice }).collect()
}

/// A folder with a record of ranks with this compute, one line per slice.
fn captured(ranks: &[Vec<Slice>], toml: &str) -> tempfile::TempDir {
    recorded(ranks, toml, Manifest { compute: "measured".to_owned(), ..Manifest::default() })
}

/// A folder with a record of a run with this manifest.
fn recorded(ranks: &[Vec<Slice>], toml: &str, manifest: Manifest) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let cluster = ClusterFile::parse("test", toml, &[]).unwrap().resolve(&Choices::default()).unwrap().toml;
    let manifest = Manifest { cluster, ..manifest };
    let header = Header { world_size: ranks.len() as u32, manifest };
    let mut writer = RecordWriter::new(File::create(dir.path().join(RECORD)).unwrap(), &header);
    for (rank, slices) in (0..).zip(ranks) {
        let mut write = |step: &RecordedStep, line: &str| writer.step(RankId(rank), TaskId(0), step, line);
        for (at, Slice(line, us, operators)) in (0..).zip(slices) {
            let measured = SimDuration::from_us(*us);
            write(&RecordedStep::Operators { operators: operators.clone(), measured }, "");
            let site = Site(line.bytes().map(u32::from).sum());
            let activity = Activity::Compute(Work::new(measured, Origin::Measured));
            write(&Request::Issue { activity, queue: QueueId(0), after: Vec::new(), site }.into(), line);
            write(&wait(at).into(), "");
        }
        write(&Request::Exit(Outcome::Ok).into(), "");
    }
    writer.finish().unwrap();
    dir
}

pub(super) fn one_rank(times: &[u32], toml: &str) -> tempfile::TempDir {
    let slices = products(times).into_iter().map(|operators| Slice("a.py:3", 1_000, operators));
    captured(&[slices.collect()], toml)
}

fn report(dir: &tempfile::TempDir, options: &[&str]) -> Report {
    let (exit, report) = replayed(dir, options);
    assert_eq!(exit, Exit::Ok);
    report.unwrap()
}

fn refused(dir: &tempfile::TempDir, options: &[&str]) -> String {
    let path = |name: &str| dir.path().join(name).display().to_string();
    let error = run(&[&["replay", &path(""), "--out", &path("again")], options].concat()).unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
    error.to_string()
}

/// The makespan of one GEMM is the duration of its operator; n GEMMs last n times as long, and twice as long on a
/// device of half the speed.
#[test]
fn operators_are_costed_on_the_device_of_their_rank() {
    let model = ["--compute", "model"];
    let one = report(&one_rank(&[1], MODELLED), &model);
    // 2 * 64 * 128 * 256 operations at 10^12 per second, 4 (64 * 128 + 128 * 256 + 64 * 256) bytes at 10^9 per second:
    // at least the longer of both.
    assert!(one.makespan_ps >= 229_376_000, "{}", one.makespan_ps);
    let several = report(&one_rank(&[2, 0, 5], MODELLED), &model);
    assert_eq!(several.makespan_ps, 7 * one.makespan_ps);
    let [ComputeReport { rank: 0, origin, kind: Some(kind), seconds }] = &one.compute[..] else {
        panic!("{:?}", one.compute)
    };
    // No database has measurements of a device without a model.
    assert!(["transferred", "roofline"].contains(&&**origin), "{origin}");
    assert_eq!((&**kind, *seconds), ("gemm", one.makespan_s));
    assert!(one.interval.is_some_and(|found| found.low_s < one.makespan_s && one.makespan_s < found.high_s));
    assert_eq!((&*one.manifest.compute, one.manifest.models.len()), ("model", 2));
    let slower = report(&one_rank(&[1], &MODELLED.replace("[network]", "slowdown = 2.0\n[network]")), &model);
    assert_eq!(slower.makespan_ps, 2 * one.makespan_ps);
    assert_eq!(slower.compute[0].seconds, slower.makespan_s);
}

#[test]
fn a_costed_replay_is_itself_a_record_that_gives_the_same() {
    let dir = one_rank(&[3, 0, 4], PLAIN);
    fs::write(dir.path().join("cluster.toml"), MODELLED).unwrap();
    let cluster = dir.path().join("cluster.toml").display().to_string();
    let first = report(&dir, &["--cluster", &cluster]);
    assert_eq!(first.manifest.compute, "model");
    let again = dir.path().join("again").display().to_string();
    let out = dir.path().join("third").display().to_string();
    assert_eq!(run(&["replay", &again, "--out", &out]).unwrap(), Exit::Ok);
    let third = Report::from_json(&fs::read_to_string(Path::new(&out).join(REPORT)).unwrap()).unwrap();
    assert_eq!(third, first);
}

#[test]
fn a_replay_has_the_compute_of_the_record_unless_the_devices_are_others_with_rates() {
    let recorded = 2_000 * 1_000_000;
    let dir = one_rank(&[1, 1], MODELLED);
    let home = report(&dir, &[]);
    assert_eq!((home.makespan_ps, &*home.manifest.compute), (recorded, "measured"));
    assert_eq!(home.compute, [ComputeReport { rank: 0, origin: "measured".into(), kind: None, seconds: 2e-3 }]);
    let changed = ["--set", "device.a.peak_flops=2 TFLOPS", "--set", "device.a.memory_bandwidth=100 GB/s"];
    let faster = report(&dir, &changed);
    assert_eq!(faster.manifest.compute, "model");
    assert!(faster.makespan_ps < recorded);
    let measured = report(&dir, &[&changed[..], &["--compute", "measured"]].concat());
    assert_eq!(measured.makespan_ps, recorded);
    let none = report(&dir, &["--compute", "none"]);
    assert_eq!((none.makespan_ps, &*none.manifest.compute, none.compute.len()), (0, "none", 0));
    // The same devices on another network.
    assert_eq!(report(&dir, &["--set", "network.latency=1 ms"]).manifest.compute, "measured");
    // On another cluster without rates, compute has its recorded duration.
    assert_eq!(report(&dir, &["--ranks", "1"]).makespan_ps, recorded);
}

#[test]
fn a_replay_at_home_with_other_databases_says_so() {
    let slices = || products(&[3]).into_iter().map(|operators| Slice("a.py:3", 1_000, operators)).collect();
    let replayed = |models: &BTreeMap<String, String>| {
        let manifest = Manifest { compute: "model".to_owned(), models: models.clone(), ..Manifest::default() };
        report(&recorded(&[slices()], MODELLED, manifest), &[])
    };
    let told = |report: &Report| report.warnings.iter().any(|warning| warning.contains("costed with other databases"));
    let mut models = replayed(&BTreeMap::new()).manifest.models;
    assert!(!told(&replayed(&models)));
    models.insert("databases".to_owned(), "other".to_owned());
    let outdated = replayed(&models);
    assert!(told(&outdated));
    assert_ne!(outdated.manifest.models, models);
}

#[test]
fn each_device_of_a_mixed_cluster_has_its_own_default() {
    let slices = || products(&[1]).into_iter().map(|operators| Slice("a.py:3", 1_000, operators)).collect();
    let mixed = format!("{PLAIN}bandwidth = \"1 Gbps\"\n").replace("[network]", "[[device]]\nname = \"b\"\n[network]");
    let dir = captured(&[slices(), slices()], &mixed);
    let rates = "peak_flops = \"1 TFLOPS\"\nmemory_bandwidth = \"1 GB/s\"\n";
    let cluster = dir.path().join("cluster.toml");
    fs::write(&cluster, mixed.replace("name = \"b\"\n", &format!("name = \"b\"\n{rates}"))).unwrap();
    let found = report(&dir, &["--cluster", &cluster.display().to_string()]);
    assert_eq!(found.manifest.compute, "measured, model");
    let origins: Vec<(u32, bool)> = found.compute.iter().map(|row| (row.rank, row.origin == "measured")).collect();
    assert_eq!(origins, [(0, true), (1, false)]);
}

#[test]
fn what_cannot_be_costed_is_refused_with_a_hint() {
    let text = refused(&one_rank(&[1], PLAIN), &["--compute", "model"]);
    assert!(text.contains("device `a` names neither a `model` nor its rates\nhint: add model = "), "{text}");
    let without = captured(&[vec![Slice("a.py:3", 1_000, Vec::new())]], MODELLED);
    let text = refused(&without, &["--compute", "model"]);
    assert!(text.contains("has no operators\nhint: run the program again"), "{text}");
    let text = refused(&without, &["--compute", "none", "--device-db", "here.sqlite"]);
    assert!(text.contains("--device-db here.sqlite has no effect") && text.contains("\nhint: "), "{text}");
    let text = refused(&one_rank(&[1], MODELLED), &["--compute", "model", "--device-db", "/nowhere/here.sqlite"]);
    assert!(text.contains("/nowhere/here.sqlite") && text.contains("hint: "), "{text}");
    let nothing = without.path().join("nothing").display().to_string();
    let text = refused(&without, &["--compute", &format!("from={nothing}")]);
    assert!(text.contains("cannot read") && text.contains("\nhint: "), "{text}");
    let modelled = one_rank(&[1], PLAIN);
    let cluster = modelled.path().join("cluster.toml");
    fs::write(&cluster, MODELLED).unwrap();
    report(&modelled, &["--cluster", &cluster.display().to_string(), "--compute", "none"]);
    let again = modelled.path().join("again").display().to_string();
    let error = run(&["replay", &again, "--out", &format!("{again}-2"), "--compute", "measured"]).unwrap_err();
    assert!(error.to_string().contains("was not measured (--compute none)\nhint: "), "{error}");
}

#[test]
fn operators_that_cannot_be_read_are_an_error_only_where_the_figures_depend_on_them() {
    let dir = captured(&[vec![Slice("a.py:3", 1_000, vec![0xff])]], MODELLED);
    let text = refused(&dir, &["--compute", "model"]);
    assert!(text.contains("the operators of rank 0 cannot be read") && text.contains("\nhint: "), "{text}");
    let home = report(&dir, &[]);
    assert_eq!(home.makespan_ps, 1_000_000_000);
    assert!(
        home.warnings.iter().any(|text| text.contains("the operators of rank 0 cannot be read")),
        "{:?}",
        home.warnings
    );
}

/// Lines a, b, a, b, b lasted 1, 2, 3, 4, 5 ms in the earlier run. This run has a, a, a, b, c of 100 ms each: 1 + 3 +
/// 100 + 2 + 100.
#[test]
fn slices_take_as_long_as_those_of_an_earlier_run_at_the_same_line() {
    let slices =
        |lines: &[(&'static str, u64)]| lines.iter().map(|(line, ms)| Slice(line, 1_000 * ms, Vec::new())).collect();
    let earlier =
        captured(&[slices(&[("a.py:1", 1), ("b.py:1", 2), ("a.py:1", 3), ("b.py:1", 4), ("b.py:1", 5)])], PLAIN);
    let this = captured(
        &[slices(&[("a.py:1", 100), ("a.py:1", 100), ("a.py:1", 100), ("b.py:1", 100), ("c.py:1", 100)])],
        PLAIN,
    );
    let from = format!("from={}", earlier.path().display());
    let found = report(&this, &["--compute", &from]);
    assert_eq!(found.makespan_ps, 206 * 1_000_000_000);
    assert_eq!(found.manifest.compute, from);
    let said = found.warnings.iter().find(|text| text.contains("no counterpart")).expect("two slices have none");
    assert!(said.starts_with("2 slices") && said.contains("a.py:1 (1), c.py:1 (1)"), "{said}");
    // The run has no warning about itself.
    let itself = report(&this, &["--compute", &format!("from={}", this.path().display())]);
    assert_eq!(itself.makespan_ps, 500 * 1_000_000_000);
    assert!(!itself.warnings.iter().any(|text| text.contains("counterpart")), "{:?}", itself.warnings);
}

#[test]
fn what_nobody_knows_and_what_was_answered_is_said_with_lines() {
    let mut encoder = Encoder::default();
    encoder.definition(&definition("mine::secret"));
    encoder.site("model.py:5", "forward");
    let dictionary = encoder.take();
    let mut slice = operators(&mut encoder, 0, 3);
    encoder.answered(Line { site: 1, backward: false }, "aten::_local_scalar_dense");
    slice.extend(encoder.take());
    let dir = captured(&[vec![Slice("a.py:3", 1_000, [dictionary, slice].concat())]], MODELLED);
    let Report { warnings, compute, .. } = report(&dir, &["--compute", "model"]);
    let has = |text: &str| warnings.iter().any(|warning| warning.contains(text));
    assert!(has("counts as 0 s: mine::secret (3 times, first at model.py:5)"), "{warnings:?}");
    assert!(has("model.py:5 (aten::_local_scalar_dense, 1 times)"), "{warnings:?}");
    assert_eq!((&*compute[0].origin, compute[0].seconds), ("unknown", 0.0));
}

/// An operator of unknown cost lasts at least as long as its tensors' bytes need at the memory's rate; as the only
/// operator, it is all of the compute. No database has measurements of a device without a model, and none has FP32
/// GEMMs of an A40.
#[test]
fn the_headline_says_what_is_unknown_and_what_is_transferred() {
    let headline = |name: &str, toml: &str| {
        let mut encoder = Encoder::default();
        encoder.definition(&definition(name));
        encoder.site("model.py:5", "forward");
        let dictionary = encoder.take();
        let slice = [&dictionary[..], &operators(&mut encoder, 0, 3)].concat();
        report(&captured(&[vec![Slice("a.py:3", 1_000, slice)]], toml), &["--compute", "model"]).headline
    };
    let unknown = headline("mine::secret", MODELLED);
    assert_eq!(unknown.as_deref(), Some("at least 100 % of the compute is of unknown cost and counts as 0 s"));
    let transferred = "100 % of the compute is transferred from measurements of other devices or operators";
    assert_eq!(headline("aten::mm", MODELLED).as_deref(), Some(transferred));
    let gpu = PLAIN.replace("name = \"a\"\n", "name = \"a\"\nmodel = \"a40\"\n");
    insta::assert_snapshot!(headline("aten::mm", &gpu).unwrap(), @"captured on a CPU, costed for a GPU; 100 % of the compute is transferred from measurements of other devices or operators");
}

#[test]
fn what_was_captured_on_a_cpu_says_so_where_it_is_costed_for_a_gpu() {
    let mut encoder = Encoder::default();
    let names = ["aten::_scaled_dot_product_flash_attention_for_cpu", "aten::addcdiv_"];
    names.iter().for_each(|name| encoder.definition(&definition(name)));
    encoder.site("model.py:5", "forward");
    let dictionary = encoder.take();
    let ran = [operators(&mut encoder, 0, 1), operators(&mut encoder, 1, 1)].concat();
    let slices = || vec![Slice("a.py:3", 1_000, [&dictionary[..], &ran].concat())];
    let gpu = PLAIN.replace("name = \"a\"\n", "name = \"a\"\nmodel = \"h100-sxm\"\n");
    let found = report(&captured(&[slices()], &gpu), &["--compute", "model"]);
    let headline = found.headline.as_deref().unwrap();
    assert!(headline.starts_with("captured on a CPU, costed for a GPU"), "{headline}");
    assert!(headline.contains(names[0]) && headline.contains("an optimizer without foreach"), "{headline}");
    let shown = uniference_formats::table::render(&found);
    assert!(shown.contains("captured on a CPU, costed for a GPU"), "{shown}");
    let processor = report(&captured(&[slices()], MODELLED), &["--compute", "model"]).headline;
    assert!(!processor.unwrap_or_default().contains("captured on a CPU"));
}

/// A sum that is written to a parameter's memory.
#[test]
fn an_update_of_one_parameter_at_a_time_is_told_from_other_sums() {
    let written = |of: &Argument| match of {
        Argument::Tensor(tensor) => Argument::Tensor(Tensor { written: true, ..tensor.clone() }),
        other => other.clone(),
    };
    let arguments = vec![written(&tensor([4, 4])), tensor([4, 4])];
    let sum = Definition { name: "aten::add_.Tensor".to_owned(), arguments, results: vec![tensor([4, 4])] };
    let gpu = PLAIN.replace("name = \"a\"\n", "name = \"a\"\nmodel = \"h100-sxm\"\n");
    for is_parameter in [false, true] {
        let mut encoder = Encoder::default();
        encoder.definition(&sum);
        encoder.restart();
        encoder.allocated(1, 64);
        if is_parameter {
            encoder.kind(1, MemoryKind::Parameter);
        }
        encoder.execution(0, Line::default(), &[1, 2, 1]);
        let dir = captured(&[vec![Slice("a.py:3", 1_000, encoder.take())]], &gpu);
        let headline = report(&dir, &["--compute", "model"]).headline.unwrap();
        assert_eq!(headline.contains("an optimizer without foreach"), is_parameter, "{headline}");
    }
}

/// The allocator of a GPU with 1,000 B has reserved 990 B.
#[test]
fn memory_is_not_tight_while_the_allocator_can_free_some() {
    let toml = PLAIN.replace("name = \"a\"\n", "name = \"a\"\nmemory = \"1000 B\"\n");
    let is_tight = |allocated| {
        let mut encoder = Encoder::default();
        encoder.definition(&definition("aten::mm"));
        encoder.restart();
        encoder.level(Level::Reserved, 990);
        encoder.allocated_on_gpu(1, allocated);
        encoder.execution(0, Line::default(), &[1, 2, 3]);
        let dir = captured(&[vec![Slice("a.py:3", 1_000, encoder.take())]], &toml);
        report(&dir, &[]).warnings.iter().any(|text| text.starts_with("memory is tight"))
    };
    assert_eq!([400, 985].map(is_tight), [false, true]);
}

#[test]
fn traces_have_no_operators() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("traces").display().to_string();
    let error = run(&["replay", &prefix, "--ranks", "2", "--compute", "model"]).unwrap_err();
    assert!(error.to_string().contains("--compute and --device-db have no effect on execution traces"), "{error}");
}
