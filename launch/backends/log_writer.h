// The logs of processes on other hosts, appended by a thread of their own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/units.h"
#include "launch/backends/disk_thread.h"

namespace retort::launch {

// What is written while the file system does not answer waits; beyond `capacity` bytes it is left
// out, and the log says how many bytes were. A log that cannot be written is a warning, said once.
// Threads: one caller, who also calls work() now and then.
class LogWriter {
 public:
  explicit LogWriter(size_t capacity = size_t{4} << 20);
  ~LogWriter();  // waits a few seconds for what is not written

  void append(const std::filesystem::path& log, std::string_view text);
  // Gives the thread what waits, if it is idle. Never waits.
  void work();
  // Waits until all is written, for at most `patience`; not at all while the file system is known
  // to hang.
  void drain(Duration patience);

 private:
  struct Files;
  struct Waiting {
    std::string text;
    size_t left_out = 0;  // bytes after it
  };
  const size_t capacity_;
  std::map<std::filesystem::path, Waiting> waiting_;
  size_t waiting_bytes_ = 0;
  std::shared_ptr<Files> files_;  // the thread's
  DiskThread thread_;
};

}  // namespace retort::launch
