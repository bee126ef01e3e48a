// Owns definitions of operator calls: the operator's name, and its arguments apart from tensors' values.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "schema.h"
#include "storages.h"
#include "stream.h"

namespace uniference {

// A tensor without its values.
struct TensorType {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// An operator with arguments of these types and sizes.
struct Definition {
  uint64_t number = 0;
  // Number of result tensors.
  size_t tensors = 0;
  // Types of the results, one tensor each, for calls that are not carried out; null if unknown. Set once, by the first
  // thread.
  std::atomic<const std::vector<TensorType>*> results{nullptr};
};

// Calls `f` for each defined tensor of a value, in order.
template <typename F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (tensor.defined()) f(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor.has_value() && tensor->defined()) f(*tensor);
    }
  }
}

// Whether a result is one of the arguments, whose values are unchanged unless the call writes to it.
inline bool is_given(const std::vector<c10::IValue>& arguments, const at::Tensor& result) {
  bool given = false;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) { given = given || tensor.is_same(result); });
  }
  return given;
}

class Definitions {
 public:
  static Definitions& get() {
    static Definitions* definitions = new Definitions();
    return *definitions;
  }

  // Writes the key of a call; `arguments` are the last ones of a stack.
  static void key(const Schema& schema, const c10::IValue* arguments, size_t count, Stream& out) {
    out.clear();
    out.text(schema.name);
    const bool tf32 = in_tensor_cores(schema, arguments, count);
    const bool named = !schema.argument_names.empty();
    out.number(count + tf32 + named);
    for (size_t i = 0; i < count; i++) argument(arguments[i], schema.written[i], schema.one_view, out);
    if (tf32) {
      out.tag(ArgumentTag::Text);
      out.text("tf32");
    }
    if (named) {
      out.tag(ArgumentTag::Names);
      out.text(schema.argument_names);
    }
  }

  static size_t tensors(const c10::IValue* values, size_t count) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) for_each_tensor(values[i], [&](const at::Tensor&) { found++; });
    return found;
  }

  // The definition for calls of this key with so many result tensors, because the results may depend on more than the
  // arguments' types.
  Definition& with_results(const Stream& key, size_t tensors) {
    Stream own = key;
    own.number(tensors);
    return find(own);
  }

  Definition& find(const Stream& key) {
    std::lock_guard<std::mutex> lock(Dictionary::get().mutex());
    const auto found = known_.find(key.view());
    return found != known_.end() ? found->second : known_[std::string(key.view())];
  }

  // Assigns a number to the definition, and records it with its results.
  void add(Definition& definition, const Stream& key, const c10::IValue* results, size_t count) {
    std::lock_guard<std::mutex> lock(Dictionary::get().mutex());
    if (definition.number != 0) return;
    // The record is built completely before it is added, because a tensor subclass of the program may throw.
    Stream line;
    line.tag(Tag::Definition);
    line.append(key);
    line.number(count);
    for (size_t i = 0; i < count; i++) argument(results[i], false, false, line);
    definition.tensors = tensors(results, count);
    definition.number = ++count_;
    Dictionary::get().added().append(line);
  }

 private:
  // Whether a GPU multiplies 32-bit numbers in tensor cores, by the program's current settings.
  static bool in_tensor_cores(const Schema& schema, const c10::IValue* arguments, size_t count) {
    if (schema.products == at::Float32Op::ALL) return false;
    // cuBLAS and cuDNN read NVIDIA_TF32_OVERRIDE once: 0 forbids TF32, whatever the program's settings are. NVIDIA
    // documents no other value.
    static const char* const setting = std::getenv("NVIDIA_TF32_OVERRIDE");
    static const bool is_forbidden = setting != nullptr && std::strcmp(setting, "0") == 0;
    if (is_forbidden || at::NoTF32Guard::should_disable_tf32()) return false;
    bool on_gpu = false;
    for (size_t i = 0; i < count && !on_gpu; i++) {
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        on_gpu |= tensor.is_cuda() && tensor.scalar_type() == at::kFloat;
      });
    }
    return on_gpu && at::globalContext().float32Precision(at::Float32Backend::CUDA, schema.products) ==
                         at::Float32Precision::TF32;
  }

  static void tensor(const at::Tensor& tensor, bool written, Stream& out) {
    if (!tensor.defined()) return out.tag(ArgumentTag::None);
    out.tag(ArgumentTag::Tensor);
    out.byte(static_cast<uint8_t>(tensor.scalar_type()));
    out.byte(static_cast<uint8_t>(tensor.device().type()));
    out.byte(written);
    const auto* implementation = tensor.unsafeGetTensorImpl();
    // Nested tensors have no sizes.
    const bool strided = implementation->layout() == c10::kStrided && !tensor.is_nested();
    out.number(strided ? implementation->dim() : 0);
    if (!strided) return;
    for (int64_t size : implementation->sizes()) out.number(size);
    for (int64_t stride : implementation->strides()) out.integer(stride);
  }

  // Writes an argument. For a view, the position of the viewed part is left out.
  static void argument(const c10::IValue& value, bool written, bool view, Stream& out) {
    if (value.isNone()) {
      out.tag(ArgumentTag::None);
    } else if (value.isTensor()) {
      tensor(value.toTensor(), written, out);
    } else if (value.isBool()) {
      out.tag(value.toBool() ? ArgumentTag::True : ArgumentTag::False);
    } else if (value.isInt()) {
      out.tag(view ? ArgumentTag::Other : ArgumentTag::Int);
      if (!view) out.integer(value.toInt());
    } else if (value.isDouble()) {
      out.tag(ArgumentTag::Float);
    } else if (value.isString()) {
      out.tag(ArgumentTag::Text);
      out.text(value.toStringRef());
    } else if (value.isIntList()) {
      if (view) return out.tag(ArgumentTag::Other);
      const auto list = value.toIntVector();
      out.tag(ArgumentTag::Ints);
      out.number(list.size());
      for (int64_t item : list) out.integer(item);
    } else if (value.isBoolList()) {
      // The results may depend on the flags.
      const auto list = value.toBoolList();
      out.tag(ArgumentTag::Ints);
      out.number(list.size());
      for (bool item : list) out.integer(item);
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      out.tag(ArgumentTag::Tensors);
      out.number(list.size());
      for (const at::Tensor& item : list) tensor(item, written, out);
    } else if (value.isOptionalTensorList()) {
      const auto list = value.toOptionalTensorList();
      out.tag(ArgumentTag::Tensors);
      out.number(list.size());
      for (std::optional<at::Tensor> item : list) tensor(item.value_or(at::Tensor()), written, out);
    } else {
      out.tag(ArgumentTag::Other);
    }
  }

  // Allows look-ups without a copy of the key.
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  // A node's address stays valid after insertions.
  std::unordered_map<std::string, Definition, Hash, std::equal_to<>> known_;
  uint64_t count_ = 0;
};

}  // namespace uniference
