//! Owns the table of serving stacks: the packages whose operators and Triton kernels are described, the versions that
//! the descriptions were checked against, and the schemas of the operators in these versions.
//!
//! An operator's arguments are read by name. A recorded operator has the names of its own schema; the names in this
//! table are for records of older versions, which lack them. Flash-attention and FlashMLA are part of vLLM, and of
//! `sglang-kernel`. Operators of FlashInfer are not described: their kernels are costed by memory traffic.

use std::collections::{BTreeMap, BTreeSet};

/// A package with operators or Triton kernels that are described.
pub struct Stack {
    /// Name of the Python package.
    pub package: &'static str,
    /// Versions that the descriptions were checked against; `3.8` is any 3.8.x.
    pub checked: &'static [&'static str],
    /// Beginnings of the operators' names.
    namespaces: &'static [&'static str],
    /// Triton kernels that are described by their arguments.
    pub(super) kernels: &'static [&'static str],
    /// Operators, and the names of their arguments in the order of the schema.
    pub(super) schemas: &'static [(&'static str, &'static str)],
}

/// All serving stacks.
pub const STACKS: [Stack; 5] = [
    Stack {
        package: "vllm",
        checked: &["0.33.0"],
        namespaces: &[
            "_C::",
            "_C_cache_ops::",
            "_moe_C::",
            "_vllm_fa2_C::",
            "_vllm_fa3_C::",
            "_flashmla_C::",
            "deep_gemm::",
        ],
        kernels: &[
            "_fwd_grouped_kernel_stage1",
            "_fwd_kernel_stage1",
            "_fwd_kernel_stage2",
            "_matmul_ogs",
            "_p_matmul_ogs",
            "_per_token_group_quant_fp8",
            "_per_token_group_quant_fp8_colmajor",
            "_w8a8_triton_block_scaled_mm",
            "fused_moe_kernel",
            "kernel_unified_attention",
            "moe_fused_mul_sum_kernel",
            "reduce_segments",
            "reshape_and_cache_kernel_flash",
            "reshape_and_cache_kernel_flash_diffkv",
        ],
        schemas: VLLM,
    },
    Stack {
        package: "sglang",
        checked: &["0.5.23"],
        namespaces: &["sglang::"],
        kernels: &[
            "_fwd_grouped_kernel_stage1",
            "_fwd_kernel",
            "_fwd_kernel_stage1",
            "_fwd_kernel_stage2",
            "_fwd_kernel_unified",
            "_router_triton_kernel",
            "_small_copy_kernel",
            "_w8a8_block_fp8_matmul",
            "_w8a8_block_fp8_matmul_hopper",
            "_w8a8_block_fp8_matmul_unrolledx4",
            "create_flashinfer_kv_indices_triton",
            "fused_moe_kernel",
            "moe_fused_mul_sum_kernel",
            "write_req_to_token_pool_triton",
        ],
        schemas: SGLANG,
    },
    Stack {
        package: "sglang-kernel",
        checked: &["0.4.10"],
        namespaces: &["sgl_kernel::"],
        kernels: &[],
        schemas: SGLANG_KERNEL,
    },
    Stack {
        package: "sgl-deep-gemm",
        checked: &["0.2.3.post2"],
        namespaces: &["deep_gemm::"],
        kernels: &[],
        schemas: &[],
    },
    // Its compiler's output, from which the work of all other kernels is counted.
    Stack { package: "triton", checked: &["3.8", "3.9"], namespaces: &["triton::"], kernels: &[], schemas: &[] },
];

impl Stack {
    /// Whether the package may define this operator or Triton kernel.
    fn has(&self, name: &str) -> bool {
        let is_kernel = name.strip_prefix("triton::").is_some_and(|kernel| self.kernels.contains(&kernel));
        is_kernel || self.namespaces.iter().any(|namespace| name.starts_with(namespace))
    }

    /// Whether descriptions were checked against this version. A local version, such as `0.33.0+cu132`, is another
    /// build of the same source.
    pub fn is_checked(&self, version: &str) -> bool {
        let version = version.split('+').next().unwrap_or_default();
        let is_of = |rest: &str| rest.is_empty() || rest.starts_with('.');
        self.checked.iter().any(|checked| version.strip_prefix(checked).is_some_and(is_of))
    }
}

/// Whether an operator or a Triton kernel may be one of a serving stack.
pub fn is_of_stack(name: &str) -> bool {
    STACKS.iter().any(|stack| stack.has(name))
}

/// Names of an operator's arguments in the checked version, in the order of the schema. `None`: it is not described.
pub(super) fn schema(name: &str) -> Option<Vec<&'static str>> {
    let name = name.split_once('.').map_or(name, |(name, _)| name);
    let (_, names) = STACKS.iter().flat_map(|stack| stack.schemas).find(|(operator, _)| *operator == name)?;
    Some(names.split(' ').collect())
}

/// A warning for each package with a version that was not checked, if one of these operators may be the package's.
/// `versions` has the installed packages.
pub fn unchecked(operators: &BTreeSet<String>, versions: &BTreeMap<String, String>) -> Vec<String> {
    let warning = |stack: &Stack| {
        let installed = versions.get(stack.package).filter(|version| !stack.is_checked(version))?;
        let first = operators.iter().find(|name| stack.has(name))?;
        Some(format!(
            "{} {installed} is installed, but costs of its operators were only checked with {}: they may be wrong (for example {first})",
            stack.package,
            stack.checked.join(" and ")
        ))
    };
    STACKS.iter().filter_map(warning).collect()
}

/// Operators of vLLM, with FlashAttention, FlashMLA and DeepGEMM as vLLM ships them.
#[rustfmt::skip]
const VLLM: &[(&str, &str)] = &[
    ("_C::awq_gemm", "_in_feats _kernel _scaling_factors _zeros split_k_iters"),
    ("_C::concat_mla_q", "ql_nope q_pe q_out"),
    ("_C::cutlass_moe_mm", "out_tensors a_tensors b_tensors a_scales b_scales expert_offsets problem_sizes a_strides \
        b_strides c_strides per_act_token per_out_ch"),
    ("_C::cutlass_scaled_mm", "out a b a_scales b_scales bias"),
    ("_C::cutlass_scaled_mm_azp", "out a b a_scales b_scales azp_adj azp bias"),
    ("_C::cutlass_w4a8_mm", "A B group_scales group_size channel_scales token_scales out_type maybe_schedule"),
    ("_C::dsv3_fused_a_gemm", "output mat_a mat_b enable_pdl"),
    ("_C::dynamic_per_token_scaled_fp8_quant", "result input scale scale_ub"),
    ("_C::dynamic_scaled_fp8_quant", "result input scale"),
    ("_C::dynamic_scaled_int8_quant", "result input scale azp"),
    ("_C::fatrelu_and_mul", "out input threshold"),
    ("_C::fp32_router_gemm", "output mat_a mat_b"),
    ("_C::fused_add_rms_norm", "input residual weight epsilon"),
    ("_C::fused_add_rms_norm_static_fp8_quant", "result input residual weight scale epsilon"),
    ("_C::fused_qk_norm_rope", "qkv num_heads_q num_heads_k num_heads_v head_dim eps q_weight k_weight cos_sin_cache \
        is_neox position_ids forced_token_heads_per_warp"),
    ("_C::gelu_and_mul", "out input"),
    ("_C::gelu_fast", "out input"),
    ("_C::gelu_new", "out input"),
    ("_C::gelu_quick", "out input"),
    ("_C::gelu_tanh_and_mul", "out input"),
    ("_C::gptq_gemm", "a b_q_weight b_gptq_qzeros b_gptq_scales use_exllama use_v2_format bit"),
    ("_C::machete_mm", "A B b_type out_type group_scales group_zeros group_size channel_scales token_scales schedule"),
    ("_C::marlin_gemm", "a c_or_none b_q_weight b_bias_or_none b_scales a_scales global_scale b_zeros_or_none \
        workspace b_type_id size_m size_n size_k use_atomic_add use_fp32_reduce is_zp_float"),
    ("_C::merge_attn_states", "output output_lse prefix_output prefix_lse suffix_output suffix_lse \
        prefill_tokens_with_context output_scale"),
    ("_C::mul_and_silu", "out input"),
    ("_C::per_token_group_fp8_quant", "input output_q output_s group_size eps fp8_min fp8_max scale_ue8m0 \
        dummy_is_scale_transposed dummy_is_tma_aligned"),
    ("_C::per_token_group_fp8_quant_packed", "input output_q output_s_packed group_size eps fp8_min fp8_max"),
    ("_C::per_token_group_quant_int8", "input output_q output_s group_size eps int8_min int8_max"),
    ("_C::relu_squared", "out input"),
    ("_C::rms_norm", "result input weight epsilon"),
    ("_C::rms_norm_dynamic_per_token_quant", "result input weight scale epsilon scale_ub residual"),
    ("_C::rms_norm_per_block_quant", "result input weight scale epsilon scale_ub residual group_size \
        is_scale_transposed"),
    ("_C::rms_norm_static_fp8_quant", "result input weight scale epsilon"),
    ("_C::rotary_embedding", "positions query key head_size cos_sin_cache is_neox rope_dim_offset inverse"),
    ("_C::silu_and_mul", "result input"),
    ("_C::silu_and_mul_nvfp4_quant", "result result_block_scale input input_global_scale"),
    ("_C::silu_and_mul_per_block_quant", "out input scales group_size scale_ub is_scale_transposed"),
    ("_C::silu_and_mul_quant", "result input scale"),
    ("_C::silu_and_mul_with_clamp", "result input limit alpha beta"),
    ("_C::situ_and_mul", "out input beta linear_beta"),
    ("_C::sm100_cutlass_mla_decode", "out lse q_nope q_pe kv_c_and_k_pe_cache seq_lens page_table workspace scale \
        num_kv_splits"),
    ("_C::static_scaled_fp8_quant", "result input scale group_shape"),
    ("_C::static_scaled_int8_quant", "result input scale azp"),
    ("_C::swigluoai_and_mul", "out input alpha limit"),
    ("_C::vocab_parallel_embedding", "out input_ids weight org_vocab_start_index org_vocab_end_index \
        num_org_vocab_padding added_vocab_start_index added_vocab_end_index"),
    ("_C_cache_ops::concat_and_cache_mla", "kv_c k_pe kv_cache slot_mapping kv_cache_dtype scale skip_scale"),
    ("_C_cache_ops::concat_and_cache_mla_rope_fused", "positions q_pe k_pe kv_c cos_sin_cache is_neox slot_mapping \
        kv_cache kv_cache_dtype kv_cache_scale"),
    ("_C_cache_ops::cp_gather_cache", "src_cache dst block_table cu_seq_lens batch_size seq_starts"),
    ("_C_cache_ops::gather_and_maybe_dequant_cache", "src_cache dst block_table cu_seq_lens token_to_seq num_tokens \
        kv_cache_dtype scale seq_starts"),
    ("_C_cache_ops::reshape_and_cache", "key value key_cache value_cache slot_mapping kv_cache_dtype k_scale v_scale \
        interleaved_v"),
    ("_C_cache_ops::reshape_and_cache_flash", "key value key_cache value_cache slot_mapping kv_cache_dtype k_scale \
        v_scale"),
    ("_flashmla_C::dense_decode_fwd", "q kcache head_size_v seqlens_k block_table softmax_scale is_causal \
        tile_scheduler_metadata num_splits out_"),
    ("_moe_C::grouped_topk", "scores n_group topk_group topk renormalize routed_scaling_factor bias scoring_func"),
    ("_moe_C::moe_align_block_size", "topk_ids num_experts block_size sorted_token_ids experts_ids num_tokens_post_pad \
        maybe_expert_map scatter_idx"),
    ("_moe_C::moe_permute", "input topk_ids token_expert_indices expert_map n_expert n_local_expert topk \
        permuted_input expert_first_token_offset inv_permuted_idx permuted_idx"),
    ("_moe_C::moe_sum", "input output topk_ids expert_map"),
    ("_moe_C::moe_unpermute", "permuted_hidden_states topk_weights inv_permuted_idx expert_first_token_offset topk \
        hidden_states"),
    ("_moe_C::moe_wna16_gemm", "input output b_qweight b_scales b_qzeros topk_weights sorted_token_ids expert_ids \
        num_tokens_post_pad top_k BLOCK_SIZE_M BLOCK_SIZE_N BLOCK_SIZE_K bit"),
    ("_moe_C::moe_wna16_marlin_gemm", "a c_or_none b_q_weight b_bias_or_none b_scales a_scales global_scale \
        b_zeros_or_none workspace sorted_token_ids expert_ids num_tokens_past_padded topk_weights moe_block_size top_k \
        mul_topk_weights b_type_id size_m size_n size_k use_atomic_add use_fp32_reduce is_zp_float thread_k thread_n \
        blocks_per_sm"),
    ("_moe_C::shuffle_rows", "input_tensor dst2src_map output_tensor"),
    ("_moe_C::topk_sigmoid", "topk_weights topk_indices token_expert_indices gating_output renormalize bias \
        routed_scaling_factor is_padding"),
    ("_moe_C::topk_softmax", "topk_weights topk_indices token_expert_indices gating_output renormalize bias \
        is_padding"),
    ("_vllm_fa2_C::varlen_fwd", "q k v out cu_seqlens_q cu_seqlens_k seqused_k leftpad_k block_table alibi_slopes \
        max_seqlen_q max_seqlen_k p_dropout softmax_scale zero_tensors is_causal window_size_left window_size_right \
        softcap return_softmax num_splits gen"),
    ("_vllm_fa3_C::fwd", "q k v k_new v_new q_v out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k \
        max_seqlen_q max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale \
        k_descale v_descale softmax_scale is_causal window_size_left window_size_right softcap is_rotary_interleaved \
        scheduler_metadata num_splits pack_gqa sm_margin s_aux cp_world_size cp_rank cp_tot_seqused_k"),
    ("_vllm_fa3_C::get_scheduler_metadata", "batch_size max_seqlen_q max_seqlen_k num_heads num_heads_k headdim \
        headdim_v qkv_dtype seqused_k cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q leftpad_k page_size \
        max_seqlen_k_new is_causal window_size_left window_size_right has_softcap num_splits pack_gqa sm_margin"),
    ("deep_gemm::bf16_gemm_nt", "a b d c compiled_dims alpha epilogue_kind epilogue_alpha epilogue_sfd"),
    ("deep_gemm::fp8_fp4_gemm_nt", "a sfa b sfb d c recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast alpha \
        epilogue_kind epilogue_alpha epilogue_sfd"),
    ("deep_gemm::m_grouped_bf16_gemm_nt_contiguous", "a b d grouped_layout compiled_dims use_psum_layout \
        ensure_zero_padding expected_m_for_psum_layout epilogue_kind epilogue_alpha epilogue_sfd"),
    ("deep_gemm::m_grouped_fp8_fp4_gemm_nt_contiguous", "a sfa b sfb d grouped_layout recipe recipe_a recipe_b \
        compiled_dims disable_ue8m0_cast use_psum_layout ensure_zero_padding expected_m_for_psum_layout epilogue_kind \
        epilogue_alpha epilogue_sfd"),
];

/// Operators that SGLang compiles at their first call.
#[rustfmt::skip]
const SGLANG: &[(&str, &str)] = &[
    ("sglang::_run_activation_inplace", "op_name input out"),
    ("sglang::apply_rope_inplace", "q k cos_sin_cache positions"),
    ("sglang::apply_rope_inplace_with_kvcache", "q k v k_cache v_cache cos_sin_cache positions out_loc"),
    ("sglang::fused_inplace_qknorm", "q k q_weight k_weight eps head_dim"),
    ("sglang::fused_qk_norm_rope_out", "qkv q_weight k_weight position_ids num_heads_q num_heads_k num_heads_v \
        head_dim eps base is_neox factor low high attention_factor rotary_dim"),
    ("sglang::moe_fused_gate", "scores bias topk scoring_func num_fused_shared_experts renormalize \
        routed_scaling_factor apply_routed_scaling_factor_on_output moe_softcapping num_expert_group topk_group \
        bias_alt input_ids bias_alt_token_id num_token_non_padded renormalize_epsilon packed_out sqrtsoftplus_log1p"),
    ("sglang::per_token_group_quant", "input output_q output_s group_size scale_ue8m0 fuse_silu_and_mul masked_m \
        expected_m sorted_token_ids num_tokens_post_padded num_valid_tokens silu_and_mul_mode"),
    ("sglang::per_token_group_quant_8bit_v2", "input output_q output_s group_size eps min_8bit max_8bit scale_ue8m0 \
        fuse_silu_and_mul masked_m"),
    ("sglang::rmsnorm", "input weight out eps"),
    ("sglang::store_cache", "k v k_cache v_cache indices"),
];

/// Operators of SGLang's kernel library.
#[rustfmt::skip]
const SGLANG_KERNEL: &[(&str, &str)] = &[
    ("sgl_kernel::concat_mla_absorb_q", "a b out"),
    ("sgl_kernel::concat_mla_k", "k k_nope k_rope"),
    ("sgl_kernel::dense_decode_fwd", "q kcache head_size_v seqlens_k block_table softmax_scale is_causal \
        tile_scheduler_metadata num_splits"),
    ("sgl_kernel::fp8_blockwise_scaled_grouped_mm", "output a_ptrs b_ptrs out_ptrs a_scales_ptrs b_scales_ptrs a b \
        scales_a scales_b stride_a stride_b stride_c layout_sfa layout_sfb problem_sizes expert_offsets workspace"),
    ("sgl_kernel::fp8_scaled_mm", "mat_a mat_b scales_a scales_b out_dtype bias"),
    ("sgl_kernel::fused_add_rmsnorm", "input residual weight eps enable_pdl"),
    ("sgl_kernel::fused_qk_norm_rope", "qkv num_heads_q num_heads_k num_heads_v head_dim eps q_weight k_weight base \
        is_neox position_ids factor low high attention_factor rotary_dim"),
    ("sgl_kernel::fwd", "q k v k_new v_new q_v out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k \
        max_seqlen_q max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale \
        k_descale v_descale softmax_scale is_causal window_size_left window_size_right attention_chunk softcap \
        is_rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin sinks sparse_mask_fine only_qv"),
    ("sgl_kernel::gelu_and_mul", "out input"),
    ("sgl_kernel::gelu_tanh_and_mul", "out input"),
    ("sgl_kernel::gemma_fused_add_rmsnorm", "input residual weight eps enable_pdl"),
    ("sgl_kernel::gemma_rmsnorm", "output input weight eps enable_pdl"),
    ("sgl_kernel::get_scheduler_metadata", "batch_size max_seqlen_q max_seqlen_k num_heads num_heads_k headdim \
        headdim_v qkv_dtype seqused_k cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q leftpad_k page_size \
        max_seqlen_k_new is_causal window_size_left window_size_right attention_chunk has_softcap num_splits pack_gqa \
        sm_margin"),
    ("sgl_kernel::int8_scaled_mm", "mat_a mat_b scales_a scales_b out_dtype bias"),
    ("sgl_kernel::merge_state_v2", "v_a s_a v_b s_b v_merged s_merged"),
    ("sgl_kernel::moe_align_block_size", "topk_ids num_experts block_size sorted_token_ids experts_ids \
        num_tokens_post_pad cumsum_buffer pad_sorted_token_ids ignore_invalid_expert"),
    ("sgl_kernel::moe_sum", "input output"),
    ("sgl_kernel::moe_sum_reduce", "input output routed_scaling_factor"),
    ("sgl_kernel::rmsnorm", "output input weight eps enable_pdl"),
    ("sgl_kernel::rotary_embedding", "positions query key head_size cos_sin_cache is_neox"),
    ("sgl_kernel::sgl_per_token_group_quant_8bit", "input output_q output_s group_size eps fp8_min fp8_max \
        scale_ue8m0"),
    ("sgl_kernel::sgl_per_token_group_quant_8bit_v2", "input output_q output_s group_size eps fp8_min fp8_max \
        scale_ue8m0 fuse_silu_and_mul masked_m"),
    ("sgl_kernel::sgl_per_token_quant_fp8", "input output_q output_s"),
    ("sgl_kernel::shuffle_rows", "input dst2src_map output"),
    ("sgl_kernel::silu_and_mul", "out input"),
    ("sgl_kernel::topk_sigmoid", "topk_weights topk_indices gating_output renormalize correction_bias"),
    ("sgl_kernel::topk_softmax", "topk_weights topk_indices gating_output renormalize moe_softcapping correction_bias"),
];
