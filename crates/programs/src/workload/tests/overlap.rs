//! Tests of tensor-parallel communication that overlaps GEMMs, in closed form.

use super::*;

/// Two tensor-parallel ranks, 2 layers, and the given number of parts.
fn overlapped(parts: u64) -> Workload {
    let model = Model { layers: 2, hidden: 512, ffn: 1280, ..small().model };
    let implementation = Implementation { tensor_parts: parts, ..Implementation::default() };
    let spec = Spec { model, implementation, batch: 4, micro_batch: 1, ..laid_out(small(), [2, 1, 1, 1, 1]) };
    Workload::new(spec).unwrap()
}

#[rstest]
// If a communication of duration a is shorter than its GEMM of duration b, only a part of a/n overlaps no compute: each
// pair hides a (1 - 1/n). With a > b, the duration is a/n + (n-1)/n a + b/n: each pair hides b (1 - 1/n).
#[case::short(1e12, 4)]
#[case::short_in_more_parts(1e12, 8)]
#[case::long(1e7, 4)]
fn all_but_a_part_is_hidden(#[case] rate: f64, #[case] parts: u64) {
    let makespan = |workload: &Workload| {
        let link = LinkSpec::new(Rate::new(rate).unwrap(), SimDuration::ZERO);
        let ranks = simulate(workload, &cluster(2, link, Preset::FullyConnected), &Symmetry::default()).unwrap();
        ranks.iter().map(|rank| rank.finish.unwrap()).max().unwrap().as_secs_f64()
    };
    let (whole, cut) = (overlapped(1), overlapped(parts));
    let Spec { micro_batch, sequence, ref model, .. } = *whole.spec();
    // Each of two ranks sends half of the tokens.
    let communication = (ELEMENT * micro_batch * sequence * model.hidden / 2) as f64 / rate;
    let trace: Vec<Node> = whole.trace(0).collect();
    let products = trace
        .iter()
        .filter(|node| ["qkv", "projection", "ffn.in", "ffn.out"].iter().any(|product| node.name.ends_with(product)));
    // All four GEMMs of a layer are part of a pair in each direction: two have a gathered input, the other two a
    // scattered result.
    let times: Vec<f64> = products.map(|node| node.unsigned(NUM_OPS).unwrap() as f64 / 1e12).collect();
    assert_eq!(times.len() as u64, 8 * u64::from(model.layers) * whole.spec().micro_batches());
    let hidden: f64 = times.iter().map(|product| product.min(communication) * (1.0 - 1.0 / parts as f64)).sum();
    let saved = makespan(&whole) - makespan(&cut);
    assert!((saved / hidden - 1.0).abs() < 0.01, "{saved} instead of {hidden}");
}

#[test]
fn parts_compute_and_move_as_much() {
    let amounts = |parts| {
        let traces = nodes(overlapped(parts).spec());
        [NUM_OPS, COMM_SIZE].map(|attribute| total(&traces, attribute, |_| true))
    };
    assert_eq!(amounts(4), amounts(1));
}

#[test]
fn parts_that_do_not_fit_are_refused_with_a_hint() {
    let refused = |tensor, parts| {
        let implementation = Implementation { tensor_parts: parts, ..Implementation::default() };
        let spec = Spec { implementation, ..laid_out(small(), [tensor, 1, 1, 1, 1]) };
        Workload::new(spec).unwrap_err().to_string()
    };
    assert_eq!(
        refused(1, 4),
        "tensor-parallel communication that overlaps products requires sequence parallelism\nhint: add --sequence-parallel and a --tp of at least 2, or remove --tp-overlap"
    );
    assert_eq!(refused(2, 5), "256 tokens on 2 ranks cannot be cut into 5 parts\nhint: choose another --tp-overlap");
}
