// Owns what is said of values that are missing though the program asked for them: of operators and kernels on simulated GPUs that nothing computes. The
// driver is told, as a program may silence torch's own warnings.
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
  // Who is told of an operator or kernel when it runs for the first time: a text in UTF-8.
  using Tell = void (*)(const char* text);

  static void tell(Tell tell) { tell_ = tell; }

  // `what` has run, and its values are not computed for this reason.
  static void note(const std::string& what, const std::string& reason) {
    {
      std::lock_guard<std::mutex> lock(mutex());
      const auto [entry, is_new] = noted().try_emplace(what);
      entry->second.count++;
      if (!is_new) return;
    }
    // Under the interpreter's lock, which must not be waited for under ours.
    const std::string line(Lines::get().text());
    {
      std::lock_guard<std::mutex> lock(mutex());
      noted()[what].line = line;
    }
    const std::string at = line.empty() ? "" : "; first at " + line;
    if (tell_ != nullptr) tell_(("the values of " + what + " are not computed on simulated GPUs: " + reason + at).c_str());
  }

  // A kernel of this name is launched by no operator.
  static void note_kernel(const char* name, size_t length) {
    const std::string mangled(name, length);
    int status = 0;
    char* readable = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    const std::string shown = status == 0 ? readable : mangled;
    std::free(readable);
    note("kernel " + shown, "no operator launches it");
  }

  // How often each has run, as text; empty: none has run more than once. It stays until it is asked for again.
  static const char* counts() {
    static std::string text;
    std::lock_guard<std::mutex> lock(mutex());
    text.clear();
    bool repeated = false;
    for (const auto& [what, noted] : noted()) {
      repeated = repeated || noted.count > 1;
      text += (text.empty() ? "" : ", ") + what + " (" + std::to_string(noted.count) + (noted.count == 1 ? " time" : " times");
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

  static std::mutex& mutex() {
    static auto* mutex = new std::mutex();
    return *mutex;
  }

  static std::map<std::string, Noted>& noted() {
    static auto* noted = new std::map<std::string, Noted>();
    return *noted;
  }

  static inline Tell tell_ = nullptr;
};

}  // namespace uniference
