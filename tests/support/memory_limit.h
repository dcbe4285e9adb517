// A limit to what a test's process may allocate.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace retort::test {

// Bytes of this process's private writable memory ("VmData" of /proc).
inline uint64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmData:")) return std::stoull(line.substr(7)) * 1024;
  return 0;
}

// While it lives, no more than `bytes` of memory can be allocated in addition: std::bad_alloc.
class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t bytes) {
    ::getrlimit(RLIMIT_DATA, &before_);
    const rlimit limit{static_cast<rlim_t>(data_bytes() + bytes), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_DATA, &before_); }

 private:
  rlimit before_{};
};

}  // namespace retort::test
