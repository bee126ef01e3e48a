//! Tests of experts that receive different numbers of tokens.

use super::*;
use uniference_formats::chakra::attributes::{IN_SPLIT, OUT_SPLIT};

/// Experts 0 and 1, on the first of four ranks, receive 3/8 and 1/8; the last rank's experts receive no tokens.
const SHARES: [f64; 8] = [0.375, 0.125, 0.125, 0.125, 0.125, 0.125, 0.0, 0.0];
/// Eighths of all routed tokens that each rank receives.
const OF_RANKS: [u64; 4] = [4, 2, 2, 0];

fn unequal(spec: Spec) -> Spec {
    Spec { expert_load: ExpertLoad::Shares(SHARES.into()), ..spec }
}

/// The traces of `with_experts` with unequal shares, on 4 expert-parallel ranks of 2 tensor-parallel ranks each.
fn job() -> Spec {
    unequal(laid_out(with_experts(small()), [2, 1, 4, 4, 1]))
}

#[test]
fn tokens_go_where_their_experts_are_and_come_back() {
    // A rank has b s / t tokens and sends each to two experts: to each rank that rank's eighths of these. It receives
    // from each rank the tokens of its own experts. On the way back it is the reverse.
    let spec = job();
    let copies = 2 * spec.micro_batch * spec.sequence / 2;
    let block = |rank: usize| ELEMENT * spec.model.hidden * copies * OF_RANKS[rank] / 8;
    let to_all: Vec<u64> = (0..4).map(block).collect();
    for (rank, trace) in nodes(&spec).iter().enumerate() {
        let own = vec![block(rank / 2); 4];
        let splits = |what: &str| -> Vec<[Vec<u64>; 2]> {
            let named = trace.iter().filter(|node| node.name.ends_with(what));
            named.map(|node| [IN_SPLIT, OUT_SPLIT].map(|name| node.numbers(name).unwrap().to_vec())).collect()
        };
        let count = 2 * u64::from(spec.model.layers) * spec.micro_batches();
        assert_eq!(splits("dispatch"), vec![[to_all.clone(), own.clone()]; count as usize]);
        assert_eq!(splits("combine"), vec![[own.clone(), to_all.clone()]; count as usize]);
    }
}

#[test]
fn ranks_compute_for_the_tokens_that_come() {
    // 6 operations per each of 3 h f parameters and copy of a token, sharded over two tensor-parallel ranks.
    let spec = job();
    let copies = 2 * spec.batch * spec.sequence;
    for (rank, trace) in nodes(&spec).into_iter().enumerate() {
        let computed = total(&[trace], NUM_OPS, |node| node.name.ends_with(".experts"));
        let networks = 6 * 3 * 64 * 160 * u64::from(spec.model.layers);
        assert_eq!(computed, networks * copies * OF_RANKS[rank / 2] / 8 / 2);
    }
}

#[test]
fn the_busiest_rank_decides_how_long_experts_take() {
    // The first of four ranks receives half of all tokens: twice the mean. With equal shares the run is shorter by half
    // of that rank's GEMMs; nothing else differs, as messages cost nothing.
    let of = |load: ExpertLoad| {
        let spec =
            Spec { phase: Phase::Prefill, expert_load: load, ..laid_out(with_experts(small()), [1, 1, 4, 4, 1]) };
        let workload = Workload::new(spec).unwrap();
        let free = LinkSpec::new(Rate::new(1e18).unwrap(), SimDuration::ZERO);
        let rates = Rates::uniform(1e12, 1e24);
        let ranks = simulate_at(&workload, &cluster(4, free, Preset::Switch), &Symmetry::default(), rates).unwrap();
        let makespan = ranks.iter().map(|rank| rank.finish.unwrap().as_secs_f64()).fold(0.0, f64::max);
        (makespan, workload.expert_imbalance())
    };
    let (even, none) = of(ExpertLoad::Uniform);
    let (uneven, ratio) = of(ExpertLoad::Shares(SHARES.into()));
    assert_eq!((none, ratio), (None, Some(2.0)));
    // 2 operations per each of 3 h f parameters and of two copies of a rank's tokens, in 4 layers.
    let products = (2 * 3 * 64 * 160 * 2 * small().batch / 4 * small().sequence * 4) as f64 / 1e12;
    assert!(((uneven - even) / products - 1.0).abs() < 1e-3, "{} instead of {products}", uneven - even);
}

#[test]
fn ranks_keep_the_tokens_that_come() {
    // A copy of a token is kept before and after the expert, with 3 x 160 elements of the network: half of all copies
    // on the first rank, a quarter with equal shares.
    let spec = Spec { batch: 8, ..laid_out(with_experts(small()), [1, 1, 4, 4, 1]) };
    let kept = |spec: Spec, rank| Workload::new(spec).unwrap().memory(rank).activations;
    let copies = 2 * spec.micro_batch * spec.sequence * 4;
    let quarter = ELEMENT * copies / 4 * (2 * 64 + 3 * 160) * u64::from(spec.model.layers);
    let [even, most, least] = [(false, 0), (true, 0), (true, 3)]
        .map(|(uneven, rank)| kept(if uneven { unequal(spec.clone()) } else { spec.clone() }, rank));
    assert_eq!((most - even, even - least), (quarter, quarter));
    // One rank of each class with equal memory.
    let workload = |spec: Spec| Workload::new(spec).unwrap();
    let staged = laid_out(with_experts(small()), [2, 1, 4, 8, 2]);
    assert_eq!(workload(staged.clone()).memory_classes(), [0, 16]);
    let workload = workload(unequal(staged));
    assert_eq!(workload.memory_classes(), [0, 2, 4, 6, 16, 18, 20, 22]);
    for rank in 0..32 {
        let class = workload.memory_class(rank);
        assert!(workload.memory_classes().contains(&class));
        assert_eq!(workload.memory(rank), workload.memory(class), "rank {rank}");
    }
}

#[test]
fn ranks_with_other_experts_are_not_alike() {
    // 4 expert-parallel ranks with different experts, 2 replicas of each and 2 tensor-parallel ranks: only the replicas
    // and the tensor-parallel ranks fold.
    let spec = |load| Spec { expert_load: load, ..laid_out(with_experts(small()), [2, 1, 4, 8, 1]) };
    let most = |load| Workload::new(spec(load)).unwrap().symmetries(&[], true)[0].order();
    assert_eq!([most(ExpertLoad::Uniform), most(ExpertLoad::Zipf { exponent: 1.0, seed: 0 })], [16, 4]);
}

#[test]
fn draws_depend_on_layer_and_seed_alone() {
    let traces = |seed| nodes(&Spec { expert_load: ExpertLoad::Zipf { exponent: 1.2, seed }, ..job() });
    assert_eq!(traces(3), traces(3));
    assert_ne!(traces(3), traces(4));
    let trace = traces(3).swap_remove(0);
    let dispatches: Vec<&[u64]> = trace
        .iter()
        .filter(|node| node.name.ends_with("dispatch"))
        .map(|node| node.numbers(IN_SPLIT).unwrap())
        .collect();
    // The layers in order, then in reverse order for the backward pass; each micro-batch has the same routing.
    let layers = &dispatches[..4];
    assert!(layers.iter().any(|sent| *sent != layers[0]));
    let backwards: Vec<&[u64]> = layers.iter().rev().copied().collect();
    assert!(dispatches.chunks(4).all(|chunk| chunk == layers || chunk == backwards));
}

#[test]
fn loads_that_do_not_fit_are_refused() {
    let refused = |spec: Spec| Workload::new(spec).unwrap_err().to_string();
    let shares = |shares: &[f64]| ExpertLoad::Shares(shares.into());
    let zipf = |exponent| ExpertLoad::Zipf { exponent, seed: 0 };
    let cases = [
        (Spec { expert_load: zipf(1.0), ..small() }, "there are no experts"),
        (Spec { expert_load: zipf(-1.0), ..with_experts(small()) }, "Zipf's exponent -1 is out of range"),
        (Spec { expert_load: zipf(f64::NAN), ..with_experts(small()) }, "Zipf's exponent NaN is out of range"),
        (Spec { expert_load: shares(&[1.0]), ..with_experts(small()) }, "there are 1 shares of 8 experts"),
        (
            Spec { expert_load: shares(&[0.6, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), ..with_experts(small()) },
            "an expert has a share of 0.6000, but of tokens that are sent to 2 experts each it gets 0.5000 at most",
        ),
    ];
    for (spec, expected) in cases {
        let message = refused(spec);
        assert!(message.starts_with(expected) && message.contains("\nhint: "), "{message}");
    }
}
