// Owns the values of operators on simulated GPUs, for which the CPU is the reference. An operator runs on the simulated
// GPU with its allocations and launches, but without computing; then the CPU's kernel of the same operator computes on
// the same bytes, because a simulated GPU's memory lies in the host's.
//
// Operators whose result sizes depend on values cannot run on the simulated GPU without values. They run on the CPU
// first, as do operators whose functions the simulated libraries lack; their results are then allocated on the GPU.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <set>
#include <string>

#include "definitions.h"
#include "launches.h"
#include "storages.h"
#include "substitutes.h"
#include "values.h"

namespace uniference {

// Calls in CUDA graphs are numbered from 1. For this thread: number of its last call, if it was captured, and of the
// call that is computed; 0: none.
inline thread_local uint64_t captured_last = 0;
inline thread_local uint64_t computed_now = 0;

class CpuReference {
 public:
  // The number of a call whose graph was destroyed, each once; 0: none.
  static uint64_t forgotten() {
    std::lock_guard<std::mutex> lock(forgotten_mutex_);
    if (forgotten_.empty()) return 0;
    const uint64_t number = forgotten_.back();
    forgotten_.pop_back();
    return number;
  }

  // Functions of the simulated GPU library (`crates/phantom`): announces that a kernel of this name starts on the
  // stream; waits until data received by communication on the stream has arrived.
  using Launch = void (*)(const char* name, size_t length, void* stream);
  using WaitForData = void (*)(void* stream);
  // Whether the stream is being captured into a CUDA graph; and registers `run`, called at each launch of the graph,
  // and `forget`, called when the graph is destroyed.
  using IsCaptured = int (*)(void* stream);
  using Compute = void (*)(void* stream, void (*run)(void* data), void (*forget)(void* data), void* data);
  // Begins (1) or ends (-1) communication of this thread that moves sizes without data.
  using Withhold = void (*)(int change);
  // Sets bytes to zero, without using host memory for them.
  using Clear = void (*)(void* at, size_t bytes);
  // Whether no page of these bytes has been written to, so that they are zero.
  using IsUntouched = int (*)(const void* at, size_t bytes);
  // Sets whether this thread may read from devices (`crates/phantom/src/reads.rs`); returns the previous setting.
  using Reads = int (*)(int now);
  // Whether a launch returns only when the launched work has ended (`CUDA_LAUNCH_BLOCKING`).
  using LaunchesBlock = int (*)();

  // Computes values of operators on GPUs from now on.
  static void begin(
      Launch launch, WaitForData wait_for_data, IsCaptured is_captured, Compute compute, Withhold withhold, Clear clear,
      IsUntouched is_untouched, Reads reads, LaunchesBlock launches_block) {
    launch_ = launch;
    wait_for_data_ = wait_for_data;
    is_captured_ = is_captured;
    compute_ = compute;
    withhold_ = withhold;
    clear_ = clear;
    is_untouched_ = is_untouched;
    reads_ = reads;
    launches_block_ = launches_block;
    wanted_ = true;
  }

  static bool wanted() { return wanted_; }

  // Whether a call has GPU tensors, or requests one.
  static bool concerns(const c10::IValue* arguments, size_t count) {
    bool on_gpu = false;
    for (size_t i = 0; i < count && !on_gpu; i++) {
      if (arguments[i].isDevice()) on_gpu = arguments[i].toDevice().is_cuda();
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { on_gpu = on_gpu || tensor.is_cuda(); });
    }
    return on_gpu;
  }

  // The device for which the program waits after a call because launches block; none if launches do not block.
  static std::optional<c10::Device> blocks_on(const c10::IValue* arguments, size_t count) {
    return launches_block_() ? std::optional<c10::Device>(device_of(arguments, count)) : std::nullopt;
  }

  // Waits until all work on the device's current stream has ended. Returns at once if the stream is being captured.
  static void wait_for(c10::Device device) {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    const c10::Stream stream = guard.getStream(device);
    if (!is_captured_(guard.getStreamNativeHandle(stream))) guard.synchronizeStream(stream);
  }

  // Carries out a communication call, which `moves` data, or only its size.
  static void communicate(
      const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack, bool moves) {
    struct Withheld {
      explicit Withheld(bool is_withheld) : change(is_withheld ? 1 : 0) { withhold_(change); }
      ~Withheld() { withhold_(-change); }
      const int change;
    } withheld(!moves);
    op.redispatchBoxed(below, &stack);
  }

  // Carries out a call whose arguments are on the stack: on the GPU and, if it `has_values`, on the CPU. A call that
  // reads values on its way, for example for the size of its result, is computed on the CPU however large it is.
  static void run(
      const c10::OperatorHandle& op, const Schema& schema, c10::DispatchKeySet below, torch::jit::Stack& stack,
      bool has_values) {
    captured_last = 0;
    const size_t count = op.schema().arguments().size();
    const size_t begin = stack.size() - count;
    const bool sized = sized_by_values(schema, &stack[begin], count);
    if (schema.view || schema.moves_no_values || (leave_uncomputed > 0 && !sized))
      return op.redispatchBoxed(below, &stack);
    if (!(has_values || sized) && run_without_values(op, schema, below, stack, begin)) return;
    const c10::Device device = device_of(&stack[begin], count);
    // Default streams and generators are those of the current device.
    const c10::DeviceGuard on(device);
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    void* stream = guard.getStreamNativeHandle(guard.getStream(device));
    if (!sized && is_captured_(stream)) return run_captured(op, schema, below, stack, begin, stream);
    wait_for_data_(stream);
    const Randomness randomness(op, &stack[begin], count);
    torch::jit::Stack here = to_cpu(&stack[begin], count, randomness);
    const bool sparse = any_sparse(&stack[begin], count);
    if (sized) return run_here_first(op, schema, randomness, here, stack, begin);
    if (sparse) return run_sparse(op, schema, below, randomness, here, stack, begin);
    const std::vector<c10::IValue> given(stack.begin() + begin, stack.end());
    try {
      if (!has_values || !run_on_gpu(op, schema, below, stack, begin))
        return run_here_first(op, schema, randomness, here, stack, begin);
    } catch (const c10::Error& error) {
      if (!lacks_function(error) || fails(op, schema, randomness, here)) throw;
      return hand_out(schema, here, stack, begin);
    }
    const std::optional<Failure> failure = fails(op, schema, randomness, here);
    if (failure && failure->asserts) raise_assertion(schema.name, failure->reason);
    if (failure) return give_up(schema, failure->reason, given, stack, begin);
    for (size_t i = begin; i < stack.size(); i++) {
      if (schema.same_as[i - begin] < 0 && !says_nothing(schema, here[i - begin]))
        hand_over(schema.name, here[i - begin], stack[i]);
    }
  }

  // Waits until data received by communication on the call's stream has arrived, because values of its arguments are
  // about to be read.
  static void wait_for_data(const c10::IValue* arguments, size_t count) {
    void* stream = stream_of(arguments, count);
    if (!is_captured_(stream)) wait_for_data_(stream);
  }

  // Marks results of an extension's operator that has launched kernels of its own, which compute nothing.
  static void ran_own_kernels(
      const Schema& schema, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack, size_t begin,
      bool has_values) {
    if (has_values && leave_uncomputed == 0) lacking(schema.name, "it launches kernels of its own");
    forget_values(schema, arguments, stack, begin, /*all=*/false);
  }

 private:
  // State of the GPU's generator before a call, from which the CPU's seed is derived: equal states give equal numbers,
  // as on a GPU.
  class Randomness {
   public:
    Randomness(const c10::OperatorHandle& op, const c10::IValue* arguments, size_t count)
        : draws(op.hasTag(at::Tag::nondeterministic_seeded)) {
      if (!draws) return;
      at::Generator generator = at::globalContext().defaultGenerator(current_device());
      for (size_t i = 0; i < count; i++) {
        if (arguments[i].isGenerator() && arguments[i].toGenerator().device().is_cuda())
          generator = arguments[i].toGenerator();
      }
      // An odd factor, so that neighbouring seeds and offsets do not collide.
      seed = generator.current_seed() * 0x9E3779B97F4A7C15u + generator.get_offset();
    }

    // For a launch of a CUDA graph: whether the call draws random numbers, and its position in the graph.
    Randomness(bool draws, uint64_t place) : draws(draws) {
      if (!draws) return;
      const at::Generator generator = at::globalContext().defaultGenerator(current_device());
      seed = (generator.current_seed() + place) * 0x9E3779B97F4A7C15u + generator.get_offset();
    }

    at::Generator cpu() const { return at::detail::createCPUGenerator(seed); }

    const bool draws;
    uint64_t seed = 0;
  };

  static c10::Device current_device() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice(); }

  static bool sized_by_values(const Schema& schema, const c10::IValue* arguments, size_t count) {
    bool sized = schema.sized_by_values;
    for (size_t i = 0; schema.sized_by_masks && i < count; i++) {
      if (!arguments[i].isOptionalTensorList() && !arguments[i].isTensorList()) continue;
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        sized = sized || tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
      });
    }
    return sized;
  }

  static bool any_sparse(const c10::IValue* arguments, size_t count) {
    bool sparse = false;
    for (size_t i = 0; i < count; i++) {
      for_each_tensor(
          arguments[i], [&](const at::Tensor& tensor) { sparse = sparse || tensor.layout() != c10::kStrided; });
    }
    return sparse;
  }

  // Whether the message is the simulated libraries' (`crates/phantom/src/unimplemented.rs`), which torch appends to its
  // own.
  static bool lacks_function(const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    return what.find("_NOT_SUPPORTED") != std::string::npos ||
           what.find("operation not supported") != std::string::npos;
  }

  // All elements of a nested tensor; and a nested tensor of the same sizes with other elements. Sizes are on the CPU.
  static at::Tensor elements_of(const at::Tensor& nested) {
    return at::native::get_nested_tensor_impl(nested)->get_unsafe_storage_as_tensor();
  }
  static at::Tensor nested_in(const at::Tensor& elements, const at::Tensor& like) {
    const auto* nested = at::native::get_nested_tensor_impl(like);
    return at::_nested_view_from_buffer(
        elements, nested->get_nested_sizes(), nested->get_nested_strides(), nested->get_storage_offsets());
  }

  // A CPU tensor of the same bytes.
  static at::Tensor alias(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    if (tensor.is_nested()) return nested_in(alias(elements_of(tensor)), tensor);
    if (tensor.layout() == c10::kSparse) {
      auto same = at::_sparse_coo_tensor_unsafe(alias(tensor._indices()), alias(tensor._values()), tensor.sizes());
      return same._coalesced_(tensor.is_coalesced());
    }
    if (tensor.layout() != c10::kStrided) return tensor.to(c10::kCPU);
    const c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    auto memory = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
        c10::DataPtr(const_cast<void*>(storage->data_ptr().get()), c10::Device(c10::kCPU)), nullptr,
        /*resizable=*/false);
    auto same = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(memory)), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    same.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) same._set_conj(true);
    if (tensor.is_neg()) same._set_neg(true);
    return same;
  }

  static torch::jit::Stack to_cpu(const c10::IValue* arguments, size_t count, const Randomness& randomness) {
    torch::jit::Stack here;
    here.reserve(count);
    for (size_t i = 0; i < count; i++) {
      const c10::IValue& value = arguments[i];
      if (value.isTensor()) {
        here.emplace_back(alias(value.toTensor()));
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorList()) list.push_back(alias(tensor));
        here.emplace_back(std::move(list));
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
          list.push_back(tensor ? std::optional<at::Tensor>(alias(*tensor)) : std::nullopt);
        }
        here.emplace_back(std::move(list));
      } else if (value.isDevice()) {
        here.emplace_back(c10::Device(c10::kCPU));
      } else if (value.isGenerator()) {
        here.emplace_back(randomness.cpu());
      } else {
        here.push_back(value);
      }
    }
    return here;
  }

  // A call in a CUDA graph. Its tensors are aliases of bytes that the graph's allocations keep alive.
  struct Captured {
    c10::OperatorHandle op;
    const Schema& schema;
    bool draws;
    uint64_t number;
    torch::jit::Stack here;
    // Results that the call has allocated; written arguments are among the arguments.
    torch::jit::Stack results;

    // Only computes values; the graph's other nodes simulate the launch.
    static void run(void* data) {
      auto& call = *static_cast<Captured*>(data);
      const Inside inside;
      const Randomness randomness(call.draws, call.number);
      torch::jit::Stack here = call.here;
      for (c10::IValue& value : here) {
        if (value.isGenerator()) value = randomness.cpu();
      }
      computed_now = call.number;
      const auto failure = fails(call.op, call.schema, randomness, here);
      computed_now = 0;
      if (failure) return lacking(call.schema.name, failure->reason);
      for (size_t i = 0; i < call.results.size(); i++) {
        if (call.schema.same_as[i] < 0) hand_over(call.schema.name, here[i], call.results[i]);
      }
    }

    static void forget(void* data) {
      const std::unique_ptr<Captured> call(static_cast<Captured*>(data));
      std::lock_guard<std::mutex> lock(forgotten_mutex_);
      forgotten_.push_back(call->number);
    }
  };

  // Captures a call. As on a GPU, nothing is computed during the capture of a CUDA graph.
  static void run_captured(
      const c10::OperatorHandle& op, const Schema& schema, c10::DispatchKeySet below, torch::jit::Stack& stack,
      size_t begin, void* stream) {
    static std::atomic<uint64_t> calls{0};
    const bool draws = op.hasTag(at::Tag::nondeterministic_seeded);
    const Randomness none(false, 0);
    auto call = std::make_unique<Captured>(
        Captured{op, schema, draws, ++calls, to_cpu(&stack[begin], stack.size() - begin, none), {}});
    op.redispatchBoxed(below, &stack);
    call->results = to_cpu(&stack[begin], stack.size() - begin, none);
    captured_last = call->number;
    compute_(stream, &Captured::run, &Captured::forget, call.release());
  }

  // Computes a call by the CPU's kernel; results replace the arguments. False: there is no such kernel, so the results
  // have no values.
  static bool compute(
      const c10::OperatorHandle& op, const Schema& schema, const Randomness& randomness, torch::jit::Stack& here) {
    // A kernel may be a Python function.
    const Inside ours;
    c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    // Hides the CPU's operators from profilers, which see only the GPU's.
    const at::DisableRecordFunctionGuard unseen;
    if (schema.substitute != nullptr) {
      schema.substitute(here, randomness.seed);
      return true;
    }
    if (!has_cpu_kernel(op, here)) return false;
    // Calls without a generator argument draw from the CPU's default generator.
    std::optional<Substitutes::Drawing> drawing;
    if (randomness.draws) drawing.emplace(randomness.seed);
    op.callBoxed(&here);
    return true;
  }

  static bool has_cpu_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
    bool nested = false;
    for (const c10::IValue& argument : arguments) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) { nested = nested || tensor.is_nested(); });
    }
    if (nested) return has_kernel(op, {c10::DispatchKey::NestedTensorCPU});
    const bool exists = any_sparse(arguments.data(), arguments.size()) ? has_sparse_kernel(op)
                                                                       : has_kernel(op, {c10::DispatchKey::CPU});
    return exists || (makes_sparse(op) && has_sparse_kernel(op));
  }

  static bool has_sparse_kernel(const c10::OperatorHandle& op) {
    return has_kernel(op, {c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCsrCPU});
  }

  static bool has_kernel(const c10::OperatorHandle& op, std::initializer_list<c10::DispatchKey> keys) {
    return std::any_of(
        keys.begin(), keys.end(), [&](c10::DispatchKey key) { return op.hasComputedKernelForDispatchKey(key); });
  }

  // Whether the call creates a sparse tensor from dense ones.
  static bool makes_sparse(const c10::OperatorHandle& op) {
    return op.schema().name().find("sparse") != std::string::npos;
  }

  // Reason why a call has no values: the CPU's operator rejects its arguments, or the GPU's kernel would fail an
  // assertion.
  struct Failure {
    std::string reason;
    bool asserts = false;
  };

  // Computes a call that succeeded on the GPU; returns the reason if the computation fails.
  static std::optional<Failure> fails(
      const c10::OperatorHandle& op, const Schema& schema, const Randomness& randomness, torch::jit::Stack& here) {
    const Uncounted ours;
    try {
      if (compute(op, schema, randomness, here)) return std::nullopt;
      return Failure{"the CPU has no kernel for it"};
    } catch (const c10::IndexError& error) {
      return Failure{error.what_without_backtrace(), /*asserts=*/true};
    } catch (const c10::Error& error) {
      return Failure{error.what_without_backtrace(), is_assertion(error.what_without_backtrace())};
    } catch (const std::exception& error) {  // errors of Python functions
      return Failure{error.what(), is_assertion(error.what())};
    }
  }

  // Whether the CPU's error corresponds to an assertion in the GPU's kernel: on indices, on probabilities, or in a
  // Triton kernel.
  static bool is_assertion(const std::string& reason) {
    constexpr const char* kAsserted[] = {
        "is out of bounds", "is not in the valid range", "elements of input should be between 0 and 1",
        "assertion failed"};
    return std::any_of(std::begin(kAsserted), std::end(kAsserted), [&](const char* text) {
      return reason.find(text) != std::string::npos;
    });
  }

  // Raises the error that a GPU reports at a later call, after which the GPU is unusable.
  [[noreturn]] static void raise_assertion(const std::string& name, const std::string& reason) {
    constexpr int32_t kCudaErrorAssert = 710;
    const std::string message =
        "CUDA error: device-side assert triggered\n" + name + ": " + reason +
        "\nThis GPU is simulated: the error is raised where the operator was called, as with CUDA_LAUNCH_BLOCKING=1.";
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, kCudaErrorAssert, message);
  }

  // Whether a substitute has left a result empty, because the result has no meaning on the CPU.
  static bool says_nothing(const Schema& schema, const c10::IValue& result) {
    return schema.substitute != nullptr && result.isTensor() && result.toTensor().defined() &&
           result.toTensor().numel() == 0;
  }

  // Marks the written arguments and the results of a failed call as not computed. A call with neither, such as
  // `_use_cudnn_ctc_loss`, keeps the GPU's answer.
  static void give_up(
      const Schema& schema, const std::string& reason, const std::vector<c10::IValue>& arguments,
      const torch::jit::Stack& stack, size_t begin) {
    size_t tensors = Definitions::tensors(&stack[begin], stack.size() - begin);
    for (size_t i = 0; i < arguments.size(); i++) {
      if (schema.written[i]) tensors += Definitions::tensors(&arguments[i], 1);
    }
    if (tensors == 0) return;
    lacking(schema.name, reason);
    forget_values(schema, arguments, stack, begin, /*all=*/false);
  }

  // Sets a tensor's bytes to zero, by contiguous pieces.
  static void clear(const at::Tensor& tensor) {
    if (tensor.numel() == 0) return;
    std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
    for (int64_t i = 0; i < tensor.dim(); i++) {
      if (tensor.size(i) > 1 && tensor.stride(i) != 0) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
    }
    std::sort(dimensions.begin(), dimensions.end());
    int64_t piece = 1;
    size_t inner = 0;
    while (inner < dimensions.size() && dimensions[inner].first == piece) piece *= dimensions[inner++].second;
    dimensions.erase(dimensions.begin(), dimensions.begin() + static_cast<std::ptrdiff_t>(inner));
    const int64_t width = static_cast<int64_t>(tensor.itemsize());
    for (auto& [stride, size] : dimensions) stride *= width;
    clear_pieces(static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())), piece * width, dimensions);
  }

  // Tensors with fewer pieces are cleared without asking which pages are untouched.
  static constexpr int64_t kPieces = 64;

  // Clears pieces of `bytes` bytes, in dimensions of these strides and sizes. A KV cache has millions of pieces, few of
  // which were ever written to.
  static void clear_pieces(char* at, int64_t bytes, std::vector<std::pair<int64_t, int64_t>>& dimensions) {
    int64_t pieces = 1, extent = bytes;
    for (const auto& [stride, size] : dimensions) {
      pieces *= size;
      extent += stride * (size - 1);
    }
    if (pieces == 1) return clear_(at, static_cast<size_t>(bytes));
    if (pieces > kPieces && is_untouched_(at, static_cast<size_t>(extent))) return;
    // Splits the dimension with the largest stride into halves, and restores it afterwards.
    auto& [stride, size] = *std::find_if(
        dimensions.rbegin(), dimensions.rend(), [](const auto& dimension) { return dimension.second > 1; });
    const int64_t all = size, half = all / 2, step = stride;
    size = half;
    clear_pieces(at, bytes, dimensions);
    size = all - half;
    clear_pieces(at + half * step, bytes, dimensions);
    size = all;
  }

  // Tensors of a call without values in a CUDA graph: each launch of the graph sets them to zero.
  struct Cleared {
    std::vector<at::Tensor> tensors;

    static void run(void* data) {
      for (const at::Tensor& tensor : static_cast<Cleared*>(data)->tensors) clear(tensor);
    }

    static void forget(void* data) { delete static_cast<Cleared*>(data); }
  };

  // Runs a call on the GPU alone: its written arguments and results count as not computed.
  static bool run_without_values(
      const c10::OperatorHandle& op, const Schema& schema, c10::DispatchKeySet below, torch::jit::Stack& stack,
      size_t begin) {
    const std::vector<c10::IValue> arguments(stack.begin() + begin, stack.end());
    if (!run_on_gpu(op, schema, below, stack, begin)) return false;
    if (!moves_bytes(schema, arguments, stack[begin])) forget_values(schema, arguments, stack, begin, /*all=*/true);
    return true;
  }

  // Refuses reads from a GPU by this thread while the object lives.
  class NoReads {
   public:
    NoReads() : before_(reads_(kRefused)) {}
    ~NoReads() { reads_(before_); }
    NoReads(const NoReads&) = delete;
    NoReads& operator=(const NoReads&) = delete;

    // Whether a read was refused.
    bool any() const { return reads_(kRefused) == kAsked; }

   private:
    static constexpr int kRefused = 1, kAsked = 2;
    const int before_;
  };

  // Runs the GPU's operator: its kernels are launched, and compute nothing. False: the operator has tried to read
  // values that the kernels would have computed; the stack is unchanged, and the launches so far stay.
  static bool run_on_gpu(
      const c10::OperatorHandle& op, const Schema& schema, c10::DispatchKeySet below, torch::jit::Stack& stack,
      size_t begin) {
    torch::jit::Stack attempt(stack.begin() + begin, stack.end());
    const bool has_choice = schema.substitute != nullptr || has_cpu_kernel(op, attempt);
    // Reads in a CUDA graph happen at the graph's launch.
    if (!has_choice || moves_to_host(attempt) || is_captured_(stream_of(attempt.data(), attempt.size()))) {
      op.redispatchBoxed(below, &attempt);
    } else {
      const NoReads reads;
      try {
        op.redispatchBoxed(below, &attempt);
      } catch (const std::exception&) {
        if (reads.any()) return false;
        throw;
      }
      if (reads.any()) return false;
    }
    stack.resize(begin);
    for (auto& result : attempt) stack.push_back(std::move(result));
    return true;
  }

  // Whether a call has tensors in host memory: reading from the GPU may then be its purpose.
  static bool moves_to_host(const torch::jit::Stack& arguments) {
    bool found = asks_for_cpu(arguments, 0);
    for (const c10::IValue& argument : arguments) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) { found = found || tensor.is_cpu(); });
    }
    return found;
  }

  // Sets a call's written arguments and results to zero. Unless `all` is set, large tensors that had no values before
  // are left unchanged, for example a KV cache of which the call has written a part.
  static void forget_values(
      const Schema& schema, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack, size_t begin,
      bool all) {
    constexpr int64_t kSmall = 1 << 16;
    std::vector<at::Tensor> tensors;
    const auto collect = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.is_nested() || tensor.layout() != c10::kStrided || !tensor.has_storage()) return;
      if (all || tensor.numel() <= kSmall || !Values::is_uncomputed(tensor)) tensors.push_back(tensor);
    };
    for (size_t i = 0; i < arguments.size(); i++) {
      if (schema.written[i]) for_each_tensor(arguments[i], collect);
    }
    for (size_t i = begin; i < stack.size(); i++) {
      if (schema.same_as[i - begin] >= 0) continue;
      for_each_tensor(stack[i], [&](const at::Tensor& result) {
        if (!is_given(arguments, result)) collect(result);
      });
    }
    for (const at::Tensor& tensor : tensors) Values::mark(tensor);
    void* stream = stream_of(arguments.data(), arguments.size());
    if (!is_captured_(stream)) {
      for (const at::Tensor& tensor : tensors) clear(tensor);
      return;
    }
    auto cleared = std::make_unique<Cleared>();
    for (const at::Tensor& tensor : tensors) cleared->tensors.push_back(alias(tensor));
    compute_(stream, &Cleared::run, &Cleared::forget, cleared.release());
  }

  // Whether a call only copies bytes without conversion, which the simulated GPU's copy has done already.
  static bool moves_bytes(const Schema& schema, const std::vector<c10::IValue>& arguments, const c10::IValue& result) {
    if (schema.name != "aten::copy_" && schema.name != "aten::_to_copy" && schema.name != "aten::clone") return false;
    const at::Tensor& from = arguments[schema.name == "aten::copy_" ? 1 : 0].toTensor();
    const at::Tensor& to = result.toTensor();
    return from.layout() == c10::kStrided && to.layout() == c10::kStrided && from.dtype() == to.dtype() &&
           from.sizes() == to.sizes() && from.strides() == to.strides() && from.is_non_overlapping_and_dense() &&
           from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg();
  }

  static void* stream_of(const c10::IValue* arguments, size_t count) {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    return guard.getStreamNativeHandle(guard.getStream(device_of(arguments, count)));
  }

  // Runs a call that creates a sparse tensor, whose elements are known only with the values.
  static void run_sparse(
      const c10::OperatorHandle& op, const Schema& schema, c10::DispatchKeySet below, const Randomness& randomness,
      torch::jit::Stack& here, torch::jit::Stack& stack, size_t begin) {
    // The dispatcher raises the error.
    if (!has_kernel(op, {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCsrCUDA, c10::DispatchKey::CUDA}))
      return op.redispatchBoxed(below, &stack);
    // Written sparse tensors may grow beyond their GPU memory.
    for (size_t i = 0; i < here.size(); i++) {
      const Inside ours;
      if (schema.written[i] && here[i].isTensor() && here[i].toTensor().layout() == c10::kSparse)
        here[i] = here[i].toTensor().clone();
    }
    if (const auto failure = fails(op, schema, randomness, here)) {
      lacking(schema.name, failure->reason);
      return op.redispatchBoxed(below, &stack);
    }
    hand_out(schema, here, stack, begin);
  }

  // Whether a result is the state that a library keeps for the backward pass: on a GPU it is larger.
  static bool is_state(const at::Tensor& tensor) { return tensor.scalar_type() == at::kByte && tensor.dim() == 1; }

  // Whether two tensors without overlap have the same layout in memory.
  static bool lies_alike(const at::Tensor& there, const at::Tensor& here) {
    const bool same = there.layout() == c10::kStrided && here.layout() == c10::kStrided &&
                      there.sizes() == here.sizes() && there.strides() == here.strides() &&
                      there.dtype() == here.dtype() && there.is_non_overlapping_and_dense();
    return same && there.is_conj() == here.is_conj() && there.is_neg() == here.is_neg();
  }

  // Copies the values of one result into the tensor that the GPU's operator has allocated.
  static void hand_over(const std::string& name, const c10::IValue& from, c10::IValue& to) {
    if (to.isTensor() && from.isTensor()) {
      const at::Tensor& there = to.toTensor();
      const at::Tensor& here = from.toTensor();
      if (!there.defined() || !here.defined()) return;
      if (there.is_nested() && here.is_nested()) {
        c10::IValue elements(elements_of(there));
        return hand_over(name, elements_of(here), elements);
      }
      if (there.is_nested() || here.is_nested())
        return lacking(name, "a result is nested, and the CPU's is not, or the other way round");
      if (there.layout() == c10::kSparse && here.layout() == c10::kSparse && there._nnz() == here._nnz()) {
        c10::IValue indices(there._indices()), values(there._values());
        hand_over(name, here._indices(), indices);
        hand_over(name, here._values(), values);
        return;
      }
      if (there.layout() != c10::kStrided || here.layout() != c10::kStrided)
        return lacking(name, "a result is neither dense nor sparse as the CPU's");
      // Components of a sparse tensor may be arguments of the call.
      if (there.const_data_ptr() == here.const_data_ptr() && there.sizes() == here.sizes() &&
          there.strides() == here.strides())
        return;
      if (lies_alike(there, here)) {
        memcpy(const_cast<void*>(there.const_data_ptr()), here.const_data_ptr(), here.nbytes());
      } else if (there.sizes() == here.sizes()) {
        alias(there).copy_(here);
      } else if (is_state(there) && is_state(here) && here.numel() <= there.numel()) {
        alias(there).narrow(0, 0, here.numel()).copy_(here);
      } else {
        lacking(name, "the CPU's results have other sizes");
      }
    } else if (to.isTensorList() && from.isTensorList()) {
      const auto there = to.toTensorList(), here = from.toTensorList();
      for (size_t i = 0; i < there.size() && i < here.size(); i++) {
        c10::IValue target(there.get(i));
        hand_over(name, here.get(i), target);
      }
    } else if (!to.isTensor() && !to.isTensorList()) {
      to = from;
    }
  }

  // Runs a call on the CPU first and allocates its results on the GPU; written arguments are updated in place.
  static void run_here_first(
      const c10::OperatorHandle& op, const Schema& schema, const Randomness& randomness, torch::jit::Stack& here,
      torch::jit::Stack& stack, size_t begin) {
    const bool computed = compute(op, schema, randomness, here);
    TORCH_CHECK(computed, schema.name, " has no CPU kernel, and the simulated GPU's libraries lack what it needs");
    hand_out(schema, here, stack, begin);
  }

  static void hand_out(const Schema& schema, torch::jit::Stack& here, torch::jit::Stack& stack, size_t begin) {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    const c10::Device device = device_of(&stack[begin], stack.size() - begin);
    const c10::Stream stream = guard.getStream(device);
    launch_(schema.name.data(), schema.name.size(), guard.getStreamNativeHandle(stream));
    // Torch synchronizes with the stream before it reads values that decide sizes.
    guard.synchronizeStream(stream);
    torch::jit::Stack results;
    const c10::Device target = asks_for_cpu(stack, begin) ? c10::Device(c10::kCPU) : device;
    for (size_t i = 0; i < here.size(); i++) {
      const int same = schema.same_as[i];
      if (same >= 0 && here[i].isTensor()) take_over(schema.name, here[i].toTensor(), stack[begin + same].toTensor());
      results.push_back(same >= 0 ? stack[begin + same] : to_gpu(here[i], target));
    }
    stack.resize(begin);
    for (auto& result : results) stack.push_back(std::move(result));
  }

  static bool asks_for_cpu(const torch::jit::Stack& stack, size_t begin) {
    return std::any_of(stack.begin() + begin, stack.end(), [](const c10::IValue& value) {
      return value.isDevice() && value.toDevice().is_cpu();
    });
  }

  // Updates a written argument. Dense tensors share their bytes with the GPU; a sparse tensor has new components.
  static void take_over(const std::string& name, const at::Tensor& here, const at::Tensor& there) {
    if (there.layout() == c10::kStrided || there.is_same(here)) return;
    if (there.layout() != c10::kSparse || here.layout() != c10::kSparse)
      return lacking(name, "it writes to a sparse tensor");
    auto* sparse = static_cast<at::SparseTensorImpl*>(there.unsafeGetTensorImpl());
    sparse->raw_resize_(here.sparse_dim(), here.dense_dim(), here.sizes());
    sparse->set_indices_and_values_unsafe(
        to_gpu(here._indices(), there.device()), to_gpu(here._values(), there.device()));
    sparse->set_coalesced(here.is_coalesced());
  }

  static c10::Device device_of(const c10::IValue* arguments, size_t count) {
    std::optional<c10::Device> device;
    for (size_t i = 0; i < count; i++) {
      if (arguments[i].isDevice() && arguments[i].toDevice().is_cuda()) device = arguments[i].toDevice();
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        if (tensor.is_cuda()) device = tensor.device();
      });
    }
    return device && device->has_index() ? *device : current_device();
  }

  static c10::IValue to_gpu(const c10::IValue& value, c10::Device device) {
    if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(to_gpu(value.toTensor(), device)) : value;
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(to_gpu(tensor, device));
    return list;
  }

  static at::Tensor to_gpu(const at::Tensor& here, c10::Device device) {
    if (device.is_cpu()) return here;
    if (here.is_nested()) return nested_in(to_gpu(elements_of(here), device), here);
    if (here.layout() != c10::kStrided) return here.to(device);
    auto there = at::empty_strided(here.sizes(), here.strides(), here.options().device(device));
    alias(there).copy_(here);
    return there;
  }

  static void lacking(const std::string& name, const std::string& reason) { Uncomputed::note(name, reason); }

  static inline Launch launch_ = nullptr;
  static inline WaitForData wait_for_data_ = nullptr;
  static inline IsCaptured is_captured_ = nullptr;
  static inline Compute compute_ = nullptr;
  static inline std::mutex forgotten_mutex_;
  static inline std::vector<uint64_t> forgotten_;
  static inline Withhold withhold_ = nullptr;
  static inline Clear clear_ = nullptr;
  static inline IsUntouched is_untouched_ = nullptr;
  static inline Reads reads_ = nullptr;
  static inline LaunchesBlock launches_block_ = nullptr;
  static inline bool wanted_ = false;
};

}  // namespace uniference
