// Owns which integers in a GPU's memory decide how much operators do: lengths of sequences, say. What lies there is written down when it is read first,
// and when it has changed; what operators of a graph read, whenever that is launched.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
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

  // Whether an argument is a list of integers with values. Places in memory have 64 bits, lengths and numbers of things 32.
  static bool concerns(const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cuda() && tensor.scalar_type() == at::kInt && tensor.dim() == 1 && tensor.is_contiguous() &&
           tensor.numel() > 0 && tensor.numel() <= kMost && !Values::is_absent(tensor);
  }

  // So many integers are read at an address, by what is launched on the stream. Returns the buffer's number, from 1.
  uint32_t read(const int32_t* at, uint32_t count, uint32_t stream, Write write) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint32_t number = notice(at, count, write);
    if (const auto capturing = capturing_.find(stream); capturing != capturing_.end()) keep(capturing->second, number, {at, count});
    return number;
  }

  // What is launched on the stream belongs to the graph; with 0 no longer.
  void capture(uint32_t stream, uint32_t graph) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (graph == 0) {
      capturing_.erase(stream);
    } else {
      capturing_[stream] = graph;
    }
  }

  // A graph is launched, or captured as a part of another one.
  void launch(uint32_t graph, uint32_t stream, Write write) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto known = graphs_.find(graph);
    if (known == graphs_.end()) return;
    const auto capturing = capturing_.find(stream);
    for (const auto& [number, place] : known->second) {
      if (capturing == capturing_.end()) {
        notice(place.at, place.count, write);
      } else {
        keep(capturing->second, number, place);
      }
    }
  }

 private:
  // More are no lengths of sequences.
  static constexpr int64_t kMost = 1 << 16;

  struct Buffer {
    uint32_t number = 0;
    std::vector<int32_t> written;
    // By whom: logs of different threads are read in an order that nobody knows here.
    std::thread::id by;
  };

  struct Place {
    const int32_t* at;
    uint32_t count;
  };

  void keep(uint32_t graph, uint32_t number, Place place) {
    const auto [known, added] = graphs_[graph].try_emplace(number, place);
    known->second.count = std::max(known->second.count, place.count);
  }

  uint32_t notice(const int32_t* at, uint32_t count, Write write) {
    Buffer& buffer = buffers_[at];
    if (buffer.number == 0) buffer.number = static_cast<uint32_t>(buffers_.size());
    const bool same = buffer.by == std::this_thread::get_id() && buffer.written.size() >= count && std::equal(at, at + count, buffer.written.begin());
    if (!same) {
      buffer.written.assign(at, at + count);
      buffer.by = std::this_thread::get_id();
      write(buffer.number, buffer.written);
    }
    return buffer.number;
  }

  std::mutex mutex_;
  std::unordered_map<const int32_t*, Buffer> buffers_;
  std::unordered_map<uint32_t, uint32_t> capturing_;
  // Where operators of a graph read, and how much at most, by the buffer's number: in that order it is written down. References to elements of a
  // map stay valid when others come.
  std::map<uint32_t, std::map<uint32_t, Place>> graphs_;
};

}  // namespace uniference
