//! Tests of folded runs on NCCL, with clusters from cluster files: for each symmetry that is accepted, every rank's
//! figures equal those of the full run, and at least one symmetry is accepted.

use super::*;
use proptest::prelude::*;
use uniference_formats::cluster::{Choices, ClusterFile};

/// A cluster of `ranks` ranks with `backend = "nccl"`.
fn nccl(ranks: u32, network: &str) -> Cluster {
    nccl_with("", ranks, network)
}

/// The cluster with additional settings of the backend.
fn nccl_with(backend: &str, ranks: u32, network: &str) -> Cluster {
    let text = format!(
        "[backend]\nname = \"nccl\"\n{backend}\n[[device]]\nname = \"gpu\"\ncount = {ranks}\n[network]\n{network}\n"
    );
    let file = ClusterFile::parse("test.toml", &text, &[]).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    file.resolve(&Choices::default()).unwrap_or_else(|error| panic!("{text}: {error:?}")).cluster
}

/// Servers of `per_server` GPUs; each GPU has a NIC.
fn servers(per_server: u32, fabric: &str) -> String {
    format!("preset = \"rail\"\nper_server = {per_server}\nfabric = \"{fabric}\"\nlink = \"infiniband_ndr\"")
}

/// A small job with large messages: its gradients' elements have the size of real ones, and blocks are equal.
fn job(layout: [u32; 5], hidden: u64, zero: u8) -> Spec {
    let model = Model {
        layers: 4,
        hidden,
        heads: 16,
        kv_heads: 8,
        ffn: 4 * hidden,
        vocabulary: 2_048,
        experts: None,
        latent: None,
        mlp: Mlp::SwiGlu,
        positions: 0,
        tied: false,
    };
    let [tensor, context, _, data, _] = layout;
    let sequence = 64 * u64::from(tensor * context);
    laid_out(
        Spec { model, sequence, zero, gradient_bytes: 4, batch: 4 * u64::from(data), micro_batch: 1, ..small() },
        layout,
    )
}

/// Asserts that folded runs are exact, and returns the smallest number of simulated ranks.
fn fewest_simulated(workload: &Workload, cluster: &Cluster) -> u32 {
    let all = simulate(workload, cluster, &Symmetry::default()).unwrap();
    let exact = |symmetry: &Symmetry| match simulate(workload, cluster, symmetry) {
        Ok(few) => {
            assert_eq!(few, all, "{:?} {symmetry:?}", workload.spec().layout);
            true
        }
        Err(_) => false,
    };
    let folds = workload
        .symmetries(&cluster.blocks(), cluster.backend.protocol.connections_per_group)
        .into_iter()
        .filter(exact)
        .map(|symmetry| symmetry.order());
    workload.world_size() / folds.max().expect("each rank for itself is exact")
}

/// Folds of Llama on servers: these depend on the groups that communicate by rings, in one server or over several.
#[rstest]
// A replica per server: tensor-parallel ranks use NVLink SHARP, gradients use rings over servers. One rank represents
// all.
#[case::sharded([4, 1, 1, 4, 1], 1, "nvlink4", 1)]
// Two replicas per server: gradients use rings through every NIC, which rotate inside servers and over them.
#[case::several_replicas_a_server([2, 1, 1, 8, 1], 1, "nvlink4", 1)]
#[case::no_nvls([2, 1, 1, 8, 1], 1, "nvlink3", 1)]
// Gradients are all-reduced, for which four servers use rings at this size.
#[case::all_reduced([4, 1, 1, 4, 1], 0, "nvlink4", 1)]
// Each pipeline stage occupies two servers.
#[case::pipeline([4, 1, 1, 2, 2], 1, "nvlink4", 2)]
#[case::everything_data([1, 1, 1, 16, 1], 3, "nvlink3", 1)]
#[case::context([2, 2, 1, 4, 1], 1, "nvlink4", 1)]
fn jobs_on_servers_fold(#[case] layout: [u32; 5], #[case] zero: u8, #[case] fabric: &str, #[case] simulated: u32) {
    let workload = Workload::new(job(layout, 512, zero)).unwrap();
    let cluster = nccl(workload.world_size(), &servers(4, fabric));
    assert_eq!(fewest_simulated(&workload, &cluster), simulated);
}

/// Stages with several model chunks send and receive at the ends of the same micro-batches, and each post costs the CPU
/// a call.
#[rstest]
#[case::two_stages([4, 1, 1, 2, 2], 2, 2)]
#[case::four_stages([2, 1, 1, 4, 4], 2, 4)]
#[case::more_pieces([4, 2, 1, 2, 2], 4, 2)]
fn interleaved_pipelines_fold(#[case] layout: [u32; 5], #[case] pieces: u32, #[case] simulated: u32) {
    let schedule = Schedule::Interleaved(pieces);
    let base = job(layout, 512, 1);
    let workload = Workload::new(Spec { schedule, model: Model { layers: 8, ..base.model.clone() }, ..base }).unwrap();
    let cluster = nccl(workload.world_size(), &servers(4, "nvlink4"));
    assert_eq!(fewest_simulated(&workload, &cluster), simulated);
}

/// If each rank is a server of its own, tensor-parallel ranks reduce their losses by a tree: they do not fold, but
/// their replicas do. On a ring and on a torus the ranks of a stage are a part of the hosts, which no rotation of all
/// hosts maps onto itself.
#[rstest]
#[case::switch("preset = \"switch\"\nlink = \"infiniband_ndr\"", 8)]
#[case::fully_connected("preset = \"fully_connected\"\nlink = \"infiniband_ndr\"", 8)]
#[case::ring("preset = \"ring\"\nlink = \"infiniband_ndr\"", 16)]
#[case::torus("preset = \"torus\"\ndims = [4, 4]\nlink = \"infiniband_ndr\"", 16)]
#[case::star("preset = \"star\"\nlink = \"infiniband_ndr\"", 16)]
#[case::fat_tree("preset = \"fat_tree\"\nhosts_per_leaf = 4\nspines = 4\nlink = \"infiniband_ndr\"", 16)]
fn presets_that_fold(#[case] network: &str, #[case] simulated: u32) {
    let workload = Workload::new(job([4, 1, 1, 2, 2], 512, 1)).unwrap();
    assert_eq!(fewest_simulated(&workload, &nccl(workload.world_size(), network)), simulated);
}

fn case() -> impl Strategy<Value = (Spec, u32, &'static str)> {
    let powers = |most: u32| (0..=most).prop_map(|bits| 1 << bits);
    let layout = (powers(2), powers(1), powers(2), powers(1))
        .prop_filter("2 to 32 ranks", |(t, c, d, p)| (2..=32).contains(&(t * c * d * p)));
    let sizes = (prop::sample::select(vec![64, 512, 4_096]), 0..4u8, powers(2));
    let fabric = prop::sample::select(vec!["pcie4_x16", "nvlink3", "nvlink4"]);
    let (clip, pieces) = (prop::bool::ANY, powers(1));
    (layout, sizes, fabric, clip, pieces).prop_map(
        |((t, c, d, p), (hidden, zero, per_server), fabric, clip, pieces)| {
            let zero = if p > 1 { zero.min(2) } else { zero };
            let schedule =
                if p > 1 && pieces > 1 { Schedule::Interleaved(pieces) } else { Schedule::OneForwardOneBackward };
            let spec = Spec { clip_gradients: clip, schedule, ..job([t, c, 1, d, p], hidden, zero) };
            (spec, per_server.min(t * c * d * p), fabric)
        },
    )
}

/// Equivalent ranks stay equivalent with unequal experts, latent attention and rings.
#[rstest]
#[case::unequal(spread(with_structure(job([2, 1, 2, 8, 1], 256, 1))), [2, 1, 2, 8, 1])]
#[case::equal(with_structure(job([2, 1, 2, 8, 1], 256, 1)), [2, 1, 2, 8, 1])]
#[case::ring(in_ring(job([2, 4, 1, 2, 1], 256, 1), ContextOrder::Zigzag), [2, 4, 1, 2, 1])]
#[case::ring_of_stages(in_ring(job([2, 2, 1, 2, 2], 256, 0), ContextOrder::Contiguous), [2, 2, 1, 2, 2])]
fn structured_jobs_on_servers_take_as_long_folded(#[case] spec: Spec, #[case] layout: [u32; 5]) {
    let workload = Workload::new(laid_out(spec, layout)).unwrap();
    let simulated = fewest_simulated(&workload, &nccl(workload.world_size(), &servers(4, "nvlink4")));
    assert!(simulated < workload.world_size(), "{simulated}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_job_on_servers_takes_as_long_folded((spec, per_server, fabric) in case()) {
        let workload = Workload::new(spec).unwrap();
        fewest_simulated(&workload, &nccl(workload.world_size(), &servers(per_server, fabric)));
    }
}

/// Libraries choose algorithms by the type of a reduction: NVLink SHARP adds numbers, not bytes. Gradients of 2 bytes
/// have the model's type, those of 4 bytes are float32.
#[test]
fn sums_say_what_they_add_up() {
    let spec = |gradient_bytes| Spec { gradient_bytes, ..job([1, 1, 1, 8, 1], 256, 0) };
    let types = |gradient_bytes| -> std::collections::BTreeSet<String> {
        let nodes = nodes(&spec(gradient_bytes)).into_iter().flatten();
        nodes.filter_map(|node| node.text(DTYPE).map(str::to_owned)).collect()
    };
    assert_eq!(types(2), ["bfloat16".to_owned()].into());
    assert_eq!(types(4), ["float32".to_owned()].into());
    // With in-switch reduction each rank's link carries each byte once, otherwise 2 (8 - 1) / 8 times.
    let workload = Workload::new(Spec { model: Model { vocabulary: 1 << 22, ..spec(2).model }, ..spec(2) }).unwrap();
    let finish = |backend: &str| {
        let cluster = nccl_with(backend, 8, &servers(8, "nvlink4"));
        simulate(&workload, &cluster, &Symmetry::default()).unwrap()[0].finish.unwrap()
    };
    assert!(finish("nvls = true") < finish("nvls = false"));
}

/// A rail network as a list of links: two links of 350 ns from each GPU to its fabric, since GPU to GPU takes 700 ns,
/// and two links of 1 us from the GPU's NIC to its rail.
fn listed(ranks: u32, per_server: u32, more: &str) -> String {
    let link = |gpu: u32| {
        let (server, rail) = (gpu / per_server, gpu % per_server);
        format!(
            "{{ between = [\"gpu.{gpu}\", \"fabric.{server}\"], bandwidth = \"240 GB/s\", latency = \"350 ns\" }}, \
             {{ between = [\"gpu.{gpu}\", \"rail.{rail}\"], bandwidth = \"400 Gbps\", latency = \"1 us\" }}"
        )
    };
    format!("{more}\nlinks = [{}]", (0..ranks).map(link).collect::<Vec<_>>().join(", "))
}

/// Rings and trees use all NICs of servers that are listed link by link, if the file says which GPUs are in one server.
#[test]
fn a_rail_takes_as_long_as_its_links() {
    let job = job([1, 1, 1, 16, 1], 1024, 1);
    let workload = Workload::new(job).unwrap();
    let figures = |network: &str| simulate(&workload, &nccl(16, network), &Symmetry::default()).unwrap();
    let end = |figures: &[RankStatistics]| figures.iter().map(|rank| rank.finish.unwrap()).max().unwrap();
    let rail = figures(&servers(8, "nvlink3"));
    assert_eq!(figures(&listed(16, 8, "per_server = 8")), rail);
    // Without servers, one ring uses one NIC at a time.
    assert!(end(&figures(&listed(16, 8, ""))) > end(&rail));
}
