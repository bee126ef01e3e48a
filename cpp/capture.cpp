// Owns the capture of a rank's operators: a boxed fallback below autograd, through which forward, backward and
// optimizers pass.
//
// It is registered for torch's dispatch key `Fake`, which is otherwise unused, and is enabled per thread. `stream`
// defines the recorded format, `values` decides which operators are computed. The functions at the end are the
// interface to the rank's client.

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <torch/library.h>

#include "backend.h"
#include "cpu_reference.h"
#include "definitions.h"
#include "gpu_memory.h"
#include "launches.h"
#include "lines.h"
#include "own_work.h"
#include "python_calls.h"
#include "reductions.h"
#include "storages.h"
#include "stream.h"
#include "values.h"

namespace uniference {
namespace {

constexpr auto kKey = c10::DispatchKey::Fake;

Values& values = Values::get();
// Whether each execution is timed.
bool timed = false;
double nanoseconds_a_tick = 0;
// Ticks that the capture adds to one operator, in addition to the time counted as its own work: arguments are pushed to
// a stack and popped again.
uint64_t detour = 0;
// Whether the detour is being measured; nothing is recorded meanwhile.
bool measures_detour = false;

// Separates the program's time on one thread from interruptions of the thread. Reading the thread's CPU time is a
// system call, which costs as much as an operator and evicts caches. It is therefore read only after long spans: a
// short one has no interruption.
class Interruptions {
 public:
  // Restarts the measurement from now.
  void forget() {
    processor_ = processor_ns();
    ticks_ = ticks();
  }

  // Nanoseconds of interruptions in the span that ends now and lasted `wall` nanoseconds.
  uint64_t within(uint64_t wall) {
    const uint64_t processor = processor_, began = ticks_;
    forget();
    const auto since = static_cast<uint64_t>(static_cast<double>(ticks_ - began) * nanoseconds_a_tick);
    const uint64_t ran = processor_ - processor;
    return since > ran ? std::min(since - ran, wall) : 0;
  }

 private:
  // Reads the real CPU time by a system call, because the C library's function returns simulated time.
  static uint64_t processor_ns() {
    timespec time{};
    syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  }

  uint64_t processor_ = 0;
  uint64_t ticks_ = 0;
};

thread_local Interruptions interruptions;

// A span of the program's time on this thread.
class Span {
 public:
  void begin() { begin_ = ticks(); }

  // Length in nanoseconds; 0 if the span has not begun.
  uint64_t end() const {
    if (begin_ == 0) return 0;
    const auto wall = static_cast<uint64_t>(static_cast<double>(ticks() - begin_) * nanoseconds_a_tick);
    return wall < kUninterrupted ? wall : wall - interruptions.within(wall);
  }

 private:
  // A time slice of another program on the CPU is longer.
  static constexpr uint64_t kUninterrupted = 30'000;

  uint64_t begin_ = 0;
};

// Time since the previous operator, or the simulator's own work, ended on this thread.
thread_local Span between;

// Records that the program reads a value that was not computed.
void say_answered(const Schema& schema, uint64_t line) {
  Log::Writer log;
  log->tag(Tag::Answered);
  log->entries().number(line);
  log->entries().text(schema.name);
}

// Marks results of uncomputed values as not computed.
void spread_uncomputed(
    const Schema& schema, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack, size_t begin,
    uint64_t line) {
  bool uncomputed = false;
  for (const auto& argument : arguments) {
    for_each_tensor(
        argument, [&](const at::Tensor& tensor) { uncomputed = uncomputed || Values::is_uncomputed(tensor); });
  }
  if (!uncomputed) return;
  if (schema.reads_value) say_answered(schema, line);
  for (size_t i = 0; i < arguments.size(); i++) {
    if (schema.written[i]) for_each_tensor(arguments[i], Values::mark);
  }
  for (size_t i = begin; i < stack.size(); i++) {
    for_each_tensor(stack[i], [&](const at::Tensor& result) {
      if (!is_given(arguments, result)) Values::mark(result);
    });
  }
}

// Carries out a communication call on a simulated GPU. If only sizes are communicated, or uncomputed data, its results
// count as not computed.
void communicate(
    const c10::OperatorHandle& op, const Schema& schema, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  const size_t count = schema.written.size(), begin = stack.size() - count;
  const bool moves = values.moves(&stack[begin], count);
  if (values.all()) return CpuReference::communicate(op, below, stack, moves);
  const std::vector<c10::IValue> arguments(stack.begin() + begin, stack.end());
  CpuReference::communicate(op, below, stack, moves);
  // NCCL counts the elements of one member's part, the smaller of the sent and the received tensor.
  bool large = true, uncomputed = false, any = false;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      large = large && values.is_large(tensor);
      uncomputed = uncomputed || Values::is_uncomputed(tensor);
      any = true;
    });
  }
  if (!any || (moves && !large && !uncomputed)) return;
  bool results = false;
  for (size_t i = begin; i < stack.size(); i++) {
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      Values::mark(tensor);
      results = true;
    });
  }
  for (const auto& argument : arguments) {
    if (!results) for_each_tensor(argument, Values::mark);
  }
}

// Records the program's time before an operator, and the operator's duration.
void write_times(uint64_t before, uint64_t lasted) {
  const auto more = static_cast<uint64_t>(static_cast<double>(detour) * nanoseconds_a_tick);
  const uint64_t rest = before < more ? more - before : 0;
  Log::Writer log;
  log->tag(Tag::Timed);
  log->entries().number(before - (more - rest));
  log->entries().number(lasted - std::min(lasted, rest));
}

void write_execution(
    const Definition& definition, uint64_t line, bool recorded, const std::vector<uint64_t>& read,
    const torch::jit::Stack& stack, size_t begin) {
  static thread_local std::vector<uint64_t> results;
  results.clear();
  for (size_t i = begin; i < stack.size(); i++) {
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) { results.push_back(allocation_of(tensor)); });
  }
  GpuMemory::notice_levels();
  Log::Writer log;
  PythonCalls::write(*log);
  log->recorded(recorded);
  log->execution(definition.number - 1);
  log->entries().number(line);
  for (uint64_t id : read) log->allocation(id);
  for (uint64_t id : results) log->allocation(id);
}

// The definition of a call, including its results; `known` is the definition by the arguments alone.
const Definition& defined(Definition& known, const Stream& key, const torch::jit::Stack& stack, size_t begin) {
  const size_t results = stack.size() - begin;
  const size_t tensors = Definitions::tensors(stack.data() + begin, results);
  Definition* definition = &known;
  if (definition->number != 0 && definition->tensors != tensors)
    definition = &Definitions::get().with_results(key, tensors);
  if (definition->number == 0) Definitions::get().add(*definition, key, stack.data() + begin, results);
  return *definition;
}

// Records an execution of an extension's operator that has launched kernels of its own, and marks the values of these
// kernels as uncomputed.
void write_own_kernels(
    const Schema& schema, const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack, size_t begin,
    bool is_written, OwnKernels& kernels) {
  const size_t count = arguments.size();
  const OwnWork ours;
  CpuReference::ran_own_kernels(schema, arguments, stack, begin, values.has_values(schema, arguments.data(), count));
  // Timed operators have a measured duration already.
  if (timed || !is_written) return;
  Stream key;
  std::vector<uint64_t> read;
  Definitions::key(schema, arguments.data(), count, key);
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) { read.push_back(allocation_of(tensor)); });
  }
  const Definition& definition = defined(Definitions::get().find(key), key, stack, begin);
  CpuReference::wait_for_data(arguments.data(), count);
  write_readings(arguments, kernels.stream());
  kernels.write();
  write_execution(definition, Lines::get().here(), /*recorded=*/false, read, stack, begin);
}

// Runs an extension's operator on a simulated GPU. The PyTorch operators that the extension calls are recorded
// individually. If the extension launches kernels of its own, its operator is recorded too, and the values of these
// kernels are uncomputed.
void run_foreign(
    const c10::OperatorHandle& op, const Schema& schema, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  if (inside > 0 || !counting.load(std::memory_order_relaxed)) return op.redispatchBoxed(below, &stack);
  const size_t count = schema.written.size(), begin = stack.size() - count;
  const std::vector<c10::IValue> arguments(stack.begin() + begin, stack.end());
  const bool is_written = !unwritten();
  const std::optional<c10::Device> waits = CpuReference::blocks_on(arguments.data(), count);
  OwnKernels kernels;
  op.redispatchBoxed(below, &stack);
  if (!kernels.any()) return;
  write_own_kernels(schema, arguments, stack, begin, is_written, kernels);
  if (waits) CpuReference::wait_for(*waits);
}

// Whether a call concerns only shapes: it has tensors on `meta` or fake tensors of `FakeTensorMode`, or requests a
// tensor on `meta`. DTensor makes fake tensors for each new shape, and torch's compiler makes them with symbolic sizes,
// which must not be converted to numbers.
bool is_shape(c10::DispatchKeySet keys, const c10::IValue* arguments, size_t count) {
  if (keys.has_backend(c10::BackendComponent::MetaBit)) return true;
  bool is_shape = false;
  for (size_t i = 0; i < count && !is_shape; i++) {
    is_shape = arguments[i].isDevice() && arguments[i].toDevice().is_meta();
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      is_shape = is_shape || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
    });
  }
  return is_shape;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const Schema& schema = Schema::of(op);
  const size_t count = op.schema().arguments().size();
  if (is_shape(keys, stack->data() + (stack->size() - count), count)) return op.redispatchBoxed(below, stack);
  const bool on_gpu = CpuReference::wanted() && CpuReference::concerns(stack->data() + (stack->size() - count), count);
  const bool foreign = on_gpu && schema.foreign;
  const bool calls_others = schema.composite && !(on_gpu && schema.on_gpu);
  if (foreign && !schema.communicates) return run_foreign(op, schema, below, *stack);
  if (calls_others && !schema.communicates) return op.redispatchBoxed(below, stack);
  c10::impl::ExcludeDispatchKeyGuard only_once(kKey);
  if (on_gpu && schema.communicates) return communicate(op, schema, below, *stack);
  if (inside > 0 || schema.communicates || !counting.load(std::memory_order_relaxed))
    return op.redispatchBoxed(below, stack);

  const uint64_t before = timed ? between.end() : 0;
  if (measures_detour) {
    op.redispatchBoxed(below, stack);
    return between.begin();
  }

  static thread_local Stream key;
  static thread_local std::vector<uint64_t> read;
  const size_t begin = stack->size() - count;
  std::vector<c10::IValue> kept;
  Definition* definition;
  uint64_t line;
  bool computes;
  bool has_values;
  bool recorded = false;
  std::optional<c10::Device> waits;
  const bool is_written = !unwritten();
  {
    OwnWork ours;
    const c10::IValue* arguments = count == 0 ? nullptr : &(*stack)[begin];
    Definitions::key(schema, arguments, count, key);
    definition = &Definitions::get().find(key);
    // Finding the line slows the interpreter down, so timed runs skip it.
    line = timed ? Lines::pass() : Lines::get().here();
    computes = on_gpu || values.computes(schema, arguments, count);
    has_values = on_gpu && values.has_values(schema, arguments, count);
    if (on_gpu && !schema.view) waits = CpuReference::blocks_on(arguments, count);
    if (!values.all() || schema.has_lengths) kept.assign(stack->begin() + begin, stack->end());
    read.clear();
    for (size_t i = 0; i < count; i++) {
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        read.push_back(allocation_of(tensor));
        recorded = recorded || tensor.requires_grad();
      });
    }
    recorded = recorded && c10::GradMode::is_enabled();
  }
  // Copies for operators that run other captured operators, which would overwrite this thread's buffers.
  Stream own_key;
  std::vector<uint64_t> own_read;
  own_key.swap(key);
  own_read.swap(read);
  const OperatorCall call;
  if (!schema.view && !schema.empty) computing_operators++;
  Span computing;
  if (timed) computing.begin();
  bool answered = !computes && values.answer(op, schema, *definition, *stack);
  if (!answered) {
    Operator running;
    on_gpu ? CpuReference::run(op, schema, below, *stack, has_values) : op.redispatchBoxed(below, stack);
  }
  {
    const uint64_t lasted = timed ? computing.end() : 0;
    OwnWork ours;
    if (is_written) timed ? write_times(before, lasted) : void(own_ticks += detour);
    const bool said = schema.kernel && has_values && captured_last == 0;
    if (!values.all() && !answered && !schema.view && !said) spread_uncomputed(schema, kept, *stack, begin, line);
    if (is_written) {
      if (on_gpu && schema.has_lengths) {
        if (schema.kernel) {
          write_kernels_readings(kept, last_stream);
        } else {
          write_readings(kept, last_stream);
        }
      }
      write_execution(defined(*definition, own_key, *stack, begin), line, recorded, own_read, *stack, begin);
    }
  }
  key.swap(own_key);
  read.swap(own_read);
  if (waits) CpuReference::wait_for(*waits);
  if (timed && is_written) between.begin();
}

// The minimum of several rounds, because disturbances only make a round longer.
uint64_t measure_detour(at::Tensor& a, const at::Tensor& b) {
  constexpr int kRounds = 10, kOperators = 100;
  const auto round = [&] {
    const uint64_t began = ticks();
    for (int i = 0; i < kOperators; i++) a.add_(b);
    return (ticks() - began) / kOperators;
  };
  uint64_t with = std::numeric_limits<uint64_t>::max(), without = with;
  measures_detour = true;
  for (int i = 0; i < kRounds; i++) {
    {
      c10::impl::IncludeDispatchKeyGuard detoured(kKey);
      with = std::min(with, round());
    }
    without = std::min(without, round());
  }
  measures_detour = false;
  return with - std::min(with, without);
}

// The functions that the extension module calls, as `shared::Functions` documents them.

uint64_t take(const uint8_t** data, size_t* length) {
  static thread_local Stream taken;
  taken.clear();
  Storages::forget_foreign();
  if (OwnKernels* own = OwnKernels::running()) own->write();
  // A thread's part names what the dictionary has by then.
  Stream done;
  {
    Log::Writer log;
    if (counting.load(std::memory_order_relaxed)) PythonCalls::write(*log);
    log->drain(done);
  }
  Dictionary::get().drain(taken);
  taken.append(done);
  *data = taken.data();
  *length = taken.size();
  const double took = static_cast<double>(std::exchange(own_ticks, 0)) * nanoseconds_a_tick;
  return static_cast<uint64_t>(took);
}

void change_inside(int change) {
  inside += change;
  if (timed && inside == 0) {
    interruptions.forget();
    between.begin();
  }
}

void begin_thread() {
  if (watching && counting.load(std::memory_order_relaxed)) c10::impl::tls_set_dispatch_key_included(kKey, true);
  Log::begin();
}

uint64_t log_of_thread(int* written) {
  Log::Writer log;
  *written = !log->empty();
  return log->number();
}

void site(const uint8_t** data, size_t* length) {
  const std::string_view line = Lines::get().text();
  *data = reinterpret_cast<const uint8_t*>(line.data());
  *length = line.size();
}

constexpr shared::Functions functions{
    .version = UNIFERENCE_ABI_VERSION,
    .take = take,
    .inside = change_inside,
    .thread = begin_thread,
    .log = log_of_thread,
    .is_compiling = [] { return compiling ? 1 : 0; },
    .combine = Reductions::combine,
    .scale = Reductions::scale,
    .is_large =
        [](uint64_t elements, uint32_t dtype) {
          return values.is_large(static_cast<int64_t>(elements), static_cast<c10::ScalarType>(dtype)) ? 1 : 0;
        },
    .site = site,
    .launches = launches,
};

}  // namespace
}  // namespace uniference

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&uniference::fallback>()); }

// Calls of process groups are not recorded, and skip the capture.
TORCH_LIBRARY_IMPL(c10d, Fake, m) {
  for (const char* name :
       {"_allgather_base_",
        "_reduce_scatter_base_",
        "allgather_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
        "allreduce_",
        "allreduce_coalesced_",
        "alltoall_",
        "alltoall_base_",
        "barrier",
        "broadcast_",
        "gather_",
        "monitored_barrier_",
        "recv_",
        "recv_any_source_",
        "reduce_",
        "reduce_scatter_",
        "reduce_scatter_tensor_coalesced_",
        "scatter_",
        "send"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

TORCH_LIBRARY_FRAGMENT(uniference, m) { m.def("stand_in_front", &uniference::stand_in_front); }

using namespace uniference;

extern "C" {

// Begins the capture in this process, on this thread. `limit`: operators on tensors of more elements are not computed;
// negative: all are. `libraries`: beginnings of file names, each ended by a zero byte, the last by two. `wanted`: the
// client reads the records; otherwise memory is counted and nothing is kept. `with_times`: each execution is timed.
// `tick`: nanoseconds per tick of the clock.
__attribute__((visibility("default"))) void uniference_capture_begin(
    int64_t limit, const char* libraries, int wanted, int with_times, double tick) {
  std::vector<std::string> beginnings;
  for (const char* at = libraries; *at != 0; at += beginnings.back().size() + 1) beginnings.emplace_back(at);
  Lines::get().set_libraries(std::move(beginnings));
  watching = wanted != 0 || limit >= 0;
  timed = with_times != 0;
  Log::want(wanted != 0);
  values.set_limit(limit < 0 ? std::numeric_limits<int64_t>::max() : limit);
  nanoseconds_a_tick = tick;
  // Allocated by torch's own allocator, before it is replaced.
  at::Tensor a = at::zeros({1}), b = at::zeros({1});
  Storages::install(limit >= 0);
  // Forked children stop recording, because no client reads their records.
  pthread_atfork(nullptr, nullptr, [] { counting.store(false, std::memory_order_relaxed); });
  counting.store(true, std::memory_order_relaxed);
  if (wanted != 0) detour = measure_detour(a, b);
  if (watching) c10::impl::tls_set_dispatch_key_included(kKey, true);
  Log::begin();
}

// Limits the program's allocations to `bytes` in all; `device` is the device's name in the error message.
__attribute__((visibility("default"))) void uniference_capture_limit(const char* device, uint64_t bytes) {
  Storages::limit(device, bytes);
}

// Sets the callback for allocations that do not fit into this machine's memory: `lacking` receives the requested and
// the free bytes, the latter from `available`.
__attribute__((visibility("default"))) void uniference_capture_lacking(
    Host::Lacking lacking, Host::Available available) {
  Host::set_callbacks(lacking, available);
}

// Sets the callback that receives a warning (UTF-8) when an operator or kernel without values runs for the first time.
__attribute__((visibility("default"))) void uniference_capture_uncomputed(Uncomputed::Warn warn) {
  Uncomputed::set_warn(warn);
}

// Returns the operators and kernels without values and the number of calls of each; an empty text if each has run at
// most once.
__attribute__((visibility("default"))) const char* uniference_capture_uncomputed_counts() {
  return Uncomputed::counts();
}

__attribute__((visibility("default"))) uint64_t uniference_capture_ticks() { return ticks(); }

// Profile function for `PyEval_SetProfile` that counts the calls of functions on its thread.
__attribute__((visibility("default"))) int (*uniference_capture_python_calls())(void*, void*, int, void*) {
  return PythonCalls::count;
}

// Starts to compute the values of operators on simulated GPUs; see `CpuReference`.
__attribute__((visibility("default"))) void uniference_capture_begin_cpu_reference(
    CpuReference::Launch launch, CpuReference::WaitForData wait_for_data, CpuReference::IsCaptured is_captured,
    CpuReference::Compute compute, CpuReference::Withhold withhold, CpuReference::Clear clear,
    CpuReference::IsUntouched is_untouched, CpuReference::Reads reads, CpuReference::LaunchesBlock launches_block) {
  CpuReference::begin(
      launch, wait_for_data, is_captured, compute, withhold, clear, is_untouched, reads, launches_block);
  watching = true;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

// Calls in CUDA graphs; see `CpuReference`. The number of this thread's last call, if it was captured; of the call that
// it computes; and of one whose graph was destroyed.
__attribute__((visibility("default"))) uint64_t uniference_capture_take_captured() {
  return std::exchange(captured_last, 0);
}
__attribute__((visibility("default"))) uint64_t uniference_capture_computed() { return computed_now; }
__attribute__((visibility("default"))) uint64_t uniference_capture_forgotten() { return CpuReference::forgotten(); }

// The number of operators that this thread has run so far and whose compute is charged.
__attribute__((visibility("default"))) uint64_t uniference_capture_computing_operators() { return computing_operators; }

// Begins (1) or ends (-1) work of this thread on simulated GPUs whose results are not used.
__attribute__((visibility("default"))) void uniference_capture_leave_uncomputed(int change) {
  leave_uncomputed += change;
}

// Begins (1) or ends (-1) work of this thread whose integer tensors have values, however large the inputs are.
__attribute__((visibility("default"))) void uniference_capture_keep_indices(int change) { keep_indices += change; }

// Sets whether this thread compiles the program; returns the previous setting.
__attribute__((visibility("default"))) int uniference_capture_compiling(int now) {
  return std::exchange(compiling, now != 0) ? 1 : 0;
}

// Starts to count allocations on the rank's own GPU; see `GpuMemory`.
__attribute__((visibility("default"))) void uniference_capture_gpu_memory(GpuMemory::Own own, GpuMemory::Taken taken) {
  GpuMemory::begin(own, taken);
}

// Memory allocated on the GPU, by kind, as UTF-8; valid until this thread's next call.
__attribute__((visibility("default"))) const char* uniference_capture_held() {
  static thread_local std::string words;
  words = GpuMemory::held();
  return words.c_str();
}

// Sets the receiver of process groups' calls that need no Python: a client, and the functions of
// `crates/py/src/channel/calls.rs`.
__attribute__((visibility("default"))) void uniference_backend_begin(
    const void* client, void (*enter)(const void*), void (*leave)(const void*),
    shared::CallOutcome (*run)(const void*, const shared::Call*)) {
  Client::get() = {client, enter, leave, run};
}

// The functions that the extension module calls; valid as long as the library is loaded.
__attribute__((visibility("default"))) const shared::Functions* uniference_capture_functions() { return &functions; }

// Sets the kind of a storage (torch's `UntypedStorage._cdata`); see `Kind`.
__attribute__((visibility("default"))) void uniference_capture_kind(const void* storage, int kind) {
  auto* noted = static_cast<c10::StorageImpl*>(const_cast<void*>(storage));
  noted->device().is_cuda() ? GpuMemory::is_of_kind(noted, static_cast<Kind>(kind))
                            : Storages::is_of_kind(noted, static_cast<Kind>(kind));
}

// Announces that this thread's next call reads or writes a storage.
__attribute__((visibility("default"))) void uniference_capture_call(const void* storage, int written) {
  const Allocation* allocation = Storages::of(static_cast<const c10::StorageImpl*>(storage));
  if (Log::is_wanted()) Log::Writer()->called(allocation == nullptr ? 0 : allocation->id, written != 0);
}

// Whether a storage has elements that were not computed.
__attribute__((visibility("default"))) int uniference_capture_is_uncomputed(const void* storage) {
  return Values::is_uncomputed(static_cast<const c10::StorageImpl*>(storage));
}

// `Functions::is_large`, for Python.
__attribute__((visibility("default"))) int uniference_capture_is_large(uint64_t elements, uint32_t dtype) {
  return functions.is_large(elements, dtype);
}

// Marks a storage as not computed.
__attribute__((visibility("default"))) void uniference_capture_mark_uncomputed(const void* storage) {
  Values::mark_uncomputed(static_cast<const c10::StorageImpl*>(storage));
}

}  // extern "C"
