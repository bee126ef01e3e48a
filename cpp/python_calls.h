// Owns the number of Python function calls of a program's thread between launches and operators: the interpreter's time
// is charged by this number, which does not depend on the interpreter's speed.
#pragma once

#include <cstdint>
#include <utility>

#include "own_work.h"
#include "stream.h"

namespace uniference {

class PythonCalls {
 public:
  // A profile function of CPython (`Py_tracefunc`), which uses only the event.
  static int count(void*, void*, int event, void*) {
    // PyTrace_CALL and PyTrace_RETURN: a function begins, or a generator resumes; and either returns.
    constexpr int kCall = 0, kReturn = 3;
    if (event == kCall) {
      depth_++;
      if (!unwritten()) calls_++;
    } else if (event == kReturn && --depth_ < 0) {
      leave();
    }
    return 0;
  }

  // Records the number of calls of this thread since the last record.
  static void write(Log& log) {
    if (calls_ == 0) return;
    log.tag(Tag::PythonCalls);
    log.entries().number(std::exchange(calls_, 0));
  }

 private:
  // Handles the end of the function in which counting began. For a thread's first function, the thread writes no later
  // record, so its remaining calls are added to the next record of any thread. That is the thread which joins it,
  // unless other threads run concurrently.
  static void leave() {
    depth_ = 0;
    if (calls_ == 0) return;
    Stream left;
    left.tag(Tag::Restart);
    left.tag(Tag::PythonCalls);
    left.number(std::exchange(calls_, 0));
    Dictionary::get().leave(left);
  }

  static inline thread_local uint64_t calls_ = 0;
  // Number of functions that have begun since counting began, minus those that have ended.
  static inline thread_local int64_t depth_ = 0;
};

}  // namespace uniference
