use super::*;
use crate::database::{Database, Notice, Repeat, Row, Series};
use uniference_formats::operators::{Argument, Place, ScalarType, Tensor};
use uniference_sim::device::{FlatKind, Layout, Pass, Peaks, Resource, RowKind};
use uniference_sim::time::Bytes;

fn tensor(sizes: &[u64], dtype: DType) -> Argument {
    let mut strides: Vec<i64> =
        sizes.iter().rev().scan(1, |next, size| Some(std::mem::replace(next, *next * *size as i64))).collect();
    strides.reverse();
    let (dtype, place) = (ScalarType::from(dtype), Place::CUDA);
    Argument::Tensor(Tensor { dtype, place, written: false, sizes: sizes.to_vec(), strides })
}

/// A GEMM of `m x k` by `k x n`.
fn mm(m: u64, n: u64, k: u64, dtype: DType) -> Definition {
    Definition {
        name: "aten::mm".to_owned(),
        arguments: vec![tensor(&[m, k], dtype), tensor(&[k, n], dtype)],
        results: vec![tensor(&[m, n], dtype)],
    }
}

fn known(name: &str) -> Target {
    let device = devices::find(name).unwrap();
    Target { name: Some(device.name.clone()), rates: device.rates().unwrap() }
}

fn shipped(name: &str) -> Model {
    Model::new(known(name), Arc::new(Databases::standard(None, None).unwrap()))
}

fn series(device: &str, family: &str, variant: &str, dtype: &str) -> Series {
    let [device, family, variant, dtype] = [device, family, variant, dtype].map(str::to_owned);
    Series { device, software: "test".to_owned(), family, variant, dtype, source: "here".to_owned() }
}

fn own(rows: &[(Series, Vec<Row>)]) -> Arc<Databases> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.sqlite");
    let mut file = Database::create(&path).unwrap();
    for (series, rows) in rows {
        file.add(series, &Notice::own("here"), rows, Repeat::Replaces).unwrap();
    }
    drop(file);
    // An open file stays readable after its name is deleted.
    Arc::new(Databases::of(vec![Database::open(&path).unwrap()]).unwrap())
}

/// Rows of GEMMs at half of the peak: 2 m n k / 1 TFLOPS.
fn half_of_peak(sizes: &[u64]) -> Vec<Row> {
    let row = |m: u64| Row {
        operator: String::new(),
        dimensions: [1, m, 1024, 1024],
        flops: 2 * m * 1024 * 1024,
        bytes: 4 * (m * 2048 + 1024 * 1024),
        microseconds: 2.0 * m as f64 * 1024.0 * 1024.0 / 1e12 * 1e6,
        spread: None,
        repetitions: 3,
    };
    sizes.iter().map(|size| row(*size)).collect()
}

fn board() -> Target {
    Target { name: Some("board".to_owned()), rates: Rates::uniform(2e12, 1e12) }
}

/// Layers answer from the most to the least accurate, as rows are removed from the database.
#[test]
fn the_surest_layer_answers() {
    let definition = mm(512, 1024, 1024, DType::Float32);
    let exact =
        Row { operator: key(&definition), microseconds: 777.0, spread: Some(0.01), ..half_of_peak(&[512])[0].clone() };
    let place = series("board", "gemm", "nn", "float32");
    let others = half_of_peak(&[128, 256, 1024, 2048, 4096]);
    let with_exact: Vec<Row> = others.iter().cloned().chain([exact]).collect();
    let of = |databases: Arc<Databases>, target: Target| {
        Model::new(target, databases).estimate(&definition, Coming::default())
    };

    let estimate = of(own(&[(place.clone(), with_exact)]), board());
    assert_eq!(
        (estimate.origin, estimate.duration, estimate.spread),
        (Origin::Database, SimDuration::from_us(777), Some(0.01))
    );

    // Half of the peak of 2 TFLOPS: 2 * 512 * 1024 * 1024 / 1e12 s.
    let estimate = of(own(&[(place.clone(), others.clone())]), board());
    assert_eq!(estimate.origin, Origin::Interpolated);
    assert!((estimate.duration.as_secs_f64() / 1_073.7e-6 - 1.0).abs() < 0.05, "{}", estimate.duration);

    // The cluster file says what a device outside of the table can do.
    let faster = Target { rates: Rates::uniform(4e12, 2e12), ..board() };
    let table = series("h100-sxm-80gb", "gemm", "nn", "float32");
    let same = own(&[(place, others.clone())]);
    assert_eq!(of(same, faster).origin, Origin::Interpolated);
    let mut overridden = known("h100-sxm");
    overridden.rates.peaks = Peaks::all(1e12);
    let estimate = of(own(&[(table.clone(), others.clone())]), overridden);
    assert_eq!(estimate.origin, Origin::Transferred);

    let estimate = of(own(&[(table, others)]), known("a100-sxm4-80gb"));
    assert_eq!(estimate.origin, Origin::Transferred);
    let estimate = of(Arc::new(Databases::none()), known("a100-sxm4-80gb"));
    assert_eq!((estimate.origin, estimate.spread), (Origin::Roofline, Some(ROOFLINE)));
}

#[test]
fn what_nobody_knows_is_unknown_until_it_is_measured() {
    let svd = Definition {
        name: "aten::linalg_svd".to_owned(),
        arguments: vec![tensor(&[64, 64], DType::Float32)],
        results: vec![],
    };
    let model = Model::new(board(), Arc::new(Databases::none()));
    assert_eq!((model.estimate(&svd, Coming::default()), Model::kind(&svd)), (Estimate::UNKNOWN, "unknown"));
    let (family, variant, dtype) = describe(&svd).place(&svd).unwrap();
    let series = series("board", family, &variant, &dtype);
    let row = Row { operator: key(&svd), microseconds: 9.0, ..half_of_peak(&[1])[0].clone() };
    let model = Model::new(board(), own(&[(series, vec![row])]));
    assert_eq!(
        (model.estimate(&svd, Coming::default()).duration, model.estimate(&svd, Coming::default()).origin),
        (SimDuration::from_us(9), Origin::Database)
    );
}

#[test]
fn a_view_takes_nothing() {
    let view = Definition {
        name: "aten::view".to_owned(),
        arguments: vec![tensor(&[64, 64], DType::Float32)],
        results: vec![],
    };
    let estimate = shipped("h100-sxm").estimate(&view, Coming::default());
    assert_eq!((estimate.duration, Model::kind(&view)), (SimDuration::ZERO, "view"));
    assert_ne!(estimate.origin, Origin::None);
}

/// The host spends 2 us from `a` to `view` and 7 us from any operator to it; for an operator without a measurement, the
/// median of all executions counts, 3 us.
#[test]
fn the_host_takes_what_it_took_between_these_two_operators() {
    let named = |name: &str| Definition { name: name.to_owned(), arguments: vec![], results: vec![] };
    let host = |previous: &str, microseconds, repetitions| Row {
        operator: previous.to_owned(),
        dimensions: [1; 4],
        flops: 0,
        bytes: 0,
        microseconds,
        spread: None,
        repetitions,
    };
    let rows = [
        (series("board", "host", "aten::view", ""), vec![host("aten::a", 2.0, 5), host("", 7.0, 10)]),
        (series("board", "host_backward", "aten::view", ""), vec![host("aten::a", 4.0, 5), host("", 9.0, 10)]),
        (series("board", "host", "aten::t", ""), vec![host("", 3.0, 100)]),
    ];
    let model = Model::new(board(), own(&rows));
    assert!(model.knows_host() && !Model::new(board(), Arc::new(Databases::none())).knows_host());
    let during = |autograd: Autograd, name: &str, previous: Option<&str>| {
        let previous = previous.map(named);
        let coming = Coming { previous: previous.as_ref(), autograd };
        model.estimate(&named(name), coming).duration.as_ps() as f64 / 1e6
    };
    let microseconds = |name: &str, previous: Option<&str>| during(Autograd::Idle, name, previous);
    assert_eq!(microseconds("aten::view", Some("aten::a")), 2.0);
    assert_eq!(microseconds("aten::view", Some("aten::b")), 7.0);
    assert_eq!(microseconds("aten::view", None), 7.0);
    assert_eq!(microseconds("aten::transpose.int", Some("aten::a")), 3.0);
    // A backward pass has times of its own; a state without a measurement uses those of another state.
    assert_eq!(during(Autograd::Backward, "aten::view", Some("aten::a")), 4.0);
    assert_eq!(during(Autograd::Backward, "aten::view", Some("aten::b")), 9.0);
    assert_eq!(during(Autograd::Recording, "aten::view", Some("aten::a")), 7.0);
    assert_eq!(during(Autograd::Backward, "aten::t", None), 3.0);
}

/// The maximum of 2^28 elements of 2 bytes is found at no less than half of the memory's rate: 2^29 / 3.35e12 s =
/// 160 us, at most 320.
#[test]
fn one_long_row_is_reduced_by_many_multiprocessors() {
    let operator = |rows, columns| Operator {
        resource: Resource::Accelerator,
        family: Family::Rows { kind: RowKind::Reduction, pass: Pass::Forward, rows, columns },
        elements: Some(DType::BFloat16.into()),
        flops: 0,
        read: Bytes(2 * rows * columns),
        written: Bytes(2 * rows),
    };
    let model = shipped("h100-sxm");
    let of = |rows, columns| CostModel::estimate(&model, &operator(rows, columns)).unwrap().duration.as_secs_f64();
    let (one, many) = (of(1, 1 << 28), of(1 << 16, 1 << 12));
    assert!((160e-6..320e-6).contains(&one), "{one}");
    assert!((one / many - 1.0).abs() < 0.05, "{one} {many}");
}

/// An H100 multiplies 32-bit numbers at 66.9e12 operations per second, in tensor cores (TF32) at 494.5e12, and moves
/// 3.35e12 bytes per second.
#[test]
fn numbers_of_32_bits_are_multiplied_in_tensor_cores_if_asked() {
    let model = shipped("h100-sxm");
    let seconds = |m: u64, n: u64, k: u64, elements| {
        let family = Family::Gemm { batch: 1, m, n, k, layout: Layout::NN };
        let (read, written) = (Bytes(4 * (m * k + k * n)), Bytes(4 * m * n));
        let (resource, elements) = (Resource::Accelerator, Some(elements));
        let operator = Operator { resource, family, elements, flops: 2 * m * n * k, read, written };
        CostModel::estimate(&model, &operator).unwrap().duration.as_secs_f64()
    };
    let [full, cores, half] = [Elements::Of(DType::Float32), Elements::Tf32, Elements::Of(DType::BFloat16)]
        .map(|elements| seconds(8192, 8192, 8192, elements));
    let least = 2.0 * 8192_f64.powi(3) / 494.5e12;
    assert!((least..2.0 * least).contains(&cores), "{cores}");
    assert!(full > 5.0 * cores && cores > 1.5 * half, "{full} {cores} {half}");
    // If memory decides, each element has 4 bytes.
    let bytes = 4.0 * (8192.0 * 8192.0 + 2.0 * 8.0 * 8192.0);
    let streamed = seconds(8, 8192, 8192, Elements::Tf32);
    assert!((bytes / 3.35e12..2.0 * bytes / 3.35e12).contains(&streamed), "{streamed}");
    // A device without TF32 tensor cores ignores the setting, as PyTorch does.
    let mut asked = mm(64, 64, 64, DType::Float32);
    asked.arguments.push(Argument::Text("tf32".to_owned()));
    let duration = |model: &Model, definition: &Definition| model.estimate(definition, Coming::default()).duration;
    let [v100, h100, unknown] = [
        Model::new(known("v100-pcie"), Arc::new(Databases::none())),
        Model::new(known("h100-sxm"), Arc::new(Databases::none())),
        Model::new(Target { name: None, rates: known("v100-pcie").rates }, Arc::new(Databases::none())),
    ];
    let plain = [&v100, &h100, &unknown].map(|model| duration(model, &mm(64, 64, 64, DType::Float32)));
    assert_eq!((duration(&v100, &asked), v100.substituted()), (plain[0], vec![]));
    assert!(duration(&h100, &asked) < plain[1] && h100.substituted().is_empty());
    assert_eq!((duration(&unknown, &asked), unknown.substituted()), (plain[2], vec![("tf32", "float32")]));
}

/// Enough GEMMs to fill an H100, of which only single ones were measured: 64 of 512 x 512 x 512 in bfloat16 move 100
/// MB, which takes 30 us, and one GEMM with 64 x 512 rows moves a third less. A batch is no slower than the GEMMs in
/// sequence.
#[test]
fn many_products_at_once_fill_the_device_as_one_large_one_does() {
    let model = shipped("h100-sxm");
    let seconds = |batch: u64, m: u64| {
        let family = Family::Gemm { batch, m, n: 512, k: 512, layout: Layout::NN };
        let (read, written) = (Bytes(2 * batch * (m * 512 + 512 * 512)), Bytes(2 * batch * m * 512));
        let elements = Some(DType::BFloat16.into());
        let (resource, flops) = (Resource::Accelerator, 2 * batch * m * 512 * 512);
        let operator = Operator { resource, family, elements, flops, read, written };
        CostModel::estimate(&model, &operator).unwrap().duration.as_secs_f64()
    };
    let (many, large, single) = (seconds(64, 512), seconds(1, 64 * 512), seconds(1, 512));
    assert!((30e-6..60e-6).contains(&many), "{many}");
    assert!(many > large && many < 64.0 * single, "{many} {large} {single}");
}

#[test]
fn types_without_a_rate_are_named() {
    let peaks = Peaks::table([(Precision::Float32, 1e12), (Precision::BFloat16, 8e12)]).unwrap();
    let target = Target { name: None, rates: Rates { peaks, ..Rates::uniform(1.0, 1e12) } };
    let model = Model::new(target, Arc::new(Databases::none()));
    assert_eq!(model.substituted(), []);
    for dtype in [DType::Float64, DType::BFloat16, DType::Float16, DType::Float64] {
        model.estimate(&mm(64, 64, 64, dtype), Coming::default());
    }
    assert_eq!(model.substituted(), [("float64", "float32"), ("float16", "bfloat16")]);
}

/// Time for one token on a CPU is the time to read the weights: 4 x 4096 x 4096 B at 0.75 of 17.1 GB/s, of which the
/// arithmetic needs a tenth.
#[test]
fn a_product_of_one_row_streams_its_weights_through_a_processor() {
    let seconds = |model: &Model, rows| {
        model.estimate(&mm(rows, 4096, 4096, DType::Float32), Coming::default()).duration.as_secs_f64()
    };
    let weights = 4.0 * 4096.0 * 4096.0 / 17.1e9 / 0.75;
    let rates = known("raspberry-pi-5").rates;
    // A device of the cluster file with the same rates and no launch overhead needs the same time.
    for name in [Some("raspberry-pi-5".to_owned()), None] {
        let model = Model::new(Target { name, rates }, Arc::new(Databases::none()));
        for rows in [1, 2, 4] {
            let ratio = seconds(&model, rows) / weights;
            assert!((1.0..1.01).contains(&ratio), "{rows}: {ratio}");
        }
    }
}

/// A large GEMM in bfloat16 on an H100 lies within published measurements: 1.37 to 1.54 ms.
#[test]
fn a_large_product_takes_what_it_should_on_an_h100() {
    let estimate = shipped("h100-sxm").estimate(&mm(8192, 8192, 8192, DType::BFloat16), Coming::default());
    let milliseconds = estimate.duration.as_secs_f64() * 1e3;
    assert!((1.2..1.8).contains(&milliseconds), "{milliseconds} ms, {:?}", estimate.origin);
}

#[test]
fn the_layers_are_as_far_off_as_is_documented() {
    let errors = accuracy::errors(|| Databases::standard(None, None)).unwrap();
    let table = accuracy::table(&errors);
    let documentation = include_str!("../../../../docs/devices.md");
    assert!(documentation.contains(&table), "docs/devices.md must have this table:\n{table}");
    let gemm = &errors["gemm"];
    let median = |errors: &[f64]| surface::quantile(errors, 0.5);
    assert!(median(&gemm.interpolated) < 0.1 && median(&gemm.transferred) < median(&gemm.roofline));
}

/// Measured times are reproduced: interpolating on a lattice, and never letting time fall, must not cost accuracy.
#[test]
fn the_lattice_keeps_what_it_is_made_of() {
    let databases = Databases::standard(None, None).unwrap();
    let (index, series) = databases
        .series()
        .iter()
        .find(|(_, series)| series.device == "v100-pcie-32gb" && series.variant == "nt")
        .unwrap();
    let rows = databases.rows(*index, series).unwrap();
    let errors: Vec<f64> = rows
        .iter()
        .step_by(7)
        .map(|row| {
            let [batch, m, n, k] = row.dimensions;
            let family = Family::Gemm { batch, m, n, k, layout: Layout::NT };
            let (flops, read) = (row.flops, Bytes(row.bytes));
            let operator = Operator { family, flops, read, written: Bytes(0), ..operator(0, [1; 4]) };
            let estimate = V100.interpolated(&operator, Some("nt")).unwrap();
            (estimate.duration.as_secs_f64() / (row.microseconds * 1e-6) - 1.0).abs()
        })
        .collect();
    let median = surface::quantile(&errors, 0.5);
    assert!(median < 0.1, "{median}");
}

/// Decode attention of `sequences` sequences, with fewer KV heads than query heads.
fn generation(sequences: u64, [heads, key_heads]: [u64; 2], keys: u64) -> Operator {
    let (width, each) = (128, 2);
    let family =
        Family::Attention { pass: Pass::Forward, heads: sequences * heads, queries: 1, keys, width, causal: false };
    Operator {
        resource: Resource::Accelerator,
        family,
        elements: Some(DType::BFloat16.into()),
        flops: 4 * sequences * heads * keys * width,
        read: Bytes(each * sequences * width * (heads + 2 * key_heads * keys)),
        written: Bytes(each * sequences * width * heads),
    }
}

#[test]
fn attention_of_one_query_takes_as_long_as_reading_its_keys() {
    let model = shipped("h100-sxm");
    // Measurements of SGLang 0.5.14 in aiconfigurator-core 0.12.0, most of which are not shipped.
    let measured = [
        (1, [32, 8], 1024, 11.7),
        (8, [32, 8], 1024, 14.6),
        (64, [32, 8], 4096, 356.4),
        (64, [32, 4], 2048, 100.4),
        (64, [8, 1], 8192, 99.9),
        (16, [32, 32], 2048, 185.0),
    ];
    for (sequences, heads, keys, microseconds) in measured {
        let operator = generation(sequences, heads, keys);
        let estimate = model.part(&operator, Some("fwd"));
        let error = estimate.duration.as_secs_f64() * 1e6 / microseconds - 1.0;
        assert!(error.abs() < 0.3, "{sequences} x {heads:?} x {keys}: {error}");
        assert_ne!(estimate.origin, Origin::Transferred);
    }
}

/// H200 has no rows of FlashAttention 2.
#[test]
fn flash_attention_3_does_not_stand_in_for_others() {
    let model = shipped("h200-sxm");
    let operator = generation(16, [32, 8], 3000);
    let origin = |variant| model.part(&operator, Some(variant)).origin;
    assert_eq!(origin("fwd"), Origin::Interpolated);
    assert_eq!(origin("_scaled_dot_product_flash_attention"), Origin::Transferred);
}

/// Attention of 32 heads of 128, with as many queries as keys.
fn prefill(sequences: u64, tokens: u64, pass: Pass) -> Operator {
    let (heads, width) = (32 * sequences, 128);
    let family = Family::Attention { pass, heads, queries: tokens, keys: tokens, width, causal: false };
    let products = if pass == Pass::Forward { 4 } else { 10 };
    Operator {
        resource: Resource::Accelerator,
        family,
        elements: Some(DType::BFloat16.into()),
        flops: products * heads * tokens * tokens * width,
        read: Bytes(2 * 3 * heads * tokens * width),
        written: Bytes(2 * heads * tokens * width),
    }
}

/// Rates on an H100 that the paper on FlashAttention 3 prints above its bars, in TFLOPS.
#[test]
fn each_attention_kernel_has_its_own_rate() {
    let model = shipped("h100-sxm");
    let cudnn = "_scaled_dot_product_cudnn_attention";
    let flash = "_scaled_dot_product_flash_attention";
    let backward = "_scaled_dot_product_cudnn_attention_backward";
    for (variant, pass, rates) in [
        (cudnn, Pass::Forward, [(512, 497.0), (2048, 617.0), (16_384, 595.0)]),
        (flash, Pass::Forward, [(512, 309.0), (2048, 362.0), (16_384, 370.0)]),
        (backward, Pass::Backward, [(512, 305.0), (2048, 465.0), (16_384, 516.0)]),
    ] {
        for (tokens, published) in rates {
            let operator = prefill(16_384 / tokens, tokens, pass);
            let estimate = model.part(&operator, Some(variant));
            let tflops = operator.flops as f64 / estimate.duration.as_secs_f64() / 1e12;
            let error = libm::log(tflops / published);
            assert!(error.abs() < 0.15, "{variant} {tokens}: {tflops} of {published}");
            assert!(error.abs() < 1.96 * estimate.spread.unwrap(), "{variant} {tokens}: {estimate:?}");
            assert_eq!(estimate.origin, Origin::Interpolated, "{variant} {tokens}");
        }
    }
}

/// Kernels without rows: memory-efficient attention is half as fast as FlashAttention 2, and FlashMLA is unknown. Both
/// have the spread `s` of FlashAttention 2 and that of a transfer: `sqrt(s^2 + 0.4^2)`.
#[test]
fn flash_attention_2_stands_in_for_unmeasured_kernels() {
    let model = shipped("h100-sxm");
    let of = |variant| model.part(&prefill(8, 2048, Pass::Forward), Some(variant));
    let flash = of("_scaled_dot_product_flash_attention");
    for (variant, slowdown) in [("_scaled_dot_product_efficient_attention", 2.0), ("dense_decode_fwd", 1.0)] {
        let found = of(variant);
        let ratio = found.duration.as_secs_f64() / flash.duration.as_secs_f64();
        assert!((ratio - slowdown).abs() < 1e-6, "{variant}: {ratio}");
        assert_eq!(found.origin, Origin::Transferred, "{variant}");
        let expected = flash.spread.unwrap().hypot(TRANSFER);
        assert!((found.spread.unwrap() - expected).abs() < 1e-9, "{variant}: {found:?}");
    }
    assert_eq!(flash.origin, Origin::Interpolated);
}

/// PyTorch prefers cuDNN's attention on GPUs of compute capability 9 and 10, forward and backward. Decode, and GPUs of
/// other generations, run FlashAttention.
#[test]
fn generated_attention_runs_the_kernels_that_pytorch_prefers() {
    let [forward, backward] = [Pass::Forward, Pass::Backward].map(|pass| prefill(4, 4096, pass));
    let decode = generation(16, [32, 8], 3000);
    for (device, generation, prefers_cudnn) in
        [("a100-pcie-80gb", 8, false), ("h100-sxm", 9, true), ("gb200", 10, true), ("rtx-pro-6000", 12, false)]
    {
        assert_eq!(devices::find(device).unwrap().compute_capability().unwrap().0, generation);
        let model = shipped(device);
        for (operator, is_cudnn) in [(&forward, prefers_cudnn), (&backward, prefers_cudnn), (&decode, false)] {
            let [cudnn, flash] = ["cudnn", "flash"]
                .map(|library| model.part(operator, Some(&format!("_scaled_dot_product_{library}_attention"))));
            assert_ne!(cudnn.duration, flash.duration, "{device} {:?}", operator.family);
            let expected = if is_cudnn { cudnn } else { flash };
            assert_eq!(CostModel::estimate(&model, operator), Some(expected), "{device} {:?}", operator.family);
        }
    }
}

/// Names of operators with attention in them are not variants of attention: host time is kept per operator.
#[test]
fn only_attention_has_attention_kernels() {
    let [forward, backward] =
        ["aten::_flash_attention_forward", "aten::_flash_attention_backward"].map(|name| like::kernels("host", name));
    assert_ne!(forward, backward);
    assert!(!like::stands_apart("host", "aten::_efficient_attention_forward"));
}

/// Eight times the longest measured sequence takes 64 times as long, and its error is less known.
#[test]
fn far_from_all_rows_an_estimate_is_extrapolated() {
    let model = shipped("h100-sxm");
    let of = |tokens| model.part(&prefill(1, tokens, Pass::Forward), Some("_scaled_dot_product_cudnn_attention"));
    let (near, far, farthest) = (of(16_384), of(131_072), of(524_288));
    assert_eq!([near, far, farthest].map(|found| found.origin == Origin::Extrapolated), [false, true, true]);
    let ratio = far.duration.as_secs_f64() / near.duration.as_secs_f64();
    assert!((58.0..70.0).contains(&ratio), "{ratio}");
    assert!(near.spread < far.spread && far.spread < farthest.spread, "{near:?} {far:?} {farthest:?}");
}

/// Elementwise operators of an H100 reach 0.88 to 0.92 of its 3.35 TB/s. The model's bound for all operators is 0.9: 3.015
/// TB/s. Measured operators along rows are slower: a norm reaches 2.7 TB/s, a softmax 2.4 TB/s, a softmax of 128,256
/// columns lasts 2.4 ms.
#[test]
fn streams_reach_nine_tenths_of_the_memory() {
    const BOUND: f64 = 0.9 * 3.35;
    let model = shipped("h100-sxm");
    let half = |sizes: &[u64]| tensor(sizes, DType::BFloat16);
    let called = |name: &str, arguments: Vec<Argument>, results: Vec<Argument>| {
        let definition = Definition { name: name.to_owned(), arguments, results };
        model.estimate(&definition, Coming::default())
    };
    let large = || half(&[8192, 65_536]);
    let rate = |estimate: Estimate, tensors: u64| {
        (tensors * 2 * 8192 * 65_536) as f64 / estimate.duration.as_secs_f64() / 1e12
    };
    for (name, arguments, tensors) in [
        ("aten::add.Tensor", vec![large(), large()], 3),
        ("aten::mul.Scalar", vec![large()], 2),
        ("aten::clone", vec![large()], 2),
        ("aten::gelu", vec![large()], 2),
    ] {
        let found = rate(called(name, arguments, vec![large()]), tensors) / BOUND;
        assert!((0.95..1.0 + 1e-6).contains(&found), "{name}: {found} of the bound");
    }
    let square = |columns| half(&[8192, columns]);
    let seconds = |estimate: Estimate| estimate.duration.as_secs_f64();
    let norm = called(
        "aten::_fused_rms_norm",
        vec![square(8192), Argument::Ints(vec![8192]), half(&[8192])],
        vec![square(8192), half(&[8192, 1])],
    );
    let rate = 4.0 * 8192.0 * 8192.0 / seconds(norm) / 1e12;
    assert!((2.4..BOUND + 1e-6).contains(&rate), "{rate} TB/s");
    // The H100 has no rows of softmax.
    let is_near = |found: f64, measured: f64| (measured / 1.5..measured * 1.5).contains(&found);
    let softmax = |name: &str, rows: u64, columns: u64| {
        let (input, output) = (half(&[rows, columns]), half(&[rows, columns]));
        seconds(called(name, vec![input, Argument::Int(-1), Argument::Bool(false)], vec![output]))
    };
    let rate = 4.0 * 32_768.0 * 32_768.0 / softmax("aten::_softmax", 32_768, 32_768) / 1e12;
    assert!(is_near(rate, 2.4), "{rate} TB/s");
    let milliseconds = softmax("aten::_log_softmax", 8192, 128_256) * 1e3;
    assert!(is_near(milliseconds, 2.4), "{milliseconds} ms");
}

/// A dot product of 2 x 256 MiB lasts 178 us at 0.9 of 3.35 TB/s. GEMMs of one row by one column are read at a third of
/// 3.35 TB/s or more in 32 bits, at a quarter or more in 16 bits, and at no more than 0.9 of it.
#[test]
fn vectors_are_multiplied_as_fast_as_they_are_read() {
    let model = shipped("h100-sxm");
    let called = |name: &str, arguments: Vec<Argument>, results: Vec<Argument>| {
        let definition = Definition { name: name.to_owned(), arguments, results };
        model.estimate(&definition, Coming::default()).duration.as_secs_f64()
    };
    let vector = || tensor(&[64 << 20], DType::Float32);
    let seconds = called("aten::dot", vec![vector(), vector()], vec![tensor(&[], DType::Float32)]);
    assert!((178e-6..1.5 * 178e-6).contains(&seconds), "{seconds}");
    for (dtype, most) in [(DType::Float32, 3.0), (DType::BFloat16, 4.0)] {
        let batch = 1 << 18;
        let factors = vec![tensor(&[batch, 1, 128], dtype), tensor(&[batch, 128, 1], dtype)];
        let seconds = called("aten::bmm", factors, vec![tensor(&[batch, 1, 1], dtype)]);
        let bytes = (Elements::Of(dtype).size() * batch * 257) as f64;
        let slowdown = seconds * 3.35e12 / bytes;
        assert!((1.11..most).contains(&slowdown), "{dtype:?}: {slowdown}");
    }
}

/// GEMMs of 8192 in FP8 with single scales sustain 1,200 to 1,400 TFLOPS on an H100. They have no rows: 0.67 of 1,978
/// TFLOPS, with half a tile of 32 wasted along each dimension, and a launch of 2.85 us.
#[test]
fn products_of_8_bits_run_at_the_rate_that_power_allows() {
    let family = Family::Gemm { batch: 1, m: 8192, n: 8192, k: 8192, layout: Layout::NT };
    let (elements, flops) = (Some(DType::Float8E4M3.into()), 2 * 8192_u64.pow(3));
    let (read, written) = (Bytes(2 * 8192 * 8192), Bytes(2 * 8192 * 8192));
    let operator = Operator { resource: Resource::Accelerator, family, elements, flops, read, written };
    let estimate = shipped("h100-sxm").part(&operator, Some("nt"));
    let expected = 2.85e-6 + flops as f64 / (0.67 * 1978e12) * (1.0 + 32.0 / 8192.0_f64).powi(3);
    let found = estimate.duration.as_secs_f64();
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    assert!((1200.0..1400.0).contains(&(flops as f64 / found / 1e12)), "{found}");
    assert_eq!(estimate.origin, Origin::Roofline);
}

/// The shortest attention is several kernels, but the shortest GEMM shows that the times include no host overhead.
#[test]
fn a_long_shortest_time_beside_short_ones_is_a_kernels() {
    let attention = |sequences: u64| Row {
        operator: String::new(),
        dimensions: [sequences, 1, 64, 128],
        flops: 4 * sequences * 64 * 128,
        bytes: 4 * sequences * 128 * 65,
        microseconds: 15.0,
        spread: None,
        repetitions: 3,
    };
    let place = series("board", "attention", "fwd", "bfloat16");
    let rows: Vec<Row> = [1, 2, 4, 8, 16].map(attention).into();
    let operator = generation(3, [1, 1], 64);
    let of = |rows: &[(Series, Vec<Row>)]| {
        Model::new(board(), own(rows)).part(&operator, Some("fwd")).duration.as_secs_f64() * 1e6
    };
    let alone = of(&[(place.clone(), rows.clone())]);
    assert!((2.5..3.5).contains(&alone), "{alone} us");
    let short = Row { flops: 0, bytes: 4, microseconds: 4.0, ..half_of_peak(&[1])[0].clone() };
    let product = (series("board", "gemm", "nt", "bfloat16"), vec![short]);
    let beside = of(&[(place, rows), product]);
    assert!((13.5..16.5).contains(&beside), "{beside} us");
}

/// An operator of each family, of sizes that are powers of a number, with the bytes that its plainest member moves.
fn operator(family: usize, sizes: [u64; 4]) -> Operator {
    let [a, b, c, d] = sizes;
    let product = |x: &[u64]| x.iter().fold(1_u64, |product, size| product.saturating_mul(*size));
    let rows =
        |kind, pass| (Family::Rows { kind, pass, rows: a, columns: b }, 0, product(&[4, a, b]), product(&[4, a, b]));
    let flat = |kind| (Family::Flat { kind, elements: a }, 0, product(&[8, a]), product(&[4, a]));
    let square = |pass| {
        let family = Family::Attention { pass, heads: a, queries: b, keys: c, width: d, causal: false };
        (family, product(&[4, a, b, c, d]), product(&[2, a, b + 2 * c, d]), product(&[2, a, b, d]))
    };
    let convolution = |pass| {
        let family = Family::Convolution { pass, groups: 1, m: b, n: c, k: d };
        (family, product(&[2, b, c, d]), 4 * (b * d + c * d), product(&[4, b, c]))
    };
    let (family, flops, read, written) = match family {
        0..=3 => {
            let layout = [Layout::NN, Layout::NT, Layout::TN, Layout::TT][family];
            let family = Family::Gemm { batch: a, m: b, n: c, k: d, layout };
            (family, product(&[2, a, b, c, d]), 4 * a * (b * d + c * d), product(&[4, a, b, c]))
        }
        4 => square(Pass::Forward),
        5 => square(Pass::Backward),
        6 => convolution(Pass::Forward),
        7 => convolution(Pass::Weights),
        8 => rows(RowKind::Normalization, Pass::Forward),
        9 => rows(RowKind::Normalization, Pass::Backward),
        10 => rows(RowKind::Softmax, Pass::Forward),
        11 => rows(RowKind::Reduction, Pass::Forward),
        12 => rows(RowKind::Sort, Pass::Forward),
        13 => flat(FlatKind::Elementwise),
        14 => flat(FlatKind::Copy),
        15 => flat(FlatKind::Gather),
        16 => flat(FlatKind::Scatter),
        17 => flat(FlatKind::Random),
        _ => flat(FlatKind::Optimizer),
    };
    let elements = Some(DType::Float32.into());
    Operator { resource: Resource::Accelerator, family, elements, flops, read: Bytes(read), written: Bytes(written) }
}

const FAMILIES: usize = 19;

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(24))]

    /// Operators of each family, on a measured device, on one that is estimated from another, and on one with known
    /// rates only.
    #[test]
    fn time_does_not_fall_when_work_grows(
        exponents in proptest::array::uniform4(0.0_f64..11.0),
        growth in proptest::array::uniform4(0.0_f64..3.0),
    ) {
        let small = exponents.map(|exponent| exponent.exp2() as u64);
        let large = std::array::from_fn(|axis| (exponents[axis] + growth[axis]).exp2() as u64);
        let bare = Model::new(known("l40s"), Arc::new(Databases::none()));
        for model in [&*V100, &*L40S, &bare] {
            for family in 0..FAMILIES {
                let of = |sizes| CostModel::estimate(model, &operator(family, sizes)).unwrap();
                let (less, more) = (of(small), of(large));
                // Exact rows are as they were measured.
                if less.origin != Origin::Database && more.origin != Origin::Database {
                    proptest::prop_assert!(less.duration <= more.duration.scaled(1.000_001), "{family} {small:?} {large:?}: {less:?} {more:?}");
                }
            }
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(24))]

    /// The time at a lower arithmetic rate or bandwidth is no shorter, and at most in inverse proportion longer: for each
    /// family, on measured devices and on others.
    #[test]
    fn time_does_not_fall_when_a_rate_falls(
        exponents in proptest::array::uniform4(0.0_f64..13.0),
        of_peak in 0.1_f64..1.0,
        of_memory in 0.1_f64..1.0,
    ) {
        let sizes = exponents.map(|exponent| exponent.exp2() as u64);
        for model in [&*V100, &*L40S, &*H200] {
            let Rates { peaks, memory, launch } = model.base;
            let slower = Rates { peaks: peaks.scaled(of_peak), memory: memory * of_memory, launch };
            for family in 0..FAMILIES {
                let operator = operator(family, sizes);
                let found = CostModel::estimate(model, &operator).unwrap();
                let [before, after] =
                    [found, model.at_rates(&slower, &operator, found)].map(|found| found.duration.as_secs_f64());
                let least = of_peak.min(of_memory);
                // Durations are whole picoseconds.
                let at_most = |less: f64, more: f64| less <= more * 1.000_001 + 1e-12;
                proptest::prop_assert!(at_most(before, after), "{family} {sizes:?}: {before} {after}");
                proptest::prop_assert!(at_most(after * least, before), "{family} {sizes:?}: {before} {after}");
            }
        }
    }
}

/// An H200 that is capped to 0.7 and 0.5 of its arithmetic rates uses the rows and the neighbours of an H200.
#[test]
fn a_cap_scales_the_estimate() {
    let databases = Arc::new(Databases::standard(None, None).unwrap());
    let capped = |factor: f64| {
        let Target { name, rates } = known("h200-sxm");
        Model::new(Target { name, rates: Rates { peaks: rates.peaks.scaled(factor), ..rates } }, databases.clone())
    };
    let models = [1.0, 0.7, 0.5].map(capped);
    for sizes in [[1, 1, 4096, 4096], [64, 64, 512, 128], [1024, 2048, 16, 64]] {
        for family in 0..FAMILIES {
            let operator = operator(family, sizes);
            let [whole, less, half] = [0, 1, 2].map(|at| CostModel::estimate(&models[at], &operator).unwrap());
            assert!(whole.duration <= less.duration && less.duration <= half.duration, "{family} {sizes:?}");
            assert!(half.duration <= whole.duration.scaled(2.000_001), "{family} {sizes:?}");
        }
    }
}

static V100: std::sync::LazyLock<Model> = std::sync::LazyLock::new(|| shipped("v100-pcie"));
static L40S: std::sync::LazyLock<Model> = std::sync::LazyLock::new(|| shipped("l40s"));
static H200: std::sync::LazyLock<Model> = std::sync::LazyLock::new(|| shipped("h200-sxm"));

/// A Triton kernel on a device of 1 TFLOPS and 1 TB/s, at 80 % and 90 % of them: it is launched once, and its time is
/// the longer of memory traffic and all arithmetic.
#[test]
fn a_kernel_of_triton_takes_its_memory_or_its_arithmetic() {
    let launch = SimDuration::from_secs_f64(2e-6).unwrap();
    let target = Target { name: None, rates: Rates { launch, ..Rates::uniform(1e12, 1e12) } };
    let model = Model::new(target, Arc::new(Databases::default()));
    let takes = |flops: i64, operations: [i64; 2], read: i64| {
        let names = ";;flops_8,flops_16,flops_tf32,flops_32,operations,operations_64,bytes_read,bytes_written";
        let Argument::Tensor(all) = tensor(&[1 << 30], DType::Float32) else { unreachable!() };
        let definition = Definition {
            name: "triton::mine".to_owned(),
            arguments: vec![
                Argument::Text(names.replacen(';', "x;", 1)),
                Argument::Tensors(vec![Some(all)]),
                Argument::Tensors(vec![]),
                Argument::Ints(vec![0, flops, 0, 0, operations[0], operations[1], read, 0]),
            ],
            results: vec![],
        };
        model.operator(&definition).duration.as_secs_f64() * 1e6 - 2.0
    };
    let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
    close(takes(0, [0, 0], 900_000_000), 1000.0);
    close(takes(800_000_000, [0, 0], 600_000_000), 1000.0);
    close(takes(400_000_000, [100_000_000, 100_000_000], 600_000_000), 1000.0);
    close(takes(400_000_000, [100_000_000, 0], 600_000_000), 750.0);
    assert!(takes(0, [0, 0], 0).abs() < 1e-3);
}
