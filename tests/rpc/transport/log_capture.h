// The log of this process, read while it is written.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::transport::testing {

// Takes stderr for as long as it lives, and passes on what came when it ends.
class LogCapture {
 public:
  LogCapture() : file_(std::tmpfile()), stderr_(::dup(STDERR_FILENO)) {
    RETORT_CHECK(file_ && stderr_ >= 0) << "no temporary file for the log";
    RETORT_CHECK(::dup2(::fileno(file_), STDERR_FILENO) >= 0);
  }
  ~LogCapture() {
    ::dup2(stderr_, STDERR_FILENO);
    ::close(stderr_);
    const std::string all = text();
    std::fwrite(all.data(), 1, all.size(), stderr);
    std::fclose(file_);
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::string text() const {
    std::string all(1 << 20, '\0');
    const ssize_t size = ::pread(::fileno(file_), all.data(), all.size(), 0);
    all.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return all;
  }
  // Waits for it: another thread writes it.
  bool says(std::string_view words) const {
    return test::wait_until([&] { return text().find(words) != std::string::npos; },
                            std::chrono::seconds(30));
  }

 private:
  std::FILE* const file_;
  const int stderr_;
};

}  // namespace retort::rpc::transport::testing
