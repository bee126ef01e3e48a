// Owns properties of an operator that do not depend on its arguments: found once, from its schema, its kernels and its
// name.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "substitutes.h"

namespace uniference {

struct Schema {
  std::string name;
  // Whether it is an operation of a process group, which the simulator carries out.
  bool communicates = false;
  // Whether its results are views of its arguments, so that it computes nothing.
  bool view = false;
  // Whether it returns one view whose properties do not depend on the position of the viewed part.
  bool one_view = false;
  // Whether it creates tensors from sizes.
  bool factory = true;
  // Argument with the type of the created tensors; -1: none.
  int dtype_argument = -1;
  // Whether the created tensors are integers unless an argument is a floating-point number.
  bool counts = false;
  // Whether its results are written arguments, or have the size of an argument.
  bool keeps_size = false;
  // Meaning of its integer arguments for the number of created elements.
  enum class Elements {
    kSize,      // number of elements: a list of sizes, or one size each
    kRange,     // from the first, or 0, up to the second by steps of the third
    kSteps,     // the third is the number of elements
    kTriangle,  // the first two are the sizes of a matrix, and each element has two coordinates
    kSquare,    // the sizes of a matrix, or of a square
    kOne,
  };
  Elements elements = Elements::kSize;
  // Whether it creates uninitialized tensors.
  bool empty = false;
  // Whether it is implemented by calling other operators, which are captured. Autograd decomposes it before the
  // capture; inference mode does not.
  bool composite = false;
  // Whether it has a kernel of its own for GPUs.
  bool on_gpu = false;
  // Whether a program or an extension defines it without a kernel for the CPU alone: on a GPU it calls other operators,
  // or launches kernels of its own.
  bool foreign = false;
  // Whether it is a Triton kernel that the program launches (`python/uniference/rank/kernels.py`). The interpretation
  // of the kernel finds out which results are not computed.
  bool kernel = false;
  // Its kind of 32-bit GEMMs, for which a program may enable tensor cores (TF32); `ALL`: it has none.
  at::Float32Op products = at::Float32Op::ALL;
  // Whether it returns a value, or a number of elements, to the program.
  bool reads_value = false;
  // Whether its values are moved by copies that it consists of, or it has none.
  bool moves_no_values = false;
  // Whether the size of its results depends on values, or it reads values on its way.
  bool sized_by_values = false;
  // Whether that holds for calls with masks.
  bool sized_by_masks = false;
  // Whether its work depends on integer arguments: the lengths of sequences.
  bool has_lengths = false;
  // Computes its values if the CPU has no kernel of this operator, or one with other arguments; null: none.
  Substitute substitute = nullptr;
  // Names of its arguments, separated by commas, if an extension defines it: they are recorded, because the order of
  // arguments changes between versions of an extension. Empty for operators of torch and Triton kernels.
  std::string argument_names;
  // Whether it writes to an argument, by argument.
  std::vector<bool> written;
  // The argument that a result is identical to, by result; -1: none.
  std::vector<int> same_as;

  // The schema of an operator. It lives as long as the process, because a CUDA graph may outlive the thread that
  // captured it.
  static const Schema& of(const c10::OperatorHandle& op) {
    static thread_local std::unordered_map<const void*, const Schema*> known;
    const Schema*& entry = known[&op.schema()];
    if (entry == nullptr) entry = &shared(op);
    return *entry;
  }

 private:
  static const Schema& shared(const c10::OperatorHandle& op) {
    static std::mutex mutex;
    static auto& all = *new std::unordered_map<const void*, std::unique_ptr<Schema>>();
    std::lock_guard<std::mutex> only_one(mutex);
    auto& entry = all[&op.schema()];
    if (!entry) entry.reset(new Schema(op));
    return *entry;
  }

  explicit Schema(const c10::OperatorHandle& op) {
    using c10::DispatchKey;
    const c10::FunctionSchema& schema = op.schema();
    name = schema.name();
    communicates = begins("c10d::") || begins("_c10d_functional");
    if (!schema.overload_name().empty()) name += "." + schema.overload_name();
    for (const auto& argument : schema.arguments()) {
      const auto* alias = argument.alias_info();
      written.push_back(alias != nullptr && alias->isWrite());
      if (argument.name() == "dtype") dtype_argument = static_cast<int>(written.size()) - 1;
      const auto kind = argument.type()->str();
      if (kind.rfind("Tensor", 0) == 0 || kind.rfind("List[Tensor", 0) == 0) factory = false;
    }
    for (const auto& result : schema.returns()) {
      const auto* alias = result.alias_info();
      view = view || (alias != nullptr && !alias->isWrite());
      int same = -1;
      for (size_t i = 0; alias != nullptr && alias->isWrite() && i < written.size(); i++) {
        const auto* other = schema.arguments()[i].alias_info();
        if (other != nullptr && other->isWrite() && other->beforeSets() == alias->beforeSets())
          same = static_cast<int>(i);
      }
      same_as.push_back(same);
    }
    // The result is a view, although the schema does not mark it as one.
    view = view || is({"aten::_unsafe_view"});
    // The number of parts depends on their sizes.
    one_view = view && schema.returns().size() == 1 && schema.returns()[0].type()->kind() != c10::TypeKind::ListType;
    keeps_size = std::all_of(same_as.begin(), same_as.end(), [](int same) { return same >= 0; }) ||
                 is({"aten::clone", "aten::_to_copy", "aten::cumsum"});
    counts = begins("aten::arange") || begins("aten::randint") || begins("aten::randperm");
    if (begins("aten::arange") || begins("aten::range")) {
      elements = Elements::kRange;
    } else if (begins("aten::linspace") || begins("aten::logspace")) {
      elements = Elements::kSteps;
    } else if (begins("aten::tril_indices") || begins("aten::triu_indices")) {
      elements = Elements::kTriangle;
    } else if (begins("aten::eye")) {
      elements = Elements::kSquare;
    } else if (begins("aten::scalar_tensor")) {
      elements = Elements::kOne;
    }
    empty = begins("aten::empty") || begins("aten::new_empty");
    composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
                !op.hasKernelForDispatchKey(DispatchKey::CPU);
    on_gpu = op.hasKernelForDispatchKey(DispatchKey::CUDA);
    foreign = !begins("aten::") && !op.hasKernelForDispatchKey(DispatchKey::CPU);
    kernel = begins("triton::");
    if (foreign) {
      for (const auto& argument : schema.arguments())
        argument_names += (argument_names.empty() ? "" : ",") + argument.name();
    }
    static const std::set<std::string> kProducts = {"aten::mm",     "aten::bmm",     "aten::addmm",
                                                    "aten::addmm_", "aten::baddbmm", "aten::baddbmm_",
                                                    "aten::addbmm", "aten::addbmm_", "aten::_addmm_activation",
                                                    "aten::linear", "aten::matmul"};
    if (kProducts.count(schema.name()) != 0) {
      products = at::Float32Op::MATMUL;
    } else if (begins("aten::convolution") || begins("aten::_convolution") || begins("aten::cudnn_convolution")) {
      products = at::Float32Op::CONV;
    } else if (begins("aten::_cudnn_rnn")) {
      products = at::Float32Op::RNN;
    }
    reads_value =
        is({"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::masked_select"}) ||
        begins("aten::_unique") || begins("aten::unique");
    moves_no_values =
        empty || is({"aten::_local_scalar_dense", "aten::record_stream", "aten::_pin_memory", "aten::is_pinned",
                     "aten::resize_", "aten::set_", "aten::set_.source_Storage",
                     "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::_resize_output_",
                     "aten::_cudnn_init_dropout_state", "aten::_cudnn_rnn_flatten_weight"});
    sized_by_masks = begins("aten::index.") || begins("aten::index_put") || begins("aten::_index_put_impl_") ||
                     begins("aten::_unsafe_index");
    // Torch tags operators whose sizes depend on values. The others read values on their way.
    sized_by_values = (begins("aten::") && op.hasTag(at::Tag::dynamic_output_shape) && !sized_by_masks) ||
                      is({"aten::equal", "aten::histc", "aten::segment_reduce", "aten::nonzero_static",
                          "aten::_jagged_to_padded_dense_forward", "aten::_linalg_check_errors", "aten::_assert_async",
                          "aten::_assert_async.msg", "aten::_is_all_true", "aten::_is_any_true", "aten::_to_sparse",
                          "aten::_to_sparse.sparse_dim", "aten::_to_sparse_csr", "aten::_to_sparse_csc",
                          "aten::_to_sparse_bsr", "aten::_to_sparse_bsc"});
    // Triton kernels are those that crates/costs/src/operators/serving/kernels.rs knows.
    has_lengths = begins("aten::_flash_attention_") || begins("aten::_efficient_attention_") ||
                  begins("aten::_cudnn_attention_") ||
                  is({"triton::kernel_unified_attention", "triton::reduce_segments", "triton::_fwd_kernel_stage1",
                      "triton::_fwd_grouped_kernel_stage1", "triton::_fwd_kernel_stage2", "triton::_fwd_kernel",
                      "triton::_fwd_kernel_unified", "triton::create_flashinfer_kv_indices_triton"});
    substitute = Substitutes::of(name);
  }

  bool is(const std::set<std::string>& names) const { return names.count(name) != 0; }
  bool begins(const char* beginning) const { return name.rfind(beginning, 0) == 0; }
};

}  // namespace uniference
