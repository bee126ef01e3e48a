// Owns what the capture itself takes of a thread's time, which is not the program's.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace uniference {

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
#error "there is no cheap clock for this processor: add one here"
#endif
}

// What our work has taken on this thread since it was asked last.
inline thread_local uint64_t own_ticks = 0;

class OwnWork {
 public:
  OwnWork() : begin_(ticks()) {}
  ~OwnWork() { own_ticks += ticks() - begin_; }

 private:
  uint64_t begin_;
};

}  // namespace uniference
