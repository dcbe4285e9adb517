// The logs of processes on other hosts, appended by a thread of their own.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/units.h"
#include "launch/writers/disk_thread.h"

namespace retort::launch {

// How long one thread waits for file systems, over all of its LogWriters together: a second, and a
// tenth of the time that has passed since. So one that hangs holds up a launcher of many hosts
// once, and not for a second each.
class LogPatience {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Duration kMost{1'000};

  Duration left(Clock::time_point now = Clock::now());
  void spend(Duration waited) { left_ -= waited; }

 private:
  Duration left_ = kMost;
  Clock::time_point looked_ = Clock::now();
};

// What is written while the file system does not answer waits; beyond `capacity` bytes it is left
// out, and the log says how many bytes were. Whoever can make the writers of the logs wait does so
// while full(): then nothing is left out for a file system that is only slow. A log that cannot be
// written is a warning, said once.
// Threads: one caller, who also calls work() now and then.
class LogWriter {
 public:
  explicit LogWriter(size_t capacity = size_t{4} << 20);
  ~LogWriter();  // waits a few seconds for what is not written

  void append(const std::filesystem::path& log, std::string_view text);
  // Gives the thread what waits, if it is idle. Never waits.
  void work();
  // Whether more than half of `capacity` waits for a file system that has taken something in the
  // last kSlow.
  static constexpr Duration kSlow{2'000};
  bool full() const;
  // Waits until all is written, for at most `patience`; not at all while the file system is known
  // to hang.
  void drain(Duration patience);
  void drain(LogPatience& patience);

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
