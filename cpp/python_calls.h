// Owns how many functions of Python a thread of the program calls between what it hands to its device: what the interpreter takes is charged by
// their number, which is the same in every run.
#pragma once

#include <cstdint>
#include <utility>

#include "own_work.h"
#include "stream.h"

namespace uniference {

class PythonCalls {
 public:
  // A profile function of CPython (`Py_tracefunc`), which needs nothing of what it is told but which event it is.
  static int count(void*, void*, int event, void*) {
    // PyTrace_CALL: a function begins, or a generator goes on.
    constexpr int kCall = 0;
    if (event == kCall && inside == 0) of_this_thread_.calls_++;
    return 0;
  }

  // Says how many there were on this thread since it was said last.
  static void write(Log& log) {
    if (of_this_thread_.calls_ == 0) return;
    log.tag(kKind);
    log.allocation(0);
    of_this_thread_.finish(log.entries());
  }

  PythonCalls() = default;
  PythonCalls(const PythonCalls&) = delete;
  PythonCalls& operator=(const PythonCalls&) = delete;

  // What a thread has called that ends before it says anything is said by the next one that does.
  ~PythonCalls() {
    if (calls_ == 0) return;
    Stream left;
    left.number(kRestart);
    left.number(kKind);
    left.integer(0);
    finish(left);
    Dictionary::get().leave(left);
  }

 private:
  void finish(Stream& entries) {
    // What is said in place of a kind of memory: `kind` of crates/formats/src/operators/mod.rs.
    constexpr uint8_t kPythonCalls = 19;
    entries.byte(kPythonCalls);
    entries.number(std::exchange(calls_, 0));
  }

  static thread_local PythonCalls of_this_thread_;

  uint64_t calls_ = 0;
};

inline thread_local PythonCalls PythonCalls::of_this_thread_;

}  // namespace uniference
