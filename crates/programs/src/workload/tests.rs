//! Tests of closed forms of a job's operations, traffic and memory, of its pipeline's bubble, and of folded runs.

use super::layout::Group;
use super::*;
use crate::chakra::replay::{Replay, Rules};
use rstest::rstest;
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_formats::chakra::attributes::{COMM_SIZE, DTYPE, NUM_OPS};
use uniference_formats::chakra::schema::{CommType, Node, NodeType};
use uniference_sim::cluster::{Backend, Cluster, Device};
use uniference_sim::collective::choose::AlgorithmTable;
use uniference_sim::device::Rates;
use uniference_sim::engine::{Engine, HaltReason, RunEnd, drive};
use uniference_sim::ids::{HostId, RankId};
use uniference_sim::network::{Asymmetry, Dynamics, HostSpec, LinkSpec, Preset, Topology};
use uniference_sim::observe::{RankStatistics, Statistics};
use uniference_sim::program::Program;
use uniference_sim::time::{Rate, SimDuration};

mod float8;
mod hybrid;
mod nccl;
mod overlap;
mod ring;
mod split;
mod spread;
mod structure;

/// A layout of one rank.
pub(super) const LAYOUT: Layout = Layout {
    tensor: 1,
    context: 1,
    expert: 1,
    data: 1,
    pipeline: 1,
    sequence_parallel: false,
    context_method: ContextMethod::AllGather,
    context_order: ContextOrder::Zigzag,
    shard: None,
};

fn llama(layers: u32, hidden: u64, heads: u64, ffn: u64) -> Model {
    Model {
        layers,
        hidden,
        heads,
        kv_heads: 8,
        ffn,
        vocabulary: 128_256,
        experts: None,
        latent: None,
        mlp: Mlp::SwiGlu,
        positions: 0,
        tied: false,
    }
}

fn small() -> Spec {
    Spec {
        model: Model {
            layers: 4,
            hidden: 64,
            heads: 8,
            kv_heads: 4,
            ffn: 160,
            vocabulary: 512,
            experts: None,
            latent: None,
            mlp: Mlp::SwiGlu,
            positions: 0,
            tied: false,
        },
        layout: LAYOUT,
        phase: Phase::Train,
        sequence: 128,
        batch: 16,
        micro_batch: 2,
        schedule: Schedule::OneForwardOneBackward,
        zero: 0,
        gradient_bytes: 2,
        recompute: Recompute::None,
        clip_gradients: false,
        new_tokens: 1,
        implementation: Implementation::default(),
        expert_load: ExpertLoad::Uniform,
    }
}

fn with_experts(spec: Spec) -> Spec {
    let experts = Experts { count: 8, top_k: 2, ffn: spec.model.ffn, shared: 0, dense_layers: 0 };
    Spec { model: Model { experts: Some(experts), ..spec.model }, ..spec }
}

/// DeepSeek's structure: MLA, a dense first layer, and a shared expert in each MoE layer.
fn with_structure(spec: Spec) -> Spec {
    let latent = Latent { query_rank: 24, kv_rank: 16, plain: 8, rotary: 4, value: 8 };
    let experts = Experts { count: 8, top_k: 2, ffn: 32, shared: 1, dense_layers: 1 };
    Spec { model: Model { experts: Some(experts), latent: Some(latent), ..spec.model }, ..spec }
}

fn spread(spec: Spec) -> Spec {
    Spec { expert_load: ExpertLoad::Zipf { exponent: 1.0, seed: 1 }, ..spec }
}

fn in_ring(spec: Spec, context_order: ContextOrder) -> Spec {
    let layout = Layout { context_method: ContextMethod::Ring, context_order, ..spec.layout };
    Spec { layout, ..spec }
}

fn laid_out(spec: Spec, [tensor, context, expert, data, pipeline]: [u32; 5]) -> Spec {
    let layout = Layout { tensor, context, expert, data, pipeline, sequence_parallel: tensor > 1, ..spec.layout };
    Spec { layout, ..spec }
}

fn nodes(spec: &Spec) -> Vec<Vec<Node>> {
    let workload = Workload::new(spec.clone()).unwrap();
    (0..workload.world_size()).map(|rank| workload.trace(rank).collect()).collect()
}

/// The sum of an attribute over all nodes for which `wanted` is true.
fn total(traces: &[Vec<Node>], attribute: &str, wanted: impl Fn(&Node) -> bool) -> u64 {
    traces.iter().flatten().filter(|node| wanted(node)).filter_map(|node| node.unsigned(attribute)).sum()
}

/// Sizes of a rank's collectives of one kind whose names end in `what`.
fn collected(nodes: &[Node], kind: CommType, what: &str) -> Vec<u64> {
    let of_kind = nodes.iter().filter(|node| node.comm_type() == Some(kind) && node.name.ends_with(what));
    of_kind.map(|node| node.unsigned(COMM_SIZE).unwrap()).collect()
}

#[test]
fn the_models_are_as_large_as_they_are_called() {
    // "The Llama 3 herd of models", 2024, table 3; exact numbers of parameters as in the published weights.
    let sizes = [(32, 4096, 32, 14_336), (80, 8192, 64, 28_672), (126, 16_384, 128, 53_248)];
    let parameters = sizes.map(|(layers, hidden, heads, ffn)| llama(layers, hidden, heads, ffn).parameters());
    assert_eq!(parameters, [8_030_261_248, 70_553_706_496, 405_853_388_800]);
}

#[rstest]
#[case::one([1, 1, 1, 1, 1])]
#[case::tensor([4, 1, 1, 2, 1])]
#[case::pipeline([2, 1, 1, 2, 4])]
#[case::context([1, 4, 1, 1, 2])]
fn a_step_computes_six_operations_a_token_and_parameter(#[case] axes: [u32; 5]) {
    // 3 (2 N_m) + 7/2 (2 L s h) per token: one forward pass, and a backward pass of twice the work; N_m are the
    // parameters in matrices; causal attention attends to s / 2 tokens on average, with 4 operations each for every
    // element of h in the forward pass, and 10 in the backward pass, which recomputes scores (Dao et al. 2022; Hoffmann
    // et al. 2022 leave out attention: 6 N D).
    let spec = laid_out(small(), axes);
    let model = &spec.model;
    let matrices = u64::from(model.layers) * model.dense_parameters(LayerKind::Dense) + model.embedding_parameters();
    let attention = u64::from(model.layers) * 2 * spec.sequence * model.hidden;
    let expected = (6 * matrices + attention * 7 / 2) * spec.batch * spec.sequence;
    let computed = total(&nodes(&spec), NUM_OPS, |node| node.name != "optimizer");
    assert_eq!(computed, expected);
}

#[rstest]
#[case::dense([2, 1, 1, 4, 1], 1)]
#[case::spread([2, 1, 4, 4, 1], 1)]
fn experts_add_what_their_tokens_need(#[case] axes: [u32; 5], #[case] pieces: u64) {
    // Each token passes through top_k networks of 3 h f weights, and a router of h E.
    let spec = laid_out(with_experts(small()), axes);
    let (model, experts) = (&spec.model, spec.model.experts.unwrap());
    let networks = experts.top_k * 3 * model.hidden * model.ffn + experts.count * model.hidden;
    let attention = 2 * model.hidden * (model.hidden + model.kv_width());
    let layer = 6 * (networks + attention) + 7 * spec.sequence * model.hidden;
    let head = 6 * model.embedding_parameters();
    let expected = (u64::from(model.layers) * layer + head) * spec.batch * spec.sequence;
    assert_eq!(total(&nodes(&spec), NUM_OPS, |node| node.name != "optimizer"), expected * pieces);
}

#[rstest]
fn every_layer_sums_tokens_four_times(#[values(false, true)] sequence_parallel: bool) {
    // Two all-reduces of b s h elements forward and two backward (Shoeybi et al. 2019); with sequence parallelism each
    // is a reduce-scatter and an all-gather of the same size (Korthikanti et al. 2022). The embedding and the head add
    // one each.
    let mut spec = laid_out(small(), [4, 1, 1, 1, 1]);
    spec.layout.sequence_parallel = sequence_parallel;
    let whole = ELEMENT * spec.micro_batch * spec.sequence * spec.model.hidden;
    let count = (4 * u64::from(spec.model.layers) + 2) * spec.micro_batches();
    for trace in nodes(&spec) {
        let of = |kind, what, size| {
            let sizes = collected(&trace, kind, what);
            assert!(sizes.iter().all(|bytes| *bytes == size), "{sizes:?}");
            sizes.len() as u64
        };
        if sequence_parallel {
            assert_eq!(of(CommType::ReduceScatter, "sum", whole), count);
            assert_eq!(of(CommType::AllGather, "tokens", whole / 4), count);
        } else {
            assert_eq!(of(CommType::AllReduce, "sum", whole), count);
        }
    }
}

#[rstest]
#[case::none(0, [1, 0, 0])]
#[case::optimizer(1, [0, 1, 1])]
#[case::gradients(2, [0, 1, 1])]
#[case::parameters(3, [0, 1, 2])]
fn zero_moves_parameters_and_gradients(#[case] zero: u8, #[case] times: [u64; 3]) {
    // For Psi parameters, in one micro-batch: stage 0 all-reduces Psi, 1 and 2 reduce-scatter and all-gather Psi, 3
    // reduce-scatters Psi and gathers it once per pass, forward and backward (Rajbhandari et al. 2020, section 7).
    let spec = Spec { zero, batch: 8, ..laid_out(small(), [1, 1, 1, 4, 1]) };
    let all = spec.model.parameters();
    for trace in nodes(&spec) {
        let sum = |kind, what, scale: u64| collected(&trace, kind, what).iter().sum::<u64>() * scale / ELEMENT;
        let reduced = sum(CommType::AllReduce, "gradients", 1);
        let scattered = sum(CommType::ReduceScatter, "gradients", 1);
        let gathered = sum(CommType::AllGather, "parameters", 4);
        assert_eq!([reduced, scattered], [times[0] * all, times[1] * all]);
        assert_eq!(gathered, times[2] * all);
    }
}

/// Number of gradient elements of one kind that a rank reduces over replicas, and number of its parameter elements
/// after all gathers.
fn exchanged(trace: &[Node], spec: &Spec, kind: &str, replicas: u32) -> [u64; 2] {
    let last = |name: &str| name.rsplit('.').next().unwrap().to_owned();
    let named = |what: String| trace.iter().filter(move |node| last(&node.name) == what);
    let size = |node: &Node| node.unsigned(COMM_SIZE).unwrap();
    let summed: u64 = named(format!("{kind}gradients")).map(size).sum();
    let gathered: u64 = named(format!("{kind}parameters")).map(size).sum();
    [summed / spec.gradient_bytes, gathered * u64::from(replicas) / ELEMENT]
}

#[test]
fn every_parameter_that_is_counted_is_summed_and_gathered() {
    // In each step a rank's gradients are reduced over its replicas once, or with ZeRO 2 and 3 after each of m
    // micro-batches, and the parameters gathered once (1, 2) or 2 m times (3): all parameters that the rank counts as
    // its own, of each kind. With sequence parallelism, gradients of parameters that all tensor-parallel ranks have are
    // reduced among them once. Only those are padded to equal parts: all other sizes divide.
    let mut layouts = Vec::new();
    for tensor in [1, 2] {
        for data in [1, 4] {
            for pipeline in [1, 2, 4] {
                layouts.extend([[tensor, 1, 1, data, pipeline], [tensor, 2, 1, data, pipeline]]);
                layouts.extend(
                    [2, 4].map(|expert| [tensor, 1, expert, data, pipeline]).iter().filter(|axes| axes[2] <= data),
                );
            }
        }
    }
    for axes in layouts {
        for zero in 0..=3 {
            for base in [small(), with_experts(small()), with_structure(small())] {
                let spec = Spec { zero, gradient_bytes: 4, ..laid_out(base, axes) };
                if axes[2] > 1 && spec.model.experts.is_none() {
                    continue;
                }
                let workload = Workload::new(spec.clone()).unwrap();
                let (layout, micro_batches) = (spec.layout, spec.micro_batches());
                let sums = if zero >= 2 { micro_batches } else { 1 };
                let gathers = [0, 1, 1, 2 * micro_batches][usize::from(zero)];
                let counted = |parameters: u64, replicas: u32| {
                    if replicas > 1 { [sums * parameters, gathers * parameters] } else { [0, 0] }
                };
                for rank in (0..workload.world_size()).step_by(layout.tensor as usize) {
                    let trace: Vec<Node> = workload.trace(rank).collect();
                    let (dense, own) = workload.parameters(rank);
                    let (replicas, expert_replicas) = (layout.dense_replicas(), layout.expert_replicas());
                    let what = format!("rank {rank}, ZeRO {zero}, {axes:?}");
                    assert_eq!(exchanged(&trace, &spec, "", replicas), counted(dense, replicas), "{what}");
                    let moved = exchanged(&trace, &spec, "expert ", expert_replicas);
                    assert_eq!(moved, counted(own, expert_replicas), "experts: {what}");
                    let stage = spec.layout.place(rank).stage;
                    let shards = if zero > 0 { u64::from(replicas) } else { 1 };
                    let among_tensor = if layout.tensor > 1 { spec.replicated_parameters(stage) / shards } else { 0 };
                    let filled = among_tensor.next_multiple_of(u64::from(layout.tensor));
                    assert_eq!(exchanged(&trace, &spec, "replicated ", 1)[0], filled, "{what}");
                }
            }
        }
    }
}

#[rstest]
#[case::kept(Recompute::None, 0, 0)]
#[case::attention(Recompute::Selective, 0, 1)]
#[case::layers(Recompute::Full, 1, 1)]
fn what_is_not_kept_is_computed_again(#[case] recompute: Recompute, #[case] matrices: u64, #[case] pairs: u64) {
    // The forward pass needs 2 N_l + 2 L s h operations per token; recomputation repeats, in terms of Korthikanti et
    // al. 2022, the second summand (selective), or both (full).
    let operations = |recompute| {
        let spec = Spec { recompute, ..laid_out(small(), [2, 1, 1, 2, 2]) };
        total(&nodes(&spec), NUM_OPS, |node| node.name != "optimizer")
    };
    let Spec { model, sequence, batch, .. } = small();
    let layers = u64::from(model.layers);
    let more =
        matrices * 2 * layers * model.dense_parameters(LayerKind::Dense) + pairs * 2 * layers * sequence * model.hidden;
    assert_eq!(operations(recompute) - operations(Recompute::None), more * batch * sequence);
}

#[test]
fn the_norm_of_gradients_is_summed_over_all_that_have_others() {
    // Without sharding, tensor-parallel ranks and stages hold different gradients; with sharding, replicas do too. The
    // norm is one float32, padded to one per rank.
    let norms = |zero| {
        let spec = Spec { zero, clip_gradients: true, ..laid_out(small(), [2, 1, 1, 4, 2]) };
        let groups = |trace: &Vec<Node>| {
            let norm = |node: &&Node| node.name == "gradient norm";
            trace
                .iter()
                .filter(norm)
                .map(|node| (node.process_group().unwrap(), node.unsigned(COMM_SIZE).unwrap()))
                .collect()
        };
        nodes(&spec).iter().map(groups).collect::<Vec<Vec<(String, u64)>>>()[3].clone()
    };
    let named =
        |sums: &[(&str, u64)]| sums.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect::<Vec<_>>();
    assert_eq!(norms(0), named(&[("tensor.2", 8), ("pipeline.3", 8)]));
    assert_eq!(norms(1), named(&[("tensor.2", 8), ("replicas.1", 16), ("pipeline.3", 8)]));
}

#[test]
fn each_new_token_sees_those_before_it_and_waits_for_them() {
    // One stage: n tokens after s others attend to sum { s + i : i < n } keys in each of L layers, 4 h operations each.
    let spec = Spec { phase: Phase::Decode, new_tokens: 5, ..small() };
    let attention = |node: &Node| node.name.ends_with("attention");
    let Spec { model, sequence, batch, new_tokens, .. } = &spec;
    let keys: u64 = (0..*new_tokens).map(|token| sequence + token).sum();
    let expected = 4 * model.hidden * keys * batch * u64::from(model.layers);
    assert_eq!(total(&nodes(&spec), NUM_OPS, attention), expected);
    // Stages run one after the other: with a single micro-batch nothing overlaps.
    let one = Spec { batch: 2, ..spec.clone() };
    let makespan = |stages, new_tokens| {
        let spec = Spec { new_tokens, ..laid_out(one.clone(), [1, 1, 1, 1, stages]) };
        let workload = Workload::new(spec).unwrap();
        let free = LinkSpec::new(Rate::new(1e18).unwrap(), SimDuration::ZERO);
        let ranks = simulate(&workload, &cluster(stages, free, Preset::Switch), &Symmetry::default()).unwrap();
        ranks.iter().map(|rank| rank.finish.unwrap().as_ps()).max().unwrap()
    };
    assert!(makespan(4, 5).abs_diff(makespan(1, 5)) <= 1_000, "{} and {}", makespan(4, 5), makespan(1, 5));
}

#[test]
fn zero_holds_less_on_each_rank() {
    // Rajbhandari et al. 2020, figure 1: Psi parameters on N ranks need 16 Psi, 4 Psi + 12 Psi / N, 2 Psi + 14 Psi / N,
    // 16 Psi / N bytes.
    let held = |zero| {
        let spec = Spec { zero, ..laid_out(small(), [1, 1, 1, 4, 1]) };
        let Memory { weights, gradients, optimizer, .. } = Workload::new(spec).unwrap().memory(0);
        weights + gradients + optimizer
    };
    let psi = small().model.parameters();
    assert_eq!([0, 1, 2, 3].map(held), [16 * psi, 4 * psi + 3 * psi, 2 * psi + 7 * psi / 2, 4 * psi]);
}

#[test]
fn parameters_are_dealt_to_ranks_without_rest() {
    let experts = Spec { gradient_bytes: 4, ..laid_out(with_experts(small()), [2, 1, 4, 4, 2]) };
    let workload = Workload::new(experts).unwrap();
    // Norms and the router are replicated on tensor-parallel ranks; experts differ along their axis.
    let dense: u64 = (0..16).step_by(8).map(|rank| workload.parameters(rank).0 * 2).sum();
    let own: u64 = (0..16).map(|rank| workload.parameters(rank).1).sum();
    let model = &workload.spec().model;
    let replicated = u64::from(model.layers) * model.replicated_parameters(LayerKind::Experts) + model.hidden;
    assert_eq!(dense + own, model.parameters() + replicated);
    assert_eq!(workload.memory(0).gradients, (workload.parameters(0).0 + workload.parameters(0).1) * 4);
}

#[test]
fn the_models_operations_are_six_for_each_token_and_matrix_element_and_those_of_attention() {
    let workload = Workload::new(small()).unwrap();
    let Spec { model, sequence, batch, .. } = workload.spec();
    let layers = u64::from(model.layers);
    let matrices = model.parameters() - model.embedding_parameters() - (2 * layers + 1) * model.hidden;
    let pairs = batch * sequence * (sequence + 1) / 2;
    let expected = 6 * batch * sequence * matrices + 12 * pairs * model.hidden * layers;
    assert_eq!((workload.tokens(), workload.model_flops()), (batch * sequence, expected as f64));
    // Forward pass only; the head for one token per sequence.
    let prefill = Workload::new(Spec { phase: Phase::Prefill, ..small() }).unwrap();
    let left_out = 2 * batch * (sequence - 1) * model.embedding_parameters();
    assert_eq!(prefill.model_flops(), (expected / 3 - left_out) as f64);
    // Three new tokens, each of which attends to one more token than the previous one.
    let decode = Workload::new(Spec { phase: Phase::Decode, new_tokens: 3, ..small() }).unwrap();
    let pairs = batch * (3 * sequence + 6);
    let expected = 2 * 3 * batch * matrices + 4 * pairs * model.hidden * layers;
    assert_eq!((decode.tokens(), decode.model_flops()), (3 * batch, expected as f64));
    // Experts add top_k networks per token in place of one, and the router.
    let experts = Workload::new(with_experts(small())).unwrap();
    let Experts { count, top_k, .. } = experts.spec().model.experts.unwrap();
    let more = top_k * 3 * model.hidden * model.ffn + count * model.hidden - 3 * model.hidden * model.ffn;
    assert_eq!(experts.model_flops() - workload.model_flops(), (6 * batch * sequence * layers * more) as f64);
}

#[test]
fn layers_that_do_not_divide_spare_the_ends() {
    // Llama 3 405B has 126 layers on 16 stages: 7 on the first and the last.
    let spec = laid_out(Spec { model: llama(126, 16_384, 128, 53_248), ..small() }, [8, 1, 1, 1, 16]);
    let layers: Vec<u32> = (0..16).map(|chunk| spec.layers(chunk)).collect();
    assert_eq!((layers[0], layers[15], layers[1..15].iter().all(|count| *count == 8)), (7, 7, true));
}

// Runs

fn cluster(ranks: u32, link: LinkSpec, preset: Preset) -> Cluster {
    let hosts: Vec<HostSpec> = (0..ranks).map(|rank| HostSpec::new(format!("gpu.{rank:03}"))).collect();
    let device = |host| Device::new(format!("{host}"), HostId(host));
    Cluster {
        name: "test".into(),
        devices: (0..ranks).map(device).collect(),
        topology: Topology::preset(&preset, &hosts, link).unwrap(),
        dynamics: Dynamics::default(),
        backend: Backend {
            name: "ideal".into(),
            algorithms: AlgorithmTable::ideal(),
            concurrency: 1,
            protocol: Default::default(),
            free: Default::default(),
        },
    }
}

/// Runs a workload, folded by `symmetry`. `Err`: ranks are not equivalent.
fn simulate(workload: &Workload, cluster: &Cluster, symmetry: &Symmetry) -> Result<Vec<RankStatistics>, Asymmetry> {
    simulate_at(workload, cluster, symmetry, Rates::uniform(1e12, 1e15))
}

/// Runs a workload on devices with these rates.
fn simulate_at(
    workload: &Workload,
    cluster: &Cluster,
    symmetry: &Symmetry,
    rates: Rates,
) -> Result<Vec<RankStatistics>, Asymmetry> {
    let ranks = workload.world_size();
    let rooflines = vec![Some(rates); ranks as usize];
    let rules = Arc::new(Rules { rooflines, ..Rules::of((0..ranks).map(RankId).collect()) });
    let program = |rank| Replay::new(RankId(rank), workload.trace(rank), rules.clone());
    let mut programs: Vec<Box<dyn Program>> =
        (0..workload.world_size()).map(|rank| Box::new(program(rank)) as Box<dyn Program>).collect();
    let mut engine = Engine::folded(cluster, symmetry)?;
    let mut statistics = Statistics::default();
    match drive(&mut engine, &mut programs, &mut statistics) {
        RunEnd::Finished => Ok(statistics.ranks().to_vec()),
        RunEnd::Halted(halt) => match halt.reason {
            HaltReason::Asymmetry(asymmetry) => Err(asymmetry),
            _ => panic!("{}", halt.render(&|site| site.to_string(), &|_| Vec::new())),
        },
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case::gpipe(Schedule::GPipe, 1.0)]
#[case::one_forward_one_backward(Schedule::OneForwardOneBackward, 1.0)]
#[case::interleaved(Schedule::Interleaved(2), 2.0)]
#[case::interleaved_more(Schedule::Interleaved(4), 4.0)]
fn pipelines_idle_as_long_as_their_bubbles(#[case] schedule: Schedule, #[case] pieces: f64) {
    // idle / busy = (p - 1) / (v m) if messages cost nothing and all model chunks are equal: a vocabulary of one makes
    // the first and the last chunk equal to the others.
    let (stages, micro_batches) = (4, 8);
    let model = Model { layers: 16, vocabulary: 1, ..small().model };
    let spec = Spec { model, sequence: 4096, batch: 8, micro_batch: 1, schedule, ..small() };
    let workload = Workload::new(laid_out(spec, [1, 1, 1, 1, stages])).unwrap();
    let free = LinkSpec::new(Rate::new(1e18).unwrap(), SimDuration::ZERO);
    let ranks = simulate(&workload, &cluster(stages, free, Preset::Switch), &Symmetry::default()).unwrap();
    let bubble = f64::from(stages - 1) / (pieces * f64::from(micro_batches));
    let makespan = ranks.iter().map(|rank| rank.finish.unwrap()).max().unwrap().as_secs_f64();
    let busy = ranks[1].times.compute.as_secs_f64();
    assert!((makespan / busy - 1.0 - bubble).abs() < 0.01 * bubble, "{} instead of {bubble}", makespan / busy - 1.0);
}

fn jobs() -> BTreeMap<&'static str, Spec> {
    let interleaved = Spec { schedule: Schedule::Interleaved(2), ..small() };
    let inference = |phase| Spec { phase, ..with_experts(small()) };
    let hybrid = laid_out(Spec { zero: 3, ..small() }, [2, 1, 1, 8, 1]);
    let gpipe = Spec { schedule: Schedule::GPipe, zero: 1, gradient_bytes: 4, ..small() };
    BTreeMap::from([
        ("dense", laid_out(small(), [2, 1, 1, 4, 2])),
        ("context", laid_out(Spec { zero: 1, ..small() }, [2, 2, 1, 2, 2])),
        ("context alone", laid_out(small(), [2, 4, 1, 1, 1])),
        ("interleaved", laid_out(interleaved, [4, 1, 1, 2, 2])),
        ("gpipe", laid_out(gpipe, [1, 1, 1, 4, 4])),
        ("sharded", laid_out(Spec { zero: 3, ..small() }, [2, 1, 1, 4, 1])),
        ("hybrid", Spec { layout: Layout { shard: Some(2), ..hybrid.layout }, ..hybrid.clone() }),
        ("hybrid, pairs of servers", Spec { layout: Layout { shard: Some(4), ..hybrid.layout }, zero: 2, ..hybrid }),
        ("experts", laid_out(with_experts(Spec { zero: 2, ..small() }), [2, 1, 2, 4, 2])),
        ("experts everywhere", laid_out(with_experts(small()), [1, 1, 4, 4, 2])),
        ("prefill", laid_out(inference(Phase::Prefill), [2, 2, 2, 2, 2])),
        ("decode", laid_out(inference(Phase::Decode), [2, 1, 4, 4, 2])),
        ("answers", laid_out(Spec { new_tokens: 3, ..inference(Phase::Decode) }, [2, 1, 1, 2, 4])),
        ("recomputed", laid_out(Spec { recompute: Recompute::Full, ..small() }, [2, 1, 1, 2, 2])),
        ("latent", laid_out(Spec { zero: 1, ..with_structure(small()) }, [2, 1, 1, 4, 2])),
        (
            "latent decode",
            laid_out(Spec { new_tokens: 2, phase: Phase::Decode, ..with_structure(small()) }, [2, 1, 1, 2, 4]),
        ),
        ("ring", in_ring(laid_out(small(), [2, 4, 1, 2, 1]), ContextOrder::Zigzag)),
        ("ring of latents", in_ring(laid_out(with_structure(small()), [1, 2, 1, 4, 2]), ContextOrder::Contiguous)),
        ("unequal experts", spread(laid_out(with_experts(small()), [2, 1, 2, 4, 2]))),
        (
            "unequal experts of structure",
            spread(laid_out(Spec { zero: 1, ..with_structure(small()) }, [1, 2, 4, 8, 1])),
        ),
        ("clipped", laid_out(Spec { clip_gradients: true, zero: 1, ..small() }, [2, 1, 1, 4, 2])),
    ])
}

/// A folded run gives every rank the end that it has in a full run, on GPU servers and on a switch.
#[test]
fn one_rank_stands_for_those_that_do_the_same() {
    let fabric = LinkSpec::new(Rate::new(3.3e9).unwrap(), SimDuration::from_ns(500));
    let link = LinkSpec::new(Rate::new(0.7e9).unwrap(), SimDuration::from_us(3));
    let mut refused = Vec::new();
    for (name, spec) in jobs() {
        let workload = Workload::new(spec).unwrap();
        let ranks = workload.world_size();
        assert!(workload.symmetry().order() > 1, "{name}");
        for preset in [Preset::Switch, Preset::Rail { per_server: workload.spec().layout.tensor, fabric }] {
            let mut cluster = cluster(ranks, link, preset);
            let all = simulate(&workload, &cluster, &Symmetry::default()).unwrap();
            match simulate(&workload, &cluster, &workload.symmetry()) {
                Ok(few) => assert_eq!(few, all, "{name}"),
                Err(asymmetry) => {
                    assert!(asymmetry.problem.contains("at the same time"), "{name}: {asymmetry}");
                    refused.push(name);
                    cluster.backend.protocol.connections_per_group = true;
                    let all = simulate(&workload, &cluster, &Symmetry::default()).unwrap();
                    assert_eq!(simulate(&workload, &cluster, &workload.symmetry()).unwrap(), all, "{name}");
                }
            }
        }
    }
    // Tokens to experts and gradients to replicas, or gradients of experts and all other gradients, go between the same
    // ranks and are therefore served in an order, unless each group has its own connections.
    refused.dedup();
    let of_experts = ["experts", "experts everywhere", "latent", "ring of latents", "unequal experts"];
    assert_eq!(refused, [&of_experts[..], &["unequal experts of structure"]].concat());
}

/// Folds along shifts that do not rotate the rings of gradients: along experts and their replicas, or contexts and
/// data, at once; and from server to server.
#[test]
fn one_rank_stands_for_more_where_hosts_can_be_exchanged() {
    let fabric = LinkSpec::new(Rate::new(3.3e9).unwrap(), SimDuration::from_ns(500));
    let link = LinkSpec::new(Rate::new(0.7e9).unwrap(), SimDuration::from_us(3));
    let axes = |axes: [u32; 5], experts| laid_out(if experts { with_experts(small()) } else { small() }, axes);
    // Ranks per server, and ranks per class on the switch and on the rail.
    let cases = [
        (axes([1, 1, 2, 8, 2], true), 1, [8, 8]),
        (axes([1, 1, 4, 8, 2], true), 4, [2, 2]),
        (axes([1, 1, 4, 8, 2], true), 2, [4, 4]),
        (Spec { zero: 1, ..axes([1, 2, 1, 4, 2], false) }, 2, [4, 4]),
        (Spec { zero: 3, ..axes([2, 1, 2, 4, 1], true) }, 2, [4, 8]),
        (axes([1, 1, 1, 8, 1], false), 4, [2, 2]),
    ];
    for (spec, together, classes) in cases {
        let workload = Workload::new(spec).unwrap();
        for (preset, expected) in
            [Preset::Switch, Preset::Rail { per_server: together, fabric }].into_iter().zip(classes)
        {
            let mut cluster = cluster(workload.world_size(), link, preset.clone());
            if preset == Preset::Switch {
                cluster = on_servers(cluster, together, link, fabric);
            }
            cluster.backend.protocol.connections_per_group = true;
            let all = simulate(&workload, &cluster, &Symmetry::default()).unwrap();
            let symmetries = workload.symmetries(&[together], true);
            let tried =
                symmetries.iter().map(|symmetry| Some((symmetry.order(), try_to(&workload, &cluster, symmetry)?)));
            let (order, few) = tried.flatten().next().expect("the last one is trivial");
            assert_eq!(order, expected, "{:?} on {preset:?}", workload.spec().layout);
            assert!(few == all, "{:?} on {preset:?}", workload.spec().layout);
        }
    }
}

/// Every folded run that is not refused gives the ends of the full run, on each kind of network, with connections per
/// group and without.
#[test]
fn whatever_is_folded_is_exact() {
    let fabric = LinkSpec::new(Rate::new(3.3e9).unwrap(), SimDuration::from_ns(500));
    let link = LinkSpec::new(Rate::new(0.7e9).unwrap(), SimDuration::from_us(3));
    let tiny = |spec: Spec| Spec { model: Model { layers: 2, ..spec.model }, batch: 8, micro_batch: 1, ..spec };
    let job = |zero, axes: [u32; 5]| laid_out(tiny(Spec { zero, ..small() }), axes);
    let jobs = [
        with_experts(job(0, [1, 1, 2, 4, 2])),
        with_experts(job(2, [1, 1, 4, 8, 1])),
        with_experts(job(1, [2, 1, 2, 4, 1])),
        with_structure(job(1, [2, 1, 2, 4, 1])),
        spread(with_structure(job(1, [2, 1, 2, 4, 1]))),
        in_ring(job(1, [2, 2, 1, 4, 1]), ContextOrder::Zigzag),
        job(3, [1, 2, 1, 4, 1]),
        job(0, [2, 2, 1, 2, 1]),
    ];
    for spec in jobs {
        let workload = Workload::new(spec).unwrap();
        let base = |preset| cluster(workload.world_size(), link, preset);
        let clusters = [
            base(Preset::Switch),
            on_servers(base(Preset::Switch), 2, link, fabric),
            base(Preset::Rail { per_server: 2, fabric }),
            base(Preset::FullyConnected),
            base(Preset::Ring),
        ];
        for (number, mut cluster) in clusters.into_iter().enumerate() {
            let mut folded = 0;
            for per_group in [false, true] {
                cluster.backend.protocol.connections_per_group = per_group;
                let all = simulate(&workload, &cluster, &Symmetry::default()).unwrap();
                for symmetry in workload.symmetries(&[2], true).iter().filter(|symmetry| !symmetry.is_trivial()) {
                    if let Some(few) = try_to(&workload, &cluster, symmetry) {
                        let what = (workload.spec().layout, number, per_group, symmetry);
                        assert!(few == all, "{what:?}");
                        folded += 1;
                    }
                }
            }
            assert!(folded > 0 || number > 2, "{:?} on cluster {number}", workload.spec().layout);
        }
    }
}

/// Places several devices on each host.
fn on_servers(cluster: Cluster, together: u32, link: LinkSpec, local: LinkSpec) -> Cluster {
    let count = cluster.devices.len() as u32 / together;
    let host = |server| HostSpec { local: Some(local), ..HostSpec::new(format!("server.{server:03}")) };
    let hosts: Vec<HostSpec> = (0..count).map(host).collect();
    let devices =
        cluster.devices.into_iter().zip(0..).map(|(device, rank)| Device { host: HostId(rank / together), ..device });
    Cluster {
        devices: devices.collect(),
        topology: Topology::preset(&Preset::Switch, &hosts, link).unwrap(),
        ..cluster
    }
}

/// The folded run; `None`: the cluster or the run does not have this symmetry.
fn try_to(workload: &Workload, cluster: &Cluster, symmetry: &Symmetry) -> Option<Vec<RankStatistics>> {
    Engine::folded(cluster, symmetry).ok()?;
    let few = simulate(workload, cluster, symmetry).ok()?;
    Some(few)
}

#[test]
fn nodes_come_after_those_they_depend_on_and_their_groups_are_described() {
    for (name, spec) in jobs() {
        for trace in nodes(&spec) {
            for (at, node) in trace.iter().enumerate() {
                assert_eq!(node.id, at as u64, "{name}");
                assert!(node.data_deps.iter().all(|dependency| *dependency < node.id), "{name}: {node:?}");
                if node.r#type() == NodeType::CommColl {
                    let group = node.process_group().unwrap();
                    let describes = |node: &Node| {
                        let groups = uniference_formats::chakra::groups::process_groups(node).unwrap();
                        groups.is_some_and(|groups| groups[0].name == group)
                    };
                    assert!(trace.iter().any(describes), "{name}: {group}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let base = || laid_out(small(), [2, 1, 1, 2, 2]);
    let mut no_sequence_parallel = laid_out(with_experts(small()), [2, 1, 1, 2, 1]);
    no_sequence_parallel.layout.sequence_parallel = false;
    let specs = [
        laid_out(small(), [3, 1, 1, 1, 1]),
        Spec { batch: 9, ..base() },
        Spec { sequence: 127, ..base() },
        Spec { sequence: 0, ..base() },
        Spec { sequence: 1 << 39, ..base() },
        laid_out(small(), [1 << 20, 1, 1, 2, 1]),
        laid_out(small(), [1, 1, 1, 1, 8]),
        Spec { schedule: Schedule::Interleaved(2), batch: 12, ..laid_out(small(), [1, 1, 1, 2, 2]) }.odd(),
        Spec { schedule: Schedule::Interleaved(2), ..laid_out(small(), [1, 1, 1, 2, 1]) },
        laid_out(small(), [1, 1, 2, 2, 1]),
        laid_out(with_experts(small()), [1, 1, 4, 2, 1]),
        no_sequence_parallel,
        Spec { zero: 4, ..base() },
        Spec { phase: Phase::Decode, ..laid_out(small(), [1, 2, 1, 1, 1]) },
        Spec { new_tokens: 2, ..base() },
        Spec { model: Model { kv_heads: 6, ..small().model }, ..base() },
        Spec { phase: Phase::Prefill, zero: 3, ..base() },
        // The checks refuse 2^38 / 2 micro-batches, and 2^27 layers, before any operator is built.
        Spec { batch: 1 << 38, micro_batch: 1, ..base() },
        Spec {
            model: Model { layers: 1 << 27, hidden: 8, heads: 8, kv_heads: 8, ffn: 8, vocabulary: 8, ..small().model },
            ..base()
        },
    ];
    let check = |spec| Workload::new(spec).and_then(|workload| workload.check_passes());
    let shown = specs.map(|spec| check(spec).err().map_or("accepted".to_owned(), |error| error.to_string()));
    insta::assert_snapshot!(shown.join("\n"));
}

/// Each of 16 stages runs 128 micro-batches in 4 layers for 16,384 tokens: 2^23 passes. Memory does not grow with
/// passes, so the memory of a longer job without a pipeline can be computed.
#[test]
fn long_jobs_of_large_models_can_be_generated() {
    let model = Model { layers: 61, ..small().model };
    let decode = |stages| {
        let spec = Spec { model: model.clone(), phase: Phase::Decode, new_tokens: 1 << 14, batch: 128, ..small() };
        Workload::new(Spec { micro_batch: 1, ..laid_out(spec, [1, 1, 1, 1, stages]) }).unwrap()
    };
    assert_eq!([1, 16].map(|stages| decode(stages).check_passes()), [Ok(()), Ok(())]);
    let longer = Spec { batch: 1 << 12, ..decode(1).spec().clone() };
    let longer = Workload::new(longer).unwrap();
    assert!(longer.check_passes().is_err() && longer.memory(0).total() > 0);
}

impl Spec {
    /// The job with an odd number of micro-batches.
    fn odd(self) -> Spec {
        Spec { batch: 6 * self.micro_batch, ..self }
    }
}
