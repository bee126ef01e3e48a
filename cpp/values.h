// Owns results without values, for operators on tensors above the limit: they have the right types and sizes.
//
// A value that was not computed reads as zero in every operator that is carried out, and all results that depend on it
// count as not computed. The same holds on simulated GPUs, where `cpu_reference.h` writes the zeros.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "definitions.h"
#include "gpu_memory.h"

namespace uniference {

// Nesting depth of this thread in work that derives integer tables from larger ones, such as a mask from which blocks
// are chosen: all of this work has values.
inline thread_local int keep_indices = 0;

class Values {
 public:
  static Values& get() {
    static Values values;
    return values;
  }

  // Operators on tensors of more elements are not carried out.
  void set_limit(int64_t elements) { limit_ = elements; }
  bool all() const { return limit_ == std::numeric_limits<int64_t>::max(); }

  // Whether communication moves only the size of a tensor, and no data. The limit depends on the tensor's type;
  // operators on tensors above the limit are not computed either.
  bool is_large(const at::Tensor& tensor) const { return is_large(tensor.numel(), tensor.scalar_type()); }
  bool is_large(int64_t elements, c10::ScalarType dtype) const {
    if (all()) return false;
    // NCCL counts a complex number as two elements, so a complex tensor moves its data only up to half the limit.
    if (!c10::isIntegralType(dtype, /*includeBool=*/true))
      return elements * (c10::isComplexType(dtype) ? 2 : 1) > limit_of_floats();
    return elements > std::max(limit_, dtype == at::kByte ? kPacked : kIndices);
  }

  // Whether a call of a simulated GPU has values: its tensors, including created ones, are small. For a kernel on
  // integers the grid must be small instead, because it may look up a few elements of a large table.
  bool has_values(const Schema& schema, const c10::IValue* arguments, size_t count) const {
    if (all()) return true;
    int64_t most = schema.factory ? elements_asked(schema, arguments, count) : 0;
    bool of_integers = !schema.factory || makes_integers(schema, arguments, count);
    // Integers of 8 bits are the data of quantized models.
    bool of_data = false;
    for (size_t i = 0; i < count; i++) {
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        most = std::max(most, tensor.numel());
        of_integers = of_integers && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
        of_data = of_data || tensor.scalar_type() == at::kChar || tensor.scalar_type() == at::kByte;
      });
    }
    // Calls whose results are not larger than their arguments; a comparison of each element with each has larger ones.
    const bool keeps_indices =
        limit_ > 0 && of_integers && !schema.kernel && (schema.factory || schema.keeps_size || keep_indices > 0);
    const bool looks_up = schema.kernel && of_integers && !of_data && programs(arguments[count - 1]) <= kPrograms;
    return most <= (keeps_indices ? limit_of_integers() : limit_of_floats()) || looks_up;
  }

  // Whether communication of simulated GPUs moves truth values, which NCCL treats as bytes: those of large tensors were
  // not computed.
  bool moves(const c10::IValue* arguments, size_t count) const {
    bool moves = true;
    for (size_t i = 0; i < count && !all(); i++) {
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        moves = moves && !(tensor.scalar_type() == at::kBool && is_large(tensor));
      });
    }
    return moves;
  }

  // Whether a call is carried out with values.
  bool computes(const Schema& schema, const c10::IValue* arguments, size_t count) const {
    if (all() || schema.view || names_other_device(arguments, count)) return true;
    if (schema.factory) {
      const int64_t limit = makes_integers(schema, arguments, count) ? limit_of_integers() : limit_of_floats();
      // Handing out uninitialized memory costs nothing.
      return schema.empty || elements_asked(schema, arguments, count) <= limit;
    }
    int64_t most = 0;
    bool on_cpu = true;
    bool of_integers = true;
    bool of_bytes = true;
    for (size_t i = 0; i < count; i++) {
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        most = std::max(most, tensor.numel());
        on_cpu = on_cpu && tensor.is_cpu() && tensor.layout() == c10::kStrided;
        of_integers = of_integers && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
        of_bytes = of_bytes && tensor.scalar_type() == at::kByte;
      });
    }
    const int64_t limit = of_integers ? limit_of_integers() : limit_of_floats();
    return !on_cpu || most <= (of_bytes ? std::max(limit, kPacked) : limit);
  }

  // Replaces the arguments on the stack by the results of a call that is not carried out. False: the types of the
  // results cannot be known without values, and the stack is unchanged.
  bool answer(
      const c10::OperatorHandle& op, const Schema& schema, Definition& definition, torch::jit::Stack& stack) const {
    const size_t count = op.schema().arguments().size();
    const size_t begin = stack.size() - count;
    std::unique_ptr<const std::vector<TensorType>> found;
    const std::vector<TensorType>* known = definition.results.load(std::memory_order_acquire);
    if (known == nullptr) {
      auto types = results_of(op, &stack[begin], count);
      if (!types) return false;
      found = std::make_unique<const std::vector<TensorType>>(std::move(*types));
      // The size of a factory's result may depend on floating-point numbers, which are not part of the definition.
      known = found.get();
      const std::vector<TensorType>* none = nullptr;
      // The definition, which is never freed, then owns the types.
      const bool is_kept =
          !schema.factory && definition.results.compare_exchange_strong(none, known, std::memory_order_acq_rel);
      if (is_kept) (void)found.release();
    }
    std::vector<c10::IValue> results;
    const auto& types = *known;
    for (size_t i = 0; i < types.size(); i++) {
      const int same = i < schema.same_as.size() ? schema.same_as[i] : -1;
      results.push_back(same >= 0 ? stack[begin + same] : c10::IValue(make(types[i])));
    }
    for (size_t i = 0; i < count; i++) {
      if (schema.written[i]) for_each_tensor(stack[begin + i], mark);
    }
    stack.resize(begin);
    for (auto& result : results) stack.push_back(std::move(result));
    return true;
  }

  // Whether a storage has elements that were not computed.
  static bool is_uncomputed(const c10::StorageImpl* storage) {
    if (storage->device().is_cuda()) return GpuMemory::is_uncomputed(storage);
    const Allocation* allocation = Storages::of(storage);
    return allocation != nullptr && allocation->uncomputed.load(std::memory_order_relaxed);
  }
  static bool is_uncomputed(const at::Tensor& tensor) {
    return tensor.has_storage() && is_uncomputed(storage_of(tensor));
  }

  // Marks a storage as not computed.
  static void mark_uncomputed(const c10::StorageImpl* storage) {
    if (storage->device().is_cuda()) return GpuMemory::mark_uncomputed(storage);
    if (Allocation* allocation = Storages::of(storage)) allocation->uncomputed.store(true, std::memory_order_relaxed);
  }
  static void mark(const at::Tensor& tensor) {
    if (tensor.has_storage()) mark_uncomputed(storage_of(tensor));
  }

 private:
  static const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }

  // Number of integers up to which integer tensors are always computed on the host, because programs branch on them:
  // meshes, indices, lengths and generator states.
  static constexpr int64_t kIndices = 1 << 16;

  // The limit in work that is known to decide control flow: a mask of 16,384 by 16,384.
  static constexpr int64_t kMask = 1 << 28;

  // Number of elements up to which tensors of any type are always computed, such as an optimizer's step count, by which
  // it divides, a scale, or a loss. It is 2, because NCCL counts one complex number as 2 elements.
  static constexpr int64_t kSmallest = 2;

  int64_t limit_of_floats() const { return std::max(limit_, kSmallest); }
  int64_t limit_of_integers() const { return std::max(limit_, keep_indices > 0 ? kMask : kIndices); }

  // Number of bytes up to which byte tensors are always computed: PyTorch packs objects into them, for example objects
  // that ranks send each other.
  static constexpr int64_t kPacked = 1 << 26;

  // Interpreting more programs of a kernel one after the other would need too much time.
  static constexpr int64_t kPrograms = 1 << 12;

  // The size of a kernel's grid: the product of the last three numbers among its arguments.
  static int64_t programs(const c10::IValue& numbers) {
    const std::vector<int64_t> given = numbers.toIntVector();
    int64_t product = 1;
    for (size_t i = given.size() - std::min<size_t>(given.size(), 3); i < given.size(); i++) product *= given[i];
    return product;
  }

  static bool makes_integers(const Schema& schema, const c10::IValue* arguments, size_t count) {
    if (schema.dtype_argument >= 0 && arguments[schema.dtype_argument].isInt()) {
      return c10::isIntegralType(
          static_cast<c10::ScalarType>(arguments[schema.dtype_argument].toInt()), /*includeBool=*/true);
    }
    return schema.counts &&
           std::none_of(arguments, arguments + count, [](const c10::IValue& value) { return value.isDouble(); });
  }

  // Whether the results are requested on another device than the CPU, for example on `meta`.
  static bool names_other_device(const c10::IValue* arguments, size_t count) {
    for (size_t i = 0; i < count; i++) {
      if (arguments[i].isDevice() && !arguments[i].toDevice().is_cpu()) return true;
    }
    return false;
  }

  // Upper limit of the number of elements of a factory's result.
  static int64_t elements_asked(const Schema& schema, const c10::IValue* arguments, size_t count) {
    using Elements = Schema::Elements;
    std::vector<double> numbers;
    for (size_t i = 0; i < count; i++) {
      if (arguments[i].isIntList()) {
        double elements = 1;
        for (int64_t size : arguments[i].toIntVector()) elements *= static_cast<double>(size);
        return in_range(elements);
      }
      if (static_cast<int>(i) == schema.dtype_argument) break;
      if (arguments[i].isInt() || arguments[i].isDouble()) numbers.push_back(arguments[i].toScalar().toDouble());
      // A complex number keeps its position among the arguments, and is no size.
      if (arguments[i].isComplexDouble()) numbers.push_back(0);
    }
    const auto number = [&](size_t at, double other) { return numbers.size() > at ? numbers[at] : other; };
    switch (schema.elements) {
      case Elements::kRange:
        if (numbers.size() < 2) return in_range(number(0, 0));
        return in_range((number(1, 0) - number(0, 0)) / number(2, 1) + 1);
      case Elements::kSteps: return in_range(number(2, 0));
      case Elements::kSquare: return in_range(number(0, 0) * number(1, number(0, 0)));
      case Elements::kTriangle: return in_range(2 * number(0, 0) * number(1, 0));
      case Elements::kOne: return 1;
      case Elements::kSize: break;
    }
    return in_range(numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end()));
  }

  static int64_t in_range(double elements) {
    return elements >= 0x1p62 ? int64_t{1} << 62 : elements > 0 ? static_cast<int64_t>(elements) : 0;
  }

  static at::Tensor make(const TensorType& type) {
    auto tensor = at::empty_strided(type.sizes, type.strides, at::TensorOptions().dtype(type.dtype).device(at::kCPU));
    if (Allocation* allocation = Storages::of(tensor)) {
      allocation->uncomputed.store(true, std::memory_order_relaxed);
      // Pages that were never written to are zero already.
      if (!allocation->mapped) memset(allocation->data(), 0, allocation->bytes);
    }
    return tensor;
  }

  static at::Tensor to_meta(const at::Tensor& tensor) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  }

  static c10::IValue to_meta(const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(to_meta(value.toTensor())) : value;
    if (value.isDevice()) return c10::Device(c10::kMeta);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) list.push_back(tensor.defined() ? to_meta(tensor) : tensor);
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
        list.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(to_meta(*tensor)) : tensor);
      }
      return list;
    }
    return value;
  }

  // Types of the results, from the operator's implementation on the `meta` device.
  static std::optional<std::vector<TensorType>> results_of(
      const c10::OperatorHandle& op, const c10::IValue* arguments, size_t count) {
    torch::jit::Stack stack;
    try {
      for (size_t i = 0; i < count; i++) stack.push_back(to_meta(arguments[i]));
      // The device argument of a factory may be missing.
      for (size_t i = 0; i < count; i++) {
        if (op.schema().arguments()[i].name() == "device") stack[i] = c10::Device(c10::kMeta);
      }
      c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
      op.callBoxed(&stack);
    } catch (const std::exception&) {  // includes errors of Python functions
      return std::nullopt;
    }
    std::vector<TensorType> types;
    for (const c10::IValue& result : stack) {
      if (!result.isTensor() || !result.toTensor().defined()) return std::nullopt;
      const at::Tensor& tensor = result.toTensor();
      types.push_back({tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()});
    }
    return types;
  }

  int64_t limit_ = std::numeric_limits<int64_t>::max();
};

}  // namespace uniference
