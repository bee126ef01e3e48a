// Owns the mark between the program's work and the simulator's own on its threads: what the latter takes of their time is not the program's.
#pragma once

#include <atomic>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace uniference {

// How deep this thread is in the simulator's own work, whose operators, launches and calls are not the program's.
inline thread_local int inside = 0;

class Inside {
 public:
  Inside() { inside++; }
  ~Inside() { inside--; }
};

// Whether operators pass through the capture at all: they are recorded, or some of them are not computed.
inline bool watching = false;

// Whether this thread compiles the program. What it runs for that has values, and is not written down: a program that finds all compiled has none of it.
inline thread_local bool compiling = false;

// Nesting depth of this thread in work whose results are not read, such as benchmarks of kernels. Such work has no values.
inline thread_local int unvalued = 0;

// Of how many streams graphs are captured. That is written down whoever does it, as the program launches them.
inline std::atomic<int> capturing{0};

// Whether what this thread runs is not written down as the program's.
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
