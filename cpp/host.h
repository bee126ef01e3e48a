// Owns what memory this machine has left for tensors, so that a program is told before the kernel ends it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "own_work.h"

namespace uniference {

class Host {
 public:
  using Lacking = void (*)(uint64_t wanted, uint64_t available);

  // Who is to be told; it does not return.
  static void tell(Lacking lacking) { lacking_ = lacking; }

  // So many bytes are about to be allocated. Files of the kernel are read once in a while only: it takes longer to write to as much memory.
  static void allocates(uint64_t bytes) {
    if (lacking_ == nullptr) return;
    uint64_t unseen = unseen_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (unseen < kSeldom) return;
    unseen_.store(0, std::memory_order_relaxed);
    OwnWork ours;
    const uint64_t there = available();
    if (bytes + kSpare > there || bytes + kSpare < bytes) lacking_(bytes, there);
  }

  // The C library has none left. Where the machine has, it is the program that has set itself a limit, and torch says so.
  static void has_none(uint64_t bytes) {
    if (lacking_ == nullptr) return;
    const uint64_t there = available();
    if (bytes > there || bytes + kSpare > there) lacking_(bytes, there);
  }

 private:
  // Memory is looked at whenever so much more was allocated.
  static constexpr uint64_t kSeldom = 32 << 20;
  // What is left to everything but tensors.
  static constexpr uint64_t kSpare = 64 << 20;

  // Of the machine, and of the control group if that is less; what the kernel caches of files can be had, too.
  static uint64_t available() {
    constexpr uint64_t unknown = std::numeric_limits<uint64_t>::max();
    uint64_t machine = field("/proc/meminfo", "MemAvailable:");
    machine = machine == unknown ? unknown : machine * 1024;
    const uint64_t most = number("/sys/fs/cgroup/memory.max"), used = number("/sys/fs/cgroup/memory.current");
    if (most == unknown || used == unknown) return machine;
    uint64_t free = most > used ? most - used : 0;
    for (const char* cached : {"active_file", "inactive_file", "slab_reclaimable"}) {
      const uint64_t bytes = field("/sys/fs/cgroup/memory.stat", cached);
      if (bytes != unknown) free += bytes;
    }
    return std::min(machine, free);
  }

  // A file's number; what is none, as `max`, is the largest.
  static uint64_t number(const char* path) {
    std::ifstream file(path);
    uint64_t value;
    return file >> value ? value : std::numeric_limits<uint64_t>::max();
  }

  // The number behind a name.
  static uint64_t field(const char* path, const char* name) {
    std::ifstream file(path);
    std::string word;
    while (file >> word) {
      uint64_t value;
      if (word == name && file >> value) return value;
    }
    return std::numeric_limits<uint64_t>::max();
  }

  static inline Lacking lacking_ = nullptr;
  static inline std::atomic<uint64_t> unseen_{0};
};

}  // namespace uniference
