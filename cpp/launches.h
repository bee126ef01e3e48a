// Owns how a rank writes down what it hands to streams of simulated GPUs, between its operators.
#pragma once

#include <atomic>
#include <string>
#include <unordered_map>

#include "storages.h"
#include "stream.h"

namespace uniference {

// How deep this thread is in the simulator's own work, whose operators and launches are not the program's.
inline thread_local int inside = 0;

class Inside {
 public:
  Inside() { inside++; }
  ~Inside() { inside--; }
};

// How many operators this thread is running that are written down when they have returned.
inline thread_local int operators = 0;

// While it lives, what is launched is the operator's.
class Operator {
 public:
  Operator() { operators++; }
  ~Operator() { operators--; }
};

// Numbers of kernels by name.
class Kernels {
 public:
  static uint32_t number(const char* name, size_t length) {
    static auto* known = new std::unordered_map<std::string, uint32_t>();
    std::lock_guard<std::mutex> lock(Dictionary::get().mutex());
    const auto [entry, added] = known->try_emplace(std::string(name, length), static_cast<uint32_t>(known->size()) + 1);
    if (added) {
      Dictionary::get().added().number(kKernel);
      Dictionary::get().added().text(name, length);
    }
    return entry->second;
  }
};

// Flags of a launch: the operator whose execution follows has launched it.
constexpr uint32_t kInside = 1;

template <typename... Fields>
void write_entry(Tag tag, Fields... fields) {
  if (inside > 0 || !counting.load(std::memory_order_relaxed)) return;
  Log::Writer log;
  log->tag(tag);
  (log->entries().number(fields), ...);
}

inline uint32_t with_operator(uint32_t flags) { return operators > 0 ? flags | kInside : flags; }

// `Launches` of crates/py/src/channel/device.rs.
struct Launches {
  uint32_t (*kernel)(const char* name, size_t length);
  void (*launch)(uint32_t kernel, uint32_t stream, uint32_t flags, uint64_t bytes);
  void (*copy)(uint32_t stream, uint32_t kind, uint64_t bytes, uint32_t flags);
  void (*record)(uint32_t event, uint32_t stream);
  void (*wait_event)(uint32_t stream, uint32_t event);
  void (*capture)(uint32_t stream, uint32_t graph);
  void (*graph_launch)(uint32_t graph, uint32_t stream);
  void (*host_function)(uint32_t stream);
};

inline constexpr Launches launches{
    Kernels::number,
    [](uint32_t kernel, uint32_t stream, uint32_t flags, uint64_t bytes) { write_entry(kLaunch, kernel, stream, with_operator(flags), bytes); },
    [](uint32_t stream, uint32_t kind, uint64_t bytes, uint32_t flags) { write_entry(kCopy, stream, kind, bytes, with_operator(flags)); },
    [](uint32_t event, uint32_t stream) { write_entry(kRecord, event, stream); },
    [](uint32_t stream, uint32_t event) { write_entry(kWait, stream, event); },
    [](uint32_t stream, uint32_t graph) { write_entry(kCapture, stream, graph); },
    [](uint32_t graph, uint32_t stream) { write_entry(kGraphLaunch, graph, stream); },
    [](uint32_t stream) { write_entry(kHostFunction, stream); },
};

}  // namespace uniference
