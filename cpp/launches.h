// Owns the records of a rank's launches on streams of simulated GPUs, between its operators.
#pragma once

#include <atomic>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "buffers.h"
#include "own_work.h"
#include "python_calls.h"
#include "storages.h"
#include "stream.h"
#include "uncomputed.h"

namespace uniference {

// A call of an operator, whether it runs or is answered without running.
class OperatorCall {
 public:
  OperatorCall() {
    begun_++;
    depth_++;
  }
  ~OperatorCall() { depth_--; }
  OperatorCall(const OperatorCall&) = delete;
  OperatorCall& operator=(const OperatorCall&) = delete;

  // Number of the thread's current operator call, from 1; 0 outside of operators.
  static uint64_t running() { return depth_ > 0 ? begun_ : 0; }

 private:
  static inline thread_local uint64_t begun_ = 0;
  static inline thread_local int depth_ = 0;
};

// Number of operators that this thread has begun and whose compute is charged: neither views nor `empty`.
inline thread_local uint64_t computing_operators = 0;

// Nesting depth of this thread in operators that are recorded when they return.
inline thread_local int operators = 0;

// Attributes launches to the operator while the object lives.
class Operator {
 public:
  Operator() { operators++; }
  ~Operator() { operators--; }
};

// Numbers of kernels by name.
class Kernels {
 public:
  // Number of the kernel of `torch.cuda._sleep`, which writes no memory; 0: it has not run.
  static uint32_t sleep() { return sleep_.load(std::memory_order_relaxed); }

  static uint32_t number(const char* name, size_t length) {
    static auto* known = new std::unordered_map<std::string, uint32_t>();
    std::lock_guard<std::mutex> lock(Dictionary::get().mutex());
    const auto [entry, added] = known->try_emplace(std::string(name, length), static_cast<uint32_t>(known->size()) + 1);
    if (added) {
      Dictionary::get().added().tag(Tag::Kernel);
      Dictionary::get().added().text(name, length);
      if (entry->first.find("spin_kernel") != std::string::npos) sleep_.store(entry->second, std::memory_order_relaxed);
    }
    return entry->second;
  }

 private:
  static inline std::atomic<uint32_t> sleep_ = 0;
};

template <typename... Fields>
void write_entry(Tag tag, Fields... fields) {
  if (inside > 0 || !counting.load(std::memory_order_relaxed)) return;
  Log::Writer log;
  PythonCalls::write(*log);
  log->tag(tag);
  (log->entries().number(fields), ...);
}

// Writes the number of the next launch, copy or graph launch.
inline void write_number(uint64_t number) {
  if (!unwritten()) write_entry(Tag::LaunchNumber, number);
}

inline void write_integers(uint32_t buffer, const std::vector<int32_t>& values) {
  Log::Writer log;
  log->tag(Tag::Integers);
  log->entries().number(buffer);
  log->entries().number(values.size());
  for (int32_t value : values) log->entries().integer(value);
}

inline void write_reading(size_t place, const at::Tensor& tensor, uint32_t stream) {
  const uint32_t buffer = Buffers::get().read(tensor, stream, write_integers);
  write_entry(Tag::Reading, place, buffer, tensor.numel());
}

// Records integers in GPU memory that an operator, whose execution follows, reads, such as lengths that decide its
// work. In PyTorch's, vLLM's and SGLang's operators lengths have 32 bits, and positions in memory 64.
inline void write_readings(const std::vector<c10::IValue>& arguments, uint32_t stream) {
  for (size_t place = 0; place < arguments.size(); place++) {
    if (!arguments[place].isTensor()) continue;
    const at::Tensor& tensor = arguments[place].toTensor();
    if (Buffers::concerns(tensor) && tensor.scalar_type() == at::kInt) write_reading(place, tensor, stream);
  }
}

// The same for a Triton kernel. Its operator's arguments are a text with names, two lists of tensors, and integers.
// Each tensor of a list counts as one argument.
inline void write_kernels_readings(const std::vector<c10::IValue>& arguments, uint32_t stream) {
  static const std::set<std::string> kLengths = {"B_Seqlen",  "kv_indptr",           "num_kv_splits",
                                                 "qo_indptr", "query_start_len_ptr", "seq_lens_ptr"};
  const std::string& names = arguments[0].toStringRef();
  size_t place = 1, begin = 0;
  for (size_t list = 1; list <= 2; list++) {
    const size_t after = std::min(names.find(';', begin), names.size());
    for (const at::Tensor& tensor : arguments[list].toTensorVector()) {
      const size_t end = std::min({names.find(',', begin), after});
      if (Buffers::concerns(tensor) && kLengths.count(names.substr(begin, end - begin)) != 0)
        write_reading(place, tensor, stream);
      begin = std::min(end + 1, after);
      place++;
    }
    begin = std::min(after + 1, names.size());
  }
}

inline uint32_t with_operator(uint32_t flags) { return operators > 0 ? flags | shared::LAUNCH_INSIDE : flags; }

// Kernels that an operator launches itself while it also calls other operators, which are recorded before it. Its
// launches are recorded when it returns, or when the thread waits for a stream; they belong to the operator.
class OwnKernels {
 public:
  OwnKernels() : outer_(innermost_) { innermost_ = this; }
  OwnKernels(const OwnKernels&) = delete;
  OwnKernels& operator=(const OwnKernels&) = delete;
  // After a failure of the operator its launches belong to no operator.
  ~OwnKernels() {
    write(0);
    innermost_ = outer_;
  }

  // The launches of the operator that this thread runs; null: no operator is running, or an operator inside of it.
  static OwnKernels* running() {
    return operators == 0 && inside == 0 && counting.load(std::memory_order_relaxed) ? innermost_ : nullptr;
  }

  // Whether the operator has launched kernels, and the stream of the first.
  bool any() const { return any_; }
  uint32_t stream() const { return launches_.empty() ? 0 : launches_.front().stream; }

  void launch(uint32_t kernel, uint32_t stream, uint32_t flags, uint64_t bytes) {
    any_ = true;
    launches_.push_back({std::exchange(number_, 0), kernel, stream, flags, bytes});
  }

  // Sets the number of the operator's next launch. A launch that is no kernel is recorded at once.
  void number(uint64_t number) { number_ = number; }
  uint64_t take_number() { return std::exchange(number_, 0); }

  // The operator's execution follows.
  void write() { write(shared::LAUNCH_INSIDE); }

 private:
  struct Launch {
    uint64_t number;
    uint32_t kernel, stream, flags;
    uint64_t bytes;
  };

  void write(uint32_t flags) {
    for (const Launch& launch : std::exchange(launches_, {})) {
      if (unwritten()) continue;
      if (launch.number != 0) write_number(launch.number);
      write_entry(Tag::Launch, launch.kernel, launch.stream, launch.flags | flags, launch.bytes);
    }
  }

  static inline thread_local OwnKernels* innermost_ = nullptr;
  OwnKernels* const outer_;
  std::vector<Launch> launches_;
  uint64_t number_ = 0;
  bool any_ = false;
};

// Stream of this thread's last kernel launch.
inline thread_local uint32_t last_stream = 0;

inline void launch(uint32_t kernel, uint32_t stream, uint32_t flags, uint64_t bytes) {
  last_stream = stream;
  OwnKernels* own = OwnKernels::running();
  if (own != nullptr && kernel != Kernels::sleep()) return own->launch(kernel, stream, flags, bytes);
  if (!unwritten()) write_entry(Tag::Launch, kernel, stream, with_operator(flags), bytes);
}

inline void number_next(uint64_t number) {
  if (OwnKernels* own = OwnKernels::running()) return own->number(number);
  write_number(number);
}

// Numbers a launch that is no kernel, and is recorded at once.
inline void number_this() {
  OwnKernels* own = OwnKernels::running();
  if (const uint64_t number = own == nullptr ? 0 : own->take_number()) write_number(number);
}

inline constexpr shared::Launches launches{
    [](const uint8_t* name, size_t length) { return Kernels::number(reinterpret_cast<const char*>(name), length); },
    launch,
    [](uint32_t stream, uint32_t kind, uint64_t bytes, uint32_t flags) {
      number_this();
      if (!unwritten()) write_entry(Tag::Copy, stream, kind, bytes, with_operator(flags));
    },
    [](uint32_t event, uint32_t stream) {
      if (!unwritten()) write_entry(Tag::Record, event, stream);
    },
    [](uint32_t stream, uint32_t event) { write_entry(Tag::Wait, stream, event); },
    [](uint32_t event, uint32_t stream) { write_entry(Tag::ExternalRecord, event, stream); },
    [](uint32_t stream, uint32_t event) { write_entry(Tag::ExternalWait, stream, event); },
    [](uint32_t stream, uint32_t graph) {
      graph != 0 ? capturing++ : capturing--;
      Buffers::get().capture(stream, graph);
      write_entry(Tag::Capture, stream, graph);
    },
    [](uint32_t graph, uint32_t stream) {
      if (inside == 0 && counting.load(std::memory_order_relaxed)) Buffers::get().launch(graph, stream, write_integers);
      number_this();
      write_entry(Tag::GraphLaunch, graph, stream);
    },
    [](uint32_t stream, uint32_t with_previous) {
      number_this();
      write_entry(Tag::CapturedCall, stream, with_previous);
    },
    [](uint32_t graph, uint32_t stream) { write_entry(Tag::Resumption, graph, stream); },
    [](uint32_t stream) { write_entry(Tag::HostFunction, stream); },
    number_next,
    OperatorCall::running,
    [](const uint8_t* name, size_t length) {
      const bool in_operator = operators > 0 || OperatorCall::running() != 0 || OwnKernels::running() != nullptr;
      if (in_operator || inside > 0 || !watching) return 0;
      if (!compiling && leave_uncomputed == 0) Uncomputed::note_kernel(reinterpret_cast<const char*>(name), length);
      return 1;
    },
};

}  // namespace uniference
