use super::*;
use std::collections::BTreeSet;
use uniference_formats::operators::{Argument, Definition, Place, ScalarType, Tensor};
use uniference_sim::device::{FlatKind, Layout, Pass, RowKind};

/// Operators that PyTorch ran, with the operations that it counts: written by `tests/python/test_flops.py`.
const REFERENCE: &str = include_str!("../../tests/operators.json");

fn argument(value: &serde_json::Value) -> Argument {
    use serde_json::Value;
    let tensor = |fields: &Value| {
        let list = |index: usize| fields[index].as_array().unwrap().iter();
        Tensor {
            dtype: ScalarType(fields[0].as_u64().unwrap() as u8),
            place: Place::CPU,
            written: fields[1] == 1,
            sizes: list(2).map(|size| size.as_u64().unwrap()).collect(),
            strides: list(3).map(|stride| stride.as_i64().unwrap()).collect(),
        }
    };
    match value {
        Value::Null => Argument::None,
        Value::Bool(flag) => Argument::Bool(*flag),
        Value::Number(number) => Argument::Int(number.as_i64().unwrap()),
        Value::Array(list) => Argument::Ints(list.iter().map(|item| item.as_i64().unwrap()).collect()),
        Value::Object(fields) if fields.contains_key("tensor") => Argument::Tensor(tensor(&fields["tensor"])),
        Value::Object(fields) if fields.contains_key("tensors") => {
            let items = fields["tensors"].as_array().unwrap().iter();
            Argument::Tensors(items.map(|item| item.get("tensor").map(&tensor)).collect())
        }
        _ => Argument::Other,
    }
}

/// Definitions with torch's counts.
fn reference(which: &str) -> Vec<(Definition, Option<u64>)> {
    let all: serde_json::Value = serde_json::from_str(REFERENCE).unwrap();
    let list = |value: &serde_json::Value| value.as_array().unwrap().iter().map(argument).collect();
    let definition = |value: &serde_json::Value| Definition {
        name: value["name"].as_str().unwrap().to_owned(),
        arguments: list(&value["arguments"]),
        results: list(&value["results"]),
    };
    all[which].as_array().unwrap().iter().map(|value| (definition(value), value["flops"].as_u64())).collect()
}

fn is_causal(definition: &Definition) -> bool {
    let Described::Parts(parts) = describe(definition) else { return false };
    matches!(parts[0].operator.family, Family::Attention { causal: true, .. })
}

/// The first part of the only call of `name`.
fn single(name: &str) -> Part {
    let found = reference("single").into_iter().find(|(definition, _)| definition.name == name);
    match describe(&found.unwrap_or_else(|| panic!("{name} is not in the reference")).0) {
        Described::Parts(parts) => parts[0].clone(),
        other => panic!("{name}: {other:?}"),
    }
}

/// Counts equal torch's, except for causal attention, where torch counts all pairs, and for the weight gradient of a
/// convolution with groups, where torch ignores the groups.
#[test]
fn operations_are_those_that_torch_counts() {
    let mut counted = BTreeSet::new();
    for (definition, flops) in reference("single").into_iter().chain(reference("llama")) {
        let Some(flops) = flops else { continue };
        let ours = describe(&definition).flops();
        let expected = if is_causal(&definition) { flops / 2 } else { flops };
        assert_eq!(ours, expected, "{}", definition.name);
        counted.insert(definition.name);
    }
    assert!(counted.len() >= 20, "{counted:?}");
}

/// Batch B = 2 of S = 64 tokens (T = 128), width h = 256, keys and values of 64, intermediate size f = 704, 8 heads of
/// 32:
///
/// ```text
/// products forward   2 T (2 h h + 2 h 64 + 3 h f)
/// products backward  twice that: the gradients of the input and of the weight
/// attention forward  4 B 8 S S 32 / 2, backward 5/2 of that
/// ```
#[test]
fn a_llama_block_does_what_was_counted_by_hand() {
    let (tokens, width, middle) = (128, 256, 704);
    let products = 2 * tokens * (2 * width * width + 2 * width * 64 + 3 * width * middle);
    let attention = 4 * 2 * 8 * 64 * 64 * 32 / 2;
    let step = reference("llama");
    let total: u64 = step.iter().map(|(definition, _)| describe(definition).flops()).sum();
    assert_eq!(total, 3 * products + attention + attention * 5 / 2);
    let unknown: Vec<&str> = step
        .iter()
        .map(|(definition, _)| definition)
        .filter(|d| describe(d) == Described::Unknown)
        .map(|d| &*d.name)
        .collect();
    assert_eq!(unknown, [""; 0]);
    // Weight gradients are GEMMs of transposed gradients.
    let layouts: BTreeSet<String> = step
        .iter()
        .filter_map(|(definition, _)| match describe(definition) {
            Described::Parts(parts) if describe(definition).kind() == "gemm" => Some(parts[0].variant.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(layouts, ["nn", "nt", "tn"].map(str::to_owned).into());
}

#[test]
fn layouts_follow_from_strides() {
    let found: Vec<Described> = reference("single")
        .iter()
        .filter(|(definition, _)| definition.name == "aten::mm")
        .map(|(d, _)| describe(d))
        .collect();
    let layouts: Vec<Family> = found
        .iter()
        .map(|described| match described {
            Described::Parts(parts) => parts[0].operator.family,
            other => panic!("{other:?}"),
        })
        .collect();
    let gemm = |layout| Family::Gemm { batch: 1, m: 48, n: 112, k: 80, layout };
    assert_eq!(layouts, [Layout::NN, Layout::TN, Layout::NT, Layout::TT].map(gemm));
}

#[test]
fn bytes_are_those_that_are_really_moved() {
    let moved = |name: &str| (single(name).operator.read.0, single(name).operator.written.0);
    // A bias of 64 is read once, whatever its broadcast shape; so is a column that was expanded to 64.
    assert_eq!(moved("aten::add.Tensor"), ((50 * 64 + 64) * 4, 50 * 64 * 4));
    assert_eq!(moved("aten::mul.Tensor"), ((50 * 64 + 50) * 4, 50 * 64 * 4));
    // In place: both operands are read, and one is written.
    assert_eq!(moved("aten::add_.Tensor"), (2 * 50 * 64 * 4, 50 * 64 * 4));
    assert_eq!(moved("aten::_foreach_add_.Scalar"), (51 * 64 * 4, 51 * 64 * 4));
    // Seven rows of a thousand, and their indices.
    assert_eq!(moved("aten::embedding"), (7 * 64 * 4 + 7 * 8, 7 * 64 * 4));
    // The gradient's rows and indices, and the seven rows they are added to; all thousand rows are written, and those
    // seven again.
    assert_eq!(moved("aten::embedding_dense_backward"), (2 * 7 * 64 * 4 + 7 * 8, 1007 * 64 * 4));
    assert_eq!(moved("aten::gather"), (50 * 3 * 4 + 50 * 3 * 8, 50 * 3 * 4));
    // GEMMs: both factors; 8-bit elements have one byte each.
    assert_eq!(moved("aten::bmm"), (3 * (48 * 80 + 80 * 112) * 4, 3 * 48 * 112 * 4));
    assert_eq!(moved("aten::_scaled_mm").0, 48 * 80 + 80 * 112 + 2 * 4);
}

/// An 8-bit GEMM of 256 x 512 by 512 x 384: with one scale in all, with one per row and column, and with one per 128
/// elements of a row.
#[test]
fn products_with_scales_of_rows_and_blocks_are_other_products() {
    let eight = |sizes: &[u64]| match tensor(sizes) {
        Argument::Tensor(tensor) => Argument::Tensor(Tensor { dtype: ScalarType::from(DType::Float8E4M3), ..tensor }),
        _ => unreachable!("it is a tensor"),
    };
    let variant = |left: &[u64], right: &[u64]| {
        let arguments = vec![eight(&[256, 512]), eight(&[512, 384]), tensor(left), tensor(right)];
        let results = vec![tensor(&[256, 384])];
        let definition = Definition { name: "aten::_scaled_mm".to_owned(), arguments, results };
        let Described::Parts(parts) = describe(&definition) else { panic!("it is a product") };
        assert_eq!(parts[0].operator.family.name(), "gemm");
        parts[0].variant.clone()
    };
    assert_eq!(variant(&[], &[]), "nn");
    assert_eq!(variant(&[256, 1], &[1, 384]), "nn_row");
    assert_eq!(variant(&[256, 4], &[4, 3]), "nn_block");
}

#[test]
fn families_have_their_sizes() {
    let family = |name: &str| single(name).operator.family;
    let rows = |kind, rows, columns| Family::Rows { kind, pass: Pass::Forward, rows, columns };
    assert_eq!(family("aten::native_layer_norm"), rows(RowKind::Normalization, 300, 64));
    assert_eq!(family("aten::native_group_norm"), rows(RowKind::Normalization, 12, 880));
    assert_eq!(family("aten::_softmax"), rows(RowKind::Softmax, 300, 64));
    assert_eq!(family("aten::sum.dim_IntList"), rows(RowKind::Reduction, 50, 64));
    assert_eq!(family("aten::topk"), rows(RowKind::Sort, 50, 64));
    assert_eq!(family("aten::_to_copy"), Family::Flat { kind: FlatKind::Copy, elements: 3200 });
    assert_eq!(family("aten::_foreach_add_.Scalar"), Family::Flat { kind: FlatKind::Elementwise, elements: 51 * 64 });
    assert_eq!(single("aten::add_.Tensor").variant, "add");
    assert_eq!(single("aten::_scaled_mm").operator.elements, Some(DType::Float8E4M3.into()));
    let view = reference("single").into_iter().find(|(definition, _)| definition.name == "aten::view").unwrap().0;
    assert_eq!((describe(&view), describe(&view).kind()), (Described::Nothing, "view"));
}

fn tensor(sizes: &[u64]) -> Argument {
    let mut strides: Vec<i64> =
        sizes.iter().rev().scan(1, |next, size| Some(std::mem::replace(next, *next * *size as i64))).collect();
    strides.reverse();
    Argument::Tensor(Tensor {
        dtype: ScalarType::from(DType::Float32),
        place: Place::CPU,
        written: false,
        sizes: sizes.to_vec(),
        strides,
    })
}

/// Copies of FSDP2: shards to the all-gather buffer, and from the buffer to the parameters.
#[test]
fn copies_read_and_write_what_they_copy() {
    let written = |sizes: &[u64]| match tensor(sizes) {
        Argument::Tensor(tensor) => Tensor { written: true, ..tensor },
        _ => unreachable!(),
    };
    let moved = |name: &str, arguments, results| {
        let described = describe(&definition(name, arguments, results));
        (described.read().0, described.written().0)
    };
    let shards = Argument::Tensors(
        vec![Some(written(&[100])), Some(written(&[28]))]
            .into_iter()
            .map(|shard| shard.map(|s| Tensor { written: false, ..s }))
            .collect(),
    );
    let gathered = Argument::Tensor(written(&[1024]));
    let results = vec![tensor(&[128]), tensor(&[1024])];
    let arguments = vec![shards, gathered, Argument::Ints(vec![100, 28]), Argument::Int(128), Argument::Int(0)];
    assert_eq!(moved("fsdp::all_gather_copy_in", arguments, results), (512, 512));
    let out = Argument::Tensors(vec![Some(written(&[800])), Some(written(&[224]))]);
    let arguments = vec![tensor(&[1024]), Argument::Ints(vec![100, 28]), Argument::Int(1), out];
    assert_eq!(moved("fsdp::split_with_sizes_copy", arguments, vec![]), (4096, 4096));
}

fn definition(name: &str, arguments: Vec<Argument>, results: Vec<Argument>) -> Definition {
    Definition { name: name.to_owned(), arguments, results }
}

#[test]
fn operators_that_are_several_are_described_by_their_parts() {
    // An LSTM of 8 steps of 4 samples, 16 wide, with a state of 32 and four gates of it.
    let weights = [tensor(&[128, 16]), tensor(&[128, 32]), tensor(&[128]), tensor(&[128])];
    let weights = weights.into_iter().map(|weight| weight.tensors().next().cloned()).collect();
    let mut arguments = vec![tensor(&[8, 4, 16]), Argument::Tensors(weights)];
    arguments.resize(10, Argument::None);
    arguments.push(Argument::Bool(false));
    let described = describe(&definition("aten::_cudnn_rnn", arguments, vec![tensor(&[8, 4, 32])]));
    assert_eq!(described.flops(), 2 * 8 * 4 * 128 * (16 + 32));
    assert_eq!(described.kind(), "gemm");

    let gradients = definition(
        "aten::linear_backward",
        vec![tensor(&[6, 10, 16]), tensor(&[6, 10, 24]), tensor(&[24, 16]), Argument::Other],
        vec![tensor(&[6, 10, 16]), tensor(&[24, 16]), Argument::None],
    );
    assert_eq!(describe(&gradients).flops(), 2 * 2 * 60 * 24 * 16);
}

#[test]
fn groups_of_a_grouped_product_do_not_change_its_operations() {
    let of = |a: &[u64], b: &[u64], result: &[u64]| {
        describe(&definition("aten::_grouped_mm", vec![tensor(a), tensor(b)], vec![tensor(result)])).flops()
    };
    assert_eq!(of(&[96, 32], &[8, 32, 64], &[96, 64]), 2 * 96 * 32 * 64);
    assert_eq!(of(&[96, 40], &[40, 64], &[8, 96, 64]), 2 * 96 * 40 * 64);
    assert_eq!(of(&[8, 12, 32], &[8, 32, 64], &[8, 12, 64]), 2 * 96 * 32 * 64);
}

/// Torch's tag of each operator decides its family, except for these.
#[test]
fn operators_that_torch_tags_are_costed_by_their_tags() {
    const OTHERWISE: [(&str, &str, &str); 4] = [
        ("_conj_physical", "copy", "it only moves the elements"),
        ("clone", "copy", "it only moves the elements"),
        ("equal", "reduction", "its result is one truth value"),
        ("positive", "view", "its result is its argument"),
    ];
    let kind = |name: &str| {
        let definition = definition(&format!("aten::{name}"), vec![tensor(&[8, 8])], vec![tensor(&[8, 8])]);
        describe(&definition).kind()
    };
    let expected = |name: &str, tagged: &'static str| {
        OTHERWISE.iter().find(|(other, ..)| *other == name).map_or(tagged, |(_, kind, _)| kind)
    };
    for (names, tagged) in [(torch::names::POINTWISE, "elementwise"), (torch::names::REDUCTIONS, "reduction")] {
        assert!(names.is_sorted());
        for name in names {
            assert_eq!(kind(name), expected(name, tagged), "{name}");
        }
    }
    assert!(torch::names::VIEWS.is_sorted() && torch::names::VIEW_COPIES.is_sorted());
    for name in torch::names::VIEWS.iter().filter(|name| !nothing::MAY_COPY.contains(name)) {
        assert_eq!(kind(name), "view", "{name}");
    }
    for name in torch::names::VIEW_COPIES.iter().filter(|name| !name.starts_with("_nested")) {
        assert_eq!(kind(name), "copy", "{name}");
    }
    for (name, ..) in OTHERWISE {
        assert!(torch::names::POINTWISE.contains(&name), "{name}");
    }
}

#[test]
fn operators_of_one_kind_are_known_by_their_beginnings_and_ends() {
    let kind = |name: &str| describe(&definition(name, vec![tensor(&[8, 8])], vec![tensor(&[8, 8])])).kind();
    for (name, expected) in [
        ("aten::upsample_bilinear2d", "elementwise"),
        ("aten::_adaptive_avg_pool2d_backward", "elementwise"),
        ("aten::avg_pool2d", "elementwise"),
        ("aten::special_entr", "elementwise"),
        ("aten::slice_copy.Tensor", "copy"),
        ("aten::reflection_pad2d", "copy"),
        ("aten::_foreach_copy_", "copy"),
        ("aten::_foreach_norm.Scalar", "reduction"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::sym_size.int", "view"),
        ("profiler::_record_function_enter_new", "view"),
    ] {
        assert_eq!(kind(name), expected, "{name}");
    }
}

/// 1,024 values among 128 borders, which come first for `searchsorted` and second for `bucketize`.
#[test]
fn a_search_is_as_deep_as_its_borders_are_many() {
    let family = |name: &str, arguments| {
        let Described::Parts(parts) = describe(&definition(name, arguments, vec![tensor(&[1024])])) else { panic!() };
        parts[0].operator.family
    };
    let sorted = Family::Rows { kind: RowKind::Sort, pass: Pass::Forward, rows: 8, columns: 128 };
    assert_eq!(family("aten::searchsorted.Tensor", vec![tensor(&[128]), tensor(&[1024])]), sorted);
    assert_eq!(family("aten::bucketize.Tensor", vec![tensor(&[1024]), tensor(&[128])]), sorted);
}

/// A bfloat16 tensor, which the operator writes or not; `sizes` are contiguous.
fn half(sizes: &[u64], written: bool) -> Argument {
    let Argument::Tensor(tensor) = tensor(sizes) else { unreachable!() };
    Argument::Tensor(Tensor { dtype: ScalarType::from(DType::BFloat16), written, ..tensor })
}

fn only(name: &str, arguments: Vec<Argument>) -> Operator {
    match describe(&definition(name, arguments, vec![])) {
        Described::Parts(parts) if parts.len() == 1 => parts[0].operator,
        other => panic!("{name}: {other:?}"),
    }
}

/// 12 tokens of width 64, in 2 bytes.
#[test]
fn operators_of_vllm_move_what_they_work_on_and_not_whole_caches() {
    let x = |written| half(&[12, 64], written);
    let norm = only("_C::rms_norm", vec![x(true), x(false), half(&[64], false), Argument::Float]);
    assert_eq!((norm.read.0, norm.written.0), ((12 * 64 + 64) * 2, 12 * 64 * 2));
    assert!(matches!(norm.family, Family::Rows { kind: RowKind::Normalization, rows: 12, columns: 64, .. }));
    let added = only("_C::fused_add_rms_norm", vec![x(true), x(true), half(&[64], false), Argument::Float]);
    assert_eq!((added.read.0, added.written.0), ((2 * 12 * 64 + 64) * 2, 2 * 12 * 64 * 2));
    let gated = only("_C::silu_and_mul", vec![x(true), half(&[12, 128], false)]);
    assert_eq!((gated.read.0, gated.written.0), (12 * 128 * 2, 12 * 64 * 2));
    // Positions of 4 bytes, and for each position a row of 32 angles of 2 bytes from a table of 4,096.
    let table = half(&[4096, 32], false);
    let arguments = vec![tensor(&[12]), x(true), half(&[12, 32], true), Argument::Int(32), table, Argument::Bool(true)];
    let turned = only("_C::rotary_embedding", arguments);
    assert_eq!((turned.read.0, turned.written.0), (12 * 96 * 2 + 12 * 4 + 12 * 32 * 2, 12 * 96 * 2));
    // SGLang's operator for the same, whose arguments have other positions.
    let arguments = vec![x(true), half(&[12, 32], true), half(&[4096, 32], false), tensor(&[12])];
    assert_eq!(only("sglang::apply_rope_inplace", arguments), turned);
    let arguments = vec![Argument::Text("silu".into()), half(&[12, 128], false), x(true)];
    assert_eq!(only("sglang::_run_activation_inplace", arguments), gated);
    assert_eq!(only("sgl_kernel::rmsnorm", vec![x(true), x(false), half(&[64], false)]), norm);
    let cache = half(&[1000, 16, 2, 32], true);
    let kept = half(&[12, 2, 32], false);
    let arguments = vec![kept.clone(), kept, cache.clone(), cache, tensor(&[12])];
    let other = only("sglang::store_cache", arguments.clone());
    let stored = only("_C_cache_ops::reshape_and_cache_flash", arguments);
    assert_eq!(other, stored);
    assert_eq!((stored.read.0, stored.written.0), (2 * 12 * 64 * 2 + 12 * 4, 2 * 12 * 64 * 2));
}

/// 12 tokens of width 64 by column-major 8-bit weights of 64 x 128.
#[test]
fn products_of_vllm_in_8_bits_are_products() {
    let bits = |argument: Argument| {
        let Argument::Tensor(tensor) = argument else { unreachable!() };
        Tensor { dtype: ScalarType::from(DType::Float8E4M3), ..tensor }
    };
    let (a, weights) = (bits(half(&[12, 64], false)), bits(half(&[64, 128], false)));
    let by_columns = Argument::Tensor(Tensor { strides: vec![1, 64], ..weights });
    for (scales, variant) in [(tensor(&[12, 1]), "nt_row"), (tensor(&[12, 2]), "nt_block")] {
        let given = vec![
            half(&[12, 128], true),
            Argument::Tensor(a.clone()),
            by_columns.clone(),
            scales.clone(),
            tensor(&[1]),
            Argument::None,
        ];
        let Described::Parts(parts) = describe(&definition("_C::cutlass_scaled_mm", given, vec![])) else {
            panic!("it is a product")
        };
        let Part { operator, variant: found, .. } = &parts[0];
        assert_eq!((operator.flops, operator.elements), (2 * 12 * 128 * 64, Some(DType::Float8E4M3.into())));
        let scales: u64 = scales.tensors().map(|scales| scales.elements() * 4).sum();
        assert_eq!((operator.read.0, operator.written.0), (12 * 64 + 64 * 128 + scales + 4, 12 * 128 * 2));
        assert_eq!(found, variant);
        assert!(matches!(operator.family, Family::Gemm { batch: 1, m: 12, n: 128, k: 64, layout: Layout::NT }));
    }
    let quantised = |name, times: u64| {
        let arguments = vec![Argument::Tensor(a.clone()), half(&[12, 64], false), tensor(&[1])];
        assert_eq!(only(name, arguments).read.0, times * 12 * 64 * 2);
    };
    quantised("_C::static_scaled_fp8_quant", 1);
    quantised("_C::dynamic_scaled_fp8_quant", 2);
}

/// 3 tokens' rows of 64 from a table of 1,000, normalized with a weight: a load reads the table once per element of a
/// row.
#[test]
fn a_compiled_kernel_reads_of_a_table_what_it_gathers() {
    let list = |tensors: &[&[u64]]| {
        let tensors = tensors.iter().map(|sizes| Some(only_tensor(tensor(sizes)).unwrap()));
        Argument::Tensors(tensors.collect())
    };
    let read = |loads: i64, named: &str| {
        let text = Argument::Text(format!("in_ptr0,in_ptr1,in_ptr2;out_ptr0;xnumel,r0_numel{named}"));
        let numbers = Argument::Ints(vec![3, 64, loads, 1]);
        let arguments = vec![text, list(&[&[3], &[1000, 64], &[64]]), list(&[&[3, 64]]), numbers];
        let kernel = definition("inductor::triton_red_fused_embedding_rms_norm_0", arguments, vec![]);
        let Described::Parts(parts) = describe(&kernel) else { panic!("it is an operator") };
        parts[0].operator.read.0
    };
    assert_eq!(read(3, ",num_load,num_store"), 4 * (3 + 3 * 64 + 64));
    assert_eq!(read(5, ",num_load,num_store"), 4 * (3 + 3 * 3 * 64 + 64));
    assert_eq!(read(0, ""), 4 * (3 + 1000 * 64 + 64));
}

/// 3 tokens with 2 experts each, of 8 experts with weights of 32 x 16: 6 choices select 8 (1 - (7 / 8)^6) = 4.4 of
/// them, so 5.
#[test]
fn experts_of_vllm_read_the_weights_of_those_that_tokens_meet() {
    let experts = |tokens: u64| {
        let text = Argument::Text("a_ptr,b_ptr;c_ptr;N,num_valid_tokens,group_k".into());
        let read = Argument::Tensors([half(&[tokens, 16], false), half(&[8, 32, 16], false)].map(only_tensor).to_vec());
        let written = Argument::Tensors(vec![only_tensor(half(&[tokens, 2, 32], true))]);
        let numbers = Argument::Ints(vec![32, 2 * tokens as i64, 0]);
        only("triton::fused_moe_kernel", vec![text, read, written, numbers])
    };
    let few = experts(3);
    assert_eq!(few.flops, 2 * 6 * 32 * 16);
    assert_eq!((few.read.0, few.written.0), (2 * (3 * 16 + 5 * 32 * 16), 2 * 6 * 32));
    assert!(matches!(few.family, Family::Gemm { batch: 5, m: 2, n: 32, k: 16, .. }));
    let many = experts(1000);
    assert!(matches!(many.family, Family::Gemm { batch: 8, m: 250, n: 32, k: 16, .. }));
    let unknown = definition("triton::mine", vec![Argument::Text(";;".into())], vec![]);
    assert_eq!(describe(&unknown), Described::Unknown);
}

fn only_tensor(argument: Argument) -> Option<Tensor> {
    if let Argument::Tensor(tensor) = argument { Some(tensor) } else { None }
}

/// Paged attention of 8 query heads of 32 and 2 KV heads, B = 3 sequences, the longest of S = 500 tokens, each with q
/// queries:
///
/// ```text
/// pairs       q S - q (q - 1) / 2
/// operations  4 B 8 pairs 32
/// bytes       read B q 8 32 + 2 B S 2 32, written B q 8 32; 2 each
/// ```
#[test]
fn attention_of_vllm_reads_the_longest_sequences_pages() {
    let (cache, borders) = (half(&[1000, 16, 2, 32], false), tensor(&[4]));
    for (q, causal) in [(1, false), (1, true), (20, true), (500, true)] {
        let pairs = q * 500 - if causal { q * (q - 1) / 2 } else { 0 };
        let query = half(&[3 * q, 8, 32], true);
        let mut two = vec![Argument::None; 22];
        let mut three = vec![Argument::None; 36];
        for (arguments, places) in [(&mut two, [4, 8, 10, 11, 15]), (&mut three, [7, 14, 12, 13, 24])] {
            arguments[..3].clone_from_slice(&[query.clone(), cache.clone(), cache.clone()]);
            let values = [borders.clone(), tensor(&[3, 32]), Argument::Int(q as i64), Argument::Int(500)];
            for (place, value) in places.into_iter().zip(values.into_iter().chain([Argument::Bool(causal)])) {
                arguments[place] = value;
            }
        }
        for found in [only("_vllm_fa2_C::varlen_fwd", two), only("_vllm_fa3_C::fwd", three)] {
            assert_eq!(found.flops, 4 * 3 * 8 * pairs * 32);
            assert_eq!(found.read.0, (3 * q * 8 * 32 + 2 * 3 * 500 * 2 * 32) * 2);
            assert_eq!(found.written.0, 3 * q * 8 * 32 * 2);
            let square = q == 500;
            assert!(
                matches!(found.family, Family::Attention { heads: 24, keys: 500, width: 32, causal, .. } if causal == square)
            );
        }
    }
}

/// Attention over 3 sequences with 4 pages of 16 slots each.
#[test]
fn attention_without_the_longest_sequence_reads_all_pages_that_there_may_be() {
    let cache = half(&[1000, 16, 2, 32], false);
    let mut arguments = vec![Argument::None; 25];
    arguments[..3].clone_from_slice(&[half(&[3, 8, 32], true), cache.clone(), cache]);
    (arguments[7], arguments[14]) = (tensor(&[4]), tensor(&[3, 4]));
    let found = only("sgl_kernel::fwd", arguments);
    assert_eq!(found.flops, 4 * 3 * 8 * 64 * 32);
}

/// A sequence in decode, with 1 query and 300 keys, a prompt of 4 tokens after 6 others, and an empty slot of a partly
/// filled batch: 8 query heads of 32 and 2 KV heads.
///
/// ```text
/// pairs       300; 4 * 10 - 4 * 3 / 2 = 34
/// operations  4 8 pairs 32
/// bytes       read queries 8 32 + 2 keys 2 32, written queries 8 32; 2 each
/// ```
#[test]
fn attention_of_vllm_is_of_its_sequences_where_they_are_known() {
    let mut arguments = vec![Argument::None; 36];
    arguments[..3].clone_from_slice(&[
        half(&[5, 8, 32], true),
        half(&[1000, 16, 2, 32], false),
        half(&[1000, 16, 2, 32], false),
    ]);
    arguments[24] = Argument::Bool(true);
    let attention = definition("_vllm_fa3_C::fwd", arguments, vec![]);
    let values = |argument: usize| match argument {
        7 => Some(&[0, 1, 5, 5][..]),
        11 => Some(&[300, 10, 0][..]),
        _ => None,
    };
    let found = sequences(&attention, values).expect("they are known");
    let parts = with_sequences(&attention, &found).expect("it is attention");
    let work = |part: &Part| (part.operator.flops, part.operator.read.0, part.operator.written.0);
    let expected = [(1, 300, 300), (4, 10, 34)].map(|(queries, keys, pairs)| {
        (4 * 8 * pairs * 32, (queries * 8 * 32 + 2 * keys * 2 * 32) * 2, queries * 8 * 32 * 2)
    });
    assert_eq!(parts.iter().map(work).collect::<Vec<_>>(), expected);
    assert!(matches!(parts[0].operator.family, Family::Attention { heads: 8, queries: 1, keys: 300, width: 32, .. }));

    // Packed keys have cumulative lengths, too; without them or the used keys the lengths are unknown.
    let packed = |argument: usize| if argument == 7 || argument == 8 { Some(&[0, 2, 7][..]) } else { None };
    let weighted = 2 * 3 + 5 * 15;
    let all = Sequences { count: 2, queries: 7, keys: 7, visible: 3 + 15, weighted: (weighted, weighted), splits: 7 };
    assert_eq!(sequences(&attention, packed), Some([Sequences::default(), all]));
    for wrong in [[7, 12], [11, 12]] {
        assert_eq!(sequences(&attention, |argument| wrong.contains(&argument).then_some(&[0, 1][..])), None);
    }
    assert_eq!(sequences(&attention, |argument| Some(if argument == 7 { &[0, 1][..] } else { &[-1][..] })), None);
    assert_eq!(sequences(&definition("mine::fwd", vec![], vec![]), |_| Some(&[0][..])), None);
    assert_eq!(sequences(&attention, |argument| Some(&[0, 0, 0][usize::from(argument == 11)..])), None);
}

/// A window of 3 keys before the aligned one: prompts of 4 tokens after 6 others, and one token after 300.
#[test]
fn attention_sees_what_its_window_says() {
    let cache = half(&[1000, 16, 2, 32], false);
    for (name, borders, used, causal, count) in
        [("_vllm_fa2_C::varlen_fwd", 4, 6, 15, 22), ("_vllm_fa3_C::fwd", 7, 11, 24, 36)]
    {
        let mut arguments = vec![Argument::None; count];
        arguments[..3].clone_from_slice(&[half(&[5, 8, 32], true), cache.clone(), cache.clone()]);
        let places = [Argument::Bool(true), Argument::Int(3), Argument::Int(0)];
        arguments[causal..][..3].clone_from_slice(&places);
        let attention = definition(name, arguments, vec![]);
        let values = |argument: usize| match argument {
            argument if argument == borders => Some(&[0, 1, 5][..]),
            argument if argument == used => Some(&[300, 10][..]),
            _ => None,
        };
        let found = sequences(&attention, values).expect("they are known");
        let one = |queries, keys, visible| Sequences {
            count: 1,
            queries,
            keys,
            visible,
            weighted: (u128::from(queries * visible), u128::from(keys * visible)),
            splits: queries,
        };
        assert_eq!(found, [one(1, 4, 4), one(4, 7, 16)], "{name}");
    }
}

/// PyTorch's own attention of packed sequences, of 2 and 5 tokens: 4 heads of 16, causal, by FlashAttention and cuDNN
/// with tokens before heads.
///
/// ```text
/// pairs        3 + 15; with equal lengths, of 4 each, 10 + 10
/// operations   forward 2 4 pairs (16 + 16), backward 2 4 pairs 5 16
/// ```
#[test]
fn attention_of_packed_sequences_is_of_these() {
    let (tokens, borders) = (half(&[7, 4, 16], true), tensor(&[3]));
    let forward = |cudnn: bool| {
        let mut arguments = vec![Argument::None; 17];
        arguments[..3].fill(tokens.clone());
        arguments[3 + usize::from(cudnn)..][..2].fill(borders.clone());
        arguments[if cudnn { 10 } else { 8 }] = Argument::Bool(true);
        let name = if cudnn { "aten::_cudnn_attention_forward" } else { "aten::_flash_attention_forward" };
        (definition(name, arguments, vec![tokens.clone()]), 3 + usize::from(cudnn), 2 * 4 * 32)
    };
    let mut arguments = vec![Argument::None; 17];
    arguments[..5].fill(tokens.clone());
    arguments[6..8].fill(borders.clone());
    arguments[11] = Argument::Bool(true);
    let backward = definition("aten::_flash_attention_backward", arguments, vec![tokens.clone(); 3]);
    for (attention, place, each) in [forward(false), forward(true), (backward, 6, 2 * 4 * 5 * 16)] {
        let values = |argument: usize| (place..place + 2).contains(&argument).then_some(&[0, 2, 7][..]);
        let found = sequences(&attention, values).expect("they are known");
        let all = Sequences { count: 2, queries: 7, keys: 7, visible: 18, weighted: (81, 81), splits: 7 };
        assert_eq!(found, [Sequences::default(), all]);
        let parts = with_sequences(&attention, &found).expect("it is attention");
        let [part] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!(part.operator.flops, each * 18, "{}", attention.name);
        let Described::Parts(equal) = describe(&attention) else { panic!("{}", attention.name) };
        assert_eq!(equal[0].operator.flops, each * 20, "{}", attention.name);
        // The call's whole memory traffic.
        assert_eq!(equal[0].operator.bytes(), part.operator.bytes());
        assert!(matches!(
            part.operator.family,
            Family::Attention { heads: 4, queries: 5, keys: 5, width: 16, causal: true, .. }
        ));
    }

    // Keys in 3 pages of 16 slots for each of two sequences, of which one uses 40.
    let mut arguments = vec![Argument::None; 17];
    arguments[..3].clone_from_slice(&[
        half(&[2, 4, 16], true),
        half(&[9, 16, 2, 16], false),
        half(&[9, 16, 2, 16], false),
    ]);
    (arguments[3], arguments[13], arguments[15]) = (borders, tensor(&[2]), tensor(&[2, 3]));
    let paged = definition("aten::_flash_attention_forward", arguments, vec![half(&[2, 4, 16], true)]);
    let Described::Parts(full) = describe(&paged) else { panic!("it is attention") };
    assert_eq!(full[0].operator.flops, 2 * 2 * 4 * 48 * 32);
    let values = |argument: usize| match argument {
        3 => Some(&[0, 1, 2][..]),
        13 => Some(&[40, 1][..]),
        _ => None,
    };
    let found = sequences(&paged, values).expect("they are known");
    let parts = with_sequences(&paged, &found).expect("it is attention");
    assert_eq!(parts[0].operator.flops, 2 * 4 * 41 * 32);
    assert_eq!(parts[0].operator.read.0, (2 * 4 * 16 + 41 * 2 * 32) * 2);
}

/// Alignment of queries and keys: cuDNN aligns the first ones, unless the call gives the keys in use, and mem-efficient
/// attention by the type of the mask. Also its window, and its keys in use. 2 sequences of 4 queries and 9 keys, 1 head
/// of 16.
#[test]
fn a_query_stands_where_its_kernel_has_it() {
    let [query, key, borders] = [half(&[8, 1, 16], true), half(&[18, 1, 16], false), tensor(&[3])];
    let (none, int) = (Argument::None, Argument::Int);
    let (first, last) = (10, 4 * 9 - 6);
    for (name, places, pairs) in [
        ("_cudnn_attention_forward", vec![(10, Argument::Bool(true))], first),
        ("_cudnn_attention_forward", vec![(10, Argument::Bool(true)), (13, tensor(&[2]))], last),
        ("_flash_attention_forward", vec![(8, Argument::Bool(true))], last),
        ("_efficient_attention_forward", vec![(9, int(0))], 36),
        ("_efficient_attention_forward", vec![(9, int(1))], first),
        ("_efficient_attention_forward", vec![(9, int(2))], last),
        // Each query sees its own key and the one before, if there is one.
        ("_efficient_attention_forward", vec![(9, int(1)), (13, int(2))], 7),
        ("_efficient_attention_forward", vec![(9, int(2)), (13, int(2))], 8),
        ("_efficient_attention_forward", vec![(9, int(0)), (12, tensor(&[2]))], 4 * 5),
    ] {
        let begin = if name.starts_with("_flash") { 3 } else { 4 };
        let mut arguments = vec![none.clone(); 17];
        arguments[..3].clone_from_slice(&[query.clone(), key.clone(), key.clone()]);
        arguments[begin..begin + 2].fill(borders.clone());
        places.iter().for_each(|(place, value)| arguments[*place] = value.clone());
        let called = definition(&format!("aten::{name}"), arguments, vec![]);
        let values = |argument: usize| match argument {
            place if place == begin => Some(&[0, 4, 8][..]),
            place if place == begin + 1 => Some(&[0, 9, 18][..]),
            12 => Some(&[5, 5][..]),
            13 => Some(&[9, 9][..]),
            _ => None,
        };
        let is_said = |argument: usize| called.arguments[argument].tensors().next().is_some();
        let found = sequences(&called, |argument| values(argument).filter(|_| is_said(argument))).unwrap();
        assert_eq!(found[1].visible, 2 * pairs, "{name} {places:?}");
        let parts = with_sequences(&called, &found).unwrap();
        assert_eq!(parts[0].operator.flops, 2 * 2 * pairs * 32, "{name} {places:?}");
    }

    // The operator writes its first argument.
    let mut arguments = vec![none.clone(); 18];
    arguments[..4].clone_from_slice(&[query.clone(), query.clone(), query.clone(), query.clone()]);
    arguments[4..6].fill(borders.clone());
    arguments[9] = Argument::Bool(true);
    let to = definition("aten::_flash_attention_forward_no_dropout_inplace", arguments.clone(), vec![]);
    let halves = |argument: usize| (argument == 4 || argument == 5).then_some(&[0, 4, 8][..]);
    assert_eq!(sequences(&to, halves).unwrap()[1].visible, 20);
    (arguments[8], arguments[9]) = (Argument::Bool(true), Argument::None);
    let to = definition("aten::_cudnn_attention_forward_no_dropout_inplace", arguments, vec![]);
    assert_eq!(sequences(&to, halves).unwrap()[1].visible, 20);
}

/// Operations of an operator by its arguments, in cubes of 1024: `A` is square, `B` has twice as many rows as columns,
/// `C` is `B` transposed.
#[test]
fn dense_linear_algebra_is_by_its_arguments() {
    let (n, no, yes) = (1024_u64, Argument::Bool(false), Argument::Bool(true));
    let [a, b, c] = [[n, n], [2 * n, n], [n, 2 * n]].map(|sizes| tensor(&sizes));
    let text = |word: &str| Argument::Text(word.to_owned());
    for (name, arguments, expected) in [
        ("linalg_cholesky_ex", vec![&a], 1.0 / 3.0),
        ("linalg_inv_ex", vec![&a], 2.0 / 3.0 + 2.0),
        ("_linalg_solve_ex", vec![&a, &c, &yes], 2.0 / 3.0 + 4.0),
        ("_linalg_solve_ex", vec![&a, &b, &no], 2.0 / 3.0 + 4.0),
        ("linalg_lu_solve", vec![&a, &yes, &c, &yes], 4.0),
        ("linalg_lu_solve", vec![&a, &yes, &b, &no], 4.0),
        ("linalg_solve_triangular", vec![&a, &c, &yes, &yes], 2.0),
        ("linalg_solve_triangular", vec![&a, &b, &yes, &no], 2.0),
        ("cholesky_solve", vec![&c, &a], 4.0),
        ("geqrf", vec![&b], 4.0 - 2.0 / 3.0),
        ("linalg_qr", vec![&b, &text("r")], 4.0 - 2.0 / 3.0),
        // Without a result tensor, Q has as many columns as rows.
        ("linalg_qr", vec![&b, &text("complete")], 4.0 - 2.0 / 3.0 + 12.0),
        ("ormqr", vec![&a, &yes, &c, &yes], 4.0),
        ("linalg_lstsq", vec![&b, &b], 4.0 - 2.0 / 3.0 + 6.0 + 1.0),
        ("linalg_lstsq", vec![&c, &a], 4.0 - 2.0 / 3.0 + 6.0 + 1.0),
        ("_linalg_eigh", vec![&a, &text("L"), &no], 4.0 / 3.0),
        ("_linalg_eigh", vec![&a, &text("L"), &yes], 14.0 / 3.0),
        ("_linalg_svd", vec![&b, &no, &no], 8.0 - 4.0 / 3.0),
        ("_linalg_svd", vec![&c, &no, &no], 8.0 - 4.0 / 3.0),
        ("_linalg_svd", vec![&b, &no, &yes], 8.0 - 4.0 / 3.0 + 4.0 + 6.0 + 2.0),
        ("_linalg_svd", vec![&b, &yes, &yes], 8.0 - 4.0 / 3.0 + 4.0 + 12.0 + 2.0),
        ("linalg_pinv.atol_rtol_tensor", vec![&a, &no, &no, &no], 8.0 / 3.0 + 4.0 + 2.0 + 2.0 + 2.0),
        ("linalg_pinv.atol_rtol_tensor", vec![&a, &no, &no, &yes], 14.0 / 3.0 + 2.0),
    ] {
        let arguments = arguments.into_iter().cloned().collect();
        let called = definition(&format!("aten::{name}"), arguments, vec![]);
        assert!(is_rough(&called), "{name}");
        let found = describe(&called).flops() as f64 / (n as f64).powi(3);
        assert!((found / expected - 1.0).abs() < 0.1, "{name}: {found} instead of {expected}");
    }
}

#[test]
fn what_is_not_known_is_unknown() {
    for (name, arguments) in [
        ("aten::linalg_eig", vec![tensor(&[4, 4])]),
        ("mine::add", vec![tensor(&[4])]),
        ("aten::mm", vec![]),
        ("_C::other", vec![tensor(&[4])]),
        ("_C::rms_norm", vec![tensor(&[4])]),
    ] {
        assert_eq!(describe(&definition(name, arguments, vec![])), Described::Unknown, "{name}");
    }
}

proptest::proptest! {
    /// Any captured definition can be described: no sizes, arguments or operator name cause a panic.
    #[test]
    fn any_definition_is_described(
        at in 0_usize..1000,
        sizes in proptest::collection::vec(0_u64..u64::MAX, 0..5),
        keep in 0_usize..12,
    ) {
        let all = reference("single");
        let mut definition = all[at % all.len()].0.clone();
        definition.arguments.truncate(keep);
        for argument in definition.arguments.iter_mut().chain(&mut definition.results) {
            if let Argument::Tensor(tensor) = argument {
                tensor.strides = sizes.iter().map(|_| 1).collect();
                tensor.sizes.clone_from(&sizes);
            }
        }
        let _ = (describe(&definition).flops(), describe(&definition).kind());
    }
}
