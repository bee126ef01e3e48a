// Owns what memory this machine has left for tensors, so that a program is told before the kernel ends it.
#pragma once

#include <atomic>
#include <cstdint>

#include "own_work.h"

namespace uniference {

class Host {
 public:
  using Lacking = void (*)(uint64_t wanted, uint64_t available);

  // Bytes that are left; the largest number: it is not known.
  using Available = uint64_t (*)();

  // Who is to be told, which does not return, and who knows what is left.
  static void tell(Lacking lacking, Available available) {
    available_ = available;
    lacking_ = lacking;
  }

  // So many bytes are about to be allocated. Files of the kernel are read once in a while only: it takes longer to write to as much memory.
  static void allocates(uint64_t bytes) {
    if (lacking_ == nullptr) return;
    uint64_t unseen = unseen_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (unseen < kSeldom) return;
    unseen_.store(0, std::memory_order_relaxed);
    OwnWork ours;
    const uint64_t there = available_();
    if (bytes + kSpare > there || bytes + kSpare < bytes) lacking_(bytes, there);
  }

  // The C library has none left. Where the machine has, it is the program that has set itself a limit, and torch says so.
  static void has_none(uint64_t bytes) {
    if (lacking_ == nullptr) return;
    const uint64_t there = available_();
    if (bytes > there || bytes + kSpare > there) lacking_(bytes, there);
  }

 private:
  // Memory is looked at whenever so much more was allocated.
  static constexpr uint64_t kSeldom = 32 << 20;
  // What is left to everything but tensors.
  static constexpr uint64_t kSpare = 64 << 20;

  static inline Lacking lacking_ = nullptr;
  static inline Available available_ = nullptr;
  static inline std::atomic<uint64_t> unseen_{0};
};

}  // namespace uniference
