// Owns the check of this machine's free memory before tensors are allocated, so that the run ends with a message before
// the kernel kills it.
#pragma once

#include <atomic>
#include <cstdint>

#include "own_work.h"

namespace uniference {

class Host {
 public:
  using Lacking = void (*)(uint64_t wanted, uint64_t available);

  // Returns the free bytes; the largest number: unknown.
  using Available = uint64_t (*)();

  // Sets the callback for a lack of memory, which does not return, and the function that returns the free bytes.
  static void set_callbacks(Lacking lacking, Available available) {
    available_ = available;
    lacking_ = lacking;
  }

  // Checks memory before an allocation of `bytes`. The kernel's files are read only once per `kSeldom` bytes: writing
  // to as much memory takes longer than reading the files.
  static void allocates(uint64_t bytes) {
    if (lacking_ == nullptr) return;
    uint64_t unseen = unseen_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (unseen < kSeldom) return;
    unseen_.store(0, std::memory_order_relaxed);
    OwnWork ours;
    const uint64_t there = available_();
    if (bytes + kSpare > there || bytes + kSpare < bytes) lacking_(bytes, there);
  }

  // Handles a failed allocation of the C library. If the machine has free memory, the program has set a limit for
  // itself, and torch raises the error.
  static void has_none(uint64_t bytes) {
    if (lacking_ == nullptr) return;
    const uint64_t there = available_();
    if (bytes > there || bytes + kSpare > there) lacking_(bytes, there);
  }

 private:
  // Allocated bytes between two checks of free memory.
  static constexpr uint64_t kSeldom = 32 << 20;
  // Bytes that are kept free for uses other than tensors.
  static constexpr uint64_t kSpare = 64 << 20;

  static inline Lacking lacking_ = nullptr;
  static inline Available available_ = nullptr;
  static inline std::atomic<uint64_t> unseen_{0};
};

}  // namespace uniference
