// Names of requests that no two processes share, so that each can be found in a server's log.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace retort::engines {

// Threads: any.
class RequestNames {
 public:
  RequestNames();
  // "retort-<16 digits>-": of this object alone.
  const std::string& prefix() const { return prefix_; }
  // None is the beginning of another: SGLang aborts all whose names begin with a name.
  std::string next() { return prefix_ + std::to_string(next_++) + "."; }

 private:
  const std::string prefix_;
  std::atomic<uint64_t> next_ = 0;
};

}  // namespace retort::engines
