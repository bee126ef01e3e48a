// Owns the boundary between the program's work and the simulator's on the program's threads: time of the simulator's
// work is not charged.
#pragma once

#include <atomic>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace uniference {

// Nesting depth of this thread in the simulator's own work, whose operators, launches and calls are not the program's.
inline thread_local int inside = 0;

class Inside {
 public:
  Inside() { inside++; }
  ~Inside() { inside--; }
};

// Whether operators pass through the capture: they are recorded, or some of them are not computed.
inline bool watching = false;

// Whether this thread compiles the program. Operators of the compiler have values and are not recorded, because a
// program with warm caches has none of them.
inline thread_local bool compiling = false;

// Nesting depth of this thread in work whose results are not read, such as benchmarks of kernels. Such work has no
// values.
inline thread_local int leave_uncomputed = 0;

// Number of streams that are being captured into CUDA graphs. Captured work is always recorded, even during
// compilation, because the program launches it.
inline std::atomic<int> capturing{0};

// Whether this thread's operators are not recorded as the program's.
inline bool unwritten() { return inside > 0 || (compiling && capturing.load(std::memory_order_relaxed) == 0); }

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

// Ticks that the simulator's work has used on this thread since the last query.
inline thread_local uint64_t own_ticks = 0;

class OwnWork {
 public:
  OwnWork() : begin_(ticks()) {}
  ~OwnWork() { own_ticks += ticks() - begin_; }

 private:
  uint64_t begin_;
};

}  // namespace uniference
