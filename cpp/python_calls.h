// Owns how many functions of Python a thread of the program calls between what it hands to its device: what the interpreter takes is charged by
// their number, which does not depend on how fast it is.
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
    // PyTrace_CALL and PyTrace_RETURN: a function begins, or a generator goes on; and either ends.
    constexpr int kCall = 0, kReturn = 3;
    if (event == kCall) {
      depth_++;
      if (!unwritten()) calls_++;
    } else if (event == kReturn && --depth_ < 0) {
      leave();
    }
    return 0;
  }

  // Says how many there were on this thread since it was said last.
  static void write(Log& log) {
    if (calls_ == 0) return;
    log.tag(Tag::PythonCalls);
    log.entries().number(std::exchange(calls_, 0));
  }

 private:
  // A function has ended in which the counting began: of a thread the first one, behind which it says nothing more. Whoever speaks next says what is left
  // of it: as who joins the thread goes on later than this, it is that one, unless others run beside it.
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
  // Of functions that have begun since the counting did, less those that have ended.
  static inline thread_local int64_t depth_ = 0;
};

}  // namespace uniference
