// Owns the GPU tracer that torch notifies: a stand-in for a Python interpreter, of which torch calls only the GPU trace
// functions.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymBool.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/PyInterpreter.h>

#include <string>

namespace uniference {

class GpuTracer final : public c10::impl::PyInterpreterVTable {
 public:
  using Told = void (*)(uintptr_t address);

  GpuTracer(Told allocated, Told freed) : allocated_(allocated), freed_(freed) {}

  void trace_gpu_memory_allocation(c10::DeviceType, uintptr_t address) const override { allocated_(address); }
  void trace_gpu_memory_deallocation(c10::DeviceType, uintptr_t address) const override { freed_(address); }
  void trace_gpu_event_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_deletion(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_record(c10::DeviceType, uintptr_t, uintptr_t) const override {}
  void trace_gpu_event_wait(c10::DeviceType, uintptr_t, uintptr_t) const override {}
  void trace_gpu_stream_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_device_synchronization(c10::DeviceType) const override {}
  void trace_gpu_stream_synchronization(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_synchronization(c10::DeviceType, uintptr_t) const override {}

  std::string name() const override { return "uniference"; }

  // The stand-in has no objects: no tensor refers to it.
  void incref(PyObject*) const override { has_no_objects(); }
  void decref(PyObject*) const override { has_no_objects(); }
  bool try_incref(const c10::impl::PyObjectSlot&) const override { has_no_objects(); }
  size_t refcnt(PyObject*) const override { has_no_objects(); }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl*) const override { has_no_objects(); }
  void dispatch(const c10::OperatorHandle&, torch::jit::Stack*) const override { has_no_objects(); }
  void reportErrorCallback(PyObject*, c10::DispatchKey) const override { has_no_objects(); }
  void python_op_registration_trampoline(
      const c10::OperatorHandle&, c10::DispatchKey, c10::DispatchKeySet, torch::jit::Stack*, bool,
      bool) const override {
    has_no_objects();
  }
  void throw_abstract_impl_not_imported_error(std::string, const char*, const char*) const override {
    has_no_objects();
  }
  void python_dispatcher(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) const override {
    has_no_objects();
  }
  bool is_contiguous(const c10::TensorImpl*, at::MemoryFormat) const override { has_no_objects(); }
  c10::SymBool sym_is_contiguous(const c10::TensorImpl*, at::MemoryFormat) const override { has_no_objects(); }
  bool is_strides_like(const c10::TensorImpl*, at::MemoryFormat) const override { has_no_objects(); }
  bool is_non_overlapping_and_dense(const c10::TensorImpl*) const override { has_no_objects(); }
  c10::Device device(const c10::TensorImpl*) const override { has_no_objects(); }
  int64_t dim(const c10::TensorImpl*) const override { has_no_objects(); }
  c10::IntArrayRef strides(const c10::TensorImpl*) const override { has_no_objects(); }
  c10::IntArrayRef sizes(const c10::TensorImpl*) const override { has_no_objects(); }
  c10::SymIntArrayRef sym_sizes(const c10::TensorImpl*) const override { has_no_objects(); }
  c10::Layout layout(const c10::TensorImpl*) const override { has_no_objects(); }
  int64_t numel(const c10::TensorImpl*) const override { has_no_objects(); }
  c10::SymInt sym_numel(const c10::TensorImpl*) const override { has_no_objects(); }
  c10::SymIntArrayRef sym_strides(const c10::TensorImpl*) const override { has_no_objects(); }
  c10::SymInt sym_storage_offset(const c10::TensorImpl*) const override { has_no_objects(); }
  void reset_backward_hooks(const c10::TensorImpl*) const override { has_no_objects(); }

 private:
  [[noreturn]] static void has_no_objects() {
    TORCH_INTERNAL_ASSERT(false, "who traces simulated GPUs is asked for a tensor's object");
    __builtin_unreachable();
  }

  Told allocated_;
  Told freed_;
};

}  // namespace uniference
