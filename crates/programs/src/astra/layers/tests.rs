use super::nodes::Traces;
use super::*;
use proptest::prelude::*;
use uniference_formats::chakra::check::check;
use uniference_formats::chakra::groups::process_groups;
use uniference_formats::chakra::read::Reader;

fn parse(text: &str) -> TextWorkload {
    TextWorkload::parse("w.txt", text).unwrap_or_else(|error| panic!("{}", error.render(false)))
}

/// Nodes as `id name dependencies`.
fn outline(traces: &Traces) -> Vec<String> {
    let short = |name: &str| name.replace("COMP_NODE_", "").replace("COMM_COLL_NODE_", "*");
    traces.nodes.iter().map(|node| format!("{} {} {:?}", node.id, short(&node.name), node.data_deps)).collect()
}

fn made(text: &str, ranks: u64, passes: u32) -> Vec<String> {
    outline(&parse(text).traces(ranks, passes).unwrap())
}

/// Nodes are those of mlcommons/chakra's `text_converter.py` for each policy, by its source.
#[test]
fn policies_of_chakras_converter_give_its_nodes() {
    let data = "DATA\n2\na -1 5 NONE 0 6 NONE 0 7 ALLREDUCE 100 1\nb -1 5 NONE 0 6 NONE 0 7 ALLREDUCE 100 1\n";
    let twice = [
        "0 a_FWD []",
        "1 b_FWD [0]",
        "2 b_BWD_WG [1]",
        "3 *b_ALLREDUCE [2]",
        "4 b_BWD_IG [2]",
        "5 a_BWD_WG [4]",
        "6 *a_ALLREDUCE [5]",
        "7 a_FWD [6]",
        "8 b_FWD [7, 3]",
        "9 b_BWD_WG [8]",
        "10 *b_ALLREDUCE [9]",
        "11 b_BWD_IG [9]",
        "12 a_BWD_WG [11]",
        "13 *a_ALLREDUCE [12]",
    ];
    assert_eq!(made(data, 4, 2), twice);
    let layers =
        "2\na -1 5 ALLGATHER 9 6 ALLTOALL 9 7 ALLREDUCE 9 1\nb -1 5 ALLGATHER 9 6 REDUCESCATTER 9 7 ALLREDUCE 9 1\n";
    let model = [
        "0 a_FWD []",
        "1 *a_ALLGATHER [0]",
        "2 b_FWD [1]",
        "3 *b_ALLGATHER [2]",
        "4 b_BWD_IG [3]",
        "5 *b_REDUCESCATTER [4]",
        "6 b_BWD_WG [4]",
        "7 a_BWD_IG [6, 5]",
        "8 a_BWD_WG [7]",
    ];
    assert_eq!(made(&format!("MODEL\n{layers}"), 4, 1), model);
    let hybrid = |mark: &str| {
        let mut nodes: Vec<String> = model[..5].iter().map(|node| (*node).to_owned()).collect();
        nodes.push(format!("5 *b{mark}_REDUCESCATTER [4]"));
        nodes.extend(
            ["6 b_BWD_WG [4]", "7 *b_ALLREDUCE [6]", "8 a_BWD_IG [6, 5]", "9 a_BWD_WG [8]", "10 *a_ALLREDUCE [9]"]
                .map(String::from),
        );
        nodes
    };
    assert_eq!(made(&format!("HYBRID_DATA_MODEL\n{layers}"), 4, 1), hybrid("_IG_COMM_"));
    assert_eq!(made(&format!("HYBRID_MODEL_DATA\n{layers}"), 4, 1), hybrid(""));
    let dlrm = "HYBRID_DLRM 1\n3\ne -1 3 ALLTOALL 9 3 ALLTOALL 9 3 NONE 0 1\nb -1 3 NONE 0 3 NONE 0 3 ALLREDUCE 9 1\nt -1 3 NONE 0 3 NONE 0 3 ALLREDUCE 9 1";
    let nodes = [
        "0 e_FWD []",
        "1 *e_ALLTOALL [0]",
        "2 b_FWD [0, 1]",
        "3 t_FWD [2]",
        "4 t_BWD_WG [3]",
        "5 *t_ALLREDUCE [4]",
        "6 t_BWD_IG [4]",
        "7 *e_ALLTOALL [6]",
        "8 b_BWD_WG [6]",
        "9 *b_ALLREDUCE [8]",
        "10 b_BWD_IG [8]",
        "11 e_BWD_WG [10, 7]",
    ];
    assert_eq!(made(dlrm, 4, 1), nodes);
    assert_eq!(made("MICRO\n1\na -1 1 NONE 0 1 NONE 0 1 ALLTOALL 9 1", 2, 2), ["0 *a_ALLTOALL []", "1 *a_ALLTOALL []"]);
}

#[test]
fn what_takes_no_time_and_moves_nothing_has_no_node() {
    // Chakra's converter writes an all-reduce of 0 bytes for NONE; its dependents depend on its dependencies.
    let model = "MODEL\n2\na -1 5 NONE 0 0 NONE 0 7 NONE 0 1\nb -1 5 ALLGATHER 0 6 NONE 0 7 NONE 0 1";
    assert_eq!(
        made(model, 4, 1),
        ["0 a_FWD []", "1 b_FWD [0]", "2 b_BWD_IG [1]", "3 b_BWD_WG [2]", "4 a_BWD_WG [3, 2]"]
    );
}

const SIMAI: &str = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 2 all_gpus: 8 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0.0
3
norm\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER_DP_EP\t4000\t100
column\t-1\t1750\tALLGATHER\t1000\t875\tREDUCESCATTER\t0\t875\tREDUCESCATTER\t800\t100
moe\t-1\t0\tALLTOALL_EP\t600\t0\tALLTOALL_EP\t600\t0\tNONE\t0\t100
";

#[test]
fn a_transformers_ranks_lie_side_by_side_and_times_are_nanoseconds() {
    let workload = parse(SIMAI);
    let traces = workload.traces(8, 1).unwrap();
    let groups = |rank| {
        let found =
            traces.groups(rank).iter().flat_map(|node| process_groups(node).unwrap().unwrap()).collect::<Vec<_>>();
        found.into_iter().map(|group| format!("{} {:?}", group.name, group.ranks)).collect::<Vec<_>>()
    };
    assert_eq!(groups(5), ["tp [4, 5]", "dp [1, 3, 5, 7]", "ep [5, 7]", "dp_ep [1, 5]"]);
    assert_eq!(
        outline(&traces),
        [
            "0 norm_FWD []",
            "1 column_FWD [0]",
            "2 *column_ALLGATHER [1]",
            "3 *moe_ALLTOALL [2]",
            "4 *moe_ALLTOALL [3]",
            "5 column_BWD_IG [4]",
            "6 column_BWD_WG [5]",
            "7 *column_REDUCESCATTER [6]",
            "8 column_UPDATE [7]",
            "9 norm_BWD_IG [6]",
            "10 norm_BWD_WG [9]",
            "11 *norm_ALLGATHER [10]",
            "12 norm_UPDATE [11]",
        ]
    );
    // SimAI's sizes of all-gathers are those of the result: 1,000 bytes of 2 ranks, 4,000 of 2.
    let sizes: Vec<Option<u64>> = [2, 3, 7, 11].map(|id: usize| traces.nodes[id].unsigned("comm_size")).to_vec();
    assert_eq!(sizes, [Some(500), Some(600), Some(800), Some(2000)]);
    assert_eq!(uniference_formats::chakra::own::duration(&traces.nodes[1]).as_ps(), 1_750_000);
    let other = workload.traces(16, 1).unwrap_err();
    assert_eq!(
        other,
        "the workload is for 8 ranks (all_gpus), but there are 16\nhint: use a cluster with one device per rank"
    );
    // With two stages, ranks of a stage are 4 apart.
    let staged = parse(&SIMAI.replace("pp: 1", "pp: 2").replace("all_gpus: 8", "all_gpus: 16")).traces(16, 1).unwrap();
    let ranks =
        staged.groups(5).iter().map(|node| process_groups(node).unwrap().unwrap()[0].ranks.clone()).collect::<Vec<_>>();
    assert_eq!(ranks, [vec![4, 5], vec![1, 5, 9, 13], vec![1, 5], vec![5, 13]]);
    assert!(
        staged.warnings[0].starts_with("the 2 pipeline stages do not wait for each other"),
        "{:?}",
        staged.warnings
    );
}

#[test]
fn checkpoints_bring_the_forward_pass_back() {
    let text = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 checkpoints: 1 0 checkpoint_initiates: 1 2\n3\n\
        a -1 1 NONE 0 1 NONE 0 0 NONE 0 0\nb -1 1 NONE 0 1 NONE 0 0 NONE 0 0\nc -1 1 NONE 0 1 NONE 0 0 ALLREDUCE 8 0\n";
    // In the next pass layer c waits for its gradients' all-reduce.
    let once = [
        "0 a_FWD []",
        "1 b_FWD [0]",
        "2 c_FWD [1]",
        "3 a_FWD_AGAIN [2]",
        "4 b_FWD_AGAIN [3]",
        "5 c_BWD_IG [4]",
        "6 *c_ALLREDUCE [5]",
        "7 b_BWD_IG [5]",
        "8 a_BWD_IG [7]",
    ];
    assert_eq!(made(text, 4, 1), once);
    assert_eq!(made(text, 4, 2)[9..12], ["9 a_FWD [8]", "10 b_FWD [9]", "11 c_FWD [10, 6]"]);
}

#[test]
fn mistakes_are_shown_where_they_stand() {
    let layer = "a -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 1\n";
    let transformer = |more: &str| format!("HYBRID_TRANSFORMER model_parallel_NPU_group: 2 {more}\n1\n{layer}");
    let texts = [
        String::new(),
        "DTAA\n1\n".to_owned(),
        "HYBRID_CUSTOMIZED\n1\n".to_owned(),
        "DATA\n".to_owned(),
        "DATA\nmany\n".to_owned(),
        "DATA\n0\n".to_owned(),
        format!("DATA\n2\n{layer}"),
        format!("DATA\n1\n{layer}{layer}"),
        "DATA\n1\na -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8\n".to_owned(),
        format!("DATA\n1\n{}", layer.replace("ALLREDUCE", "ALLREDUSE")),
        format!("DATA\n1\n{}", layer.replace("ALLREDUCE", "ALLREDUCE_EP")),
        format!("DATA\n1\n{}", layer.replace("8 1", "-8 1")),
        format!("DATA\n1\n{}", layer.replace("8 1", "2000000000000000 1")),
        format!("HYBRID_DLRM\n1\n{layer}"),
        format!("HYBRID_DLRM 3\n1\n{layer}"),
        transformer("pq: 1"),
        transformer("pp: 0"),
        transformer("ep:"),
        transformer("ep: 3 all_gpus: 16"),
        transformer("checkpoint_initiates: 1 0"),
        transformer("checkpoints: 1 5"),
    ];
    let shown: Vec<String> =
        texts.iter().map(|text| TextWorkload::parse("w.txt", text).unwrap_err().render(false)).collect();
    insta::assert_snapshot!(shown.join("\n\n"));
}

#[test]
fn the_first_word_tells_it_from_a_trace() {
    assert!(is_text_workload(b"DATA           \n6\n") && is_text_workload(b"\n MICRO\r\n1"));
    assert!(!is_text_workload(b"") && !is_text_workload(b"DATABASE\n") && !is_text_workload(&[0x1f, 0x8b, 8]));
}

fn work() -> impl Strategy<Value = String> {
    let kinds = ["NONE", "ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL"];
    (0..3u64, prop::sample::select(kinds.to_vec()), 0..3u64)
        .prop_map(|(time, kind, bytes)| format!("{time} {kind} {bytes}"))
}

proptest! {
    #[test]
    fn no_text_panics(text in "(DATA|MODEL|HYBRID_DLRM 1|HYBRID_TRANSFORMER ep: [0-3])?[\n \t]{0,2}[0-3]?\n([a-z] -1 [0-9A-Z. _\n-]{0,60}){0,3}") {
        if let Ok(workload) = TextWorkload::parse("w.txt", &text) {
            let _ = workload.traces(6, 2);
        }
    }

    /// Traces of each policy are acyclic graphs without missing attributes, for every rank.
    #[test]
    fn every_workload_can_be_run(policy in 0..9usize, works in prop::collection::vec([work(), work(), work()], 3..6), passes in 1..3u32) {
        let header = ["MICRO", "DATA", "MODEL", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_DLRM 1", "HYBRID_DLRM_ENHANCED 0",
            "HYBRID_TRANSFORMER model_parallel_NPU_group: 2", "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 all_gpus: 8"][policy];
        let layers: Vec<String> = works.iter().map(|[forward, input, weight]| format!("l -1 {forward} {input} {weight} 1")).collect();
        let traces = parse(&format!("{header}\n{}\n{}\n", layers.len(), layers.join("\n"))).traces(8, passes).unwrap();
        for rank in [0, 5] {
            let trace = [traces.head(rank), traces.body()].concat();
            let checked = check(Reader::open(&trace[..]).unwrap()).unwrap();
            prop_assert!(checked.findings.is_empty(), "{:?}", checked.findings);
        }
    }
}
