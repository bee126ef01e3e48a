// Owns the accounting of torch's caching allocator for simulated GPUs: its allocations are numbered like those of the
// CPU, and reserved memory is recorded.
//
// The allocator reports the address of each allocation to the GPU tracer; the size follows from the allocator's
// statistics.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/SymInt.h>
#include <c10/core/impl/GPUTrace.h>

#include <unordered_map>

#include "gpu_tracer.h"
#include "storages.h"
#include "stream.h"

namespace uniference {

class GpuMemory {
 public:
  // Torch's number of the rank's own GPU; -1: the process does not see it.
  using Own = int (*)();
  // Bytes of the GPU's memory that this process uses; 0: it has not used the GPU.
  using Taken = uint64_t (*)();

  // Records allocations on the rank's own GPU from now on.
  static void begin(Own own, Taken taken) {
    own_ = own;
    taken_ = taken;
    static GpuTracer tracer(&allocated, &freed);
    static const c10::impl::PyInterpreter traced(&tracer);
    c10::impl::GPUTrace::set_trace(&traced);
  }

  // The number of the allocation behind a storage; 0: it is not on the rank's GPU. With `is_parameter`, an allocation
  // of unknown kind becomes a parameter.
  static uint64_t number(const c10::StorageImpl* storage, bool is_parameter) {
    if (storage == nullptr) return 0;
    std::lock_guard<std::mutex> only_one(lock_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(storage->data()));
    if (found == blocks_.end()) return 0;
    if (is_parameter && found->second.kind == kUnknownKind) set_kind(found->second, Kind::Parameter);
    return found->second.id;
  }

  // Sets the kind of an allocation.
  static void is_of_kind(const c10::StorageImpl* storage, Kind kind) {
    if (!counting.load(std::memory_order_relaxed)) return;
    std::lock_guard<std::mutex> only_one(lock_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(storage->data()));
    if (found != blocks_.end() && found->second.kind != kind) set_kind(found->second, kind);
  }

  // Records other use of memory if it has changed without an allocation of torch's: a library has allocated memory, or
  // the allocator has released some. Must not be called on a thread that the simulator waits for, because another
  // thread may hold the allocator's lock while it waits for the simulator.
  static void notice_levels() {
    if (taken_ == nullptr || !counting.load(std::memory_order_relaxed)) return;
    if (taken_() == reserved_.load(std::memory_order_relaxed) + context_.load(std::memory_order_relaxed)) return;
    const uint64_t reserved = statistics().first;
    std::lock_guard<std::mutex> only_one(lock_);
    write_levels(reserved);
  }

  // Whether a storage has elements that were not computed.
  static bool is_uncomputed(const c10::StorageImpl* storage) {
    if (!any_uncomputed_.load(std::memory_order_relaxed)) return false;
    std::lock_guard<std::mutex> only_one(lock_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(storage->data()));
    return found != blocks_.end() && found->second.uncomputed;
  }

  // Marks a storage as not computed.
  static void mark_uncomputed(const c10::StorageImpl* storage) {
    std::lock_guard<std::mutex> only_one(lock_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(storage->data()));
    if (found == blocks_.end()) return;
    found->second.uncomputed = true;
    any_uncomputed_.store(true, std::memory_order_relaxed);
  }

  // Allocated memory by kind, as text.
  static std::string held() {
    std::lock_guard<std::mutex> only_one(lock_);
    return Storages::in_words(held_);
  }

 private:
  struct Block {
    uint64_t id;
    uint64_t bytes;
    Kind kind;
    bool uncomputed = false;
  };

  // Bytes that the allocator has reserved, and allocated.
  static std::pair<uint64_t, uint64_t> statistics() {
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(c10::kCUDA);
    const int own = own_();
    if (own < 0 || !allocator->initialized()) return {0, 0};
    const auto now = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(own));
    constexpr size_t kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return {now.reserved_bytes[kAll].current, now.allocated_bytes[kAll].current};
  }

  // Records an allocation, whose size is the growth of the statistics since the last one. If two threads allocate at
  // the same time, both blocks may be attributed to one allocation.
  static void allocated(uintptr_t at) {
    if (!counting.load(std::memory_order_relaxed)) return;
    const auto [reserved, allocated] = statistics();
    std::lock_guard<std::mutex> only_one(lock_);
    // The statistics are unchanged, so the allocation was on another GPU.
    if (allocated <= allocated_) return;
    const Block block{Storages::next_number(), allocated - std::exchange(allocated_, allocated), kUnknownKind};
    blocks_[at] = block;
    held_[kUnknownKind] += block.bytes;
    write_levels(reserved);
    Log::Writer log;
    log->tag(Tag::AllocatedOnGpu);
    log->allocation(block.id);
    log->entries().number(block.bytes);
  }

  static void freed(uintptr_t at) {
    if (!counting.load(std::memory_order_relaxed)) return;
    std::lock_guard<std::mutex> only_one(lock_);
    const auto found = blocks_.find(at);
    if (found == blocks_.end()) return;
    const Block block = found->second;
    blocks_.erase(found);
    allocated_ -= block.bytes;
    held_[block.kind] -= block.bytes;
    Storages::write_freed(block.id);
  }

  static void write_levels(uint64_t reserved) {
    const uint64_t taken = taken_();
    const uint64_t context = taken - std::min(taken, reserved);
    if (reserved_.exchange(reserved, std::memory_order_relaxed) != reserved) write_level(Tag::Reserved, reserved);
    if (context_.exchange(context, std::memory_order_relaxed) != context) write_level(Tag::Context, context);
  }

  static void set_kind(Block& block, Kind kind) {
    held_[block.kind] -= block.bytes;
    held_[kind] += block.bytes;
    block.kind = kind;
    Storages::write_kind(block.id, kind);
  }

  static void write_level(Tag level, uint64_t bytes) {
    Log::Writer log;
    log->tag(level);
    log->entries().number(bytes);
  }

  static inline Own own_ = nullptr;
  static inline Taken taken_ = nullptr;
  static inline std::mutex lock_;
  static inline std::unordered_map<uintptr_t, Block> blocks_;
  static inline std::atomic<bool> any_uncomputed_ = false;
  static inline uint64_t allocated_ = 0;
  static inline std::atomic<uint64_t> reserved_ = 0;
  static inline std::atomic<uint64_t> context_ = 0;
  static inline ByKind held_{};
};

// The number of a tensor's allocation, on the CPU or the GPU; 0: the memory is not tracked. A leaf that requires a
// gradient is recorded as a parameter.
inline uint64_t allocation_of(const at::Tensor& tensor) {
  const bool is_parameter = tensor.requires_grad() && tensor.is_leaf();
  const auto* implementation = tensor.unsafeGetTensorImpl();
  if (tensor.is_cuda() && implementation->has_storage()) {
    return GpuMemory::number(implementation->unsafe_storage().unsafeGetStorageImpl(), is_parameter);
  }
  Allocation* allocation = Storages::of(tensor);
  if (allocation == nullptr) return 0;
  if (is_parameter && allocation->kind == kUnknownKind) Storages::is_of_kind(*allocation, Kind::Parameter);
  return allocation->id;
}

}  // namespace uniference
