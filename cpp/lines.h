// Owns the program's line of an operator: the line of the first frame outside the libraries, or, in the backward pass,
// the line whose operator created the autograd node that runs.
//
// The functions of CPython are declared in this file instead of included from its headers, so that one library works
// with every version of it.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/node.h>

#include <array>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stream.h"

extern "C" {
struct _object;
struct _ts;
struct _frame;
_ts* PyGILState_GetThisThreadState();
int PyGILState_Ensure();
void PyGILState_Release(int);
_frame* PyThreadState_GetFrame(_ts*);
_frame* PyFrame_GetBack(_frame*);
_object* PyFrame_GetCode(_frame*);
int PyFrame_GetLasti(_frame*);
int PyFrame_GetLineNumber(_frame*);
void Py_IncRef(_object*);
void Py_DecRef(_object*);
_object* PyObject_GetAttrString(_object*, const char*);
const char* PyUnicode_AsUTF8(_object*);
void PyErr_Clear();
}

namespace uniference {

// Decides which frames belong to the program, and numbers recorded lines. Its state is protected by the interpreter's
// lock.
class Lines {
 public:
  static Lines& get() {
    static Lines* lines = new Lines();
    return *lines;
  }

  void set_libraries(std::vector<std::string> beginnings) { libraries_ = std::move(beginnings); }

  // The line number of the current operator of this thread, times two, plus one in the backward pass; 0: unknown.
  uint64_t here() {
    if (auto node = torch::autograd::get_current_node()) {
      if (const uint64_t line = maker(node->thread_id(), node->sequence_nr())) return 2 * line + 1;
      // The node was created before this rank began, or too long ago: its line is the one that began the backward pass.
      return 2 * of_frame() + 1;
    }
    uint64_t line = of_frame();
    uint64_t next = at::sequence_number::peek();
    if (next > 0 && c10::GradMode::is_enabled()) makes(at::RecordFunction::currentThreadId(), next - 1, line);
    return 2 * line;
  }

  // The same for an unknown line.
  static uint64_t pass() { return torch::autograd::get_current_node() ? 1 : 0; }

  // The program's current line on this thread, as "path:line", which stays valid; empty: unknown.
  std::string_view text() {
    std::string_view text;
    in_frame([&](Code& known, _object* code, _frame* frame) {
      auto [entry, is_new] = known.texts.try_emplace(PyFrame_GetLasti(frame));
      const std::string file = is_new ? attribute(code, "co_filename") : "";
      if (!file.empty()) entry->second = file + ":" + std::to_string(PyFrame_GetLineNumber(frame));
      text = entry->second;
    });
    return text;
  }

 private:
  static constexpr uint64_t kMask = (1 << 18) - 1;

  // An autograd node is identified by the thread that created it and its sequence number on that thread.
  struct Made {
    uint64_t thread = 0;
    uint64_t sequence = ~0ull;
    uint64_t line = 0;
  };

  // Entries of different threads begin far from each other in the table.
  static uint64_t place(uint64_t thread, uint64_t sequence) { return (sequence + thread * 0x9e37) & kMask; }

  // Records the creator of the node with this sequence number: the first operator, because later ones may create none.
  void makes(uint64_t thread, uint64_t sequence, uint64_t line) {
    std::lock_guard<std::mutex> only_one(making_);
    Made& made = made_[place(thread, sequence)];
    if (made.thread != thread || made.sequence != sequence) made = {thread, sequence, line};
  }

  // The line that created a node; 0: unknown.
  uint64_t maker(uint64_t thread, uint64_t sequence) {
    std::lock_guard<std::mutex> only_one(making_);
    const Made& made = made_[place(thread, sequence)];
    return made.thread == thread && made.sequence == sequence ? made.line : 0;
  }

  struct Code {
    bool library;
    // Line numbers by instruction.
    std::unordered_map<int, uint64_t> lines;
    std::unordered_map<int, std::string> texts;
  };

  uint64_t of_frame() {
    uint64_t line = 0;
    in_frame([&](Code& known, _object* code, _frame* frame) {
      auto [entry, is_new] = known.lines.try_emplace(PyFrame_GetLasti(frame), 0);
      if (is_new) entry->second = write(code, PyFrame_GetLineNumber(frame));
      line = entry->second;
    });
    return line;
  }

  // Calls `found` with the program's innermost frame on this thread, if there is one, while it holds the interpreter's
  // lock.
  template <class Found>
  void in_frame(Found found) {
    _ts* state = PyGILState_GetThisThreadState();
    if (state == nullptr) return;
    int held = PyGILState_Ensure();
    _frame* frame = PyThreadState_GetFrame(state);
    while (frame != nullptr) {
      _object* code = PyFrame_GetCode(frame);
      Code& known = of_code(code);
      if (!known.library) found(known, code, frame);
      _frame* back = known.library ? PyFrame_GetBack(frame) : nullptr;
      Py_DecRef(code);
      Py_DecRef(reinterpret_cast<_object*>(frame));
      frame = back;
    }
    PyGILState_Release(held);
  }

  Code& of_code(_object* code) {
    auto [entry, is_new] = codes_.try_emplace(code);
    if (is_new) {
      // The reference keeps the code object alive, because its address may otherwise be reused.
      Py_IncRef(code);
      std::string file = attribute(code, "co_filename");
      entry->second.library = false;
      for (const std::string& beginning : libraries_) entry->second.library |= file.rfind(beginning, 0) == 0;
    }
    return entry->second;
  }

  uint64_t write(_object* code, int number) {
    std::string line = attribute(code, "co_filename") + ":" + std::to_string(number);
    auto [entry, is_new] = numbers_.try_emplace(line, numbers_.size() + 1);
    if (is_new) {
      std::string function = attribute(code, "co_qualname");
      Dictionary& dictionary = Dictionary::get();
      std::lock_guard<std::mutex> lock(dictionary.mutex());
      dictionary.added().tag(Tag::Site);
      dictionary.added().text(line);
      dictionary.added().text(function);
    }
    return entry->second;
  }

  static std::string attribute(_object* object, const char* name) {
    _object* value = PyObject_GetAttrString(object, name);
    const char* text = value == nullptr ? nullptr : PyUnicode_AsUTF8(value);
    std::string result = text == nullptr ? "" : text;
    if (text == nullptr) PyErr_Clear();
    if (value != nullptr) Py_DecRef(value);
    return result;
  }

  std::vector<std::string> libraries_;
  std::unordered_map<_object*, Code> codes_;
  std::unordered_map<std::string, uint64_t> numbers_;
  std::mutex making_;
  std::array<Made, kMask + 1> made_;
};

}  // namespace uniference
