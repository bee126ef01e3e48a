use super::super::{Described, Part, describe, key};
use super::super::{sequences, with_sequences};
use super::{missing_argument, stacks};
use std::collections::{BTreeMap, BTreeSet};
use uniference_formats::operators::{Argument, Definition, Place, ScalarType, Tensor};
use uniference_sim::device::{Family, Layout, Operator, RowKind};
use uniference_sim::program::DType;

fn of(dtype: DType, sizes: &[u64], written: bool) -> Argument {
    let strides = (0..sizes.len()).map(|at| sizes[at + 1..].iter().product::<u64>() as i64).collect();
    let dtype = ScalarType::from(dtype);
    Argument::Tensor(Tensor { dtype, sizes: sizes.to_vec(), strides, place: Place::CPU, written })
}

fn half(sizes: &[u64]) -> Argument {
    of(DType::BFloat16, sizes, false)
}

fn eight_bits(sizes: &[u64]) -> Argument {
    of(DType::Float8E4M3, sizes, false)
}

fn float(sizes: &[u64]) -> Argument {
    of(DType::Float32, sizes, false)
}

fn int(sizes: &[u64]) -> Argument {
    of(DType::Int64, sizes, false)
}

fn definition(name: &str, arguments: Vec<Argument>, results: Vec<Argument>) -> Definition {
    Definition { name: name.to_owned(), arguments, results }
}

fn only(name: &str, arguments: Vec<Argument>, results: Vec<Argument>) -> Part {
    let Described::Parts(parts) = describe(&definition(name, arguments, results)) else {
        panic!("{name} is described")
    };
    let [part] = <[Part; 1]>::try_from(parts).expect("it is one");
    part
}

/// A Triton kernel, with the tensors that it reads, those that it writes, and integers.
fn kernel(name: &str, read: &[(&str, Argument)], written: (&str, Argument), numbers: &[(&str, i64)]) -> Part {
    let Definition { name, arguments, .. } = kernel_definition(name, read, written, numbers);
    only(&name, arguments, vec![])
}

fn kernel_definition(
    name: &str,
    read: &[(&str, Argument)],
    written: (&str, Argument),
    numbers: &[(&str, i64)],
) -> Definition {
    let names = |names: Vec<&str>| names.join(",");
    let text = [
        names(read.iter().map(|(name, _)| *name).collect()),
        written.0.to_owned(),
        names(numbers.iter().map(|(name, _)| *name).collect()),
    ];
    let list = |tensors: Vec<&Argument>| {
        Argument::Tensors(tensors.into_iter().flat_map(Argument::tensors).cloned().map(Some).collect())
    };
    let numbers = Argument::Ints(numbers.iter().map(|(_, value)| *value).collect());
    let read = list(read.iter().map(|(_, tensor)| tensor).collect());
    definition(name, vec![Argument::Text(text.join(";")), read, list(vec![&written.1]), numbers], vec![])
}

/// An operator's arguments in another order than the checked one, and with another argument between them.
#[test]
fn arguments_are_read_by_their_names_and_not_by_their_positions() {
    let (result, input, weight) = (of(DType::BFloat16, &[12, 64], true), half(&[12, 64]), half(&[64]));
    let names = |names: &str| Argument::Names(names.to_owned());
    let checked = only("_C::rms_norm", vec![result.clone(), input.clone(), weight.clone(), Argument::Float], vec![]);
    let reordered = vec![weight.clone(), Argument::Float, int(&[7]), input.clone(), result.clone()];
    let with = |given: &str| [&reordered[..], &[names(given)]].concat();
    let found = only("_C::rms_norm", with("weight,epsilon,positions,input,result"), vec![]);
    assert_eq!((found.operator, &found.variant), (checked.operator, &checked.variant));
    // Databases do not distinguish calls by names.
    let unnamed = definition("_C::rms_norm", reordered.clone(), vec![]);
    assert_eq!(key(&definition("_C::rms_norm", with("weight,epsilon,positions,input,result"), vec![])), key(&unnamed));
    // Without an argument that is read, it is not described, instead of read by positions.
    let renamed = definition("_C::rms_norm", with("gain,epsilon,positions,input,result"), vec![]);
    assert_eq!(describe(&renamed), Described::Unknown);
    assert_eq!(missing_argument(&renamed), Some("weight"));
    assert_eq!(missing_argument(&definition("_C::rms_norm", with("weight,epsilon,x,input,result"), vec![])), None);
    // Sequence lengths are arguments by name, too.
    let borders = "q,k,v,out,cu_seqlens_q,cu_seqlens_k,seqused_k,block_table,max_seqlen_k,is_causal,\
        window_size_left,window_size_right";
    let [query, cache] = [half(&[2, 8, 128]), half(&[1000, 16, 2, 128])];
    let mut arguments = vec![query, cache.clone(), cache, Argument::None, int(&[3]), Argument::None, int(&[2])];
    arguments.extend([int(&[2, 32]), Argument::Int(300), Argument::Bool(true), Argument::Int(-1), Argument::Int(-1)]);
    let lengths = |place: usize| [(4, &[0, 1, 2][..]), (6, &[300, 20][..])].into_iter().find(|(at, _)| *at == place);
    let call = |given: &str| definition("_vllm_fa2_C::varlen_fwd", [&arguments[..], &[names(given)]].concat(), vec![]);
    let found = sequences(&call(borders), |place| lengths(place).map(|(_, values)| values)).expect("they are known");
    assert_eq!((found[0].count, found[0].keys), (2, 320));
    let renamed = call(&borders.replace("seqused_k", "lengths"));
    assert_eq!(sequences(&renamed, |_| Some(&[0, 1, 2][..])), None);
    assert_eq!((describe(&renamed), missing_argument(&renamed)), (Described::Unknown, Some("seqused_k")));
}

/// The names that descriptions read are those of the checked schemas.
#[test]
fn descriptions_read_arguments_that_the_checked_schemas_have() {
    let schemas = || stacks::STACKS.iter().flat_map(|stack| stack.schemas);
    assert!(schemas().count() > 100);
    for (name, arguments) in schemas() {
        // Numbers and tensors at all places, as the types of arguments are not in the table.
        for value in [half(&[2, 3, 4, 8]), Argument::Int(4)] {
            let arguments = vec![value; arguments.split(' ').count()];
            assert_eq!(missing_argument(&definition(name, arguments, vec![half(&[4, 8])])), None, "{name}");
        }
    }
}

#[test]
fn a_version_that_was_not_checked_is_named_if_its_operators_ran() {
    let ran = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    let installed = |version: &str| BTreeMap::from([("vllm".to_owned(), version.to_owned())]);
    let warnings = |names: &[&str], version: &str| stacks::unchecked(&ran(names), &installed(version));
    let names = ["_C::rms_norm", "_C::silu_and_mul", "triton::_fwd_kernel_stage1"];
    let [warning] = <[String; 1]>::try_from(warnings(&names, "0.34.1")).expect("it is one package");
    assert_eq!(
        warning,
        "vllm 0.34.1 is installed, but costs of its operators were only checked with 0.33.0: they may be wrong (for example _C::rms_norm)"
    );
    assert_eq!(warnings(&names[2..], "0.34.1").len(), 1);
    for version in ["0.33.0", "0.33.0+cu132", "0.33.0.post1"] {
        assert!(warnings(&names, version).is_empty(), "{version}");
    }
    assert!(warnings(&["sgl_kernel::rmsnorm", "aten::mm", "triton::own"], "0.34.1").is_empty());
    assert!(stacks::unchecked(&ran(&names), &BTreeMap::new()).is_empty());
}

/// 7 tokens, keys and values of 2 heads of 32, a cache of 1,000 slots in 8 bits.
#[test]
fn what_goes_to_a_cache_is_what_tokens_have_and_not_the_cache() {
    let cache = || of(DType::Float8E4M3, &[1000, 64], true);
    let table = float(&[4096, 32]);
    let (query, key, value) = (half(&[7, 8, 32]), half(&[7, 2, 32]), half(&[7, 2, 32]));
    let arguments = vec![query, key.clone(), value, cache(), cache(), table, int(&[7]), int(&[7])];
    let part = only("sglang::apply_rope_inplace_with_kvcache", arguments, vec![]);
    let (queries, keys) = (7 * 8 * 32 * 2, 7 * 2 * 32 * 2);
    assert_eq!(part.operator.read.0, queries + 2 * keys + 7 * 8 + 7 * 32 * 4);
    assert_eq!(part.operator.written.0, queries + keys + 2 * keys / 2);

    let latent = of(DType::BFloat16, &[1000, 16, 576], true);
    let arguments = vec![half(&[7, 512]), half(&[7, 64]), latent.clone(), int(&[7])];
    let part = only("_C_cache_ops::concat_and_cache_mla", arguments, vec![]);
    assert_eq!((part.operator.read.0, part.operator.written.0), (7 * 576 * 2 + 7 * 8, 7 * 576 * 2));
    // 300 vectors, into a workspace with room for more, or into a part of it.
    let moved = (300 * 576 * 2, 300 * 576 * 2);
    let numbers = [int(&[2, 9]), int(&[3]), int(&[300]), Argument::Int(300)];
    let whole = [latent.clone(), half(&[4096, 576])].into_iter().chain(numbers).collect();
    let part = only("_C_cache_ops::gather_and_maybe_dequant_cache", whole, vec![]);
    assert_eq!((part.operator.read.0, part.operator.written.0), moved);
    let piece = vec![latent, half(&[300, 576]), int(&[2, 9]), int(&[3]), Argument::Int(2)];
    let part = only("_C_cache_ops::cp_gather_cache", piece, vec![]);
    assert_eq!((part.operator.read.0, part.operator.written.0), moved);
}

/// 12 tokens of width 64 by weights of 128 columns.
#[test]
fn products_are_told_by_their_tokens_and_results_however_weights_are_packed() {
    let (a, result) = (half(&[3, 4, 64]), half(&[3, 4, 128]));
    let packed = of(DType::Int32, &[4, 256], false);
    let mut marlin = vec![Argument::None; 16];
    (marlin[0], marlin[2], marlin[4], marlin[8]) = (a.clone(), packed.clone(), half(&[1, 128]), int(&[999]));
    let gptq = vec![a.clone(), packed.clone(), of(DType::Int32, &[1, 16], false), half(&[1, 128])];
    let weights = 4 * 256 * 4 + 128 * 2;
    for (name, arguments, further) in [("_C::marlin_gemm", marlin, 0), ("_C::gptq_gemm", gptq, 16 * 4)] {
        let Part { operator, variant, .. } = only(name, arguments, vec![result.clone()]);
        assert!(
            matches!(operator.family, Family::Gemm { batch: 1, m: 12, n: 128, k: 64, layout: Layout::NT }),
            "{name}"
        );
        assert_eq!((operator.flops, operator.elements), (2 * 12 * 128 * 64, Some(DType::BFloat16.into())), "{name}");
        assert_eq!(operator.read.0, 12 * 64 * 2 + weights + further, "{name}");
        assert_eq!((operator.written.0, variant.as_str()), (12 * 128 * 2, "nt"), "{name}");
    }

    // The same in 8 bits, by the schemas of DeepGEMM and SGLang, and by a Triton kernel: each block of 16 has a scale.
    let (a, scales) = (eight_bits(&[12, 64]), float(&[12, 4]));
    let (weights, of_weights, result) = (eight_bits(&[128, 64]), float(&[8, 4]), half(&[12, 128]));
    let five = vec![a.clone(), scales.clone(), weights.clone(), of_weights.clone(), result.clone()];
    let deep = only("deep_gemm::fp8_fp4_gemm_nt", five, vec![]);
    let read = [("A", a.clone()), ("B", weights), ("As", scales.clone()), ("Bs", of_weights.clone())];
    let sizes = [("M", 12), ("N", 128), ("K", 64)];
    let written = kernel("triton::_w8a8_block_fp8_matmul", &read, ("C", result.clone()), &sizes);
    assert_eq!(written, deep);
    assert_eq!((deep.operator.elements, deep.variant.as_str()), (Some(DType::Float8E4M3.into()), "nt_block"));
    assert_eq!(deep.operator.read.0, 12 * 64 + 128 * 64 + 4 * (12 * 4 + 8 * 4));
    let Argument::Tensor(by_columns) = eight_bits(&[64, 128]) else { unreachable!() };
    let by_columns = Argument::Tensor(Tensor { strides: vec![1, 64], ..by_columns });
    let four = vec![a, by_columns, scales, of_weights, Argument::None, Argument::None];
    assert_eq!(only("sgl_kernel::fp8_scaled_mm", four, vec![result]), deep);
}

/// 3 tokens with 2 experts each, of 8 experts with weights of 32 x 16: they select 5, each with at most 2 rows.
#[test]
fn experts_are_met_by_choices_whatever_computes_them() {
    let rows = |width: u64| half(&[6, width]);
    let experts = |found: &Part, each: u64, read: u64| {
        let operator = &found.operator;
        assert!(matches!(operator.family, Family::Gemm { batch: 5, m: 2, n: 32, k: 16, layout: Layout::NT }));
        assert_eq!((operator.flops, operator.read.0), (2 * 6 * 32 * 16, 5 * each + read));
        assert_eq!(operator.written.0, 6 * 32 * 2);
    };
    let scales = [float(&[6, 1]), float(&[8, 32])];
    let weights = eight_bits(&[8, 32, 16]);
    let grouped = [rows(32), eight_bits(&[6, 16]), weights.clone()].into_iter().chain(scales).collect();
    let found = only("_C::cutlass_moe_mm", grouped, vec![]);
    experts(&found, 32 * 16 + 4 * 32, 6 * 16 + 4 * 6);
    assert_eq!(found.variant, "nt_row_experts");

    let mut marlin = vec![Argument::None; 26];
    (marlin[0], marlin[2], marlin[4]) = (half(&[3, 16]), of(DType::Int32, &[8, 1, 64], false), half(&[8, 1, 32]));
    for (place, value) in [(14, 2), (17, 3), (18, 32), (19, 16)] {
        marlin[place] = Argument::Int(value);
    }
    experts(&only("_moe_C::moe_wna16_marlin_gemm", marlin, vec![]), 64 * 4 + 32 * 2, 3 * 16 * 2);

    // Weights of 4 bits, two per byte, with a scale per 8. A call with experts does not give the number of rows.
    let (x, sorted) = (("X", half(&[3, 16])), ("XPtr", half(&[6, 16])));
    let weights = [
        ("W", of(DType::UInt8, &[8, 8, 32], false)),
        ("WMxScale", of(DType::UInt8, &[8, 2, 32], false)),
        ("ExptHist", of(DType::Int32, &[8], false)),
    ];
    let gather = ("GatherIndx", of(DType::Int32, &[6], false));
    let sizes = [("N", 32), ("K", 16), ("N_EXPTS_TOT", 8)];
    let [gathered, put] = [vec![x.clone(), gather], vec![sorted]].map(|rows| [rows, weights.to_vec()].concat());
    experts(&kernel("triton::_matmul_ogs", &gathered, ("Y", rows(32)), &sizes), 8 * 32 + 2 * 32, 3 * 16 * 2);
    experts(&kernel("triton::_matmul_ogs", &put, ("Y", rows(32)), &sizes), 8 * 32 + 2 * 32, 6 * 16 * 2);
    let all = [vec![x], weights[..2].to_vec()].concat();
    let dense = kernel("triton::_p_matmul_ogs", &all, ("YPtr", half(&[3, 32])), &[("M", 3), ("N", 32), ("K", 16)]);
    assert!(matches!(dense.operator.family, Family::Gemm { batch: 1, m: 3, n: 32, k: 16, .. }));

    // DeepGEMM allocates 128 rows per expert: 6 choices; 1,000, which select all experts; and 9, the middle of 128
    // numbers with the same allocation.
    let grouped = |rows: u64| {
        let (a, scales) = (eight_bits(&[rows, 16]), float(&[rows, 1]));
        let (weights, of_weights) = (eight_bits(&[8, 32, 16]), float(&[8, 1, 1]));
        let arguments = vec![a, scales, weights, of_weights, half(&[rows, 32]), int(&[rows])];
        only("deep_gemm::m_grouped_fp8_fp4_gemm_nt_contiguous", arguments, vec![]).operator.family
    };
    assert!(matches!(grouped(6 * 128), Family::Gemm { batch: 5, m: 2, n: 32, k: 16, .. }));
    let of_all = |choices: u64| grouped((choices + 8 * 127).next_multiple_of(128));
    assert!(matches!(of_all(1000), Family::Gemm { batch: 8, m: 117..=133, .. }));
    assert!(matches!(of_all(9), Family::Gemm { batch: 8, m: 9, .. }));
}

/// 20 tokens with 2 experts each, of 32 on four GPUs: they select 24, of which this GPU holds 6, and a quarter of the
/// choices is its own.
#[test]
fn experts_on_other_gpus_are_known_by_the_room_for_choices() {
    let found = |room: u64| {
        let weights = half(&[8, 32, 16]);
        let read = [("a_ptr", half(&[20, 16])), ("b_ptr", weights), ("sorted_token_ids_ptr", int(&[room]))];
        let numbers = [("num_valid_tokens", 40), ("BLOCK_SIZE_M", 16)];
        kernel("triton::fused_moe_kernel", &read, ("c_ptr", half(&[20, 2, 32])), &numbers).operator
    };
    let cut = found(40 + 32 * 15);
    assert!(matches!(cut.family, Family::Gemm { batch: 6, m: 2, n: 32, k: 16, .. }), "{:?}", cut.family);
    assert_eq!((cut.flops, cut.written.0), (2 * 10 * 32 * 16, 10 * 32 * 2));
    assert_eq!(cut.read.0, 2 * (20 * 16 + 6 * 32 * 16));
    // SGLang's allocation; fewer choices than experts; no list.
    for room in [40 + 9 * 15, 15 * 16, 0] {
        assert!(matches!(found(room).family, Family::Gemm { batch: 8, m: 5, n: 32, k: 16, .. }), "{room}");
    }
}

/// 10 tokens with 16 scores in each of vLLM's and SGLang's schemas, and queries and keys of 4 and 2 heads of 32.
#[test]
fn scores_and_heads_are_rows() {
    let scores = float(&[10, 16]);
    let chosen = || float(&[10, 2]);
    let of_vllm = vec![chosen(), chosen(), chosen(), scores.clone()];
    let of_sglang = vec![chosen(), chosen(), scores.clone()];
    for (name, arguments, results) in [("_moe_C::topk_softmax", of_vllm, 3), ("sgl_kernel::topk_softmax", of_sglang, 2)]
    {
        let part = only(name, arguments, vec![]);
        assert!(matches!(part.operator.family, Family::Rows { kind: RowKind::Softmax, rows: 10, columns: 16, .. }));
        assert_eq!((part.operator.read.0, part.operator.written.0), (640, results * 80), "{name}");
    }
    let part = only("_moe_C::grouped_topk", vec![scores], vec![chosen(), chosen()]);
    assert_eq!((part.operator.read.0, part.operator.written.0), (640, 160));

    let (query, key, weight) = (half(&[10, 4, 32]), half(&[10, 2, 32]), half(&[32]));
    let part = only("sglang::fused_inplace_qknorm", vec![query, key, weight.clone(), weight], vec![]);
    assert!(matches!(part.operator.family, Family::Rows { rows: 60, columns: 32, .. }));
    assert_eq!((part.operator.read.0, part.operator.written.0), (60 * 32 * 2, 60 * 32 * 2));
    // Queries and keys in one tensor with 2 heads of values, by vLLM's schema and SGLang's.
    let (joined, weight) = (half(&[10, 8 * 32]), half(&[32]));
    let sizes = [4, 2, 2, 32].map(Argument::Int);
    let one = [joined.clone()].into_iter().chain(sizes.clone()).collect();
    let other = [joined, weight.clone(), weight, int(&[10])].into_iter().chain(sizes).collect();
    for (name, arguments) in [("_C::fused_qk_norm_rope", one), ("sglang::fused_qk_norm_rope_out", other)] {
        let joined = only(name, arguments, vec![]).operator;
        assert_eq!((joined.family, joined.read.0), (part.operator.family, 60 * 32 * 2), "{name}");
    }
    let compiled = only("sglang::rmsnorm", vec![half(&[10, 64]), half(&[64])], vec![]);
    assert_eq!((compiled.operator.read.0, compiled.operator.written.0), (11 * 64 * 2, 10 * 64 * 2));
}

/// Two sequences with 300 and 20 keys, each with one query of 16 heads: a score has width 576, its value 512, and all
/// heads share a key's 576 elements.
///
/// ```text
/// operations  2 16 320 (576 + 512)
/// bytes       read 2 16 576 + 320 576, written 2 16 512; 2 each
/// ```
#[test]
fn latent_attention_is_the_same_whatever_computes_it() {
    let page = |width| half(&[1000, 16, 1, width]);
    let mut flash = vec![Argument::None; 36];
    (flash[0], flash[1], flash[2], flash[5]) = (half(&[2, 16, 64]), page(64), page(512), half(&[2, 16, 512]));
    let dense = vec![half(&[2, 1, 16, 576]), page(576), Argument::Int(512), int(&[2]), int(&[2, 32])];
    let cache = half(&[1000, 16, 576]);
    let (out, lse) = (half(&[2, 16, 512]), float(&[2, 16]));
    let cutlass = vec![out, lse, half(&[2, 16, 512]), half(&[2, 16, 64]), cache, int(&[2]), int(&[2, 32])];
    for (name, arguments, [borders, used]) in [
        ("_vllm_fa3_C::fwd", flash, [7, 11]),
        ("_flashmla_C::dense_decode_fwd", dense, [usize::MAX, 3]),
        ("_C::sm100_cutlass_mla_decode", cutlass, [usize::MAX, 5]),
    ] {
        let attention = definition(name, arguments, vec![]);
        let values = |at: usize| match at {
            _ if at == borders => Some(&[0, 1, 2][..]),
            _ if at == used => Some(&[300, 20][..]),
            _ => None,
        };
        let found = sequences(&attention, values).expect(name);
        let [part] = <[Part; 1]>::try_from(with_sequences(&attention, &found).expect(name)).expect("they are alike");
        assert_eq!(part.operator.flops, 2 * 16 * 320 * (576 + 512), "{name}");
        assert_eq!(part.operator.read.0, (2 * 16 * 576 + 320 * 576) * 2, "{name}");
        assert_eq!(part.operator.written.0, 2 * 16 * 512 * 2, "{name}");
        assert!(matches!(part.operator.family, Family::Attention { heads: 32, queries: 1, keys: 160, width: 544, .. }));
        // Lost values read as zeros.
        let lost = |at: usize| if at == borders { Some(&[0, 0, 0][..]) } else { Some(&[0, 0][..]) };
        assert_eq!(sequences(&attention, lost), None, "{name}");
        // Without values, a sequence has as many keys as its pages.
        if name != "_vllm_fa3_C::fwd" {
            let Described::Parts(parts) = describe(&attention) else { panic!("{name}") };
            assert_eq!(parts[0].operator.flops, 2 * 16 * 2 * 32 * 16 * (576 + 512), "{name}");
        }
    }
}

/// Two sequences with 300 and 20 keys, in a cache of 1,000 pages of 16 slots with 2 heads of 128; queries have 8 heads.
/// The sequences have one query each (0 in the last slot of a partly filled batch), or 100 and 20.
///
/// ```text
/// operations  8 x pairs of a query and a key x (128 + 128) x 2
/// bytes       read 2 x (queries x 8 x 128 + keys x 2 x 256)
/// parts       of 300 keys in 16 parts of whole multiples of 16: ceil(300 / 32) = 10; of 20 keys: 2
///             of 300 keys in 4 parts of whole multiples of 32: 96, 96, 96, 12; of 20 keys in 1: 1
/// ```
#[test]
fn attention_of_triton_is_told_by_the_lengths_of_its_sequences() {
    let cache = || half(&[1000, 16, 2, 128]);
    let long = |queries: u64, pairs: u64, keys: u64| (8 * pairs * 256 * 2, (queries * 8 * 128 + keys * 2 * 256) * 2);
    let prompts = 100 * 200 + 100 * 101 / 2 + 20 * 21 / 2;
    let unified = |is_split: i64| {
        let read = [
            ("query_ptr", half(&[120, 8, 128])),
            ("key_cache_ptr", cache()),
            ("value_cache_ptr", cache()),
            ("block_tables_ptr", int(&[3, 32])),
            ("seq_lens_ptr", int(&[3])),
            ("query_start_len_ptr", int(&[4])),
        ];
        let numbers = [
            ("num_query_heads", 8),
            ("num_queries_per_kv", 4),
            ("HEAD_SIZE", 128),
            ("BLOCK_SIZE", 16),
            ("TILE_SIZE", 16),
            ("SLIDING_WINDOW", 0),
            ("USE_CAUSAL", 1),
            ("CHUNK_LOOKBACK", -1),
            ("NUM_SEGMENTS_PER_SEQ", 16),
            ("IS_3D", is_split),
        ];
        kernel_definition("triton::kernel_unified_attention", &read, ("output_ptr", half(&[120, 8, 128])), &numbers)
    };
    let decoding = |splits: bool| {
        let read = [
            ("Q", half(&[2, 8, 128])),
            ("K_Buffer", half(&[16000, 2, 128])),
            ("V_Buffer", half(&[16000, 2, 128])),
            ("kv_indptr", int(&[3])),
            ("kv_indices", of(DType::Int64, &[16000], false)),
            ("num_kv_splits", int(&[2])),
        ];
        let numbers = [("kv_group_num", 4), ("Lk", 128), ("Lv", 128), ("MIN_BLOCK_KV", 32), ("forced_kv_splits", 0)];
        let numbers = if splits { &numbers[..] } else { &numbers[..3] };
        kernel_definition("triton::_fwd_grouped_kernel_stage1", &read, ("Att_Out", float(&[2, 8, 4, 128])), numbers)
    };
    let extending = || {
        let read = [
            ("Q_Extend", half(&[120, 8, 128])),
            ("K_Extend", half(&[120, 2, 128])),
            ("K_Buffer", half(&[16000, 2, 128])),
            ("qo_indptr", int(&[3])),
            ("kv_indptr", int(&[3])),
            ("kv_indices", of(DType::Int64, &[200], false)),
        ];
        let numbers = [("kv_group_num", 4), ("Lq", 128), ("Lv", 128), ("IS_CAUSAL", 1), ("SLIDING_WINDOW_SIZE", -1)];
        kernel_definition("triton::_fwd_kernel", &read, ("O_Extend", half(&[120, 8, 128])), &numbers)
    };
    type Values<'a> = &'a [(usize, &'a [i64])];
    let work = |definition: &Definition, values: Values<'_>| {
        let at = |place| values.iter().find(|(at, _)| *at == place).map(|(_, values)| *values);
        let found = sequences(definition, at).expect("they are known");
        let parts = with_sequences(definition, &found).expect("it is attention");
        parts.iter().map(|part| part.operator).collect::<Vec<_>>()
    };
    for (definition, values, expected, written) in [
        (unified(0), &[(5, &[300, 20, 0][..]), (6, &[0, 1, 2, 2])][..], long(2, 320, 320), 2 * 8 * 128 * 2),
        (unified(1), &[(5, &[300, 20, 7]), (6, &[0, 1, 2, 2])], long(2, 320, 320), (10 + 2) * 8 * 130 * 4),
        (unified(0), &[(5, &[300, 20, 0]), (6, &[0, 100, 120, 120])], long(120, prompts, 320), 120 * 8 * 128 * 2),
        (decoding(true), &[(4, &[0, 300, 320]), (6, &[4, 1])], long(2, 320, 320), (4 + 1) * 8 * 130 * 4),
        (extending(), &[(4, &[0, 100, 120]), (5, &[0, 200, 200])], long(120, prompts, 320), 120 * 8 * 128 * 2),
    ] {
        let [operator] = <[Operator; 1]>::try_from(work(&definition, values)).expect("they are alike");
        let found = (operator.flops, operator.read.0);
        assert_eq!((found, operator.written.0), (expected, written), "{definition:?}");
    }
    // Without values, sequences have as many keys as there are pages, or slots.
    for (definition, keys) in [(unified(1), 3 * 32 * 16), (decoding(true), 16000), (extending(), 2 * (320 / 2))] {
        let Described::Parts(parts) = describe(&definition) else { panic!("{definition:?}") };
        let read = parts[0].operator.read.0;
        let queries = if keys == 16000 { 2 } else { 120 };
        assert_eq!(read, (queries * 8 * 128 + keys * 2 * 256) * 2, "{definition:?}");
    }
    // Another kernel of that name.
    let other =
        kernel_definition("triton::_fwd_kernel", &[("Q", half(&[2, 8, 128]))], ("Out", half(&[2, 8, 128])), &[]);
    assert_eq!(sequences(&other, |_| Some(&[0, 1, 2][..])), None);
    assert!(matches!(describe(&other), Described::Unknown));
}

/// Costs of the reduction over splits, and of kernels outside attention, follow from keys and tokens.
#[test]
fn kernels_beside_attention_do_not_take_the_time_of_tables() {
    let segments = kernel_definition(
        "triton::reduce_segments",
        &[
            ("segm_output_ptr", float(&[512, 8, 16, 128])),
            ("seq_lens_ptr", int(&[2])),
            ("query_start_len_ptr", int(&[3])),
        ],
        ("output_ptr", half(&[2, 8, 128])),
        &[("num_query_heads", 8), ("HEAD_SIZE", 128), ("TILE_SIZE", 16), ("NUM_SEGMENTS_PER_SEQ", 16)],
    );
    let joining = kernel_definition(
        "triton::_fwd_kernel_stage2",
        &[("Mid_O", float(&[512, 8, 4, 128])), ("B_Seqlen", int(&[2]))],
        ("o", half(&[2, 8, 128])),
        &[("NUM_KV_SPLITS", 4), ("Lv", 128)],
    );
    let collecting = kernel_definition(
        "triton::create_flashinfer_kv_indices_triton",
        &[("req_to_token_ptr", int(&[2048, 40960])), ("kv_indptr", int(&[3]))],
        ("kv_indices_ptr", of(DType::Int64, &[1 << 20], true)),
        &[("grid_x", 2)],
    );
    for (definition, values, read, written) in [
        (segments, [(2, &[300, 20][..]), (3, &[0, 1, 2][..])], 12 * 8 * 130 * 4, 2 * 8 * 128 * 2),
        (joining, [(2, &[300, 20]), (9, &[])], 8 * 8 * 130 * 4, 2 * 8 * 128 * 2),
        (collecting, [(2, &[0, 300, 320]), (9, &[])], 320 * 8, 320 * 8),
    ] {
        let at = |place| values.iter().find(|(at, _)| *at == place).map(|(_, values)| *values);
        let found = sequences(&definition, at).expect("they are known");
        let [part] = <[Part; 1]>::try_from(with_sequences(&definition, &found).expect("it is known")).expect("one");
        assert_eq!((part.operator.read.0, part.operator.written.0), (read, written), "{definition:?}");
    }
    let tokens = || half(&[7, 2, 128]);
    let caching = kernel(
        "triton::reshape_and_cache_kernel_flash",
        &[("key_ptr", tokens()), ("value_ptr", tokens()), ("slot_mapping_ptr", of(DType::Int64, &[7], false))],
        ("key_cache_ptr", eight_bits(&[1000, 16, 2, 128])),
        &[],
    );
    assert_eq!((caching.operator.read.0, caching.operator.written.0), (2 * 7 * 256 * 2, 2 * 7 * 256));
    let table = kernel(
        "triton::write_req_to_token_pool_triton",
        &[("out_cache_loc", of(DType::Int64, &[7], false))],
        ("req_to_token_ptr", int(&[2048, 40960])),
        &[],
    );
    assert_eq!((table.operator.read.0, table.operator.written.0), (7 * 8, 7 * 8));
}

/// Calls that a server makes for a batch that has become empty.
#[test]
fn attention_without_sequences_does_nothing() {
    let read = [
        ("Q", half(&[0, 8, 64])),
        ("K_Buffer", half(&[16, 2, 64])),
        ("kv_indptr", int(&[1])),
        ("kv_indices", int(&[16])),
        ("num_kv_splits", int(&[0])),
    ];
    let numbers = [("kv_group_num", 4), ("Lk", 64), ("Lv", 64), ("MIN_BLOCK_KV", 32)];
    let decoding = kernel_definition("triton::_fwd_kernel_stage1", &read, ("Att_Out", float(&[0, 8, 4, 65])), &numbers);
    let latent = [half(&[0, 1, 16, 576]), half(&[1000, 64, 1, 576]), Argument::Int(512), int(&[0]), int(&[0, 32])];
    let latent = definition("_flashmla_C::dense_decode_fwd", latent.to_vec(), vec![]);
    for attention in [decoding, latent] {
        let Described::Parts(parts) = describe(&attention) else { panic!("{}", attention.name) };
        let amounts = parts.iter().map(|Part { operator, .. }| (operator.flops, operator.read.0, operator.written.0));
        assert_eq!(amounts.collect::<Vec<_>>(), [(0, 0, 0)], "{}", attention.name);
    }
}

/// Names of kernels agree with the code that reads their sequence lengths, and with the code that skips counting their
/// work.
#[test]
fn kernels_have_the_same_names_everywhere() {
    let quoted = |line: &str| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let python = include_str!("../../../../../python/uniference/rank/kernels.py");
    let schema = include_str!("../../../../../cpp/schema.h");
    let (_, described) = python.split_once("_DESCRIBED = {").expect("it is there");
    let described: Vec<String> = quoted(described.split_once('}').expect("it ends").0).into_iter().step_by(2).collect();
    let with_lengths: Vec<String> =
        quoted(schema).iter().filter_map(|name| Some(name.strip_prefix("triton::")?.to_owned())).collect();
    let sources = [include_str!("kernels.rs"), include_str!("products.rs")].concat();
    for name in described.iter().chain(with_lengths.iter().filter(|name| !name.is_empty())) {
        assert!(sources.contains(&format!("\"{name}\"")), "{name}");
    }
    for name in with_lengths.iter().filter(|name| !name.is_empty()) {
        assert!(described.contains(name), "{name}");
    }
    for name in &described {
        assert!(stacks::STACKS.iter().any(|stack| stack.kernels.contains(&&**name)), "{name}");
    }
    assert!(with_lengths.len() > 7, "{with_lengths:?}");
    // Arguments that are read from memory at a kernel's launch, and those that give sequence lengths.
    let (_, read) = include_str!("../../../../../cpp/launches.h").split_once("kLengths = {").expect("it is there");
    let read: BTreeSet<String> = quoted(read.split_once('}').expect("it ends").0).into_iter().collect();
    let asked = include_str!("kernels.rs").split(".place(").skip(1).map(|rest| quoted(rest.split_once(')').unwrap().0));
    assert_eq!(read, asked.flatten().collect());
}

/// A dimension, which is 0 or 1 as often as any larger size.
fn size() -> impl proptest::strategy::Strategy<Value = u64> {
    proptest::prop_oneof![0_u64..2, 0_u64..1 << 15]
}

proptest::proptest! {
    /// Calls with any arguments.
    #[test]
    fn any_call_is_described_or_unknown(
        at in 0_usize..30,
        sizes in proptest::collection::vec(proptest::collection::vec(0_u64..u64::MAX, 0..5), 0..20),
        number in i64::MIN..i64::MAX,
    ) {
        let names = [
            "_C::cutlass_scaled_mm", "sgl_kernel::fp8_scaled_mm", "deep_gemm::fp8_fp4_gemm_nt", "deep_gemm::bf16_gemm_nt",
            "_C::dsv3_fused_a_gemm", "_C::marlin_gemm", "_C::gptq_gemm", "_C::machete_mm", "_moe_C::moe_wna16_marlin_gemm",
            "_moe_C::moe_wna16_gemm", "_C::cutlass_moe_mm", "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
            "deep_gemm::m_grouped_fp8_fp4_gemm_nt_contiguous", "_vllm_fa2_C::varlen_fwd", "_vllm_fa3_C::fwd",
            "_flashmla_C::dense_decode_fwd", "_C::sm100_cutlass_mla_decode", "sglang::rmsnorm", "_C::rms_norm",
            "sglang::fused_inplace_qknorm", "_C::fused_qk_norm_rope", "sgl_kernel::topk_softmax", "_moe_C::grouped_topk",
            "sglang::per_token_group_quant", "_moe_C::moe_align_block_size", "_C_cache_ops::concat_and_cache_mla",
            "_C_cache_ops::concat_and_cache_mla_rope_fused", "sglang::apply_rope_inplace_with_kvcache",
            "_C_cache_ops::cp_gather_cache", "_C::static_scaled_fp8_quant",
        ];
        let tensor = |sizes: &Vec<u64>| match sizes.len() {
            4 => Argument::Int(number),
            _ => {
                let strides = sizes.iter().map(|_| 1).collect();
                let dtype = ScalarType::from(DType::BFloat16);
                Argument::Tensor(Tensor { dtype, sizes: sizes.clone(), strides, place: Place::CPU, written: false })
            }
        };
        let arguments: Vec<_> = sizes.iter().map(tensor).collect();
        let call = definition(names[at], arguments.clone(), arguments);
        let _ = (describe(&call).flops(), describe(&call).kind());
        let _ = sequences(&call, |_| Some(&[0, 1, 2][..])).and_then(|found| with_sequences(&call, &found));
    }

    /// A kernel of any of these names, with any arguments.
    #[test]
    fn any_kernel_is_described_or_unknown(
        at in 0_usize..8,
        sizes in proptest::collection::vec(proptest::collection::vec(size(), 0..5), 20),
        numbers in proptest::collection::vec(i64::MIN..i64::MAX, 22),
        values in proptest::collection::vec(i64::from(i32::MIN)..i64::from(i32::MAX), 3),
    ) {
        let names = [
            "kernel_unified_attention", "reduce_segments", "_fwd_kernel_stage1", "_fwd_kernel_stage2", "_fwd_kernel",
            "_fwd_kernel_unified", "create_flashinfer_kv_indices_triton", "reshape_and_cache_kernel_flash",
        ];
        let tensors = [
            "query_ptr", "key_cache_ptr", "block_tables_ptr", "seq_lens_ptr", "query_start_len_ptr", "Q", "K_Buffer", "kv_indptr",
            "kv_indices", "num_kv_splits", "Mid_O", "O", "Q_Extend", "qo_indptr", "req_to_token_ptr", "kv_indices_ptr", "key_ptr",
            "value_ptr", "key_cache_ptr", "Req_to_tokens",
        ];
        let integers = [
            "num_query_heads", "num_queries_per_kv", "HEAD_SIZE", "BLOCK_SIZE", "TILE_SIZE", "SLIDING_WINDOW", "USE_CAUSAL", "IS_3D",
            "NUM_SEGMENTS_PER_SEQ", "kv_group_num", "Lk", "Lv", "Lq", "MIN_BLOCK_KV", "forced_kv_splits", "PAGE_SIZE", "IS_CAUSAL",
            "SKIP_PREFIX", "SKIP_EXTEND", "SLIDING_WINDOW_SIZE", "grid_x", "HAS_MLA",
        ];
        let read: Vec<(&str, Argument)> = tensors.into_iter().zip(sizes.iter().map(|sizes| half(sizes))).collect();
        let numbers: Vec<(&str, i64)> = integers.into_iter().zip(numbers).collect();
        let name = format!("triton::{}", names[at]);
        let call = kernel_definition(&name, &read, ("output_ptr", half(&sizes[0])), &numbers);
        let _ = (describe(&call).flops(), describe(&call).kind());
        let _ = sequences(&call, |_| Some(&values[..])).and_then(|found| with_sequences(&call, &found));
    }
}
