//! Owns operators that touch no data: views, memory without contents, queries of tensors.

use super::torch::{self, Kind};

/// Operators whose results may be their argument or a copy of it, so that their schemas mark them as views: a call that
/// is recorded has copied.
pub(super) const MAY_COPY: [&str; 8] = [
    "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
    "coalesce",
    "contiguous",
    "pin_memory",
    "resolve_conj",
    "resolve_neg",
    "to",
];

/// Whether an operator only reinterprets memory, reserves it, or reads a tensor's metadata.
pub(super) fn is_nothing(name: &str) -> bool {
    (torch::kind(name, "") == Some(Kind::View) && !MAY_COPY.contains(&name))
        || name.starts_with("sym_")
        || name.starts_with("is_")
        || name.starts_with("_assert")
        || name.starts_with("_functional_")
        || name.starts_with("_record_function")
        || name.starts_with("_nested_get_")
        || name.starts_with("_nested_view")
        || matches!(
            name,
            "_unsafe_view"
                | "unsafe_split"
                | "unsafe_split_with_sizes"
                | "unsafe_chunk"
                | "_view_as_real_physical"
                | "broadcast_tensors"
                | "atleast_1d"
                | "atleast_2d"
                | "atleast_3d"
                | "empty"
                | "empty_strided"
                | "empty_like"
                | "new_empty"
                | "new_empty_strided"
                | "empty_permuted"
                | "empty_quantized"
                | "_empty_affine_quantized"
                | "set_data"
                | "_resize_output"
                | "requires_grad"
                | "rename"
                | "retain_grad"
                | "size"
                | "stride"
                | "storage_offset"
                | "numel"
                | "dim"
                | "data"
                | "output_nr"
                | "_version"
                | "_print"
                | "_make_dep_token"
                | "_has_same_storage_numel"
                | "dense_dim"
                | "sparse_dim"
                | "record_stream"
                | "_has_compatible_shallow_copy_type"
                | "_cudnn_init_dropout_state"
                | "_sparse_coo_tensor_unsafe"
                | "_coalesced"
                | "_backward"
                | "result_type"
                | "can_cast"
                | "_use_cudnn_ctc_loss"
                | "_fused_sdp_choice"
                | "_cudnn_rnn_flatten_weight"
        )
}
