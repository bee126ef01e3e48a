// Owns how operators are told apart: by name, and by what their arguments are apart from values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <memory>
#include <unordered_map>

#include "storages.h"
#include "stream.h"

namespace uniference {

// What is known of an operator by its schema.
struct Schema {
  std::string name;
  // It is an operation of a process group, which the simulator carries out.
  bool communicates;
  // Its results are views of its arguments: it computes nothing.
  bool view;
  // It is one view: whichever part of its argument that is, all else is the same.
  bool one_view;
  // It makes tensors from sizes.
  bool factory;
  // Which argument says of which type they are; -1: none.
  int dtype_argument = -1;
  // It is carried out by calling others, which are what is captured. Autograd takes it apart before it comes here; inference mode does not.
  bool composite;
  // Of a GPU it is carried out by a kernel of its own.
  bool on_gpu;
  // A program or an extension defines it, with nothing for the CPU alone: on a GPU it is carried out by calling others.
  bool foreign;
  // By argument: it is written to.
  std::vector<bool> written;
  // By result: which argument it is, or -1.
  std::vector<int> same_as;

  explicit Schema(const c10::FunctionSchema& schema) : name(schema.name()), view(false), one_view(false), factory(true), composite(false), on_gpu(false), foreign(false) {
    communicates = name.rfind("c10d::", 0) == 0 || name.rfind("_c10d_functional", 0) == 0;
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
        if (other != nullptr && other->isWrite() && other->beforeSets() == alias->beforeSets()) same = static_cast<int>(i);
      }
      same_as.push_back(same);
    }
    // Its result is a view, though the schema does not say so.
    view = view || name == "aten::_unsafe_view" || name == "aten::lift_fresh" || name == "aten::_reshape_alias";
    // How many parts there are depends on their sizes.
    one_view = view && schema.returns().size() == 1 && schema.returns()[0].type()->kind() != c10::TypeKind::ListType;
  }

  static const Schema& of(const c10::OperatorHandle& op) {
    using c10::DispatchKey;
    static thread_local std::unordered_map<const void*, std::unique_ptr<Schema>> known;
    const c10::FunctionSchema& schema = op.schema();
    auto& entry = known[&schema];
    if (!entry) {
      entry = std::make_unique<Schema>(schema);
      entry->composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !op.hasKernelForDispatchKey(DispatchKey::CPU);
      entry->on_gpu = op.hasKernelForDispatchKey(DispatchKey::CUDA);
      entry->foreign = entry->name.rfind("aten::", 0) != 0 && !op.hasKernelForDispatchKey(DispatchKey::CPU);
    }
    return *entry;
  }
};

// A tensor without its values.
struct TensorType {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// An operator as it is called with arguments like these.
struct Definition {
  uint64_t number = 0;
  // How many tensors its results are.
  size_t tensors = 0;
  // What a call that was not carried out hands back, if that is known: tensors, one a result. Set once, by whichever thread is first.
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
    out.number(count);
    for (size_t i = 0; i < count; i++) argument(arguments[i], schema.written[i], schema.one_view, out);
  }

  static size_t tensors(const c10::IValue* values, size_t count) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) for_each_tensor(values[i], [&](const at::Tensor&) { found++; });
    return found;
  }

  // Of a call like others that has come to so many tensors: which results there are may depend on more than the arguments' types.
  Definition& with_results(const Stream& key, size_t tensors) {
    Stream own = key;
    own.number(tensors);
    return find(own);
  }

  Definition& find(const Stream& key) {
    std::lock_guard<std::mutex> lock(Dictionary::get().mutex());
    return known_[key.key()];
  }

  // Gives it a number, and writes it down with its results.
  void add(Definition& definition, const Stream& key, const c10::IValue* results, size_t count) {
    std::lock_guard<std::mutex> lock(Dictionary::get().mutex());
    if (definition.number != 0) return;
    definition.number = ++count_;
    definition.tensors = tensors(results, count);
    Stream& out = Dictionary::get().added();
    out.number(kDefinition);
    out.append(key);
    out.number(count);
    for (size_t i = 0; i < count; i++) argument(results[i], false, false, out);
  }

 private:
  static void tensor(const at::Tensor& tensor, bool written, Stream& out) {
    if (!tensor.defined()) return out.byte(kNone);
    out.byte(kTensor);
    out.byte(static_cast<uint8_t>(tensor.scalar_type()));
    out.byte(static_cast<uint8_t>(tensor.device().type()));
    out.byte(written);
    const auto* implementation = tensor.unsafeGetTensorImpl();
    const bool strided = implementation->layout() == c10::kStrided;
    out.number(strided ? implementation->dim() : 0);
    if (!strided) return;
    for (int64_t size : implementation->sizes()) out.number(size);
    for (int64_t stride : implementation->strides()) out.integer(stride);
  }

  // Of a view it does not matter which part it is.
  static void argument(const c10::IValue& value, bool written, bool view, Stream& out) {
    if (value.isNone()) {
      out.byte(kNone);
    } else if (value.isTensor()) {
      tensor(value.toTensor(), written, out);
    } else if (value.isBool()) {
      out.byte(value.toBool() ? kTrue : kFalse);
    } else if (value.isInt()) {
      out.byte(view ? kOther : kInt);
      if (!view) out.integer(value.toInt());
    } else if (value.isDouble()) {
      out.byte(kFloat);
    } else if (value.isString()) {
      out.byte(kText);
      out.text(value.toStringRef());
    } else if (value.isIntList()) {
      if (view) return out.byte(kOther);
      const auto list = value.toIntVector();
      out.byte(kInts);
      out.number(list.size());
      for (int64_t item : list) out.integer(item);
    } else if (value.isBoolList()) {
      // Which results there are may depend on them.
      const auto list = value.toBoolList();
      out.byte(kInts);
      out.number(list.size());
      for (bool item : list) out.integer(item);
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      out.byte(kTensors);
      out.number(list.size());
      for (const at::Tensor& item : list) tensor(item, written, out);
    } else if (value.isOptionalTensorList()) {
      const auto list = value.toOptionalTensorList();
      out.byte(kTensors);
      out.number(list.size());
      for (std::optional<at::Tensor> item : list) tensor(item.value_or(at::Tensor()), written, out);
    } else {
      out.byte(kOther);
    }
  }

  // A node's address stays when others come.
  std::unordered_map<std::string, Definition> known_;
  uint64_t count_ = 0;
};

}  // namespace uniference
