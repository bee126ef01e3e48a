// Owns integers in GPU memory that decide the work of operators, such as sequence lengths. Their values are recorded at
// the first read and after each change; values that operators of a CUDA graph read are recorded at each launch of the
// graph.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "values.h"

namespace uniference {

class Buffers {
 public:
  using Write = void (*)(uint32_t buffer, const std::vector<int32_t>& values);

  static Buffers& get() {
    static Buffers* buffers = new Buffers();
    return *buffers;
  }

  // Whether an argument is a list of integers with values.
  static bool concerns(const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cuda() &&
           (tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong) && tensor.dim() == 1 &&
           tensor.is_contiguous() && tensor.numel() > 0 && tensor.numel() <= kMost && !Values::is_uncomputed(tensor);
  }

  // Records the buffer's current values, which operators on the stream read. Returns the buffer's number, from 1.
  uint32_t read(const at::Tensor& tensor, uint32_t stream, Write write) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Place place{
        tensor.const_data_ptr(), static_cast<uint32_t>(tensor.numel()), tensor.scalar_type() == at::kLong};
    const uint32_t number = notice(place, write);
    if (const auto capturing = capturing_.find(stream); capturing != capturing_.end())
      keep(capturing->second, number, place);
    return number;
  }

  // Assigns later reads on the stream to the graph; graph 0 ends the assignment.
  void capture(uint32_t stream, uint32_t graph) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (graph == 0) {
      capturing_.erase(stream);
    } else {
      capturing_[stream] = graph;
    }
  }

  // Records the reads of a graph that is launched, or captured as a part of another graph.
  void launch(uint32_t graph, uint32_t stream, Write write) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto known = graphs_.find(graph);
    if (known == graphs_.end()) return;
    const auto capturing = capturing_.find(stream);
    for (const auto& [number, place] : known->second) {
      if (capturing == capturing_.end()) {
        notice(place, write);
      } else {
        keep(capturing->second, number, place);
      }
    }
  }

 private:
  // Larger buffers are no sequence lengths.
  static constexpr int64_t kMost = 1 << 16;

  struct Buffer {
    uint32_t number = 0;
    std::vector<int32_t> written;
    // The thread whose log has the values: the order in which logs of different threads are read is unknown.
    std::thread::id by;
  };

  struct Place {
    const void* at;
    uint32_t count;
    // Whether the integers have 64 bits.
    bool is_wide;
  };

  void keep(uint32_t graph, uint32_t number, Place place) {
    const auto [known, added] = graphs_[graph].try_emplace(number, place);
    known->second.count = std::max(known->second.count, place.count);
  }

  uint32_t notice(Place place, Write write) {
    if (!place.is_wide) return notice(place.at, false, static_cast<const int32_t*>(place.at), place.count, write);
    const auto* wide = static_cast<const int64_t*>(place.at);
    // Lengths fit into 32 bits.
    std::vector<int32_t> narrow(place.count);
    std::transform(wide, wide + place.count, narrow.begin(), [](int64_t value) { return static_cast<int32_t>(value); });
    return notice(place.at, true, narrow.data(), place.count, write);
  }

  uint32_t notice(const void* at, bool is_wide, const int32_t* values, uint32_t count, Write write) {
    Buffer& buffer = buffers_[{at, is_wide}];
    if (buffer.number == 0) buffer.number = static_cast<uint32_t>(buffers_.size());
    const bool same = buffer.by == std::this_thread::get_id() && buffer.written.size() >= count &&
                      std::equal(values, values + count, buffer.written.begin());
    if (!same) {
      buffer.written.assign(values, values + count);
      buffer.by = std::this_thread::get_id();
      write(buffer.number, buffer.written);
    }
    return buffer.number;
  }

  std::mutex mutex_;
  // Buffers by address, and whether their integers have 64 bits.
  std::map<std::pair<const void*, bool>, Buffer> buffers_;
  std::unordered_map<uint32_t, uint32_t> capturing_;
  // Locations that a graph's operators read, and the largest number of elements of each, by graph and buffer number, in
  // which order they are recorded. References to elements of a map stay valid after insertions.
  std::map<uint32_t, std::map<uint32_t, Place>> graphs_;
};

}  // namespace uniference
