// Owns the warnings about operators and kernels on simulated GPUs whose values are not computed. The warnings go to the
// driver, because a program may silence torch's own warnings.
#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "lines.h"

namespace uniference {

class Uncomputed {
 public:
  // Callback that receives the warning (UTF-8) when an operator or kernel without values runs for the first time.
  using Warn = void (*)(const char* text);

  static void set_warn(Warn warn) { warn_ = warn; }

  // Counts a call of `what`, an operator or kernel whose values are not computed for this `reason`, and warns at its
  // first call.
  static void note(const std::string& what, const std::string& reason) {
    {
      std::lock_guard<std::mutex> lock(mutex());
      const auto [entry, is_new] = noted().try_emplace(what);
      entry->second.count++;
      if (!is_new) return;
    }
    // `text` acquires the interpreter's lock, which a thread must not wait for while it holds `mutex`.
    const std::string line(Lines::get().text());
    {
      std::lock_guard<std::mutex> lock(mutex());
      noted()[what].line = line;
    }
    const std::string at = line.empty() ? "" : "; first at " + line;
    if (warn_ != nullptr)
      warn_(("the values of " + what + " are not computed on simulated GPUs: " + reason + at).c_str());
  }

  // Counts a launch of the kernel with this (mangled) name that no operator makes.
  static void note_kernel(const char* name, size_t length) {
    note("kernel " + readable({name, length}), "no operator launches it");
  }

  // Number of calls of each operator and kernel without values, as text; empty if each has run at most once. The text
  // is valid until the next call of `counts`.
  static const char* counts() {
    static std::string text;
    std::lock_guard<std::mutex> lock(mutex());
    text.clear();
    bool repeated = false;
    for (const auto& [what, noted] : noted()) {
      repeated = repeated || noted.count > 1;
      text += (text.empty() ? "" : ", ") + what + " (" + std::to_string(noted.count) +
              (noted.count == 1 ? " time" : " times");
      text += (noted.line.empty() ? "" : ", first at " + noted.line) + ")";
    }
    if (!repeated) text.clear();
    return text.c_str();
  }

 private:
  struct Noted {
    uint64_t count = 0;
    std::string line;
  };

  // The demangled form of a name; the name itself if it is not mangled.
  static std::string readable(const std::string& name) {
    static auto* known = new std::map<std::string, std::string>();
    std::lock_guard<std::mutex> lock(mutex());
    const auto [entry, is_new] = known->try_emplace(name, name);
    if (is_new) {
      int status = 0;
      char* demangled = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
      if (status == 0) entry->second = demangled;
      std::free(demangled);
    }
    return entry->second;
  }

  static std::mutex& mutex() {
    static auto* mutex = new std::mutex();
    return *mutex;
  }

  static std::map<std::string, Noted>& noted() {
    static auto* noted = new std::map<std::string, Noted>();
    return *noted;
  }

  static inline Warn warn_ = nullptr;
};

}  // namespace uniference
