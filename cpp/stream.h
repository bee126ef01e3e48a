// Owns the encoding of a rank's operators: a stream of entries, each a tag and numbers in LEB128.
//
// The format is documented, and read, in crates/formats/src/operators/mod.rs; numbers are those of crates/abi.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "abi.h"

namespace uniference {

using shared::ArgumentTag;
using shared::Tag;

class Stream {
 public:
  void number(uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<uint8_t>(value) | 0x80);
      value >>= 7;
    }
    bytes_.push_back(static_cast<uint8_t>(value));
  }

  // Zigzag encoding: small numbers of either sign stay short.
  void integer(int64_t value) { number((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63)); }

  void byte(uint8_t value) { bytes_.push_back(value); }
  void tag(Tag value) { byte(static_cast<uint8_t>(value)); }
  void tag(ArgumentTag value) { byte(static_cast<uint8_t>(value)); }

  void text(const char* data, size_t length) {
    number(length);
    bytes_.insert(bytes_.end(), data, data + length);
  }

  void text(const std::string& value) { text(value.data(), value.size()); }

  void append(const Stream& other) { bytes_.insert(bytes_.end(), other.bytes_.begin(), other.bytes_.end()); }

  void clear() { bytes_.clear(); }
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }
  const uint8_t* data() const { return bytes_.data(); }
  void swap(Stream& other) noexcept { bytes_.swap(other.bytes_); }

  std::string_view view() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  bool operator==(const Stream& other) const { return bytes_ == other.bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

// Shared records of the rank's threads.
//
// Definitions and lines belong to the rank, so all threads write them to one stream, which is read before the log of
// any thread.
class Dictionary {
 public:
  static Dictionary& get() {
    static Dictionary* dictionary = new Dictionary();
    return *dictionary;
  }

  // Protects reads and writes of the dictionary. A thread that holds it must not wait for the interpreter's lock.
  std::mutex& mutex() { return mutex_; }

  // New entries; the caller must hold the mutex.
  Stream& added() { return added_; }

  // Keeps the log of a thread that has ended before its log was read.
  void leave(const Stream& log) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_.append(log);
  }

  void drain(Stream& out) {
    std::lock_guard<std::mutex> lock(mutex_);
    out.append(added_);
    out.append(left_);
    added_.clear();
    left_.clear();
  }

 private:
  std::mutex mutex_;
  Stream added_;
  Stream left_;
};

// Records of one thread of the program since the last read: executions, beginnings and ends of allocations, and
// launches on streams, in order.
//
// An autograd thread writes to the log of the thread whose backward pass it carries out, and which waits for it: its
// records belong between that thread's earlier and later ones. Torch passes the waiting thread's debug information to
// it. Torch also passes the information to threads that run concurrently with the program's, such as Gloo's, which
// write to logs of their own.
class Log {
 public:
  // The log of the calling thread, to which no other thread writes while this object lives.
  class Writer {
   public:
    Writer() : log_(of_this_thread()), lock_(log_.mutex_) {}
    Log* operator->() { return &log_; }
    Log& operator*() { return log_; }

   private:
    Log& log_;
    std::lock_guard<std::mutex> lock_;
  };

  // Gives the calling thread, which is one of the program's, a log of its own.
  static void begin();

  bool empty() const { return entries_.empty(); }

  // Number of the log in the process, from 1.
  uint64_t number() const { return number_; }

  ~Log() {
    if (!entries_.empty()) Dictionary::get().leave(entries_);
  }

  // Sets whether a client reads the records.
  static void want(bool wanted) { wanted_ = wanted; }
  static bool is_wanted() { return wanted_; }

  void tag(Tag tag) {
    begin_entry();
    entries_.tag(tag);
  }

  // An execution of a definition, by its number from 0.
  void execution(uint64_t definition) {
    begin_entry();
    entries_.number(shared::EXECUTION + definition);
  }

  // Writes whether autograd records the executions that follow, if that has changed.
  void recorded(bool recorded) {
    const bool known = !entries_.empty() && recorded_;
    if (recorded == known) return;
    tag(Tag::Autograd);
    entries_.number(recorded);
    recorded_ = recorded;
  }

  // The number of an allocation, by its distance from the one named before; 0 is untracked memory.
  void allocation(uint64_t id) {
    entries_.integer(static_cast<int64_t>(id - last_));
    last_ = id;
  }

  // Writes that the thread's next call reads or writes an allocation.
  void called(uint64_t id, bool written) {
    tag(written ? Tag::WrittenByCall : Tag::ReadByCall);
    allocation(id);
  }

  Stream& entries() { return entries_; }

  void drain(Stream& out) {
    out.append(entries_);
    entries_.clear();
  }

 private:
  // A log without entries begins with a restart.
  void begin_entry() {
    if (!wanted_) entries_.clear();
    if (!entries_.empty()) return;
    entries_.tag(Tag::Restart);
    last_ = 0;
    recorded_ = false;
  }

  struct Owner;
  struct Own;
  static const std::shared_ptr<Owner>& own();
  static Log& of_this_thread();

  static inline bool wanted_ = true;
  static inline std::atomic<uint64_t> count_ = 0;
  const uint64_t number_ = ++count_;
  std::mutex mutex_;
  Stream entries_;
  uint64_t last_ = 0;
  bool recorded_ = false;
};

struct Log::Owner : c10::DebugInfoBase {
  Log log;
};

// State of one thread.
struct Log::Own {
  std::shared_ptr<Owner> owner = std::make_shared<Owner>();
  ~Own() { gone = true; }
  // Whether the thread's state is being destroyed: later records go to a log that is not read.
  static inline thread_local bool gone = false;
};

inline const std::shared_ptr<Log::Owner>& Log::own() {
  static thread_local Own own;
  return own.owner;
}

// The debug information is stored under a kind that torch's own code does not use.
inline void Log::begin() {
  // Torch's information is created first, so that it is destroyed last.
  c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO_2);
  c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::TEST_INFO_2, own());
}

inline Log& Log::of_this_thread() {
  if (Own::gone) {
    static Log& nobodys = *new Log();
    return nobodys;
  }
  auto* owner = static_cast<Owner*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO_2));
  const bool works_for_it =
      owner != nullptr && owner != own().get() && torch::autograd::get_current_graph_task_id() != -1;
  return works_for_it ? owner->log : own()->log;
}

}  // namespace uniference
