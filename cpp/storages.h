// Owns the memory of CPU tensors: numbers of allocations, records of their beginnings and ends, and lazily mapped
// pages.
//
// It replaces torch's own allocator, so memory of tensors is counted to the byte, including temporary memory of
// kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <vector>

#include "host.h"
#include "stream.h"

namespace uniference {

// The kind of data in a storage, as the program's objects say.
using Kind = shared::MemoryKind;
constexpr Kind kUnknownKind{0};
constexpr size_t kKinds = 5;

// Bytes by kind.
class ByKind {
 public:
  std::atomic<uint64_t>& operator[](Kind kind) { return bytes_[static_cast<size_t>(kind)]; }
  uint64_t operator[](Kind kind) const { return bytes_[static_cast<size_t>(kind)]; }

  uint64_t sum() const {
    uint64_t sum = 0;
    for (const auto& of_kind : bytes_) sum += of_kind;
    return sum;
  }

 private:
  std::array<std::atomic<uint64_t>, kKinds> bytes_{};
};

// Header of an allocation. It lies just before the allocation's bytes, because torch identifies an allocation only by
// their address.
struct alignas(64) Allocation {
  // Counted from 1; 0: it was made by a process that records nothing.
  uint64_t id;
  size_t bytes;
  // Whether its pages are mapped at the first write.
  bool mapped;
  Kind kind = kUnknownKind;
  // Something in it was not computed: it reads as zeros.
  std::atomic<bool> uncomputed;

  void* data() { return this + 1; }
};

// Whether this process records allocations; forked children do not.
inline std::atomic<bool> counting{false};

// Excludes this thread's allocations from the program's while the object lives: a GPU would compute in its own memory.
class Uncounted {
 public:
  Uncounted() { depth++; }
  ~Uncounted() { depth--; }

  static inline thread_local int depth = 0;
};

class Storages final : public c10::Allocator {
 public:
  // Replaces torch's current allocator. `lazily`: large allocations have no pages until they are written to, however
  // large they are.
  static void install(bool lazily) {
    static Storages* ours = nullptr;
    if (ours == nullptr) {
      ours = new Storages();
      c10::SetCPUAllocator(ours, /*priority=*/100);
    }
    ours->lazily_ = lazily;
  }

  // Limits allocations on the rank's device to `bytes` in all.
  static void limit(const std::string& device, uint64_t bytes) {
    device_ = device;
    capacity_ = bytes;
  }

  // The allocation behind a storage; null if another allocator made it.
  static Allocation* of(const c10::StorageImpl* storage) {
    if (storage == nullptr) return nullptr;
    const c10::DataPtr& data = storage->data_ptr();
    const bool ours = data.get_deleter() == &Storages::free && data.get_context() != nullptr;
    return ours ? before(data.get_context()) : nullptr;
  }

  static Allocation* of(const at::Tensor& tensor) {
    const auto* implementation = tensor.unsafeGetTensorImpl();
    return implementation->has_storage() ? of(implementation->unsafe_storage().unsafeGetStorageImpl()) : nullptr;
  }

  // Sets the kind of an allocation; only the first call has an effect.
  static void is_of_kind(Allocation& allocation, Kind kind) {
    if (allocation.kind == kind) return;
    held_[allocation.kind] -= allocation.bytes;
    held_[kind] += allocation.bytes;
    allocation.kind = kind;
    write_kind(allocation.id, kind);
  }

  // Sets the kind of a storage from any allocator: a mapped checkpoint, or a NumPy array, counts as held from now on.
  static void is_of_kind(c10::StorageImpl* storage, Kind kind) {
    if (storage == nullptr || !counting.load(std::memory_order_relaxed)) return;
    if (Allocation* allocation = of(storage)) return is_of_kind(*allocation, kind);
    if (storage->nbytes() == 0 || storage->data_ptr().get() == nullptr) return;
    std::lock_guard<std::mutex> only_one(foreign_lock_);
    for (Foreign& foreign : foreign_) {
      if (foreign.storage._unsafe_get_target() != storage) continue;
      if (foreign.kind == kind) return;
      held_[foreign.kind] -= foreign.bytes;
      held_[kind] += foreign.bytes;
      foreign.kind = kind;
      return write_kind(foreign.id, kind);
    }
    auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    foreign_.push_back({std::move(weak), ++newest_, storage->nbytes(), kind});
    any_foreign_.store(true, std::memory_order_relaxed);
    held_[kind] += foreign_.back().bytes;
    write_allocated(foreign_.back().id, foreign_.back().bytes);
    write_kind(foreign_.back().id, kind);
  }

  // Records the end of storages with foreign memory that have been destroyed, because torch does not announce it.
  static void forget_foreign() {
    if (!any_foreign_.load(std::memory_order_relaxed)) return;
    std::lock_guard<std::mutex> only_one(foreign_lock_);
    const auto gone = [](const Foreign& foreign) {
      if (!foreign.storage.expired()) return false;
      held_[foreign.kind] -= foreign.bytes;
      write_freed(foreign.id);
      return true;
    };
    foreign_.erase(std::remove_if(foreign_.begin(), foreign_.end(), gone), foreign_.end());
    any_foreign_.store(!foreign_.empty(), std::memory_order_relaxed);
  }

  // A new number, for an allocation that `GpuMemory` counts.
  static uint64_t next_number() { return ++newest_; }

  static void write_kind(uint64_t id, Kind kind) {
    Log::Writer log;
    log->tag(Tag::MemoryKind);
    log->allocation(id);
    log->entries().byte(static_cast<uint8_t>(kind));
  }

  static void write_freed(uint64_t id) {
    Log::Writer log;
    log->tag(Tag::Freed);
    log->allocation(id);
  }

  static std::string in_words(const ByKind& held) {
    return "Of the allocated memory " + size(held[Kind::Parameter]) + " is parameters, " + size(held[Kind::Gradient]) +
           " gradients, " + size(held[Kind::Optimizer]) + " optimizer state, " + size(held[Kind::Buffer]) +
           " buffers, and " + size(held[kUnknownKind]) + " activations and other tensors.";
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &Storages::free, c10::Device(c10::DeviceType::CPU)};
    const bool counted = counting.load(std::memory_order_relaxed) && Uncounted::depth == 0;
    if (counted && bytes >= kLazily) forget_foreign();
    if (counted) refuse_beyond_capacity(bytes);
    Allocation* allocation = bytes >= kLazily && lazily_ ? map(bytes) : take(bytes, counted);
    allocation->bytes = bytes;
    if (counted) {
      allocation->id = ++newest_;
      held_[kUnknownKind] += bytes;
      write_allocated(allocation->id, bytes);
    }
    return {allocation->data(), allocation->data(), &Storages::free, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Storages::free; }

  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

 private:
  // Smaller allocations would share pages with other data.
  static constexpr size_t kLazily = 1 << 16;
  static constexpr size_t kPage = 1 << 12;

  // A storage whose memory another allocator has made.
  struct Foreign {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint64_t id;
    uint64_t bytes;
    Kind kind;
  };

  static void write_allocated(uint64_t id, uint64_t bytes) {
    Log::Writer log;
    log->tag(Tag::Allocated);
    log->allocation(id);
    log->entries().number(bytes);
  }

  static Allocation* take(size_t bytes, bool counted) {
    if (counted) Host::allocates(bytes);
    try {
      return new (c10::alloc_cpu(sizeof(Allocation) + bytes)) Allocation{};
    } catch (const c10::Error&) {
      if (counted) Host::has_none(bytes);
      throw;
    }
  }

  static Allocation* map(size_t bytes) {
    static_assert(sizeof(Allocation) <= kPage);
    void* pages =
        mmap(nullptr, kPage + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, pages != MAP_FAILED, "there are no addresses left for ", bytes, " bytes");
    auto* allocation = new (static_cast<char*>(pages) + kPage - sizeof(Allocation)) Allocation{};
    allocation->mapped = true;
    return allocation;
  }

  // Raises torch's error for a GPU: the memory of a cluster's device is limited by its own capacity and not by the
  // host's.
  static void refuse_beyond_capacity(size_t bytes) {
    if (capacity_ == 0) return;
    const uint64_t held = held_.sum();
    if (held + bytes <= capacity_) return;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, device_, " is out of memory. Tried to allocate ", size(bytes),
        ". The device has a total capacity of ", size(capacity_), " of which ",
        size(capacity_ - std::min(held, capacity_)), " is free. ", in_words(held_));
  }

  static std::string size(uint64_t bytes) {
    static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    for (; value >= 1024 && unit < 4; unit++) value /= 1024;
    char text[32];
    snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
    return text;
  }

  static Allocation* before(void* data) { return static_cast<Allocation*>(data) - 1; }

  static void free(void* data) {
    if (data == nullptr) return;
    Allocation* allocation = before(data);
    if (allocation->id != 0 && counting.load(std::memory_order_relaxed)) {
      held_[allocation->kind] -= allocation->bytes;
      write_freed(allocation->id);
    }
    if (allocation->mapped) {
      munmap(static_cast<char*>(data) - kPage, kPage + allocation->bytes);
    } else {
      c10::free_cpu(allocation);
    }
  }

  // Allocated bytes by kind. Unknown kinds count as activations.
  static inline ByKind held_{};
  static inline std::string device_;
  // 0: unknown.
  static inline uint64_t capacity_ = 0;
  // Allocations are numbered from 1.
  static inline std::atomic<uint64_t> newest_{0};
  static inline std::mutex foreign_lock_;
  static inline std::vector<Foreign> foreign_;
  static inline std::atomic<bool> any_foreign_{false};
  bool lazily_ = false;
};

}  // namespace uniference
