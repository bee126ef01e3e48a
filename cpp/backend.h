// Owns the fast path of collectives that their callers wait for: from torch to the rank's client, without the
// interpreter.
//
// A `Backend` stands in front of the process group that `python/uniference/backends` has created for a library. It
// carries out plain calls: one dense CPU tensor in each direction, elements that the client reduces itself, and no
// active profiler. It forwards all other calls to Python, which also handles failed calls, so errors and their messages
// are in one place.
#pragma once

#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "abi.h"
#include "lines.h"
#include "storages.h"
#include "values.h"

extern "C" {
int PyGILState_Check();
_ts* PyEval_SaveThread();
void PyEval_RestoreThread(_ts*);
}

namespace uniference {

// A collective with the tensors that it communicates.
struct DescribedCall : shared::Call {
  const at::Tensor* reads = nullptr;
  const at::Tensor* writes = nullptr;

  explicit DescribedCall(uint32_t of) : shared::Call{} {
    reduction = shared::NO_REDUCTION;
    group = of;
    peer = -1;
    timeout = shared::NO_TIMEOUT;
  }

  static shared::Memory memory_of(const at::Tensor& tensor) {
    return {reinterpret_cast<uintptr_t>(tensor.data_ptr()), tensor.nbytes()};
  }

  static void write_called(const at::Tensor& tensor, bool written) {
    const Allocation* allocation = Storages::of(tensor);
    Log::Writer()->called(allocation == nullptr ? 0 : allocation->id, written);
  }

  // Writes down the memory that the collective reads and writes.
  void note() const {
    if (!Log::is_wanted()) return;
    if (reads != nullptr) write_called(*reads, false);
    if (writes != nullptr) write_called(*writes, true);
  }
};

// The rank's client, by the addresses of its functions.
struct Client {
  const void* client = nullptr;
  void (*enter)(const void*) = nullptr;
  void (*leave)(const void*) = nullptr;
  shared::CallOutcome (*run)(const void*, const shared::Call*) = nullptr;

  static Client& get() {
    static Client client;
    return client;
  }
};

// Marks the thread's work as the simulator's while the object lives.
class Uncharged {
 public:
  Uncharged() { Client::get().enter(Client::get().client); }
  ~Uncharged() { Client::get().leave(Client::get().client); }
};

// Releases the interpreter's lock while the object lives.
class Unlocked {
 public:
  Unlocked() : state_(PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  ~Unlocked() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }

 private:
  _ts* state_;
};

class Backend : public c10d::Backend {
  using Milliseconds = std::chrono::milliseconds;
  using Tensors = std::vector<at::Tensor>;
  using MaybeWork = c10::intrusive_ptr<c10d::Work>;

 public:
  // `group` is the client's number of the group. `timeout` is the group's; a value in `defaults` counts as no timeout.
  Backend(
      c10::intrusive_ptr<c10d::Backend> python, uint32_t group, Milliseconds timeout,
      std::vector<Milliseconds> defaults)
      : c10d::Backend(python->getRank(), python->getSize()),
        python_(std::move(python)),
        group_(group),
        timeout_(timeout),
        defaults_(std::move(defaults)) {}

  // Calls that this class may carry out

  MaybeWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return carry_out(
        [&](DescribedCall& call) {
          if (!plain(tensors, opts) || !reduces(call, opts.reduceOp)) return false;
          call.operation = static_cast<uint8_t>(shared::Operation::AllReduce);
          return moves(call, tensors[0], &tensors[0], &tensors[0], tensors[0].numel());
        },
        opts, [&] { return python_->allreduce(tensors, opts); });
  }

  MaybeWork reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return carry_out(
        [&](DescribedCall& call) {
          if (!plain(tensors, opts) || !reduces(call, opts.reduceOp) || !has_root(call, opts)) return false;
          call.operation = static_cast<uint8_t>(shared::Operation::Reduce);
          return moves(call, tensors[0], &tensors[0], is_root(opts) ? &tensors[0] : nullptr, tensors[0].numel());
        },
        opts, [&] { return python_->reduce(tensors, opts); });
  }

  MaybeWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return carry_out(
        [&](DescribedCall& call) {
          if (!plain(tensors, opts) || !has_root(call, opts)) return false;
          call.operation = static_cast<uint8_t>(shared::Operation::Broadcast);
          return moves(call, tensors[0], is_root(opts) ? &tensors[0] : nullptr, &tensors[0], tensors[0].numel());
        },
        opts, [&] { return python_->broadcast(tensors, opts); });
  }

  MaybeWork all_gather_single(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    return carry_out(
        [&](DescribedCall& call) {
          if (!plain(output, opts) || !plain(input, opts) || !rows_of_all(output, input)) return false;
          call.operation = static_cast<uint8_t>(shared::Operation::AllGather);
          return moves(call, input, &input, &output, input.numel());
        },
        opts, [&] { return python_->all_gather_single(output, input, opts); });
  }

  MaybeWork reduce_scatter_single(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    return carry_out(
        [&](DescribedCall& call) {
          if (!plain(output, opts) || !plain(input, opts) || !rows_of_all(input, output) ||
              !reduces(call, opts.reduceOp))
            return false;
          call.operation = static_cast<uint8_t>(shared::Operation::ReduceScatter);
          return moves(call, output, &input, &output, output.numel());
        },
        opts, [&] { return python_->reduce_scatter_single(output, input, opts); });
  }

  MaybeWork barrier(const c10d::BarrierOptions& opts) override {
    return carry_out(
        [&](DescribedCall& call) {
          if (!plain(opts)) return false;
          call.operation = static_cast<uint8_t>(shared::Operation::Barrier);
          return true;
        },
        opts, [&] { return python_->barrier(opts); });
  }

  // Settings of calls

  void setTimeout(Milliseconds timeout) override {
    python_->setTimeout(timeout);
    timeout_ = timeout;
  }
  void startCoalescing() override {
    python_->startCoalescing();
    coalescing_ = true;
  }
  MaybeWork endCoalescing() override {
    coalescing_ = false;
    return python_->endCoalescing();
  }
  uint64_t getSequenceNumberForGroup() override { return python_->getSequenceNumberForGroup() + carried_out_; }

  // Calls and queries that are forwarded to Python

  MaybeWork allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return python_->allreduce_sparse(tensors, opts);
  }
  MaybeWork allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return python_->allreduce_coalesced(tensors, opts);
  }
  MaybeWork allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return python_->allgather(outputs, inputs, opts);
  }
  MaybeWork allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return python_->allgather_coalesced(outputs, inputs, opts);
  }
  MaybeWork all_gather_single_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return python_->all_gather_single_coalesced(outputs, inputs, opts);
  }
  MaybeWork gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    return python_->gather(outputs, inputs, opts);
  }
  MaybeWork gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) override {
    return python_->gather_single(output, input, opts);
  }
  MaybeWork scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    return python_->scatter(outputs, inputs, opts);
  }
  MaybeWork reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    return python_->reduce_scatter(outputs, inputs, opts);
  }
  MaybeWork reduce_scatter_single_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    return python_->reduce_scatter_single_coalesced(outputs, inputs, opts);
  }
  MaybeWork all_to_all_single(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received, std::vector<int64_t>& sent,
      const c10d::AllToAllOptions& opts) override {
    return python_->all_to_all_single(output, input, received, sent, opts);
  }
  MaybeWork alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    return python_->alltoall(outputs, inputs, opts);
  }
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool all_ranks) override {
    python_->monitoredBarrier(opts, all_ranks);
  }
  MaybeWork send(Tensors& tensors, int to, int tag) override { return python_->send(tensors, to, tag); }
  MaybeWork recv(Tensors& tensors, int from, int tag) override { return python_->recv(tensors, from, tag); }
  MaybeWork recvAnysource(Tensors& tensors, int tag) override { return python_->recvAnysource(tensors, tag); }

  const std::string getBackendName() const override { return python_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return python_->getBackendOptions(); }
  bool supportsSplitting() const override { return python_->supportsSplitting(); }
  bool supportsCoalescing() const override { return python_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return python_->supportsTimeEstimation(); }
  bool supportsShrinking() const override { return python_->supportsShrinking(); }
  bool supportsReconfigure() const override { return python_->supportsReconfigure(); }
  bool supportsWindow() const override { return python_->supportsWindow(); }
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return python_->supportsTensorAlloc(device); }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& opts) override {
    return python_->split(store, ranks, opts);
  }
  c10::intrusive_ptr<c10d::Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<Options>& opts, const int& rank,
      const int& size) override {
    return python_->merge(store, opts, rank, size);
  }
  void setSequenceNumberForGroup() override { python_->setSequenceNumberForGroup(); }
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    python_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override { python_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { python_->enableCollectivesTiming(); }
  void setGroupUid(const std::string& uid) override {
    c10d::Backend::setGroupUid(uid);
    python_->setGroupUid(uid);
  }
  void setBoundDeviceId(std::optional<at::Device> device) override {
    c10d::Backend::setBoundDeviceId(device);
    python_->setBoundDeviceId(device);
  }
  void eagerConnectSingleDevice(at::Device device) override { python_->eagerConnectSingleDevice(device); }
  c10d::ErrorType getError() override { return python_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return python_->getMemAllocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return python_->allocateTensor(size, options);
  }
  void abort() override { python_->abort(); }
  void shutdown() override { python_->shutdown(); }
  void suspend() override { python_->suspend(); }
  void resume() override { python_->resume(); }
  std::unordered_map<std::string, uint64_t> getMemoryStats() override { return python_->getMemoryStats(); }

 private:
  // Carries out a call. `describe` fills in the call, or reports that it is not plain. Completed calls return no Work.
  template <class Describe, class Options, class ToPython>
  MaybeWork carry_out(Describe describe, const Options& opts, ToPython to_python) {
    DescribedCall call(group_);
    if (!describe(call)) return to_python();
    call.timeout = picoseconds(opts.timeout);
    Uncharged ours;
    const std::string_view line = Lines::get().text();
    call.site = {reinterpret_cast<const uint8_t*>(line.data()), line.size()};
    if (call.site.length == 0) return to_python();
    call.note();
    shared::CallOutcome outcome;
    {
      Unlocked others;
      outcome = Client::get().run(Client::get().client, &call);
    }
    if (outcome != shared::CallOutcome::Complete) return to_python();
    carried_out_++;
    return {};
  }

  // The call's own timeout, or the group's; timeouts that the program has not set count as none.
  uint64_t picoseconds(Milliseconds own) const {
    constexpr uint64_t kPicoseconds = 1'000'000'000, kNone = shared::NO_TIMEOUT;
    const Milliseconds chosen = own < Milliseconds(0) ? timeout_ : own;
    if (std::find(defaults_.begin(), defaults_.end(), chosen) != defaults_.end()) return kNone;
    const auto count = static_cast<uint64_t>(chosen.count());
    return count > (kNone - 1) / kPicoseconds ? kNone - 1 : count * kPicoseconds;
  }

  template <class Options>
  bool plain(const Options& opts) const {
    return !opts.asyncOp && !coalescing_ && counting.load(std::memory_order_relaxed) &&
           !torch::profiler::impl::profilerEnabled();
  }

  template <class Options>
  bool plain(const Tensors& tensors, const Options& opts) const {
    return tensors.size() == 1 && plain(tensors[0], opts);
  }

  template <class Options>
  bool plain(const at::Tensor& tensor, const Options& opts) const {
    return plain(opts) && tensor.defined() && tensor.is_cpu() && tensor.layout() == c10::kStrided &&
           is_carried(tensor.scalar_type()) && !tensor.key_set().has_any(c10::python_ks) &&
           !tensor.key_set().has(c10::DispatchKey::Functionalize) && tensor.is_contiguous() && tensor.has_storage() &&
           !tensor.is_neg() && has_values(tensor);
  }

  static bool has_values(const at::Tensor& tensor) {
    const Values& values = Values::get();
    return values.all() || !(Values::is_uncomputed(tensor) || values.is_large(tensor));
  }

  // Whether `all` has as many times the rows of `one` as the group has members.
  bool rows_of_all(const at::Tensor& all, const at::Tensor& one) const {
    if (all.scalar_type() != one.scalar_type() || all.dim() == 0 || all.dim() != one.dim()) return false;
    return all.size(0) == one.size(0) * getSize() && all.sizes().slice(1) == one.sizes().slice(1);
  }

  template <class Options>
  bool is_root(const Options& opts) const {
    return opts.rootRank == getRank();
  }

  template <class Options>
  bool has_root(DescribedCall& call, const Options& opts) const {
    call.peer = static_cast<int32_t>(opts.rootRank);
    return opts.rootRank >= 0 && opts.rootRank < getSize();
  }

  // Sets the call's reduction; returns whether it is plain. The client refuses types of elements that it cannot
  // combine.
  static bool reduces(DescribedCall& call, const c10d::ReduceOp& op) {
    const auto type = static_cast<c10d::ReduceOp::RedOpType>(op);
    call.reduction = static_cast<uint8_t>(type);
    return is_plain(type);
  }

  static bool moves(
      DescribedCall& call, const at::Tensor& like, const at::Tensor* input, const at::Tensor* output,
      int64_t elements) {
    call.dtype = static_cast<uint8_t>(like.scalar_type());
    call.elements = static_cast<uint64_t>(elements);
    call.has_values = input != nullptr;
    if (input != nullptr) call.input = DescribedCall::memory_of(*input);
    if (output != nullptr) call.output = DescribedCall::memory_of(*output);
    call.reads = input;
    call.writes = output;
    return true;
  }

  // Whether a reduction has no last step of each member's own.
  static bool is_plain(c10d::ReduceOp::RedOpType type) {
    switch (type) {
      case c10d::ReduceOp::SUM:
      case c10d::ReduceOp::PRODUCT:
      case c10d::ReduceOp::BAND:
      case c10d::ReduceOp::BOR:
      case c10d::ReduceOp::BXOR: return true;
      default: return false;
    }
  }

  // Whether every library carries elements of this type.
  static bool is_carried(c10::ScalarType type) {
    switch (type) {
      case c10::ScalarType::Float:
      case c10::ScalarType::Double:
      case c10::ScalarType::Half:
      case c10::ScalarType::BFloat16:
      case c10::ScalarType::Char:
      case c10::ScalarType::Byte:
      case c10::ScalarType::Int:
      case c10::ScalarType::Long:
      case c10::ScalarType::Bool: return true;
      default: return false;
    }
  }

  const c10::intrusive_ptr<c10d::Backend> python_;
  const uint32_t group_;
  Milliseconds timeout_;
  const std::vector<Milliseconds> defaults_;
  bool coalescing_ = false;
  std::atomic<uint64_t> carried_out_ = 0;
};

// Puts a `Backend` in front of the Python backend that `made` has for a device, so that the process group uses it.
inline void stand_in_front(
    const c10::intrusive_ptr<c10d::ProcessGroup>& made, const c10::intrusive_ptr<c10d::ProcessGroup>& process_group,
    c10::Device device, int64_t group, int64_t timeout, const std::vector<int64_t>& defaults) {
  std::vector<std::chrono::milliseconds> none(defaults.begin(), defaults.end());
  auto backend = c10::make_intrusive<Backend>(
      made->getBackend(device.type()), static_cast<uint32_t>(group), std::chrono::milliseconds(timeout),
      std::move(none));
  // Torch binds the first of a group's backends to the group's device, and expects the same device of the others.
  backend->setBoundDeviceId(process_group->getBoundDeviceId());
  process_group->setBackend(device.type(), c10d::ProcessGroup::BackendType::CUSTOM, backend);
}

}  // namespace uniference
